"""Checkpoints of one flow: the target offsets of the source's consumer groups.

`plan_checkpoints` is pure: it takes committed source offsets and returns the checkpoints to emit,
by the rules of MirrorMaker 2's ``MirrorCheckpointTask``. A checkpoint is emitted if there was none,
if the group was rewound on the source, or if its target offset has advanced. A smaller target
offset alone emits nothing, except when the target has lost the records before the last checkpoint.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter

from sparkmirror.control.topics.compacted import TopicFollower
from sparkmirror.errors import ConfigError, MirrorError
from sparkmirror.internal_topics.mm2_records import Checkpoint, checkpoints_topic, decode_checkpoint
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import FlowTopics, TopicFilter
from sparkmirror.names.transforms import Transformed
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import Committed

__all__ = [
    "CheckpointRules",
    "CheckpointStore",
    "accepted_offsets",
    "mirrored_topic_ids",
    "plan_checkpoints",
    "wanted_groups",
]

log = logging.getLogger(__name__)

_POSITION_GROUPS = "__mirror."
_TOPICS_REMEMBERED = 65_536
# Of each group and partition; a group may stand at one of them on the target.
_EMITTED_REMEMBERED = 32

Translate = Callable[[TopicPartition, int], int | None]


class CheckpointRules:
    """Which topics have checkpoints, and the names of their remote partitions."""

    def __init__(self, flow: FlowSettings) -> None:
        names = FlowTopics(flow)
        self._policy = names.policy
        self.mapped = names.mapped
        """Returns the name that a map gives a source topic; None if the policy names it."""
        self._source, self._target = flow.source.alias, flow.target.alias
        # Only the lists, as in MirrorMaker 2: internal topics have no translation anyway.
        self._topics = TopicFilter(flow.topics.include, flow.topics.exclude)
        self._transformed = Transformed(flow)
        self.topic = checkpoints_topic(flow)
        # Cached: many groups read the same topics, and each round goes through all groups.
        self.accepts = lru_cache(_TOPICS_REMEMBERED)(self._accepts)
        self._remote = lru_cache(_TOPICS_REMEMBERED)(self._remote_topic)

    def _accepts(self, topic: str) -> bool:
        """Whether offsets of source topic ``topic`` become checkpoints."""
        if not self._topics.accepts(topic):
            return False
        try:
            # Of routed records it is not known where they are.
            return not self._transformed.routes(topic)
        except ConfigError:  # two transforms match it, so it is not mirrored
            return False

    def remote(self, source: TopicPartition) -> TopicPartition:
        """The partition on the target. A topic mirrored from the target has its original name."""
        return TopicPartition(self._remote(source.topic), source.partition)

    def _remote_topic(self, topic: str) -> str:
        mapped = self.mapped(topic)
        if mapped is not None:
            return mapped
        if self._policy.topic_source(topic) == self._target:
            return self._policy.original_topic(topic)
        return self._policy.format_remote_topic(self._source, topic)


def wanted_groups(flow: FlowSettings, present: Iterable[str]) -> set[str]:
    """Those of ``present`` that ``groups`` and ``groups.exclude`` select. Pure.

    Groups that hold the positions of a mirror are left out.
    """
    names = TopicFilter(flow.checkpoints.include, flow.checkpoints.exclude)
    return {
        name for name in present if names.accepts(name) and not name.startswith(_POSITION_GROUPS)
    }


def accepted_offsets(
    committed: Mapping[str, Mapping[TopicPartition, Committed]], rules: CheckpointRules
) -> dict[str, dict[TopicPartition, Committed]]:
    """The part of ``committed`` whose topics have checkpoints. Pure."""
    names = {tp.topic for offsets in committed.values() for tp in offsets}
    wanted = {name for name in names if rules.accepts(name)}
    return {
        group: {tp: one for tp, one in offsets.items() if tp.topic in wanted}
        for group, offsets in committed.items()
    }


def mirrored_topic_ids(
    source: Cluster, accepted: Mapping[str, Mapping[TopicPartition, Committed]]
) -> dict[str, str]:
    """Ids of the topics in ``accepted`` (see `accepted_offsets`), by name. Raises `MirrorError`.

    Call it after the offsets are read: brokers delete the offsets of a deleted topic.
    """
    views = source.topics({tp.topic for offsets in accepted.values() for tp in offsets})
    return {name: view.topic_id for name, view in views.items()}


class CheckpointStore:
    """The newest checkpoint per group and remote partition.

    ``withdraws``: whether to keep `withdrawn`, which only group offset sync reads.
    """

    def __init__(self, *, withdraws: bool = True) -> None:
        self._withdraws = withdraws
        self._known: dict[str, dict[TopicPartition, Checkpoint]] = {}
        self.withdrawn: dict[tuple[str, TopicPartition], set[int]] = {}
        """Target offsets of withdrawn checkpoints, by group and remote partition.

        Checkpoints are withdrawn by one with a smaller target offset for a group that was not
        rewound: the last 32 with larger ones since the group was rewound.
        """
        self.skipped = 0
        self._emitted: dict[tuple[str, TopicPartition], array[int]] = {}
        self._losses: dict[tuple[str, TopicPartition], int] = {}

    def load(self, topic: TopicFollower) -> bool:
        """Read the checkpoints of earlier runs; False if the topic cannot be read.

        Without them only the newest offset sync of each partition may be used
        (``must_read_to_end`` of `OffsetSyncStore`).
        """
        try:
            for key, value in topic.read():
                self.take(key, value)
        except MirrorError as error:
            log.warning("checkpoints of earlier runs cannot be read: %s", error)
            return False
        return True

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Add one record of the checkpoints topic; ``skipped`` counts other records."""
        checkpoint = decode_checkpoint(key, value)
        if checkpoint is None:
            self.skipped += 1
        else:
            self.put(checkpoint)

    def put(self, checkpoint: Checkpoint, losses: int = 0) -> None:
        """Keep ``checkpoint`` as the newest one of its group and partition.

        ``losses``: how many of the partition were known when it was made.
        """
        key = checkpoint.group, checkpoint.remote
        if self._withdraws:
            self._withdraw(key, self.of(checkpoint.group).get(checkpoint.remote), checkpoint)
        self._known.setdefault(checkpoint.group, {})[checkpoint.remote] = checkpoint
        self._losses[key] = losses

    def _withdraw(
        self, key: tuple[str, TopicPartition], last: Checkpoint | None, checkpoint: Checkpoint
    ) -> None:
        """Keep what ``checkpoint`` withdraws, and what later ones may; ``last``: the one before."""
        emitted = self._emitted.setdefault(key, array("q"))
        if last is not None and checkpoint.upstream < last.upstream:
            del emitted[:]
        elif last is not None and checkpoint.downstream < last.downstream:
            # Group offsets are written at an interval of their own, so one may be at any of them.
            self.withdrawn.setdefault(key, set()).update(emitted)
        # What has records again counts as any other place.
        beyond = {at for at in self.withdrawn.pop(key, ()) if at > checkpoint.downstream}
        if beyond:
            self.withdrawn[key] = beyond
        emitted.append(checkpoint.downstream)
        del emitted[:-_EMITTED_REMEMBERED]

    def losses(self, checkpoint: Checkpoint) -> int:
        """How many losses were known when the newest one of this group and partition was made.

        0 for one of an earlier run: whether it came before or after them is not known.
        """
        return self._losses.get((checkpoint.group, checkpoint.remote), 0)

    def of(self, group: str) -> Mapping[TopicPartition, Checkpoint]:
        """Checkpoints of ``group`` by remote partition."""
        return self._known.get(group, {})

    def groups(self) -> set[str]:
        """The groups that have checkpoints."""
        return set(self._known)


