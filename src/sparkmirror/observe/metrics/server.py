"""The HTTP server of ``/metrics`` and ``/health``.

It listens only on this machine, unless TLS and a bearer token protect it. The health probes
``/health/live`` and ``/health/ready`` return a few words and need no token, because orchestrators
do not send one.

Slow or many clients cost the mirror little and do not block other clients. Each connection has a
few seconds for its handshake and the head of its request together. If there are too many
connections, a new one replaces the one that has waited longest for its head. So a client that sends
its request at once gets its response, even if others hold connections open. At most eight requests
for the expensive pages are handled at a time; the probes have no such limit.
"""

from __future__ import annotations

import contextlib
import gzip
import hmac
import http.client
import json
import logging
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from sparkmirror.errors import ConfigError, MachineError
from sparkmirror.observe.metrics.address import Address, resolve
from sparkmirror.observe.metrics.health import Health
from sparkmirror.settings import MetricsSettings

__all__ = ["MetricsServer", "check_metrics_server", "open_metrics_server"]

log = logging.getLogger(__name__)

# Limits of all connections, of those of one address, and of expensive pages at a time.
_CONNECTIONS_MAX = 64
_ADDRESS_CONNECTIONS_MAX = 32
_PAGES_MAX = 8
_HEAD_S_MAX = 5.0
_HEAD_BYTES_MAX = 32 * 1024
_CLIENT_TIMEOUT_S = 10.0
_CONNECTION_S_MAX = 60.0
_TOKEN_CHARS_MIN = 16
# Headers carry ASCII unchanged, except spaces at the ends.
_TOKEN_TEXT = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_GZIP_FROM_BYTES = 1_024
_POLL_S = 0.1
_INDEX = b"""\
/metrics       Prometheus's metrics
/health        state of the flows, as JSON
/health/live   whether the process works
/health/ready  whether it mirrors
"""
_PLAIN = "text/plain; charset=utf-8"


class MetricsServer:
    """A running server; ``close`` stops it. ``url``: the address that it listens on."""

    def __init__(self, server: _Server, address: Address) -> None:
        self._server = server
        host, port = server.server_address[:2]
        shown = f"[{host!s}]" if address.family is socket.AF_INET6 else str(host)
        self.url = f"{'https' if server.context else 'http'}://{shown}:{port}"
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_S,), name="sparkmirror-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; requests in progress end with their threads."""
        self._server.shutdown()
        self._server.server_close()


def check_metrics_server(settings: MetricsSettings) -> tuple[Address, _Token, _Certificate | None]:
    """Check that listening as ``settings`` say is safe, and that their files can be used.

    Raises `ConfigError`, also for an address that others could reach without TLS and a token.
    """
    address = resolve(settings.listen, settings.where)
    guarded = bool(settings.tls_cert and (settings.token or settings.token_file))
    if not address.loopback and not guarded:
        raise ConfigError(
            f"metrics on {settings.listen} could be read by anybody who can connect to this"
            " machine.",
            where=settings.where,
            do="Listen on 127.0.0.1, or set sparkmirror.metrics.tls.cert and .key, and"
            " sparkmirror.metrics.token (or sparkmirror.metrics.token.file).",
        )
    token = _Token(settings)
    token.expected()
    return address, token, _Certificate(settings) if settings.tls_cert else None


def open_metrics_server(
    settings: MetricsSettings, registry: CollectorRegistry, health: Callable[[], Health]
) -> MetricsServer:
    """Listen as ``settings`` say.

    Raises `ConfigError` like `check_metrics_server`, and `MachineError` if the port cannot be used.
    """
    address, token, context = check_metrics_server(settings)
    try:
        server = _Server(address, registry, health, token, context)
    except OSError as error:
        raise MachineError(
            f"cannot listen on {settings.listen} ({error.strerror}).",
            where=settings.where,
            do="Choose a free port; port 0 means any.",
        ) from error
    return MetricsServer(server, address)


class _Token:
    """The bearer token; a token file is read for each request, so that it can be replaced."""

    def __init__(self, settings: MetricsSettings) -> None:
        self._settings = settings

    def expected(self) -> bytes:
        """The token; empty if none is required. Raises `ConfigError`."""
        settings = self._settings
        text = settings.token
        if settings.token_file:
            try:
                text = Path(settings.token_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"the token file {settings.token_file} cannot be read"
                    f" ({getattr(error, 'strerror', None) or 'it is not text'}).",
                    where=settings.where,
                    do="Name a file that this user may read and that contains only the token.",
                ) from error
        if (settings.token_file or text) and len(text) < _TOKEN_CHARS_MIN:
            raise ConfigError(
                f"the metrics token has fewer than {_TOKEN_CHARS_MIN} characters.",
                where=settings.where,
                do="Use a longer one, for example from: openssl rand -hex 32.",
            )
        if text and not _TOKEN_TEXT.fullmatch(text):
            raise ConfigError(
                "the metrics token contains a character that a header cannot carry, or ends in a "
                "space: no request could match it.",
                where=settings.where,
                do="Use letters and digits, for example from: openssl rand -hex 32.",
            )
        return text.encode()

    def accepts(self, header: str) -> bool:
        """Whether an Authorization header contains the token, or none is required."""
        try:
            expected = self.expected()
        except ConfigError as error:
            log.warning("metrics requests are refused: %s", error)
            return False
        scheme, _, given = header.partition(" ")
        if not expected:
            return True
        same = hmac.compare_digest(given.strip().encode(), expected)
        return scheme.lower() == "bearer" and same


