"""Lanes: several Fetch requests under way at one broker, where the link to it is long.

One request at a time carries one answer per round trip, however wide the link is. So a fetcher may
have more **lanes** to a broker: each is a connection with a fetch session of its own and at most
one request under way. A connection of its own, because a broker handles the requests of one
connection one after the other: a Fetch that waits for data would hold back all behind it.

A partition is in one lane at a time, and all begin in lane 0. One moves to the lane with the fewest
partitions when

* several of its answers on end were cut short of the end of its log: the answers are the limit;
* the broker is far: near ones are asked again sooner than a second connection would pay;
* the lane that it leaves keeps as many partitions as the other one then has.

So nothing moves to and fro, and a partition that is alone stays where it is. It moves only between
two requests: whoever is asked for is not chosen for. A lane's session forgets what has left it with
the lane's next request. Where a lane's connection is lost, its partitions go on in lane 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sparkmirror.wire.cluster.coordinator import Routes
from sparkmirror.wire.fetch.partition_state import FetchState
from sparkmirror.wire.produce.joining import ROUND_TRIP_S_MIN

__all__ = ["LANES_MAX", "Lane", "Lanes"]

LANES_MAX = 3
"""Of a slot to one broker: what its kernel may hold of their answers is memory, too."""
_CUT_SHORT_TIMES = 4
# A broker or a firewall may not like further connections, and each attempt costs time.
_ALONE_S = 60.0

Lane = tuple[int, int]
"""A broker's node, and the number of the connection to it."""


class Lanes:
    """Chooses the lane of each partition of one fetcher; at most ``lanes_max`` per broker."""

    def __init__(self, routes: Routes, lanes_max: int) -> None:
        self._routes = routes
        self._max = lanes_max
        self._quickest: dict[int, float] = {}  # answers; none comes sooner than a round trip
        self._alone_until: dict[int, float] = {}

    def of(self, node: int) -> list[Lane]:
        """All lanes that there may be to ``node``."""
        return [(node, number) for number in range(self._max)]

    def note_answer(self, node: int, seconds: float) -> None:
        """An answer came so long after its request."""
        self._quickest[node] = min(seconds, self._quickest.get(node, seconds))

    def choose(
        self, state: FetchState, node: int, states: Iterable[FetchState], now: float
    ) -> Lane:
        """Where the next request at ``node`` for a partition that is not asked for belongs.

        ``states``: of all partitions. May connect, once for each lane.
        """
        if state.node != node:
            state.node, state.lane, state.cut_short = node, 0, 0
        elif state.lane and self._routes.connection(node, state.lane) is None:
            self._alone_until[node] = now + _ALONE_S
            state.lane = 0
        elif state.cut_short >= _CUT_SHORT_TIMES and self._max > 1:
            state.cut_short = 0
            self._spread(state, node, states, now)
        return node, state.lane

    def _spread(
        self, state: FetchState, node: int, states: Iterable[FetchState], now: float
    ) -> None:
        if now < self._alone_until.get(node, 0.0) or not self._far(node, 0):
            return
        members = Counter(one.lane for one in states if one.node == node)
        emptiest = min(range(self._max), key=lambda lane: members[lane])
        if members[state.lane] - members[emptiest] < 2:
            return
        if self._far(node, emptiest):
            state.lane = emptiest
        else:
            self._alone_until[node] = now + _ALONE_S

    def _far(self, node: int, lane: int) -> bool:
        """Whether the lane's connection, made now if need be, shows the broker to be far.

        A near broker that was busy looks far once: so each connection is asked, and each answer.
        """
        connection = self._routes.connection(node, lane)
        if connection is None:
            return False
        self.note_answer(node, connection.round_trip_s)
        far = self._quickest[node] >= ROUND_TRIP_S_MIN
        if lane and not far:
            self._routes.drop(connection)
        return far
