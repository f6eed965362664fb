"""Connections to coordinators: one per group, given back, forgotten, closed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.errors import PartitionError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from sparkmirror.wire.net.connection import ConnectionLost

CLIENT = ClusterClient("A", ("a:9092",), "t", retry_backoff_ms=1)
TP = TopicPartition("t", 0)
NOT_COORDINATOR, INVALID_REQUEST = 16, 42


class Broker:
    """A connection whose broker coordinates every group. ``answer``: to all but the lookup."""

    host, port = "a", 9092
    login_due = False

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.socket = SimpleNamespace(settimeout=lambda _: None)
        self.closed = self.lookups = 0
        self._answer = answer

    def request(self, message: Any, **_: int) -> Any:
        if message.name == "FindCoordinatorRequest":
            self.lookups += 1
            return SimpleNamespace(error_code=0, host=self.host, port=self.port)
        return self._answer()

    def hung_up(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed += 1


class World:
    """``codes``: what the coordinator answers, 0 at last; None breaks the connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *codes: int | None) -> None:
        self._codes = list(codes)
        self.opened: list[Broker] = []
        self.connections = ClusterConnections(CLIENT)
        monkeypatch.setattr(self.connections, "_connect", self._connect)
        self.coordinators = Coordinators(self.connections)

    def _connect(self, _address: object) -> Broker:
        self.opened.append(Broker(self._respond))
        return self.opened[-1]

    def _respond(self) -> Any:
        code = self._codes.pop(0) if self._codes else 0
        if code is None:
            raise ConnectionLost("gone")
        part = SimpleNamespace(
            partition_index=0, error_code=code, committed_offset=7, committed_leader_epoch=3,
            metadata="m",
        )  # fmt: skip
        topics = [SimpleNamespace(name="t", partitions=[part])]
        return SimpleNamespace(error_code=0, topics=topics)

    @property
    def lookups(self) -> int:
        return sum(one.lookups for one in self.opened)


@pytest.fixture(params=[NOT_COORDINATOR, None], ids=["moved", "lost"])
def restless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    """Its coordinator moves, or its connection breaks, at the first request."""
    return World(monkeypatch, request.param)


def test_a_coordinator_is_looked_up_once_for_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert world.coordinators.committed("g", [TP]) == {TP: (7, "m")}
    assert world.coordinators.positions("g", [TP])[TP].leader_epoch == 3
    assert world.lookups == 1
    world.coordinators.positions("h", [TP])
    assert world.lookups == 2, "another group, another coordinator"


def test_a_coordinator_that_moves_or_is_lost_is_looked_up_again(restless: World) -> None:
    assert restless.coordinators.committed("g", [TP]) == {TP: (7, "m")}
    assert restless.lookups == 2
    assert restless.opened[0].closed


def test_what_no_retry_cures_is_an_error_and_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, INVALID_REQUEST)
    with pytest.raises(PartitionError, match="INVALID_REQUEST"):
        world.coordinators.positions("g", [TP])
    assert all(one.closed for one in world.opened)


def test_a_released_connection_serves_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.coordinators.positions("g", [TP])
    used = world.coordinators.connection("g")
    world.coordinators.release("g")
    assert world.connections.any_connection() is used
    world.coordinators.release("g")  # there is nothing to release any more


def test_closing_closes_coordinators_and_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for group in ("g", "h"):
        world.coordinators.positions(group, [TP])
        world.coordinators.release("h")
    world.coordinators.close()
    assert all(one.closed for one in world.opened)


def test_a_large_commit_goes_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator writes each as one batch, and refuses what has more than 1 MiB."""
    world = World(monkeypatch)
    asked: list[list[tuple[int, str]]] = []
    ask = Broker.request

    def look(broker: Broker, message: Any, **more: int) -> Any:
        if message.name == "OffsetCommitRequest":
            rows = [part for topic in message.topics for part in topic.partitions]
            asked.append([(one.partition_index, one.committed_metadata) for one in rows])
        return ask(broker, message, **more)

    monkeypatch.setattr(Broker, "request", look)
    offsets = {TopicPartition("t", n): (n, "m" * 400) for n in range(5_000)}
    world.coordinators.commit("g", offsets)
    assert sorted(number for rows in asked for number, _ in rows) == list(range(5_000))
    assert max(sum(80 + len(text) for _, text in rows) for rows in asked) < 600_000
    assert 4 <= len(asked) <= 6
    asked.clear()
    world.coordinators.commit("g", {TP: (1, "m")})
    assert len(asked) == 1
