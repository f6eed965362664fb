"""Runs transforms over batches that are read again, outside of a mirror's query.

It has the parts of a slot in one process, so records become what a mirror makes of them: raw
batches (`wire.fetch.record_stream`) → `Unpacker` → `TransformPlan` in a Spark job → `Packer`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from sparkmirror.data.coordination.sealed_options import new_key
from sparkmirror.data.rows.rows import Chunk, build_row, chunk_of, read_row
from sparkmirror.data.spark.session import Spark
from sparkmirror.data.spark.temp_dir import TempDirectory
from sparkmirror.data.transform.columns import arrow_schema, decode_columns
from sparkmirror.data.transform.pack import Packed, Packer
from sparkmirror.data.transform.plan import TransformPlan
from sparkmirror.data.transform.reasons import Reasons
from sparkmirror.data.transform.routing import Router, TargetTopics
from sparkmirror.data.transform.spark_errors import reason_of, table_of
from sparkmirror.data.transform.unpack import Unpacker
from sparkmirror.errors import MirrorError, PartitionError
from sparkmirror.internal_topics.assignments import SourcePartition
from sparkmirror.model import TopicPartition
from sparkmirror.names.transforms import needs_spark
from sparkmirror.records.records import Record
from sparkmirror.settings import FaultSettings, FlowSettings, MirrorSettings
from sparkmirror.wire.fetch.record_stream import RecordStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["GROUP_BYTES", "Part", "Replay", "grouped", "groups", "open_replay", "read_parts"]

_ONE_TASK = {
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(1 << 30),
}

GROUP_BYTES = 8 << 20
"""Bytes of batches that `Replay.packed` is given at once: its results take as much memory."""

# Of a job's rows, which are not compressed, Spark's driver has several copies. 100 MB were too many
# for its heap of 1 GiB.
_JOB_BYTES = 16 << 20

Part = tuple[Chunk, bytes]
"""A chunk, and its batches."""

_T = TypeVar("_T")


class Replay:
    """The transforms of ``flow``.

    A record on which the SQL fails does not stop anything, whatever the flow's settings say.
    ``planned``: as in `TargetTopics`: before the mirror has run, its remote topics are missing.
    """

    def __init__(
        self,
        plan: TransformPlan,
        flow: FlowSettings,
        planned: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.plan = plan
        self._planned = planned
        self._flow = replace(flow, faults=FaultSettings(bad_record="skip"))
        self._columns = decode_columns(plan.columns)
        self._lock = threading.Lock()

    def packed(self, parts: Sequence[Part], *, reasons: int = 0) -> list[Packed]:
        """New chunks for ``parts``, in their order, in as few jobs as fit into Spark's memory.

        Any thread may call it. Raises `MirrorError`, also if a mirror would stop for another reason
        than a record on which the SQL fails.

        ``reasons``: on how many records of a portion to find out why the SQL failed, which takes a
        job each.
        """
        with self._lock:
            return list(self._packed(parts, reasons))

    def _packed(self, parts: Sequence[Part], reasons: int) -> Iterator[Packed]:
        rows = [build_row([chunk], memoryview(b""), [[data]]) for chunk, data in parts]
        found = _Found(self.plan, self._flow.name, reasons)
        packer = Packer(self._flow, found, router=self._router(parts))
        try:
            for batch in self._evaluated(rows) if needs_spark(self._flow) else rows:
                for part in packer.parts(batch):
                    if isinstance(part, Packed):
                        _check(part, self._flow)
                        yield part
                    else:
                        chunks, records, _, _ = read_row(batch, part)
                        packer.hold(chunks, records)
            packer.finish()
        finally:
            packer.close()

    def _evaluated(self, rows: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        messages = Unpacker(self._flow, self._columns, None).rows(iter(rows))
        for some in grouped(messages, lambda message: int(message.nbytes), _JOB_BYTES):
            table = pa.Table.from_batches(some, arrow_schema(self._columns))
            frame: Any = self.plan.transformed(self._frame(table))
            # `toArrow` would cast the results, and refuses nulls in structs with a field that has
            # none.
            yield from frame._collect_as_arrow()

    def _router(self, parts: Sequence[Part]) -> Router | None:
        """A router for which the topics are there that a mirror would create."""
        flow = self._flow
        if not any(one.routes for one in flow.transforms):
            return None
        missing = 0
        if flow.routed_topics_max:
            missing = 1 + max((chunk.partition for chunk, _ in parts), default=0)
        return Router(flow, TargetTopics(flow, self._planned, missing))

    def _frame(self, table: pa.Table) -> DataFrame:
        """``table`` in Spark, for one task.

        On a few rows Spark would interpret the SQL; a mirror's query compiles it.
        """
        conf: Any = self.plan.session.conf
        before = {name: conf.get(name) for name in _ONE_TASK}
        try:
            for name, value in _ONE_TASK.items():
                conf.set(name, value)
            return self.plan.session.createDataFrame(table.combine_chunks())
        finally:
            for name, value in before.items():
                conf.set(name, value)

    def spark_plan(self) -> str:
        """Spark's plan of the transforms, as ``explain`` prints it; empty if it computes none."""
        if not needs_spark(self._flow):
            return ""
        from pyspark import SparkContext  # noqa: PLC0415

        columns = arrow_schema(self._columns)
        table = pa.table([pa.nulls(1, one.type) for one in columns], schema=columns)
        frame = self.plan.transformed(self._frame(table))
        utils = SparkContext._jvm.PythonSQLUtils  # type: ignore[union-attr]
        return str(utils.explainString(frame._jdf.queryExecution(), "simple")).strip()


