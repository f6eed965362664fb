"""How old records are when they pass, from batch headers alone: no record is decoded."""

from __future__ import annotations

from collections.abc import Iterable

from sparkmirror.observe.figures.samples import Samples, steady_ms
from sparkmirror.records.header import Passing

__all__ = ["note_ages", "oldest_ms"]


def oldest_ms(batches: Iterable[Passing], newest_ms: int) -> int:
    """The smallest timestamp of the batches' first records, at most ``newest_ms``."""
    oldest = newest_ms
    for _, _, first_ms, _ in batches:
        if 0 <= first_ms < oldest:
            oldest = first_ms
    return oldest


def note_ages(
    samples: Samples, now_ms: float, newest_ms: int, oldest_ms: int, records: int
) -> None:
    """Note ``records`` whose timestamps are between the two. If clocks differ, an age is 0."""
    low, high = max(0.0, now_ms - newest_ms), max(0.0, now_ms - oldest_ms)
    samples.add(steady_ms(), low, high, max(1, records))
