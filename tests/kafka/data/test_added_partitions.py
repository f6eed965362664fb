"""Partitions that come and go while a slot streams, within one epoch. No Spark, real brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import pytest

from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    Command,
    CommandKind,
    SourcePartition,
    channel,
    encode_assignment,
    encode_command,
)
from sparkmirror.model import TopicPartition
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.clusters.faults import Direct, SlotRun, check_mirrored, tell
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce
from tests.patience import patience


@pytest.fixture
def source(cluster_a: KafkaCluster) -> Direct:
    return Direct(cluster_a)


@pytest.fixture
def target(cluster_b: KafkaCluster) -> Direct:
    return Direct(cluster_b)


class _Slot(SlotRun):
    """A slot whose assignment changes. ``die``: the sink fails with its next row."""

    version = 0

    def assign(
        self, partitions: Sequence[SourcePartition], since: Mapping[TopicPartition, int]
    ) -> None:
        """Publish an assignment within the epoch, as the driver does."""
        self.version += 1
        to = channel(self.flow, self.run_id)
        document = AssignmentDocument(
            *(to, self.run_id, self.version, tuple(partitions)), since=since
        )
        command = Command(to, CommandKind.EXTEND, self.run_id, 1, version=self.version)
        tell(self.target.kafka, self.flow, *encode_assignment(document), encode_command(command))

    def add_topic(self, topic: str, count: int) -> tuple[SourcePartition, ...]:
        """Create ``topic`` on both clusters; returns its partitions."""
        create_topic(self.source.kafka, topic, count)
        create_topic(self.target.kafka, self.names(topic), count)
        return tuple(SourcePartition(topic, n, self.names(topic)) for n in range(count))

    def names(self, topic: str) -> str:
        """The remote name of a topic."""
        return f"{self.alias}.{topic}"


# One mode of two; `make long` runs the other.
EXACTLY = pytest.mark.parametrize("exactly", [pytest.param(False, marks=pytest.mark.long), True])


def _numbers(first: int, count: int) -> list[Sent]:
    return [Sent(b"%d" % n) for n in range(first, first + count)]


@EXACTLY
def test_a_new_topic_is_mirrored_within_the_epoch(source, target, topic_name, exactly):
    create_topic(source.kafka, topic_name, 2)
    new = f"{topic_name}-new"
    with _Slot(source, target, topic_name, 2, exactly_once=exactly) as slot:
        produce(source.kafka, topic_name, _numbers(0, 100))
        slot.until(lambda: len(consume_all(target.kafka, slot.remote)) == 100, "it mirrors")
        added = slot.add_topic(new, 3)
        produce(source.kafka, new, _numbers(0, 50))
        slot.assign([*slot.partitions, *added], {p.source: 1 for p in added})
        slot.until(lambda: len(consume_all(target.kafka, slot.names(new))) == 50, "the new one")
        produce(source.kafka, new, _numbers(50, 50))
        produce(source.kafka, topic_name, _numbers(100, 100))
        slot.until(lambda: len(consume_all(target.kafka, slot.names(new))) == 100, "it goes on")
        slot.until(lambda: len(consume_all(target.kafka, slot.remote)) == 200, "as do others")
        assert {report.epoch for report in slot.reports()} == {0}
    check_mirrored(source.kafka, topic_name, target.kafka, slot.remote)
    check_mirrored(source.kafka, new, target.kafka, slot.names(new))
    assert slot.failures == []


@EXACTLY
def test_others_go_on_while_a_partition_begins(source, target, topic_name, exactly, monkeypatch):
    """Even if its beginning takes as long as the test."""
    create_topic(source.kafka, topic_name, 1)
    asked, answer = threading.Event(), threading.Event()
    start = SlotReader._start

    def slowly(reader: SlotReader):
        if reader._given_up is not None:
            asked.set()
            assert answer.wait(patience())
        return start(reader)

    monkeypatch.setattr(SlotReader, "_start", slowly)
    new = f"{topic_name}-new"
    with _Slot(source, target, topic_name, exactly_once=exactly) as slot:
        produce(source.kafka, topic_name, _numbers(0, 10))
        slot.until(lambda: len(consume_all(target.kafka, slot.remote)) == 10, "it mirrors")
        added = slot.add_topic(new, 1)
        produce(source.kafka, new, _numbers(0, 10))
        slot.assign([*slot.partitions, *added], {p.source: 1 for p in added})
        assert asked.wait(patience())
        produce(source.kafka, topic_name, _numbers(10, 10))
        slot.until(lambda: len(consume_all(target.kafka, slot.remote)) == 20, "it goes on")
        assert consume_all(target.kafka, slot.names(new)) == []
        answer.set()
        slot.until(lambda: len(consume_all(target.kafka, slot.names(new))) == 10, "the new one")
    check_mirrored(source.kafka, topic_name, target.kafka, slot.remote)
    check_mirrored(source.kafka, new, target.kafka, slot.names(new))
    assert slot.failures == []


@EXACTLY
def test_a_task_that_is_started_again_has_what_was_added(
    source, target, topic_name, exactly, monkeypatch
):
    """Its plan does not name it; the control topic does. Nothing comes twice with exactly-once."""
    create_topic(source.kafka, topic_name, 1)
    new = f"{topic_name}-new"
    with _Slot(source, target, topic_name, exactly_once=exactly) as slot:
        added = slot.add_topic(new, 2)
        slot.assign([*slot.partitions, *added], {p.source: 1 for p in added})
        dies = threading.Event()
        housekeep = SlotSink._housekeep

        def dying(sink: SlotSink) -> None:
            if dies.is_set():
                dies.clear()
                raise RuntimeError("killed")
            housekeep(sink)

        monkeypatch.setattr(SlotSink, "_housekeep", dying)
        for round_ in range(4):
            produce(source.kafka, topic_name, _numbers(round_ * 50, 50))
            produce(source.kafka, new, _numbers(round_ * 50, 50))
            dies.set()
            _until(lambda: not dies.is_set())
        _until(lambda: len(set(_values(target, slot.names(new)))) == 200)
        _until(lambda: len(set(_values(target, slot.remote))) == 200)
    assert [str(one) for one in slot.failures] == ["killed"] * 4
    if exactly:
        assert sorted(_values(target, slot.names(new))) == sorted(b"%d" % n for n in range(200))
        assert _values(target, slot.remote) == [b"%d" % n for n in range(200)]


@EXACTLY
def test_a_partition_that_is_gone_is_left(source, target, topic_name, exactly):
    """What was read of it is written and committed; then nothing more is read."""
    create_topic(source.kafka, topic_name, 1)
    new = f"{topic_name}-new"
    with _Slot(source, target, topic_name, exactly_once=exactly) as slot:
        added = slot.add_topic(new, 1)
        slot.assign([*slot.partitions, *added], {p.source: 1 for p in added})
        produce(source.kafka, new, _numbers(0, 20))
        slot.until(lambda: len(consume_all(target.kafka, slot.names(new))) == 20, "it mirrors")
        slot.assign(slot.partitions, {})
        produce(source.kafka, topic_name, _numbers(0, 20))
        slot.until(lambda: len(consume_all(target.kafka, slot.remote)) == 20, "others go on")
        time.sleep(5)  # the assignment has been read by now
        produce(source.kafka, new, _numbers(20, 20))
        produce(source.kafka, topic_name, _numbers(20, 20))
        slot.until(lambda: len(consume_all(target.kafka, slot.remote)) == 40, "others go on")
        assert {report.epoch for report in slot.reports()} == {0}
    assert _values(target, slot.names(new)) == [b"%d" % n for n in range(20)]
    assert slot.failures == []


def _values(cluster: Direct, topic: str) -> list[bytes | None]:
    return [one.value for one in consume_all(cluster.kafka, topic)]


def _until(condition) -> None:
    deadline = time.monotonic() + patience()
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
