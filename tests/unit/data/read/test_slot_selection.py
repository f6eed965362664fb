"""What the source makes of an answer that does not fit the log that it says it is from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from crc32c import crc32c

from sparkmirror.data.coordination.slot_plan import plan_slots
from sparkmirror.data.read import loss_detection, slot_reader
from sparkmirror.data.read.loss_detection import Finding, judge
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.read.target_loss import Verdict
from sparkmirror.data.rows.rows import RUNS_MAX, read_row
from sparkmirror.data.transform.portions import portions
from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.internal_topics.gaps import GapKind
from sparkmirror.internal_topics.position_metadata import LEADER_EPOCH_LOST, Mark, TargetMark
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.wire.cluster.log_view import LogView
from sparkmirror.wire.fetch.fetcher import FetchedPartition
from tests.unit.config_files import BASE, load_flow

TP = TopicPartition("t", 0)


@pytest.fixture
def reader(tmp_path: Path) -> SlotReader:
    flow = load_flow(tmp_path, BASE)
    partitions = [SourcePartition("t", 0, "A.t")]
    (plan,) = plan_slots(partitions, slots_max=1, epoch=0, run_id="r", ends=None, control_offset=0)
    made = SlotReader(flow, plan)
    made._fetcher.assign(TP, 5)
    return made


def _answer(base_offset: int, high_watermark: int) -> FetchedPartition:
    batch = encode_batch(
        [Record(base_offset, 1, None, b"v"), Record(base_offset + 1, 1, None, b"w")]
    )
    return FetchedPartition(TP, 5, high_watermark, high_watermark, 0, [], memoryview(batch))


def _reader(directory: Path, where: str, more: str = "") -> SlotReader:
    """A reader that is at offset 5; with a transform, if there is a condition for it."""
    key = "A->B.sparkmirror.transform"
    lines = f"{key}s = one\n{key}.one.topics = t\n{key}.one.where = {where}\n" if where else ""
    flow = load_flow(directory, BASE + lines + more)
    partitions = [SourcePartition("t", 0, "A.t")]
    (plan,) = plan_slots(partitions, slots_max=1, epoch=0, run_id="r", ends=None, control_offset=0)
    reader = SlotReader(flow, plan)
    reader._fetcher.assign(TP, 5)
    return reader


@pytest.mark.parametrize("transformed", [False, True])
def test_who_stamped_records_is_kept_for_transforms_alone(
    transformed: bool, tmp_path: Path
) -> None:
    """Mirrored batches do not say it: their timestamps are those of a producer."""
    reader = _reader(tmp_path, "timestampType = 1" if transformed else "")
    answer = _answer(5, 9)
    stamped = bytearray(answer.records)
    stamped[22] |= 0x08
    stamped[17:21] = crc32c(bytes(stamped[21:])).to_bytes(4, "big")
    mine = encode_batch([Record(7, 1, None, b"v")])
    row = reader._row([replace(answer, records=memoryview(bytes(stamped) + mine))])
    ((chunk,), _, _, _) = read_row(row, 0)
    assert chunk.record_count == 3
    assert chunk.appended == ([[5, 7]] if transformed else ())


@pytest.mark.parametrize("transformed", [False, True])
def test_a_transform_knows_the_offset_of_each_record_of_a_compacted_log(
    transformed: bool, tmp_path: Path
) -> None:
    """However many gaps there are: it may stop or divide the chunk at any record."""
    reader = _reader(tmp_path, "true" if transformed else "")
    offsets = range(5, 5 + 2 * (RUNS_MAX + 500), 2)
    batch = encode_batch([Record(offset, 1, None, b"v") for offset in offsets])
    end = offsets[-1] + 1
    row = reader._row([FetchedPartition(TP, 5, end, end, 0, [], memoryview(batch))])
    assert row is not None
    ((chunk,), records, _, _) = read_row(row, 0)
    (found,) = portions(chunk, records[chunk.start : chunk.start + chunk.size])
    if transformed:
        assert found.columns.offset.tolist() == list(offsets)
    else:
        assert len(chunk.runs) == RUNS_MAX


def test_a_watermark_that_was_read_too_early_is_no_damage(reader: SlotReader) -> None:
    assert reader._select(_answer(5, 6)) is None
    chosen = reader._select(_answer(5, 7))
    assert chosen is not None
    assert chosen.next_offset == 7
    assert reader._fetcher.errors == {}


def test_offsets_that_stay_past_the_end_of_the_log_are_damage(reader: SlotReader) -> None:
    for _ in range(3):
        assert reader._select(_answer(900, 7)) is None
    assert reader._fetcher.errors == {}
    assert reader._select(_answer(900, 7)) is None
    assert reader._fetcher.errors == {"CORRUPT_BATCH": 1}


def _damaged(offset: int) -> FetchedPartition:
    part = _answer(offset, offset + 2)
    data = bytearray(part.records)
    data[-1] ^= 0x55
    part.records = memoryview(data)
    return part


def test_damage_is_never_passed_and_fetched_again_at_its_place(reader: SlotReader) -> None:
    for _ in range(2):
        assert reader._row([_damaged(5)]) is None
        assert reader._fetcher.halts == {}
    assert reader._row([_damaged(5)]) is None
    halt = reader._fetcher.halts[TP]
    assert halt.retriable
    assert "CRC" in halt.reason
    assert reader._fetcher.errors == {"CORRUPT_BATCH": 3}
    assert reader._fetcher.position(TP) == 5
    assert reader._row([_answer(5, 7)]) is not None
    assert reader._fetcher.position(TP) == 7
    assert reader._intact._corrupt == {}


def test_a_log_that_nobody_answers_for_is_asked_about_at_its_next_leader(
    reader: SlotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A held partition is not fetched, so that no fetch says that its leader is another one."""
    asked: list[TopicPartition | None] = []
    monkeypatch.setattr(reader._losses, "examine", lambda *_, **__: {})
    monkeypatch.setattr(reader._connections, "mark_stale", asked.append)
    reader._examine([TP])
    assert asked == [TP]


