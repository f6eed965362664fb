"""What the sink publishes of acknowledgements: runs, and offset syncs by MirrorMaker 2's rule."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.data.write import offset_sync_writer
from sparkmirror.data.write.chunk_offsets import ChunkOffsets
from sparkmirror.data.write.offset_sync_writer import SlotSyncs, SyncSender
from sparkmirror.data.write.producers import drop_producers, producer_of
from sparkmirror.internal_topics.mm2_records import decode_offset_sync
from sparkmirror.internal_topics.offset_syncs import PartitionState
from sparkmirror.internal_topics.run_map import OffsetMap, Run
from sparkmirror.internal_topics.runs import RunRow, decode_run, encode_forgotten_run, encode_run
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings, ProduceSettings
from sparkmirror.wire.produce.producer import Producer
from tests.patience import patience
from tests.property.simulated_target import SimTarget

T = TopicPartition("t", 0)
KeyValue = tuple[bytes, bytes | None]


class Written:
    """An outlet that keeps what it is given."""

    def __init__(self) -> None:
        self.syncs: list[tuple[int, int]] = []
        self.map = OffsetMap()
        self.flushed = False

    def put(self, syncs: Iterable[KeyValue], runs: Iterable[KeyValue]) -> None:
        for key, value in syncs:
            sync = decode_offset_sync(key, value)
            assert sync is not None
            assert sync[0] == T
            self.syncs.append(sync[1:])
        for key, value in runs:
            row = decode_run(key, value)
            assert row is not None
            assert row.run is not None
            self.map.add(row.run)

    def flush(self, timeout_s: float) -> bool:
        self.flushed = True
        return True


def _offsets(first: int, records: int, offset: int) -> ChunkOffsets:
    offsets = ChunkOffsets([(first, records)], records)
    offsets.acknowledged(records, records, offset)
    return offsets


def test_a_record_that_nobody_knows_the_place_of_has_no_sync() -> None:
    """It was left out, or the broker did not say where it is; the others have theirs."""
    written = Written()
    syncs = SlotSyncs(0, written)
    nothing = ChunkOffsets([(0, 5)], 5)
    unknown = ChunkOffsets([(5, 5)], 5)
    unknown.acknowledged(5, 5, -1)
    for offsets in (nothing, unknown):
        syncs.settled(T, offsets)
        syncs.publish()
    assert (written.syncs, written.map.runs) == ([], ())
    assert (nothing.target_end, unknown.target_end) == (-1, -1)
    some = ChunkOffsets([(10, 3)], 3)
    some.acknowledged(1, 1, 20)
    some.acknowledged(3, 1, 21)  # the one between them was left out
    syncs.settled(T, some)
    syncs.publish()
    assert written.syncs == [(10, 20), (12, 21)]
    assert written.map.runs == (Run(10, 20, 1), Run(12, 21, 1))


def test_nothing_is_published_before_its_position_is_committed() -> None:
    written = Written()
    syncs = SlotSyncs(100, written)
    syncs.settled(T, _offsets(0, 10, 5))
    assert written.syncs == []
    syncs.publish()
    assert written.syncs == [(0, 5), (9, 14)]
    assert written.map.runs == (Run(0, 5, 10),)
    written.syncs.clear()
    syncs.publish()
    assert written.syncs == [], "nothing new"
    syncs.settled(T, _offsets(10, 10, 15))
    syncs.finish()
    assert written.syncs == [(19, 24)], "not due, but the newest at a commit"
    assert written.map.runs == (Run(0, 5, 20),), "the run grew under its key"
    assert written.flushed


def test_a_topic_made_anew_begins_runs_of_its_own() -> None:
    rows: list[RunRow | None] = []

    class Rows(Written):
        def put(self, syncs: Iterable[KeyValue], runs: Iterable[KeyValue]) -> None:
            rows.extend(decode_run(key, value) for key, value in runs)
            super().put(syncs, [])

    written = Rows()
    syncs = SlotSyncs(100, written)
    syncs.settled(T, _offsets(0, 10, 5), "old")
    syncs.settled(T, _offsets(0, 10, 15), "new")
    syncs.publish()
    # Their offsets go on as one run, but they are two topics.
    syncs.settled(T, _offsets(10, 10, 25), "new")
    syncs.finish()
    assert rows == [
        RunRow(T, 0, Run(0, 5, 10), topic_id="old"),
        RunRow(T, 0, Run(0, 15, 10), topic_id="new"),
        RunRow(T, 0, Run(0, 15, 20), topic_id="new"),
    ]
    assert written.syncs == [(0, 5), (9, 14), (0, 15), (9, 24), (19, 34)]


def test_syncs_between_two_commits_are_java_s_thinned_to_ten() -> None:
    written = Written()
    syncs = SlotSyncs(100, written)
    for part in range(50):
        syncs.settled(T, _offsets(part * 1_000, 1_000, part * 1_000 + 3))
    syncs.publish()
    state = PartitionState(100)
    due = [(u, u + 3) for u in range(50_000) if state.update(u, u + 3)]
    *emitted, newest = written.syncs
    assert newest == (49_999, 50_002)
    assert set(emitted) <= set(due)
    assert len(emitted) <= 10
    assert emitted[-2:] == due[-2:], "dense at the end"
    assert emitted == sorted(emitted)
    assert written.map.runs == (Run(0, 3, 50_000),)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 400)), max_size=300))
def test_any_number_of_gaps_stays_bounded_and_right(steps: list[tuple[int, int, int]]) -> None:
    written = Written()
    syncs = SlotSyncs(100, written)
    source = target = 0
    places: dict[int, int] = {}
    for skipped, foreign, count in steps:
        source, target = source + skipped, target + foreign
        syncs.settled(T, _offsets(source, count, target))
        places[source], places[source + count - 1] = target, target + count - 1
        source, target = source + count, target + count
    syncs.publish()
    assert len(written.syncs) <= 11
    assert len(written.map.runs) <= 64
    for upstream, downstream in written.syncs:
        low, high = written.map.bounds(upstream)
        assert low in (None, downstream) or high is None or low <= downstream <= high
    if steps:
        assert written.map.translate(source) == target
        assert written.syncs[-1] == (source - 1, target - 1)


def test_rows_of_runs() -> None:
    source, run = TopicPartition("é", 3), Run(100, 55, 7)
    assert encode_run(source, run) == ('["é",3,100]'.encode(), b"[55,7]")
    assert decode_run(*encode_run(source, run)) == RunRow(source, 100, run)
    merged = decode_run(*encode_run(source, run, merged=True))
    assert merged == RunRow(source, 100, run, merged=True)
    assert decode_run(*encode_forgotten_run(source, 100)) == RunRow(source, 100, None)
    named = encode_run(source, run, topic_id="id")
    assert named == ('["é",3,100,"id"]'.encode(), b"[55,7]")
    assert decode_run(*named) == RunRow(source, 100, run, topic_id="id")
    gone = encode_forgotten_run(source, 100, topic_id="id")
    assert decode_run(*gone) == RunRow(source, 100, None, topic_id="id")
    for key, value in (
        (None, b"[1,2]"),
        (b'["t",0]', b"[1,2]"),
        (b'["t",0,-1]', b"[1,2]"),
        (b'["t",0,1,5]', b"[1,2]"),
        (b'["t",0,1,"id","x","id"]', b"[1,2]"),
        (b'["t",0,1]', b"[1,0]"),
        (b'["t",0,1]', b"[1]"),
        (b'["t",0,true]', b"[1,2]"),
        (b"[1,0,1]", b"[1,2]"),
        (b'["t",0,1]', b"{}"),
        (b"\xff", b"[1,2]"),
    ):
        assert decode_run(key, value) is None, (key, value)


def _unreachable() -> FlowSettings:
    return FlowSettings(*[ClusterClient(name, ("127.0.0.1:1",), "c") for name in "ABAB"])


def test_what_a_worker_keeps_can_be_closed() -> None:
    """For a process that goes on without it; in a worker, its end does it."""
    before = set(threading.enumerate())
    flow = _unreachable()
    sender, producer = SyncSender.of(flow), producer_of(flow)
    assert SyncSender.of(flow) is sender
    assert producer_of(flow) is producer
    sender.put([(b"key", b"value")], [])
    (thread,) = {one for one in threading.enumerate() if one.name == "syncs"} - before
    SyncSender.close_all()
    drop_producers()
    assert not thread.is_alive()
    try:
        assert SyncSender.of(flow) is not sender
        assert producer_of(flow) is not producer
    finally:
        SyncSender.close_all()
        drop_producers()
    deadline = time.monotonic() + patience()
    while not set(threading.enumerate()) <= before:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.01)


def test_a_topic_that_a_map_has_named_has_runs_alone() -> None:
    """An offset sync says nothing of the name of the copy: Java would take it for its own."""
    outlet: list[tuple[list[KeyValue], list[KeyValue]]] = []

    class Kept(Written):
        def put(self, syncs: Iterable[KeyValue], runs: Iterable[KeyValue]) -> None:
            outlet.append((list(syncs), list(runs)))

    syncs = SlotSyncs(100, Kept())
    syncs.settled(T, _offsets(5, 3, 0), "id", "there", remote="tenant.t")
    syncs.settled(TopicPartition("u", 0), _offsets(1, 2, 9), "id-u")
    syncs.publish()
    ((written, runs),) = outlet
    assert [decode_offset_sync(*one) for one in written] == [
        (TopicPartition("u", 0), 1, 9),
        (TopicPartition("u", 0), 2, 10),
    ]
    rows = [decode_run(*one) for one in runs]
    assert rows == [
        RunRow(T, 5, Run(5, 0, 3), False, "id", "there", "tenant.t"),
        RunRow(TopicPartition("u", 0), 1, Run(1, 9, 2), False, "id-u"),
    ]
    # Without any syncs the runs are written all the same.
    syncs.settled(T, _offsets(8, 1, 3), "id", "there", remote="tenant.t")
    syncs.publish()
    assert [len(part) for part in outlet[1]] == [0, 1]


class Topic:
    """A sender's topic on a simulated broker. A step takes a quarter of a second."""

    tp = TopicPartition("syncs", 0)
    backlog_max = 5

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.target = SimTarget(1, [self.tp])
        self.away = False
        self.connection: Callable[[int], object] = self.target.connection
        self.changed = threading.Condition()
        now = SimpleNamespace(monotonic=self.clock, time=self.clock, sleep=lambda _: None)
        monkeypatch.setattr(offset_sync_writer, "time", now)
        monkeypatch.setattr(offset_sync_writer, "_BACKLOG_MAX", self.backlog_max)
        monkeypatch.setattr(offset_sync_writer, "ClusterConnections", lambda _: self.target)
        monkeypatch.setattr(offset_sync_writer, "Producer", partial(Producer, clock=self.clock))
        monkeypatch.setattr(self.target, "connection", self._connection)
        client, settings = self.target.client, ProduceSettings()
        self.topic = offset_sync_writer._Topic(self.tp.topic, client, settings)

    def clock(self) -> float:
        return self.now

    def _connection(self, node: int) -> object:
        return None if self.away else self.connection(node)

    def put(self, *numbers: int) -> None:
        self.topic.backlog.extend((b"key", b"%d" % number) for number in numbers)

    def run(self, seconds: float) -> None:
        ends = self.now + seconds
        while self.now < ends:
            self.topic.step(self.changed)
            while self.target.take(0):
                pass
            self.target.replicate(self.tp)
            self.now += 0.25

    @property
    def written(self) -> list[int]:
        return self.target.partitions[self.tp].values


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:
    found = Topic(monkeypatch)
    yield found
    found.target.close()


