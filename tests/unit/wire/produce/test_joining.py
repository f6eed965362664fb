"""Batches that wait for a slow link: when they are joined, what becomes of their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random

import pytest

from sparkmirror.model import TopicPartition
from sparkmirror.progress import JoinCounts
from sparkmirror.records.codecs import GZIP, LZ4, NAMES, NONE, SNAPPY, ZSTD
from sparkmirror.records.header import (
    LOG_APPEND_TIME_BIT,
    RECORD_COUNT_AT,
    codec,
    last_offset_delta,
    max_timestamp_ms,
    record_count,
)
from sparkmirror.records.rebatch import join_batches
from sparkmirror.records.records import Limits, Record, decode_records, encode_batch
from sparkmirror.records.split import decode_batches
from sparkmirror.settings import ProduceSettings
from sparkmirror.wire.produce.joining import Joining, RoundTrip
from sparkmirror.wire.produce.partition_queue import PartitionQueue, QueuedBatch
from sparkmirror.wire.produce.topic_limits import ACCEPTED_BYTES, TopicLimits
from tests.property.test_producer_properties import PARTITIONS, Run
from tests.property.test_refusals import Taken

A = PARTITIONS[0]
TP = TopicPartition("t", 0)


@pytest.fixture
def run() -> Iterator[Run]:
    found = Run(joining="always")
    yield found
    found.target.close()


def _begin(run: Run) -> None:
    """One batch is acknowledged: from then on several may be in flight."""
    run.append(A, 1)
    run.settle()


def _complete(run: Run) -> None:
    run.settle()
    assert run.target.partitions[A].values == run.appended[A]
    assert run.acknowledged[A] == len(run.appended[A])
    assert run.producer.backlog.bytes_waiting == 0


def _sizes(run: Run) -> list[int]:
    return [len(batch.values) for batch in run.target.partitions[A].log]


# -- on their way ------------------------------------------------------------------------------


def test_what_waits_goes_as_one_batch_and_each_is_acknowledged(run: Run) -> None:
    _begin(run)
    for _ in range(10):
        run.append(A, 3)
    # `Run` compares the offset of each acknowledgement with the record that its token names.
    _complete(run)
    assert _sizes(run) == [1, 30]
    counts = run.producer.joining.counts
    assert counts.batches == 10
    assert counts.bytes_in > counts.bytes_out > 0


def test_a_joined_batch_is_sent_again_as_it_was(run: Run) -> None:
    """It may be there: other records under its sequences would be taken for a repeat."""
    _begin(run)
    run.append(A, 2)
    run.append(A, 2)
    run.pump()
    assert run.target.take(0)
    run.target.cut(0)  # it has arrived, its acknowledgement has not
    run.pump()
    for _ in range(3):
        run.append(A, 1)
    _complete(run)
    assert _sizes(run) == [1, 4, 3]


def test_what_was_sent_alone_is_not_joined_later(run: Run) -> None:
    _begin(run)
    run.append(A, 2)
    run.pump()
    run.target.cut(0)
    run.pump()  # it waits again
    run.append(A, 1)
    run.append(A, 1)
    _complete(run)
    assert _sizes(run) == [1, 2, 2]


def test_a_joined_batch_that_is_too_large_goes_apart(run: Run) -> None:
    _begin(run)
    run.target.batches_max_records = 3
    for _ in range(4):
        run.append(A, 2)
    _complete(run)
    log = run.target.partitions[A].log
    found = [(batch.sequence, len(batch.values)) for batch in log]
    assert found == [(0, 1), (1, 2), (3, 2), (5, 2), (7, 2)]
    assert len({batch.producer_id for batch in log}) == 1
    assert not run.producer.backlog.halts
    assert run.limits.of(A.topic) < ACCEPTED_BYTES, "the next one is smaller"


def test_records_that_are_refused_belong_to_the_batch_that_they_came_in(run: Run) -> None:
    taken = Taken()
    run.producer.backlog.refusals = taken
    _begin(run)
    run.target.refused = frozenset({4})
    for _ in range(3):
        run.append(A, 2)  # 1 2, 3 4, 5 6
    run.settle()
    assert run.target.partitions[A].values == [0, 1, 2, 3, 5, 6]
    assert taken.values == [4]
    assert taken.tokens == {4}, "the token of the second batch"


def test_off_joins_nothing() -> None:
    run = Run(joining="off")
    _begin(run)
    for _ in range(5):
        run.append(A, 1)
    _complete(run)
    assert _sizes(run) == [1] * 6
    assert not run.producer.joining.counts.batches
    run.target.close()


# -- when --------------------------------------------------------------------------------------


def _queue(batches: int, *, kind: int = NONE, size: int = 1_000) -> PartitionQueue:
    state = PartitionQueue(TP)
    for number in range(batches):
        records = [Record(number, 1, None, b"x" * size)]
        data = memoryview(encode_batch(records, codec=kind))
        state.pending.append(QueuedBatch(data, 1, number, number))
    return state


def _trip(seconds: float) -> RoundTrip:
    found = RoundTrip()
    found.note(seconds, 0.0)
    return found


def _looks(
    joining: Joining, state: PartitionQueue, trip_s: float, times: Sequence[float], waited: float
) -> list[bool]:
    """Whether batches are joined at each of ``times``; ``waited``: the share of it for answers."""
    found = []
    for before, now in zip((0.0, *times), times, strict=False):
        joining.waited_s += waited * (now - before)
        found.append(joining.form(state, _trip(trip_s), 1, now) != 0)
    return found


def test_it_begins_after_four_round_trips_of_waiting() -> None:
    times = [0.0, 0.05, 0.1, 0.15, 0.201]
    joined = _looks(Joining(ProduceSettings()), _queue(50), 0.05, times, 0.9)
    assert joined == [False, False, False, False, True]


def test_nearby_nothing_is_joined() -> None:
    times = [0.01 * n for n in range(1_000)]
    assert not any(_looks(Joining(ProduceSettings()), _queue(500), 0.004, times, 0.9))


def test_without_processor_time_of_its_own_nothing_is_joined() -> None:
    times = [0.01 * n for n in range(1_000)]
    assert not any(_looks(Joining(ProduceSettings()), _queue(500), 0.05, times, 0.2))


def test_what_is_sent_at_once_is_not_joined() -> None:
    times = [0.01 * n for n in range(1_000)]
    assert not any(_looks(Joining(ProduceSettings()), _queue(5), 0.05, times, 0.9))


def test_it_ends_when_nothing_waits_any_more() -> None:
    joining, state = Joining(ProduceSettings()), _queue(50)
    assert _looks(joining, state, 0.05, [0.0, 0.3], 0.9) == [False, True]
    state.pending.clear()
    state.pending.extend(_queue(3).pending)
    assert _looks(joining, state, 0.05, [1.2], 0.9) == [True]
    state.pending.clear()
    state.pending.extend(_queue(3).pending)
    assert _looks(joining, state, 0.05, [1.4], 0.9) == [False], "for 20 round trips"


@pytest.mark.parametrize(
    ("busy", "rate", "goes_on"),
    [
        (0.9, 300, False),  # most of the processor's time, for less than before
        (0.9, 2_000, True),  # the processor is the limit, but it carries more
        (0.2, 300, True),  # less is written, or the link is the limit
    ],
)
def test_it_ends_where_it_is_the_limit_itself(busy: float, rate: int, goes_on: bool) -> None:
    """As with gzip over a few milliseconds: the link would carry more of what it is given."""
    joining, state = Joining(ProduceSettings()), _queue(50)

    def look(now: float, share: float, records: int) -> bool:
        joining.waited_s += (1 - share) * 0.1
        joining.counts = joining.counts.plus(JoinCounts(cpu_s=share * 0.1))
        state.done += records // 10
        state.pending.clear()
        state.pending.extend(_queue(50).pending)
        return joining.form(state, _trip(0.008), 1, now) != 0

    assert [look(0.1 * n, 0.1, 1_000) for n in range(3)] == [False, True, True]
    found = [look(0.3 + 0.1 * n, busy, rate) for n in range(250)]
    assert found[5]
    assert any(found[30:]) == goes_on
    if goes_on:
        assert all(found)
        return
    assert not any(look(25.3 + 0.1 * n, 0.1, 1_000) for n in range(40)), "it rests for a while"
    assert any(look(35.0 + 0.1 * n, 0.1, 1_000) for n in range(3))
    assert not all(look(35.3 + 0.1 * n, 0.9, 300) for n in range(30))
    # Twice as long the next time.
    assert not any(look(40.0 + 0.1 * n, 0.1, 1_000) for n in range(550))


def test_a_hold_that_has_ended_leaves_nothing_to_the_next_wait() -> None:
    joining, state = Joining(ProduceSettings()), _queue(50)
    assert _looks(joining, state, 0.05, [0.0, 0.3], 0.9) == [False, True]
    state.pending.clear()
    assert _looks(joining, state, 0.05, [5.0], 0.9) == [False]
    state.pending.extend(_queue(50).pending)
    assert _looks(joining, state, 0.05, [5.1, 5.2, 5.35], 0.9) == [False, False, True]


def test_the_round_trip_is_the_quickest_answer_of_a_while() -> None:
    trip = RoundTrip()
    assert trip.seconds == 0
    for at, seconds in ((0.0, 0.3), (1.0, 0.05), (2.0, 0.4), (12.0, 0.2)):
        trip.note(seconds, at)
    assert trip.seconds == 0.05
    trip.note(0.2, 23.0)
    assert trip.seconds == 0.2


def test_the_partitions_of_a_request_share_its_room() -> None:
    joining = Joining(ProduceSettings(link_joining="always"))
    alone, shared = _queue(3_000), _queue(3_000)
    joining.form(alone, _trip(0.05), 1, 0.0)
    joining.form(shared, _trip(0.05), 16, 0.0)
    assert ACCEPTED_BYTES * 0.9 < len(alone.pending[0].batch) <= ACCEPTED_BYTES
    assert 230_000 < len(shared.pending[0].batch) <= 1 << 18


def test_on_a_slow_link_requests_take_a_few_seconds_at_most() -> None:
    """All that is in flight must arrive before a mirror can end."""
    joining, trip = Joining(ProduceSettings(link_joining="always")), _trip(0.05)
    trip.fit(1_000_000, 40.0)  # 25 kB/s
    state = _queue(3_000)
    joining.form(state, trip, 1, 0.0)
    assert 100_000 < len(state.pending[0].batch) <= 125_000
    trip.fit(500, 100.0)  # a broker that hung: it says little of the link
    assert trip.request_bytes == 64 * 1024
    for _ in range(60):
        trip.fit(60_000, 0.1)
    assert trip.request_bytes == 4 << 20


def test_a_request_stays_below_max_request_size() -> None:
    joining = Joining(ProduceSettings(link_joining="always", request_bytes_max=50_000))
    state = _queue(100)
    joining.form(state, _trip(0.05), 1, 0.0)
    assert 40_000 < len(state.pending[0].batch) <= 50_000


class Stated(TopicLimits):
    """Every topic accepts ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def of(self, topic: str) -> int:
        return self._limit


