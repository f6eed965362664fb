"""Records that the target had acknowledged and lost: detected, reported, and mirrored again.

`data.coordination.target_judgement` judges whether records are lost. After an election, a high
watermark lags behind for a while. So the end of the leader's own log counts, and if a broker cannot
report it, a high watermark that stays behind.

The flow chooses what happens (``on.target.loss``): ``repair`` goes back to the record after the
last one that the target has (`data.read.resume_point`) and mirrors again what is lost, ``fail``
halts the partition, ``record-and-continue`` continues at the position. All of them create a `Gap`.
If the source has lost some of these records, too, they get a second gap and are skipped.

A topic that is deleted takes its positions with it. Then positions come from Connect's offset
storage (``seeded``), and the exact runs, or a log that never held a record, reveal the loss.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sparkmirror.data.coordination.target_judgement import (
    SUSPECTED_S,
    TargetLoss,
    judge_target,
    may_be_others,
    truncated,
)
from sparkmirror.data.read.loss_detection import LossWatch
from sparkmirror.data.read.resume_point import (
    KnownRuns,
    ResumePoint,
    filled_by_others,
    read_runs,
    resume_point,
)
from sparkmirror.errors import MirrorError, Unreachable
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.gaps import TARGET_LOSS_CODES, Gap, GapAction, GapKind
from sparkmirror.internal_topics.position_metadata import (
    Mark,
    PositionMetadata,
    TargetMark,
)
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import FaultPolicy
from sparkmirror.offset_reset import EARLIEST, reset_time_ms
from sparkmirror.progress import Halt
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.log_view import EndView, describe_ends, describe_logs
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.hanging_transactions import (
    CommittedRecords,
    find_open_transactions,
)

__all__ = ["TargetGap", "TargetWatch", "Verdict"]

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class TargetGap:
    """A gap for the sink, and the state after it: source mark, target mark, target end."""

    gap: Gap
    mark: Mark
    target: TargetMark
    target_end: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to one source partition. ``position``: where it continues.

    ``mark``, ``end``: the target's log with which the sink begins, and its end, -1 if unknown.
    ``leaders_end``: the end of its leader's own log, which may be above the high watermark.
    """

    position: int
    mark: TargetMark
    end: int = -1
    leaders_end: int = -1
    lost: bool = False
    halt: Halt | None = None


