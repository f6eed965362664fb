"""Message formats before Kafka 0.11 (magic 0 and 1), read into the records of magic 2 batches.

::

     0 offset i64   8 size i32   12 crc32 u32 (16 … end)   16 magic i8   17 attributes i8
    18 timestamp i64 (magic 1 only), then key and value, each with an i32 size (-1 null)

Attributes: bits 0..2 codec, bit 3 log append time (magic 1). A message with a codec is a wrapper:
its value decompresses to further messages, and its offset is that of the last one. Inside a magic 0
wrapper offsets are absolute, inside a magic 1 wrapper they are relative.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from sparkmirror.errors import CorruptBatch
from sparkmirror.records.codecs import ZSTD, decompress_batch
from sparkmirror.records.header import CODEC_MASK, LOG_APPEND_TIME_BIT, Buffer
from sparkmirror.records.records import (
    RECORD_COST_BYTES,
    Carried,
    Limits,
    check_count,
    encode_rest,
)

__all__ = ["LEGACY_LENGTH_MIN", "carry_legacy", "legacy_codec"]

LEGACY_LENGTH_MIN = 14
"""Size field of a magic 0 message with neither key nor value."""
_OVERHEAD_BYTES = 12
_HEAD = struct.Struct(">qiIbB")
_LONG = struct.Struct(">q")
_SIZE = struct.Struct(">i")
_ALL = Limits()
_DAMAGED = "The message is damaged, or its producer wrote it wrongly; it cannot be mirrored."


class _Message(NamedTuple):
    offset: int
    end: int
    magic: int
    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None


def legacy_codec(message: Buffer) -> int:
    """Codec number of one whole message; if it is not 0, the message wraps others."""
    return message[17] & CODEC_MASK


def carry_legacy(message: memoryview, into: Carried, limits: Limits = _ALL) -> None:
    """Append the records of one whole message; for a wrapper, those of its inner messages.

    Only records within ``limits`` are taken. Magic 0 has no timestamp: -1. Raises CorruptBatch
    (with ``limits.check_crcs`` also for a wrong checksum) or UnknownCodec.
    """
    outer = _read(message, 0, limits.check_crcs)
    codec = outer.attributes & CODEC_MASK
    if codec == 0:
        messages = [outer]
        shift = 0
    else:
        messages = _unwrap(outer, codec, limits, into)
        shift = outer.offset - messages[-1].offset if outer.magic == 1 else 0
    appended = outer.magic == 1 and outer.attributes & LOG_APPEND_TIME_BIT
    previous = -1
    for inner in messages:
        offset = inner.offset + shift
        if not previous < offset <= outer.offset:
            raise _corrupt(outer.offset, f"holds offset {offset} after {previous}")
        previous = offset
        if limits.first_offset <= offset < limits.end_offset:
            into.offsets.append(offset)
            into.timestamps.append(outer.timestamp if appended else inner.timestamp)
            into.attributes.append(0)
            into.rests.append(encode_rest(inner.key, inner.value))


def _unwrap(outer: _Message, codec: int, limits: Limits, into: Carried) -> list[_Message]:
    if outer.value is None or codec >= ZSTD:
        raise _corrupt(outer.offset, f"has codec {codec} and no message set that could have it")
    messages: list[_Message] = []
    inside = memoryview(decompress_batch(codec, outer.value, limits.decompressed_bytes_max))
    at = 0
    while at < len(inside):
        inner = _read(inside, at, limits.check_crcs)
        if inner.magic != outer.magic or inner.attributes & CODEC_MASK:
            raise _corrupt(outer.offset, f"wraps magic {inner.magic} or a wrapper")
        messages.append(inner)
        check_count(outer.offset, len(messages))
        at = inner.end
    into.unpacked_bytes += len(inside) + RECORD_COST_BYTES * len(messages)
    if not messages:
        raise _corrupt(outer.offset, "wraps no message")
    return messages


def _read(data: memoryview, at: int, check_crcs: bool) -> _Message:
    if len(data) - at < _OVERHEAD_BYTES + LEGACY_LENGTH_MIN:
        raise _corrupt(-1, f"has {len(data) - at} bytes left for a message")
    offset, size, crc, magic, attributes = _HEAD.unpack_from(data, at)
    end = at + _OVERHEAD_BYTES + size
    if size < LEGACY_LENGTH_MIN + 8 * magic or end > len(data) or magic not in {0, 1}:
        raise _corrupt(offset, f"has magic {magic} and size {size}")
    if check_crcs and zlib.crc32(data[at + 16 : end]) != crc:
        raise _corrupt(offset, "does not match its CRC-32")
    timestamp: int = -1
    field_at = at + _HEAD.size
    if magic == 1:
        timestamp = _LONG.unpack_from(data, field_at)[0]
        field_at += 8
    key, field_at = _field(data, field_at, end, offset)
    value, field_at = _field(data, field_at, end, offset)
    if field_at != end:
        raise _corrupt(offset, f"has {end - field_at} bytes after its value")
    return _Message(offset, end, magic, attributes, timestamp, key, value)


def _field(data: memoryview, at: int, end: int, offset: int) -> tuple[memoryview | None, int]:
    size: int = _SIZE.unpack_from(data, at)[0] if at + 4 <= end else -2
    at += 4
    if size == -1:
        return None, at
    if size < 0 or at + size > end:
        raise _corrupt(offset, f"has a field of {size} bytes")
    return data[at : at + size], at + size


def _corrupt(offset: int, what: str) -> CorruptBatch:
    return CorruptBatch(f"The message at offset {offset} {what}.", do=_DAMAGED)
