"""The at-least-once sink against a broker that answers when the test says so.

What may be committed, published and tried again, and when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.data.rows.notes import (
    GapNote,
    HaltNote,
    LeftNote,
    Owner,
    PartitionHello,
    RetryNote,
    SlotHello,
    SlotNotes,
)
from sparkmirror.data.rows.rows import Chunk, read_row
from sparkmirror.data.transform.pack import Packed
from sparkmirror.data.write import at_least_once, sink_task
from sparkmirror.data.write.at_least_once import AtLeastOnce
from sparkmirror.data.write.delivery import RENEW_S
from sparkmirror.data.write.offset_sync_writer import SyncSender
from sparkmirror.data.write.partition_state import Lane, LaneIndex
from sparkmirror.data.write.progress import SinkReports
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.errors import Defect, Fenced, Unreachable
from sparkmirror.internal_topics.connect_offsets import encode_source_offset, partition_for_key
from sparkmirror.internal_topics.flow_claims import Claim
from sparkmirror.internal_topics.gaps import Gap, GapAction, GapKind, gaps_topic
from sparkmirror.internal_topics.mm2_records import decode_offset_sync
from sparkmirror.internal_topics.position_metadata import Mark, TargetMark
from sparkmirror.internal_topics.reports import decode_progress
from sparkmirror.model import Partitioner, TopicPartition
from sparkmirror.progress import Halt, JoinCounts, TransformCounts
from sparkmirror.settings import FlowSettings, Member, OffsetSyncSettings, RecordSettings
from sparkmirror.wire.cluster.error_codes import INVALID_RECORD
from tests.patience import patience
from tests.unit.data.write.test_exactly_once import (
    BILLS,
    ORDERS,
    REMOTE,
    A,
    B,
    Brokers,
    Line,
    Source,
    simulated,
)

GROUP = "__mirror.A->B"


class Held:
    """Answers to Produce requests, kept back until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kept: list[tuple[Line, bytes]] = []
        self.holds = False
        answer = Line.answer

        def keep(line: Line, frame: bytes) -> None:
            self._kept.append((line, frame)) if self.holds else answer(line, frame)

        self._answer: Callable[[Line, bytes], None] = answer
        monkeypatch.setattr(Line, "answer", keep)

    def release(self, count: int = 1) -> None:
        for _ in range(count):
            self._answer(*self._kept.pop(0))


