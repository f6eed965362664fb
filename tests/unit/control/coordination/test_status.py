"""What the control topic tells somebody who looks from outside."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.cli.main import main
from sparkmirror.cli.verbs import control_commands
from sparkmirror.cli.verbs import status as status_command
from sparkmirror.cli.verbs.status import _report, _Row
from sparkmirror.control.coordination import status
from sparkmirror.control.coordination.control_topic import ControlSignals, ControlTopicWriter
from sparkmirror.control.coordination.status import (
    FlowState,
    FlowStatus,
    forget_ended_runs,
    judge,
    judge_group,
)
from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.errors import (
    ClusterError,
    Denied,
    MirrorError,
    NotKafka,
    TopicError,
    Unreachable,
)
from sparkmirror.internal_topics.commands import Command, CommandKind, encode_command
from sparkmirror.internal_topics.driver_report import DriverReport, ThrottleState
from sparkmirror.internal_topics.flow_claims import Standby
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.progress import Halt, PartitionProgress, SlotLoad, SlotProgress
from sparkmirror.settings import ClusterClient, FlowSettings, ThrottleRule
from sparkmirror.wire.admin.cluster import Cluster
from tests.unit.config_files import BASE, write

FLOW = "A->B"
NOW = 1_000_000
RUN, DRAIN, REPLAN = CommandKind.RUN, CommandKind.DRAIN, CommandKind.REPLAN
PAUSE, RESUME = CommandKind.PAUSE, CommandKind.RESUME


def command(kind: CommandKind, *, ago_s: int = 100, run_id: str = "r1") -> Command:
    return Command(FLOW, kind, run_id, NOW - ago_s * 1_000)


def driver(ago_s: int = 5, **more: object) -> DriverReport:
    values = {"run_id": "r1", "started_ms": NOW - 100_000, "partitions": 4, **more}
    return DriverReport(FLOW, host="h:1", version="1", time_ms=NOW - ago_s * 1_000, **values)  # type: ignore[arg-type]


def slot(number: int = 0, *, ago_s: int = 1, paused: bool = False, halt: Halt | None = None):
    partitions = (PartitionProgress("t", number, 5, halt=halt),)
    return SlotProgress(
        FLOW, number, "w", 1, NOW - ago_s * 1_000, 1, 1, 1, partitions=partitions, paused=paused
    )


@pytest.mark.parametrize(
    ("commands", "drivers", "slots", "state"),
    [
        ([], [], [], FlowState.NEVER_RAN),
        ([PAUSE], [], [], FlowState.NEVER_RAN),
        ([RUN], [driver()], [slot()], FlowState.RUNNING),
        ([RUN, REPLAN], [driver()], [slot(), slot(1)], FlowState.RUNNING),
        ([RUN], [driver()], [], FlowState.STARTING),
        ([RUN], [driver(partitions=0)], [], FlowState.WAITING),
        ([RUN], [], [], FlowState.DEAD),
        ([RUN], [driver(40)], [slot(ago_s=31)], FlowState.DEAD),
        ([RUN], [driver(40)], [slot(ago_s=29)], FlowState.RUNNING),
        ([RUN], [driver(run_id="r0")], [], FlowState.DEAD),
        ([RUN], [driver(ended=True)], [slot()], FlowState.STOPPED),
        ([RUN, DRAIN], [driver()], [slot()], FlowState.DRAINING),
        ([RUN, DRAIN], [driver(40)], [slot()], FlowState.DEAD),
        ([RUN, PAUSE], [driver()], [slot(paused=True)], FlowState.PAUSED),
        ([RUN, PAUSE], [driver()], [slot(paused=True), slot(1)], FlowState.RUNNING),
        ([PAUSE, RUN], [driver()], [], FlowState.PAUSED),
        ([RUN, PAUSE, RESUME], [driver()], [slot()], FlowState.RUNNING),
        ([RUN, PAUSE, RESUME], [driver()], [slot(paused=True)], FlowState.PAUSED),
    ],
)
def test_states(commands, drivers, slots, state) -> None:
    signals = ControlSignals(tuple(map(command, commands)), (), tuple(slots), tuple(drivers))
    assert judge(signals, FLOW, NOW).state is state


@pytest.mark.parametrize(
    ("commands", "drivers", "slots", "to_go_s"),
    [
        ([RUN], [driver(to_go_s=95.0)], [slot()], 95.0),
        ([RUN], [driver(to_go_s=95.0), driver(4)], [slot()], None),
        ([RUN], [driver(40, to_go_s=95.0)], [slot()], None),
        ([RUN], [driver(run_id="r0", to_go_s=95.0)], [slot()], None),
        ([RUN], [driver(ended=True, to_go_s=95.0)], [slot()], None),
        ([RUN, PAUSE], [driver(to_go_s=95.0)], [slot(paused=True)], None),
    ],
)
def test_the_time_to_go_of_a_flow_that_catches_up(commands, drivers, slots, to_go_s) -> None:
    """What the driver said last, as long as it says anything and the flow goes on."""
    signals = ControlSignals(tuple(map(command, commands)), (), tuple(slots), tuple(drivers))
    assert judge(signals, FLOW, NOW).to_go_s == to_go_s


@pytest.mark.parametrize(
    ("commands", "drivers", "told"),
    [
        ([RUN, PAUSE, DRAIN], [driver(ended=True)], "stopped, paused"),
        ([PAUSE, RUN], [driver(40)], "not running, paused"),
        ([PAUSE], [], "never ran, paused"),
        ([RUN, PAUSE], [driver()], "paused"),
        ([RUN, PAUSE, RESUME], [driver(ended=True)], "stopped"),
    ],
)
def test_a_pause_is_told_of_a_flow_that_does_not_run(commands, drivers, told) -> None:
    signals = ControlSignals(tuple(map(command, commands)), (), (), tuple(drivers))
    status = judge(signals, FLOW, NOW)
    assert status.description == told
    if not status.state.alive:
        assert f"  {told}  " in "\n".join(_report([_Row(status, None, NOW)]).lines())


def test_a_mirror_that_was_killed_while_it_drained_has_not_drained() -> None:
    """Every driver that ends in order says so."""
    killed = judge(ControlSignals((command(RUN), command(DRAIN)), (), (), (driver(40),)), FLOW, NOW)
    assert killed.state is FlowState.DEAD
    assert control_commands._done(DRAIN, killed, frozenset({"r1"})) == ""


class _Opened:
    """Connections to all clusters but one that is away."""

    def __init__(self, away: str) -> None:
        self.away = away

    def __call__(self) -> _Opened:
        return self

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def expect(self, clients: Iterable[object]) -> None:
        list(clients)

    def cluster(self, client: ClusterClient) -> object:
        if client.alias == self.away:
            raise Unreachable("no", where=f"cluster {client.alias}")
        return client.alias


def test_a_target_that_is_away_keeps_no_order_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = BASE.replace("clusters=A,B", "clusters=A,B,C")
    path = write(tmp_path, text + "C.bootstrap.servers=c:1\nA->C.enabled=true\n")
    given: list[str] = []

    def give(_kind: object, order: Any, _wait_s: float) -> tuple[str, bool]:
        given.append(order.flow.name)
        return "paused", True

    monkeypatch.setattr(control_commands, "Connections", _Opened("B"))
    monkeypatch.setattr(control_commands, "_give", give)
    assert main(["pause", str(path)]) == 3
    assert given == ["A->C"]


def test_a_source_that_is_away_is_told_by_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status_command, "Connections", _Opened("A"))
    running = FlowStatus("A->B", FlowState.RUNNING)
    monkeypatch.setattr(status, "observe_status", lambda *_: running)
    assert main(["status", str(write(tmp_path, BASE)), "--format", "json"]) == 3
    shown = capsys.readouterr()
    assert json.loads(shown.err)["code"] == "UNREACHABLE"
    assert json.loads(shown.out)["flows"][0]["state"] == "running"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Denied("the broker refused the login", where="cluster A"), 3),
        (NotKafka("this is no broker", where="cluster A"), 3),
        (ClusterError("the broker failed", where="cluster A"), 3),
        (TopicError("no leader", where="cluster B"), 3),
        (Denied("Describe on the group is missing", where="cluster B"), 0),
    ],
)
def test_a_lag_that_cannot_be_read_is_told_by_the_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: MirrorError,
    code: int,
) -> None:
    """An operator of the target needs no right but Read on the control topic."""

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(status_command, "Connections", _Opened(""))
    monkeypatch.setattr("sparkmirror.control.positions.lag.observe_flow", refuse)
    running = FlowStatus("A->B", FlowState.RUNNING)
    monkeypatch.setattr(status, "observe_status", lambda *_: running)
    assert main(["status", str(write(tmp_path, BASE))]) == code
    shown = capsys.readouterr()
    assert error.what in shown.err
    assert "running" in shown.out


def test_who_stands_by_is_shown() -> None:
    standbys = tuple(
        Standby(flow, run, host, "1", "/mm2.properties", NOW - ago_s * 1_000)
        for flow, run, host, ago_s in (
            (FLOW, "r3", "h3:1", 4), (FLOW, "r2", "h2:1", 3), (FLOW, "r9", "h9:1", 31),
            ("C->B", "r4", "h4:1", 1),
        )
    )  # fmt: skip
    signals = ControlSignals((command(RUN),), (), (slot(),), (driver(),), standbys=standbys)
    status = judge(signals, FLOW, NOW)
    assert [one.host for one in status.standbys] == ["h2:1", "h3:1"]
    report = _report([_Row(status, None, NOW)])
    shown = "\n".join(report.lines())
    assert "h2:1     r2   /mm2.properties  3 s ago" in shown
    assert "h9" not in shown + json.dumps(report.document)
    (flow,) = report.document["flows"]  # type: ignore[index]
    assert [one["host"] for one in flow["standbys"]] == ["h2:1", "h3:1"]


def test_a_run_that_has_just_begun_is_starting() -> None:
    signals = ControlSignals((command(RUN, ago_s=10, run_id="r2"),), (), (), (driver(40),))
    assert judge(signals, FLOW, NOW).state is FlowState.STARTING


def test_slots_of_earlier_runs_and_other_flows_are_left_out() -> None:
    old = slot(7, ago_s=200)
    other = SlotProgress("C->B", 3, "w", 1, NOW, 1, 1, 1)
    signals = ControlSignals(
        (command(RUN),), (), (old, slot(0, ago_s=9), slot(0), other), (driver(),)
    )
    status = judge(signals, FLOW, NOW)
    assert [one.slot for one in status.slots] == [0]
    assert status.report_age_s == 1


def test_a_late_report_of_a_former_owner_hides_no_driver() -> None:
    halts = {TopicPartition("a", 0): Halt("DENIED", "not allowed")}
    late = replace(driver(1, run_id="r0"), host="old:1")
    signals = ControlSignals(
        (command(RUN),), (), (slot(),), (driver(halts=halts, to_go_s=95.0), late)
    )
    found = judge(signals, FLOW, NOW)
    assert (found.halts, found.host, found.to_go_s) == (halts, "h:1", 95.0)
    assert (found.partitions, found.version) == (4, "1")


def test_halts_of_driver_and_slots() -> None:
    refused = Halt("DENIED", "not allowed")
    corrupt = Halt("CORRUPT_BATCH", "bad")
    signals = ControlSignals(
        (command(RUN),),
        (),
        (slot(1, halt=corrupt),),
        (driver(halts={TopicPartition("a", 0): refused}),),
    )
    status = judge(signals, FLOW, NOW)
    assert status.halts == {TopicPartition("a", 0): refused, TopicPartition("t", 1): corrupt}


LOADS = (SlotLoad(1, 1, 1), SlotLoad(1, 1, 1))
CORRUPT = Halt("CORRUPT_BATCH", "bad")


def test_a_slot_that_went_silent_is_shown_with_its_last_halts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slots = slot(), slot(1, ago_s=40, halt=CORRUPT)
    signals = ControlSignals((command(RUN),), (), slots, (driver(slots=LOADS),))
    found = judge(signals, FLOW, NOW)
    assert (found.state, found.slots, found.silent) == (FlowState.RUNNING, slots[:1], slots[1:])
    assert found.halts == {TopicPartition("t", 1): CORRUPT}

    report = _report([_Row(found, None, NOW)])
    told = "A->B slot 1 has not reported for 40 s: check its Spark executor on w"
    assert told in report.lines()
    (flow,) = report.document["flows"]  # type: ignore[index]
    shown = [(one["slot"], one["silent"], one["report_age_s"]) for one in flow["slots"]]
    assert shown == [(0, False, 1.0), (1, True, 40.0)]

    monkeypatch.setattr(status_command, "Connections", _Opened(""))
    monkeypatch.setattr("sparkmirror.control.positions.lag.observe_flow", lambda *_: None)
    for given, code in ((replace(found, halts={}), 1), (replace(found, halts={}, silent=()), 0)):
        monkeypatch.setattr(status, "observe_status", lambda *_, given=given: given)
        assert main(["status", str(write(tmp_path, BASE))]) == code
        assert ("A->B slot 1 has not reported for" in capsys.readouterr().out) is bool(code)


@pytest.mark.parametrize(
    ("commands", "reporting", "slots", "silent"),
    [
        ([RUN], driver(slots=LOADS), [slot(ago_s=40), slot(1, ago_s=40)], [0, 1]),
        ([RUN], driver(slots=LOADS), [slot(), slot(1, ago_s=200)], []),  # of an earlier run
        ([RUN], driver(slots=LOADS), [slot()], []),
        ([RUN], driver(slots=LOADS), [slot(), slot(2, ago_s=40)], []),  # there were more slots
        ([RUN], driver(slots=LOADS, partitions=1), [slot(), slot(1, ago_s=40)], []),
        ([RUN], driver(), [slot(), slot(1, ago_s=40)], []),  # how many there are is not known
        ([RUN], driver(40, slots=LOADS), [slot(), slot(1, ago_s=40)], []),
        ([RUN, DRAIN], driver(slots=LOADS), [slot(), slot(1, ago_s=40)], []),
        ([RUN, PAUSE], driver(slots=LOADS), [slot(paused=True), slot(1, ago_s=40)], []),
        # With --once, a slot that has reached its ends is done before the others.
        ([RUN], driver(slots=LOADS), [slot(), replace(slot(1, ago_s=40), ended_ms=1)], []),
        ([RUN], driver(slots=LOADS), [replace(slot(ago_s=40), ended_ms=1)], []),
        # The others are in the next epoch.
        (
            [RUN],
            driver(slots=LOADS),
            [replace(slot(), epoch=2), replace(slot(1, ago_s=40), ended_ms=1)],
            [1],
        ),
        # They may have begun it before this one has found its positions.
        (
            [RUN],
            driver(slots=LOADS, started_ms=NOW - 500_000),
            [
                replace(slot(), epoch=2, began_ms=NOW - 110_000),
                replace(slot(1, ago_s=130), ended_ms=NOW - 130_000),
            ],
            [],
        ),
        (
            [RUN],
            driver(slots=LOADS, started_ms=NOW - 500_000),
            [
                replace(slot(), epoch=2, began_ms=NOW - 130_000),
                replace(slot(1, ago_s=140), ended_ms=NOW - 140_000),
            ],
            [1],
        ),
    ],
)
def test_which_slots_should_report(commands, reporting, slots, silent) -> None:
    signals = ControlSignals(tuple(map(command, commands)), (), tuple(slots), (reporting,))
    found = judge(signals, FLOW, NOW)
    assert [one.slot for one in found.silent] == silent
    assert not found.halts


@pytest.mark.parametrize(
    ("commands", "reporting", "slots", "silent", "not_begun"),
    [
        ([RUN], driver(slot_count=3), [slot()], [], [1, 2]),
        ([RUN], driver(slot_count=2), [], [], [0, 1]),
        ([RUN], driver(slot_count=2), [slot(), slot(1, ago_s=400)], [1], []),
        ([RUN], driver(slot_count=2), [slot(), slot(1), slot(2, ago_s=400)], [], []),
        ([RUN], driver(slot_count=0, partitions=0), [], [], []),
        ([RUN], driver(40, slot_count=2), [slot()], [], []),
        ([RUN, DRAIN], driver(slot_count=2), [slot()], [], []),
        ([RUN, PAUSE], driver(slot_count=2), [slot(paused=True)], [], []),
        # Earlier releases do not say how many there are, but one there is.
        ([RUN], driver(), [], [], [0]),
        ([RUN], driver(), [slot(1)], [], [0]),
        ([RUN], driver(partitions=0), [], [], []),
        ([RUN], driver(slots=LOADS), [slot()], [], [1]),
    ],
)
def test_which_slots_should_have_begun(commands, reporting, slots, silent, not_begun) -> None:
    began = NOW - 500_000
    orders = tuple(replace(command(kind), time_ms=began) for kind in commands)
    reporting = replace(reporting, started_ms=began)
    found = judge(ControlSignals(orders, (), tuple(slots), (reporting,)), FLOW, NOW)
    assert [one.slot for one in found.silent] == silent
    assert found.not_begun == tuple(not_begun)


@pytest.mark.parametrize(
    ("started_s", "command_s", "resumed_s", "not_begun"),
    [(121, 121, 121, (1,)), (119, 121, 121, ()), (121, 119, 121, ()), (121, 121, 119, ())],
)
def test_slots_have_two_minutes_to_begin(started_s, command_s, resumed_s, not_begun) -> None:
    """From a run's start, from a plan that may have more of them, from the end of a pause."""
    signals = ControlSignals(
        (
            command(PAUSE, ago_s=400),
            command(RESUME, ago_s=resumed_s),
            command(RUN, ago_s=command_s),
        ),
        (),
        (slot(),),
        (driver(slot_count=2, started_ms=NOW - 1_000 * started_s),),
    )
    assert judge(signals, FLOW, NOW).not_begun == not_begun


