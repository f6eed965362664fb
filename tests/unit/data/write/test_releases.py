"""What a sink does with a partition that another slot gets: when it is released, and what stays."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.data.rows.notes import LeftNote, PartitionHello, SlotNotes
from sparkmirror.data.rows.rows import read_row
from sparkmirror.data.write import progress
from sparkmirror.data.write.offset_sync_writer import NO_SYNCS, SyncSender
from sparkmirror.data.write.progress import Releases
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.errors import Defect, Fenced, Unreachable
from sparkmirror.internal_topics.epochs.releases import Release, decode_release
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.settings import FlowSettings, OffsetSyncSettings
from tests.unit.data.write.test_exactly_once import (
    BILLS,
    ORDERS,
    REMOTE,
    A,
    B,
    Brokers,
    Source,
    simulated,
)
from tests.unit.data.write.test_slot_sink import Held, Mirrored

ORDER = 7
LEFT = SlotNotes(left=(LeftNote(ORDERS, ORDER),))
RELEASED = Release("A->B", "r", 0, 0, ORDER, (ORDERS,))


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with simulated() as found:
        yield found


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> Held:
    return Held(monkeypatch)


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> list[Release]:
    """Those that are written."""
    found: list[Release] = []
    append = SinkTask._append_record

    def keep(task: SinkTask, tp: TopicPartition, key: bytes, value: bytes, *more: Any) -> None:
        release = decode_release(key, value)
        if release is None:
            append(task, tp, key, value, *more)
        else:
            found.append(release)

    monkeypatch.setattr(SinkTask, "_append_record", keep)
    return found


def _flow(**options: Any) -> FlowSettings:
    return FlowSettings(A, B, A, B, position_interval_ms=3_600_000, **options)


# -- at-least-once -----------------------------------------------------------------------------


def _begun(brokers: Brokers, **options: Any) -> tuple[Mirrored, Source]:
    mirrored, source = Mirrored(_flow(**options)), Source(brokers)
    mirrored.take(source)
    mirrored.come_round()
    mirrored.said.clear()
    return mirrored, source


def test_a_partition_is_released_once_it_is_written_and_committed(
    brokers: Brokers, held: Held, releases: list[Release]
) -> None:
    mirrored, source = _begun(brokers)
    held.holds = True
    source.chunk(ORDERS, [b"1", b"2"])
    mirrored.take(source)
    mirrored._on_notes(LEFT)
    mirrored.come_round()
    assert releases == [], "it is in flight"
    mirrored.said.clear()
    mirrored.refuses = [Unreachable("away")]
    mirrored.delivery._let_go_at = math.inf  # however long the machine takes
    held.release()
    mirrored.come_round()
    assert (mirrored.said, releases) == ([], []), "its position could not be committed"
    mirrored.delivery._let_go_at = 0.0
    mirrored.come_round()
    assert mirrored.said == [("commit", {REMOTE[ORDERS]: 2})]
    assert releases == [RELEASED]
    assert ORDERS not in mirrored.lanes
    mirrored.come_round()
    assert len(releases) == 1


def test_a_partition_is_not_released_before_offset_syncs_that_wait_for_another_commit(
    monkeypatch: pytest.MonkeyPatch, brokers: Brokers, releases: list[Release]
) -> None:
    """They were taken for a commit of other partitions: written later, they would follow those of
    the next slot, and lead readers back.
    """
    mirrored, source = _begun(brokers)
    source.chunk(ORDERS, [b"1", b"2"])
    mirrored.take(source)
    delivery: Any = mirrored.delivery
    mirrored._on_notes(LEFT)
    delivery._covered = [(b"sync", b"of orders")], []
    monkeypatch.setattr(delivery, "_committed", lambda **_: None)  # it lasts
    mirrored.come_round()
    lane = mirrored.lanes[ORDERS]
    lane.committed, lane.marked, lane.logged = lane.position, lane.mark, lane.log
    mirrored.come_round()
    assert (lane.due, releases) == (False, [])
    delivery._covered = NO_SYNCS
    mirrored.come_round()
    assert releases == [RELEASED]


def test_what_a_slot_has_mirrored_still_counts_when_a_partition_has_left(
    brokers: Brokers, releases: list[Release]
) -> None:
    mirrored, source = _begun(brokers)
    source.chunk(ORDERS, [b"1", b"2"])
    source.chunk(BILLS, [b"a"])
    mirrored.take(source)
    mirrored._on_notes(LEFT)
    mirrored.come_round()
    assert releases == [RELEASED]
    assert mirrored._task.counts()[0] == 3
    assert mirrored._task.reports.left_counts[0] == 2
    # It comes back, and goes on where it was.
    hello = PartitionHello(ORDERS, REMOTE[ORDERS].topic, 5, 5, 9)
    mirrored._on_notes(SlotNotes(added=(hello,)))
    assert mirrored.lanes[ORDERS].records == 2
    assert mirrored._task.counts()[0] == 3
    assert mirrored._task.reports.left_counts == (0, 0)


def test_records_of_a_partition_that_another_slot_has_are_refused(
    brokers: Brokers, releases: list[Release]
) -> None:
    mirrored, source = _begun(brokers)
    mirrored._on_notes(LEFT)
    mirrored.come_round()
    assert releases == [RELEASED]
    source.chunk(ORDERS, [b"1"])
    with pytest.raises(Defect, match="orders-0 arrive after another slot has got it"):
        mirrored.take(source)
    assert brokers.values("A.orders") == []


def test_a_partition_waits_a_moment_for_its_last_offset_syncs(
    brokers: Brokers, releases: list[Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next slot's syncs follow them; one that cannot be written keeps nothing up for long."""
    put: list[Any] = []
    sender = SimpleNamespace(put=lambda syncs, _: put.extend(syncs), flush=lambda _: not put)
    monkeypatch.setattr(SyncSender, "of", lambda _: sender)
    mirrored, source = _begun(brokers, offset_syncs=OffsetSyncSettings(enabled=True, lag_max=0))
    source.chunk(ORDERS, [b"1"])
    mirrored.take(source)
    mirrored._on_notes(LEFT)
    mirrored.come_round()
    assert (len(put), releases) == (1, [])
    (lane,) = mirrored._task.leaving
    _, until = mirrored._task.leaving[lane]
    assert until is not None
    mirrored._task.release([lane], until - 0.1)
    assert releases == []
    mirrored._task.release([lane], until)
    assert releases == [RELEASED]


