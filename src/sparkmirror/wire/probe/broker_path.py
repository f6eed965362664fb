"""Checks the path to one broker step by step: name, TCP, TLS, Kafka, login.

A client library only reports that it could not connect; `check_path` reports the step that failed
and why. It changes nothing, and takes no longer than the given time.
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
from sparkmirror.errors import Defect, MirrorError, NotKafka, Unreachable
from sparkmirror.model import ClusterClient
from sparkmirror.wire.cluster.views import BrokerView, ClusterView
from sparkmirror.wire.net.connection import Connection, ConnectionLost
from sparkmirror.wire.probe.reach import PortProtocol, recognise
from sparkmirror.wire.security.tls import wrap

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
_WEB_SERVER_DO = "Check the port: it must be a listener of a Kafka broker."
_INSTEAD_OF_KAFKA = {
    PortProtocol.TLS: "Set security.protocol=SSL (SASL_SSL with a login), or name the port of the "
    "broker's listener without TLS.",
    PortProtocol.HTTP: _WEB_SERVER_DO,
}
_INSTEAD_OF_TLS = {
    PortProtocol.KAFKA: "Name the port of the broker's listener with TLS, or set security.protocol="
    "PLAINTEXT (SASL_PLAINTEXT with a login).",
    PortProtocol.HTTP: _WEB_SERVER_DO,
}
# The versions that the data path needs at least; brokers have them from 0.11 on.
_OLDEST = {0: ("Produce", 3), 1: ("Fetch", 4)}

Resolver = Callable[[str, int], list[tuple[int, str]]]
"""(host, port) to (address family, address) pairs; raises OSError as getaddrinfo does."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step: what was found, and what to do about it.

    ``outcome``: ``ok``, ``warn`` (it works, with a problem) or ``fail``.
    """

    name: str
    outcome: str
    found: str
    do: str = ""


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
    tcp, address = _connected(addresses, port, deadline, client.connect_timeout_ms / 1000)
    steps.append(tcp)
    if address is None:
        return BrokerPath(host, port, tuple(steps))
    if uses_tls(client.security_protocol):
        steps.append(_handshake(client, host, (address, port), deadline))
        if steps[-1].outcome == "fail":
            return BrokerPath(host, port, tuple(steps))
    found, view, versions = _greeted(client, host, (address, port), deadline)
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
    return Step(DNS, "fail", f"does not resolve here ({said})", "Check the spelling and the DNS.")


def _connected(
    addresses: list[tuple[int, str]], port: int, deadline: float, patience_s: float
) -> tuple[Step, str | None]:
    """(the step, the first address that accepted a connection or None)."""
    failures: list[tuple[str, OSError]] = []
    for number, (family, address) in enumerate(addresses):
        left_s = (deadline - time.monotonic()) * 0.6 / (len(addresses) - number)
        began = time.monotonic()
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(max(0.05, min(left_s, patience_s)))
            try:
                sock.connect((address, port))
            except OSError as error:
                failures.append((address, error))
                continue
        ms = (time.monotonic() - began) * 1000
        if failures:
            tried = "; ".join(f"{one}: {_refusal(error)[0]}" for one, error in failures)
            do = "Remove the unreachable addresses from the DNS, or make them reachable."
            return Step(TCP, "warn", f"{address} takes connections, but {tried}", do), address
        return Step(TCP, "ok", f"connects in {ms:.1f} ms"), address
    tried = "; ".join(f"{one}: {_refusal(error)[0]}" for one, error in failures)
    return Step(TCP, "fail", tried, _refusal(failures[0][1])[1]), None


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


def _handshake(client: ClusterClient, host: str, address: tuple[str, int], deadline: float) -> Step:
    try:
        sock = _open(address, deadline)
        with wrap(sock, host, client) as secure:
            if not isinstance(secure, ssl.SSLSocket):
                raise Defect("a connection without TLS has no certificate")
            certificate = secure.getpeercert(binary_form=True)
            spoken = f"{secure.version()}, {(secure.cipher() or ('',))[0]}"
    except MirrorError as error:
        found = error.what.rstrip(".")
        shown = _shown_certificate(host, address, deadline)
        if shown:
            return Step(TLS, "fail", f"{found}; {shown}", error.do)
        spoken = recognise(address, min(_RECOGNISE_S_MAX, deadline - time.monotonic()))
        if spoken in _INSTEAD_OF_TLS:
            return Step(TLS, "fail", f"{found}; {spoken}", _INSTEAD_OF_TLS[spoken])
        return Step(TLS, "fail", found, error.do)
    except OSError as error:
        return Step(TLS, "fail", *_refusal(error))
    said, days_left = _described(certificate or b"")
    if days_left < _EXPIRY_WARNING_DAYS:
        return Step(TLS, "warn", f"{spoken}; {said}", "Renew the broker's certificate in time.")
    return Step(TLS, "ok", f"{spoken}; {said}")


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
    client: ClusterClient, host: str, address: tuple[str, int], deadline: float
) -> tuple[list[Step], ClusterView | None, dict[int, tuple[int, int]]]:
    # The rest of the time is for `recognise`, if Kafka's handshake fails.
    left_ms = max(50, int((deadline - time.monotonic()) * 1000 * _GREETING_SHARE))
    bounded = replace(
        client,
        connect_timeout_ms=min(left_ms, client.connect_timeout_ms),
        request_timeout_ms=min(left_ms, client.request_timeout_ms),
    )
    sasl = uses_sasl(client.security_protocol)
    try:
        connection = Connection(host, address[1], bounded)
    except MirrorError as error:
        if isinstance(error, NotKafka) and not uses_tls(client.security_protocol):
            spoken = recognise(address, min(_RECOGNISE_S_MAX, deadline - time.monotonic()))
            if spoken in _INSTEAD_OF_KAFKA:
                return [Step(KAFKA, "fail", spoken, _INSTEAD_OF_KAFKA[spoken])], None, {}
        name = KAFKA
        if "client certificate" in error.what:
            name = TLS
        elif sasl and not isinstance(error, NotKafka):
            name = LOGIN
        elif isinstance(error, Unreachable):
            name = TCP
        return [Step(name, "fail", error.what.rstrip("."), error.do)], None, {}
    try:
        versions = connection.api_versions
        for key, (api, oldest) in _OLDEST.items():
            highest = versions.get(key, (0, -1))[1]
            if highest < oldest:
                found = f"{api} up to version {highest}, {oldest} is needed"
                return [Step(KAFKA, "fail", found, "Brokers from 0.11 on are supported.")], None, {}
        steps = [Step(KAFKA, "ok", f"{len(versions)} APIs, all new enough")]
        try:
            response = connection.request(MetadataRequest(topics=[]), lowest=1, highest=8)
        except (ConnectionLost, MirrorError) as error:
            return [_no_metadata(error, sasl=sasl)], None, {}
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


def _no_metadata(error: Exception, *, sasl: bool) -> Step:
    if sasl or "timed out" in str(error):
        do = "Check the broker's log: it may be starting or overloaded."
        return Step(KAFKA, "fail", f"the broker returns no metadata ({error})", do)
    return Step(
        LOGIN,
        "fail",
        f"the broker speaks Kafka, but closes connections without a login ({error})",
        "It looks like a SASL listener: set security.protocol, sasl.mechanism and "
        "sasl.jaas.config.",
    )
