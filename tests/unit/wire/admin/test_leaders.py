"""Offsets from partition leaders: how long is asked again, and when a partition is left out."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.errors import Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.offset_reset import LATEST
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin import leaders as module
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.leaders import Described, Leaders
from tests.patience import patience

TP = TopicPartition("t", 0)
CLIENT = ClusterClient("A", ("a:1",), "t", request_timeout_ms=60_000, retry_backoff_ms=100)
NOT_LEADER, UNKNOWN_TOPIC, DENIED, STORAGE = 6, 3, 29, 56


class Clock:
    """Monotonic seconds that pass only in sleep."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Broker:
    """A leader that answers ListOffsets with these error codes, then as ``last`` says."""

    def __init__(self, *codes: int, last: int = 0, client: ClusterClient = CLIENT) -> None:
        self.client = client
        self.codes = deque(codes)
        self.last = last
        self.leader = 1
        self.asked = 0

    def request(self, *_: Any, node: int, **_more: Any) -> Any:
        assert node == self.leader
        self.asked += 1
        code = self.codes.popleft() if self.codes else self.last
        if code < 0:
            raise Unreachable("away")
        row = SimpleNamespace(partition_index=0, error_code=code, offset=7)
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[row])])


class Known(Leaders):
    """Metadata that names the broker as the leader, if it has one."""

    def by_leader(self, partitions: Any, **_: Any) -> Any:
        broker: Any = self._requester
        return ({broker.leader: list(partitions)} if broker.leader >= 0 else {}), set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def _ends(broker: Broker) -> dict[TopicPartition, int]:
    known = Known(broker)  # type: ignore[arg-type]
    return known.list_offsets([TP], LATEST, 1)


@pytest.mark.parametrize("code", [NOT_LEADER, UNKNOWN_TOPIC])
def test_a_leader_that_has_just_been_chosen_is_given_seconds(clock: Clock, code: int) -> None:
    """A busy broker knows that it leads a new partition before it has made the log."""
    broker = Broker(*[code] * 8)
    assert _ends(broker) == {TP: 7}
    assert clock.now - 100 > 4


def test_a_leader_that_never_knows_its_partition_is_left_after_ten_seconds(clock: Clock) -> None:
    assert _ends(Broker(last=NOT_LEADER)) == {}
    assert 10 <= clock.now - 100 <= 11.5


def test_the_request_timeout_ends_it_sooner(clock: Clock) -> None:
    client = ClusterClient("A", ("a:1",), "t", request_timeout_ms=3_000, retry_backoff_ms=100)
    assert _ends(Broker(last=NOT_LEADER, client=client)) == {}
    assert 3 <= clock.now - 100 <= 4.5


@pytest.mark.parametrize("last", [-1, 0])
def test_a_broker_that_is_away_is_not_waited_for(clock: Clock, last: int) -> None:
    """Nor is a partition without a leader: both may take as long as somebody needs to repair it."""
    broker = Broker(last=last)
    if last == 0:
        broker.leader = -1
    assert _ends(broker) == {}
    assert clock.now - 100 < 2
    assert broker.asked in (0, 4)


def test_a_broken_disk_is_not_waited_for(clock: Clock) -> None:
    """Each round of the control plane would take ten seconds, for all partitions."""
    broker = Broker(last=STORAGE)
    assert _ends(broker) == {}
    assert (broker.asked, clock.now - 100 < 2) == (4, True)


def test_what_will_not_change_is_asked_once(clock: Clock) -> None:
    broker = Broker(DENIED)
    assert _ends(broker) == {}
    assert (broker.asked, clock.now) == (1, 100.0)


def test_topics_that_are_gone_are_forgotten() -> None:
    other = TopicPartition("u", 0)
    lists = deque([{"t": {0: 1}, "u": {0: 1}}, {"u": {0: 1}}])
    requester: Any = SimpleNamespace(
        client=CLIENT, request=lambda *_, **__: Described(None, {}, lists.popleft())
    )
    known = Leaders(requester)
    known.metadata(None)
    known.metadata(None)
    assert known.of([TP, other]) == {other: 1}


def test_all_leaders_are_asked_at_once() -> None:
    """Over a long link each takes a round trip, the first time several."""
    together = threading.Barrier(3)

    class Far:
        client = CLIENT

        def request(self, *_: Any, node: int, **_more: Any) -> Any:
            together.wait(patience())  # nobody is answered alone
            row = SimpleNamespace(partition_index=node, error_code=0, offset=7 + node)
            return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[row])])

    class Spread(Leaders):
        def by_leader(self, partitions: Any, **_: Any) -> Any:
            return {tp.partition: [tp] for tp in partitions}, set()

    known = Spread(Far())  # type: ignore[arg-type]
    found = known.list_offsets([TopicPartition("t", number) for number in range(3)], LATEST, 1)
    assert found == {TopicPartition("t", number): 7 + number for number in range(3)}


def test_no_record_of_a_time_is_an_answer_and_no_leader_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(CLIENT)
    monkeypatch.setattr(cluster.leaders, "list_offsets", lambda *_: {TP: -1})
    assert cluster.offsets_at([TP, TopicPartition("u", 0)], 5) == {TP: -1}
