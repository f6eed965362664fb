"""What the target had acknowledged and lost: found, told with figures, and mirrored again."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from sparkmirror.control.positions import seed_positions
from sparkmirror.control.topics import Assignment
from sparkmirror.demo.clusters import KafkaCluster
from sparkmirror.model import FaultSettings, OffsetSyncSettings, TopicPartition
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.gaps import Gap
from sparkmirror.wire.marks import decode_target
from sparkmirror.wire.routes import Routes
from sparkmirror.wire.runs import runs_topic
from tests.kafka.faults import (
    UNCLEAN,
    Direct,
    FaultyCluster,
    SlotRun,
    leaders,
    move_leaders,
    wait_in_sync,
)
from tests.kafka.mirror_process import wait_until
from tests.kafka.support import (
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

SYNCS = OffsetSyncSettings(enabled=True, location="target", replication_factor=1)
MODES = pytest.mark.parametrize(
    "exactly_once", [False, True], ids=["at-least-once", "exactly-once"]
)


@pytest.fixture
def faulty(faulty_clusters: tuple[FaultyCluster, FaultyCluster]) -> FaultyCluster:
    return faulty_clusters[1]


@pytest.fixture
def source(cluster_a: KafkaCluster) -> Direct:
    return Direct(cluster_a)


@pytest.fixture
def target(cluster_b: KafkaCluster) -> Direct:
    return Direct(cluster_b)


def _values(first: int, count: int) -> list[bytes]:
    return [b"record %d" % n for n in range(first, first + count)]


def _produce(kafka: KafkaCluster, topic: str, values: list[bytes]) -> None:
    produce(kafka, topic, [Sent(value, partition=0) for value in values])


def _at_target(slot: SlotRun) -> list[bytes | None]:
    return [record.value for record in consume_all(slot.target.kafka, slot.remote)]


def _await_values(slot: SlotRun, wanted: list[bytes]) -> None:
    """Until the remote topic holds exactly ``wanted``, in order."""
    deadline = time.monotonic() + patience()
    while (found := _at_target(slot)) != wanted:
        assert time.monotonic() < deadline, (found, wanted, slot.halts(), slot.failures)
        time.sleep(0.2)


def _await_gaps(slot: SlotRun, count: int = 1) -> list[Gap]:
    wait_until(lambda: len(slot.gaps()) >= count, f"{count} gap records")
    found = slot.gaps()
    assert len(found) == count, found
    return found


def _position(slot: SlotRun) -> tuple[int, str]:
    routes = Routes(slot.flow.target)
    try:
        tp = TopicPartition(slot.remote, 0)
        return routes.committed(slot.flow.position_group, [tp])[tp]
    finally:
        routes.close()


def _make_anew(slot: SlotRun, **config: str) -> None:
    kafka = slot.target.kafka
    delete_topic(kafka, slot.remote)
    create_topic(kafka, slot.remote, 1, replication=len(kafka.node_ids), config=config)


def _seed(slot: SlotRun) -> dict[TopicPartition, int]:
    """Take over what Connect's offset storage has, as a run does when it starts."""
    with closing(Cluster(slot.flow.target)) as cluster:
        assignment = Assignment(slot.flow.name, slot.partitions)
        return dict(seed_positions(cluster, slot.flow, assignment).seeded)


def _slot(source: Any, target: Any, topic: str, *, runs: bool = True, **options: Any) -> SlotRun:
    if runs:
        options["offset_syncs"] = SYNCS
    slot = SlotRun(source, target, topic, **options)
    if runs and "alias" not in options:
        for name in (runs_topic(slot.flow), f"mm2-offset-syncs.{slot.alias}.internal"):
            config = {"cleanup.policy": "compact"}
            replication = len(target.kafka.node_ids)
            create_topic(target.kafka, name, 1, replication=replication, config=config)
    return slot


