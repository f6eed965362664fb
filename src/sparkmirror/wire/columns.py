"""Many batches read at once: their records as numpy columns.

The quick engine of ``join`` reads the k-th records of all batches together, and raises OddError for
anything unusual, which the record-by-record engine then looks at. Both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkmirror.wire.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_MIN,
    LOG_APPEND_TIME_BIT,
    Buffer,
)
from sparkmirror.wire.codecs import decompress_batch
from sparkmirror.wire.heads import Int64s, words_at
from sparkmirror.wire.records import RECORD_BYTES_MIN, Limits

__all__ = ["Columns", "OddError", "TooMuchError", "read_columns", "read_varints"]

_1, _3, _7, _8, _LOW7 = map(np.uint64, (1, 3, 7, 8, 0x7F))


@dataclass(slots=True)
class Columns:
    """Records of many batches: one row each, in source order.

    ``group``: index into the chosen groups; ``rest_at``/``rest_bytes``: where the undecoded part
    stands in ``flat``.
    """

    flat: npt.NDArray[np.uint8]
    group: Int64s
    offset: Int64s
    timestamp: Int64s
    attributes: npt.NDArray[np.uint8]
    rest_at: Int64s
    rest_bytes: Int64s


class OddError(Exception):
    """Internal: something that the record-by-record engine has to look at."""


class TooMuchError(Exception):
    """Internal: with group number ``group`` too much would be unpacked at once."""

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
    """The records of all batches at ``first_bytes``: all packed, or none.

    ``heads``: their headers; ``members``: how many of them, in order, each group has. Raises
    OddError, TooMuchError or BatchError when they cannot be read this way.
    """
    counts = heads["count"].astype(np.int64)
    sizes = heads["length"].astype(np.int64) - LENGTH_MIN
    bits = heads["attributes"].astype(np.int64)
    codec = int(bits[0]) & CODEC_MASK
    if codec == 0:
        flat = np.frombuffer(buffer, np.uint8)
        at = first_bytes + HEADER_BYTES
    else:
        spans = zip(bits.tolist(), first_bytes.tolist(), sizes.tolist(), strict=True)
        bodies = _unpacked(buffer, spans, members.tolist(), limits)
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
        flat = np.frombuffer(b"".join(bodies), np.uint8)
        at = np.cumsum(sizes) - sizes
    if bool(((counts < 1) | (counts > sizes // RECORD_BYTES_MIN)).any()):
        raise OddError
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
    spans: Iterator[tuple[int, int, int]],
    members: Sequence[int],
    limits: Limits,
) -> list[Buffer]:
    """The bodies of the batches at ``spans`` (attribute bits, start, size of body).

    Raises OddError when one group is too much, TooMuchError when all of them are.
    """
    bodies: list[Buffer] = []
    together = 0
    for group, count in enumerate(members):
        joined = 0
        for bit, first, size in islice(spans, count):
            body = buffer[first + HEADER_BYTES : first + HEADER_BYTES + size]
            bodies.append(decompress_batch(bit & CODEC_MASK, body, limits.decompressed_bytes_max))
            joined += len(bodies[-1])
            together += len(bodies[-1])
            if group and together > limits.together_bytes_max:
                raise TooMuchError(group)
            if joined > limits.joined_bytes_max:
                raise OddError
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
    """Records in source order; deltas are empty when all are 0."""

    attributes: npt.NDArray[np.uint8]
    timestamp_delta: Int64s
    offset_delta: Int64s
    rest_at: Int64s
    rest_bytes: Int64s


def _walk_singles(flat: npt.NDArray[np.uint8], at: Int64s, end: Int64s) -> _Walk | None:
    """Batches of one record each whose deltas are 0, as all producers write them; None for others.

    ``at``, ``end``: where each record starts and must end. The eight bytes at ``at`` hold all that
    is needed: a length of one or two bytes, attributes, two deltas of one byte.
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
    """Read the k-th records of all batches together, for each k; raise OddError on any fault."""
    total = int(counts.sum())
    walk = _Walk(
        np.empty(total, np.uint8),
        *(np.empty(total, np.int64) for _ in range(4)),
    )
    row = np.cumsum(counts) - counts
    previous = np.full(len(at), -1, np.int64)
    steps = int(counts.max())
    for step in range(steps):
        length, head = read_varints(flat, at)
        record_end = head + length
        if bool(((length < RECORD_BYTES_MIN - 1) | (record_end > end)).any()):
            raise OddError
        timestamp_delta, offset_at = read_varints(flat, head + 1)
        offset_delta, rest_at = read_varints(flat, offset_at)
        odd = (rest_at > record_end) | (offset_delta <= previous) | (offset_delta > last_delta)
        if bool(odd.any()):
            raise OddError
        walk.attributes[row] = flat[head]
        walk.timestamp_delta[row] = timestamp_delta
        walk.offset_delta[row] = offset_delta
        walk.rest_at[row] = rest_at
        walk.rest_bytes[row] = record_end - rest_at
        done = counts == step + 1
        if bool((record_end[done] != end[done]).any()):
            raise OddError
        if step + 1 < steps:
            more = ~done
            at, end, row, previous = record_end[more], end[more], row[more] + 1, offset_delta[more]
            counts, last_delta = counts[more], last_delta[more]
    return walk


def read_varints(flat: npt.NDArray[np.uint8], at: Int64s) -> tuple[Int64s, Int64s]:
    """Decode the zigzag varints at ``at``; positions past the end read the last byte instead."""
    byte = flat.take(at, mode="clip")
    zigzag = (byte & 0x7F).astype(np.uint64)
    after = at + 1
    longer = np.flatnonzero(byte > 0x7F)
    shift = 7
    while len(longer):
        if shift > 63:
            raise OddError
        byte = flat.take(after[longer], mode="clip")
        zigzag[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[longer] += 1
        longer = longer[byte > 0x7F]
        shift += 7
    value = (zigzag >> _1) ^ (~(zigzag & _1) + _1)
    return value.view(np.int64), after
