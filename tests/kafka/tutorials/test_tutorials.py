"""The tutorials' own commands, typed one after the other in a shell."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import installed, wait_until
from tests.kafka.harness.pages import DOCS, NEW, OLD, Reader, blocks
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    create_topic,
    produce,
    topic_names,
    wait_until_equal,
)
from tests.patience import patience
from tests.tutorials import (
    CONSUMER_PROPERTIES,
    MIRROR_MY_TOPIC,
    MIRROR_TWO_SOURCES,
    PRODUCER_PROPERTIES,
)

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
_ONE_BROKER = """
B.offset.storage.replication.factor = 1
offset-syncs.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
"""
_COMMANDS = ("kafka-mirror-maker", "kafka-run-class", "connect-mirror-maker")


@pytest.fixture
def old(fresh_pair: tuple[KafkaCluster, KafkaCluster]) -> KafkaCluster:
    return fresh_pair[0]


@pytest.fixture
def new(fresh_pair: tuple[KafkaCluster, KafkaCluster]) -> KafkaCluster:
    return fresh_pair[1]


@pytest.fixture(scope="module")
def fresh_pair() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Two clusters of these tests alone: their pages mirror whatever there is."""
    with KafkaCluster("old", heap="300m") as old, KafkaCluster("new", heap="300m") as new:
        yield old, new


@pytest.fixture
def reader(tmp_path: Path, old: KafkaCluster, new: KafkaCluster) -> Reader:
    """Someone in Kafka's directory, whose bin has our commands under their old names."""
    names = {"a1:9092,a2:9092": old.bootstrap_servers, "b1:9092": new.bootstrap_servers}
    found = Reader(tmp_path, old, new, names)
    for command in _COMMANDS:
        (tmp_path / "bin" / f"{command}.sh").symlink_to(installed(command))
    return found


