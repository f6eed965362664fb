"""Loops and common names of flows with maps, told from lists and maps alone."""

from __future__ import annotations

import pytest

from sparkmirror.model import MirrorMode
from sparkmirror.names.regex_overlap import Undecided
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.topic_ways import (
    common_target,
    copied_again,
    loop_example,
    one_target_twice,
    rule_catches,
    rule_gives,
)
from sparkmirror.names.topics_map import parse_rules
from sparkmirror.settings import FlowNaming, PolicySettings, TopicSettings


def naming(
    name: str,
    rules: str = "",
    topics: str = ".*",
    exclude: tuple[str, ...] = (),
    *,
    kind: str = "default",
    mode: MirrorMode = MirrorMode.MM2,
) -> FlowNaming:
    source, _, target = name.partition("->")
    settings = TopicSettings(
        include=tuple(topics.split(",")),
        exclude=exclude,
        map=parse_rules(rules) if rules else (),
    )
    return FlowNaming(source, target, PolicySettings(kind, aliases=("A", "B", "C")), settings, mode)


EU = "^eu[.](.*)$ => tenant-eu.$1"


@pytest.mark.parametrize(
    "ring",
    [
        # Whatever A sends under another name, B sends back under its own prefix.
        [naming("A->B", EU), naming("B->A")],
        [naming("A->B", EU, "eu[.]x"), naming("B->A", topics="tenant-.*")],
        [naming("A->B", ".* => x.$0"), naming("B->A", ".* => y.$0")],
        [naming("A->B", "(.*) => x.$1"), naming("B->A", "x[.](.*) => $1")],
        [naming("A->B", "t => t"), naming("B->A", kind="identity")],
        [naming("A->B", "(a)-(b) => $2.$1"), naming("B->A", topics="b.a")],
        [naming("A->B", "(?i)EU[.](.*) => x.$1"), naming("B->A", topics="x[.]q")],
        # A group that took no part is empty in the name.
        [naming("A->B", "(a)(b)?.* => $2$1", "a"), naming("B->A", topics="a")],
        [naming("A->B", "(?:(a)|(c))x => $1$2-", "cx"), naming("B->A", topics="c-")],
        [naming("A->B", "(a)|(d) => q$2", "d"), naming("B->A", topics="qd")],
        [naming("A->B", EU), naming("B->C", "tenant-eu[.](.*) => c.$1"), naming("C->A")],
        [naming("A->B", EU), naming("B->C"), naming("C->A", "B[.](.*) => back.$1")],
        [naming("A->B", "a => q; b.* => r.$0", kind="identity"), naming("B->A", topics="r.*")],
    ],
)
def test_a_topic_that_would_go_round_is_found(ring: list[FlowNaming]) -> None:
    names = loop_example(ring)
    assert names is not None
    assert len(names) == len(ring) + 1
    for hop, before, after in zip(ring, names, names[1:], strict=False):
        wanted = FlowTopics(hop)
        assert wanted.accepts(before)
        assert wanted.remote(before) == after


@pytest.mark.parametrize(
    "ring",
    [
        [naming("A->B", EU), naming("B->A", exclude=("tenant-.*",))],
        [naming("A->B", EU, "eu[.].*"), naming("B->A", "^us[.](.*)$ => tenant-us.$1", "us[.].*")],
        [naming("A->B", "t => x"), naming("B->A", "u => y", "u")],
        [naming("A->B", "t => B.x", "t"), naming("B->A", topics="t")],
        [naming("A->B", EU, ".*"), naming("B->C", topics="c"), naming("C->A")],
        [naming("A->B"), naming("B->C"), naming("C->A", "never => x")],
        # By their names these have been on A: MirrorMaker's own rule keeps them from there.
        [naming("A->B", ".* => A.$0"), naming("B->A")],
        [naming("A->B", topics="o.*"), naming("B->A", "A[.](.*) => $1", "A[.].*")],
    ],
)
def test_maps_that_keep_apart_make_no_loop(ring: list[FlowNaming]) -> None:
    assert loop_example(ring) is None


