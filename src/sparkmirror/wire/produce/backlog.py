"""The unacknowledged batches, and what a response means for them.

`Backlog` keeps the batches of all partitions from `append` to acknowledgement; `producer.Producer`
sends those of its backlog and reads the responses. Rules for a response:

* a retriable error makes the partition *recovering*: nothing new is sent for it until all its
  responses have arrived. Then all unacknowledged batches are sent again, oldest first, with the
  same sequences;
* with `Transactions`, a target that no longer knows the producer ends the transaction (`Fenced`,
  `TooSlow`, `TransactionError`), which is then aborted;
* a joined batch (`joining`) that is refused for good is split into its members. They are sent one
  by one, with the sequences of their records;
* a batch that is too large for the topic is cut in two, as Java's producer does;
* records that the target refuses are left out if the owner takes them over (`Refusals`); the good
  records of the batch are sent in its place;
* any other error drops the batch (`Backlog.drops`) or halts the partition: a halt drops its
  batches, and its position stays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sparkmirror.errors import BatchError, ClusterError, Defect, TransactionError
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.records.header import codec, record_count
from sparkmirror.records.records import Record
from sparkmirror.records.split import separate
from sparkmirror.settings import ProduceSettings
from sparkmirror.wire.cluster.acl_advice import Right, grant
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import (
    DROPPED,
    DUPLICATE_SEQUENCE_NUMBER,
    FENCED,
    INVALID_PRODUCER_EPOCH,
    LEADER_NOT_AVAILABLE,
    LEADERSHIP,
    MESSAGE_TOO_LARGE,
    NETWORK_EXCEPTION,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    REFUSED,
    RETRIABLE,
    TOO_LARGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_PRODUCER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_COMPRESSION_TYPE,
    error_name,
)
from sparkmirror.wire.produce.in_doubt import WasWritten, WrittenCheck, was_written
from sparkmirror.wire.produce.messages import PartitionProduceResponse
from sparkmirror.wire.produce.partition_queue import PartitionQueue, QueuedBatch
from sparkmirror.wire.produce.topic_limits import TopicLimits
from sparkmirror.wire.produce.transactions import Transactions

__all__ = ["Acknowledged", "Backlog", "Gate", "Refusals"]

log = logging.getLogger(__name__)

# A partition that a reachable target refuses for this long is halted if other partitions of the
# slot wait behind it (`Backlog.impatient`).
_STUCK_S_MAX = 30.0
_TRANSACTION_STUCK_S_MAX = 10.0
# A partition that fails for this long is reported, although it is still retried.
_FAILING_TOLD_S = 10.0
# Errors of a target that may have lost its state of the producer.
_FORGOTTEN = frozenset({UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER})
# Codes of a batch that the target has, from this request or an earlier one.
_TAKEN = (0, DUPLICATE_SEQUENCE_NUMBER)


@dataclass(slots=True)
class Acknowledged:
    """One settled batch: the target has it, or it was dropped.

    ``offset``: its first target offset, -1 when unknown or dropped. ``records``: their number.
    """

    tp: TopicPartition
    token: object
    offset: int
    records: int


class Refusals(Protocol):
    """Takes over records that the target refuses. ``token``: that of their batch."""

    def wanted(self, token: object) -> bool:
        """Whether refused records are taken over. If not: a dropped batch, or a halt."""

    def take(self, token: object, records: Sequence[Record], code: str, reason: str) -> None:
        """Take over ``records``; may append batches for other partitions."""

    def dropped(self, token: object, count: int, code: str, reason: str) -> None:
        """Note that a batch of ``count`` records is dropped; may append batches for others."""


class Gate(Protocol):
    """Decides whether a partition's log is still the one that was written to."""

    def may_send(self, connections: ClusterConnections, tp: TopicPartition) -> bool:
        """Whether batches may go to ``tp`` now."""

    def recheck(self, tp: TopicPartition) -> None:
        """Note that the log of ``tp`` may have been replaced or truncated."""


