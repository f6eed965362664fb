"""The control plane between two real clusters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from sparkmirror.control.coordination.claim import slots_ever
from sparkmirror.control.coordination.control_topic import ControlTopicReader, ControlTopicWriter
from sparkmirror.control.coordination.orders_topic import Order, give_order, orders_topic
from sparkmirror.control.coordination.status import observe_status
from sparkmirror.control.loop import ControlLoop
from sparkmirror.errors import (
    ClusterError,
    ConfigError,
    Denied,
    MirrorError,
    TopicError,
    Unreachable,
)
from sparkmirror.internal_topics.commands import (
    COMMAND_PARTITION,
    PROGRESS_PARTITION,
    AssignmentDocument,
    Command,
    CommandKind,
    control_topic,
    encode_assignment,
    encode_command,
    encode_progress,
)
from sparkmirror.internal_topics.connect_offsets import encode_source_offset
from sparkmirror.internal_topics.flow_claims import Claim, encode_claim
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.observe.notice import Notice
from sparkmirror.progress import PartitionProgress, SlotProgress
from sparkmirror.records.codecs import ZSTD
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import (
    ClusterClient,
    FetchSettings,
    FlowSettings,
    MirrorSettings,
    PolicySettings,
    TopicSettings,
)
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import Committed, NewTopic
from tests.kafka.harness.support import (
    Sent,
    admin,
    create_topic,
    delete_topic,
    grow_topic,
    produce,
    topic_names,
)
from tests.patience import others_per_core, patience

RUN = "run-1"


def client(alias: str, cluster: KafkaCluster) -> ClusterClient:
    servers = tuple(cluster.bootstrap_servers.split(","))
    return ClusterClient(alias, servers, f"test-{alias}", request_timeout_ms=10_000)


@pytest.fixture
def flow(cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str) -> FlowSettings:
    """A flow of the test's own topics, between aliases of its own: internal topics are named
    after the source's alias, so tests do not meet in them."""
    alias = topic_name.rsplit("-", maxsplit=1)[-1]
    source, target = client(alias, cluster_a), client("B", cluster_b)
    return FlowSettings(
        source,
        target,
        source,
        target,
        topics=TopicSettings(include=(f"{topic_name}.*",), replication_factor=1),
        offset_storage_partitions=3,
        offset_storage_replication_factor=1,
    )


@pytest.fixture
def loops() -> Iterator[Callable[..., ControlLoop]]:
    """Makes control loops and stops them at the end."""
    made: list[ControlLoop] = []

    def make(*flows: FlowSettings, once: bool = False, run_id: str = RUN) -> ControlLoop:
        loop = ControlLoop(MirrorSettings(flows, ()), once=once, run_id=run_id)
        made.append(loop)
        return loop

    yield make
    for loop in made:
        loop.stop()
        # What waits for a cluster that is away opens its connections again, until it gives up.
        for thread in loop._jobs.threads:
            thread.join(60)
        for flow in loop._flows.values():
            flow.close()


@pytest.fixture
def target(cluster_b: KafkaCluster) -> Iterator[Cluster]:
    cluster = Cluster(client("B", cluster_b))
    yield cluster
    cluster.close()


def wait_for(true: Callable[[], object], timeout_s: float | None = None) -> None:
    deadline = time.monotonic() + (timeout_s or patience())
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def signals(target: Cluster, flow: FlowSettings) -> tuple[list[AssignmentDocument], list]:
    """All assignments and commands that stand in the control topic."""
    reader = ControlTopicReader(target, control_topic(flow))
    got = reader.read_to_end()
    reader.close()
    return list(got.assignments), list(got.commands)


def remote(flow: FlowSettings, topic: str) -> str:
    return f"{flow.source.alias}.{topic}"


# --- start-up -------------------------------------------------------------------------------


