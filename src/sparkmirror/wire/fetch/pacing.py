"""The interval between Fetch requests to a broker whose responses are small."""

from __future__ import annotations

__all__ = ["Pace"]

_INTERVAL_S = 0.004
_INTERVAL_S_MAX = 0.010
_LATE_SHARE = 2.0
_SMOOTHING = 32


class Pace:
    """The minimum interval between two Fetch requests to a broker while its responses are small.

    Without it, each response would bring one or two records, at the cost of a whole row through
    Spark. On a busy machine the fetcher notices the end of an interval late, and every row delays
    all others further. So the interval grows with that lateness.
    """

    def __init__(self) -> None:
        self._late_s = 0.0

    @property
    def interval_s(self) -> float:
        """Seconds from one request to the next, at present."""
        return min(_INTERVAL_S_MAX, _INTERVAL_S + _LATE_SHARE * self._late_s)

    def ended(self, late_s: float) -> None:
        """Note that an interval ended ``late_s`` seconds before the next request."""
        # One long pause (garbage collection, for example) does not mean a busy machine.
        self._late_s += (min(late_s, _INTERVAL_S_MAX) - self._late_s) / _SMOOTHING
