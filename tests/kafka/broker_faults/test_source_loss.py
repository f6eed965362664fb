"""Data that the source loses before it was mirrored: told with figures, never jumped over."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from sparkmirror.internal_topics.gaps import Gap
from sparkmirror.internal_topics.position_metadata import decode_metadata
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.settings import FaultSettings, FetchSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from tests.kafka.clusters.faults import (
    UNCLEAN,
    Direct,
    FaultyCluster,
    SlotRun,
    leaders,
    wait_in_sync,
)
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import (
    TIMEOUT_S,
    Sent,
    admin,
    consume_all,
    create_topic,
    delete_records,
    delete_topic,
    produce,
)
from tests.patience import patience

CONTINUE = FaultSettings(source_loss="record-and-continue")


@pytest.fixture
def faulty(faulty_clusters: tuple[FaultyCluster, FaultyCluster]) -> FaultyCluster:
    return faulty_clusters[0]


@pytest.fixture
def source(cluster_a: KafkaCluster) -> Direct:
    return Direct(cluster_a)


@pytest.fixture
def target(cluster_b: KafkaCluster) -> Direct:
    return Direct(cluster_b)


def _values(first: int, count: int, partition: int = 0, text: str = "record") -> list[Sent]:
    return [Sent(f"{text} {n}".encode(), partition=partition) for n in range(first, first + count)]


def _await_values(slot: SlotRun, wanted: list[Sent], partition: int = 0) -> None:
    """Until the remote partition holds exactly ``wanted``, in order."""
    deadline = time.monotonic() + patience()
    values = [sent.value for sent in wanted]
    while True:
        found = consume_all(slot.target.kafka, slot.remote)
        got = [record.value for record in found if record.partition == partition]
        if got == values:
            break
        assert got == values[: len(got)], (got, values)
        assert time.monotonic() < deadline, f"{len(got)} of {len(values)}: {slot.halts()}"
        time.sleep(0.2)
    assert slot.failures == []


def _await_gap(slot: SlotRun, count: int = 1) -> Gap:
    """The newest gap record, once there are ``count``."""
    deadline = time.monotonic() + patience()
    while len(found := slot.gaps()) < count:
        assert time.monotonic() < deadline, f"{len(found)} gap records"
        time.sleep(0.2)
    assert len(found) == count, found
    return found[-1]


def _await_halt(slot: SlotRun, partition: int = 0) -> str:
    deadline = time.monotonic() + patience()
    while (halt := slot.halts().get(partition)) is None:
        assert time.monotonic() < deadline, "no halt is reported"
        time.sleep(0.2)
    return f"{halt.code}: {halt.reason}"


def _position(slot: SlotRun) -> tuple[int, str]:
    coordinators = Coordinators(ClusterConnections(slot.flow.target))
    try:
        tp = TopicPartition(slot.remote, 0)
        return coordinators.committed(slot.flow.position_group, [tp])[tp]
    finally:
        coordinators.close()


# -- deleted -----------------------------------------------------------------------------------


def test_deleted_before_it_was_mirrored_stops_that_partition_or_goes_on_with_a_record(
    source, target, topic_name
):
    create_topic(source.kafka, topic_name, 2)
    with SlotRun(source, target, topic_name, 2) as slot:
        produce(source.kafka, topic_name, _values(0, 5) + _values(0, 5, partition=1))
        _await_values(slot, _values(0, 5))
        _await_values(slot, _values(0, 5, 1), 1)
    offset, metadata = _position(slot)
    assert offset == 5
    mark = decode_metadata(metadata).source
    assert len(mark.topic_id) == 36
    assert mark.cluster_id
    assert mark.leader_epoch >= 0
    produce(source.kafka, topic_name, _values(5, 20) + _values(5, 20, partition=1))
    delete_records(source.kafka, topic_name, 0, 15)

    began_ms = int(time.time() * 1000)
    with SlotRun(source, target, topic_name, 2, alias=slot.alias) as slot:
        _await_values(slot, _values(0, 25, 1), 1)  # the other partition goes on
        told = _await_halt(slot)
        assert told.startswith("OFFSETS_DELETED: source offsets 5 to 14 of")
        assert "(10 offsets) were deleted before they were mirrored" in told
        assert slot.errors()["OFFSETS_DELETED"] == 1
        gap = _await_gap(slot)
        assert (gap.action, gap.first, gap.last, gap.count) == ("stopped", 5, 14, 10)
        assert gap.resumed_at is None
        assert gap.time_ms >= began_ms
    assert _position(slot)[0] == 5
    _await_values(slot, _values(0, 5))

    faults = FaultSettings(source_loss_continue=(f"{topic_name}|other",))
    with SlotRun(source, target, topic_name, 2, alias=slot.alias, faults=faults) as slot:
        _await_values(slot, _values(0, 5) + _values(15, 10))
        gap = _await_gap(slot)  # the same gap, so the same key
        assert (gap.kind, gap.action, gap.resumed_at) == ("deleted", "continued", 15)
    assert _position(slot)[0] == 25
    with SlotRun(source, target, topic_name, 2, alias=slot.alias) as slot:
        produce(source.kafka, topic_name, _values(25, 1))
        _await_values(slot, _values(0, 5) + _values(15, 11))
    assert len(slot.gaps()) == 1


@pytest.mark.more
def test_deleted_while_it_is_being_mirrored(faulty, target, topic_name):
    create_topic(faulty.kafka, topic_name, 1)
    client = {"request_timeout_ms": 4_000, "connect_timeout_ms": 1_000}
    with SlotRun(faulty, target, topic_name, client=client, faults=CONTINUE) as slot:
        produce(faulty.kafka, topic_name, _values(0, 5))
        _await_values(slot, _values(0, 5))
        before = sum(proxy.connections for proxy in faulty.proxies.values())
        for proxy in faulty.proxies.values():
            proxy.stall()
        wait_until(
            lambda: sum(proxy.connections for proxy in faulty.proxies.values()) > before,
            "the poll under way is given up",
        )
        produce(faulty.kafka, topic_name, _values(5, 20))
        delete_records(faulty.kafka, topic_name, 0, 22)
        for proxy in faulty.proxies.values():
            proxy.resume()
        _await_values(slot, _values(0, 5) + _values(22, 3))
        gap = _await_gap(slot)
        assert (gap.kind, gap.first, gap.last, gap.count) == ("deleted", 5, 21, 17)


def test_an_exactly_once_flow_writes_the_gap_with_the_position(source, target, topic_name):
    create_topic(source.kafka, topic_name, 1)
    produce(source.kafka, topic_name, _values(0, 5))
    with SlotRun(source, target, topic_name, exactly_once=True) as slot:
        _await_values(slot, _values(0, 5))
    assert decode_metadata(_position(slot)[1]).source.leader_epoch >= 0
    produce(source.kafka, topic_name, _values(5, 10))
    delete_records(source.kafka, topic_name, 0, 8)
    again = {"exactly_once": True, "faults": CONTINUE, "alias": slot.alias}
    with SlotRun(source, target, topic_name, **again) as slot:
        _await_values(slot, _values(0, 5) + _values(8, 7))
        gap = _await_gap(slot)
        assert (gap.first, gap.last, gap.resumed_at) == (5, 7, 8)
    assert _position(slot)[0] == 15


# -- made anew, replaced -----------------------------------------------------------------------


@pytest.mark.parametrize("when", ["stopped", "running"])
def test_a_topic_made_anew_is_told_even_when_its_log_is_longer(source, target, topic_name, when):
    create_topic(source.kafka, topic_name, 1)
    slot = SlotRun(source, target, topic_name, faults=CONTINUE)
    old, new = _values(0, 5), _values(0, 12, text="new")

    def make_anew() -> None:
        delete_topic(source.kafka, topic_name)
        create_topic(source.kafka, topic_name, 1)
        produce(source.kafka, topic_name, new)

    with slot:
        produce(source.kafka, topic_name, old)
        _await_values(slot, old)
        if when == "running":
            make_anew()
            _await_values(slot, old + new)
    if when == "stopped":
        make_anew()
        with SlotRun(source, target, topic_name, alias=slot.alias) as slot:
            told = _await_halt(slot)
            assert told.startswith(f"TOPIC_RECREATED: topic {topic_name} was deleted and recreated")
            assert _await_gap(slot).action == "stopped"
        _await_values(slot, old)
        with SlotRun(source, target, topic_name, alias=slot.alias, faults=CONTINUE) as slot:
            _await_values(slot, old + new)
    gap = _await_gap(slot)
    assert (gap.kind, gap.action, gap.first, gap.count) == ("recreated", "continued", 5, None)
    assert gap.resumed_at == 0
    assert _position(slot)[0] == 12
    with SlotRun(source, target, topic_name, alias=slot.alias) as slot:
        produce(source.kafka, topic_name, _values(12, 1, text="new"))
        _await_values(slot, old + _values(0, 13, text="new"))
    assert len(slot.gaps()) == 1


def test_another_cluster_at_the_sources_addresses(source, faulty, target, topic_name):
    for cluster in (source, faulty):
        create_topic(cluster.kafka, topic_name, 1)
    produce(source.kafka, topic_name, _values(0, 5))
    produce(faulty.kafka, topic_name, _values(0, 8, text="other"))
    with SlotRun(source, target, topic_name) as slot:
        _await_values(slot, _values(0, 5))
    with SlotRun(faulty, target, topic_name, alias=slot.alias) as slot:
        assert _await_halt(slot).startswith("CLUSTER_REPLACED: another cluster is at")
        gap = _await_gap(slot)
        assert (gap.kind, gap.action, gap.first) == ("cluster-replaced", "stopped", 5)
    with SlotRun(faulty, target, topic_name, alias=slot.alias, faults=CONTINUE) as slot:
        _await_values(slot, _values(0, 5) + _values(0, 8, text="other"))


# -- truncated ---------------------------------------------------------------------------------


def test_an_unclean_election_that_truncates_the_log_is_told(faulty, target, topic_name):
    """The new leader's log grows past the position: only leader epochs can tell."""
    create_topic(faulty.kafka, topic_name, 1, replication=2, config=UNCLEAN)
    found = admin(faulty.kafka).list_topics(topic_name, timeout=TIMEOUT_S)
    leader, follower = found.topics[topic_name].partitions[0].replicas
    client = {"request_timeout_ms": 4_000, "connect_timeout_ms": 1_000}
    kept, lost, new = _values(0, 10), _values(10, 10), _values(0, 25, text="new")
    with SlotRun(faulty, target, topic_name, client=client, faults=CONTINUE) as slot:
        produce(faulty.kafka, topic_name, kept)
        _await_values(slot, kept)
        wait_in_sync(faulty.kafka)
        faulty.kafka.kill(follower)
        produce(faulty.kafka, topic_name, lost)
        _await_values(slot, kept + lost)
        faulty.kafka.kill(leader)
        faulty.kafka.restart(follower)
        deadline = time.monotonic() + patience()
        while leaders(faulty.kafka, topic_name)[0] != follower:
            assert time.monotonic() < deadline, "no unclean election"
            time.sleep(0.2)
        produce(faulty.kafka, topic_name, new)
        _await_values(slot, kept + lost + new)
        gap = _await_gap(slot)
        assert (gap.kind, gap.first, gap.last, gap.count) == ("truncated", 10, 19, 10)
        assert (gap.resumed_at, gap.code) == (10, "LOG_TRUNCATED")
        assert slot.wait_for_error("LOG_TRUNCATED")["LOG_TRUNCATED"] == 1
    faulty.kafka.restart(leader)
    wait_in_sync(faulty.kafka)
    assert _position(slot)[0] == 35