@pytest.mark.parametrize(("limit", "largest"), [(8 << 20, 4 << 20), (2_000_000, 2_000_000)])
def test_batches_grow_to_what_the_topic_accepts(limit: int, largest: int) -> None:
    """At most 4 MiB: a slot has no room for more of them in flight."""
    joining = Joining(ProduceSettings(link_joining="always"), Stated(limit))
    state = PartitionQueue(TP)
    sizes = []
    for _ in range(20):
        state.pending = _queue(60, size=100_000).pending
        joining.form(state, _trip(0.05), 1, 0.0)
        sizes.append(len(state.pending[0].batch))
    assert sizes[0] <= ACCEPTED_BYTES
    assert sizes == sorted(sizes)
    assert largest - 110_000 < sizes[-1] <= largest


def test_batches_stay_below_what_the_topic_accepts() -> None:
    joining = Joining(ProduceSettings(link_joining="always"), Stated(10_000))
    state = _queue(90)
    for _ in range(10):
        joining.form(state, _trip(0.05), 1, 0.0)
        assert 9_000 < len(state.pending.popleft().batch) <= 10_000
    assert not state.pending


def test_large_batches_do_not_unpack_to_more_than_is_allowed() -> None:
    """Text that shrinks to a tenth or less: 4 MiB of it would be more than 40 MiB."""
    joining = Joining(ProduceSettings(link_joining="always"), Stated(8 << 20))
    digits = Random(3)
    text = b"".join(b"%08d" % digits.randrange(10**8) + b" " * 150 for _ in range(500))
    one = memoryview(encode_batch([Record(0, 1, None, text)], codec=LZ4))
    assert len(text) / 20 < len(one) < len(text) / 10
    state = PartitionQueue(TP)
    most = 0
    for _ in range(10):
        state.pending.extend(QueuedBatch(one, 1, None) for _ in range(600))
        assert joining.form(state, _trip(0.05), 1, 0.0) != 0, "none is refused as too much"
        most = max(most, state.pending[0].records * len(text))
        state.pending.clear()
    assert 16 << 20 < most < 32 << 20


