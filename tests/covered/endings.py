"""Processes that are measured and that a signal ends write down first what they ran.

Spark's daemon ends its workers by SIGHUP, whose default action it restores in each of them. What
a slot ran would be lost with it. Here the default action comes after the data is saved.

`tests.covered` puts this file and a ``.pth`` that imports it into the virtual environment for as
long as it measures: tests start processes with search paths of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import Any

import coverage

_ENDING = frozenset({signal.SIGHUP, signal.SIGTERM})
_original = signal.signal


def _save_and_end(number: int, _frame: FrameType | None) -> None:
    current = coverage.Coverage.current()
    with contextlib.suppress(Exception):
        if current is not None:
            current.save()
    _original(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _signal(number: int, handler: Any) -> Any:
    if number in _ENDING and handler is signal.SIG_DFL:
        handler = _save_and_end
    found = _original(number, handler)
    return signal.SIG_DFL if found is _save_and_end else found


signal.signal = _signal
