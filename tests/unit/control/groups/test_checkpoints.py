"""Which checkpoints and group offsets are written: MirrorMaker 2's rules, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkmirror.control.groups.checkpoints import (
    CheckpointRules,
    CheckpointStore,
    plan_checkpoints,
    wanted_groups,
)
from sparkmirror.control.groups.group_offsets import plan_group_offsets, sync_group_offsets
from sparkmirror.control.groups.job import GroupClusters, GroupsJob, create_offset_topics
from sparkmirror.control.report.compare_groups import mirrormaker_offsets
from sparkmirror.control.report.plan_groups import offset_topics
from sparkmirror.control.topics.compacted import (
    COMPACTED,
    CompactedTopic,
    TopicFollower,
    create_compacted,
)
from sparkmirror.control.topics.observation import Observation
from sparkmirror.errors import (
    ClusterError,
    Denied,
    MirrorError,
    TopicError,
    Unreachable,
    Unsupported,
)
from sparkmirror.internal_topics.mm2_records import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    encode_offset_sync,
)
from sparkmirror.internal_topics.run_map import Run
from sparkmirror.internal_topics.runs import encode_run
from sparkmirror.model import TopicPartition
from sparkmirror.settings import (
    CheckpointSettings,
    ClusterClient,
    FlowSettings,
    OffsetSyncSettings,
    PolicySettings,
    TopicSettings,
)
from sparkmirror.transform_settings import TransformSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.requester import Requester
from sparkmirror.wire.admin.topics import create_topics
from sparkmirror.wire.cluster.views import (
    BrokerView,
    ClusterView,
    Committed,
    GroupMember,
    GroupView,
    NewTopic,
    TopicOutcome,
    TopicView,
)

A0, A1, X0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("secret", 0)
R0, R1 = TopicPartition("A.orders", 0), TopicPartition("A.orders", 1)


def _client(alias: str) -> ClusterClient:
    return ClusterClient(alias, ("x:1",), "c")


def _flow(**changes: Any) -> FlowSettings:
    settings: dict[str, Any] = {
        "topics": TopicSettings(exclude=("secret",)),
        "checkpoints": CheckpointSettings(enabled=True, sync_enabled=True),
        **changes,
    }
    a, b = _client("A"), _client("B")
    return FlowSettings(source=a, target=b, source_admin=a, target_admin=b, **settings)


def _plan(
    offsets: Mapping[TopicPartition, int],
    places: Mapping[tuple[TopicPartition, int], int | None],
    store: CheckpointStore | None = None,
    flow: FlowSettings | None = None,
) -> list[Checkpoint]:
    committed = {tp: Committed(offset, "meta") for tp, offset in offsets.items()}
    return plan_checkpoints(
        {"g": committed},
        CheckpointRules(flow or _flow()),
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
    assert _plan({A0: 100, other: 5}, places, flow=_flow(transforms=two)) == [
        Checkpoint("g", TopicPartition("A.other", 0), 5, 3, "meta")
    ]


def test_no_checkpoint_without_a_translation_or_for_other_topics() -> None:
    assert _plan({A0: 100, A1: 7, X0: 5}, {(A1, 7): -1, (X0, 5): 5}) == []


def test_no_checkpoint_for_topics_whose_records_are_routed() -> None:
    """Syncs from a time before the transform say nothing about where they are now."""
    routing = TransformSettings("route", (A0.topic,), routes=True)
    plain = TransformSettings("clean", (A0.topic,), "true")
    for transform, emitted in ((routing, 0), (plain, 1)):
        found = _plan({A0: 100}, {(A0, 100): 55}, flow=_flow(transforms=(transform,)))
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
    rules = CheckpointRules(_flow(policy=PolicySettings(kind=kind)))
    assert rules.remote(TopicPartition(topic, 2)) == TopicPartition(remote, 2)


def test_wanted_groups() -> None:
    present = {
        name: GroupView(name, "Empty")
        for name in ("app", "console-consumer-7", "connect-x", "__y", "__mirror.C->A", "other")
    }
    assert wanted_groups(_flow(), present) == {"app", "other"}
    checkpoints = CheckpointSettings(enabled=True, include=(".*",), exclude=("o.*",))
    assert wanted_groups(_flow(checkpoints=checkpoints), present) == set(present) - {
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
    rules, store = CheckpointRules(_flow()), _store(Checkpoint("g", R0, 100, 55))

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


def test_a_loss_takes_back_only_checkpoints_that_were_made_before_it() -> None:
    rules, store = CheckpointRules(_flow()), _store(Checkpoint("g", R0, 100, 55))
    committed = {"g": {A0: Committed(100)}}

    def plan(downstream: int, *cuts: int) -> list[Checkpoint]:
        return plan_checkpoints(committed, rules, lambda *_: downstream, store, lambda _: cuts)

    assert plan(50, 0) == [Checkpoint("g", R0, 100, 50)]
    store.put(Checkpoint("g", R0, 100, 50), losses=1)
    assert plan(45, 0) == [], "the map only got coarser"
    assert plan(45, 0, 48) == [Checkpoint("g", R0, 100, 45)]


class FakeCluster:
    """The few calls of `Cluster` that groups need, on plain dictionaries."""

    def __init__(self) -> None:
        self.alias = "B"
        self.states: dict[str, str] = {}
        self.offsets: dict[str, dict[TopicPartition, Committed] | MirrorError] = {}
        self.refused: dict[str, MirrorError] = {}
        self.commits: dict[str, Mapping[TopicPartition, tuple[int, str]]] = {}
        self.logs: dict[str, list[tuple[bytes, bytes | None]]] = {}
        self.times: list[int | None] = []
        self.unreadable: set[str] = set()
        self.read_hooks: dict[str, Callable[[], None]] = {}
        self.created: list[NewTopic] = []
        self.trouble: MirrorError | None = None

    def groups(self) -> dict[str, GroupView]:
        if self.trouble is not None:
            raise self.trouble
        return {name: GroupView(name, state) for name, state in self.states.items()}

    def group_members(self, group: str) -> tuple[GroupMember, ...]:
        return (GroupMember("c", "h"),) if group == "busy" else ()

    def topic_rights(self, names: Iterable[str]) -> dict[str, frozenset[str] | None]:
        return {}

    def committed_by_group(self, groups: Iterable[str], *, operation: str = "") -> Any:
        return {group: self.offsets.get(group, {}) for group in groups}

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        if group in self.refused:
            raise self.refused[group]
        self.commits[group] = offsets

    def topics(self, names: Sequence[str]) -> dict[str, TopicView]:
        return {name: TopicView(name, "", 1, 1) for name in names if name in self.logs}

    def describe(self) -> ClusterView:
        return ClusterView("id", (BrokerView(1, "h", 1), BrokerView(2, "h", 2)), 1)

    def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, TopicOutcome]:
        self.created += topics
        return {topic.name: TopicOutcome(topic.name) for topic in topics}

    def produce_many(
        self,
        topic: str,
        records: Iterable[tuple[int, bytes, bytes | None]],
        *,
        timestamp_ms: int | None = None,
    ) -> int:
        rows = list(records)
        self.logs[topic] += [(key, value) for _, key, value in rows]
        self.times.append(timestamp_ms)
        return len(rows)

    def tail(self, topic: str, *, partitions: Sequence[int]) -> Any:
        if topic in self.unreadable:
            raise Denied("no", where="cluster B")
        if topic not in self.logs:
            raise TopicError("it does not exist", where=topic)
        return FakeTail(self.logs[topic], self.read_hooks.get(topic, lambda: None))

    def end_offsets(self, partitions: Iterable[TopicPartition], isolation: str) -> Any:
        return dict.fromkeys(partitions, 0)


class FakeTail:
    def __init__(self, log: list[tuple[bytes, bytes | None]], hook: Callable[[], None]) -> None:
        self._log, self._hook = log, hook
        self._at = 0

    def read_to(self, ends: object) -> Any:
        self._hook()
        new, self._at = self._log[self._at :], len(self._log)
        return ((0, key, value) for key, value in new)

    def close(self) -> None:
        """Nothing to close."""


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


# --- the job ------------------------------------------------------------------------------------


class World:
    """A flow A->B with one group, whose clock the test turns. ``flow``: other settings of it."""

    def __init__(self, flow: FlowSettings | None = None) -> None:
        self.flow = flow or _flow()
        self.now = 1_000.0
        self.said: list[str] = []
        self.source, self.target = FakeCluster(), FakeCluster()
        self.source.states = {"g": "Stable"}
        self.source.logs["mm2-offset-syncs.B.internal"] = []
        self.target.logs = {"A.checkpoints.internal": [], "mm2-sparkmirror-runs.A.internal": []}

    def job(self) -> GroupsJob:
        source, target = cast(Cluster, self.source), cast(Cluster, self.target)
        clusters = GroupClusters(
            source_admin=source, target_admin=target, target=target, syncs=source,
            checkpoints=target,
        )  # fmt: skip
        return GroupsJob(
            self.flow,
            clusters,
            self.said.append,
            now_s=lambda: self.now,
            now_ms=lambda: int(self.now * 1000),
        )

    def mirror(self, run: Run) -> None:
        """What a slot writes of ``run``."""
        self.target.logs["mm2-sparkmirror-runs.A.internal"].append(encode_run(A0, run))
        for upstream, downstream in (
            (run.source, run.target),
            (run.source_end - 1, run.target_end - 1),
        ):
            sync = encode_offset_sync(A0, upstream, downstream)
            self.source.logs["mm2-offset-syncs.B.internal"].append(sync)

    def checkpoints(self) -> list[tuple[int, int]]:
        found = []
        for key, value in self.target.logs["A.checkpoints.internal"]:
            checkpoint = decode_checkpoint(key, value)
            assert checkpoint is not None
            assert (checkpoint.group, checkpoint.remote) == ("g", R0)
            found.append((checkpoint.upstream, checkpoint.downstream))
        return found


def test_what_mirrormaker_would_say_of_a_group_that_lags() -> None:
    """Its syncs are single points: the group goes to the one behind it."""
    target = FakeCluster()
    syncs = [encode_offset_sync(A0, at, at + 50) for at in (0, 400, 900)]
    target.logs["syncs"] = [*syncs, (b"no sync", b"")]
    follower = TopicFollower(cast(Cluster, target), "syncs")
    asked = [
        Checkpoint("g", R0, 700, 750),
        Checkpoint("h", R0, 900, 950),
        Checkpoint("g", R1, 5, 5),  # nothing is known of this partition
    ]
    found = mirrormaker_offsets(CheckpointRules(_flow()), follower, asked)
    assert found == {("g", R0): 451, ("h", R0): 950, ("g", R1): None}


def test_a_loss_that_was_made_good_takes_no_later_checkpoint_back() -> None:
    """The map of many short runs gets coarser with time, and its answers smaller."""
    world = World()
    runs = world.target.logs["mm2-sparkmirror-runs.A.internal"]
    runs += [encode_run(A0, Run(0, 0, 60), target_id=one) for one in ("old", "new")]
    transactions = [
        encode_run(A0, Run(60 + 3 * n, 60 + 2 * n, 2), target_id="new") for n in range(1, 301)
    ]
    runs += transactions[:150]
    world.source.offsets["g"] = {A0: Committed(361)}
    job = world.job()
    job.finish()
    assert world.checkpoints() == [(361, 261)]
    world.target.states, world.target.offsets = {"g": "Empty"}, {"g": {R0: Committed(261)}}
    world.target.commits.clear()
    runs += transactions[150:]
    job.finish()
    assert world.checkpoints() == [(361, 261)]
    assert world.target.commits == {}


def test_what_a_failed_round_has_read_is_news_in_the_next_one() -> None:
    world, trouble = World(), list[int]()

    def hook() -> None:
        if trouble:
            raise Unreachable("its leader is away")

    world.source.read_hooks["mm2-offset-syncs.B.internal"] = hook
    world.mirror(Run(0, 0, 100))
    world.source.offsets["g"] = {A0: Committed(600)}
    job = world.job()
    job.finish()
    runs = world.target.logs["mm2-sparkmirror-runs.A.internal"]
    runs.append(encode_run(A0, Run(100, 100, 900)))
    trouble.append(1)
    with pytest.raises(Unreachable):
        job.finish()
    trouble.clear()
    job.finish()
    assert world.checkpoints() == [(600, 100), (600, 600)]


def test_a_topic_that_cannot_be_read_is_not_a_missing_one() -> None:
    """A part of the syncs would lead further than all of them."""
    world = World()
    world.mirror(Run(0, 0, 100))
    world.source.offsets["g"] = {A0: Committed(5)}

    trouble = [1]

    def stuck() -> None:
        if trouble:
            raise TopicError("reading it makes no progress.", where="cluster A")

    world.source.read_hooks["mm2-offset-syncs.B.internal"] = stuck
    job = world.job()
    with pytest.raises(TopicError, match="no progress"):
        job.finish()
    assert world.checkpoints() == []
    trouble.clear()
    job.finish()
    assert world.checkpoints() == [(5, 5)]


def test_a_round_in_which_nothing_has_changed_plans_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither offsets nor the records that say where they went; what fails is done again."""
    planned: list[object] = []

    def count(*args: Any) -> list[Checkpoint]:
        planned.append(args)
        return plan_checkpoints(*args)

    monkeypatch.setattr("sparkmirror.control.groups.job.plan_checkpoints", count)
    world = World()
    job = world.job()
    world.mirror(Run(0, 50, 1_000))

    def rounds() -> int:
        world.now += 61
        before = len(planned)
        job.tick()
        return len(planned) - before

    world.source.offsets["g"] = {A0: Committed(500)}
    job.tick()
    assert [rounds(), rounds(), rounds()] == [1, 0, 0]
    world.source.offsets["g"] = {A0: Committed(600)}
    assert [rounds(), rounds()] == [1, 0]
    world.mirror(Run(1_000, 1_050, 10))
    assert [rounds(), rounds()] == [1, 0]
    world.source.offsets["g"] = ClusterError("no")
    assert [rounds(), rounds()] == [1, 0]
    world.source.offsets["g"] = {A0: Committed(700)}
    monkeypatch.setattr(world.target, "produce_many", _refuse)
    with pytest.raises(ClusterError):
        rounds()
    monkeypatch.undo()
    world.now += 61
    job.tick()
    assert world.checkpoints() == [(500, 550), (600, 650), (700, 750)]


