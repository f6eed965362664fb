"""A member gives nothing to the group that its slots may still write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sparkmirror.control.mm1 import membership
from sparkmirror.control.mm1.membership import Membership
from sparkmirror.errors import Denied, Unreachable
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings, GroupSettings, Member
from sparkmirror.wire.group.session import Joined, MemberState

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B, mode=MirrorMode.MM1, group_id="group")
OURS, OTHERS = TopicPartition("t", 0), TopicPartition("t", 1)


class Share:
    """A flow whose slots obey an assignment only when told to."""

    name = "group"

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened
        self.discoveries = 0
        self.source = {"t": 2, "u": 4}
        self.asked: list[list[str]] = []
        self.assigned: Callable[[], Mapping[str, int]] = lambda: {"t": 2}
        self.published: list[frozenset[TopicPartition]] = []
        self.polls = 0

    def topic_counts(self) -> Mapping[str, int]:
        return {"t": 2}

    def partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        self.asked.append(sorted(topics))
        return {topic: self.source[topic] for topic in topics if topic in self.source}

    def assigned_counts(self) -> Mapping[str, int]:
        self.asked.append(["the group"])
        return self.assigned()

    def publish(self, owned: Iterable[TopicPartition], _member: Member | None) -> int:
        self.published.append(frozenset(owned))
        return len(self.published)

    def planned_version(self) -> int:
        self.polls += 1
        if self.polls % 3:
            return 0  # an epoch with the partitions still runs
        self.happened.append(f"obeyed {len(self.published)}")
        return len(self.published)

    def notify(self, _line: str) -> None:
        """Nobody listens."""


class Session:
    """A group that asks for a rebalance after the first join."""

    def __init__(self, happened: list[str], *, cooperative: bool) -> None:
        self.happened, self.cooperative = happened, cooperative
        self.state = MemberState.STABLE
        self.news = threading.Event()
        self.shares = [(OURS, OTHERS), (OURS,), (OURS,)]
        self.counts: Mapping[str, int] = {}

    def join(self, _topics: object, owned: Iterable[TopicPartition]) -> Joined:
        self.happened.append(f"join {sorted(tp.partition for tp in owned)}")
        generation = 4 - len(self.shares)
        self.state = MemberState.STABLE
        member = Member("m", generation, None, self.cooperative)
        return Joined(member, "range", self.shares.pop(0), False, 2, self.counts)

    def forget(self) -> None:
        self.state = MemberState.OUT


def _joined(
    monkeypatch: pytest.MonkeyPatch,
    *,
    cooperative: bool,
    counts: Mapping[str, int] | None = None,
    instance_id: str = "",
) -> tuple[list[str], Session, Share, Membership]:
    """A member after its first join, and what has happened, its session and its share."""
    happened: list[str] = []
    session, share = Session(happened, cooperative=cooperative), Share(happened)
    session.counts = counts or {}
    monkeypatch.setattr(membership, "GroupSession", lambda *_, **__: session)
    monkeypatch.setattr(membership, "_POLL_S", 0.001)
    monkeypatch.setattr(membership, "_WAIT_S", 0.001)
    flow = replace(FLOW, group=GroupSettings(instance_id=instance_id))
    member = Membership(share, flow, alone=True)
    member.step()
    return happened, session, share, member


def _member(monkeypatch: pytest.MonkeyPatch, *, cooperative: bool) -> tuple[list[str], Share]:
    happened, session, share, member = _joined(monkeypatch, cooperative=cooperative)
    session.state = MemberState.REBALANCING
    member.step()
    return happened, share


def test_an_eager_member_drains_all_before_it_joins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened, share = _member(monkeypatch, cooperative=False)
    assert share.published == [{OURS, OTHERS}, set(), {OURS}]
    assert happened == ["join []", "obeyed 2", "join [0, 1]"]


def test_a_cooperative_member_drains_what_others_get_before_it_joins_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened, share = _member(monkeypatch, cooperative=True)
    assert share.published == [{OURS, OTHERS}, {OURS}, {OURS}]
    assert happened == ["join []", "join [0, 1]", "obeyed 2", "join [0]"]


@pytest.mark.parametrize("fails", ["the publishing", "the join"])
@pytest.mark.parametrize("meanwhile", [MemberState.STABLE, MemberState.REBALANCING])
def test_a_cooperative_member_releases_what_others_get_also_after_a_failure(
    fails: str, meanwhile: MemberState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for it, and nobody copies these partitions meanwhile."""
    happened, session, share, member = _joined(monkeypatch, cooperative=True)
    failing, name = (share, "publish") if fails == "the publishing" else (session, "join")
    original, calls = getattr(failing, name), [0]

    def fails_once(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == (1 if failing is share else 2):
            raise Unreachable("no answer", where="cluster B")
        return original(*args)

    setattr(failing, name, fails_once)
    session.state = MemberState.REBALANCING
    with pytest.raises(Unreachable):
        member.step()
    session.state = meanwhile
    member.step()
    # Never a join without them before the slots obey.
    assert [one.split()[0] for one in happened] == ["join", "join", "obeyed", "join"]
    assert happened[-1] == "join [0]"


def test_a_member_that_was_removed_owes_nothing_of_its_old_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened, session, share, member = _joined(monkeypatch, cooperative=True)
    publish = share.publish

    def fails(*_: object) -> int:
        raise Unreachable("no answer", where="cluster B")

    share.publish = fails  # type: ignore[method-assign]
    session.state = MemberState.REBALANCING
    with pytest.raises(Unreachable):
        member.step()
    share.publish = publish  # type: ignore[method-assign]
    session.state = MemberState.LOST
    member.step()  # gives up all
    assert share.published[-1] == set()
    member.step()
    assert happened[-1] == "join []"
    assert share.published[-1] == {OURS}


@pytest.mark.parametrize("source", [{"t": 2, "u": 8}, {"t": 2}, {"t": 2, "u": 4, "gone": 1}])
def test_a_leader_joins_again_when_a_topic_of_any_member_changes(
    source: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions would belong to nobody: the other members wait for the leader."""
    watched = {"t": 2, "u": 4, "gone": 0}
    happened, _, share, member = _joined(monkeypatch, cooperative=True, counts=watched)
    share.source = source
    member.step()
    assert not share.asked, "the source is asked once per discovery, not at each step"
    share.discoveries += 1
    member.step()
    assert share.asked == [["gone", "t", "u"]]
    assert happened[:2] == ["join []", "join [0, 1]"]


def test_a_leader_of_unchanged_topics_stays_and_asks_once_per_discovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened, _, share, member = _joined(monkeypatch, cooperative=True, counts={"t": 2, "u": 4})
    share.discoveries += 1
    for _ in range(3):
        member.step()
    assert share.asked == [["t", "u"]]
    assert happened == ["join []"]


def test_a_change_is_not_forgotten_when_the_source_or_the_join_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened, session, share, member = _joined(monkeypatch, cooperative=True, counts={"u": 4})
    share.discoveries += 1
    share.source = {"u": 8}
    for failing, name in ((share, "partition_counts"), (session, "join")):
        original = getattr(failing, name)

        def fails(*_: object) -> None:
            raise Unreachable("no answer", where="cluster A")

        setattr(failing, name, fails)
        with pytest.raises(Unreachable):
            member.step()
        setattr(failing, name, original)
    member.step()
    assert happened[:2] == ["join []", "join [0, 1]"]


def test_a_static_member_that_returns_stays_if_all_is_assigned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened, _, share, member = _joined(monkeypatch, cooperative=True, instance_id="one")
    for _ in range(3):
        member.step()
    assert (happened, share.asked) == (["join []"], [["the group"]])


@pytest.mark.parametrize(
    ("assigned", "watched"), [({"t": 1}, {}), ({}, {}), ({"t": 2, "u": 3}, {"t": 2, "u": 4})]
)
def test_a_static_member_that_returns_joins_once_more_for_what_is_new(
    assigned: dict[str, int], watched: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group goes on without topics and partitions that are new since it was stopped."""
    happened, _, share, member = _joined(
        monkeypatch, cooperative=False, counts=watched, instance_id="one"
    )
    share.assigned = lambda: assigned
    for _ in range(3):
        member.step()
    assert [one.split()[0] for one in happened] == ["join", "obeyed", "join"]
    assert share.asked == [["the group"]]


def test_a_static_member_that_may_not_see_its_group_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    happened, _, share, member = _joined(monkeypatch, cooperative=True, instance_id="one")

    def denied() -> Mapping[str, int]:
        raise Denied("not authorized.", where="cluster A, group group")

    share.assigned = denied
    member.step()
    member.step()
    assert (happened, member.failure) == (["join []"], None)
    assert share.asked == [["the group"]]
