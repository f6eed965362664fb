"""Reads single key presses from the terminal, if there is one."""

from __future__ import annotations

import os
import sys
import termios
import tty
from types import TracebackType
from typing import Any

__all__ = ["Keys"]


class Keys:
    """Reads keys without Enter while the block runs; Ctrl+C keeps its meaning.

    Inactive (``fileno`` is ``None``) if stdin is not a terminal or this process is not in the
    foreground: changing the terminal's mode in the background would stop the process.
    """

    def __init__(self) -> None:
        self.fileno: int | None = None
        self._former: list[Any] | None = None

    def __enter__(self) -> Keys:
        try:
            number = sys.stdin.fileno()
            if not os.isatty(number) or os.tcgetpgrp(number) != os.getpgrp():
                return self
            self._former = termios.tcgetattr(number)
            tty.setcbreak(number, termios.TCSANOW)
        except (OSError, ValueError, AttributeError, termios.error):
            # stdin is closed, replaced or not a real terminal; the view works without keys.
            self._former = None
            return self
        self.fileno = number
        return self

    def read(self) -> str:
        """The pressed keys; ``""`` if the terminal was closed. Call when ``fileno`` is readable."""
        if self.fileno is None:
            return ""
        try:
            pressed = os.read(self.fileno, 64)
        except OSError:
            pressed = b""
        if not pressed:
            self.fileno = None
        return pressed.decode("utf-8", "replace")

    def close(self) -> None:
        """Restore the terminal's former mode; idempotent."""
        if self._former is None:
            return
        former, self._former = self._former, None
        try:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, former)
        except (OSError, ValueError, termios.error):
            # The terminal was closed meanwhile, so there is no mode to restore.
            self.fileno = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
