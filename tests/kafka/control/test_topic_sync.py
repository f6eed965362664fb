"""Configs and ACLs of remote topics follow those of their source topics; Java's do the same."""

from __future__ import annotations

import struct
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sparkmirror.control.loop import ControlLoop
from sparkmirror.errors import MirrorError
from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings, TopicSettings
from sparkmirror.testing.clusters import KafkaCluster, start_all
from sparkmirror.testing.maven import resolve
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import AclBinding
from tests.kafka.clusters.authorized import Authorized, topic_acl
from tests.kafka.clusters.faults import FaultyCluster
from tests.kafka.clusters.proxy import TO_CLIENT
from tests.kafka.harness.support import (
    create_topic,
    grow_topic,
    set_topic_config,
    topic_names,
)
from tests.patience import patience


def client(alias: str, cluster: KafkaCluster) -> ClusterClient:
    return ClusterClient(
        alias, (cluster.bootstrap_servers,), f"test-{alias}", request_timeout_ms=10_000
    )


def flow(source: ClusterClient, target: ClusterClient, **topics: object) -> FlowSettings:
    settings = TopicSettings(
        replication_factor=1, sync_configs_interval_s=1, sync_acls_interval_s=1, **topics
    )
    return FlowSettings(
        source,
        target,
        source,
        target,
        topics=settings,
        offset_storage_partitions=1,
        offset_storage_replication_factor=1,
    )


@contextmanager
def running(*flows: FlowSettings, once: bool = False) -> Iterator[ControlLoop]:
    loop = ControlLoop(MirrorSettings(flows, ()), once=once, run_id=uuid.uuid4().hex)
    try:
        loop.prepare()
        loop.start()
        yield loop
    finally:
        loop.stop()


@pytest.fixture
def alias() -> str:
    return f"S{uuid.uuid4().hex[:8]}"


def overrides(cluster: KafkaCluster, topic: str) -> dict[str, str | None]:
    """What is set on the topic itself."""
    reader = Cluster(client("x", cluster))
    try:
        found = reader.topic_configs([topic])[topic]
    finally:
        reader.close()
    assert not isinstance(found, MirrorError), found
    return {k: v.value for k, v in found.items() if v.source == "DYNAMIC_TOPIC_CONFIG"}


def wait_for(get: Callable[[], object], wanted: object, timeout_s: float | None = None) -> None:
    deadline = time.monotonic() + (timeout_s or patience())
    while (got := get()) != wanted:
        assert time.monotonic() < deadline, f"{got} instead of {wanted}"
        time.sleep(0.1)


# --- configs --------------------------------------------------------------------------------


def test_configs_follow_the_source(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str, alias: str
):
    create_topic(cluster_a, topic_name, config={"retention.ms": "777", "segment.ms": "60000"})
    remote = f"{alias}.{topic_name}"
    settings = flow(
        client(alias, cluster_a),
        client("B", cluster_b),
        include=(topic_name,),
        sync_configs_keep=("max\\.message\\..*",),
    )
    with running(settings) as loop:
        created = {"retention.ms": "777", "segment.ms": "60000"}
        assert overrides(cluster_b, remote) == created
        # What only the target sets is wiped; but not what is kept or excluded.
        mine = {"max.message.bytes": "900000", "min.insync.replicas": "1"}
        set_topic_config(
            cluster_b, remote, settles=False, **{"flush.ms": "5", "retention.ms": "1"}, **mine
        )
        wait_for(lambda: overrides(cluster_b, remote), created | mine)
        # Changes of the source: another value, one more, one less; excluded ones stay there.
        changed = {"retention.ms": "888", "cleanup.policy": "compact"}
        others = {"segment.ms": None, "min.insync.replicas": "2"}
        set_topic_config(cluster_a, topic_name, **changed, **others)
        wait_for(lambda: overrides(cluster_b, remote), changed | mine)
        # A kept config still follows a source that sets it, and then stays.
        set_topic_config(cluster_a, topic_name, **{"max.message.bytes": "800000"})
        follows = changed | mine | {"max.message.bytes": "800000"}
        wait_for(lambda: overrides(cluster_b, remote), follows)
        set_topic_config(cluster_a, topic_name, **{"max.message.bytes": None, "retention.ms": None})
        del follows["retention.ms"]
        wait_for(lambda: overrides(cluster_b, remote), follows)
        told = loop.events()
    assert any(line == f"B: configs brought in step: {remote}" for line in told), told
    # These clusters have no authorizer: said once, not in each round.
    assert sum(f"{alias} has no authorizer" in line for line in told) == 1


