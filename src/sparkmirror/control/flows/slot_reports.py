"""What a flow's slots report in the control topic, and what others command there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from sparkmirror.control.coordination.control_topic import ControlSignals, ControlTopicReader
from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.mm1.group_share import GroupShare
from sparkmirror.control.report.gaps import GapTeller
from sparkmirror.control.report.history import HaltWatch, History, standing_still
from sparkmirror.errors import MirrorError
from sparkmirror.internal_topics.commands import (
    Command,
    CommandKind,
    Planned,
    channel,
    control_topic,
)
from sparkmirror.internal_topics.history import EventKind
from sparkmirror.model import FlowSettings, SlotProgress
from sparkmirror.wire.admin.cluster import Cluster

log = logging.getLogger(__name__)

_POLL_MS = 500


@dataclass(frozen=True, slots=True)
class _News:
    """What concerns this run: ``slots`` are reports of this flow's, ``progress`` of any flow's."""

    planned: tuple[Planned, ...]
    slots: tuple[SlotProgress, ...]
    progress: tuple[SlotProgress, ...]
    commands: tuple[Command, ...]
    skipped: int


class SlotReports:
    """A job (`control.jobs.Round`). ``drain`` is called when somebody asked this run to drain.

    ``share``: of MirrorMaker 1's group, once there is one. What it leaves behind may be read from
    any thread.
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
        say: Callable[[str], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.share: GroupShare | None = None
        self.paused = False
        """Whether somebody paused the flow."""
        self.gaps = GapTeller(target, settings, say, since_ms=now_ms(), note=history.note_gap)
        self._name = settings.name
        self._run_id = run_id
        self._channel = channel(settings, run_id)
        self._topic = control_topic(settings)
        self._target = target
        self._published = published
        self._history = history
        self._halts = HaltWatch(history)
        self._drain = drain
        self._say = say
        self._now_ms = now_ms
        self._reader: ControlTopicReader | None = None
        self._lock = threading.Lock()
        self._progress: dict[int, SlotProgress] = {}
        self._skipped = 0

    def observe(self) -> ControlSignals:
        """What has come since the last call. Raises `MirrorError`."""
        if self._reader is None:
            # The planner's word may have been said while there was no reader.
            self._reader = ControlTopicReader(
                self._target, self._topic, only_new=self.share is None
            )
        return self._reader.poll(_POLL_MS)

    def plan(self, signals: ControlSignals) -> _News:
        """What of it concerns this run."""
        # Slots of this run name it: other reports are those of another run, or of an old one.
        progress = tuple(r for r in signals.progress if r.run_id == self._run_id)
        commands = [c for c in signals.commands if c.flow in (self._name, self._channel)]
        # Of pauses only the newest: the log may still hold what was asked for long ago.
        pauses = [command for command in commands if command.kind.pauses]
        return _News(
            tuple(
                word
                for word in signals.planned
                if word.flow == self._channel and word.run_id == self._run_id
            ),
            tuple(report for report in progress if report.flow == self._channel),
            progress,
            (*pauses[-1:], *(c for c in commands if not c.kind.pauses)),
            signals.skipped,
        )

    def apply(self, news: _News) -> None:
        """Keep the newest reports, tell of gaps and halts, obey commands. Raises `MirrorError`."""
        with self._lock:
            for word in news.planned:
                if self.share is not None:
                    self.share.hear(word)
            for report in news.slots:
                if report.replaces(self._progress.get(report.slot)):
                    self._progress[report.slot] = replace(report, flow=self._name)
        if news.skipped and not self._skipped:
            self._say(
                f"{self._name}: {self._topic} on {self._target.alias} holds records that are not "
                "the mirror's; they are skipped"
            )
        self._skipped += news.skipped
        self.gaps.look(news.progress)
        halted = self._published.assignment().halted
        self._halts.look(standing_still(halted, self.progress()), self._now_ms())
        for command in news.commands:
            self._obey(command)

    def _obey(self, command: Command) -> None:
        """Take note of what somebody asked for from elsewhere; the slots do it by themselves."""
        if command.kind.pauses:
            paused, before = command.kind is CommandKind.PAUSE, self.paused
            self.paused = paused
            if paused != before:
                self._say(f"{self._name}: {'paused' if paused else 'resumed'}")
                kind = EventKind.PAUSE if paused else EventKind.RESUME
                self._history.note(kind, "an operator asked for it")
        elif command.kind is CommandKind.DRAIN and command.run_id == self._run_id:
            # Again, so that no assignment that was on its way hides it from the slots.
            self._drain()

    def progress(self) -> tuple[SlotProgress, ...]:
        """Newest report of each slot, by slot number."""
        with self._lock:
            return tuple(self._progress[slot] for slot in sorted(self._progress))

    def forget_reader(self) -> None:
        """Drop the reader after a failure; the next look opens a new one."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        try:
            reader.close()
        except MirrorError as error:
            log.debug("%s: closing the reader of the control topic: %s", self._name, error)
