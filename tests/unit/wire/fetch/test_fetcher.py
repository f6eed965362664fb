"""A fetcher before brokers that move, hang, hold back and point elsewhere."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest

from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient, FetchSettings
from sparkmirror.wire.fetch.fetcher import FetchedPartition, Fetcher
from sparkmirror.wire.fetch.messages import (
    FETCH_HIGHEST,
    FETCH_LOWEST,
    FETCH_SESSIONS_FROM,
    I32,
    FetchPartition,
    request_body,
)
from sparkmirror.wire.net.connection import ConnectionLost

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
UNKNOWN_LEADER_EPOCH = 75
NOT_LEADER, OUT_OF_RANGE, STORAGE_ERROR = 6, 1, 56


class Broker:
    """One broker and the connection to it.

    ``asked``: the partitions of each request; ``waits``: how long it may wait for how many bytes.
    """

    def __init__(self, node: int) -> None:
        self.node = node
        self.round_trip_s = 0.001
        self.closed = False
        self.asked: list[list[TopicPartition]] = []
        self.waits: list[tuple[int, int]] = []
        self.offsets: dict[TopicPartition, int] = {}
        self.answers: list[bytes] = []

    def api_version(self, *_: object) -> int:
        return 11

    def header(self, *_: object) -> tuple[int, bytes]:
        return len(self.asked), b""

    def ready_to_send(self, *, idle: bool) -> bool:
        return idle

    def ended_idle(self) -> bool:
        return False

    def watched_by(self, _poller: object) -> None:
        """Nobody waits: tests call when there is something to read."""

    unsent = False

    def begin_frame(self, parts: list[bytes], _size: int) -> None:
        self.asked.append(self._wanted(parts[1]))
        self.waits.append(struct.unpack_from(">ii", parts[1], 4))

    def _wanted(self, body: bytes) -> list[TopicPartition]:
        at, found = 25, []  # replica, wait, min and max bytes, isolation, session id and epoch
        (topics,) = I32.unpack_from(body, at)
        at += 4
        for _ in range(topics):
            (size,) = struct.unpack_from(">h", body, at)
            topic = body[at + 2 : at + 2 + size].decode()
            (count,) = I32.unpack_from(body, at + 2 + size)
            at += 6 + size
            for _ in range(count):
                number, _, offset = struct.unpack_from(">iiq", body, at)
                found.append(TopicPartition(topic, number))
                self.offsets[found[-1]] = offset
                at += 28
        return found

    def readable(self) -> bool:
        return bool(self.answers)

    def receive_available(self, _: object) -> memoryview:
        if not self.answers:
            raise ConnectionLost("broken")
        return memoryview(self.answers.pop(0))

    def answer(
        self,
        parts: dict[TopicPartition, tuple[int, bytes]],
        *,
        throttle_ms: int = 0,
        replica: int = -1,
        correlation: int = -1,
    ) -> None:
        """``parts``: error code and records."""
        number = len(self.asked) - 1 if correlation < 0 else correlation
        frame = struct.pack(">iihii", number, throttle_ms, 0, 0, len(parts))
        for tp, (code, records) in parts.items():
            name = tp.topic.encode()
            frame += struct.pack(f">h{len(name)}si", len(name), name, 1)
            frame += struct.pack(">ihqqqiii", tp.partition, code, 9, 9, 0, 0, replica, len(records))
            frame += records
        self.answers.append(frame)


@dataclass
class Cluster:
    """Three brokers. ``leaders``: what the fetcher knows; ``next_leaders`` come with metadata."""

    time_s: float = 100.0
    client: ClusterClient = field(default_factory=lambda: ClusterClient("A", ("a:1",), "c"))
    generation: int = 0
    leaderless: dict[TopicPartition, int] = field(default_factory=dict)
    topic_errors: dict[str, int] = field(default_factory=dict)
    doubted: list[TopicPartition] = field(default_factory=list)
    stale: bool = False
    reachable: bool = True
    away: set[int] = field(default_factory=set)
    tried: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.brokers = {node: Broker(node) for node in (1, 2, 3)}
        self.leaders = self._leaders({A: 1, B: 2})
        self.next_leaders = self.leaders
        self.topic_ids: dict[str, str] = {}

    @staticmethod
    def _leaders(nodes: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {tp: SimpleNamespace(node=node, epoch=0, fencing=0) for tp, node in nodes.items()}

    def move(self, **nodes: int) -> None:
        self.next_leaders = self._leaders({TopicPartition(t, 0): n for t, n in nodes.items()})

    def refresh_if_due(self) -> None:
        if self.stale and self.reachable:
            self.leaders, self.stale = self.next_leaders, False
            self.generation += 1

    def mark_stale(self, _tp: TopicPartition | None = None) -> None:
        self.stale = True

    def forget_leaders(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        gone = set(self.leaders if partitions is None else partitions)
        self.leaders = {tp: one for tp, one in self.leaders.items() if tp not in gone}
        self.generation += 1

    def doubt(self, tp: TopicPartition) -> None:
        self.doubted.append(tp)

    look_again_s = math.inf

    def connection(self, node: int, _number: int = 0) -> Broker | None:
        self.tried.add(node)
        return None if node in self.away else self.brokers[node]

    def drop(self, connection: Broker) -> None:
        connection.closed = True
        self.stale = True
        self.brokers[connection.node] = Broker(connection.node)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def _fetcher(cluster: Cluster, *, linger_ms: int = 0, **settings: Any) -> Fetcher:
    fetcher = Fetcher(
        cluster,  # type: ignore[arg-type]
        FetchSettings(**settings),
        linger_ms=linger_ms,
        batch_bytes=16_384,
        clock=lambda: cluster.time_s,
    )
    for tp in (A, B):
        fetcher.assign(tp, 5)
    fetcher.send()
    return fetcher


def _take(fetcher: Fetcher, broker: Broker) -> list[FetchedPartition]:
    return fetcher.receive(broker)


def _records(offset: int) -> bytes:
    return encode_batch([Record(offset, 1, None, b"v")])


@pytest.mark.parametrize("code", [NOT_LEADER, STORAGE_ERROR])
def test_a_leader_that_has_moved_is_followed(cluster: Cluster, code: int) -> None:
    fetcher = _fetcher(cluster)
    assert cluster.brokers[1].asked == [[A]]
    assert cluster.brokers[2].asked == [[B]]
    cluster.move(a=3, b=2)
    cluster.brokers[1].answer({A: (code, b"")})
    assert _take(fetcher, cluster.brokers[1]) == []
    cluster.time_s += 1.0
    fetcher.send()
    assert cluster.brokers[3].asked == [[A]]
    assert cluster.brokers[3].offsets[A] == 5, "nothing is passed over"
    assert fetcher.halts == {}


def test_a_broker_that_hangs_keeps_no_other_from_being_asked(cluster: Cluster) -> None:
    fetcher = _fetcher(cluster)
    for number in range(5):
        cluster.brokers[2].answer({B: (0, _records(5 + number))})
        (part,) = _take(fetcher, cluster.brokers[2])
        fetcher.advance(part.tp, 6 + number)
        cluster.time_s += 1.0
        fetcher.send()
    assert cluster.brokers[2].asked == [[B]] * 6
    assert cluster.brokers[2].offsets[B] == 10
    assert cluster.brokers[1].asked == [[A]]


def test_a_connection_without_an_answer_is_given_up_and_made_anew(cluster: Cluster) -> None:
    fetcher = _fetcher(cluster)
    half_open = cluster.brokers[1]
    cluster.time_s += 29.0
    fetcher.send()
    assert not half_open.closed
    cluster.time_s += 2.0
    fetcher.send()
    assert half_open.closed
    assert cluster.brokers[1] is not half_open
    fetcher.send()
    assert cluster.brokers[1].asked == [[A]]
    assert cluster.brokers[1].offsets[A] == 5
    assert fetcher.errors["CONNECTION_LOST"] == 2  # both brokers


def test_an_answer_that_came_in_time_and_is_read_late_counts(cluster: Cluster) -> None:
    fetcher = _fetcher(cluster)
    cluster.brokers[1].answer({A: (0, _records(5))})
    cluster.time_s += 120.0
    fetcher.send()
    (part,) = _take(fetcher, cluster.brokers[1])
    assert part.tp == A


def test_a_connection_that_breaks_loses_no_place(cluster: Cluster) -> None:
    fetcher = _fetcher(cluster)
    broken = cluster.brokers[1]
    assert _take(fetcher, broken) == []
    assert broken.closed
    fetcher.send()
    assert cluster.brokers[1].asked == [[A]]
    assert cluster.brokers[1].offsets[A] == 5


def test_an_answer_to_another_request_is_not_taken(cluster: Cluster) -> None:
    fetcher = _fetcher(cluster)
    broker = cluster.brokers[1]
    broker.answer({A: (0, _records(5))}, correlation=77)
    assert _take(fetcher, broker) == []
    assert broker.closed


def test_a_quotas_waiting_time_is_kept(cluster: Cluster) -> None:
    fetcher = _fetcher(cluster)
    broker = cluster.brokers[1]
    broker.answer({A: (0, _records(5))}, throttle_ms=700)
    _take(fetcher, broker)
    fetcher.advance(A, 6)
    assert fetcher.errors["THROTTLED"] == 1
    cluster.time_s += 0.6
    fetcher.send()
    assert broker.asked == [[A]]
    cluster.time_s += 0.2
    fetcher.send()
    assert broker.asked == [[A], [A]]


def test_an_old_broker_has_waited_for_the_quota_itself(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 2.0, it holds the response back for the time that it states."""
    monkeypatch.setattr(Broker, "api_version", lambda *_: 7)
    fetcher = _fetcher(cluster)
    cluster.brokers[1].answer({}, throttle_ms=700)
    _take(fetcher, cluster.brokers[1])
    assert fetcher.errors["THROTTLED"] == 1
    cluster.time_s += 0.1
    fetcher.send()
    assert cluster.brokers[1].asked == [[A], [A]]


