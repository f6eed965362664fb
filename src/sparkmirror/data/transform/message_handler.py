"""Message handlers: each record becomes a Python object and goes through the user's callable.

This is MirrorMaker 1's ``--message.handler``. It is the slow path (some microseconds per record,
besides the time of the handler itself), so it is used only if a handler is configured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from sparkmirror.config.callables import load_callable
from sparkmirror.data.rows.rows import Chunk
from sparkmirror.errors import MirrorError
from sparkmirror.model import Partitioner, SourceRecord, TargetRecord
from sparkmirror.records.header import codec as batch_codec
from sparkmirror.records.header import split
from sparkmirror.records.key_columns import COST_BYTES_MAX, scan
from sparkmirror.records.partitioner import PartitionedBatches, RecordPartitioner
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.settings import FlowSettings

__all__ = ["MessageHandler"]

_OBJECTS_BYTES = 512


class MessageHandler:
    """The user's callable, and the assignment of its records to partitions.

    ``partitioner``, ``partitions``: give the partitioner and the partition count of a target topic.
    """

    def __init__(
        self,
        flow: FlowSettings,
        partitioner: Callable[[str], RecordPartitioner],
        partitions: Callable[[str], int],
    ) -> None:
        self._flow = flow
        self._name = flow.records.handler
        self._args = flow.records.handler_args
        self._call = load_callable(self._name, self._args, where="--message.handler")
        self._plain = self._args is None or not _is_function(self._call)
        self._partitioner = partitioner
        self._partitions = partitions

    def partition(
        self, chunk: Chunk, batches: memoryview
    ) -> Iterator[tuple[int, PartitionedBatches, list[str]]]:
        """Batches of the records that the handler returned for ``batches``, and their topics.

        They come in portions, which limits memory. Each portion begins with the source offset after
        it.
        """
        codec = self._flow.records.codec
        handled: list[TargetRecord] = []
        done = cost = 0
        for start, end in split(batches):
            batch = batches[start:end]
            codec = batch_codec(batch) if codec < 0 else codec
            for record in decode_records(batch):
                if cost > COST_BYTES_MAX:
                    yield chunk.after(done), *self._partitioned(chunk, handled, codec)
                    handled, cost = [], 0
                made = self._handled(chunk, record)
                handled += made
                done += 1
                cost += _cost(record.key, record.value)
                cost += sum(_cost(one.key, one.value) for one in made)
        yield chunk.next_offset, *self._partitioned(chunk, handled, codec)

    def _partitioned(
        self, chunk: Chunk, handled: list[TargetRecord], codec: int
    ) -> tuple[PartitionedBatches, list[str]]:
        made: dict[tuple[str, int], list[Record]] = {}
        for one, partition in zip(handled, self._places(chunk, handled), strict=True):
            made.setdefault((one.topic, partition), []).append(_encoded(one))
        levels = self._flow.records.levels
        partitioned, topics = PartitionedBatches([], [], 0, -1), []
        for (topic, partition), records in made.items():
            for part in _cut(records, self._flow.produce.join_bytes):
                partitioned.batches.append(
                    encode_batch(_numbered(part), codec=codec, levels=levels)
                )
                partitioned.partitions.append(partition)
                topics.append(topic)
                partitioned.records += len(part)
                partitioned.timestamp_ms = max(
                    partitioned.timestamp_ms, *(one.timestamp for one in part)
                )
        return partitioned, topics

    def _handled(self, chunk: Chunk, record: Record) -> tuple[TargetRecord, ...]:
        source = SourceRecord(
            chunk.topic,
            chunk.partition,
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            tuple((name.decode("utf-8", "replace"), value) for name, value in record.headers),
        )
        try:
            found: Any = self._call(source) if self._plain else self._call(source, self._args)
            if found is None:
                return ()
            listed = (found,) if isinstance(found, TargetRecord) else tuple(found)
        except Exception as error:  # any error of the user's code; no record may be lost by it
            raise self._failed(chunk, record, f"{type(error).__name__}: {error}") from error
        for one in listed:
            if not isinstance(one, TargetRecord):
                raise self._failed(chunk, record, f"it returned a {type(one).__name__}")
        if chunk.remote_topic == chunk.topic:
            return listed
        # A record that keeps its topic goes to the remote topic that a map gives.
        return tuple(
            replace(one, topic=chunk.remote_topic) if one.topic == chunk.topic else one
            for one in listed
        )

    def _failed(self, chunk: Chunk, record: Record, why: str) -> MirrorError:
        place = f"{chunk.topic}-{chunk.partition}"
        return MirrorError(
            f"the message handler {self._name} failed at offset {record.offset} of {place}: {why}.",
            where=f"flow {self._flow.name}",
            do="It must return a TargetRecord, a list of them, or None for no record. Correct it "
            "and start again: nothing is lost.",
        )

    def _places(self, chunk: Chunk, handled: list[TargetRecord]) -> list[int]:
        """Target partitions: what the handler returned, else the partitioner's choice."""
        places = [chunk.partition if one.partition is None else one.partition for one in handled]
        if self._flow.records.partitioner is Partitioner.NUMBER:
            return places
        open_in: dict[str, list[int]] = {}
        for index, one in enumerate(handled):
            if one.partition is None:
                open_in.setdefault(one.topic, []).append(index)
        for topic, indexes in open_in.items():
            found = scan(memoryview(encode_batch([_encoded(handled[index]) for index in indexes])))
            chosen = self._partitioner(topic).choose(found, self._partitions(topic))
            for index, partition in zip(indexes, chosen.tolist(), strict=True):
                places[index] = partition
        return places


def _cost(key: bytes | None, value: bytes | None) -> int:
    """Memory that a record takes as Python objects, in bytes."""
    return _OBJECTS_BYTES + len(key or b"") + len(value or b"")


def _is_function(call: object) -> bool:
    return hasattr(call, "__code__")


def _encoded(one: TargetRecord) -> Record:
    now_ms = int(time.time() * 1000)
    return Record(
        0,
        now_ms if one.timestamp_ms is None or one.timestamp_ms < 0 else one.timestamp_ms,
        one.key,
        one.value,
        tuple((name.encode(), value) for name, value in one.headers),
    )


def _numbered(records: list[Record]) -> list[Record]:
    return [
        Record(offset, one.timestamp, one.key, one.value, one.headers)
        for offset, one in enumerate(records)
    ]


def _cut(records: list[Record], batch_bytes: int) -> Iterable[list[Record]]:
    part: list[Record] = []
    size = 0
    for one in records:
        more = len(one.key or b"") + len(one.value or b"") + 32
        if part and size + more > batch_bytes:
            yield part
            part, size = [], 0
        part.append(one)
        size += more
    yield part
