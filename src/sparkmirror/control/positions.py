"""Where a flow begins: its position group, and positions taken over from Java's MirrorMaker.

The position group's committed offsets are the truth. Only partitions without one are looked up
elsewhere: in MirrorMaker 2's offset storage topic, so that this mirror goes on where a Java
MirrorMaker 2 stopped (and where its own committed offsets expired); or, for a MirrorMaker 1 with
an old consumer, in the source's ZooKeeper.

What is still without a position and begins at the end of the log (``auto.offset.reset=latest``)
or at a time gets its position here, before the run says that it mirrors: slots would look it up
only when Spark is up, and whatever was written until then would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sparkmirror.control.internal import offset_storage_topic
from sparkmirror.control.topics import Assignment
from sparkmirror.errors import ClusterError, Denied, Unreachable
from sparkmirror.model import FlowSettings, MirrorMode, TopicPartition
from sparkmirror.offset_reset import EARLIEST, LATEST, reset_time_ms
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.connect_offsets import ConnectOffsets, read_source_positions
from sparkmirror.wire.marks import Mark, TargetMark, encode_mark, target_fields
from sparkmirror.wire.signals import SourcePartition
from sparkmirror.wire.views import Committed

__all__ = [
    "Seeding",
    "check_group_is_free",
    "plan_seeding",
    "position_group",
    "seed_positions",
    "settle_beginnings",
]

# Brokers hear of new topics one after the other; until the coordinator has, it takes no offsets.
_COMMIT_WITHIN_S = 10.0
_COMMIT_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Seeding:
    """What was taken over: next source offset per source partition.

    ``skipped``: records of the offset storage topic that make no sense.
    """

    seeded: Mapping[TopicPartition, int] = field(default_factory=dict)
    skipped: int = 0


def position_group(flow: FlowSettings) -> str:
    """The consumer group whose committed offsets are the flow's positions.

    On the target and under remote topic names (MirrorMaker 2), or on the source (MirrorMaker 1).
    """
    return flow.position_group


def plan_seeding(
    assignment: Assignment,
    committed: Mapping[TopicPartition, Committed],
    stored: Mapping[TopicPartition, int],
    *,
    of_connect: bool = False,
) -> dict[TopicPartition, tuple[int, str]]:
    """Offset and metadata to commit, per remote partition. Pure.

    Only partitions without a committed offset (by remote name) that ``stored`` (by source name)
    knows. ``of_connect``: they are from Connect's offset storage, which outlives remote topics.
    """
    more = target_fields(TargetMark(seeded=of_connect))
    return {
        p.target: (stored[p.source], encode_mark(Mark(topic_id=p.topic_id), more))
        for p in assignment.partitions
        if p.target not in committed and p.source in stored
    }


def seed_positions(cluster: Cluster, flow: FlowSettings, assignment: Assignment) -> Seeding:
    """Take over the offsets of a Java MirrorMaker where the position group has none.

    ``cluster`` keeps the position group: the target, where MirrorMaker 2 has its offset storage
    topic; in MirrorMaker 1 mode the source, whose ZooKeeper may hold what old consumers of the
    same group committed. Raises `MirrorError`.
    """
    in_kafka_only = flow.mode is MirrorMode.MM1 and not flow.zookeeper
    if in_kafka_only or not assignment.partitions:
        return Seeding()
    group = position_group(flow)
    committed = cluster.committed_offsets(
        group, [p.target for p in assignment.partitions], operation="Read"
    )
    if len(committed) == len(assignment.partitions):
        return Seeding()
    of_connect = flow.mode is not MirrorMode.MM1
    if not of_connect:
        # Few mirrors need a ZooKeeper client.
        from sparkmirror.wire.zookeeper import group_offsets  # noqa: PLC0415

        missing = [p.source for p in assignment.partitions if p.target not in committed]
        stored = ConnectOffsets(group_offsets(flow.zookeeper, flow.group_id, missing))
    else:
        stored = _stored_offsets(cluster, flow)
    commits = plan_seeding(assignment, committed, stored.positions, of_connect=of_connect)
    if commits:
        cluster.commit_offsets(group, commits)
    source_of = {p.target: p.source for p in assignment.partitions}
    seeded = {source_of[tp]: offset for tp, (offset, _) in commits.items()}
    return Seeding(seeded, stored.skipped)


def settle_beginnings(
    keeper: Cluster, source: Cluster, flow: FlowSettings, partitions: Iterable[SourcePartition]
) -> int:
    """Commit where ``partitions`` begin, unless that is their start; how many these are.

    At their ends (``latest``), or at the first record of a time (``by_duration``). ``keeper``
    keeps the position group. Only partitions without a position are looked at; those that have no
    leader, or whose positions the group's other members keep or this client may not commit, are
    left to the slots. Raises `MirrorError`.
    """
    time_ms = reset_time_ms(flow.fetch.auto_offset_reset, int(time.time() * 1000))
    if time_ms == EARLIEST:  # also for "none": the slot says what is missing
        return 0
    wanted, group = list(partitions), position_group(flow)
    committed = keeper.committed_offsets(group, [p.target for p in wanted], operation="Read")
    missing = {p.source: p for p in wanted if p.target not in committed}
    if not missing:
        return 0
    begins = source.end_offsets(missing, flow.fetch.isolation_level)
    if time_ms != LATEST:
        begins |= source.offsets_at(begins, time_ms)
    # MirrorMaker 1's group is also Java's, which writes no metadata.
    marked = flow.mode is not MirrorMode.MM1
    commits = {
        missing[tp].target: (
            begin,
            encode_mark(
                Mark(topic_id=missing[tp].topic_id), target_fields(TargetMark(begin=begin))
            ) if marked else "",
        )
        for tp, begin in begins.items()
    }  # fmt: skip
    deadline = time.monotonic() + _COMMIT_WITHIN_S
    while True:
        try:
            keeper.commit_offsets(group, commits)
        except Denied:
            return 0  # the slot halts what it may not read, and says so
        except Unreachable:
            raise
        except ClusterError:
            if keeper.group_members(group, operation="Read"):
                return 0  # another mirror has joined since
            if time.monotonic() > deadline:
                raise
            time.sleep(_COMMIT_PAUSE_S)
        else:
            return len(commits)


def _stored_offsets(target: Cluster, flow: FlowSettings) -> ConnectOffsets:
    topic = offset_storage_topic(flow)
    if topic not in target.topics([topic]):
        return ConnectOffsets({})
    return read_source_positions(target.read_compacted(topic), flow.source.alias)


def check_group_is_free(source: Cluster, flow: FlowSettings) -> None:
    """Make sure that no consumer is active in the group of a MirrorMaker 1 flow.

    Raises `ClusterError` naming the members: two mirrors in one group would both copy.
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
        do="Stop it first, this mirror then goes on where it stopped.",
    )
