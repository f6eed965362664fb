"""Checks the path to one broker step by step: name, TCP, TLS, Kafka, login, metadata.

A client only reports that it could not connect; `check_path` reports the step that failed and why.
It changes nothing, and takes no longer than the given time. All steps use one connection of the
kind that the mirror uses. Only after a failure are there others, which find out what the port is.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from kafka.protocol.metadata import MetadataRequest

from sparkmirror.config.clients.security import uses_sasl, uses_tls
from sparkmirror.errors import (
    ConfigError,
    Defect,
    MirrorError,
    NotKafka,
    Unreachable,
    Unsupported,
)
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.views import BrokerView, ClusterView
from sparkmirror.wire.net.connection import (
    Connection,
    ConnectionLost,
    ForeignResponse,
    PortProtocol,
)

__all__ = [
    "DNS",
    "KAFKA",
    "LOGIN",
    "TCP",
    "TLS",
    "BrokerPath",
    "Resolver",
    "Step",
    "check_path",
    "resolve",
]

DNS, TCP, TLS, KAFKA, LOGIN = "dns", "tcp", "tls", "api-versions", "sasl"

_EXPIRY_WARNING_DAYS = 30
_GREETING_SHARE = 0.7
_RECOGNISE_S_MAX = 2.0
_SILENT = "it accepts connections but never answers"
_INSTEAD_OF_TLS = {
    PortProtocol.KAFKA: "Name the port of the broker's listener with TLS, or set security.protocol="
    "PLAINTEXT (SASL_PLAINTEXT with a login).",
    PortProtocol.HTTP: "Check the port: it must be a listener of a Kafka broker.",
}
# Record batches (magic 2) travel from these versions on: brokers of 0.11 and later.
_OLDEST = {0: ("Produce", 3), 1: ("Fetch", 4)}

Resolver = Callable[[str, int], list[tuple[int, str]]]
"""(host, port) to (address family, address) pairs; raises OSError as getaddrinfo does."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step: what was found, and what to do about it.

    ``outcome``: ``ok``, ``warn`` (it works, with a problem) or ``fail``. ``kind``: the class of the
    error that a failure is.
    """

    name: str
    outcome: str
    found: str
    do: str = ""
    kind: type[MirrorError] = Unreachable


@dataclass(frozen=True, slots=True)
class BrokerPath:
    """The steps to ``host:port``, up to the first that failed.

    ``cluster``: the broker's metadata, None if there was none. ``versions``: its API versions,
    {key: (lowest, highest)}.
    """

    host: str
    port: int
    steps: tuple[Step, ...]
    cluster: ClusterView | None = None
    versions: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether the broker was reached and returned metadata."""
        return self.cluster is not None


def resolve(host: str, port: int) -> list[tuple[int, str]]:
    """(family, address) pairs of ``host`` from the system's resolver, without duplicates."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((int(info[0]), str(info[4][0])) for info in infos))


def check_path(
    client: ClusterClient, host: str, port: int, *, timeout_s: float, resolver: Resolver = resolve
) -> BrokerPath:
    """Check ``host:port`` with the settings of ``client``; never raises, takes ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    steps: list[Step] = []
    try:
        addresses = _resolved(host, port, deadline, resolver)
    except (OSError, UnicodeError) as error:
        return BrokerPath(host, port, (_no_name(error, timeout_s),))
    steps.append(Step(DNS, "ok", f"resolves to {', '.join(text for _, text in addresses)}"))
    patience_s = client.connect_timeout_ms / 1000
    tcp, sock, chosen = _connected(addresses, host, port, deadline, patience_s)
    steps.append(tcp)
    if sock is None:
        return BrokerPath(host, port, tuple(steps))
    address = (chosen, port)
    if uses_tls(client.security_protocol):
        tls, sock = _handshake(client, host, sock, address, deadline)
        steps.append(tls)
        if sock is None:
            return BrokerPath(host, port, tuple(steps))
    found, view, versions = _greeted(client, host, sock, address, deadline)
    return BrokerPath(host, port, (*steps, *found), view, versions)


# -- name and TCP ----------------------------------------------------------------------------------


