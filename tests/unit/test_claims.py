"""Claims in the control topic: the codec, and that readers of old records do not stumble."""

from __future__ import annotations

import pytest

from sparkmirror.data.takeover import check_claim
from sparkmirror.errors import Fenced
from sparkmirror.model import ClusterClient, FlowSettings
from sparkmirror.wire.claims import Claim, decode_claim, encode_claim, transactional_id
from sparkmirror.wire.signals import decode_command

ENDS = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")
FLOW = FlowSettings(*ENDS, *ENDS)


def test_a_claim_comes_back() -> None:
    claim = Claim("A->B", "run-1", 8, "host.example")
    key, value = encode_claim(claim)
    assert decode_claim(key, value) == claim
    assert decode_command(key, value) is None


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
