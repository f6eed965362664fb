"""What ``make faults`` writes in transactions, counts at the target and complains of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sparkmirror.testing.clusters import KafkaCluster
from tests.faults import harness, numbered
from tests.faults.numbered import ABORTED, NUMBER, InTransactions
from tests.faults.report import Outcome, complaints

PARTITIONS = 4


class Source:
    """A topic as a reader at read_committed sees it, and what was aborted."""

    def __init__(self) -> None:
        self.visible: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.aborted: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.endings = 0
        self.failures: list[KafkaException] = []


class FakeProducer:
    """Without a transaction a record is visible at once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._open: list[tuple[int, bytes]] | None = None

    def begin_transaction(self) -> None:
        assert self._open is None
        self._open = []

    def produce(
        self, _topic: str, value: bytes, partition: int, on_delivery: Callable[..., None]
    ) -> None:
        if self._open is None:
            self._source.visible[partition].append(value)
        else:
            self._open.append((partition, value))
        on_delivery(None, None)

    def commit_transaction(self, _timeout_s: float) -> None:
        self._end(self._source.visible)

    def abort_transaction(self, _timeout_s: float) -> None:
        self._end(self._source.aborted)

    def _end(self, log: list[list[bytes]]) -> None:
        self._source.endings += 1
        if self._source.failures:
            raise self._source.failures.pop()
        assert self._open is not None
        for partition, value in self._open:
            log[partition].append(value)
        self._open = None

    def poll(self, _timeout_s: float) -> None:
        pass

    def flush(self, _timeout_s: float) -> int:
        return 0


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    found = Source()
    monkeypatch.setattr(numbered, "Producer", lambda _: FakeProducer(found))
    monkeypatch.setattr(numbered, "transactional_producer", lambda *_, **__: FakeProducer(found))
    return found


def _load() -> InTransactions:
    return InTransactions(KafkaCluster("A"), "numbers", PARTITIONS, per_s=1e6, seed=1)


def test_every_second_partition_is_in_transactions_of_which_some_are_aborted(
    source: Source,
) -> None:
    with _load() as load:
        written = load.finish(50_000)
    assert written >= 50_000
    for number, log in enumerate(source.visible):
        assert [NUMBER.unpack_from(value)[0] for value in log] == list(range(load.sent[number]))
        assert not any(value.endswith(ABORTED) for value in log)
    assert max(load.sent) - min(load.sent) < 3_000
    assert [bool(log) for log in source.aborted] == [False, True, False, True]
    dropped = [value for log in source.aborted for value in log]
    assert all(value.endswith(ABORTED) for value in dropped)
    assert load.dropped == len(dropped)
    assert 0.1 < load.aborted / (load.aborted + load.committed) < 0.3
    assert load.aborted + load.committed == source.endings


def test_an_end_that_may_be_asked_for_again_is_and_another_failure_is_told(source: Source) -> None:
    again = KafkaError(KafkaError._TIMED_OUT, "later", retriable=True)
    source.failures = [KafkaException(again)]
    with _load() as load:
        load.finish(5_000)
    assert source.endings == load.aborted + load.committed + 1

    source.failures = [KafkaException(KafkaError(KafkaError._FENCED, "another one", fatal=True))]
    with _load() as load, pytest.raises(AssertionError, match="another one"):
        load.finish(5_000)


class _Message:
    def __init__(self, number: int, padding: bytes) -> None:
        self._value = NUMBER.pack(number) + padding

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def value(self) -> bytes:
        return self._value

    def error(self) -> None:
        return None


def test_what_was_aborted_counts_as_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Consumer:
        def __init__(self, _: Any) -> None:
            self._messages = [_Message(0, b"x"), _Message(1, ABORTED), _Message(1, b"x")]

        def assign(self, _: Any) -> None:
            pass

        def consume(self, _count: int, timeout: float) -> list[_Message]:
            found, self._messages = self._messages, []
            return found

        def close(self) -> None:
            pass

    class Cluster:
        bootstrap_servers = "127.0.0.1:1"

    monkeypatch.setattr(harness, "Consumer", Consumer)
    with harness.Counter(Cluster(), "numbers", 1) as counter:  # type: ignore[arg-type]
        assert counter.wait_for(2, 10.0)
    assert (counter.received, counter.lost, counter.duplicated, counter.aborted) == (2, 0, 0, 1)
    assert counter.first_wrong == "numbers-0 at offset 7: 1, aborted"


@pytest.mark.parametrize(
    ("twice", "may_repeat", "found"),
    [(0, False, []), (1, False, ["1 records twice, not 0"]), (5, True, []),
     (6, True, ["6 records twice, not 5"])],
)  # fmt: skip
def test_repeats_are_told_where_there_may_be_none(
    twice: int, may_repeat: bool, found: list[str]
) -> None:
    one = Outcome("sink worker killed", 0.5, twice=twice, uncommitted=5)
    told = complaints([one], lost=0, aborted=0, may_repeat=may_repeat)
    assert told == [f"fault 1, sink worker killed: {text}" for text in found]


def test_losses_and_aborted_records_are_told() -> None:
    assert complaints([], lost=2, aborted=3, may_repeat=True) == [
        "2 records lost or out of order",
        "3 records of aborted transactions came",
    ]


def test_runs_that_ended_by_themselves_and_a_drain_that_failed_are_told() -> None:
    told = complaints([], lost=0, aborted=0, may_repeat=False, by_itself=[1, -9], drained=3)
    assert told == [
        "a run ended by itself with code 1",
        "a run ended by itself with code -9",
        "the mirror drained with code 3",
    ]
