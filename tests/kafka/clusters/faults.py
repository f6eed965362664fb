"""What the tests of broker faults share: clusters behind proxies, a load, an independent check."""

from __future__ import annotations

import itertools
import logging
import struct
import sys
import threading
import time
import traceback
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec, PartitionMetadata

from kafka import KafkaAdminClient
from kafka import TopicPartition as ClientPartition
from sparkmirror.data.coordination.slot_plan import SlotPlan
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.internal_topics.commands import (
    COMMAND_PARTITION,
    CONTROL_PARTITIONS,
    PROGRESS_PARTITION,
    Command,
    CommandKind,
    SourcePartition,
    channel,
    control_topic,
    decode_progress,
    encode_command,
)
from sparkmirror.internal_topics.epochs.record import EpochRecord, encode_epoch
from sparkmirror.internal_topics.gaps import GAPS_PARTITIONS, Gap, collect_gaps, gaps_topic
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.progress import Halt, SlotProgress
from sparkmirror.settings import ClusterClient, FetchSettings, FlowSettings, ProduceSettings
from sparkmirror.testing.clusters import KafkaCluster, start_all
from sparkmirror.testing.node import Node
from tests.kafka.clusters.listeners import FurtherPorts, addresses
from tests.kafka.clusters.proxy import TO_BROKER, Proxy
from tests.kafka.clusters.quiet import FEW_THREADS
from tests.kafka.harness.background import Background
from tests.kafka.harness.leaks import outlives_tests
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import (
    TIMEOUT_S,
    Received,
    Sent,
    admin,
    consume_all,
    create_topic,
    produce,
    topic_names,
)
from tests.patience import patience

log = logging.getLogger(__name__)

NODES = 3
# Two of three replicas have every acknowledged record, so that one broker may be killed.
_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_CONFIG = {
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "5000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Half of what a broker does by default; one that is killed is missed as soon.
    "broker.heartbeat.interval.ms": "600",
    **FEW_THREADS,
}


UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
"""Configs of a topic whose last replica in sync may lose to one that lacks its newest records."""


class FaultyCluster:
    """Three brokers, each in a rack of its own, each reachable directly and through a proxy."""

    def __init__(self, name: str, *, nodes: int = NODES) -> None:
        self.proxies = {number: Proxy() for number in range(1, nodes + 1)}
        behind = FurtherPorts("PROXIED")

        def own(node: Node) -> Mapping[str, str]:
            further = behind.of(node)
            listeners = {
                "PLAINTEXT": node.port,
                **further,
                "CONTROLLER": node.controller_port,
            }
            proxy = self.proxies[node.id]
            proxy.forward_to = further["PROXIED"]
            shown = {"PLAINTEXT": node.port, "PROXIED": proxy.port}
            return {
                "broker.rack": f"rack-{node.id}",
                "replica.selector.class": _SELECTOR,
                "listeners": addresses(listeners),
                "advertised.listeners": addresses(shown),
                "listener.security.protocol.map": ",".join(f"{one}:PLAINTEXT" for one in listeners),
            }

        config = {**_CONFIG, "min.insync.replicas": str(min(2, nodes))}
        self.kafka = KafkaCluster(name, nodes=nodes, heap="256m", config=config, node_config=own)

    @property
    def proxied_servers(self) -> tuple[str, ...]:
        return tuple(proxy.address for proxy in self.proxies.values())

    def heal(self) -> None:
        for proxy in self.proxies.values():
            proxy.heal()

    def restore(self) -> None:
        """As it was before a test, whatever that did and wherever it ended: all brokers answer.

        Raises when that cannot be had; who shares the cluster then wants another one.
        """
        self.heal()
        for number in self.kafka.alive:
            self.kafka.thaw(number)
        self.kafka.start()  # what was killed; it waits until each broker knows all others
        wait_in_sync(self.kafka)
        client = admin(self.kafka)
        left = [name for name in topic_names(self.kafka) if not name.startswith("__")]
        for deleted in (client.delete_topics(left) if left else {}).values():
            deleted.result(TIMEOUT_S)

    def stop(self) -> None:
        self.kafka.stop()
        for proxy in self.proxies.values():
            proxy.close()


