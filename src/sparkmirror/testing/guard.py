"""Kills child processes and removes temporary directories, however this process ends.

A small helper process reads from a pipe which processes and directories exist. When the pipe closes
(normal exit, an uncaught signal, even SIGKILL), it kills and removes all that remain. A
parent-death signal would not work: it fires when the *thread* that started the child ends.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from sparkmirror.errors import Defect, MachineError

__all__ = ["forget", "guard_directory", "guard_process", "spawn"]

_CLOSE_TIMEOUT_S = 15.0

# A listed process id cannot be reused, because the parent has not reaped it yet.
_SCRIPT = """
import os, shutil, signal, sys
processes, directories = set(), set()
for line in sys.stdin:
    sign, kind, value = line.rstrip("\\n").split(" ", 2)
    kept = processes if kind == "process" else directories
    kept.add(value) if sign == "+" else kept.discard(value)
for process in map(int, processes):
    try:
        # A process with its own session is killed with its whole process group.
        own = os.getpgid(process) == process
        (os.killpg if own else os.kill)(process, signal.SIGKILL)
    except ProcessLookupError:
        continue
for directory in directories:
    shutil.rmtree(directory, ignore_errors=True)
"""

_lock = threading.Lock()
_helper: subprocess.Popen[str] | None = None
_owner = 0


def spawn(
    command: list[str],
    *,
    output: IO[bytes] | int | None = None,
    errors: IO[bytes] | int | None = subprocess.STDOUT,
    input: IO[bytes] | int | None = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``command`` in its own session, guarded.

    ``errors``: the destination of stderr if ``output`` is given; by default the same.

    In its own session it does not receive the terminal's Ctrl+C: the caller decides when it ends.
    Raises MachineError if the program cannot be started.
    """
    try:
        process = subprocess.Popen(  # noqa: S603  (an argument list, no shell)
            command,
            stdin=input,
            stdout=output,
            stderr=errors if output is not None else None,
            env=None if environment is None else dict(environment),
            cwd=directory,
            start_new_session=True,
        )
    except OSError as error:
        raise MachineError(
            f"The program cannot be started ({error.strerror}).",
            where=command[0],
            do="Check that the file exists and that there is memory left.",
        ) from error
    guard_process(process.pid)
    return process


def guard_process(pid: int) -> None:
    """Have the child process ``pid`` killed when this process ends."""
    _send_to_guard(f"+ process {pid}")


def guard_directory(directory: Path) -> None:
    """Have ``directory`` removed when this process ends."""
    _send_to_guard(f"+ directory {directory}")


def forget(what: int | Path) -> None:
    """Undo ``guard_process`` (for a process that was reaped) or ``guard_directory``."""
    _send_to_guard(f"- process {what}" if isinstance(what, int) else f"- directory {what}")


def _send_to_guard(line: str) -> None:
    global _helper, _owner  # noqa: PLW0603 - one helper per process
    with _lock:
        if _helper is None or _owner != os.getpid():
            _helper = subprocess.Popen(  # noqa: S603  (an argument list, no shell)
                [sys.executable, "-I", "-S", "-c", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            _owner = os.getpid()
            atexit.register(_close)
        if _helper.stdin is None:
            raise Defect("the helper has no pipe to read from")
        try:
            _helper.stdin.write(line + "\n")
            _helper.stdin.flush()
        except BrokenPipeError as error:
            raise MachineError(
                "The helper process that cleans up after this one has been killed.",
                where=f"process {_helper.pid}",
                do="Start again; leave that process alone.",
            ) from error


def _close() -> None:
    """At exit: close the pipe, and wait until the helper has cleaned up."""
    if _helper is None or _owner != os.getpid():
        return
    if _helper.stdin is None:
        raise Defect("the helper has no pipe to read from")
    _helper.stdin.close()
    try:
        _helper.wait(_CLOSE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _helper.kill()
