"""How long an attempt of a slot's task streams."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkmirror.data.coordination.slot_plan import plan_slots
from sparkmirror.internal_topics.commands import SourcePartition

EPOCH_S, PLANNED_S = 300, 1_000_000.0


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
    (plan,) = plan_slots(
        [SourcePartition("t", 0, "A.t")],
        slots_max=1,
        epoch=0,
        run_id="r",
        ends=None,
        control_offset=0,
        planned_at_s=PLANNED_S,
    )
    assert plan.time_left_s(EPOCH_S, attempt, PLANNED_S + spent_s) == pytest.approx(left_s)


def test_a_slot_that_begins_slowly_has_half_of_a_short_epoch() -> None:
    (plan,) = plan_slots(
        [SourcePartition("t", 0, "A.t")],
        slots_max=1,
        epoch=0,
        run_id="r",
        ends=None,
        control_offset=0,
        planned_at_s=PLANNED_S,
    )
    assert plan.time_left_s(4, 0, PLANNED_S + 30) == 2


@pytest.mark.parametrize(("epoch_s", "left_s"), [(86_400, 300), (20, 20)])
def test_an_epoch_before_which_something_was_not_checked_ends_soon(
    epoch_s: float, left_s: float
) -> None:
    (plan,) = plan_slots(
        [SourcePartition("t", 0, "A.t")],
        slots_max=1,
        epoch=0,
        run_id="r",
        ends=None,
        control_offset=0,
        planned_at_s=PLANNED_S,
    )
    assert replace(plan, brief=True).time_left_s(epoch_s, 0, PLANNED_S) == left_s
    assert plan.time_left_s(epoch_s, 0, PLANNED_S) == epoch_s
