"""Streams groups (KIP-1071) move to the target like groups of consumers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkmirror.control.groups.job import GroupClusters, GroupsJob, create_offset_topics
from sparkmirror.errors import ClusterError
from sparkmirror.internal_topics.mm2_records import Checkpoint, decode_checkpoint
from sparkmirror.model import TopicPartition
from sparkmirror.settings import CheckpointSettings, ClusterClient, OffsetSyncSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import Committed, GroupMember, GroupView
from tests.kafka.clusters.faults import Direct, SlotRun
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.streams_member import StreamsMember
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce


@pytest.fixture
def clients(cluster_a: KafkaCluster, cluster_b: KafkaCluster) -> Iterator[tuple[Cluster, Cluster]]:
    pair = [
        Cluster(ClusterClient(name, tuple(one.bootstrap_servers.split(",")), "test"))
        for name, one in (("A", cluster_a), ("B", cluster_b))
    ]
    yield pair[0], pair[1]
    for one in pair:
        one.close()


def test_a_streams_group_is_found_and_its_offsets_are_safe(
    cluster_a: KafkaCluster, clients: tuple[Cluster, Cluster], topic_name: str
) -> None:
    cluster, group = clients[0], f"g-{topic_name}"
    first, second = (TopicPartition(topic_name, number) for number in range(2))
    create_topic(cluster_a, topic_name, 2)
    with StreamsMember(cluster_a, group, topic_name) as member:
        member.commit({0: 0, 1: 0})
        wait_until(lambda: cluster.groups()[group].state == "Stable", "a stable group")
        assert cluster.group_members(group) == (GroupMember("streams-app", "127.0.0.1"),)
        owners = cluster.group_owners(group)
        assert owners.keys() == {first, second}
        assert {(owner.client_id, owner.host) for owner in owners.values()} == {
            ("streams-app", "127.0.0.1")
        }
        with pytest.raises(ClusterError, match="active members"):
            cluster.commit_offsets(group, {first: (1, "")})
    assert cluster.group_members(group) == ()
    assert cluster.group_owners(group) == {}
    assert cluster.groups()[group] == GroupView(group, "Empty")
    cluster.commit_offsets(group, {first: (1, "")})
    offsets = {first: Committed(1), second: Committed(0)}
    assert cluster.committed_by_group([group]) == {group: offsets}


def test_a_streams_group_goes_on_at_the_target_where_it_stood(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """Its offsets are there before its first member is; from then on nobody else sets them."""
    group = f"g-{topic_name}"
    create_topic(cluster_a, topic_name, 1)
    produce(cluster_a, topic_name, [Sent(b"%d" % number, partition=0) for number in range(30)])
    slot = SlotRun(
        Direct(cluster_a),
        Direct(cluster_b),
        topic_name,
        offset_syncs=OffsetSyncSettings(enabled=True, replication_factor=1),
        checkpoints=CheckpointSettings(
            enabled=True, include=(group,), replication_factor=1, sync_enabled=True
        ),
    )
    remote = TopicPartition(slot.remote, 0)
    source, target = Cluster(slot.flow.source), Cluster(slot.flow.target)
    clusters = GroupClusters(
        source_admin=source, target_admin=target, target=target, syncs=source, checkpoints=target
    )
    create_offset_topics(slot.flow, source, target)

    def last_round() -> None:
        job = GroupsJob(slot.flow, clusters, print)
        job.finish()
        job.close()

    def stands_at() -> int:
        return target.committed_offsets(group, [remote])[remote].offset

    with slot:
        wait_until(lambda: len(consume_all(cluster_b, slot.remote)) == 30, "all records")
    with StreamsMember(cluster_a, group, topic_name) as member:
        member.commit({0: 12})
        last_round()  # the application runs while its offsets are mirrored
        assert stands_at() == 12
        member.commit({0: 20})
    last_round()
    records = consume_all(cluster_b, f"{slot.alias}.checkpoints.internal")
    found = [decode_checkpoint(record.key, record.value) for record in records]
    assert found[-1] == Checkpoint(group, remote, 20, 20)
    assert stands_at() == 20
    with StreamsMember(cluster_b, group, slot.remote) as member:
        assert stands_at() == 20
        member.commit({0: 5})  # the application went back by itself
        with StreamsMember(cluster_a, group, topic_name) as before:
            before.commit({0: 25})
        last_round()
        assert stands_at() == 5
    last_round()
    assert stands_at() == 25
    source.close()
    target.close()