def test_the_follower_in_our_rack_serves_until_it_fails(cluster: Cluster) -> None:
    fetcher = _fetcher(cluster, client_rack="r")
    leader, follower = cluster.brokers[1], cluster.brokers[3]
    leader.answer({A: (0, b"")}, replica=3)
    _take(fetcher, leader)
    cluster.time_s += 1.0
    fetcher.send()
    assert follower.asked == [[A]]
    assert leader.asked == [[A]]
    assert _take(fetcher, follower) == []  # it has died
    cluster.time_s += 1.0
    fetcher.send()
    assert leader.asked == [[A], [A]]
    assert cluster.brokers[3].asked == []
    assert leader.offsets[A] == 5


def test_a_partition_without_a_leader_waits_alone_and_is_told(cluster: Cluster) -> None:
    fetcher = _fetcher(cluster)
    cluster.leaderless = {A: 5}
    cluster.move(b=2)
    cluster.brokers[1].answer({A: (NOT_LEADER, b"")})
    _take(fetcher, cluster.brokers[1])
    for _ in range(40):
        cluster.brokers[2].answer({B: (0, _records(5))})
        _take(fetcher, cluster.brokers[2])
        cluster.time_s += 1.0
        fetcher.send()
    assert len(cluster.brokers[2].asked) == 41
    assert fetcher.halts[A].code == "LEADER_NOT_AVAILABLE"
    assert fetcher.halts[A].retriable
    cluster.leaderless = {}
    cluster.move(a=3, b=2)
    cluster.stale = True
    for _ in range(10):
        cluster.time_s += 1.0
        fetcher.send()
    assert cluster.brokers[3].asked == [[A]]
    assert fetcher.halts == {}


