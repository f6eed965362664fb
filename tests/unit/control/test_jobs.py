"""The one body that runs all jobs: when it waits, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkmirror.control.jobs import Job, Jobs, run_once
from sparkmirror.errors import ClusterError
from tests.patience import patience


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs(lambda *_, **__: None, lambda _: "")
    yield made
    made.stopping.set()
    _join(made)


def _join(jobs: Jobs) -> None:
    for thread in jobs.threads:
        thread.join(patience())
        assert not thread.is_alive()


class Waits:
    """Each wait ends at once; ``failing``: what each was told."""

    def __init__(self) -> None:
        self.failing: list[bool] = []

    def __call__(self, failing: bool) -> None:
        self.failing.append(failing)


def test_a_round_that_fails_is_tried_again_until_the_job_is_over(jobs: Jobs) -> None:
    outcomes = [ClusterError("away"), None, ClusterError("away"), None]
    waits, forgotten = Waits(), []

    def once() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    jobs.start(
        Job(
            "ends-A->B",
            once,
            wait=waits,
            after_failure=lambda: forgotten.append(1),
            over=lambda: not outcomes,
        )
    )
    _join(jobs)
    assert waits.failing == [True, False, True]
    assert len(forgotten) == 2


def test_a_single_job_ends_with_its_first_success(jobs: Jobs) -> None:
    outcomes = [ClusterError("away"), None, None]
    waits = Waits()

    def once() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    jobs.start(Job("acls-A->B", once, wait=waits, single=True))
    _join(jobs)
    assert len(outcomes) == 1
    assert waits.failing == [True]


def test_a_job_may_wait_before_its_first_round(jobs: Jobs) -> None:
    order: list[str] = []
    jobs.start(
        Job(
            "topics-A->B",
            lambda: order.append("round"),
            wait=lambda _: order.append("wait"),
            waits_first=True,
            single=True,
        )
    )
    _join(jobs)
    assert order == ["wait", "round"]


def test_nothing_starts_once_all_are_stopped(jobs: Jobs) -> None:
    rounds: list[int] = []
    jobs.stopping.set()
    jobs.start(Job("ends-A->B", lambda: rounds.append(1)))
    _join(jobs)
    assert rounds == []


def test_a_round_observes_plans_and_applies() -> None:
    class Doubled:
        def observe(self) -> int:
            return 3

        def plan(self, seen: int) -> str:
            return "x" * seen

        def apply(self, planned: str) -> list[str]:
            return [planned]

    assert run_once(Doubled()) == ["xxx"]
