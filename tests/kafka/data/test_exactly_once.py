"""Exactly-once, one slot at a time: no Spark, real brokers, an independent read_committed reader.

Each test lets something go wrong between two commits and then checks that the target has every
record of the source, in order, none twice.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from sparkmirror.data.write.exactly_once import ExactlyOnce
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.errors import Fenced, TooSlow
from sparkmirror.internal_topics.commands import COMMAND_PARTITION, control_topic
from sparkmirror.internal_topics.flow_claims import Claim, encode_claim, transactional_id
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import TopicPartition
from sparkmirror.records.header import TRANSACTIONAL_BIT
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ProduceSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from sparkmirror.wire.produce.producer import Producer
from sparkmirror.wire.produce.transactions import Transactions
from tests.kafka.clusters.faults import (
    NODES,
    FaultyCluster,
    Load,
    SlotRun,
    by_partition,
    check_mirrored,
    leaders,
    move_leaders,
    tell,
    wait_in_sync,
)
from tests.kafka.harness.mirror_process import stored
from tests.kafka.harness.support import (
    TIMEOUT_S,
    Received,
    Sent,
    consume_all,
    create_topic,
    produce,
    send_all,
    set_topic_config,
    transactional_producer,
)
from tests.patience import patience

PARTITIONS = 3


def _topic(source: FaultyCluster, name: str, partitions: int = PARTITIONS) -> str:
    create_topic(source.kafka, name, partitions, replication=NODES)
    return name


def _exact(source: FaultyCluster, target: FaultyCluster, topic: str, **options: Any) -> SlotRun:
    return SlotRun(source, target, topic, PARTITIONS, exactly_once=True, **options)


def _checked(slot: SlotRun, load: Load | None = None, *, timeout_s: float | None = None) -> int:
    acknowledged = None if load is None else load.acknowledged
    ends = slot.source.kafka, slot.topic, slot.target.kafka, slot.remote
    return check_mirrored(*ends, acknowledged, timeout_s=timeout_s)


def _positions(slot: SlotRun) -> dict[TopicPartition, int]:
    coordinators = Coordinators(ClusterConnections(slot.flow.target))
    wanted = [TopicPartition(slot.remote, number) for number in range(PARTITIONS)]
    try:
        found = coordinators.committed(slot.flow.position_group, wanted, stable=True)
    finally:
        coordinators.close()
    return {tp: offset for tp, (offset, _) in found.items()}


# -- brokers -----------------------------------------------------------------------------------


@pytest.mark.more
def test_leaders_and_coordinators_move_in_mid_transaction(source, target, topic_name):
    topic = _topic(source, topic_name)
    with _exact(source, target, topic) as slot:
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            moves = [(source, topic), (target, slot.remote)]
            moves += [(target, "__transaction_state"), (target, "__consumer_offsets")]
            for moved, name in moves:
                move_leaders(moved.kafka, name)
                load.wait_for(100)
        count = _checked(slot, load)
        assert slot.failures == []
        slot.drain()
    # Positions and records are one: after the end they say the same.
    assert sum(_positions(slot).values()) == count


@pytest.mark.more
def test_a_broker_of_the_target_is_killed_and_comes_back(source, target, topic_name):
    topic = _topic(source, topic_name)
    with _exact(source, target, topic) as slot:
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            victim = leaders(target.kafka, slot.remote)[0]
            target.kafka.kill(victim)
            load.wait_for(300)
            target.kafka.restart(victim)
            load.wait_for(100)
            wait_in_sync(target.kafka)
        _checked(slot, load)
        assert slot.failures == []


@pytest.mark.long
def test_a_slow_way_to_the_target_takes_smaller_transactions(source, target, topic_name):
    """What the source has at once would take several times as long as a transaction may."""
    topic = _topic(source, topic_name)
    records = [
        Sent(random.randbytes(8_000), partition=number % PARTITIONS) for number in range(375)
    ]
    # A batch goes as a whole: as most producers write them, not a megabyte each.
    produce(source.kafka, topic, records, config={"batch.num.messages": 4})
    for proxy in target.proxies.values():
        proxy.bytes_per_s = 100_000 / len(target.proxies)  # for the slot: 100 KB/s
    with _exact(source, target, topic, transaction_timeout_ms=10_000) as slot:
        count = _checked(slot)
        assert slot.failures == []
        slot.drain()
    assert sum(_positions(slot).values()) == count == len(records)


@pytest.mark.more
def test_connections_are_cut_again_and_again(source, target, topic_name):
    topic = _topic(source, topic_name)
    with _exact(source, target, topic) as slot:
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(50)
            slot.wait_until_mirroring()
            for number in range(10):
                for proxy in target.proxies.values():
                    proxy.delay_s = 0.01 * (number % 3)
                    (proxy.cut if number % 2 else proxy.reset)()
                load.wait_for(30)
        _checked(slot, load)
        assert slot.failures == []
        assert "CONNECTION_LOST" in slot.errors()


def test_coordinators_move_while_a_transaction_is_open(source, target, topic_name):
    """What it began under one coordinator it ends under another, as a whole."""
    topic = _topic(source, topic_name)
    hour_ms = 3_600_000
    held = {
        "transaction_interval_ms": hour_ms,
        "position_interval_ms": hour_ms,
        "transaction_timeout_ms": 600_000,
    }
    with _exact(source, target, topic, **held) as slot:
        for moved in (False, True):
            if moved:
                for name in ("__transaction_state", "__consumer_offsets", slot.remote):
                    move_leaders(target.kafka, name)
            wanted = 600 if moved else 300
            produce(source.kafka, topic, [Sent(b"%d" % n, partition=n % 3) for n in range(300)])
            _wait_for(
                lambda wanted=wanted: len(_written(slot)) == wanted,
                "all of it is written",
            )
            assert consume_all(target.kafka, slot.remote) == []
        slot.drain()
        assert slot.failures == []
        found = by_partition(consume_all(target.kafka, slot.remote))
        assert found == by_partition(consume_all(source.kafka, topic))
    assert sum(_positions(slot).values()) == 600


def test_the_target_aborts_a_transaction_that_takes_too_long(
    source, target, topic_name, monkeypatch
):
    """The writer stands still until its coordinator has given the transaction up; then it goes on.

    What was aborted is written again, and once: the positions were a part of it.
    """
    topic = _topic(source, topic_name)
    slot = _exact(source, target, topic, transaction_timeout_ms=1_000)
    held: list[Transactions] = []
    original = Transactions.commit

    def commit(self: Transactions) -> None:
        if self.members and not held:
            held.append(self)
            slot.flow = replace(slot.flow, transaction_timeout_ms=60_000)  # of the next attempts
            _wait_until_decided(slot)
        original(self)

    monkeypatch.setattr(Transactions, "commit", commit)
    with slot:
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(400)
            _wait_for(lambda: bool(slot.failures), "the writer hears of it")
            load.wait_for(100)
        count = _checked(slot, load)
        slot.drain()
    assert {type(error) for error in slot.failures} == {TooSlow}  # not another writer
    assert "longer than transaction.timeout.ms (1000 ms)" in str(slot.failures[-1])
    assert sum(_positions(slot).values()) == count
    assert len(_written(slot)) > count


def _written(slot: SlotRun) -> list[Received]:
    """What the remote topic holds, aborted or not."""
    return consume_all(slot.target.kafka, slot.remote, isolation="read_uncommitted")


def _wait_until_decided(slot: SlotRun) -> None:
    """Until no transaction is open any more in what was written to the remote topic."""
    remote = [TopicPartition(slot.remote, number) for number in range(PARTITIONS)]
    cluster = Cluster(slot.flow.target)

    def decided() -> bool:
        ends = cluster.end_offsets(remote)
        return any(ends.values()) and cluster.end_offsets(remote, "read_committed") == ends

    try:
        _wait_for(decided, "the coordinator gives the transaction up")
    finally:
        cluster.close()


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + patience()
    while not condition():
        assert time.monotonic() < deadline, f"not so: {what}"
        time.sleep(0.2)


# -- the writer dies ---------------------------------------------------------------------------


class _Killed(Exception):
    """Stands for SIGKILL: nothing more is sent."""


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("before the records", marks=pytest.mark.more),
        pytest.param("before", marks=pytest.mark.more),
        "after the positions",
        "after",
    ],
)
def test_the_writer_dies_at_the_end_of_a_transaction(
    source, target, topic_name, monkeypatch, moment
):
    """Around EndTxn; the processes themselves are killed in tests/faults."""
    topic = _topic(source, topic_name)
    original = Transactions.commit
    left = [3]

    def commit(self: Transactions) -> None:
        if left[0] and self.members:
            left[0] -= 1
            if moment == "after":
                original(self)
            raise _Killed
        original(self)

    def add_offsets(self: Transactions, group: str, offsets: Any, unknown: Any) -> Any:
        if left[0] and moment == "before":
            left[0] -= 1
            raise _Killed
        return original_offsets(self, group, offsets, unknown)

    def add(self: Transactions, partitions: Any) -> Any:
        if left[0] and moment == "before the records":
            left[0] -= 1
            raise _Killed
        return original_add(self, partitions)

    original_offsets, original_add = Transactions.add_offsets, Transactions.add
    monkeypatch.setattr(Transactions, "add_offsets", add_offsets)
    monkeypatch.setattr(Transactions, "add", add)
    if moment.startswith("after"):
        monkeypatch.setattr(Transactions, "commit", commit)
    with _exact(source, target, topic) as slot:
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(400)
            while left[0]:  # a busy machine copies 400 records in two transactions
                load.wait_for(50)
        _checked(slot, load)
        assert [type(error) for error in slot.failures] == [_Killed] * 3


def test_a_zombie_is_fenced(source, target, topic_name):
    topic = _topic(source, topic_name)
    slot = _exact(source, target, topic)
    tp = TopicPartition(slot.remote, 0)
    old = _Writer(slot)
    old.write(tp, b"of the zombie")
    new = _Writer(slot)
    assert new.transactions.identity > old.transactions.identity
    with pytest.raises(Fenced):
        old.write(tp, b"more of the zombie")
    with pytest.raises(Fenced, match="another writer has taken over"):
        old.transactions.add_offsets(slot.flow.position_group, {tp: (7, "")})
    with pytest.raises(Fenced):
        old.transactions.commit()
    new.write(tp, b"of the new one")
    new.transactions.add_offsets(slot.flow.position_group, {tp: (3, "")})
    new.transactions.commit()
    # The markers are written after the answer.
    _wait_for(
        lambda: (
            [one.value for one in consume_all(target.kafka, slot.remote)] == [b"of the new one"]
        ),
        "the record of the new one",
    )
    _wait_for(lambda: _positions(slot) == {tp: 3}, "the position of the new one")
    old.close()
    new.close()


class _Writer:
    """A writer of a slot, without the slot."""

    def __init__(self, slot: SlotRun) -> None:
        connections = ClusterConnections(slot.flow.target, [slot.remote])
        self.transactions = Transactions(
            connections, transactional_id(slot.flow, 0), timeout_ms=60_000
        )
        self.transactions.fence()
        self.producer = Producer(connections, ProduceSettings(), transactions=self.transactions)

    def write(self, tp: TopicPartition, value: bytes) -> None:
        self.producer.backlog.append(
            tp, memoryview(encode_batch([Record(0, 1, None, value)])), "sent"
        )
        deadline = time.monotonic() + patience()
        while not self.producer.pump(0.1):
            assert time.monotonic() < deadline

    def close(self) -> None:
        self.transactions.close()
        self.producer.close()


def test_another_run_takes_over_and_this_one_says_so(source, target, topic_name):
    topic = _topic(source, topic_name)
    secret = "of all that run this flow, in all " * 2
    exact = _exact(source, target, topic, control_secret=secret)
    with exact as slot, Load(source.kafka, topic, PARTITIONS) as load:
        load.wait_for(100)

        def claim(signer: Signer | None) -> None:
            taken = Claim(slot.flow.name, "of-another", 1, "elsewhere")
            tell(target.kafka, slot.flow, encode_claim(taken, signer))

        # Who may write there, and has not the secret, changes nothing.
        claim(None)
        claim(Signer("of somebody else"))
        mirrored = len(consume_all(target.kafka, slot.remote))
        deadline = time.monotonic() + patience()
        while len(consume_all(target.kafka, slot.remote)) < mirrored + 50:
            assert time.monotonic() < deadline
            load.wait_for(10)
        assert slot.failures == []
        claim(Signer(secret))
        deadline = time.monotonic() + patience()
        while len(slot.failures) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        before = len(consume_all(target.kafka, slot.remote))
        load.wait_for(50)
    assert all(isinstance(error, Fenced) for error in slot.failures)
    assert "another sparkmirror (run of-another, host elsewhere)" in str(slot.failures[0])
    assert len(consume_all(target.kafka, slot.remote)) == before


# -- what the target refuses -------------------------------------------------------------------


def test_what_the_target_refuses_takes_nothing_else_with_it(source, target, topic_name, caplog):
    """One record that is too old for the remote topic: all before it and beside it arrive, once.

    The transaction that it was in is aborted and written again without it.
    """
    topic = _topic(source, topic_name)
    limit = "message.timestamp.before.max.ms"
    produce(source.kafka, topic, [Sent(b"%d" % n, partition=n % 3) for n in range(300)])
    with _exact(source, target, topic, epoch_s=6) as slot:
        _checked(slot)
        set_topic_config(target.kafka, slot.remote, **{limit: "3600000"})
        good = [Sent(b"good %d" % n, partition=n % 3) for n in range(3_000)]
        produce(source.kafka, topic, good)
        produce(source.kafka, topic, [Sent(b"too old", timestamp_ms=1_000_000, partition=0)])
        produce(source.kafka, topic, [Sent(b"after %d" % n, partition=n % 3) for n in range(300)])
        wanted = by_partition(consume_all(source.kafka, topic))
        bad = wanted[0].index(b"too old")
        due = {0: wanted[0][:bad], 1: wanted[1], 2: wanted[2]}
        deadline = time.monotonic() + patience()
        while (got := by_partition(consume_all(target.kafka, slot.remote))) != due:
            assert time.monotonic() < deadline, {n: len(got.get(n, ())) for n in due}
            time.sleep(0.3)
        slot.wait_for_error("INVALID_TIMESTAMP")
        assert _positions(slot)[TopicPartition(slot.remote, 0)] == bad
        set_topic_config(target.kafka, slot.remote, **{limit: None})
        _checked(slot)
        assert slot.failures == []
    assert "the transaction is aborted and written again" in caplog.text


# -- what it writes ---------------------------------------------------------------------------


def test_the_sink_writes_only_transactional_batches(source, target, topic_name):
    topic = _topic(source, topic_name)
    with _exact(source, target, topic) as slot:
        assert isinstance(slot._sink()._delivery, ExactlyOnce)
        produce(source.kafka, topic, [Sent(b"%d" % n, partition=n % 3) for n in range(30)])
        _checked(slot)
    # Each transaction left a marker: offsets go further than records do.
    with closing(Cluster(slot.flow.target)) as cluster:
        ends = cluster.end_offsets(
            [TopicPartition(slot.remote, number) for number in range(PARTITIONS)]
        )
    assert all(end > 10 for end in ends.values())


# -- at-least-once, to the record --------------------------------------------------------------


def _crash_sometimes(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Let the sink die between two commits of positions; returns what is left of ``times``."""
    left, original = [times], SlotSink._housekeep
    alive_since = [time.monotonic()]

    def housekeep(self: SlotSink) -> None:
        lanes = self._task.lanes.values()
        moved = any(lane.position > max(0, lane.committed) for lane in lanes)
        # A coordinator that loads may refuse the first commit: without it all is copied again.
        moved = moved and all(lane.committed >= 0 for lane in lanes)
        if left[0] and moved and time.monotonic() - alive_since[0] > 1.5:
            left[0] -= 1
            alive_since[0] = time.monotonic()
            raise _Killed
        original(self)

    monkeypatch.setattr(SlotSink, "_housekeep", housekeep)
    return left


