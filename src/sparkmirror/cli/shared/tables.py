"""Prints the result of every command, as tables for people or as JSON for programs.

A command describes its result once, as a `Report`: a JSON document, and the lines and tables
(`Table`) that people read instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from operator import attrgetter
from typing import Annotated, Any

import typer

from sparkmirror.observe.logs import mask_secrets
from sparkmirror.text import echo, printable, printable_json

UNLIMITED = sys.maxsize
_WIDTH_MAX = 50

Columns = Mapping[str, str | Callable[[Any], object]]
"""Per heading, the name of a row's attribute (``kind.value``) or a function of the row."""


class Format(StrEnum):
    """A table for people, or one JSON object."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[
    Format, typer.Option("--format", help="A table for people, or one JSON document.")
]


@dataclass(frozen=True, slots=True)
class Table:
    """``rows`` below the headings of ``columns``, left-aligned, ``gap`` blanks apart.

    A column is as wide as its longest cell, up to ``most``; a longer cell shifts only its own line.
    ``least``: minimum widths of the columns. A column without a heading leaves empty cells empty;
    others show ``-``.
    """

    columns: Columns
    rows: Iterable[object]
    gap: int = 2
    least: Sequence[int] = ()
    most: int = _WIDTH_MAX

    def lines(self) -> list[str]:
        """The headings and the rows, one line each."""
        values: list[Callable[[Any], object]] = [
            attrgetter(of) if isinstance(of, str) else of for of in self.columns.values()
        ]
        texts = [list(self.columns)]
        for row in self.rows:
            found = zip(self.columns, [value(row) for value in values], strict=True)
            texts.append([cell(one) if heading or one else "" for heading, one in found])
        least = self.least or [0] * len(values)
        widths = [
            max(low, min(self.most, max(map(len, column))))
            for low, column in zip(least, zip(*texts, strict=True), strict=True)
        ]
        return [(" " * self.gap).join(map(str.ljust, text, widths)).rstrip() for text in texts]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a command: the JSON ``document``, and the ``body`` that people read, in order.

    ``one_line``: print the document on one line, in ASCII, and never mask names in it, because
    programs match them with other data.
    """

    document: object
    body: Sequence[str | Table]
    one_line: bool = False

    def lines(self) -> list[str]:
        """The lines for people."""
        parts = [part.lines() if isinstance(part, Table) else [part] for part in self.body]
        return [line for part in parts for line in part]

    def show(self, output: Format) -> None:
        """Print it, with secrets masked."""
        if output is Format.TABLE:
            if self.body:
                echo(*map(mask_secrets, self.lines()))
        elif self.one_line:
            print(json.dumps(self.document), flush=True)
        else:
            text = json.dumps(_masked(self.document), indent=2, ensure_ascii=False)
            print(printable_json(text), flush=True)


def _masked(part: object) -> object:
    """``part`` with secrets masked in its texts; keys and numbers stay, so it is valid JSON."""
    if isinstance(part, str):
        return mask_secrets(part)
    if isinstance(part, Mapping):
        return {key: _masked(value) for key, value in part.items()}
    return [_masked(one) for one in part] if isinstance(part, list | tuple) else part


def cell(value: object) -> str:
    """The text of a table cell: ``-`` for None and empty values, commas between list items."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return printable(",".join(str(one) for one in value)) or "-"
    return printable(str(value))


def utc(time_ms: int) -> str:
    """Epoch milliseconds as ISO 8601 in UTC, to the second; as a number if no date is so late."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return f"{time_ms} ms"
