"""How commands print data: a table for people, one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from sparkmirror.observe.logs import mask_secrets
from sparkmirror.text import printable, printable_json

__all__ = ["Format", "Output", "cell", "print_json", "table_lines", "utc"]

_WIDTH_MAX = 50


class Format(StrEnum):
    """A table for people, or one JSON object."""

    TABLE = "table"
    JSON = "json"


Output = Annotated[
    Format, typer.Option("--format", help="A table for people, or one JSON document.")
]


def cell(value: object) -> str:
    """``-`` for what is not known or not there; lists with commas."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return printable(",".join(str(one) for one in value)) or "-"
    return printable(str(value))


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Left-aligned columns, two blanks apart; a very long cell pushes only its own line."""
    texts = [list(headings), *([cell(value) for value in row] for row in rows)]
    widths = [
        min(_WIDTH_MAX, max(len(row[column]) for row in texts)) for column in range(len(headings))
    ]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    ]


def utc(time_ms: int) -> str:
    """Epoch milliseconds in ISO 8601, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def print_json(document: object) -> None:
    """``document``, indented, secrets masked."""
    print(
        printable_json(mask_secrets(json.dumps(document, indent=2, ensure_ascii=False))), flush=True
    )
