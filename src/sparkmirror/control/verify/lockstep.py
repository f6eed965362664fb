"""Compares two logs record by record, in lockstep. Pure: it gets runs of records.

Offsets differ between clusters, so records are compared by content. If the logs do not begin with
the same record, `align` finds where they agree.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sparkmirror.errors import BatchError, CorruptBatch, MirrorError, PartitionError, TopicError
from sparkmirror.observe.figures.comparison_result import Difference, Reading
from sparkmirror.records.header import Buffer
from sparkmirror.records.records import Carried, decode_rest

SIZES = struct.Struct(">qI")
"""What a digest has before the bytes of a record: its time and their number."""
_WINDOW = 64
_REMEMBERED = 5_000
_AHEAD = 5_000
OF_ONE_PARTITION = (BatchError, PartitionError, TopicError)
"""Errors of a partition that cannot be read; they say nothing of the others."""


@dataclass(frozen=True, slots=True)
class Window:
    """A few consecutive records, for `align` to find."""

    times: tuple[int, ...]
    rests: tuple[Buffer, ...]


class Side:
    """One of the two logs: its next records, and count and digest of the records taken.

    ``times`` False: timestamps are not compared. ``on_take`` is called with the number of records
    taken.
    """

    def __init__(
        self,
        runs: Iterable[Carried],
        *,
        times: bool = True,
        on_take: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._runs: Iterator[Carried] = iter(runs)
        self._times_count = times
        self._on_take = on_take
        self.offsets: list[int] = []
        self.times: list[int] = []
        self.rests: list[Buffer] = []
        self.taken = 0
        self._hash = hashlib.sha256()
        self._fault: MirrorError | None = None

    def fill(self, count: int = 1) -> int:
        """Read until ``count`` records are available or the log ends; returns how many are.

        An error is raised once the records before it are used up.
        """
        while len(self.offsets) < count and self._fault is None:
            try:
                run = next(self._runs, None)
            except OF_ONE_PARTITION as error:
                self._fault = error
                break
            if run is None:
                break
            self.offsets += run.offsets
            self.times += run.timestamps if self._times_count else [0] * len(run.offsets)
            self.rests += run.rests
        if self._fault is not None and not self.offsets:
            raise self._fault
        return len(self.offsets)

    def take(self, count: int) -> None:
        """Count and hash the next ``count`` records, and drop them."""
        parts: list[Buffer] = []
        for time_ms, rest in zip(self.times[:count], self.rests[:count], strict=True):
            parts.append(SIZES.pack(time_ms, len(rest)))
            parts.append(rest)
        self._hash.update(b"".join(parts))
        self.taken += count
        self._on_take(count)
        self.drop(count)

    def drop(self, count: int) -> None:
        """Drop the next ``count`` records without counting them."""
        del self.offsets[:count], self.times[:count], self.rests[:count]

    def take_before(self, end: int) -> int:
        """Take all remaining records below offset ``end``; returns how many."""
        before = self.taken
        while self.fill():
            count = sum(offset < end for offset in self.offsets)
            self.take(count)
            if self.offsets:
                break
        return self.taken - before

    def window(self, size: int = _WINDOW) -> Window:
        """The next records, at most ``size``."""
        count = min(size, self.fill(size))
        return Window(tuple(self.times[:count]), tuple(self.rests[:count]))

    def matches(self, window: Window) -> bool:
        """Whether the next records are those of ``window``, up to the shorter of the two."""
        count = min(len(window.times), self.fill(len(window.times)))
        return (
            count > 0
            and tuple(self.times[:count]) == window.times[:count]
            and all(_same(a, b) for a, b in zip(self.rests[:count], window.rests, strict=False))
        )

    @property
    def reading(self) -> Reading:
        """Count and digest of the records taken."""
        return Reading(self.taken, self._hash.hexdigest())


def align(side: Side, window: Window) -> int | None:
    """Drop records of ``side`` until the next ones match ``window``; returns how many.

    None if there is no match; ``side`` is empty then.
    """
    dropped = 0
    while side.fill():
        for place, (time_ms, rest) in enumerate(zip(side.times, side.rests, strict=True)):
            if time_ms == window.times[0] and _same(rest, window.rests[0]):
                side.drop(place)
                dropped += place
                break
        else:
            dropped += len(side.offsets)
            side.drop(len(side.offsets))
            continue
        if side.matches(window):
            return dropped
        side.drop(1)
        dropped += 1
    return None


def lockstep(source: Side, target: Side) -> tuple[Difference | None, bool]:
    """Take records from both sides as long as they are equal.

    Returns the first difference, or None when one side has ended; and whether some records are
    equal in content but not in bytes (re-encoded with other varint lengths). Digests cannot be
    compared then.
    """
    rewritten = False
    recent = Carried()
    while source.fill() and target.fill():
        count = min(len(source.offsets), len(target.offsets))
        equal, anew = _equal_count(source, target, count)
        rewritten |= anew
        recent.offsets = (recent.offsets + source.offsets[:equal])[-_REMEMBERED:]
        recent.timestamps = (recent.timestamps + source.times[:equal])[-_REMEMBERED:]
        recent.rests = (recent.rests + source.rests[:equal])[-_REMEMBERED:]
        source.take(equal)
        target.take(equal)
        if equal < count:
            return _difference(source, target, recent), rewritten
    return None, rewritten


def _equal_count(source: Side, target: Side, count: int) -> tuple[int, bool]:
    """How many of the next ``count`` records are equal, and whether some only in content."""
    same_times = source.times[:count] == target.times[:count]
    if same_times and source.rests[:count] == target.rests[:count]:
        return count, False
    anew = False
    for place in range(count):
        one, other = source.rests[place], target.rests[place]
        if source.times[place] != target.times[place] or not _same(one, other):
            return place, anew
        anew |= one != other
    return count, anew


def _difference(source: Side, target: Side, recent: Carried) -> Difference:
    at, there = source.offsets[0], target.offsets[0]
    key = target.times[0], target.rests[0]
    known = zip(recent.offsets, recent.timestamps, recent.rests, strict=True)
    again = [offset for offset, time_ms, rest in known if (time_ms, rest) == key]
    if again:
        what = f"the target repeats source offset {again[-1]} at its offset {there}"
        return Difference("extra", at, there, what)
    ahead = min(_AHEAD, source.fill(_AHEAD))
    for place in range(1, ahead):
        if (source.times[place], source.rests[place]) == key:
            noun = "record" if place == 1 else "records"
            what = f"the target lacks {place} {noun} from source offset {at} on"
            return Difference("missing", at, there, what)
    fields = _fields(source, target)
    what = f"source offset {at} and target offset {there} differ in {', '.join(fields)}"
    return Difference("differs", at, there, what)


def _fields(source: Side, target: Side) -> list[str]:
    one = decode_rest(source.offsets[0], source.times[0], memoryview(source.rests[0]))
    other = decode_rest(target.offsets[0], target.times[0], memoryview(target.rests[0]))
    pairs = (
        ("timestamp", one.timestamp, other.timestamp), ("key", one.key, other.key),
        ("value", one.value, other.value), ("headers", one.headers, other.headers),
    )  # fmt: skip
    return [name for name, a, b in pairs if a != b]


def _same(one: Buffer, other: Buffer) -> bool:
    """Whether key, value and headers are equal, whatever the encoding of their lengths."""
    if one == other:
        return True
    if abs(len(one) - len(other)) > 64:
        return False
    try:
        a, b = decode_rest(0, 0, memoryview(one)), decode_rest(0, 0, memoryview(other))
    except CorruptBatch:
        return False
    return a == b
