"""Who may write an exactly-once slot: in which order it is asked, and who has to stand back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.data.coordination import fencing
from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.fencing import ended, fence_plan, identity_again, take_over
from sparkmirror.data.rows.notes import Writer
from sparkmirror.errors import Defect, Fenced, TransactionError
from sparkmirror.internal_topics.assignments import Orders
from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    Command,
    CommandKind,
    SourcePartition,
)
from sparkmirror.internal_topics.epochs.record import EpochRecord
from sparkmirror.internal_topics.flow_claims import Claim
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TransformSettings

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B, exactly_once=True)
MINE = Claim(FLOW.name, "mine", 2)
EPOCH = EpochRecord(FLOW.name, "mine", 3, "t3")


class Watch:
    """The control topic; ``fenced`` is what is in it once the slot's id has been fenced."""

    def __init__(self, fenced: Callable[[Watch], None]) -> None:
        self.claim: Claim | None = MINE
        self.command: Command | None = None
        self.epoch: EpochRecord | None = EPOCH
        self.looks = 0
        self._fenced = fenced
        self.happened: list[str] = []

    def read_to_end(self) -> bool:
        self.happened.append("look")
        if "fence" in self.happened:
            self._fenced(self)
        return True


def _taken_over(monkeypatch: pytest.MonkeyPatch, fenced: Callable[[Watch], None]) -> object:
    watch = Watch(fenced)

    def fence() -> tuple[int, int]:
        watch.happened.append("fence")
        return 7, 1

    open_ = SimpleNamespace(fence=fence, close=lambda: None)
    monkeypatch.setattr(fencing, "Transactions", lambda *_, **__: open_)
    found = take_over(FLOW, 0, "mine", 1, cast(ControlWatch, watch), EPOCH)
    assert watch.happened == ["look", "fence", "look"]
    return found


def test_the_newest_plan_has_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _taken_over(monkeypatch, lambda _: None) == (7, 1)


def test_a_claim_that_came_before_the_fence_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def claimed(watch: Watch) -> None:
        watch.claim = Claim(FLOW.name, "theirs", 2, "h")

    with pytest.raises(Fenced, match="another sparkmirror"):
        _taken_over(monkeypatch, claimed)


def test_a_slot_of_an_older_deal_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def dealt_anew(watch: Watch) -> None:
        watch.command = Command(FLOW.name, CommandKind.REPLAN, "mine", 0, version=2)

    assert _taken_over(monkeypatch, dealt_anew) is None


