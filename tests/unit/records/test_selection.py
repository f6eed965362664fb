"""What ``select`` carries, drops, trims and refuses: one test for each rule."""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Sequence
from itertools import product

import pytest
from crc32c import crc32c

from sparkmirror.errors import BatchError, CorruptBatch, UnknownCodec
from sparkmirror.records import rebatch
from sparkmirror.records.batch_decisions import BatchSelector
from sparkmirror.records.codecs import LZ4, NAMES
from sparkmirror.records.header import HEADER, HEADER_BYTES, split, stamp
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.records.selection import AbortedTransaction, Selection, SelectRules, select
from tests.fuzz.inputs import resealed

RULES = SelectRules()
APART = SelectRules(join_below_bytes=0)
CODECS = range(5)
ABORT, COMMIT = 0, 1
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40


def record(offset: int, timestamp: int | None = None, size: int = 20) -> Record:
    time = 1_000 + offset if timestamp is None else timestamp
    return Record(offset, time, b"k%d" % offset, bytes((offset % 251,)) * size, ((b"h", None),))


def records(first: int, end: int, size: int = 20) -> list[Record]:
    return [record(offset, size=size) for offset in range(first, end)]


def marker(offset: int, kind: int, producer_id: int) -> bytes:
    key = struct.pack(">hh", 0, kind)
    return encode_batch(
        [Record(offset, 5, key, b"\0\0\0\0\0\0")],
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=0,
    )


def data(first: int, end: int, producer_id: int = -1, *, size: int = 20, **fields: int) -> bytes:
    if producer_id >= 0:
        fields["attributes"] = fields.get("attributes", 0) | TRANSACTIONAL
    return encode_batch(records(first, end, size), producer_id=producer_id, **fields)


def carried(selection: Selection) -> list[Record]:
    """The records of all pieces, as a consumer of the target would see them, at source offsets.

    Asserts on the way what a target broker insists on, and that the counters tell the truth.
    """
    offsets = [first + step for first, count in selection.runs for step in range(count)]
    found: list[Record] = []
    batch_count = 0
    for piece in selection.pieces:
        for start, end in split(memoryview(piece)):
            batch = memoryview(piece)[start:end]
            fields = HEADER.unpack_from(batch)
            assert fields[4] == crc32c(batch[21:])
            assert fields[6] == fields[12] - 1 >= 0
            assert not fields[5] & (LOG_APPEND_TIME | CONTROL)
            assert fields[0] == offsets[len(found)]
            header = stamp(
                batch, producer_id=1, producer_epoch=0, base_sequence=0, transactional=False
            )
            produced = list(decode_records(memoryview(header + bytes(batch[HEADER_BYTES:]))))
            assert [one.offset for one in produced] == list(range(len(produced)))
            assert fields[8] == max(one.timestamp for one in produced)
            found += produced
            batch_count += 1
    assert len(found) == len(offsets) == selection.record_count
    assert batch_count == selection.batch_count
    assert sum(map(len, selection.pieces)) == selection.byte_count
    assert max((one.timestamp for one in found), default=-1) == selection.timestamp_ms_max
    return [
        dataclasses.replace(one, offset=offset) for one, offset in zip(found, offsets, strict=True)
    ]


def choose(
    response: bytes,
    fetch_offset: int = 0,
    aborted: Sequence[AbortedTransaction] = (),
    rules: SelectRules = RULES,
    end_offset: int | None = None,
) -> Selection:
    return select(
        memoryview(bytearray(response)), fetch_offset, aborted, rules, end_offset=end_offset
    )


# Untouched ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_filled_batches_are_one_view_of_the_buffer(codec: int) -> None:
    parts = [
        encode_batch(records(first, first + 100, size=500), codec=codec)
        for first in (0, 100, 200, 350)
    ]
    response = memoryview(bytearray(b"".join(parts)))
    selection = select(response, 0, (), APART)
    assert len(selection.pieces) == 1
    assert isinstance(selection.pieces[0], memoryview)
    assert selection.pieces[0].obj is response.obj
    assert selection.pieces[0] == response
    assert selection.runs == [(0, 300), (350, 100)]
    assert selection.next_offset == 450
    assert (selection.batch_count, selection.joined, selection.reencoded) == (4, 0, 0)
    assert len(carried(selection)) == 400


def test_nothing_gives_nothing() -> None:
    selection = choose(b"", 17)
    assert selection == Selection(next_offset=17)


