"""Metadata requests of one client, and what their responses say: who leads, at which address.

A broker that hangs must not keep the owner from the others, and searches for leaders may last for
days. So nobody waits for the response, except for the first metadata (`MetadataRequests.request`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.metadata.metadata import MetadataRequest

from sparkmirror.errors import ClusterError, Unreachable
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.attempts import FirstConnection
from sparkmirror.wire.cluster.idle_connections import Address, IdleConnections, limit_wait
from sparkmirror.wire.net.connection import Connection, ConnectionLost

__all__ = [
    "Leader",
    "MetadataRefresh",
    "MetadataRequests",
    "MetadataSearch",
    "leader_of",
    "split_address",
]

_LOWEST, _HIGHEST = 4, 12  # versions of Metadata
# From 2.4 on; Java's clients believe the epochs from there on, too.
_SURE_EPOCHS_VERSION = 9


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as (host, port)."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class Leader:
    """The broker that leads a partition, and the leader epoch (-1 unknown).

    ``sure``: whether the epoch is the leader's own. Brokers before 2.4 do not pass on each change.
    """

    node: int
    epoch: int
    sure: bool = field(default=True, compare=False)

    @property
    def fencing(self) -> int:
        """The epoch for requests, which the leader refuses if its own is another one."""
        return self.epoch if self.sure else -1

    def outdates(self, other: Leader, brokers: Container[int]) -> bool:
        """Whether ``other`` led the partition before this one, which is one of ``brokers``.

        A broker that is cut off from its controller goes on naming the leaders that it knows.
        """
        return self.sure and 0 <= other.epoch < self.epoch and self.node in brokers


def leader_of(part: Any, *, sure: bool) -> Leader:
    """The leader in a partition's row of a response. ``sure``: as in `Leader`."""
    epoch = getattr(part, "leader_epoch", -1)
    return Leader(part.leader_id, -1 if epoch is None else epoch, sure)


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


@dataclass(slots=True)
class MetadataRefresh:
    """A refresh that nobody waits for, of ``topics``; ``whole``: these are all.

    ``opening``: the connection for it, unless one was kept. ``search``: the request, once sent.
    ``began``: monotonic seconds.
    """

    opening: FirstConnection | None
    topics: set[str]
    whole: bool
    generation: int
    began: float
    search: MetadataSearch | None = None

    @property
    def wanted(self) -> set[str] | None:
        """The topics; None for all."""
        return None if self.whole else self.topics


