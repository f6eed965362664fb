"""The page of a result, and what `docs/transforms.md` quotes of it. All figures are medians."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Round, largest, middle, value, void, wrong
from benchmarks.report import about_machine, as_json, number_or_never, table
from benchmarks.steps import WINDOW_S
from benchmarks.transforms.steps import FORMAT, STEPS, TOOLS

__all__ = ["FIGURES", "faults", "missing", "newest", "page", "quoted", "verdicts", "write"]

ROUNDS = 3
BEGIN, END = "<!-- bench-transforms:cost -->", "<!-- /bench-transforms -->"


@dataclass(frozen=True)
class Figure:
    """What is wanted. ``least``: how many times as good ours is to be; 0: it is only shown.

    ``most``: without ``theirs`` in ms, else how many times as late ours may be.
    """

    title: str
    step: str
    ours: str
    theirs: str = ""
    key: str = "rate"
    least: float = 0.0
    most: float = math.inf

    @property
    def wanted(self) -> str:
        """As in the table."""
        if self.least:
            return f"≥ {self.least:g}×"
        if math.isinf(self.most):
            return "shown"
        return f"≤ {self.most:g}×" if self.theirs else f"≤ {self.most:g} ms"


_NOISE, _BESIDE = 0.95, 0.9
FIGURES = (
    Figure(
        "a renamed topic (`topics.map`) against the same mirror without: 100 B",
        *("raw", "sparkmirror-renamed", "sparkmirror"),
        least=_NOISE,
    ),
    Figure(
        "`where` on a JSON field against a Python loop (`json.loads`): 1 KiB, lz4",
        *("json", "sparkmirror-where", "loop-where"),
        least=3.0,
    ),
    Figure(
        "`mask_json` against a Python loop (`json.loads`): 1 KiB, lz4",
        *("json", "sparkmirror-mask", "loop-mask"),
        least=3.0,
    ),
    Figure(
        "`Filter` by a header and `RegexRouter` against MirrorMaker 2: 100 B",
        *("smts", "sparkmirror-smts", "mm2-smts"),
        least=2.0,
    ),
    Figure(
        "a message handler that masks, in Python, against MirrorMaker 1 with one in Java: 1 KiB, "
        "lz4",
        *("handler", "sparkmirror-handler", "mm1-handler"),
    ),
    Figure(
        "an untouched topic beside a transformed one against a mirror without transforms: 100 B",
        *("raw", "sparkmirror-beside", "sparkmirror"),
        least=_BESIDE,
    ),
    *(
        Figure(
            f"the same: latency at 100 records/s, {quantile}",
            *("latency", "sparkmirror-beside", "sparkmirror", f"target.{quantile}"),
            most=1.1,
        )
        for quantile in ("p50", "p99")
    ),
    *(
        Figure(
            f"latency of transformed records (`where` and `mask_json`), 100 records/s, {quantile}",
            *("latency", "sparkmirror-beside", "", f"other.{quantile}"),
            most=most,
        )
        for quantile, most in (("p50", 8.0), ("p99", 30.0))
    ),
)


@dataclass(frozen=True)
class Verdict:
    """A figure of a run. ``ours``, ``theirs``: medians; ``times``: ours by theirs, nan for none.

    ``state``: met, **not met**, shown, or **void** where a tool's output was wrong or the probe's
    producers could not keep up.
    """

    figure: Figure
    ours: float
    theirs: float
    times: float
    state: str

    @property
    def measured(self) -> str:
        """The median, or both and their ratio."""
        if not self.figure.theirs:
            return self.shown(self.ours)
        pair = f"{self.shown(self.ours)} against {self.shown(self.theirs)}"
        return f"{self.times:.2f}× ({pair})"

    def shown(self, one: float) -> str:
        """A median with its unit."""
        if self.figure.key == "rate":
            return f"{one:,.0f} records/s"
        return "never" if math.isinf(one) else f"{one:.1f} ms"


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Of the figures for which this run has all tools."""
    found = []
    for figure in FIGURES:
        rounds = results["steps"].get(figure.step, {"rounds": {}})["rounds"]
        sides = [rounds.get(key) for key in (figure.ours, figure.theirs) if key]
        if not all(sides):
            continue
        ours = middle(sides[0], figure.key)
        theirs = middle(sides[1], figure.key) if figure.theirs else math.nan
        times = ours / theirs if theirs else math.nan
        if any(_void(one) for side in sides for one in side):
            state = "**void**"
        elif figure.wanted == "shown":
            state = "shown"
        elif figure.least:
            state = "met" if times >= figure.least else "**not met**"
        else:
            state = "met" if (times if figure.theirs else ours) <= figure.most else "**not met**"
        found.append(Verdict(figure, ours, theirs, times, state))
    return found


def _void(one: Round) -> bool:
    return wrong(one) or void(one)


