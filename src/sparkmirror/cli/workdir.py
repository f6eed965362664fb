"""Where a run keeps its logs and Spark's disposable files."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil

from sparkmirror.errors import MachineError

__all__ = ["new_run_id", "open_work_dir"]

RUNS_KEPT = 10


def new_run_id() -> str:
    """A name for one run: local time and process id, ``20260131-120000-4711``."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def open_work_dir(given: Path | None, run_id: str) -> Path:
    """Make and return the run's directory.

    ``given`` is used as it is. Otherwise it is ``sparkmirror/runs/<run id>`` below
    ``$XDG_STATE_HOME`` (``~/.local/state``), or below the temporary directory when that cannot be
    written; there the ten newest runs are kept and older ones of ended processes removed. Raises
    ``MachineError`` when no directory can be made.
    """
    if given is not None:
        return _made(given.expanduser().absolute(), "--work-dir")
    last: MachineError | None = None
    for base in _bases():
        try:
            path = _made(base / run_id, str(base))
        except MachineError as error:
            last = error
            continue
        _remove_old_runs(base)
        return path
    assert last is not None, "there is always a temporary directory to try"
    raise last


def _bases() -> list[Path]:
    state = os.environ.get("XDG_STATE_HOME")
    bases = [Path(state) / "sparkmirror" / "runs"] if state else []
    try:
        bases.append(Path.home() / ".local" / "state" / "sparkmirror" / "runs")
    except RuntimeError:
        bases += []  # a user without a home directory: the temporary directory serves
    bases.append(Path(tempfile.gettempdir()) / f"sparkmirror-{os.getuid()}" / "runs")
    return bases


def _made(path: Path, where: str) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise MachineError(
            f"The work directory {path} cannot be made or written: {error.strerror}.",
            where=where,
            do="Give a directory that this user may write with --work-dir.",
        ) from error
    return path


def _remove_old_runs(base: Path) -> None:
    """Remove all but the newest runs below ``base`` whose process has ended."""
    runs = sorted((path for path in base.iterdir() if path.is_dir()), key=lambda path: path.name)
    for path in runs[:-RUNS_KEPT]:
        process = path.name.rpartition("-")[2]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(path, ignore_errors=True)
