"""The control plane of a whole mirror: start-up in order, then threads that keep it current."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sparkmirror.control.coordination.ownership import Ownership
from sparkmirror.control.flow import FlowControl
from sparkmirror.control.jobs import Job, Jobs, run_once
from sparkmirror.control.topics.heartbeats import HeartbeatJob
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import MirrorError
from sparkmirror.model import ClusterClient, MirrorSettings, SlotProgress, TopicPartition
from sparkmirror.observe.figures.checkpoints import CheckpointTimes, GroupRow
from sparkmirror.observe.notice import Notice
from sparkmirror.wire.probe.reach import reach

__all__ = ["ControlLoop"]

T = TypeVar("T")

log = logging.getLogger(__name__)

_LEADER_LOOK_S = 1.0
_QUICK_LOOK_S = 5.0
_QUICK_LOOKS = 6
_LAST_REPORT_S = 0.7
_DRAIN_TIMEOUT_S = 2.0
_STOP_TIMEOUT_S = 3.0
_EVENTS_MAX = 1_000


class ControlLoop:
    """Control plane of all flows of one configuration.

    ``prepare``, then ``start``, at the end ``stop``; the rest may be called from any thread.
    ``once``: copy up to the end offsets frozen by ``prepare``; topics are not looked for again.
    ``run_id`` names this run in the control topics, ``release`` is our version there.
    ``take_over``: take the flows from whoever mirrors them.
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
    ) -> None:
        self._once = once
        self._events: list[Notice] = []
        self._events_lock = threading.Lock()
        self._owned: frozenset[str] = frozenset()
        self._owning = threading.Lock()
        self._jobs = Jobs(self._say, self._flow_of)
        self._flows = {
            flow.name: FlowControl(
                flow,
                run_id,
                partial(self._say, flow=flow.name),
                once=once,
                take_over=take_over,
                release=release,
                key=key,
                file=settings.file,
            )
            for flow in settings.flows
            if flow.enabled
        }
        self._wake = {name: threading.Event() for name in self._flows}
        self._heartbeats = [
            HeartbeatJob(beats, partial(self._say, flow=beats.name))
            for beats in settings.heartbeats
        ]

    # --- start and stop ---------------------------------------------------------------------

    def prepare(self) -> None:
        """Reach all clusters, make topics, seed positions, publish assignments and run commands.

        Flows are prepared side by side. Raises `MirrorError`, of the first flow in file order
        that cannot start; an unreachable cluster before anything is changed anywhere.
        """
        _in_parallel(reach, self._clients())
        _in_parallel(FlowControl.prepare, list(self._flows.values()))

    def start(self) -> None:
        """Start the threads; they are daemons and end with `stop`."""
        for flow in self._flows.values():
            if flow.ownership is not None and flow.ownership.stands_by:
                self._jobs.start(self._standby_job(flow, flow.ownership))
            else:
                self._start_flow(flow)
        for beats in self._heartbeats:
            pause_s = partial(float, beats.settings.interval_s)
            self._jobs.start(Job(f"heartbeats-{beats.settings.name}", self._beat(beats), pause_s))

    def _beat(self, beats: HeartbeatJob) -> Callable[[], None]:
        """What writes one heartbeat: of several processes only the one that has the flow.

        Where no flow goes there, the flow that comes back decides, which mirrors these heartbeats.
        """
        pair = beats.settings
        back = f"{pair.target.alias}->{pair.source}"
        flow = self._flows.get(pair.name) or self._flows.get(back)
        return beats.beat if flow is None else partial(flow.as_owner, beats.beat)

    def _start_flow(self, flow: FlowControl) -> None:
        """Start the threads of a flow that is ours."""
        for job in flow.jobs():
            self._jobs.start(job)
        if flow.ownership is not None:
            flow.ownership.reported_elsewhere()
        if not self._once:
            self._jobs.start(self._topics_job(flow))
        with self._owning:
            self._owned |= {flow.name}

    def _standby_job(self, flow: FlowControl, own: Ownership) -> Job:
        """Look until the flow is ours, then start its threads."""
        taken = False

        def turn() -> None:
            nonlocal taken
            taken = flow.wait_turn()
            if taken:
                self._start_flow(flow)

        return Job(
            f"standby-{flow.name}",
            turn,
            lambda: own.look_interval_s,
            over=lambda: taken or flow.draining,
        )

    def drain(self) -> None:
        """Tell the slots of all flows to write what they have and end; at most two seconds.

        A flow whose target does not take the command is told in `events`: its query then ends
        with the end of the Spark session.
        """
        threads = [
            self._jobs.spawn(f"drain-{name}", partial(self._drain, flow))
            for name, flow in self._flows.items()
        ]
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._say(f"{thread.name}: the target takes no commands at present")

    def finish(self, *, timeout_s: float) -> None:
        """The last checkpoints, group offsets and gaps, once the slots have written all they had.

        What fails, or takes longer, is told in `events`: the records are all there, and the next
        run goes on.
        """
        for flow in self._flows.values():
            flow.end()
        jobs = [
            self._jobs.spawn(f"groups-{name}", partial(self._finish_groups, name, flow))
            for name, flow in self._flows.items()
            if flow.groups is not None and name in self._owned and not flow.over.is_set()
        ]
        gaps = [
            self._jobs.spawn(f"gaps-{name}", partial(self._tell_last_gaps, name, flow))
            for name, flow in self._flows.items()
        ]
        deadline = time.monotonic() + timeout_s
        for job in jobs:
            job.join(max(0.0, deadline - time.monotonic()))
            if job.is_alive():
                self._say(f"{job.name}: the last checkpoints took too long and are left out")
        for job in gaps:
            job.join(max(0.0, deadline - time.monotonic()))

    def because(self, reason: str) -> None:
        """Why the run is about to end, for the history of its flows."""
        for flow in self._flows.values():
            flow.history.because(reason)

    @property
    def leaving(self) -> frozenset[str]:
        """The flows of this process that were told to finish and are still its own."""
        return frozenset(name for name in self._owned if self._flows[name].leaving)

    def hand_over(self, name: str) -> None:
        """The slots of ``name``, which was told to finish, have: another process may have it.

        What fails is told in `events`: then others wait for as long as the session.
        """
        flow = self._flows[name]
        flow.end()
        self._finish_groups(name, flow)
        self._jobs.attempt(f"farewell-{name}", flow.farewell, told=False)
        self._say(f"{name}: drained: another process of this file may mirror it now")

    def _tell_last_gaps(self, name: str, flow: FlowControl) -> None:
        self._jobs.attempt(f"gaps-{name}", flow.tell_last_gaps, told=False)

    def _finish_groups(self, name: str, flow: FlowControl) -> None:
        if flow.groups is not None:
            finish = partial(flow.as_owner, flow.groups.finish)
            self._jobs.attempt(f"groups-{name}", finish, told=False)

    def stop(self) -> None:
        """End the threads and close the connections; takes a few seconds at most."""
        self._jobs.stopping.set()
        working = list(self._jobs.threads)
        self._say_farewell()
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

    def _say_farewell(self) -> None:
        """A last report of each flow that had begun, if the target takes it without delay."""
        if not self._jobs.threads:
            return
        threads = [
            self._jobs.spawn(f"farewell-{name}", partial(self._last_report, flow))
            for name, flow in self._flows.items()
            if name in self._owned and not flow.over.is_set()
        ]
        deadline = time.monotonic() + _LAST_REPORT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _last_report(self, flow: FlowControl) -> None:
        try:
            flow.farewell()
        except MirrorError as error:
            log.debug("%s: the last report: %s", flow.name, error)

    # --- what others ask --------------------------------------------------------------------

    def refresh(self) -> None:
        """Look for new topics and partitions now, and every five seconds for half a minute.

        Several looks, because a topic that is being created may not show at once.
        """
        for wake in self._wake.values():
            wake.set()

    def assignment(self, flow: str) -> Assignment:
        """What flow ``A->B`` mirrors at present, and what is halted."""
        return self._flows[flow].published.assignment()

    def failures(self) -> tuple[MirrorError, ...]:
        """Why flows can never go on; empty while all can."""
        found = [flow.failure for flow in self._flows.values()]
        return tuple(error for error in found if error is not None)

    @property
    def owned(self) -> frozenset[str]:
        """The flows that this process mirrors; of the others it stands by."""
        return self._owned

    def standing_by(self, flow: str) -> str:
        """Who mirrors the flow while this process stands by; empty when it is its own."""
        own = self._flows[flow].ownership
        return "" if own is None else own.standing_by

    def frozen_ends(self, flow: str) -> Mapping[TopicPartition, int] | None:
        """Source end offsets (exclusive) that a ``--once`` run copies up to, else None."""
        return self._flows[flow].published.frozen

    def end_offsets(self, flow: str) -> Mapping[TopicPartition, int]:
        """Newest known source end offsets (exclusive), at most a few seconds old."""
        return self._flows[flow].ends()

    def oldest_ms(self, flow: str) -> Mapping[TopicPartition, int]:
        """Timestamp of the oldest record that is not at the target, of partitions behind."""
        return self._flows[flow].source_ends.oldest_ms()

    def progress(self) -> tuple[SlotProgress, ...]:
        """Newest report of each slot of each flow."""
        return tuple(report for flow in self._flows.values() for report in flow.slots.progress())

    def to_go(self, flow: str, seconds: float | None) -> None:
        """How long ``flow`` still needs to catch up, for its next report; None: not known."""
        self._flows[flow].to_go_s = seconds

    def paused(self, flow: str) -> bool:
        """Whether somebody paused the flow."""
        return self._flows[flow].slots.paused

    def draining(self, flow: str) -> bool:
        """Whether the flow's slots were told to finish, by this process or another."""
        return self._flows[flow].draining

    def drained(self, flow: str) -> bool:
        """Whether the flow has been handed over."""
        return self._flows[flow].over.is_set()

    def checkpoint_times(self, flow: str) -> CheckpointTimes:
        """How long the flow's checkpoints take."""
        return self._flows[flow].checkpoint_times

    def group_rows(self, flow: str) -> tuple[GroupRow, ...]:
        """How far the consumer groups of the flow's source are behind."""
        return self._flows[flow].group_rows

    def away(self, flow: str) -> str:
        """The cluster of the flow that cannot be reached at present, as ``target B``; or empty."""
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

    def _say(
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
        """The flow that a job is named after."""
        return next((name for name in self._flows if job.endswith(f"-{name}")), "")

    def _topics_job(self, flow: FlowControl) -> Job:
        """Look for topics at the refresh interval; sooner and more often after `refresh`."""
        topics, wake = flow.settings.topics, self._wake[flow.name]
        interval_s = float(topics.refresh_interval_s) if topics.refresh_enabled else None
        quick_looks = 0

        def wait(failing: bool) -> None:
            nonlocal quick_looks
            asked = self._await_look(flow, _QUICK_LOOK_S if quick_looks or failing else interval_s)
            wake.clear()
            quick_looks = _QUICK_LOOKS if asked else max(0, quick_looks - 1)

        return Job(
            f"topics-{flow.name}",
            partial(flow.as_owner, partial(run_once, flow.topics)),
            wait=wait,
            waits_first=True,
            timed=True,
        )

    def _await_look(self, flow: FlowControl, pause_s: float | None) -> bool:
        """Wait until the next look is due, or asked for; whether it was.

        Meanwhile partitions without a leader begin when they have one.
        """
        due_s = None if pause_s is None else time.monotonic() + pause_s
        wake, failing = self._wake[flow.name], False
        while flow.topics.has_leaderless and not self._jobs.stopping.is_set():
            left_s = _LEADER_LOOK_S if due_s is None else due_s - time.monotonic()
            if wake.wait(min(_LEADER_LOOK_S, max(0.0, left_s))):
                return True
            if due_s is not None and time.monotonic() >= due_s:
                return False
            begin = partial(flow.as_owner, flow.topics.begin_leaderless)
            failing = not self._jobs.attempt(f"beginnings-{flow.name}", begin, told=failing)
        return wake.wait(None if due_s is None else max(0.0, due_s - time.monotonic()))

    def _drain(self, flow: FlowControl) -> None:
        self._jobs.attempt(f"drain-{flow.name}", flow.drain, told=False)

    def _clients(self) -> list[ClusterClient]:
        """One client per cluster and bootstrap list: reaching it twice would tell nothing new."""
        clients: dict[tuple[str, tuple[str, ...]], ClusterClient] = {}
        for flow in self._flows.values():
            settings = flow.settings
            roles = (settings.source, settings.target, settings.source_admin, settings.target_admin)
            for client in roles:
                clients.setdefault((client.alias, client.bootstrap_servers), client)
        return list(clients.values())


def _in_parallel(job: Callable[[T], object], items: Sequence[T]) -> None:
    """Run ``job`` on all items at once; raises the error of the first item that failed."""
    if not items:
        return
    with ThreadPoolExecutor(max_workers=min(16, len(items))) as pool:
        futures = [pool.submit(job, item) for item in items]
    for future in futures:
        future.result()
