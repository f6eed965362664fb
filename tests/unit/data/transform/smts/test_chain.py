"""Single message transforms on bytes, beside Java's and beside a plain reading of what they do."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

from sparkmirror.data.rows.rows import Chunk, build_row, read_row
from sparkmirror.data.transform.pack import Packed, Packer
from sparkmirror.data.transform.smts.chain import Chain
from sparkmirror.errors import CorruptBatch
from sparkmirror.names.transforms import Transformed, needs_spark, smts_on_bytes
from sparkmirror.records.header import CRC_AT, HEADER_BYTES, split
from sparkmirror.records.key_columns import scan
from sparkmirror.records.record_fields import record_fields
from sparkmirror.records.records import Record, decode_records, decode_rest, encode_batch
from sparkmirror.records.varint import varint
from sparkmirror.settings import FlowSettings
from sparkmirror.transform_settings import SmtSettings
from tests.unit.data.transform.smts.samples import (
    Sample,
    flow_of,
    new_records,
    random_config,
    random_sample,
)
from tests.vectors import load

_BY_HEADER = {
    "transforms": "drop",
    "transforms.drop.type": "Filter",
    "transforms.drop.predicate": "test",
    "predicates": "test",
    "predicates.test.type": "HasHeaderKey",
    "predicates.test.name": "test",
}


def _packed(flow: FlowSettings, chunk: Chunk, data: bytes) -> list[Packed]:
    """What the sink makes of a row of raw batches."""
    packer = Packer(flow)
    row = build_row([chunk], memoryview(b""), [[data]])
    made = []
    for part in packer.parts(row):
        if isinstance(part, Packed):
            made.append(part)
        else:
            chunks, records, _, _ = read_row(row, part)
            assert packer.hold(chunks, records) == []
    packer.finish()
    packer.close()
    return made


def _sample(records: list[list[Record]], *, codec: int = 0) -> Sample:
    data = b"".join(encode_batch(one, codec=codec) for one in records)
    flat = [each for one in records for each in one]
    times = max(one.timestamp for one in flat)
    end = flat[-1].offset + 1
    runs = tuple((one.offset, 1) for one in flat)
    chunk = Chunk("t", 0, "A.t", flat[0].offset, end, len(flat), times, 0, len(data), runs=runs)
    return Sample(chunk, data, flat)


def test_the_chains_do_to_records_what_java_does() -> None:
    tried = 0
    for case in load("smts")["chains"]:
        flow = flow_of(case["config"])
        assert not needs_spark(flow)
        transformed, chains = Transformed(flow), [Chain(one) for one in smts_on_bytes(flow)]
        for record, result in zip(case["records"], case["results"], strict=True):
            number = transformed.number(record[0])
            if number < 0:
                continue
            before = _record(record)
            outcome = chains[number].outcome(scan(memoryview(encode_batch([before]))))
            assert bool(outcome.kept[0]) is (result is not None), (case["config"], record)
            if result is not None:
                after = outcome.written().columns
                data = after.flat[after.rest_at[0] : after.rest_at[0] + after.rest_bytes[0]]
                assert data.tobytes() == _rest(_record(result)), (case["config"], record)
            tried += 1
    assert tried > 500


def _record(listed: list) -> Record:  # type: ignore[type-arg]
    key, value = (None if one is None else one.encode("latin-1") for one in listed[3:5])
    headers = tuple(
        (name.encode(), None if text is None else text.encode("latin-1"))
        for name, text in listed[5]
    )
    return Record(0, listed[2], key, value, headers)


def _rest(record: Record) -> bytes:
    found = scan(memoryview(encode_batch([record]))).columns
    first = int(found.rest_at[0])
    return found.flat[first : first + int(found.rest_bytes[0])].tobytes()


def _plain(smts: tuple[SmtSettings, ...], record: Record) -> Record | None:
    """What the documentation says of each SMT, one record at a time."""
    headers = [(name.decode("utf-8", "replace"), value) for name, value in record.headers]
    for one in smts:
        true = {
            "": True,
            "TopicNameMatches": True,  # else it is not among the topic's
            "RecordIsTombstone": record.value is None,
            "HasHeaderKey": one.argument in [name for name, _ in headers],
        }[one.predicate]
        if one.predicate not in ("", "TopicNameMatches") and true is one.negate:
            continue
        if one.kind == "Filter":
            return None
        if one.kind == "DropHeaders":
            headers = [pair for pair in headers if pair[0] not in one.headers]
        else:
            headers.append((one.headers[0], None))
    changes = any(one.kind != "Filter" for one in smts)
    told = tuple((name.encode(), value) for name, value in headers) if changes else record.headers
    return Record(record.offset, record.timestamp, record.key, record.value, told)


@pytest.mark.parametrize(
    "seed",
    [
        *range(5),
        *(pytest.param(each, marks=pytest.mark.more) for each in range(5, 15)),
        *(pytest.param(each, marks=pytest.mark.long) for each in range(15, 60)),
    ],
)
def test_random_chains_are_what_the_documentation_says(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(8):
        flow, sample = flow_of(random_config(rng)), random_sample(rng, "t")
        number = Transformed(flow).number("t")
        if number < 0:
            continue
        smts = smts_on_bytes(flow)[number]
        made = _packed(flow, sample.chunk, sample.data)
        wanted = [new for one in sample.records if (new := _plain(smts, one)) is not None]
        assert new_records(made) == wanted
        assert made[-1].chunk.next_offset == sample.chunk.next_offset
        counts = [one.counts for one in made if one.counts is not None]
        assert sum(one.records_in for one in counts) == len(sample.records)
        assert sum(one.records_out for one in counts) == len(wanted)
        assert all(one.failed == () and one.halt is None for one in made)
        runs = [run for one in made for run in one.chunk.runs]
        told = [first + index for first, count in runs for index in range(count)]
        assert told == [one.offset for one in wanted]


def test_a_batch_that_keeps_all_records_passes_as_it_is() -> None:
    """Not even unpacked again: a codec's level and the producer's own layout stay."""
    value = b"v" * 2000
    batches = [[Record(at + n, 5 + n, b"k", value, ()) for n in range(8)] for at in range(0, 24, 8)]
    batches[1][3] = Record(11, 8, b"k", value, ((b"test", b"1"),))
    for codec in range(5):
        sample = _sample(batches, codec=codec)
        (made,) = _packed(flow_of(_BY_HEADER), sample.chunk, sample.data)
        old = [sample.data[a:b] for a, b in split(memoryview(sample.data))]
        new = [bytes(made.records[a:b]) for a, b in split(made.records)]
        # Too small next to one that is written again, it is joined with it.
        raw = [one[8:] in [each[8:] for each in new] for one in old]
        assert raw == [len(one) >= 4096 and number != 1 for number, one in enumerate(old)]
        assert len(new_records([made])) == 23
        assert codec or raw == [True, False, True]


def test_small_batches_pass_as_they_are_if_nothing_changes_in_any() -> None:
    batches = [[Record(at, 5, b"k", b"v", ((b"other", b"1"),))] for at in range(5)]
    sample = _sample(batches, codec=1)
    (made,) = _packed(flow_of(_BY_HEADER), sample.chunk, sample.data)
    old = [sample.data[a + 8 : b] for a, b in split(memoryview(sample.data))]
    new = [bytes(made.records[a + 8 : b]) for a, b in split(made.records)]
    assert new == old


def test_what_a_target_would_refuse_is_written_again() -> None:
    """Offsets with gaps, and the broker's time."""
    records = [Record(0, 5, b"k", b"v" * 5000), Record(3, 6, b"k", b"v" * 5000)]
    for data in (
        encode_batch(records),
        encode_batch(records[:1], last_offset_delta=7),
        encode_batch(records[:1], attributes=8, max_timestamp=99),
    ):
        count = len(list(decode_records(memoryview(data))))
        chunk = Chunk("t", 0, "A.t", 0, 9, count, 6, 0, len(data))
        (made,) = _packed(flow_of(_BY_HEADER), chunk, data)
        assert made.records[8:] != data[8:]
        times = [one.timestamp for one in decode_records(made.records)]
        assert times == [one.timestamp for one in decode_records(memoryview(data))]


