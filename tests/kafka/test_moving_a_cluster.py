"""Every command of the page on moving a cluster, in its order, against two real clusters."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sparkmirror.demo.clusters import KafkaCluster, start_all
from sparkmirror.demo.tools import TOOLS, write_tools
from tests.ambari import BROKERS, SECRET, SETTINGS, Ambari, component, serve, settings
from tests.kafka.support import (
    Sent,
    consume_all,
    contents,
    create_topic,
    produce,
    send_all,
    topic_names,
)

PAGE = Path(__file__).parents[2] / "docs" / "migrating-a-cluster.md"
OLD, NEW = "a1.example.com:9092", "b1.example.com:9092"


def blocks(language: str) -> list[str]:
    """The page's code blocks of ``language``, in order."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found


class Reader:
    """Who follows the page: names, numbers of brokers and cores are this machine's."""

    def __init__(self, directory: Path, old: KafkaCluster, new: KafkaCluster, ambari: str) -> None:
        self.directory = directory
        self._instead = {
            OLD: old.bootstrap_servers,
            NEW: new.bootstrap_servers,
            "https://ambari.example.com": ambari,
            "--cluster kafka ": "--cluster 'kafka one' ",
            "--replication-factor 3": "--replication-factor 1",
            "replication.factor = 3": "replication.factor = 1",
            "tasks.max = 4": "tasks.max = 2",
        }
        write_tools(new.runtime, directory / "bin")
        places = [str(directory / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._environment = {
            **os.environ,
            "PATH": os.pathsep.join(places),
            "AMBARI_PASSWORD": SECRET,
            "XDG_STATE_HOME": str(directory / "state"),
            "LC_ALL": "C",
        }

    def adapted(self, text: str) -> str:
        for there, here in self._instead.items():
            text = text.replace(there, here)
        return text

    def run(self, block: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-u", "-o", "pipefail", "-c", self.adapted(block)],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        path = self.directory / "mirror.log"
        return path.read_text(errors="replace") if path.exists() else ""


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


@contextmanager
def mirror_ended(directory: Path) -> Iterator[None]:
    """Whatever happens, no mirror is left behind."""
    try:
        yield
    finally:
        path = directory / "mirror.pid"
        if path.exists():
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                path.unlink()


def test_every_tool_of_the_page_is_there() -> None:
    """A command that no block of the test would find must not stand on the page."""
    commands = set(re.findall(r"\bkafka-[a-z-]+\.sh\b", PAGE.read_text()))
    assert commands <= set(TOOLS)


@pytest.mark.slow
@pytest.mark.timeout(900)
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
        reader = Reader(directory, old, new, ambari.url)
        (file,) = blocks("properties")
        (directory / "move.properties").write_text(reader.adapted(file))
        # An application that reads on the old cluster until the page says to stop it.
        billing = (
            f"kafka-console-consumer.sh --bootstrap-server {OLD} --topic orders --group billing "
            "--from-beginning --timeout-ms 8000"
        )
        reader.run(billing)
        told = {}
        load = _Producers(old)
        for block in blocks("sh"):
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
