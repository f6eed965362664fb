"""Lag of the source's consumer groups, for the metrics: in records and in seconds.

Each checkpoint round offers the committed offsets that it read. A thread of its own measures the
lags, so that checkpoints need not wait. One measurement costs two requests per broker, and one
small Fetch for each new offset of a group with lag; their number and their time are bounded.
A scrape sends no request to a cluster, and before the first scrape nothing is measured.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from sparkmirror.control.positions.lag import Offsets, begin_of, measure
from sparkmirror.control.positions.record_times import RecordTimes
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.checkpoints import GroupRow
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import Committed

log = logging.getLogger(__name__)

GroupOffsets = Mapping[str, Mapping[TopicPartition, Committed]]

_FETCHES_MAX = 500
_FETCH_S_MAX = 5.0
# Largest share of time for measurements: if responses are slow, measurements are fewer.
_SHARE_MAX = 0.1
_WAIT_S = 0.5


class GroupLags:
    """Lags of one flow's groups. One thread calls `step`; any thread may call the rest.

    ``source``: a client that may read the topics; without that permission there are no seconds.
    ``isolation``: the ``isolation.level`` for end offsets.
    """

    def __init__(
        self,
        source: Cluster,
        isolation: str,
        *,
        fetches_max: int = _FETCHES_MAX,
        now_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._source, self._isolation = source, isolation
        self._now_s, self._now_ms = now_s, now_ms
        self._times = RecordTimes(
            source, fetches_max=fetches_max, fetch_s_max=_FETCH_S_MAX, now_s=now_s
        )
        self._lock = threading.Lock()
        self._offered: GroupOffsets | None = None
        self._fresh = threading.Event()
        self._asked = False
        self._rows: tuple[GroupRow, ...] = ()
        self._not_before_s = 0.0

    def rows(self) -> tuple[GroupRow, ...]:
        """The last measurement, by group and partition. The first call starts the measurements."""
        self._asked = True
        return self._rows

    def offer(self, committed: GroupOffsets) -> None:
        """Offer committed source offsets, by group. Returns at once."""
        if not self._asked or self._now_s() < self._not_before_s:
            return
        with self._lock:
            self._offered = committed
        self._fresh.set()

    def step(self) -> None:
        """Wait briefly for an offer, then measure it. Raises `MirrorError`."""
        if not self._fresh.wait(_WAIT_S):
            return
        self._fresh.clear()
        with self._lock:
            offered, self._offered = self._offered, None
        if offered is None:
            return
        began_s = self._now_s()
        try:
            self._rows = self._refresh(offered)
        finally:
            took_s = self._now_s() - began_s
            self._not_before_s = began_s + took_s / _SHARE_MAX
        log.debug("lags of %d groups took %.0f ms", len(offered), took_s * 1000)

    def _refresh(self, offered: GroupOffsets) -> tuple[GroupRow, ...]:
        partitions = {tp for offsets in offered.values() for tp in offsets}
        ends = self._source.end_offsets(partitions, self._isolation)
        behind = {
            tp
            for offsets in offered.values()
            for tp, one in offsets.items()
            if one.offset < ends.get(tp, 0)
        }
        starts = self._source.earliest_offsets(behind) if behind else {}
        begins = {
            (group, tp): begin
            for group, offsets in offered.items()
            for tp, begin in _begins(offsets, starts, ends).items()
        }
        self._times.refresh(begins)
        now_ms, rows = self._now_ms(), []
        for group in sorted(offered):
            positions = {tp: one.offset for tp, one in offered[group].items()}
            times_ms = {
                tp: time_ms
                for tp in positions
                if (time_ms := self._times.time_ms((group, tp))) is not None
            }
            found = measure(
                positions, Offsets(positions, starts, ends), times_ms, reset="none", now_ms=now_ms
            )
            rows += [
                GroupRow(group, one.topic, one.partition, one.records, one.seconds)
                for one in found
                if one.records is not None
            ]
        return tuple(rows)


def _begins(
    offsets: Mapping[TopicPartition, Committed],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The next offset that a group reads, for partitions with lag. Pure."""
    positions = {tp: one.offset for tp, one in offsets.items()}
    known = Offsets(positions, starts, ends)
    begins = {tp: begin_of(tp, known, "none") for tp in positions}
    return {
        tp: begin for tp, begin in begins.items() if begin is not None and begin < ends.get(tp, 0)
    }
