"""Lanes: several Fetch requests in flight at one broker, if the link to it is long.

One request at a time carries one response per round trip, whatever the bandwidth. So a fetcher may
have several **lanes** to a broker. Each lane is a connection with its own fetch session and at
most one request in flight. It needs its own connection because a broker handles the requests of
one connection in order: a Fetch that waits for data would delay all requests behind it.

A partition is in one lane at a time and begins in lane 0. It moves to the lane with the fewest
partitions when

* several consecutive responses ended before the end of its log: the response size is the limit;
* the broker is far: for a near broker a second connection does not pay;
* the lane that it leaves keeps at least as many partitions as the other lane then has.

So partitions do not move back and forth, and a single partition stays where it is. A partition
moves only while no request for it is in flight. The session of its old lane forgets it with that
lane's next request. When a lane's connection is lost, its partitions return to lane 0.

Partitions that are slowed by a limit (`throttle`) have lanes of their own beside these, however
near the broker is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sparkmirror.wire.cluster.coordinator import Routes
from sparkmirror.wire.fetch.partition_state import FetchState
from sparkmirror.wire.produce.joining import ROUND_TRIP_S_MIN

__all__ = ["LANES_MAX", "Lane", "Lanes"]

LANES_MAX = 3
"""Per slot and broker: the kernel buffers their responses, which takes memory, too."""
_CUT_SHORT_TIMES = 4
# No further lane for this long after one failed: a broker or firewall may refuse more connections,
# and each attempt costs time.
_ALONE_S = 60.0

Lane = tuple[int, int]
"""(node id of a broker, number of the connection to it)."""


class Lanes:
    """Chooses the lane of each partition of one fetcher; at most ``lanes_max`` per broker."""

    def __init__(self, routes: Routes, lanes_max: int) -> None:
        self._routes = routes
        self._max = lanes_max
        self._quickest: dict[int, float] = {}  # response per node, s: at least one round trip
        self._alone_until: dict[int, float] = {}
        self._groups = 0

    def of(self, node: int) -> list[Lane]:
        """All possible lanes to ``node``."""
        return [(node, number) for number in range(self._max * (1 + self._groups))]

    def beside(self, lane: Lane, group: int, now: float) -> Lane:
        """The lane beside ``lane`` for group ``group`` of partitions that are slowed; 0: ``lane``.

        Opens its connection if there is none. If the broker refuses that, ``lane``.
        """
        node, number = lane
        if not group or now < self._alone_until.get(node, 0.0):
            return lane
        self._groups = max(self._groups, group)
        number += group * self._max
        if self._routes.connection(node, number) is None:
            self._alone_until[node] = now + _ALONE_S
            return lane
        return node, number

    def note_response(self, node: int, seconds: float) -> None:
        """Note that ``node`` responded ``seconds`` after its request."""
        self._quickest[node] = min(seconds, self._quickest.get(node, seconds))

    def choose(
        self, state: FetchState, node: int, states: Iterable[FetchState], now: float
    ) -> Lane:
        """The lane of the next request at ``node`` for ``state``, which is not in flight.

        ``states``: of all partitions. May open the connection of a lane.
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
        """Whether the broker is far. Opens the lane's connection if there is none.

        A near broker that is busy may look far once. So the quickest response counts, of all
        connections and requests.
        """
        connection = self._routes.connection(node, lane)
        if connection is None:
            return False
        self.note_response(node, connection.round_trip_s)
        far = self._quickest[node] >= ROUND_TRIP_S_MIN
        if lane and not far:
            self._routes.drop(connection)
        return far
