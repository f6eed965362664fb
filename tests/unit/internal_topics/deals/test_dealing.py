"""Deals of partitions to slots: rules for any loads, and what a reader sees of a few."""

from __future__ import annotations

import cProfile
import itertools
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sparkmirror.internal_topics.deals.dealing import IMBALANCE_MAX, Deal, make_deal
from sparkmirror.internal_topics.deals.load import Load
from sparkmirror.model import TopicPartition

MB = 1_000_000.0
HOUR = 3_600.0

rates = st.one_of(st.just(0.0), st.floats(0, 200 * MB), st.sampled_from([MB, 2 * MB, 50 * MB]))
backlogs = st.one_of(st.just(0.0), st.floats(0, 1e13))
current_loads = st.builds(Load, rates, st.just(0.0), st.integers(-1, 3))
any_loads = st.builds(Load, rates, backlogs, st.integers(-1, 3))
speeds = st.lists(st.floats(0.25, 1.0), max_size=8)
homes = st.lists(st.integers(-1, 9), max_size=12)


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def named(loads: list[Load]) -> dict[TopicPartition, Load]:
    return {tp(number): load for number, load in enumerate(loads)}


def at(slots: list[int]) -> dict[TopicPartition, int]:
    return {tp(number): slot for number, slot in enumerate(slots)}


def peak(
    loads: Mapping[TopicPartition, Load], slot_of: Mapping[TopicPartition, int], slots: int
) -> float:
    """The highest weight of a slot."""
    totals = [0.0] * slots
    for one, slot in slot_of.items():
        totals[slot] += loads[one].weight
    return max(totals)


def floor(loads: Mapping[TopicPartition, Load], slots: int) -> float:
    weights = [load.weight for load in loads.values()]
    return max(sum(weights) / slots, *weights)


@given(
    st.lists(any_loads, max_size=12), st.integers(1, 8), homes, speeds, st.sets(st.integers(0, 9))
)
def test_each_partition_is_dealt_once_and_no_slot_is_empty(
    given_loads: list[Load], slots: int, before: list[int], fast: list[float], apart: set[int]
) -> None:
    loads = named(given_loads)
    for rebalance in (True, False):
        deal = make_deal(
            loads, slots, at(before), apart_before=apart, speeds=fast, rebalance=rebalance
        )
        dealt = [one for share in deal.slots for one in share]
        assert sorted(dealt) == sorted(loads)
        assert len(deal.slots) == min(slots, len(loads))
        assert all(deal.slots)
        assert deal.apart <= set(range(len(deal.slots)))


@given(
    st.lists(any_loads, max_size=12), st.integers(1, 8), homes, speeds, st.sets(st.integers(0, 9))
)
def test_the_same_input_gives_the_same_deal_in_any_order(
    given_loads: list[Load], slots: int, before: list[int], fast: list[float], apart: set[int]
) -> None:
    loads = named(given_loads)
    other = dict(reversed(loads.items()))
    first = make_deal(loads, slots, at(before), apart_before=apart, speeds=fast)
    home = dict(reversed(at(before).items()))
    assert make_deal(other, slots, home, apart_before=sorted(apart)[::-1], speeds=fast) == first


@given(st.lists(current_loads, min_size=1, max_size=6), st.integers(1, 3))
def test_a_first_deal_is_within_four_thirds_of_the_best(
    given_loads: list[Load], slots: int
) -> None:
    loads = named(given_loads)
    count = min(slots, len(loads))
    best = min(
        peak(loads, at(list(choice)), count)
        for choice in itertools.product(range(count), repeat=len(loads))
    )
    deal = make_deal(loads, slots)
    assert peak(loads, deal.slot_of(), count) <= best * 4 / 3 * (1 + 1e-6)


@given(st.lists(current_loads, min_size=1, max_size=40), st.integers(1, 8))
def test_leaders_cost_no_more_than_a_tenth_of_the_mean(given_loads: list[Load], slots: int) -> None:
    loads = named(given_loads)
    alone = {one: Load(load.bytes_s, load.backlog_bytes) for one, load in loads.items()}
    count = min(slots, len(loads))
    without = peak(loads, make_deal(alone, slots).slot_of(), count)
    reached = peak(loads, make_deal(loads, slots).slot_of(), count)
    assert reached <= max(without, 1.1 * floor(loads, count)) * (1 + 1e-6)


