"""Header, codecs and record encoding, checked against kafka-python's own reader and writer."""

from __future__ import annotations

import random
import struct

import cramjam
import pyarrow
import pytest
from crc32c import crc32c
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from sparkmirror.errors import CorruptBatch, UnknownCodec
from sparkmirror.records import header as batches
from sparkmirror.records.codecs import GZIP, LZ4, NAMES, NONE, SNAPPY, ZSTD, compress, decompress
from sparkmirror.records.header import HEADER, HEADER_BYTES, split, stamp
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.records.varint import read_varint, varint

CODECS = range(5)
# kafka-python needs further packages for the others; pyarrow's libraries are the check for those.
THEIR_CODECS = (NONE, GZIP)
RECORDS = [
    Record(10, 1_000, b"key", b"value", ((b"h1", b"x"), (b"h1", None), ("ü".encode(), b""))),
    Record(11, 990, None, b"v" * 300),
    Record(12, 1_000_000, b"tombstone", None),
    Record(13, -1, None, None),
    Record(14, 1_005, b"", b""),
]


def theirs(data: bytes) -> list[Record]:
    """What kafka-python reads, in our shape."""
    found = []
    memory = MemoryRecords(data)
    while memory.has_next():
        batch = memory.next_batch()
        assert batch.validate_crc()
        found += [
            Record(
                one.offset,
                one.timestamp,
                None if one.key is None else bytes(one.key),
                None if one.value is None else bytes(one.value),
                tuple((name.encode(), content) for name, content in one.headers),
            )
            for one in batch
        ]
    return found


@pytest.mark.parametrize("codec", THEIR_CODECS)
def test_kafka_python_reads_what_we_encode(codec: int) -> None:
    assert theirs(encode_batch(RECORDS, codec=codec)) == RECORDS


@pytest.mark.parametrize("codec", THEIR_CODECS)
def test_we_read_what_kafka_python_encodes(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1 << 20,
    )  # fmt: skip
    for delta, record in enumerate(RECORDS):
        headers = [(name.decode(), content) for name, content in record.headers]
        assert builder.append(delta, record.timestamp, record.key, record.value, headers)
    data = memoryview(bytes(builder.build()))
    assert batches.codec(data) == codec
    assert batches.record_count(data) == len(RECORDS)
    assert batches.last_offset_delta(data) == len(RECORDS) - 1
    found = list(decode_records(data))
    assert [record.offset for record in found] == list(range(len(RECORDS)))
    assert [(r.timestamp, r.key, r.value, r.headers) for r in found] == [
        (r.timestamp, r.key, r.value, r.headers) for r in RECORDS
    ]


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_stamp_writes_the_header_of_a_producer(codec: int, transactional: bool) -> None:
    every_flag = 0x78
    source = encode_batch(RECORDS, codec=codec, attributes=every_flag, leader_epoch=9)
    header = stamp(
        memoryview(source),
        producer_id=1 << 40,
        producer_epoch=7,
        base_sequence=2**31 - 1,
        transactional=transactional,
    )
    fields = HEADER.unpack(header)
    produced = header + source[HEADER_BYTES:]
    assert fields[:4] == (0, len(source) - 12, -1, 2)
    assert fields[4] == crc32c(produced[21:])
    assert fields[5] == codec | (0x10 if transactional else 0)
    assert fields[6:9] == (4, 1_000, 1_000_000)
    assert fields[9:] == (1 << 40, 7, 2**31 - 1, 5)
    if codec in THEIR_CODECS:
        assert [r.value for r in theirs(produced)] == [r.value for r in RECORDS]


def test_accessors_read_the_header() -> None:
    data = encode_batch(RECORDS, codec=ZSTD)
    assert batches.base_offset(data) == 10
    assert batches.max_timestamp_ms(data) == 1_000_000
    assert batches.codec(data) == ZSTD


def test_split_cuts_at_the_lengths_and_refuses_what_does_not_add_up() -> None:
    one, two = encode_batch(RECORDS), encode_batch(RECORDS[:1], codec=LZ4)
    both = one + two
    assert split(memoryview(both)) == [(0, len(one)), (len(one), len(both))]
    assert split(memoryview(b"")) == []
    for size in range(1, len(both)):
        if size == len(one):
            continue
        with pytest.raises(CorruptBatch):
            split(memoryview(both[:size]))
    for length in (-1, 0, 48, 2**31 - 1):
        damaged = one[:8] + length.to_bytes(4, "big", signed=True) + one[12:]
        with pytest.raises(CorruptBatch):
            split(memoryview(damaged))


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_damaged_structure_is_refused(codec: int) -> None:
    def of(count: int, last: int) -> memoryview:
        fields = list(HEADER.unpack_from(encode_batch(RECORDS, codec=codec)))
        fields[6], fields[12] = last, count
        return memoryview(HEADER.pack(*fields) + encode_batch(RECORDS, codec=codec)[61:])

    for count, last in ((4, 4), (6, 5), (-1, 4), (2**31 - 1, 2**31 - 1), (5, 3)):
        with pytest.raises(CorruptBatch):
            list(decode_records(of(count, last)))