class _Certificate:
    """The TLS context; certificate files are reloaded when they change."""

    def __init__(self, settings: MetricsSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._context: ssl.SSLContext
        self._loaded: tuple[int, int] = (0, 0)
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the certificate {settings.tls_cert} and key {settings.tls_key} cannot be used"
                f" ({getattr(error, 'strerror', None) or error}).",
                where=settings.where,
                do="Give PEM files: a certificate chain, and its private key without a password.",
            ) from error

    def _load(self) -> None:
        stamps = (self._stamp(self._settings.tls_cert), self._stamp(self._settings.tls_key))
        if stamps != self._loaded:
            # A new context, because one that fails to load a certificate loses its former key.
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            # Without a password, OpenSSL would prompt on the terminal; an empty one fails instead.
            context.load_cert_chain(self._settings.tls_cert, self._settings.tls_key, password="")
            self._context, self._loaded = context, stamps

    @staticmethod
    def _stamp(path: str) -> int:
        return os.stat(path).st_mtime_ns

    def context(self) -> ssl.SSLContext:
        """The context with the newest certificate that could be loaded."""
        with self._lock:
            try:
                self._load()
            except (OSError, ssl.SSLError) as error:
                log.warning("metrics continue with the previous certificate: %s", error)
        return self._context


@dataclass(slots=True, eq=False)
class _Connection:
    """One client connection.

    ``socket``: the plain or the TLS socket. ``ends``: its deadline in monotonic seconds. ``waits``:
    whether it still waits for the handshake or the head of the request.
    """

    socket: socket.socket
    address: str
    ends: float
    waits: bool = True

    def hang_up(self) -> None:
        """Shut the connection down, so that its thread ends."""
        with contextlib.suppress(OSError):
            # Not SSLSocket's method, which would remove the TLS state that the other thread uses.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class _Connections:
    """All connections, oldest first; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[_Connection, None] = {}
        self._leaving: dict[_Connection, None] = {}

    def admit(self, one: _Connection) -> bool:
        """Add ``one``; if there are too many, it replaces one that waits. False: refused."""
        with self._lock:
            same = [other for other in self._all if other.address == one.address]
            if len(same) >= _ADDRESS_CONNECTIONS_MAX:
                crowd = same
            elif len(self._all) >= _CONNECTIONS_MAX:
                crowd = list(self._all)
            else:
                self._all[one] = None
                return True
            waiting = next((other for other in crowd if other.waits), None)
            if waiting is None:
                return False
            self._leaving[waiting] = self._all.pop(waiting)
            self._all[one] = None
        waiting.hang_up()
        return True

    def head_read(self, one: _Connection) -> None:
        """Set the deadline of the response, now that the head of the request was read."""
        with self._lock:
            one.waits = False
            one.ends = time.monotonic() + _CONNECTION_S_MAX

    def leave(self, one: _Connection) -> None:
        with self._lock:
            self._all.pop(one, None)
            self._leaving.pop(one, None)

    def end_late_ones(self) -> None:
        """Close connections whose deadline has passed; received bytes do not extend it."""
        now = time.monotonic()
        with self._lock:
            late = [one for one in self._all if one.ends < now]
            late += self._leaving  # again: TLS wrapping may have replaced the socket meanwhile
        for one in late:
            one.hang_up()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: Address,
        registry: CollectorRegistry,
        health: Callable[[], Health],
        token: _Token,
        context: _Certificate | None,
    ) -> None:
        self.registry = registry
        self.health = health
        self.token = token
        self.context = context
        self.pages_free = threading.BoundedSemaphore(_PAGES_MAX)
        self.connections = _Connections()
        self.address_family = address.family
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """Bind like the base class, but without a DNS lookup of the host's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def service_actions(self) -> None:
        """Called several times a second, and after each new connection."""
        self.connections.end_late_ones()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in its own thread."""
        one = _Connection(request, _network(client_address[0]), time.monotonic() + _HEAD_S_MAX)
        if not self.connections.admit(one):
            log.debug("too many connections: the one from %s is closed", client_address)
            self.shutdown_request(request)
            return
        thread = threading.Thread(
            target=self._serve, args=(one, client_address), name="sparkmirror-http", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            self.connections.leave(one)
            self.shutdown_request(request)
            log.warning("a request is dropped: %s", error)

    def _serve(self, one: _Connection, client_address: Any) -> None:
        """Handle the request of one connection, then close it."""
        try:
            one.socket.settimeout(_CLIENT_TIMEOUT_S)
            if self.context is not None:
                one.socket = self.context.context().wrap_socket(
                    one.socket, server_side=True, do_handshake_on_connect=False
                )
                one.socket.do_handshake()
            _Handler(one, client_address, self)
        except Exception:  # clients that close the connection or use another protocol
            self.handle_error(one.socket, client_address)
        finally:
            self.connections.leave(one)
            self.shutdown_request(one.socket)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at debug level: such clients closed the connection or use another protocol."""
        log.debug("request from %s failed", client_address, exc_info=True)


