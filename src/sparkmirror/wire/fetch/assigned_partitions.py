"""What a `fetcher.Fetcher` fetches: partitions, their offsets, brokers, holds and halts."""

from __future__ import annotations

from collections.abc import Callable

from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.settings import FetchSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.channels import Channel
from sparkmirror.wire.fetch.in_flight import Repeats, Request
from sparkmirror.wire.fetch.partition_state import FetchState

__all__ = ["AssignedPartitions"]

# As much as a request can ask for.
_BYTES_MAX = (1 << 31) - 1


class AssignedPartitions:
    """The partitions of one fetcher, which extends this class with requests and responses.

    ``holds`` and ``clock``: see there.
    """

    def __init__(
        self,
        connections: ClusterConnections,
        settings: FetchSettings,
        *,
        holds: bool,
        clock: Callable[[], float],
    ) -> None:
        self.connections = connections
        self.settings = settings
        self._clock = clock
        self._states: dict[TopicPartition, FetchState] = {}
        self._requests: dict[Channel, Request] = {}
        self._repeats = Repeats()
        self._halts: dict[TopicPartition, Halt] | None = None
        self._holds = holds
        self._generation = -1

    def assign(self, tp: TopicPartition, offset: int) -> None:
        """Fetch ``tp`` from ``offset`` on. A response in flight for it is dropped."""
        self._states[tp] = FetchState(tp, offset, held=self._holds)
        self._unsettle()

    def release(self, tp: TopicPartition, offset: int, log: tuple[str, int]) -> None:
        """Resume a held partition: ``offset`` belongs to ``log``, a (topic id, leader epoch)."""
        state = self._states[tp]
        state.offset, state.log = offset, log
        state.held = state.range_checked = False
        state.failing_since = None
        self._unsettle()
        if self._log(tp) != log:
            self._generation = -1  # it has changed again: the next `send` holds the partition

    def unassign(self, tp: TopicPartition) -> None:
        """Stop fetching ``tp``. A response in flight for it is dropped."""
        if self._states.pop(tp, None) is not None:
            self._unsettle()

    def assigned(self, tp: TopicPartition) -> bool:
        """Whether ``tp`` is assigned."""
        return tp in self._states

    def take_from(self, other: AssignedPartitions) -> None:
        """Fetch the partitions of ``other`` from where it would; it has no request in flight."""
        other._unsettle()  # its answered requests no longer have their partitions
        self._states.update(other._states)
        self._unsettle()
        outdated = [tp for tp, state in other._states.items() if state.log != self._log(tp)]
        if outdated:
            # Either may be out of date: metadata from now on decides whether to hold them.
            self.connections.forget_leaders(outdated)
        for tp in other._states:
            # A search, because the request for all metadata would be waited for.
            self.connections.topics.add(tp.topic)
            self.connections.mark_stale(tp)

    def await_metadata(self) -> None:
        """Know no leader before there is new metadata: it decides which partitions are held."""
        self.connections.forget_leaders()
        self.connections.mark_stale()
        self._unsettle()

    def position(self, tp: TopicPartition) -> int:
        """Next offset to fetch. Raises KeyError for a partition that is not assigned."""
        return self._states[tp].offset

    def advance(self, tp: TopicPartition, offset: int) -> None:
        """Continue at ``offset``, after a response was used.

        ``tp`` moves to the end of the next request: brokers fill a response in request order, and
        a backlog in the first partitions must not starve the others.
        """
        state = self._states.pop(tp, None)
        if state is not None:
            state.go_on(offset)
            self._states[tp] = self._repeats.changed[tp] = state

    def need_bytes(self, tp: TopicPartition, size: int) -> None:
        """Request at least ``size`` bytes next time: the response had no complete batch."""
        state = self._states.get(tp)
        if state is not None:
            wanted = max(size, 2 * (state.bytes_max or self._partition_bytes()))
            state.bytes_max = min(wanted, _BYTES_MAX)
            self._unsettle()

    def halt(self, tp: TopicPartition, halt: Halt) -> None:
        """Halt ``tp`` for a reason that the caller found."""
        state = self._states.get(tp)
        if state is not None:
            state.halt = halt
            self._unsettle()

    def retry_later(self, tp: TopicPartition, delay_s: float) -> None:
        """Leave ``tp`` out of requests for ``delay_s`` seconds; use none that is under way."""
        state = self._states.get(tp)
        if state is not None:
            state.failed_at = self._clock()
            state.retry_at = state.failed_at + delay_s
            self._unsettle()

    @property
    def halts(self) -> dict[TopicPartition, Halt]:
        """Halted partitions and the reasons; the dictionary is the fetcher's."""
        if self._halts is None:
            states = self._states.items()
            self._halts = {tp: state.halt for tp, state in states if state.halt is not None}
        return self._halts

    def _partition_bytes(self) -> int:
        return self.settings.partition_fetch_bytes_max

    def _unsettle(self) -> None:
        """Something has happened to a partition: the next `send` looks at all of them."""
        self._repeats.end(self._requests.values())
        self._halts = None

    def _hold_moved(self) -> None:
        """Hold partitions that have another topic id or leader epoch in new metadata."""
        self._generation = self.connections.generation
        for tp, state in self._states.items():
            if tp in self.connections.leaders and state.log != self._log(tp):
                state.held = True

    def _log(self, tp: TopicPartition) -> tuple[str, int]:
        leader = self.connections.leaders.get(tp)
        return self.connections.topic_ids.get(tp.topic, ""), -1 if leader is None else leader.epoch

    def _node(self, state: FetchState, now: float) -> int | None:
        if state.replica is not None and now < state.replica_until:
            connections, replica = self.connections, state.replica
            if connections.connection(replica) is not None or connections.connecting(replica):
                return replica
            state.leave_replica(now)
        state.replica = None
        leader = self.connections.leaders.get(state.tp)
        if leader is None:
            state.note_unknown(self.connections, now)
            return None
        state.unknown_since = None
        return leader.node
