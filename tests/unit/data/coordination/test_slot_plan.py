"""How long an attempt of a slot's task streams, and which slot follows which deal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkmirror.data.coordination.slot_plan import SlotPlan, plan_slots
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.deals.dealing import Deal
from sparkmirror.internal_topics.deals.record import DealRecord
from sparkmirror.model import TopicPartition

EPOCH_S, PLANNED_S = 300, 1_000_000.0


def _plan() -> SlotPlan:
    (plan,) = plan_slots(
        [SourcePartition("t", 0, "A.t")],
        slots_max=1,
        epoch=0,
        run_id="r",
        ends=None,
        control_offset=0,
        planned_at_s=PLANNED_S,
    )
    return plan


@pytest.mark.parametrize(
    ("attempt", "spent_s", "left_s"),
    [
        (0, 0.0, 300),
        (0, 12.0, 288),  # all slots end at the same time
        (0, 250.0, 300),  # clocks of hosts may differ
        (0, -250.0, 300),
        (1, 10.0, 290),
        (3, 299.5, 0.5),
        (1, 310.0, 0),  # the others are done
        (1, -5.0, 300),  # a clock that cannot be right
        (1, 3_600.0, 300),
    ],
)
def test_a_later_attempt_ends_with_the_other_slots(
    attempt: int, spent_s: float, left_s: float
) -> None:
    plan = _plan()
    assert plan.time_left_s(EPOCH_S, attempt, PLANNED_S + spent_s) == pytest.approx(left_s)


def _shares(deal: DealRecord | None, partitions: int, slots_max: int) -> list[list[int]]:
    plans = plan_slots(
        [SourcePartition("t", number, "A.t") for number in range(partitions)],
        slots_max=slots_max,
        epoch=0,
        run_id="r",
        ends=None,
        control_offset=0,
        deal=deal,
    )
    assert {plan.slots for plan in plans} == {len(plans)}
    return [[p.partition for p in plan.partitions] for plan in plans]


def _record(*shares: list[int], weights: tuple[int, ...], apart: set[int]) -> DealRecord:
    slots = tuple(tuple(TopicPartition("t", number) for number in share) for share in shares)
    return DealRecord("A->B", "r", 1, 0, Deal(slots, frozenset(apart)), weights, 0)


def test_slots_follow_the_deal() -> None:
    deal = _record([3], [0, 1, 2], weights=(9_000_000, 8_000), apart={0})
    assert _shares(deal, 4, 2) == [[3], [0, 1, 2]]


def test_partitions_that_are_in_no_deal_go_to_the_lightest_slot_of_what_is_current() -> None:
    deal = _record([0], [1], [2], weights=(1_000, 9_000_000, 8_000_000), apart={0})
    assert _shares(deal, 5, 3) == [[0], [1], [2, 3, 4]]


def test_a_deal_of_other_partitions_and_slots_leaves_no_slot_empty() -> None:
    deal = _record([0, 7], [1], [], [2, 3, 4], weights=(1, 1, 1, 1), apart={7})
    for partitions in range(1, 6):
        for slots_max in range(1, 6):
            shares = _shares(deal, partitions, slots_max)
            assert sorted(number for share in shares for number in share) == [*range(partitions)]
            assert len(shares) == min(partitions, slots_max)
            assert all(shares)
    assert _shares(deal, 5, 4)[:2] == [[0], [1]]


def test_a_slot_that_begins_slowly_has_half_of_a_short_epoch() -> None:
    plan = _plan()
    assert plan.time_left_s(4, 0, PLANNED_S + 30) == 2


@pytest.mark.parametrize(("epoch_s", "left_s"), [(86_400, 300), (20, 20)])
def test_an_epoch_before_which_something_was_not_checked_ends_soon(
    epoch_s: float, left_s: float
) -> None:
    plan = _plan()
    assert replace(plan, brief=True).time_left_s(epoch_s, 0, PLANNED_S) == left_s
    assert plan.time_left_s(epoch_s, 0, PLANNED_S) == epoch_s
