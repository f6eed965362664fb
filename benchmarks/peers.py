"""The mirrors under test, each a process tree with the settings of a careful engineer."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkmirror.java import find_java
from sparkmirror.testing.maven import resolve

__all__ = ["ANOTHER", "MM1_JARS", "PEERS", "Handler", "Peer", "Running", "described", "start"]

MM2_JARS = ("org.apache.kafka:connect-mirror:4.3.0", "org.apache.kafka:connect-runtime:4.3.0")
MM1_JARS = ("org.apache.kafka:kafka_2.13:3.9.1",)
HEAP = ("-Xms1g", "-Xmx2g", "-XX:+UseG1GC")
_EXACT = ("B.exactly.once.source.support=enabled",)
# What Java asks for beside it.
_EXACT_JAVA = (
    "dedicated.mode.enable.internal.rest=true",
    "listeners=http://127.0.0.1:0",
    "A.consumer.isolation.level=read_committed",
)


# sparkmirror as another source tree has it, for a change's before and after.
ANOTHER = "sparkmirror-another"


@dataclass(frozen=True)
class Peer:
    """One mirror: ``name`` in the tables, ``remote`` its name for a mirrored topic.

    ``exact``: it writes in transactions.
    """

    name: str
    remote: str = "A.{topic}"
    exact: bool = False


@dataclass(frozen=True)
class Handler:
    """A message handler of MirrorMaker 1: its ``name``, and the directory that it is in."""

    name: str
    path: Path


@dataclass
class Running:
    """A started mirror.

    ``began``: `time.monotonic` just before its command ran. ``settings``: the command and the
    files that it was given, without addresses and directories, to show how it was tuned.
    """

    process: subprocess.Popen[bytes]
    log: Path
    began: float = 0.0
    settings: str = ""

    def stop(self) -> None:
        """Ask for an orderly end, insist after a while."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)


PEERS = {
    "sparkmirror": Peer("sparkmirror"),
    "mm2": Peer("MirrorMaker 2"),
    "mm1": Peer("MirrorMaker 1", "{topic}"),
    "sparkmirror-keys": Peer("sparkmirror, MirrorMaker 1's files, by key", "{topic}"),
    "mm2-default": Peer("MirrorMaker 2 with its producer's defaults"),
    "sparkmirror-exact": Peer("sparkmirror, exactly-once", exact=True),
    "sparkmirror-no-ring": Peer("sparkmirror without its ring"),
    ANOTHER: Peer("sparkmirror of another tree"),
    "mm2-exact": Peer("MirrorMaker 2, exactly-once", exact=True),
}


def start(
    key: str,
    source: str,
    target: str,
    topic: str,
    work: Path,
    *,
    tasks: int,
    latency: bool,
    extra: dict[str, str] | None = None,
    handler: Handler | None = None,
    tree: Path | None = None,
) -> Running:
    """Start mirror ``key`` for one topic, or several with commas between them.

    ``latency``: tuned for it instead of throughput. ``extra``: further lines of the file.
    ``handler``: of MirrorMaker 1's commands. ``tree``: the source tree of `ANOTHER`.
    """
    work.mkdir(parents=True, exist_ok=True)
    log = work / f"{key}-{topic}.log"
    environment = dict(os.environ)
    if key in ("mm1", "sparkmirror-keys"):
        command = [sys.executable, "-m", "sparkmirror.cli.kafka_mirror_maker"]
        if key == "mm1":
            further = [handler.path] if handler else []
            command = [*_java(MM1_JARS, further), "kafka.tools.MirrorMaker"]
        elif handler:
            environment["PYTHONPATH"] = str(handler.path)
        command += _mm1(key, source, target, topic, work, tasks, latency, extra or {})
        command += ["--message.handler", handler.name] if handler else []
    else:
        ours = key.startswith("sparkmirror")
        path = work / f"{key}-{topic}.properties"
        lines = _mm2_file(
            source,
            target,
            topic,
            tasks,
            latency,
            java=not ours,
            tuned=key in ("mm2", "mm2-exact"),
            compression=_compression(topic),
        )
        if PEERS[key].exact:
            lines += _EXACT if ours else [*_EXACT, *_EXACT_JAVA]
        if key == "sparkmirror-no-ring":
            lines.append("sparkmirror.ring.enabled=false")
        lines += [f"{name}={value}" for name, value in (extra or {}).items()]
        path.write_text("\n".join(lines) + "\n")
        command = _sparkmirror(path, work) if ours else _mm2(path)
        if tree and key == ANOTHER:
            environment["PYTHONPATH"] = str(tree / "src")
    files = sorted(work.glob(f"{key}-{topic}.*"))
    settings = described(command, [path for path in files if path != log], work)
    with log.open("wb") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=work,
            env=environment,
        )
    return Running(process, log, began, settings)


