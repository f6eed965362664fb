"""The user's cache directory, and the locks for processes that share it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkmirror.directories import private_directory
from sparkmirror.errors import MachineError

__all__ = ["cache_directory", "claim_part", "locked"]

_LOCK_POLL_S = 0.2


def cache_directory(*names: str) -> Path:
    """``$XDG_CACHE_HOME/sparkmirror`` or ``~/.cache/sparkmirror``, then ``names``.

    It is created if it does not exist. Raises MachineError if that fails, or if other users may
    write there: the JVM maps files from it.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The XDG specification says that a relative value must be ignored.
        root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    except RuntimeError as error:
        raise MachineError(
            "This user has no home directory, so there is no cache directory.",
            do="Set XDG_CACHE_HOME to a directory that you may write to.",
        ) from error
    try:
        return private_directory(root, ("sparkmirror", *names))
    except OSError as error:
        raise MachineError(
            f"The cache directory cannot be made ({error.strerror}).",
            where=str(root.joinpath("sparkmirror", *names)),
            do="Set XDG_CACHE_HOME to a directory that you may write to.",
        ) from error


def claim_part(path: Path, *, stale_s: float) -> Path | None:
    """Create an empty file beside ``path`` for the process that makes ``path``.

    None if another process has created one. If that one is older than ``stale_s``, its process was
    killed, and the file is replaced. Raises ``OSError``.
    """
    part = path.with_suffix(".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    if part.exists() and time.time() - part.stat().st_mtime > stale_s:
        part.unlink()
    try:
        part.touch(exist_ok=False)
    except FileExistsError:
        return None
    return part


@contextmanager
def locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold the exclusive lock on file ``path``. The lock ends with the process, however it ends.

    Raises MachineError if another process holds it for longer than ``timeout_s``, or if the file
    cannot be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise MachineError(
            f"The lock file cannot be opened ({error.strerror}).",
            where=str(path),
            do="Set XDG_CACHE_HOME to a directory that you may write to.",
        ) from error
    with file:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise MachineError(
                        f"Another process has held this lock for {timeout_s:.0f} s.",
                        where=str(path),
                        do="Wait until the other process ends, or end it.",
                    ) from None
                time.sleep(_LOCK_POLL_S)
        yield
