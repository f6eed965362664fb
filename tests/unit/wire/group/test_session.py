"""How a member of a group joins it, with a coordinator that this test plays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, GroupSettings
from sparkmirror.wire.group import session as sessions
from sparkmirror.wire.group.assignors import (
    Subscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from sparkmirror.wire.group.session import GroupSession

_MEMBER_ID_REQUIRED, _UNKNOWN_MEMBER, _REBALANCING = 79, 25, 27


def _pauses(codes: list[int], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of a member that gets these responses to its attempts to join, in seconds."""
    left, pauses = list(codes), list[float]()
    client = ClusterClient("A", ("localhost:1",), "test", retry_backoff_ms=250)
    session = GroupSession(
        client,
        "g",
        GroupSettings(),
        counts=lambda topics: dict.fromkeys(topics, 1),
        stopping=lambda: not left,
    )

    def exchange(_message: Any, _versions: Any, _patience_s: float) -> Any:
        return SimpleNamespace(error_code=left.pop(0), member_id="m")

    monkeypatch.setattr(session, "_exchange", exchange)
    monkeypatch.setattr(sessions.time, "sleep", pauses.append)
    assert session.join(["t"]) is None
    return pauses


def test_the_first_attempt_after_an_id_or_a_newer_generation_is_made_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _pauses([_MEMBER_ID_REQUIRED], monkeypatch) == []
    assert _pauses([_REBALANCING], monkeypatch) == []


def test_a_coordinator_that_rejects_the_member_again_and_again_is_asked_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _pauses([_UNKNOWN_MEMBER] * 4, monkeypatch) == [0.25] * 3


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Coordinator:
    """The coordinator of a group that gives every member ``T0``, and the connection to it.

    ``highest``: its version of JoinGroup. ``others``: the topics of the other members.
    """

    def __init__(
        self, *, leader: str = "m", skip: bool = False, highest: int = 9, others: str = ""
    ) -> None:
        self.leader, self.skip, self.highest = leader, skip, highest
        self.subscriptions = {"other": Subscription((others,))} if others else {}
        self.opened = 0
        self.open = False
        self.asked: list[Any] = []

    def connection(self, _group: str) -> Coordinator:
        self.opened += not self.open
        self.open = True
        return self

    def close(self) -> None:
        self.open = False

    def api_version(self, _key: int, _lowest: int, highest: int, name: str) -> int:
        return min(self.highest, highest) if name == "JoinGroupRequest" else highest

    def begin(self, message: Any, _version: int) -> int:
        self.asked.append(message)
        return len(self.asked)

    def readable(self, _timeout_s: float) -> bool:
        return True

    def finish(self, message: Any, version: int, _pending: int) -> Any:
        if message.name == "SyncGroupRequest":
            return SimpleNamespace(error_code=0, assignment=encode_assignment((T0,)))
        own = {one.name: one.metadata for one in message.protocols}
        strategy = min(own)
        said = {"m": own[strategy]} | {
            member: encode_subscription(one, strategy, cooperative=True)
            for member, one in self.subscriptions.items()
        }
        return SimpleNamespace(
            API_VERSION=version,
            error_code=0,
            generation_id=3,
            leader=self.leader,
            member_id="m",
            members=[
                SimpleNamespace(member_id=member, group_instance_id=None, metadata=metadata)
                for member, metadata in said.items()
            ],
            protocol_name=strategy,
            skip_assignment=self.skip and version >= 9,
        )

    def told(self, name: str) -> list[Any]:
        return [one for one in self.asked if one.name == name]


def _member(
    coordinator: Coordinator, settings: GroupSettings, monkeypatch: pytest.MonkeyPatch
) -> GroupSession:
    """A member of that group, which has four partitions of each topic but ``gone``."""
    session = GroupSession(
        ClusterClient("A", ("localhost:1",), "test"),
        "g",
        settings,
        counts=lambda topics: {topic: 4 for topic in topics if topic != "gone"},
        stopping=lambda: False,
    )
    monkeypatch.setattr(session, "_coordinators", coordinator)
    monkeypatch.setattr(session, "_beat", lambda: None)
    return session


@pytest.mark.parametrize(
    ("strategies", "owned"),
    [
        (GroupSettings().strategies, ()),
        (("sticky", "cooperative-sticky"), ()),
        (("cooperative-sticky",), (T0, T1)),
    ],
)
def test_only_who_keeps_its_partitions_claims_them(
    strategies: tuple[str, ...],
    owned: tuple[TopicPartition, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A claim makes the leader wait for a join without it: an eager member's never comes."""
    coordinator = Coordinator()
    session = _member(coordinator, GroupSettings(strategies=strategies), monkeypatch)
    session.join(["t"], [T0, T1])
    told = {one.name: one.metadata for one in coordinator.told("JoinGroupRequest")[0].protocols}
    said = decode_subscription(told["cooperative-sticky"], "cooperative-sticky", None)
    assert said.owned == owned
    if "sticky" in told:  # it names there what it had
        assert decode_subscription(told["sticky"], "sticky", None).owned == (T0, T1)


def test_a_leader_watches_the_topics_of_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator(others="u")
    joined = _member(coordinator, GroupSettings(), monkeypatch).join(["t", "gone"])
    assert joined is not None
    assert (joined.leads, joined.members) == (True, 2)
    assert joined.counts == {"t": 4, "u": 4, "gone": 0}
    assert len(coordinator.told("SyncGroupRequest")[0].assignments) == 2


def test_a_member_that_does_not_lead_watches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in (GroupSettings(), GroupSettings(instance_id="one")):
        joined = _member(Coordinator(leader="n"), settings, monkeypatch).join(["t"])
        assert joined is not None
        assert (joined.leads, joined.members, joined.counts) == (False, 0, {})


def test_a_static_member_that_returns_as_the_leader_watches_and_leaves_the_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = Coordinator(skip=True, others="u")
    joined = _member(coordinator, GroupSettings(instance_id="one"), monkeypatch).join(["t"])
    assert joined is not None
    assert (joined.leads, joined.members, joined.partitions) == (True, 2, (T0,))
    assert joined.counts == {"t": 4, "u": 4}
    assert coordinator.told("SyncGroupRequest")[0].assignments == []


def test_brokers_before_3_2_do_not_tell_a_returning_static_member_that_it_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They name its former id as the leader's, until it joins once more."""
    coordinator = Coordinator(leader="former", highest=7)
    session = _member(coordinator, GroupSettings(instance_id="one"), monkeypatch)
    joined = session.join(["t"])
    assert joined is not None
    assert (joined.leads, joined.counts) == (False, {"t": 4})
    again = session.join(["t"])  # now it is known
    assert again is not None
    assert (again.leads, again.counts) == (False, {})


def test_no_connection_waits_for_the_next_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be hours away; a firewall that forgets the connection would delay the whole group."""
    coordinator = Coordinator()
    session = _member(coordinator, GroupSettings(), monkeypatch)
    session.join(["t"])
    assert not coordinator.open
    session.join(["t"])
    assert (coordinator.opened, coordinator.open) == (2, False)
