"""Consumer groups of a topic that is deleted and made anew: its offsets mean other records."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparkmirror.control.groups import GroupClusters, GroupsJob, create_offset_topics
from sparkmirror.demo.clusters import KafkaCluster
from sparkmirror.model import (
    CheckpointSettings,
    FaultSettings,
    FlowSettings,
    OffsetSyncSettings,
    TopicPartition,
)
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.mirror_records import Checkpoint, decode_checkpoint
from sparkmirror.wire.runs import decode_run, runs_topic
from tests.kafka.faults import Direct, SlotRun
from tests.kafka.mirror_process import wait_until
from tests.kafka.support import Sent, consume_all, create_topic, delete_topic, produce

pytestmark = pytest.mark.timeout(180)


@contextmanager
def _clusters(flow: FlowSettings) -> Iterator[GroupClusters]:
    source, target = Cluster(flow.source), Cluster(flow.target)
    try:
        yield GroupClusters(
            source_admin=source, target_admin=target, target=target, syncs=source,
            checkpoints=target,
        )  # fmt: skip
    finally:
        source.close()
        target.close()


def _values(count: int, text: str) -> list[Sent]:
    return [Sent(f"{text} {n}".encode(), partition=0) for n in range(count)]


class Moving:
    """One group, committed on the source, and its newest checkpoint on the target."""

    def __init__(self, slot: SlotRun, group: str, clusters: GroupClusters) -> None:
        self.slot, self.group, self.clusters = slot, group, clusters
        self.remote = TopicPartition(slot.remote, 0)

    def checkpoint_at(self, offset: int) -> Checkpoint | None:
        """The group has read up to ``offset``; what a run that ends makes of it."""
        source = self.clusters.source_admin
        source.commit_offsets(self.group, {TopicPartition(self.slot.topic, 0): (offset, "")})
        said: list[str] = []
        job = GroupsJob(self.slot.flow, self.clusters, said.append)
        job.finish()
        job.close()
        found = [
            decode_checkpoint(record.key, record.value)
            for record in consume_all(
                self.slot.target.kafka, f"{self.slot.alias}.checkpoints.internal"
            )
        ]
        mine = [one for one in found if one is not None and one.group == self.group]
        return mine[-1] if mine else None


def test_a_group_of_a_topic_made_anew_never_goes_to_the_old_ones_records(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic_name, 1)
    old, new = _values(60, "old"), _values(40, "new")
    produce(cluster_a, topic_name, old)
    options = {
        "faults": FaultSettings(source_loss="record-and-continue"),
        "offset_syncs": OffsetSyncSettings(enabled=True, replication_factor=1, lag_max=5),
        "checkpoints": CheckpointSettings(enabled=True, include=(group,), replication_factor=1),
    }
    source, target = Direct(cluster_a), Direct(cluster_b)
    slot = SlotRun(source, target, topic_name, **options)
    with _clusters(slot.flow) as clusters:
        moving = Moving(slot, group, clusters)
        create_offset_topics(slot.flow, clusters.source_admin, clusters.target_admin)
        with slot:
            wait_until(lambda: len(consume_all(cluster_b, slot.remote)) == 60, "the old records")
        assert moving.checkpoint_at(20) == Checkpoint(group, moving.remote, 20, 20)

        delete_topic(cluster_a, topic_name)
        create_topic(cluster_a, topic_name, 1)
        produce(cluster_a, topic_name, new)
        # It went back; where to, nothing says until some of the new topic is mirrored.
        assert moving.checkpoint_at(10) == Checkpoint(group, moving.remote, 20, 20)
        with SlotRun(source, target, topic_name, alias=slot.alias, **options):
            wait_until(lambda: len(consume_all(cluster_b, slot.remote)) == 100, "the new records")
        assert moving.checkpoint_at(10) == Checkpoint(group, moving.remote, 10, 70)
        # The old topic's rows were forgotten meanwhile; the new one's have its id.
        rows = {
            record.key: decode_run(record.key, record.value)
            for record in consume_all(cluster_b, runs_topic(slot.flow))
        }
        left = [row for row in rows.values() if row is not None and row.run is not None]
        now = clusters.source_admin.topics([topic_name])[topic_name].topic_id
        assert {row.topic_id for row in left} == {now}
        assert moving.checkpoint_at(39) == Checkpoint(group, moving.remote, 39, 99)
    records = consume_all(cluster_b, slot.remote)
    assert [r.value for r in records if r.offset >= 70] == [sent.value for sent in new[10:]]
