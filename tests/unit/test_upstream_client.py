"""MirrorMaker 2's own unit tests of names, records and the offset-sync store, on our code.

Each test has the name of the one in Apache Kafka, in our spelling: see docs/compatibility.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise
from typing import cast

import pytest

from sparkmirror.client import MirrorClient
from sparkmirror.control.groups.checkpoints import CheckpointStore
from sparkmirror.control.topics.compacted import TopicFollower
from sparkmirror.errors import Denied
from sparkmirror.internal_topics.mm2_records import Checkpoint, encode_checkpoint
from sparkmirror.internal_topics.offset_syncs import OffsetSync, OffsetSyncStore
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import make_policy
from sparkmirror.settings import ClusterClient, FlowSettings, PolicySettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import TopicView

T = TopicPartition("topic1", 2)
DEFAULT = make_policy(PolicySettings(), None)


class Named(Cluster):
    """A cluster that has topics of these names; nothing is asked over the network."""

    def __init__(self, names: Iterable[str]) -> None:
        self._named = tuple(names)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        return {name: TopicView(name, "", 1, 1) for name in self._named}


def _client(
    *names: str, policy: PolicySettings | None = None, alias: str | None = None
) -> MirrorClient:
    return MirrorClient.of(Named(names), make_policy(policy or PolicySettings(), alias))


def _identity(*names: str, alias: str | None = "source") -> MirrorClient:
    return _client(*names, policy=PolicySettings("identity"), alias=alias)


# --- MirrorClientTest -----------------------------------------------------------------------


def test_is_heartbeat_topic() -> None:
    are = {"heartbeats", "source1.heartbeats", "source2.source1.heartbeats"}
    are_not = {"heartbeats!", "!heartbeats", "source1heartbeats", "source1-heartbeats"}
    assert _client(*are, *are_not).heartbeat_topics() == are


def test_is_checkpoint_topic() -> None:
    are_not = {
        "checkpoints.internal", "checkpoints-internal", "checkpoints.internal!",
        "!checkpoints.internal", "source1checkpointsinternal",
    }  # fmt: skip
    found = _client("source1.checkpoints.internal", *are_not).checkpoint_topics()
    assert found == {"source1.checkpoints.internal"}


@pytest.mark.parametrize(
    ("topic", "alias", "hops"),
    [
        ("heartbeats", "source1", -1),
        ("source1.heartbeats", "source1", 1),
        ("source2.source1.heartbeats", "source1", 2),
        ("source2.source1.heartbeats", "source2", 1),
        ("source3.source2.source1.heartbeats", "source1", 3),
        ("source3.source2.source1.heartbeats", "source4", -1),
        ("source1heartbeats", "source1", -1),
    ],
)
def test_count_hops_for_topic(topic: str, alias: str, hops: int) -> None:
    assert _client(topic).replication_hops(alias) == hops


def test_heartbeat_topics() -> None:
    names = ["topic1", "topic2", "heartbeats", "source1.heartbeats", "source2.source1.heartbeats",
             "source3.heartbeats"]  # fmt: skip
    assert _client(*names).heartbeat_topics() == set(names[2:])


def test_checkpoints_topics() -> None:
    names = ["topic1", "topic2", "checkpoints.internal", "source1.checkpoints.internal",
             "source2.source1.checkpoints.internal", "source3.checkpoints.internal"]  # fmt: skip
    assert _client(*names).checkpoint_topics() == set(names[3:])


def test_replication_hops() -> None:
    client = _client("topic1", "topic2", "heartbeats", "source1.heartbeats",
                     "source1.source2.heartbeats", "source3.heartbeats")  # fmt: skip
    hops = {alias: client.replication_hops(f"source{alias}") for alias in range(1, 5)}
    assert hops == {1: 1, 2: 2, 3: 1, 4: -1}


HEARTBEATS = (
    "heartbeats",
    "source1.heartbeats",
    "source1.source2.heartbeats",
    "source3.source4.source5.heartbeats",
)


def test_upstream_clusters() -> None:
    client = _client("topic1", "topic2", *HEARTBEATS)
    assert client.upstream_clusters() == {f"source{n}" for n in range(1, 6)}


def test_identity_replication_upstream_clusters() -> None:
    client = _identity("topic1", "topic2", *HEARTBEATS)
    assert client.upstream_clusters() == {f"source{n}" for n in range(1, 6)}


def test_remote_topics() -> None:
    names = ["topic1", "topic2", "topic3", "source1.topic4", "source1.source2.topic5",
             "source3.source4.source5.topic6"]  # fmt: skip
    assert _client(*names).remote_topics() == set(names[3:])


def test_remote_topics_separator() -> None:
    names = ["topic1", "topic2", "topic3", "source1__topic4", "source1__source2__topic5",
             "source3__source4__source5__topic6"]  # fmt: skip
    found = _client(*names, policy=PolicySettings(separator="__")).remote_topics()
    assert found == set(names[3:])


def test_identity_replication_remote_topics() -> None:
    names = {"topic1", "topic2", "topic3", "source1.topic4", "heartbeats", "backup.heartbeats"}
    assert _identity(*names).remote_topics() == names - {"heartbeats"}
    assert _identity(*names, alias=None).remote_topics() == {"backup.heartbeats"}


def test_identity_replication_topic_source() -> None:
    named = make_policy(PolicySettings("identity"), "primary")
    assert named.topic_source("topic1") == "primary"
    assert named.topic_source("primary.heartbeats") == "primary"
    assert named.topic_source("backup.heartbeats") == "backup"
    assert named.topic_source("heartbeats") is None
    assert make_policy(PolicySettings("identity"), None).topic_source("topic1") is None


# --- ReplicationPolicyTest, SourceAndTargetTest ---------------------------------------------


def test_internal_topic() -> None:
    for name in ("__consumer_offsets", ".hiddentopic", "mm2-offsets.CLUSTER.internal",
                 "mm2-offset-syncs.CLUSTER.internal", "A.checkpoints.internal"):  # fmt: skip
        assert DEFAULT.is_internal_topic(name), name
    for name in ("mm2-offsets_CLUSTER_internal", "mm2-offsets-CLUSTER-internal", "topic",
                 "topic.internal", "topic-internal"):  # fmt: skip
        assert not DEFAULT.is_internal_topic(name), name


@pytest.mark.parametrize(
    ("settings", "syncs", "checkpoints"),
    [
        (PolicySettings(), "mm2-offset-syncs.C.internal", "C.checkpoints.internal"),
        (
            PolicySettings(separator="__"),
            "mm2-offset-syncs__C__internal",
            "C__checkpoints__internal",
        ),
        (
            PolicySettings(separator="__", internal_separator_enabled=False),
            "mm2-offset-syncs.C.internal",
            "C.checkpoints.internal",
        ),
    ],
    ids=["default", "effective", "disabled"],
)
def test_topics_follow_the_separator(
    settings: PolicySettings, syncs: str, checkpoints: str
) -> None:
    policy = make_policy(settings, "A")
    assert policy.offset_syncs_topic("C") == syncs
    assert policy.checkpoints_topic("C") == checkpoints
    assert policy.heartbeats_topic() == "heartbeats"


def test_source_and_target_equals() -> None:
    a, b = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")
    flow, same, back = (FlowSettings(s, t, s, t) for s, t in ((a, b), (a, b), (b, a)))
    assert flow == same
    assert (flow.name, back.name) == ("A->B", "B->A")
    assert flow != back


# --- CheckpointStoreTest --------------------------------------------------------------------


class Read:
    """A topic that has been read, or one that cannot be."""

    def __init__(self, *records: tuple[bytes | None, bytes | None], denied: bool = False) -> None:
        self._records, self._denied = records, denied

    def read(self) -> Iterable[tuple[bytes | None, bytes | None]]:
        if self._denied:
            raise Denied("Describe is not granted.")
        return self._records


def test_read_checkpoints_topic() -> None:
    one, other = TopicPartition("t1", 0), TopicPartition("t1", 1)
    records = [
        encode_checkpoint(Checkpoint("group1", one, 1, 1)),
        encode_checkpoint(Checkpoint("group2", one, 5, 5)),
        (b"not a checkpoint", b"at all"),
        encode_checkpoint(Checkpoint("group1", one, 2, 2)),
        encode_checkpoint(Checkpoint("group1", other, 7, 6)),
    ]
    store = CheckpointStore()
    assert store.load(cast(TopicFollower, Read(*records)))
    assert store.of("group1") == {
        one: Checkpoint("group1", one, 2, 2),
        other: Checkpoint("group1", other, 7, 6),
    }
    assert store.of("group3") == {}
    assert store.skipped == 1


def test_read_checkpoints_topic_error() -> None:
    store = CheckpointStore()
    assert not store.load(cast(TopicFollower, Read(denied=True)))
    assert store.groups() == set()


# --- OffsetSyncStoreTest --------------------------------------------------------------------


def _translates(store: OffsetSyncStore, sync: int, previous: int) -> None:
    """``sync`` is known, and ``previous`` is the one before it (-1: none)."""
    before = -1 if previous == -1 else previous + 1
    assert store.translate(T, sync - 1) == before, (sync, previous)
    assert store.translate(T, sync) == sync
    assert store.translate(T, sync + 1) == sync + 1
    assert store.translate(T, sync + 2) == sync + 1


def test_offset_translation() -> None:
    store = OffsetSyncStore(must_read_to_end=True)
    store.finish_reading()
    store.add(T, 100, 200)
    assert store.translate(T, 150) == 201
    store.add(T, 150, 251)  # the translated offset matches exactly
    assert store.translate(T, 150) == 251
    assert store.translate(T, 5) == -1
    store.add(T, 10, 10)  # upstream was reset
    assert store.translate(T, 5) == -1
    assert store.translate(T, 150) == 11
    store.add(T, 200, 10)  # so was downstream
    assert store.translate(T, 200) == 10
    assert store.translate(T, 202) == 11


def test_no_translation_if_store_not_started() -> None:
    store = OffsetSyncStore(must_read_to_end=True)
    assert store.translate(T, 0) is None
    store.add(T, 100, 200)
    assert store.translate(T, 0) is None
    assert store.translate(T, 100) is None
    store.finish_reading()
    assert [store.translate(T, at) for at in (0, 100, 200)] == [-1, 200, 201]


def test_no_translation_if_no_offset_sync() -> None:
    store = OffsetSyncStore(must_read_to_end=True)
    store.finish_reading()
    assert store.translate(T, 0) is None


def test_past_offset_translation() -> None:
    store = OffsetSyncStore(must_read_to_end=True)
    for offset in range(0, 1_001, 10):
        store.add(T, offset, offset)
    store.finish_reading()
    _translates(store, 1_000, -1)
    for offset in range(1_010, 10_001, 10):
        store.add(T, offset, offset)
    known = [1_000, 4_840, 6_760, 8_680, 9_160, 9_640, 9_880, 9_940, 9_970, 9_990, 10_000]
    _translates(store, known[0], -1)
    for previous, sync in pairwise(known):
        _translates(store, sync, previous)
    store.add(T, 1_500, 11_000)
    assert [store.translate(T, at) for at in (1_499, 1_500, 1_501)] == [-1, 11_000, 11_001]


def test_past_offset_translation_without_initialization_read_to_end() -> None:
    store = OffsetSyncStore(must_read_to_end=False)
    for offset in range(0, 1_001, 10):
        store.add(T, offset, offset)
    store.finish_reading()
    for previous, sync in ((0, 480), (480, 720), (990, 1_000)):
        _translates(store, sync, previous)
    for offset in range(1_010, 10_001, 10):
        store.add(T, offset, offset)
    known = [0, 3_840, 7_680, 8_640, 9_120, 9_600, 9_840, 9_900, 9_960, 9_990, 10_000]
    for previous, sync in pairwise(known):
        _translates(store, sync, previous)


def _expired(steps: Iterable[int]) -> int:
    """By how many syncs the store ever gets smaller when a new one comes."""
    store = OffsetSyncStore(must_read_to_end=False)
    store.finish_reading()
    known: set[OffsetSync] = set()
    upstream, most = 0, 0
    for step in steps:
        store.add(T, upstream, upstream)
        now = {sync for _, sync in store.slots(T)}
        most = max(most, len(known) - len(now))
        known = now
        upstream += step
    return most


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100, 1_023, 1_024, 1_025, 2**30])
def test_consistently_spaced_syncs(step: int) -> None:
    assert _expired([step] * 1_000) <= 1


@pytest.mark.parametrize("bits", range(1, 31, 3))
def test_randomly_spaced_syncs(bits: int) -> None:
    chance = random.Random(0)
    assert _expired(chance.randrange(1, 2**bits + 1) for _ in range(1_000)) <= bits + 2


def test_dropped_syncs_spacing() -> None:
    """Half of the syncs were lost on the way: 2 with the random numbers of Java's own test."""
    chance = random.Random(0)
    assert _expired(10_000 * chance.choice((1, 2)) for _ in range(1_000)) <= 3
