"""The sink of an exactly-once flow against brokers that answer at once.

What is committed, what was aborted on the way, and in how many transactions: the same on every
machine. `tests/kafka/data/test_exact_transactions.py` has it on real brokers.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.data.coordination import fencing
from sparkmirror.data.coordination.hanging_transactions import written_before
from sparkmirror.data.rows.notes import (
    GapNote,
    PartitionHello,
    RetryNote,
    SlotHello,
    SlotNotes,
    Writer,
)
from sparkmirror.data.rows.rows import Chunk, build_row
from sparkmirror.data.write import exactly_once, producers
from sparkmirror.data.write.exactly_once import ExactlyOnce
from sparkmirror.data.write.offset_sync_writer import SyncSender
from sparkmirror.data.write.position_commits import storage_topic
from sparkmirror.data.write.sink_task import SinkTask
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.internal_topics.gaps import Gap, GapAction, GapKind, decode_gap, gaps_topic
from sparkmirror.internal_topics.mm2_records import decode_offset_sync, offset_syncs_topic
from sparkmirror.internal_topics.position_metadata import Mark
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import dead_letter_topic
from sparkmirror.records.header import HEADER_BYTES
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.records.split import decode_batches
from sparkmirror.settings import ClusterClient, FaultSettings, FlowSettings, OffsetSyncSettings
from sparkmirror.wire.cluster.error_codes import (
    INVALID_RECORD,
    LEADER_NOT_AVAILABLE,
    MESSAGE_TOO_LARGE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TOPIC_AUTHORIZATION_FAILED,
)
from sparkmirror.wire.cluster.metadata import Leader
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.hanging_transactions import CommittedRecords, OpenTransaction
from sparkmirror.wire.produce.transactions import Transactions
from tests.property.simulated_target import SimConnection, Waiting, answer_frame, parse_request

A, B = (ClusterClient(name, (f"{name}:1",), "c", retry_backoff_ms=1) for name in "AB")
ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 0)
REMOTE = {one: TopicPartition(f"A.{one.topic}", 0) for one in (ORDERS, BILLS)}
GROUP = "__mirror.A->B"
SYNCS = OffsetSyncSettings(enabled=True, location="target", lag_max=0)
Identity = tuple[int, int]


class Brokers:
    """One broker: logs with what is open and what is committed, positions likewise.

    ``unmarked``: partitions without a leader at the end of the next transaction: their markers are
    left out, and what is open stays so until the next marker there. ``gone``: partitions of deleted
    topics, which have no positions.
    """

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, list[Record]] = defaultdict(list)
        self.positions: dict[TopicPartition, int] = {}
        self.metadata: dict[TopicPartition, str] = {}
        self.commits: list[set[str]] = []
        self.aborts = 0
        self.refuses: Callable[[TopicPartition, Record], int] = lambda _tp, _record: 0
        self.forbidden: set[str] = set()
        self.gone: set[TopicPartition] = set()
        self.leaderless: set[TopicPartition] = set()
        self.unmarked: set[TopicPartition] = set()
        self.partitions: dict[str, int] = {}
        self.members: set[TopicPartition] = set()
        self.leader_epochs: dict[TopicPartition, int] = defaultdict(int)
        self._open: dict[TopicPartition, list[Record]] = {}
        self._last: dict[TopicPartition, tuple[Identity, int]] = {}
        self._sequences: dict[tuple[Identity, TopicPartition], int] = {}
        self._offsets: dict[TopicPartition, tuple[int, str]] = {}
        self._ends: dict[TopicPartition, int] = defaultdict(int)
        self._epochs = itertools.count()
        self.producer_ids = itertools.count(99)
        self._current: Identity = (7, -1)

    def values(self, topic: str) -> list[bytes | None]:
        return [record.value for record in self.committed[TopicPartition(topic, 0)]]

    def fence(self, *_: object) -> Identity:
        if self.members & set(self._open):
            self.aborts += 1
        self._mark(committed=False)
        self._current = (7, next(self._epochs))
        return self._current

    def end(self, identity: Identity, *, committed: bool) -> None:
        assert identity == self._current
        written = self.members & set(self._open)
        if committed:
            for tp, (offset, metadata) in self._offsets.items():
                self.positions[tp], self.metadata[tp] = offset, metadata
            self.commits.append({tp.topic for tp in written})
        else:
            self.aborts += bool(written)
        self._mark(committed=committed)

    def _mark(self, *, committed: bool) -> None:
        self._offsets = {}
        for tp in self.members:
            if tp in self.unmarked:
                self.leader_epochs[tp] += 2  # none, and one again
                continue
            records = self._open.pop(tp, None)
            self._ends[tp] += 1  # the marker
            if committed and records:
                self.committed[tp] += records
        self.members, self.unmarked = set(), set()

    def stage(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        self._offsets |= offsets

    def open_ends(self, tp: TopicPartition) -> tuple[OpenTransaction, ...]:
        if tp not in self._open:
            return ()
        identity, last = self._last[tp]
        return (OpenTransaction(self._open[tp][0].offset, *identity, last),)

    def append(self, tp: TopicPartition, batch: bytes) -> tuple[int, int, list[int]]:
        """(code, first offset, indexes of bad records)."""
        producer_id, epoch, sequence = struct.unpack_from(">qhi", batch, HEADER_BYTES - 18)
        identity = (producer_id, epoch)
        records = list(decode_batches(memoryview(batch)))
        codes = {index: self.refuses(tp, record) for index, record in enumerate(records)}
        bad = [index for index, code in codes.items() if code]
        if bad:
            return codes[bad[0]], -1, bad
        if self._sequences.get((identity, tp), 0) != sequence:
            return OUT_OF_ORDER_SEQUENCE_NUMBER, -1, []
        self._sequences[identity, tp] = sequence + len(records)
        offset = self._ends[tp]
        self._ends[tp] += len(records)
        stored = [replace(record, offset=offset + n) for n, record in enumerate(records)]
        if identity == self._current:
            assert tp in self.members, "it has not joined the transaction"
            self._open.setdefault(tp, []).extend(stored)
            self._last[tp] = identity, sequence + len(records) - 1
        else:
            self.committed[tp] += stored
        return 0, offset, []


class Line(SimConnection):
    """A connection whose requests are answered at once."""

    def __init__(self, brokers: Brokers) -> None:
        super().__init__(0)
        self._brokers = brokers

    def begin_frame(self, parts: Sequence[bytes | memoryview], _size: int) -> None:
        correlation, batches = parse_request(b"".join(parts))
        waiting = Waiting(self, correlation, {})
        for tp, batch in batches.items():
            code, offset, bad = self._brokers.append(tp, batch)
            waiting.outcomes[tp], waiting.bad[tp] = (code, offset), bad
        self.answer(answer_frame(waiting))


class Everywhere:
    """The broker leads whatever it is asked for, but for what is leaderless."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def get(self, tp: TopicPartition) -> Leader | None:
        gone = tp in self._brokers.leaderless
        return None if gone else Leader(0, self._brokers.leader_epochs[tp])


