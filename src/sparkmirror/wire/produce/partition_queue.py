"""The batches of one target partition, in the order of their sequence numbers.

A broker accepts the batches of one producer id and partition only in the order of their sequences.
It remembers the last five, so it can tell a duplicate from a loss (KIP-98). This works as long as

* a batch that may have arrived is sent again with the same producer id and sequence;
* batches are in flight to one broker at a time: a new leader that lacks the first batch would see
  a gap or, if it has no state of the producer id, accept the second batch first;
* the first batch under a new producer id is sent alone, for the same reason; and so is the first
  one after a long pause, in which brokers may have forgotten the producer id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkmirror.errors import Defect
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.records.header import record_count, stamp
from sparkmirror.records.split import cut_batch
from sparkmirror.wire.produce.in_doubt import InDoubtBatch
from sparkmirror.wire.produce.joining import JoinState

__all__ = ["NO_IDENTITY", "SEQUENCE_MODULO", "Identity", "PartitionQueue", "QueuedBatch"]

SEQUENCE_MODULO = 1 << 31

Identity = tuple[int, int]
"""(producer id, producer epoch)."""

NO_IDENTITY: Identity = (-1, -1)
"""The identity in batches of a producer without idempotence."""


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """One queued batch. ``token`` returns with its acknowledgement.

    ``whole``: the token of the batch that it was cut from; its own if it was not cut.
    ``thinned``: records were left out, so its offsets say nothing about the whole batch.
    ``doubtful``: it was sent, and its outcome is unknown.
    ``fixed``: it must not change, because it was sent or cannot be joined with others.
    ``members``: the batches that it was joined from, in order; it has no token then.
    ``start``: number of records before it under the partition's producer id, -1 before it is
    first sent. ``header``: the stamped 61 bytes, None before that.
    """

    batch: memoryview
    records: int
    token: object
    whole: object = None
    start: int = -1
    header: bytes | None = None
    thinned: bool = False
    doubtful: bool = False
    fixed: bool = False
    members: tuple[QueuedBatch, ...] = ()


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """Waiting and in-flight batches of one partition.

    ``node``: the broker that has the batches in flight. ``recovering``: a batch failed; wait for
    all responses, then send again from the oldest. ``renew``: continue under a new producer id
    then. ``fresh``: nothing is acknowledged under this producer id yet. ``alone``: the broker may
    have no state of it, so one batch at a time is in flight until the next acknowledgement.
    ``acknowledged_at``: when the last one came.
    ``transactional``: its batches are parts of transactions. ``restart``: the record number from
    which sequences are assigned again, under the same producer id, because records were left out;
    -1: none. ``held_since``: since when nothing can be sent, because the `backlog.Gate` lets
    nothing through or the leader cannot be reached. ``done``: records acknowledged so far.
    ``join_state``: how long its batches have waited (`joining`).
    """

    tp: TopicPartition
    transactional: bool = False
    pending: deque[QueuedBatch] = field(default_factory=deque)
    in_flight: deque[QueuedBatch] = field(default_factory=deque)
    identity: Identity | None = None
    next_start: int = 0
    node: int = -1
    recovering: bool = False
    renew: bool = False
    restart: int = -1
    fresh: bool = True
    alone: bool = True
    acknowledged_at: float = float("-inf")
    retry_at: float = 0.0
    failing_since: float | None = None
    failing_code: int = 0
    held_since: float | None = None
    failures: int = 0
    halt: Halt | None = None
    done: int = 0
    join_state: JoinState = field(default_factory=JoinState)

    @property
    def idle(self) -> bool:
        """Whether no batch waits or is in flight."""
        return not self.pending and not self.in_flight

    @property
    def size(self) -> int:
        """Bytes of all batches that wait or are in flight."""
        return sum(len(item.batch) for queue in (self.pending, self.in_flight) for item in queue)

    def copy(self) -> None:
        """Copy all batches, so that the memory that they were read into is free."""
        for queue in (self.pending, self.in_flight):
            for item in queue:
                for one in (item, *item.members):
                    if not isinstance(one.batch.obj, bytes):
                        one.batch = memoryview(bytes(one.batch))

    def may_send(self, node: int) -> bool:
        """Whether the next batch may go to broker ``node`` now."""
        if not self.pending:
            return False
        if not self.in_flight:
            return True
        return not self.recovering and not self.alone and self.node == node

    @property
    def records(self) -> int:
        """Number of records under the partition's producer id once no batch waits any more."""
        restart = self.next_start if self.restart < 0 else self.restart
        new = (item for item in self.pending if not 0 <= item.start < restart)
        return restart + sum(item.records for item in new)

    def adopt(self, identity: Identity) -> None:
        """Continue under another producer id. Raises `Defect` with batches in flight."""
        if self.in_flight:
            raise Defect("batches with the old sequences are in flight")
        self.identity, self.next_start = identity, 0
        self.renew = False
        self.fresh = self.alone = identity != NO_IDENTITY
        for item in self.pending:
            item.start, item.header, item.doubtful = -1, None, False

    def renumber(self) -> None:
        """Close the gap that left-out records made in the sequences.

        The target refused the batch there, and so all later ones as out of order. Raises `Defect`
        with batches in flight.
        """
        if self.in_flight:
            raise Defect("batches with the old sequences are in flight")
        if self.restart < 0:
            return
        for item in self.pending:
            if not 0 <= item.start < self.restart:
                item.start, item.header, item.doubtful = -1, None, False
        self.next_start, self.restart = self.restart, -1

    def take(self, node: int) -> tuple[QueuedBatch, bytes]:
        """(oldest waiting batch, its header); the batch is in flight to ``node`` from now on."""
        item = self.pending.popleft()
        header = item.header or self._stamp(item)
        item.fixed = True
        self.in_flight.append(item)
        self.node = node
        return item, header

    def _stamp(self, item: QueuedBatch) -> bytes:
        if self.identity is None:
            raise Defect("a partition without a producer id")
        producer_id, epoch = self.identity
        if item.start < 0:
            item.start = self.next_start
            self.next_start += item.records
        item.header = stamp(
            item.batch,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=item.start % SEQUENCE_MODULO if producer_id >= 0 else -1,
            transactional=self.transactional,
        )
        return item.header

    def acknowledge(self, item: QueuedBatch, now: float) -> None:
        """Remove ``item``, which the target has."""
        self.in_flight.remove(item)
        self.done += item.records
        self.fresh = self.alone = False
        self.acknowledged_at = now
        self.failing_since, self.held_since, self.failures = None, None, 0

    def is_oldest(self, item: QueuedBatch) -> bool:
        """Whether ``item``, which is in flight, is the oldest unacknowledged batch."""
        if self.in_flight[0] is not item or 0 <= self.restart < item.start:
            return False
        return not self.pending or not 0 <= self.pending[0].start < item.start

    def in_doubt(self, item: QueuedBatch) -> InDoubtBatch:
        """The question whether ``item``, which was sent, was written."""
        if self.identity is None:
            raise Defect("a partition without a producer id")
        last = (item.start + item.records - 1) % SEQUENCE_MODULO
        return InDoubtBatch(self.tp, *self.identity, last, self.fresh)

    def requeue(self, item: QueuedBatch) -> None:
        """Move a batch from in flight back to its place among those that wait."""
        self.in_flight.remove(item)
        position = 0
        for waiting in self.pending:
            if waiting.start < 0 or waiting.start > item.start:
                break
            position += 1
        self.pending.insert(position, item)

    def cut(self, item: QueuedBatch) -> int:
        """Cut a waiting batch in two. Returns by how many bytes the queue grew.

        Both parts keep the sequences of the whole. Raises `BatchError` when it cannot be cut.
        """
        parts = [memoryview(half) for half in cut_batch(item.batch)]
        index = self.pending.index(item)
        del self.pending[index]
        start = item.start
        for number, batch in enumerate(parts):
            last = number == len(parts) - 1
            token = item.token if last else None
            part = QueuedBatch(batch, record_count(batch), token, item.whole, start)
            part.thinned, part.doubtful, part.fixed = item.thinned, item.doubtful, True
            if start >= 0:
                self._stamp(part)
                start += part.records
            self.pending.insert(index + number, part)
        return sum(map(len, parts)) - len(item.batch)

    def join(self, count: int, data: bytes) -> int:
        """Replace the first ``count`` waiting batches by ``data``, which has their records.

        None of them was ever sent. Returns by how many bytes the queue grew.
        """
        members = tuple(self.pending.popleft() for _ in range(count))
        if any(one.fixed or one.start >= 0 for one in members):
            raise Defect("a batch that was sent must not change")
        records = sum(one.records for one in members)
        item = QueuedBatch(memoryview(data), records, None, fixed=True, members=members)
        self.pending.appendleft(item)
        return len(data) - sum(len(one.batch) for one in members)

    def take_apart(self, item: QueuedBatch) -> int:
        """Replace ``item``, which waits, by the batches that it was joined from.

        They keep the sequences of their records. Returns by how many bytes the queue grew.
        """
        index = self.pending.index(item)
        del self.pending[index]
        start = item.start
        for number, one in enumerate(item.members):
            one.fixed, one.doubtful = True, item.doubtful
            one.start, one.header = start, None
            if start >= 0:
                self._stamp(one)
                start += one.records
            self.pending.insert(index + number, one)
        return sum(len(one.batch) for one in item.members) - len(item.batch)

    def replace(self, item: QueuedBatch, kept: Sequence[bytes]) -> int:
        """Replace a waiting batch by ``kept``. Returns by how many bytes the queue grew.

        Each one has its own place among the records, to which `requeue` returns it.
        The sequences after it no longer fit, so the partition continues under a new producer id.
        A transaction has only one producer id: there `renumber` closes the gap.
        """
        index = self.pending.index(item)
        del self.pending[index]
        start = item.start
        for number, data in enumerate(kept):
            batch = memoryview(data)
            token = item.token if number == len(kept) - 1 else None
            part = QueuedBatch(batch, record_count(batch), token, item.whole, start)
            part.thinned = part.fixed = True
            if start >= 0:
                start += part.records
            self.pending.insert(index + number, part)
        if self.transactional:
            self.restart = item.start if self.restart < 0 else min(self.restart, item.start)
        else:
            self.renew = self.identity != NO_IDENTITY
        return sum(map(len, kept)) - len(item.batch)

    def drop(self) -> int:
        """Drop all batches and return their bytes; a new producer id must follow."""
        size = sum(len(item.batch) for item in (*self.pending, *self.in_flight))
        self.pending.clear()
        self.in_flight.clear()
        self.join_state.behind_since = None
        self.recovering = False
        self.renew = True
        self.restart = -1
        return size
