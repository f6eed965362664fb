"""The end of a transaction that a partition was never told, on real brokers.

Kafka 4.3 leaves the marker out for a partition that has no leader when a transaction ends,
whichever way it ends. What is open there is decided by the next marker of the same producer id, so
a writer has to find and close it before it writes anything of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from sparkmirror.data.coordination.fencing import fence_plan
from sparkmirror.data.coordination.hanging_transactions import close_all
from sparkmirror.errors import Fenced
from sparkmirror.internal_topics.commands import AssignmentDocument
from sparkmirror.internal_topics.flow_claims import transactional_id
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.produce.slot_fencing import fence_slots
from sparkmirror.wire.produce.transactions import Transactions
from tests.kafka.clusters.faults import NODES, SlotRun, check_mirrored, leaders, wait_in_sync
from tests.kafka.harness.support import Sent, create_topic, produce
from tests.patience import patience

HOUR_MS = 3_600_000
IMPATIENT = {"request_timeout_ms": 3_000, "connect_timeout_ms": 1_000}
# Only a drain ends a transaction.
HELD = {
    "client": IMPATIENT,
    "replicas": [[1], [2], [3]],
    "exactly_once": True,
    "transaction_interval_ms": HOUR_MS,
    "position_interval_ms": HOUR_MS,
    "transaction_timeout_ms": 600_000,
}
LOST, OTHER = 0, 1
# Of all records: none repeats another one.
_VALUES = itertools.count()


def _until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + patience()
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


def _written(slot: SlotRun, partition: int) -> int:
    """Records in a partition's log, whatever their fate will be."""
    consumer = Consumer(
        {
            "bootstrap.servers": slot.target.kafka.bootstrap_servers,
            "group.id": f"written-{slot.alias}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
        }
    )
    consumer.assign([TopicPartition(slot.remote, partition, 0)])
    count, deadline = 0, time.monotonic() + patience()
    with contextlib.closing(consumer):
        while True:
            assert time.monotonic() < deadline, f"no end of partition {partition}"
            for message in consumer.consume(100, timeout=0.2):
                if message.error() is not None:
                    return count
                count += 1


def _send(slot: SlotRun, partition: int, count: int) -> None:
    values = itertools.islice(_VALUES, count)
    records = [Sent(b"%d" % value, partition=partition) for value in values]
    produce(slot.source.kafka, slot.topic, records)


@contextlib.contextmanager
def _broker_away(slot: SlotRun) -> Iterator[None]:
    """While the only replica of partition `LOST` is away."""
    slot.target.kafka.terminate(LOST + 1)
    _until(
        lambda: leaders(slot.target.kafka, slot.remote)[LOST] < 0,
        lambda: leaders(slot.target.kafka, slot.remote),
    )
    try:
        yield
    finally:
        slot.target.kafka.restart(LOST + 1)
        wait_in_sync(slot.target.kafka)


def _fence(slot: SlotRun) -> None:
    """Another writer comes: what is open is aborted."""
    connections = ClusterConnections(slot.flow.target)
    transactions = Transactions(connections, transactional_id(slot.flow, 0), timeout_ms=60_000)
    try:
        transactions.fence()
    finally:
        transactions.close()
        connections.close()


def _checked(slot: SlotRun) -> None:
    check_mirrored(slot.source.kafka, slot.topic, slot.target.kafka, slot.remote)


@pytest.mark.long
def test_what_was_aborted_without_a_marker_never_counts(source, target, topic_name):
    create_topic(source.kafka, topic_name, NODES, replication=NODES)
    with SlotRun(source, target, topic_name, NODES, **HELD) as slot:
        _send(slot, LOST, 6)
        _until(lambda: _written(slot, LOST) == 6, slot.reports)
        with _broker_away(slot):
            _fence(slot)
            _send(slot, OTHER, 3)  # the old writer finds that it is fenced, and the next begins
            _until(lambda: _written(slot, OTHER) == 3, slot.reports)
        _until(lambda: _written(slot, LOST) == 12, slot.reports)
        slot.drain()
        _checked(slot)
        assert len(slot.failures) == 1, slot.failures


@pytest.mark.more
@pytest.mark.parametrize(
    "closed_by",
    [
        pytest.param("the next slot", marks=pytest.mark.long),
        "the next slot, fenced",
        "the planner",
    ],
)
def test_what_was_committed_without_a_marker_counts(source, target, topic_name, closed_by):
    create_topic(source.kafka, topic_name, NODES, replication=NODES)
    first = SlotRun(source, target, topic_name, NODES, **HELD)
    with first:
        _send(first, LOST, 6)
        _until(lambda: _written(first, LOST) == 6, first.reports)
        with _broker_away(first):
            first.drain()
            if closed_by == "the next slot, fenced":
                _fence(first)
    assert first.failures == []
    if closed_by == "the planner":
        identities = fence_slots(first.flow, 1)
        close_all(first.flow, identities, [one.target for one in first.partitions])
        _checked(first)
        return
    with SlotRun(source, target, topic_name, NODES, alias=first.alias, **HELD) as again:
        _checked(first)  # the six count before anything else is written
        _send(again, LOST, 4)
        _until(lambda: _written(again, LOST) == 10, again.reports)
        again.drain()
        _checked(again)
    assert again.failures == []


@pytest.mark.more
def test_a_partition_that_changes_its_slot_is_closed_for_the_next_one(source, target, topic_name):
    """By the planner: at once, or before a later epoch when the partition has a leader again."""
    create_topic(source.kafka, topic_name, NODES, replication=NODES)
    with SlotRun(source, target, topic_name, NODES, **HELD) as old:
        plan = AssignmentDocument(old.flow.name, old.run_id, 1, old.partitions)
        _send(old, LOST, 6)
        _send(old, OTHER, 3)
        _until(lambda: (_written(old, LOST), _written(old, OTHER)) == (6, 3), old.reports)
        with _broker_away(old):
            assert not fence_plan(old.flow, old.run_id, None, plan)
        # What is open has another producer id: it cannot count, but it hides what comes after it.
        with SlotRun(source, target, topic_name, NODES, alias=old.alias, slot=1, **HELD) as new:
            _until(lambda: (_written(new, LOST), _written(new, OTHER)) == (12, 6), new.reports)
            new.drain()
        # Before each epoch until it is done, as a busy broker needs more time.
        _until(lambda: fence_plan(old.flow, old.run_id, None, plan), old.reports)
        _checked(old)
        # The old one is in the middle of its transaction: all that it still does is refused.
        assert old.failures == []
    assert [type(error) for error in old.failures] == [Fenced]
    assert new.failures == []
    _checked(old)
