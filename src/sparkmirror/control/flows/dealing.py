"""Deals the partitions of one flow to its slots by load, and publishes the deal to the planner.

The planner follows the newest deal at the start of the next epoch. If partitions move, they do so
within this one (`control.flows.moving`), or it ends at once; at most every five minutes. Nothing is
dealt again before they have moved: a deal begins from where the partitions are, and the slots'
reports say where.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from sparkmirror.control.flows.loads import Loads
from sparkmirror.control.flows.moving import Moving
from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.internal_topics.assignments import ASSIGNMENT_PIECE_BYTES_MAX
from sparkmirror.internal_topics.deals.dealing import Deal, make_deal
from sparkmirror.internal_topics.deals.load import Load
from sparkmirror.internal_topics.deals.record import (
    MOVES_SHOWN_MAX,
    WEIGHT_MAX,
    DealRecord,
    encode_deal,
)
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.dealing import DealFigures
from sparkmirror.progress import SlotLoad, SlotProgress

log = logging.getLogger(__name__)

_INTERVAL_S = 60.0
# Partitions that move pause for a moment, and where they must end the epoch, all do.
_MOVED_INTERVAL_S = 300.0

_Placement = dict[TopicPartition, int]


class Dealing:
    """The deals of one run of a flow. ``begin`` and ``step`` are for one thread at a time.

    Any thread may read the results. ``channel``: see `internal_topics.commands.channel`.
    ``progress``: the newest report of each slot. ``ends``: the source's last end offsets, however
    old. ``leaders``: node ids of leaders, as far as known. ``publish`` writes a deal and may raise
    `MirrorError`.
    A deal counts for epochs that are planned from the next assignment on, because no slot of an
    exactly-once flow may begin with a partition of another one before the writers of the old plan
    are fenced (`data.coordination.fencing`). A deal with moves has ``moving`` publish one.
    """

    def __init__(
        self,
        slots_max: int,
        run_id: str,
        channel: str,
        *,
        published: Publication,
        moving: Moving,
        publish: Callable[[DealRecord], None],
        progress: Callable[[], Sequence[SlotProgress]],
        ends: Callable[[], Mapping[TopicPartition, int]],
        leaders: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, int]],
        notify: Callable[[str], None],
        now_ms: Callable[[], int],
        ticks_s: Callable[[], float],
    ) -> None:
        self._slots_max = slots_max
        self._run_id, self._channel = run_id, channel
        self._published = published
        self._moving = moving
        self._publish = publish
        self._progress = progress
        self._ends = ends
        self._leaders = leaders
        self._notify = notify
        self._now_ms, self._ticks_s = now_ms, ticks_s
        self._loads = Loads()
        self._record: DealRecord | None = None
        self._dealt_epoch = -1
        self._next_s = float("-inf")
        self._moved = 0
        self._too_large = False
        self._lock = threading.Lock()
        self._slots: tuple[SlotLoad, ...] | None = None

    def begin(self, assignment: Assignment) -> None:
        """Publish the first deal of a run: nothing is known but leaders. Raises `MirrorError`."""
        loads = self._of(assignment.sources)
        if loads:
            self._write(make_deal(loads, self._slots_max), loads)

    def step(self) -> None:
        """Measure, and deal again if it is time. Raises `MirrorError`."""
        now_s, sources = self._ticks_s(), self._published.assignment().sources
        count = min(self._slots_max, len(sources))
        # The last report of a slot that no longer exists stays.
        reports = [report for report in self._progress() if report.slot < count]
        self._loads.observe(reports, self._ends(), now_s)
        loads = self._of(sources)
        epoch = max((report.epoch for report in reports), default=-1)
        reports = [report for report in reports if report.epoch == epoch]
        if len(reports) != count or not count:
            return  # an epoch begins, or a slot is not running
        if not all(report.complete for report in reports):
            return  # a part of a report is not read yet: partitions would be missing
        home = {
            TopicPartition(p.topic, p.partition): report.slot
            for report in reports
            for p in report.partitions
        }
        home = {tp: slot for tp, slot in home.items() if tp in loads and slot < count}
        self._note(home, loads, count)
        fixed = self._published.frozen is not None or self._published.draining
        if self._moving.pends(home):
            return
        if fixed or now_s < self._next_s or not self._loads.known(now_s):
            return
        if self._pends(home, epoch):
            if self._record is not None and self._published.version < self._record.version:
                self._published.replan()  # that failed after the deal was written
            return
        record = self._record
        # What no slot has reported yet was added within the epoch; it is dealt later.
        loads = {tp: load for tp, load in loads.items() if tp in home}
        if len(loads) < count:
            return
        deal = make_deal(
            loads,
            self._slots_max,
            home,
            apart_before=record.deal.apart if record is not None else (),
            speeds=self._loads.speeds(count),
            capacity_bytes_s=self._loads.capacity_bytes_s,
        )
        self._next_s = now_s + _INTERVAL_S
        if record is None or deal.slots != record.deal.slots or deal.apart != record.deal.apart:
            if not self._write(deal, loads, self._published.version + 1):
                return
            self._dealt_epoch = epoch
            if deal.moves:
                self._next_s = now_s + _MOVED_INTERVAL_S
                self._moving.order(deal.moves, epoch)

    def _of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Load]:
        tps = list(tps)
        leaders = self._leaders(tps)
        return {tp: self._loads.load(tp, leaders.get(tp, -1)) for tp in tps}

    def _pends(self, home: _Placement, epoch: int) -> bool:
        """Whether the newest deal is still to take effect."""
        if self._record is None or epoch > self._dealt_epoch:
            return False
        dealt = self._record.deal.slot_of()
        return any(dealt.get(tp, slot) != slot for tp, slot in home.items())

    def _write(self, deal: Deal, loads: Mapping[TopicPartition, Load], version: int = 0) -> bool:
        """Publish a deal. False: it has more partitions than a record has room for."""
        number = 1 if self._record is None else self._record.number + 1
        weights = (sum(loads[tp].weight for tp in share) for share in deal.slots)
        moved = len(deal.moves)
        record = DealRecord(
            *(self._channel, self._run_id, number, self._now_ms()),
            replace(deal, moves=deal.moves[:MOVES_SHOWN_MAX]),
            tuple(min(round(weight), WEIGHT_MAX) for weight in weights),
            moved,
            version,
        )
        if len(encode_deal(record)[1]) > ASSIGNMENT_PIECE_BYTES_MAX:
            if not self._too_large:
                log.warning(
                    "flow %s: %d partitions are too many to be dealt by load; they go round",
                    self._channel.partition("#")[0],
                    len(loads),
                )
            self._too_large = True
            return False
        self._publish(record)
        self._record = record
        with self._lock:
            self._moved += moved
        if moved:
            reasons = Counter(move.reason for move in deal.moves).most_common(1)
            partitions = "1 partition gets" if moved == 1 else f"{moved} partitions get"
            name = self._channel.partition("#")[0]
            self._notify(f"{name}: {partitions} another slot: {reasons[0][0]}")
        return True

    def _note(self, home: _Placement, loads: Mapping[TopicPartition, Load], count: int) -> None:
        shares: list[list[Load]] = [[] for _ in range(count)]
        for tp, slot in home.items():
            shares[slot].append(loads[tp])
        apart = self._record.deal.apart if self._record is not None else frozenset()
        speeds = self._loads.speeds(count)
        found = tuple(
            SlotLoad(
                round(sum(load.weight for load in share)),
                round(sum(load.bytes_s for load in share)),
                round(sum(load.backlog_bytes for load in share)),
                tuple(sorted({load.leader for load in share if load.leader >= 0})),
                speeds[slot],
                slot in apart,
            )
            for slot, share in enumerate(shares)
        )
        with self._lock:
            self._slots = found

    def slots(self) -> tuple[SlotLoad, ...] | None:
        """The load of each slot at the last step; None while it is unknown."""
        with self._lock:
            return self._slots

    def figures(self) -> DealFigures:
        """What metrics show."""
        with self._lock:
            return DealFigures(tuple(one.weight for one in self._slots or ()), self._moved)
