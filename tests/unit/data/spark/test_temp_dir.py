"""A run's temporary directory: one owner, and nothing left of owners that are gone."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.data.spark import temp_dir
from sparkmirror.data.spark.temp_dir import TempDirectory
from sparkmirror.errors import MachineError

_OWNER = """
import sys, time
from pathlib import Path
from sparkmirror.data.spark.temp_dir import TempDirectory
scratch = TempDirectory.make((Path(sys.argv[1]),))
(scratch.path / "spark-left").mkdir()
print(scratch.path, flush=True)
time.sleep(600)
"""


def test_it_is_private_and_gone_when_closed(tmp_path: Path) -> None:
    root = _short(tmp_path)
    scratch = TempDirectory.make((root,))
    assert scratch.path.stat().st_mode & 0o077 == 0
    assert scratch.path.parent.stat().st_mode & 0o077 == 0
    (scratch.path / "artifacts-1" / "x").mkdir(parents=True)
    other = TempDirectory.make((root,))
    scratch.close()
    assert list((root / f"sparkmirror-{os.getuid()}").iterdir()) == [other.path]
    other.close()
    assert list(root.iterdir()) == []


def test_a_killed_owners_directory_goes_with_the_next_run_and_a_living_ones_stays(
    tmp_path: Path,
) -> None:
    root = _short(tmp_path)
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(root)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        TempDirectory.make((root,)).close()
        assert (left / "spark-left").is_dir(), "its owner lives"
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait(30)
    assert left.is_dir()
    TempDirectory.make((root,)).close()
    assert not left.exists()


def test_a_cleaner_of_old_files_leaves_a_living_owner_its_directory(tmp_path: Path) -> None:
    """systemd-tmpfiles keeps what is in a locked directory; others remove the file of the lock."""
    root = _short(tmp_path)
    scratch = TempDirectory.make((root,))
    looking = os.open(scratch.path, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(looking, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(looking)
    (scratch.path / ".lock").unlink()
    os.utime(scratch.path, (0, 0))
    TempDirectory.make((root,)).close()
    assert scratch.path.is_dir()
    scratch.close()
    assert list(root.iterdir()) == []


def test_an_owner_of_an_older_version_locks_only_the_file_in_it(tmp_path: Path) -> None:
    root = _short(tmp_path)
    path = root / f"sparkmirror-{os.getuid()}" / "older"
    path.mkdir(parents=True)
    lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.utime(path, (0, 0))
    TempDirectory.make((root,)).close()
    assert path.is_dir(), "its owner lives"
    # It looks at that file in the directories of others, too.
    scratch = TempDirectory.make((root,))
    looking = os.open(scratch.path / ".lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(looking, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(looking)
    os.close(lock)
    scratch.close()
    TempDirectory.make((root,)).close()
    assert not path.exists()


@pytest.mark.parametrize("ends", [True, False], ids=["it has removed it", "it is about to"])
@pytest.mark.parametrize("flag", [os.O_DIRECTORY, os.O_CREAT], ids=["this version", "an older one"])
def test_another_run_that_looks_before_the_lock_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: int, ends: bool
) -> None:
    """It cannot know that the owner is just about to lock the directory."""
    root = _short(tmp_path)
    opened, held = os.open, []

    def open_and_lose(path: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
        lock = opened(path, flags, mode, **named)
        if flags & flag and not held:
            held.append(opened(path, flags & ~os.O_CREAT))
            fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            if ends:
                shutil.rmtree(path.parent if flag == os.O_CREAT else path)
                os.close(held[0])
        return lock

    monkeypatch.setattr(temp_dir.os, "open", open_and_lose)
    made = TempDirectory.make((root,))
    monkeypatch.undo()
    assert len(held) == 1
    assert made.path.is_dir()
    TempDirectory.make((root,)).close()
    assert made.path.is_dir(), "it is locked"
    made.close()
    if not ends:
        os.close(held[0])


def test_what_was_never_locked_is_kept_while_it_is_young(tmp_path: Path) -> None:
    root = _short(tmp_path)
    base = root / f"sparkmirror-{os.getuid()}"
    for name in ("young", "old", "runs"):
        (base / name).mkdir(parents=True)
    for name in ("old", "runs"):
        os.utime(base / name, (0, 0))
    TempDirectory.make((root,)).close()
    assert sorted(path.name for path in base.iterdir()) == ["runs", "young"]


def test_sparks_socket_fits_below_the_longest_root_and_longer_ones_are_passed_over(
    tmp_path: Path,
) -> None:
    short = _short(tmp_path)
    longest = _padded(short, 107 - 44 - 8 - 1 - len(f"/sparkmirror-{os.getuid()}"))
    too_long = _padded(short, 90)
    scratch = TempDirectory.make((too_long, longest))
    try:
        assert scratch.path.is_relative_to(longest)
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(scratch.path / f".{uuid.uuid4()}.sock"))
    finally:
        scratch.close()
    with pytest.raises(MachineError, match="too long for a Unix socket"):
        TempDirectory.make((too_long,))


def test_a_root_that_locks_no_directories_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some network file systems."""
    root = _short(tmp_path)

    def flock(lock: int, _how: int) -> None:
        assert stat.S_ISDIR(os.fstat(lock).st_mode)
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(temp_dir.fcntl, "flock", flock)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(MachineError, match="Operation not supported"):
        TempDirectory.make((root,))
    assert list(root.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_root_that_others_prepared_is_not_used(tmp_path: Path) -> None:
    root = _short(tmp_path)
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    (root / f"sparkmirror-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(MachineError, match="is a link, which somebody else"):
        TempDirectory.make((root,))
    assert list(elsewhere.iterdir()) == []


def _short(tmp_path: Path) -> Path:
    """A name for ``tmp_path`` that leaves room for what is below it."""
    return Path("/proc") / str(os.getpid()) / "fd" / str(os.open(tmp_path, os.O_RDONLY))


def _padded(root: Path, size: int) -> Path:
    path = root / ("x" * (size - len(os.fsencode(root)) - 1))
    path.mkdir()
    return path
