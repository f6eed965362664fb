"""Plan of what consumer groups need: internal topics, checkpoints, group offsets.

Offsets are translated by the code of a running mirror, from what both clusters hold now. Nothing is
written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparkmirror.control.groups.checkpoints import (
    CheckpointRules,
    CheckpointStore,
    accepted_offsets,
    mirrored_topic_ids,
    plan_checkpoints,
    wanted_groups,
)
from sparkmirror.control.groups.group_offsets import idle_groups, plan_group_offsets
from sparkmirror.control.groups.job import checkpoints_topic
from sparkmirror.control.groups.job import offset_topics as offset_topics_of
from sparkmirror.control.groups.translation import Translation
from sparkmirror.control.topics.compacted import CompactedTopic, TopicFollower, plan_compacted
from sparkmirror.control.topics.heartbeats import heartbeats_topic
from sparkmirror.control.topics.observation import Change, FlowPlan, Observation, creation
from sparkmirror.control.topics.replicas import planned
from sparkmirror.errors import MirrorError
from sparkmirror.internal_topics.mm2_records import Checkpoint, offset_syncs_topic
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import TopicPartition
from sparkmirror.settings import HeartbeatSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import Committed

__all__ = [
    "GroupsFound",
    "find_groups",
    "groups",
    "offset_topics",
    "plan_heartbeats",
]


@dataclass(frozen=True, slots=True)
class GroupsFound:
    """The groups of a flow as the next checkpoint round would find them.

    ``committed``: offsets on the source by group, or the error of reading them. ``stored``: the
    existing checkpoints. ``new``: the checkpoints that would be emitted.
    """

    committed: Mapping[str, Mapping[TopicPartition, Committed] | MirrorError]
    stored: CheckpointStore
    new: tuple[Checkpoint, ...]


def offset_topics(observed: Observation) -> Iterator[Change]:
    """The topics of offset syncs, runs and checkpoints to create."""
    wanted = offset_topics_of(observed.flow)
    if observed.flow.checkpoints.enabled:
        wanted.append(("target", checkpoints_topic(observed.flow)))
    for side, topic in wanted:
        yield from _missing(observed.source if side == "source" else observed.target, topic)


def _missing(cluster: Cluster, topic: CompactedTopic) -> Iterator[Change]:
    new = plan_compacted(cluster, topic)
    if new is None:
        return
    fewer = {new.name} if topic.at_most_brokers else ()
    made, refused = planned(cluster, [new], topic.key, fewer)
    for one in made:
        yield creation(cluster.alias, one)
    for name, error in refused.items():
        yield Change(cluster.alias, "refuse", name, details={"reason": str(error)})


def plan_heartbeats(settings: HeartbeatSettings, target: Cluster) -> FlowPlan:
    """The heartbeats topic of one pair of clusters; it needs no flow between them."""
    try:
        changes = tuple(_missing(target, heartbeats_topic(settings)))
    except MirrorError as error:
        return FlowPlan(f"heartbeats {settings.name}", (), (error,))
    return FlowPlan(f"heartbeats {settings.name}", changes)


def find_groups(observed: Observation) -> GroupsFound:
    """Groups, their offsets and checkpoints. Raises `MirrorError` if a cluster is unavailable."""
    flow, rules = observed.flow, CheckpointRules(observed.flow)
    names = wanted_groups(flow, observed.source.groups())
    committed = observed.source.committed_by_group(names)
    stored = CheckpointStore()
    loaded = True  # a run creates the topic if it is missing, and reads it then
    if observed.target.topics([rules.topic]):
        follower = TopicFollower(observed.checkpoints, rules.topic)
        loaded = stored.load(follower)
        follower.close()
    syncs, runs = offset_syncs_topic(flow), runs_topic(flow)
    # Java's MirrorMaker 2 writes syncs alone.
    if not (observed.syncs_admin.topics([syncs]) or observed.target.topics([runs])):
        return GroupsFound(committed, stored, ())  # nothing has been mirrored yet
    translation = Translation(
        TopicFollower(observed.syncs, syncs),
        TopicFollower(observed.runs, runs),
        must_read_to_end=not loaded,
        mapped=rules.mapped,
    )
    try:
        known = accepted_offsets(
            {group: o for group, o in committed.items() if not isinstance(o, MirrorError)}, rules
        )
        translation.topic_ids = mirrored_topic_ids(observed.source, known)
        translation.catch_up()
        new = plan_checkpoints(known, rules, translation.translate, stored, translation.cuts)
    finally:
        translation.close()
    return GroupsFound(committed, stored, tuple(new))


def groups(observed: Observation) -> Iterator[Change]:
    """The next checkpoints, one change per group, and the group offsets to commit after them."""
    if not observed.flow.checkpoints.enabled:
        return
    found = find_groups(observed)
    by_group: dict[str, int] = {}
    for checkpoint in found.new:
        by_group[checkpoint.group] = by_group.get(checkpoint.group, 0) + 1
    for group, count in sorted(by_group.items()):
        yield Change(
            observed.target.alias, "emit-checkpoints", group, details={"partitions": count}
        )
    for group, offsets in sorted(found.committed.items()):
        if isinstance(offsets, MirrorError):
            yield Change(observed.source.alias, "refuse", group, details={"reason": str(offsets)})
    if observed.flow.checkpoints.sync_enabled:
        yield from _group_offsets(observed, found)


def _group_offsets(observed: Observation, found: GroupsFound) -> Iterator[Change]:
    store = CheckpointStore()
    for group in found.stored.groups() & found.committed.keys():
        for checkpoint in found.stored.of(group).values():
            store.put(checkpoint)
    for checkpoint in found.new:
        store.put(checkpoint)
    idle = idle_groups(observed.target, store.groups())
    present = observed.target.committed_by_group(idle)
    for group, commits in plan_group_offsets(store, idle, present).items():
        known = present[group]
        if isinstance(known, MirrorError):
            raise known
        for tp, (offset, _) in sorted(commits.items()):
            was = known[tp].offset if tp in known else None
            details = {"topic_partition": str(tp), "offset": offset, "was": was}
            yield Change(observed.target.alias, "set-offset", group, details=details)
