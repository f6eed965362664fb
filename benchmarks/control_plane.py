"""The control plane of a large cluster: topics, configs, ACLs and checkpoints, after each mirror.

usage: python -m benchmarks.control_plane [--topics N] [--groups N] [--latency] [--out DIR]

Each mirror starts twice. First on an empty target: the seconds from the start of its process until
all remote topics, their ACLs and all checkpoints are there. MirrorMaker 2 asks for all topics in
one request, and a controller takes 10,000 records at once (a topic, a partition and a config are
one each): with more it never gets further, which is told. Then on a target that has the topics: the
seconds until ACLs and checkpoints are there, and, one after the other, those from a change on the
source until the target has followed: of every topic's configuration, of every topic's ACLs, of
every group's offsets. Then full rounds: twenty new topics, another value in all configurations,
an ACL more for every topic and every group somewhere else, all at once; from the moment at which
the source shows all of these changes until the target has followed in everything. Both mirrors look
every second, so that hardly more than their work is measured. Last, what a round takes when nothing
has changed: of topics, configurations and ACLs each mirror's log says so; of checkpoints it is the
time from the first group's listing (the records' timestamps) to the last record's arrival in the
full rounds, since MirrorMaker 2 logs nothing of it.

``--latency`` instead compares sparkmirror's latency on one topic beside all the others, with rounds
every few seconds and without any.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from benchmarks.failover import Checkpoints
from benchmarks.measure import TreeWatch, latencies, quantiles
from benchmarks.peers import MM2_JARS, Running
from benchmarks.run import say
from sparkmirror.demo.clusters import KafkaCluster, start_all
from sparkmirror.demo.maven import resolve
from sparkmirror.errors import MirrorError
from sparkmirror.java import find_java
from sparkmirror.model import ClusterClient, TopicPartition
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.views import AclBinding, NewTopic

# The controller's words for more than 10,000 records in one request.
TOO_LARGE = b"excessively large batch operation"
PARTITIONS = 4
TOPICS_PER_GROUP = 10
ROUNDS_S = 1
LATENCY_ROUNDS_S = 5
FULL_ROUNDS = 3
STEADY_ROUNDS = 5
QUIET_S = 15.0
NEW_TOPICS = 20
ROUND_NAMES = {
    "sparkmirror": ("topics", "configs", "acls"),
    "mm2": ("refreshing topics", "syncing topic configs", "syncing topic ACLs"),
}
LIMIT_S = 600.0
SECOND = "User:second"
CHECKPOINTS = "A.checkpoints.internal"
STARTS = ("empty", "made")
PROBE = "probe"
PROBE_PARTITIONS = 12
_JVM = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_BROKER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "log.index.size.max.bytes": "65536",
    "log.cleaner.enable": "false",
}
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


class World:
    """Two clusters, and what is on the source."""

    def __init__(self, a: KafkaCluster, b: KafkaCluster, topics: int, groups: int) -> None:
        self.a, self.b = a, b
        self.names = [f"cp-{number:04d}" for number in range(topics)]
        self.remote = [f"A.{name}" for name in self.names]
        self.groups = [f"group-{number:03d}" for number in range(groups)]
        self.source, self.target = (_cluster(one) for one in (a, b))

    def fill(self) -> None:
        """Topics with a config of their own, two records per partition, groups and ACLs."""
        config = {"retention.ms": "86400000"}
        wanted = [NewTopic(name, PARTITIONS, 1, config) for name in self.names]
        for at in range(0, len(wanted), 200):
            outcomes = self.source.create_topics(wanted[at : at + 200])
            assert all(one.error is None for one in outcomes.values())
        say(f"{len(wanted)} topics made")
        # A busy broker takes its time to know thousands of new topics.
        patience_ms = {"topic.metadata.propagation.max.ms": 300_000, "message.timeout.ms": 300_000}
        servers = self.a.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, **patience_ms})
        failed: list[object] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failed.append(error)

        for name in self.names:
            for number in range(PARTITIONS):
                for _ in range(2):
                    producer.produce(name, b"x" * 100, partition=number, on_delivery=delivered)
            producer.poll(0)
        assert not producer.flush(300)
        assert not failed, failed[0]
        self.move_groups(1)
        self.allow("User:reader")
        say("records, groups and ACLs are there")

    def move_groups(self, offset: int) -> None:
        """Commit ``offset`` for every group and partition."""

        def move(place: int) -> None:
            first = place * TOPICS_PER_GROUP
            mine = [self.names[(first + n) % len(self.names)] for n in range(TOPICS_PER_GROUP)]
            offsets = {TopicPartition(t, p): (offset, "") for t in mine for p in range(PARTITIONS)}
            self.source.commit_offsets(self.groups[place], offsets)

        # Side by side, so that mirrors find all of it in one look or two.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(move, range(len(self.groups))))

    def _readers(self, principal: str) -> list[AclBinding]:
        return [
            AclBinding("TOPIC", name, "LITERAL", principal, "*", "READ", "ALLOW")
            for name in self.names
        ]

    def allow(self, principal: str) -> None:
        """An ACL more for every topic of the source."""
        acls = self._readers(principal)
        for at in range(0, len(acls), 500):
            assert not any(self.source.create_acls(acls[at : at + 500]))

    @property
    def checkpoints(self) -> int:
        """How many checkpoints there will be."""
        return len(self.groups) * TOPICS_PER_GROUP * PARTITIONS

    def change_configs(self, value: str = "172800000") -> None:
        """Another value in every topic of the source."""
        changes = {name: {"retention.ms": value} for name in self.names}
        for at in range(0, len(self.names), 250):
            self.source.alter_topic_configs({n: changes[n] for n in self.names[at : at + 250]})

    def make_remote_topics(self) -> None:
        """The remote topics as a mirror makes them."""
        config = {"retention.ms": "86400000"}
        wanted = [NewTopic(name, PARTITIONS, 1, config) for name in self.remote]
        for at in range(0, len(wanted), 200):
            outcomes = self.target.create_topics(wanted[at : at + 200])
            assert all(one.error is None for one in outcomes.values())
        wait_until(lambda: self.topics_there() == len(wanted), "the remote topics")

    def topics_there(self) -> int:
        """Remote topics on the target."""
        found = AdminClient({"bootstrap.servers": self.b.bootstrap_servers}).list_topics(timeout=30)
        return sum(name.startswith("A.cp-") for name in found.topics)

    def acls_there(self) -> int:
        """ACLs of remote topics on the target."""
        return sum(one.name.startswith("A.cp-") for one in self.target.topic_acls() or ())

    def configs_there(self, value: str = "172800000") -> int:
        """Remote topics that have the changed value."""
        count = 0
        for found in self.target.topic_configs(self.remote).values():
            if not isinstance(found, MirrorError) and found["retention.ms"].value == value:
                count += 1
        return count

    def add_topics(self, number: int) -> None:
        """A few new topics, as a full round finds them."""
        wanted = [NewTopic(f"cp-new-{number}-{n}", PARTITIONS, 1, {}) for n in range(NEW_TOPICS)]
        assert all(one.error is None for one in self.source.create_topics(wanted).values())

    def change_all(self, number: int) -> None:
        """Everything that a full round brings over."""
        self.add_topics(number)
        self.change_configs(_value(number))
        self.allow(f"{SECOND}-{number}")
        self.move_groups(_offset(number))
        # A broker shows what its controller has decided once it has made the new partitions.
        wait_until(lambda: self._source_shows(number), "the changes on the source", pause_s=0.1)

    def _source_shows(self, number: int) -> bool:
        value, principal = _value(number), f"{SECOND}-{number}"
        new = [f"cp-new-{number}-{n}" for n in range(NEW_TOPICS)]
        found = self.source.topic_configs(self.names[-1:])[self.names[-1]]
        return (
            not isinstance(found, MirrorError)
            and found["retention.ms"].value == value
            and len(self.source.topics(new)) == NEW_TOPICS
            and sum(one.principal == principal for one in self.source.topic_acls() or ())
            == len(self.names)
        )

    def clean(self) -> None:
        """An empty target, and the source as it was."""
        added = [one for one in self.source.topic_acls() or () if one.principal.startswith(SECOND)]
        for at in range(0, len(added), 500):
            self.source.delete_acls(added[at : at + 500])
        self.move_groups(1)
        admin = AdminClient({"bootstrap.servers": self.b.bootstrap_servers})
        names = [n for n in admin.list_topics(timeout=30).topics if not n.startswith("__")]
        for at in range(0, len(names), 200):
            for future in admin.delete_topics(names[at : at + 200]).values():
                future.result(60)
        found = [one for one in self.target.topic_acls() or () if one.name.startswith("A.")]
        for at in range(0, len(found), 500):
            self.target.delete_acls(found[at : at + 500])
        self.source.alter_topic_configs({n: {"retention.ms": "86400000"} for n in self.names})
        own = AdminClient({"bootstrap.servers": self.a.bootstrap_servers})
        new = [n for n in own.list_topics(timeout=30).topics if n.startswith("cp-new-")]
        for future in own.delete_topics(["mm2-offset-syncs.B.internal", *new]).values():
            future.exception(60)
        wait_until(lambda: not self.topics_there() and not self.acls_there(), "an empty target")
        wait_until(
            lambda: CHECKPOINTS not in admin.list_topics(timeout=30).topics, "no checkpoints"
        )
        time.sleep(3)


def _value(number: int) -> str:
    """The configuration's value in full round ``number``."""
    return str(172_800_000 + 1 + number)


