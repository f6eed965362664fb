"""One mirror scraped, paused, resumed, looked at and drained from outside while it runs."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, installed, wait_until, write_mm2
from tests.kafka.harness.support import (
    Sent,
    commit,
    consume_all,
    create_topic,
    produce,
    wait_until_equal,
)
from tests.patience import patience

SOURCE = "kafka_connect_mirror_mirrorsourceconnector"


class Scrape:
    """The samples of one scrape, by name and labels."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(f"{url}/metrics", timeout=patience()) as answer:
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
        capture_output=True, text=True, timeout=patience(), check=False,
    )  # fmt: skip
    return done.returncode, done.stdout or done.stderr


def status(path: Path) -> tuple[int, dict[str, Any]]:
    code, text = run("status", path, "--format", "json")
    (flow,) = json.loads(text)["flows"]
    return code, flow


@dataclass
class Watched:
    """One flow of the shared clusters, with a source alias of its own."""

    a: KafkaCluster
    b: KafkaCluster
    path: Path
    source: str
    topic: str
    url: str = ""

    @property
    def remote(self) -> str:
        return f"{self.source}.{self.topic}"

    @property
    def labels(self) -> dict[str, str]:
        return {"source": self.source, "target": "B"}

    def produce(self, n: int, *, partition: int = 0, age_ms: int = 0) -> None:
        at_ms = int(time.time() * 1000) - age_ms
        records = [Sent(b"v" * 100, partition=partition, timestamp_ms=at_ms) for _ in range(n)]
        produce(self.a, self.topic, records)

    def wait_until_mirrored(self, timeout_s: float | None = None) -> None:
        wait_until_equal(self.a, self.topic, self.b, self.remote, timeout_s=timeout_s)

    def mirrored(self) -> int:
        return len(consume_all(self.b, self.remote))

    def commit(self, *offsets: int) -> None:
        """What a consumer group of the source leaves behind, by partition."""
        settings = {"bootstrap.servers": self.a.bootstrap_servers, "group.id": f"{self.topic}-g"}
        consumer = Consumer(settings)
        places = [TopicPartition(self.topic, n, offset) for n, offset in enumerate(offsets)]
        commit(consumer, places)
        consumer.close()

    def get(self, page: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}/{page}", timeout=patience()) as answer:
            body: bytes = answer.read()
        return body


@pytest.fixture
def watched(cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path) -> Watched:
    topic = f"watched-{uuid.uuid4().hex[:8]}"
    source = f"s{uuid.uuid4().hex[:6]}"
    create_topic(cluster_a, topic, 2)
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, cluster_b, topic,
        {
            "sparkmirror.metrics.listen": "127.0.0.1:0", "groups": f"{topic}-.*",
            "emit.checkpoints.interval.seconds": "1", "refresh.groups.interval.seconds": "1",
        },
        source=source,
    )  # fmt: skip
    return Watched(cluster_a, cluster_b, path, source, topic)


@pytest.mark.long
def test_a_running_mirror_is_scraped_paused_and_drained_from_outside(
    watched: Watched, tmp_path: Path
) -> None:
    path, flow = watched.path, f"{watched.source}->B"
    assert status(path)[0] == 1
    assert status(path)[1]["state"] == "never ran"
    code, text = run("pause", path)
    assert code == 3
    assert "never ran" in text

    # A minute old at partition 0, so that age and latency have known bounds.
    began_s = time.time()
    watched.produce(300, age_ms=60_000)
    mirror = MirrorProcess(tmp_path, ["run", str(path), "--work-dir", str(tmp_path / "work")])
    try:
        wait_until(lambda: "metrics on http" in mirror.text(), "the address")
        found = re.search(r"metrics on (http://127\.0\.0\.1:\d+)/metrics", mirror.text())
        assert found is not None
        watched.url = found[1]
        assert watched.get("health/live") == b"live\n"  # while it starts
        wait_until(lambda: "records in total" in mirror.text(), "the first records")
        watched.wait_until_mirrored()
        watched.produce(50, partition=1)
        watched.wait_until_mirrored()
        check_partitions(watched, 60_000 + (time.time() - began_s) * 1000)
        check_flow(watched)
        check_group(watched, began_s - 60)
        check_status(watched)
        check_pause(watched)

        # Paused again, and drained while paused: the pause holds for the next run.
        assert run("pause", path)[0] == 0
        watched.produce(5)
        assert run("drain", path) == (0, f"{flow}: drained\n")
        assert mirror.wait() == 0, mirror.text()
        seen = status(path)[1]
        assert (seen["state"], seen["paused"]) == ("stopped", True)
        assert "stopped, paused" in run("status", path)[1]
        code, text = run("drain", path)
        assert code == 1
        assert "nothing to drain" in text
    finally:
        mirror.kill()

    once = MirrorProcess(tmp_path, ["run", str(path), "--once"])
    try:
        assert once.wait() == 1, once.text()
        halt = f"{flow} {watched.topic}-0: PAUSED: the flow is paused; sparkmirror resume"
        assert halt in once.text()
    finally:
        once.kill()

    again = MirrorProcess(tmp_path, ["run", str(path), "--work-dir", str(tmp_path / "again")])
    try:
        wait_until(lambda: status(path)[1]["state"] == "paused", "paused after a restart")
        assert watched.mirrored() == 420
        assert run("resume", path)[0] == 0
        watched.wait_until_mirrored(120)  # Spark may still be starting
        assert again.drain()[0] == 0, again.text()
    finally:
        again.kill()
    assert watched.mirrored() == 425


