"""The cluster facade, against a real broker and checked with another client."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import ConfigResource, ResourceType

from sparkmirror.errors import ClusterError, MirrorError, QuotaExceeded, TopicError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.error_translation import translated
from sparkmirror.wire.admin.inspector import Inspector
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.views import Committed, GroupMember, GroupView, NewTopic
from sparkmirror.wire.protocol_errors import BrokerError, code_of
from tests.kafka.clusters.faults import set_quota
from tests.kafka.harness.mirror_process import wait_until
from tests.kafka.harness.support import (
    Sent,
    admin,
    consume_all,
    create_topic,
    produce,
    produce_transaction,
    topic_names,
    wait_for_topic,
)
from tests.patience import patience


@pytest.fixture
def cluster(cluster_a: KafkaCluster):
    servers = tuple(cluster_a.bootstrap_servers.split(","))
    client = Cluster(ClusterClient("A", servers, "facade", request_timeout_ms=10_000))
    yield client
    client.close()


def test_describe(cluster, cluster_a):
    view = cluster.describe()
    assert view.cluster_id
    assert [f"{b.host}:{b.port}" for b in view.brokers] == [cluster_a.bootstrap_servers]
    assert view.controller == view.brokers[0].node


def test_topics(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name, 3)
    found = cluster.topics()
    view = found[topic_name]
    assert (view.partitions, view.replication, view.leaderless) == (3, 1, ())
    assert uuid.UUID(view.topic_id).int
    assert cluster.topics([topic_name, "no-such-topic"]) == {topic_name: view}
    assert cluster.topics([]) == {}


def test_asking_for_a_topic_never_creates_it(cluster, topic_name):
    assert cluster.topics([topic_name]) == {}
    assert cluster.end_offsets([TopicPartition(topic_name, 0)]) == {}
    assert topic_name not in cluster.topics()


def test_a_topic_that_is_made_anew_has_another_id(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name)
    before = cluster.topics([topic_name])[topic_name].topic_id
    other = admin(cluster_a)
    other.delete_topics([topic_name])[topic_name].result(20)
    create_topic(cluster_a, topic_name)
    assert cluster.topics([topic_name])[topic_name].topic_id != before


def test_create_topics_gives_one_outcome_per_topic(cluster, cluster_a, topic_name):
    good, there, bad = f"{topic_name}.good", f"{topic_name}.there", f"{topic_name}.bad"
    create_topic(cluster_a, there, 2)
    outcomes = cluster.create_topics(
        [
            NewTopic(good, 3, -1, {"retention.ms": "12345", "cleanup.policy": "compact"}),
            NewTopic(there, 5),
            NewTopic(bad, 1, -1, {"no.such.config": "1"}),
            NewTopic("not a name!", 1),
            NewTopic(f"{topic_name}.wide", 1, 9),
        ]
    )
    assert outcomes[good].error is None
    assert not outcomes[good].existed
    assert (outcomes[there].error, outcomes[there].existed) == (None, True)
    assert "no.such.config" in str(outcomes[bad].error)
    assert "INVALID_TOPIC" in str(outcomes["not a name!"].error)
    assert "replication factor of 9" in str(outcomes[f"{topic_name}.wide"].error)
    wait_for_topic(cluster_a, good, 3)
    other, resource = admin(cluster_a), ConfigResource(ResourceType.TOPIC, good)
    assert other.describe_configs([resource])[resource].result(20)["retention.ms"].value == "12345"
    assert cluster.topics([there])[there].partitions == 2


def test_more_topics_than_one_request_takes(cluster, cluster_a, topic_name):
    names = [f"{topic_name}.{number}" for number in range(120)]
    outcomes = cluster.create_topics([NewTopic(name, 1) for name in names])
    assert all(outcomes[name].error is None for name in names)
    wait_until(lambda: topic_names(cluster_a) >= set(names), "all topics")
    configs = cluster.topic_configs(names)
    assert configs.keys() == set(names)


def test_more_partitions_than_one_request_takes(cluster, topic_name):
    """In a dry run; the controller would refuse all three for 10,000 partitions."""
    wanted = [NewTopic(f"{topic_name}.{number}", 4_000) for number in range(3)]
    tried = Inspector(cluster).try_create(wanted)
    assert {name: one.error for name, one in tried.items()} == {one.name: None for one in wanted}


def test_new_topics_wait_for_a_quota(cluster_a, topic_name):
    """It allows 22 new partitions at once, then 2 a second."""
    servers = tuple(cluster_a.bootstrap_servers.split(","))
    set_quota(cluster_a, topic_name, "controller_mutation_rate=2")
    slow = Cluster(ClusterClient("A", servers, topic_name))
    try:
        names = [f"{topic_name}.{number}" for number in range(8)]
        outcomes = slow.create_topics([NewTopic(name, 4) for name in names])
        assert {name: one.error for name, one in outcomes.items()} == dict.fromkeys(names)
        wait_until(lambda: slow.topics(names).keys() == set(names), "all topics")
        grown = slow.grow_topics(dict.fromkeys(names[:3], 6))
        assert {name: one.error for name, one in grown.items()} == dict.fromkeys(names[:3])
    finally:
        slow.close()


def test_a_quota_on_new_partitions_holds_up_no_other_request(cluster_a, topic_name):
    """After the first topic it allows none for longer than a request may take."""
    servers = tuple(cluster_a.bootstrap_servers.split(","))
    set_quota(cluster_a, topic_name, "controller_mutation_rate=1")
    slow = Cluster(ClusterClient("A", servers, topic_name))
    try:
        names = [f"{topic_name}.{number}" for number in range(2)]
        for _ in range(2):
            outcomes = slow.create_topics([NewTopic(name, 50) for name in names], patience_s=0)
            assert outcomes[names[0]].error is None
            assert isinstance(outcomes[names[1]].error, QuotaExceeded)
            assert slow.topics(names[1:]) == {}
    finally:
        slow.close()


def test_grow_topics(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name, 2)
    outcomes = cluster.grow_topics({topic_name: 4, "no-such-topic": 3})
    assert outcomes[topic_name].error is None
    assert isinstance(outcomes["no-such-topic"].error, MirrorError)
    wait_for_topic(cluster_a, topic_name, 4)
    assert cluster.topics([topic_name])[topic_name].partitions == 4
    assert cluster.grow_topics({topic_name: 3})[topic_name].error is not None
    assert cluster.grow_topics({}) == {}


def test_topic_configs(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name, config={"retention.ms": "777"})
    answer = cluster.topic_configs([topic_name, "no-such-topic"])
    entries = answer[topic_name]
    assert not isinstance(entries, MirrorError)
    assert entries["retention.ms"].value == "777"
    assert entries["retention.ms"].source == "DYNAMIC_TOPIC_CONFIG"
    assert not entries["retention.ms"].is_default
    assert entries["segment.ms"].is_default
    assert isinstance(answer["no-such-topic"], TopicError)


def test_offsets_of_the_log(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name, 2)
    one, other = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    produce(cluster_a, topic_name, [Sent(b"x", partition=1) for _ in range(5)])
    assert cluster.end_offsets([one, other]) == {one: 0, other: 5}
    assert cluster.earliest_offsets([one, other]) == {one: 0, other: 0}
    unknown = [TopicPartition(topic_name, 7), TopicPartition("no-such-topic", 0)]
    assert cluster.end_offsets([one, *unknown]) == {one: 0}


def test_an_open_transaction_holds_back_the_stable_end_only(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name)
    tp = TopicPartition(topic_name, 0)
    produce(cluster_a, topic_name, [Sent(b"before")])
    producer = Producer(
        {"bootstrap.servers": cluster_a.bootstrap_servers, "transactional.id": topic_name}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic_name, b"open", partition=0)
    producer.flush(10)
    assert cluster.end_offsets([tp], "read_uncommitted") == {tp: 2}
    assert cluster.end_offsets([tp], "read_committed") == {tp: 1}
    producer.commit_transaction(10)


def test_committed_offsets(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name, 3)
    tps = [TopicPartition(topic_name, n) for n in range(3)]
    group = f"g-{topic_name}"
    assert cluster.committed_offsets(group, tps) == {}
    cluster.commit_offsets(group, {tps[0]: (5, '{"a":1}'), tps[2]: (0, "")})
    expected = {tps[0]: Committed(5, '{"a":1}'), tps[2]: Committed(0)}
    assert cluster.committed_offsets(group, tps) == expected
    unknown = TopicPartition("no-such-topic", 0)
    assert cluster.committed_offsets(group, [unknown]) == {}
    assert cluster.committed_offsets(group, []) == {}


def test_offsets_of_many_groups_go_in_few_requests(cluster, cluster_a, topic_name, monkeypatch):
    monkeypatch.setattr("sparkmirror.wire.admin.groups._GROUPS_PER_REQUEST", 4)
    create_topic(cluster_a, topic_name, 2)
    tps = [TopicPartition(topic_name, n) for n in range(2)]
    groups = [f"{topic_name}-{n}" for n in range(10)]
    for n, group in enumerate(groups):
        cluster.commit_offsets(group, {tps[n % 2]: (n, "m")})
    found = cluster.committed_by_group([*groups, "nobody-knows-it"])
    assert found.pop("nobody-knows-it") == {}
    assert found == {g: {tps[n % 2]: Committed(n, "m")} for n, g in enumerate(groups)}
    present = cluster.groups()
    assert {present[group].state for group in groups} == {"Empty"}
    assert cluster.committed_by_group([]) == {}


def test_commits_with_large_metadata_go_in_several_requests(cluster, cluster_a, topic_name):
    """A coordinator writes each request as one batch, of at most 1 MiB."""
    create_topic(cluster_a, topic_name, 300)
    offsets = {TopicPartition(topic_name, n): (n, "m" * 4_000) for n in range(300)}
    unknown = {TopicPartition("no-such-topic", 0): (1, "")}
    with pytest.raises(ClusterError, match="no-such-topic-0"):
        cluster.commit_offsets(topic_name, unknown | offsets)
    found = cluster.committed_offsets(topic_name, offsets)
    assert {tp: (c.offset, c.metadata) for tp, c in found.items()} == offsets


def test_committing_for_an_unknown_topic_is_an_error(cluster):
    with pytest.raises(ClusterError, match="no-such-topic-0"):
        cluster.commit_offsets("g", {TopicPartition("no-such-topic", 0): (1, "")})


@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.more), "consumer"])
def test_a_group_with_members_is_seen_and_its_offsets_are_safe(
    cluster, cluster_a, topic_name, protocol
):
    create_topic(cluster_a, topic_name)
    group = f"g-{topic_name}-{protocol}"
    consumer = Consumer(
        {
            "bootstrap.servers": cluster_a.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "somebody",
        }
    )
    consumer.subscribe([topic_name])
    deadline = time.monotonic() + patience()
    while not consumer.assignment():
        consumer.poll(0.2)
        assert time.monotonic() < deadline
    assert cluster.group_members(group) == (GroupMember("somebody", "127.0.0.1"),)
    assert cluster.groups()[group] == GroupView(group, "Stable")
    owner = cluster.group_owners(group)[TopicPartition(topic_name, 0)]
    assert (owner.client_id, owner.host) == ("somebody", "127.0.0.1")
    with pytest.raises(ClusterError, match="active members"):
        cluster.commit_offsets(group, {TopicPartition(topic_name, 0): (1, "")})
    consumer.close()
    assert cluster.group_members(group) == ()
    assert cluster.groups()[group] == GroupView(group, "Empty")
    cluster.commit_offsets(group, {TopicPartition(topic_name, 0): (1, "")})


def test_produce_and_read_compacted(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name, 2, config={"cleanup.policy": "compact"})
    records = [(n % 2, b"k%d" % n, None if n == 4 else b"v%d" % n) for n in range(10)]
    assert cluster.produce_many(topic_name, records) == 10
    by_partition = sorted(records, key=lambda record: record[0])
    assert sorted(cluster.read_compacted(topic_name), key=lambda r: r[0]) == by_partition
    assert [(r.partition, r.key, r.value) for r in consume_all(cluster_a, topic_name)] == (
        by_partition
    )
    assert list(cluster.read_compacted(topic_name, partitions=[1])) == [
        record for record in records if record[0] == 1
    ]


def test_read_compacted_ends_on_an_empty_topic(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name, 3)
    assert list(cluster.read_compacted(topic_name)) == []


def test_read_compacted_leaves_out_aborted_data_and_ends_behind_markers(
    cluster, cluster_a, topic_name
):
    create_topic(cluster_a, topic_name)
    produce_transaction(cluster_a, topic_name, [Sent(b"1", b"k")], commit=True)
    produce_transaction(cluster_a, topic_name, [Sent(b"2", b"k")], commit=False)
    assert list(cluster.read_compacted(topic_name)) == [(0, b"k", b"1")]


@pytest.mark.parametrize(
    "codec",
    [
        "gzip",
        *(pytest.param(one, marks=pytest.mark.more) for one in ("snappy", "lz4")),
        "zstd",
    ],
)
def test_read_compacted_unpacks_what_the_broker_or_a_java_tool_compressed(
    cluster, cluster_a, topic_name, codec
):
    """A cluster's ``compression.type`` holds for internal topics, too."""
    create_topic(cluster_a, topic_name, config={"compression.type": codec})
    cluster.produce_many(topic_name, [(0, b"k", b"v" * 5_000)])
    assert list(cluster.read_compacted(topic_name)) == [(0, b"k", b"v" * 5_000)]


