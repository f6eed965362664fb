"""Requests that wait for new records: at each leader one, wherever the leaders are by now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.protocol.consumer import FetchResponse

from sparkmirror.errors import Unsupported
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin.error_translation import translated
from sparkmirror.wire.admin.long_polls import LongPolls
from tests.unit.wire.fake_broker import FakeBroker, metadata

FETCH, METADATA = 1, 3
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class World:
    """Two brokers; each has answers to Fetch, and waits a moment when it has none."""

    def __init__(self) -> None:
        self.answers: dict[int, list[Callable[[], Any]]] = {0: [], 1: []}
        self.leaders = {("t", 0): 0, ("t", 1): 1}
        self.nodes = {
            node: FakeBroker(lambda *asked, node=node: self.said(node, *asked)) for node in (0, 1)
        }
        servers = tuple(broker.address for broker in self.nodes.values())
        self.client = ClusterClient(
            "A", servers, "test", request_timeout_ms=2_000, retry_backoff_ms=10
        )
        self.polls = LongPolls(self.client, 1 << 20)

    def said(self, node: int, key: int, _version: int) -> Any:
        if key == METADATA:
            return metadata(self.nodes, self.leaders)
        answers = self.answers[node]
        if answers:
            return answers.pop(0)()
        time.sleep(0.2)
        return fetched()

    def stop(self) -> None:
        self.polls.close()
        for broker in self.nodes.values():
            broker.stop()


def fetched(tp: TopicPartition | None = None, code: int = 0) -> Any:
    """An empty answer, or one with the partition ``tp``."""
    topic = FetchResponse.FetchableTopicResponse
    part = topic.PartitionData
    rows = []
    if tp is not None:
        rows = [
            topic(
                topic=tp.topic,
                partitions=[
                    part(
                        partition_index=tp.partition, error_code=code, high_watermark=1,
                        last_stable_offset=1, log_start_offset=0, aborted_transactions=None,
                        preferred_read_replica=-1, records=b"",
                    )
                ],
            )
        ]  # fmt: skip
    return FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=rows)


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.stop()


def polled(world: World, timeout_ms: int = 60_000) -> list[TopicPartition]:
    """The partitions of the first answer that has some."""
    deadline = time.monotonic() + timeout_ms / 1000
    while time.monotonic() < deadline:
        answers = world.polls.responses({T0: 0, T1: 0}, 100)
        found = [
            TopicPartition(topic.topic, part.partition_index)
            for answer in answers
            for topic in answer.responses
            for part in topic.partitions
        ]
        if found:
            return found
    return []


def test_whichever_leader_has_records_first_is_heard_at_once(world: World) -> None:
    heard = threading.Event()

    def later() -> Any:
        heard.wait(60)
        return fetched()

    world.answers = {0: [later], 1: [lambda: fetched(T1)]}
    assert polled(world) == [T1]
    heard.set()
    world.answers[0] = [lambda: fetched(T0)]
    assert polled(world) == [T0]
    assert [broker.accepted for broker in world.nodes.values()] == [1, 1]


def test_without_news_it_waits_as_long_as_it_was_told(world: World) -> None:
    polled(world, 100)
    world.answers = {0: [lambda: ...] * 99, 1: [lambda: ...] * 99}
    polled(world, 300)
    took = []
    for _ in range(5):
        began_s = time.monotonic()
        assert world.polls.responses({T0: 0, T1: 0}, 200) == []
        took.append(time.monotonic() - began_s)
    assert 0.15 < min(took) < 1


def test_a_leader_that_moved_is_found(world: World) -> None:
    world.leaders["t", 0] = 1
    world.answers[1] = [fetched, lambda: fetched(T0, 6)]
    assert T0 in polled(world)
    world.leaders["t", 0] = 0
    world.answers[0] = [lambda: fetched(T0)]
    world.polls.look_again()
    assert polled(world) == [T0]


def test_a_broker_that_ends_its_connections_is_asked_again(world: World) -> None:
    polled(world, 100)
    for broker in world.nodes.values():
        broker.hang_up()
    # A request that had come before may take the first answer down with its connection.
    world.answers[0] = [lambda: fetched(T0)] * 2
    assert polled(world) == [T0]


def test_a_broker_that_hangs_is_left(world: World) -> None:
    world.answers[0] = [lambda: ...]
    world.leaders = {("t", 0): 0, ("t", 1): 0}
    assert polled(world, 3_000) == []
    world.answers[0] = [lambda: fetched(T0)]
    assert polled(world) == [T0]


def test_a_cluster_that_is_away_is_no_error(world: World) -> None:
    polled(world, 100)
    for broker in world.nodes.values():
        broker.stop()
    began_s = time.monotonic()
    assert world.polls.responses({T0: 0, T1: 0}, 50) == []
    assert time.monotonic() - began_s < 20


def test_a_partition_without_a_leader_is_waited_for(world: World) -> None:
    world.leaders["t", 0] = -1
    world.answers[1] = [lambda: fetched(T1)]
    assert polled(world) == [T1]
    world.leaders["t", 0] = 0
    world.answers[0] = [lambda: fetched(T0)]
    assert polled(world) == [T0]


def test_a_broker_without_fetch_is_named(world: World) -> None:
    for broker in world.nodes.values():
        del broker.versions[FETCH]
    with (
        pytest.raises(Unsupported, match="FetchRequest"),
        translated(world.client, "reading"),
    ):
        world.polls.responses({T0: 0}, 100)
