"""Source data that disappeared before it was mirrored: detected, reported, never skipped silently.

`judge` decides what happened to one partition, from the position with its mark and the leader's
report about its log; it is pure. `LossWatch` asks the leaders, and keeps for one slot which log
each position is in. The flow chooses what to do about a loss (``on.source.loss``): ``fail`` halts
the partition, ``record-and-continue`` continues at the first offset that can be mirrored. Both
create a `Gap`, whose record the sink writes before the position moves past it.

A missing position is no loss: then ``auto.offset.reset`` says where to begin.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.gaps import LOSS_CODES, Gap, GapAction, GapKind
from sparkmirror.internal_topics.position_metadata import Mark
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import FaultPolicy
from sparkmirror.progress import Halt
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import BROKER_NOT_AVAILABLE, error_name
from sparkmirror.wire.cluster.log_view import LogView, describe_logs

__all__ = ["Finding", "Loss", "LossWatch", "judge"]

log = logging.getLogger(__name__)

# A leader that was elected a moment ago may not know its own high watermark yet.
_SUSPECTED_S = 1.0
# Brokers before 2.2 do not say so. It lasts until the slowest in-sync follower has fetched, at most
# `replica.lag.time.max.ms`: 30 s, where it is not a shorter one.
_UNSETTLED_S = 35.0
# A partition whose leader only returns errors about its log, or nothing, is halted after this time,
# and still retried.
_REFUSED_S_MAX = 30.0
# A longer time in which nobody looked, because the flow was paused, is not the leader's.
_LOOKED_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Loss:
    """What happened to one partition; fields as in `Gap`. ``resume_at``: where it can continue.

    ``doubtful``: whether a leader that was cut off before it was replaced would say the same.
    """

    kind: GapKind
    first: int
    last: int | None
    count: int | None
    resume_at: int
    text: str
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What happens to one partition: it continues at ``offset``, or is halted.

    After a retriable halt, its log is to be checked again. ``log``: as `Fetcher.release` takes it.
    ``log_goes_on``: whether later offsets have the records that they had in the position's log.
    """

    offset: int
    log: tuple[str, int]
    halt: Halt | None = None
    log_goes_on: bool = True


def judge(tp: TopicPartition, position: int, mark: Mark, now: Mark, view: LogView) -> Loss | None:
    """What was lost between ``position`` (with ``mark``) and the log as it is now. Pure.

    None for no loss. ``now``: the current ids of the cluster and the topic. What is unknown on
    either side proves nothing.
    """
    if mark.cluster_id and now.cluster_id and mark.cluster_id != now.cluster_id:
        text = (
            f"another cluster is at the source's addresses (cluster id {now.cluster_id}, it was "
            f"{mark.cluster_id}): offset {position} of {tp} means nothing there"
        )
        return Loss(GapKind.REPLACED, position, None, None, view.start, text)
    if mark.topic_id and now.topic_id and mark.topic_id != now.topic_id:
        text = (
            f"topic {tp.topic} was deleted and recreated on the source (topic id {now.topic_id}, "
            f"it was {mark.topic_id}): the old topic's records from offset {position} of {tp} on "
            "were not mirrored"
        )
        return Loss(GapKind.RECREATED, position, None, None, view.start, text)
    if position < view.start:
        count = view.start - position
        text = (
            f"source offsets {position} to {view.start - 1} of {tp} ({count} offsets) were "
            "deleted before they were mirrored"
        )
        return Loss(GapKind.DELETED, position, view.start - 1, count, view.start, text)
    if view.latest >= 0:
        kind = GapKind.REPLACED if mark.topic_id or now.topic_id else GapKind.RECREATED
        text = (
            f"the source's log of {tp} is another one (its latest leader epoch is {view.latest}, "
            f"it was {mark.leader_epoch}: a backup was restored, or the topic was recreated): "
            f"offset {position} means nothing there"
        )
        return Loss(kind, position, None, None, view.start, text, doubtful=True)
    end = _divergence(position, mark, view)
    if end is None:
        return None
    count = position - end
    text = (
        f"the source's log of {tp} was truncated to offset {end} (unclean leader election, or a "
        f"broker that lost its disk): offsets {end} to {position - 1} ({count} offsets) were "
        "mirrored, but the source has lost them"
    )
    return Loss(GapKind.TRUNCATED, end, position - 1, count, max(end, view.start), text)


