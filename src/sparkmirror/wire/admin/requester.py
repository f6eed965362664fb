"""A lazy, shared connection to one cluster for the driver's small requests.

kafka-python's connection manager handles the sockets on its own thread. This module adds what it
leaves to its callers: the broker that a request must go to (any, the controller, a group's
coordinator), the retries, and new connections after the cluster was unavailable.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from sparkmirror.errors import Defect, Unreachable
from sparkmirror.model import ClusterClient
from sparkmirror.wire.admin.error_translation import quiet_kafka_logs, translated
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.coordinator import split_address
from sparkmirror.wire.net.connection import connect_any
from sparkmirror.wire.net.kafka_python_limits import FRAME_BYTES_MAX, UNREADABLE, guard_receiving

__all__ = ["ANY", "CONTROLLER", "Requester", "client_options", "error_for"]

log = logging.getLogger(__name__)

ANY = -1
CONTROLLER = -2

_GRACE_S = 0.5
_LOOK_S_MAX = 6.0

guard_receiving()


def client_options(client: ClusterClient) -> dict[str, Any]:
    """The options for any client of kafka-python, from one cluster's client settings.

    Raises ConfigError.
    """
    options = {
        "bootstrap_servers": list(client.bootstrap_servers),
        "client_id": client.client_id,
        "request_timeout_ms": client.request_timeout_ms,
        "reconnect_backoff_ms": client.reconnect_backoff_ms,
        "reconnect_backoff_max_ms": client.reconnect_backoff_ms_max,
        "retry_backoff_ms": client.retry_backoff_ms,
        "metadata_max_age_ms": client.metadata_age_ms_max,
        "security_protocol": client.security_protocol,
        "receive_message_max_bytes": FRAME_BYTES_MAX,
    }
    if client.security_protocol == "PLAINTEXT":
        return options
    # Imported where they are used: plaintext workers start without them.
    from sparkmirror.config.clients.security import uses_tls  # noqa: PLC0415
    from sparkmirror.wire.security.sasl import KafkaPythonLogin, login_for  # noqa: PLC0415

    if uses_tls(client.security_protocol):
        options["ssl_context"] = _CurrentContext(client)
    login = login_for(client)
    if login is not None:
        options["sasl_mechanism"] = login.name
        options["sasl_oauth_token_provider"] = KafkaPythonLogin(login)
    return options


class _CurrentContext:
    """Replaces an SSL context, so that each connection uses the stores as they are at that time."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def wrap_socket(self, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        """Called by kafka-python for each connection."""
        from sparkmirror.wire.security.tls import context_for  # noqa: PLC0415

        context = context_for(self._client)
        if context is None:
            raise Defect("a connection that is not encrypted has no TLS context")
        return context.wrap_socket(sock, **options)


def error_for(code: int, message: str | None = None) -> Exception:
    """kafka-python's exception for a numeric error code of a response."""
    error: Exception = kafka_errors.for_code(code)(message or "")
    return error


