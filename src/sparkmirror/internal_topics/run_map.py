"""Exact map of source offsets to target offsets, as runs of records with consecutive offsets.

A `Run` says that the ``length`` records from source offset ``source`` on have target offsets from
``target`` on. The `OffsetMap` of a partition is a list of runs, ascending on both sides. Offsets of
records that were never mirrored (control batches, compacted or aborted records) are between runs.

A newer run replaces older ones. If it begins below the known source end, its records were written
again, after a crash or from a recreated source topic; consumers then go to the newer copies. If it
begins below the known target end, the target topic was recreated or truncated.

A map with more than ``runs_max`` runs drops some, the more the older they are. The offsets in a
dropped run then translate to smaller target offsets, so that records may be repeated but are never
skipped. While a map only grows, a consumer that lags by n target offsets repeats fewer than n.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["RUNS_MAX", "OffsetMap", "Run", "extend_run"]

RUNS_MAX = 256
_RUNS_MIN = 4


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """``length`` records (at least 1) from offset ``source`` on, mirrored to ``target`` and on."""

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
    """Append ``run``, or extend the last run if ``run`` continues it."""
    if runs:
        last = runs[-1]
        if (last.source_end, last.target_end) == (run.source, run.target):
            runs[-1] = last.head(last.length + run.length)
            return
    runs.append(run)


class OffsetMap:
    """Maps source offsets to target offsets of one partition."""

    def __init__(self, runs: Iterable[Run] = (), *, runs_max: int = RUNS_MAX) -> None:
        self._runs_max = max(_RUNS_MIN, runs_max)
        self._runs: list[Run] = []
        for run in runs:
            self.add(run)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The known runs, ascending."""
        return tuple(self._runs)

    @property
    def target_end(self) -> int:
        """Target offset after the last known record; -1 if there is none."""
        return self._runs[-1].target_end if self._runs else -1

    def add(self, run: Run) -> None:
        """Add a run that was acknowledged after all runs added before."""
        runs = self._runs
        # Normally the run is after all known runs on both sides, and nothing is deleted.
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
        """Add a run that was acknowledged before all runs added so far.

        Only the part that fits between its neighbours on both sides is added.
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
        """Drop runs of the older half, the more the further they are from the end of the map.

        Of those whose distances to the end lie between the same two powers of two, the first and
        the last are kept. So what lies between two kept runs is never more than its distance to
        the end.
        """
        half = len(self._runs) // 2
        end = self.target_end
        kept: list[Run] = []
        for _, alike in itertools.groupby(
            self._runs[:half], key=lambda run: (end - run.target).bit_length()
        ):
            first, *more = alike
            kept += [first, *more[-1:]]
        if len(kept) == half:  # only if `runs_max` is small
            kept = kept[::2]
        self._runs = kept + self._runs[half:]

    def bounds(self, source: int) -> tuple[int | None, int | None]:
        """Bounds of the target offset for a consumer that has read all before ``source``.

        From the lower bound on, nothing is skipped, and only records of dropped runs are repeated.
        Above the upper bound, unread records would be skipped. Both are equal if ``source`` is in
        a run. The lower bound is None before the first run, the upper bound after the last.
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
        """Target offset for a consumer that has read all before ``source``; None if unknown.

        ``guess``: the translation of a less exact source; it is clamped to `bounds`. After the last
        run it does not count if it is further from that run than ``source`` is.
        """
        low, high = self.bounds(source)
        if guess is not None and low is not None and high is None:
            # It may be about records that the target has lost. Transaction markers and duplicates
            # at the target look the same; without the guess, records are only repeated.
            behind = source - self._runs[-1].source_end
            guess = guess if guess <= low + behind else None
        known = [offset for offset in (low, guess) if offset is not None]
        if not known:
            return None
        return max(known) if high is None else min(max(known), high)
