"""The report: Markdown tables, the raw numbers as JSON, a chart.

All figures of a mirror are medians of its rounds, and every round is shown. `quote` says the same
to the README.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import (
    DISTURBED_MAX,
    TRIES,
    Round,
    advantage,
    largest,
    middle,
    missing,
    value,
    void,
    voided,
    wrong,
)
from benchmarks.steps import STEPS, WINDOW_S

__all__ = [
    "LABELS",
    "LATENCY_LABELS",
    "about_machine",
    "against",
    "as_json",
    "brief",
    "draw",
    "number_or_never",
    "page",
    "promises",
    "table",
    "why_void",
    "write",
]

LABELS = {
    "sparkmirror": "sparkmirror",
    "mm2": "MirrorMaker 2",
    "mm1": "MirrorMaker 1",
    "sparkmirror-keys": "sparkmirror, by key",
    "sparkmirror-no-ring": "sparkmirror without its ring",
    "sparkmirror-exact": "sparkmirror, exactly-once",
    "mm2-exact": "MirrorMaker 2, exactly-once",
    "sparkmirror-another": "sparkmirror of another tree",
}
LATENCY_LABELS = {
    **LABELS,
    "mm2": "MirrorMaker 2, its producer's linger.ms=0",
    "mm2-default": "MirrorMaker 2, its producer's default linger",
    "mm1": "MirrorMaker 1, its producer's linger.ms=0",
}
THEIRS = {
    "sparkmirror": ("mm2", "mm1", "mm2-default", "sparkmirror-another", "sparkmirror-no-ring"),
    "sparkmirror-keys": ("mm1",),
    "sparkmirror-exact": ("mm2-exact", "sparkmirror"),
}
"""Whom each of ours is compared with, wherever both were measured."""
COPY_FIGURES = {
    "records/s": "rate",
    "CPU-s per GB": "cpu_s_per_gb",
    "whole job": "total_s",
    "first record": "start_s",
    "peak memory": "peak_mb",
}
PROBE_FIGURES = {"p50": "target.p50", "p99": "target.p99", "idle": "idle_percent"}

AT_LEAST = (
    ("100b", "sparkmirror", "mm2", "rate", 5.0),
    ("100b", "sparkmirror", "mm1", "rate", 3.0),
    ("1k-lz4", "sparkmirror", "mm2", "rate", 2.0),
    ("1k-lz4", "sparkmirror", "mm1", "rate", 2.0),
    ("100b-16k", "sparkmirror", "mm2", "rate", 2.5),
    ("100b-single", "sparkmirror", "mm2", "rate", 1.2),
    ("100b-tls", "sparkmirror", "mm2", "rate", 2.0),
    ("1k-lz4-tls", "sparkmirror", "mm2", "rate", 2.0),
    ("100b-by-key", "sparkmirror-keys", "mm1", "rate", 1.0),
    ("100b-keys", "sparkmirror-keys", "mm1", "rate", 1.0),
    ("100b", "sparkmirror", "mm2", "cpu_s_per_gb", 5.0),
    ("100b", "sparkmirror", "mm1", "cpu_s_per_gb", 3.0),
    ("100b", "sparkmirror-exact", "mm2-exact", "rate", 1.0),
    ("latency-100", "sparkmirror", "mm2-default", "target.p50", 1.0),
    ("latency-100", "sparkmirror", "mm2-default", "target.p99", 1.0),
    ("latency-100", "sparkmirror", "mm2", "target.p50", 1.0),
    ("latency-100", "sparkmirror", "mm2", "target.p99", 1.0),
)
"""(step, ours, theirs, figure, how many times as good ours is to be)."""
AT_MOST = (
    ("latency-10k", "sparkmirror", "target.p50", 10.0, "ms"),
    ("latency-10k", "sparkmirror", "target.p99", 50.0, "ms"),
    ("latency-100", "sparkmirror", "target.p50", 4.0, "ms"),
    ("latency-100", "sparkmirror", "target.p99", 15.0, "ms"),
    # The interval between commits, and what else a record may take.
    ("latency-100", "sparkmirror-exact", "target.p99", 100.0 + 30.0, "ms"),
    ("latency-100", "sparkmirror", "idle_percent", 20.0, "% of a core, idle"),
)
"""(step, mirror, figure, most, unit)."""
EXACT_COST_MAX = 0.15
"""What exactly-once may take of the throughput without it."""
_NAMES = {
    **{figure: name for name, figure in {**COPY_FIGURES, **PROBE_FIGURES}.items()},
    "rate": "records/s in steady state",
    "cpu_s_per_gb": "CPU-seconds per GB",
    "target.p50": "latency, p50",
    "target.p99": "latency, p99",
}


def label(step: dict[str, Any], peer: str) -> str:
    """The name of a mirror in a table of ``step``."""
    return (LABELS if step["kind"] == "catch-up" else LATENCY_LABELS)[peer]


def promises(results: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """(figure, wanted, measured, whether it is met) for each promise of which this run has both
    sides; all medians.
    """
    rows = []

    def add(sides: Sequence[list[Round]], title: str, wanted: str, found: str, met: bool) -> None:
        if late := [one for one in sides if voided(one)]:
            rows.append((title, wanted, why_void(late[0]), "**void**"))
        else:
            rows.append((title, wanted, found, "met" if met else "**not met**"))

    for name, ours, theirs, figure, least in AT_LEAST:
        if pair := _pair(results, name, ours, theirs):
            times = advantage(*pair, figure)
            other = label(results["steps"][name], theirs)
            title = f"{name}: {_NAMES[figure]}, {LABELS[ours]} against {other}"
            add(pair, title, f"≥ {least:g}×", f"{times:.2f}×", times >= least)
    if pair := _pair(results, "100b", "sparkmirror-exact", "sparkmirror"):
        cost = 1 - advantage(*pair, "rate")
        title = "100b: what exactly-once takes of the records/s"
        add(pair, title, f"≤ {EXACT_COST_MAX:.0%}", f"{cost:.1%}", cost <= EXACT_COST_MAX)
    for name, peer, figure, most, unit in AT_MOST:
        rounds = results["steps"].get(name, {"rounds": {}})["rounds"].get(peer)
        if rounds:
            found = middle(rounds, figure)
            title = f"{name}: {_NAMES[figure]}, {LABELS[peer]}"
            add([rounds], title, f"≤ {most:g} {unit}", f"{found:.2f} {unit}", found <= most)
    return rows


def against(step: dict[str, Any]) -> list[tuple[str, str, list[float]]]:
    """(ours, theirs, how many times as good in each figure of the kind), of medians."""
    figures = COPY_FIGURES if step["kind"] == "catch-up" else PROBE_FIGURES
    rounds = step["rounds"]
    return [
        (ours, theirs, [advantage(rounds[ours], rounds[theirs], one) for one in figures.values()])
        for ours, others in THEIRS.items()
        for theirs in others
        if ours in rounds and theirs in rounds
    ]


def why_void(rounds: Sequence[Round]) -> str:
    """What stands where the median of ``rounds`` is no figure."""
    late = f"{middle(rounds, 'source.p50'):,.0f} ms"
    return f"void: the producers could not keep up beside it (source's p50 {late})"


def _pair(
    results: dict[str, Any], name: str, ours: str, theirs: str
) -> tuple[list[Round], list[Round]] | None:
    rounds = results["steps"].get(name, {"rounds": {}})["rounds"]
    return (rounds[ours], rounds[theirs]) if ours in rounds and theirs in rounds else None


def brief(one: Round) -> str:
    """A round in one line."""
    if "complete" in one:
        text = (
            f"{one['rate']:,.0f} records/s for {one['window_s']:.1f} s, "
            f"{one['cpu_s_per_gb']:.1f} CPU-s/GB, whole job {_seconds(one)}, {_arrived(one)}"
        )
    else:
        found = one["target"]
        text = f"p50 {found['p50']} ms, p99 {found['p99']} ms" if found else "nothing arrived"
        if void(one):
            text += f", void: source's own p50 {one['source']['p50']:,.0f} ms"
        if one.get("wrong"):
            text += f", wrong: {one['wrong']}"
    return f"{text}, stolen {one['stolen']:.1%}, elsewhere {one['elsewhere']:.1%}"


# -- the page --------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    """The whole report."""
    lines = [f"# Benchmarks, {results['name']}", "", *_conditions(results)]
    lines += ["", "## Figures", ""]
    lines += table(
        ("figure", "wanted", f"median of {results['rounds']} rounds", ""),
        promises(results),
    )
    for kind, figures, title in (
        ("catch-up", COPY_FIGURES, "copies"),
        ("latency", PROBE_FIGURES, "latency"),
    ):
        rows = [
            (name, label(step, ours), label(step, theirs), *map(_times, ratios))
            for name, step in results["steps"].items()
            if step["kind"] == kind
            for ours, theirs, ratios in against(step)
        ]
        if rows:
            lines += ["", f"## Ratios of medians: {title}", "", RATIOS_SAY, ""]
            lines += table(("step", "", "against", *figures), rows)
    for name, step in results["steps"].items():
        lines += ["", *(_copies if step["kind"] == "catch-up" else _probes)(name, step)]
    return "\n".join([*lines, "", *_settings(results)]) + "\n"


RATIOS_SAY = (
    "How many times as good: ours by theirs for records/s, theirs by ours for all else, of which "
    "less is better. Below 1 ours is **worse**."
)


def _conditions(results: dict[str, Any]) -> list[str]:
    lacks = missing(results)
    state = "A complete result." if not lacks else "**Not complete.** It lacks " + "; ".join(lacks)
    lines = [state, "", *table(("", ""), about_machine(results)), ""]
    if results["smoke"]:
        lines += ["**A smoke run: it shows that all works. Its figures mean nothing.**", ""]
    return [
        *lines,
        f"Brokers, probes and mirror share the cores. Every mirror has {results['rounds']} rounds "
        "in every step, in turns; figures are medians of them. How it is measured and why so: "
        "`benchmarks/README.md`; how each tool is set: at the end of this page.",
    ]


def about_machine(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows that say what it was measured with."""
    one, code = results["machine"], results["code"]
    changed = ", **with changes that no commit has**" if code["changed"] else ""
    return [
        ("commit", f"`{code['commit'] or 'unknown'}`{changed}"),
        ("machine", f"{one['cores']} cores ({one['processor']}), {one['memory_gib']} GiB"),
        ("kernel", one["kernel"]),
        ("Python, Spark, Java", f"{one['python']}, {one['spark']}, {one['java']}"),
        *_class_archive(one),
        ("Kafka brokers", f"{one['brokers']}, two clusters of one"),
        ("MirrorMaker 2, 1", f"{one['mirrormaker_2']}, {one['mirrormaker_1']}"),
        ("tasks of each mirror", str(results["tasks"])),
        ("begun", results["began"]),
    ]


