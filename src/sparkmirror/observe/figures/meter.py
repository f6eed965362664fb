"""Computes the figures of one flow from the slots' reports.

Executor workers share nothing with the driver, so they send ``SlotProgress`` reports, whose
counters start at zero with each worker. The meter adds up differences per *counter set* (slot and
worker). So a replaced worker neither loses what the former one had counted nor makes a rate
negative. Lag also needs the source's end offsets, which the control plane provides.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.catch_up import CATCHING_UP_S, CatchUp
from sparkmirror.observe.figures.latency import BOUNDS_MS, Histogram
from sparkmirror.observe.figures.partitions import (
    PartitionRow,
    PartitionTotal,
    continued,
    lag_of,
    worst_s,
)
from sparkmirror.observe.figures.pauses import Pauses, PauseTotals
from sparkmirror.observe.figures.samples import steady_ms
from sparkmirror.observe.figures.transforms import TransformTotals
from sparkmirror.progress import Halt, JoinCounts, PartitionProgress, SlotProgress, TransformCounts

__all__ = ["FlowMeter", "FlowTotals", "FlowView", "TopicRow", "steady_ms", "wall_ms"]

# Reports arrive about once a second. After this long without one, rates start to fall.
REPORT_GAP_MS = 2_500
# Rates are computed over at least this span, so that a first report causes no peak.
RATE_SPAN_MS_MIN = 1_000
# Counter sets kept per slot: one is active, the others belong to workers that served the slot in an
# earlier epoch and may serve it again.
COUNTER_SETS_PER_SLOT = 32


_Lag = tuple[int | None, float | None]
"""(records, seconds); None for what is unknown."""


def wall_ms() -> int:
    """The wall clock in epoch milliseconds, comparable with record timestamps."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One source topic of a flow. ``lag_records`` and ``lag_s`` as in ``FlowView``."""

    topic: str
    partitions: int
    records: int
    bytes: int
    records_per_s: float
    bytes_per_s: float
    lag_records: int | None
    lag_s: float | None
    halted: int = 0


@dataclass(frozen=True, slots=True)
class FlowView:
    """One flow at one moment.

    ``state``: its state as users read it. ``source``, ``target``: the aliases of its clusters.
    ``records``, ``bytes`` and ``batches``: what this run has mirrored; rates and latencies cover
    the last few seconds. ``lag_records``: the sum of source end offset minus position over the
    partitions with a known position; ``None`` if no position is known yet, or not all of their
    ends. ``lag_bytes``: an estimate of it in bytes; ``None`` before this run has mirrored anything.
    ``lag_s``: 0 without lag, else the age of the oldest record that is not at the target, as far as
    known; ``None`` if unknown.
    ``to_go_s``: while the flow catches up, estimated seconds until the lag is zero; else ``None``.
    ``partitions``: the number assigned; ``partitions_reported``: the number with a known position.
    ``errors``: retried failures by code; ``halted``: the halted partitions and why.
    """

    flow: str
    state: str = "mirroring"
    source: str = ""
    target: str = ""
    records: int = 0
    bytes: int = 0
    batches: int = 0
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0
    lag_records: int | None = None
    lag_bytes: int | None = None
    lag_s: float | None = None
    to_go_s: float | None = None
    latency_ms_p50: float | None = None
    latency_ms_p99: float | None = None
    partitions: int = 0
    partitions_reported: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    halted: Mapping[TopicPartition, Halt] = field(default_factory=dict)
    topics: tuple[TopicRow, ...] = ()

    @property
    def catching_up(self) -> bool:
        """Whether the flow mirrors old records, so that their age is not a latency."""
        return self.lag_s is not None and self.lag_s >= CATCHING_UP_S


@dataclass(frozen=True, slots=True)
class FlowTotals:
    """Figures that only a scrape needs: each partition, and all latencies of this run.

    ``reported_ms``: when a report last came in, by this process's wall clock; 0: never.
    ``joined``: batches that were joined for the link. ``transforms``: records by transform.
    ``pauses``: between epochs.
    """

    partitions: tuple[PartitionRow, ...] = ()
    latency: Histogram = field(default_factory=Histogram)
    latency_ms_sum: int = 0
    reported_ms: int = 0
    joined: JoinCounts = JoinCounts()  # noqa: RUF009  (frozen)
    transforms: tuple[TransformCounts, ...] = ()
    pauses: PauseTotals = PauseTotals()  # noqa: RUF009  (frozen)


