"""Finds a topic name that several sets of Java regexes have in common, or shows that there is none.

The regexes become finite automata over the characters of topic names. A search through their
product finds the shortest common name. Look-around, back references and possessive quantifiers are
not regular, so they give `Undecided`.
"""

from __future__ import annotations

import re
import string
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from sparkmirror.errors import Defect
from sparkmirror.names.java_regex import FINAL_LINE_END, compile_list, translate

__all__ = ["Names", "Undecided", "common_name"]

_CHARS = string.ascii_lowercase + string.ascii_uppercase + string.digits + "-_."
_BIT = {char: 1 << number for number, char in enumerate(_CHARS)}
_ALL = (1 << len(_CHARS)) - 1
_NAME_CHARS_MAX = 249
_STATES_MAX = 5_000
_MARKS = frozenset("*+?[](){}|^$\\.")
_ANY_TIME, _AT_BEGIN, _AT_END = 0, 1, 2
_CATEGORIES = {
    op.CATEGORY_DIGIT: string.digits,
    op.CATEGORY_WORD: string.ascii_letters + string.digits + "_",
    op.CATEGORY_SPACE: "",
}
_NEGATED = {
    op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT,
    op.CATEGORY_NOT_WORD: op.CATEGORY_WORD,
    op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE,
}


class Undecided(Exception):
    """A regex is not regular or too large, or the search has too many states."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names that match ``include`` and do not match ``exclude``, each preceded by ``prefix``.

    The lists have Java regexes for whole names, as ``topics`` and ``topics.exclude`` do.
    """

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    prefix: str = ""


def common_name(sets: Sequence[Names]) -> str | None:
    """The shortest name that is in all of ``sets``; None if there is none.

    Names have up to 249 letters, digits, dots, dashes and underscores. Raises `Undecided`.
    """
    if not sets:
        raise Defect("no sets to compare")
    if any(not names.include for names in sets):
        return None
    plain = [names for names in sets if not any(_MARKS & set(one) for one in names.include)]
    if plain:
        return _among(min(plain, key=lambda names: len(names.include)), sets)
    members = [_Member(names) for names in sets]
    chars = _representatives(members)
    start = tuple(member.start() for member in members)
    seen: dict[tuple[_Place, ...], tuple[tuple[_Place, ...], str] | None] = {start: None}
    queue = deque([(start, 0)])
    while queue:
        places, length = queue.popleft()
        if length and all(m.accepts(place) for m, place in zip(members, places, strict=True)):
            return "".join(_way(seen, places))
        if length == _NAME_CHARS_MAX:
            continue
        for char in chars:
            after = tuple(m.step(place, char) for m, place in zip(members, places, strict=True))
            if after not in seen and all(place.include or place.at for place in after):
                if len(seen) >= _STATES_MAX:
                    raise Undecided("too many states")
                seen[after] = (places, char)
                queue.append((after, length + 1))
    return None


def _among(few: Names, sets: Iterable[Names]) -> str | None:
    """The shortest name of ``few`` that is in all ``sets``; ``few`` includes plain names only."""
    tests = [
        (names.prefix, compile_list(names.include), compile_list(names.exclude)) for names in sets
    ]
    for name in sorted({few.prefix + one for one in few.include}, key=lambda one: (len(one), one)):
        for prefix, include, exclude in tests:
            rest = name.removeprefix(prefix)
            inside = name.startswith(prefix) and include and include.fullmatch(rest)
            if not rest or not inside or (exclude is not None and exclude.fullmatch(rest)):
                break
        else:
            return name
    return None


def _way(seen: dict[Any, tuple[Any, str] | None], places: object) -> list[str]:
    chars: list[str] = []
    step = seen[places]
    while step is not None:
        places, char = step
        chars.append(char)
        step = seen[places]
    return chars[::-1]


