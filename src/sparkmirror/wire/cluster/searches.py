"""Decides when to request metadata of partitions whose leader is unknown or wrong. No I/O.

The first request is sent at once, the next ones after the retry back-off (0.1 s), 0.2 s … and then
every 5 s: most elections are quick, and a broker may be down for days. Partitions that are due soon
share a request, so hundreds of them cost no more requests than one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sparkmirror.model import TopicPartition

__all__ = ["PAUSE_S_MAX", "Searches"]

PAUSE_S_MAX = 5.0
"""Longest interval between two requests for a partition without a leader."""


@dataclass(slots=True)
class _Search:
    """``leader``: the last known one. ``wanted``: `Searches.want` was called since then."""

    due: float
    pause_s: float
    leader: object
    wanted: bool = False


class Searches:
    """The searches of one client. Times are its monotonic seconds. ``first_s``: first pause."""

    def __init__(self, first_s: float) -> None:
        self.due = math.inf
        """When `topics` next has something to request."""
        self._first_s = min(first_s, PAUSE_S_MAX)
        self._open: dict[TopicPartition, _Search] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def want(self, tp: TopicPartition, leader: object, now: float) -> None:
        """Search the leader of ``tp``. ``leader``: the known one, which is wrong; None: unknown."""
        search = self._open.get(tp)
        if search is None:
            search = self._open[tp] = _Search(now, self._first_s, leader)
        if not search.wanted:
            search.wanted = True
            self.due = min(self.due, search.due)

    def topics(self, now: float) -> set[str]:
        """The topics to request now: those that are due, or will be soon."""
        return {
            tp.topic
            for tp, search in self._open.items()
            if search.wanted and search.due - now <= search.pause_s / 2
        }

    def on_metadata(
        self, topics: Collection[str], leaders: Mapping[TopicPartition, object], now: float
    ) -> None:
        """Note the metadata of ``topics``: a partition with another leader now is found."""
        for tp, search in list(self._open.items()):
            leader = leaders.get(tp)
            if tp.topic not in topics:
                continue
            forgotten = not search.wanted and now - search.due > PAUSE_S_MAX
            if forgotten or (leader is not None and leader != search.leader):
                del self._open[tp]
                continue
            if search.wanted and search.due - now <= search.pause_s / 2:
                search.due = now + search.pause_s
                search.pause_s = min(PAUSE_S_MAX, 2 * search.pause_s)
            search.leader, search.wanted = leader, False
        self.due = min((one.due for one in self._open.values() if one.wanted), default=math.inf)
