"""What many batches of one answer unpack to together has a bound, on every path that unpacks."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.slot_plan import encode_flow
from sparkmirror.data.rows.notes import SlotHello, SlotNotes
from sparkmirror.data.rows.rows import FLUSH, Chunk, build_row, read_row
from sparkmirror.data.transform import message_handler, record_path
from sparkmirror.errors import CorruptBatch
from sparkmirror.model import MirrorMode, Partitioner, SourceRecord, TargetRecord, TopicPartition
from sparkmirror.records.codecs import ZSTD, compress
from sparkmirror.records.header import ATTRIBUTES_AT, HEADER_BYTES, seal, split
from sparkmirror.records.header import COVERED as HEAD
from sparkmirror.records.key_columns import COST_BYTES_MAX, scan, scans
from sparkmirror.records.partitioner import RecordPartitioner, write_partitioned
from sparkmirror.records.rebatch import BatchGroup, BatchGroupError, write_groups
from sparkmirror.records.records import (
    RECORD_COST_BYTES,
    RECORDS_MAX,
    Limits,
    Record,
    decode_records,
    encode_batch,
)
from sparkmirror.records.selection import SelectRules, select
from sparkmirror.records.varint import varint
from sparkmirror.settings import ClusterClient, FlowSettings, RecordSettings
from sparkmirror.wire.fetch import record_stream
from sparkmirror.wire.fetch.record_stream import _carried

MIB = 1 << 20
TP = TopicPartition("t", 0)


@contextmanager
def peak_below(limit: int) -> Iterator[None]:
    """What is allocated meanwhile (numpy's arrays count) stays below ``limit`` bytes."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak / MIB:.0f} MiB"


@cache
def zeros(size: int) -> bytes:
    """A batch of one record of ``size`` zero bytes: a few hundred bytes."""
    return encode_batch([Record(0, 1, b"key", bytes(size))], codec=ZSTD)


@cache
def tiny(count: int) -> bytes:
    """A batch of ``count`` records with nothing in them."""
    parts = []
    for delta in range(count):
        rest = b"\0" + b"\0" + varint(delta) + b"\1\1\0"
        parts.append(varint(len(rest)) + rest)
    body = compress(ZSTD, b"".join(parts))
    covered = HEAD.pack(ZSTD, count - 1, 1, 1, -1, -1, -1, count)
    return seal(covered, body, 0) + body


def answer(batch: bytes, count: int, records: int = 1, attributes: int = 0) -> memoryview:
    """``count`` times the same batch, one behind the other."""
    head, body = bytearray(batch[:HEADER_BYTES]), batch[HEADER_BYTES:]
    head[ATTRIBUTES_AT + 1] |= attributes
    covered = bytes(head[ATTRIBUTES_AT:])
    return memoryview(
        b"".join(seal(covered, body, number * records) + body for number in range(count))
    )


def test_a_bomb_is_dealt_in_portions() -> None:
    data = answer(zeros(MIB), 100)
    assert len(data) < 50_000
    offsets: list[int] = []
    with peak_below(40 * MIB):
        for found in scans(data, cost_bytes_max=4 * MIB):
            dealt = write_partitioned(
                found,
                RecordPartitioner(Partitioner.KEY).choose(found, 3),
                codec=ZSTD,
                batch_bytes=MIB,
            )
            assert dealt.records == len(found.columns.offset)
            offsets += found.columns.offset.tolist()
    assert offsets == list(range(100))
    assert found.last
    first = next(scans(data))  # the limit that counts
    assert 50 * MIB < len(first.columns.flat) <= COST_BYTES_MAX


def test_many_tiny_records_count_for_more_than_their_bytes() -> None:
    data = answer(tiny(5_000), 20, 5_000)
    portions = [len(one.columns.offset) for one in scans(data, cost_bytes_max=MIB)]
    assert sum(portions) == 100_000
    assert max(portions) <= MIB // RECORD_COST_BYTES


def test_a_usual_answer_is_one_portion() -> None:
    usual = [Record(n, 1, b"k", b"value" * 20) for n in range(100)]
    for codec in range(5):
        data = answer(encode_batch(usual, codec=codec), 300, 100)
        (found,) = scans(data)
        assert found.columns.offset.tolist() == list(range(30_000))
        assert found.codec == codec


@pytest.mark.parametrize("cost_bytes_max", [1, 5_000, 20_000])
def test_portions_hold_what_the_whole_holds(cost_bytes_max: int) -> None:
    parts = [
        encode_batch(
            [Record(n * 10 + i, n, b"k%d" % i, b"v" * (n + i)) for i in range(10)], codec=n % 5
        )
        for n in range(40)
    ]
    data = memoryview(b"".join(parts))
    whole = scan(data)
    portions = list(scans(data, cost_bytes_max=cost_bytes_max))
    assert len(portions) > 1
    assert [one.last for one in portions] == [False] * (len(portions) - 1) + [True]
    for field in ("offset", "timestamp", "attributes", "rest_bytes"):
        parted = [n for one in portions for n in getattr(one.columns, field).tolist()]
        assert parted == getattr(whole.columns, field).tolist()


# --- the record path ----------------------------------------------------------------------------


def keep(record: SourceRecord) -> TargetRecord:
    return record.to_target()


def through(chunk: Chunk, data: memoryview, **records: Any) -> Iterator[tuple[Chunk, memoryview]]:
    client = ClusterClient("c", ("127.0.0.1:1",), "test")
    flow = FlowSettings(
        client, client, client, client, mode=MirrorMode.MM1,
        records=RecordSettings(**records),
    )  # fmt: skip
    hello = build_row([], memoryview(b""), [], SlotNotes(SlotHello(0, 0, "c", "r", 0)))
    row = build_row([chunk], memoryview(b""), [[data]])
    for out in record_path.record_path(encode_flow(flow), iter([hello.slice(0, 1), FLUSH, row])):
        for number in range(out.num_rows):
            chunks, content, *_ = read_row(out, number)
            for one in chunks:
                yield one, content[one.start : one.start + one.size]


@pytest.mark.parametrize(
    "records",
    [
        {"partitioner": Partitioner.ROUND_ROBIN},
        {"partitioner": Partitioner.ROUND_ROBIN, "codec": 0},
        {
            "partitioner": Partitioner.NUMBER,
            "handler": "tests.unit.data.transform.test_unpacking:keep",
        },
    ],
)
def test_rows_follow_one_another_and_say_how_far_they_go(
    monkeypatch: pytest.MonkeyPatch, records: dict[str, Any]
) -> None:
    monkeypatch.setattr(record_path._PartitionCounts, "of", lambda *_: 3)  # asks brokers
    monkeypatch.setattr(record_path, "scans", partial(scans, cost_bytes_max=4 * MIB))
    monkeypatch.setattr(message_handler, "COST_BYTES_MAX", 4 * MIB)
    data = answer(zeros(MIB), 40)
    # As the log has them: compaction took offsets 1, 3, 5 … away.
    runs = tuple((2 * number, 1) for number in range(40))
    chunk = Chunk("t", 2, "t", 0, 90, 40, 5, 0, len(data), runs=runs)
    at, count, rows = 0, 0, 0
    with peak_below(45 * MIB):  # rows that go through the JVM are copied
        for one, content in through(chunk, data, **records):
            assert one.base_offset == at
            at = one.next_offset
            count += one.record_count
            rows += 1
            assert at in (90, 2 * count - 1)
            found = [record for a, b in split(content) for record in decode_records(content[a:b])]
            assert len(found) == one.record_count
            del found, content
    assert (at, count) == (90, 40)
    assert rows > 2


def test_damage_behind_the_first_portion_keeps_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_path._PartitionCounts, "of", lambda *_: 3)
    monkeypatch.setattr(record_path, "scans", partial(scans, cost_bytes_max=4 * MIB))
    good = answer(zeros(MIB), 20)
    bad = encode_batch([Record(20, 1, None, b"x" * 100)], codec=ZSTD)[:-9] + bytes(9)
    data = memoryview(bytes(good) + bad)
    chunk = Chunk("t", 2, "t", 0, 21, 21, 5, 0, len(data))
    done = list(through(chunk, data, partitioner=Partitioner.ROUND_ROBIN))
    assert 0 < done[-1][0].next_offset <= 20
    assert sum(one.record_count for one, _ in done) == done[-1][0].next_offset