def _offset(number: int) -> int:
    """Where groups stand after full round ``number``; before the first one at 2."""
    return 1 + number % 2


def wait_until(
    done: Callable[[], bool], what: str, timeout_s: float = 300.0, pause_s: float = 0.5
) -> None:
    """A busy broker shows what its controller has decided some time later."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(pause_s)


def _cluster(one: KafkaCluster) -> Cluster:
    servers = (one.bootstrap_servers,)
    return Cluster(ClusterClient(one.name, servers, "bench", request_timeout_ms=240_000))


@contextmanager
def world(topics: int, groups: int) -> Iterator[World]:
    """Two one-node clusters with an authorizer, and the source filled."""
    a, b = (KafkaCluster(name, config=_BROKER, heap="1500m", jvm=_JVM) for name in "AB")
    start_all(a, b)
    try:
        found = World(a, b, topics, groups)
        found.fill()
        yield found
    finally:
        a.stop()
        b.stop()


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


def measure(
    key: str, one: World, work: Path, limit_s: float, *, made: bool = False
) -> dict[str, Any]:
    """Seconds from the start to each goal; then, with topics that are ``made`` before it, from a
    change to the target's following.

    What is not there ``limit_s`` after the start is told as such, and so is what a mirror cannot
    make at all: it is not waited for.
    """
    file = work / f"{key}{'-made' if made else ''}.properties"
    file.write_text(settings(one))
    count = len(one.names)
    one.target.create_topics([NewTopic(CHECKPOINTS, 1, 1, {})])
    if made:
        one.make_remote_topics()
    began = time.monotonic()
    running, log = start(key, file, work)
    tree = TreeWatch(running.process.pid)
    result: dict[str, Any] = {}
    checkpoints, refusals = Checkpoints(one.b), Refusals(running.log)

    def until(name: str, wanted: int, look: Callable[[], int], since: float) -> None:
        while (there := look()) < wanted:
            if refusals.look():
                result[name] = f"{there} of {wanted}: the controller refuses the one request"
                say(f"{key} {name}: {result[name]}")
                raise TooLarge
            if time.monotonic() - began > limit_s or running.process.poll() is not None:
                result[name] = f"{there} of {wanted} after {time.monotonic() - since:.0f} s"
                return
            time.sleep(0.2)
        result[name] = round(time.monotonic() - since, 1)
        say(f"{key} {name}: {result[name]} s")

    def emitted() -> int:
        checkpoints.look()
        return len(checkpoints.newest)

    def moved(offset: int = 2) -> int:
        checkpoints.look()
        return sum(found.upstream == offset for found in checkpoints.newest.values())

    def full_round(number: int) -> None:
        """One of the full rounds; what it leaves in ``result`` is in seconds."""
        topics = one.topics_there() + NEW_TOPICS
        acls = one.acls_there() + count
        one.change_all(number)
        since, offset = time.monotonic(), _offset(number)
        name = f"full round {number + 1}"
        until(f"{name}: checkpoints", one.checkpoints, partial(moved, offset), since)
        fresh = [
            checkpoints.stamps_ms[key]
            for key, found in checkpoints.newest.items()
            if found.upstream == offset
        ]
        if fresh:
            result.setdefault("checkpoint rounds_ms", []).append(
                round(time.time() * 1000) - min(fresh)
            )
        until(f"{name}: ACLs", acls, one.acls_there, since)
        until(f"{name}: configs", count, partial(one.configs_there, _value(number)), since)
        until(name, topics, one.topics_there, since)

    def change(name: str, act: Callable[[], None], wanted: int, look: Callable[[], int]) -> None:
        since = time.monotonic()
        act()
        result[f"{name}, changing itself"] = round(time.monotonic() - since, 1)
        until(name, wanted, look, since)

    try:
        if not made:
            until("topics", count, one.topics_there, began)
        until("ACLs", count, one.acls_there, began)
        until("checkpoints", one.checkpoints, emitted, began)
        result["cpu_s"] = round(tree.cpu_s(), 1)
        if not made:
            return result
        change("changed configs", one.change_configs, count, one.configs_there)
        change("more ACLs", partial(one.allow, SECOND), 2 * count, one.acls_there)
        change("moved groups", partial(one.move_groups, 2), one.checkpoints, moved)
        for number in range(FULL_ROUNDS):
            full_round(number)
        time.sleep(QUIET_S)  # rounds without any change
        result["cpu_s, all"] = round(tree.cpu_s(), 1)
    except TooLarge:
        return result
    finally:
        refusals.close()
        checkpoints.close()
        tree.close()
        running.stop()
        result["rounds_ms"] = rounds_in(key, log)
        summarise(key, result)
    return result


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
    """Quantiles of latency in ms on the probe's topic, without and with rounds."""
    one.source.create_topics([NewTopic(PROBE, PROBE_PARTITIONS, 1, {})])
    found: dict[str, Any] = {}
    for name, rounds in (("without rounds", False), ("with rounds", True)):
        file = work / f"latency-{rounds}.properties"
        file.write_text(settings(one, rounds=rounds, every_s=LATENCY_ROUNDS_S))
        running, log = start("sparkmirror", file, work)
        try:
            args = (one.a.bootstrap_servers, one.b.bootstrap_servers, PROBE, f"A.{PROBE}")
            deadline = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline:
                warm = latencies(*args, PROBE_PARTITIONS, rate=100, seconds=5, work=work)
                if len(warm["target"]) >= 490:
                    break
            values = latencies(*args, PROBE_PARTITIONS, rate=100, seconds=40, work=work)
            found[name] = quantiles(values["target"])
        finally:
            running.stop()
        found[name]["rounds_ms"] = rounds_in("sparkmirror", log)
        say(f"{name}: {found[name]}")
    return found


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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control_plane", description=__doc__)
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--peers", nargs="+", choices=list(_ROUNDS), default=list(_ROUNDS))
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS,
                        help="on an empty target, on one that has the topics")  # fmt: skip
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each mirror")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
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
                for number, (begin, key) in enumerate(product(options.starts, options.peers)):
                    if number:
                        one.clean()
                    made = begin == "made"
                    name = f"{key}, topics made before" if made else key
                    keep(path, one, {name: measure(key, one, work, options.limit, made=made)})
        say(f"written: {path}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
