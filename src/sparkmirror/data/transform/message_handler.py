"""Message handlers: each record becomes a Python object and goes through the user's callable.

This is MirrorMaker 1's ``--message.handler``. It is the slow path (some microseconds per record,
besides the time of the handler itself), so it is used only if a handler is configured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sparkmirror.config.callables import USERS_ERRORS, load_callable
from sparkmirror.data.rows.rows import Chunk
from sparkmirror.errors import MirrorError
from sparkmirror.model import Partitioner, SourceRecord, TargetRecord
from sparkmirror.names.topics_map import name_fault
from sparkmirror.records.header import codec as batch_codec
from sparkmirror.records.header import split
from sparkmirror.records.key_columns import COST_BYTES_MAX, scan
from sparkmirror.records.partitioner import PartitionedBatches, RecordPartitioner
from sparkmirror.records.records import (
    Carried,
    carry,
    decode_fields,
    encode_rest,
    write_carried,
)
from sparkmirror.settings import FlowSettings

__all__ = ["MessageHandler"]

_OBJECTS_BYTES = 512
# A record's length, attributes and deltas, which stand before its rest.
_DELTAS_BYTES = 32
_BYTES = (bytes, bytearray, memoryview, type(None))
_TIME = (int, type(None))
_TIME_MS_MAX, _PARTITION_MAX = (1 << 63) - 1, (1 << 31) - 1
_topic_fault = lru_cache(maxsize=1024)(name_fault)
_SEQUENCES, _PAIR = (tuple, list), 2


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
            found = Carried()
            carry(batch, found)
            for offset, timestamp, rest in zip(
                found.offsets, found.timestamps, found.rests, strict=True
            ):
                if cost > COST_BYTES_MAX:
                    yield chunk.after(done), *self._partitioned(chunk, handled, codec)
                    handled, cost = [], 0
                key, value, headers = decode_fields(offset, rest)
                source = SourceRecord(
                    *(chunk.topic, chunk.partition, offset, timestamp, key, value),
                    tuple((name.decode("utf-8", "replace"), one) for name, one in headers)
                    if headers
                    else (),
                )
                made = self._handled(chunk, source)
                handled += made
                done += 1
                cost += _cost(key, value)
                for each in made:
                    cost += _cost(each.key, each.value)
        yield chunk.next_offset, *self._partitioned(chunk, handled, codec)

    def _partitioned(
        self, chunk: Chunk, handled: list[TargetRecord], codec: int
    ) -> tuple[PartitionedBatches, list[str]]:
        encoded = _encoded(handled)
        made: dict[tuple[str, int], list[int]] = {}
        for index, partition in enumerate(self._places(chunk, handled, encoded)):
            made.setdefault((handled[index].topic, partition), []).append(index)
        levels = self._flow.records.levels
        partitioned, topics = PartitionedBatches([], [], 0, -1), []
        for (topic, partition), indexes in made.items():
            own = encoded if len(indexes) == len(handled) else _picked(encoded, indexes)
            for start, end in _cuts(own, self._flow.produce.join_bytes):
                batch = write_carried(own, codec, start, end, levels=levels)
                partitioned.batches.append(batch)
                partitioned.partitions.append(partition)
                topics.append(topic)
                partitioned.records += end - start
            partitioned.timestamp_ms = max(partitioned.timestamp_ms, *own.timestamps)
        return partitioned, topics

    def _handled(self, chunk: Chunk, source: SourceRecord) -> tuple[TargetRecord, ...]:
        try:
            found: Any = self._call(source) if self._plain else self._call(source, self._args)
            if found is None:
                return ()
            listed = (found,) if isinstance(found, TargetRecord) else tuple(found)
            listed = tuple(map(_with_read_headers, listed))
        except USERS_ERRORS as error:  # no record may be lost by it
            raise self._failed(chunk, source, f"{type(error).__name__}: {error}") from error
        for one in listed:
            wrong = _wrong(one)
            if wrong:
                raise self._failed(chunk, source, f"it returned {wrong}")
        if chunk.remote_topic == chunk.topic:
            return listed
        # A record that keeps its topic goes to the remote topic that a map gives.
        return tuple(
            replace(one, topic=chunk.remote_topic) if one.topic == chunk.topic else one
            for one in listed
        )

    def _failed(self, chunk: Chunk, record: SourceRecord, why: str) -> MirrorError:
        place = f"{chunk.topic}-{chunk.partition}"
        return MirrorError(
            f"the message handler {self._name} failed at offset {record.offset} of {place}: {why}.",
            where=f"flow {self._flow.name}",
            do="It must return a TargetRecord, a list of them, or None for no record. Correct it "
            "and start again: nothing is lost.",
        )

    def _places(self, chunk: Chunk, handled: list[TargetRecord], encoded: Carried) -> list[int]:
        """Target partitions: what the handler returned, else the partitioner's choice."""
        places = [chunk.partition if one.partition is None else one.partition for one in handled]
        if self._flow.records.partitioner is Partitioner.NUMBER:
            return places
        open_in: dict[str, list[int]] = {}
        for index, one in enumerate(handled):
            if one.partition is None:
                open_in.setdefault(one.topic, []).append(index)
        for topic, indexes in open_in.items():
            found = scan(memoryview(write_carried(_picked(encoded, indexes), 0)))
            chosen = self._partitioner(topic).choose(found, self._partitions(topic))
            for index, partition in zip(indexes, chosen.tolist(), strict=True):
                places[index] = partition
        return places