def test_prepare_makes_topics_and_publishes_the_assignment(
    flow, loops, target, cluster_a, topic_name
):
    create_topic(
        cluster_a, topic_name, 3, config={"retention.ms": "777", "cleanup.policy": "compact"}
    )
    loop = loops(flow)
    started = time.monotonic()
    loop.prepare()
    assert time.monotonic() - started < 5 * others_per_core() + 5

    name, partitions = remote(flow, topic_name), loop.assignment(flow.name).partitions
    assert [(p.topic, p.partition, p.remote_topic) for p in partitions] == [
        (topic_name, number, name) for number in range(3)
    ]
    assert target.topics([name])[name].partitions == 3
    configs = target.topic_configs([name])[name]
    assert not isinstance(configs, MirrorError)
    assert configs["retention.ms"].value == "777"
    assert configs["cleanup.policy"].value == "compact"
    assert configs["segment.ms"].is_default

    internal = [control_topic(flow), f"mm2-offsets.{flow.source.alias}.internal"]
    views = target.topics(internal)
    assert [views[topic].partitions for topic in internal] == [2, 3]
    for topic in internal:
        configs = target.topic_configs([topic])[topic]
        assert not isinstance(configs, MirrorError)
        assert configs["cleanup.policy"].value == "compact"

    (document,), (command,) = signals(target, flow)
    assert document == AssignmentDocument(flow.name, RUN, 1, partitions, None, base=1)
    assert (command.kind, command.run_id, command.version) == (CommandKind.RUN, RUN, 1)
    assert loop.frozen_ends(flow.name) is None
    told = f"created topic {name} with 3 partitions and the source's cleanup.policy, retention.ms"
    assert any(line.endswith(told) for line in loop.events())
    assert loop.events() == [], "notices are given once"


def test_prepare_twice_changes_nothing_on_the_clusters(
    flow, loops, cluster_a, cluster_b, topic_name
):
    create_topic(cluster_a, topic_name, 2)
    loops(flow).prepare()
    before = topic_names(cluster_b)
    again = loops(flow, run_id="run-2")
    again.prepare()
    assert topic_names(cluster_b) == before
    assert again.events() == []


def test_a_remote_topic_with_fewer_partitions_grows(flow, loops, target, cluster_a, topic_name):
    create_topic(cluster_a, topic_name, 4)
    name = remote(flow, topic_name)
    target.create_topics([NewTopic(name, 2, 1)])
    loop = loops(flow)
    loop.prepare()
    assert target.topics([name])[name].partitions == 4
    assert len(loop.assignment(flow.name).partitions) == 4


def test_replication_factor_above_the_brokers_stops_the_start(flow, loops, cluster_a, topic_name):
    create_topic(cluster_a, topic_name)
    flow = replace(flow, topics=replace(flow.topics, replication_factor=2))
    with pytest.raises(TopicError, match=r"replication\.factor is 2.*1 broker"):
        loops(flow).prepare()


def test_topics_that_change_between_two_calls(flow, loops, cluster_a, cluster_b, topic_name):
    """One is deleted, one grows, one is made on the target, once they have been listed."""
    gone, grown, made = (f"{topic_name}-{what}" for what in ("gone", "grown", "made"))
    for topic in (gone, grown, made):
        create_topic(cluster_a, topic)
    loop = loops(flow)
    source = loop._flows[flow.name].clusters.source_admin
    listed, before = source.topics, []

    def change_after_listing(names=None):
        found = listed(names)
        if names is None and not before:
            before.append(found)
            delete_topic(cluster_a, gone)
            grow_topic(cluster_a, grown, 3)
            create_topic(cluster_b, remote(flow, made))
        return found

    source.topics = change_after_listing
    loop.prepare()
    (seen,) = before
    assert {gone, grown, made} <= seen.keys()
    assignment = loop.assignment(flow.name)
    assert set(assignment.topics) | {tp.topic for tp in assignment.halted} == {gone, grown, made}
    assert {grown, made} <= set(assignment.topics)
    told = [line for line in loop.events() if gone in line and "is not mirrored" in line]
    assert all("the topic does not exist" in line for line in told)
    # The next look sees what there is.
    loop.start()
    loop.refresh()
    wait_for(lambda: set(loop.assignment(flow.name).topics) == {grown, made})
    wait_for(lambda: len(loop.assignment(flow.name).partitions) == 4)
    assert not loop.assignment(flow.name).halted


def test_a_topic_that_cannot_be_created_does_not_hold_up_the_others(
    flow, loops, target, cluster_a, topic_name
):
    """248 characters are a topic name, but with the alias in front they are too many."""
    good, bad = f"{topic_name}.good", f"{topic_name}.bad".ljust(248, "x")
    create_topic(cluster_a, good)
    create_topic(cluster_a, bad)
    loop = loops(flow)
    loop.prepare()
    assignment = loop.assignment(flow.name)
    assert assignment.topics == (good,)
    assert set(assignment.halted) == {TopicPartition(bad, 0)}
    assert any(f"topic {bad} is not mirrored" in line for line in loop.events())


