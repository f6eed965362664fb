"""Servers that are no use: the probe says quickly what is wrong with each, step by step.

`reach` and `check_path` are asked about the same servers: what a start reports is what the doctor
finds.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.errors import (
    ConfigError,
    MirrorError,
    NotKafka,
    Unreachable,
    Unsupported,
)
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.probe.broker_path import (
    DNS,
    KAFKA,
    LOGIN,
    TCP,
    TLS,
    BrokerPath,
    check_path,
)
from sparkmirror.wire.probe.reach import reach
from tests.certificates import Authority, Certified
from tests.kafka.clusters.servers import HOST, listener, refused, web_server
from tests.unit.wire.fake_broker import FakeBroker, metadata

METADATA = 3
VERSIONS = {0: (0, 9), 1: (4, 11), 3: (0, 8), 18: (0, 0)}


# How long a busy machine may pause. What is not bounded takes longer still.
PAUSE_S = 8.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that ends at its deadline says why, however late its thread is."""
    monkeypatch.setattr("sparkmirror.wire.probe.reach._LATE_S", 30.0)


@pytest.fixture
def quick_greeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the time, most is left to find out what a server is that does not speak Kafka."""
    monkeypatch.setattr("sparkmirror.wire.probe.broker_path._GREETING_SHARE", 0.1)
    monkeypatch.setattr("sparkmirror.wire.probe.broker_path._RECOGNISE_S_MAX", 8.0)


def client(*servers: str, timeout_ms: int = 6_000, protocol: str = "PLAINTEXT") -> ClusterClient:
    return ClusterClient(
        "east", servers, "test", security_protocol=protocol, request_timeout_ms=timeout_ms
    )


def unreached(one: ClusterClient, *, within_s: float = 7.0) -> MirrorError:
    """The error of `reach`, which must come within ``within_s``, name the alias and all servers."""
    started = time.monotonic()
    with pytest.raises(MirrorError) as caught:
        reach(one)
    assert time.monotonic() - started < within_s + PAUSE_S
    error = caught.value
    assert error.where == "cluster east"
    assert error.do, "an error says what to do"
    for server in one.bootstrap_servers:
        assert server in error.what
    return error


def path_to(one: ClusterClient, *, within_s: float = 7.0) -> BrokerPath:
    """The path to the only server of ``one``."""
    host, _, port = one.bootstrap_servers[0].rpartition(":")
    started = time.monotonic()
    path = check_path(one, host, int(port), timeout_s=one.request_timeout_ms / 1000)
    assert time.monotonic() - started < within_s + PAUSE_S
    return path


def failure(
    server: str,
    step: str,
    *,
    timeout_ms: int = 6_000,
    within_s: float = 7.0,
    changed: Callable[[ClusterClient], ClusterClient] = lambda one: one,
) -> MirrorError:
    """The error of `reach` for one server, at which `check_path` fails in ``step``."""
    one = changed(client(server, timeout_ms=timeout_ms))
    path = path_to(one, within_s=within_s)
    failed = path.steps[-1]
    assert (failed.name, failed.outcome) == (step, "fail"), failed
    assert all(before.outcome == "ok" for before in path.steps[:-1])
    assert failed.do
    assert not path.whole
    error = unreached(one, within_s=within_s)
    # Times and ports of one try differ from those of the next.
    assert failed.found[:20] in error.what
    assert error.do == failed.do
    assert type(error) is failed.kind
    return error


# --- names and TCP --------------------------------------------------------------------------------


def test_a_name_that_does_not_resolve() -> None:
    error = failure("no-such-host.invalid:9092", DNS, timeout_ms=10_000, within_s=11)
    assert isinstance(error, Unreachable)
    assert "does not resolve" in error.what
    assert "spelling of the host name" in error.do


@pytest.mark.parametrize("server", ["a..b:9092", f"{'x' * 70}:9092"])
def test_what_cannot_be_a_name(server: str) -> None:
    assert isinstance(failure(server, DNS), Unreachable)


def test_a_resolver_that_hangs() -> None:
    over = threading.Event()

    def hang(_host: str, _port: int) -> list[tuple[int, str]]:
        over.wait(60)
        return []

    started = time.monotonic()
    path = check_path(client(), "b1", 9092, timeout_s=0.4, resolver=hang)
    assert time.monotonic() - started < 0.4 + PAUSE_S
    over.set()
    assert path.steps[0].kind is Unreachable
    assert "no answer within 0.3 s" in path.steps[0].found
    assert "/etc/resolv.conf" in path.steps[0].do


def test_a_port_that_refuses() -> None:
    server = refused()
    error = failure(server, TCP)
    assert isinstance(error, Unreachable)
    assert f"{server}: connection refused" in error.what


def test_each_address_of_a_name_is_tried() -> None:
    broker = FakeBroker(lambda *_: metadata({}), VERSIONS)

    def both(*_: Any) -> list[tuple[int, str]]:
        return [(int(socket.AF_INET), "127.0.0.2"), (int(socket.AF_INET), HOST)]

    path = check_path(client(), "b1", broker.port, timeout_s=2, resolver=both)
    broker.stop()
    assert path.whole
    told = {step.name: step for step in path.steps}
    assert told[DNS].found == "resolves to 127.0.0.2, 127.0.0.1"
    assert told[TCP].outcome == "warn"
    assert told[TCP].found == "127.0.0.1 takes connections, but 127.0.0.2: connection refused"
    gone = check_path(client(), "b1", broker.port, timeout_s=2, resolver=both)
    found = "127.0.0.2: connection refused; 127.0.0.1: connection refused"
    assert (gone.steps[-1].name, gone.steps[-1].found) == (TCP, found)


def test_a_kind_of_address_that_this_machine_does_not_have() -> None:
    broker = FakeBroker(lambda *_: metadata({}), VERSIONS)

    def odd(*_: Any) -> list[tuple[int, str]]:
        return [(12_345, "fe80::1"), (int(socket.AF_INET), HOST)]

    path = check_path(client(), "b1", broker.port, timeout_s=2, resolver=odd)
    broker.stop()
    assert path.whole
    assert "but fe80::1: connecting failed (Address family not supported" in path.steps[1].found


def test_a_server_whose_queue_of_connections_is_full() -> None:
    """Connecting itself hangs, as it does behind a firewall that drops packets."""
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen(0)
        address = server.getsockname()
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        time.sleep(0.1)
        error = failure(f"{HOST}:{address[1]}", TCP, timeout_ms=700, within_s=1.5)
        for one in waiting:
            one.close()
    assert isinstance(error, Unreachable)
    assert "connecting timed out" in error.what


# --- servers that are no brokers ------------------------------------------------------------------


def test_a_server_that_never_answers() -> None:
    with listener() as server:
        error = failure(server, KAFKA, timeout_ms=1_500, within_s=2.5)
    assert isinstance(error, Unreachable)
    assert "never answers" in error.what


@pytest.mark.usefixtures("quick_greeting")
def test_a_web_server() -> None:
    # It waits for the end of a line, which Kafka's bytes do not bring.
    with web_server() as server:
        error = failure(server, KAFKA)
    assert isinstance(error, NotKafka)
    assert "it is a web server (it answers HTTP)" in error.what
    assert "PLAINTEXT listener of a Kafka broker" in error.do


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "answers HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS"),
        (b"\x16\x03\x03\x00\x02\x02\x46", "speaks TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not in Kafka's protocol (first bytes b'SSH-')"),
        (struct.pack(">ii", 4, 99), "wrong correlation id"),
        (struct.pack(">iihi", 10, 1, 0, 1 << 20), "response is invalid"),
        (struct.pack(">iihi", 10, 1, 0, 0), "response is invalid"),
        (struct.pack(">iihi", 10, 1, 35, 0), "error 35"),
        (struct.pack(">ii", 4, 1), "response is invalid"),
        (struct.pack(">i", 100) + b"abc", "closed the connection after b'abc'"),
        (b"hi", "closed the connection after b'hi'"),
        (b"", "closed the connection without an answer"),
    ],
)
def test_something_that_is_not_kafka(said: bytes, shown: str) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(said)
        connection.close()

    with listener(answer) as server:
        error = failure(server, KAFKA)
    assert isinstance(error, NotKafka)
    assert shown in error.what
    assert "security.protocol" in error.do


def drip(connection: socket.socket) -> None:
    """Begin a long answer, and go on with it too slowly."""
    with contextlib.suppress(OSError):
        connection.sendall(struct.pack(">i", 1000))
        for _ in range(300):
            time.sleep(0.1)
            connection.sendall(b"\0")


def test_a_server_that_drips_is_bounded_too() -> None:
    with listener(drip) as server:
        error = unreached(client(server, timeout_ms=600), within_s=1.5)
    assert isinstance(error, Unreachable)
    assert "never answers" in error.what


def test_a_broker_that_drips_later_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkmirror.wire.probe.reach._LATE_S", 0.2)
    row = struct.pack(">hhh", 0, 0, 9) + struct.pack(">hhh", 1, 4, 11)

    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        body = struct.pack(">ihi", 1, 0, 3) + row + struct.pack(">hhh", 3, 0, 8)
        connection.sendall(struct.pack(">i", len(body)) + body)
        drip(connection)

    with listener(answer) as server:
        error = unreached(client(server, timeout_ms=3_000), within_s=4.0)
    assert isinstance(error, Unreachable)
    assert "does not finish its answers within 3.0 s" in error.what


# --- brokers --------------------------------------------------------------------------------------


def test_a_broker_is_reached_over_one_connection() -> None:
    broker = FakeBroker(lambda *_: metadata({0: broker, 1: broker}), VERSIONS)
    one = client(f"{HOST}:{broker.port}")
    path = path_to(one)
    assert broker.accepted == 1
    assert [step.name for step in path.steps] == [DNS, TCP, KAFKA]
    assert {step.outcome for step in path.steps} == {"ok"}
    assert path.cluster is not None
    assert [view.node for view in path.cluster.brokers] == [0, 1]
    assert path.versions == VERSIONS
    found = reach(one)
    broker.stop()
    assert broker.accepted == 2
    assert (found.host, found.port, found.versions) == (HOST, broker.port, VERSIONS)
    assert found.cluster == path.cluster


@pytest.mark.parametrize(
    ("versions", "shown"),
    [
        ({0: (0, 2), 1: (0, 11)}, "Produce API up to version 2, 3 is needed"),
        ({0: (0, 9), 1: (0, 3)}, "Fetch API up to version 3, 4 is needed"),
        ({0: (0, 9)}, "Fetch API up to version -1, 4 is needed"),
    ],
)
def test_a_broker_that_is_too_old(versions: dict[int, tuple[int, int]], shown: str) -> None:
    broker = FakeBroker(lambda *_: metadata({}), {**versions, 3: (0, 2), 18: (0, 0)})
    error = failure(f"{HOST}:{broker.port}", KAFKA)
    broker.stop()
    assert isinstance(error, Unsupported)
    assert f"too old ({shown})" in error.what
    assert "0.11" in error.do


def test_a_broker_that_wants_a_login() -> None:
    broker = FakeBroker(lambda *_: None, VERSIONS)
    error = failure(f"{HOST}:{broker.port}", LOGIN)
    broker.stop()
    assert isinstance(error, Unsupported)
    assert "closes connections without a login" in error.what
    assert "security.protocol=SASL_PLAINTEXT, sasl.mechanism" in error.do


def test_a_broker_that_returns_no_metadata() -> None:
    broker = FakeBroker(lambda *_: ..., VERSIONS)
    error = failure(f"{HOST}:{broker.port}", KAFKA, timeout_ms=2_000)
    broker.stop()
    assert isinstance(error, Unreachable)
    assert "returns no metadata" in error.what
    assert "starting or overloaded" in error.do


# --- TLS ------------------------------------------------------------------------------------------


@contextmanager
def tls_server(certified: Certified, directory: Path) -> Iterator[int]:
    """A TLS server that shakes hands and says no more; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified.pem_file(directory / "server.pem"))
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(10)

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    try:
                        context.wrap_socket(connection, server_side=True).close()
                    except OSError:
                        connection.close()
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def client_of(authority: Authority, directory: Path) -> ClusterClient:
    trust = directory / "trust.pem"
    trust.write_text(authority.pem())
    properties = {"ssl.truststore.location": str(trust), "ssl.truststore.type": "PEM"}
    return ClusterClient("A", (f"{HOST}:1",), "test", "SSL", properties=properties)


