"""Which topic has which name at the target, where a map gives names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.control.topics.acl_sync import ObservedAcls, plan_acls
from sparkmirror.control.topics.internal_topics import internal_names, plan_internal_topics
from sparkmirror.control.topics.remote_names import (
    NamePlan,
    RemoteNames,
    plan_names,
    read_remote_names,
    refused_names,
)
from sparkmirror.control.topics.sync import (
    ObservedTopics,
    RefuseTopic,
    assign,
    observe_topics,
    plan_topics,
)
from sparkmirror.errors import TopicError
from sparkmirror.internal_topics.remote_names import (
    REMOTE_NAMES_TOPIC,
    RemoteName,
    encode_remote_name,
)
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.topics_map import parse_rules
from sparkmirror.settings import ClusterClient, FlowSettings, PolicySettings, TopicSettings
from sparkmirror.transform_settings import TransformSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import AclBinding, TopicView

RULES = "^(?:eu|us)[.](.*)$ => all.$1"


def flow(name: str, rules: str = RULES, *others: FlowSettings) -> FlowSettings:
    source, _, target = name.partition("->")
    ends = [ClusterClient(alias, (f"{alias}:1",), "c") for alias in (source, target)]
    return FlowSettings(
        *(*ends, *ends),
        topics=TopicSettings(map=parse_rules(rules) if rules else (), replication_factor=1),
        offset_storage_replication_factor=1,
        beside=tuple(other.naming for other in others),
    )


A = flow("A->C")


def planned(one: FlowSettings, topics: Iterable[str], *known: RemoteName) -> NamePlan:
    return plan_names(list(topics), FlowTopics(one), one, known)


def row(remote: str, alias: str, topic: str, *, past: bool = False) -> RemoteName:
    return RemoteName(remote, alias, alias, topic, past)


class Rows(Cluster):
    """A target that has nothing but the topic of names."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        return {REMOTE_NAMES_TOPIC: TopicView(REMOTE_NAMES_TOPIC, "", 1, 1)}

    def read_compacted(self, topic: str, **_: Any) -> Iterator[tuple[int, bytes, bytes | None]]:
        assert topic == REMOTE_NAMES_TOPIC
        yield from [(0, key, value) for key, value in self.records]

    def produce_many(self, topic: str, records: Any, **_: Any) -> int:
        assert topic == REMOTE_NAMES_TOPIC
        self.records += [(key, value) for _, key, value in records]
        return len(records)


# --- plan ---------------------------------------------------------------------------------------


def test_a_flow_without_a_map_keeps_no_names() -> None:
    plain = flow("A->C", "")
    assert planned(plain, ["t", "u"], row("A.t", "B", "t")) == NamePlan()
    assert refused_names(cast(Cluster, None), plain, FlowTopics(plain), ["t"]) == {}
    assert RemoteNames(cast(Cluster, None), plain, FlowTopics(plain)).settle(["t"]) == {}


@pytest.mark.parametrize("rules", ["", RULES], ids=["policy", "map"])
def test_a_topic_that_two_transforms_match_is_left_out_and_the_others_go_on(rules: str) -> None:
    """Their lists are too complex to compare when the file is read."""
    lists = {"clean": ("eu[.].*",), "mask": ("(?!x)eu[.]a", "b")}
    made = tuple(TransformSettings(name, topics, "true") for name, topics in lists.items())
    one, target = replace(flow("A->C", rules), transforms=made), Rows()
    wanted, topics = FlowTopics(one), ["eu.a", "eu.c", "b", "c"]
    for found in (
        refused_names(target, one, wanted, topics),
        RemoteNames(target, one, wanted).settle(topics),
    ):
        assert {topic: str(error) for topic, error in found.items()} == {
            "eu.a": "cluster A, topic eu.a: topic eu.a matches the transforms clean and mask. "
            "Write lists that have no topic in common."
        }
    assert {each.topic for each in read_remote_names(target)} <= {"eu.c", "b", "c"}


def test_each_topic_has_its_row() -> None:
    found = planned(A, ["eu.t", "u", "heartbeats"])
    assert found.refused == {}
    assert found.rows == (row("all.t", "A", "eu.t"), row("A.u", "A", "u"))
    assert planned(A, ["eu.t", "u", "heartbeats"], *found.rows).rows == ()


