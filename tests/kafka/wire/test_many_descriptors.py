"""All that waits for brokers, in a process that has more than 1,024 descriptors open."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.read.resume import Resumed, resume
from sparkmirror.internal_topics.position_metadata import PositionMetadata, decode_metadata
from sparkmirror.model import TopicPartition
from sparkmirror.offset_reset import LATEST
from sparkmirror.settings import ClusterClient, FetchSettings, GroupSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from sparkmirror.wire.fetch.record_stream import RecordStream
from sparkmirror.wire.group.session import GroupSession, MemberState
from tests.descriptors import BEYOND_SELECT
from tests.kafka.clusters.faults import Direct, SlotRun
from tests.kafka.harness.support import Sent, create_topic, produce, wait_until_equal

RECORDS = 50
TOPIC = "many-descriptors"

pytestmark = pytest.mark.usefixtures("many_descriptors")


@contextmanager
def _connections(client: ClusterClient, topic: str) -> Iterator[ClusterConnections]:
    connections = ClusterConnections(client, [topic])
    try:
        yield connections
    finally:
        connections.close()


def test_a_slot_reads_writes_listens_and_resumes(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster
) -> None:
    """Fetch, Produce and the control topic; then `resume` and `record_stream` on what came."""
    topic = f"{TOPIC}-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic)
    produce(cluster_a, topic, [Sent(b"%d" % n) for n in range(RECORDS)])
    with SlotRun(Direct(cluster_a), Direct(cluster_b), topic) as slot:
        wait_until_equal(cluster_a, topic, cluster_b, slot.remote)
        assert slot.failures == []
    tp, flow = TopicPartition(topic, 0), slot.flow
    with (
        _connections(flow.source, topic) as source,
        _connections(flow.target, slot.remote) as target,
    ):
        source.refresh()
        assert source.connection(source.leaders[tp].node).socket.fileno() >= BEYOND_SELECT
        target.refresh()
        coordinators = Coordinators(target)
        remote = TopicPartition(slot.remote, 0)
        end = target.list_offsets([remote], LATEST, read_committed=False)[remote]
        (writer,) = {
            decode_metadata(metadata).producer_id
            for _, metadata in coordinators.committed(flow.position_group, [remote]).values()
        }
        (partition,) = slot.partitions
        # As if nothing had been committed since the first record.
        recorded = PositionMetadata(target_end=0, producer_id=writer)
        found = resume(flow, source, target, {partition: (0, recorded)}, {})
        assert found == {tp: Resumed(RECORDS, end, leader_epoch=0)}
    stream = RecordStream(flow.target, FetchSettings(), remote, 0, end)
    try:
        assert sum(len(carried.offsets) for carried in stream) == RECORDS
    finally:
        stream.close()
    watch = ControlWatch(flow, slot.run_id)
    try:
        watch.catch_up()
        assert watch.command is not None, "the command that drained the slot"
        assert watch.read_to_end()
    finally:
        watch.close()


def test_a_member_joins_its_group(cluster_a: KafkaCluster, topic_name: str) -> None:
    create_topic(cluster_a, topic_name, 3)
    client = ClusterClient("A", tuple(cluster_a.bootstrap_servers.split(",")), "many")
    stopped = threading.Event()
    member = GroupSession(
        client,
        f"group-{topic_name}",
        GroupSettings(heartbeat_interval_ms=100),
        counts=lambda topics: dict.fromkeys(topics, 3),
        stopping=stopped.is_set,
    )
    try:
        joined = member.join([topic_name])
        assert joined is not None
        assert len(joined.partitions) == 3
        assert not member.news.wait(0.5), "heartbeats get through"
        assert member.state is MemberState.STABLE
    finally:
        member.close(leave=True)