class OneBroker:
    """Connections of one producer."""

    idle = SimpleNamespace(using=lambda _: nullcontext(), close_old=lambda *_: None)

    def __init__(self, brokers: Brokers) -> None:
        self.client = B
        self.reachable = True
        self.leaders = Everywhere(brokers)
        self._brokers = brokers
        self.leaderless = dict.fromkeys(brokers.leaderless, LEADER_NOT_AVAILABLE)
        self.topic_errors: dict[str, int] = {}
        self._line = Line(brokers)

    def connection(self, _node: int) -> Line:
        return self._line

    def any_connection(self) -> SimpleNamespace:
        new_id = next(self._brokers.producer_ids)
        answer = SimpleNamespace(error_code=0, producer_id=new_id, producer_epoch=0)
        return SimpleNamespace(request=lambda _, highest: answer, close=lambda: None)

    def query_leaders(self, partitions: Sequence[TopicPartition], _: object) -> dict[Any, Any]:
        return {tp: self._brokers.open_ends(tp) for tp in partitions}

    def refresh_if_due(self) -> bool:
        return True

    def mark_stale(self, _tp: TopicPartition | None = None) -> None:
        pass

    @property
    def topics(self) -> set[str]:
        return set()

    def partitions_of(self, topic: str) -> int:
        return self._brokers.partitions.get(topic, 0)

    def add_topics(self, _topics: object) -> None:
        pass

    def drop(self, _connection: object) -> None:
        raise AssertionError("no connection breaks here")

    def close(self) -> None:
        self._line.close()


