"""What is left of raw batches when some of their records are left out.

Its measure is the plain one: `decode_records`, record by record.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.records.header import (
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    base_offset,
    codec,
    last_offset_delta,
    record_count,
    split,
    stamp,
)
from sparkmirror.records.kept import kept_batches, slices
from sparkmirror.records.key_columns import scan, scans
from sparkmirror.records.record_fields import gather
from sparkmirror.records.records import Record, decode_records, encode_batch

TIMES = st.sampled_from((0, 1, 2, 70, 9_000, 1 << 40))
SIZES = st.sampled_from((0, 1, 5, 100, 127, 128, 900, 1_030, 8_180, 8_190, 17_000))


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Batches of any codecs: small and large ones, with holes, of the broker's time."""
    offset = draw(st.sampled_from((0, 7, 1 << 40)))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        holes = draw(st.sampled_from((False, False, True)))
        time = draw(st.sampled_from((-1, 0, 1_700_000_000_000)))
        size, spread = draw(SIZES), draw(st.booleans())
        records = []
        for _ in range(draw(st.sampled_from((1, 2, 7, 63, 64, 65, 200)))):
            body = bytes((offset % 251,)) * (size + (offset % 40 if spread else 0))
            key = None if offset % 3 else b"k%d" % offset
            headers = ((b"h", None), (b"i", b"v")) if offset % 7 == 0 else ()
            value = None if offset % 11 == 10 else body
            records.append(Record(offset, time, key, value, headers))
            time += draw(TIMES) if len(records) < 5 else offset % 3
            offset += 2 if holes and offset % 5 == 0 else 1
        bits = draw(st.sampled_from((0, 0, 0, LOG_APPEND_TIME_BIT)))
        found.append(encode_batch(records, codec=draw(st.integers(0, 4)), attributes=bits))
    return found


@st.composite
def kept_of(draw: st.DrawFn, count: int) -> np.ndarray:
    every, first, end = draw(st.tuples(*(st.integers(1, 9), *(2 * (st.integers(0, count),)))))
    kept = np.arange(count) % every != every - 1
    if draw(st.booleans()):
        kept[:] = draw(st.booleans())
    kept[min(first, end) : max(first, end)] = draw(st.booleans())
    return kept


def plain(record: Record) -> tuple[object, ...]:
    return record.timestamp, record.key, record.value, tuple(record.headers)


@settings(deadline=None, max_examples=50)
@given(
    batches(), st.data(), st.sampled_from((16_384, 262_144)), st.sampled_from((1 << 12, 1 << 30))
)
def test_the_kept_records_arrive_and_no_others(
    parts: list[bytes], data: st.DataObject, batch_bytes: int, cost_bytes_max: int
) -> None:
    """Also in portions that begin in the midst of the buffer."""
    buffer = memoryview(b"".join(parts))
    all_records = [record for part in parts for record in decode_records(memoryview(part))]
    kept = data.draw(kept_of(len(all_records)))
    expected = [plain(one) for one, here in zip(all_records, kept, strict=True) if here]
    arrived, done = [], 0
    for found in scans(buffer, cost_bytes_max=cost_bytes_max):
        rows = kept[done : done + len(found.columns.offset)]
        done += len(rows)
        made = memoryview(b"".join(kept_batches(found, rows, batch_bytes=batch_bytes)))
        number = 0
        for start, end in split(made):
            batch = made[start:end]
            # As a target's broker demands.
            assert last_offset_delta(batch) == record_count(batch) - 1
            assert base_offset(batch) == number
            records = list(decode_records(batch))
            assert [one.offset for one in records] == list(range(number, number + len(records)))
            number += len(records)
            # What leaves out the time of the broker from the header must have it in the records.
            head = stamp(
                batch, producer_id=1, producer_epoch=0, base_sequence=0, transactional=False
            )
            sent = list(decode_records(memoryview(head + bytes(batch[HEADER_BYTES:]))))
            assert [one.timestamp for one in sent] == [one.timestamp for one in records]
            arrived += [plain(one) for one in sent]
    assert done == len(kept)
    assert arrived == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), min_size=1, max_size=50))
def test_slices_are_what_is_gathered(items: list[tuple[int, int]]) -> None:
    flat = np.random.default_rng(1).integers(0, 256, 30_000, np.uint8)
    gaps, sizes = np.array(items, np.int64).T
    at = np.cumsum(gaps + sizes) - sizes
    found = slices(flat, at, sizes)
    if sizes.sum() < 128 * len(items):
        assert found is None  # numpy is quicker
    else:
        assert found is not None
        assert found.tobytes() == gather(flat, at, sizes).data.tobytes()
        assert slices(flat, at[::-1], sizes[::-1]) is None or len(set(at.tolist())) == 1


def test_a_large_batch_that_is_kept_passes_as_it_is_and_its_neighbours_are_cut() -> None:
    def batch(first: int, count: int, bits: int = 0, step: int = 1) -> bytes:
        made = [Record(first + n * step, 5 + n, None, b"%04d" % n * 100) for n in range(count)]
        return encode_batch(made, codec=3, attributes=bits)

    parts = [
        batch(0, 100),
        batch(100, 100),
        batch(200, 10),  # small ones are joined
        batch(210, 10),
        batch(220, 100, LOG_APPEND_TIME_BIT),  # its records do not hold their time
        batch(320, 100, step=2),  # its numbers have gaps
        batch(520, 100),
    ]
    kept = np.ones(520, np.bool_)
    kept[3] = False
    found = scan(memoryview(b"".join(parts)))
    made = memoryview(b"".join(kept_batches(found, kept, batch_bytes=1 << 20)))
    cuts = [made[start:end] for start, end in split(made)]
    assert [record_count(one) for one in cuts] == [99, 100, 220, 100]
    assert [base_offset(one) for one in cuts] == [0, 99, 199, 419]
    assert [bytes(one[8:]) for one in (cuts[1], cuts[3])] == [parts[1][8:], parts[6][8:]]
    assert {codec(one) for one in cuts} == {3}
    none = kept_batches(found, np.zeros(520, np.bool_), batch_bytes=1 << 20)
    assert none == []


def test_a_batch_keeps_its_own_codec_if_it_passes() -> None:
    parts = [
        encode_batch([Record(n, 5, None, bytes(400)) for n in range(100)], codec=codec)
        for codec in (0, 1, 2, 3, 4)
    ]
    found = scan(memoryview(b"".join(parts)))
    made = memoryview(b"".join(kept_batches(found, np.ones(500, np.bool_), batch_bytes=1 << 20)))
    assert [codec(made[start:end]) for start, end in split(made)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("wanted", [0, 1, 2, 3, 4])
def test_all_batches_get_the_codec_that_is_asked_for(wanted: int) -> None:
    records = [Record(n, 5, None, b"%04d" % n * 100) for n in range(500)]
    parts = [
        encode_batch(records[100 * codec : 100 * codec + 100], codec=codec) for codec in range(5)
    ]
    kept = np.ones(500, np.bool_)
    kept[450] = False
    pieces = kept_batches(
        scan(memoryview(b"".join(parts))), kept, batch_bytes=1 << 20, codec=wanted
    )
    made = memoryview(b"".join(pieces))
    cuts = [made[start:end] for start, end in split(made)]
    assert {codec(one) for one in cuts} == {wanted}
    # One that has it already passes as it is.
    assert (parts[wanted][8:] in [bytes(one[8:]) for one in cuts]) == (wanted < 4)
    arrived = [record for one in cuts for record in decode_records(one)]
    assert [plain(one) for one in arrived] == [plain(one) for one in records if one.offset != 450]
