"""Exposes facts about the flows as Prometheus metrics, by the table in ``catalog``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from sparkmirror.observe.figures.checkpoints import CheckpointKey, GroupRow
from sparkmirror.observe.figures.dealing import DealFigures
from sparkmirror.observe.figures.latency import BOUNDS_MS
from sparkmirror.observe.figures.meter import FlowTotals, FlowView
from sparkmirror.observe.figures.partitions import PartitionRow, worst_s
from sparkmirror.observe.figures.queries import QueryFigures
from sparkmirror.observe.figures.throttling import ThrottleFigures
from sparkmirror.observe.metrics.catalog import CATALOG, MIRROR_CHECKPOINT, MIRROR_SOURCE, Metric
from sparkmirror.progress import Spread

__all__ = ["LABELS", "FlowFacts", "MirrorCollector"]

LABELS = {"partition": ("topic", "partition"), "topic": ("topic",), "flow": ()}
"""The partition labels that are kept, by ``sparkmirror.metrics.labels``."""
THROTTLED = "THROTTLED"
_REASON_CHARS_MAX = 300
_LASTED = re.compile(r" for \d+ s\b")

_Gauges = dict[str, GaugeMetricFamily]


@dataclass(frozen=True, slots=True)
class FlowFacts:
    """All figures of one flow at one moment. ``remote``: remote topic by source topic.

    ``tables``: rows of each static table, and when they were read (epoch ms). ``ends_age_s``:
    seconds since the source told the end offset of each partition.
    """

    source: str
    target: str
    group: str
    mode: str
    state: str
    view: FlowView
    totals: FlowTotals = field(default_factory=FlowTotals)
    remote: Mapping[str, str] = field(default_factory=dict)
    checkpoints: Mapping[CheckpointKey, Spread] = field(default_factory=dict)
    groups: Sequence[GroupRow] = ()
    throttle: ThrottleFigures = field(default_factory=ThrottleFigures)
    deals: DealFigures = field(default_factory=DealFigures)
    query: QueryFigures = field(default_factory=QueryFigures)
    tables: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    ends_age_s: float | None = None


class MirrorCollector(Collector):
    """Calls ``facts`` at each scrape. ``labels``: the granularity, a key of `LABELS`."""

    def __init__(
        self,
        facts: Callable[[], Sequence[FlowFacts]],
        *,
        labels: str = "partition",
        build: Mapping[str, str] | None = None,
    ) -> None:
        self._facts = facts
        self._kept = LABELS[labels]
        self._build = dict(build or {})

    def describe(self) -> Iterable[Family]:
        """Return nothing, because registering must not scrape."""
        return ()

    def collect(self) -> Iterator[Family]:
        """All families with their present values."""
        facts = self._facts()
        gauges = {
            metric.name: GaugeMetricFamily(metric.name, metric.help, labels=self._labels(metric))
            for metric in CATALOG.values()
            if metric.kind == "gauge"
        }
        counters = {
            metric.name: CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for metric in CATALOG.values()
            if metric.kind == "counter"
        }
        latency = CATALOG["sparkmirror_latency_seconds"]
        histogram = HistogramMetricFamily(latency.name, latency.help, labels=latency.labels)
        info = gauges["sparkmirror_build_info"]
        info.add_metric([self._build.get(name, "") for name in info._labelnames], 1)
        for one in facts:
            _add_flow(gauges, one)
            _add_counters(counters, one)
            _add_latency(histogram, one)
            for keys, rows in _grouped(one.totals.partitions, self._kept):
                _add_mirror_source(gauges, one, keys, rows)
                _add_lag(gauges, one, keys, rows)
            if self._kept == LABELS["partition"]:
                _add_partitions(gauges, one)
            _add_checkpoints(gauges, one, self._kept)
            _add_groups(gauges, one, self._kept)
        families: list[Family] = [*gauges.values(), *counters.values(), histogram]
        for family in families:
            if family.samples:
                family.samples = list(map(_encodable, family.samples))
                yield family

    def _labels(self, metric: Metric) -> list[str]:
        dropped = set(LABELS["partition"]) - set(self._kept)
        return [name for name in metric.labels if name not in dropped]


def _encodable(sample: Sample) -> Sample:
    """``sample`` with escapes for halves of surrogate pairs in its labels.

    UTF-8 has no bytes for them, so one of them would end the whole scrape.
    """
    if "".join(sample.labels.values()).isascii():
        return sample
    labels = {
        name: value.encode(errors="backslashreplace").decode()
        for name, value in sample.labels.items()
    }
    return sample._replace(labels=labels)


def _grouped(
    rows: Sequence[PartitionRow], kept: Sequence[str]
) -> Iterator[tuple[list[str], list[PartitionRow]]]:
    """(values of the kept labels, rows with them), for each series."""
    groups: dict[tuple[str, ...], list[PartitionRow]] = {}
    for row in rows:
        groups.setdefault(tuple(str(getattr(row, name)) for name in kept), []).append(row)
    yield from ((list(keys), members) for keys, members in groups.items())


def _add_flow(gauges: _Gauges, one: FlowFacts) -> None:
    flow, view = [one.source, one.target], one.view
    gauges["sparkmirror_flow_info"].add_metric([*flow, one.group, one.mode], 1)
    gauges["sparkmirror_flow_state"].add_metric([*flow, one.state], 1)
    gauges["sparkmirror_partitions"].add_metric(flow, view.partitions)
    gauges["sparkmirror_partitions_reported"].add_metric(flow, view.partitions_reported)
    gauges["sparkmirror_halted_partitions"].add_metric(flow, len(view.halted))
    for name, value in (
        ("sparkmirror_flow_lag_records", view.lag_records),
        ("sparkmirror_flow_lag_bytes", view.lag_bytes),
        ("sparkmirror_flow_lag_seconds", view.lag_s),
        ("sparkmirror_flow_catch_up_seconds", view.to_go_s),
        ("sparkmirror_end_offsets_age_seconds", one.ends_age_s),
        ("sparkmirror_last_report_timestamp_seconds", (one.totals.reported_ms or None)),
        ("sparkmirror_pause_seconds", one.totals.pauses.last_s),
    ):
        if value is not None:
            seconds = value / 1_000 if name.endswith("timestamp_seconds") else value
            gauges[name].add_metric(flow, seconds)
    gauges["sparkmirror_spark_rows_per_second"].add_metric(flow, one.query.rows_s)
    for phase, ms in one.query.phase_ms.items():
        gauges["sparkmirror_spark_epoch_seconds"].add_metric([*flow, phase], ms / 1_000)
    for topics, bytes_s in one.throttle.limits.items():
        gauges["sparkmirror_throttle_bytes_per_second"].add_metric([*flow, topics], bytes_s)
    for slot, weight in enumerate(one.deals.weights):
        gauges["sparkmirror_slot_weight_bytes_per_second"].add_metric([*flow, str(slot)], weight)
    for table, (rows, read_ms) in one.tables.items():
        gauges["sparkmirror_table_rows"].add_metric([*flow, table], rows)
        gauges["sparkmirror_table_read_timestamp_seconds"].add_metric([*flow, table], read_ms / 1e3)


def _add_counters(counters: dict[str, CounterMetricFamily], one: FlowFacts) -> None:
    flow, view = [one.source, one.target], one.view
    counters["sparkmirror_records"].add_metric(flow, view.records)
    counters["sparkmirror_bytes"].add_metric(flow, view.bytes)
    counters["sparkmirror_batches"].add_metric(flow, view.batches)
    counters["sparkmirror_pauses"].add_metric(flow, one.totals.pauses.count)
    counters["sparkmirror_paused_seconds"].add_metric(flow, one.totals.pauses.sum_s)
    joined = one.totals.joined
    counters["sparkmirror_link_joined_batches"].add_metric(flow, joined.batches)
    counters["sparkmirror_link_joined_bytes"].add_metric(flow, joined.bytes_in)
    counters["sparkmirror_link_written_bytes"].add_metric(flow, joined.bytes_out)
    counters["sparkmirror_link_joining_cpu_seconds"].add_metric(flow, joined.cpu_s)
    counters["sparkmirror_spark_epochs"].add_metric(flow, one.query.epochs)
    counters["sparkmirror_spark_query_restarts"].add_metric(flow, one.query.restarts)
    counters["sparkmirror_throttled"].add_metric(flow, view.errors.get(THROTTLED, 0))
    counters["sparkmirror_partition_moves"].add_metric(flow, one.deals.moved)
    waited = counters["sparkmirror_throttle_wait_seconds"]
    waited.add_metric([*flow, "current"], one.throttle.current_wait_s)
    waited.add_metric([*flow, "backfill"], one.throttle.backfill_wait_s)
    for each in one.totals.transforms:
        labels = [*flow, each.transform]
        for name, value in (
            ("in", each.records_in), ("out", each.records_out),
            ("filtered", each.filtered), ("failed", each.failed),
        ):  # fmt: skip
            counters[f"sparkmirror_transform_{name}_records"].add_metric(labels, value)
        for stage, seconds in (
            ("unpack", each.unpack_s), ("sql", each.sql_s), ("pack", each.pack_s)
        ):  # fmt: skip
            counters["sparkmirror_transform_seconds"].add_metric([*labels, stage], seconds)
    for code, count in sorted(view.errors.items()):
        if code != THROTTLED:
            counters["sparkmirror_errors"].add_metric([*flow, code], count)


def _add_latency(histogram: HistogramMetricFamily, one: FlowFacts) -> None:
    bounds = ["+Inf" if math.isinf(ms) else repr(ms / 1_000) for ms in BOUNDS_MS]
    counts = list(accumulate(one.totals.latency.counts))
    histogram.add_metric(
        [one.source, one.target],
        list(zip(bounds, map(float, counts), strict=True)),
        one.totals.latency_ms_sum / 1_000,
    )


def _add_mirror_source(
    gauges: _Gauges, one: FlowFacts, keys: list[str], rows: list[PartitionRow]
) -> None:
    """Add MirrorMaker 2's metrics, which have remote topic names."""
    named = [one.remote.get(keys[0], keys[0]), *keys[1:]] if keys else []
    labels = [one.source, one.target, *named]
    for name, value in (
        ("record_count", sum(row.records for row in rows)),
        ("record_rate", sum(row.records_per_s for row in rows)),
        ("byte_count", sum(row.bytes for row in rows)),
        ("byte_rate", sum(row.bytes_per_s for row in rows)),
    ):
        gauges[f"{MIRROR_SOURCE}_{name}"].add_metric(labels, value)
    ages = [row.age_ms for row in rows if row.age_ms]
    latencies = [row.latency_ms for row in rows if row.latency_ms]
    _add_spread(gauges, f"{MIRROR_SOURCE}_record_age_ms", labels, ages)
    _add_spread(gauges, f"{MIRROR_SOURCE}_replication_latency_ms", labels, latencies)