def test_the_sources_defaults_are_set_where_wanted(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str, alias: str
):
    create_topic(cluster_a, topic_name)
    remote = f"{alias}.{topic_name}"
    ends = client(alias, cluster_a), client("B", cluster_b)
    with running(flow(*ends, include=(topic_name,), use_defaults_from="source")):
        assert overrides(cluster_b, remote)["retention.ms"] == "604800000"
        set_topic_config(
            cluster_b, remote, settles=False, **{"retention.ms": None, "flush.ms": "5"}
        )
        wait_for(lambda: overrides(cluster_b, remote).get("retention.ms"), "604800000")
        wait_for(lambda: overrides(cluster_b, remote)["flush.ms"], str(2**63 - 1))


def test_switched_off_and_once(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str, alias: str
):
    """A flow whose sync is off changes nothing; ``--once`` compares one time."""
    create_topic(cluster_a, topic_name)
    remote = f"{alias}.{topic_name}"
    ends = client(alias, cluster_a), client("B", cluster_b)
    off = flow(*ends, include=(topic_name,), sync_configs_enabled=False, sync_acls_enabled=False)
    with running(off) as loop:
        set_topic_config(cluster_b, remote, settles=False, **{"flush.ms": "5"})
        time.sleep(2.5)
        assert overrides(cluster_b, remote) == {"flush.ms": "5"}
        assert not [line for line in loop.events() if "authorizer" in line]
    with running(flow(*ends, include=(topic_name,)), once=True):
        wait_for(lambda: overrides(cluster_b, remote), {})
        set_topic_config(cluster_b, remote, settles=False, **{"flush.ms": "6"})
        time.sleep(2.5)
        assert overrides(cluster_b, remote) == {"flush.ms": "6"}


# --- ACLs -----------------------------------------------------------------------------------


def source_acls(topic: str) -> list[AclBinding]:
    """Every kind of binding that a source may have."""
    return [
        topic_acl(topic, "READ"),
        topic_acl(topic, "WRITE"),
        topic_acl(topic, "ALL", "User:owner"),
        topic_acl(topic, "ALL", "User:bad", permission="DENY"),
        topic_acl(topic, "WRITE", "User:worse", permission="DENY"),
        topic_acl(topic, "DESCRIBE_CONFIGS", "User:*", host="10.1.2.3"),
        topic_acl(topic, "CREATE", "User:owner"),
        topic_acl(topic, "READ", "User:pre", pattern="PREFIXED"),
        topic_acl(f"other-{topic}", "READ", "User:other"),
    ]


def remote_acls(remote: str) -> set[AclBinding]:
    """What the rules make of `source_acls`."""
    return {
        topic_acl(remote, "READ"),
        topic_acl(remote, "READ", "User:owner"),
        topic_acl(remote, "CREATE", "User:owner"),
        topic_acl(remote, "ALL", "User:bad", permission="DENY"),
        topic_acl(remote, "WRITE", "User:worse", permission="DENY"),
        topic_acl(remote, "DESCRIBE_CONFIGS", "User:*", host="10.1.2.3"),
    }


def test_acls_follow_the_source_and_are_never_removed(
    authorized: tuple[Authorized, Authorized], topic_name: str, alias: str
):
    source, target = authorized
    create_topic(source.kafka, topic_name)
    source.allow(source_acls(topic_name))
    remote = f"{alias}.{topic_name}"
    settings = flow(source.client(alias), target.client("B"), include=(topic_name,))
    with running(settings) as loop:
        wait_for(lambda: target.acls(remote), remote_acls(remote))
        source.forbid([topic_acl(topic_name, "READ")])
        source.allow([topic_acl(topic_name, "DESCRIBE", "User:new")])
        added = topic_acl(remote, "DESCRIBE", "User:new")
        wait_for(lambda: target.acls(remote), remote_acls(remote) | {added})
        told = loop.events()
    # Other tests' heartbeats on these clusters may be named beside it.
    added_to = [line for line in told if line.startswith("B: ACLs added to ")]
    assert [line.endswith(remote) for line in added_to] == [True, True]


