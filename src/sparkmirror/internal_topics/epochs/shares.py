"""Which slot has which partition while an epoch runs. Pure; driver and slots use it.

Most changes of an assignment add partitions, or remove those of a topic that is gone. Others move
partitions to another slot, because of their load. The epoch goes on, and nothing else pauses. Each
slot reads the new assignment in the control topic and finds its own share of it (`share_of`):

* A partition of the plan stays in its slot. It leaves it if the assignment no longer has it.
* A partition that the assignment has got since the plan goes to `slot_of` it, which depends on
  nothing but the partition and the number of slots.
* A partition that was moved since the plan has no slot until it is released.

A move has two steps, and the assignment has both. The driver is the only one who writes it, so all
slots see the same order of events:

1. The driver **orders** the move: the assignment names the new slot and the version of the order.
   From then on no slot may have the partition. The one that has it fetches no more of it, writes
   and commits what is in flight, and reports an `epochs.releases.Release` with the version.
2. The driver reads that, and the next assignment says that the partition is **released**. From then
   on the new slot has it.

Slots see more or less of this: a task that is started again reads the newest assignment only, and
epochs are planned in between. So an assignment has all orders since the newest epoch that had to
begin (`AssignmentDocument.base`), and each plan counts those that are newer than itself.

So a partition has at most one owner whatever assignment a slot has read so far, and however often
its task is started again. Where that cannot be kept, a new epoch must begin: `Growth.follow` and
`Growth.move` decide. They refuse

* another number of slots, or a first partition;
* a partition that comes back, or has another topic id: its former slot may still write;
* so many new partitions that the slots would be filled unevenly;
* a move while one of the same partition is under way.

Some flows (`control.flow`) begin a new epoch for every change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from sparkmirror.internal_topics.assignments import Orders, Place
from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    Command,
    CommandKind,
    SourcePartition,
)
from sparkmirror.model import TopicPartition

__all__ = [
    "STEPS_MAX",
    "Growth",
    "Share",
    "elsewhere",
    "outdated",
    "share_of",
    "slot_of",
]


STEPS_MAX = 20
"""So many moves of a partition are kept; then a new epoch begins, and they are forgotten."""


def slot_of(tp: TopicPartition, slots: int) -> int:
    """The slot of a source partition that is added; those of one topic go round."""
    return (crc32(tp.topic.encode()) + tp.partition) % slots


@dataclass(frozen=True, slots=True)
class Share:
    """What an assignment says to one slot.

    ``owned``: its partitions, each with the version that gave it to the slot; 0: its plan did.
    ``leaving``: those that it had until a move, and that it must release; the order's version.
    """

    owned: Mapping[SourcePartition, int]
    leaving: Mapping[TopicPartition, int]


def share_of(
    document: AssignmentDocument,
    version: int,
    slot: int,
    slots: int,
    planned: Collection[TopicPartition],
) -> Share:
    """The share of a slot whose epoch was planned at ``version``, an older one than ``document``.

    ``slots``: how many the epoch has. ``planned``: the slot's partitions by its plan. The epoch
    must not have to end for ``document``.
    """
    owned: dict[SourcePartition, int] = {}
    leaving: dict[TopicPartition, int] = {}
    for one in document.partitions:
        tp = one.source
        added = document.since.get(tp, 0)
        place: Place = (slot_of(tp, slots), added) if added > version else (-1, 0)
        if added <= version and tp in planned:
            place = slot, 0
        orders = document.moves.get(tp)
        steps = _steps(orders, version)
        ordered = 0
        if orders is not None and steps and not orders.released:
            steps, ordered = steps[:-1], steps[-1][1]
        if steps:
            place = steps[-1]
        if place[0] == slot and ordered:
            leaving[tp] = ordered
        elif place[0] == slot:
            owned[one] = place[1]
    return Share(owned, leaving)


def _steps(orders: Orders | None, version: int) -> tuple[Place, ...]:
    """The moves of a partition that are newer than a plan of ``version``."""
    return () if orders is None else tuple(one for one in orders.steps if one[1] > version)


def elsewhere(document: AssignmentDocument, version: int, slot: int) -> frozenset[TopicPartition]:
    """Remote partitions that another slot has got since an epoch was planned at ``version``.

    Those that ``slot`` has still to release are not among them.
    """
    found = set()
    for one in document.partitions:
        orders = document.moves.get(one.source)
        steps = _steps(orders, version)
        if orders is not None and not orders.released:
            steps = steps[:-1]
        if steps and steps[-1][0] != slot:
            found.add(one.target)
    return frozenset(found)


def outdated(command: Command | None, run_id: str, version: int) -> bool:
    """Whether an epoch that was planned at ``version`` must end for a new one, or for good.

    ``command``: the newest of the flow.
    """
    if command is None or command.run_id != run_id:
        return False
    if command.kind is CommandKind.EXTEND:
        # A command that ended the epoch may have been compacted away.
        return command.base > version
    if command.kind in (CommandKind.REPLAN, CommandKind.RUN):
        return not 0 < command.version <= version
    return command.kind is CommandKind.DRAIN


@dataclass(frozen=True, slots=True)
class Growth:
    """How an assignment has changed since its version ``base``, within one epoch.

    ``count``: how many partitions ``base`` had. ``since``: the version that added a partition, for
    those that were added later. ``gone``: partitions that were removed. ``moves``: of those that
    were moved.
    """

    base: int = 0
    count: int = 0
    since: Mapping[TopicPartition, int] = field(default_factory=dict)
    gone: frozenset[TopicPartition] = frozenset()
    moves: Mapping[TopicPartition, Orders] = field(default_factory=dict)

    def follow(
        self,
        before: Sequence[SourcePartition],
        after: Sequence[SourcePartition],
        version: int,
        slots_max: int,
    ) -> Growth | None:
        """The growth with ``after``, published as ``version``; None if a new epoch must begin."""
        old, new = {p.source: p for p in before}, {p.source: p for p in after}
        added = new.keys() - old.keys()
        gone = self.gone | (old.keys() - new.keys())
        changed = any(old[tp] != new[tp] for tp in old.keys() & new.keys())
        if not old or changed or added & self.gone:
            return None
        if min(slots_max, len(old)) != min(slots_max, len(new)):
            return None
        since = {tp: at for tp, at in self.since.items() if tp in new} | dict.fromkeys(
            added, version
        )
        if len(since) + len(gone) > self.count:
            return None
        moves = {tp: orders for tp, orders in self.moves.items() if tp in new}
        return Growth(self.base, self.count, since, gone, moves)

    def move(self, to: Mapping[TopicPartition, int], version: int) -> Growth | None:
        """The growth with orders to move partitions to other slots, published as ``version``.

        None if a new epoch must begin for that.
        """
        moves = dict(self.moves)
        for tp, slot in to.items():
            known = moves.get(tp, Orders((), released=True))
            if not known.released or len(known.steps) >= STEPS_MAX:
                return None
            moves[tp] = Orders((*known.steps, (slot, version)))
        return replace(self, moves=moves)

    def release(self, released: Iterable[TopicPartition]) -> Growth:
        """The growth once the former slots of ``released`` have given them up.

        The newest order of each of them is under way.
        """
        done = {tp: replace(self.moves[tp], released=True) for tp in released if tp in self.moves}
        return replace(self, moves={**self.moves, **done})

    @staticmethod
    def begin(partitions: Collection[SourcePartition], version: int) -> Growth:
        """That of an assignment with which a new epoch begins."""
        return Growth(version, len(partitions))
