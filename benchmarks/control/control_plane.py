"""The control plane of a large cluster: topics, configs, ACLs and checkpoints, after each mirror.

usage: python -m benchmarks.control.control_plane [--topics N] [--groups N] [--turns N] [--latency]
                                                  [--out DIR]

Each mirror starts twice, and that in two turns: the second one begins with the other mirror, since
whoever comes first meets brokers that have compiled nothing yet. First on an empty target: the
seconds from the start of its process until all remote topics, their ACLs and all checkpoints are
there. MirrorMaker 2 asks for all topics in one request, and a controller takes 10,000 records at
once (a topic, a partition and a config are one each): with more it never gets further, which is
told. Then on a target that has the topics: the seconds until ACLs and checkpoints are there, and,
one after the other, those from a change on the source until the target has followed: of every
topic's configuration, of every topic's ACLs, of every group's offsets. Then full rounds: twenty new
topics, another value in all configurations, an ACL more for every topic and every group somewhere
else, all at once; from the moment at which the source shows all of these changes until the target
has followed in everything. Both mirrors look every second, so that hardly more than their work is
measured. Last, what a round takes when nothing has changed: of topics, configurations and ACLs each
mirror's log says so; of checkpoints it is the time from the first group's listing (the records'
timestamps) to the last record's arrival in the full rounds, since MirrorMaker 2 logs nothing of it.
Its log counts less than ours: the round of configurations does not wait for the changes that it
sends, and looks at the source only.

``--latency`` instead compares sparkmirror's latency on one topic beside all the others, with rounds
every few seconds and without any, two turns each.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.control.failover import Checkpoints
from benchmarks.control.large_clusters import (
    CHECKPOINTS,
    NEW_TOPICS,
    SECOND,
    World,
    offset_in,
    value_in,
    wait_until,
    world,
)
from benchmarks.figures import turns
from benchmarks.measure import TreeWatch, latencies, missed, quantiles
from benchmarks.peers import MM2_JARS, Running
from benchmarks.run import say
from sparkmirror.java import find_java
from sparkmirror.testing.maven import resolve
from sparkmirror.wire.cluster.views import NewTopic

# The controller's words for more than 10,000 records in one request.
TOO_LARGE = b"excessively large batch operation"
ROUNDS_S = 1
LATENCY_ROUNDS_S = 5
FULL_ROUNDS = 3
STEADY_ROUNDS = 5
QUIET_S = 15.0
PAUSE_MS = 500
ROUND_NAMES = {
    "sparkmirror": ("topics", "configs", "acls"),
    "mm2": ("refreshing topics", "syncing topic configs", "syncing topic ACLs"),
}
LIMIT_S = 600.0
STARTS = ("empty", "made")
TURNS = 2
PROBE = "probe"
PROBE_PARTITIONS = 12
_FACTORS = (
    "replication.factor",
    "offset-syncs.topic.replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset.storage.replication.factor",
    "config.storage.replication.factor",
    "status.storage.replication.factor",
    "B.offset.storage.replication.factor",
)
# What each log says of a round, with its milliseconds.
_ROUNDS = {
    "sparkmirror": (
        r"(?P<name>configs|acls|topics)-A->B: a round took (?P<ms>\d+) ms",
        r"(?P<name>checkpoints) emitted.*the round took (?P<ms>\d+) ms",
    ),
    "mm2": (r"(?P<name>[a-zA-Z ]+) took (?P<ms>\d+) ms",),
}


def settings(one: World, *, rounds: bool = True, every_s: int = ROUNDS_S) -> str:
    """The file of both mirrors; every job each ``every_s`` seconds."""
    every = {
        "refresh.topics": every_s,
        "refresh.groups": every_s,
        "sync.topic.configs": every_s,
        "sync.topic.acls": every_s,
        "emit.checkpoints": every_s,
    }
    lines = [
        "clusters=A,B",
        f"A.bootstrap.servers={one.a.bootstrap_servers}",
        f"B.bootstrap.servers={one.b.bootstrap_servers}",
        "A->B.enabled=true",
        "B->A.enabled=false",
        f"A->B.topics=cp-.*,{PROBE}",
        "groups=group-.*",
        "tasks.max=4",
        "emit.heartbeats.enabled=false",
        "B.offset.flush.interval.ms=1000",
        *(f"{name}=1" for name in _FACTORS),
        *(f"{name}.interval.seconds={seconds}" for name, seconds in every.items()),
        *(f"{name}.enabled={'true' if rounds else 'false'}" for name in every),
    ]
    return "\n".join(lines) + "\n"


def start(key: str, file: Path, work: Path) -> tuple[Running, Path]:
    """Start a mirror; with the file that its rounds are logged to."""
    output = work / f"{file.stem}-{key}.log"
    if key == "mm2":
        jars = resolve(*MM2_JARS, "org.slf4j:slf4j-simple:1.7.36")
        command = [
            str(find_java().java),
            *("-Xms1g", "-Xmx2g", "-XX:+UseG1GC", "-cp", os.pathsep.join(map(str, jars))),
            *("org.apache.kafka.connect.mirror.MirrorMaker", str(file)),
        ]
        rounds = output
    else:
        rounds = work / f"{file.stem}-rounds.log"
        command = [sys.executable, "-m", "sparkmirror.cli.main", "run", str(file),
                   "--work-dir", str(work / file.stem), "--log-file", str(rounds)]  # fmt: skip
    with output.open("wb") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True, cwd=work,
        )  # fmt: skip
    return Running(process, output), rounds


def rounds_in(key: str, log: Path) -> dict[str, list[int]]:
    """Milliseconds of each kind of round, in order."""
    found: dict[str, list[int]] = {}
    for line in log.read_text(errors="replace").splitlines():
        for pattern in _ROUNDS[key]:
            match = re.search(pattern, line)
            if match:
                found.setdefault(match["name"].strip(), []).append(int(match["ms"]))
    return found


class TooLarge(Exception):
    """The mirror asks for more at once than the controller takes; it will never get further."""


class Refusals:
    """Whether a mirror's log says that the target's controller refused a request as too large."""

    def __init__(self, log: Path) -> None:
        self._stream = log.open("rb")
        self._end = b""

    def look(self) -> bool:
        """Read what is new, a few megabytes at most."""
        new = self._end + self._stream.read(8 << 20)
        self._end = new[-len(TOO_LARGE) :]
        return TOO_LARGE in new

    def close(self) -> None:
        """End reading."""
        self._stream.close()


class Measurement:
    """A mirror that was started for it, and what was found so far: ``result``, in seconds.

    What is not there ``limit_s`` after the start is told as such, and so is what a mirror cannot
    make at all: it is not waited for (`TooLarge`).
    """

    def __init__(self, key: str, one: World, file: Path, work: Path, limit_s: float) -> None:
        self.key, self.one, self.limit_s = key, one, limit_s
        self.result: dict[str, Any] = {}
        self.began = time.monotonic()
        self.running, self.log = start(key, file, work)
        self.tree = TreeWatch(self.running.process.pid)
        self.checkpoints, self.refusals = Checkpoints(one.b), Refusals(self.running.log)

    def until(self, name: str, wanted: int, look: Callable[[], int], since: float) -> None:
        """Wait until ``look`` finds as many as are wanted."""
        while (there := look()) < wanted:
            if self.refusals.look():
                self.result[name] = f"{there} of {wanted}: the controller refuses the one request"
                say(f"{self.key} {name}: {self.result[name]}")
                raise TooLarge
            late = time.monotonic() - self.began > self.limit_s
            if late or self.running.process.poll() is not None:
                self.result[name] = f"{there} of {wanted} after {time.monotonic() - since:.0f} s"
                return
            time.sleep(0.2)
        self.result[name] = round(time.monotonic() - since, 1)
        say(f"{self.key} {name}: {self.result[name]} s")

    def emitted(self) -> int:
        """How many checkpoints there are."""
        self.checkpoints.look()
        return len(self.checkpoints.newest)

    def moved(self, offset: int = 2) -> int:
        """How many of them are at ``offset`` of the source."""
        self.checkpoints.look()
        return sum(found.upstream == offset for found in self.checkpoints.newest.values())

    def change(
        self, name: str, act: Callable[[], None], wanted: int, look: Callable[[], int]
    ) -> None:
        """From one change to the target's following."""
        since = time.monotonic()
        act()
        self.result[f"{name}, changing itself"] = round(time.monotonic() - since, 1)
        self.until(name, wanted, look, since)

    def full_round(self, number: int) -> None:
        """From a change of everything to the target's following in everything."""
        one, value, offset = self.one, value_in(number), offset_in(number)
        topics = one.topics_there() + NEW_TOPICS
        acls = one.acls_there() + len(one.names)
        one.change_all(number)
        since, name = time.monotonic(), f"full round {number + 1}"
        self.until(f"{name}: checkpoints", one.checkpoints, partial(self.moved, offset), since)
        newest = self.checkpoints.newest
        times_ms = [self.checkpoints.times_ms[k] for k in newest if newest[k].upstream == offset]
        if times_ms:
            self.result.setdefault("checkpoint rounds_ms", []).append(longest_ms(times_ms))
        self.until(f"{name}: ACLs", acls, one.acls_there, since)
        there = partial(one.configs_there, value)
        self.until(f"{name}: configs", len(one.names), there, since)
        self.until(name, topics, one.topics_there, since)

    def close(self) -> None:
        """Stop the mirror; then its log is complete."""
        self.refusals.close()
        self.checkpoints.close()
        self.tree.close()
        self.running.stop()
        self.result["rounds_ms"] = rounds_in(self.key, self.log)
        summarise(self.key, self.result)