@pytest.mark.parametrize("leads", [True, False])
def test_what_a_leader_that_is_away_does_not_take_is_written_later(
    topic: Topic, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other brokers name it, or say that there is none. Nobody writes a run again."""
    topic.away = leads
    refresh = topic.target.refresh
    if not leads:
        monkeypatch.setattr(topic.target, "refresh", topic.target.leaders.clear)
        topic.target.refresh()
    topic.put(0, 1, 2)
    topic.run(20)
    topic.put(3, 4)
    topic.run(20)
    assert topic.topic.failing
    assert not topic.topic.idle
    topic.away = False
    monkeypatch.setattr(topic.target, "refresh", refresh)
    topic.run(5)
    assert topic.written == [0, 1, 2, 3, 4]
    assert topic.topic.idle
    assert not topic.topic.failing


@pytest.mark.parametrize("later", [range(3, 7), range(3, 9)])
def test_if_there_is_too_much_for_later_the_oldest_are_left_out(topic: Topic, later: range) -> None:
    topic.away = True
    topic.put(0, 1, 2)
    topic.run(20)
    topic.put(*later)
    topic.run(20)
    topic.away = False
    topic.run(5)
    assert topic.written == [*range(9)][: later.stop][-Topic.backlog_max :]


def test_what_is_refused_for_good_is_not_sent_again(topic: Topic) -> None:
    topic.target.refused = frozenset([1])
    topic.put(0, 1)
    topic.run(2)
    assert topic.topic.idle
    assert topic.topic.failing
    topic.put(2)
    topic.run(2)
    assert topic.written == [2]
    assert not topic.topic.failing
