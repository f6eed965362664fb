"""Jobs: the repeated work of the control plane, each job on a thread of its own.

A round of a job observes, plans and applies (`Round`, `run_once`). Jobs that only follow a topic
have a single step. `Jobs.start` is the thread body of all of them.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sparkmirror.errors import MirrorError, Unreachable
from sparkmirror.observe.notice import named_places

log = logging.getLogger(__name__)

Seen = TypeVar("Seen")
Planned = TypeVar("Planned")
Done_co = TypeVar("Done_co", covariant=True)

_FAILURE_PAUSE_S = 5.0
_REASONS_MAX = 10
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


class Round(Protocol[Seen, Planned, Done_co]):
    """One round of a job. ``observe`` and ``apply`` may raise `MirrorError`."""

    def observe(self) -> Seen:
        """Read the state of the clusters."""

    def plan(self, seen: Seen, /) -> Planned:
        """Decide what to do. Changes nothing."""

    def apply(self, planned: Planned, /) -> Done_co:
        """Carry out the plan."""


def run_once(job: Round[Seen, Planned, Done_co]) -> Done_co:
    """Run one round. Raises `MirrorError`."""
    return job.apply(job.plan(job.observe()))


def no_pause_s() -> float:
    """No pause between rounds: the round itself waits, in a poll."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A repeated round. ``name`` ends with the flow's name; ``once`` may raise `MirrorError`.

    The thread waits ``pause_s()`` between rounds, ``failure_pause_s`` after a failed one. ``wait``
    replaces both; its argument says whether the last round failed. ``waits_first``: wait before
    the first round too. ``over()``: end the job. ``single``: end after one round that succeeds.
    ``timed``: log how long each round took.
    """

    name: str
    once: Callable[[], object]
    pause_s: Callable[[], float] = no_pause_s
    failure_pause_s: float = _FAILURE_PAUSE_S
    after_failure: Callable[[], None] | None = None
    over: Callable[[], bool] | None = None
    wait: Callable[[bool], None] | None = None
    waits_first: bool = False
    single: bool = False
    timed: bool = False


class Notify(Protocol):
    """Takes one-line notices for the user."""

    def __call__(
        self, line: str, *, flow: str = "", level: str = "info", code: str = "", cluster: str = ""
    ) -> None:
        """Show ``line``; the rest is for filters and JSON output."""


class Jobs:
    """The threads of a mirror's jobs, and the outcome of each round.

    ``flow_of`` returns the flow in a job's name. ``unreachable``: jobs whose last round failed
    because a cluster was unreachable.
    """

    def __init__(self, notify: Notify, flow_of: Callable[[str], str]) -> None:
        self.stopping = threading.Event()
        self.threads: list[threading.Thread] = []
        self.unreachable: set[str] = set()
        self._notify = notify
        self._flow_of = flow_of
        self._reasons: dict[str, set[str]] = {}

    def spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        """Run ``body`` on a daemon thread, so that the process can end without it."""
        thread = threading.Thread(target=body, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def start(self, job: Job) -> None:
        """Repeat ``job`` on a thread, until it is over or `stopping` is set."""

        def body() -> None:
            failing = False
            if job.waits_first:
                self._wait(job, failing)
            while not self._ended(job):
                failing = not self._round(job, failed_before=failing)
                if self._ended(job) or (job.single and not failing):
                    return
                self._wait(job, failing)

        self.spawn(job.name, body)

    def _ended(self, job: Job) -> bool:
        return self.stopping.is_set() or (job.over is not None and job.over())

    def _wait(self, job: Job, failing: bool) -> None:
        if job.wait is not None:
            job.wait(failing)
        else:
            self.stopping.wait(job.failure_pause_s if failing else job.pause_s())

    def _round(self, job: Job, *, failed_before: bool) -> bool:
        began = time.monotonic()
        good = self.attempt(job.name, job.once, job.after_failure, failed_before=failed_before)
        if good and job.timed:
            log.info("%s: a round took %.0f ms", job.name, (time.monotonic() - began) * 1000)
        return good

    def attempt(
        self,
        name: str,
        once: Callable[[], object],
        after_failure: Callable[[], None] | None = None,
        *,
        failed_before: bool,
    ) -> bool:
        """Run a round; True if it succeeded. A failure is reported, not raised.

        ``failed_before``: the round before this one failed too. In a series of failures each reason
        is reported once, and at most ten reasons. The next success is reported as well.
        """
        error: Exception
        try:
            once()
        except MirrorError as known:
            error = known
        except Exception as unknown:
            # A defect. The thread must go on; the log keeps the traceback.
            log.exception("%s", name)
            error = unknown
        else:
            self.unreachable.discard(name)
            if failed_before:
                self._notify(f"{name}: works again", flow=self._flow_of(name))
            return True
        if isinstance(error, Unreachable):
            self.unreachable.add(name)
        else:
            self.unreachable.discard(name)
        self._report_failure(name, error, first=not failed_before)
        if after_failure is not None:
            after_failure()
        return False

    def _report_failure(self, name: str, error: Exception, *, first: bool) -> None:
        reasons = self._reasons.setdefault(name, set())
        if first:
            reasons.clear()
        reason = _NUMBERS.sub("", str(error))  # another time or size is not another reason
        if self.stopping.is_set() or reason in reasons or len(reasons) >= _REASONS_MAX:
            return
        reasons.add(reason)
        expected = error if isinstance(error, MirrorError) else MirrorError(str(error))
        self._notify(
            f"{name}: {error}",
            flow=self._flow_of(name),
            level="warning",
            code=expected.code,
            cluster=named_places(expected.where)[1],
        )
