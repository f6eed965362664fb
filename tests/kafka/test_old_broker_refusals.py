"""A target so old that it does not say which record of a batch it refuses (before Kafka 2.4)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from sparkmirror.demo.clusters import KafkaCluster
from sparkmirror.model import FaultSettings
from tests.kafka.faults import Direct, SlotRun
from tests.kafka.support import Sent, consume_all, create_topic, produce

VERSION = "2.3.1"
ONE_BATCH = {"linger.ms": 500}
HOUR_MS = 3_600_000
COUNT = 64


def _until(condition: Callable[[], bool], slot: SlotRun, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, (slot.halts(), slot.errors(), slot.failures)
        time.sleep(0.2)
    assert slot.failures == []


def _values(slot: SlotRun) -> list[bytes | None]:
    return [record.value for record in consume_all(slot.target.kafka, slot.remote)]


@pytest.mark.timeout(300)
def test_the_batch_is_cut_until_the_refused_records_are_alone(
    cluster_a: KafkaCluster, new_cluster: Callable[..., KafkaCluster], topic_name: str
) -> None:
    create_topic(cluster_a, topic_name, 1, config={"max.message.bytes": "100000"})
    old_ms = int(time.time() * 1000) - 48 * HOUR_MS
    records = [Sent(b"%d" % n, b"k%d" % n) for n in range(COUNT)]
    refused = {5: "INVALID_TIMESTAMP", 6: "INVALID_TIMESTAMP", 40: "MESSAGE_TOO_LARGE"}
    for number, code in refused.items():
        if code == "INVALID_TIMESTAMP":
            records[number] = records[number]._replace(timestamp_ms=old_ms)
        else:
            records[number] = records[number]._replace(value=os.urandom(6_000))
    good = [one.value for number, one in enumerate(records) if number not in refused]
    old = new_cluster("old", version=VERSION)
    skip = FaultSettings(bad_record="skip")
    with SlotRun(Direct(cluster_a), Direct(old), topic_name, faults=skip) as slot:
        day = f"message.timestamp.difference.max.ms={24 * HOUR_MS}"
        _alter(old, slot.remote, f"max.message.bytes=5000,{day}")
        produce(cluster_a, topic_name, records, config=ONE_BATCH)
        _until(lambda: _values(slot) == good, slot)
        _until(lambda: slot.errors().get("RECORD_SKIPPED") == len(refused), slot)
        assert slot.halts() == {}
        gaps = slot.gaps()
        told = {n: gap.code for gap in gaps for n in range(gap.first, (gap.last or 0) + 1)}
        assert told == refused
        produce(cluster_a, topic_name, records[:3])
        _until(lambda: _values(slot) == good + good[:3], slot)
        # It answers a record without a key as if the batch had been damaged on its way, and what
        # may be damage is never left out: the partition waits until the topic takes such records.
        _alter(old, slot.remote, "cleanup.policy=compact")
        produce(cluster_a, topic_name, [Sent(b"no key")])
        _until(lambda: 0 in slot.halts(), slot)
        assert slot.halts()[0].code == "CORRUPT_MESSAGE"
        _alter(old, slot.remote, "cleanup.policy=delete")
        _until(lambda: _values(slot) == [*good, *good[:3], b"no key"], slot)


def _alter(old: KafkaCluster, topic: str, config: str) -> None:
    """Such a broker knows no incremental changes; its own tool makes them through ZooKeeper."""
    done = old.tool(
        "kafka.admin.ConfigCommand",
        *("--zookeeper", old.zookeeper, "--alter", "--add-config", config),
        *("--entity-type", "topics", "--entity-name", topic),
    )
    assert done.returncode == 0, done.stdout + done.stderr
