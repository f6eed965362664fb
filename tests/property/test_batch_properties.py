"""Whatever is in a response: what comes out is exactly the records that should be mirrored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkmirror.errors import BatchError
from sparkmirror.records import batch_decisions as choosing
from sparkmirror.records import rebatch as joining
from sparkmirror.records import record_offsets as starting
from sparkmirror.records.codecs import decompress
from sparkmirror.records.header import HEADER_BYTES, split, stamp
from sparkmirror.records.records import Limits, Record, decode_records, encode_batch
from sparkmirror.records.selection import AbortedTransaction, Selection, SelectRules, select

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
INT64 = st.integers(-(2**63), 2**63 - 1)

small_bytes = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=120, max_size=140))
headers = st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5)), max_size=2)
timestamps = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_010_000), st.just(-1), st.integers(-(2**61), 2**61)
)


@st.composite
def batches(draw: st.DrawFn, base: int) -> tuple[bytes, list[Record], int]:
    """One magic 2 batch from offset ``base`` on, what a consumer sees of it, its last offset."""
    deltas = draw(
        st.sampled_from(
            [[0], [0], [0], [0, 1], [0, 1, 2], [2], [0, 3, 4], [1], [], [*range(90)], [64, 9_000]]
        )
    )
    last_delta = draw(st.sampled_from([0, 0, 0, 2])) + (deltas[-1] if deltas else 0)
    # Most of the time goes into drawing: long batches repeat a few records.
    drawn = [
        (draw(timestamps), draw(small_bytes), draw(small_bytes), tuple(draw(headers)))
        for _ in deltas[:5]
    ]
    records = [
        Record(base + delta, *drawn[number % len(drawn)]) for number, delta in enumerate(deltas)
    ]
    codec = draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4]))
    kind = draw(st.sampled_from([0, 0, 0, LOG_APPEND_TIME, CONTROL, DELETE_HORIZON, TRANSACTIONAL]))
    append_time = draw(timestamps) if kind == LOG_APPEND_TIME else None
    base_timestamp = draw(timestamps) if kind == DELETE_HORIZON else None
    batch = encode_batch(
        records,
        codec=codec,
        base_offset=base,
        last_offset_delta=last_delta,
        attributes=kind,
        max_timestamp=append_time,
        base_timestamp=base_timestamp,
        producer_id=draw(st.sampled_from([-1, 5])) if kind != TRANSACTIONAL else 5,
    )
    if kind == CONTROL:
        records = []
    if append_time is not None:
        records = [replace(one, timestamp=append_time) for one in records]
    return batch, records, base + last_delta


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, list[Record], int]:
    """A response, its records, the offset after it; long ones repeat a short pattern of sizes."""
    parts: list[bytes] = []
    expected: list[Record] = []
    base = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 12))):
        base += draw(st.sampled_from([0, 0, 0, 1, 7]))
        batch, records, last = draw(batches(base))
        copies = draw(st.sampled_from([1, 1, 1, 3, 20, 50]))
        for _ in range(copies):
            shift = base - int.from_bytes(batch[:8], "big")
            parts.append(base.to_bytes(8, "big") + batch[8:])
            expected += [replace(one, offset=one.offset + shift) for one in records]
            base = last + shift + 1
    return b"".join(parts), expected, base


def carried(selection: Selection) -> list[Record]:
    offsets = [first + step for first, count in selection.runs for step in range(count)]
    found: list[Record] = []
    for piece in selection.pieces:
        view = memoryview(piece)
        for start, end in split(view):
            head = stamp(
                view[start:end], producer_id=9, producer_epoch=1, base_sequence=3,
                transactional=True,
            )  # fmt: skip
            found += decode_records(memoryview(head + bytes(view[start + HEADER_BYTES : end])))
    assert len(found) == len(offsets) == selection.record_count
    return [replace(one, offset=offset) for one, offset in zip(found, offsets, strict=True)]


rules_strategy = st.builds(
    SelectRules,
    read_committed=st.booleans(),
    join_bytes=st.sampled_from([300, 2_000, 256 * 1024]),
    join_below_bytes=st.sampled_from([0, 150, 4_096]),
    join_uncompressed_below_bytes=st.sampled_from([0, 500, 1 << 20]),
)


@settings(max_examples=150, deadline=None)
@given(responses(), rules_strategy, st.data())
def test_exactly_the_records_in_range_are_carried(
    response: tuple[bytes, list[Record], int], rules: SelectRules, data: st.DataObject
) -> None:
    buffer, records, after = response
    low = records[0].offset if records else 0
    fetch_offset = data.draw(st.integers(max(0, low - 2), after), "fetch_offset")
    end_offset = data.draw(st.none() | st.integers(fetch_offset, after + 3), "end_offset")
    selection = select(memoryview(buffer), fetch_offset, (), rules, end_offset=end_offset)
    end = after if end_offset is None else end_offset
    assert carried(selection) == [one for one in records if fetch_offset <= one.offset < end]
    assert selection.next_offset == max(fetch_offset, min(after, end) if buffer else 0)


@settings(max_examples=150, deadline=None)
@given(responses(), rules_strategy, st.booleans())
def test_both_engines_give_the_same_bytes(
    response: tuple[bytes, list[Record], int], rules: SelectRules, together: bool
) -> None:
    buffer = memoryview(response[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "_COLUMNS_FRAMES_MIN", 1)
        patch.setattr(joining, "_COLUMNS_RECORDS_MIN", 1)
        patch.setattr(starting, "_STEP_RECORDS", 0 if together else 1 << 40)
        columns = select(buffer, 0, (), rules)
        patch.setattr(choosing, "_COLUMNS_FRAMES_MIN", 1 << 60)
        patch.setattr(joining, "_COLUMNS_RECORDS_MIN", 1 << 60)
        singly = select(buffer, 0, (), rules)
    assert columns == singly


@settings(max_examples=60, deadline=None)
@given(responses(), st.data())
def test_cut_anywhere_the_whole_batches_are_carried(
    response: tuple[bytes, list[Record], int], data: st.DataObject
) -> None:
    buffer, records, _ = response
    size = data.draw(st.integers(0, len(buffer)), "size")
    selection = select(memoryview(buffer[:size]), 0, (), SelectRules())
    assert carried(selection) == [one for one in records if one.offset < selection.next_offset]
    rest = select(memoryview(buffer), selection.next_offset, (), SelectRules())
    assert carried(selection) + carried(rest) == records


@st.composite
def transactions(draw: st.DrawFn) -> tuple[bytes, list[AbortedTransaction], list[int]]:
    """Interleaved transactions of a few producers, as a broker reports them; committed offsets."""
    parts: list[bytes] = []
    open_since: dict[int, list[int]] = {}
    aborted: list[AbortedTransaction] = []
    committed: list[int] = []
    steps = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=80))
    # Everything open is aborted at the end, so that every record's fate is known.
    for offset, (producer_id, action) in enumerate([*steps, (1, 1), (2, 1), (3, 1)]):
        if action > 1:
            parts.append(
                encode_batch(
                    [Record(offset, 5, None, b"x")],
                    attributes=TRANSACTIONAL,
                    producer_id=producer_id,
                )
            )
            open_since.setdefault(producer_id, []).append(offset)
        else:
            parts.append(
                encode_batch(
                    [Record(offset, 5, b"\0\0\0" + bytes((action ^ 1,)), b"")],
                    attributes=TRANSACTIONAL | CONTROL,
                    producer_id=producer_id,
                )
            )
            written = open_since.pop(producer_id, [])
            if action == 0:
                committed += written
            elif written:
                aborted.append(AbortedTransaction(producer_id, written[0]))
    return b"".join(parts), aborted, sorted(committed)


@settings(max_examples=150, deadline=None)
@given(transactions())
def test_exactly_committed_records_are_carried(
    case: tuple[bytes, list[AbortedTransaction], list[int]],
) -> None:
    response, aborted, committed = case
    selection = select(memoryview(response), 0, aborted, SelectRules())
    assert [one.offset for one in carried(selection)] == committed


@settings(max_examples=200, deadline=None)
@given(responses(), st.data())
def test_a_damaged_byte_under_a_checksum_is_always_seen(
    response: tuple[bytes, list[Record], int], data: st.DataObject
) -> None:
    buffer, records, _ = response
    cuts = split(memoryview(buffer))
    if not cuts:
        return
    start, end = data.draw(st.sampled_from(cuts), "batch")
    at = data.draw(st.integers(start + 17, end - 1), "byte")
    damaged = bytearray(buffer)
    damaged[at] ^= data.draw(st.integers(1, 255), "flip")
    bad_offset = int.from_bytes(buffer[start : start + 8], "big")
    before = [one for one in records if one.offset < bad_offset]
    try:
        selection = select(memoryview(damaged), 0, (), SelectRules())
    except BatchError:
        assert start == 0
        return
    assert carried(selection) == before
    with pytest.raises(BatchError):
        select(memoryview(damaged)[start:], selection.next_offset, (), SelectRules())


@contextmanager
def _bounded() -> Iterator[None]:
    """Two seconds of processor time are enough: nothing in the data makes it go round for ever."""
    began = time.thread_time()
    try:
        yield
    finally:
        assert time.thread_time() - began < 2


@pytest.mark.more
@settings(max_examples=200, deadline=None)
@given(responses(), st.data())
def test_damage_with_checksums_unchecked_raises_nothing_else(
    response: tuple[bytes, list[Record], int], data: st.DataObject
) -> None:
    damaged = bytearray(response[0])
    for _ in range(data.draw(st.integers(1, 4))):
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at] = data.draw(st.integers(0, 255))
    rules = SelectRules(check_crcs=False, decompressed_bytes_max=1 << 24)
    try:
        with _bounded():
            selection = select(memoryview(damaged), 0, (), rules, end_offset=2**39)
    except BatchError:
        return
    assert selection.record_count == sum(count for _, count in selection.runs)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 2**63 - 1), st.booleans())
@example(b"\0" * 300, 0, True)
@example(b"\xff" * 300, 0, False)
def test_garbage_raises_batch_errors_only(garbage: bytes, fetch_offset: int, crcs: bool) -> None:
    try:
        with _bounded():
            selection = select(
                memoryview(garbage),
                fetch_offset,
                [AbortedTransaction(1, 0)],
                SelectRules(check_crcs=crcs, decompressed_bytes_max=1 << 24),
            )
    except BatchError:
        return
    assert selection.next_offset >= fetch_offset


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), st.binary(max_size=200), st.binary(max_size=20))
def test_garbage_does_not_unpack_wildly(codec: int, garbage: bytes, tail: bytes) -> None:
    starts = {
        1: b"\x1f\x8b\x08\0\0\0\0\0\0\0",
        2: b"\x82SNAPPY\0\0\0\0\1\0\0\0\1",
        3: b"\x04\x22\x4d\x18\x60\x40\x82",
        4: b"\x28\xb5\x2f\xfd",
    }
    for data in (garbage, starts[codec] + garbage + tail):
        try:
            with _bounded():
                unpacked = decompress(codec, memoryview(data), 1 << 20)
        except BatchError:
            continue
        assert len(unpacked) <= 1 << 20


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 7).flatmap(batches), min_size=1, max_size=9), st.integers(0, 4))
def test_what_is_joined_for_a_link_holds_the_same_records(
    taken: list[tuple[bytes, list[Record], int]], codec: int
) -> None:
    """From whatever offsets they are: the target numbers them anew."""
    for packed in (False, True):
        chosen = [
            one for one in taken if bool(one[0][22] & 7) == packed and not one[0][22] & CONTROL
        ]
        if not chosen:
            continue
        written = joining.join_batches([memoryview(one) for one, _, _ in chosen], codec, Limits())
        records = [record for _, held, _ in chosen for record in held]
        if written is None:  # a batch that holds nothing: the source's side never lets one pass
            assert not all(held for _, held, _ in chosen)
            continue
        found = list(decode_records(memoryview(written.data)))
        first = records[0].offset
        assert found == [replace(one, offset=first + n) for n, one in enumerate(records)]
        assert written.record_count == len(records)
        assert written.timestamp_ms_max == max(one.timestamp for one in records)
        stamp(
            memoryview(written.data),
            producer_id=1, producer_epoch=0, base_sequence=0, transactional=False,
        )  # fmt: skip
