"""A consumer group of this mirror's processes and Java's, with each assignor: who takes over when.

usage: python -m tests.faults.sharing [--assignors NAME ...] [--report FILE]

The exit code is 1 when a record was lost, when nobody took over, or later than the limit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.kafka.harness.group_sharing import ASSIGNORS, Sharing, share_and_take_over

LIMIT_S = 15.0

_HEAD = (
    "| partition.assignment.strategy | records | lost | twice | ours killed: copied again after | "
    "Java killed: copied again after | new topic copied after |\n|---|---|---|---|---|---|---|\n"
)


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.sharing", description=__doc__)
    parser.add_argument("--assignors", nargs="+", choices=ASSIGNORS, default=ASSIGNORS)
    parser.add_argument("--report", type=Path, help="rows are appended to this file")
    options = parser.parse_args()
    clusters = KafkaCluster("A"), KafkaCluster("B")
    start_all(*clusters)
    late = False
    try:
        for assignor in options.assignors:
            with tempfile.TemporaryDirectory(prefix="sparkmirror-sharing-") as directory:
                try:
                    found = share_and_take_over(*clusters, Path(directory), assignor)
                except AssertionError:
                    _show(Path(directory))
                    raise
            print(_HEAD + _row(found), end="", flush=True)
            late |= max(found.ours_killed_s, found.java_killed_s) > LIMIT_S
            if options.report is not None:
                new = not options.report.exists()
                with options.report.open("a") as report:
                    report.write((_HEAD if new else "") + _row(found))
    finally:
        for cluster in clusters:
            cluster.stop()
    return int(late)


def _show(directory: Path) -> None:
    """What the three mirrors last said, for whoever has to find out why."""
    for file in (*sorted(directory.glob("*/output-*.txt")), directory / "java.log"):
        if file.exists():
            told = file.read_text(errors="replace").splitlines()
            print(f"--- {file.name}", *told[-40:], sep="\n")


def _row(found: Sharing) -> str:
    return (
        f"| {found.assignor} | {found.sent:,} | 0 | {found.again:,} | {found.ours_killed_s:.1f} s |"
        f" {found.java_killed_s:.1f} s | {found.new_topic_s:.1f} s |\n"
    )


if __name__ == "__main__":
    sys.exit(main())
