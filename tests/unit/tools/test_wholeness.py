"""What `python -m tests.faults.elections` takes for equal, and what for a fault."""

from __future__ import annotations

import pytest

from tests.faults.wholeness import Compared, Outcome, Summary, compare, render

WANTED = [b"%d" % number for number in range(10)]
WHOLE = Outcome("made anew", told_as=frozenset({"target-recreated"}), told_s=1.0, whole_s=2.0)


def _log(*numbers: int) -> list[bytes | None]:
    return [b"%d" % number for number in numbers]


@pytest.mark.parametrize(
    ("numbers", "repaired", "found"),
    [
        (range(10), (), Compared()),
        (range(7), (), Compared(missing=3)),
        ((0, 1, 2, 2, *range(3, 10)), (), Compared(twice=1)),
        ((*range(10), 3), (), Compared(twice=1)),
        ((0, 2, 1, *range(3, 10)), (), Compared(out_of_order=1)),
        ((*range(10), 99), (), Compared(strange=1)),
        # 3 to 5 were lost; 6 and 7 were written before anybody saw that.
        ((0, 1, 2, 6, 7, 3, 4, 5, 8, 9), {(3, 5)}, Compared(early=2)),
        ((6, 7, 0, 1, 2, 3, 4, 5, 8, 9), {(0, 5)}, Compared(early=2)),
        ((0, 1, 2, 6, 7, 3, 4, 5, 8, 9), (), Compared(out_of_order=2)),
        ((0, 1, 2, 6, 7, 3, 4, 5, 8, 9), {(3, 4)}, Compared(out_of_order=2)),
        ((0, 1, 2, 6, 8, 3, 4, 5, 7, 9), {(3, 5)}, Compared(early=1, out_of_order=1)),
        ((0, 1, 2, 6, 7, 8, 9), {(3, 5)}, Compared(early=4, missing=3)),
        ((0, 1, 2, 6, 3, 4, 5, 6, 7, 8, 9), {(3, 5)}, Compared(early=1, twice=1)),
        ((0, 1, 2, 6, 3, 5, 4, 7, 8, 9), {(3, 5)}, Compared(early=1, out_of_order=1)),
    ],
)
def test_a_partition_is_compared(numbers, repaired, found) -> None:
    assert compare(WANTED, _log(*numbers), repaired) == found


def test_a_record_without_a_value_is_not_the_sources() -> None:
    assert compare([b"a"], [None, b"a"]) == Compared(strange=1)


def test_the_page_has_each_kind_of_loss_and_all_that_is_wrong() -> None:
    page = render(Summary("at-least-once", "Seed 1", 1234, [WHOLE, WHOLE]))
    assert "## 2 losses at the target, at-least-once" in page
    assert "1,234 records: **0 missing, 0 twice, 0 out of order, 0 untold**." in page
    assert "| made anew | 2 | target-recreated | 1.0 | 1.0 | 2.0 | 2.0 | 0 |" in page
    assert "WRONG" not in page


@pytest.mark.parametrize(
    "wrong",
    [
        Outcome("x", compared=Compared(missing=1)),
        Outcome("x", compared=Compared(twice=1)),
        Outcome("x", compared=Compared(out_of_order=1)),
        Outcome("x", compared=Compared(strange=1)),
        Outcome("x", untold=1),
        Outcome("x", invented=1),
    ],
)
def test_what_is_wrong_is_told(wrong: Outcome) -> None:
    summary = Summary("at-least-once", "Seed 1", 9, [WHOLE, wrong])
    assert summary.wrong == [str(wrong)]
    assert "WRONG: x: told as nothing" in render(summary)


def test_records_in_front_are_no_fault_of_their_own() -> None:
    summary = Summary("m", "h", 9, [Outcome("x", early=3, compared=Compared(early=5))])
    assert summary.wrong == []
    assert "| inf | 1 |\n" in render(summary)
    assert Summary("m", "h", 9, [WHOLE], ["it ended"]).wrong == ["it ended"]
