"""The records of Kafka Connect's offset storage topic, as MirrorMaker 2 writes them.

The topic is ``mm2-offsets.<source>.internal`` on the target: compacted, JSON without a schema
envelope. The key is ``[connector name, source partition]``, the value ``{"offset": n}``; a null
value resets the partition. Only the entries of ``MirrorSourceConnector`` are positions. ``offset``
is the *last replicated* source offset, so a mirror resumes at ``offset + 1``.

A topic that a map names has an entry of sparkmirror's own: it holds the name on the target and has
no "topic" field. So neither Java nor an earlier release takes its position for that of the remote
topic with the policy's name.

In a Kafka Connect cluster, a connector has the name that its owner gave it, and the topic also
holds entries of other connectors. There an entry of a source connector is recognised by the fields
of its source partition: cluster, topic and partition.

The reader compares parsed JSON. The writer keeps MirrorMaker 2's field order, because compaction
compares key *bytes*; and it uses Java's default partitioner, because a new row must go to the
partition of the row that it replaces. Pure: no sockets here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeGuard

from sparkmirror.model import TopicPartition

__all__ = [
    "CHECKPOINT_CONNECTOR",
    "HEARTBEAT_CONNECTOR",
    "SOURCE_CONNECTOR",
    "ConnectOffsets",
    "decode_source_offset",
    "encode_key",
    "encode_mapped_offset",
    "encode_source_offset",
    "encode_value",
    "murmur2",
    "offsets_topic",
    "partition_for_key",
    "read_source_positions",
]

SOURCE_CONNECTOR = "MirrorSourceConnector"
CHECKPOINT_CONNECTOR = "MirrorCheckpointConnector"
HEARTBEAT_CONNECTOR = "MirrorHeartbeatConnector"
_MAPPED = "sparkmirror.topics.map"

# The iteration order of Java's HashMap for these keys, which is the order on the wire.
_FIELD_ORDER = {
    SOURCE_CONNECTOR: ("cluster", "partition", "topic"),
    CHECKPOINT_CONNECTOR: ("partition", "topic", "group"),
    HEARTBEAT_CONNECTOR: ("sourceClusterAlias", "targetClusterAlias"),
}

_PARTITION_MAX = 2**31 - 1
_OFFSET_MAX = 2**63 - 2  # offset + 1 must still be an int64
_MASK = 0xFFFFFFFF
_MURMUR_SEED = 0x9747B28C
_MURMUR_M = 0x5BD1E995


@dataclass(frozen=True, slots=True)
class ConnectOffsets:
    """The positions of one source cluster in an offset storage topic.

    ``positions``: next source offset (stored offset + 1) per source partition. ``mapped``: the same
    for topics that a map names, by source partition and name on the target. ``skipped``: number of
    records that are not entries of a connector, and of malformed ones of MirrorMaker 2.
    """

    positions: dict[TopicPartition, int]
    skipped: int = 0
    mapped: dict[tuple[TopicPartition, str], int] = field(default_factory=dict)


def offsets_topic(source_alias: str) -> str:
    """Name of the offset storage topic; it has dots whatever the policy's separator is."""
    return f"mm2-offsets.{source_alias}.internal"


def encode_key(connector: str, partition: dict[str, str | int]) -> bytes:
    """Key bytes exactly as MirrorMaker 2 writes them for ``connector``.

    Raises ``KeyError`` if the connector is not one of MirrorMaker 2's or a field is missing.
    """
    ordered = {name: partition[name] for name in _FIELD_ORDER[connector]}
    return _compact([connector, ordered])


def encode_value(offset: int | None) -> bytes | None:
    """Value bytes for ``offset`` (last replicated source offset); None gives a reset."""
    return None if offset is None else _compact({"offset": offset})


def encode_source_offset(
    source_alias: str, source: TopicPartition, position: int
) -> tuple[bytes, bytes | None]:
    """Key and value for ``position``, the next source offset to mirror.

    Position 0 means that nothing was replicated; Connect writes that as a reset (null value).
    """
    key = encode_key(
        SOURCE_CONNECTOR,
        {"cluster": source_alias, "partition": source.partition, "topic": source.topic},
    )
    return key, _below(position)


def encode_mapped_offset(
    source_alias: str, source: TopicPartition, remote: str, position: int
) -> tuple[bytes, bytes | None]:
    """`encode_source_offset` for a topic that a map named ``remote``."""
    partition = {
        "cluster": source_alias,
        "partition": source.partition,
        "remote": remote,
        "source": source.topic,
    }
    return _compact([_MAPPED, partition]), _below(position)


def _below(position: int) -> bytes | None:
    """The value for ``position``, the next source offset to mirror."""
    return encode_value(position - 1 if position > 0 else None)


