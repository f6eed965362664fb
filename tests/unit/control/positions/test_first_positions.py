"""Where partitions without a position begin, and those whose leader cannot say it yet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.control import loop as loop_module
from sparkmirror.control.flow import FlowControl
from sparkmirror.control.jobs import run_once
from sparkmirror.control.loop import ControlLoop
from sparkmirror.control.mm1 import group_share
from sparkmirror.control.mm1.group_share import GroupShare
from sparkmirror.control.positions import first_positions as first_positions_module
from sparkmirror.control.positions.first_positions import FirstPositions
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.errors import Denied, Fenced, MirrorError, Unreachable
from sparkmirror.internal_topics.commands import CommandKind, SourcePartition
from sparkmirror.model import TopicPartition
from sparkmirror.settings import FetchSettings, FlowSettings, Member, MirrorSettings
from sparkmirror.wire.cluster.views import Committed
from tests.patience import patience
from tests.unit.config_files import load_flow
from tests.unit.control.mm1.test_membership import FLOW as MM1_FLOW

LATEST = FetchSettings(auto_offset_reset="latest")
LED, LOST, NEW = (SourcePartition("t", number, "A.t") for number in range(3))
MEMBER = Member("m", 7, None, False)
Offsets = Mapping[TopicPartition, tuple[int, str]]


class Clusters:
    """Source and keeper of positions. ``ends``: of the partitions that have a leader.

    ``times``: the offset at any time, of the partitions whose leader tells it; -1: no record.
    """

    def __init__(self) -> None:
        self.ends = {LED.source: 10}
        self.times: dict[TopicPartition, int] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.refusal: MirrorError | None = None
        self.commits: list[tuple[dict[TopicPartition, int], Member | None]] = []

    def end_offsets(
        self, wanted: Iterable[TopicPartition], _isolation: str
    ) -> dict[TopicPartition, int]:
        return {tp: self.ends[tp] for tp in wanted if tp in self.ends}

    def offsets_at(
        self, wanted: Iterable[TopicPartition], _time_ms: int
    ) -> dict[TopicPartition, int]:
        return {tp: self.times[tp] for tp in wanted if tp in self.times}

    def committed_offsets(
        self, _group: str, wanted: Iterable[TopicPartition], *, operation: str
    ) -> dict[TopicPartition, Committed]:
        assert operation == "Read"
        return {tp: Committed(self.positions[tp]) for tp in wanted if tp in self.positions}

    def commit_offsets(self, group: str, offsets: Offsets) -> None:
        self.commit(group, offsets)

    def commit(self, _group: str, offsets: Offsets, member: Member | None = None) -> None:
        if self.refusal is not None:
            raise self.refusal
        plain = {tp: offset for tp, (offset, _) in offsets.items()}
        self.positions |= plain
        self.commits.append((plain, member))

    def close(self) -> None:
        """Used again."""


@pytest.fixture
def clusters() -> Clusters:
    return Clusters()


def first_positions(clusters: Clusters, flow: FlowSettings) -> FirstPositions:
    return FirstPositions(clusters, clusters, replace(flow, fetch=LATEST))  # type: ignore[arg-type]


@pytest.fixture
def control(tmp_path: Path, clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> Any:
    flow = replace(load_flow(tmp_path, ""), fetch=LATEST)
    made: Any = FlowControl(flow, "run", lambda _: None)
    made.found = Assignment(flow.name, (LED, LOST))
    made.adopted = []

    def adopt(assignment: Assignment, kind: CommandKind, _member: object = None) -> None:
        made.adopted.append((kind, assignment.partitions))
        made.published._assignment = assignment

    monkeypatch.setattr(made.topics, "first_positions", first_positions(clusters, flow))
    monkeypatch.setattr(made.topics._discovery, "discover", lambda **_: made.found)
    monkeypatch.setattr(made.published, "adopt", adopt)
    monkeypatch.setattr("sparkmirror.control.flows.topics_job.seed_positions", lambda *_: None)
    yield made
    made.close()


def test_a_partition_without_a_leader_begins_when_it_has_one(
    control: Any, clusters: Clusters
) -> None:
    """No slot has it before: one that chose its beginning later would skip what came until then."""
    assert run_once(control.topics)
    assert control.adopted == [(CommandKind.EXTEND, (LED,))]
    halt = control.published.assignment().halted[LOST.source]
    assert halt.code == "LEADER_NOT_AVAILABLE"
    assert "no leader for t-1: it begins as soon as there is one" in halt.reason
    assert control.topics.has_leaderless
    assert not control.topics.begin_leaderless()
    assert len(control.adopted) == 1
    clusters.ends |= {LED.source: 15, LOST.source: 4}
    assert control.topics.begin_leaderless()
    assert control.adopted[1:] == [(CommandKind.EXTEND, (LED, LOST))]
    assert clusters.positions == {LED.target: 10, LOST.target: 4}
    assert control.published.assignment().halted == {}
    assert not control.topics.has_leaderless
    assert not run_once(control.topics)


def test_what_appears_later_begins_at_its_end_when_it_is_found(
    control: Any, clusters: Clusters
) -> None:
    run_once(control.topics)
    control.found = replace(control.found, partitions=(LED, LOST, NEW))
    clusters.ends |= {LED.source: 15, NEW.source: 2}
    assert run_once(control.topics)
    assert control.adopted[-1] == (CommandKind.EXTEND, (LED, NEW))
    assert clusters.positions == {LED.target: 10, NEW.target: 2}
    clusters.ends[LOST.source] = 4
    assert run_once(control.topics), "a look for topics sees it, too"
    assert control.adopted[-1] == (CommandKind.EXTEND, (LED, LOST, NEW))


def test_a_partition_that_does_not_tell_where_a_time_begins_waits(clusters: Clusters) -> None:
    """At its end it would begin without the records that it was to begin with."""
    flow = replace(MM1_FLOW, fetch=FetchSettings(auto_offset_reset="by_duration:PT1H"))
    positions = FirstPositions(clusters, clusters, flow)  # type: ignore[arg-type]
    every = [replace(p, remote_topic=p.topic) for p in (LED, LOST, NEW)]
    clusters.ends = {p.source: 10 for p in every}
    clusters.times = {LED.source: 4, NEW.source: -1}
    assert positions.settle(every) == 2
    assert clusters.positions == {LED.source: 4, NEW.source: 10}
    assert positions.waiting == {LOST.source}
    halt = positions.hold(Assignment("A->B", partitions=tuple(every))).halted[LOST.source]
    assert (halt.code, halt.retriable) == ("OFFSET_NOT_AVAILABLE", True)
    assert "auto.offset.reset=by_duration:PT1H: it begins as soon as it does" in halt.reason
    del clusters.ends[LOST.source]
    positions.settle(every)
    halt = positions.hold(Assignment("A->B", partitions=tuple(every))).halted[LOST.source]
    assert (halt.code, halt.retriable) == ("LEADER_NOT_AVAILABLE", True)
    clusters.ends[LOST.source] = 10
    clusters.times[LOST.source] = 7
    assert positions.settle(every) == 1
    assert clusters.positions[LOST.source] == 7
    assert positions.waiting == frozenset()


def test_a_look_that_fails_changes_nothing(control: Any, clusters: Clusters) -> None:
    clusters.refusal = Unreachable("nobody answers.")
    with pytest.raises(Unreachable):
        run_once(control.topics)
    assert control.adopted == []
    clusters.refusal = None
    assert run_once(control.topics)
    assert clusters.positions == {LED.target: 10}


def test_positions_that_nobody_lets_us_commit_are_left_to_the_slots(
    control: Any, clusters: Clusters
) -> None:
    clusters.refusal = Denied("no Read on the group.")
    run_once(control.topics)
    assert control.adopted == [(CommandKind.EXTEND, (LED, LOST))]
    assert not control.topics.has_leaderless


def test_leaders_are_looked_for_between_two_looks_for_topics(
    control: Any, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look for topics may be ten minutes away."""
    monkeypatch.setattr(loop_module, "_LEADER_CHECK_S", 0.01)
    control.ownership = None
    run_once(control.topics)
    loop = ControlLoop(MirrorSettings((control.settings,), ()), once=False, run_id="r")
    loop._flows[control.name].close()
    loop._flows[control.name] = control
    loop._jobs.start(loop._topics_job(control))
    (thread,) = loop._jobs.threads
    try:
        clusters.ends[LOST.source] = 4
        deadline = time.monotonic() + patience()
        while control.topics.has_leaderless:
            assert time.monotonic() < deadline, "nobody looks for the leader"
            thread.join(0.01)
    finally:
        loop.stop()
        thread.join(patience())
    assert not thread.is_alive()
    assert control.adopted == [(CommandKind.EXTEND, (LED,)), (CommandKind.EXTEND, (LED, LOST))]


