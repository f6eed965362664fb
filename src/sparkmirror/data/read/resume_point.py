"""Finds up to which source offset a target still has the records after its log lost its end.

`resume_point` returns the source offset that follows the last record that is left. There are four
ways to find it. Each result is checked: the last record of the target must equal the source's
record before that offset, if both can still be read.

1. The exact runs (`internal_topics.runs`) name the source offset of the last record that is left.
2. The runs end before that record (some runs are left out, and transaction markers are in none).
   Then the records at the target after the last run are counted, and as many at the source.
3. The check fails, because something else stands in the place of lost records: under the new
   leader, others wrote there, or a transaction coordinator wrote a marker. Then the first record
   of the runs that is not there is searched for by bisection.
4. No run is known. Then the last records at the target are searched for at the source, before the
   position.

If none of these gives a result that passes the check, the result is the last place that is known
exactly, or nothing; the result says which. Aborted records, markers and compaction holes are never
counted.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate

from sparkmirror.errors import MirrorError, Unreachable
from sparkmirror.internal_topics.run_map import OffsetMap, Run
from sparkmirror.internal_topics.runs import decode_run, runs_topic
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.offset_reset import EARLIEST, LATEST
from sparkmirror.records.split import decode_batches
from sparkmirror.settings import ClusterClient, FetchSettings, FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.record_stream import RecordStream
from sparkmirror.wire.net.connection import ConnectionLost

__all__ = [
    "KnownRuns",
    "ResumePoint",
    "ends_alike",
    "filled_by_others",
    "last_run",
    "read_runs",
    "resume_point",
]

log = logging.getLogger(__name__)

_RUNS_MAX = 1 << 20
# How many of the records that are left must be found at the source, one after the other.
_TRACE_RECORDS = 16
# How many records are searched in addition to twice the number of lost offsets.
_SLACK_RECORDS = 10_000
_SEARCH_RECORDS_MAX = 500_000


@dataclass(frozen=True, slots=True)
class KnownRuns:
    """The runs of one partition, ascending; ``target_id``: topic id of the newest one's target."""

    runs: tuple[Run, ...] = ()
    target_id: str = ""

    @property
    def target_end(self) -> int:
        """Target offset after the last record that is known, -1 for none."""
        return self.runs[-1].target_end if self.runs else -1


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """``position``: the source offset after the last record that the target has.

    ``exact``: no record before it is missing, and none after it is there. Otherwise no record
    before it is missing, but some after it may be there already. ``how``: in words.
    """

    position: int
    exact: bool
    how: str


def read_runs(
    flow: FlowSettings, wanted: Mapping[TopicPartition, str]
) -> dict[TopicPartition, KnownRuns]:
    """The runs of source partitions, under their present remote names.

    ``wanted``: ids of their topics, empty if unknown.

    Partitions without runs are missing. Raises `MirrorError` or `ConnectionLost`.
    """
    maps: dict[TopicPartition, OffsetMap] = {}
    ids: dict[TopicPartition, str] = {}
    names = FlowTopics(flow)
    for key, value in _compacted(flow.target, runs_topic(flow)):
        row = decode_run(key, value)
        if row is None or row.run is None or row.source not in wanted:
            continue
        if row.remote != (names.mapped(row.source.topic) or ""):
            continue
        if row.topic_id and wanted[row.source] and row.topic_id != wanted[row.source]:
            continue
        known = maps.setdefault(row.source, OffsetMap(runs_max=_RUNS_MAX))
        if row.merged:
            known.add_older(row.run)
        else:
            known.add(row.run)
            ids[row.source] = row.target_id
    return {tp: KnownRuns(known.runs, ids.get(tp, "")) for tp, known in maps.items()}


