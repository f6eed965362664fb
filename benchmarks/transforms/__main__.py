"""`make bench-transforms`: what transforms cost, beside the tools that do the same.

usage: python -m benchmarks.transforms [--only STEP ...] [--tools NAME ...] [--name NAME]
                                       [--out DIR] [--smoke] [--list]

Each step is written as soon as it is done, to ``transforms-NAME.md`` and ``.json``, beside the
steps that are there already. A result of another machine or of other code is not added to. Exit
code 1: a step failed, or a tool's output was wrong.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from benchmarks.machine import prepared
from benchmarks.run import Results, clusters, say
from benchmarks.transforms.bench import TransformBench, rounds_of
from benchmarks.transforms.page import faults, missing, verdicts, write
from benchmarks.transforms.steps import FORMAT, STEPS, TOOLS

_FAILED_CHARS = 3_000


class TransformResults(Results):
    """A result of `STEPS`. ``failed``: the error of each step that ended with one."""

    form = FORMAT
    order = tuple(STEPS)

    def rounds(self, smoke: bool) -> int:
        """How many rounds everybody has in every step."""
        return rounds_of(smoke)

    def write(self) -> list[Path]:
        """Write the files; their paths."""
        return write(self.document, self.out)

    def fail(self, name: str, error: Exception) -> None:
        """Note that step ``name`` failed; the next steps are measured all the same."""
        traceback.print_exception(error)
        text = f"{type(error).__name__}: {error}"
        self.document.setdefault("failed", {})[name] = text[-_FAILED_CHARS:]
        self.write()
        say(f"{name} failed: {text[:_FAILED_CHARS]}")


def _run(results: TransformResults, work: Path, options: argparse.Namespace) -> None:
    with clusters() as (a, b):
        bench = TransformBench(a, b, work, smoke=options.smoke)
        for name in options.only:
            tools = [one for one in STEPS[name].tools if one in options.tools]
            if not tools:
                continue
            try:
                found = bench.measure(name, STEPS[name], tools)
            except Exception as error:  # whatever a step raises; it must not stop the others
                results.fail(name, error)
                continue
            results.document.get("failed", {}).pop(name, None)
            results.add(name, found)


def _listed() -> str:
    lines = [f"{name:8} {one.minutes:3} min  {', '.join(one.tools)}" for name, one in STEPS.items()]
    whole = sum(one.minutes for one in STEPS.values())
    return "\n".join([*lines, f"all of them: {whole} min on two cores"])


def main() -> int:
    """Measure what is asked for and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transforms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--name", default=datetime.date.today().isoformat(), help="of the result")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    parser.add_argument("--smoke", action="store_true", help="does it work? With little data")
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    options = parser.parse_args()
    if options.list:
        print(_listed())
        return 0
    load_before = os.getloadavg()[0]
    prepared(say)
    results = TransformResults(
        options.out, f"transforms-{options.name}", smoke=options.smoke, load_before=load_before
    )
    # What was started must end with us, also when somebody ends us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp(prefix="sparkmirror-bench-"))
    try:
        _run(results, work, options)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for one in verdicts(results.document):
        say(f"{one.figure.title}: wanted {one.figure.wanted}, {one.measured}, {one.state}")
    if lacks := missing(results.document):
        say("not a complete result; it lacks " + "; ".join(lacks))
    else:
        say("a complete result: `python -m benchmarks.quote` writes its figures to the pages")
    for text in faults(results.document):
        say(f"wrong: {text[:_FAILED_CHARS]}")
    return 1 if faults(results.document) else 0


if __name__ == "__main__":
    sys.exit(main())
