"""Lag of a flow: positions against the source's end offsets, in records and seconds.

`measure` is pure; `observe_flow`, `observe_group` and `check_group` read from the clusters.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sparkmirror.control.topics.remote_names import refused_names
from sparkmirror.errors import ClusterError, TopicError
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.observe.figures.partitions import worst_s
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import BrokerView, GroupOwner, TopicView
from sparkmirror.wire.legacy.zookeeper import ZookeeperGroup, read_group

__all__ = [
    "LagView",
    "Offsets",
    "PartitionLag",
    "check_group",
    "measure",
    "observe_flow",
    "observe_group",
]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Lag of one source partition.

    ``position``: next offset to mirror; None before the first commit. ``end``: end offset on the
    source; None without a leader. ``records``: offsets still to be mirrored; None if unknown.
    ``seconds``: age of the oldest record still to be mirrored; 0 if there is none; None if it has
    no timestamp or could not be read. ``bytes``: estimate of the bytes still to be mirrored, by the
    mean record size at the position. ``remark``: anything unusual. ``owner``: the group member that
    reads the partition, if members were requested.
    """

    topic: str
    partition: int
    position: int | None
    end: int | None
    records: int | None
    seconds: float | None
    remark: str = ""
    owner: GroupOwner | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LagView:
    """All partitions of one flow or group. ``cluster``: alias of the cluster with the offsets.

    ``brokers``: brokers of that cluster, if members were requested.
    """

    flow: str
    group: str
    cluster: str
    partitions: tuple[PartitionLag, ...]
    brokers: tuple[BrokerView, ...] = ()

    @property
    def records(self) -> int | None:
        """Records still to be mirrored in all; None if any partition is unknown."""
        known = [row.records for row in self.partitions if row.records is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def bytes(self) -> int | None:
        """Estimated bytes still to be mirrored in all; None if any partition is unknown."""
        known = [row.bytes for row in self.partitions if row.bytes is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def seconds(self) -> float | None:
        """Age of the oldest record still to be mirrored; None if no age is known."""
        return worst_s((row.records, row.seconds) for row in self.partitions)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Committed, first and end offsets, by source partition."""

    positions: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def begin_of(tp: TopicPartition, offsets: Offsets, reset: str) -> int | None:
    """The next offset that is read; None if unknown. Pure."""
    position, start = offsets.positions.get(tp), offsets.starts.get(tp)
    end = offsets.ends.get(tp)
    if position is not None:
        return max(position, start or 0)
    if start is not None and start == end:
        return start  # the partition is empty, so the reset policy does not matter
    return start if reset == "earliest" else None


def measure(
    partitions: Iterable[TopicPartition],
    offsets: Offsets,
    times_ms: Mapping[TopicPartition, int],
    sizes: Mapping[TopicPartition, float] | None = None,
    *,
    reset: str,
    now_ms: int,
) -> tuple[PartitionLag, ...]:
    """One row per partition, sorted. Pure.

    ``times_ms``: timestamp of the record at the next offset to read, where known. ``sizes``: mean
    bytes per record there. ``reset``: ``auto.offset.reset``, for partitions without a position.
    """
    rows = []
    for tp in sorted(partitions):
        position, start = offsets.positions.get(tp), offsets.starts.get(tp)
        end = offsets.ends.get(tp)
        begin = begin_of(tp, offsets, reset)
        records = None if begin is None or end is None else max(0, end - begin)
        remark = ""
        if end is None:
            remark = "no leader"
        elif position is None:
            remark = f"no position yet, begins at {reset}"
        elif position > end:
            remark = "the position is beyond the end: the topic was recreated or truncated"
            records = None
        elif start is not None and position < start:
            remark = f"retention deleted {start - position} offsets before they were mirrored"
        seconds: float | None = None
        if records == 0:
            seconds = 0.0
        elif records and tp in times_ms:
            seconds = max(0.0, (now_ms - times_ms[tp]) / 1000)
        size = (sizes or {}).get(tp)
        n_bytes = 0 if records == 0 else round(records * size) if records and size else None
        rows.append(
            PartitionLag(
                tp.topic, tp.partition, position, end, records, seconds, remark, bytes=n_bytes
            )
        )
    return tuple(rows)


def observe_flow(
    source: Cluster, target: Cluster, flow: FlowSettings, *, started: bool = True
) -> LagView:
    """Read the lag of ``flow`` from both clusters. Raises `MirrorError`.

    ``started`` False: no position has been committed, so none is requested.
    """
    wanted = FlowTopics(flow)
    views = {
        name: view
        for name, view in source.topics().items()
        if wanted.mirrors(name, internal=view.internal)
    }
    for name in refused_names(target, flow, wanted, views):
        del views[name]  # not mirrored: the position under its name is another topic's
    partitions = _partitions(views)
    group, keeper = flow.position_group, target
    named = {TopicPartition(wanted.remote(tp.topic), tp.partition): tp for tp in partitions}
    if flow.mode is MirrorMode.MM1:
        keeper = source
        named = {tp: tp for tp in partitions}
    committed = keeper.committed_offsets(group, named) if started else {}
    positions = {named[tp]: one.offset for tp, one in committed.items()}
    rows = _measured(source, partitions, positions, flow)
    return LagView(flow.name, group, keeper.alias, rows)


def observe_group(source: Cluster, flow: FlowSettings) -> LagView:
    """Lag of all partitions of the topics in which MirrorMaker 1's group has offsets.

    Those that it has not committed yet count too; with ``latest`` nothing is left of them. Offsets
    of topics that were deleted stay until they expire, and are no lag. Raises `MirrorError`.
    """
    positions = _group_positions(source, flow, _in_zookeeper(flow))
    partitions = _partitions(source.topics({tp.topic for tp in positions}))
    rows = _measured(source, partitions, positions, flow)
    if flow.fetch.auto_offset_reset == "latest":
        rows = tuple(map(_at_latest, rows))
    return LagView("", flow.group_id, source.alias, rows)


def _at_latest(row: PartitionLag) -> PartitionLag:
    """``row`` without a lag if it has no position: its group begins at the end.

    Java's MirrorMaker 1 commits a partition only after it has received a record of it.
    """
    if row.position is not None or row.end is None:
        return row
    return replace(row, records=0, seconds=0.0, bytes=0)


def check_group(source: Cluster, flow: FlowSettings, topics: Iterable[str] = ()) -> LagView:
    """Lag and owner of every partition of the topics of MirrorMaker 1's group, and the brokers.

    Follows Kafka's ``ConsumerOffsetChecker``. End offsets are high watermarks, as in Kafka's tools,
    even while transactions are open. ``topics``: only these; empty: all topics in which the group
    has offsets or owns partitions. Raises `ClusterError` for an unknown group, `TopicError` for an
    unknown topic, and other `MirrorError`.
    """
    group, wanted = flow.group_id, set(topics)
    old = _in_zookeeper(flow)
    positions = _group_positions(source, flow, old)
    owners = {tp: GroupOwner(member) for tp, member in old.owners.items()}
    owners |= source.group_owners(group)
    known = {tp.topic for tp in (*positions, *owners)}
    if not known:
        places = "in Kafka or in ZooKeeper" if flow.zookeeper else "in Kafka"
        raise ClusterError(
            f"there is no group {group}: it has no members, and no offsets {places}.",
            where=f"cluster {source.alias}",
            do="Check the name, and the chroot at the end of the ZooKeeper address."
            if flow.zookeeper
            else "Check the name. If its offsets are in ZooKeeper, say where: --zkconnect.",
        )
    views = source.topics(wanted or known)
    missing = sorted(wanted - views.keys())
    if missing:
        raise TopicError(
            f"there is no topic {', '.join(missing)}, or this principal may not describe it.",
            where=f"cluster {source.alias}",
            do=f"The group has offsets or members in {', '.join(sorted(known))}.",
        )
    partitions = _partitions(views)
    uncommitted = replace(flow, fetch=replace(flow.fetch, isolation_level="read_uncommitted"))
    rows = _measured(source, partitions, positions, uncommitted)
    return LagView(
        "",
        group,
        source.alias,
        tuple(replace(r, owner=owners.get(TopicPartition(r.topic, r.partition))) for r in rows),
        source.describe().brokers,
    )


def _partitions(views: Mapping[str, TopicView]) -> list[TopicPartition]:
    return [
        TopicPartition(name, number)
        for name, view in views.items()
        for number in range(view.partitions)
    ]


def _in_zookeeper(flow: FlowSettings) -> ZookeeperGroup:
    return read_group(flow.zookeeper, flow.group_id) if flow.zookeeper else ZookeeperGroup({}, {})


def _group_positions(
    source: Cluster, flow: FlowSettings, old: ZookeeperGroup
) -> dict[TopicPartition, int]:
    """The group's offsets. Those in Kafka take precedence over those in ZooKeeper.

    A group only ever migrates from ZooKeeper to Kafka, so the offsets in ZooKeeper are older.
    """
    committed = source.committed_offsets(flow.group_id, None)
    return {**old.offsets, **{tp: one.offset for tp, one in committed.items()}}


def _measured(
    source: Cluster,
    partitions: list[TopicPartition],
    positions: Mapping[TopicPartition, int],
    flow: FlowSettings,
) -> tuple[PartitionLag, ...]:
    # Positions were read before the end offsets: read later, they could lie beyond them.
    offsets = Offsets(
        positions,
        source.earliest_offsets(partitions),
        source.end_offsets(partitions, flow.fetch.isolation_level),
    )
    reset = flow.fetch.auto_offset_reset
    begins = {tp: begin_of(tp, offsets, reset) for tp in partitions}
    behind = {
        tp: begin
        for tp, begin in begins.items()
        if begin is not None and begin < offsets.ends.get(tp, 0)
    }
    found = source.records_at(behind) if behind else {}
    return measure(
        partitions,
        offsets,
        {tp: record.time_ms for tp, record in found.items()},
        {tp: record.mean_bytes for tp, record in found.items() if record.mean_bytes},
        reset=reset,
        now_ms=int(time.time() * 1000),
    )
