"""What a cluster may lack for a while: a quick network, any network, disk space.

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

from sparkmirror.demo.clusters import KafkaCluster
from tests.kafka.faults import (
    NODES,
    Direct,
    Load,
    SlotRun,
    check_mirrored,
)
from tests.kafka.support import Sent, create_topic, produce

IMPATIENT = {"request_timeout_ms": 3_000, "connect_timeout_ms": 1_000}


def _checked(slot: SlotRun, load: Load | None = None) -> None:
    acknowledged = None if load is None else load.acknowledged
    ends = slot.source.kafka, slot.topic, slot.target.kafka, slot.remote
    check_mirrored(*ends, acknowledged, timeout_s=90)
    assert slot.failures == []


def _until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


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