def _representatives(members: Iterable[_Member]) -> list[str]:
    """One character for each group of characters that no regex distinguishes."""
    members = list(members)
    masks = {mask for member in members for mask in member.masks()}
    groups: dict[tuple[bool, ...], str] = {}
    ordered = sorted(masks)
    for char in _CHARS:
        groups.setdefault(tuple(bool(mask & _BIT[char]) for mask in ordered), char)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Place:
    """State after the first characters of a name.

    ``at``: characters of the prefix that are still to come. ``include``, ``exclude``: states of the
    automata, as bit sets. ``begun``: at least one character after the prefix has been read.
    """

    at: int
    include: int = 0
    exclude: int = 0
    begun: bool = False


class _Member:
    """One set of names as an automaton that reads a name character by character."""

    def __init__(self, names: Names) -> None:
        self._prefix = names.prefix
        self._include = _Automaton(names.include)
        self._exclude = _Automaton(names.exclude) if names.exclude else None

    def masks(self) -> Iterator[int]:
        """The character sets (bit masks) that this set of names distinguishes."""
        yield from (_BIT.get(char, 0) for char in self._prefix)
        yield from self._include.masks()
        if self._exclude is not None:
            yield from self._exclude.masks()

    def start(self) -> _Place:
        """The state before the first character."""
        return _Place(len(self._prefix)) if self._prefix else self._begin()

    def _begin(self) -> _Place:
        exclude = self._exclude.start() if self._exclude is not None else 0
        return _Place(0, self._include.start(), exclude)

    def step(self, place: _Place, char: str) -> _Place:
        """The state after one more character. With ``include`` and ``at`` 0, no name can match."""
        if place.at:
            if self._prefix[-place.at] != char:
                return _Place(0)
            return _Place(place.at - 1) if place.at > 1 else self._begin()
        bit, first = _BIT[char], not place.begun
        exclude = 0
        if self._exclude is not None:
            exclude = self._exclude.step(place.exclude, bit, first=first)
        include = self._include.step(place.include, bit, first=first)
        return _Place(0, include, exclude, begun=True)

    def accepts(self, place: _Place) -> bool:
        """Whether a name that ends in this state is in the set."""
        if place.at or not place.begun:
            return False
        if not self._include.accepts(place.include):
            return False
        return self._exclude is None or not self._exclude.accepts(place.exclude)