class Open:
    """The transactions of one identity, with the rules of `Transactions`."""

    def __init__(
        self,
        _connections: object,
        name: str,
        *,
        timeout_ms: int,
        identity: Identity,
        sleep: Callable[[float], None],
        brokers: Brokers,
    ) -> None:
        self.transactional_id, self.timeout_ms, self.identity = name, timeout_ms, identity
        self.members: set[TopicPartition] = set()
        self.began_at: float | None = None
        self.errors: dict[str, int] = {}
        self._brokers = brokers

    def add(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        denied = {tp for tp in partitions if tp.topic in self._brokers.forbidden}
        self.members |= set(partitions) - denied
        self._brokers.members |= self.members
        if self.members:
            self._begin()
        return dict.fromkeys(denied, TOPIC_AUTHORIZATION_FAILED)

    def add_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        _unknown: Collection[TopicPartition],
    ) -> set[TopicPartition]:
        assert group == GROUP
        gone = offsets.keys() & self._brokers.gone
        self._brokers.stage({tp: one for tp, one in offsets.items() if tp not in gone})
        self._begin()
        return gone

    @property
    def began(self) -> bool:
        return self.began_at is not None

    def _begin(self) -> None:
        if self.began_at is None:
            self.began_at = time.monotonic()

    def commit(self) -> None:
        self._end(committed=True)

    def abort(self) -> None:
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        self._brokers.end(self.identity, committed=committed)
        self.members.clear()
        self.began_at = None

    def close(self) -> None:
        pass


@contextlib.contextmanager
def simulated() -> Iterator[Brokers]:
    """Brokers that every sink meets meanwhile."""
    found = Brokers()
    producers._kept.clear()  # those of tests without brokers

    def connections(*_: object, **__: object) -> OneBroker:
        return OneBroker(found)

    def transactions(*args: Any, **options: Any) -> Open:
        return Open(*args, **options, brokers=found)

    watch = SimpleNamespace(start=lambda: None, close=lambda: None, assignment=None)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(exactly_once, "ClusterConnections", connections)
        monkeypatch.setattr(producers, "ClusterConnections", connections)
        monkeypatch.setattr(exactly_once, "Transactions", transactions)
        monkeypatch.setattr(fencing, "take_over", found.fence)
        monkeypatch.setattr(fencing, "committed_positions", lambda *_: dict(found.positions))
        monkeypatch.setattr(fencing, "ControlWatch", lambda *_, **__: watch)
        yield found
    producers._kept.clear()


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with simulated() as found:
        yield found


class Source:
    """Rows as a slot gives them: who it is, then one chunk per call of `chunk`."""

    def __init__(self, brokers: Brokers) -> None:
        identity = brokers.fence()
        at = {one: brokers.positions.get(REMOTE[one], 0) for one in REMOTE}
        said = {one: written_before(brokers.metadata.get(REMOTE[one], "")) for one in REMOTE}
        self._next = dict(at)
        partitions = tuple(
            PartitionHello(
                *(one, REMOTE[one].topic, at[one], brokers.positions.get(REMOTE[one], -1)),
                written=said[one],
            )
            for one in REMOTE
        )
        writer = Writer(identity, "r", 0)
        hello = SlotNotes(SlotHello(0, 0, "A->B", "r", 0, None, partitions, None, writer))
        self.rows = [build_row([], memoryview(b""), [], hello).slice(0, 1)]

    def upcoming(self, source: TopicPartition, count: int) -> range:
        """The next ``count`` source offsets."""
        return range(self._next[source], self._next[source] + count)

    def chunk(self, source: TopicPartition, *batches: list[bytes]) -> None:
        """One row with these batches of values; ``bad…`` is a record that a topic may refuse."""
        data, first, at = b"", self._next[source], self._next[source]
        for values in batches:
            data += encode_batch([Record(at + n, 5, None, v) for n, v in enumerate(values)])
            at += len(values)
        self._next[source] = at
        remote = REMOTE[source].topic
        chunk = Chunk(source.topic, 0, remote, first, at, at - first, 5, 0, len(data))
        self.rows.append(build_row([chunk], memoryview(b""), [[data]]))


def _flow(**options: Any) -> FlowSettings:
    once: dict[str, Any] = {"exactly_once": True, "transaction_interval_ms": 3_600_000}
    once |= {"position_interval_ms": 3_600_000, "offset_storage_partitions": 1}
    return FlowSettings(A, B, A, B, **once | options)


def _refuse_bad(_tp: TopicPartition, record: Record) -> int:
    return INVALID_RECORD if (record.value or b"").startswith(b"bad") else 0


def _run(flow: FlowSettings, source: Source) -> SlotSink:
    mirrored = SlotSink(flow)
    mirrored.run(iter(source.rows))
    return mirrored


def _errors(mirrored: SlotSink) -> dict[str, int]:
    assert isinstance(mirrored._delivery, ExactlyOnce)
    return mirrored._delivery._errors


def test_everything_is_one_transaction(brokers: Brokers) -> None:
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"2"], [b"3"])
    source.chunk(BILLS, [b"a"])
    _run(_flow(), source)
    assert brokers.values("A.orders") == [b"1", b"2", b"3"]
    assert brokers.values("A.bills") == [b"a"]
    assert brokers.positions == {REMOTE[ORDERS]: 3, REMOTE[BILLS]: 1}
    assert brokers.commits[0] == {"A.orders", "A.bills"}


