"""What the results of the named tests say about a mutant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BROKEN", "NOTICED", "SURVIVED", "Verdict", "healthy", "judge"]

NOTICED, SURVIVED, BROKEN = "noticed", "SURVIVED", "BROKEN"

# What a fault that is no fault but a slip of the pen raises; it shows nothing about a test.
_SLIPS = frozenset(
    {
        "AttributeError",
        "CollectError",
        "ImportError",
        "IndentationError",
        "ModuleNotFoundError",
        "NameError",
        "SyntaxError",
        "UnboundLocalError",
    }
)


@dataclass
class Verdict:
    """``how``: one line per test, what it said."""

    state: str
    how: list[str] = field(default_factory=list)


def judge(tests: Sequence[str], results: Iterable[Mapping[str, Any]]) -> Verdict:
    """Each of ``tests`` must have failed by an error of its own, in its call.

    ``results``: as `tests.mutants.observer` writes them, one for each of a test's cases.
    """
    results = list(results)
    slips = [one for one in results if one["outcome"] == "failed" and _is_slip(one)]
    if slips:
        return Verdict(BROKEN, [f"{one['test']} ({one['when']}): {one['text']}" for one in slips])
    verdict = Verdict(NOTICED)
    for test in tests:
        cases = [one for one in results if _of(one["test"], test)]
        failed = [one for one in cases if one["outcome"] == "failed" and one["when"] == "call"]
        if failed:
            verdict.how.append(failed[0]["text"])
        else:
            verdict.state = SURVIVED
            verdict.how.append(f"{test} passed" if cases else f"{test} did not run")
    return verdict


def healthy(tests: Sequence[str], results: Iterable[Mapping[str, Any]]) -> list[str]:
    """What speaks against the tests themselves: each must pass on the product as it is."""
    results = list(results)
    found = [
        f"{one['test']} {one['outcome']}: {one['text']}"
        for one in results
        if one["outcome"] != "passed"
    ]
    for test in tests:
        if not any(_of(one["test"], test) for one in results):
            found.append(f"{test} did not run")
    return found


def _is_slip(result: Mapping[str, Any]) -> bool:
    if result["when"] == "teardown":
        return False  # it may well stumble over what the fault has left behind
    return result["when"] != "call" or bool(_SLIPS & set(result["errors"]))


def _of(case: str, test: str) -> bool:
    return case == test or case.startswith(f"{test}[")
