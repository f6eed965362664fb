"""Read-only checks of a cluster for the doctor: permissions, sizes, clock, defaults.

A Fetch or Produce request to a partition number that no topic can have shows whether a topic may be
read or written: the broker checks the permission first, and only then whether the partition exists.
Brokers of all versions do so, and nothing is ever written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kafka.protocol.admin import (
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
)
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from sparkmirror.errors import Denied, MirrorError, Unreachable, Unsupported
from sparkmirror.model import TopicPartition
from sparkmirror.records.header import TRANSACTIONAL_BIT
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.side_by_side import of_each
from sparkmirror.wire.admin.authorized_operations import rights_of
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.error_translation import translate
from sparkmirror.wire.admin.messages import (
    broker_configs_request,
    by_records,
    config_row,
    create_topics_request,
    creation_records,
    error_code,
    not_controller,
)
from sparkmirror.wire.admin.requester import CONTROLLER, error_for
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.messages import by_topic, list_offsets_request
from sparkmirror.wire.cluster.views import ConfigEntry, NewTopic

__all__ = ["Inspector", "TriedTopic"]

_NO_PARTITION = 2**31 - 1
_NO_TOPIC = "no-topic"
_OFFSETS_TOPIC = "__consumer_offsets"
_UNKNOWN_TOPIC = 3
_TOPIC_EXISTS = 36
_TOPIC_DENIED, _GROUP_DENIED, _CLUSTER_DENIED = 29, 30, 31
_TRANSACTIONAL_ID_DENIED = 53
_NEWEST_TIME = -3
_TRIED_TOPICS_PER_REQUEST = 1_000
# The first request may also have to connect.
_TRIPS = 4
_TRIPS_SIDE_BY_SIDE = 4


@dataclass(frozen=True, slots=True)
class TriedTopic:
    """The result of a dry run of a topic's creation: an error, or the configs it would have.

    ``existed``: it exists already; a client that may create it need not be able to see it.
    """

    name: str
    error: MirrorError | None = None
    configs: Mapping[str, ConfigEntry] = field(default_factory=dict)
    existed: bool = False


class Inspector:
    """The requests to ``cluster`` that only a diagnosis needs. Its owner closes the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.alias = cluster.alias
        self._requester = cluster.requester

    # -- permissions -----------------------------------------------------------------------

    def readable(self, topics: Iterable[str]) -> dict[str, bool]:
        """Whether records of each topic may be read."""
        rows = FetchRequest.FetchTopic
        part = partial(
            rows.FetchPartition, partition=_NO_PARTITION, fetch_offset=0, partition_max_bytes=1
        )
        response = self._requester.request(
            lambda: FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1,
                topics=[rows(topic=name, partitions=[part()]) for name in sorted(topics)],
                max_version=11,
            ),
            "trying to read",
        )
        return {
            row.topic: all(p.error_code != _TOPIC_DENIED for p in row.partitions)
            for row in response.responses
        }

    def writable(self, topics: Iterable[str]) -> dict[str, bool]:
        """Whether records may be written to each topic, whether it exists or not."""
        return {name: _TOPIC_DENIED not in codes for name, codes in self._produced(topics).items()}

    def may_transact(self, transactional_id: str) -> bool:
        """Whether records may be written in transactions of ``transactional_id``.

        The broker checks this before it looks at topics, and no coordinator hears of the id.
        """
        (codes,) = self._produced([_NO_TOPIC], transactional_id).values()
        return _TRANSACTIONAL_ID_DENIED not in codes

    def _produced(
        self, topics: Iterable[str], transactional_id: str | None = None
    ) -> dict[str, list[int]]:
        """The error codes of a record for a partition of each topic that does not exist."""
        batch = encode_batch(
            [Record(0, int(time.time() * 1000), b"", b"")],
            attributes=0 if transactional_id is None else TRANSACTIONAL_BIT,
        )
        rows = ProduceRequest.TopicProduceData
        part = partial(rows.PartitionProduceData, index=_NO_PARTITION, records=batch)
        response = self._requester.request(
            lambda: ProduceRequest(
                transactional_id=transactional_id,
                acks=-1,
                timeout_ms=1_000,
                topic_data=[rows(name=name, partition_data=[part()]) for name in sorted(topics)],
                max_version=9,
            ),
            "trying to write",
        )
        return {
            row.name: [int(p.error_code) for p in row.partition_responses]
            for row in response.responses
        }

    def has_groups(self) -> bool:
        """Whether the cluster has `__consumer_offsets`, which the first group request creates."""
        (topic,) = self.cluster.leaders.metadata([_OFFSETS_TOPIC]).topics
        return bool(topic.error_code != _UNKNOWN_TOPIC)

    def group_rights(self, group: str) -> frozenset[str] | None:
        """The client's permissions on ``group``, which need not exist; None: not known."""
        try:
            response = self._requester.request(
                lambda: DescribeGroupsRequest(
                    groups=[group],
                    include_authorized_operations=True,
                    max_version=5,  # version 6 says nothing about groups that do not exist
                ),
                f"describing group {group}",
                group=group,
                check=_group_error,
            )
        except Denied:  # not even FindCoordinator is allowed
            return frozenset()
        (row,) = response.groups
        if row.error_code in (_GROUP_DENIED, _CLUSTER_DENIED):
            return frozenset()
        return rights_of(getattr(row, "authorized_operations", None))

    # -- topics ----------------------------------------------------------------------------

    def try_create(self, topics: Sequence[NewTopic]) -> dict[str, TriedTopic]:
        """The result of a dry run of the creation of ``topics``; nothing is created."""
        rows: list[Any] = []
        for piece in by_records(topics, creation_records, _TRIED_TOPICS_PER_REQUEST):
            response = self._requester.request(
                partial(
                    create_topics_request, piece, self.client.request_timeout_ms, validate_only=True
                ),
                "trying to create topics",
                node=CONTROLLER,
                check=not_controller,
                needs=Right("Create", "Topic", note="(or on the Cluster)"),
                apart=True,  # a dry run counts for the quota on new partitions, too
            )
            rows += response.topics
        found = {}
        for row in rows:
            error = None
            existed = row.error_code == _TOPIC_EXISTS
            if row.error_code and not existed:
                error = translate(
                    error_for(row.error_code, getattr(row, "error_message", None)),
                    self.client,
                    f"creating topic {row.name}",
                    needs=Right("Create", "Topic", row.name, "(or on the Cluster)"),
                )
            configs = {c.name: config_row(c) for c in getattr(row, "configs", None) or ()}
            found[row.name] = TriedTopic(row.name, error, configs, existed)
        return found

    def newest_times_ms(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Largest record timestamp (ms) of each partition; empty partitions are missing.

        Raises `Unsupported` for brokers before 3.0 (KIP-734).
        """
        led, _ = self.cluster.leaders.by_leader(partitions, fresh=False)
        found = {}
        for node, group in led.items():
            response = self._requester.request(
                partial(
                    list_offsets_request, group, _NEWEST_TIME, read_committed=False, min_version=7
                ),
                "reading offsets",
                node=node,
            )
            for topic in response.topics:
                for row in topic.partitions:
                    if not row.error_code and row.timestamp >= 0:
                        tp = TopicPartition(topic.name, row.partition_index)
                        found[tp] = int(row.timestamp)
        return found

    def sizes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Bytes on disk of each partition at its leader.

        Raises `Denied` without Describe on the Cluster.
        """
        led, _ = self.cluster.leaders.by_leader(partitions, fresh=False)
        found: dict[TopicPartition, int] = {}
        for node, group in led.items():
            response = self._requester.request(
                partial(_log_dirs_request, group),
                "describing log dirs",
                node=node,
                check=_top_error,
            )
            for directory in response.results:
                for topic in directory.topics:
                    for row in topic.partitions:
                        tp = TopicPartition(topic.name, row.partition_index)
                        found[tp] = max(found.get(tp, 0), int(row.partition_size))
        return found

    # -- brokers ---------------------------------------------------------------------------

    def broker_configs(self) -> dict[int, dict[str, str]]:
        """Present configs of each broker: {node id: {name: value}}. Raises `MirrorError`."""
        nodes = self._nodes()
        return dict(zip(nodes, of_each(self._configs_of, nodes), strict=True))

    def _nodes(self) -> list[int]:
        return [broker.node for broker in self.cluster.describe().brokers]

    def _configs_of(self, node: int) -> dict[str, str]:
        found: dict[str, str] = {}
        response = self._requester.request(
            partial(broker_configs_request, node),
            "describing broker configs",
            node=node,
            needs=Right("DescribeConfigs", "Cluster"),
        )
        for row in response.results:
            if row.error_code:
                raise translate(
                    error_for(row.error_code, row.error_message),
                    self.client,
                    "describing broker configs",
                    needs=Right("DescribeConfigs", "Cluster"),
                )
            found |= {c.name: c.value for c in row.configs if c.value is not None}
        return found

    def round_trips_ms(self) -> dict[int, float | None]:
        """Time of a small request to each broker and its response: the shortest of a few, in ms.

        By node id; None: it does not respond. Raises `MirrorError`, also if none responds.
        """
        nodes = self._nodes()
        # Not all at once: decoding the responses of others would count as well.
        answers = of_each(self._round_trip, nodes, at_most=_TRIPS_SIDE_BY_SIDE)
        found = [None if isinstance(one, MirrorError) else one for one in answers]
        if all(one is None for one in found):
            errors = [one for one in answers if isinstance(one, MirrorError)]
            raise (
                errors[0]
                if errors
                else Unreachable("it names no brokers.", where=f"cluster {self.client.alias}")
            )
        return dict(zip(nodes, found, strict=True))

    def _round_trip(self, node: int) -> float | MirrorError:
        took = []
        try:
            for _ in range(_TRIPS):
                began = time.monotonic()
                self._requester.request(
                    partial(MetadataRequest, topics=[]), "measuring the round trip", node=node
                )
                took.append(time.monotonic() - began)
        except MirrorError as error:
            return error
        return min(took) * 1000

    def clock_ms(self, now_s: Callable[[], float] = time.time) -> tuple[float, float]:
        """(the cluster's time minus this machine's, its possible error); both ms.

        The time is that of the KRaft leader. Raises `Unsupported` if no API returns a time (before
        KRaft), `Denied` without Describe on the Cluster.
        """
        began = now_s() * 1000
        response = self._requester.request(
            _quorum_request,
            "describing the quorum",
            check=error_code,
            needs=Right("Describe", "Cluster"),
        )
        ended = now_s() * 1000
        for topic in response.topics:
            for row in topic.partitions:
                for replica in row.current_voters:
                    told = getattr(replica, "last_caught_up_timestamp", -1)
                    if replica.replica_id == row.leader_id and told > 0:
                        return told - (began + ended) / 2, (ended - began) / 2
        raise Unsupported("the quorum returns no time.", where=f"cluster {self.alias}")


def _quorum_request() -> Any:
    rows = DescribeQuorumRequest.TopicData
    part = rows.PartitionData(partition_index=0)
    return DescribeQuorumRequest(
        topics=[rows(topic_name="__cluster_metadata", partitions=[part])], min_version=1
    )


def _log_dirs_request(partitions: Iterable[TopicPartition]) -> Any:
    row = DescribeLogDirsRequest.DescribableLogDirTopic
    return DescribeLogDirsRequest(
        topics=[
            row(topic=name, partitions=[tp.partition for tp in part])
            for name, part in by_topic(partitions)
        ]
    )


def _top_error(response: Any) -> int:
    code = int(getattr(response, "error_code", 0) or 0)
    return code or next((int(row.error_code) for row in response.results if row.error_code), 0)


def _group_error(response: Any) -> int:
    code = int(response.groups[0].error_code)
    return 0 if code in (_GROUP_DENIED, _CLUSTER_DENIED) else code