def test_a_batch_whose_records_are_numbered_wrongly_is_written_again() -> None:
    """Their numbers must lead to source offsets; brokers do not check uncompressed records."""
    data = bytearray(encode_batch([Record(n, 5, b"k", b"v" * 5000) for n in range(2)]))
    at = HEADER_BYTES + (len(data) - HEADER_BYTES) // 2 + 4  # the second record's offset delta
    assert data[at] == 2
    data[at] = 0
    chunk = Chunk("t", 0, "A.t", 0, 2, 2, 5, 0, len(data))
    (made,) = _packed(flow_of(_BY_HEADER), chunk, bytes(data))
    assert [one.offset for one in new_records([made])] == [0, 1]


_DROP = {"transforms": "a", "transforms.a.type": "DropHeaders", "transforms.a.headers": "x"}
_INSERT = {
    "transforms": "a",
    "transforms.a.type": "InsertHeader",
    "transforms.a.header": "new",
    "transforms.a.value.literal": "null",
}


@pytest.mark.parametrize(
    ("records", "times"),
    [
        # A name of a few kilobytes when it is compressed.
        ([Record(0, 5, b"k", b"v", ((b"n" * (4 << 20), b"v"),))], 4),
        # Names that are no text, for which records are read one by one.
        ([Record(n, 5, b"k", b"v", ((b"\xff", b"v"),) * 20) for n in range(3000)], 16),
    ],
    ids=["long", "odd"],
)
def test_headers_take_a_few_times_the_memory_of_their_bytes(
    records: list[Record], times: int
) -> None:
    found = scan(memoryview(encode_batch(records)))
    chain = Chain(smts_on_bytes(flow_of(_DROP))[0])
    tracemalloc.start()
    try:
        chain.outcome(found)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < times * len(found.columns.flat)


