"""Values of the last 30 to 60 seconds, sampled as Kafka's clients sample theirs.

Kafka keeps two windows of 30 s: when the newer one is full the older one is forgotten. Only the
standard library is imported, since workers load this module.
"""

from __future__ import annotations

import time

from sparkmirror.model import Spread

__all__ = ["Rate", "Samples", "steady_ms"]

WINDOW_MS = 30_000
WINDOWS = 2


def steady_ms() -> int:
    """A clock in milliseconds that never goes back."""
    return time.monotonic_ns() // 1_000_000


class Samples:
    """Lowest, mean and highest value, and the last one. Times are those of one steady clock."""

    __slots__ = ("_last", "_windows")

    def __init__(self) -> None:
        self._last: float | None = None
        # Start, number of values, their sum, the lowest, the highest.
        self._windows: list[tuple[int, int, float, float, float]] = []

    def add(self, now_ms: int, low: float, high: float, count: int = 1) -> None:
        """``count`` values between ``low`` and ``high``, spread evenly; the last one is ``low``."""
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
        """What was seen up to ``now_ms``; None when nothing ever was."""
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

    While less than a whole window has passed it counts as one, so that a start makes no peak.
    """

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: list[tuple[int, int, int]] = []

    def add(self, now_ms: int, records: int, n_bytes: int) -> None:
        """Count what has just come."""
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