# --- the others ---------------------------------------------------------------------------------


def test_batches_written_anew_cost_what_their_records_do() -> None:
    """Their bytes alone would fit; the batches behind come with the next answer."""
    data = answer(tiny(5_000), 20, 5_000, attributes=8)
    starts = [start for start, _ in split(data)] + [len(data)]
    groups = [BatchGroup(ZSTD, [(n, n + 1)], forced=True) for n in range(20)]
    limits = Limits(together_bytes_max=MIB)
    assert len(write_groups(data, starts, groups[:2], limits)) == 2
    with pytest.raises(BatchGroupError) as caught:
        write_groups(data, starts, groups, limits)
    assert 2 <= caught.value.frame <= 3


def test_a_comparison_reads_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_stream, "_UNPACKED_BYTES_MAX", 4 * MIB)
    data = answer(zeros(MIB), 60)
    chosen = select(data, 0, (), SelectRules(join_bytes=0, join_below_bytes=0))
    offsets: list[int] = []
    with peak_below(20 * MIB):
        for carried in _carried(chosen):
            offsets += carried.offsets
            del carried
    assert offsets == list(range(60))


class _Ear(ControlWatch):
    heard: int = 0

    def _apply(self, tp: TopicPartition, key: bytes | None, value: bytes | None) -> None:
        self.heard += 1


