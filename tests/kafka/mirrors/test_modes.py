"""Continuous and bounded runs, drain, restart, discovery, both tools' files."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import (
    MirrorProcess,
    TerminalProcess,
    installed,
    wait_until,
    write_mm1,
    write_mm2,
)
from tests.kafka.harness.support import (
    Sent,
    admin,
    consume_all,
    contents,
    create_topic,
    grow_topic,
    produce,
    produce_transaction,
    topic_names,
    wait_until_equal,
)
from tests.patience import others_per_core, patience


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
        wait_until_equal(cluster_a, f"{name}.one", cluster_b, f"A.{name}.one")
        # A new topic and new partitions are picked up while it runs.
        create_topic(cluster_a, f"{name}.two", 1)
        produce(cluster_a, f"{name}.two", _some(50, 1))
        grow_topic(cluster_a, f"{name}.one", 3)
        produce(cluster_a, f"{name}.one", _some(90, 3, first=500))
        wait_until(lambda: f"A.{name}.two" in topic_names(cluster_b), "the new remote topic")
        wait_until_equal(cluster_a, f"{name}.two", cluster_b, f"A.{name}.two")
        wait_until_equal(cluster_a, f"{name}.one", cluster_b, f"A.{name}.one")
        code, seconds = mirror.drain()
    finally:
        mirror.kill()
    assert code == 0, mirror.text()
    assert seconds < 10 * others_per_core()
    ends = [280, 280, 30]
    assert _committed(cluster_b, "__mirror.A->B", f"A.{name}.one", 3) == ends

    # Restart with the checkpoint directory gone: nothing twice, nothing missing.
    shutil.rmtree(tmp_path / "work", ignore_errors=True)
    produce(cluster_a, f"{name}.one", _some(60, 3, first=590))
    second = MirrorProcess(tmp_path, [*arguments, "--once"])
    assert second.wait() == 0, second.text()
    for topic in (f"{name}.one", f"{name}.two"):
        source = contents(consume_all(cluster_a, topic))
        assert contents(consume_all(cluster_b, f"A.{topic}")) == source

    third = MirrorProcess(tmp_path, [*arguments, "--once"])
    assert third.wait() == 0, third.text()
    assert len(consume_all(cluster_b, f"A.{name}.one")) == 650

    told = subprocess.run(
        [installed("sparkmirror"), "history", path, "--format", "json"],
        capture_output=True,
        check=True,
    )
    events = json.loads(told.stdout)["events"]
    # Mirrors of other tests, some of them killed, had the same flow.
    events = [one for one in events if one["kind"] in ("start", "stop")][-6:]
    runs = [one["run_id"] for one in events[::2]]
    assert [(one["kind"], one["run_id"]) for one in events] == [
        (kind, run) for run in runs for kind in ("start", "stop")
    ]
    assert len(set(runs)) == 3
    assert "SIGTERM" in events[1]["text"]
    assert "--once" in events[2]["text"]


def test_a_stop_that_reaches_every_process_at_once_drains(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """As of a service manager, or a machine that goes down: Spark leaves it to the driver."""
    name = f"stopped-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, name, 2)
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, name)
    mirror = MirrorProcess(tmp_path, ["run", str(path)], cold=True)
    try:
        wait_until(lambda: f"A.{name}" in topic_names(cluster_b), "the remote topic")
        with _Steady(cluster_a, name):
            wait_until(lambda: len(consume_all(cluster_b, f"A.{name}")) > 500, "steady traffic")
            driver = psutil.Process(mirror.process.pid)
            children = driver.children(recursive=True)
            assert len(_pipeline_workers(driver.pid)) >= 2
            for process in (*children, driver):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGTERM)
            assert mirror.wait() == 0, mirror.text()
    finally:
        mirror.kill()
    assert "drained: all records that were read are written" in mirror.text()
    positions = _committed(cluster_b, "__mirror.A->B", f"A.{name}", 2)
    _check_drained(cluster_b, f"A.{name}", positions, cluster_a, name)
    assert psutil.wait_procs(children, timeout=patience())[1] == []


def _pipeline_workers(pid: int) -> list[psutil.Process]:
    """The Python processes that run slots: children of the daemon, not the daemon."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended while we looked
            if process.cmdline()[1:3] == ["-m", "sparkmirror.data.workers.daemon"]:
                found[process.pid] = process.ppid(), process
    return [process for parent, process in found.values() if parent in found]


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
        assert run.wait() == 0, run.text()
    assert len(consume_all(cluster_b, f"A.{name}")) == 30
    assert len(consume_all(cluster_a, f"B.{name}")) == 40
    mine = {topic for topic in topic_names(cluster_a) | topic_names(cluster_b) if name in topic}
    assert mine == {name, f"A.{name}", f"B.{name}"}


