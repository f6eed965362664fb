"""Thousands of partitions that are mirrored: what a start, a record in each and their memory cost.

usage: python -m tests.faults.mirrored [--partitions 2000] [--exactly-once] [--report FILE]

Each partition has a record before the mirror starts, and gets another one once all of those are at
the target. Fails when a record is missing or came twice.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.faults.harness import Mirror, write_config
from tests.faults.partitions import CONFIG, PER_TOPIC, make_partitions
from tests.faults.pressure import SLOTS, Footprint, memory_bound_mib
from tests.kafka.harness.support import TIMEOUT_S, admin, topic_names

_ARRIVE_S = 900.0
_STEADY_S = 15.0
_ASKED_AT_ONCE = 1_000


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mirrored", description=__doc__)
    parser.add_argument("--partitions", type=int, default=2_000)
    parser.add_argument("--exactly-once", action="store_true")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    source, target = (KafkaCluster(name, config=CONFIG, heap="1g") for name in "AB")
    start_all(source, target)
    try:
        with tempfile.TemporaryDirectory(prefix="sparkmirror-mirrored-") as directory:
            rows = _run(options, source, target, Path(directory))
    finally:
        for cluster in (source, target):
            cluster.stop()
    mode = "exactly-once" if options.exactly_once else "at-least-once"
    head = f"{options.partitions:,} mirrored partitions, {SLOTS} slots, {mode}"
    lines = [f"| {head} | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())]
    page = "\n".join(lines) + "\n"
    print(page)
    if options.report is not None:
        options.report.write_text(page)
    return 0


def _run(
    options: argparse.Namespace, source: KafkaCluster, target: KafkaCluster, directory: Path
) -> Mapping[str, str]:
    rows: dict[str, str] = {}
    names = make_partitions(source, options.partitions)
    # A marker follows each record of a transaction.
    offsets = 2 if options.exactly_once else 1
    _send(source, names, b"first")
    config = write_config(directory / "mm2.properties", source, target, "other-.*")
    began = time.monotonic()
    mirror = Mirror(directory, config, *(["--exactly-once"] if options.exactly_once else []))
    try:
        with Footprint(mirror.process.pid) as memory:
            _arrived(target, names, 1, mirror, lowest=1)
            rows["from the start to the first record"] = f"{time.monotonic() - began:.1f} s"
            _arrived(target, names, offsets, mirror)
            rows["until each partition had its first record"] = f"{time.monotonic() - began:.1f} s"
            time.sleep(_STEADY_S)
            began = time.monotonic()
            _send(source, names, b"second")
            rows["writing a second record to each"] = f"{time.monotonic() - began:.1f} s"
            _arrived(target, names, 2 * offsets, mirror)
            rows["until all of them were at the target, from there on"] = (
                f"{time.monotonic() - began:.1f} s in all"
            )
            time.sleep(_STEADY_S)
        rows["memory at most"] = str(memory.peak())
        rows["stated bound"] = f"{memory_bound_mib(SLOTS, 0):,.0f} MiB"
        began = time.monotonic()
        assert mirror.drain(120) == 0, mirror.output()
        rows["drained in"] = f"{time.monotonic() - began:.1f} s"
    finally:
        mirror.kill()
    ends = _ends(target, names)
    wrong = {tp: end for tp, end in ends.items() if end != 2 * offsets}
    assert not wrong, f"{len(wrong)} partitions have not two records: {list(wrong.items())[:5]}"
    return rows


def _send(cluster: KafkaCluster, names: list[str], value: bytes) -> None:
    """One record to each partition of the topics ``names``."""
    failures: list[str] = []
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 50, "log_level": 0}
    producer = Producer(settings)
    for name in names:
        for number in range(PER_TOPIC):
            producer.produce(
                name,
                value,
                partition=number,
                on_delivery=lambda error, _: failures.append(str(error)) if error else None,
            )
        producer.poll(0)
    assert producer.flush(300) == 0, "the source does not take the records"
    assert not failures, failures[0]


def _arrived(
    target: KafkaCluster, names: list[str], end: int, mirror: Mirror, *, lowest: int = 0
) -> None:
    """Wait until all partitions, or ``lowest`` of them, end at ``end``."""
    deadline = time.monotonic() + _ARRIVE_S
    wanted = lowest or len(names) * PER_TOPIC
    while (there := sum(found >= end for found in _ends(target, names).values())) < wanted:
        late = time.monotonic() > deadline or mirror.process.poll() is not None
        assert not late, f"{there} of {wanted} partitions\n{mirror.output()}"
        time.sleep(0.5)


def _ends(target: KafkaCluster, names: list[str]) -> dict[TopicPartition, int]:
    """Where the remote partitions end, as far as they are there."""
    known = topic_names(target)
    places = [
        TopicPartition(f"A.{name}", number)
        for name in names
        if f"A.{name}" in known
        for number in range(PER_TOPIC)
    ]
    client = admin(target)
    ends: dict[TopicPartition, int] = {}
    for at in range(0, len(places), _ASKED_AT_ONCE):
        asked = {tp: OffsetSpec.latest() for tp in places[at : at + _ASKED_AT_ONCE]}
        for tp, future in client.list_offsets(asked, request_timeout=TIMEOUT_S).items():
            try:
                ends[tp] = future.result().offset
            except Exception:  # the topic is just being made
                ends[tp] = 0
    return ends


if __name__ == "__main__":
    sys.exit(main())
