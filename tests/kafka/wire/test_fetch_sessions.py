"""Fetch sessions on real brokers: what is asked, what comes back, and what ends a session."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from sparkmirror.model import TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.records.header import split
from sparkmirror.records.records import decode_records
from sparkmirror.settings import ClusterClient, FetchSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.net.connection import Connection
from tests.kafka.harness.support import Sent, create_topic, produce

PARTITIONS = 300
WAIT_S = 30.0


class Reading:
    """A fetcher of all partitions of one topic, and what it has received."""

    def __init__(self, cluster: KafkaCluster, topic: str, partitions: int = PARTITIONS) -> None:
        self.cluster, self.topic, self.partitions = cluster, topic, partitions
        client = ClusterClient("A", (cluster.bootstrap_servers,), "reader")
        self.connections = ClusterConnections(client, {topic})
        self.fetcher = Fetcher(self.connections, FetchSettings(fetch_max_wait_ms=200))
        self.values: dict[int, list[bytes]] = defaultdict(list)
        self.sent = 0
        for number in range(partitions):
            self.fetcher.assign(TopicPartition(topic, number), 0)

    def produce(self, *numbers: int) -> None:
        """One more record for each of the partitions."""
        self.sent += 1
        records = [Sent(b"%d of %d" % (self.sent, n), partition=n) for n in numbers]
        produce(self.cluster, self.topic, records)

    def once(self) -> None:
        """Ask, and take in what comes until all answers are there."""
        self.fetcher.send()
        while self.fetcher.waiting:
            for connection in self.fetcher.ready(WAIT_S):
                self._take(connection)

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < deadline, dict(self.values)
            self.once()
            time.sleep(0.005)  # small answers are paced

    def _take(self, connection: Connection) -> None:
        for part in self.fetcher.receive(connection):
            offset = part.fetch_offset
            for start, end in split(part.records):
                for record in decode_records(part.records[start:end]):
                    if record.offset >= offset:
                        self.values[part.tp.partition].append(record.value or b"")
                        offset = record.offset + 1
            if offset > part.fetch_offset:
                self.fetcher.advance(part.tp, offset)

    def whole(self, *numbers: int) -> bool:
        """Whether all records of the partitions are there, in order and once."""
        wanted = {n: [b"%d of %d" % (k, n) for k in range(1, self.sent + 1)] for n in numbers}
        got = {n: self.values[n] for n in numbers}
        for number, values in got.items():
            assert values == wanted[number][: len(values)]
        return got == wanted


@pytest.fixture
def reading(cluster_a: KafkaCluster, topic_name: str) -> Iterator[Reading]:
    create_topic(cluster_a, topic_name, PARTITIONS)
    made = Reading(cluster_a, topic_name)
    made.produce(*range(PARTITIONS))
    made.until(lambda: made.whole(*range(PARTITIONS)))
    yield made
    made.connections.close()


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each request and answer from now on, in turns."""
    found: list[int] = []
    send, receive = Connection.send_frame, Connection.receive_available

    def sending(self: Connection, parts: list[bytes], size: int) -> None:
        found.append(size)
        send(self, parts, size)

    def receiving(self: Connection, *arguments: object) -> memoryview | None:
        frame = receive(self, *arguments)
        if frame is not None:
            found.append(len(frame))
        return frame

    monkeypatch.setattr(Connection, "send_frame", sending)
    monkeypatch.setattr(Connection, "receive_available", receiving)
    return found


def test_only_what_changed_is_asked_and_answered(reading: Reading, sizes: list[int]) -> None:
    reading.once()  # the last answer's partitions are told their new offsets
    sizes.clear()
    for _ in range(5):
        reading.produce(7, 250)
        reading.until(lambda: reading.whole(7, 250))
    assert sizes
    assert max(sizes) < 1_000  # a partition takes some 40 bytes
    assert reading.fetcher.errors == {}


