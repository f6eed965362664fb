"""A slot obeys the limits of its own run, and reports what they did."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.slot_plan import plan_slots
from sparkmirror.data.read import notes_to_sink
from sparkmirror.data.read.notes_to_sink import NotesToSink
from sparkmirror.data.read.slot_throttle import SlotThrottle, slot_limits
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.throttles import Limits, SharedLimit, encode_limits
from sparkmirror.progress import ThrottleUse
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.wire.fetch.throttle import DEBT_S

FLOW = "A->B"
LIMITS = Limits(FLOW, "r1", (SharedLimit("", 9_000, (6_000, 3_000)), SharedLimit("t.*", 4_000)))


def settings() -> FlowSettings:
    ends = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")
    return FlowSettings(*ends, *ends)


@pytest.fixture
def watch() -> Iterator[ControlWatch]:
    one = ControlWatch(settings(), "r1", slot=0, offset=0)
    yield one
    one.close()


def test_a_slot_hears_the_limits_of_its_own_run(watch: ControlWatch) -> None:
    def hear(limits: Limits) -> Limits | None:
        watch._apply(watch._commands, *encode_limits(limits))
        return watch.limits

    assert hear(Limits(FLOW, "r0", LIMITS.limits)) is None
    assert hear(LIMITS) == LIMITS
    assert hear(Limits(FLOW, "r2")) == LIMITS, "a run that has lost the flow writes late"
    assert hear(Limits("A->C", "r1")) == LIMITS
    assert hear(Limits(FLOW, "r1")) == Limits(FLOW, "r1")


def test_a_slot_has_its_share_and_an_even_debt() -> None:
    flow, topics = slot_limits(LIMITS, 1, 2)
    assert (flow.name, flow.topics, flow.bytes_s, flow.total_bytes_s) == ("", None, 3_000, 9_000)
    assert flow.debt_bytes == pytest.approx(4_500 * DEBT_S)
    assert topics.topics is not None
    assert topics.topics.fullmatch("t1")
    assert not topics.topics.fullmatch("at1")
    assert topics.bytes_s == 2_000


def test_a_limit_with_an_invalid_regex_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = slot_limits(Limits(FLOW, "r1", (SharedLimit("(", 5), SharedLimit("", 6))), 0, 1)
    assert [one.name for one in found] == [""]
    assert "a limit in the control topic is ignored" in caplog.text


def test_without_limits_the_fetcher_has_no_throttle() -> None:
    fetcher = SimpleNamespace(throttle=None)
    throttling = SlotThrottle(cast(Any, fetcher), 0, 2)
    throttling.obey(None)
    assert fetcher.throttle is None
    throttling.obey(LIMITS)
    first = fetcher.throttle
    assert [use.topics for use in first.uses()] == ["", "t.*"]
    throttling.obey(Limits(FLOW, "r1", (SharedLimit("", 9_000),)))
    assert fetcher.throttle is first, "its buckets keep their levels"
    assert [use.topics for use in first.uses()] == [""]
    throttling.obey(Limits(FLOW, "r1"))
    assert fetcher.throttle is None


def test_the_plan_of_a_slot_has_the_limits_before_it() -> None:
    partitions = [SourcePartition("t", number, "A.t") for number in range(3)]
    plans = plan_slots(
        partitions, slots_max=2, epoch=1, run_id="r1", ends=None, control_offset=5, limits=LIMITS
    )
    assert [(plan.slot, plan.slots, plan.limits) for plan in plans] == [
        (0, 2, LIMITS),
        (1, 2, LIMITS),
    ]


def test_the_sink_hears_what_limits_did_at_most_twice_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, uses = 100.0, (ThrottleUse("", 1, 2, 3, 4),)
    monkeypatch.setattr(notes_to_sink.time, "monotonic", lambda: now_s)
    throttle = SimpleNamespace(uses=lambda: uses)
    fetcher = SimpleNamespace(errors={}, halts={}, throttle=throttle)
    nothing = SimpleNamespace(take_gaps=tuple, paused=False)
    notes = NotesToSink(*(cast(Any, one) for one in (fetcher, nothing, nothing, nothing)))
    first = notes.take()
    assert first is not None
    assert first.throttles == uses
    uses = (ThrottleUse("", 5, 6, 7, 8),)
    assert notes.take() is None
    now_s += 0.6
    second = notes.take()
    assert second is not None
    assert second.throttles == uses
    now_s += 0.6
    assert notes.take() is None, "nothing has changed"
    fetcher.throttle = None
    third = notes.take()
    assert third is not None
    assert third.throttles == ()
