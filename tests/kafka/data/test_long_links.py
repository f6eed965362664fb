"""A long link: to the target batches that wait are joined, from the source further channels open.

Nothing else changes.

At the level of one slot: no Spark, real brokers behind proxies that hold every chunk back.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from sparkmirror.cli.main import main
from sparkmirror.data.write import held_back
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.internal_topics.commands import COMMAND_PARTITION, control_topic
from sparkmirror.model import TopicPartition
from sparkmirror.offset_reset import LATEST
from sparkmirror.records.codecs import GZIP, LZ4, NAMES, NONE, SNAPPY, ZSTD
from sparkmirror.records.header import CODEC_MASK, CONTROL_BIT
from sparkmirror.settings import FaultSettings, FetchSettings, ProduceSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from sparkmirror.wire.fetch.channels import Channel
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.produce.topic_limits import TopicLimits
from tests.kafka.clusters.faults import (
    NODES,
    FaultyCluster,
    Load,
    SlotRun,
    check_mirrored,
    leaders,
    move_leaders,
)
from tests.kafka.harness.mirror_process import stored, wait_until
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    contents,
    create_topic,
    produce,
    produce_transaction,
    set_topic_config,
    wait_until_equal,
)
from tests.patience import patience

# Each way. Answers take 50 ms, what a link between two regions takes.
DELAY_S = 0.025
DAY_MS = 24 * 60 * 60 * 1000
ALWAYS = ProduceSettings(link_joining="always")


@pytest.fixture
def far_source(source: FaultyCluster) -> Iterator[FaultyCluster]:
    for proxy in source.proxies.values():
        proxy.delay_s = DELAY_S
    yield source
    source.heal()


@pytest.fixture
def far(target: FaultyCluster) -> Iterator[FaultyCluster]:
    for proxy in target.proxies.values():
        proxy.delay_s = DELAY_S
    yield target
    target.heal()


# One mode of two; `make long` runs the other.
EXACT = pytest.mark.parametrize("exact", [pytest.param(False, marks=pytest.mark.long), True])
AT_LEAST = pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.long)])


def _records(count: int) -> list[Sent]:
    now_ms = int(time.time() * 1000)  # what is older than retention is deleted meanwhile
    return [
        Sent(
            # What does not get smaller librdkafka leaves uncompressed.
            random.randbytes(600) + b"." * 200,
            b"key-%d" % (n % 50),
            headers=(("n", b"%d" % n),) if n % 3 == 0 else (),
            timestamp_ms=now_ms - 7 * n - 500 * (n % 2),
        )
        for n in range(count)
    ]


def _fill(source: FaultyCluster, topic: str) -> None:
    """Batches of some 6 KB, in transactions and not, of two codecs."""
    create_topic(source.kafka, topic, 1, replication=NODES)
    batches = {"batch.num.messages": 10}
    produce(source.kafka, topic, _records(3_000), compression="lz4", config=batches)
    for commit in (False, True):
        produce_transaction(
            source.kafka, topic, _records(300), commit=commit, compression="lz4", config=batches
        )
    produce(source.kafka, topic, _records(300), config=batches)


def _equal(slot: SlotRun) -> bool:
    wanted = contents(consume_all(slot.source.kafka, slot.topic))
    return contents(consume_all(slot.target.kafka, slot.remote)) == wanted


def _until_equal(slot: SlotRun) -> None:
    wait_until_equal(slot.source.kafka, slot.topic, slot.target.kafka, slot.remote)


def _position(slot: SlotRun) -> int:
    coordinators = Coordinators(ClusterConnections(slot.flow.target))
    tp = TopicPartition(slot.remote, 0)
    try:
        found = coordinators.committed(slot.flow.position_group, [tp], stable=True)
        return found.get(tp, (-1, ""))[0]
    finally:
        coordinators.close()


@EXACT
def test_batches_that_wait_are_joined(source, far, topic_name, exact):
    _fill(source, topic_name)
    began = time.monotonic()
    with SlotRun(source, far, topic_name, exactly_once=exact) as slot:
        _until_equal(slot)
        took_s = time.monotonic() - began
        slot.drain()
        assert slot.failures == []
    sent = [one for one in stored(source.kafka, topic_name) if not one.has(CONTROL_BIT)]
    assert len(sent) > 380
    arrived = [one for one in stored(far.kafka, slot.remote) if not one.has(CONTROL_BIT)]
    assert sum(one.count for one in arrived) == 3_600
    assert len(arrived) < len(sent) / 2, f"{took_s:.1f} s"
    joined = slot.reports()[-1].joined
    assert len(sent) / 2 < joined.batches < len(sent)
    assert joined.bytes_in > joined.bytes_out > 0
    assert joined.cpu_s > 0
    # All records, the aborted ones as well, and two markers.
    assert _position(slot) == 3_900 + 2


@pytest.mark.more
def test_a_broker_that_is_a_hundred_times_slower_keeps_only_its_own_partitions_waiting(
    source, far, topic_name, monkeypatch
):
    """With the bound of what may wait an eighth of the real one, and so many records less."""
    monkeypatch.setattr(held_back, "UNACKNOWLEDGED_BYTES_MAX", 4 << 20)
    create_topic(source.kafka, topic_name, 3, replication=NODES)
    sent = [Sent(random.randbytes(1_000), partition=n % 3) for n in range(36_000)]
    produce(source.kafka, topic_name, sent)
    for number, proxy in far.proxies.items():
        proxy.delay_s = 1.0 if number == 1 else 0.01  # 64 KiB each time: 6,000 take 90 s
    patient = {"request_timeout_ms": 120_000}
    with SlotRun(source, far, topic_name, 3, replicas=[[1], [2], [3]], client=patient) as slot:
        connections = ClusterConnections(slot.flow.target, {slot.remote})
        tps = [TopicPartition(slot.remote, number) for number in range(3)]

        def ends() -> list[int]:
            found = connections.list_offsets(tps, LATEST, read_committed=False)
            return [found[tp] for tp in tps]

        try:
            connections.refresh()
            wait_until(lambda: ends()[1:] == [12_000] * 2, "all that does not go through it")
            assert ends()[0] < 6_000, "it would have held them back"
        finally:
            connections.close()
        for proxy in far.proxies.values():
            proxy.delay_s = 0.0
        _until_equal(slot)
        slot.drain()
        assert slot.failures == []


@AT_LEAST
def test_joined_batches_in_doubt_arrive_once(source, far, topic_name, exact):
    _fill(source, topic_name)
    with SlotRun(source, far, topic_name, exactly_once=exact, produce=ALWAYS) as slot:
        slot.wait_until_mirroring()
        with Load(source.kafka, topic_name, 1) as load:
            number = 0
            deadline = time.monotonic() + patience()
            while number < 8 or "CONNECTION_LOST" not in slot.errors():
                assert time.monotonic() < deadline, (slot.errors(), slot.failures)
                for proxy in far.proxies.values():
                    (proxy.cut if number % 2 else proxy.reset)()
                load.wait_for(20)
                number += 1
        _until_equal(slot)
        slot.drain()
        assert slot.failures == []
    assert slot.errors()["CONNECTION_LOST"] > 0
    assert slot.reports()[-1].joined.batches > 100


class _Killed(Exception):
    """Stands for SIGKILL: nothing more is sent."""


@pytest.mark.long
def test_a_sink_that_dies_within_a_joined_batch_goes_on_at_the_exact_record(
    source, far, topic_name, monkeypatch, caplog
):
    """Batches are joined across the ends of responses, and so across positions."""
    caplog.set_level("INFO")
    create_topic(source.kafka, topic_name, 1, replication=NODES)
    produce(source.kafka, topic_name, _records(20_000), config={"batch.num.messages": 10})
    left, begun, original = [4], dict[int, int](), SlotSink._housekeep

    def housekeep(self: SlotSink) -> None:
        for lane in self._task.lanes.values():
            # What it began with is at a batch's end. Later commits may lie within one.
            first = begun.setdefault(id(self), lane.committed)
            if left[0] and lane.position > lane.committed > max(0, first):
                left[0] -= 1
                raise _Killed
        original(self)

    monkeypatch.setattr(SlotSink, "_housekeep", housekeep)
    options = {
        # Three batches in a response, and eight in what is joined, which so ends within responses.
        "produce": replace(ALWAYS, join_bytes=0, request_bytes_max=70_000),
        "fetch": FetchSettings(partition_fetch_bytes_max=30_000),
        "position_interval_ms": 200,
    }
    with SlotRun(source, far, topic_name, **options) as slot:
        deadline = time.monotonic() + patience()
        while left[0]:
            assert time.monotonic() < deadline, slot.failures
            produce(source.kafka, topic_name, _records(200), config={"batch.num.messages": 10})
        wait_until(
            lambda: _equal(slot) or "others may have written" in caplog.text,
            "the target holds the same records",
        )
        slot.drain()
        assert _equal(slot)
        assert [type(error) for error in slot.failures] == [_Killed] * 4
    assert slot.reports()[-1].joined.batches > 100
    assert "records after the committed position" in caplog.text
    assert "others may have written" not in caplog.text


@EXACT
@pytest.mark.parametrize("side", [pytest.param("source", marks=pytest.mark.more), "target"])
def test_what_waits_for_a_half_open_link_arrives_once(far_source, far, topic_name, side, exact):
    """Nothing passes and nobody is told. What was under way arrives after its repetition."""
    create_topic(far_source.kafka, topic_name, 1, replication=NODES)
    quick = {"request_timeout_ms": 3_000, "connect_timeout_ms": 1_000}
    with SlotRun(
        far_source, far, topic_name, exactly_once=exact, produce=ALWAYS, client=quick
    ) as slot:
        proxies = (far_source if side == "source" else far).proxies.values()
        with Load(far_source.kafka, topic_name, 1, per_s=1_000) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            before = sum(proxy.connections for proxy in proxies)
            for proxy in proxies:
                proxy.stall()
            wait_until(
                lambda: sum(proxy.connections for proxy in proxies) > before + 2,
                "connections are given up and made anew",
            )
            for proxy in proxies:
                proxy.resume()
            load.wait_for(100)
        ends = far_source.kafka, topic_name, far.kafka, slot.remote
        check_mirrored(*ends, load.acknowledged)
        slot.drain()
        assert slot.failures == []


@pytest.mark.more
def test_a_transaction_waits_for_a_broker_that_is_ten_times_slower(source, far, topic_name, caplog):
    """All partitions of the slot wait for that broker; nothing is aborted for that."""
    create_topic(source.kafka, topic_name, 3, replication=NODES)
    sent = [Sent(random.randbytes(1_000), partition=n % 3) for n in range(6_000)]
    produce(source.kafka, topic_name, sent)
    for number, proxy in far.proxies.items():
        proxy.delay_s = 0.1 if number == 1 else 0.01
    alone = [[1], [2], [3]]
    with SlotRun(source, far, topic_name, 3, replicas=alone, exactly_once=True) as slot:
        _until_equal(slot)
        slot.drain()
        assert slot.failures == []
    assert "the transaction is aborted" not in caplog.text
    assert "CONNECTION_LOST" not in slot.errors()


@AT_LEAST
def test_a_refused_record_in_a_joined_batch_is_left_out_alone(source, target, topic_name, exact):
    create_topic(source.kafka, topic_name, 1, replication=NODES)
    good = [Sent(b"good %d" % n, b"k") for n in range(40)]
    bad = Sent(b"too old", b"k", timestamp_ms=int(time.time() * 1000) - 2 * DAY_MS)
    for number in range(0, 40, 4):
        produce(source.kafka, topic_name, good[number : number + 4])
        if number == 20:
            produce(source.kafka, topic_name, [bad])
    apart = ProduceSettings(link_joining="always", join_bytes=0)
    skip = FaultSettings(bad_record="skip")
    slot = SlotRun(source, target, topic_name, produce=apart, faults=skip, exactly_once=exact)
    set_topic_config(target.kafka, slot.remote, **{"message.timestamp.before.max.ms": f"{DAY_MS}"})
    with slot:
        wanted = [one.value for one in good]
        wait_until(
            lambda: [one.value for one in consume_all(target.kafka, slot.remote)] == wanted,
            "the good ones arrive in order",
        )
        slot.drain()
        assert slot.failures == []
    assert slot.reports()[-1].joined.batches > 0
    assert [(gap.first, gap.last) for gap in slot.gaps()] == [(24, 24)]
    assert slot.errors()["RECORD_SKIPPED"] == 1
    assert _position(slot) == 41


@pytest.mark.more
@EXACT
def test_what_a_topic_does_not_accept_joined_it_gets_in_parts(
    source, far, topic_name, exact, monkeypatch
):
    """Its limit is lowered while it is mirrored: nothing is left out, and nothing comes twice."""
    refused: list[int] = []
    learn = TopicLimits.refused

    def learning(self: TopicLimits, topic: str, size: int) -> None:
        refused.append(size)
        learn(self, topic, size)

    monkeypatch.setattr(TopicLimits, "refused", learning)
    _fill(source, topic_name)
    with SlotRun(source, far, topic_name, exactly_once=exact, produce=ALWAYS) as slot:
        _until_equal(slot)
        set_topic_config(far.kafka, slot.remote, **{"max.message.bytes": "30000"})
        batches = {"batch.num.messages": 10}
        # While nothing passes, batches wait, so they are joined, however slowly they come.
        for proxy in far.proxies.values():
            proxy.stall()
        produce(source.kafka, topic_name, _records(3_000), compression="lz4", config=batches)
        for proxy in far.proxies.values():
            proxy.resume()
        _until_equal(slot)
        slot.drain()
        assert slot.failures == []
    assert refused
    assert min(refused) > 30_000
    assert slot.gaps() == []
    assert _position(slot) == 6_900 + 2


@pytest.mark.long
@EXACT
def test_what_a_topic_accepts_is_still_known_in_the_next_epoch(
    source, far, topic_name, exact, monkeypatch
):
    """No batch of it is too large, although exactly-once has another producer by then."""
    refused: list[int] = []
    learn = TopicLimits.refused

    def learning(self: TopicLimits, topic: str, size: int) -> None:
        refused.append(size)
        learn(self, topic, size)

    monkeypatch.setattr(TopicLimits, "refused", learning)
    _fill(source, topic_name)
    ways: dict[str, Any] = {"exactly_once": exact, "produce": ALWAYS}
    with SlotRun(
        source, far, topic_name, remote_config={"max.message.bytes": "30000"}, **ways
    ) as slot:
        _until_equal(slot)
        slot.drain()
        assert slot.failures == []
    refused.clear()
    batches = {"batch.num.messages": 10}
    produce(source.kafka, topic_name, _records(3_000), compression="lz4", config=batches)
    with SlotRun(source, far, topic_name, alias=slot.alias, **ways) as again:
        _until_equal(again)
        again.drain()
        assert again.failures == []
    assert refused == []
    assert again.reports()[-1].joined.batches > 1_000 / 10


@pytest.mark.more
@AT_LEAST
def test_batches_are_joined_to_what_the_topic_accepts(source, far, topic_name, exact):
    create_topic(source.kafka, topic_name, 1, replication=NODES)
    sent = [Sent(random.randbytes(1_000)) for _ in range(12_000)]
    produce(source.kafka, topic_name, sent, config={"batch.num.messages": 10})
    large = {"max.message.bytes": str(8 << 20)}
    with SlotRun(
        source,
        far,
        topic_name,
        exactly_once=exact,
        produce=ALWAYS,
        remote_config=large,
    ) as slot:
        wait_until(lambda: _position(slot) == 12_000, "the position is at the end")
        assert _equal(slot)
        slot.drain()
        assert slot.failures == []
    assert max(one.size for one in stored(far.kafka, slot.remote)) > 1_100_000


@pytest.mark.more
@EXACT
def test_joined_batches_have_the_codec_of_the_link(source, far, topic_name, exact):
    """A slot for each codec, at the same time."""
    create_topic(source.kafka, topic_name, 1, replication=NODES)
    lines = [Sent(b"line %d, and more of the same " % n * 20, b"%d" % n) for n in range(1_500)]
    produce(source.kafka, topic_name, lines, config={"batch.num.messages": 10})
    slots = {
        kind: SlotRun(
            source, far, topic_name, exactly_once=exact,
            produce=replace(ALWAYS, link_compression=NAMES[kind], join_bytes=0),
        )
        for kind in (GZIP, SNAPPY, LZ4, ZSTD)
    }  # fmt: skip
    with ExitStack() as running:
        for slot in slots.values():
            running.enter_context(slot)
        for slot in slots.values():
            _until_equal(slot)
            slot.drain()
            assert slot.failures == []
    for kind, slot in slots.items():
        arrived = [one for one in stored(far.kafka, slot.remote) if not one.has(CONTROL_BIT)]
        joined = slot.reports()[-1].joined
        assert joined.batches > 100, NAMES[kind]
        assert joined.bytes_out < joined.bytes_in / 3, NAMES[kind]
        records: Counter[int] = Counter()
        for one in arrived:
            records[one.attributes & CODEC_MASK] += one.count
        assert records.keys() <= {NONE, kind}
        assert records[kind] > 1_000, NAMES[kind]


def test_a_source_broker_that_pauses_in_its_answer_keeps_only_its_own_partitions_waiting(
    source, target, topic_name
):
    alone = {"min.insync.replicas": "1"}
    create_topic(source.kafka, topic_name, config=alone, replicas=[[1], [2], [3]])
    produce(source.kafka, topic_name, [Sent(random.randbytes(1_000), partition=0)] * 4_000)
    slow = source.proxies[1]
    slow.delay_s = 1.0  # for each 64 KiB: one answer takes about a minute
    before = slow.bytes_to_client
    with SlotRun(source, target, topic_name, 3, client={"request_timeout_ms": 120_000}) as slot:
        connections = ClusterConnections(slot.flow.target, {slot.remote})
        tps = [TopicPartition(slot.remote, number) for number in range(3)]

        def ends() -> list[int]:
            found = connections.list_offsets(tps, LATEST, read_committed=False)
            return [found[tp] for tp in tps]

        try:
            connections.refresh()
            wait_until(
                lambda: slow.bytes_to_client > before + 400_000, "an answer that is on its way"
            )
            few = [Sent(b"small", partition=1 + n % 2) for n in range(30)]
            produce(source.kafka, topic_name, few)
            wait_until(lambda: ends()[1:] == [15, 15], "what does not come from that broker")
            assert ends()[0] == 0, "its answer came whole first"
        finally:
            connections.close()
        source.heal()
        _until_equal(slot)
        slot.drain()
        assert slot.failures == []


@pytest.mark.more
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_broker_that_is_silent_in_the_handshake_keeps_only_its_own_partitions_waiting(
    source, target, topic_name, side
):
    """With the time that connecting may take by default: ten seconds."""
    alone = [[1], [2], [3]]
    create_topic(source.kafka, topic_name, config={"min.insync.replicas": "1"}, replicas=alone)
    with SlotRun(source, target, topic_name, 3, replicas=alone, append_time=True) as slot:
        hit = source if side == "source" else target
        # Without the leader of its commands a slot asks the source for nothing more.
        commands = leaders(target.kafka, control_topic(slot.flow))[COMMAND_PARTITION]
        victim = 1 if hit is source or commands != 1 else 2
        with Load(source.kafka, topic_name, 3) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            since_ms = int(time.time() * 1000)  # before, records waited for the slot's start
            hit.proxies[victim].stall()
            hit.proxies[victim].reset()
            time.sleep(20)
            hit.proxies[victim].resume()
        check_mirrored(source.kafka, topic_name, target.kafka, slot.remote, load.acknowledged)
        assert slot.failures == []
        delays_s = slot.delays_s(since_ms)
    assert delays_s.pop(victim - 1) > 15
    # An attempt to connect lasts for ten seconds: kept waiting by one they would take as long.
    assert max(delays_s.values()) < 9, delays_s


@pytest.mark.more
@EXACT
@pytest.mark.parametrize(
    "reads",
    [
        pytest.param(1, id="leader"),
        pytest.param(2, id="follower in our rack", marks=pytest.mark.long),
    ],
)
def test_a_far_broker_is_read_over_several_connections(
    far_source, target, topic_name, reads, exact, monkeypatch
):
    """In order and once, also where all of them break on the way. ``reads``: whom."""
    partitions = 4
    replicas = [sorted({1, reads})] * partitions
    create_topic(
        far_source.kafka, topic_name, config={"min.insync.replicas": "1"}, replicas=replicas
    )
    records = [one._replace(partition=n % partitions) for n, one in enumerate(_records(4_000))]
    produce(far_source.kafka, topic_name, records, config={"batch.num.messages": 10})
    used: set[Channel] = set()
    send = Fetcher._send_to

    def sending(self: Fetcher, channel: Channel, *arguments: Any, **ways: Any) -> bool:
        if self.connections.client.alias != "T":
            used.add(channel)
        return send(self, channel, *arguments, **ways)

    monkeypatch.setattr(Fetcher, "_send_to", sending)
    rack = f"rack-{reads}"
    small = FetchSettings(
        fetch_max_bytes=40_000, partition_fetch_bytes_max=10_000, client_rack=rack
    )
    with SlotRun(
        far_source, target, topic_name, partitions, fetch=small, exactly_once=exact
    ) as slot:
        wait_until(lambda: used >= {(reads, 0), (reads, 1), (reads, 2)}, "all channels are used")
        far_source.proxies[reads].reset()
        _until_equal(slot)
        slot.drain()
        assert slot.failures == []


def _trickle(cluster: KafkaCluster, topic: str, partitions: int, seconds: float) -> None:
    """100 records/s, each in a batch of its own."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
    began = time.monotonic()
    number = 0
    while (passed_s := time.monotonic() - began) < seconds:
        while number < 100 * passed_s:  # a sleep may take longer than it says
            producer.produce(
                topic, value=b"%d" % number + b"." * 500, partition=number % partitions
            )
            producer.poll(0)
            number += 1
        time.sleep(0.01)
    assert producer.flush(60) == 0