@pytest.mark.more
def test_positions_come_back_from_the_offset_storage_topic_alone(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """As when the group's offsets have expired: nothing is lost and nothing copied twice."""
    name = f"stored{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, name, 4)  # the last partition stays empty
    produce(cluster_a, name, _some(300, 3))
    # The last offset of partition 0 is then a marker, which no consumer sees.
    produce_transaction(cluster_a, name, [Sent(b"in a transaction")])
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, cluster_b, name, source=name, target="T"
    )
    arguments = ["run", str(path), "--log-format", "json"]
    remote, group = f"{name}.{name}", f"__mirror.{name}->T"
    mirror = MirrorProcess(tmp_path, arguments)
    try:
        wait_until(lambda: remote in topic_names(cluster_b), "the remote topic")
        wait_until(
            lambda: _committed(cluster_b, group, remote, 3) == [102, 100, 100],
            "the positions behind the last record and the marker",
        )
        code, _ = mirror.drain()
    finally:
        mirror.kill()
    assert code == 0, mirror.text()

    guard = admin(cluster_b)  # kept: what it was asked for goes with it
    guard.delete_consumer_groups([group])[group].result(20)
    assert _committed(cluster_b, group, remote, 3) == [OFFSET_INVALID] * 3
    produce(cluster_a, name, _some(80, 4, first=300))
    again = MirrorProcess(tmp_path, [*arguments, "--once"])
    assert again.wait() == 0, again.text()
    told = [one["message"] for one in again.documents() if one["type"] == "event"]
    assert f"{name}->T: 3 positions taken over from mm2-offsets.{name}.internal" in told
    copied = sum(one["records"] for one in again.documents() if one["type"] == "summary")
    assert copied == 80
    assert contents(consume_all(cluster_b, remote)) == contents(consume_all(cluster_a, name))
    assert _committed(cluster_b, group, remote, 4) == [122, 120, 120, 20]


class _Steady:
    """Writes records to two partitions of ``topic`` until it is stopped."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        first = 0
        while not self._stop.is_set():
            produce(self._cluster, self._topic, _some(50, 2, first=first))
            first += 50

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)


def _command(process: psutil.Process) -> list[str]:
    """Its command line; nothing of one that has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _check_drained(
    target: KafkaCluster, topic: str, positions: list[int], source: KafkaCluster, origin: str
) -> None:
    """What is on the target is the head of each source partition, up to the position."""
    wanted, got = contents(consume_all(source, origin)), contents(consume_all(target, topic))
    for number, position in enumerate(positions):
        head = [one for one in wanted if one.partition == number][:position]
        assert [one for one in got if one.partition == number] == head
        assert len(head) == position


