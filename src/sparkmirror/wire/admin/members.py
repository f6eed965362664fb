"""The members of one consumer group. For `wire.admin.cluster.Cluster`.

The classic, the consumer (KIP-848) and the streams protocol (KIP-1071) each have their own describe
request, which does not find groups of the others. Brokers without the request have no such groups.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest

from sparkmirror.errors import ClusterError, Denied, Unsupported
from sparkmirror.model import TopicPartition
from sparkmirror.wire.admin.group_describe import (
    ConsumerGroupDescribeRequest,
    StreamsGroupDescribeRequest,
)
from sparkmirror.wire.admin.groups import CONSUMER_PROTOCOLS, GROUP_NOT_FOUND, IDLE_STATES
from sparkmirror.wire.admin.messages import error_code
from sparkmirror.wire.admin.requester import Requester
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.error_codes import TOPIC_AUTHORIZATION_FAILED
from sparkmirror.wire.cluster.views import GroupMember, GroupOwner
from sparkmirror.wire.group.assignors import decode_assignment

__all__ = ["group_members", "group_owners"]

log = logging.getLogger(__name__)


class _Member(NamedTuple):
    owner: GroupOwner
    partitions: tuple[TopicPartition, ...]


class _TopicsHidden(Exception):
    """The group has members that read a topic which this client may not describe."""


def group_members(requester: Requester, group: str, operation: str) -> tuple[GroupMember, ...]:
    """The active members of ``group``; empty without members, or if it does not exist.

    One member without a name stands for members that this client cannot see: they read a topic that
    it may not describe, or the group is of another kind (a share group). ``operation``: what an
    error advises to grant. Raises `MirrorError`.
    """
    try:
        members = _members(requester, group, operation)
    except _TopicsHidden:
        return (GroupMember("", ""),)
    if members is not None:
        return tuple(GroupMember(owner.client_id, owner.host) for owner, _ in members)
    listed = requester.request(
        ListGroupsRequest,
        _doing(group),
        group=group,
        check=error_code,
        needs=Right(operation, "Group", group),
    )
    for row in listed.groups:
        state = getattr(row, "group_state", "") or ""
        if row.group_id == group and state and state not in IDLE_STATES:
            return (GroupMember("", ""),)
    return ()


def group_owners(requester: Requester, group: str) -> dict[TopicPartition, GroupOwner]:
    """The owner of each partition of ``group``; empty without members.

    A member whose assignment cannot be read owns none; a warning says so.
    A member of a streams group owns the partitions that its active tasks read. Raises
    `MirrorError`; `Denied` also if members of a newer group read a topic that this client may not
    describe.
    """
    try:
        members = _members(requester, group, "Describe") or []
    except _TopicsHidden as error:
        raise Denied(
            f"the members of group {group} read topics that this client may not describe.",
            where=f"cluster {requester.client.alias}",
            do="Grant it Describe on all topics that the group reads: brokers show members of "
            "groups with group.protocol=consumer or streams to nobody else.",
        ) from error
    return {tp: owner for owner, partitions in members for tp in partitions}


def _members(requester: Requester, group: str, operation: str) -> list[_Member] | None:
    """The members of ``group``; None if none of the requests finds the group."""
    make = partial(DescribeGroupsRequest, groups=[group], include_authorized_operations=False)
    described = _described(requester, make, group, operation)
    if described.error_code != GROUP_NOT_FOUND and described.group_state not in _UNKNOWN_STATES:
        return [_member(row, _classic(described, row)) for row in described.members]
    for request, partitions_of in _NEWER:
        try:
            make = partial(request, group_ids=[group], include_authorized_operations=False)
            described = _described(requester, make, group, operation)
        except Unsupported:
            return None
        if described.error_code == TOPIC_AUTHORIZATION_FAILED:
            raise _TopicsHidden
        if described.error_code != GROUP_NOT_FOUND:
            read = partitions_of(described)
            return [_member(row, read(row)) for row in described.members]
    return None


def _member(row: Any, partitions: Iterable[TopicPartition]) -> _Member:
    owner = GroupOwner(row.member_id, row.client_id, row.client_host.lstrip("/"))
    return _Member(owner, tuple(partitions))


def _classic(described: Any, row: Any) -> Iterable[TopicPartition]:
    if described.protocol_type not in CONSUMER_PROTOCOLS:
        return ()  # Connect's workers, for example, are assigned something else
    try:
        return decode_assignment(row.member_assignment)
    except ValueError as error:  # a member that leads the group has written it, not the broker
        log.warning("group %s, member %s: %s", described.group_id, row.member_id, error)
        return ()


def _of_consumers(_described: Any) -> Callable[[Any], Iterator[TopicPartition]]:
    def partitions(row: Any) -> Iterator[TopicPartition]:
        for topic in row.assignment.topic_partitions:
            for number in topic.partitions:
                yield TopicPartition(topic.topic_name, number)

    return partitions


def _of_streams(described: Any) -> Callable[[Any], Iterator[TopicPartition]]:
    """Task n of a subtopology reads partition n of each of its topics, if there is one."""
    topics: dict[str, list[str]] = defaultdict(list)
    if described.topology is not None:
        for part in described.topology.subtopologies or ():
            between = [topic.name for topic in part.repartition_source_topics]
            topics[part.subtopology_id] += [*part.source_topics, *between]
    tasks = (task for row in described.members for task in row.assignment.active_tasks)
    owned = sum(len(task.partitions) * len(topics[task.subtopology_id]) for task in tasks)
    if owned > _OWNED_MAX:  # a product: the size of the response does not limit it
        raise ClusterError(
            f"the broker says that group {described.group_id} owns {owned} partitions; no cluster "
            "has that many.",
            do="Check that it is a Kafka broker.",
        )

    def partitions(row: Any) -> Iterator[TopicPartition]:
        for task in row.assignment.active_tasks:
            for number in task.partitions:
                for name in topics[task.subtopology_id]:
                    yield TopicPartition(name, number)

    return partitions


_OWNED_MAX = 5_000_000
# The states of a group that the broker does not know, or that uses another protocol.
_UNKNOWN_STATES = frozenset({"", "Dead"})
_NEWER = (
    (ConsumerGroupDescribeRequest, _of_consumers),
    (StreamsGroupDescribeRequest, _of_streams),
)


def _described(requester: Requester, make: Callable[[], Any], group: str, operation: str) -> Any:
    """The response's row for ``group``; it may have the error "not found" or "denied"."""
    response = requester.request(
        make,
        _doing(group),
        group=group,
        check=_described_error,
        needs=Right(operation, "Group", group),
    )
    return response.groups[0]


def _doing(group: str) -> str:
    return f"describing group {group}"


def _described_error(response: Any) -> int:
    """The error code of a response for one group; 0 for errors that the caller handles."""
    code = int(response.groups[0].error_code)
    return 0 if code in (GROUP_NOT_FOUND, TOPIC_AUTHORIZATION_FAILED) else code