def test_slots_that_have_not_begun_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = FlowStatus(FLOW, FlowState.STARTING, host="h:1", not_begun=(0, 1))
    told = (
        "A->B slots 0, 1 should have begun more than 2 minutes ago: see the log of the run on h:1"
    )
    monkeypatch.setattr(status_command, "Connections", _Opened(""))
    monkeypatch.setattr("sparkmirror.control.positions.lag.observe_flow", lambda *_: None)
    for given, code in ((found, 1), (replace(found, not_begun=()), 0)):
        monkeypatch.setattr(status, "observe_status", lambda *_, given=given: given)
        assert main(["status", str(write(tmp_path, BASE))]) == code
        assert (told in capsys.readouterr().out) is bool(code)
    (flow,) = _report([_Row(found, None, NOW)]).document["flows"]  # type: ignore[index]
    assert flow["slots_not_begun"] == [0, 1]


def test_a_slot_that_has_not_begun_a_later_epoch_is_told_so() -> None:
    ended = replace(slot(1, ago_s=200), ended_ms=NOW - 200_000)
    found = FlowStatus(FLOW, FlowState.RUNNING, slots=(replace(slot(), epoch=2),), silent=(ended,))
    told = "A->B slot 1 has not begun epoch 2, and not reported for 200 s: check its Spark executor"
    assert f"{told} on w" in _report([_Row(found, None, NOW)]).lines()


