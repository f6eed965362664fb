"""Records about limits: orders, and what the driver publishes for slots."""

from __future__ import annotations

import json

import pytest

from sparkmirror.control.coordination.orders_topic import decode_order
from sparkmirror.internal_topics.commands import decode_command, decode_halted, encode_progress
from sparkmirror.internal_topics.driver_report import (
    DriverReport,
    ThrottleState,
    decode_driver_report,
    encode_driver_report,
)
from sparkmirror.internal_topics.reports import decode_progress
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.internal_topics.throttles import (
    Limits,
    SharedLimit,
    ThrottleOrder,
    decode_limits,
    decode_throttle,
    encode_limits,
    encode_throttle,
)
from sparkmirror.progress import SlotProgress, ThrottleUse
from sparkmirror.settings import ThrottleRule

FLOW = "A->B"
RULE = ThrottleRule("", 50_000_000, "08:00-18:00")
TOPICS = ThrottleRule("logs/.*|audit", 1_000_000)


@pytest.mark.parametrize("rule", [RULE, TOPICS, ThrottleRule(), ThrottleRule("x/pause", 5_000)])
@pytest.mark.parametrize("reset", [False, True])
def test_an_order_comes_through_and_is_no_other_order(rule: ThrottleRule, *, reset: bool) -> None:
    order = ThrottleOrder(FLOW, rule, 1_700_000_000_000, reset)
    record = encode_throttle(order)
    assert decode_throttle(FLOW, *record) == order
    assert decode_throttle("A->C", *record) is None
    assert decode_order(*record) is None
    assert decode_command(*record) is None


def test_each_set_of_topics_has_a_key_of_its_own() -> None:
    keys = [encode_throttle(ThrottleOrder(FLOW, rule, 5))[0] for rule in (RULE, TOPICS)]
    assert keys == [b"A->B/throttle", b"A->B/throttle/logs/.*|audit"]


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("A->B/throttle", {"order": "pause"}),
        ("A->B/pause", {}),
        ("A->B/throttle", {"id": ""}),
        ("A->B/throttle", {"id": "x" * 65}),
        ("A->B/throttle", {"rule": ["", -1, ""]}),
        ("A->B/throttle", {"rule": ["", 10**13, ""]}),
        ("A->B/throttle", {"rule": ["", float("inf"), ""]}),
        ("A->B/throttle", {"rule": ["other", 5, ""]}),
        ("A->B/throttle", {"rule": ["", 5]}),
        ("A->B/throttle", {"rule": 7}),
        ("A->B/throttle/" + "x" * 1_001, {"rule": ["x" * 1_001, 5, ""]}),
        ("A->B/throttle", {"time_ms": None}),
    ],
)
def test_nothing_else_is_an_order(key: str, changes: dict[str, object]) -> None:
    document = {"order": "throttle", "id": "1", "time_ms": 5, "rule": ["", 5_000, ""], **changes}
    assert decode_throttle(FLOW, key.encode(), json.dumps(document).encode()) is None


def test_limits_come_through_signed_and_unsigned() -> None:
    limits = Limits(FLOW, "r1", (SharedLimit("", 9_000, (6_000, 3_000)), SharedLimit("t", 5_000)))
    assert decode_limits(FLOW, *encode_limits(limits)) == limits
    signer = Signer("k" * 16)
    signed = encode_limits(limits, signer)
    assert decode_limits(FLOW, *signed, signer) == limits
    assert decode_limits(FLOW, *encode_limits(limits), signer) is None, "nobody signed it"
    assert decode_limits(FLOW, *signed, Signer("o" * 16)) is None
    assert decode_limits("A->C", *signed, signer) is None
    assert decode_command(*signed) is None


@pytest.mark.parametrize(
    "limits", [[["", 0, []]], [["", "x", []]], [["", 5, 7]], 5, [["", 5, []]] * 65, [[5]]]
)
def test_malformed_limits_are_none(limits: object) -> None:
    value = json.dumps({"run_id": "r1", "limits": limits}).encode()
    assert decode_limits(FLOW, b"A->B/limits", value) is None


def test_a_division_for_another_number_of_slots_is_even() -> None:
    limit = SharedLimit("", 9_000, (6_000, 3_000))
    assert [limit.share(slot, 2) for slot in (0, 1)] == [6_000, 3_000]
    assert [limit.share(slot, 3) for slot in (0, 1, 2)] == [3_000] * 3
    assert SharedLimit("", 9_000, (0, 9_000)).share(0, 2) == 1, "a rate of 0 would divide by it"


def test_what_limits_did_is_in_the_reports_of_slots() -> None:
    uses = (ThrottleUse("", 1, 2, 3, 4), ThrottleUse("t.*", 5, 6, 7, 8))
    progress = SlotProgress(FLOW, 3, "w", 1, 5, 0, 0, 0, run_id="r1", attempt=7, throttles=uses)
    record = encode_progress(progress)
    assert decode_progress(*record) == progress
    assert b',["' not in record[1], "slots would decode each report in full"
    assert decode_halted(FLOW, 3, ("r1", 7), *record) == ()


def test_drivers_report_their_limits() -> None:
    states = (ThrottleState(RULE, "id", applies=False), ThrottleState(TOPICS))
    report = DriverReport(FLOW, "r1", "h", "1", 5, 6, throttles=states, resets=("id2",))
    assert decode_driver_report(*encode_driver_report(report)) == report
    older = DriverReport(FLOW, "r1", "h", "1", 5, 6)
    found = decode_driver_report(*encode_driver_report(older))
    assert found is not None
    assert found.throttles is None
