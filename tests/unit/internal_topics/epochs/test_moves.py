"""Moves in an assignment, and the records of releases."""

from __future__ import annotations

import pytest

from sparkmirror.internal_topics.assignments import AssignmentCollector, Orders, encode_assignment
from sparkmirror.internal_topics.commands import AssignmentDocument, SourcePartition
from sparkmirror.internal_topics.epochs.releases import Release, decode_release, encode_release
from sparkmirror.internal_topics.epochs.shares import share_of
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import TopicPartition

PARTITIONS = tuple(SourcePartition("t", n, "A.t") for n in range(4))
T0 = PARTITIONS[0].source


def _document(version: int, orders: Orders) -> AssignmentDocument:
    return AssignmentDocument("f", "r", version, PARTITIONS, base=1, moves={T0: orders})


@pytest.mark.parametrize("piece_bytes_max", [100_000, 150])
def test_moves_arrive_with_the_assignment(piece_bytes_max: int) -> None:
    signer = Signer("s" * 32)
    document = _document(9, Orders(((1, 4), (0, 7), (2, 9))))
    collector = AssignmentCollector("f", signer)
    pieces = encode_assignment(document, piece_bytes_max=piece_bytes_max, signer=signer)
    found = [collector.feed(*piece) for piece in pieces]
    assert found[-1] == document


def _share(orders: Orders, slot: int, planned: int = 0, at: int = 1) -> tuple[int | None, int]:
    """Since when ``slot`` has the partition, and the order by which it must release it."""
    home = {T0} if planned == slot else set()
    share = share_of(_document(99, orders), at, slot, 3, home)
    return share.owned.get(PARTITIONS[0]), share.leaving.get(T0, 0)


def test_a_partition_has_no_slot_while_it_moves() -> None:
    orders = Orders(((1, 4),))
    assert [_share(orders, slot) for slot in range(3)] == [(None, 4), (None, 0), (None, 0)]
    orders = Orders(((1, 4),), released=True)
    assert [_share(orders, slot) for slot in range(3)] == [(None, 0), (4, 0), (None, 0)]
    orders = Orders(((1, 4), (2, 6)))
    assert [_share(orders, slot) for slot in range(3)] == [(None, 0), (None, 6), (None, 0)]


def test_an_epoch_counts_the_moves_that_are_newer_than_its_plan() -> None:
    orders = Orders(((1, 4), (2, 6)))
    assert _share(orders, 0, planned=0, at=6) == (0, 0)
    assert _share(orders, 2, planned=0, at=6) == (None, 0)
    assert _share(orders, 0, planned=0, at=4) == (None, 6), "the plan's slot, not that of 4"
    assert _share(orders, 1, planned=0, at=4) == (None, 0)


def test_a_release_is_believed_if_it_is_signed() -> None:
    release = Release("A->B", "r", 2, 5, 7, (TopicPartition("t", 1), TopicPartition("u", 0)))
    ours, other = Signer("a" * 32), Signer("b" * 32)
    assert decode_release(*encode_release(release, ours), ours) == release
    assert decode_release(*encode_release(release, ours)) == release
    assert decode_release(*encode_release(release, other), ours) is None
    assert decode_release(*encode_release(release), ours) is None
    key, value = encode_release(release, ours)
    assert decode_release(key.replace(b"/2/", b"/3/"), value, ours) is None


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", b'{"run_id":"r","epoch":1,"version":2,"partitions":[1]}']
)
def test_other_records_are_no_releases(value: bytes | None) -> None:
    assert decode_release(b"A->B/2/gone", value) is None
    assert decode_release(b"A->B/2", b"{}") is None
