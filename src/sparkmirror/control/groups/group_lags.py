"""How far the source's consumer groups are behind, for the metrics: in records and in seconds.

Each round of checkpoints offers the offsets that it found; a thread of its own looks at them, so
that checkpoints wait for nothing. A look costs two requests per broker, and one small Fetch for
each place that a group with lag has moved to; these are bounded, and so is the time for all. No
scrape asks a cluster for anything, and without scrapes nothing is asked at all.
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
# Of the time between two looks; a cluster that answers slowly is looked at less often.
_SHARE_MAX = 0.1
_WAIT_S = 0.5


class GroupLags:
    """Lags of one flow's groups. ``step`` has one thread; the rest may be called from any.

    ``source``: a client that may read the topics; without that right there are no seconds.
    ``isolation``: as in ``isolation.level``, which end offsets count.
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
        """What the last look found, by group and partition; from the first call on it is looked."""
        self._asked = True
        return self._rows

    def offer(self, committed: GroupOffsets) -> None:
        """Source offsets by group, as they are committed now. Returns at once."""
        if not self._asked or self._now_s() < self._not_before_s:
            return
        with self._lock:
            self._offered = committed
        self._fresh.set()

    def step(self) -> None:
        """Wait a moment for an offer and look at it. Raises `MirrorError`."""
        if not self._fresh.wait(_WAIT_S):
            return
        self._fresh.clear()
        with self._lock:
            offered, self._offered = self._offered, None
        if offered is None:
            return
        began_s = self._now_s()
        try:
            self._rows = self._look(offered)
        finally:
            took_s = self._now_s() - began_s
            self._not_before_s = began_s + took_s / _SHARE_MAX
        log.debug("lags of %d groups took %.0f ms", len(offered), took_s * 1000)

    def _look(self, offered: GroupOffsets) -> tuple[GroupRow, ...]:
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
        self._times.look(begins)
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
    """The first offset that a group reads next, where there is anything to read. Pure."""
    positions = {tp: one.offset for tp, one in offsets.items()}
    known = Offsets(positions, starts, ends)
    begins = {tp: begin_of(tp, known, "none") for tp in positions}
    return {
        tp: begin for tp, begin in begins.items() if begin is not None and begin < ends.get(tp, 0)
    }
