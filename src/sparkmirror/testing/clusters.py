"""Real Apache Kafka clusters on demand, from the broker's own jars.

::

    with KafkaCluster("A") as a:
        print(a.bootstrap_servers)

A cluster has one or three nodes in KRaft combined mode, each in its own JVM on free ports of
127.0.0.1. Versions before 3.3 use ZooKeeper (see ``zookeeper``), versions up to 3.9 optionally.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from sparkmirror.errors import Defect, MachineError
from sparkmirror.testing.guard import forget, guard_directory
from sparkmirror.testing.jvm import (
    KAFKA_VERSION,
    QUICK_JVM,
    SERVER_JVM,
    KafkaRuntime,
    kafka_jars,
    tools_version,
)
from sparkmirror.testing.maven import Fetching
from sparkmirror.testing.node import (
    HOST,
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Node,
    PortTaken,
    kraft_properties,
    tail,
)
from sparkmirror.testing.probe import free_ports, port_is_free
from sparkmirror.testing.zookeeper import ZooKeeper, needs_zookeeper, zookeeper_properties

__all__ = ["KAFKA_VERSION", "QUICK_JVM", "SERVER_JVM", "KafkaCluster", "kafka_jars", "start_all"]

_POLL_S = 0.05
_START_ATTEMPTS = 3
_formatted: dict[Path, dict[str, bytes]] = {}
"""What Kafka's tool wrote into a data directory, by the archive that a version has of its own."""


