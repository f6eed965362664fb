"""`make bench`: every mirror over the same brokers and data, in turns.

usage: python -m benchmarks.run [--only NAME ... | --all | --continue] [--name NAME] [--out DIR]
                                [--peers NAME ...] [--also TREE] [--smoke] [--list]

Without an option it runs the steps of a complete result. Each step is written as soon as it is
done: to the result of this name (the day's date), beside the steps that are there already. A result
of another machine or of other code is not added to.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer

from benchmarks import report
from benchmarks.figures import (
    Round,
    growth,
    lacking,
    missing,
    records_for,
    turns,
    undisturbed,
    void,
)
from benchmarks.load import LOADS, Load, create, delete, fill, warm
from benchmarks.logs import committed_records
from benchmarks.machine import code, head, machine, prepared
from benchmarks.measure import (
    PROBE_RATE_MAX,
    CatchUp,
    Processors,
    TreeWatch,
    latencies,
    missed,
    quantiles,
    warm_mirror,
    watch_catch_up,
)
from benchmarks.peers import ANOTHER, PEERS, Running, start
from benchmarks.steps import FORMAT, MAIN, ROUNDS, STEPS, TASKS, WINDOW_S, Step
from benchmarks.tls import TLS_LOADS, tls_clusters
from sparkmirror.testing.clusters import KafkaCluster, start_all

ALL_LOADS = {**LOADS, **TLS_LOADS}
IDLE_AFTER_S, IDLE_S = 2.0, 6.0
# How often a step may begin anew because its fastest copy was over too soon.
SIZINGS = 3
COPY_MAX_S = 600.0
# A smoke run shows that everything works; its figures mean nothing.
SMOKE_ROUNDS, SMOKE_SHARE, SMOKE_WINDOW_S, SMOKE_PROBE_S = 2, 0.05, 0.1, 5.0
_OURS = "sparkmirror"
BROKER = {
    "log.segment.bytes": "1073741824",
    "log.retention.hours": "-1",
    "log.cleaner.enable": "false",
    # What a mirror before this one wrote is not to be written to the disk during the next one.
    "log.segment.delete.delay.ms": "1000",
    "message.max.bytes": "10485880",
}
JVM = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


@contextmanager
def clusters() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Two one-node clusters with room to breathe."""
    a = KafkaCluster("A", config=BROKER, heap="1g", jvm=JVM)
    b = KafkaCluster("B", config=BROKER, heap="1g", jvm=JVM)
    start_all(a, b)
    try:
        yield a, b
    finally:
        a.stop()
        b.stop()