def test_internal_topics_are_never_mirrored_and_remote_topics_do_not_loop(
    flow, loops, cluster_a, topic_name
):
    create_topic(cluster_a, topic_name)
    create_topic(cluster_a, f"B.{topic_name}")
    flow = replace(
        flow, topics=replace(flow.topics, include=(f".*{topic_name}.*", "__.*", "mm2.*"))
    )
    loop = loops(flow)
    loop.prepare()
    assert loop.assignment(flow.name).topics == (topic_name,)


def test_an_unreachable_cluster_is_named_before_anything_is_changed(
    flow, loops, cluster_a, cluster_b, topic_name
):
    create_topic(cluster_a, topic_name)
    lost = replace(flow.target, alias="west", bootstrap_servers=("no-such-host.invalid:1",))
    other = replace(flow, target=lost, target_admin=lost)
    before = topic_names(cluster_b)
    with pytest.raises(Unreachable, match="cluster west"):
        loops(flow, other).prepare()
    assert topic_names(cluster_b) == before


def test_mirroring_a_cluster_onto_itself_is_refused_unless_names_change(
    flow, loops, cluster_b, topic_name
):
    create_topic(cluster_b, topic_name)
    itself = client("twin", cluster_b)
    flow = replace(flow, source=itself, source_admin=itself)
    with pytest.raises(ConfigError, match="same cluster"):
        loops(replace(flow, policy=PolicySettings("identity"))).prepare()
    loop = loops(flow)
    loop.prepare()
    assert loop.assignment(flow.name).topics == (topic_name,)


def test_once_freezes_the_ends(flow, loops, target, cluster_a, topic_name):
    create_topic(cluster_a, topic_name, 2)
    produce(cluster_a, topic_name, [Sent(b"x", partition=1) for _ in range(5)])
    loop = loops(flow, once=True)
    loop.prepare()
    ends = {TopicPartition(topic_name, 0): 0, TopicPartition(topic_name, 1): 5}
    assert loop.frozen_ends(flow.name) == ends
    assert loop.end_offsets(flow.name) == ends
    (document,), _ = signals(target, flow)
    assert document.ends == ends
    # What comes later is for the next run.
    produce(cluster_a, topic_name, [Sent(b"y", partition=1)])
    loop.start()
    time.sleep(2.5)
    assert loop.end_offsets(flow.name) == ends


def test_once_leaves_out_what_is_paused(flow, loops, target, cluster_a, topic_name):
    """It would wait for ever: nothing of a paused flow ever comes to its end."""
    create_topic(cluster_a, topic_name, 2)
    loops(flow).prepare()
    writer = ControlTopicWriter(target, control_topic(flow))
    writer.command(Command(flow.name, CommandKind.PAUSE, "", int(time.time() * 1000)))
    loop = loops(flow, once=True)
    loop.prepare()
    halted = loop.assignment(flow.name).halted
    assert {tp: halt.code for tp, halt in halted.items()} == {
        TopicPartition(topic_name, n): "PAUSED" for n in range(2)
    }
    assert loop.assignment(flow.name).partitions == ()
    assert loop.frozen_ends(flow.name) == {}
    writer.command(Command(flow.name, CommandKind.RESUME, "", int(time.time() * 1000)))
    loop = loops(flow, once=True)
    loop.prepare()
    assert len(loop.assignment(flow.name).partitions) == 2


# --- positions ------------------------------------------------------------------------------


