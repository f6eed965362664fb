"""Many consumer groups at once: who they are, where they stand. For `wire.client.Cluster`.

A request goes to each broker, or to each broker that coordinates some of the groups, and asks for
hundreds of groups; brokers that are too old for that are asked group by group.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from sparkmirror.errors import MirrorError, Unreachable, Unsupported
from sparkmirror.model import TopicPartition
from sparkmirror.wire.assignors import decode_assignment
from sparkmirror.wire.faults import translate
from sparkmirror.wire.grants import Right
from sparkmirror.wire.leaders import Leaders
from sparkmirror.wire.link import Link, error_for
from sparkmirror.wire.requests import error_code
from sparkmirror.wire.views import Committed, GroupOwner, GroupView

__all__ = [
    "GroupOffsets",
    "committed_by_group",
    "described_group_error",
    "group_owners",
    "list_groups",
    "offsets_of",
]

GroupOffsets = dict[TopicPartition, Committed]

_GROUPS_PER_REQUEST = 200
_ATTEMPTS = 4
# Coordinator loading, gone or elsewhere: asked again after another look.
_MOVED = frozenset({14, 15, 16})
_GROUP_NOT_FOUND = 69
# Classic groups of other clients (Connect's workers, say) have another protocol type.
_CONSUMER_PROTOCOLS = frozenset({"", "consumer"})
_CONSUMER_TYPES = frozenset({"", "unknown", "classic", "consumer"})


def list_groups(link: Link, leaders: Leaders) -> dict[str, GroupView]:
    """All consumer groups, of the classic and of the newer protocol. Raises `MirrorError`."""
    found: dict[str, GroupView] = {}
    for broker in leaders.metadata([]).brokers:
        response = link.request(
            ListGroupsRequest,
            "listing consumer groups",
            node=int(broker.node_id),
            check=error_code,
            needs=Right("Describe", "Group", note="(or on the Cluster)"),
        )
        for row in response.groups:
            kind = (getattr(row, "group_type", "") or "").lower()
            if row.protocol_type in _CONSUMER_PROTOCOLS and kind in _CONSUMER_TYPES:
                state = getattr(row, "group_state", "") or ""
                found[row.group_id] = GroupView(row.group_id, state)
    return found


def group_owners(link: Link, group: str) -> dict[TopicPartition, GroupOwner]:
    """Who has which partition of a classic ``group``; empty when it has no members.

    Members of the newer protocol are not shown to this request, so their partitions are missing.
    Raises `MirrorError`.
    """
    response = link.request(
        lambda: DescribeGroupsRequest(groups=[group], include_authorized_operations=False),
        f"describing group {group}",
        group=group,
        check=described_group_error,
        needs=Right("Describe", "Group", group),
    )
    found: dict[TopicPartition, GroupOwner] = {}
    if response.groups[0].protocol_type not in _CONSUMER_PROTOCOLS:
        return found  # Connect's workers, say, are assigned something else
    for row in response.groups[0].members:
        owner = GroupOwner(row.member_id, row.client_id, row.client_host.lstrip("/"))
        for tp in decode_assignment(row.member_assignment):
            found[tp] = owner
    return found


def described_group_error(response: Any) -> int:
    """The error code of a DescribeGroups answer for one group; none for a group that is gone."""
    code = int(response.groups[0].error_code)
    return 0 if code == _GROUP_NOT_FOUND else code


def committed_by_group(
    link: Link,
    groups: Iterable[str],
    one_by_one: Callable[[str], GroupOffsets],
    operation: str = "Describe",
) -> dict[str, GroupOffsets | MirrorError]:
    """Every committed offset of each of ``groups``, or the error that asking for it gave.

    ``one_by_one`` asks for one group, where the brokers know no better. ``operation``: what to
    grant where that is denied. Raises `MirrorError` when the cluster does not answer at all.
    """
    needs = partial(Right, operation, "Group", note="and on its topics")
    left = sorted(set(groups))
    result: dict[str, GroupOffsets | MirrorError] = {}
    for attempt in range(_ATTEMPTS):
        if not left:
            break
        if attempt:
            time.sleep(link.client.retry_backoff_ms * 2**attempt / 1000)
        try:
            again = _ask_all(link, left, result, needs)
        except Unsupported:
            return _one_by_one(left, one_by_one)
        left = again
    for group in left:
        result[group] = Unreachable(
            f"the coordinator of group {group} does not answer.",
            where=f"cluster {link.client.alias}",
        )
    return result


def _one_by_one(
    groups: Iterable[str], ask: Callable[[str], GroupOffsets]
) -> dict[str, GroupOffsets | MirrorError]:
    result: dict[str, GroupOffsets | MirrorError] = {}
    for group in groups:
        try:
            result[group] = ask(group)
        except Unreachable:
            raise
        except MirrorError as error:
            result[group] = error
    return result


def _ask_all(
    link: Link,
    groups: Sequence[str],
    result: dict[str, GroupOffsets | MirrorError],
    needs: Callable[..., Right],
) -> list[str]:
    """Ask for ``groups`` once; returns those whose coordinator is to be looked up again."""
    by_node, again = _coordinators(link, groups, result, needs)
    for node, names in sorted(by_node.items()):
        for start in range(0, len(names), _GROUPS_PER_REQUEST):
            chunk = names[start : start + _GROUPS_PER_REQUEST]
            try:
                response = link.request(
                    partial(_request, chunk), "reading the offsets of groups", node=node
                )
            except Unreachable:
                again += chunk
                continue
            for row in response.groups:
                code = int(row.error_code)
                if code in _MOVED:
                    again.append(row.group_id)
                elif code == _GROUP_NOT_FOUND:
                    result[row.group_id] = {}
                elif code:
                    result[row.group_id] = _error(link, needs(name=row.group_id), code)
                else:
                    result[row.group_id] = offsets_of(row.topics)
    return again


def _coordinators(
    link: Link,
    groups: Sequence[str],
    result: dict[str, GroupOffsets | MirrorError],
    needs: Callable[..., Right],
) -> tuple[dict[int, list[str]], list[str]]:
    by_node: dict[int, list[str]] = defaultdict(list)
    again: list[str] = []
    for start in range(0, len(groups), _GROUPS_PER_REQUEST):
        chunk = groups[start : start + _GROUPS_PER_REQUEST]
        response = link.request(
            partial(
                FindCoordinatorRequest,
                coordinator_keys=list(chunk),
                key_type=0,
                min_version=4,
                max_version=5,
            ),
            "looking up the coordinators of groups",
        )
        for row in response.coordinators:
            code = int(row.error_code)
            if code in _MOVED:
                again.append(row.key)
            elif code:
                result[row.key] = _error(link, needs(name=row.key), code)
            else:
                by_node[int(row.node_id)].append(row.key)
    return by_node, again


def _request(groups: Sequence[str]) -> Any:
    row = OffsetFetchRequest.OffsetFetchRequestGroup
    return OffsetFetchRequest(
        groups=[row(group_id=group, topics=None) for group in groups],
        min_version=8,
        max_version=9,  # from version 10 on topics go by id
    )


def _error(link: Link, needs: Right, code: int) -> MirrorError:
    doing = f"reading the offsets of group {needs.name}"
    return translate(error_for(code), link.client, doing, needs=needs)


def offsets_of(topics: Iterable[Any]) -> GroupOffsets:
    """The committed offsets in the topic rows of an OffsetFetch response."""
    found: GroupOffsets = {}
    for topic in topics:
        for row in topic.partitions:
            if row.committed_offset >= 0 and not row.error_code:
                epoch = getattr(row, "committed_leader_epoch", -1)
                found[TopicPartition(topic.name, row.partition_index)] = Committed(
                    row.committed_offset, row.metadata or "", -1 if epoch is None else epoch
                )
    return found
