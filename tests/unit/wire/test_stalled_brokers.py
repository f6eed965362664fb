"""Brokers that stall on open connections: the others' partitions go on meanwhile.

What went on is counted. What would have waited fails its connection in the end, which shows as an
error: so no test measures time.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import EllipsisType

import pytest
from kafka.protocol.metadata import FindCoordinatorResponse
from kafka.protocol.producer import ProduceResponse
from kafka.protocol.producer.transaction import EndTxnResponse

from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient, FetchSettings, ProduceSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.net.connection import Connection, ConnectionLost
from sparkmirror.wire.produce.producer import Producer
from sparkmirror.wire.produce.transactions import Transactions
from tests.unit.wire.admin.test_long_polls import fetched
from tests.unit.wire.fake_broker import FakeBroker, metadata

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, END_TRANSACTION = 0, 1, 3, 10, 26
HEALTHY, STALLED = TopicPartition("t", 0), TopicPartition("t", 1)
# So many answers of the healthy broker arrive while the other one stalls.
MORE = 20
# Less than `MORE` answers would take if one of them waited for the stalled broker.
IMPATIENT = {"request_timeout_ms": 10_000, "connect_timeout_ms": 10_000}


def _produced(tp: TopicPartition) -> ProduceResponse:
    topic = ProduceResponse.TopicProduceResponse
    part = topic.PartitionProduceResponse(
        index=tp.partition, error_code=0, base_offset=0, log_append_time_ms=-1, log_start_offset=0,
        record_errors=[], error_message=None,
    )  # fmt: skip
    rows = [topic(name=tp.topic, partition_responses=[part])]
    return ProduceResponse(responses=rows, throttle_time_ms=0)


class Deaf(FakeBroker):
    """A broker that shakes hands and then reads nothing: what is sent to it fills its socket."""

    def __init__(self) -> None:
        super().__init__(lambda *_: ...)
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.ended = threading.Event()

    def _serve(self, peer: socket.socket) -> None:
        request = peer.recv(4_096)
        body = request[8:12] + bytes(self._versions().encode(version=0))
        peer.sendall(len(body).to_bytes(4, "big") + body)
        self.ended.wait(60)
        peer.close()

    def stop(self) -> None:
        self.ended.set()
        super().stop()


class Brokers:
    """Broker 1 leads `HEALTHY` and answers at once; broker 2 leads `STALLED`.

    ``stalls``: what broker 2 answers, by API key; by default as broker 1 does.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.stalls: dict[int, object] = {}
        self.one = FakeBroker(lambda key, _: self._answer(HEALTHY, key))
        self.two: FakeBroker = FakeBroker(lambda key, _: self._stalled(key))
        for one in (self.one, self.two):
            stack.callback(one.stop)

    def replace_two(self, other: FakeBroker) -> None:
        self._stack.callback(other.stop)
        self.two = other

    def _stalled(self, key: int) -> object:
        return self.stalls[key] if key in self.stalls else self._answer(STALLED, key)

    def _answer(self, tp: TopicPartition, key: int) -> object:
        if key == METADATA:
            leaders = {("t", 0): 1, ("t", 1): 2, **{("u", n): 2 for n in range(4_000)}}
            return metadata({1: self.one, 2: self.two}, leaders)
        return _produced(tp) if key == PRODUCE else fetched(tp)

    def known(self, **settings: int) -> ClusterConnections:
        client = ClusterClient("A", (self.one.address,), "t", **settings)  # type: ignore[arg-type]
        found = ClusterConnections(client, ["t"], send_buffer_bytes=4_096)
        found.refresh()
        self._stack.callback(found.close)
        return found


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack)


