"""Adds up what the slots report about transforms."""

from __future__ import annotations

from collections.abc import Iterable

from sparkmirror.progress import TransformCounts


class TransformTotals:
    """The records of each transform of one flow, in this run."""

    def __init__(self) -> None:
        self._totals: dict[str, TransformCounts] = {}

    def add(self, now: Iterable[TransformCounts], before: Iterable[TransformCounts]) -> None:
        """Add the growth of one task's counters from ``before`` to ``now``."""
        known = {one.transform: one for one in before}
        for one in now:
            grown = one.since(known.get(one.transform))
            total = self._totals.get(one.transform, TransformCounts(one.transform))
            self._totals[one.transform] = total.plus(grown)

    def rows(self) -> tuple[TransformCounts, ...]:
        """The totals, in the order of the names."""
        return tuple(self._totals[name] for name in sorted(self._totals))
