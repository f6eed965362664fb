"""Which partitions a slot has while its epoch runs, as the newest assignment says. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkmirror.data.coordination.slot_plan import SlotPlan
from sparkmirror.data.rows.notes import LeftNote
from sparkmirror.internal_topics.commands import AssignmentDocument, SourcePartition
from sparkmirror.internal_topics.epochs.shares import Share, share_of
from sparkmirror.model import TopicPartition

__all__ = ["Changes", "SlotShare"]


@dataclass(frozen=True, slots=True)
class Changes:
    """What an assignment changes: ``left`` now, ``begin`` beside the others."""

    left: tuple[LeftNote, ...]
    begin: tuple[SourcePartition, ...]


class SlotShare:
    """The partitions of one attempt of a slot's task, of the epoch in ``plan``."""

    def __init__(self, plan: SlotPlan) -> None:
        self._plan = plan
        self._planned = frozenset(p.source for p in plan.partitions)
        self._followed: AssignmentDocument | None = None
        # Those that it has or begins, each with the version that gave it to the slot.
        self._since = dict.fromkeys(self._planned, 0)
        self._beginning: set[TopicPartition] = set()
        self._left_early: dict[TopicPartition, int] = {}

    def begin(
        self, newest: AssignmentDocument | None
    ) -> tuple[tuple[SourcePartition, ...], tuple[LeftNote, ...]]:
        """The partitions of the plan that the slot still has, and those that it must release.

        ``newest``: what the control topic has. For a slot that has not begun; it may be asked
        again. `follow` then has what the slot has got since the plan.
        """
        share = self._read(newest)
        kept = self._plan.partitions
        released: tuple[LeftNote, ...] = ()
        if share is not None:
            kept = tuple(p for p in kept if share.owned.get(p) == 0)
            released = tuple(LeftNote(tp, at) for tp, at in share.leaving.items())
        self._since = dict.fromkeys((p.source for p in kept), 0)
        return kept, released

    def follow(self, newest: AssignmentDocument | None) -> Changes | None:
        """What has changed with ``newest``; None for nothing."""
        if newest is self._followed:
            return None
        share = self._read(newest)
        if share is None:
            return None
        self._followed = newest
        owned = {p.source: at for p, at in share.owned.items()}
        gone = [tp for tp, at in self._since.items() if owned.get(tp) != at]
        begin = tuple(
            p
            for p in share.owned
            if p.source not in self._since and p.source not in self._beginning
        )
        for tp in gone:
            del self._since[tp]
        left = {tp: share.leaving.get(tp, 0) for tp in gone}
        self._left_early |= {tp: at for tp, at in left.items() if tp in self._beginning}
        self._since |= {p.source: owned[p.source] for p in begin}
        self._beginning |= {p.source for p in begin}
        now = (LeftNote(tp, at) for tp, at in left.items() if tp not in self._left_early)
        return Changes(tuple(now), begin)

    def begun(self, partitions: Iterable[TopicPartition]) -> tuple[LeftNote, ...]:
        """Note that ``partitions`` have begun; returns those that the slot has left meanwhile."""
        begun = set(partitions)
        self._beginning -= begun
        left = {tp: at for tp, at in self._left_early.items() if tp in begun}
        for tp in left:
            del self._left_early[tp]
        return tuple(LeftNote(tp, at) for tp, at in left.items())

    def _read(self, newest: AssignmentDocument | None) -> Share | None:
        """The share; None if ``newest`` changes nothing, or the epoch must end for it."""
        plan = self._plan
        # The partitions of a bounded run are fixed.
        if newest is None or plan.ends is not None or newest.run_id != plan.run_id:
            return None
        if not newest.base <= plan.version < newest.version:
            return None
        return share_of(newest, plan.version, plan.slot, plan.slots, self._planned)
