"""Questions about offsets that only the leader of a partition answers; each one request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka.protocol.consumer.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest

from sparkmirror.model import TopicPartition
from sparkmirror.wire.connection import Connection

__all__ = ["ask_epoch_ends", "ask_offsets"]

_EPOCHS_KEY = 23
# The first version that a client may ask without permission on the whole cluster.
_EPOCHS_LOWEST, _EPOCHS_HIGHEST = 3, 4


def ask_offsets(
    connection: Connection,
    led: Iterable[TopicPartition],
    timestamp: int,
    *,
    read_committed: bool,
    leading: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """Offsets for ``timestamp`` (-2 earliest, -1 latest); partitions with an error are missing.

    ``leading``: the epochs in which the broker is taken for the leader, to be refused by another.
    """
    rows = ListOffsetsRequest.ListOffsetsTopic

    def row(tp: TopicPartition) -> Any:
        return rows.ListOffsetsPartition(
            partition_index=tp.partition,
            current_leader_epoch=(leading or {}).get(tp, -1),
            timestamp=timestamp,
        )

    message = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if read_committed else 0,
        topics=[rows(name=name, partitions=part) for name, part in _by_topic(led, row).items()],
    )
    response = connection.request(message, lowest=1, highest=5)
    return {
        TopicPartition(topic.name, part.partition_index): part.offset
        for topic in response.topics
        for part in topic.partitions
        if not part.error_code and part.offset >= 0
    }


def ask_epoch_ends(
    connection: Connection,
    epochs: Mapping[TopicPartition, int],
    leading: Mapping[TopicPartition, int],
) -> dict[TopicPartition, tuple[int, int]]:
    """The largest epoch up to the one in ``epochs``, and where its records end, per partition.

    (-1, -1) where the broker cannot tell; partitions that gave an error are missing.
    """
    highest = connection.api_versions.get(_EPOCHS_KEY, (0, -1))[1]
    if not epochs or highest < _EPOCHS_LOWEST:
        return dict.fromkeys(epochs, (-1, -1))
    rows = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def row(tp: TopicPartition) -> Any:
        return rows.OffsetForLeaderPartition(
            partition=tp.partition,
            current_leader_epoch=leading.get(tp, -1),
            leader_epoch=epochs[tp],
        )

    message = OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[rows(topic=name, partitions=part) for name, part in _by_topic(epochs, row).items()],
    )
    response = connection.request(message, lowest=_EPOCHS_LOWEST, highest=_EPOCHS_HIGHEST)
    return {
        TopicPartition(topic.topic, part.partition): (part.leader_epoch, part.end_offset)
        for topic in response.topics
        for part in topic.partitions
        if not part.error_code
    }


def _by_topic(
    partitions: Iterable[TopicPartition], row: Callable[[TopicPartition], Any]
) -> dict[str, list[Any]]:
    topics: dict[str, list[Any]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(row(tp))
    return topics
