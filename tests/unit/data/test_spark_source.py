"""A standby's query: one epoch with nothing in it, then it waits for the flow to be its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from sparkmirror.data import spark_source
from sparkmirror.data.coordination import epoch_record, fencing
from sparkmirror.data.coordination.slot_plan import encode_flow
from sparkmirror.data.rows.rows import is_rehearsal
from sparkmirror.data.spark_source import _Planner, _Writer
from sparkmirror.data.transform.record_path import record_path
from sparkmirror.internal_topics.commands import AssignmentDocument, SourcePartition
from sparkmirror.internal_topics.deals.dealing import Deal
from sparkmirror.internal_topics.deals.record import DealRecord
from sparkmirror.internal_topics.epochs.record import EpochRecord
from sparkmirror.internal_topics.flow_claims import Claim
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings

# Nobody listens there: whatever asked these clusters would wait, and fail.
A, B = (ClusterClient(name, ("127.0.0.1:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B, tasks_max=3)
TEXT = encode_flow(FLOW)


class Control:
    """What the planner has read of the control topic; ``waits``: of each look, whether it waits."""

    paused, offset, command, limits = False, 9, None, None
    deal: DealRecord | None = None

    def __init__(self) -> None:
        self.claim: Claim | None = Claim(FLOW.name, "theirs", 0, "h2")
        self.assignment: AssignmentDocument | None = None
        self.waits: list[bool] = []
        self.waits_for_more = False

    def catch_up(self) -> None:
        self.waits.append(self.waits_for_more)

    def becomes_ours(self) -> None:
        self.claim = Claim(FLOW.name, "mine", 0)
        partition = SourcePartition("t", 0, "A.t")
        self.assignment = AssignmentDocument(FLOW.name, "mine", 1, (partition,))


def _planner(control: Control, once: str = "false") -> _Planner:
    planner = _Planner({"flow": TEXT, "run_id": "mine", "once": once})
    planner._watch = control  # type: ignore[assignment]
    return planner


def test_a_standby_plans_one_empty_epoch_and_then_waits() -> None:
    control = Control()
    planner, first = _planner(control), {"epoch": 0}
    rehearsed = planner.latestOffset(first, None)  # type: ignore[arg-type]
    slots = planner.partitions(first, rehearsed)
    assert [slot.value.partitions for slot in slots] == [(), (), ()]
    assert all(slot.value.rehearsal for slot in slots)
    for _ in range(2):
        assert planner.latestOffset(rehearsed, None) == rehearsed  # type: ignore[arg-type]
    # The topic says it when there is something new: nobody asks ten times a second.
    assert control.waits == [False, False, True, True]
    control.becomes_ours()
    epoch = planner.latestOffset(rehearsed, None)  # type: ignore[arg-type]
    (slot,) = planner.partitions(rehearsed, epoch)
    assert (slot.value.rehearsal, len(slot.value.partitions)) == (False, 1)
    assert not control.waits[-1]


def test_who_has_the_flow_and_nothing_to_mirror_waits_for_it_too() -> None:
    control = Control()
    control.becomes_ours()
    topics = control.assignment
    control.assignment = AssignmentDocument(FLOW.name, "mine", 1, ())
    planner, start = _planner(control), {"epoch": 0}
    for _ in range(2):
        assert planner.latestOffset(start, None) == start  # type: ignore[arg-type]
    assert control.waits == [False, True]
    control.assignment = topics
    planner.partitions(start, planner.latestOffset(start, None))  # type: ignore[arg-type]
    assert control.waits == [False, True, True, False], "an epoch that is due waits for nothing"


def test_who_has_the_flow_from_the_start_rehearses_nothing() -> None:
    control = Control()
    control.becomes_ours()
    planner = _planner(control)
    epoch = planner.latestOffset({"epoch": 0}, None)  # type: ignore[arg-type]
    (slot,) = planner.partitions({"epoch": 0}, epoch)
    assert not slot.value.rehearsal


def test_a_deal_counts_from_its_version_of_the_assignment_on() -> None:
    control = Control()
    control.becomes_ours()
    partitions = tuple(SourcePartition("t", number, "A.t") for number in range(3))

    def deal(*slots: list[int], version: int) -> DealRecord:
        shares = tuple(tuple(TopicPartition("t", number) for number in one) for one in slots)
        return DealRecord(FLOW.name, "mine", 1, 0, Deal(shares), (1, 1, 1), 0, version)

    planner = _planner(control)

    def planned(version: int) -> list[list[int]]:
        control.assignment = AssignmentDocument(FLOW.name, "mine", version, partitions)
        slots = planner.partitions({"epoch": 0}, {"epoch": 1})
        return [[p.partition for p in slot.value.partitions] for slot in slots]

    assert planned(1) == [[0], [1], [2]]
    control.deal = deal([1], [0], [2], version=0)
    assert planned(1) == [[1], [0], [2]]
    control.deal = deal([2], [1], [0], version=3)
    assert [planned(version) for version in (1, 2)] == [[[1], [0], [2]]] * 2
    assert planned(3) == [[2], [1], [0]]


def test_a_planner_that_is_started_again_finds_where_the_partitions_are() -> None:
    """A deal without moves says so, though it counts only from the next assignment on."""
    control = Control()
    control.becomes_ours()
    partitions = tuple(SourcePartition("t", number, "A.t") for number in range(6))
    control.assignment = AssignmentDocument(FLOW.name, "mine", 2, partitions)
    shares = ([0, 1, 2, 3], [4], [5])
    deal = Deal(tuple(tuple(TopicPartition("t", number) for number in one) for one in shares))
    control.deal = DealRecord(FLOW.name, "mine", 3, 0, deal, (1, 1, 1), 0, 3)
    again = _planner(control)
    assert again.latestOffset({"epoch": 4}, None) == {"epoch": 5}  # type: ignore[arg-type]
    slots = again.partitions({"epoch": 4}, {"epoch": 5})
    assert [[p.partition for p in one.value.partitions] for one in slots] == list(shares)


def test_a_planner_that_is_started_again_waits_for_the_assignment_of_a_deal_with_moves() -> None:
    control = Control()
    control.becomes_ours()
    partitions = tuple(SourcePartition("t", number, "A.t") for number in range(3))
    control.assignment = AssignmentDocument(FLOW.name, "mine", 2, partitions)
    deal = Deal(tuple((TopicPartition("t", number),) for number in (2, 1, 0)))
    control.deal = DealRecord(FLOW.name, "mine", 3, 0, deal, (1, 1, 1), 2, 3)
    again = _planner(control)
    start = {"epoch": 4}
    assert again.latestOffset(start, None) == start  # type: ignore[arg-type]
    control.assignment = AssignmentDocument(FLOW.name, "mine", 3, partitions)
    assert again.latestOffset(start, None) == {"epoch": 5}  # type: ignore[arg-type]
    slots = again.partitions(start, {"epoch": 5})
    assert [[p.partition for p in one.value.partitions] for one in slots] == [[2], [1], [0]]


@pytest.mark.parametrize("recorded", [False, True])
def test_a_rehearsal_runs_through_both_ends_and_touches_nothing(
    monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    control = Control()
    planner = _planner(control)
    end = planner.latestOffset({"epoch": 0}, None)  # type: ignore[arg-type]
    slot = planner.partitions({"epoch": 0}, end)[0]
    monkeypatch.setattr("socket.socket.connect", None)
    rows: Iterator[pa.RecordBatch] = planner.read(slot)
    if recorded:
        rows = record_path(TEXT, rows)
    batches = list(rows)
    assert is_rehearsal(batches[0])
    written = _Writer(TEXT).write(iter(batches))
    assert isinstance(written, spark_source._Committed)
    assert (written.summary.records, written.summary.bytes) == (0, 0)


def test_an_epoch_is_short_if_what_was_left_open_could_not_be_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = Control()
    control.becomes_ours()
    text = encode_flow(replace(FLOW, exactly_once=True))
    planner = _Planner({"flow": text, "run_id": "mine", "once": "false"})
    planner._watch = control  # type: ignore[assignment]
    answers = [False, True]
    monkeypatch.setattr(fencing, "fence_plan", lambda *_: answers.pop(0))
    records = [EpochRecord(FLOW.name, "mine", number, "t") for number in range(3)]
    written = iter(records)
    monkeypatch.setattr(epoch_record, "begin_epoch", lambda *_: next(written))
    brief = []
    for epoch in range(3):
        (slot,) = planner.partitions({"epoch": epoch}, {"epoch": epoch + 1})
        brief.append(slot.value.brief)
        assert slot.value.record == records[epoch]
    assert (brief, answers) == ([True, False, False], [])
