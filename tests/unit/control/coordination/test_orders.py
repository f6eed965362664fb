"""Orders of operators: what the topic may hold, and which of them counts."""

from __future__ import annotations

import json
import re

import pytest

from sparkmirror.control.coordination.orders import newest_pause, pending_pause
from sparkmirror.control.coordination.orders_topic import (
    Order,
    decode_order,
    encode_order,
    orders_topic,
)
from sparkmirror.internal_topics.commands import Command, CommandKind
from sparkmirror.model import MirrorMode
from sparkmirror.settings import ClusterClient, FlowSettings, TopicSettings

A, B = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")
FLOW = FlowSettings(A, B, A, B)
PAUSE, RESUME, DRAIN = CommandKind.PAUSE, CommandKind.RESUME, CommandKind.DRAIN


def test_the_topic_is_named_like_the_control_topic_and_never_mirrored() -> None:
    assert orders_topic(FLOW) == "mm2-sparkmirror-orders.A.internal"
    assert any(re.fullmatch(one, orders_topic(FLOW)) for one in TopicSettings().exclude)
    mm1 = FlowSettings(A, B, A, B, mode=MirrorMode.MM1, group_id="g")
    assert re.fullmatch(r"mm2-sparkmirror-orders\.mm1-[0-9a-f]{16}\.internal", orders_topic(mm1))


@pytest.mark.parametrize("kind", [PAUSE, RESUME, DRAIN])
def test_an_order_comes_through(kind: CommandKind) -> None:
    order = Order("A->B", kind, 1_700_000_000_000, ("r1", "r2") if kind is DRAIN else ())
    assert decode_order(*encode_order(order)) == order


def test_pause_and_resume_have_one_key_and_drains_another() -> None:
    """So that compaction keeps the newest of each."""
    keys = [encode_order(Order("A->B", kind, 5))[0] for kind in (PAUSE, RESUME, DRAIN)]
    assert keys == [b"A->B/pause", b"A->B/pause", b"A->B/drain"]


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("A->B/pause", {"order": "run"}),
        ("A->B/drain", {"order": "replan"}),
        ("A->B/drain", {"order": "pause"}),
        ("A->B", {"order": "drain"}),
        ("A->B/claim", {"order": "pause"}),
        ("/pause", {}),
        ("A->B/pause", {"id": ""}),
        ("A->B/pause", {"id": "x" * 65}),
        ("A->B/pause", {"time_ms": float("inf")}),
        ("A->B/pause", {"time_ms": None}),
        ("A->B/drain", {"order": "drain", "runs": 7}),
        ("A->B/drain", {"order": "drain", "runs": {"r1": 1}}),
        ("A->B/pause", {"order": ["pause"]}),
    ],
)
def test_nothing_else_is_an_order(key: str, changes: dict[str, object]) -> None:
    document = {"order": "pause", "id": "1", "time_ms": 5, **changes}
    assert decode_order(key.encode(), json.dumps(document).encode()) is None


def test_a_drain_names_a_bounded_number_of_runs() -> None:
    runs = tuple(map(str, range(5_000)))
    found = decode_order(*encode_order(Order("A->B", DRAIN, 5, runs)))
    assert found is not None
    assert found.runs == runs[:1_000]


def test_the_newest_of_pause_and_resume_counts() -> None:
    orders = [Order("A->B", PAUSE, 9), Order("A->B", RESUME, 5), Order("A->B", DRAIN, 7)]
    assert newest_pause(orders) is orders[1], "the topic's order counts, not the clocks"
    assert newest_pause(orders[2:]) is None


@pytest.mark.parametrize(
    ("standing", "pending"),
    [
        (None, True),
        (("order", 50), False),  # said there already
        (("before", 99), True),
        (("", 99), True),  # an older version's, given before it
        (("", 101), False),  # and after it
    ],
)
def test_an_order_is_passed_on_once(standing: tuple[str, int] | None, *, pending: bool) -> None:
    known = None
    if standing is not None:
        known = Command("A->B", PAUSE, "r0", standing[1], order_id=standing[0])
    order = Order("A->B", RESUME, 100, order_id="order")
    assert pending_pause(order, known) is pending
    assert not pending_pause(None, known)
