"""What is in a transaction of an exactly-once flow, seen while one is held open.

A reader at `read_uncommitted` shows what was written, one at `read_committed` that none of it
counts before the end, which a drain brings about. No Spark, real brokers.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from sparkmirror.control.topics.dead_letters import plan_dead_letter_topics
from sparkmirror.data.write.exactly_once import ExactlyOnce
from sparkmirror.data.write.offset_sync_writer import SyncSender
from sparkmirror.internal_topics.gaps import gaps_topic
from sparkmirror.internal_topics.mm2_records import decode_offset_sync, offset_syncs_topic
from sparkmirror.internal_topics.runs import decode_run, runs_topic
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import dead_letter_topic
from sparkmirror.settings import FaultSettings, OffsetSyncSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.produce.transactions import Transactions
from tests.kafka.clusters.faults import Direct, SlotRun, check_mirrored
from tests.kafka.harness.support import (
    Received,
    Sent,
    consume_all,
    create_topic,
    produce,
    set_topic_config,
    topic_config,
    topic_names,
)
from tests.patience import patience

HOUR_MS = 3_600_000
# Only size or a drain ends a transaction.
HELD = {
    "exactly_once": True,
    "transaction_interval_ms": HOUR_MS,
    "position_interval_ms": HOUR_MS,
    "transaction_timeout_ms": 600_000,
}
ONE_BATCH = {"linger.ms": 60_000}  # until the flush
SYNCS = OffsetSyncSettings(enabled=True, location="target", lag_max=10)


@pytest.fixture
def source(cluster_a: KafkaCluster) -> Direct:
    return Direct(cluster_a)


@pytest.fixture
def target(cluster_b: KafkaCluster) -> Direct:
    return Direct(cluster_b)


def _set(cluster: Direct, topic: str, name: str, value: str) -> None:
    """Set a config; wait until the broker has heard of it."""
    set_topic_config(cluster.kafka, topic, **{name: value})
    deadline = time.monotonic() + patience()
    while topic_config(cluster.kafka, topic)[name] != value:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _written(slot: SlotRun, topic: str) -> list[Received]:
    """Whatever its fate will be."""
    return consume_all(slot.target.kafka, topic, isolation="read_uncommitted")


def _counts(slot: SlotRun, topic: str) -> list[Received]:
    return consume_all(slot.target.kafka, topic)


def _numbered(first: int, count: int) -> list[Sent]:
    return [Sent(b"%d" % n, b"k%d" % n) for n in range(first, first + count)]


@pytest.mark.parametrize("choice", [pytest.param("skip", marks=pytest.mark.more), "dead-letter"])
def test_left_out_records_are_part_of_the_transaction(source, target, topic_name, choice):
    create_topic(source.kafka, topic_name, 1)
    faults = FaultSettings(bad_record=choice)
    slot = SlotRun(source, target, topic_name, faults=faults, **HELD)
    _set(target, slot.remote, "cleanup.policy", "compact")
    with slot:
        topics = [slot.remote, gaps_topic(slot.flow)]
        if choice == "dead-letter":
            (new,) = plan_dead_letter_topics({topic_name: slot.remote}, slot.flow)
            create_topic(target.kafka, new.name, 1, config=dict(new.configs))
            topics.append(dead_letter_topic(slot.remote))
        sent: list[Sent] = []
        for first in range(0, 40, 10):
            batch = [*_numbered(first, 7), Sent(b"no key %d" % first), *_numbered(first + 7, 3)]
            produce(source.kafka, topic_name, batch, config=ONE_BATCH)
            sent += batch
        # One record of each batch is refused; what is around it arrives all the same.
        slot.until(lambda: len(_written(slot, slot.remote)) == 40, "good records are written")
        for topic in topics[1:]:
            slot.until(lambda topic=topic: len(_written(slot, topic)) == 4, f"{topic} has 4")
        assert [_counts(slot, topic) for topic in topics] == [[]] * len(topics)
        slot.drain()
    good = [one.value for one in sent if one.key is not None]
    assert [one.value for one in _counts(slot, slot.remote)] == good
    left_out = [number for number, one in enumerate(sent) if one.key is None]
    assert sorted((gap.first, gap.last) for gap in slot.gaps()) == [(n, n) for n in left_out]
    assert len(_written(slot, slot.remote)) == len(good)  # nothing was aborted on the way
    if choice == "dead-letter":
        letters = [one.value for one in _counts(slot, topics[2])]
        assert letters == [sent[number].value for number in left_out]
    assert slot.failures == []


class _Gate:
    """Holds the end of the first transaction that has records, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()
        original = Transactions.commit

        def commit(transactions: Transactions) -> None:
            if transactions.members:
                self._reached.set()
                assert self._opened.wait(patience()), "nobody opens the gate"
            original(transactions)

        monkeypatch.setattr(Transactions, "commit", commit)

    def wait(self) -> None:
        assert self._reached.wait(patience()), "no transaction comes to its end"

    def open(self) -> None:
        self._opened.set()


def _sync_topics(slot: SlotRun) -> tuple[str, str]:
    """Both of them, made anew."""
    names = offset_syncs_topic(slot.flow), runs_topic(slot.flow)
    for name in names:
        create_topic(slot.target.kafka, name, 1, config={"cleanup.policy": "compact"})
    return names


