"""Whether small batches for a near broker are joined: while it is busy, and while that pays.

A request costs a broker time, whatever is in it. With small batches, a busy broker spends most of
its time on requests, and takes more records per second if they come in fewer and larger batches.
Joining takes CPU time here. Whether it pays depends on the codec, on the records and on how busy
everything is. So this is measured, for each broker, over all of its partitions that a slot has:

* As long as batches go as they are, in windows of half a second: for how long of it more batches
  of a partition waited than may be in flight, and how many records per second were acknowledged.
  If they waited for half of a window, joining begins.
* From then on, in windows of two seconds: joining goes on if a quarter more records per second are
  acknowledged than in the window before it. It also goes on if nothing waits any more, no fewer
  records pass than before and joining takes little CPU time: without it, batches would soon wait
  again.
* If it brings too little, batches go as they are for half a minute, and twice as long each further
  time.
* After two seconds of joining, later on after up to half a minute, it is measured anew what passes
  without it: the first time, the broker may have been cold.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SMALL_BYTES", "BusyBroker"]

SMALL_BYTES = 65536
"""Larger batches are not joined for a near broker: most of their time is not the request's."""
_PLAIN_S, _JOINED_S = 0.5, 2.0
_JOINS_S, _JOINS_S_MAX = 2.0, 30.0
_WAITED_SHARE = 0.5
_MORE = 1.25
_CPU_SHARE = 0.15
_REST_S, _REST_S_MAX = 30.0, 600.0
# Nothing was sent for longer than this: the broker hangs, or there was nothing to send. (Joined
# batches are so large that it may be normal.)
_GAP_S = 2.0


@dataclass(slots=True)
class BusyBroker:
    """What is measured of one near broker. Times in monotonic s.

    ``joins``: whether batches are joined. ``rate``: records/s in the last window before that.
    """

    joins: bool = False
    rate: float = 0.0
    _records: int = 0  # acknowledged in this window
    _began: float = float("-inf")
    _looked_at: float = float("-inf")
    _waits: bool = False
    _waited_s: float = 0.0
    _cpu_s: float = 0.0
    _joins_s: float = _JOINS_S
    _joins_until: float = float("-inf")
    _rests_until: float = float("-inf")
    _rest_s: float = 0.0

    def look(self, now: float, cpu_s: float) -> bool:
        """Whether to join now. ``cpu_s``: CPU time that was spent on joining so far."""
        passed_s = now - self._looked_at
        if passed_s <= 0:
            return self.joins  # for another partition
        if passed_s > _GAP_S:
            if not self.joins:
                self._joins_s = _JOINS_S
                self._begin(now, cpu_s)
        elif self._waits:
            self._waited_s += passed_s
        self._looked_at, self._waits = now, False
        lasted_s = now - self._began
        if lasted_s < (_JOINED_S if self.joins else _PLAIN_S):
            return self.joins
        waited, rate = self._waited_s >= _WAITED_SHARE * lasted_s, self._records / lasted_s
        share = (cpu_s - self._cpu_s) / lasted_s
        self._begin(now, cpu_s)
        if self.joins:
            self.joins = self._pays(rate, share, now, waited=waited)
        elif waited and now >= self._rests_until:
            self.joins, self.rate, self._joins_until = True, rate, now + self._joins_s
        return self.joins

    def acknowledged(self, records: int, now: float, *, joined: bool) -> None:
        """Note that a request with so many records was acknowledged; ``joined``: with joined ones.

        What passes without joining can be measured when the joined requests have arrived.
        """
        self._records += records
        if joined and not self.joins:
            self._begin(now, self._cpu_s)

    def note_waiting(self) -> None:
        """Note that more batches of a partition wait than may be in flight, until the next look."""
        self._waits = True

    def _begin(self, now: float, cpu_s: float) -> None:
        self._began, self._waited_s, self._records, self._cpu_s = now, 0.0, 0, cpu_s

    def _pays(self, rate: float, cpu_share: float, now: float, *, waited: bool) -> bool:
        """Whether joining goes on after a window with ``rate`` records/s."""
        if rate >= _MORE * self.rate:
            self._rest_s = 0.0
        elif waited or cpu_share >= _CPU_SHARE:
            self._rest_s = min(_REST_S_MAX, max(_REST_S, 2 * self._rest_s))
            self._rests_until, self._joins_s = now + self._rest_s, _JOINS_S
            return False
        elif rate < self.rate:
            return False
        if now < self._joins_until:
            return True
        self._joins_s = min(_JOINS_S_MAX, 2 * self._joins_s)
        return False