def test_heartbeats_make_no_loop_of_a_map() -> None:
    ring = [naming("A->B", ".* => x.$0", "heartbeats"), naming("B->A", topics="x[.]heartbeats")]
    assert loop_example(ring) is None


def test_what_is_too_complex_is_left_undecided() -> None:
    ring = [naming("A->B", "((e)u)[.](.*) => $1.$2.$3", "(?!x)e.*"), naming("B->A", topics="e.*")]
    with pytest.raises(Undecided):
        loop_example(ring)


def test_copies_within_one_cluster() -> None:
    assert copied_again(naming("A->B", EU, "eu[.].*", kind="identity")) is None
    again = copied_again(naming("A->B", EU, kind="identity"))
    assert again is not None
    again = copied_again(naming("A->B", "(.*) => $1.x", mode=MirrorMode.MM1, kind="identity"))
    assert again == ["a", "a.x", "a.x.x"]


# --- two topics, one name -----------------------------------------------------------------------


def test_two_flows_that_give_one_name() -> None:
    found = common_target(naming("A->C", EU), naming("B->C", "(.*)-eu => tenant-eu.$1"))
    assert found is not None
    first, second, name = found
    assert name.startswith("tenant-eu.")
    assert first.startswith("eu.")
    assert second.endswith("-eu")
    # Of one with a map and one without.
    found = common_target(naming("A->C", "(.*)[.]b => B.$1"), naming("B->C"))
    assert found is not None
    assert found[2] == f"B.{found[1]}"


def test_flows_that_give_names_of_their_own() -> None:
    assert common_target(naming("A->C", EU), naming("B->C")) is None
    assert common_target(naming("A->C", ".* => a.$0"), naming("B->C", ".* => b.$0")) is None
    assert common_target(naming("A->C", EU, "us[.].*"), naming("B->C", EU, "us[.].*")) is None


@pytest.mark.parametrize(
    ("rules", "kind", "twice"),
    [
        ("(eu|us)[.](.*) => all.$2", "default", True),
        ("eu[.](.*) => x.$1; us[.](.*) => x.$1", "default", True),
        ("eu[.](.*) => $1", "identity", True),  # eu.t and t
        ("a.* => one", "default", True),
        (EU, "default", False),
        ("eu[.](.*) => x.$1; us[.](.*) => y.$1", "default", False),
        ("a => one", "default", False),
    ],
)
def test_two_topics_of_one_flow(rules: str, kind: str, *, twice: bool) -> None:
    flow = naming("A->B", rules, kind=kind)
    found = one_target_twice(flow)
    assert (found is not None) == twice
    if found is not None:
        wanted = FlowTopics(flow)
        assert found[0] != found[1]
        assert wanted.remote(found[0]) == wanted.remote(found[1]) == found[2]


# --- rules --------------------------------------------------------------------------------------


def test_rules_that_catch_nothing() -> None:
    rules = "a.* => x.$0; ab => y; c => z; (?!q)d => w"
    flow = naming("A->B", rules, "a.*,d")
    assert rule_catches(flow, 0)
    assert not rule_catches(flow, 1)  # the rule before it catches them
    assert not rule_catches(flow, 2)  # topics leave them out
    with pytest.raises(Undecided):
        rule_catches(flow, 3)
    assert not rule_catches(naming("A->B", "heartbeats => x"), 0)


@pytest.mark.parametrize(
    ("rule", "gives"),
    [
        ("(.*) => __$1", False),
        ("(.*) => .$1", False),
        ("t => mm2-x.internal", False),
        ("t => A.checkpoints.internal", False),
        ("t => heartbeats", False),
        ("(.*) => $1", True),
        ("(.*) => mm2$1", True),
        ("t => x", True),
    ],
)
def test_rules_that_only_give_internal_names(rule: str, *, gives: bool) -> None:
    assert rule_gives(naming("A->B", rule), 0) == gives
