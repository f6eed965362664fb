"""The connections of one client to the brokers of a cluster, and who leads its partitions.

The Fetch and Produce paths use it in the workers. The caller decides when a refresh may cost a
round trip. Only the first metadata is waited for (`metadata`). Brokers are connected on threads
(`attempts`), so one that hangs does not delay the others. `leader_queries` has the single requests
to leaders.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sparkmirror.errors import ClusterError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.attempts import Attempt, FirstConnection
from sparkmirror.wire.cluster.broker_backoff import BrokerBackoff
from sparkmirror.wire.cluster.idle_connections import Address, IdleConnections
from sparkmirror.wire.cluster.leader_queries import SINGLE, LeaderQueries
from sparkmirror.wire.cluster.log_queries import query_offsets
from sparkmirror.wire.cluster.metadata import (
    Leader,
    MetadataRefresh,
    MetadataRequests,
    MetadataSearch,
    leader_of,
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
# How long a connection or metadata is waited for. A near broker responds in this time.
_AT_ONCE_S = 0.05
# How often attempts are looked at: the shorter they have lasted, the sooner.
_LOOK_SHARE, _LOOK_S_MIN, _LOOK_S_MAX = 0.25, 0.01, 0.25
# How long the leader in older metadata is not believed while the known one does not lead any more.
_OLDER_S = 5.0
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
        self._forgotten: dict[TopicPartition, Leader] = {}
        self._older_since: dict[TopicPartition, float] = {}
        self._older_believed: set[TopicPartition] = set()
        self.topic_errors: dict[str, int] = {}
        """Error codes of topics, from the newest metadata of each."""
        self.reachable = False
        self.cluster_id = ""
        self.topic_ids: dict[str, str] = {}
        """36-character UUIDs of the topics, if the brokers return them."""
        self.generation = 0
        """Grows with each metadata response, and when leaders are forgotten."""
        self.idle = IdleConnections(client, clock=clock)
        """For single requests. Fetch and Produce take them over, too."""
        self._addresses: dict[int, Address] = {}
        self._connections: dict[tuple[int, int], Connection] = {}  # by node id and number
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._ended = threading.Condition()
        self._overtaken: set[Address] = set()  # others responded sooner
        self._backoff = BrokerBackoff(client, clock=clock)
        self._buffers = (send_buffer_bytes, receive_buffer_bytes)
        self._clock = clock
        self._stale = True
        self._refreshed_at = float("-inf")  # last metadata of all topics
        self._asked_at = float("-inf")  # last metadata of any topic
        self._searches = Searches(client.retry_backoff_ms / 1000)
        self._requests = MetadataRequests(client, self.idle, self.opening, clock=clock)
        self._warned_at: dict[int, float] = {}
        self._queries = LeaderQueries(
            *(client, self.idle, self._attempts, self._attempt),
            answered=lambda node: self._warned_at.pop(node, None),
            failed=self._not_queried,
            clock=clock,
        )
        self._random = random.Random()  # noqa: S311  (spreads load, guards nothing)

    # -- metadata --------------------------------------------------------------------------

    def partitions_of(self, topic: str) -> int:
        """How many partitions ``topic`` has, by the newest metadata; 0 if that is not known."""
        return sum(tp.topic == topic for known in (self.leaders, self.leaderless) for tp in known)

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
            if self._clock() - self._older_since.get(tp, math.inf) >= _OLDER_S:
                self._older_believed.add(tp)
            self._searches.want(tp, self.leaders.get(tp), self._clock())

    def doubt(self, tp: TopicPartition) -> None:
        """Believe the next metadata about ``tp``: its leader does not know the epoch we know."""
        self._older_believed.add(tp)
        self.mark_stale(tp)

    def forget_leaders(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Know no leader of ``partitions``, or of all, before there is new metadata of them.

        What was requested before does not count as new, and what is older than the forgotten
        leaders is not believed either. `mark_stale` requests the next one.
        """
        gone = list(self.leaders if partitions is None else partitions)
        self._forgotten |= {tp: self.leaders.pop(tp) for tp in gone if tp in self.leaders}
        if self.generation:  # before the first metadata there is nothing to replace
            self.generation += 1

    def refresh_if_due(self) -> bool:
        """Refresh if requested (at most once per retry back-off), or if the metadata is old.

        Returns whether fresh metadata arrived. Only the first metadata is waited for; later on,
        the response of a broker that is far, or hangs, is taken in by a later call. An unreachable
        cluster is logged and retried at a later call; the caller decides when to give up.
        """
        self.idle.close_old()
        if self._attempts:
            self._take_over_ended()
        search = self._requests.search
        if search is not None and self._receive(search):
            return True
        if self._requests.refresh is not None:
            return self._receive_refresh(self._requests.refresh, 0.0)
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
        if not self.generation:
            try:
                self.refresh(wanted)
            except (ClusterError, ConnectionLost) as error:
                self._failed(error)
                return False
            return True
        self._stale = self._stale and wanted is not None
        topics = set(self.topics) if wanted is None else wanted
        refresh = self._requests.begin_refresh(topics, self.generation, whole=wanted is None)
        return self._receive_refresh(refresh, _AT_ONCE_S)

    def _receive_refresh(self, refresh: MetadataRefresh, wait_s: float) -> bool:
        """`_receive` for a refresh, which is waited for ``wait_s`` seconds."""
        try:
            response = self._requests.receive_refresh(
                refresh, wait_s, searching=bool(self._searches)
            )
        except ClusterError as error:
            self._not_answered(refresh.search, error)
            return False
        if refresh.search is None:
            lasted_ms = (self._clock() - refresh.began) * 1000
            if lasted_ms >= self.client.connect_timeout_ms:
                # It fails only when all servers were tried, one each half second: many take
                # longer than a partition whose leader cannot be reached may wait.
                self.reachable = False
        return self._arrived(
            response, refresh.generation, None if refresh.whole else refresh.topics
        )

    def _not_answered(self, search: MetadataSearch | None, error: Exception) -> None:
        if search is not None:
            limit_ms = min(self.client.connect_timeout_ms, self.client.request_timeout_ms)
            # Time in which nobody looked, because the flow was paused, is not the broker's.
            began = max(search.asked_at, self._clock() - limit_ms / 1000)
            for node, address in self._addresses.items():
                if address == (search.connection.host, search.connection.port):
                    self._backoff.failed(node, began)
        self.reachable = False
        self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._warn(_METADATA, f"metadata of cluster {self.client.alias}: {error}")
        self._refreshed_at = self._asked_at = self._clock()
        self._stale = True

    def refresh(self, wanted: set[str] | None = None) -> None:
        """Request metadata now, of ``wanted`` topics or of all, and wait for it.

        Raises `ClusterError` when no broker responds.
        """
        self.reachable = False
        response = self._requests.request(
            self.topics if wanted is None else wanted, searching=bool(self._searches)
        )
        self._note_reachable()
        if wanted is None:
            self._stale = False
        self._take_in(response, wanted)

    def _note_reachable(self) -> None:
        self.reachable = True
        self._warned_at.pop(_METADATA, None)

    def _receive(self, search: MetadataSearch) -> bool:
        """Process the response to ``search`` if it has arrived, and return whether it had."""
        try:
            response = self._requests.receive(search, searching=bool(self._searches))
        except ConnectionLost as error:
            self._not_answered(search, error)
            return False
        return self._arrived(response, search.generation, search.topics)

    def _arrived(self, response: Any | None, generation: int, wanted: set[str] | None) -> bool:
        if response is None:
            return False
        self._note_reachable()
        if generation != self.generation:
            self._stale = self._stale or wanted is None
            return False  # metadata that arrived since may be newer
        self._take_in(response, wanted)
        return True

    def _take_in(self, response: Any, wanted: set[str] | None) -> None:
        topics = self.topics if wanted is None else wanted
        ids = {name: self.topic_ids.get(name, "") for name in topics}
        before = self._forgotten | self.leaders
        self._forgotten = {tp: one for tp, one in self._forgotten.items() if tp.topic not in topics}
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
                found, known = leader_of(part, sure=self._requests.sure), before.get(tp)
                same = topic_id not in ("", _NO_TOPIC_ID) and ids.get(topic.name) == topic_id
                older = known is not None and same and known.outdates(found, self._addresses)
                if known is not None and older and tp not in self._older_believed:
                    self.leaders[tp] = known  # the broker that says this lags behind
                    self._older_since.setdefault(tp, self._clock())
                    continue
                self._older_since.pop(tp, None)
                self._older_believed.discard(tp)
                if found.node >= 0 and found.node in self._addresses:
                    self.leaders[tp] = found
                else:
                    self.leaderless[tp] = part.error_code or 5
        self.generation += 1
        self._asked_at = self._clock()
        self._searches.on_metadata(topics, self.leaders, self._asked_at)
        if wanted is None:
            self._refreshed_at = self._asked_at
        elif any(one.node not in self._addresses for one in self.leaders.values()):
            self._stale = True  # brokers that lead other topics have gone

    def any_connection(self) -> Connection:
        """An idle connection, or a new one to the first broker that responds.

        For single requests: ``idle.using`` returns it to the idle ones; otherwise the caller closes
        it. Raises `ClusterError` when no broker responds.
        """
        return self.opening().connection()

    def opening(self, address: Address | None = None) -> FirstConnection:
        """`any_connection`, or that to ``address``, for those who do not wait for it."""
        wanted = self.idle.addresses if address is None else [address]
        idle = next((one for one in map(self.idle.take, wanted) if one is not None), None)
        servers = {} if address is None else {address: _METADATA}
        if address is None:
            known = self._in_order((one, node) for node, one in self._addresses.items())
            bootstrap = map(split_address, self.client.bootstrap_servers)
            for one, node in known + self._in_order((each, _METADATA) for each in bootstrap):
                servers.setdefault(one, node)
        return FirstConnection(
            *(self.client.alias, servers.items(), self._attempt, self._ended),
            failed=self._failed_to_connect, opened=self._leave, ready=idle,
        )  # fmt: skip

    def _in_order(self, servers: Iterable[tuple[Address, int]]) -> list[tuple[Address, int]]:
        """In a random order; last those that failed or were slow: they may cost a timeout."""
        found = list(servers)
        self._random.shuffle(found)
        found.sort(key=lambda one: one[1] in self._backoff or one[0] in self._overtaken)
        return found

    def _leave(self, connected: Connection, node: int, running: list[Attempt]) -> None:
        """Abandon attempts that ``connected`` has overtaken."""
        self._overtaken.discard((connected.host, connected.port))
        for attempt in running:
            self._overtaken.add(attempt.address)
            attempt.abandon()
        if (node, 0) not in self._connections:
            self._backoff.succeeded(node)

    # -- connections -----------------------------------------------------------------------

    def connection(
        self, node: int, number: int = 0, *, wait_s: float = _AT_ONCE_S
    ) -> Connection | None:
        """The pooled connection to a broker; connects if there is none.

        None while the broker is unknown, backs off, cannot be reached, or is `connecting`: a later
        call returns the connection then. ``number``: one of several connections to the same broker.
        ``wait_s``: how long a new one is waited for.
        """
        key = node, number
        existing = self._connections.get(key)
        if existing is not None:
            return existing
        address = self._addresses.get(node)
        attempt = self._attempts.get(key)
        if attempt is not None and attempt.address != address:
            self._attempts.pop(key).abandon()
            attempt = None
        if attempt is None:
            if address is None or self._backoff.lasts(node):
                return None
            idle = self.idle.take(address)
            if idle is not None:
                idle.socket.settimeout(self.client.request_timeout_ms / 1000)
                return self._pooled(key, idle)
            attempt = self._attempts[key] = self._attempt(address)
            attempt.wait(wait_s)
        return self._take_over(key, attempt) if attempt.over else None

    def connecting(self, node: int, number: int = 0) -> bool:
        """Whether an attempt to open that `connection` is under way."""
        return (node, number) in self._attempts

    @property
    def look_again_s(self) -> float:
        """Seconds until `connection` and `refresh_if_due` should be called again.

        Infinite if nothing is connecting, and no metadata is refreshed.
        """
        refresh = self._requests.refresh
        if refresh is None and not self._attempts:
            return math.inf
        began = [one.began for one in self._attempts.values()]
        lasted_s = self._clock() - max(began if refresh is None else [*began, refresh.began])
        return min(_LOOK_S_MAX, max(_LOOK_S_MIN, lasted_s * _LOOK_SHARE))

    def _attempt(self, address: Address) -> Attempt:
        return Attempt(address, self._connect, self._ended, self._clock())

    def _take_over_ended(self) -> None:
        """Take over the connections of attempts that have ended; log those that failed."""
        for key, attempt in list(self._attempts.items()):
            if attempt.over:
                self._take_over(key, attempt)

    def _take_over(self, key: tuple[int, int], attempt: Attempt) -> Connection | None:
        """The connection of an attempt that is over; None if it failed, or is for `idle`."""
        node, number = key
        del self._attempts[key]
        try:
            connection = attempt.take()
        except ClusterError as error:
            if number != SINGLE:
                self._failed_to_connect(node, attempt)
            self._stale = True
            self._warn(node, f"{error}")
            return None
        if connection is None:
            return None
        if number == SINGLE:
            self.idle.keep(connection)
            return None
        return self._pooled(key, connection)

    def _failed_to_connect(self, node: int, attempt: Attempt) -> None:
        # It may have ended long before somebody looked.
        if node != _METADATA:
            self._backoff.failed(node, self._clock() - attempt.lasted_s)

    def _pooled(self, key: tuple[int, int], connection: Connection) -> Connection:
        self._connections[key] = connection
        self._overtaken.discard((connection.host, connection.port))
        self._backoff.succeeded(key[0])
        self._warned_at.pop(key[0], None)
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
        for attempt in self._attempts.values():
            attempt.abandon()
        self._attempts.clear()
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

        Partitions are missing from the result if their leader is unknown or fails. -1: no record
        is as late as ``timestamp``.
        """

        def query(connection: Connection, led: list[TopicPartition]) -> dict[TopicPartition, int]:
            return query_offsets(connection, led, timestamp, read_committed=read_committed)

        return self.query_leaders(partitions, query)

    def query_leaders(
        self,
        partitions: Iterable[TopicPartition],
        query: Callable[[Connection, list[TopicPartition]], dict[TopicPartition, T]],
        *,
        patience_s: float | None = None,
    ) -> dict[TopicPartition, T]:
        """Call ``query`` with each leader and the partitions that it leads; merge the results.

        Partitions whose leader is unknown or does not respond are missing from the result.
        ``query`` is called on several threads. ``patience_s``: how long a new connection may take;
        it is used by a later call then. A response may take a second, and twice as long after each
        one that did not come. None: both may take as long as the client's settings say.
        """
        by_node: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            leader = self.leaders.get(tp)
            if leader is not None and leader.node in self._addresses:
                by_node.setdefault(leader.node, []).append(tp)
        return self._queries.ask(by_node, self._addresses, query, patience_s=patience_s)

    def _not_queried(self, node: int, text: str) -> None:
        self._warn(node, text)
        self._stale = True
