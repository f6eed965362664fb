"""MirrorMaker 1 with files of 0.8 and a ZooKeeper; two sources at once; a shared target."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from sparkmirror.cli.main import main
from sparkmirror.errors import ClusterError, Unreachable
from sparkmirror.java import find_java
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.testing.maven import resolve
from sparkmirror.testing.probe import free_ports
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.legacy.zookeeper import (
    ZookeeperGroup,
    find_brokers,
    group_offsets,
    read_group,
)
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce, topic_names
from tests.patience import others_per_core, patience

# The last release with ConsumerOffsetChecker and with the consumer that keeps all in ZooKeeper.
_OLD_JARS = "org.apache.kafka:kafka_2.11:0.11.0.3"
_CHROOT = "/kafka/west"


@pytest.fixture(scope="module")
def old() -> Iterator[KafkaCluster]:
    """A broker of the last release that knows ZooKeeper, below a chroot."""
    with KafkaCluster("old", version="3.9.1", chroot=_CHROOT) as cluster:
        yield cluster


def old_java(main_class: str, *arguments: str) -> list[str]:
    """The command line of a program of 0.11."""
    classpath = os.pathsep.join(map(str, resolve(_OLD_JARS)))
    return [str(find_java().java), "-Xmx256m", "-cp", classpath, main_class, *arguments]


def offset_checker(zookeeper: str, group: str) -> list[str]:
    """ConsumerOffsetChecker's table, and the brokers below it."""
    java = subprocess.run(
        old_java(
            "kafka.tools.ConsumerOffsetChecker",
            *("--zookeeper", zookeeper, "--group", group, "--broker-info"),
        ),
        capture_output=True,
        text=True,
        timeout=patience(),
        check=True,
    )
    lines = [line.rstrip() for line in java.stdout.splitlines() if line.strip()]
    return lines[next(n for n, line in enumerate(lines) if line.startswith("Group")) :]


def write_nodes(zookeeper: str, nodes: dict[str, bytes]) -> None:
    client = KazooClient(zookeeper)
    client.start(10)
    for path, data in nodes.items():
        client.ensure_path(path)  # it is there when a test gets its second try
        client.set(path, data)
    client.stop()
    client.close()


def store_offset(zookeeper: str, group: str, tp: TopicPartition, offset: int) -> None:
    """Commits as the old consumer did."""
    path = f"/consumers/{group}/offsets/{tp.topic}/{tp.partition}"
    write_nodes(zookeeper, {path: str(offset).encode()})


def test_brokers_and_offsets_are_found_in_zookeeper(old: KafkaCluster) -> None:
    assert ",".join(find_brokers(old.zookeeper)) == old.bootstrap_servers
    with pytest.raises(ClusterError, match="none with a SASL_SSL listener"):
        find_brokers(old.zookeeper, "SASL_SSL")
    with pytest.raises(ClusterError, match="no Kafka cluster is registered"):
        find_brokers(f"{old.zookeeper}/elsewhere")
    tp = TopicPartition("t", 0)
    store_offset(old.zookeeper, "g", tp, 7)
    assert group_offsets(old.zookeeper, "g", [tp, TopicPartition("t", 1)]) == {tp: 7}


