"""Requests for coordinators and offsets, and how to read their responses.

The mirror's own paths and the driver's client share them; each of them chooses the versions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

from sparkmirror.model import TopicPartition
from sparkmirror.settings import Member
from sparkmirror.wire.cluster.views import Committed

__all__ = [
    "GROUP",
    "TRANSACTION",
    "by_topic",
    "commit_portions",
    "committed_offsets",
    "find_coordinator_request",
    "list_offsets_request",
    "offset_commit_request",
    "offset_fetch_request",
]

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""

_COMMIT_BYTES_MAX = 512 << 10
_COMMIT_ROW_BYTES = 80  # of a record, without its texts

# Comparing their fields takes a third of the time that comparing partitions does.
_ORDER, _TOPIC = attrgetter("topic", "partition"), attrgetter("topic")


def by_topic(partitions: Iterable[TopicPartition]) -> Iterator[tuple[str, list[TopicPartition]]]:
    """Partitions grouped by topic, both sorted."""
    for name, group in itertools.groupby(sorted(partitions, key=_ORDER), key=_TOPIC):
        yield name, list(group)


def commit_portions(
    group: str, offsets: Mapping[TopicPartition, tuple[int, str]]
) -> Iterator[dict[TopicPartition, tuple[int, str]]]:
    """``offsets`` in portions for one request each.

    A coordinator writes a commit as one batch to ``__consumer_offsets``, which has Kafka's usual
    limit of 1 MiB: it would refuse the positions of some 2,500 partitions, and again each time.
    """
    portion: dict[TopicPartition, tuple[int, str]] = {}
    size = 0
    for tp, one in offsets.items():
        row = _COMMIT_ROW_BYTES + sum(len(text.encode()) for text in (group, tp.topic, one[1]))
        if portion and size + row > _COMMIT_BYTES_MAX:
            yield portion
            portion, size = {}, 0
        portion[tp] = one
        size += row
    if portion:
        yield portion


def find_coordinator_request(key: str, kind: int = GROUP) -> Any:
    """Look up the coordinator of one group, or of one transactional id.

    Version 3 is the last one for a single key; every broker still supports it.
    """
    return FindCoordinatorRequest(key=key, key_type=kind, max_version=3)


def list_offsets_request(
    partitions: Iterable[TopicPartition],
    timestamp: int,
    *,
    read_committed: bool,
    leading: Mapping[TopicPartition, int] | None = None,
    min_version: int | None = None,
) -> Any:
    """Offsets for ``timestamp`` (ms; -1 end, -2 start, -3 largest timestamp: version 7, KIP-734).

    ``read_committed``: the end is the last stable offset. ``leading``: the leader epochs that the
    caller knows; a broker with another epoch returns an error.
    """
    rows = ListOffsetsRequest.ListOffsetsTopic
    epochs = leading or {}
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[
            rows(
                name=name,
                partitions=[
                    rows.ListOffsetsPartition(
                        partition_index=tp.partition,
                        current_leader_epoch=epochs.get(tp, -1),
                        timestamp=timestamp,
                    )
                    for tp in part
                ],
            )
            for name, part in by_topic(partitions)
        ],
        min_version=min_version,
        max_version=7,
    )


def offset_fetch_request(
    group: str, partitions: Iterable[TopicPartition] | None, *, stable: bool = False
) -> Any:
    """Committed offsets of one group; ``partitions`` None: all that it has.

    ``stable``: wait for transactions that may change them (KIP-447, version 7). Versions from 8 on
    have another form, for several groups.
    """
    row = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = None
    if partitions is not None:
        topics = [
            row(name=name, partition_indexes=[tp.partition for tp in part])
            for name, part in by_topic(partitions)
        ]
    more = {"require_stable": True} if stable else {}
    return OffsetFetchRequest(group_id=group, topics=topics, min_version=2, max_version=7, **more)


def committed_offsets(topics: Iterable[Any]) -> dict[TopicPartition, Committed]:
    """The offsets in the topic rows of an OffsetFetch response; rows with errors are left out."""
    found: dict[TopicPartition, Committed] = {}
    for topic in topics:
        for row in topic.partitions:
            if row.committed_offset >= 0 and not row.error_code:
                epoch = getattr(row, "committed_leader_epoch", -1)
                found[TopicPartition(topic.name, row.partition_index)] = Committed(
                    row.committed_offset, row.metadata or "", -1 if epoch is None else epoch
                )
    return found


def offset_commit_request(
    group: str,
    offsets: Mapping[TopicPartition, tuple[int, str]],
    member: Member | None = None,
    leader_epochs: Mapping[TopicPartition, int] | None = None,
) -> Any:
    """Commit (offset, metadata) per partition as ``member``, or for a group without members.

    ``leader_epochs``: of the records before the offsets, if known.
    """
    rows = OffsetCommitRequest.OffsetCommitRequestTopic
    epochs = leader_epochs or {}
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1 if member is None else member.generation,
        member_id="" if member is None else member.member_id,
        group_instance_id=None if member is None else member.instance_id or None,
        retention_time_ms=-1,
        topics=[
            rows(
                name=name,
                partitions=[
                    rows.OffsetCommitRequestPartition(
                        partition_index=tp.partition,
                        committed_offset=offsets[tp][0],
                        committed_leader_epoch=epochs.get(tp, -1),
                        committed_metadata=offsets[tp][1],
                    )
                    for tp in part
                ],
            )
            for name, part in by_topic(offsets)
        ],
        max_version=9,  # from version 10 on topics go by id
    )
