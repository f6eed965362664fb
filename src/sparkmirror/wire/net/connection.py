"""One blocking TCP connection to one broker: connecting, versions, login, small requests.

Small requests use kafka-python's message classes (`Connection.request`). Fetch and Produce carry
the data, so they write and read their own frames (`framing`).
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import socket
import ssl
import struct
import time
import traceback
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from sparkmirror.errors import (
    ClusterError,
    ConfigError,
    Defect,
    MirrorError,
    NotKafka,
    Unreachable,
    Unsupported,
)
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.net.framing import (
    RESPONSE_FRAME_BYTES_MAX,
    ConnectionLost,
    FrameBuffer,
    FramedSocket,
    NewBuffer,
    ReceiveBuffer,
)
from sparkmirror.wire.net.kafka_python_limits import UNREADABLE, guard_decoding
from sparkmirror.wire.net.login_again import LoginAgain

if TYPE_CHECKING:
    from sparkmirror.wire.security.sasl import Login

__all__ = [
    "Connection",
    "ConnectionLost",
    "ForeignResponse",
    "FrameBuffer",
    "PortProtocol",
    "ReceiveBuffer",
]

log = logging.getLogger(__name__)

_CORRELATION = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_HANDSHAKE_FRAME_BYTES_MAX = 1 << 20
_SASL_AUTHENTICATE = 36
# Pipelined requests, before the first response: the buffers of any socket hold this much.
_AHEAD_BYTES_MAX = 16 << 10
# Part of a session's life after which a client logs in again (KIP-368, as Java's clients do).
_LOGIN_AGAIN = (0.85, 0.95)
# How long `ready_to_send` waits for a login. A near broker accepts it in this time.
_LOGIN_S = 0.05

guard_decoding()


class PortProtocol(StrEnum):
    """The protocol of a port, as far as it shows without TLS and without a login."""

    KAFKA = "it speaks Kafka without TLS"
    TLS = "it speaks TLS: it is an SSL or SASL_SSL listener, or a web server"
    HTTP = "it is a web server (it answers HTTP)"
    UNKNOWN = "its protocol is unknown"


class ForeignResponse(Exception):
    """What a server sent is not Kafka's protocol; the text says what it looks like."""

    def __init__(self, text: str, protocol: PortProtocol = PortProtocol.UNKNOWN) -> None:
        super().__init__(text)
        self.protocol = protocol


