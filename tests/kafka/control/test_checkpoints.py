"""Offset syncs, checkpoints, group offsets and heartbeats, as other programs find them.

One continuous run with everything on, then a bounded one; what they wrote is read by librdkafka and
by Java's own formatters, and consumer groups move over.
"""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from sparkmirror.data.write.offset_sync_writer import SyncSender
from sparkmirror.internal_topics.mm2_records import (
    Checkpoint,
    decode_checkpoint,
    decode_heartbeat,
    decode_offset_sync,
    encode_offset_sync,
    offset_syncs_topic,
)
from sparkmirror.internal_topics.offset_syncs import OffsetSyncStore
from sparkmirror.internal_topics.run_map import OffsetMap
from sparkmirror.internal_topics.runs import decode_run
from sparkmirror.model import TopicPartition as Partition
from sparkmirror.settings import ClusterClient, FlowSettings, OffsetSyncSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.testing.jvm import KafkaRuntime
from sparkmirror.testing.maven import resolve
from sparkmirror.wire.produce.backlog import Acknowledged
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import (
    Received,
    Sent,
    commit,
    consume_all,
    create_topic,
    delete_topic,
    produce,
    produce_transaction,
    topic_names,
    wait_until_equal,
)
from tests.patience import patience

# Aliases of this file's own: the topics in question are named after them.
SOURCE, TARGET = "east", "west"
HEARTBEATS = ("heartbeats", f"{SOURCE}.heartbeats", f"{TARGET}.heartbeats")
SYNCS = f"mm2-offset-syncs.{TARGET}.internal"
CHECKPOINTS = f"{SOURCE}.checkpoints.internal"
RUNS = f"mm2-sparkmirror-runs.{SOURCE}.internal"


@pytest.fixture
def clean(cluster_a: KafkaCluster, cluster_b: KafkaCluster) -> Iterator[None]:
    """Heartbeats have one name everywhere: other tests must not find them."""
    yield
    for cluster in (cluster_a, cluster_b):
        for topic in topic_names(cluster) & set(HEARTBEATS):
            delete_topic(cluster, topic)


def _consumer(cluster: KafkaCluster, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )


def _commit(cluster: KafkaCluster, group: str, topic: str, offsets: list[int]) -> None:
    """What a group that has stopped leaves behind."""
    consumer = _consumer(cluster, group)
    places = [TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)]
    commit(consumer, places)
    consumer.close()


def _committed(cluster: KafkaCluster, group: str, topic: str, partitions: int) -> list[int]:
    consumer = _consumer(cluster, group)
    try:
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        return [found.offset for found in consumer.committed(wanted, timeout=20)]
    finally:
        consumer.close()


def _unread(records: list[Received], offsets: list[int]) -> list[list[bytes | None]]:
    """Values that a group at ``offsets`` still has before it, by partition."""
    return [
        [r.value for r in records if r.partition == number and r.offset >= offset]
        for number, offset in enumerate(offsets)
    ]


def _checkpoints(cluster: KafkaCluster) -> list[tuple[Checkpoint, int]]:
    """Every checkpoint with its record timestamp, oldest first."""
    found = []
    for record in consume_all(cluster, CHECKPOINTS):
        checkpoint = decode_checkpoint(record.key, record.value)
        assert checkpoint is not None
        found.append((checkpoint, record.timestamp_ms))
    return found


def _some(count: int, partitions: int, first: int = 0) -> list[Sent]:
    return [Sent(value=b"%d" % n, partition=n % partitions) for n in range(first, first + count)]


def _formatted(cluster: KafkaCluster, topic: str, formatter: str) -> set[str]:
    """What Java's console consumer prints of ``topic`` with MirrorMaker 2's formatter."""
    count = len(consume_all(cluster, topic))
    runtime = KafkaRuntime.find()
    jars = resolve("org.apache.kafka:connect-mirror:4.3.0", "org.slf4j:slf4j-simple:1.7.36")
    command = runtime.command(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic),
        *("--from-beginning", "--max-messages", str(count), "--timeout-ms", "20000"),
        *("--formatter", f"org.apache.kafka.connect.mirror.formatters.{formatter}"),
        heap="256m",
        log_level="off",
    )
    at = command.index("-cp") + 1
    command[at] = ":".join([command[at], *map(str, jars)])
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(), check=False)
    lines = {line for line in done.stdout.splitlines() if line}
    assert lines, done.stderr
    return lines