def test_a_transaction_ends_by_size(brokers: Brokers) -> None:
    source = Source(brokers)
    for number in range(6):
        source.chunk(ORDERS, [b"%d" % number * 500])
    _run(_flow(transaction_bytes=1_200), source)
    with_records = [topics for topics in brokers.commits if "A.orders" in topics]
    assert len(with_records) == 3
    assert len(brokers.values("A.orders")) == 6


@pytest.mark.parametrize("choice", ["skip", "dead-letter"])
def test_records_are_left_out_without_an_abort(brokers: Brokers, choice: str) -> None:
    brokers.refuses = _refuse_bad if choice == "skip" else _refused_by_orders
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"bad 1", b"2"], [b"bad 2"], [b"3", b"4"], [b"bad 3", b"5"])
    source.chunk(BILLS, [b"a"])
    flow = _flow(faults=FaultSettings(bad_record=choice))
    mirrored = _run(flow, source)
    assert brokers.values("A.orders") == [b"1", b"2", b"3", b"4", b"5"]
    gaps = [decode_gap(value) for value in brokers.values(gaps_topic(flow))]
    assert [(gap.first, gap.last) for gap in gaps if gap] == [(1, 1), (3, 3), (6, 6)]
    letters = brokers.values(dead_letter_topic("A.orders"))
    assert letters == ([] if choice == "skip" else [b"bad 1", b"bad 2", b"bad 3"])
    assert brokers.positions == {REMOTE[ORDERS]: 8, REMOTE[BILLS]: 1}
    assert brokers.aborts == 0
    assert {"A.orders", "A.bills", gaps_topic(flow)} <= brokers.commits[0]
    counted = {"skip": "RECORD_SKIPPED", "dead-letter": "RECORD_DEAD_LETTERED"}[choice]
    assert _errors(mirrored)[counted] == 3


def _refused_by_orders(tp: TopicPartition, record: Record) -> int:
    return _refuse_bad(tp, record) if tp == REMOTE[ORDERS] else 0


def test_what_is_written_anew_counts_its_gaps_once(brokers: Brokers) -> None:
    """One partition skips, the other pauses and takes the transaction with it."""
    brokers.refuses = _refuse_bad
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"bad 1", b"2"])
    source.chunk(BILLS, [b"a"], [b"bad a"], [b"b"])
    flow = _flow(faults=FaultSettings(bad_record="skip", bad_record_pause=("bills",)))
    mirrored = _run(flow, source)
    assert brokers.aborts == 1
    assert brokers.values("A.orders") == [b"1", b"2"]
    assert brokers.values("A.bills") == [b"a"]
    assert len(brokers.values(gaps_topic(flow))) == 1
    assert brokers.positions == {REMOTE[ORDERS]: 3, REMOTE[BILLS]: 1}
    assert _errors(mirrored)["RECORD_SKIPPED"] == 1


def test_without_a_place_for_letters_nothing_is_passed(brokers: Brokers) -> None:
    brokers.refuses = _refused_by_orders
    flow = _flow(faults=FaultSettings(bad_record="dead-letter"))
    brokers.forbidden = {dead_letter_topic("A.orders")}
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"bad 1", b"2"])
    source.chunk(BILLS, [b"a"])
    mirrored = _run(flow, source)
    assert brokers.values("A.orders") == []
    assert brokers.values(gaps_topic(flow)) == []
    assert brokers.values("A.bills") == [b"a"]
    assert brokers.positions == {REMOTE[BILLS]: 1, REMOTE[ORDERS]: 0}
    halt = mirrored._task.lanes[ORDERS].halt
    assert halt is not None
    assert dead_letter_topic("A.orders") in halt.reason


def _syncs(brokers: Brokers, flow: FlowSettings) -> list[tuple[TopicPartition, int, int]]:
    records = brokers.committed[TopicPartition(offset_syncs_topic(flow), 0)]
    return [cast(Any, decode_offset_sync(record.key, record.value)) for record in records]


def test_offset_syncs_are_in_the_transaction(brokers: Brokers) -> None:
    flow = _flow(offset_syncs=SYNCS, transaction_bytes=1)
    source = Source(brokers)
    source.chunk(ORDERS, [b"0", b"1"])
    source.chunk(ORDERS, [b"2"])
    _run(flow, source)
    topics = {"A.orders", offset_syncs_topic(flow), runs_topic(flow)}
    assert brokers.commits[:2] == [topics, topics]
    # The marker of the first transaction has an offset of its own.
    assert _syncs(brokers, flow) == [(ORDERS, 0, 0), (ORDERS, 1, 1), (ORDERS, 2, 3)]


