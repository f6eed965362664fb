"""The meter: totals, rates, lag, latency; and what must hold when workers are replaced."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.latency import BOUNDS_MS, Histogram
from sparkmirror.observe.figures.meter import FlowMeter
from sparkmirror.progress import Halt, JoinCounts, PartitionProgress, SlotProgress

WALL_MS = 1_700_000_000_000


@dataclass
class Clock:
    ms: int = 0

    def wall(self) -> int:
        return WALL_MS + self.ms

    def ticks(self) -> int:
        return self.ms


@dataclass
class Worker:
    """A worker process as the meter sees it: counters that start at zero."""

    slot: int
    name: str
    records: int = 0
    bytes: int = 0
    batches: int = 0
    latency: Histogram = field(default_factory=Histogram)
    errors: dict[str, int] = field(default_factory=dict)
    joined: JoinCounts = field(default_factory=JoinCounts)

    def work(self, records: int, *, latency_ms: float = 2.0, record_bytes: int = 100) -> None:
        self.records += records
        self.bytes += records * record_bytes
        if records:
            self.batches += 1
            self.latency.add(latency_ms)

    def report(self, clock: Clock, *partitions: PartitionProgress) -> SlotProgress:
        return SlotProgress(
            flow="A->B",
            slot=self.slot,
            worker=self.name,
            epoch=0,
            time_ms=clock.wall(),
            records=self.records,
            bytes=self.bytes,
            batches=self.batches,
            latency_counts=self.latency.counts,
            errors=dict(self.errors),
            joined=self.joined,
            partitions=partitions,
        )


def make_meter() -> tuple[Clock, FlowMeter]:
    clock = Clock()
    return clock, FlowMeter("A->B", now_ms=clock.wall, ticks_ms=clock.ticks)


def test_a_steady_slot_shows_its_true_rate() -> None:
    clock, meter = make_meter()
    worker = Worker(0, "w1")
    for _ in range(20):
        clock.ms += 1_000
        worker.work(5_000)
        assert meter.report(worker.report(clock))
        view = meter.view()
        assert view.records_per_s == pytest.approx(5_000)
        assert view.bytes_per_s == pytest.approx(500_000)
    assert (view.records, view.bytes, view.batches) == (100_000, 10_000_000, 20)


def test_the_rate_does_not_flicker_between_reports_of_several_slots() -> None:
    clock, meter = make_meter()
    workers = [Worker(slot, f"w{slot}") for slot in range(3)]
    for step in range(1, 80):
        clock.ms += 250
        for worker in workers:
            if step % 4 == worker.slot:
                worker.work(1_000)
                meter.report(worker.report(clock))
        if clock.ms > 7_000:
            assert meter.view().records_per_s == pytest.approx(3_000, rel=0.07)


def test_the_rate_falls_to_zero_when_reports_stop() -> None:
    clock, meter = make_meter()
    worker = Worker(0, "w1")
    for _ in range(8):
        clock.ms += 1_000
        worker.work(5_000)
        meter.report(worker.report(clock))
    clock.ms += 2_000
    assert meter.view().records_per_s == pytest.approx(5_000)
    clock.ms += 6_000
    assert meter.view().records_per_s == 0
    assert meter.view().latency_ms_p50 is None


def test_records_after_a_silence_count_for_the_second_they_came_in() -> None:
    clock, meter = make_meter()
    worker = Worker(0, "w1")
    clock.ms += 1_000
    worker.work(10)
    meter.report(worker.report(clock))
    clock.ms += 60_000
    worker.work(5_000)
    meter.report(worker.report(clock))
    assert meter.view().records_per_s == pytest.approx(1_000)  # 5,000 in a window of 5 s


def test_a_report_read_twice_counts_once() -> None:
    clock, meter = make_meter()
    worker = Worker(0, "w1")
    clock.ms += 1_000
    worker.work(7)
    assert meter.report(worker.report(clock)) is True
    assert meter.report(worker.report(clock)) is False
    assert meter.view().records == 7


def test_other_flows_reports_are_left_alone() -> None:
    clock = Clock()
    meter = FlowMeter("B->A", now_ms=clock.wall, ticks_ms=clock.ticks)
    worker = Worker(0, "w1", records=5)
    assert meter.report(worker.report(clock)) is False
    assert not meter.reported


def test_a_replaced_worker_starts_at_zero_and_nothing_is_lost() -> None:
    clock, meter = make_meter()
    first, second = Worker(0, "w1"), Worker(0, "w2")
    for worker in (first, second):
        for _ in range(3):
            clock.ms += 1_000
            worker.work(1_000)
            meter.report(worker.report(clock))
    late = first  # the former worker's last report arrives after the new worker's first
    late.work(50)
    clock.ms += 1
    meter.report(late.report(clock))
    assert meter.view().records == 6_050


def test_a_restart_under_the_same_name_is_seen_by_the_counters() -> None:
    clock, meter = make_meter()
    for worker in (Worker(0, "w1"), Worker(0, "w1")):
        for _ in range(2):
            clock.ms += 1_000
            worker.work(300)
            worker.errors["NOT_LEADER"] = worker.errors.get("NOT_LEADER", 0) + 1
            meter.report(worker.report(clock))
    view = meter.view()
    assert view.records == 1_200
    assert view.errors == {"NOT_LEADER": 4}


def test_lag_counts_records_and_the_worst_partitions_age() -> None:
    clock, meter = make_meter()
    clock.ms = 10_000
    parts = (
        PartitionProgress("t", 0, position=90, timestamp_ms=WALL_MS + 8_000),
        PartitionProgress("t", 1, position=50, timestamp_ms=WALL_MS + 4_000),
        PartitionProgress("u", 0, position=70, timestamp_ms=WALL_MS),
    )
    meter.report(Worker(0, "w1").report(clock, *parts))
    assert meter.view().lag_records is None
    assert meter.view().lag_s is None
    meter.ends(
        {TopicPartition("t", 0): 100, TopicPartition("t", 1): 51, TopicPartition("u", 0): 70},
        {TopicPartition("t", 0): WALL_MS + 9_000, TopicPartition("t", 1): WALL_MS + 4_000},
    )
    view = meter.view()
    assert view.lag_records == 11
    assert view.lag_s == pytest.approx(6.0)
    rows = {row.topic: row for row in view.topics}
    assert (rows["t"].lag_records, rows["t"].partitions) == (11, 2)
    assert (rows["u"].lag_records, rows["u"].lag_s) == (0, 0.0)


def test_no_lag_is_zero_seconds_however_old_the_last_record_is() -> None:
    clock, meter = make_meter()
    meter.report(Worker(0, "w").report(clock, PartitionProgress("t", 0, 5, timestamp_ms=1)))
    meter.ends({TopicPartition("t", 0): 5}, {})
    assert (meter.view().lag_records, meter.view().lag_s) == (0, 0.0)


def test_behind_is_the_age_of_the_oldest_record_that_is_not_at_the_target() -> None:
    """Not of the newest mirrored one: after an idle day a new record is not a day late."""
    clock, meter = make_meter()
    tp = TopicPartition("t", 0)
    day_ms = 86_400_000
    meter.report(Worker(0, "w").report(clock, PartitionProgress("t", 0, 5, WALL_MS - day_ms)))
    clock.ms = 2_000
    meter.ends({tp: 6}, {tp: WALL_MS + 1_500})
    assert meter.view().lag_s == pytest.approx(0.5)
    assert meter.totals().partitions[0].behind_s == pytest.approx(0.5)
    assert meter.totals().partitions[0].newest_age_s == pytest.approx(86_402)


def test_a_partition_without_lag_hides_none_that_nothing_is_known_of() -> None:
    clock, meter = make_meter()
    ends = {TopicPartition("t", 0): 5, TopicPartition("t", 1): 90, TopicPartition("u", 0): 5}
    rows = (
        PartitionProgress("t", 0, 5, timestamp_ms=WALL_MS),
        PartitionProgress("t", 1, 50),  # stalled before it has mirrored a record
        PartitionProgress("u", 0, 5, timestamp_ms=WALL_MS),
    )
    meter.report(Worker(0, "w").report(clock, *rows))
    meter.ends(ends, {})
    view = meter.view()
    assert (view.lag_records, view.lag_s) == (40, None)
    assert [(row.topic, row.lag_s) for row in view.topics] == [("t", None), ("u", 0.0)]
    meter.ends(ends, {TopicPartition("t", 1): WALL_MS - 7_000})
    assert meter.view().lag_s == pytest.approx(7.0)


def test_a_lag_whose_end_nobody_knows_is_unknown_and_not_0() -> None:
    clock, meter = make_meter()
    t, u = TopicPartition("t", 0), TopicPartition("u", 0)
    rows = (PartitionProgress("t", 0, 5, WALL_MS), PartitionProgress("u", 0, 5, WALL_MS))
    meter.report(Worker(0, "w").report(clock, *rows))
    meter.ends({t: 5, u: 5}, {})
    assert (meter.view().lag_records, meter.view().lag_s) == (0, 0.0)
    meter.ends({t: 5}, {})  # the broker of the other one is out of reach
    view = meter.view()
    assert (view.lag_records, view.lag_bytes, view.lag_s) == (None, None, None)
    shown = [(row.topic, row.lag_records, row.lag_s) for row in view.topics]
    assert shown == [("t", 0, 0.0), ("u", None, None)]
    meter.ends({t: 6}, {t: WALL_MS - 7_000})
    assert (meter.view().lag_records, meter.view().lag_s) == (None, pytest.approx(7.0))
    meter.ends({}, {})
    assert (meter.view().lag_records, meter.view().lag_s) == (None, None)


def test_bytes_behind_and_the_time_to_go() -> None:
    clock, meter = make_meter()
    tp, other = TopicPartition("t", 0), TopicPartition("t", 1)
    worker = Worker(0, "w")
    position, old_ms = 0, WALL_MS - 3_600_000
    for _ in range(7):
        clock.ms += 1_000
        position += 100
        worker.work(100)  # 1,000 bytes in all of it
        rows = (
            PartitionProgress("t", 0, position, old_ms, position, 10 * position),
            PartitionProgress("t", 1, 0),
        )
        meter.report(worker.report(clock, *rows))
        meter.ends({tp: 2_000 + position // 2, other: 10}, {tp: old_ms})
    view = meter.view()
    # 1,650 behind, 50 fewer each second; of the other one the flow's mean size is taken.
    assert view.lag_records == 1_660
    assert view.lag_bytes == 10 * 1_650 + round(10 * view.bytes / view.records)
    assert view.catching_up
    assert view.to_go_s == pytest.approx(1_660 / 50)
    assert meter.totals().partitions[0].lag_bytes == 16_500
    meter.ends({tp: 2_400, other: 0}, {tp: clock.wall() - 9_000})
    assert meter.view().to_go_s is None, "9 s is no catching up"


def test_a_lag_that_grows_has_no_end() -> None:
    clock, meter = make_meter()
    tp = TopicPartition("t", 0)
    meter.report(Worker(0, "w").report(clock, PartitionProgress("t", 0, 5)))
    for end in range(100, 110):
        clock.ms += 1_000
        meter.ends({tp: end}, {tp: WALL_MS - 3_600_000})
    assert meter.view().catching_up
    assert meter.view().to_go_s is None


def test_end_offsets_older_than_the_position_are_no_negative_lag() -> None:
    clock, meter = make_meter()
    meter.report(Worker(0, "w").report(clock, PartitionProgress("t", 0, 9)))
    meter.ends({TopicPartition("t", 0): 5}, {})
    assert meter.view().lag_records == 0


def test_a_task_that_has_just_begun_does_not_forget_position_and_age() -> None:
    clock, meter = make_meter()
    tp = TopicPartition("t", 0)
    meter.ends({tp: 10}, {tp: WALL_MS - 3_000})
    meter.report(Worker(0, "w1").report(clock, PartitionProgress("t", 0, 8, WALL_MS - 3_000)))
    clock.ms += 1_000
    meter.report(Worker(0, "w2").report(clock, PartitionProgress("t", 0, -1, -1)))
    view = meter.view()
    assert (view.lag_records, view.lag_s, view.partitions_reported) == (2, 4.0, 1)


def test_a_position_that_is_not_known_yet_makes_no_lag() -> None:
    clock, meter = make_meter()
    meter.ends({TopicPartition("t", 0): 10, TopicPartition("t", 1): 4}, {})
    meter.report(Worker(0, "w1").report(clock, PartitionProgress("t", 0, -1)))
    view = meter.view()
    assert view.lag_records is None
    assert (view.partitions, view.partitions_reported) == (2, 0)


def test_a_partition_that_moved_is_shown_from_its_newest_report() -> None:
    """Whatever the clocks of the two hosts say."""
    clock, meter = make_meter()
    meter.ends({TopicPartition("t", 0): 10}, {})
    giver, taker = Worker(0, "w1"), Worker(1, "w2")
    ahead = Clock(60_000)
    meter.report(giver.report(ahead, PartitionProgress("t", 0, 3)))
    meter.report(taker.report(clock, PartitionProgress("t", 0, 9)))
    assert meter.view().lag_records == 1
    meter.report(replace(taker.report(clock, PartitionProgress("t", 0, 9)), epoch=1, slot=2))
    late = Clock(120_000)
    meter.report(giver.report(late, PartitionProgress("t", 0, 3)))  # of the epoch before
    assert meter.view().lag_records == 1


def test_silence_is_counted_from_when_a_report_came_in() -> None:
    clock, meter = make_meter()
    worker = Worker(0, "w1")
    assert meter.silent_s is None
    for wrong_ms in (-600_000, 600_000):
        assert meter.report(worker.report(Clock(clock.ms + wrong_ms)))
        assert meter.silent_s == 0
        assert meter.totals().reported_ms == clock.wall()
        clock.ms += 40_000
        assert meter.silent_s == 40


def test_halts_come_and_go_with_the_reports() -> None:
    clock, meter = make_meter()
    halt = Halt("CORRUPT_BATCH", "checksum of batch at offset 7")
    worker = Worker(0, "w1")
    meter.report(worker.report(clock, PartitionProgress("t", 0, 7, halt=halt)))
    assert meter.view().halted == {TopicPartition("t", 0): halt}
    assert meter.view().topics[0].halted == 1
    clock.ms += 1_000
    meter.report(worker.report(clock, PartitionProgress("t", 0, 9)))
    assert meter.view().halted == {}


def test_latencies_are_those_of_the_last_seconds() -> None:
    clock, meter = make_meter()
    worker = Worker(0, "w1")
    clock.ms += 1_000
    worker.work(1, latency_ms=4_000)
    meter.report(worker.report(clock))
    assert meter.view().latency_ms_p50 == pytest.approx(3_500, rel=0.5)
    for _ in range(8):
        clock.ms += 1_000
        worker.work(1, latency_ms=1.8)
        meter.report(worker.report(clock))
    view = meter.view()
    assert view.latency_ms_p50 is not None
    assert view.latency_ms_p99 is not None
    assert 1.5 < view.latency_ms_p50 <= view.latency_ms_p99 <= 2.0


def test_a_report_with_other_latency_bounds_still_counts_records() -> None:
    clock, meter = make_meter()
    report = SlotProgress("A->B", 0, "w", 0, clock.wall(), 5, 50, 1, latency_counts=(1, 2))
    assert meter.report(report)
    assert meter.view().records == 5
    assert meter.view().latency_ms_p50 is None


STEP = st.tuples(
    st.integers(0, 2),  # slot
    st.sampled_from(["work", "work", "work", "replace", "silent"]),
    st.integers(0, 100_000),  # records worked
    st.integers(100, 2_000),  # time until the next step
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_totals_are_exact_and_rates_neither_negative_nor_beyond_the_work_done(
    steps: list[tuple[int, str, int, int]],
) -> None:
    """Workers come and go in any order: every record counts once, and no rate exceeds what all
    records of the window, reported at one moment, could make.
    """
    clock, meter = make_meter()
    workers = {slot: Worker(slot, f"s{slot}-0") for slot in range(3)}
    born = 0
    done: list[tuple[int, int]] = []  # (reported at, records)
    unreported = dict.fromkeys(range(3), 0)
    for slot, action, records, wait_ms in steps:
        clock.ms += wait_ms
        if action == "replace":  # a worker that dies has reported what it had done
            meter.report(workers[slot].report(clock))
            done.append((clock.ms, unreported[slot]))
            unreported[slot] = 0
            born += 1
            clock.ms += 1
            workers[slot] = Worker(slot, f"s{slot}-{born}")
        workers[slot].work(records)
        unreported[slot] += records
        if action != "silent":
            meter.report(workers[slot].report(clock))
            done.append((clock.ms, unreported[slot]))
            unreported[slot] = 0
        view = meter.view()
        assert view.records == sum(n for _, n in done)
        assert view.bytes == 100 * view.records
        # Reports up to one gap older than the window may reach into it by interpolation.
        recent = sum(n for at, n in done if at >= clock.ms - 5_000 - 2 * 2_500)
        assert 0 <= view.records_per_s <= recent + 1e-6
        assert 0 <= view.bytes_per_s <= 100 * recent + 1e-4


@given(st.lists(st.floats(0, 60_000, allow_nan=False), min_size=1, max_size=200))
def test_quantiles_lie_in_the_bucket_of_the_true_quantile(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    assert histogram.total == len(values)
    for q in (0.0, 0.5, 0.99, 1.0):
        true = sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
        index = next(i for i, bound in enumerate(BOUNDS_MS) if true <= bound)
        lower = BOUNDS_MS[index - 1] if index else 0.0
        shown = histogram.quantile(q)
        assert shown is not None
        assert lower <= shown <= min(BOUNDS_MS[index], 30_000.0)


@given(
    st.lists(st.floats(0, 40_000), max_size=50),
    st.lists(st.floats(0, 40_000), max_size=50),
)
def test_minus_undoes_merge(first: list[float], second: list[float]) -> None:
    a, b = Histogram(), Histogram()
    for value in first:
        a.add(value)
    for value in second:
        b.add(value)
    both = Histogram(a.counts)
    both.merge(b)
    assert both.total == len(first) + len(second)
    assert both.minus(a).counts == b.counts


def test_histogram_edges() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.5) is None
    histogram.add(-5, 2)  # clocks that differ
    histogram.add(0.5)
    assert histogram.counts[0] == 3
    histogram.add(1e9)
    assert histogram.quantile(1.0) == 30_000.0
    with pytest.raises(ValueError, match="26 bucket counts"):
        Histogram([1, 2])
    with pytest.raises(ValueError, match="former state"):
        Histogram().minus(histogram)
    with pytest.raises(ValueError, match="between 0 and 1"):
        histogram.quantile(1.5)
    assert list(BOUNDS_MS) == sorted(set(BOUNDS_MS))


def test_what_workers_have_joined_adds_up() -> None:
    clock, meter = make_meter()
    first, second = Worker(0, "w1"), Worker(1, "w2")
    for number in (1, 2):
        clock.ms += 1_000
        first.joined = JoinCounts(10 * number, 1_000 * number, 900 * number, 0.5 * number)
        second.joined = JoinCounts(1, 100, 90, 0.25)
        for worker in (first, second):
            worker.work(10)
            meter.report(worker.report(clock))
    assert meter.totals().joined == JoinCounts(21, 2_100, 1_890, 1.25)
    clock.ms += 1_000
    again = Worker(0, "w3")
    again.work(10)
    again.joined = JoinCounts(5, 500, 450, 0.25)
    meter.report(again.report(clock))
    assert meter.totals().joined == JoinCounts(26, 2_600, 2_340, 1.5)


def test_a_partition_that_left_the_assignment_counts_no_more() -> None:
    """Its topic was deleted: its halt would last until the end of the run, with its alert."""
    clock, meter = make_meter()
    gone, stays, worker = TopicPartition("t", 0), TopicPartition("u", 0), Worker(0, "w1")
    halt = Halt("UNKNOWN_TOPIC_OR_PARTITION", "no leader", retriable=True)
    meter.assign(frozenset())  # nothing is known yet
    meter.report(
        worker.report(clock, PartitionProgress(*gone, 7, halt=halt), PartitionProgress(*stays, 3))
    )
    meter.assign(frozenset({gone, stays}))
    assert (set(meter.view().halted), meter.view().partitions) == ({gone}, 2)
    meter.assign(frozenset({stays}))
    view = meter.view()
    assert (view.halted, view.partitions, view.partitions_reported) == ({}, 1, 1)
    assert [(row.topic, row.partitions) for row in view.topics] == [("t", 0), ("u", 1)]
    meter.assign(frozenset())
    assert meter.view().partitions == 0


def test_a_partition_that_halts_has_not_caught_up() -> None:
    clock, meter = make_meter()
    big, small = TopicPartition("t", 0), TopicPartition("t", 1)
    ends, old = {big: 1_000_000, small: 100}, dict.fromkeys((big, small), WALL_MS - 3_600_000)
    worker, rest = Worker(0, "w"), PartitionProgress("t", 1, 0)
    meter.report(worker.report(clock, PartitionProgress("t", 0, 0), rest))
    meter.ends(ends, old)
    clock.ms += 5_000
    halted = PartitionProgress("t", 0, 0, halt=Halt("X", "x"))
    meter.report(worker.report(clock, halted, rest))
    meter.ends(ends, old)
    assert (meter.view().lag_records, meter.view().to_go_s) == (1_000_100, None)
