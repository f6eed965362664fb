"""One MirrorMaker 1 flow as a member of its consumer group: whose partitions are whose.

Several mirrors, of this kind and of Java's, share one ``group.id``. The group deals the partitions;
what it gives this member is the flow's assignment. The rule that keeps two members from copying
the same partition: **nothing is given up before it is drained**. A member that has to give up
partitions publishes an assignment without them, waits until the planner says that all slots obey
it (they have written and committed what they had read, as members of the generation that ends),
and only then joins again.

::

    OUT ──join──▶ STABLE ──the group rebalances──▶ [eager: give up all, drain] ──join──▶ STABLE
                    └──────the group went on without us──▶ give up all, drain ──▶ OUT

Cooperative assignors (KIP-429) keep what stays: the member joins first, then drains what the new
generation gives to others, and joins once more so that they can have it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from sparkmirror.control.mm1.rebalance_listener import Listener
from sparkmirror.errors import Defect, Denied, GroupRefused, MirrorError
from sparkmirror.model import FlowSettings, Member, TopicPartition
from sparkmirror.wire.group.session import GroupSession, Joined, MemberState

log = logging.getLogger(__name__)

_POLL_S = 0.05
_WAIT_S = 1.0


class GroupFlow(Protocol):
    """What the membership needs of its flow (`control.mm1.group_share.GroupShare`)."""

    name: str

    def topic_counts(self) -> Mapping[str, int]:
        """Partitions of each source topic that this flow mirrors or would mirror."""

    def publish(self, owned: Iterable[TopicPartition], member: Member | None) -> int:
        """Make ``owned`` the flow's assignment; its version. Raises `MirrorError`."""

    def planned_version(self) -> int:
        """The newest assignment that all slots obey, -1 before Spark runs."""

    def partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Partitions of any topics of the source. Raises `MirrorError`."""

    def say(self, line: str) -> None:
        """A notice for the user."""


class Membership:
    """Keeps one flow in its group. `step` is called over and over by one thread.

    ``alone``: no other member was there at the start, so joining early costs nobody anything;
    otherwise the member joins when Spark is up, so that the others copy until then. ``failure`` is
    set when the group does not take this member at all.
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
        self._listener = Listener(settings.group)
        self._joined: Joined | None = None
        self._owned: frozenset[TopicPartition] = frozenset()
        self._topics: Mapping[str, int] = {}

    # --- one step ---------------------------------------------------------------------------

    def step(self) -> None:
        """Do what is due, or wait a moment. Raises `MirrorError`; call again then."""
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
            self._flow.say(
                f"{self._flow.name}: the group goes on without this mirror: joining anew"
            )
            self._give_up_all()
            self._session.forget()
            self._joined = None
        elif state is MemberState.REBALANCING or self._topics_changed():
            self._rebalance()
        else:
            self._publish()
            self._session.news.wait(_WAIT_S)

    def _topics_changed(self) -> bool:
        """Whether the group has to hear of other topics or (from its leader) partitions."""
        now = self._flow.topic_counts()
        if now.keys() != self._topics.keys():
            return True
        return self._joined is not None and self._joined.leads and now != self._topics

    def _rebalance(self) -> None:
        if self._joined is None:
            raise Defect("not a member of the group")
        if self._session.cooperative:
            self._join(self._owned)
            return
        before = self._owned
        if self._give_up_all():
            self._heard(self._listener.revoked, before)
            self._join(before)

    def _join(self, owned: Iterable[TopicPartition]) -> None:
        topics = dict(self._flow.topic_counts())
        joined = self._session.join(topics, owned)
        if joined is None:
            return
        lost, kept = self._owned - set(joined.partitions), self._owned
        first = self._joined is None
        self._joined, self._topics = joined, topics
        self._owned = frozenset(joined.partitions)
        self._tell(first)
        self._heard(self._listener.assigned, self._owned - kept)
        version = self._publish()
        if lost and self._session.cooperative and self._planned(version):
            self._heard(self._listener.revoked, lost)
            # Others wait for these: they get them when this member has joined without them.
            self._join(self._owned)

    def _heard(
        self,
        tell: Callable[[Iterable[TopicPartition]], None],
        partitions: Iterable[TopicPartition],
    ) -> None:
        """Tell the user's listener; a failure of its ends the mirror, as it ends Java's."""
        try:
            tell(partitions)
        except MirrorError as error:
            self.failure = error
            raise

    def _tell(self, first: bool) -> None:
        if self._joined is None:
            raise Defect("not a member of the group")
        member = self._joined.member
        self._flow.say(
            f"{self._flow.name}: {'joined' if first else 'rejoined'} the group in generation "
            f"{member.generation} ({self._joined.strategy}): {len(self._owned)} of "
            f"{sum(self._topics.values())} partitions are mirrored here"
        )

    def _publish(self) -> int:
        """Publish what is owned, when that or what the flow can mirror of it has changed."""
        if self._joined is None:
            raise Defect("not a member of the group")
        return self._flow.publish(self._owned, self._joined.member)

    def _give_up_all(self) -> bool:
        """Whether all slots have ended; False when the run ends first.

        Without a member: nobody must take it for an empty share that the group has given. Slots
        commit what they have as the member that they were planned for.
        """
        version = self._flow.publish((), None)
        self._owned = frozenset()
        return self._planned(version)

    def _planned(self, version: int) -> bool:
        """Wait until all slots obey ``version``; False when the run ends first."""
        while self._flow.planned_version() < version:
            if self._ending:
                return False
            time.sleep(_POLL_S)
        return True

    # --- the end ----------------------------------------------------------------------------

    def end(self) -> None:
        """Join no more; the heartbeats go on, so that what is being drained can be committed."""
        self._ending = True

    def close(self, *, leave: bool) -> None:
        """End the membership. ``leave``: others take over at once, not after the session."""
        self._ending = True
        owned, self._owned = self._owned, frozenset()
        if leave and owned:
            try:
                self._listener.revoked(owned)
            except MirrorError as error:  # the mirror ends in any case
                log.warning("%s", error)
        self._session.close(leave=leave)
