"""The consumer groups of one flow: checkpoints and group offset sync, each at its interval.

A round reads groups, committed offsets and the topics of offset syncs and runs, then plans, then
writes. `tick` does what is due. `finish` is the last round, after the slots have written all that
they had read: a planned failover then finds the groups at the point where the mirror stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from sparkmirror.control.groups.checkpoints import (
    CheckpointRules,
    CheckpointStore,
    accepted_offsets,
    mirrored_topic_ids,
    plan_checkpoints,
    wanted_groups,
)
from sparkmirror.control.groups.group_lags import GroupLags
from sparkmirror.control.groups.group_offsets import sync_group_offsets
from sparkmirror.control.groups.translation import Translation
from sparkmirror.control.permissions.missing import report_hidden_groups, report_missing_permissions
from sparkmirror.control.topics.compacted import CompactedTopic, TopicFollower, create_compacted
from sparkmirror.errors import ClusterError, Defect, Denied, MirrorError, Unreachable
from sparkmirror.internal_topics.mm2_records import (
    Checkpoint,
    encode_checkpoint,
    offset_syncs_topic,
)
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.checkpoints import CheckpointKey, CheckpointTimes
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.groups import GroupOffsets
from sparkmirror.wire.admin.messages import chunks

__all__ = [
    "GroupClusters",
    "GroupsJob",
    "checkpoints_topic",
    "create_offset_topics",
    "offset_topics",
]

log = logging.getLogger(__name__)

_TICK_S_MAX = 1.0
_ERRORS_SHOWN_MAX = 3
_CLOSE_S = 0.5
# A list of groups that lacks those of a silent broker is asked for again after this time.
_AGAIN_S = 60.0
# Of a write that runs into the request timeout all is written again.
_CHECKPOINTS_PER_WRITE = 10_000
_SYNCS_FACTOR = "offset-syncs.topic.replication.factor"


class GroupClusters:
    """The clients for one flow's groups.

    ``syncs`` reads the offset-syncs topic, on either cluster. ``checkpoints`` reads the checkpoints
    topic. ``source`` reads the source's topics; the default is ``source_admin``.
    """

    def __init__(
        self,
        *,
        source_admin: Cluster,
        target_admin: Cluster,
        target: Cluster,
        syncs: Cluster,
        checkpoints: Cluster,
        source: Cluster | None = None,
    ) -> None:
        self.source = source or source_admin
        self.source_admin = source_admin
        self.target_admin = target_admin
        self.target = target
        self.syncs = syncs
        self.checkpoints = checkpoints


def offset_topics(flow: FlowSettings) -> list[tuple[str, CompactedTopic]]:
    """The topics for offset translation, each with its cluster: ``source`` or ``target``. Pure.

    The topic of runs may have fewer replicas than configured if there are fewer brokers: without
    it, translation is only less exact.
    """
    syncs = flow.offset_syncs
    if not syncs.enabled:
        return []
    factor = syncs.replication_factor
    runs = CompactedTopic(runs_topic(flow), factor, _SYNCS_FACTOR, at_most_brokers=True)
    return [
        ("target", runs),
        (syncs.location, CompactedTopic(offset_syncs_topic(flow), factor, _SYNCS_FACTOR)),
    ]


def checkpoints_topic(flow: FlowSettings) -> CompactedTopic:
    """The topic of checkpoints, on the target. Pure."""
    key = "checkpoints.topic.replication.factor"
    return CompactedTopic(CheckpointRules(flow).topic, flow.checkpoints.replication_factor, key)


def create_offset_topics(
    flow: FlowSettings, source_admin: Cluster, target_admin: Cluster
) -> list[str]:
    """Create the missing topics of `offset_topics`; returns notices.

    A topic that cannot be created gives a notice, not an error: records are mirrored without it,
    and the other topic still allows some translation.
    """
    told = []
    for side, topic in offset_topics(flow):
        try:
            told.append(create_compacted(source_admin if side == "source" else target_admin, topic))
        except MirrorError as error:
            without = "no offset syncs are written" if topic.name != runs_topic(flow) else (
                "translation is less exact"
            )  # fmt: skip
            told.append(f"{flow.name}: {without}: {error}")
    return [line for line in told if line]


def _same_objects(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether both have the same keys with identical objects.

    `wire.admin.groups` returns the same object for offsets that have not changed.
    """
    return one.keys() == other.keys() and all(other[key] is found for key, found in one.items())


