"""A rate is divided between slots by what they need: none is wasted, and never too much given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.control.flows.throttle_shares import Need, Needs, differ, divide
from sparkmirror.data.read.slot_throttle import slot_limits
from sparkmirror.internal_topics.throttles import Limits, SharedLimit
from sparkmirror.model import TopicPartition
from sparkmirror.progress import SlotProgress
from tests.property.simulated_throttle import ThrottledSlot

RATE = 1_000_000
BATCH = 5_000

_bytes = st.floats(0, 3 * RATE)
needs = st.builds(Need, _bytes, _bytes, st.booleans(), st.booleans())


@given(st.integers(1_000, 10**10), st.lists(st.none() | needs, min_size=1, max_size=40))
def test_shares_are_the_rate_and_everybody_has_some(rate: int, found: list[Need | None]) -> None:
    shares = divide(rate, found)
    assert len(shares) == len(found)
    assert rate - len(found) <= sum(shares) <= 1.03 * rate
    if all(need is None or need.current_waits or need.backfill_waits for need in found):
        assert sum(shares) <= rate * 1.01
    assert max(shares) <= rate
    assert min(shares) >= int(0.01 * rate / len(found))


@given(st.lists(needs, min_size=1, max_size=20))
def test_what_keeps_up_keeps_what_it_uses(found: list[Need]) -> None:
    used = sum(need.current_bytes_s for need in found)
    if used > 0.85 * RATE or any(need.current_waits for need in found):
        return
    for need, share in zip(found, divide(RATE, found), strict=True):
        assert share >= int(need.current_bytes_s)


def test_the_share_of_idle_slots_goes_to_backfill() -> None:
    shares = divide(RATE, [Need(), Need(backfill_waits=True), Need(), Need(backfill_waits=True)])
    assert shares[1] == pytest.approx(RATE / 2, rel=0.02)
    assert shares[3] == pytest.approx(RATE / 2, rel=0.02)


def test_current_partitions_that_wait_come_before_the_backfill_of_other_slots() -> None:
    hungry = Need(current_bytes_s=0.4 * RATE, current_waits=True)
    shares = divide(RATE, [hungry, Need(backfill_bytes_s=0.6 * RATE, backfill_waits=True)])
    assert shares[0] >= 0.75 * RATE
    assert shares[1] >= 0.09 * RATE, "backfill does not starve"


def test_nothing_known_is_an_even_division() -> None:
    assert divide(RATE, [None] * 4) == pytest.approx([RATE / 4] * 4, rel=0.01)
    assert divide(RATE, []) == []


def test_a_slot_of_which_nothing_is_known_takes_no_more_than_an_even_share() -> None:
    shares = divide(RATE, [None, Need(backfill_waits=True)])
    assert shares == pytest.approx([RATE / 2] * 2, rel=0.03)


def test_a_slot_that_never_reports_leaves_its_share_to_others() -> None:
    found, mirror = Needs(), Mirror(2)
    mirror.backfill(1, 20)
    for _ in range(8):
        mirror.slots[1].run(1.0)
        found.observe([mirror._report(1)], mirror.slots[1].now)
        shares = divide(RATE, found.of("", 2, mirror.slots[1].now))
    assert shares[1] == pytest.approx(RATE, rel=0.03)


def test_small_changes_are_not_published() -> None:
    assert not differ(RATE, [500_000, 500_000], [505_000, 495_000])
    assert differ(RATE, [500_000, 500_000], [550_000, 450_000])
    assert differ(RATE, [1_000_000], [500_000, 500_000])
    assert differ(RATE, [4_000, 996_000], [1_000, 999_000]), "four times as much for a small slot"


class Mirror:
    """Slots, each with partitions of its own, and the driver that divides the rate once a second.

    ``published``: how often it did.
    """

    def __init__(self, slots: int) -> None:
        self.slots = []
        for number in range(slots):
            partitions = {TopicPartition(f"t{number}", one): one % 2 for one in range(3)}
            self.slots.append(ThrottledSlot(partitions, batch_bytes=BATCH))
        self._needs = Needs()
        self._shares: list[int] = []
        self.published = 0
        self._publish(())

    def partitions(self, slot: int) -> list[TopicPartition]:
        """Those of one slot."""
        return list(self.slots[slot].source.ends)

    def backfill(self, slot: int, seconds: float) -> None:
        """``seconds`` of the whole rate wait in this slot."""
        for tp in self.partitions(slot):
            self.slots[slot].produce(tp, int(RATE * seconds / 3 / BATCH))

    def run(self, seconds: int, shares: dict[int, float] | None = None) -> None:
        """Let time pass; ``shares``: of the rate that producers write to a slot's partitions."""
        each = {slot: self._producer(slot, share) for slot, share in (shares or {}).items()}
        for _ in range(seconds):
            for number, slot in enumerate(self.slots):
                slot.run(1.0, each.get(number))
            self._divide()

    def _producer(self, slot: int, share: float) -> Callable[[float], None]:
        one, partitions = self.slots[slot], self.partitions(slot)
        due_s, number = one.now, 0

        def each(now: float) -> None:
            nonlocal due_s, number
            while now >= due_s:
                one.produce(partitions[number % len(partitions)])
                number += 1
                due_s += BATCH / (RATE * share)

        return each

    def _divide(self) -> None:
        now_s = self.slots[0].now
        self._needs.observe(map(self._report, range(len(self.slots))), now_s)
        shares = divide(RATE, self._needs.of("", len(self.slots), now_s))
        if differ(RATE, shares, self._shares):
            self._shares = shares
            self._publish(tuple(shares))

    def _report(self, number: int) -> SlotProgress:
        slot = self.slots[number]
        assert slot.fetcher.throttle is not None
        return SlotProgress(
            "A->B", number, "w", 1, int(slot.now * 1000), 0, 0, 0, attempt=number,
            throttles=slot.fetcher.throttle.uses(),
        )  # fmt: skip

    def _publish(self, shares: tuple[int, ...]) -> None:
        self.published += 1
        limits = Limits("A->B", "run", (SharedLimit("", RATE, shares),))
        for number, slot in enumerate(self.slots):
            slot.limit(*slot_limits(limits, number, len(self.slots)))

    def bytes_read(self, since_s: float) -> int:
        """Of all slots."""
        return sum(slot.bytes_read(since_s) for slot in self.slots)

    def slowest_s(self, slot: int) -> float:
        """99 of 100 records of the slot were read sooner after they were written."""
        found = [at for times in self.slots[slot].latencies_s.values() for at in times]
        return sorted(found)[len(found) * 99 // 100]

    def forget(self) -> float:
        """Measure from now on; returns the time."""
        for slot in self.slots:
            slot.latencies_s.clear()
        return self.slots[0].now


def test_one_busy_slot_of_three_gets_the_whole_rate() -> None:
    mirror = Mirror(3)
    mirror.backfill(1, 16)
    mirror.run(3)
    since_s = mirror.forget()
    mirror.run(8)
    assert mirror.bytes_read(since_s) == pytest.approx(8 * RATE, rel=0.05)


def test_a_slot_that_keeps_up_is_not_slowed_by_the_backfill_of_others() -> None:
    mirror = Mirror(3)
    mirror.backfill(0, 20)
    mirror.backfill(2, 20)
    mirror.run(7, {1: 0.6})
    since_s = mirror.forget()
    mirror.run(8, {1: 0.6})
    assert mirror.bytes_read(since_s) == pytest.approx(8 * RATE, rel=0.05)
    assert mirror.slowest_s(1) < 0.05
    assert min(mirror.slots[slot].bytes_read(since_s) for slot in (0, 2)) > 0.1 * 8 * RATE


def test_a_slot_that_was_idle_gets_its_share_within_seconds() -> None:
    mirror = Mirror(2)
    mirror.backfill(0, 30)
    mirror.run(5)
    mirror.backfill(1, 30)
    mirror.run(4)
    since_s = mirror.forget()
    mirror.run(6)
    for slot in mirror.slots:
        assert slot.bytes_read(since_s) == pytest.approx(3 * RATE, rel=0.15)
    assert mirror.bytes_read(since_s) == pytest.approx(6 * RATE, rel=0.05)


def test_the_first_records_of_an_idle_slot_do_not_wait() -> None:
    mirror = Mirror(4)
    mirror.backfill(0, 30)
    mirror.run(6)
    mirror.forget()
    mirror.run(5, {3: 0.01})
    assert mirror.slowest_s(3) < 0.05


def test_steady_slots_cause_no_records_in_the_control_topic() -> None:
    mirror = Mirror(3)
    mirror.run(4, {0: 0.1, 1: 0.2})
    before = mirror.published
    mirror.run(6, {0: 0.1, 1: 0.2})
    assert mirror.published - before <= 1


def test_a_slot_that_has_become_silent_needs_nothing() -> None:
    needs = Needs()
    mirror = Mirror(1)
    mirror.backfill(0, 10)
    for _ in range(3):
        mirror.slots[0].run(1.0)
        needs.observe([mirror._report(0)], mirror.slots[0].now)
    (need,) = needs.of("", 1, mirror.slots[0].now)
    assert need is not None
    assert need.backfill_waits
    assert needs.of("", 1, mirror.slots[0].now + 5) == [Need()]
    assert needs.of("other", 2, mirror.slots[0].now) == [None, None]