def _refuse(*_: object, **__: object) -> int:
    raise ClusterError("full")


def test_rounds_come_at_their_intervals() -> None:
    world = World()
    job = world.job()
    world.mirror(Run(0, 50, 1_000))
    world.source.offsets["g"] = {A0: Committed(500)}
    job.tick()
    assert world.checkpoints() == [], "the first one after one interval"
    world.now += 61
    job.tick()
    assert world.checkpoints() == [(500, 550)]
    assert world.target.times == [1_061_000], "when the group was listed"
    assert world.target.commits == {"g": {R0: (550, "")}}
    world.source.offsets["g"] = {A0: Committed(700)}
    job.tick()
    assert world.checkpoints() == [(500, 550)]
    job.finish()
    assert world.checkpoints() == [(500, 550), (700, 750)]


def test_new_groups_are_found_at_their_interval() -> None:
    world = World()
    world.source.states = {}
    job = world.job()
    job.tick()
    world.mirror(Run(0, 0, 10))
    world.source.states, world.source.offsets = {"g": "Empty"}, {"g": {A0: Committed(5)}}
    world.now += 120
    job.tick()
    assert world.checkpoints() == []
    world.now += 600
    job.tick()
    assert world.checkpoints() == [(5, 5)]


def test_groups_that_could_not_be_listed_are_looked_for_again_at_once() -> None:
    """No answer is not an answer without groups, neither at the start nor later."""
    world = World()
    world.mirror(Run(0, 0, 10))
    world.source.offsets["g"] = {A0: Committed(5)}
    world.source.trouble = Unreachable("nobody answers")
    job = world.job()
    for _ in range(2):
        with pytest.raises(Unreachable):
            job.tick()
    world.now += 61
    with pytest.raises(Unreachable):
        job.tick()
    assert world.checkpoints() == []
    world.source.trouble = None
    job.tick()  # long before the next look is due
    assert world.checkpoints() == [(5, 5)]

    world.source.offsets["g"] = {A0: Committed(7)}
    world.source.trouble = Unreachable("nobody answers")
    world.now += 600
    with pytest.raises(Unreachable):
        job.tick()
    job.tick()
    assert world.checkpoints() == [(5, 5), (7, 7)], "with the groups that were known"


