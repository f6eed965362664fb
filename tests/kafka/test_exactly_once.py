"""Exactly-once, one slot at a time: no Spark, real brokers, an independent read_committed reader.

Each test lets something go wrong between two commits and then checks that the target has every
record of the source, in order, none twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkmirror.demo.clusters import start_all
from tests.kafka.faults import (
    NODES,
    FaultyCluster,
    Load,
    SlotRun,
    check_mirrored,
    move_leaders,
)
from tests.kafka.support import create_topic

PARTITIONS = 3


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[FaultyCluster, FaultyCluster]]:
    pair = FaultyCluster("S"), FaultyCluster("T")
    start_all(*(one.kafka for one in pair))
    try:
        yield pair
    finally:
        for one in pair:
            one.stop()


@pytest.fixture
def source(clusters: tuple[FaultyCluster, FaultyCluster]) -> Iterator[FaultyCluster]:
    yield clusters[0]
    clusters[0].heal()


@pytest.fixture
def target(clusters: tuple[FaultyCluster, FaultyCluster]) -> Iterator[FaultyCluster]:
    yield clusters[1]
    clusters[1].heal()


def _topic(source: FaultyCluster, name: str, partitions: int = PARTITIONS) -> str:
    create_topic(source.kafka, name, partitions, replication=NODES)
    return name


def _exact(source: FaultyCluster, target: FaultyCluster, topic: str, **options: object) -> SlotRun:
    return SlotRun(source, target, topic, PARTITIONS, exactly_once=True, **options)


def _checked(slot: SlotRun, load: Load | None = None, *, timeout_s: float = 60.0) -> int:
    acknowledged = None if load is None else load.acknowledged
    ends = slot.source.kafka, slot.topic, slot.target.kafka, slot.remote
    return check_mirrored(*ends, acknowledged, timeout_s=timeout_s)


def test_leaders_move_in_mid_transaction(source, target, topic_name):
    topic = _topic(source, topic_name)
    with _exact(source, target, topic) as slot:
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            for moved, name in (
                (source, topic),
                (target, slot.remote),
                (target, "__transaction_state"),
            ):
                move_leaders(moved.kafka, name)
                load.wait_for(100)
        _checked(slot, load)
        assert slot.failures == []
