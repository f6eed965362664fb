"""What the benchmark of transforms makes of its rounds: verdicts, voids, what must arrive."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from benchmarks.quote import RESULTS, TRANSFORMS_PAGE
from benchmarks.steps import WINDOW_S
from benchmarks.transforms import page
from benchmarks.transforms.check import Ends, Seen, difference
from benchmarks.transforms.handlers.mask import mask
from benchmarks.transforms.loop import TRANSFORMS
from benchmarks.transforms.records import OUTPUTS, Maker, arriving, event_maker, text_maker
from benchmarks.transforms.steps import FORMAT, LOADS, OTHER, STEPS, TOOLS

from sparkmirror.model import SourceRecord

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / TRANSFORMS_PAGE).read_text("utf-8")
SHARES = {"stolen": 0.0, "elsewhere": 0.01}


def copy(rate: float, **more: Any) -> dict[str, Any]:
    """A round of a copy."""
    return {
        "complete": True, "surplus": 0, "rate": rate, "mb_per_s": 1.0, "cpu_s_per_gb": 2.0,
        "total_s": 20.0, "start_s": 3.0, "peak_mb": 900.0, "window_s": WINDOW_S, "wrong": "",
        **SHARES, **more,
    }  # fmt: skip


def probe(plain: float, other: float) -> dict[str, Any]:
    """A round of both probes."""

    def place(p50: float) -> dict[str, float]:
        names = ("p50", "p90", "p99", "p99.9", "max")
        return {name: p50 * (n + 1) for n, name in enumerate(names)} | {"count": 1_500}

    places = {"target": place(plain), "other": place(other), "source": place(1.0)}
    return {**places, "wrong": "", **SHARES}


def complete() -> dict[str, Any]:
    """A result in which every figure is met: ours copies at 4 million records/s, others at 1."""
    steps: dict[str, Any] = {}
    for name, step in STEPS.items():
        about = {
            "began": "2026-12-01T10:00:00+00:00", "took_s": 60, "commit": "abc1234",
            "load_before": 0.1, "repeated": [], "choices": {},
            "settings": {key: f"{key} {name}" for key in step.tools},
        }  # fmt: skip
        if not step.trials:
            rounds = {key: [probe(3.0, 4.0 * n) for n in (3, 1, 1)] for key in step.tools}
            steps[name] = {**about, "kind": "latency", "rate": 100, "seconds": 15.0}
        else:
            rounds = {
                key: [copy((4e6 if "spark" in key else 1e6) * n) for n in (0.5, 3, 1)]
                for key in step.tools
            }
            steps[name] = {**about, "kind": "catch-up", "title": LOADS[name].title}
            steps[name] |= {"records": 9_000_000, "gigabytes": 1.0}
        steps[name]["rounds"] = rounds
    machine = dict.fromkeys(
        ("processor", "kernel", "python", "java", "spark", "brokers", "mirrormaker_2",
         "mirrormaker_1"), "x"
    )  # fmt: skip
    return {
        "format": FORMAT, "name": "transforms-2026-12-01", "smoke": False, "rounds": 3, "tasks": 4,
        "code": {"commit": "abc1234", "changed": False}, "began": "2026-12-01T10:00:00+00:00",
        "machine": {**machine, "cores": 2, "memory_gib": 24}, "steps": steps,
    }  # fmt: skip


def states(results: dict[str, Any]) -> dict[tuple[str, str, str], str]:
    return {
        (one.figure.step, one.figure.ours, one.figure.key): one.state
        for one in page.verdicts(results)
    }


# -- figures ---------------------------------------------------------------------------------------


def test_figures_are_medians_and_met_where_they_are() -> None:
    results = complete()
    found = page.verdicts(results)
    assert len(found) == len(page.FIGURES)
    assert {one.state for one in found} == {"met", "shown"}
    where = next(one for one in found if one.figure.ours == "sparkmirror-where")
    assert where.measured == "4.00× (4,000,000 records/s against 1,000,000 records/s)"
    late = next(one for one in found if one.figure.key == "other.p50")
    assert late.measured == "4.0 ms"
    assert page.missing(results) == []


@pytest.mark.parametrize(
    ("step", "tool", "rounds", "key"),
    [
        ("json", "sparkmirror-mask", [copy(2.9e6)] * 3, "rate"),
        ("smts", "mm2-smts", [copy(2.1e6)] * 3, "rate"),
        ("raw", "sparkmirror-renamed", [copy(3.7e6)] * 3, "rate"),
        ("latency", "sparkmirror-beside", [probe(3.4, 4.0)] * 3, "target.p50"),
        ("latency", "sparkmirror-beside", [probe(3.0, 8.1)] * 3, "other.p50"),
    ],
)
def test_a_figure_that_is_not_met_is_no_fault(
    step: str, tool: str, rounds: list[dict[str, Any]], key: str
) -> None:
    results = complete()
    results["steps"][step]["rounds"][tool] = rounds
    ours = "sparkmirror-smts" if tool == "mm2-smts" else tool
    assert states(results)[step, ours, key] == "**not met**"
    assert page.faults(results) == []
    assert page.missing(results) == []


def test_wrong_output_makes_a_figure_void_and_is_a_fault() -> None:
    results = complete()
    results["steps"]["json"]["rounds"]["loop-where"][1]["wrong"] = "5 records instead of 6"
    results["steps"]["smts"]["rounds"]["mm2-smts"][2]["surplus"] = 7
    results["failed"] = {"handler": "RuntimeError: no broker"}
    found = states(results)
    assert found["json", "sparkmirror-where", "rate"] == "**void**"
    assert found["smts", "sparkmirror-smts", "rate"] == "**void**"
    assert found["json", "sparkmirror-mask", "rate"] == "met"
    assert len(page.faults(results)) == 3
    text = page.page(results)
    assert "## What went wrong" in text
    assert "* json, Python loop, where, round 2: 5 records instead of 6" in text
    assert "* handler: RuntimeError: no broker" in text
    assert "Not complete" in text
    assert text.count("| **wrong** |") == 2


def test_a_latency_of_which_no_probe_came_is_never() -> None:
    results = complete()
    silent = {**probe(3.0, 4.0), "other": {}, "wrong": "0 records instead of 1,500"}
    results["steps"]["latency"]["rounds"]["sparkmirror-beside"] = [silent] * 3
    assert states(results)["latency", "sparkmirror-beside", "other.p50"] == "**void**"
    late = [one for one in page.verdicts(results) if one.figure.key == "other.p50"]
    assert late[0].ours == math.inf
    assert "never" in page.page(results)


def test_the_page_has_every_round_and_every_setting() -> None:
    results = complete()
    results["steps"]["json"]["choices"] = {"loop-where": {"1": 1.0e5, "2": 1.5e5}}
    text = page.page(results)
    assert "Python loop, where, number of processes by a copy that does not count: 1: 100," in text
    for name, step in STEPS.items():
        section = text.partition(f"## {name}: ")[2].partition("\n## ")[0]
        for tool in step.tools:
            for number in (1, 2, 3):
                assert f"| {TOOLS[tool].name} | {number} |" in section
            assert f"\n{tool} {name}\n" in text


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({"smoke": True}, "smoke run"),
        ({"format": 2}, "the format"),
        ({"code": {"commit": "a", "changed": True}}, "a commit"),
        ({"failed": {"raw": "no disk"}}, "outputs"),
    ],
)
def test_what_a_complete_result_needs(change: dict[str, Any], lacks: str) -> None:
    (found,) = page.missing(complete() | change)
    assert lacks in found


def test_the_newest_complete_result_is_quoted(tmp_path: Path) -> None:
    assert page.newest(tmp_path) is None
    old, new, bad = complete(), complete(), complete()
    new["began"], bad["began"], bad["smoke"] = "2026-12-02", "2026-12-03", True
    for name, one in (("a", old), ("b", new), ("c", bad)):
        (tmp_path / f"transforms-{name}.json").write_text(json.dumps(one))
    assert page.newest(tmp_path) == new
    text = page.quoted(f"before\n{page.BEGIN}\nold\n{page.END}\nafter", new)
    assert text.startswith("before\n")
    assert text.endswith("\nafter")
    assert "old" not in text
    assert "4,000,000 records/s | 1,000,000 records/s | 4.00× |" in text
    assert page.quoted(text, new) == text


def test_the_page_of_transforms_quotes_the_newest_complete_result() -> None:
    assert DOCUMENT.count(page.BEGIN) == DOCUMENT.count(page.END) == 1
    results = page.newest(RESULTS)
    if results is None:
        assert f"{page.BEGIN}\n{page.END}" in DOCUMENT  # no figures without a result
    else:
        assert page.quoted(DOCUMENT, results) == DOCUMENT, "python -m benchmarks.quote"


# -- what is written and what must arrive ----------------------------------------------------------


@cache
def _makers() -> tuple[Maker, Maker]:
    """Of events and of texts; what they choose from takes a second to make."""
    return event_maker(1024), text_maker(100)


@pytest.mark.parametrize("records", [1, 2, 3, 4, 99, 100, 101])
def test_as_many_arrive_as_are_kept(records: int) -> None:
    events, texts = _makers()
    for output, make in (("where", events), ("mask", events), ("same", texts), ("filter", texts)):
        kept = sum(OUTPUTS[output](*make(n)) is not None for n in range(records))
        assert kept == arriving(output, records)


def test_records_have_the_size_that_their_load_says() -> None:
    events, texts = _makers()
    for n in (0, 1, 4_001, 30_000_000):
        value, headers = events(n)
        assert 1000 < len(value) <= 1024
        assert json.loads(value)["n"] == 100_000_000 + n
        assert headers == ()
        value, headers = texts(3 * n)
        assert len(value) + sum(len(name) + len(text) for name, text in headers) == 100


def test_the_loop_and_the_handler_do_what_must_come_of_the_records() -> None:
    make = event_maker(1024)
    for value, headers in map(make, range(12)):
        assert TRANSFORMS["where"](value) == OUTPUTS["where"](value, headers)
        wanted = OUTPUTS["mask"](value, headers)
        assert wanted is not None
        assert TRANSFORMS["mask"](value) == wanted.decode()
        handled = mask(SourceRecord("t", 3, 1, 2, b"k", value))
        assert (handled.value, handled.key, handled.partition) == (wanted, b"k", 3)


def _ends(output: str, count: int) -> tuple[dict[int, Ends], dict[int, Ends]]:
    """A source and what must come of it; of the target the sample is of as many records."""
    make = text_maker(100) if output == "filter" else event_maker(1024)
    source = [Seen(*make(n), None, n) for n in range(count)]
    target = [
        replace(one, value=value)
        for one in source
        if (value := OUTPUTS[output](one.value, one.headers)) is not None
    ]
    third = count // 3
    return (
        {0: Ends(source[:third], source[-third:])},
        {0: Ends(target[:third], target[-third:])},
    )


@pytest.mark.parametrize("output", ["where", "mask", "filter"])
def test_a_right_output_has_no_difference(output: str) -> None:
    source, target = _ends(output, 60)
    assert difference(output, source, target) == ""


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("output", ["where", "mask", "filter"])
def test_every_wrong_output_is_a_difference(output: str, place: str) -> None:
    source, target = _ends(output, 60)
    records = list(getattr(target[0], place))
    at = 2 if place == "first" else len(records) - 2

    def with_records(changed: list[Seen]) -> str:
        return difference(output, source, {0: replace(target[0], **{place: changed})})

    one = records[at]
    for other in (
        replace(one, value=one.value[:-1] + b"x"),
        replace(one, headers=(("more", b""),)),
        replace(one, key=b"k"),
        replace(one, timestamp_ms=9),
    ):
        if output == "mask" and other.value != one.value:
            other = replace(one, value=source[0].first[0].value)  # noqa: PLW2901
        assert with_records([*records[:at], other, *records[at + 1 :]])
    swapped = [*records[: at - 1], records[at], records[at - 1], *records[at + 1 :]]
    assert with_records(swapped)
    assert with_records([*records[:at], *records[at + 1 :]])  # one is missing
    assert with_records(records[:3])


def test_json_may_be_written_with_other_blanks() -> None:
    source, target = _ends("mask", 60)
    dense = [
        replace(one, value=json.dumps(json.loads(one.value), separators=(",", ":")).encode())
        for one in target[0].first
    ]
    assert difference("mask", source, {0: replace(target[0], first=dense)}) == ""


def test_every_figure_and_step_names_tools_that_are_there() -> None:
    for one in page.FIGURES:
        assert {one.ours, one.theirs} - {""} <= set(STEPS[one.step].tools)
    assert {key for step in STEPS.values() for key in step.tools} == set(TOOLS)
    for name, step in STEPS.items():
        assert set(step.trials) <= set(step.tools)
        assert (name in LOADS) == bool(step.trials)
    # Only with the second topic is there something to transform.
    assert STEPS["raw"].beside
    assert OTHER in TOOLS["sparkmirror-beside"].lines["A->B.sparkmirror.transform.clean.topics"]
