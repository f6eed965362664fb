"""The Produce path: stamped headers in front of bodies that nobody copies.

`Producer` is a state machine without threads, driven by `pump`. Rules that it keeps:

* one batch per partition per request, as brokers insist; several partitions share a request;
* at most ``in_flight_requests_max`` requests per broker; a partition's batches carry consecutive
  sequences and are on their way to one broker at a time (`produce_queue` says why);
* a partition whose batch fails in a way that a retry mends is *recovering*: nothing new is sent
  for it until every answer for it is in, then all unacknowledged batches go again, oldest first,
  with the sequences they had;
* a new producer id is for the partition that needs it alone, so that no batch in doubt elsewhere
  loses its sequence;
* with `Transactions`, a partition joins the open transaction before its first batch goes out, and
  a target that no longer knows the writer ends it (`Fenced`, `TransactionError`): what was
  written is aborted then;
* a batch that is too large for the topic is cut in two, as Java's producer does;
* records that the target refuses are left out where the owner takes them over (`Refusals`); the
  good ones of their batch go on in its place;
* what else a retry cannot mend halts the partition: its batches are dropped, its position stays.

`produce_frames` knows how requests and answers are laid out.
"""

from __future__ import annotations

import logging
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kafka.protocol.producer.transaction import InitProducerIdRequest

from sparkmirror.errors import (
    BatchError,
    ClusterError,
    Fenced,
    PartitionError,
    TransactionError,
)
from sparkmirror.model import Halt, ProduceSettings, TopicPartition
from sparkmirror.wire.batch import record_count
from sparkmirror.wire.connection import Connection, ConnectionLost
from sparkmirror.wire.cut import separate
from sparkmirror.wire.doubts import Arrival, Arrived, arrived
from sparkmirror.wire.kafka_codes import (
    DROPPED,
    DUPLICATE_SEQUENCE_NUMBER,
    FENCED,
    INVALID_PRODUCER_EPOCH,
    LEADERSHIP,
    MESSAGE_TOO_LARGE,
    NETWORK_EXCEPTION,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    RECORD_LIST_TOO_LARGE,
    REFUSED,
    RETRIABLE,
    THROTTLED,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_PRODUCER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    error_name,
)
from sparkmirror.wire.produce_frames import (
    PRODUCE_HIGHEST,
    PRODUCE_KEY,
    PRODUCE_LOWEST,
    Answer,
    StampedBatch,
    answered_correlation,
    parse_answer,
    request_parts,
)
from sparkmirror.wire.produce_queue import NO_IDENTITY, Identity, PartitionQueue, QueuedBatch
from sparkmirror.wire.records import Record
from sparkmirror.wire.routes import Routes
from sparkmirror.wire.transactions import Transactions

__all__ = ["Acknowledged", "Producer", "Refusals"]

log = logging.getLogger(__name__)

_BROKER_TIMEOUT_MS = 30_000
# A partition that the reachable target refuses for so long is set aside when the slot's other
# partitions wait behind it.
_STUCK_S_MAX = 30.0
_TRANSACTION_STUCK_S_MAX = 10.0
# When it is told that a partition fails, though it is still tried.
_FAILING_TOLD_S = 10.0
_THROTTLE_LOG_S = 60.0