def test_groups_of_topics_that_are_not_mirrored_have_no_checkpoints() -> None:
    """``g1`` reads t1 and t2, ``g2`` t2 and t3, ``g3`` t3; only t2 is mirrored, ``g4`` excluded."""
    t1, t2, t3 = (TopicPartition(name, 0) for name in ("t1", "t2", "t3"))
    committed = {"g1": (t1, t2), "g2": (t2, t3), "g3": (t3,), "g4": (t2,)}
    checkpoints = CheckpointSettings(enabled=True, sync_enabled=True, exclude=("g4",))

    def moved(*topics: str) -> tuple[set[tuple[str, TopicPartition]], set[str]]:
        """Who has checkpoints of what, and whose offsets were written to the target."""
        flow = _flow(topics=TopicSettings(include=topics), checkpoints=checkpoints)
        world = World(flow)
        world.source.states = dict.fromkeys(committed, "Empty")
        world.source.offsets = {
            group: dict.fromkeys(read, Committed(5)) for group, read in committed.items()
        }
        runs = world.target.logs["mm2-sparkmirror-runs.A.internal"]
        runs += [encode_run(tp, Run(0, 0, 10)) for tp in (t1, t2, t3)]
        world.job().finish()
        found = [decode_checkpoint(*row) for row in world.target.logs["A.checkpoints.internal"]]
        return {(c.group, c.remote) for c in found if c is not None}, set(world.target.commits)

    remote = TopicPartition("A.t2", 0)
    assert moved("t2") == ({("g1", remote), ("g2", remote)}, {"g1", "g2"})
    assert moved("other") == (set(), set())
    everybody, written = moved("t.*")
    assert len(everybody) == 5
    assert written == {"g1", "g2", "g3"}


