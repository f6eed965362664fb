"""One topic without a leader among many: what it costs the others, on both sides.

A broker on a real socket leads all other topics; the time is the test's.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer.transaction import InitProducerIdResponse

from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient, FetchSettings, ProduceSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.produce.producer import Producer
from tests.patience import patience
from tests.property.simulated_target import answer_frame, parse_request
from tests.unit.wire.cluster.test_cluster_connections import refreshed
from tests.unit.wire.fetch.test_fetcher import Broker as FetchBroker

HOST = "127.0.0.1"
PRODUCE, FETCH, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 3, 18, 22
VERSIONS = {PRODUCE: 8, FETCH: 11, METADATA: 8, INIT_PRODUCER_ID: 1}
MANY = tuple(f"t{number:02}" for number in range(30))
LOST = TopicPartition("lost", 0)
ALL = (LOST, *(TopicPartition(name, 0) for name in MANY))
STEP_S = 0.1


@dataclass
class Cluster:
    """One broker. ``asked``: the topics of each Metadata request, and when (``now``)."""

    now: float = 1_000.0
    leaderless: frozenset[str] = frozenset({"lost"})
    denies: frozenset[str] = frozenset()
    asked: list[tuple[float, list[str]]] = field(default_factory=list)
    accepted: int = 0
    fetched: list[TopicPartition] = field(default_factory=list)
    written: list[TopicPartition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def connections(self) -> ClusterConnections:
        client = ClusterClient("A", (f"{HOST}:{self.port}",), "c", metadata_age_ms_max=3_600_000)
        return ClusterConnections(client, {tp.topic for tp in ALL}, clock=lambda: self.now)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(ConnectionError), peer, peer.makefile("rb") as stream:
            while head := stream.read(4):
                frame = stream.read(struct.unpack(">i", head)[0])
                key, version, correlation, size = struct.unpack_from(">hhih", frame)
                body = self._answer(key, version, correlation, frame, frame[10 + size :])
                peer.sendall(struct.pack(">i", len(body)) + body)

    def _answer(self, key: int, version: int, correlation: int, frame: bytes, body: bytes) -> bytes:
        if key == FETCH:
            return self._fetch(correlation, body)
        if key == PRODUCE:
            _, batches = parse_request(struct.pack(">i", correlation) + body)
            self.written += batches
            outcomes: dict[TopicPartition, tuple[int, int] | None] = {
                tp: (6, -1) if tp.topic in self.denies else (0, 5) for tp in batches
            }
            return answer_frame(Waiting(correlation, outcomes))  # type: ignore[arg-type]
        response: Any
        if key == API_VERSIONS:
            row = ApiVersionsResponse.ApiVersion
            keys = [row(api_key=k, min_version=0, max_version=v) for k, v in VERSIONS.items()]
            response = ApiVersionsResponse(error_code=0, api_keys=keys)
        elif key == INIT_PRODUCER_ID:
            response = InitProducerIdResponse(
                throttle_time_ms=0, error_code=0, producer_id=7, producer_epoch=0
            )
        else:
            response = self._metadata(MetadataRequest.decode(frame, version=version, header=True))
        return struct.pack(">i", correlation) + bytes(response.encode(version))

    def _metadata(self, request: Any) -> MetadataResponse:
        names = [one.name for one in request.topics]
        self.asked.append((self.now, names))
        topics = MetadataResponse.MetadataResponseTopic
        rows = []
        for name in names:
            gone = name in self.leaderless
            part = topics.MetadataResponsePartition(
                error_code=5 if gone else 0, partition_index=0, leader_id=-1 if gone else 1,
                leader_epoch=0, replica_nodes=[], isr_nodes=[], offline_replicas=[],
            )  # fmt: skip
            rows.append(topics(error_code=0, name=name, is_internal=False, partitions=[part]))
        broker = MetadataResponse.MetadataResponseBroker
        return MetadataResponse(
            throttle_time_ms=0, cluster_id="c", controller_id=1, topics=rows,
            brokers=[broker(node_id=1, host=HOST, port=self.port, rack=None)],
        )  # fmt: skip

    def _fetch(self, correlation: int, body: bytes) -> bytes:
        wanted = FetchBroker(1)._wanted(body)
        parts: dict[TopicPartition, tuple[int, bytes]] = {}
        for tp in wanted:
            code = 6 if tp.topic in self.denies else 0
            parts[tp] = (code, b"" if code else encode_batch([Record(5, 1, None, b"v")]))
        self.fetched += [tp for tp, (code, _) in parts.items() if not code]
        frames = FetchBroker(1)
        frames.answer(parts, correlation=correlation)
        return bytes(frames.answers[0])

    def searches(self, since: float) -> list[list[str]]:
        return [names for at, names in self.asked if at >= since]


@dataclass
class Waiting:
    """What `answer_frame` reads."""

    correlation: int
    outcomes: dict[TopicPartition, tuple[int, int] | None]
    bad: dict[TopicPartition, list[int]] = field(default_factory=dict)


class Fetching:
    """A fetcher of everything; small sessions, so that each request lists its partitions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.connections = cluster.connections()
        # Fewer than make a fetch session: each request then lists what it wants.
        self._fetcher = Fetcher(self.connections, FetchSettings(), clock=lambda: cluster.now)
        for tp in ALL[:10]:
            self._fetcher.assign(tp, 5)

    def step(self) -> None:
        self._fetcher.send()
        if self._fetcher.waiting:
            for connection in self._fetcher.ready(10.0):
                self._fetcher.receive(connection)

    def done(self) -> list[TopicPartition]:
        found, self._cluster.fetched = self._cluster.fetched, []
        return found


