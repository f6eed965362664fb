"""Judges whether the target has lost records that it had acknowledged. Pure; both ends use it.

A position says which log of the target it belongs to and where that log ended
(`internal_topics.position_metadata`). `judge_target` compares that with what the leader reports
now. Retention and DeleteRecords move a log's start and never its end, so they are no loss.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkmirror.internal_topics.gaps import GapKind
from sparkmirror.internal_topics.position_metadata import TargetMark
from sparkmirror.model import TopicPartition
from sparkmirror.wire.cluster.log_view import EndView

SUSPECTED_S = 3.0
"""How long a high watermark must stay behind before that counts as a loss."""


@dataclass(frozen=True, slots=True)
class TargetLoss:
    """``cut``: target offset from which on the log no longer has what was acknowledged."""

    kind: GapKind
    cut: int
    text: str


def judge_target(
    tp: TopicPartition, end: int, mark: TargetMark, now: TargetMark, view: EndView
) -> TargetLoss | None:
    """What the target has lost of what it acknowledged up to ``end`` in the log ``mark``. Pure.

    None for no loss. ``now``: the current ids of its cluster and topic. Unknown values prove
    nothing.
    """
    if mark.cluster_id and now.cluster_id and mark.cluster_id != now.cluster_id:
        text = (
            f"another cluster is at the target's addresses (cluster id {now.cluster_id}, it was "
            f"{mark.cluster_id}): what was mirrored to {tp} is not there"
        )
        return TargetLoss(GapKind.TARGET_REPLACED, 0, text)
    if mark.topic_id and now.topic_id and mark.topic_id != now.topic_id:
        text = (
            f"topic {tp.topic} was deleted and recreated on the target (topic id {now.topic_id}, "
            f"it was {mark.topic_id}): what was mirrored to {tp} is gone"
        )
        return TargetLoss(GapKind.TARGET_RECREATED, 0, text)
    end = max(end, mark.epoch_offset, mark.cut + 1)
    cut = min(view.last, end) if mark.cut < 0 else min(view.last, mark.cut)
    if 0 <= view.epoch_end < mark.epoch_offset:
        # In that leader epoch, or an earlier one, the log was longer: what was there is gone.
        cut = min(cut, view.epoch_end)
    return None if cut >= end else truncated(tp, cut, end)


def may_be_others(end: int, mark: TargetMark, view: EndView) -> bool:
    """Whether records before ``end`` were written after the leader epoch of ``mark``. Pure.

    The mirror may have written them and not noticed the new epoch. Or others wrote them in the
    place of records that an unclean election removed since the last check:
    `data.read.resume_point.filled_by_others` finds out. The log must be one in which `judge_target`
    finds no loss.
    """
    return 0 <= view.epoch_end < end and mark.leader_epoch >= 0


def truncated(tp: TopicPartition, cut: int, end: int) -> TargetLoss:
    """The loss of what was acknowledged from target offset ``cut`` up to ``end`` (exclusive)."""
    text = (
        f"the target's log of {tp} was truncated to offset {cut} (unclean leader election, or a "
        f"broker that lost its disk): {end - cut} offsets that it had acknowledged are gone"
    )
    return TargetLoss(GapKind.TARGET_TRUNCATED, cut, text)
