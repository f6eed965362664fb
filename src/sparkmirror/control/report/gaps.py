"""Reads gap records, and reports new ones while a mirror runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from sparkmirror.control.topics.compacted import TopicFollower
from sparkmirror.errors import Denied
from sparkmirror.internal_topics.gaps import (
    GAP_CODES,
    Gap,
    collect_gaps,
    decode_gap,
    gaps_topic,
)
from sparkmirror.progress import SlotProgress
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster

__all__ = ["LOOK_PAUSE_S", "GapReporter", "gap_line", "is_there", "read_gaps"]

# Slots count a gap before its record is acknowledged, so the topic is read several times.
_LOOKS = 3
LOOK_PAUSE_S = 1.0
"""Seconds between two looks at the topic."""
_SHOWN_MAX = 10
# A gap that is found again has a new record. Gaps are kept for good, so the memory has a limit.
_REMEMBERED_MAX = 10_000


def read_gaps(target: Cluster, flow: FlowSettings) -> list[Gap]:
    """All gap records of ``flow``, oldest first; empty if the mirror has never run.

    Raises `MirrorError` if the target does not respond, `Denied` if the topic may not be read.
    """
    topic = gaps_topic(flow)
    if not is_there(target, topic):
        return []
    records = ((key, value) for _, key, value in target.read_compacted(topic))
    return [gap for gap in collect_gaps(records) if gap.flow == flow.name]


def is_there(target: Cluster, topic: str) -> bool:
    """Whether the internal topic exists. Raises `MirrorError`, `Denied` without Describe on it."""
    if topic in target.topics([topic]):
        return True
    # Without Describe, a topic looks as if it did not exist.
    for reason in target.literal_errors([topic], operation="Read").values():
        if isinstance(reason, Denied):
            raise reason
    return False


def gap_line(gap: Gap) -> str:
    """One line for people: flow, code, reason, and what was done."""
    done = f"{gap.action}" + ("" if gap.resumed_at is None else f" at offset {gap.resumed_at}")
    return f"{gap.flow}: {gap.code}: {gap.reason} ({done})"


class GapReporter:
    """Reports each gap record that is written while a mirror runs, once. For any threads.

    ``notify`` takes a line per gap, ``note`` the gap itself. Gaps before ``since_ms`` (epoch ms)
    are not reported. Of many new gaps the first ten are reported, and the number of the others.
    """

    def __init__(
        self,
        target: Cluster,
        flow: FlowSettings,
        notify: Callable[[str], None],
        *,
        since_ms: int,
        note: Callable[[Gap], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._flow = flow
        self._notify = notify
        self._note = note
        self.since_ms = since_ms
        """Gap records from before are those of whoever had the flow then."""
        self._clock = clock
        self._counted: dict[tuple[int, str], int] = {}
        self._looks = 0
        self._looked_at = float("-inf")
        # Only what is new is read: the topic keeps every gap there ever was.
        self._follower = TopicFollower(target, gaps_topic(flow))
        self._found: list[tuple[str, Gap]] = []
        self._reported: dict[str, None] = {}
        self._lock = threading.Lock()
        self._counting = threading.Lock()  # never held while the topic is read

    def count(self, reports: Iterable[SlotProgress]) -> None:
        """Note how many gaps slots have counted. Reads nothing."""
        for report in reports:
            count = sum(report.errors.get(code, 0) for code in GAP_CODES)
            key = (report.slot, report.worker)
            if count != self._counted.get(key, 0):
                with self._counting:
                    self._counted[key], self._looks = count, _LOOKS

    def step(self) -> None:
        """Read the topic if slots have counted new gaps. Raises `MirrorError`."""
        if not self._looks or self._clock() - self._looked_at < LOOK_PAUSE_S:
            return
        self._looked_at = self._clock()
        self._look()
        with self._counting:
            self._looks = max(0, self._looks - 1)

    def report_last(self) -> None:
        """Read the topic once more if gaps were counted recently; for the end of a run.

        Any thread may call it. Raises `MirrorError`.
        """
        if self._looks:
            self._look()

    def _look(self) -> None:
        with self._lock:
            if not self._follower.begun:
                topic = self._follower.topic
                if topic not in self._target.topics([topic]):
                    return
            for _, value in self._follower.read():
                self._take(decode_gap(value))
        self._tell()

    def _tell(self) -> None:
        with self._lock:  # a read that failed has left what it found
            new, self._found = self._found, []
        for line, gap in new[:_SHOWN_MAX]:
            self._notify(line)
            self._note(gap)
        if len(new) > _SHOWN_MAX:
            self._notify(f"{self._flow.name}: {len(new) - _SHOWN_MAX} more gap records")

    def _take(self, gap: Gap | None) -> None:
        if gap is None or gap.flow != self._flow.name or gap.time_ms < self.since_ms:
            return
        line = gap_line(gap)
        if line not in self._reported:
            self._found.append((line, gap))
        self._reported[line] = None
        if len(self._reported) > _REMEMBERED_MAX:
            del self._reported[next(iter(self._reported))]
