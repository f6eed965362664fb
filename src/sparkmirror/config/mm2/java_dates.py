"""Java's ``SimpleDateFormat`` in UTC, as Spark SQL of the column ``timestamp``.

Spark's own ``date_format`` reads other patterns, and writes years from 10000 on with a plus sign.
Letters that depend on the locale of Java's process (names of months and days, weeks) cannot be
translated.
"""

from __future__ import annotations

from itertools import groupby

_HOUR = "hour(timestamp)"
# Letter: the number in SQL, and the most digits that it has.
_NUMBERS = {
    "y": ("year(timestamp)", 6),
    "M": ("month(timestamp)", 2),
    "L": ("month(timestamp)", 2),
    "d": ("day(timestamp)", 2),
    "D": ("dayofyear(timestamp)", 3),
    "F": ("(day(timestamp) + 6) DIV 7", 1),
    "u": ("weekday(timestamp) + 1", 1),
    "H": (_HOUR, 2),
    "k": (f"(({_HOUR} + 23) % 24 + 1)", 2),
    "K": (f"({_HOUR} % 12)", 2),
    "h": (f"(({_HOUR} + 11) % 12 + 1)", 2),
    "m": ("minute(timestamp)", 2),
    "s": ("second(timestamp)", 2),
    "S": ("pmod(unix_millis(timestamp), 1000)", 3),
}
_BY_LOCALE = {
    "G": "the era",
    "E": "the name of the day",
    "a": "AM or PM",
    "Y": "the year of the week",
    "w": "the week",
    "W": "the week",
    "z": "the name of the time zone",
}
_MONTH_NAME = 3
_OFFSETS_MAX = 3

Piece = tuple[str, bool]
"""Text, and whether it is SQL."""


def date_pieces(pattern: str) -> list[Piece]:
    """The parts of a time in ``pattern``, in order. Raises ValueError with the reason."""
    found: list[Piece] = []
    for text, quoted in _unquoted(pattern):
        if quoted:
            found.append((text, False))
            continue
        for char, run in groupby(text):
            count = len(list(run))
            if char.isascii() and char.isalpha():
                found.append(_letter(char, count))
            else:
                found.append((char * count, False))
    return found


def _unquoted(pattern: str) -> list[tuple[str, bool]]:
    """Stretches of letters with a meaning, and of text between quotes; two quotes are one."""
    found: list[tuple[str, bool]] = []
    parts = pattern.split("'")
    if len(parts) % 2 == 0:
        raise ValueError("a quote is not closed")
    for number, part in enumerate(parts):
        quoted = number % 2 == 1
        if quoted and not part:
            found.append(("'", True))
        elif part:
            # Between two quoted stretches: a quote within quotes.
            found.append((part, quoted))
        elif not quoted and 0 < number < len(parts) - 1:
            found.append(("'", True))
    return found


def _letter(char: str, count: int) -> Piece:
    shown = char * count
    if char in _BY_LOCALE or (char in "ML" and count >= _MONTH_NAME):
        what = _BY_LOCALE.get(char, "the name of the month")
        raise ValueError(f"{shown} ({what}) depends on the locale of Java's process")
    if char == "Z":
        return "+0000", False
    if char == "X" and count <= _OFFSETS_MAX:
        return "Z", False
    if char not in _NUMBERS:
        raise ValueError(f"{shown} is no pattern of SimpleDateFormat")
    number, digits = _NUMBERS[char]
    if char == "y" and count == 2:  # Java cuts such years
        number, digits = f"({number} % 100)", 2
    text = f"CAST({number} AS STRING)"
    if count == 1:
        return text, True
    width = str(count) if count >= digits else f"greatest({count}, length({text}))"
    return f"lpad({text}, {width}, '0')", True
