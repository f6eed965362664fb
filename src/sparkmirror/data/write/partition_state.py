"""What the sink knows of each source partition, and of its chunks that are on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

from sparkmirror.data.rows.notes import GapNote
from sparkmirror.data.write.ages import note_ages
from sparkmirror.data.write.offset_sync_writer import Places
from sparkmirror.errors import Defect
from sparkmirror.internal_topics.gaps import Gap, GapKind
from sparkmirror.internal_topics.position_metadata import Mark, TargetMark
from sparkmirror.model import Halt, TopicPartition
from sparkmirror.observe.figures.samples import Samples
from sparkmirror.records.header import base_offset, record_count, split
from sparkmirror.wire.produce.hanging_transactions import Written
from sparkmirror.wire.produce.producer import Acknowledged

__all__ = [
    "Lane",
    "LaneIndex",
    "Pending",
    "acknowledge",
    "before_refusal",
    "gap_pending",
    "targets",
]


@dataclass(slots=True, eq=False)
class Pending:
    """One chunk whose batches are on their way.

    ``kept``: its bytes, where they may be needed. ``targets``: as in `Chunk`. ``gap``: what lies
    before ``next_offset``, and ``mark`` the log that the position is in behind it (known of every
    chunk once it is settled); ``log`` and ``log_end`` likewise of the target's, where it is another
    one behind the gap. ``beside``: where else batches went that the position waits for.
    ``first_offset``: of its records at the source; ``dropped``: how many of them were given up.
    """

    lane: Lane
    next_offset: int
    records: int
    bytes: int
    timestamp_ms: int
    oldest_ms: int
    batches_left: int
    places: Places
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

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return self.lane.source

    @property
    def target(self) -> TopicPartition:
        """The remote partition."""
        return self.lane.target

    def wait_for(self, tp: TopicPartition) -> None:
        """Wait for one more batch, which goes to ``tp``, beside the remote partition."""
        self.batches_left += 1
        self.beside = {*(self.beside or ()), tp}

    def goes_back(self, reached: int) -> int:
        """The first acknowledged target offset that is not behind all before it, -1 for none.

        ``reached``: where the records before these end. Other partitions' offsets say nothing.
        """
        for _, count, offset in sorted(self.places.targets) if self.targets is None else ():
            if offset < reached:
                return offset
            reached = offset + count
        return -1

    def mark_after(self, mark: Mark) -> Mark:
        """The mark of a position behind this chunk, when ``mark`` is the one before it."""
        if self.mark is not None:
            return self.mark
        if self.leader_epoch < 0 or self.leader_epoch == mark.leader_epoch:
            return mark
        return replace(mark, leader_epoch=self.leader_epoch)

    def note_ages(self, samples: Samples, now_ms: float) -> None:
        """Note how old the chunk's records are now."""
        note_ages(samples, now_ms, self.timestamp_ms, self.oldest_ms, self.records)


@dataclass(slots=True, eq=False)
class Lane:
    """One source partition through this sink.

    Invariant: ``position`` moves only past chunks all of whose batches, and all chunks before
    them, are acknowledged. ``target_end``: target offset after the last record before
    ``position``, -1 unknown. ``log``: which log of the target that is in; ``logged``: the one
    that was committed last. ``reached``: the highest end that was acknowledged; with ``watched``
    nothing settles that is below it. ``marker``: how many offsets of the target a transaction's
    marker takes behind ``target_end``. ``written``: whose records they are, where that is kept
    (exactly-once).
    """

    source: TopicPartition
    target: TopicPartition
    position: int = -1
    committed: int = -1
    saved: int = -1
    timestamp_ms: int = -1
    records: int = 0
    bytes: int = 0
    halt: Halt | None = None
    source_halt: Halt | None = None
    attempt: int = 0
    blocked: tuple[TopicPartition, ...] = ()
    mark: Mark = Mark()  # noqa: RUF009  (frozen)
    marked: Mark | None = None
    target_end: int = -1
    log: TargetMark = TargetMark()  # noqa: RUF009  (frozen)
    logged: TargetMark | None = None
    reached: int = -1
    watched: bool = False
    marker: int = 0
    written: Written | None = None
    age: Samples = field(default_factory=Samples)
    latency: Samples = field(default_factory=Samples)
    queue: deque[Pending] = field(default_factory=deque)

    @property
    def due(self) -> bool:
        """Whether the position, or what is kept with it, is another one than was committed."""
        told = (self.committed, self.marked, self.logged)
        return (self.position, self.mark, self.log) != told

    def waits_for(self) -> Iterator[TopicPartition]:
        """The target partitions that this one cannot go on without at present."""
        yield self.target
        for pending in self.queue:
            yield from pending.beside or ()

    def check_next(self, offset: int) -> None:
        """Raise `Defect` when the source's records from ``offset`` on came here already.

        They would be at the target twice, and the position would go back. The task fails before
        any of them is written, and the next attempt reads where to go on.
        """
        behind = self.queue[-1].next_offset if self.queue else self.position
        if offset < behind:
            raise Defect(
                f"{self.source}: records from offset {offset} on were read again, while those up "
                f"to {behind - 1} are written or on their way; they are not written twice"
            )

    def settle(self) -> list[Pending]:
        """Move the position past what is acknowledged without a gap; returns what that is."""
        settled: list[Pending] = []
        while self.queue and not self.queue[0].batches_left:
            if self.watched and self.queue[0].goes_back(self.reached) >= 0:
                break
            done = self.queue.popleft()
            settled.append(done)
            self.position = done.next_offset
            self.mark = done.mark = done.mark_after(self.mark)
            self.records += done.records
            self.bytes += done.bytes
            self.timestamp_ms = max(self.timestamp_ms, done.timestamp_ms)
            if done.log is not None:
                self.log = done.log
            if done.log_end >= 0:
                self.target_end = self.reached = done.log_end
            if done.records:
                self.target_end = done.places.target_end
                self.reached = max(self.reached, self.target_end)
        return settled

    @property
    def stuck(self) -> bool:
        """Whether `settle` has left what is acknowledged where it is."""
        return bool(self.queue) and not self.queue[0].batches_left

    def goes_back(self) -> int:
        """The first acknowledged target offset below one of a record before it, -1 for none."""
        reached = self.reached
        for pending in self.queue:
            if pending.log_end >= 0:
                reached = pending.log_end
            if (offset := pending.goes_back(reached)) >= 0:
                return offset
            reached = max(reached, pending.places.target_end)
        return -1

    def logged_ahead(self) -> tuple[TargetMark, int]:
        """``log`` and ``reached`` behind the gaps whose records are on their way."""
        log, reached = self.log, self.reached
        for pending in self.queue:
            if pending.log is not None:
                log = pending.log
            if pending.log_end >= 0:
                reached = pending.log_end
        return log, reached

    def lowest(self, offset: int) -> int:
        """The lowest target offset that was acknowledged of what waits, at most ``offset``."""
        told = (at for pending in self.queue for _, _, at in pending.places.targets)
        return min([offset, *told])

    def there(self) -> int:
        """Up to which source offset the target has what waits: all of it, from the position on."""
        end = self.position
        for pending in self.queue:
            places = pending.places
            known = [run for run in places.runs() if run.source >= end]
            if pending.gap is not None or sum(run.length for run in known) < places.records:
                break
            end = pending.next_offset
        return end

    def ahead(self, *, expected: bool) -> tuple[TargetMark, int]:
        """``log`` and ``target_end`` behind the whole queue, as far as acknowledgements tell.

        ``expected``: of batches without one, what it will tell unless others write there, too.
        """
        log, end, marker = self.log, self.target_end, self.marker
        for pending in self.queue:
            log = pending.log or log
            if pending.log_end >= 0:
                end = pending.log_end
            told = pending.places.target_end
            if pending.records and told >= 0:
                end, marker = told, 0
            elif pending.records and expected and end >= 0:
                end, marker = end + marker + pending.records, 0
        return log, end