AUTHORITY, OTHER = Authority(), Authority("Somebody else")


def over_tls(one: ClusterClient) -> ClusterClient:
    return ClusterClient(
        one.alias, one.bootstrap_servers, "test", "SSL", request_timeout_ms=one.request_timeout_ms
    )


@pytest.mark.parametrize(
    ("signer", "names", "ends", "outcome", "found", "do"),
    [
        (OTHER, (HOST,), 10, "fail", "not trusted", "truststore"),
        (
            AUTHORITY,
            ("b1.example.com",),
            10,
            "fail",
            "for another host name",
            "subject alternative",
        ),
        (AUTHORITY, (HOST,), -0.01, "fail", "has expired", "Renew"),
        (AUTHORITY, (HOST,), 10, "warn", "valid until", "Renew"),
        (AUTHORITY, (HOST,), 90, "ok", "valid until", ""),
    ],
)
def test_certificates(
    tmp_path: Path,
    signer: Authority,
    names: tuple[str, ...],
    ends: float,
    outcome: str,
    found: str,
    do: str,
) -> None:
    certified = signer.certify("broker", *names, ends=timedelta(days=ends))
    with tls_server(certified, tmp_path) as port:
        way = check_path(client_of(AUTHORITY, tmp_path), HOST, port, timeout_s=5)
    (step,) = [one for one in way.steps if one.name == TLS]
    assert step.outcome == outcome, step
    assert found in step.found
    assert do in step.do
    # Whoever is not trusted is told by what its certificate says.
    assert names[0] in step.found
    assert ("Somebody else" if signer is OTHER else "Test authority") in step.found


