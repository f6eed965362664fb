"""What Spark says about the queries, asked for in a thread of its own.

Spark's JVM may be stopped or swapped out. Calls to it then return late or never; the run loop goes
on meanwhile with what was said last.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from sparkmirror.cli.run.background import Background
from sparkmirror.cli.run.parts import FlowPart
from sparkmirror.data.spark.failures import silent
from sparkmirror.errors import MirrorError
from sparkmirror.observe.figures.queries import QueryFigures

# A JVM that collects garbage or is swapped in may be silent for many seconds, and recover.
SILENT_S_MAX = 60.0
# Nearly always, the answer is there within milliseconds.
_MOMENT_S = 0.1
# More between two looks means that this process stood still too, as in a container that is paused.
_STEP_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What Spark said; ``active``: whether any query still ran or could start."""

    active: bool = True
    errors: tuple[MirrorError, ...] = ()


class QueryWatch:
    """Asks ``flow`` about its queries; `look` gives the newest answer.

    The thread stays the same, because PySpark opens a connection to the JVM for each one.
    """

    def __init__(self, flow: FlowPart) -> None:
        self.figures: Mapping[str, QueryFigures] = {}
        self._flow = flow
        self._answer = Answer()
        self._error: Exception | None = None
        self._asked = False
        self._answered = threading.Event()
        self._looked_s = 0.0
        self._silent_s = 0.0
        self._questions: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
        Background(self._serve, "sparkmirror-queries")

    def look(self, *, waits: bool) -> Answer:
        """Ask again unless an answer is still missing; returns the newest one.

        ``waits``: whether a query may still start. Raises `MirrorError` if Spark no longer
        responds.
        """
        now_s = time.monotonic()
        if self._asked:
            self._silent_s += min(now_s - self._looked_s, _STEP_S_MAX)
        else:
            self._asked, self._silent_s = True, 0.0
            self._answered.clear()
            self._questions.put(waits)
        self._looked_s = now_s
        if self._answered.wait(0.0 if self._silent_s else _MOMENT_S):
            self._asked = False
            if isinstance(self._error, MirrorError):
                raise self._error
            if self._error is not None:  # whatever py4j raises when the JVM is gone
                raise silent(type(self._error).__name__) from self._error
        elif self._silent_s > SILENT_S_MAX:
            raise silent(f"for {SILENT_S_MAX:g} s")
        return self._answer

    def close(self) -> None:
        """Ask nothing any more."""
        self._questions.put(None)

    def _serve(self) -> None:
        for waits in iter(self._questions.get, None):
            try:
                # First, because a query that ends later has an error that nobody has asked for.
                # ``waits`` is older: what started since is one of the queries.
                active = self._flow.active() or waits
                self._answer = Answer(active, self._flow.errors())
                self.figures = self._flow.figures()
            except Exception as error:  # the run loop raises it
                self._error = error
            self._answered.set()