def test_what_the_target_has_since_a_loss_is_left_out(reader: SlotReader) -> None:
    verdict = Verdict(5, TargetMark(there_first=6, there_end=20))
    assert reader._first(TP, verdict) == 5
    row = reader._row([_answer(5, 7)])
    assert row is not None
    chunks, *_ = read_row(row, 0)
    told = [(one.base_offset, one.next_offset, one.record_count, one.size > 0) for one in chunks]
    assert told == [(5, 20, 1, True)]
    assert reader._fetcher.position(TP) == 20
    # At these offsets, too; not behind them, and not without such records.
    for position in (6, 10):
        assert reader._first(TP, replace(verdict, position=position)) == position
        assert reader._jumps.pop(TP) == (6, 20)
    for position in (20, 25):
        assert reader._first(TP, replace(verdict, position=position)) == position
    assert reader._first(TP, Verdict(5, TargetMark())) == 5
    assert reader._jumps == {}


def test_behind_what_is_left_out_the_leader_epoch_is_not_known(reader: SlotReader) -> None:
    """That of the records before it may end there, which would look like a truncation."""
    verdict = Verdict(5, TargetMark(there_first=6, there_end=20))
    reader._losses.marks[TP] = Mark("c", "id", 3)
    reader._first(TP, verdict)
    assert reader._losses.marks[TP] == Mark("c", "id", 3)
    row = reader._row([_answer(5, 7)])
    assert row is not None
    assert [one.leader_epoch for one in read_row(row, 0)[0]] == [LEADER_EPOCH_LOST]
    assert reader._losses.marks[TP] == Mark("c", "id", -1)


