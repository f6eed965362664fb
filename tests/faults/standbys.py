"""Processes of one MirrorMaker 2 file that stand by for each other: one after the other is hit.

usage: python -m tests.faults.standbys [--processes 2] [--seconds 600] [--seed 1]
       [--at-least-once] [--report FILE] [--keep DIRECTORY]

Under a load of numbered records a process is killed (its driver, SIGKILL), frozen whole for longer
than the session (SIGSTOP) or ended in order (SIGTERM), mostly the owner of the flow; whoever has
ended is started again some seconds later. ``--seconds``: no further event after so long; there is
one at least. ``--keep``: leave logs and work directories there. The exit code is 1 when a record
was lost or out of order, when one came twice (with ``--at-least-once``: more than were written
since the last committed position, or any where the owner ended in order), when a process ended or
the flow changed hands without a reason, or when a standby that was ready took too long over a
killed owner's flow.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.faults.harness import Counter, run_directory, write_config
from tests.faults.kinds import draw
from tests.faults.numbered import Numbered
from tests.faults.processes import Life, Seat
from tests.faults.report import UNCOMMITTED_S
from tests.faults.takeovers import WARM, Event, Outcome, complaints, render
from tests.kafka.harness.support import create_topic

_PARTITIONS = 4
# Three mirrors, of which one or two are just starting, share the processors with two brokers.
_RATE_PER_S = 4_000.0
# Shorter than the default of ten seconds, so that more takeovers fit into a run.
_SESSION_S = 6.0
_START_S_MAX = 300.0
_TAKEN_OVER_S_MAX = 180.0
_POLL_S = 0.02
# For so long the owner is looked at after something happened to a standby.
_STEADY_S = 5.0
# Whoever is woken looks at the claims, and ends, within seconds.
_AWAKE_S = 5.0
# Most events wait until a standby is ready; the others find who is there.
_AT_ONCE = 0.2
_WEIGHTS = {
    "owner killed": 4,
    "owner frozen": 2,
    "owner ended": 2,
    "standby killed": 1,
    "standby frozen": 1,
    "standby ended": 1,
}


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.standbys", description=__doc__)
    parser.add_argument("--processes", type=int, choices=(2, 3), default=2)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-least-once", action="store_true")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    clusters = KafkaCluster("A"), KafkaCluster("B")
    start_all(*clusters)
    try:
        with run_directory(options.keep) as directory:
            return _run(options, directory, *clusters)
    finally:
        for cluster in clusters:
            cluster.stop()


class _Stuck(Exception):
    """What was waited for did not come: the run cannot go on."""


class _Watch:
    """The processes, the records, and who has the flow."""

    def __init__(
        self,
        seats: list[Seat],
        traffic: Numbered,
        counter: Counter,
        chooser: random.Random,
        *,
        at_least_once: bool,
    ) -> None:
        self.wrong: list[str] = []
        self._seats = seats
        self._traffic = traffic
        self._counter = counter
        self._random = chooser
        self._at_least_once = at_least_once
        self._last: Life | None = None

    def owner(self) -> Seat | None:
        """Who mirrors; None while nobody can: the newest owner stands still or has ended."""
        newest = self._newest()
        found = (seat for seat in self._seats if seat.runs and seat.life is newest)
        return next(found, None)

    def _newest(self) -> Life | None:
        owned = [life for seat in self._seats for life in seat.lives if life.owns_s]
        return max(owned, key=lambda life: life.owns_s, default=None)

    def tend(self) -> None:
        """See to all processes."""
        for seat in self._seats:
            seat.tend()
        time.sleep(_POLL_S)

    def until(self, reached: Callable[[], bool], what: str) -> None:
        """Wait for it. Raises `_Stuck`."""
        deadline = time.monotonic() + _START_S_MAX
        while not reached():
            if time.monotonic() > deadline:
                raise _Stuck(f"{what} did not come")
            self.tend()

    def rest(self, for_s: float) -> float:
        """Tend for so long; the longest time without a record."""
        silent_s, until = 0.0, time.monotonic() + for_s
        while time.monotonic() < until:
            self.tend()
            silent_s = max(silent_s, self._silent_s())
        return silent_s

    def all_at_rest(self) -> bool:
        """Whether one mirrors and the others stand by."""
        return self.owner() is not None and all(
            seat.ready for seat in self._seats if seat is not self.owner()
        )

    def mirrored(self) -> None:
        """Wait until records of now are there, in all partitions."""
        sent = list(self._traffic.sent)
        self.until(lambda: all(self._moved(sent)), "records")

    def _moved(self, sent: Sequence[int]) -> list[bool]:
        """Whether each partition has a record that was not written when ``sent`` was noted."""
        pairs = zip(self._counter.expected, sent, strict=True)
        return [expected > before for expected, before in pairs]

    def _silent_s(self) -> float:
        return time.monotonic() - max(self._counter.arrived_at)

    # -- events --------------------------------------------------------------------------------

    def event(self, name: str) -> Event:
        """Let it happen, and see what comes of it. Raises `_Stuck`."""
        role, _, what = name.partition(" ")
        ready_first = self._random.random() >= _AT_ONCE

        def others() -> list[Seat]:
            return [one for one in self._seats if (one.ready if ready_first else one.stands_by)]

        def possible() -> bool:
            enough = role == "owner" and not ready_first
            return self.owner() is not None and (enough or bool(others()))

        self.until(possible, "a process to be hit")
        owner = self.owner()
        assert owner is not None
        self._notice_change()
        victim = owner if role == "owner" else self._random.choice(others())
        ready = [one.life for one in self._seats if one.ready]
        uncommitted = self._counter.received_since(time.monotonic() - UNCOMMITTED_S)
        sent, began_s = list(self._traffic.sent), time.time()
        frozen_s = self._hit(victim, what)
        if victim is owner:
            found = self._follow(victim, ready, sent, began_s, frozen_s)
            if not self._at_least_once or what == "ended":
                return replace(found, name=name)
            return replace(found, name=name, allowed=max(uncommitted, found.allowed))
        silent_s = self.rest(max(_STEADY_S, frozen_s + _AWAKE_S))
        self._notice_change()
        return Event(name, "the owner went on", None, silent_s)

    def _hit(self, victim: Seat, what: str) -> float:
        """Do it; for how long it stands still."""
        frozen_s = self._random.uniform(1.2, 3.0) * _SESSION_S if what == "frozen" else 0.0
        if what == "killed":
            victim.kill()
        elif what == "ended":
            victim.end()
        else:
            victim.freeze(frozen_s)
        return frozen_s

    def _notice_change(self) -> None:
        """Complain when the flow is not with whom it was when the last event was over."""
        newest, last = self._newest(), self._last
        if last is not None and newest is not None and newest is not last:
            self.wrong.append(f"{newest.seat} took over from {last.seat}, which nothing had hit")
        self._last = newest

    def _follow(
        self,
        victim: Seat,
        ready: Sequence[Life],
        sent: list[int],
        began_s: float,
        frozen_s: float,
    ) -> Event:
        """Until another one mirrors all partitions, or the owner goes on. Raises `_Stuck`."""
        hit = victim.life
        written_s = first_s = detected_s = None
        silent_s, uncommitted = 0.0, 0
        since: list[int] | None = None
        while True:
            self.tend()
            passed_s = time.time() - began_s
            silent_s = max(silent_s, self._silent_s())
            if written_s is None and any(self._moved(sent)):
                written_s = passed_s
            taker = self._newest()
            if taker is None or taker is hit:
                if frozen_s and passed_s > frozen_s + _AWAKE_S and hit.code is None:
                    self.mirrored()
                    return Event("", "it woke before anybody took over", None, silent_s)
            elif since is None:
                since = list(self._traffic.sent)
                detected_s = taker.owns_s - began_s if taker.taken_over else None
                uncommitted = self._counter.received_since(time.monotonic() - UNCOMMITTED_S)
            else:
                moved = self._moved(since)
                if first_s is None and any(moved):
                    first_s = passed_s
                if first_s is not None and written_s is not None and all(moved):
                    self._last = taker
                    outcome = Outcome(detected_s, written_s, first_s, passed_s)
                    how = _how_far(taker, ready)
                    return Event("", how, outcome, silent_s, uncommitted)
            if passed_s > _TAKEN_OVER_S_MAX:
                raise _Stuck(f"nobody has mirrored for {passed_s:.0f} s")


def _how_far(taker: Life, ready: Sequence[Life]) -> str:
    """What the new owner was when the event came."""
    if any(taker is one for one in ready):
        return WARM
    return "just starting, another one ready" if ready else "just starting, or not yet"


def _run(
    options: argparse.Namespace, directory: Path, source: KafkaCluster, target: KafkaCluster
) -> int:
    create_topic(source, "numbers", _PARTITIONS)
    create_topic(target, "A.numbers", _PARTITIONS)
    session = {"sparkmirror.session.timeout.ms": f"{_SESSION_S * 1000:.0f}"}
    config = write_config(directory / "mm2.properties", source, target, "numbers", **session)
    flags = () if options.at_least_once else ("--exactly-once",)
    chooser = random.Random(options.seed)
    traffic = Numbered(source, "numbers", _PARTITIONS, per_s=_RATE_PER_S)

    def pause_s() -> float:
        return chooser.uniform(2.0, 6.0)

    seats: list[Seat] = []
    events: list[Event] = []
    stuck, missing = "", 0
    with traffic, Counter(target, "A.numbers", _PARTITIONS) as counter:
        watch = _Watch(seats, traffic, counter, chooser, at_least_once=options.at_least_once)
        began = time.monotonic()
        try:
            for number in range(1, options.processes + 1):
                name = f"process-{number}"
                seats.append(Seat.begin(directory / name, config, *flags, pause_s=pause_s))
                # One after the other: the first one has the flow, and the processors.
                watch.until(watch.all_at_rest, f"{name} to be ready")
                watch.mirrored()
            print(f"all are ready after {time.monotonic() - began:.1f} s", flush=True)
            began = time.monotonic()
            for name in draw(chooser, _WEIGHTS):
                before = counter.duplicated
                events.append(watch.event(name))
                watch.rest(chooser.uniform(2.0, 8.0))
                # What comes twice comes after the partitions move again.
                events[-1] = replace(events[-1], twice=counter.duplicated - before)
                _show(events, traffic, counter)
                if time.monotonic() - began > options.seconds:
                    break
            before = counter.duplicated
            watch.until(watch.all_at_rest, "the end of all starts")
            missing = _end(watch, seats, traffic, counter)
            if counter.duplicated > before:  # nothing happened but an end in order
                watch.wrong.append(f"{counter.duplicated - before} records twice at the end")
        except _Stuck as problem:
            stuck = str(problem)
            for seat in seats:
                print(f"-- {seat.name}, process {len(seat.lives)}\n{seat.mirror.output()}")
        finally:
            for seat in seats:
                seat.clear()
        head = (
            f"{options.processes} processes, seed {options.seed}, {_PARTITIONS} partitions, 2 "
            f"slots, a session of {_SESSION_S:g} s; {time.monotonic() - began:.0f} s; "
            f"{traffic.count:,} records written, {counter.received:,} read by a read_committed "
            "librdkafka consumer at the target"
        )
    mode = "at-least-once" if options.at_least_once else "exactly-once"
    page = render(mode, head, events, lost=counter.lost, twice=counter.duplicated)
    print(page)
    if options.report is not None:
        options.report.write_text(page)
    wrong = complaints(events, lost=counter.lost)
    wrong += [*watch.wrong, *(line for seat in seats for line in seat.wrong)]
    if stuck:
        wrong.append(stuck)
    if missing:
        wrong.append(f"{missing} records are missing")
    if counter.first_wrong:
        print(f"first wrong: {counter.first_wrong}")
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def _end(watch: _Watch, seats: Sequence[Seat], traffic: Numbered, counter: Counter) -> int:
    """All that is written arrives; then the standbys end, and the owner. How much is missing."""
    written = traffic.finish()
    counter.wait_for(written, _TAKEN_OVER_S_MAX)
    owner = watch.owner()
    for seat in seats:
        seat.closed = True
    for seat in sorted(seats, key=lambda one: one is owner):
        seat.end()
        watch.until(lambda seat=seat: seat.life.code is not None, f"the end of {seat.name}")
    time.sleep(2.0)
    return written - sum(counter.expected)


def _show(events: Sequence[Event], traffic: Numbered, counter: Counter) -> None:
    now = time.strftime("%H:%M:%S", time.gmtime())
    print(
        f"{len(events):3d} {now} {events[-1]}; {traffic.count:,} written, {counter.received:,} "
        f"read, {counter.lost} lost, {counter.duplicated} twice",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
