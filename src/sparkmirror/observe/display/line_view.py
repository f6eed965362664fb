"""Progress without a terminal: one line per flow and interval, as text or as JSON.

JSON lines (``--log-format json``) have these stable fields. Unknown values are ``null``; times are
ISO 8601 in UTC:

``type``
    ``phase``, ``warning``, ``event``, ``progress``, ``summary`` or ``error``
``time``, ``run_s``
    when the line was written, and seconds since the start
``level``
    ``info``, ``warning`` or ``error``
``message``
    of ``phase``, ``warning`` and ``event``
``code``, ``flow``, ``cluster``
    of ``phase``, ``warning``, ``event`` and ``error``: the error's stable name, and the flow and
    cluster that it concerns; ``null`` if there is none
``state``, ``source``, ``target``
    of ``progress`` and ``summary``: the flow's state as users read it, and its clusters
``flow``, ``records``, ``bytes``, ``batches``, ``records_per_s``, ``bytes_per_s``, ``lag_records``,
``lag_bytes``, ``lag_s``, ``to_go_s``, ``latency_ms_p50``, ``latency_ms_p99``, ``partitions``,
``partitions_reported``, ``errors``, ``halted``
    of ``progress`` and ``summary``, as in ``FlowView``; ``halted`` is a list of ``topic``,
    ``partition``, ``code``, ``reason``, ``retriable``
``topics``
    of ``summary``: a list of ``topic``, ``partitions``, ``records``, ``bytes``, ``halted``
``what``, ``where``, ``do``
    of ``error`` (written to stderr, see ``cli.shared.errors``)
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol, TextIO

from sparkmirror.model import TopicPartition
from sparkmirror.observe.console import PrintableConsole
from sparkmirror.observe.display.queued_stream import is_full
from sparkmirror.observe.display.streams import discard
from sparkmirror.observe.display.summary import summary_table
from sparkmirror.observe.display.units import (
    clock_text,
    count_text,
    latency_text,
    megabytes_text,
    plural,
    seconds_text,
    size_text,
)
from sparkmirror.observe.figures.meter import FlowView
from sparkmirror.observe.notice import Notice
from sparkmirror.progress import Halt
from sparkmirror.text import printable, printable_json

__all__ = ["Display", "LineDisplay", "flow_document", "flow_line"]

_log = logging.getLogger(__name__)

SUMMARY_WIDTH = 100


class Display(Protocol):
    """The output of a run: the live view or lines. Used from one thread."""

    def phase(self, text: str) -> None:
        """Show what the run is doing now: starting, mirroring, draining."""

    def warning(self, text: str) -> None:
        """Show a warning about the configuration."""

    def notice(self, text: str) -> None:
        """Show an event: a topic was created, a partition was halted."""

    def update(self, views: Sequence[FlowView]) -> None:
        """Show the newest figures; called a few times a second."""

    def summary(self, views: Sequence[FlowView]) -> None:
        """Show the summary at the end of the run."""

    def close(self) -> None:
        """Restore the terminal; idempotent."""


def flow_line(view: FlowView) -> str:
    """One flow as a line of text, without a leading time."""
    parts = [view.flow] if view.state == "mirroring" else [view.flow, view.state]
    parts += [
        f"{count_text(view.records_per_s)} records/s",
        f"{megabytes_text(view.bytes_per_s)} MB/s",
        _lag_text(view),
    ]
    if view.latency_ms_p50 is not None and not view.catching_up:
        low, high = latency_text(view.latency_ms_p50), latency_text(view.latency_ms_p99)
        parts.append(f"latency p50 {low} ms p99 {high} ms")
    parts.append(f"{count_text(view.records)} records in total")
    if view.errors:
        counts = ", ".join(f"{code} {n:,}" for code, n in sorted(view.errors.items()))
        parts.append(f"retried errors: {counts}")
    if view.halted:
        parts.append(f"{plural(len(view.halted), 'partition')} halted")
    return "  ".join(parts)


def _lag_text(view: FlowView) -> str:
    if view.lag_records is None:
        return "lag unknown"
    if view.lag_records == 0:
        return "lag 0"
    size = "" if view.lag_bytes is None else f", {size_text(view.lag_bytes)}"
    behind = "" if view.lag_s is None else f" ({seconds_text(view.lag_s)})"
    to_go = "" if view.to_go_s is None else f", caught up in {seconds_text(view.to_go_s)}"
    return f"lag {count_text(view.lag_records)} records{size}{behind}{to_go}"


def _halt_document(key: TopicPartition, halt: Halt) -> dict[str, object]:
    return {
        "topic": key.topic,
        "partition": key.partition,
        "code": halt.code,
        "reason": halt.reason,
        "retriable": halt.retriable,
    }


def flow_document(view: FlowView, *, topics: bool = False) -> dict[str, object]:
    """One flow as the fields that the module's docstring lists."""
    document: dict[str, object] = {
        "level": "info",
        "flow": view.flow,
        "state": view.state,
        "source": view.source,
        "target": view.target,
        "records": view.records,
        "bytes": view.bytes,
        "batches": view.batches,
        "records_per_s": round(view.records_per_s, 1),
        "bytes_per_s": round(view.bytes_per_s, 1),
        "lag_records": view.lag_records,
        "lag_bytes": view.lag_bytes,
        "lag_s": _rounded(view.lag_s),
        "to_go_s": _rounded(view.to_go_s),
        "latency_ms_p50": _rounded(view.latency_ms_p50),
        "latency_ms_p99": _rounded(view.latency_ms_p99),
        "partitions": view.partitions,
        "partitions_reported": view.partitions_reported,
        "errors": dict(sorted(view.errors.items())),
        "halted": [_halt_document(key, halt) for key, halt in view.halted.items()],
    }
    if topics:
        document["topics"] = [
            {
                "topic": row.topic,
                "partitions": row.partitions,
                "records": row.records,
                "bytes": row.bytes,
                "halted": row.halted,
            }
            for row in view.topics
        ]
    return document


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