def say(text: str) -> None:
    """Progress for whoever waits."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", flush=True)


def rounds_of(smoke: bool) -> int:
    """How many rounds every mirror has in every step."""
    return SMOKE_ROUNDS if smoke else ROUNDS


class Bench:
    """Measures on one pair of clusters; a step's method gives what the result holds of it."""

    def __init__(
        self,
        a: KafkaCluster,
        b: KafkaCluster,
        work: Path,
        *,
        smoke: bool,
        also: Path | None = None,
    ) -> None:
        self.a, self.b, self.work, self.smoke, self.also = a, b, work, smoke, also
        # Where the mirrors connect, and what their files say more: see the steps over TLS.
        self.servers = a.bootstrap_servers, b.bootstrap_servers
        self.security: dict[str, str] = {}
        self.window_s = SMOKE_WINDOW_S if smoke else WINDOW_S
        self.number = rounds_of(smoke)
        self.settings: dict[str, str] = {}
        # "json": the probe's values are documents.
        self.form: tuple[str, ...] = ()

    def step(self, name: str, step: Step, peers: Sequence[str]) -> dict[str, Any]:
        """Measure step ``name`` with ``peers`` and say what was found, how and how long it took."""
        began, at = time.monotonic(), datetime.datetime.now().astimezone()
        self.settings = {}
        if step.copies:
            found = self.catch_up(name, ALL_LOADS[name], peers)
        else:
            found = self.latency(name, step, peers)
        return {
            **found,
            "began": at.isoformat(timespec="seconds"),
            "took_s": round(time.monotonic() - began),
            "settings": self.settings,
        }

    def rounds(
        self,
        name: str,
        peers: Sequence[str],
        measure: Callable[[str], Round],
        enough: Callable[[Round], bool] = lambda _: True,
    ) -> tuple[dict[str, list[Round]], list[dict[str, Any]], Round | None]:
        """Equally many rounds of everybody in turns, by peer; what was disturbed and left out.

        Ends with the first round that is not ``enough``, which comes last; None: all were.
        """
        rounds: dict[str, list[Round]] = {peer: [] for peer in peers}
        repeated: list[dict[str, Any]] = []
        for number, turn in enumerate(turns(peers, self.number), 1):
            for peer in turn:
                counts, left_out = undisturbed(partial(measure, peer))
                repeated += [{"peer": peer, "round": number, **one} for one in left_out]
                say(f"{name} {peer}, round {number}: {report.brief(counts)}")
                for one in left_out:
                    say(f"  left out, disturbed: {report.brief(one)}")
                rounds[peer].append(counts)
                if not enough(counts):
                    return rounds, repeated, counts
        return rounds, repeated, None

    # -- catch-up --------------------------------------------------------------------------

    def catch_up(self, name: str, load: Load, peers: Sequence[str]) -> dict[str, Any]:
        """Every peer copies the whole of one topic, in turns.

        First copies by all modes of sparkmirror, which do not count, say how much data the fastest
        one needs. Where a copy is over too soon all the same, the topic grows and the step begins
        anew, for everybody.
        """
        say(f"filling {load.topic}: {load.title}")
        first = int(load.records * (SMOKE_SHARE if self.smoke else 1))
        create(self.a.bootstrap_servers, load.topic, load.partitions)
        records = fill(self.a, load, first)
        warm(self.b, load, first)
        gigabytes = self._gigabytes(load)
        trials = self._trials(name, load, records, gigabytes, peers)
        fastest = max(trials, key=lambda peer: float(trials[peer]["rate"]))
        trial = trials[fastest]
        wanted = records_for(trial["rate"], self.window_s)
        too_short: list[dict[str, Any]] = []
        for last in (False,) * (SIZINGS - 1) + (True,):
            if wanted > records:
                self._room(gigabytes * wanted / records, gigabytes)
                records = fill(self.a, load, wanted - records, records)
                gigabytes = self._gigabytes(load)
                say(f"{name}: {records:,} records, {gigabytes:.2f} GB")
            measure = partial(self._copy, load, records, gigabytes)
            rounds, repeated, short = self.rounds(
                name, peers, measure, (lambda _: True) if last else self._long_enough
            )
            if short is None:
                break
            too_short.append({"records": records, "window_s": short["window_s"]})
            wanted = int(records * growth(short["window_s"], self.window_s))
            say(f"{name}: {short['window_s']:.1f} s of steady state is too short; more data")
        delete(self.a.bootstrap_servers, load.topic)
        return {
            "kind": "catch-up",
            "title": load.title,
            "records": records,
            "gigabytes": gigabytes,
            "trial": {"peer": fastest, "records": trial["records"], "rate": trial["rate"]},
            "too_short": too_short,
            "rounds": rounds,
            "repeated": repeated,
        }

    def _trials(
        self, name: str, load: Load, records: int, gigabytes: float, peers: Sequence[str]
    ) -> dict[str, Round]:
        """Copies that do not count, by all modes of sparkmirror."""
        trials = {}
        for peer in [one for one in peers if one.startswith(_OURS)] or peers[:1]:
            trials[peer] = self._copy(load, records, gigabytes, peer)
            say(f"{name} {peer}, to find the size: {report.brief(trials[peer])}")
        return trials

    def _long_enough(self, one: Round) -> bool:
        # Of a copy that came to no end more data would not be more.
        return growth(one["window_s"], self.window_s) == 1.0 or not one["complete"]

    def _room(self, gigabytes: float, there: float) -> None:
        """Ends the run if the disk cannot hold the source and two copies, one being deleted."""
        free = shutil.disk_usage(Path(self.a.log_path()).parent).free / 1e9
        if free < 3 * gigabytes - there:
            raise SystemExit(
                f"{3 * gigabytes - there:.0f} GB of disk are needed, {free:.0f} are free"
                f" beside {self.a.log_path()}."
            )

    def _gigabytes(self, load: Load) -> float:
        """Size of the topic's log at the source."""
        node = Path(self.a.log_path()).parent
        size = sum(
            file.stat().st_size
            for index in range(load.partitions)  # one load's name begins like another's
            for file in node.rglob(f"{load.topic}-{index}/*.log")
            if file.is_file()
        )
        return size / 1e9

    def _copy(self, load: Load, records: int, gigabytes: float, key: str) -> Round:
        remote = PEERS[key].remote.format(topic=load.topic)
        result = CatchUp(records, gigabytes)
        os.sync()  # nobody pays for what another one left in the page cache
        create(self.b.bootstrap_servers, remote, load.partitions)
        processors = Processors()
        with self._mirror(key, load.topic, latency=False) as (running, tree):
            watch_catch_up(
                self.b.bootstrap_servers,
                remote,
                load.partitions,
                result,
                tree,
                running.began,
                timeout_s=COPY_MAX_S,
            )
            shares = processors.shares(tree)
            result.stolen, result.elsewhere = shares["stolen"], shares["elsewhere"]
            if PEERS[key].exact:
                # End offsets count the markers of transactions, too.
                result.surplus = self._stored(remote, records) - records
                result.complete = result.surplus >= 0
            self._check(running, key)
        self._clean(remote)
        return result.document()

    def _stored(self, remote: str, wanted: int) -> int:
        """Committed records at the target; waits a while for ``wanted`` of them."""
        deadline = time.monotonic() + 30
        while True:
            found = committed_records(Path(self.b.log_path()).parent, remote)
            if found >= wanted or time.monotonic() > deadline:
                return found
            time.sleep(0.5)

    @contextmanager
    def _mirror(
        self, key: str, topic: str, *, latency: bool, extra: dict[str, str] | None = None
    ) -> Iterator[tuple[Running, TreeWatch]]:
        running = start(
            key,
            *self.servers,
            topic,
            self.work,
            tasks=TASKS,
            latency=latency,
            extra={**self.security, **(extra or {})},
            tree=self.also,
        )
        self.settings[key] = running.settings
        if self.also and key == ANOTHER:
            self.settings[key] += f"\n\n# of commit {head(self.also)}"
        tree = TreeWatch(running.process.pid)
        try:
            yield running, tree
        finally:
            tree.close()
            running.stop()

    def _check(self, running: Running, key: str) -> None:
        if running.process.poll() is not None:
            tail = running.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{key} ended by itself with {running.process.returncode}:\n{tail}")

    def _clean(self, *remotes: str) -> None:
        """Leave the target as it was: no data, and no positions that a later run would find."""
        names = list(
            Consumer({"bootstrap.servers": self.b.bootstrap_servers, "group.id": "c"})
            .list_topics(timeout=10)
            .topics
        )
        internal = [name for name in names if name.startswith("mm2-")]
        delete(self.b.bootstrap_servers, *remotes, *internal)
        at_source = [f"mm2-offset-syncs.{alias}.internal" for alias in "AB"]
        delete(self.a.bootstrap_servers, *at_source)
        time.sleep(2.0)

    # -- latency ---------------------------------------------------------------------------

    def latency(self, name: str, step: Step, peers: Sequence[str]) -> dict[str, Any]:
        """Probe records through every mirror, in turns."""
        seconds = SMOKE_PROBE_S if self.smoke else step.seconds
        measure = partial(self._latency_one, name, step, seconds)
        rounds, repeated, _ = self.rounds(name, peers, measure)
        return {
            "kind": "latency",
            "rate": step.rate,
            "seconds": seconds,
            "rounds": rounds,
            "repeated": repeated,
        }

    def _latency_one(self, name: str, step: Step, seconds: float, key: str) -> Round:
        topic, partitions = f"probe-{name}-{key}", 12
        remote = PEERS[key].remote.format(topic=topic)
        extra = {"sparkmirror.epoch.seconds": str(step.epoch_s)} if step.epoch_s else {}
        create(self.a.bootstrap_servers, topic, partitions)
        create(self.b.bootstrap_servers, remote, partitions)
        with self._mirror(key, topic, latency=True, extra=extra) as (running, tree):
            self._warm(topic, remote, partitions)
            processors = Processors(tree)
            found = self._probe(
                topic,
                remote,
                partitions,
                rate=step.rate,
                seconds=seconds,
                writer=self._writer(topic, step.rate, seconds),
            )
            one: Round = {place: quantiles(values) for place, values in found.items()}
            # A backlog of the producers ends later than the readers.
            one["wrong"] = "" if void(one) else missed(one["source"], one["target"])
            one |= processors.shares(tree)
            one["idle_percent"] = self._idle(tree)
            self._check(running, key)
        if step.epoch_s:
            one["steady"] = quantiles([v for v in found["target"] if v < 50])
        delete(self.a.bootstrap_servers, topic)
        self._clean(remote)
        return one

    def _probe(
        self, topic: str, remote: str, partitions: int, **more: Any
    ) -> dict[str, list[float]]:
        servers = self.a.bootstrap_servers, self.b.bootstrap_servers
        whole = {"work": self.work, "form": self.form, **more}
        return latencies(*servers, topic, remote, partitions, **whole)

    def _writer(self, topic: str, rate: int, seconds: float) -> list[str] | None:
        """Kafka's own producer for high rates: it puts all partitions into one request.

        The probe sends a request per record, and at 10,000 a second the source itself queues.
        """
        if rate <= PROBE_RATE_MAX:
            return None
        return self.a.tool_command(
            "org.apache.kafka.tools.ProducerPerformance",
            "--topic",
            topic,
            "--num-records",
            str(int(rate * seconds)),
            "--record-size",
            "100",
            "--throughput",
            str(rate),
            "--producer-props",
            f"bootstrap.servers={self.a.bootstrap_servers}",
            "linger.ms=0",
            "batch.size=0",
            "acks=1",
        )

    def _warm(self, topic: str, remote: str, partitions: int) -> None:
        servers = self.a.bootstrap_servers, self.b.bootstrap_servers
        warm_mirror(*servers, topic, remote, partitions, form=self.form)

    def _idle(self, tree: TreeWatch) -> float:
        """CPU of the whole tree while nothing is to do, in percent of a core."""
        time.sleep(IDLE_AFTER_S)
        before, began = tree.cpu_s(), time.monotonic()
        time.sleep(IDLE_S)
        return 100 * (tree.cpu_s() - before) / (time.monotonic() - began)


