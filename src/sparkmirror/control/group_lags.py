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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sparkmirror.control.lag import Offsets, begin_of, measure
from sparkmirror.model import TopicPartition
from sparkmirror.observe.group_rows import GroupRow
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.views import Committed

__all__ = ["GroupLags"]

log = logging.getLogger(__name__)

GroupOffsets = Mapping[str, Mapping[TopicPartition, Committed]]
_Key = tuple[str, TopicPartition]

_FETCHES_MAX = 500
_FETCH_S_MAX = 5.0
# Of the time between two looks; a cluster that answers slowly is looked at less often.
_SHARE_MAX = 0.1
_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class _Seen:
    """The time of the record at ``begin``, None when it has none; ``turn``: of which look."""

    begin: int
    time_ms: int | None
    turn: int


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
        self._fetches_max = fetches_max
        self._now_s, self._now_ms = now_s, now_ms
        self._lock = threading.Lock()
        self._offered: GroupOffsets | None = None
        self._fresh = threading.Event()
        self._asked = False
        self._rows: tuple[GroupRow, ...] = ()
        self._seen: dict[_Key, _Seen] = {}
        self._turn = 0
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
        self._seen = {key: seen for key, seen in self._seen.items() if key in begins}
        self._read_times(begins)
        now_ms, rows = self._now_ms(), []
        for group in sorted(offered):
            positions = {tp: one.offset for tp, one in offered[group].items()}
            times_ms = {
                tp: seen.time_ms
                for tp in positions
                if (seen := self._seen.get((group, tp))) is not None and seen.time_ms is not None
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

    def _read_times(self, begins: Mapping[_Key, int]) -> None:
        """When the records at ``begins`` were written, of those that are not known.

        Those come first that were looked at longest ago; the others keep the time of where they
        were before, which makes them look late rather than current.
        """
        self._turn += 1
        moved = [
            key
            for key, begin in begins.items()
            if key not in self._seen or self._seen[key].begin != begin
        ]
        moved.sort(key=lambda key: self._seen[key].turn if key in self._seen else 0)
        deadline_s = self._now_s() + _FETCH_S_MAX
        for keys in _one_place_each(moved[: self._fetches_max], begins):
            left_s = deadline_s - self._now_s()
            if left_s <= 0:
                return
            places = {tp: begins[keys[tp][0]] for tp in keys}
            times_ms = self._source.record_times_ms(places, left_s)
            for tp, same in keys.items():
                for key in same:
                    self._seen[key] = _Seen(places[tp], times_ms.get(tp), self._turn)


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


def _one_place_each(
    keys: Iterable[_Key], begins: Mapping[_Key, int]
) -> list[dict[TopicPartition, list[_Key]]]:
    """Rounds of reading in which each partition has one place; by it, the keys it is for. Pure."""
    by_place: dict[tuple[TopicPartition, int], list[_Key]] = {}
    for key in keys:
        by_place.setdefault((key[1], begins[key]), []).append(key)
    rounds: list[dict[TopicPartition, list[_Key]]] = []
    used: dict[TopicPartition, int] = {}
    for (tp, _), same in by_place.items():
        at = used.get(tp, 0)
        used[tp] = at + 1
        if at == len(rounds):
            rounds.append({})
        rounds[at][tp] = same
    return rounds
