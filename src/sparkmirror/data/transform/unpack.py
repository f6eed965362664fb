"""The source end of transforms: rows of raw batches in, the same rows and their records out.

The row itself passes as it is: with all its chunks, and with its records in the memory that source
and sink share. If a chunk's topic has a transform, the columns of its records follow, as far as the
SQL uses them. The sink has the raw batches and needs only the results (`data.transform.pack`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkmirror.data.rows.notes import SlotNotes
from sparkmirror.data.rows.rows import Chunk, build_row, in_frame, read_row
from sparkmirror.data.rows.shared_frames import Frames, Reference
from sparkmirror.data.transform.columns import (
    AT,
    HEAD,
    RECORDS,
    TIME_MS_MAX,
    TRANSFORM,
    arrow_schema,
    message_bytes,
)
from sparkmirror.data.transform.portions import keep_freed_memory, portions
from sparkmirror.errors import BatchError
from sparkmirror.names.transforms import Transformed, smts_on_bytes
from sparkmirror.records.header_columns import Int64s
from sparkmirror.records.kept import slices
from sparkmirror.records.key_columns import Scan
from sparkmirror.records.record_fields import (
    Fields,
    Headers,
    Varbin,
    gather,
    header_columns,
    read_headers,
    record_fields,
)
from sparkmirror.settings import FlowSettings

__all__ = ["Unpacker"]

_ROWS_MAX = 4096
_BYTES_MAX = 1 << 20
_REPORT_S = 1.0
_MAPPED_MAX_S, _MAPPED_POLL_S = 1.0, 0.002
_BINARY = pa.binary()
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


class Unpacker:
    """Adds records to the rows of one slot.

    ``columns``: those that each transform uses. ``frames``: where the records of large rows are.
    """

    def __init__(
        self, flow: FlowSettings, columns: Sequence[frozenset[str]], frames: Frames | None
    ) -> None:
        keep_freed_memory()
        self._transformed = Transformed(flow)
        self._smts = [bool(one.steps) for one in flow.transforms]
        on_bytes = smts_on_bytes(flow)
        self._handled = [
            bool(one.handler or smts) for one, smts in zip(flow.transforms, on_bytes, strict=True)
        ]
        self._columns = columns
        self._frames = frames
        self._schema = arrow_schema(columns)
        self._kinds = [(field.name, field.type) for field in self._schema]
        self._message_bytes = message_bytes(flow)
        padding = pa.array([bytes(self._message_bytes), None], pa.binary())
        self._flush = self._batch(2, {RECORDS: padding})
        self._started = False
        self._names = [one.name for one in flow.transforms]
        self._took_s = [0.0] * len(self._names)
        self._reported_s = 0.0
        self._report_at = time.monotonic() + _REPORT_S

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows for ``batches``, the messages of a `SlotReader`.

        Each message ends with a row as large as it takes to push it through Spark, and an empty
        one: Spark looks for the next row before it looks at the size.
        """
        for batch in batches:
            yield from self._report()
            if batch.num_rows and batch.column(0)[0].is_valid:
                yield from self._row(in_frame(batch, self._frames))
            else:
                yield self._flush
            self._wait_for_sink()

    def _row(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The first row of ``batch``, the records of its chunks, and what pushes them through."""
        chunks, records, _, reference = read_row(batch, 0)
        numbered = [
            (chunk, self._transformed.number(chunk.topic) if chunk.size else -1) for chunk in chunks
        ]
        # Of the other chunks the sink has all that it needs.
        wanted = [one for one in numbered if one[1] >= 0 and not self._handled[one[1]]]
        if not wanted and batch.nbytes < self._message_bytes:
            yield self._head(batch, self._flush)  # one message costs less than two
            return
        yield self._head(batch)
        for chunk, number in wanted:
            yield from self._chunk(chunk, self._bytes(records, reference), number)
        yield self._flush

    def _wait_for_sink(self) -> None:
        """After the first row, give the sink time to map the frames, for `in_frame`."""
        if self._started or self._frames is None:
            return
        self._started = True
        deadline = time.monotonic() + _MAPPED_MAX_S
        while self._frames.mappable and not self._frames.shared and time.monotonic() < deadline:
            time.sleep(_MAPPED_POLL_S)

    def _report(self) -> Iterator[pa.RecordBatch]:
        """Once a second, a row that says how long all this took; the sink adds it to its report."""
        now, sum_s = time.monotonic(), sum(self._took_s)
        if now < self._report_at or sum_s == self._reported_s:
            return
        self._report_at, self._reported_s = now + _REPORT_S, sum_s
        notes = SlotNotes(unpacked=dict(zip(self._names, self._took_s, strict=True)))
        yield self._head(build_row([], memoryview(b""), [], notes))

    def _head(self, row: pa.RecordBatch, *behind: pa.RecordBatch) -> pa.RecordBatch:
        """The first of ``row``, which has content, and the rows ``behind``, with all columns."""
        head, records = (row.column(index).slice(0, 1) for index in (0, 1))
        if behind:
            head = pa.concat_arrays([head, *(one.column(HEAD) for one in behind)])
            records = pa.concat_arrays([records, *(one.column(RECORDS) for one in behind)])
        return self._batch(len(head), {HEAD: head, RECORDS: records})

    def _bytes(self, records: memoryview, reference: Reference | None) -> memoryview:
        if reference is None or self._frames is None:
            return records
        # The sink frees the frame only when it has packed these records.
        return self._frames.peek(reference)

    def _chunk(self, chunk: Chunk, records: memoryview, number: int) -> Iterator[pa.RecordBatch]:
        began = time.thread_time()
        try:
            for found in portions(chunk, records[chunk.start : chunk.start + chunk.size]):
                for batch in self._portion(chunk, found, number):
                    self._took_s[number] += time.thread_time() - began
                    yield batch
                    began = time.thread_time()
        except BatchError:
            return  # the sink finds it, too, and stops the partition

    def _portion(self, chunk: Chunk, found: Scan, number: int) -> Iterator[pa.RecordBatch]:
        columns, uses = found.columns, self._columns[number]
        fields = record_fields(found)
        for first, end in _slices(columns.rest_bytes):
            count = end - first
            made = {
                TRANSFORM: pa.array(np.full(count, number, np.int32)),
                AT: pa.array(np.arange(first, end, dtype=np.int32)),
            }
            if "topic" in uses:
                # Single message transforms see the remote topic's name.
                topic = chunk.remote_topic if self._smts[number] else chunk.topic
                made["topic"] = pa.array([topic] * count, pa.string())
            if "partition" in uses:
                made["partition"] = pa.array(np.full(count, chunk.partition, np.int32))
            if "offset" in uses:
                made["offset"] = pa.array(columns.offset[first:end])
            if "timestamp" in uses:
                times = columns.timestamp[first:end]
                micros = np.clip(times, -TIME_MS_MAX, TIME_MS_MAX) * 1000
                made["timestamp"] = pa.array(micros).view(pa.timestamp("us", tz="UTC"))
            if "timestampType" in uses:
                made["timestampType"] = _timestamp_types(chunk, columns.offset[first:end])
            for name, at, sizes in (
                ("key", found.key_at, found.key_bytes),
                ("value", fields.value_at, fields.value_bytes),
            ):
                if name in uses:
                    made[name] = _strings(columns.flat, at[first:end], sizes[first:end])
            if "headers" in uses:
                made["headers"] = _header_column(found, fields, first, end)
            yield self._batch(count, made)

    def _batch(self, rows: int, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        """Rows with ``columns``; all other ones are null."""
        made = []
        for name, kind in self._kinds:
            column = columns.get(name)
            if column is None:
                column = pa.nulls(rows, kind)
            made.append(column if column.type == kind else column.cast(kind))
        return pa.RecordBatch.from_arrays(made, schema=self._schema)


def _timestamp_types(chunk: Chunk, offsets: Int64s) -> pa.Array:
    """0 for the producer's time, 1 for the broker's, as in Kafka."""
    types = np.zeros(len(offsets), np.int32)
    for first, end in chunk.appended:
        types[(offsets >= first) & (offsets < end)] = 1
    return pa.array(types)


def _slices(sizes: Int64s) -> Iterator[tuple[int, int]]:
    """The records in messages of at most `_ROWS_MAX` records and about `_BYTES_MAX` bytes."""
    ends = np.cumsum(sizes)
    first, count = 0, len(sizes)
    while first < count:
        before = int(ends[first - 1]) if first else 0
        end = int(np.searchsorted(ends, before + _BYTES_MAX, "right"))
        end = min(max(end, first + 1), first + _ROWS_MAX, count)
        yield first, end
        first = end


def _strings(flat: npt.NDArray[np.uint8], at: Int64s, sizes: Int64s) -> pa.Array:
    """The strings at ``at`` in ``flat``; null for the size -1."""
    full = np.maximum(sizes, 0)
    data = slices(flat, at, full)
    return _binary(gather(flat, at, sizes) if data is None else Varbin(sizes, data))


def _binary(column: Varbin, kind: pa.DataType = _BINARY) -> pa.Array:
    count = len(column.sizes)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.maximum(column.sizes, 0), out=offsets[1:])
    valid = pa.array(column.sizes >= 0)
    return pa.Array.from_buffers(
        kind,
        count,
        [valid.buffers()[1], pa.py_buffer(offsets), pa.py_buffer(column.data)],
    )


def _header_column(found: Scan, fields: Fields, first: int, end: int) -> pa.Array:
    """The headers of the records ``first`` to ``end``; null for those that cannot be read."""
    read = header_columns(found, fields, first, end)
    # Other names than ASCII ones may be no UTF-8, which Arrow's strings have to be.
    if read is None or bool((read.names.data > 0x7F).any()):
        return _headers(read_headers(found, fields, first, end))
    offsets = np.zeros(len(read.counts) + 1, np.int32)
    np.cumsum(read.counts, out=offsets[1:])
    pairs = pa.StructArray.from_arrays(
        [_binary(read.names, pa.string()), _binary(read.values)], fields=list(_HEADER)
    )
    return pa.ListArray.from_arrays(pa.array(offsets), pairs)


def _headers(records: Sequence[Headers | None]) -> pa.Array:
    return pa.array(
        [
            None
            if headers is None
            else [
                {"key": name.decode("utf-8", "replace"), "value": value} for name, value in headers
            ]
            for headers in records
        ],
        pa.list_(_HEADER),
    )
