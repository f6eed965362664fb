"""First positions: where a partition without a position begins, committed before a slot has it.

A partition that begins at the log end (``auto.offset.reset=latest``) or at a time gets its position
here, before the run reports that it mirrors. Slots could look it up only once Spark runs; records
written until then would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sparkmirror.control.positions.seeding import named_in_group, position_group
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import ClusterError, Denied, Unreachable
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.position_metadata import (
    Mark,
    PositionMetadata,
    TargetMark,
    encode_metadata,
)
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.offset_reset import EARLIEST, LATEST, reset_time_ms
from sparkmirror.progress import Halt
from sparkmirror.settings import FlowSettings, Member
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from sparkmirror.wire.cluster.error_codes import (
    LEADER_NOT_AVAILABLE,
    OFFSET_NOT_AVAILABLE,
    error_name,
)

# A coordinator that does not know a new topic yet rejects its offsets.
_COMMIT_WITHIN_S = 10.0
_COMMIT_PAUSE_S = 0.1


class FirstPositions:
    """Commits the first position of partitions without one, unless they begin at the log start.

    They begin at the log end (``latest``), or at the first record from a time on (``by_duration``),
    as it is when the partition is found. ``keeper`` is the cluster with the position group.
    ``waiting``: partitions whose leader is unavailable, or does not tell the offset. They stay out
    of the assignment until it does: a slot that chose the offset later would skip the records
    written until then.
    """

    def __init__(self, keeper: Cluster, source: Cluster, flow: FlowSettings) -> None:
        self.waiting: frozenset[TopicPartition] = frozenset()
        self._untold: frozenset[TopicPartition] = frozenset()  # those with a leader
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
        committed = self._keeper.committed_offsets(
            group, [named_in_group(self._flow, p) for p in wanted], operation="Read"
        )
        missing = {p.source: p for p in wanted if named_in_group(self._flow, p) not in committed}
        commits: dict[TopicPartition, tuple[int, str]] = {}
        without: frozenset[TopicPartition] = frozenset()
        untold: frozenset[TopicPartition] = frozenset()
        taken = True
        if missing:
            begins = self._source.end_offsets(missing, self._flow.fetch.isolation_level)
            if time_ms != LATEST:
                at = self._source.offsets_at(begins, time_ms)
                # Without an answer a partition waits: at its end it would skip what is wanted.
                untold = frozenset(begins.keys() - at.keys())
                begins = {tp: begins[tp] if first < 0 else first for tp, first in at.items()}
            commits = _commits(self._flow, missing, begins)
            taken = self._commit(commits, member) if commits else True
            if taken:
                without = frozenset(missing.keys() - begins.keys())
        # Only now: after a failure, those that waited still do.
        asked = {p.source for p in wanted}
        self.waiting = (self.waiting - asked) | without
        self._untold = (self._untold - asked) | (untold & without)
        return len(commits) if taken else 0

    def hold(self, assignment: Assignment) -> Assignment:
        """``assignment`` with its waiting partitions moved to the halted ones."""
        held = {p.source for p in assignment.partitions} & self.waiting
        if not held:
            return assignment
        halts = {tp: self._why(tp) for tp in held}
        return replace(
            assignment,
            partitions=tuple(p for p in assignment.partitions if p.source not in held),
            halted={**assignment.halted, **halts},
        )

    def _why(self, tp: TopicPartition) -> Halt:
        if tp not in self._untold:
            reason = f"the source has no leader for {tp}: it begins as soon as there is one"
            return Halt(error_name(LEADER_NOT_AVAILABLE), reason, retriable=True)
        reset = self._flow.fetch.auto_offset_reset
        reason = (
            f"the source does not tell which offset of {tp} belongs to the time of "
            f"auto.offset.reset={reset}: it begins as soon as it does. Brokers before 4.0 never do "
            "for topics with message.format.version below 0.10: use earliest or latest there"
        )
        return Halt(error_name(OFFSET_NOT_AVAILABLE), reason, retriable=True)

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
        coordinators = Coordinators(ClusterConnections(self._flow.source))
        try:
            coordinators.commit(position_group(self._flow), commits, member)
        except Denied:
            return False
        finally:
            coordinators.close()
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
        named_in_group(flow, missing[tp]): (
            begin,
            encode_metadata(
                PositionMetadata(Mark(topic_id=missing[tp].topic_id), TargetMark(begin=begin))
            ) if marked else "",
        )
        for tp, begin in begins.items()
    }  # fmt: skip