def faults(results: dict[str, Any]) -> list[str]:
    """Steps that ended with an error, and rounds that are wrong or void."""
    found = [f"{name}: {text}" for name, text in results.get("failed", {}).items()]
    for name, step in results["steps"].items():
        for key, rounds in step["rounds"].items():
            for number, one in enumerate(rounds, 1):
                if _void(one):
                    late = "the producers could not keep up" if void(one) else "not all in time"
                    text = one["wrong"] or late
                    found.append(f"{name}, {TOOLS[key].name}, round {number}: {text}")
    return found


def missing(results: dict[str, Any]) -> list[str]:
    """What a complete result would have and this one does not; nothing: it is complete."""
    if results.get("format") != FORMAT:
        return ["the format"]
    if results["smoke"]:
        return ["its size: it is a smoke run"]
    found = []
    if results["code"]["changed"] or not results["code"]["commit"]:
        found.append("a commit that holds what was measured")
    for name, step in STEPS.items():
        there = results["steps"].get(name)
        if there is None:
            found.append(f"step {name}")
            continue
        for key in step.tools:
            rounds = there["rounds"].get(key, [])
            if len(rounds) != ROUNDS:
                found.append(f"{name}: {ROUNDS} rounds of {key}, not {len(rounds)}")
        if step.trials:
            shortest = _shortest(there)
            if shortest < WINDOW_S:
                found.append(f"{name}: {WINDOW_S:g} s of steady state, not {shortest:.1f}")
    if faults(results):
        found.append("outputs that are all right")
    return found


def newest(directory: Path) -> dict[str, Any] | None:
    """The newest complete result in ``directory``; None: there is none yet."""
    read = (json.loads(path.read_text("utf-8")) for path in directory.glob("transforms-*.json"))
    found = [one for one in read if not missing(one)]
    return max(found, key=lambda one: str(one["began"]), default=None)


# -- the page --------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    """The whole report."""
    lacks = missing(results)
    lines = [
        f"# What transforms cost, {results['name'].removeprefix('transforms-')}",
        "",
        "A complete result." if not lacks else "**Not complete.** It lacks " + "; ".join(lacks),
        "",
        *table(("", ""), about_machine(results)),
        "",
    ]
    if results["smoke"]:
        lines += ["**A smoke run: it shows that all works. Its figures mean nothing.**", ""]
    lines += [
        f"Brokers, probes and tools share the cores. Every tool has {results['rounds']} rounds in "
        "every step, in turns; figures are medians of them. After each copy the records are "
        "counted, and the first and the last ones of each partition are compared with what must "
        "come of the source's. How it is measured: `benchmarks/README.md`; how each tool is set: "
        "at the end of this page.",
        "",
        "## Figures",
        "",
    ]
    rows = [(one.figure.title, one.figure.wanted, one.measured, one.state)
            for one in verdicts(results)]  # fmt: skip
    lines += table(("figure", "wanted", f"median of {results['rounds']} rounds", ""), rows)
    if wrongs := faults(results):
        lines += ["", "## What went wrong", "", *(f"* {' '.join(one.split())}" for one in wrongs)]
    for name, step in results["steps"].items():
        lines += ["", *(_copies if step["kind"] == "catch-up" else _probes)(name, step)]
    return "\n".join([*lines, "", *_settings(results)]) + "\n"


def _about(step: dict[str, Any]) -> str:
    left = ", ".join(
        f"{TOOLS[one['peer']].name} in round {one['round']} "
        f"({one['stolen']:.1%} and {one['elsewhere']:.1%})"
        for one in step["repeated"]
    )
    return (
        f"Commit `{step['commit']}`, begun {step['began']}, took {step['took_s'] / 60:.1f} min; "
        f"load before the run {step['load_before']}; in a round that counts the host took at most "
        f"{largest(step, 'stolen'):.1%} of the processors, other programs at most "
        f"{largest(step, 'elsewhere'):.1%}. Made again because of that: {left or 'none'}."
    )


def _shortest(step: dict[str, Any]) -> float:
    return min((one["window_s"] for rounds in step["rounds"].values() for one in rounds), default=0)


