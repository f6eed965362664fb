"""Which ACLs a flow gives to its remote topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.control.topics.acl_sync import (
    AclSync,
    ObservedAcls,
    plan_acls,
    unknown_acls,
    wanted_acls,
)
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import ClusterClient, FlowSettings, PolicySettings, TopicSettings
from sparkmirror.wire.cluster.views import AclBinding

A = ClusterClient("A", ("a:1",), "c")
B = ClusterClient("B", ("b:1",), "c")
TOPICS = FlowTopics(FlowSettings(A, B, A, B, topics=TopicSettings(exclude=("secret",))))
IDENTITY = FlowTopics(FlowSettings(A, B, A, B, policy=PolicySettings("identity")))
READ = AclBinding("TOPIC", "t", "LITERAL", "User:x", "*", "READ", "ALLOW")


@pytest.mark.parametrize(
    ("changes", "copied"),
    [
        ({}, {}),
        ({"host": "10.0.0.1"}, {"host": "10.0.0.1"}),
        ({"operation": "ALL"}, {"operation": "READ"}),
        ({"operation": "ALL", "permission": "DENY"}, {"operation": "ALL", "permission": "DENY"}),
        ({"operation": "WRITE"}, None),
        (
            {"operation": "WRITE", "permission": "DENY"},
            {"operation": "WRITE", "permission": "DENY"},
        ),
        ({"operation": "ALTER_CONFIGS"}, {"operation": "ALTER_CONFIGS"}),
        ({"operation": "CREATE"}, {"operation": "CREATE"}),
        ({"pattern": "PREFIXED"}, None),
        ({"resource_type": "GROUP"}, None),
        ({"name": "secret"}, None),
        ({"name": "__consumer_offsets"}, None),
        ({"name": "B.t"}, None),
        ({"name": "*"}, {"name": "A.*"}),
        ({"name": "heartbeats"}, {"name": "A.heartbeats"}),
    ],
)
def test_what_becomes_of_a_binding(changes: dict[str, str], copied: dict[str, str] | None):
    expected = [] if copied is None else [replace(READ, **{"name": "A.t", **copied})]
    assert list(wanted_acls([replace(READ, **changes)], TOPICS)) == expected


def test_names_follow_the_policy():
    assert list(wanted_acls([READ], IDENTITY)) == [READ]


def test_only_what_the_target_lacks_is_planned_and_only_once():
    source = (replace(READ, operation="ALL"), READ, replace(READ, principal="User:y"))
    target = (replace(READ, name="A.t", principal="User:y"),)
    assert plan_acls(ObservedAcls(source, target), TOPICS) == (replace(READ, name="A.t"),)


def test_without_an_authorizer_nothing_is_planned():
    assert plan_acls(ObservedAcls(None, ()), TOPICS) == ()
    assert plan_acls(ObservedAcls((READ,), None), TOPICS) == ()


def test_what_this_version_does_not_know_is_named_once_and_keeps_nothing_else() -> None:
    """A broker that is newer. Sent as 0, it would fail the whole request."""
    new = [
        replace(READ, operation="UNKNOWN", principal="User:y"),
        replace(READ, permission="UNKNOWN", principal="User:z"),
    ]
    elsewhere = replace(READ, name="secret", operation="UNKNOWN")
    source = (READ, *new, elsewhere)
    wanted = replace(READ, name="A.t")
    assert plan_acls(ObservedAcls(source, ()), TOPICS) == (wanted,)
    assert unknown_acls(source, TOPICS) == tuple(new)
    there: list[AclBinding] = []
    sent: list[tuple[AclBinding, ...]] = []

    def create(bindings: Sequence[AclBinding]) -> list[None]:
        sent.append(tuple(bindings))
        there.extend(bindings)
        return [None] * len(bindings)

    sides: Any = (
        SimpleNamespace(alias="A", topic_acls=lambda: source),
        SimpleNamespace(alias="B", topic_acls=lambda **_: tuple(there), create_acls=create),
    )
    told: list[str] = []
    flow = FlowSettings(A, B, A, B, topics=TopicSettings(exclude=("secret",)))
    sync = AclSync(flow, *sides, TOPICS, told.append)
    for _ in range(3):
        sync.round()
    assert [one for one in sent if one] == [(wanted,)]
    assert told == [
        "B: ACLs added to A.t",
        "A->B: 2 ACLs are not copied, because their operation or type is not known here: "
        "ALLOW UNKNOWN for User:y on Topic t, UNKNOWN READ for User:z on Topic t",
    ]


bindings = st.builds(
    AclBinding,
    st.sampled_from(["TOPIC", "GROUP"]),
    st.sampled_from(["t", "u", "secret", "B.t", "*"]),
    st.sampled_from(["LITERAL", "PREFIXED"]),
    st.sampled_from(["User:x", "User:*"]),
    st.just("*"),
    st.sampled_from(["READ", "WRITE", "ALL", "DESCRIBE", "DELETE"]),
    st.sampled_from(["ALLOW", "DENY"]),
)
sets = st.lists(bindings, max_size=8).map(tuple)


@given(sets, sets)
def test_nothing_is_left_after_the_plan_and_nobody_may_write(source, target):
    plan = plan_acls(ObservedAcls(source, target), TOPICS)
    assert not any(one.permission == "ALLOW" and one.operation in ("WRITE", "ALL") for one in plan)
    assert plan_acls(ObservedAcls(source, target + plan), TOPICS) == ()
