"""What the membership learns of the source and its group from the flow's share."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from sparkmirror.control.mm1 import group_share
from sparkmirror.control.mm1.group_share import GroupShare
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings

A, B = (ClusterClient(name, (f"{name}:1",), "c") for name in "AB")
FLOW = FlowSettings(A, B, A, B, mode=MirrorMode.MM1, group_id="group")


class Source:
    """A cluster with one topic, and a group that has three partitions."""

    def topics(self, names: Iterable[str]) -> dict[str, SimpleNamespace]:
        return {name: SimpleNamespace(partitions=4) for name in names if name == "t"}

    def group_owners(self, group: str) -> dict[TopicPartition, str]:
        assert group == "group"
        return {TopicPartition(topic, n): "m" for topic, n in (("t", 0), ("t", 3), ("u", 0))}


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> GroupShare:
    monkeypatch.setattr(group_share, "Membership", lambda *_, **__: None)
    return GroupShare(
        FLOW,
        Source(),  # type: ignore[arg-type]
        Assignment("group", ()),
        SimpleNamespace(),  # type: ignore[arg-type]
        alone=True,
        publish=lambda *_: 0,
        notify=lambda _: None,
    )


def test_each_discovery_counts_also_if_it_finds_nothing_new(share: GroupShare) -> None:
    before = share.discoveries
    share.candidates = Assignment("group", ())
    assert share.discoveries == before + 1


def test_counts_of_the_source_and_of_the_group(share: GroupShare) -> None:
    assert share.partition_counts(["t", "gone"]) == {"t": 4}
    assert share.assigned_counts() == {"t": 2, "u": 1}
