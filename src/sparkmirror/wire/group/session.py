"""Membership in a consumer group, classic protocol: join, sync, heartbeat, leave.

`GroupSession` is one member. Its owner calls `join` and `close`. A separate thread sends the
heartbeats, so the membership continues while the owner waits for its partitions to be drained.
The heartbeats keep `state` up to date; `news` is set whenever it changes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from sparkmirror.errors import ClusterError, Denied, GroupRefused, MirrorError, Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, GroupSettings, Member
from sparkmirror.wire.cluster.acl_advice import Right, grant
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from sparkmirror.wire.cluster.error_codes import error_name
from sparkmirror.wire.group.assignors import (
    COOPERATIVE_STICKY,
    Subscription,
    assign,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from sparkmirror.wire.net.connection import Connection, ConnectionLost

__all__ = ["GroupSession", "Joined", "MemberState"]

log = logging.getLogger(__name__)

_PROTOCOL_TYPE = "consumer"
_SLICE_S = 0.1
# The broker may respond to a join only after the rebalance timeout of the slowest member.
_JOIN_GRACE_S = 10.0

_LOADING, _NOT_AVAILABLE, _NOT_COORDINATOR = 14, 15, 16
_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _REBALANCING = 22, 25, 27
_MEMBER_ID_REQUIRED, _FENCED_INSTANCE = 79, 82
# From this version of JoinGroup on, a restarted static member learns that it leads (KIP-814).
_SKIP_ASSIGNMENT_VERSION = 9
_COORDINATOR_MOVED = frozenset({_LOADING, _NOT_AVAILABLE, _NOT_COORDINATOR})
_REFUSALS = {
    23: "its members share no assignor with this one, or speak another group protocol. Give all "
    "of them the same partition.assignment.strategy.",
    24: "the broker does not accept this group.id. Change it.",
    26: "the brokers do not accept this session.timeout.ms. Choose one between the brokers' "
    "group.min.session.timeout.ms and group.max.session.timeout.ms.",
    81: "it has as many members as group.max.size allows. Raise it, or stop another member.",
    _FENCED_INSTANCE: "another member has taken over its group.instance.id. Give each process "
    "a group.instance.id of its own.",
}


class MemberState(Enum):
    """The state of the membership, as the heartbeats report it.

    ``OUT``: not joined. ``STABLE``: a member of the newest generation. ``REBALANCING``: the group
    waits for this member to join again. ``LOST``: the group has continued without it.
    """

    OUT = "out"
    STABLE = "stable"
    REBALANCING = "rebalancing"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Joined:
    """One generation as this member sees it. ``leads``: it assigns the partitions of all.

    ``members``: their number, 0 unless it leads. ``counts``: of each topic that this member watches
    for the group, the partitions that were assigned: when that changes, it must join again. If it
    leads, these are the topics of all members. Topics that do not exist have 0.
    """

    member: Member
    strategy: str
    partitions: tuple[TopicPartition, ...]
    leads: bool
    members: int
    counts: Mapping[str, int]


class _Rejoin(Exception):
    """Join again: the group has a newer generation, or the broker assigned a member id."""


class GroupSession:
    """One member of one consumer group.

    ``counts`` returns the partition count of each given topic; only the leader needs it.
    ``stopping`` ends every wait. Methods raise `MirrorError`. One owner.
    """

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        settings: GroupSettings,
        *,
        counts: Callable[[Iterable[str]], Mapping[str, int]],
        stopping: Callable[[], bool],
    ) -> None:
        self.client = client
        self.group = group
        self.settings = settings
        self.news = threading.Event()
        self.state = MemberState.OUT
        self._counts = counts
        self._stopping = stopping
        self._where = f"cluster {client.alias}, group {group}"
        self._coordinators = Coordinators(ClusterConnections(client))
        self._member_id = ""
        self._generation = -1
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._replaced = False
        self._thread: threading.Thread | None = None

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept during a rebalance (KIP-429), by the same rule as in Java."""
        return set(self.settings.strategies) == {COOPERATIVE_STICKY}

    # -- joining ---------------------------------------------------------------------------

    def join(self, topics: Iterable[str], owned: Iterable[TopicPartition] = ()) -> Joined | None:
        """Join the next generation; None if ``stopping`` came first.

        ``owned``: partitions that the member keeps until it has joined (cooperative), or owned
        before. Raises `GroupRefused` or `Denied` if a retry does not help, other `MirrorError`s
        when the coordinator does not respond or the leader's assignment cannot be read.
        """
        one = Subscription(
            tuple(sorted(topics)),
            tuple(sorted(owned)),
            self._generation,
            self.settings.instance_id or None,
        )
        if self._replaced:  # joining would only fence the member that has the instance id now
            self._check(_FENCED_INSTANCE, "joining")
        failure: Exception | None = None
        again = False
        deadline = time.monotonic() + self.client.request_timeout_ms / 1000
        while not self._stopping():
            try:
                joined = self._try_join(one)
            except _Rejoin:
                # The first time it is usual: the coordinator has given the member its id, or the
                # members have changed meanwhile.
                if again:
                    time.sleep(self.client.retry_backoff_ms / 1000)
                again = True
                deadline = time.monotonic() + self.client.request_timeout_ms / 1000
                continue
            except (Unreachable, ConnectionLost) as error:
                failure = error
                self._coordinators.close()
                if time.monotonic() > deadline:
                    raise Unreachable(
                        f"the group's coordinator does not respond ({failure}).", where=self._where
                    ) from error
                time.sleep(self.client.retry_backoff_ms / 1000)
                continue
            if joined is not None:
                self._enter(joined)
                # The next join may be hours away. A firewall may forget the connection until then,
                # and the whole group would wait for a join that never arrives.
                self._coordinators.close()
            return joined
        return None

    def _try_join(self, one: Subscription) -> Joined | None:
        rows = JoinGroupRequest.JoinGroupRequestProtocol
        settings, returns = self.settings, bool(one.instance_id) and not self._member_id
        answer = self._exchange(
            JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=settings.session_timeout_ms,
                rebalance_timeout_ms=settings.rebalance_timeout_ms,
                member_id=self._member_id,
                group_instance_id=one.instance_id,
                protocol_type=_PROTOCOL_TYPE,
                protocols=[
                    rows(
                        name=strategy,
                        metadata=encode_subscription(one, strategy, cooperative=self.cooperative),
                    )
                    for strategy in settings.strategies
                ],
            ),
            (2, _SKIP_ASSIGNMENT_VERSION),
            settings.rebalance_timeout_ms / 1000 + _JOIN_GRACE_S,
        )
        if answer is None:
            return None
        if answer.error_code == _MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            raise _Rejoin
        self._check(answer.error_code, "joining")
        self._member_id = answer.member_id
        generation, strategy = int(answer.generation_id), str(answer.protocol_name or "")
        leads = answer.leader == answer.member_id
        if leads and answer.members is None:
            raise ConnectionLost("the leader's JoinGroup response has no list of members")
        said = self._subscriptions(strategy, answer.members) if leads else {}
        watched = said
        if returns and not leads and answer.API_VERSION < _SKIP_ASSIGNMENT_VERSION:
            # It may lead the group still: such brokers say so only when it joins once more.
            watched = {self._member_id: one}
        counts = self._partition_counts(watched.values())
        # The group of a restarted leader goes on with the assignment that it has.
        assigns = leads and not answer.skip_assignment
        assigned = assign(strategy, said, counts) if assigns else {}
        shares = SyncGroupRequest.SyncGroupRequestAssignment
        synced = self._exchange(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=generation,
                member_id=self._member_id,
                group_instance_id=one.instance_id,
                protocol_type=_PROTOCOL_TYPE,
                protocol_name=strategy,
                assignments=[
                    shares(member_id=member, assignment=encode_assignment(partitions))
                    for member, partitions in assigned.items()
                ],
            ),
            (0, 5),
            settings.rebalance_timeout_ms / 1000 + _JOIN_GRACE_S,
        )
        if synced is None:
            return None
        self._check(synced.error_code, "synchronising")
        try:
            partitions = decode_assignment(bytes(synced.assignment or b""))
        except ValueError as error:
            raise ClusterError(
                f"the assignment from the group's leader cannot be read ({error}).",
                where=self._where,
                do="Find the member that leads the group, and its client, with "
                "kafka-consumer-groups.sh --describe --members.",
            ) from error
        return Joined(
            Member(self._member_id, generation, settings.instance_id, self.cooperative),
            strategy,
            partitions,
            leads,
            len(said),
            counts,
        )

    def _subscriptions(self, strategy: str, members: Iterable[Any]) -> dict[str, Subscription]:
        """The subscription of each member, as the leader gets them."""
        if strategy not in self.settings.strategies:
            raise ClusterError(
                f"the broker chose the assignor {strategy or '(none)'}, which was not offered.",
                where=self._where,
                do="Check the broker's log, and that it is a Kafka broker.",
            )
        said: dict[str, Subscription] = {}
        for one in members:
            instance = getattr(one, "group_instance_id", None)
            member, metadata = str(one.member_id or ""), bytes(one.metadata or b"")
            try:
                said[member] = decode_subscription(metadata, strategy, instance)
            except ValueError as error:
                log.warning("%s: member %s: %s", self._where, member, error)
                said[member] = Subscription(())
        return said

    def _partition_counts(self, said: Iterable[Subscription]) -> dict[str, int]:
        """The partition count of each topic of these subscriptions, 0 if it does not exist."""
        topics = sorted({topic for one in said for topic in one.topics})
        found = self._counts(topics) if topics else {}
        return {topic: found.get(topic, 0) for topic in topics}

    def _check(self, code: int, doing: str) -> None:
        """Raise `_Rejoin` or the error that ``code`` of a join or sync means; nothing for 0."""
        if not code:
            return
        if code in _COORDINATOR_MOVED:
            raise Unreachable(f"{doing}: {error_name(code)}.", where=self._where)
        if code in (_UNKNOWN_MEMBER, _ILLEGAL_GENERATION):
            self._member_id = "" if code == _UNKNOWN_MEMBER else self._member_id
            raise _Rejoin
        if code == _REBALANCING:
            raise _Rejoin
        if code == 30:
            raise Denied(
                f"{doing}: not authorized ({error_name(code)}).",
                where=self._where,
                do=grant(self.client, Right("Read", "Group", self.group)),
            )
        if code in _REFUSALS:
            raise GroupRefused(
                f"the group does not accept this member ({error_name(code)}):",
                where=self._where,
                do=_REFUSALS[code],
            )
        raise ClusterError(f"{doing}: the broker returned {error_name(code)}.", where=self._where)

    def _exchange(self, message: Any, versions: tuple[int, int], patience_s: float) -> Any | None:
        """The response to a request that may take long; None if ``stopping`` came first."""
        connection = self._coordinator(self._coordinators)
        version = connection.api_version(message.API_KEY, *versions, message.name)
        deadline = time.monotonic() + patience_s
        try:
            pending = connection.begin(message, version)
            while not connection.readable(_SLICE_S):
                if self._stopping():
                    self._coordinators.close()
                    return None
                if time.monotonic() > deadline:
                    raise ConnectionLost("no answer")
            return connection.finish(message, version, pending)
        except ConnectionLost:
            self._coordinators.close()
            raise

    def _coordinator(self, coordinators: Coordinators) -> Connection:
        try:
            return coordinators.connection(self.group)
        except Denied:
            raise
        except MirrorError as error:
            raise Unreachable(error.what, where=error.where, do=error.do) from error

    # -- heartbeats ------------------------------------------------------------------------

    def _enter(self, joined: Joined) -> None:
        with self._lock:
            self._generation = joined.member.generation
            self.state = MemberState.STABLE
            self.news.clear()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._beat, name=f"heartbeats-{self.group}", daemon=True
            )
            self._thread.start()

    def _report_state(self, state: MemberState, generation: int) -> None:
        """Take the result of a heartbeat of ``generation``, unless a newer one has begun."""
        with self._lock:
            if generation != self._generation or self.state is MemberState.OUT:
                return
            if state is MemberState.LOST:
                self._generation = -1
            if state is not self.state:
                self.state = state
                self.news.set()

    def _beat(self) -> None:
        coordinators = Coordinators(ClusterConnections(self.client))
        interval_s = self.settings.heartbeat_interval_ms / 1000
        session_s = self.settings.session_timeout_ms / 1000
        responded_at, beating = time.monotonic(), -1
        while not self._closed.wait(interval_s):
            with self._lock:
                state, generation, member = self.state, self._generation, self._member_id
            if state not in (MemberState.STABLE, MemberState.REBALANCING):
                continue
            if generation != beating:
                responded_at, beating = time.monotonic(), generation
            try:
                code = self._heartbeat(coordinators, member, generation)
            except (MirrorError, ConnectionLost) as error:
                log.info("%s: heartbeat: %s", self._where, error)
                coordinators.close()
                code = _NOT_AVAILABLE
            if code in (0, _REBALANCING):
                responded_at = time.monotonic()
                if code:
                    self._report_state(MemberState.REBALANCING, generation)
            elif code in (_UNKNOWN_MEMBER, _ILLEGAL_GENERATION, _FENCED_INSTANCE):
                log.warning("%s: %s", self._where, error_name(code))
                with self._lock:
                    self._replaced = code == _FENCED_INSTANCE
                    if code == _UNKNOWN_MEMBER and self._member_id == member:
                        self._member_id = ""
                self._report_state(MemberState.LOST, generation)
            else:
                coordinators.forget(self.group)
                if time.monotonic() - responded_at > session_s:
                    # At the broker the session has expired, too: others own the partitions by now.
                    log.warning("%s: no heartbeat succeeded for a session timeout", self._where)
                    self._report_state(MemberState.LOST, generation)
        coordinators.close()

    def _heartbeat(self, coordinators: Coordinators, member: str, generation: int) -> int:
        message = HeartbeatRequest(
            group_id=self.group,
            generation_id=generation,
            member_id=member,
            group_instance_id=self.settings.instance_id or None,
        )
        return int(self._coordinator(coordinators).request(message, highest=4).error_code)

    # -- leaving ---------------------------------------------------------------------------

    def forget(self) -> None:
        """Reset the membership after `MemberState.LOST`; the owner may join again."""
        with self._lock:
            self.state, self._generation = MemberState.OUT, -1

    def close(self, *, leave: bool) -> None:
        """Stop the heartbeats. ``leave``: leave the group, so that others take over at once.

        A static member (``group.instance.id``) never leaves: it is expected to return. Never
        raises.
        """
        self._closed.set()
        with self._lock:
            self.state = MemberState.OUT
        if self._thread is not None:
            self._thread.join(1.0)
        self._coordinators.close()
        if not leave or not self._member_id or self.settings.instance_id:
            return
        rows = LeaveGroupRequest.MemberIdentity
        message = LeaveGroupRequest(
            group_id=self.group,
            member_id=self._member_id,
            members=[rows(member_id=self._member_id, group_instance_id=None)],
        )
        with contextlib.suppress(MirrorError, ConnectionLost):  # the session expires anyway
            self._coordinator(self._coordinators).request(message, highest=4)
        self._coordinators.close()
