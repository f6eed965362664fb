"""The doctor with planted faults: each must be found, named and answered by an advice in time."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

import sparkmirror
from sparkmirror.cli.main import main
from sparkmirror.config.mm1.load import load_mm1
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.doctor.examine import Examination, examine
from sparkmirror.doctor.finding import Finding
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.testing.node import Node
from sparkmirror.wire.admin.cluster import Cluster
from tests.certificates import PASSWORD, Authority
from tests.kafka.clusters.listeners import FurtherPorts, addresses
from tests.kafka.clusters.servers import listener, refused, web_server
from tests.kafka.clusters.spark_cluster import SparkCluster, closed_network, plain_python
from tests.kafka.harness.mirror_process import wait_until, write_mm2
from tests.kafka.harness.support import (
    Sent,
    admin,
    create_topic,
    produce,
    topic_names,
)
from tests.patience import others_per_core, patience

HOST = "127.0.0.1"
LIMIT_S = 15.0
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "
SECRET = "planted-doctor-secret"


def login(alias: str, servers: str, password: str = SECRET) -> dict[str, str]:
    """Lines for a cluster where this client is alice, who may do nothing."""
    return {
        f"{alias}.bootstrap.servers": servers,
        f"{alias}.security.protocol": "SASL_PLAINTEXT",
        f"{alias}.sasl.mechanism": "PLAIN",
        f"{alias}.sasl.jaas.config": f'{_PLAIN}username="alice" password="{password}";',
    }


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that pauses for some seconds is a finding of its own."""
    monkeypatch.setattr("sparkmirror.doctor.examine._REQUEST_MS_MAX", 9_000)


class Sick:
    """A broker with listeners that lead nowhere, or show certificates that are no good, an
    authorizer, and settings of a bad day. ``trust``: the authority of its certificates.
    """

    def __init__(self, kafka: KafkaCluster, servers: dict[str, str], trust: Path) -> None:
        self.kafka = kafka
        self.servers = servers
        self.trust = trust


def _keystores(directory: Path) -> tuple[Path, dict[str, str]]:
    """The authority's certificate, and the keystore settings of the listeners with TLS."""
    authority = Authority()
    trust = directory / "trust.pem"
    trust.write_text(authority.pem())
    certified = {
        "elsewhere": authority.certify("broker", "b1.example.com"),
        "expired": authority.certify("broker", HOST, ends=timedelta(minutes=-10)),
    }
    config = {}
    for name, one in certified.items():
        prefix = f"listener.name.{name}.ssl.keystore"
        config |= {
            f"{prefix}.location": str(one.pkcs12(directory / f"{name}.p12")),
            f"{prefix}.password": PASSWORD,
            f"{prefix}.type": "PKCS12",
        }
    return trust, config


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sick]:
    further = FurtherPorts("LOGIN", "CLOSED", "NAMELESS", "ELSEWHERE", "EXPIRED", "CLOSED_AT")
    servers: dict[str, str] = {}

    def own(node: Node) -> dict[str, str]:
        ports = {"GOOD": node.port, **further.of(node)}
        closed = ports.pop("CLOSED_AT")
        servers.update({name: f"{HOST}:{port}" for name, port in ports.items()})
        shown = servers | {"CLOSED": f"{HOST}:{closed}", "NAMELESS": "wn1-src.invalid:9092"}
        return {
            "listeners": addresses({**ports, "CONTROLLER": node.controller_port}),
            "advertised.listeners": ",".join(f"{name}://{at}" for name, at in shown.items()),
        }

    trust, keystores = _keystores(tmp_path_factory.mktemp("keys"))
    config = {
        "listener.security.protocol.map": "GOOD:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "LOGIN:SASL_PLAINTEXT,CLOSED:PLAINTEXT,NAMELESS:PLAINTEXT,ELSEWHERE:SSL,EXPIRED:SSL",
        **keystores,
        "inter.broker.listener.name": "GOOD",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{_PLAIN}user_alice="{SECRET}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "auto.create.topics.enable": "true",
        "message.max.bytes": "300000",
    }
    with KafkaCluster("S", config=config, node_config=own, heap="300m") as kafka:
        yield Sick(kafka, servers, trust)