def described(command: Sequence[str], files: Sequence[Path], work: Path) -> str:
    """The command and the files of a mirror as text that is the same in every round.

    Addresses, directories, class paths and the names of groups are left out, passwords as well.
    """
    words = [Path(command[0]).name, *command[1:]]
    if "-cp" in words:
        words[words.index("-cp") + 1] = "..."
    lines = [" ".join(words).replace(f"{work}/", "")]
    for path in files:
        kept = [
            line.replace(f"{work}/", "")
            for line in path.read_text().splitlines()
            if not re.match(r"([AB]\.)?(bootstrap\.servers|group\.id|\S*password)=", line)
        ]
        lines += ["", f"# {path.name}", *kept]
    return "\n".join(lines)


def _mm2_file(
    source: str,
    target: str,
    topic: str,
    tasks: int,
    latency: bool,
    *,
    java: bool,
    tuned: bool,
    compression: str,
) -> list[str]:
    lines = [
        "clusters=A,B",
        f"A.bootstrap.servers={source}",
        f"B.bootstrap.servers={target}",
        "A->B.enabled=true",
        f"A->B.topics={topic}",
        f"tasks.max={tasks}",
        "replication.factor=1",
        "offset.storage.replication.factor=1",
        "B.offset.storage.replication.factor=1",
        "offset-syncs.topic.replication.factor=1",
        "refresh.topics.interval.seconds=5",
        "emit.heartbeats.enabled=false",
        "emit.checkpoints.enabled=false",
        "sync.topic.configs.enabled=false",
        "sync.topic.acls.enabled=false",
    ]
    if java:
        lines += [
            "config.storage.replication.factor=1",
            "status.storage.replication.factor=1",
            "checkpoints.topic.replication.factor=1",
            "heartbeats.topic.replication.factor=1",
            "A.consumer.auto.offset.reset=earliest",
        ]
    if tuned:
        linger_ms, batch_bytes = (0, 16_384) if latency else (20, 1_000_000)
        lines += [
            "A.consumer.fetch.max.bytes=52428800",
            "A.consumer.max.partition.fetch.bytes=10485760",
            "A.consumer.max.poll.records=20000",
            "A.consumer.receive.buffer.bytes=1048576",
            f"B.producer.batch.size={batch_bytes}",
            f"B.producer.linger.ms={linger_ms}",
            "B.producer.buffer.memory=134217728",
            "B.producer.max.request.size=10485760",
            "B.producer.max.in.flight.requests.per.connection=5",
            "B.producer.send.buffer.bytes=1048576",
            f"B.producer.compression.type={compression}",
        ]
    return lines


def _compression(topic: str) -> str:
    """Java mirrors compress anew: as the source's producer did."""
    return "lz4" if "lz4" in topic else "none"


def _java(jars: tuple[str, ...], further: Sequence[Path] = ()) -> list[str]:
    classpath = os.pathsep.join(map(str, [*resolve(*jars), *further]))
    return [str(find_java().java), *HEAP, "-cp", classpath]


def _mm2(path: Path) -> list[str]:
    return [*_java(MM2_JARS), "org.apache.kafka.connect.mirror.MirrorMaker", str(path)]


def _mm1(
    key: str,
    source: str,
    target: str,
    topic: str,
    work: Path,
    tasks: int,
    latency: bool,
    extra: Mapping[str, str],
) -> list[str]:
    """MirrorMaker 1's two files, and the options that go with them.

    ``extra`` has MirrorMaker 2's names: ``A.consumer.`` and ``B.producer.`` say which file it is.
    """

    def more(prefix: str) -> str:
        there = {key.removeprefix(prefix): value for key, value in extra.items() if prefix in key}
        return "".join(f"{name}={value}\n" for name, value in there.items())

    consumer, producer = work / f"{key}-{topic}.consumer", work / f"{key}-{topic}.producer"
    group = f"{key}-{topic}-{time.time_ns()}"  # a later round begins anew
    consumer.write_text(
        f"bootstrap.servers={source}\ngroup.id={group}\nauto.offset.reset=earliest\n"
        "fetch.max.bytes=52428800\nmax.partition.fetch.bytes=10485760\nmax.poll.records=20000\n"
        "receive.buffer.bytes=1048576\nisolation.level=read_committed\n"
        "partition.assignment.strategy=org.apache.kafka.clients.consumer.RoundRobinAssignor\n"
        + more("A.consumer.")
    )
    linger_ms, batch_bytes = (0, 16_384) if latency else (20, 1_000_000)
    producer.write_text(
        f"bootstrap.servers={target}\nacks=all\nbatch.size={batch_bytes}\nlinger.ms={linger_ms}\n"
        "buffer.memory=134217728\nmax.request.size=10485760\nsend.buffer.bytes=1048576\n"
        "max.in.flight.requests.per.connection=5\n"
        f"compression.type={_compression(topic)}\n" + more("B.producer.")
    )
    return [
        "--consumer.config",
        str(consumer),
        "--producer.config",
        str(producer),
        "--include",
        topic,
        "--num.streams",
        str(tasks),
    ]


def _sparkmirror(path: Path, work: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "sparkmirror.cli.main",
        "run",
        str(path),
        "--work-dir",
        str(work / "sparkmirror"),
    ]
