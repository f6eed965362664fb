"""When a new epoch begins early."""

from __future__ import annotations

from sparkmirror.control.flows.renewal import RENEWAL_S, Renewal
from sparkmirror.progress import Halt, PartitionProgress, SlotProgress


class _Run:
    """A flow's reports, its clock, and how often a new epoch was asked for."""

    def __init__(self) -> None:
        self.now_s, self.replans = 0.0, 0
        self.renewal = Renewal("A->B", self._replan, clock=lambda: self.now_s)

    def _replan(self) -> None:
        self.replans += 1

    def report(
        self,
        epoch: int,
        *,
        attempt: int = 1,
        slot: int = 0,
        halt: Halt | None = None,
        position: int = 5,
        paused: bool = False,
    ) -> None:
        partition = PartitionProgress("t", slot, position, halt=halt)
        self.renewal.observe(
            [
                SlotProgress(
                    *("A->B", slot, "w", epoch, 0, 0, 0, 0),
                    attempt=attempt,
                    paused=paused,
                    partitions=(partition,),
                )
            ]
        )

    def after(self, seconds: float) -> int:
        self.now_s += seconds
        self.renewal.step()
        return self.replans


def test_an_epoch_without_trouble_is_left_alone() -> None:
    run = _Run()
    run.report(1)
    run.report(1, halt=Halt("REQUEST_TIMED_OUT", "slow", retriable=True))
    assert run.after(10 * RENEWAL_S) == 0


def test_what_a_slot_does_not_retry_gets_a_new_epoch_every_five_minutes() -> None:
    run = _Run()
    run.report(1, halt=Halt("SOURCE_TRUNCATED", "lost"))
    assert run.after(RENEWAL_S - 1) == 0
    assert run.after(1) == 1
    run.report(2, halt=Halt("SOURCE_TRUNCATED", "lost"))
    assert run.after(RENEWAL_S - 1) == 1
    assert run.after(1) == 2


def test_a_partition_without_a_first_position_needs_an_epoch_though_it_is_retried() -> None:
    run = _Run()
    leaderless = Halt("LEADER_NOT_AVAILABLE", "no leader", retriable=True)
    run.report(1, halt=leaderless)
    assert run.after(RENEWAL_S) == 0
    run.report(1, halt=leaderless, position=-1)
    assert run.after(0) == 1


def test_a_hanging_transaction_of_another_slot_needs_an_epoch_though_it_is_retried() -> None:
    run = _Run()
    run.report(1, halt=Halt("CONCURRENT_TRANSACTIONS", "hangs", retriable=True))
    assert run.after(RENEWAL_S) == 1


def test_a_partition_that_goes_on_again_needs_none() -> None:
    run = _Run()
    run.report(1, halt=Halt("NO_POSITION", "none"))
    run.report(1)
    assert run.after(RENEWAL_S) == 0


def test_failures_of_tasks_do_not_add_up_over_a_day() -> None:
    run = _Run()
    run.report(1, attempt=7)
    run.report(1, attempt=8, slot=1)
    assert run.after(RENEWAL_S) == 0
    run.report(1, attempt=9, slot=1)
    assert run.after(1) == 1
    run.report(2, attempt=10)
    run.report(1, attempt=9, slot=1)  # late
    assert run.after(RENEWAL_S) == 1


def test_it_is_asked_again_if_no_epoch_begins() -> None:
    run = _Run()
    run.report(1, halt=Halt("NO_POSITION", "none"))
    assert run.after(RENEWAL_S) == 1
    assert run.after(RENEWAL_S - 1) == 1
    assert run.after(1) == 2


def test_an_attempt_after_which_no_other_begins_needs_an_epoch() -> None:
    run = _Run()
    for attempt in range(20):
        halt = Halt("MESSAGE_TOO_LARGE", "refused", retriable=True, attempt=attempt)
        run.report(1, halt=halt)
        assert run.after(60) == 0
    run.report(1, halt=halt)
    assert run.after(RENEWAL_S - 61) == 0
    assert run.after(1) == 1


def test_a_pause_of_the_flow_begins_no_epochs() -> None:
    run = _Run()
    for _ in range(60):
        halt = Halt("MESSAGE_TOO_LARGE", "refused", retriable=True, attempt=3)
        run.report(1, halt=halt, paused=True)
        assert run.after(60) == 0
    run.report(1, halt=halt)
    assert run.after(RENEWAL_S) == 1
