"""What a position remembers of the target, and when the target's log may be believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.data.resume import (
    Recorded,
    _by_producer,
    _without_gap,
    decode_recorded,
    encode_recorded,
)
from sparkmirror.data.syncs import Places
from sparkmirror.model import TopicPartition
from sparkmirror.wire.batch import CONTROL_BIT, HEADER_BYTES, stamp
from sparkmirror.wire.fetch import FetchedPartition
from sparkmirror.wire.records import Record, encode_batch

TP = TopicPartition("t", 0)


@given(st.builds(Recorded, st.text(max_size=8), st.integers(-1, 99), st.integers(-1, 99)))
def test_metadata_comes_back_as_far_as_it_makes_sense(recorded: Recorded) -> None:
    back = decode_recorded(encode_recorded(recorded))
    assert back.source_topic_id == recorded.source_topic_id
    assert back.target_offset == recorded.target_offset
    assert back.producer_id == (recorded.producer_id if recorded.target_offset >= 0 else -1)


@pytest.mark.parametrize("metadata", ["", "x", "[]", "null", '{"target_offset":"far"}', "7"])
def test_metadata_of_others_says_nothing(metadata: str) -> None:
    assert decode_recorded(metadata) == Recorded()


def _batch(offset: int, records: int, *, producer_id: int = 7, bits: int = 0) -> bytes:
    whole = encode_batch([Record(n, 1, None, b"v") for n in range(records)])
    head = bytearray(
        stamp(
            memoryview(whole),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=False,
        )
    )
    head[:8] = offset.to_bytes(8, "big")
    head[22] |= bits
    return bytes(head) + whole[HEADER_BYTES:]


def _answer(batches: bytes, offset: int = 10) -> FetchedPartition:
    return FetchedPartition(TP, offset, 99, 99, 0, [], memoryview(batches))


@pytest.mark.parametrize(
    ("batches", "after"),
    [
        (_batch(10, 3) + _batch(13, 2), 15),
        (_batch(10, 3) + _batch(13, 9), 22),  # past the end: the caller compares
        (_batch(10, 3) + _batch(13, 2)[:70], 13),  # cut by the end of the answer
        (_batch(10, 3)[:70], 10),  # more bytes are needed
        (_batch(10, 3) + _batch(13, 2, producer_id=8), -1),
        (_batch(10, 3) + _batch(14, 2), -1),
        (_batch(9, 6), -1),
        (_batch(10, 1, bits=CONTROL_BIT), -1),
    ],
)
def test_only_batches_of_one_producer_without_a_gap_count(batches: bytes, after: int) -> None:
    assert _by_producer({TP: 7})(_answer(batches), 15) == after


def test_without_a_producer_id_nothing_counts() -> None:
    assert _by_producer({TP: -1})(_answer(_batch(10, 3, producer_id=-1)), 13) == -1


def _log(*offsets: int) -> bytes:
    return b"".join(encode_batch([Record(n, 1, None, b"v")], base_offset=n) for n in offsets)


@pytest.mark.parametrize(
    ("batches", "after"),
    [
        (_log(10, 11, 12, 13), 13),
        (_log(10, 11), 12),
        (_log(10, 12), -1),
        (_log(11, 12), -1),
        (_log(9, 10, 11), 12),
        (b"\0" * 100, -1),
    ],
)
def test_the_source_must_have_a_record_at_each_offset(batches: bytes, after: int) -> None:
    assert _without_gap(_answer(batches), 13) == after


def test_the_end_of_a_chunk_is_known_only_with_its_last_batch() -> None:
    places = Places((), 5)
    assert places.target_end == -1
    places.acknowledged(3, 3, 100)
    assert places.target_end == -1
    places.acknowledged(5, 2, 103)
    assert places.target_end == 105
    unknown = Places((), 5)
    unknown.acknowledged(3, 3, 100)
    unknown.acknowledged(5, 2, -1)
    assert unknown.target_end == -1
