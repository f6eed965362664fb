"""The sink end of a slot: takes raw batches from Spark's rows, writes them, commits positions.

One `SlotSink` serves one task. It reads rows and notes. Its `Delivery` appends batches, settles
acknowledgements and commits positions. The producer outlives it (`data.write.producers`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkmirror.data.rows.arrivals import Arrivals
from sparkmirror.data.rows.notes import SlotNotes
from sparkmirror.data.rows.rows import RUNS_MAX, Chunk, read_row
from sparkmirror.data.rows.shared_frames import Reference
from sparkmirror.data.transform.failed_records import FailedRecords
from sparkmirror.data.write.ages import oldest_ms
from sparkmirror.data.write.at_least_once import AtLeastOnce
from sparkmirror.data.write.chunk_offsets import ChunkOffsets
from sparkmirror.data.write.delivery import ComeRound, Delivery
from sparkmirror.data.write.partition_state import Lane, Pending, divided_at
from sparkmirror.data.write.producers import drop_producer
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.data.write.topic_requests import TopicRequests
from sparkmirror.errors import MirrorError, TargetLost
from sparkmirror.progress import TransformCounts
from sparkmirror.records.header_columns import Int64s
from sparkmirror.settings import FlowSettings

if TYPE_CHECKING:
    from sparkmirror.data.transform.pack import Packed, Packer

__all__ = ["SlotSink", "SlotSummary"]


log = logging.getLogger(__name__)

# How long rows of the ring may be taken before what they hold is sent.
_UNSENT_S = 0.005
# A retry that fails again shows it within this time: a request that nobody answers takes half a
# minute, and the producer reports what has failed for ten seconds.
_RETRIED_TOLD_S = 60.0
# The source retries every second or more, and a broker returns its errors at once.
_FETCHED_TOLD_S = 5.0


@dataclass(frozen=True, slots=True)
class SlotSummary:
    """What one task wrote; its commit message to the driver."""

    slot: int
    epoch: int
    records: int
    bytes: int


class SlotSink:
    """Consumes the rows of one task, of which ``failed`` attempts have failed before.

    ``reasons``: where the driver says why a transform failed (`data.transform.reasons`).
    """

    def __init__(self, flow: FlowSettings, failed: int = 0, reasons: str = "") -> None:
        self.flow = flow
        self._task = SinkTask(flow, failed)
        self._delivery = _delivery(self._task)
        self._ending = False
        self._requests = TopicRequests(self._task, self._come_round)
        self._packer = _packer(flow, reasons, self._requests, self._come_round)
        self._counts: dict[str, TransformCounts] = {}
        self._arrivals = Arrivals(self._task.check_spark)

    # -- the task --------------------------------------------------------------------------

    def run(self, batches: Iterator[Any]) -> SlotSummary:
        """Write all rows of ``batches`` (pyarrow.RecordBatch).

        Returns when everything is acknowledged and committed.
        """
        delivery = self._delivery
        try:
            for batch in self._arrivals.messages(batches):
                self._take_message(batch)
                delivery.pump(self._housekeep)
                self._housekeep()
                delivery.linger(self._housekeep)
            if self._packer is not None:
                self._packer.finish()
            self._finish()
        except BaseException:
            # The state of requests in flight is unknown: the next task starts with a new
            # producer, and with the positions committed so far.
            drop_producer(self.flow)
            raise
        finally:
            delivery.close()
            self._arrivals.close()
            self._requests.close()
            if self._packer is not None:
                self._packer.close()
        return SlotSummary(self._task.slot, self._task.epoch, *self._task.counts())

    def _take_message(self, batch: Any | None) -> None:
        """Process the rows of ``batch`` in order, and what is in the ring."""
        if self._packer is None or batch is None:
            due = time.monotonic() + _UNSENT_S
            for row in self._arrivals.rows(batch):
                self._take(*row)
                # A source that keeps up leaves no end of them.
                if time.monotonic() >= due:
                    self._come_round()
                    due = time.monotonic() + _UNSENT_S
            return
        for part in self._packer.parts(batch):
            if isinstance(part, int):
                self._take(*read_row(batch, part))
            else:
                self._take_packed(part)

    def _take(
        self,
        chunks: list[Chunk],
        records: memoryview,
        notes: SlotNotes | None,
        reference: Reference | None,
    ) -> None:
        task = self._task
        if notes is not None:
            self._on_notes(notes)
        if reference is not None:
            if task.frames is None:
                raise MirrorError(
                    "a row refers to memory that this process never mapped.",
                    where=f"flow {self.flow.name}",
                )
            records = task.frames.records(reference)
        if self._packer is not None:
            chunks = self._packer.hold(chunks, records)
        self._write(chunks, records)

    def _write(
        self,
        chunks: list[Chunk],
        records: memoryview,
        failed: tuple[FailedRecords, ...] = (),
        sources: Int64s | None = None,
    ) -> None:
        """Queue ``chunks``. ``failed``, ``sources``: if it is one chunk, as in `Packed`."""
        task, delivery = self._task, self._delivery
        delivery.prepare(chunks)
        now_ms = time.time() * 1000
        lane_of, write, advance = task.lane_of, delivery.write, delivery.advance
        for chunk in delivery.portions(chunks, records):
            lane = lane_of(chunk)
            if lane.halt is not None:
                continue
            lane.check_next(chunk.base_offset)
            # Of routed records it is not known where they are.
            runs = () if lane.routed else chunk.source_runs[-RUNS_MAX:]
            count = 0 if lane.routed else chunk.record_count
            offsets = ChunkOffsets(runs, count)
            pending = Pending(
                lane, chunk.next_offset, chunk.record_count, chunk.size, chunk.timestamp_ms, -1, 0,
                offsets, leader_epoch=chunk.leader_epoch, first_offset=chunk.base_offset,
            )  # fmt: skip
            pending.targets, pending.sources = chunk.targets, sources
            lane.queue.append(pending)
            if chunk.size:
                part = records[chunk.start : chunk.start + chunk.size]
                pending.oldest_ms = oldest_ms(write(pending, part), chunk.timestamp_ms)
                if chunk.timestamp_ms >= 0:
                    pending.note_ages(lane.age, now_ms)
            if failed:
                # A divided chunk may be committed part by part.
                pending.failed, failed = divided_at(failed, chunk.next_offset)
                delivery.leave_out(pending)
            advance(lane)

    def _take_packed(self, packed: Packed) -> None:
        """Write a chunk that a transform has made; stop its partition if that failed."""
        lane = self._task.lane_of(packed.chunk)
        if lane.halt is not None:
            return
        self._count(packed.counts)
        if packed.chunk.next_offset > packed.chunk.base_offset:
            self._write([packed.chunk], packed.records, packed.failed, packed.sources)
        if packed.halt is not None and lane.halt is None:
            lane.halt = packed.halt
            log.error("%s", lane.halt.reason)

    def _count(self, counts: TransformCounts | None) -> None:
        """Report what a transform has done; counts of chunks that are dropped do not count."""
        if counts is not None:
            known = self._counts.get(counts.transform, TransformCounts(counts.transform))
            self._counts[counts.transform] = known.plus(counts)
            self._task.reports.transforms = tuple(self._counts.values())

    def _note_unpacked(self, seconds: Mapping[str, float]) -> None:
        """Report how long reading records took the source worker, by transform."""
        for name, unpack_s in seconds.items():
            known = self._counts.get(name, TransformCounts(name))
            self._counts[name] = replace(known, unpack_s=unpack_s)
        self._task.reports.transforms = tuple(self._counts.values())

    # -- notes of the source ---------------------------------------------------------------

    def _on_notes(self, notes: SlotNotes) -> None:
        """Process notes: who the slot is (first row), and what has changed since."""
        task = self._task
        if notes.hello is not None:
            task.begin(notes.hello)
            self._requests.begin(notes.hello)
            self._delivery.begin(notes.hello)
            self._arrivals.begin(notes.hello.ring)
        if notes.member is not None:
            self._delivery.join(notes.member)
        if notes.paused is not None:
            task.reports.paused = notes.paused
        if notes.throttles is not None:
            task.reports.throttles = notes.throttles
        if notes.unpacked is not None:
            self._note_unpacked(notes.unpacked)
        if notes.errors is not None:
            task.reports.source_errors = notes.errors
        if notes.added:
            self._delivery.add(task.add(notes.added))
        for one in notes.tried:
            self._try_again(task.lanes[one.source], one.attempt)
        for gap in notes.gaps:
            task.note_gap(gap)
        for halted in notes.halts:
            found = task.lanes.get(halted.source)
            if found is not None:
                before, found.source_halt = found.source_halt, halted.halt
                if before is not None and before.retriable and halted.halt is None:
                    found.retried, found.retried_until = before, time.monotonic() + _FETCHED_TOLD_S
        for left in notes.left:
            self._delivery.leave(task.leave(left))
        task.write_releases(notes.released)
        if notes.hello is not None:
            self._delivery.begun()

    def _try_again(self, lane: Lane, attempt: int) -> None:
        """Accept records again: the source has gone back to the lane's position."""
        self._task.forget_halts(lane)
        lane.retried, lane.retried_until = lane.halt, time.monotonic() + _RETRIED_TOLD_S
        lane.halt, lane.blocked, lane.attempt = None, (), attempt
        self._task.index.halts_seen = 0

    # -- rounds ----------------------------------------------------------------------------

    def _come_round(self) -> None:
        """A whole round, while nothing new is taken."""
        self._delivery.pump(self._housekeep)
        self._housekeep()

    def _housekeep(self) -> None:
        self._task.check_spark()
        self._end_when_lost()
        now = time.monotonic()
        self._delivery.tick(now)
        self._task.report_if_due(now)

    def _end_when_lost(self) -> None:
        """End the task if the target has lost records: its next attempt repairs that first.

        Everything else is acknowledged and committed before. Raises `TargetLost`.
        """
        lost = self._task.ends.lost
        if lost and not self._ending:
            self._ending = True
            self._finish()
            raise TargetLost(next(iter(lost.values())), where=f"cluster {self.flow.target.alias}")

    def _finish(self) -> None:
        """Wait until everything is acknowledged and committed, and the last report is written."""
        self._task.reports.note_end()
        self._delivery.finish(self._housekeep)
        self._task.reports.report_anyway()
        self._task.report(time.monotonic())
        self._delivery.drain()


def _packer(
    flow: FlowSettings, reasons: str, requests: TopicRequests, come_round: ComeRound
) -> Packer | None:
    if not flow.transforms:
        return None
    from sparkmirror.data.transform.pack import Packer  # noqa: PLC0415
    from sparkmirror.data.transform.reasons import Reasons  # noqa: PLC0415

    create = requests.ask if flow.routed_topics_max else None
    return Packer(flow, Reasons(reasons, flow.name), create=create, come_round=come_round)


def _delivery(task: SinkTask) -> Delivery:
    if not task.flow.exactly_once:
        return AtLeastOnce(task)
    # Most flows write without transactions.
    from sparkmirror.data.write.exactly_once import ExactlyOnce  # noqa: PLC0415

    return ExactlyOnce(task)
