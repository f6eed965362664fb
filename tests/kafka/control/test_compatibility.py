"""One slot's records, positions and checkpoints on real clusters, without Spark: the behaviour of
both MirrorMakers, and what becomes of groups when a topic is deleted and made anew.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from kafka import KafkaConsumer
from sparkmirror.control.groups.job import GroupClusters, GroupsJob, create_offset_topics
from sparkmirror.control.positions.seeding import position_group, seed_positions
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.data.coordination.slot_plan import encode_flow
from sparkmirror.data.transform.record_path import record_path
from sparkmirror.data.write.position_commits import Commits
from sparkmirror.data.write.slot_sink import SlotSink, SlotSummary
from sparkmirror.errors import Unreachable
from sparkmirror.internal_topics.connect_offsets import encode_source_offset, read_source_positions
from sparkmirror.internal_topics.mm2_records import (
    Checkpoint,
    decode_checkpoint,
    decode_offset_sync,
    encode_offset_sync,
    offset_syncs_topic,
)
from sparkmirror.internal_topics.runs import decode_run, runs_topic
from sparkmirror.model import MirrorMode, Partitioner, TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import (
    CheckpointSettings,
    ClusterClient,
    FaultSettings,
    FlowSettings,
    OffsetSyncSettings,
    PolicySettings,
    ProduceSettings,
    RecordSettings,
)
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.producer import Producer
from tests.kafka.clusters.faults import Direct, SlotRun
from tests.kafka.clusters.servers import listener
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import (
    TIMEOUT_S,
    Sent,
    admin,
    committed,
    consume_all,
    contents,
    create_topic,
    delete_topic,
    produce,
    set_topic_config,
    topic_config,
    topic_names,
)
from tests.kafka.harness.ways import now_ms, pump
from tests.patience import others_per_core


@contextmanager
def _clusters(flow: FlowSettings) -> Iterator[GroupClusters]:
    source, target = Cluster(flow.source), Cluster(flow.target)
    try:
        syncs = source if flow.offset_syncs.location == "source" else target
        found = GroupClusters(
            source_admin=source, target_admin=target, target=target, syncs=syncs, checkpoints=target
        )
        create_offset_topics(flow, source, target)
        yield found
    finally:
        source.close()
        target.close()


def _values(count: int, text: str) -> list[Sent]:
    return [Sent(f"{text} {n}".encode(), partition=0) for n in range(count)]


def _group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


def _options(group: str, **more: Any) -> dict[str, Any]:
    """Settings of a flow with offset syncs and checkpoints of ``group``."""
    return {
        "offset_syncs": OffsetSyncSettings(enabled=True, replication_factor=1, lag_max=5),
        "checkpoints": CheckpointSettings(enabled=True, include=(group,), replication_factor=1),
        **more,
    }


def _mirrored(slot: SlotRun, count: int) -> None:
    wait_until(
        lambda: len(consume_all(slot.target.kafka, slot.remote)) == count, f"{count} records"
    )


class Moving:
    """One group, committed on the source, and its newest checkpoint on the target."""

    def __init__(
        self, slot: SlotRun, group: str, clusters: GroupClusters, *, checkpoints: str = ""
    ) -> None:
        self.slot, self.group, self.clusters = slot, group, clusters
        self.checkpoints = checkpoints or f"{slot.alias}.checkpoints.internal"
        self.remote = TopicPartition(slot.remote, 0)

    def checkpoint_at(self, offset: int) -> Checkpoint | None:
        """The group has read up to ``offset``; what a run that ends makes of it."""
        source = self.clusters.source_admin
        source.commit_offsets(self.group, {TopicPartition(self.slot.topic, 0): (offset, "")})
        return self.round()

    def round(self, notify: Callable[[str], None] = lambda _: None) -> Checkpoint | None:
        """The last round of a run; the newest checkpoint of the group then."""
        job = GroupsJob(self.slot.flow, self.clusters, notify)
        job.finish()
        job.close()
        found = [
            decode_checkpoint(record.key, record.value)
            for record in consume_all(self.slot.target.kafka, self.checkpoints)
        ]
        mine = [one for one in found if one is not None and one.group == self.group]
        return mine[-1] if mine else None


def test_a_group_of_a_topic_made_anew_never_goes_to_the_old_ones_records(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    group = _group()
    create_topic(cluster_a, topic_name, 1)
    old, new = _values(60, "old"), _values(40, "new")
    produce(cluster_a, topic_name, old)
    options = _options(group, faults=FaultSettings(source_loss="record-and-continue"))
    source, target = Direct(cluster_a), Direct(cluster_b)
    slot = SlotRun(source, target, topic_name, **options)
    with _clusters(slot.flow) as clusters:
        moving = Moving(slot, group, clusters)
        with slot:
            _mirrored(slot, 60)
        assert moving.checkpoint_at(20) == Checkpoint(group, moving.remote, 20, 20)

        delete_topic(cluster_a, topic_name)
        create_topic(cluster_a, topic_name, 1)
        produce(cluster_a, topic_name, new)
        # It went back; where to, nothing says until some of the new topic is mirrored.
        assert moving.checkpoint_at(10) == Checkpoint(group, moving.remote, 20, 20)
        with SlotRun(source, target, topic_name, alias=slot.alias, **options):
            _mirrored(slot, 100)
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


def test_offset_syncs_topics_on_target(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """Named after the source then, and nothing of ours is on the source."""
    group = _group()
    create_topic(cluster_a, topic_name, 1)
    produce(cluster_a, topic_name, _values(30, "r"))
    options = _options(group)
    options["offset_syncs"] = OffsetSyncSettings(
        enabled=True, replication_factor=1, location="target"
    )
    before = topic_names(cluster_a)
    slot = SlotRun(Direct(cluster_a), Direct(cluster_b), topic_name, **options)
    with _clusters(slot.flow) as clusters:
        with slot:
            _mirrored(slot, 30)
        moving = Moving(slot, group, clusters)
        assert moving.checkpoint_at(12) == Checkpoint(group, moving.remote, 12, 12)
    topic = f"mm2-offset-syncs.{slot.alias}.internal"
    assert offset_syncs_topic(slot.flow) == topic
    syncs = [decode_offset_sync(one.key, one.value) for one in consume_all(cluster_b, topic)]
    assert syncs[-1] == (TopicPartition(topic_name, 0), 29, 29)
    assert topic_names(cluster_a) == before


def test_no_checkpoints_if_no_records_are_mirrored(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """There is one as soon as a first record is; what makes no sense beside it costs nothing."""
    group = _group()
    create_topic(cluster_a, topic_name, 1)
    source, target = Direct(cluster_a), Direct(cluster_b)
    slot = SlotRun(source, target, topic_name, **_options(group))
    with _clusters(slot.flow) as clusters:
        moving = Moving(slot, group, clusters)
        assert moving.checkpoint_at(0) is None
        produce(cluster_a, topic_name, _values(3, "r"))
        with slot:
            _mirrored(slot, 3)
        assert moving.checkpoint_at(1) == Checkpoint(group, moving.remote, 1, 1)
        # Somebody else's records, and damaged ones, in the topics that are read.
        key, value = encode_offset_sync(TopicPartition(topic_name, 0), 3, 3)
        syncs, runs = offset_syncs_topic(slot.flow), runs_topic(slot.flow)
        odd = [Sent(b"hello", b"who"), Sent(value[:9], key), Sent(value, key[:3]), Sent(b"", b"")]
        produce(cluster_a, syncs, [Sent(None, key, partition=0), *odd])
        produce(cluster_b, runs, odd)
        said: list[str] = []
        moving.clusters.source_admin.commit_offsets(group, {TopicPartition(topic_name, 0): (2, "")})
        assert moving.round(said.append) == Checkpoint(group, moving.remote, 2, 2)
    (told,) = [line for line in said if "cannot be decoded" in line]
    assert told.startswith(f"{slot.flow.name}: 9 records of {slot.alias}.checkpoints.internal, ")


def test_replication_with_empty_partition(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """A group of the target reads all that there is, and stands at 0 where there is nothing."""
    group = _group()
    create_topic(cluster_a, topic_name, 3)
    produce(cluster_a, topic_name, [Sent(b"%d" % n, partition=n % 2) for n in range(40)])
    source, target = Direct(cluster_a), Direct(cluster_b)
    slot = SlotRun(source, target, topic_name, 3, **_options(group))
    with _clusters(slot.flow) as clusters:
        moving = Moving(slot, group, clusters)
        with slot:
            _mirrored(slot, 40)
        read = {TopicPartition(topic_name, n): (end, "") for n, end in enumerate((20, 20, 0))}
        clusters.source_admin.commit_offsets(group, read)
        moving.round()
        assert _newest(moving) == {0: (20, 20), 1: (20, 20)}
        assert _read_all(cluster_b, slot.remote, group) == 40
        remote = [TopicPartition(slot.remote, number) for number in range(3)]
        found = clusters.target_admin.committed_offsets(group, remote)
        assert {tp.partition: one.offset for tp, one in found.items()} == {0: 20, 1: 20, 2: 0}
        # Its checkpoint comes with the first record.
        produce(cluster_a, topic_name, [Sent(b"late", partition=2)])
        with SlotRun(source, target, topic_name, 3, alias=slot.alias, **_options(group)):
            _mirrored(slot, 41)
        moving.round()
        assert _newest(moving) == {0: (20, 20), 1: (20, 20), 2: (0, 0)}


def _read_all(cluster: KafkaCluster, topic: str, group: str) -> int:
    """Read ``topic`` to its end as ``group`` and commit where that is; the number of records.

    As Java's consumer does, this one commits its places in empty partitions, too.
    """
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    wanted, count = len(consume_all(cluster, topic)), 0
    deadline = time.monotonic() + TIMEOUT_S
    while count < wanted:
        assert time.monotonic() < deadline, f"{count} of {wanted} records"
        count += sum(map(len, consumer.poll(500).values()))
    consumer.commit()
    consumer.close()
    return count


def _newest(moving: Moving) -> dict[int, tuple[int, int]]:
    """The newest checkpoint of the group per partition: offsets on both sides."""
    found = {}
    for record in consume_all(moving.slot.target.kafka, moving.checkpoints):
        one = decode_checkpoint(record.key, record.value)
        assert one is not None
        if one.group == moving.group:
            found[one.remote.partition] = (one.upstream, one.downstream)
    return found


def test_offsets_that_were_altered_and_reset(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """An exactly-once flow goes on where Connect's offsets say, once its own are deleted.

    They name the last record that was copied: 0 goes on at 1, only none at all begins at 0.
    """
    create_topic(cluster_a, topic_name, 2)
    values = [[b"%d of %d" % (n, number) for n in range(10)] for number in range(2)]
    for number, own in enumerate(values):
        produce(cluster_a, topic_name, [Sent(value, partition=number) for value in own])
    source, target = Direct(cluster_a), Direct(cluster_b)
    slot = SlotRun(source, target, topic_name, 2, exactly_once=True)
    storage, alias = slot.flow.offset_storage_topic, slot.alias
    first, second = (TopicPartition(topic_name, number) for number in range(2))
    everything = [own[:] for own in values]

    def stored() -> dict[TopicPartition, int]:
        rows = [(row.partition, row.key, row.value) for row in consume_all(cluster_b, storage)]
        return dict(read_source_positions(rows, alias).positions)

    def go_on_from(offsets: dict[TopicPartition, int | None]) -> dict[TopicPartition, int]:
        """What a start takes over of ``offsets``, last copied ones, when no position is left."""
        group = position_group(slot.flow)
        client = admin(cluster_b)  # kept: what it was asked for goes with it
        client.delete_consumer_groups([group])[group].result(TIMEOUT_S)
        rows = [
            Sent(value, key)
            for key, value in (
                encode_source_offset(alias, tp, 0 if last is None else last + 1)
                for tp, last in offsets.items()
            )
        ]
        produce(cluster_b, storage, rows)
        cluster = Cluster(slot.flow.target)
        try:
            assignment = Assignment(slot.flow.name, slot.partitions)
            return dict(seed_positions(cluster, slot.flow, assignment).seeded)
        finally:
            cluster.close()

    def is_there() -> list[list[bytes | None]]:
        records = consume_all(cluster_b, slot.remote)
        return [[r.value for r in records if r.partition == number] for number in range(2)]

    with slot:
        wait_until(lambda: is_there() == everything, "all records")
    assert stored() == {first: 10, second: 10}
    for offsets, begins in (
        ({first: 0, second: None}, {first: 1}),
        ({first: None, second: None}, {}),
    ):
        assert go_on_from(offsets) == begins
        for number, own in enumerate(values):
            everything[number] += own[begins.get(TopicPartition(topic_name, number), 0) :]
        with SlotRun(source, target, topic_name, 2, alias=alias, exactly_once=True) as again:
            wait_until(lambda: is_there() == everything, f"all records from {begins} on")
        assert again.failures == []
        assert stored() == {first: 10, second: 10}
    assert is_there() == everything


def test_a_group_behind_a_record_that_was_left_out(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """Of a batch that was cut around it only the last part has its places told.

    Those before and behind the batch have theirs, and no group is moved past a record.
    """
    group = _group()
    create_topic(cluster_a, topic_name, 1)
    options = _options(group, faults=FaultSettings(bad_record="skip"))
    slot = SlotRun(Direct(cluster_a), Direct(cluster_b), topic_name, **options)
    limit = {"max.message.bytes": "5000"}
    set_topic_config(cluster_b, slot.remote, **limit)
    wait_until(lambda: limit.items() <= topic_config(cluster_b, slot.remote).items(), "the limit")
    large = Sent(uuid.uuid4().bytes * 500, partition=0)
    for sent in (_values(4, "before"), [Sent(b"x"), large, Sent(b"y")], _values(5, "behind")):
        produce(cluster_a, topic_name, sent, config={"linger.ms": 60_000})
    with _clusters(slot.flow) as clusters:
        moving = Moving(slot, group, clusters)
        with slot:
            _mirrored(slot, 11)
        assert [(gap.first, gap.last) for gap in slot.gaps()] == [(5, 5)]
        for upstream, downstream in ((3, 3), (9, 8), (12, 11)):
            wanted = Checkpoint(group, moving.remote, upstream, downstream)
            assert moving.checkpoint_at(upstream) == wanted
        topic = offset_syncs_topic(slot.flow)
        syncs = [decode_offset_sync(one.key, one.value) for one in consume_all(cluster_a, topic)]
    places = {sync[1]: sync[2] for sync in syncs if sync and sync[0].topic == topic_name}
    assert not {4, 5} & places.keys()
    assert places[11] == 10
    assert all(down == up - (up > 5) for up, down in places.items())


def test_identity_replication(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """Topics keep their names; checkpoints are of the topic as it is on both."""
    group = _group()
    create_topic(cluster_a, topic_name, 1)
    produce(cluster_a, topic_name, _values(20, "r"))
    options = _options(group, policy=PolicySettings("identity"))
    slot = SlotRun(Direct(cluster_a), Direct(cluster_b), topic_name, **options)
    assert slot.remote == topic_name
    with _clusters(slot.flow) as clusters:
        with slot:
            _mirrored(slot, 20)
        sides = [contents(consume_all(one, topic_name)) for one in (cluster_a, cluster_b)]
        assert sides[0] == sides[1]
        moving = Moving(slot, group, clusters)
        wanted = Checkpoint(group, TopicPartition(topic_name, 0), 7, 7)
        assert moving.checkpoint_at(7) == wanted
    assert f"{slot.alias}.{topic_name}" not in topic_names(cluster_b)


def test_commit_offsets_removes_non_existent_topics(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """MirrorMaker 1's positions are on the source: one of a topic that is gone there holds up
    neither the others nor the end.
    """
    group, other = _group(), f"{topic_name}-stays"
    for topic in (topic_name, other):
        create_topic(cluster_a, topic, 1)
        produce(cluster_a, topic, _values(20, "r"))
    options = {"mode": MirrorMode.MM1, "group_id": group, "position_interval_ms": 600_000}
    slot = SlotRun(Direct(cluster_a), Direct(cluster_b), topic_name, **options)
    with slot:
        _mirrored(slot, 20)
        delete_topic(cluster_a, topic_name)
        slot.drain()
    commits = Commits(slot.flow)
    try:
        gone, there = (TopicPartition(topic, 0) for topic in (topic_name, other))
        assert committed(commits, {gone: (20, ""), there: (7, "")})
        assert commits.coordinators.committed(group, [gone, there]) == {there: (7, "")}
    finally:
        commits.close()


def test_commit_offsets_throws_when_nobody_answers() -> None:
    with listener() as address:
        silent = ClusterClient("S", (address,), "test", request_timeout_ms=1_000)
        flow = FlowSettings(silent, silent, silent, silent, mode=MirrorMode.MM1, group_id="g")
        commits = Commits(flow)
        try:
            began = time.monotonic()
            with pytest.raises((Unreachable, ConnectionLost)):
                committed(commits, {TopicPartition("t", 0): (5, "")})
            assert time.monotonic() - began < 20 * others_per_core()
        finally:
            commits.close()


class _Dealt(SlotSink):
    """A sink behind the record path, which Spark runs as a transform between the two."""

    def run(self, rows: Iterator[pa.RecordBatch]) -> SlotSummary:
        used = self.flow.records.used
        return super().run(record_path(encode_flow(self.flow), rows) if used else rows)


class _DealtRun(SlotRun):
    def _sink(self) -> SlotSink:
        return _Dealt(self.flow)


def test_records_without_a_timestamp_get_one_when_they_go_by_key(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """As MirrorMaker 1's handler leaves it to its producer; whole batches pass as they are."""
    began_ms = now_ms() - 60_000
    records = [
        Record(n, -1 if n % 3 else began_ms + n, b"key %d" % n, b"value", ((b"h", b"1"),))
        for n in range(30)
    ]
    for codec, partitioner in ((0, Partitioner.NUMBER), (3, Partitioner.KEY)):
        group = _group()
        options: dict[str, Any] = {
            "mode": MirrorMode.MM1,
            "group_id": group,
            "records": RecordSettings(partitioner),
        }
        topic = f"{topic_name}-{codec}"
        create_topic(cluster_a, topic, 1)
        slot = _DealtRun(Direct(cluster_a), Direct(cluster_b), topic, **options)
        connections = ClusterConnections(slot.flow.source, [topic])
        producer = Producer(connections, ProduceSettings())
        producer.backlog.append(
            TopicPartition(topic, 0), memoryview(encode_batch(records, codec=codec))
        )
        pump(producer)
        producer.close()
        connections.close()
        with slot:
            _mirrored(slot, 30)
        got = consume_all(cluster_b, slot.remote)
        assert [(one.key, one.value) for one in got] == [(one.key, one.value) for one in records]
        times_ms = [max(one.timestamp_ms, 0) for one in got]  # how none is shown is the client's
        if partitioner is Partitioner.NUMBER:
            assert contents(got) == contents(consume_all(cluster_a, topic))
            assert times_ms == [max(one.timestamp, 0) for one in records]
            continue
        for time_ms, one in zip(times_ms, records, strict=True):
            if one.timestamp >= 0:
                assert time_ms == one.timestamp
            else:
                assert began_ms + 60_000 <= time_ms <= now_ms()


