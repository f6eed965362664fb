"""The rules of Java's sticky assignors (KIP-54, KIP-429): balanced, few partitions move. No I/O.

The assignment is balanced: no member could take a partition from another one that has two more.
Apart from that, members keep what they own. If all members subscribe to the same topics, no
balanced assignment moves fewer partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from sparkmirror.model import TopicPartition

__all__ = ["Claims", "assign_sticky", "withhold_moving"]

Claims = Mapping[str, tuple[int, Iterable[TopicPartition]]]
"""Per member, the partitions that it owns, and as of which generation of the group."""


def assign_sticky(
    wanted: Mapping[str, frozenset[str]], claims: Claims, partitions: Mapping[str, int]
) -> dict[str, set[TopicPartition]]:
    """The partitions of each member.

    ``wanted``: the topics of each member. ``partitions``: the number of partitions of each topic.
    """
    subscribers: dict[str, list[str]] = defaultdict(list)
    for member in sorted(wanted):
        for topic in wanted[member]:
            subscribers[topic].append(member)
    candidates = {topic: tuple(members) for topic, members in subscribers.items()}
    found = _Assignment(wanted, candidates)
    owners = _owners(claims)
    left = []
    # Partitions with few candidates come first.
    for topic in sorted(candidates, key=lambda topic: (len(candidates[topic]), topic)):
        for number in range(partitions.get(topic, 0)):
            tp = TopicPartition(topic, number)
            owner = owners.get(tp)
            if owner is not None and topic in wanted.get(owner, ()):
                found.give(owner, tp)
            else:
                left.append(tp)
    kept = {tp for own in found.partitions().values() for tp in own}
    for tp in left:
        found.give(found.least(candidates[tp.topic]), tp)
    # First only by partitions that move anyway.
    found.balance(fixed=kept)
    found.balance(fixed=set())
    return found.partitions()


def withhold_moving(
    assigned: Mapping[str, set[TopicPartition]], claims: Claims
) -> dict[str, set[TopicPartition]]:
    """The cooperative protocol: a partition that another member owns is assigned a rebalance later.

    In this one its owner gives it up. A partition that two members own as of the same generation is
    given to neither.
    """
    claimed = _claimed(claims)
    contested = {tp for tp, rows in claimed.items() if _owner(rows) is None}

    def may_have(member: str, tp: TopicPartition) -> bool:
        owners = [owner for _, owner in claimed.get(tp, ())]
        return tp not in contested and (not owners or member in owners)

    return {member: {tp for tp in own if may_have(member, tp)} for member, own in assigned.items()}


Candidates = tuple[str, ...]
"""The members that subscribe to a topic, in order. Most topics of a group have the same ones."""


class _Assignment:
    """The partitions of each member, by their candidates, and how many they are."""

    def __init__(self, members: Iterable[str], candidates: Mapping[str, Candidates]) -> None:
        self._candidates = candidates
        self._held: dict[str, dict[Candidates, dict[TopicPartition, None]]] = {
            member: {} for member in sorted(members)
        }
        self._sizes = dict.fromkeys(self._held, 0)

    def partitions(self) -> dict[str, set[TopicPartition]]:
        return {member: set().union(*own.values()) for member, own in self._held.items()}

    def give(self, member: str, tp: TopicPartition) -> None:
        self._held[member].setdefault(self._candidates[tp.topic], {})[tp] = None
        self._sizes[member] += 1

    def least(self, members: Candidates) -> str:
        return min(members, key=self._sizes.__getitem__)

    def balance(self, *, fixed: set[TopicPartition]) -> None:
        """Move partitions that are not ``fixed`` until no move makes two members more equal.

        The largest member gives first. Otherwise members would give and later receive. Each move
        brings the sizes of two members closer together, so this ends.
        """
        movable = {
            member: {group: [tp for tp in own if tp not in fixed] for group, own in held.items()}
            for member, held in self._held.items()
        }
        while (move := self._next_move(movable)) is not None:
            owner, group, taker = move
            tp = movable[owner][group].pop()
            del self._held[owner][group][tp]
            self._sizes[owner] -= 1
            self.give(taker, tp)
            movable[taker].setdefault(group, []).append(tp)

    def _next_move(
        self, movable: Mapping[str, Mapping[Candidates, list[TopicPartition]]]
    ) -> tuple[str, Candidates, str] | None:
        """(owner, candidates of the partition, its new owner); None if there is no move."""
        for owner in sorted(self._held, key=lambda member: -self._sizes[member]):
            groups = [group for group, own in movable[owner].items() if own]
            if not groups:
                continue
            group = min(groups, key=lambda one: self._sizes[self.least(one)])
            taker = self.least(group)
            if self._sizes[owner] > self._sizes[taker] + 1:
                return owner, group, taker
        return None


def _owners(claims: Claims) -> dict[TopicPartition, str]:
    found = {tp: _owner(rows) for tp, rows in _claimed(claims).items()}
    return {tp: owner for tp, owner in found.items() if owner is not None}


def _claimed(claims: Claims) -> dict[TopicPartition, list[tuple[int, str]]]:
    """(generation, member) of each member that claims a partition."""
    claimed: dict[TopicPartition, list[tuple[int, str]]] = defaultdict(list)
    for member, (generation, owned) in claims.items():
        for tp in dict.fromkeys(owned):
            claimed[tp].append((generation, member))
    return claimed


def _owner(rows: list[tuple[int, str]]) -> str | None:
    """The member with the newest claim; None if two are equally new, so that one is wrong."""
    newest = max(generation for generation, _ in rows)
    owners = [member for generation, member in rows if generation == newest]
    return owners[0] if len(owners) == 1 else None
