"""Checks the bootstrap servers of a cluster before anything else is done with it.

It uses its own sockets: a client library can only report that it could not bootstrap, and the user
needs to know how each server failed.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sparkmirror.errors import ConfigError, MirrorError, NotKafka, Unreachable, Unsupported
from sparkmirror.model import ClusterClient
from sparkmirror.wire.net.connection import Connection

__all__ = ["REACH_TIMEOUT_MS", "PortProtocol", "Reached", "reach", "recognise"]

REACH_TIMEOUT_MS = 10_000

_SILENT = "it accepts connections but never answers"
_WEB_SERVER = "it is a web server (it answers HTTP)"
_TLS = "it speaks TLS: it is an SSL or SASL_SSL listener, or a web server"
_FRAME_BYTES_MAX = 1 << 20
_METADATA_FRAME_BYTES_MAX = 100_000_000
_API_VERSIONS, _METADATA, _PRODUCE, _FETCH = 18, 3, 0, 1
# Record batches (magic 2) travel from these versions on: brokers of 0.11 and later.
_OLDEST = {_PRODUCE: ("Produce", 3), _FETCH: ("Fetch", 4)}


@dataclass(frozen=True, slots=True)
class Reached:
    """The bootstrap server that responded; ``api_versions``: {key: (lowest, highest)}."""

    host: str
    port: int
    api_versions: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why one server cannot be used; ``kind``: the class of the error."""

    server: str
    kind: type[MirrorError]
    what: str
    do: str


def reach(client: ClusterClient, *, timeout_ms: int | None = None) -> Reached:
    """Check all bootstrap servers in parallel; the first that speaks Kafka's protocol wins.

    Takes at most ``timeout_ms`` (default: the request timeout, at most 10 s). Raises an error that
    names every server and its failure: `Unreachable`, or the common class of all failures
    (`NotKafka`, `Unsupported`, `Denied` …). Raises `ConfigError` for an empty or malformed list.
    """
    where = f"cluster {client.alias}"
    addresses = [_address(server, where) for server in client.bootstrap_servers]
    if not addresses:
        raise ConfigError(
            "there is no bootstrap server.",
            where=where,
            do=f"Set {client.alias}.bootstrap.servers to host:port.",
        )
    bound_ms = min(client.request_timeout_ms, REACH_TIMEOUT_MS)
    timeout_s = (bound_ms if timeout_ms is None else timeout_ms) / 1000
    deadline = time.monotonic() + timeout_s
    answers: queue.SimpleQueue[Reached | _Failure] = queue.SimpleQueue()
    for host, port in addresses:
        # Name resolution has no timeout, so it runs in threads that may be abandoned.
        threading.Thread(
            target=_probe_into,
            args=(answers, host, port, client, deadline),
            name=f"reach-{host}:{port}",
            daemon=True,
        ).start()
    waiting = [f"{host}:{port}" for host, port in addresses]
    failures: list[_Failure] = []
    while waiting:
        try:
            answer = answers.get(timeout=max(0.0, deadline + 0.2 - time.monotonic()))
        except queue.Empty:
            failures += [_unresolved(server, timeout_s) for server in waiting]
            break
        if isinstance(answer, Reached):
            return answer
        waiting.remove(answer.server)
        failures.append(answer)
    raise _no_server(client.alias, failures)


class PortProtocol(StrEnum):
    """The protocol of a port, as far as it shows without TLS and without a login."""

    KAFKA = "it speaks Kafka without TLS"
    TLS = _TLS
    HTTP = _WEB_SERVER
    UNKNOWN = "its protocol is unknown"


