"""Which configs a remote topic is created with, and which are changed later."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.control.topics.config_sync import (
    AlterConfigs,
    ConfigChange,
    ConfigPlan,
    ObservedConfigs,
    config_to_create_with,
    plan_configs,
    wanted_changes,
)
from sparkmirror.control.topics.notices import Notices, first_few
from sparkmirror.errors import Denied, TopicError
from sparkmirror.settings import ClusterClient, FlowSettings, TopicSettings
from sparkmirror.wire.cluster.views import ConfigEntry

A = ClusterClient("A", ("a:1",), "c")
B = ClusterClient("B", ("b:1",), "c")
FLOW = FlowSettings(A, B, A, B)


def flow(**topics: object) -> FlowSettings:
    return replace(FLOW, topics=TopicSettings(**topics))


def own(value: str | None) -> ConfigEntry:
    return ConfigEntry(value, "DYNAMIC_TOPIC_CONFIG")


def default(value: str) -> ConfigEntry:
    return ConfigEntry(value, "DEFAULT_CONFIG", is_default=True)


CONFIGS = {
    "retention.ms": own("5"),
    "max.message.bytes": ConfigEntry("7", "DYNAMIC_BROKER_CONFIG"),
    "segment.ms": default("1"),
    "segment.bytes": ConfigEntry("1", "STATIC_BROKER_CONFIG"),
    "min.insync.replicas": own("2"),
    "follower.replication.throttled.replicas": own("*"),
    "read.only": ConfigEntry("1", "DYNAMIC_TOPIC_CONFIG", read_only=True),
    "secret": ConfigEntry(None, "DYNAMIC_TOPIC_CONFIG", sensitive=True),
    "unset": own(None),
}
FROM_SOURCE = flow(use_defaults_from="source")


# --- create-topic rule ----------------------------------------------------------------------


def test_create_rule_leaves_defaults_to_the_target():
    kept = {"retention.ms": "5", "max.message.bytes": "7"}
    assert config_to_create_with(CONFIGS, FLOW) == (kept, ())


def test_create_rule_with_defaults_from_the_source():
    kept = {"retention.ms": "5", "max.message.bytes": "7", "segment.ms": "1"}
    assert config_to_create_with(CONFIGS, FROM_SOURCE) == (kept, ())


def test_create_rule_obeys_an_exclude_of_the_users():
    kept, _ = config_to_create_with(CONFIGS, flow(config_properties_exclude=("retention.*",)))
    assert kept == {
        "max.message.bytes": "7",
        "min.insync.replicas": "2",
        "follower.replication.throttled.replicas": "*",
    }


def test_create_rule_leaves_out_what_the_target_does_not_know():
    old = {"message.format.version": own("2.8-IV1"), "retention.ms": own("5"), "new": default("1")}
    known = frozenset({"retention.ms", "message.format.version"})
    assert config_to_create_with(old, FROM_SOURCE, known) == (
        {"retention.ms": "5", "message.format.version": "2.8-IV1"},
        (),  # a default is nobody's wish, so nothing is told
    )
    assert config_to_create_with(old, FLOW, frozenset({"retention.ms"})) == (
        {"retention.ms": "5"},
        ("message.format.version",),
    )
    # A target that does not tell is taken for a current one.
    assert config_to_create_with(old, FLOW)[1] == ("message.format.version",)


# --- sync rule ------------------------------------------------------------------------------


def test_sync_sets_what_the_source_set_and_deletes_what_it_did_not():
    assert wanted_changes(CONFIGS, FLOW) == {
        "max.message.bytes": "7",
        "retention.ms": "5",
        "segment.ms": None,
    }


def test_sync_with_the_sources_defaults_sets_all():
    assert wanted_changes(CONFIGS, FROM_SOURCE)["segment.ms"] == "1"


def seen(source, target) -> ObservedConfigs:
    return ObservedConfigs({"t": "A.t"}, {"t": source}, {"t": target})


def test_only_what_differs_is_planned():
    source = {"a": own("1"), "b": own("1"), "c": default("1"), "d": default("1"), "e": own("1")}
    target = {
        "a": own("1"),  # so already
        "b": own("2"),
        "c": own("2"),  # wiped
        "d": default("9"),  # another default is the target's right
        "e": ConfigEntry("1", "STATIC_BROKER_CONFIG"),  # the broker's value may change: set it
    }
    assert plan_configs(seen(source, target), FLOW) == ConfigPlan(
        (
            AlterConfigs(
                "t",
                "A.t",
                (
                    ConfigChange("b", "1", "2"),
                    ConfigChange("c", None, "2"),
                    ConfigChange("e", "1", "1"),
                ),
            ),
        )
    )


def test_kept_overrides_are_not_wiped_but_still_follow_a_source_that_sets_them():
    kept = flow(sync_configs_keep=("retention\\..*",))
    target = {"retention.ms": own("2"), "retention.bytes": own("3")}
    source = {"retention.ms": default("1"), "retention.bytes": own("1")}
    (action,) = plan_configs(seen(source, target), kept).actions
    assert action.changes == (ConfigChange("retention.bytes", "1", "3"),)


def test_a_config_that_the_target_lacks_is_told_once_for_all_topics():
    observed = ObservedConfigs(
        {"t": "A.t", "u": "A.u"},
        {"t": {"old": own("1"), "older": default("1")}, "u": {"old": own("2")}},
        {"t": {"other": own("1")}, "u": {"other": own("1")}},
    )
    assert plan_configs(observed, FLOW) == ConfigPlan(unknown={"old": ("t", "u")})


def test_a_topic_that_cannot_be_described_does_not_hold_up_the_others():
    denied = Denied("no")
    observed = ObservedConfigs(
        {"t": "A.t", "u": "A.u", "v": "A.v"},
        {"t": denied, "u": {"a": own("1")}, "v": {"a": own("1")}},
        {"t": {}, "u": {"a": own("2")}, "v": denied},
    )
    plan = plan_configs(observed, FLOW)
    assert plan.errors == {"t": denied, "v": denied}
    assert [action.topic for action in plan.actions] == ["u"]


def test_a_topic_that_went_or_is_not_there_yet_is_nothing_to_complain_of():
    gone = TopicError("the topic does not exist")
    observed = ObservedConfigs(
        {"t": "A.t", "u": "A.u", "v": "A.v"},
        {"t": gone, "u": {"a": own("1")}, "v": {"a": own("1")}},
        {"t": {}, "u": gone, "v": {"a": own("2")}},
    )
    plan = plan_configs(observed, FLOW)
    assert plan.errors == {}
    assert [action.topic for action in plan.actions] == ["v"]


names = st.sampled_from(["a", "b", "c", "min.insync.replicas"])
entries = st.one_of(
    st.sampled_from("12").map(own),
    st.sampled_from("12").map(default),
    st.sampled_from("12").map(lambda value: ConfigEntry(value, "STATIC_BROKER_CONFIG")),
)
configs = st.fixed_dictionaries({}, optional=dict.fromkeys(["a", "b", "c", "x"], entries))


def applied(target: dict, changes: dict[str, str | None]) -> dict:
    """What a broker makes of the changes; all of its defaults are 0."""
    after = dict(target)
    for name, value in changes.items():
        if value is not None:
            after[name] = own(value)
        elif name in after and after[name].source == "DYNAMIC_TOPIC_CONFIG":
            after[name] = default("0")
    return after


@given(configs, st.fixed_dictionaries(dict.fromkeys(["a", "b", "c", "x"], entries)),
       st.sampled_from([FLOW, FROM_SOURCE, flow(config_properties_exclude=("a",))]))  # fmt: skip
def test_the_plan_leads_where_java_leads_and_then_has_nothing_left(source, target, settings):
    plan = plan_configs(seen(source, target), settings)
    changes = {c.name: c.value for action in plan.actions for c in action.changes}
    after = applied(target, changes)
    assert after == applied(target, wanted_changes(source, settings))
    assert plan_configs(seen(source, after), settings) == ConfigPlan()


# --- notices --------------------------------------------------------------------------------


def test_a_complaint_is_said_when_it_comes_up_and_when_it_changes():
    said: list[str] = []
    notices = Notices(said.append)
    for complaints in ({"t": "x"}, {"t": "x"}, {"t": "y"}, {}, {"t": "y"}):
        notices.replace(complaints.items())
    assert said == ["x", "y", "y"]
    notices.replace((str(number), f"line {number}") for number in range(9))
    assert said[3:] == [f"line {number}" for number in range(5)] + [
        "4 more like this are in the log"
    ]


def test_a_long_list_is_cut():
    assert first_few(["a", "b"]) == "a, b"
    assert first_few(list("abcdefg")) == "a, b, c, d, e and 2 more"