# -- made anew ---------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("runs", [True, False], ids=["runs", "no-runs"])
def test_a_remote_topic_made_anew_while_the_mirror_stood_still(
    source, target, topic_name, exactly_once, runs
):
    """Its positions went with it, and Connect's storage names a place in mid-log."""
    create_topic(source.kafka, topic_name, 1)
    _produce(source.kafka, topic_name, _values(0, 60))
    options = {"exactly_once": exactly_once, "runs": runs}
    with _slot(source, target, topic_name, **options) as slot:
        _await_values(slot, _values(0, 60))
    _make_anew(slot)
    assert _seed(slot) == {TopicPartition(topic_name, 0): 60}
    _produce(source.kafka, topic_name, _values(60, 3))

    with _slot(source, target, topic_name, alias=slot.alias, **options) as slot:
        _await_values(slot, _values(0, 63))
        (gap,) = _await_gaps(slot)
        kind = "target-recreated" if runs else "target-truncated"
        assert (gap.kind, gap.action, gap.first, gap.last) == (kind, "repaired", 0, 59)
        assert (gap.count, gap.resumed_at) == (60, 0)
        assert slot.errors()[gap.code] == 1
    assert slot.failures == []
    position, metadata = _position(slot)
    assert (position, decode_target(metadata).begin) == (63, 0)
    assert len(decode_target(metadata).topic_id) == 36


@pytest.mark.parametrize(
    ("choice", "action", "resumed_at"),
    [("fail", "stopped", None), ("record-and-continue", "continued", 10)],
)
def test_the_choice_is_each_topics_own(source, target, topic_name, choice, action, resumed_at):
    create_topic(source.kafka, topic_name, 1)
    _produce(source.kafka, topic_name, _values(0, 10))
    with _slot(source, target, topic_name) as slot:
        _await_values(slot, _values(0, 10))
    _make_anew(slot)
    _seed(slot)
    _produce(source.kafka, topic_name, _values(10, 3))
    lists = {f"target_loss_{choice.split('-')[-1]}": (f"other|{topic_name}",)}
    again = {"alias": slot.alias, "faults": FaultSettings(**lists)}
    for _ in range(2):  # what was told once is not told as another loss later
        with _slot(source, target, topic_name, **again) as slot:
            (gap,) = _await_gaps(slot)
            assert (gap.kind, gap.action, gap.first) == ("target-recreated", action, 0)
            assert (gap.last, gap.resumed_at) == (9, resumed_at)
            if choice == "fail":
                wait_until(lambda: 0 in slot.halts(), "a halt")
                assert slot.halts()[0].code == "TARGET_RECREATED"
                assert _at_target(slot) == []
            else:
                _await_values(slot, _values(10, 3))


def test_what_the_source_no_longer_has_is_told_and_passed(source, target, topic_name):
    create_topic(source.kafka, topic_name, 1)
    _produce(source.kafka, topic_name, _values(0, 10))
    with _slot(source, target, topic_name) as slot:
        _await_values(slot, _values(0, 10))
    _make_anew(slot)
    _seed(slot)
    delete_records(source.kafka, topic_name, 0, 4)
    with _slot(source, target, topic_name, alias=slot.alias) as slot:
        _await_values(slot, _values(4, 6))
        gone, healed = _await_gaps(slot, 2)
        assert (gone.action, gone.first, gone.last) == ("continued", 0, 3)
        assert (healed.action, healed.first, healed.last) == ("repaired", 4, 9)
    assert slot.failures == []


# -- no loss -----------------------------------------------------------------------------------


