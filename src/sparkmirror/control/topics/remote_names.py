"""Remote names that a map gives: which topics may have them.

`plan_names` is pure. From the topics of a flow and the rows of `internal_topics.remote_names` it
decides which topics are left out and which rows to write. A remote topic holds the records of one
source topic. If several topics would get its name, the first one has it, and the others are left
out with the reason. The rows are read again after each write: if two flows write at the same time,
both see which row came first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkmirror.control.topics.internal_topics import internal_names
from sparkmirror.errors import TopicError
from sparkmirror.internal_topics.mm2_records import checkpoints_topic, offset_syncs_topic
from sparkmirror.internal_topics.remote_names import (
    REMOTE_NAMES_TOPIC,
    RemoteName,
    collect_remote_names,
    encode_remote_name,
)
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.transforms import unclear_topics
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster

__all__ = ["NamePlan", "RemoteNames", "plan_names", "read_remote_names", "refused_names"]

# Another flow may write a row between two reads; each read settles at least one name.
_LOOKS_MAX = 5


@dataclass(frozen=True, slots=True)
class NamePlan:
    """Which topics are left out, and which rows to write.

    ``refused``: topics that are left out, and why. ``merging``: those of them whose name belongs to
    another flow. ``rows``: rows of this flow to write.
    """

    refused: Mapping[str, TopicError] = field(default_factory=dict)
    merging: frozenset[str] = frozenset()
    rows: tuple[RemoteName, ...] = ()


def plan_names(
    topics: Collection[str],
    wanted: FlowTopics,
    flow: FlowSettings,
    known: Sequence[RemoteName],
) -> NamePlan:
    """Which of ``topics`` (of the source) may have the names that the flow gives them. Pure.

    Topics that several transforms match have none. ``known``: the rows on the target, in log order.
    """
    refused = unclear_topics(flow, topics)
    if not flow.keeps_names:
        return NamePlan(refused)
    own = {
        *internal_names(flow),
        *(checkpoints_topic(flow), offset_syncs_topic(flow), runs_topic(flow)),
    }
    mine = {one.remote: one for one in known if one.mirror == flow.mirror}
    others = _held_by_others(flow, known)
    merging = set()
    taken: dict[str, str] = {}

    def holds(topic: str) -> bool:
        row = mine.get(wanted.remote(topic))
        return row is not None and row.topic == topic

    # Topics that already have their name come first.
    clear = (topic for topic in topics if topic not in refused)
    for topic in sorted(clear, key=lambda one: (not holds(one), one)):
        remote = wanted.remote(topic)
        fault = wanted.fault(topic)
        if not fault and remote in own:
            fault = "it is the name of an internal topic of this mirror"
        other = others.get(remote)
        if fault:
            refused[topic] = _unusable(flow, topic, remote, fault)
        elif remote in taken:
            refused[topic] = _taken(flow, topic, remote, taken[remote], flow.source.alias)
        elif other is not None:
            refused[topic] = _taken(flow, topic, remote, other.topic, other.cluster)
            merging.add(topic)
        else:
            taken[remote] = topic
    alias = flow.source.alias
    now = {
        remote: RemoteName(remote, flow.mirror, alias, topic)
        for remote, topic in taken.items()
        if not wanted.policy.is_heartbeats_topic(topic)
    }
    gone = {
        remote: RemoteName(remote, flow.mirror, row.cluster, row.topic, past=True)
        for remote, row in mine.items()
        if remote not in now
    }
    rows = tuple(row for row in (*now.values(), *gone.values()) if mine.get(row.remote) != row)
    return NamePlan(refused, frozenset(merging), rows)


def _held_by_others(flow: FlowSettings, known: Iterable[RemoteName]) -> dict[str, RemoteName]:
    """Rows of remote topics that belong to other flows of the file: their rows came before ours.

    A row is ignored if the file no longer gives that name: its flow has not run discovery since.
    """
    namings = {naming.mirror: FlowTopics(naming) for naming in flow.beside}
    first: dict[str, RemoteName] = {}
    for row in known:
        if row.past or row.remote in first:
            continue
        if row.mirror == flow.mirror:
            first[row.remote] = row
        elif row.mirror in namings:
            names = namings[row.mirror]
            if names.accepts(row.topic) and names.remote(row.topic) == row.remote:
                first[row.remote] = row
    return {remote: row for remote, row in first.items() if row.mirror != flow.mirror}


def _unusable(flow: FlowSettings, topic: str, remote: str, fault: str) -> TopicError:
    return TopicError(
        f"its name on the target would be '{remote}', which is not allowed: {fault}.",
        where=f"cluster {flow.source.alias}, topic {topic}",
        do="Change the rule of sparkmirror.topics.map or the RegexRouter that matches it, or leave "
        "the topic out.",
    )


def _taken(flow: FlowSettings, topic: str, remote: str, other: str, cluster: str) -> TopicError:
    return TopicError(
        f"its name on the target would be '{remote}', which is the copy of topic {other} of "
        f"{cluster}: their records would mix.",
        where=f"cluster {flow.source.alias}, topic {topic}",
        do="Give one of them another name with sparkmirror.topics.map or RegexRouter, or leave it "
        "out.",
    )


# --- on the target ------------------------------------------------------------------------------


def read_remote_names(target: Cluster) -> tuple[RemoteName, ...]:
    """All rows on the target; none if the topic does not exist. Raises `MirrorError`."""
    if REMOTE_NAMES_TOPIC not in target.topics([REMOTE_NAMES_TOPIC]):
        return ()
    records = target.read_compacted(REMOTE_NAMES_TOPIC, partitions=[0], passes=True)
    return collect_remote_names((key, value) for _, key, value in records)


def refused_names(
    target: Cluster, flow: FlowSettings, wanted: FlowTopics, topics: Collection[str]
) -> Mapping[str, TopicError]:
    """Those of ``topics`` that a run would leave out, and why.

    Their remote names may be in the way, or several transforms match them. Writes nothing. Raises
    `MirrorError`.
    """
    known = read_remote_names(target) if flow.keeps_names else ()
    return plan_names(topics, wanted, flow, known).refused


class RemoteNames:
    """Records which source topic each remote topic of a running flow comes from.

    ``merging``: topics that the last `settle` left out because another flow has their name.
    """

    def __init__(self, target: Cluster, flow: FlowSettings, wanted: FlowTopics) -> None:
        self.merging: frozenset[str] = frozenset()
        self._target = target
        self._flow = flow
        self._wanted = wanted

    def settle(self, topics: Collection[str]) -> Mapping[str, TopicError]:
        """Write the rows of this flow; returns the topics that are left out, and why.

        As `refused_names`. Raises `MirrorError`.
        """
        if not self._flow.keeps_names:
            return plan_names(topics, self._wanted, self._flow, ()).refused
        plan = NamePlan()
        for _ in range(_LOOKS_MAX):
            known = read_remote_names(self._target)
            plan = plan_names(topics, self._wanted, self._flow, known)
            if not plan.rows:
                break
            rows = [(0, *encode_remote_name(row)) for row in plan.rows]
            self._target.produce_many(REMOTE_NAMES_TOPIC, rows)
        self.merging = plan.merging
        return plan.refused
