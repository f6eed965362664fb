"""What the driver writes about a flow, and that nothing follows its last report."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from sparkmirror.control.flows.driver_reports import DriverReports
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.internal_topics.driver_report import DriverReport


class World:
    """One flow; ``written``: its reports. ``readable``: whether orders can be read."""

    def __init__(self) -> None:
        self.written: list[DriverReport] = []
        self.readable = False
        self.now_ms = 1_000
        self.over = threading.Event()
        parts: tuple[Any, ...] = (
            SimpleNamespace(report=self.written.append),
            SimpleNamespace(assignment=lambda: Assignment("A->B")),
            self,
            SimpleNamespace(states=tuple, resets=tuple),
            SimpleNamespace(states=tuple, confirmed=tuple),
        )
        self.reports = DriverReports(
            *parts,
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


def test_nothing_follows_the_last_report() -> None:
    world = World()
    world.over.set()
    world.reports.write()
    assert world.written == []
    world.reports.write(ended=True)
    world.reports.write()
    assert [one.ended for one in world.written] == [True]