class Results:
    """The result that steps are added to, and its files.

    ``load_before``: what other work the machine had before anything of ours ran. Raises SystemExit
    where the files of that name are of another machine, code or size.
    """

    form: int | str = FORMAT
    order: Sequence[str] = tuple(STEPS)

    def __init__(self, out: Path, name: str, *, smoke: bool, load_before: float) -> None:
        self.out = out
        self._before = {"commit": head(), "load_before": round(load_before, 2)}
        same = {
            "format": self.form,
            "name": name,
            "smoke": smoke,
            "rounds": self.rounds(smoke),
            "tasks": TASKS,
            "code": code(),
            "machine": machine(),
        }
        began = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        self.document: dict[str, Any] = {**same, "began": began, "steps": {}}
        file = out / f"{name}.json"
        if file.exists():
            there = json.loads(file.read_text(encoding="utf-8"))
            if other := [key for key, value in same.items() if there.get(key) != value]:
                raise SystemExit(
                    f"{file} differs in {', '.join(other)}: "
                    + "; ".join(f"{there.get(key)} there, {same[key]} here" for key in other)
                    + ". Choose another --name."
                )
            self.document = there

    def add(self, name: str, step: dict[str, Any]) -> None:
        """Write the result with ``step``; a failure later on must not lose what was measured."""
        step = {**step, **self._before}
        steps = {**self.document["steps"], name: step}
        self.document["steps"] = {one: steps[one] for one in self.order if one in steps}
        paths = self.write()
        say(f"{name} took {step['took_s'] / 60:.1f} min: {', '.join(map(str, paths))}")

    def rounds(self, smoke: bool) -> int:
        """How many rounds everybody has in every step."""
        return rounds_of(smoke)

    def write(self) -> list[Path]:
        """Write the files; their paths."""
        return report.write(self.document, self.out)


