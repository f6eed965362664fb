"""MirrorMaker 1's consumer group, shared by several processes, of this kind and of Java's."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.group_sharing import share_and_take_over

pytestmark = pytest.mark.interop


def test_mirrors_of_both_kinds_share_a_group_and_take_over(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """The scenario fails by itself; how soon they take over is measured by `tests.faults`."""
    found = share_and_take_over(cluster_a, cluster_b, tmp_path)
    assert found.sent > 0
    print(found)
