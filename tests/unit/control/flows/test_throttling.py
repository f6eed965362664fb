"""What the driver makes of settings, orders, the time of day and reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from sparkmirror.control.coordination.orders import OrderFollower
from sparkmirror.control.coordination.orders_topic import Order, OrdersReader, encode_order
from sparkmirror.control.flows.throttling import Throttling, effective
from sparkmirror.errors import Unreachable
from sparkmirror.internal_topics.commands import CommandKind
from sparkmirror.internal_topics.history import EventKind
from sparkmirror.internal_topics.tables import ReloadOrder, encode_reload
from sparkmirror.internal_topics.throttles import (
    Limits,
    SharedLimit,
    ThrottleOrder,
    encode_throttle,
)
from sparkmirror.progress import SlotProgress, ThrottleUse
from sparkmirror.settings import ClusterClient, FlowSettings, ThrottleRule

A, B = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")
BY_FILE = ThrottleRule("", 50_000_000)
NOON = datetime(2026, 5, 4, 12).timestamp()


class Events:
    """Instead of a history."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def note(self, kind: EventKind, text: str) -> None:
        assert kind is EventKind.THROTTLE
        self.noted.append(text)


class Driver:
    """Limits of a flow whose clock, slots and control topic a test decides."""

    def __init__(self, *rules: ThrottleRule, slots: int = 2) -> None:
        self.now_s = NOON
        self.published: list[Limits] = []
        self.told: list[str] = []
        self.history = Events()
        self.fails = False
        self.slots = slots
        self.throttling = Throttling(
            FlowSettings(A, B, A, B, throttles=rules),
            "r1",
            "A->B",
            publish=self._publish,
            slots=lambda: self.slots,
            history=self.history,  # type: ignore[arg-type]
            notify=self.told.append,
            clock_s=lambda: self.now_s,
            ticks_s=lambda: self.now_s,
        )

    def _publish(self, limits: Limits) -> None:
        if self.fails:
            raise Unreachable("B is away", where="cluster B")
        self.published.append(limits)

    def order(self, *orders: ThrottleOrder) -> None:
        self.throttling.take_orders({one.rule.topics: one for one in orders})
        self.throttling.step()

    def report(self, slot: int, **counts: int) -> None:
        use = {"current_bytes": 0, "backfill_bytes": 0, "current_wait_ms": 0} | counts
        use.setdefault("backfill_wait_ms", 0)
        time_ms = int(self.now_s * 1000)
        report = SlotProgress(
            "A->B", slot, "w", 1, time_ms, 0, 0, 0, attempt=slot,
            throttles=(ThrottleUse("", **use),),
        )  # fmt: skip
        self.throttling.observe([report])


def order(bytes_s: int, topics: str = "", between: str = "", *, reset: bool = False):
    return ThrottleOrder("A->B", ThrottleRule(topics, bytes_s, between), 5, reset)


def test_a_flow_without_limits_publishes_nothing() -> None:
    driver = Driver()
    driver.throttling.begin()
    driver.throttling.step()
    assert driver.published == []
    assert driver.throttling.states() == ()
    assert driver.told == driver.history.noted == []


def test_the_limit_of_the_file_is_published_once() -> None:
    driver = Driver(BY_FILE)
    for _ in range(5):
        driver.throttling.step()
    assert driver.published == [Limits("A->B", "r1", (SharedLimit("", 50_000_000),))]
    assert driver.history.noted == ["limited to 50 MB/s, by the file"]
    assert driver.told == ["A->B: limited to 50 MB/s, by the file"]
    assert driver.throttling.figures().limits == {"": 50_000_000}


def test_a_run_that_begins_again_takes_back_its_limit_of_before() -> None:
    """It stood by while the window ended; its record is in the control topic still."""
    driver = Driver(ThrottleRule("", 50_000_000, "08:00-18:00"))
    driver.throttling.begin()
    driver.now_s += 7 * 3600
    driver.throttling.begin()
    assert [len(one.limits) for one in driver.published] == [1, 0]
    driver.throttling.step()
    assert len(driver.published) == 2


def test_a_limit_whose_writing_failed_is_taken_back() -> None:
    """Nobody knows whether it has arrived."""
    driver = Driver(ThrottleRule("", 50_000_000, "08:00-18:00"))
    driver.fails = True
    with pytest.raises(Unreachable):
        driver.throttling.begin()
    driver.now_s += 7 * 3600
    driver.fails = False
    driver.throttling.step()
    assert [one.limits for one in driver.published] == [()]


