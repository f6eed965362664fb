"""The arithmetic of the report: medians and their ratios, turns, sizes, what is complete.

A *round* is one copy or one probe of one mirror, as a dictionary. What counts is always the median
of a mirror's rounds; no function here takes the best one. A probe is *void* where the source itself
was late: what it shows is a backlog of the producers.
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
    "SETTLED_MS",
    "advantage",
    "growth",
    "lacking",
    "largest",
    "middle",
    "missing",
    "newest_complete",
    "records_for",
    "steady",
    "turns",
    "undisturbed",
    "value",
    "void",
    "voided",
    "wrong",
]

Round = dict[str, Any]
LOW, HIGH = 0.15, 0.9
"""Steady state is what happens between these shares of the records."""
MARGIN = 1.5
"""More data than the first copy asks for: brokers get faster as their JVMs compile."""
DISTURBED_MAX, TRIES = 0.05, 3
SETTLED_MS = 20.0
"""Below this median of its own latency a source keeps up with its producers."""
NEED_A_RECORD = frozenset({"start_s", "cpu_s_start"})
MORE_IS_BETTER = frozenset({"rate", "mb_per_s"})


def value(one: Round, figure: str) -> float:
    """``figure`` of a round: a key, or the keys of a place and of its quantile (`target.p99.9`).

    What was never reached is infinitely late: the end of a copy that is not complete, the first
    record or the latency where nothing arrived. So is what a void round shows, but for the source's
    own latency.
    """
    never = (
        (figure == "total_s" and not one["complete"])
        or (figure in NEED_A_RECORD and one["start_s"] < 0)
        or (figure == "cpu_s_per_gb" and not one["rate"])
        or (not figure.startswith("source.") and void(one))
    )
    if never:
        return math.inf
    found: Any = one
    for key in figure.split(".", 1):
        if not found:
            return math.inf
        found = found[key]
    return float(found)


def void(one: Round) -> bool:
    """Whether the producers could not keep up beside the mirror: half of all records or more were
    late at the source itself.
    """
    source = one.get("source")
    return bool(source) and bool(source["p50"] >= SETTLED_MS)


def voided(rounds: Sequence[Round]) -> bool:
    """Whether so many rounds are void that their median is no figure."""
    return 2 * sum(map(void, rounds)) > len(rounds)


def middle(rounds: Sequence[Round], figure: str) -> float:
    """The median of ``figure`` over all ``rounds`` of a mirror."""
    return statistics.median(value(one, figure) for one in rounds)


def advantage(ours: Sequence[Round], theirs: Sequence[Round], figure: str) -> float:
    """How many times as good our median is as theirs; below 1 it is worse.

    Records per second: ours by theirs. Of what should be small (seconds, milliseconds): theirs by
    ours. nan where both are 0 or never reached, and where one of them is void.
    """
    if voided(ours) or voided(theirs):
        return math.nan
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
    """Whether a copy did not arrive exactly once, or a round says itself what is wrong with it.

    Such a round is never left out.
    """
    if one.get("wrong"):
        return True
    return "complete" in one and (not one["complete"] or bool(one["surplus"]))


def largest(step: dict[str, Any], share: str) -> float:
    """The largest ``share`` of the processors, `stolen` or `elsewhere`, in a round that counts."""
    return max((one[share] for rounds in step["rounds"].values() for one in rounds), default=0.0)


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
    for name, step in results["steps"].items():
        if any(wrong(one) for rounds in step["rounds"].values() for one in rounds):
            found.append(f"{name}: outputs that are all right")
    return found


def lacking(results: dict[str, Any]) -> list[str]:
    """The steps to run, again or at all, for a complete result."""
    found = missing(results)
    return [
        name
        for name in STEPS
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
    """A round that counts, and those left out for it because of what others took meanwhile.

    While the host, or other programs here, take more than `DISTURBED_MAX` of the processors a round
    is made again, `TRIES` times in all; then the one counts that both took least from. Rates play
    no part in it, and what went wrong always counts.
    """
    tries: list[Round] = []
    while len(tries) < TRIES:
        one = measure()
        tries.append(one)
        if wrong(one) or max(one["stolen"], one["elsewhere"]) <= DISTURBED_MAX:
            return one, tries[:-1]
    counts = min(tries, key=lambda one: one["stolen"] + one["elsewhere"])
    return counts, [one for one in tries if one is not counts]
