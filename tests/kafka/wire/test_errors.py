"""Bootstrap servers that are no use: each says quickly what is wrong with it."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkmirror.errors import ConfigError, MirrorError, NotKafka, Unreachable, Unsupported
from sparkmirror.java import find_java
from sparkmirror.model import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.testing.probe import free_ports
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.probe.reach import reach
from tests.kafka.clusters.servers import HOST, listener, refused, web_server


def client(*servers: str, timeout_ms: int = 1_500, protocol: str = "PLAINTEXT") -> ClusterClient:
    return ClusterClient(
        "east", servers, "test", security_protocol=protocol, request_timeout_ms=timeout_ms
    )


def failure(*servers: str, timeout_ms: int = 1_500, within_s: float = 3.0) -> MirrorError:
    """The error of `reach`, which must come within ``within_s``, name the alias and all servers."""
    started = time.monotonic()
    with pytest.raises(MirrorError) as caught:
        reach(client(*servers, timeout_ms=timeout_ms))
    assert time.monotonic() - started < within_s
    error = caught.value
    assert error.where == "cluster east"
    assert error.do, "an error says what to do"
    for server in servers:
        assert server in error.what
    return error


def test_a_name_that_does_not_resolve():
    error = failure("no-such-host.invalid:9092", timeout_ms=10_000, within_s=11)
    assert isinstance(error, Unreachable)
    assert "does not resolve" in error.what


def test_a_port_that_refuses():
    error = failure(refused())
    assert isinstance(error, Unreachable)
    assert "connection refused" in error.what


def test_a_server_that_never_answers():
    with listener() as server:
        error = failure(server, timeout_ms=700, within_s=1.5)
    assert isinstance(error, Unreachable)
    assert "never answers" in error.what


def test_a_server_whose_queue_of_connections_is_full():
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
        error = failure(f"{HOST}:{address[1]}", timeout_ms=700, within_s=1.5)
        for one in waiting:
            one.close()
    assert isinstance(error, Unreachable)
    assert "connecting timed out" in error.what


def test_a_web_server():
    # It waits for the end of a line, which Kafka's bytes do not bring.
    with web_server() as server:
        error = failure(server, timeout_ms=700, within_s=1.5)
    assert isinstance(error, NotKafka)
    assert "web server" in error.what


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "answers HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not in Kafka's protocol"),
        (struct.pack(">ii", 4, 99), "wrong correlation id"),
        (struct.pack(">iihi", 10, 1, 0, 1 << 20), "makes no sense"),
        (struct.pack(">iihi", 10, 1, 35, 0), "error 35"),
        (struct.pack(">i", 100) + b"abc", "hung up"),
        (b"", "hung up without a word"),
    ],
)
def test_something_that_is_not_kafka(said, shown):
    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(said)
        connection.close()

    with listener(answer) as server:
        error = failure(server)
    assert isinstance(error, NotKafka)
    assert shown in error.what


def test_a_server_that_drips_is_bounded_too():
    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(struct.pack(">i", 1000))
            for _ in range(20):
                time.sleep(0.1)
                connection.sendall(b"\0")

    with listener(drip) as server:
        error = failure(server, timeout_ms=600, within_s=1.5)
    assert isinstance(error, Unreachable)


def test_a_broker_that_is_too_old():
    versions = [(0, 0, 2), (1, 0, 3), (3, 0, 2), (18, 0, 0)]

    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        body = struct.pack(">ihi", 1, 0, len(versions))
        body += b"".join(struct.pack(">hhh", *row) for row in versions)
        connection.sendall(struct.pack(">i", len(body)) + body)
        connection.recv(4096)
        connection.sendall(struct.pack(">iiiii", 16, 2, 0, 1, 0))

    with listener(answer) as server:
        error = failure(server)
    assert isinstance(error, Unsupported)
    assert "too old" in error.what


def test_all_servers_are_tried_and_named():
    with listener() as hanging:
        error = failure(refused(), hanging, "no-such-host.invalid:1", timeout_ms=5_000, within_s=6)
    assert isinstance(error, Unreachable)
    for part in ("refused", "never answers", "does not resolve"):
        assert part in error.what


def test_a_login_that_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"needs a login \(sasl\.mechanism=GSSAPI\)") as caught:
        reach(client("localhost:1", protocol="SASL_SSL"))
    assert "sasl.jaas.config" in caught.value.do


@pytest.mark.parametrize("server", ["localhost", "localhost:", ":9092", "localhost:0", "h:99999"])
def test_a_malformed_server(server):
    with pytest.raises(ConfigError, match="host:port"):
        reach(client(server))


def test_no_server_at_all():
    with pytest.raises(ConfigError, match="no bootstrap server"):
        reach(client())


def test_one_good_server_is_enough_and_nobody_waits_for_the_others(cluster_a: KafkaCluster):
    with listener() as hanging:
        started = time.monotonic()
        reached = reach(client(hanging, refused(), cluster_a.bootstrap_servers, timeout_ms=8_000))
        assert time.monotonic() - started < 2
    assert f"{reached.host}:{reached.port}" == cluster_a.bootstrap_servers
    assert reached.api_versions[1][1] >= 12


def test_the_client_library_keeps_quiet_and_the_facade_gives_up_in_time(capfd):
    heard: list[logging.LogRecord] = []
    ear = logging.Handler(logging.INFO)
    ear.emit = heard.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(ear)
    cluster = Cluster(client(refused(), timeout_ms=800))
    started = time.monotonic()
    with pytest.raises(Unreachable, match="describing the cluster"):
        cluster.describe()
    assert time.monotonic() - started < 4
    cluster.close()
    logging.getLogger().removeHandler(ear)
    assert [record.getMessage() for record in heard] == []
    assert capfd.readouterr().err == ""


def test_the_facade_finds_the_cluster_again_after_a_restart(new_cluster):
    kafka: KafkaCluster = new_cluster("R")
    cluster = Cluster(client(kafka.bootstrap_servers, timeout_ms=20_000))
    before = cluster.describe()
    kafka.restart(1)
    assert cluster.describe() == before
    cluster.close()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a SASL_PLAINTEXT and of an SSL listener of a real broker."""
    directory: Path = tmp_path_factory.mktemp("keys")
    keystore = directory / "keys.p12"
    keytool = find_java().path / "bin" / "keytool"
    if not keytool.exists():
        found = shutil.which("keytool")
        assert found, "no keytool on this machine"
        keytool = Path(found)
    make = ["-genkeypair", "-alias", "broker", "-keyalg", "RSA", "-dname", "CN=localhost"]
    make += ["-keystore", str(keystore), "-storetype", "PKCS12", "-storepass", "secret"]
    subprocess.run([str(keytool), *make], check=True, capture_output=True, timeout=60)
    plain, controller, sasl, tls = free_ports(4)
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required "
    config = {
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"PLAINTEXT://{HOST}:{plain},CONTROLLER://{HOST}:{controller},"
        f"LOGIN://{HOST}:{sasl},SECRET://{HOST}:{tls}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{plain},LOGIN://{HOST}:{sasl},"
        f"SECRET://{HOST}:{tls}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "LOGIN:SASL_PLAINTEXT,SECRET:SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": jaas + 'user_alice="secret";',
        "ssl.keystore.location": str(keystore),
        "ssl.keystore.password": "secret",
        "ssl.keystore.type": "PKCS12",
    }
    with KafkaCluster("S", ports=(plain,), config=config, heap="300m"):
        yield f"{HOST}:{sasl}", f"{HOST}:{tls}"


def test_a_sasl_listener(secured):
    error = failure(secured[0])
    assert isinstance(error, Unsupported)
    assert "hangs up without a login" in error.what
    assert "SASL" in error.do


def test_a_tls_listener(secured):
    error = failure(secured[1])
    assert isinstance(error, NotKafka)
    assert "PLAINTEXT listener" in error.do
