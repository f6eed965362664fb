"""When batches for a near broker are joined: simulated brokers, queues and codecs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from sparkmirror.wire.produce.busy_broker import BusyBroker

STEP_S = 0.01


@dataclass
class Load:
    """A source with ``source`` records/s before a broker that takes ``plain`` or ``joined`` ones.

    ``cpu_share``: of the time, what joining takes. ``pause_s``: each second, nothing is sent for
    that long, as when transactions are committed.
    """

    source: float
    plain: float
    joined: float
    cpu_share: float = 0.05
    pause_s: float = 0.0
    now: float = 100.0
    cpu_s: float = 0.0
    waiting: float = 0.0
    waiting_max: float = 0.0
    joined_s: float = 0.0
    written: float = 0.0
    begins: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broker = BusyBroker()

    def run(self, seconds: float) -> Load:
        """Let that much time pass; what is counted begins anew."""
        self.joined_s = self.written = self.waiting_max = 0.0
        for number in range(round(seconds / STEP_S)):
            self.now += STEP_S
            self.waiting += self.source * STEP_S
            idle = number * STEP_S % 1.0 < self.pause_s
            if idle or self.waiting < 1:
                continue
            before = self.broker.joins
            joins = self.broker.look(self.now, self.cpu_s)
            if joins and not before:
                self.begins.append(self.now)
            passes = min(self.waiting, (self.joined if joins else self.plain) * STEP_S)
            self.waiting -= passes
            self.written += passes
            self.broker.acknowledged(round(passes), self.now, joined=joins)
            self.waiting_max = max(self.waiting_max, self.waiting)
            if joins:
                self.joined_s += STEP_S
                self.cpu_s += self.cpu_share * STEP_S
            if self.waiting > 20:
                self.broker.note_waiting()
        return self


def test_joining_goes_on_where_many_more_records_pass() -> None:
    load = Load(source=1e6, plain=10_000, joined=25_000, cpu_share=0.5).run(120)
    assert load.joined_s > 0.93 * 120
    assert load.written > 0.95 * 120 * 25_000


def test_joining_rests_ever_longer_where_it_brings_little() -> None:
    load = Load(source=1e6, plain=10_000, joined=11_000).run(600)
    waits = [after - before for before, after in pairwise(load.begins)]
    assert 4 <= len(load.begins) <= 6
    assert waits[0] == pytest.approx(32, abs=2)
    assert all(after > 1.8 * before for before, after in pairwise(waits))


@pytest.mark.parametrize(("cpu_share", "goes_on"), [(0.05, True), (0.4, False)])
def test_what_barely_does_not_pass_is_joined_if_that_is_cheap(
    cpu_share: float, goes_on: bool
) -> None:
    load = Load(source=11_000, plain=10_000, joined=30_000, cpu_share=cpu_share).run(30)
    load.run(300)
    assert (load.joined_s > 0.8 * 300) == goes_on
    if goes_on:
        assert load.waiting_max < 11_000, "it never waits for a second"


def test_a_broker_that_keeps_up_gets_batches_as_they_are() -> None:
    load = Load(source=9_000, plain=10_000, joined=30_000).run(60)
    assert load.joined_s == 0
    load.source = 1e5
    assert load.run(20).joined_s > 15
    load.source, load.waiting = 9_000, 0.0
    load.run(5)
    assert load.run(300).joined_s == 0, "joining has ended with the backlog"


def test_a_broker_that_was_cold_at_first_is_measured_again() -> None:
    load = Load(source=1e6, plain=1_000, joined=5_000).run(2)
    assert load.broker.joins
    load.plain = 10_000
    load.run(10)
    assert load.run(20).joined_s == 0
    assert load.run(300).joined_s < 10


def test_transactions_do_not_hide_that_batches_wait() -> None:
    load = Load(source=1e6, plain=10_000, joined=30_000, pause_s=0.3).run(60)
    assert load.joined_s > 0.6 * 60


def test_a_broker_that_hung_says_nothing_about_joining() -> None:
    load = Load(source=1e6, plain=10_000, joined=30_000).run(0.3)
    load.now += 20
    assert not load.broker.look(load.now, 0.0)
    assert load.run(0.3).joined_s == 0
    assert load.run(1).joined_s > 0
    load.now += 20
    assert not load.broker.look(load.now, 0.0)
    assert load.run(2).joined_s > 1, "it does not rest"


def test_rare_looks_are_enough_to_see_that_joining_brings_nothing() -> None:
    """Joined batches take seconds each, and nothing is sent meanwhile."""
    broker = BusyBroker()
    for number in range(52):
        broker.look(100 + number * STEP_S, 0.0)
        broker.acknowledged(50, 100 + number * STEP_S, joined=False)
        broker.note_waiting()
    assert broker.joins
    broker.acknowledged(5_000, 103, joined=True)
    assert not broker.look(103.5, 0.8)
    assert not any(broker.look(104 + number * STEP_S, 0.8) for number in range(2500))


def test_joined_batches_that_arrive_later_do_not_count_as_others() -> None:
    broker = BusyBroker()
    for number in range(300):
        now = 100 + number * STEP_S
        if number < 100:  # still of the time before
            broker.acknowledged(1_000, now, joined=True)
        broker.look(now, 0.0)
        broker.acknowledged(50, now, joined=False)
        broker.note_waiting()
        if broker.joins:
            break
    assert broker.joins
    assert 4_900 <= broker.rate <= 5_200


def test_partitions_of_one_request_are_one_look() -> None:
    broker = BusyBroker()
    for number in range(60):
        for waits in (True, False):
            broker.look(100 + number * STEP_S, 0.0)
            if waits:
                broker.note_waiting()
    assert broker.joins
