r"""Translates Java regular expressions from configuration files to Python's ``re``.

The translation is exact, so that a mirror never selects other topics than MirrorMaker. What cannot
be translated exactly is rejected with an error: ``\G``, ``\X``, ``\b{g}``, scripts and blocks in
``\p{…}``, and the flags ``x``, ``d``, ``u`` and ``U``. Use ``fullmatch``: names match as a whole.

Character classes are computed as sets of code points (see ``names.java_charclass``). Everything
else is translated atom by atom, because Java differs from Python in details: ``.`` and ``$`` know
more line ends, ``\d\w\s`` are ASCII, ``{`` must start a valid count, and ``(?i)`` may be anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from sparkmirror.errors import ConfigError
from sparkmirror.names.java_charclass import (
    CharSet,
    RegexSyntaxError,
    Scanner,
    parse_class,
    predefined_class,
    read_escaped_char,
)

__all__ = ["FINAL_LINE_END", "compile_list", "compile_regex", "translate"]

_LINE_BREAK = r"(?:\r\n|[\n\x0b\f\r\x85\u2028\u2029])"
FINAL_LINE_END = r"(?=(?:\r\n|[\n\r\x85\u2028\u2029])?\Z)"
_NOT_LINE_END = r"[^\n\r\x85\u2028\u2029]"
_COUNT = re.compile(r"\{\d+(?:,\d*)?\}")
_GROUP_NAME = re.compile(r"<([A-Za-z][A-Za-z0-9]*)>")
_FLAGS = re.compile(r"\?([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])")
# In groups, because Java allows a quantifier even after an anchor.
_ANCHORS = {
    "A": r"(?:\A)",
    "z": r"(?:\Z)",
    "Z": FINAL_LINE_END,
    "b": r"(?:\b)",
    "B": r"(?:\B)",
    "R": _LINE_BREAK,
}
_NAME_CHARS_MAX = 120


def compile_regex(regex: str, *, where: str = "") -> re.Pattern[str]:
    """Compile one Java regex, for ``fullmatch``. Raises ConfigError with place ``where``."""
    try:
        return _compile(regex)
    except RegexSyntaxError as error:
        shown = regex if len(regex) <= _NAME_CHARS_MAX else regex[:_NAME_CHARS_MAX] + "…"
        raise ConfigError(
            f"'{shown}' is an invalid regex: {error}.",
            where=where,
            do="Patterns are Java regular expressions and match whole names; a literal dot is "
            "'[.]' (or '\\\\.' in a properties file).",
        ) from None


def compile_list(regexes: Sequence[str], *, where: str = "") -> re.Pattern[str] | None:
    """Compile a list of Java regexes, joined by ``|``; ``None`` (no match) for an empty list.

    Raises ConfigError that names the invalid element and ``where``.
    """
    if not regexes:
        return None
    # Joined first, then translated: as in Java, a flag such as (?i) applies to later elements too,
    # and a comma within a group is one more "or".
    try:
        return compile_regex("|".join(regexes), where=where)
    except ConfigError:
        for regex in regexes:
            compile_regex(regex, where=where)
        raise


def translate(regex: str) -> str:
    """The Python regex for a Java regex. Raises ``RegexSyntaxError`` (a ValueError)."""
    return _Translator(regex).translate()


@lru_cache(maxsize=256)
def _compile(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(translate(regex), re.ASCII)
    except re.error as error:
        raise RegexSyntaxError(error.msg) from None
    except RecursionError:
        raise RegexSyntaxError("its groups are nested too deep") from None
    except OverflowError:
        raise RegexSyntaxError("a count is too large") from None


def _without_quotes(regex: str) -> str:
    r"""Rewrite ``\Q…\E`` with a backslash per character, as Java does before it parses."""
    out: list[str] = []
    at = 0
    while at < len(regex):
        if regex.startswith(r"\Q", at):
            end = regex.find(r"\E", at)
            literal = regex[at + 2 : end if end >= 0 else len(regex)]
            out += [_escaped(char) for char in literal]
            at = end + 2 if end >= 0 else len(regex)
        else:
            step = 2 if regex[at] == "\\" else 1
            out.append(regex[at : at + step])
            at += step
    return "".join(out)


def _escaped(char: str) -> str:
    if not char.isascii():
        return char
    # A digit as \x..: it must not extend a reference or count before it.
    return rf"\x{ord(char):02x}" if char.isdigit() else char if char.isalpha() else "\\" + char


class _Translator:
    """One pass over a Java regex, group by group."""

    def __init__(self, regex: str) -> None:
        self._scan = Scanner(_without_quotes(regex))
        self._groups = 0

    def translate(self) -> str:
        body = self._group_body(ignore_case=False, dot_all=False, multi_line=False)
        if not self._scan.done():
            raise RegexSyntaxError(f"unmatched ')' at character {self._scan.at + 1}")
        return body

    def _group_body(self, *, ignore_case: bool, dot_all: bool, multi_line: bool) -> str:
        """Translate up to the closing parenthesis or the end.

        The flags ``s`` and ``m`` are resolved for each atom. ``i`` becomes a scoped group, because
        Python allows no ``(?i)`` in the middle of a pattern.
        """
        out: list[str] = []
        scoped = False  # whether a flag group opened here is still open
        while not self._scan.done() and self._scan.peek() != ")":
            char = self._scan.take()
            if char == "|":
                flag = "(?i:" if ignore_case else "(?-i:"
                out.append(f")|{flag}" if scoped else "|")
            elif char == "(":
                flags = self._inline_flags()
                if flags is None:
                    out.append(self._group(ignore_case, dot_all, multi_line))
                    out.append(self._quantifier())
                    continue
                on, off, scope = flags
                wants_case = ("i" in on or ignore_case) and "i" not in off
                wants_dot = ("s" in on or dot_all) and "s" not in off
                wants_multi = ("m" in on or multi_line) and "m" not in off
                opening = "(?i:" if wants_case else "(?-i:"
                if scope:
                    inner = self._group_body(
                        ignore_case=wants_case, dot_all=wants_dot, multi_line=wants_multi
                    )
                    self._close()
                    out.append(f"{opening}{inner}){self._quantifier()}")
                    continue
                out.append(f"){opening}" if scoped else opening)
                scoped = True
                ignore_case, dot_all, multi_line = wants_case, wants_dot, wants_multi
            else:
                out.append(self._atom(char, ignore_case, dot_all, multi_line))
        if scoped:
            out.append(")")
        return "".join(out)

    def _inline_flags(self) -> tuple[str, str, bool] | None:
        """``(on, off, scoped)`` if flags follow the parenthesis, else ``None``."""
        match = self._scan.match(_FLAGS)
        if match is None:
            return None
        on, off, end = match.group(1), match.group(2) or "", match.group(3)
        for flag in on + off:
            if flag not in "ims":
                raise RegexSyntaxError(f"the flag (?{flag}) is not supported")
        return on, off, end == ":"

    def _group(self, ignore_case: bool, dot_all: bool, multi_line: bool) -> str:
        opening = "("
        if self._scan.take_text("?"):
            for mark in ("=", "!", ">", "<=", "<!"):
                if self._scan.take_text(mark):
                    opening = f"(?{mark}"
                    break
            else:
                name = self._scan.match(_GROUP_NAME)
                if name is None:
                    raise RegexSyntaxError(f"unknown group type at character {self._scan.at}")
                opening = f"(?P<{name.group(1)}>"
        if opening == "(" or opening.startswith("(?P"):
            self._groups += 1
        inner = self._group_body(ignore_case=ignore_case, dot_all=dot_all, multi_line=multi_line)
        self._close()
        return f"{opening}{inner})"

    def _close(self) -> None:
        if not self._scan.take_text(")"):
            raise RegexSyntaxError("a '(' is not closed")

    def _atom(self, char: str, ignore_case: bool, dot_all: bool, multi_line: bool) -> str:
        if char == "[":
            return parse_class(self._scan, ignore_case).pattern() + self._quantifier()
        if char == ".":
            return ("(?s:.)" if dot_all else _NOT_LINE_END) + self._quantifier()
        if char == "^":
            return ("(?m:^)" if multi_line else r"(?:\A)") + self._quantifier()
        if char == "$":
            return ("(?m:$)" if multi_line else FINAL_LINE_END) + self._quantifier()
        if char == "\\":
            return self._escape(ignore_case)
        if char in "*+?":
            raise RegexSyntaxError(f"'{char}' has nothing to repeat")
        if char == "{":
            self._scan.at -= 1
            # In Java a count with nothing before it repeats the empty string.
            if self._quantifier():
                return ""
            raise RegexSyntaxError("'{' starts no valid count such as {2} or {2,5}")
        return re.escape(char) + self._quantifier()

    def _quantifier(self) -> str:
        count = self._scan.match(_COUNT)
        if count is not None:
            text = count.group()
        elif not self._scan.done() and self._scan.peek() in "*+?":
            text = self._scan.take()
        else:
            return ""
        for suffix in "?+":
            if self._scan.take_text(suffix):
                text += suffix
                break
        return text

    def _escape(self, ignore_case: bool) -> str:
        if self._scan.done():
            raise RegexSyntaxError("it ends in a lone backslash")
        char = self._scan.peek()
        if char in _ANCHORS:
            self._scan.take()
            if char == "b" and self._scan.take_text("{"):
                raise RegexSyntaxError(r"\b{g} is not supported")
            return _ANCHORS[char] + self._quantifier()
        if char == "k":
            return self._named_reference() + self._quantifier()
        if char in "123456789":
            return self._numbered_reference() + self._quantifier()
        if char in "GX":
            raise RegexSyntaxError(rf"\{char} is not supported")
        predefined = predefined_class(self._scan, ignore_case)
        if predefined is not None:
            return predefined.pattern() + self._quantifier()
        return re.escape(read_escaped_char(self._scan)) + self._quantifier()

    def _named_reference(self) -> str:
        self._scan.take()
        name = self._scan.match(_GROUP_NAME)
        if name is None:
            raise RegexSyntaxError(r"\k is not followed by '<name>'")
        return f"(?P={name.group(1)})"

    def _numbered_reference(self) -> str:
        """As in Java, take a further digit only if a group of that number exists."""
        number = int(self._scan.take())
        while not self._scan.done() and self._scan.peek() in "0123456789":
            longer = number * 10 + int(self._scan.peek())
            if longer > self._groups:
                break
            number = longer
            self._scan.take()
        if number > self._groups:
            return CharSet().pattern()  # a group that does not exist never matches in Java
        return f"(?:\\{number})"