class SixBrokers:
    """Source and target of the tests of faults, shared by all files that a worker runs.

    Faults leave traces, so `restore` looks after each test, and clusters that do not become
    healthy again are replaced: a test decides about itself alone.
    """

    def __init__(self, nodes: int = NODES) -> None:
        self._nodes = nodes
        self._pair: tuple[FaultyCluster, FaultyCluster] | None = None

    def pair(self) -> tuple[FaultyCluster, FaultyCluster]:
        """Both clusters, healthy; started at the first use."""
        if self._pair is None:
            with outlives_tests():
                pair = FaultyCluster("S", nodes=self._nodes), FaultyCluster("T", nodes=self._nodes)
                start_all(*(one.kafka for one in pair))
            self._pair = pair
        return self._pair

    def restore(self) -> None:
        """Mend both, or give them up: the next test then starts new ones."""
        try:
            for one in self.pair():
                one.restore()
        except Exception:
            log.warning("the brokers did not recover; the next test gets others", exc_info=True)
            self.close()

    def close(self) -> None:
        """End all brokers, frozen ones, too; nobody needs what they keep."""
        for one in self._pair or ():
            for number in one.kafka.alive:
                one.kafka.kill(number)
            one.stop()
        self._pair = None


class Direct:
    """A cluster without proxies, where a test needs none."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.kafka = kafka

    @property
    def proxied_servers(self) -> tuple[str, ...]:
        return tuple(self.kafka.bootstrap_servers.split(","))


# -- leaders -----------------------------------------------------------------------------------


def _partitions(cluster: KafkaCluster, topic: str) -> dict[int, PartitionMetadata]:
    """The state of each partition; a broker that does not know the topic yet is asked again."""
    client = admin(cluster)
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := client.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions):
        assert time.monotonic() < deadline, f"a broker of {cluster.name} does not know {topic}"
        time.sleep(0.1)
    return found


def leaders(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """The leading broker of each partition, -1 for none."""
    return {number: one.leader for number, one in _partitions(cluster, topic).items()}


def tell(target: KafkaCluster, flow: FlowSettings, *records: tuple[bytes, bytes | None]) -> None:
    """Write ``records`` (key, value) to where a flow's slots and planner are told what to do."""
    sent = [Sent(value, key, partition=COMMAND_PARTITION) for key, value in records]
    produce(target, control_topic(flow), sent)


def elect_preferred(cluster: KafkaCluster, topic: str) -> None:
    """Let every partition have its preferred leader: a restarted broker leads nothing at first."""
    wanted = {number: one.replicas[0] for number, one in _partitions(cluster, topic).items()}
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))

    def elected() -> bool:
        # It is refused while the wanted replica is not in sync.
        client.elect_leaders(0, {topic: sorted(wanted)}, raise_errors=False)
        return leaders(cluster, topic) == wanted

    try:
        wait_until(elected, f"preferred leaders of {topic}")
    finally:
        client.close()


