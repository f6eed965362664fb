"""A latency histogram with fixed bounds, cheap enough for the executor workers.

Bucket ``i`` counts values ``v`` with ``BOUNDS_MS[i-1] < v <= BOUNDS_MS[i]``; the last bucket counts
all values above 30 s. Only the standard library is imported, because workers load this module.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

__all__ = ["BOUNDS_MS", "Histogram"]

BOUNDS_MS: tuple[float, ...] = (
    *(0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 50.0, 75.0),
    *(100.0, 150.0, 200.0, 300.0, 500.0, 750.0),
    *(1_000.0, 2_000.0, 5_000.0, 10_000.0, 30_000.0),
    math.inf,
)


class Histogram:
    """Counts of latencies in milliseconds, one per bucket of ``BOUNDS_MS``."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Iterable[int] = ()) -> None:
        """Start empty, or from ``counts`` (one per bucket; ``ValueError`` for another length)."""
        given = list(counts)
        if given and len(given) != len(BOUNDS_MS):
            raise ValueError(f"{len(BOUNDS_MS)} bucket counts are needed, not {len(given)}")
        self._counts = given or [0] * len(BOUNDS_MS)

    def add(self, ms: float, n: int = 1) -> None:
        """Count ``n`` values of ``ms``; negative values (clocks that differ) count as zero."""
        self._counts[bisect_left(BOUNDS_MS, ms)] += n

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts, as in ``SlotProgress.latency_counts``."""
        return tuple(self._counts)

    @property
    def total(self) -> int:
        """How many values were counted."""
        return sum(self._counts)

    def merge(self, other: Histogram) -> None:
        """Add the counts of ``other`` to this histogram."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]

    def minus(self, earlier: Histogram) -> Histogram:
        """The values counted since ``earlier``, an earlier state of this histogram.

        Raises ``ValueError`` if a bucket decreased: then ``earlier`` is not an earlier state.
        """
        counts = [a - b for a, b in zip(self._counts, earlier._counts, strict=True)]
        if min(counts) < 0:
            raise ValueError("the earlier histogram is not a former state of this one")
        return Histogram(counts)

    def quantile(self, q: float) -> float | None:
        """The ``q`` quantile (0 to 1) in ms, linear within its bucket; ``None`` if empty.

        A value in the open last bucket is returned as its lower bound, 30,000 ms. Raises
        ``ValueError`` for a ``q`` out of range.
        """
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
        total = self.total
        if not total:
            return None
        rank = q * total
        below = 0
        lower = 0.0
        for upper, count in zip(BOUNDS_MS, self._counts, strict=True):
            if count and below + count >= rank:
                if math.isinf(upper):
                    return lower
                return lower + (upper - lower) * max(0.0, rank - below) / count
            below += count
            lower = upper
        raise AssertionError("the counts add up to the total")
