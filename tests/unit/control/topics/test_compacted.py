"""Internal topics are created where they belong, and followed."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from sparkmirror.control.groups.checkpoints import CheckpointStore
from sparkmirror.control.groups.job import create_offset_topics
from sparkmirror.control.report.plan_groups import offset_topics
from sparkmirror.control.topics.compacted import (
    COMPACTED,
    CompactedTopic,
    TopicFollower,
    create_compacted,
)
from sparkmirror.control.topics.observation import Observation
from sparkmirror.errors import (
    ClusterError,
    Denied,
    MirrorError,
    TopicError,
    Unreachable,
    Unsupported,
)
from sparkmirror.internal_topics.run_map import Run
from sparkmirror.settings import CheckpointSettings, OffsetSyncSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.requester import Requester
from sparkmirror.wire.admin.topics import create_topics
from sparkmirror.wire.cluster.views import Committed, NewTopic, TopicOutcome
from tests.unit.control.groups.world import A0, FakeCluster, World, client_of, flow_of


def test_topics_are_made_where_they_belong_or_it_is_told_why_not() -> None:
    source, target = FakeCluster(), FakeCluster()
    flow = flow_of(
        offset_syncs=OffsetSyncSettings(enabled=True, replication_factor=3),
        checkpoints=CheckpointSettings(enabled=True, replication_factor=2),
    )
    look = Observation(flow, cast(Cluster, source), cast(Cluster, target))
    planned = [(change.action, change.subject) for change in offset_topics(look)]
    assert planned == [
        ("create-topic", "mm2-sparkmirror-runs.A.internal"),
        ("refuse", "mm2-offset-syncs.B.internal"),
        ("create-topic", "A.checkpoints.internal"),
    ]
    told = create_offset_topics(flow, cast(Cluster, source), cast(Cluster, target))
    assert [(new.name, new.replication_factor) for new in target.created] == [
        ("mm2-sparkmirror-runs.A.internal", 2)
    ]
    assert source.created == []
    assert "created internal topic mm2-sparkmirror-runs.A.internal" in told[0]
    assert "A->B: no offset syncs are written" in told[1]
    assert "set offset-syncs.topic.replication.factor to 2 or less" in told[1]

    on_target = flow_of(
        offset_syncs=OffsetSyncSettings(enabled=True, location="target", replication_factor=-1)
    )
    target.logs["mm2-sparkmirror-runs.A.internal"] = []
    create_offset_topics(on_target, cast(Cluster, source), cast(Cluster, target))
    (new,) = target.created[1:]
    assert (new.name, new.partitions, new.replication_factor, new.configs) == (
        "mm2-offset-syncs.A.internal",
        1,
        -1,
        COMPACTED,
    )
    assert create_offset_topics(flow_of(), cast(Cluster, source), cast(Cluster, target)) == []


class Refusing(FakeCluster):
    """Answers the creation of any topic with ``code``, as its controller would."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code, self.client = code, client_of("B")

    def create_topics(self, topics: Sequence[NewTopic], **_: object) -> dict[str, TopicOutcome]:
        self.created += topics
        return create_topics(cast(Requester, self), topics)

    def pause(self, _seconds: float) -> bool:
        return False

    def request(self, *_: object, **__: object) -> object:
        rows = [
            SimpleNamespace(name=new.name, error_code=self.code, error_message="not today")
            for new in self.created[-1:]
        ]
        return SimpleNamespace(topics=rows)


TOPIC = CompactedTopic("topic", 1, "some.replication.factor")


@pytest.mark.parametrize(
    ("code", "told"),
    [(0, "B: created internal topic topic"), (36, "")],
    ids=["created", "TOPIC_ALREADY_EXISTS"],
)
def test_create_compacted_topic(code: int, told: str) -> None:
    """``testCreateCompactedTopic``, and when somebody else was quicker."""
    cluster = Refusing(code)
    assert create_compacted(cast(Cluster, cluster), TOPIC) == told
    assert cluster.created == [NewTopic("topic", 1, 1, COMPACTED)]
    cluster.logs["topic"] = []
    assert create_compacted(cast(Cluster, cluster), TOPIC) == ""
    assert len(cluster.created) == 1, "what is there is not asked for"


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (35, Unsupported, "UNSUPPORTED_VERSION: not today"),
        (31, Denied, "CLUSTER_AUTHORIZATION_FAILED: not today"),
        (29, Denied, "TOPIC_AUTHORIZATION_FAILED: not today"),
        (40, ClusterError, "INVALID_CONFIG: not today"),
        (7, Unreachable, "REQUEST_TIMED_OUT: not today"),
    ],
)
def test_create_compacted_topic_fails(code: int, kind: type[MirrorError], said: str) -> None:
    """Records are mirrored without offset syncs; checkpoints are tried again at each round.

    Java takes the first three for "it is there already": here that was looked at before.
    """
    with pytest.raises(kind, match="creating topic topic") as raised:
        create_compacted(cast(Cluster, Refusing(code)), TOPIC)
    assert said in str(raised.value)

    source, target = Refusing(code), Refusing(code)
    flow = flow_of(offset_syncs=OffsetSyncSettings(enabled=True, replication_factor=1))
    runs, syncs = create_offset_topics(flow, cast(Cluster, source), cast(Cluster, target))
    assert runs.startswith("A->B: translation is less exact: ")
    assert "creating topic mm2-sparkmirror-runs.A.internal " in runs
    assert syncs.startswith("A->B: no offset syncs are written: ")
    assert "creating topic mm2-offset-syncs.B.internal " in syncs
    assert said in runs
    assert said in syncs

    once = CheckpointSettings(enabled=True, replication_factor=1)
    world = World(flow_of(checkpoints=once))
    world.mirror(Run(0, 0, 10))
    world.source.offsets["g"] = {A0: Committed(5)}
    mended, world.target = world.target, Refusing(code)
    world.target.logs, topic = mended.logs, mended.logs.pop("A.checkpoints.internal")
    job = world.job()
    for _ in range(2):
        with pytest.raises(kind, match=r"A\.checkpoints\.internal"):
            job.tick()
    assert len(world.target.created) == 2
    world.target.logs["A.checkpoints.internal"] = topic
    job.finish()
    assert world.checkpoints() == [(5, 5)]


def test_a_follower_reads_on_where_it_stopped() -> None:
    cluster = FakeCluster()
    cluster.logs["t"] = [(b"a", b"1")]
    follower = TopicFollower(cast(Cluster, cluster), "t")
    assert list(follower.read()) == [(b"a", b"1")]
    cluster.logs["t"].append((b"b", None))
    assert list(follower.read()) == [(b"b", None)]
    follower.close()


def test_a_topic_whose_leader_went_is_not_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups would go back to what older translations say."""
    cluster = FakeCluster()
    cluster.logs["t"] = [(b"garbage", b"")]
    monkeypatch.setattr(cluster, "end_offsets", lambda *_: {})
    with pytest.raises(TopicError, match="no live leader"):
        list(TopicFollower(cast(Cluster, cluster), "t").read())
    assert not CheckpointStore().load(TopicFollower(cast(Cluster, cluster), "t"))
