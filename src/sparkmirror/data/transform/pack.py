"""The sink end of transforms: raw batches and the results of their records become new batches.

A row's chunks of transformed topics wait here until the results of their records have arrived. They
come in order, and a portion's number of records says when it is complete: so it also is if every
record was filtered. Then its position moves without records. Records that the SQL leaves as they
are get copied as bytes; only replaced fields come from Spark. If the SQL routes records
(`data.transform.routing`), a chunk has batches for several target partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkmirror.data.rows.rows import ARROW_SCHEMA, Chunk
from sparkmirror.data.transform.failed_records import TRANSFORM_FAILED, FailedRecords
from sparkmirror.data.transform.portions import keep_freed_memory, portions
from sparkmirror.data.transform.reasons import Reasons
from sparkmirror.data.transform.record_handler import RecordHandler
from sparkmirror.data.transform.results import (
    field_of,
    is_valid,
    records_of,
    replaces,
    sql_seconds,
    varbin_of,
    written,
)
from sparkmirror.data.transform.routing import Create, Routed, Router, with_keys
from sparkmirror.data.transform.smts.chain import Chain
from sparkmirror.data.transform.smts.rebuilt import Rebuilt, rebuild
from sparkmirror.errors import BatchError, Defect
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import FaultPolicy
from sparkmirror.names.transforms import Transformed, smts_on_bytes
from sparkmirror.progress import Halt, TransformCounts
from sparkmirror.records.codecs import NAMES as CODECS
from sparkmirror.records.header_columns import Int64s, merge_runs
from sparkmirror.records.kept import kept_batches
from sparkmirror.records.key_columns import Scan
from sparkmirror.records.partitioner import write_partitioned
from sparkmirror.records.record_fields import chosen, record_fields
from sparkmirror.settings import FlowSettings

__all__ = ["Packed", "Packer"]

# Without joining, batches are as large as a Java producer makes them.
_BATCH_BYTES_MIN = 16 * 1024
# A chunk of routed records cannot be divided later: its batches are not in the source's order.
_ROUTED_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Packed:
    """A chunk of new batches, and the records that are missing because the SQL failed on them.

    ``halt``: why the partition stops after the chunk. ``sources``: the source offset of each record
    in the order of the batches, whose own offsets count from 0. ``counts``: what the transform did
    to its records; None if it could not read them, and but for the last of the chunks of a portion.
    """

    chunk: Chunk
    records: memoryview
    failed: tuple[FailedRecords, ...] = ()
    halt: Halt | None = None
    sources: Int64s | None = None
    counts: TransformCounts | None = None


@dataclass(slots=True)
class _Waiting:
    """A chunk of which the records from ``before`` on are not packed yet."""

    chunk: Chunk
    transform: int
    portions: Iterator[Scan]
    before: int


class Packer:
    """Packs the rows of one task. ``reasons``: who knows why the SQL failed on a record.

    ``router``: where routed records go; made here if it is not given, with ``create``.
    ``come_round``: a round of the sink, for handlers that take their time.
    """

    def __init__(
        self,
        flow: FlowSettings,
        reasons: Reasons | None = None,
        router: Router | None = None,
        create: Create | None = None,
        come_round: Callable[[], None] = lambda: None,
    ) -> None:
        keep_freed_memory()
        self._reasons = reasons or Reasons("", flow.name)
        self._transformed = Transformed(flow)
        self._router = router
        if router is None and any(one.routes for one in flow.transforms):
            self._router = Router(flow, create=create)
        self._policy = FaultPolicy(flow.faults)
        self._names = [one.name for one in flow.transforms]
        self._codecs = [
            CODECS.index(one.compression) if one.compression else -1 for one in flow.transforms
        ]
        self._said = [
            f"the {'function' if one.python else 'handler' if one.handler else 'SQL'} of the "
            f"transform {one.name}"
            for one in flow.transforms
        ]
        self._handlers = {
            number: RecordHandler(one, come_round)
            for number, one in enumerate(flow.transforms)
            if one.handler
        }
        self._to_handle: list[_Waiting] = []
        numbered = enumerate(smts_on_bytes(flow))
        self._chains = {number: Chain(smts) for number, smts in numbered if smts}
        self._to_change: list[_Waiting] = []
        self._batch_bytes = max(flow.produce.join_bytes, _BATCH_BYTES_MIN)
        self._waiting: list[_Waiting] = []
        self._portion: Scan | None = None
        self._results: list[pa.Array] = []
        self._count = 0
        self._read_s = 0.0

    def hold(self, chunks: list[Chunk], records: memoryview) -> list[Chunk]:
        """Keep the chunks with transforms until their results come; returns the others."""
        others = []
        for chunk in chunks:
            number = self._transformed.number(chunk.topic) if chunk.size else -1
            if number < 0:
                others.append(chunk)
                continue
            part = records[chunk.start : chunk.start + chunk.size]
            one = _Waiting(chunk, number, portions(chunk, part), chunk.base_offset)
            if number in self._chains:
                self._to_change.append(one)
                continue
            waiting = self._to_handle if number in self._handlers else self._waiting
            waiting.append(one)
        return others

    def parts(self, batch: pa.RecordBatch) -> Iterator[int | Packed]:
        """What a message holds, in order: numbers of rows with chunks or notes, and new chunks.

        The caller must `hold` the chunks of a row before it asks for the next part.
        """
        heads = np.flatnonzero(is_valid(batch.column(0))).tolist()
        # Without SQL in the flow, rows are those of raw batches.
        sql = batch.num_columns > len(ARROW_SCHEMA)
        results = is_valid(batch.column(2)) if sql else np.zeros(batch.num_rows, np.bool_)
        after = 0
        for head in (*heads, batch.num_rows):
            rows = np.flatnonzero(results[after:head])
            if len(rows):
                first, end = after + int(rows[0]), after + int(rows[-1]) + 1
                yield from self._take(batch.slice(first, end - first))
            if head < batch.num_rows:
                yield head
                yield from self._handled()
                yield from self._unreadable()
            after = head + 1

    def finish(self) -> None:
        """Check that nothing waits when a task ends."""
        if self._waiting:
            raise Defect(f"{len(self._waiting)} chunks wait for their records")

    def close(self) -> None:
        """Close the connections."""
        if self._router is not None:
            self._router.close()

    def _unreadable(self) -> Iterator[Packed]:
        """Give up chunks that cannot be read: the source sends no records of these either."""
        while self._waiting and self._portion is None:
            waiting, began_s = self._waiting[0], time.thread_time()
            try:
                found = next(waiting.portions)
                record_fields(found)
            except BatchError as error:
                del self._waiting[0]
                yield _damaged(waiting, error)
            else:
                self._portion = found
            self._read_s += time.thread_time() - began_s

    def _handled(self) -> Iterator[Packed]:
        """The chunks whose records need no SQL: those that go through a handler, and `_changed`."""
        yield from self._changed()
        waiting_ones, self._to_handle = self._to_handle, []
        for waiting in waiting_ones:
            handler, began_s = self._handlers[waiting.transform], time.thread_time()
            try:
                for found in waiting.portions:
                    records = records_of(found)
                    called_s = time.thread_time()
                    self._read_s += called_s - began_s
                    results = handler.results(waiting.chunk, records)
                    handled_s = time.thread_time() - called_s
                    *others, last = self._packed(waiting, found, results, handled_s)
                    yield from (*others, last)
                    if last.halt is not None:
                        break  # the partition is read again from there
                    began_s = time.thread_time()
            except BatchError as error:
                yield _damaged(waiting, error)

    def _changed(self) -> Iterator[Packed]:
        """The chunks of single message transforms on bytes."""
        waiting_ones, self._to_change = self._to_change, []
        for waiting in waiting_ones:
            chain, name = self._chains[waiting.transform], self._names[waiting.transform]
            began_s = time.thread_time()
            try:
                for made in rebuild(
                    *(chain, waiting.portions, waiting.chunk.next_offset, self._batch_bytes)
                ):
                    yield _changed_chunk(waiting, made, name, time.thread_time() - began_s)
                    waiting.before = made.next_offset
                    began_s = time.thread_time()
            except BatchError as error:
                yield _damaged(waiting, error)

    def _take(self, batch: pa.RecordBatch) -> Iterator[Packed]:
        """Results of records, in order."""
        taken = 0
        while taken < batch.num_rows:
            if self._portion is None:
                raise Defect("results arrived for which no chunk waits")
            if batch.column(2)[taken].as_py() != self._count:
                raise Defect(
                    f"result {batch.column(2)[taken].as_py()} arrived instead of {self._count}"
                )
            missing = len(self._portion.columns.offset) - self._count
            more = min(missing, batch.num_rows - taken)
            column = batch.column(3 + self._waiting[0].transform)
            self._results.append(column.slice(taken, more))
            self._count += more
            taken += more
            if more == missing:
                waiting, found = self._waiting[0], self._portion
                results = pa.concat_arrays(self._results)
                self._portion, self._results, self._count = None, [], 0
                if found.last:
                    del self._waiting[0]
                yield from self._packed(waiting, found, results, sql_seconds(results))
                yield from self._unreadable()

    def _packed(
        self, waiting: _Waiting, found: Scan, results: pa.Array, evaluated_s: float
    ) -> Iterator[Packed]:
        """A complete portion as a chunk; if its records are routed, as one or more.

        ``evaluated_s``: how long the evaluation of its records took.
        """
        began_s = time.thread_time()
        chunk = waiting.chunk
        end = chunk.next_offset if found.last else int(found.columns.offset[-1]) + 1
        before, waiting.before = waiting.before, end
        bad, record = np.flatnonzero(~is_valid(results)), field_of(results, "record")
        kept = is_valid(record)
        name = self._names[waiting.transform]
        faults: list[tuple[str, Int64s]] = []
        done, failures = len(results), 0
        if len(bad):
            faults.append((f"{self._said[waiting.transform]} failed on these records", bad))
        halt: Halt | None = None
        routed: Routed | None = None
        if self._router is not None and self._transformed.routes(chunk.topic):
            routed = _route(self._router, chunk, found, kept, record)
            told = f"the transform {name} routes these records wrongly: "
            faults += [(told + one.reason, one.rows) for one in routed.faults]
            if routed.error is not None:
                text = f"{TopicPartition(chunk.topic, chunk.partition)}: {routed.error}"
                halt = Halt(routed.error.code, text, retriable=True)
                end, kept, done = before, np.zeros_like(kept), 0
        failed: list[FailedRecords] = []
        if faults and halt is None:
            if self._policy.bad_record(chunk.topic) == "pause":
                reason, rows = min(faults, key=lambda one: int(one[1][0]))
                first = self._failed(waiting, found, reason, rows[:1], sql=rows is bad)
                end, halt = first.records[0].offset, _halt(chunk, first)
                done, failures = int(rows[0]) + 1, 1
                kept[rows[0] :] = False
            else:
                failed = [
                    self._failed(waiting, found, reason, rows, sql=rows is bad)
                    for reason, rows in faults
                ]
                failures = sum(len(rows) for _, rows in faults)
            for _, rows in faults:
                kept[rows] = False
        new = written(found, kept, record)
        codec = self._codecs[waiting.transform]
        if codec >= 0:
            new = replace(new, codec=codec)
        offsets, count = new.columns.offset, len(new.columns.offset)
        counts = TransformCounts(name, done, count, done - count - failures, failures)
        counts = replace(counts, sql_s=evaluated_s)
        if routed is not None:
            span = chunk, before, end
            destination = routed.destination[kept]
            *others, last = _routed(
                span, new, destination, routed.targets, self._batch_bytes, failed, halt
            )
            yield from others
            yield replace(last, counts=replace(counts, pack_s=self._spent_s(began_s)))
            return
        data = b"".join(self._batches(found, kept, new, record.type, codec)) if count else b""
        part = replace(
            chunk,
            base_offset=int(offsets[0]) if count else before,
            next_offset=end,
            record_count=count,
            timestamp_ms=int(new.columns.timestamp.max()) if count else -1,
            start=0,
            size=len(data),
            runs=merge_runs(offsets, np.ones(count, np.int64)),
        )
        counts = replace(counts, pack_s=self._spent_s(began_s))
        yield Packed(part, memoryview(data), tuple(failed), halt, offsets, counts)

    def _batches(
        self,
        found: Scan,
        kept: npt.NDArray[np.bool_],
        new: Scan,
        record: pa.StructType,
        codec: int,
    ) -> Sequence[bytes | memoryview]:
        """Batches of the records ``new``, which are the kept ones of ``found``, as pieces.

        ``codec``: the transform's own; -1 for none.
        """
        if not replaces(record):
            return kept_batches(
                *(found, kept),
                batch_bytes=self._batch_bytes,
                written=lambda: new,
                codec=codec,
            )
        count = len(new.columns.offset)
        return write_partitioned(
            _numbered(new, np.arange(count)),
            np.zeros(count, np.int64),
            codec=new.codec,
            batch_bytes=self._batch_bytes,
        ).batches

    def _spent_s(self, since_s: float) -> float:
        """Processor time since then, and what it took to read the portion."""
        spent_s, self._read_s = self._read_s + time.thread_time() - since_s, 0.0
        return spent_s

    def _failed(
        self, waiting: _Waiting, found: Scan, reason: str, rows: Int64s, *, sql: bool
    ) -> FailedRecords:
        """The records ``rows``, as they are at the source. ``sql``: the SQL failed on them."""
        bad = np.zeros(len(found.columns.offset), np.bool_)
        bad[rows] = True
        records = records_of(chosen(found, bad))
        chunk = waiting.chunk
        details: Mapping[int, str] = {}
        if waiting.transform in self._handlers:
            details = self._handlers[waiting.transform].reasons
        elif sql:
            details = self._reasons.of(waiting.transform, chunk.topic, chunk.partition, records)
        return FailedRecords(records, TRANSFORM_FAILED, reason, details)


def _changed_chunk(waiting: _Waiting, made: Rebuilt, name: str, took_s: float) -> Packed:
    """A portion as a chunk. ``took_s``: how long it took."""
    count = len(made.offsets)
    part = replace(
        waiting.chunk,
        base_offset=int(made.offsets[0]) if count else waiting.before,
        next_offset=made.next_offset,
        record_count=count,
        timestamp_ms=made.timestamp_ms,
        start=0,
        size=len(made.data),
        runs=merge_runs(made.offsets, np.ones(count, np.int64)),
    )
    counts = TransformCounts(name, made.records, count, made.records - count, 0)
    counts = replace(counts, pack_s=took_s)
    return Packed(part, memoryview(made.data), sources=made.offsets, counts=counts)


def _route(
    router: Router, chunk: Chunk, found: Scan, kept: npt.NDArray[np.bool_], record: pa.Array
) -> Routed:
    """Where the kept records go, by their number in ``found``."""
    wanted = record.filter(pa.array(kept))
    fields = dict(zip([one.name for one in record.type], wanted.flatten(), strict=True))
    key = varbin_of(fields["key"]) if "key" in fields else None
    keys = with_keys(chosen(found, kept), key)
    routed = router.route(chunk, keys, fields.get("topic"), fields.get("partition"))
    rows = np.flatnonzero(kept)
    destination = np.full(len(kept), -1, np.int64)
    destination[rows] = routed.destination
    routed.destination = destination
    routed.faults = [replace(one, rows=rows[one.rows]) for one in routed.faults]
    return routed


def _routed(
    span: tuple[Chunk, int, int],
    new: Scan,
    destination: Int64s,
    targets: Sequence[TopicPartition],
    batch_bytes: int,
    failed: Sequence[FailedRecords],
    halt: Halt | None,
) -> Iterator[Packed]:
    """The source offsets of ``span`` in chunks of about `_ROUTED_BYTES_MAX`.

    ``destination``: the number of each record's place in ``targets``.
    """
    chunk, before, end = span
    sizes = np.cumsum(new.columns.rest_bytes)
    cuts = np.flatnonzero(np.diff(sizes // _ROUTED_BYTES_MAX)) + 1
    first = 0
    for last in (*cuts.tolist(), len(sizes)):
        rows = np.zeros(len(sizes), np.bool_)
        rows[first:last] = True
        after = end if last == len(sizes) else int(new.columns.offset[last])
        inside = (_between(one, before, after) for one in failed)
        yield _sent_apart(
            replace(chunk, base_offset=before, next_offset=after),
            *(chosen(new, rows), destination[rows], targets, batch_bytes),
            tuple(one for one in inside if one.records),
            halt if after == end else None,
        )
        first, before = last, after


def _sent_apart(
    chunk: Chunk,
    new: Scan,
    destination: Int64s,
    targets: Sequence[TopicPartition],
    batch_bytes: int,
    failed: tuple[FailedRecords, ...],
    halt: Halt | None,
) -> Packed:
    """One chunk of routed records, with the batches of one target partition after another."""
    count = len(destination)
    batches: list[bytes] = []
    places: list[list[Any]] = []
    order = np.argsort(destination, kind="stable")
    if count:
        numbers = np.empty(count, np.int64)
        numbers[order] = np.arange(count)
        written = write_partitioned(
            _numbered(new, numbers), destination, codec=new.codec, batch_bytes=batch_bytes
        )
        batches = written.batches
        places = [[*targets[one]] for one in written.partitions]
    data = b"".join(batches)
    part = replace(
        chunk,
        record_count=count,
        timestamp_ms=int(new.columns.timestamp.max()) if count else -1,
        start=0,
        size=len(data),
        runs=(),
        targets=places,
    )
    return Packed(part, memoryview(data), failed, halt, new.columns.offset[order])


def _numbered(records: Scan, offsets: Int64s) -> Scan:
    """``records`` with other offsets.

    Batches number their records without gaps, and records that are left out make gaps.
    """
    return replace(records, columns=replace(records.columns, offset=offsets))


def _between(failed: FailedRecords, first: int, end: int) -> FailedRecords:
    """Those of ``failed`` at source offsets from ``first`` up to ``end`` (exclusive)."""
    return replace(
        failed, records=tuple(one for one in failed.records if first <= one.offset < end)
    )


def _halt(chunk: Chunk, failed: FailedRecords) -> Halt:
    place, offset = TopicPartition(chunk.topic, chunk.partition), failed.records[0].offset
    detail = failed.details.get(offset)
    reason = f"{place}: {failed.reason}, first at source offset {offset}"
    reason += "" if detail is None else f": {detail}"
    reason += ". Correct it, or set sparkmirror.on.bad.record to skip or dead-letter."
    if detail is None:
        where = f"--topic {chunk.topic} --from {offset}"
        reason += f" 'sparkmirror transform try FILE {where}' shows why it failed."
    return Halt(failed.code, reason, retriable=True)


def _damaged(waiting: _Waiting, error: BatchError) -> Packed:
    """The end of a chunk that cannot be read."""
    chunk, before = waiting.chunk, waiting.before
    nothing = replace(
        chunk, base_offset=before, next_offset=before, record_count=0, size=0, runs=()
    )
    reason = f"{TopicPartition(chunk.topic, chunk.partition)} at the source: {error}"
    return Packed(nothing, memoryview(b""), halt=Halt(error.code, reason, retriable=True))
