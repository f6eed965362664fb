"""Reports how far a sink is; the driver reads them from the control topic once a second."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from sparkmirror.data.rows.notes import SlotHello
from sparkmirror.data.write.partition_state import Lane
from sparkmirror.internal_topics.commands import encode_progress
from sparkmirror.observe.figures.latency import Histogram
from sparkmirror.observe.figures.samples import steady_ms
from sparkmirror.progress import (
    Halt,
    JoinCounts,
    PartitionProgress,
    SlotProgress,
    ThrottleUse,
    TransformCounts,
)

__all__ = ["SinkReports"]

_INTERVAL_S = 1.0
_IDLE_INTERVAL_S = 10.0


class SinkReports:
    """The reports of one task. ``channel``: their key; the slot's first row sets it."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.slot = -1
        self.epoch = -1
        self.run_id = ""
        self.attempt = -1
        self.paused = False
        self.throttles: tuple[ThrottleUse, ...] = ()
        self.transforms: tuple[TransformCounts, ...] = ()
        self.batches = 0
        self.source_errors: Mapping[str, int] = {}
        self.errors_before: Mapping[str, int] = {}
        """Errors that the producer counted before this task; earlier reports contain them."""
        self.joined_before = JoinCounts()
        """The same for batches that were joined for a slow link."""
        self._latency = Histogram()
        self._latency_ms_sum = 0
        self._began_ms = self._ended_ms = 0
        self._reported_at = 0.0
        self._reported: tuple[int, ...] = ()

    def begin(self, hello: SlotHello) -> None:
        """Report as the slot in ``hello`` from now on."""
        self.channel, self.slot, self.epoch = hello.channel, hello.slot, hello.epoch
        self.run_id, self.attempt = hello.run_id, hello.attempt
        self._began_ms = int(time.time() * 1000)

    def note_end(self) -> None:
        """Note that no more rows arrive."""
        self._ended_ms = int(time.time() * 1000)

    def note_latency(self, now_ms: float, timestamp_ms: int) -> None:
        """Note that a chunk was acknowledged whose newest record has this timestamp."""
        self._latency.add(max(0.0, now_ms - timestamp_ms))
        self._latency_ms_sum += max(0, int(now_ms) - timestamp_ms)

    def due(self, now: float) -> bool:
        """Whether it is time for a report, if there is something new. ``now``: monotonic s."""
        return self.slot >= 0 and now - self._reported_at >= _INTERVAL_S

    def report_anyway(self) -> None:
        """Write the next report even if nothing has changed."""
        self._reported = ()

    def record(
        self,
        now: float,
        halts: Mapping[Lane, Halt | None],
        producer_errors: Mapping[str, int],
        joined: JoinCounts,
    ) -> tuple[bytes, bytes] | None:
        """Key and value of a report on these lanes; None if nothing is new.

        After 10 s, a report is written even so.
        """
        if self.slot < 0:
            return None
        records = sum(lane.records for lane in halts)
        errors = self._errors(producer_errors)
        halted = sum(1 for halt in halts.values() if halt)
        used = sum(one.current_bytes + one.backfill_bytes for one in self.throttles)
        waited = sum(one.current_wait_ms + one.backfill_wait_ms for one in self.throttles)
        transformed = sum(one.records_in for one in self.transforms)
        told = (records, sum(errors.values()), halted, self.paused, used, waited, transformed)
        if told == self._reported and now - self._reported_at < _IDLE_INTERVAL_S:
            return None
        self._reported_at, self._reported = now, told
        progress = SlotProgress(
            flow=self.channel,
            slot=self.slot,
            worker=f"{os.uname().nodename}:{os.getpid()}:{self.epoch}",
            epoch=self.epoch,
            time_ms=int(time.time() * 1000),
            records=records,
            bytes=sum(lane.bytes for lane in halts),
            batches=self.batches,
            latency_counts=tuple(self._latency.counts),
            latency_ms_sum=self._latency_ms_sum,
            paused=self.paused,
            run_id=self.run_id,
            attempt=self.attempt,
            errors=errors,
            partitions=tuple(_partitions(halts.items(), steady_ms())),
            joined=joined.since(self.joined_before),
            throttles=self.throttles,
            transforms=self.transforms,
            began_ms=self._began_ms,
            ended_ms=self._ended_ms,
        )
        return encode_progress(progress)

    def _errors(self, producer_errors: Mapping[str, int]) -> dict[str, int]:
        errors = dict(self.source_errors)
        for code, count in producer_errors.items():
            new = count - self.errors_before.get(code, 0)
            if new:
                errors[code] = errors.get(code, 0) + new
        return errors


def _partitions(
    halts: Iterable[tuple[Lane, Halt | None]], ticks_ms: int
) -> Iterable[PartitionProgress]:
    for lane, halt in halts:
        yield PartitionProgress(
            lane.source.topic,
            lane.source.partition,
            lane.position,
            lane.timestamp_ms,
            lane.records,
            lane.bytes,
            halt,
            lane.age.spread(ticks_ms),
            lane.latency.spread(ticks_ms),
        )
