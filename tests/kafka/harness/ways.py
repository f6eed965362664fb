"""Every way to connect to a broker, and a test of each in both directions.

docs/security.md lists them; tests/unit/docs/test_security_page.py holds the list against `WAYS`.
"""

from __future__ import annotations

import time

from sparkmirror.model import TopicPartition
from sparkmirror.records.header import HEADER_BYTES, LOG_OVERHEAD_BYTES
from sparkmirror.settings import ClusterClient, FetchSettings, ProduceSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.messages import record_batch
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.probe.reach import reach
from sparkmirror.wire.produce.producer import Producer
from tests.kafka.clusters.secure import LISTENERS, MECHANISMS
from tests.kafka.harness.support import Sent, create_topic, produce
from tests.patience import patience

GSSAPI = "GSSAPI"
ROLES = ("source", "target")
# Listener, mechanism, role; those with GSSAPI are tests of test_kerberos.py.
WAYS = [
    (listener, mechanism, role)
    for listener, protocol in LISTENERS.items()
    for mechanism in ((*MECHANISMS, GSSAPI) if protocol.startswith("SASL_") else ("",))
    for role in ROLES
]
# More than one TLS record, and parts on both sides of the size up to which they are joined.
VALUES = [b"x" * size for size in (10, 70_000, 300_000, 900_000)]


def works(client: ClusterClient, role: str, kafka: KafkaCluster, topic: str) -> None:
    """Both clients, the driver's and the data path's own, do what ``role`` asks of them.

    ``kafka``: the same cluster, by its plain listener. ``topic``: a new one.
    """
    reached = reach(client)
    assert f"{reached.host}:{reached.port}" in client.bootstrap_servers
    tp = TopicPartition(topic, 0)
    create_topic(kafka, topic)
    cluster = Cluster(client)
    try:
        assert cluster.topics([topic])[topic].partitions == 1
        if role == "target":
            assert cluster.produce_many(topic, [(0, b"k", b"v")]) == 1
            produce_batches(client, tp, VALUES)
            assert cluster.end_offsets([tp]) == {tp: 1 + len(VALUES)}
            return
        produce(kafka, topic, [Sent(value=value, key=b"k", partition=0) for value in VALUES])
        assert cluster.end_offsets([tp]) == {tp: len(VALUES)}
        assert fetch_batches(client, tp, len(VALUES)) > sum(map(len, VALUES))
        # The third way of kafka-python: a consumer, which reads control and offset topics.
        assert next(iter(cluster.read_compacted(topic))) == (0, b"k", VALUES[0])
    finally:
        cluster.close()


def now_ms() -> int:
    """Retention removes older records half a minute after the broker's start."""
    return int(time.time() * 1000)


def produce_batches(client: ClusterClient, tp: TopicPartition, values: list[bytes]) -> None:
    """One batch of one record for each of ``values``, by the data path's producer."""
    connections = ClusterConnections(client, [tp.topic])
    producer = Producer(connections, ProduceSettings())
    for value in values:
        producer.backlog.append(tp, memoryview(record_batch([(b"k", value)], now_ms())))
    pump(producer)
    producer.close()
    connections.close()


def pump(producer: Producer) -> None:
    """Until everything is acknowledged."""
    deadline = time.monotonic() + patience()
    while not producer.backlog.idle:
        assert time.monotonic() < deadline, (producer.backlog.halts, producer.backlog.errors)
        producer.pump(0.2)
    assert producer.backlog.halts == {}


def fetch_batches(client: ClusterClient, tp: TopicPartition, records: int) -> int:
    """Bytes of the batches with ``records`` records, by the data path's fetcher."""
    connections = ClusterConnections(client, [tp.topic])
    fetcher = Fetcher(connections, FetchSettings())
    fetcher.assign(tp, 0)
    seen = size = 0
    deadline = time.monotonic() + patience()
    while seen < records:
        assert time.monotonic() < deadline, (fetcher.halts, fetcher.errors)
        fetcher.send()
        for connection in fetcher.ready(0.2):
            for part in fetcher.receive(connection):
                for batch_size, count in whole_batches(part.records):
                    seen += count
                    size += batch_size
                fetcher.advance(tp, seen)
    connections.close()
    assert seen == records
    return size


def whole_batches(records: memoryview) -> list[tuple[int, int]]:
    """Bytes and records of the batches in an answer; its last one may be cut off."""
    found, at = [], 0
    while at + HEADER_BYTES <= len(records):
        size = LOG_OVERHEAD_BYTES + int.from_bytes(records[at + 8 : at + 12], "big")
        if at + size > len(records):
            break
        found.append((size, int.from_bytes(records[at + 57 : at + 61], "big")))
        at += size
    return found
