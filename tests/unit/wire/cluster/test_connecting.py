"""Brokers that are slow or silent while they are connected, among others that are not."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from kafka.protocol.producer import ProduceResponse

from sparkmirror.errors import ClusterError, Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient, FetchSettings, ProduceSettings
from sparkmirror.wire.cluster.attempts import Attempt
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.channels import Channels
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.net.connection import Connection
from sparkmirror.wire.produce.producer import Producer
from tests.patience import patience
from tests.unit.wire.admin.test_long_polls import fetched
from tests.unit.wire.fake_broker import FakeBroker, metadata

HOST = "127.0.0.1"
T = [TopicPartition("t", number) for number in range(4)]
Connect = Callable[[tuple[str, int]], Connection]
PRODUCE, FETCH = 0, 1
# How long a healthy broker is used beside a silent one; connecting may take ten seconds.
BESIDE_S = 3.0


def _produced() -> ProduceResponse:
    topic = ProduceResponse.TopicProduceResponse
    part = topic.PartitionProduceResponse(
        index=0, error_code=0, base_offset=0, log_append_time_ms=-1, log_start_offset=0,
        record_errors=[], error_message=None,
    )  # fmt: skip
    rows = [topic(name="t", partition_responses=[part])]
    return ProduceResponse(responses=rows, throttle_time_ms=0)


class Silent:
    """A server that accepts connections and says nothing, as a broker does that hangs."""

    def __init__(self) -> None:
        self.server = socket.create_server((HOST, 0))
        self.port = int(self.server.getsockname()[1])

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def stop(self) -> None:
        self.server.close()


class Brokers:
    """Broker 1 answers; 2 and 3 are silent. Broker 1 names all of them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.healthy = FakeBroker(self._answer)
        self.silent = {2: Silent(), 3: Silent()}
        for one in (self.healthy, *self.silent.values()):
            stack.callback(one.stop)

    def _answer(self, key: int, _: int) -> object:
        return {PRODUCE: _produced(), FETCH: fetched(T[0])}.get(key) or self._metadata()

    def _metadata(self) -> object:
        leaders = {("t", number): 1 + number % 3 for number in range(3)}
        return metadata({1: self.healthy, **self.silent}, leaders)  # type: ignore[dict-item]

    def known(self, *bootstrap: str, **settings: int) -> ClusterConnections:
        client = ClusterClient("A", bootstrap or (self.healthy.address,), "t", **settings)  # type: ignore[arg-type]
        found = ClusterConnections(client, ["t"])
        self._stack.callback(found.close)
        return found


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack)


class Gate:
    """Attempts to connect wait until it is opened; ``made``: the connections."""

    def __init__(self, known: ClusterConnections, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Connection] = []
        self.open = threading.Event()
        self._connect: Connect = known._connect
        monkeypatch.setattr(known, "_connect", self._late)

    def _late(self, address: tuple[str, int]) -> Connection:
        assert self.open.wait(10)
        self.made.append(self._connect(address))
        return self.made[-1]


def _until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_silent_broker_keeps_the_others_from_nothing(brokers: Brokers) -> None:
    known = brokers.known()
    known.refresh()
    assert known.look_again_s == math.inf
    began = time.monotonic()
    for _ in range(20):
        assert known.connection(2) is None
        assert known.connection(1) is not None
    assert time.monotonic() - began < 2, "a handshake may take ten seconds"
    assert known.connecting(2)
    assert not known.connecting(1)
    assert 0 < known.look_again_s <= 0.25


def test_a_healthy_broker_is_fetched_from_beside_a_silent_one(brokers: Brokers) -> None:
    known = brokers.known()
    fetcher = Fetcher(known, FetchSettings())
    for tp in T[:3]:
        fetcher.assign(tp, 0)
    pauses, answers = [], 0
    last = began = time.monotonic()
    while last - began < BESIDE_S or answers <= 10:
        assert last - began < patience()
        fetcher.send()
        for connection in fetcher.ready(min(0.1, fetcher.next_due_s())):
            answers += len(fetcher.receive(connection))
        now = time.monotonic()
        pauses.append(now - last)
        last = now
    assert max(pauses) < 8.0
    assert known.connecting(2)


