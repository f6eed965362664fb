"""Several flows in one process: both ways with kept names, hops, fan-out, aggregation."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, write_mm2
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    create_topic,
    produce,
    topic_names,
    wait_until_equal,
)


def _some(count: int, first: int = 0) -> list[Sent]:
    """Records for two partitions."""
    return [
        Sent(value=f"{n}".encode(), key=f"{n % 7}".encode(), partition=n % 2)
        for n in range(first, first + count)
    ]


@pytest.mark.long
def test_kept_names_in_both_directions_make_no_loop(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """IdentityReplicationPolicy both ways: only with lists that have no topic in common, and then
    each record arrives once and stays where it is.
    """
    name = f"kept-{uuid.uuid4().hex[:8]}"
    homes = {f"{name}-east": cluster_a, f"{name}-west": cluster_b}
    for topic, cluster in homes.items():
        create_topic(cluster, topic, 2)
        produce(cluster, topic, _some(30))
    keeps = {
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "B->A.enabled": "true",
        "B->A.topics": f"{name}-w.*",
    }
    path = write_mm2(tmp_path / "ring.properties", cluster_a, cluster_b, f"{name}-.*", keeps)
    refused = MirrorProcess(tmp_path, ["run", str(path)])
    assert refused.wait() == 2, refused.text()
    for part in (
        "A->B->A form a loop",
        f"topic {name}-w",
        "Give A->B.topics, B->A.topics lists",
    ):
        assert part in refused.text()
    assert name not in "".join(topic_names(cluster_a) & topic_names(cluster_b))

    path = write_mm2(tmp_path / "apart.properties", cluster_a, cluster_b, f"{name}-east", keeps)
    arguments = ["run", str(path), "--work-dir", str(tmp_path / "work")]
    mirror = MirrorProcess(tmp_path, arguments)
    try:
        for first in (30, 60):
            for topic in homes:
                wait_until_equal(cluster_a, topic, cluster_b, topic)
            for topic, cluster in homes.items():
                produce(cluster, topic, _some(30, first=first))
        for topic in homes:
            wait_until_equal(cluster_a, topic, cluster_b, topic)
        code, _ = mirror.drain()
    finally:
        mirror.kill()
    assert code == 0, mirror.text()
    # A second run finds nothing that it has not mirrored.
    again = MirrorProcess(tmp_path, [*arguments, "--once"])
    assert again.wait() == 0, again.text()
    for cluster in (cluster_a, cluster_b):
        assert {topic for topic in topic_names(cluster) if name in topic} == set(homes)
        for topic in homes:
            assert len(consume_all(cluster, topic)) == 90


def test_hops_fan_out_and_aggregation_in_one_process(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """A->B, B->C, A->C and C->A at once: each topic reaches each cluster on every way there is,
    named after that way, and none comes back to where it has been.
    """
    name = f"ways-{uuid.uuid4().hex[:8]}"
    with KafkaCluster("C", heap="300m") as cluster_c:
        clusters = {"A": cluster_a, "B": cluster_b, "C": cluster_c}
        for number, cluster in enumerate(clusters.values(), 1):
            create_topic(cluster, name, 2)
            produce(cluster, name, _some(10 * number))
        topics = rf".*{name}"
        extra = {
            "clusters": "A, B, C",
            "C.bootstrap.servers": cluster_c.bootstrap_servers,
            "C.offset.storage.replication.factor": "1",
        }
        for flow in ("B->C", "A->C", "C->A"):
            extra |= {f"{flow}.enabled": "true", f"{flow}.topics": topics}
        path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, topics, extra)
        # On each cluster: the topic, and what each remote topic is a copy of.
        wanted = {
            "B": {f"A.{name}": "A", f"A.C.{name}": "C"},
            "C": {f"A.{name}": "A", f"B.{name}": "B", f"B.A.{name}": "A"},
            "A": {f"C.{name}": "C", f"C.B.{name}": "B"},
        }
        mirror = MirrorProcess(tmp_path, ["run", str(path), "--work-dir", str(tmp_path / "work")])
        try:
            for alias, copies in wanted.items():
                for remote, home in copies.items():
                    wait_until_equal(clusters[home], name, clusters[alias], remote)
            code, _ = mirror.drain()
        finally:
            mirror.kill()
        assert code == 0, mirror.text()
        for alias, copies in wanted.items():
            mine = {topic for topic in topic_names(clusters[alias]) if name in topic}
            assert mine == {name, *copies}
