"""MirrorMaker 1's files: ``--once``, topics found later, verbs that look at what they would do."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from sparkmirror.cli.main import main
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm1
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce, topic_names


@contextmanager
def client_of(cluster: KafkaCluster) -> Iterator[Cluster]:
    client = Cluster(ClusterClient("A", (cluster.bootstrap_servers,), "test"))
    try:
        yield client
    finally:
        client.close()


def positions(client: Cluster, group: str) -> dict[TopicPartition, int]:
    return {tp: one.offset for tp, one in client.committed_offsets(group, None).items()}


def committed(cluster: KafkaCluster, group: str) -> dict[TopicPartition, int]:
    with client_of(cluster) as client:
        found = positions(client, group)
        # Who ends in order leaves the group at once.
        assert all("sparkmirror" not in one.client_id for one in client.group_members(group))
        return found


@contextmanager
def member(cluster: KafkaCluster, group: str, topic: str) -> Iterator[list[set[int]]]:
    """Another member of ``group`` that reads nothing; every share that the group has given it."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group,
                         "enable.auto.commit": False, "auto.offset.reset": "latest"})  # fmt: skip
    shares: list[set[int]] = []

    def assigned(_consumer: Consumer, partitions: list[ConfluentPartition]) -> None:
        shares.append({one.partition for one in partitions})

    consumer.subscribe([topic], on_assign=assigned)
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            consumer.poll(0.1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: len(shares) > 0, "the other member has its partitions")
        yield shares
    finally:
        over.set()
        thread.join(20)
        consumer.close()


