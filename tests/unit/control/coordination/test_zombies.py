"""Who speaks for a slot: the attempt that has it, and no other that does not know that it is over.

Spark gives an attempt of a task up that may still run: its sink goes on reporting, every ten
seconds, where it stood. What such a report, one of another run, or one of an older release does.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.control.coordination.contest import ClaimState
from sparkmirror.control.coordination.control_topic import ControlSignals, ControlTopicReader
from sparkmirror.control.coordination.status import FlowState, judge
from sparkmirror.control.flow import FlowControl
from sparkmirror.control.jobs import run_once
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.data.coordination.slot_plan import plan_slots
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.rows.notes import GapNote, RetryNote, SlotNotes
from sparkmirror.data.rows.rows import Chunk, build_row, read_row
from sparkmirror.data.write.progress import SinkReports
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.errors import Defect, Fenced
from sparkmirror.internal_topics.commands import (
    PROGRESS_PARTITION,
    Command,
    CommandKind,
    SourcePartition,
    control_topic,
    decode_progress,
    encode_progress,
)
from sparkmirror.internal_topics.driver_report import DriverReport
from sparkmirror.internal_topics.flow_claims import Claim
from sparkmirror.internal_topics.gaps import Gap, GapAction, GapKind
from sparkmirror.internal_topics.position_metadata import Mark
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, JoinCounts, PartitionProgress, SlotProgress
from sparkmirror.records.records import Record, encode_batch
from tests.unit.config_files import BASE, load_flow
from tests.unit.data.write.test_exactly_once import (
    BILLS,
    ORDERS,
    REMOTE,
    Brokers,
    Source,
    simulated,
)
from tests.unit.data.write.test_exactly_once import _flow as exact_flow
from tests.unit.data.write.test_slot_sink import Mirrored
from tests.unit.data.write.test_slot_sink import _flow as plain_flow

TP = TopicPartition("t", 0)
RUN, ATTEMPT = "r", 7
REFUSED = Halt("INVALID_RECORD", "refused", retriable=True, attempt=0)


def report(
    run_id: str = RUN,
    attempt: int = ATTEMPT,
    *,
    at_ms: int = 1_000,
    position: int = 3,
    halt: Halt | None = REFUSED,
) -> SlotProgress:
    row = PartitionProgress("t", 0, position, halt=halt)
    made = SlotProgress("A->B", 0, "w", 1, at_ms, 1, 1, 1, partitions=(row,))
    return replace(made, run_id=run_id, attempt=attempt)


def unnamed(progress: SlotProgress) -> tuple[bytes, bytes]:
    """The record of a release that did not say whose a report is."""
    key, value = encode_progress(progress)
    document = json.loads(value)
    del document["run_id"], document["attempt"]
    return key, json.dumps(document, separators=(",", ":")).encode()


OTHERS = {
    "an earlier attempt": encode_progress(report(attempt=ATTEMPT - 1)),
    "an attempt whose number begins the same": encode_progress(report(attempt=ATTEMPT * 10)),
    "another run": encode_progress(report("r0")),
    "a release that does not say whose it is": unnamed(report()),
}


@pytest.fixture
def reader(tmp_path: Path) -> SlotReader:
    flow = load_flow(tmp_path, BASE)
    partitions = [SourcePartition("t", 0, "A.t")]
    (plan,) = plan_slots(partitions, slots_max=1, epoch=0, run_id=RUN, ends=None, control_offset=0)
    made = SlotReader(flow, plan, 1, ATTEMPT)
    made._fetcher.assign(TP, 50)
    return made


def _hears(reader: SlotReader, record: tuple[bytes, bytes]) -> None:
    topic = TopicPartition(control_topic(reader.flow), PROGRESS_PARTITION)
    reader._watch._apply(topic, *record)
    reader._halt_stopped()
    for state in reader._retries._stopped.values():
        state.due = 0.0 if state.due is not None else None
    reader._try_again()


@pytest.mark.parametrize("record", OTHERS.values(), ids=OTHERS)
def test_a_slot_goes_back_for_no_other_attempts_report(
    reader: SlotReader, record: tuple[bytes, bytes]
) -> None:
    for _ in range(3):  # a report is repeated every ten seconds
        _hears(reader, record)
    assert reader._fetcher.position(TP) == 50
    assert reader._fetcher.halts == {}
    assert reader._notes.tried == []
    _hears(reader, encode_progress(report()))
    assert reader._fetcher.position(TP) == 3, "its own sink is heard"
    assert reader._notes.tried == [RetryNote(TP, 1)]


@pytest.mark.parametrize("record", OTHERS.values(), ids=OTHERS)
def test_another_attempts_report_hides_no_halt(
    reader: SlotReader, record: tuple[bytes, bytes]
) -> None:
    """Both may stand in one answer."""
    topic = TopicPartition(control_topic(reader.flow), PROGRESS_PARTITION)
    reader._watch._apply(topic, *encode_progress(report()))
    sound = record[1].replace(b',["INVALID_RECORD","refused",true,0]', b"")
    assert sound != record[1]
    reader._watch._apply(topic, record[0], sound)
    assert TP in reader._watch.stopped


def test_a_sink_reports_under_the_attempt_of_its_source(
    reader: SlotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, int]] = []
    monkeypatch.setattr(
        SinkReports,
        "record",
        lambda self, *_: said.append((self.run_id, self.attempt)),
    )
    hello = reader._hello({TP: 5})
    with simulated():
        mirrored = Mirrored(plain_flow())
        mirrored._take(*read_row(hello, 0))
        mirrored._task.report(0.0)
    assert said == [(RUN, ATTEMPT)]
    reader._frames.close()


def test_a_report_says_whose_it_is() -> None:
    reports = SinkReports("A->B")
    reports.slot, reports.run_id, reports.attempt = 0, RUN, ATTEMPT
    made = reports.record(1.0, {}, {}, JoinCounts())
    assert made is not None
    found = decode_progress(*made)
    assert found is not None
    assert (found.run_id, found.attempt) == (RUN, ATTEMPT)


def test_reports_of_older_releases_are_read() -> None:
    found = decode_progress(*unnamed(report()))
    assert found == report("", -1)


# -- the driver --------------------------------------------------------------------------------


def _shown(control: FlowControl, *reports: SlotProgress) -> list[tuple[int, int]]:
    """(attempt, position) of the slots that the driver knows once it has read ``reports``."""
    reader = SimpleNamespace(poll=lambda _: ControlSignals(progress=reports), close=lambda: None)
    control.slots._reader = cast(ControlTopicReader, reader)
    run_once(control.slots)
    return [(one.attempt, one.partitions[0].position) for one in control.slots.progress()]


@pytest.fixture
def control(tmp_path: Path) -> Any:
    made = FlowControl(load_flow(tmp_path, BASE), RUN, lambda _: None)
    yield made
    made.close()


def test_the_driver_shows_the_latest_attempt(control: FlowControl) -> None:
    assert _shown(control, report("r0", 99), report("", -1)) == []
    zombie = report(attempt=6, at_ms=9_000, position=3)
    assert _shown(control, zombie) == [(6, 3)], "it had the slot then"
    assert _shown(control, report(position=50), zombie) == [(7, 50)]
    assert _shown(control, zombie, report("r0", 99, at_ms=9_000)) == [(7, 50)]
    assert _shown(control, report(at_ms=900, position=40)) == [(7, 50)], "an old one"
    assert _shown(control, report(at_ms=1_100, position=60)) == [(7, 60)]
    assert _shown(control, report(attempt=8, at_ms=10, position=60)) == [(8, 60)], "a slow clock"


def _owner_that_next_sees(
    control: FlowControl, monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    """The flow is ours; the next check finds that another run has ``taken`` it, or has not."""
    own = control.ownership
    assert own is not None
    own.contest.claim = Claim("A->B", RUN, 0)

    def check() -> ClaimState:
        own.contest.claim = Claim("A->B", "newer" if taken else RUN, 0)
        return ClaimState.HELD if taken else ClaimState.OURS

    monkeypatch.setattr(own, "check", check)


@pytest.mark.parametrize("taken", [True, False])
def test_a_driver_that_was_frozen_speaks_for_no_flow_that_another_has(
    control: FlowControl, monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    """It is told to end before it has come round to a look: `status` would believe its word."""
    _owner_that_next_sees(control, monkeypatch, taken=taken)
    said: list[str] = []
    monkeypatch.setattr(control._writer, "command", lambda *_: said.append("drain"))
    monkeypatch.setattr(control._writer, "report", lambda one: said.append(f"ended {one.ended}"))
    monkeypatch.setattr(control.history, "flush", lambda: None)
    control.drain()
    control.write_last_report()
    assert control.draining
    assert said == ([] if taken else ["drain", "ended True"])


@pytest.mark.parametrize("taken", [True, False])
def test_a_driver_that_lost_its_flow_while_it_began_says_nothing_of_it(
    control: FlowControl, monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    """Others would take it for a run of a release that knows no claims, and for the owner."""
    _owner_that_next_sees(control, monkeypatch, taken=taken)
    said: list[str] = []
    for name in ("report_hidden_topics", "report_missing_permissions", "take_over_positions"):
        monkeypatch.setattr(f"sparkmirror.control.flow.{name}", lambda *_: None)
    monkeypatch.setattr(control.topics, "observe", lambda: Assignment("A->B"))
    monkeypatch.setattr(control.orders, "poll", lambda: None)
    monkeypatch.setattr(control._writer, "assign", lambda *_: said.append("run"))
    if taken:
        with pytest.raises(Fenced, match=r"run newer.* has taken this flow over"):
            control.begin()
    else:
        control.begin()
    assert said == ([] if taken else ["run"])


# -- status ------------------------------------------------------------------------------------


def _judged(*reports: SlotProgress) -> list[tuple[int, int]]:
    now = 2_000
    signals = ControlSignals(
        (Command("A->B", CommandKind.RUN, RUN, 500),),
        (),
        reports,
        (DriverReport("A->B", RUN, "h", "1", 500, now, partitions=1),),
    )
    status = judge(signals, "A->B", now)
    assert status.state is (FlowState.RUNNING if status.slots else FlowState.STARTING)
    return [(one.attempt, one.partitions[0].position) for one in status.slots]


def test_status_shows_the_latest_attempt_of_the_run() -> None:
    zombie, other = report(attempt=6, at_ms=1_900), report("r0", 99, at_ms=1_900)
    assert _judged(other) == []
    assert _judged(report(position=50), zombie, other) == [(7, 50)]
    assert _judged(zombie, report(position=50)) == [(7, 50)]


def test_status_believes_a_release_that_does_not_say_whose_a_report_is() -> None:
    assert _judged(report("", -1, position=20)) == [(-1, 20)]
    assert _judged(report("", -1, position=20), report("", -1, position=21)) == [(-1, 21)]
    assert _judged(report(position=50), report("", -1, at_ms=1_900)) == [(7, 50)]


# -- the sink ----------------------------------------------------------------------------------


@pytest.fixture
def brokers() -> Any:
    with simulated() as found:
        yield found


def test_what_lies_below_the_position_is_not_written(brokers: Brokers) -> None:
    mirrored = Mirrored(plain_flow())
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"2"], [b"3"])
    source.chunk(BILLS, [b"a"])
    mirrored.take(source)
    mirrored.come_round()
    source._next[ORDERS] = 1  # a report of another attempt sent it back
    source.chunk(ORDERS, [b"2"], [b"3"])
    with pytest.raises(Defect, match=r"orders-0: records from offset 1 on .* up to 2 are written"):
        mirrored.take(source)
    mirrored.come_round()
    assert brokers.values("A.orders") == [b"1", b"2", b"3"]
    assert [at[REMOTE[ORDERS]] for _, at in mirrored.said if REMOTE[ORDERS] in at][-1] == 3


def test_what_lies_below_what_is_on_its_way_is_not_written(brokers: Brokers) -> None:
    mirrored = Mirrored(plain_flow())
    source = Source(brokers)
    mirrored._take(*read_row(source.rows.pop(0), 0))
    source.chunk(ORDERS, [b"1", b"2"])
    source._next[ORDERS] = 1
    source.chunk(ORDERS, [b"2"])
    mirrored._take(*read_row(source.rows[0], 0))
    with pytest.raises(Defect):
        mirrored._take(*read_row(source.rows[1], 0))


def test_in_a_transaction_nothing_below_the_position_is_written(brokers: Brokers) -> None:
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"2"], [b"3"])
    SlotSink(exact_flow()).run(iter(source.rows))
    source = Source(brokers)
    source._next[ORDERS] = 1
    source.chunk(ORDERS, [b"2"], [b"3"])
    with pytest.raises(Defect):
        SlotSink(exact_flow()).run(iter(source.rows))
    assert brokers.positions[REMOTE[ORDERS]] == 3
    # The next attempt fences the slot's id, which ends what was open, and reads the position.
    source = Source(brokers)
    source.chunk(ORDERS, [b"4"])
    SlotSink(exact_flow()).run(iter(source.rows))
    assert brokers.values("A.orders") == [b"1", b"2", b"3", b"4"]
    assert brokers.positions[REMOTE[ORDERS]] == 4


def test_a_topic_made_anew_is_mirrored_from_its_beginning(brokers: Brokers) -> None:
    """A gap says that the position goes back: then what follows is no repetition."""
    mirrored = Mirrored(plain_flow())
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"2"])
    mirrored.take(source)
    mirrored.come_round()
    gap = Gap(
        "A->B", ORDERS, "A.orders", GapKind.RECREATED, GapAction.CONTINUED, 2, None, None, 0,
        "TOPIC_RECREATED", "made anew", 5,
    )  # fmt: skip
    batch = encode_batch([Record(0, 5, None, b"new")])
    chunk = Chunk("orders", 0, "A.orders", 0, 1, 1, 5, 0, len(batch))
    notes = SlotNotes(gaps=(GapNote(gap, Mark("", "another")),))
    source.rows.append(build_row([chunk], memoryview(b""), [[batch]], notes))
    mirrored.take(source)
    mirrored.come_round()
    assert brokers.values("A.orders") == [b"1", b"2", b"new"]
    assert mirrored.lanes[ORDERS].position == 1