def recognise(address: tuple[str, int], timeout_s: float) -> PortProtocol:
    """The protocol at ``address`` (IP address, port), within ``timeout_s``; never raises.

    For error messages about ports that cannot be used.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with socket.create_connection(address, timeout=timeout_s) as sock:
            found = _talk(sock, "", "sparkmirror", time.monotonic() + timeout_s / 2)
            family = sock.family
    except OSError:
        return PortProtocol.UNKNOWN
    if isinstance(found, dict) or found.kind is Unsupported:
        return PortProtocol.KAFKA
    if found.what == _TLS:
        return PortProtocol.TLS
    if found.what == _WEB_SERVER or _answers_http(family, address, deadline):
        return PortProtocol.HTTP
    return PortProtocol.UNKNOWN


def _address(server: str, where: str) -> tuple[str, int]:
    host, colon, port = server.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"'{server}' is not host:port.", where=where, do="Write bootstrap.servers as host:port."
        )
    return host.strip("[]"), int(port)


def _unresolved(server: str, timeout_s: float) -> _Failure:
    return _Failure(
        server,
        Unreachable,
        f"no answer within {timeout_s:.1f} s (name resolution hangs)",
        "Check the DNS servers of this machine.",
    )


def _no_server(alias: str, failures: list[_Failure]) -> MirrorError:
    kinds = {failure.kind for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 else Unreachable
    tried = "; ".join(f"{failure.server}: {failure.what}" for failure in failures)
    advice = dict.fromkeys(failure.do for failure in failures)
    count = "the bootstrap server" if len(failures) == 1 else "none of the bootstrap servers"
    verb = "cannot be used" if len(failures) == 1 else "can be used"
    return kind(f"{count} {verb} ({tried}).", where=f"cluster {alias}", do=" ".join(advice))


def _probe_into(
    answers: queue.SimpleQueue[Reached | _Failure],
    host: str,
    port: int,
    client: ClusterClient,
    deadline: float,
) -> None:
    answers.put(_probe(host, port, client, deadline))


def _probe(host: str, port: int, client: ClusterClient, deadline: float) -> Reached | _Failure:
    """Try every address of ``host`` until one works.

    Otherwise it returns a failure, preferably that of an address that accepted a connection.
    """
    server = f"{host}:{port}"
    if client.security_protocol != "PLAINTEXT":
        return _probe_secure(server, host, port, client, deadline)
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return _Failure(
            server,
            Unreachable,
            f"the name does not resolve ({_reason(error)})",
            "Check the spelling of the host name and the DNS of this machine.",
        )
    failure: _Failure | None = None
    for family, kind, protocol, _, address in infos:
        limit = min(deadline, time.monotonic() + client.connect_timeout_ms / 1000)
        with socket.socket(family, kind, protocol) as sock:
            try:
                sock.settimeout(max(0.05, limit - time.monotonic()))
                sock.connect(address)
            except OSError as error:
                failure = failure or _no_connection(server, error)
                continue
            # The last fifth is for the HTTP request that recognises a silent web server.
            patience_s = 0.8 * (deadline - time.monotonic())
            result = _talk(sock, server, client.client_id, time.monotonic() + patience_s)
        if isinstance(result, dict):
            return _check_versions(server, host, port, result)
        if result.what == _SILENT and _answers_http(family, address, deadline):
            result = _not_kafka(server, _NotKafkaError(_WEB_SERVER))
        failure = result
    return failure or _Failure(server, Unreachable, "the name has no address", "Check the DNS.")


def _probe_secure(
    server: str, host: str, port: int, client: ClusterClient, deadline: float
) -> Reached | _Failure:
    """`_probe` with a real connection, because TLS and the login must be tried, too."""
    left_ms = max(50, int((deadline - time.monotonic()) * 1000))
    bounded = replace(
        client,
        connect_timeout_ms=min(left_ms, client.connect_timeout_ms),
        request_timeout_ms=min(left_ms, client.request_timeout_ms),
    )
    try:
        connection = Connection(host, port, bounded)
    except MirrorError as error:
        cause = error.__cause__
        kind = ConfigError if isinstance(cause, ConfigError) else type(error)
        return _Failure(server, kind, error.what.rstrip("."), error.do)
    connection.close()
    return _check_versions(server, host, port, connection.api_versions)


def _no_connection(server: str, error: OSError) -> _Failure:
    if isinstance(error, TimeoutError):
        return _Failure(
            server,
            Unreachable,
            "connecting timed out",
            "Check the address and the firewalls in between.",
        )
    if isinstance(error, ConnectionRefusedError):
        return _Failure(
            server,
            Unreachable,
            "connection refused",
            "Check that the broker runs and listens on that port.",
        )
    return _Failure(
        server,
        Unreachable,
        f"connecting failed ({_reason(error)})",
        "Check the address and the network in between.",
    )


def _talk(
    sock: socket.socket, server: str, client_id: str, deadline: float
) -> dict[int, tuple[int, int]] | _Failure:
    """Request ApiVersions, then Metadata without topics; returns the versions, or the failure.

    Metadata shows whether a login is needed: a SASL listener responds to ApiVersions without a
    login, and closes the connection at the next request.
    """
    try:
        sock.sendall(_request(_API_VERSIONS, 1, client_id, b""))
        body = _receive_frame(sock, 1, deadline, _FRAME_BYTES_MAX)
        versions = _read_api_versions(body)
    except TimeoutError:
        return _Failure(
            server,
            Unreachable,
            _SILENT,
            "Check that the port is a Kafka listener and that the broker is not stuck.",
        )
    except (_NotKafkaError, struct.error, OSError) as error:
        return _not_kafka(server, error)
    try:
        sock.sendall(_request(_METADATA, 2, client_id, struct.pack(">i", 0)))
        _receive_frame(sock, 2, deadline, _METADATA_FRAME_BYTES_MAX)
    except TimeoutError:
        return _Failure(
            server,
            Unreachable,
            "it answers, but returns no metadata in time",
            "Check the broker's log: it may be starting or overloaded.",
        )
    except (_NotKafkaError, OSError) as error:
        return _Failure(
            server,
            Unsupported,
            f"it speaks Kafka, but closes connections without a login ({_reason(error)})",
            "It looks like a SASL listener: set security.protocol=SASL_PLAINTEXT, sasl.mechanism "
            "and sasl.jaas.config.",
        )
    return versions


class _NotKafkaError(Exception):
    """The response is not from a Kafka broker; the text says what it looks like."""


def _answers_http(family: int, address: Any, deadline: float) -> bool:
    """Whether a server that does not respond to Kafka responds to HTTP, on a new connection.

    Some web servers wait for the end of a line, which Kafka's protocol never sends.
    """
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            sock.settimeout(max(0.05, deadline - time.monotonic()))
            sock.connect(address)
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return _receive(sock, 5, deadline) == b"HTTP/"
        except (OSError, _NotKafkaError):
            return False


def _not_kafka(server: str, error: BaseException) -> _Failure:
    known = isinstance(error, _NotKafkaError)
    what = str(error) if known else f"it closed the connection ({_reason(error)})"
    return _Failure(
        server,
        NotKafka,
        what,
        "Check the port and security.protocol: it must be a PLAINTEXT listener of a Kafka broker.",
    )


def _request(api_key: int, correlation: int, client_id: str, body: bytes) -> bytes:
    """A version-0 request with its size (Metadata: version 1, in which 0 topics means none)."""
    name = client_id.encode()
    version = 1 if api_key == _METADATA else 0
    head = struct.pack(">hhih", api_key, version, correlation, len(name))
    return struct.pack(">i", len(head) + len(name) + len(body)) + head + name + body


def _receive_frame(sock: socket.socket, correlation: int, deadline: float, limit: int) -> bytes:
    """One response body. Raises `_NotKafkaError`, ``TimeoutError`` or ``OSError``."""
    head = _receive(sock, 4, deadline)
    if head[:2] in (b"\x15\x03", b"\x16\x03"):
        raise _NotKafkaError(_TLS)
    if head.startswith(b"HTTP"):
        raise _NotKafkaError(_WEB_SERVER)
    size: int = struct.unpack(">i", head)[0]
    if not 4 <= size <= limit:
        raise _NotKafkaError(f"it answers, but not in Kafka's protocol (first bytes {head!r})")
    body = _receive(sock, size, deadline)
    if struct.unpack_from(">i", body)[0] != correlation:
        raise _NotKafkaError("it answers, but not in Kafka's protocol (wrong correlation id)")
    return body[4:]


def _receive(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        sock.settimeout(left_s)
        part = sock.recv(min(65536, size - len(data)))
        if not part:
            said = f"after {bytes(data)!r}" if data else "without an answer"
            raise _NotKafkaError(f"it closed the connection {said}")
        data += part
    return bytes(data)


def _read_api_versions(body: bytes) -> dict[int, tuple[int, int]]:
    error, count = struct.unpack_from(">hi", body)
    if error or not 0 < count <= (len(body) - 6) // 6:
        raise _NotKafkaError(f"its ApiVersions response is invalid (error {error})")
    rows = struct.iter_unpack(">hhh", body[6 : 6 + 6 * count])
    return {key: (lowest, highest) for key, lowest, highest in rows}


def _check_versions(
    server: str, host: str, port: int, versions: dict[int, tuple[int, int]]
) -> Reached | _Failure:
    for key, (name, oldest) in _OLDEST.items():
        highest = versions.get(key, (0, -1))[1]
        if highest < oldest:
            return _Failure(
                server,
                Unsupported,
                f"the broker is too old ({name} API up to version {highest}, {oldest} is needed)",
                "Brokers from 0.11 on are supported.",
            )
    return Reached(host, port, versions)


def _reason(error: BaseException) -> str:
    strerror = getattr(error, "strerror", None)
    return str(strerror or error or type(error).__name__)
