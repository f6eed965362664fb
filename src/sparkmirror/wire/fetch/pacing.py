"""How soon a broker whose answer was small is asked again."""

from __future__ import annotations

__all__ = ["Pace"]

_INTERVAL_S = 0.004
_INTERVAL_S_MAX = 0.010
_LATE_SHARE = 2.0
_SMOOTHING = 32


class Pace:
    """The least time between two Fetch requests to a broker while its answers are small.

    Asking again at once would bring one or two records at a time, each at the price of a whole row
    through Spark. Where processors are short, whoever waits for the end of the interval comes round
    late, and every row makes all others later still: so the interval grows with that lateness.
    """

    def __init__(self) -> None:
        self._late_s = 0.0

    @property
    def interval_s(self) -> float:
        """Seconds from one request to the next, as things are."""
        return min(_INTERVAL_S_MAX, _INTERVAL_S + _LATE_SHARE * self._late_s)

    def ended(self, late_s: float) -> None:
        """An interval was over ``late_s`` seconds before anybody came round."""
        # One long pause (a collection of garbage, say) is no lack of processors.
        self._late_s += (min(late_s, _INTERVAL_S_MAX) - self._late_s) / _SMOOTHING