def test_a_task_that_never_began_a_partition_releases_it_at_once(
    brokers: Brokers, releases: list[Release]
) -> None:
    mirrored, _ = _begun(brokers)
    mirrored._on_notes(SlotNotes(released=(LeftNote(TopicPartition("t", 3), ORDER),)))
    assert [one.partitions for one in releases] == [(TopicPartition("t", 3),)]
    assert set(mirrored.lanes) == {ORDERS, BILLS}


# -- exactly-once ------------------------------------------------------------------------------


def _exactly(brokers: Brokers) -> tuple[SlotSink, Source]:
    flow = _flow(exactly_once=True, transaction_interval_ms=3_600_000, offset_storage_partitions=1)
    mirrored, source = SlotSink(flow), Source(brokers)
    _take(mirrored, source)
    return mirrored, source


def _take(mirrored: SlotSink, source: Source) -> None:
    for row in source.rows:
        mirrored._take(*read_row(row, 0))
    source.rows.clear()


def test_a_transaction_ends_for_a_partition_that_leaves(
    brokers: Brokers, releases: list[Release]
) -> None:
    mirrored, source = _exactly(brokers)
    source.chunk(ORDERS, [b"1", b"2"])
    _take(mirrored, source)
    mirrored._housekeep()
    assert brokers.commits == []
    mirrored._on_notes(LEFT)
    mirrored._housekeep()
    assert brokers.commits == [{"A.orders"}]
    assert brokers.positions[REMOTE[ORDERS]] == 2
    assert releases == [RELEASED]
    assert ORDERS not in mirrored._task.lanes


