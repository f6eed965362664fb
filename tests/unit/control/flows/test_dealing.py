"""What the driver makes of end offsets and reports: loads, and deals that it publishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.control.flows import dealing
from sparkmirror.control.flows.dealing import Dealing
from sparkmirror.control.flows.loads import Loads
from sparkmirror.control.flows.moving import Moving
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import Unreachable
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.deals.record import DealRecord
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.dealing import DealFigures
from sparkmirror.progress import Halt, PartitionProgress, SlotProgress, ThrottleUse

KB = 1_000
STEP_S = 10.0


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


class Flow:
    """A flow with records of 1 kB. ``rates``: records per second written to each partition.

    ``shares``: the partitions of each slot. ``carries``: the part of what comes in that the slot
    mirrors.
    """

    def __init__(self, rates: list[int], shares: list[list[int]]) -> None:
        self.replans: list[int] = []
        self.ordered: list[dict[TopicPartition, int]] = []
        self.rates, self.shares = rates, shares
        self.now_s, self.epoch = 1_000.0, 1
        self.hosts = ["h"] * len(shares)
        self.carries = [1.0] * len(shares)
        self.ends = dict.fromkeys(map(tp, range(len(rates))), 0)
        self.positions = dict.fromkeys(self.ends, 0)
        self.mirrored = dict.fromkeys(self.ends, 0)
        self.leaders: dict[TopicPartition, int] = {}
        self.written: list[DealRecord] = []
        self.told: list[str] = []
        self.record_bytes = KB
        self.fails = False
        self.published = SimpleNamespace(
            frozen=None,
            draining=False,
            assignment=lambda: self.assignment,
            version=7,
            replan=self._replan,
            move=self._move,
        )
        self.replan_fails = False
        self.within = False  # whether partitions move within the epoch
        self.moving = Moving("A->B", self.published, lambda: self.now_s)  # type: ignore[arg-type]
        self.dealing = Dealing(
            len(shares), "r1", "A->B", published=self.published,  # type: ignore[arg-type]
            moving=self.moving, publish=self._publish, progress=self.reports,
            ends=lambda: dict(self.ends),
            leaders=self._leaders, notify=self.told.append,
            now_ms=lambda: int(self.now_s * 1000), ticks_s=lambda: self.now_s,
        )  # fmt: skip

    @property
    def assignment(self) -> Assignment:
        return Assignment("A->B", tuple(SourcePartition(*one, "A.t") for one in sorted(self.ends)))

    def _publish(self, record: DealRecord) -> None:
        if self.fails:
            raise Unreachable("B is away", where="cluster B")
        self.written.append(record)

    def _replan(self) -> None:
        if self.replan_fails:
            raise Unreachable("B is away", where="cluster B")
        self.replans.append(len(self.written))
        self.published.version += 1

    def _move(self, to: Mapping[TopicPartition, int]) -> tuple[int, int] | None:
        if not self.within:
            return None
        self.published.version += 1
        self.ordered.append(dict(to))
        return self.published.version, 1

    def _leaders(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {one: self.leaders[one] for one in tps if one in self.leaders}

    def pass_time(self, seconds: float = STEP_S) -> None:
        self.now_s += seconds
        for one in self.ends:
            self.ends[one] += int(self.rates[one.partition] * seconds)
        for slot, share in enumerate(self.shares):
            for one in map(tp, share):
                got = int(self.rates[one.partition] * seconds * self.carries[slot])
                got = min(got, self.ends[one] - self.positions[one])
                self.positions[one] += got
                self.mirrored[one] += got

    def reports(self) -> tuple[SlotProgress, ...]:
        found = []
        for slot, share in enumerate(self.shares):
            rows = tuple(
                PartitionProgress(
                    "t", number, self.positions[tp(number)],
                    records=self.mirrored[tp(number)],
                    bytes=self.mirrored[tp(number)] * self.record_bytes,
                )
                for number in share
            )  # fmt: skip
            found.append(
                SlotProgress(
                    "A->B", slot, f"{self.hosts[slot]}:1:{self.epoch}", self.epoch,
                    int(self.now_s * 1000), sum(one.records for one in rows),
                    sum(one.bytes for one in rows), 0, partitions=rows, run_id="r1", attempt=slot,
                )
            )  # fmt: skip
        return tuple(found)

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP_S)):
            self.pass_time()
            self.dealing.step()

    def next_epoch(self) -> None:
        """The slots follow the newest deal."""
        self.epoch += 1
        self.mirrored = dict.fromkeys(self.mirrored, 0)
        slots = self.written[-1].deal.slots
        self.shares = [[one.partition for one in share] for share in slots]


def test_a_run_begins_with_what_the_leaders_say() -> None:
    flow = Flow([1] * 4, [[], []])
    flow.leaders = {tp(number): number % 2 for number in range(4)}
    flow.dealing.begin(flow.assignment)
    (record,) = flow.written
    assert (record.flow, record.run_id, record.number, record.moved) == ("A->B", "r1", 1, 0)
    assert {frozenset(one.partition % 2 for one in share) for share in record.deal.slots} == {
        frozenset({0}),
        frozenset({1}),
    }


def test_nothing_is_written_while_slots_are_balanced() -> None:
    flow = Flow([1_000] * 6, [[0, 2, 4], [1, 3, 5]])
    flow.dealing.begin(flow.assignment)
    flow.run(600)
    assert len(flow.written) == 1
    assert flow.told == []


def test_heavy_partitions_come_apart_and_stay_so() -> None:
    flow = Flow([9_000, 10, 8_000, 10, 10, 10], [[0, 2, 4], [1, 3, 5]])
    flow.dealing.begin(flow.assignment)
    flow.shares = [[0, 2, 4], [1, 3, 5]]  # the first deal says the same
    flow.run(120)
    assert [record.moved for record in flow.written] == [0, 1]
    record = flow.written[-1]
    (move,) = record.deal.moves
    assert (move.tp, move.before, move.after) in ((tp(0), 0, 1), (tp(2), 0, 1))
    assert move.reason == "slot 0 had 2.0 times the mean"
    assert flow.told == ["A->B: 1 partition gets another slot: slot 0 had 2.0 times the mean"]
    flow.run(300)
    assert len(flow.written) == 2, "the deal is still to take effect"
    flow.next_epoch()
    flow.run(600)
    assert len(flow.written) == 2
    first, second = flow.dealing.slots() or ()
    assert first.bytes_s == pytest.approx(8_020 * KB, rel=0.2)
    assert second.bytes_s == pytest.approx(9_020 * KB, rel=0.2)
    figures = flow.dealing.figures()
    assert figures == DealFigures((first.weight, second.weight), 1)


def test_a_deal_that_could_not_be_written_is_written_later() -> None:
    flow = Flow([9_000, 9_000, 10, 10], [[0, 1], [2, 3]])
    flow.fails = True
    with pytest.raises(Unreachable):
        flow.run(120)
    assert flow.dealing.figures().moved == 0
    flow.fails = False
    flow.run(120)
    assert [record.moved for record in flow.written] == [1]


def test_a_deal_with_moves_counts_from_the_next_assignment_which_follows_it() -> None:
    flow = Flow([9_000, 9_000, 10, 10], [[0, 1], [2, 3]])
    flow.run(120)
    assert [(record.moved, record.version) for record in flow.written] == [(1, 8)]
    assert flow.replans == [1], "once, behind the record"


def test_partitions_move_within_the_epoch_and_are_dealt_again_once_they_are_there() -> None:
    flow = Flow([9_000, 9_000, 10, 10], [[0, 1], [2, 3]])
    flow.within = True
    flow.run(120)
    assert [(record.moved, record.version) for record in flow.written] == [(1, 8)]
    (order,) = flow.ordered
    ((moved, slot),) = order.items()
    assert (slot, flow.replans) == (1, [])
    # Nobody has it on its way, and nothing is dealt meanwhile, not even something new.
    flow.shares[0].remove(moved.partition)
    flow.rates = [10, 10, 9_000, 9_000]
    flow.run(900)
    assert len(flow.written) == 1
    flow.moving._order.given.add(moved)  # type: ignore[union-attr]
    flow.shares[1].append(moved.partition)
    flow.run(60)
    assert [record.moved for record in flow.written] == [1, 1]
    assert flow.replans == []
    assert len(flow.ordered) == 2


def test_an_assignment_that_did_not_follow_its_deal_is_published_later() -> None:
    flow = Flow([9_000, 9_000, 10, 10], [[0, 1], [2, 3]])
    flow.replan_fails = True
    with pytest.raises(Unreachable):
        flow.run(120)
    flow.replan_fails = False
    flow.run(400)
    assert [(record.moved, record.version) for record in flow.written] == [(1, 8)]
    assert flow.replans == [1]


def test_partitions_move_at_most_every_five_minutes() -> None:
    flow = Flow([9_000, 9_000, 10, 10], [[0, 1], [2, 3]])
    flow.run(120)
    flow.next_epoch()
    flow.rates = [10, 10, 9_000, 9_000] if flow.shares[0] == [0] else [9_000, 10, 10, 9_000]
    moved_at, before = flow.now_s, len(flow.replans)
    while len(flow.replans) == before and flow.now_s < moved_at + 1_200:
        flow.run(STEP_S)
    assert len(flow.replans) == before + 1
    assert flow.now_s - moved_at >= 200


def test_a_partition_that_was_added_is_dealt_once_a_slot_reports_it() -> None:
    flow = Flow([9_000, 9_000, 10, 10], [[0, 1], [2, 3]])
    flow.rates.append(5)
    flow.ends[tp(4)] = flow.positions[tp(4)] = flow.mirrored[tp(4)] = 0
    flow.run(120)
    assert tp(4) not in flow.written[-1].deal.slot_of()
    flow.next_epoch()
    flow.shares[0].append(4)
    flow.run(60)
    flow.rates[0] = flow.rates[1] = 10
    flow.rates[2] = flow.rates[3] = 9_000
    flow.run(900)
    assert tp(4) in flow.written[-1].deal.slot_of()


def test_a_run_of_frozen_ends_is_not_dealt_again() -> None:
    flow = Flow([9_000, 9_000, 10, 10], [[0, 1], [2, 3]])
    flow.published.frozen = {}
    flow.run(300)
    assert flow.written == []
    assert flow.dealing.slots() is not None


def test_an_unavailable_source_changes_no_rate() -> None:
    loads = Loads()
    flow = Flow([1_000, 3_000], [[0], [1]])
    for _ in range(20):
        flow.pass_time()
        loads.observe(flow.reports(), dict(flow.ends), flow.now_s)
    before = [loads.load(tp(number)).bytes_s for number in (0, 1)]
    assert before == pytest.approx([1_000 * KB, 3_000 * KB], rel=0.01)
    for _ in range(60):
        flow.now_s += STEP_S
        loads.observe(flow.reports(), dict(flow.ends), flow.now_s)
    assert [loads.load(tp(number)).bytes_s for number in (0, 1)] == before


def test_a_backlog_is_counted_in_bytes_and_put_apart() -> None:
    flow = Flow([1_000, 1_000, 1_000, 1_000], [[0, 2], [1, 3]])
    flow.ends[tp(3)] = 4 * 3_600 * 1_000
    flow.run(120)
    record = flow.written[-1]
    assert record.deal.apart == {1}
    assert record.deal.slots[1] == (tp(3),)
    slots = flow.dealing.slots() or ()
    assert [one.apart for one in slots] == [False, True]
    assert slots[1].backlog_bytes == pytest.approx(4 * 3_600 * 1_000 * KB, rel=0.01)


def slow(flow: Flow) -> Any:
    loads = Loads()
    for _ in range(30):
        flow.pass_time()
        loads.observe(flow.reports(), dict(flow.ends), flow.now_s)
    return loads


def test_a_slot_whose_backlog_grows_alone_counts_as_slow_until_its_host_changes() -> None:
    flow = Flow([5_000] * 6, [[0, 1], [2, 3], [4, 5]])
    flow.carries = [1.0, 0.6, 1.0]
    loads = slow(flow)
    assert loads.speeds(3) == pytest.approx([1.0, 0.6, 1.0], abs=0.02)
    flow.hosts[1], flow.epoch = "other", 2
    flow.pass_time()
    loads.observe(flow.reports(), dict(flow.ends), flow.now_s)
    assert loads.speeds(3) == [1.0, 1.0, 1.0]


def test_no_slot_is_slow_if_all_backlogs_grow_or_it_only_has_more_to_do() -> None:
    everywhere = Flow([5_000] * 6, [[0, 1], [2, 3], [4, 5]])
    everywhere.carries = [0.6, 0.5, 0.6]
    assert slow(everywhere).speeds(3) == [1.0, 1.0, 1.0]
    more = Flow([50_000, 50_000, 5_000, 5_000, 5_000, 5_000], [[0, 1], [2, 3], [4, 5]])
    more.carries = [0.6, 1.0, 1.0]
    assert slow(more).speeds(3) == [1.0, 1.0, 1.0]


def test_positions_of_a_recreated_topic_count_from_its_new_start() -> None:
    loads = Loads()
    flow = Flow([1_000], [[0]])
    for _ in range(4):
        flow.pass_time()
        loads.observe(flow.reports(), dict(flow.ends), flow.now_s)
    flow.ends[tp(0)], flow.positions[tp(0)] = 0, 0
    flow.carries = [0.5]
    for _ in range(4):
        flow.pass_time()
        loads.observe(flow.reports(), dict(flow.ends), flow.now_s)
    assert loads.load(tp(0)).backlog_bytes == pytest.approx(4 * STEP_S * 500 * KB)


def test_where_a_partition_is_comes_from_the_later_epoch_then_from_the_later_report() -> None:
    """Clocks of two hosts differ."""

    def report(slot: int, epoch: int, time_ms: int, position: int) -> SlotProgress:
        row = PartitionProgress("t", 0, position, records=10, bytes=10_000)
        return SlotProgress(
            "A->B", slot, f"h{slot}/1", epoch, time_ms, 10, 10_000, 1, partitions=(row,)
        )

    ends = {tp(0): 100}
    for reports in (
        (report(1, 2, 0, 90), report(0, 1, 60_000, 10)),
        (report(1, 2, 60_000, 10), report(0, 2, 0, 90)),
    ):
        loads = Loads()
        loads.observe((), ends, 1.0)
        loads.observe(reports, ends, 2.0)
        assert loads.load(tp(0)).backlog_bytes == 10 * 1_000


@pytest.mark.parametrize("number", [-(10**400), -1, 0, 10**400], ids="abcd")
def test_numbers_that_no_slot_reports_break_nothing(number: int) -> None:
    flow = Flow([1_000, 2_000], [[0], [1]])
    flow.run(30)
    flow.record_bytes = number
    flow.run(60)
    for one in flow.dealing.slots() or ():
        assert 0 <= one.weight <= 10**15


class Halted(Flow):
    """The first partition is halted: its position stands still, whatever its slot does."""

    def pass_time(self, seconds: float = STEP_S) -> None:
        before = self.positions[tp(0)], self.mirrored[tp(0)]
        super().pass_time(seconds)
        self.positions[tp(0)], self.mirrored[tp(0)] = before

    def reports(self) -> tuple[SlotProgress, ...]:
        halt = Halt("CORRUPT_MESSAGE", "damaged", retriable=True)
        return tuple(
            replace(
                report,
                partitions=tuple(
                    replace(p, halt=halt) if p.partition == 0 else p for p in report.partitions
                ),
            )
            for report in super().reports()
        )


@pytest.mark.parametrize("slots", [2, 4])
def test_a_halted_partition_makes_no_slot_slow_and_moves_nothing(slots: int) -> None:
    flow = Halted([2_000] * 8, [list(range(8))[index::slots] for index in range(slots)])
    flow.dealing.begin(flow.assignment)
    flow.run(3_600)
    assert flow.replans == []
    assert flow.dealing._loads.speeds(slots) == [1.0] * slots


class Throttled(Flow):
    """A limit holds the first slot back."""

    waited_ms = 0

    def pass_time(self, seconds: float = STEP_S) -> None:
        super().pass_time(seconds)
        self.waited_ms += 9_000

    def reports(self) -> tuple[SlotProgress, ...]:
        first, *rest = super().reports()
        use = ThrottleUse("t", 1, 1, self.waited_ms, self.waited_ms)
        return (replace(first, throttles=(use,)), *rest)


def test_the_last_report_of_a_slot_that_is_gone_counts_no_more() -> None:
    """It had given up a partition, which another slot mirrors now."""
    flow = Flow([9_000, 10], [[0], [1]])
    halt = Halt("X", "it was denied")
    gone = PartitionProgress("t", 0, 5, halt=halt)
    last = SlotProgress("A->B", 2, "h:1:0", 0, 1, 0, 0, 0, partitions=(gone,), run_id="r1")
    flow.dealing._progress = lambda: (*flow.reports(), last)
    flow.run(60)
    slots = flow.dealing.slots()
    assert slots is not None
    assert slots[0].bytes_s == pytest.approx(9_000 * KB, rel=0.2)


def test_a_limit_makes_no_slot_slow() -> None:
    flow = Throttled([2_000] * 8, [[0, 4], [1, 5], [2, 6], [3, 7]])
    flow.carries = [0.5, 1, 1, 1]
    flow.dealing.begin(flow.assignment)
    flow.run(600)
    assert flow.dealing._loads.speeds(4) == [1.0] * 4
    assert flow.replans == []


def test_a_deal_that_fails_is_written_later_though_the_planner_placed_otherwise() -> None:
    flow = Flow([9_000, 9_000, 10, 10], [[0, 1], [2, 3]])
    flow.dealing.begin(flow.assignment)
    assert [
        [one.partition for one in share] for share in flow.written[-1].deal.slots
    ] != flow.shares
    flow.fails = True
    with pytest.raises(Unreachable):
        flow.run(120)
    flow.fails = False
    flow.run(600)
    assert [record.moved for record in flow.written] == [0, 1]


def test_more_partitions_than_a_record_has_room_for_are_not_dealt(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealing, "ASSIGNMENT_PIECE_BYTES_MAX", 20)
    flow = Flow([9_000, 9_000, 10, 10], [[0, 1], [2, 3]])
    flow.dealing.begin(flow.assignment)
    flow.run(300)
    assert flow.written == []
    assert flow.replans == []
    assert [one.message for one in caplog.records].count(
        "flow A->B: 4 partitions are too many to be dealt by load; they go round"
    ) == 1


def test_nothing_is_dealt_while_a_part_of_a_report_is_missing() -> None:
    """Those in it would seem to have no slot, and the others would be dealt without them."""
    flow = Flow([9_000, 10, 8_000, 10, 10, 10], [[0, 2, 4], [1, 3, 5]])
    flow.dealing.begin(flow.assignment)
    whole = flow.reports

    def half() -> tuple[SlotProgress, ...]:
        first, *rest = whole()
        return replace(first, partitions=first.partitions[:2], complete=False), *rest

    flow.dealing._progress = half
    flow.run(300)
    assert len(flow.written) == 1
    flow.dealing._progress = whole
    flow.run(60)
    assert [record.moved for record in flow.written] == [0, 1]