class _Automaton:
    """A nondeterministic finite automaton for one list of regexes; state 0 is the start."""

    def __init__(self, regexes: Sequence[str]) -> None:
        self._edges: list[list[tuple[int, int]]] = []
        self._jumps: list[list[tuple[int, int]]] = []
        # `$` also matches before a final line end, but topic names have none.
        pattern = translate("|".join(regexes)).replace(FINAL_LINE_END, r"\Z")
        try:
            tree = parser.parse(pattern, re.ASCII)
        except (re.error, RecursionError, OverflowError) as error:
            raise Undecided(str(error)) from error
        self._final = self._sequence(tree, self._state(), fold=False)

    def masks(self) -> Iterator[int]:
        """The character sets (bit masks) on the edges."""
        return (mask for edges in self._edges for mask, _ in edges)

    def start(self) -> int:
        """The set of states before the first character."""
        return 1

    def step(self, states: int, bit: int, *, first: bool) -> int:
        """The set of states after one character. ``first``: it is the first of the name."""
        after = 0
        for state in _bits(self._closure(states, _AT_BEGIN if first else _ANY_TIME)):
            for mask, target in self._edges[state]:
                if mask & bit:
                    after |= 1 << target
        return after

    def accepts(self, states: int) -> bool:
        """Whether a name that is not empty may end in one of ``states``."""
        return bool(self._closure(states, _AT_END) >> self._final & 1)

    def _closure(self, states: int, when: int) -> int:
        found, queue = states, list(_bits(states))
        while queue:
            for condition, target in self._jumps[queue.pop()]:
                if condition in (_ANY_TIME, when) and not found >> target & 1:
                    found |= 1 << target
                    queue.append(target)
        return found

    # --- building ---------------------------------------------------------------------------

    def _state(self) -> int:
        if len(self._edges) >= _STATES_MAX:
            raise Undecided("a regex is too large")
        self._edges.append([])
        self._jumps.append([])
        return len(self._edges) - 1

    def _edge(self, at: int, mask: int) -> int:
        target = self._state()
        self._edges[at].append((mask, target))
        return target

    def _jump(self, at: int, target: int, condition: int = _ANY_TIME) -> None:
        self._jumps[at].append((condition, target))

    def _sequence(self, items: Iterable[tuple[Any, Any]], at: int, *, fold: bool) -> int:
        for kind, value in items:
            at = self._item(kind, value, at, fold)
        return at

    def _item(self, kind: Any, value: Any, at: int, fold: bool) -> int:
        if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            return self._edge(at, _mask(kind, value, fold))
        if kind is op.SUBPATTERN:
            _, added, removed, items = value
            fold = (fold or bool(added & re.IGNORECASE)) and not removed & re.IGNORECASE
            return self._sequence(items, at, fold=fold)
        if kind is op.BRANCH:
            end = self._state()
            for items in value[1]:
                branch = self._state()
                self._jump(at, branch)
                self._jump(self._sequence(items, branch, fold=fold), end)
            return end
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, items = value
            return self._repeat(low, high, items, at, fold)
        if kind is op.AT and value in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            return self._conditional(at, _AT_BEGIN)
        if kind is op.AT and value in (op.AT_END, op.AT_END_STRING):
            return self._conditional(at, _AT_END)
        if kind is op.FAILURE:
            return self._edge(at, 0)
        raise Undecided(f"{kind} is no regular construct")

    def _conditional(self, at: int, condition: int) -> int:
        target = self._state()
        self._jump(at, target, condition)
        return target

    def _repeat(self, low: int, high: Any, items: Any, at: int, fold: bool) -> int:
        for _ in range(low):
            at = self._sequence(items, at, fold=fold)
        if high == op.MAXREPEAT:
            begin = self._state()
            self._jump(at, begin)
            self._jump(self._sequence(items, begin, fold=fold), begin)
            return begin
        end = self._state()
        self._jump(at, end)
        for _ in range(high - low):
            at = self._sequence(items, at, fold=fold)
            self._jump(at, end)
        return end


def _mask(kind: Any, value: Any, fold: bool) -> int:
    """The characters of topic names that one item of a pattern matches, as a bit mask."""
    if kind is op.ANY:
        return _ALL
    if kind is op.LITERAL:
        return _of_chars([chr(value)], fold)
    if kind is op.NOT_LITERAL:
        return _ALL & ~_of_chars([chr(value)], fold)
    mask, negated = 0, False
    for part, what in value:
        if part is op.NEGATE:
            negated = True
        elif part is op.LITERAL:
            mask |= _of_chars([chr(what)], fold)
        elif part is op.RANGE:
            low, high = what
            mask |= _of_chars([char for char in _CHARS if low <= ord(char) <= high], fold)
        elif part is op.CATEGORY and what in _CATEGORIES:
            mask |= _of_chars(_CATEGORIES[what], fold)
        elif part is op.CATEGORY and what in _NEGATED:
            mask |= _ALL & ~_of_chars(_CATEGORIES[_NEGATED[what]], fold)
        else:
            raise Undecided(f"{part} in a character class")
    return _ALL & ~mask if negated else mask


def _of_chars(chars: Iterable[str], fold: bool) -> int:
    mask = 0
    for char in chars:
        for one in (char.lower(), char.upper()) if fold else (char,):
            mask |= _BIT.get(one, 0)
    return mask


def _bits(states: int) -> Iterator[int]:
    while states:
        low = states & -states
        yield low.bit_length() - 1
        states ^= low
