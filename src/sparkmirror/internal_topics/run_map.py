"""Where source offsets went on the target, exactly: runs of records with consecutive offsets.

A `Run` says that the ``length`` records from source offset ``source`` on have target offsets from
``target`` on. One partition's `OffsetMap` is a list of runs, ascending on both sides. Records that
were never mirrored (markers, compacted or aborted ones) stand between two runs.

Newer knowledge wins: a run that begins below what is known on the source side was written again
(after a crash, or from a source topic that was made anew), and consumers go to the newer copies; a
run that begins below what is known on the target side means that the target topic was made anew.
A map that holds more than ``runs_max`` runs forgets old, short ones: what was a run is then a gap,
and a gap translates to its beginning, so that forgetting can repeat records but never skip one.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["RUNS_MAX", "OffsetMap", "Run", "extend_run"]

RUNS_MAX = 256
_RUNS_MIN = 4


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """``length`` records (at least one) from ``source`` on are at the target from ``target`` on."""

    source: int
    target: int
    length: int

    @property
    def source_end(self) -> int:
        """Source offset after the last record."""
        return self.source + self.length

    @property
    def target_end(self) -> int:
        """Target offset after the last record."""
        return self.target + self.length

    def head(self, length: int) -> Run:
        """The first ``length`` records of this run."""
        return Run(self.source, self.target, length)


def extend_run(runs: list[Run], run: Run) -> None:
    """Append ``run``, as one with the last run when it goes on where that ends."""
    if runs:
        last = runs[-1]
        if (last.source_end, last.target_end) == (run.source, run.target):
            runs[-1] = last.head(last.length + run.length)
            return
    runs.append(run)


class OffsetMap:
    """Source offsets to target offsets of one partition."""

    def __init__(self, runs: Iterable[Run] = (), *, runs_max: int = RUNS_MAX) -> None:
        self._runs_max = max(_RUNS_MIN, runs_max)
        self._runs: list[Run] = []
        for run in runs:
            self.add(run)

    @property
    def runs(self) -> tuple[Run, ...]:
        """What is known, ascending."""
        return tuple(self._runs)

    @property
    def target_end(self) -> int:
        """Target offset after the last record that is known, -1 for none."""
        return self._runs[-1].target_end if self._runs else -1

    def add(self, run: Run) -> None:
        """Take a run that was acknowledged after all those taken before."""
        runs = self._runs
        # The usual case is behind what is known, on both sides.
        while runs and (runs[-1].source >= run.source or runs[-1].target >= run.target):
            del runs[-1]
        if runs:
            last = runs[-1]
            length = min(last.length, run.source - last.source, run.target - last.target)
            if length < last.length:
                runs[-1] = last.head(length)
        extend_run(runs, run)
        if len(runs) > self._runs_max:
            self._thin()

    def add_older(self, run: Run) -> None:
        """Take a run that was acknowledged before all those taken: it fills what is unknown.

        What does not fit between its neighbours is left out.
        """
        at = bisect.bisect_right(self._runs, run.source, key=lambda known: known.source)
        before, after = self._runs[:at], self._runs[at:]
        if before:
            last = before[-1]
            hidden = max(0, last.source_end - run.source)
            if hidden >= run.length or last.target_end > run.target + hidden:
                return
            run = Run(run.source + hidden, run.target + hidden, run.length - hidden)
        if after:
            free = min(after[0].source - run.source, after[0].target - run.target)
            if free <= 0:
                return
            run = run.head(min(run.length, free))
        extend_run(before, run)
        if after:
            extend_run(before, after[0])
        self._runs = before + after[1:]
        if len(self._runs) > self._runs_max:
            self._thin()

    def _thin(self) -> None:
        """Forget the shorter half of the older half, so that the map is denser towards its end."""
        older = self._runs[: len(self._runs) // 2]
        by_length = sorted(range(len(older)), key=lambda i: (older[i].length, -i))
        gone = set(by_length[: len(older) // 2])
        self._runs = [run for i, run in enumerate(self._runs) if i not in gone]

    def bounds(self, source: int) -> tuple[int | None, int | None]:
        """Between which target offsets a consumer goes on that has read all before ``source``.

        At the lower bound nothing is lost, and no more is repeated than this map has forgotten;
        past the upper one, records that it has not read would be skipped. They are equal when
        ``source`` is in a run. The lower one is None before the first run, the upper one after
        the last.
        """
        runs = self._runs
        after = bisect.bisect_right(runs, source, key=lambda run: run.source)
        high = runs[after].target if after < len(runs) else None
        if not after:
            return None, high
        run = runs[after - 1]
        if source < run.source_end:
            place = run.target + source - run.source
            return place, place
        return run.target_end, high

    def translate(self, source: int, guess: int | None = None) -> int | None:
        """Target offset for a consumer that has read all before ``source``; None when unknown.

        ``guess``: what a coarser source says; it counts as far as it is within `bounds`.
        """
        low, high = self.bounds(source)
        known = [offset for offset in (low, guess) if offset is not None]
        if not known:
            return None
        return max(known) if high is None else min(max(known), high)
