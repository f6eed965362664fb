"""Every file below ``examples/`` is started, on real brokers, with names of its own.

Two clusters stand for all: a spoke and another one may be one cluster, since the names of their
remote topics tell them apart. What is started here in every run is the file that Kafka ships; the
others are the same code with other lines, and ``make more`` and ``make matrix`` start them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.certificates import PASSWORD
from tests.examples import EXAMPLES, adapted, adapted_mm1
from tests.kafka.clusters.kerberized import CLIENT, Kerberized, kerberized
from tests.kafka.clusters.realm import REALM, realm, require_kerberos
from tests.kafka.clusters.secure import USER, USER_SECRET, Secured
from tests.kafka.harness.mirror_process import MirrorProcess
from tests.kafka.harness.support import Sent, create_topic, produce, topic_names, wait_until_equal

# Which of the two clusters an alias of an example is.
_PLACES = {
    "active-passive": {"primary": 0, "secondary": 1},
    "active-active": {"us-west": 0, "us-east": 1},
    "aggregation": {"west": 0, "east": 0, "central": 1},
    # The second spoke is the hub's own cluster.
    "fan-out": {"central": 0, "west": 1, "east": 0},
    "hub-and-spoke": {"hub": 1, "north": 0, "south": 0},
    "connect-mirror-maker": {"A": 0, "B": 1},
    "exactly-once": {"primary": 0, "secondary": 1},
    "tls": {"us-west": 0, "us-east": 1},
    "sasl-ssl-scram": {"us-west": 0, "us-east": 1},
    "kerberos": {"us-west": 0, "us-east": 1},
}
_PLAIN = tuple(name for name in _PLACES if name not in ("tls", "sasl-ssl-scram", "kerberos"))
_SENT = [Sent(value=b"%d" % n, key=b"k", partition=0) for n in range(50)]


@pytest.fixture
def name() -> str:
    """What the topics of this test end with."""
    return uuid.uuid4().hex[:8]


def _started(
    example: str,
    path: Path,
    pair: tuple[KafkaCluster, KafkaCluster],
    name: str,
    *,
    command: str = "sparkmirror",
    environment: Mapping[str, str] | None = None,
) -> None:
    """Start the example, write to its topics while it runs, find every copy of them, end it."""
    places = {alias: pair[place] for alias, place in _PLACES[example].items()}
    copies = EXAMPLES[example]
    topics = {(places[copy.source].name, f"{copy.topic}-{name}"): copy for copy in copies}
    for (_, topic), copy in topics.items():
        create_topic(places[copy.source], topic)
        produce(places[copy.source], topic, _SENT)
    arguments = ["run", str(path)] if command == "sparkmirror" else [str(path)]
    mirror = MirrorProcess(path.parent, arguments, command=command, environment=environment)
    try:
        for copy in copies:
            wait_until_equal(
                places[copy.source],
                f"{copy.topic}-{name}",
                places[copy.target],
                copy.remote(name),
            )
        code, _ = mirror.drain()
    finally:
        mirror.kill()
    assert code == (0 if command == "sparkmirror" else 143), mirror.text()
    expected = {
        one.name: {topic for cluster, topic in topics if cluster == one.name} for one in pair
    }
    for copy in copies:
        expected[places[copy.target].name].add(copy.remote(name))
    for one in pair:
        assert {topic for topic in topic_names(one) if name in topic} == expected[one.name]


def _servers(example: str, pair: tuple[KafkaCluster, KafkaCluster]) -> dict[str, str]:
    return {alias: pair[place].bootstrap_servers for alias, place in _PLACES[example].items()}


def test_the_file_that_kafka_ships_by_its_own_command(
    cluster_pair: tuple[KafkaCluster, KafkaCluster], tmp_path: Path, name: str
) -> None:
    example = "connect-mirror-maker"
    path = adapted(example, tmp_path, _servers(example, cluster_pair), name)
    _started(example, path, cluster_pair, name, command=example)


@pytest.mark.more
def test_mirrormaker_1s_files_by_its_own_command(
    cluster_pair: tuple[KafkaCluster, KafkaCluster], tmp_path: Path, name: str
) -> None:
    a, b = cluster_pair
    options = adapted_mm1("mirrormaker-1", tmp_path, a.bootstrap_servers, b.bootstrap_servers, name)
    _mm1_started(options, a, b, tmp_path, f"orders-{name}")


def _mm1_started(
    options: list[str],
    source: KafkaCluster,
    target: KafkaCluster,
    directory: Path,
    topic: str,
    environment: Mapping[str, str] | None = None,
) -> None:
    create_topic(source, topic)
    produce(source, topic, _SENT)
    arguments = [*options, "--whitelist", f"{topic}.*", "--num.streams", "2", "--once"]
    mirror = MirrorProcess(
        directory, arguments, command="kafka-mirror-maker", environment=environment
    )
    try:
        assert mirror.wait() == 0, mirror.text()
    finally:
        mirror.kill()
    wait_until_equal(source, topic, target, topic)


def test_the_plan_of_every_example(
    cluster_pair: tuple[KafkaCluster, KafkaCluster],
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It names every remote topic that is one hop away, and nothing that a start would refuse."""
    for topic in ("orders", "customers", "prices"):
        for one in cluster_pair:
            create_topic(one, f"{topic}-{name}")
    for example in _PLAIN:
        path = adapted(example, tmp_path, _servers(example, cluster_pair), name)
        assert main(["plan", str(path)]) == 0, example
        told = capsys.readouterr().out
        assert "refuse" not in told, told
        direct = [copy.remote(name) for copy in EXAMPLES[example] if copy.prefix.count(".") == 1]
        assert [remote for remote in direct if remote not in told] == [], told