def test_a_broker_that_stays_out_of_reach_is_told(cluster: Cluster) -> None:
    """Its partitions are tried again all the time, and the others go on."""
    fetcher = _fetcher(cluster)
    cluster.away = {1}
    fetcher._lost(cluster.brokers[1], ConnectionLost("broken"))  # type: ignore[arg-type]

    def told(rounds: int) -> list[str]:
        codes = []
        for _ in range(rounds):
            cluster.time_s += 0.5
            cluster.tried.clear()
            cluster.brokers[2].answer({B: (0, _records(5))})
            _take(fetcher, cluster.brokers[2])
            fetcher.send()
            codes += [halt.code for tp, halt in fetcher.halts.items() if tp == A and halt.retriable]
        return codes

    assert told(50) == []
    assert 1 in cluster.tried
    # As long as it lasts: nobody takes a retry for success.
    assert set(told(40)[-20:]) == {"BROKER_NOT_AVAILABLE"}
    assert len(told(40)) == 40
    assert "broker 1 of the source" in fetcher.halts[A].reason
    cluster.time_s += 600  # the flow is paused, and nobody tries
    fetcher.send()
    assert A not in fetcher.halts
    assert len(told(100)) > 30
    cluster.away = set()
    told(4)
    assert fetcher.halts == {}
    assert cluster.brokers[1].asked == [[A]]