class GroupsJob:
    """Checkpoints and group offset sync of one flow. ``notify`` takes lines for the user.

    A lock keeps `tick` and `finish` from running at the same time.
    """

    def __init__(
        self,
        flow: FlowSettings,
        clusters: GroupClusters,
        notify: Callable[[str], None],
        *,
        now_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.flow = flow
        self.times = CheckpointTimes()
        # Against high watermarks, as in Kafka's tools: groups may read what is not committed yet.
        self.lags = GroupLags(clusters.source, "read_uncommitted")
        self._clusters = clusters
        self._notify = notify
        self._now_s, self._now_ms = now_s, now_ms
        self._rules = CheckpointRules(flow)
        self._store = CheckpointStore(withdraws=flow.checkpoints.sync_enabled)
        self._earlier = TopicFollower(clusters.checkpoints, self._rules.topic)
        self._translation: Translation | None = None
        self._groups: set[str] | None = None
        self._missed = False  # whether a broker did not tell its groups
        self._busy = threading.Lock()
        self._reported: dict[str, dict[str, str]] = {}
        self._settled: dict[str, GroupOffsets] | None = None
        self._skipped = 0
        began = now_s()
        settings = flow.checkpoints
        self._refresh_at = began
        self._checkpoint_at = began + settings.interval_s
        self._sync_at = began + settings.sync_interval_s

    @property
    def pause_s(self) -> float:
        """Seconds to wait until the next `tick`."""
        return min(_TICK_S_MAX, max(0.05, self._next_at() - self._now_s()))

    def _next_at(self) -> float:
        settings = self.flow.checkpoints
        return min(self._checkpoint_at, self._sync_at) if settings.sync_enabled else (
            self._checkpoint_at
        )  # fmt: skip

    def tick(self) -> None:
        """Do what is due. Raises `MirrorError`; failed work is retried at its next interval."""
        settings, now = self.flow.checkpoints, self._now_s()
        with self._busy:
            if self._translation is None:
                self._start()
            try:
                due = now >= self._refresh_at and (settings.refresh_enabled or self._missed)
                # A broker that was silent may be so again: checkpoints of the others come first.
                late = due and self._missed
                if self._groups is None or (due and not late):
                    self._look_for_groups()
                if now >= self._checkpoint_at:
                    self._checkpoint_at = now + settings.interval_s
                    self._emit()
                if late:
                    self._look_for_groups()
            finally:
                if settings.sync_enabled and now >= self._sync_at:  # it needs the target alone
                    self._sync_at = now + settings.sync_interval_s
                    self._sync()

    def finish(self) -> None:
        """Run the last round now, with the groups that exist now. Raises `MirrorError`."""
        with self._busy:
            if self._translation is None:
                self._start()
            try:
                self._look_for_groups()
                self._emit()
            finally:
                # A source that is gone is why groups move: they get what was known before.
                if self.flow.checkpoints.sync_enabled:
                    self._sync()

    def _start(self) -> None:
        """Create the checkpoints topic if missing, and read the checkpoints of earlier runs."""
        flow, clusters = self.flow, self._clusters
        told = create_compacted(clusters.target_admin, checkpoints_topic(flow))
        if told:
            self._notify(told)
        report_missing_permissions(
            flow,
            [self._rules.topic],
            lambda each: clusters.target if each == flow.target else clusters.checkpoints,
            self._notify,
        )
        loaded = self._store.load(self._earlier)
        self._earlier.close()
        self._translation = Translation(
            TopicFollower(clusters.syncs, offset_syncs_topic(flow)),
            TopicFollower(clusters.target, runs_topic(flow)),
            must_read_to_end=not loaded,
            mapped=self._rules.mapped,
        )

    def _look_for_groups(self) -> None:
        self._refresh_at = self._now_s() + self.flow.checkpoints.refresh_interval_s
        before, source = self._groups, self._clusters.source_admin
        missed: list[ClusterError] = []
        present = source.groups(missed.append)
        self._groups = wanted_groups(self.flow, present)
        self._missed = bool(missed)
        if missed:
            # What this broker's groups are is known again when it is back, or others have them.
            self._groups |= self._known_groups() if before is None else before
            again_s = max(_AGAIN_S, self.flow.checkpoints.interval_s)
            self._refresh_at = min(self._refresh_at, self._now_s() + again_s)
        self.times.keep(self._groups)
        self._report_errors({f"cluster {source.alias}": missed[0]} if missed else {}, "groups")
        if before is None:
            report_hidden_groups(self.flow, self._clusters.source_admin, present, self._notify)
        if before is not None and self._groups != before:
            log.info(
                "%s: %d consumer groups (%d new, %d gone)",
                *(self.flow.name, len(self._groups)),
                *(len(self._groups - before), len(before - self._groups)),
            )

    def _known_groups(self) -> set[str]:
        """The groups that earlier runs wrote checkpoints of."""
        return wanted_groups(self.flow, self._store.groups())

    def _emit(self) -> None:
        """Run one round of checkpoints."""
        if self._translation is None:
            raise Defect("no translation has been read")
        began = self._now_s()
        translation = self._translation
        # Offsets first: the topics are read after them, so they cover what the groups have read.
        found = self._clusters.source_admin.committed_by_group(self._groups or ())
        listed_ms = self._now_ms()
        committed = {group: o for group, o in found.items() if not isinstance(o, MirrorError)}
        accepted = accepted_offsets(committed, self._rules)
        self.lags.offer(accepted)
        topic_ids = mirrored_topic_ids(self._clusters.source_admin, accepted)
        # What a round has read that then fails is news in the next one.
        settled, self._settled = self._settled, None
        news = translation.catch_up() or topic_ids != translation.topic_ids
        translation.topic_ids = topic_ids
        self._report_skipped(self._store.skipped + translation.skipped)
        self._report_errors(
            {g: o for g, o in found.items() if isinstance(o, MirrorError)}, "checkpoints"
        )
        # If nothing has changed since the last round, there is nothing to emit.
        same = settled is not None and not news and _same_objects(settled, committed)
        checkpoints = [] if same else plan_checkpoints(
            accepted, self._rules, translation.translate, self._store, translation.cuts
        )  # fmt: skip
        losses: dict[TopicPartition, int] = {}
        if checkpoints:
            sources = {tp for offsets in accepted.values() for tp in offsets}
            losses = {self._rules.remote(tp): len(translation.cuts(tp)) for tp in sources}
        for some in chunks(checkpoints, _CHECKPOINTS_PER_WRITE):
            self._write(some, listed_ms, losses)
        self._settled = committed
        pruned = translation.pruning()
        if pruned:
            self._clusters.target.produce_many(runs_topic(self.flow), pruned)
        log.log(
            logging.INFO if checkpoints else logging.DEBUG,
            "%s: %d checkpoints emitted for %d groups; the round took %.0f ms",
            *(self.flow.name, len(checkpoints), len(found), (self._now_s() - began) * 1000),
        )

    def _report_skipped(self, count: int) -> None:
        if count > self._skipped:
            topics = f"{offset_syncs_topic(self.flow)} or {runs_topic(self.flow)}"
            self._notify(
                f"{self.flow.name}: {count} records of {self._rules.topic}, {topics} cannot be "
                "decoded and are skipped"
            )
        self._skipped = count

    def _write(
        self,
        checkpoints: Sequence[Checkpoint],
        listed_ms: int,
        losses: Mapping[TopicPartition, int],
    ) -> None:
        rows = []
        for checkpoint in checkpoints:
            try:
                rows.append((0, *encode_checkpoint(checkpoint)))
            except ValueError as error:
                log.warning("%s: no checkpoint for %s: %s", self.flow.name, checkpoint, error)
        if rows:
            try:
                self._clusters.target.produce_many(self._rules.topic, rows, timestamp_ms=listed_ms)
            except MirrorError as error:
                if not isinstance(error, Denied | Unreachable):
                    self._create_again()
                raise
        latency_ms = max(0, self._now_ms() - listed_ms)
        for checkpoint in checkpoints:
            remote = checkpoint.remote
            self._store.put(checkpoint, losses.get(remote, 0))
            key = CheckpointKey(checkpoint.group, remote.topic, remote.partition)
            self.times.record(key, latency_ms)

    def _create_again(self) -> None:
        """Create the checkpoints topic if it has been deleted; the next round writes all again."""
        told = create_compacted(self._clusters.target_admin, checkpoints_topic(self.flow))
        if told:
            self._notify(f"{told}: it was deleted")
            # What it knew is gone with the topic.
            self._store = CheckpointStore(withdraws=self.flow.checkpoints.sync_enabled)

    def _sync(self) -> None:
        """Run one round of group offset sync."""
        groups = self._groups
        if groups is None:  # the source has not told them yet; earlier runs knew them
            groups = self._known_groups()
        done, errors = sync_group_offsets(self._clusters.target_admin, self._store, groups)
        self._report_errors(errors, "group offsets")
        log.debug("%s: offsets of %d groups committed", self.flow.name, done)

    def _report_errors(self, errors: dict[str, MirrorError], what: str) -> None:
        """Report each group whose error is new: the first few by name, the others as a number."""
        # One that comes back after a good round is new again.
        before = self._reported.get(what, {})
        self._reported[what] = {group: str(error) for group, error in errors.items()}
        news = [
            (group, error)
            for group, error in sorted(errors.items())
            if before.get(group) != str(error)
        ]
        for group, error in news[:_ERRORS_SHOWN_MAX]:
            self._notify(f"{self.flow.name}: {what} of {group}: {error}")
        if len(news) > _ERRORS_SHOWN_MAX:
            more = len(news) - _ERRORS_SHOWN_MAX
            self._notify(f"{self.flow.name}: {what} of {more} more groups: as above")

    def close(self) -> None:
        """Close the readers' connections. Raises `MirrorError` if that fails."""
        if not self._busy.acquire(timeout=_CLOSE_S):
            return  # a round waits for an unavailable cluster; its connections end with the process
        try:
            self._earlier.close()
            if self._translation is not None:
                self._translation.close()
        finally:
            self._busy.release()
