"""``make faults``: N random faults under load, then what was lost and what came twice.

usage: python -m tests.faults [--faults 50] [--records 5000000] [--seed 1] [--seconds 0]
       [--at-least-once] [--none-twice] [--transactional | --transform] [--ring]
       [--only NAME ...] [--report FILE] [--keep DIRECTORY]

``--seconds``: no further fault after so long (0 = no limit). ``--transactional``: every second
partition is written in transactions, a fifth of which are aborted. ``--transform``: SQL leaves out
three records in ten and changes the others; each one at the target is compared with a model, and in
the end groups that had read some of the source must be at the very next record at the target.
``--ring``: small rows pass beside Spark.
``--keep``: leave logs and work directories there. The exit code is 1 when a record was lost or out
of order, when one differs, when one of an aborted transaction came, when one came twice (with
``--at-least-once``, unless ``--none-twice`` is given: more than were written since the last
committed position), when a killed worker or driver was missing for too long, when a run ended by
itself or did not drain, or when no fault came in time.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil

from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.faults.harness import Counter, Mirror, run_directory, write_config
from tests.faults.kinds import FAULTS, Scene, draw
from tests.faults.numbered import InTransactions, Numbered
from tests.faults.report import UNCOMMITTED_S, Outcome, complaints, render
from tests.faults.transforms.groups import GROUP_SETTINGS, TAIL, Translated, translated
from tests.faults.transforms.orders import OrderCounter, Orders, transform_settings
from tests.kafka.harness.support import create_topic

PARTITIONS = 4
_EPOCH_S = 20.0
_START_S_MAX = 300.0
_RECOVERY_S_MAX = 180.0
_RATE_PER_S = 12_000.0
# The load and its reader build and compare whole records, which takes a core's time by itself.
_ORDERS_PER_S = 3_000.0
# What a slot says that goes on at its position, although the target has more.
_AGAIN = re.compile(r".*: up to \d+ records arrive again: .*")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--at-least-once", action="store_true")
    parser.add_argument("--none-twice", action="store_true")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--transactional", action="store_true")
    load.add_argument("--transform", action="store_true")
    parser.add_argument("--ring", action="store_true")
    parser.add_argument("--only", nargs="+", choices=sorted(FAULTS))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--keep", type=Path)
    return parser.parse_args()


def main() -> int:
    """Run; the exit code."""
    options = _options()
    clusters = KafkaCluster("A"), KafkaCluster("B")
    start_all(*clusters)
    try:
        with run_directory(options.keep) as directory:
            return _run(options, directory, *clusters)
    finally:
        for cluster in clusters:
            cluster.stop()


def _run(
    options: argparse.Namespace, directory: Path, source: KafkaCluster, target: KafkaCluster
) -> int:
    topic = "numbers"
    create_topic(source, topic, PARTITIONS)
    create_topic(target, f"A.{topic}", PARTITIONS)
    settings = {**GROUP_SETTINGS, **transform_settings(topic)} if options.transform else {}
    if options.ring:
        settings["sparkmirror.ring.enabled"] = "true"
    config = write_config(directory / "mm2.properties", source, target, topic, **settings)
    flags = () if options.at_least_once else ("--exactly-once",)
    chooser = random.Random(options.seed)
    chosen = options.only or FAULTS
    able = [n for n in chosen if not (options.at_least_once and FAULTS[n].exactly_once)]
    traffic, reader = _load(options, source, target, topic)
    mirror = Mirror(directory, config, *flags)
    scene = Scene(mirror, source, target, chooser)
    outcomes: list[Outcome] = []
    before = 0
    began = time.monotonic()
    moved = Translated()
    with traffic, reader as counter:
        try:
            first = counter.recovery_s(began, _START_S_MAX, mirror.keep_running)
            if first == float("inf"):
                print(mirror.output())
                return 1
            print(f"first start: {first:.1f} s, parts {mirror.start_parts()}", flush=True)
            names = draw(chooser, {name: FAULTS[name].weight for name in able})
            while len(outcomes) < options.faults:
                if options.seconds and time.monotonic() - began > options.seconds:
                    break
                twice = counter.duplicated
                if outcomes:
                    outcomes[-1] = replace(outcomes[-1], twice=twice - before)
                before = twice
                outcome = _one(scene, counter, next(names))
                outcomes.append(outcome)
                print(
                    f"{len(outcomes):3d} {time.strftime('%H:%M:%S', time.gmtime())} {outcome}; "
                    f"{traffic.count:,} written, {counter.received:,} read, {counter.lost} lost, "
                    f"{counter.duplicated} twice",
                    flush=True,
                )
                if outcome.took_s == float("inf"):
                    print(mirror.output(), *traffic.failures, sep="\n")
                    return 1
                time.sleep(chooser.uniform(0.2, 2.0))
            traffic.finish(options.records)
            begins = traffic.append(TAIL) if isinstance(traffic, Orders) else []
            complete = counter.wait_for(traffic.due, 180)
            if complete and begins:
                moved = translated(source, target, (topic, f"A.{topic}"), begins, chooser)
            time.sleep(2.0)
            code = mirror.drain()
            if outcomes:  # what came twice comes after the partitions move again
                outcomes[-1] = replace(outcomes[-1], twice=counter.duplicated - before)
        finally:
            mirror.kill()
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "sparkmirror.data.workers.daemon" in " ".join(process.cmdline()):
                        process.kill()
    head = (
        f"Seed {options.seed}, {PARTITIONS} partitions, 2 slots, epochs of 20 s; "
        f"{time.monotonic() - began:.0f} s; {traffic.count:,} records written, "
        f"{counter.received:,} "
        "read by a read_committed librdkafka consumer at the target"
    )
    if isinstance(traffic, InTransactions):
        head += f"; {traffic}; {counter.aborted} of these came"
    if isinstance(counter, OrderCounter):
        head += (
            f"; the transform left {traffic.count - traffic.due:,} out; {counter.differing} differ "
            f"from the model; {moved.offsets} offsets of groups translated, {len(moved.wrong)} of "
            "them not to the next record"
        )
    mode = "at-least-once" if options.at_least_once else "exactly-once"
    if options.ring:
        mode += " with a ring"
    if options.transform:
        mode += " with a transform"
    report = render(mode, head, outcomes, lost=counter.lost, twice=counter.duplicated)
    print(report)
    if options.report is not None:
        options.report.write_text(report)
    missing = traffic.due - sum(counter.expected)
    print(f"missing at the end: {missing}; the mirror's exit code after the drain: {code}")
    if counter.first_wrong:
        print(f"first wrong: {counter.first_wrong}")
    for ended, output in mirror.exits:
        print(f"-- a run ended with {ended}: {output.strip().splitlines()[-3:]}")
    for log in sorted(directory.glob("work-*/spark.log")):
        print(*(f"{line}\n" for line in _AGAIN.findall(log.read_text(errors="replace"))), end="")
    wrong = complaints(
        outcomes,
        lost=counter.lost,
        aborted=counter.aborted,
        may_repeat=options.at_least_once and not options.none_twice,
        by_itself=[one for n, (one, _) in enumerate(mirror.exits) if n not in scene.meant],
        drained=code,
    )
    if options.faults and not outcomes:
        wrong.append("there was no fault")
    if isinstance(traffic, InTransactions) and not traffic.aborted:
        wrong.append("no transaction was aborted")
    if isinstance(counter, OrderCounter):
        wrong += moved.wrong if moved.offsets else ["no group's offsets were looked at"]
        if counter.differing:
            wrong.append(f"{counter.differing} records differ from the model")
    if not complete:
        wrong.append(f"{missing} records are missing")
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def _load(
    options: argparse.Namespace, source: KafkaCluster, target: KafkaCluster, topic: str
) -> tuple[Numbered, Counter]:
    """Who writes at the source, and who counts at the target."""
    remote = f"A.{topic}"
    if options.transform:
        orders = Orders(source, topic, PARTITIONS, per_s=_ORDERS_PER_S)
        return orders, OrderCounter(target, remote, PARTITIONS, orders.first_ms)
    traffic = (
        InTransactions(source, topic, PARTITIONS, per_s=_RATE_PER_S, seed=options.seed)
        if options.transactional
        else Numbered(source, topic, PARTITIONS, per_s=_RATE_PER_S)
    )
    return traffic, Counter(target, remote, PARTITIONS)


def _one(scene: Scene, counter: Counter, name: str) -> Outcome:
    """One fault, and how it went until all partitions were mirrored again."""
    fault = FAULTS[name].fault
    deadline = time.monotonic() + _START_S_MAX
    while True:
        scene.mirror.keep_running()
        began = time.monotonic()
        uncommitted = counter.received_since(began - UNCOMMITTED_S)
        starts, exits = scene.mirror.starts, len(scene.mirror.exits)
        try:
            fault(scene)
            break
        except (IndexError, StopIteration, psutil.Error):
            # The mirror is just starting: there is nothing to hit yet.
            if began > deadline:
                return Outcome(name, float("inf"))
            time.sleep(0.3)
    if FAULTS[name].ends:
        scene.meant.add(exits)
    if FAULTS[name].restarts:
        # What still came through the old run's workers does not count.
        while scene.mirror.starts == starts or scene.mirror.start_parts() is None:
            scene.mirror.keep_running()
            if time.monotonic() - began > _RECOVERY_S_MAX:
                return Outcome(name, float("inf"))
            time.sleep(0.02)
    since = time.monotonic() - 0.5 if FAULTS[name].restarts else began
    took = counter.recovery_s(since, _RECOVERY_S_MAX, scene.mirror.keep_running) + since - began
    if FAULTS[name].late:
        took = max(took, counter.silence_s(_EPOCH_S + 5.0, scene.mirror.keep_running))
    after, scene.after = scene.after, []
    for action in after:
        action()
        time.sleep(3.0)
    began_anew = scene.mirror.starts > starts or len(scene.mirror.exits) > exits
    parts = scene.mirror.start_parts() if began_anew else None
    return Outcome(name, took, parts, uncommitted=uncommitted)


if __name__ == "__main__":
    sys.exit(main())
