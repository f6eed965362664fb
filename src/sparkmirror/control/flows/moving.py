"""Moves partitions between slots while an epoch runs (`internal_topics.epochs.shares`).

One order at a time: the next one waits until the slots report all partitions where this one has
sent them. Where an order is impossible, or is not carried out in time, a new epoch begins, which
moves them, too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sparkmirror.control.flows.publication import Publication
from sparkmirror.internal_topics.deals.dealing import Move
from sparkmirror.internal_topics.epochs.releases import Release
from sparkmirror.model import TopicPartition
from sparkmirror.progress import SlotProgress

log = logging.getLogger(__name__)

# A release takes as long as the slowest batch in flight, then a commit.
_RELEASE_S = 30.0
_BEGIN_S = 60.0
# An assignment may be large: releases that arrive together are published together.
_TOGETHER_S = 0.5
_WAIT_S = 0.5
_FAILURE_PAUSE_S = 5.0
# Version and base of an order of which nobody knows whether it was written.
_UNSURE = (0, -2)


@dataclass(slots=True)
class _Order:
    """``moves`` that were ordered as ``version`` of an assignment, after ``base``.

    ``epoch``: the one that the slots had reported. A later one may begin just then. If it was
    planned before the order, its slots release as well; if after it, partitions begin where the
    order sends them: those are ``later``, as their new slots report last. ``given``: partitions
    that have the new slot; ``changed_s``: when that changed last. ``begun``: those that it has
    reported.
    """

    moves: Mapping[TopicPartition, Move]
    version: int
    base: int
    epoch: int
    changed_s: float
    given: set[TopicPartition] = field(default_factory=set)
    begun: set[TopicPartition] = field(default_factory=set)
    later: set[TopicPartition] = field(default_factory=set)


class Moving:
    """The moves of one run of a flow. Any thread may call `take`, `observe` and `pends`.

    `order` and `step` may raise `MirrorError`. ``ticks_s``: monotonic seconds.
    """

    def __init__(self, flow: str, published: Publication, ticks_s: Callable[[], float]) -> None:
        self._flow = flow
        self._published = published
        self._ticks_s = ticks_s
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._order: _Order | None = None
        self._told: dict[TopicPartition, Release] = {}

    def order(self, moves: Iterable[Move], epoch: int) -> None:
        """Have partitions moved, in this epoch if that is possible; none may be under way."""
        by_partition = {one.tp: one for one in moves}
        # Slots may carry out an order whose writing failed. `step` begins a new epoch for it.
        ordered: tuple[int, int] | None = _UNSURE
        try:
            ordered = self._published.move({tp: one.after for tp, one in by_partition.items()})
        finally:
            if ordered is not None:
                with self._lock:
                    self._order = _Order(by_partition, *ordered, epoch, self._ticks_s())
                self._woken.set()
        if ordered is None:
            self._published.replan()

    def take(self, releases: Iterable[Release]) -> None:
        """Take what slots report."""
        with self._lock:
            for release in releases:
                for tp in release.partitions:
                    known = self._told.get(tp)
                    if known is None or known.epoch <= release.epoch:
                        self._told[tp] = release
        self._woken.set()

    def observe(self, reports: Iterable[SlotProgress]) -> None:
        """Take new reports of the run's slots."""
        with self._lock:
            order = self._order
            if order is None:
                return
            for report in reports:
                rows = {TopicPartition(one.topic, one.partition) for one in report.partitions}
                sent = {tp for tp, one in order.moves.items() if one.after == report.slot}
                order.begun |= sent & rows & order.given
                if report.complete:
                    order.later -= sent
                if report.epoch > order.epoch:
                    order.later |= sent & rows

    def wait(self, failed: bool) -> None:
        """Wait until there may be something to do."""
        if failed:
            self._woken.clear()
        self._woken.wait(_FAILURE_PAUSE_S if failed else _WAIT_S)
        self._woken.clear()

    def step(self) -> None:
        """Give released partitions to their new slots; begin a new epoch if that takes too long."""
        with self._lock:
            order, told = self._order, dict(self._told)
        if order is None:
            return
        published, now_s = self._published, self._ticks_s()
        if published.unsure:
            published.replan()  # the writing of a later version failed
        if published.base != order.base:
            self._finish(order)
            return
        wanted = order.moves.keys() & published.assignment().sources
        released = {tp for tp in wanted - order.given if _valid(told.get(tp), order, tp)}
        together = now_s - order.changed_s >= _TOGETHER_S
        if released and (together or wanted == released | order.given):
            if not published.release(sorted(released), order.base):
                return
            order.given |= released
            order.changed_s = now_s
            log.info("flow %s: %d partitions go to their new slots", self._flow, len(released))
        limit_s = _BEGIN_S if wanted <= order.given else _RELEASE_S
        if now_s - order.changed_s < limit_s or wanted <= order.begun:
            return
        missing = wanted - order.begun - order.later
        if missing:
            log.warning(
                "flow %s: a new epoch begins, because %d partitions do not move within this one",
                *(self._flow, len(missing)),
            )
            published.replan()
        self._finish(order)

    def pends(self, home: Mapping[TopicPartition, int]) -> bool:
        """Whether an order is under way; ``home``: where the slots report partitions."""
        with self._lock:
            order = self._order
        if order is None:
            return False
        wanted = order.moves.keys() & self._published.assignment().sources
        there = all(home.get(tp) == order.moves[tp].after for tp in wanted)
        if wanted <= order.given and there:
            self._finish(order)
            return False
        return True

    def _finish(self, order: _Order) -> None:
        with self._lock:
            if self._order is order:
                self._order, self._told = None, {}


def _valid(release: Release | None, order: _Order, tp: TopicPartition) -> bool:
    """Whether ``release`` says that ``tp`` is free, by the slot that was known to have it."""
    if release is None or release.epoch < order.epoch:
        return False
    return (release.version, release.slot) == (order.version, order.moves[tp].before)