@pytest.mark.usefixtures("quick_greeting")
@pytest.mark.parametrize("closes", [True, False])
def test_a_broker_without_tls_is_recognised(closes: bool) -> None:
    """A broker closes a connection that does not speak Kafka; a proxy before it may wait."""

    def answer(connection: socket.socket) -> None:
        if connection.recv(4096).startswith(b"\x16"):
            if closes:
                connection.close()
            return
        body = struct.pack(">ihihhh", 1, 0, 1, 18, 0, 0)
        connection.sendall(struct.pack(">i", len(body)) + body)

    with listener(answer) as server:
        error = failure(server, TLS, changed=over_tls)
    assert isinstance(error, NotKafka)
    assert "it speaks Kafka without TLS" in error.what
    assert "security.protocol=PLAINTEXT" in error.do


@pytest.mark.usefixtures("quick_greeting")
def test_a_web_server_without_tls_is_recognised() -> None:
    with web_server() as server:
        error = failure(server, TLS, changed=over_tls)
    assert isinstance(error, NotKafka)
    assert "it is a web server" in error.what
    assert "listener of a Kafka broker" in error.do


def test_a_silent_server_is_not_taken_for_anything() -> None:
    with listener() as server:
        error = failure(server, TLS, timeout_ms=700, changed=over_tls)
    assert isinstance(error, Unreachable)
    assert "TLS handshake timed out" in error.what