class Mirrored(SlotSink):
    """A sink whose commits of positions and offset syncs are kept in their order in ``said``."""

    def __init__(self, flow: FlowSettings) -> None:
        super().__init__(flow)
        self.said: list[tuple[str, Any]] = []
        self.refuses: list[Exception] = []
        assert isinstance(self._delivery, AtLeastOnce)
        self.delivery = self._delivery
        self.commits = self.delivery._commits
        self.commits.coordinators.commit = self._keep  # type: ignore[method-assign]
        # Reports would be answered among the records.
        self._task.report_if_due = lambda _: None  # type: ignore[method-assign]

    def _keep(self, group: str, offsets: dict[TopicPartition, Any], *_: object) -> None:
        assert group == GROUP
        if self.refuses:
            raise self.refuses.pop(0)
        self.said.append(("commit", {tp: offset for tp, (offset, _) in offsets.items()}))

    @property
    def lanes(self) -> dict[TopicPartition, Lane]:
        return self._task.lanes

    def take(self, source: Source) -> None:
        """All rows, of which nothing is acknowledged unless the brokers answer."""
        for row in source.rows:
            self._take(*read_row(row, 0))
            self.delivery._settle(self._task.producer.pump(0.0))
        source.rows.clear()

    def come_round(self, *, wait: bool = True) -> None:
        """One round in which positions are due; ``wait`` for what comes of their commit."""
        self.delivery._last_commit = float("-inf")
        self.delivery._settle(self._task.producer.pump(0.0))
        self._housekeep()
        if wait and self.commits._job is not None:
            self.commits._job.join()
            self._housekeep()


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    with simulated() as found:
        yield found


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> Held:
    return Held(monkeypatch)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What goes to the thread that writes offset syncs."""
    found: list[Any] = []
    sender = SimpleNamespace(
        put=lambda records, _runs: found.extend(decode_offset_sync(*one) for one in records),
        flush=lambda _: True,
    )
    monkeypatch.setattr(SyncSender, "of", lambda _: sender)
    return found


def _flow(**options: Any) -> FlowSettings:
    return FlowSettings(A, B, A, B, position_interval_ms=1_000, **options)


def test_a_position_waits_for_the_acknowledgement_of_all_before_it(
    brokers: Brokers, held: Held
) -> None:
    mirrored = Mirrored(_flow())
    source = Source(brokers)
    source.rows = source.rows[:1]
    mirrored.take(source)
    held.holds = True
    # Brokers take one batch of a partition per request, so each of these is answered by itself.
    source.chunk(ORDERS, [b"1", b"2"], [b"3"])
    source.chunk(ORDERS, [b"4"])
    mirrored.take(source)
    mirrored.come_round()
    committed = [offsets.get(REMOTE[ORDERS], 0) for _, offsets in mirrored.said]
    assert set(committed) <= {0}
    seen = []
    for _ in range(3):
        held.release()
        mirrored.come_round()
        mirrored.come_round()
        seen.append(mirrored.said[-1][1].get(REMOTE[ORDERS], 0) if mirrored.said else 0)
    # The first chunk has two batches: its position comes with the second one.
    assert seen == [0, 3, 4]


class Hanging:
    """A coordinator that hangs with a commit until it is told to go on."""

    def __init__(self, mirrored: Mirrored) -> None:
        mirrored.come_round()  # where it begins
        mirrored.said.clear()
        self.tried = 0
        self._commit = mirrored.commits.coordinators.commit
        self.began, self._goes_on = threading.Event(), threading.Event()
        mirrored.commits.coordinators.commit = self._hang  # type: ignore[method-assign]

    def _hang(self, *words: Any) -> None:
        self.tried += 1
        self.began.set()
        assert self._goes_on.wait(patience())
        self._commit(*words)

    def go_on(self) -> None:
        self._goes_on.set()


def test_a_coordinator_that_hangs_keeps_no_record_waiting(
    brokers: Brokers, syncs: list[Any]
) -> None:
    options = OffsetSyncSettings(enabled=True, lag_max=0)
    mirrored = Mirrored(_flow(offset_syncs=options, offset_storage_partitions=1))
    source = Source(brokers)
    mirrored.take(source)
    hanging = Hanging(mirrored)
    source.chunk(ORDERS, [b"1"])
    mirrored.take(source)
    began = time.monotonic()
    for number in range(2, 6):
        mirrored.come_round(wait=False)
        source.chunk(ORDERS, [b"%d" % number])
        mirrored.take(source)
    assert time.monotonic() - began < 10
    assert brokers.values("A.orders") == [b"1", b"2", b"3", b"4", b"5"]
    assert hanging.began.wait(patience())
    assert hanging.tried == 1, "one after the other"
    assert mirrored.said == []
    assert syncs == []
    hanging.go_on()
    mirrored.come_round()
    assert [offsets for _, offsets in mirrored.said] == [{REMOTE[ORDERS]: 1}]
    assert syncs == [(ORDERS, 0, 0)], "what came later has no committed position yet"
    mirrored.come_round()
    assert [offsets for _, offsets in mirrored.said[1:]] == [{REMOTE[ORDERS]: 5}]
    assert syncs[-1] == (ORDERS, 4, 4)


def _with_a_record_to_commit(brokers: Brokers) -> tuple[Mirrored, Hanging]:
    mirrored = Mirrored(_flow())
    source = Source(brokers)
    mirrored.take(source)
    hanging = Hanging(mirrored)
    source.chunk(ORDERS, [b"1"])
    mirrored.take(source)
    return mirrored, hanging


def test_a_task_that_fails_leaves_no_commit_behind(brokers: Brokers) -> None:
    """The next attempt reads the positions, which nobody else may move then."""
    mirrored, hanging = _with_a_record_to_commit(brokers)
    mirrored.come_round(wait=False)
    threading.Timer(0.5, hanging.go_on).start()
    mirrored.delivery.close()
    assert [offsets for _, offsets in mirrored.said] == [{REMOTE[ORDERS]: 1}]


def test_a_refusal_of_the_member_of_before_is_no_refusal(brokers: Brokers) -> None:
    mirrored, hanging = _with_a_record_to_commit(brokers)
    mirrored.commits.member(Member("m", 1))
    mirrored.refuses = [Fenced("the group has gone on", where="B")]
    mirrored.come_round(wait=False)
    mirrored.commits.member(Member("m", 2))
    hanging.go_on()
    mirrored.come_round()
    assert mirrored.commits.fenced is None
    mirrored.come_round()
    assert [offsets for _, offsets in mirrored.said] == [{REMOTE[ORDERS]: 1}]


def test_offset_syncs_follow_the_commit_of_what_they_tell_of(
    brokers: Brokers, syncs: list[Any]
) -> None:
    mirrored = Mirrored(_flow(offset_syncs=OffsetSyncSettings(enabled=True, lag_max=0)))
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"2"])
    mirrored.take(source)
    mirrored.refuses = [Unreachable("away")]
    mirrored.come_round()
    assert mirrored.said == []
    assert syncs == [], "the positions are not committed"
    mirrored.come_round()
    assert mirrored.said[-1][1][REMOTE[ORDERS]] == 2
    assert syncs == [(ORDERS, 0, 0), (ORDERS, 1, 1)]


def test_a_task_ends_when_positions_are_committed_however_long_that_takes(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_least_once.time, "sleep", lambda _: None)
    mirrored = Mirrored(_flow(offset_storage_partitions=1))
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(BILLS, [b"a", b"b"])
    mirrored.refuses = [Unreachable("away") for _ in range(20)]
    summary = mirrored.run(iter(source.rows))
    assert mirrored.refuses == []
    assert summary.records == 3
    last = {tp: offset for _, offsets in mirrored.said for tp, offset in offsets.items()}
    assert last == {REMOTE[ORDERS]: 1, REMOTE[BILLS]: 2}
    assert brokers.values("A.bills") == [b"a", b"b"]


def test_the_end_of_an_epoch_commits_all_positions_again(brokers: Brokers) -> None:
    """A commit of a former owner may arrive late: it must not outlive the epoch."""
    mirrored = Mirrored(_flow(offset_storage_partitions=1))
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(BILLS, [b"a", b"b"])
    mirrored.take(source)
    mirrored.come_round()
    assert mirrored.said[-1] == ("commit", {REMOTE[ORDERS]: 1, REMOTE[BILLS]: 2})
    mirrored.said.clear()
    mirrored.come_round()
    assert mirrored.said == [], "no position has moved"
    mirrored._finish()
    assert mirrored.said == [("commit", {REMOTE[ORDERS]: 1, REMOTE[BILLS]: 2})]


def test_a_sink_that_was_frozen_writes_nothing_once_another_run_has_the_flow(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither records nor positions, which would take the new owner's back."""
    mirrored = Mirrored(_flow())
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    mirrored.take(source)
    hello = SlotHello(0, 0, "A->B", "mine", 0, owner=Owner("mine", 0, 0))
    mirrored._on_notes(SlotNotes(hello))
    assert mirrored.delivery._pause is not None
    newest = Claim("A->B", "mine", 0)
    mirrored.delivery._pause._newest = lambda: newest  # type: ignore[method-assign]
    for frozen_s in (0, 60):
        woken_s = mirrored.delivery._pause._now_s() + frozen_s
        mirrored.delivery._pause._now_s = lambda at=woken_s: at  # type: ignore[misc]
        source.chunk(ORDERS, [b"2"])
        mirrored.take(source)
    assert brokers.values("A.orders") == [b"1", b"2", b"2"], "the flow still was its own"
    mirrored.said.clear()
    mirrored.delivery._pause._now_s = lambda at=woken_s + 60: at  # type: ignore[misc]
    newest = Claim("A->B", "theirs", 0, "h2")
    source.chunk(ORDERS, [b"3"])
    for step in (lambda: mirrored.take(source), mirrored.come_round, mirrored.delivery._commit):
        with pytest.raises(Fenced, match="run theirs, host h2"):
            step()
    assert brokers.values("A.orders") == [b"1", b"2", b"2"]
    assert mirrored.said == []


