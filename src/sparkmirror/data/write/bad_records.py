"""Records that the target refuses, if the flow does not pause for them (``on.bad.record``).

The producer leaves them out of their batch and hands them over. This module writes a gap record,
and with ``dead-letter`` also writes them to the dead-letter topic. Their chunk counts these batches
as its own. So a position never passes a record that is neither at the target nor in a gap record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from sparkmirror.data.transform.failed_records import FailedRecords
from sparkmirror.errors import Defect
from sparkmirror.internal_topics.gaps import (
    DEAD_LETTERED,
    SKIPPED,
    Gap,
    GapAction,
    GapKind,
    encode_gap,
    gaps_topic,
)
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import FaultPolicy, FlowTopics, dead_letter_topic
from sparkmirror.records.codecs import NONE
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.error_codes import TOO_LARGE, error_name

__all__ = ["Carrier", "RefusedRecords", "dead_letter"]

log = logging.getLogger(__name__)

# Of one chunk, which may have thousands of such ranges; a gap record names each.
_LOGGED_MAX = 3
_COUNTED = (SKIPPED, DEAD_LETTERED)
# Brokers send no text with this error.
_TOO_LARGE_TEXT = "the record is larger than the topic's max.message.bytes"


@runtime_checkable
class Carrier(Protocol):
    """The chunk that a refused record belongs to."""

    batches_left: int
    first_offset: int
    next_offset: int
    dropped: int

    @property
    def source(self) -> TopicPartition:
        """Its source partition."""

    @property
    def target(self) -> TopicPartition:
        """Its remote partition."""

    def wait_for(self, tp: TopicPartition) -> None:
        """Wait for one more batch, which goes to ``tp``."""

    def at_source(self, records: Sequence[Record]) -> Sequence[Record]:
        """``records`` of one of its batches, with their source offsets."""


Append = Callable[[TopicPartition, memoryview, object], None]


class RefusedRecords:
    """Takes over what the target refuses (`wire.produce.backlog.Refusals`).

    ``append`` queues a batch with the chunk that it belongs to. ``errors`` counts by code.
    """

    def __init__(self, flow: FlowSettings, append: Append, errors: dict[str, int]) -> None:
        self._flow = flow
        self._append = append
        self._errors = errors
        self._policy = FaultPolicy(flow.faults)
        self._names = FlowTopics(flow)
        self._gaps = TopicPartition(gaps_topic(flow), 0)
        self._counted = dict(errors)

    def settled(self) -> None:
        """What was taken so far is final: its records are committed."""
        self._counted = {code: self._errors.get(code, 0) for code in _COUNTED}

    def undone(self) -> None:
        """What was taken since `settled` was aborted with its transaction, and comes again."""
        for code in _COUNTED:
            if code in self._errors:
                self._errors[code] = self._counted.get(code, 0)

    def wanted(self, token: object) -> bool:
        """Whether the flow leaves out refused records of this chunk."""
        carrier = _carrier(token)
        return carrier is not None and self.may_leave_out(carrier.source.topic)

    def may_leave_out(self, topic: str) -> bool:
        """Whether records of source topic ``topic`` may be missing at the target."""
        return self._policy.bad_record(topic) != "pause"

    def take(self, token: object, records: Sequence[Record], code: str, reason: str) -> None:
        """Write a gap record for ``records``; with ``dead-letter`` also write them there."""
        carrier = _carrier(token)
        if carrier is None:
            raise Defect("a batch that no lane carries was refused")
        reason = _said(code, reason)
        why = f"the target refuses these records ({code}): {reason}"
        self._leave_out(carrier, carrier.at_source(records), code, lambda _: reason, lambda _: why)

    def take_failed(self, carrier: Carrier, failed: FailedRecords) -> None:
        """The same for records on which a transform failed."""

        def why(offset: int) -> str:
            detail = failed.details.get(offset)
            first = "" if detail is None else f", the first one: {detail}"
            return f"{failed.reason} ({failed.code}){first}"

        self._leave_out(carrier, failed.records, failed.code, failed.said, why)

    def _leave_out(
        self,
        carrier: Carrier,
        records: Sequence[Record],
        code: str,
        reason: Callable[[int], str],
        why: Callable[[int], str],
    ) -> None:
        """Write gap records, and dead letters.

        ``reason``: of the record at an offset. ``why``: of the gap that begins there.
        """
        source, target = carrier.source, carrier.target
        dead = self._policy.bad_record(source.topic) == "dead-letter"
        now_ms = int(time.time() * 1000)
        counted = DEAD_LETTERED if dead else SKIPPED
        self._errors[counted] = self._errors.get(counted, 0) + len(records)
        if dead:
            letters = TopicPartition(dead_letter_topic(target.topic), 0)
            for record in records:
                told = reason(record.offset)
                letter = dead_letter(record, self._flow.source.alias, source, code, told)
                self._write(carrier, letters, letter)
        action = GapAction.DEAD_LETTER if dead else GapAction.SKIPPED
        runs = _runs(records)
        for number, (first, last) in enumerate(runs):
            count = last - first + 1
            span = first, last, count
            gap = self._write_gap(carrier, action, span, code, why(first), now_ms)
            if number < _LOGGED_MAX:
                log.error(
                    "flow %s: source offsets %d to %d of %s: %s (%s)",
                    *(gap.flow, first, last, source, gap.reason, gap.action.value),
                )
        if len(runs) > _LOGGED_MAX:
            log.error(
                "flow %s: %d more ranges of %s up to source offset %d (%s)",
                *(self._flow.name, len(runs) - _LOGGED_MAX, source, runs[-1][1], action.value),
            )

    def dropped(self, token: object, count: int, code: str, reason: str) -> None:
        """Record how many records of a chunk were given up (``--abort.on.send.failure=false``).

        Records that were assigned by key, or that a handler made, have no source offsets any more:
        the gap names those of the chunk. It is one gap, however many of its batches are dropped.
        """
        carrier = _carrier(token)
        if carrier is None:
            return  # a record of the mirror itself
        carrier.dropped += count
        why = f"records of these offsets were not sent ({code}): {_said(code, reason)}"
        span = (carrier.first_offset, carrier.next_offset - 1, carrier.dropped)
        self._write_gap(carrier, GapAction.SKIPPED, span, code, why, int(time.time() * 1000))

    def _write_gap(
        self,
        carrier: Carrier,
        action: GapAction,
        span: tuple[int, int, int],
        code: str,
        reason: str,
        now_ms: int,
    ) -> Gap:
        """Write a gap record. ``span``: first and last source offset, number of records."""
        first, last, count = span
        gap = Gap(
            flow=self._flow.name,
            source=carrier.source,
            remote_topic=carrier.target.topic,
            kind=GapKind.REFUSED,
            action=action,
            first=first,
            last=last,
            count=count,
            resumed_at=last + 1,
            code=code,
            reason=reason,
            time_ms=now_ms,
        )
        mapped = self._names.mapped(gap.source.topic) is not None
        self._write(carrier, self._gaps, Record(0, now_ms, *encode_gap(gap, mapped=mapped)))
        return gap

    def _write(self, carrier: Carrier, tp: TopicPartition, record: Record) -> None:
        carrier.wait_for(tp)
        self._append(tp, memoryview(encode_batch([record], codec=NONE)), carrier)


def dead_letter(
    record: Record, cluster: str, source: TopicPartition, code: str, reason: str
) -> Record:
    """``record`` with further headers that say where it came from and why it is here."""
    told = {
        "sparkmirror.source.cluster": cluster,
        "sparkmirror.source.topic": source.topic,
        "sparkmirror.source.partition": str(source.partition),
        "sparkmirror.source.offset": str(record.offset),
        "sparkmirror.source.timestamp": str(record.timestamp),
        "sparkmirror.error.code": code,
        "sparkmirror.error.reason": reason,
    }
    added = tuple((name.encode(), text.encode()) for name, text in told.items())
    return Record(0, int(time.time() * 1000), record.key, record.value, (*record.headers, *added))


def _said(code: str, reason: str) -> str:
    """The broker's reason for the refusal, in words."""
    if reason:
        return reason
    too_large = code in map(error_name, TOO_LARGE)
    return _TOO_LARGE_TEXT if too_large else "the broker gives no reason"


def _carrier(token: object) -> Carrier | None:
    """The chunk in a token; None for records of the mirror itself."""
    chunk = token[0] if isinstance(token, tuple) else None
    return chunk if isinstance(chunk, Carrier) else None


def _runs(records: Sequence[Record]) -> list[tuple[int, int]]:
    """First and last offset of each run of consecutive records."""
    runs: list[tuple[int, int]] = []
    for record in records:
        if runs and runs[-1][1] == record.offset - 1:
            runs[-1] = (runs[-1][0], record.offset)
        else:
            runs.append((record.offset, record.offset))
    return runs
