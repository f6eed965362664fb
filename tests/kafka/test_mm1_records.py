"""MirrorMaker 1's record path on real brokers: partitions by key, compression, latency."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from sparkmirror.demo.clusters import KafkaCluster
from tests.kafka.mirror_process import MirrorProcess, stored, wait_until, write_mm1
from tests.kafka.support import Content, Sent, consume_all, contents, create_topic, produce

_LZ4 = 3


def _keyed(count: int, now_ms: int) -> list[Sent]:
    """Records whose partitions no partitioner chose; every tenth is a tombstone."""
    return [
        Sent(
            value=None if n % 10 == 0 else f"value {n}".encode() * (n % 9),
            key=f"key-{n % 97}".encode() * (1 + n % 3),
            headers=(("n", str(n).encode()), ("none", None)),
            timestamp_ms=now_ms + n,
            partition=n % 5,
        )
        for n in range(count)
    ]


def _by_key(records: list[Content]) -> dict[bytes | None, list[tuple[object, ...]]]:
    """Each key's records in the order of its partition, wherever that is."""
    found: dict[bytes | None, list[tuple[object, ...]]] = {}
    for one in records:
        found.setdefault(one.key, []).append((one.timestamp_ms, one.value, one.headers))
    return found


@pytest.mark.timeout(240)
def test_records_go_by_key_where_partitions_differ(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"routed-{uuid.uuid4().hex[:8]}"
    keyless = f"{name}.keyless"
    create_topic(cluster_a, name, 5)
    create_topic(cluster_b, name, 3)
    create_topic(cluster_a, keyless, 1)
    create_topic(cluster_b, keyless, 4)
    # What another client with Java's partitioner makes of the same keys.
    expected = f"{name}.expected"
    create_topic(cluster_b, expected, 3)
    sent = _keyed(3000, int(time.time() * 1000) - 60_000)
    # One key always comes from one partition: only then has it an order to keep.
    sent = [one._replace(partition=sum(one.key or b"") % 5) for one in sent]
    produce(cluster_a, name, sent[:1500], compression="zstd")
    produce(cluster_a, name, sent[1500:])
    by_java = [one._replace(partition=None) for one in sent]
    produce(cluster_b, expected, by_java, config={"partitioner": "murmur2"})
    lone = [Sent(value=bytes(500) + str(n).encode(), partition=0) for n in range(2000)]
    produce(cluster_a, keyless, lone)

    options = write_mm1(tmp_path, cluster_a, cluster_b, name)
    with Path(options[3]).open("a") as producer:
        producer.write("compression.type=lz4\n")
    options += ["--include", f"{name}.*", "--num.streams", "2"]
    mirror = MirrorProcess(tmp_path, options, command="kafka-mirror-maker")
    try:
        wait_until(
            lambda: (
                len(consume_all(cluster_b, name)) >= 3000
                and len(consume_all(cluster_b, keyless)) >= 2000
            ),
            "all records", 120,
        )  # fmt: skip
        code, _ = mirror.drain()
    finally:
        mirror.kill()
    assert code == 143, mirror.text()
    got = contents(consume_all(cluster_b, name))
    wanted = contents(consume_all(cluster_b, expected))
    assert {(one.key, one.partition) for one in got} == {(one.key, one.partition) for one in wanted}
    assert _by_key(got) == _by_key(wanted)
    assert {batch.attributes & 7 for batch in stored(cluster_b, name)} == {_LZ4}
    # Without keys: every record once, and no partition without its share.
    spread = contents(consume_all(cluster_b, keyless))
    assert sorted(one.value or b"" for one in spread) == sorted(one.value or b"" for one in lone)
    assert {one.partition for one in spread} == {0, 1, 2, 3}
