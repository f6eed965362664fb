"""Message handlers without Spark: what is given to them, what becomes of their records."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkmirror.data.coordination.slot_plan import encode_flow
from sparkmirror.data.rows.notes import SlotHello, SlotNotes
from sparkmirror.data.rows.rows import FLUSH, Chunk, build_row, read_row
from sparkmirror.data.transform.record_path import record_path
from sparkmirror.errors import MirrorError
from sparkmirror.model import MirrorMode, Partitioner, SourceRecord, TargetRecord
from sparkmirror.records.header import split
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.settings import ClusterClient, FlowSettings, RecordSettings

SEEN: list[SourceRecord] = []


def keep(record: SourceRecord) -> TargetRecord:
    SEEN.append(record)
    return record.to_target()


def choose(record: SourceRecord, args: str) -> list[TargetRecord] | None:
    if record.key is None:
        return None
    return [TargetRecord(args, record.value, partition=3), record.to_target()]


def fail(record: SourceRecord) -> TargetRecord:
    raise KeyError(record.offset)


def end(record: SourceRecord) -> TargetRecord:
    sys.exit(0)


def wrong(record: SourceRecord) -> list[str]:
    return ["no record"]


def _through(
    handler: str, args: str | None, batch: bytes, *, remote: str = "t"
) -> Iterator[tuple[Chunk, Any, Any]]:
    """The chunks that come out, with the row's records and notes."""
    client = ClusterClient("c", ("127.0.0.1:1",), "test")
    flow = FlowSettings(
        client, client, client, client, mode=MirrorMode.MM1,
        records=RecordSettings(
            Partitioner.NUMBER,
            handler=f"tests.unit.data.transform.test_message_handler:{handler}",
            handler_args=args,
        ),
    )  # fmt: skip
    chunk = Chunk("t", 2, remote, 0, 200, 200, 5, 0, len(batch))
    hello = build_row([], memoryview(b""), [], SlotNotes(SlotHello(0, 0, "c", "r", 0))).slice(0, 1)
    row = build_row([chunk], memoryview(b""), [[batch]])
    for out in record_path(encode_flow(flow), iter([hello, FLUSH, row])):
        assert isinstance(out, pa.RecordBatch)
        for number in range(out.num_rows):
            chunks, records, notes, _ = read_row(out, number)
            yield from ((one, records, notes) for one in chunks)


def views(record: SourceRecord) -> TargetRecord:
    headers = tuple((name, bytearray(one or b"")) for name, one in record.headers)
    value = memoryview(record.value or b"")
    return replace(record.to_target(), value=value, headers=headers)  # type: ignore[arg-type]


RECORDS = [
    Record(n, 5 + n, None if n % 2 else b"key", b"value" * n, ((b"h", None), (b"g", b"1")))
    for n in range(200)
]


def test_records_go_in_and_come_out() -> None:
    SEEN.clear()
    ((chunk, records, _),) = _through("keep", None, encode_batch(RECORDS, codec=2))
    assert [one.offset for one in SEEN] == list(range(200))
    assert SEEN[1] == SourceRecord("t", 2, 1, 6, None, b"value", (("h", None), ("g", b"1")))
    assert (chunk.next_offset, chunk.record_count, chunk.targets) == (200, 200, [2])
    part = records[chunk.start : chunk.start + chunk.size].cast("B")
    assert part[22] & 7 == 2, "the source's codec"
    assert list(decode_records(part)) == RECORDS


def test_what_is_like_bytes_is_written() -> None:
    ((chunk, records, _),) = _through("views", None, encode_batch(RECORDS))
    part = records[chunk.start : chunk.start + chunk.size].cast("B")
    found = list(decode_records(part))
    assert [one.value for one in found] == [one.value for one in RECORDS]
    assert found[0].headers == ((b"h", b""), (b"g", b"1"))


def test_headers_that_can_be_read_only_once_are_written() -> None:
    ((chunk, records, _),) = _through("lazy", None, encode_batch(RECORDS))
    part = records[chunk.start : chunk.start + chunk.size].cast("B")
    assert list(decode_records(part)) == RECORDS


def now(record: SourceRecord) -> TargetRecord:
    return TargetRecord(record.topic, record.value, record.key, record.headers)


@pytest.mark.parametrize("handler", ["keep", "now"])
def test_records_without_a_timestamp_get_the_time_of_writing(handler: str) -> None:
    """As Java's producer stamps them, be it that the handler gives none or passes "none" on."""
    records = [
        Record(n, -1 if n % 3 else 1_000 + n, b"key", b"value", ((b"h", b"1"),)) for n in range(9)
    ]
    SEEN.clear()
    before_ms = int(time.time() * 1000)
    ((chunk, out, _),) = _through(handler, None, encode_batch(records))
    after_ms = int(time.time() * 1000)
    if handler == "keep":
        assert [one.timestamp_ms for one in SEEN] == [one.timestamp for one in records]
    part = out[chunk.start : chunk.start + chunk.size].cast("B")
    for old, new in zip(records, decode_records(part), strict=True):
        if handler == "keep" and old.timestamp >= 0:
            assert new == old
        else:
            assert before_ms <= new.timestamp <= after_ms


