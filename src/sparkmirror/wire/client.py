"""One Kafka cluster as the control plane sees it: topics, configs, offsets, groups.

A thin facade over kafka-python for everything that is not the hot path. Answers are plain data
(`wire.views`); what fails for one topic of a batch is part of the answer, what fails as a whole is
a `MirrorError`. Nothing is connected before the first call, and every call is bounded by the
client's request timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest

from sparkmirror.errors import ClusterError, Denied, MirrorError, TopicError, Unreachable
from sparkmirror.model import ClusterClient, TopicPartition
from sparkmirror.wire.acls import create_acls, delete_acls, describe_topic_acls
from sparkmirror.wire.faults import translate
from sparkmirror.wire.grants import Right
from sparkmirror.wire.groups import (
    GroupOffsets,
    committed_by_group,
    described_group_error,
    group_owners,
    list_groups,
    offsets_of,
)
from sparkmirror.wire.kafka_codes import UNKNOWN_TOPIC_OR_PARTITION
from sparkmirror.wire.leaders import EARLIEST, LATEST, Leaders
from sparkmirror.wire.link import CONTROLLER, Link, error_for
from sparkmirror.wire.requests import (
    alter_configs_request,
    commit_error,
    commit_request,
    config_entry,
    create_partitions_request,
    create_topics_request,
    describe_configs_request,
    error_code,
    not_controller,
    offset_fetch_error,
    offset_fetch_request,
    topic_view,
)
from sparkmirror.wire.rights import literal_errors, topic_rights
from sparkmirror.wire.tail import TopicTail, TopicWriter
from sparkmirror.wire.times import record_times_ms
from sparkmirror.wire.versions import broker_versions
from sparkmirror.wire.views import (
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

T = TypeVar("T")
R = TypeVar("R")

_TOPIC_EXISTS = 36
_UNKNOWN_MEMBER, _ILLEGAL_GENERATION = 25, 22
_CONFIG_TOPICS_PER_REQUEST = 250
_CREATE_TOPICS_PER_REQUEST = 100
# So many at once: each goes to the broker that has the least to do.
_REQUESTS_SIDE_BY_SIDE = 4
# A commit becomes one batch of __consumer_offsets, which has Kafka's usual 1 MiB limit.
_COMMITS_PER_REQUEST = 2_000
_ACTIVE_STATES = frozenset(
    {"Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}
)


class Cluster:
    """One cluster, reached with one set of client settings. Safe to share between threads.

    Close it when done; a closed one connects again when it is used again.
    """

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self._link = Link(client)
        self._leaders = Leaders(self._link)
        self._writer = TopicWriter(self._link, self._leaders)

    @property
    def alias(self) -> str:
        """The cluster's name in the configuration file."""
        return self.client.alias

    def close(self) -> None:
        """Close all connections; what other threads have under way fails."""
        self._link.close()

    # --- cluster and topics -----------------------------------------------------------------

    def describe(self) -> ClusterView:
        """Cluster id, brokers, controller."""
        response = self._leaders.metadata([])
        return ClusterView(
            cluster_id=response.cluster_id or "",
            brokers=tuple(
                BrokerView(b.node_id, b.host, b.port, b.rack or "")
                for b in sorted(response.brokers, key=lambda b: int(b.node_id))
            ),
            controller=response.controller_id,
        )

    def broker_versions(self, nodes: Iterable[int]) -> dict[int, str]:
        """Kafka release per broker; those that do not answer are missing."""
        return broker_versions(self._link, nodes)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        """The topics this client may describe, or those of ``names`` that exist.

        Partitions without a leader are part of the answer (`TopicView.leaderless`).
        """
        wanted = None if names is None else sorted(names)
        if wanted is not None and not wanted:
            return {}
        response = self._leaders.metadata(wanted)
        return {
            topic.name: topic_view(topic)
            for topic in response.topics
            if topic.partitions and topic.name is not None
        }

    def topic_configs(
        self, names: Iterable[str], *, operation: str = "DescribeConfigs"
    ) -> dict[str, dict[str, ConfigEntry] | MirrorError]:
        """Settings per topic, or the error that asking for this topic gave (`TopicError`: there is
        no such topic).

        ``operation``: what errors advise to grant, where the caller needs more than to ask.
        """
        result: dict[str, dict[str, ConfigEntry] | MirrorError] = {}
        doing, needs = "describing topic configs", Right(operation, "Topic")

        def ask(chunk: Sequence[str]) -> Any:
            return self._link.request(partial(describe_configs_request, chunk), doing, needs=needs)

        for response in _side_by_side(ask, _chunks(sorted(names), _CONFIG_TOPICS_PER_REQUEST)):
            for row in response.results:
                if row.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                    result[row.resource_name] = TopicError(
                        "the topic does not exist: it was deleted, or the brokers do not all know "
                        "it yet.",
                        where=f"cluster {self.alias}, topic {row.resource_name}",
                    )
                elif row.error_code:
                    error = error_for(row.error_code, row.error_message)
                    doing_one = f"describing the configs of topic {row.resource_name}"
                    result[row.resource_name] = translate(
                        error,
                        self.client,
                        doing_one,
                        needs=Right(operation, "Topic", row.resource_name),
                    )
                else:
                    result[row.resource_name] = {c.name: config_entry(c) for c in row.configs}
        return result

    def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, TopicOutcome]:
        """Set configs per topic (None: back to the default); one outcome per topic.

        What is not named stays as it is. A topic is changed wholly or not at all.
        """
        result: dict[str, TopicOutcome] = {}
        for chunk in _chunks(sorted(changes), _CONFIG_TOPICS_PER_REQUEST):
            response = self._link.request(
                partial(alter_configs_request, {name: changes[name] for name in chunk}),
                "altering topic configs",
                needs=Right("AlterConfigs", "Topic"),
            )
            for row in response.responses:
                error = None
                if row.error_code:
                    error = translate(
                        error_for(row.error_code, row.error_message),
                        self.client,
                        f"altering the configs of topic {row.resource_name}",
                        needs=Right("AlterConfigs", "Topic", row.resource_name),
                    )
                result[row.resource_name] = TopicOutcome(row.resource_name, error)
        return result

    def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, TopicOutcome]:
        """Create each of ``topics`` that is missing; one outcome per topic.

        An existing topic is left as it is and counts as success.
        """
        result: dict[str, TopicOutcome] = {}
        for chunk in _chunks(topics, _CREATE_TOPICS_PER_REQUEST):
            response = self._link.request(
                partial(create_topics_request, chunk, self.client.request_timeout_ms),
                "creating topics",
                node=CONTROLLER,
                check=not_controller,
                needs=Right("Create", "Topic", note="(or on the Cluster)"),
            )
            wanted = {topic.name: topic for topic in chunk}
            for row in response.topics:
                result[row.name] = self._created(wanted[row.name], row)
        return result

    def _created(self, topic: NewTopic, row: Any) -> TopicOutcome:
        if row.error_code == _TOPIC_EXISTS:
            return TopicOutcome(topic.name, existed=True)
        if not row.error_code:
            return TopicOutcome(topic.name)
        message = getattr(row, "error_message", None)
        error = translate(
            error_for(row.error_code, message),
            self.client,
            f"creating topic {topic.name}",
            needs=Right("Create", "Topic", topic.name, "(or on the Cluster)"),
        )
        return TopicOutcome(topic.name, error)

    def grow_topics(self, counts: Mapping[str, int]) -> dict[str, TopicOutcome]:
        """Raise topics to the given partition counts; one outcome per topic."""
        if not counts:
            return {}
        response = self._link.request(
            partial(create_partitions_request, counts, self.client.request_timeout_ms),
            "adding partitions",
            node=CONTROLLER,
            check=not_controller,
            needs=Right("Alter", "Topic"),
        )
        result = {}
        for row in response.results:
            error = None
            if row.error_code:
                error = translate(
                    error_for(row.error_code, row.error_message),
                    self.client,
                    f"adding partitions to topic {row.name}",
                    needs=Right("Alter", "Topic", row.name),
                )
            result[row.name] = TopicOutcome(row.name, error)
        return result

    # --- permissions ------------------------------------------------------------------------

    def topic_rights(self, names: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """What this client may do with each topic that exists; None: the broker cannot tell.

        A topic that may not be described has no rights; one that does not exist is missing.
        """
        return topic_rights(self._link, names)

    def literal_errors(
        self, names: Sequence[str], *, operation: str = "Describe"
    ) -> dict[str, MirrorError]:
        """Why topics cannot be described that were named literally.

        ``operation``: as for `topic_configs`.
        """
        return literal_errors(self._link, self._leaders, names, operation)

    # --- ACLs -------------------------------------------------------------------------------

    def topic_acls(self, *, operation: str = "Describe") -> tuple[AclBinding, ...] | None:
        """All ACLs on topics; None when the cluster has no authorizer.

        ``operation``: as for `topic_configs`.
        """
        return describe_topic_acls(self._link, operation)

    def create_acls(self, bindings: Sequence[AclBinding]) -> list[MirrorError | None]:
        """Add ``bindings``; per binding the error, or None."""
        return create_acls(self._link, bindings)

    def delete_acls(self, bindings: Sequence[AclBinding]) -> list[MirrorError | None]:
        """Remove ``bindings``; per binding the error, or None."""
        return delete_acls(self._link, bindings)

    # --- offsets of the log -----------------------------------------------------------------

    def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation: str = "read_uncommitted"
    ) -> dict[TopicPartition, int]:
        """End offset (exclusive) per partition: high watermark, or last stable offset.

        ``isolation``: as in ``isolation.level``. Partitions that have no leader or do not exist
        are missing from the answer.
        """
        level = 1 if isolation == "read_committed" else 0
        return self._leaders.list_offsets(partitions, LATEST, level)

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """First offset that still exists, per partition; missing ones as in `end_offsets`."""
        return self._leaders.list_offsets(partitions, EARLIEST, 0)

    def offsets_at(
        self, partitions: Iterable[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        """First offset with a timestamp of ``time_ms`` or later; missing where there is none."""
        found = self._leaders.list_offsets(partitions, time_ms, 0)
        return {tp: offset for tp, offset in found.items() if offset >= 0}

    def record_times_ms(
        self, positions: Mapping[TopicPartition, int], timeout_s: float = 5.0
    ) -> dict[TopicPartition, int]:
        """When the record at each position was written; see `wire.times`."""
        return record_times_ms(self._link, self._leaders, positions, timeout_s)

    # --- groups -----------------------------------------------------------------------------

    def committed_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        operation: str = "Describe",
    ) -> dict[TopicPartition, Committed]:
        """Committed offsets of ``group``; partitions without one are missing from the answer.

        None stands for every partition that the group has an offset of. ``operation``: as for
        `topic_configs`.
        """
        wanted = None if partitions is None else list(partitions)
        if wanted is not None and not wanted:
            return {}
        response = self._link.request(
            partial(offset_fetch_request, group, wanted),
            f"reading the offsets of group {group}",
            group=group,
            check=offset_fetch_error,
            needs=Right(operation, "Group", group, "and on its topics"),
        )
        return offsets_of(response.topics)

    def committed_by_group(
        self, groups: Iterable[str], *, operation: str = "Describe"
    ) -> dict[str, GroupOffsets | MirrorError]:
        """Every committed offset of each of ``groups``, or the error that asking for it gave.

        ``operation``: as for `topic_configs`.
        """
        return committed_by_group(
            self._link,
            groups,
            lambda group: self.committed_offsets(group, None, operation=operation),
            operation,
        )

    def groups(self) -> dict[str, GroupView]:
        """All consumer groups with their states. Raises when a broker does not answer."""
        return list_groups(self._link, self._leaders)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit ``(offset, metadata)`` per partition as a consumer without membership.

        The broker takes that only while the group has no active members. Raises `ClusterError`
        when it has some, and when any partition was refused.
        """
        for chunk in _chunks(sorted(offsets), _COMMITS_PER_REQUEST):
            response = self._link.request(
                partial(commit_request, group, {tp: offsets[tp] for tp in chunk}),
                f"committing offsets of group {group}",
                group=group,
                check=commit_error,
                needs=Right("Read", "Group", group, "and on its topics"),
            )
            self._check_commit(group, response)

    def _check_commit(self, group: str, response: Any) -> None:
        for topic in response.topics:
            for row in topic.partitions:
                if row.error_code in (_UNKNOWN_MEMBER, _ILLEGAL_GENERATION):
                    raise ClusterError(
                        f"the group {group} has active members, its offsets cannot be set.",
                        where=f"cluster {self.alias}",
                        do="Stop the consumers of this group first.",
                    )
                if row.error_code:
                    raise translate(
                        error_for(row.error_code),
                        self.client,
                        f"committing the offset of {topic.name}-{row.partition_index} "
                        f"for group {group}",
                        needs=Right("Read", "Group", group, f"and on Topic {topic.name}"),
                    )

    def group_members(self, group: str, *, operation: str = "Describe") -> tuple[GroupMember, ...]:
        """The active members of ``group``; empty when there are none or no such group.

        Groups of the newer consumer protocol do not show their members to every client: they are
        listed as one member without a name. ``operation``: as for `topic_configs`.
        """
        needs = Right(operation, "Group", group)
        doing = f"describing group {group}"
        response = self._link.request(
            lambda: DescribeGroupsRequest(groups=[group], include_authorized_operations=False),
            doing,
            group=group,
            check=described_group_error,
            needs=needs,
        )
        members = tuple(
            GroupMember(m.client_id, m.client_host.lstrip("/")) for m in response.groups[0].members
        )
        if members:
            return members
        listed = self._link.request(
            ListGroupsRequest, doing, group=group, check=error_code, needs=needs
        )
        for row in listed.groups:
            if row.group_id == group and (getattr(row, "group_state", "") or "") in _ACTIVE_STATES:
                return (GroupMember("", ""),)
        return ()

    def group_owners(self, group: str) -> dict[TopicPartition, GroupOwner]:
        """Who has which partition of a classic ``group``; empty when it has no members."""
        return group_owners(self._link, group)

    # --- records ----------------------------------------------------------------------------

    def read_compacted(
        self, topic: str, *, partitions: Sequence[int] | None = None
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """Every record of ``topic`` up to its present end, as (partition, key, value).

        In offset order within a partition; older records of a key may still be there. Raises
        `TopicError` when the topic does not exist or no progress is made for a request timeout.
        """
        with self.tail(topic, partitions=partitions) as tail:
            yield from tail.read_to_end()

    def tail(
        self, topic: str, *, partitions: Sequence[int] | None = None, only_new: Sequence[int] = ()
    ) -> TopicTail:
        """A reader that follows ``topic`` without a group; close it when done.

        It begins where the log does; in the partitions ``only_new``, at their present ends.
        """
        view = self.topics([topic]).get(topic)
        if view is None:
            raise TopicError(
                f"the topic {topic} does not exist.",
                where=f"cluster {self.alias}",
                do="Check the name, and that this client may describe the topic.",
            )
        numbers = range(view.partitions) if partitions is None else partitions
        wanted = [TopicPartition(topic, number) for number in numbers]
        ends = self.end_offsets(wanted, "read_committed")
        if len(ends) < len(wanted):
            lost = ", ".join(str(tp) for tp in wanted if tp not in ends)
            raise TopicError(
                f"{lost} cannot be read: no live leader.",
                where=f"cluster {self.alias}",
                do="Bring the broker back that holds it.",
            )
        old = [tp for tp in wanted if tp.partition not in only_new]
        starts = {**ends, **dict.fromkeys(old, 0), **self.earliest_offsets(old)}
        return TopicTail(self.client, {tp: (starts[tp], ends[tp]) for tp in wanted})

    def produce_many(
        self,
        topic: str,
        records: Iterable[tuple[int, bytes, bytes | None]],
        *,
        timestamp_ms: int | None = None,
    ) -> int:
        """Write ``(partition, key, value)`` records in order; returns how many.

        ``timestamp_ms``: of all records, default now. All are acknowledged by all in-sync replicas
        when this returns. Raises `MirrorError` when one could not be written within the request
        timeout.
        """
        try:
            return self._writer.write(topic, records, timestamp_ms)
        except MirrorError as error:
            if not isinstance(error, Denied | Unreachable):
                # A topic that may not be written need not be seen: it looks as if there were none.
                for reason in self.literal_errors([topic], operation="Write").values():
                    if isinstance(reason, Denied):
                        raise reason from error
            raise


def _side_by_side(ask: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """``ask`` of each item, in order, a few of them at once. Raises what the first one raised."""
    wanted = list(items)
    if len(wanted) < 2:
        yield from map(ask, wanted)
        return
    with ThreadPoolExecutor(min(_REQUESTS_SIDE_BY_SIDE, len(wanted)), "ask") as pool:
        yield from pool.map(ask, wanted)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
