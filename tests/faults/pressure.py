"""A mirror under pressure: how much memory its processes take, and whether anybody starves.

One mirror (``sparkmirror run``, two slots) and, one after another: a few hundred records a second;
then far more than a hundred times as many, as fast as the source takes them and faster than the
target does (a quota of its brokers), with single records in other partitions meanwhile; then
records of 20 MB, one by one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sparkmirror.testing.clusters import KafkaCluster
from tests.faults.harness import FRAMES, Mirror, write_config
from tests.kafka.harness.background import Background
from tests.kafka.harness.support import TIMEOUT_S, consume_all, create_topic, topic_names

__all__ = [
    "MIB",
    "SLOTS",
    "Footprint",
    "Pressure",
    "Result",
    "frames_bound_mib",
    "limit_target",
    "memory_bound_mib",
]

MIB = 1024 * 1024
SLOTS = 2
LARGE_BYTES = 20_000_000
_MEAN_PER_S = 200
_RECORD_BYTES = 1_000
# Large enough that the test itself writes a burst much faster than the target's quota lets it go.
_BURST_BYTES = 50_000
# A mirror leaves this setting of remote topics alone.
_STAMPED = {"message.timestamp.type": "LogAppendTime"}
_MAX_MESSAGE = {"max.message.bytes": str(LARGE_BYTES + 1_000_000)}


def frames_bound_mib(slots: int) -> float:
    """16 frames of 4 MiB and a header for each slot."""
    return slots * 16 * 4.07


def memory_bound_mib(slots: int, largest_batch_bytes: int) -> float:
    """The bound that docs/capacity.md states, in MiB, for the default settings.

    1 GiB heap and 0.5 GiB beside it for Spark's JVM, 1 GiB for Python's processes, for each slot
    16 frames of 4 MiB, 32 MiB unacknowledged and six copies of the largest batch.
    """
    fixed = 1024 + 512 + 1024
    each = 32 + 6 * largest_batch_bytes / MIB
    return fixed + frames_bound_mib(slots) + slots * each


@dataclass(frozen=True)
class Taken:
    """Memory in MiB: of the JVM, and of Python's processes, of that ``frames_mib`` as frames."""

    jvm_mib: float = 0.0
    python_mib: float = 0.0
    frames_mib: float = 0.0

    @property
    def total_mib(self) -> float:
        """Of all of them."""
        return self.jvm_mib + self.python_mib

    def __str__(self) -> str:
        return (
            f"{self.total_mib:,.0f} MiB (JVM {self.jvm_mib:,.0f}, Python {self.python_mib:,.0f}, "
            f"{self.frames_mib:,.0f} of that as frames)"
        )


