"""Fields of many records as columns, and records whose fields were replaced."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from sparkmirror.errors import CorruptBatch
from sparkmirror.records.encode_columns import encode_columns
from sparkmirror.records.key_columns import Scan, scan
from sparkmirror.records.record_fields import (
    Fields,
    Headers,
    Varbin,
    chosen,
    gather,
    header_columns,
    read_headers,
    record_fields,
    with_fields,
)
from sparkmirror.records.records import Record, decode_records, encode_batch, encode_headers

_RANDOM = random.Random(7)


def _text(most: int) -> bytes | None:
    size = _RANDOM.choice([-1, 0, 1, 63, 64, 127, 128, 8191, 8192, most])
    return None if size < 0 else bytes(_RANDOM.getrandbits(8) for _ in range(size))


RECORDS = [
    Record(
        100 + number,
        1_000 + number,
        _text(20),
        _text(20_000),
        tuple((b"h%d" % each, _text(30)) for each in range(number % 3)),
    )
    for number in range(60)
]


def _scan(codec: int = 0) -> Scan:
    return scan(memoryview(encode_batch(RECORDS, codec=codec)))


def _varbin(values: list[bytes | None]) -> Varbin:
    sizes = np.array([-1 if one is None else len(one) for one in values], np.int64)
    return Varbin(sizes, np.frombuffer(b"".join(one or b"" for one in values), np.uint8))


def _values(column: Varbin) -> list[bytes | None]:
    ends = np.cumsum(np.maximum(column.sizes, 0))
    return [
        None if size < 0 else column.data[end - size : end].tobytes()
        for size, end in zip(column.sizes.tolist(), ends.tolist(), strict=True)
    ]


def _decoded(found: Scan) -> list[Record]:
    (batch,) = encode_columns(found.columns, [0])
    return list(decode_records(memoryview(batch.data)))


@pytest.mark.parametrize("codec", [0, 3])
def test_keys_values_and_headers_are_read_as_columns(codec: int) -> None:
    found = _scan(codec)
    fields = record_fields(found)
    flat = found.columns.flat
    keys = _values(gather(flat, found.key_at, found.key_bytes))
    values = _values(gather(flat, fields.value_at, fields.value_bytes))
    headers = read_headers(found, fields, 0, len(RECORDS))
    assert keys == [one.key for one in RECORDS]
    assert values == [one.value for one in RECORDS]
    assert headers == [one.headers for one in RECORDS]


def test_chosen_records_are_written_unchanged() -> None:
    rows = np.array([number % 3 == 0 for number in range(60)])
    written = _decoded(chosen(_scan(), rows))
    assert [(one.key, one.value, one.headers, one.timestamp) for one in written] == [
        (one.key, one.value, one.headers, one.timestamp) for one in RECORDS[::3]
    ]


@pytest.mark.parametrize("name", ["key", "value", "headers", "timestamp", "all"])
def test_a_replaced_field_leaves_the_others(name: str) -> None:
    texts = [_text(300) for _ in RECORDS]
    headers = [((b"new", text),) if text else () for text in texts]
    times = np.arange(60, dtype=np.int64) * 7
    every = name == "all"
    written = _decoded(
        with_fields(
            _scan(),
            key=_varbin(texts) if every or name == "key" else None,
            value=_varbin(texts) if every or name == "value" else None,
            headers=list(map(encode_headers, headers)) if every or name == "headers" else None,
            timestamp=times if every or name == "timestamp" else None,
        )
    )
    for number, (one, before) in enumerate(zip(written, RECORDS, strict=True)):
        assert one.key == (texts[number] if every or name == "key" else before.key)
        assert one.value == (texts[number] if every or name == "value" else before.value)
        assert one.headers == (headers[number] if every or name == "headers" else before.headers)
        assert one.timestamp == (
            times[number] if every or name == "timestamp" else before.timestamp
        )


def test_a_value_that_ends_outside_its_record_is_refused() -> None:
    batch = bytearray(encode_batch([Record(5, 1, b"k", b"value")]))
    batch[batch.rindex(b"value") - 1] = 0x7E  # 63 bytes
    with pytest.raises(CorruptBatch, match="offset 5"):
        record_fields(scan(memoryview(batch)))


@pytest.mark.parametrize(
    ("record", "read"),
    [
        (Record(5, 1, b"x" * 50, b"v"), scan),
        (Record(5, 1, b"k", b"x" * 50), lambda data: record_fields(scan(data))),
    ],
    ids=["key", "value"],
)
def test_a_field_as_large_as_an_int64_is_refused(
    record: Record, read: Callable[[memoryview], Scan | Fields]
) -> None:
    batch = bytearray(encode_batch([record]))
    at = batch.index(b"xxx") - 1
    batch[at : at + 10] = b"\xfe" + b"\xff" * 8 + b"\x01"  # 2^63 - 1 bytes
    with pytest.raises(CorruptBatch, match="offset 5"):
        read(memoryview(batch))


def test_headers_that_cannot_be_read_do_not_stop_the_others() -> None:
    batch = bytearray(encode_batch([Record(5, 1, b"k", b"v"), Record(6, 1, b"k", b"v")]))
    batch[-1] = 0x08  # four headers, without any bytes
    found = scan(memoryview(batch))
    assert read_headers(found, record_fields(found), 0, 2) == [(), None]


def _of_columns(found: Scan, first: int, end: int) -> list[Headers] | None:
    """What `header_columns` reads, record by record."""
    read = header_columns(found, record_fields(found), first, end)
    if read is None:
        return None
    names, values = iter(_values(read.names)), iter(_values(read.values))
    return [tuple((next(names), next(values)) for _ in range(one)) for one in read.counts.tolist()]


@pytest.mark.parametrize(("first", "end"), [(0, 60), (0, 1), (3, 20), (59, 60)])
@pytest.mark.parametrize("codec", [0, 3])
def test_headers_of_all_records_are_read_at_once(codec: int, first: int, end: int) -> None:
    read = _of_columns(_scan(codec), first, end)
    assert read == [one.headers for one in RECORDS[first:end]]


@pytest.mark.parametrize("count", [0, 1, 64, 65, 300])
def test_records_with_very_many_headers_are_read_singly(count: int) -> None:
    records = [
        Record(5, 1, b"k", b"v", tuple((b"h", b"%d" % n) for n in range(count))),
        Record(6, 1, None, None, ((b"", None), (b"", b""))),
    ]
    found = scan(memoryview(encode_batch(records)))
    read = _of_columns(found, 0, 2)
    assert read == (None if count > 64 else [one.headers for one in records])
    assert read_headers(found, record_fields(found), 0, 2) == [one.headers for one in records]


def test_damaged_headers_are_never_read_as_others() -> None:
    """Bytes of the headers are replaced, also by those of varints as large as an int64."""
    records = [
        Record(5 + n, 1, b"k", b"v", ((b"name", b"value"), (b"", None), (b"h" * 70, b"x" * 70)))
        for n in range(3)
    ]
    whole = encode_batch(records)
    first = whole.index(b"name") - 2
    rng, seen = random.Random(11), {True: 0, False: 0}
    largest = [b"\xff" * 9 + b"\x01", b"\xfe" + b"\xff" * 8 + b"\x01", b"\x80" * 12]
    for _ in range(3_000):
        batch = bytearray(whole)
        at = rng.randrange(first, len(batch))
        junk = rng.choice([*largest, rng.randbytes(1), rng.randbytes(2)])[: len(batch) - at]
        batch[at : at + len(junk)] = junk
        try:
            found = scan(memoryview(batch))
            singly = read_headers(found, record_fields(found), 0, 3)
        except CorruptBatch:
            continue
        read = _of_columns(found, 0, 3)
        seen[read is None] += 1
        if read is not None:
            assert read == singly
        else:
            assert None in singly
    assert min(seen.values()) > 100
