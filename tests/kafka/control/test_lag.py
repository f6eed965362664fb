"""The lag of real groups, beside what Kafka's own tool says."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from sparkmirror.cli.main import main
from sparkmirror.config.mm1.load import load_mm1
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.control.positions.handover import hand_over
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from tests.kafka.harness.mirror_process import wait_until, write_mm2
from tests.kafka.harness.support import Sent, commit, create_topic, produce, produce_transaction

_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture
def clients(cluster_a: KafkaCluster, cluster_b: KafkaCluster) -> Iterator[tuple[Cluster, Cluster]]:
    pair = [
        Cluster(ClusterClient(name, tuple(one.bootstrap_servers.split(",")), "test"))
        for name, one in (("A", cluster_a), ("B", cluster_b))
    ]
    yield pair[0], pair[1]
    for one in pair:
        one.close()


def rows(capsys: pytest.CaptureFixture[str]) -> dict[int, dict[str, Any]]:
    document = json.loads(capsys.readouterr().out)
    (flow,) = document["flows"]
    return {row["partition"]: row for row in flow["partitions"]}


def test_a_flow_of_mirrormaker_2(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    clients: tuple[Cluster, Cluster],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = clients
    topic = f"lag-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic, 4)
    create_topic(cluster_b, f"A.{topic}", 4)
    now_ms = int(time.time() * 1000)
    for partition in (0, 1):
        produce(
            cluster_a,
            topic,
            [Sent(b"x", partition=partition, timestamp_ms=now_ms - 60_000 + n) for n in range(10)],
            config={"batch.num.messages": 1},
        )
    produce_transaction(cluster_a, topic, [Sent(b"tx", partition=3)], commit=False)
    group = "__mirror.A->B"
    target.commit_offsets(
        group,
        {TopicPartition(f"A.{topic}", 0): (4, ""), TopicPartition(f"A.{topic}", 1): (10, "")},
    )
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, topic)
    assert main(["lag", str(path), "--json"]) == 0
    found = rows(capsys)
    assert (found[0]["position"], found[0]["end"], found[0]["records"]) == (4, 10, 6)
    assert 59 < found[0]["seconds"] < 120
    assert (found[1]["records"], found[1]["seconds"]) == (0, 0.0)
    assert (found[2]["position"], found[2]["records"]) == (None, 0)
    assert found[3]["records"] == 2  # the aborted record and its marker are still to be passed
    for limit, code in ((["--max-lag", "6"], 0), (["--max-lag", "5"], 1),
                        (["--max-lag-seconds", "3600"], 0),
                        (["--max-lag-seconds", "30"], 1)):  # fmt: skip
        assert main(["lag", str(path), *limit]) == code
    capsys.readouterr()
    record = source.records_at({TopicPartition(topic, 0): 4})[TopicPartition(topic, 0)]
    assert record.time_ms == now_ms - 60_000 + 4
    assert source.records_at({TopicPartition(topic, 2): 0, TopicPartition("none", 0): 0}) == {}


def test_a_group_of_mirrormaker_1_is_told_as_kafkas_own_tool_does(
    cluster_a: KafkaCluster,
    clients: tuple[Cluster, Cluster],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, _ = clients
    topic = f"lag-{uuid.uuid4().hex[:8]}"
    group = f"{topic}-group"
    create_topic(cluster_a, topic, 2)
    produce(cluster_a, topic, [Sent(b"x", partition=n % 2) for n in range(9)])
    source.commit_offsets(
        group, {TopicPartition(topic, 0): (2, ""), TopicPartition(topic, 1): (4, "")}
    )
    path = tmp_path / "consumer.properties"
    path.write_text(f"bootstrap.servers={cluster_a.bootstrap_servers}\ngroup.id={group}\n")
    assert main(["lag", str(path)]) == 0
    ours = [line.split() for line in capsys.readouterr().out.splitlines() if topic in line][1:]
    java = cluster_a.tool(
        _GROUPS, "--bootstrap-server", cluster_a.bootstrap_servers, "--describe", "--group", group
    )
    theirs = [line.split() for line in java.stdout.splitlines() if line.startswith(group)]
    assert [row[:6] for row in ours] == sorted(row[:6] for row in theirs)
    assert [row[5] for row in ours] == ["3", "0"]
    assert main(["lag", str(path), "--max-lag", "2"]) == 1


@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.more), "consumer"])
def test_members_and_owners_of_any_group(
    cluster_a: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    topic = f"lag-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic, 2)
    produce(cluster_a, topic, [Sent(b"x", partition=n % 2) for n in range(6)])
    member = Consumer({"bootstrap.servers": cluster_a.bootstrap_servers, "group.id": topic,
                       "client.id": "reader", "enable.auto.commit": False,
                       "group.protocol": protocol})  # fmt: skip
    member.subscribe([topic])
    server = ["--bootstrap-server", cluster_a.bootstrap_servers]
    try:
        wait_until(lambda: member.poll(0.2) is None and len(member.assignment()) == 2, "a member")
        commit(member, [ConfluentPartition(topic, 0, 1)])
        assert main(["lag", "--group", topic, *server, "--format", "groups"]) == 0
        ours = [line.split() for line in capsys.readouterr().out.splitlines()]
        java = cluster_a.tool(_GROUPS, *server, "--describe", "--group", topic)
        theirs = [line.split() for line in java.stdout.splitlines() if line.strip()]
        assert ours[0] == theirs[0]
        assert sorted(ours[1:]) == sorted(theirs[1:])
        assert main(["lag", "--group", topic, *server, "--broker-info"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].split() == [topic, topic, "0", "1", "3", "2", "reader_/127.0.0.1"]
        assert lines[2].split()[3:] == ["-1", "3", "unknown", "reader_/127.0.0.1"]
        assert lines[3:] == ["BROKER INFO", f"1 -> {cluster_a.bootstrap_servers}"]
        assert main(["lag", "--group", topic, *server, "--json", "--max-lag", "5"]) == 1
        (flow,) = json.loads(capsys.readouterr().out)["flows"]
        assert {row["owner"]["client_id"] for row in flow["partitions"]} == {"reader"}
        assert len(flow["brokers"]) == 1
    finally:
        member.close()
    # A file that only says how to reach the cluster; a group that is not there.
    admin = tmp_path / "admin.properties"
    admin.write_text("security.protocol=PLAINTEXT\n")
    arguments = [*server, "--command-config", str(admin)]
    assert main(["lag", "--group", topic, *arguments, "--topic", topic]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "none"
    assert main(["lag", "--group", f"{topic}-none", *arguments]) == 3
    assert "there is no group" in capsys.readouterr().err


def test_watching_a_group(
    cluster_a: KafkaCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round asks anew; Ctrl+C ends it."""
    topic = f"lag-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic)
    client = Cluster(ClusterClient("A", (cluster_a.bootstrap_servers,), "test"))
    client.commit_offsets(topic, {TopicPartition(topic, 0): (0, "")})
    client.close()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt
        produce(cluster_a, topic, [Sent(b"x")] * 2)

    clock = SimpleNamespace(
        sleep=pause, time=time.time, strftime=time.strftime, monotonic=time.monotonic
    )
    monkeypatch.setattr("sparkmirror.cli.verbs.lag.time", clock)
    server = ["--bootstrap-server", cluster_a.bootstrap_servers]
    assert main(["lag", "--group", topic, *server, "--watch", "--interval", "7"]) == 130
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[3:6] for line in lines if line[0] == topic] == [
        ["0", "0", "0"], ["0", "2", "2"], ["0", "4", "4"],
    ]  # fmt: skip
    assert pauses == [7.0, 7.0, 7.0]