# -- the records -------------------------------------------------------------------------------


def _batches(kind: int) -> tuple[list[memoryview], list[Record]]:
    """Batches as a source has them, with times that go back and headers; their records."""
    sizes = (1, 40, 3, 100)
    records = [
        Record(
            offset=7_000 + n,
            timestamp=1_700_000_000_000 + (n * 37) % 1_000 - 500 * (n % 2),
            key=None if n % 3 else b"key-%d" % n,
            value=None if n % 11 == 10 else b"value %d " % n * (n % 5),
            headers=((b"n", b"%d" % n), (b"none", None)) if n % 4 == 0 else (),
        )
        for n in range(sum(sizes))
    ]
    ends = list(accumulate(sizes))
    return [
        memoryview(encode_batch(records[end - size : end], codec=kind))
        for size, end in zip(sizes, ends, strict=True)
    ], records


@pytest.mark.parametrize("to", range(5), ids=NAMES)
@pytest.mark.parametrize("kind", range(5), ids=NAMES)
def test_records_stay_what_they_are(kind: int, to: int) -> None:
    batches, records = _batches(kind)
    written = join_batches(batches, to, Limits())
    assert written is not None
    joined = memoryview(written.data)
    assert codec(joined) == to
    assert list(decode_batches(joined)) == records
    assert record_count(joined) == len(records) == last_offset_delta(joined) + 1
    assert max_timestamp_ms(joined) == max(one.timestamp for one in records)
    assert written.runs == [(7_000, len(records))]


