"""Where a flow begins: its position group, and positions taken over from Java's MirrorMaker.

Committed offsets of the position group always take precedence. A partition without one gets its
position from MirrorMaker 2's offset storage topic: this mirror continues where a Java MirrorMaker 2
stopped, or where its own committed offsets have expired. For a MirrorMaker 1 with an old consumer
the position comes from the source's ZooKeeper.

`first_positions` commits the positions of partitions that still have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkmirror.control.topics.internal_topics import offset_storage_topic
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import ClusterError
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.connect_offsets import ConnectOffsets, read_source_positions
from sparkmirror.internal_topics.position_metadata import (
    Mark,
    PositionMetadata,
    TargetMark,
    encode_metadata,
)
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import Committed


@dataclass(frozen=True, slots=True)
class Seeding:
    """The positions taken over: next source offset per source partition.

    ``skipped``: number of records of the offset storage topic that could not be decoded.
    """

    seeded: Mapping[TopicPartition, int] = field(default_factory=dict)
    skipped: int = 0


def position_group(flow: FlowSettings) -> str:
    """The consumer group whose committed offsets are the flow's positions.

    MirrorMaker 2: on the target, under remote topic names. MirrorMaker 1: on the source.
    """
    return flow.position_group


def named_in_group(flow: FlowSettings, p: SourcePartition) -> TopicPartition:
    """The partition as named in the position group."""
    return p.source if flow.mode is MirrorMode.MM1 else p.target


def plan_seeding(
    assignment: Assignment,
    committed: Mapping[TopicPartition, Committed],
    stored: Mapping[TopicPartition, int],
    *,
    of_connect: bool = False,
    by_source: bool = False,
) -> dict[TopicPartition, tuple[int, str]]:
    """Offset and metadata to commit, per remote partition; ``by_source``: per source one. Pure.

    Only for partitions that are in ``stored`` (by source name) and not in ``committed`` (by the
    same name as the result). ``of_connect``: ``stored`` is from Connect's offset storage, which
    outlives remote topics.
    """
    target = TargetMark(seeded=of_connect)
    named = {p: p.source if by_source else p.target for p in assignment.partitions}
    return {
        name: (
            stored[p.source],
            encode_metadata(PositionMetadata(Mark(topic_id=p.topic_id), target)),
        )
        for p, name in named.items()
        if name not in committed and p.source in stored
    }


def of_present_names(
    flow: FlowSettings, assignment: Assignment, stored: ConnectOffsets
) -> dict[TopicPartition, int]:
    """The positions in ``stored`` of remote topics with the present names. Pure.

    A topic that gets another name on the target begins there like a new one.
    """
    names = FlowTopics(flow)
    by_map = flow.mode is MirrorMode.MM2 and bool(flow.topics.map)
    found = {}
    for p in assignment.partitions:
        remote = names.mapped(p.topic) if by_map else None
        position = (
            stored.positions.get(p.source)
            if remote is None
            else stored.mapped.get((p.source, remote))
        )
        if position is not None:
            found[p.source] = position
    return found


def seed_positions(cluster: Cluster, flow: FlowSettings, assignment: Assignment) -> Seeding:
    """Take over the offsets of a Java MirrorMaker where the position group has none.

    ``cluster`` holds the position group. For MirrorMaker 2 that is the target, which also has the
    offset storage topic. For MirrorMaker 1 it is the source, whose ZooKeeper may hold offsets of
    old consumers of the same group. Raises `MirrorError`.
    """
    in_kafka_only = flow.mode is MirrorMode.MM1 and not flow.zookeeper
    if in_kafka_only or not assignment.partitions:
        return Seeding()
    group = position_group(flow)
    source_of = {named_in_group(flow, p): p.source for p in assignment.partitions}
    committed = cluster.committed_offsets(group, source_of, operation="Read")
    if len(committed) == len(assignment.partitions):
        return Seeding()
    of_connect = flow.mode is not MirrorMode.MM1
    if not of_connect:
        # Imported late: few mirrors need a ZooKeeper client.
        from sparkmirror.wire.legacy.zookeeper import group_offsets  # noqa: PLC0415

        missing = [source for name, source in source_of.items() if name not in committed]
        stored = ConnectOffsets(group_offsets(flow.zookeeper, flow.group_id, missing))
    else:
        stored = _stored_offsets(cluster, flow)
    positions = of_present_names(flow, assignment, stored)
    commits = plan_seeding(
        assignment, committed, positions, of_connect=of_connect, by_source=not of_connect
    )
    if commits:
        cluster.commit_offsets(group, commits)
    seeded = {source_of[tp]: offset for tp, (offset, _) in commits.items()}
    return Seeding(seeded, stored.skipped)


def _stored_offsets(target: Cluster, flow: FlowSettings) -> ConnectOffsets:
    topic = offset_storage_topic(flow)
    view = target.topics([topic]).get(topic)
    if view is None:
        return ConnectOffsets({})
    records = target.read_compacted(topic, partitions=range(view.partitions))
    return read_source_positions(records, flow.source.alias)


def check_group_is_free(source: Cluster, flow: FlowSettings) -> None:
    """Check that the group of a MirrorMaker 1 flow has no active members.

    Raises `ClusterError` that names the members: their mirror would go on copying.
    """
    if flow.mode is not MirrorMode.MM1:
        return
    members = source.group_members(flow.group_id)
    if not members:
        return
    names = sorted(
        {f"{m.client_id or 'a consumer'} at {m.host or 'an unknown host'}" for m in members}
    )
    shown = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
    raise ClusterError(
        f"the group {flow.group_id} has active members ({shown}): a Java MirrorMaker still runs.",
        where=f"cluster {flow.source.alias}",
        do="Stop it first. This mirror then continues where it stopped.",
    )
