"""The data path through broker trouble, at the level of one slot: no Spark, real brokers.

Each test lets something go wrong on the way and then checks with an independent reader that the
target has every record of the source, in order, none twice.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException

from sparkmirror.internal_topics.commands import COMMAND_PARTITION, control_topic
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient, FetchSettings, ProduceSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.produce.producer import Producer
from tests.kafka.clusters.faults import (
    FETCH,
    NODES,
    PRODUCE,
    FaultyCluster,
    Load,
    SlotRun,
    ThrottleTap,
    by_partition,
    check_mirrored,
    leaders,
    move_leaders,
    set_quota,
    wait_in_sync,
)
from tests.kafka.clusters.proxy import TO_BROKER, TO_CLIENT
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce, set_topic_config
from tests.patience import patience

PARTITIONS = 3
# Quick enough for a test, long enough for a busy machine.
IMPATIENT = {"request_timeout_ms": 3_000, "connect_timeout_ms": 1_000}


def _topic(source: FaultyCluster, name: str, partitions: int = PARTITIONS) -> str:
    create_topic(source.kafka, name, partitions, replication=NODES)
    return name


def _checked(slot: SlotRun, load: Load | None = None) -> int:
    acknowledged = None if load is None else load.acknowledged
    ends = slot.source.kafka, slot.topic, slot.target.kafka, slot.remote
    count = check_mirrored(*ends, acknowledged)
    assert slot.failures == []
    return count


# -- leaders -----------------------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.parametrize("side", [pytest.param("source", marks=pytest.mark.long), "target"])
def test_leaders_move(source, target, topic_name, side):
    topic = _topic(source, topic_name)
    with SlotRun(source, target, topic, PARTITIONS) as slot:
        moved = (source, topic) if side == "source" else (target, slot.remote)
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            for _ in range(3):
                move_leaders(moved[0].kafka, moved[1])
                load.wait_for(100)
        _checked(slot, load)
        found = slot.errors()
    told = {"NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"}
    assert told & set(found), found


@pytest.mark.parametrize(
    "told",
    [
        "NOT_LEADER_OR_FOLLOWER",
        "FENCED_LEADER_EPOCH",
        pytest.param("UNKNOWN_LEADER_EPOCH", marks=pytest.mark.more),
    ],
)
def test_what_is_known_of_a_leader_is_wrong(source, topic_name, told):
    """The wrong broker, or the right one in an epoch before or after: it is looked up again."""
    tp = TopicPartition(topic_name, 0)
    create_topic(source.kafka, tp.topic, replication=1 if told.startswith("NOT") else NODES)
    if not told.startswith("NOT"):
        move_leaders(source.kafka, tp.topic)  # so that there is an epoch before
    produce(source.kafka, tp.topic, [Sent(b"one")])
    servers = tuple(source.kafka.bootstrap_servers.split(","))
    connections = ClusterConnections(ClusterClient("S", servers, "stale"), {tp.topic})
    fetcher = Fetcher(connections, FetchSettings())
    try:
        connections.refresh()
        right = connections.leaders[tp]
        connections.leaders[tp] = {
            "NOT_LEADER_OR_FOLLOWER": replace(right, node=right.node % NODES + 1),
            "FENCED_LEADER_EPOCH": replace(right, epoch=right.epoch - 1),
            "UNKNOWN_LEADER_EPOCH": replace(right, epoch=right.epoch + 1),
        }[told]
        fetcher.assign(tp, 0)
        assert _first_records(fetcher)
        assert fetcher.errors.keys() == {told}  # more than once, if the lookup takes long
        assert connections.leaders[tp] == right
    finally:
        connections.close()


def _first_records(fetcher: Fetcher, timeout_s: float | None = None) -> bytes:
    deadline = time.monotonic() + (timeout_s or patience())
    while time.monotonic() < deadline:
        fetcher.send()
        for ready in fetcher.ready(fetcher.next_due_s()):
            for part in fetcher.receive(ready):
                if part.records:
                    return bytes(part.records)
    raise AssertionError(f"no records: {fetcher.errors}")


@pytest.mark.parametrize("side", [pytest.param("source", marks=pytest.mark.more), "target"])
def test_a_broker_is_killed_and_comes_back(source, target, topic_name, side):
    topic = _topic(source, topic_name)
    hit, key = (source, FETCH) if side == "source" else (target, PRODUCE)
    taps = {number: ThrottleTap() for number in hit.proxies}
    for number, tap in taps.items():
        hit.proxies[number].tap = tap
    with SlotRun(source, target, topic, PARTITIONS) as slot:
        name = topic if side == "source" else slot.remote
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            victim = leaders(hit.kafka, name)[0]
            # So that a request is under way to it: who waits for nothing hears of no loss.
            hit.kafka.freeze(victim)
            wait_until(lambda: taps[victim].under_way(key, 1.0), "a request under way")
            hit.kafka.kill(victim)
            load.wait_for(300)
            wait_until(lambda: leaders(hit.kafka, name)[0] not in {victim, -1}, "another leader")
            hit.kafka.restart(victim)
            load.wait_for(100)
            wait_in_sync(hit.kafka)
        _checked(slot, load)
        assert "CONNECTION_LOST" in slot.errors()


@pytest.mark.long
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_rolling_restart_under_load(source, target, topic_name, side):
    """One broker after the other stops in order and comes back, as in an upgrade."""
    topic = _topic(source, topic_name)
    with SlotRun(source, target, topic, PARTITIONS) as slot:
        hit = source if side == "source" else target
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            for number in hit.kafka.node_ids:
                hit.kafka.restart(number)
                wait_in_sync(hit.kafka)
                load.wait_for(100)
        _checked(slot, load)
        assert slot.errors(), "nothing failed: the brokers were not restarted"


def test_a_frozen_broker_does_not_stop_the_other_partitions(source, target, topic_name):
    """Its port still takes connections, so only time tells that nobody is there.

    The partitions of the frozen broker wait until others lead them; those of other brokers may
    not, however long a request of theirs may take.
    """
    topic = _topic(source, topic_name)
    # Whoever waits for the frozen broker's answer waits longer than this test does.
    client = {"request_timeout_ms": 900_000, "connect_timeout_ms": 1_000}
    with SlotRun(source, target, topic, PARTITIONS, client=client) as slot:
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            before = leaders(source.kafka, topic)
            victim = before[0]
            others = {n for n, leader in before.items() if leader != victim}
            assert others

            def arrived() -> dict[int, int]:
                there = by_partition(consume_all(target.kafka, slot.remote))
                return {number: len(there.get(number, ())) for number in others}

            at = arrived()
            source.kafka.freeze(victim)
            try:
                wait_until(
                    lambda: all(now > at[number] + 300 for number, now in arrived().items()),
                    "the others go on",
                )
                wait_until(
                    lambda: leaders(source.kafka, topic)[0] not in (victim, -1), "another leader"
                )
            finally:
                source.kafka.thaw(victim)
            wait_in_sync(source.kafka)
        _checked(slot, load)


# -- connections -------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [pytest.param("source", marks=pytest.mark.more), "target"])
def test_half_open_connections_time_out_and_are_made_anew(source, target, topic_name, side, caplog):
    caplog.set_level(logging.WARNING)
    topic = _topic(source, topic_name)
    with SlotRun(source, target, topic, PARTITIONS, client=IMPATIENT) as slot:
        hit, name = (source, topic) if side == "source" else (target, slot.remote)
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            # Without the leader of its commands a slot asks the source for nothing more: then
            # there may be no request that waits for an answer.
            commands = leaders(target.kafka, control_topic(slot.flow))[COMMAND_PARTITION]
            others = set(leaders(hit.kafka, name).values()) - (
                {commands} if hit is target else set()
            )
            proxy = hit.proxies[min(others)]
            before = proxy.connections
            caplog.clear()
            proxy.stall()
            # The error of the data connection, which counts; that of a commit says "timed out".
            lost = "fetching from cluster" if side == "source" else "producing to cluster"
            wait_until(lambda: lost in caplog.text, "a request without an answer in time")
            proxy.resume()
            load.wait_for(100)
            wait_until(lambda: proxy.connections > before, "a new connection")
        _checked(slot, load)
        assert "CONNECTION_LOST" in slot.errors()


@pytest.mark.parametrize("side", [pytest.param("source", marks=pytest.mark.long), "target"])
def test_connections_are_cut_and_reset_again_and_again(source, target, topic_name, side):
    topic = _topic(source, topic_name)
    with SlotRun(source, target, topic, PARTITIONS) as slot:
        hit = source if side == "source" else target
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(50)
            slot.wait_until_mirroring()
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
        together = [Sent(b"sound"), Sent(mark), Sent(b"after")]
        produce(source.kafka, topic, together, config={"linger.ms": 60_000})  # until the flush
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
        payload = [Sent(b"%d %s" % (n, b"y" * 1_000)) for n in range(1_030)]
        produce(source.kafka, topic, payload[:10])
        _checked(slot)
        before = {number: proxy.bytes_to_client for number, proxy in source.proxies.items()}
        produce(source.kafka, topic, payload[10:1_010])
        _checked(slot)
        grown = {n: proxy.bytes_to_client - before[n] for n, proxy in source.proxies.items()}
        assert grown[follower] > 1_000_000
        assert grown[leader] < 100_000
        source.kafka.kill(follower)
        produce(source.kafka, topic, payload[1_010:1_020])
        _checked(slot)
        source.kafka.restart(follower)
        wait_in_sync(source.kafka)
        produce(source.kafka, topic, payload[1_020:])
        _checked(slot)
    assert f"{topic}-0: fetching from follower {follower}, which is in our rack" in caplog.text
    assert f"{topic}-0: fetching from the leader, no longer from {follower}" in caplog.text


# -- quotas ------------------------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.parametrize("side", ["source", "target"])
def test_quotas_are_respected_and_shown(source, target, topic_name, side, caplog):
    caplog.set_level(logging.WARNING)
    topic = _topic(source, topic_name, 1)
    hit, quota = (source, "consumer") if side == "source" else (target, "producer")
    records = [Sent(random.Random(n).randbytes(5_000)) for n in range(300)]
    # One at a time: what is on its way already when the broker asks to wait, cannot wait.
    alone = ProduceSettings(in_flight_requests_max=1)
    with SlotRun(source, target, topic, produce=alone) as slot:
        produce(source.kafka, topic, records[:1])
        _checked(slot)
        set_quota(hit.kafka, slot.client_id, f"{quota}_byte_rate=50000")
        taps = {number: ThrottleTap() for number in hit.proxies}
        for number, tap in taps.items():
            hit.proxies[number].tap = tap
        began = time.monotonic()
        # One after another, else a few large requests carry all and none has to wait.
        for first in range(1, len(records), 100):
            produce(source.kafka, topic, records[first : first + 100])
            _checked(slot)
        # 1.5 MB at 50 kB/s, of which a broker lets the first eleven seconds' worth pass at once.
        assert time.monotonic() - began > 1
        assert slot.wait_for_error("THROTTLED")["THROTTLED"] > 0
        assert "CONNECTION_LOST" not in slot.errors()
    key = FETCH if side == "source" else PRODUCE
    waits = [wait for tap in taps.values() for wait in tap.waits(key)]
    # The last throttled answer may have no request after it.
    assert waits
    # The clock of the tap runs a moment before the client's own.
    assert all(waited_s >= asked_s - 0.05 for asked_s, waited_s in waits), waits
    assert f"throttled by a quota of client id {slot.client_id}" in caplog.text


# -- outages -----------------------------------------------------------------------------------


@pytest.mark.more
def test_the_whole_target_goes_away_and_comes_back(source, target, topic_name):
    """Epochs end and begin meanwhile; no task fails, so no record is written twice."""
    topic = _topic(source, topic_name)
    with SlotRun(source, target, topic, PARTITIONS, client=IMPATIENT, epoch_s=4) as slot:
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            for node in target.kafka.node_ids:
                target.kafka.kill(node)
            time.sleep(12)
            target.kafka.start()
            load.wait_for(100)
        wait_in_sync(target.kafka)
        _checked(slot, load)


# -- batches in doubt --------------------------------------------------------------------------

_MARK = b"in doubt"
_LIMIT_BYTES = 5_000


class _AnswerLost:
    """A tap of a proxy: the first answer after a chunk with the mark ends its connection."""

    def __init__(self) -> None:
        self._connection = -1
        self.done = False

    def __call__(self, number: int, direction: str, chunk: bytes) -> None:
        if direction == TO_BROKER and not self.done and _MARK in chunk:
            self._connection = number
        elif direction == TO_CLIENT and number == self._connection and not self.done:
            self.done = True
            raise ConnectionError


def _batch(first: int, count: int) -> memoryview:
    values = [b"%d %s" % (n, _MARK) + b"." * 1_000 for n in range(first, first + count)]
    return memoryview(encode_batch([Record(n, 1, None, value) for n, value in enumerate(values)]))


def _pump(producer: Producer, until: Callable[[], bool]) -> list[int]:
    """Drive the producer; how many records each acknowledgement was for."""
    acknowledged: list[int] = []
    deadline = time.monotonic() + patience()
    while not until():
        assert time.monotonic() < deadline, producer.backlog.errors
        acknowledged += [one.records for one in producer.pump(0.1)]
    return acknowledged


def _numbers(target: FaultyCluster, topic: str) -> list[int]:
    values = [one.value or b"" for one in consume_all(target.kafka, topic)]
    return [int(value.split()[0]) for value in values if _MARK in value]


@pytest.mark.parametrize(
    "arrives", [True, pytest.param(False, marks=pytest.mark.more)], ids=["it arrived", "it did not"]
)
def test_a_batch_in_doubt_that_its_topic_then_refuses_arrives_once(target, topic_name, arrives):
    create_topic(target.kafka, topic_name, 1, replication=NODES)
    tp = TopicPartition(topic_name, 0)
    client = ClusterClient("T", target.proxied_servers, "doubt", retry_backoff_ms=50)
    producer = Producer(ClusterConnections(client, [topic_name]), ProduceSettings())
    try:
        producer.backlog.append(tp, _batch(0, 2))  # the first one under a producer id goes alone
        assert _pump(producer, lambda: producer.backlog.idle) == [2]
        for proxy in target.proxies.values():
            proxy.tap = _AnswerLost() if arrives else _refuse
        producer.backlog.append(tp, _batch(2, 10))
        _pump(producer, lambda: "CONNECTION_LOST" in producer.backlog.errors)
        _wait_for(lambda: len(_numbers(target, topic_name)) == (12 if arrives else 2))
        set_topic_config(target.kafka, topic_name, **{"max.message.bytes": str(_LIMIT_BYTES)})
        _wait_for(lambda: _refused(target, topic_name))
        for proxy in target.proxies.values():
            proxy.tap = None
        assert sum(_pump(producer, lambda: producer.backlog.idle)) == 10
        producer.backlog.append(tp, _batch(12, 2))
        assert _pump(producer, lambda: producer.backlog.idle) == [2]
        assert _numbers(target, topic_name) == list(range(14))
        assert (
            "MESSAGE_TOO_LARGE" in producer.backlog.errors
        ) is arrives  # it was refused, and asked for
    finally:
        producer.close()


def _refuse(_number: int, direction: str, chunk: bytes) -> None:
    """A tap: nothing with the mark reaches a broker."""
    if direction == TO_BROKER and _MARK in chunk:
        raise ConnectionError


def _refused(target: FaultyCluster, topic: str) -> bool:
    """Whether the leader has heard of the limit: another writer's large record tells."""
    try:
        produce(target.kafka, topic, [Sent(b"x" * 2 * _LIMIT_BYTES)])
    except (AssertionError, KafkaException) as error:
        return "MSG_SIZE_TOO_LARGE" in str(error) or "too large" in str(error).lower()
    return False


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience()
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
