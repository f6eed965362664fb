"""What the benchmarks make of their rounds: medians, turns, sizes, what counts, what is shown."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from benchmarks import measure as measure_module
from benchmarks import peers, report, run, wan
from benchmarks.figures import (
    HIGH,
    LOW,
    SETTLED_MS,
    advantage,
    growth,
    lacking,
    middle,
    missing,
    newest_complete,
    records_for,
    steady,
    turns,
    undisturbed,
    void,
    voided,
    wrong,
)
from benchmarks.load import LOADS, Load
from benchmarks.measure import latencies, missed, stalls
from benchmarks.peers import described
from benchmarks.quote import BLOCK, BLOCKS, PAGES, RESULTS, quoted
from benchmarks.run import Bench, Results
from benchmarks.steps import FORMAT, MAIN, ROUNDS, STEPS, WINDOW_S

from sparkmirror.testing.clusters import KafkaCluster

ROOT = Path(__file__).parents[3]
# The middle one is neither the first, the last, the best nor the mean of the three.
SPREAD = (0.75, 2.0, 1.0)
OURS = "sparkmirror"


def copy(rate: float, **more: Any) -> dict[str, Any]:
    """A round of a copy; its other figures follow from ``rate``."""
    return {
        "complete": True,
        "surplus": 0,
        "rate": rate,
        "mb_per_s": rate / 1e4,
        "cpu_s_per_gb": 4e6 / rate,
        "total_s": 10 + 2e7 / rate,
        "start_s": 3.0,
        "cpu_s_start": 9.0,
        "peak_mb": 900.0,
        "window_s": 6.0,
        "stolen": 0.0,
        "elsewhere": 0.01,
        "samples": [],
        **more,
    }


def nothing_arrived() -> dict[str, Any]:
    """A round of a copy of which no record came."""
    marks = {"start_s": -1.0, "total_s": -1.0, "complete": False}
    figures = ("rate", "mb_per_s", "cpu_s_per_gb", "cpu_s_start", "window_s")
    return {**copy(1e6), **marks, **dict.fromkeys(figures, 0.0)}


def probe(p50: float, **more: Any) -> dict[str, Any]:
    """A round of a probe."""
    columns = {"p50": p50, "p90": 2 * p50, "p99": 3 * p50, "p99.9": 4 * p50, "max": 5 * p50}
    place = {**columns, "count": 2_000}
    source = {**dict.fromkeys(columns, 1.0), "count": 2_000}
    shares = {"stolen": 0.0, "elsewhere": 0.01}
    return {"target": place, "source": source, "idle_percent": 2.0, **shares, **more}


def behind(p50: float, source_p50: float, **more: Any) -> dict[str, Any]:
    """A round of a probe beside whose mirror the producers could not keep up."""
    one = probe(p50, **more)
    return {**one, "source": {**one["source"], "p50": source_p50}}


def step_of(name: str) -> dict[str, Any]:
    """A step as it is measured: the Java tools have a third of our rate and latency."""
    about = {
        "began": "2026-12-01T10:00:00+00:00",
        "took_s": 500,
        "commit": "abc1234",
        "load_before": 0.2,
        "repeated": [],
        "settings": {peer: f"{peer} {name}" for peer in STEPS[name].peers},
    }
    if not STEPS[name].copies:
        rounds = {
            peer: [probe((6.0 if OURS in peer else 2.0) * one) for one in SPREAD]
            for peer in STEPS[name].peers
        }
        rest = {"kind": "latency", "rate": STEPS[name].rate, "seconds": 20.0}
        return {**about, **rest, "rounds": rounds}
    rounds = {
        peer: [copy((3e6 if OURS in peer else 1e6) * one) for one in SPREAD]
        for peer in STEPS[name].peers
    }
    return {
        **about,
        "kind": "catch-up",
        "title": name,
        "records": 20_000_000,
        "gigabytes": 2.2,
        "trial": {"peer": STEPS[name].peers[0], "records": 6_000_000, "rate": 2.5e6},
        "too_short": [],
        "rounds": rounds,
    }


def complete() -> dict[str, Any]:
    """A result with all steps that a complete one has."""
    return {
        "format": FORMAT,
        "name": "2026-12-01",
        "smoke": False,
        "rounds": ROUNDS,
        "tasks": 4,
        "code": {"commit": "abc1234", "changed": False},
        "machine": {
            "cores": 2,
            "processor": "some processor",
            "memory_gib": 24,
            "kernel": "Linux 6",
            "python": "3.13",
            "java": "21",
            "class_archive": True,
            "spark": "4.3.0",
            "brokers": "4.3.0",
            "mirrormaker_2": "4.3.0",
            "mirrormaker_1": "3.9.1",
        },
        "began": "2026-12-01T10:00:00+00:00",
        "steps": {name: step_of(name) for name in MAIN},
    }


# -- medians and ratios ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(1, 5, 2), (5, 2, 1), (2, 1, 5)])
def test_the_median_counts_whichever_round_it_was(order: tuple[int, ...]) -> None:
    rounds = [copy(one * 1e6) for one in order]
    assert middle(rounds, "rate") == 2e6
    assert middle(rounds, "total_s") == 20.0
    assert middle([probe(one) for one in order], "target.p99") == 6.0


def test_ratios_are_of_medians_and_below_one_where_ours_is_worse() -> None:
    # By the best ours is 5 times as good, by means 2.67 times.
    ours, theirs = [copy(1e6), copy(5e6), copy(2e6)], [copy(1e6)] * 3
    assert advantage(ours, theirs, "rate") == 2.0
    assert advantage(theirs, ours, "rate") == 0.5
    assert advantage(ours, theirs, "cpu_s_per_gb") == 2.0
    assert advantage(ours, theirs, "total_s") == 1.5
    assert advantage([probe(6.0)], [probe(2.0)], "target.p50") == pytest.approx(1 / 3)


def test_what_never_ends_is_infinitely_late() -> None:
    unfinished = copy(9e6, complete=False, total_s=-1.0)
    silent = probe(1.0, target={})
    assert middle([unfinished, copy(1e6), unfinished], "total_s") == math.inf
    assert advantage([unfinished], [copy(1e6)], "total_s") == 0.0
    assert advantage([silent], [probe(9.0)], "target.p50") == 0.0
    assert math.isnan(advantage([silent], [silent], "target.p50"))
    # Nothing arrived: neither at once nor with no processor time at all.
    nothing = nothing_arrived()
    for figure in ("start_s", "cpu_s_start", "cpu_s_per_gb"):
        assert middle([copy(1e6), nothing, nothing], figure) == math.inf
        assert advantage([nothing], [copy(1e6)], figure) == 0.0


def test_a_median_that_the_source_itself_is_late_in_is_no_figure() -> None:
    late, ours, theirs = behind(9680.0, 9326.0), probe(6.0), probe(2.0)
    assert void(late)
    assert not void(ours)
    assert not void(copy(1e6))
    assert not void(probe(1.0, source={}))  # nobody wrote: a fault, and not a load
    assert not void(behind(40.0, SETTLED_MS - 0.1))
    assert void(behind(40.0, SETTLED_MS))
    # One such round is later than all others; two leave nothing to say.
    assert not voided([late, ours, ours])
    assert middle([late, ours, probe(1.0)], "target.p50") == 6.0
    assert middle([late, ours, probe(1.0)], "idle_percent") == 2.0
    assert voided([late, late, ours])
    assert middle([late, late, ours], "source.p50") == 9326.0
    for figure in ("target.p50", "idle_percent"):
        assert math.isnan(advantage([late, ours, late], [theirs] * 3, figure))
        assert math.isnan(advantage([theirs] * 3, [late, late, ours], figure))
    assert advantage([late, ours, ours], [theirs] * 3, "target.p50") == pytest.approx(1 / 3)


def test_the_page_says_what_is_void_and_why() -> None:
    results = complete()
    rounds = results["steps"]["latency-10k"]["rounds"]
    rounds[OURS] = [behind(9680.0, 7000.0), behind(9000.0, 9326.0), behind(5.0, 12_000.0)]
    assert missing(results) == []
    text = report.page(results)
    why = "void: the producers could not keep up beside it (source's p50 9,326 ms)"
    assert f"| sparkmirror | {why} |  |  |  |  |  |" in text
    assert "| sparkmirror, at the source itself | 9326.00 | " in text
    assert f"| latency-10k: latency, p50, sparkmirror | ≤ 10 ms | {why} | **void** |" in text
    mm2 = "MirrorMaker 2, its producer's linger.ms=0"
    assert f"| latency-10k | sparkmirror | {mm2} | – | – | – |" in text
    step = text.partition("## latency-10k:")[2]
    assert step.count("| **void** |") == 3
    assert step.count(f"| {mm2} | 1 | ") == 1
    assert "source's own p50 7,000 ms" in report.brief(rounds[OURS][0])


def test_probes_that_are_missing_are_told() -> None:
    some, most = {"count": 1_979}, {"count": 1_980}
    assert missed({"count": 2_000}, most) == ""
    assert missed({"count": 2_000}, some) == "1,979 probes of 2,000 at the target"
    assert missed(some, {"count": 2_000}, "other") == "2,000 probes of 1,979 at the other"
    assert missed({}, {}) == "0 probes of 0 at the target"
    results = complete()
    lossy = probe(1.0, wrong="1,979 probes of 2,000 at the target")
    results["steps"]["latency-100"]["rounds"]["mm2"][1] = lossy
    assert "| **1,979 probes of 2,000 at the target** |" in report.page(results)
    assert "1,979 probes of 2,000" in report.brief(lossy)


def test_the_page_has_medians_ratios_and_every_round() -> None:
    text = report.page(complete())
    step = text.partition("## 100b:")[2].partition("\n## ")[0]
    assert "| sparkmirror | 3,000,000 | 300 | 1.3 | 16.7 s |" in step
    assert "| MirrorMaker 2 | 1,000,000 | 100 | 4.0 | 30.0 s |" in step
    for number, rate in enumerate(("2,250,000", "6,000,000", "3,000,000"), 1):
        assert f"| sparkmirror | {number} | {rate} | 6.0 s |" in step
    for peer in STEPS["100b"].peers:
        assert step.count(f"| {report.LABELS[peer]} | ") == 1 + ROUNDS
    ratios = text.partition("## Ratios of medians: copies")[2].partition("\n## ")[0]
    assert "| 100b | sparkmirror | MirrorMaker 2 | 3.00× | 3.00× | 1.80× | 1.00× |" in ratios
    delays = text.partition("## Ratios of medians: latency")[2].partition("\n## ")[0]
    assert "| latency-10k | sparkmirror | MirrorMaker 2, its producer's linger.ms=0 | " in delays
    assert "**0.33× worse** | **0.33× worse** | 1.00× |" in delays
    assert "100b: what exactly-once takes of the records/s | ≤ 15% | 0.0% | met" in text
    promise = "100b: records/s in steady state, sparkmirror against MirrorMaker 2"
    assert f"{promise} | ≥ 5× | 3.00× | **not met** |" in text


def test_the_page_says_what_it_was_measured_with() -> None:
    results = complete()
    left_out = {"peer": "mm1", "round": 2, **copy(7e5, stolen=0.2, elsewhere=0.07)}
    results["steps"]["100b"]["repeated"] = [left_out]
    results["steps"]["100b"]["rounds"]["mm2"][1]["stolen"] = 0.031
    results["steps"]["100b"]["too_short"] = [{"records": 5, "window_s": 1.25}]
    text = report.page(results)
    assert text.startswith("# Benchmarks, 2026-12-01\n\nA complete result.\n")
    for part in ("`abc1234`", "2 cores (some processor), 24 GiB", "Linux 6", "3.13, 4.3.0, 21"):
        assert part in text
    assert "| Spark's class archive | made before the first round |" in text
    results["machine"]["class_archive"] = False
    assert "| Spark's class archive | **none** |" in report.page(results)
    del results["machine"]["class_archive"]  # as in older results
    assert "class archive" not in report.page(results)
    assert "MirrorMaker 1 in round 2 (20.0% and 7.0%: 700,000 records/s)" in text
    assert "the host took at most 3.1% of the processors, other programs at most 1.0%" in text
    assert "load before the run 0.2" in text
    assert "5 records gave 1.2 s of steady state" in text
    for name in MAIN:
        for peer in STEPS[name].peers:
            assert f"\n{peer} {name}\n" in text  # its settings


def test_a_copy_that_went_wrong_is_never_hidden() -> None:
    results = complete()
    rounds = results["steps"]["100b"]["rounds"]
    rounds[OURS][1] = copy(9e6, complete=False, total_s=-1.0, surplus=-5)
    rounds["mm2"][2] = copy(9e6, surplus=3)
    text = report.page(results)
    assert text.count("**see below**") == 2
    assert "| never | 3.0 s | 900 MB | 0.0% | 1.0% | **not all in time** |" in text
    assert "**all and 3 again**" in text
    assert "Not complete" in text
    rounds[OURS] = [copy(1e6), nothing_arrived(), nothing_arrived()]
    step = report.page(results).partition("## 100b:")[2].partition("\n## ")[0]
    assert "| sparkmirror | 0 | 0 | never | never | never | never | 900 MB |" in step
    assert "| sparkmirror | 2 | 0 | 0.0 s | never | never | never | 900 MB |" in step


# -- turns, windows, sizes -------------------------------------------------------------------------


def test_every_mirror_has_as_many_rounds_in_turns() -> None:
    bench = Bench(KafkaCluster("A"), KafkaCluster("B"), Path(), smoke=False)
    for name, step in STEPS.items():
        asked: list[str] = []

        def measure(peer: str, asked: list[str] = asked) -> dict[str, Any]:
            asked.append(peer)
            return copy(float(len(asked)))

        rounds, repeated, short = bench.rounds(name, step.peers, measure)
        assert {peer: len(found) for peer, found in rounds.items()} == dict.fromkeys(
            step.peers, ROUNDS
        )
        assert (repeated, short) == ([], None)
        assert asked == [peer for turn in turns(step.peers, ROUNDS) for peer in turn]
    assert ROUNDS % 2 == 1


def test_nobody_is_always_first() -> None:
    assert turns("abc", 3) == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert turns("ab", 3) == [["a", "b"], ["b", "a"], ["a", "b"]]
    assert turns("a", 2) == [["a"], ["a"]]


def test_steady_state_is_the_same_share_of_every_copy() -> None:
    marks = [(float(at), at * 10, at / 2) for at in range(12)]
    assert steady(marks, 100) == (marks[2], marks[9])
    # Over between two looks: all that there was.
    assert steady([(0.0, 0, 0.0), (1.0, 5, 0.0), (2.0, 100, 1.0)], 100) == (
        (1.0, 5, 0.0),
        (2.0, 100, 1.0),
    )
    assert steady([(0.0, 0, 0.0), (1.0, 100, 0.0)], 100) is None
    assert steady([], 100) is None


def test_the_data_is_enough_for_the_window() -> None:
    assert records_for(2e6, WINDOW_S) * (HIGH - LOW) / 2e6 >= WINDOW_S
    assert growth(WINDOW_S, WINDOW_S) == 1.0
    assert growth(2.5, 5.0) * 2.5 >= 5.0
    assert growth(0.0, 5.0) > growth(1.0, 5.0) > 1.0
    assert WINDOW_S >= 5.0


def test_a_copy_that_is_over_too_soon_ends_the_rounds() -> None:
    bench = Bench(KafkaCluster("A"), KafkaCluster("B"), Path(), smoke=False)
    windows = iter([7.0, 7.0, 3.0])

    def measure(_: str) -> dict[str, Any]:
        return copy(1e6, window_s=next(windows))

    rounds, _, short = bench.rounds("100b", ("mm2", OURS), measure, bench._long_enough)
    assert short is not None
    assert short["window_s"] == 3.0
    assert [len(found) for found in rounds.values()] == [1, 2]


class Paper(Bench):
    """Copies on paper: at ``rate``, exactly-once at twice that, all at ``surprise`` times later."""

    rate, surprise = 1e6, 1.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rates = {f"{OURS}-exact": 2 * self.rate}  # the faster one of ours
        self.later: set[str] = set()

    def _gigabytes(self, load: Load) -> float:
        return 1.0

    def _room(self, gigabytes: float, there: float) -> None:
        assert gigabytes > there

    def _copy(self, load: Load, records: int, gigabytes: float, key: str) -> dict[str, Any]:
        rate = self.rates.setdefault(key, type(self).rate)
        if key not in self.later:
            self.later.add(key)
            self.rates[key] = rate * self.surprise
        return copy(rate, records=records, window_s=records * (HIGH - LOW) / rate)


@pytest.mark.parametrize(("surprise", "restarts"), [(1.0, 0), (0.5, 0), (1.45, 0), (1.6, 1)])
def test_a_topic_grows_until_the_fastest_has_its_window(
    surprise: float, restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("create", "warm", "delete"):
        monkeypatch.setattr(run, name, lambda *_: None)
    monkeypatch.setattr(run, "fill", lambda _cluster, _load, records, there=0: there + records)
    bench = Paper(KafkaCluster("A"), KafkaCluster("B"), Path(), smoke=False)
    bench.surprise = surprise
    step = bench.catch_up("100b", LOADS["100b"], STEPS["100b"].peers)
    assert step["trial"]["peer"] == f"{OURS}-exact"
    assert len(step["too_short"]) == restarts
    for rounds in step["rounds"].values():
        assert len(rounds) == ROUNDS
        # After a new beginning everybody has copied the same data.
        assert {one["records"] for one in rounds} == {step["records"]}
        assert min(one["window_s"] for one in rounds) >= WINDOW_S


# -- what the host took ----------------------------------------------------------------------------


def given(*rounds: dict[str, Any]) -> tuple[Callable[[], dict[str, Any]], list[dict[str, Any]]]:
    left = list(rounds)
    return lambda: left.pop(0), left


def test_a_disturbed_round_is_made_again_and_kept_for_the_page() -> None:
    disturbed, quiet = copy(9e6, stolen=0.06), copy(1e6, stolen=0.05)
    measure, left = given(disturbed, quiet, copy(2e6))
    assert undisturbed(measure) == (quiet, [disturbed])
    assert len(left) == 1


def test_of_disturbed_rounds_the_least_disturbed_counts_and_not_the_fastest() -> None:
    tries = [copy(9e6, stolen=0.3), copy(1e6, stolen=0.1), copy(5e6, stolen=0.2)]
    measure, _ = given(*tries)
    assert undisturbed(measure) == (tries[1], [tries[0], tries[2]])


def test_a_round_beside_other_programs_is_made_again() -> None:
    disturbed, quiet = copy(9e6, elsewhere=0.06), copy(1e6, elsewhere=0.05)
    measure, left = given(disturbed, quiet, copy(2e6))
    assert undisturbed(measure) == (quiet, [disturbed])
    assert len(left) == 1
    tries = [
        copy(9e6, stolen=0.06),
        copy(1e6, elsewhere=0.3),
        copy(5e6, stolen=0.04, elsewhere=0.07),
    ]
    measure, _ = given(*tries)
    assert undisturbed(measure) == (tries[0], tries[1:])


def test_a_copy_that_went_wrong_counts_however_disturbed() -> None:
    lossy = copy(1e6, stolen=0.9, complete=False)
    measure, left = given(lossy, copy(1e6))
    assert undisturbed(measure) == (lossy, [])
    assert len(left) == 1
    assert wrong(copy(1e6, surplus=1))
    assert not wrong(probe(1.0))
    assert not wrong(probe(1.0, wrong=""))
    assert wrong(probe(1.0, wrong="5 probes of 6 at the target"))


# -- files -----------------------------------------------------------------------------------------


def shorten(results: dict[str, Any]) -> None:
    results["steps"]["100b-single"]["rounds"]["sparkmirror"][2]["window_s"] = 0.85


def once(results: dict[str, Any]) -> None:
    del results["steps"]["100b"]["rounds"]["mm2-exact"][1:]


def lose(results: dict[str, Any]) -> None:
    results["steps"]["1k-lz4"]["rounds"]["mm1"][1]["complete"] = False


def miss(results: dict[str, Any]) -> None:
    results["steps"]["latency-100"]["rounds"]["mm2"][0]["wrong"] = "1 probe of 2,000"


@pytest.mark.parametrize(
    ("spoil", "lacks"),
    [
        (lose, "1k-lz4: outputs that are all right"),
        (miss, "latency-100: outputs that are all right"),
        (shorten, "100b-single: 5 s of steady state, not 0.8"),
        (once, "100b: 3 rounds of mm2-exact, not 1"),
        (lambda results: results["steps"].pop("1k-lz4"), "step 1k-lz4"),
        (lambda results: results["steps"]["latency-10k"]["rounds"].pop("mm2"), "rounds of mm2"),
        (lambda results: results.update(smoke=True), "smoke"),
        (lambda results: results.update(format=1), "the format"),
        (lambda results: results["code"].update(changed=True), "a commit"),
        (lambda results: results["code"].update(commit=""), "a commit"),
    ],
)
def test_what_a_complete_result_needs(spoil: Callable[[Any], Any], lacks: str) -> None:
    results = complete()
    assert missing(results) == []
    spoil(results)
    (found,) = missing(results)
    assert lacks in found
    assert lacking(results) == [name for name in MAIN if re.search(rf"(^|step ){name}(:|$)", found)]
    assert "Not complete" in report.page(results)


def test_the_newest_complete_result_is_found(tmp_path: Path) -> None:
    assert newest_complete(tmp_path) is None
    (tmp_path / "old.json").write_text('{"catch_up": {}}')
    (tmp_path / "list.json").write_text("[]")
    for name, day in (("a", 5), ("b", 2), ("c", 9)):
        one = {**complete(), "name": name, "began": f"2026-12-{day:02}T10:00:00+00:00"}
        if name == "c":
            once(one)
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
    found = newest_complete(tmp_path)
    assert found is not None
    assert found[0].name == "a.json"


def test_steps_run_alone_become_one_result(tmp_path: Path) -> None:
    Results(tmp_path, "day", smoke=False, load_before=0.2).add(
        "latency-100", step_of("latency-100")
    )
    later = Results(tmp_path, "day", smoke=False, load_before=0.2)
    later.add("100b", step_of("100b"))
    written = json.loads((tmp_path / "day.json").read_text())
    assert list(written["steps"]) == ["100b", "latency-100"]
    assert written["machine"]["cores"] > 0
    assert (tmp_path / "day.md").read_text().startswith(report.page(written))
    # Steps of another machine would be compared with those that are there.
    written["machine"]["cores"] += 1
    (tmp_path / "day.json").write_text(json.dumps(written))
    with pytest.raises(SystemExit, match=r"differs in machine: .*Choose another --name"):
        Results(tmp_path, "day", smoke=False, load_before=0.2)


def test_the_class_archive_is_made_before_the_first_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order: list[str] = []

    class Stored:
        def __init__(self, *_: object, **__: object) -> None:
            self.document = complete()
            order.append("machine")  # which says whether the archive is there

    monkeypatch.setattr(run, "prepared", lambda _: order.append("archive"))
    monkeypatch.setattr(run, "Results", Stored)
    monkeypatch.setattr(run, "run", lambda *_: order.append("rounds"))
    monkeypatch.setattr(run.report, "draw", lambda *_: None)
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["run", "--only", "100b", "--out", str(tmp_path)])
    assert run.main() == 0
    assert order == ["archive", "machine", "rounds"]


def test_another_tree_takes_turns_with_this_one_and_runs_its_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tree" / "src" / "sparkmirror"
    (package / "cli").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "cli" / "__init__.py").touch()
    (package / "cli" / "main.py").write_text("print('of the other tree')\n")
    tree = tmp_path / "tree"
    options = {"tasks": 2, "latency": False, "tree": tree}
    running = peers.start(peers.ANOTHER, "a:1", "b:1", "t", tmp_path / "work", **options)
    assert running.process.wait(60) == 0
    assert running.log.read_text() == "of the other tree\n"

    measured = []
    monkeypatch.setattr(
        run, "clusters", lambda: nullcontext((KafkaCluster("A"), KafkaCluster("B")))
    )
    monkeypatch.setattr(Bench, "step", lambda _self, _name, _step, found: measured.extend(found))
    results = SimpleNamespace(add=lambda *_: None)
    asked = SimpleNamespace(peers=[OURS, "mm2"], also=tree, smoke=True)
    run.run(["100b"], results, tmp_path, asked)  # type: ignore[arg-type]
    assert measured == [OURS, peers.ANOTHER, "mm2"]


def test_another_tree_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["run", "--only", "100b", "--also", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        run.main()
    assert f"--also {tmp_path}: no source tree of sparkmirror" in capsys.readouterr().err


def test_settings_are_shown_without_what_changes_and_what_is_secret(tmp_path: Path) -> None:
    file = tmp_path / "mm2-t.properties"
    file.write_text(
        "clusters=A,B\nA.bootstrap.servers=localhost:1\nB.producer.linger.ms=20\n"
        f"A.ssl.truststore.password=geheim\nA.ssl.truststore.location={tmp_path}/trust.p12\n"
    )
    command = ["/opt/java/bin/java", "-Xmx2g", "-cp", "a.jar:b.jar", "Main", str(file)]
    assert described(command, [file], tmp_path) == (
        "java -Xmx2g -cp ... Main mm2-t.properties\n\n# mm2-t.properties\nclusters=A,B\n"
        "B.producer.linger.ms=20\nA.ssl.truststore.location=trust.p12"
    )


def test_pages_of_results_say_what_their_numbers_say() -> None:
    for path in RESULTS.glob("*.json"):
        results = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(results, dict) and results.get("format") == FORMAT:
            text = path.with_name(f"{path.stem}.md").read_text(encoding="utf-8")
            assert text.startswith(report.page(results)), path


# -- what the pages quote --------------------------------------------------------------------------


def page_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_pages_quote_the_newest_complete_result() -> None:
    newest = newest_complete(RESULTS)
    if newest is None:
        # Until there is a complete result of medians the pages quote the last one of before.
        accept_the_table_of_2026_11_22()
        return
    for page in PAGES:
        text = page_of(page)
        assert text == quoted(text, newest[1]), "python -m benchmarks.quote"
        # Nor is there a figure of another run beside them.
        outside = BLOCK.sub("", text)
        assert not re.search(r"\d M\b|CPU-s|fastest|best round", outside), page


def accept_the_table_of_2026_11_22() -> None:
    """The last result in which the fastest round counted, and as such it is quoted."""
    old = json.loads((RESULTS / "2026-11-22.json").read_text())["catch_up"]
    text = page_of("README.md")
    assert "fastest round of [one run](benchmarks/results/2026-11-22.md)" in text.replace("\n", " ")
    for load in ("100b", "1k-lz4", "100b-16k", "100b-single"):
        for peer in ("mm1", "mm2", "sparkmirror"):
            assert f"{old[load][peer]['rate'] / 1e6:.2f} M" in text
    exact = json.loads((RESULTS / "exactly-once-2026-11-22.json").read_text())["catch_up"]["100b"]
    for peer in ("sparkmirror", "sparkmirror-exact"):
        assert f"{exact[peer]['rate'] / 1e6:.2f} M" in page_of("docs/guarantees.md")


def test_each_block_of_the_pages_is_there_once() -> None:
    names = [name for page in PAGES for _, name, _, _ in BLOCK.findall(page_of(page))]
    assert sorted(names) == sorted(BLOCKS)


def test_what_is_quoted_are_medians_also_where_they_are_worse() -> None:
    results = complete()
    text = quoted(page_of("README.md"), results)
    assert quoted(text, results) == text  # nothing is written twice
    block = text.partition("<!-- bench:speed -->")[2].partition("<!-- /bench -->")[0]
    assert "benchmarks/results/2026-12-01.md" in block
    assert (
        "| 100 B, well-filled batches | 1.00 M (4.0) | 1.00 M (4.0) | **3.00 M (1.3)** | 3.0, 3.0 |"
        in block
    )
    assert "| – the whole job, 20.0 M records | 30.0 s | 30.0 s | **16.7 s** | 1.8, 1.8 |" in block
    assert "| 100 records/s | 2.0 / 6.0 | 2.0 / 6.0 | 6.0 / 18.0 |" in block
    assert "-->3 s after the command; the Java tools need 3 s<!--" in text
    late = complete()
    for number, name in enumerate(("100b", "1k-lz4")):
        late["steps"][name]["rounds"]["sparkmirror"] = [
            copy(3e6, start_s=10.0 * one + number) for one in SPREAD
        ]
    assert "-->3 to 11 s after the command; the" in quoted(text, late)  # medians, of all copies
    assert "Exactly-once, 100 B: 3.00 M records/s, no less than without it" in block
    assert "latency p50 (latency-100: 6.0 ms against " in block.replace("\n", " ")
    assert "6.00 M" not in block  # the best round
    slow = complete()
    slow["steps"]["100b"]["rounds"]["mm1"] = [copy(4e6 * one) for one in SPREAD]
    assert "| **4.00 M (1.0)** | 1.00 M (4.0) | 3.00 M (1.3) | 0.8, 3.0 |" in quoted(text, slow)
    slow["steps"]["100b"]["rounds"]["mm2"] = [copy(1e6, complete=False) for _ in SPREAD]
    assert "| **15.0 s** | never | 16.7 s | 0.9, inf |" in quoted(text, slow)
    assert "TLS" not in block  # which this run has not measured
    rounds = results["steps"]["100b"]["rounds"]
    rounds["sparkmirror-exact"] = [copy(2.2e6 * one) for one in SPREAD]
    page = quoted(page_of("docs/guarantees.md"), results)
    assert "2.20 M records/s of 100 bytes against 3.00 M without exactly-once, medians of" in page
    assert "27% less than without it" in quoted(text, results)
    results["steps"]["100b-tls"] = step_of("100b-tls")
    assert "3.00 M records/s of 100 B against MirrorMaker 2's 1.00 M (1.3 and 4.0" in quoted(
        text, results
    )


def test_what_is_void_is_not_quoted() -> None:
    results = complete()
    rounds = results["steps"]["latency-10k"]["rounds"]
    rounds[OURS] = [behind(9680.8, 9325.7)] * 3
    text = quoted(page_of("README.md"), results)
    why = "void: the producers could not keep up beside it (source's p50 9,326 ms)"
    assert f"| 10,000 unbatched records/s |  | 2.0 / 6.0 | {why} |" in text
    assert "9680" not in text
    block = text.partition("<!-- bench:speed -->")[2].partition("<!-- /bench -->")[0]
    told = " ".join(block.split())
    assert "latency p50 (latency-100: 6.0 ms" in told
    assert told.endswith("Of latency-10k nothing can be said: the producers could not keep up.")
    assert "nothing can be said" not in quoted(text, complete())
    results["steps"]["latency-100"]["rounds"]["sparkmirror-exact"] = [behind(50.0, 40.0)] * 3
    page = quoted(page_of("docs/guarantees.md"), results)
    assert "At 100 records/s there is no figure (void: the producers could not keep up" in page


def test_the_page_of_a_long_link_says_which_probes_are_missing() -> None:
    point = dataclasses.asdict(wan.Point("target", 50.0, 0.0))
    tail = {"p50": 30.0, "p99": 40.0, "p99.9": 50.0, "stalls": 0, "source p99": 1.0}
    tails = {
        "sparkmirror": tail,  # as in older results
        "mm2": {**tail, "wrong": "5,000 probes of 6,000 at the target"},
        "mm1": {"stalls": 0, "source p99": 1.0, "wrong": "0 probes of 6,000 at the target"},
    }
    text = wan.table(
        {
            "began": "2026-12-01",
            "link": "proxy",
            "broker_buffers": -1,
            "machine": {"cores": 2},
            "points": [{"point": point, "plain_copy_mb_per_s": 1.0, "peers": {}, "tails": tails}],
        }
    )
    assert "| 50 ms to the target | sparkmirror | 30.0 | 40.0 | 50.0 | 0 | 1.0 |" in text
    assert "|  | MirrorMaker 2, tuned, **5,000 probes of 6,000 at the target** | 30.0 |" in text
    assert "**0 probes of 6,000 at the target** | never | never | never |" in text


# -- probes ----------------------------------------------------------------------------------------


def reading(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of the probe that reads: ``script``, whose last argument is the output."""
    popen = measure_module.subprocess.Popen

    def start(command: list[str], *args: Any, **options: Any) -> Any:
        if "read" in command:
            command = [sys.executable, "-c", script, command[-1]]
        return popen(command, *args, **options)

    monkeypatch.setattr(measure_module.subprocess, "Popen", start)
    monkeypatch.setattr(measure_module, "READERS_START_S", 0.0)