@pytest.mark.parametrize("how", ["may not join", "refused"])
def test_offset_syncs_that_are_refused_hold_no_record_up(
    brokers: Brokers, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = _flow(offset_syncs=SYNCS, transaction_bytes=1)
    syncs = offset_syncs_topic(flow)
    if how == "refused":
        brokers.refuses = lambda tp, _: MESSAGE_TOO_LARGE if tp.topic == syncs else 0
    else:
        brokers.forbidden = {syncs}
    after: list[int] = []
    sender = SimpleNamespace(
        put=lambda records, runs: after.append(len(brokers.values("A.orders"))),
        flush=lambda _: True,
    )
    monkeypatch.setattr(SyncSender, "of", lambda _: sender)
    source = Source(brokers)
    source.chunk(ORDERS, [b"0", b"1"])
    source.chunk(ORDERS, [b"2"])
    _run(flow, source)
    assert brokers.values("A.orders") == [b"0", b"1", b"2"]
    assert brokers.positions == {REMOTE[ORDERS]: 3, REMOTE[BILLS]: 0}
    assert brokers.aborts == 1
    assert after == [2, 3]  # each time with the records committed
    assert _syncs(brokers, flow) == []


@pytest.mark.parametrize("hung_up", ["at the first row", "before the commit", "at the very end"])
def test_nothing_is_committed_for_a_spark_that_has_hung_up(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, hung_up: str
) -> None:
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"2"])
    gone = hung_up == "at the first row"
    monkeypatch.setattr(exactly_once.worker_pipes, "abandoned", lambda: gone)

    def rows() -> Iterator[Any]:
        nonlocal gone
        yield from source.rows
        gone |= hung_up == "before the commit"

    def committed(*_: object) -> bool:
        nonlocal gone
        gone = True
        return False

    monkeypatch.setattr(SinkTask, "save_connect_offsets", committed)
    with pytest.raises(ConnectionLost, match="Spark has given up"):
        SlotSink(_flow()).run(rows())
    assert brokers.values("A.orders") == ([b"1", b"2"] if hung_up == "at the very end" else [])


def test_a_coordinator_is_not_asked_for_ever_when_spark_has_hung_up(brokers: Brokers) -> None:
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    asked = iter(range(5))
    # Undone before what `brokers` has patched is: the fixture `monkeypatch` outlives that one.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exactly_once, "Transactions", Transactions)
        patch.setattr(Transactions, "_find", _nobody_answers)
        patch.setattr(exactly_once.time, "sleep", lambda _: next(asked, None))
        patch.setattr(exactly_once.worker_pipes, "abandoned", lambda: next(asked, None) is None)
        with pytest.raises(ConnectionLost, match="Spark has given up"):
            SlotSink(_flow()).run(iter(source.rows))


def _nobody_answers(*_: object) -> None:
    raise ConnectionLost("no coordinator")


def test_a_partition_of_which_nobody_says_what_is_open_waits_alone(brokers: Brokers) -> None:
    brokers.leaderless = {REMOTE[ORDERS]}
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(BILLS, [b"a"])
    mirrored = _run(_flow(), source)
    assert brokers.values("A.bills") == [b"a"]
    assert brokers.values("A.orders") == []
    assert brokers.positions == {REMOTE[BILLS]: 1, REMOTE[ORDERS]: 0}
    halt = mirrored._task.lanes[ORDERS].halt
    assert halt is not None
    assert (halt.code, halt.retriable) == ("LEADER_NOT_AVAILABLE", True)


def test_what_a_refused_partition_had_taken_waits_with_it_when_its_leader_goes(
    brokers: Brokers,
) -> None:
    def refuse(tp: TopicPartition, record: Record) -> int:
        code = _refuse_bad(tp, record)
        if code:
            brokers.leaderless.add(tp)
        return code

    brokers.refuses = refuse
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"], [b"bad"])
    source.chunk(BILLS, [b"a"])
    mirrored = _run(_flow(), source)
    assert brokers.aborts == 1
    assert brokers.values("A.orders") == []
    assert brokers.values("A.bills") == [b"a"]
    assert brokers.positions == {REMOTE[BILLS]: 1, REMOTE[ORDERS]: 0}
    assert mirrored._task.lanes[ORDERS].halt is not None


