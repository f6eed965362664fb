"""One mirror scraped, paused, resumed, looked at and drained from outside while it runs."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparkmirror.demo.clusters import KafkaCluster
from tests.kafka.mirror_process import MirrorProcess, installed, wait_until, write_mm2
from tests.kafka.support import (
    Sent,
    consume_all,
    create_topic,
    produce,
    wait_until_equal,
)

SOURCE = "kafka_connect_mirror_mirrorsourceconnector"


class Scrape:
    """The samples of one scrape, by name and labels."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        self.samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def all(self, name: str, **labels: str) -> list[float]:
        wanted = labels.items()
        return [s.value for s in self.samples if s.name == name and wanted <= s.labels.items()]

    def one(self, name: str, **labels: str) -> float:
        (value,) = self.all(name, **labels)
        return value


def run(*arguments: str | Path) -> tuple[int, str]:
    """Exit code, and what the command printed or else why it failed."""
    done = subprocess.run(
        [installed("sparkmirror"), *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout or done.stderr


def status(path: Path) -> tuple[int, dict[str, Any]]:
    code, text = run("status", path, "--format", "json")
    (flow,) = json.loads(text)["flows"]
    return code, flow


def batches(n: int, *, partition: int, at_ms: int) -> list[Sent]:
    return [Sent(b"v" * 100, partition=partition, timestamp_ms=at_ms) for _ in range(n)]


@pytest.mark.timeout(240)
def test_a_running_mirror_is_scraped_paused_and_drained_from_outside(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    topic = f"watched-{uuid.uuid4().hex[:8]}"
    source = f"s{uuid.uuid4().hex[:6]}"
    remote = f"{source}.{topic}"
    create_topic(cluster_a, topic, 2)
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, cluster_b, topic,
        {"sparkmirror.metrics.listen": "127.0.0.1:0"}, source=source,
    )  # fmt: skip
    assert run("status", path)[0] == 1
    assert status(path)[1]["state"] == "never ran"
    code, text = run("pause", path)
    assert code == 3
    assert "never ran" in text

    now_ms = int(time.time() * 1000)
    # A minute old at partition 0, so that age and latency have known bounds.
    produce(cluster_a, topic, batches(300, partition=0, at_ms=now_ms - 60_000))
    mirror = MirrorProcess(tmp_path, ["run", str(path), "--work-dir", str(tmp_path / "work")])
    try:
        wait_until(lambda: "metrics on http" in mirror.text(), "the address", 30)
        found = re.search(r"metrics on (http://127\.0\.0\.1:\d+)/metrics", mirror.text())
        assert found is not None
        url = found[1]
        with urllib.request.urlopen(f"{url}/health/live", timeout=10) as answer:
            assert answer.read() == b"live\n"  # while it starts
        wait_until_equal(cluster_a, topic, cluster_b, remote, timeout_s=90)
        produce(cluster_a, topic, batches(50, partition=1, at_ms=int(time.time() * 1000)))
        wait_until_equal(cluster_a, topic, cluster_b, remote, timeout_s=30)
        labels = {"source": source, "target": "B", "topic": remote}
        wait_until(
            lambda: Scrape(url).all(f"{SOURCE}_record_count", **labels) == [300.0, 50.0],
            "the counts", 20,
        )  # fmt: skip

        scrape = Scrape(url)
        old = {**labels, "partition": "0"}
        new = {**labels, "partition": "1"}
        assert scrape.one(f"{SOURCE}_byte_count", **old) > 300 * 100
        assert 0 < scrape.one(f"{SOURCE}_record_rate", **old) <= 300 / 30
        aged_ms = time.time() * 1000 - (now_ms - 60_000)
        for what in ("record_age_ms", "replication_latency_ms"):
            for end in ("", "_min", "_avg", "_max"):
                assert 60_000 <= scrape.one(f"{SOURCE}_{what}{end}", **old) <= aged_ms
                assert 0 <= scrape.one(f"{SOURCE}_{what}{end}", **new) < 30_000
            assert scrape.one(f"{SOURCE}_{what}_min", **new) <= scrape.one(
                f"{SOURCE}_{what}_max", **new
            )
        flow = {"source": source, "target": "B"}
        assert scrape.one("sparkmirror_records_total", **flow) == 350
        assert scrape.one("sparkmirror_partitions", **flow) == 2
        assert scrape.one("sparkmirror_flow_state", **flow, state="running") == 1
        wait_until(lambda: Scrape(url).all("sparkmirror_flow_lag_records", **flow) == [0], "no lag")
        assert scrape.one("sparkmirror_position_offset", partition="0", topic=topic) == 300
        assert scrape.one("sparkmirror_halted_partitions", **flow) == 0
        chunks = scrape.one("sparkmirror_latency_seconds_count", **flow)
        assert chunks >= 2
        assert scrape.one("sparkmirror_latency_seconds_bucket", **flow, le="+Inf") == chunks
        assert scrape.one("sparkmirror_latency_seconds_sum", **flow) >= 60
        assert scrape.one("sparkmirror_build_info") == 1
        assert not any(math.isinf(s.value) for s in scrape.samples if "lag" in s.name)
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            assert json.load(answer)["ready"] is True

        code, seen = status(path)
        assert (code, seen["state"], seen["lag_records"]) == (0, "running", 0)
        assert sum(slot["records"] for slot in seen["slots"]) == 350
        assert {(p["topic"], p["partition"], p["position"])
                for slot in seen["slots"] for p in slot["partitions"]} == {
                    (topic, 0, 300), (topic, 1, 50)}  # fmt: skip

        # Paused by another process: nothing comes through, and it is seen everywhere.
        assert run("pause", path, f"{source}->B") == (0, f"{source}->B: paused\n")
        before = len(consume_all(cluster_b, remote))
        produce(cluster_a, topic, batches(70, partition=0, at_ms=int(time.time() * 1000)))
        wait_until(lambda: Scrape(url).one("sparkmirror_flow_lag_records", **flow) == 70, "lag", 20)
        time.sleep(3)
        assert len(consume_all(cluster_b, remote)) == before
        assert status(path)[1]["state"] == "paused"
        assert Scrape(url).one("sparkmirror_flow_state", **flow, state="paused") == 1
        with urllib.request.urlopen(f"{url}/health/ready", timeout=10) as answer:
            assert answer.read() == b"ready\n"
        assert run("resume", path) == (0, f"{source}->B: resumed\n")
        wait_until_equal(cluster_a, topic, cluster_b, remote, timeout_s=30)

        # Paused again, and drained while paused: the pause holds for the next run.
        assert run("pause", path)[0] == 0
        produce(cluster_a, topic, batches(5, partition=0, at_ms=int(time.time() * 1000)))
        assert run("drain", path) == (0, f"{source}->B: drained\n")
        assert mirror.wait(30) == 0, mirror.text()
        assert status(path)[1]["state"] == "stopped"
        code, text = run("drain", path)
        assert code == 1
        assert "nothing to drain" in text
    finally:
        mirror.kill()

    again = MirrorProcess(tmp_path, ["run", str(path), "--work-dir", str(tmp_path / "again")])
    try:
        wait_until(lambda: status(path)[1]["state"] == "paused", "paused after a restart", 60)
        assert len(consume_all(cluster_b, remote)) == 420
        assert run("resume", path)[0] == 0
        wait_until_equal(cluster_a, topic, cluster_b, remote, timeout_s=30)
        assert again.drain()[0] == 0, again.text()
    finally:
        again.kill()
    assert len(consume_all(cluster_b, remote)) == 425
