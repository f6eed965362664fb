"""Topics in message formats 0 and 1, on a broker that still writes them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.legacy.zookeeper import find_brokers
from tests.kafka.harness.mirror_process import MirrorProcess, write_mm2
from tests.kafka.harness.support import Sent, commit, consume_all, contents, create_topic, produce


@pytest.mark.long
def test_magic_0_and_1_are_converted(
    new_cluster: Callable[..., KafkaCluster], cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    old = new_cluster("old", version="2.8.2")
    assert find_brokers(old.zookeeper) == (old.bootstrap_servers,)
    name = f"old-{uuid.uuid4().hex[:8]}"
    records = [
        Sent(value=None if n % 9 == 0 else f"value {n}".encode() * 5, key=f"{n}".encode())
        for n in range(200)
    ]
    formats = {"0.9.0": 0, "0.10.2": 1}
    for version, magic in formats.items():
        for codec in ("none", "gzip", "snappy", "lz4"):
            topic = f"{name}.m{magic}-{codec}"
            create_topic(old, topic, 1, config={"message.format.version": version})
            produce(old, topic, records, compression=codec, config={"enable.idempotence": False})
            logs = list(old.data_path().glob(f"{topic}-0/*.log"))
            assert logs[0].read_bytes()[16] == magic
    # This broker is asked for groups one by one.
    group, moving = f"{name}-group", f"{name}.m1-lz4"
    consumer = Consumer({"bootstrap.servers": old.bootstrap_servers, "group.id": group})
    commit(consumer, [TopicPartition(moving, 0, 123)])
    consumer.close()
    extra = {"groups": group, "sync.group.offsets.enabled": "true"}
    path = write_mm2(tmp_path / "mm2.properties", old, cluster_b, rf"{name}\\..*", extra)
    run = MirrorProcess(tmp_path, ["run", str(path), "--once"])
    assert run.wait() == 0, run.text()
    # Kafka 4 has no such config any more: said once, and the topics are there all the same.
    (told,) = [line for line in run.text().splitlines() if "message.format.version" in line]
    assert "B does not know the config message.format.version; not synchronised: " in told
    assert told.endswith("and 3 more")
    for magic in formats.values():
        for codec in ("none", "gzip", "snappy", "lz4"):
            topic = f"{name}.m{magic}-{codec}"
            source = contents(consume_all(old, topic))
            assert len(source) == 200
            target = contents(consume_all(cluster_b, f"A.{topic}"))
            if magic == 0:  # it has no timestamps: what a client shows for that is its own choice
                source = [record._replace(timestamp_ms=0) for record in source]
                target = [record._replace(timestamp_ms=0) for record in target]
            assert target == source
    consumer = Consumer({"bootstrap.servers": cluster_b.bootstrap_servers, "group.id": group})
    (moved,) = consumer.committed([TopicPartition(f"A.{moving}", 0)], timeout=20)
    consumer.close()
    assert moved.offset == 123