def _decode_mapped(
    key: tuple[str, dict[str, object]], value: bytes | None
) -> tuple[str, tuple[TopicPartition, str], int | None] | None:
    cluster, topic, remote, partition = (
        key[1].get(name) for name in ("cluster", "source", "remote", "partition")
    )
    if not (isinstance(cluster, str) and isinstance(topic, str) and isinstance(remote, str)):
        return None
    if not _is_int(partition) or not 0 <= partition <= _PARTITION_MAX:
        return None
    document = {"offset": None} if value is None else _parse(value)
    offset = document.get("offset", -1) if isinstance(document, dict) else -1
    if offset is not None and not (_is_int(offset) and 0 <= offset <= _OFFSET_MAX):
        return None
    return cluster, (TopicPartition(topic, partition), remote), offset


def decode_source_offset(
    key: bytes | None, value: bytes | None
) -> tuple[str, TopicPartition, int | None] | None:
    """Source alias, source partition and last replicated offset (None: reset) of one record.

    Returns None if it is not a valid entry of a MirrorMaker 2 source connector, of any name.
    """
    parsed = _parse_key(key)
    if parsed is None or parsed[0] in (CHECKPOINT_CONNECTOR, HEARTBEAT_CONNECTOR):
        return None
    fields = parsed[1]
    cluster, topic, partition = (fields.get(n) for n in ("cluster", "topic", "partition"))
    if not isinstance(cluster, str) or not isinstance(topic, str):
        return None
    if not _is_int(partition) or not 0 <= partition <= _PARTITION_MAX:
        return None
    source = TopicPartition(topic, partition)
    if value is None:
        return cluster, source, None
    document = _parse(value)
    if document is None:  # the JSON text "null" is Connect's other way to write a reset
        return (cluster, source, None) if value.strip() == b"null" else None
    offset = document.get("offset") if isinstance(document, dict) else None
    if not _is_int(offset) or not 0 <= offset <= _OFFSET_MAX:
        return None
    return cluster, source, offset


def read_source_positions(
    records: Iterable[tuple[int, bytes | None, bytes | None]], source_alias: str
) -> ConnectOffsets:
    """Fold ``(partition, key, value)`` records, oldest first, into positions of one source.

    Entries of other clusters and connectors are ignored; malformed records are counted. If several
    connectors have mirrored a partition, ``MirrorSourceConnector`` takes precedence (we write under
    that name too). Without it the smallest position is used, so that no record is skipped.
    """
    found: dict[TopicPartition, dict[str, int]] = {}
    mapped: dict[tuple[TopicPartition, str], int] = {}
    skipped = 0
    for _, key, value in records:
        parsed = _parse_key(key)
        if parsed is not None and parsed[0] == _MAPPED:
            ours = _decode_mapped(parsed, value)
            if ours is None:
                skipped += 1
            elif ours[0] == source_alias:
                mapped.pop(ours[1], None)
                if ours[2] is not None:
                    mapped[ours[1]] = ours[2] + 1
            continue
        entry = decode_source_offset(key, value)
        if entry is None or parsed is None:
            # Other connectors may have partitions and offsets of any shape.
            skipped += parsed is None or parsed[0] == SOURCE_CONNECTOR
            continue
        cluster, source, offset = entry
        if cluster != source_alias:
            continue
        if offset is None:
            found.get(source, {}).pop(parsed[0], None)
        else:
            found.setdefault(source, {})[parsed[0]] = offset + 1
    positions = {
        source: named.get(SOURCE_CONNECTOR, min(named.values()))
        for source, named in found.items()
        if named
    }
    return ConnectOffsets(positions, skipped, mapped)


def partition_for_key(key: bytes, partitions: int) -> int:
    """Partition that Java's default partitioner chooses for ``key`` among ``partitions``."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """32-bit murmur2 hash with Kafka's seed, as an unsigned number."""
    length = len(data)
    h = (_MURMUR_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _MURMUR_M & _MASK
        k = (k ^ (k >> 24)) * _MURMUR_M & _MASK
        h = (h * _MURMUR_M & _MASK) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _MURMUR_M & _MASK
    h = (h ^ (h >> 13)) * _MURMUR_M & _MASK
    return h ^ (h >> 15)


def _compact(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _parse(data: bytes) -> object:
    """Parsed JSON; None for bytes that are not JSON, and for JSON null."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document


def _parse_key(key: bytes | None) -> tuple[str, dict[str, object]] | None:
    document = _parse(key) if key is not None else None
    if not isinstance(document, list) or len(document) != 2:
        return None
    connector, fields = document
    if not isinstance(connector, str) or not isinstance(fields, dict):
        return None
    return connector, fields


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