def test_a_delete_horizon_batch_keeps_its_base_timestamp() -> None:
    horizon = 9_999_999
    batch = encode_batch(
        records(0, 30, size=200), attributes=DELETE_HORIZON, base_timestamp=horizon
    )
    selection = choose(batch)
    assert carried(selection) == records(0, 30, size=200)
    assert selection.reencoded == 0
    small = b"".join(
        encode_batch([record(n)], attributes=DELETE_HORIZON, base_timestamp=horizon)
        for n in range(40)
    )
    assert carried(choose(small)) == records(0, 40)


# Where it starts, where it ends ---------------------------------------------------------------


@pytest.mark.parametrize("rules", [RULES, APART])
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_older_records_are_left_out(codec: int, rules: SelectRules) -> None:
    response = b"".join(
        encode_batch(records(first, first + 10), codec=codec) for first in (0, 10, 20)
    )
    for fetch_offset in range(31):
        selection = choose(response, fetch_offset, rules=rules)
        assert carried(selection) == records(fetch_offset, 30)
        assert selection.next_offset == 30


@pytest.mark.parametrize("count", [3, 60])
def test_the_end_offset_is_not_passed(count: int) -> None:
    response = b"".join(data(first, first + 10) for first in range(0, count * 10, 10))
    for end_offset in [*range(31), count * 10 - 5, count * 10, count * 10 + 1]:
        selection = choose(response, end_offset=end_offset)
        assert carried(selection) == records(0, min(end_offset, count * 10))
        assert selection.next_offset == min(end_offset, count * 10)


def test_the_end_offset_in_a_gap_is_reached() -> None:
    selection = choose(data(0, 10) + data(20, 30), end_offset=15)
    assert carried(selection) == records(0, 10)
    assert selection.next_offset == 15


@pytest.mark.parametrize("rules", [RULES, APART])
def test_cut_at_every_byte_the_whole_batches_are_carried(rules: SelectRules) -> None:
    parts = [data(0, 3), data(3, 4, codec=LZ4), data(4, 9)]
    response = b"".join(parts)
    ends = [len(parts[0]), len(parts[0] + parts[1]), len(response)]
    for size in range(len(response) + 1):
        selection = choose(response[:size], rules=rules)
        whole = sum(end <= size for end in ends)
        assert carried(selection) == records(0, (0, 3, 4, 9)[whole])
        assert selection.next_offset == (0, 3, 4, 9)[whole]
        if size == 0 or whole:
            assert selection.cut_bytes_needed == 0
        else:
            assert selection.cut_bytes_needed == (len(parts[0]) if size >= 12 else HEADER_BYTES)


def test_a_cut_after_old_batches_only_asks_for_more() -> None:
    old, new = data(0, 3), data(50, 55)
    selection = choose(old + new[:-1], 20)
    assert selection.cut_bytes_needed == len(old + new)
    assert selection.next_offset == 20


def test_many_tiny_batches_cut_in_the_last() -> None:
    parts = [data(n, n + 1) for n in range(100)]
    response = b"".join(parts)
    for size in range(len(response) - len(parts[-1]), len(response)):
        assert carried(choose(response[:size])) == records(0, 99)


# What is dropped ------------------------------------------------------------------------------


def test_control_and_empty_batches_are_passed_over() -> None:
    empty = encode_batch([], base_offset=11, last_offset_delta=4)
    response = data(0, 10) + marker(10, COMMIT, 5) + empty + data(16, 20)
    for read_committed in (True, False):
        selection = choose(response, rules=SelectRules(read_committed=read_committed))
        assert carried(selection) == [*records(0, 10), *records(16, 20)]
        assert selection.next_offset == 20
    only = choose(marker(10, COMMIT, 5) + empty, 10)
    assert only == Selection(next_offset=16)


def interleaved() -> tuple[bytes, list[AbortedTransaction]]:
    """Producers 1 (aborts, then commits), 2 (commits), 3 (aborts, begun before the response)."""
    return (
        data(0, 5, producer_id=3)
        + data(5, 10, producer_id=1)
        + data(10, 15)
        + data(15, 20, producer_id=2)
        + marker(20, ABORT, 3)
        + data(21, 25, producer_id=1)
        + marker(25, ABORT, 1)
        + data(26, 30, producer_id=3)
        + marker(30, COMMIT, 2)
        + data(31, 35, producer_id=1)
        + marker(35, COMMIT, 1)
        + marker(36, COMMIT, 3)
        + data(37, 40, producer_id=1)
        + marker(40, ABORT, 1),
        # In no particular order, as far as anybody promised.
        [AbortedTransaction(1, 37), AbortedTransaction(3, -20), AbortedTransaction(1, 5)],
    )


