"""Brokers that stall on open connections: their own partitions wait, and all else goes on.

As in `test_broker_faults`, one slot runs against real brokers behind proxies. What goes on is
counted while the broker stalls, for as long as that takes; no connection may be given up for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest

from sparkmirror.errors import PartitionError
from sparkmirror.internal_topics.commands import COMMAND_PARTITION, control_topic
from sparkmirror.internal_topics.flow_claims import transactional_id
from sparkmirror.model import TopicPartition
from sparkmirror.offset_reset import LATEST
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from sparkmirror.wire.cluster.messages import GROUP, TRANSACTION
from sparkmirror.wire.net.connection import ConnectionLost
from tests.kafka.clusters.faults import (
    FaultyCluster,
    Load,
    SlotRun,
    check_mirrored,
    elect_preferred,
    leaders,
)
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import create_topic
from tests.patience import patience

ALONE = [[1], [2], [3]]
# So many records more reach each of the other partitions while a broker stalls.
MORE = 100
# Longer than any of these tests stalls a broker, so that no connection is given up.
PATIENT = {"request_timeout_ms": 120_000}


class Target:
    """What the target holds, asked past the proxies."""

    def __init__(self, slot: SlotRun) -> None:
        self._slot = slot
        servers = tuple(slot.target.kafka.bootstrap_servers.split(","))
        client = replace(slot.flow.target, bootstrap_servers=servers)
        self._connections = ClusterConnections(client, {slot.remote})
        self._coordinators = Coordinators(self._connections)
        self._tps = {one.partition: TopicPartition(slot.remote, one.partition)
                     for one in slot.partitions}  # fmt: skip

    def ends(self, *, committed: bool = False) -> dict[int, int]:
        """Where each partition ends, or where its first open transaction begins."""
        self._connections.refresh_if_due()
        found = self._connections.list_offsets(self._tps.values(), LATEST, read_committed=committed)
        return {number: found.get(tp, 0) for number, tp in self._tps.items()}

    def grow(self, numbers: set[int]) -> None:
        """Wait until each of ``numbers`` holds `MORE` records more than now."""
        before = self.ends()

        def grown() -> bool:
            now = self.ends()
            return all(now[number] >= before[number] + MORE for number in numbers)

        wait_until(grown, f"partitions {numbers} go on; {self._slot.state()}")

    def position(self, number: int) -> int:
        """The committed position of a partition, -1 for none."""
        tp = self._tps[number]
        found = self._coordinators.committed(self._slot.flow.position_group, [tp])
        return found.get(tp, (-1, ""))[0]

    def coordinator(self, key: str, kind: int) -> int:
        """The node id of a coordinator; the first lookup has the brokers choose it."""
        found: list[int] = []

        def known() -> bool:
            with suppress(PartitionError, ConnectionLost):
                found.append(self._coordinators.find(key, kind, _unknown)[1])
            return bool(found)

        wait_until(known, f"a coordinator of {key}")
        kafka = self._slot.target.kafka
        servers = kafka.bootstrap_servers.split(",")
        by_port = {
            int(one.rpartition(":")[2]): node
            for node, one in zip(kafka.node_ids, servers, strict=True)
        }
        return by_port[found[0]]

    def close(self) -> None:
        self._coordinators.close()


def _unknown(code: int) -> Exception:
    return PartitionError(f"no coordinator ({code})")


@contextmanager
def _loaded(slot: SlotRun, there: Target) -> Iterator[None]:
    """The slot under load. Afterwards everything must have arrived, and nothing failed."""
    with slot:
        with Load(slot.source.kafka, slot.topic, 3) as load:
            slot.wait_until_mirroring()
            yield
            there.grow({0, 1, 2})
        ends = slot.source.kafka, slot.topic, slot.target.kafka, slot.remote
        check_mirrored(*ends, load.acknowledged)
    assert slot.failures == []
    assert "CONNECTION_LOST" not in slot.errors()


def _slot(
    source: FaultyCluster, target: FaultyCluster, topic: str, *, exact: bool = False
) -> SlotRun:
    return SlotRun(source, target, topic, 3, replicas=ALONE, client=PATIENT, exactly_once=exact)


def _control(slot: SlotRun) -> dict[int, int]:
    return leaders(slot.target.kafka, control_topic(slot.flow))


def _not(node: int) -> int:
    """Another broker than ``node``: without the leader of its commands a slot fetches nothing."""
    return 1 if node != 1 else 2


@pytest.fixture
def topic(source: FaultyCluster, topic_name: str) -> str:
    """Each partition has one replica, on a broker of its own."""
    create_topic(source.kafka, topic_name, config={"min.insync.replicas": "1"}, replicas=ALONE)
    return topic_name


@pytest.mark.parametrize("side", ["source", pytest.param("target", marks=pytest.mark.long)])
def test_a_broker_that_stalls_in_its_answer(source, target, topic, side):
    slot = _slot(source, target, topic)
    with closing(Target(slot)) as there, _loaded(slot, there):
        hit = source if side == "source" else target
        victim = _not(_control(slot)[COMMAND_PARTITION])
        others = {0, 1, 2} - {victim - 1}
        hit.proxies[victim].stall_behind(10)
        wait_until(lambda: hit.proxies[victim].stalled, "an answer is cut")
        there.grow(others)
        before = there.ends()
        there.grow(others)
        assert there.ends()[victim - 1] == before[victim - 1]
        hit.proxies[victim].resume()


def test_a_coordinator_of_positions_that_stalls_holds_back_positions_only(source, target, topic):
    for _ in range(8):  # the coordinator depends on the flow's name
        slot = _slot(source, target, topic)
        with closing(Target(slot)) as there:
            victim = there.coordinator(slot.flow.position_group, GROUP)
            if victim == _control(slot)[COMMAND_PARTITION]:
                continue
            with _loaded(slot, there):
                others = {0, 1, 2} - {victim - 1}
                healthy = min(others)
                target.proxies[victim].stall()
                there.grow(others)
                before = there.position(healthy)
                there.grow(others)
                assert there.position(healthy) == before, "positions wait"
                target.proxies[victim].resume()
                wait_until(lambda: there.position(healthy) > before, "positions move again")  # noqa: B023
            return
    pytest.fail("all names have the leader of the commands as their coordinator")


@pytest.mark.more
def test_while_a_coordinator_of_transactions_stalls_the_slot_reports(source, target, topic):
    """A transaction ends for all of a slot's partitions together, so these wait."""
    slot = _slot(source, target, topic, exact=True)
    with closing(Target(slot)) as there:
        there.coordinator(transactional_id(slot.flow, 0), TRANSACTION)  # then the topic is there
        elect_preferred(target.kafka, "__transaction_state")
        needed = _control(slot).values()
        victims = ((n, there.coordinator(transactional_id(slot.flow, n), TRANSACTION))
                   for n in range(30))  # fmt: skip
        number, victim = next((n, node) for n, node in victims if node not in needed)
        slot._plan = replace(slot._plan, slot=number)
        with _loaded(slot, there):
            target.proxies[victim].stall()
            count = len(slot.reports())
            wait_until(lambda: len(slot.reports()) > count, "it reports")
            # The markers of the transaction before may still be written.
            before = there.ends(committed=True)
            time.sleep(1.5)
            deadline = time.monotonic() + patience()
            while (now := there.ends(committed=True)) != before:
                assert time.monotonic() < deadline, "transactions still end"
                before = now
                time.sleep(1.5)
            count = len(slot.reports())
            wait_until(lambda: len(slot.reports()) >= count + 2, "it reports again")
            assert there.ends(committed=True) == before, "no transaction ends meanwhile"
            target.proxies[victim].resume()