def test_positions_of_a_java_mirror_are_taken_over(flow, loops, target, cluster_a, topic_name):
    """MirrorMaker 2's own; and its connector's in a Kafka Connect cluster, by its name there."""
    create_topic(cluster_a, topic_name, 4)
    group = f"__mirror.{flow.name}"
    loops(flow).prepare()
    name = remote(flow, topic_name)
    tps = [TopicPartition(name, number) for number in range(4)]
    assert target.committed_offsets(group, tps) == {}

    alias = flow.source.alias
    stored = [
        encode_source_offset(alias, TopicPartition(topic_name, 0), 11),
        encode_source_offset(alias, TopicPartition(topic_name, 1), 21),
        encode_source_offset("other", TopicPartition(topic_name, 2), 31),
        (b"garbage", b"{"),
    ]
    key, value = encode_source_offset(alias, TopicPartition(topic_name, 3), 41)
    stored.append((key.replace(b"MirrorSourceConnector", b"my-mirror"), value))
    target.produce_many(f"mm2-offsets.{alias}.internal", [(0, key, value) for key, value in stored])
    target.commit_offsets(group, {tps[1]: (99, "ours")})
    loop = loops(flow, run_id="run-2")
    loop.prepare()
    topic_id = loop.assignment(flow.name).partitions[0].topic_id
    assert target.committed_offsets(group, tps) == {
        tps[0]: Committed(11, f'{{"seeded": true, "source_topic_id": "{topic_id}"}}'),
        tps[1]: Committed(99, "ours"),
        tps[3]: Committed(41, f'{{"seeded": true, "source_topic_id": "{topic_id}"}}'),
    }
    events = loop.events()
    assert any("2 positions taken over" in line for line in events)
    assert any("1 stored offsets could not be read" in line for line in events)


# --- MirrorMaker 1 --------------------------------------------------------------------------


@pytest.fixture
def flow_mm1(flow: FlowSettings, topic_name: str) -> FlowSettings:
    return replace(
        flow, mode=MirrorMode.MM1, group_id=f"g-{topic_name}", policy=PolicySettings("identity")
    )


def test_mirrormaker_1_refuses_a_smaller_target_topic(
    flow_mm1, loops, target, cluster_a, topic_name
):
    create_topic(cluster_a, topic_name, 3)
    target.create_topics([NewTopic(topic_name, 2, 1)])
    with pytest.raises(TopicError, match=r"2 partitions.*has 3"):
        loops(flow_mm1).prepare()
    assert target.topics([topic_name])[topic_name].partitions == 2


# --- while it runs --------------------------------------------------------------------------


def test_a_new_topic_is_created_first_and_then_planned(flow, loops, target, cluster_a, topic_name):
    loop = loops(flow)
    loop.prepare()
    assert any("no topic" in line for line in loop.events())
    loop.start()
    create_topic(cluster_a, topic_name, 2)
    loop.refresh()
    wait_for(lambda: len(loop.assignment(flow.name).partitions) == 2)
    name = remote(flow, topic_name)
    assert target.topics([name])[name].leaderless == ()

    grow_topic(cluster_a, topic_name, 5)
    loop.refresh()
    wait_for(lambda: len(loop.assignment(flow.name).partitions) == 5)
    assert target.topics([name])[name].partitions == 5

    admin_a = admin(cluster_a)
    admin_a.delete_topics([topic_name])[topic_name].result(20)
    loop.refresh()
    wait_for(lambda: not loop.assignment(flow.name).partitions)
    assert name in target.topics([name]), "nothing is deleted on the target"

    assignments, commands = signals(target, flow)
    assert [len(document.partitions) for document in assignments] == [0, 2, 5, 0]
    assert [document.version for document in assignments] == [1, 2, 3, 4]
    assert [command.kind.value for command in commands] == ["run", "replan", "replan", "replan"]
    assert [command.version for command in commands] == [1, 2, 3, 4]
    events = "\n".join(loop.events())
    for part in ("mirroring topic", "has 5 partitions now (was 2)", "is gone from the source"):
        assert part in events


def test_topics_are_looked_for_at_the_refresh_interval(flow, loops, cluster_a, topic_name):
    loop = loops(replace(flow, topics=replace(flow.topics, refresh_interval_s=1)))
    loop.prepare()
    loop.start()
    create_topic(cluster_a, topic_name)
    wait_for(lambda: loop.assignment(flow.name).partitions)


def test_end_offsets_follow(flow, loops, cluster_a, topic_name):
    create_topic(cluster_a, topic_name)
    loop = loops(flow)
    loop.prepare()
    loop.start()
    tp = TopicPartition(topic_name, 0)
    wait_for(lambda: loop.end_offsets(flow.name) == {tp: 0})
    produce(cluster_a, topic_name, [Sent(b"x") for _ in range(7)])
    wait_for(lambda: loop.end_offsets(flow.name) == {tp: 7})


