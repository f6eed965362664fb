"""Single requests to the leaders of partitions, over connections that nobody else uses meanwhile.

A connection comes from the idle ones and returns to them. A new one is opened on a thread
(`attempts`), so that one who has little patience can use it at a later call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sparkmirror.errors import ClusterError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.side_by_side import of_each
from sparkmirror.wire.cluster.attempts import Attempt
from sparkmirror.wire.cluster.idle_connections import Address, IdleConnections
from sparkmirror.wire.net.connection import Connection, ConnectionLost

__all__ = ["SINGLE", "LeaderQueries"]

T = TypeVar("T")
Query = Callable[[Connection, list[TopicPartition]], dict[TopicPartition, T]]

# The number of a connection for single requests, which becomes an idle one. Those that help a
# channel (`wire.fetch.channels`) have negative numbers, too.
SINGLE = -(1 << 31)
# How long a response may take if other brokers' partitions wait for it.
_ANSWER_S = 1.0


class LeaderQueries:
    """Asks the brokers of one cluster, side by side.

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
        query: Query[T],
        *,
        patience_s: float | None,
    ) -> dict[TopicPartition, T]:
        """Call ``query`` with each node and its partitions; merge the results.

        ``query`` is called on several threads. ``addresses`` has each of these nodes.
        ``patience_s``: see `cluster_connections.ClusterConnections.query_leaders`.
        """
        found: dict[TopicPartition, T] = {}
        try:
            idle = {node: self._idle.take(addresses[node]) for node in by_node}
            asked = {node: one for node, one in idle.items() if one is not None}
            self._add_new(
                asked, [node for node in by_node if node not in asked], addresses, patience_s
            )
            lost = self._ask_each(asked, by_node, query, patience_s, found)
            # A broken idle connection says nothing about its broker: a new one is tried.
            again: dict[int, Connection] = {}
            self._add_new(
                again, [node for node in lost if idle[node] is not None], addresses, patience_s
            )
            lost = {node: lost[node] for node in lost if idle[node] is None}
            lost |= self._ask_each(again, by_node, query, patience_s, found)
            for node, error in lost.items():
                self._failed(node, f"offsets of cluster {self._client.alias}: {error}")
        finally:
            if patience_s is None:
                for node in by_node:
                    attempt = self._attempts.pop((node, SINGLE), None)
                    if attempt is not None:
                        attempt.abandon()
        return found

    def _add_new(
        self,
        connections: dict[int, Connection],
        nodes: Sequence[int],
        addresses: Mapping[int, Address],
        patience_s: float | None,
    ) -> None:
        """Add new connections to those of ``nodes`` that can be connected to in time."""
        try:
            for node in nodes:  # side by side
                self._begin(node, addresses[node])
            for node in nodes:
                connection = self._new(node, addresses[node], patience_s)
                if connection is not None:
                    connections[node] = connection
        except BaseException:
            for connection in connections.values():
                connection.close()
            raise

    def _ask_each(
        self,
        connections: Mapping[int, Connection],
        by_node: Mapping[int, list[TopicPartition]],
        query: Query[T],
        patience_s: float | None,
        found: dict[TopicPartition, T],
    ) -> dict[int, ConnectionLost]:
        """Ask all of ``connections``, by node, and add the results to ``found``; who was lost.

        The connections become idle, or are closed.
        """

        def ask(node: int) -> dict[TopicPartition, T] | Exception:
            connection = connections[node]
            try:
                if patience_s is not None:
                    connection.socket.settimeout(self._answer_s.get(node, _ANSWER_S))
                return query(connection, by_node[node])
            except Exception as error:
                return error

        try:
            answers = of_each(ask, connections)
        except BaseException:
            for connection in connections.values():
                connection.close()
            raise
        lost: dict[int, ConnectionLost] = {}
        other: Exception | None = None
        for (node, connection), answer in zip(connections.items(), answers, strict=True):
            if not isinstance(answer, Exception):
                self._idle.keep(connection)
                self._answer_s.pop(node, None)
                self._answered(node)
                found |= answer
                continue
            connection.close()
            if not isinstance(answer, ConnectionLost):
                other = other or answer
                continue
            lost[node] = answer
            if patience_s is not None:
                longer_s = 2 * self._answer_s.get(node, _ANSWER_S)
                self._answer_s[node] = min(longer_s, self._client.request_timeout_ms / 1000)
        if other is not None:
            raise other
        return lost

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
