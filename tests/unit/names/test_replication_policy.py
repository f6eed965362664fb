"""Replication policies and topic filters against MirrorMaker 2's own answers."""

from typing import Any

import pytest

from sparkmirror.errors import ConfigError
from sparkmirror.model import MirrorMode
from sparkmirror.names.replication_policy import (
    FlowTopics,
    IdentityReplicationPolicy,
    ReplicationPolicy,
    TopicFilter,
    is_cycle,
    make_policy,
    policy_kind,
    should_replicate,
)
from sparkmirror.settings import ClusterClient, FlowSettings, PolicySettings, TopicSettings
from tests.rows import named
from tests.vectors import load

POLICIES = load("policies")
SHOULD_REPLICATE = load("should_replicate")
FILTERS = load("filters")

_NAMED: dict[str, ReplicationPolicy] = {
    "Default '.'": make_policy(PolicySettings(), "A"),
    "Default sep='_'": make_policy(PolicySettings(separator="_"), "A"),
    "Default sep='_' internal.separator.enabled=false": make_policy(
        PolicySettings(separator="_", internal_separator_enabled=False), "A"
    ),
    "Default internal.separator.enabled=false without separator": make_policy(
        PolicySettings(internal_separator_enabled=False), "A"
    ),
    "Default sep='__'": make_policy(PolicySettings(separator="__"), "A"),
    "Default sep=''": make_policy(PolicySettings(separator=""), "A"),
    "Identity source.cluster.alias=A": make_policy(PolicySettings("identity"), "A"),
    "Identity alias=A sep='_'": make_policy(PolicySettings("identity", separator="_"), "A"),
    "Identity no alias": IdentityReplicationPolicy(),
}


@pytest.mark.parametrize("name", POLICIES)
def test_own_topics_are_named_as_in_java(name: str) -> None:
    expected, policy = POLICIES[name], _NAMED[name]
    assert policy.offset_syncs_topic("B") == expected["offsetSyncsTopic_B"]
    assert policy.checkpoints_topic("A") == expected["checkpointsTopic_A"]
    assert policy.heartbeats_topic() == expected["heartbeatsTopic"]


@pytest.mark.parametrize("name", POLICIES)
def test_topic_names_are_read_as_in_java(name: str) -> None:
    policy = _NAMED[name]
    for case in POLICIES[name]["topics"]:
        topic = case["topic"]
        with named(topic):
            assert {
                "topic": topic,
                "topicSource": policy.topic_source(topic),
                "upstreamTopic": policy.upstream_topic(topic),
                "originalTopic": policy.original_topic(topic),
                "isHeartbeats": policy.is_heartbeats_topic(topic),
                "isCheckpoints": policy.is_checkpoints_topic(topic),
                "isMM2Internal": policy.is_mm2_internal_topic(topic),
                "isInternal": policy.is_internal_topic(topic),
                "formatRemote_A": policy.format_remote_topic("A", topic),
            } == case


@pytest.mark.parametrize("name", dict.fromkeys(case["policy"] for case in SHOULD_REPLICATE))
def test_topics_are_chosen_as_in_java(name: str) -> None:
    for case in (case for case in SHOULD_REPLICATE if case["policy"] == name):
        with named(case):
            _is_chosen_as_in_java(case)


def _is_chosen_as_in_java(case: dict[str, Any]) -> None:
    policy, topic = _NAMED[case["policy"]], case["topic"]
    target = case["flow"].partition("->")[2]
    defaults = TopicSettings()
    chosen = should_replicate(
        policy,
        TopicFilter(defaults.include, defaults.exclude),
        topic,
        target,
        heartbeats_replication_enabled=case["heartbeats.replication.enabled"],
    )
    assert is_cycle(policy, topic, target) == case["isCycle"]
    assert chosen == case["shouldReplicateTopic"]
    assert policy.format_remote_topic("A", topic) == case["remote"]


_FILTER_DEFAULTS = {
    "topic": ("topics", (".*",), TopicSettings().exclude),
    "group": ("groups", (".*",), ("console-consumer-.*", "connect-.*", "__.*")),
}


@pytest.mark.parametrize("kind", _FILTER_DEFAULTS)
def test_filters_accept_what_java_accepts(kind: str) -> None:
    key, include, exclude = _FILTER_DEFAULTS[kind]
    for case in FILTERS[kind]:
        config = {name: _elements(value) for name, value in case["config"].items()}
        with named(case):
            accepted = TopicFilter(config.get(key, include), config.get(f"{key}.exclude", exclude))
            assert accepted.accepts(case[kind]) == case["shouldReplicate"]


def test_config_properties_are_filtered_as_in_java() -> None:
    for case in FILTERS["config_property"]:
        config = case["config"]
        exclude = TopicSettings().config_properties_exclude
        if "config.properties.exclude" in config:
            exclude = _elements(config["config.properties.exclude"])
        with named(case):
            accepted = TopicFilter((".*",), exclude).accepts(case["property"])
            assert accepted == case["shouldReplicate"]


def _elements(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text else ()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("DefaultReplicationPolicy", "default"),
        ("org.apache.kafka.connect.mirror.DefaultReplicationPolicy", "default"),
        ("org.apache.kafka.connect.mirror.IdentityReplicationPolicy", "identity"),
        (" IdentityReplicationPolicy ", "identity"),
        ("LegacyReplicationPolicy", "identity"),
    ],
)
def test_policy_classes_are_known_with_and_without_package(name: str, kind: str) -> None:
    assert policy_kind(name) == kind
    assert make_policy(PolicySettings(kind=name), "A").__class__ is (
        make_policy(PolicySettings(kind=kind), "A").__class__
    )


