"""The real command as a subprocess, and a look at what brokers really stored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkmirror.demo.clusters import KafkaCluster
from sparkmirror.wire.batch import HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES


class MirrorProcess:
    """``sparkmirror run FILE`` (or another command line), its JSON lines, its end."""

    def __init__(self, directory: Path, arguments: list[str], *, module: str = "main") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.output = directory / f"output-{time.monotonic_ns()}.txt"
        environment = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"sparkmirror.cli.{module}", *arguments],
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
            )

    def wait(self, timeout_s: float = 120.0) -> int:
        """Exit code; kills and fails when it takes longer."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {timeout_s} s:\n{self.text()}") from None

    def drain(self, timeout_s: float = 20.0) -> tuple[int, float]:
        """SIGTERM; (exit code, seconds that it took)."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s), time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL to the driver; Spark's JVM ends when its standard input closes."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def documents(self) -> list[dict[str, Any]]:
        """The JSON lines so far."""
        return [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]


def write_mm2(
    path: Path, a: KafkaCluster, b: KafkaCluster, topics: str, extra: dict[str, str] | None = None
) -> Path:
    """A MirrorMaker 2 file for A->B on one-node clusters."""
    settings = {
        "clusters": "A, B",
        "A.bootstrap.servers": a.bootstrap_servers,
        "B.bootstrap.servers": b.bootstrap_servers,
        "A->B.enabled": "true",
        "A->B.topics": topics,
        "tasks.max": "2",
        "replication.factor": "1",
        "A.offset.storage.replication.factor": "1",
        "B.offset.storage.replication.factor": "1",
        "refresh.topics.interval.seconds": "2",
        **(extra or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    return path


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.2)


class StoredBatch:
    """Header fields of one batch in a broker's log."""

    def __init__(self, fields: tuple[int, ...]) -> None:
        self.magic, self.attributes, self.last_delta = fields[3], fields[5], fields[6]
        self.count = fields[12]

    def has(self, bit: int) -> bool:
        return bool(self.attributes & bit)


def stored(cluster: KafkaCluster, topic: str) -> list[StoredBatch]:
    """Headers of all magic 2 batches of a topic, read from the first node's log files."""
    found = []
    for path in sorted(Path(cluster.log_path()).parent.rglob(f"{topic}-*/*.log")):
        data, at = path.read_bytes(), 0
        while at + HEADER_BYTES <= len(data):
            fields = HEADER.unpack_from(data, at)
            if fields[1] <= 0:
                break
            found.append(StoredBatch(fields))
            at += LOG_OVERHEAD_BYTES + fields[1]
    return found
