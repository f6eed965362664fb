"""What a task that begins still has of its plan, and what it may release."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.data.coordination.slot_plan import SlotPlan
from sparkmirror.data.read import slot_start
from sparkmirror.data.read.slot_share import SlotShare
from sparkmirror.data.read.slot_start import SlotStart
from sparkmirror.data.rows.notes import LeftNote
from sparkmirror.internal_topics.assignments import Orders
from sparkmirror.internal_topics.commands import AssignmentDocument, SourcePartition
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
PARTITIONS = tuple(SourcePartition("t", n, "A.t") for n in range(4))
MOVED = PARTITIONS[0]
PLAN = SlotPlan(0, 0, "r", PARTITIONS[:2], None, 0, version=5, slots=2)


def _document(
    version: int, orders: Orders | None = None, partitions: tuple[SourcePartition, ...] = PARTITIONS
) -> AssignmentDocument:
    moves = {} if orders is None else {MOVED.source: orders}
    return AssignmentDocument("A->B", "r", version, partitions, base=5, moves=moves)


class _Start:
    """A slot that begins. ``fences``: what happens in each of its fences."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *fences: Callable[[], None], exactly: bool = True
    ) -> None:
        self.watch: Any = SimpleNamespace(assignment=None, start=lambda: None)
        self.fenced = 0
        self.looked = 0
        self._fences = fences
        self.identity: tuple[int, int] | None = (7, 1)
        monkeypatch.setattr(slot_start, "take_over", self._take_over)
        monkeypatch.setattr(slot_start, "check_owner", self._look)
        monkeypatch.setattr(SlotStart, "_positions", lambda start, _: dict.fromkeys(start.kept, 3))
        nothing: Any = SimpleNamespace(examine=lambda *_: {}, errors={})
        flow = FlowSettings(A, B, A, B, exactly_once=exactly)
        self.start = SlotStart(
            flow, PLAN, nothing, nothing, nothing, nothing, (self.watch, SlotShare(PLAN))
        )

    def _take_over(self, *_: object) -> tuple[int, int] | None:
        self.fenced += 1
        if self.fenced <= len(self._fences):
            self._fences[self.fenced - 1]()
        return self.identity

    def _look(self, *_: object) -> None:
        self.looked += 1

    def reads(self, document: AssignmentDocument) -> None:
        self.watch.assignment = document

    def find_out(self) -> dict[Any, int]:
        connections: Any = None
        return self.start.find_out(connections)


def test_without_news_a_slot_begins_with_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _Start(monkeypatch)
    assert set(made.find_out()) == set(PLAN.partitions)
    assert (made.fenced, made.start.released) == (1, ())


def test_a_partition_that_another_slot_has_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _Start(monkeypatch, lambda: made.reads(_document(7, Orders(((1, 6),), released=True))))
    assert set(made.find_out()) == {PARTITIONS[1]}
    assert (made.fenced, made.start.released) == (1, ())


def test_an_order_counts_if_it_was_there_before_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a later attempt may have fenced without it, and write the partition meanwhile."""
    made = _Start(monkeypatch, lambda: made.reads(_document(6, Orders(((1, 6),)))))
    assert set(made.find_out()) == {PARTITIONS[1]}
    assert made.fenced == 2
    assert made.start.released == (LeftNote(MOVED.source, 6),)


def test_a_slot_fences_until_no_news_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _Start(
        monkeypatch,
        lambda: made.reads(_document(6, Orders(((1, 6),)))),
        lambda: made.reads(_document(7, Orders(((1, 6),)), PARTITIONS[:3])),
    )
    made.find_out()
    assert made.fenced == 3
    assert made.start.released == (LeftNote(MOVED.source, 6),)


def test_a_slot_whose_plan_is_over_releases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends() -> None:
        made.identity = None

    made = _Start(monkeypatch, lambda: made.reads(_document(6, Orders(((1, 6),)))), ends)
    assert made.find_out() == {}
    assert made.start.released == ()


def test_at_least_once_the_newest_assignment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _Start(monkeypatch, exactly=False)
    made.reads(_document(6, Orders(((1, 6),))))
    assert set(made.find_out()) == {PARTITIONS[1]}
    assert (made.fenced, made.looked) == (0, 1)
    assert made.start.released == (LeftNote(MOVED.source, 6),)


def test_a_partition_that_came_back_is_begun_beside_the_others() -> None:
    share = SlotShare(PLAN)
    newest = _document(9, Orders(((1, 6), (0, 8)), released=True))
    kept, released = share.begin(newest)
    assert (kept, released) == ((PARTITIONS[1],), ())
    changes = share.follow(newest)
    assert changes is not None
    assert (changes.left, changes.begin) == ((), (MOVED,))
    assert share.follow(newest) is None
    assert share.begun([MOVED.source]) == ()


@pytest.mark.parametrize(
    "newest",
    [None, _document(5), AssignmentDocument("A->B", "other", 9, ()),
     AssignmentDocument("A->B", "r", 9, (), base=6)],
    ids=["none", "that-of-the-plan", "of-another-run", "for-a-new-epoch"],
)  # fmt: skip
def test_what_does_not_concern_the_epoch_changes_nothing(newest: AssignmentDocument | None) -> None:
    share = SlotShare(PLAN)
    assert share.begin(newest) == (PLAN.partitions, ())
    assert share.follow(newest) is None


def test_a_bounded_run_keeps_its_partitions() -> None:
    bounded = SlotPlan(0, 0, "r", PARTITIONS[:2], (("t", 0, 9),), 0, version=5, slots=2)
    share = SlotShare(bounded)
    assert share.begin(_document(6, Orders(((1, 6),)))) == (bounded.partitions, ())
    assert share.follow(_document(6, Orders(((1, 6),)))) is None


def test_a_partition_that_is_gone_is_left_without_a_release() -> None:
    share = SlotShare(PLAN)
    changes = share.follow(_document(6, None, PARTITIONS[1:]))
    assert changes is not None
    assert changes.left == (LeftNote(TopicPartition("t", 0)),)
