"""A source cluster in one thread whose every step a test decides.

Its brokers keep what a fetcher meets on real ones: the requests of one connection are answered in
turn, a fetch session has an epoch, knows partitions until they are forgotten, and moves those that
got records to its end. Answers are filled in the order of the request and end where it says, within
a batch, too. Only the first batch of an answer comes whole, however large; of a later partition
whose first batch does not fit, nothing comes. `answer` has a broker answer the request under way on
a connection, whenever the test says.
"""

from __future__ import annotations

import bisect
import itertools
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.consumer import FetchRequest, FetchResponse

from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.metadata import Leader
from sparkmirror.wire.net.connection import ConnectionLost

VERSION = 11
OUT_OF_RANGE, NOT_LEADER, NO_SESSION_ID, WRONG_EPOCH = 1, 6, 70, 71
# (offset, bytes at most) of a partition
Wanted = dict[TopicPartition, tuple[int, int]]


def value(tp: TopicPartition, offset: int) -> bytes:
    """Of the record there."""
    return b"%s-%d-%d" % (tp.topic.encode(), tp.partition, offset)


@dataclass
class SimSession:
    """What a broker knows of a fetch session; ``epoch``: of the next request."""

    epoch: int
    wanted: Wanted


@dataclass(eq=False)
class SimConnection:
    """What a fetcher uses of a `Connection`. ``waiting``: the request under way, decoded."""

    source: SimSource
    node: int
    number: int
    round_trip_s: float
    broken: bool = False
    closed: bool = False
    waiting: Any = None
    wanted: Wanted = field(default_factory=dict)
    frame: bytes = b""
    correlation: int = 0
    asked: list[list[TopicPartition]] = field(default_factory=list)
    headers: list[tuple[int, int]] = field(default_factory=list)
    host: str = "broker"
    port: int = 9092

    def api_version(self, *_: object) -> int:
        """Always the same."""
        return VERSION

    def header(self, *_: object) -> tuple[int, bytes]:
        """Numbers that no other connection has."""
        self.correlation = next(self.source.correlations)
        return self.correlation, b""

    def ready_to_send(self, *, idle: bool) -> bool:
        """Nobody has to log in again."""
        return idle

    def ended_idle(self) -> bool:
        """Whether the broker has hung up meanwhile."""
        return self.broken

    def hung_up(self) -> bool:
        """The same."""
        return self.broken

    def watched_by(self, _poller: object) -> None:
        """Nobody waits: tests call when there is something to read."""

    def readable(self) -> bool:
        """Whether the answer has come."""
        return bool(self.frame)

    unsent = False

    def begin_frame(self, parts: list[bytes], _size: int) -> None:
        """The request goes out, and the broker takes in what it says of the session."""
        assert not self.closed
        assert self.waiting is None, "one request under way per connection"
        if self.broken:
            raise ConnectionLost("broken")
        self.waiting = FetchRequest.decode(b"".join(parts), version=VERSION)
        self.wanted = self.source.listed(self)
        self.asked.append(list(self.wanted))
        self.headers.append((self.waiting.session_id, self.waiting.session_epoch))

    def receive_available(self, _buffer: object) -> memoryview:
        """The answer."""
        if self.broken or not self.frame:
            raise ConnectionLost("broken")
        frame, self.frame, self.waiting = self.frame, b"", None
        return memoryview(frame)