def test_reading_a_topic_that_does_not_exist(cluster):
    with pytest.raises(TopicError, match="no-such-topic"):
        list(cluster.read_compacted("no-such-topic"))


def test_a_record_that_is_too_large_names_the_setting(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name, config={"max.message.bytes": "1000"})
    with pytest.raises(ClusterError, match=r"max\.message\.bytes"):
        cluster.produce_many(topic_name, [(0, b"k", b"v" * 5_000)])


def test_a_large_record_passes(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name)
    cluster.produce_many(topic_name, [(0, b"k", b"v" * 900_000)])
    assert [len(value or b"") for _, _, value in cluster.read_compacted(topic_name)] == [900_000]


def test_tail_follows(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name)
    cluster.produce_many(topic_name, [(0, b"old", b"1")])
    with cluster.tail(topic_name, only_new=[0]) as tail:
        assert tail.poll(100) == []
        cluster.produce_many(topic_name, [(0, b"new", b"2")])
        deadline = time.monotonic() + patience()
        records = []
        while not records and time.monotonic() < deadline:
            records = tail.poll(200)
    assert records == [(0, b"new", b"2")]


def test_threads_share_one_facade(cluster, cluster_a, topic_name):
    create_topic(cluster_a, topic_name, 4)
    tps = [TopicPartition(topic_name, n) for n in range(4)]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(20):
                assert len(cluster.end_offsets(tps)) == 4
                cluster.produce_many(topic_name, [(number, b"k", b"v")])
                assert topic_name in cluster.topics([topic_name])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert set(cluster.end_offsets(tps).values()) == {20}