class Footprint(Background):
    """The memory of a process and all below it, sampled: proportional set size in MiB.

    Proportional: what several processes share (forked modules, the slots' frames) counts once.
    """

    def __init__(self, pid: int, interval_s: float = 0.25) -> None:
        super().__init__()
        self._samples: list[Taken] = []
        self._pid, self._interval_s = pid, interval_s

    def begin(self) -> None:
        """Forget what was seen: a new phase begins."""
        self._samples = []

    def peak(self) -> Taken:
        """The most that was seen of each kind since `begin`."""
        return Taken(
            max((one.jvm_mib for one in self._samples), default=0.0),
            max((one.python_mib for one in self._samples), default=0.0),
            max((one.frames_mib for one in self._samples), default=0.0),
        )

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            found: dict[str, float] = defaultdict(float)
            with contextlib.suppress(psutil.Error):
                top = psutil.Process(self._pid)
                for process in (top, *top.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        java = process.name().startswith("java")
                        for part in process.memory_maps():
                            found["java" if java else "python"] += part.pss / MIB
                            if FRAMES in part.path:
                                found["frames"] += part.pss / MIB
            self._samples.append(Taken(found["java"], found["python"], found["frames"]))


@dataclass
class Result:
    """What a run gave. ``left``: records of the burst that the target still lacked when later ones
    of other partitions came to the source, and ``waited`` when these were at the target, by the
    brokers' clocks.
    """

    burst_records: int
    large_records: int
    start_s: float = 0.0
    burst_s: float = 0.0
    large_s: float = 0.0
    idle: Taken = Taken()
    burst: Taken = Taken()
    large: Taken = Taken()
    left: int = 0
    waited: int = 0

    @property
    def peak_mib(self) -> float:
        """The most of all processes together, whatever came."""
        return max(one.total_mib for one in (self.idle, self.burst, self.large))

    @property
    def bound_mib(self) -> float:
        """What the peak may be."""
        return memory_bound_mib(SLOTS, LARGE_BYTES if self.large_records else 0)

    def page(self) -> str:
        """As a table."""
        rows = {
            "from the start to the first record": f"{self.start_s:.1f} s",
            f"burst of {self.burst_records:,} records of {_BURST_BYTES:,} bytes": (
                f"{self.burst_s:.1f} s, as the target's quota allows"
            ),
            "records of the burst still to come when others were sent, when these had arrived": (
                f"{self.left:,}, {self.waited:,}"
            ),
            f"{self.large_records} records of 20 MB": f"{self.large_s:.1f} s",
            "memory before the burst, at most": str(self.idle),
            "memory during the burst, at most": str(self.burst),
            "memory while records of 20 MB came, at most": str(self.large),
            "stated bound": f"{self.bound_mib:,.0f} MiB",
        }
        lines = ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())]
        return "\n".join(lines) + "\n"


