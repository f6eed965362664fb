"""`sparkmirror verify` on real clusters: what is equal, and planted differences of every kind."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Partition

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import write_mm2
from tests.kafka.harness.support import (
    Sent,
    admin,
    create_topic,
    delete_topic,
    produce,
    produce_transaction,
    topic_names,
)
from tests.patience import others_per_core

NOW_MS = int(time.time() * 1000)


class Pair:
    """A topic on both clusters, filled by an independent client, and what verify says of it."""

    def __init__(
        self, a: KafkaCluster, b: KafkaCluster, directory: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.a, self.b = a, b
        self.topic = f"verify-{uuid.uuid4().hex[:8]}"
        self.path = write_mm2(directory / "mm2.properties", a, b, self.topic)
        self._capsys = capsys

    def create(
        self, partitions: int = 1, *, config: dict[str, str] | None = None, remote: bool = True
    ) -> None:
        create_topic(self.a, self.topic, partitions, config=config)
        if remote:
            create_topic(self.b, f"A.{self.topic}", partitions, config=config)

    def fill(self, records: list[Sent], target: list[Sent] | None = None) -> None:
        produce(self.a, self.topic, records, compression="lz4")
        # Batches of other sizes and another codec: only what a consumer sees counts.
        produce(self.b, f"A.{self.topic}", records if target is None else target,
                config={"batch.num.messages": 7})  # fmt: skip

    def verify(self, *options: str, code: int = 0) -> dict[int, dict[str, Any]]:
        began = time.monotonic()
        command = ["verify", str(self.path), "--topic", self.topic, "--format", "json", *options]
        assert main([*command, "--wait", "0.5"]) == code, self._capsys.readouterr()
        assert time.monotonic() - began < 30 * others_per_core()
        (flow,) = json.loads(self._capsys.readouterr().out)["flows"]
        assert flow["equal"] == (code == 0)
        return {one["partition"]: one for one in flow["partitions"]}


@pytest.fixture
def pair(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Pair:
    return Pair(cluster_a, cluster_b, tmp_path, capsys)


def records(count: int, partition: int = 0, first: int = 0) -> list[Sent]:
    return [
        Sent(
            None if n % 50 == 49 else b"value %d" % n,
            key=b"key %d" % (n % 10),
            headers=(("h", b"%d" % n), ("none", None)),
            timestamp_ms=NOW_MS + n // 3,
            partition=partition,
        )
        for n in range(first, first + count)
    ]


def delete_before(cluster: KafkaCluster, topic: str, offset: int) -> None:
    client = admin(cluster)
    wanted = Partition(topic, 0, offset)
    for future in client.delete_records([wanted]).values():
        future.result(20)


def test_equal_in_spite_of_aborted_records_and_other_batches(pair: Pair) -> None:
    pair.create(2)
    for partition in (0, 1):
        pair.fill(records(500, partition))
        produce_transaction(pair.a, pair.topic, records(5, partition), commit=False)
        pair.fill(records(100, partition, 500))
    found = pair.verify()
    assert {number: one["source"]["records"] for number, one in found.items()} == {0: 600, 1: 600}
    assert all(one["source"] == one["target"] for one in found.values())
    assert pair.verify("--partition", "1").keys() == {1}
    told = pair.verify("--sample", "3")[0]
    assert told["source"]["records"] == 600
    assert "3 stretches" in told["remark"]


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"value": b"other"}, "differs", "value"),
        pytest.param({"key": b"other"}, "differs", "key", marks=pytest.mark.more),
        ({"headers": (("h", b"x"),)}, "differs", "headers"),
        pytest.param({"timestamp_ms": NOW_MS - 5}, "differs", "timestamp", marks=pytest.mark.more),
        pytest.param({"value": None}, "differs", "value", marks=pytest.mark.more),
    ],
)
def test_a_changed_record(pair: Pair, change: dict[str, Any], kind: str, words: str) -> None:
    pair.create()
    good = records(120)
    bad = list(good)
    bad[77] = bad[77]._replace(**change)
    pair.fill(good, bad)
    (one,) = pair.verify(code=1).values()
    assert one["difference"]["kind"] == kind
    assert one["difference"]["source_offset"] == one["difference"]["target_offset"] == 77
    assert one["difference"]["what"].endswith(words)
    assert one["source"]["records"] == one["target"]["records"] == 120
    assert one["source"]["sha256"] != one["target"]["sha256"]


def test_missing_repeated_and_foreign_records(pair: Pair) -> None:
    pair.create(5)
    every = {number: records(60, number) for number in range(5)}
    changed = {
        0: every[0][:20] + every[0][23:],
        1: every[1][:30] + every[1][25:],
        2: every[2][:50],
        3: [*every[3], Sent(b"foreign", partition=3)],
        4: every[4],
    }
    pair.fill([one for part in every.values() for one in part],
              [one for part in changed.values() for one in part])  # fmt: skip
    found = {number: one["difference"] for number, one in pair.verify(code=1).items()}
    assert (found[0]["kind"], found[0]["source_offset"]) == ("missing", 20)
    assert "lacks 3 records" in found[0]["what"]
    assert (found[1]["kind"], found[1]["target_offset"]) == ("extra", 30)
    assert "repeats source offset 25" in found[1]["what"]
    assert (found[2]["kind"], found[2]["source_offset"]) == ("missing", 50)
    assert (found[3]["kind"], found[3]["target_offset"]) == ("extra", 60)
    assert found[4] is None


def test_parts_of_a_log(pair: Pair) -> None:
    pair.create()
    good = records(300)
    bad = list(good)
    bad[10] = bad[10]._replace(value=b"early")
    bad[290] = bad[290]._replace(value=b"late")
    pair.fill(good, bad)
    assert pair.verify(code=1)[0]["difference"]["source_offset"] == 10
    assert pair.verify("--from", "11", code=1)[0]["difference"]["source_offset"] == 290
    assert pair.verify("--from", "11", "--to", "290")[0]["source"]["records"] == 279

    def moment(ms: int) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms / 1000)) + f".{ms % 1000:03d}Z"

    times = ("--from", moment(NOW_MS + 30), "--to", moment(NOW_MS + 90))
    assert pair.verify(*times)[0]["source"]["records"] == 180  # three records each millisecond
    assert pair.verify("--from", moment(NOW_MS), code=1)[0]["difference"]["source_offset"] == 10


def test_retention_on_either_side_is_no_difference(pair: Pair) -> None:
    pair.create()
    pair.fill(records(200))
    delete_before(pair.a, pair.topic, 50)
    (one,) = pair.verify().values()
    assert one["source"]["records"] == 150
    assert "older records" in one["remark"]
    delete_before(pair.b, f"A.{pair.topic}", 80)
    (one,) = pair.verify().values()
    assert one["source"]["records"] == 120
    assert "before source offset 80" in one["remark"]


def test_a_copy_that_began_late_lacks_records(pair: Pair) -> None:
    pair.create()
    pair.fill(records(100), records(60, first=40))
    (one,) = pair.verify(code=1).values()
    assert one["difference"]["kind"] == "missing"
    assert one["difference"]["source_offset"] == 0
    assert "lacks 40 records" in one["difference"]["what"]
    delete_before(pair.a, pair.topic, 20)
    (one,) = pair.verify(code=1).values()
    assert one["difference"]["source_offset"] == 20
    assert "begins with source offset 40" in one["difference"]["what"]


def test_heartbeats_are_compared_only_when_they_are_asked_for(pair: Pair) -> None:
    """They come while nothing else does, so that some are always behind."""
    pair.create()
    pair.fill(records(5))
    before = topic_names(pair.a)
    if "heartbeats" not in before:
        create_topic(pair.a, "heartbeats")
    produce(pair.a, "heartbeats", [Sent(b"a beat", key=b"of nobody")])
    pair.path.write_text(
        pair.path.read_text().replace(
            "heartbeats.replication.enabled = false", "heartbeats.replication.enabled = true"
        )
    )
    all_of_the_flow = ["verify", str(pair.path), "--wait", "0.5"]
    assert main(all_of_the_flow) == 0
    assert main([*all_of_the_flow, "--topic", "heartbeats"]) == 1
    if "heartbeats" not in before:
        delete_topic(pair.a, "heartbeats")


def test_what_is_not_mirrored_yet_is_behind(pair: Pair) -> None:
    from sparkmirror.model import TopicPartition
    from sparkmirror.settings import ClusterClient
    from sparkmirror.wire.admin.cluster import Cluster

    pair.create()
    pair.fill(records(100), records(70))
    target = Cluster(ClusterClient("B", tuple(pair.b.bootstrap_servers.split(",")), "test"))
    at = TopicPartition(f"A.{pair.topic}", 0)
    target.commit_offsets("__mirror.A->B", {at: (70, "")})
    (one,) = pair.verify(code=1).values()
    assert one["difference"]["kind"] == "behind"
    assert one["difference"]["source_offset"] == 70
    target.commit_offsets("__mirror.A->B", {at: (100, "")})
    assert pair.verify(code=1)[0]["difference"]["kind"] == "missing"
    target.close()


def test_a_topic_that_is_not_there(pair: Pair) -> None:
    pair.create(remote=False)
    produce(pair.a, pair.topic, records(3))
    (one,) = pair.verify(code=1).values()
    assert one["target"] is None
    assert one["difference"]["kind"] == "no partition"


def test_compacted_topics_are_compared_by_key(pair: Pair) -> None:
    pair.create(config={"cleanup.policy": "compact"})
    good = records(49)  # no tombstones
    pair.fill(good, good[20:])  # as if the target's older values had been compacted away
    (one,) = pair.verify().values()
    assert one["by_key"]
    assert one["source"]["records"] == 10
    pair.fill([Sent(b"new", key=b"key 3", timestamp_ms=NOW_MS)],
              [Sent(b"other", key=b"key 3", timestamp_ms=NOW_MS)])  # fmt: skip
    (one,) = pair.verify(code=1).values()
    assert one["difference"]["source_offset"] == 49
    assert one["difference"]["kind"] == "differs"


def test_a_target_that_stamps_its_own_time(pair: Pair) -> None:
    create_topic(pair.a, pair.topic)
    stamped = {"message.timestamp.type": "LogAppendTime"}
    create_topic(pair.b, f"A.{pair.topic}", config=stamped)
    pair.fill(records(50))
    (one,) = pair.verify().values()
    assert one["source"]["records"] == 50
    assert "its own time" in one["remark"]
