"""The rounds of checkpoints and group offsets of a flow, by its clock."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sparkmirror.control.groups import job as job_module
from sparkmirror.control.groups.checkpoints import CheckpointRules, plan_checkpoints
from sparkmirror.control.report.compare_groups import mirrormaker_offsets
from sparkmirror.control.topics.compacted import TopicFollower
from sparkmirror.errors import ClusterError, TopicError, Unreachable
from sparkmirror.internal_topics.mm2_records import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    encode_offset_sync,
)
from sparkmirror.internal_topics.run_map import Run
from sparkmirror.internal_topics.runs import encode_run
from sparkmirror.model import TopicPartition
from sparkmirror.settings import CheckpointSettings, TopicSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import Committed
from tests.unit.control.groups.world import A0, R0, R1, FakeCluster, World, flow_of


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
    found = mirrormaker_offsets(CheckpointRules(flow_of()), follower, asked)
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


def test_syncs_that_are_late_take_no_group_past_what_is_mirrored_again() -> None:
    world = World()
    runs = world.target.logs["mm2-sparkmirror-runs.A.internal"]
    syncs = world.source.logs["mm2-offset-syncs.B.internal"]
    runs.append(encode_run(A0, Run(0, 0, 10_000), target_id="old"))
    syncs += [encode_offset_sync(A0, at, at) for at in range(0, 10_000, 100)]
    world.source.offsets["g"] = {A0: Committed(9_500)}
    job = world.job()
    job.finish()
    # The remote topic is made anew. The source still has the records from 9,000 on.
    runs.append(encode_run(A0, Run(9_000, 0, 100), target_id="new"))
    job.finish()
    assert world.checkpoints() == [(9_500, 9_500), (9_500, 100)]
    runs.append(encode_run(A0, Run(9_000, 0, 20_000), target_id="new"))
    job.finish()
    syncs += [encode_offset_sync(A0, 9_000, 0), encode_offset_sync(A0, 28_999, 19_999)]
    job.finish()
    assert world.checkpoints()[2:] == [(9_500, 500)]


@pytest.mark.parametrize("restarted", [False, True])
def test_an_idle_group_at_an_earlier_checkpoint_is_set_back_after_a_loss(restarted: bool) -> None:
    """Checkpoints are written every 5 s, group offsets every 60 s."""
    settings = CheckpointSettings(enabled=True, sync_enabled=True, interval_s=5, sync_interval_s=60)
    world = World(flow_of(checkpoints=settings))
    runs = world.target.logs["mm2-sparkmirror-runs.A.internal"]
    runs.append(encode_run(A0, Run(0, 0, 2_000), target_id="old"))
    world.source.offsets["g"] = {A0: Committed(800)}
    job = world.job()
    world.now += 60
    job.tick()
    assert world.target.commits == {"g": {R0: (800, "")}}
    world.target.states, world.target.offsets = {"g": "Empty"}, {"g": {R0: Committed(800)}}
    world.source.offsets["g"] = {A0: Committed(900)}
    world.now += 5
    job.tick()
    # The remote topic is made anew. The source still has the records from 850 on.
    runs.append(encode_run(A0, Run(850, 0, 1_150), target_id="new"))
    if restarted:
        job = world.job()
    for _ in range(12):
        world.now += 5
        job.tick()
    assert world.checkpoints() == [(800, 800), (900, 900), (900, 50)]
    assert world.target.commits == {"g": {R0: (50, "")}}


@pytest.mark.parametrize("synced", [True, False])
def test_earlier_checkpoints_are_remembered_only_for_group_offsets(synced: bool) -> None:
    """They take as much memory as all else that the driver knows of a group's partitions."""
    settings = CheckpointSettings(enabled=True, sync_enabled=synced, interval_s=5)
    world = World(flow_of(checkpoints=settings))
    world.mirror(Run(0, 0, 2_000))
    job = world.job()
    for offset in (800, 900):
        world.source.offsets["g"] = {A0: Committed(offset)}
        world.now += 5
        job.tick()
    assert world.checkpoints() == [(800, 800), (900, 900)]
    remembered = [list(one) for one in job._store._emitted.values()]
    assert remembered == ([[800, 900]] if synced else [])


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


