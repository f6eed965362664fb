"""The demo's mirror: a real ``mm2.properties`` file, and the real command that runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sparkmirror.errors import MirrorError
from sparkmirror.java import JavaHome, java_environment
from sparkmirror.model import TopicPartition
from sparkmirror.testing.guard import forget, guard_process
from sparkmirror.wire.admin.cluster import Cluster

__all__ = ["MirrorProcess", "lag", "mm2_properties", "partitions_of"]

_DRAIN_TIMEOUT_S = 120.0  # enough to write all records that were read, even on a busy machine
_END_TIMEOUT_S = 15.0
_POLL_S = 0.2


def mm2_properties(source: Cluster, target: Cluster, topics: Sequence[str]) -> str:
    """The text of a MirrorMaker 2 file for ``source->target``."""
    a, b = source.alias, target.alias
    return f"""# Written by `sparkmirror demo`. MirrorMaker 2 reads the same file.
clusters = {a}, {b}
{a}.bootstrap.servers = {",".join(source.client.bootstrap_servers)}
{b}.bootstrap.servers = {",".join(target.client.bootstrap_servers)}

{a}->{b}.enabled = true
{a}->{b}.topics = {", ".join(topics)}
tasks.max = 2
refresh.topics.interval.seconds = 10

# One broker each: one replica.
replication.factor = 1
{b}.offset.storage.replication.factor = 1

# This demo only mirrors records.
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
emit.offset-syncs.enabled = false
sync.topic.configs.enabled = false
sync.topic.acls.enabled = false
"""


def partitions_of(cluster: Cluster, topics: Sequence[str]) -> list[TopicPartition]:
    """All partitions of those ``topics`` that exist."""
    return [
        TopicPartition(name, number)
        for name, view in sorted(cluster.topics(topics).items())
        for number in range(view.partitions)
    ]


def lag(
    source: Cluster,
    target: Cluster,
    partitions: Sequence[TopicPartition],
    remote_topic: Callable[[str], str],
) -> tuple[int, int]:
    """(offsets still to mirror, partitions that have a position), read from the clusters.

    Positions are committed offsets in MirrorMaker 2 mode, so this does not need the mirror.
    """
    ends = source.end_offsets(partitions, "read_committed")
    starts = source.earliest_offsets(partitions)
    copies = {at: TopicPartition(remote_topic(at.topic), at.partition) for at in partitions}
    group = f"__mirror.{source.alias}->{target.alias}"
    committed = target.committed_offsets(group, list(copies.values()))
    missing = 0
    for at, copy in copies.items():
        position = committed[copy].offset if copy in committed else starts[at]
        missing += max(ends[at] - position, 0)
    return missing, len(committed)


class MirrorProcess:
    """``sparkmirror run FILE`` as a child that shares our terminal."""

    def __init__(self, file: Path, work_dir: Path, java: JavaHome, *, live: bool) -> None:
        environment = {**os.environ, **java_environment(java)}
        if not live:
            environment["TERM"] = "dumb"
        command = [sys.executable, "-P", "-m", "sparkmirror.cli.main", "run", str(file)]
        self._work_dir = work_dir
        # It stays in our process group, so that it receives Ctrl+C and keys from the terminal.
        self._process = subprocess.Popen(  # noqa: S603  (an argument list, no shell)
            [*command, "--work-dir", str(work_dir)], env=environment, text=False
        )
        guard_process(self._process.pid)

    def wait_for(self, condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
        """Wait until ``condition()``. Raises MirrorError if the mirror ends or time runs out."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                said = f"ended with exit code {code}" if code is not None else "timed out"
                raise MirrorError(
                    f"The mirror {said} before {what} (limit: {timeout_s:.0f} s).",
                    where=str(self._work_dir),
                    do="See the error above, or the log files there.",
                )
            time.sleep(_POLL_S)

    def drain(self) -> None:
        """Drain the mirror with SIGTERM. Raises MirrorError if it does not end with code 0."""
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_DRAIN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        self.close()
        if code != 0:
            said = "did not end" if code is None else f"ended with exit code {code}"
            raise MirrorError(
                f"The mirror {said} {_DRAIN_TIMEOUT_S:.0f} s after it was asked to drain."
                if code is None
                else f"The mirror {said} when it was asked to drain.",
                where=str(self._work_dir),
                do="See the error above, or the log files there.",
            )

    def close(self) -> None:
        """Stop the mirror with SIGTERM; kill it if it does not end in time."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        forget(self._process.pid)