def gap_pending(lane: Lane, note: GapNote) -> Pending:
    """What stands in ``lane`` for a gap that it goes past."""
    gap = note.gap
    pending = Pending(
        lane, gap.resumed_at or 0, 0, 0, -1, -1, 0, Places((), 0), gap=gap, mark=note.mark
    )
    if note.target is not None:
        pending.log, pending.log_end = note.target, note.target_end
    elif gap.kind in (GapKind.RECREATED, GapKind.REPLACED):
        # Should the target lose its log, the new source topic is all there is to mirror.
        pending.log = replace(lane.log, begin=pending.next_offset)
    return pending


class LaneIndex:
    """Lanes by what they wait for: which ones a halt concerns, without going through all."""

    def __init__(self) -> None:
        self._by_target: dict[TopicPartition, list[Lane]] = {}
        self._beside: dict[Lane, None] = {}
        self.topics: set[str] = set()
        """The remote topics."""
        self.halts_seen = 0
        """How many halts there had been when `may_stop` was asked last."""

    def add(self, lane: Lane) -> Lane:
        """Add ``lane``, which is returned."""
        self._by_target.setdefault(lane.target, []).append(lane)
        self.topics.add(lane.target.topic)
        return lane

    def waits_beside(self, lane: Lane) -> None:
        """Note that a chunk of ``lane`` also waits for another partition than its own."""
        self._beside[lane] = None

    def may_stop(self, halts: int, *, again: bool) -> bool:
        """Whether a lane may have to stop for one of ``halts`` halts of target partitions so far.

        ``again``: also for one that has been looked at.
        """
        seen, self.halts_seen = self.halts_seen, halts
        # What a chunk waits for beside its records may have been halted long before.
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
    """Note what an acknowledgement says about the chunk it is for, which is returned."""
    token = ack.token
    pending: Pending
    if isinstance(token, tuple):
        pending, records_end = token
        pending.places.acknowledged(records_end, ack.records, ack.offset)
    elif isinstance(token, Pending):  # beside its records
        pending = token
    else:
        return None
    pending.batches_left -= 1
    return pending


def targets(pending: Pending, cuts: Sized) -> list[TopicPartition]:
    """Where each batch of a chunk goes."""
    target = pending.lane.target
    if pending.targets is None:
        return [target] * len(cuts)
    return [
        TopicPartition(target.topic, one) if isinstance(one, int) else TopicPartition(*one)
        for one in pending.targets
    ]


def before_refusal(queue: deque[Pending]) -> deque[Pending]:
    """The chunks, and of the last one the batches, that the target took before it refused one."""
    taken: deque[Pending] = deque()
    for pending in queue:
        if not pending.batches_left:
            taken.append(pending)
            continue
        part = pending.kept
        if part is not None:
            cuts = split(part)
            count = len(cuts) - pending.batches_left
            if count > 0:
                end = cuts[count][0]
                records = sum(record_count(part[a:b]) for a, b in cuts[:count])
                first_refused = base_offset(part[end : end + 8])
                taken.append(
                    Pending(
                        pending.lane,
                        first_refused,
                        records,
                        end,
                        pending.timestamp_ms,
                        pending.oldest_ms,
                        0,
                        Places((), records),
                        part[:end],
                        leader_epoch=pending.leader_epoch,
                    )
                )
        break
    return taken
