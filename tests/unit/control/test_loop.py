"""What the control plane's threads tell of jobs that fail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.control import loop as loop_module
from sparkmirror.control.coordination.contest import ClaimState
from sparkmirror.control.flow import FlowControl
from sparkmirror.control.jobs import run_once
from sparkmirror.control.loop import ControlLoop
from sparkmirror.control.positions import preflight
from sparkmirror.control.topics.heartbeats import HeartbeatJob
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import ClusterError, ConfigError, Unreachable
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.driver_report import DriverReport
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.progress import PartitionProgress, SlotProgress
from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.record_times import RecordAt
from tests.unit.config_files import BASE, write


def test_each_reason_in_a_row_of_failures_is_told_once() -> None:
    loop = ControlLoop(MirrorSettings((), ()), once=False, run_id="r")
    told = []
    failing = False
    for what in ("no answer in 3.1 s", "no answer in 4.2 s", "expired", "no answer in 5 s", "",
                 "no answer in 6 s"):  # fmt: skip

        def job(reason: str = what) -> None:
            if reason:
                raise ClusterError(reason)

        failing = not loop._jobs.attempt("ends", job, failed_before=failing)
        told.append(loop.events())
    assert told == [
        ["ends: no answer in 3.1 s"],
        [],
        ["ends: expired"],
        [],
        ["ends: works again"],
        ["ends: no answer in 6 s"],
    ]


@pytest.mark.parametrize(("refresh", "usual_s"), [("true", 600.0), ("false", None)])
def test_topics_are_discovered_soon_while_the_target_refuses_some_for_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refresh: str, usual_s: float | None
) -> None:
    text = f"{BASE}refresh.topics.enabled={refresh}\n"
    loop = ControlLoop(load_mm2(write(tmp_path, text)), once=False, run_id="r")
    flow = loop._flows["A->B"]
    waited: list[float | None] = []
    monkeypatch.setattr(loop, "_await_round", lambda _, pause_s: waited.append(pause_s))
    wait = loop._topics_job(flow).wait
    assert wait is not None
    for unsettled, short in ((False, False), (True, False), (False, True), (True, True)):
        monkeypatch.setattr(flow.topics._discovery, "unsettled", unsettled)
        monkeypatch.setattr(flow.topics._discovery, "lacks_brokers", short)
        wait(False)
    soon_s = loop_module._QUICK_ROUND_S
    assert waited == [usual_s, soon_s, loop_module._BROKERS_ROUND_S, soon_s]


def test_the_usual_interval_stays_if_it_is_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{BASE}refresh.topics.interval.seconds=30\n"
    loop = ControlLoop(load_mm2(write(tmp_path, text)), once=False, run_id="r")
    flow = loop._flows["A->B"]
    waited: list[float | None] = []
    monkeypatch.setattr(loop, "_await_round", lambda _, pause_s: waited.append(pause_s))
    monkeypatch.setattr(flow.topics._discovery, "lacks_brokers", True)
    wait = loop._topics_job(flow).wait
    assert wait is not None
    wait(False)
    assert waited == [30.0]


@pytest.mark.parametrize("refresh", [True, False])
def test_without_a_refresh_only_who_asks_gets_new_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refresh: bool
) -> None:
    """A discovery that repeats what the target refused, or that failed, is no refresh."""
    text = f"{BASE}refresh.topics.enabled={str(refresh).lower()}\n"
    loop = ControlLoop(load_mm2(write(tmp_path, text)), once=False, run_id="r")
    flow = loop._flows["A->B"]
    asked, rounds = iter([False, False, True, *[False] * 9]), list[bool]()
    monkeypatch.setattr(loop, "_await_round", lambda *_: next(asked))
    monkeypatch.setattr(
        flow.topics._discovery, "discover", lambda *, fresh, **_: rounds.append(fresh)
    )
    wait = loop._topics_job(flow).wait
    assert wait is not None
    # The last round of the six after `refresh` fails: until it succeeds, it is still due.
    for failing in [False, True, *[False] * 7, True, True, False]:
        wait(failing)
        flow.topics.observe()
    soon = [False] * 2 + [True] * (1 + loop_module._QUICK_ROUNDS) + [True] * 2 + [False]
    assert rounds == ([True] * 12 if refresh else soon)


def test_who_stands_by_writes_no_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those of its flow nor those of the way back, which the owner of the flow writes."""
    written: list[str] = []
    monkeypatch.setattr(HeartbeatJob, "beat", lambda self: written.append(self.settings.name))
    loop = ControlLoop(load_mm2(write(tmp_path, BASE)), once=False, run_id="r")
    own = loop._flows["A->B"].ownership
    assert own is not None
    for verdict, expected in ((ClaimState.HELD, []), (ClaimState.OURS, ["A->B", "B->A"])):
        monkeypatch.setattr(own, "check", lambda found=verdict: found)
        for beats in loop._heartbeats:
            loop._beat(beats)()
        assert sorted(written) == expected


