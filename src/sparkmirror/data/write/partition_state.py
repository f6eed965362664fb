"""What the sink knows about each source partition, and about its chunks in flight."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

from sparkmirror.data.rows.notes import GapNote
from sparkmirror.data.transform.failed_records import FailedRecords
from sparkmirror.data.write.ages import note_ages
from sparkmirror.data.write.chunk_offsets import ChunkOffsets
from sparkmirror.errors import Defect
from sparkmirror.internal_topics.gaps import Gap, GapKind
from sparkmirror.internal_topics.position_metadata import LEADER_EPOCH_LOST, Mark, TargetMark
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.samples import Samples
from sparkmirror.progress import Halt
from sparkmirror.records.header import base_offset, record_count, split
from sparkmirror.records.header_columns import Int64s
from sparkmirror.records.records import Record
from sparkmirror.wire.produce.backlog import Acknowledged
from sparkmirror.wire.produce.hanging_transactions import CommittedRecords

__all__ = [
    "Lane",
    "LaneIndex",
    "Pending",
    "acknowledge",
    "before_refusal",
    "divided_at",
    "gap_pending",
    "halt_refused",
    "targets",
]

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Pending:
    """One chunk whose batches are in flight.

    ``kept``: its bytes, if they may be needed again. ``targets``: as in `Chunk`. ``gap``: the gap
    before ``next_offset``. ``mark``: the source's log that the position is in after it; every
    settled chunk has one. ``log``, ``log_end``: the target's log and its end after the gap, if the
    gap changes them. ``beside``: other partitions that got batches for which the position waits.
    ``first_offset``: of its records at the source. ``dropped``: how many of them were given up.
    ``failed``: those that a transform left out because it failed on them. ``sources``: as in
    `data.transform.pack.Packed`. ``leader_epoch``: as in `data.rows.rows.Chunk`.
    """

    lane: Lane
    next_offset: int
    records: int
    bytes: int
    timestamp_ms: int
    oldest_ms: int
    batches_left: int
    offsets: ChunkOffsets
    kept: memoryview | None = None
    leader_epoch: int = -1
    targets: Sequence[Any] | None = None
    gap: Gap | None = None
    mark: Mark | None = None
    log: TargetMark | None = None
    log_end: int = -1
    beside: set[TopicPartition] | None = None
    first_offset: int = -1
    dropped: int = 0
    failed: tuple[FailedRecords, ...] = ()
    sources: Int64s | None = None

    def at_source(self, records: Sequence[Record]) -> Sequence[Record]:
        """``records`` of one of its batches, with their source offsets."""
        if self.sources is None:
            return records
        return [replace(one, offset=int(self.sources[one.offset])) for one in records]

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return self.lane.source

    @property
    def target(self) -> TopicPartition:
        """The remote partition."""
        return self.lane.target

    def wait_for(self, tp: TopicPartition) -> None:
        """Wait for one more batch, which goes to ``tp`` instead of the remote partition."""
        self.batches_left += 1
        self.beside = {*(self.beside or ()), tp}

    def goes_back(self, reached: int) -> int:
        """The first acknowledged target offset that is not after all earlier ones, -1 for none.

        ``reached``: where the records before these end. Records that were assigned to several
        partitions are not checked: their offsets cannot be compared.
        """
        for _, count, offset in sorted(self.offsets.targets) if self.targets is None else ():
            if offset < reached:
                return offset
            reached = offset + count
        return -1

    def mark_after(self, mark: Mark) -> Mark:
        """The mark of a position after this chunk, if ``mark`` is that of the position before."""
        if self.mark is not None:
            return self.mark
        if self.leader_epoch in (-1, mark.leader_epoch):
            return mark
        return replace(mark, leader_epoch=max(-1, self.leader_epoch))

    def note_ages(self, samples: Samples, now_ms: float) -> None:
        """Note how old the chunk's records are now."""
        note_ages(samples, now_ms, self.timestamp_ms, self.oldest_ms, self.records)


