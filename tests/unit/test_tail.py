"""Small internal topics: what is written, in which order, and when it is tried again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition as KafkaPartition

from sparkmirror.errors import (
    BatchError,
    ClusterError,
    Denied,
    MirrorError,
    TopicError,
    Unreachable,
)
from sparkmirror.model import ClusterClient, TopicPartition
from sparkmirror.wire.records import decode_records
from sparkmirror.wire.tail import TopicTail, TopicWriter

CLIENT = ClusterClient("A", ("a:1",), "t", request_timeout_ms=10_000, retry_backoff_ms=0)
TOPIC = "mm2-control"
TP = TopicPartition(TOPIC, 0)
KeyValue = tuple[bytes, bytes | None]


class Target:
    """The link to a cluster and its leaders: error codes (or errors) to come, and what is there."""

    def __init__(self, *outcomes: int | MirrorError, client: ClusterClient = CLIENT) -> None:
        self.client = client
        self.closes = 0
        self.outcomes = deque(outcomes)
        self.there: list[tuple[int, list[KeyValue]]] = []
        self.times: set[int] = set()
        self.asked: list[tuple[int, bool]] = []
        self.leader: int | None = 1
        self.known = True
        self._lock = threading.Lock()

    def by_leader(
        self, partitions: list[TopicPartition], *, fresh: bool
    ) -> tuple[dict[int, list[TopicPartition]], set[TopicPartition]]:
        if not self.known:
            return {}, set(partitions)
        if self.leader is None:
            return {}, set()
        self.asked.append((self.leader, fresh))
        return {self.leader: partitions}, set()

    def request(self, make: Any, doing: str, *, node: int, timeout_ms: int, needs: Any) -> Any:
        assert self._lock.acquire(blocking=False), "one request after the other"
        try:
            assert 0 < timeout_ms <= self.client.request_timeout_ms
            assert node == self.leader
            assert (needs.operation, needs.name) == ("Write", TOPIC)
            message = make()
            (topic,) = message.topic_data
            (part,) = topic.partition_data
            assert topic.name == TOPIC
            assert doing == f"writing to {TOPIC}-{part.index}"
            outcome = self.outcomes.popleft() if self.outcomes else 0
            if isinstance(outcome, MirrorError):
                raise outcome
            if not outcome:
                found = list(decode_records(memoryview(bytes(part.records))))
                self.times |= {one.timestamp for one in found}
                self.there.append((part.index, [(one.key or b"", one.value) for one in found]))
            row = SimpleNamespace(error_code=outcome)
            return SimpleNamespace(responses=[SimpleNamespace(partition_responses=[row])])
        finally:
            self._lock.release()

    def writer(self) -> TopicWriter:
        return TopicWriter(self, self)  # type: ignore[arg-type]


LARGE = 200 * 1024


@settings(deadline=None)
@given(
    records=st.lists(
        st.tuples(
            st.integers(0, 2), st.binary(max_size=3), st.sampled_from((None, 0, 10, LARGE, 600_000))
        ),
        max_size=12,
    )
)
def test_all_is_written_in_order_in_batches_of_bounded_size(
    records: list[tuple[int, bytes, int | None]],
) -> None:
    rows = [(n, key, None if size is None else bytes(size)) for n, key, size in records]
    target = Target()
    assert target.writer().write(TOPIC, rows, 123) == len(rows)
    written = [(n, key, value) for n, batch in target.there for key, value in batch]
    assert written == rows
    for _, batch in target.there:
        size = sum(len(key) + len(value or b"") + 32 for key, value in batch)
        assert size <= 512 * 1024 or len(batch) == 1
    # No batch is closed early: with the next record it would be too large, or another partition's.
    for (n, batch), (m, following) in zip(target.there, target.there[1:], strict=False):
        key, value = following[0]
        size = sum(len(k) + len(v or b"") + 32 for k, v in (*batch, (key, value)))
        assert n != m or size > 512 * 1024
    assert target.times <= {123}


@pytest.mark.parametrize("code", [3, 5, 6, 7, 9, 19, 20, 89])
def test_what_may_be_over_in_a_moment_is_tried_again_with_fresh_leaders(code: int) -> None:
    target = Target(0, code, code)
    assert target.writer().write(TOPIC, [(0, b"a", None), (1, b"b", None)]) == 2
    assert target.there == [(0, [(b"a", None)]), (1, [(b"b", None)])]
    assert target.asked == [(1, False), (1, False), (1, True), (1, True)]


def test_a_lost_acknowledgement_is_written_again() -> None:
    target = Target(Unreachable("gone"))
    assert target.writer().write(TOPIC, [(0, b"a", b"1")]) == 1
    assert target.there == [(0, [(b"a", b"1")])]


@pytest.mark.parametrize(
    ("code", "kind", "what", "do"),
    [
        (10, ClusterError, "is larger than the topic allows", "Raise max.message.bytes of mm2-con"),
        (18, ClusterError, "is larger than the topic allows", "Raise max.message.bytes of mm2-con"),
        (29, Denied, f"writing to {TOPIC}-0", "--operation Write --topic"),
        (87, ClusterError, f"writing to {TOPIC}-0", ""),
    ],
)
def test_what_will_not_be_over_is_told_at_once(
    code: int, kind: type[MirrorError], what: str, do: str
) -> None:
    target = Target(0, code)
    rows = [(0, b"a", None), (1, b"b", None)]
    with pytest.raises(kind) as caught:
        target.writer().write(TOPIC, [*rows[:1], (0, b"b", bytes(600_000)), *rows[1:]])
    assert type(caught.value) is kind
    assert what in caught.value.what
    assert "cluster A" in caught.value.where
    assert do in caught.value.do
    assert target.there == [(0, [(b"a", None)])], "those before it were written, none behind"


@pytest.mark.parametrize(
    ("known", "text"), [(False, "UNKNOWN_TOPIC_OR_PARTITION"), (True, "LEADER_NOT_AVAILABLE")]
)
def test_without_a_leader_it_is_tried_until_the_time_is_over(known: bool, text: str) -> None:
    hasty = replace(CLIENT, request_timeout_ms=1, retry_backoff_ms=1)
    target = Target(client=hasty)
    target.known, target.leader = known, None
    with pytest.raises(MirrorError, match=text):
        target.writer().write(TOPIC, [(0, b"a", None)])
    assert not target.there


def test_a_link_that_is_closed_meanwhile_ends_the_tries() -> None:
    target = Target(*[6] * 1_000)
    answer = target.request

    def closing(*arguments: Any, **named: Any) -> Any:
        target.closes += len(target.outcomes) == 998
        return answer(*arguments, **named)

    target.request = closing  # type: ignore[method-assign]
    with pytest.raises(MirrorError, match="NOT_LEADER_FOR_PARTITION"):
        target.writer().write(TOPIC, [(0, b"a", None)])
    assert len(target.outcomes) == 997


# --- reading ------------------------------------------------------------------------------------


class Consumer:
    """What `TopicTail` uses of kafka-python's: each poll gives what is next in ``polls``."""

    def __init__(self, *polls: Iterable[tuple[int, int]] | Exception) -> None:
        self.polls = deque(polls)
        self.positions: dict[int, int] = {}
        self.closed = False

    def poll(self, *, timeout_ms: int) -> dict[KafkaPartition, list[Any]]:
        found: dict[KafkaPartition, list[Any]] = {}
        step = self.polls.popleft() if self.polls else ()
        if isinstance(step, Exception):
            raise step
        for partition, offset in step:
            # A marker or an aborted record moves the position, and is not handed out.
            self.positions[partition] = abs(offset) + 1
            if offset >= 0:
                row = SimpleNamespace(key=b"%d" % offset, value=None)
                found.setdefault(KafkaPartition(TOPIC, partition), []).append(row)
        return found

    def position(self, partition: KafkaPartition) -> int:
        return self.positions.get(partition.partition, 0)

    def close(self, *, timeout_ms: float) -> None:
        self.closed = True


