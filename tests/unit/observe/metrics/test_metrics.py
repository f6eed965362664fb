"""Metrics: samples as Kafka takes them, names as the table says, values as reported."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.checkpoints import CheckpointKey, CheckpointTimes, GroupRow
from sparkmirror.observe.figures.dealing import DealFigures
from sparkmirror.observe.figures.latency import BOUNDS_MS, Histogram
from sparkmirror.observe.figures.meter import FlowMeter
from sparkmirror.observe.figures.queries import QueryFigures
from sparkmirror.observe.figures.samples import Rate, Samples
from sparkmirror.observe.figures.throttling import ThrottleFigures
from sparkmirror.observe.metrics.catalog import (
    CATALOG,
    MIRROR_CHECKPOINT,
    MIRROR_SOURCE,
    metrics_page,
)
from sparkmirror.observe.metrics.exposition import FlowFacts, MirrorCollector
from sparkmirror.observe.metrics.health import FlowHealth, judge
from sparkmirror.progress import Halt, PartitionProgress, SlotProgress, Spread, TransformCounts

ROOT = Path(__file__).parents[4]
WALL_MS = 1_700_000_000_000


# --- samples ------------------------------------------------------------------------------------


def test_samples_are_those_of_the_last_two_windows() -> None:
    samples = Samples()
    assert samples.spread(0) is None
    samples.add(1_000, 5, 5)
    samples.add(29_000, 1, 9, count=2)
    assert samples.spread(30_000) == Spread(1, 1, 5, 9)
    samples.add(31_000, 3, 3)  # the second window
    assert samples.spread(60_999) == Spread(3, 1, 4.5, 9)
    assert samples.spread(61_000) == Spread(3, 3, 3, 3)  # the first one is forgotten
    assert samples.spread(91_000) == Spread(3)  # only the last value is left
    samples.add(91_000, 7, 7)
    assert samples.spread(91_000) == Spread(7, 7, 7, 7)


@given(
    st.lists(st.tuples(st.integers(0, 40_000), st.floats(0, 1e9), st.floats(0, 1e9)), min_size=1)
)
def test_the_mean_lies_between_the_ends(steps: list[tuple[int, float, float]]) -> None:
    samples, now_ms = Samples(), 0
    for pause_ms, one, other in steps:
        now_ms += pause_ms
        samples.add(now_ms, min(one, other), max(one, other))
    spread = samples.spread(now_ms)
    assert spread is not None
    assert spread.low is not None
    assert spread.mean is not None
    assert spread.high is not None
    slack = 1e-6 * max(1.0, spread.high)
    assert spread.low - slack <= spread.mean <= spread.high + slack
    assert spread.low <= spread.last <= spread.high


def test_a_rate_is_taken_over_a_whole_window_at_least() -> None:
    rate = Rate()
    assert rate.per_second(0) == (0, 0)
    rate.add(0, 300, 3_000)
    assert rate.per_second(0) == (10, 100)  # 30 s, so that a start makes no peak
    assert rate.per_second(15_000) == pytest.approx((300 / 45, 3_000 / 45))
    rate.add(45_000, 600, 0)
    assert rate.per_second(50_000) == (900 / 50, 3_000 / 50)
    assert rate.per_second(60_000) == pytest.approx((600 / 45, 0))  # the first window is over
    assert rate.per_second(105_000) == (0, 0)


def test_checkpoints_of_one_group_do_not_touch_those_of_another() -> None:
    times = CheckpointTimes(ticks_ms=lambda: 0)
    times.record(CheckpointKey("g1", "A.t", 0), 10)
    times.record(CheckpointKey("g2", "A.t", 0), 20)
    assert times.spreads() == {
        CheckpointKey("g1", "A.t", 0): Spread(10, 10, 10, 10),
        CheckpointKey("g2", "A.t", 0): Spread(20, 20, 20, 20),
    }


# --- a scrape -----------------------------------------------------------------------------------


def report(
    *partitions: PartitionProgress, time_ms: int = WALL_MS, records: int = 30, **more: object
) -> SlotProgress:
    histogram = Histogram()
    histogram.add(2.0, 3)
    values: dict[str, object] = {
        "flow": "A->B", "slot": 0, "worker": "w:1:1", "epoch": 1, "time_ms": time_ms,
        "records": records, "bytes": 3_000, "batches": 3, "latency_counts": histogram.counts,
        "latency_ms_sum": 6, "partitions": partitions, **more,
    }  # fmt: skip
    return SlotProgress(**values)  # type: ignore[arg-type]


TWO = (
    PartitionProgress(
        "t", 0, 10, WALL_MS - 5_000, 10, 1_000, None, Spread(4, 1, 3, 8), Spread(9, 2, 6, 12)
    ),
    PartitionProgress("t", 1, 20, WALL_MS - 9_000, 20, 2_000, Halt("CORRUPT_BATCH", 'bad "crc"\n')),
)


def meter(*reports: SlotProgress) -> FlowMeter:
    made = FlowMeter("A->B", now_ms=lambda: WALL_MS, ticks_ms=lambda: 1_000)
    for one in reports:
        made.report(one)
    made.ends(
        {TopicPartition("t", 0): 10, TopicPartition("t", 1): 27},
        {TopicPartition("t", 1): WALL_MS - 12_000},
    )
    return made


def facts(made: FlowMeter) -> FlowFacts:
    times = CheckpointTimes(ticks_ms=lambda: 0)
    times.record(CheckpointKey("billing", "A.t", 0), 5)
    return FlowFacts(
        "A", "B", "__mirror.A->B", "mm2", "running", made.view(), made.totals(), {"t": "A.t"},
        times.spreads(),
        (
            GroupRow("billing", "t", 0, 3, 2.5), GroupRow("billing", "t", 1, 4, None),
            GroupRow("audit", "t", 0, 0, 0.0),
        ),
        ThrottleFigures({"": 50_000_000, "logs.*": 5_000}, 0.5, 12.0),
        DealFigures((70_000_000, 2_000), 3),
        QueryFigures(7, 2, 12.5, {"addBatch": 300_250, "queryPlanning": 40}),
        {"customers": (1_000, 1_764_000_000_500)},
        240.0,
    )  # fmt: skip


def scrape(made: FlowMeter, labels: str = "partition") -> dict[tuple[str, ...], float]:
    """Value by name and label values, in the order of the label names' table."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MirrorCollector(lambda: [facts(made)], labels=labels, build={"version": "1"}))
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found[sample.name, *sorted(f"{k}={v}" for k, v in sample.labels.items())] = sample.value
    return found