class Writing:
    """A producer with batches for both partitions. ``acknowledged``: counts."""

    def __init__(self, known: ClusterConnections) -> None:
        self.known = known
        self.producer = Producer(known, ProduceSettings(enable_idempotence=False, acks=1))
        self.acknowledged = {HEALTHY: 0, STALLED: 0}

    def append(self, tp: TopicPartition) -> None:
        batch = memoryview(encode_batch([Record(0, 1, None, b"x")]))
        self.producer.backlog.append(tp, batch)

    def more(self, count: int = MORE, tp: TopicPartition = HEALTHY) -> None:
        """Write ``count`` batches to ``tp``, each after the acknowledgement of the one before."""
        until = self.acknowledged[tp] + count
        while self.acknowledged[tp] < until:
            before = self.acknowledged[tp]
            self.append(tp)
            _until(lambda: self.acknowledged[tp] > before, self.step)  # noqa: B023

    def step(self) -> None:
        for one in self.producer.pump(0.02):
            self.acknowledged[one.tp] += 1

    @property
    def errors(self) -> dict[str, int]:
        return self.producer.backlog.errors


class Reading:
    """A fetcher of both partitions; ``answers``: how many each has had."""

    def __init__(self, known: ClusterConnections) -> None:
        self.known = known
        self.fetcher = Fetcher(known, FetchSettings(fetch_max_wait_ms=20))
        self.answers = {HEALTHY: 0, STALLED: 0}
        for tp in self.answers:
            self.fetcher.assign(tp, 0)

    def more(self, count: int = MORE, tp: TopicPartition = HEALTHY) -> None:
        until = self.answers[tp] + count
        _until(lambda: self.answers[tp] >= until, self.step)

    def step(self) -> None:
        self.fetcher.send()
        for connection in self.fetcher.ready(min(0.02, self.fetcher.next_due_s())):
            for part in self.fetcher.receive(connection):
                self.answers[part.tp] = self.answers.get(part.tp, 0) + 1

    @property
    def errors(self) -> dict[str, int]:
        return self.fetcher.errors


