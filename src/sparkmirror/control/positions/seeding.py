"""Where a flow begins: its position group, and positions taken over from Java's MirrorMaker.

Committed offsets of the position group always take precedence. A partition without one gets its
position from MirrorMaker 2's offset storage topic: this mirror continues where a Java MirrorMaker 2
stopped, or where its own committed offsets have expired. For a MirrorMaker 1 with an old consumer
the position comes from the source's ZooKeeper.

A partition that still has none, and begins at the log end (``auto.offset.reset=latest``) or at a
time, gets its position here, before the run reports that it mirrors. Slots could look it up only
once Spark runs; records written until then would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sparkmirror.control.topics.internal_topics import offset_storage_topic
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import ClusterError, Denied, Unreachable
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.connect_offsets import ConnectOffsets, read_source_positions
from sparkmirror.internal_topics.position_metadata import (
    Mark,
    PositionMetadata,
    TargetMark,
    encode_metadata,
)
from sparkmirror.model import FlowSettings, Halt, Member, MirrorMode, TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.offset_reset import EARLIEST, LATEST, reset_time_ms
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import LEADER_NOT_AVAILABLE, error_name
from sparkmirror.wire.cluster.views import Committed

# A coordinator that does not know a new topic yet rejects its offsets.
_COMMIT_WITHIN_S = 10.0
_COMMIT_PAUSE_S = 0.1


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


def _named_in_group(flow: FlowSettings, p: SourcePartition) -> TopicPartition:
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
    source_of = {_named_in_group(flow, p): p.source for p in assignment.partitions}
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


class Beginnings:
    """Commits the first position of partitions without one, unless they begin at the log start.

    They begin at the log end (``latest``), or at the first record from a time on (``by_duration``),
    as it is when the partition is found. ``keeper`` is the cluster with the position group.
    ``waiting``: partitions whose leader is unavailable. They stay out of the assignment until they
    have a leader: a slot that chose the offset later would skip the records written until then.
    """

    def __init__(self, keeper: Cluster, source: Cluster, flow: FlowSettings) -> None:
        self.waiting: frozenset[TopicPartition] = frozenset()
        self._keeper, self._source, self._flow = keeper, source, flow

    def settle(self, partitions: Iterable[SourcePartition], member: Member | None = None) -> int:
        """Commit where those of ``partitions`` without a position begin; returns how many.

        If the group has other members, or this client may not commit, nothing is committed and
        the slots choose. ``member``: commit as this member; a group with members accepts commits
        only from them. Raises `MirrorError`.
        """
        now_ms = int(time.time() * 1000)
        time_ms = reset_time_ms(self._flow.fetch.auto_offset_reset, now_ms)
        wanted, group = list(partitions), position_group(self._flow)
        # EARLIEST also stands for "none": the slot reports the missing position.
        if time_ms == EARLIEST or not wanted:
            return 0
        self.waiting -= {p.source for p in wanted}
        committed = self._keeper.committed_offsets(
            group, [_named_in_group(self._flow, p) for p in wanted], operation="Read"
        )
        missing = {p.source: p for p in wanted if _named_in_group(self._flow, p) not in committed}
        if not missing:
            return 0
        begins = self._source.end_offsets(missing, self._flow.fetch.isolation_level)
        if time_ms != LATEST:
            begins |= self._source.offsets_at(begins, time_ms)
        commits = _commits(self._flow, missing, begins)
        taken = self._commit(commits, member) if commits else True
        if taken:
            self.waiting |= missing.keys() - begins.keys()
        return len(commits) if taken else 0

    def hold(self, assignment: Assignment) -> Assignment:
        """``assignment`` with its waiting partitions moved to the halted ones."""
        held = {p.source for p in assignment.partitions} & self.waiting
        if not held:
            return assignment
        halts = {
            tp: Halt(
                error_name(LEADER_NOT_AVAILABLE),
                f"the source has no leader for {tp}: it begins as soon as there is one",
                retriable=True,
            )
            for tp in held
        }
        return replace(
            assignment,
            partitions=tuple(p for p in assignment.partitions if p.source not in held),
            halted={**assignment.halted, **halts},
        )

    def _commit(
        self, commits: Mapping[TopicPartition, tuple[int, str]], member: Member | None
    ) -> bool:
        """Commit; False: not allowed, or the group has other members, so the slots choose."""
        if member is not None:
            return self._commit_as(member, commits)
        group = position_group(self._flow)
        deadline = time.monotonic() + _COMMIT_WITHIN_S
        while True:
            try:
                self._keeper.commit_offsets(group, commits)
            except Denied:
                return False  # the slot meets the same error, halts the partition and reports it
            except Unreachable:
                raise
            except ClusterError:
                if self._keeper.group_members(group, operation="Read"):
                    return False  # another mirror has joined meanwhile
                if time.monotonic() > deadline:
                    raise
                time.sleep(_COMMIT_PAUSE_S)
            else:
                return True

    def _commit_as(self, member: Member, commits: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        connections = ClusterConnections(self._flow.source)
        try:
            connections.commit(position_group(self._flow), commits, member)
        except Denied:
            return False
        finally:
            connections.close()
        return True


def _commits(
    flow: FlowSettings,
    missing: Mapping[TopicPartition, SourcePartition],
    begins: Mapping[TopicPartition, int],
) -> dict[TopicPartition, tuple[int, str]]:
    """Offset and metadata to commit, per partition as named in the position group."""
    # MirrorMaker 1: Java mirrors may share the group, and they write no metadata.
    marked = flow.mode is not MirrorMode.MM1
    return {
        _named_in_group(flow, missing[tp]): (
            begin,
            encode_metadata(
                PositionMetadata(Mark(topic_id=missing[tp].topic_id), TargetMark(begin=begin))
            ) if marked else "",
        )
        for tp, begin in begins.items()
    }  # fmt: skip


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
