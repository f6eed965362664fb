"""Both ends of transforms, with a plan in between that this test computes itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from sparkmirror.data.rows.notes import SlotNotes
from sparkmirror.data.rows.rows import FLUSH, Chunk, build_row, read_row
from sparkmirror.data.transform import unpack
from sparkmirror.data.transform.columns import COLUMNS, TIME_MS_MAX, arrow_schema, message_bytes
from sparkmirror.data.transform.pack import Packed, Packer
from sparkmirror.data.transform.reasons import Reasons
from sparkmirror.data.transform.results import encoded_headers, varbin_of
from sparkmirror.data.transform.routing import Router
from sparkmirror.data.transform.unpack import Unpacker
from sparkmirror.errors import Defect
from sparkmirror.progress import TransformCounts
from sparkmirror.records.codecs import NAMES
from sparkmirror.records.header import codec as batch_codec
from sparkmirror.records.header import split
from sparkmirror.records.records import Record, decode_records, encode_batch, encode_headers
from sparkmirror.settings import ClusterClient, FaultSettings, FlowSettings
from sparkmirror.transform_settings import TransformSettings

_CLIENT = ClusterClient("A", ("localhost:1",), "test")
FLOW = FlowSettings(
    _CLIENT,
    _CLIENT,
    _CLIENT,
    _CLIENT,
    transforms=(TransformSettings("clean", ("orders",), "true"),),
)
USES = [frozenset(COLUMNS)]

Row = dict[str, Any]
Plan = Callable[[Row], Any]
"""What a transform gives for a record: None to filter it, `FAILED`, or the replaced fields."""
FAILED = object()


def _records(first: int, count: int) -> list[Record]:
    return [
        Record(
            first + number,
            1_000 + first + number,
            b"k%d" % number,
            b"v%d" % (first + number),
            ((b"h", b"x"),) if number % 2 else (),
        )
        for number in range(count)
    ]


def _row(*parts: tuple[str, list[Record], int], notes: SlotNotes | None = None) -> pa.RecordBatch:
    chunks, pieces = [], []
    for topic, records, codec in parts:
        data = b""
        for start in range(0, len(records), 50):
            data += encode_batch(records[start : start + 50], codec=codec)
        first, end = records[0].offset, records[-1].offset + 1
        times = max(one.timestamp for one in records)
        chunks.append(Chunk(topic, 0, f"A.{topic}", first, end, len(records), times, 0, len(data)))
        pieces.append([data])
    return build_row(chunks, memoryview(b""), pieces, notes)


def _planned(messages: Iterator[pa.RecordBatch], plan: Plan, fields: pa.StructType) -> pa.Table:
    """The source's rows after Spark's projection, as one table."""
    table = pa.Table.from_batches(list(messages), arrow_schema(USES))
    kind = pa.struct([("began", pa.int64()), ("record", fields), ("ended", pa.int64())])
    made = []
    for row in table.to_pylist():
        result = None if row["__transform"] is None else plan(row)
        if row["__transform"] is None or result is FAILED:
            made.append(None)
        else:
            record = None if result is None else {"kept": True, **result}
            # One record in 16 took 2 µs.
            clock = (5_000, 7_000) if row["__at"] % 16 == 0 else (None, None)
            made.append({"began": clock[0], "record": record, "ended": clock[1]})
    return pa.table(
        {
            "__head": table["__head"],
            "__records": table["__records"],
            "__at": table["__at"],
            "t0": pa.array(made, kind),
        }
    )


def _through(
    rows: list[pa.RecordBatch],
    plan: Plan,
    *replaced: tuple[str, pa.DataType],
    size: int = 256,
    flow: FlowSettings = FLOW,
    reasons: Reasons | None = None,
    router: Router | None = None,
) -> list[tuple[list[Chunk], memoryview] | Packed]:
    """What the sink gets, in order: rows' other chunks, and packed ones."""
    fields = pa.struct([("kept", pa.bool_()), *replaced])
    table = _planned(Unpacker(FLOW, USES, None).rows(iter(rows)), plan, fields)
    packer = Packer(flow, reasons, router=router)
    found: list[tuple[list[Chunk], memoryview] | Packed] = []
    for batch in table.combine_chunks().to_batches(size):
        for part in packer.parts(batch):
            if isinstance(part, int):
                chunks, records, _, _ = read_row(batch, part)
                others = packer.hold(chunks, records)
                if others:
                    found.append((others, records))
            else:
                found.append(part)
    packer.finish()
    return found


