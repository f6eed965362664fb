"""The messages of `wire.admin.cluster.Cluster`: builds requests, reads rows and error codes.

Pure functions over kafka-python's protocol classes. Versions are limited if a later one changes
the meaning of a field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest

from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.wire.admin.config_decoder import config_entry
from sparkmirror.wire.cluster.messages import by_topic
from sparkmirror.wire.cluster.views import ConfigEntry, NewTopic, TopicView

__all__ = [
    "alter_configs_request",
    "broker_configs_request",
    "by_records",
    "chunks",
    "commit_error",
    "config_row",
    "create_partitions_request",
    "create_topics_request",
    "creation_records",
    "error_code",
    "fetch_request",
    "not_controller",
    "offset_fetch_error",
    "produce_request",
    "record_batch",
    "topic_view",
]

T = TypeVar("T")

# A KRaft controller writes at most 10,000 records at once, and creates at most as many partitions.
_RECORDS_PER_REQUEST = 9_000
_NO_ID = "00000000-0000-0000-0000-000000000000"
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_SET, _DELETE = 0, 1
_UNKNOWN_TOPIC = 3
_NOT_CONTROLLER = 41
_COORDINATOR_MOVED = frozenset({14, 15, 16})


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """``items`` in pieces of at most ``size``, one for each request."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def by_records(items: Iterable[T], records: Callable[[T], int], size: int) -> Iterator[list[T]]:
    """``items`` in pieces of at most ``size`` for requests that make the controller write.

    ``records``: how many records it writes for an item. It refuses a request with too many of them
    as a whole, so an item that has too many itself is alone.
    """
    piece: list[T] = []
    total = 0
    for item in items:
        count = records(item)
        if piece and (len(piece) == size or total + count > _RECORDS_PER_REQUEST):
            yield piece
            piece, total = [], 0
        piece.append(item)
        total += count
    if piece:
        yield piece


def topic_view(topic: Any) -> TopicView:
    """The view of a topic row of a Metadata response; it must have partitions."""
    partitions = sorted(topic.partitions, key=lambda p: int(p.partition_index))
    topic_id = str(getattr(topic, "topic_id", None) or "")
    return TopicView(
        name=topic.name,
        topic_id="" if topic_id == _NO_ID else topic_id,
        partitions=len(partitions),
        replication=len(partitions[0].replica_nodes),
        leaderless=tuple(p.partition_index for p in partitions if p.leader_id < 0),
        internal=bool(topic.is_internal),
    )


def config_row(config: Any) -> ConfigEntry:
    """The entry for a config row that kafka-python has decoded."""
    return config_entry(
        config.value, config.config_source, bool(config.read_only), bool(config.is_sensitive)
    )


def broker_configs_request(node: int) -> Any:
    """Request all configs of the broker ``node``."""
    row = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_BROKER_RESOURCE, resource_name=str(node), configuration_keys=None
    )
    return DescribeConfigsRequest(resources=[row])


def alter_configs_request(changes: Mapping[str, Mapping[str, str | None]]) -> Any:
    """Set these configs per topic; None removes the topic's own value. Others stay."""
    rows = IncrementalAlterConfigsRequest.AlterConfigsResource
    return IncrementalAlterConfigsRequest(
        resources=[
            rows(
                resource_type=_TOPIC_RESOURCE,
                resource_name=topic,
                configs=[
                    rows.AlterableConfig(
                        name=name,
                        config_operation=_DELETE if value is None else _SET,
                        value=value,
                    )
                    for name, value in configs.items()
                ],
            )
            for topic, configs in changes.items()
        ],
        validate_only=False,
    )


def create_topics_request(
    topics: Sequence[NewTopic], timeout_ms: int, *, validate_only: bool = False
) -> Any:
    """Create ``topics`` with replicas placed by the controller; ``validate_only``: a dry run."""
    rows = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[
            rows(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                assignments=[],
                configs=[
                    rows.CreatableTopicConfig(name=name, value=value)
                    for name, value in topic.configs.items()
                ],
            )
            for topic in topics
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
        # Before version 4, -1 ("the broker's default", KIP-464) is not supported.
        min_version=4 if any(topic.replication_factor < 0 for topic in topics) else 0,
    )


def creation_records(topic: NewTopic) -> int:
    """How many records a KRaft controller writes to create ``topic``."""
    return 1 + topic.partitions + len(topic.configs)


def create_partitions_request(counts: Mapping[str, int], timeout_ms: int) -> Any:
    """Raise topics to ``counts`` partitions, with replicas placed by the controller."""
    row = CreatePartitionsRequest.CreatePartitionsTopic
    return CreatePartitionsRequest(
        topics=[row(name=name, count=count, assignments=None) for name, count in counts.items()],
        timeout_ms=timeout_ms,
        validate_only=False,
    )


def fetch_request(
    positions: Mapping[TopicPartition, int],
    max_bytes: int,
    *,
    read_committed: bool = False,
    wait_ms: int = 0,
) -> Any:
    """Fetch from ``positions``; ``max_bytes`` in total. The broker waits ``wait_ms`` for records.

    ``read_committed``: up to the last stable offset, with the list of aborted transactions.
    """
    rows = FetchRequest.FetchTopic
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1 if wait_ms else 0,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        topics=[
            rows(
                topic=name,
                partitions=[
                    rows.FetchPartition(
                        partition=tp.partition,
                        fetch_offset=positions[tp],
                        partition_max_bytes=max_bytes,
                    )
                    for tp in part
                ],
            )
            for name, part in by_topic(positions)
        ],
        max_version=11,  # from version 13 on topics go by id
    )


def record_batch(records: Iterable[tuple[bytes, bytes | None]], timestamp_ms: int) -> bytes:
    """One uncompressed record batch of ``(key, value)`` records."""
    rows = [Record(n, timestamp_ms, key, value) for n, (key, value) in enumerate(records)]
    return encode_batch(rows)


def produce_request(partition: TopicPartition, batch: bytes, timeout_ms: int) -> Any:
    """Write one batch, acknowledged by all in-sync replicas."""
    rows = ProduceRequest.TopicProduceData
    part = rows.PartitionProduceData(index=partition.partition, records=batch)
    return ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=timeout_ms,
        topic_data=[rows(name=partition.topic, partition_data=[part])],
        max_version=9,  # from version 13 on topics go by id
    )


def not_controller(response: Any) -> int:
    """NOT_CONTROLLER when any row of a response for topics has it, else 0."""
    rows = getattr(response, "topics", None) or getattr(response, "results", None) or ()
    return _NOT_CONTROLLER if any(row.error_code == _NOT_CONTROLLER for row in rows) else 0


def error_code(response: Any) -> int:
    """The top-level error code of a response."""
    return int(response.error_code)


def offset_fetch_error(response: Any) -> int:
    """The top-level error code, or a partition's first one; unknown topics are no error."""
    if getattr(response, "error_code", 0):
        return int(response.error_code)
    codes = (row.error_code for topic in response.topics for row in topic.partitions)
    return next((int(code) for code in codes if code and code != _UNKNOWN_TOPIC), 0)


def commit_error(response: Any) -> int:
    """The first error that a new lookup of the coordinator may cure; callers check the others."""
    codes = (row.error_code for topic in response.topics for row in topic.partitions)
    return next((int(code) for code in codes if code in _COORDINATOR_MOVED), 0)