def test_nothing_is_emitted_before_earlier_checkpoints_were_read() -> None:
    """Without them a coarser place than the one before the restart would look like news."""
    world = World()
    world.mirror(Run(0, 0, 100))
    world.source.offsets["g"] = {A0: Committed(600)}
    world.target.logs["A.checkpoints.internal"] = [encode_checkpoint(Checkpoint("g", R0, 500, 550))]
    job = world.job()
    seen: list[list[tuple[int, int]]] = []
    world.target.read_hooks["A.checkpoints.internal"] = lambda: seen.append(world.checkpoints())
    job.tick()
    assert seen == [[(500, 550)]], "read at the first step, once"
    world.now += 61
    job.tick()
    assert world.checkpoints() == [(500, 550)], "600 would have been 100"
    world.source.offsets["g"] = {A0: Committed(40)}
    world.now += 61
    job.tick()
    assert world.checkpoints() == [(500, 550), (40, 40)]
    assert len(seen) == 1


def test_a_restart_knows_what_was_emitted() -> None:
    """A coarser translation than the one before the restart is no news."""
    world = World()
    earlier = encode_checkpoint(Checkpoint("g", R0, 500, 550))
    world.target.logs["A.checkpoints.internal"] = [earlier]
    world.mirror(Run(0, 0, 100))
    world.source.offsets["g"] = {A0: Committed(600)}
    job = world.job()
    job.finish()
    assert world.checkpoints() == [(500, 550)], "600 translates to 100 only"
    world.mirror(Run(100, 100, 600))
    job.finish()
    assert world.checkpoints() == [(500, 550), (600, 600)]


