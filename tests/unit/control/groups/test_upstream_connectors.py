"""MirrorMaker 2's own unit tests of its connectors and tasks, on our planners.

Each test has the name of the one in Apache Kafka, in our spelling: see docs/compatibility.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from sparkmirror.control.flow import FlowControl
from sparkmirror.control.groups.checkpoints import (
    CheckpointRules,
    CheckpointStore,
    plan_checkpoints,
)
from sparkmirror.control.groups.checkpoints import wanted_groups as groups_of
from sparkmirror.control.groups.group_offsets import plan_group_offsets
from sparkmirror.control.topics.acl_sync import wanted_acls
from sparkmirror.control.topics.sync import CreateTopic, GrowTopic, ObservedTopics, plan_topics
from sparkmirror.internal_topics.mm2_records import Checkpoint
from sparkmirror.internal_topics.offset_syncs import PartitionState
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import (
    DefaultReplicationPolicy,
    FlowTopics,
    is_cycle,
    make_policy,
)
from sparkmirror.settings import (
    CheckpointSettings,
    ClusterClient,
    FlowSettings,
    PolicySettings,
    TopicSettings,
)
from sparkmirror.wire.cluster.views import AclBinding, Committed, ConfigEntry, GroupView, TopicView
from tests.unit.config_files import BASE, load

SOURCE = ClusterClient("source", ("a:1",), "c")
TARGET = ClusterClient("target", ("b:1",), "c")
FLOW = FlowSettings(SOURCE, TARGET, SOURCE, TARGET, topics=TopicSettings(replication_factor=1))
IDENTITY = replace(FLOW, policy=PolicySettings("identity"))


def _accepts(flow: FlowSettings = FLOW, **topics: object) -> FlowTopics:
    return FlowTopics(replace(flow, topics=TopicSettings(**topics)))  # type: ignore[arg-type]


# --- MirrorSourceConnectorTest --------------------------------------------------------------


@pytest.mark.parametrize("topics", [{}, {"include": ()}, {"exclude": (".*",)}])
def test_replicates_heartbeats_by_default_and_despite_filter(topics: dict[str, object]) -> None:
    chosen = _accepts(**topics)
    assert chosen.accepts("heartbeats")
    assert chosen.accepts("us-west.heartbeats")
    # With another separator that is a topic of that name, which the filter decides on.
    other = replace(FLOW, policy=PolicySettings(separator="_"))
    assert _accepts(other, include=()).accepts("us-west_heartbeats")
    assert not _accepts(other, include=()).accepts("us-west.heartbeats")


def test_does_not_replicate_heartbeats_when_disabled() -> None:
    off = _accepts(include=("topic",), heartbeats_replication_enabled=False)
    assert not off.accepts("heartbeats")
    assert not off.accepts("us-west.heartbeats")


def test_replicates_heartbeats_when_disabled_but_filter_allows() -> None:
    off = _accepts(include=("heartbeats",), heartbeats_replication_enabled=False)
    assert off.accepts("heartbeats")
    assert not off.accepts("us-west.heartbeats")


def test_no_cycles() -> None:
    chosen = _accepts()
    for name in ("target.topic1", "target.source.topic1", "source.target.topic1",
                 "source.target.source.topic1", "source.source.target.topic1"):  # fmt: skip
        assert not chosen.accepts(name), name
    for name in ("topic1", "source.topic1", "othersource.topic1", "source.othersource.topic1"):
        assert chosen.accepts(name), name


def test_identity_replication() -> None:
    """Nothing tells a cycle then, but of heartbeats."""
    chosen = _accepts(IDENTITY)
    for name in ("target.topic1", "target.source.topic1", "source.topic1", "topic1",
                 "othersource.topic1"):  # fmt: skip
        assert chosen.accepts(name), name
        assert chosen.remote(name) == name
    for name in ("heartbeats", "othersource.heartbeats"):
        assert chosen.accepts(name), name
    assert not chosen.accepts("target.heartbeats")


def test_is_cycle_with_null_upstream_topic() -> None:
    class NoUpstream(DefaultReplicationPolicy):
        def upstream_topic(self, topic: str) -> str | None:
            return None

    assert not is_cycle(NoUpstream(), "source.topic1", "target")
    assert is_cycle(NoUpstream(), "target.topic1", "target")


def _acl(operation: str, permission: str = "ALLOW") -> AclBinding:
    return AclBinding("TOPIC", "test_topic", "LITERAL", "kafka", "*", operation, permission)


def test_acl_filtering() -> None:
    flow = FlowTopics(FLOW)
    assert list(wanted_acls([_acl("WRITE")], flow)) == []
    assert list(wanted_acls([_acl("ALL")], flow)) != []


def test_acl_transformation() -> None:
    flow = FlowTopics(FLOW)
    renamed = replace(_acl("READ"), name="source.test_topic")
    assert list(wanted_acls([_acl("ALL")], flow)) == [renamed]
    denied = replace(_acl("ALL", "DENY"), name="source.test_topic")
    assert list(wanted_acls([_acl("ALL", "DENY")], flow)) == [denied]


def _observed(
    source: Iterable[tuple[str, int]],
    target: Iterable[tuple[str, int]] = (),
    configs: dict[str, dict[str, ConfigEntry]] | None = None,
) -> ObservedTopics:
    views = ({n: TopicView(n, "", count, 1) for n, count in side} for side in (source, target))
    return ObservedTopics(*views, configs or {})


def test_new_topic_configs() -> None:
    """What is excluded and what is the broker's own does not go with a new topic."""
    entries = {
        "cleanup.policy": ConfigEntry("compact", "DYNAMIC_TOPIC_CONFIG"),
        "segment.bytes": ConfigEntry("100", "DYNAMIC_TOPIC_CONFIG"),
        "min.insync.replicas": ConfigEntry("2", "DYNAMIC_TOPIC_CONFIG"),
    }
    exclude = TopicSettings(replication_factor=1, config_properties_exclude=("segment[.].*",))
    flow = replace(FLOW, topics=exclude)
    (created,) = plan_topics(_observed([("t", 1)], configs={"t": entries}), flow)
    assert isinstance(created, CreateTopic)
    assert created.new.configs == {"cleanup.policy": "compact", "min.insync.replicas": "2"}


