"""Source data: filled once, mirrored by every peer."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from sparkmirror.demo.clusters import KafkaCluster

__all__ = ["LOADS", "Load", "create", "delete", "fill"]


@dataclass(frozen=True)
class Load:
    """One topic's worth of records. ``producer``: Java producer properties that shape batches."""

    topic: str
    title: str
    partitions: int
    records: int
    record_bytes: int
    producer: tuple[str, ...]
    processes: int = 1


LOADS = {
    "100b": Load(
        "bench-100b",
        "100 B, uncompressed, 1 MB batches",
        4,
        24_000_000,
        100,
        ("batch.size=1000000", "linger.ms=50", "compression.type=none"),
        2,
    ),
    "1k-lz4": Load(
        "bench-1k-lz4",
        "1 KiB, lz4, 1 MB batches",
        4,
        2_400_000,
        1024,
        ("batch.size=1000000", "linger.ms=50", "compression.type=lz4"),
        2,
    ),
    "100b-16k": Load(
        "bench-100b-16k",
        "100 B, producer defaults (16 KiB batches), 12 partitions",
        12,
        16_000_000,
        100,
        ("batch.size=16384", "linger.ms=5", "compression.type=none"),
        2,
    ),
    "100b-single": Load(
        "bench-100b-single",
        "100 B, one record per batch, 12 partitions",
        12,
        4_000_000,
        100,
        ("batch.size=0", "linger.ms=0", "compression.type=none", "acks=1"),
        2,
    ),
}


def create(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic and wait for it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(30)


def delete(bootstrap: str, *names: str) -> None:
    """Delete the topics among ``names`` that exist."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    there = [name for name in names if name in admin.list_topics(timeout=10).topics]
    if there:
        for future in admin.delete_topics(there).values():
            future.result(30)


def fill(cluster: KafkaCluster, load: Load, scale: float) -> int:
    """Create and fill the topic with Kafka's own ProducerPerformance; number of records."""
    create(cluster.bootstrap_servers, load.topic, load.partitions)
    share = max(1_000, int(load.records * scale / load.processes))
    command = cluster.tool_command(
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic",
        load.topic,
        "--num-records",
        str(share),
        "--record-size",
        str(load.record_bytes),
        "--throughput",
        "-1",
        "--producer-props",
        f"bootstrap.servers={cluster.bootstrap_servers}",
        "buffer.memory=134217728",
        *load.producer,
        heap="1g",
    )
    started = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(load.processes)
    ]
    for process in started:
        _, errors = process.communicate(timeout=900)
        if process.returncode:
            raise RuntimeError(f"filling {load.topic} failed: {errors.decode()[-2000:]}")
    return share * load.processes
