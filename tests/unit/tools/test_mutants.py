"""The table of mutants fits the product, and the tool tells what noticed one from what did not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.mutant import PACKAGE, complaints, promises
from tests.mutants.table import MUTANTS
from tests.mutants.verdict import BROKEN, NOTICED, SURVIVED, healthy, judge

ROOT = Path(__file__).parents[3]
TEST = "tests/unit/test_x.py::test_y"


def test_every_fault_can_be_made_and_every_promise_has_one() -> None:
    """A text that is no longer there once, a test or a promise that is gone, is named here."""
    assert complaints(MUTANTS, ROOT) == []
    assert len(MUTANTS) >= 40


def test_promises_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    found = promises(page)
    assert len(found) > 40
    assert len(set(found)) == len(found)
    assert "Order per partition" in found
    assert "throughput" not in found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"old": "no such text"}, "its text is 0 times in"),
        ({"old": "self."}, "not once"),
        ({"new": "while ("}, "was never closed"),
        ({"new": MUTANTS[0].old}, "changes nothing"),
        ({"file": "data/gone.py"}, "its text is 0 times in"),
        ({"tests": ()}, "names no test"),
        ({"tests": ("tests/unit/tools/test_mutants.py::test_gone",)}, "there is no test"),
        ({"tests": ("tests/unit/test_gone.py::test_gone",)}, "there is no test"),
        ({"promise": "Nobody promised"}, "0 promises begin with"),
        ({"name": MUTANTS[1].name}, "two mutants are called"),
    ],
)
def test_what_does_not_fit_is_told(changes: dict[str, Any], said: str) -> None:
    found = complaints([replace(MUTANTS[0], **changes), MUTANTS[1]], ROOT)
    assert any(said in one for one in found), found


def test_a_promise_without_a_mutant_is_told() -> None:
    some = [one for one in MUTANTS if not one.promise.startswith("A transaction ends by its size")]
    assert complaints(some, ROOT) == [
        "no mutant breaks the promise: A transaction ends by its size, too"
    ]


def test_the_product_itself_is_left_as_it_is() -> None:
    mutant = MUTANTS[0]
    text = (ROOT / PACKAGE / mutant.file).read_text(encoding="utf-8")
    assert mutant.new in mutant.applied(text)
    assert mutant.old not in mutant.applied(text)
    with pytest.raises(ValueError, match="0 times"):
        mutant.applied(mutant.applied(text))


def _said(outcome: str, *errors: str, test: str = TEST, when: str = "call") -> dict[str, Any]:
    return {
        "test": test,
        "when": when,
        "outcome": outcome,
        "errors": list(errors),
        "text": ", ".join(errors),
    }


@pytest.mark.parametrize(
    ("results", "state"),
    [
        ([_said("failed", "AssertionError")], NOTICED),
        ([_said("passed", test=f"{TEST}[a]"), _said("failed", "E", test=f"{TEST}[b]")], NOTICED),
        ([_said("failed", "AssertionError"), _said("failed", "E", when="teardown")], NOTICED),
        ([_said("passed")], SURVIVED),
        ([_said("passed"), _said("failed", "E", when="teardown")], SURVIVED),
        ([_said("skipped")], SURVIVED),
        ([], SURVIVED),
        ([_said("failed", "AssertionError", test=f"{TEST}_other")], SURVIVED),
        ([_said("failed", "ImportError")], BROKEN),
        ([_said("failed", "AssertionError", "NameError")], BROKEN),
        ([_said("failed", "CollectError", test="tests/unit/test_x.py", when="collect")], BROKEN),
        ([_said("failed", "AssertionError", when="setup")], BROKEN),
    ],
)
def test_only_a_tests_own_failure_counts(results: list[dict[str, Any]], state: str) -> None:
    assert judge([TEST], results).state == state


def test_each_named_test_has_to_notice() -> None:
    other = "tests/unit/test_x.py::test_z"
    one = [_said("failed", "AssertionError"), _said("passed", test=other)]
    assert judge([TEST, other], one).state == SURVIVED


def test_tests_that_fail_by_themselves_show_nothing() -> None:
    assert healthy([TEST], [_said("passed")]) == []
    assert healthy([TEST], []) == [f"{TEST} did not run"]
    assert healthy([TEST], [_said("skipped")]) != []
    assert healthy([TEST], [_said("failed", "AssertionError")]) != []
