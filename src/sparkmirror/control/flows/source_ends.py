"""End offsets of the source's partitions, and the age of their oldest unmirrored records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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

Ends = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class _Behind:
    """New end offsets, and the positions of the partitions that are behind."""

    ends: Ends
    positions: dict[Reader, int]


class SourceEnds:
    """A job (`control.jobs.Round`). ``reports`` returns the newest report of each slot.

    Any thread may read the results.
    """

    def __init__(
        self,
        settings: FlowSettings,
        source: Cluster,
        published: Publication,
        reports: Callable[[], Sequence[SlotProgress]],
    ) -> None:
        self._settings = settings
        self._source = source
        self._published = published
        self._reports = reports
        self._times = RecordTimes(source, fetches_max=_TIMES_MAX, fetch_s_max=_TIMES_S_MAX)
        self._lock = threading.Lock()
        self._ends: Ends = {}
        self._oldest_ms: Ends = {}

    def pause_s(self) -> float:
        """Seconds between two rounds: longer for many partitions."""
        return max(_INTERVAL_S, len(self._published.assignment().partitions) / _PARTITIONS_PER_S)

    def observe(self) -> Ends:
        """The end offsets of the assigned partitions.

        Raises `MirrorError` when the source is unavailable.
        """
        wanted = self._published.assignment().sources
        return self._source.end_offsets(wanted, self._settings.fetch.isolation_level)

    def plan(self, ends: Ends) -> _Behind:
        """Find the partitions that are behind, by the newest report of each."""
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
        return _Behind(ends, behind)

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
                self._ends = behind.ends
                self._oldest_ms = {tp: ms for tp, ms in known.items() if ms is not None}

    def ends(self) -> Ends:
        """Newest known end offset (exclusive) per assigned partition."""
        with self._lock:
            ends = self._ends
        return self._current(ends)

    def oldest_ms(self) -> dict[TopicPartition, int]:
        """Timestamp (ms) of the oldest unmirrored record per partition, where it is known."""
        with self._lock:
            return dict(self._oldest_ms)

    def _current(self, ends: Ends) -> Ends:
        """``ends`` of the partitions that are assigned now."""
        wanted = self._published.assignment().sources
        return {tp: end for tp, end in ends.items() if tp in wanted}
