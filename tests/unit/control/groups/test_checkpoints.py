"""Which checkpoints and group offsets are written: MirrorMaker 2's rules, without a broker."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import cast

import pytest

from sparkmirror.control.groups.checkpoints import (
    CheckpointRules,
    CheckpointStore,
    plan_checkpoints,
    wanted_groups,
)
from sparkmirror.control.groups.group_offsets import plan_group_offsets, sync_group_offsets
from sparkmirror.errors import ClusterError
from sparkmirror.internal_topics.mm2_records import Checkpoint
from sparkmirror.model import TopicPartition
from sparkmirror.settings import CheckpointSettings, FlowSettings, PolicySettings
from sparkmirror.transform_settings import TransformSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import Committed, GroupView
from tests.patience import patience
from tests.unit.control.groups.world import A0, A1, R0, R1, X0, FakeCluster, flow_of


def _plan(
    offsets: Mapping[TopicPartition, int],
    places: Mapping[tuple[TopicPartition, int], int | None],
    store: CheckpointStore | None = None,
    flow: FlowSettings | None = None,
) -> list[Checkpoint]:
    committed = {tp: Committed(offset, "meta") for tp, offset in offsets.items()}
    return plan_checkpoints(
        {"g": committed},
        CheckpointRules(flow or flow_of()),
        lambda tp, offset: places.get((tp, offset)),
        store or CheckpointStore(),
    )


def test_a_checkpoint_says_where_the_group_stands_on_the_target() -> None:
    assert _plan({A0: 100, A1: 7}, {(A0, 100): 55, (A1, 7): 0}) == [
        Checkpoint("g", R0, 100, 55, "meta"),
        Checkpoint("g", R1, 7, 0, "meta"),
    ]


def test_a_topic_of_two_transforms_has_none_and_stops_no_other() -> None:
    """It is not mirrored, because which transform applies would be a guess."""
    two = tuple(TransformSettings(name, (A0.topic,), "true") for name in ("one", "two"))
    other = TopicPartition("other", 0)
    places = {(A0, 100): 55, (other, 5): 3}
    assert _plan({A0: 100, other: 5}, places, flow=flow_of(transforms=two)) == [
        Checkpoint("g", TopicPartition("A.other", 0), 5, 3, "meta")
    ]


def test_no_checkpoint_without_a_translation_or_for_other_topics() -> None:
    assert _plan({A0: 100, A1: 7, X0: 5}, {(A1, 7): -1, (X0, 5): 5}) == []


def test_no_checkpoint_for_topics_whose_records_are_routed() -> None:
    """Syncs from a time before the transform say nothing about where they are now."""
    routing = TransformSettings("route", (A0.topic,), routes=True)
    plain = TransformSettings("clean", (A0.topic,), "true")
    for transform, emitted in ((routing, 0), (plain, 1)):
        found = _plan({A0: 100}, {(A0, 100): 55}, flow=flow_of(transforms=(transform,)))
        assert len(found) == emitted


def test_checkpoints_go_forward_unless_the_group_went_back() -> None:
    store = CheckpointStore()
    store.put(Checkpoint("g", R0, 100, 55))
    for upstream, downstream, emitted in (
        (100, 55, False),  # a repeat
        (110, 55, False),
        (110, 54, False),  # a coarser answer than before
        (100, 56, True),  # a better answer
        (110, 60, True),
        (99, 54, True),  # the group went back
        (99, 55, True),
    ):
        found = _plan({A0: upstream}, {(A0, upstream): downstream}, store)
        assert bool(found) == emitted, (upstream, downstream)


@pytest.mark.parametrize(
    ("kind", "topic", "remote"),
    [
        ("default", "orders", "A.orders"),
        ("default", "C.orders", "A.C.orders"),
        ("default", "B.orders", "orders"),  # it came from the target
        ("identity", "orders", "orders"),
    ],
)
def test_names_on_the_target(kind: str, topic: str, remote: str) -> None:
    rules = CheckpointRules(flow_of(policy=PolicySettings(kind=kind)))
    assert rules.remote(TopicPartition(topic, 2)) == TopicPartition(remote, 2)


def test_wanted_groups() -> None:
    present = {
        name: GroupView(name, "Empty")
        for name in ("app", "console-consumer-7", "connect-x", "__y", "__mirror.C->A", "other")
    }
    assert wanted_groups(flow_of(), present) == {"app", "other"}
    checkpoints = CheckpointSettings(enabled=True, include=(".*",), exclude=("o.*",))
    assert wanted_groups(flow_of(checkpoints=checkpoints), present) == set(present) - {
        "other",
        "__mirror.C->A",
    }


# --- group offsets ------------------------------------------------------------------------------


def _store(*checkpoints: Checkpoint) -> CheckpointStore:
    store = CheckpointStore()
    for checkpoint in checkpoints:
        store.put(checkpoint)
    return store


def test_group_offsets_never_go_back() -> None:
    store = _store(Checkpoint("g", R0, 10, 20, "m"), Checkpoint("g", R1, 10, 30))
    for present, wanted in (
        ({}, {R0: (20, "m"), R1: (30, "")}),
        ({R0: 19, R1: 30}, {R0: (20, "m")}),
        ({R0: 21, R1: 29}, {R1: (30, "")}),
        ({R0: 20, R1: 31}, None),
    ):
        committed = {"g": {tp: Committed(offset) for tp, offset in present.items()}}
        assert plan_group_offsets(store, ["g"], committed).get("g") == wanted


def test_checkpoints_of_lost_records_are_withdrawn_and_idle_groups_follow() -> None:
    rules, store = CheckpointRules(flow_of()), _store(Checkpoint("g", R0, 100, 55))

    def plan(upstream: int, downstream: int, *cuts: int) -> list[int]:
        committed = {"g": {A0: Committed(upstream)}}
        found = plan_checkpoints(committed, rules, lambda *_: downstream, store, lambda _: cuts)
        return [checkpoint.downstream for checkpoint in found]

    assert plan(100, 50) == []
    assert plan(100, 50, 55) == [], "the target lost nothing that is before the checkpoint"
    assert plan(100, 50, 40) == plan(100, 50, 40, 60) == [50]
    store.put(Checkpoint("g", R0, 100, 50))
    for present, wanted in ((55, {R0: (50, "")}), (54, None), (60, None)):
        offsets = {"g": {R0: Committed(present)}}
        assert plan_group_offsets(store, ["g"], offsets).get("g") == wanted
    store.put(Checkpoint("g", R0, 90, 45))  # the group itself went back
    assert plan_group_offsets(store, ["g"], {"g": {R0: Committed(50)}}) == {}


def test_a_withdrawn_place_that_is_reached_again_counts_as_any_other() -> None:
    """Else a group that goes back on the source would go back on the target, too."""
    store = _store(*(Checkpoint("g", R0, 100, at) for at in (55, 50, 55)))
    store.put(Checkpoint("g", R0, 0, 0))  # the group went back on the source
    assert plan_group_offsets(store, ["g"], {"g": {R0: Committed(55)}}) == {}


def test_a_group_that_missed_two_losses_is_set_back_behind_both() -> None:
    """It had members on the target, or its commit failed: it stands where the first one was."""
    store = _store(*(Checkpoint("g", R0, 100, at) for at in (1000, 500, 300)))
    for present, wanted in ((1000, 300), (500, 300), (700, None)):
        plan = plan_group_offsets(store, ["g"], {"g": {R0: Committed(present)}})
        assert plan.get("g") == (None if wanted is None else {R0: (wanted, "")})
    store.put(Checkpoint("g", R0, 600, 600))
    assert store.withdrawn == {("g", R0): {1000}}, "up to there, records are there again"


def test_a_group_at_an_earlier_checkpoint_beyond_the_loss_is_set_back_too() -> None:
    """Group offsets are written more rarely than checkpoints, or a commit failed."""
    store = _store(*(Checkpoint("g", R0, at, at) for at in (30, 40, 800, 850, 900)))
    store.put(Checkpoint("g", R0, 900, 50))
    for present, wanted in ((900, 50), (800, 50), (50, None), (40, 50), (870, None)):
        plan = plan_group_offsets(store, ["g"], {"g": {R0: Committed(present)}})
        assert plan.get("g") == (None if wanted is None else {R0: (wanted, "")}), present
    store.put(Checkpoint("g", R0, 1_700, 850))
    assert store.withdrawn == {("g", R0): {900}}


def test_checkpoints_from_before_the_group_went_back_at_the_source_are_not_withdrawn() -> None:
    """Its offset on the target stayed where it was then, and does not go back later either."""
    store = _store(*(Checkpoint("g", R0, at, at) for at in (800, 900, 100, 200)))
    store.put(Checkpoint("g", R0, 200, 50))
    assert store.withdrawn == {("g", R0): {100, 200}}


def test_the_number_of_earlier_checkpoints_that_are_remembered_is_bounded() -> None:
    store = _store(*(Checkpoint("g", R0, at, at) for at in range(1_000)))
    store.put(Checkpoint("g", R0, 1_000, 5))
    assert store.withdrawn == {("g", R0): set(range(968, 1_000))}


def test_without_group_offsets_nothing_is_withdrawn() -> None:
    store = CheckpointStore(withdraws=False)
    for downstream in (40, 50, 30):
        store.put(Checkpoint("g", R0, 100, downstream))
    assert store.withdrawn == {}
    assert store.of("g")[R0].downstream == 30


def test_a_loss_takes_back_only_checkpoints_that_were_made_before_it() -> None:
    rules, store = CheckpointRules(flow_of()), _store(Checkpoint("g", R0, 100, 55))
    committed = {"g": {A0: Committed(100)}}

    def plan(downstream: int, *cuts: int) -> list[Checkpoint]:
        return plan_checkpoints(committed, rules, lambda *_: downstream, store, lambda _: cuts)

    assert plan(50, 0) == [Checkpoint("g", R0, 100, 50)]
    store.put(Checkpoint("g", R0, 100, 50), losses=1)
    assert plan(45, 0) == [], "the map only got coarser"
    assert plan(45, 0, 48) == [Checkpoint("g", R0, 100, 45)]


def test_only_groups_without_members_are_written() -> None:
    target = FakeCluster()
    names = ("idle", "new", "stable", "old-broker", "busy", "refused", "unreadable")
    store = _store(*(Checkpoint(name, R0, 10, 20) for name in names), Checkpoint("gone", R0, 1, 1))
    target.states = {
        "idle": "Empty",
        "stable": "Stable",
        "old-broker": "",
        "busy": "",
        "refused": "Empty",
        "unreadable": "Empty",
    }
    target.refused = {"refused": ClusterError("a member came back")}
    target.offsets = {"unreadable": ClusterError("no")}
    done, errors = sync_group_offsets(cast(Cluster, target), store, [*names, "without"])
    assert set(target.commits) == {"idle", "new", "old-broker"}
    assert done == 3
    assert set(errors) == {"refused", "unreadable"}
    assert sync_group_offsets(cast(Cluster, target), store, ["without"]) == (0, {})


def test_groups_are_committed_side_by_side() -> None:
    """Over a long link each commit takes a round trip, and there may be thousands of groups."""
    both = threading.Barrier(2)

    class Far(FakeCluster):
        def commit_offsets(
            self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]
        ) -> None:
            both.wait(patience())  # nobody gets on alone
            super().commit_offsets(group, offsets)

    target = Far()
    store = _store(*(Checkpoint(name, R0, 10, 20) for name in "gh"))
    assert sync_group_offsets(cast(Cluster, target), store, "gh") == (2, {})
    assert set(target.commits) == {"g", "h"}
