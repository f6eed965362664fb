"""Bootstrap servers of real brokers that are no use, and clusters that are away.

Servers that are no brokers: tests/unit/wire/probe.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkmirror.errors import MirrorError, NotKafka, Unreachable, Unsupported
from sparkmirror.java import find_java
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.probe.reach import reach
from tests.kafka.clusters.listeners import Listeners
from tests.kafka.clusters.servers import listener, refused
from tests.patience import others_per_core


def client(*servers: str, timeout_ms: int = 1_500, protocol: str = "PLAINTEXT") -> ClusterClient:
    return ClusterClient(
        "east", servers, "test", security_protocol=protocol, request_timeout_ms=timeout_ms
    )


def failure(*servers: str, timeout_ms: int = 1_500, within_s: float = 8.0) -> MirrorError:
    """The error of `reach`, which must come within ``within_s``, name the alias and all servers."""
    started = time.monotonic()
    with pytest.raises(MirrorError) as caught:
        reach(client(*servers, timeout_ms=timeout_ms))
    assert time.monotonic() - started < within_s * others_per_core()
    error = caught.value
    assert error.where == "cluster east"
    assert error.do, "an error says what to do"
    for server in servers:
        assert server in error.what
    return error


def test_one_good_server_is_enough_and_nobody_waits_for_the_others(cluster_a: KafkaCluster):
    with listener() as hanging:
        started = time.monotonic()
        reached = reach(client(hanging, refused(), cluster_a.bootstrap_servers, timeout_ms=30_000))
        assert time.monotonic() - started < 9 * others_per_core()
    assert f"{reached.host}:{reached.port}" == cluster_a.bootstrap_servers
    assert reached.versions[1][1] >= 12


def test_the_client_library_keeps_quiet_and_the_facade_gives_up_in_time(capfd):
    heard: list[logging.LogRecord] = []
    ear = logging.Handler(logging.INFO)
    ear.emit = heard.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(ear)
    cluster = Cluster(client(refused(), timeout_ms=800))
    started = time.monotonic()
    with pytest.raises(Unreachable, match="describing the cluster"):
        cluster.describe()
    assert time.monotonic() - started < 10 * others_per_core()
    cluster.close()
    logging.getLogger().removeHandler(ear)
    assert [record.getMessage() for record in heard] == []
    assert capfd.readouterr().err == ""


@pytest.mark.more
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
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required "
    config = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "LOGIN:SASL_PLAINTEXT,SECRET:SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": jaas + 'user_alice="secret";',
        "ssl.keystore.location": str(keystore),
        "ssl.keystore.password": "secret",
        "ssl.keystore.type": "PKCS12",
    }
    listeners = Listeners("PLAINTEXT", "LOGIN", "SECRET")
    with KafkaCluster("S", config=config, node_config=listeners, heap="300m"):
        yield listeners.servers["LOGIN"], listeners.servers["SECRET"]


@pytest.mark.more
def test_a_sasl_listener(secured):
    error = failure(secured[0], timeout_ms=10_000, within_s=15.0)
    assert isinstance(error, Unsupported)
    assert "closes connections without a login" in error.what
    assert "SASL" in error.do


@pytest.mark.more
def test_a_tls_listener(secured):
    error = failure(secured[1], timeout_ms=10_000, within_s=15.0)
    assert isinstance(error, NotKafka)
    assert "PLAINTEXT listener" in error.do
