"""The rows that travel from source workers through Spark to sink workers.

=========  =======  =============================================================================
column     type     what
=========  =======  =============================================================================
head       string   JSON object: ``chunks``, the index of the records, one array per source
                    partition (fields of `Chunk`, in order); ``at``, the frame that holds the
                    records when source and sink share memory (`data.rows.shared_frames`);
                    ``notes`` from source to sink (`data.rows.notes`); and ``number``, that of the
                    row within its task, if some of them do not take the way through Spark
                    (`data.rows.outlet`)
records    binary   raw record batches, unless ``at`` says where they are; each chunk says where its
                    bytes start
=========  =======  =============================================================================

One row holds one Fetch response with all its partitions, which share the cost of the row.
``records`` usually is the receive buffer itself; the bytes between chunks are meaningless. The
index is one string and not an array of structs, because each column of each message costs Spark's
Arrow reader and writer more than the few hundred bytes in it.

A row without content is a **flush row**. Spark sends rows to the sink in pairs
(``spark.sql.execution.arrow.maxRecordsPerBatch=2``), and only when it has seen the row after the
pair. So each row travels in one message with a flush row after it. The flush row stays behind and
becomes the first of the next pair: ``hello | flush flush | row flush | row flush``. Each message
in pushes one message out. The first row of a task travels alone, to start this.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from sparkmirror.data.rows import worker_pipes
from sparkmirror.data.rows.notes import SlotNotes, decode_notes, encode_notes
from sparkmirror.data.rows.shared_frames import Frames, Reference
from sparkmirror.internal_topics.commands import SourcePartition

__all__ = [
    "ARROW_SCHEMA",
    "FLUSH",
    "RUNS_MAX",
    "Chunk",
    "EncodedRow",
    "Numbered",
    "Row",
    "as_message",
    "build_row",
    "chunk_of",
    "decode_row",
    "divided",
    "encode_row",
    "in_frame",
    "is_rehearsal",
    "out",
    "read_numbered",
    "read_row",
    "rehearsal",
]

ARROW_SCHEMA = pa.schema([("head", pa.string()), ("records", pa.binary())])

RUNS_MAX = 1_000
"""If a chunk has more gaps, the sink gets only its last runs of source offsets.

A transform gets all of them: it writes new batches, and stops or divides a chunk at any record.
"""
_OFFSETS = struct.Struct("<iii")
_FIRST_VALID = pa.py_buffer(b"\1")
_EMPTY = pa.py_buffer(b"")
_NOTHING = memoryview(b"")

FLUSH: pa.RecordBatch = pa.RecordBatch.from_arrays(
    [pa.nulls(2, field.type) for field in ARROW_SCHEMA], schema=ARROW_SCHEMA
)
"""Two flush rows: sent when there is no row, but the sink must do a round."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One source partition's share of a row.

    ``size`` bytes of raw batches from ``start`` in ``records`` hold ``record_count`` records, the
    first at source offset ``base_offset``. After them, the partition is mirrored up to
    ``next_offset``. That includes dropped control, aborted and empty batches, so a chunk may have
    no bytes. ``timestamp_ms``: largest record timestamp, -1 for none. ``targets``: the target
    partition of each batch (with its topic, if that is another one); None if all have the source's
    number. ``runs``: the source offsets of the last records as (first offset, records); empty if
    all records are one run from ``base_offset`` on. ``appended``: source offsets as (first, end) of
    records whose timestamp is the broker's; only of topics that a transform processes.
    ``leader_epoch``: of the last record before ``next_offset``; -1: that of the chunk before,
    `position_metadata.LEADER_EPOCH_LOST`: unknown.
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
    leader_epoch: int = -1
    runs: Sequence[Sequence[int]] = ()
    targets: Sequence[Any] | None = None
    appended: Sequence[Sequence[int]] = ()

    @property
    def source_runs(self) -> Sequence[Sequence[int]]:
        """``runs``, or the one run for which an empty ``runs`` stands."""
        return self.runs or ((self.base_offset, self.record_count),)

    def after(self, records: int) -> int:
        """The source offset to continue from after the first ``records`` of them.

        The chunk's first one if ``runs`` does not reach back so far.
        """
        records -= self.record_count - sum(count for _, count in self.source_runs)
        if records < 0:
            return self.base_offset
        for first, count in self.source_runs:
            if records < count:
                return first + records
            records -= count
            if not records:
                return first + count
        return self.next_offset


def chunk_of(plan: SourcePartition, fetch_offset: int, chosen: Any) -> Chunk:
    """The chunk for what was selected from one response (`records.selection.Selection`).

    ``start`` is set later.
    """
    return Chunk(
        plan.topic,
        plan.partition,
        plan.remote_topic,
        chosen.runs[0][0] if chosen.runs else fetch_offset,
        chosen.next_offset,
        chosen.record_count,
        chosen.timestamp_ms_max,
        0,
        chosen.byte_count,
        chosen.leader_epoch,
        chosen.runs[-RUNS_MAX:] if len(chosen.runs) > 1 else (),
    )