@pytest.mark.matrix
@pytest.mark.parametrize("example", [one for one in _PLAIN if one != "connect-mirror-maker"])
def test_an_example_is_started(
    cluster_pair: tuple[KafkaCluster, KafkaCluster], tmp_path: Path, name: str, example: str
) -> None:
    path = adapted(example, tmp_path, _servers(example, cluster_pair), name)
    _started(example, path, cluster_pair, name)


@pytest.mark.matrix
@pytest.mark.parametrize(("example", "listener"), [("tls", "MUTUAL"), ("sasl-ssl-scram", "BOTH")])
def test_a_secured_example_is_started(
    secured_clusters: tuple[Secured, Secured],
    tmp_path: Path,
    name: str,
    example: str,
    listener: str,
) -> None:
    pair = secured_clusters
    (tmp_path / "ca.pem").write_text(pair[0].authority.pem())
    (tmp_path / "passwords.properties").write_text(f"west={USER_SECRET}\neast={USER_SECRET}\n")
    for here, store in (("truststore.p12", "trust"), ("keystore.p12", "client")):
        (tmp_path / here).symlink_to(pair[0].stores[store])
    servers = {alias: pair[place].servers[listener] for alias, place in _PLACES[example].items()}
    instead = {"my-secret-password": PASSWORD} if example == "tls" else {'"mirror"': f'"{USER}"'}
    path = adapted(example, tmp_path, servers, name, **instead)
    _started(example, path, (pair[0].kafka, pair[1].kafka), name)


@pytest.fixture(scope="module")
def kerberized_pair(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Kerberized, Kerberized]]:
    require_kerberos()
    directory = tmp_path_factory.mktemp("realm")
    with realm(directory / "realm") as running:
        keytab = running.keytab("client.keytab", CLIENT)
        pair = tuple(kerberized(one, running, keytab, directory) for one in ("K1", "K2"))
        start_all(*(one.kafka for one in pair))
        try:
            yield pair[0], pair[1]
        finally:
            for one in pair:
                one.kafka.stop()


@pytest.mark.matrix
@pytest.mark.parametrize("example", ["kerberos", "kerberos-mirrormaker-1"])
def test_an_example_with_kerberos_is_started(
    kerberized_pair: tuple[Kerberized, Kerberized], tmp_path: Path, name: str, example: str
) -> None:
    source, target = kerberized_pair
    (tmp_path / "mirror.keytab").symlink_to(source.keytab)
    environment = {"KAFKA_OPTS": f"-Djava.security.krb5.conf={source.realm.conf}"}
    if example == "kerberos":
        servers = {"us-west": source.server, "us-east": target.server}
        path = adapted(example, tmp_path, servers, name, **{"EXAMPLE.COM": REALM})
        pair = source.kafka, target.kafka
        _started(example, path, pair, name, environment=environment)
        return
    options = adapted_mm1(
        example, tmp_path, source.server, target.server, name, **{"EXAMPLE.COM": REALM}
    )
    topic = f"orders-{name}"
    _mm1_started(options, source.kafka, target.kafka, tmp_path, topic, environment)
