"""Reads many batches at once: their records become numpy columns.

This is the fast engine of `rebatch`. It finds where all records start (`record_offsets`) and
decodes the fields before their keys together. If anything is unusual it raises
IrregularRecordError, and the caller reads record by record. Both ways give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkmirror.records.codecs import decompress_batch
from sparkmirror.records.header import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_MIN,
    LOG_APPEND_TIME_BIT,
    Buffer,
)
from sparkmirror.records.header_columns import Int64s, Uint64s, words_at
from sparkmirror.records.record_offsets import IrregularRecordError, read_varints, record_starts
from sparkmirror.records.records import (
    RECORD_BYTES_MIN,
    RECORD_COST_BYTES,
    REST_BYTES_MIN,
    Limits,
    check_count,
)

__all__ = ["Columns", "TooMuchError", "read_columns", "read_fields"]

_1, _2, _3, _7, _8, _LOW7 = map(np.uint64, (1, 2, 3, 7, 8, 0x7F))


@dataclass(slots=True)
class Columns:
    """Records of many batches, one row each, group by group.

    ``group``: index into the chosen groups. ``rest_at``, ``rest_bytes``: position and size of the
    undecoded part in ``flat``.
    """

    flat: npt.NDArray[np.uint8]
    group: Int64s
    offset: Int64s
    timestamp: Int64s
    attributes: npt.NDArray[np.uint8]
    rest_at: Int64s
    rest_bytes: Int64s


class TooMuchError(Exception):
    """Internal: with group number ``group``, too much would be decompressed at once."""

    def __init__(self, group: int) -> None:
        super().__init__(group)
        self.group = group


def read_columns(
    buffer: memoryview,
    first_bytes: Int64s,
    heads: npt.NDArray[Any],
    members: Int64s,
    limits: Limits,
) -> Columns:
    """The records within ``limits`` of all batches at ``first_bytes``.

    ``heads``: their headers. ``members``: number of batches in each group, in order. Raises
    IrregularRecordError, TooMuchError or BatchError if they cannot be read this way.
    """
    counts = heads["count"].astype(np.int64)
    sizes = heads["length"].astype(np.int64) - LENGTH_MIN
    bits = heads["attributes"].astype(np.int64)
    if not bool((bits & CODEC_MASK).any()):
        flat = np.frombuffer(buffer, np.uint8)
        at = first_bytes + HEADER_BYTES
    else:
        spans = zip(
            bits.tolist(), first_bytes.tolist(), sizes.tolist(), counts.tolist(), strict=True
        )
        bodies = _unpacked(buffer, spans, members.tolist(), limits)
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
        flat = np.frombuffer(b"".join(bodies), np.uint8)
        at = np.cumsum(sizes) - sizes
    if bool(((counts < 1) | (counts > sizes // RECORD_BYTES_MIN)).any()):
        raise IrregularRecordError
    offset = heads["base_offset"].astype(np.int64)
    timestamp = heads["base_timestamp"].astype(np.int64)
    group = np.repeat(np.arange(len(members)), members)
    appended = (bits & LOG_APPEND_TIME_BIT) != 0
    latest = heads["max_timestamp"].astype(np.int64)
    walk = _walk_singles(flat, at, at + sizes) if int(counts.max()) == 1 else None
    if walk is None:
        last_delta = heads["last_offset_delta"].astype(np.int64)
        walk = _walk_records(flat, at, at + sizes, counts=counts, last_delta=last_delta)
        batch_of = np.repeat(np.arange(len(counts)), counts)
        offset = offset[batch_of] + walk.offset_delta
        timestamp = timestamp[batch_of] + walk.timestamp_delta
        group, appended, latest = group[batch_of], appended[batch_of], latest[batch_of]
    if appended.any():
        timestamp = np.where(appended, latest, timestamp)
    columns = Columns(
        flat, group, offset, timestamp, walk.attributes, walk.rest_at, walk.rest_bytes
    )
    keep = (offset >= limits.first_offset) & (offset < limits.end_offset)
    return columns if keep.all() else _filtered(columns, keep)


def _unpacked(
    buffer: memoryview,
    spans: Iterator[tuple[int, int, int, int]],
    members: Sequence[int],
    limits: Limits,
) -> list[Buffer]:
    """Decompressed bodies of the batches at ``spans`` (attribute bits, start, body size, records).

    Raises IrregularRecordError if one group exceeds its limit, TooMuchError if all groups together
    do.
    """
    bodies: list[Buffer] = []
    together = 0
    for group, count in enumerate(members):
        joined = 0
        for bit, first, size, records in islice(spans, count):
            check_count(first, records)
            body = buffer[first + HEADER_BYTES : first + HEADER_BYTES + size]
            bodies.append(decompress_batch(bit & CODEC_MASK, body, limits.decompressed_bytes_max))
            cost = len(bodies[-1]) + RECORD_COST_BYTES * max(records, 0)
            joined += cost
            together += cost
            if group and together > limits.together_bytes_max:
                raise TooMuchError(group)
            if joined > limits.joined_bytes_max:
                raise IrregularRecordError
    return bodies


def _filtered(columns: Columns, keep: npt.NDArray[np.bool_]) -> Columns:
    return Columns(
        columns.flat,
        columns.group[keep],
        columns.offset[keep],
        columns.timestamp[keep],
        columns.attributes[keep],
        columns.rest_at[keep],
        columns.rest_bytes[keep],
    )


@dataclass(slots=True)
class _Walk:
    """Records in source order; the deltas are empty if all of them are 0."""

    attributes: npt.NDArray[np.uint8]
    timestamp_delta: Int64s
    offset_delta: Int64s
    rest_at: Int64s
    rest_bytes: Int64s


def _walk_singles(flat: npt.NDArray[np.uint8], at: Int64s, end: Int64s) -> _Walk | None:
    """Batches of one record each with deltas of 0, as all producers write them; None for others.

    ``at``, ``end``: where each record starts and must end. The eight bytes at ``at`` contain all
    fields that are needed: a length of one or two bytes, attributes, two deltas of one byte.
    """
    if int(at[-1]) + 8 > len(flat):
        return None
    word = words_at(flat)[at]
    two = (word >> _7) & _1
    tail = word >> (_8 + (two << _3))
    zigzag = (word & _LOW7) | (((word >> _1) & np.uint64(0x3F80)) * two)
    odd = (zigzag & _1) | (tail & np.uint64(0xFFFF00)) | ((word >> np.uint64(15)) & two)
    head = at + 1 + two.view(np.int64)
    length = (zigzag >> _1).view(np.int64)
    if bool(odd.any()) or bool(((head + length != end) | (length < RECORD_BYTES_MIN - 1)).any()):
        return None
    none = np.zeros(0, np.int64)
    return _Walk(tail.astype(np.uint8), none, none, head + 3, length - 3)


def _walk_records(
    flat: npt.NDArray[np.uint8], at: Int64s, end: Int64s, *, counts: Int64s, last_delta: Int64s
) -> _Walk:
    """All records of the batches; raises IrregularRecordError on any fault."""
    starts = record_starts(flat, at, end, counts)
    fields = read_fields(flat, starts)
    firsts = np.cumsum(counts) - counts
    follow = np.empty(len(starts), np.int64)
    follow[:-1] = starts[1:]
    follow[firsts[1:] - 1] = end[:-1]
    follow[-1] = end[-1]
    rises = np.empty(len(starts), np.bool_)
    rises[1:] = fields.offset_delta[1:] > fields.offset_delta[:-1]
    rises[firsts] = fields.offset_delta[firsts] >= 0
    odd = (fields.end != follow) | (fields.rest_at + REST_BYTES_MIN > follow) | ~rises
    # Deltas rise, so the last one of a batch is its largest.
    if bool(odd.any()) or bool((fields.offset_delta[firsts + counts - 1] > last_delta).any()):
        raise IrregularRecordError
    return _Walk(
        fields.attributes,
        fields.timestamp_delta,
        fields.offset_delta,
        fields.rest_at,
        fields.end - fields.rest_at,
    )


@dataclass(slots=True)
class Fields:
    """The fields before each record's rest, where the rest begins, and where the record ends."""

    attributes: npt.NDArray[np.uint8]
    timestamp_delta: Int64s
    offset_delta: Int64s
    rest_at: Int64s
    end: Int64s