class SimSource:
    """Brokers that lead partitions, as `ClusterConnections` for a fetcher.

    ``trips``: how long a round trip to each node takes, by connection. ``refused``: nodes that take
    no further connection.
    """

    def __init__(self, leaders: dict[TopicPartition, int], trip_s: float) -> None:
        self.client = ClusterClient("A", ("a:1",), "c", retry_backoff_ms=0)
        self.time_s = 100.0
        self.true_leaders = dict(leaders)
        self.leaders = {tp: Leader(node, 0) for tp, node in leaders.items()}
        self.leaderless: dict[TopicPartition, int] = {}
        self.reachable = True
        self.topic_ids: dict[str, str] = {}
        self.generation = 0
        self.trips: dict[tuple[int, int], float] = {}
        self.trip_s = trip_s
        self.refused: set[int] = set()
        self.slow: set[tuple[int, int]] = set()
        """Connections that are not open yet."""
        self.begun: set[tuple[int, int]] = set()
        self.waited_s = 0.0
        """For connections that were not open yet."""
        self.look_again_s = math.inf
        self.room_for_sessions = True
        self.throttle_ms = 0
        self.correlations = itertools.count(1)
        self.connections: dict[tuple[int, int], SimConnection] = {}
        self.opened: list[tuple[int, int]] = []
        self.logs: dict[TopicPartition, list[tuple[int, bytes]]] = {tp: [] for tp in leaders}
        self.ends = dict.fromkeys(leaders, 0)
        self.log_starts = dict.fromkeys(leaders, 0)
        self.aborted: list[tuple[int, int]] = []
        """(producer id, first offset), in each response."""
        self._sessions: dict[tuple[int, int], SimSession] = {}
        self._session_ids = itertools.count(1)
        self._stale = False

    # -- what a fetcher asks of its connections --------------------------------------------

    def refresh_if_due(self) -> bool:
        """Metadata tells the truth."""
        if not self._stale:
            return False
        self.leaders = {tp: Leader(node, 0) for tp, node in self.true_leaders.items()}
        self._stale = False
        self.generation += 1
        return True

    def doubt(self, tp: TopicPartition) -> None:
        """Believe the next metadata."""
        self.mark_stale(tp)

    def mark_stale(self, _tp: TopicPartition | None = None) -> None:
        """Refresh with the next look."""
        self._stale = True

    def forget_leaders(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Know none of them until the next metadata."""
        gone = set(self.leaders if partitions is None else partitions)
        self.leaders = {tp: one for tp, one in self.leaders.items() if tp not in gone}
        self.generation += 1

    def connection(
        self, node: int, number: int = 0, *, wait_s: float = 0.05
    ) -> SimConnection | None:
        """One of the connections to a broker; a new one that is `slow` is waited for."""
        known = self.connections.get((node, number))
        if known is None and node not in self.refused and (node, number) not in self.slow:
            trip_s = self.trips.get((node, number), self.trip_s)
            known = self.connections[node, number] = SimConnection(self, node, number, trip_s)
            self.opened.append((node, number))
        elif known is None and (node, number) in self.slow - self.begun:
            self.begun.add((node, number))
            self.waited_s += wait_s
        return known

    def connecting(self, node: int, number: int = 0) -> bool:
        """Whether it will be connected in a moment."""
        return (node, number) in self.slow

    def drop(self, connection: SimConnection) -> None:
        """It is closed and forgotten."""
        connection.closed = True
        if self.connections.get((connection.node, connection.number)) is connection:
            del self.connections[connection.node, connection.number]
        self._stale = True

    # -- what brokers do -------------------------------------------------------------------

    def append(
        self, tp: TopicPartition, batches: int, records: int = 2, *, padding: bytes = b""
    ) -> None:
        """More batches at the end of a log; ``padding`` at the end of each record."""
        for _ in range(batches):
            first = self.ends[tp]
            self.ends[tp] += records
            offsets = range(first, self.ends[tp])
            batch = encode_batch([Record(at, 1, None, value(tp, at) + padding) for at in offsets])
            self.logs[tp].append((first, batch))

    def has_news(self, connection: SimConnection) -> bool:
        """Whether a long poll on ``connection`` ends now."""
        there, least = 0, max(1, connection.waiting.min_bytes)
        for tp, (offset, _) in connection.wanted.items():
            if offset < self.log_starts[tp]:
                return True
            log = self.logs[tp]
            for at in range(bisect.bisect_left(log, (offset,)), len(log)):
                there += len(log[at][1])
                if there >= least:
                    return True
        return False

    def listed(self, connection: SimConnection) -> Wanted:
        """What is wanted from now on, of the session and the request together."""
        request = connection.waiting
        told = {
            TopicPartition(topic.topic, one.partition): (
                one.fetch_offset,
                one.partition_max_bytes,
            )
            for topic in request.topics
            for one in topic.partitions
        }
        session = self._sessions.get((connection.node, request.session_id))
        if request.session_epoch <= 0 or session is None:
            return told
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                del session.wanted[TopicPartition(topic.topic, partition)]
        session.wanted |= told
        return dict(session.wanted)

    def lose_sessions(self, node: int) -> None:
        """A broker forgets all of them, as with a restart."""
        for key in [key for key in self._sessions if key[0] == node]:
            del self._sessions[key]

    def answer(self, connection: SimConnection) -> None:
        """The broker answers the request under way."""
        request, node = connection.waiting, connection.node
        session_id, code, served = 0, 0, None
        if request.session_epoch > 0:
            session = self._sessions.get((node, request.session_id))
            if session is None:
                code = NO_SESSION_ID
            elif session.epoch != request.session_epoch:
                code = WRONG_EPOCH
            else:
                session.epoch += 1
                session_id = request.session_id
                served = session
        elif request.session_epoch == 0:
            self._sessions.pop((node, request.session_id), None)
            if self.room_for_sessions:
                session_id = next(self._session_ids)
                self._sessions[node, session_id] = SimSession(1, dict(connection.wanted))
        parts = [] if code else list(self._parts(connection, request.max_bytes))
        for tp, part in parts:
            if served is not None and part.records:
                served.wanted[tp] = served.wanted.pop(tp)
        topics = itertools.groupby(parts, lambda one: one[0].topic)
        rows = FetchResponse.FetchableTopicResponse
        response = FetchResponse(
            throttle_time_ms=self.throttle_ms,
            error_code=code,
            session_id=session_id,
            responses=[
                rows(topic=name, partitions=[part for _, part in members])
                for name, members in topics
            ],
        )
        head = struct.pack(">i", connection.correlation)
        connection.frame = head + bytes(response.encode(version=VERSION))

    def _parts(
        self, connection: SimConnection, bytes_max: int
    ) -> Iterable[tuple[TopicPartition, Any]]:
        left, first = bytes_max, True
        for tp, (offset, most) in connection.wanted.items():
            led = self.true_leaders.get(tp) == connection.node
            code = 0 if led else NOT_LEADER
            if led and offset < self.log_starts[tp]:
                code = OUT_OF_RANGE
            records = b"" if code else self._read(tp, offset, min(left, most), first)
            left -= len(records)
            first = first and not records
            yield (
                tp,
                FetchResponse.FetchableTopicResponse.PartitionData(
                    partition_index=tp.partition,
                    error_code=code,
                    high_watermark=self.ends[tp],
                    last_stable_offset=self.ends[tp],
                    log_start_offset=self.log_starts[tp],
                    aborted_transactions=[
                        FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction(
                            producer_id=producer, first_offset=at
                        )
                        for producer, at in self.aborted
                    ],
                    preferred_read_replica=-1,
                    records=records,
                ),
            )

    def _read(self, tp: TopicPartition, offset: int, most: int, first: bool) -> bytes:
        found, log = b"", self.logs[tp]
        for at in range(bisect.bisect_left(log, (offset,)), len(log)):
            batch = log[at][1]
            if not found and len(batch) > most:
                return batch if first else b""
            found += batch
            if len(found) >= most:
                break
        return found[:most]
