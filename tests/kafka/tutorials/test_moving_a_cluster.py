"""Every command of the page on moving a cluster, in its order, against two real clusters."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sparkmirror.demo.tools import TOOLS
from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.ambari import BROKERS, SECRET, SETTINGS, Ambari, component, serve, settings
from tests.kafka.harness.pages import DOCS, NEW, OLD, Reader, blocks, mirror_ended
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    contents,
    create_topic,
    produce,
    send_all,
    topic_names,
)

PAGE = DOCS / "migrating-a-cluster.md"


class _Producers:
    """Writes to orders all the time, as the producers do that are still on the old cluster."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._cluster.bootstrap_servers})
        while not self._over.wait(0.1):
            values = range(self.sent, self.sent + 20)
            send_all(producer, "orders", [Sent(b"%d" % n, partition=n % 4) for n in values])
            self.sent += 20

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)
        assert self.sent


def test_every_tool_of_the_page_is_there() -> None:
    """A command that no block of the test would find must not stand on the page."""
    commands = set(re.findall(r"\bkafka-[a-z-]+\.sh\b", PAGE.read_text()))
    assert commands <= set(TOOLS)


@pytest.mark.long
def test_the_whole_page(tmp_path: Path) -> None:
    old, new = KafkaCluster("old", heap="300m"), KafkaCluster("new", heap="300m")
    start_all(old, new)
    try:
        follow(old, new, tmp_path)
    finally:
        for cluster in (old, new):
            cluster.stop()


def follow(old: KafkaCluster, new: KafkaCluster, directory: Path) -> None:
    create_topic(old, "orders", 4)
    create_topic(old, "customers", 2)
    produce(old, "orders", [Sent(b"%d" % n, partition=n % 4) for n in range(400)])
    produce(old, "customers", [Sent(b"%d" % n, key=b"k", partition=n % 2) for n in range(40)])
    host, _, port = old.bootstrap_servers.partition(":")
    ambari = Ambari()
    ambari.answers = {
        BROKERS: component("KAFKA", "KAFKA_BROKER", [host]),
        SETTINGS: settings({"listeners": f"PLAINTEXT://localhost:{port}"}),
    }
    with serve(ambari), mirror_ended(directory):
        instead = {
            "https://ambari.example.com": ambari.url,
            "--cluster kafka ": "--cluster 'kafka one' ",
            "--replication-factor 3": "--replication-factor 1",
        }
        reader = Reader(directory, old, new, instead, {"AMBARI_PASSWORD": SECRET})
        (file,) = blocks(PAGE, "properties")
        (directory / "move.properties").write_text(reader.adapted(file))
        # An application that reads on the old cluster until the page says to stop it.
        billing = (
            f"kafka-console-consumer.sh --bootstrap-server {OLD} --topic orders --group billing "
            "--from-beginning --timeout-ms 8000"
        )
        reader.run(billing)
        told = {}
        load = _Producers(old)
        for block in blocks(PAGE, "sh"):
            if "nohup" in block:
                load.start()
            elif "--max-lag 0" in block:  # the page has just said to stop them
                load.stop()
            elif f"{OLD} --describe --group billing" in block:
                reader.run(billing)
            told[block] = reader.run(block)

    def said(words: str) -> str:
        return next(text for block, text in told.items() if words in block)

    assert f"old.bootstrap.servers={old.bootstrap_servers}" in said("discover ambari")
    assert "0 failed" in said("doctor")
    assert "hello from old" in said("console-consumer")
    assert "all equal" in said("--once")
    moved = re.findall(r"billing +orders +\d +(\d+)", said("--to-latest"))
    assert sum(map(int, moved)) == 400 + load.sent
    assert re.findall(r"reports +orders +\d +(\d+)", said("--to-datetime")) == ["0"] * 4
    assert "old->new" in said("tail -n 5")  # the summary of a mirror that has ended in order
    assert "all equal" in said("sparkmirror verify move.properties\n")
    assert {name for name in topic_names(new) if name.endswith("internal")} == set()
    assert topic_names(old) == {"orders", "customers", "__consumer_offsets"}
    brought = re.findall(r"billing +orders +\d +(\d+)", said(f"{NEW} --describe --group billing"))
    assert len(brought) == 4
    assert 0 < sum(map(int, brought)) <= 400 + load.sent
    for topic in ("orders", "customers"):
        assert contents(consume_all(new, topic)) == contents(consume_all(old, topic))
