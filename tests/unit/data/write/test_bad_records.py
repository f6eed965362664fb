"""Records that a target refuses: taken out of batches, turned into letters, tried again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sparkmirror.control.topics.dead_letters import plan_dead_letter_topics
from sparkmirror.data.read.retry_schedule import Retries
from sparkmirror.data.transform.failed_records import TRANSFORM_FAILED, FailedRecords
from sparkmirror.data.write.bad_records import RefusedRecords, dead_letter
from sparkmirror.internal_topics.gaps import SKIPPED, decode_gap
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt, PartitionProgress
from sparkmirror.records.header import base_offset, codec
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.records.split import separate
from sparkmirror.settings import ClusterClient, FaultSettings, FlowSettings, TopicSettings
from tests.unit.config_files import load_flow

TP, REMOTE = TopicPartition("t", 3), TopicPartition("A.t", 3)
A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
RECORDS = [Record(10 + n, 1_000 - n, b"k%d" % n, b"v", ((b"h", None),)) for n in range(6)]


@pytest.mark.parametrize("compression", range(5))
@pytest.mark.parametrize(
    ("bad", "runs"),
    [({0}, [[11, 12, 13, 14, 15]]), ({2, 3}, [[10, 11], [14, 15]]), ({1, 5}, [[10], [12, 13, 14]]),
     ({0, 1, 2, 3, 4, 5}, [])],
)  # fmt: skip
def test_bad_records_are_taken_out(compression: int, bad: set[int], runs: list[list[int]]) -> None:
    kept, left_out = separate(memoryview(encode_batch(RECORDS, codec=compression)), bad)
    found = [list(decode_records(memoryview(batch))) for batch in kept]
    assert [[record.offset for record in batch] for batch in found] == runs
    assert [base_offset(batch) for batch in kept] == [run[0] for run in runs]
    assert all(codec(batch) == compression for batch in kept)
    assert [record for batch in found for record in batch] == [
        record for n, record in enumerate(RECORDS) if n not in bad
    ]
    assert left_out == [RECORDS[n] for n in sorted(bad)]


def test_a_letter_keeps_the_record_and_says_where_it_is_from() -> None:
    letter = dead_letter(RECORDS[2], "A", TP, "INVALID_RECORD", "no key")
    assert (letter.key, letter.value) == (RECORDS[2].key, RECORDS[2].value)
    assert letter.headers[0] == (b"h", None)
    assert dict(letter.headers[1:]) == {
        b"sparkmirror.source.cluster": b"A",
        b"sparkmirror.source.topic": b"t",
        b"sparkmirror.source.partition": b"3",
        b"sparkmirror.source.offset": b"12",
        b"sparkmirror.source.timestamp": b"998",
        b"sparkmirror.error.code": b"INVALID_RECORD",
        b"sparkmirror.error.reason": b"no key",
    }


class Chunk:
    """A chunk with two batches on their way."""

    source, target = TP, REMOTE
    first_offset, next_offset = 10, 16

    def __init__(self) -> None:
        self.batches_left, self.dropped = 2, 0
        self.beside: list[TopicPartition] = []

    def wait_for(self, tp: TopicPartition) -> None:
        self.batches_left += 1
        self.beside.append(tp)

    def at_source(self, records: Sequence[Record]) -> Sequence[Record]:
        return records


def test_batches_that_are_given_up_are_one_gap_of_their_chunk() -> None:
    queued: list[memoryview] = []
    refusals = RefusedRecords(
        FlowSettings(A, B, A, B), lambda _tp, batch, _token: queued.append(batch), {}
    )
    chunk = Chunk()
    refusals.dropped((chunk, 4), 4, "MESSAGE_TOO_LARGE", "")
    refusals.dropped((chunk, 6), 2, "NOT_ENOUGH_REPLICAS", "for 120 s")
    refusals.dropped(None, 1, "MESSAGE_TOO_LARGE", "a record of the mirror itself")
    assert chunk.batches_left == 4, "the position waits for what is written down"
    records = [record for batch in queued for record in decode_records(batch)]
    assert len({record.key for record in records}) == 1
    gaps = [decode_gap(record.value) for record in records]
    assert [(gap.first, gap.last, gap.count) for gap in gaps if gap] == [(10, 15, 4), (10, 15, 6)]
    assert [gap.resumed_at for gap in gaps if gap] == [16, 16]


def test_records_on_which_a_transform_failed_say_so() -> None:
    """In the gap and in the letter; the target has refused nothing."""
    queued: list[tuple[str, Record]] = []

    def append(tp: TopicPartition, batch: memoryview, _token: object) -> None:
        queued.extend((tp.topic, record) for record in decode_records(batch))

    errors: dict[str, int] = {}
    flow = FlowSettings(A, B, A, B, faults=FaultSettings(bad_record="dead-letter"))
    chunk = Chunk()
    failed = FailedRecords((RECORDS[1], RECORDS[3]), TRANSFORM_FAILED, "the SQL of clean failed")
    RefusedRecords(flow, append, errors).take_failed(chunk, failed)
    assert chunk.batches_left == 6
    assert errors == {"RECORD_DEAD_LETTERED": 2}
    letters = [record for topic, record in queued if topic == "A.t.dead-letter"]
    assert [record.value for record in letters] == [b"v", b"v"]
    assert dict(letters[0].headers)[b"sparkmirror.error.reason"] == b"the SQL of clean failed"
    gaps = [decode_gap(record.value) for topic, record in queued if "gaps" in topic]
    assert [(gap.first, gap.last, gap.code, gap.reason) for gap in gaps if gap] == [
        (offset, offset, TRANSFORM_FAILED, "the SQL of clean failed (TRANSFORM_FAILED)")
        for offset in (11, 13)
    ]


def test_letters_and_gaps_have_the_message_of_their_record() -> None:
    queued: list[tuple[str, Record]] = []

    def append(tp: TopicPartition, batch: memoryview, _token: object) -> None:
        queued.extend((tp.topic, record) for record in decode_records(batch))

    flow = FlowSettings(A, B, A, B, faults=FaultSettings(bad_record="dead-letter"))
    details = {11: "[ONE]", 12: "[TWO]"}
    failed = FailedRecords(
        (RECORDS[1], RECORDS[2], RECORDS[4]), TRANSFORM_FAILED, "it failed", details
    )
    RefusedRecords(flow, append, {}).take_failed(Chunk(), failed)
    letters = [record for topic, record in queued if topic == "A.t.dead-letter"]
    assert [dict(one.headers)[b"sparkmirror.error.reason"] for one in letters] == [
        b"it failed: [ONE]", b"it failed: [TWO]", b"it failed",
    ]  # fmt: skip
    gaps = [decode_gap(record.value) for topic, record in queued if "gaps" in topic]
    assert [(gap.first, gap.last, gap.reason) for gap in gaps if gap] == [
        (11, 12, "it failed (TRANSFORM_FAILED), the first one: [ONE]"),
        (14, 14, "it failed (TRANSFORM_FAILED)"),
    ]


def test_a_log_has_few_lines_about_a_chunk_in_which_every_other_record_is_bad(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each has its gap record all the same."""
    queued: list[memoryview] = []
    flow = FlowSettings(A, B, A, B, faults=FaultSettings(bad_record="skip"))
    refused = RefusedRecords(flow, lambda _tp, batch, _token: queued.append(batch), {})
    bad = tuple(Record(10 + 2 * n, 1_000, None, b"v") for n in range(500))
    refused.take_failed(Chunk(), FailedRecords(bad, TRANSFORM_FAILED, "it failed"))
    assert len(queued) == 500
    assert [line.partition("offset")[0] for line in caplog.messages] == [
        *["flow A->B: source "] * 3, "flow A->B: 497 more ranges of t-3 up to source ",
    ]  # fmt: skip
    assert caplog.messages[-1].endswith("offset 1008 (skipped)")