@dataclass
class KafkaCluster:
    """A Kafka cluster of ``nodes`` brokers (1 or 3), each also a controller.

    ``directory``: the data directory, which is kept; None: a temporary one that is removed with the
    cluster. ``config``: broker properties that override the defaults. ``ports``: listening port of
    each node; empty: free ones. ``node_config``: properties of one broker that override ``config``
    (its rack, its own listener). ``heap``: ``-Xmx`` of each JVM. ``jvm``: flags, see ``QUICK_JVM``.
    ``chroot``: the ZooKeeper path of the brokers' metadata (``/``, ``/kafka/west``); None: KRaft,
    if the version has it. ``jars``: additional jars on the brokers' class path, as Maven
    coordinates.
    """

    name: str
    nodes: int = field(default=1, kw_only=True)
    version: str = field(default=KAFKA_VERSION, kw_only=True)
    directory: Path | None = field(default=None, kw_only=True)
    config: Mapping[str, str] | None = field(default=None, kw_only=True)
    node_config: Callable[[Node], Mapping[str, str]] | None = field(default=None, kw_only=True)
    heap: str = field(default="512m", kw_only=True)
    ports: Sequence[int] = field(default=(), kw_only=True)
    chroot: str | None = field(default=None, kw_only=True)
    jvm: Sequence[str] = field(default=QUICK_JVM, kw_only=True)
    jars: Sequence[str] = field(default=(), kw_only=True)
    progress: Callable[[Fetching], None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.nodes not in (1, 3):
            raise Defect("a quorum of two is no safer than one: 1 or 3 nodes")
        if len(self.ports) not in (0, self.nodes):
            raise Defect("one port for each node, or none")
        major = int(self.version.partition(".")[0])
        if self.chroot is not None and major >= 4:
            raise Defect("Kafka 4 does not support ZooKeeper")
        self._nodes: list[Node] = []
        self._home: Path | None = None
        self._cluster_id = _random_id()
        self._runtime: KafkaRuntime | None = None
        self._tool_runtime: KafkaRuntime | None = None
        self._zookeeper: ZooKeeper | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every node, joined by commas."""
        return ",".join(f"{HOST}:{node.port}" for node in self._nodes)

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Broker ids, from 1."""
        return tuple(node.id for node in self._nodes)

    @property
    def alive(self) -> frozenset[int]:
        """Ids of the nodes whose process is running."""
        return frozenset(node.id for node in self._nodes if node.runs)

    @property
    def runtime(self) -> KafkaRuntime:
        """Java and the jars; found, and downloaded if necessary, at the first use."""
        if self._runtime is None:
            self._runtime = KafkaRuntime.find(
                self.version, further=self.jars, progress=self.progress
            )
        return self._runtime

    @property
    def tool_runtime(self) -> KafkaRuntime:
        """The same for Kafka's command-line tools, which may be of another version."""
        if self._tool_runtime is None:
            version = tools_version(self.version)
            same = version == self.version
            self._tool_runtime = (
                self.runtime if same else KafkaRuntime.find(version, progress=self.progress)
            )
        return self._tool_runtime

    @property
    def zookeeper(self) -> str:
        """``zookeeper.connect`` with its chroot; empty for brokers without ZooKeeper."""
        if self._zookeeper is None:
            return ""
        return self._zookeeper.connect + (self.chroot or "").rstrip("/")

    def start(self) -> None:
        """Start all nodes; returns when each one responds and knows the others.

        Raises MachineError: no Java, no network for the first download, a port in use, a broker
        that ends at once (with the line of its log that says why).
        """
        start_all(self)

    def stop(self) -> None:
        """Stop all nodes, gracefully if they end in time, and remove a temporary directory."""
        for node in self._nodes:
            node.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for node in self._nodes:
            node.end(self.runtime, deadline)
        if self._zookeeper is not None:
            self._zookeeper.stop()
            self._zookeeper = None
        if self.directory is None and self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            forget(self._home)
            self._home = None
            self._nodes = []

    def kill(self, node: int = 1) -> None:
        """Kill broker ``node`` (SIGKILL), without a controlled shutdown."""
        self._node(node).end(self.runtime, deadline=0.0)

    def terminate(self, node: int = 1) -> None:
        """Shut broker ``node`` down (controlled shutdown: leadership moves away first)."""
        target = self._node(node)
        target.terminate()
        target.end(self.runtime, time.monotonic() + STOP_TIMEOUT_S)

    def freeze(self, node: int = 1) -> None:
        """Freeze broker ``node`` (SIGSTOP): its connections stay open without responses."""
        os.kill(self.pid(node), signal.SIGSTOP)

    def thaw(self, node: int = 1) -> None:
        """Resume a frozen broker (SIGCONT)."""
        os.kill(self.pid(node), signal.SIGCONT)

    def restart(self, node: int = 1) -> None:
        """Restart broker ``node`` on its port and data; a running one is shut down first."""
        target = self._node(node)
        self.terminate(node)
        if self._zookeeper is not None:
            self._zookeeper.wait_until_forgotten(node, (self.chroot or "").rstrip("/"))
        target.launch(self.runtime, heap=self.heap, flags=self.jvm)
        self._wait_ready([target], others=self.alive)

    def log_tail(self, node: int = 1, lines: int = 40) -> str:
        """The last ``lines`` lines that broker ``node`` logged."""
        return tail(self.log_path(node), lines)

    def log_path(self, node: int = 1) -> Path:
        """The log file of broker ``node``."""
        return self._node(node).log

    def data_path(self, node: int = 1) -> Path:
        """The data directory of broker ``node``, with a directory for each partition."""
        return self._node(node).data

    def pid(self, node: int = 1) -> int:
        """Process id of broker ``node``, which must be running."""
        process = self._node(node).process
        if process is None:
            raise Defect(f"broker {node} does not run")
        return process.pid

    def tool_command(
        self,
        main_class: str,
        *arguments: str,
        heap: str = "256m",
        flags: Sequence[str] = QUICK_JVM,
    ) -> list[str]:
        """The command line of one of Kafka's own Java tools, for the caller to run."""
        return self.tool_runtime.command(main_class, *arguments, heap=heap, flags=flags)

    def tool(
        self,
        main_class: str,
        *arguments: str,
        input: str = "",
        timeout_s: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's own tools to its end, with the class path of `tool_runtime`.

        ``cluster.tool("org.apache.kafka.tools.TopicCommand", "--list", ...)``. The result has
        ``returncode``, ``stdout`` and ``stderr``. Raises MachineError if the tool takes longer than
        ``timeout_s``.
        """
        try:
            return subprocess.run(  # noqa: S603  (an argument list, no shell)
                self.tool_command(main_class, *arguments),
                input=input,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MachineError(
                f"Kafka's tool did not end within {timeout_s:.0f} s.",
                where=main_class,
                do=f"Look at the brokers' logs: {self._home}.",
            ) from error

    # -- starting -----------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Prepare jars, directories, ports, properties and ZooKeeper for the brokers."""
        runtime = self.runtime
        for port in self.ports:
            if not port_is_free(port):
                raise MachineError(
                    f"Port {port} is in use by another process.",
                    where=f"cluster {self.name}",
                    do="Name another port, or none to use a free one.",
                )
        if self._home is None:
            self._home = self.directory or self._temporary_directory()
        if not self._nodes:
            found = free_ports(2 * self.nodes)
            for index in range(self.nodes):
                port = self.ports[index] if self.ports else found[index]
                directory = self._home / f"node-{index + 1}"
                self._nodes.append(Node(index + 1, directory, port, found[self.nodes + index]))
        if self._in_zookeeper and self._zookeeper is None:
            self._zookeeper = ZooKeeper(runtime, self._home / "zookeeper", *free_ports(1))
            self._zookeeper.start()
        for node in self._nodes:
            own = self.node_config(node) if self.node_config is not None else {}
            node.write_properties({**self._properties(node), **(self.config or {}), **own})

    @property
    def _in_zookeeper(self) -> bool:
        return self.chroot is not None or needs_zookeeper(self.version)

    def _temporary_directory(self) -> Path:
        home = Path(tempfile.mkdtemp(prefix=f"sparkmirror-{self.name}-"))
        guard_directory(home)
        return home

    def _properties(self, node: Node) -> dict[str, str]:
        if self._zookeeper is not None:
            return zookeeper_properties(node, self.nodes, self.zookeeper)
        return kraft_properties(node, self._nodes)

    def _wait_ready(self, nodes: Sequence[Node], others: frozenset[int]) -> None:
        """Wait until each of ``nodes`` responds and knows all of ``others``."""
        deadline = time.monotonic() + START_TIMEOUT_S
        waiting = list(nodes)
        while waiting:
            waiting = [node for node in waiting if not node.ready(others)]
            for node in waiting:
                if not node.runs:
                    raise node.failure(self.name, "ended while it was starting")
                if time.monotonic() > deadline:
                    raise node.failure(self.name, f"did not respond in {START_TIMEOUT_S:.0f} s")
            if waiting:
                time.sleep(_POLL_S)

    def _abandon(self) -> None:
        """Kill the processes of a failed start, and remove its files."""
        for node in self._nodes:
            node.end(self.runtime, deadline=0.0)
        self.stop()
        self._nodes = []

    def _node(self, number: int) -> Node:
        return next(node for node in self._nodes if node.id == number)


def start_all(*clusters: KafkaCluster) -> None:
    """Start several clusters at the same time; afterwards all of them run, or none.

    Raises MachineError, see ``KafkaCluster.start``.
    """
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            for cluster in clusters:
                cluster._prepare()
            _format(clusters)
            for cluster in clusters:
                for node in cluster._nodes:
                    if not node.runs:
                        node.launch(cluster.runtime, heap=cluster.heap, flags=cluster.jvm)
            for cluster in clusters:
                cluster._wait_ready(cluster._nodes, others=frozenset(cluster.node_ids))
            return
        except BaseException as error:
            for cluster in clusters:
                cluster._abandon()
            # Another process took a port after we chose it and before the broker used it.
            if not isinstance(error, PortTaken) or attempt == _START_ATTEMPTS:
                raise


def _format(clusters: Sequence[KafkaCluster]) -> None:
    """Format all new data directories: Kafka's tool the first of a version, the others like it.

    The tool takes a second of processor time for each.
    """
    new = [
        (cluster, node)
        for cluster in clusters
        for node in cluster._nodes
        if not cluster._in_zookeeper and not node.formatted
    ]
    started = {}
    for cluster, node in new:
        key = cluster.runtime.archive
        if key not in _formatted and key not in started:
            started[key] = (cluster, node, node.format(cluster.runtime, cluster._cluster_id))
    deadline = time.monotonic() + START_TIMEOUT_S
    for _, _, process in started.values():
        try:
            process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        forget(process.pid)
    for key, (cluster, node, process) in started.items():
        if process.returncode != 0:
            what = f"could not format its directory (exit {process.returncode})"
            raise node.failure(cluster.name, what)
        _formatted[key] = node.format_files()
    for cluster, node in new:
        if not node.formatted:
            ids = {"cluster.id": cluster._cluster_id, "directory.id": _random_id()}
            node.write_format(_formatted[cluster.runtime.archive], ids)


def _random_id() -> str:
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # The tool's command line would take a leading dash as an option.
        if not text.startswith("-"):
            return text
