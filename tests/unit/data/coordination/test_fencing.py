"""Who may write an exactly-once slot: in which order it is asked, and who has to stand back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from sparkmirror.data.coordination import fencing
from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.fencing import fence_plan, take_over
from sparkmirror.errors import Fenced
from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    Command,
    CommandKind,
    SourcePartition,
)
from sparkmirror.internal_topics.flow_claims import Claim
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TransformSettings

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B, exactly_once=True)
MINE = Claim(FLOW.name, "mine", 2)


class Watch:
    """The control topic; ``fenced`` is what is in it once the slot's id has been fenced."""

    def __init__(self, fenced: Callable[[Watch], None]) -> None:
        self.claim: Claim | None = MINE
        self.command: Command | None = None
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
    found = take_over(FLOW, 0, "mine", 1, cast(ControlWatch, watch))
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