def _class_archive(machine: dict[str, Any]) -> list[tuple[str, str]]:
    """A row for what decides about sparkmirror's starts; none for results that do not say it."""
    if "class_archive" not in machine:
        return []
    there = "made before the first round" if machine["class_archive"] else "**none**"
    return [("Spark's class archive", there)]


def _about(step: dict[str, Any]) -> list[str]:
    left = ", ".join(
        f"{label(step, one['peer'])} in round {one['round']} "
        f"({one['stolen']:.1%} and {one['elsewhere']:.1%}: "
        + (f"{one['rate']:,.0f} records/s)" if "rate" in one else f"p50 {_p(one, 'p50')} ms)")
        for one in step["repeated"]
    )
    return [
        f"Commit `{step['commit']}`, begun {step['began']}, took {step['took_s'] / 60:.1f} min; "
        f"load before the run {step['load_before']}; in a round that counts the host took at most "
        f"{largest(step, 'stolen'):.1%} of the processors, other programs at most "
        f"{largest(step, 'elsewhere'):.1%}. Made again because of more than {DISTURBED_MAX:.0%} "
        f"(at most {TRIES} tries, the least disturbed one counts): {left or 'none'}."
    ]


def _copies(name: str, step: dict[str, Any]) -> list[str]:
    shortest = min(one["window_s"] for rounds in step["rounds"].values() for one in rounds)
    trial = step["trial"]
    again = ", ".join(
        f"{one['records']:,} records gave {one['window_s']:.1f} s" for one in step["too_short"]
    )
    lines = [
        f"## {name}: {step['title']}",
        "",
        f"{step['records']:,} records, {step['gigabytes']:.2f} GB in the source's log; sized by a "
        f"copy that does not count ({LABELS[trial['peer']]}, {trial['rate']:,.0f} records/s)"
        + (f", then for all anew because {again} of steady state" if again else "")
        + f". Shortest steady state: {shortest:.1f} s of at least {WINDOW_S:g}.",
        "",
        *_about(step),
        "",
    ]
    medians = [
        (
            LABELS[peer],
            f"{middle(rounds, 'rate'):,.0f}",
            f"{middle(rounds, 'mb_per_s'):,.0f}",
            number_or_never(middle(rounds, "cpu_s_per_gb"), 1),
            _s(middle(rounds, "total_s")),
            _s(middle(rounds, "start_s")),
            number_or_never(middle(rounds, "cpu_s_start"), 0),
            f"{middle(rounds, 'peak_mb'):,.0f} MB",
            "all" if not any(map(wrong, rounds)) else "**see below**",
        )
        for peer, rounds in _ordered(step)
    ]
    heads = ("median", "records/s", "MB/s", "CPU-s per GB", "whole job", "first record after")
    lines += table((*heads, "CPU-s until then", "peak memory", "arrived"), medians)
    each = [
        (
            LABELS[peer],
            str(number),
            f"{one['rate']:,.0f}",
            f"{one['window_s']:.1f} s",
            number_or_never(value(one, "cpu_s_per_gb"), 1),
            _seconds(one),
            _s(value(one, "start_s")),
            f"{one['peak_mb']:,.0f} MB",
            f"{one['stolen']:.1%}",
            f"{one['elsewhere']:.1%}",
            _arrived(one),
        )
        for peer, rounds in _ordered(step)
        for number, one in enumerate(rounds, 1)
    ]
    heads = ("each round", "", "records/s", "steady state", "CPU-s per GB", "whole job")
    more = ("first record after", "peak memory", "stolen", "elsewhere", "arrived")
    return [*lines, "", *table((*heads, *more), each)]


