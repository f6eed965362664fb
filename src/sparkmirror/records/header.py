"""Record batches, magic 2: the header, and how the sink cuts and stamps batches.

Sans-IO. Nothing here reads past the 61-byte header, because a batch that is only carried is
never decoded. The checksum decides which changes are cheap. CRC-32C covers bytes 21 to the end: so
base offset (0..7), length (8..11) and leader epoch (12..15) can change at no cost, while a new
producer id costs one pass of the checksum over the batch (16 GB/s).

::

     0 base offset i64      16 magic i8               27 base timestamp i64   53 base sequence i32
     8 length i32           17 crc u32 (21 … end)     35 max timestamp i64    57 record count i32
    12 leader epoch i32     21 attributes i16         43 producer id i64      61 records
                            23 last offset delta i32  51 producer epoch i16

Attributes: bits 0..2 codec, 3 log append time, 4 transactional, 5 control, 6 delete horizon.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from crc32c import crc32c

from sparkmirror.errors import CorruptBatch

__all__ = [
    "ATTRIBUTES_AT",
    "BASE_TIMESTAMP_AT",
    "BATCH_BYTES_MAX",
    "CODEC_MASK",
    "CONTROL_BIT",
    "COVERED",
    "CRC_AT",
    "DELETE_HORIZON_BIT",
    "HEADER",
    "HEADER_BYTES",
    "LAST_OFFSET_DELTA_AT",
    "LENGTH_AT",
    "LENGTH_MIN",
    "LOG_APPEND_TIME_BIT",
    "LOG_OVERHEAD_BYTES",
    "MAGIC_AT",
    "MAX_TIMESTAMP_AT",
    "RECORD_COUNT_AT",
    "TRANSACTIONAL_BIT",
    "Buffer",
    "Passing",
    "base_offset",
    "batches",
    "codec",
    "last_offset_delta",
    "max_timestamp_ms",
    "record_count",
    "seal",
    "split",
    "stamp",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

Passing: TypeAlias = tuple[int, int, int, int]
"""A batch in a run of batches: (start, end, base timestamp, number of records)."""

HEADER = struct.Struct(">qiibIhiqqqhii")
"""The whole header, in the order of the table above."""
COVERED = struct.Struct(">hiqqqhii")
"""The part of the header under the checksum: attributes to record count."""
HEADER_BYTES = HEADER.size
LENGTH_AT = 8
LOG_OVERHEAD_BYTES = 12
"""Base offset and length: the length field does not count them."""
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
RECORD_COUNT_AT = 57
LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD_BYTES
"""Length field of a batch without records."""
BATCH_BYTES_MAX = 1 << 30
"""A larger length field counts as damage: brokers' default limit is far smaller."""

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

_LENGTH = struct.Struct(">i")
_PASSING = struct.Struct(">8xi15xq22xi")
_UNCOVERED = struct.Struct(">qiibI")
_KEPT = struct.Struct(">hiqq14xi")


def split(records: memoryview) -> list[tuple[int, int]]:
    """Cut a run of whole batches by length field alone: ``[(start, end), ...]`` in order.

    Raises CorruptBatch when the lengths do not add up to the size of ``records``.
    """
    return [(start, end) for start, end, _, _ in batches(records)]


def batches(records: memoryview) -> list[Passing]:
    """As `split`, with the header fields that a carrier of the batches needs."""
    size = len(records)
    unpack = _PASSING.unpack_from
    cuts: list[Passing] = []
    start = 0
    while start < size:
        if size - start < HEADER_BYTES:
            raise CorruptBatch(
                f"{size - start} bytes are left after byte {start}, less than a batch header.",
                do="Fetch the chunk again.",
            )
        length, first_ms, count = unpack(records, start)
        end = start + LOG_OVERHEAD_BYTES + length
        if length < LENGTH_MIN or end > size:
            raise CorruptBatch(
                f"The batch at byte {start} has length {length}; {size - start} bytes are left.",
                do="Fetch the chunk again.",
            )
        cuts.append((start, end, first_ms, count))
        start = end
    return cuts


def stamp(
    batch: memoryview,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool,
) -> bytes:
    """The 61 header bytes with which ``batch`` is produced; its body is sent unchanged.

    ``batch``: exactly one whole magic 2 batch. Base offset becomes 0 and leader epoch -1, as
    producers write them. The bits for log append time, control and delete horizon are cleared. The
    transactional bit follows ``transactional``. Timestamps, count and codec stay. The caller must
    pass only batches for which this is true: with log append time, the records must contain it.
    """
    attributes, last_delta, base_timestamp, max_timestamp, count = _KEPT.unpack_from(
        batch, ATTRIBUTES_AT
    )
    attributes &= CODEC_MASK
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    covered = COVERED.pack(
        attributes,
        last_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    crc = crc32c(batch[HEADER_BYTES:], crc32c(covered))
    return _UNCOVERED.pack(0, len(batch) - LOG_OVERHEAD_BYTES, -1, 2, crc) + covered


def seal(covered: bytes, body: Buffer, base_offset: int, leader_epoch: int = -1) -> bytes:
    """The 61 header bytes of a new batch, from its ``COVERED`` part and its records."""
    crc = crc32c(body, crc32c(covered))
    return _UNCOVERED.pack(base_offset, LENGTH_MIN + len(body), leader_epoch, 2, crc) + covered


def base_offset(batch: Buffer) -> int:
    """Base offset of the batch, as its log has it."""
    return int.from_bytes(batch[:LENGTH_AT], "big", signed=True)


def codec(batch: Buffer) -> int:
    """Codec number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd (5..7 are undefined)."""
    return batch[ATTRIBUTES_AT + 1] & CODEC_MASK


def last_offset_delta(batch: Buffer) -> int:
    """Last offset minus base offset; at least ``record_count - 1``, more after compaction."""
    return int(_LENGTH.unpack_from(batch, LAST_OFFSET_DELTA_AT)[0])


def max_timestamp_ms(batch: Buffer) -> int:
    """Largest record timestamp (epoch ms, -1 for none); with log append time, that time."""
    return int.from_bytes(batch[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8], "big", signed=True)


def record_count(batch: Buffer) -> int:
    """Number of records that the header states."""
    return int(_LENGTH.unpack_from(batch, RECORD_COUNT_AT)[0])