def plan_checkpoints(
    committed: Mapping[str, Mapping[TopicPartition, Committed]],
    rules: CheckpointRules,
    translate: Translate,
    store: CheckpointStore,
    cuts: Callable[[TopicPartition], Sequence[int]] = lambda _: (),
) -> list[Checkpoint]:
    """The checkpoints to emit. ``committed``: source offsets by group and partition. Pure.

    ``cuts`` returns, for a source partition, the target offsets from which the target has lost
    records, one for each loss so far. Only those after the last checkpoint can take it back.
    """
    return [
        checkpoint
        for group in sorted(committed)
        for source, checkpoint in _candidates(group, committed[group], rules, translate)
        if _is_news(
            checkpoint,
            store.of(group).get(checkpoint.remote),
            cuts(source)[store.losses(checkpoint) :],
        )
    ]


def _candidates(
    group: str,
    offsets: Mapping[TopicPartition, Committed],
    rules: CheckpointRules,
    translate: Translate,
) -> Iterable[tuple[TopicPartition, Checkpoint]]:
    for source in sorted(offsets, key=attrgetter("topic", "partition")):
        if not rules.accepts(source.topic):
            continue
        offset = offsets[source]
        downstream = translate(source, offset.offset)
        if downstream is not None and downstream >= 0:
            yield (
                source,
                Checkpoint(group, rules.remote(source), offset.offset, downstream, offset.metadata),
            )


def _is_news(new: Checkpoint, last: Checkpoint | None, cuts: Sequence[int]) -> bool:
    if last is None:
        return True
    rewound_upstream = new.upstream < last.upstream
    advanced_downstream = new.downstream > last.downstream
    lost_downstream = new.downstream < last.downstream and any(
        cut < last.downstream for cut in cuts
    )
    return rewound_upstream or advanced_downstream or lost_downstream