# -- where to begin ----------------------------------------------------------------------------


def test_where_to_begin_without_a_position_is_no_loss(source, target, topic_name):
    create_topic(source.kafka, topic_name, 1)
    produce(source.kafka, topic_name, _values(0, 10))
    delete_records(source.kafka, topic_name, 0, 4)
    with SlotRun(source, target, topic_name) as slot:
        _await_values(slot, _values(4, 6))
        assert slot.gaps() == []
        assert slot.halts() == {}
    none = FetchSettings(auto_offset_reset="none")
    with SlotRun(source, target, topic_name, fetch=none) as slot:
        assert "auto.offset.reset=none" in _await_halt(slot)
    assert slot.failures == []
    latest = FetchSettings(auto_offset_reset="latest")
    with SlotRun(source, target, topic_name, fetch=latest) as slot:
        wait_until(lambda: bool(slot.reports()), "the first report")
    assert _position(slot)[0] == 10  # "latest" means the same after a restart
    produce(source.kafka, topic_name, _values(10, 3))
    with SlotRun(source, target, topic_name, fetch=latest, alias=slot.alias) as slot:
        _await_values(slot, _values(10, 3))


def test_mirrormaker_1_positions_carry_the_leader_epoch(source, target, topic_name):
    create_topic(source.kafka, topic_name, 1)
    produce(source.kafka, topic_name, _values(0, 5))
    mode = {"mode": MirrorMode.MM1, "group_id": f"{topic_name}-group"}
    with SlotRun(source, target, topic_name, **mode) as slot:
        _await_values(slot, _values(0, 5))
    tp = TopicPartition(topic_name, 0)
    with closing(Coordinators(ClusterConnections(slot.flow.source))) as coordinators:
        one = coordinators.positions(slot.flow.position_group, [tp])[tp]
    assert (one.offset, one.metadata) == (5, "")
    assert one.leader_epoch >= 0
    produce(source.kafka, topic_name, _values(5, 5))
    delete_records(source.kafka, topic_name, 0, 7)
    mode["faults"] = CONTINUE
    with SlotRun(source, target, topic_name, alias=slot.alias, **mode) as slot:
        _await_values(slot, _values(0, 5) + _values(7, 3))
        assert (_await_gap(slot).first, _await_gap(slot).last) == (5, 6)
