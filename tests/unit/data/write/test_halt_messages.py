"""What a sink has given up: said to its source in the memory that both share, or in reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.data.coordination.slot_plan import plan_slots
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.rows.notes import (
    RetryNote,
    SlotHello,
    SlotNotes,
    decode_halted,
    encode_halted,
)
from sparkmirror.data.rows.rows import FLUSH, build_row, read_row
from sparkmirror.data.rows.shared_frames import (
    MESSAGE_BYTES_MAX,
    FrameReader,
    Frames,
    map_frames,
)
from sparkmirror.data.transform.record_path import _RecordPath
from sparkmirror.data.write.partition_state import Lane
from sparkmirror.data.write.progress import HaltMessages
from sparkmirror.errors import MachineError
from sparkmirror.internal_topics.commands import PROGRESS_PARTITION, SourcePartition, control_topic
from sparkmirror.internal_topics.reports import encode_progress
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, PartitionProgress, SlotProgress
from tests.unit.config_files import BASE, load_flow

TP = TopicPartition("t", 0)
REFUSED = Halt("INVALID_RECORD", "refused", retriable=True, attempt=0)


def _lane(number: int = 0, position: int = 3) -> Lane:
    return Lane(TopicPartition("t", number), TopicPartition("A.t", number), position)


@pytest.fixture
def frames() -> Iterator[Frames]:
    made = Frames(1 << 20)
    yield made
    made.close()


def _sink_of(frames: Frames) -> FrameReader:
    note = frames.note()
    assert note is not None
    return FrameReader(note)


halted_rows = st.lists(
    st.builds(
        PartitionProgress,
        st.text(min_size=1, max_size=249),
        st.integers(0, 1 << 31),
        st.integers(0, 1 << 62),
        halt=st.builds(
            Halt, st.text(max_size=40), st.text(max_size=900), st.booleans(), st.just(4)
        ),
    ),
    max_size=60,
)


@given(halted_rows)
def test_messages_carry_all_that_was_given_up_and_fit(rows: list[PartitionProgress]) -> None:
    found: list[PartitionProgress] = []
    left = rows
    while left:
        message, count = encode_halted(left)
        assert count > 0
        assert len(message) <= MESSAGE_BYTES_MAX
        found += decode_halted(message)
        left = left[count:]
    assert found == rows


def test_a_message_of_another_release_is_refused() -> None:
    with pytest.raises(MachineError, match="the sink of this slot writes version 99"):
        decode_halted(b'{"version":99,"halted":[]}')


def test_each_attempt_is_told_once(frames: Frames) -> None:
    messages, lane = HaltMessages(_sink_of(frames)), _lane()
    messages.tell({lane: None})
    assert decode_halted(frames.take_message()) == [], "the source knows that it hears the sink"
    said: list[PartitionProgress] = []
    for halt in (None, replace(REFUSED, attempt=-1), REFUSED, REFUSED, None):
        messages.tell({lane: halt})
        message = frames.take_message()
        said += decode_halted(message) if message else []
    lane.position = 5
    messages.tell({lane: replace(REFUSED, attempt=1)})
    said += decode_halted(frames.take_message())
    assert [(one.position, one.halt and one.halt.attempt) for one in said] == [(3, 0), (5, 1)]


def test_what_does_not_fit_is_told_when_the_source_has_taken_the_rest(frames: Frames) -> None:
    messages = HaltMessages(_sink_of(frames))
    long = replace(REFUSED, reason="x" * 900)
    halts: dict[Lane, Halt | None] = {_lane(number): long for number in range(300)}
    said: list[int] = []
    messages.tell(halts)
    messages.tell(halts)  # there is no room yet
    while message := frames.take_message():
        said += [one.partition for one in decode_halted(message)]
        messages.tell(halts)
    assert said == list(range(300))


# -- the source --------------------------------------------------------------------------------


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[SlotReader]:
    partitions = [SourcePartition("t", 0, "A.t")]
    flow = load_flow(tmp_path, BASE)
    (plan,) = plan_slots(partitions, slots_max=1, epoch=0, run_id="r", ends=None, control_offset=0)
    made = SlotReader(flow, plan, 0, 7)
    made._fetcher.assign(TP, 50)
    yield made
    made._frames.close()


def _follows(reader: SlotReader) -> bool:
    progress = TopicPartition(control_topic(reader.flow), PROGRESS_PARTITION)
    return reader._watch.fetcher.assigned(progress)


def test_a_slot_goes_back_for_what_its_sink_says(reader: SlotReader) -> None:
    sink = _sink_of(reader._frames)
    HaltMessages(sink).tell({_lane(position=3): REFUSED})
    reader._hear_sink(0.0)
    assert reader._fetcher.halts == {TP: replace(REFUSED, retriable=False)}
    assert sink.may_send
    reader._retries._stopped[TP].due = 0.0
    reader._try_again()
    assert reader._fetcher.position(TP) == 3
    assert reader._notes.tried == [RetryNote(TP, 1)]


def test_a_slot_whose_sink_speaks_reads_no_reports(reader: SlotReader) -> None:
    """They are those of all slots: the traffic would grow with the square of their number."""
    HaltMessages(_sink_of(reader._frames)).tell({_lane(): None})
    reader._hear_sink(0.0)
    assert not _follows(reader)


def test_a_slot_reads_reports_while_its_sink_does_not_speak(reader: SlotReader) -> None:
    reader._hear_sink(float("inf"))
    assert not _follows(reader), "the sink may still do it"
    reader._watch._reports_from = 12
    reader._hear_sink(0.0)
    assert _follows(reader)
    progress = TopicPartition(control_topic(reader.flow), PROGRESS_PARTITION)
    assert reader._watch.fetcher.position(progress) == 12
    row = PartitionProgress("t", 0, 3, halt=REFUSED)
    report: dict[str, Any] = {"partitions": (row,), "run_id": "r", "attempt": 7}
    record = encode_progress(SlotProgress("A->B", 0, "w", 1, 1, 1, 1, 1, **report))
    reader._watch._apply(progress, *record)
    reader._halt_stopped()
    assert TP in reader._fetcher.halts
    reader._watch.fetcher.advance(progress, 20)
    reader._hear_sink(0.0)
    assert reader._watch.fetcher.position(progress) == 20, "it continues where it is"
    sink = _sink_of(reader._frames)
    reader._hear_sink(0.0)
    assert _follows(reader), "another worker may have mapped it"
    HaltMessages(sink).tell({_lane(): None})
    reader._hear_sink(0.0)
    assert not _follows(reader)


# -- the record path ---------------------------------------------------------------------------


def test_the_record_path_passes_messages_on(tmp_path: Path, frames: Frames) -> None:
    """It is between source and sink, with memory for each of them."""
    path = _RecordPath(load_flow(tmp_path, BASE))
    hello = SlotHello(0, 1, "A->B", "r", 7, frames.note())
    first = build_row([], memoryview(b""), [], SlotNotes(hello=hello)).slice(0, 1)
    seen: list[FrameReader] = []

    def source() -> Iterator[Any]:
        yield first
        for _ in range(3):
            yield FLUSH

    for row in path.rows(source()):
        _, _, notes, _ = read_row(row, 0)
        if notes is not None and notes.hello is not None:
            sink = map_frames(notes.hello.memory)
            assert sink is not None
            seen.append(sink)
            HaltMessages(sink).tell({_lane(position=3): REFUSED})
    assert seen
    assert [one.position for one in decode_halted(frames.take_message())] == [3]