def test_two_topics_of_one_name_are_named_and_one_of_them_is_mirrored() -> None:
    found = planned(A, ["us.t", "eu.t", "u"])
    assert set(found.refused) == {"us.t"}
    error = found.refused["us.t"]
    assert isinstance(error, TopicError)
    assert "'all.t'" in str(error)
    assert "topic eu.t of A" in str(error)
    assert "topic us.t" in error.where
    assert "sparkmirror.topics.map" in error.do
    assert found.merging == frozenset()  # both are topics of this flow


def test_whoever_has_a_name_keeps_it() -> None:
    found = planned(A, ["eu.t", "us.t"], row("all.t", "A", "us.t"))
    assert set(found.refused) == {"eu.t"}
    assert found.rows == ()


def test_a_name_is_free_again_when_its_topic_is_gone() -> None:
    found = planned(A, ["eu.t"], row("all.t", "A", "us.t"))
    assert found.refused == {}
    assert found.rows == (row("all.t", "A", "eu.t"),)


def test_names_that_no_topic_has_any_more_are_past() -> None:
    found = planned(A, ["eu.t"], row("all.t", "A", "eu.t"), row("old.t", "A", "eu.t"))
    assert found.rows == (row("old.t", "A", "eu.t", past=True),)
    assert planned(A, ["eu.t"], row("all.t", "A", "eu.t"), *found.rows).rows == ()


def test_rows_of_other_mirrors_stay() -> None:
    assert planned(A, [], row("B.t", "B", "t"), row("all.t", "B", "t")).rows == ()


B = flow("B->C", "x[.](.*) => all.$1")
A_BESIDE, B_BESIDE = flow("A->C", RULES, B), flow("B->C", "x[.](.*) => all.$1", A)


def test_flows_that_would_merge_are_told_by_both_topics() -> None:
    found = planned(B_BESIDE, ["x.t", "x.u"], row("all.t", "A", "eu.t"))
    assert set(found.refused) == set(found.merging) == {"x.t"}
    assert "topic eu.t of A" in str(found.refused["x.t"])
    assert "cluster B, topic x.t" in str(found.refused["x.t"])
    assert found.rows == (row("all.u", "B", "x.u"),)


def test_the_first_row_decides() -> None:
    rows = row("all.t", "A", "eu.t"), row("all.t", "B", "x.t")
    assert planned(A_BESIDE, ["eu.t"], *rows).refused == {}
    lost = planned(B_BESIDE, ["x.t"], *rows)
    assert set(lost.merging) == {"x.t"}
    assert lost.rows == (row("all.t", "B", "x.t", past=True),)  # it claims it no longer
    assert planned(B_BESIDE, ["x.t"], *reversed(rows)).refused == {}


@pytest.mark.parametrize(
    "known",
    [
        row("all.t", "A", "eu.t", past=True),
        row("all.t", "A", "other"),  # the file's rules would name it otherwise
        row("all.t", "A", "__eu.t"),  # the flow mirrors no such topic
        row("all.t", "D", "eu.t"),  # no flow of this file
    ],
)
def test_rows_that_hold_no_name(known: RemoteName) -> None:
    found = planned(B_BESIDE, ["x.t"], known)
    assert found.refused == {}
    assert found.rows == (row("all.t", "B", "x.t"),)


def test_a_flow_without_a_map_beside_one_that_has_some() -> None:
    plain = flow("B->C", "", flow("A->C", "q => B.t"))
    assert plain.keeps_names
    found = planned(plain, ["t", "u"], row("B.t", "A", "q"))
    assert set(found.merging) == {"t"}


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ("t => heartbeats", "it is the name of a heartbeats topic"),
        ("t => mm2-sparkmirror.A.internal", "internal topic"),
        ("t => my-offsets", "an internal topic of this mirror"),
        ("(.*)t => $1", "it is empty"),
    ],
)
def test_names_that_cannot_be(rules: str, told: str) -> None:
    one = replace(flow("A->C", rules), offset_storage_topic="my-offsets")
    found = planned(one, ["t", "u"])
    assert told in str(found.refused["t"])
    assert "u" not in found.refused


def test_mirrors_of_mirrormaker_1_are_told_apart_by_group_and_address() -> None:
    one = replace(A, mode=MirrorMode.MM1, group_id="g", policy=PolicySettings("identity"))
    other = replace(one, group_id="h")
    assert one.mirror != other.mirror
    first, second = (replace(o, beside=(p.naming,)) for o, p in ((one, other), (other, one)))
    rows = planned(first, ["eu.t"]).rows
    assert rows == (RemoteName("all.t", one.mirror, "A", "eu.t"),)
    assert set(planned(second, ["us.t"], *rows).merging) == {"us.t"}


