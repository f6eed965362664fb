"""MirrorClient beside Java's, on what a Java MirrorMaker 2 wrote."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkmirror import MirrorClient, RemoteClusterUtils
from sparkmirror.cli.main import main
from sparkmirror.client import OffsetAndMetadata
from sparkmirror.errors import TopicError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster, start_all
from sparkmirror.wire.admin.cluster import Cluster
from tests.kafka.clusters.secure import Secured
from tests.kafka.harness.java_peer import JavaMirrorClient, java_mirror_client, java_mirror_maker
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    create_topic,
    delete_topic,
    produce,
    topic_names,
)
from tests.patience import patience

TOPIC = "orders"
GROUPS = ("billing", "shipping", "other")


@dataclass
class Mirrored:
    """Two clusters between which a Java MirrorMaker 2 has run, and how their clients are set."""

    source: KafkaCluster
    target: KafkaCluster
    file: Path

    @property
    def properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self.target.bootstrap_servers}


def _wait(true: Callable[[], object], what: str, timeout_s: float | None = None) -> None:
    deadline = time.monotonic() + (timeout_s or patience())
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.3)


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    """Own clusters: the heartbeats that are left here would be mirrored by others' flows."""
    directory = tmp_path_factory.mktemp("java")
    source, target = KafkaCluster("A", heap="300m"), KafkaCluster("B", heap="300m")
    start_all(source, target)
    try:
        create_topic(source, TOPIC, 2)
        create_topic(source, "audit", 1)
        file = directory / "mm2.properties"
        file.write_text(_FILE.format(a=source.bootstrap_servers, b=target.bootstrap_servers))
        reader = Cluster(ClusterClient("A", tuple(source.bootstrap_servers.split(",")), "test"))
        with java_mirror_maker(file, directory / "java.log"):
            for part in range(4):  # several batches, so that there are several offset syncs
                produce(source, TOPIC, [Sent(b"x" * 10, partition=n % 2) for n in range(100)])
                produce(source, "audit", [Sent(b"x")])
                time.sleep(0.2 * (part + 1))
            for group, offsets in (
                ("billing", (200, 73)),
                ("shipping", (150, 200)),
                ("other", (5, 7)),
            ):
                reader.commit_offsets(
                    group,
                    {TopicPartition(TOPIC, n): (at, f"note-{n}") for n, at in enumerate(offsets)},
                )
            with MirrorClient({"bootstrap.servers": target.bootstrap_servers}) as client:
                _wait(lambda: "A.checkpoints.internal" in topic_names(target), "no checkpoints")
                _wait(
                    lambda: set(client.remote_consumer_offsets_matching(".*", "A")) >= set(GROUPS),
                    "no checkpoints of all groups",
                )
                _wait(lambda: client.replication_hops("A") == 1, "no heartbeats")
                time.sleep(3)  # the last offset syncs and the checkpoints that they make better
        reader.close()
        yield Mirrored(source, target, file)
    finally:
        source.stop()
        target.stop()


_FILE = """\
clusters=A,B
A.bootstrap.servers={a}
B.bootstrap.servers={b}
A->B.enabled=true
A->B.topics=orders,audit
tasks.max=2
replication.factor=1
offset.storage.replication.factor=1
config.storage.replication.factor=1
status.storage.replication.factor=1
offset-syncs.topic.replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset.lag.max=10
refresh.topics.interval.seconds=1
refresh.groups.interval.seconds=1
emit.checkpoints.interval.seconds=1
emit.heartbeats.interval.seconds=1
B.offset.flush.interval.ms=1000
sync.topic.acls.enabled=false
A.consumer.auto.offset.reset=earliest
"""


@pytest.fixture(scope="module")
def java() -> Iterator[JavaMirrorClient]:
    with java_mirror_client() as client:
        yield client


@pytest.mark.interop
def test_what_java_wrote_is_read_as_java_reads_it(
    mirrored: Mirrored, java: JavaMirrorClient
) -> None:
    properties = mirrored.properties
    with MirrorClient(properties) as client:
        for group in (*GROUPS, "nobody"):
            ours = client.remote_consumer_offsets(group, "A")
            theirs = java.offsets(properties, "A", group)
            assert {(tp.topic, tp.partition): tuple(at) for tp, at in ours.items()} == theirs
            assert bool(ours) == (group != "nobody")
        at = client.remote_consumer_offsets("billing", "A")[TopicPartition("A.orders", 0)]
        assert at == OffsetAndMetadata(200, "note-0")
        for regex in (".*", "(bill|ship)ing", "none.*"):
            ours_all = client.remote_consumer_offsets_matching(regex, "A")
            assert {
                group: {(tp.topic, tp.partition): tuple(one) for tp, one in offsets.items()}
                for group, offsets in ours_all.items()
            } == java.offsets_matching(properties, "A", regex)
        with pytest.raises(TopicError, match="does not exist"):
            client.remote_consumer_offsets("billing", "C")


@pytest.mark.interop
@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"replication.policy.separator": "-"},
        {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"},
        {
            "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
            "source.cluster.alias": "A",
        },
    ],
    ids=["default", "separator", "identity", "identity-with-alias"],
)
def test_names_mean_what_they_mean_to_java(
    mirrored: Mirrored, java: JavaMirrorClient, policy: dict[str, str]
) -> None:
    present = topic_names(mirrored.target)
    for name in (
        "C.A.heartbeats",
        "D.C.D.heartbeats",
        "E-heartbeats",
        "E-t",
        "a.b",
        "x.checkpoints.internal",
    ):
        if name not in present:
            create_topic(mirrored.target, name)
    properties = mirrored.properties | policy
    with MirrorClient(properties) as client:
        assert client.heartbeat_topics() == java.heartbeat_topics(properties)
        assert client.checkpoint_topics() == java.checkpoint_topics(properties)
        assert client.upstream_clusters() == java.upstream_clusters(properties)
        assert client.remote_topics() == java.remote_topics(properties)
        for alias in "ABCDE":
            assert client.replication_hops(alias) == java.hops(properties, alias)
            assert client.remote_topics(alias) == java.remote_topics(properties, alias)


