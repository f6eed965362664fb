"""Batches that wait for a slow link, joined to fewer and larger ones.

Brokers take one batch of a partition per request, and a few requests at a time: so a partition
carries (bytes of a batch x requests in flight) per round trip, which over a long link is little
where producers wrote small batches. Joining them takes processor time, so it is done by need. It
begins for a partition where

* an answer takes 5 ms and more however quick it is: nearby, a request costs less than joining does;
* for four round trips on end more batches have waited than may be in flight at a time;
* the producer has spent a quarter of that time waiting for answers: its own processor time is left;

and ends when nothing has waited so for a while. Only batches that were never sent are joined: what
was on its way once has its sequence and stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmirror.model import JoinCounts, ProduceSettings
from sparkmirror.records.codecs import NAMES
from sparkmirror.records.header import codec
from sparkmirror.records.rebatch import join_batches
from sparkmirror.records.records import Limits

if TYPE_CHECKING:
    from sparkmirror.wire.produce.partition_queue import PartitionQueue, QueuedBatch

__all__ = ["JOINED_BYTES_MAX", "ROUND_TRIP_S_MIN", "Joining", "Line", "RoundTrip"]

JOINED_BYTES_MAX = 1_000_000
"""Of a joined batch: below 1,048,588 bytes, which topics take unless somebody has changed it."""
ROUND_TRIP_S_MIN = 0.005
"""Whoever answers sooner is near: joining would cost more than the requests that it saves."""
_JOINED_BYTES_MIN = 32 * 1024
# What the partitions of one request are joined to before it goes out.
_REQUEST_BYTES = 4 * 1024 * 1024
_RECORDS_MAX = 250_000
_LIMITS = Limits(decompressed_bytes_max=16 << 20, joined_bytes_max=32 << 20)
_TRIPS_BEHIND = 4
_WAITED_SHARE = 0.25
_HOLD_S, _HOLD_TRIPS = 1.0, 20
_WINDOW_S = 10.0


class RoundTrip:
    """How long an answer takes at least: the quickest one of the last 10 to 20 s."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._now = self._before = float("inf")

    def note(self, seconds: float, now: float) -> None:
        """Note that an answer took so long. ``now``: monotonic s."""
        if now - self._since >= _WINDOW_S:
            old = now - self._since >= 2 * _WINDOW_S
            self._before = float("inf") if old else self._now
            self._now, self._since = seconds, now
        elif seconds < self._now:
            self._now = seconds

    @property
    def seconds(self) -> float:
        """0 while no answer is known."""
        least = min(self._now, self._before)
        return least if least < float("inf") else 0.0


@dataclass(slots=True, eq=False)
class Line:
    """How the batches of one partition have waited.

    ``behind_since``: from when on more have waited than may be in flight, None: they do not;
    ``waited_s``: what `Joining.waited_s` was then. ``joins_until``: they are joined until then.
    ``bytes_max``: of the next joined batch, at most ``taken_bytes``, as the target's answers say.
    """

    behind_since: float | None = None
    waited_s: float = 0.0
    joins_until: float = float("-inf")
    bytes_max: int = JOINED_BYTES_MAX
    taken_bytes: int = JOINED_BYTES_MAX

    def refused(self, size: int) -> None:
        """The target's topic does not take a joined batch of ``size`` bytes."""
        self.taken_bytes = max(_JOINED_BYTES_MIN, min(self.taken_bytes, size // 2))
        self.bytes_max = min(self.bytes_max, self.taken_bytes)


class Joining:
    """Decides which batches are joined, joins them, and counts that. One owner, no threads."""

    def __init__(self, settings: ProduceSettings) -> None:
        self._mode = settings.link_joining
        name = settings.link_compression
        self._codec = NAMES.index(name) if name else -1
        self._in_flight_max = settings.in_flight_requests_max if settings.enable_idempotence else 1
        self._bytes_max = settings.request_bytes_max
        self.waited_s = 0.0
        """How long the producer has waited for answers, in all."""
        self.counts = JoinCounts()

    def form(
        self, state: PartitionQueue, round_trip: RoundTrip, partitions: int, now: float
    ) -> int:
        """Join what ``state`` sends next, if it should be; by how many bytes its queue grew.

        ``partitions``: how many may share the request. ``now``: monotonic s.
        """
        waiting = state.pending
        if len(waiting) < 2 or waiting[0].fixed or self._mode == "off":
            return 0
        if self._mode == "auto" and not self._needed(state, round_trip.seconds, now):
            return 0
        line = state.line
        room = max(_JOINED_BYTES_MIN, _REQUEST_BYTES // partitions)
        chosen = _first(waiting, min(room, line.bytes_max, self._bytes_max))
        if len(chosen) < 2:
            return 0
        began = time.thread_time()
        data = self._joined([one.batch for one in chosen])
        spent = JoinCounts(cpu_s=time.thread_time() - began)
        if data is None:
            self.counts = self.counts.plus(spent)
            if len(chosen) > 2:
                line.bytes_max = max(_JOINED_BYTES_MIN, line.bytes_max // 2)
            # What cannot be joined, or gains nothing by it, is not tried again.
            for one in chosen[:2]:
                one.fixed = True
            return 0
        line.bytes_max = min(line.bytes_max + line.bytes_max // 8, line.taken_bytes)
        growth = state.join(len(chosen), data)
        done = JoinCounts(len(chosen), len(data) - growth, len(data), spent.cpu_s)
        self.counts = self.counts.plus(done)
        return growth

    def _needed(self, state: PartitionQueue, trip_s: float, now: float) -> bool:
        """Whether the batches of ``state`` wait for the link, and there is time to join them."""
        line = state.line
        behind = len(state.pending) > self._in_flight_max
        if now < line.joins_until:
            if behind:
                line.joins_until = now + max(_HOLD_S, _HOLD_TRIPS * trip_s)
            return True
        if not behind or trip_s < ROUND_TRIP_S_MIN:
            line.behind_since = None
            return False
        if line.behind_since is None:
            line.behind_since, line.waited_s = now, self.waited_s
            return False
        lasted_s = now - line.behind_since
        if lasted_s < _TRIPS_BEHIND * trip_s:
            return False
        line.behind_since = None
        if self.waited_s - line.waited_s < _WAITED_SHARE * lasted_s:
            return False
        line.joins_until = now + max(_HOLD_S, _HOLD_TRIPS * trip_s)
        return True

    def _joined(self, batches: list[memoryview]) -> bytes | None:
        """``batches`` as one, None where that cannot be or is larger than they are."""
        size = sum(map(len, batches))
        own = codec(batches[0])
        for one in (self._codec, own) if self._codec not in (-1, own) else (own,):
            written = join_batches(batches, one, _LIMITS)
            if written is None:
                return None
            if len(written.data) <= size:
                return written.data
        return None


def _first(waiting: Iterable[QueuedBatch], bytes_max: int) -> list[QueuedBatch]:
    """The first batches that make one of at most ``bytes_max`` bytes: never sent, of one codec."""
    chosen: list[QueuedBatch] = []
    size = records = 0
    kind = -1
    for item in waiting:
        size += len(item.batch)
        records += item.records
        if item.fixed or size > bytes_max or records > _RECORDS_MAX:
            break
        own = codec(item.batch)
        if chosen and own != kind:
            break
        kind = own
        chosen.append(item)
    return chosen
