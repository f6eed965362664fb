"""A slow broker of the target: its own partitions are held back, the others are not."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.data.rows.shared_frames import FRAMES, FrameReader
from sparkmirror.data.write import held_back
from sparkmirror.data.write.held_back import UNACKNOWLEDGED_BYTES_MAX, HeldBack
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ProduceSettings
from sparkmirror.wire.produce.partition_queue import PartitionQueue, QueuedBatch
from sparkmirror.wire.produce.producer import Producer

MIB = 1 << 20
TARGETS = [TopicPartition("t", number) for number in range(6)]
ROOM = 8


class Slot:
    """A sink of six partitions on three brokers, what waits for each, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, apart: bool = True) -> None:
        self.now = 100.0
        monkeypatch.setattr(held_back.time, "monotonic", lambda: self.now)
        self.waiting = dict.fromkeys(range(3), 0)
        self.leaders = {tp: tp.partition % 3 for tp in TARGETS}
        self.copied: set[int] = set()
        self.flagged: set[int] = set()
        self.backlog = self
        self.held = HeldBack(cast(Producer, self), "A->B")
        if apart:
            frames = SimpleNamespace(hold_back=self._flag, partitions=ROOM)
            self.held.begin(TARGETS, cast(FrameReader, frames))

    def _flag(self, number: int, held: bool) -> None:
        assert (number in self.flagged) is not held, "only changes are told"
        self.flagged ^= {number}

    @property
    def bytes_waiting(self) -> int:
        return sum(self.waiting.values())

    @property
    def idle(self) -> bool:
        return not self.bytes_waiting

    def waiting_by_broker(self) -> dict[int, int]:
        return dict(self.waiting)

    def leader_of(self, tp: TopicPartition) -> int:
        return self.leaders[tp]

    def copy_waiting(self, nodes: Iterable[int]) -> None:
        self.copied = set(nodes)

    def full(self, seconds: float = 0.0, frames: int = 0) -> bool:
        """Whether it is full now, and after as many seconds in which it looks all the time."""
        until = self.now + seconds
        while self.held.full(frames) and self.now < until:
            self.now += 0.05
        return self.held.full(frames)


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> Slot:
    return Slot(monkeypatch)


def test_a_slow_broker_holds_up_its_own_partitions_only(
    slot: Slot, caplog: pytest.LogCaptureFixture
) -> None:
    slot.waiting[1] = UNACKNOWLEDGED_BYTES_MAX + 1
    assert slot.full()
    assert slot.full(0.2), "a moment is no reason"
    assert not slot.full(0.2)
    assert slot.flagged == {1, 4}
    assert slot.copied == {1}
    assert "broker 1 of the target does not keep up (33.6 MB wait for it)" in caplog.text
    slot.waiting[0] = UNACKNOWLEDGED_BYTES_MAX
    assert not slot.full()
    slot.waiting[0] += 1
    assert slot.full(), "the others have a bound of their own"


def test_it_goes_on_when_half_of_what_waited_is_there(slot: Slot) -> None:
    slot.waiting[1] = UNACKNOWLEDGED_BYTES_MAX + 2
    assert not slot.full(1.0)
    slot.waiting[1] = UNACKNOWLEDGED_BYTES_MAX // 2 + 2
    slot.held.check(slot.now + 1)
    assert slot.flagged == {1, 4}
    slot.waiting[1] -= 1
    slot.held.check(slot.now + 1.01)
    assert slot.flagged == {1, 4}, "it looks ten times a second"
    slot.held.check(slot.now + 1.2)
    assert slot.flagged == set()
    slot.now += 2
    slot.waiting[1] = UNACKNOWLEDGED_BYTES_MAX + 1
    assert slot.full(), "what waits for it counts again"


def test_brokers_that_are_all_slow_hold_up_the_slot(slot: Slot) -> None:
    slot.waiting = dict.fromkeys(range(3), 11 * MIB)
    assert slot.full(5.0)
    assert slot.flagged == set()