def _check(packed: Packed, flow: FlowSettings) -> None:
    """Raise PartitionError if a mirror would stop there: what follows was not read or placed."""
    if packed.halt is not None:
        raise PartitionError(
            f"{packed.halt.reason} ({packed.halt.code}).", where=f"flow {flow.name}"
        )


class _Found(Reasons):
    """Runs the SQL here, for the first ``most`` records of a question."""

    def __init__(self, plan: TransformPlan, flow: str, most: int) -> None:
        super().__init__("", flow)
        self._plan = plan
        self._most = most

    def of(
        self, number: int, topic: str, partition: int, records: Sequence[Record]
    ) -> dict[int, str]:
        some = records[: self._most]
        table = table_of(topic, partition, some)
        return {
            one.offset: reason_of(self._plan, number, table.slice(row, 1))
            for row, one in enumerate(some)
        }


@contextmanager
def open_replay(
    settings: MirrorSettings,
    flow: FlowSettings,
    planned: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[Replay]:
    """Spark with one thread on this machine, and ``flow``'s transforms in it.

    ``planned``: as in `Replay`. Raises `MirrorError`: ConfigError for SQL that is refused. If Spark
    does not start, its log stays until the next run.
    """
    flow = replace(flow, tasks_max=1)
    directory = TempDirectory.make()
    spark = Spark(
        replace(settings, flows=(flow,)),
        master="local[1]",
        spark_conf={},
        work_dir=Path(directory.path) / "work",
        key=new_key(),
    )
    try:
        session = spark.open()
    except MirrorError:
        spark.close()
        raise
    try:
        yield Replay(TransformPlan(session, flow), flow, planned)
    finally:
        spark.close()
        directory.close()


def read_parts(
    flow: FlowSettings,
    source: SourcePartition,
    start: int,
    end: int,
    records_max: int | None = None,
) -> Iterator[Part]:
    """What the mirror reads of one source partition from ``start`` to before ``end``.

    ``records_max``: the number of records to end after. Raises `MirrorError`.
    """
    tp = TopicPartition(source.topic, source.partition)
    if records_max is not None:
        end = _end_of(flow, tp, start, end, records_max)
    stream = RecordStream(flow.source, flow.fetch, tp, start, end, note_appended=True)
    at = start
    try:
        for chosen in stream.selections():
            if chosen.record_count:
                chunk = chunk_of(source, at, chosen)
                chunk = replace(chunk, runs=chosen.runs, appended=stream.appended)
                # The buffer is used again for the next response.
                yield chunk, b"".join(chosen.pieces)
            at = chosen.next_offset
    finally:
        stream.close()


def _end_of(flow: FlowSettings, tp: TopicPartition, start: int, end: int, count: int) -> int:
    """The offset after the first ``count`` records from ``start`` on; ``end`` if there are fewer.

    A mirror copies whole batches, which may have any number of records.
    """
    stream = RecordStream(flow.source, flow.fetch, tp, start, end)
    offsets: list[int] = []
    try:
        for run in stream:
            offsets += run.offsets
            if len(offsets) >= count:
                return offsets[count - 1] + 1 if count else start
    finally:
        stream.close()
    return end


def groups(parts: Iterable[Part], bytes_max: int) -> Iterator[list[Part]]:
    """``parts`` in groups of about ``bytes_max`` bytes."""
    return grouped(parts, lambda part: len(part[1]), bytes_max)


def grouped(some: Iterable[_T], size_of: Callable[[_T], int], bytes_max: int) -> Iterator[list[_T]]:
    """``some`` in lists of about ``bytes_max`` bytes. ``size_of``: the bytes of each."""
    group: list[_T] = []
    size = 0
    for one in some:
        group.append(one)
        size += size_of(one)
        if size >= bytes_max:
            yield group
            group, size = [], 0
    if group:
        yield group
