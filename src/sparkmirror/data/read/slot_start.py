"""Where each partition of a slot continues: its position, compared with both clusters' logs."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.fencing import check_owner, checks_claims, take_over
from sparkmirror.data.coordination.slot_plan import SlotPlan
from sparkmirror.data.read.first_positions import first_positions
from sparkmirror.data.read.loss_detection import LossWatch
from sparkmirror.data.read.resume import resume
from sparkmirror.data.read.slot_share import SlotShare
from sparkmirror.data.read.target_loss import TargetWatch, Verdict
from sparkmirror.data.rows.notes import LeftNote, Owner, PartitionHello, SlotHello, Writer
from sparkmirror.internal_topics.commands import channel
from sparkmirror.internal_topics.position_metadata import (
    Mark,
    PositionMetadata,
    TargetMark,
    decode_metadata,
)
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.transforms import Transformed
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.produce.hanging_transactions import CommittedRecords
from sparkmirror.wire.produce.partition_queue import Identity

__all__ = ["SlotStart"]


class SlotStart:
    """Finds the start of one slot.

    By source partition: ``committed`` offsets, their ``metadata``, and the ``verdicts`` on the
    target's logs. ``identity``: the one under which an exactly-once sink writes. ``kept``: the
    partitions of the plan that the slot still has, ``released``: those that it has to release.
    ``control``: what follows the control topic, and what the slot has by that; None if the slot is
    already the only writer, and watches the claims.
    """

    def __init__(
        self,
        flow: FlowSettings,
        plan: SlotPlan,
        source: ClusterConnections,
        fetcher: Fetcher,
        losses: LossWatch,
        targets: TargetWatch,
        control: tuple[ControlWatch, SlotShare] | None,
    ) -> None:
        self.committed: dict[TopicPartition, int] = {}
        self.metadata: dict[TopicPartition, PositionMetadata] = {}
        self.verdicts: dict[TopicPartition, Verdict] = {}
        self.identity: Identity | None = None
        self._flow = flow
        self._plan = plan
        self.kept = plan.partitions
        self.released: tuple[LeftNote, ...] = ()
        self._by_source = {p.source: p for p in plan.partitions}
        transformed = Transformed(flow)
        # Where their records are on the target is not known.
        self._routed = {tp for tp in self._by_source if transformed.routes(tp.topic)}
        self._source = source
        self._fetcher = fetcher
        self._losses = losses
        self._targets = targets
        self._control = control

    def asked(self) -> ClusterConnections:
        """Connections for a start, to the cluster that has the positions."""
        mm1 = self._flow.mode is MirrorMode.MM1
        topics = {p.topic if mm1 else p.remote_topic for p in self._plan.partitions}
        return ClusterConnections(self._flow.source if mm1 else self._flow.target, topics)

    def find_out(self, connections: ClusterConnections) -> dict[TopicPartition, int]:
        """The positions, once nobody else may move them; empty if this plan is outdated.

        ``connections``: of the cluster that has them. Raises `MirrorError`, `ConnectionLost` or
        ``TimeoutError``.
        """
        flow, plan = self._flow, self._plan
        if self._control is not None:
            watch, share = self._control
            watch.start()
            while flow.exactly_once:
                ordered, self.released = watch.assignment, ()
                # Become the only writer of these partitions.
                self.identity = take_over(
                    flow, plan.slot, plan.run_id, plan.version, watch, plan.record
                )
                if self.identity is None:
                    return {}
                # An order counts if it was there before the fence: all later attempts know it, too.
                if not share.begin(watch.assignment)[1] or watch.assignment is ordered:
                    break
            if checks_claims(flow):
                check_owner(flow, plan.run_id, watch)
            self.kept, self.released = share.begin(watch.assignment)
            self._by_source = {p.source: p for p in self.kept}
        positions = self._positions(connections)
        if flow.mode is not MirrorMode.MM1:  # MirrorMaker 1's say nothing about the target
            counted = {tp: at for tp, at in positions.items() if tp not in self._routed}
            self.verdicts = self._targets.examine(
                self._source, connections, counted, self.metadata, self._fetcher.errors
            )
            self.verdicts |= {
                tp: Verdict(at, TargetMark()) for tp, at in positions.items() if tp in self._routed
            }
        return positions

    def _positions(self, connections: ClusterConnections) -> dict[TopicPartition, int]:
        """Where each partition continues: the committed position, else ``auto.offset.reset``."""
        flow = self._flow
        mm1 = flow.mode is MirrorMode.MM1
        by_position = {(p.source if mm1 else p.target): p.source for p in self.kept}
        group = flow.position_group
        coordinators = Coordinators(connections)
        try:
            committed = coordinators.positions(group, by_position, stable=flow.exactly_once)
        finally:
            coordinators.release(group)
        found: dict[TopicPartition, int] = {}
        for tp, one in committed.items():
            source, metadata = by_position[tp], decode_metadata(one.metadata)
            found[source] = one.offset
            mark = Mark(leader_epoch=one.leader_epoch) if mm1 else metadata.source
            self._losses.marks[source] = mark
            self.metadata[source] = metadata
        self.committed = dict(found)
        missing = [tp for tp in self._by_source if tp not in found]
        if missing and not mm1:
            ids = self._source.topic_ids
            counted = [tp for tp in missing if tp not in self._routed]
            for tp, (offset, metadata) in self._targets.remembered(
                counted, ids, connections
            ).items():
                found[tp], self.metadata[tp] = offset, metadata
                self._losses.marks[tp] = metadata.source
            missing = [tp for tp in missing if tp not in found]
        if missing:
            stable = flow.fetch.isolation_level == "read_committed"
            found |= first_positions(flow, self._fetcher, missing, stable=stable)
        return found

    def resume(
        self,
        positions: dict[TopicPartition, int],
        target: ClusterConnections,
        *,
        apart: Container[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """Where partitions without a loss continue: after the records that the target has already.

        Partitions in ``apart`` skip offsets later on, so they stay at their positions.
        """
        if self._flow.exactly_once or self._flow.mode is MirrorMode.MM1:
            return {}
        sound = {
            tp: offset
            for tp, offset in positions.items()
            if self._losses.may_resume(tp)
            and not self.verdicts[tp].lost
            and self._fetcher.position(tp) == offset
            and tp not in apart
            and tp not in self._routed
        }
        resumed = resume(
            self._flow,
            self._source,
            target,
            {
                self._by_source[tp]: (at, self.metadata.get(tp, PositionMetadata()))
                for tp, at in sound.items()
            },
            {self._by_source[tp].target: self.verdicts[tp].leaders_end for tp in sound},
        )
        for tp, one in resumed.items():
            # Followers may be behind what was acknowledged. With an end below that, later records
            # of this flow would count as those behind the position.
            verdict = self.verdicts[tp]
            self.verdicts[tp] = replace(verdict, end=max(verdict.end, one.target_end))
            if one.position != sound[tp]:
                self._fetcher.advance(tp, one.position)
                self._losses.moved(tp, one.leader_epoch)
        return {tp: one.position for tp, one in resumed.items()}

    def hello(
        self, positions: dict[TopicPartition, int], before: dict[TopicPartition, Mark]
    ) -> SlotHello:
        """What the sink must know first; attempt and memory are left to the caller.

        ``positions``: where the partitions begin. ``before``: their marks there, before any gap.
        """
        flow, plan = self._flow, self._plan
        owner = Owner(plan.run_id, plan.control_offset, plan.claim_term)
        # The sink writes under the identity that was fenced before positions were read.
        writer = Writer(self.identity, plan.run_id, plan.control_offset, plan.version, plan.record)
        return SlotHello(
            plan.slot,
            plan.epoch,
            channel(flow, plan.run_id),
            plan.run_id,
            -1,
            partitions=self.partitions(positions, before),
            owner=owner if checks_claims(flow) else None,
            writer=writer if flow.exactly_once else None,
        )

    def partitions(
        self, positions: dict[TopicPartition, int], before: dict[TopicPartition, Mark]
    ) -> tuple[PartitionHello, ...]:
        """How the partitions begin; parameters as in `hello`."""
        # The sink begins before these gaps, or before offsets that the target has, and so with the
        # marks there. It gets the later ones with what comes next.
        behind = {gap.source for gap, _ in self._losses.gaps}
        behind |= {tp for tp, at in positions.items() if self._fetcher.position(tp) != at}
        marks = self._losses.marks | {tp: mark for tp, mark in before.items() if tp in behind}
        unseen, nothing = Verdict(-1, TargetMark()), PositionMetadata()
        partitions = []
        for p in self.kept:
            verdict = self.verdicts.get(p.source, unseen)
            written = self.metadata.get(p.source, nothing).written
            partitions.append(
                PartitionHello(
                    p.source,
                    p.remote_topic,
                    positions.get(p.source, -1),
                    self.committed.get(p.source, -1),
                    verdict.end,
                    marks.get(p.source, Mark()),
                    verdict.mark,
                    CommittedRecords(*written) if written and self._flow.exactly_once else None,
                )
            )
        return tuple(partitions)