class _Head:
    """A connection's input, limited to the maximum size of a request's head."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._room = _HEAD_BYTES_MAX

    def readline(self, limit: int = -1) -> bytes:
        """Like a file's method. Raises LineTooLong if the head exceeds the limit."""
        most = self._room if limit < 0 else min(limit, self._room)
        line = self._source.readline(most)
        self._room -= len(line)
        if not self._room:
            raise http.client.LineTooLong("head")
        return line

    def close(self) -> None:
        """Like a file's method."""
        self._source.close()

    @property
    def closed(self) -> bool:
        """Like a file's property."""
        return self._source.closed


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_TIMEOUT_S
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = _PLAIN
    _PAGES: ClassVar[dict[str, str]] = {
        "": "_index",
        "/metrics": "_metrics",
        "/health": "_health",
        "/health/live": "_live",
        "/health/ready": "_ready",
    }

    def __init__(self, one: _Connection, client_address: Any, server: _Server) -> None:
        self._one = one
        super().__init__(one.socket, client_address, server)

    def setup(self) -> None:
        """Set up like the base class, with a limit on the head."""
        super().setup()
        self.rfile = _Head(self.rfile)  # type: ignore[assignment, arg-type]

    def handle_one_request(self) -> None:
        """Handle a request like the base class; close the connection if its head is too long."""
        try:
            super().handle_one_request()
        except http.client.LineTooLong:
            self.close_connection = True

    def do_GET(self) -> None:
        """Respond with one of the pages."""
        self.server.connections.head_read(self._one)
        path = self.path.partition("?")[0].rstrip("/")
        page = self._PAGES.get(path)
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif page in ("_metrics", "_health") and not self.server.token.accepts(
            self.headers.get("Authorization", "")
        ):
            self._respond(HTTPStatus.UNAUTHORIZED, b"a bearer token is needed\n")
        elif page in ("_live", "_ready", "_index"):
            getattr(self, page)()
        elif not self.server.pages_free.acquire(blocking=False):
            self._respond(HTTPStatus.SERVICE_UNAVAILABLE, b"busy\n")
        else:
            try:
                getattr(self, page)()
            finally:
                self.server.pages_free.release()

    do_HEAD = do_GET  # noqa: N815

    def _index(self) -> None:
        self._respond(HTTPStatus.OK, _INDEX)

    def _metrics(self) -> None:
        try:
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        except (TypeError, ValueError):  # the header names a version that is no number
            encode, content_type = choose_encoder("")
        self._respond(HTTPStatus.OK, encode(self.server.registry), content_type)

    def _health(self) -> None:
        health = self.server.health()
        document = {"live": health.live, "ready": health.ready, **health.details}
        body = json.dumps(document, ensure_ascii=False).encode() + b"\n"
        self._respond(_status(health.live and health.ready), body, "application/json")

    def _live(self) -> None:
        live = self.server.health().live
        self._respond(_status(live), b"live\n" if live else b"not live\n")

    def _ready(self) -> None:
        ready = self.server.health().ready
        self._respond(_status(ready), b"ready\n" if ready else b"not ready\n")

    def _respond(self, status: HTTPStatus, body: bytes, content_type: str = _PLAIN) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        if len(body) >= _GZIP_FROM_BYTES and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """The name in the Server header; hides the Python version."""
        return "sparkmirror"

    def log_message(self, format: str, *args: object) -> None:
        """Write to the log file, not to the terminal."""
        log.debug("%s " + format, self.client_address[0], *args)


def _network(host: str) -> str:
    """The address for the per-address limit; for IPv6 the /64 network, which one client may own."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return address.exploded[:19]
    return host


def _status(good: bool) -> HTTPStatus:
    return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
