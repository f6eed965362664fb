"""Thousands of partitions at the source that nobody mirrors: what their metadata costs a mirror.

usage: python -m tests.faults.partitions [--partitions 10000] [--burst-mb 100] [--report FILE]

A mirror under the pressure of `tests.faults.pressure`, without its large records. The exit code
is 1 when its processes took more memory than docs/capacity.md states.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import NewTopic

from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.faults.pressure import Pressure, limit_target
from tests.kafka.harness.support import TIMEOUT_S, admin

PER_TOPIC = 100
_PARTITIONS_PER_REQUEST = 1_000
_MAKE_S = 120.0
# A partition's indexes take 20 MiB of address space otherwise.
CONFIG = {"log.index.size.max.bytes": "4096", "log.cleaner.dedupe.buffer.size": "16777216"}


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.partitions", description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--burst-mb", type=int, default=100)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    source, target = (
        KafkaCluster("A", config=CONFIG, heap="1g"),
        KafkaCluster("B", config={"quota.window.num": "2"}),
    )
    start_all(source, target)
    try:
        began = time.monotonic()
        make_partitions(source, options.partitions)
        made_s = time.monotonic() - began
        limit_target(target, 25)
        with tempfile.TemporaryDirectory(prefix="sparkmirror-partitions-") as directory:
            result = Pressure(source, target, Path(directory)).run(
                burst_mb=options.burst_mb, large=0
            )
    finally:
        for cluster in (source, target):
            cluster.stop()
    page = f"{options.partitions:,} partitions that nobody mirrors, made in {made_s:.0f} s.\n\n"
    page += result.page()
    print(page)
    if options.report is not None:
        options.report.write_text(page)
    return int(result.peak_mib > result.bound_mib)


def make_partitions(
    cluster: KafkaCluster, count: int, *, per_topic: int = PER_TOPIC, broker: int | None = None
) -> list[str]:
    """``count`` partitions in topics of ``per_topic``; all have a leader. The topics' names.

    ``broker``: which one, if it is not the cluster's choice.
    """
    client = admin(cluster)
    placed = {"replication_factor": 1}
    if broker is not None:
        placed = {"replica_assignment": [[broker]] * per_topic}
    names = [f"other-{number:03d}" for number in range(-(-count // per_topic))]
    at_once = _PARTITIONS_PER_REQUEST // per_topic
    for at in range(0, len(names), at_once):
        wanted = [NewTopic(name, per_topic, **placed) for name in names[at : at + at_once]]
        for future in client.create_topics(wanted, request_timeout=_MAKE_S).values():
            future.result(_MAKE_S)
    deadline = time.monotonic() + _MAKE_S
    while True:
        topics = client.list_topics(timeout=TIMEOUT_S).topics.values()
        leaders = [one.leader for topic in topics for one in topic.partitions.values()]
        if sum(leader >= 0 for leader in leaders) >= count:
            return names
        assert time.monotonic() < deadline, f"{len(leaders)} of {count} partitions"
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
