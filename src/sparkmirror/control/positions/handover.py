"""Copies positions from MirrorMaker 1's group on the source to MirrorMaker 2's on the target."""

from __future__ import annotations

from dataclasses import dataclass

from sparkmirror.control.positions.seeding import check_group_is_free, plan_seeding
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster

__all__ = ["Handover", "hand_over"]


@dataclass(frozen=True, slots=True)
class Handover:
    """The outcome, by source partition.

    ``taken``: the position was copied. ``kept``: the new flow already had a position. ``absent``:
    the target does not have the partition yet, so it can hold no position.
    """

    taken: tuple[TopicPartition, ...]
    kept: tuple[TopicPartition, ...]
    absent: tuple[TopicPartition, ...]


def hand_over(source: Cluster, target: Cluster, old: FlowSettings, new: FlowSettings) -> Handover:
    """Commit the positions of ``old`` (MirrorMaker 1) as those of ``new`` (MirrorMaker 2).

    Both flows lead from ``source`` to ``target``. Positions that ``new`` already has stay, so a
    second call does no harm. Raises `ClusterError` while the old group has active members, and
    other `MirrorError`.
    """
    check_group_is_free(source, old)
    before, after = FlowTopics(old), FlowTopics(new)
    views = {
        name: view
        for name, view in source.topics().items()
        if before.accepts(name) and after.accepts(name) and not after.fault(name)
    }
    partitions = [
        SourcePartition(name, number, after.remote(name), view.topic_id)
        for name, view in sorted(views.items())
        for number in range(view.partitions)
    ]
    stored = {
        tp: one.offset
        for tp, one in source.committed_offsets(
            old.group_id, [p.source for p in partitions]
        ).items()
    }
    remote = target.topics({p.target.topic for p in partitions})
    present, absent = [], []
    for partition in partitions:
        view = remote.get(partition.target.topic)
        if view is not None and partition.partition < view.partitions:
            present.append(partition)
        elif partition.source in stored:
            absent.append(partition.source)
    known = target.committed_offsets(new.position_group, [p.target for p in present])
    commits = plan_seeding(Assignment(new.name, tuple(present)), known, stored)
    if commits:
        target.commit_offsets(new.position_group, commits)
    return Handover(
        taken=tuple(p.source for p in present if p.target in commits),
        kept=tuple(p.source for p in present if p.target in known),
        absent=tuple(absent),
    )
