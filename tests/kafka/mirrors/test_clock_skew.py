"""Mirrors whose clocks are off: records keep their times, and what the mirror needs still works."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from sparkmirror.internal_topics.mm2_records import decode_heartbeat
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import (
    TIMEOUT_S,
    Sent,
    commit,
    consume_all,
    create_topic,
    forget_mirrors,
    produce,
    topic_names,
    wait_until_equal,
)

MINUTE_MS = 60_000
# Ahead by more than the hour that a broker of Kafka 4 lets records be, and behind.
CLOCKS_S = {"fast": 3 * 3_600, "slow": -2 * 3_600}
# Every Python process of a mirror has this clock: driver, planner and workers.
_CLOCK = """
import os, time
_now, _off_s = time.time, float(os.environ["CLOCK_OFF_S"])
time.time = lambda: _now() + _off_s
"""


@pytest.fixture(autouse=True)
def _no_earlier_mirrors(cluster_a, cluster_b) -> Iterator[None]:
    forget_mirrors(cluster_a, cluster_b)
    yield
    forget_mirrors(cluster_a, cluster_b)


def _committed(cluster, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)
    finally:
        consumer.close()
    return int(found.offset)


@pytest.mark.long
def test_mirrors_whose_clocks_are_off(cluster_a, cluster_b, topic_name, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(_CLOCK)
    now_ms = int(time.time() * 1000)
    records = [Sent(b"%d" % n, timestamp_ms=now_ms + (n - 70) * MINUTE_MS) for n in range(100)]
    create_topic(cluster_a, topic_name)
    produce(cluster_a, topic_name, records)
    group = f"{topic_name}-group"
    consumer = Consumer({"bootstrap.servers": cluster_a.bootstrap_servers, "group.id": group})
    commit(consumer, [TopicPartition(topic_name, 0, 37)])
    consumer.close()
    extra = {
        "emit.heartbeats.enabled": "true",
        "emit.heartbeats.interval.seconds": "1",
        "heartbeats.topic.replication.factor": "1",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "groups": group,
    }
    mirrors: dict[str, MirrorProcess] = {}
    try:
        for source, off_s in CLOCKS_S.items():
            path = tmp_path / f"{source}.properties"
            write_mm2(path, cluster_a, cluster_b, topic_name, extra, source=source)
            paths = (str(tmp_path), os.environ.get("PYTHONPATH", ""))
            mirrors[source] = MirrorProcess(
                tmp_path / source,
                ["run", str(path), "--log-format", "json"],
                environment={
                    "CLOCK_OFF_S": str(off_s),
                    "PYTHONPATH": os.pathsep.join(one for one in paths if one),
                },
            )
        for source, mirror in mirrors.items():
            remote = f"{source}.{topic_name}"
            wait_until_equal(cluster_a, topic_name, cluster_b, remote)
            # One group of that name on the target: an offset for each of the remote topics.
            wait_until(
                lambda remote=remote: _committed(cluster_b, group, remote) == 37,
                f"the group is at the record that it has not read\n{mirror.text()}",
            )
        # Heartbeats have the mirror's own time, and a broker of Kafka 4 refuses the fast one's.
        wait_until(lambda: "slow" in _heartbeats(cluster_b), "heartbeats of the slow one")
        for source, mirror in mirrors.items():
            assert mirror.drain()[0] == 0, mirror.text()
            side = "behind" if source == "fast" else "ahead of"
            for alias in (source, "B"):
                clock = rf"quick check: cluster {alias}: its clock is (\d+)\.\d+ s {side} ours"
                (found,) = re.findall(clock, mirror.text())
                # Half of what an answer took is what nobody can know.
                assert abs(int(found) - abs(CLOCKS_S[source])) < 10
            assert _committed(cluster_b, f"__mirror.{source}->B", f"{source}.{topic_name}") == 100
            told = [one for one in mirror.documents() if "lag_records" in one]
            assert told[-1]["lag_records"] == 0
            for one in told:
                assert not one["halted"]
                shown = (one["lag_s"], one["latency_ms_p50"], one["latency_ms_p99"])
                assert all(number is None or number >= 0 for number in shown), one
            refused = [one for one in mirror.text().splitlines() if "INVALID_TIMESTAMP" in one]
            assert all("heartbeats" in one for one in refused), refused
            assert bool(refused) is (source == "fast"), mirror.text()
        (beat, *_) = _heartbeats(cluster_b)["slow"]
        assert abs(beat - now_ms - CLOCKS_S["slow"] * 1000) < 10 * MINUTE_MS
        assert "fast" not in _heartbeats(cluster_b)
    finally:
        for mirror in mirrors.values():
            mirror.kill()


def _heartbeats(cluster) -> dict[str, list[int]]:
    """Times in the heartbeats, by source."""
    found: dict[str, list[int]] = {}
    if "heartbeats" in topic_names(cluster):
        for record in consume_all(cluster, "heartbeats"):
            beat = decode_heartbeat(record.key, record.value)
            assert beat is not None
            found.setdefault(beat.source, []).append(beat.timestamp_ms)
    return found
