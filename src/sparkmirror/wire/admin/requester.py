"""The driver's small requests to one cluster, over a shared pool of connections.

The pool (`wire.cluster.broker_pool`) has the connections. This module adds the broker that a
request must go to (any, the controller, a group's coordinator), the retries, and what the user is
told when the cluster does not respond.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from kafka.protocol.metadata import MetadataRequest

from sparkmirror.errors import Unreachable
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin.error_translation import translated
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.broker_pool import BrokerPool, CannotConnect
from sparkmirror.wire.cluster.messages import find_coordinator_request
from sparkmirror.wire.net.framing import ConnectionLost
from sparkmirror.wire.net.kafka_python_limits import UNREADABLE
from sparkmirror.wire.net.shared_connection import NoResponse, SharedConnection
from sparkmirror.wire.protocol_errors import (
    BrokerError,
    NoBroker,
    RequestError,
    UnreadableResponse,
)

__all__ = ["ANY", "CONTROLLER", "Requester", "error_for"]

log = logging.getLogger(__name__)

ANY = -1
CONTROLLER = -2

_LOOK_S_MAX = 6.0


def error_for(code: int, message: str | None = None) -> BrokerError:
    """The exception for an error code of a response, and the broker's message."""
    return BrokerError(code, message)


class Requester:
    """Requests to one cluster, retried within a time limit. Safe to share between threads.

    `request` raises only `MirrorError`; `Unreachable` when no response arrived in time.
    """

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self._pool = BrokerPool(client)
        self.closes = 0
        self._closed = threading.Condition()
        self._ended = False
        self._settled = False  # a broker has responded, or its advertised address is not the cause
        self._login_checked = False
        self._controller: int | None = None
        self._coordinators: dict[str, int] = {}

    def request(
        self,
        make: Callable[[], Any],
        doing: str,
        *,
        node: int = ANY,
        group: str = "",
        read: Callable[[Any], Any] | None = None,
        check: Callable[[Any], int] | None = None,
        needs: Right | None = None,
        timeout_ms: int | None = None,
        apart: bool = False,
    ) -> Any:
        """Send ``make()`` and return the response object.

        ``node``: a broker's id, `ANY` or `CONTROLLER`; ``group`` sends it to that group's
        coordinator instead. ``read`` decodes a response that is left undecoded
        (`wire.admin.raw_responses`); its result is the response then. ``check`` returns the error
        code of a whole response (0: none). ``needs``: the permission that an error advises to
        grant. Retriable errors are retried for ``timeout_ms`` (default: the request timeout), each
        time with a new message and a new lookup of the broker. So requests must be idempotent. A
        request to a named ``node`` is not retried: the caller knows which broker to try next.
        ``apart``: see `BrokerPool.to`.
        """
        bound_ms = self.client.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = time.monotonic() + bound_ms / 1000
        backoff_s = self.client.retry_backoff_ms / 1000
        closes = self.closes
        with translated(self.client, doing, needs=needs):
            while True:
                try:
                    return self._once(make, node, group, read, check, deadline, apart)
                except RequestError as error:
                    self._explain_advertised(deadline)
                    left_s = deadline - time.monotonic()
                    closed = self._ended or self.closes != closes
                    hopeless = not error.retriable or closed or node >= 0
                    if hopeless or left_s <= backoff_s:
                        if isinstance(error, NoResponse):
                            self._pool.forget()
                        if node < 0 and not closed:
                            self._explain_failure(error)
                        raise
                    log.debug("%s: %s: trying again", doing, error)
                    self._controller = None
                    self._coordinators.pop(group, None)
                    time.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, self.client.retry_backoff_ms_max / 1000)

    def _once(
        self,
        make: Callable[[], Any],
        node: int,
        group: str,
        read: Callable[[Any], Any] | None,
        check: Callable[[Any], int] | None,
        deadline: float,
        apart: bool,
    ) -> Any:
        if self._ended:
            raise ConnectionLost("the connection was closed")
        if group:
            node = self._coordinator(group, deadline)
        elif node == CONTROLLER:
            node = self._controller_node(deadline)
        response = self.connection(node, deadline, apart=apart).request(make(), deadline)
        if read is not None:
            response = _read(response, read)
        self._settled = True
        code = check(response) if check is not None else 0
        if code:
            raise error_for(code, getattr(response, "error_message", None))
        return response

    def _coordinator(self, group: str, deadline: float) -> int:
        if group not in self._coordinators:
            response = self.send(find_coordinator_request(group), ANY, deadline)
            if response.error_code:
                raise error_for(response.error_code, getattr(response, "error_message", None))
            self._coordinators[group] = int(response.node_id)
        return self._coordinators[group]

    def _controller_node(self, deadline: float) -> int:
        if self._controller is None:
            response = self.send(MetadataRequest(topics=[]), ANY, deadline)
            if response.controller_id < 0:
                raise NoBroker("the cluster has no controller at present")
            self._controller = int(response.controller_id)
        return self._controller

    def send(self, message: Any, node: int, deadline: float) -> Any:
        """Send ``message`` once, to ``node`` or `ANY`. Raises `RequestError`, `Denied`."""
        return self.connection(node, deadline).request(message, deadline)

    def connection(self, node: int, deadline: float, *, apart: bool = False) -> SharedConnection:
        """The connection to ``node``, or one to `ANY` broker. Raises as `send`.

        ``apart``: see `BrokerPool.to`.
        """
        if not self._login_checked:
            self._check_login()
        if node == ANY:
            return self._pool.any(deadline)
        return self._pool.to(node, deadline, apart=apart)

    def _check_login(self) -> None:
        """Raise `ConfigError` for wrong settings: they are no failure of a broker."""
        if self.client.security_protocol != "PLAINTEXT":
            # Imported where it is used: plaintext clients do without it.
            from sparkmirror.wire.security.sasl import login_for  # noqa: PLC0415

            login_for(self.client)
        self._login_checked = True

    def _explain_failure(self, error: RequestError) -> None:
        """Raise the reason why a TLS or SASL connection fails: it says more than "no answer"."""
        if self.client.security_protocol == "PLAINTEXT" or not isinstance(error, CannotConnect):
            return
        if not isinstance(error.reason, Unreachable):
            raise error.reason from error

    def _explain_advertised(self, deadline: float) -> None:
        """Raise the reason if the addresses that a bootstrap server returned cannot be reached.

        Waiting does not help then. Not checked after a broker has responded, and not again after a
        check that found nothing.
        """
        if self._settled or not self._pool.bootstrapped:
            return
        from sparkmirror.wire.probe.advertised import why_unusable  # noqa: PLC0415  (hardly ever needed)

        reason = why_unusable(self.client, min(_LOOK_S_MAX, max(1.0, deadline - time.monotonic())))
        if reason is not None:
            raise reason
        self._settled = True

    def pause(self, seconds: float) -> bool:
        """Wait before a request is repeated; False, at once, if the connections are closed."""
        closes = self.closes
        with self._closed:
            return not self._closed.wait_for(
                lambda: self._ended or self.closes != closes, timeout=seconds
            )

    def close(self, *, for_good: bool = False) -> None:
        """Close the connections; requests in flight on other threads fail at once.

        A later request opens new connections, or fails, too, after ``for_good``.
        """
        with self._closed:
            self._ended = self._ended or for_good
            self.closes += 1
            self._closed.notify_all()
        self._controller = None
        self._coordinators.clear()
        self._pool.close()


def _read(response: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(response)
    except UNREADABLE as error:
        raise UnreadableResponse(f"the response cannot be read ({type(error).__name__})") from error
