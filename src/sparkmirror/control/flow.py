"""The control plane of one flow: its clients, its assignment, its side of the control topic.

`ControlLoop` owns the threads and the clock; the methods here each do one round of one job.
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
from typing import NamedTuple

from sparkmirror.control.coordination.control_topic import ControlTopicReader, ControlTopicWriter
from sparkmirror.control.coordination.orders import OrderFollower
from sparkmirror.control.coordination.ownership import Ownership
from sparkmirror.control.coordination.place import own_host
from sparkmirror.control.coordination.status import forget_ended_runs
from sparkmirror.control.groups.job import GroupClusters, GroupsJob, create_offset_topics
from sparkmirror.control.mm1.group_share import GroupShare
from sparkmirror.control.permissions.missing import own_topics, tell_lacks, tell_unseen
from sparkmirror.control.positions.preflight import (
    freeze_ends,
    leave_out_paused,
    refuse_mirroring_onto_itself,
    take_over_positions,
    warn_of_java,
)
from sparkmirror.control.positions.record_times import RecordTimes
from sparkmirror.control.positions.seeding import Beginnings, seed_positions
from sparkmirror.control.report.gaps import GapTeller
from sparkmirror.control.report.history import HaltWatch, History, standing_still
from sparkmirror.control.topics.acl_sync import AclSync
from sparkmirror.control.topics.config_sync import ConfigSync
from sparkmirror.control.topics.discovery import Discovery
from sparkmirror.control.topics.internal_topics import create_internal_topics
from sparkmirror.control.topics.sync import (
    Assignment,
    describe_changes,
)
from sparkmirror.errors import Defect, Denied, MirrorError, TopicError
from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    Command,
    CommandKind,
    SourcePartition,
    channel,
    control_topic,
)
from sparkmirror.internal_topics.driver_report import DriverReport
from sparkmirror.internal_topics.history import EventKind
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import (
    ClusterClient,
    FlowSettings,
    Member,
    MirrorMode,
    SlotProgress,
    TopicPartition,
)
from sparkmirror.names.replication_policy import FlowTopics, dead_letter_topic
from sparkmirror.observe.figures.checkpoints import CheckpointTimes, GroupRow
from sparkmirror.wire.admin.cluster import Cluster

log = logging.getLogger(__name__)

# For one look at the source's ends. Batches of up to 1 MB come whole, and 50 small ones cost some
# 30 ms of processor time.
_TIMES_MAX = 50
_TIMES_S_MAX = 1.0


class SyncJob(NamedTuple):
    """A job that runs at once and then at an interval. It raises `MirrorError`."""

    name: str
    round: Callable[[], None]
    interval_s: int


class FlowControl:
    """Everything the driver knows and does about one flow.

    ``say`` takes one-line notices for the user, ``release`` is our version, ``key`` what the run's
    assignments are signed with (empty: they are not). The jobs (`discover`,
    `look_at_ends`, `look_at_progress`) may run on one thread each; what they leave behind can be
    read from any.
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
        self._release = release
        self._now_ms = now_ms
        self._wanted = FlowTopics(settings)
        self._clusters: list[Cluster] = []
        self.source = self._cluster(settings.source)
        self.target = self._cluster(settings.target)
        self.source_admin = self._cluster(settings.source_admin)
        self.target_admin = self._cluster(settings.target_admin)
        self.groups = self._groups_job() if settings.checkpoints.enabled else None
        self._writer = ControlTopicWriter(
            self.target, control_topic(settings), Signer(key) if key else None
        )
        self._reader: ControlTopicReader | None = None
        self._take_over = take_over
        # MirrorMaker 1: all processes of a group mirror, each its share.
        self.ownership = (
            Ownership(self.target, settings, run_id, say, file=file, release=release, now_ms=now_ms)
            if settings.mode is MirrorMode.MM2
            else None
        )
        self.orders = OrderFollower(
            self.target,
            settings,
            run_id,
            say_again=self._writer.command,
            drain=self._drain_as_asked,
        )
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._draining = False
        self._told = threading.Event()
        self._ended = False
        self._reporting = threading.Lock()
        self.over = threading.Event()
        """Nothing of the flow is done here any more: others may mirror it."""
        self.to_go_s: float | None = None
        """How long it still needs to catch up, by the run's meters."""
        self._paused = False
        self._version = 0
        self._assignment = Assignment(self.name)
        self._found = self._assignment  # with what waits for a leader
        self._beginnings = Beginnings(self._position_keeper, self.source, settings)
        self._frozen: dict[TopicPartition, int] | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._times = RecordTimes(self.source, fetches_max=_TIMES_MAX, fetch_s_max=_TIMES_S_MAX)
        self._oldest_ms: dict[TopicPartition, int] = {}
        self._progress: dict[int, SlotProgress] = {}
        self._started_ms = now_ms()
        self._skipped = 0
        # MirrorMaker 1: the group says which partitions are mirrored here.
        self.share: GroupShare | None = None
        self._member: Member | None = None
        self._discovery = Discovery(
            settings, self.source_admin, self.target_admin, self._wanted, say
        )
        self.history = History(self.target, settings, run_id, now_ms=now_ms)
        self._halts = HaltWatch(self.history)
        self._gaps = GapTeller(
            self.target, settings, say, since_ms=now_ms(), note=self.history.note_gap
        )
        self._config_sync = ConfigSync(
            settings, self.source_admin, self.target_admin, self._remote_topics, say
        )
        self._acl_sync = AclSync(settings, self.source_admin, self.target_admin, self._wanted, say)
        self._started_ms = now_ms()

    @property
    def checkpoint_times(self) -> CheckpointTimes:
        """How long checkpoints take."""
        return CheckpointTimes() if self.groups is None else self.groups.times

    @property
    def group_rows(self) -> tuple[GroupRow, ...]:
        """How far the source's consumer groups are behind."""
        return () if self.groups is None else self.groups.lags.rows()

    def _groups_job(self) -> GroupsJob:
        checkpoints = self._cluster(self.settings.checkpoints.client or self.settings.target)
        clusters = GroupClusters(
            source_admin=self.source_admin,
            target_admin=self.target_admin,
            target=self.target,
            syncs=self.source if self._syncs_are_on_source else checkpoints,
            checkpoints=checkpoints,
            source=self.source,
        )
        return GroupsJob(self.settings, clusters, self._say)

    @property
    def _syncs_are_on_source(self) -> bool:
        return self.settings.offset_syncs.location == "source"

    def _cluster(self, client: ClusterClient) -> Cluster:
        """The cluster behind ``client``; clients that differ only in their name share one."""
        for known in self._clusters:
            if replace(known.client, client_id=client.client_id) == client:
                return known
        cluster = Cluster(client)
        self._clusters.append(cluster)
        return cluster

    @property
    def _position_keeper(self) -> Cluster:
        """The cluster that holds the position group's offsets."""
        return self.source if self.settings.mode is MirrorMode.MM1 else self.target

    # --- start-up ---------------------------------------------------------------------------

    def prepare(self) -> None:
        """The mirror's own topics, and the claim; then `begin`, unless another process mirrors.

        Raises `MirrorError` when the flow cannot start: a cluster is away, an internal topic
        cannot be made, a Java mirror still runs, or not one of its topics can be mirrored.
        """
        refuse_mirroring_onto_itself(
            self.settings, self._wanted, self.source_admin, self.target_admin
        )
        # Side by side: to clusters that are far away each question takes its round trip.
        with ThreadPoolExecutor(2, f"prepare-{self.name}") as pool:
            beside = (
                pool.submit(
                    create_offset_topics, self.settings, self.source_admin, self.target_admin
                ),
                pool.submit(warn_of_java, self.settings, self.target),
            )
            for line in create_internal_topics(self.target_admin, self.settings):
                self._say(line)
        for one in beside:
            for line in one.result():
                self._say(line)
        self._tell_lacks(own_topics(self.settings))
        own = self.ownership
        if own is not None and not own.at_start(once=self._once, take_over=self._take_over):
            return
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
        assignment = self._discovery.look(first=not self._version)
        seen = {tp.topic for tp in assignment.halted} | set(assignment.topics)
        tell_unseen(self.settings, self.source_admin, seen, self._say)
        self._tell_lacks({dead_letter_topic(each.remote_topic) for each in assignment.partitions})
        if not assignment.partitions:
            self._say(
                f"{self.name}: no topic on {self.source.alias} matches, or its principal has "
                "neither Read nor Describe on it; waiting for one"
            )
        alone = not (
            self.settings.mode is MirrorMode.MM1
            and self.source.group_members(self.settings.group_id, operation="Read")
        )
        if alone:  # members of the group have positions, and know better
            keeper = self._position_keeper
            take_over_positions(keeper, self._beginnings, self.settings, assignment, self._say)
        if self._once:
            assignment = leave_out_paused(self.settings, self.target, assignment)
            self._frozen = freeze_ends(self.settings, self.source, assignment)
            self._found = assignment
            self._beginnings.settle(self._leaderless())  # all have a leader now
        if self.settings.mode is MirrorMode.MM1:
            forget_ended_runs(self.target, self._writer, self.settings, self._now_ms())
            self.share = GroupShare(
                self.settings,
                self.source_admin,
                assignment,
                self._beginnings,
                alone=alone,
                publish=self._publish_share,
                say=self._say,
            )
            assignment = replace(assignment, partitions=())
        self._found = assignment
        assignment = self._beginnings.hold(assignment)
        # Nothing is mirrored before a pause is known. Why orders are not heard, the job tells.
        with contextlib.suppress(Denied, TopicError):
            self.orders.look()
        self._adopt(assignment, CommandKind.RUN)
        self.history.begin(self._release, len(assignment.partitions), once=self._once)

    def _tell_lacks(self, names: Iterable[str]) -> None:
        tell_lacks(self.settings, names, self._cluster, self._say)

    def _adopt(
        self, assignment: Assignment, kind: CommandKind, member: Member | None = None
    ) -> None:
        """Publish ``assignment`` under the next version, then the command that makes it known."""
        version = self._version + 1
        document = AssignmentDocument(
            self._channel,
            self._run_id,
            version,
            assignment.partitions,
            self._frozen,
            member,
            0 if self.ownership is None else self.ownership.term,
        )
        with self._publishing:
            if self._draining:  # a later command would hide the drain from the slots
                return
            self._writer.assign(document, self._command(kind, version))
        with self._lock:
            self._version, self._assignment, self._member = version, assignment, member
            wanted = assignment.sources
            self._ends = {tp: end for tp, end in self._ends.items() if tp in wanted}

    def _command(self, kind: CommandKind, version: int) -> Command:
        return Command(self._channel, kind, self._run_id, self._now_ms(), version=version)

    # --- jobs while it runs -----------------------------------------------------------------

    def discover(self) -> bool:
        """Look for new, grown and vanished topics; true when the slots are to be planned anew.

        Remote topics are made and positions seeded before the new assignment is published.
        Raises `MirrorError`; nothing has changed then.
        """
        if self.share is not None:
            # The group deals the partitions: it hears of the topics, and `publish` of the halts.
            self.share.candidates = self._discovery.look(first=not self._version)
            return False
        before = self.assignment()
        found = self._discovery.look(first=not self._version)
        if found.partitions != self._found.partitions:
            seed_positions(self._position_keeper, self.settings, found)
        # The others are with the slots, which may be about to commit their first positions.
        self._beginnings.settle(p for p in found.partitions if p.source not in before.sources)
        self._found = found
        return self._adopt_found()

    @property
    def has_leaderless(self) -> bool:
        """Whether a partition waits for a leader that says where it begins."""
        return self.share is None and bool(self._leaderless())

    def begin_leaderless(self) -> bool:
        """Begin partitions that had no leader; true when the slots are to be planned anew.

        Raises `MirrorError`; nothing has changed then.
        """
        self._beginnings.settle(self._leaderless())
        return self._adopt_found()

    def _leaderless(self) -> list[SourcePartition]:
        waiting = self._beginnings.waiting
        return [p for p in self._found.partitions if p.source in waiting]

    def _adopt_found(self) -> bool:
        before, after = self.assignment(), self._beginnings.hold(self._found)
        if after.partitions == before.partitions:
            with self._lock:
                self._assignment = after  # only the halts may differ
            return False
        self._adopt(after, CommandKind.REPLAN)
        for line in describe_changes(before, after):
            self._say(line)
        return True

    def _publish_share(self, wanted: Assignment, member: Member | None) -> int:
        """What the group gave us becomes the assignment; its version. Raises `MirrorError`.

        Nothing is published when nothing has changed, or after `drain`.
        """
        if (self.assignment().partitions, self._member) == (wanted.partitions, member):
            with self._lock:
                self._assignment = wanted  # only the halts may differ
        else:
            self._adopt(wanted, CommandKind.REPLAN, member)
        return self._version

    @property
    def failure(self) -> MirrorError | None:
        """Why this flow can never go on, None while it can."""
        if self.ownership is not None:
            return None if self.over.is_set() else self.ownership.lost()
        return None if self.share is None else self.share.failure(self.progress())

    def sync_jobs(self) -> list[SyncJob]:
        """What is kept in step on topics that exist; each job may run on a thread of its own."""
        topics = self.settings.topics
        jobs = []
        if self.settings.mode is MirrorMode.MM2 and topics.sync_acls_enabled:
            jobs.append(SyncJob("acls", self._acl_sync.round, topics.sync_acls_interval_s))
        if self.settings.mode is MirrorMode.MM2 and topics.sync_configs_enabled:
            jobs.append(SyncJob("configs", self._config_sync.round, topics.sync_configs_interval_s))
        return jobs

    def _remote_topics(self) -> dict[str, str]:
        """Remote topic by source topic, of those that are mirrored."""
        return {p.topic: p.remote_topic for p in self.assignment().partitions}

    def look_at_ends(self) -> None:
        """Take the source's end offsets anew, and the times of the oldest records that are not
        mirrored. Raises `MirrorError` when the source is away.
        """
        wanted = self.assignment().sources
        ends = self.source.end_offsets(wanted, self.settings.fetch.isolation_level)
        with self._lock:
            current = self._assignment.sources
            ends = {tp: end for tp, end in {**self._ends, **ends}.items() if tp in current}
            reports = sorted(self._progress.values(), key=lambda report: report.time_ms)
        positions = {
            TopicPartition(p.topic, p.partition): p.position
            for report in reports
            for p in report.partitions
            if p.position >= 0
        }
        bounds = self._frozen or ends
        behind = {
            (self.name, tp): position
            for tp, position in positions.items()
            if tp in ends and position < bounds.get(tp, 0)
        }
        try:
            self._times.look(behind)
        finally:
            known = {tp: self._times.time_ms((name, tp)) for name, tp in behind}
            with self._lock:
                # Together: a lag whose age is not known yet would show as one.
                self._ends = ends
                self._oldest_ms = {tp: ms for tp, ms in known.items() if ms is not None}

    def look_at_progress(self, timeout_ms: int = 500) -> None:
        """Take what the slots have reported since the last call. Raises `MirrorError`."""
        if self._reader is None:
            # The planner's word may have been said while there was no reader.
            self._reader = ControlTopicReader(
                self.target, control_topic(self.settings), only_new=self.share is None
            )
        signals = self._reader.poll(timeout_ms)
        with self._lock:
            for word in signals.planned:
                ours = word.flow == self._channel and word.run_id == self._run_id
                if ours and self.share is not None:
                    self.share.hear(word)
            # Slots of this run name it: other reports are those of another run, or of an old one.
            progress = [r for r in signals.progress if r.run_id == self._run_id]
            for report in progress:
                if report.flow == self._channel and report.replaces(
                    self._progress.get(report.slot)
                ):
                    self._progress[report.slot] = replace(report, flow=self.name)
        if signals.skipped and not self._skipped:
            self._say(
                f"{self.name}: {control_topic(self.settings)} on {self.target.alias} holds records "
                "that are not the mirror's; they are skipped"
            )
        self._skipped += signals.skipped
        self._gaps.look(progress)
        self._halts.look(standing_still(self.assignment().halted, self.progress()), self._now_ms())
        commands = [c for c in signals.commands if c.flow in (self.name, self._channel)]
        # Of pauses only the newest: the log may still hold what was asked for long ago.
        pauses = [command for command in commands if command.kind.pauses]
        for command in [*pauses[-1:], *(c for c in commands if not c.kind.pauses)]:
            self._obey(command)

    def _obey(self, command: Command) -> None:
        """Take note of what somebody asked for from elsewhere; the slots do it by themselves."""
        if command.kind.pauses:
            paused, before = command.kind is CommandKind.PAUSE, self._paused
            self._paused = paused
            if paused != before:
                self._say(f"{self.name}: {'paused' if paused else 'resumed'}")
                kind = EventKind.PAUSE if paused else EventKind.RESUME
                self.history.note(kind, "an operator asked for it")
            return
        ours = command.kind is CommandKind.DRAIN and command.run_id == self._run_id
        if ours:
            # Again, so that no assignment that was on its way hides it from the slots.
            self._drain_as_asked()

    def _drain_as_asked(self) -> None:
        if not self._draining:
            self._say(f"{self.name}: asked to drain")
            self.history.note(EventKind.DRAIN, "an operator asked for it")
        if not self._told.is_set():
            self.drain(again=False)

    def farewell(self) -> None:
        """The last report, and the end in the history. Raises `MirrorError`.

        Whoever stands by takes the flow then.
        """
        self.over.set()
        if self.ownership is None or self.ownership.lost() is None:
            self.report(ended=True)  # else it would stand in the place of the new owner's
        self.history.end(drained=self._draining or self._ended)

    def report(self, *, ended: bool = False, starting: bool = False) -> None:
        """Tell in the control topic what the driver knows. Raises `MirrorError`.

        ``starting``: orders are not heard yet, but will be before anything is mirrored.
        """
        assignment = self.assignment()
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
            self._draining = True  # no slots of ours, or none that go on
            return
        with self._publishing:
            self._draining = True
            if self.over.is_set() or (self._told.is_set() and not again):
                return  # nobody is left to be told, or another thread has done it meanwhile
            self._writer.command(self._command(CommandKind.DRAIN, self._version))
            self._told.set()

    def tell_last_gaps(self) -> None:
        """Tell of gaps that were written down since the last look. Raises `MirrorError`."""
        self._gaps.last_look()

    def end(self) -> None:
        """The queries have ended in order: nothing is written any more."""
        if self.share is not None:
            self.share.end()
        self._ended = True

    # --- what is known ----------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether somebody paused the flow."""
        return self._paused

    @property
    def leaving(self) -> bool:
        """Whether the slots know that they are to finish, and others wait for the flow."""
        claimed = self.ownership is not None  # MirrorMaker 1's group deals partitions out
        return claimed and self._told.is_set() and not self.over.is_set()

    @property
    def draining(self) -> bool:
        """Whether the slots were told to finish, from here or elsewhere."""
        return self._draining

    def assignment(self) -> Assignment:
        """The assignment published last."""
        with self._lock:
            return self._assignment

    def frozen_ends(self) -> Mapping[TopicPartition, int] | None:
        """Frozen end offsets of a ``--once`` run, None in continuous mode."""
        return self._frozen

    def ends(self) -> dict[TopicPartition, int]:
        """Newest known source end offset (exclusive) per assigned partition."""
        with self._lock:
            if self._frozen is None:
                return dict(self._ends)
            if self.share is None:
                return dict(self._frozen)
            ours = {p.source for p in self._assignment.partitions}
            return {tp: end for tp, end in self._frozen.items() if tp in ours}

    def oldest_ms(self) -> dict[TopicPartition, int]:
        """Timestamp of the oldest record that is not at the target, where one is known to be."""
        with self._lock:
            return dict(self._oldest_ms)

    def progress(self) -> tuple[SlotProgress, ...]:
        """Newest report of each slot, by slot number."""
        with self._lock:
            return tuple(self._progress[slot] for slot in sorted(self._progress))

    def forget_reader(self) -> None:
        """Drop the reader after a failure; the next look opens a new one."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        try:
            reader.close()
        except MirrorError as error:
            log.debug("%s: closing the reader of the control topic: %s", self.name, error)

    def forget_orders(self) -> None:
        """The same of the orders' reader."""
        try:
            self.orders.forget()
        except MirrorError as error:
            log.debug("%s: closing the reader of orders: %s", self.name, error)

    def close(self) -> None:
        """Close all connections. Raises `MirrorError` when one does not close in peace."""
        if self.share is not None:
            # Slots that were not told to end may still be writing: the group must not give their
            # partitions away before it misses the heartbeats.
            over = self._draining or self._ended or not self._assignment.partitions
            self.share.close(leave=over)
        self.forget_reader()
        self.forget_orders()
        if self.ownership is not None:
            with contextlib.suppress(MirrorError):
                self.ownership.close()
        if self.groups is not None:
            self.groups.close()
        for cluster in self._clusters:
            cluster.close(for_good=True)  # a thread may still be at work
