"""The demo from start to end: two clusters, traffic, the mirror, the comparison.

``Demo`` runs step by step and reports each step to a ``Teller``; ``cli.verbs.demo`` implements the
one that draws on the terminal.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from sparkmirror.demo.limits import PATIENCE_S, programs_at_once
from sparkmirror.demo.mirror import MirrorProcess, lag, mm2_properties, partitions_of
from sparkmirror.demo.scenario import TOPICS, new_topics
from sparkmirror.demo.tools import write_tools
from sparkmirror.demo.traffic import Traffic
from sparkmirror.demo.verify import read_topics
from sparkmirror.errors import ClusterError, MachineError
from sparkmirror.names.replication_policy import make_policy
from sparkmirror.observe.figures.comparison_result import PartitionResult, compare
from sparkmirror.settings import ClusterClient, PolicySettings
from sparkmirror.testing.clusters import KAFKA_VERSION, KafkaCluster, start_all
from sparkmirror.testing.guard import forget, guard_directory
from sparkmirror.testing.jvm import KafkaRuntime, tools_version
from sparkmirror.testing.maven import Fetching
from sparkmirror.wire.admin.cluster import Cluster

__all__ = ["Demo", "DemoOptions", "Teller"]

_LAST_LOOK_S = 2.0  # how long the live view shows a lag of 0 before it ends


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Size, location and display of the demo.

    ``records``: total of the volume topics. ``live_s``: seconds of live traffic. ``directory``:
    where to keep files; None: a temporary directory. ``ports``: of A and B; 0: any free port.
    ``live``: show the mirror's live view. ``kafka_version``: of the brokers of both clusters.
    """

    records: int = 200_000
    live_s: float = 12.0
    seed: int = 1
    directory: Path | None = None
    ports: tuple[int, int] = (0, 0)
    live: bool = True
    kafka_version: str = KAFKA_VERSION


class Teller(Protocol):
    """Shows what the demo does."""

    def fetching(self, progress: Fetching) -> None:
        """Show the progress of a download."""

    def step(self, doing: str) -> AbstractContextManager[Callable[[str], None]]:
        """Show that a step begins; it yields a function that takes the line to show at its end."""


