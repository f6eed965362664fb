"""Writes the figures of the newest complete result to the pages that quote it.

usage: python -m benchmarks.quote

What is between ``<!-- bench:NAME -->`` and ``<!-- /bench -->`` in `PAGES` is made here, of medians,
also where sparkmirror is worse; what is void is called so. A test compares the pages with what
would be written. The same goes for `TRANSFORMS_PAGE` and the newest complete result of
`benchmarks.transforms`.
"""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import advantage, middle, newest_complete, voided
from benchmarks.report import LABELS, LATENCY_LABELS, against, why_void
from benchmarks.steps import MAIN
from benchmarks.transforms import page as transforms

__all__ = ["BLOCK", "PAGES", "RESULTS", "TRANSFORMS_PAGE", "quoted"]

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PAGES = ("README.md", "docs/guarantees.md")
TRANSFORMS_PAGE = "docs/transforms.md"
WIDTH = 120
BLOCK = re.compile(r"(<!-- bench:([\w-]+) -->)(.*?)(<!-- /bench -->)", re.DOTALL)
LOADS = {
    "100b": "100 B, well-filled batches",
    "1k-lz4": "1 KiB JSON events, lz4",
    "100b-16k": "100 B, producer defaults (16 KiB batches)",
    "100b-single": "100 B, one record per batch",
}
TLS_LOADS = {"100b-tls": "100 B", "1k-lz4-tls": "1 KiB lz4 events"}


def _millions(rate: float) -> str:
    return f"{rate / 1e6:.2f} M"


def _in(unit: str) -> Callable[[float], str]:
    """How a time is written that may have never come to its end."""
    return lambda found: "never" if math.isinf(found) else f"{found:.1f} {unit}"


# (name, figure, text of a value) of what may be worse than a Java tool's.
FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("records/s", "rate", _millions),
    ("CPU-seconds per GB", "cpu_s_per_gb", lambda found: f"{found:.1f}"),
    ("the whole job", "total_s", _in("s")),
    ("the first record", "start_s", _in("s")),
    ("peak memory", "peak_mb", lambda found: f"{found:,.0f} MB"),
    ("latency p50", "target.p50", _in("ms")),
    ("latency p99", "target.p99", _in("ms")),
    ("processor time when idle", "idle_percent", lambda found: f"{found:.1f} % of a core"),
)
_JAVA = ("mm1", "mm2", "mm2-default", "mm2-exact")


def quoted(text: str, results: dict[str, Any]) -> str:
    """A page with the figures of ``results`` in its blocks.

    Raises KeyError for a block that nobody makes.
    """
    return BLOCK.sub(lambda found: found[1] + BLOCKS[found[2]](results) + found[4], text)