def test_orders_replace_the_file_until_they_are_reset() -> None:
    driver = Driver(BY_FILE)
    driver.throttling.begin()
    driver.order(order(10_000_000))
    assert driver.published[-1].limits == (SharedLimit("", 10_000_000),)
    driver.order(order(0))
    assert driver.published[-1].limits == ()
    (off,) = driver.throttling.states()
    assert off.rule.bytes_s == 0, "users see that an order switched it off"
    reset = order(0, reset=True)
    driver.order(reset)
    assert driver.published[-1].limits == (SharedLimit("", 50_000_000),)
    assert driver.throttling.resets() == (reset.order_id,)
    assert driver.history.noted == [
        "limited to 50 MB/s, by the file",
        "limited to 10 MB/s, by an order",
        "limit off, by an order",
        "limited to 50 MB/s, by the file",
    ]


def test_topics_have_limits_beside_that_of_the_flow() -> None:
    driver = Driver(BY_FILE)
    driver.order(order(1_000_000, "logs.*"))
    assert [(one.topics, one.bytes_s) for one in driver.published[-1].limits] == [
        ("", 50_000_000),
        ("logs.*", 1_000_000),
    ]
    driver.order(order(0, "logs.*", reset=True))
    assert driver.published[-1].limits == (SharedLimit("", 50_000_000),)
    assert driver.history.noted[-1] == "limit for topics logs.* removed: an order reset it"


def test_a_limit_applies_within_its_daily_window_only() -> None:
    driver = Driver(ThrottleRule("", 50_000_000, "22:00-06:00"))
    driver.throttling.step()
    assert driver.published == []
    assert driver.history.noted == [
        "limited to 50 MB/s between 22:00 and 06:00, by the file;"
        " it is outside of its daily window now"
    ]
    driver.now_s = NOON + 10 * 3600
    driver.throttling.step()
    assert driver.published[-1].limits == (SharedLimit("", 50_000_000),)
    driver.now_s = NOON + 18 * 3600
    driver.throttling.step()
    assert driver.published[-1].limits == ()
    assert driver.history.noted[1:] == [
        "limit of 50 MB/s: its daily window begins",
        "limit of 50 MB/s: its daily window ends",
    ]


def test_what_could_not_be_published_is_tried_again() -> None:
    driver = Driver(BY_FILE)
    driver.fails = True
    with pytest.raises(Unreachable):
        driver.throttling.step()
    assert driver.history.noted == []
    driver.fails = False
    driver.throttling.step()
    assert len(driver.published) == len(driver.history.noted) == 1


def test_figures_are_there_while_the_target_does_not_answer() -> None:
    """A scrape and the run loop read them; a record to a hanging target takes half a minute."""
    driver, seen = Driver(BY_FILE), []

    def hang(_limits: Limits) -> None:
        for read in (driver.throttling.figures, driver.throttling.states, driver.throttling.resets):
            thread = threading.Thread(target=lambda read=read: seen.append(read()), daemon=True)
            thread.start()
            thread.join(60)

    driver.throttling._publish = hang
    driver.throttling.step()
    assert len(seen) == 3


def test_a_run_that_begins_again_publishes_again() -> None:
    driver = Driver(BY_FILE)
    driver.throttling.begin()
    driver.throttling.begin()
    assert len(driver.published) == 2, "another run's record may have replaced the first"


def test_invalid_orders_are_reported_once_and_ignored() -> None:
    driver = Driver(BY_FILE)
    bad, worse = order(5_000, "("), order(5_000, "", "8-18")
    for _ in range(3):
        driver.order(bad, worse)
    assert driver.published[-1].limits == (SharedLimit("", 50_000_000),)
    ignored = [line for line in driver.told if "an order is ignored" in line]
    assert len(ignored) == 2


def test_no_limit_is_shown_that_no_slot_obeys() -> None:
    """A flow has at most sixteen, with those of its file; an order for more is refused, once."""
    driver = Driver(BY_FILE)
    orders = [order(5_000, f"t{number:02}") for number in range(1, 20)]
    for _ in range(2):
        driver.order(*orders)
        shown = [one.rule.topics for one in driver.throttling.states() if one.applies]
        assert shown == ["", *(f"t{number:02}" for number in range(1, 16))]
        assert shown == [one.topics for one in driver.published[-1].limits]
    ignored = [line for line in driver.told if "an order is ignored" in line]
    assert len(ignored) == 4
    said = "limited to 5 kB/s for topics t16: the flow has 16 limits already"
    assert ignored[0] == f"A->B: an order is ignored: {said}"
    assert driver.throttling.resets() == ()


