"""What is known of the source's ends while the source, or one of its brokers, is out of reach."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.control.flows.source_ends import SourceEnds
from sparkmirror.control.jobs import run_once
from sparkmirror.errors import Unreachable
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings

FLOW = FlowSettings(*(ClusterClient(name, (f"{name}:1",), "c") for name in "ABAB"))
NEAR, FAR = TopicPartition("t", 0), TopicPartition("t", 1)


class Source:
    """``ends``: what its brokers tell; None: none of them can be reached."""

    def __init__(self) -> None:
        self.time_s = 100.0
        self.ends: dict[TopicPartition, int] | None = {NEAR: 7, FAR: 9}
        self.assigned = frozenset({NEAR, FAR})
        published: Any = SimpleNamespace(
            frozen=None,
            assignment=lambda: SimpleNamespace(sources=self.assigned, partitions=self.assigned),
        )
        cluster: Any = self
        self.job = SourceEnds(FLOW, cluster, published, tuple, clock=lambda: self.time_s)

    def end_offsets(self, *_: object) -> dict[TopicPartition, int]:
        if self.ends is None:
            raise Unreachable("no answer", where="cluster A")
        return dict(self.ends)

    def records_at(self, *_: object) -> dict[TopicPartition, Any]:
        return {}

    def rounds(self, seconds: int) -> None:
        for _ in range(0, seconds, 5):
            self.time_s += 5
            try:
                run_once(self.job)
            except Unreachable:
                assert self.ends is None


@pytest.fixture
def source() -> Source:
    made = Source()
    made.rounds(5)
    assert made.job.ends() == {NEAR: 7, FAR: 9}
    return made


def test_no_end_is_known_of_a_source_that_is_out_of_reach(source: Source) -> None:
    source.ends = None
    source.rounds(50)
    assert source.job.ends() == {NEAR: 7, FAR: 9}, "for a moment, the last ends will do"
    source.rounds(3_600)
    assert source.job.ends() == {}
    assert source.job.age_s() == 3_650
    assert source.job.last() == {NEAR: 7, FAR: 9}
    source.ends = {NEAR: 8, FAR: 90}
    source.rounds(5)
    assert (source.job.ends(), source.job.age_s()) == ({NEAR: 8, FAR: 90}, 0)


def test_one_broker_that_is_out_of_reach_takes_its_partitions_ends_with_it(source: Source) -> None:
    source.ends = {NEAR: 70}
    source.rounds(300)
    assert (source.job.ends(), source.job.age_s()) == ({NEAR: 70}, 300)
    source.assigned = frozenset({NEAR})
    assert source.job.age_s() == 0, "nobody asks for the other one any more"
    source.ends = None
    source.rounds(5)
    source.assigned = frozenset({NEAR, FAR})
    assert source.job.ends() == {NEAR: 70}
    source.rounds(5)
    assert source.job.ends() == {NEAR: 70, FAR: 9}


def test_a_partition_whose_end_was_never_told_counts_from_the_first_question() -> None:
    source = Source()
    assert source.job.age_s() is None
    source.ends = None
    source.rounds(305)
    assert (source.job.ends(), source.job.age_s()) == ({}, 300)


def test_rounds_that_take_long_make_no_end_too_old(source: Source) -> None:
    many = frozenset(TopicPartition("t", number) for number in range(100_000))
    source.assigned = many
    source.time_s += 200
    assert source.job.ends() == {NEAR: 7, FAR: 9}