def _values(slot: SlotRun) -> bool:
    """As `_equal`, where the target's timestamps are its own."""
    wanted = [one.value for one in consume_all(slot.source.kafka, slot.topic)]
    return [one.value for one in consume_all(slot.target.kafka, slot.remote)] == wanted


def _median_s(slot: SlotRun) -> float:
    """Time from a record's creation to its append at the target."""
    created = consume_all(slot.source.kafka, slot.topic)
    appended = consume_all(slot.target.kafka, slot.remote)
    delays_ms = [b.timestamp_ms - a.timestamp_ms for a, b in zip(created, appended, strict=True)]
    return statistics.median(delays_ms[len(delays_ms) // 3 :]) / 1000


@pytest.mark.long  # where the processors are busy, they decide about latency, and not the link
@pytest.mark.parametrize("exact", [False, True])
def test_records_of_a_far_source_take_one_way(far_source, target, topic_name, exact):
    """Beside a slot that has one request per partition, with the same load at the same time."""
    create_topic(far_source.kafka, topic_name, 1, replication=NODES)
    common: dict[str, Any] = {"append_time": True, "exactly_once": exact}
    with (
        SlotRun(far_source, target, topic_name, **common) as slot,
        SlotRun(
            far_source, target, topic_name, fetch=FetchSettings(reread_bytes=0), **common
        ) as single,
    ):
        _trickle(far_source.kafka, topic_name, 1, 0.1)
        slot.wait_until_mirroring()
        single.wait_until_mirroring()
        _trickle(far_source.kafka, topic_name, 1, 12)
        wait_until(lambda: _values(slot) and _values(single), "the target holds the same records")
        for one in (slot, single):
            one.drain()
            assert one.failures == []
    assert _median_s(slot) < 0.8 * _median_s(single)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("reset", marks=pytest.mark.more),
        pytest.param("cut", marks=pytest.mark.long),
        pytest.param("stall", marks=pytest.mark.long),
        "leader",
        pytest.param("follower", marks=pytest.mark.more),
    ],
)
def test_faults_while_several_requests_wait(far_source, target, topic_name, fault, monkeypatch):
    """A slot of each mode, at the same time."""
    create_topic(
        far_source.kafka, topic_name, config={"min.insync.replicas": "1"}, replicas=[[1, 2, 3]]
    )
    helped: dict[str, set[Channel]] = defaultdict(set)
    send = Fetcher._send_to

    def sending(self: Fetcher, channel: Channel, *arguments: Any, **ways: Any) -> bool:
        if ways.get("helps") is not None:
            helped[self.connections.client.alias].add(channel)
        return send(self, channel, *arguments, **ways)

    monkeypatch.setattr(Fetcher, "_send_to", sending)
    quick = {"request_timeout_ms": 3_000, "connect_timeout_ms": 1_000}
    near = FetchSettings(client_rack="rack-2" if fault == "follower" else "")
    slots = [
        SlotRun(far_source, target, topic_name, exactly_once=exact, client=quick, fetch=near)
        for exact in (False, True)
    ]
    with ExitStack() as running:
        for slot in slots:
            running.enter_context(slot)
        _trickle(far_source.kafka, topic_name, 1, 0.1)
        for slot in slots:
            slot.wait_until_mirroring()
        deadline = time.monotonic() + patience()

        def helping() -> bool:
            channels = [set(helped[slot.alias]) for slot in slots]
            at_follower = fault != "follower" or all(2 in {n for n, _ in one} for one in channels)
            return at_follower and all(len(one) > 2 for one in channels)

        while not helping():
            assert time.monotonic() < deadline, dict(helped)
            _trickle(far_source.kafka, topic_name, 1, 1)
        proxies = far_source.proxies.values()
        if fault == "follower":
            far_source.proxies[2].reset()
        elif fault == "leader":
            helped.clear()
            moved = set(move_leaders(far_source.kafka, topic_name).values())
        else:
            for proxy in proxies:
                getattr(proxy, fault)()
        _trickle(far_source.kafka, topic_name, 1, 5)
        for proxy in proxies:
            proxy.resume()
        _trickle(far_source.kafka, topic_name, 1, 2)
        for slot in slots:
            while fault == "leader" and not {n for n, _ in set(helped[slot.alias])} >= moved:
                assert time.monotonic() < deadline, dict(helped)
                _trickle(far_source.kafka, topic_name, 1, 1)
            _until_equal(slot)
            slot.drain()
            assert slot.failures == []


