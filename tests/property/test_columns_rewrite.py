"""The quick engine of joining: columns read from batches, and batches written from columns.

Its measure is the plain one: `decode_records`, record by record.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.errors import BatchError
from sparkmirror.records.columns import Columns, TooMuchError, read_columns, read_fields
from sparkmirror.records.encode_columns import encode_columns
from sparkmirror.records.header import HEADER, HEADER_BYTES
from sparkmirror.records.header_columns import gather_heads
from sparkmirror.records.record_offsets import IrregularRecordError
from sparkmirror.records.records import Limits, Record, decode_records, encode_batch
from tests.fuzz.inputs import resealed

TIMES = st.sampled_from((-1, 0, 1, 63, 64, 8_191, 8_192, 1 << 20, 1 << 40, 1_700_000_000_000))
SIZES = st.sampled_from((0, 1, 5, 50, 57, 58, 59, 60, 120, 8_180, 8_190, 17_000))


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[list[bytes]], int]:
    """Batches of one codec in groups; offsets rise, with holes within batches and between them."""
    codec = draw(st.sampled_from((0, 0, 1, 2, 3, 4)))
    appended = draw(st.booleans())
    singles = draw(st.booleans())
    offset = draw(st.sampled_from((0, 7, 1 << 40)))
    found: list[list[bytes]] = []
    for _ in range(draw(st.integers(1, 4))):
        members = []
        for _ in range(draw(st.integers(1, 4))):
            records = []
            for _ in range(1 if singles else draw(st.integers(1, 12))):
                body = bytes((offset % 251,)) * draw(SIZES)
                key = draw(st.sampled_from((None, b"", b"k")))
                headers = draw(st.sampled_from(((), ((b"h", None), (b"i", b"v")))))
                records.append(Record(offset, draw(TIMES), key, body, headers))
                offset += draw(st.sampled_from((1, 1, 1, 2, 70, 9_000)))
            bits = 0x08 if appended and draw(st.booleans()) else 0
            members.append(encode_batch(records, codec=codec, attributes=bits))
            offset += draw(st.sampled_from((0, 0, 3)))
        found.append(members)
    return found, codec


def columns_of(found: list[list[bytes]], limits: Limits = Limits()) -> Columns:  # noqa: B008  (frozen)
    batches = [one for members in found for one in members]
    buffer = memoryview(b"".join(batches))
    ends = np.cumsum([len(one) for one in batches])
    first_bytes = ends - np.array([len(one) for one in batches])
    heads = gather_heads(buffer, first_bytes)
    counts = np.array([len(members) for members in found])
    return read_columns(buffer, first_bytes, heads, counts, limits)


@settings(deadline=None, max_examples=150)
@given(found=groups(), data=st.data())
def test_columns_hold_what_the_records_say_and_written_anew_they_say_the_same(
    found: tuple[list[list[bytes]], int], data: st.DataObject
) -> None:
    batches, codec = found
    plain = [[r for one in members for r in decode_records(memoryview(one))] for members in batches]
    every = [record.offset for members in plain for record in members]
    low, high = sorted(data.draw(st.sampled_from([0, *every, every[-1] + 1])) for _ in range(2))
    plain = [[r for r in members if low <= r.offset < high] for members in plain]
    columns = columns_of(batches, Limits(low, high))
    flat = [record for members in plain for record in members]
    assert columns.offset.tolist() == [record.offset for record in flat]
    assert columns.timestamp.tolist() == [record.timestamp for record in flat]
    assert columns.group.tolist() == [n for n, members in enumerate(plain) for _ in members]
    written = encode_columns(columns, [codec] * len(batches))
    assert len(written) == len(batches)
    for one, wanted in zip(written, plain, strict=True):
        assert one.record_count == len(wanted)
        if not wanted:
            assert (one.data, one.runs, one.timestamp_ms_max) == (b"", [], -1)
            continue
        fields = HEADER.unpack_from(one.data)
        assert fields[0] == wanted[0].offset
        assert fields[6] == fields[12] - 1 == len(wanted) - 1, "offset deltas are consecutive"
        assert fields[5] == codec, "no log append time, no transaction"
        assert fields[7] == wanted[0].timestamp
        assert fields[8] == one.timestamp_ms_max == max(r.timestamp for r in wanted)
        assert resealed(one.data) == one.data, "length and checksum fit"
        # Their old offsets are in the runs; in the batch they count on from the first.
        offsets = [first + n for first, count in one.runs for n in range(count)]
        assert offsets == [record.offset for record in wanted]
        assert all(a + n < b for (a, n), (b, _) in zip(one.runs, one.runs[1:], strict=False))
        again = list(decode_records(memoryview(one.data)))
        assert [r.offset for r in again] == list(range(offsets[0], offsets[0] + len(wanted)))
        assert [(r.timestamp, r.key, r.value, r.headers) for r in again] == [
            (r.timestamp, r.key, r.value, r.headers) for r in wanted
        ]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(4, 12))]
)
def test_a_damaged_body_is_never_read_as_something_else(count: int, seed: int) -> None:
    """Whatever byte is changed: the columns are those of the plain engine, or it is left to it."""
    rng = random.Random(seed)
    one = encode_batch([Record(n, 5, b"k", b"v" * 30) for n in range(count)])
    for _ in range(60):
        out = bytearray(one)
        out[rng.randrange(HEADER_BYTES, len(out))] = rng.randrange(256)
        damaged = resealed(bytes(out))
        try:
            columns = columns_of([[damaged]])
        except (IrregularRecordError, BatchError):
            continue
        rest = [
            bytes(columns.flat[at : at + size])
            for at, size in zip(columns.rest_at, columns.rest_bytes, strict=True)
        ]
        try:
            records = list(decode_records(memoryview(damaged)))
        except BatchError:
            continue  # in a rest, which the columns carry as it is
        assert columns.offset.tolist() == [record.offset for record in records]
        assert columns.timestamp.tolist() == [record.timestamp for record in records]
        for record, carried in zip(records, rest, strict=True):
            assert (record.value or b"") in carried


def test_no_batch_may_state_more_records_than_it_has_room_for() -> None:
    one = bytearray(encode_batch([Record(0, 5, None, b"v")]))
    for count in (0, -1, 2, 2**31 - 1):
        one[57:61] = count.to_bytes(4, "big", signed=True)
        with pytest.raises(IrregularRecordError):
            columns_of([[bytes(one)]])


def test_offsets_within_a_batch_must_rise_and_end_where_the_header_says() -> None:
    good = encode_batch([Record(n, 5, None, b"v") for n in range(3)])
    assert columns_of([[good]]).offset.tolist() == [0, 1, 2]
    short = encode_batch([Record(n, 5, None, b"v") for n in range(3)], last_offset_delta=1)
    falling = bytearray(good)
    at = HEADER_BYTES + 3 + (len(good) - HEADER_BYTES) // 3
    assert falling[at] == 2, "the second record's offset delta"
    falling[at] = 0
    for odd in (short, bytes(falling)):
        with pytest.raises(IrregularRecordError):
            columns_of([[odd]])


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_unpacks_to_too_much_is_left_to_the_next_answer(codec: int) -> None:
    one = encode_batch([Record(0, 5, None, bytes(1_000))], codec=codec)
    batches = [[one], [one], [one]]
    with pytest.raises(TooMuchError) as caught:
        columns_of(batches, Limits(together_bytes_max=2_500))
    assert caught.value.group == 2
    assert len(columns_of(batches, Limits(together_bytes_max=3_500)).offset) == 3
    # One group is taken whatever it takes together; within itself it has a bound, too.
    assert len(columns_of([[one]], Limits(together_bytes_max=10)).offset) == 1
    with pytest.raises(IrregularRecordError):
        columns_of([[one, one]], Limits(joined_bytes_max=1_500))


@settings(deadline=None)
@given(
    deltas=st.lists(
        st.tuples(st.sampled_from((0, 1, -1, 63, 64, -65, 8_192, 1 << 20, 1 << 21, -(1 << 40))),
                  st.sampled_from((0, 1, 63, 64, 8_191, 8_192, 1 << 20, (1 << 31) - 1))),
        min_size=1, max_size=6,
    ),
    spare=st.sampled_from((0, 8)),
)  # fmt: skip
def test_fields_are_read_alike_in_words_and_one_by_one(
    deltas: list[tuple[int, int]], spare: int
) -> None:
    def varint(value: int) -> bytes:
        zigzag, out = (value << 1) ^ (value >> 63), bytearray()
        while zigzag > 127:
            out.append(zigzag & 127 | 128)
            zigzag >>= 7
        return bytes((*out, zigzag))

    data, starts, rests, ends = b"", [], [], []
    for number, (time, offset) in enumerate(deltas):
        head = bytes((number,)) + varint(time) + varint(offset)
        length = varint(len(head) + 4)
        starts.append(len(data))
        rests.append(len(data) + len(length) + len(head))
        data += length + head + b"rest"
        ends.append(len(data))
    # Without spare bytes behind the last record no eight of them can be read as a word.
    fields = read_fields(np.frombuffer(data + bytes(spare), np.uint8), np.array(starts, np.int64))
    assert fields.attributes.tolist() == list(range(len(deltas)))
    assert fields.timestamp_delta.tolist() == [time for time, _ in deltas]
    assert fields.offset_delta.tolist() == [offset for _, offset in deltas]
    assert fields.rest_at.tolist() == rests
    assert fields.end.tolist() == ends