@pytest.mark.parametrize(
    "value", [0, -1, 1, 63, 64, -64, -65, 8191, 8192, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
)
def test_varints_round_trip_and_their_ends_are_seen(value: int) -> None:
    encoded = varint(value)
    assert read_varint(encoded + b"\xff", 0) == (value, len(encoded))
    for size in range(len(encoded)):
        with pytest.raises(CorruptBatch):
            read_varint(encoded[:size], 0)


def test_a_varint_does_not_run_on_for_ever() -> None:
    with pytest.raises(CorruptBatch):
        read_varint(b"\xff" * 1000, 0)


@pytest.mark.parametrize("codec", range(1, 5), ids=NAMES[1:])
@pytest.mark.parametrize("size", [0, 1, 100, 65_535, 65_536, 65_537, 1_000_000])
def test_codecs_round_trip_within_the_limit(codec: int, size: int) -> None:
    data = (b"some text, and a number %d;" % size * (size // 20 + 1))[:size]
    packed = memoryview(compress(codec, data))
    assert decompress(codec, packed, size) == data
    if size:
        with pytest.raises(CorruptBatch):
            decompress(codec, packed, size - 1)


@pytest.mark.parametrize("codec", range(1, 5), ids=NAMES[1:])
def test_a_compression_bomb_is_refused(codec: int) -> None:
    packed = memoryview(compress(codec, bytes(50_000_000)))
    with pytest.raises(CorruptBatch):
        decompress(codec, packed, 1_000_000)


@pytest.mark.parametrize("codec", range(1, 5), ids=NAMES[1:])
def test_cut_compressed_data_is_refused(codec: int) -> None:
    packed = compress(codec, b"hello, world; " * 20)
    for size in range(len(packed)):
        try:
            found = bytes(decompress(codec, memoryview(packed[:size]), 1000))
        except CorruptBatch:
            continue
        # Framed snappy cut between blocks is a whole stream of fewer blocks.
        assert (codec, found) == (SNAPPY, b"")


def test_other_framings_are_read() -> None:
    data = b"0123456789abcdef" * 20_000
    linked = bytes(cramjam.lz4.compress(data))
    assert decompress(LZ4, memoryview(linked)) == data
    wrong_header_checksum = linked[:6] + bytes((linked[6] ^ 0xFF,)) + linked[7:]
    assert decompress(LZ4, memoryview(wrong_header_checksum)) == data
    bare = bytes(cramjam.snappy.compress_raw(data))
    assert decompress(SNAPPY, memoryview(bare)) == data
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    frames = compress(ZSTD, data) + skippable + compress(ZSTD, b"end")
    assert decompress(ZSTD, memoryview(frames)) == data + b"end"


@pytest.mark.parametrize("size", [0, 1, 100, 32_768, 65_537, 1_000_000])
def test_other_libraries_read_what_we_compress(size: int) -> None:
    for data in (random.Random(size).randbytes(size), b"0123456789abcdef" * (size // 16)):
        assert bytes(pyarrow.decompress(compress(LZ4, data), len(data), codec="lz4")) == data
        assert bytes(pyarrow.decompress(compress(ZSTD, data), len(data), codec="zstd")) == data
        packed = compress(SNAPPY, data)
        assert packed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
        found, at = b"", 16
        while at < len(packed):
            (block_bytes,) = struct.unpack_from(">i", packed, at)
            block = packed[at + 4 : at + 4 + block_bytes]
            room = min(32 * 1024, len(data) - len(found))
            found += bytes(pyarrow.decompress(block, room, codec="snappy"))
            at += 4 + block_bytes
        assert found == data


@pytest.mark.parametrize(("codec", "low", "high"), [(GZIP, 1, 9), (LZ4, 3, 12), (ZSTD, -7, 19)])
def test_a_higher_level_packs_tighter(codec: int, low: int, high: int) -> None:
    rows = random.Random(1)
    data = b"".join(b"%d,%d;" % (rows.randrange(99), rows.randrange(9999)) for _ in range(20_000))
    sizes = []
    for level in (low, high):
        packed = compress(codec, data, [level] * 5)
        assert decompress(codec, memoryview(packed), len(data)) == data
        if codec != GZIP:
            assert pyarrow.decompress(packed, len(data), codec=NAMES[codec]).to_pybytes() == data
        sizes.append(len(packed))
    assert sizes[1] < sizes[0]


def test_lz4s_default_level_is_the_quick_one() -> None:
    """As in Java's clients; the format is the same, whatever the level."""
    data = b"".join(b"%d;" % (number * number) for number in range(20_000))
    quick, hard = compress(LZ4, data, [9] * 5), compress(LZ4, data, [8] * 5)
    assert quick == compress(LZ4, data)
    assert len(hard) < len(quick)
    assert hard[:7] == quick[:7]  # blocks of 64 KiB, independent, without checksums


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_named(codec: int) -> None:
    with pytest.raises(UnknownCodec, match=str(codec)):
        decompress(codec, memoryview(b"x"))
    with pytest.raises(UnknownCodec):
        compress(codec, b"x")