def flow_of(
    path: Path,
    a: KafkaCluster,
    b: KafkaCluster,
    topics: str,
    changes: dict[str, str] | None = None,
) -> FlowSettings:
    return load_mm2(write_mm2(path / "mm2.properties", a, b, topics, changes)).flows[0]


def timed(flow: FlowSettings, how: Examination | None = None) -> list[Finding]:
    """Findings, which must come in time, each with its advice."""
    began = time.monotonic()
    findings = examine(flow, how)
    assert time.monotonic() - began < LIMIT_S * others_per_core()
    for finding in findings:
        assert finding.tried
        assert finding.found
        assert SECRET not in f"{finding}"
        if finding.level.value in ("warn", "fail"):
            assert finding.do, finding
    return findings


def problems(findings: Sequence[Finding], *levels: str) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.level.value in (levels or ("warn", "fail")):
            found.setdefault(finding.check, []).append(finding)
    return found


def the(findings: Sequence[Finding], check: str, level: str) -> Finding:
    """The one problem of ``check``, which must have ``level``."""
    (finding,) = problems(findings)[check]
    assert finding.level.value == level, finding
    return finding


@pytest.fixture
def topic(cluster_a: KafkaCluster) -> str:
    name = f"doc-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, name, 2)
    produce(cluster_a, name, [Sent(b"x" * 100, partition=n % 2) for n in range(10)])
    return name


def with_groups(cluster: KafkaCluster, topic: str) -> None:
    """Make sure that the cluster has had a consumer group."""
    cluster_of = ClusterClient("B", tuple(cluster.bootstrap_servers.split(",")), "test")
    client = Cluster(cluster_of)
    client.committed_offsets("any", [TopicPartition(topic, 0)])
    client.close()


def test_nothing_is_wrong_and_nothing_is_changed(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, topic)
    main(["doctor", str(path)])  # nothing is changed: not even the topic of groups' offsets is made
    before = topic_names(cluster_b)
    capsys.readouterr()
    with_groups(cluster_b, topic)
    began = time.monotonic()
    code = main(["doctor", str(path), "--format", "json"])
    assert time.monotonic() - began < LIMIT_S * others_per_core()
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    told = {finding["check"]: finding for finding in flow["findings"]}
    assert code == 0, flow
    assert flow["counts"]["fail"] == flow["counts"]["skip"] == 0, flow
    for check in ("dns", "tcp", "api-versions", "clock", "round-trip", "clusters", "topics",
                  "leaders", "read", "describe-configs", "group", "create", "write", "commit",
                  "internal-topics", "partitions", "replication", "message-size", "settings",
                  "timestamps", "auto-create", "retention"):  # fmt: skip
        assert told[check]["level"] == "ok", told.get(check)
    assert topic_names(cluster_b) == before | {"__consumer_offsets"}
    assert main(["doctor", str(path)]) == 0
    assert "✓ ok" in capsys.readouterr().out


