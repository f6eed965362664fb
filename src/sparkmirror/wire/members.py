"""Who is in one consumer group. For `wire.client.Cluster`."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest

from sparkmirror.model import TopicPartition
from sparkmirror.wire.assignors import decode_assignment
from sparkmirror.wire.grants import Right
from sparkmirror.wire.groups import CONSUMER_PROTOCOLS, GROUP_NOT_FOUND
from sparkmirror.wire.link import Link
from sparkmirror.wire.requests import error_code
from sparkmirror.wire.views import GroupMember, GroupOwner

__all__ = ["group_members", "group_owners"]

_ACTIVE_STATES = frozenset(
    {"Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}
)


def group_members(link: Link, group: str, operation: str) -> tuple[GroupMember, ...]:
    """The active members of ``group``; empty when there are none or no such group.

    Groups of the newer consumer protocol do not show their members to every client: they are
    listed as one member without a name. ``operation``: what an error advises to grant. Raises
    `MirrorError`.
    """
    described = _described(link, group, operation)
    members = tuple(GroupMember(m.client_id, m.client_host.lstrip("/")) for m in described.members)
    if members:
        return members
    listed = link.request(
        ListGroupsRequest,
        _doing(group),
        group=group,
        check=error_code,
        needs=Right(operation, "Group", group),
    )
    for row in listed.groups:
        if row.group_id == group and (getattr(row, "group_state", "") or "") in _ACTIVE_STATES:
            return (GroupMember("", ""),)
    return ()


def group_owners(link: Link, group: str) -> dict[TopicPartition, GroupOwner]:
    """Who has which partition of a classic ``group``; empty when it has no members.

    Members of the newer protocol are not shown to this request, so their partitions are missing.
    Raises `MirrorError`.
    """
    described = _described(link, group, "Describe")
    found: dict[TopicPartition, GroupOwner] = {}
    if described.protocol_type not in CONSUMER_PROTOCOLS:
        return found  # Connect's workers, say, are assigned something else
    for row in described.members:
        owner = GroupOwner(row.member_id, row.client_id, row.client_host.lstrip("/"))
        for tp in decode_assignment(row.member_assignment):
            found[tp] = owner
    return found


def _described(link: Link, group: str, operation: str) -> Any:
    response = link.request(
        lambda: DescribeGroupsRequest(groups=[group], include_authorized_operations=False),
        _doing(group),
        group=group,
        check=_described_error,
        needs=Right(operation, "Group", group),
    )
    return response.groups[0]


def _doing(group: str) -> str:
    return f"describing group {group}"


def _described_error(response: Any) -> int:
    """The error code of the answer for one group; none for a group that is gone."""
    code = int(response.groups[0].error_code)
    return 0 if code == GROUP_NOT_FOUND else code