def longest_ms(times_ms: list[tuple[int, int]]) -> int:
    """The time of the largest round, from its first stamp to its last arrival.

    ``times_ms``: stamp and arrival of each checkpoint. Between two rounds there is a pause.
    """
    rounds: list[list[tuple[int, int]]] = [[]]
    for one in sorted(times_ms):
        if rounds[-1] and one[0] - rounds[-1][-1][0] > PAUSE_MS:
            rounds.append([])
        rounds[-1].append(one)
    largest = max(rounds, key=len)
    return max(arrival for _, arrival in largest) - largest[0][0]


def measure(
    key: str, one: World, work: Path, limit_s: float, *, made: bool = False
) -> dict[str, Any]:
    """Seconds from the start to each goal; then, with topics that are ``made`` before it, from a
    change to the target's following.
    """
    file = work / f"{key}{'-made' if made else ''}.properties"
    file.write_text(settings(one))
    count = len(one.names)
    one.target.create_topics([NewTopic(CHECKPOINTS, 1, 1, {})])
    if made:
        one.make_remote_topics()
    run = Measurement(key, one, file, work, limit_s)
    try:
        if not made:
            run.until("topics", count, one.topics_there, run.began)
        run.until("ACLs", count, one.acls_there, run.began)
        run.until("checkpoints", one.checkpoints, run.emitted, run.began)
        run.result["cpu_s"] = round(run.tree.cpu_s(), 1)
        if made:
            run.change("changed configs", one.change_configs, count, one.configs_there)
            run.change("more ACLs", partial(one.allow, SECOND), 2 * count, one.acls_there)
            run.change("moved groups", partial(one.move_groups, 2), one.checkpoints, run.moved)
            for number in range(FULL_ROUNDS):
                run.full_round(number)
            time.sleep(QUIET_S)  # rounds without any change
            run.result["cpu_s, all"] = round(run.tree.cpu_s(), 1)
    except TooLarge:
        pass  # which the result says
    finally:
        run.close()
    return run.result


