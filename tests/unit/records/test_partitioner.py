"""The record path's pure part: scan, partitions, batches written anew."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference

from sparkmirror.errors import CorruptBatch
from sparkmirror.model import Partitioner
from sparkmirror.records.header import HEADER_BYTES, split
from sparkmirror.records.key_columns import scan
from sparkmirror.records.murmur2 import key_partitions, murmur2
from sparkmirror.records.partitioner import PartitionedBatches, RecordPartitioner, write_partitioned
from sparkmirror.records.records import Record, decode_records, encode_batch

KEYS = st.lists(st.binary(max_size=40), min_size=1, max_size=30)
BODIES = st.none() | st.binary(max_size=300)
# A record without a timestamp has -1.
RECORDS = st.lists(
    st.tuples(st.just(-1) | st.integers(0, 2**40), BODIES, BODIES, st.booleans()),
    min_size=1,
    max_size=60,
)


def _flat(keys: list[bytes]) -> tuple[object, object, object]:
    sizes = np.array([len(key) for key in keys], np.int64)
    return np.frombuffer(b"".join(keys) + b"rest", np.uint8), np.cumsum(sizes) - sizes, sizes


@given(keys=KEYS)
def test_murmur2_is_kafkas(keys: list[bytes]) -> None:
    flat, at, sizes = _flat(keys)
    found = murmur2(flat, at, sizes).tolist()  # type: ignore[arg-type]
    assert found == [reference(key) & 0xFFFF_FFFF for key in keys]


@pytest.mark.parametrize(
    # UtilsTest.testMurmur2 of Kafka.
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_of_kafkas_own_test(key: bytes, hashed: int) -> None:
    flat, at, sizes = _flat([key])
    assert murmur2(flat, at, sizes).view(np.int32).tolist() == [hashed]  # type: ignore[arg-type]
    positive = hashed & 0x7FFF_FFFF
    assert key_partitions(flat, at, sizes, 7).tolist() == [positive % 7]  # type: ignore[arg-type]


def _records(rows: list[tuple[int, bytes | None, bytes | None, bool]]) -> list[Record]:
    return [
        Record(index, time, key, value, ((b"h", b"1"), (b"", None)) if headed else ())
        for index, (time, key, value, headed) in enumerate(rows)
    ]


def _decoded(dealt: PartitionedBatches) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for data, partition in zip(dealt.batches, dealt.partitions, strict=True):
        view = memoryview(data)
        assert split(view) == [(0, len(data))]
        found.setdefault(partition, []).extend(decode_records(view))
    return found


def _plain(records: list[Record]) -> list[tuple[object, ...]]:
    return [(one.timestamp, one.key, one.value, one.headers) for one in records]


@given(
    rows=RECORDS,
    cuts=st.lists(st.integers(1, 59), max_size=3),
    codec=st.sampled_from([0, 1, 2, 3, 4]),
    partitions=st.integers(1, 9),
    batch_bytes=st.sampled_from([1, 200, 1 << 18]),
)
def test_every_record_goes_to_its_keys_partition_in_order(
    rows: list[tuple[int, bytes | None, bytes | None, bool]],
    cuts: list[int],
    codec: int,
    partitions: int,
    batch_bytes: int,
) -> None:
    records = _records(rows)
    places = sorted({0, len(records), *(cut for cut in cuts if cut < len(records))})
    data = b"".join(encode_batch(records[a:b], codec=codec) for a, b in pairwise(places))
    found = scan(memoryview(data))
    assert found.codec == codec
    partitioner = RecordPartitioner(Partitioner.KEY, sticky_bytes=500, rng=random.Random(7))
    chosen = partitioner.choose(found, partitions)
    dealt = write_partitioned(found, chosen, codec=codec, batch_bytes=batch_bytes)
    assert dealt.records == len(records)
    assert dealt.timestamp_ms == max(one.timestamp for one in records)
    got = _decoded(dealt)
    for partition, own in got.items():
        want = [one for one, number in zip(records, chosen, strict=True) if number == partition]
        assert _plain(own) == _plain(want)
        for one in own:
            if one.key is not None:
                assert (reference(one.key) & 0x7FFF_FFFF) % partitions == partition
    assert sum(map(len, got.values())) == len(records)


@given(sizes=st.lists(st.integers(0, 3), min_size=1, max_size=200))
def test_runs_of_equal_sizes_are_walked_like_all_others(sizes: list[int]) -> None:
    values = [bytes(60 if size < 2 else 40 * size) for size in sizes]
    records = [Record(index, 5, b"k", value) for index, value in enumerate(values)]
    found = scan(memoryview(encode_batch(records)))
    dealt = write_partitioned(found, np.zeros(len(values), np.int64), codec=0, batch_bytes=1 << 20)
    assert [one.value for one in decode_records(memoryview(dealt.batches[0]))] == values


def _keyless(count: int, size: int = 92) -> memoryview:
    return memoryview(encode_batch([Record(n, 1, None, bytes(size)) for n in range(count)]))


def test_records_without_a_key_stick_for_a_batch_and_then_move() -> None:
    partitioner = RecordPartitioner(Partitioner.KEY, sticky_bytes=1_000, rng=random.Random(3))
    chosen: list[int] = []
    for _ in range(20):
        chosen += partitioner.choose(scan(_keyless(7)), 5).tolist()
    runs = [[chosen[0], 0]]
    for one in chosen:
        if runs[-1][0] != one:
            runs.append([one, 0])
        runs[-1][1] += 1
    # 104 bytes a record: ten of them fill what one partition gets before the next.
    assert {count for _, count in runs[:-1]} <= {9, 10}
    assert {number for number, _ in runs} == set(range(5))


def test_other_partitioners() -> None:
    keyed = memoryview(encode_batch([Record(n, 1, b"same", b"v") for n in range(7)]))
    ring = RecordPartitioner(Partitioner.ROUND_ROBIN)
    assert ring.choose(scan(keyed), 3).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert ring.choose(scan(keyed), 3).tolist() == [1, 2, 0, 1, 2, 0, 1]
    sticky = RecordPartitioner(Partitioner.STICKY, sticky_bytes=20, rng=random.Random(1))
    assert len(set(sticky.choose(scan(keyed), 4).tolist())) > 1
    # One partition is all there is.
    assert set(sticky.choose(scan(keyed), 1).tolist()) == {0}


@pytest.mark.parametrize("at", [0, 2, 3, 4])  # 1: attributes, which say nothing
def test_damage_is_an_error(at: int) -> None:
    data = bytearray(encode_batch([Record(n, 1, b"key", b"value") for n in range(9)]))
    data[HEADER_BYTES + at] = 0xFF
    with pytest.raises(CorruptBatch):
        scan(memoryview(bytes(data)))
    short = bytes(encode_batch([Record(0, 1, b"key", b"value")]))
    with pytest.raises(CorruptBatch):
        scan(memoryview(short[:-1]))


def test_records_without_a_timestamp_get_the_time_of_mirroring() -> None:
    """Old formats have none; Java's producer stamps them, and brokers keep what they are sent."""
    times = [-1, 70, -1, 5]
    records = [Record(n, at, b"k", b"v") for n, at in enumerate(times)]
    found = scan(memoryview(encode_batch(records)))
    whole = {"codec": 0, "batch_bytes": 1 << 20}
    dealt = write_partitioned(found, np.zeros(4, np.int64), now_ms=90, **whole)
    (batch,) = map(memoryview, dealt.batches)
    assert [one.timestamp for one in decode_records(batch)] == [90, 70, 90, 5]
    assert dealt.timestamp_ms == 70  # how old the source's records are is still unknown
    kept = write_partitioned(found, np.zeros(4, np.int64), **whole)
    assert [one.timestamp for one in decode_records(memoryview(kept.batches[0]))] == times


@pytest.mark.parametrize(("codec", "low", "high"), [(1, 1, 9), (3, 3, 12), (4, -5, 19)])
def test_compression_levels(codec: int, low: int, high: int) -> None:
    rng = random.Random(3)
    words = [b"%x" % rng.getrandbits(32) for _ in range(500)]
    odds = [1 / (n + 1) for n in range(500)]  # as words of a language
    values = [b" ".join(rng.choices(words, odds, k=200)) for _ in range(40)]
    records = [Record(n, 5, b"k", value) for n, value in enumerate(values)]
    found = scan(memoryview(encode_batch(records)))
    sizes = []
    for level in (low, high):
        levels = [level] * 5
        dealt = write_partitioned(
            found, np.zeros(len(values), np.int64), codec=codec, batch_bytes=1 << 20, levels=levels
        )
        (batch,) = map(memoryview, dealt.batches)
        assert [one.value for one in decode_records(batch)] == values
        assert encode_batch(records, codec=codec, levels=levels)[61:] == bytes(batch[61:])
        sizes.append(len(batch))
    assert sizes[1] < sizes[0]
