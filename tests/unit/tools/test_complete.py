"""The report of ``make test-all`` is red as soon as anything is, and says what."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.complete.__main__ import run
from tests.complete.parts import PARTS, Part
from tests.complete.product import product
from tests.complete.report import Machine, Result, Results, green, render
from tests.faults.wholeness import Compared, Outcome, Summary
from tests.faults.wholeness import render as render_losses

COMMIT = "0123456789ab"
NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
MACHINE = Machine(COMMIT, "A subject", "fedcba987654", (), 2, 24, "3.11.7")
JUNIT = '<testsuites><testsuite tests="9" failures="1" errors="1" skipped="2"/></testsuites>'
LOSS = Outcome("made anew", untold=2, compared=Compared(missing=1))
FAULTS = "## 50 random faults, x\n\nSeed 1; 5,000,000 records written: **0 lost, 3 duplicated**.\n"
STANDBYS = (
    "## 9 random events, 7 takeovers, x\n\n80,000 records written: **0 lost, 1 duplicated**.\n"
)


TRANSFORM = FAULTS + (
    "; the transform left 1,500 out; 2 differ from the model; 20 offsets of groups translated, "
    "1 of them not to the next record"
)


def _passed() -> dict[str, Result]:
    return {part.name: Result(part.name, "", 60.0, "", figures={"kills": "50"}) for part in PARTS}


def test_all_parts_have_to_pass() -> None:
    results = _passed()
    page = render(PARTS, results, MACHINE, NOW)
    assert green(PARTS, results)
    assert page.startswith("# All tests, 2026-11-22: green\n")
    assert "Commit `0123456789ab` (A subject)" in page
    assert "FAILED" not in page
    assert page.count("50 kills") == len(PARTS)


@pytest.mark.parametrize("part", [part.name for part in PARTS])
def test_one_part_that_failed_makes_it_red(part: str) -> None:
    results = _passed()
    results[part] = Result(part, "", 60.0, "exit code 1", figures={"lost": "4"})
    page = render(PARTS, results, MACHINE, NOW)
    assert not green(PARTS, results)
    assert page.startswith("# All tests, 2026-11-22: RED\n")
    assert "**FAILED**: exit code 1 | 4 lost" in page


def test_what_was_not_run_or_only_in_short_is_not_green() -> None:
    results = _passed()
    results["fuzz"] = Result("fuzz", "", 60.0, "", short=True)
    assert not green(PARTS, results)
    assert "shortest setting" in render(PARTS, results, MACHINE, NOW)
    del results["fuzz"]
    assert not green(PARTS, results)
    assert "**not run**" in render(PARTS, results, MACHINE, NOW)


def test_a_result_of_another_commit_names_it() -> None:
    results = _passed()
    results["fuzz"] = Result("fuzz", "", 60.0, "", commit="00112233aabb")
    results["audit"] = Result("audit", "", 60.0, "", commit=COMMIT)
    page = render(PARTS, results, MACHINE, NOW)
    assert green(PARTS, results)
    assert page.count("(at `") == 1
    assert "passed (at `00112233aabb`, the same product with other tests or pages)" in page


def test_a_tree_with_changes_is_told() -> None:
    changed = Machine(COMMIT, "A subject", "fedcba987654", ("src/x.py",), 2, 24, "3.11.7")
    assert "Not that commit alone:** src/x.py" in render(PARTS, _passed(), changed, NOW)


def _results(directory: Path, product: str = MACHINE.product) -> Results:
    return Results(directory / "kept", directory / "working", product)


def _part(name: str, script: str) -> Part:
    model = next(part for part in PARTS if part.name == name)
    command = ("{python}", "-c", script, "{out}")
    return Part(name, "what", command, command, model.figures, model.page)


def _writes(file: str, text: str, code: int) -> str:
    return (
        "import pathlib, sys; "
        f"(pathlib.Path(sys.argv[1]) / {file!r}).write_text({text!r}); sys.exit({code})"
    )


@pytest.mark.parametrize(
    ("name", "file", "text", "figures"),
    [
        ("interop", "junit.xml", JUNIT, {"passed": "5", "failed": "2", "skipped": "2"}),
        (
            "make test, busy 2",
            "junit.xml",
            JUNIT.replace("tests=", 'time="1230.5" tests='),
            {"minutes": "20.5", "passed": "5", "failed": "2", "skipped": "2"},
        ),
        (
            "faults, exactly-once",
            "page.md",
            FAULTS,
            {"kills": "50", "records": "5,000,000", "lost": "0", "twice": "3"},
        ),
        (
            "faults, transform",
            "page.md",
            TRANSFORM,
            {
                "kills": "50",
                "records": "5,000,000",
                "lost": "0",
                "twice": "3",
                "left out": "1,500",
                "differ": "2",
                "group offsets": "20",
                "not exact": "1",
            },
        ),
        (
            "standbys-3, at-least-once",
            "page.md",
            STANDBYS,
            {"events": "9", "takeovers": "7", "records": "80,000", "lost": "0", "twice": "1"},
        ),
        (
            "mutants",
            "page.md",
            "104 mutants in 9 s: **103 noticed, 1 survived, 0 broken**.",
            {"mutants": "104", "noticed": "103", "survived": "1", "broken": "0"},
        ),
        (
            "fuzz",
            "page.md",
            "**1,234 cases in 10.0 CPU-minutes, 0 crashes, 1 hangs.**",
            {"cases": "1,234", "CPU-minutes": "10.0", "crashes": "0", "hangs": "1"},
        ),
        (
            "elections",
            "page.md",
            render_losses(Summary("at-least-once", "Seed 1", 43_210, [LOSS, LOSS])),
            {
                "losses": "2",
                "records": "43,210",
                "missing": "2",
                "twice": "0",
                "out of order": "0",
                "untold": "4",
            },
        ),
        ("partitions", "page.md", "10,000 partitions that nobody", {"partitions": "10,000"}),
    ],
)
@pytest.mark.parametrize("code", [0, 1])
def test_a_parts_figures_and_its_exit_code_are_kept(
    tmp_path: Path, name: str, file: str, text: str, figures: dict[str, str], code: int
) -> None:
    results, part = _results(tmp_path), _part(name, _writes(file, text, code))
    found = run(part, results, COMMIT, short=False)
    assert found.figures == figures
    assert found.wrong == ("exit code 1" if code else "")
    assert results.get(part) == found


@pytest.mark.parametrize("name", [part.name for part in PARTS])
def test_a_part_that_leaves_no_figures_has_failed(tmp_path: Path, name: str) -> None:
    """A command that does nothing, successfully, must not pass for one that found nothing."""
    results, part = _results(tmp_path), _part(name, "print('well')")
    found = run(part, results, COMMIT, short=False)
    assert "no figures" in found.wrong
    assert not green([part], {name: found})


def test_what_an_earlier_run_left_does_not_count(tmp_path: Path) -> None:
    results = _results(tmp_path)
    run(_part("partitions", _writes("page.md", "9 partitions", 0)), results, COMMIT, short=False)
    found = run(_part("partitions", "pass"), results, COMMIT, short=False)
    assert found.wrong


def test_no_test_at_all_is_a_failure(tmp_path: Path) -> None:
    empty = '<testsuites><testsuite tests="0" failures="0" errors="0" skipped="0"/></testsuites>'
    part = _part("interop", _writes("junit.xml", empty, 0))
    assert "no test ran" in run(part, _results(tmp_path), COMMIT, short=False).wrong


def test_a_command_is_run_with_this_python(tmp_path: Path) -> None:
    part = _part("partitions", "import sys; sys.exit(7)")
    assert run(part, _results(tmp_path), COMMIT, short=True).wrong
    log = (tmp_path / "working" / "partitions" / "output.log").read_text()
    assert log == ""
    assert Path(sys.executable).exists()


def test_a_result_of_another_product_does_not_count(tmp_path: Path) -> None:
    part = _part("audit", "print('4 versions compared, audit: nothing to mend')")
    before = _results(tmp_path, "000000000000")
    before.put(part, Result(part.name, "", 1.0, "", product=before.product))
    assert before.get(part) is not None
    assert _results(tmp_path).get(part) is None


def _tree(directory: Path, code: str, lock: str = "x==1\n") -> str:
    package = directory / "src" / "package"
    package.mkdir(parents=True, exist_ok=True)
    (package / "module.py").write_text(code)
    (package / "data.sha256").write_text("00")
    (directory / "pyproject.toml").write_text("")
    (directory / "requirements.lock").write_text(lock)
    return product(directory)


def test_the_product_is_what_runs(tmp_path: Path) -> None:
    first = _tree(tmp_path, 'def of():\n    """Says."""\n    return 1\n')
    assert _tree(tmp_path, 'def of():\n    """Says more."""  # why\n\n    return (1)\n') == first
    assert _tree(tmp_path, "def of():\n    return 1\n") == first
    assert _tree(tmp_path, "def of():\n    return 2\n") != first
    assert _tree(tmp_path, "def of():\n    return 1\n", "x==2\n") != first
