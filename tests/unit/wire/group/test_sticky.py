"""Sticky assignments: balanced, and as few partitions move as that allows; beside Java's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkmirror.model import TopicPartition
from sparkmirror.wire.group.sticky import Claims, assign_sticky, withhold_moving
from tests.vectors import load

TOPICS = ("t0", "t1", "t2")
MEMBERS = "abcde"
Assigned = dict[str, set[TopicPartition]]
Wanted = dict[str, frozenset[str]]


def tps(text: str) -> set[TopicPartition]:
    found = (one.rpartition(":") for one in text.split())
    return {TopicPartition(topic, int(number)) for topic, _, number in found}


@st.composite
def groups(draw: Any, *, same: bool = False) -> tuple[Wanted, Claims, dict[str, int]]:
    """Members, what they say that they own, and the partitions of the topics."""
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), min_size=1))
    topics = st.frozensets(st.sampled_from(TOPICS))
    if same:
        topics = st.just(frozenset(counts))
    wanted = draw(st.dictionaries(st.sampled_from(MEMBERS), topics, min_size=1))
    # Most partitions have one owner; some are claimed by others, too, or are gone.
    claims: dict[str, tuple[int, set[TopicPartition]]] = {
        member: (draw(st.integers(2, 3)), set()) for member in wanted
    }
    owner = st.sampled_from([*wanted, *sorted(wanted)[:2], None])
    for topic in TOPICS:
        for number in range(13):
            for member in draw(st.lists(owner, max_size=2)) if draw(st.booleans()) else ():
                if member is not None:
                    claims[member][1].add(TopicPartition(topic, number))
    return wanted, claims, counts


def rightful(claims: Claims) -> dict[TopicPartition, str]:
    """The owner of each partition: who claims it as of the newest generation, if that is one."""
    newest: dict[TopicPartition, int] = {}
    for generation, owned in claims.values():
        for tp in owned:
            newest[tp] = max(generation, newest.get(tp, generation))
    owners = Counter(
        tp for generation, owned in claims.values() for tp in owned if newest[tp] == generation
    )
    return {
        tp: member
        for member, (generation, owned) in claims.items()
        for tp in owned
        if newest[tp] == generation and owners[tp] == 1
    }


def kept(assigned: Mapping[str, set[TopicPartition]], claims: Claims) -> int:
    """How many partitions stay with their owner."""
    return sum(tp in assigned[member] for tp, member in rightful(claims).items())


def assert_balanced(assigned: Assigned, wanted: Wanted) -> None:
    for one, own in assigned.items():
        for other, others in assigned.items():
            takes = {tp for tp in others if tp.topic in wanted[one]}
            assert not takes or len(others) <= len(own) + 1, (one, other)


@given(groups())
def test_each_partition_has_one_member_that_wants_it_and_nobody_could_take_more(
    group: tuple[Wanted, Claims, dict[str, int]],
) -> None:
    wanted, claims, counts = group
    assigned = assign_sticky(wanted, claims, counts)
    assert assigned.keys() == wanted.keys()
    given_out = sorted(tp for own in assigned.values() for tp in own)
    subscribed = frozenset().union(*wanted.values())
    assert given_out == sorted(
        TopicPartition(topic, number)
        for topic, count in counts.items()
        if topic in subscribed
        for number in range(count)
    )
    assert all(tp.topic in wanted[member] for member, own in assigned.items() for tp in own)
    assert_balanced(assigned, wanted)


@given(groups(same=True))
def test_no_balanced_assignment_moves_less(group: tuple[Wanted, Claims, dict[str, int]]) -> None:
    """Where all subscribe to the same topics, the best is known: the largest keep one more."""
    wanted, claims, counts = group
    assigned = assign_sticky(wanted, claims, counts)
    total = sum(counts.values())
    share, more = divmod(total, len(wanted))
    assert sorted(map(len, assigned.values())) == sorted(
        share + (place < more) for place in range(len(wanted))
    )
    owned = Counter(
        member for tp, member in rightful(claims).items() if tp.partition < counts.get(tp.topic, 0)
    )
    sizes = sorted((owned[member] for member in wanted), reverse=True)
    best = sum(min(size, share + (place < more)) for place, size in enumerate(sizes))
    assert kept(assigned, claims) == best


@given(groups())
def test_what_is_balanced_stays(group: tuple[Wanted, Claims, dict[str, int]]) -> None:
    wanted, claims, counts = group
    assigned = assign_sticky(wanted, claims, counts)
    again: Claims = {member: (7, own) for member, own in assigned.items()}
    assert assign_sticky(wanted, again, counts) == assigned
    assert withhold_moving(assigned, again) == assigned


@example(
    (
        {
            "a": frozenset[str](),
            "b": frozenset({"t0"}),
            "c": frozenset({"t2"}),
            "d": frozenset({"t0", "t1", "t2"}),
            "e": frozenset({"t0", "t1", "t2"}),
        },
        {member: (2, tps("t0:1" if member == "a" else "")) for member in "abcde"},
        {"t0": 4, "t1": 1, "t2": 11},
    )
)
@given(groups())
def test_a_cooperative_group_is_done_soon(
    group: tuple[Wanted, Claims, dict[str, int]],
) -> None:
    """With the same topics for all, after one more rebalance.

    Otherwise the members that first lack what others give up may be filled in another way.
    """
    wanted, claims, counts = group
    whole = assign_sticky(wanted, claims, counts)
    equal = len(set(wanted.values())) == 1
    for generation in range(9, 11 if equal else 14):
        assigned = assign_sticky(wanted, claims, counts)
        given = withhold_moving(assigned, claims)
        owners: dict[TopicPartition, set[str]] = {}
        for member, (_, owned) in claims.items():
            for tp in owned:
                owners.setdefault(tp, set()).add(member)
        for member, own in given.items():
            assert own <= assigned[member]
            for tp in own:
                assert not owners.get(tp) or member in owners[tp], "its owner has not given it up"
        claims = {member: (generation, own) for member, own in given.items()}
    assert given == assigned
    assert sorted(tp for own in given.values() for tp in own) == sorted(
        tp for own in whole.values() for tp in own
    )


def test_two_members_with_equally_new_claims_get_it_one_rebalance_later() -> None:
    wanted = {"a": frozenset({"t0"}), "b": frozenset({"t0"})}
    claims: Claims = {"a": (3, tps("t0:0 t0:1")), "b": (3, tps("t0:0 t0:2"))}
    first = withhold_moving(assign_sticky(wanted, claims, {"t0": 3}), claims)
    assert first == {"a": tps("t0:1"), "b": tps("t0:2")}
    then: Claims = {member: (4, own) for member, own in first.items()}
    second = withhold_moving(assign_sticky(wanted, then, {"t0": 3}), then)
    assert second["a"] | second["b"] == tps("t0:0 t0:1 t0:2")


def test_an_old_claim_gives_way_to_a_newer_one() -> None:
    wanted = {"a": frozenset({"t0"}), "b": frozenset({"t0"})}
    claims: Claims = {"a": (2, tps("t0:0")), "b": (3, tps("t0:0"))}
    assert assign_sticky(wanted, claims, {"t0": 1}) == {"a": set(), "b": tps("t0:0")}
    assert withhold_moving({"a": set(), "b": tps("t0:0")}, claims)["b"] == tps("t0:0")


# The examples of the Java class's own documentation.
def test_a_member_that_leaves_moves_only_its_partitions() -> None:
    topics = {f"t{n}": 2 for n in range(4)}
    claims: Claims = {"C0": (1, tps("t0:0 t1:1 t3:0")), "C2": (1, tps("t1:0 t2:1"))}
    wanted = {member: frozenset(topics) for member in claims}
    assigned = assign_sticky(wanted, claims, topics)
    assert kept(assigned, claims) == 5
    assert sorted(map(len, assigned.values())) == [4, 4]


def test_different_subscriptions() -> None:
    topics = {"t0": 1, "t1": 2, "t2": 3}
    wanted = {
        "C0": frozenset({"t0"}),
        "C1": frozenset({"t0", "t1"}),
        "C2": frozenset({"t0", "t1", "t2"}),
    }
    assigned = assign_sticky(wanted, {}, topics)
    assert assigned == {
        "C0": tps("t0:0"), "C1": tps("t1:0 t1:1"), "C2": tps("t2:0 t2:1 t2:2"),
    }  # fmt: skip
    del wanted["C0"]
    claims: Claims = {member: (1, assigned[member]) for member in wanted}
    later = assign_sticky(wanted, claims, topics)
    assert later == {"C1": tps("t0:0 t1:0 t1:1"), "C2": tps("t2:0 t2:1 t2:2")}


@pytest.mark.parametrize("case", load("sticky"), ids=str)
def test_beside_java(case: dict[str, Any]) -> None:
    members = case["members"]
    wanted = {member: frozenset(one["topics"].split()) for member, one in members.items()}
    claims: Claims = {
        member: (one["generation"], tps(one["owned"])) for member, one in members.items()
    }
    java = {member: tps(one["java"]) for member, one in members.items()}
    ours = assign_sticky(wanted, claims, case["partitions"])
    assert_balanced(java, wanted)
    assert_balanced(ours, wanted)
    assert set().union(*ours.values()) == set().union(*java.values())
    if len(set(wanted.values())) == 1:
        assert sorted(map(len, ours.values())) == sorted(map(len, java.values()))
        assert kept(ours, claims) >= kept(java, claims)


def test_thousands_of_partitions_take_a_moment() -> None:
    counts = {"t0": 5_000, **{f"u{n}": 5 for n in range(400)}}
    members = [f"m{n}" for n in range(20)]
    wanted = {member: frozenset(counts) for member in members}
    whole = {TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)}
    assigned = assign_sticky(wanted, {"m0": (1, whole)}, counts)
    assert {len(own) for own in assigned.values()} == {350}
    assert kept(assigned, {"m0": (1, whole)}) == 350
