"""What a mirror writes beside the records, as far as the file wants it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from sparkmirror.internal_topics.mm2_records import (
    Checkpoint,
    decode_checkpoint,
    decode_heartbeat,
    decode_offset_sync,
)
from sparkmirror.internal_topics.offset_syncs import OffsetSyncStore
from sparkmirror.model import TopicPartition as Partition
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import (
    Sent,
    commit,
    consume_all,
    contents,
    create_topic,
    produce,
    topic_names,
)

_RECORDS = 8
_GROUP_AT = 6
# A flow without offset syncs refuses it.
_SYNCS_FACTOR = "offset-syncs.topic.replication.factor"


def _syncs(cluster: KafkaCluster, topic: str) -> list[tuple[Partition, int, int]]:
    found = [decode_offset_sync(record.key, record.value) for record in consume_all(cluster, topic)]
    assert None not in found
    return [sync for sync in found if sync is not None]


def _translated(syncs: list[tuple[Partition, int, int]], source: Partition) -> int | None:
    """Where a reader of the syncs, such as MirrorMaker 2, takes the group to."""
    store = OffsetSyncStore(must_read_to_end=False)
    store.finish_reading()
    for sync in syncs:
        store.add(*sync)
    return store.translate(source, _GROUP_AT)


@pytest.mark.more
def test_offset_syncs_and_checkpoints_are_written_as_each_flow_wants_them(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """Three flows in one process; internal topics are named after the aliases."""
    mark = uuid.uuid4().hex[:6]
    topic, group = f"emit-{mark}", f"emit-{mark}-group"
    create_topic(cluster_a, topic)
    produce(cluster_a, topic, [Sent(b"%d" % n) for n in range(_RECORDS)])
    consumer = Consumer({"bootstrap.servers": cluster_a.bootstrap_servers, "group.id": group})
    commit(consumer, [TopicPartition(topic, 0, _GROUP_AT)])
    consumer.close()

    flows = {
        "none": {"emit.offset-syncs.enabled": "false"},
        "syncs": {"emit.checkpoints.enabled": "false", _SYNCS_FACTOR: "1"},
        "every": {"offset.lag.max": "0", _SYNCS_FACTOR: "1"},
    }
    source = {kind: f"{kind}{mark}" for kind in flows}
    target = {kind: f"to-{kind}{mark}" for kind in flows}
    settings = {
        "clusters": ",".join([*source.values(), *target.values()]),
        "tasks.max": "1",
        "groups": group,
        "sync.group.offsets.enabled": "true",
        "emit.heartbeats.enabled": "false",
        "heartbeats.replication.enabled": "false",
    }
    for kind, own in flows.items():
        for alias, cluster in ((source[kind], cluster_a), (target[kind], cluster_b)):
            settings[f"{alias}.bootstrap.servers"] = cluster.bootstrap_servers
        flow = {"enabled": "true", "topics": topic, **own}
        settings |= {f"{source[kind]}->{target[kind]}.{key}": v for key, v in flow.items()}
    replicated = ("", "offset.storage.", "checkpoints.topic.")
    settings |= {f"{prefix}replication.factor": "1" for prefix in replicated}
    path = tmp_path / "mm2.properties"
    path.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    mirror = MirrorProcess(tmp_path, ["run", str(path), "--once"])
    try:
        assert mirror.wait() == 0, mirror.text()
    finally:
        mirror.kill()

    wanted = contents(consume_all(cluster_a, topic))
    assert len(wanted) == _RECORDS
    remote = {kind: f"{alias}.{topic}" for kind, alias in source.items()}
    for name in remote.values():
        assert contents(consume_all(cluster_b, name)) == wanted

    # Only who may write them has the topics.
    there = topic_names(cluster_a) | topic_names(cluster_b)
    syncs = {kind: f"mm2-offset-syncs.{alias}.internal" for kind, alias in target.items()}
    checkpoints = {kind: f"{alias}.checkpoints.internal" for kind, alias in source.items()}
    assert [kind for kind in flows if syncs[kind] in there] == ["syncs", "every"]
    assert [kind for kind in flows if checkpoints[kind] in there] == ["every"]

    partition = Partition(topic, 0)
    some, every = (_syncs(cluster_a, syncs[kind]) for kind in ("syncs", "every"))
    assert [up for _, up, _ in every] == list(range(_RECORDS)), "one for each record"
    assert 1 <= len(some) < _RECORDS
    assert _translated(every, partition) == _GROUP_AT
    assert 0 <= (_translated(some, partition) or 0) < _GROUP_AT, "by default they are not so exact"

    found = [
        decode_checkpoint(r.key, r.value) for r in consume_all(cluster_b, checkpoints["every"])
    ]
    moved = Checkpoint(group, Partition(remote["every"], 0), _GROUP_AT, _GROUP_AT)
    assert moved in found
    reader = Consumer({"bootstrap.servers": cluster_b.bootstrap_servers, "group.id": group})
    try:
        places = [TopicPartition(name, 0) for name in remote.values()]
        committed = [one.offset for one in reader.committed(places, timeout=20)]
    finally:
        reader.close()
    assert committed == [OFFSET_INVALID, OFFSET_INVALID, _GROUP_AT]


def test_a_node_without_a_flow_emits_heartbeats(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """The classic command on the node at the source, where no flow leads; it needs no Spark."""
    alias = f"A{uuid.uuid4().hex[:6]}"
    beats = {"emit.heartbeats.enabled": "true", "heartbeats.topic.replication.factor": "1"}
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, "t", beats, source=alias)
    arguments = [str(path), "--clusters", alias]
    mirror = MirrorProcess(tmp_path, arguments, command="connect-mirror-maker", cold=True)

    def arrived() -> bool:
        if "heartbeats" not in topic_names(cluster_a):
            return False
        found = [
            decode_heartbeat(one.key, one.value) for one in consume_all(cluster_a, "heartbeats")
        ]
        return any(one and (one.source, one.target) == ("B", alias) for one in found)

    try:
        wait_until(arrived, "a heartbeat of B on A")
        assert mirror.drain()[0] == 143, mirror.text()
    finally:
        mirror.kill()
    assert "emitting heartbeats" in mirror.text()
    assert "Spark" not in mirror.text()