class Demo:
    """One demo; a context manager that removes everything except ``options.directory``."""

    def __init__(self, options: DemoOptions, teller: Teller) -> None:
        self._options = options
        self._teller = teller
        self._stack = ExitStack()
        self._policy = make_policy(PolicySettings(), "A")
        self.names = [topic.name for topic in TOPICS]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def remote_topic(self, topic: str) -> str:
        """The name of ``topic`` on the target."""
        return self._policy.format_remote_topic("A", topic)

    def prepare(self) -> None:
        """Download Kafka, start both clusters, create the topics and the mirror's file."""
        version, fetching = self._options.kafka_version, self._teller.fetching
        with self._teller.step(f"Kafka {version}") as done:
            self.runtime = KafkaRuntime.find(version, progress=fetching)
            tools = tools_version(version)
            same = tools == version
            self.tools = self.runtime if same else KafkaRuntime.find(tools, progress=fetching)
            java = self.runtime.java
            done(
                f"Kafka {version}: {len(self.runtime.jars)} jars,"
                f" Java {java.version} ({java.source})"
                + ("" if same else f"; Kafka's own tools are those of {tools}")
            )
        self.directory = self._own_directory()
        with self._teller.step("Starting clusters A and B") as done:
            started = time.monotonic()
            self.a, self.b = self._clusters()
            start_all(self.a, self.b)
            for cluster in (self.a, self.b):
                self._stack.callback(cluster.stop)
            self.source, self.target = self._client(self.a), self._client(self.b)
            servers = f"A at {self.a.bootstrap_servers}, B at {self.b.bootstrap_servers}"
            done(f"{servers} ({time.monotonic() - started:.1f} s)")
        with self._teller.step("Creating topics on A") as done:
            self._create_topics()
            done(f"{len(TOPICS)} topics on A, {sum(one.partitions for one in TOPICS)} partitions")
        self.traffic = Traffic(
            self.a, self.directory, records=self._options.records, seed=self._options.seed
        )
        self._stack.callback(self.traffic.stop)
        write_tools(self.tools, self.directory / "bin")
        self.file = self.directory / "mm2.properties"
        self.file.write_text(mm2_properties(self.source, self.target, self.names), "utf-8")

    def mirror(self) -> None:
        """Run the mirror while traffic continues, until it has caught up; then drain it.

        Half of the volume is history, which is written while the mirror starts.
        """
        partitions = partitions_of(self.source, self.names)

        def started() -> bool:
            return lag(self.source, self.target, partitions, self.remote_topic)[1] > 0

        def caught_up() -> bool:
            return lag(self.source, self.target, partitions, self.remote_topic)[0] == 0

        options = self._options
        mirror = MirrorProcess(
            self.file, self.directory / "mirror", self.runtime.java, live=options.live
        )
        try:
            self.traffic.preload()
            mirror.wait_for(started, timeout_s=PATIENCE_S, what="the first record arrived")
            self.traffic.start_live(options.live_s)
            patience_s = options.live_s + PATIENCE_S
            mirror.wait_for(
                lambda: not self.traffic.busy, timeout_s=patience_s, what="the traffic ended"
            )
            self.traffic.finish()
            mirror.wait_for(caught_up, timeout_s=PATIENCE_S, what="it had caught up")
            end = time.monotonic() + _LAST_LOOK_S
            mirror.wait_for(lambda: time.monotonic() >= end, timeout_s=60, what="its last second")
            mirror.drain()
        finally:
            mirror.close()

    def verify(self) -> list[PartitionResult]:
        """Read and compare both clusters. Raises ClusterError if A lacks records that were sent."""
        with self._teller.step("Reading both clusters with Kafka's console consumer") as done:
            started = time.monotonic()
            remote = [self.remote_topic(name) for name in self.names]
            read = partial(read_topics, self.tools, at_once=programs_at_once() // 2)
            with ThreadPoolExecutor(2) as pool:
                on_a = pool.submit(read, self.source, self.names)
                on_b = pool.submit(read, self.target, remote)
                results = compare(on_a.result(), on_b.result(), self.remote_topic)
            self._check_sent(results)
            records = sum(one.source.records for one in results)
            done(f"{records:,} records read on each side ({time.monotonic() - started:.1f} s)")
        return results

    def _check_sent(self, results: Sequence[PartitionResult]) -> None:
        held: Counter[str] = Counter()
        for one in results:
            held[one.topic] += one.source.records
        for topic, count in self.traffic.expected.items():
            if held[topic] != count:
                raise ClusterError(
                    f"{count:,} records were sent, but {held[topic]:,} were found.",
                    where=f"cluster A, topic {topic}",
                    do=f"See {self.directory / f'produce-{topic}.log'} (use --dir to keep it).",
                )

    def _own_directory(self) -> Path:
        given = self._options.directory
        if given is None:
            directory = Path(tempfile.mkdtemp(prefix="sparkmirror-demo-"))
            guard_directory(directory)
            self._stack.callback(forget, directory)
            self._stack.callback(shutil.rmtree, directory, ignore_errors=True)
            return directory
        directory = given.expanduser().absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            used = any(directory.iterdir())
        except OSError as error:
            raise MachineError(
                f"The directory cannot be used ({error.strerror}).",
                where=f"--dir {given}",
                do="Name a directory that you may write to.",
            ) from error
        if used:
            raise MachineError(
                "The directory is not empty.",
                where=f"--dir {given}",
                do="Name a new directory: the demo fills it with clusters, logs and files.",
            )
        return directory

    def _clusters(self) -> tuple[KafkaCluster, KafkaCluster]:
        def cluster(name: str, port: int) -> KafkaCluster:
            directory = self.directory / f"kafka-{name}" if self._options.directory else None
            ports = (port,) if port else ()
            version = self._options.kafka_version
            return KafkaCluster(name, directory=directory, ports=ports, version=version)

        port_a, port_b = self._options.ports
        return cluster("A", port_a), cluster("B", port_b)

    def _client(self, cluster: KafkaCluster) -> Cluster:
        servers = (cluster.bootstrap_servers,)
        client = Cluster(ClusterClient(cluster.name, servers, "sparkmirror-demo"))
        self._stack.callback(client.close)
        return client

    def _create_topics(self) -> None:
        for outcome in self.source.create_topics(new_topics()).values():
            if outcome.error is not None:
                raise outcome.error
        # A topic is ready when all its partitions have leaders, shortly after it was created.
        deadline = time.monotonic() + PATIENCE_S
        while True:
            views = self.source.topics(self.names)
            if len(views) == len(self.names) and not any(v.leaderless for v in views.values()):
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"The new topics have no leaders after {PATIENCE_S:.0f} s.",
                    where="cluster A",
                    do="Check free memory and disk, then start the demo again.",
                )
            time.sleep(0.05)
