"""The rows that travel from the source workers through Spark to the sink workers.

=========  =====================  ===============================================================
column     type                   what
=========  =====================  ===============================================================
chunks     array<struct>          index of the records: one entry per source partition
records    binary                 raw record batches; each chunk says where its bytes start
notes      string                 JSON from the source slot to the sink: who it is, halts, errors
=========  =====================  ===============================================================

One row is what one Fetch response brought for all its partitions, so the cost per row is shared.
``records`` usually is the receive buffer itself; the bytes between chunks mean nothing.

A row with nothing in it is a **flush row**: Spark's iterators look one row ahead at each of two
hops, so a row leaves only when later rows push it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["ARROW_SCHEMA", "FLUSH", "SCHEMA", "Chunk", "build_row", "read_chunks"]

SCHEMA = (
    "chunks array<struct<"
    "topic: string, partition: int, remote_topic: string, "
    "base_offset: bigint, next_offset: bigint, record_count: int, "
    "timestamp_ms: bigint, start: int, size: int"
    ">>, records binary, notes string"
)

_CHUNK = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("remote_topic", pa.string()),
        ("base_offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("record_count", pa.int32()),
        ("timestamp_ms", pa.int64()),
        ("start", pa.int32()),
        ("size", pa.int32()),
    ]
)
_CHUNKS = pa.list_(pa.field("element", _CHUNK))
ARROW_SCHEMA = pa.schema([("chunks", _CHUNKS), ("records", pa.binary()), ("notes", pa.string())])
_OFFSETS = struct.Struct("<ii")
_TYPES = [_CHUNK.field(i).type for i in range(_CHUNK.num_fields)]
_NAMES = [_CHUNK.field(i).name for i in range(_CHUNK.num_fields)]

FLUSH: pa.RecordBatch = pa.RecordBatch.from_arrays(
    [pa.nulls(1, field.type) for field in ARROW_SCHEMA], schema=ARROW_SCHEMA
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One source partition's share of a row.

    ``size`` bytes of raw batches from ``start`` in ``records``, which hold ``record_count`` records,
    the first at source offset ``base_offset``. With them the partition is mirrored up to
    ``next_offset``: dropped control, aborted and empty batches are counted in, so a chunk may have
    no bytes. ``timestamp_ms`` is the largest record timestamp, -1 when there is none.
    """

    topic: str
    partition: int
    remote_topic: str
    base_offset: int
    next_offset: int
    record_count: int
    timestamp_ms: int
    start: int
    size: int


def build_row(
    chunks: Sequence[Chunk],
    frame: memoryview,
    pieces: Sequence[Sequence[memoryview | bytes]],
    notes: str | None = None,
) -> pa.RecordBatch:
    """One row. ``pieces[i]`` are the bytes of ``chunks[i]``; their ``start`` is filled in here.

    When all pieces are views into ``frame`` (the receive buffer) and leave little of it unused,
    the row carries the frame itself, not a copy.
    """
    starts, data = _layout(frame, pieces)
    columns: list[list[Any]] = [
        [chunk.topic for chunk in chunks],
        [chunk.partition for chunk in chunks],
        [chunk.remote_topic for chunk in chunks],
        [chunk.base_offset for chunk in chunks],
        [chunk.next_offset for chunk in chunks],
        [chunk.record_count for chunk in chunks],
        [chunk.timestamp_ms for chunk in chunks],
        starts,
        [chunk.size for chunk in chunks],
    ]
    entries = pa.StructArray.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, _TYPES, strict=True)],
        fields=list(_CHUNK),
    )
    index = pa.ListArray.from_arrays(pa.array([0, len(chunks)], pa.int32()), entries, type=_CHUNKS)
    offsets = pa.py_buffer(_OFFSETS.pack(0, len(data)))
    records = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
    return pa.RecordBatch.from_arrays(
        [index, records, pa.array([notes], pa.string())], schema=ARROW_SCHEMA
    )


def _layout(
    frame: memoryview, pieces: Sequence[Sequence[memoryview | bytes]]
) -> tuple[list[int], pa.Buffer]:
    """(start of each chunk's bytes, the buffer they start in)."""
    spans = _spans(frame, pieces)
    if spans is not None:
        used = [span for span in spans if span is not None]
        if not used:
            return [0] * len(pieces), pa.py_buffer(b"")
        low, high = min(a for a, _ in used), max(b for _, b in used)
        if high - low <= 1.25 * sum(b - a for a, b in used) + 4096:
            starts = [0 if span is None else span[0] - low for span in spans]
            return starts, pa.py_buffer(frame).slice(low, high - low)
    starts, position = [], 0
    for parts in pieces:
        starts.append(position)
        position += sum(map(len, parts))
    return starts, pa.py_buffer(b"".join(part for parts in pieces for part in parts))


def _spans(
    frame: memoryview, pieces: Sequence[Sequence[memoryview | bytes]]
) -> list[tuple[int, int] | None] | None:
    """Each chunk's (start, end) within ``frame``; None when some chunk is not one view of it."""
    if any(len(parts) > 1 or isinstance(part, bytes) for parts in pieces for part in parts):
        return None
    base = pa.py_buffer(frame).address
    spans: list[tuple[int, int] | None] = []
    for parts in pieces:
        if not parts:
            spans.append(None)
            continue
        start = pa.py_buffer(parts[0]).address - base
        if not 0 <= start <= len(frame) - len(parts[0]):
            return None
        spans.append((start, start + len(parts[0])))
    return spans


def read_chunks(batch: pa.RecordBatch, row: int) -> tuple[list[Chunk], memoryview, str | None]:
    """(chunks, records, notes) of one row; empty for a flush row.

    The view keeps the Arrow buffer alive for as long as it is referenced.
    """
    notes = batch.column(2)[row].as_py()
    chunks = batch.column(0)
    scalar = batch.column(1)[row]
    if not chunks.is_valid()[row].as_py() or not scalar.is_valid:
        return [], memoryview(b""), notes
    entries = chunks[row].values
    if not len(entries):
        return [], memoryview(b""), notes
    columns = [entries.field(index).to_pylist() for index in range(len(_NAMES))]
    records = memoryview(scalar.as_buffer())
    return [Chunk(*values) for values in zip(*columns, strict=True)], records, notes
