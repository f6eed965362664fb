"""Asks a broker which brokers it knows, with one request; and finds free ports.

Brokers may have any version and may still be starting. So this module encodes the request itself:
Metadata version 1, which every Kafka from 0.10 on supports.
"""

from __future__ import annotations

import socket
import struct

from sparkmirror.errors import Defect

__all__ = ["broker_ids", "free_ports", "port_is_free"]

_METADATA = 3
_VERSION = 1
_RESPONSE_BYTES_MAX = 1 << 20
_PORT_MIN, _PORT_COUNT_MAX = 20_000, 64


def broker_ids(host: str, port: int, *, timeout_s: float = 2.0) -> frozenset[int]:
    """Ids of the brokers that the one at ``host:port`` knows to be alive.

    Raises OSError if it does not respond in time, EOFError or struct.error if it closes the
    connection or its response is malformed.
    """
    # api key, version, correlation id, client id "probe", no topics
    request = struct.pack(">hhih5si", _METADATA, _VERSION, 1, 5, b"probe", 0)
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        if not 8 <= size <= _RESPONSE_BYTES_MAX:
            raise EOFError(f"response of {size} bytes")
        body = _receive(connection, size)
    _, count = struct.unpack_from(">ii", body, 0)
    at, ids = 8, set()
    for _ in range(count):
        node, host_length = struct.unpack_from(">ih", body, at)
        at += 6 + host_length + 4
        (rack_length,) = struct.unpack_from(">h", body, at)
        at += 2 + max(rack_length, 0)
        ids.add(node)
    return frozenset(ids)


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise EOFError("connection closed")
        parts += part
    return bytes(parts)


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on ``host:port`` now."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((host, port))
        except OSError:
            return False
        return True


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """``count`` different free ports, below the system's range of ephemeral ports.

    A client connection may use any ephemeral port. A broker with such a port could then not be
    restarted on it.
    """
    if count > _PORT_COUNT_MAX:
        raise Defect(f"{count} ports are more than are kept free")
    # The system chooses a random port for a listening socket. The search starts at its last digits,
    # so two processes that search at the same time start at different ports.
    held: list[socket.socket] = []
    try:
        with socket.socket() as seed:
            seed.bind((host, 0))
            start = seed.getsockname()[1] % 10_000
        for step in range(10_000):
            server = socket.socket()
            try:
                server.bind((host, _PORT_MIN + (start + step) % 10_000))
            except OSError:
                server.close()
                continue
            held.append(server)
            if len(held) == count:
                break
        return [server.getsockname()[1] for server in held]
    finally:
        for server in held:
            server.close()