def _divergence(position: int, mark: Mark, view: LogView) -> int | None:
    """The first offset that differs from what was mirrored; None if the position is in the log."""
    end = position
    if mark.leader_epoch >= 0 and view.epoch_end >= 0:
        # If the response has a smaller epoch, the leader has no record of our epoch at all.
        end = view.epoch_end
    elif position > view.end:
        end = view.end
    return end if end < position else None


class LossWatch:
    """Watches the source partitions of one slot. ``gaps`` and ``errors`` are for the sink."""

    def __init__(
        self,
        flow: FlowSettings,
        partitions: Iterable[SourcePartition],
        connections: ClusterConnections,
        errors: dict[str, int],
    ) -> None:
        self.flow = flow
        self.marks: dict[TopicPartition, Mark] = {}
        self.gaps: list[tuple[Gap, Mark]] = []
        """Gaps since the last `take_gaps`, each with the mark of the position after it."""
        self.passed: set[TopicPartition] = set()
        """Partitions that continued past a gap: only the sink knows on which side a position is."""
        self._remote = {p.source: p.remote_topic for p in partitions}
        self._connections = connections
        self._errors = errors
        self._policy = FaultPolicy(flow.faults)
        self._suspected: dict[TopicPartition, float] = {}
        # Since when, the newest code, and whether that has halted it.
        self._refused: dict[TopicPartition, tuple[float, int, bool]] = {}
        # Since when nobody has answered, and the end of the last look.
        self._unanswered: dict[TopicPartition, tuple[float, float]] = {}
        self._sound: set[TopicPartition] = set()
        self._left: dict[TopicPartition, set[str]] = {}

    def take_from(self, other: LossWatch) -> None:
        """Watch the partitions of ``other``, too."""
        self.marks |= other.marks
        self.gaps += other.take_gaps()
        self.passed |= other.passed
        self._remote |= other._remote
        self._suspected |= other._suspected
        self._refused |= other._refused
        self._unanswered |= other._unanswered
        self._sound |= other._sound
        self._left |= other._left

    def forget(self, tp: TopicPartition) -> None:
        """Watch ``tp`` no more; gaps that were found are still to be taken."""
        for known in (self.marks, self._suspected, self._refused, self._unanswered, self._left):
            known.pop(tp, None)
        self.passed.discard(tp)
        self._sound.discard(tp)

    def may_resume(self, tp: TopicPartition) -> bool:
        """Whether the log is the position's, and no refused record is left out at the target."""
        return tp in self._sound and self._policy.bad_record(tp.topic) == "pause"

    def mirrored(self, tp: TopicPartition, leader_epoch: int) -> None:
        """Note the leader epoch of the last record before the position of ``tp``."""
        if leader_epoch >= 0 and self.marks[tp].leader_epoch != leader_epoch:
            self.marks[tp] = replace(self.marks[tp], leader_epoch=leader_epoch)

    def moved(self, tp: TopicPartition, leader_epoch: int = -1) -> None:
        """Note that the position of ``tp`` has moved past records that were not read.

        ``leader_epoch``: of the last of them. The known one may have ended long before: the
        position would count as one behind a truncation.
        """
        self.marks[tp] = replace(self.marks.get(tp, Mark()), leader_epoch=leader_epoch)

    def take_gaps(self) -> list[tuple[Gap, Mark]]:
        """Return ``gaps`` and clear them."""
        told, self.gaps = self.gaps, []
        return told

    def examine(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        needed: Mapping[TopicPartition, int] | None = None,
        patience_s: float | None = None,
    ) -> dict[TopicPartition, Finding]:
        """Check the logs of partitions; those that cannot be judged now are missing.

        If errors, or silence, are the reason for long, they are halted. ``needed``: where the first
        record is that the target lacks, if this is not at the position. ``patience_s``: as in
        `ClusterConnections.query_leaders`.
        """
        epochs = {tp: self.marks.get(tp, Mark()).leader_epoch for tp in positions}
        refused: dict[TopicPartition, int] = {}
        began = time.monotonic()
        views = describe_logs(self._connections, epochs, patience_s=patience_s, refused=refused)
        findings = self._note_refused([tp for tp in positions if tp not in views], refused, began)
        for tp, view in views.items():
            self._refused.pop(tp, None)
            self._unanswered.pop(tp, None)
            mark = self.marks.get(tp, Mark())
            now = Mark(
                self._connections.cluster_id,
                self._connections.topic_ids.get(tp.topic, ""),
                mark.leader_epoch,
            )
            if now.topic_id in self._left.get(tp, ()):
                self._connections.mark_stale()  # this broker does not know the new topic yet
                continue
            loss = judge(tp, positions[tp], mark, now, view)
            if loss is not None and loss.kind is GapKind.DELETED:
                lacking = (needed or positions).get(tp, positions[tp])
                loss = judge(tp, lacking, mark, now, view) if lacking < view.start else None
            if loss is not None and self._may_pass(tp, loss, mark, view):
                continue
            self._suspected.pop(tp, None)
            if loss is None:
                self.marks[tp] = now
                self._sound.add(tp)
                findings[tp] = Finding(positions[tp], (now.topic_id, view.leader_epoch))
            else:
                findings[tp] = self._decide(tp, loss, now, view)
        return findings

    def _note_refused(
        self,
        unchecked: Iterable[TopicPartition],
        refused: Mapping[TopicPartition, int],
        began: float,
    ) -> dict[TopicPartition, Finding]:
        """Halts for the partitions in ``unchecked`` that could not be checked for long.

        Their leaders have returned errors, or nothing. ``refused``: the errors now. A look without
        any answer lifts no halt for an error. ``began``: when the look did; silence makes it long.
        """
        now, found = time.monotonic(), {}
        for tp in unchecked:
            if tp in refused:
                self._unanswered.pop(tp, None)
            else:
                since, looked = self._unanswered.get(tp, (began, began))
                since = since if began - looked <= _LOOKED_S_MAX else began
                self._unanswered[tp] = since, now
                if now - since > _REFUSED_S_MAX:
                    reason = f"the log of {tp} is not checked: its leader at the source is silent"
                    halt = Halt(error_name(BROKER_NOT_AVAILABLE), reason, retriable=True)
                    found[tp] = Finding(-1, ("", -1), halt)
            since, code, halted = self._refused.get(tp, (now, 0, False))
            code = refused.get(tp, code)
            if not code:
                continue
            lasted_s = now - since
            halted = lasted_s > _REFUSED_S_MAX and (tp in refused or halted)
            self._refused[tp] = since, code, halted
            if halted:
                name = error_name(code)
                reason = (
                    f"the log of {tp} has not been checkable for {lasted_s:.0f} s: the source "
                    f"returns {name} for its offsets"
                )
                found[tp] = Finding(-1, ("", -1), Halt(name, reason, retriable=True))
        return found

    def _may_pass(self, tp: TopicPartition, loss: Loss, mark: Mark, view: LogView) -> bool:
        """Whether a high watermark or an old leader alone shows the loss, and not for long yet."""
        known = loss.kind is not GapKind.TRUNCATED or (
            mark.leader_epoch >= 0 and view.epoch_end >= 0
        )
        if known and not loss.doubtful:
            return False
        since = self._suspected.setdefault(tp, time.monotonic())
        settled = view.settled and not loss.doubtful
        return time.monotonic() - since < (_SUSPECTED_S if settled else _UNSETTLED_S)

    def _decide(self, tp: TopicPartition, loss: Loss, now: Mark, view: LogView) -> Finding:
        goes_on = self._policy.source_loss(tp.topic) == "record-and-continue"
        code = LOSS_CODES[loss.kind]
        self._errors[code] = self._errors.get(code, 0) + 1
        then = (
            f"; the mirror continues at offset {loss.resume_at}"
            if goes_on
            else "; with on.source.loss=record-and-continue it continues at offset "
            f"{loss.resume_at}"
        )
        gap = Gap(
            flow=self.flow.name,
            source=tp,
            remote_topic=self._remote[tp],
            kind=loss.kind,
            action=GapAction.CONTINUED if goes_on else GapAction.STOPPED,
            first=loss.first,
            last=loss.last,
            count=loss.count,
            resumed_at=loss.resume_at if goes_on else None,
            code=code,
            reason=loss.text,
            time_ms=int(time.time() * 1000),
        )
        log.error("flow %s: %s%s", self.flow.name, loss.text, then)
        if not goes_on:
            self.gaps.append((gap, self.marks.get(tp, Mark())))
            return Finding(-1, ("", -1), Halt(code, loss.text + then))
        if loss.kind is GapKind.RECREATED:
            self._left.setdefault(tp, set()).add(self.marks[tp].topic_id)
            self._left[tp].discard(now.topic_id)
        self.passed.add(tp)
        # The records before the new position are not the ones that were mirrored last.
        self.marks[tp] = replace(now, leader_epoch=-1)
        self.gaps.append((gap, self.marks[tp]))
        return Finding(
            loss.resume_at,
            (now.topic_id, view.leader_epoch),
            log_goes_on=loss.kind is GapKind.DELETED,
        )