def test_a_new_leader_ends_no_transaction_that_has_records_there(brokers: Brokers) -> None:
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(ORDERS, [b"2"])
    source.chunk(BILLS, [b"a"])
    hello, *chunks = source.rows

    def rows() -> Iterator[Any]:
        yield hello
        for number, row in enumerate(chunks):
            brokers.leader_epochs[REMOTE[BILLS if number == 2 else ORDERS]] += number > 0
            yield row

    SlotSink(_flow()).run(rows())
    # Of bills there is nothing in it yet: what was left open there has to be looked for first.
    assert brokers.commits[:2] == [{"A.orders"}, {"A.bills"}]
    assert brokers.values("A.orders") == [b"1", b"2"]
    assert brokers.aborts == 0


def test_positions_say_whose_records_stand_before_them(brokers: Brokers) -> None:
    brokers.refuses = _refuse_bad
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"bad", b"2"], [b"3", b"4"])
    source.chunk(BILLS, [b"a"])
    _run(_flow(faults=FaultSettings(bad_record="skip")), source)
    said = {tp: written_before(metadata) for tp, metadata in brokers.metadata.items()}
    assert said == {
        REMOTE[ORDERS]: CommittedRecords(7, 0, 4),
        REMOTE[BILLS]: CommittedRecords(7, 0, 1),
    }


# -- positions in MirrorMaker 2's format ----------------------------------------------------------


