"""Which slot gets a partition that is added while an epoch runs. Pure; driver and slots use it.

Most changes of an assignment add partitions, or remove those of a topic that is gone. Then the
epoch goes on, and nothing else pauses. Each slot reads the new assignment in the control topic and
finds its own share of it:

* A partition of the plan stays in its slot. It leaves it if the assignment no longer has it.
* A partition that the assignment has got since the plan goes to `slot_of` it, which depends on
  nothing but the partition and the number of slots.

So no partition moves from one slot to another within an epoch, and a partition has one owner
whatever assignment a slot has read so far, and however often its task is started again. Where that
cannot be kept, a new epoch must begin: `Growth.follow` decides. It refuses

* another number of slots, or a first partition;
* a partition that comes back, or has another topic id: its former slot may still write;
* so many new partitions that the slots would be filled unevenly.

Some flows (`control.flow`) begin a new epoch for every change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from sparkmirror.internal_topics.commands import (
    AssignmentDocument,
    Command,
    CommandKind,
    SourcePartition,
)
from sparkmirror.model import TopicPartition

__all__ = ["Growth", "added_share", "outdated", "slot_of"]


def slot_of(tp: TopicPartition, slots: int) -> int:
    """The slot of a source partition that is added; those of one topic go round."""
    return (crc32(tp.topic.encode()) + tp.partition) % slots


def added_share(
    document: AssignmentDocument, version: int, slot: int, slots: int
) -> tuple[SourcePartition, ...]:
    """What ``document`` adds to a slot of an epoch that was planned at ``version``.

    Nothing if the epoch must end for it.
    """
    if document.base > version:
        return ()
    return tuple(
        one
        for one in document.partitions
        if document.since.get(one.source, 0) > version and slot_of(one.source, slots) == slot
    )


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
    those that were added later. ``gone``: partitions that were removed.
    """

    base: int = 0
    count: int = 0
    since: Mapping[TopicPartition, int] = field(default_factory=dict)
    gone: frozenset[TopicPartition] = frozenset()

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
        return Growth(self.base, self.count, since, gone)

    @staticmethod
    def begin(partitions: Collection[SourcePartition], version: int) -> Growth:
        """That of an assignment with which a new epoch begins."""
        return Growth(version, len(partitions))
