"""The directory of a run's logs and of Spark's temporary files."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from sparkmirror.directories import private_directory
from sparkmirror.errors import Defect, MachineError

log = logging.getLogger(__name__)

RUNS_KEPT = 10
_SILENT_S = 30 * 86_400.0
# With or without host and random digits, which older versions did not write.
_RUN = re.compile(r"\d{8}-\d{6}(-[0-9a-f]{10})?-\d+")


def new_run_id() -> str:
    """A name for one run: ``20260131-120000-c07f3a91d2-4711``.

    It has local time, four digits for the host, six random ones and the process id. Two containers
    may start in the same second with the same process id: runs of one name would take each other's
    claims for their own.
    """
    started = time.strftime("%Y%m%d-%H%M%S")
    return f"{started}-{_host_digits()}{secrets.token_hex(3)}-{os.getpid()}"


def _host_digits() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()) & 0xFFFF:04x}"


def open_work_dir(given: Path | None, run_id: str, *, has_option: bool = False) -> Path:
    """Create and return the run's directory.

    ``given`` is used as it is. Otherwise the directory is ``sparkmirror/runs/<run id>`` below
    ``$XDG_STATE_HOME`` or ``~/.local/state``, or ``sparkmirror-<user id>/runs/<run id>`` below the
    temporary directory if those cannot be written. There this host's ten newest runs are kept;
    older ones are removed if their process has ended. ``has_option``: the command takes
    ``--work-dir``. Raises ``MachineError`` when no directory can be created that belongs to this
    user alone.
    """
    if given is not None:
        # The user may name a link; its destination must belong to this user alone.
        path = given.expanduser().absolute().resolve()
        do = "Give a directory that this user may write with --work-dir."
        return _made(path.parent, (path.name,), "--work-dir", do)
    do = "Set XDG_STATE_HOME to a directory that this user may write" + (
        ", or give one with --work-dir." if has_option else "."
    )
    last: MachineError | None = None
    for base, names in _bases():
        try:
            path = _made(base, (*names, "runs", run_id), str(base), do)
        except MachineError as error:
            last = error
            continue
        _remove_old_runs(path.parent)
        return path
    if last is None:
        raise Defect("no directory was tried")
    raise last


@contextlib.contextmanager
def work_dir_lock(path: Path) -> Iterator[None]:
    """Hold the lock on a run's directory while the block runs.

    Two runs in one directory would remove each other's checkpoints, and end each other's Python
    processes. The lock ends with this process, however that ends; no child inherits it. Raises
    `MachineError` if another run holds it.
    """
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = _lock_owner(lock)
            raise MachineError(
                f"Another run uses the work directory {path}"
                + (f": process {owner}." if owner else "."),
                where="--work-dir",
                do="Give each run a --work-dir of its own or none, or wait until the other ends.",
            ) from error
        except OSError as error:  # a network's file system, which locks no directories
            log.debug("the work directory %s cannot be locked: %s", path, error)
        yield
    finally:
        os.close(lock)


def _lock_owner(descriptor: int) -> int:
    """The process that holds the lock on a file; 0 if nobody can tell."""
    found = os.fstat(descriptor)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131073 0 EOF
            words = line.split()
            if words[1:2] == ["FLOCK"] and place in words:
                return max(int(words[4]), 0)  # of another container: 0 or less
    return 0


def _bases() -> list[tuple[Path, tuple[str, ...]]]:
    """Candidates in order: a directory, and our directory names below it."""
    state = os.environ.get("XDG_STATE_HOME")
    bases: list[tuple[Path, tuple[str, ...]]] = []
    if state:
        bases.append((Path(state), ("sparkmirror",)))
    with contextlib.suppress(RuntimeError):  # without a home, use the temporary directory
        bases.append((Path.home() / ".local" / "state", ("sparkmirror",)))
    bases.append((Path(tempfile.gettempdir()), (f"sparkmirror-{os.getuid()}",)))
    return bases


def _made(base: Path, names: tuple[str, ...], where: str, do: str) -> Path:
    path = base.joinpath(*names)
    try:
        private_directory(base, names)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise MachineError(
            f"The work directory {path} cannot be created or written: {error.strerror}.",
            where=where,
            do=do,
        ) from error
    return path


def _remove_old_runs(base: Path) -> None:
    """Remove this host's runs below ``base`` whose process has ended, except the newest ones.

    Hosts may share the directory, and none can tell whether the others' processes live: their runs
    are removed when nothing was written there for a month. Each epoch, of a day, writes something.
    """
    ours = re.compile(rf"\d{{8}}-\d{{6}}-{_host_digits()}[0-9a-f]{{6}}-(\d+)")
    runs = sorted(path.name for path in base.iterdir() if ours.fullmatch(path.name))
    for name in runs[:-RUNS_KEPT]:
        if not psutil.pid_exists(int(name.rpartition("-")[2])):
            shutil.rmtree(base / name, ignore_errors=True)
    for path in base.iterdir():
        theirs = _RUN.fullmatch(path.name) and not ours.fullmatch(path.name)
        if theirs and time.time() - _last_written(path) > _SILENT_S:
            shutil.rmtree(path, ignore_errors=True)


def _last_written(path: Path) -> float:
    """When a file in ``path`` was last written, in epoch seconds; now if nobody can tell."""
    try:
        return max(one.stat().st_mtime for one in (path, *path.rglob("*")))
    except OSError:
        return time.time()
