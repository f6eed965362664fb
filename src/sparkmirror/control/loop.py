"""The control plane of a whole mirror: start-up in order, then threads that keep it current."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sparkmirror.control.coordination.ownership import Ownership
from sparkmirror.control.flow import FlowControl, SyncJob
from sparkmirror.control.groups.job import GroupsJob
from sparkmirror.control.topics.heartbeats import HeartbeatJob
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import MirrorError, Unreachable
from sparkmirror.model import ClusterClient, MirrorSettings, SlotProgress, TopicPartition
from sparkmirror.observe.figures.checkpoints import CheckpointTimes, GroupRow
from sparkmirror.observe.notice import Notice, named_places
from sparkmirror.wire.probe.reach import reach

__all__ = ["ControlLoop"]

T = TypeVar("T")

log = logging.getLogger(__name__)

_ENDS_INTERVAL_S = 2.0
_ENDS_PARTITIONS_PER_S = (
    1_000  # asking costs about 50 µs a partition; keep that below 5 % of a core
)
_LEADER_LOOK_S = 1.0
_QUICK_LOOK_S = 5.0
_QUICK_LOOKS = 6
_FAILURE_PAUSE_S = 5.0
_SYNC_FAILURE_PAUSE_S = 60.0
_REPORT_INTERVAL_S = 10.0
_HISTORY_INTERVAL_S = 1.0
_LAST_REPORT_S = 0.7
_DRAIN_TIMEOUT_S = 2.0
_STOP_TIMEOUT_S = 3.0
_EVENTS_MAX = 1_000
_REASONS_MAX = 10
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


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
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._events: list[Notice] = []
        self._events_lock = threading.Lock()
        self._reasons: dict[str, set[str]] = {}
        self._owned: frozenset[str] = frozenset()
        self._owning = threading.Lock()
        self._unreachable: set[str] = set()
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
        for name, flow in self._flows.items():
            if flow.ownership is not None and flow.ownership.stands_by:
                self._spawn(f"standby-{name}", partial(self._stand_by, flow, flow.ownership))
            else:
                self._start_flow(flow)
        for beats in self._heartbeats:
            interval_s = partial(float, beats.settings.interval_s)
            self._run(f"heartbeats-{beats.settings.name}", self._beat(beats), interval_s)

    def _beat(self, beats: HeartbeatJob) -> Callable[[], None]:
        """What writes one heartbeat: of several processes only the one that has the flow.

        Where no flow goes there, the flow that comes back decides, which mirrors these heartbeats.
        """
        pair = beats.settings
        back = f"{pair.target.alias}->{pair.source}"
        flow = self._flows.get(pair.name) or self._flows.get(back)
        return beats.beat if flow is None else partial(_as_owner, flow, beats.beat)

    def _start_flow(self, flow: FlowControl) -> None:
        """Start the threads of a flow that is ours."""
        name, own = flow.name, flow.ownership
        mine, run = partial(partial, _as_owner, flow), partial(self._run, over=flow.over)
        run(f"ends-{name}", flow.look_at_ends, partial(_ends_interval_s, flow))
        # The look itself waits for records, so there is no pause between two of them.
        reader = flow.look_at_progress
        run(f"progress-{name}", reader, lambda: 0.0, after_failure=flow.forget_reader)
        run(f"orders-{name}", flow.orders.look, lambda: 0.0, after_failure=flow.forget_orders)
        if flow.share is not None:
            run(f"group-{name}", flow.share.step, lambda: 0.0)
        report_interval_s = _REPORT_INTERVAL_S
        if own is not None:
            run(f"claims-{name}", own.watch, lambda: own.look_interval_s)
            report_interval_s = min(report_interval_s, own.report_interval_s)
        run(f"report-{name}", mine(flow.report), lambda: report_interval_s)
        run(f"history-{name}", mine(flow.history.flush), lambda: _HISTORY_INTERVAL_S)
        if own is not None:
            own.reported_elsewhere()
        if not self._once:
            self._spawn(f"topics-{name}", partial(self._follow_topics, flow))
            if flow.groups is not None:
                groups = flow.groups
                run(f"groups-{name}", mine(groups.tick), partial(_pause_s, groups))
                run(f"group-lags-{name}", groups.lags.step, lambda: 0.0)
        for job in flow.sync_jobs():
            self._sync(f"{job.name}-{name}", job._replace(round=mine(job.round)))
        with self._owning:
            self._owned |= {name}

    def _stand_by(self, flow: FlowControl, own: Ownership) -> None:
        """Look until the flow is ours, then start its threads."""
        name, failing, taken = f"standby-{flow.name}", False, False

        def turn() -> None:
            nonlocal taken
            taken = flow.wait_turn()

        while not self._stopping.is_set() and not flow.draining:
            failing = not self._attempt(name, turn, told=failing)
            if taken:
                self._start_flow(flow)
                return
            self._stopping.wait(_FAILURE_PAUSE_S if failing else own.look_interval_s)

    def drain(self) -> None:
        """Tell the slots of all flows to write what they have and end; at most two seconds.

        A flow whose target does not take the command is told in `events`: its query then ends
        with the end of the Spark session.
        """
        threads = [
            self._spawn(f"drain-{name}", partial(self._drain, flow))
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
            self._spawn(f"groups-{name}", partial(self._finish_groups, name, flow))
            for name, flow in self._flows.items()
            if flow.groups is not None and name in self._owned and not flow.over.is_set()
        ]
        gaps = [
            self._spawn(f"gaps-{name}", partial(self._tell_last_gaps, name, flow))
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
        self._attempt(f"farewell-{name}", flow.farewell, told=False)
        self._say(f"{name}: drained: another process of this file may mirror it now")

    def _tell_last_gaps(self, name: str, flow: FlowControl) -> None:
        self._attempt(f"gaps-{name}", flow.tell_last_gaps, told=False)

    def _finish_groups(self, name: str, flow: FlowControl) -> None:
        if flow.groups is not None:
            finish = partial(_as_owner, flow, flow.groups.finish)
            self._attempt(f"groups-{name}", finish, told=False)

    def stop(self) -> None:
        """End the threads and close the connections; takes a few seconds at most."""
        self._stopping.set()
        working = list(self._threads)
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
        if not self._threads:
            return
        threads = [
            self._spawn(f"farewell-{name}", partial(self._last_report, flow))
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
        return self._flows[flow].assignment()

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
        return self._flows[flow].frozen_ends()

    def end_offsets(self, flow: str) -> Mapping[TopicPartition, int]:
        """Newest known source end offsets (exclusive), at most a few seconds old."""
        return self._flows[flow].ends()

    def oldest_ms(self, flow: str) -> Mapping[TopicPartition, int]:
        """Timestamp of the oldest record that is not at the target, of partitions behind."""
        return self._flows[flow].oldest_ms()

    def progress(self) -> tuple[SlotProgress, ...]:
        """Newest report of each slot of each flow."""
        return tuple(report for flow in self._flows.values() for report in flow.progress())

    def to_go(self, flow: str, seconds: float | None) -> None:
        """How long ``flow`` still needs to catch up, for its next report; None: not known."""
        self._flows[flow].to_go_s = seconds

    def paused(self, flow: str) -> bool:
        """Whether somebody paused the flow."""
        return self._flows[flow].paused

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
        if self._unreachable & {f"progress-{flow}", f"report-{flow}"}:
            return f"target {settings.target.alias}"
        return f"source {settings.source.alias}" if f"ends-{flow}" in self._unreachable else ""

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

    def _spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=body, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _run(
        self,
        name: str,
        job: Callable[[], None],
        interval_s: Callable[[], float],
        *,
        after_failure: Callable[[], None] | None = None,
        over: threading.Event | None = None,
    ) -> None:
        """Run ``job`` over and over on a thread, with ``interval_s()`` between two runs.

        It ends with `stop`, or when ``over`` is set.
        """

        def body() -> None:
            failing = False
            while not (self._stopping.is_set() or (over is not None and over.is_set())):
                failing = not self._attempt(name, job, after_failure, told=failing)
                self._stopping.wait(_FAILURE_PAUSE_S if failing else interval_s())

        self._spawn(name, body)

    def _sync(self, name: str, job: SyncJob) -> None:
        """Run ``job`` now and at its interval; once in a ``--once`` run.

        A round that fails waits for the next one, but a minute at most.
        """

        def body() -> None:
            failing = False
            while not self._stopping.is_set():
                failing = not self._attempt(name, partial(_timed, name, job.round), told=failing)
                if self._once and not failing:
                    return
                pause_s = min(job.interval_s, _SYNC_FAILURE_PAUSE_S) if failing else job.interval_s
                self._stopping.wait(pause_s)

        self._spawn(name, body)

    def _attempt(
        self,
        name: str,
        job: Callable[[], object],
        after_failure: Callable[[], None] | None = None,
        *,
        told: bool,
    ) -> bool:
        """Run a job once; whether it went well.

        In a row of failures each reason is told once, then there is silence until it works again.
        """
        error: Exception
        try:
            job()
        except MirrorError as known:
            error = known
        except Exception as unknown:
            # A thread must outlive whatever happens in it; this is a defect, so keep its trace.
            log.exception("%s", name)
            error = unknown
        else:
            self._unreachable.discard(name)
            if told:
                self._say(f"{name}: works again", flow=self._flow_of(name))
            return True
        if isinstance(error, Unreachable):
            self._unreachable.add(name)
        else:
            self._unreachable.discard(name)
        reasons = self._reasons.setdefault(name, set())
        if not told:
            reasons.clear()
        reason = _NUMBERS.sub("", str(error))  # times and sizes make no other reason
        if not self._stopping.is_set() and reason not in reasons and len(reasons) < _REASONS_MAX:
            reasons.add(reason)
            expected = error if isinstance(error, MirrorError) else MirrorError(str(error))
            self._say(
                f"{name}: {error}",
                flow=self._flow_of(name),
                level="warning",
                code=expected.code,
                cluster=named_places(expected.where)[1],
            )
        if after_failure is not None:
            after_failure()
        return False

    def _flow_of(self, job: str) -> str:
        """The flow that a job is named after."""
        return next((name for name in self._flows if job.endswith(f"-{name}")), "")

    def _follow_topics(self, flow: FlowControl) -> None:
        """Discover at the refresh interval; sooner and more often after `refresh`."""
        topics, wake = flow.settings.topics, self._wake[flow.name]
        interval_s = float(topics.refresh_interval_s) if topics.refresh_enabled else None
        quick_looks, failing = 0, False
        while True:
            pause_s = _QUICK_LOOK_S if quick_looks or failing else interval_s
            asked = self._await_look(flow, wake, pause_s)
            wake.clear()
            if self._stopping.is_set():
                return
            quick_looks = _QUICK_LOOKS if asked else max(0, quick_looks - 1)
            name = f"topics-{flow.name}"
            look = partial(_as_owner, flow, flow.discover)
            failing = not self._attempt(name, partial(_timed, name, look), told=failing)

    def _await_look(self, flow: FlowControl, wake: threading.Event, pause_s: float | None) -> bool:
        """Wait until the next look is due, or asked for; whether it was.

        Meanwhile partitions without a leader begin when they have one.
        """
        due_s = None if pause_s is None else time.monotonic() + pause_s
        failing = False
        while flow.has_leaderless and not self._stopping.is_set():
            left_s = _LEADER_LOOK_S if due_s is None else due_s - time.monotonic()
            if wake.wait(min(_LEADER_LOOK_S, max(0.0, left_s))):
                return True
            if due_s is not None and time.monotonic() >= due_s:
                return False
            begin = partial(_as_owner, flow, flow.begin_leaderless)
            failing = not self._attempt(f"beginnings-{flow.name}", begin, told=failing)
        return wake.wait(None if due_s is None else max(0.0, due_s - time.monotonic()))

    def _drain(self, flow: FlowControl) -> None:
        self._attempt(f"drain-{flow.name}", flow.drain, told=False)

    def _clients(self) -> list[ClusterClient]:
        """One client per cluster and bootstrap list: reaching it twice would tell nothing new."""
        clients: dict[tuple[str, tuple[str, ...]], ClusterClient] = {}
        for flow in self._flows.values():
            settings = flow.settings
            roles = (settings.source, settings.target, settings.source_admin, settings.target_admin)
            for client in roles:
                clients.setdefault((client.alias, client.bootstrap_servers), client)
        return list(clients.values())


def _ends_interval_s(flow: FlowControl) -> float:
    return max(_ENDS_INTERVAL_S, len(flow.assignment().partitions) / _ENDS_PARTITIONS_PER_S)


def _as_owner(flow: FlowControl, job: Callable[[], object]) -> None:
    """Do ``job`` only while the flow certainly is ours."""
    if flow.ownership is None:
        job()
    elif not flow.over.is_set():
        flow.ownership.as_owner(job)


def _pause_s(groups: GroupsJob) -> float:
    return groups.pause_s


def _timed(name: str, job: Callable[[], object]) -> None:
    """Run one round of a job that compares all topics, and log how long that took."""
    began = time.monotonic()
    job()
    log.info("%s: a round took %.0f ms", name, (time.monotonic() - began) * 1000)


def _in_parallel(job: Callable[[T], object], items: Sequence[T]) -> None:
    """Run ``job`` on all items at once; raises the error of the first item that failed."""
    if not items:
        return
    with ThreadPoolExecutor(max_workers=min(16, len(items))) as pool:
        futures = [pool.submit(job, item) for item in items]
    for future in futures:
        future.result()
