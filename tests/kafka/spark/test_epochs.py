"""What a running mirror does without the end of an epoch."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from sparkmirror.internal_topics.commands import PROGRESS_PARTITION, decode_progress
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, write_mm2
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    create_topic,
    delete_topic,
    grow_topic,
    produce,
    wait_until_equal,
)


def _epochs(cluster: KafkaCluster, alias: str, since_ms: int) -> set[int]:
    """The epochs in which slots have reported since then."""
    reports = [
        decode_progress(one.key, one.value)
        for one in consume_all(cluster, f"mm2-sparkmirror.{alias}.internal")
        if one.partition == PROGRESS_PARTITION
    ]
    return {one.epoch for one in reports if one is not None and one.time_ms > since_ms}


def _some(count: int, partitions: int, first: int = 0) -> list[Sent]:
    return [Sent(b"%d" % n, partition=(n % partitions)) for n in range(first, first + count)]


@pytest.mark.parametrize(
    "flags",
    [pytest.param((), marks=pytest.mark.long), ("--exactly-once",)],
    ids=["at-least-once", "exactly-once"],
)
def test_topics_come_grow_and_go_within_one_epoch(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    alias = f"E{uuid.uuid4().hex[:8]}"
    name = f"epochs-{alias}"
    create_topic(cluster_a, f"{name}.base", 12)
    produce(cluster_a, f"{name}.base", _some(120, 12))
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, cluster_b, rf"{name}\\..*", source=alias
    )
    arguments = ["run", str(path), "--work-dir", str(tmp_path / "work"), *flags]
    mirror = MirrorProcess(tmp_path, arguments)
    try:
        wait_until_equal(cluster_a, f"{name}.base", cluster_b, f"{alias}.{name}.base")
        since_ms, sent = int(time.time() * 1000), 120
        for number in range(5):
            create_topic(cluster_a, f"{name}.{number}", 1)
            produce(cluster_a, f"{name}.{number}", _some(20, 1))
            produce(cluster_a, f"{name}.base", _some(60, 12, sent))
            sent += 60
            wait_until_equal(cluster_a, f"{name}.{number}", cluster_b, f"{alias}.{name}.{number}")
        grow_topic(cluster_a, f"{name}.base", 14)
        produce(cluster_a, f"{name}.base", _some(140, 14, sent))
        wait_until_equal(cluster_a, f"{name}.base", cluster_b, f"{alias}.{name}.base")
        delete_topic(cluster_a, f"{name}.4")
        create_topic(cluster_a, f"{name}.last", 1)
        produce(cluster_a, f"{name}.last", _some(20, 1))
        wait_until_equal(cluster_a, f"{name}.last", cluster_b, f"{alias}.{name}.last")
        assert len(_epochs(cluster_b, alias, since_ms)) == 1
        code, _ = mirror.drain()
    finally:
        mirror.kill()
    assert code == 0, mirror.text()
    for topic in ("base", "last", *map(str, range(4))):
        wait_until_equal(cluster_a, f"{name}.{topic}", cluster_b, f"{alias}.{name}.{topic}")