class Pressure:
    """The topics, the traffic and the mirror of one run, in ``directory``."""

    def __init__(
        self, source: KafkaCluster, target: KafkaCluster, directory: Path, *, alias: str = "A"
    ) -> None:
        self.source, self.target, self.alias = source, target, alias
        self._directory = directory
        self.burst, self.single, self.large = (
            f"{alias}-{kind}" for kind in ("burst", "single", "large")
        )
        settings = {
            "bootstrap.servers": source.bootstrap_servers,
            "enable.idempotence": True,
            "message.max.bytes": LARGE_BYTES + 500_000,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
        self._producer, self._beside = Producer(settings), Producer(settings)
        self._sent = 0
        self._consumer = Consumer(
            {"bootstrap.servers": target.bootstrap_servers, "group.id": "pressure", "log_level": 0}
        )
        self._failures: list[str] = []

    def run(self, *, burst_mb: int, large: int) -> Result:
        """The whole of it. Raises AssertionError when records do not arrive."""
        result = Result(burst_mb * 1_000_000 // _BURST_BYTES, large)
        create_topic(self.source, self.burst, 2)
        create_topic(self.source, self.single, 2)
        create_topic(self.source, self.large, 1, config=_MAX_MESSAGE)
        for topic in (self.burst, self.single):
            create_topic(self.target, f"{self.alias}.{topic}", 2, config=_STAMPED)
        path = self._directory / "mm2.properties"
        topics = rf"{self.alias}-.*"
        write_config(path, self.source, self.target, topics, alias=self.alias)
        began = time.monotonic()
        mirror = Mirror(self._directory, path)
        try:
            with Footprint(mirror.process.pid) as memory:
                self._send(self.single, 2, 10, b"first")
                self._arrived(self.single, 10, 600, mirror)
                result.start_s = time.monotonic() - began
                memory.begin()
                self._steadily(5.0)
                result.idle = memory.peak()
                memory.begin()
                self._burst(result, mirror)
                result.burst = memory.peak()
                memory.begin()
                began = time.monotonic()
                # One at a time: how many copies of two records meet is a matter of chance.
                for number in range(large):
                    self._send(self.large, 1, 1, os.urandom(LARGE_BYTES))
                    self._arrived(self.large, number + 1, 300, mirror)
                result.large_s = time.monotonic() - began
                result.large = memory.peak()
            assert mirror.drain() == 0, mirror.output()
        finally:
            mirror.kill()
            self._consumer.close()
        assert not self._failures, self._failures
        return result

    def _steadily(self, for_s: float) -> None:
        for _ in range(int(for_s * 10)):
            self._send(self.burst, 2, _MEAN_PER_S // 10, bytes(_RECORD_BYTES))
            self._sent += _MEAN_PER_S // 10
            time.sleep(0.1)

    def _burst(self, result: Result, mirror: Mirror) -> None:
        already = self._sent
        payload = os.urandom(_BURST_BYTES)
        total = already + result.burst_records
        began = time.monotonic()
        self._send(self.burst, 2, result.burst_records, payload, flush=False)
        # As soon as some of it is there, single records elsewhere: they must not wait for the rest.
        while self._end(self.burst) < already + result.burst_records // 50:
            assert mirror.process.poll() is None, mirror.output()
            self._producer.poll(0.05)
        self._send(self.single, 2, 2, b"single", producer=self._beside)
        self._arrived(self.single, 12, 300, mirror)
        self._flush(self._producer)
        self._arrived(self.burst, total, 600, mirror)
        result.burst_s = time.monotonic() - began
        sent = consume_all(self.source, self.single)
        arrived = consume_all(self.target, f"{self.alias}.{self.single}")
        result.left = self._burst_after(max(one.timestamp_ms for one in sent))
        result.waited = self._burst_after(max(one.timestamp_ms for one in arrived))

    def _burst_after(self, at_ms: int) -> int:
        """Records of the burst that the target took from ``at_ms`` on."""
        remote = f"{self.alias}.{self.burst}"
        wanted = [TopicPartition(remote, number, at_ms) for number in range(2)]
        later = 0
        for found in self._consumer.offsets_for_times(wanted, timeout=TIMEOUT_S):
            _, end = self._consumer.get_watermark_offsets(found, timeout=TIMEOUT_S)
            later += end - found.offset if found.offset >= 0 else 0
        return later

    def _send(
        self,
        topic: str,
        partitions: int,
        count: int,
        value: bytes,
        *,
        producer: Producer | None = None,
        flush: bool = True,
    ) -> None:
        chosen = producer or self._producer
        for number in range(count):
            while True:
                try:
                    chosen.produce(
                        topic, value, partition=number % partitions, on_delivery=self._delivered
                    )
                    break
                except BufferError:
                    chosen.poll(0.1)
            chosen.poll(0)
        if flush:
            self._flush(chosen)

    def _flush(self, producer: Producer) -> None:
        assert producer.flush(300) == 0, "the source does not take the records"

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._failures.append(str(error))

    def _end(self, topic: str) -> int:
        """Records at the target: nothing here is transactional or compacted."""
        remote = f"{self.alias}.{topic}"
        if remote not in topic_names(self.target):
            return 0
        found = self._consumer.list_topics(remote, timeout=TIMEOUT_S).topics[remote].partitions
        places = [TopicPartition(remote, n) for n in found]
        try:
            ends = [self._consumer.get_watermark_offsets(tp, timeout=TIMEOUT_S) for tp in places]
        except KafkaException:  # the topic is just being made
            return 0
        return sum(end for _, end in ends)

    def _arrived(self, topic: str, count: int, timeout_s: float, mirror: Mirror) -> None:
        deadline = time.monotonic() + timeout_s
        while (there := self._end(topic)) < count:
            late = time.monotonic() > deadline or mirror.process.poll() is not None
            assert not late, f"{topic}: {there} of {count}\n{mirror.output()}"
            time.sleep(0.1)
        assert there == count, f"{topic}: {there}, not {count}"


def limit_target(cluster: KafkaCluster, mb_per_s: int) -> None:
    """A quota for all clients of ``cluster``."""
    quota = f"producer_byte_rate={mb_per_s * 1_000_000}"
    done = cluster.tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", cluster.bootstrap_servers, "--alter", "--add-config", quota),
        *("--entity-type", "clients", "--entity-default"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
