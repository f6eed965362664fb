"""The records of raw batches that a transform keeps, as new batches.

A batch of which all records stay as they are passes as it is, apart from its base offset, which no
checksum covers. Of the others, the kept records are cut out as bytes, numbered anew and compressed
once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkmirror.errors import Defect
from sparkmirror.records.header import CODEC_MASK, LOG_APPEND_TIME_BIT
from sparkmirror.records.header_columns import Int64s
from sparkmirror.records.key_columns import Origin, Scan
from sparkmirror.records.partitioner import write_partitioned
from sparkmirror.records.record_fields import taken

__all__ = ["Flags", "kept_batches", "slices"]

Flags = npt.NDArray[np.bool_]
"""One flag per record, or per batch."""

# Batches that are smaller by both measures are joined with what is written again: each batch costs
# the sink and the target's brokers.
_PASSING_BYTES_MIN, _PASSING_UNPACKED_BYTES_MIN = 4096, 16 * 1024
# Below, numpy's few steps for all records cost less than Arrow's one for each.
_SLICE_BYTES_MIN = 128
_BASE_OFFSET = struct.Struct(">q")


def kept_batches(
    found: Scan,
    kept: Flags,
    *,
    batch_bytes: int,
    touched: Flags | None = None,
    written: Callable[[], Scan] | None = None,
    codec: int = -1,
) -> list[bytes | memoryview]:
    """Batches of the records of ``found`` for which ``kept`` is true, as pieces to be joined.

    ``found``: with its origin. The offsets of the records count from 0, without gaps. Records of
    batches that do not pass become batches of about ``batch_bytes`` at most. ``touched``: records
    that are not as they were; None for none. ``written``: gives the kept records as they are now;
    None if these are the same. ``codec``: of all batches; -1 for those of the source.
    """
    origin = found.origin
    if origin is None:
        raise Defect("the batches of these records are not known")
    if not kept.any():
        return []
    counts = origin.heads["count"].astype(np.int64)
    full = np.flatnonzero(counts)
    counts = counts[full]
    begins = np.cumsum(counts) - counts
    same = kept if touched is None else kept & ~touched
    passing = _passing(found, origin, full, begins, counts, same)
    if codec >= 0:
        passing &= (origin.heads["attributes"][full].astype(np.int64) & CODEC_MASK) == codec
    held = np.add.reduceat(kept, begins, dtype=np.int64)
    first_numbers = np.cumsum(held) - held
    pieces: dict[int, list[bytes | memoryview]] = {}
    for batch in np.flatnonzero(passing).tolist():
        base = _BASE_OFFSET.pack(int(first_numbers[batch]))
        after = int(origin.starts[full[batch]]) + _BASE_OFFSET.size
        pieces[batch] = [base, origin.buffer[after : int(origin.ends[full[batch]])]]
    if not passing.all():
        new = taken(found, kept) if written is None else written()
        _write(new if codec < 0 else replace(new, codec=codec), passing, held, batch_bytes, pieces)
    return [piece for batch in sorted(pieces) for piece in pieces[batch]]


def _passing(
    found: Scan, origin: Origin, full: Int64s, begins: Int64s, counts: Int64s, same: Flags
) -> Flags:
    """Which of the batches ``full`` pass as they are: those with nothing but records ``same``.

    Their records are numbered without gaps, as a target's broker demands, and hold their own time.
    """
    heads = origin.heads[full]
    numbers = np.arange(len(same)) - np.repeat(begins, counts)
    passing: Flags = np.logical_and.reduceat(same & (origin.deltas == numbers), begins)
    passing &= heads["last_offset_delta"].astype(np.int64) == counts - 1
    passing &= (heads["attributes"].astype(np.int64) & LOG_APPEND_TIME_BIT) == 0
    if not passing.all():
        sizes = (origin.ends - origin.starts)[full]
        unpacked = np.add.reduceat(found.columns.rest_bytes, begins)
        passing &= (sizes >= _PASSING_BYTES_MIN) | (unpacked >= _PASSING_UNPACKED_BYTES_MIN)
    return passing


def _write(
    new: Scan,
    passing: Flags,
    held: Int64s,
    batch_bytes: int,
    pieces: dict[int, list[bytes | memoryview]],
) -> None:
    """Write the records of the batches that do not pass; adds them to ``pieces``.

    ``new``: all kept records. ``held``: how many of them each batch has. Neighbours are joined:
    their batches are at the number of the first of them.
    """
    columns = replace(new.columns, offset=np.arange(len(new.columns.offset)))
    numbered = replace(new, columns=columns, origin=None)
    # The number of the first batch since the last one that passes.
    begins = ~passing & np.concatenate(([True], passing[:-1]))
    group = np.maximum.accumulate(np.where(begins, np.arange(len(passing)), 0))
    places = np.repeat(group, held)
    if passing.any():
        wanted = np.repeat(~passing, held)
        numbered, places = taken(numbered, wanted), places[wanted]
    if not len(places):
        return
    written = write_partitioned(numbered, places, codec=new.codec, batch_bytes=batch_bytes)
    for data, batch in zip(written.batches, written.partitions, strict=True):
        pieces.setdefault(batch, []).append(data)


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
