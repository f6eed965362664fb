"""How large a batch each topic of the target accepts: requested, learned, unknown."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from kafka.protocol.admin import DescribeConfigsResponse

from sparkmirror.settings import ClusterClient
from sparkmirror.wire.produce.topic_limits import (
    ACCEPTED_BYTES,
    ACCEPTED_BYTES_MIN,
    LimitsRequest,
    TopicLimits,
)
from tests.unit.wire.fake_broker import FakeBroker

DESCRIBE_CONFIGS = 32


class Cluster:
    """Answers at ``answers``; ``asked``: the topics of each request."""

    def __init__(self, **limits: int) -> None:
        self.now = 0.0
        self.limits: Mapping[str, int] = limits
        self.asked: list[list[str]] = []
        self.waits = True
        self.known = TopicLimits(self._ask, clock=lambda: self.now)

    def _ask(self, topics: Collection[str]) -> Cluster:
        self.asked.append(sorted(topics))
        self.waits = True
        return self

    def is_alive(self) -> bool:
        return self.waits


def test_a_limit_counts_once_it_is_known() -> None:
    cluster = Cluster(small=5_000, large=8 << 20)
    assert [cluster.known.of(name) for name in ("small", "large")] == [ACCEPTED_BYTES] * 2
    assert cluster.asked == [["small"]], "one request at a time"
    cluster.waits = False
    assert cluster.known.of("small") == 5_000
    assert cluster.asked == [["small"], ["large"]]
    cluster.waits = False
    assert cluster.known.of("large") == 8 << 20
    for _ in range(1_000):
        cluster.known.of("small")
    assert len(cluster.asked) == 2


def test_a_limit_that_is_changed_is_noticed() -> None:
    cluster = Cluster(t=2_000_000)
    cluster.known.of("t")
    cluster.waits = False
    assert cluster.known.of("t") == 2_000_000
    cluster.limits = {"t": 3_000_000}
    cluster.now += 299
    cluster.known.of("t")
    assert len(cluster.asked) == 1
    cluster.now += 1
    cluster.known.of("t")
    cluster.waits = False
    assert cluster.known.of("t") == 3_000_000


def test_half_of_what_a_topic_refused_is_tried_next() -> None:
    known = TopicLimits()
    known.refused("t", 900_000)
    assert known.of("t") == 450_000
    known.refused("t", 450_000)
    known.refused("t", 700_000)  # it was in flight meanwhile
    assert known.of("t") == 225_000
    known.refused("t", 40_000)
    assert known.of("t") == ACCEPTED_BYTES_MIN
    assert known.of("u") == ACCEPTED_BYTES


def test_after_a_refusal_the_limit_is_requested_again() -> None:
    cluster = Cluster(t=2_000_000)
    cluster.known.of("t")
    cluster.waits = False
    cluster.known.of("t")
    cluster.limits = {"t": 800_000}
    cluster.known.refused("t", 1_900_000)
    assert cluster.known.of("t") == 950_000
    assert len(cluster.asked) == 2
    cluster.waits = False
    assert cluster.known.of("t") == 800_000


def test_a_refusal_that_the_limit_does_not_explain_still_counts() -> None:
    cluster = Cluster(t=2_000_000)
    cluster.known.refused("t", 1_200_000)
    cluster.known.of("t")
    cluster.waits = False
    assert cluster.known.of("t") == 600_000


def test_only_topics_that_are_due_are_looked_at() -> None:
    """A refusal asks for one topic only; after five minutes the others are due, in their order."""
    cluster = Cluster(a=1_000, b=1_000, c=1_000)
    for name in "abc":
        cluster.known.of(name)
        cluster.waits = False
        cluster.now += 1
    cluster.known.refused("a", 900)
    cluster.known.of("b")
    cluster.known.of("a")
    cluster.waits = False
    cluster.now = 302.0
    cluster.known.of("c")
    assert cluster.asked == [["a"], ["b"], ["c"], ["a"], ["b", "c"]]


def test_a_topic_among_many_costs_no_more_than_one_among_few() -> None:
    def seconds(topics: int) -> float:
        cluster = Cluster()
        for number in range(topics):
            cluster.known.of(f"t{number}")
        for _ in range(2):  # what came while the first request was under way, too
            cluster.waits = False
            cluster.known.of("t0")
        cluster.waits = False
        began = time.thread_time()
        for _ in range(300):
            cluster.known.of("t0")
        assert len(cluster.asked) == 2
        return time.thread_time() - began

    assert seconds(50_000) < 20 * max(seconds(2), 0.001)


# -- the request -------------------------------------------------------------------------------


def _response(topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> Any:
    row = DescribeConfigsResponse.DescribeConfigsResult
    return DescribeConfigsResponse(
        throttle_time_ms=0,
        results=[
            row(
                error_code=code, error_message=None, resource_type=2, resource_name=name,
                configs=[
                    row.DescribeConfigsResourceResult(
                        name=key, value=value, read_only=False, config_source=1,
                        is_sensitive=False, synonyms=[], config_type=0, documentation=None,
                    )
                    for key, value in configs.items()
                ],
            )
            for name, (code, configs) in topics.items()
        ],
    )  # fmt: skip


@pytest.mark.parametrize("version", [1, 4])
def test_the_smaller_of_two_limits_counts(version: int) -> None:
    says = {
        "a": (0, {"max.message.bytes": "8388608", "segment.bytes": "1073741824"}),
        "b": (0, {"max.message.bytes": "8388608", "segment.bytes": "2097152"}),
        "denied": (29, {}),
    }
    broker = FakeBroker(lambda *_: _response(says), {DESCRIBE_CONFIGS: (version, version)})
    try:
        request = LimitsRequest(ClusterClient("B", (broker.address,), "t"), says)
        request.join(10)
        assert request.limits == {"a": 8 << 20, "b": 2 << 20}
        assert broker.asked == [DESCRIBE_CONFIGS]
    finally:
        broker.stop()


def test_a_cluster_that_does_not_answer_leaves_the_default() -> None:
    broker = FakeBroker(lambda *_: None, {DESCRIBE_CONFIGS: (1, 4)})
    try:
        request = LimitsRequest(ClusterClient("B", (broker.address,), "t"), ["a"])
        request.join(10)
        assert not request.is_alive()
        assert request.limits == {}
    finally:
        broker.stop()