@pytest.mark.long
def test_a_mirror_in_a_terminal(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """Its keys; SIGHUP by hand looks for new topics; a terminal that closes drains in order."""
    name = f"hangup-{uuid.uuid4().hex[:8]}"
    later = f"{name}.later"
    create_topic(cluster_a, name, 2)
    work_dir = tmp_path / "work"
    extra = {"refresh.topics.interval.seconds": "600", "B.admin.request.timeout.ms": "2000"}
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, f"{name}.*", extra)
    produce(cluster_a, name, _some(2))
    mirror = TerminalProcess(tmp_path, ["run", str(path), "--work-dir", str(work_dir)])
    try:
        wait_until(lambda: f"A.{name}" in topic_names(cluster_b), "the remote topic")
        wait_until(lambda: len(consume_all(cluster_b, f"A.{name}")) == 2, "the first records")
        assert "\x1b[?25l" in mirror.text(), "no live view"
        create_topic(cluster_a, later, 1)
        produce(cluster_a, later, _some(5, 1))
        grow_topic(cluster_a, name, 3)
        produce(cluster_a, name, _some(30, 3))
        _check_topics_key(mirror, name)
        _check_headline(mirror, cluster_b)

        time.sleep(4)  # nobody has asked yet
        assert f"A.{later}" not in topic_names(cluster_b)
        assert _partition_count(cluster_b, f"A.{name}") == 2
        mirror.process.send_signal(signal.SIGHUP)
        wait_until_equal(cluster_a, later, cluster_b, f"A.{later}")
        wait_until_equal(cluster_a, name, cluster_b, f"A.{name}")
        wait_until(
            lambda: "looking for new topics and partitions" in mirror.text(), "the notice of it"
        )

        children = psutil.Process(mirror.process.pid).children(recursive=True)
        assert children
        with _Steady(cluster_a, name):
            wait_until(lambda: len(consume_all(cluster_b, f"A.{name}")) > 500, "steady traffic")
            mirror.close()
            assert mirror.process.wait(patience()) == 0
    finally:
        mirror.kill()
    log = (work_dir / "sparkmirror.log").read_text(encoding="utf-8")
    assert "drained: all records that were read are written" in log
    assert " ERROR " not in log
    positions = _committed(cluster_b, "__mirror.A->B", f"A.{name}", 3)
    _check_drained(cluster_b, f"A.{name}", positions, cluster_a, name)
    gone, alive = psutil.wait_procs(children, timeout=patience())
    assert not alive
    assert gone


def _check_topics_key(mirror: TerminalProcess, topic: str) -> None:
    """``t`` shows a row per topic below the flows, and hides them again."""

    def rows(picture: list[str]) -> list[list[str]]:
        return [line.split() for line in picture if line.split()[:1] in (["topic"], [topic])]

    assert rows(mirror.picture("t topics")) == []
    mirror.press("t")
    heading, row = rows(mirror.picture("t hide topics"))
    assert heading[-2:] == ["parts", "errors"]
    assert row[-2:] == ["2", "0"]
    mirror.press("T")
    assert rows(mirror.picture("t topics")) == []


def _check_headline(mirror: TerminalProcess, target: KafkaCluster) -> None:
    """It says what the flow does: while nobody answers at the target, that it waits for it."""

    def says(state: str) -> Callable[[], bool]:
        return lambda: f"  {state}  " in mirror.picture("t topics")[0]

    wait_until(says("mirroring"), "a headline of a flow that mirrors")
    target.freeze()
    try:
        wait_until(says("waiting for the target B"), "a headline of a flow whose target is away")
    finally:
        target.thaw()
    wait_until(says("mirroring"), "a headline of a flow that mirrors again")


def _partition_count(cluster: KafkaCluster, topic: str) -> int:
    return len(admin(cluster).list_topics(topic, 20).topics[topic].partitions)