def reader(consumer: Consumer, *ends: int, client: ClusterClient = CLIENT) -> TopicTail:
    ranges = {TopicPartition(TOPIC, n): (0, end) for n, end in enumerate(ends)}
    found = TopicTail(client, ranges)
    found._consumer = consumer
    return found


def test_every_partition_is_read_to_the_end_it_had() -> None:
    consumer = Consumer([(0, 0), (1, 0)], [], [(1, 1), (1, 2)], [(0, -1)], [(0, 2)])
    with reader(consumer, 2, 3) as found:
        assert list(found.read_to_end()) == [
            (0, b"0", None), (1, b"0", None), (1, b"1", None), (1, b"2", None),
        ]  # fmt: skip
        assert len(consumer.polls) == 1, "a marker at the end counts, and nothing behind it is read"
        assert list(found.read_to({TP: 3})) == [(0, b"2", None)]
        assert list(found.read_to({TP: 3})) == []
    assert consumer.closed


def test_an_empty_partition_is_not_waited_for() -> None:
    consumer = Consumer()
    assert list(reader(consumer, 0).read_to_end()) == []


def test_without_progress_the_reading_ends_with_an_error() -> None:
    found = reader(Consumer([(0, 0)]), 5, 2, client=replace(CLIENT, request_timeout_ms=0))
    with pytest.raises(TopicError, match="makes no progress") as caught:
        list(found.read_to_end())
    assert f"reading {TOPIC}-0, {TOPIC}-1" in caught.value.what
    assert caught.value.where == "cluster A"
    assert caught.value.do == "Check that the brokers of this cluster are healthy."


def test_with_a_bound_the_rest_is_left_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    found = reader(Consumer([(0, 0)]), 5)
    assert list(found.read_to_end(within_s=-1)) == [(0, b"0", None)]
    assert f"reading topic {TOPIC} ended early, after -1 s" in caplog.text


@pytest.mark.parametrize("kind", [ValueError, BatchError, AssertionError])
def test_records_that_cannot_be_read_name_topic_and_tool(kind: type[Exception]) -> None:
    with pytest.raises(TopicError) as caught:
        reader(Consumer(kind("odd")), 5).poll()
    assert caught.value.what == f"records of topic {TOPIC} cannot be read (odd)."
    assert caught.value.where == "cluster A"
    assert "kafka-dump-log.sh" in caught.value.do
