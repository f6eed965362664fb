"""Writes columns of records as new batches: joined, renumbered, with relative timestamps.

The fields before a record's rest nearly always fit into eight bytes. Then they are computed as one
64-bit word per record. A few ``numpy`` assignments copy the rests of all records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkmirror.records.codecs import LEVELS, compress
from sparkmirror.records.columns import Columns
from sparkmirror.records.header import COVERED, seal
from sparkmirror.records.header_columns import (
    Int64s,
    Uint64s,
    items_at,
    merge_runs,
    scratch,
    words_at,
)

__all__ = [
    "EncodedBatch",
    "copy_items",
    "encode_columns",
    "varint_sizes",
    "write_varints",
    "zigzag",
]

_1, _2, _3, _7, _8, _LOW7 = map(np.uint64, (1, 2, 3, 7, 8, 0x7F))
_WORD_BYTES = 8


@dataclass(slots=True)
class EncodedBatch:
    """One re-encoded batch; ``data`` is empty if no record was left.

    ``runs``: ``(first source offset, record count)``, in order. ``unpacked_bytes``: what its
    records took in memory when they were read, if `rebatch.join_batches` wrote it; otherwise 0.
    """

    data: bytes
    runs: list[tuple[int, int]]
    record_count: int
    timestamp_ms_max: int
    unpacked_bytes: int = 0


_NOTHING = EncodedBatch(b"", [], 0, -1)


def encode_columns(
    columns: Columns, codecs: Sequence[int], levels: Sequence[int] = LEVELS
) -> list[EncodedBatch]:
    """One batch for each group (``codecs`` is in group order), empty if no record was left.

    ``levels``: compression level by codec.
    """
    if not len(columns.group):
        return [_NOTHING for _ in codecs]
    records = np.bincount(columns.group, minlength=len(codecs))
    begin = np.cumsum(records) - records
    full = np.flatnonzero(records)
    base = np.zeros(len(codecs), np.int64)
    base[full] = columns.timestamp[begin[full]]
    times = zigzag(columns.timestamp - np.repeat(base, records))
    places = zigzag(np.arange(len(columns.group)) - np.repeat(begin, records))
    prefix = _prefix_words(columns, times, places)
    if prefix is None:
        out, after = _write_long(columns, times, places)
    else:
        words, words_bytes = prefix
        after = np.cumsum(words_bytes + columns.rest_bytes)
        rest_at = after - columns.rest_bytes
        out = scratch(int(after[-1]) + _WORD_BYTES)
        # A word's unused bytes overwrite what follows. That is written later: the next word
        # (numpy assigns in index order), or the rests.
        words_at(out)[rest_at - words_bytes] = words
        copy_items(columns.flat, columns.rest_at, out, rest_at, columns.rest_bytes)
    body_ends = np.concatenate(([0], after))[np.cumsum(records)]
    return _assemble(
        columns, codecs, levels, records=records, begin=begin, body_ends=body_ends, out=out
    )


def zigzag(values: Int64s) -> npt.NDArray[np.uint64]:
    """The numbers whose varints stand for ``values`` in a record."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def varint_sizes(zigzag: npt.NDArray[np.uint64]) -> Int64s:
    """Size in bytes of each varint; at least one number."""
    sizes = np.ones(len(zigzag), np.int64)
    most = int(zigzag.max())
    limit = 0x80
    while limit <= most:
        sizes += zigzag >= np.uint64(limit)
        limit <<= 7
    return sizes


def _prefix_words(
    columns: Columns, times: Uint64s, places: Uint64s
) -> tuple[Uint64s, Int64s] | None:
    """Length, attributes and both deltas of each record as a little-endian word, and their sizes.

    Sizes are in bytes. None if a record may need more than eight bytes: two for the length, one
    for the attributes, two for the smaller delta and three for the other.
    """
    times_most, places_most = int(times.max()), int(places.max())
    rest_most = int(columns.rest_bytes.max())
    least, most = sorted((times_most, places_most))
    if least >= 1 << 14 or most >= 1 << 21 or 2 * (rest_most + 6) >= 1 << 14:
        return None
    times_word, times_bytes = _varint_words(times, times_most)
    places_word, places_bytes = _varint_words(places, places_most)
    deltas_bytes = times_bytes + places_bytes
    length = columns.rest_bytes.view(np.uint64) + deltas_bytes + _1
    size_word, size_bytes = _varint_words(length << _1, 2 * (rest_most + 6))
    word = columns.attributes.astype(np.uint64)
    word |= times_word << _8
    word |= places_word << ((times_bytes + _1) << _3)
    word = size_word | (word << (size_bytes << _3))
    return word, (size_bytes + _1 + deltas_bytes).view(np.int64)


