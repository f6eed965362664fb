"""``make test-all``: everything that takes too long for ``make test``, and one dated report.

usage: python -m tests.complete [--only PART ...] [--continue] [--short] [--dirty] [--list]

Runs all parts, also when one has failed, and writes tests/results/DATE.md, which names the commit.
What a part came to is kept in tests/results/parts, with the product's name (`product`). A result
of another commit counts while the product is the same; its row in the report names that commit.
``--only`` runs some parts and takes the others from there, ``--continue`` runs those that have not
passed yet. ``--short``: every part with its shortest setting, report on the screen alone. A tree
with changes is refused, unless ``--dirty``; then the report says so. What the parts print is in
artifacts/test-all. The exit code is 1 when any part failed or was not run.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tests.complete.parts import PARTS, Part
from tests.complete.product import product
from tests.complete.report import Machine, Result, Results, green, render

ROOT = Path(__file__).parents[2]
_REPORTS = ROOT / "tests" / "results"
_WORKING = ROOT / "artifacts" / "test-all"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="make test-all",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="PART", choices=[one.name for one in PARTS])
    parser.add_argument("--continue", dest="go_on", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--dirty", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print(*(f"{one.name}: {one.what}" for one in PARTS), sep="\n")
        return 0
    machine = _machine()
    if machine.changed and not options.dirty:
        print(
            "The tree has changes, so that no commit could be named for the results: "
            f"{', '.join(machine.changed)}. Commit them, or say --dirty.",
            file=sys.stderr,
        )
        return 2
    short = _WORKING / "short"
    kept, working = (short, short) if options.short else (_REPORTS / "parts", _WORKING)
    results = Results(kept, working, machine.product)
    chosen = [one for one in PARTS if not options.only or one.name in options.only]
    if options.go_on:
        chosen = [one for one in chosen if (kept := results.get(one)) is None or kept.wrong]
    for part in chosen:
        print(f"== {part.name}: {part.what}", flush=True)
        result = run(part, results, machine.commit, short=options.short)
        print(f"== {part.name}: {result.wrong or 'passed'}, {result.seconds:.0f} s", flush=True)
    found = {part.name: kept for part in PARTS if (kept := results.get(part)) is not None}
    page = render(PARTS, found, machine, datetime.now(UTC))
    if options.short:
        print(page)
        return int(any(found[part.name].wrong for part in chosen))
    _REPORTS.mkdir(exist_ok=True)
    path = _REPORTS / f"{datetime.now(UTC):%Y-%m-%d}.md"
    path.write_text(page, encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {page.splitlines()[0]}")
    return int(not green(PARTS, found))


def run(part: Part, results: Results, commit: str, *, short: bool) -> Result:
    """Run a part of what ``commit`` holds, whatever comes of it, and keep that."""
    out = results.directory(part)
    for old in ("result.json", "page.md", "junit.xml"):
        (out / old).unlink(missing_ok=True)
    names = {"python": sys.executable, "make": "make", "out": str(out)}
    command = [word.format(**names) for word in (part.short if short else part.command)]
    began, clock = datetime.now(UTC), time.monotonic()
    said, code = _said(command, out / "output.log")
    figures, wrong = {}, "" if code == 0 else f"exit code {code}"
    try:
        figures = dict(part.figures(out, said))
    except Exception as error:  # whatever it left behind: the other parts are run all the same
        wrong = f"{wrong}, " if wrong else ""
        wrong += f"no figures ({type(error).__name__}: {error})"
    page = out / "page.md"
    result = Result(
        part.name,
        f"{began:%Y-%m-%d %H:%M}",
        time.monotonic() - clock,
        wrong,
        short,
        figures,
        page.read_text(encoding="utf-8") if part.page and page.exists() else "",
        commit,
        results.product,
    )
    results.put(part, result)
    return result


def _said(command: Sequence[str], log: Path) -> tuple[str, int]:
    """What a command prints, which is shown and kept, and its exit code."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    said: list[str] = []
    with log.open("w", encoding="utf-8") as file:
        for line in process.stdout:
            said.append(line)
            file.write(line)
            print(line, end="", flush=True)
    return "".join(said), process.wait()


def _machine() -> Machine:
    git = shutil.which("git") or "git"

    def ask(*words: str) -> str:
        return subprocess.run(
            [git, *words], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.rstrip("\n")

    changed = [line[3:] for line in ask("status", "--porcelain").splitlines()]
    # A report that an earlier run has written is no change of what is tested.
    changed = [path for path in changed if not path.startswith("tests/results/")]
    return Machine(
        ask("rev-parse", "--short=12", "HEAD"),
        ask("log", "-1", "--format=%s"),
        product(ROOT),
        tuple(changed),
        len(os.sched_getaffinity(0)),
        round(psutil.virtual_memory().total / 2**30),
        platform.python_version(),
    )


if __name__ == "__main__":
    sys.exit(main())
