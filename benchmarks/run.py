"""`make bench`: every mirror over the same brokers and data, one after another.

usage: python -m benchmarks.run [--only NAME ...] [--peers NAME ...] [--scale X] [--out DIR]
"""

from __future__ import annotations

import argparse
import datetime
import math
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
from typing import Any, TypeVar

from confluent_kafka import Consumer

from benchmarks import report
from benchmarks.load import LOADS, Load, create, delete, fill, warm
from benchmarks.logs import committed_records
from benchmarks.measure import (
    CatchUp,
    Latency,
    Processors,
    TreeWatch,
    latencies,
    quantiles,
    watch_catch_up,
)
from benchmarks.peers import PEERS, Running, start
from benchmarks.tls import TLS_LOADS, TLS_PEERS, tls_clusters
from sparkmirror.demo.clusters import KafkaCluster, start_all

TASKS = 4
LATENCIES = {"latency-100": (100, 40.0), "latency-10k": (10_000, 60.0)}
EPOCHS = "latency-100-epochs"
# Where exactly-once is measured beside at-least-once.
EXACT_IN = frozenset({"100b", "latency-100"})
IDLE_S = 12.0
PROBE_RATE_MAX = 1_000
# What is compared under full load is measured in rounds, see `_best` and `_soonest`.
ROUNDS = {"100b": 3, "1k-lz4": 2, "100b-16k": 2, "100b-single": 2, "latency-10k": 2}
# What the host took meanwhile is not a mirror's fault: such a measurement is made again.
STOLEN_MAX, STOLEN_TRIES = 0.05, 3
BY_KEY = ("mm1", "sparkmirror-keys")
"""Who looks at keys: only they copy the load that has some."""
BROKER = {
    "log.segment.bytes": "1073741824",
    "log.retention.hours": "-1",
    "log.cleaner.enable": "false",
    # What a mirror before this one wrote is not to be written to the disk during the next one.
    "log.segment.delete.delay.ms": "1000",
    "message.max.bytes": "10485880",
}
JVM = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
TLS = "tls"
Measured = TypeVar("Measured", CatchUp, Latency)


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