@pytest.mark.parametrize("partitioner", [Partitioner.NUMBER, Partitioner.KEY])
def test_a_partition_that_is_refused_stops_alone_and_may_be_tried_again(
    brokers: Brokers, partitioner: Partitioner
) -> None:
    brokers.refuses = lambda tp, record: INVALID_RECORD if record.value == b"bad" else 0
    mirrored = Mirrored(_flow(records=RecordSettings(partitioner=partitioner)))
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(ORDERS, [b"bad"], [b"2"])
    source.chunk(BILLS, [b"a"])
    mirrored.take(source)
    for _ in range(3):
        mirrored.come_round()
    halt = mirrored.lanes[ORDERS].halt
    assert halt is not None
    assert halt.code == "INVALID_RECORD"
    assert mirrored.lanes[BILLS].halt is None
    assert brokers.values("A.bills") == [b"a"]
    last = {tp: offset for _, offsets in mirrored.said for tp, offset in offsets.items()}
    assert last == {REMOTE[ORDERS]: 1, REMOTE[BILLS]: 1}
    # The source goes back to the position.
    brokers.refuses = lambda *_: 0
    mirrored._on_notes(SlotNotes(tried=(RetryNote(ORDERS, 1),)))
    source._next[ORDERS] = 1
    source.chunk(ORDERS, [b"bad"], [b"2"])
    mirrored.take(source)
    deadline = time.monotonic() + 30  # the producer waits a little before it tries again
    while mirrored.said[-1][1] != {REMOTE[ORDERS]: 3} and time.monotonic() < deadline:
        mirrored.come_round()
    assert mirrored.lanes[ORDERS].halt is None
    assert brokers.values("A.orders") == [b"1", b"bad", b"2"]
    assert mirrored.said[-1][1] == {REMOTE[ORDERS]: 3}