def test_the_values_are_those_of_the_reports() -> None:
    found = scrape(meter(report(*TWO)))
    first = ("partition=0", "source=A", "target=B", "topic=A.t")
    second = ("partition=1", "source=A", "target=B", "topic=A.t")
    for name, one, other in (
        ("record_count", 10, 20), ("byte_count", 1_000, 2_000),
        ("record_rate", 10 / 30, 20 / 30), ("byte_rate", 1_000 / 30, 2_000 / 30),
        ("record_age_ms", 4, 0), ("record_age_ms_min", 1, math.nan),
        ("record_age_ms_avg", 3, math.nan), ("record_age_ms_max", 8, math.nan),
        ("replication_latency_ms", 9, 0), ("replication_latency_ms_min", 2, math.nan),
        ("replication_latency_ms_avg", 6, math.nan), ("replication_latency_ms_max", 12, math.nan),
    ):  # fmt: skip
        assert found[f"{MIRROR_SOURCE}_{name}", *first] == pytest.approx(one), name
        assert found[f"{MIRROR_SOURCE}_{name}", *second] == pytest.approx(other, nan_ok=True), name
    group = ("group=__mirror.A->B",)
    own = ("partition=1", "source=A", "target=B", "topic=t")
    assert found["sparkmirror_lag_records", *group, *own] == 7
    assert found["sparkmirror_lag_seconds", *group, *own] == 12
    assert found["sparkmirror_lag_bytes", *group, *own] == 700
    assert found["sparkmirror_position_age_seconds", *group, *own] == 9
    assert found["sparkmirror_position_offset", *group, *own] == 20
    assert found["sparkmirror_end_offset", *group, *own] == 27
    halt = ("code=CORRUPT_BATCH", "partition=1", 'reason=bad "crc"\n', "retriable=false")
    assert found["sparkmirror_partition_halted", *halt, *own[1:]] == 1
    flow = ("source=A", "target=B")
    assert found["sparkmirror_halted_partitions", *flow] == 1
    assert found["sparkmirror_flow_lag_records", *flow] == 7
    assert found["sparkmirror_flow_lag_seconds", *flow] == 12
    assert found["sparkmirror_flow_lag_bytes", *flow] == 700
    assert found["sparkmirror_flow_info", "group=__mirror.A->B", "mode=mm2", *flow] == 1
    assert found["sparkmirror_last_report_timestamp_seconds", *flow] == WALL_MS / 1_000
    checkpoint = (f"{MIRROR_CHECKPOINT}_checkpoint_latency_ms_max", "group=billing")
    assert found[*checkpoint, *first] == 5
    zero = ("partition=0", "source=A", "target=B", "topic=t")
    for name, values in (("records", (3, 4, 0)), ("seconds", (2.5, None, 0))):
        lag = f"sparkmirror_group_lag_{name}"
        assert found[lag, "group=billing", *zero] == values[0]
        assert found.get((lag, "group=billing", *own)) == values[1]
        assert found[lag, "group=audit", *zero] == values[2]


