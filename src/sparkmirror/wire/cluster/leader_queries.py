"""Single requests to the leaders of partitions, over connections that nobody else uses meanwhile.

A connection comes from the idle ones and returns to them. A new one is opened on a thread
(`attempts`), so that one who has little patience can use it at a later call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from sparkmirror.errors import ClusterError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.attempts import Attempt
from sparkmirror.wire.cluster.idle_connections import Address, IdleConnections
from sparkmirror.wire.net.connection import Connection, ConnectionLost

__all__ = ["SINGLE", "LeaderQueries"]

T = TypeVar("T")

# The number of a connection for single requests, which becomes an idle one. Those that help a
# channel (`wire.fetch.channels`) have negative numbers, too.
SINGLE = -(1 << 31)
# How long a response may take if other brokers' partitions wait for it.
_ANSWER_S = 1.0


class LeaderQueries:
    """Asks the brokers of one cluster, one after the other, while new connections are opened.

    ``attempts`` by (node id, number) is its owner's; those with the number `SINGLE` are made here,
    with ``attempt``. ``answered`` is called with a node that has responded, ``failed`` with one
    that has not, and the reason. ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        client: ClusterClient,
        idle: IdleConnections,
        attempts: dict[tuple[int, int], Attempt],
        attempt: Callable[[Address], Attempt],
        *,
        answered: Callable[[int], object],
        failed: Callable[[int, str], None],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._idle = idle
        self._attempts = attempts
        self._attempt = attempt
        self._answered = answered
        self._failed = failed
        self._clock = clock
        self._answer_s: dict[int, float] = {}  # of brokers that did not respond in that time

    def ask(
        self,
        by_node: Mapping[int, list[TopicPartition]],
        addresses: Mapping[int, Address],
        query: Callable[[Connection, list[TopicPartition]], dict[TopicPartition, T]],
        *,
        patience_s: float | None,
    ) -> dict[TopicPartition, T]:
        """Call ``query`` with each node and its partitions; merge the results.

        ``addresses`` has each of these nodes. ``patience_s``: see
        `cluster_connections.ClusterConnections.query_leaders`.
        """
        for node in by_node:
            if addresses[node] not in self._idle.addresses:
                self._begin(node, addresses[node])
        found: dict[TopicPartition, T] = {}
        try:
            for node, led in by_node.items():
                idle = self._idle.take(addresses[node])
                if idle is not None:
                    # A broken idle connection says nothing about its broker: a new one is tried.
                    with suppress(ConnectionLost), self._idle.using(idle):
                        found |= self._asked(node, idle, led, query, patience_s)
                        continue
                connection = self._new(node, addresses[node], patience_s)
                if connection is None:
                    continue
                try:
                    with self._idle.using(connection):
                        found |= self._asked(node, connection, led, query, patience_s)
                except ConnectionLost as error:
                    self._failed(node, f"offsets of cluster {self._client.alias}: {error}")
        finally:
            if patience_s is None:
                for node in by_node:
                    attempt = self._attempts.pop((node, SINGLE), None)
                    if attempt is not None:
                        attempt.abandon()
        return found

    def _asked(
        self,
        node: int,
        connection: Connection,
        led: list[TopicPartition],
        query: Callable[[Connection, list[TopicPartition]], dict[TopicPartition, T]],
        patience_s: float | None,
    ) -> dict[TopicPartition, T]:
        if patience_s is not None:
            limit_s = self._answer_s.get(node, _ANSWER_S)
            connection.socket.settimeout(limit_s)
            self._answer_s[node] = min(2 * limit_s, self._client.request_timeout_ms / 1000)
        found = query(connection, led)
        self._answer_s.pop(node, None)
        self._answered(node)
        return found

    def _begin(self, node: int, address: Address) -> Attempt:
        """Begin to open a connection for a single request, unless that has begun already."""
        attempt = self._attempts.get((node, SINGLE))
        if attempt is None or attempt.address != address:
            if attempt is not None:
                attempt.abandon()
            attempt = self._attempts[node, SINGLE] = self._attempt(address)
        return attempt

    def _new(self, node: int, address: Address, patience_s: float | None) -> Connection | None:
        """A new connection for a single request; None if it fails, or takes longer."""
        attempt = self._begin(node, address)
        left_s = None
        if patience_s is not None:
            left_s = max(0.0, attempt.began + patience_s - self._clock())
        attempt.wait(left_s)
        if not attempt.over:
            return None
        del self._attempts[node, SINGLE]
        try:
            return attempt.take()
        except ClusterError as error:
            self._failed(node, f"{error}")
            return None