class MetadataRequests:
    """Sends the Metadata requests of one client.

    While leaders are searched for, one connection is kept for this: a new one costs both sides more
    than the request. ``opening`` opens one when none is kept. ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        client: ClusterClient,
        idle: IdleConnections,
        opening: Callable[[], FirstConnection],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.search: MetadataSearch | None = None
        """The request in flight."""
        self.refresh: MetadataRefresh | None = None
        """The refresh under way."""
        self.sure = True
        """Whether the newest response has the leaders' own epochs (`Leader`)."""
        self._client = client
        self._idle = idle
        self._opening = opening
        self._clock = clock
        self._kept: Connection | None = None

    def request(self, topics: Iterable[str], *, searching: bool) -> Any:
        """The Metadata response for ``topics``. ``searching``: keep the connection.

        Raises `ClusterError`.
        """
        request = _metadata_request(topics)
        connection = self._take_kept()
        if connection is None:
            connection = self._opening().connection()
        try:
            response = connection.request(request, lowest=_LOWEST, highest=_HIGHEST)
            self._note_version(_version(connection, request))
        except ConnectionLost as error:
            connection.close()
            raise self._lost(error) from error
        except ClusterError:
            connection.close()
            raise
        self._keep(connection, searching=searching)
        return response

    def _lost(self, error: ConnectionLost) -> Unreachable:
        return Unreachable(
            f"the connection was lost ({error}).", where=f"cluster {self._client.alias}"
        )

    def _take_kept(self) -> Connection | None:
        """The connection that is kept, if it may still be used."""
        connection, self._kept = self._kept, None
        if connection is not None and (connection.login_due or connection.hung_up()):
            connection.close()
            return None
        return connection

    def begin(self, topics: set[str], generation: int) -> bool:
        """Send a request as the `search`, over the connection that is kept; False without one."""
        connection = self._take_kept()
        if connection is None:
            return False
        try:
            self.search = self._sent(connection, topics, generation)
        except (ClusterError, ConnectionLost):
            return False
        return True

    def _sent(self, connection: Connection, topics: set[str], generation: int) -> MetadataSearch:
        """A request over ``connection``, which is closed after an error."""
        message = _metadata_request(topics)
        try:
            version = _version(connection, message)
            correlation = connection.begin_now(message, version)
        except (ClusterError, ConnectionLost):
            connection.close()
            raise
        return MetadataSearch(
            connection, message, version, correlation, topics, generation, self._clock()
        )

    def receive(self, search: MetadataSearch, *, searching: bool) -> Any | None:
        """The response to `search` if it has arrived. ``searching``: keep the connection.

        Does not block: a broker that hangs delays nobody. Raises `ConnectionLost`; then the search
        has ended.
        """
        try:
            response = self._response(search)
        except ConnectionLost:
            self.search = None
            raise
        if response is not None:
            self.search = None
            self._keep(search.connection, searching=searching)
        return response

    def _response(self, search: MetadataSearch) -> Any | None:
        """The response if it has arrived. `ConnectionLost` closes the connection."""
        connection = search.connection
        limit_ms = min(self._client.connect_timeout_ms, self._client.request_timeout_ms)
        try:
            response = connection.finish_now(search.message, search.version, search.correlation)
            if response is None and self._clock() - search.asked_at >= limit_ms / 1000:
                raise ConnectionLost(
                    f"{connection.host}:{connection.port}: no response to Metadata in time"
                )
        except ConnectionLost:
            connection.close()
            raise
        if response is not None:
            self._note_version(search.version)
        return response

    def _note_version(self, version: int) -> None:
        self.sure = version >= _SURE_EPOCHS_VERSION

    def begin_refresh(self, topics: set[str], generation: int, *, whole: bool) -> MetadataRefresh:
        """Begin the `refresh` of ``topics``; ``whole``: these are all."""
        refresh = MetadataRefresh(None, topics, whole, generation, self._clock())
        self.refresh = refresh
        kept = self._take_kept()
        if kept is not None:
            with suppress(ClusterError, ConnectionLost):
                refresh.search = self._sent(kept, topics, generation)
        if refresh.search is None:
            refresh.opening = self._opening()
        return refresh

    def receive_refresh(
        self, refresh: MetadataRefresh, wait_s: float, *, searching: bool
    ) -> Any | None:
        """The response to `refresh` if it arrives within ``wait_s``.

        ``searching``: as in `receive`. Raises `ClusterError`; then the refresh has ended.
        """
        until = time.monotonic() + wait_s
        response = None
        try:
            if refresh.search is None:
                connection = None if refresh.opening is None else refresh.opening.wait(wait_s)
                if connection is None:
                    return None
                refresh.search = self._sent(connection, refresh.topics, refresh.generation)
            left_s = until - time.monotonic()
            if left_s > 0:
                refresh.search.connection.readable(left_s)
            response = self._response(refresh.search)
        except ConnectionLost as error:
            self.refresh = None
            raise self._lost(error) from error
        except ClusterError:
            self.refresh = None
            raise
        if response is not None:
            self.refresh = None
            self._keep(refresh.search.connection, searching=searching)
        return response

    def _keep(self, connection: Connection, *, searching: bool) -> None:
        if searching and self._kept is None:
            limit_wait(connection, self._client)
            self._kept = connection
        else:
            self._idle.keep(connection)

    def drop(self, address: Address) -> None:
        """Close the connections to ``address``; what was requested over one of them ends."""
        kept, search, refresh = self._kept, self.search, self.refresh
        if kept is not None and (kept.host, kept.port) == address:
            self._kept = None
            kept.close()
        asked = None if search is None else search.connection
        if asked is not None and (asked.host, asked.port) == address:
            self.search = None
            asked.close()
        used = None if refresh is None or refresh.search is None else refresh.search.connection
        if used is not None and (used.host, used.port) == address:
            self.refresh = None
            used.close()

    def close(self) -> None:
        """Close the connections."""
        kept, self._kept = self._kept, None
        search, self.search = self.search, None
        refresh, self.refresh = self.refresh, None
        if refresh is not None and refresh.opening is not None:
            refresh.opening.abandon()
        sent = search, None if refresh is None else refresh.search
        for connection in (kept, *(None if one is None else one.connection for one in sent)):
            if connection is not None:
                connection.close()


def _version(connection: Connection, message: Any) -> int:
    """The version for a request over ``connection``. Raises `ClusterError`."""
    highest = min(_HIGHEST, message.max_version)
    return connection.api_version(message.API_KEY, _LOWEST, highest, message.name)


def _metadata_request(topics: Iterable[str]) -> Any:
    row = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(
        topics=[row(name=name) for name in sorted(topics)], allow_auto_topic_creation=False
    )
