"""Assignors: every partition to exactly one member that wants it, as Java's classes deal them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from sparkmirror.model import TopicPartition
from sparkmirror.wire.group.assignors import (
    Subscription,
    assign,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")
TOPICS = ("t0", "t1", "t2")


def _tps(text: str) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(f"t{one[0]}", int(one[1:])) for one in text.split()))


# The examples of the Java classes' own documentation: "0" + "1" is partition 1 of topic t0.
@pytest.mark.parametrize(
    ("strategy", "wanted"),
    [
        ("range", {"C0": "00 01 10 11", "C1": "02 12"}),
        ("roundrobin", {"C0": "00 02 11", "C1": "01 10 12"}),
    ],
)
def test_two_members_and_two_topics_of_three(strategy: str, wanted: dict[str, str]) -> None:
    members = {"C1": Subscription(("t0", "t1")), "C0": Subscription(("t1", "t0"))}
    dealt = assign(strategy, members, {"t0": 3, "t1": 3})
    assert dealt == {member: _tps(text) for member, text in wanted.items()}


def test_round_robin_skips_who_does_not_want_a_topic() -> None:
    members = {
        "C0": Subscription(("t0",)),
        "C1": Subscription(("t0", "t1")),
        "C2": Subscription(("t0", "t1", "t2")),
    }
    dealt = assign("roundrobin", members, {"t0": 1, "t1": 2, "t2": 3})
    assert dealt == {"C0": _tps("00"), "C1": _tps("10"), "C2": _tps("11 20 21 22")}


def test_static_members_come_first() -> None:
    members = {"a": Subscription(("t0",)), "z": Subscription(("t0",), instance_id="one")}
    assert assign("range", members, {"t0": 1}) == {"z": _tps("00"), "a": ()}


def test_a_cooperative_leader_lets_the_owner_give_up_first() -> None:
    owned = _tps("00 01 02 03")
    members = {"a": Subscription(("t0",), owned, 3), "b": Subscription(("t0",))}
    first = assign("cooperative-sticky", members, {"t0": 4})
    assert len(first["a"]) == 2
    assert set(first["a"]) < set(owned)
    assert first["b"] == ()
    members["a"] = Subscription(("t0",), first["a"], 4)
    second = assign("cooperative-sticky", members, {"t0": 4})
    assert second["a"] == first["a"]
    assert set(second["a"]) | set(second["b"]) == set(owned)


def test_an_unknown_strategy_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such assignor: mine"):
        assign("mine", {"a": Subscription(())}, {})


@given(
    strategy=st.sampled_from(STRATEGIES),
    wants=st.dictionaries(
        st.sampled_from("abcde"), st.sets(st.sampled_from(TOPICS)), min_size=1, max_size=5
    ),
    counts=st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7)),
)
def test_every_partition_goes_to_one_member_that_wants_it(
    strategy: str, wants: dict[str, set[str]], counts: dict[str, int]
) -> None:
    members = {member: Subscription(tuple(sorted(topics))) for member, topics in wants.items()}
    dealt = assign(strategy, members, counts)
    assert dealt.keys() == members.keys()
    given_out = [tp for own in dealt.values() for tp in own]
    wanted = {topic for topics in wants.values() for topic in topics}
    assert sorted(given_out) == sorted(
        TopicPartition(topic, number)
        for topic, count in counts.items()
        if topic in wanted
        for number in range(count)
    )
    for member, own in dealt.items():
        assert {tp.topic for tp in own} <= wants[member]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_subscriptions_and_assignments_survive_the_wire(strategy: str) -> None:
    said = Subscription(("t0", "t1"), _tps("01 10"), 7, "static")
    told = encode_subscription(said, strategy, cooperative=True)
    heard = decode_subscription(told, strategy, "static")
    assert heard.topics == said.topics
    assert heard.generation == 7
    assert heard.owned == (said.owned if "sticky" in strategy else ())
    assert decode_assignment(encode_assignment(said.owned)) == said.owned
    assert decode_assignment(b"") == ()


def test_garbage_is_no_subscription() -> None:
    with pytest.raises(ValueError, match="no subscription"):
        decode_subscription(b"\x00", "range", None)
    # What a sticky member says of its past is only a hint.
    empty = encode_subscription(Subscription(("t0",)), "range", cooperative=False)
    assert decode_subscription(empty, "sticky", None).owned == ()


@pytest.mark.parametrize("generation", [-1, 7])
def test_a_cooperative_member_says_its_generation_as_javas_class_does(generation: int) -> None:
    """Java's older leaders know no other place; its members fill both (3.9.1 gives these bytes)."""
    said = Subscription(("t0",), _tps("00"), generation)
    told = encode_subscription(said, "cooperative-sticky", cooperative=True)
    raw = ConsumerProtocolSubscription.decode(told)
    assert bytes(raw.user_data) == struct.pack(">i", generation)
    assert raw.generation_id == generation


@pytest.mark.parametrize(
    ("data", "generation"), [("00000005", 5), ("000000", -1), ("", -1), (None, -1)]
)
def test_an_older_cooperative_member_is_understood(data: str | None, generation: int) -> None:
    rows = ConsumerProtocolSubscription.TopicPartition
    told = ConsumerProtocolSubscription(
        version=1,
        topics=["t0"],
        user_data=None if data is None else bytes.fromhex(data),
        owned_partitions=[rows(topic="t0", partitions=[0])],
    )
    heard = decode_subscription(bytes(told.encode()), "cooperative-sticky", None)
    assert (heard.owned, heard.generation) == (_tps("00"), generation)