def move_leaders(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """Give every partition its next replica as leader, without moving data; the new leaders.

    A reassignment that only turns the replica list round makes another replica the preferred one;
    the election then moves the leadership there.
    """
    wait_until(lambda: -1 not in leaders(cluster, topic).values(), f"leaders of {topic}", TIMEOUT_S)
    found = _partitions(cluster, topic)
    turned: dict[ClientPartition, list[int]] = {}
    for number, one in found.items():
        at = one.replicas.index(one.leader)
        turned[ClientPartition(topic, number)] = one.replicas[at + 1 :] + one.replicas[: at + 1]
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    try:
        refused = {tp: e for tp, e in client.alter_partition_reassignments(turned).items() if e}
        assert not refused, refused
        wanted = {tp.partition: replicas[0] for tp, replicas in turned.items()}
        deadline = time.monotonic() + TIMEOUT_S
        while leaders(cluster, topic) != wanted:
            assert time.monotonic() < deadline, f"leaders of {topic} did not move to {wanted}"
            # It is refused while the wanted replica is not in sync.
            client.elect_leaders(0, {topic: sorted(found)}, raise_errors=False)
            time.sleep(0.1)
    finally:
        client.close()
    return wanted


def wait_in_sync(cluster: KafkaCluster, timeout_s: float | None = None) -> None:
    """Wait until every replica of every partition is in sync again."""
    client = admin(cluster)
    deadline = time.monotonic() + (timeout_s or patience())
    while True:
        topics = client.list_topics(timeout=TIMEOUT_S).topics.values()
        behind = [
            f"{topic.topic}-{number}"
            for topic in topics
            for number, one in topic.partitions.items()
            if one.leader < 0 or set(one.isrs) != set(one.replicas)
        ]
        if not behind:
            return
        assert time.monotonic() < deadline, f"out of sync on {cluster.name}: {behind}"
        time.sleep(0.2)


# -- load and check ----------------------------------------------------------------------------


class Load(Background):
    """Writes numbered records to every partition of a topic until it is stopped.

    ``acknowledged`` holds, per partition, the values that the brokers acknowledged, in the order
    of the acknowledgements.
    """

    def __init__(
        self, cluster: KafkaCluster, topic: str, partitions: int, *, per_s: float = 200.0
    ) -> None:
        super().__init__()
        self.acknowledged: dict[int, list[bytes]] = defaultdict(list)
        self.failures: list[str] = []
        self._topic = topic
        self._partitions = partitions
        self._pause_s = 1 / per_s
        self._numbers = itertools.count()
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                # With more of them librdkafka may write a batch again under a new epoch of its id
                # after one that was refused: the source itself has it twice then.
                "max.in.flight.requests.per.connection": 1,
                # A request per record would take a tenth of a core from each of six brokers.
                "linger.ms": 100,
                "compression.type": "lz4",
                "log_level": 0,
                "topic.metadata.refresh.interval.ms": 2_000,
            }
        )

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if raised[0] is None:
            assert self._producer.flush(patience()) == 0, "the load's records stay unacknowledged"
            assert not self.failures, self.failures

    @property
    def count(self) -> int:
        """Records acknowledged so far."""
        return sum(map(len, self.acknowledged.values()))

    def wait_for(self, more: int, timeout_s: float | None = None) -> None:
        """Wait until ``more`` further records are acknowledged."""
        wanted, deadline = self.count + more, time.monotonic() + (timeout_s or patience())
        while self.count < wanted:
            assert time.monotonic() < deadline, f"the load stands at {self.count} of {wanted}"
            time.sleep(0.05)

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s):
            number = next(self._numbers)
            self._producer.produce(
                self._topic,
                value=f"record {number} {'x' * 100}".encode(),
                key=f"{number}".encode(),
                partition=number % self._partitions,
                on_delivery=self._delivered,
            )
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged[message.partition()].append(message.value())


def by_partition(records: Iterable[Received]) -> dict[int, list[bytes | None]]:
    """Values per partition, in the order of the log."""
    found: dict[int, list[bytes | None]] = defaultdict(list)
    for record in records:
        found[record.partition].append(record.value)
    return dict(found)


def check_mirrored(
    source: KafkaCluster,
    topic: str,
    target: KafkaCluster,
    remote: str,
    acknowledged: Mapping[int, Sequence[bytes]] | None = None,
    *,
    repeats: Collection[int] = (),
    timeout_s: float | None = None,
) -> int:
    """Wait until the remote topic holds the source's records: all, in order, none twice.

    ``acknowledged``: what the source acknowledged to its producer; it must be all there is.
    ``repeats``: partitions whose records may come again. Returns the number of records.
    """
    deadline = time.monotonic() + (timeout_s or patience())
    wanted = _at_the_source(source, topic, acknowledged, deadline)
    while True:
        got = by_partition(consume_all(target, remote))
        got |= {n: list(dict.fromkeys(got[n])) for n in repeats if n in got}
        if got == wanted:
            return sum(map(len, wanted.values()))
        late = time.monotonic() > deadline
        for number, values in got.items():
            assert len(values) == len(set(values)), _repeated(remote, number, values)
            assert values == wanted[number][: len(values)], f"{remote}-{number}: order or a gap"
        if late:
            counts = {n: (len(wanted[n]), len(got.get(n, ()))) for n in wanted}
            raise AssertionError(f"{remote}: (at the source, at the target) is {counts}")
        time.sleep(0.3)