def _cost(key: bytes | None, value: bytes | None) -> int:
    """Memory that a record takes as Python objects, in bytes."""
    return _OBJECTS_BYTES + len(key or b"") + len(value or b"")


def _is_function(call: object) -> bool:
    return hasattr(call, "__code__")


def _with_read_headers(one: Any) -> Any:
    """A record with its headers in a tuple: an iterator could be read only once."""
    if isinstance(one, TargetRecord) and not isinstance(one.headers, _SEQUENCES):
        return replace(one, headers=tuple(one.headers))
    return one


def _wrong(one: object) -> str:
    """What is wrong with a result; empty if it is a record that can be written."""
    if not isinstance(one, TargetRecord):
        return f"a {type(one).__name__}"
    if not isinstance(one.topic, str):
        return f"a topic of type {type(one.topic).__name__}, not str"
    fault = _topic_fault(one.topic)
    if fault:
        return f"a wrong topic name: {fault}"
    partition = one.partition
    if partition is not None:
        if not isinstance(partition, int) or isinstance(partition, bool):
            return f"a partition of type {type(partition).__name__}, not int"
        if not 0 <= partition <= _PARTITION_MAX:
            return f"partition {partition}: numbers of partitions are 0 to {_PARTITION_MAX}"
    for name, field in (("key", one.key), ("value", one.value)):
        if not isinstance(field, _BYTES):
            return f"a {name} of type {type(field).__name__}, not bytes"
    if not isinstance(one.timestamp_ms, _TIME):
        return f"a timestamp of type {type(one.timestamp_ms).__name__}, not int"
    if one.timestamp_ms is not None and one.timestamp_ms > _TIME_MS_MAX:
        return "a timestamp that does not fit into 64 bits"
    for header in one.headers:
        pair = isinstance(header, _SEQUENCES) and len(header) == _PAIR
        if not (pair and isinstance(header[0], str) and isinstance(header[1], _BYTES)):
            return "headers that are not pairs of text and bytes"
        if not (header[0].isascii() or _is_unicode(header[0])):
            return "a header whose name is no valid Unicode: half a surrogate pair"
    return ""


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can have ``text``. Python's strings may hold half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encoded(handled: list[TargetRecord]) -> Carried:
    """The records as a batch has them. The offsets are no one's."""
    now_ms = int(time.time() * 1000)
    count = len(handled)
    return Carried(
        [0] * count,
        [
            now_ms if one.timestamp_ms is None or one.timestamp_ms < 0 else one.timestamp_ms
            for one in handled
        ],
        [0] * count,
        [
            encode_rest(one.key, one.value, [(name.encode(), field) for name, field in one.headers])
            for one in handled
        ],
    )


def _picked(encoded: Carried, indexes: list[int]) -> Carried:
    count = len(indexes)
    timestamps, rests = encoded.timestamps, encoded.rests
    return Carried(
        [0] * count,
        [timestamps[index] for index in indexes],
        [0] * count,
        [rests[index] for index in indexes],
    )


def _cuts(encoded: Carried, batch_bytes: int) -> Iterator[tuple[int, int]]:
    """The records of each batch: first, end."""
    start = size = 0
    for index, rest in enumerate(encoded.rests):
        more = len(rest) + _DELTAS_BYTES
        if index > start and size + more > batch_bytes:
            yield start, index
            start, size = index, 0
        size += more
    yield start, len(encoded.rests)
