"""The sink end of a slot: raw batches out of Spark's rows, into the target, positions after them.

One `SlotSink` serves one task. The producer behind it outlives it (`data.write.producers`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sparkmirror.data.coordination.pause import PauseWatch
from sparkmirror.data.rows import worker_pipes
from sparkmirror.data.rows.notes import GapNote, Owner, SlotHello, SlotNotes
from sparkmirror.data.rows.rows import Chunk, read_row
from sparkmirror.data.rows.shared_frames import FrameReader, Reference, map_frames
from sparkmirror.data.write.ages import oldest_ms
from sparkmirror.data.write.bad_records import RefusedRecords
from sparkmirror.data.write.held_back import HeldBack
from sparkmirror.data.write.offset_sync_writer import (
    NO_SYNCS,
    Places,
    SlotSyncs,
    SyncSender,
    TakenSyncs,
)
from sparkmirror.data.write.partition_state import (
    Lane,
    LaneIndex,
    Pending,
    acknowledge,
    gap_pending,
    targets,
)
from sparkmirror.data.write.position_commits import Commits, connect_record
from sparkmirror.data.write.producers import drop_producer, producer_of
from sparkmirror.data.write.progress import SinkReports
from sparkmirror.data.write.target_ends import TargetEnds
from sparkmirror.errors import Fenced, MirrorError, PartitionError, Unreachable
from sparkmirror.internal_topics.commands import PROGRESS_PARTITION, control_topic
from sparkmirror.internal_topics.gaps import Gap, encode_gap, gaps_topic
from sparkmirror.internal_topics.position_metadata import (
    Mark,
    PositionMetadata,
    TargetMark,
    encode_metadata,
)
from sparkmirror.model import SEND_FAILED, FlowSettings, Halt, MirrorMode, TopicPartition
from sparkmirror.records.header import Passing, batches
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.producer import Acknowledged, Producer

__all__ = ["SlotSink", "SlotSummary"]

log = logging.getLogger(__name__)

_Told = tuple[int, Mark, TargetMark]
_COMMIT_LOG_S = 30.0
_LINGER_S = 0.05
_BLOCKED_S = 0.1
# How long a cluster that has just started may take to give a producer id.
_IDENTITY_S = 2.0


@dataclass(frozen=True, slots=True)
class SlotSummary:
    """What one task wrote; its commit message to the driver."""

    slot: int
    epoch: int
    records: int
    bytes: int


class SlotSink:
    """Consumes the rows of one task."""

    def __init__(self, flow: FlowSettings) -> None:
        self.flow = flow
        self.slot = -1
        self.epoch = -1
        self._reports = SinkReports(flow.name)
        self._gaps = TopicPartition(gaps_topic(flow), 0)
        self._lanes: dict[TopicPartition, Lane] = {}
        self._index = LaneIndex()
        self._own_halts: set[str] = set()
        self._ending = False
        self._frames: FrameReader | None = None
        self._last_commit = time.monotonic()
        self._commits = Commits(flow)
        self._committing: dict[Lane, _Told] = {}
        self._covered: TakenSyncs = NO_SYNCS
        self._producer = producer = producer_of(flow)
        self._held_back = HeldBack(producer, flow.name)
        producer.forget_halts()
        producer.drops = flow.records.drop_failed
        self._refusals = RefusedRecords(flow, self._append_beside, producer.errors)
        producer.refusals = self._refusals
        self._ends = TargetEnds(flow)
        producer.gate = self._ends
        syncs = flow.offset_syncs
        self._syncs = SlotSyncs(syncs.lag_max, SyncSender.of(flow)) if syncs.enabled else None
        self._reports.errors_before = dict(self._producer.errors)
        self._reports.joined_before = self._producer.joining.counts
        self._pause: PauseWatch | None = None

    # -- the task --------------------------------------------------------------------------

    def run(self, batches: Iterator[Any]) -> SlotSummary:
        """Write all rows of ``batches`` (pyarrow.RecordBatch), then everything is acknowledged
        and committed.
        """
        try:
            for batch in batches:
                for row in range(batch.num_rows):
                    self._take(*read_row(batch, row))
                self._pump()
                self._housekeep()
                self._linger()
            self._finish()
        except BaseException:
            # The state of requests under way is unknown: the next task starts with a fresh
            # producer, and with the positions committed so far.
            drop_producer(self.flow)
            raise
        finally:
            self._close()
        return SlotSummary(
            self.slot,
            self.epoch,
            sum(lane.records for lane in self._lanes.values()),
            sum(lane.bytes for lane in self._lanes.values()),
        )

    def _close(self) -> None:
        self._producer.before_send = _at_once
        self._commits.close()

    def _take(
        self,
        chunks: list[Chunk],
        records: memoryview,
        notes: SlotNotes | None,
        reference: Reference | None,
    ) -> None:
        if notes is not None:
            self._hear(notes)
        if reference is not None:
            if self._frames is None:
                raise MirrorError(
                    "a row refers to memory that this process never mapped.",
                    where=f"flow {self.flow.name}",
                )
            records = self._frames.records(reference)
        self._prepare(chunks)
        now_ms = time.time() * 1000
        for chunk in self._portions(chunks, records):
            lane = self._lane(chunk)
            if lane.halt is not None:
                continue
            lane.check_next(chunk.base_offset)
            places = Places(chunk.source_runs, chunk.record_count)
            pending = Pending(
                lane, chunk.next_offset, chunk.record_count, chunk.size, chunk.timestamp_ms, -1, 0,
                places, leader_epoch=chunk.leader_epoch, first_offset=chunk.base_offset,
            )  # fmt: skip
            pending.targets = chunk.targets
            lane.queue.append(pending)
            if chunk.size:
                part = records[chunk.start : chunk.start + chunk.size]
                pending.oldest_ms = oldest_ms(self._write(pending, part), chunk.timestamp_ms)
                if chunk.timestamp_ms >= 0:
                    pending.note_ages(lane.age, now_ms)
            self._advance(lane)

    def _prepare(self, chunks: list[Chunk]) -> None:
        """What is to be done before the chunks of a row are written."""

    def _portions(self, chunks: list[Chunk], records: memoryview) -> Iterable[Chunk]:
        """The chunks of a row as they are written, one after the other."""
        return chunks

    def _write(self, pending: Pending, part: memoryview) -> list[Passing]:
        """Queue the batches of one chunk; what they are."""
        cuts = batches(part)
        pending.batches_left = len(cuts)
        self._reports.batches += len(cuts)
        append = self._producer.append
        records_end = 0
        for (start, end, _, records), target in zip(cuts, targets(pending, cuts), strict=True):
            records_end += records
            append(target, part[start:end], (pending, records_end), records)
        return cuts

    def _advance(self, lane: Lane) -> None:
        for done in lane.settle():
            if self._syncs is not None and done.mark is not None:
                self._syncs.settled(lane.source, done.places, done.mark.topic_id, lane.log.topic_id)

    def _lane(self, chunk: Chunk) -> Lane:
        source = TopicPartition(chunk.topic, chunk.partition)
        lane = self._lanes.get(source)
        if lane is None:
            target = TopicPartition(chunk.remote_topic, chunk.partition)
            lane = self._lanes[source] = self._index.add(Lane(source, target))
            self._producer.routes.add_topics([chunk.remote_topic])
        return lane

    def _hear(self, notes: SlotNotes) -> None:
        """Notes of the source slot: who it is (first row), and what has changed since."""
        if notes.hello is not None:
            self._begin(notes.hello)
        if notes.member is not None:
            self._commits.member(notes.member)
        if notes.paused is not None:
            self._reports.paused = notes.paused
        if notes.errors is not None:
            self._reports.source_errors = notes.errors
        for one in notes.tried:
            self._try_again(self._lanes[one.source], one.attempt)
        for gap in notes.gaps:
            self._note_gap(gap)
        for halted in notes.halts:
            found = self._lanes.get(halted.source)
            if found is not None:
                found.source_halt = halted.halt
        if notes.hello is not None:
            self._begun()

    def _begun(self) -> None:
        """The first row's notes are taken in."""

    def _begin(self, hello: SlotHello) -> None:
        self.slot, self.epoch = hello.slot, hello.epoch
        self._reports.begin(hello)
        self._frames = map_frames(hello.memory)
        self._watch_pauses(hello.owner)
        for one in hello.partitions:
            target = TopicPartition(one.remote_topic, one.source.partition)
            lane = Lane(
                one.source, target, one.position, one.committed, one.committed,
                target_end=one.target_end, mark=one.mark, log=one.log, written=one.written,
            )  # fmt: skip
            lane.reached = max(one.target_end, lane.log.epoch_offset)
            self._lanes[one.source] = self._index.add(lane)
        if self.flow.mode is not MirrorMode.MM1:
            self._ends.begin(self._lanes.values())
        self._producer.routes.add_topics(self._index.topics)
        apart = not (self.flow.exactly_once or self.flow.records.used)
        if apart and self._frames is not None:
            self._held_back.begin([lane.target for lane in self._lanes.values()], self._frames)
        self._record_beginning()

    def _try_again(self, lane: Lane, attempt: int) -> None:
        """Take what comes from now on: the source has gone back to the lane's position."""
        self._producer.forget_halts(lane.blocked)
        lane.halt, lane.blocked, lane.attempt = None, (), attempt
        self._index.halts_seen = 0

    def _note_gap(self, note: GapNote) -> None:
        """Write a gap down; the position moves past it when its record is acknowledged."""
        gap = note.gap
        lane = self._lanes[gap.source]
        pending: Pending | None = None
        if gap.resumed_at is not None:
            if lane.halt is not None:
                return  # found again when the partition is tried again
            pending = gap_pending(lane, note)
            lane.queue.append(pending)
        self._write_gap(gap, pending)

    def _write_gap(self, gap: Gap, pending: Pending | None) -> None:
        if pending is not None:
            pending.wait_for(self._gaps)
        self._append_record(self._gaps, *encode_gap(gap), pending)

    def _record_beginning(self) -> None:
        """Before anything is written: where the target's logs end, and who goes on there.

        What is written until the first commit can then be told from what others write, should
        this process die (`data.read.resume`).
        """
        known = [lane for lane in self._lanes.values() if lane.target_end >= 0]
        if not known or self._producer.identify(_IDENTITY_S) is None:
            return
        for lane in known:
            lane.committed = -1
        with _not_this_time():
            self._commit()
            # The first records need it, and meanwhile the commit is under way.
            self._producer.routes.refresh_if_due()
            self._committed(wait=True)

    def _watch_pauses(self, owner: Owner | None) -> None:
        """Write nothing after a pause before a look at who has the flow."""
        if owner is None:
            return
        self._pause = PauseWatch(
            self.flow, owner.run_id, owner.control_offset, owner.claim_term, rest=self._rest
        )
        self._producer.before_send = self._pause.before_write

    def _rest(self, seconds: float) -> None:
        """Between two questions to a cluster that is away, for as long as Spark waits for us."""
        self._check_spark()
        time.sleep(seconds)

    # -- acknowledgements ------------------------------------------------------------------

    def _pump(self) -> None:
        self._settle(self._producer.pump(0.0))
        patient_until = time.monotonic() + _BLOCKED_S
        while self._full() or (
            self._producer.blocked
            and worker_pipes.input_fd() < 0
            and time.monotonic() < patient_until
        ):
            self._settle(self._producer.pump(_BLOCKED_S))
            self._housekeep()

    def _linger(self) -> None:
        """Send and take in acknowledgements until the next row is there.

        PySpark waits for rows alone: the rest of a row's batches would be sent, and
        acknowledgements seen, only with the next row. Where its input is unknown
        (`data.rows.worker_pipes`), `_pump` waits a moment to send the rest.
        """
        fd = worker_pipes.input_fd()
        while fd >= 0 and not self._producer.idle:
            self._settle(self._producer.pump(_LINGER_S, fd))
            if self._producer.woken:
                return
            self._housekeep()

    def _full(self) -> bool:
        """Whether enough waits for acknowledgements."""
        full = self._held_back.full(0 if self._frames is None else self._frames.leases)
        self._producer.impatient = full
        return full

    def _watch_ends(self) -> None:
        """See whether the target still has what it acknowledged."""
        self._ends.look(self._producer.routes)
        self._ends.settle(self._producer, counts=not self.flow.exactly_once)

    def _settle(self, acknowledged: list[Acknowledged]) -> None:
        now_ms = time.time() * 1000
        for ack in acknowledged:
            pending = acknowledge(ack)
            if pending is not None and not pending.batches_left:
                if pending.timestamp_ms >= 0:
                    self._reports.note_latency(now_ms, pending.timestamp_ms)
                    pending.note_ages(pending.lane.latency, now_ms)
                self._advance(pending.lane)
                if pending.lane.stuck:
                    self._ends.note_going_back(pending.lane)
        self._watch_ends()
        fenced, everything = self._commits.fenced, self.flow.records.used
        if fenced is not None or self._index.may_stop(self._producer.halted, again=everything):
            halts = self._producer.halts
            self._note_own_topics(halts)
            everything |= fenced is not None
            for lane in self._lanes.values() if everything else self._index.concerned(halts):
                if lane.halt is not None:
                    continue
                blocked = self._blocked(lane, halts)
                if blocked or fenced is not None:
                    lane.blocked = tuple(blocked)
                    lane.halt = fenced or self._judged(halts[blocked[0]])
                    lane.queue.clear()
                    log.error("%s", lane.halt.reason)

    def _halt_of(self, lane: Lane, failing: Mapping[TopicPartition, Halt]) -> Halt | None:
        """Why ``lane`` stands still; an attempt is told to be over once its position is final."""
        if lane.halt is not None:
            final = not lane.queue and self._commits.fenced is None
            again = lane.halt.retriable or self.flow.mode is MirrorMode.MM2
            attempt = lane.attempt if final else -1
            return replace(lane.halt, retriable=again, attempt=attempt)
        return lane.source_halt or _first(failing, lane.waits_for())

    def _judged(self, halt: Halt) -> Halt:
        """``halt``, or, as with MirrorMaker 1, the end of the whole mirror."""
        if self.flow.mode is MirrorMode.MM1 and not halt.retriable:
            return _send_failed(halt)
        return halt

    def _blocked(self, lane: Lane, halts: Mapping[TopicPartition, Halt]) -> list[TopicPartition]:
        """The halted partitions that a lane is written through: on the record path any one of its
        topic.
        """
        if self.flow.records.used:
            for tp in halts:
                if tp.topic == lane.target.topic or self.flow.records.handler:
                    return [tp]
        return [tp for tp in lane.waits_for() if tp in halts]

    def _note_own_topics(self, halts: Mapping[TopicPartition, Halt]) -> None:
        """Say once why a topic of the mirror itself takes no records; its data goes on."""
        for tp, halt in halts.items():
            if tp.topic not in self._index.topics and tp.topic not in self._own_halts:
                self._own_halts.add(tp.topic)
                log.error("flow %s: %s", self.flow.name, halt.reason)

    def _end_when_lost(self) -> None:
        """End the task when the target has lost records: its next attempt mends that first.

        Everything else is acknowledged and committed before. Raises `PartitionError`.
        """
        if self._ends.lost and not self._ending:
            self._ending = True
            self._finish()
            raise PartitionError(
                next(iter(self._ends.lost.values())), where=f"cluster {self.flow.target.alias}"
            )

    def _housekeep(self) -> None:
        self._check_spark()
        self._end_when_lost()
        if self._pause is not None:
            self._pause.tick()
        now = time.monotonic()
        self._held_back.look(now)
        with _not_this_time():
            self._committed(wait=False)
        if (now - self._last_commit) * 1000 >= self.flow.position_interval_ms:
            self._last_commit = now
            self._commit()
        self._report_if_due(now)

    def _check_spark(self) -> None:
        """Write nothing more once Spark has given the task up: the next attempt, which looks at
        where the target's logs end, would write the same again. Raises `ConnectionLost`.
        """
        if worker_pipes.abandoned():
            raise ConnectionLost("Spark has given up this attempt of the task")

    def _commit(self) -> None:
        """Begin to commit the positions that have moved, unless a commit is under way."""
        if self._commits.under_way:
            return
        if self._pause is not None:
            self._pause.before_write()
        due: dict[Lane, _Told] = {
            lane: (lane.position, lane.mark, lane.log)
            for lane in self._lanes.values()
            if lane.position >= 0 and lane.due
        }
        if not due:
            if self._syncs is not None:
                self._syncs.publish()  # of many partitions, some at a time
            return
        mm1 = self._commits.by_source
        offsets = {
            (lane.source if mm1 else lane.target): (
                position,
                "" if mm1 else self._metadata(lane, mark),
            )
            for lane, (position, mark, _) in due.items()
        }
        epochs = {lane.source: mark.leader_epoch for lane, (_, mark, _) in due.items() if mm1}
        self._committing = due
        if self._syncs is not None and self._covered == NO_SYNCS:
            # What is settled from now on is not covered by these positions.
            self._covered = self._syncs.take()
        self._commits.begin(offsets, epochs)

    def _committed(self, *, wait: bool) -> None:
        """Take in what came of the commit under way, if that is known by now or we ``wait``.

        Raises `MirrorError` or `ConnectionLost` when it failed.
        """
        if self._commits.outcome(wait=wait):
            for lane, told in self._committing.items():
                lane.committed, lane.marked, lane.logged = told
            if self._syncs is not None:
                self._syncs.publish(self._covered)
            self._covered = NO_SYNCS

    def _commit_now(self) -> None:
        """Commit what is due, and wait for that. Raises as `_committed`."""
        self._committed(wait=True)
        self._commit()
        self._committed(wait=True)

    def _commit_surely(self) -> None:
        """Commit however long the cluster is away: a failed task would write its records again."""
        told_at = float("-inf")
        while True:
            self._check_spark()
            try:
                self._commit_now()
            except (Unreachable, ConnectionLost) as error:
                now = time.monotonic()
                if now - told_at >= _COMMIT_LOG_S:
                    told_at = now
                    log.warning("positions wait for their cluster to come back: %s", error)
                time.sleep(self._commits.routes.client.retry_backoff_ms / 1000)
            else:
                return

    def _metadata(self, lane: Lane, mark: Mark) -> str:
        identity = self._producer.identity_of(lane.target)
        # Where records are left out, those at the target do not count as many offsets.
        counts = identity is not None and not self._refusals.may_leave_out(lane.source.topic)
        producer_id = identity[0] if identity is not None and counts else -1
        return encode_metadata(PositionMetadata(mark, lane.log, lane.target_end, producer_id))

    # -- reports ---------------------------------------------------------------------------

    def _report_if_due(self, now: float) -> None:
        if self._reports.due(now):
            self._report(now)

    def _report(self, now: float) -> None:
        failing = self._producer.failing
        halts = {lane: self._halt_of(lane, failing) for lane in self._lanes.values()}
        report = self._reports.record(
            now, halts, self._producer.errors, self._producer.joining.counts
        )
        if report is not None:
            self._append_record(
                TopicPartition(control_topic(self.flow), PROGRESS_PARTITION), *report
            )

    def _append_record(
        self, tp: TopicPartition, key: bytes, value: bytes | None, token: Pending | None = None
    ) -> None:
        record = Record(0, int(time.time() * 1000), key, value, ())
        self._append_beside(tp, memoryview(encode_batch([record], codec=0)), token)

    def _append_beside(self, tp: TopicPartition, batch: memoryview, token: object) -> None:
        """Queue a batch of our own; ``token`` is the chunk that also waits for it, if any."""
        if isinstance(token, Pending):
            self._index.waits_beside(token.lane)
        producer = self._producer_for(tp)
        producer.routes.add_topics([tp.topic])
        producer.append(tp, batch, token)

    def _producer_for(self, tp: TopicPartition) -> Producer:
        """Who writes records of our own."""
        return self._producer

    # -- the end of the epoch --------------------------------------------------------------

    def _finish(self) -> None:
        """Everything acknowledged, committed, and saved for a MirrorMaker 2 to find."""
        # A partition that fails must not keep the next epoch from all others.
        self._producer.impatient = True
        while not self._producer.idle:
            self._settle(self._producer.pump(0.2))
            self._housekeep()
        self._commit_surely()
        if self._syncs is not None:
            self._syncs.finish()
        self._save_connect_offsets()
        self._reports.tell_anyway()
        self._report(time.monotonic())
        while not self._producer.idle:
            self._check_spark()
            self._settle(self._producer.pump(0.2))

    def _save_connect_offsets(self) -> int:
        """Queue positions in MirrorMaker 2's format; how many have moved."""
        count = 0
        if self.flow.mode is MirrorMode.MM1:
            return count
        for lane in self._lanes.values():
            if lane.position == lane.saved or max(lane.position, lane.saved) <= 0:
                continue
            self._append_record(*connect_record(self.flow, lane.source, lane.position))
            lane.saved = lane.position
            count += 1
        return count


@contextmanager
def _not_this_time() -> Iterator[None]:
    """Log why positions are not committed: the next round commits the same or later ones.

    `Fenced` ends the task.
    """
    try:
        yield
    except Fenced:
        raise
    except (MirrorError, ConnectionLost) as error:
        log.warning("positions not committed this time: %s", error)


def _at_once() -> None:
    """No task writes: whatever the producer still sends needs no look."""


def _first(
    halts: Mapping[TopicPartition, Halt], partitions: Iterable[TopicPartition]
) -> Halt | None:
    return next((halts[tp] for tp in partitions if tp in halts), None) if halts else None


def _send_failed(halt: Halt) -> Halt:
    return Halt(SEND_FAILED, f"{halt.reason} ({halt.code})")
