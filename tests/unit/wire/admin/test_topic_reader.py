"""Small internal topics: what is written, in which order, and when it is tried again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.errors import (
    ClusterError,
    Denied,
    MirrorError,
    TopicError,
    Unreachable,
)
from sparkmirror.model import TopicPartition
from sparkmirror.offset_reset import EARLIEST
from sparkmirror.records.header import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    base_offset,
    last_offset_delta,
    seal,
)
from sparkmirror.records.records import Record, decode_records, encode_batch
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin.leaders import MOVED
from sparkmirror.wire.admin.topic_reader import TopicTail, TopicWriter
from tests.patience import patience

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
    with pytest.raises(MirrorError, match="NOT_LEADER_OR_FOLLOWER"):
        target.writer().write(TOPIC, [(0, b"a", None)])
    assert len(target.outcomes) == 997


# --- reading ------------------------------------------------------------------------------------

TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORTED = 7


def entry(offset: int, attributes: int = 0, producer_id: int = -1) -> bytes:
    record = Record(offset, 0, b"%d" % offset, None)
    return encode_batch([record], attributes=attributes, producer_id=producer_id)


def abort_marker(offset: int) -> bytes:
    record = Record(offset, 0, b"\0\0\0\0", b"\0\0\0\0\0\0")
    return encode_batch([record], attributes=TRANSACTIONAL | CONTROL, producer_id=ABORTED)


class Logs:
    """A link and the leaders of partitions whose logs are batches; some rounds go wrong.

    ``codes``: error codes of the next answers (0: none). An answer holds one batch.
    """

    def __init__(self, *logs: list[bytes], codes: Iterable[int] = (), starts: int = 0) -> None:
        self.client = CLIENT
        self.logs = logs
        self.codes = deque(codes)
        self.starts = starts
        self.aborted: list[Any] = []
        self.asked: list[dict[int, int]] = []
        self.fresh: list[bool] = []
        self.away = 0
        self.closed_while_away = False
        self.closes = 0

    def by_leader(
        self, partitions: list[TopicPartition], *, fresh: bool
    ) -> tuple[dict[int, list[TopicPartition]], set[TopicPartition]]:
        self.fresh.append(fresh)
        return {1: list(partitions)}, set()

    def list_offsets(
        self, partitions: list[TopicPartition], timestamp: int, _isolation: int
    ) -> dict[TopicPartition, int]:
        assert timestamp == EARLIEST
        return dict.fromkeys(partitions, self.starts)

    def request(self, make: Any, _doing: str, *, node: int, needs: Any) -> Any:
        assert (node, needs.operation, needs.name) == (1, "Read", TOPIC)
        if self.away:
            self.away -= 1
            self.closes += not self.away and self.closed_while_away
            raise Unreachable("gone")
        message = make()
        assert (message.isolation_level, message.max_wait_ms) == (1, 0)
        (topic,) = message.topics
        self.asked.append({part.partition: part.fetch_offset for part in topic.partitions})
        parts = [self._part(part.partition, part.fetch_offset) for part in topic.partitions]
        return SimpleNamespace(responses=[SimpleNamespace(topic=topic.topic, partitions=parts)])

    def _part(self, partition: int, position: int) -> Any:
        code = self.codes.popleft() if self.codes else 0
        code = 1 if position < self.starts else code
        batch = b""
        if not code:
            ends = [
                (base_offset(one) + last_offset_delta(one), one) for one in self.logs[partition]
            ]
            batch = next((one for last, one in ends if last >= position), b"")
        return SimpleNamespace(
            partition_index=partition, error_code=code, records=batch,
            aborted_transactions=self.aborted, high_watermark=len(self.logs[partition]),
        )  # fmt: skip

    def reader(self, *ends: int, passes: bool = False) -> TopicTail:
        ranges = {TopicPartition(TOPIC, n): (0, end) for n, end in enumerate(ends)}
        return TopicTail(self, self, ranges, passes=passes)  # type: ignore[arg-type]


def keys(found: Iterable[tuple[int, bytes | None, bytes | None]]) -> list[tuple[int, bytes | None]]:
    return [(partition, key) for partition, key, _ in found]


def test_every_partition_is_read_to_the_end_it_had_and_no_further() -> None:
    logs = Logs([entry(0), entry(2)], [entry(0), entry(1), entry(2)])
    with logs.reader(1, 3) as found:
        assert keys(found.read_to_end()) == [(0, b"0"), (1, b"0"), (1, b"1"), (1, b"2")]
        assert logs.asked == [{0: 0, 1: 0}, {1: 1}, {1: 2}]
        assert keys(found.read_to({TP: 3})) == [(0, b"2")]
        assert keys(found.read_to({TP: 3})) == []
        assert logs.asked[3:] == [{0: 1}]
    assert not any(logs.fresh)


def test_an_empty_partition_is_not_asked_for() -> None:
    logs = Logs([])
    assert list(logs.reader(0).read_to_end()) == []
    assert not logs.asked


def test_what_was_aborted_and_markers_are_passed() -> None:
    lost = entry(1, TRANSACTIONAL, ABORTED)
    logs = Logs([entry(0), lost, abort_marker(2), entry(3), abort_marker(4)])
    logs.aborted = [SimpleNamespace(producer_id=ABORTED, first_offset=1)]
    assert keys(logs.reader(5).read_to_end()) == [(0, b"0"), (0, b"3")]


def test_a_log_that_begins_later_by_now_is_read_from_there() -> None:
    logs = Logs([entry(0), entry(1), entry(2)], starts=2)
    assert keys(logs.reader(3).read_to_end()) == [(0, b"2")]


def test_a_log_that_was_cut_off_is_read_from_its_beginning() -> None:
    """An unclean election: what is written now has offsets that were read before."""
    logs = Logs([entry(0), entry(1), entry(2)])
    found = logs.reader(3)
    assert keys(found.read_to_end()) == [(0, b"0"), (0, b"1"), (0, b"2")]
    logs.logs = ([entry(0), entry(1)],)
    logs.codes.append(1)
    assert keys(found.read_to({TP: 2})) == [(0, b"0"), (0, b"1")]


def test_a_new_leader_that_does_not_know_its_end_yet_has_lost_nothing() -> None:
    logs = Logs([entry(0), entry(1), entry(2)])
    found = logs.reader(3)
    assert len(list(found.read_to_end())) == 3
    assert keys(found.read_to({TP: 1})) == []
    assert keys(found.read_to({TP: 3})) == []


@pytest.mark.parametrize("code", sorted(MOVED))
def test_a_leader_that_moved_is_looked_for(code: int) -> None:
    logs = Logs([entry(0), entry(1)], codes=[0, code])
    assert keys(logs.reader(2).read_to_end()) == [(0, b"0"), (0, b"1")]
    assert logs.fresh == [False, False, True]


def test_a_broker_that_is_away_is_asked_for_again() -> None:
    logs = Logs([entry(0)])
    logs.away = 1
    assert keys(logs.reader(1).read_to_end()) == [(0, b"0")]
    assert logs.fresh == [False, True]


def test_a_link_that_is_closed_meanwhile_ends_the_reading() -> None:
    logs = Logs([entry(0)])
    logs.away, logs.closed_while_away = 3, True
    with pytest.raises(Unreachable, match="gone"):
        list(logs.reader(1).read_to_end())
    assert len(logs.fresh) == 3


def test_topics_that_may_not_be_read_are_named() -> None:
    with pytest.raises(Denied, match=f"reading topic {TOPIC}") as caught:
        list(Logs([entry(0)], codes=[29]).reader(1).read_to_end())
    assert "--operation Read --topic" in caught.value.do


def test_without_progress_the_reading_ends_with_an_error() -> None:
    logs = Logs([entry(0)], [])
    logs.client = replace(CLIENT, request_timeout_ms=0)
    with pytest.raises(TopicError, match="makes no progress") as caught:
        list(logs.reader(5, 2).read_to_end())
    assert f"reading {TOPIC}-0, {TOPIC}-1" in caught.value.what
    assert caught.value.where == "cluster A"
    assert caught.value.do == "Check that the brokers of this cluster are healthy."


def test_with_a_bound_the_rest_is_left_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    found = Logs([entry(0), entry(1)]).reader(5)
    assert keys(found.read_to_end(within_s=-1)) == [(0, b"0")]
    assert f"reading topic {TOPIC} ended early, after -1 s" in caplog.text


@pytest.mark.parametrize("passes", [False, True])
def test_records_that_cannot_be_read_name_topic_and_tool(
    passes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # Its checksum is right, but it is not what lz4 makes.
    header = bytearray(encode_batch([Record(0, 0, b"k", None)])[:HEADER_BYTES])
    header[ATTRIBUTES_AT + 1] = 3
    odd = seal(bytes(header[ATTRIBUTES_AT:]), b"nonsense", 0) + b"nonsense"
    found = Logs([odd, entry(1)]).reader(2, passes=passes)
    if passes:
        assert keys(found.read_to_end()) == [(0, b"1")]
        assert "records at offset 0 cannot be read, skipped" in caplog.text
        return
    with pytest.raises(TopicError) as caught:
        list(found.read_to_end())
    assert caught.value.what.startswith(f"records of topic {TOPIC} cannot be read (")
    assert caught.value.where == "cluster A"
    assert "kafka-dump-log.sh" in caught.value.do


class Polls:
    """What `TopicTail.poll` uses of `LongPolls`: the next answers of the leader."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.closed = False
        self.looked = 0

    def responses(self, positions: dict[TopicPartition, int], timeout_ms: int) -> list[Any]:
        parts = [self.logs._part(tp.partition, at) for tp, at in positions.items()]
        if not any(part.records or part.error_code for part in parts):
            time.sleep(timeout_ms / 1000)
            return []
        rows = [SimpleNamespace(topic=TOPIC, partitions=parts)]
        return [SimpleNamespace(error_code=0, responses=rows)]

    def look_again(self) -> None:
        self.looked += 1

    def close(self) -> None:
        self.closed = True