def test_a_healthy_broker_is_written_to_beside_a_silent_one(brokers: Brokers) -> None:
    known = brokers.known()
    producer = Producer(known, ProduceSettings(enable_idempotence=False, acks=1))
    batch = memoryview(encode_batch([Record(0, 1, None, b"x")]))
    for tp in T[1:3]:
        producer.backlog.append(tp, batch)
    pauses, written = [], 0
    last = began = time.monotonic()
    while last - began < BESIDE_S or written <= 10:
        assert last - began < patience()
        if not producer.backlog.waiting(T[0]):
            producer.backlog.append(T[0], batch)
        written += sum(one.tp == T[0] for one in producer.pump(0.05))
        now = time.monotonic()
        pauses.append(now - last)
        last = now
    assert max(pauses) < 8.0
    assert known.connecting(2)
    assert producer.backlog.waiting(T[1])


def test_connections_that_help_a_channel_are_not_those_for_single_requests(
    brokers: Brokers,
) -> None:
    known = brokers.known()
    known.refresh()
    known.idle.close()
    for channel in Channels(known, 1, 7).helpers(1):
        while (found := known.connection(*channel)) is None:
            assert known.connecting(*channel), "it was opened for somebody else"
        assert known.connection(*channel) is found
    assert known.idle.addresses == []


