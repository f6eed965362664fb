"""The sink of an exactly-once flow: records and positions in one transaction on the target.

A transaction lasts ``sparkmirror.transaction.interval.ms``, or less when half of the slot's memory
frames are in it. Until its end the rows are kept, because a partition that the target refuses
takes the whole transaction with it: the others are then written anew, without that one, or, when
records of it are the trouble, with what stands before them. Whatever else goes wrong (another
writer, a time limit) fails the task: Spark starts it again, and it goes on from the committed
positions. A position moves with the commit only.

Progress reports are no part of any transaction and have a producer of their own.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from typing import Any

from sparkmirror.data import outlet
from sparkmirror.data.shared import FRAMES
from sparkmirror.data.sink import SlotSink, _Lane, _Pending, acknowledge
from sparkmirror.data.syncs import Places
from sparkmirror.data.takeover import committed_positions, take_over
from sparkmirror.data.watch import ControlWatch
from sparkmirror.errors import Fenced, TransactionError
from sparkmirror.model import FlowSettings, TopicPartition
from sparkmirror.wire.batch import base_offset, record_count, split
from sparkmirror.wire.claims import transactional_id
from sparkmirror.wire.marks import Mark, encode_mark
from sparkmirror.wire.produce import Acknowledged, Producer
from sparkmirror.wire.produce_queue import Identity
from sparkmirror.wire.routes import Routes
from sparkmirror.wire.signals import control_topic
from sparkmirror.wire.transactions import Transactions

__all__ = ["ExactSink"]

log = logging.getLogger(__name__)

# Half of the frames, in bytes: what travels in rows instead counts as much.
_KEPT_BYTES_MAX = 32 * 1024 * 1024
_ANSWER_S = 0.05


class ExactSink(SlotSink):
    """Consumes the rows of one task, transaction by transaction."""

    def __init__(self, flow: FlowSettings) -> None:
        super().__init__(flow)
        self._plain = self._producer
        self._transactions: Transactions | None = None
        self._writer: dict[str, Any] = {}
        self._errors: dict[str, int] = {}
        self._began = 0.0
        self._kept_bytes = 0

    # -- rows ------------------------------------------------------------------------------

    def _hear(self, notes: dict[str, Any]) -> None:
        if "writer" in notes:
            self._writer = notes["writer"]
            self.slot = notes["slot"]
            identity = self._writer["identity"]
            if identity is not None:
                self._open((identity[0], identity[1]))
        super()._hear(notes)

    def _record_beginning(self) -> None:
        """Positions are exact anyhow."""

    def _metadata(self, lane: _Lane, mark: Mark) -> str:
        return encode_mark(mark)

    def _open(self, identity: Identity) -> None:
        """Begin under a new identity, with nothing written."""
        self._close_writer()
        routes = Routes(self.flow.target, send_buffer_bytes=self.flow.produce.send_buffer_bytes)
        self._transactions = Transactions(
            routes,
            transactional_id(self.flow, self.slot),
            timeout_ms=self.flow.transaction_timeout_ms,
            identity=identity,
        )
        self._producer = Producer(routes, self.flow.produce, transactions=self._transactions)
        self._errors_before = {}
        self._producer.errors = self._transactions.errors = self._errors

    def _write(self, pending: _Pending, part: memoryview) -> list[tuple[int, int]]:
        if self._transactions is None:
            raise TransactionError("rows came before the writer was known.", where=self.flow.name)
        if not self._kept_bytes:
            self._began = time.monotonic()
        self._kept_bytes += len(part)
        pending.kept = part
        return super()._write(pending, part)

    def _advance(self, lane: _Lane) -> None:
        """Positions move with the commit."""

    # -- acknowledgements ------------------------------------------------------------------

    def _settle(self, acknowledged: list[Acknowledged]) -> None:
        for ack in acknowledged:
            acknowledge(ack)

    def _linger(self) -> None:
        """Send, take in acknowledgements and end the transaction until the next row is there."""
        fd = outlet.input_fd()
        while self._kept_bytes or not self._producer.idle:
            wait_s = 0.0
            if fd >= 0:
                wait_s = min(self._due_s(), _ANSWER_S) if self._producer.idle else _ANSWER_S
                waited_for: list[Any] = [fd, *self._producer.sockets()]
                if fd in select.select(waited_for, [], [], max(0.0, wait_s))[0]:
                    return
            self._settle(self._producer.pump(0.0))
            self._housekeep()
            if fd < 0:
                return

    def _housekeep(self) -> None:
        if not self._plain.idle:
            self._plain.pump(0.0)
        now = time.monotonic()
        # Positions also move without records, past control markers.
        overdue = (now - self._last_commit) * 1000 >= self.flow.position_interval_ms
        if overdue or self._due_s() <= 0:
            self._last_commit = now
            self._commit()
        self._report_if_due(now)

    def _due_s(self) -> float:
        """Seconds until the open transaction should end; 0 or less when it should now."""
        if not self._kept_bytes:
            return _ANSWER_S
        leases = 0 if self._frames is None else self._frames.leases
        if self._kept_bytes >= _KEPT_BYTES_MAX or leases > FRAMES // 2:
            return 0.0
        return self._began + self.flow.transaction_interval_ms / 1000 - time.monotonic()

    # -- the end of a transaction ----------------------------------------------------------

    def _commit(self) -> None:
        """End the open transaction: everything acknowledged, positions with it."""
        if self._transactions is None:
            return
        self._acknowledge_all()
        transactions = self._transactions  # perhaps another one by now
        due = self._positions_due()
        if not due and not transactions.members:
            return
        if due:
            transactions.add_offsets(
                self.flow.position_group,
                {lane.target: (offset, self._metadata(lane, mark)) for lane, offset, mark in due},
            )
        transactions.commit()
        self._note_committed()

    def _acknowledge_all(self) -> None:
        """Everything in the transaction is acknowledged, or its partition is set aside."""
        while True:
            self._producer.impatient = True
            while not self._producer.idle:
                self._settle(self._producer.pump(_ANSWER_S))
                if not self._plain.idle:
                    self._plain.pump(0.0)
            refused = self._refused()
            if not refused:
                return
            self._replay(refused)

    def _positions_due(self) -> list[tuple[_Lane, int, Mark]]:
        due = []
        for lane in self._lanes.values():
            position = lane.queue[-1].next_offset if lane.queue else lane.position
            mark = lane.mark
            for pending in lane.queue:
                mark = pending.mark_after(mark)
            if position >= 0 and (position != lane.committed or mark != lane.marked):
                due.append((lane, position, mark))
        return due

    def _note_committed(self) -> None:
        now_ms = time.time() * 1000
        for lane in self._lanes.values():
            for pending in lane.queue:
                if pending.timestamp_ms >= 0:
                    self._latency.add(max(0.0, now_ms - pending.timestamp_ms))
                    self._latency_ms_sum += max(0, int(now_ms) - pending.timestamp_ms)
                    pending.note_ages(lane.latency, now_ms)
            super()._advance(lane)
            lane.committed, lane.marked = lane.position, lane.mark
        self._kept_bytes = 0
        if self._syncs is not None:
            # After the commit, as MirrorMaker 2 does it: a sync never tells of what may go away.
            self._syncs.publish()

    # -- once more, without what the target refuses ----------------------------------------

    def _refused(self) -> list[_Lane]:
        """Lanes that the target has begun to refuse in this transaction."""
        halts = self._producer.halts
        refused = []
        for lane in self._lanes.values() if halts else ():
            halt = halts.get(lane.target)
            if halt is None or (lane.halt is not None and not lane.queue):
                continue
            if lane.halt is not None:
                lane.queue.clear()  # even what it had taken before
            lane.halt = halt
            log.error("%s", halt.reason)
            refused.append(lane)
        return refused

    def _replay(self, refused: list[_Lane]) -> None:
        """Abort, and write everything but the refused batches anew."""
        for lane in refused:
            halt = lane.halt
            if halt is not None and halt.retriable:
                lane.queue.clear()  # whether its batches are there is not known
            else:
                lane.queue = _before_refusal(lane.queue)
        log.warning(
            "flow %s, slot %d: the transaction is aborted and written anew",
            self.flow.name,
            self.slot,
        )
        self._open(self._identity_again())
        self._producer.routes.add_topics({lane.target.topic for lane in self._lanes.values()})
        self._kept_bytes = 0
        for lane in self._lanes.values():
            for pending in lane.queue:
                if pending.kept is not None:
                    pending.places.targets.clear()
                    self._write(pending, pending.kept)
                elif pending.gap is not None:
                    pending.batches_left = 0
                    self._write_gap(pending.gap, pending)

    def _identity_again(self) -> Identity:
        """A new identity for the same slot: what the old one has open is aborted with it."""
        self._close_writer()
        run_id = self._writer["run_id"]
        watch = ControlWatch(self.flow, offset=self._writer["control_offset"])
        try:
            watch.start()
            identity = take_over(self.flow, self.slot, run_id, watch)
        finally:
            watch.close()
        if identity is None:
            raise TransactionError("the slot's plan is an old one.", where=f"flow {self.flow.name}")
        expected = {lane.target: lane.committed for lane in self._lanes.values()}
        found = committed_positions(self.flow, list(expected))
        moved = {tp for tp, at in expected.items() if at >= 0 and found.get(tp, -1) != at}
        if moved:
            raise Fenced(
                f"positions were moved by another writer ({', '.join(map(str, sorted(moved)))}).",
                where=f"flow {self.flow.name}",
            )
        return identity

    # -- records of our own ----------------------------------------------------------------

    def _producer_for(self, tp: TopicPartition) -> Producer:
        return self._plain if tp.topic == control_topic(self.flow) else self._producer

    def _finish(self) -> None:
        """Everything is committed; then, at once, what a MirrorMaker 2 would look for."""
        if self._transactions is not None:
            self._commit()
            if self._save_connect_offsets():
                self._commit()
            if self._syncs is not None:
                self._syncs.finish()
        self._reported = ()
        self._report(time.monotonic())
        while not self._plain.idle:
            self._plain.pump(0.2)

    def _close_writer(self) -> None:
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            transactions.close()
            self._producer.close()

    def _close(self) -> None:
        super()._close()
        self._close_writer()


def _before_refusal(queue: deque[_Pending]) -> deque[_Pending]:
    """The chunks, and of the last one the batches, that the target took before it refused one."""
    taken: deque[_Pending] = deque()
    for pending in queue:
        if not pending.batches_left:
            taken.append(pending)
            continue
        part = pending.kept
        if part is not None:
            cuts = split(part)
            count = len(cuts) - pending.batches_left
            if count > 0:
                end = cuts[count][0]
                records = sum(record_count(part[a:b]) for a, b in cuts[:count])
                first_refused = base_offset(part[end : end + 8])
                taken.append(
                    _Pending(
                        pending.lane,
                        first_refused,
                        records,
                        end,
                        pending.timestamp_ms,
                        pending.oldest_ms,
                        0,
                        Places((), records),
                        part[:end],
                    )
                )
        break
    return taken
