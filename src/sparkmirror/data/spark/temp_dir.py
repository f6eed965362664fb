"""A short temporary directory for Spark's JVM, which is removed with the run.

A JVM that is killed leaves ``artifacts-…``, ``spark-…`` and unpacked libraries behind. So these are
created in a directory of the run's own, below ``sparkmirror-UID`` in the system's temporary
directory. The driver holds a lock on it. It is removed when the run ends, or by the next run if its
owner is gone. ``systemd-tmpfiles``, which removes old files from temporary directories, leaves out
a directory with such a lock and all that is in it. Its path is short, because Spark's Unix sockets
are in it, and their paths may have 107 bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sparkmirror.directories import private_directory
from sparkmirror.errors import MachineError

__all__ = ["TempDirectory"]

# Older versions lock only this file in it, and look for nothing else.
_LOCK = ".lock"
# What Spark adds to the directory's path: "/.", a UUID, ".sock", and the terminating zero byte.
_PATH_BYTES_MAX = 107 - 44
_NAME_BYTES = 8  # of a name that `tempfile` makes
# A directory has no visible owner until it is locked.
_YOUNG_S = 60.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class TempDirectory:
    """One run's directory, and the locks that show that it is in use."""

    def __init__(self, path: Path, locks: tuple[int, ...]) -> None:
        self.path = path
        self._locks = locks

    @classmethod
    def make(cls, roots: tuple[Path, ...] | None = None) -> TempDirectory:
        """Create a directory, and remove those of runs that are gone.

        ``roots``: the temporary directories to try. Raises `MachineError` if none can be used.
        """
        tried = []
        for root in roots or _roots():
            if len(os.fsencode(_below(root))) + 1 + _NAME_BYTES > _PATH_BYTES_MAX:
                tried.append(f"{root}: its path is too long for a Unix socket below it")
                continue
            try:
                path, locks = _locked(root)
            except OSError as error:
                tried.append(f"{root}: {error.strerror or error}")
                continue
            except MachineError as error:
                tried.append(str(error))
                continue
            return cls(path, locks)
        raise MachineError(
            f"No temporary directory can be used ({'; '.join(tried)}).",
            do="Set TMPDIR to a directory with a short path that this user may write.",
        )

    def close(self) -> None:
        """Remove the directory and everything in it."""
        _remove(self.path)
        for lock in self._locks:
            with contextlib.suppress(OSError):
                os.close(lock)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):  # other runs' directories are beside it
        path.parent.rmdir()


def _roots() -> Iterator[Path]:
    yield Path(tempfile.gettempdir())
    yield from (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  (only where TMPDIR is too long)


def _below(root: Path) -> Path:
    return root / f"sparkmirror-{os.getuid()}"


def _locked(root: Path) -> tuple[Path, tuple[int, ...]]:
    """A new directory, and the locks on it. Raises as `_new`."""
    while True:
        path = _new(root)
        locks: list[int] = []
        try:
            with contextlib.ExitStack() as opened:
                for name, flags in (("", _DIRECTORY), (_LOCK, os.O_RDWR | os.O_CREAT)):
                    locks.append(os.open(path / name, flags, 0o600))
                    opened.callback(os.close, locks[-1])
                    fcntl.flock(locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(locks[-1]), os.stat(path / _LOCK)):
                    opened.pop_all()
                    return path, tuple(locks)
        except (BlockingIOError, FileNotFoundError):
            continue  # a run that starts at the same time took it for abandoned
        except OSError:  # some file systems lock no directories
            _remove(path)
            raise


def _new(root: Path) -> Path:
    """A new directory in ours. Raises ``OSError``, or `MachineError` if it is not ours alone."""
    while True:
        base = private_directory(root, (_below(root).name,))
        # A run that ends meanwhile removes the base as well, if it was the last one in it.
        with contextlib.suppress(FileNotFoundError):
            _remove_abandoned(base)
            return Path(tempfile.mkdtemp(prefix="", dir=base))


def _remove_abandoned(base: Path) -> None:
    for path in base.iterdir():
        # The work directories of users without a home are here, too, below "runs".
        if path.name != "runs":
            # Somebody holds a lock, or it is no directory of this kind.
            with contextlib.suppress(OSError):
                _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    """Remove a directory that nobody has locked. Raises ``OSError`` if it cannot be locked."""
    with contextlib.ExitStack() as stack:
        lock = os.open(path, _DIRECTORY)
        stack.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            lock = os.open(path / _LOCK, os.O_RDWR)
        except FileNotFoundError:
            # Its file was removed first, or its owner is about to lock it.
            if time.time() - path.stat().st_mtime <= _YOUNG_S:
                return
        else:
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
