"""What is measured, and how: target end offsets, the process tree's CPU and memory, latencies."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.figures import SETTLED_MS, steady

__all__ = [
    "PROBE_RATE_MAX",
    "CatchUp",
    "Processors",
    "TreeWatch",
    "end_offsets",
    "latencies",
    "missed",
    "quantiles",
    "stalls",
    "warm_mirror",
    "watch_catch_up",
]

SAMPLE_S = 0.2
WARM_S, WARM_MAX_S = 8.0, 240.0
READERS_START_S, READERS_LATE_S = 2.5, 8.0
PROBE_RATE_MAX = 1_000
"""Records per second that the probe can write; Java's producer writes more."""


def end_offsets(consumer: Consumer, topic: str, partitions: int) -> int:
    """Sum of end offsets, 0 while the topic does not exist."""
    try:
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=5)[1]
            for index in range(partitions)
        )
    except KafkaException:
        return 0


class TreeWatch:
    """CPU seconds and memory of a process and all its children, sampled in a thread.

    A child that ends between two samples keeps its last figure; what it used after that, at most
    one sampling interval's worth, is not counted.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu_s: dict[tuple[int, float], float] = {}
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        memory_due = 0.0
        while not self._stop.wait(0.2):
            with_memory = time.monotonic() >= memory_due
            self.sample(with_memory)
            if with_memory:
                memory_due = time.monotonic() + 3.0

    def sample(self, with_memory: bool = False) -> None:
        """Look once."""
        resident = 0
        tree = self.processes()
        if not tree:
            return
        with self._lock:
            for process in tree:
                try:
                    times = process.cpu_times()
                    self._cpu_s[process.pid, process.create_time()] = times.user + times.system
                    if with_memory:
                        resident += process.memory_full_info().pss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
        self.peak_bytes = max(self.peak_bytes, resident)

    def processes(self) -> list[psutil.Process]:
        """The tree as it is now."""
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        self.sample()
        with self._lock:
            return sum(self._cpu_s.values())

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()


class Processors:
    """What becomes of the machine's processor time from now on.

    Made while brokers run and before a mirror starts, or while one runs that ``tree`` watches.
    """

    def __init__(self, tree: TreeWatch | None = None) -> None:
        self._tree_s = tree.cpu_s() if tree else 0.0
        mirror = set(tree.processes()) if tree else set()
        me = psutil.Process()
        self._ours = [one for one in (me, *me.children(recursive=True)) if one not in mirror]
        self._ours_s = self._spent_by_us()
        self._before = psutil.cpu_times()

    def _spent_by_us(self) -> float:
        """CPU seconds of the benchmark and its brokers, and of the probes that have ended."""
        spent = 0.0
        for process in self._ours:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            spent += times.user + times.system
        ended = os.times()
        return spent + ended.children_user + ended.children_system

    def shares(self, tree: TreeWatch) -> dict[str, float]:
        """Shares of all processor time since then.

        ``idle``: what nobody used. ``stolen``: what a virtual machine's host gave to others; 0 on a
        machine of one's own.
        ``elsewhere``: what was used here by neither brokers, mirror (``tree``) nor probes.
        """
        before, now = self._before, psutil.cpu_times()
        ours_s = self._spent_by_us() - self._ours_s + tree.cpu_s() - self._tree_s
        # A guest's time is counted as the user's, too.
        fields = [name for name in now._fields if not name.startswith("guest")]
        spent = {name: getattr(now, name) - getattr(before, name) for name in fields}
        total = sum(spent.values())
        if total <= 0:
            return {"idle": 0.0, "stolen": 0.0, "elsewhere": 0.0}
        idle, stolen = spent["idle"] + spent["iowait"], spent["steal"]
        return {
            "idle": max(0.0, idle / total),
            "stolen": max(0.0, stolen / total),
            "elsewhere": max(0.0, (total - idle - stolen - ours_s) / total),
        }


@dataclass
class CatchUp:
    """One peer's catch-up of one topic. Rates in records/s, CPU in seconds per GB of source log.

    ``window_s``: length of the steady state, which ``rate``, ``mb_per_s`` and ``cpu_s_per_gb`` are
    of. ``total_s``: the whole job, from the start of the command to the last record. ``stolen``,
    ``elsewhere``: see `Processors.shares`.
    """

    records: int
    gigabytes: float
    start_s: float = -1.0
    total_s: float = -1.0
    window_s: float = 0.0
    rate: float = 0.0
    mb_per_s: float = 0.0
    cpu_s_per_gb: float = 0.0
    cpu_s_start: float = 0.0
    peak_mb: float = 0.0
    complete: bool = False
    surplus: int = 0
    stolen: float = 0.0
    elsewhere: float = 0.0
    samples: list[tuple[float, int]] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        """As JSON."""
        return asdict(self)


def watch_catch_up(
    bootstrap: str,
    topic: str,
    partitions: int,
    result: CatchUp,
    tree: TreeWatch,
    started: float,
    timeout_s: float,
) -> None:
    """Follow the target topic until it holds all records; fill in ``result``."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-watch"})
    marks: list[tuple[float, int, float]] = []
    try:
        while time.monotonic() - started < timeout_s:
            count = end_offsets(consumer, topic, partitions)
            now = time.monotonic() - started
            cpu_s = tree.cpu_s()
            if count and result.start_s < 0:
                result.start_s, result.cpu_s_start = now, cpu_s
            marks.append((now, count, cpu_s))
            if count >= result.records:
                result.complete, result.total_s = True, now
                break
            time.sleep(SAMPLE_S)
        time.sleep(1.0)
        result.surplus = end_offsets(consumer, topic, partitions) - result.records
    finally:
        consumer.close()
    result.peak_mb = tree.peak_bytes / 1e6
    result.samples = [(round(at, 3), count) for at, count, _ in marks if count]
    _steady(result, marks)


