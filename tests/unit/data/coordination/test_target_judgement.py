"""What counts as lost at the target."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.data.coordination.target_judgement import judge_target
from sparkmirror.internal_topics.position_metadata import TargetMark
from sparkmirror.model import TopicPartition as Tp
from sparkmirror.wire.cluster.log_view import EndView

REMOTE = Tp("A.t", 0)
NOW = TargetMark("cluster", "topic")
MARK = TargetMark("cluster", "topic", 5, 90, begin=7)


@pytest.mark.parametrize(
    ("end", "mark", "view"),
    [
        (100, MARK, EndView(0, 100, 100, 100, 5)),
        # Somebody shrank the topic: its start moves, its end does not.
        (100, MARK, EndView(100, 100, 100, 100, 5)),
        # The high watermark is behind after an election, the leader's own log is not.
        (100, MARK, EndView(0, 40, 100, 95, 6)),
        # Others write there, too.
        (100, MARK, EndView(0, 150, 150, 150, 5)),
        # The position of an earlier release says nothing.
        (-1, TargetMark(), EndView(0, 0, 0, -1, 0)),
        # The epoch has ended behind what was seen in it.
        (100, MARK, EndView(0, 150, 150, 90, 6)),
        (-1, MARK, EndView(0, 90, 90, 90, 5)),
    ],
)
def test_nothing_is_lost(end: int, mark: TargetMark, view: EndView) -> None:
    assert judge_target(REMOTE, end, mark, NOW, view) is None
    assert judge_target(REMOTE, end, mark, TargetMark(), view) is None


@pytest.mark.parametrize(
    ("end", "mark", "view", "kind", "cut"),
    [
        (100, MARK, EndView(0, 60, 60, 60, 6), "target-truncated", 60),
        # The broker cannot tell the end of its own log.
        (100, MARK, EndView(0, 60), "target-truncated", 60),
        # The log has grown past the end again: the epoch knows where it was cut.
        (100, MARK, EndView(0, 300, 300, 60, 6), "target-truncated", 60),
        # Where the end is not known, at least what was seen must be there.
        (-1, MARK, EndView(0, 60, 60, 60, 6), "target-truncated", 60),
        # What the sink has seen counts, however long the log is now.
        (100, replace(MARK, cut=70), EndView(0, 300, 300, 300, 6), "target-truncated", 70),
        (-1, replace(MARK, cut=95), EndView(0, 300, 300, 300, 6), "target-truncated", 95),
        (100, replace(MARK, topic_id="old"), EndView(0, 300, 300, 300, 0), "target-recreated", 0),
        (100, replace(MARK, cluster_id="old"), EndView(0, 300, 300), "target-replaced", 0),
        (100, TargetMark(), EndView(0, 0, 0), "target-truncated", 0),
    ],
)
def test_losses(end: int, mark: TargetMark, view: EndView, kind: str, cut: int) -> None:
    loss = judge_target(REMOTE, end, mark, NOW, view)
    assert loss is not None
    assert (loss.kind, loss.cut) == (kind, cut)
    assert str(REMOTE) in loss.text


_ENDS = st.integers(-1, 60)


@given(_ENDS, _ENDS, _ENDS, _ENDS, _ENDS)
def test_a_cut_is_always_below_what_was_acknowledged(
    end: int, seen: int, cut: int, last: int, epoch_end: int
) -> None:
    mark = TargetMark("cluster", "topic", 3, seen, cut=cut)
    loss = judge_target(REMOTE, end, mark, NOW, EndView(0, max(0, last), last, epoch_end, 3))
    acknowledged = max(end, seen, cut + 1)
    if loss is not None:
        assert loss.cut < acknowledged
    else:
        assert acknowledged <= max(0, last)