class Bench:
    """One whole run; ``results`` is what the report is made of."""

    def __init__(
        self, a: KafkaCluster, b: KafkaCluster, work: Path, scale: float, peers: list[str]
    ) -> None:
        self.a, self.b, self.work, self.scale, self.peers = a, b, work, scale, peers
        # Where the mirrors connect, and what their files say more: see the step `tls`.
        self.servers = a.bootstrap_servers, b.bootstrap_servers
        self.security: dict[str, str] = {}
        self.results: dict[str, Any] = {
            "date": datetime.date.today().isoformat(),
            "cores": os.cpu_count(),
            "tasks": TASKS,
            "scale": scale,
            "catch_up": {},
            "latency": {},
            "idle": {},
        }

    def write_after_each(self, steps: Sequence[Callable[[], None]], out: Path) -> None:
        """Run ``steps``; a failure later on must not lose what was measured."""
        paths: list[Path] = []
        for step in steps:
            step()
            paths = report.write(self.results, out)
        say("written: " + ", ".join(str(path) for path in paths))

    # -- catch-up --------------------------------------------------------------------------

    def catch_up(self, name: str, load: Load) -> None:
        """Every peer copies the whole of one topic, one peer after another, in rounds."""
        say(f"filling {load.topic}: {load.title}")
        records = fill(self.a, load, self.scale)
        warm(self.b, load, self.scale)
        gigabytes = self._gigabytes(load)
        rows = self.results["catch_up"][name] = {
            "title": load.title,
            "records": records,
            "gigabytes": gigabytes,
        }
        rounds: dict[str, list[dict[str, Any]]] = {}
        for number in range(ROUNDS.get(name, 1)):
            for key in self.peers:
                if key == "mm2-default" or not _takes_part(key, name):
                    continue
                if (load.keys and key not in BY_KEY) or (number and key == "mm2-exact"):
                    continue
                copy = partial(self._catch_up_one, key, load, records, gigabytes)
                row = undisturbed(copy).document()
                say(
                    f"{name} {key}: {row['rate']:,.0f} records/s, "
                    f"{row['cpu_s_per_gb']:.1f} CPU-s/GB, first record after "
                    f"{row['start_s']:.1f} s, peak {row['peak_mb']:.0f} MB, "
                    f"complete {row['complete']}, surplus {row['surplus']}"
                )
                rounds.setdefault(key, []).append(row)
                rows[key] = _best(rounds[key])
        delete(self.a.bootstrap_servers, load.topic)

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

    def _catch_up_one(self, key: str, load: Load, records: int, gigabytes: float) -> CatchUp:
        remote = PEERS[key].remote.format(topic=load.topic)
        result = CatchUp(records, gigabytes)
        processors = Processors()
        os.sync()  # nobody pays for what another one left in the page cache
        create(self.b.bootstrap_servers, remote, load.partitions)
        with self._mirror(key, load.topic, latency=False) as (running, tree, began):
            watch_catch_up(
                self.b.bootstrap_servers,
                remote,
                load.partitions,
                result,
                tree,
                began,
                timeout_s=300,
            )
            if PEERS[key].exact:
                # End offsets count the markers of transactions, too.
                result.surplus = self._stored(remote, records) - records
                result.complete = result.surplus >= 0
            self._check(running, key)
        result.stolen = processors.stolen()
        self._clean(remote)
        return result

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
    ) -> Iterator[tuple[Running, TreeWatch, float]]:
        began = time.monotonic()
        running = start(
            key,
            *self.servers,
            topic,
            self.work,
            tasks=TASKS,
            latency=latency,
            extra={**self.security, **(extra or {})},
        )
        tree = TreeWatch(running.process.pid)
        try:
            yield running, tree, began
        finally:
            tree.close()
            running.stop()

    def _check(self, running: Running, key: str) -> None:
        if running.process.poll() is not None:
            tail = running.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{key} ended by itself with {running.process.returncode}:\n{tail}")

    def _clean(self, remote: str) -> None:
        """Leave the target as it was: no data, and no positions that a later run would find."""
        names = list(
            Consumer({"bootstrap.servers": self.b.bootstrap_servers, "group.id": "c"})
            .list_topics(timeout=10)
            .topics
        )
        internal = [name for name in names if name.startswith("mm2-")]
        delete(self.b.bootstrap_servers, remote, *internal)
        at_source = [f"mm2-offset-syncs.{alias}.internal" for alias in "AB"]
        delete(self.a.bootstrap_servers, *at_source)
        time.sleep(2.0)

    # -- latency ---------------------------------------------------------------------------

    def latency(self, name: str, rate: int, seconds: float, extra: dict[str, str]) -> None:
        """Probe records through every mirror; those by key at the low rate only."""
        rows = self.results["latency"].setdefault(name, {"rate": rate, "seconds": seconds})
        rounds: dict[str, list[dict[str, Any]]] = {}
        for _ in range(ROUNDS.get(name, 1)):
            for key in self.peers:
                if (key != "sparkmirror" and extra) or not _takes_part(key, name):
                    continue
                if key in ("mm2-default", *BY_KEY) and rate > PROBE_RATE_MAX:
                    continue
                probe = partial(self._latency_one, name, key, rate, seconds, extra)
                found = undisturbed(probe)
                row = {**found.places, "stolen": found.stolen}
                say(f"{name} {key}: {row}")
                rounds.setdefault(key, []).append(row)
                rows[key] = _soonest(rounds[key])

    def _latency_one(
        self, name: str, key: str, rate: int, seconds: float, extra: dict[str, str]
    ) -> Latency:
        topic, partitions = f"probe-{name}-{key}", 12
        remote = PEERS[key].remote.format(topic=topic)
        create(self.a.bootstrap_servers, topic, partitions)
        create(self.b.bootstrap_servers, remote, partitions)
        with self._mirror(key, topic, latency=True, extra=extra) as (running, tree, _):
            self._warm(topic, remote, partitions)
            processors = Processors()
            writer = self._writer(topic, rate, seconds)
            found = self._probe(topic, remote, partitions, rate, seconds, writer)
            stolen = processors.stolen()
            if name == "latency-100":
                self._idle(key, tree)
            self._check(running, key)
        places = {place: quantiles(values) for place, values in found.items()}
        if extra:
            places["steady"] = quantiles([v for v in found["target"] if v < 50])
        delete(self.a.bootstrap_servers, topic)
        self._clean(remote)
        return Latency(places, stolen)

    def _probe(
        self,
        topic: str,
        remote: str,
        partitions: int,
        rate: int,
        seconds: float,
        writer: list[str] | None = None,
    ) -> dict[str, list[float]]:
        return latencies(
            self.a.bootstrap_servers,
            self.b.bootstrap_servers,
            topic,
            remote,
            partitions,
            rate=rate,
            seconds=seconds,
            work=self.work,
            writer=writer,
        )

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
        """Wait until a first record arrives, then let the mirror warm up."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            found = self._probe(topic, remote, partitions, 1_000, 12)
            if len(found["target"]) >= 10_000:
                return
        raise RuntimeError(f"nothing arrives in {remote}")

    def _idle(self, key: str, tree: TreeWatch) -> None:
        """CPU of the whole tree while nothing is to do, in percent of a core per task."""
        time.sleep(3.0)
        before, began = tree.cpu_s(), time.monotonic()
        time.sleep(IDLE_S)
        percent = 100 * (tree.cpu_s() - before) / (time.monotonic() - began)
        self.results["idle"][key] = {"percent_of_core": percent, "per_task": percent / TASKS}
        say(f"idle {key}: {percent:.1f} % of a core, {percent / TASKS:.1f} % per task")


def run_plain(names: list[str], work: Path, options: argparse.Namespace) -> None:
    """The steps without TLS, all on one pair of clusters."""
    with clusters() as (a, b):
        bench = Bench(a, b, work, options.scale, options.peers)
        steps: list[Callable[[], None]] = []
        for name in names:
            if name in LOADS:
                steps.append(partial(bench.catch_up, name, LOADS[name]))
            elif name in LATENCIES:
                rate, seconds = LATENCIES[name]
                seconds = max(8.0, seconds * min(1.0, options.scale * 2))
                steps.append(partial(bench.latency, name, rate, seconds, {}))
            else:
                short = {"sparkmirror.epoch.seconds": "15"}
                steps.append(partial(bench.latency, EPOCHS, 100, 35.0, short))
        bench.write_after_each(steps, options.out)


def run_tls(work: Path, options: argparse.Namespace) -> None:
    """The step `tls`, on clusters of its own and with a report of its own."""
    peers = [key for key in options.peers if key in TLS_PEERS]
    with tls_clusters(work / TLS, BROKER, JVM) as pair:
        bench = Bench(*pair.clusters, work, options.scale, peers)
        bench.servers, bench.security = pair.servers, pair.properties
        bench.results["name"] = f"{TLS}-{bench.results['date']}"
        steps = [partial(bench.catch_up, name, load) for name, load in TLS_LOADS.items()]
        bench.write_after_each(steps, options.out)


def _best(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fastest of several rounds, with the other ones' figures beside it.

    A broker's JVM goes on compiling through its first copies, which whoever comes first pays for.
    A round that did not copy everything exactly once is never hidden by a better one.
    """
    wrong = [row for row in rounds if not row["complete"] or row["surplus"]]
    return _beside(wrong[0] if wrong else max(rounds, key=lambda row: row["rate"]), rounds)


