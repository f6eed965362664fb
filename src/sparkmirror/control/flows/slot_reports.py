"""Reads the control topic: reports of a flow's slots, and commands of other processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sparkmirror.control.coordination.control_topic import ControlSignals, ControlTopicReader
from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.mm1.group_share import GroupShare
from sparkmirror.control.report.gaps import GapReporter
from sparkmirror.control.report.history import HaltWatch, History, standing_still
from sparkmirror.errors import MirrorError
from sparkmirror.internal_topics.commands import (
    Command,
    CommandKind,
    Planned,
    channel,
    control_topic,
)
from sparkmirror.internal_topics.epochs.releases import Release
from sparkmirror.internal_topics.history import EventKind
from sparkmirror.internal_topics.routed_topics import TopicRequest
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.progress import SlotProgress
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster

log = logging.getLogger(__name__)

_POLL_MS = 500


@dataclass(frozen=True, slots=True)
class _NewSignals:
    """The signals that concern this run. ``slots``: reports of this flow, ``progress``: of all."""

    planned: tuple[Planned, ...]
    slots: tuple[SlotProgress, ...]
    progress: tuple[SlotProgress, ...]
    commands: tuple[Command, ...]
    skipped: int
    requests: tuple[TopicRequest, ...] = ()
    releases: tuple[Release, ...] = ()


class SlotReports:
    """A job (`control.jobs.Round`). It calls ``drain`` when this run is commanded to drain.

    ``share``: the share of a MirrorMaker 1 group, once there is one. ``signer`` has signed the
    releases of this run's slots. Any thread may read the results.
    """

    def __init__(
        self,
        settings: FlowSettings,
        run_id: str,
        target: Cluster,
        published: Publication,
        history: History,
        *,
        drain: Callable[[], None],
        notify: Callable[[str], None],
        now_ms: Callable[[], int],
        signer: Signer | None = None,
    ) -> None:
        self.share: GroupShare | None = None
        self.paused = False
        """Whether the flow is paused."""
        self.watchers: list[Callable[[Iterable[SlotProgress]], None]] = []
        """Functions that get new reports of this run's slots."""
        self.asked: list[Callable[[Iterable[TopicRequest]], None]] = []
        """Functions that get new requests of this run's slots."""
        self.released: list[Callable[[Iterable[Release]], None]] = []
        """Functions that get new releases of this run's slots."""
        self.gaps = GapReporter(target, settings, notify, since_ms=now_ms(), note=history.note_gap)
        self._name = settings.name
        self._run_id = run_id
        self._channel = channel(settings, run_id)
        self._topic = control_topic(settings)
        self._target = target
        self._published = published
        self._history = history
        self._halts = HaltWatch(history)
        self._drain = drain
        self._notify = notify
        self._now_ms = now_ms
        self._signer = signer
        self._reader: ControlTopicReader | None = None
        self._lock = threading.Lock()
        self._progress: dict[int, SlotProgress] = {}
        # The newest of each task: what a task counts in its last report is in no other one.
        self._untaken: dict[tuple[int, str, int, int], SlotProgress] = {}
        self._skipped = 0

    def observe(self) -> ControlSignals:
        """Signals since the last call. Raises `MirrorError`."""
        if self._reader is None:
            # In a group, older reports count too: the planner may have written while there was
            # no reader.
            self._reader = ControlTopicReader(
                *(self._target, self._topic), only_new=self.share is None, signer=self._signer
            )
        return self._reader.poll(_POLL_MS)

    def plan(self, signals: ControlSignals) -> _NewSignals:
        """Select the signals that concern this run."""
        # Slots of this run give its id, so a report without it belongs to another run.
        progress = tuple(r for r in signals.progress if r.run_id == self._run_id)
        commands = [c for c in signals.commands if c.flow in (self._name, self._channel)]
        # Only the newest pause or resume: the log may still hold older ones.
        pauses = [command for command in commands if command.kind.pauses]
        return _NewSignals(
            tuple(
                word
                for word in signals.planned
                if word.flow == self._channel and word.run_id == self._run_id
            ),
            tuple(report for report in progress if report.flow == self._channel),
            progress,
            (*pauses[-1:], *(c for c in commands if not c.kind.pauses)),
            signals.skipped,
            tuple(
                request
                for request in signals.requests
                if request.flow == self._channel and request.run_id == self._run_id
            ),
            tuple(
                release
                for release in signals.releases
                if release.flow == self._channel and release.run_id == self._run_id
            ),
        )

    def apply(self, news: _NewSignals) -> None:
        """Keep the newest reports, report halts, apply commands. Raises `MirrorError`."""
        with self._lock:
            for word in news.planned:
                if self.share is not None:
                    self.share.on_planned(word)
            for report in news.slots:
                if report.replaces(self._progress.get(report.slot)):
                    self._progress.pop(report.slot, None)
                    ours = self._progress[report.slot] = replace(report, flow=self._name)
                    task = report.slot, report.worker, report.epoch, report.attempt
                    self._untaken.pop(task, None)
                    self._untaken[task] = ours
        if news.skipped and not self._skipped:
            self._notify(
                f"{self._name}: {self._topic} on {self._target.alias} holds records that are not "
                "the mirror's; they are skipped"
            )
        for watch in self.watchers:
            watch(news.slots)
        if news.requests:
            for take in self.asked:
                take(news.requests)
        if news.releases:
            for take_released in self.released:
                take_released(news.releases)
        self._skipped += news.skipped
        self.gaps.count(news.progress)
        assignment = self._published.assignment()
        halts = standing_still(assignment.halted, self.progress())
        self._halts.observe(halts, self._now_ms(), assignment.sources)
        for command in news.commands:
            self._apply_command(command)

    def _apply_command(self, command: Command) -> None:
        """Note a pause or resume, or drain. The slots read these commands themselves."""
        if command.kind.pauses:
            paused, before = command.kind is CommandKind.PAUSE, self.paused
            self.paused = paused
            if paused != before:
                self._notify(f"{self._name}: {'paused' if paused else 'resumed'}")
                kind = EventKind.PAUSE if paused else EventKind.RESUME
                self._history.note(kind, "an operator asked for it")
        elif command.kind is CommandKind.DRAIN and command.run_id == self._run_id:
            # The drain is written again: an assignment written just after it would hide it
            # from the slots.
            self._drain()

    def progress(self) -> tuple[SlotProgress, ...]:
        """The newest report of each slot, in the order in which they came.

        So of a partition that moved within an epoch, what its present slot says comes last.
        """
        with self._lock:
            return tuple(self._progress.values())

    def take(self) -> tuple[SlotProgress, ...]:
        """The newest report of each task that has reported since the last call, as they came."""
        with self._lock:
            taken, self._untaken = self._untaken, {}
        return tuple(taken.values())

    def forget_reader(self) -> None:
        """Drop the reader after a failure; the next round opens a new one."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        try:
            reader.close()
        except MirrorError as error:
            log.debug("%s: closing the reader of the control topic: %s", self._name, error)