def test_other_topics_partitions_and_nothing_at_all() -> None:
    ((chunk, records, _),) = _through("choose", "other", encode_batch(RECORDS))
    assert chunk.targets == [["other", 3], 2]
    assert (chunk.next_offset, chunk.record_count) == (200, 200)
    part = records[chunk.start : chunk.start + chunk.size].cast("B")
    found = [list(decode_records(part[a:b])) for a, b in split(part)]
    assert [len(one) for one in found] == [100, 100]
    assert {one.key for one in found[0]} == {None}
    assert [one.value for one in found[1]] == [one.value for one in RECORDS[::2]]


def test_what_stays_in_its_topic_goes_where_the_map_sends_it() -> None:
    ((chunk, _, _),) = _through("keep", None, encode_batch(RECORDS), remote="mapped")
    assert chunk.targets == [2]  # of the chunk's own remote topic
    ((chunk, _, _),) = _through("choose", "other", encode_batch(RECORDS), remote="mapped")
    assert chunk.targets == [["other", 3], 2]
    assert chunk.remote_topic == "mapped"


def text(record: SourceRecord) -> TargetRecord:
    return replace(record.to_target(), value="text")  # type: ignore[arg-type]


def text_key(record: SourceRecord) -> TargetRecord:
    return replace(record.to_target(), key="text")  # type: ignore[arg-type]


def seconds(record: SourceRecord) -> TargetRecord:
    return replace(record.to_target(), timestamp_ms=1.5)  # type: ignore[arg-type]


def lazy(record: SourceRecord) -> TargetRecord:
    return replace(record.to_target(), headers=iter(record.headers))  # type: ignore[arg-type]


def number(record: SourceRecord) -> TargetRecord:
    return replace(record.to_target(), headers=(5,))  # type: ignore[arg-type]


def names(record: SourceRecord) -> TargetRecord:
    return replace(record.to_target(), headers=("h",))  # type: ignore[arg-type]


def bytes_names(record: SourceRecord) -> TargetRecord:
    return replace(record.to_target(), headers=((b"h", b""),))  # type: ignore[arg-type]


FIELDS: dict[str, Any] = {}


def given(record: SourceRecord) -> TargetRecord:
    """The record with what the test has chosen for its fields."""
    return replace(record.to_target(), **FIELDS)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"topic": None}, "a topic of type NoneType, not str"),
        ({"topic": b"t"}, "a topic of type bytes, not str"),
        ({"topic": ["t"]}, "a topic of type list, not str"),
        ({"topic": ""}, "a wrong topic name: it is empty"),
        ({"topic": "bad name"}, "a wrong topic name: it contains ' '"),
        ({"topic": "t" * 250}, "a wrong topic name: it has 250 characters"),
        ({"partition": -1}, "partition -1: numbers of partitions are 0 to 2147483647"),
        ({"partition": 1 << 31}, "partition 2147483648: numbers of partitions are"),
        ({"partition": "3"}, "a partition of type str, not int"),
        ({"partition": True}, "a partition of type bool, not int"),
        ({"partition": np.int64(3)}, "a partition of type int64, not int"),
        ({"timestamp_ms": 1 << 63}, "a timestamp that does not fit into 64 bits"),
        ({"timestamp_ms": 1 << 70}, "a timestamp that does not fit into 64 bits"),
        ({"timestamp_ms": np.int64(3)}, "a timestamp of type int64, not int"),
        ({"headers": (("\ud800", b""),)}, "a header whose name is no valid Unicode"),
    ],
)
def test_a_record_that_cannot_be_written_stops_the_mirror_at_its_offset(
    fields: dict[str, Any], why: str
) -> None:
    FIELDS.clear()
    FIELDS.update(fields)
    with pytest.raises(MirrorError, match=r"failed at offset 0 of t-2: it returned ") as raised:
        list(_through("given", None, encode_batch(RECORDS)))
    assert f"it returned {why}" in str(raised.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "t" * 249},
        {"partition": 0},
        {"partition": (1 << 31) - 1},
        {"timestamp_ms": (1 << 63) - 1},
        {"headers": (("größe", b"1"), ("\U0001f600", None))},
    ],
)
def test_what_kafka_allows_is_written(fields: dict[str, Any]) -> None:
    FIELDS.clear()
    FIELDS.update(fields)
    ((chunk, records, _),) = _through("given", None, encode_batch(RECORDS))
    assert chunk.record_count == len(RECORDS)
    first = next(iter(decode_records(records[chunk.start : chunk.start + chunk.size].cast("B"))))
    topic, partition = fields.get("topic"), fields.get("partition", 2)
    assert chunk.targets == [partition if topic is None else [topic, partition]]
    assert first.timestamp == fields.get("timestamp_ms", 5)
    if "headers" in fields:
        assert first.headers == tuple((name.encode(), one) for name, one in fields["headers"])


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        ("fail", "offset 0 of t-2: KeyError: 0"),
        ("end", "offset 0 of t-2: SystemExit: 0"),
        ("wrong", "returned a str"),
        ("text", "returned a value of type str, not bytes"),
        ("text_key", "returned a key of type str, not bytes"),
        ("seconds", "returned a timestamp of type float, not int"),
        ("number", "returned headers that are not pairs of text and bytes"),
        ("names", "returned headers that are not pairs of text and bytes"),
        ("bytes_names", "returned headers that are not pairs of text and bytes"),
    ],
)
def test_a_handler_that_fails_stops_the_mirror(handler: str, why: str) -> None:
    with pytest.raises(MirrorError) as raised:
        list(_through(handler, None, encode_batch(RECORDS)))
    assert why in str(raised.value)
    assert "nothing is lost" in str(raised.value)