def check_partitions(watched: Watched, age_ms_max: float) -> None:
    """MirrorMaker 2's metrics of both partitions: 300 old records, 50 new ones."""
    labels = {**watched.labels, "topic": watched.remote}
    count = f"{SOURCE}_record_count"
    wait_until(lambda: Scrape(watched.url).all(count, **labels) == [300, 50], "the counts")
    scrape = Scrape(watched.url)
    age_ms_max += 20_000
    old, new = {**labels, "partition": "0"}, {**labels, "partition": "1"}
    assert scrape.one(f"{SOURCE}_byte_count", **old) > 300 * 100
    assert 0 < scrape.one(f"{SOURCE}_record_rate", **old) <= 300 / 30
    for what in ("record_age_ms", "replication_latency_ms"):
        for end in ("", "_min", "_avg", "_max"):
            assert 60_000 <= scrape.one(f"{SOURCE}_{what}{end}", **old) <= age_ms_max
            assert 0 <= scrape.one(f"{SOURCE}_{what}{end}", **new) < 30_000
        low, high = (scrape.one(f"{SOURCE}_{what}_{end}", **new) for end in ("min", "max"))
        assert low <= high


def check_flow(watched: Watched) -> None:
    """Our own metrics, and the health that goes with them."""
    flow = watched.labels
    lag = "sparkmirror_flow_lag_records"
    wait_until(lambda: Scrape(watched.url).all(lag, **flow) == [0], "no lag")
    scrape = Scrape(watched.url)
    assert scrape.one("sparkmirror_records_total", **flow) == 350
    assert scrape.one("sparkmirror_partitions", **flow) == 2
    assert scrape.one("sparkmirror_flow_state", **flow, state="running") == 1
    assert scrape.one("sparkmirror_position_offset", partition="0", topic=watched.topic) == 300
    assert scrape.one("sparkmirror_halted_partitions", **flow) == 0
    chunks = scrape.one("sparkmirror_latency_seconds_count", **flow)
    assert chunks >= 2
    assert scrape.one("sparkmirror_latency_seconds_bucket", **flow, le="+Inf") == chunks
    assert scrape.one("sparkmirror_latency_seconds_sum", **flow) >= 60
    assert scrape.one("sparkmirror_build_info") == 1
    assert not any(math.isinf(s.value) for s in scrape.samples if "lag" in s.name)
    assert json.loads(watched.get("health"))["ready"] is True


def check_group(watched: Watched, written_s: float) -> None:
    """Lag of a consumer group, whose first unread record was written at ``written_s``."""
    labels = {**watched.labels, "group": f"{watched.topic}-g", "topic": watched.topic}
    records, seconds = (f"sparkmirror_group_lag_{what}" for what in ("records", "seconds"))
    watched.commit(100, 50)
    wait_until(lambda: Scrape(watched.url).all(records, **labels) == [200, 0], "lag of a group")
    scrape = Scrape(watched.url)
    behind = scrape.one(seconds, partition="0", **labels)
    assert 60 <= behind <= time.time() - written_s + 1
    assert scrape.one(seconds, partition="1", **labels) == 0
    watched.commit(300, 0)
    wait_until(lambda: Scrape(watched.url).all(records, **labels) == [0, 50], "the group to move")
    young = Scrape(watched.url).one(seconds, partition="1", **labels)
    assert 0 <= young < behind
    assert Scrape(watched.url).one(seconds, partition="0", **labels) == 0


def check_status(watched: Watched) -> None:
    code, seen = status(watched.path)
    assert (code, seen["state"], seen["lag_records"]) == (0, "running", 0)
    assert sum(slot["records"] for slot in seen["slots"]) == 350
    positions = {
        (p["topic"], p["partition"], p["position"])
        for slot in seen["slots"]
        for p in slot["partitions"]
    }
    assert positions == {(watched.topic, 0, 300), (watched.topic, 1, 50)}


def check_seconds_behind(watched: Watched, written_s: float) -> None:
    """All say the age of the oldest record that is not at the target, written at ``written_s``."""
    scrape = Scrape(watched.url)
    code, text = run("lag", watched.path, "--format", "json")
    assert code == 0
    (looked,) = json.loads(text)["flows"]
    seen = status(watched.path)[1]
    partition = {"topic": watched.topic, "partition": "0"}
    told = {
        "metrics": scrape.one("sparkmirror_flow_lag_seconds", **watched.labels),
        "partition": scrape.one("sparkmirror_lag_seconds", **watched.labels, **partition),
        "lag": looked["lag_seconds_max"],
        "status": seen["lag_seconds"],
    }
    highest = time.time() - written_s + 1
    assert all(3_599 <= seconds <= highest for seconds in told.values()), told
    assert scrape.one("sparkmirror_lag_seconds", topic=watched.topic, partition="1") == 0
    assert 70 * 100 <= looked["lag_bytes"] == seen["lag_bytes"] < 70 * 300
    assert 70 * 100 <= scrape.one("sparkmirror_flow_lag_bytes", **watched.labels) < 70 * 300


def check_pause(watched: Watched) -> None:
    """Paused by another process: nothing comes through, and it is seen everywhere."""
    flow = f"{watched.source}->B"
    assert run("pause", watched.path, flow) == (0, f"{flow}: paused\n")
    before = watched.mirrored()
    began_s = time.time()
    watched.produce(70, age_ms=3_600_000)
    lag = "sparkmirror_flow_lag_records"
    wait_until(lambda: Scrape(watched.url).one(lag, **watched.labels) == 70, "lag")
    check_seconds_behind(watched, began_s - 3_600)
    time.sleep(3)
    assert watched.mirrored() == before
    assert status(watched.path)[1]["state"] == "paused"
    assert Scrape(watched.url).one("sparkmirror_flow_state", **watched.labels, state="paused") == 1
    assert watched.get("health/ready") == b"ready\n"
    assert run("resume", watched.path) == (0, f"{flow}: resumed\n")
    watched.wait_until_mirrored()