def test_at_least_once_goes_on_at_the_exact_record(source, target, topic_name, monkeypatch, caplog):
    """Positions are a second old when the sink dies; the target's log says what is newer."""
    caplog.set_level("INFO")
    topic = _topic(source, topic_name)
    left = _crash_sometimes(monkeypatch, 3)
    with SlotRun(source, target, topic, PARTITIONS, position_interval_ms=60_000) as slot:
        with Load(source.kafka, topic, PARTITIONS) as load:
            while left[0]:
                load.wait_for(50)
            load.wait_for(100)
        _checked(slot, load)  # none twice
        assert [type(error) for error in slot.failures] == [_Killed] * 3
    assert "records after the committed position" in caplog.text
    assert "arrive again" not in caplog.text


def test_at_least_once_goes_on_behind_markers_and_aborted_data(
    source, target, topic_name, monkeypatch, caplog
):
    """Of a transactional source what is visible is counted, and the logs' last records compared."""
    caplog.set_level("INFO")
    topic = _topic(source, topic_name)
    left = _crash_sometimes(monkeypatch, 3)
    with SlotRun(source, target, topic, PARTITIONS, position_interval_ms=60_000) as slot:
        producer = transactional_producer(source.kafka, f"tx-{topic}")
        numbers, after = itertools.count(), 3
        while left[0] or after:
            after -= not left[0]
            for outcome in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                sent = [
                    Sent(b"%d" % next(numbers), partition=n % PARTITIONS)
                    for n in range(4 * PARTITIONS)
                ]
                send_all(producer, topic, sent)
                outcome(TIMEOUT_S)
        _checked(slot)  # none twice
        assert [type(error) for error in slot.failures] == [_Killed] * 3
    assert "records after the committed position" in caplog.text
    assert "arrive again" not in caplog.text