def _decoded(packed: Packed) -> list[Record]:
    data = packed.records
    records: list[Record] = []
    for start, end in split(data):
        records += decode_records(data[start:end])
    return records


def _offsets(packed: list[Any]) -> list[int]:
    return [
        first + number
        for one in packed
        if one.chunk.record_count
        for first, count in one.chunk.source_runs
        for number in range(count)
    ]


def test_who_stamped_a_record_reaches_the_sql() -> None:
    row = _row(("orders", _records(10, 20), 3))
    chunks, records, _, _ = read_row(row, 0)
    chunk = replace(chunks[0], appended=[(3, 12), (20, 22)])
    seen: list[tuple[int, int]] = []

    def plan(row: Row) -> Any:
        seen.append((row["offset"], row["timestampType"]))
        return {}

    _through([build_row([chunk], memoryview(b""), [[bytes(records)]]), FLUSH], plan)
    assert seen == [(offset, int(offset in (10, 11, 20, 21))) for offset in range(10, 30)]


def test_a_time_in_nanoseconds_is_a_late_one() -> None:
    """Some producers write them. Microseconds of it would have more than 64 bits."""
    times = [5, 1_795_000_000_000_000_000, -1]
    records = [Record(number, ms, None, b"v") for number, ms in enumerate(times)]
    rows = Unpacker(FLOW, USES, None).rows(iter([_row(("orders", records, 0)), FLUSH]))
    column = pa.Table.from_batches(list(rows), arrow_schema(USES))["timestamp"].drop_null()
    assert column.cast(pa.int64()).to_pylist() == [5_000, TIME_MS_MAX * 1_000, -1_000]


@pytest.mark.parametrize("size", [1, 3, 256, 10_000])
@pytest.mark.parametrize("codec", [0, 2, 3])
def test_a_filter_keeps_records_and_runs_of_source_offsets(size: int, codec: int) -> None:
    rows = [_row(("orders", _records(10, 500), codec)), FLUSH]
    found: list[Any] = _through(rows, lambda row: {} if row["offset"] % 7 else None, size=size)
    kept = [one for one in _records(10, 500) if one.offset % 7]
    records = [record for one in found for record in _decoded(one)]
    assert [(one.timestamp, one.key, one.value, one.headers) for one in records] == [
        (one.timestamp, one.key, one.value, one.headers) for one in kept
    ]
    assert _offsets(found) == [one.offset for one in kept]
    assert found[-1].chunk.next_offset == 510


@pytest.mark.parametrize("wanted", NAMES)
@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("changed", [False, True])
def test_batches_get_the_codec_of_the_transform(wanted: str, codec: int, changed: bool) -> None:
    """Whether records are left out, changed or all kept as they are."""
    transforms = (replace(FLOW.transforms[0], compression=wanted),)
    rows = [_row(("orders", _records(0, 300), codec)), FLUSH]
    fields = [("value", pa.binary())] if changed else []

    def plan(row: Row) -> Any:
        value = {"value": row["value"]} if changed else {}
        return value if row["offset"] != 7 else None

    (packed,) = _through(rows, plan, *fields, flow=replace(FLOW, transforms=transforms))
    assert isinstance(packed, Packed)
    batches = [packed.records[start:end] for start, end in split(packed.records)]
    assert {NAMES[batch_codec(one)] for one in batches} == {wanted}
    assert [one.value for one in _decoded(packed)] == [
        one.value for one in _records(0, 300) if one.offset != 7
    ]


