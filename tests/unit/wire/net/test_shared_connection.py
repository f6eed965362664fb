"""One connection that several threads use: who waits, who receives, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.broker_version_data import BrokerVersionData

from sparkmirror.settings import ClusterClient
from sparkmirror.wire.net.connection import Connection, ConnectionLost
from sparkmirror.wire.net.shared_connection import NoResponse, SharedConnection
from sparkmirror.wire.protocol_errors import ApiUnsupported
from tests.unit.wire.fake_broker import FakeBroker


class World:
    """A broker, a connection to it, and the answers to come; numbers are seconds of delay."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.count = 0
        self.broker = FakeBroker(self.said)
        client = ClusterClient("A", (self.broker.address,), "test", request_timeout_ms=60_000)
        self.connection = Connection("127.0.0.1", self.broker.port, client)
        self.shared = SharedConnection(self.connection)

    def said(self, *_: int) -> Any:
        answer = self.answers.pop(0) if self.answers else 0.0
        if not isinstance(answer, float):
            return answer
        time.sleep(answer)
        self.count += 1
        rows = [ListGroupsResponse.ListedGroup(group_id=f"{self.count}", protocol_type="")]
        return ListGroupsResponse(throttle_time_ms=0, error_code=0, groups=rows)

    def ask(self, timeout_s: float = 60.0) -> int:
        answer = self.shared.request(ListGroupsRequest(), time.monotonic() + timeout_s)
        return int(answer.groups[0].group_id)


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.shared.close()
    found.broker.stop()


def until_asked(world: World) -> None:
    deadline = time.monotonic() + 60
    while not world.broker.asked:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def in_threads(count: int, work: Any) -> list[Any]:
    outcomes: list[Any] = []

    def body() -> None:
        try:
            outcomes.append(work())
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=body) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


def test_each_thread_gets_its_own_response(world: World) -> None:
    world.answers = [0.05] * 12
    assert sorted(in_threads(12, world.ask)) == list(range(1, 13))
    assert world.broker.accepted == 1
    assert world.shared.in_flight == 0


def test_requests_do_not_wait_for_the_responses_before_them(world: World) -> None:
    world.answers = [0.3]
    first = world.shared.begin(ListGroupsRequest(), time.monotonic() + 5)
    second = world.shared.begin(ListGroupsRequest(), time.monotonic() + 5)
    assert world.shared.in_flight == 2
    numbers = [
        world.shared.finish(one, time.monotonic() + 5).groups[0].group_id for one in (second, first)
    ]
    assert numbers == ["2", "1"]


def test_a_late_response_ends_the_connection_for_all(world: World) -> None:
    world.answers = [...] * 9
    began_s = time.monotonic()
    outcomes = in_threads(3, lambda: world.ask(0.3))
    assert time.monotonic() - began_s < 15
    assert all(isinstance(one, ConnectionLost) for one in outcomes)
    assert any(isinstance(one, NoResponse) for one in outcomes)
    assert not world.shared.usable()
    with pytest.raises(ConnectionLost):
        world.ask()


def test_whoever_has_less_time_does_not_keep_the_others_from_receiving(world: World) -> None:
    world.answers = [0.4]
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(world.ask()))
    thread.start()
    until_asked(world)
    assert world.ask() == 2
    thread.join(60)
    assert outcomes == [1]


def test_a_broker_that_hangs_up_fails_all_at_once(world: World) -> None:
    world.answers = [...] * 9
    threading.Timer(0.2, world.broker.hang_up).start()
    began_s = time.monotonic()
    outcomes = in_threads(4, world.ask)
    assert time.monotonic() - began_s < 15
    assert {type(one) for one in outcomes} == {ConnectionLost}


def test_a_throttle_ends_a_connection_that_does_not_pause(world: World) -> None:
    """Who waits on it learns that at once: the broker would answer when the pause is over."""
    world.shared = SharedConnection(world.connection, ends_throttled=True)
    throttled = ListGroupsResponse(throttle_time_ms=600_000, error_code=0, groups=[])
    world.answers = [throttled, ...]
    first, second = (
        world.shared.begin(ListGroupsRequest(), time.monotonic() + 60) for _ in range(2)
    )
    assert world.shared.finish(first, time.monotonic() + 60).groups == []
    with pytest.raises(ConnectionLost, match="the broker throttles this client"):
        world.shared.finish(second, time.monotonic() + 60)
    assert not world.shared.usable()
    assert world.shared.fileno() == -1


def test_closing_wakes_who_waits_and_frees_the_descriptor(world: World) -> None:
    world.answers = [...] * 9
    threading.Timer(0.2, world.shared.close).start()
    (outcome,) = in_threads(1, world.ask)
    assert "the connection was closed" in str(outcome)
    assert world.shared.fileno() == -1


def test_an_idle_connection_that_the_broker_closed_is_not_usable(world: World) -> None:
    world.ask()
    assert world.shared.usable()
    world.broker.hang_up()
    deadline = time.monotonic() + 5
    while world.shared.usable() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not world.shared.usable()
    assert world.shared.fileno() == -1


def test_a_connection_that_was_idle_for_long_is_given_up(world: World) -> None:
    world.connection.last_used -= 600
    assert not world.shared.usable()


def test_before_a_new_login_all_responses_arrive(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-368: nothing else may be in flight during the exchange."""
    logins: list[int] = []
    world.answers = [0.3]
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(world.ask()))
    thread.start()
    until_asked(world)
    world.connection._login_at = time.monotonic() - 1

    def authenticated() -> None:
        logins.append(world.shared.in_flight)
        world.connection._login_at = time.monotonic() + 60

    monkeypatch.setattr(world.connection, "_authenticate", authenticated)
    assert world.ask() == 2
    thread.join(60)
    assert outcomes == [1]
    assert logins == [0]


def test_a_new_login_that_fails_ends_the_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise ConnectionLost("logging in again: refused")

    world.connection._login_at = time.monotonic() - 1
    monkeypatch.setattr(world.connection, "_authenticate", refused)
    with pytest.raises(ConnectionLost, match="logging in again"):
        world.ask()
    assert not world.shared.usable()


@pytest.mark.parametrize(
    ("offered", "bounds", "chosen"),
    [
        ((0, 5), {}, 5),  # both sides know it
        ((0, 99), {}, ListGroupsRequest.max_version),
        ((0, 5), {"max_version": 3}, 3),
        ((2, 5), {"min_version": 4}, 5),
        ((0, 3), {"min_version": 4}, None),
        ((4, 5), {"max_version": 3}, None),
        ((99, 99), {}, None),
        (None, {}, None),
    ],
)
def test_the_version_is_the_highest_that_broker_and_request_allow(
    offered: tuple[int, int] | None, bounds: dict[str, int], chosen: int | None
) -> None:
    api_versions = {} if offered is None else {ListGroupsRequest.API_KEY: offered}
    connection: Any = SimpleNamespace(host="e", port=9092, api_versions=api_versions)
    shared = SharedConnection(connection)
    message = ListGroupsRequest(**bounds)
    if chosen is None:
        with pytest.raises(ApiUnsupported, match="ListGroupsRequest"):
            shared._version(message)
    else:
        assert shared._version(message) == chosen
        assert BrokerVersionData(api_versions=api_versions).api_version(message) == chosen
