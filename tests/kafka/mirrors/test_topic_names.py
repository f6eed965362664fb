"""A map of topic names in whole mirrors: names, refusals, groups, and what commands say of them."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from sparkmirror.cli.main import main
from sparkmirror.client import MirrorClient
from sparkmirror.internal_topics.remote_names import REMOTE_NAMES_TOPIC, decode_remote_name
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import (
    MirrorProcess,
    stored,
    wait_until,
    write_mm1,
    write_mm2,
)
from tests.kafka.harness.support import (
    Sent,
    commit,
    consume_all,
    contents,
    create_topic,
    produce,
    produce_transaction,
    topic_names,
    wait_until_equal,
)

MAP = "A->B.sparkmirror.topics.map"
IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"


@pytest.fixture
def name() -> str:
    return f"named-{uuid.uuid4().hex[:8]}"


def some(count: int, partitions: int = 1) -> list[Sent]:
    return [
        Sent(b"%d" % n, key=b"k%d" % (n % 5), partition=n % partitions) for n in range(count)
    ]  # fmt: skip


def run(directory: Path, *arguments: str) -> MirrorProcess:
    return MirrorProcess(directory, ["run", *arguments, "--work-dir", str(directory / "work")])


def copied(directory: Path, *arguments: str) -> str:
    """What a ``--once`` run says that ends well."""
    mirror = run(directory, *arguments, "--once")
    assert mirror.wait() == 0, mirror.text()
    return mirror.text()


def asked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--format", "json"]) == code, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def rows(cluster: KafkaCluster, name: str) -> dict[str, tuple[str, str, bool]]:
    """What the target says of its topics: by name, the cluster, the topic there, whether past."""
    found = {}
    for record in consume_all(cluster, REMOTE_NAMES_TOPIC):
        one = decode_remote_name(record.key, record.value)
        assert one is not None
        if name in one.topic:
            found[one.remote] = (one.cluster, one.topic, one.past)
    return found


@pytest.mark.parametrize("policy", ["default", pytest.param("identity", marks=pytest.mark.long)])
def test_renamed_topics_with_every_policy(
    policy: str,
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The map comes before the policy, batches stay raw, and every command knows the names."""
    renamed, plain = f"{name}.eu.orders", f"{name}.us"
    create_topic(cluster_a, renamed, 2, config={"retention.ms": "7000000"})
    create_topic(cluster_a, plain, 1)
    produce(cluster_a, renamed, some(400, 2), compression="lz4", config={"linger.ms": 200})
    produce(cluster_a, plain, some(20))
    extra = {
        MAP: rf"^(.*)\\.eu\\.(.*)$ => tenant.$1-$2; no-{name} => x",
        "A->B.sparkmirror.join.bytes": "0",
    }
    if policy == "identity":
        extra["replication.policy.class"] = IDENTITY
    file = str(write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, f"{name}.*", extra))
    there, copy = f"tenant.{name}-orders", f"A.{plain}" if policy == "default" else plain

    changes = asked(capsys, "plan", file)["flows"][0]["changes"]
    made = {one["topic"]: one["subject"] for one in changes if one["action"] == "create-topic"}
    assert made[renamed] == there
    said = copied(tmp_path, file)
    assert f"the rule 'no-{name} => x' matches no topic" in said
    wait_until_equal(cluster_a, renamed, cluster_b, there)
    wait_until_equal(cluster_a, plain, cluster_b, copy)
    sizes = [[(one.count, one.size, one.attributes) for one in stored(cluster, topic)]
             for cluster, topic in ((cluster_a, renamed), (cluster_b, there))]  # fmt: skip
    assert sizes[0] == sizes[1]

    (flow,) = asked(capsys, "topics", file)["flows"]
    pairs = {one["topic"]: (one["remote"], one["state"]) for one in flow["topics"]}
    assert pairs == {renamed: (there, "same"), plain: (copy, "same")}
    (flow,) = asked(capsys, "verify", file)["flows"]
    assert flow["equal"]
    assert {one["topic"] for one in flow["partitions"]} == {renamed, plain}
    (flow,) = asked(capsys, "lag", file)["flows"]
    assert {one["records"] for one in flow["partitions"]} == {0}
    assert rows(cluster_b, name) == {
        there: ("A", renamed, False),
        copy: ("A", plain, False),
    }
    with MirrorClient({"bootstrap.servers": cluster_b.bootstrap_servers}) as client:
        assert client.topic_origin(there) == ("A", renamed)
        assert {there, copy} <= client.remote_topics("A")

    # Positions are those of the name: a second run copies only what is new.
    produce(cluster_a, renamed, some(50, 2))
    copied(tmp_path, file)
    assert len(consume_all(cluster_b, there)) == 450


