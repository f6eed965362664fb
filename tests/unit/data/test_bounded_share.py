"""``--once`` as a member of a group: which epochs are planned, and when the query ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from sparkmirror.data import spark_source
from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.planner_report import PlannerReporter
from sparkmirror.data.spark_source import _Planner
from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    Command,
    CommandKind,
    SourcePartition,
)
from sparkmirror.settings import Member

RUN = "run"
ONE = (SourcePartition("t", 0, "t", ""),)
FIRST, SECOND = Member("m", 1), Member("m", 2)

Given = tuple[int, tuple[SourcePartition, ...], Member | None]


class Watch:
    """A control topic that says the next thing at each look."""

    def __init__(self) -> None:
        self.command: Command | None = None
        self.assignment: AssignmentDocument | None = None
        self.coming: list[AssignmentDocument | Command] = []

    def catch_up(self) -> None:
        found = self.coming.pop(0)  # an empty list: the planner waits for what never comes
        if isinstance(found, Command):
            self.command = found
        else:
            self.assignment = found


class Voice:
    def __init__(self) -> None:
        self.told: list[int] = []

    def report(self, version: int) -> None:
        self.told.append(version)


class Query:
    """Asks the planner as Spark does."""

    def __init__(self) -> None:
        self.watch, self.reporter = Watch(), Voice()
        self.planner = _Planner({"flow": "", "run_id": RUN, "once": "true"})

    def next_epoch(self, epoch: int, given: Sequence[Given | Command]) -> int:
        """The offset after ``epoch`` when the control topic brings ``given``, one at each look."""
        self.watch.coming += [
            one if isinstance(one, Command) else AssignmentDocument("f", RUN, *one[:2], {}, one[2])
            for one in given
        ]
        self.watch.catch_up()
        found = self.planner._bounded_share(
            {"epoch": epoch},
            cast("ControlWatch", self.watch),
            cast("PlannerReporter", self.reporter),
        )
        assert not self.watch.coming, "the planner did not wait"
        return found["epoch"]


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Query:
    monkeypatch.setattr(spark_source, "_SHARE_POLL_S", 0.0)
    return Query()


def test_the_share_that_is_carried_to_its_ends_ends_the_query(query: Query) -> None:
    # Nothing is given before the mirror has joined: it hears that the slots obey.
    assert query.next_epoch(0, [(1, (), None), (2, ONE, FIRST)]) == 1
    assert query.reporter.told == [1, 2]
    assert query.next_epoch(1, [(2, ONE, FIRST)]) == 1


def test_a_new_share_is_another_epoch(query: Query) -> None:
    assert query.next_epoch(0, [(2, ONE, FIRST)]) == 1
    # Given up to join anew: that is no share, and the query must not end with it.
    assert query.next_epoch(1, [(3, (), None), (4, ONE, SECOND)]) == 2
    assert query.next_epoch(2, [(4, ONE, SECOND)]) == 2


def test_an_epoch_that_has_not_run_is_told_again(query: Query) -> None:
    assert query.next_epoch(0, [(2, ONE, FIRST)]) == 1
    assert query.next_epoch(0, [(2, ONE, FIRST)]) == 1


def test_an_empty_share_is_one(query: Query) -> None:
    assert query.next_epoch(0, [(1, (), None), (2, (), FIRST)]) == 0


def test_a_drain_ends_it_at_once(query: Query) -> None:
    drain = Command("f", CommandKind.DRAIN, RUN, 0)
    assert query.next_epoch(0, [(1, (), None), drain]) == 0


def test_other_runs_say_nothing(query: Query) -> None:
    query.watch.assignment = AssignmentDocument("f", "another", 9, ONE, {}, FIRST)
    drain = Command("f", CommandKind.DRAIN, "another", 0)
    assert query.next_epoch(0, [drain, (2, ONE, FIRST)]) == 1
