"""Reads the control topic in Spark's workers, without threads."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from sparkmirror.data.coordination.sealed_options import run_key
from sparkmirror.data.coordination.selected import TopicSelection
from sparkmirror.errors import BatchError
from sparkmirror.internal_topics.commands import (
    COMMAND_PARTITION,
    PROGRESS_PARTITION,
    AssignmentCollector,
    AssignmentDocument,
    Command,
    CommandKind,
    channel,
    control_topic,
    decode_command,
    decode_halted,
)
from sparkmirror.internal_topics.deals.record import DealRecord, decode_deal, flow_of
from sparkmirror.internal_topics.epochs.record import EpochRecord, decode_epoch
from sparkmirror.internal_topics.flow_claims import Claim, claim_signer, decode_claim, is_believed
from sparkmirror.internal_topics.routed_topics import RoutedTopics, decode_routed
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.internal_topics.throttles import Limits, decode_limits
from sparkmirror.model import TopicPartition
from sparkmirror.offset_reset import EARLIEST, LATEST
from sparkmirror.progress import PartitionProgress
from sparkmirror.records.header import base_offset, split
from sparkmirror.records.records import RECORD_COST_BYTES, decode_records
from sparkmirror.records.selection import Selection as Selected
from sparkmirror.records.selection import SelectRules
from sparkmirror.records.selection import select as select_records
from sparkmirror.records.walk import behind_first
from sparkmirror.settings import FetchSettings, FlowSettings
from sparkmirror.ticks import ticks_s
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import OFFSET_OUT_OF_RANGE, error_name
from sparkmirror.wire.fetch.fetcher import FetchedPartition, Fetcher
from sparkmirror.wire.net.connection import Connection
from sparkmirror.wire.net.poller import Poller

__all__ = ["ControlWatch"]

log = logging.getLogger(__name__)

# Signals are small: a batch that decompresses to more is not one.
_UNPACKED_BYTES_MAX = 64 << 20
_RESPONSE_MS_MIN = 1_000
_WAIT_MS = 500
_RULES = SelectRules(
    read_committed=False, join_below_bytes=0, decompressed_bytes_max=_UNPACKED_BYTES_MAX
)


class ControlWatch:
    """Follows one flow's commands, assignment and (for a slot) perhaps its sink's reports.

    ``slot`` is None in the planner, which reads commands from the beginning. A slot reads from
    ``offset`` on; ``paused`` says whether the flow was paused there. With `follow_reports` it also
    reads which of its partitions the sink of its own attempt (``attempt_id``) has given up. That is
    for a slot whose sink cannot say so in the memory that both share: all slots' reports are in one
    partition, so the traffic grows with the square of their number. With ``run_id``,
    assignments of other runs are ignored. ``poller`` waits for its connections. ``claim_term``: the
    term of the run's own claim, if known. ``limits``: those of the run before ``offset``.
    """

    def __init__(
        self,
        flow: FlowSettings,
        run_id: str = "",
        *,
        slot: int | None = None,
        attempt_id: int = 0,
        offset: int | None = None,
        paused: bool = False,
        poller: Poller[Connection] | None = None,
        claim_term: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self.flow = flow
        self.limits = limits
        self._channel = channel(flow, run_id)
        self.slot = slot
        self._attempt = (run_id, attempt_id)
        self.paused = paused
        self.run_id = run_id
        self.claim: Claim | None = None
        self.command: Command | None = None
        self.routed: RoutedTopics | None = None
        self.deal: DealRecord | None = None
        self.epoch: EpochRecord | None = None
        self.assignment: AssignmentDocument | None = None
        self.responded_s = ticks_s()
        """When the leader of the command partition last responded, by `ticks_s`."""
        self._stopped: dict[bytes | None, tuple[PartitionProgress, ...]] = {}
        self._reports_from = -1
        topic = control_topic(flow)
        self._commands = TopicPartition(topic, COMMAND_PARTITION)
        self._progress = TopicPartition(topic, PROGRESS_PARTITION)
        self._signer = Signer(run_key()) if flow.signed else None
        self._collector = AssignmentCollector(self._channel, self._signer)
        self._claim_signer = claim_signer(flow)
        self._claim_term = claim_term
        self._refused_reported = self._claim_reported = False
        self._selection = TopicSelection(flow)
        client = flow.target
        if slot is not None:
            # Leave a leader that hangs in time: without its responses, the slot stops fetching.
            patience_ms = max(_RESPONSE_MS_MIN, flow.session_ms // 4)
            client = replace(client, request_timeout_ms=min(client.request_timeout_ms, patience_ms))
        self.connections = ClusterConnections(client, [topic])
        self.fetcher = Fetcher(self.connections, FetchSettings(), poller=poller)
        self.waits_for_more = slot is not None
        self._start_offset = offset
        self._started = False

    @property
    def waits_for_more(self) -> bool:
        """Whether fetches are long polls: without news, the target waits up to half a second."""
        return self.fetcher.settings.fetch_max_wait_ms > 0

    @waits_for_more.setter
    def waits_for_more(self, waits: bool) -> None:
        self.fetcher.wait_at_most(_WAIT_MS if waits else 0)

    @property
    def stopped(self) -> dict[TopicPartition, PartitionProgress]:
        """What the sink has given up, as its reports say that were read."""
        rows = (one for rows in self._stopped.values() for one in rows)
        return {TopicPartition(one.topic, one.partition): one for one in rows}

    def follow_reports(self, follows: bool) -> None:
        """Read reports, from the end that the topic had at `start`, or stop to read them."""
        if not follows:
            self.fetcher.unassign(self._progress)
        elif not self.fetcher.assigned(self._progress):
            self.fetcher.assign(self._progress, self._reports_from)

    @property
    def offset(self) -> int:
        """Next offset of the command partition that was not read yet."""
        return self.fetcher.position(self._commands)

    def start(self, timeout_s: float = 30.0) -> None:
        """Find the offsets to start at. Raises TimeoutError if the target gives none."""
        deadline = time.monotonic() + timeout_s
        while not self._started:
            self.connections.refresh_if_due()
            if self._try_start():
                self._started = True
            elif time.monotonic() > deadline:
                raise TimeoutError(
                    f"cluster {self.flow.target.alias}: the control topic {self._commands.topic} "
                    "cannot be read"
                )
            else:
                self.connections.mark_stale()
                time.sleep(0.1)

    def _try_start(self) -> bool:
        if self._start_offset is None:
            found = self.connections.list_offsets([self._commands], EARLIEST, read_committed=False)
            if self._commands not in found:
                return False
            self._start_offset = found[self._commands]
        if self.slot is not None:
            found = self.connections.list_offsets([self._progress], LATEST, read_committed=False)
            if self._progress not in found:
                return False
            self._reports_from = found[self._progress]
        self.fetcher.assign(self._commands, self._start_offset)
        return True

    @property
    def truncated(self) -> bool:
        """Whether the log no longer has `offset`: it was cut off, or the topic is another one.

        That happens after an unclean election, and after the topic was deleted and created again.
        """
        halt = self.fetcher.halts.get(self._commands)
        return halt is not None and halt.code == error_name(OFFSET_OUT_OF_RANGE)

    def _read_again(self) -> bool:
        """Read the log that is there now from its beginning. False: the target does not say it."""
        found = self.connections.list_offsets([self._commands], EARLIEST, read_committed=False)
        if self._commands not in found:
            self.connections.mark_stale()
            self.connections.refresh_if_due()
            return False
        log.warning(
            "flow %s: %s was cut off before offset %d; it is read again from %d on",
            *(self.flow.name, self._commands, self.offset, found[self._commands]),
        )
        self.fetcher.assign(self._commands, found[self._commands])
        return True

    def catch_up(self, timeout_s: float = 30.0) -> None:
        """Read commands up to their current end. Raises TimeoutError; if denied, at once.

        A log that was `truncated` is read again, from its beginning.
        """
        self.start(timeout_s)
        deadline = time.monotonic() + timeout_s
        caught_up = False
        while not caught_up:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"cluster {self.flow.target.alias}: the control topic {self._commands.topic} "
                    "cannot be read"
                )
            self.fetcher.send()
            halt = self.fetcher.halts.get(self._commands)
            if self.truncated:
                if not self._read_again():
                    time.sleep(0.1)
                continue
            if halt is not None:
                raise TimeoutError(f"cluster {self.flow.target.alias}: {halt.reason}")
            if not self.fetcher.waiting:
                time.sleep(0.05)
                continue
            for connection in self.fetcher.ready(1.0):
                for part in self.fetcher.receive(connection):
                    self._take(part)
                    caught_up = part.high_watermark <= self.offset

    def read_to_end(self) -> bool:
        """Read the commands that are there now; False if the target did not return all of them."""
        ends = self.connections.list_offsets([self._commands], LATEST, read_committed=False)
        end = ends.get(self._commands)
        if end is None:
            self.connections.mark_stale()
            self.connections.refresh_if_due()
            return False
        # It was cut off, perhaps just before a fetch, or a new leader does not know its end yet.
        if end < self.offset or self.truncated:
            self._read_again()
            return False
        deadline = time.monotonic() + self.flow.target.request_timeout_ms / 1000
        while self.offset < end and time.monotonic() < deadline:
            self.fetcher.send()
            if not self.fetcher.waiting:
                time.sleep(0.05)
                continue
            for connection in self.fetcher.ready(1.0):
                self.receive(connection)
        return self.offset >= end

    def receive(self, connection: Connection) -> None:
        """Process what has arrived on one of the fetcher's connections."""
        for part in self.fetcher.receive(connection):
            self._take(part)

    def _take(self, part: FetchedPartition) -> None:
        if part.tp == self._commands:
            self.responded_s = ticks_s()
        try:
            chosen = select_records(part.records, part.fetch_offset, (), _RULES)
        except BatchError as error:
            # As in `_apply_all`. The next request asks for what follows the damage.
            log.warning("%s: records that cannot be read are skipped: %s", part.tp, error)
            behind = behind_first(part.records, part.fetch_offset, part.high_watermark)
            self.fetcher.advance(part.tp, behind)
            return
        if chosen.cut_bytes_needed:
            self.fetcher.need_bytes(part.tp, chosen.cut_bytes_needed)
            return
        self.fetcher.advance(part.tp, self._apply_all(part.tp, chosen))

    def _apply_all(self, tp: TopicPartition, chosen: Selected) -> int:
        """Process the records of ``chosen``, within the limit; returns the offset to continue at.

        The limit is on their decompressed size.
        """
        taken = 0
        for content in chosen.pieces:
            piece = memoryview(content)
            for start, end in split(piece):
                batch = piece[start:end]
                if taken > _UNPACKED_BYTES_MAX:
                    return base_offset(batch)  # the rest comes with the next response
                try:
                    for record in decode_records(batch, _UNPACKED_BYTES_MAX):
                        taken += RECORD_COST_BYTES + len(record.key or b"")
                        taken += len(record.value or b"")
                        self._apply(tp, record.key, record.value)
                except BatchError as error:
                    # Otherwise, anybody who may write to the topic could stop the mirror.
                    log.warning("%s: records that cannot be read are skipped: %s", tp, error)
                    taken += len(batch) * 16
        return chosen.next_offset

    def _apply(self, tp: TopicPartition, key: bytes | None, value: bytes | None) -> None:
        if tp == self._progress:
            halted = None
            if self.slot is not None:
                halted = decode_halted(self._channel, self.slot, self._attempt, key, value)
            if halted is not None:
                self._stopped[key] = halted
            return
        document = self._collector.feed(key, value)
        self._report_refused()
        if document is not None:
            known = self.assignment
            again = known is not None and known.run_id == document.run_id
            if again and known is not None and document.version < known.version:
                return  # an old assignment that was written again: the driver's versions only grow
            if self.run_id in ("", document.run_id):
                kept = self._selection.keep(document.partitions)
                self.assignment = replace(document, partitions=kept)
                if document.run_id == self.run_id:
                    self._claim_term = max(self._claim_term, document.claim_term)
                    self._hold(self.claim)
            return
        claim = decode_claim(key, value)
        if claim is not None:
            if claim.flow == self.flow.name:
                self._apply_claim(claim, key, value)
            return
        if flow_of(key) == self._channel:
            if self.slot is None:  # a slot has its plan
                deal = decode_deal(self._channel, key, value, self._signer)
                ours = deal is not None and deal.run_id == self.run_id
                self.deal = deal if ours else self.deal
            return
        limits = decode_limits(self._channel, key, value, self._signer)
        if limits is not None:
            if limits.run_id == self.run_id:
                self.limits = limits
            return
        epoch = decode_epoch(self._channel, key, value, self._signer)
        if epoch is not None:
            if epoch.run_id == self.run_id:
                self.epoch = epoch.newest(self.epoch)
            return
        routed = decode_routed(self._channel, key, value, self._signer)
        if routed is not None:
            if routed.run_id == self.run_id:
                self.routed = routed
            return
        command = decode_command(key, value)
        # A pause is for all processes of a MirrorMaker 1 group, everything else for one run.
        if command is None or command.flow not in (self._channel, self.flow.name):
            return
        if command.kind.pauses:
            self.paused = command.kind is CommandKind.PAUSE
        elif command.flow == self._channel:
            self.command = command

    def _apply_claim(self, claim: Claim, key: bytes | None, value: bytes | None) -> None:
        if self._claim_signer is None:
            self.claim = claim
        elif is_believed(key, value, self._claim_signer):
            if self.claim is None or claim.term >= self.claim.term:
                self._hold(claim)
        elif not self._claim_reported:
            self._claim_reported = True
            log.warning(
                "flow %s: a claim in the control topic (run %r, host %r) is not signed with"
                " sparkmirror.control.secret: it is ignored. If it is from a mirror of yours, stop"
                " that mirror and give it the secret; otherwise check who may write to %s",
                *(self.flow.name, claim.run_id, claim.host, self._commands.topic),
            )

    def _hold(self, claim: Claim | None) -> None:
        """Keep ``claim`` as the newest, unless it is an earlier run's, written again."""
        again = claim is not None and claim.run_id != self.run_id and claim.term < self._claim_term
        self.claim = None if again else claim

    def _report_refused(self) -> None:
        """Log an assignment that claims to be our driver's but is signed with another key."""
        if self._refused_reported or not self.run_id or self._collector.refused != self.run_id:
            return
        self._refused_reported = True
        log.warning(
            "flow %s: an assignment in the control topic names this run (%s) and is not signed by"
            " it: it is ignored. Check who may write to %s",
            *(self.flow.name, self.run_id, self._commands.topic),
        )

    def close(self) -> None:
        """Close the connections."""
        self.connections.close()
