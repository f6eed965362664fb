"""Signals as values that the run loop reads, instead of exceptions at arbitrary points."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from sparkmirror.wire.net.poller import readable

_STANDARD_STREAMS = (0, 1, 2)
_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WOKEN = 0


def standard_terminals() -> tuple[int, ...]:
    """File numbers of the standard streams that are an open terminal now."""
    return tuple(number for number in _STANDARD_STREAMS if os.isatty(number))


class Signals:
    """Collects SIGINT, SIGTERM and SIGHUP while the block runs; ``wait`` returns them in order.

    The handler only writes the number to a pipe, which is safe at any time and wakes ``wait`` at
    once. `wake` writes a zero there, which is no signal. Outside the main thread, where Python
    installs no handlers, nothing is collected.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._closing = threading.Lock()
        self._closed = False
        self._former: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in _WATCHED:
                self._former[number] = signal.signal(number, self._received)
        return self

    def _received(self, number: int, _frame: FrameType | None) -> None:
        try:
            os.write(self._writer, bytes([number]))
        except BlockingIOError:
            return  # the pipe is full: thousands of signals wait already

    def wake(self) -> None:
        """End the present ``wait``, or the next one, from any thread. After the block: nothing."""
        # The number of a closed pipe may be another file's by now.
        with self._closing:
            if not self._closed:
                self._received(_WOKEN, None)

    def wait(self, timeout_s: float, also: int | None = None) -> tuple[list[int], bool]:
        """Sleep until a signal arrives, ``also`` (a file number) is readable or time has run out.

        `wake` ends it, too.

        Returns the signals received and whether ``also`` is readable.
        """
        watched = [self._reader] if also is None else [self._reader, also]
        found = readable(watched, timeout_s)
        read = os.read(self._reader, 4_096) if self._reader in found else b""
        received = [number for number in read if number != _WOKEN]
        return received, also is not None and also in found

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._former.items():
            # A handler that was not installed from Python cannot be restored; use the default.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        with self._closing:
            self._closed = True
            os.close(self._reader)
            os.close(self._writer)
