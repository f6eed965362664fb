"""Four flows of one process, as Java's client library sees what they write.

``ams`` and ``ber`` mirror each other, ``ber`` goes on to ``cph`` (topics of ``ams`` among it, two
hops), and takes in what ``cph`` has: active/active, fan-out, aggregation and a chain at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.java_peer import JavaMember, JavaMirrorClient, java_mirror_client
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    create_topic,
    delete_topic,
    produce,
    topic_names,
)

pytestmark = pytest.mark.interop

_FILE = """\
clusters=ams,ber,cph
ams.bootstrap.servers={ams}
ber.bootstrap.servers={ber}
cph.bootstrap.servers={cph}
ams->ber.enabled=true
ber->ams.enabled=true
ber->cph.enabled=true
cph->ber.enabled=true
topics={topic}
ber->cph.topics={topic},ams\\\\.{topic}
groups={topic}-.*
tasks.max=1
replication.factor=1
offset.storage.replication.factor=1
offset-syncs.topic.replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
refresh.topics.interval.seconds=2
refresh.groups.interval.seconds=1
emit.checkpoints.interval.seconds=1
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
"""
ALIASES = ("ams", "ber", "cph")
COUNTS = {"ams": 300, "ber": 100, "cph": 50}


@pytest.fixture
def clusters(cluster_a: KafkaCluster, cluster_b: KafkaCluster) -> Iterator[dict[str, KafkaCluster]]:
    """The third is this file's own. Heartbeats have one name everywhere, and go at the end."""
    with KafkaCluster("C", heap="300m") as third:
        found = dict(zip(ALIASES, (cluster_a, cluster_b, third), strict=True))
        yield found
        for cluster in found.values():
            for topic in topic_names(cluster):
                if topic == "heartbeats" or topic.endswith(".heartbeats"):
                    delete_topic(cluster, topic)


@contextmanager
def _member(java: JavaMirrorClient, cluster: KafkaCluster, group: str) -> Iterator[JavaMember]:
    member = java.member(cluster.bootstrap_servers, group)
    try:
        yield member
    finally:
        member.close()


def _values(alias: str, partition: int, first: int = 0) -> list[str]:
    """What is in that partition of the topic that ``alias`` has of its own, from ``first`` on."""
    return [f"{alias}-{n}" for n in range(COUNTS[alias]) if n % 2 == partition][first:]


class World:
    """The clusters, the topic that each of them has, and a mirror of all."""

    def __init__(self, clusters: dict[str, KafkaCluster], directory: Path) -> None:
        self.clusters = clusters
        self.topic = f"moves-{uuid.uuid4().hex[:8]}"
        for alias, cluster in clusters.items():
            create_topic(cluster, self.topic, 2)
            sent = [Sent(f"{alias}-{n}".encode(), partition=n % 2) for n in range(COUNTS[alias])]
            produce(cluster, self.topic, sent)
        servers = {alias: one.bootstrap_servers for alias, one in clusters.items()}
        file = directory / "mm2.properties"
        file.write_text(_FILE.format(**servers, topic=self.topic))
        work = ["--log-format", "json", "--work-dir", str(directory / "work")]
        self.mirror = MirrorProcess(directory, ["run", str(file), *work])

    def properties(self, alias: str) -> dict[str, str]:
        """As a Java program would give them."""
        return {"bootstrap.servers": self.clusters[alias].bootstrap_servers}

    def count(self, alias: str, topic: str) -> int:
        """Records in a topic, 0 when there is none."""
        cluster = self.clusters[alias]
        return len(consume_all(cluster, topic)) if topic in topic_names(cluster) else 0

    def names(self, alias: str) -> set[str]:
        """The topics of a cluster that have this world's name in theirs."""
        return {name for name in topic_names(self.clusters[alias]) if self.topic in name}


def test_groups_fail_over_and_back_with_javas_client(
    clusters: dict[str, KafkaCluster], tmp_path: Path
) -> None:
    with java_mirror_client() as java:
        world = World(clusters, tmp_path)
        try:
            _check(world, java)
            code, _ = world.mirror.drain()
        finally:
            world.mirror.kill()
    assert code == 0, world.mirror.text()


def _check(world: World, java: JavaMirrorClient) -> None:
    topic, group = world.topic, f"{world.topic}-g"
    ams, ber = world.clusters["ams"], world.clusters["ber"]
    with _member(java, ams, group) as member:
        member.commit({(topic, 0): 100, (topic, 1): 37}, "as Java commits")
    arrived = {
        ("ber", f"ams.{topic}"): 300,
        ("ams", f"ber.{topic}"): 100,
        ("cph", f"ber.{topic}"): 100,
        ("cph", f"ber.ams.{topic}"): 300,
        ("ber", f"cph.{topic}"): 50,
    }
    wait_until(lambda: all(world.count(*at) == n for at, n in arrived.items()), "records")

    # Over: to where the checkpoints say, which is the very record.
    over = {(f"ams.{topic}", 0): (100, "as Java commits"),
            (f"ams.{topic}", 1): (37, "as Java commits")}  # fmt: skip
    wait_until(lambda: "ams.checkpoints.internal" in topic_names(ber), "a topic of checkpoints")
    wait_until(lambda: java.offsets(world.properties("ber"), "ams", group) == over, "checkpoints")
    places = java.translated(world.properties("ber"), "ams", group)
    with _member(java, ber, group) as member:
        wait_until(
            lambda: member.committed(places) == {tp: at for tp, (at, _) in over.items()},
            "the group's own offsets",
        )
        member.go_to(places)
        assert member.read(163) == {
            (f"ams.{topic}", 0): _values("ams", 0, 100),
            (f"ams.{topic}", 1): _values("ams", 1, 37),
        }
        # It goes on there, also with what ber has of its own.
        member.commit({(f"ams.{topic}", 0): 150, (f"ams.{topic}", 1): 150})
        member.commit({(topic, 0): 20, (topic, 1): 50})

    # And back: what it read at ber of ber's own is not read again at ams.
    def back() -> dict[tuple[str, int], tuple[int, str]]:
        return java.offsets(world.properties("ams"), "ber", group)

    wanted = {(f"ber.{topic}", 0): (20, ""), (f"ber.{topic}", 1): (50, "")}
    wait_until(lambda: {tp: back().get(tp) for tp in wanted} == wanted, "checkpoints back")
    with _member(java, ams, group) as member:
        member.go_to(java.translated(world.properties("ams"), "ber", group))
        assert member.read(30) == {(f"ber.{topic}", 0): _values("ber", 0, 20)}

    # No loop anywhere, and Java knows who feeds whom.
    assert world.names("ams") == {topic, f"ber.{topic}"}
    assert world.names("ber") == {topic, f"ams.{topic}", f"cph.{topic}"}
    assert world.names("cph") == {topic, f"ber.{topic}", f"ber.ams.{topic}"}
    hops = {("cph", "ams"): 2, ("cph", "ber"): 1, ("ber", "cph"): 1, ("ams", "nobody"): -1}
    wait_until(
        lambda: {at: java.hops(world.properties(at[0]), at[1]) for at in hops} == hops,
        "heartbeats",
    )
    assert {"ams", "ber"} <= java.upstream_clusters(world.properties("cph"))
    matching = java.offsets_matching(world.properties("ber"), "ams", f"{topic}.*")
    assert set(matching) == {group}
