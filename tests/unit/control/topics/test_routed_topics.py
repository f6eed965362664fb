"""The driver creates topics that records are routed to: which, how, and how many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.control.topics.routed_topics import RoutedTopicsJob, constant_topics
from sparkmirror.errors import Denied, MirrorError, QuotaExceeded, TooFewBrokers
from sparkmirror.internal_topics.routed_topics import RoutedTopics, TopicRequest, encode_routed
from sparkmirror.settings import ClusterClient, FlowSettings, TopicSettings
from sparkmirror.transform_settings import TransformSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.requester import Requester
from sparkmirror.wire.admin.topics import create_topics
from sparkmirror.wire.cluster.views import (
    BrokerView,
    ClusterView,
    ConfigEntry,
    NewTopic,
    TopicOutcome,
    TopicView,
)

A, B = (ClusterClient(alias, (f"{alias}:1",), "c") for alias in "AB")


def _flow(most: int = 3, select: str = "x AS topic") -> FlowSettings:
    transforms = (TransformSettings("route", ("orders.*",), "", select, routes=True),)
    topics = TopicSettings(include=("orders.*", "carts"), replication_factor=1)
    return FlowSettings(A, B, A, B, topics=topics, transforms=transforms, routed_topics_max=most)


class Side:
    """A cluster with ``counts`` partitions per topic; ``refuses`` some names."""

    alias = "B"

    def __init__(self, counts: dict[str, int], refuses: Iterable[str] = ()) -> None:
        self.counts = counts
        self.refuses = set(refuses)
        self.refusal: MirrorError = Denied("no.", do="Grant Create.")
        self.made: list[NewTopic] = []
        self.records: list[tuple[int, bytes, bytes]] = []

    def topics(self, names: Iterable[str]) -> dict[str, TopicView]:
        return {one: TopicView(one, "", self.counts[one], 1) for one in names if one in self.counts}

    def topic_configs(self, names: Iterable[str]) -> dict[str, Mapping[str, ConfigEntry]]:
        set_here = ConfigEntry("5", "DYNAMIC_TOPIC_CONFIG")
        return {name: {"retention.ms": set_here} for name in names}

    def describe(self) -> ClusterView:
        return ClusterView("id", (BrokerView(0, "b", 1, ""),), 0)

    def create_topics(
        self, topics: Sequence[NewTopic], *, patience_s: float | None = None
    ) -> dict[str, TopicOutcome]:
        found: dict[str, TopicOutcome] = {}
        for one in topics:
            error = self.refusal if one.name in self.refuses else None
            found[one.name] = TopicOutcome(one.name, error)
            if error is None:
                self.made.append(one)
                self.counts[one.name] = one.partitions
        return found

    def grow_topics(self, counts: Mapping[str, int], **_: object) -> dict[str, TopicOutcome]:
        assert not counts
        return {}

    def literal_errors(self, names: Iterable[str], **_: str) -> dict[str, MirrorError]:
        return {}

    def read_compacted(self, *_: object, **__: object) -> list[tuple[int, bytes, bytes]]:
        return self.records


class Driver:
    """The job, what it has said and what it has answered."""

    def __init__(self, flow: FlowSettings, target: Side) -> None:
        source = Side({"orders": 4, "orders.big": 7, "carts": 1})
        self.said: list[str] = []
        self.answers: list[RoutedTopics] = []
        self.target = target
        self.job = RoutedTopicsJob(
            *(flow, "run", "A->B", cast(Cluster, source), cast(Cluster, target)),
            publish=self.answers.append,
            notify=self.said.append,
        )
        self._number = 0

    def begin(self, *topics: str) -> None:
        self.job.begin(cast(Cluster, self.target), topics)

    def ask(self, *names: str, topic: str = "orders", slot: int = 0) -> RoutedTopics:
        self._number += 1
        self.job.take([TopicRequest("A->B", "run", slot, self._number, topic, names)])
        self.job.step()
        answer = self.answers[-1]
        assert answer.answered[slot] == self._number
        return answer


def test_a_topic_is_created_like_the_remote_topic_of_its_records() -> None:
    driver = Driver(_flow(), Side({"there": 1}))
    answer = driver.ask("eu", "there")
    assert driver.target.made == [NewTopic("eu", 4, 1, {"retention.ms": "5"})]
    assert (answer.created, answer.full, answer.refused) == (("eu",), False, {})
    assert driver.said == ["B: created topic eu with 4 partitions and the source's retention.ms"]


def test_no_more_are_created_than_the_setting_allows() -> None:
    driver = Driver(_flow(3), Side({}))
    assert not driver.ask("a", "b").full
    answer = driver.ask("c", "d", "e")
    assert (answer.created, answer.full) == (("a", "b", "c"), True)
    assert set(driver.target.counts) == {"a", "b", "c"}
    assert driver.ask("f").created == ("a", "b", "c")
    said = [one for one in driver.said if "allows no more" in one]
    assert said == [
        "A->B: 3 topics were created for routed records; sparkmirror.routing.create.topics.max "
        "allows no more"
    ]
    # What has been deleted makes room, and what was created before is created again.
    del driver.target.counts["a"]
    assert driver.ask("b", "g").created == ("b", "c", "g")
    del driver.target.counts["c"]
    assert driver.ask("c").created == ("b", "c", "g")
    assert "c" in driver.target.counts


def test_the_limit_outlives_the_run() -> None:
    target = Side({"a": 1, "b": 1})
    before = RoutedTopics("A->B", "earlier", ("a", "b"))
    target.records = [(0, *encode_routed(before))]
    driver = Driver(_flow(3), target)
    driver.begin("carts")
    assert driver.ask("c", "d").created == ("a", "b", "c")


def test_wrong_names_and_requests_of_other_topics_create_nothing() -> None:
    driver = Driver(_flow(), Side({}))
    answer = driver.ask("__consumer_offsets", "no name", "A.carts")
    assert set(answer.refused) == {"__consumer_offsets", "no name", "A.carts"}
    assert driver.ask("eu", topic="carts").created == ()
    assert driver.target.made == []


def test_a_denial_is_the_reason_and_is_tried_again() -> None:
    target = Side({}, refuses=["eu"])
    driver = Driver(_flow(), target)
    answer = driver.ask("eu", "us")
    assert answer.created == ("us",)
    assert answer.refused == {"eu": "no. Grant Create."}
    driver.ask("eu")
    assert [one for one in driver.said if "eu" in one] == [
        "A->B: no topic eu for routed records: no. Grant Create."
    ]
    target.refuses.clear()
    answer = driver.ask("eu")
    assert (answer.created, answer.refused) == (("us", "eu"), {})


def test_a_refusal_that_may_pass_is_no_reason() -> None:
    """Nothing is wrong with the records: the slot waits for the topic, and asks again."""
    target = Side({}, refuses=["eu"])
    target.refusal = QuotaExceeded("not now.")
    driver = Driver(_flow(), target)
    answer = driver.ask("eu", "us")
    assert (answer.created, answer.refused) == (("us",), {})
    target.refuses.clear()
    assert driver.ask("eu").created == ("us", "eu")


def test_too_few_brokers_are_a_reason() -> None:
    """The factor may be wrong for good: sparkmirror.on.bad.record decides, and records go on."""
    target = Side({}, refuses=["eu"])
    target.refusal = TooFewBrokers("too few.")
    driver = Driver(_flow(), target)
    answer = driver.ask("eu")
    assert "too few" in answer.refused["eu"]
    target.refuses.clear()
    answer = driver.ask("eu")
    assert (answer.created, answer.refused) == (("eu",), {})


class Busy(Side):
    """Its controller refuses every creation with ``code`` for the moment."""

    def __init__(self, code: int) -> None:
        super().__init__({})
        self.code = code
        self.client = replace(B, request_timeout_ms=30_000)
        self.requests = 0

    def create_topics(
        self, topics: Sequence[NewTopic], *, patience_s: float | None = None
    ) -> dict[str, TopicOutcome]:
        self.made = list(topics)
        return create_topics(cast(Requester, self), topics, patience_s=patience_s)

    def request(self, *_: object, **__: object) -> object:
        self.requests += 1
        rows = [
            SimpleNamespace(name=new.name, error_code=self.code, error_message="")
            for new in self.made
        ]
        return SimpleNamespace(topics=rows, throttle_time_ms=1_000)

    def pause(self, seconds: float) -> bool:
        raise AssertionError(f"all slots would wait for {seconds} s")


@pytest.mark.parametrize("code", [7, 89], ids=["REQUEST_TIMED_OUT", "THROTTLING_QUOTA_EXCEEDED"])
def test_no_slot_waits_for_the_end_of_a_refusal_that_may_pass(code: int) -> None:
    """It asks again. Without an answer, it would take the driver for silent."""
    target = Busy(code)
    driver = Driver(_flow(), target)
    for count in (1, 2):
        answer = driver.ask("eu", "us", slot=count)
        assert (answer.created, answer.refused, target.requests) == ((), {}, count)


def test_a_source_topic_that_is_gone_is_a_reason() -> None:
    driver = Driver(_flow(), Side({}))
    assert "does not exist" in driver.ask("eu", topic="orders.gone").refused["eu"]


def test_names_for_all_records_are_created_at_the_start_and_do_not_count() -> None:
    driver = Driver(_flow(1, "key, 'clean.all' AS topic"), Side({}))
    driver.begin("carts", "orders.big")
    assert driver.target.made == [NewTopic("clean.all", 7, 1, {"retention.ms": "5"})]
    assert driver.ask("eu").created == ("eu",)


@pytest.mark.parametrize("flow", [_flow(0), replace(_flow(), transforms=())])
def test_a_flow_that_creates_none_reads_and_makes_nothing(flow: FlowSettings) -> None:
    nothing: Any = None
    job = RoutedTopicsJob(flow, "run", "A->B", nothing, nothing, publish=nothing, notify=nothing)
    assert not job.used
    job.begin(nothing, ["orders"])


def test_the_first_topic_of_a_name_for_all_records() -> None:
    flow = _flow(select="'all' AS topic")
    assert constant_topics(flow, ["carts", "orders.x", "orders"]) == {"all": "orders.x"}
    assert constant_topics(_flow(), ["orders"]) == {}
