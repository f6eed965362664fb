"""End offsets of the source's partitions, and the age of their oldest unmirrored records."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.positions.record_times import Reader, RecordTimes
from sparkmirror.model import TopicPartition
from sparkmirror.progress import SlotProgress
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster

_INTERVAL_S = 2.0
# A request costs about 50 µs per partition; this rate keeps it to 5 % of a core.
_PARTITIONS_PER_S = 1_000
# Limits for one round. A batch of up to 1 MB is fetched whole; 50 small batches cost about 30 ms
# of processor time.
_TIMES_MAX = 50
_TIMES_S_MAX = 1.0
# An older end is not shown any more: the source has grown since, nobody knows by how much.
_END_AGE_S_MAX = 60.0
_END_ROUNDS_MAX = 3

Ends = dict[TopicPartition, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Behind:
    """Newest end offsets, when each was read, and the positions of partitions that are behind."""

    ends: Ends
    read_s: dict[TopicPartition, float]
    positions: dict[Reader, int]


class SourceEnds:
    """A job (`control.jobs.Round`). ``reports`` returns the newest report of each slot.

    Any thread may read the results. An end that the source has not told again for a minute is
    forgotten: a lag by it would look like one that does not grow. ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        settings: FlowSettings,
        source: Cluster,
        published: Publication,
        reports: Callable[[], Sequence[SlotProgress]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._source = source
        self._published = published
        self._reports = reports
        self._times = RecordTimes(source, fetches_max=_TIMES_MAX, fetch_s_max=_TIMES_S_MAX)
        self._clock = clock
        self._lock = threading.Lock()
        self._ends: Ends = {}
        # When each end was read; of a partition without one, when it was first asked for.
        self._read_s: dict[TopicPartition, float] = {}
        self._oldest_ms: Ends = {}

    def pause_s(self) -> float:
        """Seconds between two rounds: longer for many partitions."""
        return max(_INTERVAL_S, len(self._published.assignment().partitions) / _PARTITIONS_PER_S)

    def observe(self) -> Ends:
        """The end offsets of the assigned partitions.

        Raises `MirrorError` when the source is unavailable.
        """
        wanted, now_s = self._published.assignment().sources, self._clock()
        with self._lock:
            self._read_s = {tp: self._read_s.get(tp, now_s) for tp in wanted}
        return self._source.end_offsets(wanted, self._settings.fetch.isolation_level)

    def plan(self, ends: Ends) -> _Behind:
        """Find the partitions that are behind, by the newest report of each."""
        read_s = {**self._read_s, **dict.fromkeys(ends, self._clock())}
        ends = self._current({**self._ends, **ends})
        reports = sorted(self._reports(), key=lambda report: report.epoch)
        positions = {
            TopicPartition(p.topic, p.partition): p.position
            for report in reports
            for p in report.partitions
            if p.position >= 0
        }
        bounds = self._published.frozen or ends
        behind = {
            (self._settings.name, tp): position
            for tp, position in positions.items()
            if tp in ends and position < bounds.get(tp, 0)
        }
        return _Behind(ends, read_s, behind)

    def apply(self, behind: _Behind) -> None:
        """Read the timestamps of the oldest unmirrored records.

        Raises `MirrorError`; the new ends are kept even then.
        """
        try:
            self._times.refresh(behind.positions)
        finally:
            known = {tp: self._times.time_ms((name, tp)) for name, tp in behind.positions}
            with self._lock:
                # Both are replaced at once: otherwise a lag would be shown with a wrong age.
                self._ends, self._read_s = behind.ends, behind.read_s
                self._oldest_ms = {tp: ms for tp, ms in known.items() if ms is not None}

    def ends(self) -> Ends:
        """Newest known end offset (exclusive) per assigned partition; without those too old."""
        oldest_s = self._clock() - max(_END_AGE_S_MAX, _END_ROUNDS_MAX * self.pause_s())
        with self._lock:
            ends, read_s = self._ends, self._read_s
        # A partition that comes back has its old end, and a time from the next round on.
        known = {tp: end for tp, end in ends.items() if read_s.get(tp, -math.inf) >= oldest_s}
        return self._current(known)

    def last(self) -> Ends:
        """The last end offset of each assigned partition, however old it is."""
        with self._lock:
            return self._current(self._ends)

    def age_s(self) -> float | None:
        """Seconds since the source told the end of each assigned partition; None without any."""
        with self._lock:
            read_s = self._current(self._read_s)
        return self._clock() - min(read_s.values()) if read_s else None

    def oldest_ms(self) -> dict[TopicPartition, int]:
        """Timestamp (ms) of the oldest unmirrored record per partition, where it is known."""
        with self._lock:
            return dict(self._oldest_ms)

    def _current(self, values: dict[TopicPartition, T]) -> dict[TopicPartition, T]:
        """``values`` of the partitions that are assigned now."""
        wanted = self._published.assignment().sources
        return {tp: value for tp, value in values.items() if tp in wanted}
