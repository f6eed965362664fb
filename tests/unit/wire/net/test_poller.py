"""What is waited for once and kept: descriptors that close, numbers that are used again, ends."""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient, FetchSettings, ProduceSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.metadata import Leader
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.net.poller import Poller, readable
from sparkmirror.wire.produce.producer import Producer
from tests.unit.wire.net.test_framing import Framed

TP = TopicPartition("t", 0)
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _pair(stack: ExitStack) -> Pair:
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    stack.enter_context(theirs)
    return ours, theirs


def test_it_tells_what_can_be_read_until_that_is_removed(stack: ExitStack) -> None:
    poller: Poller[str] = Poller()
    (a, far_a), (b, far_b) = _pair(stack), _pair(stack)
    poller.add("a", a.fileno())
    poller.add("b", b.fileno())
    assert poller.wait() == []
    far_b.send(b"x")
    assert poller.wait(10.0) == ["b"]
    far_a.close()  # an end can be read
    assert sorted(poller.wait(10.0)) == ["a", "b"]
    poller.remove("b")
    poller.remove("b")
    assert poller.wait(10.0) == ["a"]
    assert "b" not in poller


def test_it_tells_of_room_only_while_that_is_wanted(stack: ExitStack) -> None:
    wide: Poller[str] = Poller()
    narrow = Poller(within=wide)
    a, far = _pair(stack)
    narrow.add("a", a.fileno())
    for poller in (narrow, wide):
        narrow.also_writable("a", True)
        assert poller.wait() == ["a"]
        narrow.also_writable("a", False)
        assert poller.wait() == []
    far.send(b"x")
    assert narrow.wait(10.0) == ["a"]
    narrow.also_writable("b", True)  # nobody waits for it


def test_a_wider_poller_has_what_the_narrower_ones_have(stack: ExitStack) -> None:
    wide: Poller[str] = Poller()
    narrow = Poller(within=wide)
    (a, far_a), (b, far_b) = _pair(stack), _pair(stack)
    narrow.add("a", a.fileno())
    wide.add("b", b.fileno())
    far_b.send(b"x")
    assert narrow.wait() == []
    assert wide.wait(10.0) == ["b"]
    far_a.send(b"x")
    assert narrow.wait(10.0) == ["a"]
    narrow.remove("a")
    assert wide.wait(10.0) == ["b"]


def test_a_number_that_is_used_again_is_the_new_owners(stack: ExitStack) -> None:
    """Somebody else closed the old one: what `Producer.pump` waits for beside its answers."""
    wide: Poller[str] = Poller()
    narrow = Poller(within=wide)
    old, _ = _pair(stack)
    number = old.fileno()
    wide.add("old", number)
    old.close()
    ours, theirs = socket.socketpair()
    stack.enter_context(theirs)
    # Put at the same number, as the kernel does with the next that is opened.
    new = stack.enter_context(socket.socket(fileno=os.dup2(ours.detach(), number)))
    narrow.add("new", number)
    theirs.send(b"x")
    assert narrow.wait(10.0) == wide.wait(10.0) == ["new"]
    wide.remove("old")
    assert wide.wait(10.0) == ["new"]
    assert new.recv(1) == b"x"
    assert wide.wait() == []


