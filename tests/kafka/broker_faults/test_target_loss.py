"""What the target had acknowledged and lost: found, told with figures, and mirrored again."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import Any

import pytest

from sparkmirror.control.positions.seeding import seed_positions
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.data.write import target_ends
from sparkmirror.internal_topics.gaps import Gap, gaps_topic
from sparkmirror.internal_topics.position_metadata import decode_metadata
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import TopicPartition
from sparkmirror.records.header import ATTRIBUTES_AT, CONTROL_BIT
from sparkmirror.records.walk import walk_batches
from sparkmirror.settings import FaultSettings, OffsetSyncSettings, ProduceSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from tests.kafka.clusters.faults import (
    UNCLEAN,
    Direct,
    FaultyCluster,
    SlotRun,
    leaders,
    move_leaders,
    wait_in_sync,
)
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    create_topic,
    delete_records,
    delete_topic,
    produce,
    set_topic_config,
)
from tests.patience import patience

SYNCS = OffsetSyncSettings(enabled=True, location="target", replication_factor=1)
MODES = pytest.mark.parametrize(
    "exactly_once",
    [pytest.param(False, marks=pytest.mark.long), True],
    ids=["at-least-once", "exactly-once"],
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
    coordinators = Coordinators(ClusterConnections(slot.flow.target))
    try:
        tp = TopicPartition(slot.remote, 0)
        return coordinators.committed(slot.flow.position_group, [tp])[tp]
    finally:
        coordinators.close()


def _await_position(slot: SlotRun, wanted: int) -> None:
    """Until ``wanted`` is committed: what lies before it is acknowledged.

    Readers see a record a moment earlier than its acknowledgement comes.
    """
    wait_until(lambda: _position(slot)[0] == wanted, f"the position {wanted}")


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
@pytest.mark.parametrize(
    "runs", [True, pytest.param(False, marks=pytest.mark.more)], ids=["runs", "no-runs"]
)
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
    assert (position, decode_metadata(metadata).target.begin) == (63, 0)
    assert len(decode_metadata(metadata).target.topic_id) == 36


@MODES
def test_positions_that_went_with_the_topic_before_they_were_stored_elsewhere(
    source, target, topic_name, exactly_once
):
    """Connect's storage has none of them yet: what the mirror wrote is known by the exact runs."""
    create_topic(source.kafka, topic_name, 1)
    _produce(source.kafka, topic_name, _values(0, 10))
    with _slot(source, target, topic_name, exactly_once=exactly_once) as slot:
        _await_values(slot, _values(0, 10))
    _make_anew(slot)
    _produce(source.kafka, topic_name, _values(10, 3))
    with _slot(source, target, topic_name, alias=slot.alias, exactly_once=exactly_once) as slot:
        _await_values(slot, _values(0, 13))
        (gap,) = _await_gaps(slot)
        assert (gap.kind, gap.action) == ("target-recreated", "repaired")
        assert (gap.first, gap.last, gap.resumed_at) == (0, 9, 0)


@pytest.mark.parametrize(
    ("choice", "action", "resumed_at"),
    [("fail", "stopped", None), ("record-and-continue", "continued", 10)],
)
def test_the_choice_is_each_topics_own(
    source, target, topic_name, choice, action, resumed_at, monkeypatch
):
    look_s = 2.0
    monkeypatch.setattr(target_ends, "_CHECK_INTERVAL_S", look_s / 4)
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
                time.sleep(look_s)
                assert _at_target(slot) == []
                assert 0 in slot.halts()
            else:
                _await_values(slot, _values(10, 3))
        assert slot.failures == []


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