def test_a_chunk_of_which_nothing_stays_moves_the_position() -> None:
    sample = _sample([[Record(at, 5, None, b"v", ((b"test", None),)) for at in range(3, 6)]])
    (made,) = _packed(flow_of(_BY_HEADER), sample.chunk, sample.data)
    assert (made.chunk.base_offset, made.chunk.next_offset, made.chunk.size) == (3, 6, 0)
    assert made.chunk.timestamp_ms == -1
    assert made.counts is not None
    assert (made.counts.records_in, made.counts.records_out, made.counts.filtered) == (3, 0, 3)


def test_a_large_chunk_is_several_with_bounded_memory() -> None:
    """Each portion of what is decompressed is a chunk; together they have all records."""
    value = bytes(1 << 20)
    header = ((b"test", b"1"),)
    batches = [
        [Record(2 * n, 5, None, value), Record(2 * n + 1, 5, None, value, header if n % 2 else ())]
        for n in range(30)
    ]
    sample = _sample(batches, codec=4)
    made = _packed(flow_of(_BY_HEADER), sample.chunk, sample.data)
    assert len(made) > 2
    assert [one.offset for one in new_records(made)] == [
        one.offset for one in sample.records if not one.headers
    ]
    ends = [one.chunk.next_offset for one in made]
    assert ends == sorted(set(ends))
    assert ends[-1] == sample.chunk.next_offset


