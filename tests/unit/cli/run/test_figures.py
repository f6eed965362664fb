"""What a run says its flows do."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from sparkmirror.cli.run.figures import PHASE_DRAINING, PHASE_RUNNING, Figures
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.meter import wall_ms
from tests.unit.cli.run.cli_fakes import FakeControl, Scenario, World
from tests.unit.config_files import BASE, write


class Run:
    """Figures of one flow beside a control plane made of values."""

    def __init__(self, directory: Path) -> None:
        self.scenario = Scenario(work_dir=str(directory / "work"))
        settings = load_mm2(write(directory, BASE))
        self.world = World(self.scenario)
        self.control = FakeControl(self.world, settings)
        self.figures = Figures(settings)
        self.figures.phase = PHASE_RUNNING

    def state(self) -> str:
        self.figures.take(self.control, with_ends=True)
        (view,) = self.figures.views()
        assert (view.source, view.target) == ("A", "B")
        return view.state


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_flow_says_what_it_does(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.figures.phase = "starting"
    assert run.state() == "starting"
    run.figures.phase = PHASE_RUNNING
    assert run.state() == "starting", "no slot has reported"
    run.world.began_s = time.monotonic() - 10
    assert run.state() == "mirroring"
    run.scenario.away = "target B"
    assert run.state() == "waiting for the target B"
    run.scenario.paused = True
    assert run.state() == "paused", "what somebody asked for comes first"
    run.figures.phase = PHASE_DRAINING
    assert run.state() == "draining"


@pytest.mark.parametrize("away", ["source A", "target B"])
def test_a_flow_whose_cluster_is_away_is_waiting_in_metrics_too(run: Run, away: str) -> None:
    run.world.began_s = time.monotonic() - 10
    assert run.state() == "mirroring"
    assert [one.state for one in run.figures.facts()] == ["running"]
    run.scenario.away = away
    assert run.state() == f"waiting for the {away}"
    assert [(one.state, one.ends_age_s) for one in run.figures.facts()] == [("waiting", 1.5)]
    assert run.figures.health().ready, "another process would not reach it either"
    run.scenario.paused = True
    run.state()
    assert [one.state for one in run.figures.facts()] == ["paused"]


def test_what_keeps_a_flow_from_mirroring(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.world.began_s = time.monotonic() - 10
    monkeypatch.setattr(run.control, "end_offsets", lambda _: {TopicPartition("orders", 0): 10**9})
    monkeypatch.setattr(
        run.control, "oldest_ms", lambda _: {TopicPartition("orders", 0): wall_ms() - 60_000}
    )
    assert run.state() == "catching up"
    run.scenario.halted = True
    time.sleep(0.002)  # the next report is newer
    assert run.state() == "halted"
    # The slots report by way of the target: their silence is its own.
    monkeypatch.setattr(run.control, "progress", tuple)
    assert run.figures.health().ready
    meter = run.figures._meters["A->B"]
    now_ms = meter._ticks_ms()
    monkeypatch.setattr(meter, "_ticks_ms", lambda: now_ms + 40_000)
    assert run.state() == "waiting for the target B"
    assert not run.figures.health().ready


@pytest.mark.parametrize("wrong_s", [-600, 600])
def test_a_host_whose_clock_is_wrong_makes_no_flow_silent(
    run: Run, monkeypatch: pytest.MonkeyPatch, wrong_s: int
) -> None:
    run.world.began_s = time.monotonic() - 10
    (slot,) = run.control.progress()
    wrong = replace(slot, time_ms=slot.time_ms + 1_000 * wrong_s)
    monkeypatch.setattr(run.control, "progress", lambda: (wrong,))
    assert run.state() == "mirroring"
    assert run.figures.health().ready
    meter = run.figures._meters["A->B"]
    now_ms = meter._ticks_ms()
    monkeypatch.setattr(meter, "_ticks_ms", lambda: now_ms + 40_000)
    assert not run.figures.health().ready, "it has been silent since"


def test_a_flow_that_was_handed_over_is_neither_behind_nor_halted(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new process shows that; what this one has mirrored stays counted."""
    run.world.began_s = time.monotonic() - 10
    run.scenario.halted = run.scenario.refused = True
    orders = TopicPartition("orders", 0)
    monkeypatch.setattr(run.control, "end_offsets", lambda _: {orders: 10**9})
    monkeypatch.setattr(run.control, "oldest_ms", lambda _: {orders: wall_ms() - 60_000})
    run.state()
    (before,) = run.figures.views()
    assert before.lag_s
    assert len(before.halted) == 2
    monkeypatch.setattr(run.control, "drained", lambda _: True)
    for with_ends in (False, True):
        run.figures.take(run.control, with_ends=with_ends)
        (facts,) = run.figures.facts()
        view = facts.view
        assert facts.state == "drained"
        assert (view.lag_records, view.lag_s, view.partitions, view.halted) == (None, None, 0, {})
        assert facts.totals.partitions == ()
        assert view.records >= before.records
    assert run.figures.health().ready


def test_what_a_flow_has_to_go_is_reported_as_it_is_shown(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.world.began_s = time.monotonic() - 10
    orders = TopicPartition("orders", 0)
    (slot,) = run.control.progress()
    monkeypatch.setattr(run.control, "progress", lambda: (slot,))
    monkeypatch.setattr(run.control, "oldest_ms", lambda _: {orders: wall_ms() - 60_000})
    meter = run.figures._meters["A->B"]
    began_ms = 1_000
    for after_ms, behind, to_go_s in ((0, 1_000, None), (6_000, 400, 4.0)):
        monkeypatch.setattr(meter, "_ticks_ms", lambda now_ms=began_ms + after_ms: now_ms)
        ends = {orders: slot.partitions[0].position + behind}
        monkeypatch.setattr(run.control, "end_offsets", lambda _, ends=ends: ends)
        assert run.state() == "catching up"
        (view,) = run.figures.views()
        assert run.control.told_to_go == {"A->B": view.to_go_s} == {"A->B": to_go_s}


def test_a_flow_without_topics_waits_for_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.control, "end_offsets", lambda _: {})
    assert run.state() == "waiting for a topic"
