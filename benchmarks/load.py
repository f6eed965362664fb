"""Source data: filled once, mirrored by every peer."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sparkmirror.testing.jvm import SERVER_JVM

if TYPE_CHECKING:
    from sparkmirror.testing.clusters import KafkaCluster

__all__ = ["LOADS", "Load", "create", "delete", "events", "fill", "warm"]

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Load:
    """What a topic is filled with.

    ``records``: how many the copy gets that says how much data the step needs. ``producer``:
    producer properties that shape batches, Java's; librdkafka's where ``keys`` says how many
    different keys the records have (0: they have none). ``events``: values are JSON events,
    otherwise random capital letters, which no codec makes much smaller. ``module``: what writes
    the records instead, with librdkafka's properties.
    """

    topic: str
    title: str
    partitions: int
    records: int
    record_bytes: int
    producer: tuple[str, ...]
    processes: int = 1
    events: bool = False
    keys: int = 0
    module: str = ""


LOADS = {
    "100b": Load(
        "bench-100b",
        "100 B, uncompressed, 1 MB batches",
        4,
        6_000_000,
        100,
        ("batch.size=1000000", "linger.ms=50", "compression.type=none"),
        2,
    ),
    "1k-lz4": Load(
        "bench-1k-lz4",
        "1 KiB JSON events, lz4, 1 MB batches",
        4,
        1_000_000,
        1024,
        ("batch.size=1000000", "linger.ms=50", "compression.type=lz4"),
        2,
        events=True,
    ),
    "1k-lz4-random": Load(
        "bench-1k-lz4-random",
        "1 KiB random letters (lz4 gains nothing), lz4, 1 MB batches",
        4,
        600_000,
        1024,
        ("batch.size=1000000", "linger.ms=50", "compression.type=lz4"),
        2,
    ),
    "100b-16k": Load(
        "bench-100b-16k",
        "100 B, producer defaults (16 KiB batches), 12 partitions",
        12,
        4_000_000,
        100,
        ("batch.size=16384", "linger.ms=5", "compression.type=none"),
        2,
    ),
    "100b-single": Load(
        "bench-100b-single",
        "100 B, one record per batch, 12 partitions",
        12,
        2_000_000,
        100,
        ("batch.size=0", "linger.ms=0", "compression.type=none", "acks=1"),
        2,
    ),
    "100b-keys": Load(
        "bench-100b-keys",
        "100 B with keys, uncompressed, 1 MB batches",
        4,
        2_000_000,
        100,
        ("batch.size=1000000", "batch.num.messages=100000", "linger.ms=50"),
        4,
        keys=100_000,
    ),
}
LOADS["100b-by-key"] = replace(
    LOADS["100b"],
    topic="bench-100b-by-key",
    title="100 B without keys, uncompressed, 1 MB batches, dealt by key",
)


WORDS = [
    *("please", "leave", "the", "parcel", "with", "our", "neighbour", "behind", "door", "when"),
    *("nobody", "is", "at", "home", "and", "ring", "twice", "thank", "you", "for", "quick"),
    *("delivery", "last", "time", "box", "arrived", "damaged", "we", "would", "like", "to"),
    *("have", "a", "new", "one", "instead", "of", "money", "back", "gift", "wrapping", "blue"),
    *("paper", "birthday", "card", "written", "by", "hand", "no", "plastic", "invoice", "goes"),
]


def create(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic and wait until the leaders of all its partitions answer."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(30)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "create"})
    deadline = time.monotonic() + 30
    try:
        for index in range(partitions):
            while True:
                try:
                    consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=5)
                    break
                except KafkaException:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
    finally:
        consumer.close()


def delete(bootstrap: str, *names: str) -> None:
    """Delete the topics among ``names`` that exist."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # librdkafka 2.16 crashes if a topic is named twice.
    there = sorted(set(names).intersection(admin.list_topics(timeout=10).topics))
    if there:
        for future in admin.delete_topics(there).values():
            future.result(30)