def run(names: Sequence[str], results: Results, work: Path, options: argparse.Namespace) -> None:
    """Measure the steps ``names``: those over TLS on clusters of their own."""
    plain = [name for name in names if name not in TLS_LOADS]
    secured = [name for name in names if name in TLS_LOADS]

    def all_of(bench: Bench, some: Sequence[str]) -> None:
        for name in some:
            peers = [peer for peer in STEPS[name].peers if peer in options.peers]
            if options.also and _OURS in peers:
                peers.insert(peers.index(_OURS) + 1, ANOTHER)
            if peers:
                results.add(name, bench.step(name, STEPS[name], peers))

    if plain:
        with clusters() as (a, b):
            all_of(Bench(a, b, work, smoke=options.smoke, also=options.also), plain)
    if secured:
        with tls_clusters(work / "tls", BROKER, JVM) as pair:
            bench = Bench(*pair.clusters, work, smoke=options.smoke, also=options.also)
            bench.servers, bench.security = pair.servers, pair.properties
            all_of(bench, secured)


def listed() -> str:
    """The steps and how long they take."""
    lines = [
        f"{name:20} {step.minutes:3} min  {'complete' if step.main else 'further':8}  "
        + ", ".join(step.peers)
        for name, step in STEPS.items()
    ]
    whole = sum(STEPS[name].minutes for name in MAIN)
    return "\n".join([*lines, f"a complete result: {whole} min on two cores"])


