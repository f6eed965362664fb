"""Where an at-least-once slot continues after a crash: at the exact record, if it can be known.

With each position, the group keeps where the target's log ended and which producer wrote there
(`internal_topics.position_metadata`). A crash loses the positions of the last second, but not the
records: they are at the target after that offset. If all of them are by the recorded producer, they
are the ones that follow the position at the source, and as many source offsets can be skipped. That
holds only if

* every batch after the recorded offset has the recorded producer id, without a gap: no other
  writer, no control marker;
* the source has as many visible records from the position on. If these have a record at each
  offset, nothing was left out. If there are markers, aborted data or compaction holes between them,
  the last of these records must equal the target's last record: if the source was compacted since,
  the count would lead too far;
* consumers may read all of it: if only the leader has the last records, the slot waits until the
  followers have them or leave the in-sync replicas;
* the source's log is the one of the position: the slot asks only about partitions for which
  `data.read.loss_detection` has found no loss, and whose refused records are not left out.

Otherwise the slot continues at the position, and what was written since arrives again. This does
not fence a writer that is still alive: only exactly-once does.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from sparkmirror.data.read.resume_point import ends_alike
from sparkmirror.errors import BatchError, MirrorError
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.position_metadata import PositionMetadata
from sparkmirror.model import TopicPartition
from sparkmirror.names.transforms import Transformed
from sparkmirror.offset_reset import LATEST
from sparkmirror.records.header import CONTROL_BIT, HEADER_BYTES, MAGIC_AT
from sparkmirror.records.selection import SelectRules, leader_epoch
from sparkmirror.records.selection import select as select_records
from sparkmirror.records.walk import walk_batches
from sparkmirror.settings import FetchSettings, FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.fetcher import FetchedPartition, Fetcher
from sparkmirror.wire.net.connection import ConnectionLost

__all__ = ["Resumed", "resume"]

log = logging.getLogger(__name__)

# More than it takes to read a second's worth of records; after that, duplicates are less bad.
_BUDGET_S = 20.0
# Of that, how long followers may take to catch up with their leader. A follower that hangs leaves
# the in-sync replicas after 30 s by default; the slot's other partitions do not wait that long.
_FOLLOWERS_S = 10.0
_LOOK_AGAIN_S = 0.1
_OFFSET_AND_IDS = struct.Struct(">q13xhi16xq")
_PASSING = SelectRules(check_crcs=False, join_below_bytes=0)
_NO_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Resumed:
    """Next source offset of one partition, and the target's end, -1 if unknown.

    ``leader_epoch``: that of the last record before ``position``, if this is not the committed one;
    -1 if unknown.
    """

    position: int
    target_end: int = -1
    leader_epoch: int = -1


def resume(
    flow: FlowSettings,
    source: ClusterConnections,
    target: ClusterConnections,
    positions: Mapping[SourcePartition, tuple[int, PositionMetadata]],
    leaders_ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, Resumed]:
    """Where to continue, by source partition. ``positions``: committed offsets and their metadata.

    ``leaders_ends``: where the leaders' own logs of remote partitions end. ``source`` must know the
    leaders, ``target`` the remote topics. Nothing may be in flight at the target. Does not raise
    `MirrorError`: after an error, partitions continue at their positions.
    """
    found = {p.source: Resumed(offset) for p, (offset, _) in positions.items()}
    deadline = time.monotonic() + _BUDGET_S
    try:
        target.refresh_if_due()
        wanted = [p.target for p in positions]
        ends = target.list_offsets(wanted, LATEST, read_committed=False)
        if len(ends) < len(wanted):  # a leader may have changed since the metadata arrived
            target.refresh()
            ends = target.list_offsets(wanted, LATEST, read_committed=False)
        counted = (p.target for p, (_, one) in positions.items() if one.producer_id >= 0)
        ends |= _followed(target, ends, {tp: leaders_ends.get(tp, -1) for tp in counted})
        behind: dict[SourcePartition, tuple[PositionMetadata, int]] = {}
        for p, (offset, metadata) in positions.items():
            end = ends.get(p.target, -1)
            found[p.source] = Resumed(offset, end)
            if end < 0 <= metadata.target_end:
                log.warning(
                    "%s: its leader does not respond: what was written after the committed "
                    "position arrives again",
                    p.target,
                )
            if 0 <= metadata.target_end < end:
                behind[p] = (metadata, end)
        if behind:
            found |= _skip(flow, source, target, positions, behind, deadline)
    except (MirrorError, ConnectionLost) as error:
        log.warning("flow %s: continuing at the committed positions (%s)", flow.name, error)
    return found


def _followed(
    target: ClusterConnections,
    ends: Mapping[TopicPartition, int],
    wanted: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """High watermarks of the partitions that lag behind ``wanted``, once they have reached it.

    Records that not all followers have cannot be read. They would be written again, and be there
    twice as soon as the followers have them. ``ends``: the high watermarks of a moment ago.
    """
    found: dict[TopicPartition, int] = {}

    def late(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [tp for tp in partitions if 0 <= found.get(tp, ends.get(tp, -1)) < wanted[tp]]

    waiting, deadline = late(wanted), time.monotonic() + _FOLLOWERS_S
    while waiting and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
        found |= target.list_offsets(waiting, LATEST, read_committed=False)
        waiting = late(waiting)
    for tp in waiting:
        log.warning(
            "%s: its followers do not have what the leader has: up to %d records arrive again",
            *(tp, wanted[tp] - found.get(tp, ends[tp])),
        )
    return found


def _skip(
    flow: FlowSettings,
    source: ClusterConnections,
    target: ClusterConnections,
    positions: Mapping[SourcePartition, tuple[int, PositionMetadata]],
    behind: Mapping[SourcePartition, tuple[PositionMetadata, int]],
    deadline: float,
) -> dict[TopicPartition, Resumed]:
    """The partitions of ``behind`` whose records since the position can be skipped."""
    same = {
        p: one
        for p, one in behind.items()
        if not (p.topic_id and one[0].source.topic_id not in ("", p.topic_id))
    }
    ours = _walked(
        Fetcher(target, FetchSettings(fetch_max_wait_ms=100, isolation_level="read_uncommitted")),
        {p.target: (one.target_end, end) for p, (one, end) in same.items()},
        _by_producer({p.target: one.producer_id for p, (one, _) in same.items()}),
        deadline,
    )
    counts = {p: end - one.target_end for p, (one, end) in same.items() if p.target in ours}
    there = _counted(
        flow, source, {p.source: (positions[p][0], n) for p, n in counts.items()}, deadline
    )
    found = {}
    transformed = Transformed(flow)
    for p, (recorded, end) in behind.items():
        at, epoch = there.get(p.source, (-1, -1))
        whole = at == positions[p][0] + counts.get(p, 0)
        if at >= 0 and (
            whole
            or ends_alike(
                *(flow, p.source, p.target),
                (positions[p][0], at),
                (recorded.target_end, end),
            )
        ):
            found[p.source] = Resumed(at, end, epoch)
            log.info(
                "%s: the target has %d records after the committed position %d: continuing at %d",
                *(p.source, counts[p], positions[p][0], found[p.source].position),
            )
        else:
            why = _why_again(others=p.target not in ours, changed=transformed.number(p.topic) >= 0)
            log.warning(
                "%s: up to %d records arrive again: %s since the committed position",
                *(p.source, end - recorded.target_end, why),
            )
    return found


def _why_again(*, others: bool, changed: bool) -> str:
    if changed:
        return "records of a transform cannot be counted"
    return "others may have written to the target" if others else "the source's records changed"


# -- reading both logs -------------------------------------------------------------------------

Step = Callable[[FetchedPartition, int], int]
"""(response, end) -> next offset; the requested offset if more bytes are needed, -1 to give up."""


def _walked(
    fetcher: Fetcher, spans: Mapping[TopicPartition, tuple[int, int]], step: Step, deadline: float
) -> set[TopicPartition]:
    """The partitions for which ``step`` leads from the first offset exactly to the last one."""
    done: set[TopicPartition] = set()
    left = dict(spans)
    for tp, (start, _) in spans.items():
        fetcher.assign(tp, start)
    while left and time.monotonic() < deadline:
        fetcher.send()
        for tp in set(fetcher.halts) & set(left):
            del left[tp]
            fetcher.unassign(tp)
        if not fetcher.waiting:
            time.sleep(0.02)
            continue
        for connection in fetcher.ready(0.2):
            for part in fetcher.receive(connection):
                if part.tp not in left or not len(part.records):
                    continue
                end = left[part.tp][1]
                after = step(part, end)
                if after == part.fetch_offset:
                    fetcher.need_bytes(part.tp, 2 * len(part.records))
                elif part.fetch_offset < after < end:
                    fetcher.advance(part.tp, after)
                else:
                    if after == end:
                        done.add(part.tp)
                    del left[part.tp]
                    fetcher.unassign(part.tp)
    return done


def _by_producer(producer_ids: Mapping[TopicPartition, int]) -> Step:
    """A step past data batches of one producer that follow one another without a gap.

    The first one may begin before the requested offset: batches are joined for a slow link across
    the ends of responses, and so across positions.
    """

    def step(part: FetchedPartition, end: int) -> int:
        frames = walk_batches(part.records)
        at, wanted = part.fetch_offset, producer_ids[part.tp]
        for number, start in enumerate(frames.starts[:-1]):
            if at >= end:
                break
            if len(part.records) - start < HEADER_BYTES or part.records[start + MAGIC_AT] != 2:
                return -1
            offset, attributes, last_delta, producer_id = _OFFSET_AND_IDS.unpack_from(
                part.records, start
            )
            follows = offset == at or (not number and offset < at <= offset + last_delta)
            if not follows or attributes & CONTROL_BIT or producer_id != wanted or wanted < 0:
                return -1
            at = offset + last_delta + 1
        return at

    return step


def _counted(
    flow: FlowSettings,
    source: ClusterConnections,
    wanted: Mapping[TopicPartition, tuple[int, int]],
    deadline: float,
) -> dict[TopicPartition, tuple[int, int]]:
    """The source offset after a number of visible records, and the leader epoch of the last one.

    ``wanted``: (first offset, records).
    """
    rules = replace(_PASSING, read_committed=flow.fetch.isolation_level == "read_committed")
    step, found = _counting({tp: records for tp, (_, records) in wanted.items()}, rules)
    fetcher = Fetcher(source, replace(flow.fetch, fetch_max_wait_ms=100))
    _walked(fetcher, {tp: (first, _NO_END) for tp, (first, _) in wanted.items()}, step, deadline)
    return found


def _counting(
    records: Mapping[TopicPartition, int], rules: SelectRules
) -> tuple[Step, dict[TopicPartition, tuple[int, int]]]:
    """A step that ends after a number of visible records, and as in `_counted` where it ended."""
    left = dict(records)
    found: dict[TopicPartition, tuple[int, int]] = {}

    def step(part: FetchedPartition, _: int) -> int:
        try:
            chosen = select_records(part.records, part.fetch_offset, part.aborted, rules)
        except BatchError:
            return -1
        for first, count in chosen.runs:
            if left[part.tp] <= count:
                after = first + left[part.tp]
                starts = walk_batches(part.records).starts
                found[part.tp] = after, leader_epoch(part.records, starts, after)
                return -1
            left[part.tp] -= count
        return chosen.next_offset

    return step, found