@pytest.mark.parametrize("labels", ["partition", "topic", "flow"])
def test_a_lag_whose_end_is_unknown_has_no_sample(labels: str) -> None:
    made = meter(report(*TWO))
    made.ends({TopicPartition("t", 0): 10}, {})
    found = scrape(made, labels)
    lags = {key for key in found if key[0].startswith(("sparkmirror_lag", "sparkmirror_flow_lag"))}
    known = {key[0] for key in lags if "partition=0" in key}
    assert lags == {key for key in lags if "partition=0" in key}
    assert known == ({name for name, *_ in lags} if labels == "partition" else set())
    assert found["sparkmirror_end_offsets_age_seconds", "source=A", "target=B"] == 240


def test_tags() -> None:
    """The metrics of Java's source connector, all with the same four tags, and no others.

    Java counts thirteen: one is how many metrics its client library has.
    """
    spread = ("", "_min", "_max", "_avg")
    wanted = {"record_count", "record_rate", "byte_count", "byte_rate"}
    wanted |= {
        f"{name}{end}" for name in ("record_age_ms", "replication_latency_ms") for end in spread
    }
    tags = ("partition=0", "source=A", "target=B", "topic=A.t")
    found = scrape(meter(report(TWO[0])))
    ours = {key for key in found if key[0].startswith(MIRROR_SOURCE)}
    assert ours == {(f"{MIRROR_SOURCE}_{name}", *tags) for name in wanted}


def test_counters_go_on_over_replaced_workers() -> None:
    errors = {"NOT_LEADER_OR_FOLLOWER": 2, "THROTTLED": 5}
    found = scrape(
        meter(
            report(*TWO, errors=errors),
            report(*TWO, worker="w:2:2", time_ms=WALL_MS + 1, errors=errors),
        )
    )
    flow = ("source=A", "target=B")
    assert found["sparkmirror_records_total", *flow] == 60
    assert found["sparkmirror_errors_total", "code=NOT_LEADER_OR_FOLLOWER", *flow] == 4
    assert found["sparkmirror_throttled_total", *flow] == 10
    assert found["sparkmirror_latency_seconds_count", *flow] == 6
    assert found["sparkmirror_latency_seconds_sum", *flow] == pytest.approx(0.012)
    assert found["sparkmirror_latency_seconds_bucket", "le=0.0015", *flow] == 0
    assert found["sparkmirror_latency_seconds_bucket", "le=0.002", *flow] == 6
    assert found["sparkmirror_latency_seconds_bucket", "le=+Inf", *flow] == 6
    key = (f"{MIRROR_SOURCE}_record_count", "partition=1", *flow, "topic=A.t")
    assert found[key] == 40


