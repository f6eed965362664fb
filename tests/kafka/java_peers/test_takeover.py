"""One file, two mirrors: Java's MirrorMaker 2, then sparkmirror, then Java."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.kafka.harness.java_peer import java_mirror_maker
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce, topic_names

pytestmark = pytest.mark.interop

TOPIC, REMOTE, PARTITIONS = "orders", "A.orders", 2
# Java commits what it has mirrored at this interval and at an orderly end.
FLUSH_MS = 1_000

_FILE = f"""\
clusters=A,B
A.bootstrap.servers={{a}}
B.bootstrap.servers={{b}}
A->B.enabled=true
A->B.topics={TOPIC}
tasks.max=2
replication.factor=1
offset.storage.replication.factor=1
config.storage.replication.factor=1
status.storage.replication.factor=1
offset-syncs.topic.replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
refresh.topics.interval.seconds=1
B.offset.flush.interval.ms={FLUSH_MS}
sync.topic.acls.enabled=false
"""


@pytest.fixture
def pair() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    source, target = KafkaCluster("A", heap="300m"), KafkaCluster("B", heap="300m")
    start_all(source, target)
    try:
        yield source, target
    finally:
        source.stop()
        target.stop()


def _numbered(first: int, count: int) -> list[Sent]:
    return [Sent(b"%d" % n, partition=n % PARTITIONS) for n in range(first, first + count)]


def _arrived(target: KafkaCluster) -> Counter[int]:
    if REMOTE not in topic_names(target):
        return Counter()
    return Counter(int(record.value or b"") for record in consume_all(target, REMOTE))


def _wait_for(target: KafkaCluster, count: int, what: str) -> None:
    wait_until(lambda: len(_arrived(target)) == count, what)


def test_java_then_sparkmirror_then_java(
    pair: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    source, target = pair
    create_topic(source, TOPIC, PARTITIONS)
    file = tmp_path / "mm2.properties"
    file.write_text(_FILE.format(a=source.bootstrap_servers, b=target.bootstrap_servers))

    produce(source, TOPIC, _numbered(0, 500))
    with java_mirror_maker(file, tmp_path / "java-1.log"):
        _wait_for(target, 500, "what Java mirrors first")
        time.sleep(3 * FLUSH_MS / 1000)

    produce(source, TOPIC, _numbered(500, 300))
    mirror = MirrorProcess(tmp_path, ["run", str(file)])
    try:
        _wait_for(target, 800, "what sparkmirror adds")
        produce(source, TOPIC, _numbered(800, 100))
        _wait_for(target, 900, "what comes while it runs")
        code, _ = mirror.drain()
        assert code == 0, mirror.text()
    finally:
        mirror.kill()

    produce(source, TOPIC, _numbered(900, 200))
    with java_mirror_maker(file, tmp_path / "java-2.log"):
        _wait_for(target, 1_100, "what Java adds after it")
        time.sleep(2 * FLUSH_MS / 1000)

    arrived = _arrived(target)
    assert set(arrived) == set(range(1_100))
    repeated = {number for number, times in arrived.items() if times > 1}
    assert not repeated
    for partition in range(PARTITIONS):
        numbers = [
            int(r.value or b"") for r in consume_all(target, REMOTE) if r.partition == partition
        ]
        assert numbers == sorted(numbers)