def _probes(name: str, step: dict[str, Any]) -> list[str]:
    epochs = f", epochs of {STEPS[name].epoch_s} s" if STEPS[name].epoch_s else ""
    lines = [
        f"## {name}: {step['rate']:,} records/s for {step['seconds']:.0f} s{epochs}",
        "",
        *_about(step),
        "",
    ]
    columns = ("p50", "p90", "p99", "p99.9", "max")
    places = {"target": "", "steady": ", without epoch changes", "source": ", at the source itself"}
    medians = [
        (LATENCY_LABELS[peer] + text, why_void(rounds), *[""] * len(columns))
        if voided(rounds) and place != "source"
        else (
            LATENCY_LABELS[peer] + text,
            *(_ms(middle(rounds, f"{place}.{one}")) for one in columns),
            f"{middle(rounds, 'idle_percent'):.1f}" if place == "target" else "",
        )
        for peer, rounds in _ordered(step)
        for place, text in places.items()
        if all(place in one for one in rounds)
    ]
    lines += table(("median, ms", *columns, "idle, % of a core"), medians)
    each = [
        (
            LATENCY_LABELS[peer],
            str(number),
            *(_p(one, column) for column in columns),
            f"{one['target'].get('count', 0):,}",
            _p(one, "p50", "source"),
            f"{one['idle_percent']:.1f}",
            f"{one['stolen']:.1%}",
            f"{one['elsewhere']:.1%}",
            _found(one),
        )
        for peer, rounds in _ordered(step)
        for number, one in enumerate(rounds, 1)
    ]
    more = ("records", "source's p50", "idle, % of a core", "stolen", "elsewhere", "arrived")
    return [*lines, "", *table(("each round, ms", "", *columns, *more), each)]