def test_groups_of_a_broker_that_is_silent_are_not_gone() -> None:
    """Their checkpoints go on, and the list is asked for again in a minute."""
    world = World(
        flow_of(
            checkpoints=CheckpointSettings(
                enabled=True, interval_s=60, refresh_enabled=False, refresh_interval_s=600
            )
        )
    )
    world.mirror(Run(0, 0, 100))
    world.source.offsets = {name: {A0: Committed(10)} for name in ("g", "new")}
    world.source.silent = Unreachable("broker 2: no answer", where="cluster A")
    job = world.job()
    written = world.target.logs["A.checkpoints.internal"]
    written.append(encode_checkpoint(Checkpoint("of-broker-2", R0, 5, 5)))
    world.source.offsets["of-broker-2"] = {A0: Committed(20)}

    def groups_written() -> list[str]:
        found = [decode_checkpoint(*one) for one in written[1:]]
        return [one.group for one in found if one]

    job.tick()
    world.now += 60
    job.tick()
    assert groups_written() == ["g", "of-broker-2"]
    assert sum("broker 2: no answer" in line for line in world.said) == 1
    world.source.silent, world.source.states = None, {"of-broker-2": "Stable", "new": "Empty"}
    for _ in range(2):
        world.now += 60
        job.tick()
    assert groups_written() == ["g", "of-broker-2", "new"]


def test_figures_of_a_group_that_was_deleted_go_with_it() -> None:
    world = World()
    world.mirror(Run(0, 0, 100))
    world.source.states = {"g": "Empty", "h": "Empty"}
    world.source.offsets = {name: {A0: Committed(10)} for name in ("g", "h")}
    job = world.job()
    job.finish()
    assert [key.group for key in job.times.spreads()] == ["g", "h"]
    del world.source.states["g"]
    job.finish()
    assert [key.group for key in job.times.spreads()] == ["h"]


def test_group_offsets_go_on_while_one_target_broker_is_silent() -> None:
    """Of a group that nobody tells it is not known whether it has members: it waits."""
    world = World()
    world.mirror(Run(0, 0, 100))
    world.source.states = {"g": "Empty", "of-broker-2": "Empty"}
    world.source.offsets = {name: {A0: Committed(10)} for name in ("g", "of-broker-2")}
    world.target.states = {"g": "Empty"}
    world.target.silent = Unreachable("broker 2: no answer", where="cluster B")
    job = world.job()
    job.finish()
    assert set(world.target.commits) == {"g"}
    assert world.said[-1].startswith("A->B: group offsets of cluster B: ")
    world.target.silent = None
    job.finish()
    assert set(world.target.commits) == {"g", "of-broker-2"}


def test_a_silent_broker_is_asked_for_its_groups_after_the_checkpoints() -> None:
    """It costs a timeout, once a minute; the checkpoints of the others do not wait for it."""
    settings = CheckpointSettings(enabled=True, interval_s=5, refresh_interval_s=600)
    world = World(flow_of(checkpoints=settings))
    world.mirror(Run(0, 0, 1_000))
    order: list[str] = []
    told, read = world.source.groups, world.source.committed_by_group

    def groups(missed: Any = None) -> Any:
        order.append("list")
        world.now += 30
        return told(missed)

    def offsets(groups: Any, **options: Any) -> Any:
        order.append("offsets")
        return read(groups, **options)

    world.source.groups, world.source.committed_by_group = groups, offsets  # type: ignore[method-assign]
    world.source.offsets["g"] = {A0: Committed(10)}
    world.source.silent = Unreachable("no answer", where="cluster A")
    job = world.job()
    began = world.now
    while world.now < began + 30 + 120:
        job.tick()
        world.now += 5
    assert order[:2] == ["list", "offsets"]
    assert order.count("list") == 2
    assert order[order.index("list", 1) - 1] == "offsets"
    world.source.silent = None
    for _ in range(30):
        job.tick()
        world.now += 5
    assert order.count("list") == 3


