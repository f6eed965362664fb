"""Fills the demo's topics with Kafka's own producers: first a history, then live traffic."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparkmirror.demo.limits import PATIENCE_S, programs_at_once
from sparkmirror.demo.scenario import (
    NULL_MARKER,
    TOPICS,
    DemoTopic,
    console_lines,
    metric_lines,
    payments,
)
from sparkmirror.demo.transactions import send_payments
from sparkmirror.errors import ClusterError, Defect, MirrorError
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.testing.guard import forget, spawn

__all__ = ["Traffic"]

# A leader of a new topic may refuse a producer's first batch and accept its second one, which is
# then the first that it knows. The first batch would stay out of order forever.
_ONE_IN_FLIGHT = "max.in.flight.requests.per.connection=1"
_POLL_S = 0.05
_HISTORY_LINES = {"orders": 2_000, "customers": 1_500, "invoices": 30}
_LIVE_LINES_PER_S = {"orders": 50.0, "customers": 25.0, "invoices": 1.0}
_HISTORY_PAYMENTS, _LIVE_PAYMENTS_PER_S = 60, 5.0
_PAYLOADS = 2_000


class Traffic:
    """Producers for all demo topics on ``cluster``.

    ``records``: total of the volume topics, half of it as history. ``directory``: for payload files
    and the tools' output. ``expected``: the number of records that each topic must contain.
    """

    def __init__(self, cluster: KafkaCluster, directory: Path, *, records: int, seed: int) -> None:
        self.expected: Counter[str] = Counter()
        self.aborted = 0
        self._cluster = cluster
        self._directory = directory
        self._records = records
        self._seed = seed
        self._stop = threading.Event()
        self._processes: list[tuple[DemoTopic, subprocess.Popen[bytes]]] = []
        self._threads: list[threading.Thread] = []
        self._failures: list[MirrorError] = []
        payloads = "".join(f"{line}\n" for line in metric_lines(seed, _PAYLOADS))
        self._payloads = directory / "metrics.txt"
        self._payloads.write_text(payloads, "utf-8")

    def preload(self) -> None:
        """Produce the history, of as many topics at the same time as the machine can bear.

        Raises like ``finish``.
        """
        at_once = programs_at_once()
        for topic in TOPICS:
            self._await_room(at_once)
            if topic.tool == "perf":
                self._perf(topic, self._volume(topic) // 2, per_s=-1)
            elif topic.tool == "console":
                count = _HISTORY_LINES[topic.name]
                self._console(topic, console_lines(topic.name, self._seed, count), pause_s=0.0)
            else:
                self._transactions(topic, "history", self._seed, _HISTORY_PAYMENTS, pause_s=0.0)
        self.finish()

    def start_live(self, seconds: float) -> None:
        """Start the live traffic, which ends by itself after about ``seconds``."""
        for topic in TOPICS:
            if topic.tool == "perf":
                count = self._volume(topic) - self._volume(topic) // 2
                self._perf(topic, count, per_s=max(1, round(count / seconds)))
            elif topic.tool == "console":
                per_s = _LIVE_LINES_PER_S[topic.name]
                count = max(1, round(per_s * seconds))
                first = _HISTORY_LINES[topic.name]
                lines = console_lines(topic.name, self._seed, count, first)
                self._console(topic, lines, pause_s=1 / per_s)
            else:
                count = round(_LIVE_PAYMENTS_PER_S * seconds)
                pause_s = 1 / _LIVE_PAYMENTS_PER_S
                self._transactions(topic, "live", self._seed + 1, count, pause_s=pause_s)

    @property
    def busy(self) -> bool:
        """Whether any producer still runs."""
        return any(thread.is_alive() for thread in self._threads) or any(
            process.poll() is None for _, process in self._processes
        )

    def finish(self) -> None:
        """Wait for all producers.

        Raises ClusterError with the tool's message if one failed or takes longer than five minutes.
        """
        deadline = time.monotonic() + PATIENCE_S
        try:
            for topic, process in self._processes:
                try:
                    code = process.wait(max(deadline - time.monotonic(), 0.0))
                except subprocess.TimeoutExpired:
                    raise self._failed(topic, f"did not end in {PATIENCE_S:.0f} s") from None
                if code != 0:
                    raise self._failed(topic, f"ended with exit code {code}")
            for thread in self._threads:
                thread.join(max(deadline - time.monotonic(), 0.0))
            if self._failures:
                raise self._failures[0]
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop all producers at once."""
        self._stop.set()
        for _, process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            forget(process.pid)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._processes, self._threads = [], []
        self._stop = threading.Event()

    def _await_room(self, at_once: int) -> None:
        """Wait until fewer than ``at_once`` JVMs run; who waits too long learns why in `finish`."""
        deadline = time.monotonic() + PATIENCE_S
        while sum(process.poll() is None for _, process in self._processes) >= at_once:
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)

    def _volume(self, topic: DemoTopic) -> int:
        return max(2, round(self._records * topic.share))

    def _log(self, topic: DemoTopic) -> Path:
        return self._directory / f"produce-{topic.name}.log"

    def _failed(self, topic: DemoTopic, what: str) -> ClusterError:
        lines = self._log(topic).read_text("utf-8", errors="replace").strip().splitlines()
        return ClusterError(
            f"Kafka's producer {what}: {lines[-1] if lines else 'it printed nothing'}",
            where=f"cluster {self._cluster.name}, topic {topic.name}",
            do=f"Look at {self._log(topic)} and at the broker's log.",
        )

    def _start(
        self, topic: DemoTopic, main_class: str, arguments: Sequence[str], *, feed: bool = False
    ) -> subprocess.Popen[bytes]:
        where = ("--bootstrap-server", self._cluster.bootstrap_servers, "--topic", topic.name)
        command = self._cluster.tool_command(main_class, *where, *arguments)
        with self._log(topic).open("ab") as log:
            source = subprocess.PIPE if feed else subprocess.DEVNULL
            process = spawn(command, output=log, input=source)
        self._processes.append((topic, process))
        return process

    def _perf(self, topic: DemoTopic, count: int, *, per_s: int) -> None:
        payload = ["--payload-file", str(self._payloads)]
        if topic.record_bytes:
            payload = ["--record-size", str(topic.record_bytes)]
        properties = [f"compression.type={topic.compression}", "linger.ms=5", _ONE_IN_FLIGHT]
        arguments = ["--num-records", str(count), "--throughput", str(per_s), *payload]
        arguments += ["--command-property", *properties]
        self._start(topic, "org.apache.kafka.tools.ProducerPerformance", arguments)
        self.expected[topic.name] += count

    def _console(self, topic: DemoTopic, lines: Iterator[str], *, pause_s: float) -> None:
        reader = ("parse.key=true", "parse.headers=true", f"null.marker={NULL_MARKER}")
        arguments = [word for value in reader for word in ("--reader-property", value)]
        arguments += ["--compression-codec", topic.compression, "--timeout", "20"]
        # By default it drops records that a busy broker does not accept within 1.5 s, with a line
        # on stderr and exit code 0.
        arguments += ["--request-timeout-ms", "60000", "--message-send-max-retries", "1000"]
        arguments += ["--command-property", _ONE_IN_FLIGHT]
        process = self._start(topic, "org.apache.kafka.tools.ConsoleProducer", arguments, feed=True)
        self._thread(f"feed {topic.name}", self._feed, topic, process, lines, pause_s)

    def _feed(
        self,
        topic: DemoTopic,
        process: subprocess.Popen[bytes],
        lines: Iterator[str],
        pause_s: float,
    ) -> None:
        if process.stdin is None:
            raise Defect("the process has no pipe to read from")
        stop = self._stop
        try:
            with process.stdin as stdin:
                for line in lines:
                    if stop.is_set():
                        return
                    stdin.write(line.encode() + b"\n")
                    self.expected[topic.name] += 1
                    if pause_s:
                        stdin.flush()
                        stop.wait(pause_s)
        except BrokenPipeError:
            if not stop.is_set():
                self._failures.append(self._failed(topic, "closed its input"))

    def _transactions(
        self, topic: DemoTopic, name: str, seed: int, count: int, *, pause_s: float
    ) -> None:
        def send() -> None:
            try:
                committed, aborted = send_payments(
                    self._cluster.bootstrap_servers,
                    topic.name,
                    payments(seed, count, topic.partitions),
                    transactional_id=f"demo-{name}",
                    pause_s=pause_s,
                    stop=stop,
                )
            except MirrorError as error:
                self._failures.append(error)
            else:
                self.expected[topic.name] += committed
                self.aborted += aborted

        stop = self._stop
        self._thread(f"transactions {name}", send)

    def _thread(self, name: str, target: object, *arguments: object) -> None:
        if not callable(target):
            raise Defect("a thread needs something that can be called")
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
