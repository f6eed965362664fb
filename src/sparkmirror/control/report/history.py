"""The history of a flow: events that the driver writes, and that ``history`` reads.

Any code in the driver may call `History.note`: it only keeps the event in memory. `History.flush`,
a job of the control loop, writes the events to the control topic.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set

from sparkmirror.control.coordination.place import own_host
from sparkmirror.control.report.gaps import gap_line, is_there, read_gaps
from sparkmirror.errors import Denied
from sparkmirror.internal_topics.commands import PROGRESS_PARTITION, channel, control_topic
from sparkmirror.internal_topics.driver_report import DriverReport, decode_driver_report
from sparkmirror.internal_topics.gaps import LOSS_CODES, TARGET_LOSS_CODES, Gap, GapAction
from sparkmirror.internal_topics.history import (
    KEPT_MAX,
    TEXT_CHARS_MAX,
    Event,
    EventKind,
    decode_event,
    encode_event,
)
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.progress import Halt, SlotProgress
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster

__all__ = ["HaltWatch", "History", "read_history", "standing_still"]

_WAITING_MAX = 300
# A halted partition is retried after at most one minute. It has recovered only once it has been
# mirrored for longer than that.
_WELL_MS = 120_000
_SHOWN_MAX = 20
_LOSSES = frozenset({*LOSS_CODES.values(), *TARGET_LOSS_CODES.values()})


def read_history(target: Cluster, flow: FlowSettings) -> list[Event] | None:
    """All events of ``flow``, oldest first; None if there is no control topic.

    The order is the topic's, because the clocks of the hosts that wrote the events may differ.
    Losses that no driver has noted are added without a run: the driver was killed before it
    checked, or many came at once. Raises `MirrorError` if the target does not respond, `Denied` if
    the control topic may not be read.
    """
    if not is_there(target, control_topic(flow)):
        return None
    found: dict[bytes | None, Event] = {}
    for _, key, value in _records(target, flow):
        event = decode_event(key, value)
        if event is not None and event.flow == flow.name:
            found.pop(key, None)  # so that the newest record of a key comes last
            found[key] = event
        elif value is None:
            found.pop(key, None)
    events = list(found.values())
    if not events:
        return events
    noted = {(event.code, event.text) for event in events}
    since_ms = min(event.time_ms for event in events)
    lost = [_gap_event(gap) for gap in _gaps(target, flow) if gap.time_ms >= since_ms]
    missed = [one for one in lost if one.code in _LOSSES and (one.code, one.text) not in noted]
    return list(heapq.merge(events, missed, key=lambda event: event.time_ms))


def _gaps(target: Cluster, flow: FlowSettings) -> list[Gap]:
    try:
        return read_gaps(target, flow)
    except Denied:
        return []  # who may only read the control topic sees what is there


def _gap_event(gap: Gap) -> Event:
    kind = EventKind.REPAIR if gap.action is GapAction.REPAIRED else EventKind.GAP
    line = gap_line(gap).removeprefix(f"{gap.flow}: {gap.code}: ")
    return Event(gap.flow, gap.time_ms, kind, line[:TEXT_CHARS_MAX], gap.code)


def _records(target: Cluster, flow: FlowSettings) -> list[tuple[int, bytes | None, bytes | None]]:
    topic = control_topic(flow)
    return list(target.read_compacted(topic, partitions=[PROGRESS_PARTITION], passes=True))


class History:
    """The events that one run writes about its flow. Thread-safe."""

    def __init__(
        self,
        target: Cluster,
        flow: FlowSettings,
        run_id: str,
        *,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._target = target
        self._flow = flow
        self._run_id = run_id
        self._now_ms = now_ms
        self._host = own_host()
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self.taken = ""
        """From which owner the run took the flow over, and why; empty if there was none."""
        self._reasons: list[str] = []
        self._waiting: deque[Event] = deque(maxlen=_WAITING_MAX)
        self._number = 0
        self._tidied = False

    def note(self, kind: EventKind, text: str, *, code: str = "") -> None:
        """Add an event with the one-line ``text`` and the current time."""
        self._note(kind, text, code, self._now_ms())

    def note_gap(self, gap: Gap) -> None:
        """Add an event for ``gap``: a repair if the records were mirrored again, else a gap."""
        event = _gap_event(gap)
        self.note(event.kind, event.text, code=event.code)

    def begin(self, release: str, partitions: int, *, once: bool) -> None:
        """Add the event that the run has started."""
        until = ", up to now (--once)" if once else ""
        self.note(EventKind.START, f"sparkmirror {release} with {partitions} partitions{until}")

    def note_reason(self, reason: str) -> None:
        """Note why the run is about to end, in a few words; `end` writes it."""
        with self._lock:
            if reason not in self._reasons:
                self._reasons.append(reason)

    def end(self, *, drained: bool) -> None:
        """Write that the run has ended, and why. Raises `MirrorError`."""
        how = "everything read was written" if drained else "not drained"
        self.note(EventKind.STOP, "; ".join([*self._reasons, how]))
        self.flush()

    def _note(
        self, kind: EventKind, text: str, code: str, time_ms: int, *, first: bool = False
    ) -> None:
        event = Event(self._flow.name, time_ms, kind, text, code, self._run_id, self._host)
        with self._lock:
            # The end of the previous run comes before our start.
            (self._waiting.appendleft if first else self._waiting.append)(event)

    def flush(self) -> None:
        """Write the events since the last call. The first call also deletes the oldest events.

        Raises `MirrorError`; the events are then written at the next call.
        """
        with self._flushing:
            self._flush()

    def _flush(self) -> None:
        if not self._tidied:
            self._tidy()
            self._tidied = True
        with self._lock:
            events = list(self._waiting)
        if not events:
            return
        rows = [encode_event(event, self._number + n) for n, event in enumerate(events)]
        self._write([(key, value) for key, value in rows])
        self._number += len(events)
        with self._lock:
            for event in events:
                if self._waiting and self._waiting[0] is event:
                    self._waiting.popleft()

    def _tidy(self) -> None:
        """Delete the oldest events. Add one for the previous run if it did not report its end.

        How this run took the flow decides what that event says. The clocks of two hosts do not.
        """
        keys: dict[bytes, Event] = {}
        driver: DriverReport | None = None
        mm1 = self._flow.mode is MirrorMode.MM1
        ours = channel(self._flow, self._run_id)
        for _, key, value in _records(self._target, self._flow):
            event, report = decode_event(key, value), decode_driver_report(key, value)
            if report is not None and report.flow == ours and report.run_id != self._run_id:
                driver = report
            if key is not None and event is not None and event.flow == self._flow.name:
                keys.pop(key, None)
                keys[key] = event
            elif key is not None and value is None:
                keys.pop(key, None)
        if self.taken:
            self._note(EventKind.TAKEOVER, self.taken, "", self._now_ms(), first=True)
        elif driver is not None and not driver.ended and not mm1:
            who = f"run {driver.run_id} on {driver.host}"
            text = f"{who} ended without reporting its end: this is its last report"
            self._note(EventKind.LOST, text, "", driver.time_ms, first=True)
        self._write([(key, None) for key in list(keys)[:-KEPT_MAX]])

    def _write(self, rows: list[tuple[bytes, bytes | None]]) -> None:
        if rows:
            records = [(PROGRESS_PARTITION, key, value) for key, value in rows]
            self._target.produce_many(control_topic(self._flow), records)


def standing_still(
    assigned: Mapping[TopicPartition, Halt], reports: Iterable[SlotProgress]
) -> dict[TopicPartition, Halt]:
    """All halted partitions: those in ``assigned``, and those by the newest slot reports.

    ``assigned``: halts of partitions that no slot gets. ``reports``: the newest of each slot, those
    that came last at the end.
    """
    found: dict[TopicPartition, Halt] = {}
    for report in sorted(reports, key=lambda report: report.epoch):
        for p in report.partitions:
            tp = TopicPartition(p.topic, p.partition)
            found.pop(tp, None)
            if p.halt is not None:
                found[tp] = p.halt
    return found | dict(assigned)


class HaltWatch:
    """Adds events for halts: one when a partition halts, one when it has recovered for a while.

    A retry that halts again with the same code adds no event.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._open: dict[TopicPartition, str] = {}
        self._well_since: dict[TopicPartition, int] = {}

    def observe(
        self, halts: Mapping[TopicPartition, Halt], now_ms: int, assigned: Set[TopicPartition]
    ) -> None:
        """Add events for changes. ``halts``: the halted partitions at ``now_ms`` (epoch ms).

        ``assigned``: those that slots have. Of others it is not known whether they work.
        """
        for tp in self._open.keys() - assigned - halts.keys():
            del self._open[tp]
            self._well_since.pop(tp, None)
        new = [tp for tp, halt in sorted(halts.items()) if self._open.get(tp) != halt.code]
        for tp in new[:_SHOWN_MAX]:
            halt = halts[tp]
            self._history.note(EventKind.HALT, f"{tp} stopped: {halt.reason}", code=halt.code)
        if len(new) > _SHOWN_MAX:
            self._history.note(EventKind.HALT, f"{len(new) - _SHOWN_MAX} more partitions stopped")
        self._open |= {tp: halts[tp].code for tp in new}
        for tp in halts:
            self._well_since.pop(tp, None)
        for tp in self._open.keys() - halts.keys():
            self._well_since.setdefault(tp, now_ms)
        well = sorted(tp for tp, at in self._well_since.items() if now_ms - at >= _WELL_MS)
        for tp in well:
            del self._open[tp], self._well_since[tp]
        for tp in well[:_SHOWN_MAX]:
            self._history.note(EventKind.GOES_ON, f"{tp} is mirrored again")
        if len(well) > _SHOWN_MAX:
            text = f"{len(well) - _SHOWN_MAX} more partitions are mirrored again"
            self._history.note(EventKind.GOES_ON, text)