def _copies(name: str, step: dict[str, Any]) -> list[str]:
    lines = [
        f"## {name}: {step['title']}",
        "",
        f"{step['records']:,} records, {step['gigabytes']:.2f} GB in the source's log. records/s "
        "are of the source's records, also of those that are left out. Shortest steady state: "
        f"{_shortest(step):.1f} s.",
        "",
        _about(step),
        "",
    ]
    for key, rates in step["choices"].items():
        tried = ", ".join(f"{count}: {rate:,.0f} records/s" for count, rate in rates.items())
        lines += [f"{TOOLS[key].name}, number of processes by a copy that does not count: {tried}."]
    lines += [""] if step["choices"] else []
    medians = [
        (
            TOOLS[key].name,
            f"{middle(rounds, 'rate'):,.0f}",
            f"{middle(rounds, 'mb_per_s'):,.0f}",
            number_or_never(middle(rounds, "cpu_s_per_gb"), 1),
            _s(middle(rounds, "total_s")),
            _s(middle(rounds, "start_s")),
            f"{middle(rounds, 'peak_mb'):,.0f} MB",
        )
        for key, rounds in step["rounds"].items()
    ]
    heads = ("records/s", "MB/s", "CPU-s per GB", "whole job", "first record after", "peak memory")
    lines += table(("median", *heads), medians)
    each = [
        (
            TOOLS[key].name,
            str(number),
            f"{one['rate']:,.0f}",
            f"{one['window_s']:.1f} s",
            number_or_never(value(one, "cpu_s_per_gb"), 1),
            _s(one["total_s"] if one["complete"] else math.inf),
            f"{one['stolen']:.1%}",
            f"{one['elsewhere']:.1%}",
            _output(one),
        )
        for key, rounds in step["rounds"].items()
        for number, one in enumerate(rounds, 1)
    ]
    heads = ("records/s", "steady state", "CPU-s per GB", "whole job", "stolen", "elsewhere")
    return [*lines, "", *table(("each round", "", *heads, "output"), each)]


def _probes(name: str, step: dict[str, Any]) -> list[str]:
    columns = ("p50", "p90", "p99", "p99.9", "max")
    places = {
        "target": "the untouched topic",
        "other": "the other topic",
        "source": "at the source",
    }
    lines = [
        f"## {name}: {step['rate']:,} records/s in each of two topics for {step['seconds']:.0f} s",
        "",
        _about(step),
        "",
    ]
    medians = [
        (TOOLS[key].name, text, *(_ms(middle(rounds, f"{place}.{one}")) for one in columns))
        for key, rounds in step["rounds"].items()
        for place, text in places.items()
    ]
    lines += table(("median, ms", "", *columns), medians)
    each = [
        (
            TOOLS[key].name,
            str(number),
            text,
            *(_ms(one[place].get(column, math.inf)) for column in columns),
            f"{one[place].get('count', 0):,}",
            f"{one['stolen']:.1%}",
            f"{one['elsewhere']:.1%}",
            _output(one),
        )
        for key, rounds in step["rounds"].items()
        for number, one in enumerate(rounds, 1)
        for place, text in places.items()
    ]
    heads = ("each round, ms", "", "", *columns, "records", "stolen", "elsewhere", "output")
    return [*lines, "", *table(heads, each)]


def _settings(results: dict[str, Any]) -> list[str]:
    """Commands and files of all tools, each text once with the steps that it was used in."""
    used: dict[str, list[str]] = {}
    for name, step in results["steps"].items():
        for key, text in step["settings"].items():
            used.setdefault(text, []).append(f"{name}: {TOOLS[key].name}")
    lines = ["## Settings", "", "Without addresses and directories."]
    for text, places in used.items():
        lines += ["", f"<details><summary>{'; '.join(places)}</summary>", "", "```properties"]
        lines += [text, "```", "</details>"]
    return lines


def _output(one: Round) -> str:
    return "**wrong**" if _void(one) else "right"


def _s(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds:.1f} s"


def _ms(latency: float) -> str:
    return "never" if math.isinf(latency) else f"{latency:.2f}"


def write(results: dict[str, Any], out: Path) -> list[Path]:
    """Write ``NAME.md`` and ``NAME.json``; their paths."""
    out.mkdir(parents=True, exist_ok=True)
    text, data = (out / f"{results['name']}{end}" for end in (".md", ".json"))
    data.write_text(as_json(results), encoding="utf-8")
    text.write_text(page(results), encoding="utf-8")
    return [text, data]


# -- what docs/transforms.md quotes ----------------------------------------------------------------


def quoted(text: str, results: dict[str, Any]) -> str:
    """``text`` with the figures of ``results`` between `BEGIN` and `END`."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{_cost(results)}\n{END}{after}"


def _cost(results: dict[str, Any]) -> str:
    machine = results["machine"]
    lines = [
        f"Measured on {machine['cores']} cores, which both brokers shared; {results['tasks']} "
        f"tasks; medians of {results['rounds']} rounds, in turns, of",
        f"[one run](../benchmarks/results/{results['name']}.md) at commit "
        f"`{results['code']['commit']}`:",
        "",
    ]
    rows: list[Sequence[str]] = []
    for one in verdicts(results):
        theirs = one.shown(one.theirs) if one.figure.theirs else ""
        times = f"{one.times:.2f}×" if one.figure.theirs else ""
        rows.append((one.figure.title, one.shown(one.ours), theirs, times))
    return "\n".join([*lines, *table(("", "sparkmirror", "the other", ""), rows)])
