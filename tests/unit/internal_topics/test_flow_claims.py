"""Claims in the control topic: the codec, and that readers of old records do not stumble."""

from __future__ import annotations

import pytest

from sparkmirror.data.coordination.fencing import check_claim
from sparkmirror.errors import Fenced
from sparkmirror.internal_topics.commands import decode_command
from sparkmirror.internal_topics.flow_claims import (
    Claim,
    Standby,
    decode_claim,
    decode_standby,
    encode_claim,
    encode_standby,
    standby_key,
    transactional_id,
)
from sparkmirror.settings import ClusterClient, FlowSettings

ENDS = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")
FLOW = FlowSettings(*ENDS, *ENDS)


def test_a_claim_comes_back() -> None:
    claim = Claim("A->B", "run-1", 8, "host.example")
    key, value = encode_claim(claim)
    assert decode_claim(key, value) == claim
    assert decode_command(key, value) is None


def test_what_earlier_releases_wrote_is_a_claim() -> None:
    """And what is new in a claim is nothing that a reader must have."""
    old = decode_claim(b"A->B/claim", b'{"run_id":"r","slots":2,"host":"h","term":7}')
    assert old == Claim("A->B", "r", 2, "h", 7)
    new = Claim("A->B", "r", 2, "h", 7, "boot/ns/1/2", "/f", "1:ab", 10_000, 99)
    assert decode_claim(*encode_claim(new)) == new


def test_a_standby_comes_back() -> None:
    standby = Standby("A->B", "run-1", "h:1", "1", "/f", 5)
    assert decode_standby(*encode_standby(standby)) == standby
    assert decode_standby(standby_key("A->B", "run-1"), None) is None
    assert decode_standby(b"A->B/standby#x", b'{"host":"h"}') is None
    assert decode_standby(b"A->B/driver", encode_standby(standby)[1]) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"A->B", b'{"run_id":"r","slots":1}'),
        (b"A->B/claim", None),
        (b"A->B/claim", b"{}"),
        (b"A->B/claim", b"[]"),
        (b"A->B/claim", b"nonsense"),
        (b"A->B/claim", b'{"run_id":"r","slots":"many"}'),
        (b"\xff/claim", b'{"run_id":"r","slots":1}'),
    ],
)
def test_what_is_no_claim(key: bytes | None, value: bytes | None) -> None:
    assert decode_claim(key, value) is None


@pytest.mark.parametrize(
    ("slots", "read"), [("2000000000", 1_000), ("1e300", 1_000), ("-5", 0), ("1000", 1_000)]
)
def test_a_claim_cannot_make_a_start_fence_without_end(slots: str, read: int) -> None:
    claim = decode_claim(b"A->B/claim", f'{{"run_id":"theirs","slots":{slots}}}'.encode())
    assert claim is not None
    assert claim.slots == read


def test_only_another_run_takes_a_flow_over() -> None:
    check_claim(FLOW, None, "mine")
    check_claim(FLOW, Claim("A->B", "mine", 1), "mine")
    with pytest.raises(Fenced, match="another sparkmirror \\(run theirs, host h2\\)"):
        check_claim(FLOW, Claim("A->B", "theirs", 1, "h2"), "mine")


def test_ids_are_told_apart_by_flow_and_slot() -> None:
    assert transactional_id(FLOW, 3) == "__mirror.A->B-3"
