"""Membership of a MirrorMaker 1 flow in its consumer group.

Several mirrors, sparkmirror's and Java's, may share one ``group.id``. The partitions that the group
assigns to this member are the flow's assignment. One rule keeps two members from copying the same
partition: **a partition is drained before it is given up**. A member that must give up partitions
publishes an assignment without them. It waits until the planner reports that all slots follow it:
the slots have then written and committed what they had read, as members of the old generation.
Only then does the member join again.

::

    OUT ──join──▶ STABLE ──group rebalances──▶ [eager: give up all, drain] ──join──▶ STABLE
                    └─────member was removed from the group──▶ give up all, drain ──▶ OUT

With cooperative assignors (KIP-429) a member keeps the partitions that stay with it. It joins
first, drains the partitions that the new generation assigns to others, and joins once more to
release them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from sparkmirror.control.mm1.rebalance_listener import RebalanceListener
from sparkmirror.errors import Defect, Denied, GroupRefused, MirrorError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import FlowSettings, Member
from sparkmirror.wire.group.session import GroupSession, Joined, MemberState

log = logging.getLogger(__name__)

_POLL_S = 0.05
_WAIT_S = 1.0


class GroupFlow(Protocol):
    """The flow as the membership needs it (`control.mm1.group_share.GroupShare`)."""

    name: str
    discoveries: int
    """How often the topics of the source were discovered."""

    def topic_counts(self) -> Mapping[str, int]:
        """Partition count of each source topic that the flow could mirror."""

    def publish(self, owned: Iterable[TopicPartition], member: Member | None) -> int:
        """Publish ``owned`` as the flow's assignment; returns its version.

        Raises `MirrorError`.
        """

    def planned_version(self) -> int:
        """Version of the newest assignment that all slots follow; -1 before Spark runs."""

    def partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Partition counts of any topics of the source. Raises `MirrorError`."""

    def assigned_counts(self) -> Mapping[str, int]:
        """How many partitions of each topic the group has assigned. Raises `MirrorError`."""

    def notify(self, line: str) -> None:
        """Show a notice to the user."""