@pytest.mark.parametrize("round_s", [6.0, 25.0])
def test_a_broker_that_stays_out_of_reach_is_told_by_a_slow_loop_too(
    cluster: Cluster, round_s: float
) -> None:
    """A slow target, or looks at another silent broker, keep it busy."""
    fetcher = _fetcher(cluster)
    cluster.away = {1}
    fetcher._lost(cluster.brokers[1], ConnectionLost("broken"))  # type: ignore[arg-type]
    rounds = 0
    while A not in fetcher.halts:
        cluster.time_s += round_s
        fetcher.send()
        rounds += 1
        assert rounds * round_s < 90
    assert fetcher.halts[A].code == "BROKER_NOT_AVAILABLE"
    assert (rounds - 1) * round_s > 30


def test_a_new_leader_is_not_told_for_the_time_of_the_one_before(cluster: Cluster) -> None:
    """An election may take almost half a minute, and then the new leader must be connected."""
    fetcher = _fetcher(cluster)
    cluster.away = {1, 3}
    fetcher._lost(cluster.brokers[1], ConnectionLost("broken"))  # type: ignore[arg-type]
    told = []
    for number in range(64 + 64):
        if number == 58:
            cluster.move(a=3, b=2)
            cluster.stale = True
        cluster.time_s += 0.5
        fetcher.send()
        told.append(A in fetcher.halts)
    assert told.index(True) == 58 + 61
    assert "broker 3 of the source" in fetcher.halts[A].reason


def test_an_epoch_that_its_leader_does_not_know_is_doubted(cluster: Cluster) -> None:
    """Older metadata is believed then: the cluster may have lost that epoch."""
    fetcher = _fetcher(cluster)
    cluster.brokers[1].answer({A: (UNKNOWN_LEADER_EPOCH, b"")})
    _take(fetcher, cluster.brokers[1])
    assert (cluster.doubted, cluster.stale) == ([A], True)


def test_a_topic_that_may_not_be_described_is_not_one_without_a_leader(cluster: Cluster) -> None:
    fetcher = _fetcher(cluster)
    cluster.topic_errors = {"a": 29}
    cluster.move(b=2)
    cluster.brokers[1].answer({A: (NOT_LEADER, b"")})
    _take(fetcher, cluster.brokers[1])
    for _ in range(40):
        cluster.brokers[2].answer({B: (0, _records(5))})
        _take(fetcher, cluster.brokers[2])
        cluster.time_s += 1.0
        fetcher.send()
    halt = fetcher.halts[A]
    assert (halt.code, halt.retriable) == ("TOPIC_AUTHORIZATION_FAILED", True)
    assert "no permission to describe a" in halt.reason


