"""Group membership against a real coordinator, without Spark: who owns what, at every moment."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer

from sparkmirror.control.mm1.membership import Membership
from sparkmirror.data.write.position_commits import Commits
from sparkmirror.errors import Fenced, MirrorError
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.settings import ClusterClient, FlowSettings, GroupSettings, Member
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.coordinators import Coordinators
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import committed, create_topic

SESSION_MS = 6_000


class _World:
    """Who mirrors what; a partition that two claim at once is the failure to be found."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owners: dict[TopicPartition, str] = {}
        self.faults: list[str] = []


class _Flow:
    """A flow whose slots need ``drain_s`` to end, and go on with what they have until then."""

    def __init__(self, name: str, world: _World, counts: dict[str, int], drain_s: float) -> None:
        self.name = name
        self.settings: FlowSettings | None = None
        self.discoveries = 0
        self.counts = counts
        self.member: Member | None = None
        self.owned: frozenset[TopicPartition] = frozenset()
        self.version = 0
        self._world, self._drain_s = world, drain_s
        self._planned = [(0.0, 0)]

    def discover(self, counts: dict[str, int]) -> None:
        """The topics are these from now on."""
        self.counts = counts
        self.discoveries += 1

    def topic_counts(self) -> Mapping[str, int]:
        return dict(self.counts)

    def partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        return {topic: self.counts[topic] for topic in topics if topic in self.counts}

    def assigned_counts(self) -> Mapping[str, int]:
        assert self.settings is not None
        cluster = Cluster(self.settings.source)
        try:
            return Counter(tp.topic for tp in cluster.group_owners(self.settings.group_id))
        finally:
            cluster.close()

    def publish(self, owned: Iterable[TopicPartition], member: Member | None) -> int:
        mine = frozenset(owned)
        if (mine, member) == (self.owned, self.member):
            return self.version
        gone = self.owned - mine
        with self._world.lock:
            for tp in mine:
                other = self._world.owners.setdefault(tp, self.name)
                if other != self.name:
                    self._world.faults.append(f"{tp}: {other} and {self.name}")
        self.owned, self.member = mine, member
        self.version += 1
        version = self.version

        def drained() -> None:
            with self._world.lock:
                for tp in gone:
                    if self._world.owners.get(tp) == self.name:
                        del self._world.owners[tp]
            self._planned.append((0.0, version))

        threading.Timer(self._drain_s if gone else 0.0, drained).start()
        return version

    def planned_version(self) -> int:
        return self._planned[-1][1]

    def drained(self) -> None:
        """All slots have ended, as they have when a mirror leaves."""
        with self._world.lock:
            for tp in self.owned:
                self._world.owners.pop(tp, None)

    def notify(self, line: str) -> None:
        print(line)