class Membership:
    """Keeps one flow in its group. One thread calls `step` repeatedly.

    ``alone``: the group had no other member at the start, so this member joins at once. Otherwise
    it joins when Spark runs, so that the others copy until then. ``failure`` is set if the group
    rejects this member or the rebalance listener fails: the flow cannot continue then.
    """

    def __init__(self, flow: GroupFlow, settings: FlowSettings, *, alone: bool) -> None:
        self.failure: MirrorError | None = None
        self._flow = flow
        self._alone = alone
        self._ending = False
        self._session = GroupSession(
            settings.source,
            settings.group_id,
            settings.group,
            counts=flow.partition_counts,
            stopping=lambda: self._ending,
        )
        self._listener = RebalanceListener(settings.group)
        self._static = bool(settings.group.instance_id)
        self._joined: Joined | None = None
        self._owned: frozenset[TopicPartition] = frozenset()
        # Assigned to others, who get them when this member has drained them and joined once more.
        self._leaving: frozenset[TopicPartition] = frozenset()
        self._release_due = False
        self._topics: Mapping[str, int] = {}
        self._compared = -1
        """The discovery after which the partition counts of the group were compared last."""
        self._may_have_returned = False

    # --- one step ---------------------------------------------------------------------------

    def step(self) -> None:
        """Do what is due, or wait briefly. Raises `MirrorError`; the next call retries."""
        if self.failure is not None or self._ending:
            time.sleep(_WAIT_S)
            return
        try:
            self._step()
        except (GroupRefused, Denied) as error:
            self.failure = error

    def _step(self) -> None:
        if self._joined is None:
            if self._alone or self._planned(0):
                self._join(())
            return
        state = self._session.state
        if state is MemberState.LOST:
            self._flow.notify(
                f"{self._flow.name}: the group has removed this mirror: joining again"
            )
            self._give_up_all()
            self._session.forget()
            self._joined = None
        elif state is MemberState.REBALANCING or self._topics_changed():
            self._rebalance()
        elif self._release_due:  # the drain or the join after it has failed
            self._release()
        else:
            self._publish()
            self._session.news.wait(_WAIT_S)

    def _topics_changed(self) -> bool:
        """Whether to rejoin: the own topics or watched partition counts differ from the group's."""
        if self._flow.topic_counts().keys() != self._topics.keys():
            return True
        watched = self._joined.counts if self._joined is not None else {}
        if self._may_have_returned and self._unassigned({**self._topics, **watched}):
            return True
        self._may_have_returned = False
        discoveries = self._flow.discoveries
        if not watched or discoveries == self._compared:
            return False
        # Other members may have topics that this flow does not mirror.
        found = self._flow.partition_counts(watched)
        if any(found.get(topic, 0) != count for topic, count in watched.items()):
            return True
        self._compared = discoveries
        return False

    def _unassigned(self, counts: Mapping[str, int]) -> bool:
        """Whether the group lacks some of these partitions.

        When a static member returns in time, its group goes on with the assignment that it has,
        even if topics or partitions are new since then.
        """
        try:
            assigned = self._flow.assigned_counts()
        except Denied as error:
            log.warning("%s: new partitions may wait for a rebalance: %s", self._flow.name, error)
            return False
        return any(assigned.get(topic, 0) < count for topic, count in counts.items())

    def _rebalance(self) -> None:
        if self._joined is None:
            raise Defect("not a member of the group")
        if self._session.cooperative:
            if self._drained():
                self._join(self._owned)
            return
        before = self._owned
        if self._give_up_all():
            self._call_listener(self._listener.revoked, before)
            self._join(before)

    def _join(self, owned: Iterable[TopicPartition]) -> None:
        topics, discoveries = dict(self._flow.topic_counts()), self._flow.discoveries
        joined = self._session.join(topics, owned)
        if joined is None:
            return
        kept = self._owned
        first = self._joined is None
        self._may_have_returned = first and self._static
        self._joined, self._topics, self._compared = joined, topics, discoveries
        self._owned = frozenset(joined.partitions)
        self._leaving = kept - self._owned
        self._release_due = bool(self._leaving)
        self._report_share(first)
        self._call_listener(self._listener.assigned, self._owned - kept)
        if self._release_due:
            self._release()
        else:
            self._publish()

    def _release(self) -> None:
        """Drain what others are to get, and join without it: then the group gives it to them."""
        if self._drained():
            self._join(self._owned)

    def _drained(self) -> bool:
        """Wait until no slot has what others are to get; False if the run ends first."""
        if self._leaving:
            if not self._planned(self._publish()):
                return False
            self._call_listener(self._listener.revoked, self._leaving)
            self._leaving = frozenset()
        return True

    def _call_listener(
        self,
        call: Callable[[Iterable[TopicPartition]], None],
        partitions: Iterable[TopicPartition],
    ) -> None:
        """Call the user's listener. If it fails, the mirror ends, as Java's does."""
        try:
            call(partitions)
        except MirrorError as error:
            self.failure = error
            raise

    def _report_share(self, first: bool) -> None:
        if self._joined is None:
            raise Defect("not a member of the group")
        member = self._joined.member
        self._flow.notify(
            f"{self._flow.name}: {'joined' if first else 'rejoined'} the group in generation "
            f"{member.generation} ({self._joined.strategy}): {len(self._owned)} of "
            f"{sum(self._topics.values())} partitions are mirrored here"
        )

    def _publish(self) -> int:
        """Publish the owned partitions; `GroupFlow.publish` ignores it if nothing has changed."""
        if self._joined is None:
            raise Defect("not a member of the group")
        return self._flow.publish(self._owned, self._joined.member)

    def _give_up_all(self) -> bool:
        """Publish an empty assignment and wait for the slots; False if the run ends first.

        It is published without a member, to distinguish it from an empty share assigned by the
        group. Slots still commit as the member that they were planned for.
        """
        version = self._flow.publish((), None)
        self._owned = self._leaving = frozenset()
        self._release_due = False
        return self._planned(version)

    def _planned(self, version: int) -> bool:
        """Wait until all slots follow assignment ``version``; False if the run ends first."""
        while self._flow.planned_version() < version:
            if self._ending:
                return False
            time.sleep(_POLL_S)
        return True

    # --- the end ----------------------------------------------------------------------------

    def end(self) -> None:
        """Do not join any more. Heartbeats continue, so that draining slots can commit."""
        self._ending = True

    def close(self, *, leave: bool) -> None:
        """End the membership. ``leave``: leave the group, so that others take over at once.

        Otherwise they take over when the session times out.
        """
        self._ending = True
        owned = self._owned | self._leaving
        self._owned = self._leaving = frozenset()
        if leave and owned:
            try:
                self._listener.revoked(owned)
            except MirrorError as error:  # the mirror ends anyway
                log.warning("%s", error)
        self._session.close(leave=leave)