@pytest.mark.parametrize(
    ("known", "before", "behind", "lost"),
    [
        pytest.param(5, 5, 6, True, id="an epoch begins in the hole"),
        pytest.param(5, -1, 6, True, id="no batch is before it"),
        pytest.param(5, 5, 5, False, id="the hole is within an epoch"),
        pytest.param(5, -1, 5, False, id="the position's epoch goes on behind it"),
        pytest.param(5, 6, 6, False, id="the epoch has begun before it"),
    ],
)
def test_a_bounded_run_that_ends_in_a_compaction_hole_has_lost_nothing(
    known: int, before: int, behind: int, lost: bool, tmp_path: Path
) -> None:
    """What the cleaner removed may have begun another leader epoch: that before it has ended."""
    partitions = [SourcePartition("t", 0, "A.t")]
    (plan,) = plan_slots(
        partitions, slots_max=1, epoch=0, run_id="r", ends={TP: 8}, control_offset=0
    )
    reader = SlotReader(load_flow(tmp_path, BASE), plan)
    reader._fetcher.assign(TP, 5)
    reader._losses.marks[TP] = Mark("c", "id", known)
    answer = b"" if before < 0 else _batch(5, before)
    row = reader._row(
        [FetchedPartition(TP, 5, 90, 90, 0, [], memoryview(answer + _batch(10, behind)))]
    )
    ((chunk,), *_) = read_row(row, 0)
    assert chunk.next_offset == 8
    assert not reader._fetcher.assigned(TP), "it needs no more"
    mark = Mark("c", "id", -1 if lost else behind)
    assert reader._losses.marks[TP] == mark
    assert (chunk.leader_epoch == LEADER_EPOCH_LOST) == lost
    end = {-1: -1, 5: 7 if behind == 6 else 90, 6: 90}[mark.leader_epoch]
    view = LogView(0, 90, mark.leader_epoch, end, behind)
    assert judge(TP, 8, mark, Mark("c", "id"), view) is None