def test_a_cluster_that_is_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "consumer.properties"
    path.write_text("bootstrap.servers=127.0.0.1:1\ngroup.id=g\nrequest.timeout.ms=1000\n")
    assert main(["lag", str(path), "--json", "--max-lag", "0"]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_positions_are_handed_over_from_mirrormaker_1_to_2(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    clients: tuple[Cluster, Cluster],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = clients
    topic = f"over-{uuid.uuid4().hex[:8]}"
    for cluster, partitions in ((cluster_a, 3), (cluster_b, 2)):
        create_topic(cluster, topic, partitions)
    produce(cluster_a, topic, [Sent(b"x", partition=n % 3) for n in range(9)])
    group = f"{topic}-group"
    source.commit_offsets(group, {TopicPartition(topic, n): (n + 1, "") for n in range(3)})
    consumer, producer = tmp_path / "c", tmp_path / "p"
    consumer.write_text(f"bootstrap.servers={cluster_a.bootstrap_servers}\ngroup.id={group}\n")
    producer.write_text(f"bootstrap.servers={cluster_b.bootstrap_servers}\n")
    output = tmp_path / "mm2.properties"
    command = ["migrate-config", "--consumer.config", str(consumer), "--producer.config",
               str(producer), "--whitelist", topic, "--output", str(output),
               "--source", f"A{topic}"]  # fmt: skip
    assert main(command) == 0
    output.write_text(output.read_text() + "# edited\n")
    assert main([*command, "--take-positions"]) == 0
    told = capsys.readouterr().err
    assert "2 positions taken over" in told
    assert f"1 partitions that the target does not have yet ({topic}-2)" in told
    assert output.read_text().endswith("# edited\n")
    (new,) = load_mm2(output).flows
    committed = target.committed_offsets(new.position_group, None)
    assert {tp: one.offset for tp, one in committed.items()} == {
        TopicPartition(topic, 0): 1,
        TopicPartition(topic, 1): 2,
    }
    (old,) = load_mm1(consumer, producer, include=topic).flows
    again = hand_over(source, target, old, new)
    assert again.taken == ()
    assert len(again.kept) == 2