def probed(work: Path, writer: str = "pass") -> dict[str, list[float]]:
    return latencies(
        *("a:1", "b:1", "t", "A.t", 1),
        rate=100,
        seconds=1,
        work=work,
        writer=[sys.executable, "-c", writer],
    )


def test_a_reader_that_fails_ends_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("source", "target"):  # of the round before
        (tmp_path / f"probe-{place}.json").write_text("[[0, 1.0]]")
    reading("raise SystemExit(3)", monkeypatch)
    with pytest.raises(RuntimeError, match="exit code 3"):
        probed(tmp_path)
    assert not list(tmp_path.iterdir())


def test_readers_end_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading("import time; time.sleep(60)", monkeypatch)
    before = len(psutil.Process().children())
    with pytest.raises(subprocess.CalledProcessError):
        probed(tmp_path, "raise SystemExit(1)")
    assert len(psutil.Process().children()) == before


def test_what_readers_found_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading("import sys; open(sys.argv[1], 'w').write('[[0, 1.5], [1, 2.5]]')", monkeypatch)
    assert probed(tmp_path) == {"source": [1.5, 2.5], "target": [1.5, 2.5]}


def test_one_stall_is_told_from_many_late_records() -> None:
    ramp = [float(ms) for ms in range(330, 0, -10)]
    assert stalls([5.0] * 50 + ramp + [5.0] * 50) == 1
    assert stalls([5.0, 150.0] * 15) == 15
    assert stalls([150.0, 150.0]) == 1
    assert stalls([99.0] * 10) == 0