def test_another_policy_class_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as caught:
        policy_kind("com.acme.DefaultReplicationPolicy", where="mm2.properties:7")
    assert "mm2.properties:7: replication.policy.class=com.acme.Default" in str(caught.value)
    assert "IdentityReplicationPolicy" in caught.value.do


def test_a_bad_regex_in_a_filter_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'b\(' is an invalid regex"):
        TopicFilter(("a", "b("))


def _flow(mode: MirrorMode, topics: TopicSettings, kind: str = "default") -> FlowSettings:
    a, b = ClusterClient("A", ("a:1",), ""), ClusterClient("B", ("b:1",), "")
    return FlowSettings(a, b, a, b, mode=mode, topics=topics, policy=PolicySettings(kind))


def test_a_mirrormaker_2_flow_renames_and_leaves_internal_topics_out() -> None:
    flow = FlowTopics(_flow(MirrorMode.MM2, TopicSettings(include=(".*",), exclude=())))
    assert flow.accepts("t")
    assert flow.remote("t") == "A.t"
    assert not flow.accepts("__consumer_offsets")
    assert not flow.accepts("B.t")


def test_heartbeats_follow_only_where_that_is_enabled() -> None:
    topics = TopicSettings(include=("t",), exclude=(), heartbeats_replication_enabled=False)
    assert FlowTopics(_flow(MirrorMode.MM2, TopicSettings(include=("t",)))).accepts("heartbeats")
    assert not FlowTopics(_flow(MirrorMode.MM2, topics)).accepts("heartbeats")


def test_a_mirrormaker_1_flow_goes_by_the_lists_alone() -> None:
    topics = TopicSettings(include=(".*",), exclude=("__consumer_offsets",))
    flow = FlowTopics(_flow(MirrorMode.MM1, topics, "identity"))
    assert flow.accepts("__mine")
    assert flow.accepts("source.t")
    assert not flow.accepts("__consumer_offsets")
    assert flow.remote("heartbeats") == "heartbeats"


# --- aliases that hold the separator --------------------------------------------------------


def _knowing(separator: str, *aliases: str) -> ReplicationPolicy:
    return make_policy(PolicySettings(separator=separator, aliases=aliases), aliases[0])


def test_a_known_alias_is_found_whatever_it_holds() -> None:
    policy = _knowing("-", "cluster-1", "cluster-2", "cluster-1-b")
    assert policy.topic_source("cluster-1-t") == "cluster-1"
    assert policy.upstream_topic("cluster-1-cluster-2-t") == "cluster-2-t"
    assert policy.original_topic("cluster-1-cluster-2-t") == "t"
    assert policy.topic_source("cluster-1-b-t") == "cluster-1-b"
    assert policy.is_heartbeats_topic("cluster-1-b-heartbeats")
    # Names of no known cluster are read as Java reads them.
    assert policy.topic_source("cluster-3-t") == "cluster"
    assert policy.topic_source("orders") is None


def test_a_name_that_can_be_read_in_two_ways_is_sent_back_to_neither() -> None:
    policy = _knowing("-", "a", "a-b", "c")
    for target in ("a", "a-b"):
        assert is_cycle(policy, "a-b-t", target)
    assert not is_cycle(policy, "a-b-t", "c")
    assert is_cycle(policy, "c-a-b-t", "a")


@pytest.mark.parametrize(
    ("separator", "aliases"),
    [
        ("-", ("cluster-1", "cluster-2")),
        ("-", ("x", "x-y", "x-y-x")),
        (".", ("us.east", "us.west", "us")),
        ("", ("a", "aa", "b")),
        (".", ("A", "B", "C")),
    ],
)
def test_no_topic_goes_round_between_known_clusters(
    separator: str, aliases: tuple[str, ...]
) -> None:
    """All flows between all clusters, looked at again and again as a mirror does."""

    def flow(source: str, target: str) -> FlowTopics:
        ends = [ClusterClient(alias, ("x:1",), "c") for alias in (source, target)]
        policy = PolicySettings(separator=separator, aliases=aliases)
        return FlowTopics(FlowSettings(*ends, *ends, policy=policy))

    flows = [(a, b, flow(a, b)) for a in aliases for b in aliases if a != b]
    topics = {alias: {"orders", "heartbeats"} for alias in aliases}
    # No topic makes more hops than there are other clusters; one more look shows nothing new.
    for _ in aliases:
        before = {alias: set(names) for alias, names in topics.items()}
        for source, target, wanted in flows:
            topics[target] |= {wanted.remote(t) for t in before[source] if wanted.accepts(t)}
    assert topics == before
    assert f"{aliases[1]}{separator}orders" in topics[aliases[0]]


@pytest.mark.parametrize("separator", [".", "__", ""])
def test_a_known_alias_before_nothing_but_separators_is_no_source(separator: str) -> None:
    policy = _knowing(separator, "A", "B")
    for topic in (f"B{separator}", f"B{separator}{separator}"):
        assert policy.topic_source(topic) is None
        assert policy.original_topic(topic) == topic
        assert not is_cycle(policy, topic, "B")
