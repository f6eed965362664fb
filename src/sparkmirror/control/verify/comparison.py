"""Compares source partitions with their remote partitions, record by record.

The mirror may run meanwhile. `ScopeOffsets` freezes what is compared. `PartitionComparison`
compares one partition: it decides where to begin and end, and names the difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

from sparkmirror.control.verify.lockstep import Side, align, last_values, lockstep, value_digests
from sparkmirror.control.verify.scope import (
    STRETCH,
    Progress,
    Scope,
    ScopeOffsets,
    TransformedTopics,
)
from sparkmirror.errors import Defect
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

__all__ = ["PartitionComparison", "verify_flow"]

_THREADS = 4


class PartitionComparison:
    """The comparison of one partition."""

    def __init__(self, chosen: ScopeOffsets, tp: TopicPartition, progress: Progress) -> None:
        self.c = chosen
        self.tp = tp
        self.remote = chosen.pairs[tp]
        self.progress = progress
        self.times = tp.topic not in chosen.stamped
        self.start, self.end = chosen.starts.get(tp, 0), chosen.ends.get(tp, 0)
        self.later_end = max(self.end, chosen.later_ends.get(tp, 0))
        self.remote_start = chosen.remote_starts.get(self.remote, 0)
        self.remote_end = chosen.remote_ends.get(self.remote, 0)
        self.remarks = [] if self.times else ["the target sets its own timestamps: not compared"]
        known = chosen.transformed
        self.transformed = known if known is not None and known.has(tp.topic) else None
        self._streams: list[RecordStream | Generator[Carried, None, None]] = []

    def compared(self) -> PartitionResult:
        """Compare the partition, by its scope. Raises `MirrorError`."""
        if self.tp not in self.c.ends:
            return self._result(
                EMPTY, None, Difference("no partition", None, None, "no leader at the source")
            )
        if self.remote not in self.c.there:
            what = f"the target has no partition {self.remote}"
            return self._result(EMPTY, None, Difference("no partition", self.start, None, what))
        try:
            if self.tp.topic in self.c.compacted:
                return self._by_key()
            return self._sampled() if self.c.scope.sample else self._whole()
        finally:
            for stream in self._streams:
                stream.close()

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
        on_take: Callable[[int], None] = self.progress.take if counted else lambda _: None
        if self.transformed is not None:
            made = self.transformed.read(self.tp, start, end)
            self._streams.append(made)
            return Side(made, times=self.times, on_take=on_take)
        client = self.c.flow.source
        stream = RecordStream(client, self.c.flow.fetch, self.tp, start, end)
        self._streams.append(stream)
        return Side(stream, times=self.times, on_take=on_take)

    def _target(self, start: int) -> Side:
        client = self.c.flow.target_admin
        stream = RecordStream(client, FetchSettings(), self.remote, start, self.remote_end)
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
            found = self.c.target.offsets_at([self.remote], first.times[0])
            if self.remote not in found:
                return None
            at = max(at, found[self.remote])
        for window in (side.window(), first):
            there = self._target(at)
            if align(there, window) is not None:
                return there, there.offsets[0]
        return None

    # -- whole partitions ------------------------------------------------------------------

    def _whole(self) -> PartitionResult:
        source = self._source(self.start, self.later_end)
        if self.c.scope.start is not None:
            return self._from_a_bound(source)
        target = self._target(self.remote_start)
        if self.start >= self.later_end and self.c.earliest[self.tp] > 0 and target.fill():
            self.remarks.append("the source has deleted all its records")
            return self._result(EMPTY, EMPTY, None)
        if self._target_is_emptied(self.start + 1):
            self.remarks.append("the target has deleted all its records")
            source = self._source(min(self.c.positions[self.tp], self.later_end), self.later_end)
        fresh = self.c.earliest[self.tp] == 0 == self.remote_start
        if source.fill() and target.fill() and not fresh and not target.matches(source.window()):
            moved = self._aligned(source, target)
            if isinstance(moved, Difference):
                return self._rest(source, target, moved)
            source, target = moved
        return self._stepped(source, target)

    def _target_is_emptied(self, end: int) -> bool:
        """Whether the target has deleted all that it had; it had the records before ``end``."""
        mirrored = self.c.positions.get(self.tp, 0) >= end
        return mirrored and 0 < self.remote_start == self.remote_end

    def _from_a_bound(self, source: Side) -> PartitionResult:
        if not source.fill() or source.offsets[0] >= self.end:
            return self._result(EMPTY, EMPTY, None)
        found = self._target_from(source)
        if found is None:
            return self._rest(source, self._target(self.remote_end), self._absent(source))
        return self._stepped(source, found[0])

    def _aligned(self, source: Side, target: Side) -> tuple[Side, Side] | Difference:
        """Both logs from their first common record on; or the difference before it.

        If there is no common record, both logs are returned unchanged.
        """
        found = self._target_from(source)
        if found is not None and found[1] > target.offsets[0]:
            if self.c.earliest[self.tp] == 0:
                at = target.offsets[0]
                what = f"the target has records from its offset {at} on that the source never had"
                return Difference("extra", None, at, what)
            self.remarks.append("the target also holds older records, which the source has deleted")
            return source, found[0]
        window = target.window()
        at_source = self.start
        # A transform may have set other times than those that the source knows.
        if self.times and window.times[0] >= 0 and self.transformed is None:
            known = self.c.source.offsets_at([self.tp], window.times[0])
            at_source = max(at_source, known.get(self.tp, self.later_end))
        later = self._source(at_source, self.later_end)
        if align(later, window) is None or later.offsets[0] <= source.offsets[0]:
            return source, target
        first = later.offsets[0]
        if self.remote_start == 0:
            at = source.offsets[0]
            what = f"the target begins with source offset {first}: it lacks the records before it"
            return Difference("missing", at, target.offsets[0], what)
        self.remarks.append(f"the target has deleted the records before source offset {first}")
        return later, target

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

    def _absent(self, source: Side) -> Difference:
        at = source.offsets[0]
        position = self.c.positions.get(self.tp)
        if position is not None and position <= at:
            return Difference("behind", at, None, f"source offset {at} is not mirrored yet")
        return Difference("missing", at, None, f"the target lacks source offset {at}")

    def _rest(self, source: Side, target: Side, difference: Difference) -> PartitionResult:
        """The result for ``difference``; the remaining records are still counted."""
        source.take_before(self.end)
        if self.c.scope.end is None:
            target.take_before(self.remote_end)
        return self._result(source.reading, target.reading, difference)

    # -- samples ---------------------------------------------------------------------------

    def _sampled(self) -> PartitionResult:
        count = self.c.scope.sample
        readings: list[tuple[Reading, Reading]] = []
        difference: Difference | None = None
        for number in range(count):
            at, following = (
                self.start + (self.end - self.start) * one // count for one in (number, number + 1)
            )
            source = self._source(at, min(at + STRETCH, following))
            if not source.fill():
                difference = self._failed()
                if difference is not None:
                    break
                continue
            found = self._target_from(source)
            if found is None:
                if self._deleted_there(source):
                    remark = "the target has deleted the first stretches"
                    self.remarks += [] if remark in self.remarks else [remark]
                    continue
                difference = self._absent(source)
                break
            difference, rewritten = lockstep(source, found[0])
            if difference is None and source.fill():
                difference = self._absent(source)
            difference = difference or self._failed()
            told = source.reading
            readings.append((told, told if rewritten else found[0].reading))
            if difference is not None:
                break
            self._close_streams()
        sides = [
            Reading(sum(one.records for one in side), _joined([one.digest for one in side]))
            for side in ([a for a, _ in readings], [b for _, b in readings])
        ]
        self.remarks.append(f"{len(readings)} stretches of up to {STRETCH} records")
        return self._result(sides[0], sides[1], difference)

    def _close_streams(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    def _deleted_there(self, source: Side) -> bool:
        if self._target_is_emptied(source.offsets[0] + 1):
            return True
        first = self._target(self.remote_start)
        if self.remote_start == 0 or not first.fill():
            return False
        return source.times[0] < first.times[0]

    # -- compacted topics ------------------------------------------------------------------

    def _by_key(self) -> PartitionResult:
        self.remarks.append("compacted: the last value of each key is compared")
        ours = last_values(self._source(self.start, self.end))
        theirs = last_values(self._target(self.remote_start))
        keys = {
            key
            for key in ours.keys() | theirs.keys()
            if ours.get(key, (0, b""))[1] != theirs.get(key, (0, b""))[1]
        }
        if keys and self.later_end > self.end:
            later = value_digests(self._source(self.end, self.later_end, counted=False), keys)
            keys = {key for key in keys if theirs.get(key, (0, b""))[1] not in later.get(key, ())}
        difference = None
        if keys:
            known = sorted((ours[key][0], key) for key in keys if key in ours)
            difference = self._other_value(known, ours, theirs, keys)
        difference = difference or self._failed()
        sides = [
            Reading(len(side), _joined(sorted(digest.hex() for _, digest in side.values())))
            for side in (ours, theirs)
        ]
        return self._result(sides[0], sides[1], difference, by_key=True)

    def _other_value(
        self,
        known: Sequence[tuple[int, bytes | None]],
        ours: Mapping[bytes | None, tuple[int, bytes]],
        theirs: Mapping[bytes | None, tuple[int, bytes]],
        keys: set[bytes | None],
    ) -> Difference:
        if not known:
            at = min(theirs[key][0] for key in keys)
            what = f"the target has a key at its offset {at} that the source does not have"
            return Difference("extra", None, at, what)
        offset, key = known[0]
        position = self.c.positions.get(self.tp)
        if position is not None and position <= offset:
            return Difference("behind", offset, None, f"source offset {offset} is not mirrored yet")
        if key not in theirs:
            what = f"the target lacks the key of source offset {offset}"
            return Difference("missing", offset, None, what)
        there = theirs[key][0]
        what = f"source offset {offset} and target offset {there} have one key and differ"
        return Difference("differs", offset, there, what)


def _joined(digests: Sequence[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def verify_flow(
    source: Cluster,
    target: Cluster,
    flow: FlowSettings,
    scope: Scope,
    progress: Progress | None = None,
    transformed: TransformedTopics | None = None,
) -> list[PartitionResult]:
    """Compare all partitions of ``scope``; results in partition order. Raises `MirrorError`.

    ``transformed``: runs the transforms of a flow that has some.
    """
    if flow.transforms and transformed is None:
        raise Defect("a flow with transforms is compared without them")
    chosen = ScopeOffsets(source, target, flow, scope, transformed)
    progress = progress or Progress()
    progress.partitions += len(chosen.pairs)
    progress.total += chosen.expected()

    def one(tp: TopicPartition) -> PartitionResult:
        result = PartitionComparison(chosen, tp, progress).compared()
        progress.finish()
        return result

    with ThreadPoolExecutor(_THREADS, "verify") as pool:
        futures = [pool.submit(one, tp) for tp in sorted(chosen.pairs)]
        try:
            compared = [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    absent = (
        PartitionResult(*tp, EMPTY, None, Difference("left out", None, None, str(error)))
        for tp, error in chosen.left_out.items()
    )
    return sorted([*compared, *absent], key=attrgetter("topic", "partition"))
