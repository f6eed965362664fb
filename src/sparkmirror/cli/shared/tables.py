"""The printer of all commands: what a command found, as tables for people or as JSON for programs.

A command describes what it found once, as a `Report`: a JSON document, and the lines and `Table` s
that people read in its place.
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
from sparkmirror.text import printable, printable_json, say

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

    A column is as wide as its longest cell, but not wider than ``most``: a longer cell pushes only
    its own line. ``least``: widths that the columns have in any case. A column without a heading
    has no ``-`` in its empty cells.
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
    """What a command found: the JSON ``document``, and what people read, in order.

    ``one_line``: the document stands on one line, in ASCII, and its names are never masked, because
    programs join them with others.
    """

    document: object
    body: Sequence[str | Table]
    one_line: bool = False

    def lines(self) -> list[str]:
        """The lines for people."""
        parts = [part.lines() if isinstance(part, Table) else [part] for part in self.body]
        return [line for part in parts for line in part]

    def show(self, output: Format) -> None:
        """Print it."""
        if output is Format.TABLE:
            if self.body:
                say(*self.lines())
        elif self.one_line:
            print(json.dumps(self.document), flush=True)
        else:
            text = json.dumps(self.document, indent=2, ensure_ascii=False)
            print(printable_json(mask_secrets(text)), flush=True)


def cell(value: object) -> str:
    """The text of a table's cell: ``-`` for None and for nothing, commas between a list's items."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return printable(",".join(str(one) for one in value)) or "-"
    return printable(str(value))


def utc(time_ms: int) -> str:
    """Epoch milliseconds in ISO 8601, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