@dataclass(slots=True, eq=False)
class Lane:
    """One source partition in this sink.

    Invariant: ``position`` moves only past chunks that are acknowledged as a whole, and only if all
    chunks before them are. ``saved``: the position that was last written in MirrorMaker 2's format,
    0 if it has none; -1: unknown. ``target_end``: target offset after the last record before
    ``position``, ``source_end``: source offset after that record; -1 if unknown. ``log``: the
    target's log that it is in; ``logged``: the one that was committed last. ``reached``: the
    highest acknowledged end; with ``watched``, nothing below it settles. ``marker``: number of
    offsets that a transaction's marker takes after ``target_end``. ``written``: the newest
    committed records before the position (exactly-once only). ``routed``: its records may go to any
    partition, so nothing is known about their places: no target log, no end, no offset syncs.
    ``left``: no more chunks come, because the assignment no longer has the partition, or moves it
    to another slot. ``retried``: why the attempt before this one was given up, until anything of
    this one is acknowledged, or the monotonic time ``retried_until``. ``unrepaired``: the target
    has lost records, and no gap record of that is acknowledged yet: ``log`` still is the one that
    counts as lost.
    """

    source: TopicPartition
    target: TopicPartition
    position: int = -1
    committed: int = -1
    saved: int = 0
    timestamp_ms: int = -1
    records: int = 0
    bytes: int = 0
    halt: Halt | None = None
    source_halt: Halt | None = None
    attempt: int = 0
    retried: Halt | None = None
    retried_until: float = 0.0
    blocked: tuple[TopicPartition, ...] = ()
    mark: Mark = Mark()  # noqa: RUF009  (frozen)
    marked: Mark | None = None
    target_end: int = -1
    source_end: int = -1
    log: TargetMark = TargetMark()  # noqa: RUF009  (frozen)
    logged: TargetMark | None = None
    reached: int = -1
    watched: bool = False
    marker: int = 0
    written: CommittedRecords | None = None
    routed: bool = False
    left: bool = False
    unrepaired: bool = False
    age: Samples = field(default_factory=Samples)
    latency: Samples = field(default_factory=Samples)
    queue: deque[Pending] = field(default_factory=deque)

    @property
    def due(self) -> bool:
        """Whether the position or its metadata differs from what was committed."""
        told = (self.committed, self.marked, self.logged)
        return (self.position, self.mark, self.log) != told

    def commit_again(self) -> None:
        """Have the position committed again, even if it does not move.

        Brokers delete positions that nobody has committed for ``offsets.retention.minutes``. That
        is right for a partition that was left: its topic is gone.
        """
        if not self.left:
            self.marked = None

    def waits_for(self) -> Iterator[TopicPartition]:
        """The target partitions without which this lane cannot continue now."""
        if not self.routed:
            yield self.target
        for pending in self.queue:
            yield from pending.beside or ()

    def check_next(self, offset: int) -> None:
        """Raise `Defect` if the source's records from ``offset`` on were here before.

        They would be at the target twice, and the position would go back. The task fails before
        any of them is written, and the next attempt reads where to continue.
        """
        behind = self.queue[-1].next_offset if self.queue else self.position
        if offset < behind:
            raise Defect(
                f"{self.source}: records from offset {offset} on were read again, while those up "
                f"to {behind - 1} are written or in flight; they are not written twice"
            )

    def settle(self) -> list[Pending]:
        """Move the position past what is acknowledged without a gap; returns those chunks."""
        settled: list[Pending] = []
        while self.queue and not self.queue[0].batches_left:
            if self.watched and self.queue[0].goes_back(self.reached) >= 0:
                break
            done = self.queue.popleft()
            settled.append(done)
            self.retried = None
            self.position = done.next_offset
            self.mark = done.mark = done.mark_after(self.mark)
            self.records += done.records
            self.bytes += done.bytes
            self.timestamp_ms = max(self.timestamp_ms, done.timestamp_ms)
            if done.log is not None:
                self.log, self.unrepaired = done.log, False
            if done.log_end >= 0:
                self.target_end = self.reached = done.log_end
                self.source_end = -1
            if done.records:
                self.target_end = done.offsets.target_end
                self.source_end = done.offsets.source_end
                self.reached = max(self.reached, self.target_end)
        return settled

    @property
    def stuck(self) -> bool:
        """Whether `settle` has left acknowledged chunks in the queue."""
        return bool(self.queue) and not self.queue[0].batches_left

    def goes_back(self) -> int:
        """The first acknowledged target offset below that of an earlier record, -1 for none."""
        reached = self.reached
        for pending in self.queue:
            if pending.log_end >= 0:
                reached = pending.log_end
            if (offset := pending.goes_back(reached)) >= 0:
                return offset
            reached = max(reached, pending.offsets.target_end)
        return -1

    def logged_ahead(self) -> tuple[TargetMark, int]:
        """``log`` and ``reached`` after the gaps whose records are in flight."""
        log, reached = self.log, self.reached
        for pending in self.queue:
            if pending.log is not None:
                log = pending.log
            if pending.log_end >= 0:
                reached = pending.log_end
        return log, reached

    def lowest(self, offset: int) -> int:
        """The lowest acknowledged target offset of queued chunks, at most ``offset``."""
        told = (at for pending in self.queue for _, _, at in pending.offsets.targets)
        return min([offset, *told])

    def there(self) -> int:
        """The source offset up to which the target has all queued records, from the position on."""
        end = self.position
        if self.log.there_first <= end < self.log.there_end:
            return end  # what it begins with was passed, as below
        for pending in self.queue:
            offsets = pending.offsets
            known = [run for run in offsets.runs() if run.source >= end]
            if pending.gap is not None or sum(run.length for run in known) < offsets.records:
                break
            if pending.leader_epoch == LEADER_EPOCH_LOST:
                # It passes offsets that the target had at an earlier loss and may have lost now.
                return known[-1].source_end if known else end
            end = pending.next_offset
        return end

    def ahead(self, *, expected: bool) -> tuple[TargetMark, int]:
        """``log`` and ``target_end`` after the whole queue, as far as acknowledgements say.

        ``expected``: batches that are not acknowledged get the offsets that follow, which is right
        unless others write there, too.
        """
        log, end, marker = self.log, self.target_end, self.marker
        for pending in self.queue:
            log = pending.log or log
            if pending.log_end >= 0:
                end = pending.log_end
            told = pending.offsets.target_end
            if pending.records and told >= 0:
                end, marker = told, 0
            elif pending.records and expected and end >= 0:
                end, marker = end + marker + pending.records, 0
        return log, end