@contextmanager
def typed(reader: Reader, command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs until Ctrl+C, which it gets in the end, and ends with 0."""
    log = reader.directory / "mirror.log"
    with log.open("wb") as stream:
        process = reader.start(command, stream)
        try:
            yield process
            assert process.poll() is None, f"{command}\n{reader.log()}"
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(patience()) == 0, f"{command}\n{reader.log()}"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


def values(count: int) -> list[str]:
    return [f"{n}" for n in range(1, count + 1)]


def printed(consumed: str) -> list[str]:
    """The records of `seq` in what the console consumer prints, between what it says itself."""
    return sorted((line for line in consumed.splitlines() if line.isdecimal()), key=int)


def lags(described: str) -> list[str]:
    """The LAG of each partition in what kafka-consumer-groups prints."""
    lines = [line.split() for line in described.splitlines() if line.strip()]
    header = next(n for n, words in enumerate(lines) if words[:1] == ["GROUP"])
    column = lines[header].index("LAG")
    return [words[column] for words in lines[header + 1 :]]


def _count(cluster: KafkaCluster, topic: str) -> int:
    return len(consume_all(cluster, topic)) if topic in topic_names(cluster) else 0


def test_the_quickstart(old: KafkaCluster, new: KafkaCluster, reader: Reader) -> None:
    create_topic(old, "orders.eu", 2)
    create_topic(old, "customers", 1)
    produce(old, "orders.eu", [Sent(b"%d" % n, key=b"k", partition=n % 2) for n in range(100)])
    (file,) = blocks(DOCS / "quickstart.md", "properties")
    (reader.directory / "mm2.properties").write_text(reader.adapted(file) + _ONE_BROKER)
    (block,) = blocks(DOCS / "quickstart.md", "sh")
    doctor, plan, run, once = block.splitlines()
    assert re.search(r"\b0 failed", reader.run(doctor))
    assert "A.orders.eu" in reader.run(plan)
    assert "A.orders.eu" not in topic_names(new)  # so far it was only looked at
    with typed(reader, run):
        wait_until_equal(old, "orders.eu", new, "A.orders.eu")
        assert "A.customers" in topic_names(new)
    produce(old, "orders.eu", [Sent(b"more-%d" % n, partition=n % 2) for n in range(10)])
    summary = reader.run(once)
    assert "done" in summary
    wait_until_equal(old, "orders.eu", new, "A.orders.eu", timeout_s=5)
    lag = reader.run("sparkmirror lag mm2.properties")
    rows = [line.split() for line in lag.splitlines()]
    assert [row[5] for row in rows if row[1:2] == ["orders.eu"]] == ["0", "0"], lag
    assert "equal" in reader.run("sparkmirror verify mm2.properties --topic orders.eu")


def test_rename_filter_and_mask(old: KafkaCluster, new: KafkaCluster, reader: Reader) -> None:
    """The tutorial of transforms, and what it prints."""
    page, directory = DOCS / "tutorial-transforms.md", reader.directory
    fill, plan, once, orders, customers, lag, more, orders_then = blocks(page, "sh")
    mirror, sql, python = map(reader.adapted, blocks(page, "properties"))
    masked, plain, masked_then = (text.splitlines() for text in blocks(page, "json"))
    reader.run(fill)
    (directory / "mm2.properties").write_text(mirror + sql)
    planned = reader.run(plan)
    assert "tenant-eu.orders" in planned
    assert "tenant-eu.customers" in planned
    assert "tenant-eu.orders" not in topic_names(new)
    reader.run(once)
    assert documents(reader.run(orders)) == masked
    assert documents(reader.run(customers)) == plain
    rows = [line.split() for line in reader.run(lag).splitlines()]
    assert [row[5] for row in rows if row[1:2] == ["eu.orders"]] == ["0"], rows
    (directory / "orders.py").write_text(blocks(page, "python")[0])
    (directory / "mm2.properties").write_text(mirror + python)
    reader.run(more)
    assert documents(reader.run(orders_then)) == masked_then


def documents(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("{")]


def test_mirroring_data_between_clusters(
    old: KafkaCluster, new: KafkaCluster, reader: Reader
) -> None:
    """Kafka's documentation of MirrorMaker 1, with its own tools before and after."""
    directory = reader.directory
    (directory / "consumer.properties").write_text(
        CONSUMER_PROPERTIES.format(servers=old.bootstrap_servers, group="test-consumer-group")
    )
    (directory / "producer.properties").write_text(
        PRODUCER_PROPERTIES.format(servers=new.bootstrap_servers)
    )
    for server in (OLD, NEW):
        reader.run(f"bin/kafka-topics.sh --create --topic my-topic --bootstrap-server {server}")
    with typed(reader, MIRROR_MY_TOPIC):
        # Without auto.offset.reset a new group begins at the end: only what comes from now on.
        wait_until(lambda: "mirroring" in reader.log(), "the mirror says that it mirrors")
        reader.run(
            f"seq 100 | bin/kafka-console-producer.sh --topic my-topic --bootstrap-server {OLD}"
        )
        read = reader.run(
            f"bin/kafka-console-consumer.sh --topic my-topic --bootstrap-server {NEW}"
            " --from-beginning --max-messages 100 --timeout-ms 30000"
        )
        assert printed(read) == values(100)
    described = reader.run(
        f"bin/kafka-consumer-groups.sh --bootstrap-server {OLD} --describe"
        " --group test-consumer-group"
    )
    assert set(lags(described)) == {"0"}


def test_the_wikis_mirror_of_two_sources(
    old: KafkaCluster, new: KafkaCluster, reader: Reader
) -> None:
    """Both write to one target, as one group at each source."""
    directory = reader.directory
    with KafkaCluster("other", heap="300m") as other:
        for number, source in enumerate((old, other), 1):
            (directory / f"sourceCluster{number}Consumer.config").write_text(
                CONSUMER_PROPERTIES.format(servers=source.bootstrap_servers, group="KafkaMirror")
                + "auto.offset.reset=earliest\n"
            )
        (directory / "targetClusterProducer.config").write_text(
            PRODUCER_PROPERTIES.format(servers=new.bootstrap_servers)
        )
        for server, topic in ((OLD, "test-topic"), (other.bootstrap_servers, "other-topic")):
            reader.run(f"bin/kafka-topics.sh --create --topic {topic} --bootstrap-server {server}")
            reader.run(
                f"seq 50 | bin/kafka-console-producer.sh --topic {topic}"
                f" --bootstrap-server {server}"
            )
        with typed(reader, MIRROR_TWO_SOURCES):
            for topic in ("test-topic", "other-topic"):
                # Spark starts first, for which the consumer's minute may be too short.
                wait_until(lambda topic=topic: _count(new, topic) >= 50, f"{topic} is there")
                read = reader.run(
                    f"bin/kafka-console-consumer.sh --topic {topic} --bootstrap-server {NEW}"
                    " --from-beginning --max-messages 50 --timeout-ms 60000"
                )
                assert printed(read) == values(50), reader.log()
        checked = reader.run(
            "bin/kafka-run-class.sh kafka.tools.ConsumerOffsetChecker --group KafkaMirror"
            f" --bootstrap-server {OLD} --topic test-topic"
        )
        assert "test-topic" in checked


def test_connect_mirror_maker(old: KafkaCluster, new: KafkaCluster, reader: Reader) -> None:
    """``connect-mirror-maker.sh FILE`` with the file that Kafka ships."""
    file = (ROOT / "examples" / "connect-mirror-maker.properties").read_text()
    for there, here in (
        ("A_host1:9092, A_host2:9092, A_host3:9092", old.bootstrap_servers),
        ("B_host1:9092, B_host2:9092, B_host3:9092", new.bootstrap_servers),
    ):
        assert there in file
        file = file.replace(there, here)
    (reader.directory / "mm2.properties").write_text(file)
    reader.run(f"bin/kafka-topics.sh --create --topic events --bootstrap-server {OLD}")
    reader.run(f"seq 30 | bin/kafka-console-producer.sh --topic events --bootstrap-server {OLD}")
    with typed(reader, shlex.join(["bin/connect-mirror-maker.sh", "mm2.properties"])):
        wait_until(lambda: _count(new, "A.events") >= 30, "A.events is there")
        read = reader.run(
            f"bin/kafka-console-consumer.sh --topic A.events --bootstrap-server {NEW}"
            " --from-beginning --max-messages 30 --timeout-ms 60000"
        )
        assert printed(read) == values(30)
        wanted = {"heartbeats", "A.heartbeats", "A.checkpoints.internal"}
        wait_until(lambda: wanted <= set(topic_names(new)), "MirrorMaker 2's topics are there")
        assert "A.events" in reader.run(f"bin/kafka-topics.sh --list --bootstrap-server {NEW}")