# --- at the target ------------------------------------------------------------------------------


def test_names_are_written_once_and_read_again() -> None:
    target = Rows()
    names = RemoteNames(target, A, FlowTopics(A))
    assert set(names.settle(["eu.t", "us.t"])) == {"us.t"}
    assert read_remote_names(target) == (row("all.t", "A", "eu.t"),)
    count = len(target.records)
    assert set(names.settle(["eu.t", "us.t"])) == {"us.t"}
    assert len(target.records) == count
    assert set(refused_names(target, A, FlowTopics(A), ["eu.t", "us.t"])) == {"us.t"}
    assert len(target.records) == count


def test_of_two_flows_that_write_at_once_one_gives_way() -> None:
    """The other one's row comes between our look and our row."""
    target = Rows()
    write = target.produce_many

    def late(topic: str, records: Any, **more: Any) -> int:
        if not target.records:
            target.records.append(encode_remote_name(row("all.t", "A", "eu.t")))
        return write(topic, records, **more)

    target.produce_many = late  # type: ignore[method-assign]
    names = RemoteNames(target, B_BESIDE, FlowTopics(B_BESIDE))
    assert set(names.settle(["x.t"])) == {"x.t"}
    assert names.merging == {"x.t"}
    first = RemoteNames(target, A_BESIDE, FlowTopics(A_BESIDE))
    assert first.settle(["eu.t"]) == {}
    assert read_remote_names(target)[0] == row("all.t", "A", "eu.t")


# --- what is left out ---------------------------------------------------------------------------


def view(name: str, partitions: int = 2) -> TopicView:
    return TopicView(name, "", partitions, 1)


def observed() -> ObservedTopics:
    topics = {name: view(name) for name in ("eu.t", "us.t")}
    refused = planned(A, topics).refused
    return ObservedTopics(topics, {"all.t": view("all.t")}, refused=refused)


@pytest.mark.parametrize("mode", MirrorMode)
def test_a_topic_that_is_left_out_is_halted_though_its_remote_topic_exists(
    mode: MirrorMode,
) -> None:
    one = replace(A, mode=mode)
    seen = observed()
    actions = plan_topics(seen, one)
    assert actions == [RefuseTopic("us.t", seen.refused["us.t"])]
    assignment = assign(seen, one, dict(seen.refused))
    assert assignment.remote_topics == {"eu.t": "all.t"}
    assert set(assignment.halted) == {TopicPartition("us.t", number) for number in (0, 1)}


def test_nothing_is_asked_about_names_that_no_topic_can_have() -> None:
    asked: list[str] = []

    class Side:
        def topics(self) -> dict[str, TopicView]:
            return {name: view(name) for name in ("eu.t", "us.t", "eu." + "x" * 260)}

        def topic_configs(self, names: Iterable[str]) -> dict[str, object]:
            asked.extend(names)
            return {}

        def describe(self) -> Any:
            return SimpleNamespace(brokers=[1])

    side = cast(Cluster, Side())
    seen = observe_topics(
        *(side, side, FlowTopics(A)), refuse=lambda topics: planned(A, topics).refused
    )
    assert set(seen.refused) == {"us.t", "eu." + "x" * 260}
    assert asked == ["eu.t"]


def test_who_may_read_a_topic_that_is_left_out_does_not_get_the_others_copy() -> None:
    def binding(topic: str, principal: str) -> AclBinding:
        return AclBinding("TOPIC", topic, "LITERAL", principal, "*", "READ", "ALLOW")

    acls = ObservedAcls((binding("eu.t", "User:e"), binding("us.t", "User:u")), ())
    wanted = FlowTopics(A)
    assert plan_acls(acls, wanted, {"eu.t"}) == (binding("all.t", "User:e"),)
    assert len(plan_acls(acls, wanted)) == 2


def test_the_topic_of_names_is_made_where_there_is_a_map() -> None:
    assert REMOTE_NAMES_TOPIC in internal_names(A)
    assert REMOTE_NAMES_TOPIC in {new.name for new in plan_internal_topics(A, {})}
    plain = flow("A->C", "")
    assert REMOTE_NAMES_TOPIC not in internal_names(plain)
    assert REMOTE_NAMES_TOPIC not in {new.name for new in plan_internal_topics(plain, {})}
