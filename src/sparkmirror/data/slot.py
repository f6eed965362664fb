"""The source end of a slot: long polls on the source, rows out, for one epoch.

The loop of `SlotReader.rows`: wait for any answer (source brokers and the control topic share one
``select``), turn it into one row, ask for more, and only then hand the row to Spark, so that the
next answer is on its way while this one travels. While Spark is busy the generator stands still
and the kernel's socket buffers fill: that is all the read-ahead there is, and its bound.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sparkmirror.data.plan import SlotPlan
from sparkmirror.data.resume import resume
from sparkmirror.data.rows import FLUSH, Chunk, build_row, out
from sparkmirror.data.shared import Frames
from sparkmirror.data.takeover import check_claim, take_over
from sparkmirror.data.watch import ControlWatch
from sparkmirror.errors import BatchError, CorruptBatch, PartitionError, Unreachable
from sparkmirror.model import FETCH_BYTES_MAX, FlowSettings, Halt, MirrorMode, TopicPartition
from sparkmirror.wire.connection import ConnectionLost
from sparkmirror.wire.fetch import FetchedPartition, Fetcher
from sparkmirror.wire.kafka_codes import OFFSET_OUT_OF_RANGE, error_name
from sparkmirror.wire.produce_queue import Identity
from sparkmirror.wire.routes import EARLIEST, LATEST, Routes
from sparkmirror.wire.select import SelectRules
from sparkmirror.wire.select import select as select_records
from sparkmirror.wire.signals import CommandKind, SourcePartition, channel, member_row

__all__ = ["SlotReader"]

log = logging.getLogger(__name__)

# Without rows the sink would not come round to commit positions and to read acknowledgements.
_TICK_S = 0.5
_CORRUPT_RETRY_S = 1.0
_CORRUPT_TRIES = 3
_JOIN_BELOW_BYTES = 4096
_STARVED_S = 0.005
# Of a chunk with more gaps than this, only the last runs of source offsets are told to the sink.
_RUNS_MAX = 1_000


class SlotReader:
    """Reads one slot's partitions for one epoch. Made anew for every task."""

    def __init__(self, flow: FlowSettings, plan: SlotPlan) -> None:
        self.flow = flow
        self.plan = plan
        self._by_source = {p.source: p for p in plan.partitions}
        self._ends = plan.end_offsets()
        self._routes = Routes(
            flow.source,
            {p.topic for p in plan.partitions},
            receive_buffer_bytes=flow.fetch.receive_buffer_bytes,
        )
        fetch = replace(
            flow.fetch, fetch_max_bytes=min(flow.fetch.fetch_max_bytes, FETCH_BYTES_MAX)
        )
        self._frames = Frames(fetch.fetch_max_bytes)
        self._fetcher = Fetcher(self._routes, fetch, buffer=self._frames)
        self._watch = ControlWatch(
            flow,
            plan.run_id,
            slot=plan.slot,
            offset=plan.control_offset,
            paused=plan.paused,
        )
        self._rules = SelectRules(
            check_crcs=flow.fetch.check_crcs,
            read_committed=flow.fetch.isolation_level == "read_committed",
            join_bytes=flow.produce.join_bytes,
            # The record path writes batches anew anyway.
            join_below_bytes=0
            if flow.records.used
            else min(_JOIN_BELOW_BYTES, flow.produce.join_bytes),
        )
        self._corrupt: dict[TopicPartition, int] = {}
        self._noted: dict[str, Any] = {"errors": {}, "halts": [], "paused": False}
        self._last_row = 0.0
        self._identity: Identity | None = None
        self._chosen: set[TopicPartition] = set()
        self._target_ends: dict[TopicPartition, int] = {}

    # -- positions -------------------------------------------------------------------------

    def _positions(self) -> dict[TopicPartition, int]:
        """Where each partition goes on: the committed position, else ``auto.offset.reset``."""
        mm1 = self.flow.mode is MirrorMode.MM1
        by_position = {(p.source if mm1 else p.target): p.source for p in self.plan.partitions}
        routes = Routes(self.flow.source if mm1 else self.flow.target)
        try:
            committed = routes.committed(
                self.flow.position_group, by_position, stable=self.flow.exactly_once
            )
        finally:
            routes.close()
        found = {by_position[tp]: offset for tp, (offset, _) in committed.items()}
        missing = [tp for tp in self._by_source if tp not in found]
        if missing:
            chosen = self._reset_positions(missing)
            self._chosen = set(chosen)
            found |= chosen
        if self.flow.exactly_once or mm1:
            return found
        notes = {by_position[tp]: metadata for tp, (_, metadata) in committed.items()}
        resumed = resume(
            self.flow,
            self._routes,
            {self._by_source[tp]: (offset, notes.get(tp, "")) for tp, offset in found.items()},
        )
        self._target_ends = {tp: one.target_end for tp, one in resumed.items()}
        return {tp: one.position for tp, one in resumed.items()}

    def _reset_positions(self, missing: list[TopicPartition]) -> dict[TopicPartition, int]:
        reset = self.flow.fetch.auto_offset_reset
        if reset == "none":
            raise PartitionError(
                f"no position is known for {missing[0]} and {len(missing) - 1} more, and "
                "auto.offset.reset=none forbids to choose one.",
                where=f"flow {self.flow.name}",
                do="Set auto.offset.reset to earliest or latest.",
            )
        timestamp = LATEST if reset == "latest" else EARLIEST
        read_committed = self._rules.read_committed
        found: dict[TopicPartition, int] = {}
        deadline = time.monotonic() + self.flow.source.request_timeout_ms / 1000
        while len(found) < len(missing) and time.monotonic() < deadline:
            self._routes.refresh_if_due()
            rest = [tp for tp in missing if tp not in found]
            found |= self._routes.list_offsets(rest, timestamp, read_committed=read_committed)
            if len(found) < len(missing):
                self._routes.mark_stale()
                time.sleep(self.flow.source.retry_backoff_ms / 1000)
        for tp in missing:
            if tp not in found:
                # Mirrored from the next epoch on, when its leader answers.
                log.warning("flow %s: no leader of %s answers yet", self.flow.name, tp)
        return found

    # -- the epoch -------------------------------------------------------------------------

    def rows(self) -> Iterator[Any]:
        """Rows (pyarrow.RecordBatch) until the epoch is over, drained, or at its frozen ends."""
        try:
            positions = self._start()
            yield self._hello(positions)
            yield from out(FLUSH)
            yield from self._stream(time.monotonic() + self.flow.epoch_s)
            yield from self._new_member()
        finally:
            self._routes.close()
            self._watch.close()
            self._frames.close()

    def _start(self) -> dict[TopicPartition, int]:
        self._routes.refresh_if_due()
        while True:
            try:
                self._watch.start()
                if self.flow.exactly_once and not self._take_over():
                    return {}
                positions = self._positions()
                break
            except (Unreachable, ConnectionLost, TimeoutError) as error:
                if self._ends is not None:
                    raise Unreachable(
                        f"positions cannot be read ({error}).", where=f"flow {self.flow.name}"
                    ) from error
                # Spark gives up after a few failed tasks, a mirror must not.
                log.warning("flow %s waits for positions: %s", self.flow.name, error)
                time.sleep(_TICK_S)
        for tp, offset in positions.items():
            self._fetcher.assign(tp, offset)
        return positions

    def _take_over(self) -> bool:
        """Become the only writer of these partitions; False when this plan is an old one."""
        plan = self.plan
        self._identity = take_over(self.flow, plan.slot, plan.run_id, self._watch)
        return self._identity is not None

    def _stream(self, deadline: float) -> Iterator[Any]:
        while not self._over(deadline):
            self._ask()
            self._watch.fetcher.send()
            # Without a free frame nothing is received: that is how a slow target holds back.
            starved = self._frames.starved
            source_sockets = [] if starved else self._fetcher.sockets()
            control_sockets = self._watch.fetcher.sockets()
            timeout_s = min(self._watch.fetcher.next_due_s(), _TICK_S)
            if source_sockets or not self._watch.paused:
                timeout_s = min(self._fetcher.next_due_s(), timeout_s)
            if starved:
                timeout_s = _STARVED_S
            ready = select.select([*source_sockets, *control_sockets], [], [], timeout_s)[0]
            if not ready and not source_sockets and timeout_s <= 0:
                time.sleep(0.01)  # every broker is backing off
            for sock in ready:
                if sock in control_sockets:
                    self._watch.receive(sock)
                    self._obey()
                    continue
                if self._frames.starved:
                    break
                row = self._row(self._fetcher.receive(sock))
                if self._fetcher.busy:
                    self._ask()
                if row is not None:
                    yield from out(row)
                    self._last_row = time.monotonic()
            if time.monotonic() - self._last_row >= _TICK_S:
                yield from out(self._note_row())
                self._last_row = time.monotonic()

    def _new_member(self) -> Iterator[Any]:
        """The group may have a new generation by now, and the last positions are for that one."""
        newest = self._watch.assignment
        ours = newest is not None and newest.run_id == self.plan.run_id
        if newest is not None and ours and newest.member not in (None, self.plan.member):
            notes = {"member": member_row(newest.member)}
            yield from out(build_row([], memoryview(b""), [], notes))

    def _ask(self) -> None:
        """Ask for more; while the flow is paused, only what was asked for before still comes."""
        if self._watch.paused:
            self._fetcher.expire()
        else:
            self._fetcher.send()

    def _over(self, deadline: float) -> bool:
        if self.flow.exactly_once:
            check_claim(self.flow, self._watch.claim, self.plan.run_id)
            if self._identity is None:
                return True
        command = self._watch.command
        if command is not None and command.run_id == self.plan.run_id:
            if command.kind is CommandKind.DRAIN:
                return True
            replan = command.kind is CommandKind.REPLAN and self._ends is None
            if replan and not 0 < command.version <= self.plan.version:
                return True
        if self._ends is None:
            return time.monotonic() >= deadline
        halts = self._fetcher.halts
        return all(
            tp in halts or self._fetcher.position(tp) >= end for tp, end in self._ends.items()
        )

    def _obey(self) -> None:
        """Stop fetching what the sink cannot write."""
        for tp, halt in self._watch.halts.items():
            if tp in self._by_source and tp not in self._fetcher.halts:
                self._fetcher.halt(tp, Halt(halt.code, halt.reason))

    # -- answers into rows -----------------------------------------------------------------

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
            chunks.append(_chunk(plan, part.fetch_offset, chosen))
            pieces.append(chosen.pieces)
        if not chunks:
            return None
        return build_row(chunks, self._fetcher.frame, pieces, self._notes(), self._frames)

    def _select(self, part: FetchedPartition) -> Any | None:
        end = None if self._ends is None else self._ends.get(part.tp)
        try:
            chosen = select_records(
                part.records, part.fetch_offset, part.aborted, self._rules, end_offset=end
            )
            if chosen.next_offset > part.high_watermark >= 0:
                # No checksum covers a batch's base offset: a damaged one would move the position
                # past records that were never mirrored.
                raise CorruptBatch(
                    f"The batches from offset {part.fetch_offset} on end at "
                    f"{chosen.next_offset - 1}, the log at {part.high_watermark - 1}.",
                )
        except BatchError as error:
            self._note_corrupt(part.tp, error)
            return None
        self._corrupt.pop(part.tp, None)
        if chosen.cut_bytes_needed:
            self._fetcher.need_bytes(part.tp, chosen.cut_bytes_needed)
        return chosen

    def _note_corrupt(self, tp: TopicPartition, error: BatchError) -> None:
        """Damage on the way heals by fetching again; damage at rest does not."""
        tries = self._corrupt[tp] = self._corrupt.get(tp, 0) + 1
        self._fetcher.errors[error.code] = self._fetcher.errors.get(error.code, 0) + 1
        log.warning("%s: %s (try %d)", tp, error, tries)
        if tries >= _CORRUPT_TRIES:
            self._fetcher.halt(tp, Halt(error.code, f"{tp} at the source: {error}"))
        else:
            self._fetcher.retry_later(tp, _CORRUPT_RETRY_S)

    # -- notes to the sink -----------------------------------------------------------------

    def _hello(self, positions: dict[TopicPartition, int]) -> Any:
        self._last_row = time.monotonic()
        self._noted["paused"] = self._watch.paused
        notes: dict[str, Any] = {
            "slot": self.plan.slot,
            "epoch": self.plan.epoch,
            "channel": channel(self.flow, self.plan.run_id),
            "paused": self._watch.paused,
            "frames": self._frames.note(),
            "topic_ids": {p.topic: p.topic_id for p in self.plan.partitions if p.topic_id},
            "partitions": [
                [
                    *(p.topic, p.partition, p.remote_topic, positions.get(p.source, -1)),
                    -1 if p.source in self._chosen else positions.get(p.source, -1),
                    self._target_ends.get(p.source, -1),
                ]
                for p in self.plan.partitions
            ],
        }
        if self.plan.member is not None:
            notes["member"] = member_row(self.plan.member)
        if self.flow.exactly_once:
            # The sink writes under the identity that was there before the positions were read.
            notes["writer"] = {
                "identity": self._identity,
                "run_id": self.plan.run_id,
                "control_offset": self.plan.control_offset,
            }
        # Positions that were chosen just now are sent as empty chunks, so that the sink commits
        # them: "latest" must mean the same offset after a restart.
        chunks = [
            _empty_chunk(p, positions[p.source])
            for p in self.plan.partitions
            if p.source in positions
        ]
        row = build_row(chunks, memoryview(b""), [[] for _ in chunks], notes)
        return row.slice(0, 1)

    def _notes(self) -> dict[str, Any] | None:
        """Halts, error counts and whether the flow is paused, when they changed."""
        halts = self._explained_halts()
        rows: list[list[object]] = [
            [tp.topic, tp.partition, halt.code, halt.reason, halt.retriable]
            for tp, halt in sorted(halts.items(), key=lambda entry: entry[0])
        ]
        gone = set(self._halted_before()) - set(halts)
        rows += [[tp.topic, tp.partition, "", "", False] for tp in sorted(gone)]
        now = {
            "errors": dict(self._fetcher.errors),
            "halts": rows,
            "paused": self._watch.paused,
        }
        if now == self._noted:
            return None
        self._noted = now
        return now

    def _halted_before(self) -> list[TopicPartition]:
        return [TopicPartition(row[0], row[1]) for row in self._noted["halts"] if row[2]]

    def _note_row(self) -> Any:
        notes = self._notes()
        if notes is None:
            return FLUSH
        return build_row([], memoryview(b""), [], notes)

    def _explained_halts(self) -> dict[TopicPartition, Halt]:
        """The fetcher's halts; lost offsets with the figures that only a second look gives."""
        halts = self._fetcher.halts
        lost = [
            tp
            for tp, halt in halts.items()
            if halt.code == error_name(OFFSET_OUT_OF_RANGE) and tp not in self._halted_before()
        ]
        if lost:
            earliest = self._routes.list_offsets(lost, EARLIEST, read_committed=False)
            latest = self._routes.list_offsets(lost, LATEST, read_committed=False)
            for tp in lost:
                reason = _lost_reason(tp, self._fetcher.position(tp), earliest, latest)
                halts[tp] = Halt(halts[tp].code, reason)
                self._fetcher.halt(tp, halts[tp])
                log.error("flow %s: %s", self.flow.name, reason)
        return halts


def _lost_reason(
    tp: TopicPartition,
    position: int,
    earliest: dict[TopicPartition, int],
    latest: dict[TopicPartition, int],
) -> str:
    start, end = earliest.get(tp, -1), latest.get(tp, -1)
    if position < start:
        return (
            f"source offsets {position} to {start - 1} of {tp} ({start - position} offsets) were "
            "deleted before they were mirrored"
        )
    return (
        f"offset {position} of {tp} is not in the source's log (it holds {start} to {end - 1}): "
        "the topic was truncated or re-created"
    )


def _chunk(plan: SourcePartition, fetch_offset: int, chosen: Any) -> Chunk:
    return Chunk(
        plan.topic,
        plan.partition,
        plan.remote_topic,
        chosen.runs[0][0] if chosen.runs else fetch_offset,
        chosen.next_offset,
        chosen.record_count,
        chosen.timestamp_ms_max,
        0,
        chosen.byte_count,
        chosen.runs[-_RUNS_MAX:] if len(chosen.runs) > 1 else (),
    )


def _empty_chunk(plan: SourcePartition, position: int) -> Chunk:
    return Chunk(plan.topic, plan.partition, plan.remote_topic, position, position, 0, -1, 0, 0)
