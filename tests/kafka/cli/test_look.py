"""plan, topics, clusters: what they say is what is there, and what a start then does."""

from __future__ import annotations

import contextlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from sparkmirror.cli.main import main
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.control.flow import FlowControl
from sparkmirror.control.sync_jobs import sync_jobs
from sparkmirror.internal_topics.mm2_records import encode_offset_sync
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.streams_member import StreamsMember
from tests.kafka.harness.support import (
    Sent,
    admin,
    commit,
    create_topic,
    produce,
    topic_config,
    topic_names,
)
from tests.unit.config_files import QUIET


@pytest.fixture
def prefix() -> str:
    return f"look-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def file(cluster_a: KafkaCluster, cluster_b: KafkaCluster, prefix: str, tmp_path: Path) -> Path:
    """Four topics: missing on the target, too small there, with another config, in step."""
    create_topic(cluster_a, f"{prefix}-new", 3, config={"retention.ms": "7000000"})
    create_topic(cluster_a, f"{prefix}-small", 4)
    create_topic(cluster_a, f"{prefix}-other", 1, config={"cleanup.policy": "compact"})
    create_topic(cluster_a, f"{prefix}-same", 2)
    create_topic(cluster_b, f"A.{prefix}-small", 2)
    create_topic(cluster_b, f"A.{prefix}-other", 2, config={"segment.ms": "90000"})
    create_topic(cluster_b, f"A.{prefix}-same", 2)
    path = tmp_path / "mm2.properties"
    path.write_text(
        f"clusters=A,B\nA.bootstrap.servers={cluster_a.bootstrap_servers}\n"
        f"B.bootstrap.servers={cluster_b.bootstrap_servers}\nA->B.enabled=true\n"
        f"topics={prefix}.*\nreplication.factor=1\noffset.storage.replication.factor=1\n"
        + QUIET.replace("sync.topic.configs.enabled=false\n", "")
    )
    return path


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def changes(capsys: pytest.CaptureFixture[str], file: Path, prefix: str) -> dict[str, Any]:
    (flow,) = asked(capsys, "plan", str(file))["flows"]
    assert flow["complete"]
    assert {one["cluster"] for one in flow["changes"]} <= {"B"}
    mine = [one for one in flow["changes"] if prefix in one["subject"]]
    names = [one["subject"].removeprefix(f"A.{prefix}-") for one in mine]
    return {
        f"{one['action']} {name} {one.get('config', '')}": one
        for name, one in zip(names, mine, strict=True)
    }


