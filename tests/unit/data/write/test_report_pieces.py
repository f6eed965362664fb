"""Reports of slots with many partitions: written in pieces, and joined to the whole again."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.control.coordination.control_topic import ControlTopicReader, ControlTopicWriter
from sparkmirror.data.write import progress as progress_module
from sparkmirror.data.write.partition_state import Lane
from sparkmirror.data.write.progress import SinkReports
from sparkmirror.internal_topics.commands import PROGRESS_PARTITION
from sparkmirror.internal_topics.reports import (
    ROWS_MAX,
    ReportCollector,
    ReportPiece,
    decode_halted,
    decode_piece,
    decode_progress,
    encode_piece,
    encode_progress,
    record_names,
)
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, JoinCounts, PartitionProgress, SlotProgress

FLOW, RUN, ATTEMPT, SLOT = "A->B", "r", 7, 3
Sent = tuple[bytes, bytes]


class Sink:
    """The reports of one sink, and the compacted topic that they are written to."""

    def __init__(self, partitions: int, attempt: int = ATTEMPT) -> None:
        self.reports = SinkReports(FLOW)
        self.reports.slot, self.reports.run_id, self.reports.attempt = SLOT, RUN, attempt
        self.lanes: list[Lane] = []
        for number in range(partitions):
            self.add(number)
        self.halts: dict[int, Halt] = {}
        self.topic: dict[bytes, bytes] = {}

    def add(self, number: int) -> None:
        source = TopicPartition(f"t{number % 7}", number)
        self.lanes.append(Lane(source, TopicPartition(f"A.{source.topic}", number), 10))

    def write(self, now: float) -> list[Sent]:
        """The records of the report at ``now``, in their order."""
        halts = {lane: self.halts.get(at) for at, lane in enumerate(self.lanes)}
        record = self.reports.record(now, halts, {}, JoinCounts())
        sent = self.reports.take_pieces()
        if record is not None:
            sent.append(record)
        for key, value in sent:
            self.topic.pop(key, None)
            self.topic[key] = value
        return sent

    def move(self, at: int, records: int = 1) -> None:
        self.lanes[at].records += records
        self.lanes[at].position += records

    def wanted(self) -> dict[TopicPartition, tuple[int, Halt | None]]:
        return {
            lane.source: (lane.position, self.halts.get(at)) for at, lane in enumerate(self.lanes)
        }


def joined(records: list[Sent]) -> SlotProgress | None:
    """What a reader of ``records`` knows in the end."""
    reader = ControlTopicReader.__new__(ControlTopicReader)
    reader._reports, reader._collectors = ReportCollector(), {}
    signals = reader._read((PROGRESS_PARTITION, *record) for record in records)
    assert signals.skipped == 0
    return signals.progress[-1] if signals.progress else None


def rows(progress: SlotProgress | None) -> dict[TopicPartition, tuple[int, Halt | None]]:
    assert progress is not None
    return {TopicPartition(p.topic, p.partition): (p.position, p.halt) for p in progress.partitions}


def numbers(sent: list[Sent]) -> list[int]:
    pieces = [decode_piece(*record) for record in sent]
    return [piece.number for piece in pieces if piece is not None]


def test_a_small_slot_reports_in_one_record_that_older_releases_read() -> None:
    sink = Sink(ROWS_MAX)
    (record,) = sink.write(1.0)
    found = decode_progress(*record)
    assert rows(found) == sink.wanted()
    assert found is not None
    assert found.pieces == 0


def test_a_new_slot_reports_all_of_its_partitions_before_the_record_that_counts_them() -> None:
    sink = Sink(10 * ROWS_MAX + 1)
    sent = sink.write(1.0)
    assert numbers(sent) == list(range(11))
    head = decode_progress(*sent[-1])
    assert head is not None
    assert (head.pieces, head.partitions) == (11, ())
    assert rows(joined(sent)) == sink.wanted()


def test_only_pieces_that_have_changed_are_written_again() -> None:
    sink = Sink(4 * ROWS_MAX)
    sent = sink.write(1.0)
    sink.move(3 * ROWS_MAX)
    more = sink.write(2.0)
    assert numbers(more) == [3]
    sink.halts[ROWS_MAX] = Halt("INVALID_RECORD", "refused", retriable=True, attempt=0)
    last = sink.write(3.0)
    assert numbers(last) == [1]
    assert rows(joined(sent + more + last)) == sink.wanted()


def test_a_busy_slot_writes_few_pieces_at_a_time_and_leaves_none_out() -> None:
    sink = Sink(10 * ROWS_MAX)
    sent = sink.write(1.0)
    for at in range(len(sink.lanes)):
        sink.move(at)
    turns = []
    for second in range(2, 7):  # nothing changes meanwhile: what is left is written even so
        records = sink.write(float(second))
        sent += records
        turns.append(numbers(records))
    assert sorted(number for turn in turns for number in turn) == list(range(10))
    assert {len(turn) for turn in turns} == {2}
    assert rows(joined(sent)) == sink.wanted()
    assert sink.write(7.0) == []


def test_the_last_report_is_whole() -> None:
    sink = Sink(10 * ROWS_MAX)
    sent = sink.write(1.0)
    for at in range(len(sink.lanes)):
        sink.move(at)
    sink.reports.report_anyway()
    sent += sink.write(1.1)
    assert rows(joined(sent)) == sink.wanted()


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(5, 20))]
)
def test_what_a_compacted_topic_keeps_is_the_whole_report(seed: int) -> None:
    """For any sequence of events: the pieces joined are what one record would say."""
    chance = random.Random(seed)
    sink = Sink(chance.randrange(1, 4 * ROWS_MAX))
    log: list[Sent] = []
    now = 0.0
    for _ in range(30):
        now += chance.choice((0.2, 1.0, 1.0, 11.0))
        for _ in range(chance.randrange(40)):
            at = chance.randrange(len(sink.lanes))
            event = chance.random()
            if event < 0.7:
                sink.move(at, chance.randrange(1, 9))
            elif event < 0.8:
                sink.halts[at] = Halt("X", "y", retriable=True, attempt=chance.randrange(3))
            elif event < 0.9:
                sink.halts.pop(at, None)
            else:
                sink.add(len(sink.lanes))
        log += sink.write(now)
    sink.reports.report_anyway()
    log += sink.write(now + 0.1)
    # One key may have changed its place in the log: compaction keeps the newest record of each.
    assert rows(joined(list(sink.topic.items()))) == sink.wanted()
    assert rows(joined(log)) == sink.wanted()


def test_pieces_of_another_attempt_are_not_mixed_in() -> None:
    old, new = Sink(2 * ROWS_MAX, attempt=6), Sink(2 * ROWS_MAX, attempt=7)
    zombie = old.write(1.0)
    new.move(0, 5)
    sent = new.write(2.0)
    old.move(ROWS_MAX, 90)
    zombie_again = old.write(3.0)
    found = joined([*zombie, *sent, *zombie_again, sent[-1]])
    assert rows(found) == new.wanted()


def test_pieces_that_are_no_longer_counted_are_dropped() -> None:
    collector = ReportCollector()
    row = PartitionProgress("t", 0, 1)
    for number in range(3):
        piece = ReportPiece(FLOW, SLOT, RUN, ATTEMPT, number, (replace(row, partition=number),))
        collector.add(piece)
    progress = SlotProgress(FLOW, SLOT, "w", 1, 1, 1, 1, 1, run_id=RUN, attempt=ATTEMPT)
    found = collector.join(replace(progress, pieces=2))
    assert [one.partition for one in found.partitions] == [0, 1]
    assert found.complete


def test_a_report_says_whether_all_of_its_pieces_are_known() -> None:
    """A reader that is opened in the middle waits for the pieces that have not changed since."""
    collector = ReportCollector()
    progress = SlotProgress(FLOW, SLOT, "w", 1, 1, 1, 1, 1, run_id=RUN, attempt=ATTEMPT)
    assert collector.join(progress).complete
    for number, complete in ((1, False), (0, True)):
        row = PartitionProgress("t", number, 1)
        collector.add(ReportPiece(FLOW, SLOT, RUN, ATTEMPT, number, (row,)))
        found = collector.join(replace(progress, pieces=2))
        assert found.complete is complete


def test_a_slot_without_shared_memory_finds_halts_in_pieces() -> None:
    halt = Halt("INVALID_RECORD", "refused", retriable=True, attempt=2)
    halted = PartitionProgress("t", 1, 5, halt=halt)
    piece = ReportPiece(FLOW, SLOT, RUN, ATTEMPT, 4, (PartitionProgress("t", 0, 9), halted))
    key, value = encode_piece(piece)
    assert decode_piece(key, value) == piece
    assert decode_halted(FLOW, SLOT, (RUN, ATTEMPT), key, value) == (halted,)
    assert decode_halted(FLOW, SLOT, (RUN, ATTEMPT + 1), key, value) is None
    assert decode_halted(FLOW, 4, (RUN, ATTEMPT), key, value) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"A->B/3/rows/x", b"{}"),
        (b"A->B/3/rows/1", None),
        (b"A->B/3/rows/1", b"[]"),
        (b"A->B/3/rows/1", b"{}"),
        (b"A->B/3/rows/1", b'{"run_id":"r","attempt":1,"partitions":{"t":[[1]]}}'),
        (b"A->B/3/rows/1", b'{"run_id":"r","attempt":Infinity,"partitions":{}}'),
        (b"A->B/3/rows/1", b'{"run_id":"r","attempt":1,"partitions":[1]}'),
    ],
)
def test_malformed_pieces_are_skipped(key: bytes | None, value: bytes | None) -> None:
    assert decode_piece(key, value) is None
    assert decode_progress(key, value) is None


def test_a_large_number_of_pieces_delays_nobody() -> None:
    """Anybody who may write to the topic may write it."""
    progress = SlotProgress(FLOW, SLOT, "w", 1, 1, 1, 1, 1, pieces=1 << 60)
    found = decode_progress(*encode_progress(progress))
    assert found is not None
    assert len(record_names(found)) == 10_001
    assert joined([encode_progress(progress)]) is not None


def test_large_reports_are_compressed_and_older_readers_inflate_them() -> None:
    (key, value) = Sink(ROWS_MAX).write(1.0)[0]
    assert value[:1] == b"\x78"
    assert len(value) < 3_000
    assert decode_progress(key, value) is not None


def test_a_clock_that_is_set_back_stops_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers take no report that is older than the one they have."""
    sink, clock_s = Sink(1), [1_700_000_000.0]
    monkeypatch.setattr(progress_module.time, "time", lambda: clock_s[0])
    first = decode_progress(*sink.write(1.0)[0])
    clock_s[0] -= 3_600
    sink.move(0)
    second = decode_progress(*sink.write(3.0)[0])
    assert first is not None
    assert second is not None
    assert second.replaces(first)
    assert second.time_ms - first.time_ms == 2_000
    clock_s[0] += 7_200
    sink.move(0)
    third = decode_progress(*sink.write(4.0)[0])
    assert third is not None
    assert third.time_ms == int(clock_s[0] * 1000), "it is the clock's time again"


def test_the_records_of_an_ended_run_are_all_deleted() -> None:
    written: list[Any] = []
    cluster = SimpleNamespace(produce_many=lambda _, records: written.extend(records))
    progress = SlotProgress(FLOW, SLOT, "w", 1, 1, 1, 1, 1, pieces=2)
    assert encode_progress(progress)[0] == b"A->B/3"
    assert record_names(progress) == ["3", "3/rows/0", "3/rows/1"]
    ControlTopicWriter(cast(Any, cluster), "topic").forget(FLOW, [progress])
    reports = {key for partition, key, _ in written if partition == PROGRESS_PARTITION}
    ends = ("planner", "driver", "3", "3/rows/0", "3/rows/1")
    assert reports == {f"{FLOW}/{end}".encode() for end in ends}
    assert {value for _, _, value in written} == {None}