class TargetWatch:
    """Checks the target's logs for one slot before it continues from its positions."""

    def __init__(
        self, flow: FlowSettings, partitions: Iterable[SourcePartition], losses: LossWatch
    ) -> None:
        self.flow = flow
        self.gaps: list[TargetGap] = []
        """Gaps that were found, for the sink."""
        self._by_source = {p.source: p for p in partitions}
        self._losses = losses
        self._policy = FaultPolicy(flow.faults)
        self._runs: dict[TopicPartition, KnownRuns] | None = None

    def take_gaps(self) -> list[TargetGap]:
        """Return ``gaps`` and clear them."""
        told, self.gaps = self.gaps, []
        return told

    def take_from(self, other: TargetWatch) -> None:
        """Report the gaps of ``other``, too."""
        self.gaps += other.take_gaps()

    def remembered(
        self,
        missing: Iterable[TopicPartition],
        source_ids: Mapping[str, str],
        target: ClusterConnections,
    ) -> dict[TopicPartition, tuple[int, PositionMetadata]]:
        """Positions, with metadata, of those in ``missing`` whose remote topic was deleted.

        A topic that is deleted takes its positions with it, and Connect's offset storage may not
        have them yet. The exact runs name the log that was written, and how far. Positions that
        somebody deleted while the topic stayed are not restored. ``source_ids``: current topic ids
        at the source. ``target`` knows the remote topics. Raises as `examine`.
        """
        wanted = {tp: source_ids[tp.topic] for tp in missing if source_ids.get(tp.topic)}
        known = self._read_runs(wanted) if wanted else {}
        found = {}
        if known:
            target.refresh()
        for tp, one in known.items():
            now = target.topic_ids.get(self.remote(tp), "")
            if one.runs and one.target_id and one.target_id != now:
                run = one.runs[-1]
                source, remote = Mark(topic_id=wanted[tp]), TargetMark(topic_id=one.target_id)
                metadata = PositionMetadata(source, remote, one.target_end)
                found[tp] = run.source + run.length, metadata
        return found

    def examine(
        self,
        source: ClusterConnections,
        target: ClusterConnections,
        positions: Mapping[TopicPartition, int],
        metadata: Mapping[TopicPartition, PositionMetadata],
        errors: dict[str, int],
    ) -> dict[TopicPartition, Verdict]:
        """What happens to partitions; ``positions`` and their ``metadata`` by source partition.

        A partition whose leader at the target does not respond continues at its position. A
        partition without metadata begins here. Raises `MirrorError` or `ConnectionLost` if the loss
        cannot be determined now.
        """
        self.gaps = []
        told = {tp: metadata.get(tp, PositionMetadata()) for tp in positions}
        marks = {tp: one.target for tp, one in told.items()}
        ends = {tp: one.target_end for tp, one in told.items()}
        losses, views = self._losses_of(target, positions, marks, ends)
        found = {}
        for tp, position in positions.items():
            mark, view = marks[tp], views.get(tp)
            if tp not in metadata:
                mark = replace(mark, begin=position)
            if view is None:
                found[tp] = Verdict(position, mark, ends[tp])
            elif tp not in losses:
                # What only the leader has may disappear again, which is no loss.
                end = max(ends[tp], view.high_watermark)
                seen = self._seen(tp, mark, view, target)
                found[tp] = Verdict(position, seen, end, view.last)
            else:
                found[tp] = self._decide(
                    tp,
                    losses[tp],
                    mark,
                    ends[tp],
                    told[tp].written,
                    view,
                    position,
                    source,
                    target,
                    errors,
                )
        return found

    def _now(self, tp: TopicPartition, target: ClusterConnections) -> TargetMark:
        topic = self._by_source[tp].remote_topic
        return TargetMark(target.cluster_id, target.topic_ids.get(topic, ""))

    def _seen(
        self, tp: TopicPartition, mark: TargetMark, view: EndView, target: ClusterConnections
    ) -> TargetMark:
        """The mark of the log as it is now, which is the log that was written."""
        now = self._now(tp, target)
        return replace(
            mark,
            cluster_id=now.cluster_id,
            topic_id=now.topic_id,
            leader_epoch=view.leader_epoch,
            epoch_offset=view.high_watermark,
            seeded=False,
            cut=-1,
        )

    # -- checks ------------------------------------------------------------------------------

    def _losses_of(
        self,
        target: ClusterConnections,
        positions: Mapping[TopicPartition, int],
        marks: Mapping[TopicPartition, TargetMark],
        ends: dict[TopicPartition, int],
    ) -> tuple[dict[TopicPartition, TargetLoss], dict[TopicPartition, EndView]]:
        """Losses and logs by source partition; fills in ``ends`` that only the runs know."""
        asked = {self._by_source[tp].target: mark.leader_epoch for tp, mark in marks.items()}
        marks = dict(marks)
        deadline = time.monotonic() + SUSPECTED_S
        while True:
            target.refresh_if_due()
            by_target = describe_ends(target, asked)
            views = {
                tp: by_target[p.target]
                for tp, p in self._by_source.items()
                if tp in marks and p.target in by_target
            }
            for tp in [tp for tp, mark in marks.items() if mark.seeded and tp in views]:
                marks[tp], ends[tp] = self._seeded(tp, marks[tp], views[tp])
            found = {}
            for tp, view in views.items():
                now = self._now(tp, target)
                loss = judge_target(self._by_source[tp].target, ends[tp], marks[tp], now, view)
                if loss is None and self._filled(tp, positions[tp], ends[tp], marks[tp], view):
                    loss = truncated(self._by_source[tp].target, view.epoch_end, ends[tp])
                if loss is not None:
                    found[tp] = loss
            unsure = [
                tp
                for tp, loss in found.items()
                if loss.kind is GapKind.TARGET_TRUNCATED and views[tp].end < 0
            ]
            if not unsure or time.monotonic() > deadline:
                return found, views
            time.sleep(_LOOK_AGAIN_S)

    def _filled(
        self, tp: TopicPartition, position: int, end: int, mark: TargetMark, view: EndView
    ) -> bool:
        if not may_be_others(end, mark, view):
            return False
        runs = self._known_runs(tp).runs
        source_end = runs[-1].source_end if runs and runs[-1].target_end == end else -1
        remote = self._by_source[tp].target
        return filled_by_others(self.flow, tp, remote, position, end, source_end)

    def _known_runs(self, tp: TopicPartition) -> KnownRuns:
        if self._runs is None:
            ids = {one: self._losses.marks.get(one, Mark()).topic_id for one in self._by_source}
            self._runs = self._read_runs(ids)
        return self._runs.get(tp, KnownRuns())

    def _read_runs(self, ids: Mapping[TopicPartition, str]) -> dict[TopicPartition, KnownRuns]:
        try:
            return read_runs(self.flow, ids)
        except (Unreachable, ConnectionLost):
            raise
        except MirrorError as error:
            log.warning("flow %s: the exact runs cannot be read: %s", self.flow.name, error)
            return {}

    def _seeded(
        self, tp: TopicPartition, mark: TargetMark, view: EndView
    ) -> tuple[TargetMark, int]:
        """The log and its end for a position from Connect's offset storage, as the runs know it."""
        known = self._known_runs(tp)
        mark = replace(mark, topic_id=known.target_id, seeded=False)
        if not known.runs and (view.start, view.last) == (0, 0):
            # No record was ever here, although the position says that some were mirrored.
            return mark, 1
        return mark, known.target_end

    # -- decisions ---------------------------------------------------------------------------

    def _decide(
        self,
        tp: TopicPartition,
        loss: TargetLoss,
        mark: TargetMark,
        end: int,
        written: tuple[int, int, int] | None,
        view: EndView,
        position: int,
        source: ClusterConnections,
        target: ClusterConnections,
        errors: dict[str, int],
    ) -> Verdict:
        if mark.cut < 0:  # what was written after an earlier loss may be gone with this one
            mark = replace(mark, there_first=-1, there_end=-1)
        starts = describe_logs(source, {tp: -1})
        source_start = starts[tp].start if tp in starts else 0
        cut = self._cut(tp, loss.cut, written, target)
        found = self._resume_point(tp, cut, mark, end, view, position, source_start)
        now = self._seen(tp, mark, view, target)
        base = max(loss.cut, view.high_watermark)
        if found is not None and found.exact and found.position >= position:
            return Verdict(position, now, base)  # what is lost held no record
        code = TARGET_LOSS_CODES[loss.kind]
        errors[code] = errors.get(code, 0) + 1
        first = None if found is None else min(position, found.position)
        if loss.cut <= 0 and first is not None:
            now = replace(now, begin=first)
        told = _ReportedLoss(self, tp, loss, code, now, base)
        choice = self._policy.target_loss(tp.topic)
        if choice == "record-and-continue":
            told.gap(GapAction.CONTINUED, first, position, position)
            return Verdict(position, mark, end, lost=True)
        if first is None or found is None:
            then = (
                "; the source offset after the last record that is left is not known: with "
                "on.target.loss=record-and-continue the mirror continues after the loss"
            )
            return told.halt(position, mark, end, None, then)
        if choice == "fail":
            then = f"; with on.target.loss=repair the mirror goes back to offset {first}"
            return told.halt(position, mark, end, first, then)
        resumed = min(position, max(first, source_start))
        if first < resumed:
            told.gap(
                *(GapAction.CONTINUED, first, resumed, resumed),
                f"; source offsets {first} to {resumed - 1} are no longer at the source either",
            )
        if resumed < position:
            then = f"; source offsets {resumed} to {position - 1} are mirrored again"
            if not found.exact:
                then += f", some of which may be there already ({found.how})"
            told.gap(GapAction.REPAIRED, resumed, position, resumed, then)
        return Verdict(resumed, mark, end, lost=True)

    def _cut(
        self,
        tp: TopicPartition,
        cut: int,
        written: tuple[int, int, int] | None,
        target: ClusterConnections,
    ) -> int:
        """Up to where the log has records that stay there, at most ``cut``.

        If the log was cut within a transaction, the rest of that transaction is open. It is
        aborted before the slot writes (`data.coordination.hanging_transactions`).
        """
        if cut <= 0 or written is None or not self.flow.exactly_once:
            return cut
        newest = CommittedRecords(*written)
        remote = self._by_source[tp].target
        found = find_open_transactions(target, [remote])
        if remote not in found:
            where = f"cluster {self.flow.target.alias}"
            raise Unreachable(f"no leader of {remote} reports open transactions.", where=where)
        rest = [
            one.offset
            for one in found[remote]
            if one.producer_id == newest.producer_id and not one.counts(newest)
        ]
        return min([cut, *rest])

    def _resume_point(
        self,
        tp: TopicPartition,
        cut: int,
        mark: TargetMark,
        end: int,
        view: EndView,
        position: int,
        source_start: int,
    ) -> ResumePoint | None:
        runs = self._known_runs(tp).runs
        if cut > 0:
            return resume_point(
                self.flow, tp, self._by_source[tp].target, runs,
                source_start=source_start, position=position, recorded_end=end,
                start=view.start, cut=cut, epoch_end=view.epoch_end,
            )  # fmt: skip
        if mark.begin >= 0:
            return ResumePoint(mark.begin, exact=True, how="from where the mirror had begun")
        if reset_time_ms(self.flow.fetch.auto_offset_reset, int(time.time() * 1000)) == EARLIEST:
            return ResumePoint(0, exact=True, how="from the beginning")
        if runs:
            return ResumePoint(runs[0].source, exact=True, how="from the oldest exact run")
        return None

    def report(self, gap: TargetGap, text: str) -> None:
        """Log a gap and keep it for the sink."""
        log.error("flow %s: %s", self.flow.name, text)
        self.gaps.append(gap)

    def mark_of(self, tp: TopicPartition) -> Mark:
        """The source's log in which the position is."""
        return self._losses.marks.get(tp, Mark())

    def remote(self, tp: TopicPartition) -> str:
        """The remote topic of a source partition."""
        return self._by_source[tp].remote_topic