@pytest.mark.long
def test_what_only_the_leader_has_does_not_come_twice(
    source, target, topic_name, monkeypatch, caplog
):
    """The sink dies while a follower hangs: what it wrote last is there, and nobody can read it."""
    caplog.set_level("INFO")
    topic = _topic(source, topic_name, 1)
    left = _crash_sometimes(monkeypatch, 0)
    options = {
        "position_interval_ms": 60_000,
        "client": {"request_timeout_ms": 10_000, "connect_timeout_ms": 1_000},
        "replicas": [[1, 2, 3]],
    }
    with SlotRun(source, target, topic, 1, **options) as slot:
        with Load(source.kafka, topic, 1) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            # One that the slot needs for nothing else.
            commands = leaders(target.kafka, control_topic(slot.flow))[COMMAND_PARTITION]
            hangs = 2 if commands == 3 else 3
            target.kafka.freeze(hangs)
            try:
                load.wait_for(100)
                left[0] = 1
                while left[0]:
                    load.wait_for(20)
                load.wait_for(400)
            finally:
                target.kafka.thaw(hangs)
        _checked(slot, load)  # none twice
        wait_in_sync(target.kafka)
        assert [type(error) for error in slot.failures] == [_Killed]
    assert "arrive again" not in caplog.text


def test_another_writer_at_the_target_is_noticed(source, target, topic_name, monkeypatch, caplog):
    """Then nobody can say which records are whose: some arrive again, none is lost."""
    caplog.set_level("INFO")
    topic = _topic(source, topic_name)
    left = _crash_sometimes(monkeypatch, 0)
    with SlotRun(source, target, topic, PARTITIONS, position_interval_ms=60_000) as slot:
        with Load(source.kafka, topic, PARTITIONS) as load:
            load.wait_for(50)
            slot.wait_until_mirroring()
            for partition in range(PARTITIONS):
                produce(target.kafka, slot.remote, [Sent(b"foreign", partition=partition)])
            left[0] = 1
            while left[0]:
                load.wait_for(50)
            load.wait_for(100)
        slot.drain()
        got = by_partition(consume_all(target.kafka, slot.remote))
    assert "arrive again: others may have written to the target since" in caplog.text
    for number, values in by_partition(consume_all(source.kafka, topic)).items():
        assert set(values) <= set(got[number])