def test_a_source_that_is_away_is_not_one_without_the_topic(cluster: Cluster) -> None:
    """After a pause, no leader is known; each change of a reason would be reported."""
    fetcher = _fetcher(cluster)
    for node, tp in ((1, A), (2, B)):
        cluster.brokers[node].answer({tp: (0, b"")})
        _take(fetcher, cluster.brokers[node])
    cluster.reachable = False
    fetcher.await_metadata()
    told = set()
    for _ in range(90):
        cluster.time_s += 0.5
        fetcher.send()
        told |= set(fetcher.halts.items())
    assert sorted(tp for tp, _ in told) == [A, B], "one each"
    assert {halt.code for _, halt in told} == {"BROKER_NOT_AVAILABLE"}
    assert all(f"the source, where {tp} is" in halt.reason for tp, halt in told)
    cluster.reachable = True
    for _ in range(4):
        cluster.time_s += 0.5
        fetcher.send()
    assert fetcher.halts == {}
    assert cluster.brokers[1].asked == [[A], [A]]


def test_who_got_data_goes_to_the_back(cluster: Cluster) -> None:
    cluster.move(a=1, b=1)
    cluster.leaders = cluster.next_leaders
    fetcher = _fetcher(cluster)
    broker = cluster.brokers[1]
    assert broker.asked == [[A, B]]
    broker.answer({A: (0, _records(5))})
    _take(fetcher, broker)  # and uses nothing of it, because all of it is from before
    cluster.time_s += 1.0
    fetcher.send()
    assert broker.asked == [[A, B], [B, A]]


@pytest.mark.parametrize("version", range(FETCH_LOWEST, FETCH_HIGHEST + 1))
def test_a_request_keeps_the_order_of_partitions_of_several_topics(version: int) -> None:
    wanted = [(A, 5), (B, 6), (TopicPartition("a", 1), 7), (TopicPartition("a", 2), 8)]
    listed = [FetchPartition(tp, offset, 3, 300) for tp, offset in wanted]
    forgotten = [TopicPartition("b", 1), TopicPartition("c", 0), TopicPartition("b", 2)]
    body = request_body(
        *(version, FetchSettings(), listed, 1200, b"rack"), session=(7, 2), forgotten=forgotten
    )
    request = FetchRequest.decode(body, version=version)
    assert [
        (TopicPartition(topic.topic, one.partition), one.fetch_offset, one.partition_max_bytes)
        for topic in request.topics
        for one in topic.partitions
    ] == [(tp, offset, 300) for tp, offset in wanted]
    assert [len(topic.partitions) for topic in request.topics] == [1, 1, 2]
    if version >= FETCH_SESSIONS_FROM:
        named = request.forgotten_topics_data
        told = [TopicPartition(topic.topic, n) for topic in named for n in topic.partitions]
        assert sorted(told) == sorted(forgotten)


def test_who_got_data_goes_behind_partitions_of_other_topics(cluster: Cluster) -> None:
    """A response has a topic as often as its request; all of it counts."""
    more = TopicPartition("a", 1)
    cluster.leaders = cluster.next_leaders = cluster._leaders({A: 1, B: 1, more: 1})
    fetcher = _fetcher(cluster)
    fetcher.assign(more, 5)
    broker = cluster.brokers[1]
    broker.answer({A: (0, b""), B: (0, b"")})
    _take(fetcher, broker)
    cluster.time_s += 1.0
    fetcher.send()
    broker.answer({A: (0, _records(5))})
    _take(fetcher, broker)
    fetcher.advance(A, 6)
    cluster.time_s += 1.0
    fetcher.send()
    assert broker.asked[1:] == [[A, B, more], [B, more, A]]
    broker.answer(dict.fromkeys((B, more), (0, b"")) | {A: (0, _records(6))})
    assert [part.tp for part in _take(fetcher, broker)] == [B, more, A]
    fetcher.advance(A, 7)
    fetcher.advance(B, 6)
    cluster.time_s += 1.0
    fetcher.send()
    broker.answer({more: (0, _records(5)), B: (0, b""), A: (0, _records(7))})
    assert [part.tp for part in _take(fetcher, broker)] == [more, B, A]