@pytest.mark.parametrize("begins_at", [5, 8])
def test_a_bounded_run_needs_no_broker_for_what_it_has_copied(
    begins_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that goes away while others are copied would end the run with an error."""
    other, lost = TopicPartition("t", 1), TopicPartition("t", 2)
    partitions = [SourcePartition("t", number, "A.t") for number in range(3)]
    (plan,) = plan_slots(
        partitions, slots_max=1, epoch=0, run_id="r", ends={TP: 8, other: 9, lost: 9},
        control_offset=0,
    )  # fmt: skip
    reader = SlotReader(load_flow(tmp_path, BASE), plan)
    reader._fetcher.assign(TP, begins_at)
    reader._fetcher.assign(other, 5)
    reader._fetcher.assign(lost, 9)
    reader._losses.marks = dict.fromkeys((TP, other), Mark("c", "id", 3))
    reader._fetcher.halt(lost, Halt("SOURCE_TRUNCATED", "it was truncated"))
    reader._fetcher.halt(TP, Halt("BROKER_NOT_AVAILABLE", "a while ago", retriable=True))
    monkeypatch.setattr(slot_reader, "check_claim", lambda *_: None)
    with monkeypatch.context() as begin:
        begin.setattr(reader, "_over", lambda _: True)
        assert list(reader._stream(math.inf)) == []
    if begins_at < 8:
        assert reader._fetcher.assigned(TP)
        assert reader._row([FetchedPartition(TP, 5, 90, 90, 0, [], memoryview(_batch(7, 3)))])
    assert not reader._fetcher.assigned(TP)
    assert list(reader._fetcher.halts) == [lost]
    assert not reader._over(math.inf)
    reader._row([FetchedPartition(other, 5, 90, 90, 0, [], memoryview(_batch(8, 3)))])
    assert reader._over(math.inf)
    reader._close()


def _batch(offset: int, epoch: int) -> bytes:
    data = bytearray(encode_batch([Record(offset, 1, None, b"v")]))
    data[12:16] = epoch.to_bytes(4, "big")
    return bytes(data)


def _begin(reader: SlotReader, position: int, view: LogView, patch: pytest.MonkeyPatch) -> Mark:
    """Begin at ``position``, in a log that is now as in ``view``; returns the sink's mark there."""
    reader._connections.cluster_id, reader._connections.topic_ids = "c", {"t": "id"}
    patch.setattr(loss_detection, "describe_logs", lambda *_, **__: {TP: view})
    reader._losses.marks[TP] = Mark("c", "id", 3)
    reader._begins.verdicts[TP] = Verdict(position, TargetMark(there_first=6, there_end=20))
    positions = reader._begin({TP: position}, reader._connections)
    assert positions == {TP: position}
    (begun,) = reader._begins.partitions(positions, reader._marks_before)
    assert begun.position == position
    return begun.mark


def test_what_the_target_has_is_left_out_once_the_log_is_checked(
    reader: SlotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the sink's position moves on, it keeps its leader epoch for the next check."""
    assert _begin(reader, 6, LogView(0, 30, 3, 30), monkeypatch) == Mark("c", "id", 3)
    assert reader._fetcher.position(TP) == 20
    assert reader._losses.marks[TP] == Mark("c", "id", -1)
    assert reader._losses.gaps == []


@pytest.mark.parametrize(
    ("position", "start", "lost", "begins"),
    [
        (6, 15, None, 20),
        (6, 20, None, 20),
        (10, 15, None, 20),
        (6, 25, (20, 24, 5), 25),
        (5, 10, (5, 9, 5), 20),
    ],
)
def test_records_that_the_target_has_are_not_lost_when_the_source_deletes_them(
    position: int,
    start: int,
    lost: tuple[int, int, int] | None,
    begins: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = _reader(tmp_path, "", "A->B.sparkmirror.on.source.loss = record-and-continue\n")
    assert _begin(reader, position, LogView(start, 30, 3, 30), monkeypatch) == Mark("c", "id", 3)
    gaps = [(gap.first, gap.last, gap.count) for gap, _ in reader._losses.gaps]
    assert gaps == ([] if lost is None else [lost])
    assert reader._fetcher.position(TP) == begins
    assert reader._losses.marks[TP] == Mark("c", "id", -1)


@pytest.mark.parametrize("choice", ["fail", "record-and-continue"])
def test_a_truncated_log_has_other_records_than_the_target(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records at the offsets that the target has are new ones."""
    reader = _reader(tmp_path, "", f"A->B.sparkmirror.on.source.loss = {choice}\n")
    assert _begin(reader, 6, LogView(0, 30, 3, 4), monkeypatch) == Mark("c", "id", 3)
    ((gap, _),) = reader._losses.gaps
    assert (gap.kind, gap.first, gap.last) == (GapKind.TRUNCATED, 4, 5)
    if choice == "fail":
        assert reader._fetcher.halts[TP].code == gap.code
    else:
        assert reader._fetcher.position(TP) == 4
        assert reader._jumps == {}


def _told(reader: SlotReader, answer: FetchedPartition) -> list[tuple[int, int, int]]:
    row = reader._row([answer])
    assert row is not None
    return [(one.base_offset, one.next_offset, one.record_count) for one in read_row(row, 0)[0]]


def test_a_retry_leaves_out_what_the_target_has_since_a_loss(
    reader: SlotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader._losses.marks[TP] = Mark("c", "id", 3)
    reader._first(TP, Verdict(5, TargetMark(there_first=6, there_end=20)))
    assert _told(reader, _answer(5, 7)) == [(5, 20, 1)]
    assert _told(reader, replace(_answer(20, 22), fetch_offset=20)) == [(20, 22, 2)]
    due = [(TP, 1, 5), (TP, 2, 6)]
    monkeypatch.setattr(reader._retries, "take_due", lambda: [due.pop(0)])
    reader._try_again()
    assert reader._fetcher.position(TP) == 5
    assert _told(reader, _answer(5, 7)) == [(5, 20, 1)]
    reader._losses.marks[TP] = Mark("c", "id", 3)
    reader._try_again()
    assert reader._fetcher.position(TP) == 6
    assert reader._losses.marks[TP] == Mark("c", "id", 3)
    monkeypatch.setattr(reader._losses, "examine", lambda *_, **__: {TP: Finding(6, ("id", 0))})
    reader._examine([TP])
    assert reader._fetcher.position(TP) == 20
    assert reader._losses.marks[TP] == Mark("c", "id", -1)


@pytest.mark.parametrize(("log_goes_on", "told"), [(True, [(5, 20, 1)]), (False, [(5, 7, 2)])])
def test_another_log_has_other_records_at_the_offsets_to_leave_out(
    log_goes_on: bool,
    told: list[tuple[int, int, int]],
    reader: SlotReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader._first(TP, Verdict(4, TargetMark(there_first=6, there_end=20)))
    found = Finding(5, ("id", 0), log_goes_on=log_goes_on)
    monkeypatch.setattr(reader._losses, "examine", lambda *_, **__: {TP: found})
    reader._examine([TP])
    assert _told(reader, _answer(5, 7)) == told


@pytest.mark.parametrize(
    ("offset", "begins"), [(4, 4), (5, 5), (6, 20), (10, 20), (19, 20), (20, 20), (30, 30)]
)
def test_a_log_that_begins_later_goes_on_after_what_is_left_out(
    offset: int, begins: int, reader: SlotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader._first(TP, Verdict(5, TargetMark(there_first=6, there_end=20)))
    found = Finding(offset, ("id", 0))
    monkeypatch.setattr(reader._losses, "examine", lambda *_, **__: {TP: found})
    reader._examine([TP])
    assert reader._fetcher.position(TP) == begins


@dataclass(eq=False)
class _Broker:
    """A connection on which there is always a response."""

    last_used: float = 0.0


class _OneFrame:
    """Memory of which the sink frees one frame at a time."""

    def __init__(self) -> None:
        self.starved = True
        self.served: list[_Broker] = []

    def note(self) -> None:
        return None

    def take_message(self) -> bytes:
        return b""

    def held_back(self) -> list[int]:
        return []

    def free(self, _: float) -> list[object]:
        self.starved = False
        return []

    def receive(self, connection: _Broker) -> list[FetchedPartition]:
        self.served.append(connection)
        connection.last_used = float(len(self.served))
        self.starved = True
        return []


def _rounds(reader: SlotReader, count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the loop of ``reader`` go round ``count`` times; nothing but responses happens."""
    left = iter([False] * count)
    for name in ("_follow", "_send_fetches"):
        monkeypatch.setattr(reader, name, lambda: None)
    monkeypatch.setattr(reader, "_over", lambda _: next(left, True))
    monkeypatch.setattr(reader._watch, "follow_reports", lambda _: None)
    monkeypatch.setattr(reader._watch, "fetcher", SimpleNamespace(send=int, next_due_s=lambda: 9.0))
    yield from reader._stream(float("inf"))


def test_with_little_memory_each_broker_has_its_turn(
    reader: SlotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each free frame is for one response, and a poll reports connections in a fixed order."""
    frames = _OneFrame()
    one, two = _Broker(), _Broker()
    monkeypatch.setattr(reader, "_frames", frames)
    monkeypatch.setattr(reader._fetcher, "receive", frames.receive)
    monkeypatch.setattr(reader._any, "wait", lambda _: [one, two])
    monkeypatch.setattr(reader._control, "wait", frames.free)
    for _ in _rounds(reader, 10, monkeypatch):
        pass
    assert frames.served[:4] == [one, two, one, two]
    assert len(frames.served) == 5