class _Curve:
    """Two running totals over time, and their slope over the last seconds."""

    __slots__ = ("_points", "_window_ms")

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._points: deque[tuple[int, int, int]] = deque()

    def push(self, now_ms: int, records: int, n_bytes: int) -> None:
        """Add the totals at ``now_ms``, which never decrease."""
        points = self._points
        if not points or now_ms - points[-1][0] > REPORT_GAP_MS:
            # Idle slots send no reports, so a report after a gap covers about the last second.
            _, *totals = points[-1] if points else (0, 0, 0)
            points.append((now_ms - RATE_SPAN_MS_MIN, totals[0], totals[1]))
        if points[-1][0] >= now_ms:
            points[-1] = (points[-1][0], records, n_bytes)
            return
        points.append((now_ms, records, n_bytes))
        oldest_ms = now_ms - self._window_ms - REPORT_GAP_MS
        while len(points) > 2 and points[1][0] < oldest_ms:
            points.popleft()

    def per_second(self, now_ms: int) -> tuple[float, float]:
        """Records and bytes per second over the window that ends now."""
        points = self._points
        if not points:
            return 0.0, 0.0
        last_ms, records, n_bytes = points[-1]
        # Between two reports the window does not move: it ends at a report, so it contains only
        # whole reports and the rate does not fluctuate.
        head_ms = last_ms if now_ms - last_ms <= REPORT_GAP_MS else now_ms
        tail_ms = max(head_ms - self._window_ms, points[0][0])
        tail_records, tail_bytes = self._at(tail_ms)
        span_s = max(head_ms - tail_ms, RATE_SPAN_MS_MIN) / 1_000
        return (records - tail_records) / span_s, (n_bytes - tail_bytes) / span_s

    def _at(self, time_ms: int) -> tuple[float, float]:
        """The totals at ``time_ms``, interpolated between the reports around it."""
        after = self._points[-1]
        if time_ms >= after[0]:
            return float(after[1]), float(after[2])
        for before in reversed(self._points):
            if before[0] <= time_ms:
                share = (time_ms - before[0]) / (after[0] - before[0])
                return (
                    before[1] + share * (after[1] - before[1]),
                    before[2] + share * (after[2] - before[2]),
                )
            after = before
        return float(after[1]), float(after[2])


@dataclass(slots=True)
class _CounterSet:
    """The newest counters of one worker in one slot."""

    time_ms: int = -1
    records: int = 0
    bytes: int = 0
    batches: int = 0
    latency: Histogram = field(default_factory=Histogram)
    latency_ms_sum: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    partitions: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    joined: JoinCounts = JoinCounts()  # noqa: RUF009  (frozen)
    transforms: tuple[TransformCounts, ...] = ()


@dataclass(slots=True)
class _TopicTotal:
    """Totals of one topic in this run."""

    curve: _Curve
    records: int = 0
    bytes: int = 0


def _joined_lag(lags: Sequence[_Lag]) -> _Lag:
    """(records, seconds) of several partitions; the records are unknown if those of any one are."""
    known = [records for records, _ in lags if records is not None]
    total = sum(known) if known and len(known) == len(lags) else None
    return total, worst_s(lags) if lags else None


def _grown(now: int, before: int) -> int:
    """The growth of a counter; a counter that decreased was restarted at zero."""
    return now - before if now >= before else now


