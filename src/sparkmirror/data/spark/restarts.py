"""Restarts a query that lost one of its processes, within the Spark application that still runs.

Spark itself retries a failed task. But it ends a whole query if its planner is gone (a Python
process that the kernel may kill to free memory, like any other). Positions are in Kafka, so to
restart the query costs a pause of seconds; a new run would also have to start Spark. The same goes
for a task that ends for a repair (`data.spark.failures.ended_for_repair`): Spark counts that as a
failure, and ends the query after eight of them in one epoch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["RESTARTS_MAX", "RESTARTS_WITHIN_S", "QueryRestart", "RestartLimit"]

log = logging.getLogger(__name__)

# What a query lost may need a while to come back, such as memory of the machine.
PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0)
RESTARTS_MAX, RESTARTS_WITHIN_S = len(PAUSES_S), 300.0
"""A query that fails more often than this is not restarted: retries will not repair it."""


class QueryRestart:
    """Restarts one query after ``pause_s``, on a thread of its own, because that takes seconds."""

    def __init__(self, start: Callable[[], StreamingQuery], pause_s: float) -> None:
        self.query: StreamingQuery | None = None
        self.error: Exception | None = None
        self._start = start
        self._pause_s = pause_s
        self._begun = False
        self._beginning = threading.Lock()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkmirror-revival", daemon=True)
        self._thread.start()

    def cancel(self) -> bool:
        """Do not start the query any more, unless that has begun. Returns whether it has not."""
        with self._beginning:
            self._cancelled.set()
            return not self._begun

    def _run(self) -> None:
        self._cancelled.wait(self._pause_s)
        with self._beginning:
            if self._cancelled.is_set():
                return
            self._begun = True
        try:
            self.query = self._start()
        except Exception as error:  # the run loop shows it
            self.error = error

    @property
    def done(self) -> bool:
        """Whether the query runs again, or could not be started."""
        return not self._thread.is_alive()


class RestartLimit:
    """Counts how often queries were restarted. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[str, deque[float]] = {}

    def allow(self, flow: str, why: object) -> float | None:
        """After how many seconds to restart the query of ``flow``, which ended because of ``why``.

        None if it is not to be restarted; anything else counts as a restart.
        """
        now = self._clock()
        times = self._times.setdefault(flow, deque())
        while times and now - times[0] > RESTARTS_WITHIN_S:
            times.popleft()
        if len(times) >= RESTARTS_MAX:
            return None
        pause_s = PAUSES_S[len(times)]
        times.append(now)
        when = f" in {pause_s:g} s" if pause_s else ""
        log.warning("flow %s: its query has ended and is restarted%s (%s)", flow, when, why)
        return pause_s