def _rounds(results: dict[str, Any], name: str, peer: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = results["steps"][name]["rounds"][peer]
    return found


def _speed(results: dict[str, Any]) -> str:
    machine = results["machine"]
    lines = [
        "",
        textwrap.fill(
            f"On {machine['cores']} cores with {machine['memory_gib']} GiB, which both brokers "
            "shared; "
            f"{results['tasks']} tasks, Java tools tuned; everywhere the median of "
            f"{results['rounds']} rounds, in turns, of "
            f"[one run](benchmarks/results/{results['name']}.md) "
            f"at commit `{results['code']['commit']}`. Steady state: records/s (CPU-seconds per "
            "GB). Whole job: from the command to the last record, "
            "the start of Spark or Java included.",
            WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
        ),
        "",
        "| | MirrorMaker 1 | MirrorMaker 2 | sparkmirror | times MirrorMaker 1, 2 |",
        "|---|---|---|---|---|",
    ]
    for name, title in LOADS.items():
        step = results["steps"][name]
        three = [step["rounds"][peer] for peer in ("mm1", "mm2", "sparkmirror")]
        for text, figure, cells in (
            (
                title,
                "rate",
                [
                    f"{_millions(middle(one, 'rate'))} ({middle(one, 'cpu_s_per_gb'):.1f})"
                    for one in three
                ],
            ),
            (
                f"– the whole job, {step['records'] / 1e6:.1f} M records",
                "total_s",
                [_in("s")(middle(one, "total_s")) for one in three],
            ),
        ):
            times = [f"{advantage(three[2], one, figure):.1f}" for one in three[:2]]
            # The best one has no less than 1 against anybody.
            for at, one in enumerate(three):
                if all(advantage(one, other, figure) >= 1 for other in three):
                    cells[at] = f"**{cells[at]}**"
            lines.append(f"| {text} | {' | '.join(cells)} | {', '.join(times)} |")
    lines += ["", _exactly_once(results), "", *_latencies(results), ""]
    secured = [
        f"{_millions(middle(ours, 'rate'))} records/s of {title} against MirrorMaker 2's "
        f"{_millions(middle(theirs, 'rate'))} ({middle(ours, 'cpu_s_per_gb'):.1f} and "
        f"{middle(theirs, 'cpu_s_per_gb'):.1f} CPU-s per GB)"
        for name, title in TLS_LOADS.items()
        if name in results["steps"]
        for ours, theirs in [[_rounds(results, name, peer) for peer in ("sparkmirror", "mm2")]]
    ]
    if secured:
        lines += [f"With TLS on both sides: {', '.join(secured)}.", ""]
    return "\n".join([*lines, _worse(results), ""])


def _exactly_once(results: dict[str, Any]) -> str:
    texts = []
    for plain, exact in (("sparkmirror", "sparkmirror-exact"), ("mm2", "mm2-exact")):
        with_it, without = (_rounds(results, "100b", peer) for peer in (exact, plain))
        cost = 1 - advantage(with_it, without, "rate")
        texts.append(
            f"{_millions(middle(with_it, 'rate'))} records/s, "
            + (f"{cost:.0%} less" if cost > 0 else "no less")
            + " than without it"
        )
    return f"Exactly-once, 100 B: {texts[0]}; MirrorMaker 2 {texts[1]}."


def _latencies(results: dict[str, Any]) -> list[str]:
    def cell(name: str, peer: str) -> str:
        if peer not in results["steps"][name]["rounds"]:
            return ""
        one = _rounds(results, name, peer)
        if voided(one):
            return why_void(one)
        return f"{middle(one, 'target.p50'):.1f} / {middle(one, 'target.p99'):.1f}"

    rows = (
        ("100 records/s", "latency-100", ("mm2-default", "mm2", "sparkmirror")),
        ("100 records/s, exactly-once", "latency-100", ("", "mm2-exact", "sparkmirror-exact")),
        ("10,000 unbatched records/s", "latency-10k", ("", "mm2", "sparkmirror")),
    )
    lines = [
        "| latency in ms, p50 / p99 | MirrorMaker 2, default linger | MirrorMaker 2, `linger.ms=0`"
        " | sparkmirror |",
        "|---|---|---|---|",
    ]
    for text, name, peers in rows:
        lines.append(f"| {text} | {' | '.join(cell(name, peer) for peer in peers)} |")
    return lines


def _worse(results: dict[str, Any]) -> str:
    """Where a Java tool was better: of each figure the step in which it was most so."""
    texts = []
    for title, figure, text in FIGURES:
        found = [
            (advantage(ours, theirs, figure), name, our, their)
            for name in MAIN
            for our, their, _ in against(results["steps"][name])
            if their in _JAVA
            for ours, theirs in [[_rounds(results, name, peer) for peer in (our, their)]]
            if _has(ours[0], figure)
        ]
        if found and (worst := min(found, key=_first))[0] < 1:
            _, name, our, their = worst
            labels = LABELS if results["steps"][name]["kind"] == "catch-up" else LATENCY_LABELS
            values = [text(middle(_rounds(results, name, peer), figure)) for peer in (our, their)]
            kind = ", exactly-once" if our == "sparkmirror-exact" else ""
            texts.append(
                f"{title} ({name}{kind}: {values[0]} against {labels[their]}: {values[1]})"
            )
    text = "In this run it was worse than a Java tool in nothing that was measured."
    if texts:
        text = (
            "Worse than a Java tool in this run, with the step where it was most so: "
            + "; ".join(texts)
            + "."
        )
    late = [name for name in MAIN if any(map(voided, results["steps"][name]["rounds"].values()))]
    if late:
        text += f" Of {', '.join(late)} nothing can be said: the producers could not keep up."
    return textwrap.fill(
        text,
        WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _first(found: tuple[float, str, str, str]) -> float:
    return math.inf if math.isnan(found[0]) else found[0]


def _has(one: dict[str, Any], figure: str) -> bool:
    return figure.partition(".")[0] in one


def _start(results: dict[str, Any]) -> str:
    """When the first record came, over all copies."""

    def span(*peers: str) -> str:
        found = [
            middle(step["rounds"][peer], "start_s")
            for step in map(results["steps"].get, MAIN)
            if step["kind"] == "catch-up"
            for peer in peers
        ]
        low, high = f"{min(found):.0f}", f"{max(found):.0f}"
        return f"{low} s" if low == high else f"{low} to {high} s"

    return f"{span('sparkmirror')} after the command; the Java tools need {span('mm1', 'mm2')}"


def _exact_latency(results: dict[str, Any]) -> str:
    one = _rounds(results, "latency-100", "sparkmirror-exact")
    if voided(one):
        return f"At 100 records/s there is no figure ({why_void(one)})"
    return (
        f"At 100 records/s half of them were there after {middle(one, 'target.p50'):.0f} ms, "
        f"99 % after {middle(one, 'target.p99'):.0f} ms"
    )


def _exact_rate(results: dict[str, Any]) -> str:
    exact, plain = (_rounds(results, "100b", f"sparkmirror{one}") for one in ("-exact", ""))
    return (
        f"{_millions(middle(exact, 'rate'))} records/s of 100 bytes against "
        f"{_millions(middle(plain, 'rate'))} without exactly-once, medians of "
        f"{results['rounds']} rounds each ([result](../benchmarks/results/{results['name']}.md))"
    )


BLOCKS = {
    "speed": _speed,
    "start": _start,
    "exact-latency": _exact_latency,
    "exact-rate": _exact_rate,
}


def main() -> int:
    """Bring the pages up to date; 1: there is no complete result of `make bench`."""
    if (results := transforms.newest(RESULTS)) is not None:
        path = ROOT / TRANSFORMS_PAGE
        text = transforms.quoted(path.read_text(encoding="utf-8"), results)
        path.write_text(text, encoding="utf-8")
        print(f"{TRANSFORMS_PAGE}: as in {results['name']}.json")
    newest = newest_complete(RESULTS)
    if newest is None:
        print(f"no complete result in {RESULTS}")
        return 1
    for page in PAGES:
        path = ROOT / page
        path.write_text(quoted(path.read_text(encoding="utf-8"), newest[1]), encoding="utf-8")
        print(f"{page}: as in {newest[0].name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