def _check_places(slot: SlotRun, names: tuple[str, str]) -> int:
    """Every sync and run leads to the record that it is about; how many syncs there are."""
    at_source = {one.offset: one.value for one in consume_all(slot.source.kafka, slot.topic)}
    at_target = {one.offset: one.value for one in _counts(slot, slot.remote)}
    syncs = [decode_offset_sync(one.key, one.value) for one in _counts(slot, names[0])]
    for found in syncs:
        assert found is not None
        assert found[0] == TopicPartition(slot.topic, 0)
        assert at_source[found[1]] == at_target[found[2]]
    for one in _counts(slot, names[1]):
        row = decode_run(one.key, one.value)
        assert row is not None
        assert row.run is not None
        for n in range(row.run.length):
            assert at_source[row.run.source + n] == at_target[row.run.target + n]
    return len(syncs)


def test_offset_syncs_on_the_target_are_part_of_the_transaction(
    source, target, topic_name, monkeypatch
):
    create_topic(source.kafka, topic_name, 1)
    slot = SlotRun(source, target, topic_name, offset_syncs=SYNCS, exactly_once=True)
    names = _sync_topics(slot)
    gate = _Gate(monkeypatch)
    with slot:
        produce(source.kafka, topic_name, _numbered(0, 50))
        gate.wait()
        assert len(_written(slot, slot.remote)) > 0
        assert [len(_written(slot, name)) > 0 for name in names] == [True, True]
        assert [_counts(slot, name) for name in (slot.remote, *names)] == [[], [], []]
        gate.open()
        check_mirrored(source.kafka, topic_name, target.kafka, slot.remote)
    assert _check_places(slot, names) > 0
    assert slot.failures == []


def test_offset_syncs_on_the_source_follow_the_commit(source, target, topic_name, monkeypatch):
    """No transaction spans two clusters: before its end nothing is said of its records."""
    create_topic(source.kafka, topic_name, 1)
    on_source = replace(SYNCS, location="source")
    slot = SlotRun(source, target, topic_name, offset_syncs=on_source, exactly_once=True)
    syncs, runs = offset_syncs_topic(slot.flow), runs_topic(slot.flow)
    for cluster, name in ((source, syncs), (target, runs)):
        if name not in topic_names(cluster.kafka):
            create_topic(cluster.kafka, name, 1, config={"cleanup.policy": "compact"})

    def said() -> list[tuple[int, int]]:
        found = [decode_offset_sync(one.key, one.value) for one in consume_all(source.kafka, syncs)]
        return [one[1:] for one in found if one is not None and one[0].topic == topic_name]

    gate = _Gate(monkeypatch)
    with slot:
        produce(source.kafka, topic_name, _numbered(0, 50))
        gate.wait()
        assert len(_written(slot, slot.remote)) > 0
        assert SyncSender.of(slot.flow).flush(30), "what it was given would be written"
        assert (said(), _written(slot, runs)) == ([], [])
        gate.open()
        check_mirrored(source.kafka, topic_name, target.kafka, slot.remote)
        slot.until(lambda: bool(said() and _counts(slot, runs)), "syncs and runs are there")
    at_target = {one.offset: one.value for one in _counts(slot, slot.remote)}
    assert [at_target[down] for _, down in said()] == [b"%d" % up for up, _ in said()]


def test_offset_syncs_that_the_target_refuses_follow_the_commits(
    source, target, topic_name, monkeypatch
):
    """They hold nothing up, and are parts of the transactions again in the next epoch."""
    create_topic(source.kafka, topic_name, 1)
    slot = SlotRun(source, target, topic_name, offset_syncs=SYNCS, exactly_once=True, epoch_s=5)
    names = _sync_topics(slot)
    left_out: list[str] = []
    leave_out = ExactlyOnce._leave_syncs_out

    def noted(delivery: ExactlyOnce, reason: str) -> None:
        left_out.append(reason)
        leave_out(delivery, reason)

    monkeypatch.setattr(ExactlyOnce, "_leave_syncs_out", noted)
    # Too small for a sync, large enough for the marker that ends a transaction.
    _set(target, names[0], "max.message.bytes", "90")
    with slot:
        produce(source.kafka, topic_name, _numbered(0, 50))
        check_mirrored(source.kafka, topic_name, target.kafka, slot.remote)
        slot.until(lambda: bool(left_out), "they are left out")
        assert _counts(slot, names[0]) == []
        set_topic_config(target.kafka, names[0], **{"max.message.bytes": None})
        produce(source.kafka, topic_name, _numbered(50, 50))
        check_mirrored(source.kafka, topic_name, target.kafka, slot.remote)
        slot.until(lambda: bool(_counts(slot, names[0])), "syncs are there")
    assert _check_places(slot, names) > 0
    assert slot.failures == []


def test_a_transaction_ends_by_size(source, target, topic_name):
    create_topic(source.kafka, topic_name, 1)
    small: dict[str, Any] = HELD | {"transaction_bytes": 1_000}
    with SlotRun(source, target, topic_name, **small) as slot:
        produce(source.kafka, topic_name, [Sent(b"small")])
        slot.until(lambda: len(_written(slot, slot.remote)) == 1, "it is written")
        assert _counts(slot, slot.remote) == []
        produce(source.kafka, topic_name, [Sent(b"x" * 1_000)])
        slot.until(lambda: len(_counts(slot, slot.remote)) == 2, "both count")
