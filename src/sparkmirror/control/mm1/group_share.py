"""The partitions of a MirrorMaker 1 flow that its consumer group assigns to this process."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from sparkmirror.control.mm1.membership import Membership
from sparkmirror.control.positions.first_positions import FirstPositions
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import MirrorError, TopicError
from sparkmirror.internal_topics.commands import Planned, SourcePartition
from sparkmirror.model import TopicPartition
from sparkmirror.progress import SEND_FAILED, SlotProgress
from sparkmirror.settings import FlowSettings, Member
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.net.connection import ConnectionLost

log = logging.getLogger(__name__)

Publish = Callable[[Assignment, Member | None], int]


class GroupShare:
    """Connects a flow with its `control.mm1.membership.Membership`.

    ``candidates``: all that the flow could mirror, as found last. ``publish`` publishes an
    assignment and returns its version. ``first_positions`` commits those of partitions without an
    offset in the group. ``alone``: see `Membership`.
    """

    def __init__(
        self,
        settings: FlowSettings,
        source: Cluster,
        candidates: Assignment,
        first_positions: FirstPositions,
        *,
        alone: bool,
        publish: Publish,
        notify: Callable[[str], None],
    ) -> None:
        self.name = settings.name
        self.discoveries = 0
        self.candidates = candidates
        self.notify = notify
        self._source = source
        self._group = settings.group_id
        self._publish = publish
        self._planned = -1
        self._first_positions = first_positions
        self._begun: frozenset[TopicPartition] = frozenset()
        self._membership = Membership(self, settings, alone=alone)

    @property
    def candidates(self) -> Assignment:
        """All that the flow could mirror, as found last."""
        return self._candidates

    @candidates.setter
    def candidates(self, found: Assignment) -> None:
        self._candidates = found
        self.discoveries += 1

    # --- for the membership -----------------------------------------------------------------

    def topic_counts(self) -> Mapping[str, int]:
        """Partition count of each source topic that the flow could mirror."""
        counts: dict[str, int] = {}
        for p in self.candidates.partitions:
            counts[p.topic] = max(counts.get(p.topic, 0), p.partition + 1)
        return counts

    def partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Partition counts of any topics of the source. Raises `MirrorError`."""
        return {name: view.partitions for name, view in self._source.topics(topics).items()}

    def assigned_counts(self) -> Mapping[str, int]:
        """How many partitions of each topic the group has assigned. Raises `MirrorError`."""
        return Counter(tp.topic for tp in self._source.group_owners(self._group))

    def publish(self, owned: Iterable[TopicPartition], member: Member | None) -> int:
        """Publish those of ``owned`` that can be mirrored as the assignment; returns its version.

        Raises `MirrorError`.
        """
        candidates, mine = self.candidates, set(owned)
        partitions = tuple(p for p in candidates.partitions if p.source in mine)
        self._begun &= mine
        if member is not None:
            self._begin([p for p in partitions if p.source not in self._begun], member)
        wanted = self._first_positions.hold(replace(candidates, partitions=partitions))
        return self._publish(wanted, member)

    def _begin(self, new: list[SourcePartition], member: Member) -> None:
        """Commit the first positions of ``new``. After a failure the slots choose them."""
        if not new:
            return
        try:
            self._first_positions.settle(new, member)
        except (MirrorError, ConnectionLost) as error:
            log.warning("%s: first positions are not committed: %s", self.name, error)
        self._begun |= {p.source for p in new} - self._first_positions.waiting

    def planned_version(self) -> int:
        """Version of the newest assignment that all slots follow; -1 before Spark runs."""
        return self._planned

    # --- for the flow -----------------------------------------------------------------------

    def on_planned(self, planned: Planned) -> None:
        """Note the version that the planner reports as followed by all slots."""
        self._planned = max(self._planned, planned.version)

    def step(self) -> None:
        """One step of the membership. Raises `MirrorError`."""
        self._membership.step()

    def failure(self, progress: Iterable[SlotProgress]) -> MirrorError | None:
        """Why this flow cannot continue; None while it can.

        Reasons: a record cannot be written, or `Membership.failure`.
        """
        for report in progress:
            for p in report.partitions:
                if p.halt is not None and p.halt.code == SEND_FAILED:
                    return TopicError(
                        f"records of {p.topic}-{p.partition} cannot be written: {p.halt.reason}",
                        where=f"flow {self.name}",
                        do="Make the target accept them and start again: nothing is lost. "
                        "--abort.on.send.failure=false would drop them and continue.",
                    )
        return self._membership.failure

    def end(self) -> None:
        """Do not join any more; heartbeats continue until `close`."""
        self._membership.end()

    def close(self, *, leave: bool) -> None:
        """End the membership. ``leave``: leave the group, so that others take over at once."""
        self._membership.close(leave=leave)
