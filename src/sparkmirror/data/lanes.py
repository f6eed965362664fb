"""What the sink knows of each source partition, and of its chunks that are on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

from sparkmirror.data.ages import note_ages
from sparkmirror.data.syncs import Places
from sparkmirror.errors import Defect
from sparkmirror.model import Halt, TopicPartition
from sparkmirror.observe.samples import Samples
from sparkmirror.wire.batch import base_offset, record_count, split
from sparkmirror.wire.gaps import Gap
from sparkmirror.wire.marks import Mark
from sparkmirror.wire.open_ends import Written
from sparkmirror.wire.produce import Acknowledged

__all__ = ["Lane", "LaneIndex", "Pending", "acknowledge", "before_refusal", "targets"]


@dataclass(slots=True, eq=False)
class Pending:
    """One chunk whose batches are on their way.

    ``kept``: its bytes, where they may be needed. ``targets``: as in `Chunk`. ``gap``: what lies
    before ``next_offset``, and ``mark`` the log that the position is in behind it (known of every
    chunk once it is settled). ``beside``: where else batches went that the position waits for.
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
    ``position``, -1 unknown. ``written``: whose records they are, where that is kept
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
    written: Written | None = None
    age: Samples = field(default_factory=Samples)
    latency: Samples = field(default_factory=Samples)
    queue: deque[Pending] = field(default_factory=deque)

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
            done = self.queue.popleft()
            settled.append(done)
            self.position = done.next_offset
            self.mark = done.mark = done.mark_after(self.mark)
            self.records += done.records
            self.bytes += done.bytes
            self.timestamp_ms = max(self.timestamp_ms, done.timestamp_ms)
            if done.records:
                self.target_end = done.places.target_end
        return settled


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
