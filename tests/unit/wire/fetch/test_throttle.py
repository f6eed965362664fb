"""Limits on reading: exact, backfill first, nobody starves, and nothing without a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sparkmirror.model import TopicPartition
from sparkmirror.wire.fetch import throttle
from tests.property.simulated_throttle import ThrottledSlot, limit
from tests.unit.wire.fetch.test_channels import FAR_S, FOUR, NODE, Reader, busy_source

RATE = 1_000_000
BATCH = 5_000
WINDOW_S = 10.0
OLD = [TopicPartition("old", number) for number in range(4)]
NEW = [TopicPartition("new", number) for number in range(4)]


def slot(partitions: list[TopicPartition], **options: float) -> ThrottledSlot:
    """Its partitions are on two brokers."""
    leaders = {tp: tp.partition % 2 for tp in partitions}
    return ThrottledSlot(leaders, **({"batch_bytes": BATCH} | options))  # type: ignore[arg-type]


def backfill(one: ThrottledSlot, partitions: list[TopicPartition], seconds: float) -> None:
    """``seconds`` of the rate that wait to be read, in all partitions together."""
    for tp in partitions:
        one.produce(tp, int(RATE * seconds / len(partitions) / BATCH))


def producer(
    one: ThrottledSlot, share: float, partitions: list[TopicPartition]
) -> Callable[[float], None]:
    """Writes ``share`` of the rate, evenly, as time passes."""
    due_s, number = one.now, 0

    def each(now: float) -> None:
        nonlocal due_s, number
        while now >= due_s:
            one.produce(partitions[number % len(partitions)])
            number += 1
            due_s += BATCH / (RATE * share)

    return each


@pytest.mark.parametrize(
    ("rate", "batch", "trip_s"),
    [
        (200_000, 30_000, 0.002),
        (RATE, 5_000, 0.1),
        *(
            pytest.param(*each, marks=pytest.mark.more)
            for each in (
                (200_000, 1_000, 0.002),
                (RATE, 5_000, 0.002),
                (200_000, 1_000, 0.1),
                (200_000, 30_000, 0.1),
            )
        ),
    ],
)
def test_a_backlog_is_read_at_the_rate(rate: int, batch: int, trip_s: float) -> None:
    one = slot(FOUR, trip_s=trip_s, batch_bytes=batch)
    for tp in FOUR:
        one.produce(tp, int(rate * 14 / 4 / batch) + 10)
    one.limit(limit(rate))
    one.run(2)
    since_s = one.now
    one.run(WINDOW_S)
    assert one.bytes_read(since_s) == pytest.approx(rate * WINDOW_S, rel=0.05)
    assert len(one.read) == len(FOUR), "every partition is served"


@pytest.mark.parametrize(
    ("trip_s", "share"),
    [
        (0.05, 0.02),
        (0.05, 0.3),
        pytest.param(0.002, 0.8, marks=pytest.mark.more),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in ((0.002, 0.02), (0.002, 0.3), (0.05, 0.8))
        ),
    ],
)
def test_partitions_that_keep_up_are_not_slowed_by_backfill(trip_s: float, share: float) -> None:
    free = slot(NEW, trip_s=trip_s)
    free.run(4, producer(free, share, NEW))
    one = slot(OLD + NEW, trip_s=trip_s)
    backfill(one, OLD, 14)
    one.limit(limit(RATE))
    each = producer(one, share, NEW)
    one.run(2, each)
    since_s = one.now
    one.latencies_s.clear()
    one.run(WINDOW_S, each)
    assert one.bytes_read(since_s) == pytest.approx(RATE * WINDOW_S, rel=0.05)
    latencies_s = sorted(at for tp in NEW for at in one.latencies_s[tp])
    unlimited_s = sorted(at for tp in NEW for at in free.latencies_s[tp])
    assert latencies_s[len(latencies_s) * 99 // 100] <= unlimited_s[-1] + 0.02
    assert one.bytes_read(since_s, "new") == pytest.approx(RATE * share * WINDOW_S, rel=0.1)


@pytest.mark.parametrize("trip_s", [pytest.param(0.002, marks=pytest.mark.more), 0.05])
def test_backfill_does_not_starve_when_current_partitions_need_more_than_the_rate(
    trip_s: float,
) -> None:
    one = slot(OLD + NEW, trip_s=trip_s)
    backfill(one, OLD, 14)
    one.limit(limit(RATE))
    each = producer(one, 1.5, NEW)
    one.run(2, each)
    since_s = one.now
    one.run(WINDOW_S, each)
    assert one.bytes_read(since_s) == pytest.approx(RATE * WINDOW_S, rel=0.05)
    assert one.bytes_read(since_s, "old") > 0.05 * RATE * WINDOW_S
    for tp in OLD:
        assert any(at >= since_s for at, _ in one.read[tp]), tp


def test_an_idle_slot_does_not_save_up_for_later() -> None:
    one = slot(FOUR)
    one.limit(limit(RATE))
    one.run(30)
    since_s = one.now
    backfill(one, FOUR, 14)
    one.run(WINDOW_S)
    assert one.bytes_read(since_s) == pytest.approx(RATE * WINDOW_S, rel=0.05)


@pytest.mark.parametrize("rate", [10_000, RATE])
def test_waiting_for_the_bucket_is_no_busy_loop(rate: int) -> None:
    one = slot(FOUR)
    backfill(one, FOUR, 14)
    one.limit(limit(rate))
    one.run(2)
    rounds, requests = one.rounds, one.requests
    one.run(WINDOW_S)
    assert one.requests - requests <= 22 * WINDOW_S
    # A round per request, one per response, and one for each end of a wait.
    assert one.rounds - rounds <= 4 * 22 * WINDOW_S


def test_a_bucket_that_is_full_again_does_not_wake_who_only_lets_requests_expire() -> None:
    """A paused flow sends nothing: its loop must not go round and round."""
    one = slot(FOUR)
    backfill(one, FOUR, 14)
    one.limit(limit(RATE))
    one.run(2)
    fetcher = one.fetcher
    assert fetcher.throttle is not None
    assert one.now < fetcher.throttle.due_at() < one.now + 1.0, "backfill was left out"
    one.source.time_s = fetcher.throttle.due_at() + 0.001
    assert fetcher.next_due_s() == 0.0, "it has not been looked at since"
    fetcher.expire()
    one.source.time_s += 0.001
    assert fetcher.next_due_s() > 0.0
    one.run(1)
    assert one.bytes_read(one.now - 0.5) > 0, "a flow that goes on reads at once"


def test_batches_that_are_larger_than_the_bucket_are_paid_for() -> None:
    one = slot(FOUR, batch_bytes=100_000)
    for tp in FOUR:
        one.produce(tp, 20)
    one.limit(limit(50_000))
    one.run(5)
    since_s = one.now
    one.run(40)
    assert one.bytes_read(since_s) == pytest.approx(50_000 * 40, rel=0.1)


def test_a_slot_with_almost_no_share_still_reads() -> None:
    one = slot(FOUR)
    backfill(one, FOUR, 1)
    one.limit(replace(limit(RATE, slots=1_000), bytes_s=1.0))
    one.run(20)
    assert 0 < one.bytes_read() < 400_000
    before = one.bytes_read()
    one.limit(limit(RATE, slots=1_000))
    one.run(5)
    assert one.bytes_read() > before + 500_000, "with a share it goes on"


def test_a_debt_from_a_high_rate_does_not_stop_a_low_one() -> None:
    one = slot(FOUR)
    backfill(one, FOUR, 30)
    one.limit(limit(100 * RATE))
    one.run(0.05)
    one.limit(limit(RATE / 10))
    one.run(1)
    since_s = one.now
    one.run(5)
    assert one.bytes_read(since_s) == pytest.approx(RATE / 10 * 5, rel=0.1)


def test_the_rate_changes_while_the_slot_reads() -> None:
    one = slot(FOUR)
    backfill(one, FOUR, 40)
    for rate in (RATE, RATE / 5, RATE * 2):
        one.limit(limit(rate))
        one.run(0.5)
        since_s = one.now
        one.run(5)
        assert one.bytes_read(since_s) == pytest.approx(rate * 5, rel=0.05)
    one.fetcher.throttle = None
    one.run(5)
    assert one.bytes_read() == sum(len(batch) for tp in FOUR for _, batch in one.source.logs[tp])


def test_a_topic_has_a_limit_of_its_own_within_that_of_the_flow() -> None:
    one = slot(OLD + NEW)
    backfill(one, OLD + NEW, 30)
    one.limit(limit(RATE), limit(RATE / 5, "old"))
    one.run(2)
    since_s = one.now
    one.run(WINDOW_S)
    # Both limits hold. What a topic gets below its own depends on the others.
    assert one.bytes_read(since_s) == pytest.approx(RATE * WINDOW_S, rel=0.05)
    assert 0.1 < one.bytes_read(since_s, "old") / RATE / WINDOW_S < 0.2 * 1.05


def test_other_topics_do_not_notice_the_limit_of_one() -> None:
    one = slot(OLD + NEW)
    backfill(one, OLD, 14)
    one.limit(limit(RATE / 5, "old"))
    one.run(5, producer(one, 3.0, NEW))
    latencies_s = sorted(at for tp in NEW for at in one.latencies_s[tp])
    assert latencies_s[-1] < 0.05
    assert one.bytes_read(topics="old") == pytest.approx(RATE / 5 * 5, rel=0.1)


def test_a_broker_that_refuses_more_connections_is_read_at_the_rate() -> None:
    one = slot(FOUR)
    backfill(one, FOUR, 14)
    one.limit(limit(RATE))
    one.run(0.001)
    one.source.refused = {0, 1}
    one.run(2)
    since_s = one.now
    one.run(5)
    assert one.bytes_read(since_s) == pytest.approx(RATE * 5, rel=0.05)
    assert {number for _, number in one.source.connections} == {0}


def test_reserved_bytes_of_a_lost_connection_come_back() -> None:
    one = slot(FOUR[:1])
    backfill(one, FOUR[:1], 14)
    one.limit(limit(RATE))
    one.run(1)
    for _ in range(5):
        for connection in one.source.connections.values():
            connection.broken = True
        for connection in list(one.source.connections.values()):
            if connection.waiting is not None:
                one.fetcher.receive(connection)  # type: ignore[arg-type]
        one.forget_sent()
        one.run(1)
    since_s = one.now
    one.run(4)
    assert one.bytes_read(since_s) == pytest.approx(RATE * 4, rel=0.05)


def test_without_a_limit_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object) -> None:
        raise AssertionError("batches were measured")

    monkeypatch.setattr(throttle, "walk_batches", measured)
    reader = Reader(busy_source(FOUR, FAR_S))
    reader.until_whole()
    assert reader.source.opened == [(NODE, 0), (NODE, 1), (NODE, 2)], "no channels beside these"


def test_what_limits_have_done_is_counted_by_kind() -> None:
    one = slot(OLD + NEW)
    backfill(one, OLD, 14)
    one.limit(limit(RATE))
    one.run(5, producer(one, 0.3, NEW))
    assert one.fetcher.throttle is not None
    (use,) = one.fetcher.throttle.uses()
    assert use.topics == ""
    assert use.current_bytes + use.backfill_bytes == one.bytes_read()
    assert use.backfill_wait_ms > 3_000
    assert use.current_wait_ms < 400
    idle = slot(FOUR)
    idle.limit(limit(RATE))
    idle.run(5, producer(idle, 0.3, FOUR))
    assert idle.fetcher.throttle is not None
    (use,) = idle.fetcher.throttle.uses()
    assert (use.current_wait_ms, use.backfill_wait_ms, use.backfill_bytes) == (0, 0, 0)
