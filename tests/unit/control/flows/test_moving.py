"""Partitions move within an epoch: what the driver orders, believes, and gives up."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sparkmirror.control.flows.moving import Moving
from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import Unreachable
from sparkmirror.internal_topics.assignments import (
    AssignmentDocument,
    Orders,
    SourcePartition,
)
from sparkmirror.internal_topics.commands import Command, CommandKind
from sparkmirror.internal_topics.deals.dealing import Move
from sparkmirror.internal_topics.epochs.releases import Release
from sparkmirror.internal_topics.epochs.shares import STEPS_MAX
from sparkmirror.model import TopicPartition
from sparkmirror.progress import PartitionProgress, SlotProgress

EPOCH = 4
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MOVES = [Move(T0, 0, 1, "load"), Move(T1, 0, 1, "load")]
FOUR = Assignment("A->B", tuple(SourcePartition("t", n, "A.t") for n in range(4)))


class _Flow:
    """A flow whose first assignment, version 1, is published."""

    def __init__(self, slots: int = 2) -> None:
        self.documents: list[AssignmentDocument] = []
        self.commands: list[Command] = []
        self.fails = False
        self.now_s = 100.0
        writer: Any = self
        self.published = Publication(
            "A->B", writer, channel="A->B", run_id="r", term=lambda: 1, over=threading.Event(),
            now_ms=lambda: 5, extends_slots=slots,
        )  # fmt: skip
        self.published.adopt(FOUR, CommandKind.RUN)
        self.moving = Moving("A->B", self.published, lambda: self.now_s)

    def assign(self, document: AssignmentDocument, command: Command) -> None:
        if self.fails:
            raise Unreachable("B is away", where="cluster B")
        self.documents.append(document)
        self.commands.append(command)

    @property
    def kinds(self) -> list[CommandKind]:
        return [one.kind for one in self.commands[1:]]

    @property
    def moves(self) -> Mapping[TopicPartition, Orders]:
        return self.documents[-1].moves

    def order(self) -> None:
        self.moving.order(MOVES, EPOCH)

    def told(self, *tps: TopicPartition, **changed: Any) -> None:
        release = Release("A->B", "r", 0, EPOCH, 2, tps)
        self.moving.take([replace(release, **changed)])
        self.moving.step()


def test_a_partition_gets_its_new_slot_once_the_old_one_has_released_it() -> None:
    flow = _Flow()
    flow.order()
    assert flow.kinds == [CommandKind.EXTEND]
    assert flow.commands[-1].base == flow.documents[-1].base == 1
    assert flow.moves == {T0: Orders(((1, 2),)), T1: Orders(((1, 2),))}
    flow.moving.step()
    assert len(flow.documents) == 2
    flow.told(T0, T1)
    assert flow.kinds == [CommandKind.EXTEND] * 2
    assert flow.moves == {tp: Orders(((1, 2),), released=True) for tp in (T0, T1)}
    assert flow.moving.pends({T0: 0}), "the slots have not reported it yet"
    assert flow.moving.pends({T0: 1})
    assert not flow.moving.pends({T0: 1, T1: 1})
    flow.moving.order([Move(T0, 1, 0, "load")], EPOCH)
    assert flow.moves[T0] == Orders(((1, 2), (0, 4)))


def test_releases_that_arrive_together_are_published_together_and_late_ones_alone() -> None:
    flow = _Flow()
    flow.order()
    flow.told(T0)
    assert len(flow.documents) == 2
    flow.now_s += 1
    flow.moving.step()
    assert [tp for tp, orders in flow.moves.items() if orders.released] == [T0]
    flow.told(T1)
    assert all(orders.released for orders in flow.moves.values())


@pytest.mark.parametrize(
    "changed",
    [{"version": 1}, {"version": 3}, {"epoch": EPOCH - 1}, {"slot": 1}],
    ids=["of-an-earlier-order", "of-no-order", "of-an-earlier-epoch", "by-another-slot"],
)
def test_only_the_slot_that_had_a_partition_can_release_it(changed: dict[str, int]) -> None:
    flow = _Flow()
    flow.order()
    flow.told(T0, T1, **changed)
    assert len(flow.documents) == 2


def test_a_release_counts_that_was_faster_than_the_order_was_noted() -> None:
    flow = _Flow()
    flow.moving.take([Release("A->B", "r", 0, EPOCH, 2, (T0, T1))])
    flow.order()
    flow.moving.step()
    assert all(orders.released for orders in flow.moves.values())


def test_an_epoch_begins_if_a_slot_does_not_release_in_time() -> None:
    flow = _Flow()
    flow.order()
    flow.told(T0)
    flow.now_s += 29
    flow.moving.step()
    assert flow.kinds == [CommandKind.EXTEND] * 2, "one of them is there"
    flow.now_s += 29
    flow.moving.step()
    assert len(flow.documents) == 3, "that moved something"
    flow.now_s += 2
    flow.moving.step()
    assert flow.kinds[-1] is CommandKind.REPLAN
    assert flow.moves == {}
    assert not flow.moving.pends({})


def test_an_epoch_begins_after_an_order_that_may_have_arrived() -> None:
    """Its slots release the partitions, and nobody would give them to others."""
    flow = _Flow()
    flow.fails = True
    with pytest.raises(Unreachable):
        flow.order()
    assert flow.moving.pends({T0: 0, T1: 0}), "nothing may be dealt meanwhile"
    with pytest.raises(Unreachable):
        flow.moving.step()
    flow.fails = False
    flow.moving.step()
    assert flow.kinds == [CommandKind.REPLAN]
    assert flow.moves == {}
    assert not flow.moving.pends({T0: 0, T1: 0})


def test_an_order_under_way_begins_no_epoch() -> None:
    flow = _Flow()
    flow.order()
    writing, written = threading.Event(), threading.Event()

    def slow(_document: AssignmentDocument, _command: Command) -> None:
        writing.set()
        assert written.wait(10)

    flow.assign = slow  # type: ignore[method-assign]
    adds = threading.Thread(target=flow.published.adopt, args=(FOUR, CommandKind.EXTEND))
    adds.start()
    assert writing.wait(10)
    threading.Timer(0.1, written.set).start()
    assert not flow.published.unsure
    adds.join()


def test_an_epoch_begins_if_a_new_slot_does_not_begin_in_time() -> None:
    flow = _Flow()
    flow.order()
    flow.told(T0, T1)
    flow.now_s += 59
    flow.moving.step()
    assert flow.kinds[-1] is CommandKind.EXTEND
    flow.now_s += 2
    flow.moving.step()
    assert flow.kinds[-1] is CommandKind.REPLAN


def test_a_slot_that_has_begun_is_not_late() -> None:
    """Also if nobody looks where all partitions are: a report of another slot is missing."""
    flow = _Flow()
    flow.order()

    def reports(slot: int) -> None:
        rows = tuple(PartitionProgress(tp.topic, tp.partition, 5) for tp in (T0, T1))
        flow.moving.observe([SlotProgress("A->B", slot, "w", EPOCH, 1, 0, 0, 0, partitions=rows)])

    reports(1)
    flow.told(T0, T1)
    reports(0)
    flow.now_s += 59
    flow.moving.step()
    reports(1)
    flow.now_s += 600
    flow.moving.step()
    assert flow.kinds == [CommandKind.EXTEND] * 2
    assert not flow.moving.pends({T0: 1, T1: 1})
    reports(1)


def test_an_order_ends_with_its_epoch() -> None:
    flow = _Flow()
    flow.order()
    flow.published.replan()
    flow.told(T0, T1)
    assert flow.kinds == [CommandKind.EXTEND, CommandKind.REPLAN]
    assert not flow.moving.pends({})


def test_a_partition_that_goes_on_its_way_is_not_waited_for() -> None:
    flow = _Flow()
    flow.order()
    flow.published.adopt(replace(FOUR, partitions=FOUR.partitions[1:]), CommandKind.EXTEND)
    flow.told(T1)
    assert flow.moves == {T1: Orders(((1, 2),), released=True)}
    assert not flow.moving.pends({T1: 1})


def test_after_an_assignment_that_was_perhaps_written_a_new_epoch_begins() -> None:
    flow = _Flow()
    flow.order()
    flow.fails = True
    with pytest.raises(Unreachable):
        flow.told(T0, T1)
    with pytest.raises(Unreachable):
        flow.moving.step()
    flow.fails = False
    flow.moving.step()
    assert flow.kinds == [CommandKind.EXTEND, CommandKind.REPLAN]
    assert not flow.moving.pends({})


def test_where_nothing_may_move_within_an_epoch_a_new_one_begins() -> None:
    flow = _Flow(slots=0)
    flow.order()
    assert flow.kinds == [CommandKind.REPLAN]
    assert not flow.moving.pends({})


def test_a_partition_does_not_move_within_one_epoch_for_ever() -> None:
    flow = _Flow()
    for number in range(STEPS_MAX):
        slot = (number + 1) % 2
        flow.moving.order([Move(T0, 1 - slot, slot, "load")], EPOCH)
        flow.told(T0, version=flow.documents[-1].version, slot=1 - slot)
        assert not flow.moving.pends({T0: slot})
    assert set(flow.kinds) == {CommandKind.EXTEND}
    flow.moving.order([Move(T0, 0, 1, "load")], EPOCH)
    assert flow.kinds[-1] is CommandKind.REPLAN


def test_a_flow_that_drains_moves_nothing() -> None:
    flow = _Flow()
    flow.order()
    flow.published.draining = True
    flow.told(T0, T1)
    assert len(flow.documents) == 2


def _reported(flow: _Flow, slot: int, *tps: TopicPartition, epoch: int, whole: bool = True) -> None:
    rows = tuple(PartitionProgress(tp.topic, tp.partition, 5) for tp in tps)
    report = SlotProgress("A->B", slot, "w", epoch, 1, 0, 0, 0, partitions=rows, complete=whole)
    flow.moving.observe([report])


def test_an_epoch_that_was_planned_before_the_order_releases_as_well() -> None:
    """It had begun, but no slot had reported it: the partitions would wait half a minute."""
    flow = _Flow()
    flow.order()
    flow.moving.take([Release("A->B", "r", 0, EPOCH + 1, 2, (T0, T1))])
    flow.told(T0, T1, epoch=EPOCH - 1)  # by an attempt that is over for long
    assert all(orders.released for orders in flow.moves.values())
    assert flow.kinds == [CommandKind.EXTEND] * 2


def test_an_epoch_that_was_planned_with_the_order_needs_no_release_and_no_other_epoch() -> None:
    flow = _Flow()
    flow.order()
    _reported(flow, 1, T0, T1, epoch=EPOCH + 1)
    assert flow.moving.pends({T0: 1, T1: 1})
    flow.now_s += 31
    flow.moving.step()
    assert flow.kinds == [CommandKind.EXTEND]
    assert not flow.moving.pends({T0: 1, T1: 1})
    # Only a slot's release may say that a partition is free. The next order begins an epoch.
    assert not any(orders.released for orders in flow.moves.values())
    flow.moving.order([Move(T0, 1, 0, "load")], EPOCH + 1)
    assert flow.kinds[-1] is CommandKind.REPLAN


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1])
def test_what_its_new_slot_reports_no_more_has_not_moved(epoch: int) -> None:
    flow = _Flow()
    flow.order()
    _reported(flow, 1, T0, T1, epoch=epoch)
    _reported(flow, 1, T0, epoch=epoch)
    flow.now_s += 31
    flow.moving.step()
    assert flow.kinds == [CommandKind.EXTEND, CommandKind.REPLAN]


def test_half_a_report_does_not_say_that_a_partition_is_gone() -> None:
    flow = _Flow()
    flow.order()
    _reported(flow, 1, T0, T1, epoch=EPOCH + 1)
    _reported(flow, 1, epoch=EPOCH + 1, whole=False)
    flow.now_s += 31
    flow.moving.step()
    assert flow.kinds == [CommandKind.EXTEND]
