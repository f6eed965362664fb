"""Joins batches that wait for a slow link into fewer and larger ones.

A broker accepts one batch of a partition per request, and a few requests at a time. So a partition
carries (bytes of a batch x requests in flight) per round trip. Over a long link this is little if
producers wrote small batches. Joining takes CPU time, so the mode ``auto`` does it only when
needed. It begins for a partition when

* the quickest response takes at least 5 ms: nearby, a request costs less than joining;
* for four round trips, more batches have waited than may be in flight;
* the producer has spent a quarter of that time waiting for responses, so it has CPU time left.

It ends when no more batches wait than may be in flight, for 1 s or 20 round trips; or if it is the
limit itself, because it takes most of the CPU time and fewer records pass than before. Only batches
that were never sent are joined: a sent batch has its sequence and must not change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmirror.progress import JoinCounts
from sparkmirror.records.codecs import NAMES, ZSTD
from sparkmirror.records.header import codec
from sparkmirror.records.rebatch import EncodedBatch, join_batches
from sparkmirror.records.records import Limits
from sparkmirror.settings import ProduceSettings
from sparkmirror.wire.produce.topic_limits import (
    ACCEPTED_BYTES,
    ACCEPTED_BYTES_MIN,
    TopicLimits,
)

if TYPE_CHECKING:
    from sparkmirror.wire.produce.partition_queue import PartitionQueue, QueuedBatch

log = logging.getLogger(__name__)

__all__ = ["ROUND_TRIP_S_MIN", "JoinState", "Joining", "RoundTrip"]

ROUND_TRIP_S_MIN = 0.005
"""A broker that responds sooner is near: joining would cost more than the requests it saves."""
# All joined batches of one request together. Five such requests in flight, and what waits behind
# them, are all that a slot may have unacknowledged.
_REQUEST_BYTES = 4 * 1024 * 1024
# What is in flight has to arrive before a mirror can end, and within the request timeout.
_REQUEST_S_MAX = 5.0
_REQUEST_BYTES_MIN = 64 * 1024
_RECORDS_MAX = 250_000
_ZSTD_VERSION = 7  # of Produce
_LIMITS = Limits(decompressed_bytes_max=16 << 20, joined_bytes_max=32 << 20)
# Of what may be unpacked; the next batches may be smaller for their records than the last ones.
_UNPACKED_SHARE = 0.75
_TRIPS_BEHIND = 4
_WAITED_SHARE = 0.25
_HOLD_S, _HOLD_TRIPS = 1.0, 20
# When joining is the limit, and for how long it is left then: twice as long each time.
_BUSY_SHARE, _LESS = 0.5, 0.75
_REST_S, _REST_S_MAX = 30.0, 600.0
_WINDOW_S = 10.0


class RoundTrip:
    """What the responses of a broker tell about the link to it.

    `seconds` is the minimum response time: that of the quickest response in the last 10 to 20 s.
    """

    def __init__(self) -> None:
        self._since = float("-inf")
        self._now = self._before = float("inf")
        self.request_bytes = _REQUEST_BYTES
        """How large a request of joined batches may be, so that it takes no more than 5 s."""

    def note(self, seconds: float, now: float) -> None:
        """Note that a response took ``seconds``. ``now``: monotonic s."""
        if now - self._since >= _WINDOW_S:
            old = now - self._since >= 2 * _WINDOW_S
            self._before = float("inf") if old else self._now
            self._now, self._since = seconds, now
        elif seconds < self._now:
            self._now = seconds

    @property
    def slow(self) -> bool:
        """Whether the link is so slow that requests must be smaller than they could be."""
        return self.request_bytes < _REQUEST_BYTES

    def fit(self, size: int, seconds: float) -> None:
        """Note that requests of ``size`` bytes take ``seconds``, with those before them."""
        if seconds > _REQUEST_S_MAX:
            fits = min(self.request_bytes, int(size * _REQUEST_S_MAX / seconds))
            self.request_bytes = max(_REQUEST_BYTES_MIN, fits)
        elif seconds < _REQUEST_S_MAX / 2:
            self.request_bytes = min(_REQUEST_BYTES, self.request_bytes + self.request_bytes // 8)

    @property
    def seconds(self) -> float:
        """The minimum in seconds; 0 while there was no response."""
        least = min(self._now, self._before)
        return least if least < float("inf") else 0.0


@dataclass(slots=True, eq=False)
class JoinState:
    """How the batches of one partition have waited.

    ``behind_since``: since when more wait than may be in flight, or since when they are joined;
    None: no more than that. ``waited_s``, ``cpu_s``, ``done``: the values of `Joining.waited_s`, of
    its CPU time and of the partition's acknowledged records at that time. ``rate``: records/s
    before they were joined. ``joins_until``: end of joining. ``rests_until``: not before, after
    ``rest_s`` the last time.
    ``bytes_max``: limit of the next joined batch, besides those of the topic and of the request.
    ``unpacked``: to how many bytes a byte of the last joined batches was unpacked.
    """

    behind_since: float | None = None
    waited_s: float = 0.0
    cpu_s: float = 0.0
    done: int = 0
    rate: float = 0.0
    joins_until: float = float("-inf")
    rests_until: float = float("-inf")
    rest_s: float = 0.0
    bytes_max: int = ACCEPTED_BYTES
    unpacked: float = 0.0

    def grow(self, size: int, unpacked_bytes: int) -> None:
        """Note that batches of ``size`` bytes were joined: the next ones may be more.

        ``unpacked_bytes``: what they took when they were unpacked.
        """
        self.bytes_max = min(self.bytes_max + self.bytes_max // 8, _REQUEST_BYTES)
        self.unpacked = unpacked_bytes / size

    def shrink(self) -> None:
        """Note that batches could not be joined: the next ones should be fewer."""
        self.bytes_max = max(ACCEPTED_BYTES_MIN, self.bytes_max // 2)

    def unpackable_bytes(self) -> int:
        """How many bytes of batches may be unpacked at a time, if these are like the last ones."""
        return int(_LIMITS.joined_bytes_max * _UNPACKED_SHARE / max(1.0, self.unpacked))


class Joining:
    """Decides which batches are joined, joins them, and counts that. One owner, no threads.

    ``limits``: how large a batch each topic accepts.
    """

    def __init__(self, settings: ProduceSettings, limits: TopicLimits | None = None) -> None:
        self._limits = TopicLimits() if limits is None else limits
        self._mode = settings.link_joining
        name = settings.link_compression
        self._codec = NAMES.index(name) if name else -1
        self._in_flight_max = settings.in_flight_requests_max if settings.enable_idempotence else 1
        self._bytes_max = settings.request_bytes_max
        self.waited_s = 0.0
        """Seconds that the producer has waited for responses, in total."""
        self.counts = JoinCounts()

    def form(
        self, state: PartitionQueue, round_trip: RoundTrip, partitions: int, now: float
    ) -> int:
        """Join the next batches of ``state`` if needed. Returns by how many bytes its queue grew.

        ``partitions``: how many may share the request. ``now``: monotonic s.
        """
        waiting = state.pending
        if len(waiting) < 2 or waiting[0].fixed or self._mode == "off":
            return 0
        if self._mode == "auto" and not self._needed(state, round_trip.seconds, now):
            return 0
        line = state.join_state
        room = self._room(state, round_trip.request_bytes // partitions)
        chosen = _first(waiting, room, mixed=self.has_codec)
        if len(chosen) < 2:
            # Batches of another kind may have set a limit that lets no two of these through.
            line.unpacked *= 0.9
            line.bytes_max = max(line.bytes_max, min(ACCEPTED_BYTES, line.bytes_max * 9 // 8))
            return 0
        began = time.thread_time()
        size = sum(len(one.batch) for one in chosen)
        # Numbers of records take more bytes in a larger batch: without compression, some more than
        # the headers that are saved.
        most = min(room, size + size // 64)
        joined = self._joined([one.batch for one in chosen], most)
        spent = JoinCounts(cpu_s=time.thread_time() - began)
        if joined is None:
            self.counts = self.counts.plus(spent)
            if len(chosen) > 2:
                line.shrink()
            # They cannot be joined, or are no smaller then: do not try them again.
            for one in chosen[:2]:
                one.fixed = True
            return 0
        data = joined.data
        line.grow(size, joined.unpacked_bytes)
        growth = state.join(len(chosen), data)
        done = JoinCounts(len(chosen), len(data) - growth, len(data), spent.cpu_s)
        self.counts = self.counts.plus(done)
        return growth

    def refuse_codec(self, cluster: str) -> None:
        """Join in the source's codec from now on: brokers do not take that of the link."""
        if not self.has_codec:  # others of its batches were in flight
            return
        log.warning(
            "producing to cluster %s: sparkmirror.link.compression=%s is not used, because its"
            " brokers do not take it (zstd needs 2.1, and inter.broker.protocol.version 2.1)",
            *(cluster, NAMES[self._codec]),
        )
        self._codec = -1

    @property
    def has_codec(self) -> bool:
        """Whether the link has a codec of its own."""
        return self._codec >= 0

    def suits(self, version: int) -> bool:
        """Whether a broker with this ``version`` of Produce takes what is joined."""
        return self._codec != ZSTD or version >= _ZSTD_VERSION

    def _room(self, state: PartitionQueue, share: int) -> int:
        """How many bytes of batches may become the next one of ``state``; ``share``: its part."""
        line = state.join_state
        share = max(ACCEPTED_BYTES_MIN, share)
        accepted = min(self._limits.of(state.tp.topic), self._bytes_max)
        return min(share, accepted, line.bytes_max, line.unpackable_bytes())

    def _needed(self, state: PartitionQueue, trip_s: float, now: float) -> bool:
        """Whether the batches of ``state`` wait for the link, with CPU time left to join them."""
        line = state.join_state
        behind = len(state.pending) > self._in_flight_max
        hold_s = max(_HOLD_S, _HOLD_TRIPS * trip_s)
        if now < line.joins_until:
            if behind:
                line.joins_until = now + hold_s
                return not self._limits_itself(state, hold_s, now)
            return True
        if line.joins_until > float("-inf"):
            line.joins_until, line.behind_since = float("-inf"), None
        if not behind or trip_s < ROUND_TRIP_S_MIN or now < line.rests_until:
            line.behind_since = None
            return False
        if line.behind_since is None:
            self._begin(state, now)
            return False
        lasted_s = now - line.behind_since
        if lasted_s < _TRIPS_BEHIND * trip_s:
            return False
        line.behind_since = None
        if self.waited_s - line.waited_s < _WAITED_SHARE * lasted_s:
            return False
        line.rate = (state.done - line.done) / lasted_s
        self._begin(state, now)
        line.joins_until = now + hold_s
        return True

    def _begin(self, state: PartitionQueue, now: float) -> None:
        line = state.join_state
        line.behind_since, line.waited_s = now, self.waited_s
        line.cpu_s, line.done = self.counts.cpu_s, state.done

    def _limits_itself(self, state: PartitionQueue, hold_s: float, now: float) -> bool:
        """Whether fewer records pass than before while joining takes most of the CPU time."""
        line = state.join_state
        if line.behind_since is None:
            self._begin(state, now)
            return False
        lasted_s = now - line.behind_since
        if lasted_s < hold_s:
            return False
        busy = self.counts.cpu_s - line.cpu_s >= _BUSY_SHARE * lasted_s
        less = state.done - line.done < _LESS * line.rate * lasted_s
        self._begin(state, now)
        if not busy or not less:
            line.rest_s = 0.0
            return False
        line.rest_s = min(_REST_S_MAX, max(_REST_S, 2 * line.rest_s))
        line.rests_until = now + line.rest_s
        line.joins_until = float("-inf")
        line.behind_since = None
        return True

    def _joined(self, batches: list[memoryview], most: int) -> EncodedBatch | None:
        """``batches`` as one; None if they cannot be joined, or to more than ``most`` bytes."""
        own = codec(batches[0])
        for one in (self._codec, own) if self._codec not in (-1, own) else (own,):
            written = join_batches(batches, one, _LIMITS)
            if written is None:
                return None
            if len(written.data) <= most:
                return written
        return None


def _first(waiting: Iterable[QueuedBatch], bytes_max: int, *, mixed: bool) -> list[QueuedBatch]:
    """The first batches, never sent, of at most ``bytes_max`` bytes in total.

    They are of one codec, unless they may be ``mixed`` because the link has its own.
    """
    chosen: list[QueuedBatch] = []
    size = records = 0
    kind = -1
    for item in waiting:
        size += len(item.batch)
        records += item.records
        if item.fixed or size > bytes_max or records > _RECORDS_MAX:
            break
        own = codec(item.batch)
        if chosen and own != kind and not mixed:
            break
        kind = own
        chosen.append(item)
    return chosen
