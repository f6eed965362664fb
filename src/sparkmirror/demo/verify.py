"""Reads the records of a cluster with Kafka's own console consumer, for a comparison.

It uses nothing of this package's data path, so a defect there cannot hide itself. A partition is
equal to its copy if count and digest are equal. The digest covers timestamp, headers, key and value
of every committed record, in order.
"""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from sparkmirror.demo.limits import PATIENCE_S
from sparkmirror.errors import ClusterError, Defect
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.comparison_result import EMPTY, Reading
from sparkmirror.testing.guard import forget, spawn
from sparkmirror.testing.jvm import KafkaRuntime
from sparkmirror.wire.admin.cluster import Cluster

__all__ = ["digests", "read_topics"]

_POLL_S = 0.15
_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
# The start of a record in the console consumer's output: time, partition, then headers, key, value.
# A line that does not match belongs to the previous record, whose value contains a line feed.
_HEAD = re.compile(rb"(?:CreateTime|LogAppendTime|NoTimestampType):(-?\d+)\tPartition:(\d+)\t")


def digests(lines: Iterable[bytes]) -> dict[int, Reading]:
    """Readings by partition from the console consumer's output, line by line.

    The timestamp type is not digested: the copy of a topic with LogAppendTime has the same times,
    but CreateTime.
    """
    counts: dict[int, int] = {}
    hashes = {}
    current = None
    for line in lines:
        if found := _HEAD.match(line):
            partition = int(found[2])
            if partition not in hashes:
                hashes[partition] = hashlib.sha256()
                counts[partition] = 0
            current = hashes[partition]
            counts[partition] += 1
            current.update(found[1] + b"\t" + line[found.end() :])
        elif current is not None:
            current.update(line)
    return {number: Reading(counts[number], one.hexdigest()) for number, one in hashes.items()}


class _TopicReader:
    """One console consumer of one topic, and the thread that digests its output."""

    def __init__(self, runtime: KafkaRuntime, bootstrap_servers: str, topic: str) -> None:
        self.topic = topic
        self.group = f"demo-verify-{uuid.uuid4().hex[:12]}"
        self.readings: dict[int, Reading] = {}
        self.deadline = time.monotonic() + PATIENCE_S
        consumer = ("enable.auto.commit=true", "auto.commit.interval.ms=200", "check.crcs=true")
        shown = ("timestamp", "partition", "headers", "key")
        command = runtime.command(
            _CONSUMER,
            *("--bootstrap-server", bootstrap_servers, "--topic", topic, "--from-beginning"),
            *("--isolation-level", "read_committed", "--group", self.group),
            *_each("--command-property", consumer),
            *_each("--formatter-property", [f"print.{name}=true" for name in shown]),
            # An absent key or value must not look like an empty one.
            *_each("--formatter-property", ["null.literal=\x01null"]),
            heap="192m",
            log_level="error",
        )
        self._process = spawn(command, output=subprocess.PIPE, errors=subprocess.DEVNULL)
        if self._process.stdout is None:
            raise Defect("the process has no pipe to write to")
        self._thread = threading.Thread(
            target=self._digest, args=(self._process.stdout,), name=f"verify {topic}", daemon=True
        )
        self._thread.start()

    def _digest(self, output: IO[bytes]) -> None:
        self.readings = digests(output)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def finish(self) -> None:
        """Stop the consumer normally, so that it prints all it has read, and digest the rest."""
        if self.runs:
            self._process.send_signal(signal.SIGTERM)
        self._thread.join(PATIENCE_S)
        self.close()

    def close(self) -> None:
        """Kill the process."""
        if self.runs:
            self._process.kill()
        self._process.wait()
        forget(self._process.pid)


def read_topics(
    runtime: KafkaRuntime, cluster: Cluster, topics: Sequence[str], *, at_once: int = 1
) -> dict[TopicPartition, Reading]:
    """Count and digest every committed record of ``topics``, by partition.

    It reads up to the present end offsets, with one JVM for each topic, ``at_once`` of them at the
    same time. The result has no topics that do not exist. Raises ClusterError if a consumer ends
    early or takes longer than five minutes.
    """
    found = cluster.topics(topics)
    partitions = {
        topic: [TopicPartition(topic, number) for number in range(view.partitions)]
        for topic, view in found.items()
    }
    every = [at for some in partitions.values() for at in some]
    ends = cluster.end_offsets(every, "read_committed")
    starts = cluster.earliest_offsets(every)
    full = {at: end for at, end in ends.items() if end > starts.get(at, 0)}
    servers = ",".join(cluster.client.bootstrap_servers)
    busy = [topic for topic in partitions if any(at in full for at in partitions[topic])]
    result = dict.fromkeys(every, EMPTY)
    running: list[_TopicReader] = []
    try:
        while busy or running:
            while busy and len(running) < at_once:
                running.append(_TopicReader(runtime, servers, busy.pop(0)))
            time.sleep(_POLL_S)
            for reader in [one for one in running if _at_end(cluster, one, partitions, full)]:
                reader.finish()
                running.remove(reader)
                for number, reading in reader.readings.items():
                    result[TopicPartition(reader.topic, number)] = reading
    finally:
        for reader in running:
            reader.close()
    return result


def _at_end(
    cluster: Cluster,
    reader: _TopicReader,
    partitions: Mapping[str, Sequence[TopicPartition]],
    ends: Mapping[TopicPartition, int],
) -> bool:
    """Whether a consumer has committed the end offset of each of its partitions.

    Commits also cover transaction markers, which its output does not show. Raises ClusterError if
    it never will.
    """
    wanted = [at for at in partitions[reader.topic] if at in ends]
    done = cluster.committed_offsets(reader.group, wanted)
    if all(at in done and done[at].offset >= ends[at] for at in wanted):
        return True
    if not reader.runs or time.monotonic() > reader.deadline:
        raise ClusterError(
            f"Kafka's console consumer did not read {reader.topic} to its end.",
            where=f"cluster {cluster.alias}",
            do="Look at the broker's log, then run the check again.",
        )
    return False


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]