def test_progress_of_the_slots_comes_through(flow, loops, target, cluster_a, topic_name):
    create_topic(cluster_a, topic_name)
    loop = loops(flow)
    loop.prepare()
    loop.start()
    began_ms = int(time.time() * 1000)

    def report(slot: int, time_ms: int, records: int) -> SlotProgress:
        partitions = (PartitionProgress(topic_name, 0, records),)
        at = began_ms + time_ms
        progress = SlotProgress(flow.name, slot, "w", 1, at, records, 1, 1, partitions=partitions)
        return replace(progress, run_id=RUN, attempt=3)

    def send(*reports: SlotProgress) -> None:
        records = [(PROGRESS_PARTITION, *encode_progress(one)) for one in reports]
        target.produce_many(control_topic(flow), records)

    # The reader starts at the end of the topic, so the first report may come too early for it.
    wait_for(lambda: send(report(1, 10, 1)) or loop.progress())
    send(report(0, 30, 3), report(1, 20, 2), report(0, 5, 99))
    target.produce_many(control_topic(flow), [(PROGRESS_PARTITION, b"junk", b"{")])
    newest = (report(0, 30, 3), report(1, 20, 2))
    wait_for(lambda: loop.progress() == newest)
    wait_for(lambda: any("are not the mirror's" in line for line in loop.events()))


def test_orders_are_passed_on_once_and_nothing_else_is(flow, loops, target, cluster_a, topic_name):
    create_topic(cluster_a, topic_name)
    loop = loops(flow)
    loop.prepare()
    loop.start()

    def said() -> list[str]:
        return [command.kind.value for command in signals(target, flow)[1]]

    # No order, whoever may write there: each is what the control topic obeys.
    control = Command(flow.name, CommandKind.REPLAN, RUN, 1, version=9)
    claim = Claim(flow.name, "another", 1)
    foreign = AssignmentDocument(flow.name, RUN, 9, ())
    for record in (encode_command(control), encode_claim(claim), *encode_assignment(foreign)):
        target.produce_many(orders_topic(flow), [(0, *record)])
    give_order(target, flow, Order(flow.name, CommandKind.DRAIN, 1, ("another",)))
    give_order(target, flow, Order("X->Y", CommandKind.PAUSE, 1))
    give_order(target, flow, Order(flow.name, CommandKind.PAUSE, 1))
    wait_for(lambda: loop.paused(flow.name))
    assert said() == ["run", "pause"]
    # A reader that is opened anew after a failure says nothing twice.
    follower = loop._flows[flow.name].orders
    broken = follower._reader
    assert broken is not None

    def fail(_timeout_ms: int) -> list[Order]:
        raise ClusterError("reading failed.")

    broken.poll = fail
    wait_for(lambda: follower._reader not in (None, broken))
    give_order(target, flow, Order(flow.name, CommandKind.RESUME, 2))
    wait_for(lambda: not loop.paused(flow.name))
    give_order(target, flow, Order(flow.name, CommandKind.DRAIN, 3, ("another", RUN)))
    wait_for(lambda: loop.draining(flow.name))
    loop.stop()
    assert said() == ["run", "pause", "resume", "drain"]
    reports = ControlTopicReader(target, control_topic(flow))
    assert [one.orders for one in reports.read_to_end().drivers][-1]
    reports.close()


def test_what_was_ordered_between_two_runs_counts_from_the_start(
    flow, loops, target, cluster_a, topic_name
):
    create_topic(cluster_a, topic_name)
    loops(flow).prepare()
    give_order(target, flow, Order(flow.name, CommandKind.PAUSE, 10))
    assert observe_status(target, flow, int(time.time() * 1000) + 10**6).paused
    for run_id in ("run-2", "run-3"):
        loops(flow, run_id=run_id).prepare()
    # A command of an older version, and a run after it.
    resume = Command(flow.name, CommandKind.RESUME, "", 11)
    ControlTopicWriter(target, control_topic(flow)).command(resume)
    loops(flow, run_id="run-4").prepare()
    kinds = [command.kind.value for command in signals(target, flow)[1]]
    assert kinds == ["run", "pause", "run", "run", "resume", "run"]
    assert not observe_status(target, flow, int(time.time() * 1000)).paused


