"""A query that lost one of its processes is started again, within the Spark that still runs.

Spark runs a failed task again by itself, but it ends a whole query when its planner is gone (a
Python process that the kernel may kill for its memory like any other). Positions are in Kafka, so
starting the query anew costs a pause of seconds, where a new run costs the start of Spark. The same
goes for a task that ends to be mended (`data.spark.failures.mends_itself`): Spark counts that as a
failure, and ends the query after eight in one epoch.
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

__all__ = ["REVIVALS_MAX", "REVIVALS_WITHIN_S", "Revival", "Revivals"]

log = logging.getLogger(__name__)

REVIVALS_MAX, REVIVALS_WITHIN_S = 5, 300.0
"""What fails more often than this will not be mended by trying."""


class Revival:
    """One query on its way back, in a thread of its own: starting it takes seconds."""

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self.query: StreamingQuery | None = None
        self.error: Exception | None = None
        self._start = start
        self._thread = threading.Thread(target=self._run, name="sparkmirror-revival", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.query = self._start()
        except Exception as error:  # the run loop shows it
            self.error = error

    @property
    def done(self) -> bool:
        """Whether the query runs again, or cannot be started."""
        return not self._thread.is_alive()


class Revivals:
    """How often queries were started again. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[str, deque[float]] = {}

    def allow(self, flow: str, why: object) -> bool:
        """Whether the query of ``flow``, which ended because of ``why``, is to be started again.

        An answer of True counts as a start.
        """
        now = self._clock()
        times = self._times.setdefault(flow, deque())
        while times and now - times[0] > REVIVALS_WITHIN_S:
            times.popleft()
        if len(times) >= REVIVALS_MAX:
            return False
        times.append(now)
        log.warning("flow %s: its query has ended and is started again (%s)", flow, why)
        return True
