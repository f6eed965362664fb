"""The consumer groups of one flow: checkpoints and group offsets, each at its interval.

One round is: look (groups, committed offsets, where source offsets went), plan, write. `tick` does
what is due; `finish` is the last round of a mirror that ends, when the slots have written all they
had, so that a planned failover finds the groups where the mirror stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sparkmirror.control.checkpoints import (
    CheckpointRules,
    CheckpointStore,
    plan_checkpoints,
    wanted_groups,
)
from sparkmirror.control.compacted import TopicFollower, create_compacted
from sparkmirror.control.group_offsets import sync_group_offsets
from sparkmirror.control.translation import Translation
from sparkmirror.errors import MirrorError
from sparkmirror.model import FlowSettings
from sparkmirror.observe.checkpoints import CheckpointKey, CheckpointTimes
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.mirror_records import (
    Checkpoint,
    encode_checkpoint,
    offset_syncs_topic,
)
from sparkmirror.wire.runs import runs_topic

__all__ = ["GroupClusters", "GroupsJob", "create_offset_topics"]

log = logging.getLogger(__name__)

_TICK_S_MAX = 1.0
_ERRORS_TOLD_MAX = 3
_CLOSE_S = 0.5


class GroupClusters:
    """The clients of one flow's groups. ``syncs``: reads the offset-syncs topic where it is."""

    def __init__(
        self,
        *,
        source_admin: Cluster,
        target_admin: Cluster,
        target: Cluster,
        syncs: Cluster,
        checkpoints: Cluster,
    ) -> None:
        self.source_admin = source_admin
        self.target_admin = target_admin
        self.target = target
        self.syncs = syncs
        self.checkpoints = checkpoints


def create_offset_topics(flow: FlowSettings, syncs_admin: Cluster, target_admin: Cluster) -> str:
    """Create the offset-syncs topic and the topic of runs where missing; notices, one per line.

    Raises `MirrorError`; without these topics records are mirrored all the same.
    """
    factor = flow.offset_syncs.replication_factor
    key = "offset-syncs.topic.replication.factor"
    told = [create_compacted(syncs_admin, offset_syncs_topic(flow), factor, key)]
    # Losing it makes translation less exact, no more, so it makes do with the brokers there are.
    factor = min(factor, len(target_admin.describe().brokers))
    told.append(create_compacted(target_admin, runs_topic(flow), factor, key))
    return "\n".join(filter(None, told))