@dataclass(frozen=True, slots=True)
class _ReportedLoss:
    """One loss that becomes gap records; ``now``, ``end``: the target's log after it, its end."""

    watch: TargetWatch
    tp: TopicPartition
    loss: TargetLoss
    code: str
    now: TargetMark
    end: int

    def gap(
        self,
        action: GapAction,
        first: int | None,
        end: int,
        resumed_at: int | None,
        then: str = "",
    ) -> None:
        """Report source offsets ``first`` (None if unknown) up to ``end`` (exclusive)."""
        text = self.loss.text + then
        gap = Gap(
            flow=self.watch.flow.name,
            source=self.tp,
            remote_topic=self.watch.remote(self.tp),
            kind=self.loss.kind,
            action=action,
            first=end if first is None else first,
            last=None if first is None else end - 1,
            count=None if first is None else end - first,
            resumed_at=resumed_at,
            code=self.code,
            reason=text,
            time_ms=int(time.time() * 1000),
        )
        mark = self.watch.mark_of(self.tp)
        self.watch.report(TargetGap(gap, mark, self.now, self.end), text)

    def halt(
        self, position: int, mark: TargetMark, end: int, first: int | None, then: str
    ) -> Verdict:
        """Halt the partition at its position."""
        self.gap(GapAction.STOPPED, first, position, None, then)
        halt = Halt(self.code, self.loss.text + then)
        return Verdict(position, mark, end, lost=True, halt=halt)
