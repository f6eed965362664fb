"""Compares the consumer groups of one flow on both clusters. Read-only: changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkmirror.control.groups.checkpoints import CheckpointRules, CheckpointStore, wanted_groups
from sparkmirror.control.topics.compacted import TopicFollower
from sparkmirror.control.topics.observation import Observation
from sparkmirror.errors import Denied, MirrorError
from sparkmirror.internal_topics.mm2_records import Checkpoint, decode_offset_sync
from sparkmirror.internal_topics.offset_syncs import OffsetSyncStore
from sparkmirror.model import TopicPartition
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.groups import IDLE_STATES
from sparkmirror.wire.cluster.views import Committed, GroupOwner, GroupView

__all__ = ["FlowGroups", "GroupOffset", "compare_groups", "measure_groups", "mirrormaker_offsets"]

Offsets = Mapping[TopicPartition, Committed]
Owners = Mapping[TopicPartition, GroupOwner]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """One partition of one group.

    ``offset``: committed on the source. ``end``: end offset on the source; None without a leader.
    ``translated``: target offset of the newest checkpoint; ``checkpoint_of``: its source offset.
    Both are None without a checkpoint. ``target_offset``: committed on the target, or None.
    ``owner``: the member that reads the partition on the source; None if there is none.
    """

    group: str
    state: str
    topic: str
    partition: int
    offset: int
    end: int | None
    remote_topic: str
    translated: int | None
    checkpoint_of: int | None
    target_offset: int | None
    owner: GroupOwner | None = None

    @property
    def lag(self) -> int | None:
        """Offsets that the group has not read on the source; None if unknown."""
        return None if self.end is None or self.end < self.offset else self.end - self.offset

    @property
    def remark(self) -> str:
        """Anything unusual about the row; empty if nothing is."""
        if self.end is not None and self.offset > self.end:
            return "the offset is beyond the end: the topic was recreated or truncated"
        if self.translated is None:
            return "no checkpoint yet"
        if self.checkpoint_of is not None and self.checkpoint_of != self.offset:
            return f"the checkpoint is of offset {self.checkpoint_of}"
        return ""


@dataclass(frozen=True, slots=True)
class FlowGroups:
    """All groups of one flow. ``failures``: errors of groups whose offsets or members are unknown.

    ``checkpoints``: whether the flow emits checkpoints.
    """

    flow: str
    rows: tuple[GroupOffset, ...]
    failures: tuple[MirrorError, ...] = ()
    checkpoints: bool = True


def measure_groups(
    flow: FlowSettings,
    states: Mapping[str, GroupView],
    committed: Mapping[str, Offsets],
    ends: Mapping[TopicPartition, int],
    stored: CheckpointStore,
    on_target: Mapping[str, Offsets],
    owners: Mapping[str, Owners] | None = None,
) -> tuple[GroupOffset, ...]:
    """One row per group and partition of the flow's topics. Pure.

    ``committed``, ``ends`` and ``owners``: committed offsets, end offsets and partition owners on
    the source. ``stored``: checkpoints. ``on_target``: committed offsets on the target.
    """
    rules = CheckpointRules(flow)
    rows = []
    for group, offsets in sorted(committed.items()):
        for tp, one in sorted(offsets.items()):
            if not rules.accepts(tp.topic):
                continue
            remote = rules.remote(tp)
            checkpoint = stored.of(group).get(remote)
            there = on_target.get(group, {}).get(remote)
            rows.append(
                GroupOffset(
                    group=group,
                    state=states[group].state if group in states else "",
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=one.offset,
                    end=ends.get(tp),
                    remote_topic=remote.topic,
                    translated=checkpoint.downstream if checkpoint else None,
                    checkpoint_of=checkpoint.upstream if checkpoint else None,
                    target_offset=there.offset if there else None,
                    owner=(owners or {}).get(group, {}).get(tp),
                )
            )
    return tuple(rows)


def compare_groups(observed: Observation) -> FlowGroups:
    """The groups of one flow as they are now. Raises `MirrorError` if a cluster is unavailable."""
    flow, rules = observed.flow, CheckpointRules(observed.flow)
    states = observed.source.groups()
    names = wanted_groups(flow, states)
    found = observed.source.committed_by_group(names)
    failures = tuple(one for one in found.values() if isinstance(one, MirrorError))
    committed = {group: o for group, o in found.items() if not isinstance(o, MirrorError)}
    wanted = {tp for offsets in committed.values() for tp in offsets if rules.accepts(tp.topic)}
    # Read after the offsets: an earlier end could be smaller than an offset committed since.
    # High watermarks, as in Kafka's own tools: groups may read what is not committed yet.
    ends = observed.source.end_offsets(wanted, "read_uncommitted")
    stored = CheckpointStore()
    if observed.target.topics([rules.topic]):
        follower = TopicFollower(observed.checkpoints, rules.topic)
        for key, value in follower.read():
            stored.take(key, value)
        follower.close()
    there = observed.target.committed_by_group(committed)
    on_target = {group: o for group, o in there.items() if not isinstance(o, MirrorError)}
    failures += tuple(one for one in there.values() if isinstance(one, MirrorError))
    owners, hidden = _owners(
        observed.source, [states[group] for group in committed if group in states]
    )
    rows = measure_groups(flow, states, committed, ends, stored, on_target, owners)
    return FlowGroups(flow.name, rows, failures + hidden, flow.checkpoints.enabled)


def _owners(
    source: Cluster, groups: Iterable[GroupView]
) -> tuple[dict[str, Owners], tuple[MirrorError, ...]]:
    """The partition owners by group, and the errors of groups that may not be described."""
    owners: dict[str, Owners] = {}
    hidden: list[MirrorError] = []
    for group in groups:
        if group.state in IDLE_STATES:
            continue  # no members: most groups of a large cluster
        try:
            owners[group.name] = source.group_owners(group.name)
        except Denied as error:
            hidden.append(error)
    return owners, tuple(hidden)


def mirrormaker_offsets(
    rules: CheckpointRules, syncs: TopicFollower, checkpoints: Iterable[Checkpoint]
) -> dict[tuple[str, TopicPartition], int | None]:
    """Target offsets that Java's MirrorMaker 2 would translate, by group and remote partition.

    For the upstream offset of each checkpoint; None where MirrorMaker 2 would emit no checkpoint.
    The result is that of a MirrorMaker 2 that starts now, with offset syncs alone (64 per
    partition). One that has run for long knows more, because compaction in the end leaves only the
    newest sync of each partition. Raises `MirrorError` if ``syncs`` cannot be read.
    """
    store = OffsetSyncStore(must_read_to_end=False)
    source_of: dict[TopicPartition, TopicPartition] = {}
    for key, value in syncs.read():
        sync = decode_offset_sync(key, value)
        # A topic that a map names has no syncs: these are of an earlier remote topic.
        if sync is not None and rules.mapped(sync[0].topic) is None:
            store.add(*sync)
            source_of[rules.remote(sync[0])] = sync[0]
    store.finish_reading()
    found: dict[tuple[str, TopicPartition], int | None] = {}
    for one in checkpoints:
        source = source_of.get(one.remote)
        offset = None if source is None else store.translate(source, one.upstream)
        found[one.group, one.remote] = None if offset is None or offset < 0 else offset
    return found
