"""The records of raw batches that a transform keeps, as new batches.

A batch of which all records are kept passes as it is. Of the others, the kept records are cut out
as bytes, numbered anew and compressed once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkmirror.records.header import LOG_APPEND_TIME_BIT
from sparkmirror.records.header_columns import Int64s
from sparkmirror.records.key_columns import Origin, Scan
from sparkmirror.records.partitioner import write_partitioned
from sparkmirror.records.record_fields import chosen

__all__ = ["kept_batches", "slices"]

# Smaller ones are joined: each batch costs the sink and the target's brokers.
_PASSING_BYTES_MIN = 16 * 1024
# Below, numpy's few steps for all records cost less than Arrow's one for each.
_SLICE_BYTES_MIN = 128
_BASE_OFFSET = struct.Struct(">q")


def kept_batches(
    found: Scan, kept: npt.NDArray[np.bool_], *, batch_bytes: int
) -> list[bytes | memoryview]:
    """Batches of the records of ``found`` for which ``kept`` is true, as pieces to be joined.

    ``found``: with its origin. The offsets of the records count from 0, without gaps. Records that
    are cut out become batches of about ``batch_bytes`` at most, in the first batch's codec.
    """
    origin = found.origin
    assert origin is not None  # noqa: S101  (the caller has not changed the records)
    pieces: list[bytes | memoryview] = []
    number = 0
    for first, end, batch in _runs(found, origin, kept):
        if batch >= 0:
            pieces.append(_BASE_OFFSET.pack(number))
            after = int(origin.starts[batch]) + _BASE_OFFSET.size
            pieces.append(origin.buffer[after : int(origin.ends[batch])])
            number += end - first
            continue
        rows = np.zeros(len(kept), np.bool_)
        rows[first:end] = kept[first:end]
        some = chosen(found, rows)
        count = len(some.columns.offset)
        if not count:
            continue
        offsets = np.arange(number, number + count)
        written = write_partitioned(
            replace(some, columns=replace(some.columns, offset=offsets)),
            np.zeros(count, np.int64),
            codec=found.codec,
            batch_bytes=batch_bytes,
        )
        pieces += written.batches
        number += count
    return pieces


def _runs(
    found: Scan, origin: Origin, kept: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, int, int]]:
    """(first record, end, batch) of all records; batch: the one that passes as it is, else -1."""
    counts = origin.heads["count"].astype(np.int64)
    ends = np.cumsum(counts)
    begins = ends - counts
    passed = begin = 0
    for batch in np.flatnonzero(_passing(found, origin, kept, begins, ends)).tolist():
        begin, end = int(begins[batch]), int(ends[batch])
        if begin > passed:
            yield passed, begin, -1
        yield begin, end, batch
        passed = end
    if passed < len(kept):
        yield passed, len(kept), -1


def _passing(
    found: Scan, origin: Origin, kept: npt.NDArray[np.bool_], begins: Int64s, ends: Int64s
) -> npt.NDArray[np.bool_]:
    """Which batches pass as they are: large ones of which all records are kept.

    Their records are numbered without gaps, as a target's broker demands, and hold their own time.
    """
    heads = origin.heads
    counts: Int64s = ends - begins
    before: Int64s = np.concatenate((np.zeros(1, np.int64), np.cumsum(kept)))
    sizes: Int64s = np.concatenate((np.zeros(1, np.int64), np.cumsum(found.columns.rest_bytes)))
    passing: npt.NDArray[np.bool_] = (before[ends] - before[begins] == counts) & (
        sizes[ends] - sizes[begins] >= _PASSING_BYTES_MIN
    )
    passing &= heads["last_offset_delta"].astype(np.int64) == counts - 1
    passing &= (heads["attributes"].astype(np.int64) & LOG_APPEND_TIME_BIT) == 0
    for batch in np.flatnonzero(passing).tolist():
        deltas = origin.deltas[begins[batch] : ends[batch]]
        passing[batch] = np.array_equal(deltas, np.arange(len(deltas)))
    return passing


def slices(flat: npt.NDArray[np.uint8], at: Int64s, sizes: Int64s) -> npt.NDArray[np.uint8] | None:
    """``sizes[i]`` bytes from ``at[i]`` in ``flat``, for all i, one item behind the other.

    None if the items are small, not in order or overlap: `record_fields.gather` takes them then.
    Arrow copies each item once: they and the bytes between them are the items of a column, of which
    every other one is kept.
    """
    count = len(at)
    ends = at + sizes
    if (
        not count
        or int(sizes.sum()) < _SLICE_BYTES_MIN * count
        or int(at[0]) < 0
        or int(ends[-1]) > np.iinfo(np.int32).max
        or bool((at[1:] < ends[:-1]).any())
    ):
        return None
    offsets = np.empty(2 * count, np.int32)
    offsets[::2] = at
    offsets[1::2] = ends
    mask = np.zeros(2 * count - 1, np.bool_)
    mask[::2] = True
    column = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
    )
    data = column.filter(pa.array(mask)).buffers()[2]
    return np.frombuffer(data, np.uint8, int(sizes.sum()))
