"""The connections of one client to the brokers of a cluster, and who leads its partitions.

The Fetch and Produce paths use it in the workers. Everything is synchronous, and the caller decides
when a refresh may cost a round trip. Only the responses to searches for leaders are not waited for
(`metadata`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from sparkmirror.errors import ClusterError, Unreachable
from sparkmirror.model import ClusterClient, TopicPartition
from sparkmirror.wire.cluster.broker_backoff import BrokerBackoff
from sparkmirror.wire.cluster.idle_connections import Address, IdleConnections
from sparkmirror.wire.cluster.log_queries import query_offsets
from sparkmirror.wire.cluster.metadata import (
    Leader,
    MetadataRequests,
    MetadataSearch,
    split_address,
)
from sparkmirror.wire.cluster.searches import Searches
from sparkmirror.wire.net.connection import Connection, ConnectionLost

__all__ = ["ClusterConnections"]

T = TypeVar("T")

log = logging.getLogger(__name__)

# An unavailable cluster is retried several times a second: not every failure is logged.
_WARN_AGAIN_S = 10.0
_METADATA = -1  # stands for no broker
_NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"


class ClusterConnections:
    """Connections to the brokers of one cluster, and the metadata of a set of topics.

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
        self.idle = IdleConnections(client, clock=clock)
        """For single requests. Fetch and Produce take them over, too."""
        self._addresses: dict[int, Address] = {}
        self._connections: dict[tuple[int, int], Connection] = {}  # by node id and number
        self._backoff = BrokerBackoff(client, clock=clock)
        self._buffers = (send_buffer_bytes, receive_buffer_bytes)
        self._clock = clock
        self._stale = True
        self._refreshed_at = float("-inf")  # last metadata of all topics
        self._asked_at = float("-inf")  # last metadata of any topic
        self._searches = Searches(client.retry_backoff_ms / 1000)
        self._requests = MetadataRequests(client, self.idle, self.any_connection, clock=clock)
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
        self.idle.close_old()
        search = self._requests.search
        if search is not None and self._receive(search):
            return True
        now = self._clock()
        wanted: set[str] | None = None
        rested = (now - self._asked_at) * 1000 >= self.client.retry_backoff_ms
        old = (now - self._refreshed_at) * 1000 >= self.client.metadata_age_ms_max
        if not old and not (self._stale and rested):
            if not rested or now < self._searches.due or self._requests.search is not None:
                return False
            wanted = self._searches.topics(now)
            if self._requests.begin(wanted, self.generation):
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
        self.reachable = False
        response = self._requests.request(
            self.topics if wanted is None else wanted, searching=bool(self._searches)
        )
        self._note_reachable()
        self._take_in(response, wanted)

    def _note_reachable(self) -> None:
        self.reachable = True
        self._warned_at.pop(_METADATA, None)

    def _receive(self, search: MetadataSearch) -> bool:
        """Process the response to ``search`` if it has arrived, and return whether it had."""
        try:
            response = self._requests.receive(search, searching=bool(self._searches))
        except ConnectionLost as error:
            for node, address in self._addresses.items():
                if address == (search.connection.host, search.connection.port):
                    self._backoff.failed(node, search.asked_at)
            self.reachable = False
            self._failed(error)
            return False
        if response is None:
            return False
        self._note_reachable()
        if search.generation != self.generation:
            return False  # metadata that arrived since may be newer
        self._take_in(response, search.topics)
        return True

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

    def any_connection(self) -> Connection:
        """An idle connection, or a new one to the first broker that responds.

        For single requests: ``idle.using`` returns it to the idle ones; otherwise the caller closes
        it. Raises `ClusterError` when no broker responds.
        """
        for address in self.idle.addresses:
            idle = self.idle.take(address)
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
                    self._backoff.failed(node, began)
                continue
            if node is not None and (node, 0) not in self._connections:
                self._backoff.succeeded(node)
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
        if address is None or self._backoff.lasts(node):
            return None
        began = self._clock()
        try:
            connection = self.connect(*address)
        except ClusterError as error:
            self._backoff.failed(node, began)
            self._stale = True
            self._warn(node, f"{error}")
            return None
        self._connections[node, number] = connection
        self._backoff.succeeded(node)
        self._warned_at.pop(node, None)
        return connection

    def connect(self, host: str, port: int) -> Connection:
        """An idle or new connection, which the caller owns. Raises `ClusterError`."""
        idle = self.idle.take((host, port))
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

    def _warn(self, node: int, text: str) -> None:
        """Log a failure of a broker, unless one was logged a moment ago."""
        now = self._clock()
        if now - self._warned_at.get(node, float("-inf")) >= _WARN_AGAIN_S:
            self._warned_at[node] = now
            log.warning("%s", text)

    def drop(self, connection: Connection) -> None:
        """Close and forget a broken connection; the broker is retried after a back-off."""
        connection.close()
        address = connection.host, connection.port
        self._requests.drop(address)
        self.idle.drop(address)
        now = self._clock()
        for key, known in list(self._connections.items()):
            if known is connection:
                del self._connections[key]
                # A broker that goes down breaks all its connections: this is one failure.
                if not self._backoff.lasts(key[0]):
                    self._backoff.failed(key[0], now)
        self._stale = True

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._requests.close()
        self.idle.close()

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
            idle = self.idle.take(address)
            if idle is not None:
                # A broken idle connection says nothing about its broker: a new one is tried.
                with suppress(ConnectionLost), self.idle.using(idle):
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
                with self.idle.using(connection):
                    found |= query(connection, led)
                self._warned_at.pop(node, None)
            except ConnectionLost as error:
                self._warn(node, f"offsets of cluster {self.client.alias}: {error}")
                self._stale = True
        return found
