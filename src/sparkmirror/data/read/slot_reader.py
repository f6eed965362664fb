"""The source end of a slot: long polls on the source, rows out, for one epoch.

The loop of `SlotReader.rows` waits for any response (source brokers and the control topic share one
`Poller`), turns it into one row, sends the next request, and only then hands the row to Spark. So
the next response is on its way while this row travels. While Spark is busy, the generator does not
run, and the kernel's socket buffers fill. This is the only read-ahead, and so it is limited. A
broker that is far away may have several connections (`wire.fetch.channels`), each with its buffer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.fencing import check_claim, checks_claims, ended
from sparkmirror.data.coordination.selected import TopicSelection
from sparkmirror.data.coordination.slot_plan import SlotPlan
from sparkmirror.data.read.additions import Additions
from sparkmirror.data.read.intact_records import IntactRecords
from sparkmirror.data.read.loss_detection import LossWatch
from sparkmirror.data.read.notes_to_sink import NotesToSink
from sparkmirror.data.read.retry_schedule import Retries
from sparkmirror.data.read.slot_share import SlotShare
from sparkmirror.data.read.slot_start import SlotStart
from sparkmirror.data.read.slot_throttle import SlotThrottle
from sparkmirror.data.read.target_loss import TargetWatch, Verdict
from sparkmirror.data.rows.notes import LeftNote, RetryNote, SlotNotes, decode_halted
from sparkmirror.data.rows.outlet import Outlet
from sparkmirror.data.rows.ring import new_ring
from sparkmirror.data.rows.rows import FLUSH, Chunk, chunk_of, out
from sparkmirror.data.rows.shared_frames import Frames, room_for
from sparkmirror.errors import ClusterError, Unreachable
from sparkmirror.internal_topics.commands import CommandKind, SourcePartition
from sparkmirror.internal_topics.epochs.shares import outdated
from sparkmirror.internal_topics.position_metadata import LEADER_EPOCH_LOST, Mark
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.transforms import Transformed
from sparkmirror.progress import PartitionProgress
from sparkmirror.records.selection import Selection, SelectRules
from sparkmirror.records.walk import append_time_runs
from sparkmirror.settings import FETCH_BYTES_MAX, FlowSettings
from sparkmirror.ticks import ticks_s
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.channels import CHANNELS_MAX
from sparkmirror.wire.fetch.fetcher import FetchedPartition, Fetcher
from sparkmirror.wire.net.connection import Connection, ConnectionLost
from sparkmirror.wire.net.poller import Poller

__all__ = ["SlotReader"]

log = logging.getLogger(__name__)

# Without rows, the sink would not do the rounds that commit positions and read acknowledgements.
_TICK_S = 0.5
# Drivers report four times in a session. Nobody takes over a flow sooner after the last report.
_SILENT_SHARE = 0.75
# A sink that has said nothing in the memory by then probably cannot map it.
_SILENT_SINK_S = 10.0
_JOIN_BELOW_BYTES = 4096
_STARVED_S = 0.005
# How late the slot may notice that added partitions have begun.
_BEGUN_S = 0.02
# After a pause of this length, the source's topics may have been recreated, and filled again. The
# same holds for a wait for positions.
_LONG_S = 10.0
# Pause before a log is checked again whose leader could not decide what happens to the position.
_LOOK_AGAIN_S = 0.5
# How long the other partitions wait for a connection to such a leader; it is used when it is there.
_CONNECT_S = 0.2
_NOTHING = memoryview(b"")


class SlotReader:
    """Reads one slot's partitions for one epoch. Each attempt of a task has its own.

    ``attempt``: 0 for the first one. ``attempt_id``: Spark's number of it, which grows within the
    run. The sink reports under it, and the slot accepts only those reports. ``over``: only given if
    this reader begins partitions for another one, which streams them (`_begin_beside`); once it is
    set, there is no hurry to begin any more.
    """

    def __init__(
        self,
        flow: FlowSettings,
        plan: SlotPlan,
        attempt: int = 0,
        attempt_id: int = 0,
        *,
        over: threading.Event | None = None,
    ) -> None:
        self.flow = flow
        self._given_up = over
        plan = replace(plan, partitions=TopicSelection(flow).keep(plan.partitions))
        self.plan = plan
        self._attempt, self._attempt_id = attempt, attempt_id
        self._by_source = {p.source: p for p in plan.partitions}
        self._ends = plan.end_offsets()
        self._lacking = dict(self._ends or {})  # the ends that are not reached yet
        self._connections = ClusterConnections(
            flow.source,
            {p.topic for p in plan.partitions},
            receive_buffer_bytes=flow.fetch.receive_buffer_bytes,
        )
        fetch = replace(
            flow.fetch, fetch_max_bytes=min(flow.fetch.fetch_max_bytes, FETCH_BYTES_MAX)
        )
        self._numbered = list(plan.partitions)  # as the sink numbers them
        self._frames = Frames(fetch.fetch_max_bytes, room_for(len(plan.partitions)))
        self._any = Poller[Connection]()
        self._control = Poller[Connection](within=self._any)
        self._fetcher = Fetcher(
            self._connections,
            fetch,
            buffer=self._frames,
            holds=True,
            poller=self._any,
            linger_ms=flow.produce.linger_ms,
            batch_bytes=flow.records.sticky_bytes,
            channels_max=CHANNELS_MAX,
            reread_bytes=fetch.reread_bytes,
        )
        self._losses = LossWatch(flow, plan.partitions, self._connections, self._fetcher.errors)
        self._watch = ControlWatch(
            flow,
            plan.run_id,
            slot=plan.slot,
            attempt_id=attempt_id,
            offset=plan.control_offset,
            paused=plan.paused,
            poller=self._control,
            claim_term=plan.claim_term,
            limits=plan.limits,
        )
        self._throttling = SlotThrottle(self._fetcher, plan.slot, plan.slots)
        rules = SelectRules(
            check_crcs=flow.fetch.check_crcs,
            read_committed=flow.fetch.isolation_level == "read_committed",
            join_bytes=flow.produce.join_bytes,
            # The record path re-encodes batches anyway.
            join_below_bytes=0
            if flow.records.used
            else min(_JOIN_BELOW_BYTES, flow.produce.join_bytes),
        )
        self._intact = IntactRecords(self._fetcher, rules)
        self._transformed = Transformed(flow)
        self._retries = Retries()
        self._marks_before: dict[TopicPartition, Mark] = {}
        self._last_row = 0.0
        self._fetched_s = ticks_s()
        self._sink_speaks = False
        self._checks_claims = checks_claims(flow)
        self._silence_s = flow.session_ms / 1000 * _SILENT_SHARE
        self._targets = TargetWatch(flow, plan.partitions, self._losses)
        self._share = SlotShare(plan)
        self._begins = SlotStart(
            flow,
            plan,
            self._connections,
            self._fetcher,
            self._losses,
            self._targets,
            None if over is not None else (self._watch, self._share),
        )
        self._additions = Additions(self._begin_beside)
        # Until a partition is left: a retry may go back to before these offsets.
        self._jumps: dict[TopicPartition, tuple[int, int]] = {}
        self._notes = NotesToSink(self._fetcher, self._watch, self._targets, self._losses)
        # A reader that begins partitions for another one makes no rows.
        with_ring = flow.uses_ring and over is None
        self._outlet = Outlet(self._frames, new_ring() if with_ring else None)

    @property
    def frames(self) -> Frames:
        """The memory that is shared with the sink."""
        return self._frames

    # -- the epoch -------------------------------------------------------------------------

    def rows(self) -> Iterator[Any]:
        """Rows (pyarrow.RecordBatch) until the epoch ends, is drained, or is at its frozen ends."""
        try:
            # Before it begins: a slow beginning would look like the wrong clock of another host.
            left_s = self.plan.time_left_s(self.flow.epoch_s, self._attempt, time.time())
            deadline = time.monotonic() + left_s
            positions = self._start()
            yield self._hello(positions)
            yield from out(FLUSH)
            yield from self._stream(deadline)
            yield from self._new_member()
            for row in self._outlet.last():
                yield from out(row)
        finally:
            self._close()

    def _close(self) -> None:
        self._additions.close()
        self._connections.close()
        self._watch.close()
        self._frames.close()
        self._outlet.close()

    def _start(self) -> dict[TopicPartition, int]:
        self._connections.refresh_if_due()
        waited, known_s = False, ticks_s()
        while self._given_up is None or not self._given_up.is_set():
            # One for all requests: on a long link, each connection and metadata lookup takes time.
            with closing(self._begins.asked()) as connections:
                try:
                    positions = self._begins.find_out(connections)
                except (Unreachable, ConnectionLost, TimeoutError) as error:
                    if self._ends is not None:
                        raise Unreachable(
                            f"positions cannot be read ({error}).", where=f"flow {self.flow.name}"
                        ) from error
                    # Spark gives up after a few failed tasks; a mirror must not.
                    log.warning("flow %s waits for positions: %s", self.flow.name, error)
                    waited = True
                else:
                    # What retries on its own may wait for the request timeout.
                    if waited or ticks_s() - known_s >= _LONG_S:
                        self._refresh()
                    return self._begin(positions, connections)
            time.sleep(_TICK_S)
        return {}

    def _refresh(self) -> None:
        """Get the source's newest metadata: topics may have been recreated during a long wait."""
        self._connections.mark_stale()
        try:
            self._connections.refresh()
        except (ClusterError, ConnectionLost) as error:
            log.warning("flow %s: metadata of its source: %s", self.flow.name, error)
            self._fetcher.await_metadata()

    def _begin(
        self, positions: dict[TopicPartition, int], connections: ClusterConnections
    ) -> dict[TopicPartition, int]:
        """Start to fetch at ``positions``, or where the verdicts say; returns where that is."""
        self._fetched_s = ticks_s()
        self._numbered = list(self._begins.kept)
        self._by_source = {p.source: p for p in self._numbered}
        self._notes.released = self._begins.released
        for tp, offset in positions.items():
            verdict = self._begins.verdicts.get(tp)
            self._fetcher.assign(tp, offset if verdict is None else self._first(tp, verdict))
            if verdict is not None and verdict.halt is not None:
                self._fetcher.halt(tp, verdict.halt)
        self._marks_before = dict(self._losses.marks)
        halted = self._fetcher.halts
        self._examine([tp for tp in positions if tp not in halted])
        return positions | self._begins.resume(positions, connections, apart=self._jumps)

    def _first(self, tp: TopicPartition, verdict: Verdict) -> int:
        """Where to begin; the offsets that the target got after a loss are skipped later."""
        first, end = verdict.mark.there_first, verdict.mark.there_end
        if verdict.position < end:
            self._jumps[tp] = first, end
        return verdict.position

    def _skipped(self, tp: TopicPartition, position: int) -> int:
        """``position``, or the end of the offsets to skip if it is one of them."""
        first, end = self._jumps.get(tp, (-1, -1))
        return end if first <= position < end else position

    def _examine(self, held: list[TopicPartition], patience_s: float | None = None) -> None:
        """Check whether the logs of held partitions still are the ones that were mirrored."""
        positions = {tp: self._fetcher.position(tp) for tp in held}
        needed = {tp: self._skipped(tp, at) for tp, at in positions.items() if tp in self._jumps}
        findings = self._losses.examine(positions, needed=needed, patience_s=patience_s)
        for tp in held:
            finding = findings.get(tp)
            halt = None if finding is None else finding.halt
            if finding is None or (halt is not None and halt.retriable):
                self._connections.mark_stale(tp)  # it may have another leader by now
                self._fetcher.retry_later(tp, _LOOK_AGAIN_S)
            if halt is not None:
                self._fetcher.halt(tp, halt)
            elif finding is not None:
                if not finding.log_goes_on:
                    self._jumps.pop(tp, None)  # the target has other records of these offsets
                # Not before: the known leader epoch shows whether the log is the position's.
                offset = self._skipped(tp, finding.offset)
                if offset != finding.offset:
                    self._losses.moved(tp)
                self._fetcher.release(tp, offset, finding.log)

    def _leave_copied(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch no more of those that have reached the end of a bounded run.

        They have all that they need. So nothing that is retried may halt them, such as a broker
        that goes away while others are copied. A halt without a retry stays.
        """
        ends, fetcher = self._lacking, self._fetcher
        reached = [
            tp
            for tp in partitions
            if tp in ends and fetcher.assigned(tp) and fetcher.position(tp) >= ends[tp]
        ]
        # Once for all: it goes through all partitions when one of them is gone.
        halts = fetcher.halts if reached else {}
        for tp in reached:
            if tp not in halts or halts[tp].retriable:
                del ends[tp]
                fetcher.unassign(tp)

    def _stream(self, deadline: float) -> Iterator[Any]:
        self._leave_copied(self._lacking)
        # Without memory to map, there is nothing to wait for.
        heard_by = time.monotonic() + (0.0 if self._frames.note() is None else _SILENT_SINK_S)
        while not self._over(deadline):
            self._hear_sink(heard_by)
            self._follow()
            if self._notes.left or self._notes.added:
                # Other slots wait for what this one leaves.
                yield from self._out(self._outlet.pass_on([], _NOTHING, [], self._notes.take()))
            self._send_fetches()
            self._watch.fetcher.send()
            # Without a free frame nothing is received: this is how a slow target slows the source.
            starved, cut_off = self._frames.starved, self._cut_off()
            listens = self._fetcher.waiting and not starved and not cut_off
            timeout_s = min(self._watch.fetcher.next_due_s(), _TICK_S)
            if listens or not (self._watch.paused or cut_off):
                timeout_s = min(self._fetcher.next_due_s(), timeout_s)
            if self._additions.under_way:
                timeout_s = min(timeout_s, _BEGUN_S)
            if starved and not cut_off:
                timeout_s = _STARVED_S
            if self._ends is None:
                # The other slots wait for one that notices the epoch's end late.
                timeout_s = min(timeout_s, max(0.0, deadline - time.monotonic()))
            ready = (self._control if starved or cut_off else self._any).wait(timeout_s)
            if not ready and not listens and timeout_s <= 0:
                time.sleep(0.01)  # every broker is backing off
            if len(ready) > 1:
                # A poll has a fixed order. With memory for one response at a time, only the first
                # broker's would ever be read.
                ready.sort(key=lambda one: one.last_used)
            for connection in ready:
                if connection in self._control:
                    self._watch.receive(connection)
                    self._halt_stopped()
                    continue
                if self._frames.starved or self._cut_off():
                    break
                row = self._row(self._fetcher.receive(connection))
                if self._fetcher.busy:
                    self._send_fetches()
                yield from self._out(row)
            if time.monotonic() - self._last_row >= _TICK_S:
                yield from self._out(self._outlet.account(self._notes.take()))

    def _out(self, row: Any | None) -> Iterator[Any]:
        """``row``, for Spark; None: there is none, or the sink has it already."""
        if row is not None:
            yield from out(row)
            self._last_row = time.monotonic()

    def _new_member(self) -> Iterator[Any]:
        """Report a new generation of the group to the sink, which commits its last positions."""
        newest = self._watch.assignment
        ours = newest is not None and newest.run_id == self.plan.run_id
        if newest is not None and ours and newest.member not in (None, self.plan.member):
            yield from out(self._outlet.account(SlotNotes(member=newest.member)))

    def _send_fetches(self) -> None:
        """Send fetch requests; while the flow is paused, only outstanding responses arrive."""
        if self._watch.paused or self._cut_off():
            self._fetcher.expire()
            return
        now_s = ticks_s()
        if now_s - self._fetched_s >= _LONG_S:
            self._fetcher.await_metadata()
        self._fetched_s = now_s
        self._try_again()
        self._throttling.obey(self._watch.limits)
        numbered = self._numbered
        self._fetcher.left_out = {
            numbered[number].source for number in self._frames.held_back() if number < len(numbered)
        }
        self._fetcher.send()
        if self._fetcher.held:
            self._examine(self._fetcher.held, _CONNECT_S)
            self._leave_copied(self._fetcher.held)
            self._fetcher.send()

    def _cut_off(self) -> bool:
        """Whether another process may have taken over the flow without our notice."""
        return self._checks_claims and ticks_s() - self._watch.responded_s > self._silence_s

    def _over(self, deadline: float) -> bool:
        if self.flow.mode is MirrorMode.MM2:
            check_claim(self.flow, self._watch.claim, self.plan.run_id)
        if self.flow.exactly_once and self._begins.identity is None:
            return True
        if ended(self._watch, self.plan.record):
            return True
        if self._watch.truncated and self._ends is None:
            # What comes now would not be heard, a drain neither. The next plan has read it all. A
            # bounded run has no other epoch, and goes on to its ends.
            log.warning("flow %s: the control topic was cut off: the epoch ends", self.flow.name)
            return True
        command = self._watch.command
        if outdated(command, self.plan.run_id, self.plan.version):
            # The partitions of a bounded run are fixed, unless a consumer group assigns them.
            dealt = self._ends is None or self.plan.member is not None
            if dealt or (command is not None and command.kind is CommandKind.DRAIN):
                return True
        if self._ends is None:
            return time.monotonic() >= deadline
        halts = self._fetcher.halts
        return all(
            tp in halts or self._fetcher.position(tp) >= end for tp, end in self._lacking.items()
        )

    def _hear_sink(self, heard_by: float) -> None:
        """Process what the sink says in the shared memory; without that, read its reports.

        ``heard_by``: monotonic s until which its first message may take.
        """
        message = self._frames.take_message()
        if message:
            self._sink_speaks = True
            for progress in decode_halted(message):
                self._stop(progress)
        self._watch.follow_reports(not self._sink_speaks and time.monotonic() >= heard_by)

    def _halt_stopped(self) -> None:
        """Stop fetching what the sink has reported to have given up."""
        for progress in self._watch.stopped.values():
            self._stop(progress)

    def _stop(self, progress: PartitionProgress) -> None:
        """Stop fetching what the sink gave up; `_try_again` resumes it."""
        tp = TopicPartition(progress.topic, progress.partition)
        if tp in self._by_source and self._retries.stop(tp, progress) and progress.halt:
            self._fetcher.halt(tp, replace(progress.halt, retriable=False))

    def _try_again(self) -> None:
        """Go back to the positions of partitions whose pause is over."""
        if self._ends is not None:
            return  # a bounded run ends with its halted partitions
        for tp, attempt, position in self._retries.take_due():
            if tp not in self._by_source:
                continue  # the slot has left it
            if tp in self._losses.passed:
                continue  # the next epoch reads the position, and which log it is in
            self._fetcher.assign(tp, position)
            self._notes.tried.append(RetryNote(tp, attempt))

    # -- partitions that come and go -------------------------------------------------------

    def _follow(self) -> None:
        """Begin and leave partitions, as the newest assignment says."""
        if self._cut_off():
            return
        for begun in self._additions.take():
            self._take_begun(begun)
        changes = self._share.follow(self._watch.assignment)
        if changes is None:
            return
        for one in changes.left:
            self._leave(one)
        if changes.begin:
            self._additions.start(changes.begin)

    def _begin_beside(
        self, partitions: tuple[SourcePartition, ...], over: threading.Event
    ) -> tuple[SlotReader, dict[TopicPartition, int]]:
        """Find out where ``partitions`` begin; on a thread of its own."""
        plan = replace(self.plan, partitions=partitions)
        begun = SlotReader(self.flow, plan, self._attempt, self._attempt_id, over=over)
        try:
            return begun, begun._start()
        finally:
            begun._close()

    def _take_begun(self, result: tuple[SlotReader, dict[TopicPartition, int]]) -> None:
        """Stream the partitions of a reader that has begun them; the sink is told first."""
        begun, positions = result
        for code, count in begun._fetcher.errors.items():
            self._fetcher.errors[code] = self._fetcher.errors.get(code, 0) + count
        self._notes.added += begun._begins.partitions(positions, begun._marks_before)
        self._fetcher.take_from(begun._fetcher)
        self._losses.take_from(begun._losses)
        self._targets.take_from(begun._targets)
        self._jumps |= begun._jumps
        self._numbered += begun.plan.partitions
        self._by_source |= begun._by_source
        tried = self._retries.again(begun._by_source)
        self._notes.tried += [RetryNote(tp, attempt) for tp, attempt in tried.items()]
        for one in self._share.begun(begun._by_source):
            self._leave(one)

    def _leave(self, one: LeftNote) -> None:
        """Fetch no more of a partition that another slot gets, or that the flow no longer has."""
        tp = one.source
        del self._by_source[tp]
        self._fetcher.unassign(tp)
        self._losses.forget(tp)
        self._retries.leave(tp)
        self._jumps.pop(tp, None)
        self._notes.left.append(one)

    # -- responses into rows ---------------------------------------------------------------

    def _row(self, parts: list[FetchedPartition]) -> Any | None:
        chunks: list[Chunk] = []
        pieces: list[Any] = []
        for part in parts:
            plan = self._by_source.get(part.tp)
            if plan is None or not len(part.records):
                continue
            chosen = self._select(part)
            if chosen is None or chosen.next_offset <= part.fetch_offset:
                continue
            self._fetcher.advance(part.tp, chosen.next_offset)
            self._losses.mirrored(part.tp, chosen.leader_epoch)
            chunk = chunk_of(plan, part.fetch_offset, chosen)
            known = self._losses.marks.get(part.tp, Mark()).leader_epoch
            if chosen.epoch_behind not in (None, known):
                # The cleaner has removed the records that began another leader epoch.
                self._losses.moved(part.tp)
                chunk = replace(chunk, leader_epoch=LEADER_EPOCH_LOST)
            if self._transformed.number(plan.topic) >= 0:
                # New batches have other offsets: that of each record must be known here.
                runs = chosen.runs if len(chosen.runs) > 1 else ()
                chunk = replace(chunk, runs=runs, appended=append_time_runs(part.records))
            first, end = self._jumps.get(part.tp, (-1, -1))
            if part.fetch_offset < first <= chosen.next_offset:
                self._fetcher.advance(part.tp, end)
                self._losses.moved(part.tp)
                # One chunk: a second one without records would not wait for a transform's results.
                chunk = replace(chunk, next_offset=end, leader_epoch=LEADER_EPOCH_LOST)
            chunks.append(chunk)
            pieces.append(chosen.pieces)
        self._leave_copied(part.tp for part in parts)
        if not chunks:
            return None
        return self._outlet.pass_on(chunks, self._fetcher.frame, pieces, self._notes.take())

    def _select(self, part: FetchedPartition) -> Selection | None:
        end = None if self._ends is None else self._ends.get(part.tp)
        first, _ = self._jumps.get(part.tp, (-1, -1))
        if part.fetch_offset < first:
            end = first if end is None else min(first, end)
        return self._intact.select(part, end)

    # -- notes to the sink -----------------------------------------------------------------

    def _hello(self, positions: dict[TopicPartition, int]) -> Any:
        self._last_row = time.monotonic()
        hello = self._begins.hello(positions, self._marks_before)
        memory, ring = self._frames.note(), self._outlet.note()
        hello = replace(hello, attempt=self._attempt_id, memory=memory, ring=ring)
        return self._outlet.first(self._notes.begin(hello, self.plan.member))