class LineDisplay:
    """Writes lines to ``stream``: progress every ``interval_s`` seconds, everything else at once.

    If the reader closes the stream or the disk is full, the lines end, but the mirror continues.
    While a reader is far behind, there is no progress.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        json_lines: bool = False,
        interval_s: float = 5.0,
        ticks_s: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._stream: TextIO | None = stream
        self._json_lines = json_lines
        self._interval_s = interval_s
        self._ticks_s = ticks_s
        self._now_s = now_s
        self._started_s = ticks_s()
        self._next_s = self._started_s
        self._phase = ""

    def phase(self, text: str) -> None:
        """Write the new phase, once."""
        if text != self._phase:
            self._phase = text
            self._message("phase", text)

    def warning(self, text: str) -> None:
        """Write a warning about the configuration."""
        self._message("warning", text)

    def notice(self, text: str) -> None:
        """Write an event."""
        self._message("event", text)

    def update(self, views: Sequence[FlowView]) -> None:
        """Write one line per flow, once per interval, as soon as any slot has reported."""
        now_s = self._ticks_s()
        if now_s < self._next_s or not any(view.partitions_reported for view in views):
            return
        # Add whole intervals, so that slow writes do not shift the schedule.
        missed = (now_s - self._next_s) // self._interval_s
        self._next_s += (missed + 1) * self._interval_s
        if is_full(self._stream):
            return
        for view in views:
            if self._json_lines:
                self._document("progress", flow_document(view))
            else:
                self._text(flow_line(view))

    def summary(self, views: Sequence[FlowView]) -> None:
        """Write the summary: a table, or one JSON line per flow."""
        if self._json_lines:
            for view in views:
                self._document("summary", flow_document(view, topics=True))
            return
        console = PrintableConsole(width=SUMMARY_WIDTH, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(summary_table(views, self._ticks_s() - self._started_s))
        self._write(capture.get())

    def close(self) -> None:
        """Do nothing: every line was flushed."""

    def _message(self, kind: str, text: str) -> None:
        if self._json_lines:
            plain = Notice(text, level="warning" if kind == "warning" else "info")
            notice = text if isinstance(text, Notice) else plain
            self._document(kind, {"message": text, **notice.facts()})
        else:
            self._text(f"warning: {text}" if kind == "warning" else text)

    def _text(self, text: str) -> None:
        self._write(f"{clock_text(self._ticks_s() - self._started_s)} {printable(text)}\n")

    def _document(self, kind: str, fields: Mapping[str, object]) -> None:
        when = datetime.fromtimestamp(self._now_s(), UTC).isoformat(timespec="milliseconds")
        head = {
            "type": kind,
            "time": when.replace("+00:00", "Z"),
            "run_s": round(self._ticks_s() - self._started_s, 3),
        }
        self._write(printable_json(json.dumps({**head, **fields}, ensure_ascii=False)) + "\n")

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            _log.warning("progress lines cannot be written (%s); the mirror continues", error)
            discard(self._stream)
            self._stream = None
