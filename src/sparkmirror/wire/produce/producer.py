"""The Produce path: sends batches with new headers, without copying their bodies.

`Producer` is a state machine without threads, driven by `pump`. It follows these rules:

* one batch per partition per request, as brokers require; several partitions share a request;
* at most ``in_flight_requests_max`` requests per broker, one without idempotence. A partition's
  batches have consecutive sequences and are in flight to one broker at a time (`partition_queue`
  says why);
* only the partition that needs a new producer id gets it, so that batches in doubt elsewhere keep
  their sequences;
* batches that wait for a slow link are joined before they are first sent (`joining`);
* with `Transactions`, a partition joins the open transaction before its first batch is sent.

`backlog` decides what a response means for its batches. `messages` has the layout of requests and
responses.
"""

from __future__ import annotations

import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sparkmirror.model import TopicPartition
from sparkmirror.settings import ProduceSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import (
    NETWORK_EXCEPTION,
    RETRIABLE,
    THROTTLED,
    error_name,
)
from sparkmirror.wire.net.connection import Connection, ConnectionLost
from sparkmirror.wire.net.poller import Poller
from sparkmirror.wire.produce.backlog import Acknowledged, Backlog
from sparkmirror.wire.produce.in_doubt import WrittenCheck, was_written
from sparkmirror.wire.produce.joining import Joining, RoundTrip
from sparkmirror.wire.produce.messages import (
    PRODUCE_HIGHEST,
    PRODUCE_KEY,
    PRODUCE_LOWEST,
    PartitionProduceResponse,
    StampedBatch,
    parse_response,
    request_parts,
    response_correlation,
)
from sparkmirror.wire.produce.partition_queue import (
    NO_IDENTITY,
    Identity,
    PartitionQueue,
    QueuedBatch,
)
from sparkmirror.wire.produce.producer_ids import ProducerIds
from sparkmirror.wire.produce.topic_limits import TopicLimits
from sparkmirror.wire.produce.transactions import Transactions

__all__ = ["Producer"]

log = logging.getLogger(__name__)

_BROKER_TIMEOUT_MS = 30_000
_THROTTLE_LOG_S = 60.0
# After this time without a batch, a broker may have forgotten the producer id. By default it
# remembers it for a day (``producer.id.expiration.ms``); a round trip more costs little.
_FORGOTTEN_S = 60.0
# A thread that was busy elsewhere for so long does not know how long the gate was closed, or a
# leader away.
_UNSEEN_S = 5.0
_LOOKS = 8  # in a request timeout, at how much of the requests has been delivered
_PAUSES_VERSION = 6  # from there on, clients wait for a quota; Java's do the same
_ALSO = -1  # the poller's key for the other descriptor that `Producer.pump` waits for
_MISSING_RESPONSE = PartitionProduceResponse(-1, -1, "the response lacks the partition")


def _nothing() -> None:
    """The default of `Producer.before_send`."""


@dataclass(slots=True, eq=False)
class _Request:
    node: int
    correlation: int
    version: int
    size: int
    under_way: int
    """Bytes of this request and of those before it that were not answered yet."""
    sent_at: float
    deadline: float
    items: list[tuple[PartitionQueue, QueuedBatch]]


@dataclass(slots=True)
class _Delivery:
    """How far the requests of a connection had come at the last look, and when the next one is."""

    look_at: float
    delivered: int = 0
    left: int = 0