def test_the_control_topic_is_heard_in_portions_and_to_its_end() -> None:
    client = ClusterClient("c", ("127.0.0.1:1",), "test")
    ear = _Ear(FlowSettings(client, client, client, client), slot=0)
    data = answer(zeros(8 * MIB), 60)
    at, rounds = 0, 0
    while at < 60:
        chosen = select(data, at, (), SelectRules(join_below_bytes=0))
        before, at = at, ear._apply_all(TP, chosen)
        assert before < at <= before + 10
        rounds += 1
    assert ear.heard == 60
    assert rounds > 5
    # One that cannot be read takes nothing with it.
    bad = encode_batch([Record(0, 1, None, b"x" * 100)], codec=ZSTD)[:-9] + bytes(9)
    both = memoryview(bad + bytes(answer(zeros(100), 4))[len(zeros(100)) :])
    ear.heard = 0
    rules = SelectRules(join_below_bytes=0, check_crcs=False)
    assert ear._apply_all(TP, select(both, 0, (), rules)) == 4
    assert ear.heard == 3
    ear.close()


def test_a_batch_of_more_records_than_anybody_writes() -> None:
    data = bytearray(tiny(1_000))
    count = RECORDS_MAX + 1
    data[HEADER_BYTES - 4 : HEADER_BYTES] = count.to_bytes(4, "big")
    data[ATTRIBUTES_AT + 2 : ATTRIBUTES_AT + 6] = (count - 1).to_bytes(4, "big")
    sealed = seal(bytes(data[ATTRIBUTES_AT:HEADER_BYTES]), bytes(data[HEADER_BYTES:]), 0)
    view = memoryview(sealed + bytes(data[HEADER_BYTES:]))
    with pytest.raises(CorruptBatch, match=r"at most 2,097,152.*batch\.size"):
        list(decode_records(view))
    with pytest.raises(CorruptBatch, match=r"batch\.size"):
        list(scans(view))