def test_a_start_that_fails_gives_back_the_flows_that_have_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another flow could not begin: who stands by for these would wait for a session."""
    told: list[str] = []
    monkeypatch.setattr(FlowControl, "write_last_report", lambda self: told.append(self.name))
    text = BASE + "C->B.enabled=true\nC.bootstrap.servers=c:1\n"
    text = text.replace("clusters=A,B", "clusters=A,B,C")
    loop = ControlLoop(load_mm2(write(tmp_path, text)), once=False, run_id="r")
    assert {"A->B", "C->B"} <= set(loop._flows)
    loop._flows["A->B"]._begun.set()
    loop.stop()
    assert told == ["A->B"]


def test_who_stands_by_for_a_flow_that_it_had_begun_reports_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = ControlLoop(load_mm2(write(tmp_path, BASE)), once=False, run_id="r")
    flow = loop._flows["A->B"]
    assert flow.ownership is not None
    flow._begun.set()
    assert flow.holds
    flow.ownership.stand_by()
    assert not flow.holds


def test_a_failure_tells_its_code_its_flow_and_its_cluster(tmp_path: Path) -> None:
    """And while the cluster is away, the flow is known to wait for it."""
    loop = ControlLoop(load_mm2(write(tmp_path, BASE)), once=False, run_id="r")
    gone = [Unreachable("no answer", where="cluster A")]

    def job() -> None:
        if gone:
            raise gone[0]

    for name, away in (("ends-A->B", "source A"), ("progress-A->B", "target B")):
        assert not loop._jobs.attempt(name, job, failed_before=False)
        (notice,) = loop.events()
        assert (notice.level, notice.code, notice.flow, notice.cluster) == (
            "warning", "UNREACHABLE", "A->B", "A",
        )  # fmt: skip
        assert loop.unreachable_cluster("A->B") == away
    gone.clear()
    assert loop._jobs.attempt("progress-A->B", job, failed_before=True)
    assert loop.unreachable_cluster("A->B") == "source A"
    assert loop._jobs.attempt("ends-A->B", job, failed_before=True)
    assert loop.unreachable_cluster("A->B") == ""
    assert [(one.level, one.flow) for one in loop.events()] == [("info", "A->B")] * 2
    for control in loop._flows.values():
        control.close()


def test_reasons_without_end_are_told_of_a_few_times() -> None:
    loop = ControlLoop(MirrorSettings((), ()), once=False, run_id="r")

    def fail(reason: str) -> None:
        raise ClusterError(reason)

    for n in range(100):
        loop._jobs.attempt("ends", lambda: fail("x" * n), failed_before=n > 0)  # noqa: B023
    assert len(loop.events()) == 10


def test_a_look_at_the_ends_reads_the_time_of_what_is_not_mirrored(tmp_path: Path) -> None:
    """Of partitions behind only, where the newest report of any slot says that they stand."""
    flow = next(one for one in load_mm2(write(tmp_path, BASE)).flows if one.enabled)
    control = FlowControl(flow, "run", lambda _: None)
    done, behind, new = (TopicPartition("t", n) for n in range(3))
    ends = {done: 7, behind: 100, new: 3}
    asked: list[Mapping[TopicPartition, int]] = []

    def records_at(
        positions: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, RecordAt]:
        asked.append(dict(positions))
        return {tp: RecordAt(1_000 + offset, 10.0) for tp, offset in positions.items()}

    control.clusters.source.end_offsets = lambda *_: dict(ends)  # type: ignore[method-assign]
    control.clusters.source.records_at = records_at  # type: ignore[method-assign,assignment]
    rows = tuple(SourcePartition(*tp, f"A.{tp.topic}") for tp in ends)
    control.published._assignment = Assignment(flow.name, rows)

    def report(slot: int, time_ms: int, *partitions: PartitionProgress) -> None:
        control.slots._progress[slot] = SlotProgress(
            flow.name, slot, "w", 1, time_ms, 1, 1, 1, partitions=partitions
        )

    # Slot 2 had the partition before slot 1, whose clock is behind; of the third partition nobody
    # knows a position.
    report(0, 20, PartitionProgress("t", 0, 7), PartitionProgress("t", 2, -1))
    report(2, 30, PartitionProgress("t", 1, 40))
    report(1, 10, PartitionProgress("t", 1, 50))
    run_once(control.source_ends)
    assert asked == [{behind: 50}]
    assert control.ends() == ends
    assert control.source_ends.oldest_ms() == {behind: 1_050}
    run_once(control.source_ends)
    assert len(asked) == 1, "what stands still is read once"
    report(1, 40, PartitionProgress("t", 1, 100))
    run_once(control.source_ends)
    assert control.source_ends.oldest_ms() == {}
    control.close()


def test_once_is_refused_for_a_paused_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """MirrorMaker 1's group would wait for its share for ever."""
    client = ClusterClient("A", ("a:1",), "test")
    flow = FlowSettings(client, client, client, client, mode=MirrorMode.MM1, group_id="g")
    nothing = Assignment(flow.name)
    target = Cluster(client)
    monkeypatch.setattr(preflight, "is_paused", lambda *_: False)
    assert preflight.leave_out_paused(flow, target, nothing) is nothing
    monkeypatch.setattr(preflight, "is_paused", lambda *_: True)
    with pytest.raises(ConfigError, match="sparkmirror resume"):
        preflight.leave_out_paused(flow, target, nothing)


def test_the_drivers_report_tells_how_long_a_flow_needs_to_catch_up(tmp_path: Path) -> None:
    settings = load_mm2(write(tmp_path, BASE))
    loop = ControlLoop(settings, once=False, run_id="r")
    told: list[DriverReport] = []
    (name,) = loop._flows
    loop._flows[name]._writer.report = told.append  # type: ignore[method-assign]
    for seconds in (None, 12.5, None):
        loop.to_go(name, seconds)
        loop._flows[name].reports.write()
        assert told[-1].to_go_s == seconds