@dataclass(slots=True, eq=False)
class _Request:
    correlation: int
    version: int
    sent_at: float
    deadline: float
    items: list[tuple[PartitionQueue, QueuedBatch]]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One batch that the target has: ``offset`` is its first target offset, -1 when unknown."""

    tp: TopicPartition
    token: object
    offset: int
    records: int


class Refusals(Protocol):
    """Takes over records that the target refuses. ``token`` is that of the batch they were in."""

    def wanted(self, token: object) -> bool:
        """Whether refused records are taken over; otherwise the partition is halted."""

    def take(self, token: object, records: Sequence[Record], code: str, reason: str) -> None:
        """Take over ``records``; may append batches for other partitions."""


class Producer:
    """Writes raw record batches to one cluster. One owner, no threads.

    ``transactions``: whose open transaction the batches become part of; its owner ends it.
    ``arrival`` tells whether a batch in doubt is there. ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        routes: Routes,
        settings: ProduceSettings,
        *,
        transactions: Transactions | None = None,
        arrival: Arrival = arrived,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.routes = routes
        self.settings = settings
        self.errors: dict[str, int] = {}
        self.bytes_waiting = 0
        self.blocked = False
        """Whether batches wait only because enough requests are in flight: `pump` sends them."""
        self.refusals: Refusals | None = None
        self.drops = False
        """Whether a batch that the target refuses is dropped (`DROPPED`) instead of a halt."""
        self.impatient = False
        """Whether batches that fail hold others up: then their partition is halted after 30 s,
        in a transaction after 10 s.
        """
        self._arrival = arrival
        self._clock = clock
        self._partitions: dict[TopicPartition, PartitionQueue] = {}
        self._busy: dict[TopicPartition, PartitionQueue] = {}
        self._requests: dict[Connection, deque[_Request]] = {}
        self._not_before: dict[Connection, float] = {}
        self._throttle_log_at = float("-inf")
        self._acknowledged: list[Acknowledged] = []
        self._identity: Identity | None = None if settings.enable_idempotence else NO_IDENTITY
        self._identify_at = 0.0
        self._transactions = transactions
        self._writer: bytes | None = None
        self._stuck_s = min(_STUCK_S_MAX, settings.delivery_timeout_ms / 1000)
        if transactions is not None:
            # The others in the transaction wait for it, and the cluster aborts one that lasts.
            limit_s = min(_TRANSACTION_STUCK_S_MAX, transactions.timeout_ms / 2_000)
            self._stuck_s = min(self._stuck_s, limit_s)
            self._identity = transactions.identity
            self._writer = transactions.transactional_id.encode()
        self._in_flight_max = settings.in_flight_requests_max if settings.enable_idempotence else 1

    # -- input -----------------------------------------------------------------------------

    def append(self, tp: TopicPartition, batch: memoryview, token: object = None) -> None:
        """Queue one record batch for ``tp``; `pump` sends it.

        The view must stay valid until it is acknowledged. Batches of a halted partition are
        dropped.
        """
        state = self._partitions.get(tp)
        if state is None:
            state = self._partitions[tp] = PartitionQueue(tp, self._transactions is not None)
        if state.halt is not None:
            return
        state.pending.append(QueuedBatch(batch, record_count(batch), token, whole=token))
        self._busy[tp] = state
        self.bytes_waiting += len(batch)

    def waiting(self, tp: TopicPartition) -> bool:
        """True while ``tp`` has batches without an acknowledgement."""
        return tp in self._busy

    @property
    def idle(self) -> bool:
        """True when nothing waits for an acknowledgement."""
        return not self._busy

    @property
    def halts(self) -> dict[TopicPartition, Halt]:
        """Partitions that the target refuses, and why."""
        return {tp: s.halt for tp, s in self._partitions.items() if s.halt is not None}

    @property
    def failing(self) -> dict[TopicPartition, Halt]:
        """Partitions that have failed for a while and are still tried, and why."""
        since = self._clock() - _FAILING_TOLD_S
        found = {}
        for tp, state in self._busy.items():
            if state.failing_since is not None and state.failing_since < since:
                code = state.failing_code
                if tp not in self.routes.leaders:
                    code = self.routes.leaderless.get(tp, UNKNOWN_TOPIC_OR_PARTITION)
                text = f"the target takes no batches for {tp} at present ({error_name(code)})"
                found[tp] = Halt(error_name(code), text, retriable=True)
        return found

    def forget_halts(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Try halted partitions again from now on: these, or all."""
        for tp in list(self._partitions) if partitions is None else partitions:
            state = self._partitions.get(tp)
            if state is not None:
                state.halt = None
                state.failing_since, state.failures = None, 0

    # -- driving ---------------------------------------------------------------------------

    def pump(self, timeout_s: float = 0.0) -> list[Acknowledged]:
        """Send what may be sent, read what has come in; wait up to ``timeout_s`` for an answer.

        Returns the batches acknowledged since the last call, in order per partition.
        """
        self._expire()
        self._send()
        self._receive(timeout_s)
        if self._busy:
            self._send()
        done, self._acknowledged = self._acknowledged, []
        return done

    def sockets(self) -> list[socket.socket]:
        """Sockets on which answers are awaited."""
        return [connection.socket for connection, waiting in self._requests.items() if waiting]

    def identify(self) -> Identity | None:
        """The producer id under which partitions begin, asked for if need be; None without one."""
        if self._identity is None:
            self._identity = self._new_identity()
        return None if self._identity == NO_IDENTITY else self._identity

    def identity_of(self, tp: TopicPartition) -> Identity | None:
        """The producer id under which ``tp`` is written, as far as it is known."""
        state = self._partitions.get(tp)
        return self._identity if state is None or state.identity is None else state.identity

    def _identified(self, state: PartitionQueue) -> bool:
        """Whether ``state`` has a producer id to send under; gives it one where it can."""
        if state.identity is not None and not state.renew:
            state.renumber()
            return True
        used_up = None if state.identity == NO_IDENTITY else state.identity
        if self._identity in (None, used_up):
            self._identity = self._new_identity() or self._identity
        if self._identity is None or self._identity == used_up:
            return False
        state.adopt(self._identity)
        return True

    def _new_identity(self) -> Identity | None:
        """A producer id from the cluster; None when it cannot give one now."""
        if self._clock() < self._identify_at:
            return None
        self._identify_at = self._clock() + self.routes.client.retry_backoff_ms / 1000
        try:
            connection = self.routes.any_connection()
        except ClusterError as error:
            log.warning("%s", error)
            return None
        try:
            response = connection.request(
                InitProducerIdRequest(
                    transactional_id=None,
                    transaction_timeout_ms=60_000,
                    producer_id=-1,
                    producer_epoch=-1,
                ),
                highest=1,
            )
        except ConnectionLost as error:
            log.warning("producer id from cluster %s: %s", self.routes.client.alias, error)
            return None
        finally:
            connection.close()
        if response.error_code:
            name = error_name(response.error_code)
            self._count(name)
            if response.error_code not in RETRIABLE:
                raise PartitionError(
                    f"the target gives no producer id ({name}).",
                    where=f"cluster {self.routes.client.alias}",
                    do="Grant IdempotentWrite on the cluster or Write on a topic.",
                )
            return None
        return (response.producer_id, response.producer_epoch)

    def _count(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    # -- sending ---------------------------------------------------------------------------

    def _send(self) -> None:
        self.blocked = False
        if not self._busy:
            return
        now = self._clock()
        self.routes.refresh_if_due()
        if self._transactions is not None:
            self._join_transaction(self._transactions, now)
        by_node: dict[int, list[PartitionQueue]] = {}
        for state in self._busy.values():
            if not state.pending or state.retry_at > now:
                continue
            if not state.in_flight:
                state.recovering = False
                if not self._identified(state):
                    continue
            leader = self.routes.leaders.get(state.tp)
            if leader is None:
                self.routes.add_topics([state.tp.topic])
                self.routes.mark_stale()
                self._retry(state, 5, now)
                continue
            if state.may_send(leader.node):
                by_node.setdefault(leader.node, []).append(state)
        for node, states in by_node.items():
            self._send_to(node, states, now)

    def _join_transaction(self, transactions: Transactions, now: float) -> None:
        """Have the partitions with batches to send join the open transaction."""
        members = transactions.members
        joining = [
            state.tp
            for state in self._busy.values()
            if state.pending and state.tp not in members and state.retry_at <= now
        ]
        if not joining:
            return
        for tp, code in transactions.add(joining).items():
            state = self._partitions[tp]
            self._count(error_name(code))
            if code in RETRIABLE:
                self._retry(state, code, now)
            else:
                self._halt(state, code, "it may not join the transaction")

    def _send_to(self, node: int, states: list[PartitionQueue], now: float) -> None:
        connection = self.routes.connection(node)
        if connection is None:
            return
        requests = self._requests.setdefault(connection, deque())
        while states and len(requests) < self._in_flight_max:
            if self._not_before.get(connection, 0.0) > now:
                return
            try:
                if not connection.ready_to_send(idle=not requests):
                    self.blocked = True
                    return
            except ConnectionLost as error:
                self._lost(connection, error)
                return
            chosen: list[PartitionQueue] = []
            size = 0
            for state in states:
                batch_bytes = len(state.pending[0].batch)
                if chosen and size + batch_bytes > self.settings.request_bytes_max:
                    break
                chosen.append(state)
                size += batch_bytes
            try:
                self._send_request(node, connection, requests, chosen, now)
            except ConnectionLost as error:
                self._lost(connection, error)
                return
            rest = states[len(chosen) :]
            states = rest + [state for state in chosen if state.may_send(node)]
        if states:
            self.blocked = True

    def _send_request(
        self,
        node: int,
        connection: Connection,
        requests: deque[_Request],
        states: list[PartitionQueue],
        now: float,
    ) -> None:
        version = connection.api_version(PRODUCE_KEY, PRODUCE_LOWEST, PRODUCE_HIGHEST, "Produce")
        correlation, head = connection.header(PRODUCE_KEY, version)
        topics: dict[str, list[PartitionQueue]] = {}
        for state in states:
            topics.setdefault(state.tp.topic, []).append(state)
        batches: dict[str, list[StampedBatch]] = {}
        items: list[tuple[PartitionQueue, QueuedBatch]] = []
        for topic, members in topics.items():
            batches[topic] = stamped = []
            for state in members:
                item, header = state.take(node)
                items.append((state, item))
                stamped.append((state.tp.partition, header, item.batch))
        parts = request_parts(
            head,
            batches,
            acks=self.settings.acks,
            timeout_ms=_BROKER_TIMEOUT_MS,
            transactional_id=self._writer,
        )
        request = _Request(
            correlation,
            version,
            now,
            now + self.routes.client.request_timeout_ms / 1000,
            items,
        )
        requests.append(request)
        connection.send_frame(parts, sum(map(len, parts)))

    # -- answers ---------------------------------------------------------------------------

    def _expire(self) -> None:
        now = self._clock()
        for connection, requests in list(self._requests.items()):
            # An answer that waits is late only because nobody has come round to read it.
            if requests and now >= requests[0].deadline and not connection.readable():
                self._lost(connection, ConnectionLost("no answer to Produce in time"))

    def _receive(self, timeout_s: float) -> None:
        sockets = {
            connection.socket: connection
            for connection, waiting in self._requests.items()
            if waiting
        }
        if not sockets:
            if timeout_s > 0 and self._busy:
                time.sleep(min(timeout_s, self.routes.client.retry_backoff_ms / 1000))
            return
        readable, _, _ = select.select(list(sockets), [], [], timeout_s)
        for sock in readable:
            connection = sockets[sock]
            try:
                while self._requests.get(connection):
                    self._read_answer(connection)
                    if not connection.readable():
                        break
            except (ConnectionLost, struct.error, UnicodeDecodeError) as error:
                self._lost(connection, ConnectionLost(f"{error}"))

    def _read_answer(self, connection: Connection) -> None:
        frame = connection.receive_frame()
        request = self._requests[connection][0]
        if answered_correlation(frame) != request.correlation:
            raise ConnectionLost("answer to another request")
        answers, throttle_ms = parse_answer(frame, request.version)
        self._requests[connection].popleft()
        now = self._clock()
        if throttle_ms > 0:
            self._not_before[connection] = now + throttle_ms / 1000
            self._note_throttle(throttle_ms, now)
        for state, item in request.items:
            answer = answers.get(state.tp, Answer(-1, -1, "no answer for the partition"))
            if item not in state.in_flight:
                continue  # dropped with its halted partition
            self._settle(state, item, answer, now)

    def _note_throttle(self, throttle_ms: int, now: float) -> None:
        self._count(THROTTLED)
        if now - self._throttle_log_at >= _THROTTLE_LOG_S:
            self._throttle_log_at = now
            client = self.routes.client
            log.warning(
                "producing to cluster %s: a quota of client id %s is used up, now waiting %d ms "
                "as the broker says",
                *(client.alias, client.client_id, throttle_ms),
            )

    def _settle(self, state: PartitionQueue, item: QueuedBatch, answer: Answer, now: float) -> None:
        code = answer.code
        there = Arrived.NO
        if code in REFUSED and item.doubtful:
            there = self._arrival(self.routes, state.doubt(item))
            if there is not Arrived.NO:
                self._count(error_name(code))
        if code in (0, DUPLICATE_SEQUENCE_NUMBER) or there is Arrived.YES:
            state.acknowledge(item)
            self.bytes_waiting -= len(item.batch)
            unknown = item.thinned or there is Arrived.YES
            self._acknowledged.append(
                Acknowledged(state.tp, item.token, -1 if unknown else answer.offset, item.records)
            )
            if state.idle:
                self._busy.pop(state.tp, None)
            return
        # A batch is also out of order when one before it failed; that is only an echo.
        forgotten = code in (UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH) or (
            code == OUT_OF_ORDER_SEQUENCE_NUMBER and state.is_oldest(item)
        )
        if self._transactions is not None and (forgotten or code in FENCED):
            self._count(error_name(code))
            raise self._ended(state, code)
        if self._transactions is not None and there is Arrived.UNKNOWN:
            # Whether it is there decides which sequence comes next: a new transaction knows.
            raise self._ended(state, code)
        state.requeue(item)
        if there is Arrived.LATER:
            self._retry(state, code, now)
        elif code in (MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE) and item.records > 1:
            self._cut(state, item)
        elif code in REFUSED and self.refusals is not None and self.refusals.wanted(item.whole):
            self._leave_out(state, item, answer)
        elif forgotten:
            # The target no longer knows what it had under this producer id.
            self._count(error_name(code))
            state.renew = True
            self._retry(state, code, now)
        elif code in RETRIABLE or code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            item.doubtful |= code != OUT_OF_ORDER_SEQUENCE_NUMBER
            if code in LEADERSHIP:
                self.routes.mark_stale()
            if not state.recovering:
                self._count(error_name(code))
            self._retry(state, code, now)
        elif self.drops:
            self._count(error_name(code))
            self._drop(state, item, code, answer.reason)
        else:
            self._count(error_name(code))
            reason = answer.reason
            if code == TOPIC_AUTHORIZATION_FAILED:
                reason = f"grant the principal of this client Write on Topic {state.tp.topic}"
            self._halt(state, code, reason)
        state.recovering = True

    def _ended(self, state: PartitionQueue, code: int) -> ClusterError:
        kind = Fenced if code in FENCED else TransactionError
        return kind(
            f"a batch for {state.tp} is no longer accepted ({error_name(code)}).",
            where=f"cluster {self.routes.client.alias}",
        )

    def _retry(self, state: PartitionQueue, code: int, now: float) -> None:
        low = self.routes.client.retry_backoff_ms / 1000
        high = self.routes.client.retry_backoff_ms_max / 1000
        state.retry_at = now + min(high, low * 2 ** min(state.failures, 10))
        state.failures += 1
        if code == NETWORK_EXCEPTION or not self.routes.reachable:
            return  # the cluster is away, not the partition: wait for it
        if state.failing_since is None:
            state.failing_since = now
        state.failing_code = code
        failing_s = now - state.failing_since
        delivery_s = self.settings.delivery_timeout_ms / 1000
        if failing_s > (self._stuck_s if self.impatient else delivery_s):
            self._halt(state, code, f"it has failed for {failing_s:.0f} s", retriable=True)

    def _halt(
        self, state: PartitionQueue, code: int, reason: str, *, retriable: bool = False
    ) -> None:
        name = error_name(code)
        detail = f": {reason}" if reason else ""
        text = f"the target refuses batches for {state.tp} ({name}){detail}"
        state.halt = Halt(name, text, retriable)
        self.bytes_waiting -= state.drop()
        self._busy.pop(state.tp, None)

    def _drop(self, state: PartitionQueue, item: QueuedBatch, code: int, reason: str) -> None:
        """Give up one batch, as if it were acknowledged; what is behind it goes on."""
        log.error(
            "Error when sending message to topic %s: %d records dropped (%s: %s)",
            *(state.tp, item.records, error_name(code), reason),
        )
        self.errors[DROPPED] = self.errors.get(DROPPED, 0) + item.records
        state.pending.remove(item)
        state.renew = True  # its sequences are gone with it
        self.bytes_waiting -= len(item.batch)
        self._acknowledged.append(Acknowledged(state.tp, item.token, -1, item.records))
        if state.idle:
            self._busy.pop(state.tp, None)

    def _cut(self, state: PartitionQueue, item: QueuedBatch) -> None:
        try:
            self.bytes_waiting += state.cut(item)
        except BatchError as error:
            self._halt(state, MESSAGE_TOO_LARGE, str(error))

    def _leave_out(self, state: PartitionQueue, item: QueuedBatch, answer: Answer) -> None:
        """Let the owner have the bad records of a batch, and go on with the good ones."""
        assert self.refusals is not None
        bad = answer.bad_records
        if not bad and item.records == 1:
            bad = (0,)
        elif bad is None:
            self._cut(state, item)  # an old broker does not say which ones
            return
        self._count(error_name(answer.code))
        if not bad:  # it is the batch that is refused, not a record in it
            self._halt(state, answer.code, answer.reason)
            return
        try:
            kept, left_out = separate(item.batch, frozenset(bad))
        except BatchError as error:
            self._halt(state, answer.code, str(error))
            return
        self.refusals.take(item.whole, left_out, error_name(answer.code), answer.reason)
        self.bytes_waiting += state.replace(item, kept)
        if not kept:
            self._acknowledged.append(Acknowledged(state.tp, item.token, -1, 0))
            if state.idle:
                self._busy.pop(state.tp, None)

    def _lost(self, connection: Connection, error: ConnectionLost) -> None:
        log.warning("producing to cluster %s: %s", self.routes.client.alias, error)
        self._count("CONNECTION_LOST")
        requests = self._requests.pop(connection, deque())
        self._not_before.pop(connection, None)
        self.routes.drop(connection)
        hit: dict[TopicPartition, PartitionQueue] = {}
        for request in requests:
            for state, item in request.items:
                if item in state.in_flight:
                    state.requeue(item)
                    state.recovering = item.doubtful = True
                    hit[state.tp] = state
        now = self._clock()
        for state in hit.values():
            self._retry(state, NETWORK_EXCEPTION, now)

    def close(self) -> None:
        """Close the connections. What was not acknowledged has an unknown outcome."""
        self.routes.close()
        self._requests.clear()
