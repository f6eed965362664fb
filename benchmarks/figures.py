"""The arithmetic of the report: medians and their ratios, turns, sizes, what is complete.

A *round* is one copy or one probe of one mirror, as a dictionary. What counts is always the median
of a mirror's rounds; no function here takes the best one.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.steps import FORMAT, MAIN, ROUNDS, STEPS, WINDOW_S

__all__ = [
    "HIGH",
    "LOW",
    "advantage",
    "growth",
    "lacking",
    "middle",
    "missing",
    "newest_complete",
    "records_for",
    "steady",
    "stolen_most",
    "turns",
    "undisturbed",
    "value",
    "wrong",
]

Round = dict[str, Any]
LOW, HIGH = 0.15, 0.9
"""Steady state is what happens between these shares of the records."""
MARGIN = 1.5
"""More data than the first copy asks for: brokers get faster as their JVMs compile."""
STOLEN_MAX, STOLEN_TRIES = 0.05, 3
MORE_IS_BETTER = frozenset({"rate", "mb_per_s"})


def value(one: Round, figure: str) -> float:
    """``figure`` of a round: a key, or the keys of a place and of its quantile (`target.p99.9`).

    What was never reached is infinitely late: the end of a copy that is not complete, the latency
    where nothing arrived.
    """
    if figure == "total_s" and not one["complete"]:
        return math.inf
    found: Any = one
    for key in figure.split(".", 1):
        if not found:
            return math.inf
        found = found[key]
    return float(found)


def middle(rounds: Sequence[Round], figure: str) -> float:
    """The median of ``figure`` over all ``rounds`` of a mirror."""
    return statistics.median(value(one, figure) for one in rounds)


def advantage(ours: Sequence[Round], theirs: Sequence[Round], figure: str) -> float:
    """How many times as good our median is as theirs; below 1 it is worse.

    Records per second: ours by theirs. Of what should be small (seconds, milliseconds): theirs by
    ours. nan where both are 0 or never reached.
    """
    mine, other = middle(ours, figure), middle(theirs, figure)
    above, below = (mine, other) if figure in MORE_IS_BETTER else (other, mine)
    if math.isinf(above) and math.isinf(below):
        return math.nan
    return above / below if below else (math.inf if above else math.nan)


def turns(peers: Sequence[str], rounds: int) -> list[list[str]]:
    """Who is measured after whom in each round: everybody once, nobody always first."""
    return [[*peers[shift:], *peers[:shift]] for shift in (n % len(peers) for n in range(rounds))]


def steady(
    marks: Sequence[tuple[float, int, float]], records: int
) -> tuple[tuple[float, int, float], tuple[float, int, float]] | None:
    """The first and the last of ``marks`` (seconds, records, CPU-seconds) of the steady state.

    A copy too short for two marks there counts from its first mark with records to its last one;
    None where even these are the same.
    """
    inside = [mark for mark in marks if LOW * records <= mark[1] <= HIGH * records]
    if len(inside) < 2 or inside[-1][1] == inside[0][1]:
        inside = [mark for mark in marks if mark[1]]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0] or inside[-1][1] <= inside[0][1]:
        return None
    return inside[0], inside[-1]


def records_for(rate: float, window_s: float) -> int:
    """How many records a topic needs so that a copy at ``rate`` has ``window_s`` of steady state.

    With `MARGIN` more than that.
    """
    return math.ceil(rate * window_s * MARGIN / (HIGH - LOW))


def growth(shortest_s: float, window_s: float) -> float:
    """By what a topic has to grow after a copy with ``shortest_s`` of steady state; 1: it may stay.

    A copy that was over between two looks has no steady state at all, which is as good as a tenth.
    """
    if shortest_s >= window_s:
        return 1.0
    return window_s * MARGIN / max(shortest_s, window_s / 10)


def wrong(one: Round) -> bool:
    """Whether a copy did not arrive exactly once; such a round is never left out."""
    return "complete" in one and (not one["complete"] or bool(one["surplus"]))


def stolen_most(step: dict[str, Any]) -> float:
    """The largest share of processor time that the host took in any round that counts."""
    return max((one["stolen"] for rounds in step["rounds"].values() for one in rounds), default=0.0)


def missing(results: dict[str, Any]) -> list[str]:
    """What a complete result would have and this one does not; nothing: it is complete."""
    if results.get("format") != FORMAT:
        return ["the format: only medians of equally many rounds count"]
    found = []
    if results["smoke"]:
        found.append("its size: it is a smoke run")
    if results["code"]["changed"] or not results["code"]["commit"]:
        found.append("a commit that holds what was measured")
    for name in MAIN:
        step = results["steps"].get(name)
        if step is None:
            found.append(f"step {name}")
            continue
        for peer in STEPS[name].peers:
            rounds = step["rounds"].get(peer, [])
            if len(rounds) != ROUNDS:
                found.append(f"{name}: {ROUNDS} rounds of {peer}, not {len(rounds)}")
        if STEPS[name].copies:
            shortest = min(
                (one["window_s"] for rounds in step["rounds"].values() for one in rounds),
                default=0.0,
            )
            if shortest < WINDOW_S:
                found.append(f"{name}: {WINDOW_S:g} s of steady state, not {shortest:.1f}")
    return found


def lacking(results: dict[str, Any]) -> list[str]:
    """The steps to run, again or at all, for a complete result."""
    found = missing(results)
    return [
        name
        for name in MAIN
        if f"step {name}" in found or any(one.startswith(f"{name}: ") for one in found)
    ]


def newest_complete(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest complete result in ``directory``, with its file; None: there is none yet."""
    found = []
    for path in directory.glob("*.json"):
        results = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(results, dict) and not missing(results):
            found.append((results["began"], path, results))
    if not found:
        return None
    _, path, results = max(found, key=lambda one: one[:2])
    return path, results


def undisturbed(measure: Callable[[], Round]) -> tuple[Round, list[Round]]:
    """A round that counts, and those left out for it because of what the host took meanwhile.

    While the host takes more than `STOLEN_MAX` of the processors a round is made again,
    `STOLEN_TRIES` times in all; then the one counts that it took least from. Rates play no part in
    it, and a copy that did not arrive exactly once always counts.
    """
    tries: list[Round] = []
    while len(tries) < STOLEN_TRIES:
        tries.append(measure())
        if wrong(tries[-1]) or tries[-1]["stolen"] <= STOLEN_MAX:
            return tries[-1], tries[:-1]
    counts = min(tries, key=lambda one: one["stolen"])
    return counts, [one for one in tries if one is not counts]
