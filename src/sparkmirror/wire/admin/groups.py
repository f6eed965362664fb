"""Consumer groups: their list and their offsets. For `wire.admin.cluster.Cluster`.

A list takes a request to each broker. The offsets of many groups take requests for hundreds of
groups to each coordinator (OffsetFetch version 8, KIP-709), asked side by side, so one that is
silent costs one request timeout. Older brokers need one request per group.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.metadata import FindCoordinatorRequest

from sparkmirror.errors import ClusterError, Denied, MirrorError, Unreachable, Unsupported
from sparkmirror.model import TopicPartition
from sparkmirror.side_by_side import of_each
from sparkmirror.wire.admin.error_translation import translate
from sparkmirror.wire.admin.leaders import Leaders
from sparkmirror.wire.admin.messages import (
    chunks,
    commit_error,
    error_code,
    offset_fetch_error,
)
from sparkmirror.wire.admin.raw_responses import DecodeCache, RawResponse, undecoded
from sparkmirror.wire.admin.requester import Requester, error_for
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.messages import (
    commit_portions,
    offset_commit_request,
    offset_fetch_request,
)
from sparkmirror.wire.cluster.messages import committed_offsets as committed_rows
from sparkmirror.wire.cluster.views import Committed, GroupView

__all__ = [
    "CONSUMER_PROTOCOLS",
    "GROUP_NOT_FOUND",
    "IDLE_STATES",
    "GroupOffsets",
    "commit_offsets",
    "committed_by_group",
    "committed_offsets",
    "list_groups",
    "read_offsets",
]

GroupOffsets = dict[TopicPartition, Committed]

_OffsetFetch = undecoded(OffsetFetchRequest)

_GROUPS_PER_REQUEST = 200
_ATTEMPTS = 4
# A broker that is down refuses sooner, and may be back for the next attempt.
_SILENT_S = 3.0
# Of older brokers, which are asked for one group after another: each costs a request timeout.
_AWAY_MAX = 2
# Coordinator loading, unavailable or moved: looked up again, and retried.
_MOVED = frozenset({14, 15, 16})
GROUP_NOT_FOUND = 69
_UNKNOWN_MEMBER, _ILLEGAL_GENERATION = 25, 22
_INVALID_GROUP_ID, _GROUP_DENIED = 24, 30
# Reasons to refuse all partitions of a commit.
_OF_THE_GROUP = frozenset(
    {_UNKNOWN_MEMBER, _ILLEGAL_GENERATION, _INVALID_GROUP_ID, _GROUP_DENIED, GROUP_NOT_FOUND}
)
# Classic groups of other clients (Connect's workers, for example) have another protocol type.
CONSUMER_PROTOCOLS = frozenset({"", "consumer"})
_CONSUMER_TYPES = frozenset({"", "unknown", "classic", "consumer"})
# Kafka Streams' own protocol (KIP-1071); Streams in a classic group is a consumer like others.
_STREAMS = "streams"
# States of a group without members, whatever its protocol.
IDLE_STATES = frozenset({"Empty", "Dead"})


def list_groups(
    requester: Requester, leaders: Leaders, missed: Callable[[ClusterError], None] | None = None
) -> dict[str, GroupView]:
    """All groups of consumers that can commit offsets: classic, consumer and streams groups.

    Share groups have no committed offsets (the broker tracks single records), and Connect's
    workers commit none. ``missed`` takes the error of a broker that does not respond or still
    loads its groups, which are missing from the result then; without it, the error is raised.
    Raises `MirrorError`, also when no broker has told its groups.
    """

    def listed(broker: Any) -> Any:
        try:
            return requester.request(
                ListGroupsRequest,
                "listing consumer groups",
                node=int(broker.node_id),
                check=error_code,
                needs=Right("Describe", "Group", note="(or on the Cluster)"),
            )
        except ClusterError as error:
            if missed is None or isinstance(error, Denied | Unsupported):
                raise
            return error

    outcomes = of_each(listed, leaders.metadata([]).brokers)
    errors = [one for one in outcomes if isinstance(one, ClusterError)]
    responses = [one for one in outcomes if not isinstance(one, ClusterError)]
    if errors and not responses:
        raise errors[0]
    if missed is not None:
        for error in errors:
            missed(error)
    found: dict[str, GroupView] = {}
    for response in responses:
        for row in response.groups:
            kind = (getattr(row, "group_type", "") or "").lower()
            consumes = row.protocol_type in CONSUMER_PROTOCOLS and kind in _CONSUMER_TYPES
            if consumes or kind == _STREAMS:
                state = getattr(row, "group_state", "") or ""
                found[row.group_id] = GroupView(row.group_id, state)
    return found


def committed_offsets(
    requester: Requester, group: str, partitions: Iterable[TopicPartition] | None, operation: str
) -> GroupOffsets:
    """Committed offsets of ``group``; partitions without one are missing from the result.

    ``partitions`` None: all partitions that have one. ``operation``: what an error advises to
    grant. Raises `MirrorError`.
    """
    wanted = None if partitions is None else list(partitions)
    if wanted is not None and not wanted:
        return {}
    response = requester.request(
        partial(offset_fetch_request, group, wanted),
        f"reading the offsets of group {group}",
        group=group,
        check=offset_fetch_error,
        needs=Right(operation, "Group", group, "and on its topics"),
    )
    return committed_rows(response.topics)


def commit_offsets(
    requester: Requester, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]
) -> None:
    """Commit ``(offset, metadata)`` per partition, without being a member of the group.

    The broker accepts this only while the group has no active members. Raises `ClusterError` when
    it has some, and a `MirrorError` when a partition is refused; the others are committed then.
    """
    refused: MirrorError | None = None
    for portion in commit_portions(group, offsets):
        response = requester.request(
            partial(offset_commit_request, group, portion),
            f"committing offsets of group {group}",
            group=group,
            check=commit_error,
            needs=Right("Read", "Group", group, "and on its topics"),
        )
        error = _first_refusal(requester, group, response)
        refused = refused or error
    if refused is not None:
        raise refused


def _first_refusal(requester: Requester, group: str, response: Any) -> MirrorError | None:
    """Why a partition is refused; None if none is. Raises if the whole group is refused."""
    refused = [
        (topic.name, row.partition_index, row.error_code)
        for topic in response.topics
        for row in topic.partitions
        if row.error_code
    ]
    if not refused:
        return None
    # Brokers refuse unknown topics by themselves; the other rows are from the group's coordinator.
    name, partition, code = min(refused, key=lambda one: one[2] not in _OF_THE_GROUP)
    if code in (_UNKNOWN_MEMBER, _ILLEGAL_GENERATION):
        raise ClusterError(
            f"the group {group} has active members, its offsets cannot be set.",
            where=f"cluster {requester.client.alias}",
            do="Stop the consumers of this group first.",
        )
    error = translate(
        error_for(code),
        requester.client,
        f"committing the offset of {name}-{partition} for group {group}",
        needs=Right("Read", "Group", group, f"and on Topic {name}"),
    )
    if code in _OF_THE_GROUP:
        raise error
    return error


class GroupRow(NamedTuple):
    """One group of a response: its error code (0: none) and its offsets."""

    group: str
    error_code: int
    offsets: GroupOffsets


def read_offsets(raw: RawResponse) -> list[GroupRow]:
    """The rows of a response for several groups."""
    response = OffsetFetchResponse[raw.version].decode(raw.data)
    return [
        GroupRow(row.group_id, int(row.error_code), committed_rows(row.topics))
        for row in response.groups
    ]


def committed_by_group(
    requester: Requester,
    responses: DecodeCache[list[GroupRow]],
    groups: Iterable[str],
    one_by_one: Callable[[str], GroupOffsets],
    operation: str = "Describe",
) -> dict[str, GroupOffsets | MirrorError]:
    """All committed offsets of each group, or the error for this group.

    ``responses`` reads with `read_offsets`. An unchanged response yields the same objects as
    before, so nobody may change them. ``one_by_one`` requests a single group, for older brokers.
    ``operation``: what an error advises to grant. Raises `MirrorError` when no broker responds.
    """
    needs = partial(Right, operation, "Group", note="and on its topics")
    left = sorted(set(groups))
    result: dict[str, GroupOffsets | MirrorError] = {}
    silent: set[int] = set()
    for attempt in range(_ATTEMPTS):
        if not left:
            break
        if attempt:
            time.sleep(requester.client.retry_backoff_ms * 2**attempt / 1000)
        try:
            again = _query_all(requester, responses, left, result, needs, silent)
        except Unsupported:
            return result | _one_by_one(left, one_by_one)
        left = again
    for group in left:
        result[group] = Unreachable(
            f"the coordinator of group {group} does not respond.",
            where=f"cluster {requester.client.alias}",
        )
    return result


def _one_by_one(
    groups: Iterable[str], query: Callable[[str], GroupOffsets]
) -> dict[str, GroupOffsets | MirrorError]:
    result: dict[str, GroupOffsets | MirrorError] = {}
    away: list[Unreachable] = []
    for group in groups:
        if len(away) == _AWAY_MAX:
            result[group] = away[-1]
            continue
        try:
            result[group] = query(group)
        except MirrorError as error:
            result[group] = error
            if isinstance(error, Unreachable):
                away.append(error)
    if away and all(isinstance(one, Unreachable) for one in result.values()):
        raise away[0]
    return result


def _query_all(
    requester: Requester,
    responses: DecodeCache[list[GroupRow]],
    groups: Sequence[str],
    result: dict[str, GroupOffsets | MirrorError],
    needs: Callable[..., Right],
    silent: set[int],
) -> list[str]:
    """Request ``groups`` once; returns those whose coordinator must be looked up again.

    ``silent``: brokers that have let a request time out. They are not asked again, and those that
    do so now are added.
    """
    by_node, again = _coordinators(requester, groups, result, needs)

    def ask(node: int) -> list[str]:
        names, again = by_node[node], list[str]()
        if node in silent:
            return names
        for number, chunk in enumerate(chunks(names, _GROUPS_PER_REQUEST)):
            make, doing = partial(_request, chunk), "reading the offsets of groups"
            began_s = time.monotonic()
            try:
                rows: list[GroupRow] = requester.request(
                    make, doing, node=node, read=responses.read
                )
            except Unreachable:
                if time.monotonic() - began_s >= _SILENT_S:
                    silent.add(node)
                return again + names[number * _GROUPS_PER_REQUEST :]
            for row in rows:
                if row.error_code in _MOVED:
                    again.append(row.group)
                elif row.error_code == GROUP_NOT_FOUND:
                    result[row.group] = {}
                elif row.error_code:
                    result[row.group] = _error(requester, needs(name=row.group), row.error_code)
                else:
                    result[row.group] = row.offsets
        return again

    for left in of_each(ask, sorted(by_node)):
        again += left
    return again


def _coordinators(
    requester: Requester,
    groups: Sequence[str],
    result: dict[str, GroupOffsets | MirrorError],
    needs: Callable[..., Right],
) -> tuple[dict[int, list[str]], list[str]]:
    by_node: dict[int, list[str]] = defaultdict(list)
    again: list[str] = []
    for chunk in chunks(groups, _GROUPS_PER_REQUEST):
        response = requester.request(
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
                result[row.key] = _error(requester, needs(name=row.key), code)
            else:
                by_node[int(row.node_id)].append(row.key)
    return by_node, again


def _request(groups: Sequence[str]) -> Any:
    row = OffsetFetchRequest.OffsetFetchRequestGroup
    return _OffsetFetch(
        groups=[row(group_id=group, topics=None) for group in groups],
        min_version=8,
        max_version=9,  # from version 10 on topics go by id
    )


def _error(requester: Requester, needs: Right, code: int) -> MirrorError:
    doing = f"reading the offsets of group {needs.name}"
    return translate(error_for(code), requester.client, doing, needs=needs)
