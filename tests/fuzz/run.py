"""Runs cases of every target for some processor time, and writes what came of it.

usage: python -m tests.fuzz.run [--seconds N] [--seed N] [--workers N] [--report FILE]
       [TARGET[:CASE] ...]

Case ``n`` of a target is made from ``Random(f"{seed}/{target}/{n}")``, so ``TARGET:CASE`` with the
same seed runs a case again. A crash is an exception that the code does not document, a hang a case
that takes more than ``CASE_S_MAX`` of processor time. Each target has processes of its own, with a
limit on their memory, so that its peak is known.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import platform
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import FrameType

CASE_S_MAX = 10.0
MEMORY_BYTES_MAX = 6 << 30
_FAULTS_KEPT = 20


class HangError(BaseException):
    """A case took too long. No `Exception`, so that no handler of the code takes it for its own."""


@dataclass
class Outcome:
    """What a process found. ``faults``: (case, kind, what happened)."""

    target: str
    cases: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    slowest_case: int = 0
    memory_bytes: int = 0
    faults: list[tuple[int, str, str]] = field(default_factory=list)
    crashes: int = 0
    hangs: int = 0


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise HangError

    # Processor time, since the machine may be busy; and a limit for a case that waits for ever.
    limits = (
        (signal.SIGPROF, signal.ITIMER_PROF, CASE_S_MAX),
        (signal.SIGALRM, signal.ITIMER_REAL, 60 * CASE_S_MAX),
    )
    former = [signal.signal(number, ring) for number, _, _ in limits]
    for _, timer, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(limits, former, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def run_case(target: str, seed: int, case: int) -> None:
    """One case; raises what it raises, `HangError` after ``CASE_S_MAX``."""
    from tests.fuzz.targets import TARGETS

    # Each case has its warnings; a test that is run later in this process wants its own again.
    former = logging.root.manager.disable
    logging.disable()
    try:
        with _alarm():
            TARGETS[target](Random(f"{seed}/{target}/{case}"))
    finally:
        logging.disable(former)


def _work(target: str, seed: int, seconds: float, first: int, step: int) -> Outcome:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    import tests.fuzz.targets  # noqa: F401  (not part of the time of a case)

    outcome = Outcome(target)
    began_s = time.process_time()
    case = first
    while (case_began_s := time.process_time()) - began_s < seconds:
        try:
            run_case(target, seed, case)
        except HangError:
            outcome.hangs += 1
            _note(outcome, case, "hang", "".join(traceback.format_exc(limit=-3)))
        except BaseException as error:
            outcome.crashes += 1
            _note(outcome, case, type(error).__name__, "".join(traceback.format_exc(limit=-3)))
        took_s = time.process_time() - case_began_s
        if took_s > outcome.slowest_s:
            outcome.slowest_s, outcome.slowest_case = took_s, case
        outcome.cases += 1
        case += step
    outcome.seconds = time.process_time() - began_s
    outcome.memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return outcome


def _note(outcome: Outcome, case: int, kind: str, text: str) -> None:
    if len(outcome.faults) < _FAULTS_KEPT:
        outcome.faults.append((case, kind, text))


def run_all(targets: list[str], *, seed: int, seconds: float, workers: int) -> list[Outcome]:
    """All targets for ``seconds`` of processor time in all, shared evenly."""
    from tests.fuzz.targets import TARGETS

    names = targets or list(TARGETS)
    each_s = seconds / len(names) / workers
    outcomes: list[Outcome] = []
    context = multiprocessing.get_context("spawn")
    for name in names:
        # A pool for each: a process that had another target before would report its peak.
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            parts = [
                pool.submit(_work, name, seed, each_s, index, workers) for index in range(workers)
            ]
            outcomes.append(_joined([part.result() for part in parts]))
        print(_line(outcomes[-1]), flush=True)
    return outcomes


def _joined(parts: list[Outcome]) -> Outcome:
    slowest = max(parts, key=lambda part: part.slowest_s)
    return Outcome(
        parts[0].target,
        sum(part.cases for part in parts),
        sum(part.seconds for part in parts),
        slowest.slowest_s,
        slowest.slowest_case,
        max(part.memory_bytes for part in parts),
        [fault for part in parts for fault in part.faults],
        sum(part.crashes for part in parts),
        sum(part.hangs for part in parts),
    )


def _line(one: Outcome) -> str:
    return (
        f"| {one.target} | {one.cases:,} | {one.seconds:,.0f} | {one.crashes} | {one.hangs} "
        f"| {one.slowest_s * 1_000:,.0f} | {one.memory_bytes / 1e6:,.0f} |"
    )


def report(outcomes: list[Outcome], *, seed: int, workers: int) -> str:
    """The page with the results."""
    cases = sum(one.cases for one in outcomes)
    seconds = sum(one.seconds for one in outcomes)
    lines = [
        f"# Hostile answers, {datetime.now(UTC):%Y-%m-%d}",
        "",
        "`make fuzz` feeds the parsers on the path of a record with answers that a hostile broker"
        " or a writer to",
        "an internal topic could send: valid ones after damage, with checksums and lengths made"
        " right again, and",
        "small batches that unpack to as much as their codec can. A crash is an exception that the"
        " code does not",
        f"document, a hang a case of more than {CASE_S_MAX:.0f} s of processor time. Memory is the"
        " peak of a process, about 50 MB of it",
        f"the interpreter and its libraries; it may take {MEMORY_BYTES_MAX >> 30} GiB at most.",
        "",
        f"Seed {seed}, {workers} processes, Python {platform.python_version()}:"
        f" **{cases:,} cases in {seconds / 60:,.1f} CPU-minutes,"
        f" {sum(one.crashes for one in outcomes)} crashes,"
        f" {sum(one.hangs for one in outcomes)} hangs.**",
        "",
        "| target | cases | seconds | crashes | hangs | slowest case, ms | peak memory, MB |",
        "|---|---|---|---|---|---|---|",
        *map(_line, outcomes),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--report", type=Path)
    parser.add_argument("targets", nargs="*", metavar="TARGET[:CASE]")
    options = parser.parse_args()
    if any(":" in one for one in options.targets):
        for one in options.targets:
            target, _, case = one.partition(":")
            run_case(target, options.seed, int(case))
        return 0
    outcomes = run_all(
        options.targets, seed=options.seed, seconds=options.seconds, workers=options.workers
    )
    for one in outcomes:
        for case, kind, text in one.faults:
            print(f"{one.target}:{case}: {kind}\n{text}", file=sys.stderr)
    if options.report:
        options.report.write_text(report(outcomes, seed=options.seed, workers=options.workers))
    faults = sum(one.crashes + one.hangs for one in outcomes)
    print(json.dumps({"cases": sum(one.cases for one in outcomes), "faults": faults}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