def _steady(result: CatchUp, marks: list[tuple[float, int, float]]) -> None:
    ends = steady(marks, result.records)
    if ends is None:
        return
    (began, first, cpu_began), (ended, last, cpu_ended) = ends
    result.window_s = ended - began
    gigabytes = result.gigabytes * (last - first) / result.records
    result.rate = (last - first) / result.window_s
    result.mb_per_s = gigabytes * 1000 / result.window_s
    if gigabytes:
        result.cpu_s_per_gb = (cpu_ended - cpu_began) / gigabytes


# -- latency ---------------------------------------------------------------------------------------


def quantiles(values: list[float]) -> dict[str, float]:
    """p50 … max in ms of unsorted latencies."""
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    found = {
        name: round(ordered[min(last, int(len(ordered) * s))], 2) for name, s in shares.items()
    }
    return {**found, "max": round(ordered[-1], 2), "count": len(ordered)}


def missed(source: Mapping[str, float], target: Mapping[str, float], place: str = "target") -> str:
    """The readers' numbers of a probe's records, if they differ by more than 1 %; else nothing.

    ``source``, ``target``: of `quantiles`. Readers end some seconds after the writer: what comes
    later is in no quantile. ``place``: what the target is called.
    """
    wanted, got = int(source.get("count", 0)), int(target.get("count", 0))
    if wanted and abs(got - wanted) <= wanted // 100:
        return ""
    return f"{got:,} probes of {wanted:,} at the {place}"


def stalls(values: Sequence[float], above_ms: float = 100.0) -> int:
    """How often latencies rose above a limit; ``values``: in the order of arrival.

    A quantile does not tell one stall of a third of a second from thirty late records.
    """
    late = [value > above_ms for value in values]
    return sum(now and not before for before, now in zip([False, *late], late, strict=False))


def warm_mirror(
    source: str, target: str, topic: str, remote: str, partitions: int, *, form: Sequence[str] = ()
) -> None:
    """Let a mirror of ``topic`` mirror a first record, then 8,000 more, and wait for all of them.

    In the first seconds the JVMs of mirror and brokers compile what handles records. ``form``: as
    for `latencies`.
    """
    script = str(Path(__file__).with_name("probe.py"))
    there, copied = (
        Consumer({"bootstrap.servers": servers, "group.id": "warm"}) for servers in (source, target)
    )
    deadline = time.monotonic() + WARM_MAX_S

    def write(seconds: float) -> None:
        words = (source, topic, partitions, seconds, PROBE_RATE_MAX)
        subprocess.run([sys.executable, script, "write", *map(str, words), *form], check=True)

    def wait_for(records: int) -> None:
        while end_offsets(copied, remote, partitions) < records:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{remote} has not {records} records in {WARM_MAX_S:.0f} s")
            time.sleep(0.1)

    try:
        write(0.1)
        wait_for(1)
        write(WARM_S)
        wait_for(end_offsets(there, topic, partitions))
    finally:
        there.close()
        copied.close()


def latencies(
    source: str,
    target: str,
    topic: str,
    remote: str,
    partitions: int,
    *,
    rate: int,
    seconds: float,
    work: Path,
    writer: list[str] | None = None,
    form: Sequence[str] = (),
) -> dict[str, list[float]]:
    """Latencies in ms at the source itself and at the target, one probe producer for both.

    ``writer``: a command that writes instead of the probe. What is sent before the source itself
    keeps up with it (`settled_ms`) is left out. ``form``: ``json`` for documents as values.
    Raises RuntimeError if a reader fails.
    """
    probes = Path(__file__).with_name("probe.py")
    outputs = {"source": work / "probe-source.json", "target": work / "probe-target.json"}
    places = {"source": (source, topic), "target": (target, remote)}
    for path in outputs.values():
        path.unlink(missing_ok=True)
    readers = [
        subprocess.Popen(
            [
                sys.executable,
                str(probes),
                "read",
                bootstrap,
                name,
                str(partitions),
                str(seconds + READERS_LATE_S),
                str(outputs[place]),
            ]
        )
        for place, (bootstrap, name) in places.items()
    ]
    command = writer or [
        sys.executable,
        str(probes),
        "write",
        source,
        topic,
        str(partitions),
        str(seconds),
        str(rate),
        *form,
    ]
    try:
        time.sleep(READERS_START_S)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        codes = [reader.wait(seconds + 30) for reader in readers]
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
    if failed := [code for code in codes if code]:
        raise RuntimeError(f"a reader of {topic} or {remote} ended with exit code {failed[0]}")
    read = {place: json.loads(path.read_text()) for place, path in outputs.items()}
    counted_ms = 0.0 if writer is None else settled_ms(read["source"])
    return {
        place: [latency for sent, latency in pairs if sent >= counted_ms]
        for place, pairs in read.items()
    }


def settled_ms(pairs: list[tuple[float, float]]) -> float:
    """The moment from which on the source itself keeps up: a median below 20 ms in each second.

    ``pairs``: (sent at, latency) in ms. Java's producer and its broker take seconds to warm up for
    10,000 requests a second, and a backlog of theirs says nothing about a mirror. Where less than
    the last third of the run would be left, that third counts, and the source's own latency shows
    what is in it.
    """
    seconds: dict[int, list[float]] = {}
    for sent, latency in pairs:
        seconds.setdefault(int(sent // 1000), []).append(latency)
    order = sorted(seconds)
    behind = [second for second in order if statistics.median(seconds[second]) >= SETTLED_MS]
    first = behind[-1] + 1 if behind else order[0]
    return min(first, order[len(order) * 2 // 3]) * 1000.0
