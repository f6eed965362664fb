"""Tests that the end of a background task wakes the loop that waits for it."""

from __future__ import annotations

import os
import time

import pytest

from sparkmirror.cli.run.background import Background
from sparkmirror.cli.run.os_signals import Signals
from sparkmirror.wire.net.poller import readable

LONG_S = 60.0


def test_the_end_of_a_task_wakes_the_loop() -> None:
    with Signals() as signals:
        began_s = time.monotonic()
        task = Background(lambda: time.sleep(0.2), "slow", signals.wake)
        while not task.done:
            assert signals.wait(LONG_S) == ([], False)
        assert time.monotonic() - began_s < LONG_S / 2


def test_the_end_of_a_task_that_failed_wakes_the_loop() -> None:
    def fail() -> None:
        time.sleep(0.2)
        raise ValueError("no")

    with Signals() as signals:
        began_s = time.monotonic()
        task = Background(fail, "failing", signals.wake)
        while not task.done:
            signals.wait(LONG_S)
        assert time.monotonic() - began_s < LONG_S / 2
        assert task.failed()
        with pytest.raises(ValueError, match="no"):
            raise task.error or AssertionError


def test_a_task_is_done_before_it_wakes_anybody() -> None:
    seen: list[bool] = []
    task: Background | None = None

    def ended() -> None:
        assert task is not None
        seen.append(task.done)

    task = Background(lambda: time.sleep(0.1), "task", ended)
    assert task.wait(LONG_S)
    deadline_s = time.monotonic() + LONG_S
    while not seen and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert seen == [True]


def test_a_task_that_outlives_the_signals_writes_to_nobody() -> None:
    with Signals() as signals:
        pass
    # They get the numbers of the pipe that was closed.
    reader, writer = os.pipe()
    try:
        signals.wake()
        assert readable([reader], 0.1) == []
    finally:
        os.close(reader)
        os.close(writer)
