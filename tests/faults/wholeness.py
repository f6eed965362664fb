"""Whether a remote topic holds what its source does, and what a run of losses gave as a page."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

__all__ = ["Compared", "Outcome", "Summary", "compare", "render"]


@dataclass(frozen=True)
class Compared:
    """What a remote topic holds beside its source.

    ``early``: records in front of those that are mirrored again behind a loss, as at-least-once
    may have them (docs/guarantees.md); any other place that is not the source's is
    ``out_of_order``. ``strange``: what the source does not have.
    """

    missing: int = 0
    twice: int = 0
    out_of_order: int = 0
    strange: int = 0
    early: int = 0

    @classmethod
    def total(cls, parts: Iterable[Compared]) -> Self:
        """All partitions together."""
        some = list(parts)
        return cls(
            sum(one.missing for one in some),
            sum(one.twice for one in some),
            sum(one.out_of_order for one in some),
            sum(one.strange for one in some),
            sum(one.early for one in some),
        )

    @property
    def equal(self) -> bool:
        """Every record once, and in order."""
        return not (self.missing or self.twice or self.out_of_order or self.strange)

    @property
    def spoilt(self) -> bool:
        """Nothing that is still to come can make it equal."""
        return bool(self.twice or self.strange)

    def __str__(self) -> str:
        return (
            f"{self.missing} missing, {self.twice} twice, {self.out_of_order} out of order, "
            f"{self.strange} not the source's"
        )


def compare(
    wanted: Sequence[bytes],
    found: Sequence[bytes | None],
    repaired: Collection[tuple[int, int]] = (),
) -> Compared:
    """One partition; ``wanted``: the source's values, by offset, of which none is there twice.

    ``repaired``: first and last source offset of what was told to be mirrored again. What follows
    ``last`` at the source may stand in front of ``first``: it was written before the loss was seen.
    """
    offsets = {value: offset for offset, value in enumerate(wanted)}
    assert len(offsets) == len(wanted), "a value is at the source twice"
    there: set[int] = set()
    twice = strange = out_of_order = early = 0
    due, next_early = 0, -1
    for value in found:
        offset = -1 if value is None else offsets.get(value, -1)
        if offset < 0:
            strange += 1
        elif offset in there:
            twice += 1
        else:
            there.add(offset)
            if offset != due and (offset == next_early or (due, offset - 1) in repaired):
                early, next_early = early + 1, offset + 1
            elif offset != due:
                out_of_order += 1
            while due in there:
                due += 1
    return Compared(len(wanted) - len(there), twice, out_of_order, strange, early)


@dataclass(frozen=True)
class Outcome:
    """One loss. ``told_as``: kinds of the gap records; seconds until all was told, and was there.

    Seconds count from the moment at which the target took records again, or the mirror was started.
    ``untold``: partitions that lost records of which nothing was told; ``invented``: the opposite.
    ``early``: `Compared.early` of this loss alone.
    """

    name: str
    idle: bool = False
    told_as: frozenset[str] = frozenset()
    told_s: float = float("inf")
    whole_s: float = float("inf")
    untold: int = 0
    invented: int = 0
    early: int = 0
    compared: Compared = Compared()

    @property
    def wrong(self) -> bool:
        """Whether a promise was broken."""
        return bool(self.untold or self.invented) or not self.compared.equal

    def __str__(self) -> str:
        idle = " (idle)" if self.idle else ""
        return (
            f"{self.name}{idle}: told as {_kinds(self.told_as)} after {self.told_s:.1f} s, whole "
            f"after {self.whole_s:.1f} s; {self.compared}, {self.untold} untold, {self.invented} "
            f"told of nothing; {self.early} in front"
        )


@dataclass(frozen=True)
class Summary:
    """A whole run. ``complaints``: what was wrong beside the losses' own figures."""

    mode: str
    head: str
    records: int
    outcomes: Sequence[Outcome]
    complaints: Sequence[str] = ()

    @property
    def wrong(self) -> list[str]:
        """What should not have been."""
        return [*(str(one) for one in self.outcomes if one.wrong), *self.complaints]


def render(summary: Summary) -> str:
    """The page."""
    outcomes = summary.outcomes
    sums = Compared.total(one.compared for one in outcomes)
    untold = sum(one.untold + one.invented for one in outcomes)
    lines = [
        f"## {len(outcomes)} losses at the target, {summary.mode}",
        "",
        f"{summary.head}; {summary.records:,} records: **{sums.missing} missing, {sums.twice} "
        f"twice, {sums.out_of_order + sums.strange} out of order, {untold} untold**.",
        "",
        "| loss | times | told as | seconds until told: median | worst | until whole again: median "
        "| worst | times with records in front of what came again |",
        "|---|---|---|---|---|---|---|---|",
    ]
    by_name: Mapping[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        by_name[one.name].append(one)
    for name, some in sorted(by_name.items()):
        told, whole = [one.told_s for one in some], [one.whole_s for one in some]
        lines.append(
            f"| {name} | {len(some)} | {_kinds(frozenset().union(*(one.told_as for one in some)))} "
            f"| {statistics.median(told):.1f} | {max(told):.1f} | {statistics.median(whole):.1f} "
            f"| {max(whole):.1f} | {sum(one.early > 0 for one in some)} |"
        )
    lines += [f"\nWRONG: {line}" for line in summary.wrong]
    return "\n".join(lines) + "\n"


def _kinds(kinds: frozenset[str]) -> str:
    return ", ".join(sorted(kinds)) or "nothing"
