"""Checks whether the target still has what it acknowledged, while one sink writes.

The sink's producer asks before it sends (`TargetEnds.may_send`). If a partition's leader, leader
epoch or topic id changed, or a response casts doubt on its log, the partition waits until its
leader has reported where the log ends (`TargetEnds.check`). So hardly any record is written behind
a loss. Acknowledgements that go back are detected as well (`Lane.goes_back`). Every
`_CHECK_INTERVAL_S`, all partitions are checked, including idle ones and those whose source is in
trouble, but not those that the sink has halted: nothing is written to them. Nor those that a loss
halts (``on.target.loss=fail``): it would be found again and again. Checks have threads of their
own: a broker that hangs must not keep the sink from the others.

A log that is long enough may hold records of others in the place of lost ones. If the leader epoch
of the last check ended before what was acknowledged since, the check therefore compares the last
record there with the source's (`resume_point.filled_by_others`).

A loss is not repaired here. The position records up to where its log is intact, the rest of the
slot is acknowledged and committed, and the task ends (`TargetLost`). Its next attempt repairs
the loss before it begins (`data.read.target_loss`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from sparkmirror.data.coordination.target_judgement import (
    SUSPECTED_S,
    judge_target,
    may_be_others,
    truncated,
)
from sparkmirror.data.read.resume_point import filled_by_others
from sparkmirror.data.write.partition_state import Lane
from sparkmirror.errors import MirrorError
from sparkmirror.internal_topics.gaps import TARGET_LOSS_CODES, GapKind
from sparkmirror.internal_topics.position_metadata import TargetMark
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.log_view import EndView, describe_ends
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.backlog import Backlog

__all__ = ["TargetEnds"]

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 30.0
_CHECK_AGAIN_S = 0.2
# After a comparison that failed: its partition waits for a broker of the source, perhaps for long.
_COMPARE_AGAIN_S = 1.0
_REPORT_AGAIN_S = 60.0
# How long a broker may take to accept a connection for a check, and to respond.
_RESPONSE_MS = 3_000

Log = tuple[str, int]
"""Topic id and leader epoch."""


class TargetEnds:
    """The gate of one sink's producer. ``clock`` returns monotonic seconds."""

    def __init__(self, flow: FlowSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.flow = flow
        self.lost: dict[Lane, str] = {}
        """Lanes that have lost records, and how. Nothing more is sent to their partitions."""
        self._clock = clock
        self._lanes: dict[TopicPartition, Lane] = {}
        self._sure: dict[TopicPartition, Log] = {}
        self._held: set[TopicPartition] = set()
        self._losing: dict[Lane, tuple[GapKind, int, str]] = {}
        self._suspected: dict[TopicPartition, float] = {}
        self._check_at = clock() + _CHECK_INTERVAL_S
        self._not_before = float("-inf")
        self._failed: set[TopicPartition] = set()
        self._report_at = float("-inf")
        self._job: _Check | None = None

    def begin(self, lanes: Iterable[Lane]) -> None:
        """Watch ``lanes`` from now on: those whose target log a position or a check has named.

        May be called again for further lanes.
        """
        for lane in lanes:
            if lane.log != TargetMark():
                self._lanes[lane.target] = lane
                lane.watched = True
                if lane.log.leader_epoch >= 0:
                    self._sure[lane.target] = (lane.log.topic_id, lane.log.leader_epoch)

    def forget(self, lane: Lane) -> None:
        """Watch ``lane`` no more: nothing is written for it any longer."""
        for known in (self._lanes, self._sure, self._suspected):
            known.pop(lane.target, None)
        self._held.discard(lane.target)
        self._losing.pop(lane, None)
        self.lost.pop(lane, None)

    # -- for the producer ----------------------------------------------------------------------

    def may_send(self, connections: ClusterConnections, tp: TopicPartition) -> bool:
        """Whether batches may go to ``tp`` now; if not, it is checked."""
        lane = self._lanes.get(tp)
        if lane is None:
            return True
        if lane in self._losing or lane in self.lost:
            return False
        if self._sure.get(tp) == _log_of(connections, tp):
            return True
        self._held.add(tp)
        return False

    def recheck(self, tp: TopicPartition) -> None:
        """Check ``tp`` before anything more is sent there."""
        self._sure.pop(tp, None)

    # -- checks --------------------------------------------------------------------------------

    def check(self, connections: ClusterConnections) -> None:
        """Check the logs of waiting partitions, and now and then of all that go on.

        Processes what earlier checks have found.

        ``connections``: the producer's.
        """
        job = self._job
        if job is not None:
            alive = job.is_alive()
            for tp in list(job.views):
                self._take(job, connections, tp, job.views.pop(tp))
            if alive:
                return
            self._job, self._failed = None, {*job.failures}
            self._report(job.failures)
        now = self._clock()
        due = now >= self._check_at
        if not (due or self._held) or now < self._not_before:
            return
        self._not_before = now + _CHECK_AGAIN_S
        if due:
            self._check_at = now + _CHECK_INTERVAL_S
        wanted = {
            tp: _wanted(lane)
            for tp, lane in self._lanes.items()
            if (tp in self._held or (due and not _halted(lane)))
            and lane not in self._losing
            and lane not in self.lost
        }
        if not wanted:
            return
        for tp in self._failed & wanted.keys():  # they may take long again: last
            wanted[tp] = wanted.pop(tp)
        self._job = _Check(self.flow, wanted)
        self._job.start()

    def _report(self, failures: Mapping[TopicPartition, str]) -> None:
        """Log now and then why partitions wait, and give their brokers a pause."""
        if not failures:
            return
        now = self._clock()
        self._not_before = now + _COMPARE_AGAIN_S
        if now >= self._report_at:
            self._report_at = now + _REPORT_AGAIN_S
            tp, reason = next(iter(failures.items()))
            log.warning(
                "flow %s: whether records of others stand in %s cannot be seen, retrying (%d "
                "partitions wait for that): %s",
                *(self.flow.name, tp, len(failures), reason),
            )

    def _take(
        self, job: _Check, connections: ClusterConnections, tp: TopicPartition, view: EndView
    ) -> None:
        if tp not in self._lanes:
            return  # it was left meanwhile
        lane, mark, reached = self._lanes[tp], job.wanted[tp].mark, job.wanted[tp].reached
        if lane.halt is not None and mark is not lane.logged_ahead()[0]:
            return  # the record of the gap before that log was given up: it is looked at again
        unsure = any(one.log is mark and one.batches_left for one in lane.queue)
        if unsure and not self.flow.exactly_once:
            # That record may be refused yet: it is looked at again. In a transaction, a refusal
            # takes the records with it, and is noticed only once these are not waiting any more.
            return
        now = TargetMark(job.cluster_id, job.topic_ids.get(tp.topic, ""))
        loss = judge_target(tp, reached, mark, now, view)
        if loss is None and tp in job.filled:
            loss = truncated(tp, view.epoch_end, reached)
        if loss is not None and loss.kind is GapKind.TARGET_TRUNCATED and view.end < 0:
            since = self._suspected.setdefault(tp, self._clock())
            if self._clock() - since < SUSPECTED_S:
                return
        self._suspected.pop(tp, None)
        self._held.discard(tp)
        if loss is not None:
            self.losing(lane, loss.cut, loss.text, loss.kind)
            return
        self._sure[tp] = (now.topic_id, view.leader_epoch)
        if self._sure[tp] != _log_of(connections, tp):
            connections.mark_stale()
        if mark is not lane.log:
            return  # a gap record is in flight, and the mark with it
        further = reached > mark.epoch_offset or view.leader_epoch != mark.leader_epoch
        if further and reached >= 0:
            lane.log = replace(
                mark,
                cluster_id=now.cluster_id,
                topic_id=now.topic_id,
                leader_epoch=view.leader_epoch,
                epoch_offset=reached,
            )

    # -- lost ----------------------------------------------------------------------------------

    def losing(
        self, lane: Lane, cut: int, text: str, kind: GapKind = GapKind.TARGET_TRUNCATED
    ) -> None:
        """``lane`` has lost its records from target offset ``cut`` on: send nothing more."""
        if lane not in self._losing and lane not in self.lost:
            log.error("flow %s: %s", self.flow.name, text)
            self._losing[lane] = (kind, cut, text)

    def note_going_back(self, lane: Lane) -> bool:
        """Whether the target's acknowledgements for ``lane`` go back: then records are lost."""
        if lane.target not in self._lanes:
            return False
        cut = lane.goes_back()
        if cut >= 0:
            self.losing(lane, cut, (
                f"the target acknowledged records of {lane.target} at offset {cut}, after it had "
                f"acknowledged others up to offset {lane.reached - 1}: these are gone"
            ))  # fmt: skip
        return cut >= 0

    def settle(self, backlog: Backlog, *, counts: bool) -> None:
        """Give up partitions that have lost records, once none of their records is in flight.

        One that is halted ends no task for that: what waits for it is given up, and the loss is
        found again when it is tried again. But if it has chunks that were acknowledged behind the
        loss, they would be committed. ``counts``: what was acknowledged since stays there;
        otherwise its transaction is aborted.
        """
        for lane, (kind, cut, text) in list(self._losing.items()):
            if backlog.under_way(lane.target):
                continue
            del self._losing[lane]
            first, end = lane.position, lane.there() if counts else lane.position
            mark, _ = lane.logged_ahead()
            lane.log = replace(
                mark,
                cut=lane.lowest(cut),
                there_first=first if end > first else -1,
                there_end=end if end > first else -1,
            )
            if lane.halt is None or lane.queue:
                self.lost[lane] = text
            elif not backlog.waiting(lane.target):
                continue
            else:
                lane.blocked = (*lane.blocked, lane.target)
            backlog.give_up(lane.target, Halt(TARGET_LOSS_CODES[kind], text, retriable=True))


def _halted(lane: Lane) -> bool:
    """Whether nothing is written to ``lane``, or a loss that was found before has stopped it."""
    source_halt = lane.source_halt
    told = source_halt is not None and source_halt.code in TARGET_LOSS_CODES.values()
    return lane.halt is not None or told


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is checked: the lane's mark, and up to where its log was acknowledged.

    In that log, the records before ``position`` of ``source`` are before ``end``, -1 if unknown.
    The last one of them is the one before ``source_end``, -1 if unknown.
    """

    mark: TargetMark
    reached: int
    source: TopicPartition
    position: int
    end: int
    source_end: int


def _wanted(lane: Lane) -> _Wanted:
    mark, reached = lane.logged_ahead()
    # After a gap in flight, it may be another log.
    end = lane.target_end if mark is lane.log else -1
    return _Wanted(mark, reached, lane.source, lane.position, end, lane.source_end)


class _Check(threading.Thread):
    """One check of the target's logs, in the order of ``wanted``.

    ``views``: the logs that were looked at; another thread may take them out while it runs.
    ``filled``: partitions with others' records in our place. ``failures``: why the records of a
    partition could not be compared.
    """

    def __init__(self, flow: FlowSettings, wanted: Mapping[TopicPartition, _Wanted]) -> None:
        super().__init__(name="target-ends", daemon=True)
        self.flow = flow
        self.wanted = wanted
        self.filled: set[TopicPartition] = set()
        self.failures: dict[TopicPartition, str] = {}
        self.views: dict[TopicPartition, EndView] = {}
        self.cluster_id = ""
        self.topic_ids: dict[str, str] = {}
        client = flow.target
        self._client = replace(
            client,
            request_timeout_ms=min(_RESPONSE_MS, client.request_timeout_ms),
            connect_timeout_ms=min(_RESPONSE_MS, client.connect_timeout_ms),
        )

    def run(self) -> None:
        """Fill in the fields; partitions whose leader does not respond stay missing."""
        connections = ClusterConnections(self._client, {tp.topic for tp in self.wanted})
        try:
            connections.refresh()
            self.cluster_id, self.topic_ids = connections.cluster_id, connections.topic_ids
            epochs = {tp: one.mark.leader_epoch for tp, one in self.wanted.items()}
            views = describe_ends(connections, epochs)
            unsure = {tp: view for tp, view in views.items() if self._unsure(tp, view)}
            self.views = {tp: view for tp, view in views.items() if tp not in unsure}
            for tp in self.wanted:
                if tp in unsure:
                    self._try_to_compare(tp, unsure[tp])
        except (MirrorError, ConnectionLost) as error:
            log.warning("the ends of the target's logs cannot be checked, retrying: %s", error)
        finally:
            connections.close()

    def _unsure(self, tp: TopicPartition, view: EndView) -> bool:
        one = self.wanted[tp]
        now = TargetMark(self.cluster_id, self.topic_ids.get(tp.topic, ""))
        whole = judge_target(tp, one.reached, one.mark, now, view) is None
        return whole and may_be_others(one.end, one.mark, view)

    def _try_to_compare(self, tp: TopicPartition, view: EndView) -> None:
        """Compare; the source's broker of this partition may be away, and those of others not."""
        try:
            self._compare(tp, view)
        except (MirrorError, ConnectionLost) as error:
            self.failures[tp] = str(error)

    def _compare(self, tp: TopicPartition, view: EndView) -> None:
        one = self.wanted[tp]
        if view.high_watermark < one.end:
            return  # consumers cannot read it yet
        where = one.source, tp, one.position, one.end, one.source_end
        if filled_by_others(self.flow, *where):
            self.filled.add(tp)
        self.views[tp] = view


def _log_of(connections: ClusterConnections, tp: TopicPartition) -> Log:
    leader = connections.leaders.get(tp)
    return connections.topic_ids.get(tp.topic, ""), -1 if leader is None else leader.epoch
