"""At-least-once: positions move with the acknowledgements, and are committed every second.

MirrorMaker 1's files use this, too: `Commits` knows whose positions they are, and their names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from sparkmirror.data.coordination.pause import PauseWatch
from sparkmirror.data.rows import worker_pipes
from sparkmirror.data.rows.notes import Owner, SlotHello
from sparkmirror.data.rows.rows import Chunk
from sparkmirror.data.write.delivery import RENEW_S, ComeRound
from sparkmirror.data.write.held_back import HeldBack
from sparkmirror.data.write.offset_sync_writer import NO_SYNCS, TakenSyncs
from sparkmirror.data.write.partition_state import Lane, Pending, acknowledge
from sparkmirror.data.write.position_commits import Commits
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.errors import Fenced, MirrorError, Unreachable
from sparkmirror.internal_topics.position_metadata import (
    Mark,
    PositionMetadata,
    TargetMark,
    encode_metadata,
)
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.transforms import Transformed
from sparkmirror.progress import SEND_FAILED, Halt
from sparkmirror.settings import Member
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.backlog import Acknowledged

__all__ = ["AtLeastOnce"]

log = logging.getLogger(__name__)

_Told = tuple[int, Mark, TargetMark]
_COMMIT_LOG_S = 30.0
_LINGER_S = 0.05
# How long the other lanes wait for the first commit of those that are added, or the last one.
_ADDED_S, _ADDED_POLL_S = 0.05, 0.002
# The same for those that leave, if they need it again.
_LET_GO_AGAIN_S = 0.5
# How long a cluster that has just started may take to assign a producer id.
_IDENTITY_S = 2.0


class AtLeastOnce:
    """Delivers without transactions (`data.write.delivery.Delivery`)."""

    def __init__(self, task: SinkTask) -> None:
        self._task = task
        self._flow = flow = task.flow
        self._producer = producer = task.producer
        self._backlog = backlog = producer.backlog
        self._refusals = task.refusals(backlog.errors)
        self._transformed = Transformed(flow)
        backlog.drops = flow.records.drop_failed
        backlog.refusals = self._refusals
        backlog.gate = task.ends
        self._held_back = HeldBack(producer, flow.name)
        self._own_halts: set[str] = set()
        self._commits = Commits(flow)
        self._committing: dict[Lane, _Told] = {}
        self._covered: TakenSyncs = NO_SYNCS
        self._last_commit = self._renewed = time.monotonic()
        self._let_go_at = float("-inf")
        self._pause: PauseWatch | None = None
        # The methods of the task, without a call in between.
        self.write = task.write
        self.advance = task.advance

    def begin(self, hello: SlotHello) -> None:
        """Watch for pauses, and record where the target's logs end."""
        self._watch_pauses(hello.owner)
        lanes, frames = self._task.lanes.values(), self._task.frames
        self._producer.connections.add_topics(self._task.topics)
        # Partitions that share target partitions depend on one another.
        apart = not self._flow.records.used and not any(lane.routed for lane in lanes)
        if frames is not None and apart:
            self._held_back.begin([lane.target for lane in lanes], frames)
        self._record_beginning()

    def begun(self) -> None:
        """Nothing to do."""

    def add(self, lanes: list[Lane]) -> None:
        """Record where the target's logs of further lanes end; others wait for a moment at most."""
        self._task.search(lanes)
        self._held_back.add([lane.target for lane in lanes])
        known = [lane for lane in lanes if lane.target_end >= 0 and lane.position >= 0]
        if not known or self._producer.ids.identify(_ADDED_S) is None:
            return
        for lane in known:
            lane.committed = -1
        self._commit_soon(known)

    def _commit_soon(self, lanes: list[Lane]) -> None:
        """Commit the positions of ``lanes``; the others wait for a moment at most."""
        deadline = time.monotonic() + _ADDED_S
        with _not_this_time():
            while any(lane.due for lane in lanes) and time.monotonic() < deadline:
                self._committed(wait=False)
                self._commit()
                time.sleep(_ADDED_POLL_S)

    def _let_go(self, now: float) -> None:
        """Release lanes that another slot gets, once all of them is written and committed."""
        written = [lane for lane in self._task.leaving if not lane.queue]
        if now >= self._let_go_at:
            self._let_go_at = now + _LET_GO_AGAIN_S
            self._commit_soon([lane for lane in written if lane.position >= 0])
        if self._covered != NO_SYNCS:
            return  # the commit in flight covers offset syncs, which may be of these lanes
        # Of one that never had a position, nothing was written.
        done = [lane for lane in written if lane.position < 0 or not lane.due]
        self._task.release(done, now)

    def leave(self, lane: Lane) -> None:
        """No longer hold back the partition of ``lane``."""
        self._held_back.forget(lane.target)

    def join(self, member: Member) -> None:
        """Commit as ``member`` from now on."""
        self._commits.member(member)

    def prepare(self, chunks: list[Chunk]) -> None:
        """Nothing to do."""

    def portions(self, chunks: list[Chunk], records: memoryview) -> Iterable[Chunk]:
        """The chunks, unchanged."""
        return chunks

    def leave_out(self, pending: Pending) -> None:
        """Write gap records for ``pending.failed``."""
        for failed in pending.failed:
            self._refusals.take_failed(pending, failed)

    def close(self) -> None:
        """Leave the producer: what it still sends belongs to no task."""
        self._producer.before_send = _at_once
        self._commits.close()

    def _record_beginning(self) -> None:
        """Before anything is written, commit where the target's logs end, and who writes there.

        If this process dies before its first commit, this distinguishes its records from those of
        others (`data.read.resume`).
        """
        known = [lane for lane in self._task.lanes.values() if lane.target_end >= 0]
        if not known or self._producer.ids.identify(_IDENTITY_S) is None:
            return
        for lane in known:
            lane.committed = -1
        with _not_this_time():
            self._commit()
            # The first records need it, and the commit is in flight meanwhile.
            self._producer.connections.refresh_if_due()
            self._committed(wait=True)

    def _watch_pauses(self, owner: Owner | None) -> None:
        """After a pause of the process, check who owns the flow before anything is written."""
        if owner is None:
            return
        self._pause = PauseWatch(
            *(self._flow, owner.run_id, owner.control_offset, owner.claim_term),
            rest=self._task.rest,
        )
        self._producer.before_send = self._pause.before_write

    # -- acknowledgements ------------------------------------------------------------------

    def pump(self, come_round: ComeRound) -> None:
        """Send, process acknowledgements, and wait until there is room for the next row."""
        self._task.send(self._settle, come_round, self._full)

    def linger(self, come_round: ComeRound) -> None:
        """Send and process acknowledgements until the next row arrives.

        PySpark waits only for rows. So without this, the rest of a row's batches would be sent, and
        acknowledgements processed, only with the next row. If the input is unknown
        (`data.rows.worker_pipes`), `pump` waits a moment to send the rest.
        """
        fd = worker_pipes.input_fd()
        while fd >= 0 and not self._backlog.idle:
            self._settle(self._producer.pump(_LINGER_S, fd))
            if self._producer.woken:
                return
            come_round()

    def _full(self) -> bool:
        """Whether enough records wait for acknowledgements."""
        full = self._held_back.full(self._task.leases)
        self._backlog.impatient = full
        return full

    def _settle(self, acknowledged: list[Acknowledged]) -> None:
        now_ms = time.time() * 1000
        reports, ends, advance = self._task.reports, self._task.ends, self.advance
        for ack in acknowledged:
            pending = acknowledge(ack)
            if pending is not None and not pending.batches_left:
                if pending.timestamp_ms >= 0:
                    reports.note_latency(now_ms, pending.timestamp_ms)
                    pending.note_ages(pending.lane.latency, now_ms)
                advance(pending.lane)
                if pending.lane.stuck:
                    ends.note_going_back(pending.lane)
        # Before the checks: without its gap record, a partition still has the log that is lost.
        self._stop_halted()
        # Check that the target still has what it acknowledged.
        ends.check(self._producer.connections)
        ends.settle(self._backlog, counts=True)
        self._stop_halted()

    # -- halts -----------------------------------------------------------------------------

    def _stop_halted(self) -> None:
        """Stop the lanes whose target partitions accept nothing more; if fenced, all lanes."""
        fenced, everything = self._commits.fenced, self._flow.records.used
        index = self._task.index
        if fenced is None and not index.may_stop(self._backlog.halted, again=everything):
            return
        halts = self._backlog.halts
        self._note_own_topics(halts)
        everything |= fenced is not None
        for lane in self._task.lanes.values() if everything else index.concerned(halts):
            if lane.halt is not None:
                continue
            blocked = self._blocked(lane, halts)
            if blocked or fenced is not None:
                lane.blocked = tuple(blocked)
                lane.halt = fenced or self._judged(halts[blocked[0]])
                lane.queue.clear()
                log.error("%s", lane.halt.reason)
                # If another topic has refused, its records still wait to be sent. A retry reads
                # them again, and they would be there twice.
                alone = not (self._flow.records.used or lane.routed)  # else others write there, too
                if blocked and alone and self._backlog.waiting(lane.target):
                    self._backlog.give_up(lane.target, lane.halt)
                    lane.blocked = (*lane.blocked, lane.target)

    def _judged(self, halt: Halt) -> Halt:
        """``halt``; with MirrorMaker 1's files, a final halt ends the whole mirror."""
        if self._flow.mode is MirrorMode.MM1 and not halt.retriable:
            return Halt(SEND_FAILED, f"{halt.reason} ({halt.code})")
        return halt

    def _blocked(self, lane: Lane, halts: Mapping[TopicPartition, Halt]) -> list[TopicPartition]:
        """The halted partitions that block a lane.

        On the record path, these are all partitions of its topic; with a handler, all partitions.
        """
        if self._flow.records.used:
            for tp in halts:
                if tp.topic == lane.target.topic or self._flow.records.handler:
                    return [tp]
        return [tp for tp in lane.waits_for() if tp in halts]

    def _note_own_topics(self, halts: Mapping[TopicPartition, Halt]) -> None:
        """Log once why a topic of the mirror itself accepts no records; its data continues."""
        for tp, halt in halts.items():
            if tp.topic not in self._task.index.topics and tp.topic not in self._own_halts:
                self._own_halts.add(tp.topic)
                log.error("flow %s: %s", self._flow.name, halt.reason)

    # -- positions -------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Process the result of the commit in flight; begin the next one when it is due."""
        if self._pause is not None:
            self._pause.tick()
        self._held_back.check(now)
        with _not_this_time():
            self._committed(wait=False)
        if now - self._renewed >= RENEW_S:
            self._renewed = now
            for lane in self._task.lanes.values():
                lane.commit_again()
            self._task.save_connect_offsets()
        if (now - self._last_commit) * 1000 >= self._flow.position_interval_ms:
            self._last_commit = now
            self._commit()
        if self._task.leaving:
            self._let_go(now)

    def _commit(self) -> None:
        """Begin to commit the positions that have moved, unless a commit is in flight."""
        if self._commits.under_way:
            return
        if self._pause is not None:
            self._pause.before_write()
        syncs = self._task.syncs
        due: dict[Lane, _Told] = {
            lane: (lane.position, lane.mark, lane.log)
            for lane in self._task.lanes.values()
            if lane.position >= 0 and lane.due
        }
        if not due:
            if syncs is not None:
                syncs.publish()  # with many partitions, some at a time
            return
        mm1 = self._commits.by_source
        offsets = {
            (lane.source if mm1 else lane.target): (
                position,
                "" if mm1 else self._metadata(lane, mark),
            )
            for lane, (position, mark, _) in due.items()
        }
        epochs = {lane.source: mark.leader_epoch for lane, (_, mark, _) in due.items() if mm1}
        self._committing = due
        if syncs is not None and self._covered == NO_SYNCS:
            # These positions do not cover what is settled from now on.
            self._covered = syncs.take()
        self._commits.begin(offsets, epochs)

    def _committed(self, *, wait: bool) -> None:
        """Process the result of the commit in flight, if it is known or ``wait`` is set.

        Raises `MirrorError` or `ConnectionLost` if the commit failed.
        """
        done = self._commits.outcome(wait=wait)
        self._task.fenced = self._commits.fenced
        if done:
            for lane, told in self._committing.items():
                lane.committed, lane.marked, lane.logged = told
            if self._task.syncs is not None:
                self._task.syncs.publish(self._covered)
            self._covered = NO_SYNCS

    def _commit_now(self) -> None:
        """Commit what is due, and wait for the result. Raises as `_committed`."""
        self._committed(wait=True)
        self._commit()
        self._committed(wait=True)

    def _commit_surely(self) -> None:
        """Retry the commit for as long as the cluster is unavailable.

        If the task failed, its records would be written again.
        """
        told_at = float("-inf")
        while True:
            self._task.check_spark()
            try:
                self._commit_now()
            except (Unreachable, ConnectionLost) as error:
                now = time.monotonic()
                if now - told_at >= _COMMIT_LOG_S:
                    told_at = now
                    log.warning("positions cannot be committed, retrying: %s", error)
                time.sleep(self._commits.coordinators.client.retry_backoff_ms / 1000)
            else:
                return

    def _metadata(self, lane: Lane, mark: Mark) -> str:
        identity = self._producer.identity_of(lane.target)
        # If records may be left out, target offsets do not count source records.
        topic = lane.source.topic
        left_out = self._refusals.may_leave_out(topic) or self._transformed.number(topic) >= 0
        counts = identity is not None and not left_out
        producer_id = identity[0] if identity is not None and counts else -1
        return encode_metadata(PositionMetadata(mark, lane.log, lane.target_end, producer_id))

    # -- the end of the epoch --------------------------------------------------------------

    def finish(self, come_round: ComeRound) -> None:
        """Wait until all is acknowledged and committed; save positions as MirrorMaker 2 does."""
        # A partition that fails must not delay the next epoch of all others.
        self._backlog.impatient = True
        while not self._backlog.idle:
            self._settle(self._producer.pump(0.2))
            come_round()
        self._commit_all_again()
        self._commit_surely()
        if self._task.syncs is not None:
            self._task.syncs.finish()
        self._task.save_connect_offsets()

    def _commit_all_again(self) -> None:
        """Have all positions committed with the next commit, also those that have not moved.

        A former owner's commit may have been in flight when it was cut off. If it arrives after the
        takeover, it moves the group's offsets back, and the next epoch would begin there.
        """
        if self._flow.mode is not MirrorMode.MM1:  # the group fences its former members
            for lane in self._task.lanes.values():
                if not lane.left:
                    lane.committed = -1

    def drain(self) -> None:
        """Wait until the last report, and everything queued with it, is acknowledged."""
        while not self._backlog.idle:
            self._task.check_spark()
            self._settle(self._producer.pump(0.2))


@contextmanager
def _not_this_time() -> Iterator[None]:
    """Log why positions are not committed; the next round commits the same or later ones.

    `Fenced` is raised: it ends the task.
    """
    try:
        yield
    except Fenced:
        raise
    except (MirrorError, ConnectionLost) as error:
        log.warning("positions were not committed, retrying: %s", error)


def _at_once() -> None:
    """No task writes: what the producer still sends needs no check."""