def _varint_words(zigzag: Uint64s, most: int) -> tuple[Uint64s, Uint64s]:
    """The varints as words, and their sizes, at most three bytes. ``most``: the largest value."""
    sizes = np.ones(len(zigzag), np.uint64)
    if most < 1 << 7:
        return zigzag, sizes
    low = zigzag & _LOW7
    two = (zigzag >> _7).astype(np.bool_)
    sizes += two
    word = low | (two.astype(np.uint64) << _7) | ((zigzag & np.uint64(0x3F80)) << _1)
    if most >= 1 << 14:
        three = (zigzag >> np.uint64(14)).astype(np.bool_)
        sizes += three
        word |= three.astype(np.uint64) << np.uint64(15)
        word |= (zigzag & np.uint64(0x1FC000)) << _2
    return word, sizes


def _write_long(
    columns: Columns, times: Uint64s, places: Uint64s
) -> tuple[npt.NDArray[np.uint8], Int64s]:
    """The bytes of all records, with varints of any size, and where each record ends."""
    times_bytes, places_bytes = varint_sizes(times), varint_sizes(places)
    length = 1 + times_bytes + places_bytes + columns.rest_bytes
    sizes = zigzag(length)
    sizes_bytes = varint_sizes(sizes)
    after = np.cumsum(sizes_bytes + length)
    at = after - length - sizes_bytes
    out = scratch(int(after[-1]))
    write_varints(out, at, sizes, sizes_bytes)
    attributes_at = at + sizes_bytes
    out[attributes_at] = columns.attributes
    write_varints(out, attributes_at + 1, times, times_bytes)
    places_at = attributes_at + 1 + times_bytes
    write_varints(out, places_at, places, places_bytes)
    copy_items(columns.flat, columns.rest_at, out, places_at + places_bytes, columns.rest_bytes)
    return out, after


def _assemble(
    columns: Columns,
    codecs: Sequence[int],
    levels: Sequence[int],
    *,
    records: Int64s,
    begin: Int64s,
    body_ends: Int64s,
    out: npt.NDArray[np.uint8],
) -> list[EncodedBatch]:
    results: list[EncodedBatch] = []
    body_at = 0
    view = out.data
    for codec, count, first, body_end in zip(
        codecs, records.tolist(), begin.tolist(), body_ends.tolist(), strict=True
    ):
        if not count:
            results.append(_NOTHING)
            continue
        offsets = columns.offset[first : first + count]
        timestamps = columns.timestamp[first : first + count]
        latest = int(timestamps.max())
        covered = COVERED.pack(codec, count - 1, int(timestamps[0]), latest, -1, -1, -1, count)
        body: memoryview | bytes = view[body_at:body_end]
        body_at = body_end
        if codec:
            body = compress(codec, body, levels)
        head = seal(covered, body, int(offsets[0]))
        if int(offsets[-1]) - int(offsets[0]) == count - 1:
            runs = [(int(offsets[0]), count)]
        else:
            runs = merge_runs(offsets, np.ones(count, np.int64))
        results.append(EncodedBatch(b"".join((head, body)), runs, count, latest))
    return results


def write_varints(out: npt.NDArray[np.uint8], at: Int64s, zigzag: Uint64s, sizes: Int64s) -> None:
    """Write the varints, whose ``sizes`` are those of `varint_sizes`, to ``at`` in ``out``."""
    most = int(sizes.max())
    for step in range(most):
        last = sizes == step + 1
        byte = (zigzag & _LOW7).astype(np.uint8)
        byte[~last] |= 0x80
        out[at] = byte
        if step + 1 < most:
            rows = np.flatnonzero(~last)
            at, zigzag, sizes = at[rows] + 1, zigzag[rows] >> _7, sizes[rows]


def copy_items(
    source: npt.NDArray[np.uint8],
    source_at: Int64s,
    target: npt.NDArray[np.uint8],
    target_at: Int64s,
    sizes: Int64s,
) -> None:
    """Copy ``sizes[i]`` bytes from ``source_at[i]`` to ``target_at[i]``, for all i.

    It works like memcpy of a C library: a size between n and 2n is copied as n bytes from the start
    and n bytes up to the end, which overlap. So there are few distinct item sizes.
    """
    least, most = int(sizes.min()), int(sizes.max())
    if least == most:
        items_at(target, most)[target_at] = items_at(source, most)[source_at]
        return
    item = 1 << least.bit_length() - 1
    while item <= most:
        begin, to_begin, tail = source_at, target_at, sizes - item
        if least < item or most >= 2 * item:
            rows = np.flatnonzero((sizes >= item) & (sizes < 2 * item))
            begin, to_begin, tail = begin[rows], to_begin[rows], tail[rows]
        if len(begin):
            from_items, to_items = items_at(source, item), items_at(target, item)
            to_items[to_begin] = from_items[begin]
            to_items[to_begin + tail] = from_items[begin + tail]
        item *= 2
