r"""Java's character classes as sets of code points: ``[a-z&&[^b]]``, ``\p{Alpha}``, ``\h``.

Python's ``re`` has no operators inside ``[…]``. With sets, unions, intersections and negations are
exact.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

_CODE_POINT_MAX = 0x10FFFF


class RegexSyntaxError(ValueError):
    """A regex that is invalid in Java, or that cannot be translated; the message says why."""


class Scanner:
    """A cursor over the text of a regex."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def done(self) -> bool:
        """Whether the end is reached."""
        return self.at >= len(self.text)

    def peek(self) -> str:
        """The next character; ``""`` at the end."""
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        """Take the next character. Raises RegexSyntaxError at the end."""
        if self.done():
            raise RegexSyntaxError("it ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def take_text(self, text: str) -> bool:
        """Take ``text`` if it is next; returns whether it was."""
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Take what ``pattern`` matches here; None if it does not match."""
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found


@dataclass(frozen=True, slots=True)
class CharSet:
    """A set of code points as sorted, disjoint, inclusive ranges."""

    ranges: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(ranges: Iterable[tuple[int, int]]) -> CharSet:
        """The union of ``ranges``, which may overlap."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        return CharSet(tuple(merged))

    @staticmethod
    def chars(text: str) -> CharSet:
        """The set of the characters of ``text``."""
        return CharSet.of((ord(char), ord(char)) for char in text)

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet.of(self.ranges + other.ranges)

    def __and__(self, other: CharSet) -> CharSet:
        both = []
        for low, high in self.ranges:
            for other_low, other_high in other.ranges:
                if max(low, other_low) <= min(high, other_high):
                    both.append((max(low, other_low), min(high, other_high)))
        return CharSet.of(both)

    def __invert__(self) -> CharSet:
        gaps = []
        start = 0
        for low, high in self.ranges:
            if low > start:
                gaps.append((start, low - 1))
            start = high + 1
        if start <= _CODE_POINT_MAX:
            gaps.append((start, _CODE_POINT_MAX))
        return CharSet(tuple(gaps))

    def both_cases(self) -> CharSet:
        """Add the other case of every ASCII letter, as Java's ``(?i)`` does."""
        upper = self & CharSet(((0x41, 0x5A),))
        lower = self & CharSet(((0x61, 0x7A),))
        swapped = [(a + 32, b + 32) for a, b in upper.ranges]
        swapped += [(a - 32, b - 32) for a, b in lower.ranges]
        return self | CharSet.of(swapped)

    def pattern(self) -> str:
        """An atom of Python's ``re`` for the set."""
        if not self.ranges:
            return "(?!)"
        parts = []
        for low, high in self.ranges:
            parts.append(_code(low) if low == high else f"{_code(low)}-{_code(high)}")
        # The set already has both cases where needed; re must not add more.
        return f"(?-i:[{''.join(parts)}])"


def _code(point: int) -> str:
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def _ascii(*ranges: str) -> CharSet:
    return CharSet.of((ord(text[0]), ord(text[-1])) for text in ranges)


_DIGIT, _LOWER, _UPPER = _ascii("09"), _ascii("az"), _ascii("AZ")
_ALPHA = _LOWER | _UPPER
_SPACE = CharSet.chars(" \t\n\x0b\f\r")
_PUNCT = CharSet.chars("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_GRAPH = _ALPHA | _DIGIT | _PUNCT
_POSIX = {
    "Lower": _LOWER,
    "Upper": _UPPER,
    "ASCII": _ascii("\x00\x7f"),
    "Alpha": _ALPHA,
    "Digit": _DIGIT,
    "Alnum": _ALPHA | _DIGIT,
    "Punct": _PUNCT,
    "Graph": _GRAPH,
    "Print": _GRAPH | CharSet.chars(" "),
    "Blank": CharSet.chars(" \t"),
    "Cntrl": _ascii("\x00\x1f", "\x7f\x7f"),
    "XDigit": _DIGIT | _ascii("af", "AF"),
    "Space": _SPACE,
}
_PREDEFINED = {
    "d": _DIGIT,
    "w": _ALPHA | _DIGIT | CharSet.chars("_"),
    "s": _SPACE,
    "h": CharSet.chars(" \t\xa0\u1680\u180e\u202f\u205f\u3000") | _ascii("\u2000\u200a"),
    "v": CharSet.chars("\n\x0b\f\r\x85\u2028\u2029"),
}
_JAVA_METHODS: dict[str, Callable[[str], bool]] = {
    "javaLetter": lambda char: unicodedata.category(char).startswith("L"),
    "javaDigit": lambda char: unicodedata.category(char) == "Nd",
    "javaLetterOrDigit": lambda char: (
        unicodedata.category(char) == "Nd" or unicodedata.category(char).startswith("L")
    ),
    "javaISOControl": lambda char: ord(char) <= 0x1F or 0x7F <= ord(char) <= 0x9F,
    "javaTitleCase": lambda char: unicodedata.category(char) == "Lt",
    "javaSpaceChar": lambda char: unicodedata.category(char).startswith("Z"),
    # str.islower and isupper follow Other_Lowercase and Other_Uppercase, as Java's methods do.
    "javaLowerCase": str.islower,
    "javaUpperCase": str.isupper,
    "javaWhitespace": lambda char: (
        char in "\t\n\x0b\f\r\x1c\x1d\x1e\x1f"
        or (unicodedata.category(char).startswith("Z") and char not in "\xa0\u2007\u202f")
    ),
}
# The properties that (?i) extends to both cases.
_CASED = frozenset(
    {"Lower", "Upper", "javaLowerCase", "javaUpperCase", "Lu", "Ll", "Lt", "IsLu", "IsLl", "IsLt"}
)
# General categories: one letter for a family, two for a member.
_FAMILIES = {
    "L": "ultmo", "M": "nce", "N": "dlo", "P": "cdseifo", "S": "mcko", "Z": "slp", "C": "cfson",
}  # fmt: skip
_CATEGORIES = frozenset(
    family + member for family, members in _FAMILIES.items() for member in ["", *members]
)
_PROPERTY = re.compile(r"\{([^}]*)\}|(\w)")
_CHAR_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_OCTAL = re.compile(r"[0-3]?[0-7]{1,2}")
_HEX = {
    "x": re.compile(r"([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\}"),
    "u": re.compile(r"([0-9A-Fa-f]{4})"),
}
_UNICODE_NAME = re.compile(r"\{([^}]*)\}")


def predefined_class(scan: Scanner, ignore_case: bool) -> CharSet | None:
    r"""Take one of ``d w s h v``, their capitals, ``p{…}`` or ``P{…}`` after a backslash.

    None if none of them is next. Raises RegexSyntaxError for an unknown property.
    """
    char = scan.peek()
    if char.lower() in _PREDEFINED:
        scan.take()
        chars = _PREDEFINED[char.lower()]
        return ~chars if char.isupper() else chars
    if char in ("p", "P"):
        scan.take()
        found = scan.match(_PROPERTY)
        if found is None:
            raise RegexSyntaxError(rf"\{char} is not followed by a property such as {{Alpha}}")
        chars = _property(found.group(1) or found.group(2) or "", ignore_case)
        return ~chars if char == "P" else chars
    return None


def _property(name: str, ignore_case: bool) -> CharSet:
    if ignore_case and name in _CASED:
        return _property("Alpha" if name in _POSIX else "Cased", False)
    if name in _POSIX:
        return _POSIX[name]
    if name in _JAVA_METHODS:
        return _unicode_set(name)
    if name == "Cased":
        return _unicode_set("Lu") | _unicode_set("Ll") | _unicode_set("Lt")
    category = re.sub(r"^(?:Is|general_category=|gc=)", "", name)
    if category in _CATEGORIES:
        return _unicode_set(category)
    raise RegexSyntaxError(rf"the property \p{{{name}}} is not supported")


@lru_cache(maxsize=32)
def _unicode_set(name: str) -> CharSet:
    test = _JAVA_METHODS.get(name)
    points = range(_CODE_POINT_MAX + 1)
    if test is not None:
        return CharSet.of((point, point) for point in points if test(chr(point)))
    return CharSet.of(
        (point, point) for point in points if unicodedata.category(chr(point)).startswith(name)
    )


def read_escaped_char(scan: Scanner) -> str:
    """Take the rest of an escape, after its backslash; returns the character that it stands for.

    Raises RegexSyntaxError.
    """
    char = scan.take()
    if char in _CHAR_ESCAPES:
        return _CHAR_ESCAPES[char]
    if char == "0":
        octal = scan.match(_OCTAL)
        if octal is None:
            raise RegexSyntaxError(r"\0 is not followed by octal digits")
        return chr(int(octal.group(), 8))
    if char in _HEX:
        found = scan.match(_HEX[char])
        point = int(found.group(found.lastindex or 0), 16) if found else -1
        if not 0 <= point <= _CODE_POINT_MAX:
            raise RegexSyntaxError(rf"\{char} is not followed by a valid hexadecimal code")
        return chr(point)
    if char == "c":
        return chr(ord(scan.take()) ^ 64)
    if char == "N":
        found = scan.match(_UNICODE_NAME)
        try:
            return unicodedata.lookup(found.group(1) if found else "")
        except KeyError:
            raise RegexSyntaxError(r"\N is not followed by a known character name") from None
    if char.isascii() and char.isalpha():
        raise RegexSyntaxError(rf"\{char} is not a known escape")
    return char


def parse_class(scan: Scanner, ignore_case: bool) -> CharSet:
    """Parse from after ``[`` to its ``]`` inclusive. ``ignore_case``: add both cases of letters."""
    negated = scan.take_text("^")
    operands: list[CharSet] = []  # operands before the last &&
    current: CharSet | None = None
    while True:
        if scan.done():
            raise RegexSyntaxError("a '[' is not closed")
        # A ] at the start is a literal one.
        if (current is not None or operands) and scan.take_text("]"):
            break
        if scan.take_text("&&"):
            if current is not None:
                operands.append(current)
            current = None
            continue
        item = _class_item(scan, ignore_case)
        current = item if current is None else current | item
    # Java ignores an empty last operand.
    if current is None:
        current = operands.pop()
    for operand in operands:
        current &= operand
    return ~current if negated else current


def _class_item(scan: Scanner, ignore_case: bool) -> CharSet:
    char = scan.take()
    if char == "[":
        return parse_class(scan, ignore_case)
    if char == "\\":
        predefined = predefined_class(scan, ignore_case)
        if predefined is not None:
            return predefined
        char = read_escaped_char(scan)
    low = high = ord(char)
    if scan.peek() == "-" and scan.text[scan.at + 1 : scan.at + 2] not in ("", "]", "["):
        scan.take()
        end = scan.take()
        high = ord(read_escaped_char(scan) if end == "\\" else end)
        if high < low:
            raise RegexSyntaxError(f"the range {char}-{chr(high)} is backwards")
    return _cased(CharSet(((low, high),)), ignore_case)


def _cased(chars: CharSet, ignore_case: bool) -> CharSet:
    return chars.both_cases() if ignore_case else chars