def _at_the_source(
    source: KafkaCluster,
    topic: str,
    acknowledged: Mapping[int, Sequence[bytes]] | None,
    deadline: float,
) -> dict[int, list[bytes | None]]:
    """The topic's values by partition; all that were ``acknowledged``, as soon as they show.

    A new leader's high watermark trails behind what the old one acknowledged, for a second or so.
    """
    due = None if acknowledged is None else {n: list(v) for n, v in acknowledged.items()}
    while True:
        found = by_partition(consume_all(source, topic))
        for number, values in found.items():
            assert len(values) == len(set(values)), f"source: {_repeated(topic, number, values)}"
        if due is None or found == due:
            return found
        short = all(values == due.get(n, [])[: len(values)] for n, values in found.items())
        counts = {n: (len(due.get(n, ())), len(found.get(n, ()))) for n in due | found}
        assert short, f"{topic} has others than were acknowledged: {counts}"
        assert time.monotonic() < deadline, f"{topic}: (acknowledged, there) is {counts}"
        time.sleep(0.3)


def _repeated(remote: str, number: int, values: Sequence[bytes | None]) -> str:
    seen: set[bytes | None] = set()
    twice = [v for v in values if v in seen or seen.add(v)]  # type: ignore[func-returns-value]
    return f"{remote}-{number}: {len(twice)} records came twice, the first is {twice[0]!r}"


# -- quotas ------------------------------------------------------------------------------------

PRODUCE, FETCH = 0, 1
_FRAME_HEAD = struct.Struct(">i")
_REQUEST_HEAD = struct.Struct(">hhi")


def set_quota(cluster: KafkaCluster, client_id: str, quota: str) -> None:
    """Set a quota such as ``consumer_byte_rate=100000`` for a client id, with Kafka's own tool."""
    done = cluster.tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", cluster.bootstrap_servers, "--alter"),
        *("--add-config", quota, "--entity-type", "clients", "--entity-name", client_id),
    )
    assert done.returncode == 0, done.stdout + done.stderr