@pytest.mark.parametrize("wanted", NAMES)
def test_batches_of_several_codecs_get_the_one_of_the_transform(wanted: str) -> None:
    """Also if the first one has it already."""
    records = [Record(n, 5, None, b"%04d" % n * 100) for n in range(200)]
    data = [encode_batch(records[:100], codec=3), encode_batch(records[100:], codec=4)]
    size = sum(map(len, data))
    chunk = Chunk("orders", 0, "A.orders", 0, 200, 200, 5, 0, size)
    transforms = (replace(FLOW.transforms[0], compression=wanted),)
    rows = [build_row([chunk], memoryview(b""), [data]), FLUSH]
    (packed,) = _through(rows, lambda _: {}, flow=replace(FLOW, transforms=transforms))
    assert isinstance(packed, Packed)
    batches = [packed.records[start:end] for start, end in split(packed.records)]
    assert {NAMES[batch_codec(one)] for one in batches} == {wanted}
    assert [one.value for one in _decoded(packed)] == [one.value for one in records]


def test_the_position_moves_when_everything_was_filtered() -> None:
    (packed,) = _through([_row(("orders", _records(0, 300), 0)), FLUSH], lambda _: None)
    assert isinstance(packed, Packed)
    assert (packed.chunk.next_offset, packed.chunk.record_count, packed.chunk.size) == (300, 0, 0)
    assert packed.chunk.timestamp_ms == -1


def test_replaced_fields_tombstones_headers_and_timestamps() -> None:
    def plan(row: Row) -> Any:
        value = None if row["offset"] == 3 else row["value"].upper()
        return {"value": value, "headers": [*row["headers"], {"key": "n", "value": None}]}

    kind = arrow_schema(USES).field("headers").type
    rows = [_row(("orders", _records(0, 300), 3)), FLUSH]
    (packed,) = _through(rows, plan, ("value", pa.binary()), ("headers", kind))
    assert isinstance(packed, Packed)
    for one, before in zip(_decoded(packed), _records(0, 300), strict=True):
        assert one.value == (None if before.offset == 3 else (before.value or b"").upper())
        assert one.headers == (*before.headers, (b"n", None))
        assert (one.key, one.timestamp) == (before.key, before.timestamp)


def test_header_names_that_are_no_text_keep_their_bytes() -> None:
    """Spark's strings may hold any bytes, such as those of a column that was cast from binary."""
    kind = arrow_schema(USES).field("headers").type
    octets = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
    headers = [{"key": b"\xff\xc3", "value": b"x"}, {"key": None, "value": b"y"}, None]
    column = pa.array([headers, None, []], octets).cast(kind, safe=False)
    assert encoded_headers(column) == [encode_headers([(b"\xff\xc3", b"x")])] + 2 * [
        encode_headers([])
    ]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_strings_with_offsets_of_any_size(kind: pa.DataType) -> None:
    for missing, size in ((None, -1), (b"", 0)):
        values = [b"0", b"abc", missing, b"", b"defg", b"hh", b"x"]
        column = pa.array(values, pa.binary()).cast(kind)
        for one in (column.slice(1, 5), column.take(pa.array([1, 2, 3, 4, 5]))):
            found = varbin_of(one)
            assert found.sizes.tolist() == [3, size, 0, 4, 2]
            assert found.data.tobytes() == b"abcdefghh"


def test_a_replaced_timestamp() -> None:
    def plan(row: Row) -> Any:
        return {"timestamp": row["timestamp"] + timedelta(seconds=row["offset"])}

    kind = arrow_schema(USES).field("timestamp").type
    rows = [_row(("orders", _records(0, 30), 0)), FLUSH]
    (packed,) = _through(rows, plan, ("timestamp", kind))
    assert isinstance(packed, Packed)
    times = [1_000 + 1_001 * offset for offset in range(30)]
    assert [one.timestamp for one in _decoded(packed)] == times
    assert packed.chunk.timestamp_ms == times[-1]


