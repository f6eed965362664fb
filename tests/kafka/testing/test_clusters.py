"""The clusters that every other test stands on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkmirror.demo.scenario import payments
from sparkmirror.demo.transactions import send_payments
from sparkmirror.demo.verify import read_topics
from sparkmirror.errors import MachineError
from sparkmirror.observe.figures.comparison_result import compare
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.testing.probe import broker_ids, free_ports
from sparkmirror.wire.admin.cluster import Cluster
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import (
    Sent,
    admin,
    consume_all,
    create_topic,
    produce,
    produce_transaction,
    wait_for_topic,
)
from tests.patience import patience


def test_two_clusters_are_two_clusters(cluster_a: KafkaCluster, cluster_b: KafkaCluster) -> None:
    ids = {admin(one).list_topics(timeout=10).cluster_id for one in (cluster_a, cluster_b)}
    assert len(ids) == 2
    assert cluster_a.bootstrap_servers != cluster_b.bootstrap_servers


@pytest.mark.parametrize(
    "compression",
    [
        "none",
        *(pytest.param(one, marks=pytest.mark.more) for one in ("gzip", "snappy", "lz4")),
        "zstd",
    ],
)
def test_records_come_back_as_they_were_sent(
    cluster_a: KafkaCluster, topic_name: str, compression: str
) -> None:
    create_topic(cluster_a, topic_name, 2)
    sent = [
        Sent(b"value", b"key", (("h", b"1"), ("h", None)), 1_700_000_000_000, 0),
        Sent(None, b"tombstone", (), 1_700_000_000_001, 1),
        Sent(b"x" * 5000, None, (), 1_700_000_000_002, 1),
    ]
    produce(cluster_a, topic_name, sent, compression=compression)
    got = consume_all(cluster_a, topic_name)
    assert [(one.partition, one.offset) for one in got] == [(0, 0), (1, 0), (1, 1)]
    assert [
        Sent(one.value, one.key, one.headers, one.timestamp_ms, one.partition) for one in got
    ] == sent
    assert {one.timestamp_type for one in got} == {"create"}


def test_aborted_records_are_seen_only_uncommitted(
    cluster_a: KafkaCluster, topic_name: str
) -> None:
    create_topic(cluster_a, topic_name)
    produce_transaction(cluster_a, topic_name, [Sent(b"kept")])
    produce_transaction(cluster_a, topic_name, [Sent(b"aborted")], commit=False)
    produce_transaction(cluster_a, topic_name, [Sent(b"kept too")])
    # A commit is answered before its marker is in the log.
    wait_until(lambda: len(consume_all(cluster_a, topic_name)) == 2, "what was committed")
    committed = [one.value for one in consume_all(cluster_a, topic_name)]
    every = [one.value for one in consume_all(cluster_a, topic_name, isolation="read_uncommitted")]
    assert committed == [b"kept", b"kept too"]
    assert every == [b"kept", b"aborted", b"kept too"]


def test_kafka_tools_run(cluster_a: KafkaCluster, topic_name: str) -> None:
    tools = "org.apache.kafka.tools"
    where = ("--bootstrap-server", cluster_a.bootstrap_servers)
    made = cluster_a.tool(f"{tools}.TopicCommand", *where, "--create", "--topic", topic_name)
    assert made.returncode == 0, made.stderr
    count = ("--num-records", "1000", "--record-size", "50", "--throughput", "-1")
    done = cluster_a.tool(f"{tools}.ProducerPerformance", *where, "--topic", topic_name, *count)
    assert done.returncode == 0, done.stderr
    assert len(consume_all(cluster_a, topic_name)) == 1000
    bad = cluster_a.tool(f"{tools}.TopicCommand", *where, "--describe", "--topic", "absent")
    assert bad.returncode != 0


@pytest.mark.long
def test_three_nodes_survive_one(new_cluster: Callable[..., KafkaCluster], topic_name: str) -> None:
    cluster = new_cluster("three", nodes=3)
    assert cluster.alive == {1, 2, 3}
    config = {"min.insync.replicas": "2"}
    create_topic(cluster, topic_name, 3, replication=3, config=config)
    produce(cluster, topic_name, [Sent(b"before", partition=number) for number in range(3)])
    cluster.kill(2)
    assert cluster.alive == {1, 3}
    produce(cluster, topic_name, [Sent(b"during", partition=number) for number in range(3)])
    cluster.restart(2)
    host, _, port = cluster.bootstrap_servers.split(",")[1].partition(":")
    assert broker_ids(host, int(port)) == {1, 2, 3}
    assert len(consume_all(cluster, topic_name)) == 6


@pytest.mark.more
def test_restart_keeps_port_and_data(
    new_cluster: Callable[..., KafkaCluster], topic_name: str, tmp_path: Path
) -> None:
    cluster = new_cluster("kept", directory=tmp_path)
    address = cluster.bootstrap_servers
    create_topic(cluster, topic_name)
    produce(cluster, topic_name, [Sent(b"kept")])
    cluster.kill()
    assert cluster.alive == frozenset()
    cluster.restart()
    assert cluster.bootstrap_servers == address
    cluster.stop()
    cluster.start()
    assert [one.value for one in consume_all(cluster, topic_name)] == [b"kept"]


def test_taken_port_is_named() -> None:
    import socket

    (port,) = free_ports(1)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        with pytest.raises(MachineError, match=f"Port {port} is in use") as caught:
            KafkaCluster("taken", ports=[port]).start()
    assert caught.value.where == "cluster taken"


def test_bad_broker_property_is_quoted_from_the_log() -> None:
    cluster = KafkaCluster("bad", config={"num.io.threads": "none"})
    with pytest.raises(MachineError, match=r"num\.io\.threads"):
        cluster.start()
    assert cluster.alive == frozenset()


_OWNER = """
import sys, time
from sparkmirror.testing.clusters import KafkaCluster
from tests.patience import patience
cluster = KafkaCluster("orphan")
cluster.start()
print(cluster.pid(), cluster._home, flush=True)
time.sleep(120)
"""


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.more),
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_nothing_outlives_the_process_that_started_it(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        broker, home = owner.stdout.readline().decode().split()
        os.kill(int(broker), 0)
        owner.send_signal(number)
    deadline = time.monotonic() + patience()
    while Path(home).exists() or Path(f"/proc/{broker}").exists():
        assert time.monotonic() < deadline, "the broker or its directory is still there"
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.9.1", "2.8.2"])
def test_older_brokers_run(
    new_cluster: Callable[..., KafkaCluster], topic_name: str, version: str
) -> None:
    cluster = new_cluster("old", version=version)
    create_topic(cluster, topic_name)
    produce(cluster, topic_name, [Sent(b"old", b"key")])
    cluster.restart()
    wait_for_topic(cluster, topic_name, 1)  # with ZooKeeper the broker answers before it leads
    assert [one.value for one in consume_all(cluster, topic_name)] == [b"old"]


@pytest.mark.long
def test_a_broker_in_zookeeper_outlasts_a_machine_that_is_busy(
    new_cluster: Callable[..., KafkaCluster], topic_name: str
) -> None:
    cluster = new_cluster("busy", version="2.8.2")
    cluster.freeze()
    waking = threading.Timer(4.0, cluster.thaw)  # longer than its session in ZooKeeper once was
    waking.start()
    create_topic(cluster, topic_name)
    waking.join()
    produce(cluster, topic_name, [Sent(b"kept")])
    cluster.kill()
    cluster.restart()  # its session must end before
    wait_for_topic(cluster, topic_name, 1)
    assert [one.value for one in consume_all(cluster, topic_name)] == [b"kept"]


@pytest.mark.more
def test_reading_back_sees_what_differs(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str
) -> None:
    """The same records on both sides are equal, aborted ones do not count, one more does."""
    sent = [
        Sent(b"value", b"key", (("h", b"1"), ("h", b"2")), 1_700_000_000_000, 0),
        Sent(None, b"tombstone", (), 1_700_000_000_001, 1),
        Sent(b"", None, (), 1_700_000_000_002, 1),
    ]
    clients = []
    for cluster, compression in ((cluster_a, "zstd"), (cluster_b, "none")):
        create_topic(cluster, topic_name, 3)
        produce(cluster, topic_name, sent, compression=compression)
        servers = (cluster.bootstrap_servers,)
        clients.append(Cluster(ClusterClient(cluster.name, servers, "test")))
    produce_transaction(cluster_a, topic_name, [Sent(b"aborted", partition=1)], commit=False)
    readings = [read_topics(cluster_a.runtime, client, [topic_name]) for client in clients]
    results = compare(*readings, str)
    assert [(one.source.records, one.equal) for one in results] == [(1, True), (2, True), (0, True)]
    produce(cluster_b, topic_name, [Sent(b"one more", partition=0)])
    later = compare(readings[0], read_topics(cluster_b.runtime, clients[1], [topic_name]), str)
    assert [one.equal for one in later] == [False, True, True]
    for client in clients:
        client.close()


def test_demo_payments_are_committed_and_aborted(cluster_a: KafkaCluster, topic_name: str) -> None:
    create_topic(cluster_a, topic_name, 3)
    wanted = list(payments(5, 12, 3))
    committed, aborted = send_payments(
        cluster_a.bootstrap_servers, topic_name, wanted, transactional_id=topic_name
    )
    assert aborted > 0
    wait_until(lambda: len(consume_all(cluster_a, topic_name)) == committed, "the last marker")
    got = consume_all(cluster_a, topic_name)
    assert len(got) == committed == sum(len(p.records) for p in wanted if p.committed)
    assert {one.headers for one in got} == {(("fate", b"commit"),)}
    every = consume_all(cluster_a, topic_name, isolation="read_uncommitted")
    assert len(every) == committed + aborted