def test_a_bootstrap_name_that_does_not_resolve(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    servers = f"no-such-host.invalid:9092,{cluster_a.bootstrap_servers}"
    flow = flow_of(tmp_path, cluster_a, cluster_b, topic, {"A.bootstrap.servers": servers})
    found = the(timed(flow), "dns", "warn")
    assert "no-such-host.invalid:9092" in found.subject
    assert "does not resolve" in found.found
    assert cluster_a.bootstrap_servers in found.found


def test_a_resolver_that_hangs(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    over = threading.Event()

    def hang(_host: str, _port: int) -> list[tuple[int, str]]:
        over.wait(600)
        return []

    flow = flow_of(tmp_path, cluster_a, cluster_b, "t")
    try:
        findings = timed(flow, Examination(resolver=hang))
    finally:
        over.set()  # its threads, which nobody waits for any more, end
    assert {one.level.value for one in problems(findings)["dns"]} == {"fail"}
    assert "DNS servers" in problems(findings)["dns"][0].do
    assert {one.check for one in problems(findings, "skip")["cluster"]} == {"cluster"}


def test_a_bootstrap_port_that_is_closed(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    servers = {"B.bootstrap.servers": refused()}
    found = the(timed(flow_of(tmp_path, cluster_a, cluster_b, "t", servers)), "tcp", "fail")
    assert "connection refused" in found.found


@contextmanager
def full_queue() -> Iterator[str]:
    """An address that takes no connection and refuses none, as behind a firewall."""
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        time.sleep(0.1)
        yield f"{HOST}:{server.getsockname()[1]}"
        for one in waiting:
            one.close()


def test_a_firewall_that_drops_packets(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    with full_queue() as server:
        flow = flow_of(tmp_path, cluster_a, cluster_b, "t", {"A.bootstrap.servers": server})
        found = the(timed(flow), "tcp", "fail")
    assert "firewall" in found.do


def test_logins_that_are_missing_or_refused(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, sick: Sick, tmp_path: Path
) -> None:
    servers = {"A.bootstrap.servers": sick.servers["LOGIN"]}
    found = the(timed(flow_of(tmp_path, cluster_a, cluster_b, "t", servers)), "sasl", "fail")
    assert "security.protocol" in found.do
    wrong = login("A", sick.servers["LOGIN"], f"{SECRET}-not")
    found = the(timed(flow_of(tmp_path, cluster_a, cluster_b, "t", wrong)), "sasl", "fail")
    assert "refused the login" in found.found
    assert "sasl.jaas.config" in found.do


@pytest.mark.parametrize(
    ("listener", "check", "told"),
    [
        ("CLOSED", "tcp", "connection refused"),
        ("NAMELESS", "dns", "broker 1 advertises wn1-src.invalid:9092, which does not resolve"),
    ],
)
def test_advertised_addresses_that_lead_nowhere(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    sick: Sick,
    tmp_path: Path,
    listener: str,
    check: str,
    told: str,
) -> None:
    servers = {"A.bootstrap.servers": sick.servers[listener]}
    findings = timed(flow_of(tmp_path, cluster_a, cluster_b, "t", servers))
    found = the(findings, check, "fail")
    assert told in found.found
    assert "broker 1" in found.subject
    assert "advertised.listeners" in found.do
    assert [one.subject for one in problems(findings, "skip")["cluster"]] == ["cluster A"]


@pytest.mark.parametrize(
    ("listener", "trusted", "told", "do"),
    [
        ("ELSEWHERE", True, "for another host name", "subject alternative"),
        ("ELSEWHERE", False, "not trusted", "truststore"),
        ("EXPIRED", True, "has expired", "Renew"),
        ("GOOD", True, "it speaks Kafka without TLS", "security.protocol=PLAINTEXT"),
        pytest.param(
            *("LOGIN", True, "it speaks Kafka without TLS", "security.protocol=PLAINTEXT"),
            marks=pytest.mark.more,
        ),
    ],
)
def test_wrong_certificates(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    sick: Sick,
    tmp_path: Path,
    listener: str,
    trusted: bool,
    told: str,
    do: str,
) -> None:
    """A broker whose certificate is not the one that belongs there, or that has none."""
    trust = sick.trust
    if not trusted:
        trust = tmp_path / "other.pem"
        trust.write_text(Authority("Somebody else").pem())
    changes = {
        "A.bootstrap.servers": sick.servers[listener],
        "A.security.protocol": "SSL",
        "A.ssl.truststore.location": str(trust),
        "A.ssl.truststore.type": "PEM",
    }
    findings = timed(flow_of(tmp_path, cluster_a, cluster_b, "t", changes))
    found = the(findings, "tls", "fail")
    assert told in found.found
    assert do in found.do
    assert [one.subject for one in problems(findings, "skip")["cluster"]] == ["cluster A"]


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_port_that_is_no_kafka_listener(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path, protocol: str
) -> None:
    check = {"PLAINTEXT": "api-versions", "SSL": "tls"}[protocol]
    with web_server() as address:
        changes = {"A.bootstrap.servers": address, "A.security.protocol": protocol}
        findings = timed(flow_of(tmp_path, cluster_a, cluster_b, "t", changes))
    found = the(findings, check, "fail")
    assert "it is a web server" in found.found
    assert "Check the port" in found.do


def test_a_listener_that_wants_tls(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, sick: Sick, tmp_path: Path
) -> None:
    servers = {"A.bootstrap.servers": sick.servers["EXPIRED"]}
    findings = timed(flow_of(tmp_path, cluster_a, cluster_b, "t", servers))
    found = the(findings, "api-versions", "fail")
    assert "it speaks TLS" in found.found
    assert "security.protocol=SSL" in found.do


def test_a_broker_that_is_too_old(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """One of 0.10, as far as its API versions go."""
    versions = [(0, 0, 2), (1, 0, 3), (3, 0, 2), (18, 0, 0)]
    rows = b"".join(struct.pack(">hhh", *row) for row in versions)

    def answer(connection: socket.socket) -> None:
        correlation = connection.recv(4096)[8:12]
        body = correlation + struct.pack(">hi", 0, len(versions)) + rows
        connection.sendall(struct.pack(">i", len(body)) + body)

    with listener(answer) as address:
        servers = {"A.bootstrap.servers": address}
        findings = timed(flow_of(tmp_path, cluster_a, cluster_b, "t", servers))
    found = the(findings, "api-versions", "fail")
    assert "too old (Produce API up to version 2, 3 is needed)" in found.found
    assert "0.11" in found.do


def test_clocks_that_differ(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    flow = flow_of(tmp_path, cluster_a, cluster_b, topic)
    findings = timed(flow, Examination(now_s=lambda: time.time() - 60))
    clocks = problems(findings)["clock"]
    assert len(clocks) == 2
    assert all("s ahead of ours" in each.found for each in clocks)
    assert 55 < float(clocks[0].found.split()[3]) < 65
    late = timed(flow, Examination(now_s=lambda: time.time() + 3_600))
    assert {each.level.value for each in problems(late)["clock"]} == {"fail"}


def test_a_principal_without_permissions_on_the_source(
    cluster_b: KafkaCluster, sick: Sick, tmp_path: Path
) -> None:
    name = f"doc-{uuid.uuid4().hex[:8]}"
    create_topic(sick.kafka, name)
    changes = login("A", sick.servers["LOGIN"])
    found = the(timed(flow_of(tmp_path, sick.kafka, cluster_b, name, changes)), "topics", "fail")
    assert name in found.subject
    assert f"Describe on Topic {name}" in found.do


def test_a_principal_without_permissions_on_the_target(
    cluster_a: KafkaCluster, sick: Sick, topic: str, tmp_path: Path
) -> None:
    changes = login("B", sick.servers["LOGIN"])
    findings = timed(flow_of(tmp_path, cluster_a, sick.kafka, topic, changes))
    assert "Create on Topic" in the(findings, "create", "fail").do
    assert f"Write on Topic A.{topic}" in the(findings, "write", "fail").do
    assert f"Read on Topic A.{topic}" in the(findings, "commit", "fail").do
    internal = " ".join(one.subject for one in problems(findings)["internal-topics"])
    assert "mm2-sparkmirror.A.internal" in internal
    assert "mm2-offsets.A.internal" in internal
    assert "Read on Group __mirror.A->B" in the(findings, "group", "fail").do
    assert f"A.{topic}" not in topic_names(sick.kafka)


def test_a_principal_that_may_not_alter_a_topic_that_is_there(
    cluster_a: KafkaCluster, sick: Sick, topic: str, tmp_path: Path
) -> None:
    remote = f"A.{topic}"
    create_topic(sick.kafka, remote, 2)
    allowed = [
        AclBinding(ResourceType.TOPIC, remote, ResourcePatternType.LITERAL, "User:alice", "*",
                   operation, AclPermissionType.ALLOW)
        for operation in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.WRITE)
    ]  # fmt: skip
    client = admin(sick.kafka)
    for future in client.create_acls(allowed).values():
        future.result(20)
    every = AclBindingFilter(
        ResourceType.TOPIC, remote, ResourcePatternType.LITERAL, None, None,
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip
    # The controller answers before the broker has heard of it.
    wait_until(lambda: len(client.describe_acls(every).result(20)) == len(allowed), "the ACLs")
    changes = login("B", sick.servers["LOGIN"])
    findings = timed(flow_of(tmp_path, cluster_a, sick.kafka, topic, changes))
    for check, right in (("alter-configs", "AlterConfigs"), ("alter", "Alter")):
        found = the(findings, check, "warn")
        assert f"the principal lacks {right}:" in found.found
        assert f"{right} on Topic {remote}" in found.do
    assert "write" not in problems(findings)


def test_settings_of_a_bad_day_on_the_target(
    cluster_a: KafkaCluster, sick: Sick, topic: str, tmp_path: Path
) -> None:
    changes = {
        "replication.factor": "3",
        "B.offset.storage.replication.factor": "3",
        "offset-syncs.topic.replication.factor": "3",
        "checkpoints.topic.replication.factor": "3",
    }
    findings = timed(flow_of(tmp_path, cluster_a, sick.kafka, topic, changes))
    assert "it is true" in the(findings, "auto-create", "warn").found
    factor = the(findings, "replication", "fail")
    assert f"A.{topic}" in factor.subject
    assert "replication.factor is 3, the target has 1 live broker" in factor.found
    internal = the(findings, "internal-topics", "fail")
    assert "offset.storage.replication.factor is 3" in internal.found
    groups = " ".join(one.found for one in problems(findings)["group-topics"])
    assert "offset-syncs.topic.replication.factor is 3" in groups
    assert "checkpoints.topic.replication.factor is 3" in groups
    size = the(findings, "message-size", "warn")
    assert "300000" in size.found
    assert "1048588" in size.do


def test_topics_that_do_not_fit(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    create_topic(
        cluster_b,
        f"A.{topic}",
        3,
        config={
            "min.insync.replicas": "2",
            "max.message.bytes": "100000",
            "cleanup.policy": "compact",
            "compression.type": "zstd",
        },
    )
    fewer = f"{topic}-fewer"
    create_topic(cluster_a, fewer, 4)
    create_topic(cluster_b, f"A.{fewer}", 1)
    findings = timed(flow_of(tmp_path, cluster_a, cluster_b, f"{topic}, {fewer}"))
    insync = the(findings, "replication", "warn").found
    assert "min.insync.replicas=2 with 1 replica: brokers from Kafka 3.7 on treat it as 1" in insync
    produce(cluster_b, f"A.{topic}", [Sent(b"accepted, with acks=all", b"key")])
    counts = {one.found.partition(":")[0]: one for one in problems(findings)["partitions"]}
    assert set(counts) == {
        "the target topic has 3 partitions, the source has 2",
        "the target topic has 1 partition, the source has 4",
    }
    assert "100000" in the(findings, "message-size", "warn").found
    told = " ".join(each.found for each in problems(findings)["settings"])
    assert "cleanup.policy=compact" in told
    assert "compression.type=zstd" in told


def test_records_that_would_be_refused_or_lost(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"doc-{uuid.uuid4().hex[:8]}"
    now_ms = int(time.time() * 1000)
    create_topic(
        cluster_a,
        name,
        config={"retention.ms": "7200000", "message.timestamp.after.max.ms": str(10**12)},
    )
    limits = {"message.timestamp.before.max.ms": "60000", "retention.ms": "600000"}
    create_topic(cluster_b, f"A.{name}", config=limits)
    old = [Sent(b"x" * 1000, timestamp_ms=now_ms - 7_000_000 + n) for n in range(100)]
    produce(cluster_a, name, [*old, Sent(b"y", timestamp_ms=now_ms + 10 * 3_600_000)])
    flow = flow_of(tmp_path, cluster_a, cluster_b, name)
    findings = timed(flow, Examination(rate_bytes_s=10.0))
    times = problems(findings)["timestamps"]
    assert [each.level.value for each in times] == ["fail", "fail"]
    assert "is 1.9 h old, the target takes records of at most 60.0 s" in times[0].found
    assert "in the future" in times[1].found
    kept = problems(findings)["retention"]
    assert len(kept) == 2
    assert "is 1.9 h old, the source keeps records 2.0 h" in kept[0].found
    assert kept[0].level.value == "fail"
    assert "the target keeps 10.0 min" in kept[1].found
    calm = timed(flow)
    assert len(problems(calm)["retention"]) == 1


def test_mirrormaker_1(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    create_topic(cluster_b, topic, 1)
    consumer, producer = tmp_path / "c", tmp_path / "p"
    consumer.write_text(f"bootstrap.servers={cluster_a.bootstrap_servers}\ngroup.id={topic}\n")
    producer.write_text(f"bootstrap.servers={cluster_b.bootstrap_servers}\n")
    (flow,) = load_mm1(consumer, producer, include=f"{topic},{topic}-none").flows
    java = Consumer({"bootstrap.servers": cluster_a.bootstrap_servers, "group.id": topic,
                     "client.id": "old-mirror"})  # fmt: skip
    java.subscribe([topic])
    deadline = time.monotonic() + patience()
    while not java.assignment() and time.monotonic() < deadline:
        java.poll(0.2)
    try:
        findings = timed(flow)
    finally:
        java.close()
    (java_,) = problems(findings, "ok")["java"]
    assert "old-mirror" in java_.found
    assert "1 partition, the source has 2" in the(findings, "partitions", "warn").found
    assert f"{topic}-none" in the(findings, "topics", "warn").subject
    code = main(["doctor", "--consumer.config", str(consumer), "--producer.config", str(producer),
                 "--whitelist", topic, "--problems"])  # fmt: skip
    told = capsys.readouterr().out
    assert code == 0  # warnings alone
    assert "records go to partitions by key" in told
    assert "✓ ok" not in told


def test_one_cluster_on_both_sides(cluster_a: KafkaCluster, topic: str, tmp_path: Path) -> None:
    flow = flow_of(tmp_path, cluster_a, cluster_a, topic)
    assert "one cluster" in the(timed(flow), "clusters", "warn").found
    policy = {"replication.policy.class": "IdentityReplicationPolicy"}
    flow = flow_of(tmp_path, cluster_a, cluster_a, topic, policy)
    assert "one cluster" in the(timed(flow), "clusters", "fail").found


@pytest.mark.long
def test_from_the_executors(
    cluster_a: KafkaCluster,
    sick: Sick,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes = login("B", sick.servers["LOGIN"], f"{SECRET}-not")
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, sick.kafka, topic, changes)
    interpreter, lacking = plain_python(tmp_path / "python")
    monkeypatch.setenv("PYSPARK_PYTHON", str(interpreter))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source = Path(sparkmirror.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", f"{source}{os.pathsep}{lacking}")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # put back what a start changes
    with SparkCluster(tmp_path, settings=closed_network()) as spark:
        code = main(["doctor", str(path), "--executors", "--master", spark.master,
                     "--format", "json"])  # fmt: skip
    assert code == 1
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    there = [one for one in flow["findings"] if one["place"]]
    assert {one["place"] for one in there} == {socket.gethostname()}
    (reached,) = [one for one in there if one["check"] == "tcp" and "cluster A" in one["subject"]]
    assert reached["level"] == "ok"
    (login_,) = [one for one in there if one["check"] == "sasl"]
    assert login_["level"] == "fail"
    assert "refused the login" in login_["found"]
    for file in tmp_path.rglob("*"):
        if file.is_file() and not file.is_symlink() and file != path and "python" not in file.parts:
            assert f"{SECRET}-not".encode() not in file.read_bytes(), file
