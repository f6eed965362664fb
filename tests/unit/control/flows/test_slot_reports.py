"""What a poll of the control topic brings reaches everybody, whatever other topics do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.control.coordination.control_topic import ControlSignals
from sparkmirror.control.flows.slot_reports import SlotReports
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import Unreachable
from sparkmirror.internal_topics.commands import Command, CommandKind
from sparkmirror.internal_topics.epochs.releases import Release
from sparkmirror.internal_topics.routed_topics import TopicRequest
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.meter import FlowMeter
from sparkmirror.progress import SlotProgress
from sparkmirror.settings import ClusterClient, FlowSettings

FLOW = FlowSettings(*(ClusterClient(name, (f"{name}:1",), "c") for name in "ABAB"))


class _Away:
    """A target none of whose topics can be read."""

    alias = "B"

    def __getattr__(self, _: str) -> Any:
        raise Unreachable("no answer", where="cluster B")


def test_a_gaps_topic_that_cannot_be_read_costs_nothing_else() -> None:
    """Neither releases, without which a partition has no slot, nor the drain."""
    heard: list[object] = []
    target: Any = _Away()
    history: Any = SimpleNamespace(note_gap=heard.append, note=heard.append)
    published: Any = SimpleNamespace(assignment=lambda: Assignment(FLOW.name))
    reports = SlotReports(
        FLOW, "r", target, published, history,
        drain=lambda: heard.append("drain"), notify=heard.append, now_ms=lambda: 5,
    )  # fmt: skip
    reports.released.append(heard.extend)
    reports.asked.append(heard.extend)
    release = Release(FLOW.name, "r", 0, 1, 2, (TopicPartition("t", 0),))
    request = TopicRequest(FLOW.name, "r", 0, 1, "t", ("routed",))
    signals = ControlSignals(
        commands=(Command(FLOW.name, CommandKind.DRAIN, "r", 0),),
        progress=(
            SlotProgress(
                FLOW.name, 0, "w", 1, 1, 0, 0, 0, errors={"TOPIC_RECREATED": 1}, run_id="r"
            ),
        ),
        requests=(request,),
        releases=(release,),
    )
    reports.apply(reports.plan(signals))
    assert heard == [request, release, "drain"]
    with pytest.raises(Unreachable):
        reports.gaps.step()


def test_the_report_that_came_last_is_last_whatever_clocks_and_numbers_say() -> None:
    """A partition that moved is in two reports, until its former slot writes the next one."""
    target: Any = _Away()
    history: Any = SimpleNamespace(note_gap=print, note=print)
    published: Any = SimpleNamespace(assignment=lambda: Assignment(FLOW.name))
    reports = SlotReports(
        FLOW, "r", target, published, history, drain=print, notify=print, now_ms=lambda: 5
    )

    def hear(slot: int, time_ms: int) -> None:
        report = SlotProgress(
            FLOW.name, slot, f"w{slot}", 1, time_ms, 0, 0, 0, run_id="r", attempt=slot
        )
        reports.apply(reports.plan(ControlSignals(progress=(report,))))

    hear(0, 60_000)
    hear(1, 60_500)
    hear(0, 61_000)
    hear(2, 1)
    assert [one.slot for one in reports.progress()] == [1, 0, 2]


def test_what_a_task_counts_in_its_last_report_is_kept_for_the_meter() -> None:
    """The first report of the next task may be read with it."""
    target: Any = _Away()
    history: Any = SimpleNamespace(note_gap=print, note=print)
    published: Any = SimpleNamespace(assignment=lambda: Assignment(FLOW.name))
    reports = SlotReports(
        FLOW, "r", target, published, history, drain=print, notify=print, now_ms=lambda: 5
    )
    meter = FlowMeter(FLOW.name)

    def hear(*heard: SlotProgress) -> None:
        reports.apply(reports.plan(ControlSignals(progress=heard)))

    def report(attempt: int, time_ms: int, records: int, **more: Any) -> SlotProgress:
        worker = f"w{attempt}"
        figures = records, records, records
        return SlotProgress(
            *(FLOW.name, 0, worker, attempt, time_ms, *figures), run_id="r", attempt=attempt, **more
        )

    hear(report(1, 1_000, 100))
    last = report(1, 3_000, 250, errors={"OFFSETS_DELETED": 1})
    hear(report(1, 2_000, 150), last, report(2, 3_400, 5), report(1, 3_500, 999))
    taken = reports.take()
    assert [(one.attempt, one.records) for one in taken] == [(1, 250), (2, 5)]
    assert reports.take() == ()
    for one in taken:
        meter.report(one)
    assert (meter.view().records, meter.view().errors) == (255, {"OFFSETS_DELETED": 1})
    assert [one.attempt for one in reports.progress()] == [2]
