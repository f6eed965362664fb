"""The driver tells each gap once, also one that is written down just before the end."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.control.report import gaps as control_gaps
from sparkmirror.control.report.gaps import GapReporter
from sparkmirror.internal_topics.gaps import Gap, GapAction, GapKind
from sparkmirror.model import TopicPartition

GAP = Gap(
    flow="A->B",
    source=TopicPartition("orders", 0),
    remote_topic="A.orders",
    kind=GapKind.RECREATED,
    first=0,
    last=8,
    count=9,
    resumed_at=0,
    action=GapAction.CONTINUED,
    code="TOPIC_RECREATED",
    reason="topic orders was made anew",
    time_ms=2_000,
)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A teller, what is written, what it has said, and its clock."""
    world = SimpleNamespace(written=[], said=[], now=0.0)
    monkeypatch.setattr(control_gaps, "read_gaps", lambda *_: list(world.written))
    world.reporter = GapReporter(
        *(None, None, world.said.append), since_ms=1_000, clock=lambda: world.now
    )  # type: ignore[call-arg]
    return world


def _report(count: int) -> Any:
    return SimpleNamespace(slot=0, worker="w", errors={"TOPIC_RECREATED": count})


def test_a_gap_that_is_written_behind_the_last_look_is_told_at_the_end(told: Any) -> None:
    told.reporter.report_new([_report(1)])
    told.written.append(GAP)
    told.reporter.report_new([_report(1)])
    assert told.said == [], "looks are a second apart"
    told.reporter.report_last()
    assert len(told.said) == 1
    assert "TOPIC_RECREATED: topic orders was made anew" in told.said[0]
    told.now = 2.0
    told.reporter.report_new([])
    assert len(told.said) == 1, "once"


def test_without_a_count_nobody_looks_at_the_end(told: Any) -> None:
    told.written.append(GAP)
    told.reporter.report_last()
    assert told.said == []


def test_what_was_there_before_the_run_is_not_told(told: Any) -> None:
    told.written.append(replace(GAP, time_ms=999))
    told.reporter.report_new([_report(1)])
    told.reporter.report_last()
    assert told.said == []
