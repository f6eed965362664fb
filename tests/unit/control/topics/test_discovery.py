"""A discovery: what it asks the target for, and whether the next one should come soon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from sparkmirror.control import loop
from sparkmirror.control.topics.config_sync import known_configs
from sparkmirror.control.topics.discovery import Discovery
from sparkmirror.control.topics.remote_names import RemoteNames
from sparkmirror.control.topics.routed_topics import observe_routed
from sparkmirror.errors import (
    Denied,
    MirrorError,
    QuotaExceeded,
    TooFewBrokers,
    TopicError,
    Unreachable,
)
from sparkmirror.internal_topics.commands import control_topic
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import ClusterClient, FaultSettings, FlowSettings, TopicSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import (
    BrokerView,
    ClusterView,
    ConfigEntry,
    NewTopic,
    TopicOutcome,
    TopicView,
)

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B, topics=TopicSettings(replication_factor=1))
CONTROL = control_topic(FLOW)
SET_HERE = ConfigEntry("5", "DYNAMIC_TOPIC_CONFIG")


class Side:
    """A cluster with ``names``. Only topics of ``described`` may be described; None: all.

    ``known``: its configs. ``refusals``: the error of creating a topic.
    """

    alias = "B"

    def __init__(self, *names: str, known: Iterable[str] = ("retention.ms",)) -> None:
        self.there = {name: TopicView(name, "", 1, 1) for name in names}
        self.known = tuple(known)
        self.described: set[str] | None = None
        self.refusals: dict[str, MirrorError] = {}
        self.made: list[NewTopic] = []
        self.patience: list[float | None] = []

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        wanted = self.there if names is None else names
        return {name: self.there[name] for name in wanted if name in self.there}

    def topic_configs(
        self, names: Iterable[str], **_: str
    ) -> dict[str, Mapping[str, ConfigEntry] | MirrorError]:
        configs = dict.fromkeys(self.known, SET_HERE)
        return {
            name: configs if self.described is None or name in self.described else Denied("no")
            for name in names
        }

    def describe(self) -> ClusterView:
        return ClusterView("id", (BrokerView(0, "b", 1, ""),), 0)

    def create_topics(
        self, topics: Sequence[NewTopic], *, patience_s: float | None = None
    ) -> dict[str, TopicOutcome]:
        self.patience.append(patience_s)
        self.made += topics
        for one in topics:
            if one.name not in self.refusals:
                self.there[one.name] = TopicView(one.name, "", one.partitions, 1)
        return {one.name: TopicOutcome(one.name, self.refusals.get(one.name)) for one in topics}

    def grow_topics(
        self, counts: Mapping[str, int], *, patience_s: float | None = None
    ) -> dict[str, TopicOutcome]:
        self.patience.append(patience_s)
        for name, count in counts.items():
            self.there[name] = TopicView(name, "", count, 1)
        return {name: TopicOutcome(name) for name in counts}

    def literal_errors(self, names: Iterable[str], **_: str) -> dict[str, MirrorError]:
        return {}


def discovery(source: Side, target: Side, flow: FlowSettings = FLOW) -> Discovery:
    wanted = FlowTopics(flow)
    names = RemoteNames(cast(Cluster, target), flow, wanted)
    sides: Any = (source, target)
    return Discovery(flow, *sides, wanted, lambda _: None, names)


# --- which configs the target knows ---------------------------------------------------------------


def test_the_mirrors_own_topic_shows_which_configs_the_target_knows() -> None:
    """The right to describe remote topics is not among those that a flow needs."""
    source = Side("old", "new", known=("retention.ms", "new.config"))
    target = Side("A.old", CONTROL)
    target.described = {CONTROL}
    discovery(source, target).discover(first=False)
    assert target.made == [NewTopic("A.new", 1, 1, {"retention.ms": "5"})]
    seen = observe_routed(
        cast(Cluster, source), cast(Cluster, target), FLOW, {"A.old": "old", "eu": "new"}
    )
    assert seen.known_configs == {"retention.ms"}


def test_a_topic_that_may_not_be_described_is_passed_over() -> None:
    target = Side()
    target.described = {"c"}
    known = [known_configs(cast(Cluster, target), names) for names in (["a", "b", "c"], ["a"], [])]
    assert known == [{"retention.ms"}, None, None]


# --- what may succeed soon ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "soon"),
    [(QuotaExceeded("no"), True), (Unreachable("no"), True), (Denied("no"), False),
     (TopicError("no"), False)],
)  # fmt: skip
@pytest.mark.parametrize("name", ["A.new", "A.old.dead-letter"])
def test_the_next_discovery_comes_soon_after_a_refusal_that_may_pass(
    error: MirrorError, soon: bool, name: str
) -> None:
    flow = replace(FLOW, faults=FaultSettings(bad_record="dead-letter"))
    source, target = Side("old", "new"), Side("A.old", CONTROL)
    target.refusals[name] = error
    found = discovery(source, target, flow)
    assert not found.unsettled
    assignment = found.discover(first=False)
    assert found.unsettled is soon
    assert {tp.topic for tp in assignment.halted} == ({"new"} if name == "A.new" else set())
    target.refusals.clear()
    assert found.discover(first=False).topics == ("new", "old")
    assert not found.unsettled


@pytest.mark.parametrize("name", ["A.new", "A.old.dead-letter"])
def test_a_broker_that_is_down_is_waited_for_longer(name: str) -> None:
    flow = replace(FLOW, faults=FaultSettings(bad_record="dead-letter"))
    source, target = Side("old", "new"), Side("A.old", CONTROL)
    target.refusals[name] = TooFewBrokers("no")
    found = discovery(source, target, flow)
    found.discover(first=False)
    assert (found.unsettled, found.lacks_brokers) == (False, True)
    target.refusals.clear()
    found.discover(first=False)
    assert not found.lacks_brokers


def test_a_refusal_is_waited_for_at_the_start_only() -> None:
    """A run that could mirror nothing would end. Later, the next discovery comes in 5 s."""
    source, target = Side("old"), Side(CONTROL)
    found = discovery(source, target)
    found.discover(first=True)
    assert set(target.patience) == {None}
    target.patience.clear()
    found.discover(first=False)
    (patience_s,) = set(target.patience)
    assert patience_s is not None
    assert patience_s <= loop._QUICK_ROUND_S


def test_a_discovery_may_repeat_the_last_one_without_new_topics() -> None:
    """What the target refused is created; what came or grew since then is not looked for."""
    source, target = Side("old", "refused"), Side("A.old", CONTROL)
    target.refusals["A.refused"] = QuotaExceeded("no")
    found = discovery(source, target)
    assert found.discover(first=False, fresh=False).topics == ("old",), "there was none before"
    source.there["new"] = TopicView("new", "", 1, 1)
    source.there["old"] = TopicView("old", "", 2, 1)
    target.refusals.clear()
    again = found.discover(first=False, fresh=False)
    assert (again.topics, len(again.partitions)) == (("old", "refused"), 2)
    assert [one.name for one in target.made] == ["A.refused"] * 2
    assert "new" in found.discover(first=False).topics
