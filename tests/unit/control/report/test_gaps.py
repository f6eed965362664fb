"""The driver tells each gap once, also one that is written down just before the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.control.report import gaps as control_gaps
from sparkmirror.control.report.gaps import GapReporter, read_gaps
from sparkmirror.errors import Denied, MirrorError, TopicError, Unreachable
from sparkmirror.internal_topics.gaps import Gap, GapAction, GapKind, encode_gap
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings

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


FLOW = FlowSettings(*(ClusterClient(name, (f"{name}:1",), "c") for name in "ABAB"))
TOPIC = "mm2-sparkmirror-gaps.A.internal"


class Target:
    """One topic, and how often each of its records was read. ``trouble``: after so many."""

    def __init__(self) -> None:
        self.log: list[bytes | None] | None = []
        self.reads = 0
        self.trouble: int | None = None
        self.refuses: MirrorError | None = None

    def literal_errors(self, names: list[str], *, operation: str) -> dict[str, MirrorError]:
        assert operation == "Read"
        return {} if self.refuses is None else dict.fromkeys(names, self.refuses)

    def topics(self, names: list[str]) -> dict[str, object]:
        return {} if self.log is None else dict.fromkeys(names, object())

    def tail(self, topic: str, *, partitions: list[int]) -> Any:
        assert (topic, partitions) == (TOPIC, [0])
        at = [0]

        def read_to(_ends: object) -> Iterator[tuple[int, bytes, bytes | None]]:
            while at[0] < len(self.log or ()):
                if self.trouble == at[0]:
                    self.trouble = None
                    raise Unreachable("no answer", where="cluster B")
                at[0] += 1
                self.reads += 1
                yield 0, b"", (self.log or [])[at[0] - 1]

        return SimpleNamespace(read_to=read_to)

    def end_offsets(self, partitions: list[TopicPartition], _isolation: str) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    def append(self, *gaps: Gap) -> None:
        self.log = [*(self.log or ()), *(encode_gap(gap)[1] for gap in gaps)]


@pytest.fixture
def told() -> Any:
    """A teller, what is written, what it has said, and its clock."""
    world = SimpleNamespace(written=Target(), said=[], now=0.0)
    world.reporter = GapReporter(
        world.written, FLOW, world.said.append, since_ms=1_000, clock=lambda: world.now
    )
    return world


def _look(told: Any, count: int | None = None) -> None:
    """A round, perhaps after slot 0 has reported ``count`` gaps."""
    if count is not None:
        report = SimpleNamespace(slot=0, worker="w", errors={"TOPIC_RECREATED": count})
        told.reporter.count([report])
    told.reporter.step()


def test_a_gap_that_is_written_behind_the_last_look_is_told_at_the_end(told: Any) -> None:
    _look(told, 1)
    told.written.append(GAP)
    _look(told, 1)
    assert told.said == [], "looks are a second apart"
    told.reporter.report_last()
    assert len(told.said) == 1
    assert "TOPIC_RECREATED: topic orders was made anew" in told.said[0]
    told.now = 2.0
    _look(told)
    assert len(told.said) == 1, "once"


def test_without_a_count_nobody_looks_at_the_end(told: Any) -> None:
    told.written.append(GAP)
    told.reporter.report_last()
    assert told.said == []


def test_what_was_there_before_the_run_is_not_told(told: Any) -> None:
    told.written.append(replace(GAP, time_ms=999))
    _look(told, 1)
    told.reporter.report_last()
    assert told.said == []


def test_the_topic_is_read_on_where_the_last_look_ended(told: Any) -> None:
    """Gaps are kept for good: a topic of millions must not be read again each second."""
    told.written.append(*(replace(GAP, time_ms=1, first=n) for n in range(100)))
    for count in range(1, 6):
        told.written.append(replace(GAP, reason=f"number {count}"))
        told.now += 2.0
        _look(told, count)
    assert told.written.reads == 105
    assert [line.split("number ")[1][0] for line in told.said] == list("12345")


def test_what_was_read_before_a_failure_is_told_by_the_next_look(told: Any) -> None:
    told.written.append(GAP, replace(GAP, reason="another"))
    told.written.trouble = 1
    with pytest.raises(Unreachable):
        _look(told, 1)
    assert told.said == []
    told.reporter.report_last()
    assert len(told.said) == 2


def test_a_topic_that_is_not_there_yet_and_records_of_others(told: Any) -> None:
    told.written.log = None
    _look(told, 1)
    told.written.log = [None, b"no gap"]
    told.written.append(replace(GAP, flow="A->C"), GAP)
    told.reporter.report_last()
    assert len(told.said) == 1


def test_what_is_remembered_has_a_limit_and_no_gap_is_told_twice_at_once(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_gaps, "_REMEMBERED_MAX", 2)
    _look(told, 1)
    for reason in ("one", "one", "two", "three", "one"):
        told.written.append(replace(GAP, reason=reason))
    told.reporter.report_last()
    assert [line.split(": ")[2].split(" ")[0] for line in told.said] == [
        *("one", "two", "three", "one")
    ]


def test_a_look_that_failed_is_not_one_of_those_that_are_due(told: Any) -> None:
    """Reports are counted by another thread: it goes on whatever this topic does."""
    told.written.append(GAP)
    told.written.trouble = 0
    for _ in range(5):
        told.now += 2.0
        told.written.trouble = 0
        with pytest.raises(Unreachable):
            _look(told, 1)
    told.now += 2.0
    _look(told)
    assert len(told.said) == 1


@pytest.mark.parametrize("why", [None, TopicError("UNKNOWN_TOPIC_OR_PARTITION")])
def test_a_mirror_that_never_ran_has_no_gaps(told: Any, why: MirrorError | None) -> None:
    told.written.log, told.written.refuses = None, why
    assert read_gaps(told.written, FLOW) == []


def test_gaps_that_may_not_be_seen_are_not_no_gaps(told: Any) -> None:
    """To a principal without Describe, a broker shows no partitions of the topic."""
    told.written.log, told.written.refuses = None, Denied("no Describe", where="cluster B")
    with pytest.raises(Denied, match="no Describe"):
        read_gaps(told.written, FLOW)
