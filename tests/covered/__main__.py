"""``make coverage``: which lines of the product the tests run, in all processes that they start.

usage: python -m tests.covered [--report FILE] [--fail-under 92] [PYTEST-ARGUMENT ...]

Runs the tests (all of ``make test``, unless arguments say which) under coverage.py, with Spark's
Python processes and their forks, then lists what no test runs, with the reason from
`tests.covered.reasons`, or else with the one that its source gives (`tests.covered.unreached`), and
the error texts that no test touches. The exit code is 1 when a test fails, when fewer lines are run
than wanted, or when a reason is about what does not exist.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import coverage

from tests.covered.error_texts import error_texts
from tests.covered.reasons import REASONS
from tests.covered.unreached import conditions

ROOT = Path(__file__).parents[2]
_PACKAGE = ROOT / "src" / "sparkmirror"
_FAIL_UNDER = 92.0
# A worker that was killed a moment ago may still be writing.
_LAST_WRITERS_S = 2.0
# By this variable coverage.py tells the processes of a measured one what to measure.
PROCESS_CONFIG = "COVERAGE_PROCESS_CONFIG"

CONFIG = """\
[run]
source_pkgs = sparkmirror
data_file = {data}/data
parallel = true
patch = subprocess, fork, _exit
sigterm = true
disable_warnings = no-data-collected, module-not-imported, module-not-measured,
    already-imported, couldnt-parse
[paths]
source =
    src/sparkmirror
    */src/sparkmirror
"""


@dataclass(frozen=True)
class Gap:
    """Lines of one function, or of a module outside of any, that no test runs."""

    file: str
    function: str
    lines: tuple[int, ...]
    unmet: str = ""
    """Why, and what would lead there."""

    @property
    def key(self) -> str:
        """As in `REASONS`."""
        return f"{self.file}:{self.function}" if self.function else self.file


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="make coverage", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--report", type=Path)
    parser.add_argument("--fail-under", type=float, default=_FAIL_UNDER)
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="sparkmirror-coverage-") as directory:
        config = Path(directory) / "coveragerc"
        config.write_text(CONFIG.format(data=directory), encoding="utf-8")
        with _endings():
            code = _run_tests(config, arguments)
        time.sleep(_LAST_WRITERS_S)
        measured = coverage.Coverage(config_file=str(config))
        measured.combine([directory], strict=True)
        files = dict(_analysed(measured))
    page, percent = render(files, REASONS)
    wrong = unknown_reasons(REASONS)
    print(page, *wrong, sep="\n")
    if options.report is not None:
        options.report.write_text(page, encoding="utf-8")
    if percent < options.fail_under:
        print(f"{percent:.1f} % is less than {options.fail_under:g} %")
    return int(bool(code or wrong or percent < options.fail_under))


def _run_tests(config: Path, arguments: list[str]) -> int:
    workers = os.environ.get("TEST_WORKERS") or str(min(3, os.cpu_count() or 1))
    command = [
        *(sys.executable, "-m", "coverage", "run", f"--rcfile={config}", "-m", "pytest"),
        *("-p", "tests.covered.saving", "-n", workers),
        *("--dist", "loadfile", "--no-loadscope-reorder"),
        *("-m", "not matrix and not interop and not long", *arguments),  # `make more`, too
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


@contextlib.contextmanager
def _endings() -> Iterator[None]:
    """Every measured Python of this environment loads `tests.covered.endings` meanwhile."""
    directory = Path(sysconfig.get_path("purelib"))
    module, path = directory / "sparkmirror_endings.py", directory / "b_sparkmirror_endings.pth"
    shutil.copyfile(Path(__file__).with_name("endings.py"), module)
    measured = f'os.getenv("{PROCESS_CONFIG}")'
    path.write_text(
        f"import os; exec('if {measured}: import sparkmirror_endings')\n", encoding="utf-8"
    )
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        module.unlink(missing_ok=True)


def _analysed(measured: coverage.Coverage) -> Iterator[tuple[str, tuple[set[int], set[int]]]]:
    """(file, (lines that could run, lines that did not)) of every module."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        _, statements, _, missing, _ = measured.analysis2(str(path))
        yield path.relative_to(_PACKAGE).as_posix(), (set(statements), set(missing))


