"""``make test`` of a clean clone of HEAD, while another process keeps one core busy.

usage: python -m tests.complete.busy [--alone] [--minutes-max N] [--junitxml FILE]
                                     [PYTEST-ARGUMENT ...]

``--alone``: without that process. ``--minutes-max``: the exit code is 1 when the tests, without
what is installed before them, took longer.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

__all__ = ["minutes"]

ROOT = Path(__file__).parents[2]
_BUSY = "while True: pass"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--minutes-max", type=float, default=math.inf)
    parser.add_argument("--junitxml", type=Path)
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="sparkmirror-busy-") as directory:
        clone = Path(directory) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        for verb in ("install", "kerberos", "promtool"):
            subprocess.run(["make", verb], cwd=clone, check=True)
        with _beside(busy=not options.alone):
            words = [f"ARGS={' '.join(arguments)}"] if arguments else []
            code = subprocess.run(["make", "test", *words], cwd=clone, check=False).returncode
        report = clone / "artifacts" / "junit.xml"
        took = minutes(report)
        if options.junitxml:
            shutil.copy(report, options.junitxml)
    if took > options.minutes_max:
        print(f"make test took {took:.1f} minutes, {options.minutes_max:g} at most are wanted")
        return code or 1
    return code


def minutes(report: Path) -> float:
    """How long the tests of a junit file took, from the first to the last."""
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    return sum(float(suite.get("time", "0")) for suite in suites) / 60


@contextmanager
def _beside(*, busy: bool) -> Iterator[None]:
    if not busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", _BUSY]) as process:
        try:
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
