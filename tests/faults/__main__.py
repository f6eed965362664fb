"""``make faults``: N random faults under load, then what was lost and what came twice.

usage: python -m tests.faults [--faults 50] [--records 5000000] [--seed 1] [--seconds 0]
       [--at-least-once] [--only NAME ...] [--report FILE]

``--seconds``: no further fault after so long (0 = no limit). The exit code is 1 when a record was
lost, came twice or out of order.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from sparkmirror.demo.clusters import KafkaCluster, start_all
from tests.faults.harness import FAULTS, Counter, Mirror, Numbered, Scene, draw, write_config
from tests.kafka.support import create_topic

PARTITIONS = 4
_START_S_MAX = 300.0
_RECOVERY_S_MAX = 180.0
_RATE_PER_S = 12_000.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--at-least-once", action="store_true")
    parser.add_argument("--only", nargs="+", choices=sorted(FAULTS))
    parser.add_argument("--report", type=Path)
    return parser.parse_args()


def main() -> int:
    """Run; the exit code."""
    options = _options()
    clusters = KafkaCluster("A"), KafkaCluster("B")
    start_all(*clusters)
    try:
        with tempfile.TemporaryDirectory(prefix="sparkmirror-faults-") as directory:
            return _run(options, Path(directory), *clusters)
    finally:
        for cluster in clusters:
            cluster.stop()


def _run(
    options: argparse.Namespace, directory: Path, source: KafkaCluster, target: KafkaCluster
) -> int:
    topic = "numbers"
    create_topic(source, topic, PARTITIONS)
    create_topic(target, f"A.{topic}", PARTITIONS)
    config = write_config(directory / "mm2.properties", source, target, topic)
    flags = () if options.at_least_once else ("--exactly-once",)
    chooser = random.Random(options.seed)
    traffic = Numbered(source, topic, PARTITIONS, per_s=_RATE_PER_S)
    mirror = Mirror(directory, config, *flags)
    scene = Scene(mirror, source, target, chooser)
    recoveries: dict[str, list[float]] = defaultdict(list)
    began = time.monotonic()
    with traffic, Counter(target, f"A.{topic}", PARTITIONS) as counter:
        try:
            if counter.recovery_s(time.monotonic(), _START_S_MAX) == float("inf"):
                print(mirror.output())
                return 1
            names = draw(chooser)
            for number in range(1, options.faults + 1):
                if options.seconds and time.monotonic() - began > options.seconds:
                    break
                name = next(n for n in names if not options.only or n in options.only)
                took = _one(scene, counter, name)
                recoveries[name].append(took)
                print(
                    f"{number:3d} {name:22s} recovered in {took:5.1f} s; "
                    f"{traffic.count:,} written, {counter.received:,} read, "
                    f"{counter.lost} lost, {counter.duplicated} twice",
                    flush=True,
                )
                if took == float("inf"):
                    print(mirror.output())
                    return 1
                time.sleep(chooser.uniform(0.2, 2.0))
            written = traffic.finish(options.records)
            complete = counter.wait_for(written, 180)
            time.sleep(2.0)
            code = mirror.drain()
            report = _report(options, recoveries, counter, written, time.monotonic() - began)
        finally:
            mirror.kill()
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "sparkmirror.data.daemon" in " ".join(process.cmdline()):
                        process.kill()
    print(report)
    if options.report is not None:
        options.report.write_text(report)
    missing = written - sum(counter.expected)
    print(f"missing at the end: {missing}; the mirror's exit code after the drain: {code}")
    if counter.first_wrong:
        print(f"first wrong: {counter.first_wrong}")
    return 0 if complete and not counter.lost and not counter.duplicated else 1


def _one(scene: Scene, counter: Counter, name: str) -> float:
    """One fault; seconds until all partitions are mirrored again."""
    fault = FAULTS[name][0]
    deadline = time.monotonic() + _START_S_MAX
    while True:
        scene.mirror.keep_running()
        began = time.monotonic()
        try:
            fault(scene)
            break
        except (IndexError, StopIteration, psutil.Error):
            # The mirror is just starting: there is nothing to hit yet.
            if began > deadline:
                return float("inf")
            time.sleep(0.3)
    took = counter.recovery_s(began, _RECOVERY_S_MAX, scene.mirror.keep_running)
    after, scene.after = scene.after, []
    for action in after:
        action()
        time.sleep(3.0)
    return took


def _report(
    options: argparse.Namespace,
    recoveries: dict[str, list[float]],
    counter: Counter,
    written: int,
    took_s: float,
) -> str:
    mode = "at-least-once" if options.at_least_once else "exactly-once"
    count = sum(map(len, recoveries.values()))
    lines = [
        f"# {count} random faults, {mode}",
        "",
        f"Seed {options.seed}, {PARTITIONS} partitions, 2 slots, 20 s epochs, {took_s:.0f} s; "
        f"{written:,} records written, {counter.received:,} read by a read_committed librdkafka "
        "consumer at the target:",
        f"**{counter.lost} lost, {counter.duplicated} duplicated**.",
        "",
        "| fault | times | seconds until all partitions moved again: median | longest |",
        "|---|---|---|---|",
    ]
    for name, times in sorted(recoveries.items()):
        lines.append(
            f"| {name} | {len(times)} | {statistics.median(times):.1f} | {max(times):.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