@pytest.mark.parametrize("to", [GZIP, SNAPPY, LZ4, ZSTD], ids=lambda to: NAMES[to])
def test_a_link_has_a_codec_of_its_own(to: int) -> None:
    joining = Joining(ProduceSettings(link_joining="always", link_compression=NAMES[to]))
    for kind in (NONE, GZIP, SNAPPY, LZ4, ZSTD):
        state = _queue(10, kind=kind)
        assert joining.form(state, _trip(0.05), 1, 0.0) < 0
        joined = state.pending[0].batch
        assert codec(joined) == to
        values = [one.value for one in decode_batches(joined)]
        assert values == [b"x" * 1_000] * 10


def test_the_sources_codec_is_kept_where_the_links_would_be_larger() -> None:
    joining = Joining(ProduceSettings(link_joining="always", link_compression="lz4"))
    digits = Random(3)
    state = PartitionQueue(TP)
    for number in range(10):
        text = b"%0400d" % digits.randrange(10**400)
        one = encode_batch([Record(number, 1, None, text)], codec=GZIP)
        state.pending.append(QueuedBatch(memoryview(one), 1, number))
    assert joining.form(state, _trip(0.05), 1, 0.0) < 0
    assert codec(state.pending[0].batch) == GZIP


def test_batches_of_different_codecs_stay_apart() -> None:
    joining = Joining(ProduceSettings(link_joining="always"))
    state = _queue(3, kind=LZ4)
    state.pending.extend(_queue(3, kind=NONE).pending)
    joining.form(state, _trip(0.05), 1, 0.0)
    assert [one.records for one in state.pending] == [3, 1, 1, 1]


@pytest.mark.parametrize("other", [NONE, SNAPPY, ZSTD])
def test_batches_of_different_codecs_come_together_in_that_of_the_link(other: int) -> None:
    """What does not shrink a producer leaves as it is, so two codecs may alternate."""
    joining = Joining(ProduceSettings(link_joining="always", link_compression="zstd"))
    state = _queue(1, kind=LZ4)
    for number in range(9):
        state.pending.extend(_queue(1, kind=LZ4 if number % 2 else other).pending)
    before = [record for one in state.pending for record in decode_records(one.batch)]
    joining.form(state, _trip(0.05), 1, 0.0)
    (one,) = state.pending
    assert codec(one.batch) == ZSTD
    assert [record.value for record in decode_records(one.batch)] == [
        record.value for record in before
    ]


def test_what_unpacks_to_too_much_goes_as_it_is() -> None:
    """Few bytes that unpack to gigabytes cost no more than the limit, and go to the target."""
    joining = Joining(ProduceSettings(link_joining="always"))
    one = memoryview(encode_batch([Record(0, 1, None, b"x" * (20 << 20))], codec=GZIP))
    state = PartitionQueue(TP)
    state.pending.extend(QueuedBatch(one, 1, number, number) for number in range(40))
    before = [bytes(one.batch) for one in state.pending]
    for _ in range(2):
        assert joining.form(state, _trip(0.05), 1, 0.0) == 0
    assert [bytes(one.batch) for one in state.pending] == before
    assert state.pending[0].fixed
    assert state.join_state.bytes_max < ACCEPTED_BYTES


def test_records_that_cannot_be_read_go_as_they_are() -> None:
    joining = Joining(ProduceSettings(link_joining="always"))
    damaged = bytearray(encode_batch([Record(0, 1, None, b"x" * 100)]))
    damaged[RECORD_COUNT_AT + 3] = 2
    state = PartitionQueue(TP)
    for _ in range(2):
        state.pending.append(QueuedBatch(memoryview(bytes(damaged)), 2, None))
    assert joining.form(state, _trip(0.05), 1, 0.0) == 0
    assert [one.fixed for one in state.pending] == [True, True]


def test_log_append_time_becomes_each_records_own() -> None:
    records = [Record(n, 5, None, b"x") for n in range(3)]
    one = encode_batch(records, attributes=LOG_APPEND_TIME_BIT, max_timestamp=99)
    written = join_batches([memoryview(one), memoryview(one)], NONE, Limits())
    assert written is not None
    assert [record.timestamp for record in decode_batches(memoryview(written.data))] == [99] * 6
