"""What a run of `tests.faults.standbys` gave, as a page and as complaints."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["WARM", "Event", "Outcome", "complaints", "render"]

WARM = "ready"
"""Who took over had stood by, with Spark started."""

# From the notice that a flow was taken over to its first record.
_WARM_S_MAX = 10.0
_KILLED = "owner killed"


@dataclass(frozen=True)
class Outcome:
    """Seconds after an event. ``detected_s``: until a standby said that it had taken the flow over,
    None where the new owner found it free when it started, or where the old one kept it.
    ``written_s``: until a record arrived that was written after the event, also if a killed owner's
    workers brought it. ``first_s``, ``all_s``: until the new owner's first one, and its first one
    in all partitions.
    """

    detected_s: float | None
    written_s: float
    first_s: float
    all_s: float

    @property
    def after_detection_s(self) -> float | None:
        """From the detection to the new owner's first record."""
        return None if self.detected_s is None else self.first_s - self.detected_s


@dataclass(frozen=True)
class Event:
    """What was done to whom, and what came of it.

    ``taker``: how far the one was that took over. ``outcome``: None where the owner stayed.
    ``silent_s``: the longest time without a record. ``allowed``: how many may come twice.
    """

    name: str
    taker: str
    outcome: Outcome | None
    silent_s: float
    allowed: int = 0
    twice: int = 0

    def __str__(self) -> str:
        if self.outcome is None:
            return f"{self.name}: {self.taker}, at most {self.silent_s:.1f} s without a record"
        one = self.outcome
        detected = "" if one.detected_s is None else f"detected after {one.detected_s:.1f} s, "
        return (
            f"{self.name}, by one that was {self.taker}: {detected}first record after "
            f"{one.first_s:.1f} s, in all partitions after {one.all_s:.1f} s"
        )


def complaints(events: Sequence[Event], *, lost: int) -> list[str]:
    """What should not have been."""
    found = [f"{lost} records lost or out of order"] if lost else []
    for number, one in enumerate(events, 1):
        if one.twice > one.allowed:
            found.append(f"event {number}, {one}: {one.twice} records twice, not {one.allowed}")
        late = None if one.outcome is None else one.outcome.after_detection_s
        if one.name == _KILLED and one.taker == WARM and late is not None and late > _WARM_S_MAX:
            found.append(f"event {number}, {one.name}: {late:.1f} s from detection to a record")
    return found


def render(mode: str, head: str, events: Sequence[Event], *, lost: int, twice: int) -> str:
    """The page."""
    taken: dict[tuple[str, str], list[Event]] = defaultdict(list)
    others: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for one in events:
        (others if one.outcome is None else taken)[one.name, one.taker].append(one)
    takeovers = sum(len(some) for some in taken.values())
    lines = [
        f"## {len(events)} random events, {takeovers} takeovers, {mode}",
        "",
        f"{head}: **{lost} lost, {twice} duplicated**.",
        "",
        "Takeovers, median / worst in seconds; all but the third column count from the event:",
        "",
        "| event | the new owner was | times | detected after | new owner's first record "
        "| that after the detection | in all partitions | first record written since the event "
        "| longest time without a record | came twice |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (name, taker), some in sorted(taken.items()):
        found = [one.outcome for one in some if one.outcome is not None]
        cells = [
            name,
            taker,
            str(len(some)),
            _spread(one.detected_s for one in found),
            _spread(one.first_s for one in found),
            _spread(one.after_detection_s for one in found),
            _spread(one.all_s for one in found),
            _spread(one.written_s for one in found),
            _spread(one.silent_s for one in some),
            str(sum(one.twice for one in some)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if others:
        lines += [
            "",
            "Events after which the owner stayed:",
            "",
            "| event | what became of it | times | longest time without a record | came twice |",
            "|---|---|---|---|---|",
        ]
    for (name, taker), some in sorted(others.items()):
        silence = _spread(one.silent_s for one in some)
        twice_here = sum(one.twice for one in some)
        lines.append(f"| {name} | {taker} | {len(some)} | {silence} | {twice_here} |")
    lines += ["", "All events in their order, with seconds to the new owner's first record:", ""]
    lines.append(", ".join(map(_told, events)) + ".")
    return "\n".join(lines) + "\n"


def _spread(values: Iterable[float | None]) -> str:
    known = [one for one in values if one is not None]
    return f"{statistics.median(known):.1f} / {max(known):.1f}" if known else ""


def _told(one: Event) -> str:
    return one.name if one.outcome is None else f"{one.name} {one.outcome.first_s:.1f}"
