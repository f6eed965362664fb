"""Collects what the source end of a slot reports to its sink; the next row carries it."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.read.loss_detection import LossWatch
from sparkmirror.data.read.target_loss import TargetWatch
from sparkmirror.data.rows.notes import (
    GapNote,
    HaltNote,
    LeftNote,
    PartitionHello,
    RetryNote,
    SlotHello,
    SlotNotes,
)
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, ThrottleUse
from sparkmirror.settings import Member
from sparkmirror.wire.fetch.fetcher import Fetcher

__all__ = ["NotesToSink"]

# Reports are written once a second.
_THROTTLES_S = 0.5


class NotesToSink:
    """Collects news from the parts that find it.

    ``tried``: partitions that are retried; ``added``, ``left``, ``released``: as in `SlotNotes`.
    """

    def __init__(
        self, fetcher: Fetcher, watch: ControlWatch, targets: TargetWatch, losses: LossWatch
    ) -> None:
        self.tried: list[RetryNote] = []
        self.added: list[PartitionHello] = []
        self.left: list[LeftNote] = []
        self.released: tuple[LeftNote, ...] = ()
        self._fetcher = fetcher
        self._watch = watch
        self._targets = targets
        self._losses = losses
        self._errors: dict[str, int] = {}
        self._halts: dict[TopicPartition, Halt] = {}
        self._paused = False
        self._throttles: tuple[ThrottleUse, ...] = ()
        self._throttles_at = -math.inf

    def begin(self, hello: SlotHello, member: Member | None) -> SlotNotes:
        """The notes of the first row."""
        self._paused = self._watch.paused
        notes = self.take() or SlotNotes()
        return replace(notes, hello=hello, member=member, paused=self._paused)

    def take(self) -> SlotNotes | None:
        """What is new since the last call, None for nothing.

        It has new gaps and attempts, and in full all halts, error counts, whether the flow is
        paused, and at times what the limits have done.
        """
        gaps = [
            GapNote(one.gap, one.mark, one.target, one.target_end)
            for one in self._targets.take_gaps()
        ]
        gaps += [GapNote(gap, mark) for gap, mark in self._losses.take_gaps()]
        tried, self.tried = self.tried, []
        added, self.added = self.added, []
        left, self.left = self.left, []
        released, self.released = self.released, ()
        errors, halts, paused = self._fetcher.errors, self._fetcher.halts, self._watch.paused
        # Kept if they are equal, too: then the next row need not compare each of them.
        before, self._halts = self._halts, halts
        changed = errors != self._errors or paused != self._paused
        changed = changed or (halts is not before and halts != before)
        throttles = self._new_throttles()
        news = gaps or tried or added or left or released
        if not (changed or news) and throttles is None:
            return None
        gone = before.keys() - halts.keys()
        self._errors, self._paused = dict(errors), paused
        return SlotNotes(
            paused=paused,
            errors=self._errors,
            halts=(
                *(HaltNote(tp, halts[tp]) for tp in sorted(halts)),
                *(HaltNote(tp, None) for tp in sorted(gone)),
            ),
            gaps=tuple(gaps),
            tried=tuple(tried),
            throttles=throttles,
            added=tuple(added),
            left=tuple(left),
            released=released,
        )

    def _new_throttles(self) -> tuple[ThrottleUse, ...] | None:
        """What the limits have done, if that has changed; at most twice a second."""
        throttle = self._fetcher.throttle
        uses = () if throttle is None else throttle.uses()
        now = time.monotonic()
        if uses == self._throttles or now - self._throttles_at < _THROTTLES_S:
            return None
        self._throttles, self._throttles_at = uses, now
        return uses