def events(count: int, size: int) -> list[str]:
    """``count`` JSON events of ``size`` bytes each, the same ones every time."""
    random_source = random.Random(7)
    agents = ["Mozilla/5.0 (X11; Linux x86_64)", "okhttp/4.12.0", "curl/8.5.0", "Dart/3.4"]
    actions = ["view", "search", "add_to_cart", "remove_from_cart", "checkout", "refund"]
    found = []
    for _ in range(count):
        event = {
            "event_id": f"{random_source.getrandbits(128):032x}",
            "trace_id": f"{random_source.getrandbits(64):016x}",
            "occurred_at": f"2026-11-{random_source.randint(1, 28):02d}T"
            f"{random_source.randint(0, 23):02d}:{random_source.randint(0, 59):02d}:"
            f"{random_source.uniform(0, 60):06.3f}Z",
            "action": random_source.choice(actions),
            "user": {
                "id": random_source.randint(1, 5_000_000),
                "agent": random_source.choice(agents),
                "address": ".".join(str(random_source.randint(1, 254)) for _ in range(4)),
            },
            "items": [
                {
                    "sku": f"SKU-{random_source.randint(1, 200_000):06d}",
                    "quantity": random_source.randint(1, 9),
                    "price_cents": random_source.randint(100, 99_999),
                    "currency": "EUR",
                }
                for _ in range(random_source.randint(3, 9))
            ],
        }
        room = size - len(json.dumps({**event, "comment": ""}))
        words: list[str] = []
        while sum(map(len, words)) + len(words) < room:
            words.append(random_source.choice(WORDS))
        found.append(json.dumps({**event, "comment": " ".join(words)[:room]}))
    return found


def warm(cluster: KafkaCluster, load: Load, records: int) -> None:
    """Let a broker's JVM compile what it needs to take in records of this shape.

    Else the first mirror to be measured would write to a slower broker than the later ones.
    """
    shape = replace(load, topic=f"{load.topic}-warm-up")
    create(cluster.bootstrap_servers, shape.topic, shape.partitions)
    fill(cluster, shape, records)
    delete(cluster.bootstrap_servers, shape.topic)


def fill(cluster: KafkaCluster, load: Load, records: int, there: int = 0) -> int:
    """Write ``records`` more to a topic with ``there``; how many it has then (may be a few less).

    With Kafka's own ProducerPerformance unless records have keys or a module.
    """
    share = max(1_000, records // load.processes)
    if load.keys or load.module:
        written = _by_module if load.module else _keyed
        commands = [written(cluster, load, share, there + n * share) for n in range(load.processes)]
        _run_all(load, commands)
        return there + share * load.processes
    with tempfile.NamedTemporaryFile("w", prefix="sparkmirror-bench-", suffix=".jsonl") as file:
        values = ["--record-size", str(load.record_bytes)]
        if load.events:
            file.write("\n".join(events(20_000, load.record_bytes)))
            file.flush()
            values = ["--payload-file", file.name]
        command = cluster.tool_command(
            "org.apache.kafka.tools.ProducerPerformance",
            "--topic",
            load.topic,
            "--num-records",
            str(share),
            *values,
            "--throughput",
            "-1",
            "--producer-props",
            f"bootstrap.servers={cluster.bootstrap_servers}",
            "buffer.memory=134217728",
            *load.producer,
            heap="1g",
            flags=SERVER_JVM,
        )
        _run_all(load, [command] * load.processes)
    return there + share * load.processes


def _keyed(cluster: KafkaCluster, load: Load, records: int, first: int) -> list[str]:
    script = Path(__file__).with_name("keyed.py")
    numbers = (records, first, load.keys, load.record_bytes)
    return [
        *(sys.executable, str(script), cluster.bootstrap_servers, load.topic),
        *(map(str, numbers)),
        *load.producer,
    ]


def _by_module(cluster: KafkaCluster, load: Load, records: int, first: int) -> list[str]:
    numbers = (load.partitions, records, first, load.record_bytes)
    return [
        *(sys.executable, "-m", load.module, cluster.bootstrap_servers, load.topic),
        *(map(str, numbers)),
        *load.producer,
    ]


def _run_all(load: Load, commands: Sequence[list[str]]) -> None:
    """Run all of ``commands`` at once, to their ends."""
    started = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT)
        for command in commands
    ]
    try:
        for process in started:
            _, errors = process.communicate(timeout=900)
            if process.returncode:
                raise RuntimeError(f"filling {load.topic} failed: {errors.decode()[-2000:]}")
    finally:
        for process in started:
            process.kill()  # those that still run: another one failed, or the benchmark is stopped
