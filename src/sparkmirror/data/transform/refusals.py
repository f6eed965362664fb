"""Why a transform is refused at the start: with its key, its line and a remedy."""

from __future__ import annotations

import re

from sparkmirror.errors import ConfigError
from sparkmirror.transform_settings import TransformSettings

__all__ = ["HINTS", "LITERAL", "LOOKUP", "refused", "words"]

LITERAL = re.compile(r"\b[rR](?:'[^']*'|\"[^\"]*\")|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"")
"""A string in SQL. One with an r in front has no escapes."""

_KEY_CHARS_MIN = 16

LOOKUP = (
    "Name the table in tables, and write lookup('TABLE', 'COLUMN', value): it gives the row as a "
    "struct, or null."
)
"""What to do instead of a subquery or a join."""

HINTS = {
    "Subquery": f"A transform sees one record at a time. {LOOKUP}",
    "Aggregate": "A transform sees one record at a time: it cannot aggregate.",
    "Window": "A transform sees one record at a time: it has no window over others.",
    "Generate": "A record cannot become several ones.",
}
"""What to do instead, by the name of Spark's operator."""


def refused(one: TransformSettings, option: str, what: str, do: str) -> ConfigError:
    """The error for ``option`` of a transform; all that a function does is in its one option."""
    return ConfigError(
        f"the transform {one.name} cannot be used: {what}.",
        where=one.place("python" if one.python else option),
        do=do,
    )


def words(text: str, sql: str = "") -> str:
    """Spark's message without the plan and the place in the SQL that we made.

    And without the longer strings of ``sql``: they may be keys, as of aes_encrypt.
    """
    for literal in map(str, LITERAL.findall(sql)):
        inside = literal.lstrip("rR")[1:-1]
        if len(inside) >= _KEY_CHARS_MIN:
            text = text.replace(inside, "…")
    lines = [line.strip() for line in re.split(r"\n\n|;\s*line \d+|;?\s*\n'", text)[0].splitlines()]
    return " ".join(line for line in lines if line).strip(" ;.")
