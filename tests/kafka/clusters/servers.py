"""Servers that are no Kafka: what a wrong line in a file may lead to."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Callable, Iterator

from sparkmirror.testing.probe import free_ports

HOST = "127.0.0.1"


@contextlib.contextmanager
def listener(answer: Callable[[socket.socket], None] | None = None) -> Iterator[str]:
    """A server on a free port that takes connections and gives each to ``answer``, if any."""
    with socket.create_server((HOST, 0)) as server:
        taken: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):  # the end of the test closes the server
                while True:
                    connection, _ = server.accept()
                    taken.append(connection)
                    if answer is not None:
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"{HOST}:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in taken:
            connection.close()


def refused() -> str:
    (port,) = free_ports(1)
    return f"{HOST}:{port}"


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@contextlib.contextmanager
def web_server() -> Iterator[str]:
    """An HTTP server on a free port."""
    web = http.server.ThreadingHTTPServer((HOST, 0), _QuietHandler)
    thread = threading.Thread(target=web.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"{HOST}:{web.server_port}"
    finally:
        web.shutdown()
        web.server_close()
        thread.join(5)