class Producer:
    """Writes raw record batches to one cluster. One owner, no threads.

    ``transactions``: the batches become part of its open transaction, which its owner ends.
    ``arrival`` finds out whether a batch in doubt was written. ``limits``: how large a batch each
    topic accepts; without it, only refusals show that. ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        connections: ClusterConnections,
        settings: ProduceSettings,
        *,
        transactions: Transactions | None = None,
        arrival: WrittenCheck = was_written,
        limits: TopicLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connections = connections
        self.settings = settings
        limits = TopicLimits(clock=clock) if limits is None else limits
        self.backlog = Backlog(
            *(connections, settings),
            transactions=transactions, arrival=arrival, limits=limits, clock=clock,
        )  # fmt: skip
        """The batches to send, and what became of them."""
        self.blocked = False
        """Whether batches wait only for requests in flight; a later `pump` sends them."""
        self.woken = False
        """Whether the other descriptor was readable in the last `pump`."""
        self.before_send: Callable[[], None] = _nothing
        """Called before batches, or the rest of one, are sent. If it raises, they stay here."""
        self._requests: dict[Connection, deque[_Request]] = {}
        self._either = Poller[Connection | int]()  # responses, and `pump`'s other descriptor
        self._responses = Poller[Connection | int](within=self._either)
        self._not_before: dict[Connection, float] = {}
        self._deliveries: dict[Connection, _Delivery] = {}
        self._round_trips: dict[int, RoundTrip] = {}
        self.joining = Joining(settings, limits)
        self._throttle_log_at = self._looked_at = float("-inf")
        self._clock = clock
        self._transactions = transactions
        identity = None if settings.enable_idempotence else NO_IDENTITY
        self._writer: bytes | None = None
        if transactions is not None:
            identity = transactions.identity
            self._writer = transactions.transactional_id.encode()
        self.ids = ProducerIds(
            *(connections, identity),
            count=self.backlog.count, transactional=transactions is not None, clock=clock,
        )  # fmt: skip
        self._in_flight_max = settings.in_flight_requests_max if settings.enable_idempotence else 1

    # -- driving ---------------------------------------------------------------------------

    def pump(self, timeout_s: float = 0.0, also: int = -1) -> list[Acknowledged]:
        """Send what may be sent and read responses; wait up to ``timeout_s`` for one.

        ``also``: a descriptor that ends the wait, too, when it is readable (`woken`); -1: none.
        Returns the batches acknowledged since the last call. A batch that failed and was retried
        may come after later ones of its partition. Raises `PartitionError` when the target refuses
        a producer id, and `ClusterError` when a transaction cannot continue.
        """
        self._expire()
        self.connections.idle.close_old()
        self._send()
        self._receive(timeout_s, also)
        self._send()
        return self.backlog.take_acknowledged()

    def identity_of(self, tp: TopicPartition) -> Identity | None:
        """The producer id under which ``tp`` is written; None: not known yet."""
        state = self.backlog.queue(tp)
        return self.ids.identity if state is None or state.identity is None else state.identity

    # -- sending ---------------------------------------------------------------------------

    def _send(self) -> None:
        """Send what may be sent. Does nothing while all waiting batches wait for responses."""
        backlog = self.backlog
        if not backlog.stirred:
            return
        if backlog.busy:
            self.before_send()
        backlog.stirred = self.blocked = False
        if not backlog.busy:
            return
        now = self._clock()
        if now - self._looked_at > _UNSEEN_S:
            # Nobody has looked whether they could be sent meanwhile.
            for state in backlog.busy.values():
                state.held_since = None
        self.connections.refresh_if_due()
        if self._transactions is not None:
            self._join_transaction(self._transactions, now)
        self._looked_at = self._clock()
        leaders = self.connections.leaders
        by_node: dict[int, list[PartitionQueue]] = {}
        for state in list(backlog.busy.values()):  # a copy: a halt removes its partition
            if not state.pending:
                continue
            outside = self._transactions is not None and state.tp not in self._transactions.members
            # A partition that could not join has to wait, also if the pause is zero.
            if state.retry_at > now or outside:
                backlog.stirred = True
                continue
            if not state.in_flight:
                state.recovering = False
                if now - state.acknowledged_at > _FORGOTTEN_S:
                    state.alone = True
                if not self.ids.assign(state):
                    backlog.stirred = True
                    continue
            leader = leaders.get(state.tp)
            if leader is None:
                backlog.stirred = True
                self.connections.add_topics([state.tp.topic])
                self.connections.mark_stale(state.tp)
                backlog.retry(state, 5, now)
            elif backlog.gate is not None and not backlog.gate.may_send(self.connections, state.tp):
                backlog.stirred = True
                backlog.hold(state, now)
            elif state.may_send(leader.node):
                by_node.setdefault(leader.node, []).append(state)
            else:
                state.held_since = None  # it waits for responses
        for node, states in by_node.items():
            if not self._send_to(node, states, now):
                backlog.stirred = True

    def _join_transaction(self, transactions: Transactions, now: float) -> None:
        """Add the partitions with batches to send to the open transaction."""
        backlog = self.backlog
        members = transactions.members
        joining = [
            state.tp
            for state in backlog.busy.values()
            if state.pending and state.tp not in members and state.retry_at <= now
        ]
        if not joining:
            return
        for tp, code in transactions.add(joining).items():
            state = backlog.busy[tp]
            backlog.count(error_name(code))
            if code in RETRIABLE:
                backlog.retry(state, code, now)
            else:
                backlog.halt(state, code, "it cannot be added to the transaction")

    def _send_to(self, node: int, states: list[PartitionQueue], now: float) -> bool:
        """Send batches of ``states``. Returns whether the rest waits only for responses."""
        connection = self.connections.connection(node)
        if connection is None:
            for state in states:
                self.backlog.hold(state, now)
            return False
        for state in states:
            state.held_since = None
        requests = self._requests.get(connection)
        if not requests and connection.ended_idle():
            # No request is in flight on it: no batch is in doubt.
            self._forget_ended(connection)
            return False
        if requests is None:
            requests = self._requests[connection] = deque()
        if connection.unsent:
            self.blocked = True  # `_receive` sends the rest when the socket is writable
            return True
        backlog = self.backlog
        round_trip = self._round_trips.setdefault(node, RoundTrip())
        while states and len(requests) < self._in_flight_max:
            if self._not_before.get(connection, 0.0) > now:
                return False
            try:
                if not connection.ready_to_send(idle=not requests):
                    self.blocked = True
                    return bool(requests)  # otherwise it is logging in
                if not requests:
                    connection.watched_by(self._responses)
            except ConnectionLost as error:
                self._lost(connection, error)
                return False
            version = self._version(connection)
            if not self.joining.suits(version):
                self.joining.refuse_codec(self.connections.client.alias)
            chosen: list[PartitionQueue] = []
            size, most = 0, self.settings.request_bytes_max
            if round_trip.slow:
                most = min(most, round_trip.request_bytes)
            for state in states:
                backlog.bytes_waiting += self.joining.form(state, round_trip, len(states), now)
                batch_bytes = len(state.pending[0].batch)
                if chosen and size + batch_bytes > most:
                    break
                chosen.append(state)
                size += batch_bytes
            try:
                self._send_request(node, connection, version, requests, chosen, now)
            except ConnectionLost as error:
                self._lost(connection, error)
                return False
            rest = states[len(chosen) :]
            if rest:
                # They come first next time. Else those that always have batches get every turn.
                for state in chosen:
                    backlog.busy[state.tp] = backlog.busy.pop(state.tp)
            states = rest + [state for state in chosen if state.may_send(node)]
            if connection.unsent:
                break
        if states:
            self.blocked = True
        return True

    def _version(self, connection: Connection) -> int:
        return connection.api_version(PRODUCE_KEY, PRODUCE_LOWEST, PRODUCE_HIGHEST, "Produce")

    def _send_request(
        self,
        node: int,
        connection: Connection,
        version: int,
        requests: deque[_Request],
        states: list[PartitionQueue],
        now: float,
    ) -> None:
        correlation, head = connection.header(PRODUCE_KEY, version)
        batches: dict[str, list[StampedBatch]] = {}
        items: list[tuple[PartitionQueue, QueuedBatch]] = []
        for state in states:
            item, header = state.take(node)
            items.append((state, item))
            topic, partition = state.tp
            batches.setdefault(topic, []).append((partition, header, item.batch))
        parts = request_parts(
            head,
            batches,
            acks=self.settings.acks,
            timeout_ms=_BROKER_TIMEOUT_MS,
            transactional_id=self._writer,
        )
        timeout_s = self.connections.client.request_timeout_ms / 1000
        size = sum(map(len, parts))
        request = _Request(
            node,
            correlation,
            version,
            size,
            size + sum(one.size for one in requests),
            self._clock(),  # later than ``now``: joining takes time
            now + timeout_s,
            items,
        )
        if not requests:
            self._deliveries[connection] = _Delivery(now + timeout_s / _LOOKS)
        requests.append(request)
        connection.begin_frame(parts, size)

    # -- responses -------------------------------------------------------------------------

    def _expire(self) -> None:
        now = self._clock()
        late = []
        for connection, requests in self._requests.items():
            if requests:
                if now >= self._deliveries[connection].look_at:
                    self._look(connection, requests, now)
                if now >= requests[0].deadline:
                    late.append(connection)
        for connection in late:
            # A readable response is not overdue: this thread was too busy to read it.
            if not connection.readable():
                self._lost(connection, ConnectionLost("no answer to Produce in time"))

    def _look(self, connection: Connection, requests: deque[_Request], now: float) -> None:
        """Requests that still arrive at the broker do not time out: the link is slow, not dead."""
        timeout_s = self.connections.client.request_timeout_ms / 1000
        before = self._deliveries[connection]
        delivered, left = connection.delivery()
        if before.left and delivered > before.delivered:
            for request in requests:
                request.deadline = now + timeout_s
        self._deliveries[connection] = _Delivery(now + timeout_s / _LOOKS, delivered, left)

    def _receive(self, timeout_s: float, also: int, *, sending: bool = True) -> None:
        """Read responses; ``sending``: and send the rest of requests, where there is room."""
        backlog = self.backlog
        self.woken = False
        poller = self._responses
        if also >= 0:
            poller = self._either
            poller.add(_ALSO, also)
        elif not any(self._requests.values()):
            if timeout_s > 0 and backlog.busy:
                time.sleep(min(timeout_s, self.connections.client.retry_backoff_ms / 1000))
            return
        began = self._clock()
        ready = poller.wait(timeout_s)
        self.joining.waited_s += self._clock() - began
        for connection in ready:
            if isinstance(connection, int):
                self.woken = True
                continue
            if not self._requests.get(connection):
                if connection in self._responses and connection.hung_up():
                    self._forget_ended(connection)
                continue
            rest = sending and connection.unsent
            if rest:
                self.before_send()  # the rest of a batch is one, too
            try:
                if rest:
                    backlog.stirred = connection.go_on_sending() or backlog.stirred
                    if not connection.readable():
                        continue
                while self._requests.get(connection) and self._read_response(connection):
                    if not connection.has_ahead():
                        break
            except (ConnectionLost, struct.error, UnicodeDecodeError) as error:
                self._lost(connection, ConnectionLost(f"{error}"))

    def _forget_ended(self, connection: Connection) -> None:
        """Drop a connection that its broker closed while no request was in flight."""
        log.info("%s:%d closed an idle connection", connection.host, connection.port)
        self._requests.pop(connection, None)
        self._not_before.pop(connection, None)
        self._deliveries.pop(connection, None)
        self.connections.drop(connection)

    def _read_response(self, connection: Connection) -> bool:
        """Process the next response; False while it is incomplete."""
        backlog = self.backlog
        frame = connection.receive_ahead()
        if frame is None:
            return False
        backlog.stirred = True
        request = self._requests[connection][0]
        if response_correlation(frame) != request.correlation:
            raise ConnectionLost("a response to another request")
        responses, throttle_ms = parse_response(frame, request.version)
        self._requests[connection].popleft()
        now = self._clock()
        round_trip = self._round_trips[request.node]
        round_trip.note(now - request.sent_at, now)
        usual = max(request.size, request.under_way // self._in_flight_max)
        round_trip.fit(usual, now - request.sent_at)
        if throttle_ms > 0:
            if request.version >= _PAUSES_VERSION:  # older brokers have waited themselves
                self._not_before[connection] = now + throttle_ms / 1000
            self._note_throttle(throttle_ms, now)
        for state, item in request.items:
            if item in state.in_flight:  # otherwise a halt has dropped it
                backlog.settle(state, item, responses.get(state.tp, _MISSING_RESPONSE), now)
        if backlog.codec_refused:
            backlog.codec_refused = False
            self.joining.refuse_codec(self.connections.client.alias)
        return True

    def _note_throttle(self, throttle_ms: int, now: float) -> None:
        self.backlog.count(THROTTLED)
        if now - self._throttle_log_at >= _THROTTLE_LOG_S:
            self._throttle_log_at = now
            client = self.connections.client
            log.warning(
                "producing to cluster %s: throttled by a quota of client id %s, waiting %d ms",
                *(client.alias, client.client_id, throttle_ms),
            )

    def _lost(self, connection: Connection, error: ConnectionLost) -> None:
        backlog = self.backlog
        log.warning("producing to cluster %s: %s", self.connections.client.alias, error)
        backlog.count("CONNECTION_LOST")
        backlog.stirred = True
        requests = self._requests.pop(connection, deque())
        self._not_before.pop(connection, None)
        self._deliveries.pop(connection, None)
        self.connections.drop(connection)
        hit: dict[TopicPartition, PartitionQueue] = {}
        for request in requests:
            for state, item in request.items:
                if item in state.in_flight:
                    state.requeue(item)
                    state.recovering = item.doubtful = True
                    hit[state.tp] = state
        now = self._clock()
        for state in hit.values():
            if backlog.gate is not None:
                backlog.gate.recheck(state.tp)
            backlog.retry(state, NETWORK_EXCEPTION, now)

    def copy_waiting(self, nodes: Collection[int]) -> None:
        """Copy what waits for the brokers ``nodes``; also the unsent rest of their requests."""
        self.backlog.copy_waiting(nodes)
        for connection, requests in self._requests.items():
            if requests and requests[-1].node in nodes:
                connection.copy_unsent()

    def await_responses(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for the responses in flight, without sending anything more.

        Without this wait, a later check of the log's end misses what a busy broker still appends.
        A request that has an unsent rest is not waited for: no broker appends a part.
        """
        deadline = self._clock() + timeout_s
        self._watch_rests(False)  # else each wait would end at once
        while any(
            len(requests) > int(connection.unsent)
            for connection, requests in self._requests.items()
        ):
            left_s = deadline - self._clock()
            if left_s <= 0:
                break
            self._receive(left_s, -1, sending=False)
        self._watch_rests(True)

    def _watch_rests(self, wanted: bool) -> None:
        """Set whether a connection with an unsent rest is ready when its socket is writable."""
        for connection in self._requests:
            if connection.unsent:
                self._responses.also_writable(connection, wanted)

    def close(self) -> None:
        """Close the connections. Unacknowledged batches have an unknown outcome."""
        self.connections.close()
        self._requests.clear()
