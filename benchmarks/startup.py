"""Start to first record: ``python -m benchmarks.startup [--runs N] [--round-trip-ms MS] [--show]``.

Two one-node clusters, one topic with a record; each run is the real command from the start of its
process until the target has one record more. Between the runs the mirror is stopped in order and
another record is written, so the second run on is what a restart costs. With ``--round-trip-ms``
both clusters are that far away from the mirror. Figures mean something on a quiet machine only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.measure import TreeWatch, end_offsets
from benchmarks.wan import Point, places, way
from sparkmirror.testing.clusters import KafkaCluster

__all__ = ["Start", "measure_start"]

_TOPIC = "startup"
_TIMEOUT_S = 120.0
_POLL_S = 0.02


@dataclass
class Start:
    """One run: seconds until the first record, CPU seconds until then, and when it said what."""

    first_record_s: float
    cpu_s: float
    said: list[tuple[float, str]] = field(default_factory=list)


def measure_start(
    command: list[str],
    tree: Path,
    consumer: Consumer,
    topic: str,
    directory: Path,
    *,
    hold_s: float = 0.0,
) -> Start:
    """Start ``command`` of a source tree, wait until ``topic`` grows on the target, and end it."""
    before = end_offsets(consumer, topic, 1)
    said: list[tuple[float, str]] = []
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "XDG_STATE_HOME": str(directory),
            "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)]),
        },
    )
    watch = TreeWatch(process.pid)

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append((time.monotonic() - began, line.rstrip()))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while end_offsets(consumer, topic, 1) <= before:
            if process.poll() is not None or time.monotonic() - began > _TIMEOUT_S:
                raise SystemExit("no record came:\n" + "\n".join(line for _, line in said))
            time.sleep(_POLL_S)
        first_record_s = time.monotonic() - began
        watch.sample()
        cpu_s = watch.cpu_s()
        time.sleep(hold_s)
    finally:
        watch.close()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(30)
        reader.join(5)
    return Start(first_record_s, cpu_s, said)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print one line of JSON per run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument(
        "--also", type=Path, help="a source tree to take turns with, as in `git worktree`"
    )
    parser.add_argument(
        "--hold",
        type=float,
        default=0.0,
        help="seconds that the first run goes on, for what is made meanwhile",
    )
    parser.add_argument("--round-trip-ms", type=float, default=0.0, help="to both clusters")
    parser.add_argument("--show", action="store_true", help="print when each run said what")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="startup-") as name,
        way("cubic") as over,
        places(over) as there,
        over.at(Point("both", options.round_trip_ms, 0.0), there.far_ports),
    ):
        trees = [Path(__file__).parents[1], *([options.also] if options.also else [])]
        servers = there.servers("both" if options.round_trip_ms else "neither")
        _runs(options, trees, there.clusters, servers, Path(name))
    return 0


def _runs(
    options: argparse.Namespace,
    trees: list[Path],
    clusters: Sequence[KafkaCluster],
    servers: Sequence[str],
    directory: Path,
) -> None:
    source, target = (cluster.bootstrap_servers for cluster in clusters)
    file = directory / "mm2.properties"
    file.write_text(
        f"clusters = A, B\nA.bootstrap.servers = {servers[0]}\n"
        f"B.bootstrap.servers = {servers[1]}\n"
        f"A->B.enabled = true\nA->B.topics = {_TOPIC}\ntasks.max = 2\nreplication.factor = 1\n"
        "offset.storage.replication.factor = 1\noffset-syncs.topic.replication.factor = 1\n"
        "checkpoints.topic.replication.factor = 1\nheartbeats.topic.replication.factor = 1\n"
    )
    admin = AdminClient({"bootstrap.servers": source})
    admin.create_topics([NewTopic(_TOPIC, 1, 1)])[_TOPIC].result(30)
    producer = Producer({"bootstrap.servers": source})
    consumer = Consumer({"bootstrap.servers": target, "group.id": "startup", "log_level": 0})
    command = [str(Path(sys.executable).parent / "sparkmirror"), "run", str(file)]
    try:
        for number, tree in ((n, tree) for n in range(1, options.runs + 1) for tree in trees):
            producer.produce(_TOPIC, value=f"record {number}")
            producer.flush(30)
            start = measure_start(
                command,
                tree,
                consumer,
                f"A.{_TOPIC}",
                directory,
                hold_s=options.hold if number == 1 and tree is trees[0] else 0.0,
            )
            row = {
                "tree": tree.name,
                "run": number,
                "first_record_s": round(start.first_record_s, 2),
                "cpu_s": round(start.cpu_s, 1),
            }
            print(json.dumps(row), flush=True)
            if options.show:
                for at, line in start.said:
                    print(f"    {at:6.2f}  {line}", flush=True)
    finally:
        consumer.close()


if __name__ == "__main__":
    sys.exit(main())
