"""Joins a few batches of one record each, as a producer without linger writes them.

With thousands of small responses per second, deciding about each batch (`batch_decisions`) and then
reading it (`rebatch`) takes most of a slot's processor time. Here one loop does both for the
simplest batches. If a response has any other batch, the general path handles it; the result is the
same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from sparkmirror.records.header import ATTRIBUTES_AT, HEADER_BYTES
from sparkmirror.records.records import RECORD_BYTES_MIN, Carried

__all__ = ["SINGLES_MAX", "read_singles"]

SINGLES_MAX = 200
"""With twice as many batches, columns are faster (`batch_decisions`)."""

# Base offset, magic, CRC, attributes, last offset delta, base timestamp, record count.
_HEADER = struct.Struct(">q8xbIhiq22xi")
_SIZE_MIN = HEADER_BYTES + RECORD_BYTES_MIN


def read_singles(
    buffer: memoryview,
    starts: Sequence[int],
    *,
    first_offset: int,
    end_offset: int,
    size_max: int,
    check_crcs: bool,
) -> Carried | None:
    """The records of the batches at ``starts``, whose last entry is the end of the last batch.

    None unless each batch is plain (`records.batch_decisions`), smaller than ``size_max`` bytes,
    uncompressed, without any attribute, and has one record with deltas of 0.
    """
    carried = Carried()
    offsets, timestamps = carried.offsets, carried.timestamps
    attributes, rests = carried.attributes, carried.rests
    unpack = _HEADER.unpack_from
    expected = max(first_offset, 0)
    start = starts[0]
    for end in starts[1:]:
        if not _SIZE_MIN <= end - start < size_max:
            return None
        base, magic, crc, bits, last_delta, timestamp, count = unpack(buffer, start)
        if (
            magic != 2
            or bits
            or last_delta
            or count != 1
            or not expected <= base < end_offset
            or (check_crcs and crc32c(buffer[start + ATTRIBUTES_AT : end]) != crc)
        ):
            return None
        at = start + HEADER_BYTES
        zigzag = buffer[at]
        if zigzag > 0x7F:
            at += 1
            if buffer[at] > 0x7F:
                return None
            zigzag = zigzag & 0x7F | buffer[at] << 7
        at += 1
        # The record's length. After its attributes follow the deltas of timestamp and offset.
        if zigzag != 2 * (end - at) or buffer[at + 1] or buffer[at + 2]:
            return None
        offsets.append(base)
        timestamps.append(timestamp)
        attributes.append(buffer[at])
        rests.append(buffer[at + 3 : end])
        expected = base + 1
        start = end
    return carried
