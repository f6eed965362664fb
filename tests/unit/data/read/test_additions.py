"""Partitions that come and go while a slot streams: what its reader does, without a broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.data.coordination.slot_plan import plan_slots
from sparkmirror.data.read.additions import Additions
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.rows.notes import LeftNote, RetryNote
from sparkmirror.internal_topics.assignments import Orders
from sparkmirror.internal_topics.commands import AssignmentDocument, SourcePartition
from sparkmirror.internal_topics.epochs.shares import slot_of
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, PartitionProgress
from tests.unit.config_files import BASE, load_flow

PLANNED = tuple(SourcePartition("t", n, "A.t") for n in range(4))
NEW = tuple(SourcePartition("u", n, "A.u") for n in range(4))


class _Slot:
    """One of two slots; ``started``: the additions that it began."""

    def __init__(self, directory: Path, slot: int = 0) -> None:
        self.flow = load_flow(directory, BASE)
        plans = plan_slots(
            PLANNED, slots_max=2, epoch=0, run_id="r", ends=None, control_offset=0, version=5
        )
        self.reader = SlotReader(self.flow, plans[slot])
        self.started: list[tuple[SourcePartition, ...]] = []
        self.done: list[Any] = []
        self.reader._additions = self  # type: ignore[assignment]
        for tp in self.reader._by_source:
            self.reader._fetcher.assign(tp, 7)

    def start(self, partitions: tuple[SourcePartition, ...]) -> None:
        self.started.append(partitions)

    def take(self) -> list[Any]:
        done, self.done = self.done, []
        return done

    def reads(
        self,
        *partitions: SourcePartition,
        version: int = 6,
        base: int = 5,
        moves: Mapping[TopicPartition, Orders] | None = None,
    ) -> None:
        since = {p.source: 6 for p in partitions if p in NEW}
        self.reader._watch.assignment = AssignmentDocument(
            "A->B", "r", version, partitions, since=since, base=base, moves=moves or {}
        )
        self.reader._follow()

    def begins(self, *partitions: SourcePartition) -> SlotReader:
        """A reader that has begun ``partitions`` at offset 3."""
        begun = SlotReader(
            self.flow, replace(self.reader.plan, partitions=partitions), over=threading.Event()
        )
        for p in partitions:
            begun._fetcher.assign(p.source, 3)
        self.done = [(begun, {p.source: 3 for p in partitions})]
        return begun


@pytest.mark.parametrize("slot", [0, 1])
def test_a_slot_begins_its_share_of_what_is_added_once(slot: int, tmp_path: Path) -> None:
    made = _Slot(tmp_path, slot)
    mine = tuple(p for p in NEW if slot_of(p.source, 2) == slot)
    made.reads(*PLANNED, *NEW)
    assert made.started == [mine]
    made.reader._follow()
    made.reads(*PLANNED, *NEW, version=7)
    assert made.started == [mine]


def test_what_needs_a_new_epoch_is_not_begun(tmp_path: Path) -> None:
    made = _Slot(tmp_path)
    made.reads(*NEW, version=7, base=6)
    made.reads(*PLANNED, *NEW, version=5)
    assert made.started == []
    assert set(made.reader._by_source) == {p.source for p in made.reader.plan.partitions}


def test_nothing_begins_while_another_process_may_own_the_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _Slot(tmp_path)
    monkeypatch.setattr(SlotReader, "_cut_off", lambda _: True)
    made.reads(*PLANNED, *NEW)
    assert made.started == []
    monkeypatch.undo()
    made.reader._follow()
    assert len(made.started) == 1


def test_the_sink_hears_of_a_partition_before_its_first_records(tmp_path: Path) -> None:
    made = _Slot(tmp_path)
    made.reads(*PLANNED, *NEW)
    (mine,) = made.started
    begun = made.begins(*mine)
    begun._fetcher.errors["UNREACHABLE"] = 2
    begun._fetcher.halt(mine[0].source, Halt("NO_POSITION", "none"))
    made.reader._follow()
    reader = made.reader
    assert {tp: reader._fetcher.position(tp) for tp in reader._by_source} == {
        **dict.fromkeys((p.source for p in reader.plan.partitions), 7),
        **{p.source: 3 for p in mine},
    }
    assert {p.topic for p in mine} <= reader._connections.topics
    notes = reader._notes.take()
    assert notes is not None
    assert [(one.source, one.remote_topic, one.position) for one in notes.added] == [
        (p.source, p.remote_topic, 3) for p in mine
    ]
    assert notes.errors == {"UNREACHABLE": 2}
    assert [one.source for one in notes.halts] == [mine[0].source]


def test_a_partition_that_is_gone_is_fetched_no_more(tmp_path: Path) -> None:
    made = _Slot(tmp_path)
    gone = made.reader.plan.partitions[0].source
    made.reads(*(p for p in PLANNED if p.source != gone))
    assert gone not in made.reader._by_source
    with pytest.raises(KeyError):
        made.reader._fetcher.position(gone)
    notes = made.reader._notes.take()
    assert notes is not None
    assert notes.left == (LeftNote(gone),)
    # A report of the sink that it had given it up is late: it does not begin again.
    halt = Halt("REQUEST_TIMED_OUT", "slow", retriable=True, attempt=0)
    late = PartitionProgress(gone.topic, gone.partition, 7, halt=halt)
    assert not made.reader._retries.stop(gone, late)
    made.reader._retries._stopped[gone].due = 0.0
    made.reader._try_again()
    with pytest.raises(KeyError):
        made.reader._fetcher.position(gone)


def test_a_partition_leaves_with_the_order_and_comes_back_as_another_attempt(
    tmp_path: Path,
) -> None:
    made = _Slot(tmp_path)
    moved = made.reader.plan.partitions[0]
    made.reads(*PLANNED, moves={moved.source: Orders(((1, 6),))})
    assert moved.source not in made.reader._by_source
    notes = made.reader._notes.take()
    assert notes is not None
    assert notes.left == (LeftNote(moved.source, 6),)
    # The other slot has it for a while, which changes nothing here.
    made.reads(*PLANNED, version=7, moves={moved.source: Orders(((1, 6),), released=True)})
    made.reads(*PLANNED, version=8, moves={moved.source: Orders(((1, 6), (0, 8)))})
    assert made.started == []
    made.reads(*PLANNED, version=9, moves={moved.source: Orders(((1, 6), (0, 8)), released=True)})
    assert made.started == [(moved,)]
    made.begins(moved)
    made.reader._follow()
    assert made.reader._fetcher.position(moved.source) == 3
    notes = made.reader._notes.take()
    assert notes is not None
    assert [one.source for one in notes.added] == [moved.source]
    assert notes.tried == (RetryNote(moved.source, 1),), "what the sink said before is void"


def test_a_partition_that_moves_on_before_it_has_begun_is_released(tmp_path: Path) -> None:
    made = _Slot(tmp_path, 1)
    moved = PLANNED[0]
    made.reads(*PLANNED, moves={moved.source: Orders(((1, 6),), released=True)})
    assert made.started == [(moved,)]
    made.reads(*PLANNED, version=7, moves={moved.source: Orders(((1, 6), (0, 7)))})
    made.begins(moved)
    made.reader._follow()
    assert moved.source not in made.reader._by_source
    notes = made.reader._notes.take()
    assert notes is not None
    assert [one.source for one in notes.added] == [moved.source]
    assert notes.left == (LeftNote(moved.source, 7),)


def test_a_partition_that_is_gone_before_it_has_begun_is_left_at_once(tmp_path: Path) -> None:
    made = _Slot(tmp_path)
    made.reads(*PLANNED, *NEW)
    (mine,) = made.started
    made.reads(*PLANNED, version=7)
    made.begins(*mine)
    made.reader._follow()
    assert set(made.reader._by_source) == {p.source for p in made.reader.plan.partitions}
    notes = made.reader._notes.take()
    assert notes is not None
    assert [one.source for one in notes.added] == [p.source for p in mine]
    assert set(notes.left) == {LeftNote(p.source) for p in mine}


def test_beginnings_are_taken_when_they_are_there() -> None:
    may, tp = threading.Event(), TopicPartition("t", 0)
    one = SourcePartition("t", 0, "A.t")

    def begin(partitions: tuple[SourcePartition, ...], _: threading.Event) -> TopicPartition:
        assert may.wait(10)
        return partitions[0].source

    additions = Additions(begin)
    additions.start((one,))
    assert additions.take() == []
    thread = additions._threads[0]
    may.set()
    thread.join()
    assert additions.take() == [tp]
    assert additions.take() == []


def test_an_error_of_a_beginning_is_the_slots() -> None:
    def begin(_: object, over: threading.Event) -> None:
        assert over.wait(10)
        raise RuntimeError("given up")

    additions = Additions(begin)
    additions.start((SourcePartition("t", 0, "A.t"),))
    thread = additions._threads[0]
    additions.close()
    thread.join()
    with pytest.raises(RuntimeError, match="given up"):
        additions.take()


@pytest.mark.parametrize(("ends", "over"), [(None, True), ({TopicPartition("t", 0): 10}, False)])
def test_a_control_topic_that_was_cut_off_ends_an_epoch_but_no_bounded_run(
    ends: dict[TopicPartition, int] | None,
    over: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bounded run has no other epoch: it would end before it has copied everything."""
    reader = _Slot(tmp_path).reader
    reader._ends, reader._lacking = ends, dict(ends or {})
    monkeypatch.setattr(type(reader._watch), "truncated", True)
    assert reader._over(time.monotonic() + 60) is over