# -- MirrorMaker 1 -----------------------------------------------------------------------------


class Group:
    """The share of one member. ``published``: partitions, and as whose."""

    def __init__(self, clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
        own = [replace(p, remote_topic=p.topic) for p in (LED, LOST, NEW)]
        self.led, self.lost, self.new = own
        self.published: list[tuple[SourcePartition, ...]] = []
        monkeypatch.setattr(group_share, "Membership", lambda *_, **__: None)
        monkeypatch.setattr(first_positions_module, "Coordinators", lambda *_: clusters)
        self.share = GroupShare(
            MM1_FLOW,
            clusters,  # type: ignore[arg-type]
            Assignment("group", tuple(own)),
            first_positions(clusters, MM1_FLOW),
            alone=False,
            publish=self._publish,
            notify=lambda _: None,
        )

    def _publish(self, wanted: Assignment, _member: Member | None) -> int:
        self.published.append(wanted.partitions)
        return len(self.published)

    def publish(self, *owned: SourcePartition, member: Member | None = MEMBER) -> None:
        self.share.publish([p.source for p in owned], member)


@pytest.fixture
def group(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(clusters, monkeypatch)


def test_what_the_group_gives_begins_at_once_as_its_member(
    group: Group, clusters: Clusters
) -> None:
    """A topic that is found later, or a group that was there before: slots would be slower."""
    group.publish(group.led, group.lost)
    assert clusters.commits == [({LED.source: 10}, MEMBER)]
    clusters.ends |= {LED.source: 12, LOST.source: 4, NEW.source: 9}
    group.publish(group.led, group.lost)
    assert clusters.commits[1:] == [({LOST.source: 4}, MEMBER)]
    later = replace(MEMBER, generation=8)
    group.publish(group.led, group.lost, group.new, member=later)
    assert clusters.commits[2:] == [({NEW.source: 9}, later)]
    all_of_it = (group.led, group.lost, group.new)
    assert group.published == [(group.led,), (group.led, group.lost), all_of_it]


def test_others_positions_are_kept(group: Group, clusters: Clusters) -> None:
    clusters.positions = {LED.source: 3}
    group.publish(group.led)
    group.publish(member=None)
    clusters.positions = {}  # as if they had expired
    group.publish(group.led)
    assert clusters.commits == [({LED.source: 10}, MEMBER)]


@pytest.mark.parametrize("error", [Unreachable("away."), Fenced("another generation.")])
def test_a_commit_that_fails_keeps_nobody_from_the_partitions(
    group: Group, clusters: Clusters, error: MirrorError
) -> None:
    clusters.refusal = error
    group.publish(group.led)
    assert group.published == [(group.led,)]
    assert clusters.commits == []


def test_a_look_for_a_leader_that_fails_is_made_again(
    control: Any, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is written until the next discovery would be skipped without a word."""
    run_once(control.topics)
    clusters.ends[LOST.source] = 4
    clusters.refusal = Unreachable("nobody answers.")
    with pytest.raises(Unreachable):
        control.topics.begin_leaderless()
    assert control.topics.has_leaderless
    clusters.refusal = None
    with monkeypatch.context() as patch:
        patch.setattr(control.published, "adopt", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            control.topics.begin_leaderless()
    assert control.topics.has_leaderless
    assert control.topics.begin_leaderless()
    assert not control.topics.has_leaderless
    assert clusters.positions[LOST.target] == 4
