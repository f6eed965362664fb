"""One Kafka cluster as the control plane sees it: topics, configs, offsets, groups.

A thin facade over the driver's requests, for everything that is not the hot path. Results are
plain data (`wire.cluster.views`). The error of one topic in a batch is part of the result; a
failure of the whole request raises a `MirrorError`. The first call connects. The client's request
timeout limits every request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sparkmirror.errors import ClusterError, Denied, MirrorError, TopicError, Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.offset_reset import EARLIEST, LATEST
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin.acl_answers import read_acls
from sparkmirror.wire.admin.acls import create_acls, delete_acls, describe_topic_acls
from sparkmirror.wire.admin.authorized_operations import literal_errors, topic_rights
from sparkmirror.wire.admin.broker_versions import broker_versions
from sparkmirror.wire.admin.config_decoder import ConfigReader
from sparkmirror.wire.admin.groups import (
    GroupOffsets,
    commit_offsets,
    committed_by_group,
    committed_offsets,
    list_groups,
    read_offsets,
)
from sparkmirror.wire.admin.leaders import Leaders
from sparkmirror.wire.admin.members import group_members, group_owners
from sparkmirror.wire.admin.raw_responses import DecodeCache
from sparkmirror.wire.admin.record_times import RecordAt, records_at
from sparkmirror.wire.admin.requester import Requester
from sparkmirror.wire.admin.topic_configs import describe_topic_configs
from sparkmirror.wire.admin.topic_reader import TopicTail, TopicWriter
from sparkmirror.wire.admin.topics import alter_topic_configs, create_topics, grow_topics
from sparkmirror.wire.cluster.views import (
    AclBinding,
    BrokerView,
    ClusterView,
    Committed,
    ConfigEntry,
    GroupMember,
    GroupOwner,
    GroupView,
    NewTopic,
    TopicOutcome,
    TopicView,
)

__all__ = ["Cluster"]


class Cluster:
    """One cluster, reached with one set of client settings. Safe to share between threads.

    Close it when done; a closed one connects again when it is used again.
    """

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self.requester = Requester(client)
        self.leaders = Leaders(self.requester)
        self._configs = ConfigReader()
        self._acls = DecodeCache(read_acls, responses_max=1)
        self._offsets = DecodeCache(read_offsets)
        self._writer = TopicWriter(self.requester, self.leaders)

    @property
    def alias(self) -> str:
        """The cluster's name in the configuration file."""
        return self.client.alias

    def close(self, *, for_good: bool = False) -> None:
        """Close all connections; requests in flight on other threads fail.

        A later request opens new connections, or fails, too, after ``for_good``.
        """
        self.requester.close(for_good=for_good)

    # --- cluster and topics -----------------------------------------------------------------

    def describe(self) -> ClusterView:
        """Cluster id, brokers, controller."""
        response = self.leaders.metadata([])
        return ClusterView(
            cluster_id=response.cluster_id or "",
            brokers=tuple(
                BrokerView(b.node_id, b.host, b.port, b.rack or "")
                for b in sorted(response.brokers, key=lambda b: int(b.node_id))
            ),
            controller=response.controller_id,
        )

    def broker_versions(self, nodes: Iterable[int]) -> dict[int, str]:
        """Kafka release per broker node id; brokers that do not respond are missing."""
        return broker_versions(self.requester, nodes)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        """The topics this client may describe, or those of ``names`` that exist.

        Partitions without a leader are included (`TopicView.leaderless`).
        """
        wanted = None if names is None else sorted(names)
        if wanted is not None and not wanted:
            return {}
        return dict(self.leaders.described(wanted).views)

    def topic_configs(
        self, names: Iterable[str], *, operation: str = "DescribeConfigs"
    ) -> dict[str, Mapping[str, ConfigEntry] | MirrorError]:
        """Configs per topic, or the error for this topic (`TopicError`: it does not exist).

        ``operation``: what errors advise to grant, if the caller needs more than this request does.
        """
        return describe_topic_configs(self.requester, self._configs, names, operation)

    def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, TopicOutcome]:
        """Set configs per topic (None: back to the default); one outcome per topic.

        Other configs stay as they are. A topic is changed completely or not at all.
        """
        return alter_topic_configs(self.requester, changes)

    def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        patience_s: float | None = None,
        validate_only: bool = False,
    ) -> dict[str, TopicOutcome]:
        """Create each of ``topics`` that is missing; one outcome per topic.

        An existing topic is left as it is and counts as success. What is refused for the moment is
        asked for again, for at most ``patience_s`` (None: a request timeout). ``validate_only``: a
        dry run.
        """
        return create_topics(
            self.requester, topics, patience_s=patience_s, validate_only=validate_only
        )

    def grow_topics(
        self, counts: Mapping[str, int], *, patience_s: float | None = None
    ) -> dict[str, TopicOutcome]:
        """Raise topics to the given partition counts; one outcome per topic.

        ``patience_s``: as for `create_topics`.
        """
        return grow_topics(self.requester, counts, patience_s=patience_s)

    # --- permissions ------------------------------------------------------------------------

    def topic_rights(self, names: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """The client's permissions on each topic that exists; None: the broker cannot tell.

        A topic that may not be described has none; one that does not exist is missing.
        """
        return topic_rights(self.requester, names)

    def literal_errors(
        self, names: Sequence[str], *, operation: str = "Describe"
    ) -> dict[str, MirrorError]:
        """Errors of the topics in ``names`` that cannot be described.

        ``operation``: as for `topic_configs`.
        """
        return literal_errors(self.requester, self.leaders, names, operation)

    # --- ACLs -------------------------------------------------------------------------------

    def topic_acls(self, *, operation: str = "Describe") -> tuple[AclBinding, ...] | None:
        """All ACLs on topics; None when the cluster has no authorizer.

        ``operation``: as for `topic_configs`.
        """
        return describe_topic_acls(self.requester, self._acls, operation)

    def create_acls(self, bindings: Sequence[AclBinding]) -> list[MirrorError | None]:
        """Add ``bindings``; per binding the error, or None."""
        return create_acls(self.requester, bindings)

    def delete_acls(self, bindings: Sequence[AclBinding]) -> list[MirrorError | None]:
        """Remove ``bindings``; per binding the error, or None."""
        return delete_acls(self.requester, bindings)

    # --- offsets of the log -----------------------------------------------------------------

    def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation: str = "read_uncommitted"
    ) -> dict[TopicPartition, int]:
        """End offset (exclusive) per partition: high watermark, or last stable offset.

        ``isolation``: as in ``isolation.level``. Partitions that have no leader or do not exist
        are missing from the result.
        """
        level = 1 if isolation == "read_committed" else 0
        return self.leaders.list_offsets(partitions, LATEST, level)

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """First offset that still exists, per partition; missing ones as in `end_offsets`."""
        return self.leaders.list_offsets(partitions, EARLIEST, 0)

    def offsets_at(
        self, partitions: Iterable[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        """First offset with a timestamp of ``time_ms`` or later; -1 where there is none.

        Missing ones as in `end_offsets`: of them, it is not known whether there is one.
        """
        return self.leaders.list_offsets(partitions, time_ms, 0)

    def records_at(
        self, positions: Mapping[TopicPartition, int], timeout_s: float = 5.0
    ) -> dict[TopicPartition, RecordAt]:
        """When the record at each position was written, and its size; see `record_times`."""
        return records_at(self.requester, self.leaders, positions, timeout_s)

    # --- groups -----------------------------------------------------------------------------

    def committed_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        operation: str = "Describe",
    ) -> dict[TopicPartition, Committed]:
        """Committed offsets of ``group``; partitions without one are missing from the result.

        ``partitions`` None: all partitions that have one. ``operation``: as for `topic_configs`.
        """
        return committed_offsets(self.requester, group, partitions, operation)

    def committed_by_group(
        self, groups: Iterable[str], *, operation: str = "Describe"
    ) -> dict[str, GroupOffsets | MirrorError]:
        """All committed offsets of each group, or the error for this group.

        ``operation``: as for `topic_configs`.
        """
        return committed_by_group(
            self.requester,
            self._offsets,
            groups,
            lambda group: self.committed_offsets(group, None, operation=operation),
            operation,
        )

    def groups(self, missed: Callable[[ClusterError], None] | None = None) -> dict[str, GroupView]:
        """All classic, consumer and streams groups of consumers with their states.

        ``missed`` takes the error of a broker that does not tell its groups; without it, the error
        is raised.
        """
        return list_groups(self.requester, self.leaders, missed)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit ``(offset, metadata)`` per partition, without being a member of the group.

        The broker accepts this only while the group has no active members. Raises `ClusterError`
        when it has some, and a `MirrorError` when a partition is refused; the others are committed.
        """
        commit_offsets(self.requester, group, offsets)

    def group_members(self, group: str, *, operation: str = "Describe") -> tuple[GroupMember, ...]:
        """The active members of ``group``; empty without members, or if it does not exist.

        One member without a name stands for members that this client cannot see: they read a topic
        that it may not describe, or belong to a share group. ``operation``: as for
        `topic_configs`.
        """
        return group_members(self.requester, group, operation)

    def group_owners(self, group: str) -> dict[TopicPartition, GroupOwner]:
        """The owner of each partition of ``group``; empty without members.

        Raises `Denied` if members read topics that this client may not describe.
        """
        return group_owners(self.requester, group)

    # --- records ----------------------------------------------------------------------------

    def read_compacted(
        self, topic: str, *, partitions: Sequence[int] | None = None, passes: bool = False
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """Every record of ``topic`` up to its present end, as (partition, key, value).

        In offset order within a partition; older records of a key may still exist. Raises
        `TopicError` when the topic does not exist or makes no progress for a request timeout.
        ``passes``: see `TopicTail`.
        """
        with self.tail(topic, partitions=partitions, passes=passes) as tail:
            yield from tail.read_to_end()

    def tail(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        only_new: Sequence[int] = (),
        passes: bool = False,
    ) -> TopicTail:
        """A reader that follows ``topic`` without a group; close it when done.

        It begins at the start of the log; in the partitions ``only_new``, at their present ends.
        ``passes``: see `TopicTail`. Raises `TopicError` without the topic or a leader.
        """
        if partitions is None or not self.leaders.known(topic, partitions):
            view = self.topics([topic]).get(topic)
            if view is None:
                raise TopicError(
                    f"the topic {topic} does not exist.",
                    where=f"cluster {self.alias}",
                    do="Check the name, and that this client may describe the topic.",
                )
            partitions = range(view.partitions) if partitions is None else partitions
        wanted = [TopicPartition(topic, number) for number in partitions]
        ends = self.end_offsets(wanted, "read_committed")
        if len(ends) < len(wanted):
            lost = ", ".join(str(tp) for tp in wanted if tp not in ends)
            raise TopicError(
                f"{lost} cannot be read: no live leader.",
                where=f"cluster {self.alias}",
                do="Start a broker that has an in-sync replica of it.",
            )
        ranges = {tp: (ends[tp] if tp.partition in only_new else 0, ends[tp]) for tp in wanted}
        return TopicTail(self.requester, self.leaders, ranges, passes=passes)

    def produce_many(
        self,
        topic: str,
        records: Iterable[tuple[int, bytes, bytes | None]],
        *,
        timestamp_ms: int | None = None,
    ) -> int:
        """Write ``(partition, key, value)`` records in order; returns their number.

        ``timestamp_ms``: of all records, default now. When this returns, all in-sync replicas have
        all records. Raises `MirrorError` when one could not be written within the request timeout.
        """
        try:
            return self._writer.write(topic, records, timestamp_ms)
        except MirrorError as error:
            if not isinstance(error, Denied | Unreachable):
                # Without Write or Describe, the topic may look as if it did not exist.
                for reason in self.literal_errors([topic], operation="Write").values():
                    if isinstance(reason, Denied):
                        raise reason from error
            raise
