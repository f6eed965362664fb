"""The mirror's own surface: ``/metrics`` and ``/health`` over HTTP.

It listens on this machine only, unless TLS and a bearer token guard it. Health probes that say
one word (``/health/live``, ``/health/ready``) need no token: orchestrators have none to give.

Requests are answered by a few threads at most, each with a time limit, so that slow or many
clients cost the mirror nothing; the clients beyond them are hung up on.
"""

from __future__ import annotations

import contextlib
import gzip
import hmac
import json
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from sparkmirror.errors import ConfigError, MachineError
from sparkmirror.model import MetricsSettings
from sparkmirror.observe.address import Address, resolve
from sparkmirror.observe.health import Health

__all__ = ["Surface", "open_surface"]

log = logging.getLogger(__name__)

_THREADS_MAX = 8
_CLIENT_TIMEOUT_S = 10.0
_CONNECTION_S_MAX = 60.0
_TOKEN_CHARS_MIN = 16
_GZIP_FROM_BYTES = 1_024
_POLL_S = 0.1
_PLAIN = "text/plain; charset=utf-8"


class Surface:
    """A running server; ``close`` ends it. ``url`` says where it listens."""

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
        """Stop listening; requests under way end with their threads."""
        self._server.shutdown()
        self._server.server_close()


def open_surface(
    settings: MetricsSettings, registry: CollectorRegistry, health: Callable[[], Health]
) -> Surface:
    """Listen as ``settings`` say.

    Raises `ConfigError` for an address that is none, or that others could reach without TLS and a
    token; `MachineError` when the port cannot be had.
    """
    address = resolve(settings.listen, settings.where)
    guarded = bool(settings.tls_cert and (settings.token or settings.token_file))
    if not address.loopback and not guarded:
        raise ConfigError(
            f"metrics on {settings.listen} could be read by everybody who reaches this machine.",
            where=settings.where,
            do="Listen on 127.0.0.1, or set sparkmirror.metrics.tls.cert and .key, and"
            " sparkmirror.metrics.token (or sparkmirror.metrics.token.file).",
        )
    token = _Token(settings)
    token.expected()
    context = _Certificate(settings) if settings.tls_cert else None
    try:
        server = _Server(address, registry, health, token, context)
    except OSError as error:
        raise MachineError(
            f"cannot listen on {settings.listen} ({error.strerror}).",
            where=settings.where,
            do="Choose a free port; port 0 takes any.",
        ) from error
    return Surface(server, address)


class _Token:
    """The bearer token; a token file is read anew for each request, so that it can be replaced."""

    def __init__(self, settings: MetricsSettings) -> None:
        self._settings = settings

    def expected(self) -> bytes:
        """The token, empty when none is asked for. Raises `ConfigError`."""
        settings = self._settings
        text = settings.token
        if settings.token_file:
            try:
                text = Path(settings.token_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"the token file {settings.token_file} cannot be read"
                    f" ({getattr(error, 'strerror', None) or 'it is no text'}).",
                    where=settings.where,
                    do="Name a file that this user may read and that holds the token alone.",
                ) from error
        if (settings.token_file or text) and len(text) < _TOKEN_CHARS_MIN:
            raise ConfigError(
                f"the metrics token has fewer than {_TOKEN_CHARS_MIN} characters.",
                where=settings.where,
                do="Take a longer one, for example from: openssl rand -hex 32.",
            )
        return text.encode()

    def accepts(self, header: str) -> bool:
        """Whether an Authorization header holds the token, or none is asked for."""
        try:
            expected = self.expected()
        except ConfigError as error:
            log.warning("metrics are refused: %s", error)
            return False
        scheme, _, given = header.partition(" ")
        if not expected:
            return True
        same = hmac.compare_digest(given.strip().encode(), expected)
        return scheme.lower() == "bearer" and same


class _Certificate:
    """The TLS context; renewed certificate files are loaded when they change."""

    def __init__(self, settings: MetricsSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
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
            # A password would be asked for on the terminal: an empty one fails instead.
            self._context.load_cert_chain(
                self._settings.tls_cert, self._settings.tls_key, password=""
            )
            self._loaded = stamps

    @staticmethod
    def _stamp(path: str) -> int:
        return os.stat(path).st_mtime_ns

    def context(self) -> ssl.SSLContext:
        """The context with the newest certificate that could be loaded."""
        with self._lock:
            try:
                self._load()
            except (OSError, ssl.SSLError) as error:
                log.warning("metrics go on with the former certificate: %s", error)
        return self._context


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

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
        self._free = threading.BoundedSemaphore(_THREADS_MAX)
        self.address_family = address.family
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """As the base class, without asking a name server who we are."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, if one is free."""
        if not self._free.acquire(blocking=False):
            log.debug("too many requests: %s is hung up on", client_address)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection, which ends after it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """The TLS handshake happens here, in the connection's own thread."""
        request.settimeout(_CLIENT_TIMEOUT_S)
        if self.context is None:
            self._answer(request, client_address)
            return
        with self.context.context().wrap_socket(request, server_side=True) as wrapped:
            self._answer(wrapped, client_address)

    def _answer(self, request: Any, client_address: Any) -> None:
        """Within a time that no client can stretch by sending a byte now and then."""
        timer = threading.Timer(_CONNECTION_S_MAX, _hang_up, (request,))
        timer.daemon = True
        timer.start()
        try:
            super().finish_request(request, client_address)
        finally:
            timer.cancel()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up or speak something else are no concern of the mirror's."""
        log.debug("request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_TIMEOUT_S
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = _PLAIN
    _PAGES: ClassVar[dict[str, str]] = {
        "/metrics": "_metrics",
        "/health": "_health",
        "/health/live": "_live",
        "/health/ready": "_ready",
    }

    def do_GET(self) -> None:
        """Answer one of the pages."""
        path = self.path.partition("?")[0].rstrip("/")
        page = self._PAGES.get(path)
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif page in ("_metrics", "_health") and not self.server.token.accepts(
            self.headers.get("Authorization", "")
        ):
            self._answer(HTTPStatus.UNAUTHORIZED, b"a bearer token is needed\n")
        else:
            getattr(self, page)()

    do_HEAD = do_GET  # noqa: N815

    def _metrics(self) -> None:
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        self._answer(HTTPStatus.OK, encode(self.server.registry), content_type)

    def _health(self) -> None:
        health = self.server.health()
        document = {"live": health.live, "ready": health.ready, **health.details}
        body = json.dumps(document, ensure_ascii=False).encode() + b"\n"
        self._answer(_status(health.live and health.ready), body, "application/json")

    def _live(self) -> None:
        live = self.server.health().live
        self._answer(_status(live), b"live\n" if live else b"not live\n")

    def _ready(self) -> None:
        ready = self.server.health().ready
        self._answer(_status(ready), b"ready\n" if ready else b"not ready\n")

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = _PLAIN) -> None:
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
        """What we call ourselves: not which Python this is."""
        return "sparkmirror"

    def log_message(self, format: str, *args: object) -> None:
        """Into the log file, not onto the terminal."""
        log.debug("%s " + format, self.client_address[0], *args)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _status(good: bool) -> HTTPStatus:
    return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