def test_without_earlier_checkpoints_old_syncs_do_not_count() -> None:
    world = World()
    world.target.unreadable = {"A.checkpoints.internal"}
    del world.target.logs["mm2-sparkmirror-runs.A.internal"]
    syncs = world.source.logs["mm2-offset-syncs.B.internal"]
    syncs += [encode_offset_sync(A0, upstream, upstream) for upstream in (0, 100, 200)]
    world.source.offsets["g"] = {A0: Committed(150)}
    job = world.job()
    job.finish()
    assert world.checkpoints() == [], "150 is older than the newest sync"
    world.source.offsets["g"] = {A0: Committed(300)}
    job.finish()
    assert world.checkpoints() == [(300, 201)]


def test_trouble_with_one_group_is_told_once_and_holds_up_no_other() -> None:
    world = World()
    world.mirror(Run(0, 0, 10))
    world.source.states |= {f"bad{n}": "Empty" for n in range(5)}
    world.source.offsets = {f"bad{n}": ClusterError("not today") for n in range(5)}
    world.source.offsets["g"] = {A0: Committed(5)}
    job = world.job()
    job.finish()
    assert world.checkpoints() == [(5, 5)]
    assert len(world.said) == 4
    assert "2 more groups" in world.said[-1]
    job.finish()
    assert len(world.said) == 4