def test_partitions_that_are_left_out_are_forgotten(reading: Reading, sizes: list[int]) -> None:
    halted, delayed, gone = (TopicPartition(reading.topic, n) for n in (1, 2, 3))
    reading.fetcher.halt(halted, Halt("X", "as the test says"))
    reading.fetcher.retry_later(delayed, 3600)
    reading.fetcher.unassign(gone)
    reading.produce(1, 2, 3, 4)
    reading.until(lambda: reading.whole(4))
    for _ in range(3):
        reading.once()
    assert [len(reading.values[n]) for n in (1, 2, 3)] == [1, 1, 1]
    reading.fetcher.retry_later(delayed, 0)
    reading.fetcher.assign(gone, 1)
    reading.until(lambda: reading.whole(2, 3, 4))
    assert len(reading.values[1]) == 1
    assert max(sizes[-8:]) < 1_000


def test_data_that_is_not_used_comes_again(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition's offset does not change then, and the broker hears nothing new about it."""
    reading.produce(9)
    with monkeypatch.context() as patch:
        patch.setattr(reading.fetcher, "advance", lambda *_: None)
        reading.once()
        reading.once()
    assert len(reading.values[9]) > 1
    del reading.values[9][1:]
    reading.until(lambda: reading.whole(9))


@pytest.mark.parametrize("damage", ["epoch", pytest.param("id", marks=pytest.mark.more)])
def test_a_session_that_the_broker_has_lost_begins_anew(reading: Reading, damage: str) -> None:
    (session,) = reading.fetcher._plan._sessions.values()
    before = session.id
    assert before > 0
    if damage == "epoch":
        session.epoch += 5
    else:
        session.id += 1
    reading.produce(*range(PARTITIONS))
    reading.until(lambda: reading.whole(*range(PARTITIONS)))
    assert session.id not in (0, before)
    assert reading.fetcher.errors == {}


@pytest.mark.more
def test_a_broker_that_comes_back_knows_no_session(
    new_cluster: Callable[..., KafkaCluster], topic_name: str, sizes: list[int]
) -> None:
    cluster = new_cluster("C")
    create_topic(cluster, topic_name, 40)
    reading = Reading(cluster, topic_name, 40)
    try:
        reading.produce(*range(40))
        reading.until(lambda: reading.whole(*range(40)))
        cluster.terminate(1)
        reading.once()
        cluster.restart(1)
        reading.produce(*range(40))
        reading.until(lambda: reading.whole(*range(40)))
        reading.once()
        sizes.clear()
        reading.produce(5)
        reading.until(lambda: len(reading.values[5]) == 3)
        assert max(sizes[-2:]) < 500
    finally:
        reading.connections.close()


@pytest.mark.more
def test_a_broker_without_room_for_sessions_is_asked_for_everything(
    new_cluster: Callable[..., KafkaCluster], topic_name: str
) -> None:
    cluster = new_cluster("C", config={"max.incremental.fetch.session.cache.slots": "0"})
    create_topic(cluster, topic_name, 40)
    reading = Reading(cluster, topic_name, 40)
    try:
        for _ in range(3):
            reading.produce(*range(40))
            reading.until(lambda: reading.whole(*range(40)))
        (session,) = reading.fetcher._plan._sessions.values()
        assert session.header == (0, 0)
        assert reading.fetcher.errors == {}
    finally:
        reading.connections.close()


def test_without_a_session_a_busy_topic_keeps_none_of_another_waiting(
    cluster_a: KafkaCluster, topic_name: str
) -> None:
    """The topic is in requests and responses several times: its idle partition stays in front."""
    late = f"{topic_name}-late"
    create_topic(cluster_a, topic_name, 3)
    create_topic(cluster_a, late, 1)
    for _ in range(20):  # as many batches
        produce(cluster_a, topic_name, [Sent(b"." * 1000, partition=number) for number in (1, 2)])
    produce(cluster_a, late, [Sent(b"here")])
    reading = Reading(cluster_a, topic_name, 3)
    reading.connections.add_topics({late})
    limits = FetchSettings(fetch_max_wait_ms=200, fetch_max_bytes=1_000)
    fetcher = reading.fetcher = Fetcher(reading.connections, limits)
    for tp in [*(TopicPartition(topic_name, n) for n in range(3)), TopicPartition(late, 0)]:
        fetcher.assign(tp, 0)
    try:
        reading.until(lambda: reading.values[0] == [b"here"])
        assert fetcher.position(TopicPartition(topic_name, 1)) < 20
        reading.until(lambda: [len(reading.values[n]) for n in (1, 2)] == [20, 20])
        assert fetcher.errors == {}
    finally:
        reading.connections.close()