def _resolved(host: str, port: int, deadline: float, resolver: Resolver) -> list[tuple[int, str]]:
    """Resolve in a thread that is abandoned on a timeout: name resolution has no timeout itself."""
    answers: queue.SimpleQueue[list[tuple[int, str]] | OSError | UnicodeError] = queue.SimpleQueue()

    def query() -> None:
        try:
            answers.put(resolver(host, port))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=query, name=f"resolve-{host}", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.01, 0.75 * (deadline - time.monotonic())))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, Exception):
        raise answer
    if not answer:
        raise OSError("the name has no address")
    return answer


def _no_name(error: Exception, timeout_s: float) -> Step:
    if isinstance(error, TimeoutError):
        return Step(
            DNS,
            "fail",
            f"does not resolve here: no answer within {0.75 * timeout_s:.1f} s",
            "Check that the DNS servers of this machine (/etc/resolv.conf) can be reached.",
        )
    said = getattr(error, "strerror", None) or str(error)
    do = "Check the spelling of the host name and the DNS of this machine."
    return Step(DNS, "fail", f"does not resolve here ({said})", do)


def _connected(
    addresses: list[tuple[int, str]], host: str, port: int, deadline: float, patience_s: float
) -> tuple[Step, socket.socket | None, str]:
    """(the step, a connection to the first address that accepted one or None, that address)."""
    failures: list[tuple[str, OSError]] = []
    for number, (family, address) in enumerate(addresses):
        left_s = (deadline - time.monotonic()) * 0.6 / (len(addresses) - number)
        began = time.monotonic()
        try:
            sock = _connect(family, (address, port), max(0.05, min(left_s, patience_s)))
        except OSError as error:
            failures.append((address, error))
            continue
        ms = (time.monotonic() - began) * 1000
        if failures:
            do = "Remove the unreachable addresses from the DNS, or make them reachable."
            found = f"{address} takes connections, but {_tried(failures, host)}"
            return Step(TCP, "warn", found, do), sock, address
        return Step(TCP, "ok", f"connects in {ms:.1f} ms"), sock, address
    return Step(TCP, "fail", _tried(failures, host), _refusal(failures[0][1])[1]), None, ""


def _connect(family: int, address: tuple[str, int], timeout_s: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)  # fails where this machine has no IPv6
    try:
        sock.settimeout(timeout_s)
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def _tried(failures: list[tuple[str, OSError]], host: str) -> str:
    return "; ".join(
        _refusal(error)[0] if one == host else f"{one}: {_refusal(error)[0]}"
        for one, error in failures
    )


def _refusal(error: OSError) -> tuple[str, str]:
    if isinstance(error, TimeoutError):
        do = "Open the port in the firewalls (network security groups) between here and there."
        return "connecting timed out", do
    if isinstance(error, ConnectionRefusedError):
        do = "Check that the broker runs and listens on that port, not only on 127.0.0.1."
        return "connection refused", do
    do = "Check the routes, network peering or gateway between here and there."
    return f"connecting failed ({error.strerror or error})", do


# -- TLS -------------------------------------------------------------------------------------------


def _handshake(
    client: ClusterClient,
    host: str,
    sock: socket.socket,
    address: tuple[str, int],
    deadline: float,
) -> tuple[Step, socket.socket | None]:
    """(the step, ``sock`` with TLS or None)."""
    # Imported where it is used: plaintext clients do without it.
    from sparkmirror.wire.security.tls import wrap  # noqa: PLC0415

    # The rest of the time is for finding out what else the port is.
    sock.settimeout(max(0.05, (deadline - time.monotonic()) * _GREETING_SHARE))
    try:
        secure = wrap(sock, host, client)
    except ConfigError as error:
        return Step(TLS, "fail", error.what.rstrip("."), error.do, ConfigError), None
    except MirrorError as error:
        found = error.what.rstrip(".")
        silent = isinstance(error, Unreachable)
        shown = "" if silent else _shown_certificate(host, address, deadline)
        if shown:
            return Step(TLS, "fail", f"{found}; {shown}", error.do, type(error)), None
        spoken = _recognise(client, address, deadline)
        if spoken in _INSTEAD_OF_TLS:
            do = _INSTEAD_OF_TLS[spoken]
            return Step(TLS, "fail", f"{found}; {spoken}", do, NotKafka), None
        return Step(TLS, "fail", found, error.do, type(error)), None
    if not isinstance(secure, ssl.SSLSocket):
        raise Defect("a connection without TLS has no certificate")
    agreed = f"{secure.version()}, {(secure.cipher() or ('',))[0]}"
    said, days_left = _described(secure.getpeercert(binary_form=True) or b"")
    if days_left < _EXPIRY_WARNING_DAYS:
        do = "Renew the broker's certificate in time."
        return Step(TLS, "warn", f"{agreed}; {said}", do), secure
    return Step(TLS, "ok", f"{agreed}; {said}"), secure