@pytest.mark.more
def test_a_cluster_below_a_chroot(old: KafkaCluster) -> None:
    """What stands below one chroot is not found below another."""
    assert old.zookeeper.endswith(_CHROOT)
    root = old.zookeeper.removesuffix(_CHROOT)
    tp = TopicPartition("t", 0)
    write_nodes(
        old.zookeeper,
        {
            "/consumers/chrooted/offsets/t/0": b"9",
            "/consumers/chrooted/owners/t/0": b"chrooted_host-1-0",
        },
    )
    found = ZookeeperGroup({tp: 9}, {tp: "chrooted_host-1-0"})
    assert read_group(old.zookeeper, "chrooted") == found
    assert group_offsets(old.zookeeper, "chrooted", [tp]) == {tp: 9}
    assert read_group(root, "chrooted") == ZookeeperGroup({}, {})
    for elsewhere in (root, f"{root}/kafka", f"{root}/kafka/east"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the error alone is what users see
            with pytest.raises(ClusterError, match="chroot at the end"):
                find_brokers(elsewhere)


@pytest.mark.more
def test_lag_is_told_as_consumer_offset_checker_tells_it(
    old: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the real tool, of the last release that had it."""
    name = f"check-{uuid.uuid4().hex[:8]}"
    consumer_id = f"{name}_host-1"
    create_topic(old, name, 3)
    for partition in range(3):
        produce(old, name, [Sent(b"x", partition=partition)] * 5)
    base = f"/consumers/{name}"
    registration = {"version": 1, "subscription": {name: 1}, "pattern": "static", "timestamp": "1"}
    write_nodes(
        old.zookeeper,
        {
            f"{base}/ids/{consumer_id}": json.dumps(registration).encode(),
            f"{base}/offsets/{name}/0": b"2",
            f"{base}/offsets/{name}/1": b"5",
            f"{base}/owners/{name}/0": f"{consumer_id}-0".encode(),
            f"{base}/owners/{name}/1": f"{consumer_id}-0".encode(),
        },
    )
    theirs = offset_checker(old.zookeeper, name)
    command = ["lag", "--group", name, "--zkconnect", old.zookeeper]
    assert main([*command, "--broker-info"]) == 0
    ours = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in ours] == theirs
    assert ours[1].split() == [name, name, "0", "2", "5", "3", f"{consumer_id}-0"]
    assert ours[3].split() == [name, name, "2", "-1", "5", "unknown", "none"]
    assert ours[4:] == ["BROKER INFO", f"1 -> {old.bootstrap_servers}"]

    # An offset in Kafka counts more, as for Java; the consumer's file will do, too.
    client = Cluster(ClusterClient("old", (old.bootstrap_servers,), "test"))
    client.commit_offsets(name, {TopicPartition(name, 0): (4, "")})
    client.close()
    consumer = tmp_path / "consumer.properties"
    consumer.write_text(f"zookeeper.connect={old.zookeeper}\ngroup.id={name}\n")
    assert main(["lag", str(consumer), "--json"]) == 0
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert [row["position"] for row in flow["partitions"]] == [4, 5, None]
    assert main(["lag", str(consumer), "--format", "groups", "--max-lag", "1"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split() == [name, name, "2", "-", "5", "-", "-", "-", "-"]
    # Its offsets alone are in ZooKeeper: the brokers are named.
    both = [*command, "--bootstrap-server", old.bootstrap_servers, "--topic", f"{name},"]
    assert main([*both, "--format", "json"]) == 0
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert [row["position"] for row in flow["partitions"]] == [4, 5, None]
    assert flow["partitions"][1]["owner"]["member"] == f"{consumer_id}-0"
    assert main([*both[:2], f"{name}-none", *both[3:]]) == 3
    assert main([*command, "--topic", "none"]) == 3
    told = capsys.readouterr().err
    assert f"there is no group {name}-none" in told
    assert "there is no topic none, or this principal may not describe it. The group has " in told
    # Without the chroot no cluster is there.
    assert main([*command[:-1], old.zookeeper.removesuffix(_CHROOT)]) == 3
    assert "chroot at the end" in capsys.readouterr().err


@pytest.mark.long
def test_lag_of_a_consumer_of_0_11_at_work(
    old: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What Java's old consumer writes to ZooKeeper itself; of two topics one is asked for."""
    name = f"live-{uuid.uuid4().hex[:8]}"
    topics = (name, f"{name}.other")
    for topic in topics:
        create_topic(old, topic, 2)
        produce(old, topic, [Sent(b"x", partition=n % 2) for n in range(9)])
    consumer = tmp_path / "consumer.properties"
    consumer.write_text(
        f"group.id={name}\nauto.commit.interval.ms=200\nzookeeper.session.timeout.ms=20000\n"
    )
    command = ["lag", "--group", name, "--zkconnect", old.zookeeper]

    def rows(*options: str) -> list[list[str]]:
        if main([*command, *options]) != 0:  # the group has registered nothing yet
            return []
        return [line.split() for line in capsys.readouterr().out.splitlines()[1:]]

    def settled() -> bool:
        assert java.poll() is None, (tmp_path / "java.log").read_text()
        found = rows()
        return len(found) == 4 and all(row[5] == "0" and row[6] != "none" for row in found)

    with (tmp_path / "java.log").open("wb") as log:
        java = subprocess.Popen(
            old_java(
                "kafka.tools.ConsoleConsumer",
                *("--zookeeper", old.zookeeper, "--whitelist", f"{name}.*", "--from-beginning"),
                *("--consumer.config", str(consumer)),
            ),
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(settled, "a group that has read all")
        capsys.readouterr()
        assert main([*command, "--broker-info"]) == 0
        ours = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert ours == offset_checker(old.zookeeper, name)
        (one,) = {row[6] for row in rows()}  # one thread has all
        assert one.startswith(f"{name}_")
        assert rows("--topic", topics[1]) == [
            [name, topics[1], "0", "5", "5", "0", one],
            [name, topics[1], "1", "4", "4", "0", one],
        ]
        # The records stay away from a consumer that stands still, and so does its offset.
        java.send_signal(signal.SIGSTOP)
        produce(old, name, [Sent(b"x", partition=1)] * 3)
        assert rows("--topic", name)[1] == [name, name, "1", "4", "7", "3", one]
    finally:
        java.kill()
        java.wait(10)
    # Its owners go with its session, its offsets stay.
    wait_until(lambda: {row[6] for row in rows()} == {"none"}, "no owners")
    assert rows("--topic", name)[1] == [name, name, "1", "4", "7", "3", "none"]


@pytest.mark.more
def test_a_zookeeper_that_is_away() -> None:
    (port,) = free_ports(1)
    started = time.monotonic()
    with pytest.raises(Unreachable, match="no answer"):
        find_brokers(f"127.0.0.1:{port}")
    assert time.monotonic() - started < 15 * others_per_core()


@pytest.mark.more
def test_a_mirror_goes_on_where_old_consumers_stopped_and_reads_two_sources(
    old: KafkaCluster,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
) -> None:
    name = f"zk-{uuid.uuid4().hex[:8]}"
    other = f"{name}-other"
    group = f"{name}-group"
    create_topic(old, name, 2)
    create_topic(cluster_a, other, 1)
    for partition in (0, 1):
        records = [Sent(f"{partition}/{n}".encode(), partition=partition) for n in range(10)]
        produce(old, name, records)
    produce(cluster_a, other, [Sent(f"other/{n}".encode()) for n in range(5)])
    store_offset(old.zookeeper, group, TopicPartition(name, 0), 6)
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text(
        f"zookeeper.connect={old.zookeeper}\ngroup.id={group}\nauto.offset.reset=smallest\n"
        "fetch.message.max.bytes=1048576\nauto.commit.enable=true\nshallowiterator.enable=true\n"
    )
    two.write_text(
        f"bootstrap.servers={cluster_a.bootstrap_servers}\ngroup.id={group}\n"
        "auto.offset.reset=earliest\n"
    )
    producer = tmp_path / "producer"
    producer.write_text(
        f"metadata.broker.list={cluster_b.bootstrap_servers}\nrequest.required.acks=-1\n"
        "producer.type=async\nqueue.buffering.max.ms=5000\ncompression.codec=none\n"
    )
    run = MirrorProcess(
        tmp_path,
        ["--consumer.config", str(one), "--consumer.config", str(two), "--producer.config",
         str(producer), "--whitelist", f"{name}.*", "--num.producers", "2", "--keep.partitions"],
        command="kafka-mirror-maker",
    )  # fmt: skip

    def arrived() -> bool:
        assert run.process.poll() is None, run.text()
        if not {name, other} <= topic_names(cluster_b):
            return False
        return len(consume_all(cluster_b, name)) >= 14 and len(consume_all(cluster_b, other)) >= 5

    try:
        wait_until(arrived, "14 and 5 records on the target")
    finally:
        code, _ = run.drain()
    assert code == 143, run.text()
    values = [record.value for record in consume_all(cluster_b, name)]
    assert values == [f"0/{n}".encode() for n in range(6, 10)] + [
        f"1/{n}".encode() for n in range(10)
    ]
    assert len(consume_all(cluster_b, other)) == 5
    told = run.text()
    assert f"is now bootstrap.servers={old.bootstrap_servers} (found in ZooKeeper)" in told
    assert "1 positions taken over from the group's offsets in ZooKeeper" in told
    assert "--num.producers has no effect" in told
    committed = _committed(old, group, [TopicPartition(name, 0), TopicPartition(name, 1)])
    assert committed == {TopicPartition(name, 0): 10, TopicPartition(name, 1): 10}


def _committed(
    cluster: KafkaCluster, group: str, partitions: list[TopicPartition]
) -> dict[TopicPartition, int]:
    client = Cluster(ClusterClient("old", tuple(cluster.bootstrap_servers.split(",")), "test"))
    try:
        return {tp: c.offset for tp, c in client.committed_offsets(group, partitions).items()}
    finally:
        client.close()


@pytest.mark.long
def test_two_mirrors_with_files_of_mirrormaker_1_share_a_target(
    new_cluster: Callable[..., KafkaCluster],
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
) -> None:
    """One process per source is how MirrorMaker 1 has been run since 0.9."""
    sources = (cluster_a, new_cluster("C"))
    name = f"two-{uuid.uuid4().hex[:8]}"
    runs = []
    try:
        for number, source in enumerate(sources):
            create_topic(source, f"{name}.{number}", 1)
            consumer, producer = tmp_path / f"c{number}", tmp_path / f"p{number}"
            consumer.write_text(
                f"bootstrap.servers={source.bootstrap_servers}\ngroup.id={name}\n"
                "auto.offset.reset=earliest\n"
            )
            producer.write_text(f"bootstrap.servers={cluster_b.bootstrap_servers}\n")
            arguments = ["--consumer.config", str(consumer), "--producer.config", str(producer)]
            arguments += ["--include", f"{name}.*"]
            run = MirrorProcess(tmp_path / str(number), arguments, command="kafka-mirror-maker")
            runs.append(run)
            wait_until(lambda n=number: f"{name}.{n}" in topic_names(cluster_b), "topic")
        for count in range(1, 4):
            for number, source in enumerate(sources):
                produce(source, f"{name}.{number}", [Sent(f"{count}".encode())])
            for number in range(2):
                wait_until(
                    lambda n=number, c=count: len(consume_all(cluster_b, f"{name}.{n}")) == c,
                    f"record {count} of source {number}",
                )
            time.sleep(3)  # the first one must not be replaced by the second
    finally:
        codes = [run.drain()[0] for run in runs]
    assert codes == [143, 143], [run.text() for run in runs]