def test_a_closed_facade_connects_again(cluster):
    view = cluster.describe()
    cluster.close()
    assert cluster.describe() == view


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", "DENIED", "Read on Topic t"),
        ("SASL_AUTHENTICATION_FAILED", "DENIED", "refused the login"),
        ("UNSUPPORTED_VERSION", "UNSUPPORTED", "newer broker"),
        ("REQUEST_TIMED_OUT", "UNREACHABLE", "no answer"),
        ("BROKER_NOT_AVAILABLE", "UNREACHABLE", "advertised.listeners"),
        ("POLICY_VIOLATION", "CLUSTER", "POLICY_VIOLATION"),
    ],
)
def test_errors_of_a_broker_are_translated(name, code, text):
    client = ClusterClient("east", ("e:9092",), "test")
    with (
        pytest.raises(MirrorError) as caught,
        translated(client, "reading topic t", needs=Right("Read", "Topic", "t")),
    ):
        raise BrokerError(code_of(name), "details")
    error = caught.value
    assert error.code == code
    assert error.where == "cluster east"
    assert "reading topic t" in error.what
    assert text in str(error)
    assert error.do


@pytest.mark.more
def test_offsets_and_writes_follow_the_leaders_when_a_broker_dies(new_cluster, topic_name):
    kafka: KafkaCluster = new_cluster("T", nodes=3, heap="256m")
    create_topic(kafka, topic_name, 6, replication=3)
    servers = tuple(kafka.bootstrap_servers.split(","))
    facade = Cluster(ClusterClient("T", servers, "facade", request_timeout_ms=20_000))
    tps = [TopicPartition(topic_name, n) for n in range(6)]
    facade.produce_many(topic_name, [(n, b"k", b"before") for n in range(6)])
    assert set(facade.end_offsets(tps).values()) == {1}
    kafka.kill(2)
    facade.produce_many(topic_name, [(n, b"k", b"after") for n in range(6)])
    assert facade.end_offsets(tps) == dict.fromkeys(tps, 2)
    assert len(list(facade.read_compacted(topic_name))) == 12
    facade.close()