def test_refresh_topic_partitions() -> None:
    (created,) = plan_topics(_observed([("topic", 1)]), FLOW)
    assert isinstance(created, CreateTopic)
    assert (created.new.name, created.new.partitions) == ("source.topic", 1)
    assert plan_topics(_observed([("topic", 1)], [("source.topic", 1)]), FLOW) == []
    (grown,) = plan_topics(_observed([("topic", 3)], [("source.topic", 1)]), FLOW)
    assert isinstance(grown, GrowTopic)
    assert grown.partitions == 3


def test_refresh_topic_partitions_topic_on_target_first() -> None:
    """Partitions that only the target has ask for nothing."""
    assert plan_topics(_observed([], [("source.topic", 1)]), FLOW) == []
    assert plan_topics(_observed([("topic", 1)], [("source.topic", 4)]), FLOW) == []
    (created,) = plan_topics(_observed([("topic", 1)], [("source.other", 1)]), FLOW)
    assert isinstance(created, CreateTopic)


# --- MirrorSourceTaskTest -------------------------------------------------------------------


def test_offset_sync() -> None:
    state = PartitionState(50)
    for upstream, downstream, due in (
        (0, 100, True),
        (2, 102, True),  # upstream skipped
        (3, 152, False),
        (4, 153, True),  # the newest sync is too old
        (5, 154, False),
        (6, 203, False),
        (7, 204, True),
        (2, 206, True),  # upstream went back
        (3, 207, False),
        (4, 3, True),  # downstream went back
        (5, 4, False),
    ):
        assert state.update(upstream, downstream) == due, (upstream, downstream)


def test_zero_offset_sync() -> None:
    state = PartitionState(0)
    assert all(state.update(offset, 100 + offset) for offset in range(20))


# --- MirrorCheckpointConnectorTest, MirrorCheckpointTaskTest --------------------------------


