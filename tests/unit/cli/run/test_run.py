"""One run, as a process: phases, signals, exit codes, what is shown on which stream."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil
import pytest

from sparkmirror.cli.run.parts import Parts, RunOptions
from sparkmirror.cli.run.run import run_mirror
from sparkmirror.settings import MirrorSettings
from sparkmirror.wire.net.poller import readable
from tests.patience import others_per_core, patience
from tests.unit.cli.run.cli_fakes import FakeControl, FakeFlow, FakeLook, Scenario, World
from tests.unit.config_files import BASE
from tests.unit.config_files import load as config

SCRIPT = Path(__file__).with_name("cli_fakes.py")


class Running:
    """The script of fakes, with what it has written so far."""

    def __init__(self, tmp_path: Path, both: IO[str] | None = None, **scenario: object) -> None:
        """``both``: where both streams go, instead of to files."""
        scenario.setdefault("work_dir", str(tmp_path / "run"))
        self.err_path = tmp_path / "stderr"
        self.out_path = tmp_path / "stdout"
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(scenario)],
            stdin=subprocess.DEVNULL,
            stdout=both or self.out_path.open("w"),
            stderr=both or self.err_path.open("w"),
        )

    @property
    def out(self) -> str:
        return self.out_path.read_text(encoding="utf-8")

    @property
    def err(self) -> str:
        return self.err_path.read_text(encoding="utf-8")

    def until(self, text: str, timeout_s: float = 20.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while text not in self.out + self.err:
            assert time.monotonic() < deadline_s, (text, self.out, self.err)
            time.sleep(0.02)

    def until_shown(self, text: str, count: int) -> None:
        deadline_s = time.monotonic() + 20.0
        while self.out.count(text) < count:
            assert time.monotonic() < deadline_s, (text, self.out, self.err)
            time.sleep(0.02)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float = 20.0) -> int:
        return self.process.wait(timeout_s)


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def begin(**scenario: object) -> Running:
        started.append(Running(tmp_path, **scenario))
        return started[-1]

    yield begin
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait(5)


def test_once_ends_by_itself_with_a_summary(start: Start) -> None:
    run = start(once=True, warning="key linger.ms is ignored", looked="broker 2 is away")
    assert run.end() == 0
    assert run.out.count("warning: broker 2 is away") == 1
    assert "warning: key linger.ms is ignored" in run.out
    assert run.out.count("linger.ms") == 1
    assert "A->B  " in run.out
    assert "topic orders: created A.orders" in run.out
    assert "mirrored in 00:00:0" in run.out
    assert re.search(r"orders +1 +[1-9][0-9,]* ", run.out)
    order = [line for line in run.err.splitlines() if line.startswith("[")]
    assert order[:3] == ["[prepare]", "[control.start]", "[flow.start]"]
    assert order[3] == "[control.finish]"
    assert sorted(order[4:]) == ["[control.stop]", "[flow.stop grace=True]"]


@pytest.mark.parametrize("kind", ["halted", "refused"])
def test_once_with_a_partition_that_stood_still_ends_with_1(start: Start, kind: str) -> None:
    run = start(once=True, **{kind: True})
    assert run.end() == 1
    wanted = {
        "halted": "A->B orders-0: CORRUPT_BATCH: checksum wrong at offset 7",
        "refused": "A->B secret-0: DENIED: no permission to create",
    }
    told = f"error: Not everything was copied. These partitions are halted: {wanted[kind]}."
    assert told in run.err
    assert "mirrored in" in run.out


@pytest.mark.parametrize(("number", "sigterm_exit_code", "code"), [
    (signal.SIGINT, 0, 0),
    pytest.param(signal.SIGINT, 143, 0, marks=pytest.mark.more),
    pytest.param(signal.SIGTERM, 0, 0, marks=pytest.mark.more),
    (signal.SIGTERM, 143, 143),
])  # fmt: skip
def test_the_first_signal_drains(
    start: Start, number: int, sigterm_exit_code: int, code: int
) -> None:
    run = start(sigterm_exit_code=sigterm_exit_code)
    run.until("A->B  ")
    began_s = time.monotonic()
    run.send(number)
    assert run.end() == code
    assert time.monotonic() - began_s < 4 * others_per_core()
    assert "draining: writing all records that were read … (Ctrl+C again stops at once)" in run.out
    assert "drained: all records that were read are written" in run.out
    assert "mirrored in" in run.out
    assert run.err.index("[drain]") < run.err.index("[flow.stop grace=True]")
    assert "error" not in run.err


def test_a_process_stands_by_until_the_flow_is_its_own(start: Start) -> None:
    """Spark is up and the query mirrors nothing; then it starts, and all goes on as ever."""
    run = start(stands_by_s=2.0)
    run.until("standing by\n")
    assert run.process.poll() is None
    run.until("mirroring")
    run.send(signal.SIGTERM)
    assert run.end() == 0
    order = [line for line in run.err.splitlines() if line.startswith("[")]
    ready = ["[flow.stand_by A->B]", "[flow.start]"]
    assert order[:5] == ["[prepare]", "[control.start]", "[flow.start]", *ready]


def test_a_flow_that_was_taken_over_in_vain_lets_the_others_drain(
    start: Start, tmp_path: Path
) -> None:
    run = start(takes_in_vain_s=0.5, sigterm_exit_code=143)
    assert run.end() == 1
    assert "a flow failed: writing what the other flows have read" in run.out
    assert run.err.count("error: master x: Spark does not start. Look into spark.log.") == 1
    assert calls(tmp_path)[-3:-1] == ["drain", "flow.stop grace=True"]


def test_a_process_that_stands_by_ends_when_it_is_told_to(start: Start) -> None:
    run = start(stands_by_s=600.0)
    run.until("standing by\n")
    run.send(signal.SIGTERM)
    assert run.end() == 0
    assert "error" not in run.err


def test_one_flow_that_was_told_to_drain_is_handed_over(start: Start, tmp_path: Path) -> None:
    """Once its query is at rest; the others go on."""
    run = start(leaves_s=0.5)
    run.until("A->B  ")
    run.until("[hand_over A->B]")
    shown = run.out.count("A->B  ")
    run.until_shown("A->B  ", shown + 2)
    assert [one for one in calls(tmp_path) if "A->B" in one] == [
        "flow.end A->B grace=True",
        "hand_over A->B",
    ]
    run.send(signal.SIGTERM)
    assert run.end() == 0


def test_heartbeats_alone_go_on_until_they_are_stopped(start: Start, tmp_path: Path) -> None:
    """Without a flow no Spark is started."""
    run = start(flows=False, sigterm_exit_code=143)
    run.until("emitting heartbeats: no flow is enabled for this node")
    run.send(signal.SIGTERM)
    assert run.end() == 143
    assert calls(tmp_path) == [
        "prepare",
        "control.start",
        "drain",
        "control.finish",
        "control.stop",
    ]
    assert "Spark" not in run.out
    assert "error" not in run.err


def test_an_interrupted_once_did_not_copy_everything(start: Start) -> None:
    run = start(once=True, once_s=60.0)
    run.until("A->B  ")
    run.send(signal.SIGINT)
    assert run.end() == 130
    assert "drained" in run.out


def test_the_second_signal_stops_at_once_and_kills_what_was_started(start: Start) -> None:
    run = start(rest_s=60.0, child=True, drain_s=30.0)
    run.until("A->B  ")
    run.send(signal.SIGINT)
    run.until("draining")
    time.sleep(0.5)
    began_s = time.monotonic()
    run.send(signal.SIGINT)
    assert run.end() == 130
    assert time.monotonic() - began_s < 15
    assert "stopping at once" in run.out
    child = int(re.findall(r"child=(\d+)", run.err)[0])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_two_signals_at_the_same_moment_are_one(start: Start) -> None:
    """A terminal and a wrapper both pass a Ctrl+C on."""
    run = start(echo_s=60.0)
    run.until("A->B  ")
    run.send(signal.SIGINT)
    time.sleep(0.05)
    run.send(signal.SIGTERM)
    assert run.end() == 0
    assert "drained" in run.out


def test_a_drain_that_takes_too_long_is_cut_short_within_ten_seconds(start: Start) -> None:
    run = start(rest_s=60.0, drain_s=1.0, stop_hangs=True, child=True)
    run.until("A->B  ")
    began_s = time.monotonic()
    run.send(signal.SIGINT)
    assert run.end() == 1
    assert time.monotonic() - began_s < 10
    assert "error: The drain took longer than 1 s and was cut short. Nothing is lost" in run.err
    child = int(re.findall(r"child=(\d+)", run.err)[0])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_a_spark_that_stops_slowly_makes_no_drain_late(start: Start, tmp_path: Path) -> None:
    """Everything is written: what Spark then does with itself is bounded, and no failure."""
    run = start(drain_s=1.0, spark_ends_s=60.0)
    run.until("A->B  ")
    began_s = time.monotonic()
    run.send(signal.SIGTERM)
    assert run.end() == 0
    assert time.monotonic() - began_s < 10
    assert "error" not in run.err
    assert "drained: all records that were read are written" in run.out
    assert calls(tmp_path)[-2:] == ["control.finish", "control.stop"]


def test_a_drain_that_fails_is_told(start: Start) -> None:
    run = start(drain_fails=True, sigterm_exit_code=143)
    run.until("A->B  ")
    run.send(signal.SIGTERM)
    assert run.end() == 143
    assert "error: The drain failed: cluster B: No broker answers. Start it." in run.err
    assert "[flow.stop grace=False]" in run.err


def test_sighup_looks_for_new_topics(start: Start) -> None:
    run = start()
    run.until("A->B  ")
    run.send(signal.SIGHUP)
    run.until("topic new: created A.new")
    assert "looking for new topics and partitions" in run.out
    assert "[refresh]" in run.err
    run.send(signal.SIGINT)
    assert run.end() == 0


@pytest.mark.parametrize(("kind", "code", "text"), [
    ("unreachable", 3, "error: cluster B: No broker answers. Start it."),
    ("config", 2, "error: mm2.properties:3: The factor is too large. Lower it."),
    ("defect", 1, "Unexpected ZeroDivisionError: division by zero. This is a defect"),
])  # fmt: skip
def test_a_failure_of_prepare_is_one_paragraph(
    start: Start, kind: str, code: int, text: str
) -> None:
    run = start(prepare_fails=kind)
    assert run.end() == code
    assert text in run.err
    assert "Traceback" not in run.err
    assert run.err.count(text) == 1
    assert "[flow.start]" not in run.err
    assert "[control.stop]" in run.err


def test_a_failed_start_of_spark_ends_with_3_and_stops_the_control_plane(start: Start) -> None:
    run = start(start_fails=True)
    assert run.end() == 3
    assert "error: master x: Spark does not start. Look into spark.log." in run.err
    assert "[control.stop]" in run.err


@pytest.mark.parametrize(
    "scenario",
    [
        {"open_fails_s": 0.1, "loads_s": 1.0},
        {"open_fails_s": 1.0, "take_over": True},
        {"open_fails_s": 0.5, "prepare_s": 1.5},
    ],
    ids=["known-early", "take-over", "while-clusters-are-prepared"],
)
def test_a_process_whose_spark_does_not_start_takes_no_flow(
    start: Start, scenario: dict[str, object]
) -> None:
    """The owner that it would take the flow from is healthy."""
    run = start(**scenario)
    assert run.end() == 3
    assert "error: There is no Java. Install it." in run.err
    assert ("[prepare]" in run.err) is ("prepare_s" in scenario)
    assert "[control.start]" not in run.err


def test_a_start_that_takes_over_shows_each_phase_once(start: Start) -> None:
    run = start(once=True, take_over=True)
    assert run.end() == 0
    phases = re.findall(
        r"^[\d:]+ (loading|starting Spark|connecting|copying)", run.out, re.MULTILINE
    )
    assert len(phases) == len(set(phases))
    assert phases[-2:] == ["connecting", "copying"]


def test_debug_shows_the_stack_trace(start: Start) -> None:
    run = start(prepare_fails="unreachable", debug=True)
    assert run.end() == 3
    assert "Traceback" in run.err
    assert "cli_fakes.py" in run.err


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.more), (signal.SIGTERM, 143)],
)
def test_a_signal_while_starting_stops_at_once(start: Start, number: int, code: int) -> None:
    run = start(prepare_s=60.0, sigterm_exit_code=143)
    run.until("[prepare]")
    began_s = time.monotonic()
    run.send(number)
    assert run.end() == code
    assert time.monotonic() - began_s < 15
    assert "[flow.start]" not in run.err


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.more), (signal.SIGTERM, 143)],
)
def test_a_once_that_is_stopped_while_starting_copied_nothing(
    start: Start, number: int, code: int
) -> None:
    run = start(once=True, prepare_s=60.0)
    run.until("[prepare]")
    run.send(number)
    assert run.end() == code
    assert "[flow.start]" not in run.err


def test_spark_starts_before_the_control_plane_is_loaded(start: Start) -> None:
    run = start(loads_s=60.0, opens_slowly=True)
    deadline_s = time.monotonic() + 20
    while not any(one.name() == "sleep" for one in psutil.Process(run.process.pid).children()):
        assert time.monotonic() < deadline_s, run.err  # it stands for Spark
        time.sleep(0.05)
    run.send(signal.SIGINT)
    assert run.end() == 130
    assert "[flow.open ended]" in run.err
    assert "[prepare]" not in run.err


def test_a_stopped_start_of_spark_cleans_up(start: Start) -> None:
    run = start(opens_slowly=True)
    run.until("[control.start]")
    run.send(signal.SIGINT)
    assert run.end() == 130
    assert "[flow.open ended]" in run.err


def test_a_run_that_was_stopped_while_it_loaded_starts_no_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(Scenario(work_dir=str(tmp_path / "run")))
    over = threading.Event()
    opened = []

    class Flow(FakeFlow):
        def open(self) -> None:
            opened.append(self)

    def load(settings: MirrorSettings, **_: object) -> Flow:
        os.kill(os.getpid(), signal.SIGINT)
        assert over.wait(20)
        return Flow(world, settings)

    parts = Parts(
        control=lambda settings, **_: FakeControl(world, settings),
        flow=load,
        quick_check=lambda _: FakeLook(world),
    )
    options = RunOptions(work_dir=tmp_path / "run", live=False)
    assert run_mirror(config(tmp_path, BASE), options, parts=parts) == 130
    (loading,) = (one for one in threading.enumerate() if one.name == "sparkmirror-load")
    over.set()
    loading.join(20)
    assert not any(one.name == "sparkmirror-open" for one in threading.enumerate())
    assert not opened
    assert "stopping" in capsys.readouterr().out


def test_a_failed_query_ends_the_run_with_1(start: Start) -> None:
    run = start(query_fails_s=0.6)
    assert run.end() == 1
    assert "error: flow A->B: the query failed: boom Look." in run.err


def test_a_once_whose_query_fails_right_after_it_was_looked_at_is_not_done(start: Start) -> None:
    run = start(once=True, query_fails_late=True)
    assert run.end() == 1
    assert "error: flow A->B: the query failed: boom Look." in run.err


def test_a_query_that_ends_unasked_is_an_error(start: Start) -> None:
    run = start(query_ends_s=0.6)
    assert run.end() == 1
    assert "error: The queries ended unexpectedly." in run.err


def test_a_spark_that_died_is_told_in_words(start: Start) -> None:
    run = start(spark_dies_s=0.6)
    assert run.end() == 1
    assert "error: Spark no longer responds (ConnectionError)." in run.err
    assert "Traceback" not in run.err


def test_a_spark_that_is_silent_delays_no_drain(start: Start) -> None:
    """Its JVM may be stopped or swapped out: the drain begins, and is cut short in time."""
    run = start(spark_hangs_s=0.3, stop_hangs=True, drain_s=1.0)
    run.until("[flow.active]")
    shown = run.out.count("A->B  ")
    run.until_shown("A->B  ", shown + 2)
    began_s = time.monotonic()
    run.send(signal.SIGTERM)
    assert run.end() == 1
    assert time.monotonic() - began_s < 10
    assert "draining: writing all records that were read" in run.out
    assert "error: The drain took longer than 1 s and was cut short." in run.err


def test_a_second_signal_stops_at_once_while_spark_is_silent(start: Start) -> None:
    run = start(spark_hangs_s=0.3, stop_hangs=True, drain_s=60.0)
    run.until("[flow.active]")
    run.send(signal.SIGTERM)
    run.until("draining")
    time.sleep(0.5)
    began_s = time.monotonic()
    run.send(signal.SIGTERM)
    assert run.end() == 130
    assert time.monotonic() - began_s < 15


def test_a_spark_that_stays_silent_ends_the_run(start: Start) -> None:
    run = start(spark_hangs_s=0.3, stop_hangs=True, silent_s_max=1.0)
    assert run.end() == 1
    assert "error: Spark no longer responds (for 1 s). See spark.log" in run.err


def test_json_lines_are_json_on_both_streams(start: Start) -> None:
    run = start(once=True, halted=True, log_format="json", warning="a remark")
    assert run.end() == 1
    documents = [json.loads(line) for line in run.out.splitlines()]
    kinds = {document["type"] for document in documents}
    assert kinds >= {"warning", "phase", "event", "progress", "summary"}
    errors = [json.loads(line) for line in run.err.splitlines() if line.startswith("{")]
    shown = [document for document in errors if document["type"] == "error"]
    assert [document["code"] for document in shown] == ["MIRROR_ERROR"]
    assert "CORRUPT_BATCH" in shown[0]["what"]


def test_the_log_file_has_what_happened(start: Start, tmp_path: Path) -> None:
    run = start(query_fails_s=0.5, work_dir=str(tmp_path / "deep" / "dir"))
    assert run.end() == 1
    text = (tmp_path / "deep" / "dir" / "sparkmirror.log").read_text(encoding="utf-8")
    assert "the query failed: boom" in text


def test_a_work_dir_that_cannot_be_made(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = start(work_dir=str(tmp_path / "file" / "run"))
    assert run.end() == 3
    assert "error: --work-dir: The work directory" in run.err
    assert "cannot be created or written" in run.err


def test_a_work_dir_has_one_run_at_a_time(start: Start, tmp_path: Path) -> None:
    work_dir = tmp_path / "one"
    first = start(work_dir=str(work_dir), child=True)
    first.until("child=")
    child = int(re.findall(r"child=(\d+)", first.err)[0])
    try:
        second = start(work_dir=str(work_dir))
        assert second.end() == 3
        told = f"Another run uses the work directory {work_dir}: process {first.process.pid}."
        assert f"error: --work-dir: {told}" in second.err
        # Its child, which stands for the JVM, does not keep the lock.
        first.process.kill()
        first.end()
        assert psutil.pid_exists(child)
        assert start(work_dir=str(work_dir), once=True).end() == 0
    finally:
        os.kill(child, signal.SIGKILL)


class Terminal:
    """The script in a terminal of its own."""

    def __init__(self, tmp_path: Path, away: Sequence[int] = (), **scenario: object) -> None:
        """``away``: standard streams that are a file."""
        self._file = tmp_path / "away"
        self._file.touch()
        scenario.setdefault("work_dir", str(tmp_path / "run"))
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for number in away:
                os.dup2(os.open(self._file, os.O_RDWR | os.O_APPEND), number)
            os.environ |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
            os.execv(sys.executable, [sys.executable, str(SCRIPT), json.dumps(scenario)])
        self.text = ""

    def read(self, timeout_s: float) -> bool:
        if not readable([self.fd], timeout_s):
            return True
        try:
            data = os.read(self.fd, 65_536)
        except OSError:  # the other side is closed
            return False
        self.text += data.decode("utf-8", "replace")
        return bool(data)

    def until(self, text: str, timeout_s: float = 20.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while text not in self.text + self._file.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline_s, (text, self.text)
            assert self.read(0.1), (text, self.text)

    def end(self, timeout_s: float = 20.0) -> int:
        deadline_s = time.monotonic() + timeout_s
        while self.read(0.1):
            assert time.monotonic() < deadline_s, self.text
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def begin(**scenario: object) -> Terminal:
        started.append(Terminal(tmp_path, **scenario))
        return started[-1]

    yield begin
    for one in started:
        if psutil.pid_exists(one.pid):
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
        os.close(one.fd)


def test_live_view_in_a_terminal_with_keys(terminal: Callable[..., Terminal]) -> None:
    run = terminal()
    run.until("A->B")
    run.until("topic orders: created")
    assert "\x1b[?25l" in run.text
    os.write(run.fd, b"t")
    run.until("hide topics")
    os.write(run.fd, b"q")
    run.until("draining: writing all records that were read")
    assert run.end() == 0
    assert "mirrored in" in run.text
    assert run.text.rindex("\x1b[?25h") > run.text.rindex("\x1b[?25l")


def test_ctrl_c_in_a_terminal_drains_and_again_stops(terminal: Callable[..., Terminal]) -> None:
    run = terminal(rest_s=60.0)
    run.until("A->B")
    os.write(run.fd, b"\x03")
    run.until("draining: writing all records that were read")
    time.sleep(0.5)
    os.write(run.fd, b"\x03")
    run.until("stopping at once")
    assert run.end() == 130


def calls(tmp_path: Path, *, made: bool = True) -> list[str]:
    """What the run asked of pipeline and control plane, in order; ``made``: at least one thing."""
    path = tmp_path / "run.calls"
    return path.read_text(encoding="utf-8").splitlines() if made or path.exists() else []


def drained_in_order(tmp_path: Path) -> None:
    """The queries were told to end and given time, nothing failed, and the log says so."""
    assert calls(tmp_path)[:3] == ["prepare", "control.start", "flow.start"]
    after = [call for call in calls(tmp_path)[3:] if call != "refresh"]
    assert after == ["drain", "flow.stop grace=True", "control.finish", "control.stop"]
    log = (tmp_path / "run" / "sparkmirror.log").read_text(encoding="utf-8")
    assert log.count("draining: writing all records that were read") == 1
    assert log.count("drained: all records that were read are written") == 1
    assert "ERROR" not in log
    assert "stopping at once" not in log


@pytest.mark.parametrize("hangups", [pytest.param(0, marks=pytest.mark.more), 3])
def test_a_terminal_that_closes_ends_the_run_in_order(tmp_path: Path, hangups: int) -> None:
    """The kernel sends SIGHUP and ends the input; a shell may send SIGHUP once more, later."""
    run = Terminal(tmp_path, rest_s=1.0, sigterm_exit_code=42)
    run.until("A->B")
    while "flow.start" not in calls(tmp_path):
        time.sleep(0.05)
    os.close(run.fd)
    for _ in range(hangups):
        time.sleep(0.2)
        os.kill(run.pid, signal.SIGHUP)
    assert ended(run.pid) == 42
    drained_in_order(tmp_path)
    assert "refresh" not in calls(tmp_path)


@pytest.mark.parametrize("away", [(0,), pytest.param((0, 1), marks=pytest.mark.more), (1, 2)])
def test_one_stream_is_enough_to_see_the_terminal_close(
    tmp_path: Path, away: tuple[int, ...]
) -> None:
    """As with ``run FILE </dev/null`` and ``run FILE >log 2>&1``."""
    run = Terminal(tmp_path, away, sigterm_exit_code=42)
    run.until("A->B")
    os.close(run.fd)
    assert ended(run.pid) == 42
    drained_in_order(tmp_path)
    assert "refresh" not in calls(tmp_path)


def test_a_terminal_that_closes_during_the_start_ends_it(tmp_path: Path) -> None:
    run = Terminal(tmp_path, prepare_s=60.0, sigterm_exit_code=42)
    run.until("connecting to the clusters")
    os.close(run.fd)
    assert ended(run.pid) == 42
    assert "drain" not in calls(tmp_path)


def test_hangup_during_the_start_and_during_a_drain_is_no_order(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    """A refresh then has nothing to do: a start looks anyway, and a drain takes up no more."""
    goes_on = tmp_path / "goes on"
    run = terminal(prepares_until=str(goes_on), rest_s=1.5)
    run.until("connecting to the clusters")
    os.kill(run.pid, signal.SIGHUP)
    time.sleep(0.5)
    goes_on.touch()
    run.until("A->B")
    os.write(run.fd, b"\x03")
    run.until("draining")
    os.kill(run.pid, signal.SIGHUP)
    assert run.end() == 0
    drained_in_order(tmp_path)
    assert "refresh" not in calls(tmp_path)


def test_hangup_with_an_open_terminal_looks_for_new_topics(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    run = terminal()
    run.until("A->B")
    os.kill(run.pid, signal.SIGHUP)
    run.until("topic new: created A.new")
    os.write(run.fd, b"q")
    assert run.end() == 0
    drained_in_order(tmp_path)
    assert "refresh" in calls(tmp_path)


def ended(pid: int, timeout_s: float = 20.0) -> int:
    """Exit code of the child ``pid``; kills it when it takes longer."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the run went on")