def test_a_separator_of_ones_own(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """Remote topics and the topic of checkpoints have it in their names."""
    group = _group()
    create_topic(cluster_a, topic_name, 1)
    produce(cluster_a, topic_name, _values(20, "r"))
    options = _options(group, policy=PolicySettings(separator="-"))
    slot = SlotRun(Direct(cluster_a), Direct(cluster_b), topic_name, **options)
    assert slot.remote == f"{slot.alias}-{topic_name}"
    with _clusters(slot.flow) as clusters:
        with slot:
            _mirrored(slot, 20)
        moving = Moving(slot, group, clusters, checkpoints=f"{slot.alias}-checkpoints-internal")
        wanted = Checkpoint(group, TopicPartition(slot.remote, 0), 7, 7)
        assert moving.checkpoint_at(7) == wanted
    there = topic_names(cluster_a) | topic_names(cluster_b)
    assert "mm2-offset-syncs-T-internal" in there
    assert not [name for name in there if name.startswith(f"{slot.alias}.")]


def test_runs_in_transactions_carry_the_topics_id(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """Exactly-once with the offset syncs on the target writes them with the records."""
    group = _group()
    create_topic(cluster_a, topic_name, 1)
    produce(cluster_a, topic_name, _values(20, "r"))
    options = _options(group, exactly_once=True)
    options["offset_syncs"] = OffsetSyncSettings(
        enabled=True, replication_factor=1, location="target"
    )
    slot = SlotRun(Direct(cluster_a), Direct(cluster_b), topic_name, **options)
    with _clusters(slot.flow) as clusters:
        with slot:
            _mirrored(slot, 20)
        records = consume_all(cluster_b, runs_topic(slot.flow))
        rows = [decode_run(record.key, record.value) for record in records]
        now = clusters.source_admin.topics([topic_name])[topic_name].topic_id
        assert rows
        assert all(row is not None and row.topic_id == now for row in rows)
        moving = Moving(slot, group, clusters)
        found = moving.checkpoint_at(7)
        (eighth,) = [r for r in consume_all(cluster_b, slot.remote) if r.value == b"r 7"]
        assert found == Checkpoint(group, moving.remote, 7, eighth.offset)