class Connection(FramedSocket):
    """A connection to one broker, with TLS and login as the client's settings say.

    Connecting raises `ClusterError` (`Unreachable`, `NotKafka`, `Unsupported`, `Denied`); later
    calls raise `ConnectionLost`. The cause of `NotKafka` is a `ForeignResponse` or a
    `ConnectionLost`. ``round_trip_s``: how long the first response took. ``connected``: a socket
    that is connected to the broker, with TLS if the settings say so; it belongs to the connection.
    """

    _login_again: LoginAgain | None = None

    def __init__(
        self,
        host: str,
        port: int,
        client: ClusterClient,
        *,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        connected: socket.socket | None = None,
    ) -> None:
        super().__init__(host, port)
        self.client = client
        self._correlation = itertools.count(1)
        self._client_id = client.client_id.encode()
        self._login: Login | None = None
        self._login_at = math.inf
        try:
            if client.security_protocol != "PLAINTEXT":
                # Imported where they are used: plaintext workers start without them.
                from sparkmirror.wire.security.sasl import login_for  # noqa: PLC0415

                self._login = login_for(client)
            self._use(connected or self._connect(send_buffer_bytes, receive_buffer_bytes))
        except ConfigError as error:
            if connected is not None:
                connected.close()
            # A store or keytab may be replaced at this moment: retried like other cluster errors.
            raise ClusterError(error.what, where=error.where, do=error.do) from error
        try:
            # The kernel accepts connections even for a broker that hangs. So the first response
            # gets only as much time as connecting.
            patience_s = min(client.connect_timeout_ms, client.request_timeout_ms) / 1000
            self.socket.settimeout(patience_s)
            asked_at = time.monotonic()
            self._versions = self._handshake(asked_at + patience_s)
            self.round_trip_s = time.monotonic() - asked_at
            self.socket.settimeout(client.request_timeout_ms / 1000)
            self._authenticate()
        except ConfigError as error:
            self.socket.close()
            raise ClusterError(error.what, where=error.where, do=error.do) from error
        except BaseException:
            self.socket.close()
            raise

    def _connect(self, send_buffer_bytes: int, receive_buffer_bytes: int) -> socket.socket:
        where = f"cluster {self.client.alias}, {self.host}:{self.port}"
        try:
            sock = socket.create_connection(
                (self.host, self.port), timeout=self.client.connect_timeout_ms / 1000
            )
        except socket.gaierror as error:
            raise Unreachable(
                f"the host name does not resolve ({error.strerror}).",
                where=where,
                do="Check the name, or the broker's advertised.listeners.",
            ) from error
        except UnicodeError as error:  # not a host name: a label is empty or too long
            raise Unreachable(
                f"the host name does not resolve ({error}).",
                where=where,
                do="Check the name, or the broker's advertised.listeners.",
            ) from error
        except OSError as error:
            raise Unreachable(
                f"cannot connect ({error}).",
                where=where,
                do="Check that the broker runs and that the port is open from here.",
            ) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, size in (
            (socket.SO_SNDBUF, send_buffer_bytes),
            (socket.SO_RCVBUF, receive_buffer_bytes),
        ):
            if size > 0:
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        if self.client.security_protocol != "PLAINTEXT":
            from sparkmirror.wire.security.tls import wrap  # noqa: PLC0415

            sock = wrap(sock, self.host, self.client)
        return sock

    def _handshake(self, deadline: float) -> dict[int, tuple[int, int]]:
        """Request the API versions (v0, which every broker from 0.10 on supports).

        ``deadline`` (monotonic) is that of the whole response.
        """
        where = f"cluster {self.client.alias}, {self.host}:{self.port}"
        try:
            correlation = self.send_message(ApiVersionsRequest(), 0)
            head = memoryview(bytearray(_CORRELATION.size))
            self._receive_by(head, deadline)
            frame = memoryview(bytearray(_handshake_size(bytes(head))))
            self._receive_by(frame, deadline)
            return _read_versions(bytes(frame), correlation)
        except ConnectionLost as error:
            if isinstance(error.__cause__, ssl.SSLError):
                from sparkmirror.wire.security.tls import handshake_error  # noqa: PLC0415

                # With TLS 1.3 the broker rejects our certificate only after the handshake.
                raise handshake_error(error.__cause__, where) from error
            raise NotKafka(
                f"the connection was accepted, but no Kafka broker answered ({error}).",
                where=where,
                do="Check the port and the listener's security protocol (a TLS listener closes the "
                "connection).",
            ) from error
        except ForeignResponse as error:
            raise NotKafka(
                f"the server at this address does not speak Kafka's protocol ({error}).",
                where=where,
                do="Check the port and the listener's security protocol.",
            ) from error

    def _receive_by(self, view: memoryview, deadline: float) -> None:
        """Fill ``view`` until ``deadline``, however often a part of it arrives."""
        position = 0
        while position < len(view):
            try:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("timed out")
                self.socket.settimeout(left_s)
                count = self.socket.recv_into(view[position:])
            except OSError as error:
                raise self._broken(error) from error
            if count == 0:
                if position:
                    said = f"it closed the connection after {bytes(view[:position])[:16]!r}"
                    raise ForeignResponse(said)
                raise self._closed()
            position += count

    # -- login -----------------------------------------------------------------------------

    def _authenticate(self) -> None:
        if self._login is None:
            return
        from sparkmirror.wire.security.sasl import Exchange, authenticate  # noqa: PLC0415

        where = f"cluster {self.client.alias}, {self.host}:{self.port}"
        bare = None if _SASL_AUTHENTICATE in self._versions else self._exchange_bare
        exchange = Exchange(self._sasl_handshake, self._sasl_authenticate, bare)
        began = time.monotonic()
        try:
            lifetime_ms = authenticate(self._login, exchange, self.host, where)
        except ConnectionLost as error:
            # The broker may be shutting down: this counts as unreachable and is retried.
            raise Unreachable(
                f"the broker closed the connection during the {self._login.name} login ({error}).",
                where=where,
                do="Check the sasl.* settings and the broker's log (before Kafka 1.0, a broker "
                "refuses credentials in this way).",
            ) from error
        except (MirrorError, Defect):
            raise
        # Logins run the code of HTTP clients, Kerberos and AWS. Whoever connects tries again after
        # a `ClusterError` alone. The text of an error may hold a secret, but not the system's own.
        except OSError as error:
            parts = (type(error).__name__, error.strerror, error.filename)
            said = ": ".join(str(part) for part in parts if part)
            raise Unreachable(
                f"the {self._login.name} login failed ({said}).",
                where=where,
                do="Check the files and services that the login needs, and the broker.",
            ) from None
        except Exception as error:
            name, frames = type(error).__name__, traceback.format_tb(error.__traceback__)
            log.error(
                "%s: the %s login failed: %s\n%s", where, self._login.name, name, "".join(frames)
            )
            raise ClusterError(
                f"the {self._login.name} login failed ({name}).",
                where=where,
                do="The log says where; please report it.",
            ) from None
        share = random.uniform(*_LOGIN_AGAIN)  # noqa: S311  (spreads load, guards nothing)
        self._login_at = began + lifetime_ms / 1000 * share if lifetime_ms else math.inf

    def _sasl_handshake(self, mechanism: str) -> tuple[int, list[str]]:
        highest = 1 if _SASL_AUTHENTICATE in self._versions else 0
        response = self._query(SaslHandshakeRequest(mechanism=mechanism), highest=highest)
        return int(response.error_code), [str(one or "") for one in response.mechanisms or ()]

    def _sasl_authenticate(self, data: bytes) -> tuple[int, str, bytes, int]:
        response = self._query(SaslAuthenticateRequest(auth_bytes=data), highest=1)
        return (
            int(response.error_code),
            response.error_message or "",
            bytes(response.auth_bytes or b""),
            int(getattr(response, "session_lifetime_ms", 0) or 0),
        )

    def _exchange_bare(self, data: bytes, answered: bool) -> bytes:
        self.send_frame([data], len(data))
        if not answered:
            return b""
        size = self._receive_size()
        if not 0 <= size <= _HANDSHAKE_FRAME_BYTES_MAX:
            raise ConnectionLost(f"{self.host}:{self.port}: invalid frame size ({size} bytes)")
        view = memoryview(bytearray(size))
        self._receive_into(view)
        return bytes(view)

    def log_in_if_due(self, *, idle: bool) -> bool:
        """Log in again before the session ends (KIP-368); whether a request may be sent then.

        ``idle``: no response is outstanding. If one is and a login is due, the caller must receive
        it first. Raises `ConnectionLost` when the login fails.
        """
        if time.monotonic() < self._login_at:
            return True
        if not idle:
            return False
        try:
            self._authenticate()
        except (ClusterError, ConfigError) as error:
            raise ConnectionLost(f"logging in again: {error}") from error
        return True

    def ready_to_send(self, *, idle: bool) -> bool:
        """`log_in_if_due` for those who serve several brokers: the login has a thread of its own.

        It is waited for only as long as a near broker takes. Until it has ended, this is False,
        and no poller watches the connection: call `watched_by` again before the next request.
        """
        if self._login_again is None:
            if time.monotonic() < self._login_at:
                return True
            if not idle:
                return False
            self._leave_pollers()
            self._login_again = LoginAgain(lambda: self.log_in_if_due(idle=True), self.socket)
            self._login_again.join(_LOGIN_S)
        if self._login_again.is_alive():
            return False
        error, self._login_again = self._login_again.error, None
        if error is not None:
            raise error
        return True

    def hung_up(self) -> bool:
        """As `FramedSocket.hung_up`; False during a login, which finds out by itself."""
        return self._login_again is None and super().hung_up()

    def close(self) -> None:
        """Close the socket; never raises. A login under way fails, and then closes it."""
        if self._login_again is None or not self._login_again.leave():
            super().close()

    @property
    def api_versions(self) -> dict[int, tuple[int, int]]:
        """API versions that the broker offers: {key: (lowest, highest)}."""
        return dict(self._versions)

    def api_version(self, api_key: int, lowest: int, highest: int, name: str) -> int:
        """The highest version of an API that both sides know.

        Raises `Unsupported` when there is none.
        """
        low, high = self._versions.get(api_key, (0, -1))
        version = min(high, highest)
        if version < max(low, lowest):
            raise Unsupported(
                f"the broker offers versions {low} to {high} of the {name} API, "
                f"sparkmirror needs one of {lowest} to {highest}.",
                where=f"cluster {self.client.alias}, {self.host}:{self.port}",
                do="Brokers from 0.11 on are supported.",
            )
        return version

    # -- requests --------------------------------------------------------------------------

    def header(self, api_key: int, api_version: int) -> tuple[int, bytes]:
        """(correlation id, bytes of the non-flexible request header without the frame size)."""
        correlation = next(self._correlation)
        head = _HEADER.pack(api_key, api_version, correlation, len(self._client_id))
        return correlation, head + self._client_id

    def send_message(self, message: Any, version: int) -> int:
        """Send one of kafka-python's request objects; returns the correlation id."""
        correlation, frame = self._encoded(message, version)
        self._send_all(frame)
        return correlation

    def _encoded(self, message: Any, version: int) -> tuple[int, bytes]:
        correlation = next(self._correlation)
        message.with_header(correlation_id=correlation, client_id=self.client.client_id)
        return correlation, message.encode(version=version, header=True, framed=True)

    def _send_all(self, frame: bytes) -> None:
        self.last_used = time.monotonic()
        try:
            self.socket.sendall(frame)
        except OSError as error:
            raise ConnectionLost(f"{self.host}:{self.port}: {error or 'timed out'}") from error

    def request(self, message: Any, *, lowest: int = 0, highest: int = 1 << 15) -> Any:
        """Send a kafka-python request and wait for its response. Nothing else may be in flight.

        Returns kafka-python's response object. Raises `ConnectionLost`, `Unsupported`.
        """
        self.log_in_if_due(idle=True)
        return self._query(message, lowest=lowest, highest=highest)

    def request_all(self, requested: Iterable[tuple[Any, int, int]]) -> list[Any]:
        """`request` for several (message, lowest version, highest version); responses in order.

        Small requests are pipelined, so over a long link they take one round trip together.
        """
        self.log_in_if_due(idle=True)
        versions = [
            (one, self._version(one, lowest, highest)) for one, lowest, highest in requested
        ]
        answers: list[Any] = []
        waiting: list[tuple[Any, int, int]] = []
        bytes_ahead = 0
        for message, version in versions:
            correlation, frame = self._encoded(message, version)
            if bytes_ahead + len(frame) > _AHEAD_BYTES_MAX:
                # A broker whose responses are not read stops reading requests.
                answers += [self.finish(*one) for one in waiting]
                waiting.clear()
                bytes_ahead = 0
            self._send_all(frame)
            waiting.append((message, version, correlation))
            bytes_ahead += len(frame)
        return answers + [self.finish(*one) for one in waiting]

    def _query(self, message: Any, *, lowest: int = 0, highest: int = 1 << 15) -> Any:
        version = self._version(message, lowest, highest)
        return self.finish(message, version, self.send_message(message, version))

    def _version(self, message: Any, lowest: int, highest: int) -> int:
        return self.api_version(
            message.API_KEY, lowest, min(highest, message.max_version), message.name
        )

    def begin(self, message: Any, version: int) -> int:
        """Send a kafka-python request whose response may take long; returns its correlation id.

        Wait with `readable`, then call `finish`. Nothing else may be in flight.
        """
        self.log_in_if_due(idle=True)
        return self.send_message(message, version)

    def begin_now(self, message: Any, version: int) -> int:
        """`begin` without waiting for anything; `finish_now` sends what the socket does not take.

        No login may be due (`login_due`).
        """
        correlation, frame = self._encoded(message, version)
        self.begin_frame([memoryview(frame)[4:]], len(frame) - 4)
        return correlation

    @property
    def login_due(self) -> bool:
        """Whether the session ends soon (KIP-368)."""
        return time.monotonic() >= self._login_at

    def finish(self, message: Any, version: int, correlation: int) -> Any:
        """The response to ``message``. Raises `ConnectionLost`."""
        return self._decoded(message, version, correlation, self.receive_frame())

    def finish_now(self, message: Any, version: int, correlation: int) -> Any | None:
        """The response to ``message`` if it has arrived, else None. Raises `ConnectionLost`."""
        if self.unsent:
            self.go_on_sending()
        frame = self.receive_available(NewBuffer(), RESPONSE_FRAME_BYTES_MAX)
        return None if frame is None else self._decoded(message, version, correlation, frame)

    def _decoded(self, message: Any, version: int, correlation: int, frame: memoryview) -> Any:
        if _CORRELATION.unpack_from(frame)[0] != correlation:
            self.close()
            raise ConnectionLost(f"{self.host}:{self.port}: a response to another request")
        try:
            return _response_class(message).decode(bytes(frame), version=version, header=True)
        except UNREADABLE as error:
            self.close()
            raise ConnectionLost(
                f"{self.host}:{self.port}: the response to {message.name} cannot be read ({error})"
            ) from error