def gap_pending(lane: Lane, note: GapNote) -> Pending:
    """The entry in the queue of ``lane`` for a gap that the lane continues past."""
    gap = note.gap
    pending = Pending(
        lane, gap.resumed_at or 0, 0, 0, -1, -1, 0, ChunkOffsets((), 0), gap=gap, mark=note.mark
    )
    if note.target is not None:
        pending.log, pending.log_end = note.target, note.target_end
        lane.unrepaired = True
    elif gap.kind in (GapKind.RECREATED, GapKind.REPLACED, GapKind.TRUNCATED):
        # A gap of the target's log may be in flight. What the log has is of other source records.
        log, _ = lane.logged_ahead()
        # If the target loses its log, a new source topic is all that can be mirrored.
        begin = log.begin if gap.kind is GapKind.TRUNCATED else pending.next_offset
        pending.log = replace(log, begin=begin, there_first=-1, there_end=-1)
    return pending


class LaneIndex:
    """Lanes by what they wait for: finds those that a halt concerns, without a search."""

    def __init__(self) -> None:
        self._by_target: dict[TopicPartition, list[Lane]] = {}
        self._beside: dict[Lane, None] = {}
        self.topics: set[str] = set()
        """All remote topics."""
        self.halts_seen = 0
        """The number of halts at the last call of `may_stop`."""

    def add(self, lane: Lane) -> Lane:
        """Add ``lane`` and return it."""
        self._by_target.setdefault(lane.target, []).append(lane)
        self.topics.add(lane.target.topic)
        return lane

    def remove(self, lane: Lane) -> None:
        """Remove ``lane``, which waits for nothing."""
        self._by_target[lane.target].remove(lane)
        self._beside.pop(lane, None)

    def waits_beside(self, lane: Lane) -> None:
        """Note that a chunk of ``lane`` also waits for another partition than its own."""
        self._beside[lane] = None

    def may_stop(self, halts: int, *, again: bool) -> bool:
        """Whether a lane may have to stop because of a halted target partition.

        ``halts``: how many halts there were so far. ``again``: also if no halt is new.
        """
        seen, self.halts_seen = self.halts_seen, halts
        # A partition that a chunk waits for besides its own may have been halted long before.
        return halts > 0 and (halts != seen or again or bool(self._beside))

    def concerned(self, halted: Iterable[TopicPartition]) -> list[Lane]:
        """The lanes that may wait for one of these partitions."""
        for lane in [one for one in self._beside if not any(p.beside for p in one.queue)]:
            del self._beside[lane]
        return [
            *(lane for tp in halted for lane in self._by_target.get(tp, ())),
            *self._beside,
        ]


