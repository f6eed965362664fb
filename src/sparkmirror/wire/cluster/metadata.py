"""Partition leaders of one cluster, and a pool of connections to its brokers.

The Fetch and Produce paths use it in the workers. Everything is synchronous, and the caller decides
when a refresh may cost a round trip. Searches for leaders are the exception: they may last for
days, so nobody waits for their responses.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka.protocol.metadata.metadata import MetadataRequest

from sparkmirror.errors import ClusterError, Unreachable
from sparkmirror.model import ClusterClient, TopicPartition
from sparkmirror.wire.cluster.log_queries import query_offsets
from sparkmirror.wire.cluster.searches import Searches
from sparkmirror.wire.net.connection import Connection, ConnectionLost

__all__ = ["Brokers", "Leader", "split_address"]

T = TypeVar("T")
Address = tuple[str, int]

log = logging.getLogger(__name__)

# An unavailable cluster is retried several times a second: not every failure is logged.
_WARN_AGAIN_S = 10.0
_METADATA = -1  # stands for no broker
_LOWEST, _HIGHEST = 4, 12  # versions of Metadata
# Longer than the pauses between two requests to one broker during a start over a long link.
_IDLE_S = 5.0
_NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as (host, port)."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class Leader:
    """The broker that leads a partition, and the leader epoch (-1 unknown)."""

    node: int
    epoch: int


@dataclass(slots=True)
class _MetadataInFlight:
    """A Metadata request in flight. ``generation``: that of the metadata when it was sent."""

    connection: Connection
    message: Any
    version: int
    correlation: int
    topics: set[str]
    generation: int
    asked_at: float


class Brokers:
    """Metadata cache and connection pool of one cluster for a set of topics.

    ``clock`` returns monotonic seconds. Not thread-safe: one owner.
    """

    def __init__(
        self,
        client: ClusterClient,
        topics: Iterable[str] = (),
        *,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self.topics = set(topics)
        self.leaders: dict[TopicPartition, Leader] = {}
        self.leaderless: dict[TopicPartition, int] = {}
        self.topic_errors: dict[str, int] = {}
        """Error codes of topics, from the newest metadata of each."""
        self.reachable = False
        self.cluster_id = ""
        self.topic_ids: dict[str, str] = {}
        """36-character UUIDs of the topics, if the brokers return them."""
        self.generation = 0
        """Number of metadata responses so far."""
        self._addresses: dict[int, Address] = {}
        self._connections: dict[tuple[int, int], Connection] = {}  # by node id and number
        self._coordinators: dict[str, Connection] = {}  # by group
        self._backoff: dict[int, tuple[float, float]] = {}
        self._buffers = (send_buffer_bytes, receive_buffer_bytes)
        self._clock = clock
        self._stale = True
        self._refreshed_at = float("-inf")  # last metadata of all topics
        self._asked_at = float("-inf")  # last metadata of any topic
        self._searches = Searches(client.retry_backoff_ms / 1000)
        self._kept: Connection | None = None  # for searches
        self._search: _MetadataInFlight | None = None
        # With the time of the last request. The next request, or Fetch and Produce, reuses it.
        self._idle: dict[Address, tuple[Connection, float]] = {}
        self._warned_at: dict[int, float] = {}
        self._random = random.Random()  # noqa: S311  (spreads load, guards nothing)

    # -- metadata --------------------------------------------------------------------------

    def add_topics(self, topics: Iterable[str]) -> None:
        """Follow further topics from the next refresh on."""
        new = set(topics) - self.topics
        if new:
            self.topics |= new
            self._stale = True

    def mark_stale(self, tp: TopicPartition | None = None) -> None:
        """Refresh as soon as the back-off allows.

        ``tp``: refresh only its topic. The interval grows while the partition stays without a
        leader, or while its leader keeps saying that it does not lead (`Searches`).
        """
        if tp is None:
            self._stale = True
        else:
            self._searches.want(tp, self.leaders.get(tp), self._clock())

    def refresh_if_due(self) -> bool:
        """Refresh if requested (at most once per retry back-off), or if the metadata is old.

        Returns whether fresh metadata arrived. An unreachable cluster is logged and retried at a
        later call; the caller decides when to give up. The response to a search arrives at a later
        call.
        """
        self.close_idle()
        if self._search is not None and self._on_metadata(self._search):
            return True
        now = self._clock()
        wanted: set[str] | None = None
        rested = (now - self._asked_at) * 1000 >= self.client.retry_backoff_ms
        old = (now - self._refreshed_at) * 1000 >= self.client.metadata_age_ms_max
        if not old and not (self._stale and rested):
            if not rested or now < self._searches.due or self._search is not None:
                return False
            wanted = self._searches.topics(now)
            if self._request_metadata(wanted):
                return False
        try:
            self.refresh(wanted)
        except (ClusterError, ConnectionLost) as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        self._warn(_METADATA, f"metadata of cluster {self.client.alias}: {error}")
        self._refreshed_at = self._asked_at = self._clock()
        self._stale = True

    def refresh(self, wanted: set[str] | None = None) -> None:
        """Request metadata now, of ``wanted`` topics or of all.

        Raises `ClusterError` when no broker responds.
        """
        response = self._metadata(self.topics if wanted is None else wanted)
        self._take_in(response, wanted)

    def _take_in(self, response: Any, wanted: set[str] | None) -> None:
        topics = self.topics if wanted is None else wanted
        self._addresses = {b.node_id: (b.host, b.port) for b in response.brokers}
        self.cluster_id = response.cluster_id or ""
        if wanted is None:
            self.leaders, self.leaderless, self.topic_ids = {}, {}, {}
        else:
            self.leaders = {tp: one for tp, one in self.leaders.items() if tp.topic not in wanted}
            self.leaderless = {
                tp: code for tp, code in self.leaderless.items() if tp.topic not in wanted
            }
            for name in wanted:
                self.topic_ids.pop(name, None)
        for topic in response.topics:
            self.topic_errors.pop(topic.name, None)
            if topic.error_code:
                self.topic_errors[topic.name] = int(topic.error_code)
            topic_id = str(getattr(topic, "topic_id", None) or "")
            if topic_id and topic_id != _NO_TOPIC_ID:
                self.topic_ids[topic.name] = topic_id
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if part.leader_id >= 0 and part.leader_id in self._addresses:
                    epoch = getattr(part, "leader_epoch", -1)
                    self.leaders[tp] = Leader(part.leader_id, -1 if epoch is None else epoch)
                else:
                    self.leaderless[tp] = part.error_code or 5
        self.generation += 1
        self._asked_at = self._clock()
        self._searches.on_metadata(topics, self.leaders, self._asked_at)
        if wanted is None:
            self._refreshed_at, self._stale = self._asked_at, False

    def _metadata(self, topics: Iterable[str]) -> Any:
        """The Metadata response for ``topics``. Raises `ClusterError`.

        While leaders are searched for, one connection is kept for this: a new one costs both sides
        more than the request.
        """
        request = _metadata_request(topics)
        self.reachable = False
        connection, self._kept = self._kept, None
        if connection is not None and connection.hung_up():
            connection.close()
            connection = None
        connection = connection or self.any_connection()
        try:
            response = connection.request(request, lowest=_LOWEST, highest=_HIGHEST)
        except ConnectionLost as error:
            connection.close()
            raise Unreachable(
                f"the connection was lost ({error}).", where=f"cluster {self.client.alias}"
            ) from error
        except ClusterError:
            connection.close()
            raise
        self._on_response(connection)
        return response

    def _on_response(self, connection: Connection) -> None:
        self.reachable = True
        self._warned_at.pop(_METADATA, None)
        if self._searches and self._kept is None:
            self._limit(connection)
            self._kept = connection
        else:
            self._keep(connection)

    def _request_metadata(self, topics: set[str]) -> bool:
        """Request ``topics`` over the connection that is kept for searches; False without one."""
        connection, self._kept = self._kept, None
        if connection is None:
            return False
        message = _metadata_request(topics)
        try:
            if connection.hung_up():
                raise ConnectionLost("the broker closed it")
            highest = min(_HIGHEST, message.max_version)
            version = connection.api_version(message.API_KEY, _LOWEST, highest, message.name)
            correlation = connection.begin(message, version)
        except (ClusterError, ConnectionLost):
            connection.close()
            return False
        self._search = _MetadataInFlight(
            connection, message, version, correlation, topics, self.generation, self._clock()
        )
        return True

    def _on_metadata(self, search: _MetadataInFlight) -> bool:
        """Process the response to ``search`` if it has arrived, and return whether it had.

        Does not block: a broker that hangs delays nobody.
        """
        connection = search.connection
        limit_ms = min(self.client.connect_timeout_ms, self.client.request_timeout_ms)
        try:
            if not connection.readable():
                if self._clock() - search.asked_at < limit_ms / 1000:
                    return False
                raise ConnectionLost(
                    f"{connection.host}:{connection.port}: no response to Metadata in time"
                )
            response = connection.finish(search.message, search.version, search.correlation)
        except ConnectionLost as error:
            self._search = None
            connection.close()
            for node, address in self._addresses.items():
                if address == (connection.host, connection.port):
                    self._back_off(node, search.asked_at)
            self.reachable = False
            self._failed(error)
            return False
        self._search = None
        self._on_response(connection)
        if search.generation != self.generation:
            return False  # metadata that arrived since may be newer
        self._take_in(response, search.topics)
        return True

    def any_connection(self) -> Connection:
        """An idle connection, or a new one to the first broker that responds.

        For single requests: `using` returns it to the idle ones; otherwise the caller closes it.
        Raises `ClusterError` when no broker responds.
        """
        for address in list(self._idle):
            idle = self._take(address)
            if idle is not None:
                return idle
        nodes = list(self._addresses.items())
        self._random.shuffle(nodes)
        # Brokers that failed a moment ago come last: each may cost a whole timeout.
        nodes.sort(key=lambda entry: entry[0] in self._backoff)
        bootstrap = [split_address(address) for address in self.client.bootstrap_servers]
        self._random.shuffle(bootstrap)
        failure: ClusterError | None = None
        tried: set[Address] = set()
        for node, address in [*nodes, *((None, address) for address in bootstrap)]:
            if address in tried:
                continue
            tried.add(address)
            began = self._clock()
            try:
                connection = self._connect(address)
            except ClusterError as error:
                failure = error
                if node is not None:
                    self._back_off(node, began)
                continue
            if node is not None and (node, 0) not in self._connections:
                self._backoff.pop(node, None)
            return connection
        raise failure or Unreachable(
            "no bootstrap server is configured.", where=f"cluster {self.client.alias}"
        )

    # -- connections -----------------------------------------------------------------------

    def connection(self, node: int, number: int = 0) -> Connection | None:
        """The pooled connection to a broker; connects if there is none.

        None while the broker is unknown, backs off or cannot be reached. ``number``: one of several
        connections to the same broker.
        """
        existing = self._connections.get((node, number))
        if existing is not None:
            return existing
        address = self._addresses.get(node)
        if address is None or self._clock() < self._backoff.get(node, (0.0, 0.0))[0]:
            return None
        began = self._clock()
        try:
            connection = self.connect(*address)
        except ClusterError as error:
            self._back_off(node, began)
            self._stale = True
            self._warn(node, f"{error}")
            return None
        self._connections[node, number] = connection
        self._backoff.pop(node, None)
        self._warned_at.pop(node, None)
        return connection

    def connect(self, host: str, port: int) -> Connection:
        """An idle or new connection, which the caller owns. Raises `ClusterError`."""
        idle = self._take((host, port))
        if idle is None:
            return self._connect((host, port))
        idle.socket.settimeout(self.client.request_timeout_ms / 1000)
        return idle

    def _connect(self, address: Address) -> Connection:
        return Connection(
            *address,
            self.client,
            send_buffer_bytes=self._buffers[0],
            receive_buffer_bytes=self._buffers[1],
        )

    # -- idle connections ------------------------------------------------------------------

    @contextmanager
    def using(self, connection: Connection) -> Iterator[None]:
        """Send requests over a connection that the caller owns; it is idle afterwards.

        No response may be outstanding then. After an error the connection is closed.
        """
        try:
            yield
        except BaseException:
            connection.close()
            raise
        self._keep(connection)

    def _keep(self, connection: Connection) -> None:
        address = connection.host, connection.port
        if address in self._idle:
            connection.close()
            return
        self._limit(connection)
        self._idle[address] = connection, self._clock()

    def _limit(self, connection: Connection) -> None:
        """Give the next response only as much time as a new connection's first one would have."""
        limit_ms = min(self.client.connect_timeout_ms, self.client.request_timeout_ms)
        connection.socket.settimeout(limit_ms / 1000)

    def _take(self, address: Address) -> Connection | None:
        """The idle connection to ``address``; None without one, or if its broker closed it."""
        self.close_idle()
        if address not in self._idle:
            return None
        connection, _ = self._idle.pop(address)
        if connection.hung_up():
            connection.close()
            return None
        return connection

    def close_idle(self, longer_s: float = _IDLE_S) -> None:
        """Close connections that were idle for ``longer_s``, so that brokers need not keep them."""
        if self._idle:
            before = self._clock() - longer_s
            for address, (connection, asked_at) in list(self._idle.items()):
                if asked_at <= before:
                    del self._idle[address]
                    connection.close()

    def _warn(self, node: int, text: str) -> None:
        """Log a failure of a broker, unless one was logged a moment ago."""
        now = self._clock()
        if now - self._warned_at.get(node, float("-inf")) >= _WARN_AGAIN_S:
            self._warned_at[node] = now
            log.warning("%s", text)

    def _back_off(self, node: int, began: float) -> None:
        """Do not connect to a broker for a while: an attempt that began at ``began`` failed."""
        now = self._clock()
        low = self.client.reconnect_backoff_ms / 1000
        high = self.client.reconnect_backoff_ms_max / 1000
        before_s = self._backoff.get(node, (0.0, 0.0))[1]
        delay_s = min(high, before_s * 2 if before_s else low)
        # An attempt that hangs delays the other brokers' partitions. So the pause is at least as
        # long as the attempt was.
        pause_s = max(delay_s * self._random.uniform(0.8, 1.2), now - began)
        self._backoff[node] = (now + pause_s, delay_s)

    def drop(self, connection: Connection) -> None:
        """Close and forget a broken connection; the broker is retried after a back-off."""
        connection.close()
        kept, search = self._kept, self._search
        if kept is not None and (kept.host, kept.port) == (connection.host, connection.port):
            self._kept = None
            kept.close()
        asked = None if search is None else search.connection
        if asked is not None and (asked.host, asked.port) == (connection.host, connection.port):
            self._search = None
            asked.close()
        idle, _ = self._idle.pop((connection.host, connection.port), (None, 0.0))
        if idle is not None:
            idle.close()
        now = self._clock()
        for key, known in list(self._connections.items()):
            if known is connection:
                del self._connections[key]
                # A broker that goes down breaks all its connections: this is one failure.
                if now >= self._backoff.get(key[0], (0.0, 0.0))[0]:
                    self._back_off(key[0], now)
        for group, known in list(self._coordinators.items()):
            if known is connection:
                del self._coordinators[group]
        self._stale = True

    def close(self) -> None:
        """Close every connection."""
        kept, self._kept = self._kept, None
        search, self._search = self._search, None
        asked = None if search is None else search.connection
        for connection in (*self._connections.values(), *self._coordinators.values(), kept, asked):
            if connection is not None:
                connection.close()
        for idle, _ in self._idle.values():
            idle.close()
        self._connections.clear()
        self._coordinators.clear()
        self._idle.clear()

    # -- requests to leaders ---------------------------------------------------------------

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, *, read_committed: bool
    ) -> dict[TopicPartition, int]:
        """Offsets for ``timestamp`` (ms; -2 earliest, -1 latest) from each partition's leader.

        Partitions are missing from the result if their leader is unknown, fails or has no such
        offset.
        """

        def query(connection: Connection, led: list[TopicPartition]) -> dict[TopicPartition, int]:
            return query_offsets(connection, led, timestamp, read_committed=read_committed)

        return self.query_leaders(partitions, query)

    def query_leaders(
        self,
        partitions: Iterable[TopicPartition],
        query: Callable[[Connection, list[TopicPartition]], dict[TopicPartition, T]],
    ) -> dict[TopicPartition, T]:
        """Call ``query`` with each leader and the partitions that it leads; merge the results.

        Partitions whose leader is unknown or does not respond are missing from the result.
        """
        by_node: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            leader = self.leaders.get(tp)
            if leader is not None:
                by_node.setdefault(leader.node, []).append(tp)
        found: dict[TopicPartition, T] = {}
        for node, led in by_node.items():
            address = self._addresses[node]
            idle = self._take(address)
            if idle is not None:
                # A broken idle connection says nothing about its broker: a new one is tried.
                with suppress(ConnectionLost), self.using(idle):
                    found |= query(idle, led)
                    self._warned_at.pop(node, None)
                    continue
            try:
                connection = self._connect(address)
            except ClusterError as error:
                self._warn(node, f"{error}")
                self._stale = True
                continue
            try:
                with self.using(connection):
                    found |= query(connection, led)
                self._warned_at.pop(node, None)
            except ConnectionLost as error:
                self._warn(node, f"offsets of cluster {self.client.alias}: {error}")
                self._stale = True
        return found


def _metadata_request(topics: Iterable[str]) -> Any:
    row = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(
        topics=[row(name=name) for name in sorted(topics)], allow_auto_topic_creation=False
    )