def _until(condition: Callable[[], object], step: Callable[[], None]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        step()


def _half(key: int) -> bytes | EllipsisType:
    """The beginning of an answer of 100 bytes."""
    return struct.pack(">ih", 100, 0)


# -- in the middle of an answer ------------------------------------------------------------------


@pytest.mark.parametrize("work", [Writing, Reading], ids=["target", "source"])
def test_a_broker_that_stalls_in_its_answer_keeps_only_its_own_partitions(
    brokers: Brokers, work: type[Writing | Reading]
) -> None:
    side = work(brokers.known(**IMPATIENT))
    side.more(1, STALLED)
    brokers.stalls = {PRODUCE: _half(PRODUCE), FETCH: _half(FETCH)}
    asked = len(brokers.two.asked)
    if isinstance(side, Writing):
        side.append(STALLED)
    _until(lambda: len(brokers.two.asked) > asked, side.step)
    side.more()
    assert side.errors == {}
    brokers.stalls = {}
    side.more(1, STALLED)  # over a new connection
    assert side.errors == {"CONNECTION_LOST": 1}


# -- a socket that is full -----------------------------------------------------------------------


def test_a_source_broker_that_reads_nothing_keeps_only_its_own_partitions(brokers: Brokers) -> None:
    """A slot's first request names all its partitions."""
    brokers.replace_two(Deaf())
    known = brokers.known(**IMPATIENT)
    known.add_topics(["u"])
    known.refresh()
    reading = Reading(known)
    for number in range(4_000):
        reading.fetcher.assign(TopicPartition("u", number), 0)
    _until(lambda: known.connection(2), reading.step)
    connection = known.connection(2)
    assert connection is not None
    _until(lambda: connection.unsent, reading.step)
    reading.more()
    assert connection.unsent
    assert reading.errors == {}


# -- a login that is due -------------------------------------------------------------------------


class Logins:
    """The logins of one connection: they wait until ``open``, and may fail."""

    def __init__(self, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.open = threading.Event()
        self.error: ConnectionLost | None = None
        self._connection = connection
        monkeypatch.setattr(connection, "_authenticate", self._authenticate)
        connection._login_at = 0.0

    def _authenticate(self) -> None:
        self.count += 1
        assert self.open.wait(60)
        if self.error is not None:
            raise self.error
        self._connection._login_at = time.monotonic() + 600


@pytest.mark.parametrize("work", [Writing, Reading], ids=["target", "source"])
def test_a_login_that_hangs_keeps_only_its_own_partitions(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, work: type[Writing | Reading]
) -> None:
    side = work(brokers.known())
    side.more(1, STALLED)
    connection = side.known.connection(2)
    assert connection is not None
    logins = Logins(connection, monkeypatch)
    if isinstance(side, Writing):
        side.append(STALLED)
    _until(lambda: logins.count, side.step)
    side.more()
    assert logins.count == 1
    before = len(brokers.two.asked)
    side.more()
    assert len(brokers.two.asked) == before, "nothing is sent during a login"
    logins.open.set()
    side.more(1, STALLED)
    assert side.known.connection(2) is connection
    assert side.errors == {}


@pytest.mark.parametrize("work", [Writing, Reading], ids=["target", "source"])
def test_a_login_that_fails_ends_its_connection(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, work: type[Writing | Reading]
) -> None:
    side = work(brokers.known())
    side.more(1, STALLED)
    connection = side.known.connection(2)
    assert connection is not None
    logins = Logins(connection, monkeypatch)
    logins.error = ConnectionLost("refused")
    logins.open.set()
    side.more(2, STALLED)
    assert side.errors == {"CONNECTION_LOST": 1}
    assert side.known.connection(2) is not connection
    assert connection.socket.fileno() == -1


def test_a_connection_that_is_closed_during_a_login_frees_its_descriptor_after_it(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another socket could get the number while the login still waits for it."""
    known = brokers.known()
    _until(lambda: known.connection(2), lambda: None)
    connection = known.connection(2)
    assert connection is not None
    logins = Logins(connection, monkeypatch)
    assert not connection.ready_to_send(idle=True)
    connection.close()
    assert connection.socket.fileno() >= 0
    logins.open.set()
    _until(lambda: connection.socket.fileno() < 0, lambda: time.sleep(0.01))


# -- metadata ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(..., id="silent"),
        pytest.param(_half(METADATA), id="half", marks=pytest.mark.more),
    ],
)
@pytest.mark.parametrize("work", [Writing, Reading], ids=["target", "source"])
def test_a_broker_that_does_not_answer_metadata_keeps_nobody_waiting(
    brokers: Brokers,
    work: type[Writing | Reading],
    answer: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    side = work(brokers.known(**IMPATIENT))
    side.more(1)
    known = side.known
    brokers.stalls = {METADATA: answer}
    known.idle.close()
    known.idle.keep(known.connect(*known._addresses[2]))  # it is asked next
    known.mark_stale()
    generation = known.generation
    _until(lambda: METADATA in brokers.two.asked, lambda: side.more(1))
    side.more()
    assert known.generation == generation
    assert side.errors == {}
    assert "metadata of cluster" not in caplog.text, "it was given up"
    brokers.stalls = {}
    _until(lambda: known.generation > generation, lambda: side.more(1))
    assert known._requests.refresh is None


# -- questions about logs ------------------------------------------------------------------------


def test_a_question_that_others_wait_for_has_a_second_and_then_twice_as_long(
    brokers: Brokers,
) -> None:
    """A broker that is only slow has the time that it needs in the end."""
    known = brokers.known(request_timeout_ms=6_000)
    limits: list[float | None] = []
    answers = False

    def query(connection: Connection, led: list[TopicPartition]) -> dict[TopicPartition, int]:
        limits.append(connection.socket.gettimeout())
        if not answers:
            raise ConnectionLost("timed out")
        return dict.fromkeys(led, 1)

    def ask(patience_s: float | None) -> dict[TopicPartition, int]:
        known.idle.close()
        return known.query_leaders([HEALTHY], query, patience_s=patience_s)

    for _ in range(4):
        assert ask(5.0) == {}
    assert limits == [1.0, 2.0, 4.0, 6.0]
    answers = True
    assert ask(5.0) == ask(5.0) == ask(None) == {HEALTHY: 1}
    assert limits[4:] == [6.0, 1.0, 6.0]


# -- transactions --------------------------------------------------------------------------------


def test_a_pause_of_the_owner_is_no_failure_of_the_broker() -> None:
    """A broker hung when its flow was paused, and was restarted meanwhile: it is used at once."""
    hangs = [False]
    known: dict[int, FakeBroker] = {}

    def told() -> bytes:
        return metadata(known, {("t", 0): 1, ("t", 1): 2})

    known[1] = FakeBroker(lambda *_: told())
    known[2] = FakeBroker(lambda *_: ... if hangs[0] else told())
    now = [1_000.0]
    client = ClusterClient("A", (known[2].address,), "t")
    connections = ClusterConnections(client, ["t"], clock=lambda: now[0])
    with ExitStack() as stack:
        stack.callback(lambda: [one.stop() for one in known.values()])
        stack.callback(connections.close)
        assert connections.refresh_if_due()
        hangs[0] = True
        now[0] += 1
        connections.mark_stale()
        assert not connections.refresh_if_due()
        now[0] += 7_200
        known[2].hang_up()
        hangs[0] = False

        def step() -> None:
            connections.refresh_if_due()
            # What is under way takes none of the test's time.
            if connections._requests.refresh is None and not connections.connecting(2):
                now[0] += 1
            time.sleep(0.01)

        _until(lambda: connections.generation > 1, step)
        _until(lambda: connections.connection(2), step)
        assert now[0] < 1_000 + 7_200 + 300


@pytest.mark.parametrize("key", [FIND_COORDINATOR, END_TRANSACTION])
def test_who_waits_for_a_coordinator_does_other_work_meanwhile(key: int) -> None:
    looks = 0
    answers = threading.Event()

    def said(asked: int, _: int) -> object:
        if asked == key:
            assert answers.wait(60)
        if asked == END_TRANSACTION:
            return EndTxnResponse(throttle_time_ms=0, error_code=0)
        return FindCoordinatorResponse(
            throttle_time_ms=0, error_code=0, error_message=None, node_id=1, host="127.0.0.1",
            port=broker.port,
        )  # fmt: skip

    def rest(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 5:
            answers.set()
        time.sleep(seconds)

    broker = FakeBroker(said, {FIND_COORDINATOR: (0, 2), END_TRANSACTION: (0, 2)})
    client = ClusterClient("A", (broker.address,), "t", **IMPATIENT)  # type: ignore[arg-type]
    known = ClusterConnections(client)
    transactions = Transactions(known, "flow-0", timeout_ms=60_000, identity=(7, 0), sleep=rest)
    try:
        transactions.commit()
    finally:
        transactions.close()
        known.close()
        broker.stop()
    assert looks >= 5
    assert transactions.errors == {}, "it was one request"


def test_a_wait_for_a_coordinator_ends_with_the_task() -> None:
    """Spark may have given it up: nothing more may be written then."""

    def rest(_: float) -> None:
        raise ValueError("given up")

    broker = FakeBroker(lambda *_: ..., {FIND_COORDINATOR: (0, 2)})
    client = ClusterClient("A", (broker.address,), "t", **IMPATIENT)  # type: ignore[arg-type]
    known = ClusterConnections(client)
    transactions = Transactions(known, "flow-0", timeout_ms=60_000, identity=(7, 0), sleep=rest)
    try:
        with pytest.raises(ValueError, match="given up"):
            transactions.commit()
    finally:
        transactions.close()
        known.close()
        broker.stop()
