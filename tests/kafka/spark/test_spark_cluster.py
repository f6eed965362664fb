"""The same query on a Spark standalone cluster; a worker dies under load."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path

import pytest

import sparkmirror
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.clusters.spark_cluster import SparkCluster, plain_python
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce

PARTITIONS = 4


class _Load:
    """Records all the time, until `stop`; ``values``: what the source has acknowledged."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self.values: list[bytes] = []
        self._cluster, self._topic = cluster, topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.1):
            first = len(self.values)
            values = [b"%d" % number for number in range(first, first + 20)]
            produce(
                self._cluster,
                self._topic,
                [Sent(value, partition=n % PARTITIONS) for n, value in enumerate(values)],
            )
            self.values += values

    def stop(self) -> list[bytes]:
        self._stopping.set()
        self._thread.join(30)
        return self.values


def _mirrored(cluster: KafkaCluster, topic: str) -> list[list[int]]:
    """Values at the target, one list per partition."""
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for record in consume_all(cluster, topic):
        assert record.value is not None
        found[record.partition].append(int(record.value))
    return found


@pytest.mark.more
def test_a_worker_that_dies_under_load_loses_nothing(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = f"spark-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic, PARTITIONS)
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, topic)
    # The driver has sparkmirror; the workers, with the same interpreter, do not.
    interpreter, lacking = plain_python(tmp_path / "python")
    monkeypatch.setenv("PYSPARK_PYTHON", str(interpreter))
    source = Path(sparkmirror.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", f"{source}{os.pathsep}{lacking}")
    with SparkCluster(tmp_path) as spark:
        load = _Load(cluster_a, topic)
        work = ["--work-dir", str(tmp_path / "work")]
        mirror = MirrorProcess(tmp_path, ["run", str(path), "--master", spark.master, *work])
        try:
            wait_until(lambda: all(_mirrored(cluster_b, f"A.{topic}")), "records in all partitions")
            spark.kill_busy_worker()
            acknowledged = set(load.values)
            wait_until(
                lambda: acknowledged <= _values(cluster_b, f"A.{topic}"),
                "all records from before the worker died",
            )
            time.sleep(2)
            wanted = load.stop()
            wait_until(lambda: set(wanted) <= _values(cluster_b, f"A.{topic}"), "all records")
            code, _ = mirror.drain()
        finally:
            load.stop()
            mirror.kill()
    assert code == 0, mirror.text()
    # A slot that starts anew repeats what was acknowledged since its last position, in order.
    for values in _mirrored(cluster_b, f"A.{topic}"):
        assert sorted(set(values), key=values.index) == sorted(set(values))


def _values(cluster: KafkaCluster, topic: str) -> set[bytes]:
    return {b"%d" % value for values in _mirrored(cluster, topic) for value in values}


@pytest.mark.long
def test_a_default_file_system_elsewhere_takes_no_checkpoints(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """Where Hadoop's settings name HDFS, what belongs to this machine stays on it."""
    topic = f"spark-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic)
    produce(cluster_a, topic, [Sent(b"%d" % number) for number in range(10)])
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, topic)
    elsewhere = ["--conf", "spark.hadoop.fs.defaultFS=hdfs://127.0.0.1:1"]
    work = ["--work-dir", str(tmp_path / "work # of 100 %41")]
    mirror = MirrorProcess(tmp_path, ["run", str(path), "--once", *elsewhere, *work], cold=True)
    try:
        assert mirror.wait() == 0, mirror.text()
    finally:
        mirror.kill()
    assert len(consume_all(cluster_b, f"A.{topic}")) == 10