def summarise(key: str, result: dict[str, Any]) -> None:
    """Medians: of the full rounds' seconds, and of a round's work in ms by kind, with its sum.

    Of the logged rounds the last ones count, in which nothing had changed; of checkpoints those
    of the full rounds.
    """
    fulls = [result.get(f"full round {number + 1}") for number in range(FULL_ROUNDS)]
    if all(isinstance(one, float) for one in fulls):
        result["full round, median"] = median(fulls)
    work = {
        kind: median(result["rounds_ms"][kind][-STEADY_ROUNDS:])
        for kind in ROUND_NAMES[key]
        if result["rounds_ms"].get(kind)
    }
    if result.get("checkpoint rounds_ms"):
        work["checkpoints"] = median(result["checkpoint rounds_ms"])
    result["work_ms"] = {**work, "all": sum(work.values())}


def measure_latency(one: World, work: Path) -> dict[str, Any]:
    """Quantiles of latency in ms on the probe's topic, without and with rounds.

    ``wrong``: see `missed`.
    """
    one.source.create_topics([NewTopic(PROBE, PROBE_PARTITIONS, 1, {})])
    found: dict[str, Any] = {}
    # In turns: brokers go on compiling for minutes, and whoever is measured first pays for it.
    for turn, rounds in product((1, 2), (False, True)):
        name = f"{'with' if rounds else 'without'} rounds, turn {turn}"
        file = work / f"latency-{rounds}.properties"
        file.write_text(settings(one, rounds=rounds, every_s=LATENCY_ROUNDS_S))
        running, log = start("sparkmirror", file, work)
        try:
            args = (one.a.bootstrap_servers, one.b.bootstrap_servers, PROBE, f"A.{PROBE}")
            # The probe's readers want the topic to be there.
            wait_until(partial(_made_whole, one, f"A.{PROBE}"), "the probe's topic", LIMIT_S)
            deadline = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline:
                warm = latencies(*args, PROBE_PARTITIONS, rate=100, seconds=5, work=work)
                if len(warm["target"]) >= 490:
                    break
            values = latencies(*args, PROBE_PARTITIONS, rate=100, seconds=40, work=work)
            found[name] = quantiles(values["target"])
            wrong = missed(quantiles(values["source"]), found[name])
        finally:
            running.stop()
        found[name] |= {"wrong": wrong, "rounds_ms": rounds_in("sparkmirror", log)}
        say(f"{name}: {found[name]}")
    return found


