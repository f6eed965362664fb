"""The whole command, at-least-once: each of its processes is killed while records are written."""

from __future__ import annotations

import random
import re
import signal
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from sparkmirror.testing.clusters import KafkaCluster
from tests.faults.harness import SINK, SOURCE, Counter, Mirror, write_config
from tests.faults.kinds import Scene, kill_driver, kill_jvm, kill_worker
from tests.faults.numbered import Numbered
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import create_topic
from tests.patience import patience

PARTITIONS = 4
_PER_S = 1_500
_AWAY_S = 10.0
_TOLD = re.compile(r"up to (\d+) records arrive again")


class _Scenario:
    """One flow, its load, and what may come twice because of the kills so far.

    The source has one idempotent producer and no transactions, so a record's number is its offset
    there.
    """

    def __init__(self, source: KafkaCluster, target: KafkaCluster, directory: Path) -> None:
        self.alias = f"X{uuid.uuid4().hex[:6]}"
        topic = f"numbers-{self.alias}"
        self.remote = f"{self.alias}.{topic}"
        create_topic(source, topic, PARTITIONS)
        create_topic(target, self.remote, PARTITIONS)
        config = write_config(directory / "mm2.properties", source, target, topic, alias=self.alias)
        self.target, self.directory = target, directory
        self.traffic = Numbered(source, topic, PARTITIONS, per_s=_PER_S)
        self.counter = Counter(target, self.remote, PARTITIONS)
        self.mirror = Mirror(directory, config)
        self.scene = Scene(self.mirror, source, target, random.Random(1))
        self.floors: list[tuple[int, list[int]]] = []

    def mirrored(self) -> None:
        """Wait until records of all partitions come that were written from now on."""
        written = self.traffic.count
        took_s = self.counter.recovery_s(time.monotonic(), patience())
        assert took_s < patience(), self.mirror.output()
        assert self.counter.wait_for(written, patience()), self.mirror.output()

    def between_commits(self) -> None:
        """Before a fault: note the positions, and let more be written at the target."""
        positions = self._positions()
        self.floors.append((len(self.counter.returns), positions))
        wait_until(lambda: sum(self.counter.expected) > sum(positions), "records after a position")

    def _positions(self) -> list[int]:
        group = f"__mirror.{self.alias}->B"
        consumer = Consumer(
            {"bootstrap.servers": self.target.bootstrap_servers, "group.id": group, "log_level": 0}
        )
        try:
            wanted = [TopicPartition(self.remote, number) for number in range(PARTITIONS)]
            return [found.offset for found in consumer.committed(wanted, timeout=20)]
        finally:
            consumer.close()

    def processes(self) -> list[psutil.Process]:
        """All that the mirror has started."""
        return self.mirror.driver().children(recursive=True)

    def start(self) -> None:
        self.mirror.start()
        self.mirrored()

    def check(self, written: int) -> None:
        """No record is missing, none is out of order, and none came twice without a word of it."""
        self.counter.wait_for_end(patience())
        assert (self.counter.lost, sum(self.counter.expected)) == (0, written), (
            self.counter.first_wrong
        )
        # What comes again begins at a position from before the kill, or behind it ...
        for number, (partition, first) in enumerate(self.counter.returns):
            floor = [floor for before, floor in self.floors if before <= number][-1]
            assert first >= floor[partition], (self.counter.returns, self.floors)
        # ... and is as much as the next attempt has announced: nothing, where it knew more.
        logs = self.directory.glob("work-*/spark.log")
        told = sum(int(n) for log in logs for n in _TOLD.findall(log.read_text(errors="replace")))
        assert self.counter.duplicated <= told, (self.counter.returns, self.floors)


@pytest.mark.long
@pytest.mark.timeout(1800)  # more waits than any other test
def test_every_process_is_killed_while_records_are_written(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """A source worker, a sink, the JVM, the driver; at last a second Ctrl+C with a backlog."""
    run = _Scenario(cluster_a, cluster_b, tmp_path)
    mirror, counter = run.mirror, run.counter
    with run.traffic as traffic, counter:
        try:
            run.mirrored()
            for role in (SOURCE, SINK):
                run.between_commits()
                kill_worker(role)(run.scene)
                run.mirrored()
                assert mirror.process.poll() is None, mirror.output()

            started = run.processes()
            run.between_commits()
            kill_jvm(run.scene)
            assert mirror.process.wait(60) == 1, mirror.output()
            assert "Spark no longer responds" in mirror.output()
            assert "continues from the committed positions" in mirror.output()
            assert "Traceback" not in mirror.output()
            _check_gone(started)

            run.start()
            started = [run.mirror.driver(), *run.processes()]
            run.between_commits()
            kill_driver(run.scene)
            _check_gone(started)

            run.start()
            run.between_commits()
            there = _stop_twice_with_a_backlog(run)
            written = traffic.finish()

            mirror.start()
            assert counter.wait_for(written, patience()), mirror.output()
            assert counter.received > there
            run.check(written)
            assert mirror.drain() == 0, mirror.output()
            run.check(written)
        finally:
            mirror.kill()


def _stop_twice_with_a_backlog(run: _Scenario) -> int:
    """Ctrl+C, and again while the target takes nothing; how many records it has after that."""
    process, traffic, started = run.mirror.process, run.traffic, run.processes()
    run.target.freeze()
    try:
        enough = traffic.count + 3 * _PER_S
        wait_until(lambda: traffic.count >= enough, "a backlog")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "Ctrl+C again stops at once" in run.mirror.output(), "the drain")
        time.sleep(0.5)  # a signal that repeats sooner counts as an echo
        assert process.poll() is None, run.mirror.output()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130, run.mirror.output()
        assert "stopping at once" in run.mirror.output()
        assert "drained:" not in run.mirror.output()
        _check_gone(started)
    finally:
        run.target.thaw()
    run.counter.wait_for_end(patience())
    # It may have taken in what was in its sockets: a few requests, not the backlog.
    assert sum(run.counter.expected) < enough
    return run.counter.received


def _check_gone(processes: Sequence[psutil.Process]) -> None:
    """All of ``processes`` end within ten seconds, as the guarantees say."""
    deadline = time.monotonic() + _AWAY_S
    while left := [one for one in processes if _runs(one)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _runs(process: psutil.Process) -> bool:
    """Whether it does; one that has ended and that nobody has waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
