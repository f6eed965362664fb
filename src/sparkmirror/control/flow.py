"""The control plane of one flow: start-up, drain and last report.

`flow_jobs` has its jobs, and `ControlLoop` owns the threads.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from sparkmirror.control.coordination.control_topic import ControlTopicWriter
from sparkmirror.control.coordination.orders import OrderFollower
from sparkmirror.control.coordination.ownership import Ownership
from sparkmirror.control.coordination.status import forget_ended_runs
from sparkmirror.control.flows.clusters import FlowClusters
from sparkmirror.control.flows.dealing import Dealing
from sparkmirror.control.flows.driver_reports import DriverReports
from sparkmirror.control.flows.moving import Moving
from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.flows.renewal import Renewal
from sparkmirror.control.flows.slot_reports import SlotReports
from sparkmirror.control.flows.source_ends import SourceEnds
from sparkmirror.control.flows.tables import NoTables, Tables, TablesPart
from sparkmirror.control.flows.throttling import Throttling
from sparkmirror.control.flows.topics_job import TopicsJob
from sparkmirror.control.groups.job import GroupsJob, create_offset_topics
from sparkmirror.control.jobs import Job
from sparkmirror.control.mm1.group_share import GroupShare
from sparkmirror.control.permissions.missing import (
    own_topics,
    report_hidden_topics,
    report_missing_permissions,
)
from sparkmirror.control.positions.preflight import (
    freeze_ends,
    leave_out_paused,
    refuse_mirroring_onto_itself,
    take_over_positions,
    warn_of_java,
)
from sparkmirror.control.report.history import History
from sparkmirror.control.sync_jobs import sync_jobs
from sparkmirror.control.topics.internal_topics import create_internal_topics
from sparkmirror.control.topics.routed_topics import RoutedTopicsJob
from sparkmirror.errors import Defect, Denied, MirrorError, TopicError
from sparkmirror.internal_topics.commands import CommandKind, channel, control_topic
from sparkmirror.internal_topics.history import EventKind
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.internal_topics.throttles import ThrottleOrder
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.replication_policy import FlowTopics, dead_letter_topic
from sparkmirror.observe.figures.checkpoints import CheckpointTimes, GroupRow
from sparkmirror.settings import FlowSettings

log = logging.getLogger(__name__)


def _extends_slots(settings: FlowSettings) -> int:
    # A group assigns its partitions itself, and transforms know those of their epoch.
    changes = settings.transforms or settings.records.used
    return 0 if settings.mode is MirrorMode.MM1 or changes else settings.tasks_max


class FlowControl:
    """The driver's state and work for one flow.

    ``notify`` takes one-line notices for the user. ``release`` is our version. ``key`` signs the
    run's assignments; with an empty key they are not signed. ``file`` is the configuration file.
    ``tables`` reads static tables.
    ``published`` holds what the slots know. ``topics``, ``source_ends`` and ``slots`` are jobs:
    each may run on a thread of its own, and any thread may read their results.
    """

    def __init__(
        self,
        settings: FlowSettings,
        run_id: str,
        notify: Callable[[str], None],
        *,
        once: bool = False,
        take_over: bool = False,
        release: str = "",
        key: str = "",
        file: str = "",
        tables: TablesPart | None = None,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.settings = settings
        self.name = settings.name
        self._run_id = run_id
        self._channel = channel(settings, run_id)
        self._notify = notify
        self._once = once
        self._take_over = take_over
        self._release = release
        self._now_ms = now_ms
        self._wanted = FlowTopics(settings)
        self.over = threading.Event()
        """Set when this process has finished with the flow: another process may mirror it."""
        self._ended = False
        self._begun = threading.Event()
        self.clusters = clusters = FlowClusters(settings)
        self.groups = (
            GroupsJob(settings, clusters.for_groups(settings), notify)
            if settings.checkpoints.enabled
            else None
        )
        # MirrorMaker 1: every process of the group mirrors a share of the partitions.
        self.share: GroupShare | None = None
        self.ownership: Ownership | None = None
        if settings.mode is MirrorMode.MM2:
            self.ownership = Ownership(
                clusters.target, settings, run_id, notify, file=file, release=release, now_ms=now_ms
            )
        signer = Signer(key) if key else None
        self._writer = ControlTopicWriter(clusters.target, control_topic(settings), signer)
        self.published = Publication(
            self.name,
            self._writer,
            channel=self._channel,
            run_id=run_id,
            term=lambda: 0 if self.ownership is None else self.ownership.term,
            over=self.over,
            now_ms=now_ms,
            extends_slots=_extends_slots(settings),
        )
        self.history = History(clusters.target, settings, run_id, now_ms=now_ms)
        self.topics = TopicsJob(settings, clusters, self._wanted, self.published, notify)
        self.slots = SlotReports(
            settings,
            run_id,
            clusters.target,
            self.published,
            self.history,
            drain=self._drain_as_ordered,
            notify=notify,
            now_ms=now_ms,
            signer=signer,
        )
        self.throttling = Throttling(
            settings,
            run_id,
            self._channel,
            publish=self._writer.limit,
            slots=self._slots,
            history=self.history,
            notify=notify,
        )
        self.renewal = Renewal(self.name, lambda: self.as_owner(self.published.replan))
        self.slots.watchers += [self.throttling.observe, self.renewal.observe]
        self.routed = RoutedTopicsJob(
            *(settings, run_id, self._channel, clusters.source_admin, clusters.target_admin),
            publish=self._writer.answer,
            notify=notify,
        )
        self.slots.asked.append(self.routed.take)
        self.tables = Tables(
            settings, tables or NoTables(), self.history,
            replan=lambda: self.as_owner(self.published.replan),
            report=lambda: self.as_owner(self.reports.write),
            slots=self._slots, progress=self.slots.progress,
            notify=notify, once=once, now_ms=now_ms,
        )  # fmt: skip
        self.source_ends = SourceEnds(
            settings, clusters.source, self.published, self.slots.progress
        )
        self.moving = Moving(self.name, self.published, time.monotonic)
        self.slots.released.append(self.moving.take)
        self.slots.watchers.append(self.moving.observe)
        self.dealing = Dealing(
            settings.tasks_max, run_id, self._channel,
            published=self.published, moving=self.moving, publish=self._writer.deal,
            progress=self.slots.progress, ends=self.source_ends.last,
            leaders=clusters.source.leaders.of,
            notify=notify, now_ms=now_ms, ticks_s=time.monotonic,
        )  # fmt: skip
        self.orders = OrderFollower(
            clusters.target,
            settings,
            run_id,
            pass_on=self._writer.command,
            drain=self._drain_as_ordered,
            throttle=self._throttle_as_ordered,
            reload=self.tables.take_orders,
        )
        self.reports = DriverReports(
            self._writer,
            self.published,
            self.orders,
            self.throttling,
            self.tables,
            slots=self.dealing.slots,
            slots_max=settings.tasks_max,
            channel=self._channel,
            run_id=run_id,
            release=release,
            over=self.over,
            now_ms=now_ms,
        )

    @property
    def checkpoint_times(self) -> CheckpointTimes:
        """Durations of the flow's checkpoint rounds."""
        return CheckpointTimes() if self.groups is None else self.groups.times

    @property
    def group_rows(self) -> tuple[GroupRow, ...]:
        """Lag of the source's consumer groups."""
        return () if self.groups is None else self.groups.lags.rows()

    # --- start-up ---------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the internal topics and claim the flow; `begin` it unless another process has it.

        Raises `MirrorError` when the flow cannot start: a cluster is unavailable, source and target
        are the same cluster, an internal topic cannot be created, or none of its topics can be
        mirrored.
        """
        clusters = self.clusters
        refuse_mirroring_onto_itself(
            self.settings, self._wanted, clusters.source_admin, clusters.target_admin
        )
        # In parallel: each request to a remote cluster costs a round trip.
        with ThreadPoolExecutor(2, f"prepare-{self.name}") as pool:
            beside = (
                pool.submit(
                    create_offset_topics,
                    *(self.settings, clusters.source_admin, clusters.target_admin),
                ),
                pool.submit(warn_of_java, self.settings, clusters.target),
            )
            for line in create_internal_topics(clusters.target_admin, self.settings):
                self._notify(line)
        for one in beside:
            for line in one.result():
                self._notify(line)
        self._report_missing_permissions(own_topics(self.settings))
        own = self.ownership
        if own is not None and not own.at_start(once=self._once, take_over=self._take_over):
            return
        self.topics.at_start = True
        self._begin_or_give_up()

    def _begin_or_give_up(self) -> None:
        """`begin`; if that fails, report that this run ended, so that others need not wait.

        Raises `MirrorError`.
        """
        if self.ownership is not None:
            self.ownership.keep_alive(partial(self.reports.write, starting=True))
        try:
            self.begin()
        except MirrorError:
            if self.ownership is not None:
                self.ownership.reported_elsewhere()
                if self._lost() is None:
                    with contextlib.suppress(MirrorError):
                        self.reports.write(ended=True)
            raise

    def wait_turn(self) -> bool:
        """One check by a standby process; True once it has taken the flow over and begun it.

        Raises `MirrorError`. The process is then still a standby, and others may take the flow.
        """
        own = self.ownership
        if own is None:
            raise Defect("a flow that is not claimed stands by")
        if not own.wait_turn():
            return False
        self.tables.stood_by = True
        self.reports.started_ms = self._now_ms()
        try:
            self._begin_or_give_up()
        except MirrorError:
            own.stand_by()
            raise
        return True

    def begin(self) -> None:
        """Create topics, seed positions, publish the assignment and the run command, in this order.

        Before this, the run has created internal topics and made its claim, and nothing else.
        Raises `MirrorError`.
        """
        topics, published, clusters = self.topics, self.published, self.clusters
        if self.ownership is not None:
            self.history.taken = self.ownership.taken
        self.slots.gaps.since_ms = self._now_ms()
        assignment = topics.observe()
        seen = {tp.topic for tp in assignment.halted} | set(assignment.topics)
        report_hidden_topics(self.settings, clusters.source_admin, seen, self._notify)
        self._report_missing_permissions(
            {dead_letter_topic(each.remote_topic) for each in assignment.partitions}
        )
        if not assignment.partitions:
            self._notify(
                f"{self.name}: no topic on {clusters.source.alias} matches, or its principal has "
                "neither Read nor Describe on it; waiting for one"
            )
        alone = not (
            self.settings.mode is MirrorMode.MM1
            and clusters.source.group_members(self.settings.group_id, operation="Read")
        )
        if alone:  # members of the group commit positions themselves
            take_over_positions(
                *(clusters.keeper, topics.first_positions, self.settings, assignment), self._notify
            )
        if self._once:
            assignment = leave_out_paused(self.settings, clusters.target, assignment)
            published.frozen = freeze_ends(self.settings, clusters.source, assignment)
            topics.found = assignment
            topics.first_positions.settle(topics.leaderless())  # all have a leader now
        if self.settings.mode is MirrorMode.MM1:
            forget_ended_runs(clusters.target, self._writer, self.settings, self._now_ms())
            self.share = topics.share = self.slots.share = GroupShare(
                self.settings,
                clusters.source_admin,
                assignment,
                topics.first_positions,
                alone=alone,
                publish=published.publish_share,
                notify=self._notify,
            )
            assignment = replace(assignment, partitions=())
        topics.found = assignment
        self.routed.begin(clusters.target, assignment.topics)
        assignment = topics.first_positions.hold(assignment)
        # A pause must be known before anything is mirrored. A failure here is not reported:
        # the orders job meets it again and reports it.
        with contextlib.suppress(Denied, TopicError):
            self.orders.poll()
        self.throttling.begin()
        self.tables.begin()
        # All this may have taken minutes. A run that has lost the flow does not report a start.
        lost = self._lost()
        if lost is not None:
            raise lost
        self.dealing.begin(assignment)
        published.adopt(assignment, CommandKind.RUN)
        self._begun.set()
        self.history.begin(self._release, len(assignment.partitions), once=self._once)

    def _report_missing_permissions(self, names: Iterable[str]) -> None:
        report_missing_permissions(self.settings, names, self.clusters.of, self._notify)

    # --- while it runs ----------------------------------------------------------------------

    def as_owner(self, job: Callable[[], object]) -> None:
        """Run ``job`` only while this process certainly owns the flow. Raises `MirrorError`.

        A MirrorMaker 1 flow has no single owner: ``job`` always runs.
        """
        if self.ownership is None:
            job()
        elif not self.over.is_set():
            self.ownership.as_owner(job)

    def syncs(self) -> list[Job]:
        """The jobs that sync ACLs and configs."""
        return sync_jobs(self.settings, self.clusters, self._wanted, self.published, self._notify)

    @property
    def failure(self) -> MirrorError | None:
        """Why this flow cannot continue in this process; None while it can."""
        if self.ownership is not None:
            return None if self.over.is_set() else self.ownership.lost()
        return None if self.share is None else self.share.failure(self.slots.progress())

    def _drain_as_ordered(self) -> None:
        if not self.draining:
            self._notify(f"{self.name}: asked to drain")
            self.history.note(EventKind.DRAIN, "an operator asked for it")
        if not self.published.drain_sent.is_set():
            self.drain(again=False)

    def write_last_report(self) -> None:
        """Write the last report, and the end of the run to the history. Raises `MirrorError`.

        A standby process can then take the flow at once.
        """
        self.over.set()
        if self._lost() is None:
            # After a takeover it would overwrite the new owner's report.
            self.reports.write(ended=True)
        # An order to drain is not enough: the run may be stopped before its slots have drained.
        self.history.end(drained=self._ended)

    @property
    def holds(self) -> bool:
        """Whether the flow has begun in this process, which does not stand by for it."""
        return self._begun.is_set() and not (self.ownership and self.ownership.stands_by)

    def _slots(self) -> int:
        """How many slots the planner makes of the assignment."""
        return min(self.settings.tasks_max, len(self.published.assignment().partitions))

    def _throttle_as_ordered(self, orders: Mapping[str, ThrottleOrder]) -> None:
        """Obey new orders about limits, and report that. Raises `MirrorError`."""
        self.throttling.take_orders(orders)
        if self._begun.is_set():
            self.as_owner(self.throttling.step)
            self.as_owner(self.reports.write)

    def drain(self, *, again: bool = True) -> None:
        """Command the slots of this run to drain; no assignment is published afterwards.

        ``again``: write the command even if this process has written it before. Raises
        `MirrorError`.
        """
        if self.share is not None:
            self.share.end()
        self.published.draining = True
        own = self.ownership
        if own is not None and (own.stands_by or self._lost() is not None):
            return  # this run has no slots, or they end by themselves
        self.published.drain(again=again)

    def _lost(self) -> MirrorError | None:
        """The error that names another owner of the flow, or None.

        A process that was frozen reads the claims again first.
        """
        own = self.ownership
        if own is None or own.contest.claim is None:
            return None
        if not own.holds():
            with contextlib.suppress(MirrorError):  # then the claim that was read last counts
                own.check()
        return own.lost()

    def report_last_gaps(self) -> None:
        """Report gaps recorded since the gaps topic was last read. Raises `MirrorError`."""
        self.slots.gaps.report_last()

    def end(self) -> None:
        """Note that the queries have ended cleanly: no slot writes any more."""
        if self.share is not None:
            self.share.end()
        self._ended = True

    # --- what is known ----------------------------------------------------------------------

    @property
    def leaving(self) -> bool:
        """Whether the slots are draining and the flow is still to be handed over."""
        claimed = self.ownership is not None  # MirrorMaker 1: the group reassigns the partitions
        return claimed and self.published.drain_sent.is_set() and not self.over.is_set()

    @property
    def draining(self) -> bool:
        """Whether the slots were commanded to drain, by this process or another."""
        return self.published.draining

    def ends(self) -> dict[TopicPartition, int]:
        """Newest known source end offset (exclusive) per assigned partition."""
        frozen = self.published.frozen
        if frozen is None:
            return self.source_ends.ends()
        if self.share is None:
            return dict(frozen)
        ours = self.published.assignment().sources
        return {tp: end for tp, end in frozen.items() if tp in ours}

    def forget_orders(self) -> None:
        """Drop the reader of orders after a failure; the next round opens a new one."""
        try:
            self.orders.forget()
        except MirrorError as error:
            log.debug("%s: closing the reader of orders: %s", self.name, error)

    def close(self) -> None:
        """Stop being a member or a standby, and close all connections. Raises `MirrorError`."""
        if self.share is not None:
            # Slots that were not drained may still be writing. The group must not reassign their
            # partitions before the session times out.
            over = self.draining or self._ended or not self.published.assignment().partitions
            self.share.close(leave=over)
        self.slots.forget_reader()
        self.forget_orders()
        if self.ownership is not None:
            with contextlib.suppress(MirrorError):
                self.ownership.close()
        if self.groups is not None:
            self.groups.close()
        self.clusters.close()