def test_without_the_right_to_see_acls_the_rest_goes_on(
    authorized: tuple[Authorized, Authorized], topic_name: str, alias: str
):
    source, target = authorized
    create_topic(source.kafka, topic_name, config={"retention.ms": "5"})
    source.allow(
        [topic_acl(topic_name, each, "User:reader") for each in ("READ", "DESCRIBE_CONFIGS")]
    )
    remote = f"{alias}.{topic_name}"
    settings = flow(source.client(alias, "reader"), target.client("B"), include=(topic_name,))
    with running(settings) as loop:
        set_topic_config(target.kafka, remote, settles=False, **{"retention.ms": "6"})
        wait_for(lambda: overrides(target.kafka, remote), {"retention.ms": "5"})
        told: list[str] = []

        def of_acls() -> list[str]:
            told.extend(loop.events())
            return [line for line in told if line.startswith(f"acls-{alias}->B: ")]

        wait_for(lambda: bool(of_acls()), True)
        (denied,) = of_acls()
    assert f"cluster {alias}: describing ACLs is not allowed" in denied
    assert "Describe on the Cluster" in denied


# --- APIs that a cluster does not have ------------------------------------------------------

# Their rows in an ApiVersions answer of Kafka 4: key, lowest and highest version, no tags.
DESCRIBE_ACLS = struct.pack(">hhhB", 29, 1, 3, 0)
INCREMENTAL_ALTER_CONFIGS = struct.pack(">hhhB", 44, 0, 1, 0)


@pytest.fixture
def lacking() -> Iterator[tuple[FaultyCluster, FaultyCluster]]:
    """A source that knows nothing of ACLs, and a target that cannot alter single configs.

    A proxy makes the API another one, which nobody knows, whenever a broker tells what it has.
    """
    pair = FaultyCluster("S", nodes=1), FaultyCluster("T", nodes=1)
    start_all(*(one.kafka for one in pair))
    try:
        for one, row in zip(pair, (DESCRIBE_ACLS, INCREMENTAL_ALTER_CONFIGS), strict=True):
            one.proxies[1].flip(TO_CLIENT, row, times=1_000)
        yield pair
    finally:
        for one in pair:
            one.stop()


@pytest.mark.more
def test_an_api_that_a_cluster_refuses_is_named_and_the_rest_goes_on(
    lacking: tuple[FaultyCluster, FaultyCluster], topic_name: str, alias: str
):
    source, target = lacking
    first, second = f"{topic_name}-1", f"{topic_name}-2"
    create_topic(source.kafka, first, config={"retention.ms": "5"})
    ends = [
        ClusterClient(name, one.proxied_servers, "test", request_timeout_ms=10_000)
        for name, one in ((alias, source), ("B", target))
    ]
    settings = flow(*ends, include=(f"{topic_name}.*",), refresh_interval_s=1)
    told: list[str] = []

    def heard(job: str) -> list[str]:
        told.extend(loop.events())
        return [line for line in told if line.startswith(f"{job}-{alias}->B: ")]

    with running(settings) as loop:
        assert overrides(target.kafka, f"{alias}.{first}") == {"retention.ms": "5"}
        wait_for(lambda: len(heard("acls")), 1)
        set_topic_config(source.kafka, first, **{"retention.ms": "6"})
        wait_for(lambda: len(heard("configs")), 1)
        # Topics are made and grow all the same, and what fails again is not told again.
        create_topic(source.kafka, second, 1, config={"retention.ms": "7"})
        wait_for(lambda: f"{alias}.{second}" in topic_names(target.kafka), True)
        assert overrides(target.kafka, f"{alias}.{second}") == {"retention.ms": "7"}
        grow_topic(source.kafka, second, 3)
        wait_for(lambda: len(loop.assignment(settings.name).partitions), 4)
        (acls,), (configs,) = heard("acls"), heard("configs")
    assert f"cluster {alias}: describing ACLs needs an API that this broker does not have" in acls
    assert "cluster B: altering topic configs needs an API that this broker does not have" in (
        configs
    )
    assert all(one.proxies[1].flipped for one in lacking)


# --- side by side with Java -----------------------------------------------------------------

JAVA = "org.apache.kafka.connect.mirror.MirrorMaker"
JAVA_JARS = (
    "org.apache.kafka:connect-mirror:4.3.0",
    "org.apache.kafka:connect-runtime:4.3.0",
    "org.slf4j:slf4j-simple:1.7.36",
)