@pytest.mark.parametrize("number", [3, 4])
def test_a_slot_of_an_earlier_epoch_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Also if two planners have given their epochs the same number."""

    def planned(watch: Watch) -> None:
        watch.epoch = EpochRecord(FLOW.name, "mine", number, "another")

    assert _taken_over(monkeypatch, planned) is None


@pytest.mark.parametrize("left", [None, replace(EPOCH, number=2, token="t2")])
def test_without_the_record_of_its_epoch_a_slot_fails(
    monkeypatch: pytest.MonkeyPatch, left: EpochRecord | None
) -> None:
    """The topic has lost it. If the slot only ended, nobody would have its partitions."""

    def lose(watch: Watch) -> None:
        watch.epoch = left

    with pytest.raises(TransactionError, match="has lost the record of the slot's epoch"):
        _taken_over(monkeypatch, lose)


def test_a_slot_that_is_told_of_a_newer_epoch_before_fences_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Watch(lambda _: None)
    watch.epoch = replace(EPOCH, number=4)
    monkeypatch.setattr(fencing, "Transactions", None)
    assert take_over(FLOW, 0, "mine", 1, cast(ControlWatch, watch), EPOCH) is None
    with pytest.raises(Defect, match="without the record"):
        take_over(FLOW, 0, "mine", 1, cast(ControlWatch, watch), None)


def test_a_running_slot_ends_with_a_newer_epoch() -> None:
    watch = Watch(lambda _: None)
    assert not ended(cast(ControlWatch, watch), EPOCH)
    watch.epoch = None  # not read yet
    assert not ended(cast(ControlWatch, watch), EPOCH)
    watch.epoch = replace(EPOCH, number=4)
    assert ended(cast(ControlWatch, watch), EPOCH)
    assert not ended(cast(ControlWatch, watch), None)


class _Late:
    """A slot of one plan on its way to write: it fences, reads the control topic, writes."""

    def __init__(self, slot: int, record: EpochRecord, partitions: frozenset[int]) -> None:
        self.slot, self.record, self.partitions = slot, record, partitions
        self.identity = -1
        self.passed = False


@settings(max_examples=300)
@given(st.data())
def test_whenever_slots_begin_a_partition_has_one_writer(data: st.DataObject) -> None:
    """The order of steps is arbitrary. Slots of earlier plans may begin at any time.

    All is looked at after each step: a long script has what shorter ones would find.
    The planner leaves the fence out if a plan is that of the epoch before.
    """
    ids = [0, 0]
    topic: list[EpochRecord] = []
    slots: list[_Late] = []
    writing: EpochRecord | None = None  # the planner writes the record, and fences later
    shares: list[frozenset[int]] = []
    fenced: list[frozenset[int]] = []
    draw = data.draw
    for _ in range(draw(st.integers(20, 40), "steps")):
        waiting = [one for one in slots if not one.passed]
        step = draw(st.sampled_from(["plan", "fence", "read"] if waiting else ["plan"]), "step")
        if step == "plan" and writing is None:
            first = frozenset(draw(st.sets(st.integers(0, 2)), "slot 0 has"))
            shares = [first, frozenset(range(3)) - first]
            number = 1 + max((one.number for one in topic), default=0)
            writing = EpochRecord(FLOW.name, "mine", number, f"t{number}")
            topic.append(writing)
        elif step == "plan" and writing is not None:
            if shares != fenced:
                ids = [identity + 1 for identity in ids]
            fenced = shares
            slots += [_Late(slot, writing, shares[slot]) for slot in range(2)]
            writing = None
        else:
            one = draw(st.sampled_from(waiting), "slot")
            if step == "fence" or one.identity < 0:
                ids[one.slot] += 1
                one.identity = ids[one.slot]
                continue
            watch = Watch(lambda _: None)
            watch.epoch = topic[-1]
            one.passed = not fencing._outdated(
                FLOW, "mine", 1, cast(ControlWatch, watch), one.record
            )
            if not one.passed:
                slots.remove(one)
        able = [one for one in slots if one.passed and one.identity == ids[one.slot]]
        for tp in range(3):
            assert sum(tp in one.partitions for one in able) <= 1


def test_a_new_deal_fences_every_slot_that_any_run_had(monkeypatch: pytest.MonkeyPatch) -> None:
    fenced: list[int] = []
    closed: list[object] = []
    identities = [(7, 0)]

    def fence(_flow: FlowSettings, slots: int) -> list[tuple[int, int]]:
        fenced.append(slots)
        return identities

    def close(_flow: FlowSettings, found: object, targets: object, routed: object) -> bool:
        closed.append((found, targets, routed))
        return True

    monkeypatch.setattr(fencing, "fence_slots", fence)
    monkeypatch.setattr(fencing, "close_all", close)
    partition = SourcePartition("t", 0, "A.t")
    assignment = AssignmentDocument(FLOW.name, "mine", 1, (partition,))
    assert fence_plan(FLOW, "mine", Claim(FLOW.name, "mine", 9), assignment)
    assert fence_plan(FLOW, "mine", None, assignment)
    assert fenced == [9, FLOW.tasks_max]
    assert closed == [(identities, [partition.target], set())] * 2
    closed.clear()
    routing = replace(FLOW, transforms=(TransformSettings("x", ("t",), routes=True),))
    assert fence_plan(routing, "mine", None, assignment)
    assert closed == [(identities, [partition.target], {partition.target})]


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def _writes_again(monkeypatch: pytest.MonkeyPatch, moves: dict[TopicPartition, Orders]) -> object:
    """Slot 0, whose plan is of version 3, writes a transaction again; it has both partitions."""
    partitions = tuple(SourcePartition(*tp, "A.t") for tp in (T0, T1))
    newest = AssignmentDocument(FLOW.name, "mine", 6, partitions, moves=moves)
    watch = SimpleNamespace(start=lambda: None, close=lambda: None, assignment=newest)
    monkeypatch.setattr(fencing, "ControlWatch", lambda *_, **__: watch)
    monkeypatch.setattr(fencing, "take_over", lambda *_: (7, 2))
    monkeypatch.setattr(fencing, "committed_positions", lambda *_: {})
    expected = {TopicPartition("A.t", n): 5 for n in range(2)}
    return identity_again(FLOW, 0, Writer((7, 1), "mine", 0, 3, EPOCH), expected)


@pytest.mark.parametrize(
    "orders",
    [
        Orders(((1, 4),), released=True),
        Orders(((1, 4), (0, 5))),
        Orders(((0, 2), (1, 4)), released=True),
    ],
    ids=["it was released", "it is on its way back", "it had come here before the plan"],
)
def test_a_transaction_is_not_written_again_if_another_slot_has_a_partition_of_it(
    monkeypatch: pytest.MonkeyPatch, orders: Orders
) -> None:
    """An attempt that Spark has given up: the next one has released the partition."""
    with pytest.raises(TransactionError, match="the slot's plan is outdated"):
        _writes_again(monkeypatch, {T1: orders})


@pytest.mark.parametrize(
    "orders",
    [
        Orders(((1, 4),)),
        Orders(((1, 4), (0, 5)), released=True),
        Orders(((1, 2), (0, 3)), released=True),
    ],
    ids=["it is still to be released", "it has come back", "the plan knew it"],
)
def test_what_the_slot_still_has_is_written_again(
    monkeypatch: pytest.MonkeyPatch, orders: Orders
) -> None:
    assert _writes_again(monkeypatch, {T0: orders}) == (7, 2)
