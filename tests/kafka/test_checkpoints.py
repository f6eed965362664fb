"""Offset syncs, checkpoints, group offsets and heartbeats, as other programs find them.

One continuous run with everything on, then a bounded one; what they wrote is read by librdkafka and
by Java's own formatters, and consumer groups move over.
"""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from sparkmirror.demo.clusters import KafkaCluster
from sparkmirror.demo.jvm import KafkaRuntime
from sparkmirror.demo.maven import resolve
from sparkmirror.model import TopicPartition as Partition
from sparkmirror.offset_map import OffsetMap
from sparkmirror.offset_syncs import OffsetSyncStore
from sparkmirror.wire.mirror_records import (
    Checkpoint,
    decode_checkpoint,
    decode_heartbeat,
    decode_offset_sync,
)
from sparkmirror.wire.runs import decode_run
from tests.kafka.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.support import (
    Received,
    Sent,
    consume_all,
    create_topic,
    delete_topic,
    produce,
    produce_transaction,
    topic_names,
    wait_until_equal,
)

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
    consumer.commit(offsets=places, asynchronous=False)
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = {line for line in done.stdout.splitlines() if line}
    assert lines, done.stderr
    return lines


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("clean")
def test_groups_move_over_at_exact_offsets(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"groups-{uuid.uuid4().hex[:8]}"
    orders, payments = f"{name}.orders", f"{name}.payments"
    lagging, current, busy, back = (f"{name}-{n}" for n in ("lagging", "current", "busy", "back"))
    create_topic(cluster_a, orders, 2)
    create_topic(cluster_a, payments, 1)
    produce(cluster_a, orders, _some(4_000, 2))
    for batch in range(6):  # markers leave gaps in the source's offsets
        values = [Sent(value=b"%d-%d" % (batch, n)) for n in range(10)]
        produce_transaction(cluster_a, payments, values, commit=batch != 2)
    _commit(cluster_a, lagging, orders, [777, 12])
    _commit(cluster_a, current, orders, [2_000, 2_000])
    _commit(cluster_a, current, payments, [27])
    _commit(cluster_a, busy, orders, [1_000, 1_000])
    _commit(cluster_a, back, orders, [500, 500])
    extra = {
        "groups": f"{name}-.*",
        "offset.lag.max": "10",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "emit.heartbeats.enabled": "true",
        "heartbeats.replication.enabled": "true",
        "heartbeats.topic.replication.factor": "1",
    }
    path = write_mm2(
        tmp_path / "mm2.properties",
        *(cluster_a, cluster_b, rf"{name}\\..*", extra),
        source=SOURCE,
        target=TARGET,
    )
    remote, remote_payments = f"{SOURCE}.{orders}", f"{SOURCE}.{payments}"
    create_topic(cluster_b, remote, 2)
    # Records of another producer: target offsets are not the source's.
    produce(cluster_b, remote, [Sent(b"other", partition=n % 2) for n in range(50)])
    stays = _consumer(cluster_b, busy)
    arguments = ["run", str(path), "--log-format", "json", "--work-dir", str(tmp_path / "work")]
    mirror = MirrorProcess(tmp_path, arguments)
    try:
        stays.subscribe([remote])
        wait_until(lambda: stays.poll(0.2) is not None and bool(stays.assignment()), "a member")
        wait_until(
            lambda: (
                _committed(cluster_b, current, remote, 2) == [2_025, 2_025]
                and OFFSET_INVALID not in _committed(cluster_b, lagging, remote, 2)
                and _committed(cluster_b, current, remote_payments, 1) != [OFFSET_INVALID]
            ),
            f"group offsets on the target\n{mirror.text()[-3_000:]}",
            timeout_s=90,
        )
        wait_until_equal(cluster_a, payments, cluster_b, remote_payments)
        source, target = consume_all(cluster_a, orders), consume_all(cluster_b, remote)
        # Nothing lost, nothing repeated, however far behind a group is.
        for group, offsets in ((lagging, [777, 12]), (current, [2_000, 2_000])):
            moved = _committed(cluster_b, group, remote, 2)
            assert _unread(target, moved) == _unread(source, offsets), group
        assert _unread(
            consume_all(cluster_b, remote_payments),
            _committed(cluster_b, current, remote_payments, 1),
        ) == _unread(consume_all(cluster_a, payments), [27])
        # A group with members on the target is left alone.
        assert _committed(cluster_b, busy, remote, 2) == [OFFSET_INVALID, OFFSET_INVALID]

        # A group that goes back on the source has a checkpoint, but is not taken back.
        wait_until(
            lambda: _committed(cluster_b, back, remote, 2) == [525, 525], "the group to go back"
        )
        _commit(cluster_a, back, orders, [100, 500])
        _commit(cluster_a, lagging, orders, [1_500, 12])
        wait_until(
            lambda: _committed(cluster_b, lagging, remote, 2) == [1_525, 37], "the group to go on"
        )
        assert _committed(cluster_b, back, remote, 2) == [525, 525]
        wait_until(
            lambda: any(
                (c.group, c.remote, c.upstream, c.downstream)
                == (back, Partition(remote, 0), 100, 125)
                for c, _ in _checkpoints(cluster_b)
            ),
            "the checkpoint of a group that went back",
        )
        wait_until(
            lambda: len(_heartbeats(cluster_b, HEARTBEATS[1])) >= 2, "heartbeats to be mirrored"
        )
        code, seconds = mirror.drain()
    finally:
        mirror.kill()
        stays.close()
    assert code == 0, mirror.text()
    assert seconds < 10

    _check_syncs(cluster_a, cluster_b, orders)
    _check_formatters(cluster_a, cluster_b)
    now_ms = time.time() * 1000
    assert all(now_ms - 120_000 < time_ms < now_ms for _, time_ms in _checkpoints(cluster_b))
    assert set(_heartbeats(cluster_b, "heartbeats")) == {(SOURCE, TARGET)}
    assert set(_heartbeats(cluster_b, HEARTBEATS[1])) == {(TARGET, SOURCE)}

    # A bounded run ends with a last round: groups stand where it stopped copying.
    produce(cluster_a, orders, _some(1_000, 2, first=4_000))
    _commit(cluster_a, current, orders, [2_500, 2_481])
    slow = {**extra, "emit.checkpoints.interval.seconds": "600", "emit.heartbeats.enabled": "false"}
    write_mm2(path, cluster_a, cluster_b, rf"{name}\\..*", slow, source=SOURCE, target=TARGET)
    once = MirrorProcess(tmp_path, [*arguments, "--once"])
    assert once.wait(120) == 0, once.text()
    assert _committed(cluster_b, current, remote, 2) == [2_525, 2_506]
    assert _committed(cluster_b, busy, remote, 2) == [1_025, 1_025], "its member has left"


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
