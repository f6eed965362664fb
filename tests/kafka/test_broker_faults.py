"""The data path through broker trouble, at the level of one slot: no Spark, real brokers.

Each test lets something go wrong on the way and then checks with an independent reader that the
target has every record of the source, in order, none twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from sparkmirror.demo.clusters import start_all
from sparkmirror.model import FetchSettings
from tests.kafka.faults import (
    NODES,
    FaultyCluster,
    Load,
    SlotRun,
    check_mirrored,
    leaders,
    move_leaders,
    wait_in_sync,
)
from tests.kafka.mirror_process import wait_until
from tests.kafka.proxy import TO_BROKER, TO_CLIENT
from tests.kafka.support import Sent, create_topic, produce

PARTITIONS = 3
# Quick enough for a test, long enough for a busy machine.
IMPATIENT = {"request_timeout_ms": 3_000, "connect_timeout_ms": 1_000}


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


def _checked(slot: SlotRun, load: Load | None = None) -> int:
    acknowledged = None if load is None else load.acknowledged
    count = check_mirrored(
        slot.source.kafka, slot.topic, slot.target.kafka, slot.remote, acknowledged
    )
    assert slot.failures == []
    return count


# -- leaders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["source", "target"])
def test_leaders_move(source, target, topic_name, side):
    topic = _topic(source, topic_name)
    with SlotRun(source, target, topic, PARTITIONS) as slot:
        moved = (source, topic) if side == "source" else (target, slot.remote)
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            for _ in range(3):
                move_leaders(moved[0].kafka, moved[1])
                load.wait_for(100)
        _checked(slot, load)
        found = slot.errors()
    told = {"NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"}
    assert told & set(found), found


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_broker_is_killed_and_comes_back(source, target, topic_name, side):
    topic = _topic(source, topic_name)
    with SlotRun(source, target, topic, PARTITIONS) as slot:
        hit, name = (source, topic) if side == "source" else (target, slot.remote)
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            victim = leaders(hit.kafka, name)[0]
            hit.kafka.kill(victim)
            load.wait_for(300)
            hit.kafka.restart(victim)
            load.wait_for(100)
            wait_in_sync(hit.kafka)
        _checked(slot, load)
        assert "CONNECTION_LOST" in slot.errors()


def test_a_frozen_broker_does_not_stop_the_other_partitions(source, target, topic_name):
    """Its port still takes connections, so only time tells that nobody is there."""
    topic = _topic(source, topic_name)
    with SlotRun(source, target, topic, PARTITIONS, client=IMPATIENT) as slot:
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            victim = leaders(source.kafka, topic)[0]
            source.kafka.freeze(victim)
            try:
                load.wait_for(300)
            finally:
                source.kafka.thaw(victim)
            wait_in_sync(source.kafka)
        _checked(slot, load)


# -- connections -------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["source", "target"])
def test_half_open_connections_time_out_and_are_made_anew(source, target, topic_name, side, caplog):
    caplog.set_level(logging.WARNING)
    topic = _topic(source, topic_name)
    with SlotRun(source, target, topic, PARTITIONS, client=IMPATIENT) as slot:
        hit, name = (source, topic) if side == "source" else (target, slot.remote)
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            proxy = hit.proxies[leaders(hit.kafka, name)[0]]
            before = proxy.connections
            proxy.stall()
            load.wait_for(1_200)
            assert "in time" in caplog.text or "timed out" in caplog.text
            proxy.resume()
            load.wait_for(100)
        _checked(slot, load)
        assert proxy.connections > before
        assert "CONNECTION_LOST" in slot.errors()


@pytest.mark.parametrize("side", ["source", "target"])
def test_connections_are_cut_and_reset_again_and_again(source, target, topic_name, side):
    topic = _topic(source, topic_name)
    with SlotRun(source, target, topic, PARTITIONS) as slot:
        hit = source if side == "source" else target
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(50)
            for number in range(10):
                for proxy in hit.proxies.values():
                    proxy.delay_s = 0.01 * (number % 3)
                    (proxy.cut if number % 2 else proxy.reset)()
                load.wait_for(30)
        _checked(slot, load)
        assert "CONNECTION_LOST" in slot.errors()


# -- damage ------------------------------------------------------------------------------------


def test_damage_on_the_way_from_the_source_is_fetched_again(source, target, topic_name, caplog):
    caplog.set_level(logging.WARNING)
    topic = _topic(source, topic_name, 1)
    mark = b"this one is hit on its way"
    with SlotRun(source, target, topic) as slot:
        produce(source.kafka, topic, [Sent(b"before")])
        _checked(slot)
        for proxy in source.proxies.values():
            proxy.flip(TO_CLIENT, mark)
        produce(source.kafka, topic, [Sent(b"sound"), Sent(mark), Sent(b"after")])
        _checked(slot)
        assert sum(proxy.flipped for proxy in source.proxies.values()) == 1
        assert slot.wait_for_error("CORRUPT_BATCH")["CORRUPT_BATCH"] == 1
    assert f"{topic}-0: The batch at offset 1 does not match its CRC-32C" in caplog.text


def test_damage_on_the_way_to_the_target_is_sent_again(source, target, topic_name):
    topic = _topic(source, topic_name, 1)
    mark = b"this one is hit on its way"
    with SlotRun(source, target, topic) as slot:
        produce(source.kafka, topic, [Sent(b"before")])
        _checked(slot)
        for proxy in target.proxies.values():
            proxy.flip(TO_BROKER, mark)
        produce(source.kafka, topic, [Sent(b"sound"), Sent(mark), Sent(b"after")])
        _checked(slot)
        assert sum(proxy.flipped for proxy in target.proxies.values()) == 1
        slot.wait_for_error("CORRUPT_MESSAGE")


# -- racks -------------------------------------------------------------------------------------


def test_the_follower_in_our_rack_serves_and_the_leader_takes_over_when_it_dies(
    source, target, topic_name, caplog
):
    caplog.set_level(logging.INFO)
    topic = _topic(source, topic_name, 1)
    leader = leaders(source.kafka, topic)[0]
    follower = leader % NODES + 1
    fetch = FetchSettings(client_rack=f"rack-{follower}")
    with SlotRun(source, target, topic, fetch=fetch) as slot:
        payload = [Sent(b"%d %s" % (n, b"y" * 1_000)) for n in range(1_000)]
        produce(source.kafka, topic, payload[:10])
        _checked(slot)
        before = {number: proxy.bytes_to_client for number, proxy in source.proxies.items()}
        produce(source.kafka, topic, payload)
        _checked(slot)
        grown = {n: proxy.bytes_to_client - before[n] for n, proxy in source.proxies.items()}
        assert grown[follower] > 1_000_000
        assert grown[leader] < 100_000
        with Load(source.kafka, topic, 1) as load:
            source.kafka.kill(follower)
            killed = time.monotonic()
            load.wait_for(100)
            wait_until(lambda: _caught_up(slot), "the leader's data", 30)
            assert time.monotonic() - killed < 30
            source.kafka.restart(follower)
            wait_in_sync(source.kafka)
            load.wait_for(50)
        _checked(slot)


def _caught_up(slot: SlotRun) -> bool:
    from tests.kafka.support import consume_all

    at_source = len(consume_all(slot.source.kafka, slot.topic))
    return len(consume_all(slot.target.kafka, slot.remote)) >= at_source - 50