def test_a_partition_that_left_a_silent_slot_has_no_halt_of_it() -> None:
    moved = replace(slot(), partitions=(PartitionProgress("t", 1, 9),))
    signals = ControlSignals(
        (command(RUN),), (), (moved, slot(1, ago_s=40, halt=CORRUPT)), (driver(slots=LOADS),)
    )
    assert judge(signals, FLOW, NOW).halts == {}


def test_silent_slots_of_a_group_are_those_of_its_runs() -> None:
    one = f"{FLOW}#r1"
    signals = ControlSignals(
        (replace(command(RUN), flow=one),),
        (),
        (replace(slot(), flow=one), replace(slot(1, ago_s=40), flow=one)),
        (replace(driver(slots=LOADS), flow=one),),
    )
    (found,) = judge_group(signals, FLOW, NOW).silent
    assert (found.flow, found.slot) == (FLOW, 1)


def test_a_flow_that_the_file_does_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, BASE)
    assert main(["pause", str(path), "B->A"]) == 2
    assert "Choose from: A->B" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["status", "pause", "resume", "drain"])
def test_a_consumer_file_alone_is_not_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    path = write(tmp_path, "bootstrap.servers=a:1\ngroup.id=g\n", "consumer.properties")
    assert main([verb, str(path)]) == 2
    assert "--producer.config" in capsys.readouterr().err


