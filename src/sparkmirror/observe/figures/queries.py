"""What Spark reports about a flow's streaming query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["QueryFigures"]


@dataclass(frozen=True, slots=True)
class QueryFigures:
    """One query. ``epochs``: how many it has completed; ``restarts``: how often it was restarted.

    Of the last completed epoch: ``rows_s``, rows per second (responses of brokers, and records that
    a transform processes), and ``phase_ms``, its duration by phase, in ms and with Spark's names.
    """

    epochs: int = 0
    restarts: int = 0
    rows_s: float = 0.0
    phase_ms: Mapping[str, int] = field(default_factory=dict)
