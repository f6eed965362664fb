"""Compares source partitions with their remote partitions, record by record.

The mirror may run meanwhile. `ScopeOffsets` freezes what is compared. `PartitionComparison`
compares one partition: it decides where to begin and end, and names the difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import cached_property
from operator import attrgetter
from threading import Event, Lock

from sparkmirror.control.verify.by_key import (
    Begin,
    LastOffsets,
    differing,
    drop_deleted,
    drop_unseen,
    last_values,
    newer_keys,
    other_value,
    value_digests,
)
from sparkmirror.control.verify.lockstep import OF_ONE_PARTITION, Side, Window, align, lockstep
from sparkmirror.control.verify.scope import (
    STRETCH,
    Progress,
    Scope,
    ScopeOffsets,
    TransformedTopics,
)
from sparkmirror.errors import Defect, PartitionError, TopicError
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.comparison_result import (
    EMPTY,
    Difference,
    PartitionResult,
    Reading,
)
from sparkmirror.records.records import Carried
from sparkmirror.settings import FetchSettings, FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.fetch.record_stream import RecordStream

__all__ = ["PartitionComparison", "compare_partition", "verify_flow"]

_THREADS = 4
_TRIES = 5
_UNREAD_MAX = 3 * _THREADS
_OLDER = "the target also holds older records, which the source has deleted"
_EMPTIED = "the target has deleted all its records"


class PartitionComparison:
    """The comparison of one partition.

    ``over``: set by another thread to give up; then CancelledError is raised. ``remarks``: what
    tries before this one found.
    """

    def __init__(
        self,
        chosen: ScopeOffsets,
        tp: TopicPartition,
        progress: Progress,
        over: Event | None = None,
        remarks: Sequence[str] = (),
    ) -> None:
        self.c = chosen
        self.tp = tp
        self.remote = chosen.surplus.get(tp) or chosen.pairs[tp]
        self.progress = progress
        self.taken = 0
        self.deleted = False  # whether the target has deleted stretches of a sample
        self.over = over or Event()
        self.times = tp.topic not in chosen.stamped
        self.earliest = chosen.earliest.get(tp, 0)
        self.start, self.end = chosen.starts.get(tp, 0), chosen.ends.get(tp, 0)
        self.later_end = max(self.end, chosen.later_ends.get(tp, 0))
        self.remote_start = chosen.remote_starts.get(self.remote, 0)
        self.remote_end = chosen.remote_ends.get(self.remote, 0)
        self.remarks = [*remarks]
        if not self.times:
            self.remarks.append("the target sets its own timestamps: not compared")
        if tp.topic in chosen.unknown:
            self.remarks.append(
                "its configs could not be read: it may be compacted, or have its own timestamps"
            )
        known = chosen.transformed
        self.transformed = known if known is not None and known.has(tp.topic) else None
        self._streams: list[RecordStream | Generator[Carried, None, None]] = []

    def compared(self) -> PartitionResult:
        """Compare the partition, by its scope. Raises `MirrorError`."""
        surplus = self.tp in self.c.surplus
        if not surplus and self.tp not in self.c.ends:
            return self._leaderless("source")
        if not surplus and self.remote not in self.c.there:
            what = f"the target has no partition {self.remote}"
            return self._result(EMPTY, None, Difference("no partition", self.start, None, what))
        if self.remote not in self.c.remote_ends:
            return self._leaderless("target")
        try:
            if surplus:
                return self._surplus()
            if self.tp.topic in self.c.compacted:
                return self._by_key()
            return self._sampled() if self.c.scope.sample else self._whole()
        finally:
            for stream in self._streams:
                stream.close()

    def _leaderless(self, side: str) -> PartitionResult:
        what = f"no leader at the {side} tells its offsets"
        return self._result(EMPTY, EMPTY, Difference("unread", None, None, what))

    def _result(
        self,
        source: Reading,
        target: Reading | None,
        difference: Difference | None,
        *,
        by_key: bool = False,
    ) -> PartitionResult:
        changed = [] if self.transformed is None else [self.transformed.remark(self.tp)]
        remark = "; ".join([*changed, *self.remarks])
        return PartitionResult(
            self.tp.topic, self.tp.partition, source, target, difference, by_key, remark
        )

    # -- reading ---------------------------------------------------------------------------

    def _source(self, start: int, end: int, *, counted: bool = True) -> Side:
        on_take: Callable[[int], None] = self._count if counted else lambda _: None
        if self.transformed is not None:
            made = self.transformed.read(self.tp, start, end)
            self._streams.append(made)
            return Side(_until(self.over, made), times=self.times, on_take=on_take)
        client, fetch = self.c.flow.source, self.c.flow.fetch
        stream = RecordStream(client, fetch, self.tp, start, end, over=self.over)
        self._streams.append(stream)
        return Side(stream, times=self.times, on_take=on_take)

    def _count(self, count: int) -> None:
        self.taken += count
        self.progress.take(count)

    def _target(self, start: int) -> Side:
        client, fetch = self.c.flow.target_admin, FetchSettings()
        stream = RecordStream(client, fetch, self.remote, start, self.remote_end, over=self.over)
        self._streams.append(stream)
        return Side(stream, times=self.times)

    def _target_from(self, side: Side) -> tuple[Side, int] | None:
        """The target's log from the next records of ``side`` on, and their target offset.

        None if the target does not have them. If several records have the same content, the
        records after them decide; if that fails, the first one is used.
        """
        at = self.remote_start
        first = side.window(1)
        if self.times and first.times and first.times[0] >= 0:
            found = _offset_at(self.c.target, self.remote, first.times[0])
            if found < 0:
                return None
            at = max(at, found)
        for window in (side.window(), first):
            there = self._target(at)
            if align(there, window) is not None:
                return there, there.offsets[0]
        return None

    # -- whole partitions ------------------------------------------------------------------

    def _whole(self) -> PartitionResult:
        if self.c.scope.start is not None:
            return self._from_a_bound()
        target = self._target(self.remote_start)
        if self._is_emptied(target, self.start + 1):
            self.remarks.append(_EMPTIED)
            self.start = min(self.c.positions[self.tp], self.later_end)
        source = self._source(self.start, self.later_end)
        bounded = self.c.scope.end is not None
        if bounded and self.remote_start > 0 and target.fill() and self._is_later(target):
            self._note_deleted(self.end)
            return self._result(EMPTY, EMPTY, None)
        # A transform may leave nothing of what the source has.
        gone = self.transformed is None or self.start >= self.later_end
        if gone and self.earliest > 0 and not source.fill() and target.fill():
            # Markers and aborted records may be left.
            self.remarks.append("the source has deleted all its records")
            return self._result(EMPTY, EMPTY, self._failed())
        fresh = self.earliest == 0 == self.remote_start
        if source.fill() and target.fill() and not fresh and not target.matches(source.window()):
            moved = self._aligned(source, target)
            if isinstance(moved, Difference):
                return self._rest(source, target, moved)
            source, target = moved
        return self._stepped(source, target)

    def _is_emptied(self, target: Side, end: int) -> bool:
        """Whether the target has deleted all that it had; it had the records before ``end``."""
        mirrored = self.c.positions.get(self.tp, 0) >= end
        return mirrored and self.remote_start > 0 and not target.fill()

    def _from_a_bound(self) -> PartitionResult:
        source = self._source(self.start, self.later_end)
        if not source.fill() or source.offsets[0] >= self.end:
            return self._result(EMPTY, EMPTY, self._failed())
        found = self._target_from(source)
        if found is not None:
            return self._stepped(source, found[0])
        target = self._target(self.remote_start)
        if self._is_emptied(target, source.offsets[0] + 1):
            self.remarks.append(_EMPTIED)
            source = self._source(min(self.c.positions[self.tp], self.later_end), self.later_end)
            return self._stepped(source, target)
        if self.remote_start > 0 and target.fill():
            later = self._source_from(source, target)
            if later is not None:
                self._note_deleted(later.offsets[0])
                return self._stepped(later, target)
            if self._begins_behind(target):
                self._note_deleted(self.end)
                return self._result(EMPTY, EMPTY, None)
        return self._rest(source, self._target(self.remote_end), self._absent(source))

    def _note_deleted(self, offset: int) -> None:
        self.remarks.append(f"the target has deleted the records before source offset {offset}")

    def _is_later(self, target: Side) -> bool:
        """Whether the target's first record comes from behind the end that was given, by its time.

        False says nothing: one record with a time of the future is enough.
        """
        if not self.times or target.times[0] < 0 or self.transformed is not None:
            return False
        if self.c.positions.get(self.tp, self.end + 1) <= self.end:
            return False  # nothing from behind the end is mirrored
        return _offset_at(self.c.source, self.tp, target.times[0]) >= self.end

    def _begins_behind(self, target: Side) -> bool:
        """Whether the target's next records come from behind the end that was given.

        Only if the source does not have them before it: contents may repeat.
        """
        if self._is_later(target):
            return True
        window = target.window()
        first, position = self._known_from(window, self.end), self.c.positions.get(self.tp, 0)
        if first >= position:
            return False
        return align(self._source(first, position, counted=False), window) is not None

    def _aligned(self, source: Side, target: Side) -> tuple[Side, Side] | Difference:
        """Both logs from their first common record on; or the difference before it.

        If there is no common record, both logs are returned unchanged; the target's without its
        records if they are all older.
        """
        found = self._target_from(source)
        if found is not None and found[1] > target.offsets[0]:
            if self.earliest == 0:
                at = target.offsets[0]
                what = f"the target has records from its offset {at} on that the source never had"
                return Difference("extra", None, at, what)
            self.remarks.append(_OLDER)
            return source, found[0]
        later = self._source_from(source, target)
        if later is None:
            if found is None and self.earliest > 0 and self._is_behind(source):
                self.remarks.append(_OLDER)
                return source, self._target(self.remote_end)
            if found is None and self.c.scope.end is not None and self._begins_behind(target):
                self._note_deleted(self.end)
                return self._source(self.end, self.end), self._target(self.remote_end)
            return source, target
        first = later.offsets[0]
        if self.remote_start == 0:
            at = source.offsets[0]
            what = f"the target begins with source offset {first}: it lacks the records before it"
            return Difference("missing", at, target.offsets[0], what)
        self._note_deleted(first)
        return later, target

    def _source_from(self, source: Side, target: Side) -> Side | None:
        """The source's log from the target's next records on.

        None if they are not behind the next ones of ``source``.
        """
        window = target.window()
        later = self._source(self._known_from(window, self.start), self.later_end)
        if align(later, window) is None or later.offsets[0] <= source.offsets[0]:
            return None
        return later

    def _known_from(self, window: Window, start: int) -> int:
        """A source offset from ``start`` on that is not behind the first record of ``window``."""
        # A transform may have set other times than those that the source knows.
        if not self.times or window.times[0] < 0 or self.transformed is not None:
            return start
        known = _offset_at(self.c.source, self.tp, window.times[0])
        return max(start, self.later_end if known < 0 else known)

    def _stepped(self, source: Side, target: Side) -> PartitionResult:
        difference, rewritten = lockstep(source, target)
        if difference is None:
            difference = self._end(source, target)
        if difference is not None:
            return self._rest(source, target, difference)
        told = source.reading
        return self._result(told, told if rewritten else target.reading, None)

    def _end(self, source: Side, target: Side) -> Difference | None:
        """The difference if one log has records left when the other has ended."""
        if source.fill() and source.offsets[0] < self.end:
            return self._absent(source)
        failed = self._failed()
        if failed is not None:
            return failed
        if self.c.scope.end is None and target.fill():
            at = target.offsets[0]
            return Difference("extra", None, at, f"the target has more, from its offset {at} on")
        return None

    def _failed(self) -> Difference | None:
        """The record on which a transform failed in what was read; the mirror stops before it."""
        stopped = None if self.transformed is None else self.transformed.stopped(self.tp)
        if stopped is None or stopped[0] >= self.end:
            return None
        at, why = stopped
        return Difference("failed", at, None, f"the mirror stops at source offset {at}: {why}")

    def _is_behind(self, source: Side) -> bool:
        """Whether nothing of ``source`` is mirrored yet, by the position."""
        position = self.c.positions.get(self.tp)
        return position is not None and position <= source.offsets[0]

    def _absent(self, source: Side) -> Difference:
        at = source.offsets[0]
        if self._is_behind(source):
            return Difference("behind", at, None, f"source offset {at} is not mirrored yet")
        return Difference("missing", at, None, f"the target lacks source offset {at}")

    def _rest(self, source: Side, target: Side, difference: Difference) -> PartitionResult:
        """The result for ``difference``; the remaining records are still counted."""
        self._count_rest(source, self.end)
        if self.c.scope.end is None:
            self._count_rest(target, self.remote_end)
        return self._result(source.reading, target.reading, difference)

    def _count_rest(self, side: Side, end: int) -> None:
        """Take what is left before ``end``; an error does not hide the difference."""
        try:
            side.take_before(end)
        except OF_ONE_PARTITION as error:
            self.remarks.append(f"not all records are counted: {error}")

    def _surplus(self) -> PartitionResult:
        """Of a partition that the source does not have; without records it is equal."""
        target = self._target(self.remote_start)
        if not target.fill():
            return self._result(EMPTY, EMPTY, None)
        at = target.offsets[0]
        self._count_rest(target, at + STRETCH if self.c.scope.sample else self.remote_end)
        what = f"the target has records in {self.remote}, and the source has no such partition"
        return self._result(EMPTY, target.reading, Difference("extra", None, at, what))

    # -- samples ---------------------------------------------------------------------------

    def _sampled(self) -> PartitionResult:
        readings: list[tuple[Reading, Reading]] = []
        difference = self._stretches(self.start, readings)
        if difference is None and not readings and (self.deleted or self._has_records()):
            difference = Difference("left out", None, None, "nothing could be compared")
        sides = [
            Reading(sum(one.records for one in side), _joined([one.digest for one in side]))
            for side in ([a for a, _ in readings], [b for _, b in readings])
        ]
        self.remarks.append(f"{len(readings)} stretches of up to {STRETCH} records")
        return self._result(sides[0], sides[1], difference)

    def _stretches(self, start: int, readings: list[tuple[Reading, Reading]]) -> Difference | None:
        """Compare stretches from ``start`` on; returns the first difference.

        ``readings`` gets what both sides have in each of them.
        """
        count = self.c.scope.sample
        for number in range(count):
            at, following = (
                start + (self.end - start) * one // count for one in (number, number + 1)
            )
            source = self._source(at, min(at + STRETCH, following))
            if not source.fill():
                difference = self._failed()
                if difference is not None:
                    return difference
                continue
            found = self._target_from(source)
            if found is None:
                if self._is_emptied(self._target(self.remote_start), source.offsets[0] + 1):
                    self.remarks += [] if self.deleted else [_EMPTIED]
                    self.deleted = True
                    continue
                if self.remote_start > 0 and source.offsets[0] < self._target_begins:
                    self._note_deleted(self._target_begins)
                    self.deleted = True
                    return self._stretches(self._target_begins, readings)
                return self._absent(source)
            difference, rewritten = lockstep(source, found[0])
            if difference is None and source.fill():
                difference = self._absent(source)
            difference = difference or self._failed()
            told = source.reading
            readings.append((told, told if rewritten else found[0].reading))
            if difference is not None:
                return difference
            self._close_streams()
        return None

    def _has_records(self) -> bool:
        """Whether the source has records that a sample may compare.

        If a transform left nothing in all stretches, it is taken to leave nothing at all: to find
        out takes longer than a sample may.
        """
        if self.transformed is not None:
            return False
        return self._source(self.start, self.end, counted=False).fill() > 0

    def _close_streams(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    @cached_property
    def _target_begins(self) -> int:
        """The source offset of the target's first record; 0 if the source does not have it.

        Not more than the end of what is compared. Times do not tell what comes before the record:
        those that producers set may fall and rise.
        """
        target = self._target(self.remote_start)
        first = target.window(1)
        if not first.times:
            return 0
        at = self._known_from(first, self.earliest)
        # Right behind the first record the target may lack some.
        for window in (target.window(), first):
            source = self._source(at, self.later_end, counted=False)
            if align(source, window) is not None:
                return min(self.end, source.offsets[0])
        bounded = self.c.scope.end is not None
        return self.end if bounded and self._begins_behind(target) else 0

    # -- compacted topics ------------------------------------------------------------------

    def _by_key(self) -> PartitionResult:
        self.remarks.append("compacted: the last value of each key is compared")
        seen: LastOffsets = {}
        begins = Begin.of(self._target(self.remote_start)) if self.remote_start > 0 else None
        ours = last_values(self._source(self.start, self.end), seen, begins)
        failed = self._failed()  # before more is read: the newest reading counts
        theirs = last_values(self._target(self.remote_start))
        if self.start > 0 and drop_unseen(theirs, seen) and self.c.scope.start is None:
            self.remarks.append(
                "keys that only the target has are left out: the source has deleted records"
            )
        if begins is not None:
            first = self._begin_of_target(begins)
            if drop_deleted(ours, theirs, first):
                self._note_deleted(first)
        keys = differing(ours, theirs)
        first = max(self.start, self.end)
        if keys and self.later_end > first:
            later = value_digests(self._source(first, self.later_end, counted=False), keys)
            keys -= newer_keys(keys, seen, theirs, later)
        difference = failed
        if keys:
            difference = other_value(keys, seen, ours, theirs, self.c.positions.get(self.tp))
        sides = [
            Reading(len(side), _joined(sorted(digest.hex() for _, digest in side.values())))
            for side in (ours, theirs)
        ]
        return self._result(sides[0], sides[1], difference, by_key=True)

    def _begin_of_target(self, begins: Begin) -> int:
        """The source offset that ``begins`` knows from what was read, or else from the rest."""
        first = begins.source_offset(self.c.positions.get(self.tp, 0))
        if not begins.found:
            return first
        if self.start > self.earliest and (first > self.start or not begins.known):
            # The target may begin before the bound: then it has deleted nothing behind it.
            last_values(self._source(self.earliest, self.start, counted=False), begin=begins)
        end = max(self.start, self.end)
        if not begins.known and self.later_end > end:
            last_values(self._source(end, self.later_end, counted=False), begin=begins)
        return begins.source_offset(0)


def _offset_at(cluster: Cluster, tp: TopicPartition, time_ms: int) -> int:
    """The first offset of ``tp`` with this time or a later one; -1: none. Raises PartitionError."""
    found = cluster.offsets_at([tp], time_ms)
    if tp not in found:
        raise PartitionError(
            f"the leader of {tp} does not tell which record a time begins with.",
            where=f"cluster {cluster.alias}",
            do="Check that the brokers of this cluster are healthy.",
        )
    return found[tp]


def _until(over: Event, runs: Iterable[Carried]) -> Iterator[Carried]:
    """``runs``, until ``over`` is set: then CancelledError is raised."""
    for run in runs:
        if over.is_set():
            raise CancelledError
        yield run


def _joined(digests: Sequence[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


class Unread:
    """Counts partitions in a row that cannot be read: each one takes half a minute. Thread-safe."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = Lock()

    def note(self, result: PartitionResult) -> None:
        """Note one result. Raises TopicError if too many in a row cannot be read."""
        with self._lock:
            self._count = self._count + 1 if result.unread else 0
            if self._count < _UNREAD_MAX or result.difference is None:
                return
        raise TopicError(
            f"{_UNREAD_MAX} partitions in a row cannot be read; the last one, "
            f"{result.topic}-{result.partition}: {result.difference.what}",
            do="Check that the brokers of both clusters are healthy.",
        )


