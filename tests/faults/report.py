"""What a run of random faults gave, as a page and as complaints."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["UNCOMMITTED_S", "Outcome", "complaints", "render"]

UNCOMMITTED_S = 2.0
"""A position is committed a second after the one before; the commit takes its time, too."""

_WORKER_S_MAX = 10.0
_DRIVER_S_MAX = 30.0
_DRIVER = "driver killed"
_WORKERS = ("sink worker killed", "source worker killed", "planner killed")


@dataclass(frozen=True)
class Outcome:
    """One fault: seconds until all partitions moved again, and what came twice.

    ``parts``: seconds of the restart before Spark, and of Spark until its queries ran; None when
    the run went on. ``uncommitted``: records that came in the two seconds before the fault, of
    which the positions may not have been committed.
    """

    name: str
    took_s: float
    parts: tuple[float, float] | None = None
    twice: int = 0
    uncommitted: int = 0

    def __str__(self) -> str:
        text = f"{self.name:22s} mirrored again after {self.took_s:5.1f} s"
        if self.parts is not None:
            text += f" (a new run: {self.parts[0]:.1f} s before Spark, {self.parts[1]:.1f} s Spark)"
        return text


def complaints(
    outcomes: Sequence[Outcome],
    *,
    lost: int,
    aborted: int,
    may_repeat: bool,
    by_itself: Sequence[int] = (),
    drained: int = 0,
) -> list[str]:
    """What should not have been. ``may_repeat``: what was not committed may come twice.

    ``by_itself``: exit codes of runs that no fault has ended; ``drained``: that of the last one.
    """
    found = [f"{lost} records lost or out of order"] if lost else []
    found += [f"a run ended by itself with code {code}" for code in by_itself]
    if drained:
        found.append(f"the mirror drained with code {drained}")
    if aborted:
        found.append(f"{aborted} records of aborted transactions came")
    for number, one in enumerate(outcomes, 1):
        allowed = one.uncommitted if may_repeat else 0
        if one.twice > allowed:
            found.append(f"fault {number}, {one.name}: {one.twice} records twice, not {allowed}")
        if one.name in _WORKERS and one.took_s > _WORKER_S_MAX:
            found.append(f"fault {number}, {one.name}: {one.took_s:.1f} s")
        if one.name == _DRIVER and one.parts is not None and one.took_s > _DRIVER_S_MAX:
            found.append(f"fault {number}, {one.name}: {one.took_s:.1f} s")
    return found


def render(mode: str, head: str, outcomes: Sequence[Outcome], *, lost: int, twice: int) -> str:
    """The page."""
    by_name: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        by_name[one.name].append(one)
    lines = [
        f"## {len(outcomes)} random faults, {mode}",
        "",
        f"{head}: **{lost} lost, {twice} duplicated**.",
        "",
        "| fault | times | seconds until all partitions moved again: median | longest "
        "| came twice |",
        "|---|---|---|---|---|",
    ]
    for name, some in sorted(by_name.items()):
        times = [one.took_s for one in some]
        lines.append(
            f"| {name} | {len(some)} | {statistics.median(times):.1f} | {max(times):.1f} "
            f"| {sum(one.twice for one in some)} |"
        )
    restarts = [one for one in outcomes if one.parts is not None]
    if restarts:
        lines += [
            "",
            "Restarts, each with its parts in seconds:",
            "",
            "| fault | before Spark | Spark, until its queries ran | from there to all partitions "
            "| in all |",
            "|---|---|---|---|---|",
        ]
    for one in restarts:
        assert one.parts is not None
        before, spark = one.parts
        rest = one.took_s - before - spark
        lines.append(f"| {one.name} | {before:.1f} | {spark:.1f} | {rest:.1f} | {one.took_s:.1f} |")
    lines += ["", "All faults in their order, with seconds:", ""]
    lines.append(", ".join(f"{one.name} {one.took_s:.1f}" for one in outcomes) + ".")
    return "\n".join(lines) + "\n"