class Backlog:
    """Unacknowledged batches for one cluster. One owner, no threads.

    ``transactions``: the batches become part of its open transaction, which its owner ends.
    ``arrival`` finds out whether a batch in doubt was written. ``limits`` learns which joined
    batches were too large. ``clock``: monotonic seconds.
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
        self.errors: dict[str, int] = {}
        self.bytes_waiting = 0
        self.refusals: Refusals | None = None
        self.gate: Gate | None = None
        self.drops = False
        """Whether a batch that the target refuses is dropped (`DROPPED`) instead of halting."""
        self.impatient = False
        """Whether failing batches delay others. If so, their partition is halted after 30 s, in a
        transaction after 10 s; one that is held (`hold`), after 30 s.
        """
        self._stuck_s = min(_STUCK_S_MAX, settings.delivery_timeout_ms / 1000)
        # The gate, or the connection, may wait for a broker that has died: it leads for up to 18 s,
        # until its session ends.
        self._held_s = self._stuck_s
        if transactions is not None:
            # The transaction's other partitions wait for it, and it times out if it lasts.
            self._held_s = min(self._held_s, transactions.timeout_ms / 2_000)
            self._stuck_s = min(self._held_s, _TRANSACTION_STUCK_S_MAX)
        self._was_written = arrival
        self._limits = TopicLimits() if limits is None else limits
        self._clock = clock
        self._transactions = transactions
        self._partitions: dict[TopicPartition, PartitionQueue] = {}
        self.busy: dict[TopicPartition, PartitionQueue] = {}
        """Partitions with unacknowledged batches."""
        self._halted: dict[TopicPartition, Halt] = {}
        self.halted = 0
        """Number of halts so far."""
        self._acknowledged: list[Acknowledged] = []
        self.codec_refused = False
        """Whether the target has refused the codec of batches that were joined."""
        self.stirred = False
        """Whether batches may be sent that could not be sent in the producer's last `pump`."""

    # -- input -----------------------------------------------------------------------------

    def append(
        self, tp: TopicPartition, batch: memoryview, token: object = None, records: int = -1
    ) -> None:
        """Queue one record batch for ``tp``; `producer.Producer.pump` sends it.

        ``token`` returns with the acknowledgement. ``records``: the record count of its header, if
        it was read before; -1: not. The view must stay valid until the acknowledgement. Batches of
        a halted partition are dropped.
        """
        state = self._partitions.get(tp)
        if state is None:
            state = self._partitions[tp] = PartitionQueue(tp, self._transactions is not None)
        if state.halt is not None:
            return
        if records < 0:
            records = record_count(batch)
        state.pending.append(QueuedBatch(batch, records, token, token))
        self.busy[tp] = state
        self.stirred = True
        self.bytes_waiting += len(batch)

    def waiting(self, tp: TopicPartition) -> bool:
        """Whether ``tp`` has unacknowledged batches."""
        return tp in self.busy

    def leader_of(self, tp: TopicPartition) -> int:
        """Node id of the leader of ``tp``, -1 when it is unknown."""
        leader = self.connections.leaders.get(tp)
        return -1 if leader is None else leader.node

    def waiting_by_broker(self) -> dict[int, int]:
        """Unacknowledged bytes per leader's node id (-1: unknown)."""
        found: dict[int, int] = {}
        for tp, state in self.busy.items():
            node = self.leader_of(tp)
            found[node] = found.get(node, 0) + state.size
        return found

    def copy_waiting(self, nodes: Collection[int]) -> None:
        """Copy the batches that wait for the brokers ``nodes``, to free their former memory."""
        for tp, state in self.busy.items():
            if self.leader_of(tp) in nodes:
                state.copy()

    def queue(self, tp: TopicPartition) -> PartitionQueue | None:
        """The batches of ``tp``; None if it never had any."""
        return self._partitions.get(tp)

    def records_of(self, tp: TopicPartition) -> int:
        """Number of records of ``tp`` under its producer id once all its batches are written."""
        state = self._partitions.get(tp)
        return 0 if state is None else state.records

    def take_acknowledged(self) -> list[Acknowledged]:
        """The batches settled since the last call."""
        done, self._acknowledged = self._acknowledged, []
        return done

    @property
    def idle(self) -> bool:
        """Whether all batches are acknowledged."""
        return not self.busy

    @property
    def halts(self) -> dict[TopicPartition, Halt]:
        """Halted partitions and the reasons."""
        return dict(self._halted)

    @property
    def failing(self) -> dict[TopicPartition, Halt]:
        """Partitions that have failed, or were held (`hold`), for 10 s, and the reasons.

        They are still retried.
        """
        since = self._clock() - _FAILING_TOLD_S
        found = {}
        for tp, state in self.busy.items():
            if state.failing_since is not None and state.failing_since < since:
                code = state.failing_code
                if tp not in self.connections.leaders:
                    told = self.connections.topic_errors.get(tp.topic, UNKNOWN_TOPIC_OR_PARTITION)
                    code = self.connections.leaderless.get(tp, told)
                text = f"the target accepts no batches for {tp} at present ({error_name(code)})"
                found[tp] = Halt(error_name(code), text, retriable=True)
            elif state.held_since is not None and state.held_since < since:
                found[tp] = _unchecked(tp, self._clock() - state.held_since)
        return found

    def forget_halts(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Resume halted partitions: ``partitions``, or all."""
        for tp in list(self._partitions) if partitions is None else partitions:
            state = self._partitions.get(tp)
            if state is not None:
                state.halt = None
                self._halted.pop(tp, None)
                state.failing_since, state.held_since, state.failures = None, None, 0

    def under_way(self, tp: TopicPartition) -> bool:
        """Whether batches of ``tp`` are in flight."""
        state = self._partitions.get(tp)
        return state is not None and bool(state.in_flight)

    def give_up(self, tp: TopicPartition, halt: Halt) -> None:
        """Halt ``tp`` for a reason that the owner found; its batches are dropped."""
        state = self._partitions.get(tp)
        if state is None:
            state = self._partitions[tp] = PartitionQueue(tp, self._transactions is not None)
        self._halted[tp] = state.halt = halt
        self.bytes_waiting -= state.drop()
        self.halted += 1
        self.busy.pop(tp, None)

    # -- responses -------------------------------------------------------------------------

    def settle(
        self,
        state: PartitionQueue,
        item: QueuedBatch,
        response: PartitionProduceResponse,
        now: float,
    ) -> None:
        """Apply the response to a batch in flight. Raises `ClusterError` if a transaction ends."""
        code = response.code
        if code in _TAKEN:
            self._acknowledge(state, item, response.offset, now)
            return
        if self.gate is not None and (code in LEADERSHIP or code in _FORGOTTEN):
            self.gate.recheck(state.tp)
        there = WasWritten.NO
        if code in REFUSED and item.doubtful:
            there = self._was_written(self.connections, state.in_doubt(item))
            if there is not WasWritten.NO:
                self.count(error_name(code))
        if there is WasWritten.YES:
            self._acknowledge(state, item, -1, now)
            return
        # A batch is also out of order because one before it failed: only the oldest one counts.
        forgotten = code in (UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH) or (
            code == OUT_OF_ORDER_SEQUENCE_NUMBER and state.is_oldest(item)
        )
        if self._transactions is not None and (forgotten or code in FENCED):
            self.count(error_name(code))
            raise self._ended(state, code)
        if self._transactions is not None and there is WasWritten.UNKNOWN:
            # The next sequence depends on whether it was written: only a new transaction is sure.
            raise self._ended(state, code)
        state.requeue(item)
        if there is WasWritten.LATER:
            self.retry(state, code, now)
        elif item.members and not (
            forgotten or code in RETRIABLE or code == OUT_OF_ORDER_SEQUENCE_NUMBER
        ):
            # The error may concern one member only: they are sent one by one.
            self.bytes_waiting += state.take_apart(item)
            if code in TOO_LARGE:
                self._limits.refused(state.tp.topic, len(item.batch))
            elif code == UNSUPPORTED_COMPRESSION_TYPE:
                self.count(error_name(code))
                # Else it is the source's, which the link's was no gain over.
                kinds = {codec(one.batch) for one in item.members}
                self.codec_refused |= codec(item.batch) not in kinds
        elif code in TOO_LARGE and item.records > 1:
            self._cut(state, item)
        elif code in REFUSED and self.refusals is not None and self.refusals.wanted(item.whole):
            self._leave_out(state, item, response)
        elif forgotten:
            # The target has lost its state of this producer id, which may have expired. The gate
            # checks whether records are lost, too, before anything more is sent.
            self.count(error_name(code))
            state.renew = True
            self.retry(state, code, now)
        elif code in RETRIABLE or code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            item.doubtful |= code != OUT_OF_ORDER_SEQUENCE_NUMBER
            if code in LEADERSHIP:
                self.connections.mark_stale(state.tp)
            if not state.recovering:
                self.count(error_name(code))
            self.retry(state, code, now)
        elif self.drops:
            self.count(error_name(code))
            self._drop(state, item, code, response.reason)
        else:
            self.count(error_name(code))
            self.halt(state, code, response.reason)
        state.recovering = True

    def _acknowledge(
        self, state: PartitionQueue, item: QueuedBatch, offset: int, now: float
    ) -> None:
        state.acknowledge(item, now)
        self.bytes_waiting -= len(item.batch)
        if item.thinned:
            offset = -1
        for one in item.members or (item,):
            self._acknowledged.append(Acknowledged(state.tp, one.token, offset, one.records))
            if offset >= 0:
                offset += one.records
        if not state.pending and not state.in_flight:
            state.join_state.behind_since = None  # idle time says nothing about the link
            self.busy.pop(state.tp, None)

    def _ended(self, state: PartitionQueue, code: int) -> ClusterError:
        what = f"a batch for {state.tp} is no longer accepted ({error_name(code)})"
        if code in FENCED and self._transactions is not None:
            return self._transactions.ended(what, code)
        return TransactionError(f"{what}.", where=f"cluster {self.connections.client.alias}")

    def retry(self, state: PartitionQueue, code: int, now: float) -> None:
        """Send nothing for a partition until its back-off ends; halt it if it fails for long."""
        low = self.connections.client.retry_backoff_ms / 1000
        high = self.connections.client.retry_backoff_ms_max / 1000
        state.retry_at = now + min(high, low * 2 ** min(state.failures, 10))
        state.failures += 1
        if code == NETWORK_EXCEPTION or not self.connections.reachable:
            return  # the cluster is unavailable, not just this partition: no time limit
        if state.failing_since is None:
            state.failing_since = now
        state.failing_code = code
        failing_s = now - state.failing_since
        delivery_s = self.settings.delivery_timeout_ms / 1000
        if failing_s > (self._stuck_s if self.impatient else delivery_s):
            self.halt(state, code, f"it has failed for {failing_s:.0f} s", retriable=True)

    def hold(self, state: PartitionQueue, now: float) -> None:
        """Note that nothing can be sent, and halt the partition if others wait for it.

        Either the gate lets nothing through, or no connection to the leader can be made.
        """
        if state.held_since is None or not self.connections.reachable:
            state.held_since = now  # while the cluster is unavailable, there is no time limit
        held_s = now - state.held_since
        # What is in flight may be written yet: who finds a loss there waits for it, too.
        if self.impatient and held_s > self._held_s and not state.in_flight:
            self.give_up(state.tp, _unchecked(state.tp, held_s))

    def halt(
        self, state: PartitionQueue, code: int, reason: str, *, retriable: bool = False
    ) -> None:
        """Halt a partition that the target refuses; its batches are dropped."""
        name = error_name(code)
        if code == TOPIC_AUTHORIZATION_FAILED:
            reason = grant(self.connections.client, Right("Write", "Topic", state.tp.topic))
        detail = f": {reason}" if reason else ""
        text = f"the target refuses batches for {state.tp} ({name}){detail}"
        self._halted[state.tp] = state.halt = Halt(name, text, retriable)
        self.halted += 1
        self.bytes_waiting -= state.drop()
        self.busy.pop(state.tp, None)

    def _drop(self, state: PartitionQueue, item: QueuedBatch, code: int, reason: str) -> None:
        """Drop one batch as if it were acknowledged; the batches after it are still sent."""
        log.error(
            "Error when sending message to topic %s: %d records dropped (%s: %s)",
            *(state.tp, item.records, error_name(code), reason),
        )
        self.errors[DROPPED] = self.errors.get(DROPPED, 0) + item.records
        if self.refusals is not None:
            self.refusals.dropped(item.whole, item.records, error_name(code), reason)
        state.pending.remove(item)
        state.renew = True  # its sequences are missing for those after it
        self.bytes_waiting -= len(item.batch)
        self._acknowledged.append(Acknowledged(state.tp, item.token, -1, item.records))
        if state.idle:
            self.busy.pop(state.tp, None)

    def _cut(self, state: PartitionQueue, item: QueuedBatch) -> None:
        try:
            self.bytes_waiting += state.cut(item)
        except BatchError as error:
            self.halt(state, MESSAGE_TOO_LARGE, str(error))

    def _leave_out(
        self, state: PartitionQueue, item: QueuedBatch, response: PartitionProduceResponse
    ) -> None:
        """Give the refused records of a batch to the owner, and send the good ones."""
        if self.refusals is None:
            raise Defect("refused records have no owner")
        bad = response.bad_records
        if not bad and item.records == 1:
            bad = (0,)
        elif bad is None:
            self._cut(state, item)  # before Produce version 8 a broker does not say which ones
            return
        self.count(error_name(response.code))
        # The target refuses the batch as a whole, or names records that it does not have.
        if not bad or not all(0 <= one < item.records for one in bad):
            self.halt(state, response.code, response.reason)
            return
        try:
            kept, left_out = separate(item.batch, frozenset(bad))
        except BatchError as error:
            self.halt(state, response.code, str(error))
            return
        self.refusals.take(item.whole, left_out, error_name(response.code), response.reason)
        self.bytes_waiting += state.replace(item, kept)
        if not kept:
            self._acknowledged.append(Acknowledged(state.tp, item.token, -1, 0))
            if state.idle:
                self.busy.pop(state.tp, None)

    def count(self, code: str) -> None:
        """Count an error by its name, in ``errors``."""
        self.errors[code] = self.errors.get(code, 0) + 1


def _unchecked(tp: TopicPartition, seconds: float) -> Halt:
    """Why nothing is sent to a partition that was held for ``seconds``."""
    name = error_name(LEADER_NOT_AVAILABLE)
    text = (
        f"nothing is written to {tp} ({name}): for {seconds:.0f} s its leader could not be "
        "reached, or whether its log still has what was written could not be checked. That needs "
        "its leader, and that of its source if records have to be compared"
    )
    return Halt(name, text, retriable=True)
