"""Asks a broker who it is, with the two oldest requests of the protocol and nothing else.

The brokers here may be of any version and may be half started, so this speaks the wire by hand:
Metadata version 1, which every Kafka from 0.10 on answers.
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

    Raises OSError when it does not answer in time, EOFError or struct.error when it hangs up
    or answers something else.
    """
    # api key, version, correlation id, client id "probe", no topics asked for
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
    """Whether a server could listen on ``host:port`` at this moment."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((host, port))
        except OSError:
            return False
        return True


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """``count`` different free ports, below those that the system gives to clients.

    A client's own end of a connection may sit on any port of the system's range; a broker that
    is restarted could then not get its port back.
    """
    if count > _PORT_COUNT_MAX:
        raise Defect(f"{count} ports are more than are kept free")
    # The system's choice for a listening socket is unguessable, so its last digits are a fair
    # start for the search, and two processes that search at once start at different places.
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
