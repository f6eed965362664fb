"""Exactly-once transactions that end before their interval: the rule, and the sink that follows it.

The rule is tried in a simulation with its own clock; the sink against brokers that answer at once.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.data.write import exactly_once, offset_sync_writer
from sparkmirror.data.write.chunk_offsets import ChunkOffsets
from sparkmirror.data.write.offset_sync_writer import SlotSyncs, SyncSender
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.data.write.transaction_positions import TransactionSyncs
from sparkmirror.data.write.transaction_size import EarlyCommits
from sparkmirror.internal_topics.mm2_records import decode_offset_sync, offset_syncs_topic
from sparkmirror.internal_topics.position_metadata import Mark
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import TopicPartition
from sparkmirror.settings import FlowSettings, OffsetSyncSettings
from sparkmirror.wire.cluster.error_codes import MESSAGE_TOO_LARGE
from tests.unit.data.write.test_exactly_once import (
    BILLS,
    ORDERS,
    SYNCS,
    Brokers,
    Source,
    _flow,
    _syncs,
    simulated,
)

INTERVAL_S = 0.1


def _latencies(
    arrivals: Sequence[float],
    *,
    commit_s: float,
    percent: int = 25,
    size: int = 100,
    partitions: int = 1,
) -> tuple[list[float], float, int]:
    """(latency of each record, share of the time that commits took, number of commits)."""
    early = EarlyCommits(percent)
    now, at, spent, commits = 0.0, 0, 0.0, 0
    latencies: list[float] = []
    while at < len(arrivals):
        now = began = max(now, arrivals[at])
        held = 0
        while True:
            # What has arrived is taken; then nothing more is at hand.
            while at + held < len(arrivals) and arrivals[at + held] <= now:
                held += 1
            end = min(began + INTERVAL_S, early.due_at(began, held * size))
            coming = arrivals[at + held] if at + held < len(arrivals) else float("inf")
            if end <= now or (end < coming):
                now = max(now, end)
                break
            now = coming
        begun, now = now, now + commit_s
        early.committed(begun, now, partitions)
        spent += commit_s
        commits += 1
        latencies += [now - arrival for arrival in arrivals[at : at + held]]
        at += held
    return sorted(latencies), spent / now, commits


def _steady(rate: float, seconds: float = 20.0) -> list[float]:
    clock = random.Random(1)
    at, found = 1.0, []
    while at < seconds:
        at += clock.expovariate(rate)
        found.append(at)
    return found


def test_a_tail_has_the_latency_of_a_commit() -> None:
    latencies, share, _ = _latencies(_steady(25), commit_s=0.002)
    assert latencies[len(latencies) // 2] == pytest.approx(0.002, rel=0.01)
    assert latencies[int(len(latencies) * 0.99)] < 0.01
    assert share < 0.06


@pytest.mark.parametrize("rate", [250, 2_500, 25_000])
@pytest.mark.parametrize("percent", [5, 25, 100])
def test_commits_take_no_more_than_their_share(rate: int, percent: int) -> None:
    latencies, share, _ = _latencies(_steady(rate, 5.0), commit_s=0.002, percent=percent)
    assert share <= percent / 100 + 0.01
    assert max(latencies) <= 0.002 * 100 / percent + 0.004 + 0.001


def test_no_share_means_the_whole_interval() -> None:
    latencies, _, _ = _latencies([1.0, 2.0, 3.0], commit_s=0.002, percent=0)
    assert latencies == pytest.approx([INTERVAL_S + 0.002] * 3)


def test_a_long_way_is_hardly_slower_than_with_the_interval() -> None:
    arrivals = _steady(25)
    for commit_s in (0.05, 0.3):
        early, _, _ = _latencies(arrivals, commit_s=commit_s)
        late, _, _ = _latencies(arrivals, commit_s=commit_s, percent=0)
        assert max(early) <= max(late) + 0.002
        assert sum(early) <= 1.03 * sum(late)  # one that is alone makes others wait
    lonely, _, _ = _latencies([1.0, 5.0, 9.0], commit_s=0.3)
    assert lonely == pytest.approx([0.3] * 3, rel=0.001)


def test_many_partitions_bound_the_markers() -> None:
    arrivals = _steady(5_000, 5.0)
    for partitions in (1, 10, 50):
        _, _, commits = _latencies(arrivals, commit_s=0.0001, partitions=partitions)
        assert commits * partitions / 4 <= 2_100
    _, _, few = _latencies(arrivals, commit_s=0.0001, partitions=10_000)
    assert few <= 4 / INTERVAL_S + 2  # as many as with the interval


def test_many_bytes_keep_their_large_transactions() -> None:
    """Rows of 1 MiB at 100 MB/s, and a moment between them in which nothing is at hand."""
    rows = [1.0 + number * 0.01 for number in range(500)]
    _, _, early = _latencies(rows, commit_s=0.002, size=1 << 20)
    _, _, late = _latencies(rows, commit_s=0.002, size=1 << 20, percent=0)
    assert early == late


def test_one_slow_commit_says_little_about_the_next_ones() -> None:
    early = EarlyCommits(25)
    for number in range(100):
        early.committed(number, number + 0.002, 1)
    early.committed(200.0, 200.08, 1)
    assert early.due_at(200.08, 100) < 200.08 + 0.01


@pytest.mark.parametrize("moves", ["stays", "is given up", "has left"])
def test_syncs_beyond_what_a_commit_takes_outlive_an_abort(
    monkeypatch: pytest.MonkeyPatch, moves: str
) -> None:
    """They are of committed records. Those of the aborted transaction are not, and go with it.

    Partition 2 may go to another slot meanwhile, whose syncs they must not follow.
    """
    monkeypatch.setattr(offset_sync_writer, "_SYNCS_PER_SLOT_MAX", 1)
    flow = _flow(offset_syncs=SYNCS)
    outlet: Any = None
    sources = [TopicPartition("orders", number) for number in range(3)]
    rows: dict[TopicPartition, tuple[int, int]] = {}

    class Pending:
        """Records ``first`` to ``end`` of a partition, written at the same offsets."""

        def __init__(self, first: int, end: int) -> None:
            self.offsets = ChunkOffsets([(first, end - first)], end - first)
            self.offsets.acknowledged(end - first, end - first, first)

        def mark_after(self, mark: Mark) -> Mark:
            return mark

    def lane(tp: TopicPartition) -> Any:
        queue = [Pending(*rows[tp])] if tp in rows else []
        log = SimpleNamespace(topic_id="")
        return SimpleNamespace(source=tp, mark=Mark(), queue=queue, ahead=lambda **_: (log, 0))

    @dataclass(frozen=True)
    class Left:
        source: TopicPartition

    class Lanes:
        def values(self) -> list[Any]:
            return [lane(tp) for tp in sources]

        def __contains__(self, tp: object) -> bool:
            return tp in sources

    task: Any = SimpleNamespace(
        flow=flow, lanes=Lanes(), mapped=lambda _: "", syncs=SlotSyncs(0, outlet), leaving={},
        new_syncs=lambda: SlotSyncs(0, outlet),
    )  # fmt: skip
    syncs = TransactionSyncs(task)

    def taken(now: float) -> list[tuple[int, int]]:
        syncs.begin(now, early=False)
        found = [decode_offset_sync(*one) for one in syncs.take()[0]]
        return [(one[0].partition, one[1]) for one in found if one]

    rows.update(dict.fromkeys(sources, (0, 10)))
    first = taken(1.0)
    assert {partition for partition, _ in first} == {0}
    syncs.written()
    rows.clear()
    rows[sources[0]] = (10, 20)
    assert {partition for partition, _ in taken(2.0)} == {1}
    if moves == "is given up":
        given_up, asked_for = (Left(sources[number]) for number in (2, 1))
        task.leaving = {given_up: (None, 1.0), asked_for: (None, None)}
    elif moves == "has left":
        del sources[2]
    syncs.leave_out()  # of its transaction nothing is written: not the rest of the first one either
    rows.clear()
    after: list[tuple[int, int]] = []
    for number in range(3):
        after += taken(3.0 + number)
        syncs.written()
    assert {partition for partition, _ in after} == ({1, 2} if moves == "stays" else {1})
    assert max(at for _, at in after) == 9
    syncs.leave_out()
    assert taken(9.0) == [], "all of it was written"


# -- the sink ------------------------------------------------------------------------------------


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with simulated() as found:
        yield found


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of the pipe on which rows seem to arrive: what is written there is at hand."""
    reading, writing = os.pipe()
    monkeypatch.setattr(exactly_once.worker_pipes, "input_fd", lambda: reading)
    yield writing
    os.close(reading)
    os.close(writing)