def test_who_waits_for_records_and_then_reads_to_an_end_misses_none_and_gets_none_twice() -> None:
    logs = Logs([entry(0), entry(1), entry(2), entry(3)])
    found = logs.reader(3)
    polls = Polls(logs)
    found._polls = polls  # type: ignore[assignment]
    assert keys(found.poll()) == [(0, b"0")]
    assert keys(found.read_to({TP: 3})) == [(0, b"1"), (0, b"2")]
    assert polls.closed
    found._polls = again = Polls(logs)  # type: ignore[assignment]
    assert keys(found.poll()) == [(0, b"3")]
    began_s = time.monotonic()
    assert found.poll(50) == []
    assert time.monotonic() - began_s >= 0.04
    found.close()
    assert again.closed


def test_who_waits_looks_for_a_leader_that_moved() -> None:
    logs = Logs([entry(0)], codes=[6])
    found, polls = logs.reader(1), Polls(logs)
    found._polls = polls  # type: ignore[assignment]
    assert keys(found.poll()) == [(0, b"0")]
    assert polls.looked == 1


def test_who_waits_goes_on_where_the_log_begins_by_now() -> None:
    logs = Logs([entry(0), entry(1), entry(2)], starts=2)
    found = logs.reader(0)
    found._polls = Polls(logs)  # type: ignore[assignment]
    assert keys(found.poll()) == [(0, b"2")]