def _open(address: tuple[str, int], deadline: float) -> socket.socket:
    return socket.create_connection(address, timeout=max(0.05, deadline - time.monotonic()))


def _shown_certificate(host: str, address: tuple[str, int], deadline: float) -> str:
    """Describes a certificate that was refused. No data is sent over this connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        contextlib.suppress(OSError, ValueError),
        _open(address, deadline) as sock,
        context.wrap_socket(sock, server_hostname=host) as secure,
    ):
        return _described(secure.getpeercert(binary_form=True) or b"")[0]
    return ""


def _described(der: bytes) -> tuple[str, float]:
    """(a certificate in one line, days until it expires)."""
    from cryptography import x509  # noqa: PLC0415  (only where TLS is used)

    certificate = x509.load_der_x509_certificate(der)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        listed = [str(name.value) for name in names]
    except x509.ExtensionNotFound:
        listed = [certificate.subject.rfc4514_string()]
    ends = certificate.not_valid_after_utc
    days = (ends - datetime.now(UTC)).total_seconds() / 86_400
    when = f"expired {ends:%Y-%m-%d}" if days < 0 else f"valid until {ends:%Y-%m-%d}"
    issuer = certificate.issuer.rfc4514_string()
    return f"the certificate is for {', '.join(listed)}, by {issuer}, {when}", days


# -- Kafka and login -------------------------------------------------------------------------------


def _greeted(
    client: ClusterClient,
    host: str,
    sock: socket.socket,
    address: tuple[str, int],
    deadline: float,
) -> tuple[list[Step], ClusterView | None, dict[int, tuple[int, int]]]:
    bounded = _bounded(client, (deadline - time.monotonic()) * _GREETING_SHARE)
    try:
        connection = Connection(host, address[1], bounded, connected=sock)
    except MirrorError as error:
        return [_no_greeting(client, error, address, deadline)], None, {}
    sasl = uses_sasl(client.security_protocol)
    try:
        versions = connection.api_versions
        for key, (api, oldest) in _OLDEST.items():
            highest = versions.get(key, (0, -1))[1]
            if highest < oldest:
                old = (
                    f"the broker is too old ({api} API up to version {highest}, {oldest} is needed)"
                )
                do = "Brokers from 0.11 on are supported."
                return [Step(KAFKA, "fail", old, do, Unsupported)], None, {}
        steps = [Step(KAFKA, "ok", f"{len(versions)} APIs, all new enough")]
        try:
            response = connection.request(MetadataRequest(topics=[]), lowest=1, highest=8)
        except (ConnectionLost, MirrorError) as error:
            return [_no_metadata(client, error)], None, {}
        if sasl:
            mechanism = client.properties.get("sasl.mechanism", "GSSAPI")
            steps.append(Step(LOGIN, "ok", f"logged in with {mechanism}"))
        view = ClusterView(
            response.cluster_id or "" if hasattr(response, "cluster_id") else "",
            tuple(BrokerView(b.node_id, b.host, b.port, b.rack or "") for b in response.brokers),
            int(response.controller_id),
        )
        return steps, view, versions
    finally:
        connection.close()


def _bounded(client: ClusterClient, limit_s: float) -> ClusterClient:
    limit_ms = max(50, int(limit_s * 1000))
    return replace(
        client,
        connect_timeout_ms=min(limit_ms, client.connect_timeout_ms),
        request_timeout_ms=min(limit_ms, client.request_timeout_ms),
    )


def _no_greeting(
    client: ClusterClient, error: MirrorError, address: tuple[str, int], deadline: float
) -> Step:
    """The failed step of a broker that accepted a connection, by the error of the connection."""
    if isinstance(error, NotKafka) and not uses_tls(client.security_protocol):
        return _not_kafka(client, error.__cause__, address, deadline)
    name = KAFKA
    if "client certificate" in error.what:
        name = TLS
    elif uses_sasl(client.security_protocol) and not isinstance(error, NotKafka):
        name = LOGIN
    elif isinstance(error, Unreachable):
        name = TCP
    # A setting that cannot work is no fault of the broker.
    kind = ConfigError if isinstance(error.__cause__, ConfigError) else type(error)
    return Step(name, "fail", error.what.rstrip("."), error.do, kind)


def _not_kafka(
    client: ClusterClient, cause: BaseException | None, address: tuple[str, int], deadline: float
) -> Step:
    protocol = client.security_protocol
    do = (
        f"Check the port and security.protocol: it must be a {protocol} listener of a Kafka broker."
    )
    if isinstance(cause, ForeignResponse):
        if cause.protocol is PortProtocol.TLS:
            do = (
                "Set security.protocol=SSL (SASL_SSL with a login), or name the port of the "
                f"broker's {protocol} listener."
            )
        return Step(KAFKA, "fail", str(cause), do, NotKafka)
    if isinstance(cause, ConnectionLost) and isinstance(cause.__cause__, TimeoutError):
        if _answers_http(address, deadline):
            return Step(KAFKA, "fail", str(PortProtocol.HTTP), do, NotKafka)
        do = "Check that the port is a Kafka listener and that the broker is not stuck."
        return Step(KAFKA, "fail", _SILENT, do)
    found = "it closed the connection without an answer"
    reason = getattr(getattr(cause, "__cause__", None), "strerror", None)
    return Step(KAFKA, "fail", f"{found} ({reason})" if reason else found, do, NotKafka)


def _no_metadata(client: ClusterClient, error: Exception) -> Step:
    timed_out = isinstance(error.__cause__, TimeoutError)
    if uses_sasl(client.security_protocol) or timed_out:
        do = "Check the broker's log: it may be starting or overloaded."
        return Step(KAFKA, "fail", f"the broker returns no metadata ({error})", do)
    protocol = "SASL_SSL" if uses_tls(client.security_protocol) else "SASL_PLAINTEXT"
    return Step(
        LOGIN,
        "fail",
        f"the broker speaks Kafka, but closes connections without a login ({error})",
        f"It looks like a SASL listener: set security.protocol={protocol}, sasl.mechanism and "
        "sasl.jaas.config.",
        Unsupported,
    )


# -- what else a port is ---------------------------------------------------------------------------


def _recognise(client: ClusterClient, address: tuple[str, int], deadline: float) -> PortProtocol:
    """The protocol at ``address``, to which a TLS handshake failed; never raises."""
    limit_s = min(_RECOGNISE_S_MAX, deadline - time.monotonic())
    deadline = time.monotonic() + limit_s
    plain = replace(client, security_protocol="PLAINTEXT", properties={})
    try:
        Connection(*address, _bounded(plain, limit_s / 2)).close()
    except NotKafka as error:
        cause = error.__cause__
        if isinstance(cause, ForeignResponse) and cause.protocol is not PortProtocol.UNKNOWN:
            return cause.protocol
        return PortProtocol.HTTP if _answers_http(address, deadline) else PortProtocol.UNKNOWN
    except MirrorError:
        return PortProtocol.UNKNOWN
    return PortProtocol.KAFKA


def _answers_http(address: tuple[str, int], deadline: float) -> bool:
    """Whether a server that does not respond to Kafka responds to HTTP, on a new connection.

    Some web servers wait for the end of a line, which Kafka's protocol never sends.
    """
    head = b""
    with contextlib.suppress(OSError), _open(address, deadline) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while len(head) < 5 and (part := sock.recv(5 - len(head))):
            head += part
    return head == b"HTTP/"
