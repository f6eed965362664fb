"""A slot that reads under limits from simulated brokers, by a clock of its own."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

from sparkmirror.model import TopicPartition
from sparkmirror.records.header import last_offset_delta
from sparkmirror.records.walk import walk_batches
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.fetch.throttle import DEBT_S, Limit, Throttle
from tests.property.simulated_source import SimConnection, SimSource

LONG_S = 10.0


def limit(bytes_s: float, topics: str = "", *, slots: int = 1) -> Limit:
    """A limit as a slot gets it that has an even share."""
    pattern = re.compile(topics) if topics else None
    return Limit(topics, pattern, bytes_s, bytes_s * slots, bytes_s * DEBT_S)


class ThrottledSlot:
    """A fetcher before brokers that answer after ``trip_s``, or when a long poll is over.

    ``read``: (time, bytes) of what was read, by partition. ``produced``: when each offset of a
    partition of which a test measures the latency was written. ``rounds``: calls of `send`.
    """

    def __init__(
        self,
        leaders: dict[TopicPartition, int],
        *,
        trip_s: float = 0.002,
        batch_bytes: int = 1000,
        channels_max: int = 3,
    ) -> None:
        self.source = SimSource(leaders, trip_s)
        self.trip_s = trip_s
        self.padding = bytes(batch_bytes)
        self.fetcher = Fetcher(
            self.source,  # type: ignore[arg-type]
            FetchSettings(fetch_max_wait_ms=500),
            channels_max=channels_max,
            clock=lambda: self.source.time_s,
        )
        for tp in leaders:
            self.fetcher.assign(tp, 0)
        self.read: dict[TopicPartition, list[tuple[float, int]]] = defaultdict(list)
        self.produced: dict[TopicPartition, dict[int, float]] = defaultdict(dict)
        self.latencies_s: dict[TopicPartition, list[float]] = defaultdict(list)
        self.rounds = self.requests = 0
        self._sent_s: dict[SimConnection, float] = {}
        self._back_s: dict[SimConnection, float] = {}

    @property
    def now(self) -> float:
        """The simulated time."""
        return self.source.time_s

    def limit(self, *limits: Limit) -> None:
        """Read under ``limits`` from now on."""
        if self.fetcher.throttle is None:
            self.fetcher.throttle = Throttle()
        self.fetcher.throttle.update(limits, self.now)

    def produce(self, tp: TopicPartition, batches: int = 1) -> None:
        """Write batches of one record each."""
        for _ in range(batches):
            self.produced[tp][self.source.ends[tp]] = self.now
            self.source.append(tp, 1, records=1, padding=self.padding)

    def run(self, seconds: float, each: Callable[[float], None] | None = None) -> None:
        """Let time pass. ``each`` is called every millisecond with the time."""
        end = self.now + seconds
        self._send()
        while self.now < end:
            due_s = self.fetcher.next_due_s()
            slept_s = 0.0
            while slept_s < max(due_s, 0.0005) and self.now < end:
                self.source.time_s += 0.001
                slept_s += 0.001
                if each is not None:
                    each(self.now)
                if self._answer():
                    break
            self._send()

    def forget_sent(self) -> None:
        """Connections were lost: their requests are not answered any more."""
        self._sent_s.clear()

    def _send(self) -> None:
        self.rounds += 1
        self.fetcher.send()
        for one in self.source.connections.values():
            if one.waiting is not None and one not in self._sent_s:
                self._sent_s[one] = self.now
                self.requests += 1

    def _answer(self) -> bool:
        answered = False
        for one, sent_s in list(self._sent_s.items()):
            if not one.frame:
                # At the broker: the way there took half of the trip.
                passed_s = self.now - sent_s - self.trip_s / 2
                over = passed_s >= one.waiting.max_wait_ms / 1000
                if passed_s >= 0 and (over or self.source.has_news(one)):
                    self.source.answer(one)
                    self._back_s[one] = self.now + self.trip_s / 2
            elif self.now >= self._back_s[one]:
                del self._sent_s[one]
                self._take(one)
                answered = True
        return answered

    def _take(self, connection: SimConnection) -> None:
        for part in self.fetcher.receive(connection):  # type: ignore[arg-type]
            offset = part.fetch_offset
            assert offset == self.fetcher.position(part.tp)
            for start, end in pairwise(walk_batches(part.records).starts):
                batch = part.records[start:end]
                written_s = self.produced[part.tp].get(offset)
                if written_s is not None:
                    self.latencies_s[part.tp].append(self.now - written_s)
                self.read[part.tp].append((self.now, len(batch)))
                offset += last_offset_delta(batch) + 1
            if offset > part.fetch_offset:
                self.fetcher.advance(part.tp, offset)

    def bytes_read(self, since_s: float = 0.0, topics: str = ".*") -> int:
        """Bytes of the partitions of ``topics`` since then."""
        return sum(
            size
            for tp, parts in self.read.items()
            if re.fullmatch(topics, tp.topic)
            for at, size in parts
            if at >= since_s
        )
