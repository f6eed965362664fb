"""Consumer groups that move over: how many records come again, after each mirror.

usage: python -m benchmarks.control.failover [--records N] [--out DIR]

Groups are committed on the source a known number of records before the end of each partition; each
mirror then copies the topic into an empty target and writes checkpoints until no more come. The
source has no gaps and the target begins empty, so the exact place of a group is the same offset,
and what is below it comes again. There are two turns, and the second one begins with the other
mirror.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from benchmarks.figures import turns
from benchmarks.load import Load, create, delete, fill
from benchmarks.peers import start
from benchmarks.run import clusters, say
from sparkmirror.internal_topics.mm2_records import Checkpoint, decode_checkpoint
from sparkmirror.testing.clusters import KafkaCluster

LAGS = (0, 10, 100, 1_000, 10_000, 100_000)
PARTITIONS = 4
TURNS = 2
NAMES = {"sparkmirror": "sparkmirror", "mm2": "MirrorMaker 2"}
QUIET_S, TIMEOUT_S = 10.0, 180.0
SETTINGS = {
    "emit.checkpoints.enabled": "true",
    "emit.checkpoints.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    "groups": "lag-.*",
    "B.offset.flush.interval.ms": "1000",
    "offset-syncs.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
}


def ends(cluster: KafkaCluster, topic: str) -> list[int]:
    """End offset of each partition."""
    reader = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "ends"})
    try:
        return [
            reader.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1]
            for number in range(PARTITIONS)
        ]
    finally:
        reader.close()


def commit(cluster: KafkaCluster, topic: str, at_end: list[int]) -> dict[str, list[int]]:
    """Leave a group behind per lag; the offsets by group."""
    groups = {}
    for lag in LAGS:
        # Not at the same place in every partition, nor at multiples of anything.
        offsets = [end - lag - 7 * number for number, end in enumerate(at_end)]
        group = f"lag-{lag}"
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
        places = [TopicPartition(topic, number, at) for number, at in enumerate(offsets)]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
        groups[group] = offsets
    return groups


class Checkpoints:
    """The newest checkpoint of each group and partition, read on and on."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.newest: dict[tuple[str, str, int], Checkpoint] = {}
        # When each was written, by its timestamp, and when it came here.
        self.times_ms: dict[tuple[str, str, int], tuple[int, int]] = {}
        self.changed = time.monotonic()
        self._consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "checkpoints",
             "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 1_000}
        )  # fmt: skip
        self._consumer.assign([TopicPartition("A.checkpoints.internal", 0, 0)])

    def look(self) -> None:
        """Take what came since the last look."""
        for message in self._consumer.consume(1_000, timeout=0.1):
            if message.error() is None:
                found = decode_checkpoint(message.key(), message.value())
                assert found is not None
                key = found.group, found.remote.topic, found.remote.partition
                self.newest[key] = found
                self.times_ms[key] = message.timestamp()[1], round(time.time() * 1000)
                self.changed = time.monotonic()

    def close(self) -> None:
        """End reading."""
        self._consumer.close()


def measure(
    key: str, a: KafkaCluster, b: KafkaCluster, topic: str, groups: dict[str, list[int]], work: Path
) -> dict[str, list[int]]:
    """Records that come again per group, by partition (negative: records that would be lost)."""
    remote = f"A.{topic}"
    create(b.bootstrap_servers, remote, PARTITIONS)
    create(b.bootstrap_servers, "A.checkpoints.internal", 1)
    running = start(
        key, a.bootstrap_servers, b.bootstrap_servers, topic, work,
        tasks=PARTITIONS, latency=False, extra=SETTINGS,
    )  # fmt: skip
    checkpoints, wanted = Checkpoints(b), ends(a, topic)
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while ends(b, remote) != wanted and time.monotonic() < deadline:
            checkpoints.look()
        checkpoints.changed = time.monotonic()
        while time.monotonic() < min(deadline, checkpoints.changed + QUIET_S):
            checkpoints.look()
    finally:
        running.stop()
    assert ends(b, remote) == wanted, "the target does not hold what the source holds"
    while time.monotonic() < checkpoints.changed + 2:
        checkpoints.look()
    checkpoints.close()
    again = {}
    for group, offsets in groups.items():
        found = [checkpoints.newest.get((group, remote, number)) for number in range(PARTITIONS)]
        # Without a checkpoint a consumer begins at the beginning.
        again[group] = [
            at - (one.downstream if one is not None else 0)
            for at, one in zip(offsets, found, strict=True)
        ]
    own = ("offsets", "configs", "status", "sparkmirror", "sparkmirror-gaps", "sparkmirror-runs")
    names = [remote, "A.checkpoints.internal", *(f"mm2-{name}.A.internal" for name in own)]
    delete(b.bootstrap_servers, *names)
    delete(a.bootstrap_servers, "mm2-offset-syncs.B.internal")
    time.sleep(2)
    return again


def in_turns(one: Callable[[str], dict[str, list[int]]]) -> dict[str, dict[str, list[int]]]:
    """What ``one`` finds of each mirror, by name and group, of all turns."""
    found: dict[str, dict[str, list[int]]] = {name: {} for name in NAMES.values()}
    for key in chain.from_iterable(turns(list(NAMES), TURNS)):
        again = one(key)
        say(f"{NAMES[key]}: {again}")
        for group, values in again.items():
            found[NAMES[key]].setdefault(group, []).extend(values)
    return found


def table(found: dict[str, dict[str, list[int]]], records: int) -> str:
    """The result as Markdown."""
    peers = list(found)
    lines = [
        f"# Groups that move over, {datetime.date.today()}",
        "",
        f"`python -m benchmarks.control.failover`: {records:,} records of 100 bytes in "
        f"{PARTITIONS} partitions; groups committed so many records (and 7 more per partition "
        "number) before the",
        "end of each partition; checkpoints every second, `offset.lag.max` 100, offsets flushed "
        "every second, target empty at the start. Records that",
        "come again per partition when a group goes on at its newest checkpoint (least to most of "
        f"the partitions in {TURNS} turns; the mirrors are first by turns).",
        "",
        "| group lags by | " + " | ".join(peers) + " |",
        "|---" * (len(peers) + 1) + "|",
    ]
    for lag in LAGS:
        cells = []
        for peer in peers:
            values = found[peer][f"lag-{lag}"]
            low, high = min(values), max(values)
            cells.append(f"{low:,}" if low == high else f"{low:,} to {high:,}")
        lines.append(f"| {lag:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure both and write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.control.failover", description=__doc__
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="sparkmirror-bench-"))
    producer = ("batch.size=16384", "linger.ms=5", "compression.type=none")
    load = Load("bench-groups", "", PARTITIONS, options.records, 100, producer)
    try:
        with clusters() as (a, b):
            create(a.bootstrap_servers, load.topic, load.partitions)
            fill(a, load, load.records)
            groups = commit(a, load.topic, ends(a, load.topic))
            found = in_turns(lambda key: measure(key, a, b, load.topic, groups, work))
        text = table(found, options.records)
        path = options.out / f"failover-{datetime.date.today()}.md"
        path.write_text(text)
        print(text)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
