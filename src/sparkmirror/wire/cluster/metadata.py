"""Metadata requests of one client, and what their responses say: who leads, at which address.

Searches for leaders may last for days, so nobody waits for their responses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kafka.protocol.metadata.metadata import MetadataRequest

from sparkmirror.errors import ClusterError, Unreachable
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.idle_connections import Address, IdleConnections, limit_wait
from sparkmirror.wire.net.connection import Connection, ConnectionLost

__all__ = ["Leader", "MetadataRequests", "MetadataSearch", "split_address"]

_LOWEST, _HIGHEST = 4, 12  # versions of Metadata


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
class MetadataSearch:
    """A Metadata request in flight, for ``topics``.

    ``generation``: that of the metadata when it was sent. ``asked_at``: monotonic seconds.
    """

    connection: Connection
    message: Any
    version: int
    correlation: int
    topics: set[str]
    generation: int
    asked_at: float


class MetadataRequests:
    """Sends the Metadata requests of one client.

    While leaders are searched for, one connection is kept for this: a new one costs both sides more
    than the request. ``any_connection`` opens one when none is kept. ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        client: ClusterClient,
        idle: IdleConnections,
        any_connection: Callable[[], Connection],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.search: MetadataSearch | None = None
        """The request in flight."""
        self._client = client
        self._idle = idle
        self._any_connection = any_connection
        self._clock = clock
        self._kept: Connection | None = None

    def request(self, topics: Iterable[str], *, searching: bool) -> Any:
        """The Metadata response for ``topics``. ``searching``: keep the connection.

        Raises `ClusterError`.
        """
        request = _metadata_request(topics)
        connection, self._kept = self._kept, None
        if connection is not None and connection.hung_up():
            connection.close()
            connection = None
        connection = connection or self._any_connection()
        try:
            response = connection.request(request, lowest=_LOWEST, highest=_HIGHEST)
        except ConnectionLost as error:
            connection.close()
            raise Unreachable(
                f"the connection was lost ({error}).", where=f"cluster {self._client.alias}"
            ) from error
        except ClusterError:
            connection.close()
            raise
        self._keep(connection, searching=searching)
        return response

    def begin(self, topics: set[str], generation: int) -> bool:
        """Send a request as the `search`, over the connection that is kept; False without one."""
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
        self.search = MetadataSearch(
            connection, message, version, correlation, topics, generation, self._clock()
        )
        return True

    def receive(self, search: MetadataSearch, *, searching: bool) -> Any | None:
        """The response to `search` if it has arrived. ``searching``: keep the connection.

        Does not block: a broker that hangs delays nobody. Raises `ConnectionLost`; then the search
        has ended.
        """
        connection = search.connection
        limit_ms = min(self._client.connect_timeout_ms, self._client.request_timeout_ms)
        try:
            if not connection.readable():
                if self._clock() - search.asked_at < limit_ms / 1000:
                    return None
                raise ConnectionLost(
                    f"{connection.host}:{connection.port}: no response to Metadata in time"
                )
            response = connection.finish(search.message, search.version, search.correlation)
        except ConnectionLost:
            self.search = None
            connection.close()
            raise
        self.search = None
        self._keep(connection, searching=searching)
        return response

    def _keep(self, connection: Connection, *, searching: bool) -> None:
        if searching and self._kept is None:
            limit_wait(connection, self._client)
            self._kept = connection
        else:
            self._idle.keep(connection)

    def drop(self, address: Address) -> None:
        """Close the connections to ``address``; a search over one of them ends."""
        kept, search = self._kept, self.search
        if kept is not None and (kept.host, kept.port) == address:
            self._kept = None
            kept.close()
        asked = None if search is None else search.connection
        if asked is not None and (asked.host, asked.port) == address:
            self.search = None
            asked.close()

    def close(self) -> None:
        """Close the connections."""
        kept, self._kept = self._kept, None
        search, self.search = self.search, None
        for connection in (kept, None if search is None else search.connection):
            if connection is not None:
                connection.close()


def _metadata_request(topics: Iterable[str]) -> Any:
    row = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(
        topics=[row(name=name) for name in sorted(topics)], allow_auto_topic_creation=False
    )