def test_a_bomb_in_the_control_topic_hides_nothing(flow, loops, target, cluster_a, topic_name):
    """Whoever may write there stops neither a start, nor commands, nor what the driver sees."""
    create_topic(cluster_a, topic_name)
    loop = loops(flow)
    loop.prepare()
    bomb = encode_batch([Record(n, 1, b"x", bytes(4 << 20)) for n in range(9)], codec=ZSTD)
    for topic, partition in (
        (control_topic(flow), COMMAND_PARTITION),
        (control_topic(flow), PROGRESS_PARTITION),
        (orders_topic(flow), 0),
    ):
        deadline = time.monotonic() + patience()
        assert (
            target._writer._try(TopicPartition(topic, partition), bomb, deadline, fresh=False) == 0
        )
    give_order(target, flow, Order(flow.name, CommandKind.PAUSE, 10))
    loop = loops(flow, run_id="run-2")
    loop.prepare()
    loop.start()
    wait_for(lambda: loop.paused(flow.name))
    assert slots_ever(target, flow) == 0
    status = observe_status(target, flow, int(time.time() * 1000))
    wait_for(lambda: observe_status(target, flow, int(time.time() * 1000)).runs == ("run-2",))
    assert status.paused
    assert not any("cannot be read" in line for line in loop.events())


def test_drain_is_quick_and_final(flow, loops, target, cluster_a, topic_name):
    create_topic(cluster_a, topic_name)
    loop = loops(flow)
    loop.prepare()
    loop.start()
    started = time.monotonic()
    loop.drain()
    assert time.monotonic() - started < 2 * others_per_core() + 5
    # A topic that comes now must not bring a replan that hides the drain from the slots.
    create_topic(cluster_a, f"{topic_name}.late")
    loop.refresh()
    wait_for(lambda: remote(flow, f"{topic_name}.late") in target.topics())
    loop.stop()
    _, commands = signals(target, flow)
    assert [command.kind.value for command in commands] == ["run", "drain"]
    assert commands[-1].run_id == RUN


@pytest.mark.more
def test_drain_does_not_wait_for_a_target_that_is_away(
    flow, loops, new_cluster, cluster_a, topic_name
):
    create_topic(cluster_a, topic_name)
    gone: KafkaCluster = new_cluster("gone")
    away = replace(client("gone", gone), request_timeout_ms=60_000)
    flow = replace(flow, target=away, target_admin=away)
    loop = loops(flow)
    loop.prepare()
    loop.start()
    gone.stop()
    started = time.monotonic()
    loop.drain()
    assert time.monotonic() - started < 3 * others_per_core() + 5
    loop.stop()
    assert time.monotonic() - started < 10 * others_per_core() + 5


@pytest.mark.more
def test_a_source_that_was_away_is_told_once_and_comes_back(flow, loops, new_cluster, topic_name):
    lost: KafkaCluster = new_cluster("lost")
    create_topic(lost, topic_name)
    source = replace(client(flow.source.alias, lost), request_timeout_ms=6_000)
    flow = replace(flow, source=source, source_admin=source)
    loop = loops(flow)
    loop.prepare()
    loop.start()
    tp = TopicPartition(topic_name, 0)
    wait_for(lambda: loop.end_offsets(flow.name) == {tp: 0})
    loop.events()
    lost.kill()
    told: list[Notice] = []

    def ends_told() -> bool:
        told.extend(loop.events())
        return any(line.startswith("ends-") and "no answer" in line for line in told)

    wait_for(ends_told)
    time.sleep(12)  # it is tried again meanwhile
    told += loop.events()
    ends = [line for line in told if line.startswith("ends-")]
    assert len(ends) == len(set(map(str, ends))), "each reason once"
    notice = ends[0]
    assert (notice.level, notice.code, notice.flow) == ("warning", "UNREACHABLE", flow.name)
    assert loop.unreachable_cluster(flow.name) == f"source {flow.source.alias}"
    lost.restart()
    wait_for(lambda: told.extend(loop.events()) or any("works again" in line for line in told))
    wait_for(lambda: loop.unreachable_cluster(flow.name) == "")
    produce(lost, topic_name, [Sent(b"x")])
    wait_for(lambda: loop.end_offsets(flow.name) == {tp: 1})


# --- permissions ----------------------------------------------------------------------------


@pytest.fixture
def guarded_flow(flow: FlowSettings, guarded: KafkaCluster) -> FlowSettings:
    source = replace(flow.source, alias="east")
    target = client("guarded", guarded)
    return replace(flow, source=source, source_admin=source, target=target, target_admin=target)


