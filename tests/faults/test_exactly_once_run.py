"""The whole command, exactly-once: processes are killed, a second driver is started."""

from __future__ import annotations

import random
import time
import uuid
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.faults.harness import PLANNER, SINK, Counter, Mirror, write_config
from tests.faults.kinds import Scene, kill_driver, kill_worker
from tests.faults.numbered import Numbered
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import create_topic
from tests.patience import others_per_core, patience

PARTITIONS = 4
_WORKER_RECOVERY_S = 10.0


@pytest.mark.long
def test_killed_workers_and_drivers_and_two_at_once(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    alias = f"X{uuid.uuid4().hex[:6]}"
    topic = f"numbers-{alias}"
    create_topic(cluster_a, topic, PARTITIONS)
    create_topic(cluster_b, f"{alias}.{topic}", PARTITIONS)
    config = write_config(tmp_path / "mm2.properties", cluster_a, cluster_b, topic, alias=alias)
    mirror = Mirror(tmp_path, config, "--exactly-once")
    scene = Scene(mirror, cluster_a, cluster_b, random.Random(1))
    traffic = Numbered(cluster_a, topic, PARTITIONS, per_s=5_000)
    with traffic, Counter(cluster_b, f"{alias}.{topic}", PARTITIONS) as counter:
        try:
            assert counter.recovery_s(time.monotonic(), patience()) < patience(), mirror.output()

            # A sink's worker: Spark starts its task again.
            began = time.monotonic()
            kill_worker(SINK)(scene)
            assert counter.recovery_s(began, patience()) < _WORKER_RECOVERY_S * others_per_core()
            assert mirror.process.poll() is None, mirror.output()

            # The planner: felt when its epoch ends; Spark ends the query, which is started again.
            kill_worker(PLANNER)(scene)
            wait_until(lambda: "the query is restarted" in mirror.output(), "the query's end")
            assert counter.recovery_s(time.monotonic(), patience()) < patience(), mirror.output()
            assert mirror.process.poll() is None, mirror.output()

            # The driver: what it leaves open is aborted by the next start.
            # Its JVM goes on writing for a moment, so records alone do not show the next run.
            kill_driver(scene)
            mirror.start()
            wait_until(lambda: " mirroring" in mirror.output(), "the next run")
            assert counter.recovery_s(time.monotonic(), patience()) < patience(), mirror.output()

            # Two at once: the newer one has the flow, the older one ends and says why.
            older, output = mirror.process, tmp_path / f"output-{mirror.starts}.txt"
            mirror.start("--take-over")
            assert older.wait(patience()) == 1
            assert "has taken this flow over" in output.read_text()
            assert counter.recovery_s(time.monotonic(), patience()) < patience(), mirror.output()

            assert counter.wait_for(traffic.finish(), patience())
            assert mirror.drain() == 0, mirror.output()
            time.sleep(1.0)
        finally:
            mirror.kill()
    assert (counter.lost, counter.duplicated, counter.first_wrong) == (0, 0, "")
