"""Deals partitions to slots by their weight. Pure: the same input gives the same deal anywhere.

1. Partitions that are far behind get slots of their own, by their share of the weight, if there are
   two slots or more. What is current keeps at least twice the slots that it needs.
2. A first deal is longest first: the heaviest partition goes to the slot with the least load. Among
   slots that stay within 110 % of the mean, one with a partition of the same leader is preferred:
   this makes fewer connections and fuller requests. If that ends worse than longest first alone
   (and above 110 %), longest first alone counts.
3. Later, a partition stays where it is. Only if the load of a slot is above 120 % of the mean (or
   of the heaviest partition), and moves lower it by at least 5 %, partitions move: one by one from
   the slot with the highest load, each time the one that lowers it most. A move that is not needed
   in the end is taken back. If single moves do not suffice, a first deal is made, with its slots
   numbered so that most of the weight stays.

The load of a slot is its weight divided by its speed: a slow slot gets less.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkmirror.internal_topics.deals.load import Load
from sparkmirror.model import TopicPartition

__all__ = ["IMBALANCE_MAX", "Deal", "Move", "make_deal"]

IMBALANCE_MAX = 1.2
"""The highest load of a slot, as a multiple of the mean, at which nothing moves."""
_AFFINITY_MAX = 1.1
_HELPS = 0.95
# A difference that nobody notices: a slot mirrors some 150 MB/s.
_GAIN_BYTES_S_MIN = 50_000.0
_HEADROOM = 2.0
_ROUNDING = 1e-9
# How many partitions are compared on either side of the weight that would make two slots even.
_NEAR = 8

Slots = dict[int, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class Move:
    """``tp`` goes from slot ``before`` to slot ``after``; ``reason``: in plain words."""

    tp: TopicPartition
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True)
class Deal:
    """The partitions of each slot, sorted; ``apart``: slots of partitions that are far behind."""

    slots: tuple[tuple[TopicPartition, ...], ...] = ()
    apart: frozenset[int] = frozenset()
    moves: tuple[Move, ...] = ()

    def slot_of(self) -> dict[TopicPartition, int]:
        """The slot of each partition."""
        return {tp: slot for slot, share in enumerate(self.slots) for tp in share}


def make_deal(
    loads: Mapping[TopicPartition, Load],
    slots_max: int,
    before: Mapping[TopicPartition, int] | None = None,
    *,
    apart_before: Collection[int] = (),
    speeds: Sequence[float] = (),
    capacity_bytes_s: float = 0.0,
    rebalance: bool = True,
) -> Deal:
    """Deal the partitions of ``loads`` to min(``slots_max``, their number) slots, none empty.

    ``before``: the slot that each partition has now, if it has one. ``apart_before``: slots that
    were for partitions far behind. ``speeds``: of each slot, 1.0 for a normal one.
    ``capacity_bytes_s``: what a slot has been seen to mirror, 0 if unknown. Without ``rebalance``,
    partitions only move if their slot is gone or another one would be empty.
    """
    count = min(max(1, slots_max), len(loads))
    if not count:
        return Deal()
    table = _Table(
        loads={tp: loads[tp] for tp in sorted(loads)},
        weights={tp: load.weight for tp, load in loads.items()},
        home={tp: slot for tp, slot in (before or {}).items() if tp in loads and slot >= 0},
        speeds=[*map(float, speeds[:count]), *[1.0] * (count - len(speeds))],
    )
    was_apart = {slot for slot in apart_before if 0 <= slot < count}
    there = {tp for tp in table.loads if table.home.get(tp, -1) in was_apart}
    if rebalance:
        behind = {tp for tp, one in loads.items() if one.is_far_behind(before=tp in there)}
    else:
        behind = there
    current = [tp for tp in table.loads if tp not in behind]
    apart: list[int] = []
    if not rebalance:
        fits = len(was_apart) <= len(behind) and 0 < count - len(was_apart) <= len(current)
        apart = sorted(was_apart) if fits else []
    elif count > 1 and behind and current:
        apart = table.slots_apart(behind, current, was_apart, capacity_bytes_s)
    if apart:
        table.place(current, [n for n in range(count) if n not in apart], rebalance=rebalance)
        table.place(behind, apart, rebalance=rebalance)
    else:
        table.place(table.loads, range(count), rebalance=rebalance)
    return table.result(frozenset(apart), was_apart)


@dataclass
class _Table:
    """One deal in the making. ``loads`` are in order; ``home``: the slot of each until now."""

    loads: dict[TopicPartition, Load]
    weights: dict[TopicPartition, float]
    home: dict[TopicPartition, int]
    speeds: list[float]
    placed: dict[TopicPartition, int] = field(default_factory=dict)
    reasons: dict[TopicPartition, str] = field(default_factory=dict)

    def weight(self, tps: Iterable[TopicPartition]) -> float:
        return math.fsum(self.weights[tp] for tp in tps)

    def longest_first(self, tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Of equal weight, those of one leader follow each other."""
        return sorted(tps, key=lambda tp: (-self.weights[tp], self.loads[tp].leader, tp))

    # -- apart from what is current ---------------------------------------------------------

    def slots_apart(
        self,
        behind: Collection[TopicPartition],
        current: Collection[TopicPartition],
        was_apart: set[int],
        capacity_bytes_s: float,
    ) -> list[int]:
        """The slots of ``behind``; all others have what is current."""
        count = len(self.speeds)
        share = self.weight(behind) / self.weight(self.loads)
        needed = 1
        if capacity_bytes_s > 0:
            bytes_s = sum(self.loads[tp].bytes_s for tp in current)
            needed = max(1, math.ceil(min(count, _HEADROOM * bytes_s / capacity_bytes_s)))
        low = max(1, count - len(current))
        high = max(low, min(len(behind), count - needed))
        wanted = min(max(round(count * share), low), high)
        if low <= len(was_apart) <= high and abs(len(was_apart) - wanted) <= 1:
            wanted = len(was_apart)
        there = Counter[int]()
        for tp in behind:
            if tp in self.home:
                there[self.home[tp]] += int(self.weights[tp])
        ranked = sorted(range(count), key=lambda slot: (slot not in was_apart, -there[slot], -slot))
        return sorted(ranked[:wanted])

    # -- placing ----------------------------------------------------------------------------

    def place(
        self, tps: Iterable[TopicPartition], slots: Iterable[int], *, rebalance: bool = True
    ) -> None:
        """Place ``tps`` in ``slots``; there are at least as many partitions as slots."""
        tps, numbers = list(tps), list(slots)
        held: Slots = {slot: [] for slot in numbers}
        homeless: list[TopicPartition] = []
        for tp in sorted(tps):
            home = self.home.get(tp, -1)
            held.get(home, homeless).append(tp)
        if len(homeless) == len(tps):
            held = self._first(tps, numbers)
        else:
            self._add(held, homeless)
            self._fill_empty(held)
            if rebalance:
                held = self._rebalanced(held)
        self.placed.update((tp, slot) for slot, share in held.items() for tp in share)

    def _ideal(self, tps: Iterable[TopicPartition], slots: Iterable[int]) -> float:
        """No deal has a lower load in its fullest slot."""
        tps = list(tps)
        speeds = [self.speeds[slot] for slot in slots]
        heaviest = max(self.weights[tp] for tp in tps)
        return max(self.weight(tps) / sum(speeds), heaviest / max(speeds))

    def _loads(self, held: Slots) -> dict[int, float]:
        return {slot: self.weight(share) / self.speeds[slot] for slot, share in held.items()}

    def _first(self, tps: Iterable[TopicPartition], slots: Sequence[int]) -> Slots:
        """A deal from nothing."""
        ordered = self.longest_first(tps)
        plain = self._dealt(ordered, slots, 0.0)
        if len({self.loads[tp].leader for tp in ordered}) == 1:
            return plain
        peak = max(self._loads(plain).values())
        most = max(peak, _AFFINITY_MAX * self._ideal(ordered, slots)) * (1 + _ROUNDING)
        joined = self._dealt(ordered, slots, most)
        return joined if max(self._loads(joined).values()) <= most else plain

    def _dealt(self, ordered: Sequence[TopicPartition], slots: Sequence[int], most: float) -> Slots:
        """Longest first; a slot with the same leader is preferred while it has at most ``most``."""
        held: Slots = {slot: [] for slot in slots}
        weights = dict.fromkeys(slots, 0.0)
        of_leader: dict[int, set[int]] = {}
        empty = len(slots)
        for done, tp in enumerate(ordered):
            weight, leader = self.weights[tp], self.loads[tp].leader

            def after(slot: int, weight: float = weight) -> float:
                return (weights[slot] + weight) / self.speeds[slot]

            same = of_leader.setdefault(leader, set())
            spare = len(ordered) - done > empty
            fits = [slot for slot in same if spare and leader >= 0 and after(slot) <= most]
            choice = fits or (slots if spare else [slot for slot in slots if not held[slot]])
            chosen = min(choice, key=lambda slot: (after(slot), slot))
            empty -= not held[chosen]
            held[chosen].append(tp)
            weights[chosen] += weight
            same.add(chosen)
        return held

    def _add(self, held: Slots, homeless: Iterable[TopicPartition]) -> None:
        """Add partitions that have no slot here yet, without moving any other."""
        weights = {slot: self.weight(share) for slot, share in held.items()}
        leaders = {slot: Counter(self.loads[tp].leader for tp in held[slot]) for slot in held}
        everything = [*homeless, *(tp for share in held.values() for tp in share)]
        most = _AFFINITY_MAX * self._ideal(everything, held)
        for tp in self.longest_first(homeless):
            leader = self.loads[tp].leader

            def after(slot: int, weight: float = self.weights[tp]) -> float:
                return (weights[slot] + weight) / self.speeds[slot]

            empty = [slot for slot in held if not held[slot]]
            same = [slot for slot in held if leader >= 0 and leaders[slot][leader]]
            fits = [slot for slot in same if after(slot) <= most]
            chosen = min(empty or fits or held, key=lambda slot: (after(slot), slot))
            held[chosen].append(tp)
            weights[chosen] += self.weights[tp]
            leaders[chosen][leader] += 1

    def _fill_empty(self, held: Slots) -> None:
        for slot in [slot for slot in held if not held[slot]]:
            loads = self._loads(held)
            giver = max(
                (other for other in held if len(held[other]) > 1),
                key=lambda other: (loads[other], -other),
            )
            best = self.longest_first(held[giver])[1]  # the heaviest one stays
            self._shift(held, best, giver, slot, f"slot {slot} had no partition")

    def _shift(self, held: Slots, tp: TopicPartition, giver: int, taker: int, why: str) -> None:
        held[giver].remove(tp)
        held[taker].append(tp)
        self.reasons.setdefault(tp, why)

    # -- balance ----------------------------------------------------------------------------

    def _rebalanced(self, held: Slots) -> Slots:
        """``held``, or a better deal if that is worth its moves."""
        tps = [tp for share in held.values() for tp in share]
        ideal = self._ideal(tps, held)
        loads = self._loads(held)
        peak, most = max(loads.values()), IMBALANCE_MAX * ideal
        if peak <= most:
            return held
        why = self._causes(loads)
        moved = {slot: list(share) for slot, share in held.items()}
        self._move_singly(moved, most)
        reached = max(self._loads(moved).values())
        if reached > most:
            first = self._numbered_as(held, self._first(tps, list(held)))
            least = max(self._loads(first).values())
            if least * IMBALANCE_MAX < reached:
                moved, reached = first, least
        if reached > _HELPS * peak or peak - reached < _GAIN_BYTES_S_MIN:
            return held
        self._take_back(held, moved, max(most, reached))
        source = {tp: slot for slot, share in held.items() for tp in share}
        for slot, share in moved.items():
            for tp in share:
                if source[tp] != slot:
                    self.reasons.setdefault(tp, why.get(source[tp], why[-1]))
        return moved

    def _causes(self, loads: Mapping[int, float]) -> dict[int, str]:
        """Why partitions leave each slot; of other slots than those with much: key -1."""
        weights = {slot: load * self.speeds[slot] for slot, load in loads.items()}
        mean = math.fsum(weights.values()) / sum(self.speeds[slot] for slot in loads)
        causes: dict[int, str] = {}
        for slot, load in sorted(loads.items(), key=lambda one: one[1]):
            text = f"slot {slot} had {load / mean:.1f} times the mean"
            if self.speeds[slot] < 1:
                text += f" for its speed, {self.speeds[slot]:.0%} of that of the others"
            causes[-1] = (
                f"for a deal that relieves slot {slot}: it had {load / mean:.1f} times the mean"
            )
            if load > mean:
                causes[slot] = text
        return causes

    def _move_singly(self, held: Slots, most: float) -> None:
        """Move partitions one by one from the fullest slot while that lowers its load."""
        weights = {slot: self.weight(share) for slot, share in held.items()}
        leaders = {slot: Counter(self.loads[tp].leader for tp in held[slot]) for slot in held}
        by_weight = {
            slot: sorted((self.weights[tp], tp) for tp in share) for slot, share in held.items()
        }
        loads = {slot: weights[slot] / self.speeds[slot] for slot in held}
        for _ in range(2 * len(self.loads)):
            giver = max(held, key=lambda slot: (loads[slot], -slot))
            if loads[giver] <= most or len(by_weight[giver]) < 2:
                break
            # Of the same speed, the one with the least load is the best receiver.
            least: dict[float, int] = {}
            for slot in sorted(held, key=lambda slot: (loads[slot], slot)):
                if slot != giver:
                    least.setdefault(self.speeds[slot], slot)
            found: tuple[tuple[float, bool, float, TopicPartition], int] | None = None
            for taker in least.values():
                slow, fast = self.speeds[giver], self.speeds[taker]
                even = (weights[giver] * fast - weights[taker] * slow) / (slow + fast)
                near = bisect_left(by_weight[giver], (even,))
                for weight, tp in by_weight[giver][max(0, near - _NEAR) : near + _NEAR]:
                    after = max((weights[giver] - weight) / slow, (weights[taker] + weight) / fast)
                    leader = self.loads[tp].leader
                    joins = leader >= 0 and leaders[taker][leader] > 0
                    rank = (after, not joins, -weight, tp)
                    if found is None or rank < found[0]:
                        found = rank, taker
            if found is None or found[0][0] >= loads[giver] * (1 - _ROUNDING):
                break
            tp, taker = found[0][3], found[1]
            weight = self.weights[tp]
            del by_weight[giver][bisect_left(by_weight[giver], (weight, tp))]
            insort(by_weight[taker], (weight, tp))
            for slot, change in ((giver, -1), (taker, 1)):
                weights[slot] += change * weight
                leaders[slot][self.loads[tp].leader] += change
                loads[slot] = weights[slot] / self.speeds[slot]
        for slot, pairs in by_weight.items():
            held[slot] = [tp for _, tp in pairs]

    def _numbered_as(self, held: Slots, first: Slots) -> Slots:
        """``first`` with its slots numbered so that much of the weight stays where ``held`` is.

        Slots of different speed keep their numbers.
        """
        source = {tp: slot for slot, share in held.items() for tp in share}
        shared: dict[tuple[int, int], float] = {}
        for slot, share in first.items():
            for tp in share:
                pair = (slot, source[tp])
                shared[pair] = shared.get(pair, 0.0) + self.weights[tp]
        number: dict[int, int] = {}
        for slot, old in sorted(shared, key=lambda pair: (-shared[pair], pair)):
            same_speed = self.speeds[slot] == self.speeds[old]
            if same_speed and slot not in number and old not in number.values():
                number[slot] = old
        for slot in first:
            if slot not in number:
                number[slot] = next(
                    old
                    for old in first
                    if self.speeds[old] == self.speeds[slot] and old not in number.values()
                )
        return {number[slot]: share for slot, share in first.items()}

    def _take_back(self, held: Slots, moved: Slots, most: float) -> None:
        """Undo moves without which no slot has more than ``most``, the lightest first."""
        source = {tp: slot for slot, share in held.items() for tp in share}
        weights = {slot: self.weight(share) for slot, share in moved.items()}
        gone = [(tp, slot) for slot, share in moved.items() for tp in share if source[tp] != slot]
        limit = most * (1 + _ROUNDING)
        again = True
        while again:
            again = False
            for tp, slot in sorted(gone, key=lambda one: (self.weights[one[0]], one[0])):
                home = source[tp]
                got = (weights[home] + self.weights[tp]) / self.speeds[home]
                if got <= limit and len(moved[slot]) > 1:
                    moved[slot].remove(tp)
                    moved[home].append(tp)
                    weights[slot] -= self.weights[tp]
                    weights[home] += self.weights[tp]
                    gone.remove((tp, slot))
                    again = True

    # -- result -----------------------------------------------------------------------------

    def result(self, apart: frozenset[int], was_apart: set[int]) -> Deal:
        """The deal, with the reason of each move."""
        count = len(self.speeds)
        slots: Slots = {slot: [] for slot in range(count)}
        moves = []
        for tp in self.loads:
            slot, home = self.placed[tp], self.home.get(tp)
            slots[slot].append(tp)
            if home is not None and home != slot:
                moves.append(Move(tp, home, slot, self._reason(tp, home, slot, apart, was_apart)))
        return Deal(tuple(tuple(slots[slot]) for slot in range(count)), apart, tuple(moves))

    def _reason(
        self, tp: TopicPartition, home: int, slot: int, apart: frozenset[int], was_apart: set[int]
    ) -> str:
        if home >= len(self.speeds):
            return f"slot {home} is gone"
        if slot in apart and home not in apart:
            return f"it is {_span(self.loads[tp].behind_s)} behind: apart from what is current"
        if slot not in apart and home in apart:
            if home in was_apart:
                return "it has caught up: with what is current again"
            return f"slot {home} is for partitions that are far behind now"
        return self.reasons.get(tp, "")


def _span(seconds: float) -> str:
    """``seconds`` in the largest whole unit, up to "years"."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}" if seconds < 1_000 * 86_400 else "years"
    return f"{seconds:.0f} s"
