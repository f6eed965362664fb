"""Partitions of very different rates are dealt to other slots, and `status --slots` says why."""

from __future__ import annotations

import json
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.cli.main import main
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from tests.kafka.harness.mirror_process import MirrorProcess, write_mm2
from tests.kafka.harness.support import Sent, create_topic, produce
from tests.patience import patience

PARTITIONS = 8


class Writer:
    """Writes some 300 kB/s to each partition of ``heavy``, and 1 kB/s to the others."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self.heavy: set[int] = set()
        self.written = [0] * PARTITIONS
        self._cluster, self._topic = cluster, topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(1.0):
            counts = [300 if number in self.heavy else 1 for number in range(PARTITIONS)]
            records = [
                Sent(bytes(1_000), partition=number)
                for number, count in enumerate(counts)
                for _ in range(count)
            ]
            produce(self._cluster, self._topic, records)
            self.written = [old + new for old, new in zip(self.written, counts, strict=True)]

    def end(self) -> None:
        self._over.set()
        self._thread.join()


class Mirror:
    def __init__(self, directory: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file, self._capsys = file, capsys
        self.process = MirrorProcess(directory / "run", ["run", str(file), "--log-format", "json"])

    def status(self, *words: str) -> str:
        """What ``sparkmirror status --slots`` says. In this process: it is asked for a minute long,
        and a start of Python for each question would take most of the processor.
        """
        self._capsys.readouterr()
        main(["status", str(self._file), "--slots", *words])
        return self._capsys.readouterr().out

    def slots(self) -> tuple[dict[str, Any], dict[int, int]]:
        """The flow in JSON, and the slot of each partition."""
        assert self.process.process.poll() is None, self.process.text()[-3_000:]
        (flow,) = json.loads(self.status("--format", "json"))["flows"]
        return flow, {
            p["partition"]: slot["slot"] for slot in flow["slots"] for p in slot["partitions"]
        }


@pytest.mark.more
def test_heavy_partitions_of_one_slot_come_apart(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alias = f"D{uuid.uuid4().hex[:6]}"
    topic = f"dealt-{alias}"
    create_topic(cluster_a, topic, PARTITIONS)
    file = write_mm2(
        tmp_path / "mm2.properties", cluster_a, cluster_b, topic, source=alias,
        extra={"tasks.max": "2", "sparkmirror.epoch.seconds": "3600"},  # the deal ends it
    )  # fmt: skip
    writer, mirror = Writer(cluster_a, topic), Mirror(tmp_path, file, capsys)
    target = Cluster(ClusterClient("B", tuple(cluster_b.bootstrap_servers.split(",")), "test"))
    try:
        deadline = time.monotonic() + patience()
        before: dict[int, int] = {}
        while len(before) < PARTITIONS:
            assert time.monotonic() < deadline, mirror.status()
            time.sleep(0.5)
            _, before = mirror.slots()
        assert sorted(before.values()) == [0] * 4 + [1] * 4
        first, second, *_ = sorted(number for number, slot in before.items() if slot == 0)
        writer.heavy = {first, second}

        deadline = time.monotonic() + patience()
        while True:
            assert time.monotonic() < deadline, mirror.status()
            flow, now = mirror.slots()
            if len(now) == PARTITIONS and now[first] != now[second]:
                break
            time.sleep(2)
        (deal,) = flow["deals"]
        assert deal["moved"] == len(deal["moves"]) == 1, "one move is enough"
        (move,) = deal["moves"]
        assert move["partition"] in (first, second)
        assert (move["from_slot"], move["to_slot"]) == (0, 1)
        assert move["reason"].startswith("slot 0 had ")
        assert move["reason"].endswith(" times the mean")
        assert now == {**before, move["partition"]: 1}

        # The slots have their loads, also once each of them has reported from the new epoch.
        deadline = time.monotonic() + patience()
        while True:
            flow, now = mirror.slots()
            weights = [slot.get("bytes_per_second", 0) for slot in flow["slots"]]
            if len(weights) == 2 and min(weights) > 100_000:
                break
            assert time.monotonic() < deadline, weights
            time.sleep(2)
        assert all(slot["host"] and slot["leaders"] for slot in flow["slots"])
        assert flow["deals"] == [deal], "balanced slots are dealt again"
        text = mirror.status()
        assert move["reason"] in text
        assert f"{topic}-{move['partition']}" in text

        writer.end()
        assert mirror.process.drain()[0] == 0, mirror.process.text()
        there = [TopicPartition(f"{alias}.{topic}", number) for number in range(PARTITIONS)]
        ends = target.end_offsets(there)
        assert [ends[one] for one in there] == writer.written, "each record once"
    finally:
        writer.end()
        mirror.process.kill()
        target.close()
