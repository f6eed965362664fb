"""A guard around each test: what it opened and started in this process is gone when it is over.

Descriptors are counted by kind (a file by its path), threads by name, also those that Python does
not know of, such as librdkafka's. Fixtures of a wider scope than a test may start within one, when
a test asks for them by name: what comes to be while they do counts as having been there before.
"""

from __future__ import annotations

import gc
import io
import os
import re
import socket
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkmirror.data.write.offset_sync_writer import SyncSender
from sparkmirror.data.write.producers import drop_producers
from sparkmirror.testing.guard import forget

__all__ = ["no_leaks", "outlives_tests", "pytest_fixture_setup", "pytest_runtest_call"]

# For threads that have been told to end, and for what ends with them.
_PATIENCE_S = 60.0
_PROC = Path("/proc/self")
_FAILED = pytest.StashKey[bool]()
_NUMBERED = re.compile(r"\d+")

Census = dict[str, list[str]]
"""By kind, a description of each."""


def descriptors() -> Census:
    """The descriptors of this process."""
    found: dict[int, str] = {}
    for name in os.listdir(_PROC / "fd"):
        try:
            found[int(name)] = os.readlink(_PROC / "fd" / name)
        except FileNotFoundError:
            continue  # the one that listed them
    census: Census = {}
    for number, target in sorted(found.items()):
        kind = re.sub(r":\[\d+\]$", "", target)
        census.setdefault(kind, []).append(f"{target} (descriptor {number})")
    return census


def threads() -> Census:
    """The threads of this process, by name without numbers."""
    ours = {one.native_id: one.name for one in threading.enumerate()}
    census: Census = {}
    for number in os.listdir(_PROC / "task"):
        try:
            name = (_PROC / "task" / number / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        name = ours.get(int(number), name)
        kind = _NUMBERED.sub("#", name)
        census.setdefault(f"thread {kind}", []).append(f"{name} (thread {number})")
    return census


def census() -> Census:
    """All that a test may leave behind."""
    return descriptors() | threads()


def grown(before: Census, after: Census, allowed: Counter[str]) -> Census:
    """The kinds of which there are more than ``allowed`` more, with those that are new."""
    found: Census = {}
    for kind, there in after.items():
        known = before.get(kind, [])
        if len(there) > len(known) + allowed[kind]:
            found[kind] = [one for one in there if one not in known]
    return found


def told(leaked: Census) -> str:
    """``leaked`` for a reader, sockets with their two ends."""
    ends = {one.fd: one for one in psutil.Process().net_connections(kind="all")}
    lines = ["the test leaves behind, in the process that runs the tests:"]
    for kind, new in sorted(leaked.items()):
        for one in new:
            number = re.search(r"descriptor (\d+)", one)
            end = ends.get(int(number[1])) if number else None
            where = ""
            if end and end.raddr:
                where = f", {_place(end.laddr)} to {_place(end.raddr)}, {end.status}"
            lines.append(f"  {kind}: {one}{where}")
            if number and kind in ("socket", "pipe"):
                lines += _held_by(int(number[1]))
    return "\n".join(lines)


def _held_by(number: int) -> list[str]:
    """Who holds Python's object of a descriptor, two steps back; nobody, if it is a library's."""
    kinds = socket.socket, io.FileIO
    found = [one for one in gc.get_objects() if isinstance(one, kinds) and _fd(one) == number]
    if not found:
        return ["    no object of Python's: a library in C opened it, or only its number is kept"]
    lines = []
    for holder in gc.get_referrers(*found):
        if holder is found or (isinstance(holder, types.FrameType) and holder is sys._getframe()):
            continue
        lines.append(f"    held by {_short(holder)}")
        lines += [f"      held by {_short(one)}" for one in gc.get_referrers(holder)[:8]]
    return lines


def _fd(one: socket.socket | io.FileIO) -> int:
    return -1 if isinstance(one, io.FileIO) and one.closed else one.fileno()


def _short(value: object) -> str:
    return f"{type(value).__name__} {value!r:.300}"


def _place(address: Any) -> str:
    return ":".join(map(str, address)) if isinstance(address, tuple) else str(address)


class _Guard:
    """What was there before a test."""

    def __init__(self) -> None:
        self.before = census()
        self.allowed: Counter[str] = Counter()

    def left(self) -> Census:
        """What is there after the test and was not before."""
        deadline = time.monotonic() + _PATIENCE_S
        collect_at = 0.0
        while leaked := grown(self.before, census(), self.allowed):
            if time.monotonic() > deadline:
                return leaked
            if time.monotonic() >= collect_at:  # a caught exception holds its frames in a circle
                gc.collect()
                collect_at = time.monotonic() + 1
            time.sleep(0.02)
        return {}


_guards: list[_Guard] = []
_wider = 0


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails a test that passed and leaves descriptors or threads behind.

    One that failed is told of as it is: its frames, and what they hold, are kept for the report.
    """
    # Once in a process: the helper that ends processes with this one has a pipe.
    forget(Path(os.devnull))
    request.node.stash[_FAILED] = True  # until it has passed: a fixture may fail, too
    guard = _Guard()
    _guards.append(guard)
    try:
        yield
    finally:
        _guards.remove(guard)
        # A worker keeps these for its life, and each test is a worker's life.
        drop_producers()
        SyncSender.close_all()
    # An error that was logged holds the frames that it passed, and these hold what they used.
    for phase in ("setup", "call"):
        caplog.get_records(phase).clear()
    if not request.node.stash[_FAILED]:
        leaked = guard.left()
        assert not leaked, told(leaked)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    item.stash[_FAILED] = False
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """What a wider fixture starts within a test is not the test's."""
    if fixturedef.scope == "function":
        return (yield)
    with outlives_tests():
        return (yield)


@contextmanager
def outlives_tests() -> Iterator[None]:
    """What is started within is shared by tests, and none of them leaves it behind."""
    global _wider  # noqa: PLW0603  (one test runs at a time)
    if not _guards or _wider:
        yield
        return
    gc.collect()  # what goes meanwhile would hide one that comes
    before = census()
    _wider += 1
    try:
        yield
    finally:
        _wider -= 1
        for kind, there in census().items():
            more = len(there) - len(before.get(kind, []))
            for guard in _guards:
                guard.allowed[kind] += max(0, more)
