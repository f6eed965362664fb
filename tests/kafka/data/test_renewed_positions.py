"""What a slot does again every few minutes, within one epoch. No Spark, real brokers."""

from __future__ import annotations

from typing import Any

import pytest

from sparkmirror.data.write import at_least_once, exactly_once
from sparkmirror.data.write.exactly_once import ExactlyOnce
from sparkmirror.internal_topics.connect_offsets import decode_source_offset
from sparkmirror.internal_topics.mm2_records import offset_syncs_topic
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import TopicPartition
from sparkmirror.settings import OffsetSyncSettings
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.clusters.faults import Direct, SlotRun, check_mirrored
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    create_topic,
    produce,
    set_topic_config,
    topic_config,
)


@pytest.fixture
def source(cluster_a: KafkaCluster) -> Direct:
    return Direct(cluster_a)


@pytest.fixture
def target(cluster_b: KafkaCluster) -> Direct:
    return Direct(cluster_b)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (at_least_once, exactly_once):
        monkeypatch.setattr(module, "RENEW_S", 1.0)


def _saved(slot: SlotRun) -> list[int | None]:
    """The offsets in MirrorMaker 2's format, in order."""
    topic = slot.flow.offset_storage_topic
    assert topic is not None
    found = [
        decode_source_offset(one.key, one.value) for one in consume_all(slot.target.kafka, topic)
    ]
    return [one[2] for one in found if one is not None]


def _committed_often(slot: SlotRun) -> int:
    """How often the group's position was committed, as its topic says."""
    wanted = slot.flow.position_group.encode()
    target = TopicPartition(slot.remote, 0)
    keys = [
        one.key
        for one in consume_all(slot.target.kafka, "__consumer_offsets")
        if one.key is not None and wanted in one.key and target.topic.encode() in one.key
    ]
    return len(keys)


@pytest.mark.parametrize("exactly", [pytest.param(False, marks=pytest.mark.long), True])
def test_positions_are_committed_and_saved_within_the_epoch(source, target, topic_name, exactly):
    create_topic(source.kafka, topic_name, 1)
    with SlotRun(source, target, topic_name, exactly_once=exactly) as slot:
        produce(source.kafka, topic_name, [Sent(b"%d" % n) for n in range(10)])
        slot.until(lambda: _saved(slot)[-1:] == [9], "its position is saved")
        often = _committed_often(slot)
        slot.until(lambda: _committed_often(slot) > often + 1, "an idle position is committed")
        produce(source.kafka, topic_name, [Sent(b"10")])
        slot.until(lambda: _saved(slot)[-1:] == [10], "the next position is saved, too")
        assert {report.epoch for report in slot.reports()} == {0}
    check_mirrored(source.kafka, topic_name, target.kafka, slot.remote)
    assert slot.failures == []


@pytest.mark.parametrize("exactly", [pytest.param(False, marks=pytest.mark.more), True])
def test_positions_that_their_topic_refused_are_saved_when_it_takes_them(
    source, target, topic_name, exactly
):
    create_topic(source.kafka, topic_name, 1)
    slot = SlotRun(source, target, topic_name, exactly_once=exactly)
    topic = slot.flow.offset_storage_topic
    assert topic is not None
    # Enough for the marker of a transaction: a broker that cannot write one waits for ever.
    _set(target, topic, "max.message.bytes", "90")
    with slot:
        produce(source.kafka, topic_name, [Sent(b"%d" % n) for n in range(10)])
        check_mirrored(source.kafka, topic_name, target.kafka, slot.remote)
        slot.until(lambda: bool(slot.errors()), "it is refused")
        assert _saved(slot) == []
        set_topic_config(target.kafka, topic, **{"max.message.bytes": None})
        slot.until(lambda: bool(_saved(slot)), "its position is saved")
        assert {report.epoch for report in slot.reports()} == {0}
    assert set(_saved(slot)) == {9}


def test_offset_syncs_are_parts_of_transactions_again_within_the_epoch(
    source, target, topic_name, monkeypatch
):
    create_topic(source.kafka, topic_name, 1)
    syncs = OffsetSyncSettings(enabled=True, location="target", lag_max=10)
    slot = SlotRun(source, target, topic_name, offset_syncs=syncs, exactly_once=True)
    deliveries: list[ExactlyOnce] = []
    begin = ExactlyOnce.begin

    def noted(delivery: ExactlyOnce, hello: Any) -> None:
        deliveries.append(delivery)
        begin(delivery, hello)

    monkeypatch.setattr(ExactlyOnce, "begin", noted)
    names = offset_syncs_topic(slot.flow), runs_topic(slot.flow)
    for name in names:
        create_topic(target.kafka, name, 1)
    _set(target, names[0], "max.message.bytes", "90")
    with slot:
        produce(source.kafka, topic_name, [Sent(b"%d" % n) for n in range(50)])
        slot.until(
            lambda: bool(deliveries) and not deliveries[0]._syncs_inside, "they are left out"
        )
        set_topic_config(target.kafka, names[0], **{"max.message.bytes": None})
        produce(source.kafka, topic_name, [Sent(b"%d" % n) for n in range(50, 100)])
        slot.until(lambda: deliveries[0]._syncs_inside, "they are inside again")
        produce(source.kafka, topic_name, [Sent(b"%d" % n) for n in range(100, 150)])
        check_mirrored(source.kafka, topic_name, target.kafka, slot.remote)
    assert len(deliveries) == 1
    assert consume_all(target.kafka, names[0])
    assert slot.failures == []


def _set(cluster: Direct, topic: str, name: str, value: str) -> None:
    set_topic_config(cluster.kafka, topic, **{name: value})
    assert topic_config(cluster.kafka, topic)[name] == value