def _settings(results: dict[str, Any]) -> list[str]:
    """Commands and files of all mirrors, each text once with the steps that it was used in."""
    used: dict[str, list[str]] = {}
    for name, step in results["steps"].items():
        for peer in step["settings"]:
            used.setdefault(step["settings"][peer], []).append(f"{name}, {label(step, peer)}")
    lines = ["## Settings", "", "Without addresses, directories and passwords."]
    for text, places in used.items():
        lines += ["", f"<details><summary>{'; '.join(places)}</summary>", "", "```properties"]
        lines += [text, "```", "</details>"]
    return lines


def _ordered(step: dict[str, Any]) -> list[tuple[str, list[Round]]]:
    return [(key, step["rounds"][key]) for key in LATENCY_LABELS if step["rounds"].get(key)]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, line by line."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _times(ratio: float) -> str:
    if math.isnan(ratio):
        return "–"
    text = f"{ratio:.2f}×"
    return f"**{text} worse**" if ratio < 1 else text


def _s(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds:.1f} s"


def _seconds(one: Round) -> str:
    return _s(one["total_s"] if one["complete"] else math.inf)


def number_or_never(found: float, digits: int) -> str:
    """A figure that what never began does not have."""
    return "never" if math.isinf(found) else f"{found:.{digits}f}"