# -- the mode changes --------------------------------------------------------------------------


def test_a_flow_changes_to_exactly_once_and_back(source, target, topic_name):
    """Each run is drained and the next one goes on at its positions, while records are written."""
    topic = _topic(source, topic_name)
    modes = [False, True, False]
    alias, before = "", [0] * PARTITIONS

    def arrived(slot: SlotRun) -> list[int]:
        positions = _positions(slot)
        return [positions.get(TopicPartition(slot.remote, n), 0) for n in range(PARTITIONS)]

    def more(slot: SlotRun) -> bool:
        return all(now > then for now, then in zip(arrived(slot), before, strict=True))

    with Load(source.kafka, topic, PARTITIONS) as load:
        for exact in modes:
            with SlotRun(
                source, target, topic, PARTITIONS, exactly_once=exact, alias=alias
            ) as slot:
                alias = slot.alias
                load.wait_for(100)
                _wait_for(
                    lambda slot=slot: more(slot),
                    "this run commits positions of each partition, too",
                )
            assert slot.failures == []
            before = arrived(slot)
            # What was drained is at the target, no more and no less.
            assert len(consume_all(target.kafka, slot.remote)) == sum(before)
            load.wait_for(100)  # what nobody mirrors for the moment
        _wait_for(
            lambda: all(len(load.acknowledged.get(n, ())) > at for n, at in enumerate(before)),
            "records of each partition for the last run",
        )
    with SlotRun(source, target, topic, PARTITIONS, exactly_once=True, alias=alias) as slot:
        _checked(slot, load)
    _wait_for(lambda: _modes(slot) == [*modes, True] * PARTITIONS, "each mode wrote as it should")