def _made_whole(one: World, topic: str) -> bool:
    view = one.target.topics([topic]).get(topic)
    return view is not None and view.partitions == PROBE_PARTITIONS and not view.leaderless


def order(
    starts: Sequence[str], peers: Sequence[str], number: int
) -> Iterator[tuple[str, str, bool]]:
    """What is measured one after the other: the figure's name, the mirror, whether topics are made
    before. ``number``: of turns.
    """
    for begin in starts:
        for turn, keys in enumerate(turns(peers, number), 1):
            for key in keys:
                made = begin == "made"
                yield f"{key}{', topics made before' if made else ''}, turn {turn}", key, made


def keep(path: Path, one: World, found: dict[str, Any]) -> None:
    """Add figures to the file, beside those of other mirrors with as many topics and groups."""
    size = {"topics": len(one.names), "groups": len(one.groups)}
    known = json.loads(path.read_text()) if path.exists() else {}
    if size.items() <= known.items():
        size = known
    path.write_text(json.dumps({**size, **found}, indent=1) + "\n")
    say(f"{found}")


def main() -> int:
    """Measure what is asked for; the figures go to a JSON file."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.control.control_plane", description=__doc__
    )
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--peers", nargs="+", choices=list(_ROUNDS), default=list(_ROUNDS))
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS,
                        help="on an empty target, on one that has the topics")  # fmt: skip
    parser.add_argument("--turns", type=int, default=TURNS, help="of each start")
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each mirror")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp(prefix="sparkmirror-bench-"))
    kind = "latency" if options.latency else "rounds"
    path = options.out / f"control-plane-{kind}-{datetime.date.today()}.json"
    try:
        with world(options.topics, options.groups) as one:
            if options.latency:
                keep(path, one, {"latency": measure_latency(one, work)})
            else:
                what = order(options.starts, options.peers, options.turns)
                for number, (name, key, made) in enumerate(what):
                    if number:
                        one.clean()
                    keep(path, one, {name: measure(key, one, work, options.limit, made=made)})
        say(f"written: {path}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