class ThrottleTap:
    """Reads the frames that pass a proxy: how long a client waited after it was told to.

    A connection is followed from its first request on that the tap sees.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[tuple[int, str], bytearray] = defaultdict(bytearray)
        self._asked: dict[tuple[int, int], tuple[int, float]] = {}
        self._sent: dict[tuple[int, int], list[float]] = defaultdict(list)
        self._told: list[tuple[int, int, float, float]] = []

    def __call__(self, number: int, direction: str, chunk: bytes) -> None:
        now = time.monotonic()
        with self._lock:
            stream = self._streams[number, direction]
            stream += chunk
            while len(stream) >= 4:
                (size,) = _FRAME_HEAD.unpack_from(stream)
                if len(stream) < 4 + size:
                    return
                frame = bytes(stream[4 : 4 + size])
                del stream[: 4 + size]
                (self._request if direction == TO_BROKER else self._answer)(number, frame, now)

    def _request(self, number: int, frame: bytes, now: float) -> None:
        key, _, correlation = _REQUEST_HEAD.unpack_from(frame)
        self._asked[number, correlation] = key, now
        self._sent[number, key].append(now)

    def _answer(self, number: int, frame: bytes, now: float) -> None:
        (correlation,) = _FRAME_HEAD.unpack_from(frame)
        key, _ = self._asked.pop((number, correlation), (-1, now))
        # Fetch answers begin with the throttle time, Produce answers (to version 8) end with it.
        if key in (FETCH, PRODUCE):
            (throttle_ms,) = _FRAME_HEAD.unpack_from(frame, 4 if key == FETCH else len(frame) - 4)
            if throttle_ms > 0:
                self._told.append((number, key, now, throttle_ms / 1000))

    def under_way(self, key: int, for_s: float) -> int:
        """How many requests of this kind have had no answer for ``for_s`` seconds.

        A broker that is frozen may have answered the newest a moment before.
        """
        sent_by = time.monotonic() - for_s
        with self._lock:
            return sum(asked == key and at <= sent_by for asked, at in self._asked.values())

    def waits(self, key: int) -> list[tuple[float, float]]:
        """(seconds that the broker asked to wait, seconds until the next request) of each."""
        found = []
        with self._lock:
            for number, told_key, at, asked_s in self._told:
                later = [sent for sent in self._sent[number, told_key] if sent > at]
                if told_key == key and later:
                    found.append((asked_s, later[0] - at))
        return found


# -- one slot ----------------------------------------------------------------------------------


def _from(servers: tuple[str, ...], slot: int) -> tuple[str, ...]:
    """``servers``, in an order of its own for each slot.

    A worker process has one slot, and keeps its producer by flow and servers. Here, two slots in
    one process would share it.
    """
    first = slot % len(servers)
    return servers[first:] + servers[:first]


class SlotRun(Background):
    """One slot's reader and sink in a thread of this process, without Spark in between.

    What fails is tried again as Spark does with a task; ``failures`` holds the errors.
    ``replicas``: the brokers of each partition of the remote topic, ``remote_config`` its
    settings. ``slot``: its number.
    ``options`` are further fields of `FlowSettings`.
    """

    def __init__(
        self,
        source: FaultyCluster | Direct,
        target: FaultyCluster | Direct,
        topic: str,
        partitions: int = 1,
        *,
        proxied: bool = True,
        client: Mapping[str, Any] | None = None,
        fetch: FetchSettings | None = None,
        produce: ProduceSettings | None = None,
        epoch_s: int = 3_600,
        append_time: bool = False,
        alias: str = "",
        replicas: Sequence[Sequence[int]] | None = None,
        remote_config: Mapping[str, str] | None = None,
        slot: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        again = bool(alias)  # the topics, and positions, of an earlier run are there
        alias = alias or f"S{uuid.uuid4().hex[:8]}"
        self.alias = alias
        self.source, self.target, self.topic = source, target, topic
        self.client_id = f"{alias}->T"
        self.failures: list[BaseException] = []
        self.run_id = uuid.uuid4().hex
        ends = [
            ClusterClient(
                name,
                _from(
                    one.proxied_servers
                    if proxied
                    else tuple(one.kafka.bootstrap_servers.split(",")),
                    slot,
                ),
                self.client_id,
                **(client or {}),
            )
            for name, one in ((alias, source), ("T", target))
        ]
        self.flow = FlowSettings(
            *ends,
            *ends,
            fetch=fetch or FetchSettings(),
            produce=produce or ProduceSettings(),
            epoch_s=epoch_s,
            offset_storage_topic=f"offsets-{alias}",
            offset_storage_partitions=1,
            **options,
        )
        self.remote = FlowTopics(self.flow).remote(topic)
        stamped = {"message.timestamp.type": "LogAppendTime"} if append_time else {}
        alone = {"min.insync.replicas": "1"} if replicas is not None else {}
        replication = len(target.kafka.node_ids)
        for name, count, config in (
            (self.remote, partitions, stamped | alone | dict(remote_config or {})),
            (control_topic(self.flow), CONTROL_PARTITIONS, {}),
            (gaps_topic(self.flow), GAPS_PARTITIONS, {}),
            (self.flow.offset_storage_topic, 1, {}),
        ):
            if not again:
                placed = replicas if name == self.remote else None
                create_topic(
                    *(target.kafka, name, count),
                    replication=replication, config=config, replicas=placed,
                )  # fmt: skip
        self.partitions = tuple(
            SourcePartition(topic, number, self.remote) for number in range(partitions)
        )
        self._plan = SlotPlan(
            slot=slot,
            epoch=0,
            run_id=self.run_id,
            partitions=self.partitions,
            ends=None,
            control_offset=0,
        )

    def __exit__(self, *_: object) -> None:
        self.drain()

    def drain(self, timeout_s: float | None = None) -> None:
        """End as after Ctrl+C: everything read is written and committed."""
        if not self._thread.is_alive():
            return
        self._stopping.set()
        to = channel(self.flow, self.run_id)
        command = Command(to, CommandKind.DRAIN, self.run_id, int(time.time() * 1000))
        tell(self.target.kafka, self.flow, encode_command(command))
        self._thread.join(timeout_s or patience())
        assert not self._thread.is_alive(), "the slot does not end"

    def wait_until_mirroring(self) -> None:
        """Wait until each partition of the remote topic holds a record.

        A fault before that meets a mirror that still connects, and tests something else.
        """
        wanted = {
            TopicPartition(self.remote, one.partition): OffsetSpec.latest()
            for one in self.partitions
        }
        client = admin(self.target.kafka)

        def begun() -> bool:
            ends = client.list_offsets(wanted)
            return all(one.result(TIMEOUT_S).offset > 0 for one in ends.values())

        wait_until(begun, "a record in each partition of the remote topic")

    def _sink(self) -> SlotSink:
        return SlotSink(self.flow)

    def _begin_epoch(self) -> EpochRecord | None:
        """Write the record of the slot's epoch, as the planner does; None without exactly-once."""
        if not self.flow.exactly_once:
            return None
        to = channel(self.flow, self.run_id)
        record = EpochRecord(to, self.run_id, 1, uuid.uuid4().hex)
        tell(self.target.kafka, self.flow, encode_epoch(record))
        return record

    def _run(self) -> None:
        begun = replace(self._plan, record=self._begin_epoch())
        for epoch in itertools.count():
            plan = replace(begun, epoch=epoch)
            try:
                self._sink().run(SlotReader(self.flow, plan).rows())
            except Exception as error:
                self.failures.append(error)
                time.sleep(0.2)
            if self._stopping.is_set():
                return

    def delays_s(self, since_ms: int = 0) -> dict[int, float]:
        """Longest time from a record's creation to its append at the target, per partition.

        Of records that were created from ``since_ms`` (epoch ms) on. Needs ``append_time``.
        """
        created = consume_all(self.source.kafka, self.topic)
        appended = consume_all(self.target.kafka, self.remote)
        longest: dict[int, float] = {}
        for one, other in zip(created, appended, strict=True):
            assert other.timestamp_type == "append"
            if one.timestamp_ms < since_ms:
                continue
            delay_s = (other.timestamp_ms - one.timestamp_ms) / 1000
            longest[one.partition] = max(delay_s, longest.get(one.partition, 0.0))
        return longest

    def reports(self) -> list[SlotProgress]:
        """What the sink reported, in order; of earlier runs with the same alias as well."""
        found = [
            decode_progress(record.key, record.value)
            for record in consume_all(self.target.kafka, control_topic(self.flow))
            if record.partition == PROGRESS_PARTITION
        ]
        return [report for report in found if report is not None]

    def errors(self) -> dict[str, int]:
        """Retried errors by code, as the sink reported them in its newest epoch."""
        reports = self.reports()
        return dict(reports[-1].errors) if reports else {}

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for ``condition``; nothing may have failed meanwhile."""
        deadline = time.monotonic() + patience()
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not so: {what}; {self.state()}")
            time.sleep(0.2)
        assert self.failures == []

    def state(self) -> str:
        """For a failed test: what it was reported to wait for, what failed, where its thread is."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = traceback.extract_stack(frame)[-8:] if frame is not None else ()
        at = " < ".join(f"{one.name}:{one.lineno}" for one in reversed(stack)) or "ended"
        return f"{self.halts()}; errors {self.errors()}; failures {self.failures}; thread {at}"

    def halts(self) -> dict[int, Halt]:
        """The partitions that stand still, as the sink reported them last."""
        reports = self.reports()
        rows = reports[-1].partitions if reports else ()
        return {row.partition: row.halt for row in rows if row.halt is not None}

    def gaps(self) -> list[Gap]:
        """The gap records written so far."""
        records = consume_all(self.target.kafka, gaps_topic(self.flow))
        return collect_gaps((record.key, record.value) for record in records)

    def wait_for_error(self, code: str, timeout_s: float | None = None) -> dict[str, int]:
        """Wait until ``code`` is among the reported errors."""
        deadline = time.monotonic() + (timeout_s or patience())
        while code not in (found := self.errors()):
            assert time.monotonic() < deadline, f"no {code} among {found}"
            time.sleep(0.3)
        return found
