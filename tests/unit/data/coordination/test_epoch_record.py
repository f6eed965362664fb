"""The planner writes the record of an epoch, and begins only when the control topic has it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from sparkmirror.data.coordination import epoch_record
from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.epoch_record import begin_epoch
from sparkmirror.errors import TopicError, Unreachable
from sparkmirror.internal_topics.commands import COMMAND_PARTITION, control_topic
from sparkmirror.internal_topics.epochs.record import EpochRecord, decode_epoch, encode_epoch
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.records.records import decode_records
from sparkmirror.settings import ClusterClient, FlowSettings

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B, exactly_once=True)
RUN = "mine"


class Topic:
    """The control topic; ``before_reads``: what happens to it before each look of the planner."""

    def __init__(self, *before_reads: Callable[[Topic], None]) -> None:
        self.flow = FLOW
        self.written: list[EpochRecord] = []
        self.records: list[EpochRecord] = []
        self.epoch: EpochRecord | None = None
        self._before_reads = list(before_reads)

    def write(self, _: FlowSettings, record: EpochRecord) -> None:
        self.written.append(record)
        self.records.append(record)

    def catch_up(self) -> None:
        if self._before_reads:
            self._before_reads.pop(0)(self)
        for record in self.records:
            if record.run_id == RUN:
                self.epoch = record.newest(self.epoch)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Callable[[Topic], EpochRecord]:
    monkeypatch.setattr(epoch_record.time, "sleep", lambda _: None)

    def begin(topic: Topic) -> EpochRecord:
        monkeypatch.setattr(epoch_record, "_write", topic.write)
        return begin_epoch(FLOW, RUN, cast(ControlWatch, topic))

    return begin


def test_numbers_grow_within_the_run(begun: Callable[[Topic], EpochRecord]) -> None:
    topic = Topic()
    records = [begun(topic) for _ in range(3)]
    assert [one.number for one in records] == [1, 2, 3]
    assert len({one.token for one in records}) == 3
    assert {(one.flow, one.run_id) for one in records} == {("A->B", RUN)}


def test_a_planner_that_knows_nothing_reads_what_the_one_before_wrote(
    begun: Callable[[Topic], EpochRecord],
) -> None:
    topic = Topic()
    topic.records = [EpochRecord("A->B", RUN, 8, "t")]
    assert begun(topic).number == 9
    assert [one.number for one in topic.written] == [1, 9]


def test_a_record_that_another_planner_follows_at_once_is_written_again(
    begun: Callable[[Topic], EpochRecord],
) -> None:
    topic = Topic(lambda topic: topic.records.append(EpochRecord("A->B", RUN, 1, "t")))
    assert begun(topic).number == 2


def test_a_record_that_is_lost_is_written_again(begun: Callable[[Topic], EpochRecord]) -> None:
    topic = Topic(lambda topic: topic.records.clear())
    record = begun(topic)
    assert topic.records == [record]
    assert len(topic.written) == 2


def test_the_record_of_another_run_does_not_count(begun: Callable[[Topic], EpochRecord]) -> None:
    topic = Topic(lambda topic: topic.records.append(EpochRecord("A->B", "older", 9, "t")))
    assert begun(topic).number == 1


def test_a_topic_that_cannot_be_read_is_waited_for(begun: Callable[[Topic], EpochRecord]) -> None:
    def fail(_: Topic) -> None:
        raise TimeoutError("no answer")

    topic = Topic(fail, fail)
    assert begun(topic) == topic.written[0]
    assert len(topic.written) == 1


class _Producer:
    """Takes batches; ``fails``: what `pump` raises, one after the other. ``halt``: the refusal."""

    fails: ClassVar[list[Exception]] = []
    halt: Halt | None = None
    taken: ClassVar[list[tuple[TopicPartition, bytes]]] = []

    def __init__(self, *_: Any) -> None:
        self.backlog = self
        self.idle = True
        self.halts: dict[TopicPartition, Halt] = {}

    def append(self, tp: TopicPartition, batch: memoryview) -> None:
        self.idle = False
        self._waits = tp, bytes(batch)

    def pump(self, _: float) -> None:
        if self.fails:
            raise self.fails.pop(0)
        self.idle = True
        if self.halt is not None:
            self.halts[self._waits[0]] = self.halt
            return
        self.taken.append(self._waits)

    def close(self) -> None:
        pass


def _write(monkeypatch: pytest.MonkeyPatch, flow: FlowSettings, **options: Any) -> Any:
    producer = type("_", (_Producer,), {"taken": [], **options})
    monkeypatch.setattr(epoch_record, "Producer", producer)
    monkeypatch.setattr(
        epoch_record, "ClusterConnections", lambda *_: SimpleNamespace(close=lambda: None)
    )
    monkeypatch.setattr(epoch_record.time, "sleep", lambda _: None)
    epoch_record._write(flow, RECORD)
    return producer.taken  # type: ignore[attr-defined]


RECORD = EpochRecord("A->B", RUN, 1, "t")


@pytest.mark.parametrize("signed", [False, True])
def test_it_is_written_again_until_the_target_has_it(
    monkeypatch: pytest.MonkeyPatch, signed: bool
) -> None:
    monkeypatch.setattr(epoch_record, "run_key", lambda: "0123456789abcdef")
    flow = FlowSettings(A, B, A, B, exactly_once=True, signed=signed)
    ((tp, batch),) = _write(monkeypatch, flow, fails=[Unreachable("gone")])
    assert tp == TopicPartition(control_topic(flow), COMMAND_PARTITION)
    (found,) = decode_records(memoryview(batch), 1 << 20)
    assert found.key == encode_epoch(RECORD)[0]
    signer = Signer("0123456789abcdef") if signed else None
    assert decode_epoch("A->B", found.key, found.value, signer) == RECORD


def test_a_topic_that_refuses_it_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    halt = Halt("TOPIC_AUTHORIZATION_FAILED", "not allowed")
    with pytest.raises(TopicError, match=r"topic .*-0: no epoch can begin: not allowed"):
        _write(monkeypatch, FLOW, halt=halt)


def test_a_topic_that_takes_nothing_for_a_while_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A query that fails with one of our errors is not restarted: the mirror would end."""
    halts = [Halt("NOT_ENOUGH_REPLICAS", "it has failed for 120 s", retriable=True), None]

    def pump(self: Any, _: float) -> None:
        self.idle, halt = True, halts.pop(0)
        if halt is None:
            self.taken.append(self._waits)
        else:
            self.halts[self._waits[0]] = halt

    assert len(_write(monkeypatch, FLOW, pump=pump)) == 1
    assert not halts
