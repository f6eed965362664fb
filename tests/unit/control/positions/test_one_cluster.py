"""Source and target are one cluster: what would be copied again and again is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from sparkmirror.control.positions.preflight import refuse_mirroring_onto_itself
from sparkmirror.errors import ConfigError
from sparkmirror.model import MirrorMode
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.topics_map import parse_rules
from sparkmirror.settings import ClusterClient, FlowSettings, PolicySettings, TopicSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import ClusterView, TopicView

A, B = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")


class Side:
    def __init__(self, cluster_id: str, *topics: str) -> None:
        self._view = ClusterView(cluster_id, (), 1)
        self._topics = topics

    def describe(self) -> ClusterView:
        return self._view

    def topics(self) -> dict[str, TopicView]:
        return {name: TopicView(name, "", 1, 1) for name in self._topics}


def start(
    rules: str,
    include: str,
    *topics: str,
    mode: MirrorMode = MirrorMode.MM2,
    target: str = "one",
    kind: str = "identity",
) -> None:
    settings = TopicSettings(include=(include,), map=parse_rules(rules) if rules else ())
    flow = FlowSettings(A, B, A, B, policy=PolicySettings(kind), topics=settings)
    flow = replace(flow, mode=mode)
    sides = cast(Cluster, Side("one", *topics)), cast(Cluster, Side(target))
    refuse_mirroring_onto_itself(flow, FlowTopics(flow), *sides)


@pytest.mark.parametrize("mode", MirrorMode)
def test_copies_within_a_cluster_that_end_there(mode: MirrorMode) -> None:
    start("eu[.](.*) => us.$1", "eu[.].*", "eu.t", "us.t", mode=mode)
    start("eu[.](.*) => us.$1", ".*", mode=mode, target="other")


@pytest.mark.parametrize("mode", MirrorMode)
def test_copies_that_would_be_copied_again(mode: MirrorMode) -> None:
    with pytest.raises(ConfigError) as caught:
        start("eu[.](.+) => us.$1", ".*", mode=mode)
    assert "topics would be mirrored again: for example, 'eu.a' becomes 'us.a'" in caught.value.what
    with pytest.raises(ConfigError, match="topics keep their names"):
        start("", ".*", mode=mode)


def test_rules_that_are_too_complex_are_tried_on_the_topics_there_are() -> None:
    rules, include = "(?!x)(.*)-(.*) => $2-$1-x", "(?!y).*-.*"
    start(rules, include, "t")
    with pytest.raises(ConfigError, match=r"for example, 'a-b' becomes 'b-a-x'"):
        start(rules, include, "a-b")