@pytest.mark.parametrize(("labels", "topic"), [("topic", ("topic=A.t",)), ("flow", ())])
def test_fewer_labels_are_sums_and_the_worst(labels: str, topic: tuple[str, ...]) -> None:
    found = scrape(meter(report(*TWO)), labels)
    key = ("source=A", "target=B", *topic)
    assert found[f"{MIRROR_SOURCE}_record_count", *key] == 30
    assert found[f"{MIRROR_SOURCE}_replication_latency_ms_max", *key] == 12
    own = ("group=__mirror.A->B", "source=A", "target=B", *(t.replace("A.", "") for t in topic))
    assert found["sparkmirror_lag_records", *own] == 7
    assert found["sparkmirror_lag_seconds", *own] == 12
    billing = ("group=billing", *own[1:])
    assert found["sparkmirror_group_lag_records", *billing] == 7
    assert found["sparkmirror_group_lag_seconds", *billing] == 2.5
    assert not [name for name in found if any(part.startswith("partition=") for part in name[1:])]


@pytest.mark.parametrize("labels", ["partition", "topic", "flow"])
def test_both_formats_can_be_read_and_nothing_is_told_twice(labels: str) -> None:
    made = meter(report(*TWO))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MirrorCollector(lambda: [facts(made)], labels=labels))
    text = generate_openmetrics(registry).decode()
    samples = [s for family in parse_openmetrics(text) for s in family.samples]
    keys = [(s.name, *sorted(s.labels.items())) for s in samples]
    assert len(keys) == len(set(keys)) > 20


def test_nothing_is_known_at_the_start() -> None:
    found = scrape(FlowMeter("A->B"))
    assert found["sparkmirror_records_total", "source=A", "target=B"] == 0
    assert not any("lag" in name[0] and "group" not in name[0] for name in found)


# --- the table ----------------------------------------------------------------------------------


def test_the_page_is_current() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_page(), "run `make docs`"


def test_every_metric_of_the_table_is_told() -> None:
    errors = {"CONNECTION_LOST": 1}
    made = meter(
        report(epoch=0, time_ms=WALL_MS - 500, began_ms=1, ended_ms=500),
        report(*TWO, errors=errors, transforms=(TransformCounts("clean", 1, 1),), began_ms=900),
    )
    names = {key[0] for key in scrape(made)}
    catching_up = FlowMeter(
        "A->B", now_ms=lambda: WALL_MS, ticks_ms=iter(range(0, 10**6, 5_000)).__next__
    )
    catching_up.report(report(TWO[0]))
    for end in (900, 800):
        catching_up.ends({TopicPartition("t", 0): end}, {TopicPartition("t", 0): 0})
    names |= {key[0] for key in scrape(catching_up)}
    for metric in CATALOG.values():
        shown = f"{metric.shown}_bucket" if metric.kind == "histogram" else metric.shown
        assert shown in names, metric.name