class Moving:
    """Two topics of the source, four groups that have read some of them, and the file of a mirror.

    ``orders`` holds 4,000 records in two partitions; its remote topic begins with 25 records of
    another producer in each, so that offsets differ. ``payments`` holds transactions, one of them
    aborted, whose markers leave gaps in the offsets.
    """

    def __init__(self, a: KafkaCluster, b: KafkaCluster, directory: Path) -> None:
        self.a, self.b, self.directory = a, b, directory
        self.name = name = f"groups-{uuid.uuid4().hex[:8]}"
        self.orders, self.payments = f"{name}.orders", f"{name}.payments"
        self.remote, self.remote_payments = (f"{SOURCE}.{t}" for t in (self.orders, self.payments))
        self.lagging, self.current, self.busy, self.back = (f"{name}-{n}" for n in "lcbr")
        create_topic(a, self.orders, 2)
        create_topic(a, self.payments, 1)
        produce(a, self.orders, _some(4_000, 2))
        for batch in range(6):
            values = [Sent(value=b"%d-%d" % (batch, n)) for n in range(10)]
            produce_transaction(a, self.payments, values, commit=batch != 2)
        _commit(a, self.lagging, self.orders, [777, 12])
        _commit(a, self.current, self.orders, [2_000, 2_000])
        _commit(a, self.current, self.payments, [27])
        _commit(a, self.busy, self.orders, [1_000, 1_000])
        _commit(a, self.back, self.orders, [500, 500])
        create_topic(b, self.remote, 2)
        produce(b, self.remote, [Sent(b"other", partition=n % 2) for n in range(50)])

    def start(self, *options: str, seconds: int = 1, heartbeats: bool = True) -> MirrorProcess:
        """Run the mirror with rounds every so many ``seconds``."""
        extra = {
            "groups": f"{self.name}-.*",
            "offset.lag.max": "10",
            "emit.checkpoints.interval.seconds": f"{seconds}",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": f"{seconds}",
            "refresh.groups.interval.seconds": f"{seconds}",
            "emit.heartbeats.enabled": f"{heartbeats}",
            "heartbeats.replication.enabled": "true",
            "heartbeats.topic.replication.factor": "1",
        }
        path = self.directory / "mm2.properties"
        topics = rf"{self.name}\\..*"
        write_mm2(path, self.a, self.b, topics, extra, source=SOURCE, target=TARGET)
        work = ["--log-format", "json", "--work-dir", str(self.directory / "work")]
        return MirrorProcess(self.directory, ["run", str(path), *work, *options])

    def moved(self, group: str) -> list[int]:
        """Where ``group`` stands in the remote topic of ``orders``."""
        return _committed(self.b, group, self.remote, 2)