class Producing:
    """A producer with a batch for each topic, again and again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.connections = cluster.connections()
        self._producer = Producer(self.connections, ProduceSettings(), clock=lambda: cluster.now)
        self._done: list[TopicPartition] = []

    def step(self) -> None:
        for tp in ALL[:10]:
            if not self._producer.backlog.waiting(tp):
                self._producer.backlog.append(
                    tp, memoryview(encode_batch([Record(0, 1, None, b"v")]))
                )
        self._done += [ack.tp for ack in self._producer.pump()]
        if any(self._producer._requests.values()):
            self._done += [ack.tp for ack in self._producer.pump(10.0)]

    def done(self) -> list[TopicPartition]:
        found, self._done = self._done, []
        return found


Side = Callable[[Cluster], Fetching | Producing]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.stop()


def _go(side: Fetching | Producing, cluster: Cluster, seconds: float) -> list[TopicPartition]:
    """What was mirrored in ``seconds``."""
    end = cluster.now + seconds
    side.done()
    while cluster.now < end:
        side.step()
        known = side.connections
        deadline = time.monotonic() + patience()
        # What is under way takes none of the test's time.
        while known._requests.refresh is not None or known.connecting(1):
            assert time.monotonic() < deadline
            known.refresh_if_due()
            time.sleep(0.001)
        search = side.connections._requests.search
        if search is not None:
            search.connection.readable(10)
        cluster.now += STEP_S
    return side.done()


@pytest.mark.parametrize("kind", [Fetching, Producing])
def test_a_topic_without_a_leader_costs_a_small_request_in_five_seconds(
    cluster: Cluster, kind: Side
) -> None:
    side = kind(cluster)
    _go(side, cluster, 10)
    accepted, began = cluster.accepted, cluster.now
    done = _go(side, cluster, 60)
    searches = cluster.searches(began)
    assert all(names == ["lost"] for names in searches), "the others are not asked about"
    assert 8 <= len(searches) <= 13
    assert cluster.accepted == accepted, "no connection is made for it"
    assert all(done.count(tp) > 100 for tp in ALL[1:10]), "the others go on meanwhile"
    assert LOST not in done
    cluster.leaderless = frozenset()
    assert LOST in _go(side, cluster, 7), "it goes on some seconds after it has a leader"
    began = cluster.now
    _go(side, cluster, 30)
    assert cluster.searches(began) == []
    side.connections.close()


@pytest.mark.parametrize("kind", [Fetching, Producing])
def test_a_leader_that_denies_it_is_looked_for_at_once(cluster: Cluster, kind: Side) -> None:
    side = kind(cluster)
    _go(side, cluster, 40)
    denied = ALL[3]
    before = cluster.now
    cluster.denies = frozenset({denied.topic})
    _go(side, cluster, 0.5)
    assert any(denied.topic in names for names in cluster.searches(before))
    _go(side, cluster, 60)
    began = cluster.now
    _go(side, cluster, 60)
    assert len(cluster.searches(began)) <= 26, "two that have no leader for long"
    cluster.denies = frozenset()
    assert denied in _go(side, cluster, 2)
    side.connections.close()


def test_hundreds_without_a_leader_are_asked_about_together(cluster: Cluster) -> None:
    connections = cluster.connections()
    cluster.leaderless = frozenset(MANY)
    connections.refresh()
    began = cluster.now
    while cluster.now < began + 60:
        for number, tp in enumerate(ALL[1:]):
            if cluster.now > began + number * 0.3:  # one after the other
                connections.mark_stale(tp)
        refreshed(connections)
        cluster.now += STEP_S
    late = cluster.searches(began + 40)
    assert len(late) <= 5
    assert all(sorted(names) == sorted(MANY) for names in late)
    connections.close()