def test_records_of_transforms_are_added_up_by_name() -> None:
    """Over slots, and over tasks that begin again at zero."""
    clean = TransformCounts("clean", 100, 60, 30, 10, unpack_s=0.5, sql_s=2.0, pack_s=1.0)
    mask = TransformCounts("mask", 5, 5)
    made = meter(
        report(*TWO, transforms=(clean, mask)),
        report(*TWO, time_ms=WALL_MS + 1, transforms=(clean.plus(clean), mask)),
        report(*TWO, time_ms=WALL_MS + 2, transforms=(TransformCounts("clean", 7, 0, 7),)),
        report(*TWO, slot=1, transforms=(TransformCounts("clean", 1_000, 1_000),)),
    )
    told = scrape(made)
    flow = ("source=A", "target=B")
    for name, values in (
        ("in", (1_207, 5)), ("out", (1_120, 5)), ("filtered", (67, 0)), ("failed", (20, 0)),
    ):  # fmt: skip
        metric = f"sparkmirror_transform_{name}_records_total"
        found = [told[metric, *flow, f"transform={one}"] for one in ("clean", "mask")]
        assert found == list(values), name
    for stage, value in (("unpack", 1.0), ("sql", 4.0), ("pack", 2.0)):
        metric = "sparkmirror_transform_seconds_total"
        labels = "source=A", f"stage={stage}", "target=B", "transform=clean"
        assert told[metric, *labels] == value, stage


def test_what_spark_says_of_a_query_is_told() -> None:
    told = scrape(meter(report(*TWO)))
    flow = ("source=A", "target=B")
    assert told["sparkmirror_spark_epochs_total", *flow] == 7
    assert told["sparkmirror_spark_query_restarts_total", *flow] == 2
    assert told["sparkmirror_spark_rows_per_second", *flow] == 12.5
    phases = {"addBatch": 300.25, "queryPlanning": 0.04}
    for phase, seconds in phases.items():
        assert told["sparkmirror_spark_epoch_seconds", f"phase={phase}", *flow] == seconds


def test_limits_are_told_by_topics_and_waits_by_kind() -> None:
    told = scrape(meter(report(*TWO)))
    flow = ("source=A", "target=B")
    limit = "sparkmirror_throttle_bytes_per_second"
    assert told[limit, *flow, "topics="] == 50_000_000
    assert told[limit, *flow, "topics=logs.*"] == 5_000
    waited = "sparkmirror_throttle_wait_seconds_total"
    assert told[waited, "kind=current", *flow] == 0.5
    assert told[waited, "kind=backfill", *flow] == 12.0


def test_tables_are_told_with_their_rows_and_when_they_were_read() -> None:
    told = scrape(meter(report(*TWO)))
    labels = ("source=A", "table=customers", "target=B")
    assert told["sparkmirror_table_rows", *labels] == 1_000
    assert told["sparkmirror_table_read_timestamp_seconds", *labels] == 1_764_000_000.5


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    board = json.loads((ROOT / "docs" / "grafana" / "sparkmirror.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(asked) > 8
    suffixes = ("", "_bucket", "_sum", "_count")
    known = {metric.shown + suffix for metric in CATALOG.values() for suffix in suffixes}
    for expression in asked:
        names = re.findall(r"\b(?:sparkmirror|kafka_connect)_\w+", expression)
        assert names, expression
        assert set(names) <= known, expression


def test_bounds_of_the_histogram_grow() -> None:
    assert list(BOUNDS_MS) == sorted(BOUNDS_MS)


# --- health -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "silent_s", "flow", "live", "ready"),
    [
        ("running", 0, FlowHealth("A->B", "running", 4, 0, 2), True, True),
        ("running", 0, FlowHealth("A->B", "running", 4, 3, 2), True, True),
        ("running", 0, FlowHealth("A->B", "paused", 4, 0, 9), True, True),
        ("running", 0, FlowHealth("A->B", "running", 0, 0, None), True, True),
        ("running", 0, FlowHealth("A->B", "running", 4, 0, None), True, False),
        ("running", 0, FlowHealth("A->B", "running", 4, 0, 31), True, False),
        ("starting", 0, FlowHealth("A->B", "starting", 4, 0, 1), True, False),
        ("draining", 0, FlowHealth("A->B", "draining", 4, 0, 1), True, False),
        ("running", 61, FlowHealth("A->B", "running", 4, 0, 2), False, True),
    ],
)
def test_health(phase: str, silent_s: float, flow: FlowHealth, live: bool, ready: bool) -> None:
    health = judge([flow], phase=phase, silent_s=silent_s, run_s=100)
    assert (health.live, health.ready) == (live, ready)


# --- nothing is run that came from outside ------------------------------------------------------


def test_nothing_unpickles_or_evaluates() -> None:
    """What comes from a topic or a file is parsed as data only."""
    modules = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib", "yaml"}
    calls = {"eval", "exec", "compile", "__import__"}
    # Of YAML, what gives nodes: loading could make objects.
    nodes = {"Node", "MappingNode", "ScalarNode", "SequenceNode", "SafeLoader", "compose_all",
             "YAMLError", "MarkedYAMLError"}  # fmt: skip
    wrong = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0]]
                if names == ["yaml"] and {alias.name for alias in node.names} <= nodes:
                    continue
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in calls
            ):
                wrong.append(f"{path}:{node.lineno}: {node.func.id}")
            wrong += [f"{path}:{node.lineno}: {name}" for name in names if name in modules]
    assert wrong == []


