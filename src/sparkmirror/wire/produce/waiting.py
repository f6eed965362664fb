"""Requests and connections that are waited for while other work is done, in one thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from sparkmirror.wire.cluster.attempts import FirstConnection
from sparkmirror.wire.net.connection import Connection, ConnectionLost

__all__ = ["connected", "request"]

# How often what else there is to do is done.
_LOOK_S = 0.2


def connected(opening: FirstConnection, meanwhile: Callable[[], None]) -> Connection:
    """The connection, which its caller owns.

    Raises `ClusterError`, or what ``meanwhile`` raises.
    """
    try:
        while True:
            found = opening.wait(_LOOK_S)
            if found is not None:
                return found
            meanwhile()
    except BaseException:
        opening.abandon()
        raise


def request(
    connection: Connection, message: Any, *, highest: int, meanwhile: Callable[[], None]
) -> Any:
    """`Connection.request`, which calls ``meanwhile`` while the broker does not respond.

    Nothing else may be in flight. Raises `ConnectionLost`, `Unsupported`, or what ``meanwhile``
    raises; no response can be received then.
    """
    while not connection.ready_to_send(idle=True):
        time.sleep(_LOOK_S)
        meanwhile()
    highest = min(highest, message.max_version)
    version = connection.api_version(message.API_KEY, 0, highest, message.name)
    correlation = connection.begin_now(message, version)
    limit_s = connection.socket.gettimeout()
    until = time.monotonic() + (math.inf if limit_s is None else limit_s)
    while True:
        response = connection.finish_now(message, version, correlation)
        if response is not None:
            return response
        if time.monotonic() >= until:
            raise ConnectionLost(f"{connection.host}:{connection.port}: timed out")
        if not connection.readable(min(_LOOK_S, until - time.monotonic())):
            meanwhile()
