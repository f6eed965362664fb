"""Idle connections of one client: kept for a moment, at most one per address, for single requests.

A request over an idle connection saves the handshakes of a new one. Brokers need not keep it for
long, and a broken one says nothing about its broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkmirror.settings import ClusterClient
from sparkmirror.wire.net.connection import Connection

Address = tuple[str, int]

# Longer than the pauses between two requests to one broker during a start over a long link.
_IDLE_S = 5.0


class IdleConnections:
    """The idle connections of one client. ``clock``: monotonic seconds. One owner."""

    def __init__(
        self, client: ClusterClient, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._clock = clock
        self._idle: dict[Address, tuple[Connection, float]] = {}  # with the time of the last use

    @property
    def addresses(self) -> list[Address]:
        """Of brokers to which there is an idle connection."""
        return list(self._idle)

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
        self.keep(connection)

    def keep(self, connection: Connection) -> None:
        """Take over ``connection``, on which no response is outstanding."""
        address = connection.host, connection.port
        if address in self._idle:
            connection.close()
            return
        limit_wait(connection, self._client)
        self._idle[address] = connection, self._clock()

    def take(self, address: Address) -> Connection | None:
        """The idle connection to ``address``; None without one, or if its broker closed it.

        Also None if it would have to log in again: a new one does that on its way.
        """
        self.close_old()
        if address not in self._idle:
            return None
        connection, _ = self._idle.pop(address)
        if connection.login_due or connection.hung_up():
            connection.close()
            return None
        return connection

    def drop(self, address: Address) -> None:
        """Close the connection to ``address``, if there is one."""
        connection, _ = self._idle.pop(address, (None, 0.0))
        if connection is not None:
            connection.close()

    def close_old(self, longer_s: float = _IDLE_S) -> None:
        """Close connections that were idle for ``longer_s``, so that brokers need not keep them."""
        if self._idle:
            before = self._clock() - longer_s
            for address, (connection, asked_at) in list(self._idle.items()):
                if asked_at <= before:
                    del self._idle[address]
                    connection.close()

    def close(self) -> None:
        """Close all of them."""
        for connection, _ in self._idle.values():
            connection.close()
        self._idle.clear()


def limit_wait(connection: Connection, client: ClusterClient) -> None:
    """Give the next response only as much time as a new connection's first one would have."""
    limit_ms = min(client.connect_timeout_ms, client.request_timeout_ms)
    connection.socket.settimeout(limit_ms / 1000)