def test_a_store_that_is_missing_is_a_wrong_setting(tmp_path: Path) -> None:
    properties = {
        "ssl.truststore.location": str(tmp_path / "none.pem"),
        "ssl.truststore.type": "PEM",
    }
    with listener() as server:
        one = ClusterClient("east", (server,), "test", "SSL", properties=properties)
        error = unreached(one)
    assert isinstance(error, ConfigError)
    assert "none.pem" in error.what


# --- several servers ------------------------------------------------------------------------------


def test_all_servers_are_tried_and_named() -> None:
    with listener() as hanging:
        servers = (refused(), hanging, "no-such-host.invalid:1")
        error = unreached(client(*servers, timeout_ms=5_000), within_s=6)
    assert isinstance(error, Unreachable)
    for part in ("refused", "never answers", "does not resolve", "none of the bootstrap servers"):
        assert part in error.what


@pytest.mark.usefixtures("quick_greeting")
def test_servers_that_fail_in_different_ways_are_unreachable() -> None:
    with web_server() as server:
        error = unreached(client(server, refused()))
    assert type(error) is Unreachable
    with web_server() as one, web_server() as other:
        error = unreached(client(one, other))
    assert type(error) is NotKafka


def test_the_same_server_twice() -> None:
    server = refused()
    assert isinstance(unreached(client(server, server)), Unreachable)


def test_one_broker_is_enough_and_nobody_waits_for_the_others() -> None:
    broker = FakeBroker(lambda *_: metadata({0: broker}), VERSIONS)
    with listener() as hanging:
        started = time.monotonic()
        found = reach(client(hanging, refused(), f"{HOST}:{broker.port}", timeout_ms=8_000))
        assert time.monotonic() - started < 7
    broker.stop()
    assert found.port == broker.port


def test_a_login_that_is_missing_is_named() -> None:
    """Before anything is connected to: it is wrong for all servers."""
    with pytest.raises(ConfigError, match=r"needs a login \(sasl\.mechanism=GSSAPI\)") as caught:
        reach(client("localhost:1", protocol="SASL_SSL"))
    assert "sasl.jaas.config" in caught.value.do


@pytest.mark.parametrize("server", ["localhost", "localhost:", ":9092", "localhost:0", "h:99999"])
def test_a_malformed_server(server: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        reach(client(server))


def test_no_server_at_all() -> None:
    with pytest.raises(ConfigError, match="no bootstrap server"):
        reach(client())
