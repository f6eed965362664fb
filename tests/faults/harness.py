"""A mirror that is killed again and again, and somebody who counts what arrives.

`numbered.Numbered` writes numbered records to the source, `Counter` reads the target as any
read_committed consumer would (librdkafka, not our own client) and knows each partition's next
number, so it sees a loss, a repeat and a change of order at once. `Mirror` is the real command,
started again whenever it has ended.
"""

from __future__ import annotations

import bisect
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from sparkmirror.testing.clusters import KafkaCluster
from tests.faults.numbered import ABORTED, NUMBER
from tests.kafka.harness.background import Background
from tests.kafka.harness.support import admin

__all__ = [
    "FRAMES",
    "PLANNER",
    "SINK",
    "SOURCE",
    "Counter",
    "Mirror",
    "run_directory",
    "write_config",
]

FRAMES = "memfd:sparkmirror-frames"
_TASKS, _PLANNING = (
    "sparkmirror.data.workers.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
)

_SPARK = "org.apache.spark.deploy.SparkSubmit"

# What a run prints when Spark is being started, and when its queries have been.
_PHASES = (" starting Spark\n", " mirroring\n")

SINK, SOURCE, PLANNER = "sink", "source", "planner"


class Counter(Background):
    """Reads a topic from its beginning, read_committed, and compares with the numbers due.

    ``received`` records per partition; ``duplicated``: numbers that were there before; ``lost``:
    numbers that were passed over; ``aborted``: records of aborted transactions, which count as
    nothing else; ``arrived_at``: when the newest record came; ``longest_s``: the longest time
    between two records of each partition; ``returns``: (partition, number) of
    each record that came before one that the partition already had, and does not follow the record
    in front of it.
    """

    def __init__(self, cluster: KafkaCluster, topic: str, partitions: int) -> None:
        super().__init__()
        self.expected = [0] * partitions
        self.received = 0
        self.duplicated = 0
        self.lost = 0
        self.aborted = 0
        self.arrived_at = [time.monotonic()] * partitions
        self.longest_s = [0.0] * partitions
        self.first_wrong = ""
        self.returns: list[tuple[int, int]] = []
        self._newest = [-1] * partitions
        self._read = [0] * partitions  # the offset after the last record
        self._history: list[tuple[float, int]] = []
        self._cluster, self._topic = cluster, topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": f"count-{random.getrandbits(64):x}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, n, 0) for n in range(partitions)])

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(5_000, timeout=0.1):
                if message.error() is None:
                    self._count(message)
            self._history.append((time.monotonic(), self.received))

    def received_since(self, since: float) -> int:
        """How many records came after that moment (of `time.monotonic`), and just before it."""
        at = bisect.bisect_left(self._history, (since, 0))
        return self.received - (self._history[at - 1][1] if at else 0)

    def _count(self, message: Any) -> None:
        partition = message.partition()
        number = self._number(message)
        due = self.expected[partition]
        self._read[partition] = message.offset() + 1
        if (message.value() or b"").endswith(ABORTED):
            self.aborted += 1
            self.first_wrong = self.first_wrong or (
                f"{self._topic}-{partition} at offset {message.offset()}: {number}, aborted"
            )
            return
        self.received += 1
        now = time.monotonic()
        self.longest_s[partition] = max(self.longest_s[partition], now - self.arrived_at[partition])
        self.arrived_at[partition] = now
        if number != due and not self.first_wrong:
            self.first_wrong = (
                f"{self._topic}-{partition} at offset {message.offset()}: {number} where {due} "
                "was due"
            )
        if number < due and number != self._newest[partition] + 1:
            self.returns.append((partition, number))
        self._newest[partition] = number
        if number < due:
            self.duplicated += 1
        else:
            self.lost += number - due
            self.expected[partition] = number + 1

    def _number(self, message: Any) -> int:
        """The record's number; those of a partition follow one another without gaps."""
        (number,) = NUMBER.unpack_from(message.value())
        return int(number)

    def wait_for(self, records: int, timeout_s: float) -> bool:
        """Wait until so many distinct records are there; whether they are."""
        deadline = time.monotonic() + timeout_s
        while sum(self.expected) < records:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait until all is read that the topic, which has no transactions, holds now."""
        deadline = time.monotonic() + timeout_s
        places = [TopicPartition(self._topic, number) for number in range(len(self._read))]
        ends: dict[int, int] = {}
        said = ""
        while len(ends) < len(places):
            # A client of its own each time: one remembers who led while the broker was away.
            asked = {place: OffsetSpec.latest() for place in places}
            client = admin(self._cluster)  # held: what it was asked for goes with it
            for place, future in client.list_offsets(asked, request_timeout=10.0).items():
                try:
                    ends[place.partition] = future.result(20).offset
                except (KafkaException, TimeoutError) as error:  # its broker is just coming back
                    said = str(error)
            assert time.monotonic() < deadline, f"no end of {self._topic}: {ends} ({said})"
            time.sleep(0.2)
        while any(self._read[number] < end for number, end in ends.items()):
            assert time.monotonic() < deadline, f"{self._topic} is read to {self._read} of {ends}"
            time.sleep(0.1)

    def silence_s(self, for_s: float, meanwhile: Callable[[], None]) -> float:
        """The longest time without a record in any partition during the next ``for_s`` seconds."""
        longest, until = 0.0, time.monotonic() + for_s
        while time.monotonic() < until:
            longest = max(longest, time.monotonic() - min(self.arrived_at))
            meanwhile()
            time.sleep(0.02)
        return longest

    def recovery_s(
        self, since: float, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> float:
        """Seconds from ``since`` until every partition has moved on (records must be coming).

        ``meanwhile`` is called again and again.
        """
        deadline = time.monotonic() + timeout_s
        before = list(self.expected)
        moved: dict[int, float] = {}
        while len(moved) < len(before):
            now = time.monotonic()
            if now > deadline:
                return float("inf")
            for partition, number in enumerate(self.expected):
                # What was under way when the fault came is no sign of life.
                if partition not in moved and number > before[partition] and now - since > 0.5:
                    moved[partition] = self.arrived_at[partition]
            if now - since <= 0.5:
                before = list(self.expected)
            meanwhile()
            time.sleep(0.02)
        return max(moved.values()) - since


class Mirror:
    """``sparkmirror run FILE`` as a process, kept running: ``starts`` counts how often.

    ``command``: what is run instead of the installed one.
    """

    def __init__(
        self, directory: Path, config: Path, *arguments: str, command: Sequence[str] = ()
    ) -> None:
        self._command = command or (str(Path(sys.executable).parent / "sparkmirror"),)
        self.starts = 0
        self.exits: list[tuple[int, str]] = []
        self._directory = directory
        self._arguments = ["run", str(config), *arguments]
        self.phases: dict[str, float] = {}
        self.process = self.start()

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start one more process, with ``more`` options; the newest is ``process``."""
        self.starts += 1
        number = self.starts
        work = self._directory / f"work-{number}"
        self.phases = {"started": time.monotonic()}
        with self.output_file.open("wb") as stream:
            self.process = subprocess.Popen(
                [*self._command, *self._arguments, *more, "--work-dir", str(work)],
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        return self.process

    def keep_running(self) -> None:
        """Start it again if it has ended; how it ended is kept in ``exits``."""
        code = self.process.poll()
        if code is not None:
            self.exits.append((code, self.output()))
            self.start()
        self._note_phases()

    def _note_phases(self) -> None:
        """When the newest process came so far, by the lines that it prints."""
        if len(self.phases) <= len(_PHASES):
            text = self.output()
            for phase in _PHASES:
                if phase not in self.phases and phase in text:
                    self.phases[phase] = time.monotonic()

    def start_parts(self) -> tuple[float, float] | None:
        """Seconds of the newest start: before Spark, and Spark's own until its queries run."""
        if len(self.phases) <= len(_PHASES):
            return None
        begun, spark, mirroring = (self.phases[name] for name in ("started", *_PHASES))
        return spark - begun, mirroring - spark

    @property
    def output_file(self) -> Path:
        """Where the newest process prints."""
        return self._directory / f"output-{self.starts}.txt"

    def output(self) -> str:
        """What the newest process has printed."""
        return self.output_file.read_text(errors="replace")

    def driver(self) -> psutil.Process:
        """The driver."""
        return psutil.Process(self.process.pid)

    def workers(self) -> list[psutil.Process]:
        """Spark's Python workers that talk to Kafka: sources, sinks and the planner."""
        found = []
        for process in self.driver().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if _module(process) and process.net_connections("tcp"):
                    found.append(process)
        return found

    def workers_as(self, role: str) -> list[psutil.Process]:
        """The workers of one role: ``SINK``, ``SOURCE`` or ``PLANNER``."""
        return [process for process in self.workers() if _role(process) == role]

    def jvm(self) -> psutil.Process:
        """Spark's JVM; another one may be writing the archive of its classes."""
        return next(
            process
            for process in self.driver().children(recursive=True)
            if process.name().startswith("java") and _SPARK in process.cmdline()
        )

    def drain(self, timeout_s: float = 60.0) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self, process: subprocess.Popen[bytes] | None = None) -> None:
        """SIGKILL to a driver and all its children."""
        chosen = process or self.process
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(chosen.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
        if chosen.poll() is None:
            chosen.kill()
            chosen.wait(20)


@contextlib.contextmanager
def run_directory(keep: Path | None) -> Iterator[Path]:
    """``keep``, made if it is missing; without it a temporary directory that goes with the run."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="sparkmirror-faults-") as directory:
        yield Path(directory)


def write_config(
    path: Path,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: str,
    *,
    alias: str = "A",
    **settings: str,
) -> Path:
    """A MirrorMaker 2 file for a flow from ``alias`` to B."""
    lines = {
        "clusters": f"{alias}, B",
        f"{alias}.bootstrap.servers": source.bootstrap_servers,
        "B.bootstrap.servers": target.bootstrap_servers,
        f"{alias}->B.enabled": "true",
        f"{alias}->B.topics": topic,
        "tasks.max": "2",
        "replication.factor": "1",
        "B.offset.storage.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "sync.topic.acls.enabled": "false",
        "sparkmirror.epoch.seconds": "20",
        **settings,
    }
    path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
    return path


def _module(process: psutil.Process) -> str:
    """The module that one of Spark's Python processes runs; empty for any other process."""
    line = process.cmdline()  # that of Spark's JVM names the daemon as well, in a setting
    module = line[line.index("-m") + 1] if "-m" in line[:4] else ""
    return module if module in (_TASKS, _PLANNING) else ""


def _role(process: psutil.Process) -> str:
    """What a worker does: a slot's memory is mapped by its sink, its owner has it open besides."""
    with contextlib.suppress(psutil.Error):
        if _module(process) == _PLANNING:
            return PLANNER
    names = []
    for fd in Path(f"/proc/{process.pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            names.append(str(fd.readlink()))
    frames = sum(FRAMES in name for name in names)
    return {0: "", 1: SINK}.get(frames, SOURCE)