@pytest.mark.parametrize("code", [MESSAGE_TOO_LARGE, TOPIC_AUTHORIZATION_FAILED])
def test_a_topic_that_refused_positions_takes_nothing_out_of_the_transactions(
    brokers: Brokers, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    flow, append = _flow(), brokers.append
    storage = storage_topic(flow)
    ids: dict[str, set[int]] = defaultdict(set)

    def note(tp: TopicPartition, batch: bytes) -> tuple[int, int, list[int]]:
        ids[tp.topic].add(struct.unpack_from(">q", batch, HEADER_BYTES - 18)[0])
        return append(tp, batch)

    brokers.append = note  # type: ignore[method-assign]
    brokers.refuses = lambda tp, _: code if tp.topic == storage else 0
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(ORDERS, [b"2"])
    source.chunk(BILLS, [b"a"])
    hello, *chunks = source.rows

    def rows() -> Iterator[Any]:
        delivery: Any = mirrored._delivery
        yield hello
        for chunk in chunks[:2]:
            yield chunk
            delivery._commit()
            delivery._renew()
            brokers.refuses = lambda _tp, _record: 0
        assert brokers.values(storage)
        yield chunks[2]

    mirrored = SlotSink(flow)
    mirrored.run(rows())
    written = {storage, "A.orders", "A.bills"}
    assert all(ids[topic] == {7} for topic in written)
    assert brokers.values("A.orders") == [b"1", b"2"]
    assert brokers.values("A.bills") == [b"a"]
    assert caplog.text.count(f"the target refuses batches for {storage}-0") == 1


def test_a_topic_that_may_not_take_positions_costs_no_transaction(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was ever sent there, so nothing has to be written again."""
    flow = _flow()
    storage = storage_topic(flow)
    brokers.forbidden = {storage}
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])

    def rows() -> Iterator[Any]:
        delivery: Any = mirrored._delivery
        yield from source.rows
        for _ in range(2):
            delivery._renew()
        assert brokers.values(storage) == []
        brokers.forbidden = set()

    mirrored = SlotSink(flow)
    mirrored.run(rows())
    assert brokers.values(storage)
    assert "written again" not in caplog.text
    assert caplog.text.count(f"batches for {storage}-0") == 2


@pytest.mark.parametrize("outdated", [False, True], ids=["the plan holds", "there is a newer plan"])
def test_positions_that_their_topic_refused_are_saved_at_the_end(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, outdated: bool
) -> None:
    """Or by the next epoch, where a newer plan lets this one take no new identity."""
    flow = _flow()
    storage = storage_topic(flow)
    brokers.refuses = lambda tp, _: MESSAGE_TOO_LARGE if tp.topic == storage else 0
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])

    def rows() -> Iterator[Any]:
        yield from source.rows
        mirrored._delivery._renew()  # type: ignore[attr-defined]
        brokers.refuses = lambda _tp, _record: 0
        if outdated:
            monkeypatch.setattr(fencing, "take_over", lambda *_: None)

    mirrored = SlotSink(flow)
    mirrored.run(rows())
    assert (storage in brokers.commits[-1]) is not outdated
    assert brokers.values("A.orders") == [b"1"]
    assert brokers.positions[REMOTE[ORDERS]] == 1


# -- topics that are deleted at the target --------------------------------------------------------


@pytest.mark.parametrize("later", [False, True], ids=["at once", "in a later transaction"])
def test_a_topic_that_is_gone_at_the_target_stops_its_partition_alone(
    brokers: Brokers, later: bool
) -> None:
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(BILLS, [b"a"])
    source.chunk(ORDERS, [b"2"])
    hello, first, *rest = source.rows

    def rows() -> Iterator[Any]:
        yield hello
        if later:
            yield first
            mirrored._delivery._commit()  # type: ignore[attr-defined]
        brokers.gone.add(REMOTE[ORDERS])
        brokers.positions.pop(REMOTE[ORDERS], None)
        yield from rest if later else (first, *rest)

    mirrored = SlotSink(_flow())
    mirrored.run(rows())
    assert brokers.values("A.bills") == [b"a"]
    assert brokers.positions == {REMOTE[BILLS]: 1}
    # No record is there without its position.
    assert brokers.values("A.orders") == ([b"1"] if later else [])
    halt = mirrored._task.lanes[ORDERS].halt
    assert halt is not None
    assert (halt.code, halt.retriable) == ("UNKNOWN_TOPIC_OR_PARTITION", True)
    assert "orders-0" in halt.reason


def test_routed_records_are_not_written_without_a_place_for_their_position(
    brokers: Brokers,
) -> None:
    source = Source(brokers)
    source.chunk(BILLS, [b"a"])
    source.chunk(ORDERS, [b"1"])
    mirrored = SlotSink(_flow())

    def rows() -> Iterator[Any]:
        hello, *chunks = source.rows
        yield hello
        mirrored._task.lanes[ORDERS].routed = True
        brokers.gone.add(REMOTE[ORDERS])
        yield from chunks

    mirrored.run(rows())
    assert brokers.values("A.orders") == []
    assert brokers.values("A.bills") == [b"a"]
    assert mirrored._task.lanes[ORDERS].halt is not None


def test_an_idle_partition_of_a_topic_that_is_gone_stops_nobody(brokers: Brokers) -> None:
    """All positions are committed again now and then."""
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(BILLS, [b"a"])
    hello, first, second = source.rows

    def rows() -> Iterator[Any]:
        yield hello
        yield first
        mirrored._delivery._commit()  # type: ignore[attr-defined]
        brokers.gone.add(REMOTE[ORDERS])
        del brokers.positions[REMOTE[ORDERS]]
        mirrored._delivery._renew()  # type: ignore[attr-defined]
        yield second

    mirrored = SlotSink(_flow())
    mirrored.run(rows())
    assert brokers.aborts == 0
    assert brokers.positions == {REMOTE[BILLS]: 1}
    assert brokers.values("A.bills") == [b"a"]
    assert mirrored._task.lanes[ORDERS].halt is None


def test_a_position_that_went_with_its_topic_was_moved_by_nobody(brokers: Brokers) -> None:
    """A transaction that is written again begins with a look at the positions."""
    brokers.refuses = _refuse_bad
    source = Source(brokers)
    source.chunk(ORDERS, [b"1"])
    source.chunk(BILLS, [b"a"])
    source.chunk(ORDERS, [b"2"], [b"bad"])
    hello, *before, last = source.rows

    def rows() -> Iterator[Any]:
        yield from (hello, *before)
        mirrored._delivery._commit()  # type: ignore[attr-defined]
        del brokers.positions[REMOTE[BILLS]]
        yield last

    mirrored = SlotSink(_flow())
    mirrored.run(rows())
    assert brokers.aborts == 1
    assert brokers.values("A.orders") == [b"1", b"2"]


# -- records of gaps -----------------------------------------------------------------------------


def _gap_row(resumed_at: int | None) -> Any:
    gap = Gap(
        *("A->B", BILLS, "A.bills", GapKind.DELETED, GapAction.STOPPED, 0, 4, 5),
        *(resumed_at, "OFFSET_OUT_OF_RANGE", "why", 7),
    )
    notes = SlotNotes(gaps=(GapNote(gap, Mark()),))
    return build_row([], memoryview(b""), [], notes).slice(0, 1)


def test_a_gap_of_an_idle_slot_does_not_keep_a_transaction_open(brokers: Brokers) -> None:
    """The target would abort it, and the task would fail, as long as the slot is idle."""
    flow, found = _flow(transaction_interval_ms=0), list[int]()

    def rows() -> Iterator[Any]:
        (hello,) = Source(brokers).rows
        yield hello
        yield _gap_row(5)
        found.append(len(brokers.values(gaps_topic(flow))))

    SlotSink(flow).run(rows())
    assert found == [1]
    assert brokers.positions[REMOTE[BILLS]] == 5


def test_the_gap_of_a_partition_that_stops_outlives_an_abort(brokers: Brokers) -> None:
    brokers.refuses = _refuse_bad
    source, flow = Source(brokers), _flow()
    source.chunk(ORDERS, [b"1"], [b"bad"])
    hello, chunk = source.rows
    SlotSink(flow).run(iter([hello, _gap_row(None), chunk]))
    assert brokers.aborts == 1
    assert brokers.values("A.orders") == [b"1"]
    assert len(brokers.values(gaps_topic(flow))) == 1
    assert REMOTE[BILLS] not in brokers.positions or brokers.positions[REMOTE[BILLS]] == 0


def _tried(source: TopicPartition, attempt: int = 1) -> Any:
    notes = SlotNotes(tried=(RetryNote(source, attempt),))
    return build_row([], memoryview(b""), [], notes).slice(0, 1)


def test_a_retry_hides_no_refusal_of_the_open_transaction(brokers: Brokers) -> None:
    """Both partitions have their gaps in one topic: the second one's record was dropped there."""
    brokers.refuses = _refuse_bad
    flow = _flow(faults=FaultSettings(bad_record="skip"))
    brokers.forbidden = {gaps_topic(flow)}
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"bad"])
    source.chunk(BILLS, [b"a", b"bad"])
    hello, orders, bills = source.rows

    def rows() -> Iterator[Any]:
        yield from (hello, orders)
        mirrored._delivery._commit()  # type: ignore[attr-defined]
        assert mirrored._task.lanes[ORDERS].halt is not None
        yield from (bills, _tried(ORDERS))

    mirrored = SlotSink(flow)
    mirrored.run(rows())
    assert brokers.values(gaps_topic(flow)) == []
    assert brokers.positions.get(REMOTE[BILLS], 0) < 2, "it would pass what is written down nowhere"
    assert mirrored._task.lanes[BILLS].halt is not None


