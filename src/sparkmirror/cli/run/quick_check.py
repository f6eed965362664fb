"""The doctor's quick check while a run starts, in a thread that the start never waits for."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Protocol

from sparkmirror.settings import MirrorSettings

_log = logging.getLogger(__name__)


class QuickCheckPart(Protocol):
    """The quick check while a run starts; `QuickCheckThread` implements it."""

    def begin(self) -> None:
        """Start the check; returns at once."""

    def topics_made(self) -> None:
        """Note that the clusters respond and the topics exist."""

    def lines(self) -> list[str]:
        """The findings since the last call."""

    def end(self) -> None:
        """Cancel the check."""


class QuickCheckThread:
    """A `QuickCheck` in a thread that ends by itself or with `end`; no method blocks."""

    def __init__(self, settings: MirrorSettings) -> None:
        self._settings = settings
        self._decided = threading.Event()
        self._ended = False
        self._lines: deque[str] = deque()

    def begin(self) -> None:
        """Start the check."""
        threading.Thread(target=self._run, name="sparkmirror-look", daemon=True).start()

    def topics_made(self) -> None:
        """Note that the clusters respond and the topics exist."""
        self._decided.set()

    def end(self) -> None:
        """Cancel the check."""
        self._ended = True
        self._decided.set()

    def lines(self) -> list[str]:
        """The findings since the last call, one line each."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def _run(self) -> None:
        try:
            # Imported here: it takes a tenth of a second, which would delay Spark's start.
            from sparkmirror.doctor.quick_check import QuickCheck  # noqa: PLC0415

            QuickCheck(self._settings, self._lines.append, self._begun).run()
        except Exception:  # a defect here must not end the run
            _log.exception("the quick check failed")

    def _begun(self) -> bool:
        self._decided.wait()
        return not self._ended
