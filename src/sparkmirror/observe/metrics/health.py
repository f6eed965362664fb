"""Decides whether a run is live and ready, as a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

__all__ = ["REPORT_AGE_S_MAX", "FlowHealth", "Health", "judge"]

SILENT_S_MAX = 60.0
REPORT_AGE_S_MAX = 30.0
"""Slots report at least every 10 s; after this long without a report, the flow is not mirrored."""


@dataclass(frozen=True, slots=True)
class FlowHealth:
    """One flow. ``report_age_s``: seconds since a slot's report came in; None if none has."""

    flow: str
    state: str
    partitions: int
    halted: int
    report_age_s: float | None


@dataclass(frozen=True, slots=True)
class Health:
    """``live``: the process works. ``ready``: its flows are mirrored. ``details``: the reasons."""

    live: bool
    ready: bool
    details: Mapping[str, object] = field(default_factory=dict)


def judge(flows: Sequence[FlowHealth], *, phase: str, silent_s: float, run_s: float) -> Health:
    """The health of a run.

    It is live while the run loop runs, and ready while every flow reports or has no partitions.
    Halted partitions do not make it unready: the others continue, and a restart would not help.
    """
    ready = phase == "running" and all(map(_mirrors, flows))
    rows = [{**asdict(flow), "ready": _mirrors(flow)} for flow in flows]
    return Health(
        live=silent_s <= SILENT_S_MAX,
        ready=ready,
        details={"phase": phase, "run_s": round(run_s, 1), "flows": rows},
    )


def _mirrors(flow: FlowHealth) -> bool:
    if not flow.partitions:
        return True
    return flow.report_age_s is not None and flow.report_age_s <= REPORT_AGE_S_MAX
