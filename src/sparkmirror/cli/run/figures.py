"""The figures of one run: written by the run loop, read by the display and by scrapes.

The run loop's thread writes them and the metrics server's threads read them, so a lock guards them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkmirror.cli.run.parts import ControlPart
from sparkmirror.observe.figures.dealing import DealFigures
from sparkmirror.observe.figures.meter import FlowMeter, FlowView
from sparkmirror.observe.figures.queries import QueryFigures
from sparkmirror.observe.figures.throttling import ThrottleFigures
from sparkmirror.observe.metrics.health import REPORT_AGE_S_MAX, FlowHealth, Health, judge
from sparkmirror.settings import FlowSettings, MirrorSettings

if TYPE_CHECKING:  # prometheus_client is loaded only when metrics are served
    from sparkmirror.observe.metrics.exposition import FlowFacts

PHASE_STARTING, PHASE_RUNNING, PHASE_DRAINING = "starting", "running", "draining"
_DRAINED = "drained"
_PAUSED = "paused"
_WAITING = "waiting"
STANDING_BY = "standby"


class Figures:
    """Meters of all enabled flows, and the state of the run."""

    def __init__(
        self, settings: MirrorSettings, *, ticks_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.phase = PHASE_STARTING
        self.drained = False
        """Whether every flow was ordered to drain, by this process or another."""
        self.queries: Mapping[str, QueryFigures] = {}
        """What Spark reports about the queries, by flow."""
        self._ticks_s = ticks_s
        self._began_s = self._beat_s = ticks_s()
        self._lock = threading.Lock()
        self._flows = {flow.name: flow for flow in settings.flows if flow.enabled}
        self._meters = {name: FlowMeter(name) for name in self._flows}
        self._states: dict[str, str] = {}
        self._unreachable: dict[str, str] = {}
        self._standing_by: dict[str, str] = {}
        self._control: ControlPart | None = None

    def beat(self) -> None:
        """Record that the run loop is alive."""
        self._beat_s = self._ticks_s()

    def take(self, control: ControlPart, *, with_ends: bool) -> None:
        """Read the newest reports; ``with_ends``: also end offsets, halts and time to go."""
        with self._lock:
            self._control = control
            for progress in control.take_reports():
                meter = self._meters.get(progress.flow)
                if meter is not None:
                    meter.report(progress)
            for name, meter in self._meters.items():
                if control.drained(name):
                    meter.hand_over()
                    continue
                if not with_ends:
                    continue
                meter.ends(control.end_offsets(name), control.oldest_ms(name))
                assignment = control.assignment(name)
                meter.assign(assignment.sources)
                meter.halts(assignment.halted)
                control.to_go(name, meter.view().to_go_s)
            self._unreachable = {name: control.unreachable_cluster(name) for name in self._flows}
            draining = {name: control.draining(name) for name in self._flows}
            self._states = {
                name: PHASE_DRAINING if draining[name] else _PAUSED
                for name in self._flows
                if draining[name] or control.paused(name)
            }
            waiting = {name: control.standing_by(name) for name in self._flows}
            self._standing_by = {name: told for name, told in waiting.items() if told}
            standing = dict.fromkeys(self._standing_by, STANDING_BY)
            drained = {name: _DRAINED for name in self._flows if control.drained(name)}
            self._states = {**standing, **self._states, **drained}
        self.drained = bool(draining) and all(draining.values())

    def views(self) -> list[FlowView]:
        """The present state of all flows."""
        with self._lock:
            views = {name: meter.view() for name, meter in self._meters.items()}
            return [
                replace(
                    view,
                    state=self._state_text(name, view),
                    source=flow.source.alias,
                    target=flow.target.alias,
                )
                for (name, view), flow in zip(views.items(), self._flows.values(), strict=True)
            ]

    def facts(self) -> list[FlowFacts]:
        """Everything that a scrape exposes."""
        from sparkmirror.observe.metrics.exposition import FlowFacts  # noqa: PLC0415

        with self._lock:
            return [
                FlowFacts(
                    source=flow.source.alias,
                    target=flow.target.alias,
                    group=flow.position_group,
                    mode=flow.mode.value,
                    state=self._state(name),
                    view=self._meters[name].view(),
                    totals=self._meters[name].totals(),
                    remote=self._remote(name),
                    checkpoints={}
                    if self._control is None
                    else self._control.checkpoint_times(name).spreads(),
                    groups=() if self._control is None else self._control.group_rows(name),
                    throttle=ThrottleFigures()
                    if self._control is None
                    else self._control.throttle(name),
                    deals=DealFigures() if self._control is None else self._control.deals(name),
                    query=self.queries.get(name, QueryFigures()),
                    ends_age_s=None if self._control is None else self._control.ends_age_s(name),
                    tables={}
                    if self._control is None
                    else {one.name: (one.rows, one.read_ms) for one in self._control.tables(name)},
                )
                for name, flow in self._flows.items()
            ]

    def health(self) -> Health:
        """Whether the run works, and whether its flows mirror."""
        with self._lock:
            flows = [self._flow_health(name, flow) for name, flow in self._flows.items()]
        now_s = self._ticks_s()
        return judge(
            flows,
            phase=self.phase,
            silent_s=now_s - self._beat_s,
            run_s=now_s - self._began_s,
        )

    def _state(self, name: str) -> str:
        """The flow's state as metrics and `/health` name it."""
        if self.phase != PHASE_RUNNING:
            return self.phase
        away = _WAITING if self._unreachable.get(name) else PHASE_RUNNING
        return self._states.get(name, away)

    def _state_text(self, name: str, view: FlowView) -> str:
        """The flow's state as users read it; whatever keeps it from mirroring has priority."""
        state = self._state(name)
        if state == STANDING_BY:
            return self._standing_by[name]
        if state not in (PHASE_RUNNING, _WAITING):
            return state
        unreachable = self._unreachable.get(name, "")
        silent_s = self._meters[name].silent_s or 0
        if not unreachable and view.partitions_reported and silent_s > REPORT_AGE_S_MAX:
            # Reports come through the target, at least every ten seconds.
            unreachable = f"target {self._flows[name].target.alias}"
        if unreachable:
            return f"waiting for the {unreachable}"
        if not view.partitions:
            return "waiting for a topic"
        if len(view.halted) >= view.partitions:
            return "halted"
        if not view.partitions_reported:
            return PHASE_STARTING
        return "catching up" if view.catching_up else "mirroring"

    def _remote(self, name: str) -> Mapping[str, str]:
        return {} if self._control is None else self._control.assignment(name).remote_topics

    def _flow_health(self, name: str, flow: FlowSettings) -> FlowHealth:
        meter = self._meters[name]
        return FlowHealth(
            flow=flow.name,
            state=self._state(name),
            # A flow that was handed over has none, and does not make this process unready.
            partitions=meter.assigned,
            halted=meter.halted,
            report_age_s=meter.silent_s,
        )