def test_a_plan_tells_what_a_start_does_and_does_nothing_itself(
    file: Path,
    prefix: str,
    cluster_b: KafkaCluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = topic_names(cluster_b)
    found = changes(capsys, file, prefix)
    assert set(found) == {
        "create-topic new ",
        "grow-topic small ",
        "set-config other cleanup.policy",
        "reset-config other segment.ms",
    }
    new = found["create-topic new "]
    assert (new["partitions"], new["replication_factor"]) == (3, 1)
    assert new["configs"]["retention.ms"] == "7000000"
    assert found["grow-topic small "]["partitions"] == 4
    assert found["set-config other cleanup.policy"]["value"] == "compact"
    assert main(["plan", str(file)]) == 0
    assert "cleanup.policy=compact (was delete)" in capsys.readouterr().out
    assert topic_names(cluster_b) == before

    (flow,) = load_mm2(file).flows
    control = FlowControl(flow, "test", lambda _: None)
    try:
        control.prepare()
        topics, clusters = FlowTopics(flow), control.clusters
        for job in sync_jobs(flow, clusters, topics, control.published, lambda _: None):
            job.once()
    finally:
        control.close()
    assert changes(capsys, file, prefix) == {}
    sizes = admin(cluster_b).list_topics(timeout=20).topics
    assert len(sizes[f"A.{prefix}-new"].partitions) == 3
    assert len(sizes[f"A.{prefix}-small"].partitions) == 4
    assert topic_config(cluster_b, f"A.{prefix}-new")["retention.ms"] == "7000000"
    assert topic_config(cluster_b, f"A.{prefix}-other")["cleanup.policy"] == "compact"
    assert main(["plan", str(file)]) == 0
    assert "A->B: nothing would be changed" in capsys.readouterr().out


def test_groups_and_what_becomes_of_them(
    file: Path,
    prefix: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, remote = f"{prefix}-same", f"A.{prefix}-same"
    file.write_text(
        file.read_text()
        .replace("emit.checkpoints.enabled=false\n", "")
        .replace("emit.offset-syncs.enabled=false\n", "")
        + f"groups={prefix}.*\nsync.group.offsets.enabled=true\n"
        "offset-syncs.topic.replication.factor=1\ncheckpoints.topic.replication.factor=1\n"
    )
    produce(cluster_a, topic, [Sent(b"x", partition=n % 2) for n in range(20)])
    (flow,) = load_mm2(file).flows
    control = FlowControl(flow, "test", lambda _: None)
    assert control.groups is not None
    try:
        control.prepare()
        source, target = control.clusters.source, control.clusters.target
        source.commit_offsets(f"{prefix}-g", {TopicPartition(topic, 0): (7, "note")})
        source.commit_offsets(f"{prefix}-idle", {TopicPartition(topic, 1): (10, "")})
        source.commit_offsets(f"other-{prefix}", {TopicPartition(topic, 1): (10, "")})
        target.commit_offsets(f"{prefix}-idle", {TopicPartition(remote, 1): (50, "")})
        syncs = [encode_offset_sync(TopicPartition(topic, n), 5, 25) for n in (0, 1)]
        source.produce_many("mm2-offset-syncs.B.internal", [(0, *one) for one in syncs])

        (found,) = asked(capsys, "groups", str(file))["flows"]
        rows = {one["group"]: one["partitions"] for one in found["groups"]}
        assert set(rows) == {f"{prefix}-g", f"{prefix}-idle"}
        (row,) = rows[f"{prefix}-g"]
        assert (row["offset"], row["end"], row["lag"], row["remote_topic"]) == (7, 10, 3, remote)
        assert (row["translated"], row["target_offset"]) == (None, None)
        assert row["remark"] == "no checkpoint yet"

        (planned,) = asked(capsys, "plan", str(file), "--flow", "A->B")["flows"]
        mine = [
            (one["action"], one["subject"], one.get("offset"), one.get("was"))
            for one in planned["changes"]
            if one["action"] in ("emit-checkpoints", "set-offset")
        ]
        assert mine == [
            ("emit-checkpoints", f"{prefix}-g", None, None),
            ("emit-checkpoints", f"{prefix}-idle", None, None),
            ("set-offset", f"{prefix}-g", 26, None),
        ]
        assert main(["plan", str(file), "--flow", "A->B"]) == 0
        assert f"{remote}-0 at 26 (was no offset)" in capsys.readouterr().out
        assert target.committed_offsets(f"{prefix}-g", None) == {}

        control.groups.finish()
    finally:
        control.close()
    (found,) = asked(capsys, "groups", str(file))["flows"]
    rows = {one["group"]: one["partitions"] for one in found["groups"]}
    assert [(one["translated"], one["target_offset"]) for one in rows[f"{prefix}-g"]] == [(26, 26)]
    assert [(one["translated"], one["target_offset"]) for one in rows[f"{prefix}-idle"]] == [
        (26, 50)
    ]
    (planned,) = asked(capsys, "plan", str(file), "--flow", "A->B")["flows"]
    assert not {one["action"] for one in planned["changes"]} & {"emit-checkpoints", "set-offset"}
    assert main(["groups", str(file)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [
        f"{prefix}-g",
        "Empty",
        topic,
        "0",
        "7",
        "10",
        "3",
        "-",
        remote,
        "26",
        "26",
        "-",
    ] in lines


def test_groups_name_the_members_of_every_protocol(
    file: Path, prefix: str, cluster_a: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each reads the two partitions of one topic; the owner is the one that `lag` names."""
    topic = f"{prefix}-same"
    file.write_text(file.read_text() + f"groups={prefix}.*\n")
    names = {protocol: f"{prefix}-{protocol}" for protocol in ("classic", "consumer", "streams")}
    members = []
    with contextlib.ExitStack() as stack:
        streams = stack.enter_context(StreamsMember(cluster_a, names["streams"], topic))
        for protocol in ("classic", "consumer"):
            member = Consumer({
                "bootstrap.servers": cluster_a.bootstrap_servers, "group.id": names[protocol],
                "client.id": f"{protocol}-app", "group.protocol": protocol,
                "enable.auto.commit": False,
            })  # fmt: skip
            stack.callback(member.close)
            member.subscribe([topic])
            members.append(member)

        def assigned() -> bool:
            for one in members:
                assert one.poll(0.1) is None
            return all(len(one.assignment()) == 2 for one in members)

        wait_until(assigned, "the members' partitions")
        for member in members:
            commit(member, [ConfluentPartition(topic, 0, 0), ConfluentPartition(topic, 1, 0)])
        streams.commit({0: 0, 1: 0})
        (found,) = asked(capsys, "groups", str(file))["flows"]
        owners = {
            one["group"]: {row["owner"]["client_id"] for row in one["partitions"]}
            for one in found["groups"]
        }
        assert owners == {group: {f"{protocol}-app"} for protocol, group in names.items()}
        assert main(["groups", str(file)]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert {(row[0], row[7]) for row in lines if row[0].startswith(prefix)} == {
            (group, f"{protocol}-app_/127.0.0.1") for protocol, group in names.items()
        }


def test_what_would_fail_is_told_as_refused(
    file: Path, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text() + "A->B.replication.factor=3\n")
    found = changes(capsys, file, prefix)
    assert "the cluster has 1 live broker" in found["refuse new "]["reason"]
    assert "grow-topic small " in found


def test_topics_side_by_side(file: Path, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    (flow,) = asked(capsys, "topics", str(file))["flows"]
    rows = {row["topic"].removeprefix(f"{prefix}-"): row for row in flow["topics"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "new": "missing",
        "small": "fewer partitions",
        "other": "configs differ",
        "same": "same",
    }
    assert (rows["small"]["partitions"], rows["small"]["remote_partitions"]) == (4, 2)
    assert rows["new"]["remote_partitions"] is None
    assert {
        (one["name"], one["value"], one["present"]) for one in rows["other"]["differences"]
    } == {
        ("cleanup.policy", "compact", "delete"),
        ("segment.ms", None, "90000"),
    }
    assert main(["topics", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "A->B: 4 topic(s)"
    assert any(f"A.{prefix}-small" in line and "4 / 2" in line for line in lines)


def test_clusters_and_a_cluster_that_is_away(
    file: Path, cluster_a: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = asked(capsys, "clusters", str(file))["clusters"]
    assert (a["cluster"], b["cluster"]) == ("A", "B")
    (broker,) = a["brokers"]
    assert f"{broker['host']}:{broker['port']}" == cluster_a.bootstrap_servers
    assert broker["version"] == "4.3"
    assert a["id"]
    assert b["no_heartbeats_from"] == ["A"]
    text = file.read_text()
    away = "A.admin.bootstrap.servers=127.0.0.1:1\nA.admin.request.timeout.ms=1500\n"
    file.write_text(text + away)
    assert main(["clusters", str(file)]) == 3
    shown = capsys.readouterr()
    assert "B: id " in shown.out
    assert "cluster A" in shown.err
    assert "Traceback" not in shown.err
    for verb in ("plan", "topics"):
        assert main([verb, str(file), "--format", "json"]) == 3
        assert "cluster A" in capsys.readouterr().err