def test_denied_creation_names_the_acl_and_the_others_go_on(
    guarded_flow, loops, cluster_a, topic_name
):
    secret, open_topic = f"secret.{topic_name}", f"open.{topic_name}"
    create_topic(cluster_a, secret)
    create_topic(cluster_a, open_topic)
    topics = replace(guarded_flow.topics, include=(secret, open_topic))
    loop = loops(replace(guarded_flow, topics=topics))
    loop.prepare()
    assignment = loop.assignment("east->guarded")
    assert assignment.topics == (open_topic,)
    halt = assignment.halted[TopicPartition(secret, 0)]
    assert halt.code == Denied.code
    assert f"Create on Topic east.{secret}" in halt.reason
    assert "cluster guarded" in halt.reason


def test_nothing_but_denied_topics_stops_the_start(guarded_flow, loops, cluster_a, topic_name):
    secret = f"secret.{topic_name}"
    create_topic(cluster_a, secret)
    flow = replace(guarded_flow, topics=replace(guarded_flow.topics, include=(secret,)))
    with pytest.raises(Denied, match=f"creating topic east.{secret} is not allowed"):
        loops(flow).prepare()


def test_commands_survive_in_the_control_topic(flow, loops, cluster_a, cluster_b, topic_name):
    """The topic is compacted, with segments small enough to be compacted soon."""
    create_topic(cluster_a, topic_name)
    loops(flow).prepare()
    guard, resource = admin(cluster_b), ConfigResource(ResourceType.TOPIC, control_topic(flow))
    configs = guard.describe_configs([resource])[resource].result(20)
    assert configs["cleanup.policy"].value == "compact"
    assert int(configs["segment.bytes"].value) <= 16 << 20
    assert COMMAND_PARTITION != PROGRESS_PARTITION


def test_errors_of_a_flow_are_mirror_errors(flow, loops, cluster_a, topic_name):
    """An offset storage topic that cannot be replicated stops the start with its key's name."""
    create_topic(cluster_a, topic_name)
    with pytest.raises(MirrorError, match=r"offset\.storage\.replication\.factor is 3"):
        loops(replace(flow, offset_storage_replication_factor=3)).prepare()


@pytest.mark.parametrize(
    ("mode", "reset"),
    [
        (MirrorMode.MM2, "latest"),
        (MirrorMode.MM1, "latest"),
        pytest.param(MirrorMode.MM2, "by_duration:PT1H", marks=pytest.mark.more),
    ],
)
def test_latest_is_the_end_as_it_is_at_the_start(mode, reset, flow, loops, cluster_a, topic_name):
    """Records that are written while Spark starts are mirrored, and counted as lag."""
    create_topic(cluster_a, topic_name, 2)
    old_ms = int(time.time() * 1000) - 2 * 3_600_000
    produce(cluster_a, topic_name, [Sent(b"old", partition=0, timestamp_ms=old_ms)] * 3)
    latest = FetchSettings(auto_offset_reset=reset)
    group = f"latest-{topic_name}" if mode is MirrorMode.MM1 else ""
    flow = replace(flow, mode=mode, group_id=group, fetch=latest)

    def positions(loop: ControlLoop) -> dict[TopicPartition, int]:
        control = loop._flows[flow.name]
        found = control.clusters.keeper.committed_offsets(flow.position_group, None)
        assert all(bool(one.metadata) is (mode is MirrorMode.MM2) for one in found.values())
        return {tp: one.offset for tp, one in found.items()}

    begin = {
        TopicPartition(FlowTopics(flow).remote(topic_name), n): at for n, at in ((0, 3), (1, 0))
    }
    loop = loops(flow, once=mode is MirrorMode.MM1)
    loop.prepare()
    assert positions(loop) == begin
    told = f"2 partitions had no position: they begin where auto.offset.reset={reset} is now"
    assert any(told in line for line in loop.events())
    produce(cluster_a, topic_name, [Sent(b"new", partition=0)] * 2)
    again = loops(flow, run_id="run-2")
    again.prepare()
    assert positions(again) == begin
    assert not any(told in line for line in again.events())
    if mode is MirrorMode.MM1:
        return
    create_topic(cluster_a, f"{topic_name}-2")
    produce(cluster_a, f"{topic_name}-2", [Sent(b"before it is known")])
    again.start()
    again.refresh()
    wait_for(lambda: len(again.assignment(flow.name).partitions) == 3)
    new = TopicPartition(FlowTopics(flow).remote(f"{topic_name}-2"), 0)
    assert positions(again) == begin | {new: int(reset == "latest")}
