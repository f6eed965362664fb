"""Begins a new epoch early where only that helps: something stands still, or a task has failed.

Epochs last for a day. Two things cannot wait for that:

* A partition that a slot does not retry: a loss that the flow is to halt at, no first position, a
  hanging transaction of another slot, a refused record behind a loss, a repair whose gap record is
  refused. A new epoch reads the position and looks at both logs again.
* A task that failed and was started again. Spark counts the failures of an epoch, and ends the
  query after a few. They must not add up over a day.

So a flow with such a partition, or with a failed task, gets a new epoch every five minutes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, SlotProgress
from sparkmirror.wire.cluster.error_codes import CONCURRENT_TRANSACTIONS, error_name

log = logging.getLogger(__name__)

RENEWAL_S = 300.0
_HANGING = error_name(CONCURRENT_TRANSACTIONS)


class Renewal:
    """Watches one flow's reports. ``replan`` begins a new epoch; it may raise `MirrorError`.

    `observe` and `step` are called on threads of their own. ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        flow: str,
        replan: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._flow = flow
        self._replan = replan
        self._clock = clock
        self._epoch = -1
        self._since = clock()
        self._attempts: dict[int, int] = {}
        self._failed = False
        self._halted: dict[int, dict[TopicPartition, tuple[Halt, float]]] = {}

    def observe(self, reports: Iterable[SlotProgress]) -> None:
        """Take new reports of the run's slots."""
        for report in reports:
            if report.epoch > self._epoch:
                self._epoch, self._since = report.epoch, self._clock()
                self._attempts, self._failed, self._halted = {}, False, {}
            if report.epoch < self._epoch:
                continue
            if self._attempts.setdefault(report.slot, report.attempt) != report.attempt:
                self._failed = True
            self._halted[report.slot] = self._halts(report)

    def _halts(self, report: SlotProgress) -> dict[TopicPartition, tuple[Halt, float]]:
        """The halts in a report, and since when each of these attempts has ended.

        While the flow is paused, no slot begins another attempt.
        """
        known, now = self._halted.get(report.slot, {}), self._clock()
        found = {}
        for one in report.partitions:
            if one.halt is not None:
                tp = TopicPartition(one.topic, one.partition)
                before, since = known.get(tp, (one.halt, now))
                # A slot looks for first positions only when it begins.
                begins = one.halt if one.position >= 0 else replace(one.halt, retriable=False)
                same = before.attempt == one.halt.attempt and not report.paused
                found[tp] = begins, since if same else now
        return found

    def _stuck(self, now: float) -> bool:
        return any(
            _needs_epoch(halt, now - since)
            for halts in list(self._halted.values())
            for halt, since in halts.values()
        )

    def step(self) -> None:
        """Begin a new epoch if that is due. Raises `MirrorError`."""
        now = self._clock()
        if now - self._since < RENEWAL_S:
            return
        stuck = self._stuck(now)
        if not (stuck or self._failed):
            return
        log.info(
            "flow %s: a new epoch begins, because %s",
            self._flow,
            "a partition stands still" if stuck else "a task has failed in this one",
        )
        self._replan()
        self._since = now


def _needs_epoch(halt: Halt, halted_s: float) -> bool:
    # A slot begins another attempt within a minute, unless it cannot.
    never = halt.attempt >= 0 and halted_s >= RENEWAL_S
    return never or not halt.retriable or halt.code == _HANGING
