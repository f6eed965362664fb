"""Whatever an assignment does while epochs run, and whatever slots have read: one owner each."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.data.coordination.slot_plan import SlotPlan, plan_slots
from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    Command,
    CommandKind,
    SourcePartition,
)
from sparkmirror.internal_topics.epochs.shares import Growth, outdated, share_of
from sparkmirror.model import TopicPartition

RUN = "run"


@dataclass
class _Flow:
    """A driver's documents and commands, by version, and the planner of its epochs."""

    slots_max: int
    documents: list[AssignmentDocument] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    growth: Growth = field(default_factory=Growth)

    def publish(self, partitions: tuple[SourcePartition, ...], *, extends: bool) -> None:
        version = len(self.documents) + 1
        before = self.documents[-1].partitions if self.documents else ()
        grown = None
        if extends:
            grown = self.growth.follow(before, partitions, version, self.slots_max)
        kind = CommandKind.REPLAN if grown is None else CommandKind.EXTEND
        self.growth = grown or Growth.begin(partitions, version)
        self.documents.append(
            AssignmentDocument(
                *("A->B", RUN, version, partitions),
                since=self.growth.since,
                base=self.growth.base,
            )
        )
        base = self.growth.base if grown is not None else 0
        self.commands.append(Command("A->B", kind, RUN, 0, version=version, base=base))

    def plan(self, version: int) -> list[SlotPlan]:
        return plan_slots(
            self.documents[version - 1].partitions,
            slots_max=self.slots_max,
            epoch=version,
            run_id=RUN,
            ends=None,
            control_offset=0,
            version=version,
        )


def _owned(plan: SlotPlan, document: AssignmentDocument) -> set[TopicPartition]:
    """What a slot has that has read ``document`` last, or was started again with it."""
    own = {p.source for p in plan.partitions}
    if not document.base <= plan.version < document.version:
        return own
    share = share_of(document, plan.version, plan.slot, plan.slots, own)
    return {p.source for p in share.owned}


def _topic(name: str, count: int, topic_id: str = "") -> dict[str, tuple[SourcePartition, ...]]:
    return {name: tuple(SourcePartition(name, n, f"A.{name}", topic_id) for n in range(count))}


_Assignments = list[tuple[SourcePartition, ...]]


@st.composite
def _histories(draw: st.DrawFn) -> _Assignments:
    """The assignments of a flow: topics come, grow, go, come back, and are made anew."""
    topics = _topic("base", draw(st.integers(3, 9), "base"))
    found = [topics]
    for _ in range(draw(st.integers(1, 7), "changes")):
        name = draw(st.sampled_from(["t", "t", "u"]), "topic")
        topics = dict(topics)
        if name in topics and draw(st.booleans(), "goes"):
            del topics[name]
        else:
            topic_id = draw(st.sampled_from(["", "", "", "anew"]), "id")
            topics |= _topic(name, draw(st.integers(1, 3), "count"), topic_id)
        found.append(topics)
    return [tuple(sorted(p for one in each.values() for p in one)) for each in found]


@settings(max_examples=1_000)
@given(
    slots_max=st.integers(1, 5),
    changes=_histories(),
    forced=st.sets(st.integers(1, 7), max_size=1),
    data=st.data(),
)
def test_a_partition_has_one_owner(
    slots_max: int, changes: _Assignments, forced: set[int], data: st.DataObject
) -> None:
    """``forced``: the change for which a new epoch begins in any case."""
    flow = _Flow(slots_max)
    for number, partitions in enumerate(changes):
        flow.publish(partitions, extends=number not in forced)
    newest = len(flow.documents)
    planned = data.draw(st.integers(1, newest), "planned at")
    plans = flow.plan(planned)
    read = [data.draw(st.integers(planned, newest), "has read") for _ in plans]
    running = [
        (plan, version)
        for plan, version in zip(plans, read, strict=True)
        if not outdated(flow.commands[version - 1], RUN, planned)
    ]
    owners: dict[TopicPartition, int] = {}
    # Also slots that have not noticed yet that they must end.
    for plan, version in zip(plans, read, strict=True):
        for tp in _owned(plan, flow.documents[version - 1]):
            assert owners.setdefault(tp, plan.slot) == plan.slot, tp
    # All slots of an epoch agree on whether it must end for the newest assignment.
    ends = {outdated(flow.commands[newest - 1], RUN, plan.version) for plan in plans}
    assert len(ends) <= 1
    if plans and ends == {False}:
        assert len(running) == len(plans)
        shares = [_owned(plan, flow.documents[newest - 1]) for plan in plans]
        found = set().union(*shares)
        assert found == {p.source for p in flow.documents[newest - 1].partitions}
        assert sum(map(len, shares)) == len(found)


@given(
    slots_max=st.integers(1, 5),
    changes=_histories(),
)
def test_what_was_planned_and_stays_never_moves(slots_max: int, changes: _Assignments) -> None:
    """It does not pause either: its slot has it before and after each change."""
    flow = _Flow(slots_max)
    for partitions in changes:
        flow.publish(partitions, extends=True)
    for plan in flow.plan(1):
        own = _owned(plan, flow.documents[0])
        for document, command in zip(flow.documents[1:], flow.commands[1:], strict=True):
            if outdated(command, RUN, 1):
                break
            now = _owned(plan, document)
            assert own & {p.source for p in document.partitions} <= now
            own = now


@given(slots=st.integers(1, 7), partitions=st.integers(1, 50), topic=st.text(min_size=1))
def test_the_partitions_of_a_new_topic_go_round(slots: int, partitions: int, topic: str) -> None:
    added = tuple(SourcePartition(topic, n, topic) for n in range(partitions))
    document = AssignmentDocument(*("f", RUN, 2, added), since={p.source: 2 for p in added}, base=1)
    counts = [len(share_of(document, 1, slot, slots, ()).owned) for slot in range(slots)]
    assert sum(counts) == partitions
    assert max(counts) - min(counts) <= 1
