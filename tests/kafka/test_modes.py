"""Continuous and bounded runs, drain, restart, discovery, both tools' files."""

from __future__ import annotations

import shutil
import signal
import time
import uuid
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from sparkmirror.demo.clusters import KafkaCluster
from tests.kafka.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.support import (
    Sent,
    consume_all,
    contents,
    create_topic,
    grow_topic,
    produce,
    topic_names,
    wait_until_equal,
)


def _some(count: int, partitions: int = 2, first: int = 0) -> list[Sent]:
    return [
        Sent(value=f"{n}".encode(), key=f"{n % 7}".encode(), partition=n % partitions)
        for n in range(first, first + count)
    ]


def _committed(cluster: KafkaCluster, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    try:
        wanted = [TopicPartition(topic, index) for index in range(partitions)]
        return [found.offset for found in consumer.committed(wanted, timeout=20)]
    finally:
        consumer.close()


@pytest.mark.timeout(240)
def test_continuous_drain_restart_and_discovery(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"modes-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, f"{name}.one", 2)
    produce(cluster_a, f"{name}.one", _some(500))
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, rf"{name}\\..*")
    arguments = ["run", str(path), "--work-dir", str(tmp_path / "work"), "--log-format", "json"]

    mirror = MirrorProcess(tmp_path, arguments)
    try:
        wait_until_equal(cluster_a, f"{name}.one", cluster_b, f"A.{name}.one", timeout_s=90)
        # A new topic and new partitions are picked up while it runs.
        create_topic(cluster_a, f"{name}.two", 1)
        produce(cluster_a, f"{name}.two", _some(50, 1))
        grow_topic(cluster_a, f"{name}.one", 3)
        produce(cluster_a, f"{name}.one", _some(90, 3, first=500))
        wait_until(lambda: f"A.{name}.two" in topic_names(cluster_b), "the new remote topic")
        wait_until_equal(cluster_a, f"{name}.two", cluster_b, f"A.{name}.two", timeout_s=60)
        wait_until_equal(cluster_a, f"{name}.one", cluster_b, f"A.{name}.one", timeout_s=60)
        code, seconds = mirror.drain()
    finally:
        mirror.kill()
    assert code == 0, mirror.text()
    assert seconds < 10
    ends = [280, 280, 30]
    assert _committed(cluster_b, "__mirror.A->B", f"A.{name}.one", 3) == ends

    # Restart with the checkpoint directory gone: nothing twice, nothing missing.
    shutil.rmtree(tmp_path / "work", ignore_errors=True)
    produce(cluster_a, f"{name}.one", _some(60, 3, first=590))
    second = MirrorProcess(tmp_path, [*arguments, "--once"])
    assert second.wait(120) == 0, second.text()
    for topic in (f"{name}.one", f"{name}.two"):
        source = contents(consume_all(cluster_a, topic))
        assert contents(consume_all(cluster_b, f"A.{topic}")) == source

    third = MirrorProcess(tmp_path, [*arguments, "--once"])
    assert third.wait(120) == 0, third.text()
    assert len(consume_all(cluster_b, f"A.{name}.one")) == 650


@pytest.mark.timeout(240)
def test_killed_worker_and_second_signal_lose_nothing(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"kill-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, name, 2)
    produce(cluster_a, name, _some(100))
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, name)
    mirror = MirrorProcess(tmp_path, ["run", str(path)])
    try:
        wait_until_equal(cluster_a, name, cluster_b, f"A.{name}", timeout_s=90)
        workers = _pipeline_workers(mirror.process.pid)
        assert workers
        workers[0].kill()
        produce(cluster_a, name, _some(400, first=100))
        wait_until(
            lambda: _values(cluster_a, name) <= _values(cluster_b, f"A.{name}"),
            "all records after a killed worker",
            60,
        )
        produce(cluster_a, name, _some(200, first=500))
        mirror.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        mirror.process.send_signal(signal.SIGINT)
        code = mirror.wait(15)
    finally:
        mirror.kill()
    assert code in (0, 130), mirror.text()
    again = MirrorProcess(tmp_path, ["run", str(path), "--once"])
    assert again.wait(120) == 0, again.text()
    assert _values(cluster_b, f"A.{name}") == _values(cluster_a, name)


def _pipeline_workers(pid: int) -> list[psutil.Process]:
    """The Python processes that run slots: children of the daemon, not the daemon."""
    daemons, others = set(), []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            parent = process.parent()
            if process.name() == "java" or "sparkmirror.data.daemon" not in process.cmdline():
                continue
            if parent is not None and parent.name() == "java":
                daemons.add(process.pid)
            else:
                others.append(process)
        except psutil.Error:  # it ended while we looked
            continue
    return [process for process in others if process.ppid() in daemons]


def _values(cluster: KafkaCluster, topic: str) -> set[bytes | None]:
    return {record.value for record in consume_all(cluster, topic)}


@pytest.mark.timeout(240)
def test_both_directions_make_no_loop(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"both-{uuid.uuid4().hex[:8]}"
    for cluster, count in ((cluster_a, 30), (cluster_b, 40)):
        create_topic(cluster, name, 1)
        produce(cluster, name, _some(count, 1))
    topics = rf".*{name}"
    extra = {"B->A.enabled": "true", "B->A.topics": topics}
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, topics, extra)
    for _ in range(2):
        run = MirrorProcess(tmp_path, ["run", str(path), "--once"])
        assert run.wait(120) == 0, run.text()
    assert len(consume_all(cluster_b, f"A.{name}")) == 30
    assert len(consume_all(cluster_a, f"B.{name}")) == 40
    mine = {topic for topic in topic_names(cluster_a) | topic_names(cluster_b) if name in topic}
    assert mine == {name, f"A.{name}", f"B.{name}"}


@pytest.mark.timeout(240)
def test_kafka_mirror_maker_files(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"mm1-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, name, 2)
    produce(cluster_a, name, _some(120))
    consumer, producer = tmp_path / "consumer.properties", tmp_path / "producer.properties"
    consumer.write_text(
        f"bootstrap.servers={cluster_a.bootstrap_servers}\ngroup.id={name}\n"
        "auto.offset.reset=earliest\n"
    )
    producer.write_text(f"bootstrap.servers={cluster_b.bootstrap_servers}\nacks=all\n")
    mirror = MirrorProcess(
        tmp_path,
        [
            *("--consumer.config", str(consumer), "--producer.config", str(producer)),
            *("--whitelist", f"{name},no-such-topic", "--num.streams", "2"),
        ],
        module="kafka_mirror_maker",
    )
    try:
        wait_until(lambda: name in topic_names(cluster_b), "the topic at the target", 90)
        wait_until_equal(cluster_a, name, cluster_b, name, timeout_s=90)
        mirror.drain()
    finally:
        mirror.kill()
    assert _committed(cluster_a, name, name, 2) == [60, 60]
