"""The records of MirrorMaker 2's internal topics: heartbeats, checkpoints, offset syncs.

The encoding is Kafka's ``Struct``: big-endian integers, strings as an int16 length in bytes and
UTF-8, no tagged fields. Like Java, the decoders ignore bytes after the last field. Unlike Java,
they reject an unknown version instead of reading it as version 0. They return None for a malformed
record, so that a reader can skip and count it. Pure: no sockets here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import make_policy
from sparkmirror.settings import FlowSettings

__all__ = [
    "Checkpoint",
    "Heartbeat",
    "checkpoints_topic",
    "decode_checkpoint",
    "decode_heartbeat",
    "decode_offset_sync",
    "encode_checkpoint",
    "encode_heartbeat",
    "encode_offset_sync",
    "offset_syncs_topic",
]

_VERSION = 0
_STRING_BYTES_MAX = 32_767
_LENGTH = struct.Struct(">h")
_PARTITION = struct.Struct(">i")
_HEARTBEAT = struct.Struct(">hq")
_CHECKPOINT = struct.Struct(">hqq")
_OFFSET_SYNC = struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The flow ``source->target`` was alive at ``timestamp_ms``."""

    source: str
    target: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The position of ``group`` in ``remote``, a partition of the target.

    ``upstream``: offset committed on the source. ``downstream``: its translation on the target.
    ``metadata``: metadata of the commit on the source.
    """

    group: str
    remote: TopicPartition
    upstream: int
    downstream: int
    metadata: str = ""


def checkpoints_topic(flow: FlowSettings) -> str:
    """Name of the checkpoints topic, on the target."""
    return make_policy(flow.policy, flow.source.alias).checkpoints_topic(flow.source.alias)


def offset_syncs_topic(flow: FlowSettings) -> str:
    """Name of the offset-syncs topic; it has the alias of the cluster that does not host it."""
    on_source = flow.offset_syncs.location == "source"
    other = flow.target.alias if on_source else flow.source.alias
    return make_policy(flow.policy, flow.source.alias).offset_syncs_topic(other)


def encode_heartbeat(heartbeat: Heartbeat) -> tuple[bytes, bytes]:
    """Key and value. Raises ValueError for an alias of more than 32,767 bytes."""
    key = _text(heartbeat.source) + _text(heartbeat.target)
    return key, _HEARTBEAT.pack(_VERSION, heartbeat.timestamp_ms)


def decode_heartbeat(key: bytes | None, value: bytes | None) -> Heartbeat | None:
    """The heartbeat in a record; None if it holds none."""
    if key is None or value is None:
        return None
    try:
        source, at = _read_text(key, 0)
        target, _ = _read_text(key, at)
        version, timestamp_ms = _HEARTBEAT.unpack_from(value)
    except (struct.error, ValueError):
        return None
    return Heartbeat(source, target, timestamp_ms) if version == _VERSION else None


def encode_checkpoint(checkpoint: Checkpoint) -> tuple[bytes, bytes]:
    """Key and value. Raises ValueError for a string of more than 32,767 bytes."""
    key = _text(checkpoint.group) + _partition(checkpoint.remote)
    head = _CHECKPOINT.pack(_VERSION, checkpoint.upstream, checkpoint.downstream)
    return key, head + _text(checkpoint.metadata)


def decode_checkpoint(key: bytes | None, value: bytes | None) -> Checkpoint | None:
    """The checkpoint in a record; None if it holds none."""
    if key is None or value is None:
        return None
    try:
        group, at = _read_text(key, 0)
        remote = _read_partition(key, at)
        version, upstream, downstream = _CHECKPOINT.unpack_from(value)
        metadata, _ = _read_text(value, _CHECKPOINT.size)
    except (struct.error, ValueError):
        return None
    if version != _VERSION:
        return None
    return Checkpoint(group, remote, upstream, downstream, metadata)


def encode_offset_sync(
    source: TopicPartition, upstream: int, downstream: int
) -> tuple[bytes, bytes]:
    """Key and value. Raises ValueError for a topic of more than 32,767 bytes."""
    return _partition(source), _OFFSET_SYNC.pack(upstream, downstream)


def decode_offset_sync(
    key: bytes | None, value: bytes | None
) -> tuple[TopicPartition, int, int] | None:
    """Source partition, source offset and target offset; None if the record holds no sync."""
    if key is None or value is None:
        return None
    try:
        source = _read_partition(key, 0)
        upstream, downstream = _OFFSET_SYNC.unpack_from(value)
    except (struct.error, ValueError):
        return None
    return source, upstream, downstream


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > _STRING_BYTES_MAX:
        raise ValueError(
            f"a string of {len(data)} bytes is too long: a record's may have {_STRING_BYTES_MAX}"
        )
    return _LENGTH.pack(len(data)) + data


@lru_cache(maxsize=65_536)
def _partition(tp: TopicPartition) -> bytes:
    return _text(tp.topic) + _PARTITION.pack(tp.partition)


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = _LENGTH.unpack_from(data, at)
    end = at + _LENGTH.size + size
    if size < 0 or end > len(data):
        raise ValueError(f"a string of {size} bytes at byte {at} of {len(data)}")
    return data[at + _LENGTH.size : end].decode(), end


def _read_partition(data: bytes, at: int) -> TopicPartition:
    topic, at = _read_text(data, at)
    (partition,) = _PARTITION.unpack_from(data, at)
    return TopicPartition(topic, partition)