def compare_partition(
    chosen: ScopeOffsets, tp: TopicPartition, progress: Progress, over: Event | None = None
) -> PartitionResult:
    """Compare one partition; begin again where its logs begin if retention passes the reading.

    A partition that cannot be read is a result, too. Raises `MirrorError` for a whole cluster, and
    CancelledError when ``over`` is set.
    """
    remarks: list[str] = []
    tries = 0
    while True:
        comparison = PartitionComparison(chosen, tp, progress, over, remarks)
        try:
            return comparison.compared()
        except OF_ONE_PARTITION as error:
            tries += 1
            if tries > _TRIES or not chosen.renew(tp):
                unread = Difference("unread", None, None, str(error))
                return PartitionResult(*tp, EMPTY, EMPTY, unread)
        progress.take(-comparison.taken)
        start = chosen.starts[tp]
        remarks = [f"begun again at source offset {start}: records were deleted meanwhile"]


def verify_flow(
    source: Cluster,
    target: Cluster,
    flow: FlowSettings,
    scope: Scope,
    progress: Progress | None = None,
    transformed: TransformedTopics | None = None,
) -> list[PartitionResult]:
    """Compare all partitions of ``scope``; results in partition order. Raises `MirrorError`.

    Partitions that only the target has are among them unless they are empty.
    ``transformed``: runs the transforms of a flow that has some.
    """
    if flow.transforms and transformed is None:
        raise Defect("a flow with transforms is compared without them")
    chosen = ScopeOffsets(source, target, flow, scope, transformed)
    progress = progress or Progress()
    partitions = sorted([*chosen.pairs, *chosen.surplus])
    progress.partitions += len(partitions)
    progress.total += chosen.expected()

    over, unread = Event(), Unread()

    def one(tp: TopicPartition) -> PartitionResult:
        result = compare_partition(chosen, tp, progress, over)
        unread.note(result)
        progress.finish()
        return result

    with ThreadPoolExecutor(_THREADS, "verify") as pool:
        try:
            futures = [pool.submit(one, tp) for tp in partitions]
            results = [future.result() for future in futures]
        except BaseException:
            over.set()  # the pool waits for comparisons that run
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    compared = (
        result
        for tp, result in zip(partitions, results, strict=True)
        if tp not in chosen.surplus or not result.equal
    )
    absent = (
        PartitionResult(*tp, EMPTY, None, Difference("left out", None, None, str(error)))
        for tp, error in chosen.left_out.items()
    )
    return sorted([*compared, *absent], key=attrgetter("topic", "partition"))
