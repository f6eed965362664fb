"""Small helpers over librdkafka: an independent client, so that no bug of ours cancels out."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from sparkmirror.data.write.position_commits import Commits
from sparkmirror.model import TopicPartition as Partition
from sparkmirror.testing.clusters import KafkaCluster
from tests.patience import patience

Headers = tuple[tuple[str, bytes | None], ...]
TIMEOUT_S = 120.0

_COORDINATOR_SOON = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
_TIMESTAMP_TYPES = {TIMESTAMP_CREATE_TIME: "create", TIMESTAMP_LOG_APPEND_TIME: "append"}


class Sent(NamedTuple):
    """A record to produce; partition None leaves the choice to librdkafka."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = 0
    partition: int | None = 0


class Received(NamedTuple):
    """A record as a consumer sees it; ``timestamp_type`` is create, append or none."""

    partition: int
    offset: int
    timestamp_type: str
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Content(NamedTuple):
    """What a mirror has to keep of a record."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def admin(cluster: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


def create_topic(
    cluster: KafkaCluster,
    topic: str,
    partitions: int = 1,
    *,
    replication: int = 1,
    config: dict[str, str] | None = None,
    replicas: Sequence[Sequence[int]] | None = None,
) -> None:
    """Creates a topic and waits until every partition has a leader.

    ``replicas``: the brokers of each partition, in place of ``partitions`` and ``replication``.
    """
    client = admin(cluster)
    wanted = NewTopic(topic, partitions, replication, config=config or {})
    if replicas is not None:
        partitions = len(replicas)
        placed = [list(one) for one in replicas]
        wanted = NewTopic(topic, partitions, replica_assignment=placed, config=config or {})
    client.create_topics([wanted])[topic].result(TIMEOUT_S)
    wait_for_topic(cluster, topic, partitions)


def wait_for_topic(
    cluster: KafkaCluster, topic: str, partitions: int, *, timeout_s: float | None = None
) -> None:
    """Waits until ``topic`` has ``partitions`` partitions, all with a leader."""
    client = admin(cluster)
    deadline = time.monotonic() + (timeout_s or patience())
    while True:
        found = client.list_topics(timeout=TIMEOUT_S).topics.get(topic)
        if (
            found is not None
            and len(found.partitions) >= partitions
            and all(one.leader >= 0 for one in found.partitions.values())
        ):
            return
        assert time.monotonic() < deadline, f"{topic} not ready on {cluster.name}: {found}"
        time.sleep(0.05)


def topic_names(cluster: KafkaCluster) -> set[str]:
    return set(admin(cluster).list_topics(timeout=TIMEOUT_S).topics)


def delete_topic(cluster: KafkaCluster, topic: str) -> None:
    client = admin(cluster)  # kept: what it was asked for goes with it
    client.delete_topics([topic])[topic].result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while topic in topic_names(cluster):
        assert time.monotonic() < deadline, f"{topic} still listed on {cluster.name}"
        time.sleep(0.05)


def forget_mirrors(*clusters: KafkaCluster) -> None:
    """Delete what mirrors of earlier tests have left for themselves on shared clusters."""
    for cluster in clusters:
        for name in topic_names(cluster):
            if name.startswith("mm2-") or name.endswith(("heartbeats", ".checkpoints.internal")):
                delete_topic(cluster, name)


def delete_records(cluster: KafkaCluster, topic: str, partition: int, before: int) -> None:
    """Deletes the records of a partition below the offset ``before``, as retention does."""
    wanted = TopicPartition(topic, partition, before)
    client = admin(cluster)
    client.delete_records([wanted])[wanted].result(TIMEOUT_S)


def grow_topic(cluster: KafkaCluster, topic: str, partitions: int) -> None:
    """Raises the partition count to ``partitions``."""
    client = admin(cluster)
    client.create_partitions([NewPartitions(topic, partitions)])[topic].result(TIMEOUT_S)
    wait_for_topic(cluster, topic, partitions)


def topic_config(cluster: KafkaCluster, topic: str) -> dict[str, str]:
    """Effective configuration of a topic."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    client = admin(cluster)
    entries = client.describe_configs([resource])[resource].result(TIMEOUT_S)
    return {name: entry.value for name, entry in entries.items()}