def divided(chunk: Chunk, batches: Sequence[tuple[int, int, int, int]], limit: int) -> list[Chunk]:
    """``chunk`` in parts of at most ``limit`` bytes each, or of one batch.

    ``batches``: the batches in its bytes, as (start, end, first timestamp, records). The last part
    ends where the chunk does. The first part has all records before those of which ``runs`` tells.
    """
    # A position between records whose offsets are not known could pass some of them.
    unknown = chunk.record_count - sum(count for _, count in chunk.source_runs)
    ends: list[int] = []  # numbers of batches
    part_start = before = 0
    for number, (start, end, _, records) in enumerate(batches):
        if start > part_start and end - part_start > limit and before > unknown:
            ends.append(number)
            part_start = start
        before += records
    parts: list[Chunk] = []
    first, done, offset = 0, 0, chunk.base_offset
    for last in (*ends, len(batches)):
        taken = batches[first:last]
        records = sum(one[3] for one in taken)
        hidden = max(0, unknown - done)
        runs = _runs(chunk.source_runs, max(0, done - unknown), records - hidden)
        done += records
        next_offset = chunk.after(done) if last < len(batches) else chunk.next_offset
        parts.append(
            replace(
                chunk,
                base_offset=offset if hidden or not runs else runs[0][0],
                next_offset=next_offset,
                record_count=records,
                start=chunk.start + taken[0][0],
                size=taken[-1][1] - taken[0][0],
                runs=runs,
                targets=None if chunk.targets is None else chunk.targets[first:last],
            )
        )
        first, offset = last, next_offset
    return parts


def _runs(runs: Sequence[Sequence[int]], skip: int, records: int) -> list[tuple[int, int]]:
    """The source offsets of ``records`` records after the first ``skip`` of ``runs``."""
    found: list[tuple[int, int]] = []
    for first, count in runs:
        taken = min(max(0, count - skip), records)
        if taken:
            found.append((first + skip, taken))
            records -= taken
        skip = max(0, skip - count)
    return found


def build_row(
    chunks: Sequence[Chunk],
    frame: memoryview,
    pieces: Sequence[Sequence[memoryview | bytes]],
    notes: SlotNotes | None = None,
    frames: Frames | None = None,
) -> pa.RecordBatch:
    """One row and its flush row, as one message. Arguments: as for `encode_row`."""
    return as_message(encode_row(chunks, frame, pieces, notes, frames))


class EncodedRow(NamedTuple):
    """A row on its way: ``head``, a JSON object, and ``records``.

    ``shared``: whether the records are in a frame.
    """

    head: bytes
    records: pa.Buffer
    shared: bool


def encode_row(
    chunks: Sequence[Chunk],
    frame: memoryview,
    pieces: Sequence[Sequence[memoryview | bytes]],
    notes: SlotNotes | None = None,
    frames: Frames | None = None,
    number: int | None = None,
    last: bool = False,
) -> EncodedRow:
    """A row of ``chunks``.

    ``pieces[i]`` are the bytes of ``chunks[i]``; their ``start`` is set here. If all pieces are
    views into ``frame`` (the receive buffer) and leave little of it unused, the row holds the frame
    itself, not a copy. With ``frames``, the row holds a reference if possible. ``number``: of the
    row within its task, where the sink must know it (`data.rows.outlet`); ``last``: none comes
    after it.
    """
    starts, data, reference = _layout(frame, pieces, frames)
    index = [_entry(chunk, start) for chunk, start in zip(chunks, starts, strict=True)]
    fields: dict[str, Any] = {"chunks": index}
    if notes is not None:
        fields["notes"] = encode_notes(notes)
    if reference is not None:
        fields["at"] = reference
    if number is not None:
        fields["number"] = number
    if last:
        fields["last"] = True
    head = json.dumps(fields, separators=(",", ":")).encode()
    return EncodedRow(head, data, reference is not None)


def as_message(row: EncodedRow) -> pa.RecordBatch:
    """``row`` and its flush row, as one message for Spark."""
    head = _column(pa.string(), pa.py_buffer(row.head))
    records = _column(pa.binary(), row.records)
    return pa.RecordBatch.from_arrays([head, records], schema=ARROW_SCHEMA)


def _entry(chunk: Chunk, start: int) -> list[Any]:
    entry = [
        chunk.topic,
        chunk.partition,
        chunk.remote_topic,
        chunk.base_offset,
        chunk.next_offset,
        chunk.record_count,
        chunk.timestamp_ms,
        start,
        chunk.size,
        chunk.leader_epoch,
    ]
    if chunk.appended:
        return [*entry, chunk.runs, chunk.targets, chunk.appended]
    if chunk.targets is not None:
        return [*entry, chunk.runs, list(chunk.targets)]
    return [*entry, chunk.runs] if chunk.runs else entry


