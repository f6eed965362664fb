"""A thread beside a test, for as long as a ``with`` block lasts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Background"]


class Background(ABC):
    """Runs `_run` in a thread from the block's begin to its end; may be entered again.

    `_run` ends soon after ``_stopping`` is set.
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """What the thread does."""

    def __enter__(self) -> Self:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
