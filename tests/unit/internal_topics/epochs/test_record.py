"""The record of an epoch: what readers take of it, and what they leave."""

from __future__ import annotations

import json

import pytest

from sparkmirror.internal_topics.assignments import AssignmentCollector
from sparkmirror.internal_topics.commands import decode_command
from sparkmirror.internal_topics.epochs.record import (
    EpochRecord,
    decode_epoch,
    encode_epoch,
    is_epoch_key,
)
from sparkmirror.internal_topics.flow_claims import decode_claim
from sparkmirror.internal_topics.signing import Signer

RECORD = EpochRecord("A->B", "run", 7, "token")


@pytest.mark.parametrize("signer", [None, Signer("0123456789abcdef")])
def test_what_was_written_is_read(signer: Signer | None) -> None:
    key, value = encode_epoch(RECORD, signer)
    assert is_epoch_key(key)
    assert decode_epoch("A->B", key, value, signer) == RECORD
    assert decode_epoch("A->C", key, value, signer) is None


def test_only_the_run_that_signs_is_believed() -> None:
    signer = Signer("0123456789abcdef")
    key, value = encode_epoch(RECORD, Signer("another 23456789"))
    assert decode_epoch("A->B", key, value, signer) is None
    key, signed = encode_epoch(RECORD, signer)
    changed = json.dumps(json.loads(signed) | {"number": 8}).encode()
    assert decode_epoch("A->B", key, changed, signer) is None
    assert decode_epoch("A->B", *encode_epoch(RECORD), signer) is None


@pytest.mark.parametrize("value", [None, b"", b"[]", b"{}", b'{"run_id":"r","number":"x"}'])
def test_malformed_records_are_left_out(value: bytes | None) -> None:
    assert decode_epoch("A->B", b"A->B/epoch", value) is None


def test_no_other_reader_takes_it_for_its_own() -> None:
    """Also not one of an earlier release, which does not know the key."""
    record = encode_epoch(RECORD)
    assert decode_command(*record) is None
    assert decode_claim(*record) is None
    assert AssignmentCollector("A->B").feed(*record) is None


@pytest.mark.parametrize(("number", "newer"), [(6, False), (7, True), (8, True)])
def test_an_earlier_record_that_is_written_again_changes_nothing(number: int, newer: bool) -> None:
    """Of two with the same number, the topic's order decides."""
    other = EpochRecord("A->B", "run", number, "other")
    assert other.newest(RECORD) == (other if newer else RECORD)
    assert other.newest(None) == other
