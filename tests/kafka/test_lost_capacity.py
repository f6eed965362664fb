"""What a cluster may lack for a while: a leader, disk space, the right time, a quick network.

As in `test_broker_faults`, one slot runs against real brokers, and an independent reader says
what came through: every record, in order, none twice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic

from kafka import KafkaAdminClient
from kafka import TopicPartition as ClientPartition
from sparkmirror.demo.clusters import KafkaCluster
from tests.kafka.faults import (
    NODES,
    Direct,
    Load,
    SlotRun,
    check_mirrored,
    leaders,
    wait_in_sync,
)
from tests.kafka.support import TIMEOUT_S, Sent, admin, create_topic, produce, set_topic_config

IMPATIENT = {"request_timeout_ms": 3_000, "connect_timeout_ms": 1_000}
MINUTE_MS = 60_000
_PRELOADS = ("/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime")


def _checked(slot: SlotRun, load: Load | None = None) -> None:
    acknowledged = None if load is None else load.acknowledged
    ends = slot.source.kafka, slot.topic, slot.target.kafka, slot.remote
    check_mirrored(*ends, acknowledged, timeout_s=90)
    assert slot.failures == []


def _until(
    condition: Callable[[], bool], what: Callable[[], object], timeout_s: float = 90
) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


def _end_offset(cluster: KafkaCluster, topic: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "ends"})
    try:
        wanted = TopicPartition(topic, partition)
        _, end = consumer.get_watermark_offsets(wanted, timeout=TIMEOUT_S)
    finally:
        consumer.close()
    return int(end)


# -- leaders -----------------------------------------------------------------------------------


def _on_one_broker_each(cluster: KafkaCluster, topic: str) -> None:
    """Give each partition of ``topic`` one replica, partition n on broker n + 1."""
    set_topic_config(cluster, topic, **{"min.insync.replicas": "1"})
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    wanted = {ClientPartition(topic, number): [number + 1] for number in range(NODES)}
    try:
        refused = {tp: e for tp, e in client.alter_partition_reassignments(wanted).items() if e}
        assert not refused, refused
    finally:
        client.close()
    placed = {number: number + 1 for number in range(NODES)}
    _until(lambda: leaders(cluster, topic) == placed, lambda: leaders(cluster, topic))


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_partition_without_a_leader_waits_and_the_others_go_on(source, target, topic_name, side):
    assignment = [[number + 1] for number in range(NODES)]
    config = {"min.insync.replicas": "1"}
    new = NewTopic(topic_name, replica_assignment=assignment, config=config)
    admin(source.kafka).create_topics([new])[topic_name].result(TIMEOUT_S)
    lost = 1
    with SlotRun(source, target, topic_name, NODES) as slot:
        _on_one_broker_each(target.kafka, slot.remote)
        hit = source if side == "source" else target
        with Load(source.kafka, topic_name, NODES) as load:
            load.wait_for(100)
            hit.kafka.kill(lost + 1)
            others = [number for number in range(NODES) if number != lost]
            now = {number: len(load.acknowledged[number]) for number in others}
            for number, count in now.items():
                _until(
                    lambda n=number, c=count: _end_offset(target.kafka, slot.remote, n) >= c + 50,
                    lambda n=number: f"partition {n} stands still; {slot.halts()}",
                )
            name = slot.topic if side == "source" else slot.remote
            _until(lambda: leaders(hit.kafka, name)[lost] == -1, lambda: leaders(hit.kafka, name))
            if side == "target":
                _until(lambda: lost in slot.halts(), slot.errors)
                assert slot.halts()[lost].retriable
            hit.kafka.restart(lost + 1)
            wait_in_sync(hit.kafka)
        _checked(slot, load)
        _until(lambda: not slot.halts(), slot.halts)


# -- the network -------------------------------------------------------------------------------


def test_a_slow_network_costs_time_and_no_records(source, target, topic_name):
    create_topic(source.kafka, topic_name, NODES, replication=NODES)
    with SlotRun(source, target, topic_name, NODES) as slot:
        for proxy in (*source.proxies.values(), *target.proxies.values()):
            proxy.delay_s = 0.15  # each way: a round trip from one continent to the next
        with Load(source.kafka, topic_name, NODES) as load:
            load.wait_for(400)
        _checked(slot, load)
        assert "CONNECTION_LOST" not in slot.errors()


@pytest.mark.parametrize("side", ["source", "target"])
def test_the_network_to_a_whole_cluster_is_cut_and_mended(source, target, topic_name, side):
    """Nothing passes and nobody is told, as when a line is cut; then the old connections die."""
    create_topic(source.kafka, topic_name, NODES, replication=NODES)
    with SlotRun(source, target, topic_name, NODES, client=IMPATIENT, epoch_s=4) as slot:
        hit = source if side == "source" else target
        with Load(source.kafka, topic_name, NODES) as load:
            load.wait_for(100)
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
        pytest.skip("a full disk needs root's rights to mount a small file system")
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a full disk needs a small file system: {done.stderr}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


@pytest.mark.timeout(240)
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


# -- clocks ------------------------------------------------------------------------------------


def _faketime() -> str:
    found = [path for one in _PRELOADS for path in Path(one).glob("libfaketimeMT.so.1")]
    if not found:
        pytest.skip("another time for one broker needs libfaketime (Debian: apt install faketime)")
    return str(found[0])


@pytest.mark.parametrize("ahead", ["-3h", "+30h"])
@pytest.mark.timeout(240)
def test_a_target_broker_with_a_wrong_clock(cluster_a, topic_name, monkeypatch, ahead):
    """To a broker that is hours behind, every record is from the future, which it refuses by
    ``message.timestamp.after.max.ms``: that is said, and once it takes them nothing is missing.
    """
    with monkeypatch.context() as changed:
        changed.setenv("LD_PRELOAD", _faketime())
        changed.setenv("FAKETIME", ahead)
        for name in ("FAKETIME_DONT_FAKE_MONOTONIC", "DONT_FAKE_MONOTONIC"):
            changed.setenv(name, "1")
        skewed = KafkaCluster("T", heap="256m")
        skewed.start()
    with skewed:
        create_topic(cluster_a, topic_name, 1)
        records = [Sent(b"%d" % n, b"k") for n in range(200)]
        with SlotRun(Direct(cluster_a), Direct(skewed), topic_name) as slot:
            produce(cluster_a, topic_name, records[:100])
            if ahead.startswith("-"):
                _until(lambda: 0 in slot.halts(), slot.errors)
                assert slot.halts()[0].code == "INVALID_TIMESTAMP"
                limit = {"message.timestamp.after.max.ms": str(24 * 60 * MINUTE_MS)}
                set_topic_config(skewed, slot.remote, **limit)
            produce(cluster_a, topic_name, records[100:])
            _checked(slot)
            _until(lambda: not slot.halts(), slot.halts)