def test_clusters_that_do_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = BASE.replace("a:9092", "127.0.0.1:1").replace("b:9092", "127.0.0.1:1")
    path = write(tmp_path, text + "B.admin.request.timeout.ms=1000\n")
    assert main(["status", str(path), "--format", "json"]) == 3
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"flows": []}
    assert json.loads(shown.err)["code"] == "UNREACHABLE"
    assert main(["drain", str(path)]) == 3


def test_processes_of_one_group_are_one_flow() -> None:
    """Each run of a MirrorMaker 1 flow has keys of its own; a pause is for all of them."""
    one, two, gone = (f"{FLOW}#{run}" for run in ("r1", "r2", "r0"))
    signals = ControlSignals(
        commands=(
            Command(gone, RUN, "r0", 0),
            Command(one, RUN, "r1", NOW - 90_000),
            Command(two, REPLAN, "r2", NOW - 50_000),
            Command(FLOW, PAUSE, "", NOW - 10_000),
            Command("A->Bx#r9", RUN, "r9", NOW),
        ),
        progress=(
            replace(slot(), flow=one),
            replace(slot(1), flow=two, partitions=()),
            replace(slot(halt=Halt("DENIED", "no")), flow=two),
        ),
        drivers=(
            replace(driver(), flow=one),
            replace(driver(), flow=two, run_id="r2", host="h:2", partitions=3),
            replace(driver(ended=True, started_ms=0), flow=gone, run_id="r0"),
        ),
    )
    found = judge_group(signals, FLOW, NOW)
    assert (found.flow, found.state, found.paused) == (FLOW, FlowState.RUNNING, True)
    assert found.runs == ("r1", "r2")
    assert found.host == "h:1, h:2"
    assert found.partitions == 7
    assert [(one.flow, one.slot) for one in found.slots] == [(FLOW, 0), (FLOW, 0), (FLOW, 1)]
    assert found.halts == {TopicPartition("t", 0): Halt("DENIED", "no")}
    later = judge_group(signals, FLOW, NOW + 100_000)
    assert (later.state, later.runs) == (FlowState.DEAD, ())
    assert judge_group(ControlSignals(), FLOW, NOW).state is FlowState.NEVER_RAN


