"""One broker process: its properties, its start, its readiness, its end."""

from __future__ import annotations

import re
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from sparkmirror.errors import Defect, MachineError
from sparkmirror.testing.guard import forget, spawn
from sparkmirror.testing.jvm import KafkaRuntime
from sparkmirror.testing.probe import broker_ids

__all__ = [
    "HOST",
    "START_TIMEOUT_S",
    "STOP_TIMEOUT_S",
    "Node",
    "PortTaken",
    "common_properties",
    "end",
    "kraft_properties",
    "tail",
]

HOST = "127.0.0.1"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 20.0
_IDENTITY = "meta.properties"


class PortTaken(MachineError):
    """A port was free when it was chosen, but in use when the broker started."""


@dataclass
class Node:
    """One broker: its directory and ports and, while it runs, its process.

    ``controller_port``: 0 for brokers that keep their metadata in ZooKeeper. ``recording``: the
    class archive that this process writes at its end, if any.
    """

    id: int
    directory: Path
    port: int
    controller_port: int = 0
    process: subprocess.Popen[bytes] | None = None
    recording: Path | None = None

    @property
    def log(self) -> Path:
        """The broker's log since its first start."""
        return self.directory / "server.log"

    @property
    def properties(self) -> Path:
        """The broker's ``server.properties``."""
        return self.directory / "server.properties"

    @property
    def data(self) -> Path:
        """The directory of the broker's partition logs."""
        return self.directory / "data"

    @property
    def formatted(self) -> bool:
        """Whether the data directory was already formatted for a KRaft cluster."""
        return (self.data / _IDENTITY).exists()

    @property
    def runs(self) -> bool:
        """Whether the process is running."""
        return self.process is not None and self.process.poll() is None

    def write_properties(self, properties: Mapping[str, str]) -> None:
        """Write ``server.properties``."""
        self.directory.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        self.properties.write_text(text, "utf-8")

    def format(self, runtime: KafkaRuntime, cluster_id: str) -> subprocess.Popen[bytes]:
        """Start to format the data directory; the caller waits for the process."""
        arguments = ("format", "-t", cluster_id, "-c", str(self.properties))
        command = runtime.command("kafka.tools.StorageTool", *arguments, heap="128m")
        with self.log.open("ab") as log:
            return spawn(command, output=log)

    def format_files(self) -> dict[str, bytes]:
        """What the tool wrote into the data directory, by the names of its files."""
        return {path.name: path.read_bytes() for path in self.data.iterdir() if path.is_file()}

    def write_format(self, files: Mapping[str, bytes], ids: Mapping[str, str]) -> None:
        """Format the data directory with what the tool wrote into another one.

        ``ids``: what ``meta.properties`` says of this directory instead, if it says it at all.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            if name != _IDENTITY:
                (self.data / name).write_bytes(content)
        text = files[_IDENTITY].decode()
        for key, value in {**ids, "node.id": str(self.id)}.items():
            text = re.sub(rf"^{re.escape(key)}=.*$", f"{key}={value}", text, flags=re.MULTILINE)
        (self.data / _IDENTITY).write_text(text, "utf-8")

    def launch(self, runtime: KafkaRuntime, *, heap: str, flags: Sequence[str]) -> None:
        """Start the broker; see ``ready``."""
        self.recording = runtime.archive_to_record() if self.id == 1 else None
        command = runtime.command(
            "kafka.Kafka",
            str(self.properties),
            heap=heap,
            # A broker that is killed leaves unpacked libraries here.
            flags=(*flags, f"-Djava.io.tmpdir={self._temporary_directory()}"),
            log_level="info",
            record_archive=self.recording,
        )
        with self.log.open("ab") as log:
            self.process = spawn(command, output=log)

    def _temporary_directory(self) -> Path:
        directory = self.properties.parent / "tmp"
        directory.mkdir(exist_ok=True)
        return directory

    def ready(self, others: frozenset[int]) -> bool:
        """Whether the broker responds and knows that all of ``others`` are alive.

        Another process may have taken the port since it was chosen, and be a broker, or none.
        """
        try:
            return broker_ids(HOST, self.port) >= others and self._listens()
        except (OSError, EOFError, ValueError, struct.error):
            return False

    def _listens(self) -> bool:
        """Whether it is the process of this node that listens on its port."""
        if self.process is None:
            return False
        try:
            found = psutil.Process(self.process.pid).net_connections("tcp")
        except psutil.Error:  # it has just ended
            return False
        return any(
            one.status == psutil.CONN_LISTEN and one.laddr.port == self.port for one in found
        )

    def terminate(self) -> None:
        """Send SIGTERM (controlled shutdown); ``end`` waits for the process."""
        if self.runs:
            if self.process is None:
                raise Defect("the node has no process")
            self.process.send_signal(signal.SIGTERM)

    def end(self, runtime: KafkaRuntime, deadline: float) -> None:
        """Wait for the process until ``deadline`` (monotonic seconds), then kill it."""
        if self.process is None:
            return
        in_peace = end(self.process, deadline)
        self.process = None
        if self.recording is not None:
            runtime.keep_archive(self.recording, complete=in_peace)
            self.recording = None

    def failure(self, cluster: str, what: str) -> MachineError:
        """The error for a broker that did not start, with the line of its log that says why."""
        log = tail(self.log, 200)
        where = f"cluster {cluster}, {self.log}"
        if re.search(r"Address already in use|Socket server failed to bind", log):
            return PortTaken(
                f"A port of broker {self.id} was taken by another process while it was starting.",
                where=where,
                do="Start again, or name other ports.",
            )
        # The line of the exception says more than the one that it is logged with.
        lines = log.splitlines()
        cause = [line for line in lines if re.search(r"Exception: .", line)]
        cause += [line for line in lines if re.search(r"ERROR|FATAL|Exception", line)]
        return MachineError(
            f"Broker {self.id} {what}: {cause[0].strip() if cause else tail(self.log, 3)}",
            where=where,
            do="Check free memory and disk, and that no other broker uses the directory.",
        )


def end(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait until ``deadline`` (monotonic seconds), then kill; True if it ended by itself."""
    try:
        process.wait(max(deadline - time.monotonic(), 0.0))
        in_peace = process.returncode in (0, 128 + signal.SIGTERM)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        in_peace = False
    forget(process.pid)
    return in_peace


