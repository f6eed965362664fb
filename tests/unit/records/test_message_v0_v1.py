"""Magic 0 and 1 messages become magic 2 batches with the same records at the same offsets."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from sparkmirror.errors import BatchError, CorruptBatch
from sparkmirror.records.codecs import GZIP, LZ4, NAMES, NONE, SNAPPY, ZSTD, compress
from sparkmirror.records.header import base_offset, codec, split
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.records.selection import Selection, SelectRules, select
from sparkmirror.records.walk import append_time_runs

RULES = SelectRules()
LOG_APPEND_TIME = 0x08
WRAPPING = (GZIP, SNAPPY, LZ4)


def message(
    offset: int, key: bytes | None, value: bytes | None, *, time: int | None, bits: int = 0
) -> bytes:
    """One message: magic 0 when ``time`` is None, else magic 1."""

    def sized(content: bytes | None) -> bytes:
        return struct.pack(">i", -1 if content is None else len(content)) + (content or b"")

    head = struct.pack(">bb", 0, bits) if time is None else struct.pack(">bbq", 1, bits, time)
    body = head + sized(key) + sized(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def plain(record: Record, magic: int, shift: int = 0) -> bytes:
    time = record.timestamp if magic else None
    return message(record.offset - shift, record.key, record.value, time=time)


def wrapper(
    records: Sequence[Record], magic: int, kind: int, bits: int = 0, time: int = 0
) -> bytes:
    """Offsets inside count from the first record in magic 1 and are absolute in magic 0."""
    shift = records[0].offset if magic else 0
    inside = b"".join(plain(one, magic, shift) for one in records)
    return message(
        records[-1].offset,
        None,
        compress(kind, inside),
        time=time if magic else None,
        bits=kind | bits,
    )


def some(first: int, end: int, magic: int) -> list[Record]:
    return [
        Record(n, 1_000 + n if magic else -1, b"k" if n % 2 else None, b"v" * n if n % 3 else None)
        for n in range(first, end)
    ]


def choose(response: bytes, first: int = 0, end: int | None = None, **rules: bool) -> Selection:
    return select(memoryview(response), first, (), SelectRules(**rules), end_offset=end)


def carried(selection: Selection) -> list[Record]:
    offsets = [first + step for first, count in selection.runs for step in range(count)]
    decoded: list[Record] = []
    for piece in selection.pieces:
        for start, end in split(memoryview(piece)):
            decoded += decode_records(memoryview(piece)[start:end])
    assert len(decoded) == len(offsets) == selection.record_count
    return [
        Record(offset, one.timestamp, one.key, one.value, one.headers)
        for offset, one in zip(offsets, decoded, strict=True)
    ]


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("magic", [0, 1])
def test_plain_messages(magic: int, count: int) -> None:
    records = some(100, 100 + count, magic)
    selection = choose(b"".join(plain(one, magic) for one in records), 90)
    assert carried(selection) == records
    assert selection.next_offset == 100 + count
    assert selection.batch_count == 1
    assert base_offset(selection.pieces[0]) == 100
    assert selection.timestamp_ms_max == (999 + 100 + count if magic else -1)


@pytest.mark.parametrize("kind", WRAPPING, ids=lambda kind: NAMES[kind])
@pytest.mark.parametrize("magic", [0, 1])
def test_wrappers_keep_their_codec_and_offsets(magic: int, kind: int) -> None:
    first, second = some(5, 25, magic), some(30, 40, magic)
    response = wrapper(first, magic, kind) + wrapper(second, magic, kind)
    selection = choose(response)
    assert carried(selection) == first + second
    assert {codec(piece) for piece in selection.pieces} == {kind}
    assert selection.runs == [(5, 20), (30, 10)]
    assert carried(choose(response, 12, 33)) == [*some(12, 25, magic), *some(30, 33, magic)]
    assert choose(response, 12, 33).next_offset == 33


def test_compacted_wrappers_keep_true_offsets() -> None:
    left = [one for one in some(50, 70, 1) if one.offset in {52, 53, 60, 69}]
    inside = b"".join(plain(one, 1, 50) for one in left)
    response = message(69, None, compress(GZIP, inside), time=0, bits=GZIP)
    selection = choose(response)
    assert carried(selection) == left
    assert selection.runs == [(52, 2), (60, 1), (69, 1)]


@pytest.mark.parametrize("kind", WRAPPING, ids=lambda kind: NAMES[kind])
def test_the_wrappers_log_append_time_counts(kind: int) -> None:
    records = some(0, 10, 1)
    selection = choose(wrapper(records, 1, kind, bits=LOG_APPEND_TIME, time=77))
    assert [one.timestamp for one in carried(selection)] == [77] * 10


def test_the_old_lz4_header_checksum_is_read() -> None:
    inside = compress(LZ4, b"".join(plain(one, 0) for one in some(0, 5, 0)))
    broken = inside[:6] + bytes((inside[6] ^ 0x5A,)) + inside[7:]
    assert carried(choose(message(4, None, broken, time=None, bits=LZ4))) == some(0, 5, 0)


@pytest.mark.parametrize("kind", [NONE, GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_kafka_pythons_message_sets(magic: int, kind: int) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=kind, batch_size=1 << 20)
    records = some(0, 20, magic)
    for one in records:
        builder.append(one.offset, one.timestamp if magic else None, one.key, one.value)
    built = bytes(builder.build())
    if kind:
        # A wrapper leaves the producer with offset 0; the broker writes the last one's.
        built = struct.pack(">q", records[-1].offset) + built[8:]
    assert carried(choose(built)) == records


def test_old_and_new_formats_in_one_response() -> None:
    new = [Record(n, 1_000 + n, b"k", b"n") for n in range(20, 30)]
    newer = b"".join(encode_batch([one]) for one in new)
    response = plain(some(3, 4, 0)[0], 0) + wrapper(some(10, 20, 1), 1, GZIP) + newer
    assert carried(choose(response)) == [*some(3, 4, 0), *some(10, 20, 1), *new]


def test_cut_at_every_byte() -> None:
    parts = [plain(some(0, 1, 1)[0], 1), wrapper(some(1, 9, 1), 1, GZIP)]
    response = b"".join(parts)
    for size in range(len(response)):
        selection = choose(response[:size])
        assert selection.next_offset == (size >= len(parts[0]))
        assert len(carried(selection)) == selection.next_offset


@pytest.mark.parametrize("magic", [0, 1])
def test_every_damaged_byte_under_the_checksum_is_seen(magic: int) -> None:
    good = some(0, 1, magic)
    inner = wrapper(some(1, 4, magic), magic, GZIP)
    response = plain(good[0], magic) + inner
    for at in range(len(response) - len(inner) + 12, len(response)):
        damaged = bytearray(response)
        damaged[at] ^= 0x10
        selection = choose(bytes(damaged))
        assert carried(selection) == good
        with pytest.raises(BatchError):
            choose(bytes(damaged), 1)


def test_an_inner_checksum_is_checked() -> None:
    inside = bytearray(plain(some(1, 2, 1)[0], 1))
    inside[-1] ^= 1
    response = message(1, None, compress(GZIP, inside), time=0, bits=GZIP)
    with pytest.raises(CorruptBatch, match="CRC-32"):
        choose(response)
    assert choose(response, check_crcs=False).record_count == 1


def test_nonsense_is_refused() -> None:
    inside = plain(some(0, 1, 1)[0], 1)
    for response in (
        message(0, None, None, time=0, bits=GZIP),
        message(0, None, compress(GZIP, b""), time=0, bits=GZIP),
        message(0, None, compress(ZSTD, inside), time=0, bits=ZSTD),
        message(0, None, compress(GZIP, inside[:-1]), time=0, bits=GZIP),
        message(0, None, compress(GZIP, inside), time=None, bits=GZIP),
        message(-7, b"k", b"v", time=0),
        wrapper(some(0, 3, 1), 1, GZIP).replace(struct.pack(">q", 2), struct.pack(">q", 0), 1),
    ):
        with pytest.raises(CorruptBatch):
            choose(response)


def test_the_offsets_of_records_that_the_broker_stamped() -> None:
    """A wrapper stands for the records between the message before it and its own offset."""
    stamped = wrapper(some(2, 6, 1), 1, GZIP, LOG_APPEND_TIME, time=9)
    older = message(7, b"k", b"v", time=None, bits=LOG_APPEND_TIME)  # magic 0 has no such bit
    newer = message(8, b"k", b"v", time=5, bits=LOG_APPEND_TIME)
    batch = bytearray(encode_batch(some(9, 12, 2)))
    batch[22] |= LOG_APPEND_TIME
    mine = encode_batch(some(12, 14, 2))
    data = message(1, b"k", b"v", time=5) + stamped + older + newer + bytes(batch) + mine
    assert append_time_runs(memoryview(data)) == [(2, 6), (8, 12)]
    assert append_time_runs(memoryview(stamped)) == [(0, 6)]
    assert append_time_runs(memoryview(mine[:40])) == []
    assert append_time_runs(memoryview(mine)) == []
    holes = newer + bytes(batch).replace(bytes(batch[:8]), (20).to_bytes(8, "big"), 1)
    assert append_time_runs(memoryview(holes)) == [(0, 23)]
    short = bytearray(mine[:8] + (14).to_bytes(4, "big") + mine[12:26])
    short[22] |= LOG_APPEND_TIME  # a batch without a header, as damage leaves it
    assert append_time_runs(memoryview(bytes(batch + short))) == [(9, 13)]
