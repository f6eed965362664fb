"""What deals of partitions to slots have done, for metrics."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DealFigures"]


@dataclass(frozen=True, slots=True)
class DealFigures:
    """``weights``: of each slot, in bytes per second (`internal_topics.deals.load`).

    ``moved``: how many partitions this run has dealt to another slot.
    """

    weights: tuple[int, ...] = ()
    moved: int = 0