class _Mirror:
    """A `Membership` with a thread that steps it."""

    def __init__(self, flow: _Flow, settings: FlowSettings) -> None:
        self.flow = flow
        flow.settings = settings
        self.membership = Membership(flow, settings, alone=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.membership.step()
            except MirrorError as error:
                print(self.flow.name, error)
                time.sleep(0.5)

    def end(self, *, leave: bool = True) -> None:
        self.membership.end()
        self._stop.set()
        # As the control plane does it: the membership has one owner, so its thread ends first.
        self._thread.join(10)
        assert not self._thread.is_alive(), "the step ends soon after `end`"
        self.flow.drained()
        self.membership.close(leave=leave)


def _settings(cluster: KafkaCluster, group: str, **more: object) -> FlowSettings:
    client = ClusterClient("source", (cluster.bootstrap_servers,), "test")
    options = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": 300} | more
    return FlowSettings(
        client, client, client, client, mode=MirrorMode.MM1, group_id=group,
        group=GroupSettings(**options),  # type: ignore[arg-type]
    )  # fmt: skip


@contextmanager
def _ended(mirrors: list[_Mirror]) -> Iterator[None]:
    try:
        yield
    finally:
        for mirror in mirrors:
            mirror.end()


def _shares(mirrors: Iterable[_Mirror]) -> list[int]:
    return sorted(len(mirror.flow.owned) for mirror in mirrors)


@pytest.mark.parametrize(
    "strategy",
    [
        "range",
        pytest.param("roundrobin", marks=pytest.mark.more),
        pytest.param("sticky", marks=pytest.mark.more),
        "cooperative-sticky",
    ],
)
def test_nothing_is_owned_twice_while_members_come_and_go(
    cluster_a: KafkaCluster, strategy: str
) -> None:
    topic = f"session-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic, 6)
    settings = _settings(cluster_a, topic, strategies=(strategy,))
    world, mirrors = _World(), []

    def add() -> _Mirror:
        flow = _Flow(f"mirror-{len(mirrors)}", world, {topic: 6}, 0.4)
        mirrors.append(_Mirror(flow, settings))
        return mirrors[-1]

    with _ended(mirrors):
        first = add()
        wait_until(lambda: _shares([first]) == [6], "one has all")
        second, third = add(), add()
        wait_until(lambda: _shares(mirrors) == [2, 2, 2], "three share")
        kept = second.flow.owned
        generation = second.flow.member
        third.end()
        rest = [first, second]
        wait_until(lambda: _shares(rest) == [3, 3], "two share after one has left")
        if strategy == "cooperative-sticky":
            assert kept <= second.flow.owned, "kept what it had"
        # Positions are taken from members of the present generation only.
        coordinators = Coordinators(ClusterConnections(settings.source))
        try:
            tp = min(second.flow.owned)
            coordinators.commit(topic, {tp: (5, "")}, second.flow.member)
            with pytest.raises(Fenced):
                coordinators.commit(topic, {tp: (9, "")}, generation)
            with pytest.raises(Fenced):
                coordinators.commit(topic, {tp: (9, "")})
            assert coordinators.committed(topic, [tp])[tp][0] == 5
        finally:
            coordinators.close()
        # A sink that missed the new generation: at once (eager), or when none was announced.
        sink = Commits(settings)
        try:
            sink.member(generation)
            assert not committed(sink, {tp: (9, "")})
            assert (sink.fenced is None) is (strategy == "cooperative-sticky")
            sink.member(second.flow.member)
            if sink.fenced is None:
                assert committed(sink, {tp: (6, "")})
            else:
                assert sink.fenced.code == "FENCED"
                assert not committed(sink, {tp: (9, "")})
        finally:
            sink.close()
        assert not world.faults, world.faults


def test_a_member_that_was_given_up_starts_over_and_others_take_over(
    cluster_a: KafkaCluster,
) -> None:
    topic = f"session-{uuid.uuid4().hex[:8]}"
    for name in (topic, f"{topic}.new"):
        create_topic(cluster_a, name, 4)
    settings = _settings(cluster_a, topic)
    world = _World()
    flows = [_Flow(f"mirror-{n}", world, {topic: 4}, 0.2) for n in range(2)]
    mirrors = [_Mirror(flow, settings) for flow in flows]
    with _ended(mirrors):
        wait_until(lambda: _shares(mirrors) == [2, 2], "two share")
        # A topic that appears is subscribed to: each mirror discovers it by itself.
        for flow in flows:
            flow.discover({topic: 4, f"{topic}.new": 4})
        wait_until(lambda: _shares(mirrors) == [4, 4], "the new topic is shared")
        before = flows[1].member
        assert before is not None
        assert not world.faults, world.faults
        _remove(settings, before)  # its partitions go to the other before it can know
        wait_until(
            lambda: flows[1].member not in (None, before) and _shares(mirrors) == [4, 4],
            "who was removed joins anew",
        )  # fmt: skip
        # As when a process dies: no heartbeats, no word of it.
        began = time.monotonic()
        mirrors[0].end(leave=False)
        wait_until(lambda: len(flows[1].owned) == 8, "the other takes over")
        assert time.monotonic() - began < SESSION_MS / 1000 + 25  # a rebalance may take minutes


@pytest.mark.parametrize(
    "leader", ["the mirror", pytest.param("the other", marks=pytest.mark.more)]
)
def test_a_mirror_shares_with_a_member_that_is_only_cooperative(
    cluster_a: KafkaCluster, leader: str
) -> None:
    """The broker chooses the cooperative assignor, by whose rules the mirror itself is eager."""
    topic = f"session-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic, 4)
    mirrors: list[_Mirror] = []
    other = Consumer(
        {
            "bootstrap.servers": cluster_a.bootstrap_servers,
            "group.id": topic,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )

    def start_mirror() -> None:
        flow = _Flow("mirror", _World(), {topic: 4}, 0.2)
        mirrors.append(_Mirror(flow, _settings(cluster_a, topic)))

    def has(ours: int, theirs: int) -> Callable[[], bool]:
        def poll() -> bool:
            other.poll(0.1)
            owned = {TopicPartition(one.topic, one.partition) for one in other.assignment()}
            mine = {tp for mirror in mirrors for tp in mirror.flow.owned}
            return (len(mine), len(owned)) == (ours, theirs) and not mine & owned

        return poll

    with _ended(mirrors):
        try:
            if leader == "the mirror":
                start_mirror()
                wait_until(lambda: _shares(mirrors) == [4], "the mirror has all")
                other.subscribe([topic])
            else:
                other.subscribe([topic])
                wait_until(has(0, 4), "the other has all")
                start_mirror()
            wait_until(has(2, 2), "two and two")
        finally:
            other.close()
        wait_until(lambda: _shares(mirrors) == [4], "the mirror has all again")


def test_a_static_member_that_returns_has_its_share_and_what_is_new(
    cluster_a: KafkaCluster,
) -> None:
    """Its group does not rebalance for it, and names no other leader."""
    topic = f"session-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic, 4)
    settings = _settings(cluster_a, topic, instance_id="one")

    def started(**counts: int) -> _Mirror:
        named = {topic + name: count for name, count in counts.items()}
        return _Mirror(_Flow("mirror", _World(), named, 0.2), settings)

    first = started(_a=4)
    with _ended([first]):
        wait_until(lambda: _shares([first]) == [4], "it has all")
    again = started(_a=4)
    with _ended([again]):
        wait_until(lambda: _shares([again]) == [4], "it has all again")
        assert first.flow.member is not None
        assert again.flow.member is not None
        assert again.flow.member.generation == first.flow.member.generation, "no rebalance"
        again.flow.discover({f"{topic}_a": 6})
        wait_until(lambda: _shares([again]) == [6], "partitions that are new while it runs")
    last = started(_a=8, _b=4)
    with _ended([last]):
        wait_until(lambda: _shares([last]) == [12], "what was new when it returned")


def _remove(settings: FlowSettings, member: Member) -> None:
    """As an administrator does it."""
    from kafka.protocol.consumer import LeaveGroupRequest

    coordinators = Coordinators(ClusterConnections(settings.source))
    rows = LeaveGroupRequest.MemberIdentity
    message = LeaveGroupRequest(
        group_id=settings.group_id,
        member_id=member.member_id,
        members=[rows(member_id=member.member_id, group_instance_id=None)],
    )
    answer = coordinators.connection(settings.group_id).request(message, highest=4)
    coordinators.close()
    assert not answer.error_code


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"session_timeout_ms": 1_000, "heartbeat_interval_ms": 300}, "session.timeout.ms"),
        ({"strategies": ("roundrobin",)}, "partition.assignment.strategy"),
    ],
)
def test_a_group_that_refuses_says_why(
    cluster_a: KafkaCluster, settings: dict[str, object], told: str
) -> None:
    topic = f"session-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, topic, 1)
    # librdkafka's consumer offers range alone here.
    other = Consumer(
        {
            "bootstrap.servers": cluster_a.bootstrap_servers,
            "group.id": topic,
            "partition.assignment.strategy": "range",
        }
    )
    assigned: list[object] = []
    other.subscribe([topic], on_assign=lambda _, partitions: assigned.extend(partitions))
    try:
        wait_until(_polled(other, assigned), "the other is a member")
        mirror = _Mirror(
            _Flow("mirror", _World(), {topic: 1}, 0.0), _settings(cluster_a, topic, **settings)
        )
        try:
            wait_until(lambda: mirror.membership.failure is not None, "the refusal")
            assert told in str(mirror.membership.failure)
        finally:
            mirror.end()
    finally:
        other.close()


def _polled(consumer: Consumer, assigned: list[object]) -> Callable[[], bool]:
    def poll() -> bool:
        consumer.poll(0.2)
        return bool(assigned)

    return poll
