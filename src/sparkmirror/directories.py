"""Creates sparkmirror's directories. Only this user may write to them.

They hold what is run or trusted: Spark's settings, logs, Java's class archives. So no other user
may be able to write there, or to put another directory in their place.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from sparkmirror.errors import MachineError

__all__ = ["check_private", "private_directory"]

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_directory(base: Path, names: Iterable[str] = ()) -> Path:
    """Create the directories ``names`` below each other in ``base``, and return the last one.

    ``base`` may belong to anybody. New directories get mode 0700. Raises ``OSError`` if one cannot
    be created, and `MachineError` if others may replace directories in ``base``, or write to one of
    the named ones (`check_private`).
    """
    path = base
    if not base.exists():
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = base.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise MachineError(
            f"Everybody may put other directories here (mode {stat.S_IMODE(mode):04o}).",
            where=str(base),
            do=f"chmod o-w {base}, or chmod +t where others need it.",
        )
    for name in names:
        path /= name
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        check_private(path)
    return path


def check_private(path: Path) -> None:
    """Raise `MachineError` unless ``path`` is a directory to which only this user may write.

    A link does not count as a directory. Raises ``OSError`` if there is no directory.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise MachineError(
            "This is a link, which somebody else may have put there.",
            where=str(path),
            do=f"Remove it, or name the directory itself: {os.path.realpath(path)}.",
        )
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(20, "Not a directory", str(path))
    if found.st_uid != os.geteuid():
        raise MachineError(
            f"This directory belongs to another user (uid {found.st_uid}).",
            where=str(path),
            do="Remove it, or name a directory of this user's.",
        )
    if found.st_mode & _OTHERS_WRITE:
        raise MachineError(
            f"Other users may write to this directory (mode {stat.S_IMODE(found.st_mode):04o}).",
            where=str(path),
            do=f"If nobody else has written there: chmod go-w {path}",
        )