@contextmanager
def java_mirror(path: Path, cluster: KafkaCluster) -> Iterator[Path]:
    """MirrorMaker 2 (4.3.0) on a file; gives the path of its log."""
    runtime = replace(cluster.runtime, jars=resolve(*JAVA_JARS), archive=path.with_suffix(".none"))
    output = path.with_suffix(".log")
    with output.open("wb") as stream:
        process = subprocess.Popen(
            runtime.command(JAVA, str(path), heap="400m"),
            stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        yield output
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def java_file(path: Path, source: str, target: str, aliases: list[str], topics: str) -> Path:
    """Flows from ``aliases``, all of them the source, to B; the second takes its defaults."""
    lines = [f"clusters={','.join(aliases)},B", f"B.bootstrap.servers={target}"]
    for alias in aliases:
        lines += [f"{alias}.bootstrap.servers={source}", f"{alias}->B.enabled=true"]
    lines += [f"{aliases[1]}->B.use.defaults.from=source", f"topics={topics}"]
    lines += [f"{each}.enabled=false" for each in ("emit.heartbeats", "emit.checkpoints")]
    lines += [f"sync.topic.{each}.interval.seconds=1" for each in ("configs", "acls")]
    lines += [f"{each}.storage.replication.factor=1" for each in ("offset", "config", "status")]
    lines += ["replication.factor=1", "offset-syncs.topic.replication.factor=1"]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.interop
def test_java_leads_to_the_same_configs_and_acls(
    authorized: tuple[Authorized, Authorized], topic_name: str, alias: str, tmp_path: Path
):
    """Both mirror the same topics to the same cluster, under two aliases each."""
    source, target = authorized
    ours, javas = [f"{alias}o", f"{alias}p"], [f"{alias}j", f"{alias}k"]
    plain, busy = f"{topic_name}-plain", f"{topic_name}-busy"
    create_topic(source.kafka, plain)
    create_topic(source.kafka, busy, config={
        "retention.ms": "777", "cleanup.policy": "compact,delete", "min.insync.replicas": "2",
        "message.timestamp.type": "LogAppendTime", "message.timestamp.after.max.ms": "86400000",
        "follower.replication.throttled.replicas": "*", "compression.type": "zstd",
    })  # fmt: skip
    source.allow([*source_acls(busy), topic_acl("*", "READ", "User:all"),
                  topic_acl("*", "ALL", "User:every")])  # fmt: skip
    for name in ours + javas:  # topics that were there before, with settings of their own
        create_topic(target.kafka, f"{name}.{busy}", config={
            "retention.ms": "1", "flush.ms": "5", "unclean.leader.election.enable": "true",
        })  # fmt: skip
    busy_configs = {
        "retention.ms": "777", "cleanup.policy": "compact,delete", "compression.type": "zstd",
        "message.timestamp.after.max.ms": "86400000", "unclean.leader.election.enable": "true",
    }  # fmt: skip
    file = java_file(
        tmp_path / "java.properties",
        source.kafka.bootstrap_servers,
        target.kafka.bootstrap_servers,
        javas,
        f"{topic_name}.*,\\\\*",
    )
    include = (f"{topic_name}.*", "\\*")
    flows = [
        flow(source.client(name), target.client("B"), include=include, use_defaults_from=origin)
        for name, origin in zip(ours, ("target", "source"), strict=True)
    ]

    def state(name: str) -> list[object]:
        """Configs of both topics and their ACLs, under names that all aliases share."""
        names = f"{name}.{topic_name}", f"{name}.*"
        acls = {replace(b, name=b.name.removeprefix(name)) for b in target.acls(*names)}
        return [*(overrides(target.kafka, f"{name}.{each}") for each in (plain, busy)), acls]

    everybody = {topic_acl(".*", "READ", f"User:{who}") for who in ("all", "every")}
    wanted = [{}, busy_configs, remote_acls(f".{busy}") | everybody]
    with java_mirror(file, target.kafka) as output, running(*flows):
        deadline = time.monotonic() + patience()
        while not all(target.acls(f"{name}.{topic_name}") for name in javas):
            assert time.monotonic() < deadline, output.read_text(errors="replace")[-3_000:]
            time.sleep(0.5)
        wait_for(lambda: state(javas[0]), wanted, 40)
        wait_for(lambda: state(ours[0]), wanted, 40)
        wait_for(lambda: state(javas[1])[1].get("flush.ms"), str(2**63 - 1), 40)
        wait_for(lambda: state(ours[1]), state(javas[1]), 40)
        assert len(state(ours[1])[0]) > 20, "all defaults of the source"
