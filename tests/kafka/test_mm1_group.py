"""MirrorMaker 1's consumer group, shared by several processes, of this kind and of Java's."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from benchmarks.peers import MM1_JARS
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import ConsumerGroupDescription

from sparkmirror.demo.clusters import KafkaCluster
from sparkmirror.demo.maven import resolve
from sparkmirror.java import find_java
from tests.kafka.mirror_process import MirrorProcess, wait_until, write_mm1
from tests.kafka.support import admin, consume_all, create_topic

SESSION_S = 6  # the least that brokers take by default (group.min.session.timeout.ms)
PARTITIONS = 6
TAKE_OVER_S = 15


class _Load:
    """Writes numbered records to all partitions of ``topic`` until it is stopped."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 20, "acks": "all"}
        )
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for _ in range(60):
                number = self.sent
                # Keys that Java's partitioner and this one spread alike.
                self._producer.produce(
                    self._topic, str(number).encode(), partition=number % PARTITIONS
                )
                self.sent += 1
            self._producer.poll(0)
        self._producer.flush(30)

    def __enter__(self) -> _Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(40)


@contextmanager
def _java(options: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    classpath = os.pathsep.join(map(str, resolve(*MM1_JARS)))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(str(find_java().java), "-Xmx256m", "-cp", classpath, "kafka.tools.MirrorMaker"),
                *options,
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(10)


def _files(directory: Path, a: KafkaCluster, b: KafkaCluster, group: str, topics: str) -> list[str]:
    options = write_mm1(directory, a, b, group)
    with Path(options[1]).open("a") as consumer:
        consumer.write(
            f"session.timeout.ms={SESSION_S * 1000}\nheartbeat.interval.ms=1000\n"
            "metadata.max.age.ms=2000\n"
        )
    return [*options, "--include", topics, "--offset.commit.interval.ms", "1000"]


def _shares(cluster: KafkaCluster, group: str) -> dict[str, int]:
    """Partitions of each member of ``group`` that has some, by client id and member."""
    client = admin(cluster)
    try:
        found: ConsumerGroupDescription = client.describe_consumer_groups([group])[group].result(20)
    except KafkaException:  # the coordinator is being loaded
        return {}
    shares = {}
    for member in found.members:
        owned = member.assignment.topic_partitions if member.assignment is not None else []
        shares[f"{member.client_id}/{member.member_id}"] = len(owned)
    return shares


def _kill_tree(pid: int) -> None:
    """SIGKILL to the driver, Spark's JVM and its workers, as when their machine goes."""
    driver = psutil.Process(pid)
    for process in [driver, *driver.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _target_ends(cluster: KafkaCluster, topic: str) -> int:
    return len(consume_all(cluster, topic))


def _copied_again(cluster: KafkaCluster, topic: str, killed: set[int], load: _Load) -> float:
    """Seconds until a record that was written from now on arrives from each of ``killed``."""
    mark, began = load.sent + 200, time.monotonic()
    while True:
        values = [int(one.value or b"-1") for one in consume_all(cluster, topic)]
        if {value % PARTITIONS for value in values if value > mark} >= killed:
            return time.monotonic() - began
        assert time.monotonic() - began < 60, "nobody took over"
        time.sleep(0.3)


@pytest.mark.timeout(480)
def test_mirrors_of_both_kinds_share_a_group_and_take_over(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"group-{uuid.uuid4().hex[:8]}"
    for cluster in (cluster_a, cluster_b):
        create_topic(cluster, name, PARTITIONS)
    options = _files(tmp_path, cluster_a, cluster_b, name, name)
    every = set(range(PARTITIONS))
    with _Load(cluster_a, name) as load:
        first = MirrorProcess(tmp_path / "1", options, command="kafka-mirror-maker")
        second = None
        try:
            wait_until(
                lambda: name in str(_shares(cluster_a, name)) and _target_ends(cluster_b, name) > 0,
                "the first mirror copies",
                150,
            )
            second = MirrorProcess(tmp_path / "2", options, command="kafka-mirror-maker")
            with _java(options, tmp_path / "java.log") as java:
                wait_until(
                    lambda: sorted(_shares(cluster_a, name).values()) == [2, 2, 2],
                    "all three have their share",
                    150,
                )
                _copied_again(cluster_b, name, every, load)
                before = Counter(one.value for one in consume_all(cluster_b, name))
                assert max(before.values()) == 1, "copied twice though nobody had died"
                _kill_tree(first.process.pid)
                seconds = _copied_again(cluster_b, name, every, load)
                print(f"sparkmirror killed: copied again after {seconds:.1f} s")
                assert seconds < TAKE_OVER_S
                wait_until(
                    lambda: sorted(_shares(cluster_a, name).values()) == [3, 3], "two shares", 30
                )
                java.send_signal(signal.SIGKILL)
                seconds = _copied_again(cluster_b, name, every, load)
                print(f"Java killed: copied again after {seconds:.1f} s")
                assert seconds < TAKE_OVER_S
        finally:
            load.__exit__()
            sent = {str(number).encode() for number in range(load.sent)}
            try:
                wait_until(
                    lambda: {one.value for one in consume_all(cluster_b, name)} == sent,
                    "every record at the target",
                    30,
                )
                assert second is not None
                code, _ = second.drain()
                assert code == 143, second.text()
            finally:
                first.kill()
                if second is not None:
                    second.kill()
    # The drained one has left the group: nobody would have to wait for its session.
    assert not _shares(cluster_a, name)