def _modes(slot: SlotRun) -> list[bool]:
    """Whether the target's batches are transactional, from the beginning of each partition on."""
    batches = stored(slot.target.kafka, slot.remote)
    return [exact for exact, _ in groupby(one.has(TRANSACTIONAL_BIT) for one in batches)]


def test_at_least_once_goes_on_where_an_exactly_once_run_has_died(
    source, target, topic_name, monkeypatch
):
    """Its last transaction stays open, positions in it: it never counts, so all of it is copied."""
    topic = _topic(source, topic_name)
    original, ended = Transactions.commit, [0]
    with ExitStack() as beside:
        load = beside.enter_context(Load(source.kafka, topic, PARTITIONS))
        with _exact(source, target, topic, transaction_timeout_ms=10_000) as slot:

            def commit(self: Transactions) -> None:
                ended[0] += bool(self.members)
                if ended[0] > 5 and self.members:
                    slot._stopping.set()  # nothing starts it again
                    raise _Killed
                original(self)

            monkeypatch.setattr(Transactions, "commit", commit)
            _wait_for(lambda: bool(slot.failures), "it dies")
        assert [type(error) for error in slot.failures] == [_Killed]
        before = len(consume_all(target.kafka, slot.remote))
        assert before < len(_written(slot)), "nothing was open"
        again = SlotRun(source, target, topic, PARTITIONS, alias=slot.alias)
        with again:
            load.wait_for(100)
            beside.close()
            _checked(again, load)
            assert again.failures == []