@pytest.mark.parametrize("rules", [RULES, APART])
def test_aborted_transactions_are_dropped(rules: SelectRules) -> None:
    response, aborted = interleaved()
    selection = choose(response, 0, aborted, rules)
    expected = [*records(10, 20), *records(26, 30), *records(31, 35)]
    assert carried(selection) == expected
    assert selection.next_offset == 41


def test_read_uncommitted_carries_aborted_data() -> None:
    response, _ = interleaved()
    selection = choose(response, rules=SelectRules(read_committed=False))
    everything = [n for n in range(40) if n not in {20, 25, 30, 35, 36}]
    assert [one.offset for one in carried(selection)] == everything


def test_an_aborted_producer_may_write_outside_of_transactions() -> None:
    plain = encode_batch(records(3, 6), producer_id=1, producer_epoch=0)
    response = data(0, 3, producer_id=1) + plain + marker(6, ABORT, 1) + data(7, 9, producer_id=1)
    selection = choose(response, 0, [AbortedTransaction(1, 0)])
    assert carried(selection) == [*records(3, 6), *records(7, 9)]


def test_aborts_among_many_tiny_batches() -> None:
    parts, expected = [], []
    for start in range(0, 300, 10):
        producer_id = 1 + start // 10 % 3
        parts += [data(n, n + 1, producer_id=producer_id) for n in range(start, start + 9)]
        aborts = producer_id == 2
        parts.append(marker(start + 9, ABORT if aborts else COMMIT, producer_id))
        expected += [] if aborts else records(start, start + 9)
    aborted = [AbortedTransaction(2, start) for start in range(10, 300, 30)]
    assert carried(choose(b"".join(parts), 0, aborted)) == expected


# What is written anew -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 500])
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_compaction_holes_are_closed_and_remembered(codec: int, size: int) -> None:
    left = [record(n, size=size) for n in (0, 1, 5, 6, 19, 30)]
    batch = encode_batch(left, codec=codec, base_offset=0, last_offset_delta=40)
    selection = choose(batch)
    assert carried(selection) == left
    assert selection.runs == [(0, 2), (5, 2), (19, 1), (30, 1)]
    assert selection.next_offset == 41
    assert (selection.reencoded, selection.joined) == (1, 0)


def test_a_hole_at_the_end_or_the_start_of_a_batch() -> None:
    tail = encode_batch(records(0, 3), last_offset_delta=9)
    head = encode_batch(records(15, 20), base_offset=10)
    selection = choose(tail + head)
    assert carried(selection) == [*records(0, 3), *records(15, 20)]
    assert selection.next_offset == 20


@pytest.mark.parametrize(
    "count",
    [pytest.param(1, marks=pytest.mark.more), 2, pytest.param(7, marks=pytest.mark.more)],
)
@pytest.mark.parametrize("size", [5, 5_000])
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_log_append_time_becomes_every_records_timestamp(codec: int, size: int, count: int) -> None:
    batch = encode_batch(
        records(0, count, size=size), codec=codec, attributes=LOG_APPEND_TIME, max_timestamp=77
    )
    expected = [record(n, 77, size) for n in range(count)]
    assert carried(choose(batch)) == expected
    assert carried(choose(batch, rules=APART)) == expected


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_log_append_time_with_equal_deltas_keeps_the_records_bytes(codec: int) -> None:
    same = [record(n, 500, 3_000) for n in range(4)]
    batch = encode_batch(same, codec=codec, attributes=LOG_APPEND_TIME, max_timestamp=900)
    selection = choose(batch, rules=APART)
    assert carried(selection) == [record(n, 900, 3_000) for n in range(4)]
    assert bytes(selection.pieces[0])[HEADER_BYTES:] == batch[HEADER_BYTES:]


def test_log_append_time_of_many_tiny_batches() -> None:
    response = b"".join(
        encode_batch([record(n)], attributes=LOG_APPEND_TIME, max_timestamp=5_000 - n)
        for n in range(200)
    )
    assert carried(choose(response)) == [record(n, 5_000 - n) for n in range(200)]