@pytest.mark.interop
def test_the_functions_of_java_exist_under_one_name_each(mirrored: Mirrored) -> None:
    properties = mirrored.properties
    assert RemoteClusterUtils.replication_hops(properties, "A") == 1
    assert "A.heartbeats" in RemoteClusterUtils.heartbeat_topics(properties)
    assert "A.checkpoints.internal" in RemoteClusterUtils.checkpoint_topics(properties)
    assert "A" in RemoteClusterUtils.upstream_clusters(properties)
    one = RemoteClusterUtils.translate_offsets(properties, "A", "other")
    assert one
    assert RemoteClusterUtils.translate_offsets_matching(properties, "A", "oth.*") == {"other": one}


@pytest.mark.interop
def test_the_commands_tell_the_same(mirrored: Mirrored, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["offsets", "translate", str(mirrored.file), "A->B"]
    assert main([*command, "--group", "billing"]) == 0
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["GROUP", "REMOTE-TOPIC", "PARTITION", "UPSTREAM", "OFFSET", "METADATA"]
    assert rows[0] == ["billing", "A.orders", "0", "200", "200", "note-0"]
    assert main([*command, "--regex", "(bill|ship)ing", "--format", "json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    with MirrorClient(mirrored.properties) as client:
        ours = client.remote_consumer_offsets_matching("(bill|ship)ing", "A")
    assert {
        group: {(row["topic"], row["partition"]): (row["offset"], row["metadata"]) for row in rows}
        for group, rows in groups.items()
    } == {
        group: {(tp.topic, tp.partition): tuple(one) for tp, one in offsets.items()}
        for group, offsets in ours.items()
    }
    assert main([*command, "--group", "billing", "--mirrormaker", "--format", "json"]) == 0
    beside = json.loads(capsys.readouterr().out)["groups"]["billing"]
    assert any(row["mirrormaker_offset"] is not None for row in beside)
    assert all((row["mirrormaker_offset"] or 0) <= row["offset"] for row in beside)
    assert main([*command, "--group", "nobody"]) == 1
    assert main(["clusters", str(mirrored.file), "--format", "json"]) == 0
    a, b = json.loads(capsys.readouterr().out.partition("no checkpoints of these groups\n")[2])[
        "clusters"
    ]
    assert b["upstream"]["A"] == 1
    assert main(["groups", str(mirrored.file), "--format", "json"]) == 0
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    (billing,) = (one for one in flow["groups"] if one["group"] == "billing")
    assert [(one["offset"], one["lag"]) for one in billing["partitions"]] == [(200, 0), (73, 127)]
    assert billing["partitions"][0]["translated"] == 200
    assert main(["plan", str(mirrored.file), "--format", "json"]) == 0
    flow, *beats = json.loads(capsys.readouterr().out)["flows"]
    assert beats == []  # Java made the heartbeats topics
    assert {(one["action"], one["subject"]) for one in flow["changes"]} == {
        ("create-topic", "mm2-sparkmirror.A.internal"),
        ("create-topic", "mm2-sparkmirror-gaps.A.internal"),
        ("create-topic", "mm2-sparkmirror-orders.A.internal"),
        ("create-topic", "mm2-sparkmirror-runs.A.internal"),
    }
    delete_topic(mirrored.source, "heartbeats")
    assert main(["plan", str(mirrored.file), "--format", "json"]) == 0
    _, beats_to_a = json.loads(capsys.readouterr().out)["flows"]
    assert beats_to_a["flow"] == "heartbeats B->A"
    (change,) = beats_to_a["changes"]
    assert (change["cluster"], change["subject"], change["partitions"]) == ("A", "heartbeats", 1)
    assert b["no_heartbeats_from"] == []
    assert a["cluster"] == "A"


@pytest.mark.interop
def test_a_group_goes_on_where_the_checkpoint_says(mirrored: Mirrored) -> None:
    """A translated offset never lies past what the group had read."""
    records = {
        number: [one for one in consume_all(mirrored.target, "A.orders") if one.partition == number]
        for number in (0, 1)
    }
    assert [len(rows) for rows in records.values()] == [200, 200]
    with MirrorClient(mirrored.properties) as client:
        found = [one for (_, tp), one in client.checkpoints("A").items() if tp.topic == "A.orders"]
        assert found
        assert all(one.downstream <= one.upstream for one in found), found


def test_a_file_with_tls_and_a_login(
    secured_clusters: tuple[Secured, Secured], tmp_path: Path
) -> None:
    cluster, _ = secured_clusters
    file = tmp_path / "client.properties"
    lines = cluster.properties("BOTH", "SCRAM-SHA-512")
    lines["bootstrap.servers"] = cluster.servers["BOTH"]
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    with MirrorClient(file) as client:
        there = topic_names(cluster.kafka)  # other tests share it
        assert client.heartbeat_topics() == {
            one for one in there if one.rpartition(".")[2] == "heartbeats"
        }
        assert client.replication_hops("nobody") == -1