@pytest.mark.usefixtures("clean")
def test_groups_move_over_at_exact_offsets(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    began_ms = time.time() * 1000
    moving = Moving(cluster_a, cluster_b, tmp_path)
    stays = _consumer(cluster_b, moving.busy)
    mirror = moving.start()
    try:
        stays.subscribe([moving.remote])
        wait_until(lambda: stays.poll(0.2) is not None and bool(stays.assignment()), "a member")
        _nothing_is_lost_or_repeated(moving)
        # A group with members on the target is left alone.
        assert moving.moved(moving.busy) == [OFFSET_INVALID, OFFSET_INVALID]
        _a_group_that_goes_back_is_not_taken_back(moving)
        wait_until(
            lambda: len(_heartbeats(cluster_b, HEARTBEATS[1])) >= 2, "heartbeats to be mirrored"
        )
        code, _ = mirror.drain()
    finally:
        mirror.kill()
        stays.close()
    assert code == 0, mirror.text()

    _check_syncs(cluster_a, cluster_b, moving.orders)
    _check_formatters(cluster_a, cluster_b)
    times_ms = [time_ms for _, time_ms in _checkpoints(cluster_b)]
    assert began_ms < min(times_ms) <= max(times_ms) < time.time() * 1000
    assert set(_heartbeats(cluster_b, "heartbeats")) == {(SOURCE, TARGET)}
    assert set(_heartbeats(cluster_b, HEARTBEATS[1])) == {(TARGET, SOURCE)}

    # A bounded run ends with a last round: groups stand where it stopped copying.
    produce(cluster_a, moving.orders, _some(1_000, 2, first=4_000))
    _commit(cluster_a, moving.current, moving.orders, [2_500, 2_481])
    once = moving.start("--once", seconds=600, heartbeats=False)
    assert once.wait() == 0, once.text()
    assert moving.moved(moving.current) == [2_525, 2_506]
    assert moving.moved(moving.busy) == [1_025, 1_025], "its member has left"


def _nothing_is_lost_or_repeated(moving: Moving) -> None:
    """Groups of the target read on at the very record, however far behind they are."""
    current = moving.current
    wait_until(
        lambda: (
            moving.moved(current) == [2_025, 2_025]
            and OFFSET_INVALID not in moving.moved(moving.lagging)
            and _committed(moving.b, current, moving.remote_payments, 1) != [OFFSET_INVALID]
        ),
        "group offsets on the target",
    )
    wait_until_equal(moving.a, moving.payments, moving.b, moving.remote_payments)
    source, target = consume_all(moving.a, moving.orders), consume_all(moving.b, moving.remote)
    for group, offsets in ((moving.lagging, [777, 12]), (current, [2_000, 2_000])):
        assert _unread(target, moving.moved(group)) == _unread(source, offsets), group
    assert _unread(
        consume_all(moving.b, moving.remote_payments),
        _committed(moving.b, current, moving.remote_payments, 1),
    ) == _unread(consume_all(moving.a, moving.payments), [27])


def _a_group_that_goes_back_is_not_taken_back(moving: Moving) -> None:
    """It has a checkpoint that says so; its offsets on the target stay."""
    wait_until(lambda: moving.moved(moving.back) == [525, 525], "the group that goes back")
    _commit(moving.a, moving.back, moving.orders, [100, 500])
    _commit(moving.a, moving.lagging, moving.orders, [1_500, 12])
    wait_until(lambda: moving.moved(moving.lagging) == [1_525, 37], "the group to go on")
    wanted = Checkpoint(moving.back, Partition(moving.remote, 0), 100, 125)
    wait_until(lambda: wanted in {c for c, _ in _checkpoints(moving.b)}, "its checkpoint")
    assert moving.moved(moving.back) == [525, 525]


def test_a_missing_topic_holds_nobody_up(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    a = ClusterClient(f"{topic_name}-a", (cluster_a.bootstrap_servers,), "a")
    b = ClusterClient(f"{topic_name}-b", (cluster_b.bootstrap_servers,), "b")
    syncs = OffsetSyncSettings(enabled=True)
    flow = FlowSettings(source=a, target=b, source_admin=a, target_admin=b, offset_syncs=syncs)
    sender, topic = SyncSender(flow), offset_syncs_topic(flow)
    sent = [encode_offset_sync(Partition("t", 0), n, n) for n in range(5_000)]
    with closing(sender):
        sender.put(sent, [])
        began = time.monotonic()
        assert not sender.flush(patience())
        waited_s = time.monotonic() - began
        assert waited_s < patience() / 2, "the end of an epoch does not wait for it"
        assert topic not in topic_names(cluster_a)
        began = time.monotonic()
        looks = _looks_in(sender, 3.0)
        passed_s = time.monotonic() - began
        assert looks <= 1 + passed_s, "a sink has more to do than to look for it"
        create_topic(cluster_a, topic, config={"cleanup.policy": "compact"})
        wait_until(lambda: sender.flush(1), "the syncs to be written")
    assert [(one.key, one.value) for one in consume_all(cluster_a, topic)] == sent


def _looks_in(sender: SyncSender, seconds: float) -> int:
    """How often ``sender`` drives its producer of offset syncs meanwhile."""
    producer, count = sender._syncs._producer, 0
    pump = producer.pump

    def counted(timeout_s: float) -> list[Acknowledged]:
        nonlocal count
        count += 1
        return pump(timeout_s)

    with patch.object(producer, "pump", counted):
        time.sleep(seconds)
    return count


def _heartbeats(cluster: KafkaCluster, topic: str) -> list[tuple[str, str]]:
    """Source and target of each heartbeat; its timestamp is the record's."""
    if topic not in topic_names(cluster):
        return []
    found = []
    for record in consume_all(cluster, topic):
        heartbeat = decode_heartbeat(record.key, record.value)
        assert heartbeat is not None
        assert heartbeat.timestamp_ms == record.timestamp_ms
        found.append((heartbeat.source, heartbeat.target))
    return found


def _check_syncs(a: KafkaCluster, b: KafkaCluster, topic: str) -> None:
    """Syncs name places that are exact, and a reader of Java's never skips a record."""
    store, exact = OffsetSyncStore(must_read_to_end=False), OffsetMap()
    store.finish_reading()
    partition = Partition(topic, 1)
    for record in consume_all(b, RUNS):
        row = decode_run(record.key, record.value)
        assert row is not None
        if row.source == partition and row.run is not None:
            exact.add(row.run)
    count = 0
    for record in consume_all(a, SYNCS):
        sync = decode_offset_sync(record.key, record.value)
        assert sync is not None
        if sync[0] == partition:
            count += 1
            store.add(*sync)
            assert exact.translate(sync[1]) == sync[2]
    assert count >= 2
    assert exact.translate(2_000) == 2_025
    for upstream in range(2_001):
        translated = store.translate(partition, upstream)
        assert translated is not None
        assert translated <= upstream + 25
    assert store.translate(partition, 2_000) == 2_025, "the newest record has a sync"


def _check_formatters(a: KafkaCluster, b: KafkaCluster) -> None:
    checkpoints = {
        f"Checkpoint{{consumerGroupId={c.group}, topicPartition={c.remote}, "
        f"upstreamOffset={c.upstream}, downstreamOffset={c.downstream}, metadata={c.metadata}}}"
        for c, _ in _checkpoints(b)
    }
    assert _formatted(b, CHECKPOINTS, "CheckpointFormatter") == checkpoints
    syncs = set()
    for record in consume_all(a, SYNCS):
        sync = decode_offset_sync(record.key, record.value)
        assert sync is not None
        source, upstream, downstream = sync
        syncs.add(
            f"OffsetSync{{topicPartition={source}, upstreamOffset={upstream}, "
            f"downstreamOffset={downstream}}}"
        )
    assert _formatted(a, SYNCS, "OffsetSyncFormatter") == syncs
    beats = _formatted(b, f"{SOURCE}.heartbeats", "HeartbeatFormatter")
    start = f"Heartbeat{{sourceClusterAlias={TARGET}, targetClusterAlias={SOURCE}, timestamp="
    assert all(line.startswith(start) for line in beats)
