"""Timestamps of the oldest records that a group or a flow has not read yet, at a bounded cost.

Each `RecordTimes.refresh` costs one small Fetch per offset that has changed; number and time are
limited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sparkmirror.model import TopicPartition
from sparkmirror.wire.admin.cluster import Cluster

Reader = tuple[str, TopicPartition]
"""Name of a consumer group or flow, and the partition in which it is behind."""

_UNKNOWN_LOOKS = 15


@dataclass(frozen=True, slots=True)
class _Seen:
    """Timestamp of the record at ``begin``; None if it has none. ``turn``: number of the `look`."""

    begin: int
    time_ms: int | None
    turn: int


class RecordTimes:
    """Timestamps of the next records of readers of ``source``. For one thread.

    ``fetches_max``, ``fetch_s_max``: limits for one `refresh`.
    """

    def __init__(
        self,
        source: Cluster,
        *,
        fetches_max: int,
        fetch_s_max: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._fetches_max, self._fetch_s_max = fetches_max, fetch_s_max
        self._now_s = now_s
        self._seen: dict[Reader, _Seen] = {}
        self._behind_since: dict[Reader, int] = {}
        self._turn = 0

    def time_ms(self, reader: Reader) -> int | None:
        """Timestamp (ms) of the first record that ``reader`` has not read; None if unknown."""
        seen = self._seen.get(reader)
        return None if seen is None else seen.time_ms

    def refresh(self, begins: Mapping[Reader, int]) -> None:
        """Read the timestamps at ``begins``: the next offsets of all readers that are behind.

        Readers that were never read come first, those behind for longest before others; then those
        that were read longest ago. Readers beyond the limits keep the timestamp of an earlier
        offset, so their lag is shown too large rather than too small. Raises `MirrorError`.
        """
        self._turn += 1
        turn = self._turn
        self._seen = {key: seen for key, seen in self._seen.items() if key in begins}
        self._behind_since = {key: self._behind_since.get(key, turn) for key in begins}
        moved = [key for key, begin in begins.items() if self._changed(key, begin)]
        moved.sort(
            key=lambda key: (
                self._seen[key].turn if key in self._seen else 0,
                self._behind_since[key],
            )
        )
        deadline_s = self._now_s() + self._fetch_s_max
        for keys in _one_place_each(moved[: self._fetches_max], begins):
            left_s = deadline_s - self._now_s()
            if left_s <= 0:
                return
            places = {tp: begins[keys[tp][0]] for tp in keys}
            found = self._source.records_at(places, left_s)
            for tp, same in keys.items():
                time_ms = found[tp].time_ms if tp in found else None
                for key in same:
                    self._seen[key] = _Seen(places[tp], time_ms, turn)

    def _changed(self, key: Reader, begin: int) -> bool:
        """Whether to read an offset. Unknown timestamps are read again after several looks."""
        seen = self._seen.get(key)
        if seen is None or seen.begin != begin:
            return True
        return seen.time_ms is None and self._turn - seen.turn >= _UNKNOWN_LOOKS


def _one_place_each(
    keys: Iterable[Reader], begins: Mapping[Reader, int]
) -> list[dict[TopicPartition, list[Reader]]]:
    """Rounds of Fetches with one offset per partition, each with its readers. Pure."""
    by_place: dict[tuple[TopicPartition, int], list[Reader]] = {}
    for key in keys:
        by_place.setdefault((key[1], begins[key]), []).append(key)
    rounds: list[dict[TopicPartition, list[Reader]]] = []
    used: dict[TopicPartition, int] = {}
    for (tp, _), same in by_place.items():
        at = used.get(tp, 0)
        used[tp] = at + 1
        if at == len(rounds):
            rounds.append({})
        rounds[at][tp] = same
    return rounds