@MODES
def test_a_repair_that_cannot_be_written_down_stops_its_partition_alone(
    source, target, topic_name, exactly_once
):
    create_topic(source.kafka, topic_name, 1)
    _produce(source.kafka, topic_name, _values(0, 10))
    options = {"exactly_once": exactly_once}
    with _slot(source, target, topic_name, **options) as slot:
        _await_values(slot, _values(0, 10))
    _make_anew(slot)
    gaps = gaps_topic(slot.flow)
    set_topic_config(target.kafka, gaps, **{"max.message.bytes": "100"})
    with _slot(source, target, topic_name, alias=slot.alias, **options) as slot:
        wait_until(lambda: 0 in slot.halts(), "a halt")
        assert slot.halts()[0].code == "MESSAGE_TOO_LARGE"
        _produce(source.kafka, topic_name, _values(10, 3))
        time.sleep(8.0)  # retries would be due after 2 s and 4 s
        assert 0 in slot.halts()
        assert _at_target(slot) == []
    assert slot.failures == []
    set_topic_config(target.kafka, gaps, **{"max.message.bytes": None})
    with _slot(source, target, topic_name, alias=slot.alias, **options) as slot:
        _await_values(slot, _values(0, 13))
        (gap,) = _await_gaps(slot)
        assert (gap.kind, gap.action) == ("target-recreated", "repaired")
        assert (gap.first, gap.last, gap.resumed_at) == (0, 9, 0)
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

LEADER, FOLLOWER = 1, 2
"""The brokers of a fragile remote topic; the third one holds none of it."""
CLIENT = {"request_timeout_ms": 4_000, "connect_timeout_ms": 1_000}


def _fragile(source: Any, faulty: FaultyCluster, topic: str, **options: Any) -> SlotRun:
    """A slot whose remote topic a follower may lead that has not all of it."""
    create_topic(source.kafka, topic, 1)
    placed = {"replicas": [[LEADER, FOLLOWER]], "remote_config": UNCLEAN}
    return _slot(source, faulty, topic, client=CLIENT, **placed, **options)


def _mirror_without_the_follower(
    running: ExitStack, faulty: FaultyCluster, slots: list[SlotRun]
) -> None:
    """Begin with ``slots``; their follower has the first 20 records and not the next ten."""
    for slot in slots:
        running.enter_context(slot)
        _produce(slot.source.kafka, slot.topic, _values(0, 20))
    for slot in slots:
        _await_values(slot, _values(0, 20))
    wait_in_sync(faulty.kafka)  # else it may lack some of the first ones
    faulty.kafka.kill(FOLLOWER)
    for slot in slots:
        _produce(slot.source.kafka, slot.topic, _values(20, 10))
    for slot in slots:
        _await_values(slot, _values(0, 30))


def _elect_the_follower(faulty: FaultyCluster, slots: list[SlotRun]) -> None:
    """The leader dies; who leads then has been dead since before the last records."""
    faulty.kafka.kill(LEADER)
    faulty.kafka.restart(FOLLOWER)
    wait_until(
        lambda: all(leaders(faulty.kafka, slot.remote)[0] == FOLLOWER for slot in slots),
        "unclean elections",
    )


def _recover(faulty: FaultyCluster) -> None:
    faulty.kafka.restart(LEADER)
    wait_in_sync(faulty.kafka)


@pytest.mark.long
def test_unclean_elections_at_the_target_while_the_mirrors_stood_still(source, faulty, topic_name):
    """Both modes, with and without runs; and a log that others have filled up again.

    There the epoch ended before what was acknowledged, and the last record there is not ours.
    """
    kinds = [
        {"exactly_once": exactly_once, "runs": runs}
        for exactly_once in (False, True)
        for runs in (True, False)
    ]
    slots = [
        _fragile(source, faulty, f"{topic_name}-{number}", **kind)
        for number, kind in enumerate([*kinds, {}])
    ]
    *emptied, refilled = slots
    with ExitStack() as running:
        _mirror_without_the_follower(running, faulty, slots)
    _elect_the_follower(faulty, slots)
    for slot in slots:
        assert _at_target(slot) == _values(0, 20)
    for slot in emptied:
        _produce(source.kafka, slot.topic, _values(30, 5))
    others = [b"other %d" % n for n in range(15)]
    _produce(faulty.kafka, refilled.remote, others)

    again = [
        _slot(source, faulty, slot.topic, alias=slot.alias, client=CLIENT, **kind)
        for slot, kind in zip(slots, [*kinds, {}], strict=True)
    ]
    wanted = [*([_values(0, 35)] * len(kinds)), _values(0, 20) + others + _values(20, 10)]
    told = []
    with ExitStack() as running:
        for slot in again:
            running.enter_context(slot)
        for slot, values in zip(again, wanted, strict=True):
            _await_values(slot, values)
            (gap,) = _await_gaps(slot)
            assert (gap.kind, gap.action) == ("target-truncated", "repaired")
            assert (gap.first, gap.last, gap.count, gap.resumed_at) == (20, 29, 10, 20)
            assert slot.failures == []
            told.append(gap)
    _recover(faulty)
    for slot, values, gap in zip(again, wanted, told, strict=True):
        _await_values(slot, values)
        assert slot.gaps() == [gap]