def _compacted(client: ClusterClient, topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Keys and values of partition 0, oldest first; none if the topic does not exist."""
    tp = TopicPartition(topic, 0)
    with closing(ClusterConnections(client, {topic})) as connections:
        connections.refresh()
        ends = connections.list_offsets([tp], LATEST, read_committed=True)
        there = tp in connections.leaders or tp in connections.leaderless
        if there and tp not in ends:
            raise Unreachable(f"topic {topic} has no leader.", where=f"cluster {client.alias}")
        stream = RecordStream(client, FetchSettings(), tp, 0, ends.get(tp, 0), connections)
        for chosen in stream.selections():
            for piece in chosen.pieces:
                for record in decode_batches(memoryview(piece)):
                    yield record.key, record.value


def last_run(runs: Sequence[Run], cut: int) -> tuple[Run, int] | None:
    """The last run that begins before target offset ``cut``, and how many of its records do."""
    after = bisect.bisect_left(runs, cut, key=lambda run: run.target)
    if not after:
        return None
    run = runs[after - 1]
    return run, min(run.length, cut - run.target)


@dataclass(frozen=True, slots=True)
class _Sides:
    """One partition on both sides; the target's log goes from ``start`` to ``cut``.

    What stands before ``sure`` is what the mirror wrote there.
    """

    flow: FlowSettings
    source: TopicPartition
    target: TopicPartition
    source_start: int
    position: int
    start: int
    cut: int
    sure: int

    def at_source(self, first: int, end: int) -> RecordStream:
        """Records of the source from ``first`` to ``end``."""
        first = max(first, self.source_start)
        return RecordStream(self.flow.source, self.flow.fetch, self.source, first, end)

    def at_target(self, first: int) -> RecordStream:
        """Records that the target has from ``first`` on."""
        first = max(first, self.start)
        return RecordStream(self.flow.target, FetchSettings(), self.target, first, self.cut)


def resume_point(
    flow: FlowSettings,
    source: TopicPartition,
    target: TopicPartition,
    runs: Sequence[Run],
    *,
    source_start: int,
    position: int,
    recorded_end: int,
    start: int,
    cut: int,
    epoch_end: int = -1,
) -> ResumePoint | None:
    """Where to continue so that the target gets what it lost; None if that cannot be found out.

    The target's log held the records before source offset ``position`` up to target offset
    ``recorded_end``. Now it holds them from ``start`` to ``cut`` at most. What it has from
    ``epoch_end`` on (-1 if unknown) was written under a later leader, and may be something else.
    ``source_start``: first offset that the source has.
    """
    sure = epoch_end if 0 <= epoch_end < cut else cut
    sides = _Sides(flow, source, target, source_start, position, start, cut, sure)
    known = last_run(runs, cut)
    try:
        if known is not None:
            run, length = known
            records, found = _Numbered(sides, runs), None
            if _first_unsure_is_there(sides, records):
                found = _by_runs(sides, run, length)
            found = found or _by_bisection(sides, records)
            if found is not None:
                return found
        found = _by_search(sides, recorded_end - cut)
        if found is not None:
            return found
    except (MirrorError, ConnectionLost) as error:
        log.warning(
            "%s: the records that are left at the target cannot be compared: %s", target, error
        )
    known = last_run(runs, sides.sure)
    if known is None:
        return None
    run, length = known
    how = f"target offset {run.target + length - 1} is the last one that is known exactly"
    return ResumePoint(min(position, run.source + length), exact=False, how=how)


def _first_unsure_is_there(sides: _Sides, records: _Numbered) -> bool:
    """Whether nothing tells that the first record which may be gone is not there."""
    number = records.before(sides.sure)
    return number == len(records) or _is_there(sides, *records.place(number)) is not False


def _by_runs(sides: _Sides, run: Run, length: int) -> ResumePoint | None:
    """From the end of the last run before the cut, by the number of records after it."""
    at, target_at = run.source + length, run.target + length
    if _is_there(sides, at - 1, target_at - 1) is False:
        return None
    more = 0
    if target_at < sides.cut:
        more = _count(sides.at_target(target_at))
    if more:
        after = _after(sides.at_source(at, sides.position), more)
        if after is None or _differs(sides, after):
            return None
        at = after
    if at > sides.position:
        return None
    how = "by the exact runs" if not more else f"by the exact runs and {more} records after them"
    return ResumePoint(at, exact=True, how=how)


class _Numbered:
    """The records of ``runs`` that are below the cut, by number from 0 on."""

    def __init__(self, sides: _Sides, runs: Sequence[Run]) -> None:
        self._sides = sides
        self._runs = [
            run.head(min(run.length, sides.cut - run.target))
            for run in runs
            if run.target < sides.cut
        ]
        self._ends = list(accumulate(run.length for run in self._runs))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def before(self, target: int) -> int:
        """How many of them are before target offset ``target``."""
        return sum(max(0, min(run.length, target - run.target)) for run in self._runs)

    def place(self, number: int) -> tuple[int, int]:
        """Source and target offset of one of them."""
        at = bisect.bisect_right(self._ends, number)
        run = self._runs[at]
        within = number - (self._ends[at] - run.length)
        return run.source + within, run.target + within

    def is_there(self, number: int) -> bool:
        """Whether the target has it. Raises `_NotComparableError`."""
        answer = _is_there(self._sides, *self.place(number))
        if answer is None:
            raise _NotComparableError
        return answer


def _by_bisection(sides: _Sides, records: _Numbered) -> ResumePoint | None:
    """From the first of ``records`` that the target does not have; None if it is not certain.

    It is not below `_Sides.sure`, if that is below the cut. What follows it was written later.
    """
    first = records.before(sides.sure) if sides.sure < sides.cut else 0
    try:
        if first == len(records):
            return None
        lost = first
        if records.is_there(first):
            numbers = range(len(records))
            lost = bisect.bisect_left(
                numbers, x=True, lo=first, key=lambda number: not records.is_there(number)
            )
        if not lost or lost == len(records) or not records.is_there(lost - 1):
            return None
        again = records.is_there(len(records) - 1)  # written after others had filled the place
    except _NotComparableError:
        return None
    source, target = records.place(lost - 1)
    if source >= sides.position:
        return None
    how = f"target offset {target} is the last one before records that are not there"
    return ResumePoint(source + 1, exact=not again, how=how)


class _NotComparableError(Exception):
    """A record cannot be compared: one side no longer has it."""


def _is_there(sides: _Sides, source: int, target: int) -> bool | None:
    """Whether the target has the record with this source offset at this target offset.

    None if it cannot be told: the source no longer has the record, or compaction removed it.
    """
    if target < sides.start or source < sides.source_start:
        return None
    at = sides.target, target, target + 1
    there = _trace(RecordStream(sides.flow.target, FetchSettings(), *at))
    if not there:
        settings = FetchSettings(isolation_level="read_uncommitted")
        stream = RecordStream(sides.flow.target, settings, *at, note_markers=True)
        aborted = _trace(stream)
        return False if aborted or stream.markers else None
    wanted = _trace(sides.at_source(source, source + 1))
    return there[0][1] == wanted[0][1] if wanted else None


def _count(stream: RecordStream) -> int:
    with closing(stream):
        return sum(chosen.record_count for chosen in stream.selections())


def _after(stream: RecordStream, records: int) -> int | None:
    """The offset after this many visible records; None if there are fewer."""
    with closing(stream):
        for chosen in stream.selections():
            for first, count in chosen.runs:
                if records <= count:
                    return first + records
                records -= count
    return None


def _differs(sides: _Sides, at: int) -> bool:
    """Whether the target's last record differs from the source's last one before ``at``."""
    if sides.cut <= sides.start or at <= sides.source_start:
        return False  # nothing is left to compare
    return _same_last(sides, at) is False


def _same_last(sides: _Sides, at: int) -> bool | None:
    """Whether the last records of both sides are equal; None if one side has none."""
    left = _trace(sides.at_target(sides.cut - _TRACE_RECORDS))
    wanted = _trace(sides.at_source(at - _TRACE_RECORDS, at))
    return left[-1][1] == wanted[-1][1] if left and wanted else None


def ends_alike(
    flow: FlowSettings,
    source: TopicPartition,
    target: TopicPartition,
    source_span: tuple[int, int],
    target_span: tuple[int, int],
) -> bool:
    """Whether both spans of offsets (first, end) have the same last record.

    Raises `MirrorError` or `ConnectionLost`.
    """
    first, end = source_span
    sides = _Sides(flow, source, target, first, end, *target_span, sure=target_span[1])
    return _same_last(sides, end) is True


def filled_by_others(
    flow: FlowSettings,
    source: TopicPartition,
    target: TopicPartition,
    position: int,
    end: int,
    source_end: int = -1,
) -> bool:
    """Whether something else than our record is the last thing before target offset ``end``.

    The record that was acknowledged there is the source's last one before ``source_end``. If that
    is unknown (-1), it is one of the `_TRACE_RECORDS` offsets before ``position``: the very last
    records may have been refused. A transaction marker is something else. False if a side has
    nothing left to compare. Raises `MirrorError` or `ConnectionLost`.
    """
    # A transaction may be open there: ours, or one that a crash left behind.
    settings = FetchSettings(isolation_level="read_uncommitted")
    left, markers = _last_before(flow.target, settings, target, end)
    if end - 1 in markers:
        return True
    until = position if source_end < 0 else source_end
    wanted, _ = _last_before(flow.source, flow.fetch, source, until)
    if source_end < 0:
        return bool(left and wanted) and left[-1][1] not in {content for _, content in wanted}
    if not left or not wanted or (left[-1][0], wanted[-1][0]) != (end - 1, source_end - 1):
        return False  # compacted, or deleted
    return left[-1][1] != wanted[-1][1]


def _last_before(
    client: ClusterClient, settings: FetchSettings, tp: TopicPartition, end: int
) -> tuple[list[tuple[int, bytes]], set[int]]:
    """`_trace` of the last offsets before ``end`` that still exist, and the markers there."""
    with closing(ClusterConnections(client, {tp.topic})) as connections:
        first = max(end - _TRACE_RECORDS, _log_start(connections, tp))
        stream = RecordStream(client, settings, tp, first, end, connections, note_markers=True)
        return _trace(stream), stream.markers


def _log_start(connections: ClusterConnections, tp: TopicPartition) -> int:
    connections.refresh()
    starts = connections.list_offsets([tp], EARLIEST, read_committed=False)
    if tp not in starts:
        where = f"cluster {connections.client.alias}"
        raise Unreachable(f"no leader of {tp} responds.", where=where)
    return starts[tp]


def _trace(stream: RecordStream) -> list[tuple[int, bytes]]:
    """Offset and content (key, value, headers) of each record."""
    found: list[tuple[int, bytes]] = []
    with closing(stream):
        for carried in stream:
            found += [
                (offset, bytes(rest))
                for offset, rest in zip(carried.offsets, carried.rests, strict=True)
            ]
    return found


def _by_search(sides: _Sides, lost: int) -> ResumePoint | None:
    """Search for the target's last records at the source, before the position."""
    left = [content for _, content in _trace(sides.at_target(sides.cut - _TRACE_RECORDS))]
    reach = 2 * max(0, lost) + _SLACK_RECORDS
    if not left or reach > _SEARCH_RECORDS_MAX:
        return None
    first = sides.position - reach
    records = _trace(sides.at_source(first, sides.position))
    contents = [content for _, content in records]
    ends = [
        end
        for end in range(len(left), len(contents) + 1)
        if contents[end - len(left) : end] == left
    ]
    if len(ends) != 1:
        return None  # not found, or found in several places
    how = f"by the last {len(left)} records that the target has"
    return ResumePoint(records[ends[0] - 1][0] + 1, exact=True, how=how)