def test_a_partition_without_news_is_committed_once_more(
    brokers: Brokers, releases: list[Release]
) -> None:
    """Whoever can commit after the order has not been fenced by one who does not know it."""
    mirrored, _ = _exactly(brokers)
    mirrored._task.lanes[ORDERS].position = 0
    mirrored._delivery._commit()  # type: ignore[attr-defined]
    commits = len(brokers.commits)
    mirrored._on_notes(LEFT)
    mirrored._housekeep()
    assert len(brokers.commits) == commits + 1
    assert releases == [RELEASED]


def test_who_was_fenced_releases_nothing(
    brokers: Brokers, releases: list[Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored, _ = _exactly(brokers)

    def fenced(*_: object, **__: object) -> None:
        raise Fenced("another attempt writes")

    monkeypatch.setattr(brokers, "end", fenced)
    mirrored._on_notes(LEFT)
    with pytest.raises(Fenced):
        mirrored._housekeep()
    assert releases == []


def test_a_partition_without_a_position_is_left_to_a_new_epoch(
    brokers: Brokers, releases: list[Release]
) -> None:
    mirrored, _ = _exactly(brokers)
    mirrored._task.lanes[ORDERS].position = -1
    mirrored._on_notes(LEFT)
    mirrored._housekeep()
    mirrored._housekeep()
    assert releases == []


def test_a_partition_that_comes_back_is_checked_for_what_others_left_open(
    brokers: Brokers, releases: list[Release]
) -> None:
    mirrored, source = _exactly(brokers)
    source.chunk(ORDERS, [b"1"])
    _take(mirrored, source)
    mirrored._on_notes(LEFT)
    mirrored._housekeep()
    assert releases == [RELEASED]
    open_ends = mirrored._delivery._open_ends  # type: ignore[attr-defined]
    assert not open_ends.unsure(REMOTE[ORDERS])
    hello = PartitionHello(ORDERS, REMOTE[ORDERS].topic, 1, 1, 9)
    mirrored._on_notes(SlotNotes(added=(hello,)))
    assert open_ends.unsure(REMOTE[ORDERS])


# -- the record --------------------------------------------------------------------------------


def test_one_record_has_all_releases_of_the_newest_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "run_key", lambda: "k" * 32)
    releases = Releases(signed=True)
    assert releases.record([LeftNote(ORDERS, 7)]) is None, "the slot has no name yet"
    hello: Any = SimpleNamespace(channel="A->B", run_id="r", slot=2, epoch=4)
    releases.begin(hello)

    def said(*notes: LeftNote) -> Release | None:
        record = releases.record(notes)
        return None if record is None else decode_release(*record, Signer("k" * 32))

    assert said() is None
    assert said(LeftNote(ORDERS, 7)) == Release("A->B", "r", 2, 4, 7, (ORDERS,))
    assert said(LeftNote(BILLS, 7)) == Release("A->B", "r", 2, 4, 7, (BILLS, ORDERS))
    assert said(LeftNote(BILLS, 9)) == Release("A->B", "r", 2, 4, 9, (BILLS,))
    assert said(LeftNote(ORDERS, 7)) is None


def test_a_control_topic_that_takes_records_again_gets_releases_and_reports(
    brokers: Brokers,
) -> None:
    mirrored, _ = _begun(brokers)
    task = mirrored._task
    backlog, control = task.reporter.backlog, task._control
    for write in (
        lambda: task.write_releases([LeftNote(ORDERS, 7)]),
        lambda: task.report(time.monotonic() + 60),
    ):
        task._append_record(control, b"key", b"value")
        backlog.give_up(control, Halt("NOT_ENOUGH_REPLICAS", "it took nothing for long", True))
        assert backlog.idle
        task.reports.report_anyway()
        write()
        assert backlog.halts == {}
        queue = backlog.queue(control)
        assert queue is not None
        assert len(queue.pending) == 1
