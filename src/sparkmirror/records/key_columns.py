"""All records of a run of batches as numpy columns: finds the keys, does not read the values.

`record_offsets` finds where records start. Everything else is computed for all of them at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkmirror.errors import CorruptBatch
from sparkmirror.records.codecs import DECOMPRESSED_BYTES_MAX, decompress
from sparkmirror.records.columns import Columns, read_fields
from sparkmirror.records.header import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    Buffer,
    split,
)
from sparkmirror.records.header_columns import Int64s, gather_heads
from sparkmirror.records.record_offsets import IrregularRecordError, read_varints, record_starts
from sparkmirror.records.records import RECORD_BYTES_MIN, RECORD_COST_BYTES, check_count

__all__ = ["COST_BYTES_MAX", "Origin", "Scan", "scan", "scans"]

COST_BYTES_MAX = 64 << 20
"""Memory that the batches of one portion may take, unless it is a single batch."""


@dataclass(slots=True)
class Origin:
    """The batches from which a `Scan` was read.

    ``buffer``: what holds them, from ``starts`` to before ``ends``. ``heads``: their headers.
    ``deltas``: each record's offset delta.
    """

    buffer: memoryview
    starts: Int64s
    ends: Int64s
    heads: npt.NDArray[np.void]
    deltas: Int64s


@dataclass(slots=True)
class Scan:
    """The records of some batches, in order.

    ``columns``: the form that `encode_columns.encode_columns` writes. ``key_at``, ``key_bytes``:
    position and size of each key in ``columns.flat``; the size is -1 for no key. ``codec``: the
    first batch's. ``last``: no portion follows. ``origin``: None if these are not all records of
    some batches as they are.
    """

    columns: Columns
    key_at: Int64s
    key_bytes: Int64s
    codec: int
    last: bool = True
    origin: Origin | None = None


def scan(buffer: memoryview) -> Scan:
    """Read ``buffer``, batches of our own, at once. Raises `BatchError` for damage."""
    (found,) = scans(buffer, cost_bytes_max=sys.maxsize)
    return found


def scans(buffer: memoryview, *, cost_bytes_max: int = COST_BYTES_MAX) -> Iterator[Scan]:
    """Read ``buffer``: whole magic 2 batches, at least one. Raises `BatchError` for damage.

    Uncompressed batches are one portion. A portion of compressed ones has as many batches as
    decompress to ``cost_bytes_max``, including the memory that their records cost, or a single
    batch. So memory is bounded, whatever a producer packs, if the caller drops a portion before it
    takes the next one.
    """
    cuts = split(buffer)
    heads = gather_heads(buffer, np.array([start for start, _ in cuts], np.int64))
    bits = heads["attributes"].astype(np.int64)
    if not (bits & CODEC_MASK).any():
        flat = np.frombuffer(buffer, np.uint8)
        bodies = [(start + HEADER_BYTES, end) for start, end in cuts]
        yield _read(flat, bodies, _Batches(buffer, cuts, heads), last=True)
        return
    first = cost = 0
    parts: list[Buffer] = []
    rows = zip(
        cuts, bits.tolist(), heads["base_offset"].tolist(), heads["count"].tolist(), strict=True
    )
    for index, ((start, end), bit, base, count) in enumerate(rows):
        if bit & CODEC_MASK:
            check_count(base, count)
        body = decompress(
            bit & CODEC_MASK, buffer[start + HEADER_BYTES : end], DECOMPRESSED_BYTES_MAX
        )
        more = len(body) + RECORD_COST_BYTES * max(count, 0)
        if parts and cost + more > cost_bytes_max:
            read = _Batches(buffer, cuts[first:index], heads[first:index])
            yield _read(*_joined(parts), read, last=False)
            first, cost = index, 0
        parts.append(body)
        cost += more
    yield _read(*_joined(parts), _Batches(buffer, cuts[first:], heads[first:]), last=True)


@dataclass(slots=True)
class _Batches:
    """Whole batches: where they are in ``buffer``, and their headers."""

    buffer: memoryview
    cuts: Sequence[tuple[int, int]]
    heads: npt.NDArray[np.void]


def _joined(parts: list[Buffer]) -> tuple[npt.NDArray[np.uint8], list[tuple[int, int]]]:
    """The bodies as one array, and where each of them is. Empties ``parts``."""
    bodies, size = [], 0
    for body in parts:
        bodies.append((size, size + len(body)))
        size += len(body)
    flat = np.frombuffer(b"".join(parts), np.uint8)
    parts.clear()
    return flat, bodies


def _read(
    flat: npt.NDArray[np.uint8],
    bodies: list[tuple[int, int]],
    batches: _Batches,
    *,
    last: bool,
) -> Scan:
    """The records of ``batches``, whose ``bodies`` are in ``flat``."""
    heads = batches.heads
    bits = heads["attributes"].astype(np.int64)
    counts = heads["count"].astype(np.int64)
    begins = np.array([begin for begin, _ in bodies], np.int64)
    ends = np.array([end for _, end in bodies], np.int64)
    bases = heads["base_offset"].tolist()
    for begin, end, count, base in zip(
        begins.tolist(), ends.tolist(), counts.tolist(), bases, strict=True
    ):
        if not 0 <= count <= (end - begin) // RECORD_BYTES_MIN or (not count and begin != end):
            raise _corrupt(base)
    full = np.flatnonzero(counts)
    try:
        at = record_starts(flat, begins[full], ends[full], counts[full])
        return _columns(flat, at, batches, counts, bits, last=last)
    except IrregularRecordError:
        for batch in full.tolist():  # find the first one that cannot be read
            one = slice(batch, batch + 1)
            try:
                record_starts(flat, begins[one], ends[one], counts[one])
            except IrregularRecordError:
                raise _corrupt(bases[batch]) from None
        raise _corrupt(bases[0]) from None


def _columns(
    flat: npt.NDArray[np.uint8],
    at: Int64s,
    batches: _Batches,
    counts: Int64s,
    bits: Int64s,
    *,
    last: bool,
) -> Scan:
    heads = batches.heads
    fields = read_fields(flat, at)
    key_bytes, key_at = read_varints(flat, fields.rest_at)
    if bool(
        (
            (fields.end - at < RECORD_BYTES_MIN)
            | (fields.end > len(flat))
            | (key_bytes < -1)
            # A size may be as large as an int64: nothing is added to it.
            | (np.maximum(key_bytes, 0) >= fields.end - key_at)
        ).any()
    ):
        raise IrregularRecordError
    batch = np.repeat(np.arange(len(counts)), counts)
    timestamp = heads["base_timestamp"].astype(np.int64)[batch] + fields.timestamp_delta
    appended = (bits & LOG_APPEND_TIME_BIT) != 0
    if appended.any():
        latest = heads["max_timestamp"].astype(np.int64)
        timestamp = np.where(appended[batch], latest[batch], timestamp)
    columns = Columns(
        flat,
        np.zeros(len(at), np.int64),
        heads["base_offset"].astype(np.int64)[batch] + fields.offset_delta,
        timestamp,
        fields.attributes,
        fields.rest_at,
        fields.end - fields.rest_at,
    )
    starts, ends = np.array(batches.cuts, np.int64).T
    origin = Origin(batches.buffer, starts, ends, heads, fields.offset_delta)
    return Scan(columns, key_at, key_bytes, int(bits[0]) & CODEC_MASK, last, origin)


def _corrupt(base_offset: int) -> CorruptBatch:
    return CorruptBatch(
        f"The records of the batch at offset {base_offset} cannot be read.",
        do="The batch is damaged, or its producer wrote it wrongly; it cannot be mirrored.",
    )
