r"""Maps of topic names: what rules mean, and which are refused.

The right sides are those of Java's ``Matcher.replaceFirst``; the expectations were read off its
documentation: ``$1``, ``${name}``, ``$0``, ``\`` before a plain character, and further digits only
while there is such a group.
"""

from __future__ import annotations

import pytest

from sparkmirror.errors import ConfigError
from sparkmirror.model import MirrorMode
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.topics_map import TopicsMap, name_fault, parse_rules
from sparkmirror.settings import FlowNaming, PolicySettings, TopicRule, TopicSettings


def named(text: str, topic: str) -> str | None:
    return TopicsMap(parse_rules(text)).name(topic)


@pytest.mark.parametrize(
    ("text", "topic", "name"),
    [
        (r"^eu\.(.*)$ => tenant-eu.$1", "eu.orders", "tenant-eu.orders"),
        (r"^eu\.(.*)$ => tenant-eu.$1", "us.orders", None),
        (r"eu\.(.*) => tenant-eu.$1", "my.eu.orders", None),  # whole names
        ("a.* => first; ab.* => second", "abc", "first"),
        ("ab.* => first; a.* => second", "ac", "second"),
        ("a => b;", "a", "b"),
        ("  a   =>   b  ;  c=>d  ", "c", "d"),
        (r"(\w+)-(\w+) => $2.$1.$2", "x-y", "y.x.y"),
        (".* => all.$0", "t", "all.t"),
        ("(?<tenant>[a-z]+)[.](.*) => ${tenant}-$2", "eu.t", "eu-t"),
        ("(a)(b)? => x$1$2y", "a", "xay"),  # a group that took no part is empty
        ("(a)(.*) => $12", "abc", "a2"),
        ("(a)(b)(c)(d)(e)(f)(g)(h)(i)(j) => $10", "abcdefghij", "j"),
        (r"(a) => \x\1.$1", "a", "x1.a"),
        ("(?i)EU[.](.*) => $1", "eu.t", "t"),
        (r"\Qa.b\E => c", "a.b", "c"),
        (r"\Qa.b\E => c", "axb", None),
    ],
)
def test_rules_name_topics_as_java_would(text: str, topic: str, name: str | None) -> None:
    assert named(text, topic) == name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a > b", "the rule 'a > b' has no '=>'"),
        ("a", "has no '=>'"),
        ("a => b => c", "has more than one '=>'"),
        ("a => b; ; c => d", "rule 2 is empty"),
        ("; a => b", "rule 1 is empty"),
        (" => b", "has no regex"),
        ("a => ; c => d", "gives no name"),
        ("a( => b", "'a(' is an invalid regex"),
        ("a => $1", "the regex has no group $1; it has 0"),
        ("(a)(b) => x$3", "the regex has no group $3; it has 2"),
        ("(a) => ${b}", "no group named b"),
        ("(a) => b$", "not followed by a number or a {name}"),
        ("(a) => b\\", "ends in a lone backslash"),
        ("a => b c", "it contains ' '"),
        ("(a) => ä$1", "it contains 'ä'"),
        ("a => .", "Kafka does not allow this name"),
        ("a => ..", "Kafka does not allow this name"),
        ("a => " + "x" * 250, "it has 250 characters; topic names have at most 249"),
        ("(a) => " + "x" * 250 + "$1", "250 characters"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rules(text, where="m.properties:7: key")
    assert told in caught.value.what
    assert caught.value.where == "m.properties:7: key"
    assert caught.value.do
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("a.B_c-9", ""),
        ("x" * 249, ""),
        ("...", ""),
        ("", "it is empty"),
        ("a/b", "it contains '/'"),
        ("x" * 250, "250 characters"),
    ],
)
def test_kafkas_rules_of_names(name: str, fault: str) -> None:
    found = name_fault(name)
    assert fault in found
    assert bool(found) == bool(fault)


# --- in a flow ----------------------------------------------------------------------------------


def flow(text: str, kind: str = "default", mode: MirrorMode = MirrorMode.MM2) -> FlowTopics:
    topics = TopicSettings(include=(".*",), exclude=(), map=parse_rules(text))
    return FlowTopics(FlowNaming("A", "B", PolicySettings(kind), topics, mode))


RULE = "^eu[.](.*)$ => tenant-eu.$1"


def test_the_map_comes_before_the_policy_and_gives_the_whole_name() -> None:
    assert flow(RULE).remote("eu.t") == "tenant-eu.t"
    assert flow(RULE).remote("us.t") == "A.us.t"
    assert flow(RULE, "identity").remote("eu.t") == "tenant-eu.t"
    assert flow(RULE, "identity").remote("us.t") == "us.t"
    assert flow(RULE, "identity", MirrorMode.MM1).remote("eu.t") == "tenant-eu.t"
    assert flow(RULE, "identity", MirrorMode.MM1).remote("us.t") == "us.t"


def test_what_a_flow_mirrors_does_not_depend_on_the_map() -> None:
    for topic in ("eu.t", "us.t"):
        assert flow(RULE).accepts(topic)
    assert not flow(RULE).accepts("B.eu.t")
    assert not flow(".* => x.$0").accepts("__consumer_offsets")


def test_heartbeats_keep_the_policys_names() -> None:
    for kind in ("default", "identity"):
        wanted = flow(".* => x.$0", kind)
        assert wanted.mapped("heartbeats") is None
        assert wanted.remote("heartbeats") == "A.heartbeats"
        assert wanted.remote("C.heartbeats") == "A.C.heartbeats"
        assert wanted.remote("my-heartbeats") == "x.my-heartbeats"
    assert flow(".* => x.$0", mode=MirrorMode.MM1).remote("heartbeats") == "x.heartbeats"


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("eu-", "it is empty"),
        ("eu-" + "x" * 250, "250 characters"),
        ("eu-__x", "internal topic"),
        ("eu-.x", "internal topic"),
        ("eu-mm2-offsets.A.internal", "internal topic"),
        ("eu-C.checkpoints.internal", "internal topic"),
        ("eu-heartbeats", "it is the name of a heartbeats topic"),
        ("eu-.", "Kafka does not allow"),
        ("eu-t", ""),
        ("us-t", ""),
        ("eu-C.heartbeats", ""),  # itself heartbeats, of a cluster eu-C: the policy names it
    ],
)
def test_names_that_no_copy_can_have(topic: str, told: str) -> None:
    found = flow("eu-(.*) => $1").fault(topic)
    assert told in found
    assert bool(found) == bool(told)


def test_mirrors_own_topics_are_known_whatever_the_separator() -> None:
    policy = PolicySettings(separator="_")
    topics = TopicSettings(map=(TopicRule("t", "mm2-sparkmirror.A.internal"),))
    assert "internal topic" in FlowTopics(FlowNaming("A", "B", policy, topics)).fault("t")


def test_which_rule_names_a_topic() -> None:
    wanted = flow("a.* => x; b.* => y")
    assert [wanted.rule(topic) for topic in ("a", "b", "c", "heartbeats")] == [0, 1, None, None]
