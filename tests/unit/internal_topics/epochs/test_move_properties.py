"""Whatever happens while partitions move between slots, each has one writer, and in the end one.

The driver's part (`Moving`, `Publication`) and the slots' (`SlotShare`) are the real ones. Around
them is a model of what exactly-once gives: whoever fences a transactional id ends all earlier
writers with it, and a commit succeeds only for one who was not fenced.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparkmirror.control.flows.moving import Moving
from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.data.coordination.slot_plan import SlotPlan
from sparkmirror.data.read.slot_share import SlotShare
from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    Command,
    CommandKind,
    SourcePartition,
)
from sparkmirror.internal_topics.deals.dealing import Move
from sparkmirror.internal_topics.epochs.releases import Release
from sparkmirror.internal_topics.epochs.shares import elsewhere, outdated
from sparkmirror.model import TopicPartition
from sparkmirror.progress import PartitionProgress, SlotProgress

RUN = "run"
SLOTS = 3
BASE = tuple(SourcePartition("t", n, "A.t") for n in range(4))


class _Topic:
    """The control topic: the documents and commands of each version."""

    def __init__(self) -> None:
        self.documents: list[AssignmentDocument] = []
        self.commands: list[Command] = []

    def assign(self, document: AssignmentDocument, command: Command) -> None:
        self.documents.append(document)
        self.commands.append(command)

    @property
    def newest(self) -> AssignmentDocument:
        return self.documents[-1]


@dataclass(eq=False)
class _Attempt:
    """An attempt of a slot's task. ``has``: what it may write; ``leaving``: with their orders.

    ``took``: whether it has fenced the slot's id; ``fenced``: whether another one has since.
    """

    plan: SlotPlan
    epoch: int
    share: SlotShare
    took: bool = False
    fenced: bool = True
    begun: bool = False
    read: AssignmentDocument | None = None
    ordered: AssignmentDocument | None = None
    has: set[TopicPartition] = field(default_factory=set)
    beginning: set[TopicPartition] = field(default_factory=set)
    leaving: dict[TopicPartition, int] = field(default_factory=dict)


def _remote(tp: TopicPartition) -> TopicPartition:
    return tp._replace(topic=f"A.{tp.topic}")


class Moves(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.topic = _Topic()
        self.now_s = 0.0
        writer: Any = self.topic
        self.published = Publication(
            "A->B", writer, channel="A->B", run_id=RUN, term=lambda: 1, over=threading.Event(),
            now_ms=lambda: 5, extends_slots=SLOTS,
        )  # fmt: skip
        self.moving = Moving("A->B", self.published, lambda: self.now_s)
        self.home: dict[TopicPartition, int] = {}
        self.releases: list[Release] = []
        self.attempts: list[_Attempt] = []
        self.epoch = 0
        self.plans: list[SlotPlan] = []
        self.fenced_for: object = None
        self.extra = 0
        self.steps = 0
        self.published.adopt(Assignment("A->B", BASE), CommandKind.RUN)
        self._plan({p.source: n % SLOTS for n, p in enumerate(BASE)}, self.topic.newest)
        self._round()

    # -- driver ----------------------------------------------------------------------------

    @rule()
    def reports_arrive(self) -> None:
        """From the slots of the newest epoch; what others have said before still counts."""
        for one in self.attempts:
            if one.epoch == self.epoch and one.begun:
                self.home = {tp: at for tp, at in self.home.items() if at != one.plan.slot}
                self.home |= dict.fromkeys(one.has, one.plan.slot)
                self._observe(one)

    def _observe(self, one: _Attempt) -> None:
        rows = tuple(PartitionProgress(tp.topic, tp.partition, 5) for tp in one.has)
        who = "A->B", one.plan.slot, "w", one.epoch
        self.moving.observe([SlotProgress(*who, 1, 0, 0, 0, partitions=rows)])

    @precondition(lambda self: self.home and not self.moving.pends(self.home))
    @rule(data=st.data())
    def a_move_is_ordered(self, data: st.DataObject) -> None:
        tps = data.draw(st.sets(st.sampled_from(sorted(self.home)), min_size=1), "moved")
        moves = []
        for tp in tps & self.published.assignment().sources:
            after = data.draw(st.integers(0, SLOTS - 1), "to")
            if after != self.home[tp]:
                moves.append(Move(tp, self.home[tp], after, "load"))
        if moves:
            self.moving.order(moves, self.epoch)

    @precondition(lambda self: self.releases)
    @rule(count=st.integers(1, 5))
    def releases_arrive(self, count: int) -> None:
        self.moving.take(self.releases[:count])
        del self.releases[:count]
        self.now_s += 1.0
        self.moving.step()

    @precondition(lambda self: self._now_and_then(10) and self.moving.pends(self.home))
    @rule()
    def an_order_takes_long(self) -> None:
        self.now_s += 40.0
        self.moving.step()

    @precondition(lambda self: self._now_and_then(7))
    @rule(comes=st.booleans())
    def topics_change(self, comes: bool) -> None:
        there = self.published.assignment().partitions
        if comes:
            self.extra += 1
            name = f"u{self.extra}"
            there = (*there, SourcePartition(name, 0, f"A.{name}"))
        elif len(there) > SLOTS:
            there = there[:-1]
        self.published.adopt(Assignment("A->B", tuple(sorted(there))), CommandKind.EXTEND)

    @precondition(lambda self: self._now_and_then(23))
    @rule()
    def an_epoch_must_end(self) -> None:
        self.published.replan()

    # -- planner ---------------------------------------------------------------------------

    def _plan(self, placed: dict[TopicPartition, int], document: AssignmentDocument) -> None:
        self.epoch += 1
        shares = document.version, tuple(sorted(placed.items()))
        if shares != self.fenced_for:
            for one in self.attempts:
                one.fenced = True
        self.fenced_for = shares
        self.plans = [
            SlotPlan(
                *(slot, self.epoch, RUN),
                tuple(p for p in document.partitions if placed[p.source] == slot),
                *(None, 0, document.version),
                slots=SLOTS,
            )
            for slot in range(SLOTS)
        ]

    @precondition(lambda self: self._now_and_then(19))
    @rule(data=st.data())
    def an_epoch_is_planned(self, data: st.DataObject) -> None:
        """Perhaps from an older assignment: the target may not respond to the planner."""
        oldest = self.plans[0].version
        documents = [one for one in self.topic.documents if one.version >= oldest]
        document = data.draw(st.sampled_from(documents[-3:]), "planned from")
        again = document.version == oldest and data.draw(st.booleans(), "the same plan")
        placed = {p.source: plan.slot for plan in self.plans for p in plan.partitions}
        if not again:
            placed = {
                p.source: data.draw(st.integers(0, SLOTS - 1), "slot") for p in document.partitions
            }
        self._plan(placed, document)

    # -- slots -----------------------------------------------------------------------------

    @precondition(lambda self: self._now_and_then(5))
    @rule(slot=st.integers(0, SLOTS - 1), data=st.data())
    def a_task_starts(self, slot: int, data: st.DataObject) -> None:
        """The one before may still run: Spark has only lost its connection to it."""
        plan = self.plans[slot]
        if data.draw(st.booleans(), "the one before is dead"):
            self.attempts = [one for one in self.attempts if one.plan.slot != slot]
        self.attempts.append(_Attempt(plan, self.epoch, SlotShare(plan)))

    def _beginning(self, data: st.DataObject) -> _Attempt:
        found = [one for one in self.attempts if not one.begun]
        return data.draw(st.sampled_from(found), "attempt")

    @precondition(lambda self: any(not one.begun for one in self.attempts))
    @rule(data=st.data())
    def a_task_fences(self, data: st.DataObject) -> None:
        one = self._beginning(data)
        if self._over(one, self.topic.newest):
            self.attempts.remove(one)
            return
        one.ordered = one.read
        one.took, one.fenced = True, False
        for other in self.attempts:
            if other is not one and other.plan.slot == one.plan.slot:
                other.fenced = True

    @precondition(lambda self: any(one.took and not one.begun for one in self.attempts))
    @rule(data=st.data())
    def a_task_begins(self, data: st.DataObject) -> None:
        """It has read the control topic to its end since it has fenced."""
        one = self._beginning(data)
        if not one.took:
            return
        one.read = newest = self.topic.newest
        if self._over(one, newest):
            self.attempts.remove(one)
            return
        kept, released = one.share.begin(newest)
        if released and newest is not one.ordered:
            one.took = False  # once more
            return
        one.begun = True
        one.has = {p.source for p in kept}
        self._report(one, {each.source: each.order for each in released})

    @precondition(lambda self: any(one.begun for one in self.attempts))
    @rule(data=st.data())
    def a_task_reads(self, data: st.DataObject) -> None:
        newest = self.topic.newest
        late = [one for one in self.attempts if one.begun and one.read is not newest]
        if not late:
            return
        one = data.draw(st.sampled_from(late), "attempt")
        known = 0 if one.read is None else one.read.version
        document = data.draw(st.sampled_from(self.topic.documents[known:]), "read")
        self._read(one, document)

    def _read(self, one: _Attempt, document: AssignmentDocument) -> None:
        one.read = document
        if self._over(one, document):
            self.attempts.remove(one)
            return
        changes = one.share.follow(document)
        if changes is not None:
            for each in changes.left:
                self._leave(one, each.source, each.order)
            one.beginning |= {p.source for p in changes.begin}

    def _leave(self, one: _Attempt, tp: TopicPartition, order: int) -> None:
        if order:
            one.leaving[tp] = order
        else:
            one.has.discard(tp)

    @precondition(lambda self: any(one.beginning for one in self.attempts))
    @rule(data=st.data())
    def a_partition_has_begun(self, data: st.DataObject) -> None:
        waiting = [one for one in self.attempts if one.beginning]
        one = data.draw(st.sampled_from(waiting), "attempt")
        self._begun(one, {data.draw(st.sampled_from(sorted(one.beginning)), "begun")})

    @precondition(lambda self: any(one.begun for one in self.attempts))
    @rule(data=st.data())
    def a_task_catches_up(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from([one for one in self.attempts if one.begun]), "attempt")
        self._read(one, self.topic.newest)
        if one in self.attempts:
            self._begun(one, set(one.beginning))
            self._commit(one)
        self.moving.take(self.releases)
        self.releases = []
        self.now_s += 1.0
        self.moving.step()

    def _begun(self, one: _Attempt, tps: set[TopicPartition]) -> None:
        one.beginning -= tps
        one.has |= tps
        for each in one.share.begun(tps):
            self._leave(one, each.source, each.order)

    @precondition(lambda self: any(one.leaving for one in self.attempts))
    @rule(data=st.data())
    def what_leaves_is_committed(self, data: st.DataObject) -> None:
        leaving = [one for one in self.attempts if one.leaving]
        self._commit(data.draw(st.sampled_from(leaving), "attempt"))

    def _commit(self, one: _Attempt) -> None:
        if one.fenced:
            self.attempts.remove(one)
            return
        one.has -= one.leaving.keys()
        self._report(one, one.leaving)
        one.leaving = {}

    def _report(self, one: _Attempt, released: dict[TopicPartition, int]) -> None:
        for tp, order in released.items():
            who = "A->B", RUN, one.plan.slot, one.epoch, order
            self.releases.append(Release(*who, (tp,)))

    def _over(self, one: _Attempt, document: AssignmentDocument) -> bool:
        command = self.topic.commands[document.version - 1]
        late = one.epoch != self.epoch and not one.begun  # it finds another epoch's record
        return late or outdated(command, RUN, one.plan.version)

    # -- what must hold --------------------------------------------------------------------

    def _writers(self) -> dict[TopicPartition, list[int]]:
        found: dict[TopicPartition, list[int]] = {}
        for one in self.attempts:
            for tp in one.has if one.begun and not one.fenced else ():
                found.setdefault(tp, []).append(one.plan.slot)
        return found

    def _now_and_then(self, steps: int) -> bool:
        """Else something would always come between an order and its end."""
        return self.steps % steps == 0

    @invariant()
    def a_partition_has_one_writer(self) -> None:
        self.steps += 1
        assert all(len(slots) == 1 for slots in self._writers().values()), self._writers()

    @invariant()
    def a_writer_can_tell_what_others_have(self) -> None:
        """One that was fenced, and fences its slot's id once more, then writes none of that."""
        newest = self.topic.newest
        for one in self.attempts:
            if not one.begun or self._over(one, newest):
                continue
            gone = elsewhere(newest, one.plan.version, one.plan.slot)
            theirs: set[TopicPartition] = set()
            for other in self.attempts:
                same = other.plan.version == one.plan.version and other.epoch == one.epoch
                if same and other.plan.slot != one.plan.slot and other.begun and not other.fenced:
                    theirs |= other.has
            for tp in one.has & theirs:
                assert _remote(tp) in gone, tp
            if not one.fenced:
                assert not gone & set(map(_remote, one.has)), gone

    def teardown(self) -> None:
        """Nothing more goes wrong: each partition gets its writer, and no order is left."""
        for _ in range(12):
            self._round()
            if not self.moving.pends(self.home):
                break
        self._round()
        self._round()
        there = self.published.assignment().sources
        assert self._writers().keys() == there
        assert not self.moving.pends(self.home)

    def _round(self) -> None:
        newest = self.topic.newest
        if outdated(self.topic.commands[-1], RUN, self.plans[0].version):
            placed = {p.source: n % SLOTS for n, p in enumerate(newest.partitions)}
            self._plan(placed, newest)
        for slot, plan in enumerate(self.plans):
            ours = [one for one in self.attempts if one.plan is plan and not one.fenced]
            self.attempts = [one for one in self.attempts if one.plan.slot != slot or one in ours]
            if not any(one.begun for one in ours):
                self.attempts = [one for one in self.attempts if one.plan.slot != slot]
                one = _Attempt(plan, self.epoch, SlotShare(plan), True, False, True, newest)
                self.attempts.append(one)
                kept, released = one.share.begin(newest)
                one.has = {p.source for p in kept}
                self._report(one, {each.source: each.order for each in released})
        for one in list(self.attempts):
            self._read(one, newest)
        for one in list(self.attempts):
            self._begun(one, set(one.beginning))
            self._commit(one)
            self._observe(one)
        self.home = {tp: slots[0] for tp, slots in self._writers().items()}
        self.moving.take(self.releases)
        self.releases = []
        self.now_s += 61.0 if self.moving.pends(self.home) else 1.0
        self.moving.step()
        self.a_partition_has_one_writer()


TestMoves = Moves.TestCase
TestMoves.settings = settings(max_examples=100, stateful_step_count=80, deadline=None)