def test_a_partition_that_is_retried_counts_as_halted_until_something_is_acknowledged(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is refused for hours would seem to work at the beginning of each attempt."""
    brokers.refuses = lambda tp, record: INVALID_RECORD if record.value == b"bad" else 0
    mirrored, source = Mirrored(_flow()), Source(brokers)
    mirrored.take(source)
    lane = mirrored.lanes[ORDERS]

    def told() -> tuple[str, bool, int] | None:
        halt = mirrored._task._halt_of(lane, {})
        return None if halt is None else (halt.code, halt.retriable, halt.attempt)

    def attempt(number: int) -> None:
        if number:
            mirrored._on_notes(SlotNotes(tried=(RetryNote(ORDERS, number),)))
            # No attempt has ended: nothing is to be done about it yet.
            assert told() == ("INVALID_RECORD", True, -1)
            source._next[ORDERS] = 0
        source.chunk(ORDERS, [b"bad"], [b"2"])
        mirrored.take(source)

    for number in range(3):
        attempt(number)
        _until(mirrored, lambda: lane.halt is not None)
        assert told() == ("INVALID_RECORD", True, number)
    brokers.refuses = lambda *_: 0
    attempt(3)
    _until(mirrored, lambda: lane.position == 2)
    assert told() is None
    # What was refused may be gone, and then nothing is acknowledged.
    brokers.refuses = lambda *_: INVALID_RECORD
    source.chunk(ORDERS, [b"3"])
    mirrored.take(source)
    _until(mirrored, lambda: lane.halt is not None)
    mirrored._on_notes(SlotNotes(tried=(RetryNote(ORDERS, 4),)))
    assert told() is not None
    now_s = time.monotonic()
    monkeypatch.setattr(sink_task.time, "monotonic", lambda: now_s + 61)
    assert told() is None


def test_a_partition_that_the_source_retries_counts_as_halted_for_a_moment_longer(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second the fetcher asks for it again, and has no error until the answer is there."""
    mirrored, source = Mirrored(_flow()), Source(brokers)
    mirrored.take(source)
    lane, told = mirrored.lanes[ORDERS], mirrored._task._halt_of
    error = Halt("KAFKA_STORAGE_ERROR", "no disk", retriable=True)
    for _ in range(3):
        mirrored._on_notes(SlotNotes(halts=(HaltNote(ORDERS, error),)))
        assert told(lane, {}) == error
        mirrored._on_notes(SlotNotes(halts=(HaltNote(ORDERS, None),)))
        assert told(lane, {}) == error
    source.chunk(ORDERS, [b"1"])
    mirrored.take(source)
    _until(mirrored, lambda: lane.position == 1)
    assert told(lane, {}) is None
    mirrored._on_notes(SlotNotes(halts=(HaltNote(ORDERS, error),)))
    mirrored._on_notes(SlotNotes(halts=(HaltNote(ORDERS, None),)))
    now_s = time.monotonic()
    monkeypatch.setattr(sink_task.time, "monotonic", lambda: now_s + 6)
    assert told(lane, {}) is None, "it has no new records, and is well"
    mirrored._on_notes(SlotNotes(halts=(HaltNote(ORDERS, replace(error, retriable=False)),)))
    mirrored._on_notes(SlotNotes(halts=(HaltNote(ORDERS, None),)))
    assert told(lane, {}) is None, "nothing retries it: it was released"


def _until(mirrored: Mirrored, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience()  # the producer waits a little before it tries again
    while not reached() and time.monotonic() < deadline:
        mirrored.come_round()
    assert reached()


def test_who_the_group_has_given_up_commits_and_writes_no_more(brokers: Brokers) -> None:
    mirrored = Mirrored(_flow())
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    mirrored.take(source)
    mirrored.refuses = [Fenced("the group has gone on", where="B")]
    mirrored.come_round()
    mirrored.come_round()
    source.chunk(ORDERS, [b"2"])
    source.chunk(BILLS, [b"a"])
    mirrored.take(source)
    mirrored.come_round()
    mirrored.come_round()
    assert mirrored.said == []
    assert brokers.values("A.orders") == [b"1"]
    assert brokers.values("A.bills") == []


class Counted(dict[TopicPartition, Lane]):
    """The lanes; how many times all of them were gone through."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def test_a_halt_is_looked_at_once_and_not_at_each_answer(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.refuses = lambda tp, record: INVALID_RECORD if record.value == b"bad" else 0
    mirrored = Mirrored(_flow())
    source = Source(brokers)
    source.chunk(ORDERS, [b"bad"])
    mirrored.take(source)
    mirrored.come_round()
    lane = mirrored.lanes[ORDERS]
    assert lane.halt is not None
    lanes = mirrored._task.lanes = Counted(mirrored.lanes)
    looks: list[object] = []
    concerned = LaneIndex.concerned
    monkeypatch.setattr(
        LaneIndex, "concerned", lambda self, halts: looks.append(halts) or concerned(self, halts)
    )
    for _ in range(20):
        source.chunk(BILLS, [b"a"])
        mirrored.take(source)
    assert brokers.values("A.bills") == [b"a"] * 20
    assert (lanes.walks, len(looks)) == (0, 0), "a halted partition costs the others nothing"
    # What is tried again and refused again stops again, and so does one more that is refused.
    mirrored._on_notes(SlotNotes(tried=(RetryNote(ORDERS, 1),)))
    source._next[ORDERS] = 0
    source.chunk(ORDERS, [b"bad"])
    source.chunk(BILLS, [b"bad"])
    mirrored.take(source)
    mirrored.come_round()
    assert lane.halt is not None
    assert mirrored.lanes[BILLS].halt is not None
    assert lanes.walks <= 4, "but for commits"


def test_a_gap_that_cannot_be_written_down_stops_its_partition(brokers: Brokers) -> None:
    """Also when the gaps' topic was refused long before: nothing else says so again."""
    flow = _flow()
    gaps = TopicPartition(gaps_topic(flow), 0)
    brokers.refuses = lambda tp, _record: INVALID_RECORD if tp == gaps else 0
    mirrored = Mirrored(flow)
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(BILLS, [b"a"])
    mirrored.take(source)
    for one in (BILLS, ORDERS):
        gap = Gap(
            "A->B", one, REMOTE[one].topic, GapKind.DELETED, GapAction.CONTINUED, 1, 4, 4, 5,
            "OFFSETS_DELETED", "too late", 5,
        )  # fmt: skip
        mirrored._task.note_gap(GapNote(gap, Mark()))
        for _ in range(3):
            mirrored.come_round()
        assert mirrored.lanes[one].halt is not None
        assert mirrored.lanes[one].position == 1
    assert (len(brokers.values("A.orders")), len(brokers.values("A.bills"))) == (1, 1)


def test_what_waits_for_a_partition_that_its_gap_has_stopped_is_not_sent(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source reads it again with each retry: it would be there as often."""
    flow = _flow()
    gaps = TopicPartition(gaps_topic(flow), 0)
    brokers.refuses = lambda tp, _record: INVALID_RECORD if tp == gaps else 0
    mirrored = Mirrored(flow)
    lane_waits = {REMOTE[ORDERS]}
    monkeypatch.setattr(mirrored._task.ends, "may_send", lambda _, tp: tp not in lane_waits)
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    mirrored.take(source)
    gap = Gap(
        "A->B", ORDERS, "A.orders", GapKind.DELETED, GapAction.CONTINUED, 1, 4, 4, 5,
        "OFFSETS_DELETED", "too late", 5,
    )  # fmt: skip
    mirrored._task.note_gap(GapNote(gap, Mark()))
    lane = mirrored.lanes[ORDERS]
    deadline = time.monotonic() + patience()
    while lane.halt is None and time.monotonic() < deadline:
        mirrored.come_round()
    assert lane.halt is not None
    lane_waits.clear()
    for _ in range(3):
        mirrored.come_round()
    assert brokers.values("A.orders") == []
    brokers.refuses = lambda *_: 0
    mirrored._on_notes(SlotNotes(tried=(RetryNote(ORDERS, 1),)))
    source._next[ORDERS] = 0
    source.chunk(ORDERS, [b"1"])
    mirrored.take(source)
    while lane.position < 1 and time.monotonic() < deadline:
        mirrored.come_round()
    assert brokers.values("A.orders") == [b"1"]


@pytest.mark.parametrize(
    ("code", "retriable", "again"),
    [("MESSAGE_TOO_LARGE", False, False), ("REQUEST_TIMED_OUT", True, True)],
)
def test_a_repair_whose_gap_record_is_refused_for_good_is_left_to_the_next_epoch(
    brokers: Brokers, code: str, *, retriable: bool, again: bool
) -> None:
    """A retry finds the loss again and ends the task, so it has to have a chance."""
    flow = _flow()
    gaps = TopicPartition(gaps_topic(flow), 0)
    mirrored = Mirrored(flow)
    mirrored.take(Source(brokers))
    lane, task = mirrored.lanes[ORDERS], mirrored._task
    gap = Gap(
        *("A->B", ORDERS, "A.orders", GapKind.TARGET_RECREATED, GapAction.REPAIRED, 0, 4, 5),
        *(0, "TARGET_RECREATED", "made anew", 5),
    )
    brokers.refuses = lambda tp, _record: INVALID_RECORD if tp == gaps else 0
    task.note_gap(GapNote(gap, Mark(), TargetMark(topic_id="anew"), 0))
    mirrored.come_round()
    assert lane.halt is not None
    lane.halt = Halt(code, "not written", retriable)
    told = task._halt_of(lane, {})
    assert told is not None
    assert (told.retriable, told.attempt) == (again, 0)
    # Once the record is there, a refusal is one as any other.
    brokers.refuses = lambda *_: 0
    mirrored._on_notes(SlotNotes(tried=(RetryNote(ORDERS, 1),)))
    task.note_gap(GapNote(gap, Mark(), TargetMark(topic_id="anew"), 0))
    deadline = time.monotonic() + patience()  # the producer waits a little before it tries again
    while lane.queue and time.monotonic() < deadline:
        mirrored.come_round()
    lane.halt = Halt("INVALID_RECORD", "a record")
    told = task._halt_of(lane, {})
    assert told is not None
    assert told.retriable


# -- transforms ------------------------------------------------------------------------------------


def _packed(offset: int, counts: TransformCounts | None, halt: Halt | None = None) -> Packed:
    chunk = Chunk(*ORDERS, "A.orders", offset, offset, 0, -1, 0, 0)
    return Packed(chunk, memoryview(b""), halt=halt, counts=counts)


def test_what_transforms_did_is_reported_by_name(brokers: Brokers) -> None:
    """Records of a partition that has stopped are dropped, and come again."""
    mirrored = Mirrored(_flow())
    clean, mask = TransformCounts("clean", 10, 4, 5, 1), TransformCounts("mask", 3, 3)
    stops = Halt("TRANSFORM_FAILED", "it failed", retriable=True)
    for counts, halt in ((clean, None), (mask, None), (clean, stops), (clean, None), (None, None)):
        mirrored._take_packed(_packed(0, counts, halt))
    assert mirrored._task.reports.transforms == (clean.plus(clean), mask)


def test_what_the_source_worker_spent_is_reported_with_the_rest(brokers: Brokers) -> None:
    mirrored = Mirrored(_flow())
    clean = TransformCounts("clean", 10, 4, 5, 1, sql_s=2.0, pack_s=0.5)
    for seconds in (1.0, 3.0):
        mirrored._on_notes(SlotNotes(unpacked={"clean": seconds, "mask": 0.0}))
        mirrored._take_packed(_packed(0, clean))
    assert mirrored._task.reports.transforms == (
        replace(clean.plus(clean), unpack_s=3.0),
        TransformCounts("mask"),
    )


def test_a_report_is_due_when_all_records_were_filtered() -> None:
    """They move no counter of records."""
    reports = SinkReports("A->B")
    reports.slot = 0

    def told(now: float) -> tuple[TransformCounts, ...] | None:
        record = reports.record(now, {}, {}, JoinCounts())
        found = None if record is None else decode_progress(*record)
        return None if found is None else found.transforms

    assert told(1.0) == ()
    assert told(2.0) is None
    reports.transforms = (TransformCounts("clean", 5, 0, 5),)
    assert told(3.0) == reports.transforms
    assert told(4.0) is None


def test_all_positions_are_committed_again_now_and_then(brokers: Brokers) -> None:
    """Epochs are long, and brokers forget positions that nobody commits."""
    mirrored = Mirrored(_flow(offset_storage_partitions=1))
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(BILLS, [b"a", b"b"])
    mirrored.take(source)
    mirrored.come_round()
    mirrored.said.clear()
    mirrored.delivery._renewed -= RENEW_S - 5
    mirrored.come_round()
    assert mirrored.said == []
    mirrored.delivery._renewed -= 5
    mirrored.come_round()
    assert mirrored.said == [("commit", {REMOTE[ORDERS]: 1, REMOTE[BILLS]: 2})]
    assert [lane.saved for lane in mirrored.lanes.values()] == [1, 2]
    mirrored.come_round()
    assert len(mirrored.said) == 1


def test_an_added_partition_is_committed_before_its_first_record(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a crash does not make its records look like those of others."""
    monkeypatch.setattr(at_least_once, "_ADDED_S", patience())  # it ends with the commit
    mirrored = Mirrored(_flow())
    mirrored.take(Source(brokers))
    mirrored.come_round()
    mirrored.said.clear()
    new = TopicPartition("new", 3)
    hello = PartitionHello(new, "A.new", 5, -1, 9)
    mirrored._on_notes(SlotNotes(added=(hello,)))
    assert mirrored.said == [("commit", {TopicPartition("A.new", 3): 5})]
    assert (mirrored.lanes[new].position, mirrored.lanes[new].target_end) == (5, 9)
    with pytest.raises(Defect, match="new-3 is added to a slot that has it"):
        mirrored._on_notes(SlotNotes(added=(hello,)))


def test_a_coordinator_that_hangs_keeps_no_others_waiting_for_an_added_partition(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_least_once, "_ADDED_S", 2.0)
    mirrored = Mirrored(_flow())
    mirrored.take(Source(brokers))
    hanging = Hanging(mirrored)
    hello = PartitionHello(TopicPartition("new", 3), "A.new", 5, -1, 9)
    began = time.monotonic()
    mirrored._on_notes(SlotNotes(added=(hello,)))
    assert time.monotonic() - began < 20
    assert hanging.began.wait(patience())
    assert (hanging.tried, mirrored.said) == (1, [])
    hanging.go_on()


def test_a_partition_that_was_left_is_committed_once_and_stands_still_nowhere(
    brokers: Brokers, held: Held
) -> None:
    mirrored = Mirrored(_flow(offset_storage_partitions=1))
    source = Source(brokers)
    mirrored.take(source)
    mirrored.come_round()
    held.holds = True
    source.chunk(ORDERS, [b"1"])
    mirrored.take(source)
    mirrored._on_notes(
        SlotNotes(halts=(HaltNote(ORDERS, Halt("GONE", "no topic")),), left=(LeftNote(ORDERS),))
    )
    held.release()
    mirrored.come_round()
    assert mirrored.said[-1] == ("commit", {REMOTE[ORDERS]: 1})
    lane = mirrored.lanes[ORDERS]
    assert mirrored._task._halt_of(lane, {}) is None
    mirrored.said.clear()
    mirrored.delivery._renewed -= RENEW_S
    held.holds = False
    mirrored.come_round()
    assert not any(REMOTE[ORDERS] in offsets for _, offsets in mirrored.said), (
        "its remote topic may be gone, too"
    )
    mirrored._finish()
    assert not any(REMOTE[ORDERS] in offsets for _, offsets in mirrored.said)


def test_positions_in_javas_format_go_by_the_partitions_that_their_topic_has(
    brokers: Brokers,
) -> None:
    """The setting counts only when the topic is created. Kafka Connect may have created it."""
    brokers.partitions = {"mm2-offsets.A.internal": 3}
    mirrored = Mirrored(_flow())
    mirrored.take(Source(brokers))
    new = PartitionHello(TopicPartition("t1", 3), "A.t1", 101, -1, 9)
    mirrored._on_notes(SlotNotes(added=(new,)))
    mirrored._task.save_connect_offsets()
    mirrored.delivery._settle(mirrored._task.producer.pump(0.0))
    key, _ = encode_source_offset("A", TopicPartition("t1", 3), 101)
    rows = {tp.partition for tp in brokers.committed if tp.topic == "mm2-offsets.A.internal"}
    assert partition_for_key(key, 25) > 2
    assert rows == {partition_for_key(key, 3)}
