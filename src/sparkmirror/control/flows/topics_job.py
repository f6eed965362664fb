"""The job that discovers topics and turns them into the flow's assignment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkmirror.control.flows.clusters import FlowClusters
from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.mm1.group_share import GroupShare
from sparkmirror.control.positions.first_positions import FirstPositions
from sparkmirror.control.positions.seeding import seed_positions
from sparkmirror.control.topics.discovery import Discovery
from sparkmirror.control.topics.remote_names import RemoteNames
from sparkmirror.control.topics.sync import Assignment, describe_changes
from sparkmirror.internal_topics.commands import CommandKind, SourcePartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings


@dataclass(frozen=True, slots=True)
class _Found:
    """``new``: partitions that the slots do not have yet. ``seeds``: whether to seed positions."""

    assignment: Assignment
    new: tuple[SourcePartition, ...]
    seeds: bool


class TopicsJob:
    """A job (`control.jobs.Round`) that finds new, grown and deleted topics. For one thread.

    ``found``: all that can be mirrored, including partitions that wait for a leader. ``share``: the
    share of a MirrorMaker 1 group, once there is one; the group then assigns the partitions.
    ``at_start``: the next discovery is the first one of the process. ``fresh``: the next one takes
    up new topics and partitions; otherwise, it only repeats what the last one could not do.
    """

    def __init__(
        self,
        settings: FlowSettings,
        clusters: FlowClusters,
        wanted: FlowTopics,
        published: Publication,
        notify: Callable[[str], None],
    ) -> None:
        self.found = published.assignment()
        self.share: GroupShare | None = None
        self.at_start = False
        self.fresh = True
        self._behind = False
        """Whether the writing of what was found has failed."""
        self.first_positions = FirstPositions(clusters.keeper, clusters.source, settings)
        self._settings = settings
        self._keeper = clusters.keeper
        self._published = published
        self._notify = notify
        self._discovery = Discovery(
            *(settings, clusters.source_admin, clusters.target_admin, wanted, notify),
            RemoteNames(clusters.target, settings, wanted),
        )

    def observe(self) -> Assignment:
        """Discover what to mirror, and create remote topics. Raises `MirrorError`."""
        at_start, self.at_start = self.at_start, False
        first = not self._published.version
        return self._discovery.discover(first=first, at_start=at_start, fresh=self.fresh)

    def plan(self, found: Assignment) -> _Found:
        """Find what is new."""
        # Slots have the other partitions, and may be about to commit their first positions.
        before = self._published.assignment().sources
        new = tuple(p for p in found.partitions if p.source not in before)
        return _Found(found, new, found.partitions != self.found.partitions)

    def apply(self, found: _Found) -> bool:
        """Seed positions, then publish; true if a new assignment was published.

        Raises `MirrorError`; the assignment is then unchanged.
        """
        if self.share is not None:
            # The membership reads the topics from there, and `GroupShare.publish` the halts.
            self.share.candidates = found.assignment
            return False
        if found.seeds:
            seed_positions(self._keeper, self._settings, found.assignment)
        self.first_positions.settle(found.new)
        self.found = found.assignment
        return self._adopt_found()

    @property
    def unsettled(self) -> bool:
        """Whether the last discovery left out topics that the target may accept soon."""
        return self._discovery.unsettled

    @property
    def lacks_brokers(self) -> bool:
        """Whether the target has too few brokers for a topic; one may only be down."""
        return self._discovery.lacks_brokers

    @property
    def has_leaderless(self) -> bool:
        """Whether a partition waits for a leader: its start offset depends on the leader."""
        return self.share is None and (self._behind or bool(self.leaderless()))

    def leaderless(self) -> list[SourcePartition]:
        """The partitions that wait for a leader, of those found."""
        waiting = self.first_positions.waiting
        return [p for p in self.found.partitions if p.source in waiting]

    def begin_leaderless(self) -> bool:
        """Begin partitions that had no leader; true if a new assignment was published.

        Raises `MirrorError`; the assignment is then unchanged.
        """
        self.first_positions.settle(self.leaderless())
        return self._adopt_found()

    def _adopt_found(self) -> bool:
        before, after = self._published.assignment(), self.first_positions.hold(self.found)
        if after.partitions == before.partitions and not self._published.unsure:
            self._published.note_halts(after)
            return False
        self._behind = True
        self._published.adopt(after, CommandKind.EXTEND)
        self._behind = False
        for line in describe_changes(before, after):
            self._notify(line)
        return True
