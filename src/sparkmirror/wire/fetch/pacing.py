"""When a channel may send its next Fetch request: after a quota's pause, or an interval."""

from __future__ import annotations

from sparkmirror.wire.fetch.channels import Channel

__all__ = ["Pace", "Pauses"]

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


class Pauses:
    """The pauses of one fetcher's channels. Times are its monotonic seconds."""

    def __init__(self) -> None:
        self._until: dict[Channel, float] = {}
        self._pace = Pace()
        self._paced: set[Channel] = set()  # channels that wait for the end of an interval

    def over(self, channel: Channel, now: float) -> bool:
        """Whether ``channel`` may send now."""
        until = self._until.get(channel, 0.0)
        if until > now:
            return False
        if channel in self._paced:
            self._paced.remove(channel)
            self._pace.ended(now - until)
        return True

    def wait(self, channel: Channel, until: float) -> None:
        """Send nothing on ``channel`` before ``until``."""
        self._until[channel] = max(until, self._until.get(channel, 0.0))

    def pace(self, channel: Channel, sent_at: float, now: float) -> None:
        """Wait for the end of the interval that began with the request at ``sent_at``."""
        self.wait(channel, sent_at + self._pace.interval_s)
        if self._until[channel] > now:
            self._paced.add(channel)

    def ends_after(self, time_s: float) -> list[float]:
        """The ends of pauses that end after ``time_s``."""
        return [at for at in self._until.values() if at > time_s]
