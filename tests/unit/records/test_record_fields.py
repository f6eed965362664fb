"""Fields of many records as columns, and records whose fields were replaced."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sparkmirror.errors import CorruptBatch
from sparkmirror.records.encode_columns import encode_columns
from sparkmirror.records.key_columns import Scan, scan
from sparkmirror.records.record_fields import (
    Varbin,
    chosen,
    gather,
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


def test_headers_that_cannot_be_read_do_not_stop_the_others() -> None:
    batch = bytearray(encode_batch([Record(5, 1, b"k", b"v"), Record(6, 1, b"k", b"v")]))
    batch[-1] = 0x08  # four headers, without any bytes
    found = scan(memoryview(batch))
    assert read_headers(found, record_fields(found), 0, 2) == [(), None]