def test_what_a_failed_write_had_written_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a round that takes longer than the request timeout never comes to its end."""
    monkeypatch.setattr(job_module, "_CHECKPOINTS_PER_WRITE", 1)
    world = World()
    world.mirror(Run(0, 0, 100))
    names = ("f", "g", "h")
    world.source.states = dict.fromkeys(names, "Stable")
    world.source.offsets = {name: {A0: Committed(10)} for name in names}
    write, left = world.target.produce_many, [2]

    def fails_at_the_third(*args: Any, **options: Any) -> int:
        left[0] -= 1
        if left[0] == -1:
            raise Unreachable("no answer", where="cluster B")
        return write(*args, **options)

    monkeypatch.setattr(world.target, "produce_many", fails_at_the_third)
    job = world.job()
    with pytest.raises(Unreachable):
        job.finish()
    job.finish()
    written = [decode_checkpoint(*one) for one in world.target.logs["A.checkpoints.internal"]]
    assert [one.group for one in written if one] == ["f", "g", "h"]


def test_a_checkpoints_topic_that_was_deleted_is_made_again_with_all_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(flow_of(checkpoints=CheckpointSettings(enabled=True, replication_factor=1)))
    world.mirror(Run(0, 0, 100))
    world.source.states = {"f": "Stable", "g": "Stable"}
    world.source.offsets = {name: {A0: Committed(10)} for name in ("f", "g")}
    job = world.job()
    job.finish()
    topic, logs = "A.checkpoints.internal", world.target.logs
    del logs[topic]
    write = world.target.produce_many

    def refuses(name: str, *args: Any, **options: Any) -> int:
        if name not in logs:
            raise TopicError("it does not exist", where=name)
        return write(name, *args, **options)

    monkeypatch.setattr(world.target, "produce_many", refuses)
    world.source.offsets["g"] = {A0: Committed(20)}
    with pytest.raises(TopicError):
        job.finish()
    assert [new.name for new in world.target.created] == [topic]
    assert world.said[-1] == f"B: created internal topic {topic}: it was deleted"
    logs[topic] = []
    job.finish()
    written = [decode_checkpoint(*one) for one in logs[topic]]
    assert {(one.group, one.upstream) for one in written if one} == {("f", 10), ("g", 20)}


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
        flow = flow_of(topics=TopicSettings(include=topics), checkpoints=checkpoints)
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


@pytest.mark.parametrize("known", ["by this run", "by an earlier one"])
def test_groups_get_what_was_known_when_the_source_is_gone(known: str) -> None:
    """That is why they move: the last round, and those of whoever takes the flow over."""
    world = World()
    world.mirror(Run(0, 0, 100))
    world.source.offsets["g"] = {A0: Committed(60)}
    job = world.job()
    world.target.trouble = Unreachable("B does not respond")
    with pytest.raises(Unreachable, match="B does not"):
        job.finish()
    assert (world.checkpoints(), world.target.commits) == ([(60, 60)], {})
    world.target.trouble = None
    world.source.trouble = Unreachable("A does not respond")
    if known == "by this run":
        with pytest.raises(Unreachable, match="A does not"):
            job.finish()
    else:
        job = world.job()
        world.now += 1_000
        with pytest.raises(Unreachable, match="A does not"):
            job.tick()
    assert world.target.commits == {"g": {R0: (60, "")}}


def test_a_groups_error_that_comes_back_is_told_again() -> None:
    world = World()
    world.mirror(Run(0, 0, 100))
    world.source.offsets["g"] = {A0: Committed(60)}
    job = world.job()
    refusals = [True, True, False, True]
    for refused in refusals:
        world.target.refused = {"g": Unreachable("no coordinator")} if refused else {}
        job.finish()
    told = [line for line in world.said if "no coordinator" in line]
    assert len(told) == 2, world.said
