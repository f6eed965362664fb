"""Mirrors whose small rows pass beside Spark: the same records in the same order, in both modes."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import (
    Sent,
    create_topic,
    grow_topic,
    produce,
    topic_names,
    wait_until_equal,
)
from tests.kafka.mirrors.test_metrics import Scrape

_RING = {"sparkmirror.ring.enabled": "true", "sparkmirror.epoch.seconds": "6"}


@contextmanager
def _trickle(cluster: KafkaCluster, topic: str) -> Iterator[None]:
    """Some 100 records a second, and now and then one that fills a frame; each a response."""
    stop = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
        number = 0
        while not stop.is_set():
            size = 100_000 if number % 100 == 99 else 10
            producer.produce(topic, b"%010d" % number * (size // 10), partition=0)
            producer.flush()
            number += 1
            time.sleep(0.01)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
def test_small_rows_pass_beside_spark(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path, exactly_once: bool
) -> None:
    alias = f"R{uuid.uuid4().hex[:6]}"
    name, remote = f"ring-{alias}", f"{alias}.ring-{alias}"
    create_topic(cluster_a, name, 1)
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, cluster_b, name,
        {**_RING, "sparkmirror.metrics.listen": "127.0.0.1:0"}, source=alias,
    )  # fmt: skip
    arguments = ["run", str(path), "--work-dir", str(tmp_path / "work"), "--log-format", "json"]
    if exactly_once:
        arguments.append("--exactly-once")
    mirror = MirrorProcess(tmp_path, arguments)
    try:
        wait_until(lambda: remote in topic_names(cluster_b), "the remote topic")
        found = re.search(r"http://127\.0\.0\.1:\d+", mirror.text())
        assert found is not None, mirror.text()
        url = found[0]
        with _trickle(cluster_a, name):
            rates: list[float] = []

            def told() -> bool:
                found = Scrape(url).all("sparkmirror_spark_rows_per_second")
                rates.extend(rate for rate in found if rate > 0 and rate not in rates)
                return len(rates) >= 2

            wait_until(told, "figures of two epochs")
            grow_topic(cluster_a, name, 2)
            produce(cluster_a, name, [Sent(value=b"grown", partition=1)])
        wait_until_equal(cluster_a, name, cluster_b, remote)
        code, _ = mirror.drain()
    finally:
        mirror.kill()
    assert code == 0, mirror.text()
    # Each row has a flush row beside it. Of some 90 responses a second, Spark has seen the one that
    # filled a frame, and two accounts of each of two slots.
    assert rates[-1] < 30
    wait_until_equal(cluster_a, name, cluster_b, remote)
