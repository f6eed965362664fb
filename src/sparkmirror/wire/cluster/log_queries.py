"""Requests about offsets that only the leader of a partition can serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.consumer.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest

from sparkmirror.model import TopicPartition
from sparkmirror.offset_reset import EARLIEST, LATEST
from sparkmirror.wire.cluster.messages import by_topic, list_offsets_request
from sparkmirror.wire.net.connection import Connection

__all__ = ["query_epoch_ends", "query_logs", "query_offsets"]

Offsets = dict[TopicPartition, int]

_EPOCHS_KEY = 23
# From the first version that needs Describe on the topic only (KIP-320) to the last one.
_EPOCHS_VERSIONS = 3, 4
_OFFSETS_VERSIONS = 1, 5
_UNSETTLED_VERSION = 5  # of ListOffsets: OFFSET_NOT_AVAILABLE (KIP-207)


def query_offsets(
    connection: Connection,
    led: Iterable[TopicPartition],
    timestamp: int,
    *,
    read_committed: bool,
    leading: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """Offsets for ``timestamp`` (ms; -2 earliest, -1 latest).

    Partitions with an error are missing. -1: no record is as late as ``timestamp``. ``leading``:
    the leader epochs that the caller knows; a broker with another epoch returns an error. Raises
    `ConnectionLost`, `Unsupported`.
    """
    message = list_offsets_request(led, timestamp, read_committed=read_committed, leading=leading)
    lowest, highest = _OFFSETS_VERSIONS
    # For a time after the last record, the offset is -1.
    least = -1 if timestamp >= 0 else 0
    return _offsets(connection.request(message, lowest=lowest, highest=highest), least)


def query_epoch_ends(
    connection: Connection,
    epochs: Mapping[TopicPartition, int],
    leading: Mapping[TopicPartition, int],
) -> dict[TopicPartition, tuple[int, int]]:
    """(largest leader epoch up to that in ``epochs``, its end offset) per partition (KIP-320).

    (-1, -1) if the broker does not know (all before 2.3); partitions with an error are missing.
    ``leading``: as in `query_offsets`. Raises `ConnectionLost`.
    """
    if not epochs or not tells_epochs(connection):
        return dict.fromkeys(epochs, (-1, -1))
    message = _epochs_request(epochs, leading)
    lowest, highest = _EPOCHS_VERSIONS
    return _epoch_ends(connection.request(message, lowest=lowest, highest=highest))


def query_logs(
    connection: Connection,
    led: Iterable[TopicPartition],
    leading: Mapping[TopicPartition, int],
    *epochs: Mapping[TopicPartition, int],
    refused: Offsets | None = None,
) -> tuple[Offsets, Offsets, list[dict[TopicPartition, tuple[int, int]]]]:
    """Log start offsets, high watermarks, and `query_epoch_ends` of each of ``epochs``.

    The requests are sent in this order and pipelined: `Connection.request_all`. ``refused`` gets an
    error code of each partition that has one.
    """
    asked: list[tuple[Any, int, int]] = [
        (
            list_offsets_request(led, when, read_committed=False, leading=leading),
            *_OFFSETS_VERSIONS,
        )
        for when in (EARLIEST, LATEST)
    ]
    knows = tells_epochs(connection)
    asked += [(_epochs_request(one, leading), *_EPOCHS_VERSIONS) for one in epochs if one and knows]
    starts, ends, *others = connection.request_all(asked)
    answers = iter(others)
    told = [
        _epoch_ends(next(answers), refused) if one and knows else dict.fromkeys(one, (-1, -1))
        for one in epochs
    ]
    return _offsets(starts, refused=refused), _offsets(ends, refused=refused), told


def _offsets(response: Any, least: int = 0, refused: Offsets | None = None) -> Offsets:
    found: Offsets = {}
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if not part.error_code and part.offset >= least:
                found[tp] = part.offset
            elif part.error_code and refused is not None:
                refused[tp] = part.error_code
    return found


def tells_unsettled(connection: Connection) -> bool:
    """Whether a new leader that does not know its high watermark yet says so (from 2.2 on)."""
    lowest, highest = connection.api_versions.get(ListOffsetsRequest.API_KEY, (0, -1))
    return lowest <= _UNSETTLED_VERSION <= highest


def tells_epochs(connection: Connection) -> bool:
    """Whether the broker can say where leader epochs end (from 2.3 on)."""
    return connection.api_versions.get(_EPOCHS_KEY, (0, -1))[1] >= _EPOCHS_VERSIONS[0]


def _epochs_request(
    epochs: Mapping[TopicPartition, int], leading: Mapping[TopicPartition, int]
) -> Any:
    rows = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            rows(
                topic=name,
                partitions=[
                    rows.OffsetForLeaderPartition(
                        partition=tp.partition,
                        current_leader_epoch=leading.get(tp, -1),
                        leader_epoch=epochs[tp],
                    )
                    for tp in part
                ],
            )
            for name, part in by_topic(epochs)
        ],
    )


def _epoch_ends(
    response: Any, refused: Offsets | None = None
) -> dict[TopicPartition, tuple[int, int]]:
    found: dict[TopicPartition, tuple[int, int]] = {}
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.topic, part.partition)
            if not part.error_code:
                found[tp] = part.leader_epoch, part.end_offset
            elif refused is not None:
                refused[tp] = part.error_code
    return found
