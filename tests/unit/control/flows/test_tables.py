"""Orders to read static tables again: when they are obeyed, confirmed, and what is reported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.control.flows.tables import NoTables, Tables
from sparkmirror.errors import TopicError, Unreachable
from sparkmirror.internal_topics.history import EventKind
from sparkmirror.internal_topics.tables import ReloadOrder, TableState
from sparkmirror.progress import SlotProgress
from sparkmirror.settings import ClusterClient, FlowSettings

A, B = (ClusterClient(alias, ("localhost:1",), "test") for alias in "AB")
START_MS = 1_000


class World:
    """A flow with two slots. Each pause, the slots report; after `replan` with the next epoch."""

    def __init__(self, *, once: bool = False, slots: int = 2) -> None:
        self.calls: list[str] = []
        self.told: list[str] = []
        self.fault = ""
        self.fails = False
        self.stuck = False
        self.unread = False
        self.epoch = 4
        self.now_s = 0.0
        self.reports = [self._report(slot) for slot in range(slots)]
        history: Any = SimpleNamespace(note=self._note)
        self.ours = Tables(
            FlowSettings(A, B, A, B),
            self,
            history,
            replan=self._replan,
            report=lambda: self.calls.append("report"),
            slots=lambda: slots,
            progress=lambda: self.reports,
            notify=self.told.append,
            once=once,
            now_ms=lambda: START_MS,
            pause=self._pause,
            ticks_s=lambda: self.now_s,
        )

    def tables(self, flow: str) -> tuple[TableState, ...]:
        return () if self.unread else (TableState("customers", 10, 5, 7, self.fault),)

    def reload_tables(self, flow: str, table: str = "") -> tuple[TableState, ...]:
        self.calls.append(f"read {table}".strip())
        return self.tables(flow)

    def _report(self, slot: int) -> SlotProgress:
        return SlotProgress("A->B", slot, "w", self.epoch, int(self.now_s * 1000), 0, 0, 0)

    def _replan(self) -> None:
        if self.fails:
            self.fails = False
            raise Unreachable("no broker", where="B", do="start it")
        self.calls.append("replan")
        self.epoch += not self.stuck

    def _pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.reports = [self._report(one.slot) for one in self.reports]

    def _note(self, kind: EventKind, text: str) -> None:
        assert kind is EventKind.TABLES
        self.calls.append(f"note {text}")


def _order(time_ms: int = START_MS, order_id: str = "a", table: str = "") -> ReloadOrder:
    return ReloadOrder("A->B", table, time_ms, order_id)


def test_an_order_is_confirmed_when_all_slots_are_in_a_later_epoch() -> None:
    world = World()
    world.ours.step()
    assert world.calls == []
    world.ours.take_orders([_order(table="customers")])
    world.ours.step()
    line = "table customers: read again, 10 rows in 7 ms"
    assert world.calls == ["read customers", f"note {line}", "replan", "report"]
    assert world.told == [f"A->B: {line}"]
    assert {one.epoch for one in world.reports} == {5}
    assert world.ours.confirmed() == ("a",)
    world.ours.step()
    assert len(world.calls) == 4


def test_an_epoch_that_began_before_the_rows_were_there_does_not_count() -> None:
    """What the slots reported last may be of the epoch before."""
    world = World()
    world.epoch = 5  # begun, but not reported yet
    world.ours.take_orders([_order()])
    world.ours.step()
    assert world.ours.confirmed() == ("a",)
    assert {one.epoch for one in world.reports} == {6}


def test_slots_that_stay_in_their_epoch_are_reported_and_not_confirmed() -> None:
    world = World()
    world.stuck = True
    world.ours.take_orders([_order()])
    world.ours.step()
    assert world.ours.confirmed() == ()
    assert "not all slots have begun an epoch with the new tables yet" in world.told[-1]
    assert world.now_s == pytest.approx(60.1, abs=0.5)
    world.ours.step()
    assert world.calls.count("replan") == 1, "the order is over"


def test_a_flow_without_slots_has_nothing_to_wait_for() -> None:
    world = World(slots=0)
    world.ours.take_orders([_order()])
    world.ours.step()
    assert (world.ours.confirmed(), world.now_s) == (("a",), 0.0)


def test_a_table_that_cannot_be_read_ends_no_epoch() -> None:
    world = World()
    world.fault = "it is gone"
    world.ours.take_orders([_order()])
    world.ours.step()
    line = "table customers: not read again, its 10 rows stay: it is gone"
    assert world.calls == ["read", f"note {line}", "report"]
    assert world.ours.confirmed() == ("a",), "the report says what became of it"


def test_an_order_is_tried_again_if_the_target_is_unavailable() -> None:
    world = World()
    world.fails = True
    world.ours.take_orders([_order()])
    with pytest.raises(Unreachable):
        world.ours.step()
    assert world.ours.confirmed() == ()
    world.ours.step()
    assert world.ours.confirmed() == ("a",)


def test_orders_of_before_the_start_and_known_ones_are_done() -> None:
    world = World()
    world.ours.take_orders([_order(START_MS - 1, "old"), _order(), _order(START_MS + 1, "b")])
    world.ours.take_orders([_order(), _order(START_MS + 1, "b")])
    for _ in range(4):
        world.ours.step()
    assert world.calls.count("read") == 2
    assert world.ours.confirmed() == ("a", "b")


def test_an_order_from_a_clock_that_is_behind_is_obeyed() -> None:
    world = World()
    world.ours.take_orders([])
    world.ours.take_orders([_order(START_MS - 600)])
    world.ours.step()
    assert world.ours.confirmed() == ("a",)


def test_an_order_waits_until_the_tables_are_there() -> None:
    """Spark may still be starting."""
    world = World()
    world.unread = True
    world.ours.take_orders([_order()])
    world.ours.step()
    assert (world.calls, world.ours.confirmed()) == ([], ())
    world.unread = False
    world.ours.step()
    assert world.ours.confirmed() == ("a",)
    assert world.calls.count("read") == 1


def test_a_slot_that_has_not_reported_yet_is_waited_for() -> None:
    """Its first report may be of an epoch that began with the old rows."""
    world = World()
    late = world.reports.pop()
    world.epoch = 0
    pause = world._pause

    def paused(seconds: float) -> None:
        pause(seconds)
        if world.now_s > 5 and len(world.reports) == 1:
            world.reports.append(late)
            pause(0)

    world.ours._pause = paused
    world.ours.take_orders([_order()])
    world.ours.step()
    assert world.ours.confirmed() == ("a",)
    assert {one.epoch for one in world.reports} == {1}


def test_a_run_with_frozen_ends_reads_no_table_again() -> None:
    world = World(once=True)
    world.ours.take_orders([_order()])
    world.ours.step()
    assert world.calls == ["report"]
    assert "at the start only" in world.told[0]
    assert world.ours.confirmed() == ()


def test_a_standby_reads_its_tables_again_when_it_takes_over() -> None:
    world = World()
    world.ours.begin()
    assert world.calls == [], "a process that has just started has read them"
    world.ours.stood_by = True
    world.ours.take_orders([_order()])
    world.ours.begin()
    assert [call for call in world.calls if "note" not in call] == ["read"]
    world.ours.step()
    assert world.ours.confirmed() == ("a",)
    assert world.calls.count("read") == 1, "the order is done with that"


def test_a_standby_whose_rows_may_be_older_does_not_take_over() -> None:
    world = World()
    world.ours.stood_by, world.fault = True, "it is gone"
    world.ours.take_orders([_order()])
    with pytest.raises(TopicError, match="the table customers cannot be read again: it is gone"):
        world.ours.begin()
    world.fault = ""
    world.ours.begin()
    assert world.ours.confirmed() == ("a",)


def test_a_pipeline_without_tables() -> None:
    assert NoTables().tables("A->B") == NoTables().reload_tables("A->B", "x") == ()
