"""Leaders and connections of a cluster, with brokers that speak on real sockets."""

from __future__ import annotations

import itertools
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse

from sparkmirror.errors import Unreachable, Unsupported
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster import attempts
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.metadata import Leader, split_address
from sparkmirror.wire.net.connection import Connection, ConnectionLost

HOST = "127.0.0.1"
TOPIC_ID = "0f4a5a8e-64c7-4d7e-8a15-2f2f0a7ad2a1"
API_VERSIONS, METADATA = 18, 3
CLIENT = ClusterClient(
    "A", (), "t", request_timeout_ms=10_000, connect_timeout_ms=10_000,
    reconnect_backoff_ms=1_000, reconnect_backoff_ms_max=3_000, retry_backoff_ms=500,
    metadata_age_ms_max=60_000,
)  # fmt: skip


class FakeBroker:
    """Answers ApiVersions, and Metadata with ``metadata()``; hangs up instead of a None.

    ``highest``: the newest version of Metadata that it knows.
    """

    highest = 12

    def __init__(self, metadata: Callable[[], MetadataResponse | None]) -> None:
        self._metadata = metadata
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self.asked = 0
        self.accepted = 0
        self.topics: list[list[str]] = []
        self._peers: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            self.accepted += 1
            self._peers.append(peer)
            thread = threading.Thread(target=self._serve, args=(peer,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        with suppress(OSError), peer, peer.makefile("rb") as stream:
            while head := stream.read(4):
                request = stream.read(struct.unpack(">i", head)[0])
                key, version, correlation = struct.unpack_from(">hhi", request)
                response: Any
                if key == API_VERSIONS:
                    row = ApiVersionsResponse.ApiVersion
                    keys = [row(api_key=METADATA, min_version=0, max_version=self.highest)]
                    response = ApiVersionsResponse(error_code=0, api_keys=keys)
                else:
                    self.asked += 1
                    message = MetadataRequest.decode(request, version=version, header=True)
                    self.topics.append([one.name for one in message.topics])
                    response = self._metadata()
                if response is None:
                    return
                tags = b"\0" if key != API_VERSIONS and version >= 9 else b""
                body = struct.pack(">i", correlation) + tags + bytes(response.encode(version))
                peer.sendall(struct.pack(">i", len(body)) + body)

    def hang_up(self) -> None:
        for peer in self._peers:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@dataclass
class World:
    """Two brokers, what they say, and the time. Without ``answers`` they hang at Metadata."""

    one: FakeBroker
    two: FakeBroker
    says: dict[str, Any]
    answers: threading.Event = field(default_factory=threading.Event)
    now: float = 100.0

    def connections(self, *bootstrap: str, **more: Any) -> ClusterConnections:
        client = replace(CLIENT, bootstrap_servers=bootstrap or (self.one.address,), **more)
        return ClusterConnections(client, ["t"], clock=lambda: self.now)


def metadata(
    nodes: dict[int, int],
    leaders: dict[int, tuple[int, int, int]],
    topic_id: str = TOPIC_ID,
    code: int = 0,
) -> MetadataResponse:
    """``nodes``: ports by id; ``leaders``: (leader, epoch, error code) of partitions of ``t``;
    ``code``: of the topic itself.
    """
    topics = MetadataResponse.MetadataResponseTopic
    rows = [
        topics.MetadataResponsePartition(
            error_code=code, partition_index=number, leader_id=leader, leader_epoch=epoch,
            replica_nodes=[], isr_nodes=[], offline_replicas=[],
        )
        for number, (leader, epoch, code) in leaders.items()
    ]  # fmt: skip
    broker = MetadataResponse.MetadataResponseBroker
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[broker(node_id=n, host=HOST, port=port, rack=None) for n, port in nodes.items()],
        cluster_id="cluster",
        controller_id=1,
        topics=[topics(error_code=code, name="t", topic_id=topic_id, is_internal=False,
                       partitions=rows)],
    )  # fmt: skip


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


@pytest.fixture
def world() -> Iterator[World]:
    says: dict[str, Any] = {}
    answers = threading.Event()
    answers.set()

    def said() -> MetadataResponse | None:
        answers.wait(20)
        found: MetadataResponse | None = says["metadata"]
        return found

    one, two = (FakeBroker(said) for _ in range(2))
    says["metadata"] = metadata({1: one.port, 2: two.port}, {0: (1, 3, 0), 1: (2, 5, 0)})
    with ExitStack() as stack:
        stack.callback(one.stop)
        stack.callback(two.stop)
        stack.callback(answers.set)
        yield World(one, two, says, answers)


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port that nothing listens on, and that nobody else is given meanwhile."""
    with socket.socket() as held:
        held.bind((HOST, 0))
        yield int(held.getsockname()[1])


@pytest.mark.parametrize(
    ("address", "parts"),
    [("h:1", ("h", 1)), ("[::1]:9092", ("::1", 9092)), ("fe80::1%eth0:9", ("fe80::1%eth0", 9))],
)
def test_an_address_ends_with_its_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


def test_metadata_says_who_leads_and_which_topic_it_is(world: World) -> None:
    known = world.connections()
    world.says["metadata"] = metadata(
        {1: world.one.port}, {0: (1, 3, 0), 1: (-1, 4, 5), 2: (2, 9, 0), 3: (1, 7, 9)}
    )
    assert (known.reachable, known.generation) == (False, 0)
    known.refresh()
    assert known.leaders == {tp(0): Leader(1, 3), tp(3): Leader(1, 7)}
    # The second has none; the third's is no broker that the answer knows.
    assert known.leaderless == {tp(1): 5, tp(2): 5}
    assert known.topic_ids == {"t": TOPIC_ID}
    assert (known.cluster_id, known.reachable, known.generation) == ("cluster", True, 1)
    world.says["metadata"] = metadata(
        {1: world.one.port}, {0: (1, 4, 0)}, "00000000-0000-0000-0000-000000000000"
    )
    known.refresh()
    assert known.leaders == {tp(0): Leader(1, 4)}
    assert (known.leaderless, known.topic_ids, known.generation) == ({}, {}, 2)
    assert known.topic_errors == {}
    world.says["metadata"] = metadata({1: world.one.port}, {}, code=29)
    known.refresh()
    assert (known.leaders, known.topic_errors) == ({}, {"t": 29})
    world.says["metadata"] = metadata({1: world.one.port}, {0: (1, 4, 0)})
    known.refresh({"t"})
    assert known.topic_errors == {}


def test_metadata_is_asked_for_when_it_is_due(world: World) -> None:
    known = world.connections()
    assert known.refresh_if_due()
    assert not known.refresh_if_due()
    world.now += 59
    assert not known.refresh_if_due()
    world.now += 1
    assert refreshed(known), "it is old"
    known.mark_stale()
    world.now += 0.4
    assert not known.refresh_if_due(), "the back-off is not over"
    world.now += 0.1
    assert refreshed(known)
    world.now += 1
    assert not known.refresh_if_due(), "nothing is stale"
    known.add_topics(["t"])
    assert not known.refresh_if_due(), "no new one"
    known.add_topics(["u"])
    assert refreshed(known)
    assert world.one.asked + world.two.asked == known.generation == 4


def refreshed(known: ClusterConnections) -> bool:
    """`ClusterConnections.refresh_if_due`, with the answer to what it asks."""
    if known.refresh_if_due():
        return True
    deadline = time.monotonic() + 10
    while known._requests.refresh is not None and time.monotonic() < deadline:
        if known.refresh_if_due():
            return True
        time.sleep(0.001)
    search = known._requests.search
    return search is not None and search.connection.readable(10) and known.refresh_if_due()


def _looks(world: World, known: ClusterConnections, seconds: float) -> list[float]:
    """When metadata came in while somebody wants to know who leads the first partition."""
    found, began = [], world.now
    while world.now < began + seconds:
        if tp(0) not in known.leaders:
            known.mark_stale(tp(0))
        if refreshed(known):
            found.append(round(world.now - began, 1))
        world.now += 0.1
    return found


def test_a_partition_without_leader_is_asked_about_less_and_less_often(world: World) -> None:
    known = world.connections(retry_backoff_ms=100, metadata_age_ms_max=600_000)
    world.says["metadata"] = metadata({1: world.one.port}, {0: (-1, 3, 5), 1: (1, 3, 0)})
    known.refresh()
    world.now += 0.2
    looks = _looks(world, known, 60)
    assert looks[0] == 0, "most elections take a moment"
    assert len([at for at in looks if at < 10]) <= 8
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert all(first <= second + 0.2 for first, second in itertools.pairwise(pauses))
    assert all(4.9 <= pause <= 5.3 for pause in pauses[6:])
    assert len(pauses) > 10
    world.says["metadata"] = metadata({1: world.one.port}, {0: (1, 4, 0), 1: (1, 3, 0)})
    assert _looks(world, known, 5.2) != []
    assert known.leaders == {tp(0): Leader(1, 4), tp(1): Leader(1, 3)}
    assert known.leaderless == {}
    world.now += 20
    assert not known.refresh_if_due(), "nobody wants to know"
    known.mark_stale(tp(0))
    assert refreshed(known), "and now at once"
    known.close()


def test_a_leader_that_denies_it_is_looked_for_at_once_whoever_else_is_missing(
    world: World,
) -> None:
    known = world.connections()
    ports = {1: world.one.port, 2: world.two.port}
    world.says["metadata"] = metadata(ports, {0: (-1, 3, 5), 1: (1, 3, 0)})
    known.refresh()
    _looks(world, known, 30)
    for epoch in range(4, 8):
        world.now += 0.5
        world.says["metadata"] = metadata(ports, {0: (-1, 3, 5), 1: (2, epoch, 0)})
        known.mark_stale(tp(1))
        assert refreshed(known)
        assert known.leaders[tp(1)] == Leader(2, epoch)
    # Where metadata goes on naming the one that denies it, there is no hurry.
    asked = sum(bool(known.mark_stale(tp(1)) or refreshed(known)) for _ in _seconds(world))
    assert 3 <= asked <= 8
    known.close()


def _seconds(world: World) -> Iterator[None]:
    for _ in range(20):
        world.now += 1
        yield


def test_searches_ask_for_their_topics_alone_over_one_connection(world: World) -> None:
    known = world.connections()
    known.add_topics(["u", "v"])
    world.says["metadata"] = metadata({1: world.one.port}, {0: (-1, 3, 5)})
    known.refresh()
    known.leaders[TopicPartition("u", 0)] = Leader(1, 1)
    known.leaderless[TopicPartition("v", 0)] = 5
    known.topic_ids["u"] = "id"
    connections = world.one.accepted + world.two.accepted
    looks = _looks(world, known, 40)
    assert len(looks) > 8
    assert world.one.topics[-1] == ["t"]
    assert known.leaders == {TopicPartition("u", 0): Leader(1, 1)}, "of others nothing was said"
    assert known.leaderless == {TopicPartition("v", 0): 5, tp(0): 5}
    assert known.topic_ids == {"u": "id", "t": TOPIC_ID}
    assert world.one.accepted + world.two.accepted == connections == 1
    # A broker that has closed it, or is left alone, costs no look.
    kept = known._requests._kept
    assert kept is not None
    world.one.hang_up()
    assert kept.readable(10)
    assert len(_looks(world, known, 5.2)) == 1
    assert known.reachable
    broken = _connected(known, 1)
    assert broken is not None
    again = known._requests._kept
    assert again is not None
    known.drop(broken)
    assert again.socket.fileno() == -1
    known.close()


def _searching(world: World) -> ClusterConnections:
    """A search for the first partition's leader is on its way, and its broker hangs."""
    known = world.connections()
    world.says["metadata"] = metadata({1: world.one.port}, {0: (-1, 3, 5), 1: (1, 3, 0)})
    known.refresh()
    _looks(world, known, 20)
    assert known._requests.search is None
    world.answers.clear()
    world.now += 6
    known.mark_stale(tp(0))
    assert not known.refresh_if_due()
    assert known._requests.search is not None
    return known


def test_a_search_keeps_nobody_waiting_for_a_broker_that_is_far_or_hangs(world: World) -> None:
    known = _searching(world)
    asked, began = world.one.asked, time.monotonic()
    for _ in range(90):
        known.mark_stale(tp(0))
        assert not known.refresh_if_due()
        assert time.monotonic() - began < 5
        world.now += 0.1
    assert known.leaders == {tp(1): Leader(1, 3)}
    assert _connected(known, 1) is not None, "what else there is to do goes on"
    world.says["metadata"] = metadata({1: world.one.port}, {0: (1, 4, 0), 1: (1, 3, 0)})
    world.answers.set()
    assert refreshed(known)
    assert known.leaders == {tp(0): Leader(1, 4), tp(1): Leader(1, 3)}
    assert world.one.asked <= asked + 1, "one question at a time"
    known.close()


def test_a_search_without_an_answer_is_given_up(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    known = _searching(world)
    search = known._requests.search
    assert search is not None
    world.now += 10
    with caplog.at_level(logging.WARNING):
        assert not known.refresh_if_due()
    assert "no response to Metadata in time" in caplog.text
    assert (known._requests.search, known.reachable) == (None, False)
    assert search.connection.socket.fileno() == -1
    assert known.connection(1) is None, "others are asked before this one"
    world.answers.set()
    world.now += 1
    assert refreshed(known)
    assert known.reachable
    known.close()


def test_what_came_in_meanwhile_is_not_replaced_by_a_late_answer(world: World) -> None:
    known = _searching(world)
    search = known._requests.search
    assert search is not None
    known.generation += 1
    known.leaders[tp(0)] = Leader(1, 9)
    world.answers.set()
    assert search.connection.readable(10)
    assert not known.refresh_if_due()
    assert known.leaders[tp(0)] == Leader(1, 9)
    again = known._requests.search
    assert again is not None, "it is asked for once more"
    assert again is not search
    assert again.connection is search.connection
    known.close()


@pytest.mark.parametrize("all_of_them", [True, False])
def test_metadata_from_before_leaders_were_forgotten_says_nothing_of_them(
    world: World, all_of_them: bool
) -> None:
    """It may have waited in the socket, or for a far broker, throughout a pause."""
    known = world.connections()
    known.refresh()
    known.mark_stale()
    world.now += 1
    world.answers.clear()
    while (refresh := known._requests.refresh) is None or refresh.search is None:
        assert not known.refresh_if_due()
    world.answers.set()
    assert refresh.search.connection.readable(10)
    known.forget_leaders(None if all_of_them else [tp(0)])
    left = {} if all_of_them else {tp(1): Leader(2, 5)}
    assert known.leaders == left
    assert not known.refresh_if_due()
    assert known.leaders == left
    ports = {1: world.one.port, 2: world.two.port}
    world.says["metadata"] = metadata(ports, {0: (2, 4, 0), 1: (1, 6, 0)})
    assert refreshed(known), "it is asked for again"
    assert known.leaders == {tp(0): Leader(2, 4), tp(1): Leader(1, 6)}
    known.close()


@pytest.mark.parametrize("topic_id", [TOPIC_ID, TOPIC_ID.replace("0f4a", "1f4a")])
def test_leaders_that_were_forgotten_still_outdate_older_metadata(
    world: World, topic_id: str
) -> None:
    """A broker that is cut off from its controller may be the one that is asked."""
    known = world.connections()
    known.refresh()
    known.forget_leaders()
    ports = {1: world.one.port, 2: world.two.port}
    world.says["metadata"] = metadata(ports, {0: (2, 2, 0), 1: (1, 6, 0)}, topic_id)
    known.refresh({"t"})
    newer = Leader(1, 3) if topic_id == TOPIC_ID else Leader(2, 2)
    assert known.leaders == {tp(0): newer, tp(1): Leader(1, 6)}
    world.says["metadata"] = metadata(ports, {0: (-1, 4, 5)}, topic_id)
    known.refresh()
    world.says["metadata"] = metadata(ports, {0: (2, 2, 0)}, topic_id)
    known.refresh()
    assert known.leaders == {tp(0): Leader(2, 2)}, "only the first one is compared"
    known.close()


def test_before_the_first_metadata_there_is_nothing_to_forget(world: World) -> None:
    known = world.connections()
    known.forget_leaders()
    assert known.refresh_if_due(), "the first one is waited for"
    known.close()


@pytest.mark.parametrize("closes", [True, False])
def test_a_search_ends_with_its_brokers_connections(world: World, closes: bool) -> None:
    known = _searching(world)
    search, other = known._requests.search, _connected(known, 1)
    assert search is not None
    assert other is not None
    if closes:
        known.close()
    else:
        known.drop(other)
    assert search.connection.socket.fileno() == -1
    known.close()


def test_a_cluster_that_is_away_is_logged_and_tried_after_the_back_off(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    known = world.connections()
    known.refresh()
    world.says["metadata"] = None
    known.mark_stale()
    world.now += 1
    with caplog.at_level(logging.WARNING):
        assert not refreshed(known)
    assert "metadata of cluster A: cluster A: the connection was lost" in caplog.text
    assert not known.reachable
    assert known.leaders[tp(0)] == Leader(1, 3), "what was known still helps"
    asked = world.one.asked + world.two.asked
    world.now += 0.4
    assert not known.refresh_if_due()
    assert world.one.asked + world.two.asked == asked, "not before the back-off"
    world.says["metadata"] = metadata({1: world.one.port}, {})
    world.now += 0.1
    assert refreshed(known)
    assert known.reachable


def test_a_cluster_none_of_whose_brokers_lets_in_is_away_before_all_were_tried(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are tried one after the other: many take longer than a partition is waited for."""
    known = world.connections()
    known.refresh()
    connect, opened = known._connect, threading.Event()

    def late(address: tuple[str, int]) -> Connection:
        opened.wait(20)
        return connect(address)

    monkeypatch.setattr(known, "_connect", late)
    known.idle.close()
    known.mark_stale()
    world.now += 1
    assert not known.refresh_if_due()
    world.now += known.client.connect_timeout_ms / 1000 - 0.1
    assert not known.refresh_if_due()
    assert known.reachable, "it may just be far"
    world.now += 0.2
    assert not known.refresh_if_due()
    assert known._requests.refresh is not None, "the same refresh is under way"
    assert not known.reachable
    opened.set()
    assert refreshed(known)
    assert known.reachable


def _connected(known: ClusterConnections, node: int) -> Connection | None:
    """`ClusterConnections.connection`, however long a busy machine takes to open it."""
    connection = known.connection(node)
    while connection is None and known.connecting(node):
        time.sleep(0.01)
        connection = known.connection(node)
    return connection


def test_what_lasts_is_logged_again_after_ten_seconds(
    world: World, nobody: int, caplog: pytest.LogCaptureFixture
) -> None:
    known = world.connections()
    known.refresh()
    world.says["metadata"] = None
    known.mark_stale()
    for _ in range(16):
        world.now += 1
        assert not refreshed(known)
    assert caplog.text.count("metadata of cluster A") == 2
    world.says["metadata"] = metadata({1: world.one.port, 2: nobody}, {0: (2, 1, 0)})
    world.now += 1
    assert refreshed(known)
    caplog.clear()
    for _ in range(2):
        assert known.query_leaders([tp(0)], lambda *_: {}) == {}
        assert _connected(known, 2) is None
        world.now += 1.5
    assert caplog.text.count("cannot connect") == 1
    world.now += 2.5  # the longest pause after the second try
    world.says["metadata"] = metadata({1: world.one.port, 2: world.two.port}, {})
    known.refresh()
    assert _connected(known, 2) is not None
    known.close()
    world.says["metadata"] = metadata({1: world.one.port, 2: nobody}, {})
    known.refresh()
    assert _connected(known, 2) is None
    assert caplog.text.count("cannot connect") == 2, "it had come back meanwhile"


def test_each_broker_gets_one_connection(world: World) -> None:
    known = world.connections()
    assert known.connection(1) is None, "nobody has told where it is"
    known.refresh()
    first, second = _connected(known, 1), _connected(known, 2)
    assert first is not None
    assert second is not None
    assert (first.port, second.port) == (world.one.port, world.two.port)
    assert known.connection(1) is first
    assert known.connection(3) is None
    known.close()
    assert first.socket.fileno() == second.socket.fileno() == -1
    again = _connected(known, 1)
    assert again is not None
    assert again is not first
    known.close()


def test_a_broker_that_refuses_is_left_alone_for_longer_and_longer(
    world: World, nobody: int
) -> None:
    known = world.connections()
    world.says["metadata"] = metadata({1: world.one.port, 2: nobody}, {})
    known.refresh()
    for shortest, longest in ((0.8, 1.2), (1.6, 2.4), (2.4, 3.6), (2.4, 3.6)):
        assert _connected(known, 2) is None
        pause = known._backoff._pauses[2][0] - world.now
        assert shortest <= pause <= longest
        # Within the pause it is not even tried: somebody who answers there now is not met.
        world.says["metadata"] = metadata({1: world.one.port, 2: world.two.port}, {})
        known.refresh()
        world.now += pause - 0.01
        assert known.connection(2) is None
        world.says["metadata"] = metadata({1: world.one.port, 2: nobody}, {})
        known.refresh()
        world.now += 0.02
    world.says["metadata"] = metadata({1: world.one.port, 2: world.two.port}, {})
    known.refresh()
    assert _connected(known, 2) is not None
    assert 2 not in known._backoff, "from now on it counts anew"
    known.close()


def test_an_attempt_that_hung_is_paid_back_with_as_much_quiet(world: World) -> None:
    known = world.connections()
    world.now += 20
    known._backoff.failed(1, began=world.now - 20)
    assert known._backoff._pauses[1] == (world.now + 20, 1.0)


def test_a_dropped_connection_is_closed_and_its_broker_left_alone(world: World) -> None:
    known = world.connections()
    known.refresh()
    lost, kept = _connected(known, 1), _connected(known, 2)
    assert lost is not None
    known.drop(lost)
    assert lost.socket.fileno() == -1
    assert known.connection(1) is None, "backing off"
    assert known.connection(2) is kept
    world.now += 1.2
    assert _connected(known, 1) is not None
    assert refreshed(known), "its partitions may have moved"
    known.close()


def test_any_broker_will_do_and_those_that_just_failed_come_last(
    world: World, nobody: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long a busy machine takes, the next one is tried only after a failure.
    monkeypatch.setattr(attempts, "_NEXT_SERVER_S", 60.0)
    known = world.connections(f"{HOST}:{nobody}", world.two.address)
    with_bootstrap = known.any_connection()
    assert with_bootstrap.port == world.two.port
    with_bootstrap.close()
    known._addresses = {1: (HOST, nobody), 2: (HOST, world.two.port)}
    known._backoff._pauses = {1: (0.0, 1.0)}
    for _ in range(8):
        found = known.any_connection()
        assert found.port == world.two.port
        found.close()
        assert known._backoff._pauses == {1: (0.0, 1.0)}, "it was not even tried"
    known._backoff.succeeded(1)
    known._addresses = {1: (HOST, nobody)}
    known.any_connection().close()
    assert list(known._backoff._pauses) == [1]


def test_when_nobody_answers_the_last_failure_is_told(nobody: int, world: World) -> None:
    with pytest.raises(Unreachable, match="cannot connect") as caught:
        world.connections(f"{HOST}:{nobody}").any_connection()
    assert caught.value.where == f"cluster A, {HOST}:{nobody}"
    assert "Check that the broker runs" in caught.value.do
    empty = ClusterConnections(replace(CLIENT, bootstrap_servers=()))
    with pytest.raises(Unreachable, match="no bootstrap server is configured") as caught:
        empty.any_connection()
    assert caught.value.where == "cluster A"


def test_each_leader_is_asked_for_its_own_and_the_others_do_not_suffer(
    world: World, nobody: int, caplog: pytest.LogCaptureFixture
) -> None:
    known = world.connections()
    ports = {1: world.one.port, 2: world.two.port, 3: nobody, 4: world.two.port}
    world.says["metadata"] = metadata(
        ports, {0: (1, 1, 0), 1: (2, 1, 0), 2: (1, 1, 0), 3: (3, 1, 0), 4: (4, 1, 0), 5: (-1, 1, 5)}
    )
    known.refresh()
    known._stale = False
    asked: list[tuple[int, list[TopicPartition]]] = []
    used: list[Connection] = []

    def ask(connection: Connection, led: list[TopicPartition]) -> dict[TopicPartition, int]:
        used.append(connection)
        asked.append((connection.port, led))
        if led == [tp(4)]:
            raise ConnectionLost("gone")
        return {one: 10 + one.partition for one in led}

    assert known.query_leaders([tp(1)], ask) == {tp(1): 11}
    found = known.query_leaders(map(tp, (4, 0, 1, 2, 3, 5, 6)), ask)
    assert found == {tp(0): 10, tp(2): 12, tp(1): 11}
    assert sorted(asked) == sorted(
        [
            (world.one.port, [tp(0), tp(2)]),
            *[(world.two.port, [tp(1)])] * 2,
            # The connection that was idle says nothing about the broker.
            *[(world.two.port, [tp(4)])] * 2,
        ]
    )
    known.close()
    assert all(one.socket.fileno() == -1 for one in used), "none is left open"
    assert "offsets of cluster A: gone" in caplog.text
    assert known._stale


def test_leaders_are_asked_side_by_side(world: World) -> None:
    """Over a long link, all of them take one round trip; over idle connections and new ones."""
    known = world.connections()
    known.refresh()
    for _ in range(2):
        meeting = threading.Barrier(2)

        def ask(
            _: Connection, led: list[TopicPartition], meeting: threading.Barrier = meeting
        ) -> dict[TopicPartition, int]:
            meeting.wait(20)
            return dict.fromkeys(led, 7)

        assert known.query_leaders([tp(0), tp(1)], ask) == {tp(0): 7, tp(1): 7}
    assert world.two.accepted == 1, "what was asked over is kept"
    known.close()


def test_an_error_of_one_question_costs_no_other_connection(world: World) -> None:
    known = world.connections()
    known.refresh()
    used: list[Connection] = []

    def ask(connection: Connection, led: list[TopicPartition]) -> dict[TopicPartition, int]:
        used.append(connection)
        if led == [tp(1)]:
            raise Unsupported("the broker is too old.")
        return {}

    with pytest.raises(Unsupported):
        known.query_leaders([tp(0), tp(1)], ask)
    assert {one.port: one.socket.fileno() >= 0 for one in used} == {
        world.one.port: True,
        world.two.port: False,
    }
    known.close()


def test_a_leader_that_a_later_answer_no_longer_names_is_not_asked(world: World) -> None:
    """The answer was about another topic; what leads this one now is not known yet."""
    known = world.connections()
    known.refresh()
    other = TopicPartition("u", 0)
    known.leaders[other] = Leader(2, 5)
    world.says["metadata"] = metadata({1: world.one.port}, {0: (1, 3, 0), 1: (1, 6, 0)})
    known.refresh({"t"})
    assert known.leaders[other] == Leader(2, 5)
    asked: list[list[TopicPartition]] = []

    def ask(_: Connection, led: list[TopicPartition]) -> dict[TopicPartition, int]:
        asked.append(led)
        return dict.fromkeys(led, 7)

    assert known.query_leaders([other, tp(0)], ask) == {tp(0): 7}
    assert asked == [[tp(0)]]
    assert known._stale, "all leaders are asked for soon"
    known.close()


def test_metadata_with_an_older_epoch_moves_no_leader(world: World) -> None:
    """A broker that is cut off from its controller goes on naming the leaders that it knows."""
    known = world.connections()
    known.refresh()
    ports = {1: world.one.port, 2: world.two.port}
    world.says["metadata"] = metadata(ports, {0: (2, 2, 0), 1: (2, 5, 0)})
    known.refresh()
    assert known.leaders[tp(0)] == Leader(1, 3)
    world.says["metadata"] = metadata(ports, {0: (-1, 2, 5), 1: (2, 5, 0)})
    known.refresh({"t"})
    assert known.leaders[tp(0)] == Leader(1, 3)
    # The known one may really lead no more, in an epoch that the cluster has lost.
    for later_s, expected in ((1.0, Leader(1, 3)), (6.0, Leader(2, 2))):
        world.now += later_s
        known.mark_stale(tp(0))
        world.says["metadata"] = metadata(ports, {0: (2, 2, 0), 1: (2, 5, 0)})
        known.refresh()
        assert known.leaders[tp(0)] == expected
    world.says["metadata"] = metadata(ports, {0: (1, 1, 0), 1: (2, 5, 0)})
    known.doubt(tp(0))  # the leader does not know the epoch
    known.refresh()
    assert known.leaders[tp(0)] == Leader(1, 1)
    # A topic that was created again begins anew, and so does one whose leader is gone.
    for there, topic_id in ((ports, "0000000" + TOPIC_ID[7:]), ({2: world.two.port}, TOPIC_ID)):
        again = world.connections()
        world.says["metadata"] = metadata(ports, {0: (1, 3, 0), 1: (2, 5, 0)})
        again.refresh()
        world.says["metadata"] = metadata(there, {0: (2, 2, 0), 1: (2, 5, 0)}, topic_id)
        again.refresh()
        assert again.leaders[tp(0)] == Leader(2, 2)
        again.close()
    known.close()


@pytest.mark.parametrize(("highest", "fencing"), [(8, -1), (9, 3)])
def test_epochs_of_old_metadata_fence_nothing(world: World, highest: int, fencing: int) -> None:
    """Before 2.4, brokers do not pass on the epochs of a reassignment; they tell changes only."""
    world.one.highest = highest
    known = world.connections()
    known.refresh()
    leader = known.leaders[tp(0)]
    assert (leader.node, leader.epoch, leader.fencing) == (1, 3, fencing)
    known.close()