def test_without_any_topic_to_translate_with_the_round_fails() -> None:
    world = World()
    world.target.logs.pop("mm2-sparkmirror-runs.A.internal")
    world.source.logs.clear()
    world.source.offsets["g"] = {A0: Committed(5)}
    with pytest.raises(TopicError, match="does not exist"):
        world.job().finish()


def test_records_that_are_none_are_skipped_and_told_once() -> None:
    world = World()
    world.target.logs["A.checkpoints.internal"].append((b"garbage", b""))
    world.source.logs["mm2-offset-syncs.B.internal"].append((b"garbage", b"x"))
    world.mirror(Run(0, 0, 10))
    world.source.offsets["g"] = {A0: Committed(5)}
    job = world.job()
    job.finish()
    job.finish()
    assert [line for line in world.said if "skipped" in line] == [
        "A->B: 2 records of A.checkpoints.internal, mm2-offset-syncs.B.internal or "
        "mm2-sparkmirror-runs.A.internal cannot be decoded and are skipped"
    ]
    del world.target.logs["A.checkpoints.internal"][0]
    assert world.checkpoints() == [(5, 5)]


def test_topics_are_made_where_they_belong_or_it_is_told_why_not() -> None:
    source, target = FakeCluster(), FakeCluster()
    flow = _flow(
        offset_syncs=OffsetSyncSettings(enabled=True, replication_factor=3),
        checkpoints=CheckpointSettings(enabled=True, replication_factor=2),
    )
    look = Observation(flow, cast(Cluster, source), cast(Cluster, target))
    planned = [(change.action, change.subject) for change in offset_topics(look)]
    assert planned == [
        ("create-topic", "mm2-sparkmirror-runs.A.internal"),
        ("refuse", "mm2-offset-syncs.B.internal"),
        ("create-topic", "A.checkpoints.internal"),
    ]
    told = create_offset_topics(flow, cast(Cluster, source), cast(Cluster, target))
    assert [(new.name, new.replication_factor) for new in target.created] == [
        ("mm2-sparkmirror-runs.A.internal", 2)
    ]
    assert source.created == []
    assert "created internal topic mm2-sparkmirror-runs.A.internal" in told[0]
    assert "A->B: no offset syncs are written" in told[1]
    assert "Set offset-syncs.topic.replication.factor to 2 or less" in told[1]

    on_target = _flow(
        offset_syncs=OffsetSyncSettings(enabled=True, location="target", replication_factor=-1)
    )
    target.logs["mm2-sparkmirror-runs.A.internal"] = []
    create_offset_topics(on_target, cast(Cluster, source), cast(Cluster, target))
    (new,) = target.created[1:]
    assert (new.name, new.partitions, new.replication_factor, new.configs) == (
        "mm2-offset-syncs.A.internal",
        1,
        -1,
        COMPACTED,
    )
    assert create_offset_topics(_flow(), cast(Cluster, source), cast(Cluster, target)) == []


