"""Spark's Python daemon: nobody else reaches it, whatever directory its socket is in."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest
from pyspark import worker

from sparkmirror.data.workers.daemon import PANDAS, PRELOADED, prefer_installed_pyspark
from sparkmirror.data.workers.patched_worker import _with_umask, wrap_main
from sparkmirror.data.workers.prefork_server import _PLANNING
from sparkmirror.errors import MachineError


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory as the system's temporary one: everybody's, and with a path short enough."""
    path = Path(tempfile.mkdtemp(prefix="sm-", dir="/tmp"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def test_only_its_user_may_write_to_its_socket(open_to_all: Path) -> None:
    daemon = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sparkmirror.data.workers.daemon",
            "pyspark.sql.worker.create_data_source",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": str(open_to_all),
        },
        umask=0,
    )
    assert daemon.stdout is not None
    (size,) = struct.unpack(">i", daemon.stdout.read(4))
    door = Path(daemon.stdout.read(size).decode())
    mode = door.stat().st_mode
    refused = _refused_to_others(door) if os.geteuid() == 0 else True
    daemon.communicate(timeout=60)
    assert door.parent == open_to_all
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o700
    assert refused, "PySpark asks for no token at such a socket: the mode is all that guards it"


def _refused_to_others(door: Path) -> bool:
    """Whether a process of another user cannot connect."""
    nobody = 65534
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(nobody)
        os.setuid(nobody)
        try:
            socket.socket(socket.AF_UNIX).connect(str(door))
        except PermissionError:
            os._exit(13)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13


def test_what_a_worker_makes_has_the_modes_of_the_process_that_was_started() -> None:
    def umask() -> int:
        mask = os.umask(0)
        os.umask(mask)
        return mask

    before = os.umask(0o027)
    try:
        main = _with_umask(umask)
        os.umask(0o077)
        assert main() == 0o027
    finally:
        os.umask(before)


_TASK = """
import multiprocessing, os, signal, subprocess, time
from sparkmirror.data.workers.patched_worker import _outliving_sigterm

def task():
    os.kill(os.getpid(), signal.SIGTERM)
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    forks = multiprocessing.get_context("fork")
    runs = forks.Event()
    fork = forks.Process(target=lambda: (runs.set(), time.sleep(600)))
    fork.start()
    runs.wait()
    fork.terminate()
    fork.join()
    print(program.wait(), fork.exitcode)

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # as in the daemon
os.kill(os.getpid(), signal.SIGTERM)
_outliving_sigterm(task)()
"""


def test_a_worker_outlives_sigterm_but_what_its_code_starts_does_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TASK], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("-15 -15\n", "", 0)


def test_a_pyspark_with_another_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def main(infile: object, outfile: object, more: object) -> None: ...

    monkeypatch.setattr(worker, "main", main)
    with pytest.raises(MachineError, match="PySpark 4") as caught:
        wrap_main()
    assert worker.main is main
    assert "pip install" in caught.value.do


def test_the_worker_of_this_pyspark_is_wrapped_as_it_expects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "main", worker.main)
    before = worker.main
    wrap_main()
    assert worker.main is not before
    wrap_main()  # and can be found again as what it is


@pytest.mark.parametrize("name", [PANDAS, *PRELOADED, *_PLANNING])
def test_what_is_loaded_ahead_is_there(name: str) -> None:
    assert find_spec(name) is not None


def _packed(directory: Path, version: str) -> str:
    """A ``pyspark.zip`` of that version, as a JVM puts it before the installed package."""
    path = directory / "pyspark.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("pyspark/__init__.py", "")
        packed.writestr("pyspark/version.py", f'__version__: str = "{version}"\n')
    return str(path)


@pytest.mark.parametrize(("version", "stays"), [(pyspark.__version__, False), ("4.1.1", True)])
def test_the_jvms_own_pyspark_is_left_out_only_for_the_same_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, stays: bool
) -> None:
    path = _packed(tmp_path, version)
    monkeypatch.setattr(sys, "path", [path, *sys.path])
    prefer_installed_pyspark()
    assert (path in sys.path) is stays


def test_a_daemon_of_another_version_says_so_and_ends(tmp_path: Path) -> None:
    """As on a cluster whose workers have another Spark."""
    paths = [_packed(tmp_path, "4.1.1"), *sys.path]
    ended = subprocess.run(
        [sys.executable, "-m", "sparkmirror.data.workers.daemon", "pyspark.worker"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    assert "sparkmirror.errors.MachineError:" in ended.stderr
    assert "PySpark 4.1.1 would run the slots. sparkmirror works with Spark" in ended.stderr