def set_topic_config(
    cluster: KafkaCluster, topic: str, *, settles: bool = True, **config: str | None
) -> None:
    """Sets these configs of a topic (None: back to the default) and leaves its others alone.

    It ``settles``: a broker says what was set. Not so where a mirror sets it back meanwhile.
    """
    entries = [
        ConfigEntry(
            name,
            value or "",
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    client = admin(cluster)
    client.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    wanted = {name: value for name, value in config.items() if value is not None}
    deadline = time.monotonic() + patience()
    while settles and wanted and not wanted.items() <= topic_config(cluster, topic).items():
        assert time.monotonic() < deadline, f"{cluster.name} does not hear of {wanted}"
        time.sleep(0.05)


def produce(
    cluster: KafkaCluster,
    topic: str,
    records: Iterable[Sent],
    *,
    compression: str = "none",
    config: dict[str, Any] | None = None,
) -> None:
    """Produces ``records`` in order and waits for every acknowledgement."""
    send_all(Producer(_producer_config(cluster, compression, config)), topic, records)


def produce_transaction(
    cluster: KafkaCluster,
    topic: str,
    records: Iterable[Sent],
    *,
    commit: bool = True,
    compression: str = "none",
    transactional_id: str = "",
    config: dict[str, Any] | None = None,
) -> None:
    """Produces ``records`` in one transaction, then commits or aborts it."""
    producer = transactional_producer(
        cluster,
        transactional_id or f"tx-{uuid.uuid4().hex}",
        compression=compression,
        config=config,
    )
    producer.begin_transaction()
    # An abort would drop what is still queued here, and the broker would hold no aborted data.
    send_all(producer, topic, records)
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


def transactional_producer(
    cluster: KafkaCluster,
    transactional_id: str,
    *,
    compression: str = "none",
    config: dict[str, Any] | None = None,
) -> Producer:
    """A producer that is ready to begin its first transaction."""
    extra = {"transactional.id": transactional_id, **(config or {})}
    producer = Producer(_producer_config(cluster, compression, extra))
    producer.init_transactions(TIMEOUT_S)
    return producer


def send_all(producer: Producer, topic: str, records: Iterable[Sent]) -> None:
    """Produces ``records`` in order and waits for every acknowledgement."""
    failures = _send(producer, topic, records)
    assert producer.flush(TIMEOUT_S) == 0, "records still unacknowledged"
    assert not failures, failures


def _producer_config(
    cluster: KafkaCluster, compression: str, extra: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "enable.idempotence": True,
        "compression.type": compression,
        "linger.ms": 5,
        **(extra or {}),
    }


def _send(producer: Producer, topic: str, records: Iterable[Sent]) -> list[str]:
    failures: list[str] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    for record in records:
        options: dict[str, Any] = {"timestamp": record.timestamp_ms} if record.timestamp_ms else {}
        if record.partition is not None:
            options["partition"] = record.partition
        while True:
            try:
                producer.produce(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers) or None,
                    on_delivery=delivered,
                    **options,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    return failures


def committed(commits: Commits, offsets: Mapping[Partition, tuple[int, str]]) -> bool | None:
    """What comes of a commit, as soon as that is known."""
    commits.begin(offsets)
    return commits.outcome(wait=True)


def consume_all(
    cluster: KafkaCluster,
    topic: str,
    *,
    isolation: str = "read_committed",
    timeout_s: float | None = None,
) -> list[Received]:
    """Every record of ``topic`` up to its present end, sorted by partition and offset.

    The topic is there or comes in time; who may find none asks `topic_names` first.
    Where others go on writing, some later records, too: the consumer may never meet the moving end.
    A consumer whose leader moves may be given an offset again: that is one record of the log.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"consume-all-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "check.crcs": True,
            # Of a broker that a test has killed it would tell with every reader, and a failed
            # assertion is lost among thousands of such lines.
            "log_level": 2,
        }
    )
    received: dict[tuple[int, int], Received] = {}
    try:
        deadline = time.monotonic() + (timeout_s or patience())
        while True:
            # A broker may hear of a topic later than others. Nothing, taken for its records, would
            # be equal to nothing.
            metadata = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
            if metadata.error is None and metadata.partitions:
                break
            assert time.monotonic() < deadline, f"{topic} on {cluster.name}: {metadata.error}"
            time.sleep(0.1)
        open_partitions = set(metadata.partitions)
        ends: dict[int, int] = {}  # as the first answer with records told them
        consumer.assign([TopicPartition(topic, number, 0) for number in open_partitions])
        while open_partitions:
            assert time.monotonic() < deadline, f"{topic}: no end of {sorted(open_partitions)}"
            for message in consumer.consume(1000, timeout=0.2):
                error = message.error()
                if error is None:
                    number = message.partition()
                    record = _received(message)
                    assert received.setdefault((number, message.offset()), record) == record
                    if number not in ends:
                        read = TopicPartition(topic, number)
                        end = consumer.get_watermark_offsets(read, cached=True)[1]
                        if end <= message.offset():
                            # Told by a leader that has just begun and does not know it yet.
                            end = consumer.get_watermark_offsets(read, timeout=TIMEOUT_S)[1]
                        assert end > message.offset()
                        ends[number] = end
                    if message.offset() >= ends[number] - 1:
                        open_partitions.discard(number)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition())
                else:
                    raise AssertionError(f"{topic}: {error}")
    finally:
        consumer.close()
    return [received[at] for at in sorted(received)]


def _received(message: Any) -> Received:
    kind, timestamp_ms = message.timestamp()
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Received(
        message.partition(),
        message.offset(),
        _TIMESTAMP_TYPES.get(kind, "none"),
        timestamp_ms,
        message.key(),
        message.value(),
        headers,
    )


def commit(consumer: Consumer, places: Sequence[TopicPartition]) -> None:
    """Commits offsets, as soon as the cluster can take them: its first group makes a topic."""
    deadline = time.monotonic() + patience()
    while True:
        try:
            consumer.commit(offsets=list(places), asynchronous=False)
            return
        except KafkaException as error:
            if error.args[0].code() not in _COORDINATOR_SOON or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def contents(records: Sequence[Received]) -> list[Content]:
    """``records`` without offsets and timestamp type, in the same order: what must be equal."""
    return [
        Content(one.partition, one.timestamp_ms, one.key, one.value, one.headers) for one in records
    ]


def wait_until_equal(
    source: KafkaCluster,
    source_topic: str,
    target: KafkaCluster,
    target_topic: str,
    *,
    timeout_s: float | None = None,
) -> list[Content]:
    """Waits until both topics hold the same contents; returns them."""
    wanted = contents(consume_all(source, source_topic))
    least = Counter(one.partition for one in wanted)
    there = Ends(target, target_topic)
    deadline = time.monotonic() + (timeout_s or patience())
    while True:
        late = time.monotonic() > deadline
        if late or there.reach(least):
            got: list[Content] = []
            if target_topic in topic_names(target):
                got = contents(consume_all(target, target_topic))
            if got == wanted:
                return got
            if late or len(got) > len(wanted):
                assert got == wanted
        time.sleep(0.2)


class Ends:
    """The end offsets of one topic, for loops that wait for records.

    They cost little: a reader of all records has connections of its own, and takes brokers that
    others need, too.
    """

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._client = admin(cluster)
        self._topic = topic

    def reach(self, least: Mapping[int, int]) -> bool:
        """Whether each partition's log ends there or behind it: it may hold markers, too."""
        there = self.offsets() if any(least.values()) else {}
        return all(there.get(number, 0) >= end for number, end in least.items())

    def offsets(self) -> dict[int, int]:
        """The end offset of each partition; empty while the topic or a leader is missing."""
        found = self._client.list_topics(timeout=TIMEOUT_S).topics.get(self._topic)
        if found is None or not found.partitions:
            return {}
        asked = {
            TopicPartition(self._topic, number): OffsetSpec.latest() for number in found.partitions
        }
        answers = self._client.list_offsets(asked)
        try:
            return {
                one.partition: answer.result(TIMEOUT_S).offset for one, answer in answers.items()
            }
        except KafkaException:
            return {}