def test_a_connection_that_takes_long_is_there_later(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = brokers.known()
    known.refresh()
    known.idle.close()
    gate = Gate(known, monkeypatch)
    assert known.connection(1) is None
    assert known.connecting(1)
    assert known.connection(1, 1) is None
    gate.open.set()
    _until(lambda: known.connection(1))
    assert known.connection(1) in gate.made
    # Whoever looks for metadata takes over what has been connected meanwhile.
    _until(lambda: not (known.refresh_if_due(), known.connecting(1, 1))[1])
    assert known.connection(1, 1) in gate.made
    assert len(gate.made) == 2


def test_an_attempt_that_fails_is_followed_by_a_pause(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    known = brokers.known(reconnect_backoff_ms=20_000)
    known.refresh()
    known.client = replace(known.client, connect_timeout_ms=300)
    assert known.connection(2) is None
    _until(lambda: known.connection(2) is None and not known.connecting(2))
    assert known.connection(2) is None
    assert not known.connecting(2), "it is left alone for a while"
    assert "no Kafka broker answered" in caplog.text


def test_a_failure_that_is_noticed_late_costs_no_longer_pause(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that Spark keeps waiting looks at its connections a minute later."""
    now = 100.0
    known = brokers.known(reconnect_backoff_ms=1_000)
    known.refresh()
    monkeypatch.setattr(known, "_clock", lambda: now)
    monkeypatch.setattr(known._backoff, "_clock", lambda: now)
    gate = threading.Event()

    def refused(_: object) -> Connection:
        gate.wait(10)
        raise Unreachable("refused.", where="B")

    monkeypatch.setattr(known, "_connect", refused)
    assert known.connection(2) is None
    attempt = known._attempts[2, 0]
    gate.set()
    _until(lambda: attempt.over)
    now += 60
    assert known.connection(2) is None
    assert known._backoff.lasts(2)
    now += 2 + attempt.lasted_s
    assert not known._backoff.lasts(2)


def test_a_broker_that_moves_meanwhile_is_connected_where_it_is(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = brokers.known()
    known.refresh()
    gate = Gate(known, monkeypatch)
    assert known.connection(2) is None
    known.idle.close()
    known._addresses[2] = HOST, brokers.healthy.port
    assert known.connection(2) is None
    gate.open.set()
    _until(lambda: known.connection(2))
    found = known.connection(2)
    assert found is not None
    assert found.port == brokers.healthy.port


def test_what_is_connected_after_the_end_is_closed(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = brokers.known()
    known.refresh()
    known.idle.close()
    gate = Gate(known, monkeypatch)
    assert known.connection(1) is None
    known.close()
    gate.open.set()
    _until(lambda: gate.made and gate.made[0].socket.fileno() == -1)


def test_an_error_of_ours_is_raised_where_it_is_noticed(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = brokers.known()
    known.refresh()
    known.idle.close()

    def wrong(_: object) -> Connection:
        raise ValueError("ours")

    monkeypatch.setattr(known, "_connect", wrong)
    with pytest.raises(ValueError, match="ours"):
        _until(lambda: known.connection(1))
    with pytest.raises(ValueError, match="ours"):
        known.any_connection()


# -- any broker --------------------------------------------------------------------------------


def test_a_silent_server_delays_a_start_for_a_moment(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = brokers.known(brokers.silent[2].address, brokers.healthy.address)
    monkeypatch.setattr(known._random, "shuffle", lambda _: None)
    connect: Connect = known._connect
    asked: list[int] = []

    def noted(address: tuple[str, int]) -> Connection:
        asked.append(address[1])
        return connect(address)

    monkeypatch.setattr(known, "_connect", noted)
    first = []
    began = time.monotonic()
    for _ in range(3):
        asked.clear()
        connection = known.any_connection()
        first.append(asked[0])
        assert connection.port == brokers.healthy.port
        connection.close()
    # Connecting may take ten seconds.
    assert 0.4 < time.monotonic() - began < 8
    silent, healthy = brokers.silent[2].port, brokers.healthy.port
    assert first == [silent, healthy, healthy], "the other one is asked first now"


def _silent_together(brokers: Brokers, connect: Connect) -> Connect:
    """Attempts at the silent ones fail when both are under way: none waits for another's end."""
    meeting = threading.Barrier(len(brokers.silent))

    def silent(address: tuple[str, int]) -> Connection:
        if address[1] == brokers.healthy.port:
            return connect(address)
        meeting.wait(patience())
        raise Unreachable("silent.", where="B")

    return silent


def test_if_all_servers_are_silent_one_timeout_is_enough(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = brokers.known(*(one.address for one in brokers.silent.values()))
    monkeypatch.setattr(known, "_connect", _silent_together(brokers, known._connect))
    with pytest.raises(ClusterError, match="silent"):
        known.any_connection()


def test_a_silent_server_is_given_up_after_the_timeout(brokers: Brokers) -> None:
    known = brokers.known(brokers.silent[2].address, connect_timeout_ms=1_000)
    began = time.monotonic()
    with pytest.raises(ClusterError, match="no Kafka broker answered"):
        known.any_connection()
    assert 1 <= time.monotonic() - began < 8


# -- leaders -----------------------------------------------------------------------------------


def _ask(_: Connection, led: list[TopicPartition]) -> dict[TopicPartition, int]:
    return {tp: tp.partition for tp in led}


def test_leaders_are_connected_at_the_same_time(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = brokers.known()
    known.refresh()
    monkeypatch.setattr(known, "_connect", _silent_together(brokers, known._connect))
    assert known.query_leaders(T, _ask) == {T[0]: 0}
    assert not known.connecting(2, -1)


def test_a_caller_with_little_patience_finds_the_connection_later(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = brokers.known()
    known.refresh()
    known.idle.close()
    gate = Gate(known, monkeypatch)
    waits: list[float | None] = []
    wait = Attempt.wait

    def noted(attempt: Attempt, seconds: float | None) -> None:
        waits.append(seconds)
        wait(attempt, seconds)

    monkeypatch.setattr(Attempt, "wait", noted)
    began = time.monotonic()
    for _ in range(3):
        assert known.query_leaders([T[0]], _ask, patience_s=0.2) == {}
    assert time.monotonic() - began >= 0.2
    assert waits[1:] == [0.0, 0.0], "it has had its time"
    gate.open.set()
    _until(lambda: known.query_leaders([T[0]], _ask, patience_s=0.2))
    assert len(gate.made) == 1


def test_a_leader_that_refuses_is_missing(brokers: Brokers) -> None:
    known = brokers.known()
    known.refresh()
    brokers.silent[2].stop()
    assert known.query_leaders([T[1]], _ask, patience_s=5.0) == {}
    with pytest.raises(Unreachable):
        known._connect((HOST, brokers.silent[2].port))