@pytest.mark.parametrize(
    ("ago_s", "ended", "forgotten"),
    [
        (5, False, False),
        (3_600, False, False),  # its clock may be an hour behind ours
        (-3_600, False, False),
        (3 * 3_600, False, True),
        (5, True, True),
        (-3_600, True, True),
    ],
)
def test_what_a_process_of_a_group_left_is_deleted_once_it_has_certainly_ended(
    monkeypatch: pytest.MonkeyPatch, ago_s: int, ended: bool, forgotten: bool
) -> None:
    ends = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")
    flow = FlowSettings(*ends, *ends, mode=MirrorMode.MM1)
    each = f"{flow.name}#r1"
    signals = ControlSignals(
        (replace(command(RUN, ago_s=ago_s), flow=each),),
        progress=(replace(slot(3, ago_s=ago_s), flow=each, run_id="r1"),),
        drivers=(replace(driver(ago_s, ended=ended), flow=each),),
    )
    monkeypatch.setattr(status, "read_signals", lambda *_: signals)
    deleted: list[object] = []
    writer = SimpleNamespace(forget=lambda *what: deleted.append(what))
    forget_ended_runs(cast(Cluster, None), cast(ControlTopicWriter, writer), flow, NOW)
    assert deleted == ([(each, list(signals.progress))] if forgotten else [])


