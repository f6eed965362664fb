"""How long partitions pause between two epochs."""

from __future__ import annotations

from typing import Any

import pytest

from sparkmirror.observe.figures.pauses import Pauses, PauseTotals
from sparkmirror.progress import SlotProgress


def _report(
    epoch: int, slot: int, began_ms: int, ended_ms: int = 0, attempt: int = 0, run_id: str = ""
) -> SlotProgress:
    return SlotProgress(
        "A->B", slot, f"w{slot}", epoch, 0, 0, 0, 0,
        run_id=run_id, attempt=attempt, began_ms=began_ms, ended_ms=ended_ms,
    )  # fmt: skip


def test_a_pause_lasts_from_the_first_slots_end_to_the_last_slots_begin() -> None:
    pauses = Pauses()
    for one in (
        _report(1, 0, 1_000, 61_000),
        _report(1, 1, 1_200, 61_100),
        _report(2, 0, 61_400),
        _report(2, 1, 61_600),
    ):
        pauses.note(one)
    assert pauses.totals() == PauseTotals(0.6, 1, 0.6)


def test_reports_that_are_late_or_come_again_count_once() -> None:
    pauses = Pauses()
    pauses.note(_report(1, 0, 1_000))
    pauses.note(_report(2, 0, 61_400))
    assert pauses.totals() == PauseTotals()
    for _ in range(2):
        pauses.note(_report(1, 0, 1_000, 61_000))
        # The task failed, and was started again much later.
        pauses.note(_report(2, 0, 95_000))
    assert pauses.totals() == PauseTotals(0.4, 1, 0.4)


def test_pauses_add_up_over_epochs() -> None:
    pauses = Pauses()
    for epoch in range(20):
        pauses.note(_report(epoch, 0, epoch * 10_000 + 500, (epoch + 1) * 10_000))
    totals = pauses.totals()
    assert (totals.last_s, totals.count) == (0.5, 19)
    assert totals.sum_s == pytest.approx(9.5)


def test_slots_of_older_releases_report_no_times() -> None:
    pauses = Pauses()
    pauses.note(_report(1, 0, 0, 0))
    pauses.note(_report(2, 0, 0, 0))
    assert pauses.totals() == PauseTotals()


@pytest.mark.parametrize("again", [{"attempt": 2}, {"run_id": "another"}])
def test_a_task_that_ended_and_began_again_in_its_epoch_began_no_pause(again: Any) -> None:
    pauses = Pauses()
    for one in (
        _report(1, 0, 1_000, 5_000, attempt=1),
        _report(1, 1, 1_000),
        _report(1, 0, 6_000, **again),
        _report(1, 0, 1_000, 5_000, attempt=1),  # comes late
        _report(1, 1, 1_000, 61_100),
        _report(1, 0, 6_000, 61_000, **again),
        _report(2, 0, 61_400),
        _report(2, 1, 61_300),
    ):
        pauses.note(one)
    assert pauses.totals() == PauseTotals(0.4, 1, 0.4)