def acknowledge(ack: Acknowledged) -> Pending | None:
    """Apply an acknowledgement to its chunk; returns the chunk."""
    token = ack.token
    pending: Pending
    if isinstance(token, tuple):
        pending, records_end = token
        pending.offsets.acknowledged(records_end, ack.records, ack.offset)
    elif isinstance(token, Pending):  # a batch besides its records
        pending = token
    else:
        return None
    pending.batches_left -= 1
    return pending


def targets(pending: Pending, cuts: Sized) -> list[TopicPartition]:
    """The target partition of each batch of a chunk."""
    target = pending.lane.target
    if pending.targets is None:
        return [target] * len(cuts)
    return [
        TopicPartition(target.topic, one) if isinstance(one, int) else TopicPartition(*one)
        for one in pending.targets
    ]


def before_refusal(queue: deque[Pending]) -> deque[Pending]:
    """The chunks that the target took before it refused one; of the last one, the batches."""
    taken: deque[Pending] = deque()
    for pending in queue:
        if not pending.batches_left:
            taken.append(pending)
            continue
        part = pending.kept
        # Batches of routed records are not in the source's order.
        if part is not None and not pending.lane.routed:
            cuts = split(part)
            count = len(cuts) - pending.batches_left
            if count > 0:
                end = cuts[count][0]
                records = sum(record_count(part[a:b]) for a, b in cuts[:count])
                first_refused = base_offset(part[end : end + 8])
                if pending.sources is not None:
                    first_refused = int(pending.sources[first_refused])
                taken.append(
                    Pending(
                        pending.lane,
                        first_refused,
                        records,
                        end,
                        pending.timestamp_ms,
                        pending.oldest_ms,
                        0,
                        ChunkOffsets((), records),
                        part[:end],
                        leader_epoch=pending.leader_epoch,
                        failed=divided_at(pending.failed, first_refused)[0],
                        sources=pending.sources,
                    )
                )
        break
    return taken


def divided_at(
    failed: Iterable[FailedRecords], offset: int
) -> tuple[tuple[FailedRecords, ...], tuple[FailedRecords, ...]]:
    """``failed`` in two: what a position passes if it moves to ``offset``, and the rest."""
    before: list[FailedRecords] = []
    after: list[FailedRecords] = []
    for each in failed:
        for part, records in (
            (before, tuple(one for one in each.records if one.offset < offset)),
            (after, tuple(one for one in each.records if one.offset >= offset)),
        ):
            if records:
                part.append(replace(each, records=records))
    return tuple(before), tuple(after)


def halt_refused(lanes: Iterable[Lane], halts: Mapping[TopicPartition, Halt]) -> list[Lane]:
    """Halt the lanes that the target has begun to refuse in this transaction; returns them.

    ``halts``: the refused partitions.
    """
    refused = []
    for lane in lanes if halts else ():
        # A refused gap record counts, too: no position passes a gap without a record.
        blocked = [tp for tp in lane.waits_for() if tp in halts]
        if not blocked or (lane.halt is not None and not lane.queue):
            continue
        if lane.halt is not None:
            lane.queue.clear()  # including what the target took before
        lane.halt, lane.blocked = halts[blocked[0]], tuple(blocked)
        log.error("%s", lane.halt.reason)
        refused.append(lane)
    return refused
