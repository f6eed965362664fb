"""What a sink reports: to the driver how far it is, to its source what it has given up.

To the driver also which partitions it has released, for another slot. The driver reads reports from
the control topic. The source is on the same host: it gets messages in
the memory that both share. A source without that memory reads the reports.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence

from sparkmirror.data.coordination.sealed_options import run_key
from sparkmirror.data.rows.notes import LeftNote, SlotHello, encode_halted
from sparkmirror.data.rows.shared_frames import FrameReader
from sparkmirror.data.write.partition_state import Lane
from sparkmirror.internal_topics.epochs.releases import Release, encode_release
from sparkmirror.internal_topics.reports import (
    ROWS_MAX,
    ReportPiece,
    encode_piece,
    encode_progress,
)
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import TopicPartition
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

__all__ = ["HaltMessages", "Releases", "SinkReports"]

_INTERVAL_S = 1.0
_IDLE_INTERVAL_S = 10.0
# A row takes some microseconds, and the sink writes no records meanwhile.
_PIECES_MAX = 2

Halts = Mapping[Lane, Halt | None]
"""All lanes of a sink, in a fixed order, and why they are stopped."""


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
        self.left_counts = (0, 0)
        """Records and bytes of partitions that were released."""
        self._latency = Histogram()
        self._latency_ms_sum = 0
        self._began_ms = self._ended_ms = 0
        self._reported_at = 0.0
        self._time_ms = 0
        self._reported: tuple[int, ...] = ()
        self._pieces = _Pieces()

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
        halts: Halts,
        producer_errors: Mapping[str, int],
        joined: JoinCounts,
    ) -> tuple[bytes, bytes] | None:
        """Key and value of a report on these lanes; None if nothing is new.

        After 10 s, a report is written even so. Of more than `ROWS_MAX` lanes, it has the totals
        only; `take_pieces` has the rows, which must be written before it.
        """
        if self.slot < 0:
            return None
        records = sum(lane.records for lane in halts) + self.left_counts[0]
        errors = self._errors(producer_errors)
        halted = sum(1 for halt in halts.values() if halt)
        used = sum(one.current_bytes + one.backfill_bytes for one in self.throttles)
        waited = sum(one.current_wait_ms + one.backfill_wait_ms for one in self.throttles)
        transformed = sum(one.records_in for one in self.transforms)
        told = (records, sum(errors.values()), halted, self.paused, used, waited, transformed)
        due = told != self._reported or self._pieces.left
        if not due and now - self._reported_at < _IDLE_INTERVAL_S:
            return None
        whole = not self._reported
        # Readers take no report that is older than the one they have: if the clock is set back, it
        # must not stand still for them until it has caught up.
        earliest = self._time_ms + int((now - self._reported_at) * 1000) if self._time_ms else 0
        self._time_ms = max(int(time.time() * 1000), earliest)
        self._reported_at, self._reported = now, told
        pieces = self._pieces.collect(now, halts, whole=whole) if len(halts) > ROWS_MAX else 0
        progress = SlotProgress(
            flow=self.channel,
            slot=self.slot,
            worker=f"{os.uname().nodename}:{os.getpid()}:{self.epoch}",
            epoch=self.epoch,
            time_ms=self._time_ms,
            records=records,
            bytes=sum(lane.bytes for lane in halts) + self.left_counts[1],
            batches=self.batches,
            latency_counts=tuple(self._latency.counts),
            latency_ms_sum=self._latency_ms_sum,
            paused=self.paused,
            run_id=self.run_id,
            attempt=self.attempt,
            errors=errors,
            partitions=() if pieces else tuple(_partitions(halts.items(), steady_ms())),
            joined=joined.since(self.joined_before),
            throttles=self.throttles,
            transforms=self.transforms,
            pieces=pieces,
            began_ms=self._began_ms,
            ended_ms=self._ended_ms,
        )
        return encode_progress(progress)

    def take_pieces(self) -> list[tuple[bytes, bytes]]:
        """Keys and values of the pieces that belong before the newest `record`, once."""
        ticks_ms = steady_ms()
        return [
            encode_piece(
                ReportPiece(
                    self.channel,
                    self.slot,
                    self.run_id,
                    self.attempt,
                    number,
                    tuple(_partitions(lanes, ticks_ms)),
                )
            )
            for number, lanes in self._pieces.take()
        ]

    def _errors(self, producer_errors: Mapping[str, int]) -> dict[str, int]:
        errors = dict(self.source_errors)
        for code, count in producer_errors.items():
            new = count - self.errors_before.get(code, 0)
            if new:
                errors[code] = errors.get(code, 0) + new
        return errors


class _Pieces:
    """Which pieces of a large slot's report are written when.

    A piece is due when one of its lanes has changed, and every ten seconds. At most `_PIECES_MAX`
    of them are written with one report, those first that were written least recently; a ``whole``
    report has all that have changed. ``left``: whether some are due that were not written.
    """

    def __init__(self) -> None:
        self.left = False
        self._written: list[tuple[list[object], float]] = []
        self._due: list[tuple[int, Sequence[tuple[Lane, Halt | None]]]] = []

    def collect(self, now: float, halts: Halts, *, whole: bool) -> int:
        """Select what `take` returns; returns the number of pieces. ``now``: monotonic s."""
        rows = list(halts.items())
        cuts = [rows[at : at + ROWS_MAX] for at in range(0, len(rows), ROWS_MAX)]
        states: list[list[object]] = [
            [(lane, lane.records, lane.position, halt) for lane, halt in cut] for cut in cuts
        ]
        never: tuple[list[object], float] = [], float("-inf")
        del self._written[len(cuts) :]
        self._written += [never] * (len(cuts) - len(self._written))
        due = sorted(
            (at, number)
            for number, (state, at) in enumerate(self._written)
            if state != states[number] or now - at >= _IDLE_INTERVAL_S
        )
        # Readers need all of a new slot's pieces to show it.
        fresh = sum(at == never[1] for at, _ in due)
        chosen = due if whole else due[: max(_PIECES_MAX, fresh)]
        self.left = len(chosen) < len(due)
        for _, number in chosen:
            self._written[number] = states[number], now
        self._due = [(number, cuts[number]) for _, number in chosen]
        return len(cuts)

    def take(self) -> list[tuple[int, Sequence[tuple[Lane, Halt | None]]]]:
        """(number, lanes) of the pieces to write."""
        due, self._due = self._due, []
        return due


class Releases:
    """The releases of one task. ``signed``: whether the driver expects them to be signed."""

    def __init__(self, *, signed: bool) -> None:
        self._signer = Signer(run_key()) if signed else None
        self._hello: SlotHello | None = None
        self._order = 0
        self._released: set[TopicPartition] = set()

    def begin(self, hello: SlotHello) -> None:
        """Report as the slot in ``hello`` from now on."""
        self._hello = hello

    def record(self, released: Iterable[LeftNote]) -> tuple[bytes, bytes] | None:
        """Key and value of all releases of the newest order; None if that has no new ones.

        Compaction keeps one record of a slot. Nobody waits for releases of earlier orders.
        """
        hello, released = self._hello, list(released)
        newest = max((one.order for one in released), default=0)
        if hello is None or newest < max(1, self._order):
            return None
        if newest > self._order:
            self._order, self._released = newest, set()
        self._released |= {one.source for one in released if one.order == newest}
        partitions = tuple(sorted(self._released))
        who = hello.channel, hello.run_id, hello.slot, hello.epoch
        return encode_release(Release(*who, self._order, partitions), self._signer)


class HaltMessages:
    """Tells the source of the slot which partitions the sink has given up: each attempt once.

    The first message is there even if it is empty: the source then knows that it hears the sink.
    ``frames``: the memory that both share; None: the source reads the reports instead.
    """

    def __init__(self, frames: FrameReader | None) -> None:
        self._frames = frames
        self._told: dict[TopicPartition, int] = {}
        self._spoke = False

    def tell(self, halts: Halts) -> None:
        """Leave a message about what is new, if there is room; a later call tells the rest."""
        if self._frames is None or not self._frames.may_send:
            return
        halted = [
            PartitionProgress(*lane.source, lane.position, halt=halt)
            for lane, halt in halts.items()
            if halt is not None and 0 <= halt.attempt != self._told.get(lane.source)
        ]
        if not halted and self._spoke:
            return
        self._spoke = True
        message, count = encode_halted(halted)
        self._frames.send(message)
        for one in halted[:count]:
            if one.halt is not None:
                self._told[TopicPartition(one.topic, one.partition)] = one.halt.attempt


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
