"""Every kind of source batch arrives right: one mirror run over all kinds, then a test for each.

Two flows of that run copy the same topics: one passes batches as they are and joins tiny ones as it
reads them, the other (alias J) joins all that wait to be written.

Records are compared through librdkafka, and that the kind was really there is read from the
source broker's own log files.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from sparkmirror.records.header import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
)
from sparkmirror.settings import ProduceSettings
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.clusters.faults import Direct, SlotRun
from tests.kafka.harness.mirror_process import MirrorProcess, stored, wait_until, write_mm2
from tests.kafka.harness.support import (
    TIMEOUT_S,
    Sent,
    admin,
    consume_all,
    contents,
    create_topic,
    produce,
    produce_transaction,
    send_all,
    transactional_producer,
)

# The first test waits for the run that they all look at.
FETCH_BYTES = 150_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "200",
    "max.compaction.lag.ms": "1",
}


@dataclass(frozen=True)
class Mirrored:
    """Both clusters after the run; ``name`` gives a kind's topic on the source.

    ``alias``: the source's, in the flow that is looked at.
    """

    a: KafkaCluster
    b: KafkaCluster
    prefix: str
    alias: str = "A"

    def name(self, kind: str) -> str:
        return f"{self.prefix}.{kind}"

    def remote(self, kind: str) -> str:
        return f"{self.alias}.{self.name(kind)}"

    def check(
        self, kind: str, *, count: int | None = None, isolation: str = "read_committed"
    ) -> int:
        """Source and target hold the same records, in order; how many."""
        topic = self.name(kind)
        source = contents(consume_all(self.a, topic, isolation=isolation))
        target = contents(consume_all(self.b, self.remote(kind)))
        assert target == source
        if count is not None:
            assert len(target) == count
        return len(target)


def _records(count: int, *, partitions: int = 3, size: int = 100) -> list[Sent]:
    return [
        Sent(
            value=f"value {n} ".encode().ljust(size, b"."),
            key=f"key-{n % 50}".encode(),
            headers=(("n", str(n).encode()),) if n % 3 == 0 else (),
            partition=n % partitions,
        )
        for n in range(count)
    ]


def _fill(a: KafkaCluster, name: str) -> None:
    single = {"batch.num.messages": 1, "linger.ms": 0}
    for codec in CODECS:
        create_topic(a, f"{name}.{codec}", 3)
        produce(a, f"{name}.{codec}", _records(900), compression=codec)
        create_topic(a, f"{name}.single-{codec}", 3)
        produce(a, f"{name}.single-{codec}", _records(300), compression=codec, config=single)
    create_topic(a, f"{name}.edges", 2)
    produce(
        a,
        f"{name}.edges",
        [
            Sent(value=None, key=b"tombstone"),
            Sent(value=b"", key=None),
            Sent(value=b"x", key=b"", headers=(("a", None), ("a", b""), ("b", "é".encode()))),
            Sent(value=b"long ago", timestamp_ms=1),
            Sent(value=b"far away", timestamp_ms=int(time.time() * 1000) + 3_000_000),
        ],
    )
    create_topic(a, f"{name}.empty", 2)
    create_topic(a, f"{name}.dash-under_score.dots", 1)
    produce(a, f"{name}.dash-under_score.dots", [Sent(value=b"one")])
    create_topic(a, f"{name}.append-time", 2, config={"message.timestamp.type": "LogAppendTime"})
    produce(a, f"{name}.append-time", _records(400, partitions=2), compression="lz4")
    create_topic(a, f"{name}.large", 1, config={"max.message.bytes": "6000000"})
    large = [Sent(value=bytes([n]) * 3_000_000) for n in range(4)]
    produce(a, f"{name}.large", large, config={"message.max.bytes": 5_000_000})
    create_topic(a, f"{name}.many-100k", 1)
    cut = [Sent(value=bytes([n]) * 100_000) for n in range(40)]
    produce(a, f"{name}.many-100k", cut, config=single)
    for kind in ("transactions", "uncommitted"):
        create_topic(a, f"{name}.{kind}", 2)
        for n in range(6):
            records = _records(40, partitions=2)
            produce_transaction(a, f"{name}.{kind}", records, commit=n % 2 == 0)


def _fill_compacted(a: KafkaCluster, name: str) -> None:
    """Rounds over the same keys: the cleaner leaves holes, and tombstones with a horizon."""
    create_topic(a, f"{name}.compacted", 1, config=COMPACT)
    for turn in range(6):
        rows = [
            Sent(value=f"{turn}-{n}".encode(), key=f"k{n if n % 3 else f'{turn}-{n}'}".encode())
            for n in range(60)
        ]
        produce(a, f"{name}.compacted", rows, config={"enable.idempotence": True})
        time.sleep(0.3)
    produce(a, f"{name}.compacted", [Sent(value=None, key=f"k{n}".encode()) for n in range(1, 9)])
    time.sleep(0.4)
    for turn in range(3):  # the active segment is never cleaned
        produce(a, f"{name}.compacted", [Sent(value=b"last", key=f"end-{turn}".encode())])
        time.sleep(0.4)


def _fill_emptied(a: KafkaCluster, name: str) -> None:
    """Producers whose every record is overwritten by the next one.

    The cleaner keeps the last batch of each, without records, for the sequence number in it.
    """
    topic = f"{name}.emptied"
    create_topic(a, topic, 1, config=COMPACT)
    for turn in range(4):
        records = [Sent(value=f"{turn}-{n}".encode(), key=f"k{n}".encode()) for n in range(20)]
        produce(a, topic, records, compression="lz4" if turn % 2 else "none")
        time.sleep(0.3)
    for turn in range(3):  # the active segment is never cleaned
        produce(a, topic, [Sent(value=b"last", key=f"end-{turn}".encode())])
        time.sleep(0.4)


@contextmanager
def _cleaned_often(cluster: KafkaCluster) -> Iterator[None]:
    """The log cleaner looks for work twice a second, by default every 15 s."""
    client = admin(cluster)
    (number,) = cluster.node_ids

    def set_backoff(value: str, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("log.cleaner.backoff.ms", value, incremental_operation=operation)
        broker = ConfigResource(ResourceType.BROKER, str(number), incremental_configs=[entry])
        client.incremental_alter_configs([broker])[broker].result(TIMEOUT_S)

    set_backoff("500", AlterConfigOpType.SET)
    try:
        yield
    finally:
        set_backoff("", AlterConfigOpType.DELETE)


def _wait_cleaned(a: KafkaCluster, name: str) -> None:
    def cleaned() -> bool:
        batches = stored(a, f"{name}.compacted")
        holes = any(0 < b.count <= b.last_delta for b in batches)
        return holes and any(b.has(DELETE_HORIZON_BIT) for b in batches)

    def emptied() -> bool:
        return sum(b.count == 0 for b in stored(a, f"{name}.emptied")) >= 2

    wait_until(cleaned, "the log cleaner leaves holes and a delete horizon")
    wait_until(emptied, "the log cleaner leaves empty batches")


def _fill_interleaved(a: KafkaCluster, topic: str) -> int:
    """Three transactional producers take turns on one partition; returns the committed records.

    In each round all of their transactions are open at once and overlap, and end in another
    order than they began; which of them abort changes from round to round.
    """
    create_topic(a, topic, 1)
    writers = [transactional_producer(a, f"{topic}-{n}") for n in range(3)]
    committed = 0
    for turn in range(6):
        for writer in writers:
            writer.begin_transaction()
        for step in range(3):
            for number, writer in enumerate(writers):
                records = [Sent(f"{turn}-{number}-{step}-{n}".encode()) for n in range(5)]
                send_all(writer, topic, records)
        produce(a, topic, [Sent(f"{turn} without a transaction".encode())])
        committed += 1
        for number in (turn % 3, (turn + 2) % 3, (turn + 1) % 3):
            if (turn + number) % 2:
                writers[number].abort_transaction(TIMEOUT_S)
            else:
                writers[number].commit_transaction(TIMEOUT_S)
                committed += 15
    return committed


INTERLEAVED_RECORDS = 6 * (3 * 15 + 1)


@pytest.fixture(scope="module")
def both_ways(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Mirrored:
    directory: Path = tmp_path_factory.mktemp("kinds")
    name = f"kinds-{uuid.uuid4().hex[:8]}"
    with _cleaned_often(cluster_a):
        _fill_compacted(cluster_a, name)
        _fill_emptied(cluster_a, name)
        _fill(cluster_a, name)
        for kind in ("interleaved", "interleaved-uncommitted"):
            committed = _fill_interleaved(cluster_a, f"{name}.{kind}")
            assert 0 < committed < INTERLEAVED_RECORDS
        _wait_cleaned(cluster_a, name)
    joining = {
        "clusters": "A, J, B",
        "J.bootstrap.servers": cluster_a.bootstrap_servers,
        "J->B.enabled": "true",
        "J->B.sparkmirror.link.joining": "always",
        "J->B.sparkmirror.join.bytes": "0",
        # One cluster by two names: each flow's syncs have a topic of their own on the target.
        "offset-syncs.topic.location": "target",
    }
    base = write_mm2(
        directory / "mm2.properties",
        cluster_a,
        cluster_b,
        rf"{name}\\..*",
        {
            **joining,
            "J->B.topics": rf"{name}\\..*",
            "topics.exclude": r".*uncommitted",
            "A.consumer.max.partition.fetch.bytes": str(FETCH_BYTES),
            "J.consumer.max.partition.fetch.bytes": str(FETCH_BYTES),
        },
    )
    raw = write_mm2(
        directory / "raw.properties",
        cluster_a,
        cluster_b,
        rf"{name}\\..*uncommitted",
        {
            **joining,
            "J->B.topics": rf"{name}\\..*uncommitted",
            "A.consumer.isolation.level": "read_uncommitted",
            "J.consumer.isolation.level": "read_uncommitted",
        },
    )
    for path in (base, raw):
        run = MirrorProcess(directory, ["run", str(path), "--once"])
        assert run.wait() == 0, run.text()
    return Mirrored(cluster_a, cluster_b, name)


@pytest.fixture(scope="module", params=["A", "J"], ids=["as they are", "joined"])
def mirrored(request: pytest.FixtureRequest, both_ways: Mirrored) -> Mirrored:
    return replace(both_ways, alias=request.param)


@pytest.mark.parametrize("number", range(5), ids=CODECS)
def test_codec(mirrored: Mirrored, number: int) -> None:
    batches = stored(mirrored.a, mirrored.name(CODECS[number]))
    assert {b.attributes & CODEC_MASK for b in batches} == {number}
    assert any(b.count > 1 for b in batches)
    mirrored.check(CODECS[number], count=900)
    arrived = stored(mirrored.b, mirrored.remote(CODECS[number]))
    assert {b.attributes & CODEC_MASK for b in arrived} == {number}


@pytest.mark.parametrize("number", range(5), ids=CODECS)
def test_one_record_per_batch_is_joined(mirrored: Mirrored, number: int) -> None:
    kind = f"single-{CODECS[number]}"
    before = stored(mirrored.a, mirrored.name(kind))
    assert {b.count for b in before} == {1}
    mirrored.check(kind, count=300)
    after = stored(mirrored.b, mirrored.remote(kind))
    assert len(after) < len(before) / 5
    assert {b.attributes & CODEC_MASK for b in after} == {number}


def test_null_and_empty_keys_values_and_headers(mirrored: Mirrored) -> None:
    mirrored.check("edges", count=5)


def test_empty_topic(mirrored: Mirrored) -> None:
    mirrored.check("empty", count=0)


def test_topic_name_with_dots_dashes_and_underscores(mirrored: Mirrored) -> None:
    mirrored.check("dash-under_score.dots", count=1)


def test_log_append_time(mirrored: Mirrored) -> None:
    batches = stored(mirrored.a, mirrored.name("append-time"))
    assert batches
    assert all(b.has(LOG_APPEND_TIME_BIT) for b in batches)
    mirrored.check("append-time", count=400)
    arrived = stored(mirrored.b, mirrored.remote("append-time"))
    assert arrived
    assert not any(b.has(LOG_APPEND_TIME_BIT) for b in arrived)


def test_batches_larger_than_a_fetch(mirrored: Mirrored) -> None:
    sizes = [b.size for b in stored(mirrored.a, mirrored.name("large"))]
    assert min(sizes) > FETCH_BYTES
    mirrored.check("large", count=4)


def test_fetch_responses_cut_in_the_middle_of_a_batch(mirrored: Mirrored) -> None:
    # Every answer ends inside the second batch.
    sizes = {b.size for b in stored(mirrored.a, mirrored.name("many-100k"))}
    assert FETCH_BYTES / 2 < min(sizes) <= max(sizes) < FETCH_BYTES
    mirrored.check("many-100k", count=40)
    arrived = stored(mirrored.b, mirrored.remote("many-100k"))
    # Large ones are joined for the link alone, and only those that wait there at the same time.
    assert len(arrived) <= 40 if mirrored.alias == "J" else len(arrived) == 40


def test_transactions_read_committed(mirrored: Mirrored) -> None:
    batches = stored(mirrored.a, mirrored.name("transactions"))
    assert any(b.has(CONTROL_BIT) for b in batches)
    assert any(b.has(TRANSACTIONAL_BIT) for b in batches)
    mirrored.check("transactions", count=120)
    arrived = stored(mirrored.b, mirrored.remote("transactions"))
    assert arrived
    assert not any(b.has(CONTROL_BIT) or b.has(TRANSACTIONAL_BIT) for b in arrived)


def test_transactions_read_uncommitted(mirrored: Mirrored) -> None:
    assert mirrored.check("uncommitted", isolation="read_uncommitted") == 240


def test_compaction_holes_tombstones_and_delete_horizon(mirrored: Mirrored) -> None:
    batches = stored(mirrored.a, mirrored.name("compacted"))
    assert any(0 < b.count <= b.last_delta for b in batches)
    assert any(b.has(DELETE_HORIZON_BIT) for b in batches)
    count = mirrored.check("compacted")
    assert 0 < count < 371
    arrived = stored(mirrored.b, mirrored.remote("compacted"))
    assert arrived


def test_batches_that_compaction_emptied(mirrored: Mirrored) -> None:
    batches = stored(mirrored.a, mirrored.name("emptied"))
    assert sum(b.count == 0 for b in batches) >= 2
    count = mirrored.check("emptied")
    assert 23 <= count < 83
    arrived = stored(mirrored.b, mirrored.remote("emptied"))
    assert sum(b.count for b in arrived) == count
    assert all(b.count for b in arrived)


def test_interleaved_transactions_read_committed(mirrored: Mirrored) -> None:
    topic = mirrored.name("interleaved")
    assert _producers_overlap(mirrored.a, topic)
    # Nothing but the committed rounds: half of the transactions were aborted.
    assert mirrored.check("interleaved", count=6 + 15 * 9) < INTERLEAVED_RECORDS
    arrived = stored(mirrored.b, mirrored.remote("interleaved"))
    assert not any(b.has(CONTROL_BIT) or b.has(TRANSACTIONAL_BIT) for b in arrived)


def test_interleaved_transactions_read_uncommitted(mirrored: Mirrored) -> None:
    kind = "interleaved-uncommitted"
    assert _producers_overlap(mirrored.a, mirrored.name(kind))
    assert mirrored.check(kind, isolation="read_uncommitted") == INTERLEAVED_RECORDS


def test_records_that_linger_share_batches(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """Two flows of one topic that gets a record every 10 ms: one with linger.ms, one without."""
    create_topic(cluster_a, topic_name)
    plain = SlotRun(Direct(cluster_a), Direct(cluster_b), topic_name)
    lingers = SlotRun(
        *(Direct(cluster_a), Direct(cluster_b), topic_name), produce=ProduceSettings(linger_ms=200)
    )
    producer = Producer({"bootstrap.servers": cluster_a.bootstrap_servers, "linger.ms": 0})
    with plain, lingers:
        produce(cluster_a, topic_name, [Sent(b"first")])
        plain.wait_until_mirroring()
        lingers.wait_until_mirroring()
        began_s = time.monotonic()
        for number in range(100):
            producer.produce(topic_name, b"%d" % number)
            producer.flush(TIMEOUT_S)
            time.sleep(0.01)
        passed_s = time.monotonic() - began_s
        wait_until(
            lambda: all(len(consume_all(cluster_b, one.remote)) == 101 for one in (plain, lingers)),
            "all records",
        )
    counts = [len(stored(cluster_b, one.remote)) for one in (plain, lingers)]
    # Each batch of the lingering flow takes 200 ms, however slowly the records come.
    assert counts[1] <= 3 + passed_s / 0.2, (counts, passed_s)
    assert counts[1] < counts[0], counts
    values = [[one.value for one in consume_all(cluster_b, s.remote)] for s in (plain, lingers)]
    assert values[0] == values[1] == [b"first", *(b"%d" % number for number in range(100))]


def _producers_overlap(cluster: KafkaCluster, topic: str) -> bool:
    """Whether transactional batches of several producers alternate in the broker's log."""
    writers = [
        b.producer_id
        for b in stored(cluster, topic)
        if b.has(TRANSACTIONAL_BIT) and not b.has(CONTROL_BIT)
    ]
    changes = sum(one != two for one, two in itertools.pairwise(writers))
    return len(set(writers)) == 3 and changes > 30
