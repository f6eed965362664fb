"""Several questions at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from sparkmirror.side_by_side import of_each
from tests.patience import patience


def test_all_are_asked_at_once_and_come_in_order() -> None:
    meeting = threading.Barrier(4)

    def ask(one: int) -> int:
        meeting.wait(patience())
        return 10 * one

    assert of_each(ask, (3, 1, 2, 0)) == [30, 10, 20, 0]


def test_one_or_none_takes_no_thread() -> None:
    assert of_each(lambda _: threading.current_thread(), "a") == [threading.current_thread()]
    assert of_each(threading.Thread, ()) == []


def test_no_more_than_that_are_asked_at_once() -> None:
    meeting = threading.Barrier(2)
    running: list[int] = []
    most: list[int] = []

    def ask(one: int) -> None:
        running.append(one)
        most.append(len(running))
        meeting.wait(patience())
        running.remove(one)
        meeting.wait(patience())

    of_each(ask, range(6), at_most=2)
    assert max(most) == 2


def test_the_first_failure_is_raised_when_the_others_have_ended() -> None:
    failed = threading.Event()
    asked: list[int] = []
    ended: list[int] = []

    def ask(one: int) -> int:
        asked.append(one)
        if one == 1:
            failed.set()
            raise ValueError("no answer")
        failed.wait(patience())
        time.sleep(0.05)
        ended.append(one)
        return one

    with pytest.raises(ValueError, match="no answer"):
        of_each(ask, range(1_000), at_most=2)
    assert {*ended, 1} == set(asked)
    assert len(asked) < 1_000


def test_a_call_that_was_cancelled_hides_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread takes a call from the queue a moment before it is marked as running."""

    class Call(Future[int]):
        def cancel(self) -> bool:
            return super().cancel() and not self.set_running_or_notify_cancel()

    class Pool:
        def __init__(self, *_: object) -> None:
            self.calls: list[Call] = []

        def submit(self, _ask: object, _one: int) -> Call:
            self.calls.append(Call())
            if len(self.calls) == 2:
                self.calls[1].set_exception(ValueError("no answer"))
            return self.calls[-1]

        def shutdown(self, **_: object) -> None:
            assert self.calls[0].cancelled()

    monkeypatch.setattr("sparkmirror.side_by_side.ThreadPoolExecutor", Pool)
    with pytest.raises(ValueError, match="no answer"):
        of_each(int, (0, 1))


def test_ctrl_c_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = threading.Event()
    ended: list[int] = []

    def ask(one: int) -> None:
        silent.wait(patience())
        ended.append(one)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sparkmirror.side_by_side.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        of_each(ask, range(5), at_most=2)
    assert ended == []
    silent.set()