@pytest.mark.parametrize("portion_bytes", [1, 16 << 20])
def test_source_offsets_of_batches_that_were_joined_on_the_way(
    portion_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their records are numbered without gaps; the chunk knows the gaps."""
    monkeypatch.setattr("sparkmirror.data.transform.portions._PORTION_BYTES_MAX", portion_bytes)
    records = _records(10, 6)
    data = encode_batch(records[:4], codec=3) + encode_batch(records[4:], codec=3)
    runs = ((10, 2), (20, 3), (40, 1))
    chunk = Chunk("orders", 0, "A.orders", 10, 50, 6, 1_015, 0, len(data), runs=runs)
    seen: list[int] = []

    def plan(row: Row) -> Any:
        seen.append(row["offset"])
        return {} if row["offset"] != 21 else None

    found: list[Any] = _through([build_row([chunk], memoryview(b""), [[data]]), FLUSH], plan)
    assert seen == [10, 11, 20, 21, 22, 40]
    assert _offsets(found) == [10, 11, 20, 22, 40]
    assert [one.chunk.next_offset for one in found] == ([22, 50] if portion_bytes == 1 else [50])


def test_a_tombstone_reaches_the_sql_as_null() -> None:
    records = [Record(0, 5, None, None), Record(1, 6, b"", b"")]
    seen: list[tuple[Any, Any]] = []

    def plan(row: Row) -> Any:
        seen.append((row["key"], row["value"]))
        return {}

    (packed,) = _through([_row(("orders", records, 0)), FLUSH], plan)
    assert isinstance(packed, Packed)
    assert seen == [(None, None), (b"", b"")]
    assert [(one.key, one.value) for one in _decoded(packed)] == seen


def test_records_on_which_the_sql_fails_are_handed_over_as_they_are() -> None:
    rows = [_row(("orders", _records(0, 10), 0)), FLUSH]
    flow = replace(FLOW, faults=FaultSettings(bad_record="dead-letter"))
    (packed,) = _through(rows, lambda row: FAILED if row["offset"] in (4, 5) else {}, flow=flow)
    assert isinstance(packed, Packed)
    (failed,) = packed.failed
    assert list(failed.records) == _records(0, 10)[4:6]
    assert (len(_decoded(packed)), packed.chunk.next_offset, packed.halt) == (8, 10, None)


@pytest.mark.parametrize("bad", [0, 4, 9])
def test_a_partition_stops_before_the_first_record_on_which_the_sql_fails(bad: int) -> None:
    """No record behind it is written, also not one that the SQL likes."""
    rows = [_row(("orders", _records(0, 10), 0)), FLUSH]
    (packed,) = _through(rows, lambda row: FAILED if row["offset"] in (bad, bad + 2) else {})
    assert isinstance(packed, Packed)
    assert packed.halt is not None
    assert packed.halt.retriable
    assert f"first at source offset {bad}." in packed.halt.reason
    command = f"'sparkmirror transform try FILE --topic orders --from {bad}' shows why it failed."
    assert packed.halt.reason.endswith(command)
    assert [one.value for one in _decoded(packed)] == [b"v%d" % one for one in range(bad)]
    assert (packed.chunk.next_offset, packed.failed) == (bad, ())


@pytest.mark.parametrize(
    ("choice", "counts"),
    [
        ("skip", TransformCounts("clean", 10, 4, 4, 2)),
        # The records behind the first failed one come again.
        ("pause", TransformCounts("clean", 6, 3, 2, 1)),
    ],
)
def test_what_became_of_the_records_is_counted(choice: str, counts: TransformCounts) -> None:
    flow = replace(FLOW, faults=FaultSettings(bad_record=choice))
    results: dict[int, Any] = {1: None, 3: None, 5: FAILED, 6: None, 7: FAILED, 9: None}
    rows = [_row(("orders", _records(0, 10), 0)), FLUSH]
    (packed,) = _through(rows, lambda row: results.get(row["offset"], {}), flow=flow)
    assert isinstance(packed, Packed)
    assert packed.counts is not None
    assert packed.counts.pack_s > 0
    assert packed.counts.sql_s == pytest.approx(10 * 2e-6)
    assert replace(packed.counts, pack_s=0.0, sql_s=0.0) == counts
    assert packed.chunk.record_count == counts.records_out


def test_how_long_unpacking_took_is_told_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(unpack.time, "monotonic", lambda: now[0])
    told: list[float] = []

    def slowly() -> Iterator[pa.RecordBatch]:
        for number in range(4):
            yield _row(("orders", _records(50 * number, 50), 3))
            now[0] += 0.6
        for _ in range(3):
            yield FLUSH
            now[0] += 0.6

    for batch in Unpacker(FLOW, USES, None).rows(slowly()):
        if batch.column(0)[0].is_valid:
            notes = read_row(batch, 0)[2]
            if notes is not None and notes.unpacked is not None:
                told.append(notes.unpacked["clean"])
    # After 1.2 and 2.4 s; from then on nothing is new.
    assert len(told) == 2
    assert 0 < told[0] < told[1]


class _Known(Reasons):
    """Knows why the SQL failed on records with an even offset."""

    def __init__(self) -> None:
        super().__init__("", "A->B")
        self.asked: list[tuple[int, str, int, list[int]]] = []

    def of(
        self, number: int, topic: str, partition: int, records: Sequence[Record]
    ) -> dict[int, str]:
        offsets = [one.offset for one in records]
        self.asked.append((number, topic, partition, offsets))
        return {one: f"[WHY] {one}" for one in offsets if one % 2 == 0}


def test_a_halt_says_why_the_sql_failed_on_its_record() -> None:
    known, rows = _Known(), [_row(("orders", _records(0, 10), 0)), FLUSH]
    plan: Plan = lambda row: FAILED if row["offset"] >= 4 else {}  # noqa: E731
    (packed,) = _through(rows, plan, reasons=known)
    assert isinstance(packed, Packed)
    assert packed.halt is not None
    assert "first at source offset 4: [WHY] 4. Correct it" in packed.halt.reason
    assert packed.halt.reason.endswith("to skip or dead-letter.")
    assert known.asked == [(0, "orders", 0, [4])]


def test_failed_records_say_why_one_by_one() -> None:
    known, rows = _Known(), [_row(("orders", _records(0, 10), 0)), FLUSH]
    flow = replace(FLOW, faults=FaultSettings(bad_record="skip"))
    plan: Plan = lambda row: FAILED if row["offset"] >= 7 else {}  # noqa: E731
    (packed,) = _through(rows, plan, flow=flow, reasons=known)
    assert isinstance(packed, Packed)
    (failed,) = packed.failed
    assert known.asked == [(0, "orders", 0, [7, 8, 9])]
    assert failed.said(8).endswith("failed on these records: [WHY] 8")
    assert failed.said(9).endswith("failed on these records")


def test_other_topics_pass_untouched_and_before_the_records() -> None:
    row = _row(("plain", _records(0, 20), 3), ("orders", _records(0, 20), 0))
    untouched, packed = _through([row, FLUSH], lambda _: {})
    assert isinstance(untouched, tuple)
    assert isinstance(packed, Packed)
    (chunk,), records = untouched
    assert bytes(records[chunk.start : chunk.start + chunk.size]) == encode_batch(
        _records(0, 20), codec=3
    )
    assert packed.chunk.record_count == 20


def test_a_note_does_not_overtake_the_records_before_it() -> None:
    """A gap or a halt would count for records that are not written yet."""
    note = build_row([], memoryview(b""), [], SlotNotes(paused=True))
    rows = [_row(("orders", _records(0, 10), 0)), note, FLUSH]
    messages = Unpacker(FLOW, USES, None).rows(iter(rows))
    table = _planned(messages, lambda _: {}, pa.struct([("kept", pa.bool_())]))
    (batch,) = table.combine_chunks().to_batches()
    packer, order = Packer(FLOW), []
    for part in packer.parts(batch):
        if isinstance(part, Packed):
            order.append("records")
            continue
        chunks, records, notes, _ = read_row(batch, part)
        order.append("note" if notes is not None else "row")
        packer.hold(chunks, records)
    assert order == ["row", "records", "note"]


def test_many_rows_in_messages_of_any_size_lose_and_repeat_nothing() -> None:
    rng = random.Random(3)
    at, rows = 0, []
    for _ in range(40):
        count = rng.choice([1, 2, 30, 255, 256, 257, 700])
        rows.append(_row(("orders", _records(at, count), rng.choice([0, 3, 4]))))
        at += count
    found: list[Any] = _through(rows, lambda row: {} if row["offset"] % 2 else None, size=97)
    assert _offsets(found) == list(range(1, at, 2))
    ends = [one.chunk.next_offset for one in found]
    assert ends == sorted(ends)
    assert ends[-1] == at
    for before, after in pairwise(found):
        assert after.chunk.base_offset >= before.chunk.next_offset


@pytest.mark.parametrize(
    "name", [b"name", "größe".encode(), b"\xff\xfe"], ids=["ASCII", "UTF-8", "no UTF-8"]
)
def test_headers_become_a_column(name: bytes) -> None:
    """Whether all are read at once or, because of a name, one record after the other."""
    made = [(), ((name, b"\x00\xff"), (b"", None)), ((b"h", b""), (b"h", b"2")), ((name, None),)]
    records = [Record(n, 1, None, b"v", headers) for n, headers in enumerate(made)]
    rows = Unpacker(FLOW, USES, None).rows(iter([_row(("orders", records, 0)), FLUSH]))
    found = pa.Table.from_batches(list(rows), arrow_schema(USES))["headers"].to_pylist()
    assert [one for one in found if one is not None] == [
        [{"key": key.decode("utf-8", "replace"), "value": value} for key, value in headers]
        for headers in made
    ]


def test_each_message_ends_with_a_row_that_pushes_it_through() -> None:
    rows, size = [_row((topic, _records(0, 3), 0)) for topic in ("plain", "orders")], 64 << 10
    rows += [_row(("plain", [Record(0, 1, None, bytes(size))], 0)), FLUSH]
    plain, row, results, first, large, *others = Unpacker(FLOW, USES, None).rows(iter(rows))
    assert [one.num_rows for one in (plain, row, results, large)] == [3, 1, 3, 1]
    assert results["__head"].null_count == 3
    for one in (plain, row, large):
        assert one["__head"][0].is_valid
    flushes = [plain.slice(1), first, *others]
    assert len(flushes) == len(rows)
    for flush in flushes:
        assert flush["__head"].null_count == flush.num_rows == 2
        assert flush["__records"].to_pylist() == [bytes(size), None]


@pytest.mark.parametrize("option", ["select", "python"])
def test_messages_are_larger_where_results_have_new_values(option: str) -> None:
    """Records that are only left out have small results."""
    one = replace(FLOW.transforms[0], **{option: "x"})
    assert message_bytes(FLOW) == 64 << 10
    assert message_bytes(replace(FLOW, transforms=(*FLOW.transforms, one))) == 256 << 10


def test_records_of_all_sizes_pass() -> None:
    sizes = [100_000] * 30 + [3_000_000] * 2 + [10] * 600 + [20_000] * 100
    records = [Record(n, 1_000, None, bytes(size)) for n, size in enumerate(sizes)]
    rows = [_row(("orders", records, 0)), FLUSH]
    for message in Unpacker(FLOW, USES, None).rows(iter(rows)):
        if message["__transform"].null_count == 0:
            assert message.nbytes < 4 << 20
    found: list[Any] = _through(rows, lambda row: {} if row["offset"] % 3 else None)
    assert _offsets(found) == [n for n in range(len(sizes)) if n % 3]


@pytest.mark.parametrize("rows", [1, 5])
def test_lost_results_end_the_task(rows: int) -> None:
    """All of them, or some."""
    table = _planned(
        Unpacker(FLOW, USES, None).rows(iter([_row(("orders", _records(0, 9), 0))])),
        lambda _: {},
        pa.struct([("kept", pa.bool_())]),
    )
    (batch,) = table.slice(0, rows).combine_chunks().to_batches()
    packer = Packer(FLOW)
    for part in packer.parts(batch):
        assert isinstance(part, int)
        chunks, records, _, _ = read_row(batch, part)
        packer.hold(chunks, records)
    with pytest.raises(Defect, match="1 chunks wait"):
        packer.finish()


def test_a_chunk_that_cannot_be_read_is_given_up_and_the_next_one_is_not() -> None:
    row = _row(("orders", _records(0, 9), 0))
    chunks, records, _, _ = read_row(row, 0)
    damaged = bytearray(records)
    damaged[61] = 0xFF  # the length of the first record
    broken = build_row(chunks, memoryview(b""), [[bytes(damaged)]])
    given_up, packed = _through([broken, row, FLUSH], lambda _: {})
    assert isinstance(given_up, Packed)
    assert isinstance(packed, Packed)
    assert given_up.halt is not None
    assert given_up.halt.code == "CORRUPT_BATCH"
    assert given_up.chunk.next_offset == 0
    assert packed.halt is None
    assert packed.chunk.record_count == 9
