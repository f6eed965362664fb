"""When the oldest records were written that somebody has not read yet, at a bounded price.

Each look costs a small Fetch for every place that has changed, at most so many, and so much time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sparkmirror.model import TopicPartition
from sparkmirror.wire.admin.cluster import Cluster

Reader = tuple[str, TopicPartition]
"""Who is behind in which partition: the name of a consumer group, or of a flow."""

_UNKNOWN_LOOKS = 15


@dataclass(frozen=True, slots=True)
class _Seen:
    """The time of the record at ``begin``, None when it has none; ``turn``: of which look."""

    begin: int
    time_ms: int | None
    turn: int


class RecordTimes:
    """Times of the records at which readers of ``source`` stand. Used from one thread.

    ``fetches_max``, ``fetch_s_max``: for one look.
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
        """Timestamp of the first record that ``reader`` has not read, as far as it is known."""
        seen = self._seen.get(reader)
        return None if seen is None else seen.time_ms

    def look(self, begins: Mapping[Reader, int]) -> None:
        """Read the times at ``begins``: the places of all readers that are behind.

        Those come first that were looked at longest ago, and of those never looked at the ones
        that have been behind for longest. The others keep the time of where they were before,
        which makes them look late rather than current. Raises `MirrorError`.
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
        """Whether to read a place; what had no time, or no leader, is tried again now and then."""
        seen = self._seen.get(key)
        if seen is None or seen.begin != begin:
            return True
        return seen.time_ms is None and self._turn - seen.turn >= _UNKNOWN_LOOKS


def _one_place_each(
    keys: Iterable[Reader], begins: Mapping[Reader, int]
) -> list[dict[TopicPartition, list[Reader]]]:
    """Rounds of reading in which each partition has one place; by it, the keys it is for. Pure."""
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