def test_the_doctor_measures_both_links_and_says_what_to_expect(
    far_source, far, topic_name, tmp_path, capsys, monkeypatch
):
    """One way takes 25 ms at least: a small request takes 50 ms and more."""
    # A broker that pauses for some seconds is a finding of its own.
    monkeypatch.setattr("sparkmirror.doctor.examine._REQUEST_MS_MAX", 9_000)
    create_topic(far_source.kafka, topic_name, 1, replication=NODES)
    path = tmp_path / "mm2.properties"
    path.write_text(
        "clusters = A, B\nA->B.enabled = true\n"
        f"A->B.topics = {topic_name}\n"
        f"A.bootstrap.servers = {','.join(far_source.proxied_servers)}\n"
        f"B.bootstrap.servers = {','.join(far.proxied_servers)}\n"
    )
    main(["doctor", str(path), "--format", "json"])
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    found: dict[str, list[dict[str, str]]] = {"source": [], "target": []}
    for side in found:
        found[side] = [one for one in flow["findings"] if one["subject"].endswith(f"the {side}")]
    for side, findings in found.items():
        trip = next(one for one in findings if one["check"] == "round-trip")
        measured = re.fullmatch(
            r"a round trip takes [0-9.]+ to ([0-9.]+) ms, the longest one to broker \d+",
            trip["found"],
        )
        assert measured is not None
        trip_ms = float(measured[1])
        assert trip_ms >= 2_000 * DELAY_S
        buffers = next(one for one in findings if one["check"] == "socket-buffers")
        assert "102,400 bytes on 3 of 3 brokers" in buffers["found"]
        assert f"over a round trip of {trip_ms:.1f} ms" in buffers["found"]
        bytes_per_trip = 4 << 20 if side == "source" else 5 * 16 * 1024
        expected = re.search(r"Expect (?:at most )?([0-9.]+) MB/s", trip["do"])
        assert expected is not None
        assert float(expected[1]) == pytest.approx(
            bytes_per_trip / trip_ms / 1000, rel=0.1, abs=0.6 if side == "source" else 0.06
        )
