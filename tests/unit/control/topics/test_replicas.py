"""Replicas on brokers that are down: only the controller knows whether it takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest

from sparkmirror.control.report import plan as plans
from sparkmirror.control.topics.compacted import CompactedTopic, create_compacted
from sparkmirror.control.topics.internal_topics import (
    create_internal_topics,
    factor_key,
    internal_names,
    may_be_smaller,
    offset_storage_topic,
    plan_internal_topics,
)
from sparkmirror.control.topics.observation import Change, Observation
from sparkmirror.control.topics.replicas import ask_for, planned, too_few_brokers
from sparkmirror.control.topics.sync import CreateTopic, apply_topics, passing
from sparkmirror.errors import Denied, MirrorError, TooFewBrokers
from sparkmirror.settings import ClusterClient, FlowSettings, TopicSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.error_translation import translate
from sparkmirror.wire.cluster.views import (
    BrokerView,
    ClusterView,
    NewTopic,
    TopicOutcome,
    TopicView,
)
from sparkmirror.wire.protocol_errors import BrokerError

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B, topics=TopicSettings(replication_factor=3))
STORAGE = offset_storage_topic(FLOW)


class Target:
    """A target with three brokers, of which one is down; two are alive.

    ``taken``: for how many replicas its controller has brokers. One of KRaft counts all three.
    """

    alias = "B"

    def __init__(self, taken: int) -> None:
        self.taken = taken
        self.there: dict[str, TopicView] = {}
        self.tried: list[NewTopic] = []
        self.described = 0

    def describe(self) -> ClusterView:
        self.described += 1
        return ClusterView("id", (BrokerView(1, "h", 1), BrokerView(2, "h", 2)), 1)

    def topics(self, names: Iterable[str]) -> dict[str, TopicView]:
        return {name: self.there[name] for name in names if name in self.there}

    def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        patience_s: float | None = None,
        validate_only: bool = False,
    ) -> dict[str, TopicOutcome]:
        assert patience_s == 0 or not validate_only, "a dry run is not waited for"
        found: dict[str, TopicOutcome] = {}
        for new in topics:
            error: MirrorError | None = None
            if new.replication_factor > self.taken:
                error = translate(BrokerError(38), B, f"creating topic {new.name}")
            elif validate_only:
                self.tried.append(new)
            else:
                view = TopicView(new.name, "", new.partitions, new.replication_factor)
                self.there[new.name] = view
            found[new.name] = TopicOutcome(new.name, error)
        return found

    def grow_topics(self, counts: Mapping[str, int], **_: object) -> dict[str, TopicOutcome]:
        assert not counts
        return {}

    def literal_errors(self, *_: object, **__: object) -> dict[str, MirrorError]:
        return {}

    @property
    def replicas(self) -> dict[str, int]:
        return {name: view.replication for name, view in self.there.items()}


def test_internal_topics_get_all_replicas_where_the_controller_takes_them() -> None:
    target = Target(3)
    told = create_internal_topics(cast(Cluster, target), FLOW, wait=lambda _: None)
    assert target.replicas == dict.fromkeys(internal_names(FLOW), 3)
    assert all("replica" not in line for line in told)


def test_internal_topics_get_fewer_replicas_where_it_does_not() -> None:
    target = Target(2)
    target.there[STORAGE] = TopicView(STORAGE, "", 25, 3)
    told = create_internal_topics(cast(Cluster, target), FLOW, wait=lambda _: None)
    own = may_be_smaller(FLOW)
    assert target.replicas == dict.fromkeys(own, 2) | {STORAGE: 3}
    assert sorted(told) == sorted(
        f"B: created internal topic {name} with 2 replicas: the cluster has too few brokers for 3"
        for name in own
    )


def test_offset_storage_without_enough_brokers_names_the_key() -> None:
    with pytest.raises(TooFewBrokers) as raised:
        create_internal_topics(cast(Cluster, Target(2)), FLOW, wait=lambda _: None)
    assert str(raised.value) == (
        f"cluster B, topic {STORAGE}: the topic cannot be created: "
        "B.offset.storage.replication.factor is 3, but the cluster has 2 live brokers. Start the "
        "brokers that are down, set B.offset.storage.replication.factor to 2 or less (-1 takes the "
        "broker's default), or create the topic yourself."
    )


@pytest.mark.parametrize("factor", [3, -1])
@pytest.mark.parametrize("smaller", [True, False])
def test_a_compacted_topic_asks_for_what_is_configured(factor: int, smaller: bool) -> None:
    wanted = CompactedTopic("topic", factor, "some.factor", at_most_brokers=smaller)
    target = Target(3)
    assert create_compacted(cast(Cluster, target), wanted) == "B: created internal topic topic"
    assert (target.replicas, target.described) == ({"topic": factor}, 0)


def test_a_compacted_topic_that_may_be_smaller() -> None:
    wanted = CompactedTopic("topic", 3, "some.factor", at_most_brokers=True)
    target = Target(2)
    assert "with 2 replicas" in create_compacted(cast(Cluster, target), wanted)
    with pytest.raises(TooFewBrokers, match=r"some\.factor is 3.*2 live brokers"):
        create_compacted(cast(Cluster, Target(2)), replace(wanted, at_most_brokers=False))


def test_remote_topics_are_refused_by_the_controller_alone() -> None:
    actions = [CreateTopic(name, NewTopic(f"A.{name}", 1, 3, {})) for name in "tuv"]
    target = Target(3)
    errors, done = apply_topics(cast(Cluster, target), actions)
    assert (errors, len(done)) == ({}, 3)
    target = Target(2)
    errors, done = apply_topics(cast(Cluster, target), actions)
    assert (list(errors), done, target.described) == (["t", "u", "v"], [], 1)
    assert "A.t: the topic cannot be created: replication.factor is 3, but" in str(errors["t"])
    assert passing(errors["t"]), "a broker that is down starts again"


# --- without changing anything --------------------------------------------------------------------


@pytest.mark.parametrize("taken", [2, 3])
def test_a_plan_says_what_the_controller_would_do(taken: int) -> None:
    target = Target(taken)
    observed = Observation(FLOW, cast(Cluster, target), cast(Cluster, target))
    found = [_told(change) for change in plans.internal_topics(observed)]
    own = [("create-topic", name, taken) for name in internal_names(FLOW) if name != STORAGE]
    last = ("create-topic", STORAGE, 3) if taken == 3 else ("refuse", STORAGE, None)
    assert found == [*own, last]
    actions = [CreateTopic("t", NewTopic("A.t", 1, 3, {}))]
    (action,) = plans._with_brokers(cast(Cluster, target), actions)
    assert (action == actions[0]) is (taken == 3)
    assert target.there == {}


def _told(change: Change) -> tuple[str, str, object]:
    return change.action, change.subject, change.details.get("replication_factor")


def test_a_dry_run_is_for_replicas_on_brokers_that_are_down() -> None:
    target = Target(2)
    new = [NewTopic("t", 1, 2, {}), NewTopic("u", 1, -1, {})]
    assert planned(cast(Cluster, target), new, "key") == (new, {})
    assert planned(cast(Cluster, target), [], "key") == ([], {})
    assert (target.tried, target.described) == ([], 1)


def test_one_dry_run_stands_for_all_topics_with_as_many_replicas() -> None:
    target = Target(4)
    new = [NewTopic(f"t{number}", number, 3 + number % 2, {}) for number in range(1, 9)]
    assert planned(cast(Cluster, target), new, "key") == (new, {})
    assert [one.name for one in target.tried] == ["t1", "t2"]


@pytest.mark.parametrize("raised", [False, True])
def test_a_dry_run_that_tells_nothing_refuses(raised: bool) -> None:
    """Whether the controller takes more replicas than brokers are alive, nobody knows."""
    target = Target(3)

    def create(topics: Sequence[NewTopic], **_: object) -> dict[str, TopicOutcome]:
        if raised:
            raise Denied("no.", do="Grant it.")
        return {new.name: TopicOutcome(new.name, Denied("no.", do="Grant it.")) for new in topics}

    target.create_topics = create  # type: ignore[method-assign, assignment]
    missing = plan_internal_topics(FLOW, {})
    made, refused = planned(cast(Cluster, target), missing, factor_key(FLOW))
    assert (made, list(refused)) == ([], [new.name for new in missing])
    assert str(refused[STORAGE]) == (
        f"cluster B, topic {STORAGE}: B.offset.storage.replication.factor is 3, the cluster has 2 "
        "live brokers, and whether it takes more could not be asked: no. Grant it."
    )


# --- what the controller says ---------------------------------------------------------------------


@pytest.mark.parametrize("factor", [-1, 2])
def test_a_refusal_for_another_reason_keeps_the_controllers_words(factor: int) -> None:
    said = translate(BrokerError(38, "racks"), B, "creating topic t")
    told = str(too_few_brokers("B", NewTopic("t", 1, factor), "some.factor", 2, said))
    assert told.startswith("cluster B, topic t: creating topic t failed: ")
    assert "racks" in told
    assert f"some.factor is {factor}" in told
    assert "but the cluster has" not in told


def test_a_refusal_of_a_large_factor_has_them_too() -> None:
    said = translate(BrokerError(38, "only 2 broker(s) are registered."), B, "creating topic t")
    told = str(too_few_brokers("B", NewTopic("t", 1, 3), "some.factor", 2, said))
    assert "3, but the cluster has 2 live brokers (only 2 broker(s) are registered). Start" in told


def test_replicas_are_asked_for_down_to_the_brokers_that_are_alive() -> None:
    target = Target(3)
    counts: list[int] = []

    def create(topics: Sequence[NewTopic]) -> dict[str, TopicOutcome]:
        counts.extend(new.replication_factor for new in topics)
        return target.create_topics(topics)

    cluster = cast(Cluster, target)
    _, asked = ask_for(cluster, [NewTopic("t", 1, 5)], create, {"t"})
    assert (counts, asked["t"].replication_factor) == ([5, 4, 3], 3)
    target.taken, counts[:] = 0, []
    ask_for(cluster, [NewTopic("u", 1, 99), NewTopic("v", 1, 2)], create, {"u", "v"})
    assert counts == [99, 2, 5, 4, 3, 2], "what is refused is not asked for again as it was"
