"""What the driver writes about a flow, and that nothing follows its last report."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from sparkmirror.control.flows.driver_reports import DriverReports
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.driver_report import DriverReport


class World:
    """One flow; ``written``: its reports. ``readable``: whether orders can be read."""

    def __init__(self) -> None:
        self.written: list[DriverReport] = []
        self.readable = False
        self.now_ms = 1_000
        self.over = threading.Event()
        self.published = SimpleNamespace(assignment=lambda: self.assignment, frozen=None)
        self.assignment = Assignment("A->B")
        parts: tuple[Any, ...] = (
            SimpleNamespace(report=self.written.append),
            self.published,
            self,
            SimpleNamespace(states=tuple, resets=tuple),
            SimpleNamespace(states=tuple, confirmed=tuple),
        )
        self.reports = DriverReports(
            *parts, slots_max=4,
            channel="A->B#r", run_id="r", release="1", over=self.over, now_ms=lambda: self.now_ms,
        )  # fmt: skip


def test_a_report_says_since_when_the_run_has_the_flow() -> None:
    world = World()
    world.now_ms = 2_000
    world.reports.write()
    world.reports.started_ms = 1_500  # a standby has taken the flow over
    world.reports.write()
    assert [(one.started_ms, one.time_ms) for one in world.written] == [
        (1_000, 2_000),
        (1_500, 2_000),
    ]
    assert (world.written[0].flow, world.written[0].run_id) == ("A->B#r", "r")


def test_a_run_that_starts_counts_as_one_that_reads_orders() -> None:
    world = World()
    world.reports.write()
    world.reports.write(starting=True)
    world.readable = True
    world.reports.write()
    assert [one.orders for one in world.written] == [False, True, True]


def test_a_report_says_how_many_slots_there_should_be() -> None:
    world = World()
    for partitions in (0, 3, 9):
        rows = tuple(SourcePartition("t", number, "A.t") for number in range(partitions))
        world.assignment = Assignment("A->B", rows)
        world.reports.write()
    world.published.frozen = {rows[0].source: 7, rows[5].source: 9}  # --once; others have no end
    world.reports.write()
    assert [one.slot_count for one in world.written] == [0, 3, 4, 2]


def test_nothing_follows_the_last_report() -> None:
    world = World()
    world.over.set()
    world.reports.write()
    assert world.written == []
    world.reports.write(ended=True)
    world.reports.write()
    assert [one.ended for one in world.written] == [True]
