"""When a fetcher's owner has to come round again."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FetchSettings
from sparkmirror.wire.fetch.fetcher import Fetcher

TP = TopicPartition("t", 0)
NODE = 1


@dataclass(eq=False)
class Cluster:
    """One broker, which answers at once that there is nothing new."""

    time_s: float = 100.0
    client: ClusterClient = field(default_factory=lambda: ClusterClient("A", ("a:1",), "c"))
    leaders: dict[TopicPartition, Any] = field(
        default_factory=lambda: {TP: SimpleNamespace(node=NODE, epoch=0, fencing=0)}
    )
    generation: int = 0
    sent: int = 0
    look_again_s: float = math.inf
    round_trip_s: float = 0.001

    def refresh_if_due(self) -> None:
        """Metadata never changes."""

    def connection(self, node: int, _number: int = 0) -> Cluster:
        assert node == NODE
        return self

    def api_version(self, *_: object) -> int:
        return 11

    def header(self, *_: object) -> tuple[int, bytes]:
        return self.sent, b""

    def ended_idle(self) -> bool:
        return False

    def watched_by(self, _: object) -> None:
        """Nothing to wait for."""

    def ready_to_send(self, *, idle: bool) -> bool:
        return idle

    unsent = False

    def begin_frame(self, *_: object) -> None:
        self.sent += 1

    def receive_available(self, _: object) -> memoryview:
        return memoryview(struct.pack(">iihii", self.sent - 1, 0, 0, 0, 0))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def fetcher(cluster: Cluster) -> Fetcher:
    fetcher = Fetcher(cluster, FetchSettings(), clock=lambda: cluster.time_s)  # type: ignore[arg-type]
    fetcher.assign(TP, 0)
    fetcher.send()
    assert cluster.sent == 1
    return fetcher


def test_the_end_of_a_pace_is_not_missed_between_two_looks(
    cluster: Cluster, fetcher: Fetcher
) -> None:
    fetcher.receive(cluster)
    cluster.time_s += 0.0039
    fetcher.send()
    assert cluster.sent == 1  # the small answer is paced
    assert 0.0 < fetcher.next_due_s() < 0.001
    cluster.time_s += 0.001  # over before the owner asks how long to wait
    assert fetcher.next_due_s() == 0.0
    fetcher.send()
    assert cluster.sent == 2


def intervals(cluster: Cluster, fetcher: Fetcher, count: int, late_s: float) -> list[float]:
    """How long small answers are paced for whose owner comes round ``late_s`` after each pace."""
    found = []
    for _ in range(count):
        fetcher.receive(cluster)
        fetcher.send()
        found.append(fetcher.next_due_s())
        cluster.time_s += found[-1] + late_s
        fetcher.send()
    return found


def test_the_pace_slows_down_where_processors_are_short(cluster: Cluster, fetcher: Fetcher) -> None:
    prompt = intervals(cluster, fetcher, 50, 0.0)
    assert prompt == pytest.approx([0.004] * 50)
    late = intervals(cluster, fetcher, 200, 0.002)
    assert late == sorted(late)
    assert late[-1] == pytest.approx(0.008, abs=1e-4)
    hopeless = intervals(cluster, fetcher, 500, 0.5)
    assert max(hopeless) == pytest.approx(0.010)
    assert intervals(cluster, fetcher, 500, 0.0)[-1] == pytest.approx(0.004, abs=1e-4)


def test_an_answer_that_was_waited_for_is_not_paced(cluster: Cluster, fetcher: Fetcher) -> None:
    for _ in range(100):
        cluster.time_s += 0.3
        fetcher.receive(cluster)
        before = cluster.sent
        fetcher.send()
        assert cluster.sent == before + 1
    assert intervals(cluster, fetcher, 1, 0.0) == pytest.approx([0.004])


def test_the_end_of_a_back_off_is_not_missed_between_two_looks(
    cluster: Cluster, fetcher: Fetcher
) -> None:
    fetcher.receive(cluster)
    cluster.time_s += 1.0
    fetcher.retry_later(TP, 0.1)
    fetcher.send()
    assert fetcher.next_due_s() == pytest.approx(0.1)
    cluster.time_s += 0.2
    assert fetcher.next_due_s() == 0.0
    fetcher.send()
    assert cluster.sent == 2


def test_what_was_looked_at_is_not_due_again(cluster: Cluster, fetcher: Fetcher) -> None:
    """Otherwise the owner would go round without a pause."""
    settings = FetchSettings()
    fetcher.receive(cluster)
    cluster.time_s += 1.0
    fetcher.retry_later(TP, 5.0)
    fetcher.send()
    assert fetcher.next_due_s() == settings.fetch_max_wait_ms / 1000
    cluster.time_s += 1.0
    fetcher.expire()
    assert fetcher.next_due_s() == settings.fetch_max_wait_ms / 1000


def test_what_is_left_out_is_asked_for_again_when_it_is_not(
    cluster: Cluster, fetcher: Fetcher
) -> None:
    """The sink takes no more of it at present; the answer under way still comes."""
    fetcher.left_out = {TP}
    fetcher.receive(cluster)
    cluster.time_s += 1.0
    fetcher.send()
    assert cluster.sent == 1
    assert not fetcher.waiting
    fetcher.left_out = ()
    fetcher.send()
    assert cluster.sent == 2