def test_weights_are_told_by_slot_and_moves_by_flow() -> None:
    told = scrape(meter(report(*TWO)))
    flow = ("source=A", "target=B")
    weight = "sparkmirror_slot_weight_bytes_per_second"
    assert [told[weight, "slot=0", *flow], told[weight, "slot=1", *flow]] == [70_000_000, 2_000]
    assert told["sparkmirror_partition_moves_total", *flow] == 3


def test_pauses_between_epochs_are_told() -> None:
    made = meter(
        report(*TWO, epoch=1, worker="w:1", began_ms=1_000, ended_ms=61_000),
        report(*TWO, epoch=2, worker="w:2", began_ms=61_500, ended_ms=90_000),
        report(*TWO, epoch=3, worker="w:3", began_ms=90_250),
    )
    told, flow = scrape(made), ("source=A", "target=B")
    assert told["sparkmirror_pause_seconds", *flow] == 0.25
    assert told["sparkmirror_pauses_total", *flow] == 2
    assert told["sparkmirror_paused_seconds_total", *flow] == 0.75


def test_the_reason_of_a_halt_makes_one_series_however_long_it_lasts() -> None:
    def series(seconds: int) -> set[tuple[str, ...]]:
        text = f"the source has had no leader for t-0 for {seconds} s"
        halt = Halt("LEADER_NOT_AVAILABLE", text, retriable=True)
        found = scrape(meter(report(PartitionProgress("t", 0, 5, halt=halt))))
        return {key for key in found if key[0] == "sparkmirror_partition_halted"}

    assert series(31) == series(46) != set()


@pytest.mark.parametrize("generate", [generate_latest, generate_openmetrics])
def test_half_a_surrogate_pair_in_a_name_or_reason_does_not_end_the_scrape(
    generate: Callable[[CollectorRegistry], bytes],
) -> None:
    """A handler's error may quote bytes that it decoded with `surrogateescape`."""
    half = PartitionProgress("t\ud800", 0, 5, halt=Halt("HANDLER", "no \udcff customer, é"))
    one = facts(meter(report(half)))
    one = replace(one, groups=(GroupRow("g\udcff", "t", 0, 3, None),), tables={"x\udcff": (1, 2)})
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MirrorCollector(lambda: [one]))
    samples = [
        sample
        for family in text_string_to_metric_families(generate(registry).decode())
        for sample in family.samples
    ]
    (halted,) = (one for one in samples if one.name == "sparkmirror_partition_halted")
    assert halted.labels["topic"] == "t\\ud800"
    assert halted.labels["reason"] == "no \\udcff customer, é"
    shown = {value for one in samples for value in one.labels.values()}
    assert {"g\\udcff", "x\\udcff"} <= shown
