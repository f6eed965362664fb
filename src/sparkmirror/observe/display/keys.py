"""Reads single key presses from the terminal, if there is one."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from types import TracebackType
from typing import Any

__all__ = ["Keys"]

_NO_TERMINAL = (OSError, ValueError, AttributeError, termios.error)


class Keys:
    """Reads keys without Enter while the block runs; Ctrl+C keeps its meaning.

    Inactive (``fileno`` is ``None``) if stdin is not a terminal, or if this process was not in the
    foreground when the block began. A process that reads from its terminal or changes its mode in
    the background is stopped, so `Keys` does neither then.
    """

    def __init__(self) -> None:
        self._terminal: int | None = None
        self._former: list[Any] | None = None

    def __enter__(self) -> Keys:
        # If stdin is closed, replaced or not a real terminal, the view works without keys.
        with contextlib.suppress(*_NO_TERMINAL):
            number = sys.stdin.fileno()
            if os.isatty(number) and os.tcgetpgrp(number) == os.getpgrp():
                self._former = termios.tcgetattr(number)
                tty.setcbreak(number, termios.TCSANOW)
                self._terminal = number
        return self

    @property
    def fileno(self) -> int | None:
        """The terminal's number; ``None`` if there is none, and while in the background.

        Sets the terminal's mode again: a shell that had the terminal meanwhile has changed it.
        """
        if self._terminal is None or _in_background(self._terminal):
            return None
        with contextlib.suppress(*_NO_TERMINAL):
            if termios.tcgetattr(self._terminal)[tty.LFLAG] & termios.ICANON:
                tty.setcbreak(self._terminal, termios.TCSANOW)
        return self._terminal

    def read(self) -> str | None:
        """The pressed keys; ``""`` if the terminal was closed, ``None`` in the background.

        Call when ``fileno`` is readable.
        """
        if self._terminal is None:
            return ""
        if _in_background(self._terminal):
            return None
        try:
            pressed = os.read(self._terminal, 64)
        except OSError:
            pressed = b""
        if not pressed:
            self._terminal = None
        return pressed.decode("utf-8", "replace")

    def close(self) -> None:
        """Restore the terminal's former mode, unless a shell has the terminal; idempotent."""
        terminal, self._terminal = self._terminal, None
        if terminal is None or self._former is None or _in_background(terminal):
            return
        # If the terminal was closed meanwhile, there is no mode to restore.
        with contextlib.suppress(*_NO_TERMINAL):
            termios.tcsetattr(terminal, termios.TCSANOW, self._former)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _in_background(terminal: int) -> bool:
    """Whether another job has the terminal; False if the terminal was closed."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False