def _with_records(brokers: Brokers) -> list[set[str]]:
    return [topics for topics in brokers.commits if topics & {"A.orders", "A.bills"}]


def _during(rows: Sequence[Any], brokers: Brokers, counts: list[int]) -> Iterator[Any]:
    """``rows``; before each one, how many records of orders are committed by then."""
    for row in rows:
        counts.append(len(brokers.values("A.orders")))
        yield row
    counts.append(len(brokers.values("A.orders")))


def test_what_has_arrived_is_committed_before_more_comes(brokers: Brokers, feed: int) -> None:
    source, counts = Source(brokers), []
    for value in (b"1", b"2", b"3"):
        source.chunk(ORDERS, [value])
    SlotSink(_flow(transaction_commit_percent=100)).run(_during(source.rows, brokers, counts))
    assert counts == [0, 0, 1, 2, 3]
    assert brokers.positions[TopicPartition("A.orders", 0)] == 3


def test_rows_at_hand_join_the_transaction(brokers: Brokers, feed: int) -> None:
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(BILLS, [b"a"])
    os.write(feed, b"more")
    SlotSink(_flow(transaction_commit_percent=100)).run(iter(source.rows))
    assert _with_records(brokers) == [{"A.orders", "A.bills"}]


def test_without_a_share_a_transaction_lasts(brokers: Brokers, feed: int) -> None:
    source, counts = Source(brokers), []
    source.chunk(ORDERS, [b"1"])
    flow = _flow(transaction_commit_percent=0, transaction_interval_ms=60)
    began = time.monotonic()
    SlotSink(flow).run(_during(source.rows, brokers, counts))
    assert counts == [0, 0, 1]
    assert time.monotonic() - began >= 0.06