def test_once_copies_up_to_now_and_commits(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    name = f"once-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, name, 4)
    values = [b"%d" % n for n in range(40)]
    produce(cluster_a, name, [Sent(v, key=v, partition=n % 4) for n, v in enumerate(values[:20])])
    files = write_mm1(tmp_path, cluster_a, cluster_b, name)
    options = [*files, "--include", f"{name}.*", "--once"]
    first = MirrorProcess(tmp_path, [*options, "--num.streams", "2"], command="kafka-mirror-maker")
    assert first.wait() == 0, first.text()
    assert "done" in first.text()
    assert sorted(one.value or b"" for one in consume_all(cluster_b, name)) == sorted(values[:20])
    every = {TopicPartition(name, n): 5 for n in range(4)}
    assert committed(cluster_a, name) == every

    # The next one goes on from there; of a shared group it copies its share.
    with member(cluster_a, name, name) as shares:
        produce(
            cluster_a, name, [Sent(v, key=v, partition=n % 4) for n, v in enumerate(values[20:])]
        )
        second = MirrorProcess(
            tmp_path, ["run", *options, "--log-format", "json"], command="sparkmirror"
        )
        assert second.wait() == 0, second.text()
        # All is the other member's again, once ours has left.
        wait_until(lambda: shares[-1] == {0, 1, 2, 3}, "all partitions are given back")
    (theirs,) = {frozenset(share) for share in shares if len(share) == 2}
    ours = [n for n in range(4) if n not in theirs]
    arrived = sorted(int(one.value or b"") for one in consume_all(cluster_b, name))
    assert arrived == sorted([*range(20), *(n for n in range(20, 40) if n % 4 in ours)])
    assert committed(cluster_a, name) == every | {TopicPartition(name, n): 10 for n in ours}
    (summary,) = [one for one in second.documents() if one["type"] == "summary"]
    assert summary["records"] == 10


@pytest.mark.more
def test_a_topic_that_is_found_later_begins_at_latest_when_the_group_gives_it(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path, topic_name: str
) -> None:
    """What it has before is left out, as Java's consumer does; what comes from then on is not."""
    first, later = f"{topic_name}-1", f"{topic_name}-2"
    create_topic(cluster_a, first)
    files = write_mm1(tmp_path, cluster_a, cluster_b, topic_name)
    consumer = tmp_path / "consumer.properties"
    consumer.write_text(
        consumer.read_text().replace("auto.offset.reset=earliest\n", "metadata.max.age.ms=1000\n")
    )
    mirror = MirrorProcess(
        tmp_path, [*files, "--whitelist", f"{topic_name}.*"], command="kafka-mirror-maker"
    )
    try:
        wait_until(lambda: "mirroring" in mirror.text(), "the mirror says that it mirrors")
        create_topic(cluster_a, later)
        produce(cluster_a, later, [Sent(b"early")] * 3)
        position = TopicPartition(later, 0)
        with client_of(cluster_a) as client:
            wait_until(lambda: position in positions(client, topic_name), "the group has it")
            begun = positions(client, topic_name)[position]
        assert begun <= 3  # what was there when the group gave the partition
        produce(cluster_a, later, [Sent(b"%d" % n) for n in range(5)])
        wanted = [b"early"] * (3 - begun) + [b"%d" % n for n in range(5)]
        wait_until(lambda: later in topic_names(cluster_b), "the topic is at the target")
        wait_until(lambda: len(consume_all(cluster_b, later)) >= len(wanted), "its records are")
        assert mirror.drain()[0] == 143, mirror.text()  # as a JVM ends on SIGTERM
        assert [one.value for one in consume_all(cluster_b, later)] == wanted
    finally:
        mirror.kill()


def test_what_mirrormaker_1s_files_would_do(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"would-{uuid.uuid4().hex[:8]}"
    few = f"{name}.few"
    create_topic(cluster_a, name, 2)
    create_topic(cluster_a, few, 3)
    create_topic(cluster_b, few, 1)
    files = write_mm1(tmp_path, cluster_a, cluster_b, name)
    before = topic_names(cluster_b)

    def asked(*arguments: str) -> dict[str, object]:
        assert main([*arguments, "--format", "json"]) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    def changes(*more: str) -> dict[str, str]:
        document = asked("plan", *files, "--include", f"{name}.*", *more)
        (flow,) = document["flows"]  # type: ignore[misc]
        return {one["topic"]: one["action"] for one in flow["changes"] if one["topic"]}

    # By key fewer partitions will do; a partition's number needs the partition.
    assert changes() == {name: "create-topic"}
    assert changes("--keep.partitions") == {name: "create-topic", few: "refuse"}
    (flow,) = asked("topics", *files, "--include", f"{name}.*")["flows"]  # type: ignore[misc]
    assert {one["remote"]: one["state"] for one in flow["topics"]} == {
        name: "missing", few: "fewer partitions",
    }  # fmt: skip
    found = asked("clusters", *files)["clusters"]
    assert [one["cluster"] for one in found] == ["source", "target"]  # type: ignore[index, union-attr]
    assert [one["no_heartbeats_from"] for one in found] == [[], []]  # type: ignore[index, union-attr]
    assert topic_names(cluster_b) == before


def test_the_migrated_file_runs(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """Files of 0.8 as one MirrorMaker 2 file, which goes on where MirrorMaker 1 stopped."""
    name = f"moved-{uuid.uuid4().hex[:8]}"
    for cluster in (cluster_a, cluster_b):
        create_topic(cluster, name, 2)
    produce(cluster_a, name, [Sent(b"%d" % n, partition=n % 2) for n in range(20)])
    source = Cluster(ClusterClient("A", (cluster_a.bootstrap_servers,), "test"))
    source.commit_offsets(name, {TopicPartition(name, 0): (4, "")})
    source.close()
    consumer, producer = tmp_path / "c", tmp_path / "p"
    consumer.write_text(
        f"broker.list={cluster_a.bootstrap_servers}\ngroupid={name}\nautooffset.reset=smallest\n"
        "fetch.size=1048576\nautocommit.enable=true\nqueuedchunks.max=10\n"
    )
    producer.write_text(
        f"metadata.broker.list={cluster_b.bootstrap_servers}\nrequest.required.acks=-1\n"
        "queue.buffering.max.ms=5000\ncompression.codec=none\n"
    )
    output = tmp_path / "mm2.properties"
    files = ["--consumer.config", str(consumer), "--producer.config", str(producer)]
    places = ["--source", f"A{name}", "--output", str(output), "--take-positions"]
    assert main(["migrate-config", *files, "--whitelist", name, *places]) == 0
    text = output.read_text()
    assert "# From c:3: autooffset.reset is now auto.offset.reset=earliest." in text
    assert "queuedchunks.max has no effect" in text
    run = MirrorProcess(tmp_path, ["run", str(output), "--once"])
    assert run.wait() == 0, run.text()
    arrived = sorted(int(one.value or b"") for one in consume_all(cluster_b, name))
    assert arrived == sorted([*range(8, 20, 2), *range(1, 20, 2)])
