"""What the parts of one sink share: its lanes, its producers, and how it writes other records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from sparkmirror.data.rows import worker_pipes
from sparkmirror.data.rows.notes import GapNote, LeftNote, PartitionHello, SlotHello
from sparkmirror.data.rows.rows import Chunk
from sparkmirror.data.rows.shared_frames import FrameReader, map_frames
from sparkmirror.data.write.bad_records import RefusedRecords
from sparkmirror.data.write.delivery import ComeRound
from sparkmirror.data.write.offset_sync_writer import SlotSyncs, SyncSender
from sparkmirror.data.write.partition_state import Lane, LaneIndex, Pending, gap_pending, targets
from sparkmirror.data.write.position_commits import connect_record, storage_topic
from sparkmirror.data.write.producers import producer_of
from sparkmirror.data.write.progress import HaltMessages, Releases, SinkReports
from sparkmirror.data.write.target_ends import TargetEnds
from sparkmirror.errors import Defect
from sparkmirror.internal_topics.commands import PROGRESS_PARTITION, control_topic
from sparkmirror.internal_topics.gaps import Gap, encode_gap, gaps_topic
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.transforms import Transformed
from sparkmirror.progress import Halt
from sparkmirror.records.codecs import NONE
from sparkmirror.records.header import Passing, batches
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.backlog import Acknowledged

__all__ = ["SinkTask"]

_BLOCKED_S = 0.1
# How long a partition waits for its last offset syncs before another slot may have it.
_SYNCS_S = 2.0
# A topic's name has at most 249 characters: such a batch is a tenth of what brokers accept.
_SAVED_TOGETHER = 200


class SinkTask:
    """The state of one task. One owner thread.

    ``producer`` writes the records, ``reporter`` the progress reports. An exactly-once delivery
    replaces ``producer`` by its own. ``fenced``: why nothing more may be written, None if it may.
    ``failed``: how many attempts of the task have failed before this one. ``leaving``: lanes that
    another slot gets, each with the version of the order, and until when (monotonic seconds) it
    waits for its offset syncs; None: not all of it is committed yet. ``uncommitted_gaps``: those of
    the open transaction for whose records no position waits, because their partitions stop.
    """

    def __init__(self, flow: FlowSettings, failed: int = 0) -> None:
        self.flow = flow
        self.failed = failed
        self.slot = -1
        self.epoch = -1
        self.lanes: dict[TopicPartition, Lane] = {}
        self.leaving: dict[Lane, tuple[int, float | None]] = {}
        self.uncommitted_gaps: list[Gap] = []
        self.index = LaneIndex()
        self.frames: FrameReader | None = None
        self.fenced: Halt | None = None
        self.producer = self.reporter = producer_of(flow)
        self.producer.backlog.forget_halts()
        self.reports = SinkReports(flow.name)
        self.reports.errors_before = dict(self.producer.backlog.errors)
        self.reports.joined_before = self.producer.joining.counts
        self._messages = HaltMessages(None)
        self._releases = Releases(signed=flow.signed)
        self._left: dict[TopicPartition, tuple[int, int]] = {}
        self.ends = TargetEnds(flow)
        self.syncs = self.new_syncs() if flow.offset_syncs.enabled else None
        self._gaps = TopicPartition(gaps_topic(flow), 0)
        self._control = TopicPartition(control_topic(flow), PROGRESS_PARTITION)
        self._names = FlowTopics(flow)
        self._transformed = Transformed(flow)

    def begin(self, hello: SlotHello) -> None:
        """Take over from the source who the slot is, and where its partitions begin."""
        self.slot, self.epoch = hello.slot, hello.epoch
        self.reports.begin(hello)
        self._releases.begin(hello)
        self.frames = map_frames(hello.memory)
        self._messages = HaltMessages(self.frames)
        self.add(hello.partitions)

    def add(self, partitions: Iterable[PartitionHello]) -> list[Lane]:
        """Open lanes where the source says that partitions begin; returns them."""
        added = []
        for one in partitions:
            if one.source in self.lanes:
                raise Defect(f"{one.source} is added to a slot that has it")
            target = TopicPartition(one.remote_topic, one.source.partition)
            lane = Lane(
                one.source, target, one.position, one.committed,
                saved=-1 if one.committed > 0 else 0,
                target_end=one.target_end, mark=one.mark, log=one.log, written=one.written,
                routed=self._transformed.routes(one.source.topic),
            )  # fmt: skip
            lane.reached = max(one.target_end, lane.log.epoch_offset)
            lane.records, lane.bytes = self._left.pop(one.source, (0, 0))
            self.lanes[one.source] = self.index.add(lane)
            added.append(lane)
        self._count_left()
        if self.flow.mode is not MirrorMode.MM1:
            self.ends.begin(added)
        return added

    @property
    def topics(self) -> set[str]:
        """The topics of which the producer must know leaders and partitions from the start."""
        positions = () if self.flow.mode is MirrorMode.MM1 else (storage_topic(self.flow),)
        return {*self.index.topics, *positions}

    def search(self, lanes: Iterable[Lane]) -> None:
        """Search the leaders of further remote partitions; the other lanes do not wait for it."""
        connections = self.producer.connections
        for lane in lanes:
            connections.topics.add(lane.target.topic)
            connections.mark_stale(lane.target)

    def leave(self, note: LeftNote) -> Lane:
        """Expect no more chunks of a partition; what is in flight is written and committed.

        The delivery calls `release` then, if another slot gets the partition. Returns its lane.
        """
        lane = self.lanes[note.source]
        lane.left = True
        if note.order:
            # Committed once more: whoever can still do that after the order is no zombie.
            lane.marked = None
            self.leaving[lane] = note.order, None
        else:
            self.ends.forget(lane)
        return lane

    def release(self, lanes: Iterable[Lane], now: float) -> None:
        """Give up ``lanes`` of `leaving`, of which everything is committed, and report it.

        Not before their offset syncs are written: the next slot's must follow them. If those cannot
        be written, a later call does it. ``now``: monotonic seconds.
        """
        released = []
        for lane in lanes:
            order, until = self.leaving[lane]
            if until is None:
                until = now + _SYNCS_S
                self.leaving[lane] = order, until
                if self.syncs is not None:
                    self.syncs.leave(lane.source)
            if self.syncs is None or now >= until or self.syncs.written:
                released.append(LeftNote(lane.source, order))
                self._remove(lane)
        if released:
            self._count_left()
            self.write_releases(released)
            self.reports.report_anyway()  # without them

    def _remove(self, lane: Lane) -> None:
        del self.leaving[lane], self.lanes[lane.source]
        self._left[lane.source] = lane.records, lane.bytes
        self.index.remove(lane)
        self.ends.forget(lane)
        self.forget_halts(lane)

    def forget_halts(self, lane: Lane) -> None:
        """Let the target partitions that stopped ``lane`` be written to again.

        Exactly-once needs nothing for that: a refusal that stops a lane comes with a new producer.
        A halt in its backlog is one of the open transaction. What other lanes have written there
        since was dropped, and their positions must not be committed: only the halt shows it.
        """
        if not self.flow.exactly_once:
            self.producer.backlog.forget_halts(lane.blocked)

    def write_releases(self, released: Iterable[LeftNote]) -> None:
        """Report that this slot has given up partitions for others."""
        record = self._releases.record(released)
        if record is not None:
            self._tell_driver(*record)

    def _tell_driver(self, key: bytes, value: bytes | None) -> None:
        """Queue a record for the driver. If an earlier one was refused, this one may pass."""
        backlog = self.reporter.backlog
        if self._control in backlog.halts:
            backlog.forget_halts([self._control])
        self._append_record(self._control, key, value)

    def _count_left(self) -> None:
        counts = self._left.values()
        self.reports.left_counts = sum(one[0] for one in counts), sum(one[1] for one in counts)

    def counts(self) -> tuple[int, int]:
        """Records and bytes that this task has written."""
        records, size = self.reports.left_counts
        lanes = self.lanes.values()
        return (
            records + sum(lane.records for lane in lanes),
            size + sum(lane.bytes for lane in lanes),
        )

    def new_syncs(self) -> SlotSyncs:
        """New offset syncs: the first one of each partition is due at once."""
        return SlotSyncs(self.flow.offset_syncs.lag_max, SyncSender.of(self.flow))

    def refusals(self, errors: dict[str, int]) -> RefusedRecords:
        """What takes over records that the target refuses, and counts them in ``errors``."""
        return RefusedRecords(self.flow, self.append_beside, errors)

    @property
    def leases(self) -> int:
        """How many frames of the shared memory this sink uses."""
        return 0 if self.frames is None else self.frames.leases

    # -- records ---------------------------------------------------------------------------

    def lane_of(self, chunk: Chunk) -> Lane:
        """The lane of a chunk's partition."""
        source = TopicPartition(chunk.topic, chunk.partition)
        lane = self.lanes.get(source)
        if lane is None:
            if source in self._left:
                raise Defect(f"records of {source} arrive after another slot has got it")
            target = TopicPartition(chunk.remote_topic, chunk.partition)
            routed = self._transformed.routes(source.topic)
            lane = self.lanes[source] = self.index.add(Lane(source, target, routed=routed))
            self.producer.connections.add_topics([chunk.remote_topic])
        return lane

    def write(self, pending: Pending, part: memoryview) -> list[Passing]:
        """Queue the batches of one chunk; returns them."""
        cuts = batches(part)
        pending.batches_left = len(cuts)
        self.reports.batches += len(cuts)
        append = self.producer.backlog.append
        records_end = 0
        places = targets(pending, cuts)
        if pending.lane.routed:
            self._go_apart(pending, places)
        for (start, end, _, records), target in zip(cuts, places, strict=True):
            records_end += records
            append(target, part[start:end], (pending, records_end), records)
        return cuts

    def _go_apart(self, pending: Pending, places: Iterable[TopicPartition]) -> None:
        """The position waits for all partitions that records are routed to."""
        pending.beside = {*(pending.beside or ()), *places}
        self.index.waits_beside(pending.lane)
        topics = {tp.topic for tp in places}
        self.index.topics |= topics
        self.producer.connections.add_topics(topics)

    def advance(self, lane: Lane) -> None:
        """Move the lane's position past what is acknowledged; note offset syncs for that."""
        for done in lane.settle():
            if self.syncs is not None and done.mark is not None:
                ids = done.mark.topic_id, lane.log.topic_id
                self.syncs.settled(lane.source, done.offsets, *ids, remote=self.mapped(lane))

    def mapped(self, lane: Lane) -> str:
        """The name that a map gave the lane's topic; empty if the policy named it."""
        return self._names.mapped(lane.source.topic) or ""

    def send(
        self,
        settle: Callable[[list[Acknowledged]], None],
        come_round: ComeRound,
        full: Callable[[], bool],
    ) -> None:
        """Send and process acknowledgements until it is no longer ``full``.

        If the input is unknown, also wait a moment until the producer has sent what it holds.
        """
        settle(self.producer.pump(0.0))
        patient_until = time.monotonic() + _BLOCKED_S
        while full() or (
            self.producer.blocked
            and worker_pipes.input_fd() < 0
            and time.monotonic() < patient_until
        ):
            settle(self.producer.pump(_BLOCKED_S))
            come_round()

    # -- records of the mirror itself ------------------------------------------------------

    def note_gap(self, note: GapNote) -> None:
        """Write a gap record; the position moves past the gap when the record is acknowledged."""
        gap = note.gap
        lane = self.lanes[gap.source]
        pending: Pending | None = None
        if gap.resumed_at is not None:
            if lane.halt is not None:
                return  # it is found again when the partition is retried
            pending = gap_pending(lane, note)
            lane.queue.append(pending)
        elif self.flow.exactly_once:
            self.uncommitted_gaps.append(gap)
        self.write_gap(gap, pending)

    def write_gap(self, gap: Gap, pending: Pending | None) -> None:
        """Write the record of a gap; ``pending`` waits for it."""
        if pending is not None:
            pending.wait_for(self._gaps)
        mapped = self._names.mapped(gap.source.topic) is not None
        self._append_record(self._gaps, *encode_gap(gap, mapped=mapped), pending)

    def save_connect_offsets(self) -> int:
        """Queue positions in MirrorMaker 2's format; returns how many.

        Only those that have moved since this task wrote them. If their topic accepted no records
        meanwhile, those that have not moved are queued, too.
        """
        if self.flow.mode is MirrorMode.MM1:
            return 0
        backlog, topic = self.producer.backlog, storage_topic(self.flow)
        halted = [tp for tp in backlog.halts if tp.topic == topic]
        if halted:
            backlog.forget_halts(halted)
            self.forget_saved()
        # The setting only counts when the topic is created: it may be Connect's, with any number.
        known = self.producer.connections.partitions_of(topic)
        partitions = known or max(1, self.flow.offset_storage_partitions)
        now_ms, count = int(time.time() * 1000), 0
        records: dict[TopicPartition, list[Record]] = {}
        for lane in self.lanes.values():
            if lane.position < 0 or lane.position == lane.saved:
                continue
            # Java's MirrorMaker 2 with the same RegexRouter keeps positions by source partition.
            remote = self.mapped(lane) if self.flow.topics.map else ""
            tp, key, value = connect_record(
                self.flow, lane.source, lane.position, remote, partitions=partitions
            )
            record = Record(len(records.setdefault(tp, [])), now_ms, key, value, ())
            records[tp].append(record)
            lane.saved = lane.position
            count += 1
            if len(records[tp]) == _SAVED_TOGETHER:
                self._append_batch(tp, records.pop(tp))
        for tp, together in records.items():
            self._append_batch(tp, together)
        return count

    def forget_saved(self) -> None:
        """Note that positions in MirrorMaker 2's format may be lost: they are written again."""
        for lane in self.lanes.values():
            lane.saved = -1

    def append_beside(self, tp: TopicPartition, batch: memoryview, token: object) -> None:
        """Queue a batch of the mirror itself; ``token``: the chunk that waits for it, if any."""
        if isinstance(token, Pending):
            self.index.waits_beside(token.lane)
        producer = self.reporter if tp.topic == self._control.topic else self.producer
        producer.connections.add_topics([tp.topic])
        producer.backlog.append(tp, batch, token)

    def _append_record(
        self, tp: TopicPartition, key: bytes, value: bytes | None, token: Pending | None = None
    ) -> None:
        record = Record(0, int(time.time() * 1000), key, value, ())
        self._append_batch(tp, [record], token)

    def _append_batch(
        self, tp: TopicPartition, records: list[Record], token: Pending | None = None
    ) -> None:
        self.append_beside(tp, memoryview(encode_batch(records, codec=NONE)), token)

    # -- reports ---------------------------------------------------------------------------

    def report_if_due(self, now: float) -> None:
        """Report progress once a second. ``now``: monotonic seconds."""
        if self.reports.due(now):
            self.report(now)

    def report(self, now: float) -> None:
        """Report progress, if anything is new; tell the source what was given up."""
        failing = self.producer.backlog.failing
        halts = {lane: self._halt_of(lane, failing) for lane in self.lanes.values()}
        self._messages.tell(halts)
        report = self.reports.record(
            now, halts, self.producer.backlog.errors, self.producer.joining.counts
        )
        for piece in self.reports.take_pieces():
            self._tell_driver(*piece)
        if report is not None:
            self._tell_driver(*report)

    def _halt_of(self, lane: Lane, failing: Mapping[TopicPartition, Halt]) -> Halt | None:
        """Why ``lane`` is stopped; its attempt is reported as ended once its position is final."""
        if lane.left:
            return None
        if lane.halt is not None:
            final = not lane.queue and self.fenced is None
            # Before a repair is written down, a retry finds the loss again and ends the task. So a
            # final refusal waits for the next epoch, but not one that may pass in a moment.
            any_refusal = self.flow.mode is MirrorMode.MM2 and not lane.unrepaired
            again = lane.halt.retriable or any_refusal
            attempt = lane.attempt if final else -1
            return replace(lane.halt, retriable=again, attempt=attempt)
        found = lane.source_halt or _first(failing, lane.waits_for())
        if found is None and lane.retried is not None and time.monotonic() < lane.retried_until:
            # Else a partition that is refused for hours would seem to work for a moment, each time.
            return replace(lane.retried, retriable=True, attempt=-1)
        return found

    # -- Spark -----------------------------------------------------------------------------

    def check_spark(self) -> None:
        """Raise `ConnectionLost` if Spark has given up this attempt of the task.

        Nothing more may be written then: the next attempt reads where the target's logs end, and
        would write the same records again.
        """
        if worker_pipes.abandoned():
            raise ConnectionLost("Spark has given up this attempt of the task")

    def rest(self, seconds: float) -> None:
        """Pause between two requests to an unavailable cluster. Raises as `check_spark`."""
        self.check_spark()
        time.sleep(seconds)


def _first(
    halts: Mapping[TopicPartition, Halt], partitions: Iterable[TopicPartition]
) -> Halt | None:
    return next((halts[tp] for tp in partitions if tp in halts), None) if halts else None