def test_a_group_is_paused_when_all_of_its_processes_were_told() -> None:
    """Each driver says an order again under its own run; an older version's is for all of them."""
    channels = [f"{FLOW}#r1", f"{FLOW}#r2"]
    runs = [replace(command(RUN, run_id=one[-2:]), flow=one) for one in channels]
    drivers = tuple(replace(driver(run_id=one[-2:]), flow=one, orders=True) for one in channels)
    pauses = [replace(command(PAUSE), flow=one, order_id="1") for one in channels]

    def look(*commands: Command) -> tuple[bool, bool]:
        signals = ControlSignals(commands=(*runs, *commands), drivers=drivers)
        found = judge_group(signals, FLOW, NOW)
        return found.paused, found.orders

    assert look() == (False, True)
    assert look(pauses[0]) == (False, True)
    assert look(*pauses) == (True, True)
    assert look(command(PAUSE)) == (True, True)
    resumed = [replace(one, kind=RESUME) for one in pauses]
    assert look(command(PAUSE), *resumed) == (False, True)
    one_older = (drivers[0], replace(drivers[1], orders=False))
    older = ControlSignals(commands=tuple(runs), drivers=one_older)
    assert not judge_group(older, FLOW, NOW).orders


def test_slots_of_a_group_hear_what_their_own_driver_says_again() -> None:
    ends = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")
    flow = FlowSettings(*ends, *ends, mode=MirrorMode.MM1, group_id="g")
    watch = ControlWatch(flow, "r1", slot=0, offset=0)
    heard = []
    for kind, to in ((PAUSE, f"{FLOW}#r2"), (PAUSE, f"{FLOW}#r1"), (RESUME, FLOW)):
        watch._apply(watch._commands, *encode_command(replace(command(kind), flow=to)))
        heard.append(watch.paused)
    watch.close()
    assert heard == [False, True, False]