class Sender:
    """What is published as offset syncs, and after how many commits of records."""

    def __init__(self, brokers: Brokers) -> None:
        self.records: list[tuple[int, int]] = []
        self._brokers = brokers

    def put(self, syncs: Sequence[Any], _runs: Sequence[Any]) -> None:
        self.records.append((len(_with_records(self._brokers)), len(syncs)))

    def flush(self, _timeout_s: float) -> bool:
        return True


def _many(brokers: Brokers, flow: FlowSettings, number: int, pause_s: float = 0.0) -> None:
    source = Source(brokers)
    for value in range(number):
        source.chunk(ORDERS, [b"%d" % value])

    def rows() -> Iterator[Any]:
        yield from source.rows
        if pause_s:  # the source sends rows without records while it is idle
            time.sleep(pause_s)
            yield source.rows[0].slice(0, 0)
            assert _left(brokers, flow) == 0

    SlotSink(flow).run(rows())


def _left(brokers: Brokers, flow: FlowSettings) -> int:
    """Records that no offset sync covers although the interval is over."""
    if flow.offset_syncs.location != "target":
        return 0
    written = [upstream for tp, upstream, _ in _syncs(brokers, flow) if tp == ORDERS]
    return len(brokers.values("A.orders")) - 1 - max(written)


def test_offset_syncs_do_not_multiply_by_early_commits(
    brokers: Brokers, feed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender(brokers)
    monkeypatch.setattr(SyncSender, "of", lambda _: sender)
    flow = _flow(
        offset_syncs=OffsetSyncSettings(enabled=True, location="source", lag_max=100),
        transaction_commit_percent=100,
        transaction_interval_ms=3_600_000,
    )
    _many(brokers, flow, 20)
    assert len(_with_records(brokers)) == 20
    # With the first one, and at the end.
    assert [commits for commits, _ in sender.records] in ([1, 20], [1, 20, 20])


def test_offset_syncs_in_transactions_do_not_multiply_either(brokers: Brokers, feed: int) -> None:
    flow = _flow(
        offset_syncs=SYNCS, transaction_commit_percent=100, transaction_interval_ms=3_600_000
    )
    _many(brokers, flow, 20)
    assert len(_with_records(brokers)) == 20
    with_syncs = [one for one in brokers.commits if offset_syncs_topic(flow) in one]
    assert with_syncs == [
        {"A.orders", offset_syncs_topic(flow), runs_topic(flow)},
        {offset_syncs_topic(flow), runs_topic(flow)},
    ]
    # None is missing that the rule asks for, but those that are thinned out.
    counts = Counter(upstream for _, upstream, _ in _syncs(brokers, flow))
    assert counts[0] == counts[19] == 1
    assert set(counts.values()) == {1}


def test_syncs_that_early_commits_left_follow_after_the_interval(
    brokers: Brokers, feed: int
) -> None:
    flow = _flow(offset_syncs=SYNCS, transaction_commit_percent=100, transaction_interval_ms=50)
    _many(brokers, flow, 3, pause_s=0.06)


def test_syncs_of_committed_records_survive_a_topic_that_refuses_later_ones(
    brokers: Brokers, feed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender(brokers)
    monkeypatch.setattr(SyncSender, "of", lambda _: sender)
    flow = _flow(
        offset_syncs=SYNCS, transaction_commit_percent=100, transaction_interval_ms=3_600_000
    )
    source = Source(brokers)
    for value in range(3):
        source.chunk(ORDERS, [b"%d" % value])

    def rows() -> Iterator[Any]:
        yield from source.rows
        brokers.refuses = lambda tp, _: (
            MESSAGE_TOO_LARGE if tp.topic == offset_syncs_topic(flow) else 0
        )

    SlotSink(flow).run(rows())
    assert len(_syncs(brokers, flow)) == 1  # of the first commit
    # Those of the other two were left to the refused transaction; they are written after all.
    assert sum(count for _, count in sender.records) >= 2
    assert brokers.values("A.orders") == [b"0", b"1", b"2"]


def test_the_early_rule_knows_how_many_markers_a_transaction_has(
    brokers: Brokers, feed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    rule = SimpleNamespace(
        due_at=lambda began_at, _size: began_at,
        committed=lambda _began, _ended, partitions: told.append(partitions),
    )
    monkeypatch.setattr(exactly_once, "EarlyCommits", lambda _percent: rule)
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(BILLS, [b"a"])
    SlotSink(_flow()).run(iter(source.rows))
    assert told[:2] == [1, 1]