@given(st.lists(current_loads, min_size=1, max_size=30), st.integers(1, 8), speeds)
def test_a_deal_is_kept(given_loads: list[Load], slots: int, fast: list[float]) -> None:
    loads = named(given_loads)
    first = make_deal(loads, slots, speeds=fast)
    again = make_deal(loads, slots, first.slot_of(), speeds=fast)
    assert again.slots == first.slots
    assert again.moves == ()


@given(st.lists(any_loads, min_size=1, max_size=30), st.integers(1, 8))
def test_a_deal_with_backlogs_is_kept(given_loads: list[Load], slots: int) -> None:
    loads = named(given_loads)
    first = make_deal(loads, slots)
    again = make_deal(loads, slots, first.slot_of(), apart_before=first.apart)
    assert (again.slots, again.apart, again.moves) == (first.slots, first.apart, ())


@given(st.lists(current_loads, min_size=1, max_size=12), st.integers(1, 5), st.data())
def test_what_is_balanced_stays(given_loads: list[Load], slots: int, data: st.DataObject) -> None:
    loads = named(given_loads)
    count = min(slots, len(loads))
    some = st.lists(st.integers(0, count - 1), min_size=len(loads), max_size=len(loads))
    before = data.draw(some)
    assume(len(set(before)) == count)
    deal = make_deal(loads, slots, at(before))
    if peak(loads, at(before), count) <= IMBALANCE_MAX * floor(loads, count):
        assert deal.moves == ()


@given(st.lists(current_loads, min_size=1, max_size=12), st.integers(1, 5), st.data())
def test_moves_help_and_none_of_them_is_too_much(
    given_loads: list[Load], slots: int, data: st.DataObject
) -> None:
    loads = named(given_loads)
    count = min(slots, len(loads))
    some = st.lists(st.integers(0, count - 1), min_size=len(loads), max_size=len(loads))
    before = data.draw(some)
    assume(len(set(before)) == count)
    deal = make_deal(loads, slots, at(before))
    if not deal.moves:
        return
    was, now = peak(loads, at(before), count), peak(loads, deal.slot_of(), count)
    assert now <= 0.95 * was * (1 + 1e-6)
    fresh = peak(loads, make_deal(loads, slots).slot_of(), count)
    most = max(now, IMBALANCE_MAX * floor(loads, count))
    assert most <= IMBALANCE_MAX * max(fresh, floor(loads, count)) * (1 + 1e-6)
    for move in deal.moves:
        assert deal.slot_of()[move.tp] == move.after != move.before == at(before)[move.tp]
        assert move.reason
        without = {**deal.slot_of(), move.tp: move.before}
        emptied = set(without.values()) != set(range(count))
        assert emptied or peak(loads, without, count) > most


@given(st.lists(any_loads, min_size=2, max_size=12), st.integers(2, 8), homes)
def test_what_is_far_behind_is_apart_from_what_is_current(
    given_loads: list[Load], slots: int, before: list[int]
) -> None:
    loads = named(given_loads)
    deal = make_deal(loads, slots, at(before))
    far = {one for one, load in loads.items() if load.is_far_behind(before=False)}
    both = 0 < len(far) < len(loads)
    assert bool(deal.apart) == (both and len(deal.slots) > 1)
    if deal.apart:
        assert far == {one for slot in deal.apart for one in deal.slots[slot]}


def heavy(deal: Deal, *numbers: int) -> list[int]:
    """Slots of partitions."""
    return [deal.slot_of()[tp(number)] for number in numbers]


def test_without_loads_partitions_go_round() -> None:
    deal = make_deal({tp(number): Load() for number in range(7)}, 3)
    assert [[one.partition for one in share] for share in deal.slots] == [
        [0, 3, 6],
        [1, 4],
        [2, 5],
    ]


def test_one_move_relieves_a_slot_and_says_why() -> None:
    rates = [10, 10, 10, 1, 1, 1]
    deal = make_deal(named([Load(rate * MB) for rate in rates]), 2, at([0, 0, 0, 1, 1, 1]))
    (move,) = deal.moves
    assert (move.before, move.after) == (0, 1)
    assert move.reason == "slot 0 had 1.8 times the mean"