class GroupsJob:
    """Checkpoints and group offsets of one flow. ``tick`` and ``finish`` may not overlap, and see
    to that themselves. ``say`` takes one-line notices for the user.
    """

    def __init__(
        self,
        flow: FlowSettings,
        clusters: GroupClusters,
        say: Callable[[str], None],
        *,
        now_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.flow = flow
        self.times = CheckpointTimes()
        self._clusters = clusters
        self._say = say
        self._now_s, self._now_ms = now_s, now_ms
        self._rules = CheckpointRules(flow)
        self._store = CheckpointStore()
        self._earlier = TopicFollower(clusters.checkpoints, self._rules.topic)
        self._translation: Translation | None = None
        self._groups: set[str] | None = None
        self._busy = threading.Lock()
        self._told: dict[str, str] = {}
        began = now_s()
        settings = flow.checkpoints
        self._refresh_at = began
        self._checkpoint_at = began + settings.interval_s
        self._sync_at = began + settings.sync_interval_s

    @property
    def pause_s(self) -> float:
        """How long to wait until the next `tick`."""
        return min(_TICK_S_MAX, max(0.05, self._next_at() - self._now_s()))

    def _next_at(self) -> float:
        settings = self.flow.checkpoints
        return min(self._checkpoint_at, self._sync_at) if settings.sync_enabled else (
            self._checkpoint_at
        )  # fmt: skip

    def tick(self) -> None:
        """Do what is due. Raises `MirrorError`; what failed is done at its next time."""
        settings, now = self.flow.checkpoints, self._now_s()
        with self._busy:
            if self._translation is None:
                self._start()
            if self._groups is None or (settings.refresh_enabled and now >= self._refresh_at):
                self._refresh_at = now + settings.refresh_interval_s
                self._look_for_groups()
            if now >= self._checkpoint_at:
                self._checkpoint_at = now + settings.interval_s
                self._emit()
            if settings.sync_enabled and now >= self._sync_at:
                self._sync_at = now + settings.sync_interval_s
                self._sync()

    def finish(self) -> None:
        """The last round: whatever the intervals, with the groups there are now."""
        with self._busy:
            if self._translation is None:
                self._start()
            self._look_for_groups()
            self._emit()
            if self.flow.checkpoints.sync_enabled:
                self._sync()

    def _start(self) -> None:
        """Make the topics that are missing, learn what earlier runs have emitted."""
        flow, clusters = self.flow, self._clusters
        key = "checkpoints.topic.replication.factor"
        factor = flow.checkpoints.replication_factor
        told = create_compacted(clusters.target_admin, self._rules.topic, factor, key)
        if told:
            self._say(told)
        loaded = self._store.load(self._earlier)
        self._earlier.close()
        self._translation = Translation(
            TopicFollower(clusters.syncs, offset_syncs_topic(flow)),
            TopicFollower(clusters.target, runs_topic(flow)),
            must_read_to_end=not loaded,
        )

    def _look_for_groups(self) -> None:
        before = self._groups
        self._groups = wanted_groups(self.flow, self._clusters.source_admin.groups())
        if before is not None and self._groups != before:
            log.info(
                "%s: %d consumer groups (%d new, %d gone)",
                *(self.flow.name, len(self._groups)),
                *(len(self._groups - before), len(before - self._groups)),
            )

    def _emit(self) -> None:
        """One round of checkpoints."""
        assert self._translation is not None
        translation = self._translation
        # The groups first: what they have read by now is surely in the topics read after.
        found = self._clusters.source_admin.committed_by_group(self._groups or ())
        listed_ms = self._now_ms()
        translation.catch_up()
        committed = {group: o for group, o in found.items() if not isinstance(o, MirrorError)}
        self._tell({g: o for g, o in found.items() if isinstance(o, MirrorError)}, "checkpoints")
        checkpoints = plan_checkpoints(committed, self._rules, translation.translate, self._store)
        self._write(checkpoints, listed_ms)
        pruned = translation.pruning()
        if pruned:
            self._clusters.target.produce_many(runs_topic(self.flow), pruned)

    def _write(self, checkpoints: list[Checkpoint], listed_ms: int) -> None:
        rows = []
        for checkpoint in checkpoints:
            try:
                rows.append((0, *encode_checkpoint(checkpoint)))
            except ValueError as error:
                log.warning("%s: no checkpoint for %s: %s", self.flow.name, checkpoint, error)
        if rows:
            self._clusters.target.produce_many(self._rules.topic, rows, timestamp_ms=listed_ms)
        latency_ms = max(0, self._now_ms() - listed_ms)
        for checkpoint in checkpoints:
            self._store.put(checkpoint)
            remote = checkpoint.remote
            key = CheckpointKey(checkpoint.group, remote.topic, remote.partition)
            self.times.record(key, latency_ms)
        log.debug("%s: %d checkpoints emitted", self.flow.name, len(rows))

    def _sync(self) -> None:
        """One round of group offsets."""
        done, errors = sync_group_offsets(
            self._clusters.target_admin, self._store, self._groups or ()
        )
        self._tell(errors, "group offsets")
        log.debug("%s: offsets of %d groups committed", self.flow.name, done)

    def _tell(self, errors: dict[str, MirrorError], what: str) -> None:
        """A notice per group whose trouble is new; a few of them, the rest by number."""
        before, self._told = self._told, {**self._told}
        news = []
        for group, error in sorted(errors.items()):
            if before.get(f"{what} {group}") != str(error):
                self._told[f"{what} {group}"] = str(error)
                news.append((group, error))
        for group, error in news[:_ERRORS_TOLD_MAX]:
            self._say(f"{self.flow.name}: {what} of {group}: {error}")
        if len(news) > _ERRORS_TOLD_MAX:
            more = len(news) - _ERRORS_TOLD_MAX
            self._say(f"{self.flow.name}: {what} of {more} more groups: as above")

    def close(self) -> None:
        """Close the readers' connections. Raises `MirrorError` when one does not in peace."""
        if not self._busy.acquire(timeout=_CLOSE_S):
            return  # a round hangs on a cluster that is away; its connections end with the process
        try:
            self._earlier.close()
            if self._translation is not None:
                self._translation.close()
        finally:
            self._busy.release()
