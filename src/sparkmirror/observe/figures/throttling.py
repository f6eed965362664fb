"""What limits on a flow's reading have done, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ThrottleFigures"]


@dataclass(frozen=True, slots=True)
class ThrottleFigures:
    """The limits of one flow. ``limits``: bytes per second that apply now, by regex of topics.

    An empty regex stands for the whole flow. ``current_wait_s``, ``backfill_wait_s``: for how long
    the slots of this run delayed requests, summed over slots.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    current_wait_s: float = 0.0
    backfill_wait_s: float = 0.0
