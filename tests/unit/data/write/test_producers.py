"""What a worker process keeps from one task of a flow to the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkmirror.data.write.producers import drop_producer, drop_producers, limits_of
from sparkmirror.settings import ClusterClient, FlowSettings

A, B, C = (ClusterClient(name, (f"{name}:1",), "c") for name in "ABC")


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    drop_producers()


def test_limits_of_topics_outlive_the_producers_of_their_flow() -> None:
    flow = FlowSettings(A, B, A, B)
    limits = limits_of(flow)
    limits.refused("t", 900_000)
    drop_producer(flow)
    assert limits_of(flow) is limits
    assert limits_of(FlowSettings(A, C, A, C)) is not limits


def test_a_process_without_slots_keeps_no_limits() -> None:
    flow = FlowSettings(A, B, A, B)
    limits = limits_of(flow)
    drop_producers()
    assert limits_of(flow) is not limits
