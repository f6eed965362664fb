"""The report: a Markdown table, the raw numbers as JSON, a chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["figures", "write"]

LABELS = {
    "sparkmirror": "sparkmirror",
    "mm2": "MirrorMaker 2 (4.3.0)",
    "mm1": "MirrorMaker 1 (3.9.1)",
    "sparkmirror-keys": "sparkmirror, by key",
    "sparkmirror-exact": "sparkmirror, exactly-once",
    "mm2-exact": "MirrorMaker 2 (4.3.0), exactly-once",
}
LATENCY_LABELS = {
    **LABELS,
    "mm2": "MirrorMaker 2, its producer's linger.ms=0",
    "mm2-default": "MirrorMaker 2, its producer's default linger",
    "mm1": "MirrorMaker 1, its producer's linger.ms=0",
}

RATIOS = (
    ("100b", "mm2", 5.0),
    ("100b", "mm1", 3.0),
    ("1k-lz4", "mm2", 2.0),
    ("1k-lz4", "mm1", 2.0),
    ("100b-16k", "mm2", 2.5),
    ("100b-single", "mm2", 1.2),
    ("100b-tls", "mm2", 2.0),
    ("1k-lz4-tls", "mm2", 2.0),
)
"""(catch-up, peer, throughput of sparkmirror as a multiple of the peer's: at least)."""
KEY_RATIOS = (("100b", "mm1", 1.0), ("100b-keys", "mm1", 1.0))
"""The same, for sparkmirror with MirrorMaker 1's files, which deals records by key."""
EXACT_COST_MAX = 0.15
"""What exactly-once may take of the throughput without it."""
EXACT_P99_MS = 100 + 30
"""The interval between commits, and what else a record may take."""
PLACES = {
    "source": "read at the source",
    "target": "read at the target",
    "steady": "at the target, without epoch changes",
    "other": "at the target, other round",
}
CPU_RATIOS = (("100b", "mm2", 1 / 5), ("100b", "mm1", 1 / 3))


def figures(results: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """(figure, wanted, measured, met) for each promise that this run can judge."""
    rows: list[tuple[str, str, str, bool]] = []
    catch_up = results["catch_up"]
    for ratios, ours, how in (
        (RATIOS, "sparkmirror", ""),
        (KEY_RATIOS, "sparkmirror-keys", " by key"),
    ):
        for name, peer, least in ratios:
            pair = _pair(catch_up, name, peer, ours)
            if pair and pair[1]["rate"]:
                ratio = pair[0]["rate"] / pair[1]["rate"]
                title = f"{catch_up[name]['title']}: throughput{how} against {LABELS[peer]}"
                rows.append((title, f"≥ {least:g}×", f"{ratio:.2f}×", ratio >= least))
    for name, peer, most in CPU_RATIOS:
        pair = _pair(catch_up, name, peer)
        if pair and pair[1]["cpu_s_per_gb"]:
            ratio = pair[0]["cpu_s_per_gb"] / pair[1]["cpu_s_per_gb"]
            title = f"CPU-seconds per GB against {LABELS[peer]}"
            rows.append((title, f"≤ 1/{1 / most:.0f}", f"1/{1 / ratio:.1f}", ratio <= most))
    rows += _exact_figures(catch_up, results["latency"])
    rows += _latency_figures(results["latency"])
    idle = results["idle"].get("sparkmirror")
    if idle:
        rows.append(
            (
                "idle cost per slot",
                "< 5 % of a core",
                f"{idle['per_task']:.1f} %",
                idle["per_task"] < 5,
            )
        )
    return rows


def _exact_figures(
    catch_up: dict[str, Any], latency: dict[str, Any]
) -> list[tuple[str, str, str, bool]]:
    rows = []
    for row in catch_up.values():
        exact = row.get("sparkmirror-exact", {}).get("rate")
        for peer, title in (
            ("sparkmirror", "exactly-once: what it takes of the throughput"),
            ("mm2-exact", "exactly-once: throughput against MirrorMaker 2's"),
        ):
            rate = row.get(peer, {}).get("rate")
            if not (exact and rate):
                continue
            if peer == "sparkmirror":
                cost = 1 - exact / rate
                wanted, measured = f"≤ {EXACT_COST_MAX:.0%}", f"{cost:.1%}"
                rows.append((f"{row['title']}: {title}", wanted, measured, cost <= EXACT_COST_MAX))
            else:
                rows.append(
                    (f"{row['title']}: {title}", "> 1×", f"{exact / rate:.2f}×", exact > rate)
                )
    found = latency.get("latency-100", {}).get("sparkmirror-exact", {}).get("target")
    if found:
        title = "exactly-once: latency at 100 records/s, transactions of 100 ms"
        met = found["p99"] <= EXACT_P99_MS
        rows.append((title, f"p99 ≤ {EXACT_P99_MS} ms", f"p99 {found['p99']} ms", met))
    return rows


def _pair(
    catch_up: dict[str, Any], name: str, peer: str, ours: str = "sparkmirror"
) -> tuple[Any, Any] | None:
    rows = catch_up.get(name, {})
    return (rows[ours], rows[peer]) if ours in rows and peer in rows else None


def _latency_figures(latency: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    rows = []
    for name, limits in (("latency-10k", (10, 50)), ("latency-100", (4, 15))):
        ours = latency.get(name, {}).get("sparkmirror", {}).get("target")
        if not ours:
            continue
        measured = f"p50 {ours['p50']} ms, p99 {ours['p99']} ms"
        wanted = f"p50 ≤ {limits[0]} ms, p99 ≤ {limits[1]} ms"
        met = ours["p50"] <= limits[0] and ours["p99"] <= limits[1]
        rows.append((f"latency at {latency[name]['rate']:,} records/s", wanted, measured, met))
        for peer in ("mm2-default", "mm2"):
            theirs = latency[name].get(peer, {}).get("target")
            if theirs and name == "latency-100":
                met = ours["p50"] < theirs["p50"] and ours["p99"] < theirs["p99"]
                text = f"{measured} against p50 {theirs['p50']} ms, p99 {theirs['p99']} ms"
                title = f"latency at 100 records/s, against {LATENCY_LABELS[peer]}"
                rows.append((title, "below", text, met))
    return rows


def markdown(results: dict[str, Any]) -> str:
    """The whole report."""
    lines = [
        f"# Benchmarks, {results['date']}",
        "",
        f"{results['cores']} cores shared by brokers and mirror, {results['tasks']} tasks, "
        "one run. How it is measured and how the Java tools are tuned: `benchmarks/README.md`.",
        "",
        "While what counts here was measured, the machine's host took at most "
        f"{_stolen(results):.1%} of the processors for others.",
    ]
    if results["scale"] < 0.5:
        lines += ["", f"**Smoke run at scale {results['scale']}: not for comparison.**"]
    lines += ["", "## Figures", "", "| figure | wanted | measured | |", "|---|---|---|---|"]
    lines += [
        f"| {title} | {wanted} | {measured} | {'met' if met else '**not met**'} |"
        for title, wanted, measured, met in figures(results)
    ]
    for row in results["catch_up"].values():
        lines += ["", f"## Catch-up: {row['title']}", ""]
        lines += [f"{row['records']:,} records, {row['gigabytes']:.2f} GB in the source's log.", ""]
        lines += [
            "| | records/s | other rounds | MB/s | CPU-s per GB | first record after |"
            " CPU-s until then | whole | peak memory | arrived |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for key, label in LABELS.items():
            if key in row:
                lines.append(_catch_up_row(label, row[key]))
    for name, row in results["latency"].items():
        lines += ["", f"## Latency: {name}, {row['rate']:,} records/s, {row['seconds']:.0f} s", ""]
        lines += ["| | p50 | p90 | p99 | p99.9 | max | records |", "|---|---|---|---|---|---|---|"]
        for key, label in LATENCY_LABELS.items():
            measured = row.get(key, {})
            places = [(place, found) for place, found in measured.items() if place in PLACES]
            places += [("other", one["target"]) for one in measured.get("other_rounds", ())]
            for place, found in places:
                if found:
                    lines.append(
                        f"| {label}, {PLACES[place]} | {found['p50']} | {found['p90']} | "
                        f"{found['p99']} | {found['p99.9']} | {found['max']} | {found['count']:,} |"
                    )
    if results["idle"]:
        lines += ["", "## Idle", "", "| | % of a core | per task |", "|---|---|---|"]
        lines += [
            f"| {LATENCY_LABELS[key]} | {row['percent_of_core']:.1f} | {row['per_task']:.1f} |"
            for key, row in results["idle"].items()
        ]
    return "\n".join(lines) + "\n"


def _stolen(results: dict[str, Any]) -> float:
    rows = [
        row
        for kind in ("catch_up", "latency")
        for step in results[kind].values()
        for row in step.values()
        if isinstance(row, dict)
    ]
    return max((row.get("stolen", 0.0) for row in rows), default=0.0)


def _catch_up_row(label: str, row: dict[str, Any]) -> str:
    arrived = (
        "all"
        if row["complete"] and not row["surplus"]
        else (f"all and {row['surplus']:,} again" if row["complete"] else "**not all in time**")
    )
    other = ", ".join(f"{one['rate']:,.0f}" for one in row.get("other_rounds", ()))
    return (
        f"| {label} | {row['rate']:,.0f} | {other} | {row['mb_per_s']:,.0f} | "
        f"{row['cpu_s_per_gb']:.1f} | {row['start_s']:.1f} s | {row['cpu_s_start']:.0f} | "
        f"{row['total_s']:.0f} s | {row['peak_mb']:,.0f} MB | {arrived} |"
    )


def write(results: dict[str, Any], out: Path) -> list[Path]:
    """Write ``DATE.md``, ``DATE.json`` and ``DATE.png``; their paths."""
    out.mkdir(parents=True, exist_ok=True)
    base = out / results.get("name", results["date"])
    text, data, picture = (base.with_suffix(suffix) for suffix in (".md", ".json", ".png"))
    data.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text.write_text(markdown(results) + f"\n![chart]({picture.name})\n", encoding="utf-8")
    _chart(results, picture)
    return [text, data, picture]


def _chart(results: dict[str, Any], path: Path) -> None:
    import matplotlib  # noqa: PLC0415  (only for the picture)

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    rows = results["catch_up"]
    figure, axes = pyplot.subplots(1, 2, figsize=(13, 4.5), width_ratios=[3, 2])
    width = 0.8 / len(LABELS)
    for place, (key, label) in enumerate(LABELS.items()):
        there = [(index, row[key]) for index, row in enumerate(rows.values()) if key in row]
        xs = [index + (place - (len(LABELS) - 1) / 2) * width for index, _ in there]
        axes[0].bar(xs, [row["rate"] / 1e6 for _, row in there], width, label=label)
        axes[1].bar(xs, [row["cpu_s_per_gb"] for _, row in there], width, label=label)
    for axis, title in zip(
        axes, ("catch-up, million records/s", "CPU-seconds per GB, steady state"), strict=True
    ):
        axis.set_title(title)
        axis.set_xticks(range(len(rows)), list(rows))
        axis.margins(y=0.3)  # room for the legend
        axis.legend()
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
