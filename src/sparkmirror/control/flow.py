"""The control plane of one flow: how it begins, its jobs, its last words.

`ControlLoop` owns the threads.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from sparkmirror.control.coordination.control_topic import ControlTopicWriter
from sparkmirror.control.coordination.orders import OrderFollower
from sparkmirror.control.coordination.ownership import Ownership
from sparkmirror.control.coordination.place import own_host
from sparkmirror.control.coordination.status import forget_ended_runs
from sparkmirror.control.flows.clusters import FlowClusters
from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.flows.slot_reports import SlotReports
from sparkmirror.control.flows.source_ends import SourceEnds
from sparkmirror.control.flows.topics_job import TopicsJob
from sparkmirror.control.groups.job import GroupClusters, GroupsJob, create_offset_topics
from sparkmirror.control.jobs import Job, run_once
from sparkmirror.control.mm1.group_share import GroupShare
from sparkmirror.control.permissions.missing import own_topics, tell_lacks, tell_unseen
from sparkmirror.control.positions.preflight import (
    freeze_ends,
    leave_out_paused,
    refuse_mirroring_onto_itself,
    take_over_positions,
    warn_of_java,
)
from sparkmirror.control.report.history import History
from sparkmirror.control.topics.acl_sync import AclSync
from sparkmirror.control.topics.config_sync import ConfigSync
from sparkmirror.control.topics.internal_topics import create_internal_topics
from sparkmirror.errors import Defect, Denied, MirrorError, TopicError
from sparkmirror.internal_topics.commands import (
    CommandKind,
    channel,
    control_topic,
)
from sparkmirror.internal_topics.driver_report import DriverReport
from sparkmirror.internal_topics.history import EventKind
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import (
    FlowSettings,
    MirrorMode,
    TopicPartition,
)
from sparkmirror.names.replication_policy import FlowTopics, dead_letter_topic
from sparkmirror.observe.figures.checkpoints import CheckpointTimes, GroupRow

log = logging.getLogger(__name__)

_REPORT_INTERVAL_S = 10.0
_HISTORY_INTERVAL_S = 1.0
_SYNC_FAILURE_PAUSE_S = 60.0


class FlowControl:
    """Everything the driver knows and does about one flow.

    ``say`` takes one-line notices for the user, ``release`` is our version, ``key`` what the run's
    assignments are signed with (empty: they are not). ``published``: what the slots know.
    ``topics``, ``source_ends`` and ``slots`` are jobs; each may run on a thread of its own, and
    what they leave behind can be read from any.
    """

    def __init__(
        self,
        settings: FlowSettings,
        run_id: str,
        say: Callable[[str], None],
        *,
        once: bool = False,
        take_over: bool = False,
        release: str = "",
        key: str = "",
        file: str = "",
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.settings = settings
        self.name = settings.name
        self._run_id = run_id
        self._channel = channel(settings, run_id)
        self._say = say
        self._once = once
        self._take_over = take_over
        self._release = release
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._wanted = FlowTopics(settings)
        self.over = threading.Event()
        """Nothing of the flow is done here any more: others may mirror it."""
        self.to_go_s: float | None = None
        """How long it still needs to catch up, by the run's meters."""
        self._ended = False
        self._reporting = threading.Lock()
        self.clusters = clusters = FlowClusters(settings)
        self.groups = self._groups_job() if settings.checkpoints.enabled else None
        # MirrorMaker 1: all processes of a group mirror, each its share.
        self.share: GroupShare | None = None
        self.ownership: Ownership | None = None
        if settings.mode is MirrorMode.MM2:
            self.ownership = Ownership(
                clusters.target, settings, run_id, say, file=file, release=release, now_ms=now_ms
            )
        self._writer = ControlTopicWriter(
            clusters.target, control_topic(settings), Signer(key) if key else None
        )
        self.published = Publication(
            self.name,
            self._writer,
            channel=self._channel,
            run_id=run_id,
            term=lambda: 0 if self.ownership is None else self.ownership.term,
            over=self.over,
            now_ms=now_ms,
        )
        self.history = History(clusters.target, settings, run_id, now_ms=now_ms)
        self.topics = TopicsJob(settings, clusters, self._wanted, self.published, say)
        self.slots = SlotReports(
            settings,
            run_id,
            clusters.target,
            self.published,
            self.history,
            drain=self._drain_as_asked,
            say=say,
            now_ms=now_ms,
        )
        self.source_ends = SourceEnds(
            settings, clusters.source, self.published, self.slots.progress
        )
        self.orders = OrderFollower(
            clusters.target,
            settings,
            run_id,
            say_again=self._writer.command,
            drain=self._drain_as_asked,
        )

    @property
    def checkpoint_times(self) -> CheckpointTimes:
        """How long checkpoints take."""
        return CheckpointTimes() if self.groups is None else self.groups.times

    @property
    def group_rows(self) -> tuple[GroupRow, ...]:
        """How far the source's consumer groups are behind."""
        return () if self.groups is None else self.groups.lags.rows()

    def _groups_job(self) -> GroupsJob:
        settings, own = self.settings, self.clusters
        checkpoints = own.of(settings.checkpoints.client or settings.target)
        on_source = settings.offset_syncs.location == "source"
        clusters = GroupClusters(
            source_admin=own.source_admin,
            target_admin=own.target_admin,
            target=own.target,
            syncs=own.source if on_source else checkpoints,
            checkpoints=checkpoints,
            source=own.source,
        )
        return GroupsJob(settings, clusters, self._say)

    # --- start-up ---------------------------------------------------------------------------

    def prepare(self) -> None:
        """The mirror's own topics, and the claim; then `begin`, unless another process mirrors.

        Raises `MirrorError` when the flow cannot start: a cluster is away, an internal topic
        cannot be made, a Java mirror still runs, or not one of its topics can be mirrored.
        """
        clusters = self.clusters
        refuse_mirroring_onto_itself(
            self.settings, self._wanted, clusters.source_admin, clusters.target_admin
        )
        # Side by side: to clusters that are far away each question takes its round trip.
        with ThreadPoolExecutor(2, f"prepare-{self.name}") as pool:
            beside = (
                pool.submit(
                    create_offset_topics,
                    *(self.settings, clusters.source_admin, clusters.target_admin),
                ),
                pool.submit(warn_of_java, self.settings, clusters.target),
            )
            for line in create_internal_topics(clusters.target_admin, self.settings):
                self._say(line)
        for one in beside:
            for line in one.result():
                self._say(line)
        self._tell_lacks(own_topics(self.settings))
        own = self.ownership
        if own is not None and not own.at_start(once=self._once, take_over=self._take_over):
            return
        self.topics.at_start = True
        self._begin_or_give_up()

    def _begin_or_give_up(self) -> None:
        """`begin`, or tell others that they need not wait for this run. Raises `MirrorError`."""
        if self.ownership is not None:
            self.ownership.keep_alive(partial(self.report, starting=True))
        try:
            self.begin()
        except MirrorError:
            if self.ownership is not None:
                self.ownership.reported_elsewhere()
                with contextlib.suppress(MirrorError):
                    self.report(ended=True)
            raise

    def wait_turn(self) -> bool:
        """One look of a process that stands by; True once it has begun the flow.

        Raises `MirrorError`: then it still stands by, and others may have the flow.
        """
        own = self.ownership
        if own is None:
            raise Defect("a flow that is not claimed stands by")
        if not own.wait_turn():
            return False
        self._started_ms = self._now_ms()
        try:
            self._begin_or_give_up()
        except MirrorError:
            own.stand_by()
            raise
        return True

    def begin(self) -> None:
        """Topics, positions, assignment and the run command, in this order. Raises `MirrorError`.

        Until then nothing of the flow has been changed by this run.
        """
        topics, published, clusters = self.topics, self.published, self.clusters
        assignment = topics.observe()
        seen = {tp.topic for tp in assignment.halted} | set(assignment.topics)
        tell_unseen(self.settings, clusters.source_admin, seen, self._say)
        self._tell_lacks({dead_letter_topic(each.remote_topic) for each in assignment.partitions})
        if not assignment.partitions:
            self._say(
                f"{self.name}: no topic on {clusters.source.alias} matches, or its principal has "
                "neither Read nor Describe on it; waiting for one"
            )
        alone = not (
            self.settings.mode is MirrorMode.MM1
            and clusters.source.group_members(self.settings.group_id, operation="Read")
        )
        if alone:  # members of the group have positions, and know better
            take_over_positions(
                *(clusters.keeper, topics.beginnings, self.settings, assignment), self._say
            )
        if self._once:
            assignment = leave_out_paused(self.settings, clusters.target, assignment)
            published.frozen = freeze_ends(self.settings, clusters.source, assignment)
            topics.found = assignment
            topics.beginnings.settle(topics.leaderless())  # all have a leader now
        if self.settings.mode is MirrorMode.MM1:
            forget_ended_runs(clusters.target, self._writer, self.settings, self._now_ms())
            self.share = topics.share = self.slots.share = GroupShare(
                self.settings,
                clusters.source_admin,
                assignment,
                topics.beginnings,
                alone=alone,
                publish=published.publish_share,
                say=self._say,
            )
            assignment = replace(assignment, partitions=())
        topics.found = assignment
        assignment = topics.beginnings.hold(assignment)
        # Nothing is mirrored before a pause is known. Why orders are not heard, the job tells.
        with contextlib.suppress(Denied, TopicError):
            self.orders.look()
        published.adopt(assignment, CommandKind.RUN)
        self.history.begin(self._release, len(assignment.partitions), once=self._once)

    def _tell_lacks(self, names: Iterable[str]) -> None:
        tell_lacks(self.settings, names, self.clusters.of, self._say)

    # --- while it runs ----------------------------------------------------------------------

    def as_owner(self, job: Callable[[], object]) -> None:
        """Do ``job`` only while the flow certainly is ours."""
        if self.ownership is None:
            job()
        elif not self.over.is_set():
            self.ownership.as_owner(job)

    def jobs(self) -> list[Job]:
        """What is done while the flow is ours, but for the look for topics."""
        name, own, over = self.name, self.ownership, self.over.is_set

        def mine(job: Callable[[], object]) -> Callable[[], None]:
            return partial(self.as_owner, job)

        jobs = [
            Job(f"ends-{name}", partial(run_once, self.source_ends), self.source_ends.pause_s),
            Job(
                f"progress-{name}",
                partial(run_once, self.slots),
                after_failure=self.slots.forget_reader,
            ),
            Job(f"orders-{name}", self.orders.look, after_failure=self.forget_orders),
        ]
        if self.share is not None:
            jobs.append(Job(f"group-{name}", self.share.step))
        report_interval_s = _REPORT_INTERVAL_S
        if own is not None:
            jobs.append(Job(f"claims-{name}", own.watch, lambda: own.look_interval_s))
            report_interval_s = min(report_interval_s, own.report_interval_s)
        jobs += [
            Job(f"report-{name}", mine(self.report), lambda: report_interval_s),
            Job(f"history-{name}", mine(self.history.flush), lambda: _HISTORY_INTERVAL_S),
        ]
        if self.groups is not None and not self._once:
            groups = self.groups
            jobs += [
                Job(f"groups-{name}", mine(groups.tick), lambda: groups.pause_s),
                Job(f"group-lags-{name}", groups.lags.step),
            ]
        jobs += [
            replace(job, once=mine(job.once), single=self._once, timed=True)
            for job in self.sync_jobs()
        ]
        return [replace(job, over=over) for job in jobs]

    def sync_jobs(self) -> list[Job]:
        """What is kept in step on topics that exist."""
        settings, clusters = self.settings, self.clusters
        rounds: list[tuple[str, Callable[[], None], int]] = []
        if settings.mode is MirrorMode.MM2:
            admins, topics = (clusters.source_admin, clusters.target_admin), settings.topics
            if topics.sync_acls_enabled:
                acls = AclSync(settings, *admins, self._wanted, self._say, self._named_topics)
                rounds.append(("acls", acls.round, topics.sync_acls_interval_s))
            if topics.sync_configs_enabled:
                configs = ConfigSync(settings, *admins, self._remote_topics, self._say)
                rounds.append(("configs", configs.round, topics.sync_configs_interval_s))
        return [
            Job(
                f"{name}-{self.name}",
                once,
                partial(float, interval_s),
                min(float(interval_s), _SYNC_FAILURE_PAUSE_S),
            )
            for name, once, interval_s in rounds
        ]

    def _remote_topics(self) -> dict[str, str]:
        """Remote topic by source topic, of those that are mirrored."""
        return dict(self.published.assignment().remote_topics)

    def _named_topics(self) -> frozenset[str] | None:
        """The topics that are mirrored, where others may be left out for their names."""
        if not self.settings.keeps_names:
            return None
        return frozenset(self.published.assignment().topics)

    @property
    def failure(self) -> MirrorError | None:
        """Why this flow can never go on, None while it can."""
        if self.ownership is not None:
            return None if self.over.is_set() else self.ownership.lost()
        return None if self.share is None else self.share.failure(self.slots.progress())

    def _drain_as_asked(self) -> None:
        if not self.draining:
            self._say(f"{self.name}: asked to drain")
            self.history.note(EventKind.DRAIN, "an operator asked for it")
        if not self.published.told.is_set():
            self.drain(again=False)

    def farewell(self) -> None:
        """The last report, and the end in the history. Raises `MirrorError`.

        Whoever stands by takes the flow then.
        """
        self.over.set()
        if self.ownership is None or self.ownership.lost() is None:
            self.report(ended=True)  # else it would stand in the place of the new owner's
        self.history.end(drained=self.draining or self._ended)

    def report(self, *, ended: bool = False, starting: bool = False) -> None:
        """Tell in the control topic what the driver knows. Raises `MirrorError`.

        ``starting``: orders are not heard yet, but will be before anything is mirrored.
        """
        assignment = self.published.assignment()
        report = DriverReport(
            flow=self._channel,
            run_id=self._run_id,
            host=own_host(),
            version=self._release,
            started_ms=self._started_ms,
            time_ms=self._now_ms(),
            ended=ended,
            partitions=len(assignment.partitions),
            halts=assignment.halted,
            orders=starting or self.orders.hears,
            to_go_s=self.to_go_s,
        )
        with self._reporting:
            if ended or not self.over.is_set():  # the last report stays the last one
                self._writer.report(report)

    def drain(self, *, again: bool = True) -> None:
        """Tell the slots of this run to finish; no assignment is published afterwards.

        ``again``: also when they have been told. Raises `MirrorError`.
        """
        if self.share is not None:
            self.share.end()
        own = self.ownership
        if own is not None and (own.stands_by or own.lost() is not None):
            self.published.draining = True  # no slots of ours, or none that go on
            return
        self.published.drain(again=again)

    def tell_last_gaps(self) -> None:
        """Tell of gaps that were written down since the last look. Raises `MirrorError`."""
        self.slots.gaps.last_look()

    def end(self) -> None:
        """The queries have ended in order: nothing is written any more."""
        if self.share is not None:
            self.share.end()
        self._ended = True

    # --- what is known ----------------------------------------------------------------------

    @property
    def leaving(self) -> bool:
        """Whether the slots know that they are to finish, and others wait for the flow."""
        claimed = self.ownership is not None  # MirrorMaker 1's group deals partitions out
        return claimed and self.published.told.is_set() and not self.over.is_set()

    @property
    def draining(self) -> bool:
        """Whether the slots were told to finish, from here or elsewhere."""
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
        """Drop the reader of orders after a failure; the next look opens a new one."""
        try:
            self.orders.forget()
        except MirrorError as error:
            log.debug("%s: closing the reader of orders: %s", self.name, error)

    def close(self) -> None:
        """Close all connections. Raises `MirrorError` when one does not close in peace."""
        if self.share is not None:
            # Slots that were not told to end may still be writing: the group must not give their
            # partitions away before it misses the heartbeats.
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
