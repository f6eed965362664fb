"""Whether a query whose slots were told to end is idle.

Spark ends a trigger only after the sink's commit, for which it starts a Python process. Our commit
has nothing to do: all work is done when the last task has ended. On a busy machine, that process
alone would take longer than a drain may.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["DrainCheck"]

# A job that was just planned may not have begun. Its slots would end at once, but no task should be
# killed without need.
_QUIET_S = 0.5


class DrainCheck:
    """Checks one query after a drain; poll `busy`."""

    def __init__(
        self,
        spark: SparkSession,
        query: StreamingQuery,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._query = query
        self._now_s = now_s
        self._quiet_since_s: float | None = None

    def busy(self) -> bool:
        """Whether tasks of the query still run, or may yet begin."""
        if not self._query.isActive:
            return False
        status: dict[str, Any] = self._query.status
        if not (status.get("isTriggerActive") or status.get("isDataAvailable")):
            return False
        if not self._tasks_ended():
            self._quiet_since_s = None
            return True
        now_s = self._now_s()
        if self._quiet_since_s is None:
            self._quiet_since_s = now_s
        return now_s - self._quiet_since_s < _QUIET_S

    def drained(self) -> bool:
        """Whether all slots of the newest epoch have ended as they were told.

        Also true if the query failed later, for example because it lost its planner.
        """
        try:
            return self._tasks_ended()
        except Exception:  # the JVM may have ended
            return False

    def _tasks_ended(self) -> bool:
        """Whether the newest epoch's job has succeeded.

        If it failed, the query reports why when it ends.
        """
        # Spark puts all jobs of a query into one group, to cancel them.
        jobs = self._tracker.getJobIdsForGroup(str(self._query.runId))
        if not jobs:
            return False
        newest = self._tracker.getJobInfo(max(jobs))
        return newest is not None and newest.status == "SUCCEEDED"