def read_fields(flat: npt.NDArray[np.uint8], starts: Int64s) -> Fields:
    """Decode the records at ``starts`` without checking their values.

    Raises IrregularRecordError if they cannot be decoded at all.
    """
    quick = _fields_of_words(flat, starts)
    if quick is not None:
        return quick
    length, content = read_varints(flat, starts)
    timestamp_delta, offset_at = read_varints(flat, content + 1)
    offset_delta, rest_at = read_varints(flat, offset_at)
    attributes = flat.take(content, mode="clip")
    return Fields(attributes, timestamp_delta, offset_delta, rest_at, content + length)


def _fields_of_words(flat: npt.NDArray[np.uint8], starts: Int64s) -> Fields | None:
    """`Fields` if eight bytes hold each record's fields, at most three per varint; else None.

    Nearly all records are so.
    """
    if not len(starts) or int(starts[-1]) + 8 > len(flat):
        return None
    word = words_at(flat)[starts]
    length, length_bits = _short_varints(word)
    word >>= length_bits
    attributes = word.astype(np.uint8)
    word >>= _8
    timestamp_delta, timestamp_bits = _short_varints(word)
    word >>= timestamp_bits
    offset_delta, offset_bits = _short_varints(word)
    bits = length_bits + timestamp_bits + offset_bits
    # `_short_varints` reports four bytes and more as 32 bits, so no longer varint passes.
    most = max(int(length_bits.max()), int(timestamp_bits.max()), int(offset_bits.max()))
    if most > 24 or int(bits.max()) > 56:
        return None
    head = starts + (length_bits >> _3).view(np.int64)
    return Fields(
        attributes,
        timestamp_delta,
        offset_delta,
        starts + ((bits >> _3).view(np.int64) + 1),
        head + length,
    )


def _short_varints(word: Uint64s) -> tuple[Int64s, Uint64s]:
    """The zigzag varints at the beginning of the words, and the number of bits of each.

    32 bits mean four bytes or more; the value is meaningless then.
    """
    zigzag, bits = word & _LOW7, np.full(len(word), 8, np.uint64)
    two = (word >> _7) & _1
    if two.any():
        zigzag |= ((word >> _1) & np.uint64(0x3F80)) * two
        bits += two << _3
        three = (word >> np.uint64(15)) & two
        if three.any():
            zigzag |= ((word >> _2) & np.uint64(0x1FC000)) * three
            bits += three << _3
            bits += ((word >> np.uint64(23)) & three) << _3
    return ((zigzag >> _1) ^ (~(zigzag & _1) + _1)).view(np.int64), bits
