"""The doctor's quick look beside a run's start: loaded, made and told, and nobody waits for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Protocol

from sparkmirror.model import MirrorSettings

_log = logging.getLogger(__name__)


class LookPart(Protocol):
    """The quick look beside the start, as `QuickLook` offers it."""

    def begin(self) -> None:
        """Start to look; blocks nobody."""

    def topics_made(self) -> None:
        """The clusters answer and the topics are there."""

    def lines(self) -> list[str]:
        """What was found since the last call."""

    def end(self) -> None:
        """Look no further."""


class QuickLook:
    """A `Glance` on a thread, which ends with `end` or by itself; all methods return at once."""

    def __init__(self, settings: MirrorSettings) -> None:
        self._settings = settings
        self._decided = threading.Event()
        self._ended = False
        self._lines: deque[str] = deque()

    def begin(self) -> None:
        """Start to look."""
        threading.Thread(target=self._run, name="sparkmirror-look", daemon=True).start()

    def topics_made(self) -> None:
        """The clusters answer and the topics are there."""
        self._decided.set()

    def end(self) -> None:
        """Nobody wants to know any more."""
        self._ended = True
        self._decided.set()

    def lines(self) -> list[str]:
        """What was found since the last call, one line for each finding."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def _run(self) -> None:
        try:
            # Here, since it takes a tenth of a second that Spark's start would wait for.
            from sparkmirror.doctor.glance import Glance  # noqa: PLC0415

            Glance(self._settings, self._lines.append, self._begun).look()
        except Exception:  # a defect here must not harm the run
            _log.exception("the quick look before the run")

    def _begun(self) -> bool:
        self._decided.wait()
        return not self._ended
