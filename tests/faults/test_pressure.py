"""A target slower than the source, a burst a hundred times the mean, records of 20 MB: memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from sparkmirror.demo.clusters import KafkaCluster
from tests.faults.pressure import Pressure, limit_target


def test_memory_stays_within_its_bound_and_nobody_starves(
    cluster_a: KafkaCluster, new_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    target = new_cluster("slow", config={"quota.window.num": "2"})
    limit_target(target, 25)
    run = Pressure(cluster_a, target, tmp_path, alias=f"X{uuid.uuid4().hex[:6]}")
    result = run.run(burst_mb=300, large=4)
    assert result.peak_mib < result.bound_mib, result.page()
    # While the burst was still on its way, records of other partitions came through.
    assert result.waited > 0, result.page()