@pytest.mark.more
def test_connect_mirror_maker_serves_the_named_clusters_only(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"served{uuid.uuid4().hex[:8]}"
    a, b = f"a{name}", f"b{name}"
    for cluster in (cluster_a, cluster_b):
        create_topic(cluster, name, 2)
        produce(cluster, name, _some(60))
    extra = {f"{b}->{a}.enabled": "true", f"{b}->{a}.topics": name}
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, cluster_b, name, extra, source=a, target=b
    )

    def serve(clusters: list[str]) -> MirrorProcess:
        arguments = [str(path), "--clusters", *clusters]
        return MirrorProcess(tmp_path, arguments, command="connect-mirror-maker")

    mirror = serve([b, "unknown"])
    try:
        wait_until_equal(cluster_a, name, cluster_b, f"{a}.{name}")
        assert mirror.drain(number=signal.SIGINT)[0] == 0, mirror.text()
    finally:
        mirror.kill()
    # Neither the remote topic nor an internal one of the flow into a: only the offset syncs of the
    # flow into b, which live with its source.
    assert {one for one in topic_names(cluster_a) if b in one} == {f"mm2-offset-syncs.{b}.internal"}

    mirror = serve([a])
    try:
        produce(cluster_a, name, _some(10))
        wait_until_equal(cluster_b, name, cluster_a, f"{b}.{name}")
        assert mirror.drain()[0] == 143, mirror.text()
    finally:
        mirror.kill()
    assert len(consume_all(cluster_b, f"{a}.{name}")) == 60

    nobody = serve(["unknown"])
    assert nobody.wait() == 2
    assert nobody.text().count("error: ") == 1
    assert "--clusters" in nobody.text()
    assert "Traceback" not in nobody.text()


def test_kafka_mirror_maker_flags_exit_codes_and_signals(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"mm1-{uuid.uuid4().hex[:8]}"
    for topic in (f"{name}.in", f"{name}.out"):
        create_topic(cluster_a, topic, 2)
        produce(cluster_a, topic, _some(120))
    arguments = [
        *write_mm1(tmp_path, cluster_a, cluster_b, name),
        *("--include", f"{name}.in,no-such-topic", "--whitelist", ".*", "--num.streams", "2"),
        *("--offset.commit.interval.ms", "1000", "--abort.on.send.failure", "true"),
        *("--new.consumer", "--keep.partitions"),
    ]
    mirror = MirrorProcess(tmp_path, arguments, command="kafka-mirror-maker")
    try:
        wait_until(lambda: f"{name}.in" in topic_names(cluster_b), "the topic at the target")
        wait_until_equal(cluster_a, f"{name}.in", cluster_b, f"{name}.in")
        # Two streams: each has a partition.
        assert len(_pipeline_workers(mirror.process.pid)) >= 2
        with _Steady(cluster_a, f"{name}.in"):
            wait_until(lambda: len(consume_all(cluster_b, f"{name}.in")) > 500, "steady traffic")
            code, seconds = mirror.drain()
    finally:
        mirror.kill()
    assert code == 143, mirror.text()
    assert seconds < 10 * others_per_core()
    assert "--whitelist is ignored" in mirror.text()
    assert "--new.consumer has no effect" in mirror.text()
    assert f"{name}.out" not in topic_names(cluster_b)
    positions = _committed(cluster_a, name, f"{name}.in", 2)
    _check_drained(cluster_b, f"{name}.in", positions, cluster_a, f"{name}.in")

    # It goes on at the group's offsets, and a failure while it runs ends it with 255.
    produce(cluster_a, f"{name}.in", _some(10))
    mirror = MirrorProcess(tmp_path, arguments, command="kafka-mirror-maker", cold=True)
    try:
        wait_until_equal(cluster_a, f"{name}.in", cluster_b, f"{name}.in")
        children = psutil.Process(mirror.process.pid).children(recursive=True)
        spark = "org.apache.spark.deploy.SparkSubmit"  # not the JVM that archives its classes
        next(child for child in children if spark in _command(child)).kill()
        assert mirror.wait() == 255, mirror.text()
    finally:
        mirror.kill()
    assert "Spark no longer responds" in mirror.text()
    assert "Traceback" not in mirror.text()
