"""Mirrors of both kinds, this one's processes and Java's, in one consumer group.

What `tests.kafka.mm1.test_mm1_group` tries once and `tests.faults.sharing` measures with each
assignor.
"""

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
from dataclasses import dataclass
from pathlib import Path

import psutil
from benchmarks.peers import MM1_JARS
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import ConsumerGroupDescription

from sparkmirror.java import find_java
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.testing.maven import resolve
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm1
from tests.kafka.harness.support import Sent, admin, consume_all, create_topic, produce, topic_names

__all__ = ["ASSIGNORS", "Sharing", "share_and_take_over"]

ASSIGNORS = (
    "RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor",
)  # fmt: skip

SESSION_S = 6  # the least that brokers take by default (group.min.session.timeout.ms)
PARTITIONS = 6
TAKE_OVER_S_MAX = 120
_LOGGER = "org.slf4j:slf4j-simple:1.7.36"


@dataclass(frozen=True)
class Sharing:
    """What came of it. ``*_killed_s``: seconds until records of all its partitions arrived again;
    ``new_topic_s``: until those of a topic made meanwhile did; ``again``: records that came twice.
    """

    assignor: str
    ours_killed_s: float
    java_killed_s: float
    new_topic_s: float
    sent: int
    again: int


class _Load:
    """Writes numbered records to all partitions of ``topic`` until it is stopped."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "linger.ms": 20,
                # A source that answers late must not make a record twice.
                "enable.idempotence": True,
            }
        )
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for _ in range(60):
                number = self.sent
                # Keys that Java's partitioner and this one spread alike.
                try:
                    self._producer.produce(
                        self._topic, str(number).encode(), partition=number % PARTITIONS
                    )
                except BufferError:  # the source is slow to answer
                    break
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
    classpath = os.pathsep.join(map(str, resolve(*MM1_JARS, _LOGGER)))
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


def _java_options(options: list[str], assignor: str) -> list[str]:
    """With cooperative assignors Java commits each minute, as by default, not each second.

    Its thread ends when a commit between two polls meets a rebalance under way.
    """
    if assignor != "CooperativeStickyAssignor":
        return options
    return [*options[:-1], "60000"]


def _files(
    directory: Path, a: KafkaCluster, b: KafkaCluster, group: str, topics: str, assignor: str
) -> list[str]:
    options = write_mm1(directory, a, b, group)
    with Path(options[1]).open("a") as consumer:
        consumer.write(
            f"session.timeout.ms={SESSION_S * 1000}\nheartbeat.interval.ms=1000\n"
            "metadata.max.age.ms=2000\n"
        )
        if assignor:
            name = f"org.apache.kafka.clients.consumer.{assignor}"
            consumer.write(f"partition.assignment.strategy={name}\n")
    return [*options, "--include", topics, "--offset.commit.interval.ms", "1000"]


def _shares(cluster: KafkaCluster, group: str) -> dict[str, int]:
    """Partitions of each member of ``group`` that has some, by client id and member."""
    client = admin(cluster)
    try:
        found: ConsumerGroupDescription = client.describe_consumer_groups([group])[group].result(20)
    except (KafkaException, TimeoutError):  # the coordinator is being loaded
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


@contextmanager
def _standing_still(pid: int) -> Iterator[None]:
    """SIGSTOP to the driver, Spark's JVM and its workers for as long as the block lasts."""
    driver = psutil.Process(pid)
    stopped = [driver, *driver.children(recursive=True)]
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()


class _Positions:
    """The group's offsets in its first topic, looked at again and again: none goes back."""

    def __init__(self, cluster: KafkaCluster, group: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group}
        )
        self._wanted = [TopicPartition(group, number) for number in range(PARTITIONS)]
        self._highest = [-1] * PARTITIONS

    def behind(self, offset: int) -> bool:
        """Whether all positions are at ``offset`` or behind it."""
        answer = self._consumer.committed(self._wanted, timeout=20)
        found = [max(-1, one.offset) for one in answer]  # below: none is committed yet
        back = [at for at in zip(self._highest, found, strict=True) if at[1] < at[0]]
        assert not back, f"positions went back: {back}"
        self._highest = found
        return min(found) >= offset

    def close(self) -> None:
        self._consumer.close()