class FlowMeter:
    """Adds up one flow's reports.

    ``worker`` in a report names one set of counters that began at zero. Within a slot and a worker
    they only grow; if one decreases, the set was restarted. Reports may be passed repeatedly: one
    that is not newer than the last one of its set is skipped. Of a partition in the reports of two
    slots, that of the later epoch counts, and within an epoch the one that was passed last: clocks
    of two hosts differ. Pauses alone compare the times of workers.
    """

    def __init__(
        self,
        flow: str,
        *,
        now_ms: Callable[[], int] = wall_ms,
        ticks_ms: Callable[[], int] = steady_ms,
        window_ms: int = 5_000,
    ) -> None:
        self.flow = flow
        self._now_ms = now_ms
        self._ticks_ms = ticks_ms
        self._window_ms = window_ms
        self._curve = _Curve(window_ms)
        self._records = self._bytes = self._batches = 0
        self._joined = JoinCounts()
        self._transforms = TransformTotals()
        self._pauses = Pauses()
        self._latencies: deque[tuple[int, Histogram]] = deque()
        self._latency = Histogram()
        self._latency_ms_sum = 0
        self._reported_ms = 0
        self._heard_ms: int | None = None
        self._errors: dict[str, int] = {}
        self._sets: dict[int, OrderedDict[str, _CounterSet]] = {}
        # By the epoch of the report.
        self._partitions: dict[TopicPartition, tuple[int, PartitionProgress]] = {}
        self._totals: dict[TopicPartition, PartitionTotal] = {}
        self._topics: dict[str, _TopicTotal] = {}
        self._ends: Mapping[TopicPartition, int] = {}
        self._oldest_ms: Mapping[TopicPartition, int] = {}
        self._catch_up = CatchUp()
        self._counted: frozenset[TopicPartition] = frozenset()
        self._unassigned: Mapping[TopicPartition, Halt] = {}
        self._assigned: frozenset[TopicPartition] | None = None

    def assign(self, sources: frozenset[TopicPartition]) -> None:
        """Forget partitions that are not in ``sources``: topics are gone, or others have them.

        No slot reports them any more, so a halt would last for ever. Before the first assignment,
        ``sources`` is empty.
        """
        if sources or self._assigned is not None:
            self._assigned = sources
            gone = self._partitions.keys() - sources
            for tp in gone:
                del self._partitions[tp]

    def report(self, progress: SlotProgress) -> bool:
        """Add one slot's report; returns ``False`` if it contains nothing new."""
        if progress.flow != self.flow:
            return False
        counters = self._counter_set(progress)
        if progress.time_ms <= counters.time_ms:
            return False
        if (
            progress.records < counters.records
            or progress.bytes < counters.bytes
            or progress.batches < counters.batches
        ):
            counters = self._sets[progress.slot][progress.worker] = _CounterSet()
        self._pauses.note(progress)
        ticks_ms = self._ticks_ms()
        self._records += progress.records - counters.records
        self._bytes += progress.bytes - counters.bytes
        self._batches += progress.batches - counters.batches
        self._curve.push(ticks_ms, self._records, self._bytes)
        self._add_latency(ticks_ms, progress, counters)
        for code, count in progress.errors.items():
            grown = _grown(count, counters.errors.get(code, 0))
            if grown:
                self._errors[code] = self._errors.get(code, 0) + grown
        self._add_partitions(ticks_ms, progress, counters)
        self._joined = self._joined.plus(progress.joined.since(counters.joined))
        counters.joined = progress.joined
        self._transforms.add(progress.transforms, counters.transforms)
        counters.transforms = progress.transforms
        counters.time_ms = progress.time_ms
        counters.records = progress.records
        counters.bytes = progress.bytes
        counters.batches = progress.batches
        counters.errors = progress.errors
        self._reported_ms = self._now_ms()
        self._heard_ms = ticks_ms
        return True

    def ends(
        self,
        end_offsets: Mapping[TopicPartition, int],
        oldest_ms: Mapping[TopicPartition, int],
    ) -> None:
        """Set the newest source end offsets, and the oldest timestamps of lagging partitions.

        ``end_offsets``: of assigned partitions; without one, the lag is unknown. ``oldest_ms``:
        timestamps of the oldest records that are not at the target.
        """
        self._ends, self._oldest_ms = end_offsets, oldest_ms
        lags = {
            key: max(0, end_offsets[key] - progress.position)
            for key, (_, progress) in self._partitions.items()
            if key in end_offsets and progress.position >= 0 and progress.halt is None
        }
        if lags.keys() != self._counted:  # a lag that leaves the sum was not mirrored
            self._catch_up, self._counted = CatchUp(), frozenset(lags)
        if lags:
            self._catch_up.note(self._ticks_ms(), sum(lags.values()))

    def halts(self, halted: Mapping[TopicPartition, Halt]) -> None:
        """Set the partitions that are assigned to no slot, and why."""
        self._unassigned = halted

    def hand_over(self) -> None:
        """Forget positions, lags and halts: another process has them now. Counters stay."""
        self._assigned, self._unassigned = frozenset(), {}
        self._partitions.clear()
        self.ends({}, {})

    @property
    def reported(self) -> bool:
        """Whether any slot has reported."""
        return bool(self._sets)

    @property
    def silent_s(self) -> float | None:
        """Seconds since a report last came in, by this process's clock; None without any."""
        return None if self._heard_ms is None else (self._ticks_ms() - self._heard_ms) / 1_000

    @property
    def assigned(self) -> int:
        """How many partitions are assigned to slots."""
        if self._assigned is not None:
            return len(self._assigned)
        return len(self._ends) or len(self._partitions)

    @property
    def halted(self) -> int:
        """How many partitions are halted."""
        return len(self._all_halts())

    def view(self) -> FlowView:
        """The present figures of the flow."""
        ticks_ms = self._ticks_ms()
        records_per_s, bytes_per_s = self._curve.per_second(ticks_ms)
        latency = self._recent_latency(ticks_ms)
        lags = self._lags()
        topics = self._topic_rows(ticks_ms, lags)
        lag_records, lag_s = _joined_lag([lag for each in lags.values() for lag in each])
        catching_up = lag_s is not None and lag_s >= CATCHING_UP_S
        return FlowView(
            flow=self.flow,
            records=self._records,
            bytes=self._bytes,
            batches=self._batches,
            records_per_s=records_per_s,
            bytes_per_s=bytes_per_s,
            lag_records=lag_records,
            lag_bytes=None if lag_records is None else self._lag_bytes(),
            lag_s=lag_s,
            to_go_s=self._catch_up.to_go_s() if catching_up else None,
            latency_ms_p50=latency.quantile(0.5),
            latency_ms_p99=latency.quantile(0.99),
            partitions=self.assigned,
            partitions_reported=sum(
                1 for _, progress in self._partitions.values() if progress.position >= 0
            ),
            errors=dict(self._errors),
            halted=self._all_halts(),
            topics=topics,
        )

    def totals(self) -> FlowTotals:
        """The present figures of each partition, and the latencies of the whole run."""
        now_ms, ticks_ms = self._now_ms(), self._ticks_ms()
        rows = tuple(
            self._totals[key].row(
                progress,
                self._ends.get(key),
                self._oldest_ms.get(key),
                mean_bytes=self._mean_bytes,
                now_ms=now_ms,
                ticks_ms=ticks_ms,
            )
            for key, (_, progress) in sorted(self._partitions.items())
        )
        latency = Histogram(self._latency.counts)
        figures = self._latency_ms_sum, self._reported_ms, self._joined, self._transforms.rows()
        return FlowTotals(rows, latency, *figures, self._pauses.totals())

    @property
    def _mean_bytes(self) -> float | None:
        """Mean bytes per record that this run has mirrored."""
        return self._bytes / self._records if self._records else None

    def _lag_bytes(self) -> int | None:
        """Estimated lag in bytes; None if that of any partition is unknown."""
        mean, total = self._mean_bytes, 0
        for key, (_, progress) in self._partitions.items():
            if key in self._ends and progress.position >= 0:
                lag = max(0, self._ends[key] - progress.position)
                n_bytes = self._totals[key].lag_bytes(lag, mean)
                if n_bytes is None:
                    return None
                total += n_bytes
        return total

    def _all_halts(self) -> dict[TopicPartition, Halt]:
        halted = dict(self._unassigned)
        for key, (_, progress) in self._partitions.items():
            if progress.halt is not None:
                halted[key] = progress.halt
        return dict(sorted(halted.items()))

    def _counter_set(self, progress: SlotProgress) -> _CounterSet:
        sets = self._sets.setdefault(progress.slot, OrderedDict())
        counters = sets.get(progress.worker)
        if counters is None:
            counters = sets[progress.worker] = _CounterSet()
            while len(sets) > COUNTER_SETS_PER_SLOT:
                sets.popitem(last=False)
        else:
            sets.move_to_end(progress.worker)
        return counters

    def _add_latency(self, ticks_ms: int, progress: SlotProgress, counters: _CounterSet) -> None:
        if len(progress.latency_counts) != len(BOUNDS_MS):
            return  # a report without latencies, or from a release with other bounds
        latency = Histogram(progress.latency_counts)
        try:
            grown = latency.minus(counters.latency)
        except ValueError:  # a bucket decreased: the histogram was restarted
            grown = latency
        counters.latency = latency
        self._latency.merge(grown)
        self._latency_ms_sum += _grown(progress.latency_ms_sum, counters.latency_ms_sum)
        counters.latency_ms_sum = progress.latency_ms_sum
        if grown.total:
            self._latencies.append((ticks_ms, grown))

    def _recent_latency(self, ticks_ms: int) -> Histogram:
        while self._latencies and self._latencies[0][0] < ticks_ms - self._window_ms:
            self._latencies.popleft()
        recent = Histogram()
        for _, grown in self._latencies:
            recent.merge(grown)
        return recent

    def _add_partitions(self, ticks_ms: int, progress: SlotProgress, counters: _CounterSet) -> None:
        touched: set[str] = set()
        for partition in progress.partitions:
            key = TopicPartition(partition.topic, partition.partition)
            known = self._partitions.get(key)
            # An older report may still contain a partition that was assigned to another slot.
            if known is None or progress.epoch >= known[0]:
                former = None if known is None else known[1]
                self._partitions[key] = (progress.epoch, continued(partition, former))
            before = counters.partitions.get(key, (0, 0))
            counters.partitions[key] = (partition.records, partition.bytes)
            total = self._topics.get(partition.topic)
            if total is None:
                total = self._topics[partition.topic] = _TopicTotal(_Curve(self._window_ms))
            records = _grown(partition.records, before[0])
            n_bytes = _grown(partition.bytes, before[1])
            total.records += records
            total.bytes += n_bytes
            self._totals.setdefault(key, PartitionTotal()).add(ticks_ms, records, n_bytes)
            touched.add(partition.topic)
        for topic in touched:
            total = self._topics[topic]
            total.curve.push(ticks_ms, total.records, total.bytes)

    def _lags(self) -> dict[str, list[_Lag]]:
        """The lag of each partition with a known position, by topic."""
        now_ms, lags = self._now_ms(), dict[str, list[_Lag]]()
        for key, (_, progress) in self._partitions.items():
            if progress.position >= 0:
                lag = lag_of(progress, self._ends.get(key), self._oldest_ms.get(key), now_ms)
                lags.setdefault(key.topic, []).append(lag)
        return lags

    def _topic_rows(
        self, ticks_ms: int, lags: Mapping[str, Sequence[_Lag]]
    ) -> tuple[TopicRow, ...]:
        partitions: dict[str, int] = {}
        halted: dict[str, int] = {}
        for key, (_, progress) in self._partitions.items():
            topic = key.topic
            partitions[topic] = partitions.get(topic, 0) + 1
            if progress.halt is not None:
                halted[topic] = halted.get(topic, 0) + 1
        rows = []
        for topic, total in sorted(self._topics.items()):
            records_per_s, bytes_per_s = total.curve.per_second(ticks_ms)
            lag_records, lag_s = _joined_lag(lags.get(topic, ()))
            rows.append(
                TopicRow(
                    topic=topic,
                    partitions=partitions.get(topic, 0),
                    records=total.records,
                    bytes=total.bytes,
                    records_per_s=records_per_s,
                    bytes_per_s=bytes_per_s,
                    lag_records=lag_records,
                    lag_s=lag_s,
                    halted=halted.get(topic, 0),
                )
            )
        return tuple(rows)