class Refusing(FakeCluster):
    """Answers the creation of any topic with ``code``, as its controller would."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code, self.client = code, _client("B")

    def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, TopicOutcome]:
        self.created += topics
        return create_topics(cast(Requester, self), topics)

    def request(self, *_: object, **__: object) -> object:
        rows = [
            SimpleNamespace(name=new.name, error_code=self.code, error_message="not today")
            for new in self.created[-1:]
        ]
        return SimpleNamespace(topics=rows)


TOPIC = CompactedTopic("topic", 1, "some.replication.factor")


@pytest.mark.parametrize(
    ("code", "told"),
    [(0, "B: created internal topic topic"), (36, "")],
    ids=["created", "TOPIC_ALREADY_EXISTS"],
)
def test_create_compacted_topic(code: int, told: str) -> None:
    """``testCreateCompactedTopic``, and when somebody else was quicker."""
    cluster = Refusing(code)
    assert create_compacted(cast(Cluster, cluster), TOPIC) == told
    assert cluster.created == [NewTopic("topic", 1, 1, COMPACTED)]
    cluster.logs["topic"] = []
    assert create_compacted(cast(Cluster, cluster), TOPIC) == ""
    assert len(cluster.created) == 1, "what is there is not asked for"


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (35, Unsupported, "UNSUPPORTED_VERSION: not today"),
        (31, Denied, "CLUSTER_AUTHORIZATION_FAILED: not today"),
        (29, Denied, "TOPIC_AUTHORIZATION_FAILED: not today"),
        (40, ClusterError, "INVALID_CONFIG: not today"),
        (7, Unreachable, "REQUEST_TIMED_OUT: not today"),
    ],
)
def test_create_compacted_topic_fails(code: int, kind: type[MirrorError], said: str) -> None:
    """Records are mirrored without offset syncs; checkpoints are tried again at each round.

    Java takes the first three for "it is there already": here that was looked at before.
    """
    with pytest.raises(kind, match="creating topic topic") as raised:
        create_compacted(cast(Cluster, Refusing(code)), TOPIC)
    assert said in str(raised.value)

    source, target = Refusing(code), Refusing(code)
    flow = _flow(offset_syncs=OffsetSyncSettings(enabled=True, replication_factor=1))
    runs, syncs = create_offset_topics(flow, cast(Cluster, source), cast(Cluster, target))
    assert runs.startswith("A->B: translation is less exact: ")
    assert "creating topic mm2-sparkmirror-runs.A.internal " in runs
    assert syncs.startswith("A->B: no offset syncs are written: ")
    assert "creating topic mm2-offset-syncs.B.internal " in syncs
    assert said in runs
    assert said in syncs

    once = CheckpointSettings(enabled=True, replication_factor=1)
    world = World(_flow(checkpoints=once))
    world.mirror(Run(0, 0, 10))
    world.source.offsets["g"] = {A0: Committed(5)}
    mended, world.target = world.target, Refusing(code)
    world.target.logs, topic = mended.logs, mended.logs.pop("A.checkpoints.internal")
    job = world.job()
    for _ in range(2):
        with pytest.raises(kind, match=r"A\.checkpoints\.internal"):
            job.tick()
    assert len(world.target.created) == 2
    world.target.logs["A.checkpoints.internal"] = topic
    job.finish()
    assert world.checkpoints() == [(5, 5)]


def test_a_follower_reads_on_where_it_stopped() -> None:
    cluster = FakeCluster()
    cluster.logs["t"] = [(b"a", b"1")]
    follower = TopicFollower(cast(Cluster, cluster), "t")
    assert list(follower.read()) == [(b"a", b"1")]
    cluster.logs["t"].append((b"b", None))
    assert list(follower.read()) == [(b"b", None)]
    follower.close()


def test_a_topic_whose_leader_went_is_not_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups would go back to what older translations say."""
    cluster = FakeCluster()
    cluster.logs["t"] = [(b"garbage", b"")]
    monkeypatch.setattr(cluster, "end_offsets", lambda *_: {})
    with pytest.raises(TopicError, match="no live leader"):
        list(TopicFollower(cast(Cluster, cluster), "t").read())
    assert not CheckpointStore().load(TopicFollower(cast(Cluster, cluster), "t"))
