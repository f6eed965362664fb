"""Requests for topics that records are routed to, and the driver's answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sparkmirror.internal_topics.commands import decode_command
from sparkmirror.internal_topics.reports import decode_progress
from sparkmirror.internal_topics.routed_topics import (
    NAMES_ASKED_MAX,
    RoutedTopics,
    TopicRequest,
    decode_request,
    decode_routed,
    encode_request,
    encode_routed,
    is_routed_key,
)
from sparkmirror.internal_topics.signing import Signer

FLOW = "A->B"
REQUEST = TopicRequest(FLOW, "r1", 3, 17, "orders", ("eu", "us"))
ANSWER = RoutedTopics(FLOW, "r1", ("eu",), True, {"us": "no permission"}, {3: 17})


def test_a_request_comes_through_and_is_no_report() -> None:
    record = encode_request(REQUEST)
    assert record[0] == b"A->B/3/topics"
    assert decode_request(*record) == REQUEST
    assert decode_progress(*record) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"names": "eu"},
        {"names": ["x" * 250]},
        {"names": ["x"] * (NAMES_ASKED_MAX + 1)},
        {"names": None},
        {"number": "x"},
        {"run_id": None, "topic": 5, "names": 5},
    ],
)
def test_malformed_requests_are_none(changes: dict[str, object]) -> None:
    document = {"run_id": "r1", "number": 1, "topic": "t", "names": ["a"]} | changes
    if changes == {"names": "eu"}:  # a text is a list of letters
        assert decode_request(b"A->B/3/topics", json.dumps(document).encode()) == replace(
            REQUEST, number=1, topic="t", names=("e", "u")
        )
    else:
        assert decode_request(b"A->B/3/topics", json.dumps(document).encode()) is None
    assert decode_request(b"A->B/3", json.dumps(document).encode()) is None


def test_answers_come_through_signed_and_unsigned() -> None:
    assert decode_routed(FLOW, *encode_routed(ANSWER)) == ANSWER
    signer = Signer("k" * 16)
    signed = encode_routed(ANSWER, signer)
    assert is_routed_key(signed[0])
    assert decode_routed(FLOW, *signed, signer) == ANSWER
    assert decode_routed(FLOW, *signed) == ANSWER, "a later run has another key"
    assert decode_routed(FLOW, *encode_routed(ANSWER), signer) is None, "nobody signed it"
    assert decode_routed("A->C", *signed, signer) is None
    assert decode_command(*signed) is None


@pytest.mark.parametrize("changes", [{"refused": []}, {"answered": {"x": 1}}, {"created": 5}])
def test_malformed_answers_are_none(changes: dict[str, object]) -> None:
    document = {"run_id": "r", "created": [], "full": False, "refused": {}, "answered": {}}
    value = json.dumps(document | changes).encode()
    assert decode_routed(FLOW, b"A->B/topics", value) is None