class Requester:
    """Requests to one cluster, retried within a time limit. Safe to share between threads.

    `request` raises only `MirrorError`; `Unreachable` when no response arrived in time.
    """

    def __init__(self, client: ClusterClient) -> None:
        quiet_kafka_logs()
        self.client = client
        self._lock = threading.Lock()
        self._manager: Any = None
        self._net: Any = None
        self._opening: tuple[Any, Any] | None = None
        self.closes = 0
        self._ended = False
        self._settled = False  # a broker has responded, or its advertised address is not the cause
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
    ) -> Any:
        """Send ``make()`` and return the response object.

        ``node``: a broker's id, `ANY` or `CONTROLLER`; ``group`` sends it to that group's
        coordinator instead. ``read`` decodes a response that is left undecoded
        (`wire.admin.raw_responses`); its result is the response then. ``check`` returns the error
        code of a whole response (0: none). ``needs``: the permission that an error advises to
        grant. Retriable errors are retried for ``timeout_ms`` (default: the request timeout), each
        time with a new message and a new lookup of the broker. So requests must be idempotent. A
        request to a named ``node`` is not retried: the caller knows which broker to try next.
        """
        bound_ms = self.client.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = time.monotonic() + bound_ms / 1000
        backoff_s = self.client.retry_backoff_ms / 1000
        closes = self.closes
        with translated(self.client, doing, needs=needs):
            while True:
                try:
                    return self._once(make, node, group, read, check, deadline)
                except kafka_errors.KafkaError as error:
                    self._explain_advertised(deadline)
                    left_s = deadline - time.monotonic()
                    closed = self._ended or self.closes != closes
                    hopeless = not _worth_a_retry(error) or closed or node >= 0
                    if hopeless or left_s <= backoff_s:
                        if isinstance(error, kafka_errors.KafkaTimeoutError):
                            self.reset()  # the brokers may have moved: bootstrap again next time
                        whole = node < 0 and not closed
                        if whole and _for_want_of_a_connection(error):
                            self._explain_failure()
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
    ) -> Any:
        manager = self._open(deadline)
        if group:
            node = self._coordinator(manager, group, deadline)
        elif node == CONTROLLER:
            node = self._controller_node(manager, deadline)
        try:
            response = _send(manager, make(), None if node == ANY else node, deadline)
        except kafka_errors.UnknownBrokerIdError:
            # The broker is new, or was down at the last metadata request: kafka-python would send
            # the next one only after ``metadata.max.age.ms``.
            _learn_brokers(manager, deadline)
            response = _send(manager, make(), node, deadline)
        if read is not None:
            response = _read(response, read)
        self._settled = True
        code = check(response) if check is not None else 0
        if code:
            raise error_for(code, getattr(response, "error_message", None))
        return response

    def _coordinator(self, manager: Any, group: str, deadline: float) -> int:
        if group not in self._coordinators:
            # Version 3 is the last one for a single key; every broker still supports it.
            request = FindCoordinatorRequest(key=group, key_type=0, max_version=3)
            response = _send(manager, request, None, deadline)
            if response.error_code:
                raise error_for(response.error_code, getattr(response, "error_message", None))
            self._coordinators[group] = int(response.node_id)
        return self._coordinators[group]

    def _controller_node(self, manager: Any, deadline: float) -> int:
        if self._controller is None:
            response = _send(manager, MetadataRequest(topics=[]), None, deadline)
            if response.controller_id < 0:
                raise kafka_errors.NodeNotReadyError("the cluster has no controller at present")
            self._controller = int(response.controller_id)
        return self._controller

    def _open(self, deadline: float) -> Any:
        """The connection manager, bootstrapped; all callers wait until it is."""
        with self._lock:
            if self._ended:
                raise kafka_errors.KafkaConnectionError("the connection was closed")
            if self._manager is None:
                options = client_options(self.client)
                options["socket_connection_setup_timeout_ms"] = self.client.connect_timeout_ms
                options["socket_connection_setup_timeout_max_ms"] = (
                    self.client.connect_timeout_ms_max
                )
                net = NetworkSelector(**options)
                manager = KafkaConnectionManager(net, **options)
                net.start()
                self._opening = (manager, net)
                try:
                    manager.bootstrap(max(1, (deadline - time.monotonic()) * 1000))
                except BaseException as error:
                    _shut(manager, net)
                    # If it is None, `close` has ended this attempt.
                    if isinstance(error, kafka_errors.KafkaError) and self._opening is not None:
                        self._explain_failure()
                    raise
                finally:
                    self._opening = None
                self._manager, self._net = manager, net
            return self._manager

    def _explain_failure(self) -> None:
        """Raise the reason why a TLS or SASL connection fails: kafka-python does not report it."""
        if self.client.security_protocol == "PLAINTEXT":
            return
        addresses = [split_address(server) for server in self.client.bootstrap_servers]
        with contextlib.suppress(Unreachable):
            connect_any(addresses, self.client).close()

    def _explain_advertised(self, deadline: float) -> None:
        """Raise the reason if the addresses that a bootstrap server returned cannot be reached.

        Waiting does not help then. Not checked after a broker has responded, and not again after a
        check that found nothing.
        """
        if self._settled or self._manager is None:
            return
        from sparkmirror.wire.probe.advertised import why_unusable  # noqa: PLC0415  (hardly ever needed)

        reason = why_unusable(self.client, min(_LOOK_S_MAX, max(1.0, deadline - time.monotonic())))
        if reason is not None:
            raise reason
        self._settled = True

    def reset(self) -> None:
        """Close the connections; the next request opens new ones from the bootstrap servers."""
        with self._lock:
            manager, net = self._manager, self._net
            self._manager = self._net = self._controller = None
            self._coordinators.clear()
        if manager is not None:
            _shut(manager, net)

    def close(self, *, for_good: bool = False) -> None:
        """Close the connections; requests in flight on other threads fail at once.

        A later request opens new connections, or fails, too, after ``for_good``.
        """
        self._ended = self._ended or for_good
        self.closes += 1
        opening = self._opening
        if opening is not None:  # stopping its loop fails the bootstrap that holds the lock
            _shut(*opening)
        self.reset()


def _for_want_of_a_connection(error: kafka_errors.KafkaError) -> bool:
    """Whether there is no connection to any broker, for whatever reason."""
    return isinstance(error, kafka_errors.KafkaConnectionError | kafka_errors.NodeNotReadyError)


def _send(manager: Any, message: Any, node: int | None, deadline: float) -> Any:
    """Send on the loop's thread and wait here, but no longer than ``deadline``.

    The manager's own ``run`` waits without a limit, and another thread may stop the loop.
    """
    left_s = max(0.001, deadline - time.monotonic())

    async def send() -> Any:
        return await manager.wait_for(manager.send(message, node_id=node), left_s * 1000)

    return _done(manager, send, left_s)


def _learn_brokers(manager: Any, deadline: float) -> None:
    """Make the manager request the current brokers from one that it knows."""
    _done(manager, manager.cluster.refresh_metadata, max(0.001, deadline - time.monotonic()))


def _done(manager: Any, work: Callable[[], Any], left_s: float) -> Any:
    """The result of the coroutine ``work`` on the loop's thread; raises what it raises."""
    done = threading.Event()
    try:
        future = manager.call_soon(work)
    except RuntimeError as error:  # the loop was closed a moment ago
        raise kafka_errors.KafkaConnectionError(str(error)) from error
    future.add_both(lambda _: done.set())
    if not done.wait(left_s + _GRACE_S):
        raise kafka_errors.KafkaTimeoutError("the connection was closed meanwhile")
    if future.exception is not None:
        raise future.exception
    return future.value


def _read(response: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(response)
    except UNREADABLE as error:
        raise kafka_errors.KafkaProtocolError(
            f"the response cannot be read ({type(error).__name__})"
        ) from error


def _shut(manager: Any, net: Any) -> None:
    # Nobody waits for a response any more, so a failure to close a socket does not matter.
    with contextlib.suppress(kafka_errors.KafkaError, OSError, RuntimeError):
        net.call_soon_threadsafe(manager.close)
    with contextlib.suppress(kafka_errors.KafkaError, OSError, RuntimeError):
        net.stop(timeout_ms=2_000)
        net.close()


def _worth_a_retry(error: kafka_errors.KafkaError) -> bool:
    return bool(error.retriable) or isinstance(error, kafka_errors.UnknownBrokerIdError)
