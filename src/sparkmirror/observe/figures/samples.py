"""Values of the last 30 to 60 seconds, sampled as in Kafka's clients.

Kafka keeps two windows of 30 s and drops the older one when the newer one is full. Only the
standard library is imported, because workers load this module.
"""

from __future__ import annotations

import time

from sparkmirror.progress import Spread

__all__ = ["Rate", "Samples", "steady_ms"]

WINDOW_MS = 30_000
WINDOWS = 2


def steady_ms() -> int:
    """A monotonic clock in milliseconds."""
    return time.monotonic_ns() // 1_000_000


class Samples:
    """Lowest, mean, highest and last value. All times must be from one monotonic clock."""

    __slots__ = ("_last", "_windows")

    def __init__(self) -> None:
        self._last: float | None = None
        # (start, number of values, their sum, lowest, highest)
        self._windows: list[tuple[int, int, float, float, float]] = []

    def add(self, now_ms: int, low: float, high: float, count: int = 1) -> None:
        """Add ``count`` values, evenly between ``low`` and ``high``; the last one is ``low``."""
        self._last = low
        total = (low + high) / 2 * count
        if self._windows:
            start_ms, n, values, lowest, highest = self._windows[-1]
            if now_ms - start_ms < WINDOW_MS:
                self._windows[-1] = (
                    start_ms,
                    n + count,
                    values + total,
                    min(lowest, low),
                    max(highest, high),
                )
                return
        self._windows = [*self._windows[1 - WINDOWS :], (now_ms, count, total, low, high)]

    def spread(self, now_ms: int) -> Spread | None:
        """The values up to ``now_ms``; None if none was ever added."""
        if self._last is None:
            return None
        recent = [w for w in self._windows if now_ms - w[0] < WINDOWS * WINDOW_MS]
        if not recent:
            return Spread(self._last)
        return Spread(
            self._last,
            min(w[3] for w in recent),
            sum(w[2] for w in recent) / sum(w[1] for w in recent),
            max(w[4] for w in recent),
        )


class Rate:
    """Records and bytes per second, over the same windows and by Kafka's formula.

    Less than a whole window counts as a whole one, so that a start causes no peak.
    """

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: list[tuple[int, int, int]] = []

    def add(self, now_ms: int, records: int, n_bytes: int) -> None:
        """Count new records and bytes."""
        if self._windows:
            start_ms, before_records, before_bytes = self._windows[-1]
            if now_ms - start_ms < WINDOW_MS:
                self._windows[-1] = (start_ms, before_records + records, before_bytes + n_bytes)
                return
        self._windows = [*self._windows[1 - WINDOWS :], (now_ms, records, n_bytes)]

    def per_second(self, now_ms: int) -> tuple[float, float]:
        """Records and bytes per second."""
        recent = [w for w in self._windows if now_ms - w[0] < WINDOWS * WINDOW_MS]
        if not recent:
            return 0.0, 0.0
        elapsed_ms = now_ms - recent[0][0]
        missing = max(0, WINDOWS - 1 - elapsed_ms // WINDOW_MS)
        span_s = (elapsed_ms + missing * WINDOW_MS) / 1_000
        return sum(w[1] for w in recent) / span_s, sum(w[2] for w in recent) / span_s
