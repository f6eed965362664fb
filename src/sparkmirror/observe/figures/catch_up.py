"""Estimates how long a flow needs to catch up, from how fast its lag shrinks."""

from __future__ import annotations

from collections import deque

__all__ = ["CATCHING_UP_S", "CatchUp"]

CATCHING_UP_S = 10.0
"""Age of the oldest missing record from which a flow is catching up."""

_WINDOW_MS = 30_000
# End offsets and positions are read every two seconds, so a shorter span would be too inaccurate.
_SPAN_MS_MIN = 4_000


class CatchUp:
    """The lag of the last half minute. All times must be from one monotonic clock."""

    __slots__ = ("_points",)

    def __init__(self) -> None:
        self._points: deque[tuple[int, int]] = deque()

    def note(self, now_ms: int, lag_records: int) -> None:
        """Record that the lag is ``lag_records`` now."""
        self._points.append((now_ms, lag_records))
        while len(self._points) > 2 and self._points[1][0] <= now_ms - _WINDOW_MS:
            self._points.popleft()

    def to_go_s(self) -> float | None:
        """Seconds until the lag is zero at this rate; None if the lag does not shrink."""
        if not self._points:
            return None
        (then_ms, then), (now_ms, now) = self._points[0], self._points[-1]
        if now_ms - then_ms < _SPAN_MS_MIN or now >= then:
            return None
        return now * (now_ms - then_ms) / 1_000 / (then - now)