def test_a_retry_costs_the_open_transaction_no_producer_id(brokers: Brokers) -> None:
    """What was refused in it leaves a hole in the sequences, which only a new one closes."""
    flow = _flow(faults=FaultSettings(bad_record="skip"))
    gaps = gaps_topic(flow)
    brokers.refuses = lambda tp, one: INVALID_RECORD if tp.topic == gaps else _refuse_bad(tp, one)
    source = Source(brokers)
    source.chunk(ORDERS, [b"1", b"bad"])
    hello, orders = source.rows

    def rows() -> Iterator[Any]:
        yield from (hello, _gap_row(5))
        mirrored._delivery._commit()  # type: ignore[attr-defined]
        yield from (orders, _tried(BILLS), _gap_row(5))

    mirrored = SlotSink(flow)
    mirrored.run(rows())
    assert brokers.positions == {REMOTE[ORDERS]: 0, REMOTE[BILLS]: 0}
    assert all(lane.halt is not None for lane in mirrored._task.lanes.values())
    # When the topic takes records again, nothing of that is in the way.
    brokers.refuses = _refuse_bad
    again = Source(brokers)
    again.chunk(ORDERS, [b"1", b"bad"])
    _run(flow, again)
    assert brokers.values("A.orders") == [b"1"]
    assert brokers.positions[REMOTE[ORDERS]] == 2


def test_a_partition_that_was_refused_is_written_after_its_retry(brokers: Brokers) -> None:
    brokers.refuses = _refuse_bad
    source = Source(brokers)
    source.chunk(ORDERS, [b"bad"])
    hello, refused = source.rows

    def rows() -> Iterator[Any]:
        yield from (hello, refused)
        mirrored._delivery._commit()  # type: ignore[attr-defined]
        brokers.refuses = lambda _tp, _record: 0
        yield from (_tried(ORDERS), refused)

    mirrored = SlotSink(_flow())
    mirrored.run(rows())
    assert brokers.values("A.orders") == [b"bad"]
    assert brokers.positions[REMOTE[ORDERS]] == 1
    assert mirrored._task.lanes[ORDERS].halt is None


def test_the_last_report_is_not_waited_for_without_end() -> None:
    """If its partition takes nothing, the producer gives it up after a while, as in an epoch."""
    backlog = SimpleNamespace(idle=False, impatient=False)

    def pump(_timeout_s: float) -> None:
        backlog.idle = backlog.impatient

    delivery = ExactlyOnce.__new__(ExactlyOnce)
    reporter = SimpleNamespace(backlog=backlog, pump=pump)
    delivery._task = cast(Any, SimpleNamespace(reporter=reporter, check_spark=lambda: None))
    delivery.drain()
    assert not backlog.impatient, "the process keeps the producer for its next task"
