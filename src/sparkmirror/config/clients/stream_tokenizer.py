"""Splits text into words, numbers and punctuation as ``java.io.StreamTokenizer`` does.

Java reads JAAS entries with it, so its rules apply: a ``/`` outside quotes starts a comment until
the end of the line, a word of digits is a number and not text, an open quote ends with its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_DIGITS = frozenset("0123456789.-")
_QUOTES = "\"'"


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    ``kind``: ``word``, ``number``, the quote character of quoted text, or another character itself.
    ``text`` is empty for numbers and punctuation, as in Java.
    """

    kind: str
    text: str = ""
    line: int = 1


def tokens(source: str, word_characters: str) -> Iterator[Token]:
    """All tokens of ``source``. ``word_characters``: characters that are letters, too."""
    at, line = 0, 1
    while at < len(source):
        character = source[at]
        if character <= " ":
            line += character == "\n" or (character == "\r" and source[at + 1 : at + 2] != "\n")
            at += 1
        elif character == "/":
            begin, at = at, _comment_end(source, at)
            line += source.count("\n", begin, at)
        elif character in _QUOTES:
            text, at = _quoted(source, at)
            yield Token(character, text, line)
        elif (end := _number_end(source, at)) > at:
            yield Token("number", line=line)
            at = end
        elif character != "-" and _is_letter(character, word_characters):
            end = at + 1
            while end < len(source) and (
                _is_letter(source[end], word_characters) or source[end] in _DIGITS
            ):
                end += 1
            yield Token("word", source[at:end], line)
            at = end
        else:
            yield Token(character, line=line)
            at += 1


def _is_letter(character: str, extra: str) -> bool:
    plain = "a" <= character <= "z" or "A" <= character <= "Z"
    return plain or character >= "\xa0" or character in extra


def _comment_end(source: str, at: int) -> int:
    if source.startswith("/*", at):
        end = source.find("*/", at + 2)
        return len(source) if end < 0 else end + 2
    while at < len(source) and source[at] not in "\r\n":
        at += 1
    return at


def _number_end(source: str, at: int) -> int:
    """The end of a number that starts at ``at``; ``at`` if no number starts there."""
    if source[at] not in _DIGITS:
        return at
    begin = at
    if source[at] == "-":
        at += 1
        if at == len(source) or source[at] not in "0123456789.":
            return begin
    dots = 0
    while at < len(source) and ((source[at].isascii() and source[at].isdigit()) or
                                (source[at] == "." and dots == 0)):  # fmt: skip
        dots += source[at] == "."
        at += 1
    return at


def _quoted(source: str, at: int) -> tuple[str, int]:
    """The quoted text, and the index after it; the end of the line also ends a quote."""
    quote = source[at]
    at += 1
    out: list[str] = []
    while at < len(source) and source[at] != quote and source[at] not in "\r\n":
        if source[at] == "\\" and at + 1 < len(source):
            text, at = _escape(source, at + 1)
            out.append(text)
        else:
            out.append(source[at])
            at += 1
    closed = at < len(source) and source[at] == quote
    return "".join(out), at + closed


def _escape(source: str, at: int) -> tuple[str, int]:
    character = source[at]
    if not "0" <= character <= "7":
        return _ESCAPES.get(character, character), at + 1
    # Up to three octal digits, but only two if the first one is above 3.
    limit = at + (3 if character <= "3" else 2)
    end = at
    while end < min(limit, len(source)) and "0" <= source[end] <= "7":
        end += 1
    return chr(int(source[at:end], 8)), end
