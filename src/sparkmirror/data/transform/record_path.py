"""The record path: a Spark transform between source and sink that processes every record.

``rows.mapInArrow(record_path)`` takes the rows of `data.rows.rows`, whole batches as the source's
broker had them, and returns rows of the same form. In these, records are assigned to the target
topic's partitions (`records.partitioner`); with a message handler, they are the records that it
returned. Without a handler, no record becomes a Python object: numpy hashes keys and copies
records, for a whole row at once.

Record bytes travel as they do from source to sink: this worker maps the source's memory and has
memory of its own for the sink (`data.rows.shared_frames`). Messages of the sink take the same way
back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from sparkmirror.data.coordination.slot_plan import decode_flow
from sparkmirror.data.rows.notes import HaltNote, SlotHello, SlotNotes
from sparkmirror.data.rows.rows import FLUSH, Chunk, build_row, out, read_row
from sparkmirror.data.rows.shared_frames import FrameReader, Frames, Reference, map_frames
from sparkmirror.data.transform.message_handler import MessageHandler
from sparkmirror.errors import BatchError, MirrorError, Unreachable
from sparkmirror.model import Partitioner, TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.records.key_columns import scans
from sparkmirror.records.partitioner import PartitionedBatches, RecordPartitioner, write_partitioned
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections

__all__ = ["record_path"]

log = logging.getLogger(__name__)

# The most that the sink can map in one piece; a larger row goes through the JVM.
_FRAME_BYTES = 8 * 1024 * 1024
_STARVED_S = 0.002
_STARVED_S_MAX = 5.0
_NOTHING = memoryview(b"")


def record_path(flow_text: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What `mapInArrow` runs in a task: rows in, rows out. ``flow_text``: see `encode_flow`."""
    return _RecordPath(decode_flow(flow_text)).rows(batches)