@MODES
def test_records_deleted_at_the_target_are_no_loss(source, target, topic_name, exactly_once):
    """DeleteRecords and retention move the start of the log, not its end."""
    create_topic(source.kafka, topic_name, 1)
    _produce(source.kafka, topic_name, _values(0, 10))
    options = {"exactly_once": exactly_once}
    with _slot(source, target, topic_name, **options) as slot:
        _await_values(slot, _values(0, 10))
    end = TopicPartition(slot.remote, 0)
    with closing(Cluster(slot.flow.target)) as cluster:
        shrunk = cluster.end_offsets([end], "read_uncommitted")[end]
    delete_records(target.kafka, slot.remote, 0, shrunk)
    _produce(source.kafka, topic_name, _values(10, 3))
    with _slot(source, target, topic_name, alias=slot.alias, **options) as slot:
        _await_values(slot, _values(10, 3))
    assert slot.gaps() == []
    assert _position(slot)[0] == 13


# -- truncated ---------------------------------------------------------------------------------


def _lose(slot: SlotRun, faulty: FaultyCluster, wanted: list[bytes], *, seen: bool = False) -> None:
    """Mirror ``wanted`` with the follower down, then make the follower the leader.

    ``seen``: after a look has seen in which leader epoch the log reaches so far.
    """
    leader, follower = _replicas(slot, faulty)
    faulty.kafka.kill(follower)
    _produce(slot.source.kafka, slot.topic, wanted)
    all_of_them = [record.value for record in consume_all(slot.source.kafka, slot.topic)]
    _await_values(slot, all_of_them)
    if seen:
        wait_until(
            lambda: decode_target(_position(slot)[1]).epoch_offset == len(all_of_them),
            "a look at the target's log",
        )
    slot.drain()
    faulty.kafka.kill(leader)
    faulty.kafka.restart(follower)
    wait_until(lambda: leaders(faulty.kafka, slot.remote)[0] == follower, "an unclean election")


def _replicas(slot: SlotRun, faulty: FaultyCluster) -> list[int]:
    found = admin(faulty.kafka).list_topics(slot.remote, timeout=TIMEOUT_S)
    return list(found.topics[slot.remote].partitions[0].replicas)


def _recover(faulty: FaultyCluster, leader: int) -> None:
    faulty.kafka.restart(leader)
    wait_in_sync(faulty.kafka)


CLIENT = {"request_timeout_ms": 4_000, "connect_timeout_ms": 1_000}


@MODES
@pytest.mark.parametrize("runs", [True, False], ids=["runs", "no-runs"])
def test_an_unclean_election_at_the_target_while_the_mirror_stood_still(
    source, faulty, topic_name, exactly_once, runs
):
    create_topic(source.kafka, topic_name, 1)
    options = {"exactly_once": exactly_once, "runs": runs, "client": CLIENT}
    slot = _slot(source, faulty, topic_name, **options)
    delete_topic(faulty.kafka, slot.remote)
    create_topic(faulty.kafka, slot.remote, 1, replication=2, config=UNCLEAN)
    leader, _ = _replicas(slot, faulty)
    with slot:
        _produce(source.kafka, topic_name, _values(0, 20))
        _await_values(slot, _values(0, 20))
        _lose(slot, faulty, _values(20, 10))
    assert _at_target(slot) == _values(0, 20)
    _produce(source.kafka, topic_name, _values(30, 5))
    with _slot(source, faulty, topic_name, alias=slot.alias, **options) as slot:
        _await_values(slot, _values(0, 35))
        (gap,) = _await_gaps(slot)
        assert (gap.kind, gap.action) == ("target-truncated", "repaired")
        assert (gap.first, gap.last, gap.count, gap.resumed_at) == (20, 29, 10, 20)
        assert slot.failures == []
    _recover(faulty, leader)
    _await_values(slot, _values(0, 35))
    assert slot.gaps() == [gap]


