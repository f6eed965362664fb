"""Two clusters with thousands of topics, ACLs and groups, and what changes on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from benchmarks.run import say
from sparkmirror.errors import MirrorError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster, start_all
from sparkmirror.testing.jvm import SERVER_JVM
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import AclBinding, NewTopic

__all__ = [
    "CHECKPOINTS",
    "NEW_TOPICS",
    "SECOND",
    "World",
    "offset_in",
    "value_in",
    "wait_until",
    "world",
]

PARTITIONS = 4
TOPICS_PER_GROUP = 10
SECOND = "User:second"
NEW_TOPICS = 20
CHECKPOINTS = "A.checkpoints.internal"
_BROKER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "log.index.size.max.bytes": "65536",
    "log.cleaner.enable": "false",
}


class World:
    """Two clusters, and what is on the source."""

    def __init__(self, a: KafkaCluster, b: KafkaCluster, topics: int, groups: int) -> None:
        self.a, self.b = a, b
        self.names = [f"cp-{number:04d}" for number in range(topics)]
        self.remote = [f"A.{name}" for name in self.names]
        self.groups = [f"group-{number:03d}" for number in range(groups)]
        self.source, self.target = (_cluster(one) for one in (a, b))

    def fill(self) -> None:
        """Topics with a config of their own, two records per partition, groups and ACLs."""
        config = {"retention.ms": "86400000"}
        wanted = [NewTopic(name, PARTITIONS, 1, config) for name in self.names]
        for at in range(0, len(wanted), 200):
            outcomes = self.source.create_topics(wanted[at : at + 200])
            assert all(one.error is None for one in outcomes.values())
        say(f"{len(wanted)} topics made")
        # A busy broker takes its time to know thousands of new topics.
        patience_ms = {"topic.metadata.propagation.max.ms": 300_000, "message.timeout.ms": 300_000}
        servers = self.a.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, **patience_ms})
        failed: list[object] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failed.append(error)

        for name in self.names:
            for number in range(PARTITIONS):
                for _ in range(2):
                    producer.produce(name, b"x" * 100, partition=number, on_delivery=delivered)
            producer.poll(0)
        assert not producer.flush(300)
        assert not failed, failed[0]
        self.move_groups(1)
        self.allow("User:reader")
        say("records, groups and ACLs are there")

    def move_groups(self, offset: int) -> None:
        """Commit ``offset`` for every group and partition."""

        def move(place: int) -> None:
            first = place * TOPICS_PER_GROUP
            mine = [self.names[(first + n) % len(self.names)] for n in range(TOPICS_PER_GROUP)]
            offsets = {TopicPartition(t, p): (offset, "") for t in mine for p in range(PARTITIONS)}
            self.source.commit_offsets(self.groups[place], offsets)

        # Side by side, so that mirrors find all of it in one look or two.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(move, range(len(self.groups))))

    def _readers(self, principal: str) -> list[AclBinding]:
        return [
            AclBinding("TOPIC", name, "LITERAL", principal, "*", "READ", "ALLOW")
            for name in self.names
        ]

    def allow(self, principal: str) -> None:
        """An ACL more for every topic of the source."""
        acls = self._readers(principal)
        for at in range(0, len(acls), 500):
            assert not any(self.source.create_acls(acls[at : at + 500]))

    @property
    def checkpoints(self) -> int:
        """How many checkpoints there will be."""
        return len(self.groups) * TOPICS_PER_GROUP * PARTITIONS

    def change_configs(self, value: str = "172800000") -> None:
        """Another value in every topic of the source."""
        changes = {name: {"retention.ms": value} for name in self.names}
        for at in range(0, len(self.names), 250):
            self.source.alter_topic_configs({n: changes[n] for n in self.names[at : at + 250]})

    def make_remote_topics(self) -> None:
        """The remote topics as a mirror makes them."""
        config = {"retention.ms": "86400000"}
        wanted = [NewTopic(name, PARTITIONS, 1, config) for name in self.remote]
        for at in range(0, len(wanted), 200):
            outcomes = self.target.create_topics(wanted[at : at + 200])
            assert all(one.error is None for one in outcomes.values())
        wait_until(lambda: self.topics_there() == len(wanted), "the remote topics")

    def topics_there(self) -> int:
        """Remote topics on the target."""
        found = AdminClient({"bootstrap.servers": self.b.bootstrap_servers}).list_topics(timeout=30)
        return sum(name.startswith("A.cp-") for name in found.topics)

    def acls_there(self) -> int:
        """ACLs of remote topics on the target."""
        return sum(one.name.startswith("A.cp-") for one in self.target.topic_acls() or ())

    def configs_there(self, value: str = "172800000") -> int:
        """Remote topics that have the changed value."""
        count = 0
        for found in self.target.topic_configs(self.remote).values():
            if not isinstance(found, MirrorError) and found["retention.ms"].value == value:
                count += 1
        return count

    def add_topics(self, number: int) -> None:
        """A few new topics, as a full round finds them."""
        wanted = [NewTopic(f"cp-new-{number}-{n}", PARTITIONS, 1, {}) for n in range(NEW_TOPICS)]
        assert all(one.error is None for one in self.source.create_topics(wanted).values())

    def change_all(self, number: int) -> None:
        """Everything that a full round brings over."""
        self.add_topics(number)
        self.change_configs(value_in(number))
        self.allow(f"{SECOND}-{number}")
        self.move_groups(offset_in(number))
        # A broker shows what its controller has decided once it has made the new partitions.
        wait_until(lambda: self._source_shows(number), "the changes on the source", pause_s=0.1)

    def _source_shows(self, number: int) -> bool:
        value, principal = value_in(number), f"{SECOND}-{number}"
        new = [f"cp-new-{number}-{n}" for n in range(NEW_TOPICS)]
        found = self.source.topic_configs(self.names[-1:])[self.names[-1]]
        return (
            not isinstance(found, MirrorError)
            and found["retention.ms"].value == value
            and len(self.source.topics(new)) == NEW_TOPICS
            and sum(one.principal == principal for one in self.source.topic_acls() or ())
            == len(self.names)
        )

    def clean(self) -> None:
        """An empty target, and the source as it was."""
        added = [one for one in self.source.topic_acls() or () if one.principal.startswith(SECOND)]
        for at in range(0, len(added), 500):
            self.source.delete_acls(added[at : at + 500])
        self.move_groups(1)
        admin = AdminClient({"bootstrap.servers": self.b.bootstrap_servers})
        names = [n for n in admin.list_topics(timeout=30).topics if not n.startswith("__")]
        for at in range(0, len(names), 200):
            for future in admin.delete_topics(names[at : at + 200]).values():
                future.result(60)
        found = [one for one in self.target.topic_acls() or () if one.name.startswith("A.")]
        for at in range(0, len(found), 500):
            self.target.delete_acls(found[at : at + 500])
        self.source.alter_topic_configs({n: {"retention.ms": "86400000"} for n in self.names})
        own = AdminClient({"bootstrap.servers": self.a.bootstrap_servers})
        new = [n for n in own.list_topics(timeout=30).topics if n.startswith("cp-new-")]
        for future in own.delete_topics(["mm2-offset-syncs.B.internal", *new]).values():
            future.exception(60)
        wait_until(lambda: not self.topics_there() and not self.acls_there(), "an empty target")
        wait_until(
            lambda: CHECKPOINTS not in admin.list_topics(timeout=30).topics, "no checkpoints"
        )
        time.sleep(3)


def value_in(number: int) -> str:
    """The configuration's value in full round ``number``."""
    return str(172_800_000 + 1 + number)


def offset_in(number: int) -> int:
    """Where groups stand after full round ``number``; before the first one at 2."""
    return 1 + number % 2


def wait_until(
    done: Callable[[], bool], what: str, timeout_s: float = 300.0, pause_s: float = 0.5
) -> None:
    """A busy broker shows what its controller has decided some time later."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(pause_s)


def _cluster(one: KafkaCluster) -> Cluster:
    servers = (one.bootstrap_servers,)
    return Cluster(ClusterClient(one.name, servers, "bench", request_timeout_ms=240_000))


@contextmanager
def world(topics: int, groups: int) -> Iterator[World]:
    """Two one-node clusters with an authorizer, and the source filled."""
    a, b = (KafkaCluster(name, config=_BROKER, heap="1500m", jvm=SERVER_JVM) for name in "AB")
    start_all(a, b)
    try:
        found = World(a, b, topics, groups)
        found.fill()
        yield found
    finally:
        a.stop()
        b.stop()