def test_limits_are_those_that_the_driver_reports() -> None:
    state = ThrottleState(ThrottleRule("", 50_000_000), "id1")
    reported = driver(throttles=(state,), resets=("id2",))
    signals = ControlSignals((command(RUN),), (), (slot(),), (reported,))
    found = judge(signals, FLOW, NOW)
    assert found.throttles == (state,)
    assert found.order_ids == {"id1", "id2"}
    older = judge(ControlSignals((command(RUN),), (), (slot(),), (driver(),)), FLOW, NOW)
    assert (older.throttles, older.order_ids) == (None, frozenset())
    lines = _report([_Row(found, None, NOW)]).lines()
    assert "A->B  all     50 MB/s  always   yes      order" in lines


def test_a_group_obeys_an_order_when_all_of_its_processes_do() -> None:
    runs = ("r1", "r2")
    state = ThrottleState(ThrottleRule("", 50_000_000), "id1")

    def of(drivers: list[tuple[ThrottleState, ...] | None]):
        return judge_group(
            ControlSignals(
                tuple(replace(command(RUN, run_id=run), flow=f"{FLOW}#{run}") for run in runs),
                (),
                tuple(replace(slot(), flow=f"{FLOW}#{run}", run_id=run) for run in runs),
                tuple(
                    replace(driver(run_id=run, throttles=each), flow=f"{FLOW}#{run}")
                    for run, each in zip(runs, drivers, strict=True)
                ),
            ),
            FLOW,
            NOW,
        )

    assert of([(state,), (state,)]).order_ids == {"id1"}
    assert of([(state,), ()]).order_ids == frozenset()
    assert of([(state,), None]).throttles is None


def test_a_mirror_whose_reports_have_stopped_is_not_drained() -> None:
    """It was killed: nothing says that it has written what it had read."""
    dead = judge(ControlSignals((command(RUN),), (), (), (driver(40),)), FLOW, NOW)
    assert dead.state is FlowState.DEAD
    assert control_commands._done(DRAIN, dead, frozenset({"r1"})) == ""
    orders = (command(RUN), command(DRAIN))
    ended = judge(ControlSignals(orders, (), (), (driver(ended=True),)), FLOW, NOW)
    assert control_commands._done(DRAIN, ended, frozenset({"r1"})) == "drained"