@pytest.mark.parametrize("passes", [False, True])
def test_a_damaged_batch_hides_no_other(passes: bool, caplog: pytest.LogCaptureFixture) -> None:
    odd = bytearray(entry(0))
    odd[-1] ^= 1  # its checksum is wrong
    found = Logs([bytes(odd), entry(1)]).reader(2, passes=passes)
    if passes:
        assert keys(found.read_to_end()) == [(0, b"1")]
        assert "records at offset 0 cannot be read, skipped" in caplog.text
    else:
        with pytest.raises(TopicError, match="cannot be read"):
            list(found.read_to_end())


def test_a_topic_that_takes_nothing_holds_up_no_other() -> None:
    """The driver's reports would stop, and another process would take over its flows."""
    began, over, done = threading.Event(), threading.Event(), threading.Event()

    class OneAway(Target):
        def by_leader(self, partitions: Any, *, fresh: bool) -> Any:
            if partitions[0].topic != TOPIC:
                began.set()
                over.wait(patience())
                raise TopicError("no leader.")
            return super().by_leader(partitions, fresh=fresh)

    target: Any = OneAway()
    writer = TopicWriter(target, target)

    def stuck() -> None:
        with contextlib.suppress(TopicError):
            writer.write("checkpoints", [(0, b"a", None)])

    def report() -> None:
        writer.write(TOPIC, [(0, b"b", None)])
        done.set()

    threads = [threading.Thread(target=one) for one in (stuck, report)]
    threads[0].start()
    assert began.wait(patience())
    threads[1].start()
    try:
        assert done.wait(patience())
    finally:
        over.set()
        for one in threads:
            one.join(patience())