def tail(path: Path, lines: int) -> str:
    """The last ``lines`` lines of a text file; empty if it does not exist."""
    try:
        return "\n".join(path.read_text("utf-8", errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def kraft_properties(node: Node, nodes: Sequence[Node]) -> dict[str, str]:
    """Properties of one combined broker and controller, for small size and a quick start."""
    voters = ",".join(f"{one.id}@{HOST}:{one.controller_port}" for one in nodes)
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": str(len(nodes)),
        "share.coordinator.state.topic.min.isr": str(min(len(nodes), 2)),
        # A killed broker can restart only after its old session has expired.
        "broker.heartbeat.interval.ms": "300",
        "broker.session.timeout.ms": "3000",
        # Without a no-op record every half second, an idle broker needs half the processor time.
        "metadata.max.idle.interval.ms": "0",
        **common_properties(node, len(nodes)),
    }


def common_properties(node: Node, nodes: int) -> dict[str, str]:
    """Properties of brokers of every version; ``nodes`` is their number."""
    return {
        "log.dirs": str(node.data),
        # A mirror's metadata request must never recreate a deleted topic.
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": str(nodes),
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": str(nodes),
        "transaction.state.log.min.isr": str(min(nodes, 2)),
        "group.initial.rebalance.delay.ms": "0",
        "replica.fetch.wait.max.ms": "1000",  # fewer requests of idle followers
        "log.retention.check.interval.ms": "86400000",
        # The default buffer would take a quarter of the heap.
        "log.cleaner.dedupe.buffer.size": "8388608",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "controlled.shutdown.retry.backoff.ms": "500",
    }
