"""Lists and offsets of groups when one of several brokers does not answer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest

from sparkmirror.errors import ClusterError, Denied, Unreachable, Unsupported
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin import groups as groups_module
from sparkmirror.wire.admin.groups import (
    GroupRow,
    commit_offsets,
    committed_by_group,
    list_groups,
)
from sparkmirror.wire.admin.leaders import Leaders
from sparkmirror.wire.admin.raw_responses import DecodeCache
from sparkmirror.wire.admin.requester import Requester
from sparkmirror.wire.cluster.views import Committed
from tests.patience import patience

A0 = TopicPartition("a", 0)


class Brokers:
    """A `Requester` to brokers 1 to 3; ``broken``: what those raise that do not answer.

    ``groups``: the coordinator of each group; a silent coordinator's groups go to ``moves_to``
    once it has been asked, if that is a broker. ``together``: how many are asked side by side; one
    that is not fails.
    """

    def __init__(self, groups: dict[str, int], *, moves_to: int = 0, together: int = 1) -> None:
        self.client = ClusterClient("A", ("x:1",), "c", retry_backoff_ms=1)
        self.coordinators = groups
        self.broken: dict[int, ClusterError] = {}
        self.moves_to = moves_to
        self.asked = Counter[int]()
        self._together = threading.Barrier(together, timeout=patience())

    def request(self, make: Callable[[], Any], doing: str, *, node: int = -1, **_: Any) -> Any:
        if doing == "looking up the coordinators of groups":
            keys = cast(FindCoordinatorRequest, make()).coordinator_keys
            rows = [
                SimpleNamespace(key=key, error_code=0, node_id=self.coordinators[key])
                for key in keys
            ]
            return SimpleNamespace(coordinators=rows)
        self.asked[node] += 1
        self._together.wait()
        if node in self.broken:
            if self.moves_to:
                for group, coordinator in self.coordinators.items():
                    if coordinator == node:
                        self.coordinators[group] = self.moves_to
            raise self.broken[node]
        if doing == "listing consumer groups":
            rows = [
                SimpleNamespace(group_id=group, protocol_type="consumer", group_state="Stable")
                for group, coordinator in self.coordinators.items()
                if coordinator == node
            ]
            return SimpleNamespace(groups=rows)
        return [GroupRow(one.group_id, 0, {A0: Committed(node)}) for one in make().groups]

    def listed(self, missed: Callable[[ClusterError], None] | None = None) -> set[str]:
        brokers = [SimpleNamespace(node_id=node) for node in (1, 2, 3)]
        leaders = SimpleNamespace(metadata=lambda _: SimpleNamespace(brokers=brokers))
        return set(list_groups(cast(Requester, self), cast(Leaders, leaders), missed))

    def committed(self) -> dict[str, int | None]:
        """The broker that told each group's offsets; None: an error that says it is silent."""
        found = committed_by_group(
            cast(Requester, self),
            DecodeCache(lambda _: list[GroupRow]()),
            self.coordinators,
            lambda _: {},
        )
        told: dict[str, int | None] = {}
        for group, offsets in found.items():
            if isinstance(offsets, Unreachable):
                assert f"coordinator of group {group} does not respond" in str(offsets)
            assert isinstance(offsets, dict | Unreachable)
            told[group] = offsets[A0].offset if isinstance(offsets, dict) else None
        return told


def test_brokers_are_asked_side_by_side() -> None:
    """Each answers when all have been asked."""
    brokers = Brokers({"f": 1, "g": 2, "h": 3}, together=3)
    assert brokers.listed() == {"f", "g", "h"}
    assert brokers.committed() == {"f": 1, "g": 2, "h": 3}


@pytest.mark.parametrize("readable", [True, False])
def test_older_brokers_are_asked_for_each_group_until_two_are_silent(readable: bool) -> None:
    away, asked = Unreachable("no answer"), list[str]()

    class Older:
        client = ClusterClient("A", ("x:1",), "c", retry_backoff_ms=1)

        def request(self, *_: Any, **__: Any) -> Any:
            raise Unsupported("no version 4")

    def one_by_one(group: str) -> dict[TopicPartition, Committed]:
        asked.append(group)
        if group == "f" and readable:
            return {A0: Committed(7)}
        raise away

    def found() -> Any:
        decoded = DecodeCache(lambda _: list[GroupRow]())
        return committed_by_group(cast(Requester, Older()), decoded, "efghi", one_by_one)

    if readable:
        assert found() == {"f": {A0: Committed(7)}, **dict.fromkeys("eghi", away)}
        assert asked == ["e", "f", "g"]
        return
    with pytest.raises(Unreachable):
        found()
    assert asked == ["e", "f"]


