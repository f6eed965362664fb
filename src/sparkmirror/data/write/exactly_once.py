"""Exactly-once: records and positions in one transaction on the target.

A transaction lasts ``sparkmirror.transaction.interval.ms``. It ends sooner if it holds as much as
the target can take in time (`data.write.transaction_size`), or half of the slot's memory frames,
and as soon as nothing more is at hand, if early commits do not take too much of the time.
Rows are kept until it ends, because a partition that the target refuses aborts the whole
transaction. The rest is then written again, without that partition, or with its records before the
refused ones. Any other failure (another writer, a timeout) fails the task. Spark starts the task
again, and it continues from the committed positions. A position moves only with the commit.

Records that the flow leaves out (`data.write.bad_records`) do not end a transaction: their gap
records and dead letters are part of it. So are offset syncs and runs if their topic is on the
target. If that topic accepts no records, it must not block the data. Then the syncs are written
after each commit, as they are for a topic on the source, until the topic accepts them again.

Progress reports are not part of any transaction and have a producer of their own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from sparkmirror.data.coordination.fencing import identity_again
from sparkmirror.data.coordination.hanging_transactions import HangingTransactions
from sparkmirror.data.rows import worker_pipes
from sparkmirror.data.rows.notes import SlotHello, Writer
from sparkmirror.data.rows.rows import Chunk, divided
from sparkmirror.data.rows.shared_frames import FRAMES
from sparkmirror.data.write.delivery import RENEW_S, ComeRound
from sparkmirror.data.write.offset_sync_writer import batches_of
from sparkmirror.data.write.partition_state import (
    Lane,
    Pending,
    acknowledge,
    before_refusal,
    halt_refused,
    targets,
)
from sparkmirror.data.write.position_commits import storage_topic
from sparkmirror.data.write.producers import limits_of
from sparkmirror.data.write.routed_partitions import RoutedPartitions, own_places
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.data.write.transaction_positions import TransactionPositions, TransactionSyncs
from sparkmirror.data.write.transaction_size import EarlyCommits, TransactionSize
from sparkmirror.errors import Defect, TransactionError
from sparkmirror.internal_topics.flow_claims import transactional_id
from sparkmirror.internal_topics.mm2_records import offset_syncs_topic
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import TopicPartition
from sparkmirror.progress import JoinCounts
from sparkmirror.records.header import Passing, batches
from sparkmirror.settings import Member
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.produce.backlog import Acknowledged, Backlog
from sparkmirror.wire.produce.partition_queue import Identity
from sparkmirror.wire.produce.producer import Producer
from sparkmirror.wire.produce.transactions import Transactions

__all__ = ["ExactlyOnce"]

log = logging.getLogger(__name__)

_RESPONSE_S = 0.05
# How long offset syncs may keep a transaction open.
_SYNCS_S = 5.0


class ExactlyOnce:
    """Delivers transaction by transaction (`data.write.delivery.Delivery`)."""

    def __init__(self, task: SinkTask) -> None:
        self._task = task
        self._flow = flow = task.flow
        self._transactions: Transactions | None = None
        self._open_ends: HangingTransactions | None = None
        self._positions = TransactionPositions(task)
        self._routed = RoutedPartitions()
        self._writer: Writer | None = None
        self._errors: dict[str, int] = {}
        self._refusals = task.refusals(self._errors)
        names = offset_syncs_topic(flow), runs_topic(flow)
        self._sync_topics = [TopicPartition(name, 0) for name in names]
        self._syncs_at_target = flow.offset_syncs.location == "target"
        self._syncs = TransactionSyncs(task)
        self._early = EarlyCommits(flow.transaction_commit_percent)
        self._syncs_inside = task.syncs is not None and self._syncs_at_target
        self._last_commit = self._renewed = time.monotonic()
        self._began = 0.0
        self._kept_bytes = 0
        self._added: set[TopicPartition] = set()
        self._size = TransactionSize(
            flow.transaction_bytes,
            flow.transaction_timeout_ms,
            interval_ms=flow.transaction_interval_ms,
            failed=task.failed,
        )

    def begin(self, hello: SlotHello) -> None:
        """Write under the identity with which the source worker fenced earlier writers."""
        self._writer = hello.writer
        if hello.writer is not None and hello.writer.identity is not None:
            self._open(hello.writer.identity)
        self._producer.connections.add_topics(self._task.topics)

    def begun(self) -> None:
        """Close what earlier writers left open in the partitions."""
        if self._open_ends is not None:
            self._close_hanging_transactions(own_places(self._task.lanes.values()))

    def add(self, lanes: list[Lane]) -> None:
        """Follow further topics; `prepare` closes what earlier writers left open there."""
        self._added |= {lane.target for lane in lanes}
        if self._open_ends is not None:
            self._open_ends.forget(self._added)  # others may have written since a check
        self._task.search(lanes)

    def leave(self, lane: Lane) -> None:
        """Nothing to do."""

    def join(self, member: Member) -> None:
        """Does nothing: a flow with a consumer group has no transactions."""

    @property
    def _producer(self) -> Producer:
        """The producer of the current transactions; before the first one, that of the reports."""
        return self._task.producer

    @property
    def _backlog(self) -> Backlog:
        return self._task.producer.backlog

    # -- who writes ------------------------------------------------------------------------

    def _open(self, identity: Identity) -> None:
        """Replace the producer by one with a new identity and an empty transaction."""
        self._close_writer()
        task, flow = self._task, self._flow
        connections = ClusterConnections(
            flow.target, send_buffer_bytes=flow.produce.send_buffer_bytes
        )
        self._transactions = Transactions(
            connections,
            transactional_id(flow, task.slot),
            timeout_ms=flow.transaction_timeout_ms,
            identity=identity,
            sleep=self._rest,
        )
        joined = task.producer.joining.counts
        task.producer = producer = Producer(
            connections, flow.produce, transactions=self._transactions, limits=limits_of(flow)
        )
        # Counts of this task so far, from all of its producers.
        producer.joining.counts = joined.since(task.reports.joined_before)
        task.reports.errors_before, task.reports.joined_before = {}, JoinCounts()
        producer.backlog.errors = self._transactions.errors = self._errors
        producer.backlog.refusals = self._refusals
        producer.backlog.gate = task.ends
        self._open_ends = HangingTransactions(connections, self._transactions)

    def _close_hanging_transactions(
        self, lanes: Iterable[Lane], routed: Mapping[TopicPartition, Iterable[Lane]] | None = None
    ) -> None:
        """Close what earlier writers left open; halt the lanes where that is not possible now.

        ``routed``: further partitions, and the lanes that send records there.
        """
        if self._open_ends is None:
            raise Defect("open transactions are checked before any was begun")
        wanted: dict[TopicPartition, list[Lane]] = {}
        for lane in lanes:
            wanted.setdefault(lane.target, []).append(lane)
        for tp, others in (routed or {}).items():
            wanted.setdefault(tp, []).extend(others)
        before = self._routed.written_before(wanted, self._task.lanes.values())
        undecided = self._routed.undecided(before, routed or {})
        left = self._open_ends.close(before, undecided, self._added)
        self._added -= wanted.keys() - left
        self._routed.checked |= (routed or {}).keys() - left
        for tp in left:
            for lane in wanted[tp]:
                lane.queue.clear()  # for a refused lane, also what the target took before
                if lane.halt is None:
                    lane.halt = self._open_ends.unknown(tp)
                    lane.blocked = (tp,)
                    log.error("%s", lane.halt.reason)

    # -- rows ------------------------------------------------------------------------------

    def prepare(self, chunks: list[Chunk]) -> None:
        """Between two transactions, close hanging ones of partitions whose leader has changed."""
        while self._open_ends is not None:
            open_ends = self._open_ends
            lanes = {self._task.lane_of(chunk) for chunk in chunks}
            routed = self._routed.unsure(
                ((self._task.lane_of(chunk), chunk) for chunk in chunks), open_ends
            )
            # A partition with records in the open transaction was checked before the first one.
            unsure = [
                one
                for one in lanes
                if one.halt is None
                and not one.routed
                and open_ends.unsure(one.target)
                and all(pending.kept is None for pending in one.queue)
            ]
            if not unsure and not routed:
                return
            self._commit()
            if self._open_ends is open_ends:  # a refusal replaces it
                self._close_hanging_transactions(unsure, routed)

    def portions(self, chunks: list[Chunk], records: memoryview) -> Iterable[Chunk]:
        """Divide chunks that exceed the limit; commit before a chunk that does not fit."""
        for chunk in chunks:
            parts = [chunk]
            # A position within a chunk of routed records would pass some that are not written.
            if chunk.size > self._size.bytes and not self._task.lane_of(chunk).routed:
                cuts = batches(records[chunk.start : chunk.start + chunk.size])
                parts = divided(chunk, cuts, self._size.bytes)
            for part in parts:
                if self._kept_bytes and self._kept_bytes + part.size > self._size.bytes:
                    self._commit()
                    self.prepare([part])  # a marker may be missing by now
                yield part

    def write(self, pending: Pending, part: memoryview) -> list[Passing]:
        """Queue the batches of one chunk, and keep its bytes until the transaction has ended."""
        if self._transactions is None:
            raise TransactionError(
                "rows arrived before the writer was known.", where=self._flow.name
            )
        if not self._kept_bytes:
            self._began = time.monotonic()
        self._kept_bytes += len(part)
        pending.kept = part
        cuts = self._task.write(pending, part)
        if pending.lane.routed:
            self._routed.open.update(targets(pending, cuts))
        return cuts

    def leave_out(self, pending: Pending) -> None:
        """Write gap records for ``pending.failed`` in the open transaction."""
        if pending.failed:
            if not self._kept_bytes:
                self._began = time.monotonic()
            self._kept_bytes += 1  # a transaction is open, even if no record was kept
        for failed in pending.failed:
            self._refusals.take_failed(pending, failed)

    def advance(self, lane: Lane) -> None:
        """Positions move with the commit."""

    # -- acknowledgements ------------------------------------------------------------------

    def _settle(self, acknowledged: list[Acknowledged]) -> None:
        for ack in acknowledged:
            acknowledge(ack)
        if self._transactions is not None:
            # Check that the target still has what it acknowledged.
            self._task.ends.check(self._producer.connections)
            self._task.ends.settle(self._backlog, counts=False)

    def pump(self, come_round: ComeRound) -> None:
        """Send and process acknowledgements. The size of a transaction limits what waits."""
        self._task.send(self._settle, come_round, self._never_full)

    def _never_full(self) -> bool:
        self._backlog.impatient = False
        return False

    def linger(self, come_round: ComeRound) -> None:
        """Send, process acknowledgements and commit what is due, until the next row arrives."""
        fd = worker_pipes.input_fd()
        while self._kept_bytes or not self._backlog.idle:
            wait_s = 0.0
            if fd >= 0:
                wait_s = min(self._due_s(), _RESPONSE_S) if self._backlog.idle else _RESPONSE_S
                wait_s = min(wait_s, self._early_s())
            self._settle(self._producer.pump(max(0.0, wait_s), fd))
            if self._producer.woken:
                return
            if fd >= 0 and self._early_s() <= 0:
                self._commit(early=True)
            come_round()
            if fd < 0:
                return

    def tick(self, now: float) -> None:
        """End the open transaction when it is due."""
        self._send_reports()
        if now - self._renewed >= RENEW_S:
            self._renewed = now
            self._renew()
        # Positions also move without records, past control markers.
        overdue = (now - self._last_commit) * 1000 >= self._flow.position_interval_ms
        if overdue or self._due_s() <= 0:
            self._last_commit = now
            self._commit()
        elif self._syncs.overdue(now):
            self._publish_left(now)
        if self._task.leaving:
            self._let_go(now)

    def _let_go(self, now: float) -> None:
        """Release lanes that another slot gets, once all of them is in a committed transaction.

        That has their positions, and was committed after the order. So whoever fences this slot's
        id later finds the order, and does not have the partitions either. Of a lane without a
        position nothing can be committed: then the driver begins a new epoch.
        """
        leaving = [lane for lane in self._task.leaving if lane.position >= 0]
        if any(lane.due or lane.queue for lane in leaving):
            self._commit()
        self._task.release([one for one in leaving if not (one.due or one.queue)], now)
        self._send_reports()

    def _rest(self, seconds: float) -> None:
        """A pause within a request of a transaction: Spark and the driver are served meanwhile."""
        self._task.rest(seconds)
        self._task.report_if_due(time.monotonic())
        self._send_reports()

    def _renew(self) -> None:
        """Commit all positions again, write them as MirrorMaker 2 does, try syncs inside again."""
        for lane in self._task.lanes.values():
            lane.commit_again()
        self._commit()
        self._save_connect_offsets()
        syncs = self._task.syncs
        if syncs is not None and not self._syncs_inside and self._syncs_at_target:
            # The topic accepts records again if all syncs that followed commits are written.
            self._syncs_inside = syncs.written

    def _save_connect_offsets(self) -> None:
        """Commit positions in MirrorMaker 2's format; a topic that refuses them blocks no data."""
        if self._transactions is None:
            return
        topic = storage_topic(self._flow)
        queues = [self._backlog.queue(tp) for tp in self._backlog.halts if tp.topic == topic]
        if any(queue is not None and queue.identity is not None for queue in queues):
            # Batches that were sent there were dropped, and their sequences are missing. Sequences
            # begin again only under a new identity, which all partitions share.
            self._replay([])
        if self._task.save_connect_offsets():
            self._commit()
            for tp, halt in self._backlog.halts.items():
                if tp.topic == topic:
                    log.error("flow %s: %s", self._flow.name, halt.reason)

    def _send_reports(self) -> None:
        if not self._task.reporter.backlog.idle:
            self._task.reporter.pump(0.0)

    def _due_s(self) -> float:
        """Seconds until the open transaction should end; 0 or less if it should end now."""
        now, interval_s = time.monotonic(), self._flow.transaction_interval_ms / 1000
        if not self._kept_bytes:
            # The record of a gap opens a transaction, too.
            began_at = None if self._transactions is None else self._transactions.began_at
            return _RESPONSE_S if began_at is None else began_at + interval_s - now
        if self._kept_bytes >= self._size.bytes or self._task.leases > FRAMES // 2:
            return 0.0
        return self._began + interval_s - now

    def _early_s(self) -> float:
        """Seconds until the open transaction should end if nothing more arrives by then."""
        if not self._kept_bytes or any(one.pending for one in self._backlog.busy.values()):
            return _RESPONSE_S
        return self._early.due_at(self._began, self._kept_bytes) - time.monotonic()

    # -- the end of a transaction ----------------------------------------------------------

    def _commit(self, *, early: bool = False) -> None:
        """End the open transaction: all its records are acknowledged, and positions are in it."""
        if self._transactions is None:
            return
        began = time.monotonic()
        self._syncs.begin(began, early=early)
        while True:
            transactions = self._transactions
            # Positions are sent while the last batches are in flight: the end decides about both.
            self._settle(self._producer.pump(0.0))
            self._positions.add(transactions)
            self._acknowledge_all()
            # A refusal replaces the transaction.
            if self._transactions is not transactions:
                continue
            if self._positions.outdated():
                # Records were left out, or other producers write there too.
                self._positions.add(transactions, expected=False)
                self._acknowledge_all()  # a topic may be gone by now
                if self._transactions is not transactions:
                    continue
            if self._add_syncs():
                break
        self._task.check_spark()
        if transactions.began:
            partitions = len(transactions.members)
            transactions.commit()
            self._early.committed(began, time.monotonic(), partitions)
            self._note_committed()

    def _acknowledge_all(self) -> None:
        """Wait until the whole transaction is acknowledged.

        If the target refuses a partition, the transaction is written again without it.
        """
        while True:
            self._backlog.impatient = True
            while not self._backlog.idle:
                self._task.check_spark()
                self._settle(self._producer.pump(_RESPONSE_S))
                self._send_reports()
                self._task.report_if_due(time.monotonic())
            for lane in self._task.lanes.values():
                self._task.ends.note_going_back(lane)
            self._task.ends.settle(self._backlog, counts=False)
            refused = halt_refused(self._task.lanes.values(), self._backlog.halts)
            if not refused:
                return
            self._replay(refused)

    def _add_syncs(self) -> bool:
        """Add the offset syncs of its records to the open transaction.

        Returns False if the transaction had to be replaced.
        """
        if self._task.syncs is None or not self._syncs_inside:
            return True
        for tp, records in zip(self._sync_topics, self._syncs.take(), strict=True):
            for batch in batches_of(records):
                self._task.append_beside(tp, batch, None)
        deadline = time.monotonic() + _SYNCS_S
        while not self._backlog.idle and time.monotonic() <= deadline:
            self._settle(self._producer.pump(_RESPONSE_S))
        halts = self._backlog.halts
        halt = next((halts[tp] for tp in self._sync_topics if tp in halts), None)
        if halt is None and self._backlog.idle:
            self._syncs.written()
            return True
        self._leave_syncs_out("no response in time" if halt is None else halt.reason)
        return False

    def _leave_syncs_out(self, reason: str) -> None:
        """Write the transaction again without offset syncs. From now on they follow the commit."""
        log.warning(
            "flow %s, slot %d: offset syncs are written after each transaction instead of in it "
            "until their topic accepts records again: %s",
            *(self._flow.name, self._task.slot, reason),
        )
        # The aborted transaction's syncs never became visible.
        self._syncs.leave_out()
        self._syncs_inside = False
        self._replay([])

    def _publish_left(self, now: float) -> None:
        """Write the offset syncs that early commits have left."""
        if self._syncs_inside:
            self._commit()
        else:
            self._syncs.begin(now, early=False)
            self._syncs.publish()

    def _note_committed(self) -> None:
        now_ms = time.time() * 1000
        for lane in self._task.lanes.values():
            for pending in lane.queue:
                if pending.timestamp_ms >= 0:
                    self._task.reports.note_latency(now_ms, pending.timestamp_ms)
                    pending.note_ages(lane.latency, now_ms)
            written = any(pending.records for pending in lane.queue)
            if self._syncs_inside:
                lane.settle()
            else:
                self._task.advance(lane)
            lane.marker = 1 if written else lane.marker
            lane.committed, lane.marked, lane.logged = lane.position, lane.mark, lane.log
        self._positions.note_committed()
        self._routed.committed(self._producer)
        self._size.committed(self._kept_bytes, time.monotonic() - self._began)
        self._kept_bytes = 0
        self._task.uncommitted_gaps.clear()
        self._refusals.settled()
        if not self._syncs_inside:
            self._syncs.publish()  # after the commit, as in MirrorMaker 2

    # -- the transaction again, without what the target refuses ----------------------------

    def _replay(self, refused: list[Lane]) -> None:
        """Abort, and write everything again except the refused batches."""
        for lane in refused:
            halt = lane.halt
            own = lane.routed or lane.target in lane.blocked
            if halt is not None and (halt.retriable or not own):
                lane.queue.clear()  # how many of its batches were appended is not known
            else:
                lane.queue = before_refusal(lane.queue)
        who = self._flow.name, self._task.slot
        log.warning("flow %s, slot %d: the transaction is aborted and written again", *who)
        self._open(self._identity_again())
        remote = {lane.target.topic for lane in self._task.lanes.values()}
        self._producer.connections.add_topics(remote | self._task.topics)
        self._kept_bytes = 0
        self._refusals.undone()
        self._task.forget_saved()
        for gap in self._task.uncommitted_gaps:
            self._task.write_gap(gap, None)
        routed = self._routed.again(self._task.lanes.values())
        self._close_hanging_transactions(own_places(self._task.lanes.values()), routed)
        for lane in self._task.lanes.values():
            for pending in lane.queue:
                pending.beside = None
                if pending.kept is not None:
                    pending.offsets.targets.clear()
                    self.write(pending, pending.kept)
                elif pending.gap is not None:
                    pending.batches_left = 0
                    self._task.write_gap(pending.gap, pending)
                elif pending.failed:
                    pending.batches_left = 0
                self.leave_out(pending)

    def _identity_again(self) -> Identity:
        """A new identity for the same slot; this aborts what the old one has open."""
        self._close_writer()
        # Positions of a deleted topic were deleted with it.
        lost, leaving = self._task.ends.lost, self._task.leaving
        lanes = [one for one in self._task.lanes.values() if not one.left or one in leaving]
        kept = [one for one in lanes if one not in lost]
        expected = {lane.target: lane.committed for lane in kept}
        return identity_again(self._flow, self._task.slot, self._writer, expected)

    # -- the end of the epoch --------------------------------------------------------------

    def finish(self, come_round: ComeRound) -> None:
        """Commit everything, then positions in MirrorMaker 2's format; write the last syncs."""
        if self._transactions is not None:
            self._commit()
            try:
                self._save_connect_offsets()
            except TransactionError as error:  # a newer plan waits: its epoch saves them
                log.warning(
                    "flow %s: positions are not saved in MirrorMaker 2's format: %s",
                    *(self._flow.name, error),
                )
            if self._task.syncs is not None:
                self._task.syncs.finish()

    def drain(self) -> None:
        """Wait until the last report is acknowledged, or given up."""
        backlog = self._task.reporter.backlog
        backlog.impatient = True
        try:
            while not backlog.idle:
                self._task.check_spark()
                self._task.reporter.pump(0.2)
        finally:
            backlog.impatient = False  # the producer stays for the next task

    def _close_writer(self) -> None:
        transactions, self._transactions = self._transactions, None
        self._open_ends = None
        if transactions is not None:
            transactions.close()
            self._producer.close()

    def close(self) -> None:
        """Leave an open transaction to the next writer that fences the slot's id: it is aborted."""
        self._close_writer()