# Joining --------------------------------------------------------------------------------------


def _costs_much(codec: int, count: int, each: int) -> bool:
    """Many batches once without a codec and once with one are enough for each time."""
    return count == 500 or (count == 9_000 and (each == 3 or codec not in (0, LZ4)))


@pytest.mark.parametrize(
    ("codec", "count", "each"),
    [
        pytest.param(
            *one,
            id=f"{NAMES[one[0]]}-{one[1]}-{one[2]}",
            marks=pytest.mark.more if _costs_much(*one) else (),
        )
        for one in product(CODECS, (2, 23, 24, 31, 32, 33, 500, 9_000), (1, 3))
    ],
)
def test_tiny_batches_are_joined(codec: int, count: int, each: int) -> None:
    if codec and count > 500:
        count = 1_000
    response = b"".join(
        encode_batch(records(n * each, n * each + each, size=n % 90), codec=codec)
        for n in range(count)
    )
    selection = choose(response)
    found = carried(selection)
    assert len(found) == count * each
    assert found == [
        dataclasses.replace(record(n), value=bytes((n % 251,)) * (n // each % 90))
        for n in range(count * each)
    ]
    assert selection.batch_count == -(-len(response) // RULES.join_bytes)
    assert selection.joined == count
    assert all(len(piece) <= RULES.join_bytes for piece in selection.pieces)
    assert selection.runs == [(0, count * each)]


@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize("codec", [0, LZ4])
def test_many_tiny_batches_take_the_quick_way(
    monkeypatch: pytest.MonkeyPatch, codec: int, each: int
) -> None:
    """Without this, a fault in the quick engine would only show as slowness."""
    response = b"".join(data(n, n + each, codec=codec) for n in range(0, 300, each))

    def slow_way(*_: object) -> None:
        raise AssertionError("record by record")

    monkeypatch.setattr(rebatch, "_write_group", slow_way)
    monkeypatch.setattr(BatchSelector, "choose", slow_way)
    assert carried(choose(response)) == records(0, 300)


@pytest.mark.parametrize("count", [5, 200])
def test_timestamps_of_joined_batches_are_exact(count: int) -> None:
    times = [[1_000, -1, 0, 2**62, -(2**62), 999, 1_064, 9_300][n % 8] for n in range(count)]
    source = [record(n, time) for n, time in enumerate(times)]
    response = b"".join(encode_batch([one]) for one in source)
    assert carried(choose(response)) == source


@pytest.mark.parametrize("count", [10, 64])
def test_codecs_are_not_mixed(count: int) -> None:
    response = b"".join(data(n, n + 1, codec=n // 4 % 5) for n in range(count))
    selection = choose(response)
    assert carried(selection) == records(0, count)
    assert selection.batch_count == -(-count // 4)


def test_only_small_neighbours_are_joined() -> None:
    parts: list[bytes] = []
    for first in range(0, 1_000, 100):
        parts += [data(n, n + 1) for n in range(first, first + 50)]
        parts.append(encode_batch([record(n, size=700) for n in range(first + 50, first + 100)]))
    assert len(parts[50]) > RULES.join_uncompressed_below_bytes
    selection = choose(b"".join(parts))
    assert selection.batch_count == 20
    assert [type(piece) for piece in selection.pieces] == [bytes, memoryview] * 10
    assert [one.offset for one in carried(selection)] == list(range(1_000))


@pytest.mark.parametrize("count", [8, 31, 32, 90])
def test_many_batches_of_a_default_producer_are_joined(count: int) -> None:
    response = b"".join(data(n, n + 40, size=350) for n in range(0, 40 * count, 40))
    assert RULES.join_below_bytes < len(response) // count < RULES.join_uncompressed_below_bytes
    selection = choose(response)
    assert carried(selection) == records(0, 40 * count, size=350)
    assert selection.joined == count
    assert selection.batch_count == -(-len(response) // RULES.join_bytes)


@pytest.mark.parametrize(
    ("count", "size", "codec"),
    [(7, 350, 0), (40, 900, 0), (40, 350, LZ4)],
    ids=["few", "large", "packed"],
)
def test_other_batches_of_that_size_go_on_untouched(count: int, size: int, codec: int) -> None:
    noise = random.Random(5)
    source = [
        dataclasses.replace(record(n), value=noise.randbytes(size)) for n in range(40 * count)
    ]
    response = b"".join(
        encode_batch(source[n : n + 40], codec=codec) for n in range(0, 40 * count, 40)
    )
    selection = choose(response)
    assert [type(piece) for piece in selection.pieces] == [memoryview]
    assert selection.reencoded == 0
    assert carried(selection) == source


def test_nothing_is_joined_where_that_is_off() -> None:
    response = b"".join(data(n, n + 40, size=350) for n in range(0, 1_600, 40))
    for rules in (APART, SelectRules(join_bytes=0)):
        assert choose(response, rules=rules).reencoded == 0


def test_a_lone_small_batch_goes_on_untouched() -> None:
    selection = choose(data(0, 1))
    assert isinstance(selection.pieces[0], memoryview)
    assert carried(selection) == records(0, 1)


def test_the_join_size_is_kept_to() -> None:
    response = b"".join(data(n, n + 1) for n in range(300))
    selection = choose(response, rules=SelectRules(join_bytes=1_000, join_below_bytes=500))
    assert carried(selection) == records(0, 300)
    assert max(map(len, selection.pieces)) <= 1_000
    assert selection.batch_count > len(response) // 1_000


@pytest.mark.parametrize("step_ms", [0, 1, 100])
def test_more_records_in_one_batch_than_a_two_byte_delta_counts(step_ms: int) -> None:
    source = [record(n, 1_000 + n * step_ms) for n in range(9_000)]
    response = b"".join(encode_batch([one]) for one in source)
    selection = choose(response, rules=SelectRules(join_bytes=1 << 22))
    assert carried(selection) == source
    assert selection.batch_count == 1


def test_seconds_between_the_records_of_a_joined_batch() -> None:
    source = [record(n, 10**12 + n * 1_000) for n in range(900)]
    assert carried(choose(b"".join(encode_batch([one]) for one in source))) == source


def test_tiny_batches_with_gaps_between_them() -> None:
    offsets = [n + n // 10 * 5 for n in range(200)]
    response = b"".join(encode_batch([record(n)]) for n in offsets)
    selection = choose(response, 7, end_offset=200)
    assert carried(selection) == [record(n) for n in offsets if 7 <= n < 200]
    assert selection.runs[0] == (7, 3)


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 60])
def test_damage_is_refused_and_what_stands_before_is_not_lost(count: int) -> None:
    parts = [data(n, n + 1) for n in range(count)]
    for bad in (0, 1, count - 1):
        damaged = bytearray(parts[bad])
        damaged[-3] ^= 1
        response = b"".join([*parts[:bad], bytes(damaged), *parts[bad + 1 :]])
        if bad:
            selection = choose(response)
            assert carried(selection) == records(0, bad)
            assert selection.next_offset == bad
        with pytest.raises(CorruptBatch, match=f"offset {bad} "):
            choose(response, bad)
        unchecked = SelectRules(check_crcs=False)
        assert choose(response, rules=unchecked).record_count == count


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_damage_in_a_filled_batch_is_refused(bad: int) -> None:
    """These go on as they are, so nothing reads them before the target."""
    parts = [
        bytearray(encode_batch(records(first, first + 100, size=500))) for first in (0, 100, 200)
    ]
    parts[bad][-3] ^= 1
    response = b"".join(parts)
    if bad:
        assert choose(response, rules=APART).next_offset == 100 * bad
    with pytest.raises(CorruptBatch, match=f"offset {100 * bad} "):
        choose(response, 100 * bad, rules=APART)


def reheaded(batch: bytes, **changes: int) -> bytes:
    """``batch`` with header fields changed and a checksum that fits."""
    names = ("base", "length", "epoch", "magic", "crc", "bits", "last", "first_time", "latest",
             "producer_id", "producer_epoch", "sequence", "count")  # fmt: skip
    fields = dict(zip(names, HEADER.unpack_from(batch), strict=True)) | changes
    body = batch[HEADER_BYTES:]
    fields["crc"] = changes.get("crc", crc32c(HEADER.pack(*fields.values())[21:] + body))
    return HEADER.pack(*fields.values()) + body


NONSENSE = {
    "negative length": {"length": -1},
    "zero length": {"length": 0},
    "length of a message": {"length": 48},
    "huge length": {"length": 2**31 - 1},
    "future magic": {"magic": 3},
    "negative magic": {"magic": -1},
    "negative count": {"count": -1},
    "huge count": {"count": 2**31 - 1, "last": 2**31 - 1},
    "more records than offsets": {"count": 10, "last": 3},
    "negative last offset": {"last": -1, "count": 0},
    "negative base offset": {"base": -5},
    "last offset beyond int64": {"base": 2**63 - 3},
}


@pytest.mark.parametrize("good", [0, 1, 40])
@pytest.mark.parametrize("changes", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused(changes: dict[str, int], good: int) -> None:
    parts = [data(n, n + 1) for n in range(good)]
    bad = reheaded(data(good, good + 4), **changes)
    response = b"".join(parts) + bad + bytes(10)
    if good:
        assert carried(choose(response)) == records(0, good)
    with pytest.raises(CorruptBatch):
        choose(response, good)


@pytest.mark.parametrize("good", [0, 1, 40])
def test_a_body_that_cannot_be_read_is_refused_when_it_must_be(good: int) -> None:
    parts = [data(n, n + 1) for n in range(good)]
    # The checksum fits, the codec does not; as a straddling batch it has to be unpacked.
    bad = reheaded(data(good, good + 4), bits=LZ4)
    response = b"".join(parts) + bad
    if good:
        selection = choose(response, end_offset=good + 2)
        assert carried(selection) == records(0, good)
        assert selection.next_offset == good
    with pytest.raises(CorruptBatch):
        choose(bad, good, end_offset=good + 2)


def test_an_unknown_codec_is_named_when_it_must_be_read() -> None:
    with pytest.raises(UnknownCodec):
        choose(reheaded(data(0, 4), bits=6), 2)


@pytest.mark.parametrize("good", [1, 40])
def test_offsets_never_go_back(good: int) -> None:
    parts = [data(n, n + 1) for n in range(good)]
    selection = choose(b"".join(parts) + data(good - 1, good + 3))
    assert carried(selection) == records(0, good)
    with pytest.raises(BatchError):
        choose(data(5, 9) + data(0, 9), 9)


def test_a_batch_that_unpacks_to_too_much_is_refused() -> None:
    bomb = encode_batch([record(0, size=100_000), record(1)], codec=LZ4)
    rules = SelectRules(decompressed_bytes_max=50_000)
    with pytest.raises(CorruptBatch, match="50000"):
        choose(bomb, 1, rules=rules)


def test_the_leader_epoch_is_that_of_the_last_batch_that_was_passed() -> None:
    old, new = data(0, 3, leader_epoch=4), data(3, 6, leader_epoch=7)
    buffer = memoryview(old + new)
    assert select(buffer, 0, (), RULES).leader_epoch == 7
    assert select(buffer, 0, (), RULES, end_offset=3).leader_epoch == 4
    assert select(buffer[:-1], 0, (), RULES).leader_epoch == 4
    assert select(memoryview(marker(0, COMMIT, 1)), 0, (), RULES).leader_epoch == -1


@pytest.mark.parametrize("rules", [RULES, APART])
@pytest.mark.parametrize("count", [1, 40])
def test_an_end_offset_in_a_hole_tells_which_leader_epoch_follows(
    count: int, rules: SelectRules
) -> None:
    old = b"".join(data(n, n + 1, leader_epoch=4) for n in range(count))
    buffer = memoryview(old + data(count + 5, count + 9, leader_epoch=7))
    for end, behind in [(count - 1, None), (count, None), (count + 1, 7), (count + 5, 7)]:
        if end:
            chosen = select(buffer, 0, (), rules, end_offset=end)
            assert (chosen.next_offset, chosen.leader_epoch) == (end, 4)
            assert chosen.epoch_behind == behind
    assert select(buffer, 0, (), rules, end_offset=count + 6).epoch_behind is None
    assert select(buffer, 0, (), rules).epoch_behind is None
    alone = select(buffer[len(old) :], count, (), rules, end_offset=count + 3)
    assert (alone.next_offset, alone.leader_epoch, alone.epoch_behind) == (count + 3, -1, 7)


def test_a_record_without_room_for_its_fields_is_damage() -> None:
    """Its batch has a right checksum, and another length of its timestamp delta."""
    plain = [Record(n, 5, None, None) for n in range(80)]  # seven bytes each
    odd = bytearray(encode_batch(plain[:40]))
    at = HEADER_BYTES + 5 * 7
    odd[at + 2 : at + 7] = b"\x80\x80\x80\x00\x0a"
    with pytest.raises(CorruptBatch):
        choose(resealed(bytes(odd)) + encode_batch(plain[40:]))
