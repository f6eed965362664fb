"""``make mutants``: small faults in the product, one at a time; which test notices each.

usage: python -m tests.mutants [--only NAME ...] [--without-brokers] [--workers 2] [--report FILE]

Works on copies in a temporary directory. The named tests must pass there first. Then each mutant is
made, its tests are run and must fail, by an assertion or an error of their own: not by an import
or a name that is missing. The exit code is 1 when a mutant survives, 2 when the table is wrong.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.mutants import observer
from tests.mutants.mutant import PACKAGE, Mutant, complaints, needs_brokers
from tests.mutants.table import MUTANTS
from tests.mutants.verdict import BROKEN, NOTICED, Verdict, healthy, judge

ROOT = Path(__file__).parents[2]
_LEFT_OUT = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "artifacts", "results")
_LIGHT_S, _BROKERS_S = 300.0, 900.0
_ALL_S = 1_200.0


class Copy:
    """A copy of the repository whose product may be changed."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        self._process: subprocess.Popen[bytes] | None = None
        shutil.copytree(ROOT, directory, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        # Each run would compile the product anew: nothing is written while mutants are about.
        compileall.compile_dir(directory / "src", quiet=2)
        compileall.compile_dir(directory / "tests", quiet=2)

    def run(self, tests: Sequence[str], limit_s: float) -> list[dict[str, Any]]:
        """What the tests came to; an answer that is missing is that of a test that hung."""
        out = self.root / ".mutants.jsonl"
        out.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.root / "src"), str(self.root)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            observer.OUT: str(out),
            observer.SOURCE: str(self.root / "src"),
        }
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.observer"),
            *("-p", "no:xdist", "-p", "no:cacheprovider"),
            # Whatever mark they have.
            *("-m", "", "--hypothesis-seed=1", "--tb=short", *tests),
        ]
        with (self.root / ".mutants.log").open("w") as log:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._process = process
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                pass
            finally:
                self.end()
                process.wait()
        if not out.exists():
            return []
        return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]

    def end(self) -> None:
        """Kill what is run, with all that it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def log_tail(self) -> str:
        """The end of what pytest said last."""
        text = (self.root / ".mutants.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-40:])

    def try_out(self, mutant: Mutant) -> Verdict:
        """Make the fault, run its tests, mend it."""
        path = self.root / PACKAGE / mutant.file
        text = path.read_text(encoding="utf-8")
        path.write_text(mutant.applied(text), encoding="utf-8")
        # What was compiled counts while time and size of the source are those that it notes.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        try:
            limit_s = _BROKERS_S if mutant.brokers else _LIGHT_S
            return judge(mutant.tests, self.run(mutant.tests, limit_s))
        finally:
            path.write_text(text, encoding="utf-8")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--without-brokers", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    wrong = complaints(MUTANTS, ROOT)
    unknown = set(options.only or ()) - {one.name for one in MUTANTS}
    wrong += [f"there is no mutant {name}" for name in sorted(unknown)]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 2
    chosen = [one for one in MUTANTS if not options.only or one.name in options.only]
    if options.without_brokers:
        chosen = [one for one in chosen if not one.brokers]
    with tempfile.TemporaryDirectory(prefix="sparkmirror-mutants-") as directory:
        return _run(chosen, Path(directory), options.workers, options.report)


def _run(chosen: Sequence[Mutant], directory: Path, workers: int, report: Path | None) -> int:
    began = time.monotonic()
    copies = [Copy(directory / str(number)) for number in range(max(1, workers))]
    tests = dict.fromkeys(test for one in chosen for test in one.tests)
    for brokers in (False, True):
        group = [test for test in tests if needs_brokers(test) == brokers]
        if not group:
            continue
        ill = healthy(group, copies[0].run(group, _ALL_S))
        if ill:
            print("On the product as it is:", *ill, copies[0].log_tail(), sep="\n")
            return 1
        print(f"{len(group)} tests pass on the product as it is", flush=True)
    free: queue.Queue[Copy] = queue.Queue()
    for copy in copies:
        free.put(copy)

    def one(mutant: Mutant) -> tuple[Verdict, float]:
        copy = free.get()
        try:
            mutant_began = time.monotonic()
            verdict = copy.try_out(mutant)
            took_s = time.monotonic() - mutant_began
            print(f"{verdict.state:8s} {took_s:5.1f} s {mutant.name}", flush=True)
            if verdict.state != NOTICED:
                print(*verdict.how, copy.log_tail(), sep="\n", flush=True)
            return verdict, took_s
        finally:
            free.put(copy)

    found: dict[str, tuple[Verdict, float]] = {}
    for brokers, count in ((False, len(copies)), (True, 1)):
        some = [mutant for mutant in chosen if mutant.brokers == brokers]
        with ThreadPoolExecutor(count) as pool:
            try:
                found |= {m.name: v for m, v in zip(some, pool.map(one, some), strict=True)}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for copy in copies:
                    copy.end()
                raise
    page = _page(chosen, found, time.monotonic() - began)
    print(page)
    if report is not None:
        report.write_text(page, encoding="utf-8")
    return int(any(verdict.state != NOTICED for verdict, _ in found.values()))


def _page(chosen: Sequence[Mutant], found: dict[str, tuple[Verdict, float]], took_s: float) -> str:
    states = [found[one.name][0].state for one in chosen]
    lines = [
        f"{len(chosen)} mutants in {took_s:.0f} s: **{states.count(NOTICED)} noticed, "
        f"{len(states) - states.count(NOTICED) - states.count(BROKEN)} survived, "
        f"{states.count(BROKEN)} broken**.",
        "",
        "| mutant | promise | in | noticed by | it said | s |",
        "|---|---|---|---|---|---|",
    ]
    for one in chosen:
        verdict, seconds = found[one.name]
        said = "; ".join(verdict.how).replace("|", "\\|")
        tests = ", ".join(f"`{test.rpartition('::')[2]}`" for test in one.tests)
        if verdict.state != NOTICED:
            tests = f"**{verdict.state}** ({tests})"
        cells = (one.name, one.promise.replace("|", "\\|"), f"`{one.file}`", tests, said)
        lines.append(f"| {' | '.join(cells)} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