class Coordinator:
    """A `Requester` to the coordinator of one group. ``codes``: what it refuses, by topic."""

    def __init__(self, **codes: int) -> None:
        self.client = ClusterClient("A", ("x:1",), "c")
        self.codes = codes
        self.requests = 0
        self.committed: set[TopicPartition] = set()

    def request(self, make: Callable[[], Any], _doing: str, **_: Any) -> Any:
        message = make()
        self.requests += 1
        assert len(message.encode(version=7)) < 1 << 20
        topics = []
        for topic in message.topics:
            code = self.codes.get(topic.name, 0)
            numbers = [row.partition_index for row in topic.partitions]
            rows = [SimpleNamespace(partition_index=one, error_code=code) for one in numbers]
            topics.append(SimpleNamespace(name=topic.name, partitions=rows))
            self.committed |= {TopicPartition(topic.name, one) for one in numbers if not code}
        return SimpleNamespace(topics=topics)

    def commit(self, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
        commit_offsets(cast(Requester, self), "g", offsets)


def _large(topic: str, count: int) -> dict[TopicPartition, tuple[int, str]]:
    return {TopicPartition(topic, number): (1, "m" * 4_000) for number in range(count)}


def test_a_commit_with_large_metadata_goes_in_several_requests() -> None:
    """The coordinator writes each as one batch, of at most 1 MiB."""
    coordinator = Coordinator()
    coordinator.commit(_large("t", 300))
    assert coordinator.committed == _large("t", 300).keys()
    assert coordinator.requests == 3


def test_a_partition_that_is_refused_holds_up_no_other() -> None:
    coordinator = Coordinator(gone=3, denied=29)
    wanted = _large("gone", 1) | _large("denied", 1) | _large("t", 300)
    with pytest.raises(ClusterError, match="offset of denied-0 for group g is not allowed"):
        coordinator.commit(wanted)
    assert coordinator.committed == _large("t", 300).keys()


@pytest.mark.parametrize("code", [22, 24, 25, 30, 69])
def test_a_group_that_is_refused_is_not_asked_again(code: int) -> None:
    coordinator = Coordinator(gone=3, t=code)
    with pytest.raises(ClusterError) as caught:
        coordinator.commit(_large("gone", 1) | _large("t", 300))
    assert coordinator.requests == 1
    assert ("has active members" in str(caught.value)) is (code in (22, 25))
    assert "gone-0" not in str(caught.value)


@pytest.fixture
def silent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each request that fails had let its timeout pass."""
    monkeypatch.setattr(groups_module, "_SILENT_S", 0.0)


@pytest.mark.parametrize(
    "error", [Unreachable("no answer"), ClusterError("COORDINATOR_LOAD_IN_PROGRESS")]
)
def test_a_broker_that_tells_no_groups_hides_those_of_no_other(error: ClusterError) -> None:
    brokers = Brokers({"f": 1, "g": 2, "h": 3})
    brokers.broken[2] = error
    missed: list[ClusterError] = []
    assert brokers.listed(missed.append) == {"f", "h"}
    assert missed == [error]
    with pytest.raises(ClusterError) as caught:
        brokers.listed()
    assert caught.value is error


def test_a_list_that_no_broker_tells_or_that_is_denied_is_an_error() -> None:
    missed: list[ClusterError] = []
    brokers = Brokers({"f": 1})
    brokers.broken = {node: Unreachable("no answer") for node in (1, 2, 3)}
    with pytest.raises(Unreachable):
        brokers.listed(missed.append)
    brokers.broken = {2: Denied("no")}
    with pytest.raises(Denied):
        brokers.listed(missed.append)
    assert missed == []


@pytest.mark.usefixtures("silent_at_once")
def test_a_silent_coordinator_of_many_groups_costs_one_timeout() -> None:
    brokers = Brokers({f"g{number}": 2 for number in range(900)} | {"f": 1, "h": 3})
    brokers.broken[2] = Unreachable("no answer")
    found = brokers.committed()
    assert (found.pop("f"), found.pop("h")) == (1, 3)
    assert len(found) == 900
    assert set(found.values()) == {None}
    assert brokers.asked == {1: 1, 2: 1, 3: 1}


@pytest.mark.usefixtures("silent_at_once")
def test_groups_that_leave_a_silent_coordinator_are_read_from_the_next_one() -> None:
    brokers = Brokers({f"g{number}": 2 for number in range(450)}, moves_to=3)
    brokers.broken[2] = Unreachable("no answer")
    assert set(brokers.committed().values()) == {3}
    assert brokers.asked == {2: 1, 3: 3}


def test_a_coordinator_that_refuses_connections_is_asked_again() -> None:
    """It restarts: that takes less than a round."""
    brokers = Brokers({"g": 2})
    brokers.broken[2] = Unreachable("refused")
    assert brokers.committed() == {"g": None}
    assert brokers.asked == {2: groups_module._ATTEMPTS}
