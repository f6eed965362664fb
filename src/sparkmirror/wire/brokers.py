"""Who leads which partition, and one connection to each of those brokers.

Lives in executor workers next to the Fetch and Produce paths. Everything here is synchronous:
the caller decides when a refresh may cost a round trip.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka.protocol.metadata.metadata import MetadataRequest

from sparkmirror.errors import ClusterError, Unreachable
from sparkmirror.model import ClusterClient, TopicPartition
from sparkmirror.wire.asks import ask_offsets
from sparkmirror.wire.connection import Connection, ConnectionLost
from sparkmirror.wire.searches import Searches

__all__ = ["Brokers", "Leader", "split_address"]

T = TypeVar("T")

log = logging.getLogger(__name__)

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
        self.reachable = False
        self.cluster_id = ""
        self.topic_ids: dict[str, str] = {}
        """36-character UUIDs of the topics, as far as the brokers give them."""
        self.generation = 0
        """How many times metadata has come in."""
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, Connection] = {}
        self._coordinators: dict[str, Connection] = {}  # of groups; `Routes` finds them
        self._backoff: dict[int, tuple[float, float]] = {}
        self._buffers = (send_buffer_bytes, receive_buffer_bytes)
        self._clock = clock
        self._stale = True
        self._refreshed_at = float("-inf")  # everything
        self._asked_at = float("-inf")  # anything
        self._searches = Searches(client.retry_backoff_ms / 1000)
        self._kept: Connection | None = None  # for searches
        self._random = random.Random()  # noqa: S311  (spreads load, guards nothing)

    # -- metadata --------------------------------------------------------------------------

    def add_topics(self, topics: Iterable[str]) -> None:
        """Follow further topics from the next refresh on."""
        new = set(topics) - self.topics
        if new:
            self.topics |= new
            self._stale = True

    def mark_stale(self, tp: TopicPartition | None = None) -> None:
        """Ask for a refresh as soon as the back-off allows one.

        ``tp``: only about its topic. Of a partition that stays without a leader, or whose leader
        goes on saying that it is another one, that is asked for less and less often.
        """
        if tp is None:
            self._stale = True
        else:
            self._searches.want(tp, self.leaders.get(tp), self._clock())

    def refresh_if_due(self) -> bool:
        """Refresh when asked for (at most every retry back-off) or when the metadata is old.

        Returns whether fresh metadata came in. A cluster that cannot be reached is logged and
        tried again at the next call: whether to give up is the caller's decision.
        """
        now = self._clock()
        wanted: set[str] | None = None
        rested = (now - self._asked_at) * 1000 >= self.client.retry_backoff_ms
        old = (now - self._refreshed_at) * 1000 >= self.client.metadata_age_ms_max
        if not old and not (self._stale and rested):
            if not rested or now < self._searches.due:
                return False
            wanted = self._searches.topics(now)
        try:
            self.refresh(wanted)
        except (ClusterError, ConnectionLost) as error:
            log.warning("metadata of cluster %s: %s", self.client.alias, error)
            self._refreshed_at = self._asked_at = self._clock()
            self._stale = True
            return False
        return True

    def refresh(self, wanted: set[str] | None = None) -> None:
        """Fetch metadata now, of ``wanted`` topics or of all. Raises `ClusterError` when no broker
        answers.
        """
        topics = self.topics if wanted is None else wanted
        response = self._metadata(topics)
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
        self._searches.looked(topics, self.leaders, self._asked_at)
        if wanted is None:
            self._refreshed_at, self._stale = self._asked_at, False

    def _metadata(self, topics: Iterable[str]) -> Any:
        """The Metadata response for ``topics``; while leaders are looked for, over one connection
        that is kept: a new one costs each broker, and us, more than the question.
        """
        row = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(
            topics=[row(name=name) for name in sorted(topics)], allow_auto_topic_creation=False
        )
        self.reachable = False
        connection, self._kept = self._kept, None
        if connection is not None and connection.hung_up():
            connection.close()
            connection = None
        connection = connection or self.any_connection()
        try:
            response = connection.request(request, lowest=4, highest=12)
        except ConnectionLost as error:
            connection.close()
            raise Unreachable(
                f"the broker went away ({error}).", where=f"cluster {self.client.alias}"
            ) from error
        except ClusterError:
            connection.close()
            raise
        self.reachable = True
        if self._searches:
            # The next answer has no more time than a new connection's first one would have.
            limit_ms = min(self.client.connect_timeout_ms, self.client.request_timeout_ms)
            connection.socket.settimeout(limit_ms / 1000)
            self._kept = connection
        else:
            connection.close()
        return response

    def any_connection(self) -> Connection:
        """A new connection to whichever broker answers first; the caller closes it.

        Raises `ClusterError` when none does.
        """
        nodes = list(self._addresses.items())
        self._random.shuffle(nodes)
        # Brokers that did not answer a moment ago come last: each may cost a whole timeout.
        nodes.sort(key=lambda entry: entry[0] in self._backoff)
        bootstrap = [split_address(address) for address in self.client.bootstrap_servers]
        self._random.shuffle(bootstrap)
        failure: ClusterError | None = None
        tried: set[tuple[str, int]] = set()
        for node, address in [*nodes, *((None, address) for address in bootstrap)]:
            if address in tried:
                continue
            tried.add(address)
            began = self._clock()
            try:
                connection = Connection(*address, self.client)
            except ClusterError as error:
                failure = error
                if node is not None:
                    self._back_off(node, began)
                continue
            if node is not None and node not in self._connections:
                self._backoff.pop(node, None)
            return connection
        raise failure or Unreachable(
            "no bootstrap server is configured.", where=f"cluster {self.client.alias}"
        )

    # -- connections -----------------------------------------------------------------------

    def connection(self, node: int) -> Connection | None:
        """The pooled connection to a broker; None while it is unknown or backing off."""
        existing = self._connections.get(node)
        if existing is not None:
            return existing
        address = self._addresses.get(node)
        if address is None or self._clock() < self._backoff.get(node, (0.0, 0.0))[0]:
            return None
        began = self._clock()
        try:
            connection = Connection(
                *address,
                self.client,
                send_buffer_bytes=self._buffers[0],
                receive_buffer_bytes=self._buffers[1],
            )
        except ClusterError as error:
            self._back_off(node, began)
            self._stale = True
            log.warning("%s", error)
            return None
        self._connections[node] = connection
        self._backoff.pop(node, None)
        return connection

    def _back_off(self, node: int, began: float) -> None:
        """Leave a broker alone for a while after an attempt that began at ``began`` failed."""
        now = self._clock()
        low = self.client.reconnect_backoff_ms / 1000
        high = self.client.reconnect_backoff_ms_max / 1000
        before_s = self._backoff.get(node, (0.0, 0.0))[1]
        delay_s = min(high, before_s * 2 if before_s else low)
        # An attempt that hangs keeps the other brokers' partitions waiting: they get at least as
        # much time until the next one.
        pause_s = max(delay_s * self._random.uniform(0.8, 1.2), now - began)
        self._backoff[node] = (now + pause_s, delay_s)

    def drop(self, connection: Connection) -> None:
        """Forget a broken connection; the broker is tried again after a back-off."""
        connection.close()
        kept = self._kept
        if kept is not None and (kept.host, kept.port) == (connection.host, connection.port):
            self._kept = None
            kept.close()
        for node, known in list(self._connections.items()):
            if known is connection:
                del self._connections[node]
                self._back_off(node, self._clock())
        for group, known in list(self._coordinators.items()):
            if known is connection:
                del self._coordinators[group]
        self._stale = True

    def close(self) -> None:
        """Close every connection."""
        kept, self._kept = self._kept, None
        for connection in (*self._connections.values(), *self._coordinators.values(), kept):
            if connection is not None:
                connection.close()
        self._connections.clear()
        self._coordinators.clear()

    # -- questions to leaders --------------------------------------------------------------

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, *, read_committed: bool
    ) -> dict[TopicPartition, int]:
        """Offsets for ``timestamp`` (-2 earliest, -1 latest) from each partition's leader.

        Partitions whose leader cannot answer now are missing from the result.
        """

        def ask(connection: Connection, led: list[TopicPartition]) -> dict[TopicPartition, int]:
            return ask_offsets(connection, led, timestamp, read_committed=read_committed)

        return self.ask_leaders(partitions, ask)

    def ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[Connection, list[TopicPartition]], dict[TopicPartition, T]],
    ) -> dict[TopicPartition, T]:
        """What ``ask`` gets from each leader for the partitions that it leads.

        Partitions whose leader is unknown or does not answer are missing from the result.
        """
        by_node: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            leader = self.leaders.get(tp)
            if leader is not None:
                by_node.setdefault(leader.node, []).append(tp)
        found: dict[TopicPartition, T] = {}
        for node, led in by_node.items():
            try:
                connection = Connection(*self._addresses[node], self.client)
            except ClusterError as error:
                log.warning("%s", error)
                self._stale = True
                continue
            try:
                found |= ask(connection, led)
            except ConnectionLost as error:
                log.warning("offsets of cluster %s: %s", self.client.alias, error)
                self._stale = True
            finally:
                connection.close()
        return found
