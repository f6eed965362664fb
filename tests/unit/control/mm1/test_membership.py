"""A member gives nothing to the group that its slots may still write."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from sparkmirror.control.mm1 import membership
from sparkmirror.control.mm1.membership import Membership
from sparkmirror.errors import Unreachable
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings, Member
from sparkmirror.wire.group.session import Joined, MemberState

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B, mode=MirrorMode.MM1, group_id="group")
OURS, OTHERS = TopicPartition("t", 0), TopicPartition("t", 1)


class Share:
    """A flow whose slots obey an assignment only when told to."""

    name = "group"

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened
        self.published: list[frozenset[TopicPartition]] = []
        self.polls = 0

    def topic_counts(self) -> Mapping[str, int]:
        return {"t": 2}

    def partition_counts(self, _topics: Iterable[str]) -> Mapping[str, int]:
        return {"t": 2}

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

    def join(self, _topics: object, owned: Iterable[TopicPartition]) -> Joined:
        self.happened.append(f"join {sorted(tp.partition for tp in owned)}")
        generation = 4 - len(self.shares)
        self.state = MemberState.STABLE
        member = Member("m", generation, None, self.cooperative)
        return Joined(member, "range", self.shares.pop(0), False, 2)

    def forget(self) -> None:
        self.state = MemberState.OUT


def _joined(
    monkeypatch: pytest.MonkeyPatch, *, cooperative: bool
) -> tuple[list[str], Session, Share, Membership]:
    """A member after its first join, and what has happened, its session and its share."""
    happened: list[str] = []
    session, share = Session(happened, cooperative=cooperative), Share(happened)
    monkeypatch.setattr(membership, "GroupSession", lambda *_, **__: session)
    monkeypatch.setattr(membership, "_POLL_S", 0.001)
    member = Membership(share, FLOW, alone=True)
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
