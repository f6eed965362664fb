"""A limit on what a running mirror reads: changed live, kept by the next run, backfill first."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import pytest

from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import Sent, create_topic, produce
from tests.patience import others_per_core

VALUE = bytes(10_000)
# Batches hold about five of these; each costs some bytes for its offset, length and timestamp.
RECORD_BYTES = 10_020
BACKLOG = 25_000
PARTITIONS = 4


class Throttled:
    """A mirror of a backlog and of a topic that is current."""

    def __init__(self, a: KafkaCluster, b: KafkaCluster, directory: Path, rate: str) -> None:
        self.a, self.directory = a, directory
        alias = f"T{uuid.uuid4().hex[:6]}"
        self.flow = f"{alias}->B"
        self.old, self.new = f"old-{alias}", f"new-{alias}"
        for topic in (self.old, self.new):
            create_topic(a, topic, PARTITIONS)
        self.remote = {topic: f"{alias}.{topic}" for topic in (self.old, self.new)}
        self.file = write_mm2(
            directory / "mm2.properties", a, b, f"{self.old},{self.new}", source=alias,
            extra={f"{self.flow}.sparkmirror.throttle": rate},
        )  # fmt: skip
        self.target = Cluster(ClusterClient("B", tuple(b.bootstrap_servers.split(",")), "test"))
        self.running: list[MirrorProcess] = []

    def start(self) -> MirrorProcess:
        mirror = MirrorProcess(
            self.directory / f"run-{len(self.running)}",
            ["run", str(self.file), "--log-format", "json"],
        )
        self.running.append(mirror)
        return mirror

    def command(self, *words: str) -> str:
        """What another process says to ``sparkmirror WORDS``."""
        name, *rest = words
        told = MirrorProcess(
            self.directory / f"command-{uuid.uuid4().hex[:6]}", [name, str(self.file), *rest]
        )
        assert told.wait() == 0, told.text()
        return told.text().strip()

    def there(self, topic: str) -> int:
        wanted = [TopicPartition(self.remote[topic], number) for number in range(PARTITIONS)]
        return sum(self.target.end_offsets(wanted).values())

    def begun(self, topic: str) -> None:
        before = self.there(topic) if self.remote[topic] in self.target.topics() else 0

        def more() -> bool:
            assert self.running[-1].process.poll() is None, self.running[-1].text()[-3_000:]
            return self.remote[topic] in self.target.topics() and self.there(topic) > before + 50

        wait_until(more, "records of the backlog")

    def bytes_s(self, seconds: float) -> float:
        """Bytes of the backlog per second that come to the target, from now on."""
        began_s, before = self._seen()
        time.sleep(seconds)
        now_s, found = self._seen()
        return (found - before) * RECORD_BYTES / (now_s - began_s)

    def comes_at(self, wanted: float, seconds: float, rel: float) -> None:
        """Check the rate. One of three looks has to find it: no pause of a machine is caught up."""
        found: list[float] = []
        while len(found) < 3 and pytest.approx(wanted, rel=rel) not in found:
            found.append(self.bytes_s(seconds))
        assert pytest.approx(wanted, rel=rel) in found, found

    def _seen(self) -> tuple[float, int]:
        """When, and how many records of the backlog: in the middle of a look that takes its time"""
        began_s, found = time.monotonic(), self.there(self.old)
        return (began_s + time.monotonic()) / 2, found

    def kill(self) -> None:
        for mirror in self.running:
            mirror.kill()
        self.target.close()


@pytest.mark.long
def test_a_limit_is_changed_while_the_mirror_runs_and_outlives_it(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    one = Throttled(cluster_a, cluster_b, tmp_path, "1MB/s")
    backlog = [Sent(b"%d" % number, VALUE) for number in range(BACKLOG)]
    produce(cluster_a, one.old, backlog, config={"batch.size": 50_000})
    try:
        first = one.start()
        one.begun(one.old)
        time.sleep(3)
        one.comes_at(1e6, 12, rel=0.06)

        said = one.command("throttle", one.flow, "3MB/s")
        assert said == f"{one.flow}: limited to 3 MB/s"
        time.sleep(2)
        one.comes_at(3e6, 8, rel=0.06)
        (limit,) = json.loads(one.command("throttle", one.flow, "--format", "json"))["flows"]
        assert limit["throttles"][0]["bytes_per_second"] == 3_000_000
        assert limit["throttles"][0]["by"] == "order"

        # The rest of the backlog takes minutes, and a new record does not wait for it.
        assert one.command("throttle", one.flow, "500kB/s").endswith("limited to 500 kB/s")
        took = []
        for number in range(1, 4):
            produce(cluster_a, one.new, [Sent(b"k", b"v")])
            written_s = time.monotonic()
            wait_until(lambda count=number: one.there(one.new) >= count, "a current record")
            took.append(time.monotonic() - written_s)
        assert min(took) < 3 * others_per_core(), took
        assert one.there(one.old) < BACKLOG

        assert first.drain()[0] == 0, first.text()
        one.start()
        one.begun(one.old)
        time.sleep(3)
        one.comes_at(5e5, 8, rel=0.1)  # the next run keeps the order

        assert one.command("throttle", one.flow, "off") == f"{one.flow}: no limit"
        wait_until(lambda: one.there(one.old) == BACKLOG, "the whole backlog")
        events = json.loads(one.command("history", "--format", "json"))["events"]
        told = [event["text"] for event in events if event["kind"] == "throttle"]
        assert told == [
            "limited to 1 MB/s, by the file",
            "limited to 3 MB/s, by an order",
            "limited to 500 kB/s, by an order",
            "limited to 500 kB/s, by an order",
            "limit off, by an order",
        ]
    finally:
        one.kill()