def test_a_log_that_others_filled_again_is_told_by_the_leader_epoch(source, faulty, topic_name):
    create_topic(source.kafka, topic_name, 1)
    slot = _slot(source, faulty, topic_name, client=CLIENT)
    delete_topic(faulty.kafka, slot.remote)
    create_topic(faulty.kafka, slot.remote, 1, replication=2, config=UNCLEAN)
    leader, _ = _replicas(slot, faulty)
    with slot:
        _produce(source.kafka, topic_name, _values(0, 20))
        _await_values(slot, _values(0, 20))
        _lose(slot, faulty, _values(20, 10), seen=True)
    others = [b"other %d" % n for n in range(15)]
    _produce(faulty.kafka, slot.remote, others)
    with _slot(source, faulty, topic_name, alias=slot.alias, client=CLIENT) as slot:
        _await_values(slot, _values(0, 20) + others + _values(20, 10))
        (gap,) = _await_gaps(slot)
        assert (gap.kind, gap.first, gap.last, gap.resumed_at) == ("target-truncated", 20, 29, 20)
    _recover(faulty, leader)


# -- while the mirror runs ---------------------------------------------------------------------


@MODES
def test_a_remote_topic_made_anew_while_the_mirror_runs(source, target, topic_name, exactly_once):
    """What at-least-once wrote to the new log before it saw that stays where it is, once."""
    create_topic(source.kafka, topic_name, 1)
    _produce(source.kafka, topic_name, _values(0, 30))
    with _slot(source, target, topic_name, exactly_once=exactly_once) as slot:
        _await_values(slot, _values(0, 30))
        _make_anew(slot)
        _produce(source.kafka, topic_name, _values(30, 5))
        wait_until(lambda: len(_at_target(slot)) >= 35, "all records")
        (gap,) = _await_gaps(slot)
        assert (gap.kind, gap.action) == ("target-recreated", "repaired")
        assert (gap.first, gap.resumed_at) == (0, 0)
        assert [type(error).__name__ for error in slot.failures] == ["PartitionError"]
    found = _at_target(slot)
    assert sorted(found) == sorted(_values(0, 35))
    if exactly_once or found[0] == b"record 0":
        assert found == _values(0, 35)
    assert _position(slot)[0] == 35


@MODES
def test_an_unclean_election_at_the_target_while_the_mirror_runs(
    source, faulty, topic_name, exactly_once
):
    create_topic(source.kafka, topic_name, 1)
    options = {"exactly_once": exactly_once, "client": CLIENT}
    slot = _slot(source, faulty, topic_name, **options)
    delete_topic(faulty.kafka, slot.remote)
    create_topic(faulty.kafka, slot.remote, 1, replication=2, config=UNCLEAN)
    leader, follower = _replicas(slot, faulty)
    with slot:
        _produce(source.kafka, topic_name, _values(0, 20))
        _await_values(slot, _values(0, 20))
        faulty.kafka.kill(follower)
        _produce(source.kafka, topic_name, _values(20, 10))
        _await_values(slot, _values(0, 30))
        faulty.kafka.kill(leader)
        faulty.kafka.restart(follower)
        wait_until(lambda: leaders(faulty.kafka, slot.remote)[0] == follower, "an election")
        _produce(source.kafka, topic_name, _values(30, 5))
        _await_values(slot, _values(0, 35))
        (gap,) = _await_gaps(slot)
        assert (gap.kind, gap.action) == ("target-truncated", "repaired")
        assert (gap.first, gap.last, gap.resumed_at) == (20, 29, 20)
    _recover(faulty, leader)


@MODES
def test_leaders_that_move_at_the_target_lose_nothing(source, faulty, topic_name, exactly_once):
    create_topic(source.kafka, topic_name, 1)
    with _slot(source, faulty, topic_name, exactly_once=exactly_once, client=CLIENT) as slot:
        for count in range(0, 30, 10):
            _produce(source.kafka, topic_name, _values(count, 10))
            _await_values(slot, _values(0, count + 10))
            move_leaders(faulty.kafka, slot.remote)
        _produce(source.kafka, topic_name, _values(30, 10))
        _await_values(slot, _values(0, 40))
        assert slot.failures == []
    assert slot.gaps() == []