def _column(kind: pa.DataType, data: pa.Buffer) -> pa.Array:
    """A column of two rows: the first holds ``data``, the second is null."""
    size = len(data)
    offsets = pa.py_buffer(_OFFSETS.pack(0, size, size))
    return pa.Array.from_buffers(kind, 2, [_FIRST_VALID, offsets, data], null_count=1)


def _layout(
    frame: memoryview, pieces: Sequence[Sequence[memoryview | bytes]], frames: Frames | None
) -> tuple[list[int], pa.Buffer, Reference | None]:
    """(start of each chunk's bytes, the buffer that holds them, the reference if it is shared)."""
    spans = _spans(frame, pieces)
    if spans is not None:
        used = [span for span in spans if span is not None]
        if not used:
            return [0] * len(pieces), _EMPTY, None
        low, high = min(a for a, _ in used), max(b for _, b in used)
        starts = [0 if span is None else span[0] - low for span in spans]
        if frames is not None and frames.holds(frame):
            return starts, _EMPTY, frames.hand_over(low, high - low)
        if high - low <= 1.25 * sum(b - a for a, b in used) + 4096:
            return starts, pa.py_buffer(frame).slice(low, high - low), None
    starts, position = [], 0
    for parts in pieces:
        starts.append(position)
        position += sum(map(len, parts))
    flat = [part for parts in pieces for part in parts]
    reference = None if frames is None else frames.store(flat, position)
    if reference is not None:
        return starts, _EMPTY, reference
    return starts, pa.py_buffer(b"".join(flat)), None


def _spans(
    frame: memoryview, pieces: Sequence[Sequence[memoryview | bytes]]
) -> list[tuple[int, int] | None] | None:
    """Each chunk's (start, end) within ``frame``; None if a chunk is not one view of it."""
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


def in_frame(row: pa.RecordBatch, frames: Frames | None) -> pa.RecordBatch:
    """``row`` with its records in a frame, if they are in the row and `Frames.store` takes them.

    A response that was received before the sink had mapped the frames travels as bytes. With a
    transform, Spark's buffer for a row's records would keep its size, and Spark clears all of it
    after each message, for the whole epoch.
    """
    records = row.column(1)[0].as_buffer()
    if frames is None or records is None:
        return row
    reference = frames.store([memoryview(records).cast("B")], len(records))
    if reference is None:
        return row
    fields = {**json.loads(row.column(0)[0].as_py()), "at": reference}
    head = json.dumps(fields, separators=(",", ":")).encode()
    return pa.RecordBatch.from_arrays(
        [_column(pa.string(), pa.py_buffer(head)), _column(pa.binary(), _EMPTY)],
        schema=ARROW_SCHEMA,
    )


def out(row: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """``row``, and what is needed to make it leave the worker at once."""
    yield row
    if not worker_pipes.flush():
        yield FLUSH
        yield FLUSH


def rehearsal() -> Iterator[pa.RecordBatch]:
    """All rows of a slot without any work: they travel like others, and the sink ignores them."""
    yield build_row([], memoryview(b""), [], SlotNotes(rehearsal=True)).slice(0, 1)
    yield from out(FLUSH)


def is_rehearsal(batch: pa.RecordBatch) -> bool:
    """Whether ``batch``, the first of a task, was made by `rehearsal`."""
    if not batch.num_rows:
        return False
    notes = read_row(batch, 0)[2]
    return notes is not None and notes.rehearsal


Row = tuple[list[Chunk], memoryview, SlotNotes | None, Reference | None]
"""(chunks, records, notes, reference if the records are not in the row). A flush row has none."""


def read_row(batch: pa.RecordBatch, row: int) -> Row:
    """One row of a message.

    The view keeps the Arrow buffer alive for as long as it is referenced. Raises `MachineError` if
    another release wrote the notes.
    """
    return read_numbered(batch, row).row


class Numbered(NamedTuple):
    """A row with its number, None if it has none; ``last``: whether it is the task's last one."""

    number: int | None
    last: bool
    row: Row


def read_numbered(batch: pa.RecordBatch, row: int) -> Numbered:
    """One row of a message, with its number. Raises as `read_row`."""
    head = batch.column(0)[row]
    if not head.is_valid:
        return Numbered(None, False, ([], _NOTHING, None, None))
    records = batch.column(1)[row].as_buffer()
    # Arrow's views are of signed bytes.
    view = _NOTHING if records is None else memoryview(records).cast("B")
    return decode_row(head.as_py(), view)


def decode_row(head: str | bytes, records: memoryview) -> Numbered:
    """The row of which `encode_row` made ``head`` and ``records``. Raises as `read_row`."""
    fields: dict[str, Any] = json.loads(head)
    chunks = [Chunk(*entry) for entry in fields["chunks"]]
    document = fields.get("notes")
    notes = None if document is None else decode_notes(document)
    row = chunks, records, notes, fields.get("at")
    return Numbered(fields.get("number"), fields.get("last", False), row)