def test_several_slow_brokers_are_held_back_together(slot: Slot) -> None:
    slot.waiting = {0: 20 * MIB, 1: 13 * MIB, 2: MIB // 4}
    assert not slot.full(1.0)
    assert slot.flagged == {0, 1, 3, 4}


def test_what_has_no_leader_is_held_back_as_if_it_were_one_broker(slot: Slot) -> None:
    slot.leaders[TARGETS[5]] = -1
    slot.waiting = {-1: 33 * MIB}
    assert not slot.full(1.0)
    assert slot.flagged == {5}
    slot.leaders[TARGETS[5]] = 2
    slot.waiting = {2: 33 * MIB}
    slot.now += 1
    assert slot.full(), "its new leader is another broker"
    assert slot.flagged == set()


def test_frames_of_a_slow_broker_are_no_reason_to_wait(slot: Slot) -> None:
    """Small answers take a frame each: the memory may be used up long before the bytes are."""
    slot.waiting[2] = MIB
    assert slot.full(0.2, frames=FRAMES // 2 + 1)
    assert slot.full(0.2, frames=FRAMES // 2 + 1)
    assert slot.copied == {2}
    assert not slot.full(frames=0), "its batches were copied out of them"


def test_little_data_in_all_frames_is_a_slow_broker_if_nothing_is_acknowledged(slot: Slot) -> None:
    slot.waiting[2] = 1_000
    slot.full(0.3, frames=FRAMES // 2 + 1)
    assert slot.flagged == {2, 5}


def test_nothing_is_held_back_where_partitions_get_on_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot = Slot(monkeypatch, apart=False)
    slot.waiting[1] = UNACKNOWLEDGED_BYTES_MAX + 1
    assert slot.full(5.0)
    assert slot.copied == set()


def test_what_waits_is_counted_and_copied_by_leader() -> None:
    connections: Any = SimpleNamespace(
        leaders={tp: SimpleNamespace(node=tp.partition % 3) for tp in TARGETS[:5]}
    )
    producer = Producer(connections, ProduceSettings())
    shared = bytearray(b"x" * 600)
    queues = {}
    for tp in TARGETS:
        queue = queues[tp] = PartitionQueue(tp)
        part = memoryview(shared)[100 * tp.partition :][:100]
        member = QueuedBatch(part[:50], 1, None)
        queue.pending.append(QueuedBatch(part[:60], 1, None, members=(member,)))
        queue.in_flight.append(QueuedBatch(part[60:], 1, None))
    producer.backlog.busy = queues
    assert producer.backlog.waiting_by_broker() == {0: 200, 1: 200, 2: 100, -1: 100}
    producer.copy_waiting({0, -1})
    for tp, queue in queues.items():
        held = tp.partition in (0, 3, 5)
        for item in (*queue.pending, *queue.in_flight, *queue.pending[0].members):
            assert isinstance(item.batch.obj, bytes) is held
            assert bytes(item.batch) == b"x" * len(item.batch)


def test_partitions_that_are_added_have_the_next_numbers_while_there_is_room(slot: Slot) -> None:
    more = [TopicPartition("u", number) for number in range(4)]
    slot.leaders |= dict.fromkeys(more, 1)
    slot.held.add(more)
    slot.waiting[1] = UNACKNOWLEDGED_BYTES_MAX + 1
    slot.full(0.4)
    assert slot.flagged == {1, 4, 6, 7}


def _drips(slot: Slot, times: int, full_s: float, room_s: float) -> None:
    """Broker 1 makes room that many times: after ``full_s``, and for ``room_s``."""
    for _ in range(times):
        slot.waiting[1] = UNACKNOWLEDGED_BYTES_MAX + 1
        slot.full(full_s)
        slot.waiting[1] -= 4 * MIB
        slot.held.full(0)
        slot.now += room_s


def test_a_slow_broker_that_acknowledges_a_little_at_a_time_is_held_back(slot: Slot) -> None:
    """It makes room five times a second, and what is read for it takes that room at once."""
    _drips(slot, 10, 0.15, 0.05)
    assert slot.flagged == {1, 4}


def test_little_room_now_and_then_is_no_reason(slot: Slot) -> None:
    _drips(slot, 20, 0.05, 0.2)
    assert slot.flagged == set()


def test_little_data_in_many_frames_is_no_slow_broker(slot: Slot) -> None:
    slot.waiting = {0: 300_000, 1: 200_000, 2: 60_000}
    for _ in range(20):
        slot.full(0.15, frames=FRAMES // 2 + 1)
        slot.held.full(0)
        slot.now += 0.05
    assert slot.flagged == set()


def test_brokers_that_take_turns_are_not_slow(slot: Slot) -> None:
    for number in range(200):
        slot.waiting = dict.fromkeys(range(3), UNACKNOWLEDGED_BYTES_MAX // 2 + 1)
        slot.waiting[number % 3] = 0
        slot.held.full(0)
        slot.now += 0.05
    assert slot.flagged == set()


def test_a_slot_whose_other_brokers_have_no_partitions_left_holds_nothing_back(slot: Slot) -> None:
    """Nothing of its own could use the room: it would only copy, and wait for half of the data."""
    for tp in TARGETS:
        if slot.leaders[tp] != 1:
            slot.held.forget(tp)
    slot.held.forget(TARGETS[0])
    slot.waiting[1] = UNACKNOWLEDGED_BYTES_MAX + 1
    assert slot.full(5.0)
    assert (slot.flagged, slot.copied) == (set(), set())


def test_a_partition_that_comes_back_has_another_number(slot: Slot) -> None:
    slot.waiting[1] = UNACKNOWLEDGED_BYTES_MAX + 1
    slot.full(0.4)
    assert slot.flagged == {1, 4}
    slot.held.forget(TARGETS[4])
    slot.held.add([TARGETS[4]])
    slot.held.check(slot.now + 1)
    assert slot.flagged == {1, 6}