@pytest.mark.long
def test_a_new_name_begins_like_a_new_topic_and_the_old_one_goes_on(
    name: str, cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    create_topic(cluster_a, name, 1)
    produce(cluster_a, name, some(30))
    ends = cluster_a, cluster_b, name
    plain = str(write_mm2(tmp_path / "plain.properties", *ends))
    mapped = str(write_mm2(tmp_path / "map.properties", *ends, {MAP: f"{name} => {name}.x"}))
    copied(tmp_path, plain)
    produce(cluster_a, name, some(10))
    said = copied(tmp_path, mapped)
    assert "made anew" not in said
    wait_until_equal(cluster_a, name, cluster_b, f"{name}.x")
    assert len(consume_all(cluster_b, f"A.{name}")) == 30
    copied(tmp_path, plain)
    wait_until_equal(cluster_a, name, cluster_b, f"A.{name}")
    copied(tmp_path, mapped)
    assert len(consume_all(cluster_b, f"{name}.x")) == 40


@pytest.mark.more
@pytest.mark.parametrize("keep", [False, pytest.param(True, marks=pytest.mark.long)])
def test_mirrormaker_1_renames_too(
    keep: bool,
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By key and with whole batches; the position stays the group's offset of the source topic."""
    topic, there = f"{name}.eu.t", f"tenant.{name}-t"
    create_topic(cluster_a, topic, 2)
    create_topic(cluster_b, there, 2 if keep else 3)
    produce(cluster_a, topic, some(60, 2))
    files = write_mm1(tmp_path, cluster_a, cluster_b, name)
    with (tmp_path / "consumer.properties").open("a") as file:
        file.write("sparkmirror.topics.map=^(.*)\\\\.eu\\\\.(.*)$ => tenant.$1-$2\n")
    more = ["--include", f"{name}.*", *(["--keep.partitions"] if keep else [])]
    copied(tmp_path, *files, *more)
    assert topic not in topic_names(cluster_b)
    got = consume_all(cluster_b, there)
    if keep:
        assert contents(got) == contents(consume_all(cluster_a, topic))
        (flow,) = asked(capsys, "verify", *files, "--include", f"{name}.*")["flows"]
        assert flow["equal"]
    else:
        assert sorted(one.value or b"" for one in got) == sorted(b"%d" % n for n in range(60))
        places = {one.key: set[int]() for one in got}
        for one in got:
            places[one.key].add(one.partition)
        assert {len(found) for found in places.values()} == {1}
    (flow,) = asked(capsys, "topics", *files, "--include", f"{name}.*")["flows"]
    assert [one["remote"] for one in flow["topics"]] == [there]
    produce(cluster_a, topic, some(10, 2))
    copied(tmp_path, *files, *more)
    assert len(consume_all(cluster_b, there)) == 70


def test_a_loop_is_refused_and_nothing_is_made(
    name: str, cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    create_topic(cluster_a, f"{name}-eu", 1)
    extra = {
        MAP: f"{name}-(.+) => tenant-{name}.$1",
        "B->A.enabled": "true",
        "B->A.topics": f"tenant-{name}.*",
    }
    file = write_mm2(tmp_path / "ring.properties", cluster_a, cluster_b, f"{name}-.*", extra)
    mirror = run(tmp_path, str(file))
    assert mirror.wait() == 2, mirror.text()
    for part in (
        "the flows A->B->A form a loop",
        f"'{name}-a' of A becomes 'tenant-{name}.a' on B, then 'B.tenant-{name}.a' on A",
        "B->A.topics.exclude",
        MAP,
    ):
        assert part in mirror.text()
    for cluster in (cluster_a, cluster_b):
        assert not any(f"tenant-{name}" in topic for topic in topic_names(cluster))
    # Without what comes back it is no loop.
    extra["B->A.topics.exclude"] = f"tenant-{name}.*"
    write_mm2(file, cluster_a, cluster_b, f"{name}-.*", extra)
    copied(tmp_path, str(file))
    assert f"tenant-{name}.eu" in topic_names(cluster_b)


@pytest.mark.more
def test_of_two_sources_for_one_name_one_is_mirrored_and_both_are_named(
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second, remote = f"{name}.us.t", f"{name}.eu.t", f"all-{name}.t"
    create_topic(cluster_a, first, 1)
    produce(cluster_a, first, some(20))
    extra = {MAP: rf"{name}[.](?:eu|us)[.](.*) => all-{name}.$1"}
    file = str(write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, f"{name}.*", extra))
    mirror = run(tmp_path, file)
    try:
        wait_until_equal(cluster_a, first, cluster_b, remote)
        create_topic(cluster_a, second, 2)
        produce(cluster_a, second, some(30, 2))
        wait_until(lambda: f"topic {second} is not mirrored" in mirror.text(), "a word of it")
        assert f"which is the copy of topic {first} of A" in mirror.text()
        produce(cluster_a, first, some(5))
        wait_until_equal(cluster_a, first, cluster_b, remote)
        code, _ = mirror.drain()
    finally:
        mirror.kill()
    assert code == 0, mirror.text()
    assert len(consume_all(cluster_b, remote)) == 25
    assert rows(cluster_b, name) == {remote: ("A", first, False)}

    # Whoever had the name keeps it, though the other one comes first by name.
    (flow,) = asked(capsys, "topics", file)["flows"]
    states = {one["topic"]: one["state"] for one in flow["topics"]}
    assert states == {first: "same", second: "left out"}
    changes = asked(capsys, "plan", file)["flows"][0]["changes"]
    refused = [one for one in changes if one["action"] == "refuse"]
    assert [one["topic"] for one in refused] == [second]
    assert first in refused[0]["reason"]
    (flow,) = asked(capsys, "verify", file, code=1)["flows"]
    kinds = {
        one["topic"]: one["difference"] and one["difference"]["kind"] for one in flow["partitions"]
    }
    assert kinds == {first: None, second: "left out"}


@pytest.mark.long
def test_flows_that_would_merge_are_refused_at_the_start_and_left_out_later(
    name: str, cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    with KafkaCluster("C") as cluster_c:
        eu, other, remote = f"{name}-eu", f"{name}-c", f"all-{name}"
        create_topic(cluster_a, eu, 1)
        create_topic(cluster_c, f"{name}-own", 1)
        produce(cluster_a, eu, some(10))
        produce(cluster_c, f"{name}-own", some(3))
        extra = {
            "clusters": "A, B, C",
            "C.bootstrap.servers": cluster_c.bootstrap_servers,
            "C->B.enabled": "true",
            "C->B.topics": f"{name}.*",
            "sparkmirror.topics.map": f"{eu} => {remote}; {other} => {remote}",
        }
        file = str(write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, f"{name}.*", extra))
        mirror = run(tmp_path, file)
        try:
            wait_until_equal(cluster_a, eu, cluster_b, remote)
            wait_until_equal(cluster_c, f"{name}-own", cluster_b, f"C.{name}-own")
            create_topic(cluster_c, other, 1)
            produce(cluster_c, other, some(7))
            wait_until(lambda: f"C->B: topic {other} is not mirrored" in mirror.text(), "a word")
            assert f"which is the copy of topic {eu} of A" in mirror.text()
            produce(cluster_c, f"{name}-own", some(4))
            wait_until_equal(cluster_c, f"{name}-own", cluster_b, f"C.{name}-own")
            code, _ = mirror.drain()
        finally:
            mirror.kill()
        assert code == 0, mirror.text()
        assert len(consume_all(cluster_b, remote)) == 10
        again = run(tmp_path, file)
        assert again.wait() == 2, again.text()
        assert f"cluster C, topic {other}" in again.text()
        assert f"which is the copy of topic {eu} of A" in again.text()
        assert len(consume_all(cluster_b, remote)) == 10


@pytest.mark.more
def test_groups_of_a_renamed_topic_land_on_the_exact_record(
    name: str, cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """Also when the topic had another name before: the copies' offsets have nothing in common."""
    topic, remote = f"{name}.eu", f"tenant-{name}"
    create_topic(cluster_a, topic, 1)
    for batch in range(4):  # markers leave gaps in the offsets
        values = [Sent(b"%d-%d" % (batch, n)) for n in range(10)]
        produce_transaction(cluster_a, topic, values, commit=batch != 1)
    groups = {f"{name}-{offset}": offset for offset in (0, 3, 17, 25, 44)}
    for group, offset in groups.items():
        consumer = _consumer(cluster_a, group)
        commit(consumer, [ConfluentPartition(topic, 0, offset)])
        consumer.close()
    ends = {"source": f"{name}-a", "target": f"{name}-b"}
    extra = {
        "groups": f"{name}-.*",
        "sync.group.offsets.enabled": "true",
        "emit.checkpoints.interval.seconds": "1",
    }
    plain = write_mm2(tmp_path / "plain.properties", cluster_a, cluster_b, topic, extra, **ends)
    copied(tmp_path, str(plain))
    syncs = f"mm2-offset-syncs.{name}-b.internal"
    before = consume_all(cluster_a, syncs)
    assert before
    create_topic(cluster_b, remote, 1)
    produce(cluster_b, remote, [Sent(b"of another producer")] * 7)
    extra[f"{name}-a->{name}-b.sparkmirror.topics.map"] = f"{name}[.](.*) => tenant-{name}"
    mapped = write_mm2(tmp_path / "map.properties", cluster_a, cluster_b, topic, extra, **ends)
    copied(tmp_path, str(mapped))

    source = consume_all(cluster_a, topic)
    target = consume_all(cluster_b, remote)
    assert contents(target)[7:] == contents(source)
    for group, offset in groups.items():
        consumer = _consumer(cluster_b, group)
        wanted = ConfluentPartition(remote, 0)
        (there,) = (one.offset for one in consumer.committed([wanted], timeout=20))
        consumer.close()
        assert there != OFFSET_INVALID, group
        unread = [one.value for one in source if one.offset >= offset]
        assert [one.value for one in target if one.offset >= there] == unread, group
    # Java's readers find no sync of the mapped copy: all are of the one that was made before.
    assert consume_all(cluster_a, syncs) == before


def _consumer(cluster: KafkaCluster, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
        }
    )