def _ms(latency: float) -> str:
    return "never" if math.isinf(latency) else f"{latency:.2f}"


def _p(one: Round, column: str, place: str = "target") -> str:
    return _ms(one[place][column]) if one[place] else "never"


def _arrived(one: Round) -> str:
    if not one["complete"]:
        return "**not all in time**"
    return "all" if not one["surplus"] else f"**all and {one['surplus']:,} again**"


def _found(one: Round) -> str:
    if void(one):
        return "**void**"
    return f"**{one['wrong']}**" if one.get("wrong") else "all"


# -- files -----------------------------------------------------------------------------------------


def write(results: dict[str, Any], out: Path) -> list[Path]:
    """Write ``NAME.md`` and ``NAME.json``; their paths."""
    out.mkdir(parents=True, exist_ok=True)
    # A name may have dots of its own.
    text, data = (out / f"{results['name']}{end}" for end in (".md", ".json"))
    data.write_text(as_json(results), encoding="utf-8")
    text.write_text(f"{page(results)}\n![chart]({results['name']}.png)\n", encoding="utf-8")
    return [text, data]


def as_json(results: dict[str, Any]) -> str:
    """The raw numbers, a sample of (seconds, records) in one line."""
    whole = json.dumps(results, indent=1)
    return re.sub(r"\[\s+([\d.]+),\s+(\d+)\s+\]", r"[\1, \2]", whole) + "\n"


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw medians of all copies as a picture, if there are any."""
    steps = {name: one for name, one in results["steps"].items() if one["kind"] == "catch-up"}
    if not steps:
        return
    import matplotlib  # noqa: PLC0415  (only for the picture)

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    charts: tuple[tuple[str, Callable[[Sequence[Round]], float]], ...] = (
        ("steady state, million records/s", lambda rounds: middle(rounds, "rate") / 1e6),
        ("whole job, s", lambda rounds: middle(rounds, "total_s")),
        ("CPU-seconds per GB, steady state", lambda rounds: middle(rounds, "cpu_s_per_gb")),
    )
    figure, axes = pyplot.subplots(1, len(charts), figsize=(17, 4.5))
    width = 0.8 / len(LABELS)
    for place, (key, name) in enumerate(LABELS.items()):
        there = [
            (index, step["rounds"][key])
            for index, step in enumerate(steps.values())
            if key in step["rounds"]
        ]
        if not there:
            continue
        xs = [index + (place - (len(LABELS) - 1) / 2) * width for index, _ in there]
        for axis, (_, of) in zip(axes, charts, strict=True):
            heights = [of(rounds) for _, rounds in there]
            axis.bar(xs, [one if math.isfinite(one) else 0.0 for one in heights], width, label=name)
    for axis, (title, _) in zip(axes, charts, strict=True):
        axis.set_title(f"{title} (medians)")
        axis.set_xticks(range(len(steps)), list(steps))
        axis.margins(y=0.3)  # room for the legend
        axis.legend(fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