def _add_spread(gauges: _Gauges, name: str, labels: list[str], spreads: Sequence[Spread]) -> None:
    """Add a spread as MirrorMaker 2 does: 0 before any value, NaN if the last minute has none."""
    lows = [spread.low for spread in spreads if spread.low is not None]
    means = [spread.mean for spread in spreads if spread.mean is not None]
    highs = [spread.high for spread in spreads if spread.high is not None]
    gauges[name].add_metric(labels, max((spread.last for spread in spreads), default=0.0))
    gauges[f"{name}_min"].add_metric(labels, min(lows, default=math.nan))
    gauges[f"{name}_max"].add_metric(labels, max(highs, default=math.nan))
    gauges[f"{name}_avg"].add_metric(labels, sum(means) / len(means) if means else math.nan)


def _add_lag(gauges: _Gauges, one: FlowFacts, keys: list[str], rows: list[PartitionRow]) -> None:
    labels = [one.source, one.target, one.group, *keys]
    begun = [row for row in rows if row.position is not None]
    lags = [row.lag_records for row in begun if row.lag_records is not None]
    sizes = [row.lag_bytes for row in rows if row.lag_bytes is not None]
    behind = worst_s((row.lag_records, row.behind_s) for row in begun) if begun else None
    ages = [row.newest_age_s for row in rows if row.newest_age_s is not None]
    known = bool(lags) and len(lags) == len(begun)
    if known:
        gauges["sparkmirror_lag_records"].add_metric(labels, sum(lags))
    if behind is not None:
        gauges["sparkmirror_lag_seconds"].add_metric(labels, behind)
    if known and sizes:
        gauges["sparkmirror_lag_bytes"].add_metric(labels, sum(sizes))
    if ages:
        gauges["sparkmirror_position_age_seconds"].add_metric(labels, max(ages))


