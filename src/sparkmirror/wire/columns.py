"""Many batches written anew at once: their records as numpy columns.

The quick engine of ``join``: it reads the k-th records of all batches together, and raises OddError
for anything unusual, which the record-by-record engine then looks at. Both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkmirror.wire.batch import (
    CODEC_MASK,
    COVERED,
    HEADER_BYTES,
    LENGTH_MIN,
    LOG_APPEND_TIME_BIT,
    seal,
)
from sparkmirror.wire.codecs import compress, decompress
from sparkmirror.wire.heads import Int64s, items_at, merge_runs
from sparkmirror.wire.records import RECORD_BYTES_MIN, Limits

__all__ = ["Columns", "OddError", "Written", "encode_columns", "read_columns"]


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


@dataclass(slots=True)
class Written:
    """One batch written anew; ``data`` is empty when no record was left."""

    data: bytes
    runs: list[tuple[int, int]]
    record_count: int
    timestamp_ms_max: int


def read_columns(
    buffer: memoryview,
    first_bytes: Int64s,
    heads: npt.NDArray[Any],
    members: Int64s,
    limits: Limits,
) -> Columns:
    """The records of all batches at ``first_bytes``: all packed, or none.

    ``heads``: their headers; ``members``: how many of them, in order, each group has. Raises
    OddError or BatchError when a batch cannot be read this way.
    """
    counts = heads["count"].astype(np.int64)
    sizes = heads["length"].astype(np.int64) - LENGTH_MIN
    bits = heads["attributes"].astype(np.int64)
    codec = int(bits[0]) & CODEC_MASK
    if codec == 0:
        flat = np.frombuffer(buffer, np.uint8)
        at = first_bytes + HEADER_BYTES
    else:
        bodies = [
            decompress(
                bit & CODEC_MASK,
                buffer[first + HEADER_BYTES : first + HEADER_BYTES + size],
                limits.decompressed_bytes_max,
            )
            for bit, first, size in zip(
                bits.tolist(), first_bytes.tolist(), sizes.tolist(), strict=True
            )
        ]
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
        flat = np.frombuffer(b"".join(bodies), np.uint8)
        at = np.cumsum(sizes) - sizes
    if bool(((counts < 1) | (counts > sizes // RECORD_BYTES_MIN)).any()):
        raise OddError
    walk = _walk_records(flat, at, at + sizes, counts, heads["last_offset_delta"].astype(np.int64))
    batch_of = np.repeat(np.arange(len(counts)), counts)
    offset = heads["base_offset"].astype(np.int64)[batch_of] + walk.offset_delta
    appended = (bits & LOG_APPEND_TIME_BIT) != 0
    timestamp = heads["base_timestamp"].astype(np.int64)[batch_of] + walk.timestamp_delta
    if appended.any():
        stamped = heads["max_timestamp"].astype(np.int64)[batch_of]
        timestamp = np.where(appended[batch_of], stamped, timestamp)
    group = np.repeat(np.arange(len(members)), members)[batch_of]
    columns = Columns(
        flat, group, offset, timestamp, walk.attributes, walk.rest_at, walk.rest_bytes
    )
    keep = (offset >= limits.first_offset) & (offset < limits.end_offset)
    return columns if keep.all() else _filtered(columns, keep)


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
    attributes: npt.NDArray[np.uint8]
    timestamp_delta: Int64s
    offset_delta: Int64s
    rest_at: Int64s
    rest_bytes: Int64s


def _walk_records(
    flat: npt.NDArray[np.uint8], at: Int64s, end: Int64s, counts: Int64s, last_delta: Int64s
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
        length, head = _read_varints(flat, at)
        record_end = head + length
        if bool(((length < RECORD_BYTES_MIN - 1) | (record_end > end)).any()):
            raise OddError
        timestamp_delta, offset_at = _read_varints(flat, head + 1)
        offset_delta, rest_at = _read_varints(flat, offset_at)
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


def _read_varints(flat: npt.NDArray[np.uint8], at: Int64s) -> tuple[Int64s, Int64s]:
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
    one = np.uint64(1)
    value = (zigzag >> one) ^ (~(zigzag & one) + one)
    return value.view(np.int64), after


def _zigzag(values: Int64s) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _varint_sizes(zigzag: npt.NDArray[np.uint64]) -> Int64s:
    sizes = np.ones(len(zigzag), np.int64)
    most = int(zigzag.max())
    limit = 0x80
    while limit <= most:
        sizes += zigzag >= np.uint64(limit)
        limit <<= 7
    return sizes


def encode_columns(columns: Columns, codecs: Sequence[int]) -> list[Written]:
    """One batch for each group (codecs in group order), empty where no record was left."""
    records = np.bincount(columns.group, minlength=len(codecs))
    if not len(columns.group):
        return [Written(b"", [], 0, -1) for _ in codecs]
    begin = np.cumsum(records) - records
    full = np.flatnonzero(records)
    base = np.zeros(len(codecs), np.int64)
    base[full] = columns.timestamp[begin[full]]
    times = _zigzag(columns.timestamp - base[columns.group])
    places = _zigzag(np.arange(len(columns.group)) - begin[columns.group])
    times_bytes, places_bytes = _varint_sizes(times), _varint_sizes(places)
    length = 1 + times_bytes + places_bytes + columns.rest_bytes
    sizes = _zigzag(length)
    sizes_bytes = _varint_sizes(sizes)
    record_bytes = sizes_bytes + length
    after = np.cumsum(record_bytes)
    at = after - record_bytes
    out = np.empty(int(after[-1]), np.uint8)
    _write_varints(out, at, sizes, sizes_bytes)
    attributes_at = at + sizes_bytes
    out[attributes_at] = columns.attributes
    _write_varints(out, attributes_at + 1, times, times_bytes)
    places_at = attributes_at + 1 + times_bytes
    _write_varints(out, places_at, places, places_bytes)
    _copy_items(columns.flat, columns.rest_at, out, places_at + places_bytes, columns.rest_bytes)
    body_ends = np.concatenate(([0], after))[np.cumsum(records)]
    return _assemble(columns, codecs, records=records, begin=begin, body_ends=body_ends, out=out)


def _assemble(
    columns: Columns,
    codecs: Sequence[int],
    *,
    records: Int64s,
    begin: Int64s,
    body_ends: Int64s,
    out: npt.NDArray[np.uint8],
) -> list[Written]:
    results: list[Written] = []
    body_at = 0
    view = out.data
    for codec, count, first, body_end in zip(
        codecs, records.tolist(), begin.tolist(), body_ends.tolist(), strict=True
    ):
        if not count:
            results.append(Written(b"", [], 0, -1))
            continue
        offsets = columns.offset[first : first + count]
        timestamps = columns.timestamp[first : first + count]
        latest = int(timestamps.max())
        covered = COVERED.pack(codec, count - 1, int(timestamps[0]), latest, -1, -1, -1, count)
        body: memoryview | bytes = view[body_at:body_end]
        body_at = body_end
        if codec:
            body = compress(codec, body)
        head = seal(covered, body, int(offsets[0]))
        runs = merge_runs(offsets, np.ones(count, np.int64))
        results.append(Written(b"".join((head, body)), runs, count, latest))
    return results


def _write_varints(
    out: npt.NDArray[np.uint8], at: Int64s, zigzag: npt.NDArray[np.uint64], sizes: Int64s
) -> None:
    seven = np.uint64(7)
    rows: npt.NDArray[np.int64] | None = None
    most = int(sizes.max())
    for step in range(most):
        last = sizes == step + 1
        byte = (zigzag & np.uint64(0x7F)).astype(np.uint8)
        byte[~last] |= 0x80
        out[at] = byte
        if step + 1 < most:
            rows = np.flatnonzero(~last)
            at, zigzag, sizes = at[rows] + 1, zigzag[rows] >> seven, sizes[rows]


def _copy_items(
    source: npt.NDArray[np.uint8],
    source_at: Int64s,
    target: npt.NDArray[np.uint8],
    target_at: Int64s,
    sizes: Int64s,
) -> None:
    """Copy ``sizes[i]`` bytes from ``source_at[i]`` to ``target_at[i]``, for all i.

    As a C library's memcpy does it: a size between n and 2n is one item of n bytes from the start
    and one of n bytes up to the end, overlapping. So there are few distinct item sizes.
    """
    item = 1
    most = int(sizes.max())
    while item <= most:
        rows = np.flatnonzero((sizes >= item) & (sizes < 2 * item))
        if len(rows):
            from_items, to_items = items_at(source, item), items_at(target, item)
            begin, to_begin, tail = source_at[rows], target_at[rows], sizes[rows] - item
            to_items[to_begin] = from_items[begin]
            if tail.any():
                to_items[to_begin + tail] = from_items[begin + tail]
        item *= 2
