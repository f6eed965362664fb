"""The control plane of a whole mirror: start-up, then one thread per job."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from sparkmirror.control.coordination.ownership import Ownership
from sparkmirror.control.flow import FlowControl
from sparkmirror.control.flow_jobs import flow_jobs
from sparkmirror.control.flows.tables import TablesPart
from sparkmirror.control.jobs import Job, Jobs, run_once
from sparkmirror.control.topics.heartbeats import HeartbeatJob
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import MirrorError
from sparkmirror.internal_topics.tables import TableState
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.checkpoints import CheckpointTimes, GroupRow
from sparkmirror.observe.figures.dealing import DealFigures
from sparkmirror.observe.figures.throttling import ThrottleFigures
from sparkmirror.observe.notice import Notice
from sparkmirror.progress import SlotProgress
from sparkmirror.settings import ClusterClient, MirrorSettings
from sparkmirror.side_by_side import of_each
from sparkmirror.wire.probe.reach import reach

__all__ = ["ControlLoop"]

log = logging.getLogger(__name__)

_LEADER_CHECK_S = 1.0
_QUICK_ROUND_S = 5.0
_QUICK_ROUNDS = 6
# A broker may start again within minutes. Each round describes all topics, so it must not be soon.
_BROKERS_ROUND_S = 60.0
_LAST_REPORT_S = 0.7
_DRAIN_TIMEOUT_S = 2.0
_STOP_TIMEOUT_S = 3.0
_EVENTS_MAX = 1_000


class ControlLoop:
    """Control plane of all flows of one configuration.

    Call ``prepare``, then ``start``, and ``stop`` at the end. Other methods may be called from any
    thread. ``once``: copy up to the end offsets that ``prepare`` freezes; new topics are not
    discovered. ``run_id`` and ``release`` (our version) identify this run in the control topics.
    ``take_over``: claim the flows even if another process mirrors them. ``key`` signs assignments.
    ``tables`` reads static tables.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        *,
        once: bool,
        run_id: str,
        take_over: bool = False,
        release: str = "",
        key: str = "",
        tables: TablesPart | None = None,
    ) -> None:
        self._once = once
        self._events: list[Notice] = []
        self._events_lock = threading.Lock()
        self._owned: frozenset[str] = frozenset()
        self._owning = threading.Lock()
        self._jobs = Jobs(self._notify, self._flow_of)
        self._flows = {
            flow.name: FlowControl(
                flow,
                run_id,
                partial(self._notify, flow=flow.name),
                once=once,
                take_over=take_over,
                release=release,
                key=key,
                file=settings.file,
                tables=tables,
            )
            for flow in settings.flows
            if flow.enabled
        }
        self._wake = {name: threading.Event() for name in self._flows}
        self._heartbeats = [
            HeartbeatJob(beats, partial(self._notify, flow=beats.name))
            for beats in settings.heartbeats
        ]

    # --- start and stop ---------------------------------------------------------------------

    def prepare(self) -> None:
        """Reach all clusters, create topics, seed positions, publish assignments and run commands.

        Flows are prepared in parallel. Raises the `MirrorError` of the first flow in file order
        that cannot start. An unreachable cluster is reported before anything is changed anywhere.
        """
        of_each(reach, self._clients())
        of_each(FlowControl.prepare, self._flows.values())

    def start(self) -> None:
        """Start the threads. They are daemon threads; `stop` ends them."""
        for flow in self._flows.values():
            if flow.ownership is not None and flow.ownership.stands_by:
                self._jobs.start(self._standby_job(flow, flow.ownership))
            else:
                self._start_flow(flow)
        for beats in self._heartbeats:
            pause_s = partial(float, beats.settings.interval_s)
            self._jobs.start(Job(f"heartbeats-{beats.settings.name}", self._beat(beats), pause_s))

    def _beat(self, beats: HeartbeatJob) -> Callable[[], None]:
        """A function that writes one heartbeat, if this process owns the flow.

        If the file has no such flow, the flow in the opposite direction decides: it mirrors these
        heartbeats. Without either, the heartbeat is always written.
        """
        pair = beats.settings
        back = f"{pair.target.alias}->{pair.source}"
        flow = self._flows.get(pair.name) or self._flows.get(back)
        return beats.beat if flow is None else partial(flow.as_owner, beats.beat)

    def _start_flow(self, flow: FlowControl) -> None:
        """Start the threads of a flow that this process owns."""
        for job in flow_jobs(flow, once=self._once):
            self._jobs.start(job)
        if flow.ownership is not None:
            flow.ownership.reported_elsewhere()
        if not self._once:
            self._jobs.start(self._topics_job(flow))
        with self._owning:
            self._owned |= {flow.name}

    def _standby_job(self, flow: FlowControl, own: Ownership) -> Job:
        """The job of a standby: it waits for the flow, then starts the flow's threads."""
        taken = False

        def turn() -> None:
            nonlocal taken
            taken = flow.wait_turn()
            if taken:
                self._start_flow(flow)

        return Job(
            f"standby-{flow.name}",
            turn,
            lambda: own.check_interval_s,
            over=lambda: taken or flow.draining,
        )

    def drain(self) -> None:
        """Command the slots of all flows to write what they have read and end; at most 2 s.

        A target that does not take the command is reported in `events`. That flow's query then
        ends with the Spark session.
        """
        threads = [
            self._jobs.spawn(f"drain-{name}", partial(self._drain, flow))
            for name, flow in self._flows.items()
        ]
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._notify(f"{thread.name}: the target takes no commands at present")

    def finish(self, *, timeout_s: float) -> None:
        """Write the last checkpoints and group offsets, and report the last gaps.

        Call it when the slots have written all that they had read. Failures and checkpoints that
        take longer than ``timeout_s`` are reported in `events`. No record is lost then: the next
        run continues.
        """
        for flow in self._flows.values():
            flow.end()
        jobs = [
            self._jobs.spawn(f"groups-{name}", partial(self._finish_groups, name, flow))
            for name, flow in self._flows.items()
            if flow.groups is not None and name in self._owned and not flow.over.is_set()
        ]
        gaps = [
            self._jobs.spawn(f"gaps-{name}", partial(self._report_last_gaps, name, flow))
            for name, flow in self._flows.items()
        ]
        deadline = time.monotonic() + timeout_s
        for job in jobs:
            job.join(max(0.0, deadline - time.monotonic()))
            if job.is_alive():
                self._notify(f"{job.name}: the last checkpoints took too long and are left out")
        for job in gaps:
            job.join(max(0.0, deadline - time.monotonic()))

    def note_reason(self, reason: str) -> None:
        """Note why the run is about to end, for the history of its flows."""
        for flow in self._flows.values():
            flow.history.note_reason(reason)

    @property
    def leaving(self) -> frozenset[str]:
        """The flows of this process that are draining and not handed over yet."""
        return frozenset(name for name in self._owned if self._flows[name].leaving)

    def hand_over(self, name: str) -> None:
        """Give flow ``name``, whose slots have drained, to other processes.

        Failures are reported in `events`. If the last report fails, others wait for a session.
        """
        flow = self._flows[name]
        flow.end()
        self._finish_groups(name, flow)
        self._jobs.attempt(f"farewell-{name}", flow.write_last_report, failed_before=False)
        self._notify(f"{name}: drained: another process of this file may mirror it now")

    def _report_last_gaps(self, name: str, flow: FlowControl) -> None:
        self._jobs.attempt(f"gaps-{name}", flow.report_last_gaps, failed_before=False)

    def _finish_groups(self, name: str, flow: FlowControl) -> None:
        if flow.groups is not None:
            finish = partial(flow.as_owner, flow.groups.finish)
            self._jobs.attempt(f"groups-{name}", finish, failed_before=False)

    def stop(self) -> None:
        """End the threads and close the connections; takes at most a few seconds."""
        self._jobs.stopping.set()
        working = list(self._jobs.threads)
        self._write_last_reports()
        for wake in self._wake.values():
            wake.set()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for thread in working:
            thread.join(max(0.0, deadline - time.monotonic()))
        for name, flow in self._flows.items():
            try:
                flow.close()
            except MirrorError as error:
                log.debug("closing %s: %s", name, error)
        for beats in self._heartbeats:
            beats.close()

    def _write_last_reports(self) -> None:
        """Write the last report of each owned flow; wait at most `_LAST_REPORT_S` for all.

        Also if another flow's start has failed: a flow that has begun is claimed, and who stands by
        for it would wait for a session.
        """
        threads = [
            self._jobs.spawn(f"farewell-{name}", partial(self._last_report, flow))
            for name, flow in self._flows.items()
            if (name in self._owned or flow.holds) and not flow.over.is_set()
        ]
        deadline = time.monotonic() + _LAST_REPORT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _last_report(self, flow: FlowControl) -> None:
        try:
            flow.write_last_report()
        except MirrorError as error:
            log.debug("%s: the last report: %s", flow.name, error)

    # --- queries ----------------------------------------------------------------------------

    def refresh(self) -> None:
        """Discover topics and partitions now, and every 5 s for half a minute.

        It repeats because a topic that is being created may not be visible at once.
        """
        for wake in self._wake.values():
            wake.set()

    def assignment(self, flow: str) -> Assignment:
        """What flow ``A->B`` mirrors now, and what is halted."""
        return self._flows[flow].published.assignment()

    def failures(self) -> tuple[MirrorError, ...]:
        """Why flows cannot continue in this process; empty while all can."""
        found = [flow.failure for flow in self._flows.values()]
        return tuple(error for error in found if error is not None)

    @property
    def owned(self) -> frozenset[str]:
        """The flows that this process mirrors; it is a standby for the others."""
        return self._owned

    def standing_by(self, flow: str) -> str:
        """Who mirrors the flow, as text, while this process is a standby; empty if it is not."""
        own = self._flows[flow].ownership
        return "" if own is None else own.standing_by

    def frozen_ends(self, flow: str) -> Mapping[TopicPartition, int] | None:
        """Source end offsets (exclusive) up to which a ``--once`` run copies; else None."""
        return self._flows[flow].published.frozen

    def end_offsets(self, flow: str) -> Mapping[TopicPartition, int]:
        """Newest known source end offsets (exclusive), normally a few seconds old."""
        return self._flows[flow].ends()

    def ends_age_s(self, flow: str) -> float | None:
        """Seconds since the source told the end of each partition; None if none are asked for."""
        control = self._flows[flow]
        idle = control.published.frozen is not None or control.over.is_set()
        return None if idle else control.source_ends.age_s()

    def oldest_ms(self, flow: str) -> Mapping[TopicPartition, int]:
        """Timestamp (ms) of the oldest unmirrored record of each partition that is behind."""
        return self._flows[flow].source_ends.oldest_ms()

    def progress(self) -> tuple[SlotProgress, ...]:
        """Newest report of each slot of each flow."""
        return tuple(report for flow in self._flows.values() for report in flow.slots.progress())

    def take_reports(self) -> tuple[SlotProgress, ...]:
        """The reports since the last call, of each task of a slot the newest, as they came."""
        return tuple(report for flow in self._flows.values() for report in flow.slots.take())

    def to_go(self, flow: str, seconds: float | None) -> None:
        """Set the seconds that ``flow`` needs to catch up, for its next report; None: unknown."""
        self._flows[flow].reports.to_go_s = seconds

    def paused(self, flow: str) -> bool:
        """Whether the flow is paused."""
        return self._flows[flow].slots.paused

    def throttle(self, flow: str) -> ThrottleFigures:
        """What the flow's limits do."""
        return self._flows[flow].throttling.figures()

    def deals(self, flow: str) -> DealFigures:
        """What deals of the flow's partitions have done."""
        return self._flows[flow].dealing.figures()

    def tables(self, flow: str) -> tuple[TableState, ...]:
        """The static tables of the flow's transforms."""
        return self._flows[flow].tables.states()

    def draining(self, flow: str) -> bool:
        """Whether the flow's slots were commanded to drain, by this process or another."""
        return self._flows[flow].draining

    def drained(self, flow: str) -> bool:
        """Whether the flow has been handed over."""
        return self._flows[flow].over.is_set()

    def checkpoint_times(self, flow: str) -> CheckpointTimes:
        """Durations of the flow's checkpoint rounds."""
        return self._flows[flow].checkpoint_times

    def group_rows(self, flow: str) -> tuple[GroupRow, ...]:
        """Lag of the consumer groups of the flow's source."""
        return self._flows[flow].group_rows

    def unreachable_cluster(self, flow: str) -> str:
        """The flow's cluster that is unreachable now, as ``target B``; empty if none."""
        settings = self._flows[flow].settings
        if self._jobs.unreachable & {f"progress-{flow}", f"report-{flow}"}:
            return f"target {settings.target.alias}"
        return f"source {settings.source.alias}" if f"ends-{flow}" in self._jobs.unreachable else ""

    def events(self) -> list[Notice]:
        """One-line notices since the last call, oldest first."""
        with self._events_lock:
            events, self._events = self._events, []
        return events

    # --- threads ----------------------------------------------------------------------------

    def _notify(
        self,
        line: str,
        *,
        flow: str = "",
        level: str = "info",
        code: str = "",
        cluster: str = "",
    ) -> None:
        log.info("%s", line)
        notice = Notice(line, level=level, code=code, flow=flow, cluster=cluster)
        with self._events_lock:
            self._events.append(notice)
            del self._events[:-_EVENTS_MAX]

    def _flow_of(self, job: str) -> str:
        """The flow at the end of a job's name; empty if there is none."""
        return next((name for name in self._flows if job.endswith(f"-{name}")), "")

    def _topics_job(self, flow: FlowControl) -> Job:
        """The job that discovers topics at the refresh interval.

        More often after `refresh`, while the target refuses topics for the moment, and while it has
        too few brokers for one. Without a refresh interval, only `refresh` takes up new topics.
        """
        topics, wake = flow.settings.topics, self._wake[flow.name]
        interval_s = float(topics.refresh_interval_s) if topics.refresh_enabled else None
        quick_rounds = 0

        def wait(failing: bool) -> None:
            nonlocal quick_rounds
            soon = quick_rounds or failing or flow.topics.unsettled
            pause_s = _QUICK_ROUND_S if soon else interval_s
            if flow.topics.lacks_brokers and (pause_s is None or pause_s > _BROKERS_ROUND_S):
                pause_s = _BROKERS_ROUND_S
            asked = self._await_round(flow, pause_s)
            wake.clear()
            refreshes = topics.refresh_enabled or asked or quick_rounds > 0
            flow.topics.fresh = refreshes or (failing and flow.topics.fresh)
            quick_rounds = _QUICK_ROUNDS if asked else max(0, quick_rounds - 1)

        return Job(
            f"topics-{flow.name}",
            partial(flow.as_owner, partial(run_once, flow.topics)),
            wait=wait,
            waits_first=True,
            timed=True,
        )

    def _await_round(self, flow: FlowControl, pause_s: float | None) -> bool:
        """Wait until the next round is due or requested; True if it was requested.

        Meanwhile partitions that had no leader begin as soon as they have one.
        """
        due_s = None if pause_s is None else time.monotonic() + pause_s
        wake, failing = self._wake[flow.name], False
        while flow.topics.has_leaderless and not self._jobs.stopping.is_set():
            left_s = _LEADER_CHECK_S if due_s is None else due_s - time.monotonic()
            if wake.wait(min(_LEADER_CHECK_S, max(0.0, left_s))):
                return True
            if due_s is not None and time.monotonic() >= due_s:
                return False
            begin = partial(flow.as_owner, flow.topics.begin_leaderless)
            failing = not self._jobs.attempt(
                f"first-positions-{flow.name}", begin, failed_before=failing
            )
        return wake.wait(None if due_s is None else max(0.0, due_s - time.monotonic()))

    def _drain(self, flow: FlowControl) -> None:
        self._jobs.attempt(f"drain-{flow.name}", flow.drain, failed_before=False)

    def _clients(self) -> list[ClusterClient]:
        """One client per cluster and bootstrap list: the start-up check reaches each once."""
        clients: dict[tuple[str, tuple[str, ...]], ClusterClient] = {}
        for flow in self._flows.values():
            settings = flow.settings
            roles = (settings.source, settings.target, settings.source_admin, settings.target_admin)
            for client in roles:
                clients.setdefault((client.alias, client.bootstrap_servers), client)
        return list(clients.values())