def test_damage_stops_the_partition_before_it() -> None:
    good = encode_batch([Record(0, 5, b"k", b"v", ((b"a", b"b"),))])
    bad = bytearray(encode_batch([Record(1, 5, b"k", b"v", ((b"a", b"b"),))]))
    bad[HEADER_BYTES] = 0x7E
    data = good + bytes(bad)
    chunk = Chunk("t", 0, "A.t", 0, 2, 2, 5, 0, len(data))
    (made,) = _packed(flow_of(_BY_HEADER), chunk, data)
    assert made.halt is not None
    assert made.chunk.next_offset == made.chunk.base_offset == 0
    assert not len(made.records)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (b"\x02\x08test\x02b", b"\x04\x08test\x02b"),  # two headers, of which one is there
        (b"\x02\x08test\x02b", b"\x00\x08test\x02b"),  # none, and what is there
        (b"\x02\x08test\x01", b"\x02\x08test\x03"),  # a value of -2 bytes
        (b"\x02v\x00", b"\x00\x02\x01"),  # a name of -1 bytes, which ends before its size
    ],
)
def test_headers_that_cannot_be_read_have_no_names(good: bytes, bad: bytes) -> None:
    """As in SQL: the record is kept, and a chain that changes headers leaves none."""
    headers = {b"\x02b": ((b"test", b"b"),), b"t\x01": ((b"test", None),)}.get(good[-2:], ())
    data = encode_batch([Record(0, 5, b"k", b"v", headers)])
    assert data.endswith(good)
    data = data[: -len(good)] + bad
    chunk = Chunk("t", 0, "A.t", 0, 1, 1, 5, 0, len(data))
    filtered = _packed(flow_of(_BY_HEADER), chunk, data)
    assert filtered[0].chunk.record_count == 1
    for config, left in ((_DROP, ()), (_INSERT, ((b"new", None),))):
        (made,) = _packed(flow_of(config), chunk, data)
        assert next(iter(decode_records(made.records))).headers == left


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(each, marks=pytest.mark.more) for each in range(2, 6))]
)
def test_headers_with_any_damage_are_what_a_plain_reading_finds(seed: int) -> None:
    """Numbers and sizes of any kind, up to 2^63, and names that run into the next record.

    Brokers check the headers of uncompressed records no more than their numbers.
    """
    rng = random.Random(seed)
    filtering = flow_of({**_BY_HEADER, "predicates.test.name": "tes"})
    dropping = flow_of({**_DROP, "transforms.a.headers": "tenant,tes"})
    odd = (b"\xff", *map(varint, (-2, -1, 0, 1, 3, 63, 65, 1 << 31, -(1 << 31), (1 << 63) - 1)))
    names, values = (b"tes", b"test", b"tenant", b"", b"n" * 70), (None, b"", b"v", b"tes" * 30)
    for _ in range(60):
        records = [
            Record(at, 5, b"k", b"v", tuple((rng.choice(names), rng.choice(values)) for _ in "ab"))
            for at in range(rng.randint(1, 5))
        ]
        data = bytearray(encode_batch(records))
        found = scan(memoryview(data))
        begins = record_fields(found).headers_at  # the bytes that are read are those of the batch
        ends = found.columns.rest_at + found.columns.rest_bytes
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            if rng.random() < 0.5:
                # Often their number, or the size of the first name.
                at = rng.choice((begin, begin + 1, rng.randrange(begin, end)))
                some = rng.choice((rng.randbytes(1), *odd))[: end - at]
                data[at : at + len(some)] = some
        columns = scan(memoryview(data)).columns
        plain: list[Record | None] = []
        for at, size in zip(columns.rest_at.tolist(), columns.rest_bytes.tolist(), strict=True):
            try:
                plain.append(decode_rest(0, 5, columns.flat.data[at : at + size]))
            except CorruptBatch:
                plain.append(None)
        chunk = Chunk("t", 0, "A.t", 0, len(records), len(records), 5, 0, len(data))
        (made,) = _packed(filtering, chunk, bytes(data))
        assert made.sources is not None
        assert made.sources.tolist() == [
            number
            for number, one in enumerate(plain)
            if one is None or b"tes" not in dict(one.headers)
        ]
        (made,) = _packed(dropping, chunk, bytes(data))
        dropped = (b"tes", b"tenant")
        assert [one.headers for one in new_records([made])] == [
            tuple(
                (name.decode("utf-8", "replace").encode(), value)
                for name, value in (() if one is None else one.headers)
                if name not in dropped
            )
            for one in plain
        ]


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 40, 200])
def test_names_of_any_length_are_told_apart(length: int) -> None:
    name = "n" * length
    config = {**_BY_HEADER, "predicates.test.name": name}
    chain = Chain(smts_on_bytes(flow_of(config))[0])
    others = [
        *("n" * (length - 1), "n" * (length + 1), "m" + name[1:], name[:-1] + "m"),
        *(name[:at] + "x" + name[at + 1 :] for at in range(length)),
    ]
    wanted = [False] * len(others) + [True]
    for value in (None, b"", b"v"):
        records = [
            Record(at, 5, None, None, ((one.encode(), value),))
            for at, one in enumerate([*others, name])
        ]
        outcome = chain.outcome(scan(memoryview(encode_batch(records))))
        assert np.logical_not(outcome.kept).tolist() == wanted


def test_a_route_by_time_needs_spark() -> None:
    config = {"transforms": "a", "transforms.a.type": "TimestampRouter"}
    flow = flow_of({**config, **{f"x{CRC_AT}": ""}})
    assert smts_on_bytes(flow) == [()]
    assert needs_spark(flow)