def _sleep_and_wake(
    a: KafkaCluster, b: KafkaCluster, name: str, mirror: MirrorProcess, load: _Load
) -> None:
    """A whole mirror stands still for longer than its session, the other takes over, it wakes up.

    What it had read counts for nothing then: it must not set back what the other has committed.
    """
    every, positions = set(range(PARTITIONS)), _Positions(a, name)
    try:
        with _standing_still(mirror.process.pid):
            # Past all that it can have read.
            mark = load.sent // PARTITIONS + 1
            wait_until(lambda: sorted(_shares(a, name).values()) == [PARTITIONS], "given up")
            _copied_again(b, name, every, load)
            wait_until(lambda: positions.behind(mark), "the other's commits")
        woken = load.sent // PARTITIONS

        def shared() -> bool:
            return positions.behind(mark) and sorted(_shares(a, name).values()) == [3, 3]

        wait_until(shared, "it is a member again", TAKE_OVER_S_MAX)
        assert "the group has removed this mirror" in mirror.text()
        wait_until(lambda: positions.behind(woken), "commits of both")
    finally:
        positions.close()
    _copied_again(b, name, every, load)


def _target_ends(cluster: KafkaCluster, topic: str) -> int:
    return len(consume_all(cluster, topic))


def _copied_again(cluster: KafkaCluster, topic: str, killed: set[int], load: _Load) -> float:
    """Seconds until a record that was written from now on arrives from each of ``killed``."""
    mark, began = load.sent + 200, time.monotonic()
    while True:
        values = [int(one.value or b"-1") for one in consume_all(cluster, topic)]
        if {value % PARTITIONS for value in values if value > mark} >= killed:
            return time.monotonic() - began
        assert time.monotonic() - began < TAKE_OVER_S_MAX, "nobody took over"
        time.sleep(0.3)


def _new_topic(a: KafkaCluster, b: KafkaCluster, topic: str) -> float:
    """Seconds until the records of a topic that both subscriptions match have arrived."""
    create_topic(b, topic, 2)
    began = time.monotonic()
    create_topic(a, topic, 2)
    produce(a, topic, [Sent(b"%d" % n, partition=n % 2) for n in range(20)])
    wait_until(lambda: topic in topic_names(b), f"{topic} on the target")
    wait_until(lambda: len(consume_all(b, topic)) >= 20, f"the records of {topic}")
    return time.monotonic() - began


def share_and_take_over(
    a: KafkaCluster, b: KafkaCluster, directory: Path, assignor: str = ""
) -> Sharing:
    """Two of our processes and one of Java's mirror a->b under load; one of each kind is killed,
    and one of ours stopped past its session and woken.

    ``assignor``: a class name of Java's; empty for the default list. Fails when a record is lost,
    when one comes twice though nobody had died, or when nobody takes over.
    """
    name = f"group-{uuid.uuid4().hex[:8]}"
    for cluster in (a, b):
        create_topic(cluster, name, PARTITIONS)
    options = _files(directory, a, b, name, f"{name}.*", assignor)
    every = set(range(PARTITIONS))
    with _Load(a, name) as load:
        first = MirrorProcess(directory / "1", options, command="kafka-mirror-maker", cold=True)
        second = None
        try:
            wait_until(
                lambda: name in str(_shares(a, name)) and _target_ends(b, name) > 0,
                "the first mirror copies",
            )
            second = MirrorProcess(
                directory / "2", options, command="kafka-mirror-maker", cold=True
            )
            with _java(_java_options(options, assignor), directory / "java.log") as java:

                def shared() -> bool:
                    assert java.poll() is None, "Java's MirrorMaker has ended by itself"
                    return sorted(_shares(a, name).values()) == [2, 2, 2]

                wait_until(shared, "all three have their share")
                _copied_again(b, name, every, load)
                before = Counter(one.value for one in consume_all(b, name))
                assert max(before.values()) == 1, "copied twice though nobody had died"
                _kill_tree(first.process.pid)
                ours_killed_s = _copied_again(b, name, every, load)
                wait_until(lambda: sorted(_shares(a, name).values()) == [3, 3], "two shares")
                _sleep_and_wake(a, b, name, second, load)
                new_topic_s = _new_topic(a, b, f"{name}.later")
                java.send_signal(signal.SIGKILL)
                java_killed_s = _copied_again(b, name, every, load)
        finally:
            load.__exit__()
            sent = {str(number).encode() for number in range(load.sent)}
            try:
                wait_until(
                    lambda: {one.value for one in consume_all(b, name)} == sent,
                    "every record at the target",
                )
                assert second is not None
                code, _ = second.drain()
                assert code == 143, second.text()
            finally:
                first.kill()
                if second is not None:
                    second.kill()
    # The drained one has left the group: nobody would have to wait for its session.
    assert not _shares(a, name)
    again = len(consume_all(b, name)) - load.sent
    return Sharing(assignor, ours_killed_s, java_killed_s, new_topic_s, load.sent, again)
