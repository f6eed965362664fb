"""The demo's command: what ends it, and what it says to call in another terminal."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkmirror.cli.verbs.demo import next_steps, own_command


def _environment(directory: Path, *, script: bool) -> tuple[Path, Path]:
    """The files of a Python environment: its Python and the command's script, if ``script``."""
    directory.mkdir()
    python, own = directory / "python", directory / "sparkmirror"
    python.symlink_to(sys.executable)
    if script:
        own.write_text("#!/bin/sh\necho called\n")
        own.chmod(0o755)
    return python, own


def test_the_name_alone_where_it_leads_to_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, own = _environment(tmp_path / "ours", script=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sparkmirror").symlink_to(own)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert own_command() == "sparkmirror"


@pytest.mark.parametrize("another", [False, True])
def test_the_whole_path_where_the_name_leads_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, another: bool
) -> None:
    python, own = _environment(tmp_path / "an environment", script=True)
    other, _ = _environment(tmp_path / "other", script=another)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(other.parent))
    assert shlex.split(own_command()) == [str(own)]
    done = subprocess.run(
        ["/bin/sh", "-c", own_command()], capture_output=True, text=True, check=True
    )
    assert done.stdout == "called\n"


def test_the_module_where_no_script_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, _ = _environment(tmp_path / "ours", script=False)
    monkeypatch.setattr(sys, "executable", str(python))
    assert shlex.split(own_command()) == [str(python), "-m", "sparkmirror"]


WAITING = """
import sys, time
from pathlib import Path
from sparkmirror.cli.verbs import demo
from sparkmirror.cli.main import main

class Waiting(demo.Demo):
    def prepare(self):
        Path("begun").touch()
        time.sleep(60)

    def __exit__(self, *error):
        Path("unwound").touch()

demo.Demo = Waiting
sys.exit(main(["demo"]))
"""


def _waiting(directory: Path, hangup: signal.Handlers = signal.SIG_DFL) -> subprocess.Popen[bytes]:
    """A demo that does nothing yet, in a terminal that is gone.

    ``hangup``: what SIGHUP does at its start; the tests themselves may run under nohup.
    """
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        preexec_fn=partial(signal.signal, signal.SIGHUP, hangup),  # noqa: PLW1509  (no more runs)
    )
    os.close(slave)
    deadline_s = time.monotonic() + 30
    while not (directory / "begun").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    os.close(master)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_a_terminal_that_closes_clean_up(tmp_path: Path, number: int) -> None:
    process = _waiting(tmp_path)
    process.send_signal(number)
    assert process.wait(20) == 130
    assert (tmp_path / "unwound").exists()


def test_a_demo_that_shall_outlive_its_terminal(tmp_path: Path) -> None:
    process = _waiting(tmp_path, signal.SIG_IGN)  # as nohup does
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 130
    assert (tmp_path / "unwound").exists()


def test_a_demo_that_is_kept_suggests_our_own_verbs(tmp_path: Path) -> None:
    """With the file that the demo mirrors by; and Kafka's tools, which know nothing of us."""
    cluster = SimpleNamespace(bootstrap_servers="127.0.0.1:1")
    file = tmp_path / "mm2.properties"
    demo = SimpleNamespace(
        a=cluster, b=cluster, directory=tmp_path, file=file, remote_topic=lambda name: f"A.{name}"
    )
    lines = [line for group in next_steps(demo).values() for line in group]  # type: ignore[arg-type]
    lead = own_command()
    own = [shlex.split(line.removeprefix(lead)) for line in lines if line.startswith(lead)]
    assert [words[0] for words in own] == [
        "run", "status", "lag", "topics", "verify", "pause", "resume", "drain",
    ]  # fmt: skip
    assert all(words[1] == str(file) for words in own)
    assert any("kafka-topics.sh" in line for line in lines)
