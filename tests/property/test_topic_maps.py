"""Maps of topic names: found loops go round, none is missed among short names, and whatever flows
do in whatever order, a name at the target has one topic.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.control.topics.remote_names import plan_names
from sparkmirror.internal_topics.remote_names import collect_remote_names
from sparkmirror.internal_topics.remote_names import encode_remote_name as encode
from sparkmirror.model import MirrorMode
from sparkmirror.names.regex_overlap import Undecided
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.topic_ways import common_target, loop_example, one_target_twice
from sparkmirror.names.topics_map import name_fault
from sparkmirror.settings import (
    ClusterClient,
    FlowNaming,
    FlowSettings,
    PolicySettings,
    TopicRule,
    TopicSettings,
)

_CHARS = "ab."
_SHORT = ["".join(chars) for n in (1, 2, 3, 4) for chars in itertools.product(_CHARS, repeat=n)]
_ALIASES = ("A", "B", "C")

_RULES = st.sampled_from(
    [
        TopicRule("a[.](.*)", "b.$1"),
        TopicRule("a[.](.*)", "$1"),
        TopicRule("(.*)[.](a|b)", "$2.$1"),
        TopicRule("b(.*)", "a$1"),
        TopicRule("(a|b)+", "ab"),
        TopicRule("(a)(b)?.*", "$2$1"),
        TopicRule(".*", "b.$0"),
        TopicRule("(?i)A(.*)", "B.$1"),
        TopicRule("((a)b)(.*)", "$1$2$3"),
        TopicRule("a", "heartbeats"),
    ]
)
_LISTS = st.sampled_from([".*", "a.*", "b.*", "[ab]", "a[.].*", "B[.].*", "(?!b).*", "a,b"])


@st.composite
def namings(draw: st.DrawFn, source: str, target: str) -> FlowNaming:
    topics = TopicSettings(
        include=tuple(draw(_LISTS).split(",")),
        exclude=tuple(draw(st.sampled_from([(), ("b[.].*",), ("B[.].*",)]))),
        map=tuple(draw(st.lists(_RULES, max_size=2))),
    )
    kind = draw(st.sampled_from(["default", "identity"]))
    return FlowNaming(source, target, PolicySettings(kind, aliases=_ALIASES), topics, mirror=source)


def way(ring: list[FlowNaming], topic: str) -> list[str] | None:
    names = [topic]
    for naming in ring:
        wanted = FlowTopics(naming)
        if not wanted.accepts(names[-1]) or wanted.fault(names[-1]):
            return None
        names.append(wanted.remote(names[-1]))
    return names


@settings(max_examples=75, deadline=None)
@given(
    st.one_of(
        st.tuples(namings("A", "B"), namings("B", "A")),
        st.tuples(namings("A", "B"), namings("B", "C"), namings("C", "A")),
    )
)
def test_a_loop_is_one_and_none_is_missed(ring: tuple[FlowNaming, ...]) -> None:
    flows = list(ring)
    try:
        found = loop_example(flows)
    except Undecided:
        return
    if found is not None:
        assert way(flows, found[0]) == found
        return
    for topic in _SHORT:
        assert way(flows, topic) is None, topic


@settings(max_examples=75, deadline=None)
@given(namings("A", "C"), namings("B", "C"))
def test_topics_that_would_meet_do(one: FlowNaming, other: FlowNaming) -> None:
    for first, second in ((one, other), (one, one)):
        try:
            met = common_target(one, other) if second is other else one_target_twice(one)
        except Undecided:
            continue
        if met is None:
            continue
        ours, theirs = FlowTopics(first), FlowTopics(second)
        assert ours.accepts(met[0])
        assert theirs.accepts(met[1])
        assert ours.remote(met[0]) == met[2] == theirs.remote(met[1])
        assert second is other or met[0] != met[1]
        assert name_fault(met[2]) == ""


# --- who has which name -------------------------------------------------------------------------


def flow(source: str, rules: tuple[TopicRule, ...]) -> FlowSettings:
    ends = [ClusterClient(alias, (f"{alias}:1",), "c") for alias in (source, "C")]
    topics = TopicSettings(include=(".*",), exclude=(), map=rules)
    return FlowSettings(*ends, *ends, policy=PolicySettings("identity"), topics=topics)


_TOPICS = st.frozensets(st.sampled_from(["a", "b", "ab", "a.a", "a.b", "b.a", "b.b"]), max_size=5)
# Which flow looks, and the topics that it sees.
_LOOKS = st.lists(st.tuples(st.integers(0, 1), _TOPICS), max_size=8)


@settings(deadline=None)
@given(
    st.lists(_RULES, min_size=1, max_size=2),
    st.lists(_RULES, max_size=2),
    _LOOKS,
    st.sampled_from(MirrorMode),
)
def test_a_name_has_one_topic_whoever_looks_when(
    first: list[TopicRule],
    second: list[TopicRule],
    looks: list[tuple[int, frozenset[str]]],
    mode: MirrorMode,
) -> None:
    one, other = (
        replace(flow(alias, tuple(rules)), mode=mode, group_id=alias)
        for alias, rules in (("A", first), ("B", second))
    )
    flows = [replace(one, beside=(other.naming,)), replace(other, beside=(one.naming,))]
    log: list[tuple[bytes | None, bytes | None]] = []
    mirrored: list[dict[str, str]] = [{}, {}]
    for index, topics in looks:
        mine = flows[index]
        wanted = FlowTopics(mine)
        plan = plan_names(topics, wanted, mine, collect_remote_names(log))
        for _ in range(5):
            if not plan.rows:
                break
            log += [encode(row) for row in plan.rows]
            plan = plan_names(topics, wanted, mine, collect_remote_names(log))
        assert not plan.rows  # a look settles, and another one changes nothing
        kept = {topic: wanted.remote(topic) for topic in topics if topic not in plan.refused}
        assert len(set(kept.values())) == len(kept)
        assert all(not wanted.fault(topic) for topic in kept)
        mirrored[index] = kept
        both = [*mirrored[0].values(), *mirrored[1].values()]
        # Heartbeats have no rows: each cluster's are named after it.
        both = [name for name in both if not name.endswith("heartbeats")]
        assert len(set(both)) == len(both)
        for topic in plan.merging:
            assert wanted.remote(topic) in mirrored[1 - index].values()