class _RecordPath:
    """The records of one task."""

    def __init__(self, flow: FlowSettings) -> None:
        self._flow = flow
        self._counts = _PartitionCounts(flow)
        self._partitioners: dict[str, RecordPartitioner] = {}
        self._source: FrameReader | None = None
        self._frames = Frames(_FRAME_BYTES)
        self._stopped: set[tuple[str, int]] = set()
        self._handler: MessageHandler | None = None
        if flow.records.handler:
            self._handler = MessageHandler(flow, self._partitioner, self._counts.of)

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows for ``batches``, in the messages that `data.rows.rows` describes."""
        try:
            for batch in batches:
                self._pass_on()
                quiet = True
                for number in range(batch.num_rows):
                    chunks, records, notes, reference = read_row(batch, number)
                    if not chunks and notes is None:
                        continue
                    quiet = False
                    if notes is not None and notes.hello is not None:
                        yield from self._begin(chunks, notes, notes.hello)
                    else:
                        yield from self._row(chunks, records, notes, reference)
                if quiet:
                    yield from out(FLUSH)
        finally:
            self._counts.close()
            self._frames.close()

    def _begin(
        self, chunks: list[Chunk], notes: SlotNotes, hello: SlotHello
    ) -> Iterator[pa.RecordBatch]:
        self._source = map_frames(hello.memory)
        self._counts.follow({one.remote_topic for one in hello.partitions})
        notes = replace(notes, hello=replace(hello, memory=self._frames.note()))
        # The first row travels alone, as the source sent it.
        yield build_row(chunks, _NOTHING, [[] for _ in chunks], notes).slice(0, 1)
        yield from out(FLUSH)

    def _pass_on(self) -> None:
        """Pass a message of the sink on to the source; rows come twice a second at least."""
        if self._source is not None and self._source.may_send:
            message = self._frames.take_message()
            if message:
                self._source.send(message)

    def _row(
        self,
        chunks: list[Chunk],
        records: memoryview,
        notes: SlotNotes | None,
        reference: Reference | None,
    ) -> Iterator[pa.RecordBatch]:
        if reference is not None:
            if self._source is None:
                raise MirrorError(
                    "a row refers to memory that this process never mapped.",
                    where=f"flow {self._flow.name}",
                )
            records = self._source.records(reference)
        records = records.cast("B")  # Arrow's own views have signed bytes
        made: list[Chunk] = []
        pieces: list[list[bytes]] = []
        size = 0
        for chunk in chunks:
            if (chunk.topic, chunk.partition) in self._stopped:
                continue
            batches = records[chunk.start : chunk.start + chunk.size]
            before = chunk.base_offset
            try:
                for end, partitioned, topics in self._partition(chunk, batches):
                    one = _chunk(chunk, before, end, partitioned, topics)
                    before = end
                    # Portions that fit into one frame together travel as one row.
                    if made and size + one.size > _FRAME_BYTES:
                        yield from self._send(made, pieces, notes)
                        made, pieces, size, notes = [], [], 0, None
                    made.append(one)
                    pieces.append(partitioned.batches)
                    size += one.size
            except BatchError as error:
                notes = self._stop(chunk, error, notes or SlotNotes())
            del batches
        del records  # lets the source use its frame again
        if made or notes is not None:
            yield from self._send(made, pieces, notes)

    def _send(
        self, made: list[Chunk], pieces: list[list[bytes]], notes: SlotNotes | None
    ) -> Iterator[pa.RecordBatch]:
        if made:
            self._await_frame()
        yield from out(build_row(made, _NOTHING, pieces, notes, self._frames if made else None))

    def _partition(
        self, chunk: Chunk, batches: memoryview
    ) -> Iterator[tuple[int, PartitionedBatches, list[str]]]:
        """New batches in portions: (source offset after it, batches, topics from a handler)."""
        if not len(batches):
            yield chunk.next_offset, PartitionedBatches([], [], 0, -1), []
            return
        if self._handler is not None:
            yield from self._handler.partition(chunk, batches)
            return
        records = self._flow.records
        done = 0
        for found in scans(batches):
            partitioner = self._partitioner(chunk.remote_topic)
            chosen = partitioner.choose(found, self._counts.of(chunk.remote_topic))
            codec = found.codec if records.codec < 0 else records.codec
            batch_bytes = self._flow.produce.join_bytes
            partitioned = write_partitioned(
                found,
                chosen,
                codec=codec,
                batch_bytes=batch_bytes,
                levels=records.levels,
                now_ms=int(time.time() * 1000),
            )
            done += partitioned.records
            yield chunk.next_offset if found.last else chunk.after(done), partitioned, []

    def _partitioner(self, topic: str) -> RecordPartitioner:
        partitioner = self._partitioners.get(topic)
        if partitioner is None:
            records = self._flow.records
            partitioner = RecordPartitioner(records.partitioner, sticky_bytes=records.sticky_bytes)
            self._partitioners[topic] = partitioner
        return partitioner

    def _stop(self, chunk: Chunk, error: BatchError, notes: SlotNotes) -> SlotNotes:
        """Stop a partition that cannot be read, as without the record path; the others continue."""
        log.error("%s-%d: %s", chunk.topic, chunk.partition, error)
        self._stopped.add((chunk.topic, chunk.partition))
        source = TopicPartition(chunk.topic, chunk.partition)
        halt = HaltNote(source, Halt(error.code, str(error)))
        return replace(notes, halts=(*notes.halts, halt))

    def _await_frame(self) -> None:
        """Wait until the sink frees a frame: that is better than megabytes through the JVM."""
        deadline = time.monotonic() + _STARVED_S_MAX
        while self._frames.starved and time.monotonic() < deadline:
            time.sleep(_STARVED_S)


def _chunk(
    chunk: Chunk, base: int, end: int, partitioned: PartitionedBatches, topics: list[str]
) -> Chunk:
    """The chunk for the source's records from ``base`` up to ``end``."""
    targets: list[Any] = list(partitioned.partitions)
    for index, topic in enumerate(topics):
        if topic != chunk.remote_topic:
            targets[index] = [topic, targets[index]]
    return replace(
        chunk,
        base_offset=base,
        next_offset=end,
        runs=(),
        record_count=partitioned.records,
        timestamp_ms=partitioned.timestamp_ms if partitioned.batches else chunk.timestamp_ms,
        start=0,
        size=sum(map(len, partitioned.batches)),
        targets=targets,
    )


class _PartitionCounts:
    """Partition counts of target topics, from metadata, as Java's producer gets them."""

    def __init__(self, flow: FlowSettings) -> None:
        self._connections = ClusterConnections(flow.target)
        self._needed = flow.records.partitioner is not Partitioner.NUMBER
        self._counts: dict[str, int] = {}
        self._flow = flow

    def follow(self, topics: set[str]) -> None:
        """Request metadata of ``topics`` early."""
        if self._needed:
            self._connections.add_topics(topics)

    def of(self, topic: str) -> int:
        """The number of partitions; waits for a target that does not report it."""
        self._connections.add_topics([topic])
        told_at = float("-inf")
        while True:
            if self._connections.refresh_if_due():
                self._counts = {}
                for tp in (*self._connections.leaders, *self._connections.leaderless):
                    self._counts[tp.topic] = max(self._counts.get(tp.topic, 0), tp.partition + 1)
            count = self._counts.get(topic, 0)
            if count:
                return count
            if time.monotonic() - told_at > 30.0:
                told_at = time.monotonic()
                error = Unreachable(
                    f"the partition count of {topic} is unavailable; retrying.",
                    where=f"cluster {self._flow.target.alias}",
                )
                log.warning("%s", error)
            self._connections.mark_stale()
            time.sleep(self._flow.target.retry_backoff_ms / 1000)

    def close(self) -> None:
        self._connections.close()
