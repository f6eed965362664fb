"""Planning of remote topics, assignments, internal topics and position seeding: all pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.control.positions.seeding import (
    of_present_names,
    plan_seeding,
    position_group,
)
from sparkmirror.control.topics.compacted import COMPACTED
from sparkmirror.control.topics.internal_topics import (
    create_internal_topics,
    internal_names,
    offset_storage_topic,
    plan_internal_topics,
)
from sparkmirror.control.topics.sync import (
    Assignment,
    CreateTopic,
    GrowTopic,
    ObservedTopics,
    RefuseTopic,
    apply_topics,
    assign,
    describe_changes,
    plan_topics,
)
from sparkmirror.errors import Denied, TopicError
from sparkmirror.internal_topics.commands import SourcePartition, control_topic
from sparkmirror.internal_topics.connect_offsets import ConnectOffsets
from sparkmirror.internal_topics.gaps import gaps_topic
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import (
    ClusterClient,
    FlowSettings,
    PolicySettings,
    TopicRule,
    TopicSettings,
)
from sparkmirror.transform_settings import SmtSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import Committed, ConfigEntry, NewTopic, TopicOutcome, TopicView

A = ClusterClient("A", ("a:1",), "c")
B = ClusterClient("B", ("b:1",), "c")
FLOW = FlowSettings(A, B, A, B, topics=TopicSettings(replication_factor=1))
MM1 = replace(FLOW, mode=MirrorMode.MM1, group_id="g", policy=PolicySettings("identity"))
ID = "35a11f88-5f94-4293-baf8-f3769c144d7a"


def view(name: str, partitions: int = 1, topic_id: str = ID) -> TopicView:
    return TopicView(name, topic_id, partitions, 1)


def observed(source=(), target=(), configs=None) -> ObservedTopics:
    return ObservedTopics({v.name: v for v in source}, {v.name: v for v in target}, configs or {})


def set_here(value: str) -> ConfigEntry:
    return ConfigEntry(value, "DYNAMIC_TOPIC_CONFIG")


# --- plan -----------------------------------------------------------------------------------


def test_missing_remote_topic_is_created_like_its_source():
    configs = {
        "t": {"retention.ms": set_here("5"), "segment.ms": ConfigEntry("1", "DEFAULT_CONFIG", True)}
    }
    actions = plan_topics(observed([view("t", 3)], configs=configs), FLOW)
    assert actions == [CreateTopic("t", NewTopic("A.t", 3, 1, {"retention.ms": "5"}))]


def test_brokers_default_replication_factor_is_passed_on():
    flow = replace(FLOW, topics=TopicSettings(replication_factor=-1))
    (action,) = plan_topics(observed([view("t")]), flow)
    assert action == CreateTopic("t", NewTopic("A.t", 1, -1, {}))


def test_smaller_remote_topic_grows_and_larger_one_stays():
    target = [view("A.t", 2), view("A.u", 9)]
    actions = plan_topics(observed([view("t", 3), view("u", 3)], target), FLOW)
    assert actions == [GrowTopic("t", "A.t", 2, 3)]


def test_mirrormaker_1_refuses_a_smaller_target_topic_and_names_both_counts():
    (action,) = plan_topics(observed([view("t", 3)], [view("t", 2)]), MM1)
    assert isinstance(action, RefuseTopic)
    assert isinstance(action.error, TopicError)
    assert "2 partitions" in str(action.error)
    assert "has 3" in str(action.error)


def test_topic_whose_configs_cannot_be_read_is_refused_and_the_others_go_on():
    denied = Denied("no", where="cluster A")
    actions = plan_topics(observed([view("t"), view("u")], configs={"t": denied, "u": {}}), FLOW)
    assert actions == [RefuseTopic("t", denied), CreateTopic("u", NewTopic("A.u", 1, 1, {}))]


names = st.sampled_from(["a", "b.c", "d", "heartbeats", "x_1"])
counts = st.dictionaries(names, st.integers(1, 9))


@given(counts, counts, st.sampled_from([FLOW, MM1]))
def test_plan_and_apply_leave_nothing_to_plan(source, target, flow):
    """Applying the plan to the observation makes the next plan empty (but for refusals)."""
    prefix = "A." if flow is FLOW else ""
    seen = observed(
        [view(n, c) for n, c in source.items()], [view(prefix + n, c) for n, c in target.items()]
    )
    after = dict(seen.target)
    for action in plan_topics(seen, flow):
        if isinstance(action, CreateTopic):
            after[action.new.name] = view(action.new.name, action.new.partitions)
        elif isinstance(action, GrowTopic):
            assert action.present < action.partitions
            after[action.remote_topic] = view(action.remote_topic, action.partitions)
    again = plan_topics(replace(seen, target=after), flow)
    assert all(isinstance(action, RefuseTopic) for action in again)
    assert flow is MM1 or again == []


# --- assignment -----------------------------------------------------------------------------


@pytest.mark.parametrize(("now", "refused"), [(3, False), (2, True)])
def test_a_topic_that_others_grew_since_we_looked_is_no_error(now: int, refused: bool):
    class Target:
        def create_topics(self, wanted, **_):
            assert not wanted
            return {}

        def grow_topics(self, counts, **_):
            return {name: TopicOutcome(name, TopicError("invalid")) for name in counts}

        def topics(self, names):
            return {name: view(name, now) for name in names}

    errors, done = apply_topics(cast(Cluster, Target()), [GrowTopic("t", "A.t", 1, 3)])
    assert (list(errors), done) == (["t"] if refused else [], [])


def test_every_partition_is_assigned_or_halted():
    seen = observed([view("t", 3), view("u", 2), view("v", 2)], [view("A.t", 2), view("A.v", 2)])
    errors = {"t": TopicError("cannot grow"), "u": Denied("no")}
    result = assign(seen, FLOW, errors)
    assert [(p.topic, p.partition) for p in result.partitions] == [
        ("t", 0),
        ("t", 1),
        ("v", 0),
        ("v", 1),
    ]
    assert {str(tp): halt.code for tp, halt in result.halted.items()} == {
        "t-2": "TOPIC",
        "u-0": "DENIED",
        "u-1": "DENIED",
    }
    assert result.partitions[0] == SourcePartition("t", 0, "A.t", ID)
    assert result.topics == ("t", "v")


def test_mirrormaker_1_halts_the_whole_refused_topic():
    seen = observed([view("t", 3)], [view("t", 2)])
    result = assign(seen, MM1, {"t": TopicError("too few")})
    assert result.partitions == ()
    assert len(result.halted) == 3


def test_changes_are_told_in_one_line_each():
    def made(*views):
        return assign(observed(views), FLOW, {})

    before = made(view("gone"), view("grown", 1), view("anew", 1), view("same"))
    after = made(view("grown", 3), view("anew", 1, "x"), view("same"), view("come", 2))
    lines = list(describe_changes(before, after))
    assert lines == [
        "A->B: topic gone is gone from the source, it is no longer mirrored",
        "A->B: mirroring topic come (2 partitions)",
        "A->B: topic anew was deleted and recreated on the source",
        "A->B: topic grown has 3 partitions now (was 1)",
    ]
    assert list(describe_changes(after, after)) == []


# --- internal topics ------------------------------------------------------------------------


def test_internal_topics():
    flow = replace(FLOW, offset_storage_replication_factor=1, offset_storage_partitions=5)
    made = plan_internal_topics(flow, {})
    control, orders, gaps, storage = made
    assert internal_names(flow) == [topic.name for topic in made]
    assert orders == NewTopic("mm2-sparkmirror-orders.A.internal", 1, 1, COMPACTED)
    assert (control.name, control.partitions) == ("mm2-sparkmirror.A.internal", 2)
    assert control.configs["cleanup.policy"] == "compact"
    assert gaps == NewTopic("mm2-sparkmirror-gaps.A.internal", 1, 1, COMPACTED)
    assert storage == NewTopic("mm2-offsets.A.internal", 5, 1, COMPACTED)
    # What time it is on the mirror's machine does not matter to any of them.
    assert {one.configs["message.timestamp.type"] for one in (control, gaps)} == {"LogAppendTime"}
    present = {topic.name: view(topic.name, topic.partitions) for topic in made}
    assert plan_internal_topics(flow, present) == []


class _SlowBrokers:
    """Topics that are made are known from the look number ``known`` on; one look comes before."""

    def __init__(self, known: int) -> None:
        self.known, self.looks, self.alias = known, 0, "B"
        self.made: list[NewTopic] = []

    def topics(self, names: Iterable[str]) -> dict[str, TopicView]:
        self.looks += 1
        there = self.made if self.looks > self.known else []
        return {topic.name: view(topic.name, topic.partitions) for topic in there}

    def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, TopicOutcome]:
        self.made += topics
        return {topic.name: TopicOutcome(topic.name) for topic in topics}


@pytest.mark.parametrize("known", [1, 4])
def test_internal_topics_can_be_read_when_they_are_made(known: int):
    flow = replace(FLOW, offset_storage_replication_factor=1)
    brokers, waits = _SlowBrokers(known), []
    told = create_internal_topics(cast(Cluster, brokers), flow, wait=waits.append)
    assert len(told) == len(brokers.made) == 4
    assert len(waits) == known - 1
    assert brokers.topics([]).keys() == {topic.name for topic in brokers.made}


def test_topics_that_nobody_may_describe_are_not_waited_for_long():
    waits: list[float] = []
    flow = replace(FLOW, offset_storage_replication_factor=1)
    create_internal_topics(cast(Cluster, _SlowBrokers(10**6)), flow, wait=waits.append)
    assert 1 < sum(waits) < 10


def test_topics_without_a_leader_yet_are_waited_for_longer():
    """A broker at its limit: it knows the topics, and leads them much later."""
    waits: list[float] = []
    brokers = _SlowBrokers(1)
    seen = brokers.topics

    def topics(names: Iterable[str]) -> dict[str, TopicView]:
        late = sum(waits) < 20
        return {
            name: replace(one, leaderless=(0,) if late else ()) for name, one in seen(names).items()
        }

    brokers.topics = topics  # type: ignore[method-assign]
    flow = replace(FLOW, offset_storage_replication_factor=1)
    create_internal_topics(cast(Cluster, brokers), flow, wait=waits.append)
    assert 20 <= sum(waits) < 21


def test_offset_storage_topic_may_have_a_name_of_its_own():
    assert offset_storage_topic(replace(FLOW, offset_storage_topic="mine")) == "mine"


def test_mirrormaker_1_has_no_offset_storage():
    topic, _, gaps = plan_internal_topics(MM1, {})
    assert re.fullmatch(r"mm2-sparkmirror\.mm1-[0-9a-f]{16}\.internal", topic.name)
    assert gaps.name == topic.name.replace("mm2-sparkmirror.", "mm2-sparkmirror-gaps.")


def test_mirrors_of_mirrormaker_1_that_share_a_target_have_control_topics_of_their_own():
    other_group = replace(MM1, group_id="another")
    other_source = replace(MM1, source=replace(MM1.source, bootstrap_servers=("elsewhere:1",)))
    flows = (MM1, other_group, other_source)
    assert len({plan_internal_topics(flow, {})[0].name for flow in flows}) == 3


# --- positions ------------------------------------------------------------------------------


def test_position_group():
    assert position_group(FLOW) == "__mirror.A->B"
    assert position_group(MM1) == "g"


def test_positions_are_in_one_group_in_both_modes():
    assert position_group(replace(FLOW, exactly_once=True)) == position_group(FLOW)


def test_only_partitions_without_a_position_are_seeded():
    partitions = tuple(SourcePartition("t", n, "A.t", ID) for n in range(3))
    committed = {TopicPartition("A.t", 0): Committed(5)}
    stored = {
        TopicPartition("t", 0): 99,
        TopicPartition("t", 1): 7,
        TopicPartition("A.t", 2): 3,
        TopicPartition("u", 0): 1,
    }
    assert plan_seeding(Assignment("A->B", partitions), committed, stored) == {
        TopicPartition("A.t", 1): (7, f'{{"source_topic_id": "{ID}"}}')
    }


# --- under a map of topic names ---------------------------------------------------------------

MAPPED = replace(FLOW, topics=TopicSettings(map=(TopicRule("t", "x"),)))


def test_a_topic_under_another_name_begins_like_a_new_one():
    """What Connect's storage says of its topic is about the copy under the policy's name."""
    partitions = (SourcePartition("t", 0, "x", ID), SourcePartition("u", 0, "A.u", ID))
    assignment = Assignment("A->B", partitions)
    t, u = TopicPartition("t", 0), TopicPartition("u", 0)
    stored = ConnectOffsets({t: 9, u: 8}, mapped={(t, "other"): 7, (u, "x"): 6})
    assert of_present_names(MAPPED, assignment, stored) == {u: 8}
    again = ConnectOffsets({t: 9}, mapped={(t, "x"): 5})
    assert of_present_names(MAPPED, assignment, again) == {t: 5}
    # Without the map the copy under the policy's name goes on where it was.
    plain = Assignment("A->B", (SourcePartition("t", 0, "A.t", ID),))
    assert of_present_names(FLOW, plain, ConnectOffsets({t: 9}, mapped={(t, "x"): 5})) == {t: 9}


def test_with_regex_router_positions_are_those_of_the_source() -> None:
    """As in Java, so that each takes over from the other."""
    router = SmtSettings("r", "RegexRouter", "A[.](.*)", "$1")
    routed = replace(FLOW, topics=TopicSettings(smts=(router,)))
    t = TopicPartition("t", 0)
    assignment = Assignment("A->B", (SourcePartition("t", 0, "t", ID),))
    assert of_present_names(routed, assignment, ConnectOffsets({t: 9}, mapped={(t, "t"): 5})) == {
        t: 9
    }


def test_positions_of_mirrormaker_1_are_those_of_the_source_topic():
    assignment = Assignment("s->t", (SourcePartition("t", 0, "x", ID),))
    t, x = TopicPartition("t", 0), TopicPartition("x", 0)
    assert list(plan_seeding(assignment, {}, {t: 5}, by_source=True)) == [t]
    assert plan_seeding(assignment, {t: Committed(3)}, {t: 5}, by_source=True) == {}
    assert list(plan_seeding(assignment, {t: Committed(3)}, {t: 5})) == [x]


def test_own_topics_stay_where_they_are_whatever_separator_and_lists() -> None:
    """With another separator, the policy does not know them by their names."""
    flow = replace(FLOW, policy=PolicySettings(separator="_"), topics=TopicSettings(exclude=("x",)))
    for own in (control_topic(flow), gaps_topic(flow), runs_topic(flow)):
        assert not FlowTopics(flow).accepts(own)


@pytest.mark.parametrize(("exclude", "found"), [((), True), (("__consumer_offsets",), False)])
def test_kafkas_own_topics_are_mirrored_if_mirrormaker_1_is_told_so(
    exclude: tuple[str, ...], found: bool
) -> None:
    """``exclude.internal.topics=false``, for a handler or a map that renames them."""
    topics = TopicSettings(include=("__consumer_offsets",), exclude=exclude)
    name = "__consumer_offsets"
    mm1 = FlowTopics(replace(FLOW, mode=MirrorMode.MM1, topics=topics))
    assert mm1.mirrors(name, internal=True) is found
    assert not FlowTopics(replace(FLOW, topics=topics)).mirrors(name, internal=True)