def test_a_backlog_of_hours_goes_apart_and_back() -> None:
    def load(behind_h: float) -> list[Load]:
        return [*[Load(MB)] * 4, Load(MB, behind_h * HOUR * MB)]

    before = at([0, 1, 0, 1, 1])
    deal = make_deal(named(load(3)), 2, before)
    assert deal.apart == {1}
    assert deal.slots[1] == (tp(4),)
    reasons = {move.tp.partition: move.reason for move in deal.moves}
    assert reasons == dict.fromkeys((1, 3), "slot 1 is for partitions that are far behind now")
    # An hour is the edge; once apart, it stays until it is ten minutes behind.
    assert not make_deal(named(load(0.9)), 2, before).apart
    for hours, apart in ((0.9, {1}), (0.1, set())):
        again = make_deal(named(load(hours)), 2, deal.slot_of(), apart_before=deal.apart)
        assert again.apart == apart
    moved = make_deal(named(load(3)), 3, at([0, 1, 2, 0, 0]), apart_before={2})
    assert moved.slot_of()[tp(4)] == 2
    reason = {move.tp.partition: move.reason for move in moved.moves}[4]
    assert reason == "it is 3 h behind: apart from what is current"


def test_a_small_backlog_is_not_put_apart() -> None:
    loads = [Load(MB), Load(MB), Load(100.0, 100 * 24 * HOUR)]
    assert loads[2].behind_s == 24 * HOUR
    assert not make_deal(named(loads), 2).apart


def test_backlogs_leave_what_is_current_twice_the_slots_that_it_needs() -> None:
    loads = [*[Load(10 * MB)] * 8, *[Load(MB, 1e13)] * 8]
    free = make_deal(named(loads), 8)
    assert len(free.apart) == 7  # by weight alone
    deal = make_deal(named(loads), 8, capacity_bytes_s=40 * MB)
    assert len(deal.apart) == 4


def test_a_slow_slot_gets_less() -> None:
    loads = named([Load(MB)] * 12)
    before = at([number % 3 for number in range(12)])
    deal = make_deal(loads, 3, before, speeds=[1.0, 0.5, 1.0])
    assert len(deal.slots[1]) < 4
    assert {move.before for move in deal.moves} == {1}
    assert deal.moves[0].reason == (
        "slot 1 had 1.7 times the mean for its speed, 50% of that of the others"
    )


def test_partitions_of_a_leader_are_together() -> None:
    loads = {tp(number): Load(MB, leader=number % 4) for number in range(64)}
    deal = make_deal(loads, 8)
    pairs = {(slot, loads[one].leader) for one, slot in deal.slot_of().items()}
    assert len(pairs) <= 12  # in turn there are 16, and one by one at most 32
    assert max(map(len, deal.slots)) <= 9


def test_new_partitions_move_no_other_one() -> None:
    loads = {tp(number): Load() for number in range(9)}
    before = {tp(0): 0, tp(1): 1, tp(2): 1, tp(3): 1}
    deal = make_deal(loads, 3, before, rebalance=False)
    assert deal.moves == ()
    assert heavy(deal, 0, 1, 2, 3) == [0, 1, 1, 1]
    assert Counter(deal.slot_of().values()) == {0: 3, 1: 3, 2: 3}


def test_a_slot_that_is_gone_gives_its_partitions_to_the_others() -> None:
    loads = {tp(number): Load() for number in range(6)}
    deal = make_deal(loads, 2, at([0, 1, 2, 0, 1, 2]))
    assert {(move.tp.partition, move.reason) for move in deal.moves} == {
        (2, "slot 2 is gone"),
        (5, "slot 2 is gone"),
    }


@pytest.mark.parametrize("sticky", [False, True])
def test_the_work_of_a_deal_grows_with_partitions_not_with_their_square(sticky: bool) -> None:
    """Work is counted in calls, which are the same on any machine."""

    def calls(count: int) -> int:
        loads = {
            tp(number): Load(MB / (1 + number % 997), leader=number % 30) for number in range(count)
        }
        slots = [number % 100 if number % 3 else 0 for number in range(count)]
        before = at(slots) if sticky else {}
        profile = cProfile.Profile()
        deal = profile.runcall(make_deal, loads, 100, before)
        assert sum(map(len, deal.slots)) == count
        return sum(entry.callcount for entry in profile.getstats())

    few, many = calls(5_000), calls(10_000)
    assert many < 2.5 * few
    assert many < 350 * 10_000
