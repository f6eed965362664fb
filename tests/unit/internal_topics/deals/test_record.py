"""Records of deals: what is read is what was written, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sparkmirror.internal_topics.deals.dealing import Deal, Move
from sparkmirror.internal_topics.deals.record import (
    DealRecord,
    decode_deal,
    encode_deal,
    flow_of,
)
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import TopicPartition

A0, A1, B0 = (TopicPartition(*one) for one in (("a", 0), ("a", 1), ("b", 0)))
RECORD = DealRecord(
    "A->B#r", "r", 3, 1_000,
    Deal(((A0, A1), (B0,)), frozenset({1}), (Move(A1, 1, 0, "slot 1 had 1.9 times the mean"),)),
    (2_000, 700_000), 1, 8,
)  # fmt: skip


def test_a_record_keeps_the_deal() -> None:
    key, value = encode_deal(RECORD)
    assert key == b"A->B#r/deal"
    assert flow_of(key) == "A->B#r"
    assert decode_deal("A->B#r", key, value) == RECORD
    assert decode_deal("A->B", key, value) is None


def test_many_moves_are_counted_and_the_first_hundred_shown() -> None:
    moves = tuple(Move(TopicPartition("a", n), 1, 0, "slot 1 is gone") for n in range(1_000))
    deal = replace(RECORD.deal, moves=moves)
    found = decode_deal("A->B#r", *encode_deal(replace(RECORD, deal=deal, moved=1_000)))
    assert found is not None
    assert (found.moved, found.deal.moves) == (1_000, moves[:100])


def test_a_record_that_another_run_signed_is_ignored() -> None:
    key, value = encode_deal(RECORD, Signer("ours"))
    assert decode_deal("A->B#r", key, value, Signer("ours")) == RECORD
    assert decode_deal("A->B#r", key, value, Signer("other")) is None
    assert decode_deal("A->B#r", *encode_deal(RECORD), Signer("ours")) is None


@pytest.mark.parametrize(
    "slots",
    [
        [[-1, False, {"a": [0]}]],
        [[10**16, False, {"a": [0]}]],
        [[1, False]],
        [[1, False, {"a": ["x"]}]],
        [[float("inf"), False, {}]],
        7,
    ],
)
def test_malformed_records_are_ignored(slots: object) -> None:
    key, value = encode_deal(RECORD)
    broken = json.dumps({**json.loads(value), "slots": slots}).encode()
    assert decode_deal("A->B#r", key, broken) is None
