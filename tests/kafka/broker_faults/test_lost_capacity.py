"""What a cluster may lack for a while: a quick network, any network, a leader, disk space.

As in `test_broker_faults`, one slot runs against real brokers, and an independent reader says
what came through: every record, in order, none twice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from sparkmirror.control.loop import ControlLoop
from sparkmirror.control.report.plan import internal_topics
from sparkmirror.control.report.plan import topics as remote_topics
from sparkmirror.control.topics.internal_topics import create_internal_topics
from sparkmirror.control.topics.observation import Observation
from sparkmirror.control.topics.sync import apply_topics, plan_topics
from sparkmirror.errors import TooFewBrokers
from sparkmirror.progress import Halt
from sparkmirror.settings import (
    ClusterClient,
    FetchSettings,
    FlowSettings,
    MirrorSettings,
    TopicSettings,
)
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import NewTopic
from sparkmirror.wire.fetch import partition_state
from sparkmirror.wire.produce import backlog
from tests.kafka.clusters.faults import (
    NODES,
    Direct,
    Load,
    SlotRun,
    check_mirrored,
    leaders,
    wait_in_sync,
)
from tests.kafka.harness.support import Sent, create_topic, produce
from tests.lacking import lacks
from tests.patience import patience

IMPATIENT = {"request_timeout_ms": 3_000, "connect_timeout_ms": 1_000}


def _checked(slot: SlotRun, load: Load | None = None) -> None:
    acknowledged = None if load is None else load.acknowledged
    ends = slot.source.kafka, slot.topic, slot.target.kafka, slot.remote
    check_mirrored(*ends, acknowledged)
    assert slot.failures == []


def _until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + patience()
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


# -- the network -------------------------------------------------------------------------------


@pytest.mark.long
def test_a_slow_network_costs_time_and_no_records(source, target, topic_name):
    create_topic(source.kafka, topic_name, NODES, replication=NODES)
    with SlotRun(source, target, topic_name, NODES) as slot:
        with Load(source.kafka, topic_name, NODES) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            for proxy in (*source.proxies.values(), *target.proxies.values()):
                proxy.delay_s = 0.15  # each way: a round trip from one continent to the next
            load.wait_for(400)
        _checked(slot, load)
        assert "CONNECTION_LOST" not in slot.errors()


@pytest.mark.parametrize("side", [pytest.param("source", marks=pytest.mark.more), "target"])
def test_the_network_to_a_whole_cluster_is_cut_and_mended(source, target, topic_name, side):
    """Nothing passes and nobody is told, as when a line is cut; then the old connections die."""
    create_topic(source.kafka, topic_name, NODES, replication=NODES)
    with SlotRun(source, target, topic_name, NODES, client=IMPATIENT, epoch_s=4) as slot:
        hit = source if side == "source" else target
        with Load(source.kafka, topic_name, NODES) as load:
            load.wait_for(100)
            slot.wait_until_mirroring()
            before = sum(proxy.connections for proxy in hit.proxies.values())
            for proxy in hit.proxies.values():
                proxy.stall()
            # Connections are given up and made anew, into the void.
            _until(
                lambda: sum(proxy.connections for proxy in hit.proxies.values()) > before + 2,
                lambda: "nobody noticed",
            )
            for proxy in hit.proxies.values():
                proxy.reset()
                proxy.resume()
            load.wait_for(100)
        _checked(slot, load)


# -- leaders -----------------------------------------------------------------------------------

# One partition has no leader: each has one replica, on a broker of its own, and one broker is away.
LOST, OTHERS = 0, (1, 2)
ALONE = [[1], [2], [3]]


class _Arriving:
    """Reads remote partitions, by default those that have a leader, from their beginning on."""

    def __init__(self, slot: SlotRun, partitions: Sequence[int] = OTHERS) -> None:
        self._seen: dict[int, list[bytes]] = {number: [] for number in partitions}
        self._next = dict.fromkeys(partitions, 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": slot.target.kafka.bootstrap_servers,
                "group.id": f"others-{slot.alias}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                # A leader that hangs must not keep it from looking for the next one.
                "socket.timeout.ms": 3_000,
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(slot.remote, number, 0) for number in partitions])

    def arrive(self, sent: Mapping[int, Sequence[bytes]], slot: SlotRun) -> None:
        """Wait until they hold ``sent`` as it is now: all, in order, none twice."""
        wanted = {number: list(sent[number]) for number in self._seen}
        deadline = time.monotonic() + patience()
        while any(len(self._seen[number]) < len(values) for number, values in wanted.items()):
            assert time.monotonic() < deadline, (slot.halts(), slot.failures)
            for message in self._consumer.consume(500, timeout=0.1):
                # While a leader moves, a consumer may be given an offset twice.
                if message.error() is None and message.offset() >= self._next[message.partition()]:
                    self._next[message.partition()] = message.offset() + 1
                    self._seen[message.partition()].append(message.value())
        for number, values in wanted.items():
            assert self._seen[number][: len(values)] == values

    def close(self) -> None:
        self._consumer.close()


def _halted(slot: SlotRun) -> None:
    """Wait until the reason is shown; between two attempts it is not."""
    found: list[Halt] = []

    def shown() -> bool:
        found.extend(halt for number, halt in slot.halts().items() if number == LOST)
        return bool(found)

    _until(shown, slot.reports)
    assert (found[0].code, found[0].retriable) == ("LEADER_NOT_AVAILABLE", True)


@pytest.mark.more
@pytest.mark.parametrize(
    ("side", "exact"),
    [
        ("source", False),
        ("target", False),
        pytest.param("target", True, marks=pytest.mark.long),
    ],
    ids=["source", "target", "target, exactly-once"],
)
def test_a_partition_without_a_leader_waits_alone(
    source, target, topic_name, side, exact, monkeypatch
):
    # What takes half a minute otherwise.
    monkeypatch.setattr(partition_state, "_UNKNOWN_S_MAX", 3.0)
    monkeypatch.setattr(backlog, "_FAILING_TOLD_S", 3.0)
    monkeypatch.setattr(backlog, "_STUCK_S_MAX", 5.0)
    monkeypatch.setattr(backlog, "_TRANSACTION_STUCK_S_MAX", 5.0)
    create_topic(source.kafka, topic_name, replicas=ALONE, config={"min.insync.replicas": "1"})
    hit = source if side == "source" else target
    once = {"replicas": ALONE, "client": IMPATIENT, "exactly_once": exact}
    first = SlotRun(source, target, topic_name, NODES, **once)
    name = topic_name if side == "source" else first.remote
    with contextlib.ExitStack() as beside:
        others = beside.enter_context(contextlib.closing(_Arriving(first)))
        load = beside.enter_context(Load(source.kafka, topic_name, NODES))
        with first:
            load.wait_for(100)
            others.arrive(load.acknowledged, first)
            hit.kafka.terminate(ALONE[LOST][0])
            _until(lambda: leaders(hit.kafka, name)[LOST] < 0, lambda: leaders(hit.kafka, name))
            _halted(first)
            load.wait_for(100)
            others.arrive(load.acknowledged, first)
            # One that was without a leader for a moment is reported, too.
            _until(lambda: set(first.halts()) <= {LOST}, first.halts)
        # A run that begins meanwhile copies the others as well.
        again = SlotRun(source, target, topic_name, NODES, alias=first.alias, **once)
        with again:
            load.wait_for(100)
            others.arrive(load.acknowledged, again)
            hit.kafka.restart(ALONE[LOST][0])
            beside.close()
            # At-least-once: of what the leader wrote while it ended, the second run cannot know.
            repeats = (LOST,) if side == "target" and not exact else ()
            check_mirrored(
                *(source.kafka, topic_name, target.kafka, first.remote, load.acknowledged),
                repeats=repeats,
            )
            _until(lambda: not again.halts(), again.halts)
            wait_in_sync(hit.kafka)
    assert first.failures + again.failures == []


@pytest.mark.more
def test_a_partition_that_has_no_leader_from_the_beginning_on_waits_alone(
    source, target, topic_name
):
    """Nobody can say where it starts; the epochs of the others do not wait for that."""
    create_topic(source.kafka, topic_name, replicas=ALONE, config={"min.insync.replicas": "1"})
    for number in range(NODES):
        produce(source.kafka, topic_name, [Sent(b"before", partition=number)])
    source.kafka.terminate(ALONE[LOST][0])
    patient = {"request_timeout_ms": 120_000}
    slot = SlotRun(source, target, topic_name, NODES, epoch_s=5, client=patient)
    with contextlib.closing(_Arriving(slot)) as others:
        began = time.monotonic()
        with slot:
            others.arrive({number: [b"before"] for number in OTHERS}, slot)
            _halted(slot)
            waited_s = time.monotonic() - began
            source.kafka.restart(ALONE[LOST][0])
            check_mirrored(source.kafka, topic_name, target.kafka, slot.remote)
            _until(lambda: not slot.halts(), slot.halts)
    wait_in_sync(source.kafka)
    assert slot.failures == []
    assert waited_s < slot.flow.source.request_timeout_ms / 1000


@pytest.mark.more
def test_latest_is_chosen_for_a_partition_as_soon_as_it_has_a_leader(source, target, topic_name):
    """Before a slot has it, which would choose in its next epoch and skip what came until then."""
    alias = topic_name.rsplit("-", maxsplit=1)[-1]
    create_topic(source.kafka, topic_name, replicas=ALONE, config={"min.insync.replicas": "1"})
    for number in range(NODES):
        produce(source.kafka, topic_name, [Sent(b"before", partition=number)] * 3)
    ends = [
        ClusterClient(name, tuple(one.kafka.bootstrap_servers.split(",")), "test")
        for name, one in ((alias, source), ("T", target))
    ]
    topics = TopicSettings(include=(topic_name,), replication_factor=1)
    flow = FlowSettings(
        *(*ends, *ends),
        topics=topics,
        fetch=FetchSettings(auto_offset_reset="latest"),
        offset_storage_replication_factor=1,
    )
    source.kafka.terminate(ALONE[LOST][0])
    _until(lambda: leaders(source.kafka, topic_name)[LOST] < 0, lambda: "a leader")
    loop = ControlLoop(MirrorSettings((flow,), ()), once=False, run_id="run")
    keeper = Cluster(ends[1])
    try:
        loop.prepare()
        loop.start()
        found = loop.assignment(flow.name)
        assert [one.partition for one in found.partitions] == list(OTHERS)
        assert [(tp.partition, one.code) for tp, one in found.halted.items()] == [
            (LOST, "LEADER_NOT_AVAILABLE")
        ]
        source.kafka.restart(ALONE[LOST][0])
        _until(
            lambda: len(loop.assignment(flow.name).partitions) == NODES,
            lambda: loop.assignment(flow.name),
        )
        produce(source.kafka, topic_name, [Sent(b"after", partition=LOST)])
        committed = keeper.committed_offsets(flow.position_group, None)
        assert {tp.partition: one.offset for tp, one in committed.items()} == dict.fromkeys(
            range(NODES), 3
        )
    finally:
        keeper.close()
        loop.stop()
        for control in loop._flows.values():
            control.close()
    wait_in_sync(source.kafka)


def test_new_topics_get_all_replicas_while_a_broker_of_the_target_is_down(
    source, target, topic_name
):
    """Metadata no longer names it, and the controller places replicas on it all the same."""
    create_topic(source.kafka, topic_name, NODES, replication=NODES)
    ends = [
        ClusterClient(name, tuple(one.kafka.bootstrap_servers.split(",")), "test")
        for name, one in (("S", source), ("T", target))
    ]
    topics = TopicSettings(include=(topic_name,), replication_factor=NODES)
    flow = FlowSettings(*ends, *ends, topics=topics, offset_storage_partitions=1)
    target.kafka.kill(NODES)
    reader, keeper = map(Cluster, ends)
    try:
        _until(lambda: len(keeper.describe().brokers) < NODES, keeper.describe)
        observed = Observation(flow, reader, keeper)
        planned = [*internal_topics(observed), *remote_topics(observed)]
        assert {one.action for one in planned} == {"create-topic"}
        assert {one.details["replication_factor"] for one in planned} == {NODES}
        assert keeper.topics(one.subject for one in planned) == {}
        create_internal_topics(keeper, flow)
        errors, _ = apply_topics(keeper, plan_topics(observed.topics, flow))
        assert errors == {}
        made = keeper.topics(one.subject for one in planned)
        assert {name: one.replication for name, one in made.items()} == {
            one.subject: NODES for one in planned
        }
        new = NewTopic(f"{topic_name}-large", 1, NODES + 1)
        error = keeper.create_topics([new])[new.name].error
        assert isinstance(error, TooFewBrokers), error
    finally:
        reader.close()
        keeper.close()
        target.kafka.restart(NODES)


def test_a_frozen_broker_of_the_target_delays_its_own_partitions(source, target, topic_name):
    """It keeps its connections and answers nothing; what others lead goes on meanwhile."""
    create_topic(source.kafka, topic_name, replicas=ALONE, config={"min.insync.replicas": "1"})
    slot = SlotRun(source, target, topic_name, NODES, replicas=ALONE, client=IMPATIENT)
    with contextlib.ExitStack() as beside:
        others = beside.enter_context(contextlib.closing(_Arriving(slot)))
        load = beside.enter_context(Load(source.kafka, topic_name, NODES))
        with slot:
            load.wait_for(100)
            others.arrive(load.acknowledged, slot)
            target.kafka.freeze(ALONE[LOST][0])
            try:
                for _ in range(3):
                    load.wait_for(100)
                    others.arrive(load.acknowledged, slot)
            finally:
                target.kafka.thaw(ALONE[LOST][0])
            beside.close()
            _checked(slot, load)
            wait_in_sync(target.kafka)


@pytest.mark.more
@pytest.mark.parametrize(
    "exact",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["at-least-once", "exactly-once"],
)
def test_a_frozen_broker_of_the_target_that_also_follows(source, target, topic_name, exact):
    """Three replicas each: what it leads and what it follows waits for it, and then for nobody.

    All partitions go on while it stands still: others lead, and count it out as a follower.
    """
    create_topic(source.kafka, topic_name, NODES, replication=NODES)
    slot = SlotRun(source, target, topic_name, NODES, client=IMPATIENT, exactly_once=exact)
    with contextlib.ExitStack() as beside:
        all_of_it = beside.enter_context(contextlib.closing(_Arriving(slot, range(NODES))))
        load = beside.enter_context(Load(source.kafka, topic_name, NODES))
        with slot:
            load.wait_for(100)
            all_of_it.arrive(load.acknowledged, slot)
            wait_in_sync(target.kafka)
            led = leaders(target.kafka, slot.remote)
            victim = led[0]
            assert set(led.values()) > {victim}, "it follows in some partition"
            target.kafka.freeze(victim)
            try:
                for _ in range(2):
                    load.wait_for(100)
                    all_of_it.arrive(load.acknowledged, slot)
            finally:
                target.kafka.thaw(victim)
            load.wait_for(100)
            beside.close()
            wait_in_sync(target.kafka)
            _checked(slot, load)


# -- disk space --------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The data directory of a broker in ``tmp_path / "kafka"``, on a file system of 48 MiB.

    To mount one takes root's rights: without them the test is skipped.
    """
    place = tmp_path / "kafka" / "node-1" / "data"
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        lacks("a full disk needs root's rights to mount a small file system")
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lacks(f"a full disk needs a small file system: {done.stderr}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


@pytest.mark.more
def test_a_target_whose_disk_is_full_goes_on_when_there_is_room(
    cluster_a, small_disk, tmp_path, topic_name
):
    """A broker ends when its only disk is full. Someone makes room and starts it again."""
    create_topic(cluster_a, topic_name, 2)
    small_files = {"log.segment.bytes": str(4 << 20), "log.index.size.max.bytes": str(64 << 10)}
    payload = os.urandom(20_000)
    with KafkaCluster("T", directory=tmp_path / "kafka", heap="256m", config=small_files) as small:
        source, target = Direct(cluster_a), Direct(small)
        with SlotRun(source, target, topic_name, 2, client=IMPATIENT, epoch_s=5) as slot:
            records = [Sent(b"%d " % n + payload, partition=n % 2) for n in range(100)]
            produce(cluster_a, topic_name, records[:10])
            _checked(slot)
            ballast = small_disk / "ballast"
            _fill(ballast, small_disk, leave_bytes=1 << 20)
            for first in range(10, 100, 10):
                produce(cluster_a, topic_name, records[first : first + 10])
            _until(lambda: not small.alive, small.log_tail)
            assert "No space left on device" in small.log_tail(lines=5_000)
            ballast.unlink()
            small.restart()
            _checked(slot)


def _fill(path: Path, disk: Path, *, leave_bytes: int) -> None:
    with path.open("wb") as stream, contextlib.suppress(OSError):
        while (rest := shutil.disk_usage(disk).free - leave_bytes) > 0:
            stream.write(bytes(min(rest, 1 << 20)))
            stream.flush()