@pytest.mark.parametrize(
    ("choice", "written", "counted"),
    [
        ("skip", ["gaps", "gaps"], {"RECORD_SKIPPED": 3}),
        ("dead-letter", ["letter"] * 3 + ["gaps", "gaps"], {"RECORD_DEAD_LETTERED": 3}),
    ],
)
def test_the_position_waits_for_what_is_written_down(
    choice: str, written: list[str], counted: dict[str, int]
) -> None:
    action = {"skip": "skipped", "dead-letter": "dead-letter"}[choice]
    names = {"mm2-sparkmirror-gaps.A.internal": "gaps", "A.t.dead-letter": "letter"}
    appended: list[tuple[str, memoryview, object]] = []
    errors: dict[str, int] = {}
    flow = FlowSettings(A, B, A, B, faults=FaultSettings(bad_record=choice))
    refused = RefusedRecords(
        flow, lambda tp, batch, token: appended.append((names[tp.topic], batch, token)), errors
    )
    chunk = Chunk()
    assert refused.wanted((chunk, 6))
    assert not refused.wanted(None)  # the mirror's own records
    refused.take((chunk, 6), [RECORDS[0], RECORDS[1], RECORDS[4]], "INVALID_RECORD", "no key")
    assert [name for name, _, _ in appended] == written
    assert all(token is chunk for _, _, token in appended)
    assert chunk.batches_left == 2 + len(written)
    assert errors == counted
    values = [next(decode_records(batch)).value for name, batch, _ in appended if name == "gaps"]
    gaps = [decode_gap(value) for value in values]
    assert [(gap.first, gap.last, gap.count, gap.resumed_at) for gap in gaps if gap] == [
        (10, 11, 2, 12),
        (14, 14, 1, 15),
    ]
    assert {(gap.action, gap.code) for gap in gaps if gap} == {(action, "INVALID_RECORD")}