def _response_class(message: Any) -> Any:
    from kafka.protocol.api_header import ResponseClassRegistry  # noqa: PLC0415  (after kafka)

    return ResponseClassRegistry.get_response_class(message.header)


def _handshake_size(head: bytes) -> int:
    """The size of the first response, by its first four bytes. Raises `ForeignResponse`."""
    if head[:2] in (b"\x15\x03", b"\x16\x03"):
        raise ForeignResponse(PortProtocol.TLS, PortProtocol.TLS)
    if head == b"HTTP":
        raise ForeignResponse(PortProtocol.HTTP, PortProtocol.HTTP)
    size: int = _CORRELATION.unpack(head)[0]
    if not 4 <= size <= _HANDSHAKE_FRAME_BYTES_MAX:
        raise ForeignResponse(f"it answers, but not in Kafka's protocol (first bytes {head!r})")
    return size


def _read_versions(frame: bytes, correlation: int) -> dict[int, tuple[int, int]]:
    """API versions in an ApiVersions response (v0). Raises `ForeignResponse`."""
    if _CORRELATION.unpack_from(frame)[0] != correlation:
        raise ForeignResponse("it answers, but not in Kafka's protocol (wrong correlation id)")
    try:
        response = ApiVersionsResponse.decode(frame[4:], version=0)
    except UNREADABLE as error:
        raise ForeignResponse("its ApiVersions response is invalid") from error
    if response.error_code or not response.api_keys:
        raise ForeignResponse(f"its ApiVersions response is invalid (error {response.error_code})")
    return {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}


def connect_any(addresses: Iterable[tuple[str, int]], client: ClusterClient) -> Connection:
    """A connection to the first of ``addresses`` that responds. Raises the last `ClusterError`."""
    failure: ClusterError | None = None
    for host, port in addresses:
        try:
            return Connection(host, port, client)
        except ClusterError as error:
            failure = error
    raise failure or Unreachable(
        "no bootstrap server is configured.", where=f"cluster {client.alias}"
    )