def test_what_is_out_of_range_twice_is_looked_at_and_never_jumped_over(cluster: Cluster) -> None:
    fetcher = Fetcher(cluster, FetchSettings(), clock=lambda: cluster.time_s)  # type: ignore[arg-type]
    fetcher.assign(A, 5)
    for _ in range(2):
        cluster.time_s += 1.0
        fetcher.send()
        cluster.brokers[1].answer({A: (OUT_OF_RANGE, b"")})
        _take(fetcher, cluster.brokers[1])
    assert fetcher.halts[A].code == "OFFSET_OUT_OF_RANGE"
    assert fetcher.position(A) == 5


@pytest.mark.parametrize(
    ("linger_ms", "settings", "waits"),
    [
        (0, {}, [(500, 1)] * 3),
        (20, {}, [(500, 1), (20, 2 * 16_384), (500, 1)]),
        (9_000, {}, [(500, 1), (500, 2 * 16_384), (500, 1)]),
        (20, {"fetch_max_bytes": 10_000}, [(500, 1), (20, 5_000), (500, 1)]),
        (20, {"fetch_min_bytes": 90_000}, [(500, 90_000)] * 3),
    ],
)
def test_after_records_the_broker_lingers_until_batches_are_full(
    cluster: Cluster, linger_ms: int, settings: dict[str, int], waits: list[tuple[int, int]]
) -> None:
    cluster.leaders = cluster._leaders({A: 1, B: 1})
    fetcher, leader = _fetcher(cluster, linger_ms=linger_ms, **settings), cluster.brokers[1]
    for parts in ({A: (0, _records(5)), B: (0, _records(5))}, {A: (0, b"")}):
        leader.answer(parts)
        _take(fetcher, leader)
        cluster.time_s += 1.0
        fetcher.send()
    assert leader.waits == waits


def test_from_now_on_brokers_wait_as_long_as_it_is_told(cluster: Cluster) -> None:
    """Otherwise a planner that reads its topic to the end stands half a second at each of them."""
    cluster.leaders = cluster._leaders({A: 1, B: 1})
    fetcher, leader = _fetcher(cluster), cluster.brokers[1]
    for wait_ms in (0, 700):
        leader.answer({A: (0, b""), B: (0, b"")})
        _take(fetcher, leader)
        cluster.time_s += 1.0
        fetcher.wait_at_most(wait_ms)
        fetcher.send()
    assert [wait for wait, _ in leader.waits] == [FetchSettings().fetch_max_wait_ms, 0, 700]


@pytest.mark.parametrize("code", [2, -1, STORAGE_ERROR])
def test_what_the_broker_cannot_read_for_long_is_told(cluster: Cluster, code: int) -> None:
    """Damage at rest that it finds itself, or a remote tier that is away."""
    fetcher = _fetcher(cluster)
    told, began_s = set[str](), cluster.time_s
    for _ in range(60):
        cluster.brokers[1].answer({A: (code, b"")})
        _take(fetcher, cluster.brokers[1])
        told |= {halt.code for tp, halt in fetcher.halts.items() if tp == A and halt.retriable}
        cluster.time_s += 1.0
        if A in fetcher.halts:
            break
        fetcher.send()
    assert told
    assert 30 <= cluster.time_s - began_s <= 40 or code == -1
    assert fetcher.position(A) == 5


def test_a_batch_that_stays_cut_does_not_ask_for_ever_more(cluster: Cluster) -> None:
    fetcher = _fetcher(cluster)
    for _ in range(3):
        cluster.brokers[1].answer({A: (0, bytes(8) + struct.pack(">i", 1 << 30) + bytes(5))})
        _take(fetcher, cluster.brokers[1])
        fetcher.need_bytes(A, (1 << 30) + 12)
        cluster.time_s += 1.0
        fetcher.send()
    assert len(cluster.brokers[1].asked) == 4