def gaps(file: str, missing: set[int], source: str) -> list[Gap]:
    """What is missing in ``file``, by the innermost function that it is in."""
    tree = ast.parse(source)
    spans = sorted(_functions(tree), key=lambda span: span[1] - span[2])
    by_function: dict[str, list[int]] = {}
    for line in sorted(missing):
        inside = [name for name, first, last in spans if first <= line <= last]
        by_function.setdefault(inside[-1] if inside else "", []).append(line)
    return [
        Gap(file, name, tuple(lines), conditions(tree, lines))
        for name, lines in by_function.items()
    ]


def _functions(node: ast.AST, within: str = "") -> Iterator[tuple[str, int, int]]:
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{child.name}" if within else child.name
            if not isinstance(child, ast.ClassDef):
                assert child.end_lineno is not None
                yield name, child.lineno, child.end_lineno
        yield from _functions(child, name)


def unknown_reasons(reasons: Mapping[str, str]) -> list[str]:
    """Reasons about files or functions that do not exist, and reasons that say nothing."""
    found = []
    for key, reason in reasons.items():
        file, _, function = key.partition(":")
        path = _PACKAGE / file
        names = {""}
        if path.is_file():
            names |= {name for name, _, _ in _functions(ast.parse(path.read_text("utf-8")))}
        if not path.is_file() or function not in names:
            found.append(f"the reason for {key} is about nothing that exists")
        if not reason.strip():
            found.append(f"the reason for {key} is empty")
    return found


def render(
    files: Mapping[str, tuple[set[int], set[int]]], reasons: Mapping[str, str]
) -> tuple[str, float]:
    """The page, and how many percent of the lines were run."""
    total = sum(len(lines) for lines, _ in files.values())
    missing = sum(len(lines) for _, lines in files.values())
    percent = 100.0 * (total - missing) / total
    explained: list[str] = []
    open_: list[str] = []
    used: set[str] = set()
    texts, untouched = 0, []
    for file, (_, lines) in files.items():
        source = (_PACKAGE / file).read_text("utf-8")
        for gap in gaps(file, lines, source):
            key = gap.key if gap.key in reasons else file
            used.add(key)
            reason = reasons.get(key, "")
            row = f"| `{gap.key}` | {_ranges(gap.lines)} | {reason or gap.unmet} |"
            (explained if reason else open_).append(row)
        said = error_texts(ast.parse(source))
        texts += len(said)
        untouched += [f"| `{file}` | {line} | {text} |" for line, text in said if line in lines]
    lines_of_page = [
        f"{total:,} lines, {total - missing:,} of them run by tests: **{percent:.1f} %**; "
        f"{len(explained)} functions with lines that `make test` cannot run, "
        f"{len(open_)} with lines that it does not run. "
        f"Tests touch {texts - len(untouched)} of {texts} error texts.",
        "",
        "| lines that no test runs | | reason |",
        "|---|---|---|",
        *explained,
        *open_,
        "",
        "| error texts that no test touches | | |",
        "|---|---|---|",
        *untouched,
    ]
    idle = sorted(set(reasons) - used)
    if idle:
        listed = ", ".join(f"`{key}`" for key in idle)
        lines_of_page += ["", f"Reasons for what tests do run: {listed}."]
    return "\n".join(lines_of_page) + "\n", percent


def _ranges(lines: tuple[int, ...]) -> str:
    ranges: list[tuple[int, int]] = []
    for line in lines:
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], line)
        else:
            ranges.append((line, line))
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in ranges)


if __name__ == "__main__":
    sys.exit(main())
