"""Coordinators of one cluster: who they are, and the offsets that groups have committed with them.

Everything is synchronous, as in `cluster_connections`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sparkmirror.errors import ClusterError, Denied, Fenced, PartitionError, Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.settings import Member
from sparkmirror.wire.cluster.acl_advice import Right, grant
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import RETRIABLE, UNKNOWN_TOPIC_OR_PARTITION, error_name
from sparkmirror.wire.cluster.messages import (
    GROUP,
    commit_portions,
    committed_offsets,
    find_coordinator_request,
    offset_commit_request,
    offset_fetch_request,
)
from sparkmirror.wire.cluster.views import Committed
from sparkmirror.wire.net.connection import Connection, ConnectionLost

__all__ = ["Coordinators"]

log = logging.getLogger(__name__)

_REBALANCING = 27
# Part of the request timeout that a commit waits for unknown topics; the rest is for other retries.
_UNKNOWN_SHARE = 0.6
# ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID
_FENCED = frozenset({22, 25, 82})
_TOPIC_DENIED = 29
_GROUP_DENIED = 30


class Coordinators:
    """The coordinators that a client needs, each with a connection, looked up over ``connections``.

    ``clock`` returns monotonic seconds. Not thread-safe: one owner.
    """

    def __init__(
        self, connections: ClusterConnections, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.client = connections.client
        self._connections = connections
        self._clock = clock
        self._by_group: dict[str, Connection] = {}

    # -- coordinators ----------------------------------------------------------------------

    def find(self, key: str, kind: int, failure: Callable[[int], Exception]) -> tuple[str, int]:
        """The address of the coordinator of a group or a transactional id (`messages.GROUP`, …).

        Raises ``failure`` of an error code; otherwise as `connection`.
        """
        asked = self._connections.any_connection()
        with self._connections.idle.using(asked):  # closed after an error: the next may be another
            response = asked.request(find_coordinator_request(key, kind), highest=3)
            if response.error_code:
                raise failure(int(response.error_code))
        return response.host, response.port

    def connection(self, group: str) -> Connection:
        """The connection to the group's coordinator.

        Raises `ClusterError`, `PartitionError` or `ConnectionLost`.
        """
        connection = self._by_group.get(group)
        if connection is not None:
            return connection
        address = self.find(group, GROUP, lambda code: self._failure(code, f"group {group}", group))
        connection = self._connections.connect(*address)
        self._by_group[group] = connection
        # Most owners send no other request, which would close it later.
        self._connections.idle.close_old(0.0)
        return connection

    def release(self, group: str) -> None:
        """Release the coordinator's connection: it becomes an idle one for other requests."""
        connection = self._by_group.pop(group, None)
        if connection is not None:
            self._connections.idle.keep(connection)

    def forget(self, group: str) -> None:
        """Close the coordinator's connection; the next request looks the coordinator up again."""
        stale = self._by_group.pop(group, None)
        if stale is not None:
            stale.close()

    def close(self) -> None:
        """Close the coordinators' connections, and the `ClusterConnections`."""
        for connection in self._by_group.values():
            connection.close()
        self._by_group.clear()
        self._connections.close()

    # -- committed offsets -----------------------------------------------------------------

    def _failure(self, code: int, what: str, group: str) -> ClusterError | PartitionError:
        where = f"cluster {self.client.alias}, {what}"
        if code == _GROUP_DENIED:
            return Denied(
                f"not authorized ({error_name(code)}).",
                where=where,
                do=grant(self.client, Right("Read", "Group", group)),
            )
        if code in _FENCED:
            return Fenced(
                f"the consumer group has continued without this member ({error_name(code)}).",
                where=where,
            )
        return PartitionError(f"the broker returned {error_name(code)}.", where=where)

    def _with_coordinator(
        self, group: str, message: object, highest: int, lowest: int = 0
    ) -> object:
        connection = self.connection(group)
        try:
            return connection.request(message, lowest=lowest, highest=highest)
        except ConnectionLost:
            self._by_group.pop(group, None)
            self._connections.drop(connection)
            raise

    def committed(
        self, group: str, partitions: Iterable[TopicPartition], *, stable: bool = False
    ) -> dict[TopicPartition, tuple[int, str]]:
        """(committed offset, metadata) of each partition that has one; otherwise as `positions`."""
        found = self.positions(group, partitions, stable=stable)
        return {tp: (one.offset, one.metadata) for tp, one in found.items()}

    def positions(
        self, group: str, partitions: Iterable[TopicPartition], *, stable: bool = False
    ) -> dict[TopicPartition, Committed]:
        """The group's committed offsets; partitions without one are missing.

        ``stable``: wait for transactions that may change them (KIP-447, brokers from 2.5 on).
        Retriable errors (coordinator loading or moving) are retried until the request timeout.
        Raises `ClusterError`, `PartitionError` or `ConnectionLost`.
        """
        message = offset_fetch_request(group, partitions, stable=stable)
        found: dict[TopicPartition, Committed] = {}

        def query() -> int:
            response = self._with_coordinator(group, message, *((7, 7) if stable else (5,)))
            if getattr(response, "error_code", 0):
                return int(response.error_code)  # type: ignore[attr-defined]
            self._check_topics(response, group, "Describe")
            topics = response.topics  # type: ignore[attr-defined]
            for topic in topics:
                for part in topic.partitions:
                    if part.error_code:
                        return int(part.error_code)
            found.update(committed_offsets(topics))
            return 0

        self._retried(query, f"positions of group {group}", group)
        return found

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        member: Member | None = None,
        leader_epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit (offset, metadata) per partition as ``member``, or for a group without members.

        ``leader_epochs``: of the records before the offsets, if known.

        A topic that the brokers do not know may be new: the commit is retried for most of the
        request timeout. Then the topic counts as deleted; its positions are dropped with a warning.

        More than fits into one request goes in several; after an error, some of them may be
        committed. Raises `Fenced` when the group has continued without the member, otherwise
        `ClusterError`, `PartitionError` or `ConnectionLost`.
        """
        patient_until = self._clock() + _UNKNOWN_SHARE * self.client.request_timeout_ms / 1000
        for portion in commit_portions(group, offsets):
            self._commit(group, portion, member, leader_epochs, patient_until)

    def _commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        member: Member | None,
        leader_epochs: Mapping[TopicPartition, int] | None,
        patient_until: float,
    ) -> None:
        message = offset_commit_request(group, offsets, member, leader_epochs)

        def query() -> int:
            response = self._with_coordinator(group, message, 7)
            self._check_topics(response, group, "Read")
            unknown, codes = set(), set()
            for topic in response.topics:  # type: ignore[attr-defined]
                for part in topic.partitions:
                    if part.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                        unknown.add(topic.name)
                    elif part.error_code:
                        codes.add(int(part.error_code))
            if codes:
                return min(codes)
            if unknown and self._clock() < patient_until:
                return UNKNOWN_TOPIC_OR_PARTITION
            if unknown:
                log.warning(
                    "group %s: no positions of %s are committed: the topic no longer exists on "
                    "cluster %s",
                    *(group, ", ".join(sorted(unknown)), self.client.alias),
                )
            return 0

        self._retried(query, f"group {group}", group)

    def _check_topics(self, response: Any, group: str, operation: str) -> None:
        """Raise `Denied` for topics whose offsets this client may not read or commit."""
        denied = sorted(
            topic.name
            for topic in response.topics
            if any(part.error_code == _TOPIC_DENIED for part in topic.partitions)
        )
        if denied:
            more = f" and {len(denied) - 1} more" if len(denied) > 1 else ""
            raise Denied(
                f"access to positions of topic {denied[0]}{more} is not allowed "
                f"({error_name(_TOPIC_DENIED)}).",
                where=f"cluster {self.client.alias}, group {group}",
                do=grant(self.client, Right(operation, "Topic", denied[0])),
            )

    def _retried(self, query: Callable[[], int], what: str, group: str) -> None:
        deadline = self._clock() + self.client.request_timeout_ms / 1000
        while True:
            try:
                code = query()
                failure: Exception = self._failure(code, what, group)
            except (ConnectionLost, ClusterError, PartitionError) as error:
                if isinstance(error, Denied | Fenced):
                    raise
                code, failure = 15, error
            if code == 0:
                return
            self.forget(group)
            if code not in RETRIABLE and code != _REBALANCING:
                raise failure
            if self._clock() >= deadline:
                raise Unreachable(
                    f"no answer in {self.client.request_timeout_ms / 1000:g} s ({failure}).",
                    where=f"cluster {self.client.alias}, {what}",
                ) from failure
            time.sleep(self.client.retry_backoff_ms / 1000)