def main() -> int:
    """Run what is asked for and write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", nargs="+", choices=list(STEPS), help="these steps")
    which.add_argument("--all", action="store_true", help="the further steps, too")
    which.add_argument(
        "--continue",
        action="store_true",
        dest="rest",
        help="what the result of this name lacks to be complete",
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    parser.add_argument("--name", default=datetime.date.today().isoformat(), help="of the result")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument(
        "--also", type=Path, help="a source tree to take turns with, as in `git worktree`"
    )
    parser.add_argument("--smoke", action="store_true", help="does it work? With little data")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.list:
        print(listed())
        return 0
    if options.also and not (options.also / "src" / "sparkmirror").is_dir():
        parser.error(f"--also {options.also}: no source tree of sparkmirror, it has no src")
    load_before = os.getloadavg()[0]
    prepared(say)
    results = Results(options.out, options.name, smoke=options.smoke, load_before=load_before)
    names = list(options.only or (STEPS if options.all else MAIN))
    if options.rest:
        names = lacking(results.document)
    say(f"{', '.join(names)}: about {sum(STEPS[name].minutes for name in names)} min on two cores")
    # What was started must end with us, also when somebody ends us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp(prefix="sparkmirror-bench-"))
    try:
        run(names, results, work, options)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        report.draw(results.document, options.out / f"{options.name}.png")
    if lacks := missing(results.document):
        say("not a complete result; it lacks " + "; ".join(lacks))
    else:
        say("a complete result: `python -m benchmarks.quote` writes its figures to the pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