def _add_partitions(gauges: _Gauges, one: FlowFacts) -> None:
    """Add metrics that make no sense as a sum."""
    for row in one.totals.partitions:
        labels = [one.source, one.target, one.group, row.topic, str(row.partition)]
        if row.position is not None:
            gauges["sparkmirror_position_offset"].add_metric(labels, row.position)
        if row.end is not None:
            gauges["sparkmirror_end_offset"].add_metric(labels, row.end)
    for tp, halt in one.view.halted.items():
        labels = [one.source, one.target, tp.topic, str(tp.partition), halt.code]
        # Without the seconds that it has lasted: each number would be one more series.
        reason = _LASTED.sub("", halt.reason)[:_REASON_CHARS_MAX]
        labels += ["true" if halt.retriable else "false", reason]
        gauges["sparkmirror_partition_halted"].add_metric(labels, 1)


def _add_checkpoints(gauges: _Gauges, one: FlowFacts, kept: Sequence[str]) -> None:
    groups: dict[tuple[str, ...], list[Spread]] = {}
    for key, spread in one.checkpoints.items():
        labels = (key.group, *(str(getattr(key, name)) for name in kept))
        groups.setdefault(labels, []).append(spread)
    for labels, spreads in groups.items():
        name = f"{MIRROR_CHECKPOINT}_checkpoint_latency_ms"
        _add_spread(gauges, name, [one.source, one.target, *labels], spreads)


def _add_groups(gauges: _Gauges, one: FlowFacts, kept: Sequence[str]) -> None:
    groups: dict[tuple[str, ...], list[GroupRow]] = {}
    for row in one.groups:
        labels = (row.group, *(str(getattr(row, name)) for name in kept))
        groups.setdefault(labels, []).append(row)
    for labels, rows in groups.items():
        named = [one.source, one.target, *labels]
        seconds = worst_s((row.records, row.seconds) for row in rows)
        gauges["sparkmirror_group_lag_records"].add_metric(named, sum(row.records for row in rows))
        if seconds is not None:
            gauges["sparkmirror_group_lag_seconds"].add_metric(named, seconds)