@contextmanager
def without_readers(tmp_path: Path, **scenario: object) -> Iterator[subprocess.Popen[bytes]]:
    """The started run, both of whose streams end in a closed pipe, as after ``2>&1 | head``."""
    scenario["work_dir"] = str(tmp_path / "run")
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), json.dumps(scenario)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        assert any(b"flow.start" in line for line in process.stdout)
        process.stdout.close()
        yield process


@pytest.mark.parametrize(
    ("number", "log_format"),
    [
        (signal.SIGTERM, "text"),
        pytest.param(signal.SIGTERM, "json", marks=pytest.mark.more),
        pytest.param(signal.SIGINT, "text", marks=pytest.mark.more),
        (signal.SIGINT, "json"),
    ],
)
def test_readers_that_went_away_do_not_disturb_the_drain(
    tmp_path: Path, number: int, log_format: str
) -> None:
    with without_readers(tmp_path, log_format=log_format) as process:
        time.sleep(0.8)  # progress lines meet the closed pipe
        process.send_signal(number)
        assert process.wait(20) == 0
    drained_in_order(tmp_path)


@contextmanager
def with_a_full_pipe(tmp_path: Path, **scenario: object) -> Iterator[tuple[Running, int]]:
    """A run that mirrors, and the unread pipe that both its streams end in."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4_096)
    with os.fdopen(writer, "w") as stream:
        run = Running(tmp_path, stream, interval_s=0.001, refresh_s=0.01, **scenario)
    try:
        deadline_s = time.monotonic() + 20
        while "flow.start" not in calls(tmp_path, made=False):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        time.sleep(4.0)  # the pipe is full long since
        yield run, reader
    finally:
        run.process.kill()
        run.end()
        os.close(reader)


@pytest.mark.parametrize("log_format", ["text", pytest.param("json", marks=pytest.mark.more)])
def test_a_reader_that_does_not_read_delays_no_drain(tmp_path: Path, log_format: str) -> None:
    """A pager, a terminal after Ctrl+S; it reads again at last, and only progress is missing."""
    with with_a_full_pipe(tmp_path, log_format=log_format) as (run, reader):
        began_s = time.monotonic()
        run.send(signal.SIGTERM)
        while "control.stop" not in calls(tmp_path):
            assert time.monotonic() < began_s + 10
            time.sleep(0.05)
        with os.fdopen(os.dup(reader), encoding="utf-8") as stream:
            text = stream.read()
        assert run.end() == 0
    order = ["mirroring", "[drain]", "[control.stop]", "drained: all records that"]
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    assert ('"summary"' if log_format == "json" else "mirrored in") in text


def test_a_reader_that_never_reads_does_not_hold_the_end(tmp_path: Path) -> None:
    with with_a_full_pipe(tmp_path, query_fails_s=5.0) as (run, _):
        assert run.end() == 1


def test_a_terminal_that_shows_nothing_delays_no_drain(tmp_path: Path) -> None:
    """As after Ctrl+S."""
    run = Terminal(tmp_path, sigterm_exit_code=42)
    run.until("A->B")
    for _ in range(40):
        os.write(run.fd, b"t")
        time.sleep(0.1)
    os.kill(run.pid, signal.SIGTERM)
    assert ended(run.pid) == 42
    os.close(run.fd)
    drained_in_order(tmp_path)


def test_an_error_keeps_its_exit_code_when_nobody_can_read_it(tmp_path: Path) -> None:
    with without_readers(tmp_path, query_fails_s=1.0) as process:
        assert process.wait(20) == 1
    text = (tmp_path / "run" / "sparkmirror.log").read_text(encoding="utf-8")
    assert "the query failed: boom" in text


def test_a_drain_asked_for_elsewhere_ends_the_run_with_0(tmp_path: Path) -> None:
    running = Running(tmp_path, drain_asked_s=0.5, sigterm_exit_code=143)
    assert running.end() == 0, running.err
    assert "drain was ordered" in running.out
    assert "[drain]" in running.err


def test_metrics_are_served_until_the_end(tmp_path: Path) -> None:
    running = Running(tmp_path, metrics="127.0.0.1:0", paused=True)
    running.until("metrics on http://127.0.0.1:")
    running.until("mirroring")
    found = re.search(r"metrics on (http://127\.0\.0\.1:\d+)", running.out)
    assert found is not None
    wanted = (
        r'sparkmirror_flow_state\{source="A",state="paused",target="B"\} 1\.0',
        r"mirrorsourceconnector_record_count\{.*A\.orders.*\} [1-9]",
    )
    deadline_s, text = time.monotonic() + patience(), ""
    while not all(re.search(one, text) for one in wanted):
        assert time.monotonic() < deadline_s, text
        with urllib.request.urlopen(f"{found[1]}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        time.sleep(0.1)
    running.send(signal.SIGINT)
    assert running.end() == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{found[1]}/metrics", timeout=10)


@pytest.mark.parametrize(
    ("address", "code"),
    [("0.0.0.0:0", 2), pytest.param("nonsense", 2, marks=pytest.mark.more)],
)
def test_metrics_that_cannot_be_served_end_the_start(
    tmp_path: Path, address: str, code: int
) -> None:
    running = Running(tmp_path, metrics=address)
    assert running.end() == code
    assert "--metrics: " in running.err
    assert "[prepare]" not in running.err
