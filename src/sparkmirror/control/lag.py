"""How far a flow is behind: positions against the source's end offsets, in records and seconds.

`measure` is pure; `observe_flow` and `observe_group` look at the clusters.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkmirror.model import FlowSettings, MirrorMode, TopicPartition
from sparkmirror.policy import FlowTopics
from sparkmirror.wire.client import Cluster

__all__ = ["LagView", "Offsets", "PartitionLag", "measure", "observe_flow", "observe_group"]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One source partition.

    ``position``: next offset to mirror, None before the first commit. ``end``: the source's end
    offset, None without a leader. ``records``: what is still to be mirrored, None when that cannot
    be known. ``seconds``: age of the oldest record still to be mirrored, 0 when there is none,
    None when it has no timestamp or could not be read. ``remark``: what is out of the ordinary.
    """

    topic: str
    partition: int
    position: int | None
    end: int | None
    records: int | None
    seconds: float | None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class LagView:
    """All partitions of one flow or group. ``cluster``: where the group's offsets are kept."""

    flow: str
    group: str
    cluster: str
    partitions: tuple[PartitionLag, ...]


@dataclass(frozen=True, slots=True)
class Offsets:
    """What the clusters say, by source partition."""

    positions: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def begin_of(tp: TopicPartition, offsets: Offsets, reset: str) -> int | None:
    """The first offset that a mirror reads next, None when it cannot be known. Pure."""
    position, start = offsets.positions.get(tp), offsets.starts.get(tp)
    end = offsets.ends.get(tp)
    if position is not None:
        return max(position, start or 0)
    if start is not None and start == end:
        return start  # nothing is there, wherever it begins
    return start if reset == "earliest" else None


def measure(
    partitions: Iterable[TopicPartition],
    offsets: Offsets,
    times_ms: Mapping[TopicPartition, int],
    *,
    reset: str,
    now_ms: int,
) -> tuple[PartitionLag, ...]:
    """One row per partition, in their order. Pure.

    ``times_ms``: timestamp of the record at each first offset to read, where it is known.
    ``reset``: ``auto.offset.reset``, which decides where a partition without a position begins.
    """
    rows = []
    for tp in sorted(partitions):
        position, start = offsets.positions.get(tp), offsets.starts.get(tp)
        end = offsets.ends.get(tp)
        begin = begin_of(tp, offsets, reset)
        records = None if begin is None or end is None else max(0, end - begin)
        remark = ""
        if end is None:
            remark = "no leader answers"
        elif position is None:
            remark = f"no position yet, begins at {reset}"
        elif position > end:
            remark = "the position lies beyond the end: the topic was made anew or truncated"
            records = None
        elif start is not None and position < start:
            remark = f"retention deleted {start - position} offsets before they were mirrored"
        seconds: float | None = None
        if records == 0:
            seconds = 0.0
        elif records and tp in times_ms:
            seconds = max(0.0, (now_ms - times_ms[tp]) / 1000)
        rows.append(PartitionLag(tp.topic, tp.partition, position, end, records, seconds, remark))
    return tuple(rows)


def observe_flow(
    source: Cluster, target: Cluster, flow: FlowSettings, *, started: bool = True
) -> LagView:
    """Ask both clusters about ``flow``. Raises `MirrorError`.

    ``started`` False: it is known that no position has been committed, so nobody is asked.
    """
    wanted = FlowTopics(flow)
    views = {
        name: view
        for name, view in source.topics().items()
        if not view.internal and wanted.accepts(name)
    }
    partitions = [
        TopicPartition(name, number) for name, v in views.items() for number in range(v.partitions)
    ]
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
    """Every partition that MirrorMaker 1's group has an offset of. Raises `MirrorError`."""
    committed = source.committed_offsets(flow.group_id, None)
    positions = {tp: one.offset for tp, one in committed.items()}
    rows = _measured(source, list(positions), positions, flow)
    return LagView("", flow.group_id, source.alias, rows)


def _measured(
    source: Cluster,
    partitions: list[TopicPartition],
    positions: Mapping[TopicPartition, int],
    flow: FlowSettings,
) -> tuple[PartitionLag, ...]:
    # Positions were taken first: taken later, they could lie beyond ends that had moved on since.
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
    times_ms = source.record_times_ms(behind) if behind else {}
    return measure(partitions, offsets, times_ms, reset=reset, now_ms=int(time.time() * 1000))
