"""The planner says once what has reached the target, and again what has not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.data.coordination import planner_report
from sparkmirror.data.coordination.planner_report import PlannerReporter
from sparkmirror.internal_topics.commands import PROGRESS_PARTITION, control_topic
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.settings import ClusterClient, FlowSettings

FLOW = FlowSettings(
    *(ClusterClient(name, (f"{name}:1",), "c") for name in "ABAB"), mode=MirrorMode.MM1
)
REFUSAL = Halt("TOPIC_AUTHORIZATION_FAILED", "the target refuses it", retriable=True)


def test_a_report_that_the_target_refuses_is_written_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The mirror would wait for it, as a member of a group that waits for the mirror."""
    told: list[TopicPartition] = []
    refused = {TopicPartition(control_topic(FLOW), PROGRESS_PARTITION): REFUSAL}
    backlog: Any = SimpleNamespace(
        idle=True, halts=refused, append=lambda tp, _batch: told.append(tp)
    )
    closed: list[bool] = []
    producer = SimpleNamespace(backlog=backlog, close=lambda: closed.append(True))
    now = [100.0]
    monkeypatch.setattr(planner_report.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(planner_report, "Producer", lambda *_: producer)
    reporter = PlannerReporter(FLOW, "r")
    reporter.report(1)
    assert "the planner's report failed: the target refuses it" in caplog.text
    assert closed == [True], "a producer drops what it gets for a partition that has refused"
    backlog.halts = {}
    for _ in range(20):
        reporter.report(1)
    assert len(told) == 1, "each attempt has a producer of its own: once a second is enough"
    now[0] += 1.0
    reporter.report(1)
    reporter.report(1)
    assert len(told) == 2, "what has arrived is not repeated at once"