@pytest.mark.more
def test_a_log_that_was_cut_within_a_transaction(source, faulty, topic_name):
    """The rest of the transaction is aborted, although its commit had been acknowledged."""
    create_topic(source.kafka, topic_name, 1)
    values = _values(0, 15)  # one batch each
    options = {"exactly_once": True, "client": CLIENT, "transaction_interval_ms": 1_000}
    options["produce"] = ProduceSettings(join_bytes=0)
    placed = {"replicas": [[LEADER]], "remote_config": {}}
    slot = _slot(source, faulty, topic_name, **placed, **options)
    for first, end in ((0, 5), (5, 15)):
        for value in values[first:end]:
            _produce(source.kafka, topic_name, [value])
        with slot:
            _await_values(slot, values[:end])
            _await_position(slot, end)
        slot = _slot(source, faulty, topic_name, alias=slot.alias, **options)
    faulty.kafka.kill(LEADER)
    _cut_log(faulty.kafka, slot.remote, batches=4)
    faulty.kafka.restart(LEADER)
    wait_in_sync(faulty.kafka)
    assert _at_target(slot) == values[:5]
    with slot:
        _await_values(slot, values)
        (gap,) = _await_gaps(slot)
        assert (gap.kind, gap.action) == ("target-truncated", "repaired")
        assert (gap.first, gap.last, gap.resumed_at) == (5, 14, 5)
        assert slot.failures == []
    assert _at_target(slot) == values


def _cut_log(kafka: KafkaCluster, topic: str, *, batches: int) -> None:
    """Leave so many batches of the last transaction in partition 0, as a lost disk write does."""
    (path,) = kafka.data_path(LEADER).glob(f"{topic}-0/*.log")
    log = path.read_bytes()
    starts = walk_batches(memoryview(log)).starts
    control = [log[at + ATTRIBUTES_AT + 1] & CONTROL_BIT for at in starts[:-1]]
    assert control == [*[0] * 5, CONTROL_BIT, *[0] * 10, CONTROL_BIT]
    path.write_bytes(log[: starts[6 + batches]])


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
        assert [type(error).__name__ for error in slot.failures] == ["TargetLost"]
    found = _at_target(slot)
    assert sorted(found) == sorted(_values(0, 35))
    if exactly_once or found[0] == b"record 0":
        assert found == _values(0, 35)
    assert _position(slot)[0] == 35


@pytest.mark.more
def test_unclean_elections_at_the_target_while_the_mirrors_run(source, faulty, topic_name):
    slots = [
        _fragile(source, faulty, f"{topic_name}-{number}", exactly_once=bool(number))
        for number in range(2)
    ]
    with ExitStack() as running:
        _mirror_without_the_follower(running, faulty, slots)
        for slot in slots:
            _await_position(slot, 30)
        _elect_the_follower(faulty, slots)
        for slot in slots:
            _produce(source.kafka, slot.topic, _values(30, 5))
        for slot in slots:
            _await_values(slot, _values(0, 35))
            (gap,) = _await_gaps(slot)
            assert (gap.kind, gap.action) == ("target-truncated", "repaired")
            assert (gap.first, gap.last, gap.resumed_at) == (20, 29, 20)
    _recover(faulty)


@pytest.mark.more
def test_leaders_that_move_at_the_target_lose_nothing(source, faulty, topic_name):
    slots = [
        _fragile(source, faulty, f"{topic_name}-{number}", exactly_once=bool(number))
        for number in range(2)
    ]
    with ExitStack() as running:
        for slot in slots:
            running.enter_context(slot)
        for count in range(0, 40, 10):
            for slot in slots:
                _produce(source.kafka, slot.topic, _values(count, 10))
            for slot in slots:
                _await_values(slot, _values(0, count + 10))
                if count < 30:
                    move_leaders(faulty.kafka, slot.remote)
        for slot in slots:
            assert slot.failures == []
            assert slot.gaps() == []