def test_an_order_too_many_takes_the_place_of_no_other() -> None:
    driver = Driver(BY_FILE)
    held = [order(5_000, f"t{number:02}") for number in range(1, 16)]
    driver.order(*held)
    more = order(5_000, "a")
    driver.order(more, *held)
    assert "a" not in {one.rule.topics for one in driver.throttling.states()}
    driver.order(more, *held[1:], order(6_000, "t01"))
    assert driver.published[-1].limits[1] == SharedLimit("t01", 6_000), "that one only changes"
    driver.order(more, *held[1:], order(0, "t01"))
    assert driver.published[-1].limits[1] == SharedLimit("a", 5_000), "now there is room for it"
    driver.order(held[0], *held[1:], more)
    assert driver.published[-1].limits[1] == SharedLimit("a", 5_000), "this one has to wait now"
    driver.order(more, *held[1:], order(0, "t01"), order(0))
    assert len(driver.published[-1].limits) == 15, "the file's limit is off, too"


def test_the_rate_is_divided_by_what_slots_report() -> None:
    driver = Driver(BY_FILE)
    driver.throttling.begin()
    for second in range(3):
        driver.report(0, backfill_bytes=25_000_000 * second, backfill_wait_ms=900 * second)
        driver.report(1)
        driver.throttling.step()
        driver.now_s += 1
    (limit,) = driver.published[-1].limits
    assert limit.slots[0] == pytest.approx(50_000_000, rel=0.03)
    assert len(driver.published) == 2
    assert driver.throttling.figures().backfill_wait_s == pytest.approx(1.8)
    driver.slots = 3
    driver.throttling.step()
    assert len(driver.published[-1].limits[0].slots) == 3, "an epoch with more slots"


def test_settings_and_orders_are_joined() -> None:
    states = effective((BY_FILE, ThrottleRule("a", 5_000)), [order(7_000, "b")], time.localtime())
    assert [(one.rule.topics, bool(one.order_id)) for one in states] == [
        ("", False),
        ("a", False),
        ("b", True),
    ]


class Topic:
    """An orders topic with ``records``; a reader sees those that came after its last look."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []

    def tail(self, *_: object, **__: object) -> Any:
        topic, seen = self, 0

        class Tail:
            def poll(self, _timeout_ms: int) -> list[tuple[int, bytes, bytes]]:
                nonlocal seen
                new = topic.records[seen:]
                seen = len(topic.records)
                return [(0, *record) for record in new]

            def read_to_end(self) -> list[tuple[int, bytes, bytes]]:
                return self.poll(0)

            def close(self) -> None:
                pass

        return Tail()


def test_the_newest_order_of_each_limit_reaches_the_driver_once() -> None:
    topic, taken = Topic(), []
    flow = FlowSettings(A, B, A, B)

    def take(orders: Mapping[str, ThrottleOrder]) -> None:
        taken.append(sorted((one.rule.topics, one.rule.bytes_s) for one in orders.values()))

    follower = OrderFollower(
        topic,  # type: ignore[arg-type]
        flow,
        "r1",
        pass_on=lambda _: None,
        drain=lambda: None,
        throttle=take,
    )
    topic.records += [encode_throttle(order(5_000)), encode_throttle(order(6_000))]
    topic.records.append(encode_throttle(order(7_000, "t")))
    follower.poll()
    follower.poll()
    assert taken == [[("", 6_000), ("t", 7_000)]]
    topic.records.append(encode_order(Order("A->B", CommandKind.DRAIN, 5)))
    topic.records.append((b"A->C/throttle", encode_throttle(order(9_000))[1]))
    follower.poll()
    assert len(taken) == 1
    topic.records.append(encode_throttle(order(0)))
    follower.poll()
    assert taken[-1] == [("", 0), ("t", 7_000)]
    follower.forget()
    follower.poll()
    assert len(taken) == 2, "after a failure the same orders are read again"


def test_readers_keep_limits_apart_from_other_orders() -> None:
    topic = Topic()
    pause = Order("A->B", CommandKind.PAUSE, 5)
    reload = ReloadOrder("A->B", "customers", 6)
    topic.records += [encode_throttle(order(5_000)), encode_order(pause), encode_reload(reload)]
    reader = OrdersReader(topic, FlowSettings(A, B, A, B))  # type: ignore[arg-type]
    assert reader.read_to_end() == [pause]
    assert list(reader.throttles) == [""]
    assert reader.reloads == [reload]
    assert reader.poll() == reader.reloads == []


def test_orders_to_read_tables_again_reach_the_driver_in_turn() -> None:
    topic, taken = Topic(), []
    follower = OrderFollower(
        topic,  # type: ignore[arg-type]
        FlowSettings(A, B, A, B),
        "r1",
        pass_on=lambda _: None,
        drain=lambda: None,
        reload=taken.extend,
    )
    orders = [ReloadOrder("A->B", name, 5) for name in ("customers", "")]
    topic.records += map(encode_reload, orders)
    topic.records.append(encode_reload(ReloadOrder("A->C", "", 5)))
    follower.poll()
    follower.poll()
    assert taken == orders
