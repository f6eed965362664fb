"""Channels: several Fetch requests in flight at one broker, if the link to it is long.

One request at a time carries one response per round trip, whatever the bandwidth. So a fetcher may
have several **channels** to a broker. Each channel is a connection with its own fetch session and
at most one request in flight. It needs its own connection because a broker handles the requests of
one connection in order: a Fetch that waits for data would delay all requests behind it.

A partition is in one channel at a time and begins in channel 0. It moves to the channel with the
fewest partitions when

* several consecutive responses ended before the end of its log: the response size is the limit;
* the broker is far: for a near broker a second connection does not pay;
* the channel that it leaves keeps at least as many partitions as the other channel then has.

So partitions do not move back and forth, and a single partition stays where it is. A partition
moves only while no request for it is in flight. The session of its old channel forgets it with that
channel's next request. When a channel's connection is lost, its partitions return to channel 0.

Partitions that are slowed by a limit (`throttle`) have channels of their own beside these, however
near the broker is. Further connections only help a channel whose partitions have no backlog
(`staggered`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.partition_state import FetchState
from sparkmirror.wire.net.connection import Connection
from sparkmirror.wire.produce.joining import ROUND_TRIP_S_MIN

__all__ = ["CHANNELS_MAX", "Channel", "Channels"]

CHANNELS_MAX = 3
"""Per slot and broker: the kernel buffers their responses, which takes memory, too."""
_CUT_SHORT_TIMES = 4
# No further channel for this long after one failed: a broker or firewall may refuse more
# connections, and each attempt costs time.
_ALONE_S = 60.0

Channel = tuple[int, int]
"""(node id of a broker, number of the connection to it)."""


class Channels:
    """Chooses the channel of each partition of one fetcher; at most ``channels_max`` per broker.

    ``helpers_max``: how many further connections to it may help them (`staggered`).
    """

    def __init__(
        self, connections: ClusterConnections, channels_max: int, helpers_max: int = 0
    ) -> None:
        self._connections = connections
        self._max = channels_max
        self._helpers = helpers_max
        self._quickest: dict[int, float] = {}  # response per node, s: at least one round trip
        self._firsts: dict[int, Connection] = {}  # of channel 0, per node
        self._alone_until: dict[int, float] = {}
        self._groups = 0

    def of(self, node: int) -> list[Channel]:
        """All possible channels to ``node``, without those that help."""
        return [(node, number) for number in range(self._max * (1 + self._groups))]

    def helpers(self, node: int) -> list[Channel]:
        """The channels to ``node`` that help others. Their numbers are negative."""
        return [(node, -number) for number in range(1, self._helpers + 1)]

    def round_trip_s(self, node: int) -> float:
        """The quickest response of ``node`` since it was connected, s; 0.0 before the first one."""
        return self._quickest.get(node, 0.0)

    def beside(self, channel: Channel, group: int, now: float) -> Channel:
        """The channel beside ``channel`` for group ``group`` of partitions that are slowed.

        Begins to open its connection if there is none. Group 0, or a broker that refuses it:
        ``channel``.
        """
        node, number = channel
        if not group or now < self._alone_until.get(node, 0.0):
            return channel
        self._groups = max(self._groups, group)
        number += group * self._max
        if not self._opens(node, number):
            self._alone_until[node] = now + _ALONE_S
            return channel
        return node, number

    def _opens(self, node: int, number: int) -> bool:
        """Whether there is such a connection, or will be in a moment; begins to open it."""
        open_one = self._connections.connection(node, number)
        return open_one is not None or self._connections.connecting(node, number)

    def note_response(self, channel: Channel, connection: Connection, seconds: float) -> None:
        """Note that a response on ``connection`` came ``seconds`` after its request.

        A new connection of channel 0 may lead to another place: what was noted before is forgotten.
        """
        node, number = channel
        if not number and self._firsts.get(node) is not connection:
            self._firsts[node] = connection
            self._quickest[node] = connection.round_trip_s
        self._quickest[node] = min(seconds, self._quickest.get(node, seconds))

    def choose(
        self, state: FetchState, node: int, states: Iterable[FetchState], now: float
    ) -> Channel:
        """The channel of the next request at ``node`` for ``state``, which is not in flight.

        ``states``: of all partitions. May begin to open the connection of a channel.
        """
        if state.node != node:
            state.node, state.channel, state.cut_short = node, 0, 0
            state.unreached_since = None  # the time was that of another broker
        elif state.channel and self._connections.connection(node, state.channel) is None:
            self._alone_until[node] = now + _ALONE_S
            state.channel = 0
        elif state.cut_short >= _CUT_SHORT_TIMES and self._max > 1:
            state.cut_short = 0
            self._spread(state, node, states, now)
        return node, state.channel

    def _spread(
        self, state: FetchState, node: int, states: Iterable[FetchState], now: float
    ) -> None:
        if now < self._alone_until.get(node, 0.0) or not self._far(node, 0):
            return
        members = Counter(one.channel for one in states if one.node == node)
        emptiest = min(range(self._max), key=lambda channel: members[channel])
        if members[state.channel] - members[emptiest] < 2:
            return
        if self._far(node, emptiest):
            state.channel = emptiest
        elif not self._connections.connecting(node, emptiest):
            self._alone_until[node] = now + _ALONE_S

    def _far(self, node: int, channel: int) -> bool:
        """Whether the broker is far; begins to open the channel's connection if there is none.

        A near broker that is busy may look far once. So the quickest response counts, of all
        connections and requests since channel 0 was connected.
        """
        connection = self._connections.connection(node, channel)
        if connection is None:
            return False
        self.note_response((node, channel), connection, connection.round_trip_s)
        far = self._quickest[node] >= ROUND_TRIP_S_MIN
        if channel and not far:
            self._connections.drop(connection)
        return far