def test_a_partition_counts_once_in_a_response(cluster: Cluster) -> None:
    fetcher, name = _fetcher(cluster), b"\0\x01a"
    part = struct.pack(">ihqqqiii", 0, 0, 9, 9, 0, 0, -1, len(_records(5))) + _records(5)
    frame = struct.pack(">iihii", 0, 0, 0, 0, 1) + name + struct.pack(">i", 2) + part * 2
    cluster.brokers[1].answers.append(frame)
    assert len(_take(fetcher, cluster.brokers[1])) <= 1


@pytest.mark.parametrize(
    ("log", "truth", "held"),
    [
        pytest.param(("X", 6), ("X", 7), True, id="another leader since"),
        pytest.param(("W", 7), ("X", 7), True, id="another topic since"),
        pytest.param(("X", 8), ("X", 8), False, id="this metadata is older"),
        pytest.param(("Y", 7), ("Y", 7), False, id="so is this"),
        pytest.param(("X", 7), ("X", 7), False, id="both know the same"),
    ],
)
def test_what_another_fetcher_has_begun_is_held_if_its_log_has_changed_since(
    cluster: Cluster, log: tuple[str, int], truth: tuple[str, int], held: bool
) -> None:
    """Both have metadata of their own: which is the newer one is not known before the next."""

    def metadata(topic_id: str, epoch: int) -> dict[TopicPartition, Any]:
        cluster.topic_ids = {"a": topic_id}
        return cluster._leaders({B: 2}) | {A: SimpleNamespace(node=1, epoch=epoch, fencing=epoch)}

    fetcher, other = (
        Fetcher(one, FetchSettings(), holds=True, clock=lambda: cluster.time_s)  # type: ignore[arg-type]
        for one in (cluster, Cluster())
    )
    cluster.leaders, cluster.topics = metadata("X", 7), {"b"}  # type: ignore[attr-defined]
    fetcher.assign(B, 5)
    fetcher.release(B, 5, ("", 0))
    fetcher.send()
    other.assign(A, 5)
    other.release(A, 5, log)
    fetcher.take_from(other)
    cluster.stale = False  # the search takes a while
    fetcher.send()
    assert fetcher.held == []
    asked = cluster.brokers[1].asked
    assert asked == ([] if log != ("X", 7) else [[A]])
    cluster.next_leaders, cluster.stale = metadata(*truth), True
    fetcher.send()
    assert fetcher.held == ([A] if held else [])
    assert asked == ([] if held else [[A]])
    assert cluster.brokers[2].asked == [[B]]


@pytest.mark.parametrize("recreated", [False, True])
def test_after_a_long_pause_new_metadata_decides_before_anything_is_asked_for(
    cluster: Cluster, recreated: bool
) -> None:
    """A topic that was recreated meanwhile, and filled, would be read from the middle."""
    cluster.topic_ids = {"a": "X", "b": "Z"}
    cluster.leaders = cluster._leaders({A: 1, B: 2})
    fetcher = Fetcher(cluster, FetchSettings(), holds=True, clock=lambda: cluster.time_s)  # type: ignore[arg-type]
    for tp in (A, B):
        fetcher.assign(tp, 5)
        fetcher.release(tp, 5, (cluster.topic_ids[tp.topic], 0))
    fetcher.send()
    one, two = cluster.brokers[1], cluster.brokers[2]
    for broker, tp in ((one, A), (two, B)):
        broker.answer({tp: (0, b"")})
        _take(fetcher, broker)
    cluster.time_s += 60.0
    fetcher.await_metadata()
    assert cluster.stale
    cluster.stale = False  # it is far away
    fetcher.send()
    assert (one.asked, two.asked, fetcher.held) == ([[A]], [[B]], [])
    cluster.stale = True
    cluster.topic_ids["a"] = "Y" if recreated else "X"
    fetcher.send()
    assert fetcher.held == ([A] if recreated else [])
    assert (len(one.asked), len(two.asked)) == (1 if recreated else 2, 2)
