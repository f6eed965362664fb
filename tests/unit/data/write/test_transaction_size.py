"""How much a transaction holds: what the target takes in a part of the time limit."""

from __future__ import annotations

import pytest

from sparkmirror.data.write.exactly_once import ExactlyOnce
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.data.write.transaction_size import TransactionSize
from sparkmirror.settings import ClusterClient, FlowSettings

_A, _B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")


def _steady(size: TransactionSize, bytes_per_s: float, commit_s: float = 0.01) -> list[float]:
    """Seconds that each of 40 transactions is open while the source has more than they hold."""
    took = []
    for _ in range(40):
        took.append(size.bytes / bytes_per_s + commit_s)
        size.committed(size.bytes, took[-1])
    return took


@pytest.mark.parametrize("bytes_per_s", [25_000, 100_000, 500_000, 5_000_000, 500_000_000])
def test_a_transaction_holds_what_goes_in_a_quarter_of_its_time_limit(bytes_per_s: int) -> None:
    size = TransactionSize(32 << 20, 60_000)
    assert max(_steady(size, bytes_per_s)) <= 15 + 0.01
    assert size.bytes >= min(32 << 20, bytes_per_s * 15 * 0.9)


def test_a_target_that_gets_slower_is_followed_and_one_that_recovers_too() -> None:
    size = TransactionSize(32 << 20, 60_000)
    _steady(size, 5_000_000)
    assert size.bytes == 32 << 20
    took = _steady(size, 1_000_000)
    assert took[0] > 15 >= max(took[1:]) - 0.1
    _steady(size, 50_000_000)
    assert size.bytes == 32 << 20


def test_small_transactions_say_nothing_about_large_ones() -> None:
    size = TransactionSize(32 << 20, 60_000)
    _steady(size, 50_000_000)
    for _ in range(10):
        size.committed(200, 0.1)  # a trickle: the interval ends them
    assert size.bytes == 32 << 20
    size.committed(0, 100.0)
    assert size.bytes == 32 << 20


def test_a_way_that_gets_slow_under_a_trickle_is_noticed_in_time() -> None:
    """What a target takes in a quarter of the time limit is known before the backlog is large."""
    for timeout_s in (10, 60):
        size = TransactionSize(32 << 20, timeout_s * 1_000, interval_ms=100)
        _steady(size, 50_000_000)
        for _ in range(20):
            size.committed(100_000, 0.11)
        assert size.bytes == 32 << 20
        backlog, took = 100_000.0, []
        for _ in range(40):  # the source brings 1 MB/s, the target takes a tenth of it
            sent = min(backlog, size.bytes)
            took.append(0.1 + sent / 100_000)
            size.committed(int(sent), took[-1])
            backlog += 1_000_000 * took[-1] - sent
        assert max(took) < timeout_s / 2
        assert max(took[3:]) <= timeout_s / 4 + 0.2


def test_what_a_long_way_takes_anyway_makes_no_transaction_smaller() -> None:
    size = TransactionSize(32 << 20, 60_000, interval_ms=100)
    for _ in range(20):
        size.committed(size.bytes, 1.6 + size.bytes / 50_000_000)
    assert size.bytes == 32 << 20
    for _ in range(20):
        size.committed(5_000, 1.9)
    assert size.bytes == 32 << 20
    patient = TransactionSize(32 << 20, 60_000, interval_ms=10_000)
    _steady(patient, 50_000_000)
    patient.committed(5_000, 10.1)
    assert patient.bytes == 32 << 20


def test_the_measured_rate_counts_for_half_full_ones_too() -> None:
    size = TransactionSize(32 << 20, 60_000)
    _steady(size, 50_000_000)
    size.committed(16 << 20, 14.0)
    assert size.bytes / ((16 << 20) / 14.0) <= 15.0


@pytest.mark.parametrize(("bytes_per_s", "timeout_s"), [(100_000, 2), (2_000, 60), (600, 60)])
def test_after_a_transaction_that_took_too_long_the_next_one_is_smaller(
    bytes_per_s: int, timeout_s: int
) -> None:
    """Of the eight attempts that Spark gives a task one gets on, however slow the way is."""
    for failed in range(8):
        size = TransactionSize(32 << 20, timeout_s * 1_000, failed=failed)
        if size.bytes / bytes_per_s < timeout_s:
            break
    else:
        pytest.fail("each attempt takes too long")
    assert failed <= 5
    size.committed(size.bytes, size.bytes / bytes_per_s)
    assert size.bytes / bytes_per_s <= max(timeout_s / 4, 16_384 / bytes_per_s)
    assert TransactionSize(32 << 20, 60_000, failed=1_000).bytes == 16 * 1024


def test_a_sink_knows_how_often_its_task_has_failed() -> None:
    flow = FlowSettings(_A, _B, _A, _B, exactly_once=True)
    sizes = [ExactlyOnce(SinkTask(flow, failed))._size.bytes for failed in (0, 1, 2)]
    assert sizes == [256 * 1024, 128 * 1024, 64 * 1024]


def test_the_setting_is_the_most_that_a_transaction_holds() -> None:
    size = TransactionSize(100_000, 60_000)
    _steady(size, 50_000_000)
    assert size.bytes == 100_000