def test_pause_takes_nothing_over() -> None:
    flow = FlowSettings(A, B, A, B)
    assert not RefusedRecords(flow, lambda *_: None, {}).wanted((Chunk(), 1))


def test_dead_letter_topics_are_made_where_they_may_be_needed() -> None:
    faults = FaultSettings(bad_record="skip", bad_record_dead_letter=("orders",))
    flow = FlowSettings(A, B, A, B, faults=faults, topics=TopicSettings(replication_factor=3))
    remote = {topic: f"A.{topic}" for topic in ("logs", "orders")}
    (topic,) = plan_dead_letter_topics(remote, flow)
    assert (topic.name, topic.partitions, topic.replication_factor) == (
        "A.orders.dead-letter", 1, 3,
    )  # fmt: skip


def _stopped(attempt: int, position: int = 7, *, retriable: bool = True) -> PartitionProgress:
    return PartitionProgress("t", 3, position, halt=Halt("X", "x", retriable, attempt))


def test_pauses_grow_and_old_reports_end_no_attempt() -> None:
    now = 0.0
    retries = Retries(lambda: now)
    assert not retries.stop(TP, _stopped(-1))  # not an end, or not a final position yet
    assert retries.stop(TP, _stopped(0))
    assert not retries.stop(TP, _stopped(0, 9))  # the same report again
    waited = []
    for attempt in range(1, 8):
        began = now
        while not (due := retries.take_due()):
            now += 0.5
        assert due == [(TP, attempt, 7)]
        waited.append(now - began)
        assert not retries.stop(TP, _stopped(attempt - 1))
        assert retries.stop(TP, _stopped(attempt))
    assert waited == [2, 4, 8, 16, 32, 60, 60]
    now += 60
    retries.take_due()
    now += 301  # it went well for a while
    assert retries.stop(TP, _stopped(8))
    now += 2
    assert retries.take_due() == [(TP, 9, 7)]


def test_what_is_not_worth_another_try_stays_stopped() -> None:
    now = 0.0
    retries = Retries(lambda: now)
    assert retries.stop(TP, _stopped(0, retriable=False))
    now = 1e9
    assert retries.take_due() == []


@pytest.mark.parametrize("exact", ["", "B.exactly.once.source.support=enabled\n"])
def test_which_records_are_left_out(tmp_path, exact: str) -> None:  # type: ignore[no-untyped-def]
    key = "sparkmirror.on.bad.record"
    flow = load_flow(tmp_path, f"{exact}{key}=dead-letter\nA->B.{key}.skip.topics=logs\n")
    assert flow.faults == FaultSettings(bad_record="dead-letter", bad_record_skip=("logs",))
    assert flow.exactly_once is bool(exact)


def test_records_that_went_away_with_a_transaction_count_once() -> None:
    counted = {SKIPPED: 4}
    refusals = RefusedRecords(FlowSettings(A, B, A, B), lambda *_: None, counted)
    refusals.settled()
    counted[SKIPPED] += 3
    refusals.undone()
    assert counted == {SKIPPED: 4}
    counted[SKIPPED] += 3
    refusals.settled()
    refusals.undone()
    assert counted == {SKIPPED: 7}
