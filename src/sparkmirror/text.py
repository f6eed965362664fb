"""Makes foreign text safe for a terminal or a log."""

from __future__ import annotations

import json
import sys
from unicodedata import category

__all__ = ["echo", "printable", "printable_json"]

# Characters that terminals and readers act on: control and format characters (cursor, colours,
# writing direction), surrogates, separators of lines and paragraphs.
_ACTIVE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str, *, keep: str = "") -> str:
    r"""``text`` with escapes for the characters that a terminal or a reader of lines acts on.

    An escape character becomes ``\x1b``, a line break ``\n``. ``keep``: characters that stay, such
    as the line breaks of our own texts.
    """
    if text.isprintable():
        return text
    return "".join(
        one
        if one.isprintable() or one in keep or category(one) not in _ACTIVE
        else one.encode("unicode_escape").decode()
        for one in text
    )


def printable_json(text: str) -> str:
    """A JSON text with the same characters as JSON escapes; its value does not change."""
    if text.isprintable():
        return text
    return "".join(
        one
        if one in "\n" or one.isprintable() or category(one) not in _ACTIVE
        else json.dumps(one)[1:-1]
        for one in text
    )


def echo(*lines: str, end: str = "\n", error: bool = False) -> None:
    """Print lines for people on stdout or stderr, each made printable and one line."""
    stream = sys.stderr if error else sys.stdout
    print("\n".join(map(printable, lines)), end=end, file=stream, flush=True)