def _soonest(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The round with the lowest median at the target, with the other ones' figures beside it.

    Both clusters' brokers and the writer share the processors with the mirror, and take less of
    them the longer they run: the first round pays for that.
    """
    best = min(rounds, key=lambda row: row["target"].get("p50", math.inf))
    return _beside(best, rounds)


def _beside(best: dict[str, Any], rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    others = [row for row in rounds if row is not best]
    return {**best, "other_rounds": others} if others else best


def undisturbed(measure: Callable[[], Measured]) -> Measured:
    """What ``measure`` gives, again while the host took too much of the processors meanwhile."""
    for _ in range(STOLEN_TRIES - 1):
        found = measure()
        if found.stolen <= STOLEN_MAX:
            return found
        say(f"measured again: the host took {found.stolen:.0%} of the processors")
    return measure()


def _takes_part(key: str, name: str) -> bool:
    """Whether mirror ``key`` is measured in step ``name``."""
    return not PEERS[key].exact or name in EXACT_IN


def main() -> int:
    """Run what is asked for and write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    names = [*LOADS, *LATENCIES, EPOCHS, TLS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the records")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    # What was started must end with us, also when somebody ends us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp(prefix="sparkmirror-bench-"))
    try:
        if plain := [name for name in options.only if name != TLS]:
            run_plain(plain, work, options)
        if TLS in options.only:
            run_tls(work, options)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
