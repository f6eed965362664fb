"""The position of a partition: past what is acknowledged, in order and without gaps, only."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.data.rows.notes import GapNote
from sparkmirror.data.transform.failed_records import FailedRecords
from sparkmirror.data.write.chunk_offsets import ChunkOffsets
from sparkmirror.data.write.partition_state import (
    Lane,
    Pending,
    acknowledge,
    before_refusal,
    gap_pending,
    targets,
)
from sparkmirror.internal_topics.gaps import Gap, GapAction, GapKind
from sparkmirror.internal_topics.position_metadata import LEADER_EPOCH_LOST, Mark, TargetMark
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.wire.produce.backlog import Acknowledged

SOURCE, TARGET, ELSEWHERE = (TopicPartition(name, 3) for name in ("t", "A.t", "gaps"))


def chunk(lane: Lane, next_offset: int, batches: Sequence[int], *, epoch: int = -1) -> Pending:
    """A chunk of batches with so many records each, queued as the sink does it."""
    records = sum(batches)
    offsets = ChunkOffsets([(next_offset - records, records)], records)
    pending = Pending(
        lane, next_offset, records, 10 * records, next_offset, next_offset, len(batches), offsets,
        leader_epoch=epoch,
    )  # fmt: skip
    lane.queue.append(pending)
    return pending


def acknowledged(pending: Pending, records_end: int, records: int, offset: int) -> None:
    token = (pending, records_end)
    assert acknowledge(Acknowledged(TARGET, token, offset, records)) is pending


@pytest.mark.parametrize(("epoch", "there"), [(3, 21), (LEADER_EPOCH_LOST, 6)])
def test_what_was_passed_after_a_loss_may_have_gone_with_the_next_one(
    epoch: int, there: int
) -> None:
    """Of 6 to 19 nothing was written: the target had them when the first loss was found."""
    lane = Lane(SOURCE, TARGET, position=5)
    passes = chunk(lane, 6, [1], epoch=epoch)
    passes.next_offset = 20
    behind = chunk(lane, 21, [1])
    acknowledged(passes, 1, 1, 105)
    acknowledged(behind, 1, 1, 120)
    assert lane.there() == there


@pytest.mark.parametrize(("position", "there"), [(5, 22), (6, 6), (10, 10), (20, 22)])
def test_what_was_passed_at_the_start_may_have_gone_with_the_next_one(
    position: int, there: int
) -> None:
    lane = Lane(SOURCE, TARGET, position, log=TargetMark(there_first=6, there_end=20))
    if position == 5:  # all of it was written again
        acknowledged(chunk(lane, 20, [15]), 15, 15, 90)
    behind = chunk(lane, 22, [2], epoch=3)
    acknowledged(behind, 2, 2, 105)
    assert lane.there() == there


@settings(deadline=None)
@given(
    chunks=st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=8),
    gaps=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    beside=st.sets(st.integers(0, 7)),
    data=st.data(),
)
def test_the_position_is_behind_the_acknowledged_chunks_that_have_no_gap_before_them(
    chunks: list[list[int]], gaps: list[int], beside: set[int], data: st.DataObject
) -> None:
    lane = Lane(SOURCE, TARGET, position=0)
    todo: list[tuple[int, Pending, int, int, int]] = []
    left: list[int] = []
    ends: list[int] = []
    offset = at = 0
    for number, batches in enumerate(chunks):
        offset += sum(batches) + gaps[number]
        pending = chunk(lane, offset, batches)
        end = 0
        for records in batches:
            end += records
            todo.append((number, pending, end, records, at))
            at += records
        if number in beside:
            pending.wait_for(ELSEWHERE)
            todo.append((number, pending, -1, 0, 0))
        left.append(len(batches) + (number in beside))
        ends.append(offset)
    order = data.draw(st.permutations(todo))
    queued = list(lane.queue)
    done = 0
    for step in (None, *order):
        if step is not None:
            number, pending, end, records, place = step
            if end < 0:  # a record beside the partition's own, such as a gap's
                assert acknowledge(Acknowledged(ELSEWHERE, pending, 7, 1)) is pending
            else:
                acknowledged(pending, end, records, place)
            left[number] -= 1
        settled = lane.settle()
        before, done = done, next((n for n, more in enumerate(left) if more), len(left))
        assert settled == queued[before:done]
        assert list(lane.queue) == queued[done:]
        assert lane.position == (ends[done - 1] if done else 0)
        assert lane.records == sum(sum(batches) for batches in chunks[:done])
        assert lane.bytes == 10 * lane.records
        assert lane.timestamp_ms == (ends[done - 1] if done else -1)
        # All went to the target one behind the other, so its end is known, too.
        assert lane.target_end == (lane.records if lane.records else -1)
        waiting = ELSEWHERE in list(lane.waits_for())
        assert waiting == any(number >= done for number in beside if number < len(chunks))
        assert next(iter(lane.waits_for())) == TARGET
    assert not lane.queue
    assert lane.position == offset


def test_a_chunk_is_not_done_before_its_last_batch() -> None:
    lane = Lane(SOURCE, TARGET, position=5)
    pending = chunk(lane, 8, [1, 1, 1])
    for end in (1, 3):
        acknowledged(pending, end, 1, end)
        assert lane.settle() == []
    assert (lane.position, lane.committed, lane.records) == (5, -1, 0)
    acknowledged(pending, 2, 1, 2)
    assert lane.settle() == [pending]
    assert lane.position == 8


def test_where_the_target_ends_is_unknown_when_the_last_batch_told_no_offset() -> None:
    lane = Lane(SOURCE, TARGET, position=0)
    acknowledged(chunk(lane, 2, [2]), 2, 2, 40)
    lane.settle()
    assert lane.target_end == 42
    acknowledged(chunk(lane, 4, [2]), 2, 2, -1)
    lane.settle()
    assert (lane.position, lane.target_end) == (4, -1)
    chunk(lane, 9, [])  # nothing but control batches: it has no place on the target
    lane.settle()
    assert (lane.position, lane.target_end) == (9, -1)


def test_the_mark_goes_on_with_the_position() -> None:
    first, renewed = Mark("c", "id", 3), Mark("c", "other", 0)
    lane = Lane(SOURCE, TARGET, position=0, mark=first)
    same = chunk(lane, 1, [1], epoch=3)
    unknown = chunk(lane, 2, [1])
    later = chunk(lane, 3, [1], epoch=4)
    anew = chunk(lane, 4, [1], epoch=9)
    anew.mark = renewed
    for pending in (unknown, later, anew):
        acknowledged(pending, 1, 1, 1)
    assert lane.settle() == []
    assert lane.mark == first, "nothing before the position has changed"
    acknowledged(same, 1, 1, 0)
    lane.settle()
    assert [one.mark for one in (same, unknown, later, anew)] == [
        first, first, Mark("c", "id", 4), renewed,
    ]  # fmt: skip
    assert lane.mark == renewed


def test_a_mark_forgets_the_epoch_of_records_that_are_not_just_before_the_position() -> None:
    lane = Lane(SOURCE, TARGET, position=0, mark=Mark("c", "id", 3))
    chunk(lane, 9, [], epoch=LEADER_EPOCH_LOST)
    lane.settle()
    assert lane.mark == Mark("c", "id", -1)
    acknowledged(chunk(lane, 10, [1], epoch=3), 1, 1, 0)
    lane.settle()
    assert lane.mark == Mark("c", "id", 3)


def _pass(lane: Lane, kind: GapKind, resumed_at: int, target: TargetMark | None = None) -> None:
    """Queue a gap of which nothing but its record is to be waited for."""
    gap = Gap(
        *("A->B", SOURCE, TARGET.topic, kind, GapAction.CONTINUED),
        *(5, None, None, resumed_at, "CODE", "why", 1),
    )
    lane.queue.append(gap_pending(lane, GapNote(gap, Mark(), target)))


@pytest.mark.parametrize(
    ("kind", "log"),
    [
        (GapKind.RECREATED, TargetMark(topic_id="new", begin=4)),
        (GapKind.REPLACED, TargetMark(topic_id="new", begin=4)),
        (GapKind.TRUNCATED, TargetMark(topic_id="new", begin=2)),
        (GapKind.DELETED, TargetMark(topic_id="new", begin=2, there_first=6, there_end=20)),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_other_records_at_the_source_are_not_those_that_the_target_has(
    kind: GapKind, log: TargetMark, *, at_once: bool
) -> None:
    """They would be left out; also if a loss at the target is told with them."""
    before = TargetMark(topic_id="old", begin=2, cut=9, there_first=6, there_end=20)
    repaired = TargetMark(topic_id="new", begin=2, there_first=6, there_end=20)
    lane = Lane(SOURCE, TARGET, position=5, log=before)
    _pass(lane, GapKind.TARGET_TRUNCATED, 5, repaired)
    if not at_once:
        lane.settle()
    _pass(lane, kind, 4)
    lane.settle()
    assert (lane.position, lane.log) == (4, log)


def test_an_acknowledgement_of_something_else_moves_nothing() -> None:
    lane = Lane(SOURCE, TARGET)
    pending = chunk(lane, 1, [1])
    assert acknowledge(Acknowledged(TARGET, None, 0, 1)) is None
    assert pending.batches_left == 1


def test_batches_go_to_the_remote_partition_or_where_they_were_dealt_to() -> None:
    lane = Lane(SOURCE, TARGET)
    pending = chunk(lane, 2, [1, 1])
    assert targets(pending, (0, 0)) == [TARGET, TARGET]
    pending.targets = [5, ["x", 1]]
    assert targets(pending, (0, 0)) == [TopicPartition("A.t", 5), TopicPartition("x", 1)]


def test_what_stands_before_a_refusal_is_what_was_taken() -> None:
    lane = Lane(SOURCE, TARGET)
    parts = [
        encode_batch([Record(n, 1, None, b"v") for n in range(first, first + count)])
        for first, count in ((10, 2), (12, 1), (20, 3))
    ]
    done, cut, never = (
        chunk(lane, 10, []),
        chunk(lane, 23, [2, 1, 3], epoch=6),
        chunk(lane, 30, [1]),
    )
    cut.kept = memoryview(b"".join(parts))
    cut.batches_left = 1
    left_out = [Record(offset, 0, None, None) for offset in (18, 19, 20, 21)]
    late = FailedRecords(tuple(left_out[3:]), "TRANSFORM_FAILED", "late")
    cut.failed = (FailedRecords(tuple(left_out), "TRANSFORM_FAILED", ""), late)
    taken = before_refusal(lane.queue)
    assert len(taken) == 2
    assert taken[0] is done
    part = taken[1]
    assert (part.next_offset, part.records, part.batches_left, part.leader_epoch) == (20, 3, 0, 6)
    assert part.kept == b"".join(parts[:2])
    assert part.bytes == len(b"".join(parts[:2]))
    # Those after it come again with the refused batch.
    assert [[one.offset for one in each.records] for each in part.failed] == [[18, 19]]
    cut.batches_left = 3  # its first batch was refused
    assert list(before_refusal(lane.queue)) == [done]
    assert never.batches_left == 1
