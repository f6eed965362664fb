"""What tests share is whole again after a test that broke it and died."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.clusters.faults import SixBrokers, SlotRun, check_mirrored, leaders
from tests.kafka.clusters.shared import make_whole
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    create_topic,
    produce,
    topic_names,
    wait_until_equal,
)


@pytest.mark.long
def test_frozen_and_killed_brokers_and_stalled_connections_are_mended(
    faulty_clusters, topic_name
) -> None:
    source, target = faulty_clusters
    create_topic(source.kafka, topic_name, 3, replication=3)
    source.kafka.freeze(1)
    target.kafka.kill(2)
    source.proxies[2].stall()
    for one in faulty_clusters:
        one.restore()
    assert source.kafka.alive == target.kafka.alive == {1, 2, 3}
    assert not {name for name in topic_names(source.kafka) if not name.startswith("__")}
    create_topic(source.kafka, topic_name, 3, replication=3)
    assert -1 not in leaders(source.kafka, topic_name).values()
    with SlotRun(source, target, topic_name, 3) as slot:
        produce(source.kafka, topic_name, [Sent(b"%d" % n, partition=n % 3) for n in range(30)])
        assert check_mirrored(source.kafka, topic_name, target.kafka, slot.remote) == 30


@pytest.fixture
def single() -> Iterator[SixBrokers]:
    """As the shared ones, of one broker each."""
    shared = SixBrokers(nodes=1)
    with contextlib.closing(shared):
        yield shared


@pytest.mark.long
def test_clusters_that_do_not_come_back_are_replaced(single: SixBrokers, topic_name: str) -> None:
    source, target = single.pair()
    source.kafka.kill()
    identity = source.kafka.data_path() / "meta.properties"
    identity.write_text("cluster.id=another\nnode.id=7\nversion=1\n")
    single.restore()
    new_source, new_target = single.pair()
    assert new_source is not source
    assert new_target is not target
    create_topic(new_source.kafka, topic_name)


@pytest.mark.long
def test_the_pair_is_whole_again_after_a_test_that_died(
    new_cluster: Callable[..., KafkaCluster], topic_name: str
) -> None:
    """A broker that was left frozen, one that was killed, one whose data is another cluster's."""
    cluster = new_cluster("W", heap="256m")
    create_topic(cluster, topic_name)
    cluster.freeze()
    make_whole([cluster])
    produce(cluster, topic_name, [Sent(b"thawed")])
    cluster.kill()
    make_whole([cluster])
    assert [one.value for one in consume_all(cluster, topic_name)] == [b"thawed"]
    cluster.kill()
    identity = cluster.data_path() / "meta.properties"
    identity.write_text("cluster.id=another\nnode.id=7\nversion=1\n")
    make_whole([cluster])
    assert topic_name not in topic_names(cluster), "a new cluster"
    create_topic(cluster, topic_name)


@pytest.mark.long
def test_a_jvm_is_used_again_after_an_orderly_end_only(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path, topic_name: str
) -> None:
    create_topic(cluster_a, topic_name)
    produce(cluster_a, topic_name, [Sent(b"one")])
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, topic_name)

    def run(*options: str) -> MirrorProcess:
        return MirrorProcess(tmp_path, ["run", str(path), *options])

    first = run("--once")
    assert first.wait() == 0, first.text()
    second = run()
    try:
        assert second.jvm_pid == first.jvm_pid
        wait_until_equal(cluster_a, topic_name, cluster_b, f"A.{topic_name}")
        produce(cluster_a, topic_name, [Sent(b"two")])
        wait_until_equal(cluster_a, topic_name, cluster_b, f"A.{topic_name}")
    finally:
        second.kill()  # it had not ended: its query must not go on
    wait_until(lambda: not psutil.pid_exists(first.jvm_pid), "the end of the JVM")
