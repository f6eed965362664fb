"""What a topic without a leader costs the others: their latency, and the Metadata requests.

usage: python -m benchmarks.control.leaderless [--topics N] [--seconds S] [--turns N]

Broker 1 of the source leads ``--topics`` topics of one partition and a probe's topic, broker 2
alone has one topic more. The probe's latency at the target is measured for ``--seconds`` with both
brokers up, and again while broker 2 is stopped, in turns. Meanwhile the mirror's Metadata requests
to the source are counted as they cross the loopback interface, at which only root may look. A
third broker is there for the controllers' majority alone. Prints a table; nothing fails for what
is in it.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer
from kafka.protocol.metadata import MetadataRequest
from tests.faults.harness import Mirror, write_config
from tests.faults.partitions import CONFIG, make_partitions
from tests.faults.pressure import SLOTS
from tests.kafka.clusters.faults import leaders
from tests.kafka.harness.capture import Capture
from tests.kafka.harness.support import Sent, create_topic, produce, topic_names

from benchmarks.control.control_plane import PROBE, PROBE_PARTITIONS
from benchmarks.control.large_clusters import wait_until
from benchmarks.measure import end_offsets, latencies, quantiles
from benchmarks.run import say
from sparkmirror.testing.clusters import KafkaCluster, start_all
from sparkmirror.testing.jvm import SERVER_JVM

LOST = "lost"
# As many as there are slots, or more: then each slot has some of them.
LOST_PARTITIONS = 4
RATE = 100
WARM_S = 10.0
# A leader is looked for every five seconds in the end, after less than that in the beginning.
SETTLED_S = 15.0
_METADATA = 3
_HEAD = struct.Struct(">ihhih")
# What a slot speaks at most. The driver's client goes further, and has the same client.id.
_SLOT_VERSION_MAX = 12


@dataclass(frozen=True)
class Asked:
    """A Metadata request of the mirror: whose, and about which topics (None: all)."""

    by_slot: bool
    topics: tuple[str, ...] | None


@dataclass(frozen=True)
class Turn:
    """What was found in one turn: quantiles in ms, the requests, and the minutes they took."""

    name: str
    found: dict[str, float]
    asked: list[Asked]
    minutes: float


def metadata_requests(stream: bytes, client: bytes) -> Iterator[Asked]:
    """Those in what one connection has sent, if it is one of the client whose id begins so."""
    at = 0
    while len(stream) - at >= _HEAD.size:
        size, key, version, _, id_size = _HEAD.unpack_from(stream, at)
        frame = stream[at + 4 : at + 4 + size]
        if len(frame) < size or not frame[10 : 10 + max(id_size, 0)].startswith(client):
            return
        if key == _METADATA:
            request = MetadataRequest.decode(frame, version=version, header=True)
            rows = request.topics
            topics = None if rows is None else tuple(row.name for row in rows)
            yield Asked(version <= _SLOT_VERSION_MAX, topics)
        at += 4 + size


def table(turns: list[Turn]) -> str:
    """The page."""
    lines = [
        "| | p50, ms | p90, ms | p99, ms | max, ms | records | Metadata requests per minute: each "
        f"slot | of these about `{LOST}` alone | the driver |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for turn in turns:
        slots = [one for one in turn.asked if one.by_slot]
        alone = sum(one.topics == (LOST,) for one in slots)
        cells = [
            turn.name,
            *(f"{turn.found.get(name, math.nan):.1f}" for name in ("p50", "p90", "p99", "max")),
            f"{turn.found.get('count', 0):,}",
            *(f"{count / turn.minutes / SLOTS:.1f}" for count in (len(slots), alone)),
            f"{(len(turn.asked) - len(slots)) / turn.minutes:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.control.leaderless", description=__doc__
    )
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    common = {"config": CONFIG, "heap": "1g", "jvm": SERVER_JVM}
    source, target = KafkaCluster("A", nodes=3, **common), KafkaCluster("B", **common)
    start_all(source, target)
    try:
        with tempfile.TemporaryDirectory(prefix="sparkmirror-bench-") as directory:
            turns = _run(options, source, target, Path(directory))
    finally:
        for cluster in (source, target):
            cluster.stop()
    print(
        f"\n{options.topics:,} topics beside the probe's of {PROBE_PARTITIONS} partitions, {SLOTS} "
        f"slots, {RATE} records/s for {options.seconds:.0f} s, {os.cpu_count()} cores:\n"
    )
    print(table(turns))
    return 0


def _run(
    options: argparse.Namespace, source: KafkaCluster, target: KafkaCluster, work: Path
) -> list[Turn]:
    create_topic(source, PROBE, replicas=[[1]] * PROBE_PARTITIONS)
    create_topic(source, LOST, replicas=[[2]] * LOST_PARTITIONS)
    names = make_partitions(source, options.topics, per_topic=1, broker=1)
    # A topic that one of the brokers does not know yet would be mirrored ten minutes later.
    time.sleep(SETTLED_S)
    config = write_config(
        work / "mm2.properties",
        *(source, target, f"{PROBE},{LOST},other-.*"),
        **{
            "tasks.max": str(SLOTS),
            # The end of an epoch, whose slots begin anew, would fall into one of the turns.
            "sparkmirror.epoch.seconds": "3600",
            # What the mirror keeps at the source has a leader in any case.
            "offset-syncs.topic.replication.factor": "3",
        },
    )
    mirror = Mirror(work, config)
    try:
        remote = {f"A.{name}" for name in (PROBE, LOST, *names)}
        wait_until(lambda: remote <= topic_names(target), "the remote topics")
        _is_mirrored(source, target, LOST, LOST_PARTITIONS, 1)
        # Brokers whose partitions take records know that they lead them: the probe needs that.
        _is_mirrored(source, target, PROBE, PROBE_PARTITIONS, 1)
        while len(_latencies(source, target, WARM_S, work)) < 0.98 * RATE * WARM_S:
            assert mirror.process.poll() is None
        turns = []
        for number in range(1, options.turns + 1):
            say(f"turn {number}, all have a leader")
            turns.append(_turn(f"all have a leader, turn {number}", source, target, options, work))
            source.terminate(2)
            wait_until(lambda: set(leaders(source, LOST).values()) == {-1}, "no leader")
            time.sleep(SETTLED_S)
            say(f"turn {number}, {LOST} has no leader")
            name = f"one topic has none, turn {number}"
            turns.append(_turn(name, source, target, options, work))
            source.restart(2)
            began = time.monotonic()
            _is_mirrored(source, target, LOST, LOST_PARTITIONS, number + 1)
            say(f"{LOST} goes on {time.monotonic() - began:.1f} s after its broker is back")
            time.sleep(SETTLED_S)
        assert mirror.process.poll() is None
    except AssertionError:
        print(mirror.output(), file=sys.stderr)
        raise
    finally:
        mirror.drain()
        mirror.kill()
    return turns


def _is_mirrored(
    source: KafkaCluster, target: KafkaCluster, topic: str, partitions: int, records: int
) -> None:
    """One record more in each partition of ``topic``; until the target has all of them."""
    produce(source, topic, [Sent(b"x", partition=number) for number in range(partitions)])
    consumer = Consumer({"bootstrap.servers": target.bootstrap_servers, "group.id": "bench-lost"})
    try:
        wait_until(
            lambda: end_offsets(consumer, f"A.{topic}", partitions) >= records * partitions,
            f"the records of {topic}",
        )
    finally:
        consumer.close()


def _turn(
    name: str,
    source: KafkaCluster,
    target: KafkaCluster,
    options: argparse.Namespace,
    work: Path,
) -> Turn:
    ports = [int(one.rpartition(":")[2]) for one in source.bootstrap_servers.split(",")]
    began = time.monotonic()
    with Capture(ports) as capture:
        found = quantiles(_latencies(source, target, options.seconds, work))
        minutes = (time.monotonic() - began) / 60
    streams = [stream for port in ports for stream in capture.sent_to(port)]
    asked = [one for stream in streams for one in metadata_requests(stream, b"A->B|")]
    turn = Turn(name, found, asked, minutes)
    say(table([turn]).splitlines()[-1])
    return turn


def _latencies(
    source: KafkaCluster, target: KafkaCluster, seconds: float, work: Path
) -> list[float]:
    # The probe itself must not look for a broker that is stopped.
    first = source.bootstrap_servers.split(",")[0]
    return latencies(
        *(first, target.bootstrap_servers, PROBE, f"A.{PROBE}", PROBE_PARTITIONS),
        rate=RATE, seconds=seconds, work=work,
    )["target"]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