def test_what_was_closed_without_a_word_is_told(stack: ExitStack) -> None:
    """With ``epoll`` nobody would hear of it again."""
    poller: Poller[str] = Poller()
    ours, _ = _pair(stack)
    poller.add("lost", ours.fileno())
    ours.close()
    assert poller.wait(10.0) == ["lost"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        readable([poller._numbers["lost"]], 10.0)


def test_a_wait_is_not_rounded_to_milliseconds(stack: ExitStack) -> None:
    """A pace of four milliseconds is one of five otherwise; the shortest of many tries tells."""
    poller: Poller[str] = Poller()
    poller.add("silent", _pair(stack)[0].fileno())

    def waited_s(timeout_s: float) -> float:
        began_s = time.perf_counter()
        assert poller.wait(timeout_s) == []
        return time.perf_counter() - began_s

    shortest_s = min(waited_s(0.0021) for _ in range(300))
    assert 0.0021 <= shortest_s < 0.0029
    assert waited_s(-1.0) < 10.0  # and not for ever


def test_a_closed_connection_is_watched_no_more(stack: ExitStack) -> None:
    ours, _ = _pair(stack)
    framed = Framed(ours)
    wide: Poller[Any] = Poller()
    narrow: Poller[Any] = Poller(within=wide)
    framed.watched_by(narrow)
    framed.watched_by(narrow)
    assert framed in wide
    framed.close()
    assert framed not in narrow
    assert framed not in wide
    assert wide.wait() == []


def test_an_idle_connection_has_hung_up_or_not(stack: ExitStack) -> None:
    ours, broker = _pair(stack)
    framed = Framed(ours)
    assert not framed.hung_up()
    assert framed.socket.gettimeout() == 10.0
    broker.close()
    assert framed.hung_up()
    framed.close()
    assert framed.hung_up()


# -- connections that a broker closes while nobody waits for an answer ---------------------------


class _Connection(Framed):
    """What the fetcher and the producer use of a connection."""

    round_trip_s = 0.001

    def ready_to_send(self, *, idle: bool) -> bool:
        return idle

    def api_version(self, _key: int, lowest: int, highest: int, _name: str) -> int:
        return min(8, highest)

    def header(self, *_: object) -> tuple[int, bytes]:
        return 77, b""


class _Cluster:
    """Connections to one broker, which a test plays; ``brokers`` are its ends of them."""

    idle = SimpleNamespace(using=lambda _: nullcontext(), close_old=lambda *_: None)

    def __init__(self, stack: ExitStack) -> None:
        self.client = ClusterClient("A", ("a:1",), "c")
        self.leaders = {TP: Leader(1, 0)}
        self.generation = 0
        self.brokers: list[socket.socket] = []
        self._stack = stack
        self._connection: _Connection | None = None

    def refresh_if_due(self) -> None:
        """Metadata never changes."""

    look_again_s = math.inf

    def connection(self, _node: int, _number: int = 0) -> _Connection:
        if self._connection is None:
            ours, broker = _pair(self._stack)
            self._connection = _Connection(ours)
            self.brokers.append(broker)
        return self._connection

    def any_connection(self) -> SimpleNamespace:
        given = SimpleNamespace(error_code=0, producer_id=1, producer_epoch=0)
        return SimpleNamespace(request=lambda *_, **__: given, close=lambda: None)

    def drop(self, connection: _Connection) -> None:
        connection.close()
        self._connection = None

    def answer(self, body: bytes) -> None:
        self.brokers[-1].sendall(struct.pack(">i", len(body)) + body)


def _fetched(fetcher: Fetcher) -> None:
    assert fetcher.waiting
    (connection,) = fetcher.ready(10.0)
    fetcher.receive(connection)
    assert not fetcher.waiting


def test_a_fetchers_idle_connection_that_ends_is_made_anew(stack: ExitStack) -> None:
    """It must not be told for ever, and the next request must not go there."""
    cluster = _Cluster(stack)
    time_s = 100.0
    fetcher = Fetcher(cast(ClusterConnections, cluster), FetchSettings(), clock=lambda: time_s)
    fetcher.assign(TP, 0)
    for number in range(3):
        fetcher.send()
        cluster.answer(struct.pack(">iihii", 77, 0, 0, 0, 0))
        _fetched(fetcher)
        time_s += 1.0
        assert fetcher.ready(0.0) == []
        cluster.brokers[-1].close()
        (ended,) = fetcher.ready(10.0)
        assert fetcher.receive(ended) == []
        assert fetcher.receive(ended) == []
        assert fetcher.ready(0.0) == []
        assert len(cluster.brokers) == number + 1
    assert fetcher.errors == {}, "nothing was under way"


def test_a_producers_idle_connection_that_ends_is_made_anew(stack: ExitStack) -> None:
    cluster = _Cluster(stack)
    producer = Producer(cast(ClusterConnections, cluster), ProduceSettings())
    ours, theirs = _pair(stack)  # Spark's next row
    for number in range(3):
        producer.backlog.append(TP, memoryview(encode_batch([Record(0, 0, None, b"1")])))
        assert producer.pump() == []
        part = struct.pack(">ihqqqih", 0, 0, number, -1, 0, 0, -1)
        topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", 1) + part
        cluster.answer(struct.pack(">ii", 77, 1) + topic + struct.pack(">i", 0))
        (done,) = producer.pump(10.0)
        assert done.offset == number
        cluster.brokers[-1].close()
        assert producer.pump(0.0, ours.fileno()) == []
        assert producer._requests == {}, "it is forgotten"
        theirs.send(b"x")
        producer.pump(10.0, ours.fileno())
        assert producer.woken
        ours.recv(1)
    assert len(cluster.brokers) == 3
    assert producer.backlog.errors == {}, "no batch was in doubt"


def _idle_for_minutes(cluster: _Cluster) -> None:
    """The broker closes a connection that was not used for a long time."""
    connection = cluster._connection
    assert connection is not None
    cluster.brokers[-1].close()
    assert connection.readable(10.0)
    connection.last_used -= 600.0


def test_no_record_is_sent_on_a_connection_that_the_broker_has_closed(stack: ExitStack) -> None:
    """A batch on its way there would be in doubt, and its partition would wait for its answer."""
    cluster = _Cluster(stack)
    producer = Producer(cast(ClusterConnections, cluster), ProduceSettings())
    for number in range(3):
        producer.backlog.append(TP, memoryview(encode_batch([Record(0, 0, None, b"1")])))
        deadline = time.monotonic() + 10.0
        while not any(producer._requests.values()) and time.monotonic() < deadline:
            assert producer.pump() == []
        assert len(cluster.brokers) == number + 1
        part = struct.pack(">ihqqqih", 0, 0, number, -1, 0, 0, -1)
        topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", 1) + part
        cluster.answer(struct.pack(">ii", 77, 1) + topic + struct.pack(">i", 0))
        (done,) = producer.pump(10.0)
        assert done.offset == number
        _idle_for_minutes(cluster)
    assert producer.backlog.errors == {}


def test_no_fetch_is_sent_on_a_connection_that_the_broker_has_closed(stack: ExitStack) -> None:
    cluster = _Cluster(stack)
    time_s = 100.0
    fetcher = Fetcher(cast(ClusterConnections, cluster), FetchSettings(), clock=lambda: time_s)
    fetcher.assign(TP, 0)
    for number in range(3):
        while not fetcher.waiting:
            fetcher.send()
        assert len(cluster.brokers) == number + 1
        cluster.answer(struct.pack(">iihii", 77, 0, 0, 0, 0))
        _fetched(fetcher)
        time_s += 1.0
        _idle_for_minutes(cluster)
    assert fetcher.errors == {}


def test_what_was_used_a_moment_ago_is_not_looked_at(stack: ExitStack) -> None:
    """A look costs a call of the system for each request that goes out alone."""
    ours, broker = _pair(stack)
    framed = Framed(ours)
    broker.close()
    assert framed.readable(10.0)
    framed.last_used = time.monotonic() + 60
    assert not framed.ended_idle()
    framed.last_used -= 600.0
    assert framed.ended_idle()