def test_find_consumer_groups() -> None:
    settings = CheckpointSettings(enabled=True, include=("g.*",), exclude=("gone",))
    flow = replace(FLOW, checkpoints=settings)
    present = {name: GroupView(name, "Stable") for name in ("g1", "g2", "gone", "other")}
    assert groups_of(flow, present) == {"g1", "g2"}


def test_mirror_checkpoint_connector_disabled(tmp_path: Path) -> None:
    """Nobody looks at groups then, whatever groups there are; the other flow has its own setting.

    ``testMirrorCheckpointConnectorEnabled`` is the other half.
    """
    text = BASE + "B->A.enabled=true\nA->B.emit.checkpoints.enabled=false\n"
    on, off = [], []
    for flow in load(tmp_path, text).flows:
        control = FlowControl(flow, "run", lambda _: None)
        (off if control.groups is None else on).append(flow.name)
        assert control.checkpoint_times.spreads() == {}
        assert control.group_rows == ()
        control.close()
    assert (on, off) == (["B->A"], ["A->B"])


def _plan(
    offsets: dict[TopicPartition, Committed], store: CheckpointStore | None = None
) -> list[Checkpoint]:
    return plan_checkpoints(
        {"group": offsets}, CheckpointRules(FLOW), lambda _, at: at + 1, store or CheckpointStore()
    )


@pytest.mark.parametrize(
    ("topic", "remote"),
    [
        ("topic3", "source.topic3"),
        ("target.topic3", "topic3"),  # it came from the target
        ("target.heartbeats", "heartbeats"),
        ("source6.topic7", "source.source6.topic7"),
    ],
)
def test_downstream_topic_renaming(topic: str, remote: str) -> None:
    rules = CheckpointRules(FLOW)
    assert rules.remote(TopicPartition(topic, 4)) == TopicPartition(remote, 4)


def test_checkpoint() -> None:
    tp = TopicPartition("topic1", 2)
    (one,) = _plan({tp: Committed(10, "meta")})
    assert one == Checkpoint("group", TopicPartition("source.topic1", 2), 10, 11, "meta")


def test_sync_offset() -> None:
    """A target offset that is behind the translated one is raised, one that is before it stays."""
    behind, before, new = (TopicPartition("source.t", n) for n in range(3))
    store = CheckpointStore()
    for tp in (behind, before, new):
        store.put(Checkpoint("g", tp, 200, 101))
    present = {"g": {behind: Committed(50), before: Committed(102)}}
    assert plan_group_offsets(store, ["g"], present) == {"g": {behind: (101, ""), new: (101, "")}}


def test_checkpoint_records_monotonic_if_store_rewinds() -> None:
    tp, store = TopicPartition("t", 0), CheckpointStore()
    remote = TopicPartition("source.t", 0)
    store.put(Checkpoint("group", remote, 10, 11))
    places: dict[int, int] = {11: 5, 9: 4}  # the store answers more coarsely than before
    for upstream, emitted in ((11, []), (9, [Checkpoint("group", remote, 9, 4)])):
        found = plan_checkpoints(
            {"group": {tp: Committed(upstream)}},
            CheckpointRules(FLOW),
            lambda _, at: places[at],
            store,
        )
        assert found == emitted, upstream


# --- MirrorHeartBeatConnectorTest -----------------------------------------------------------


def test_mirror_heartbeat_connector_disabled(tmp_path: Path) -> None:
    settings = load(tmp_path, BASE + "A->B.emit.heartbeats.enabled=false\n")
    assert [beat.name for beat in settings.heartbeats] == ["B->A"]


def test_heartbeats_of_a_flow_that_is_disabled(tmp_path: Path) -> None:
    """``testReplicationDisabled``: heartbeats go on, as others need them."""
    settings = load(tmp_path, BASE + "B->A.enabled=false\n")
    assert [flow.name for flow in settings.flows] == ["A->B"]
    assert [beat.name for beat in settings.heartbeats] == ["A->B", "B->A"]


def test_policy_is_the_flows_own() -> None:
    """``testReplicationPolicy``: the same settings give the same names everywhere."""
    policy = PolicySettings(separator="-")
    flow = replace(FLOW, policy=policy)
    named = make_policy(policy, "source").format_remote_topic("source", "t")
    assert FlowTopics(flow).remote("t") == named == "source-t"
