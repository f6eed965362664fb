"""What the first seconds of a run tell: the doctor's quick look, which stops and delays nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.doctor.quick_check import LIMIT_S, QuickCheck
from sparkmirror.settings import MirrorSettings
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.testing.node import Node
from tests.kafka.clusters.authorized import HOST, Authorized, properties, topic_acl
from tests.kafka.clusters.faults import leaders
from tests.kafka.clusters.listeners import FurtherPorts
from tests.kafka.clusters.servers import refused
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm1, write_mm2
from tests.kafka.harness.support import (
    Sent,
    admin,
    consume_all,
    create_topic,
    delete_topic,
    produce,
)
from tests.patience import others_per_core

NAME = "wn2-src.invalid"
PREFIX = "quick check: "
START_FAILED = {"sparkmirror": 3, "kafka-mirror-maker": 1}


def told(process: MirrorProcess) -> list[str]:
    """The lines of the quick check so far."""
    warnings = [one["message"] for one in process.documents() if one["type"] == "warning"]
    for line in process.text().splitlines():
        _, mark, warning = line.partition(" warning: ")
        if mark and not line.startswith("{"):
            warnings.append(warning)
    return [one for one in warnings if one.startswith(PREFIX)]


def about(lines: list[str], *parts: str) -> list[str]:
    return [line for line in lines if all(part in line for part in parts)]


@contextmanager
def started(
    directory: Path, arguments: list[str], command: str = "sparkmirror"
) -> Iterator[MirrorProcess]:
    process = MirrorProcess(directory, arguments, command=command)
    try:
        yield process
    except AssertionError:
        print(process.text())  # pytest shows it with the failure
        raise
    finally:
        process.kill()


class West:
    """Three brokers whose outer listener is good at the first, advertises a name of another network
    at the second and a closed port at the third.
    """

    def __init__(self) -> None:
        further = FurtherPorts("OUTER")
        self.closed, self.servers = refused(), ""

        def own(node: Node) -> Mapping[str, str]:
            outer = f"{HOST}:{further.of(node)['OUTER']}"
            if node.id == 1:
                self.servers = outer
            shown = {1: outer, 2: f"{NAME}:9092", 3: self.closed}
            return {
                "listeners": f"PLAINTEXT://{HOST}:{node.port},OUTER://{outer},"
                f"CONTROLLER://{HOST}:{node.controller_port}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port},OUTER://{shown[node.id]}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTER:PLAINTEXT,"
                "CONTROLLER:PLAINTEXT",
            }

        self.kafka = KafkaCluster("West", nodes=3, heap="256m", node_config=own)


@pytest.fixture(scope="module")
def west() -> Iterator[West]:
    found = West()
    with found.kafka:
        yield found


@pytest.fixture(scope="module")
def east() -> Iterator[Authorized]:
    found = Authorized("East")
    with found.kafka:
        yield found


@pytest.fixture
def topic(west: West) -> Iterator[str]:
    name = f"quick-{uuid.uuid4().hex[:8]}"
    create_topic(west.kafka, name, 3)
    produce(west.kafka, name, [Sent(b"x", partition=number % 3) for number in range(30)])
    yield name
    delete_topic(west.kafka, name)


@pytest.mark.long
@pytest.mark.parametrize("command", ["run", "connect-mirror-maker"])
def test_brokers_that_cannot_be_reached_are_named_while_the_others_are_mirrored(
    west: West, cluster_b: KafkaCluster, topic: str, tmp_path: Path, command: str
) -> None:
    alias = f"W{uuid.uuid4().hex[:6]}"  # a target topic of each run's own
    servers = {f"{alias}.bootstrap.servers": west.servers}
    file = write_mm2(tmp_path / "mm2.properties", west.kafka, cluster_b, topic, servers,
                     source=alias)  # fmt: skip
    arguments, name = [str(file)], command
    if command == "run":
        arguments, name = ["run", str(file), "--log-format", "json"], "sparkmirror"
    (good,) = [number for number, node in leaders(west.kafka, topic).items() if node == 1]
    remote = f"{alias}.{topic}"
    with started(tmp_path / "run", arguments, name) as process:
        wait_until(lambda: len(about(told(process), "to look at")) == 1, "the quick check")
        lines = told(process)
        (second,) = about(lines, f"broker 2 advertises {NAME}:9092, which does not resolve here")
        assert "add a DNS forwarder" in second
        assert f"cluster {alias}" in second
        (third,) = about(lines, f"broker 3 advertises {west.closed}", "connection refused")
        assert "advertised.listeners" in third
        assert not about(lines, "broker 1")
        assert len(about(lines, f"cluster {alias}, broker")) == 2, lines
        wait_until(lambda: _arrived(cluster_b, remote) == {good: 10}, "records of broker 1's")
        assert process.process.poll() is None
        assert len(about(told(process), "broker 2 advertises")) == 1  # once is enough


def _arrived(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    if topic not in admin(cluster).list_topics(timeout=30).topics:
        return {}
    count: dict[int, int] = {}
    for one in consume_all(cluster, topic):
        count[one.partition] = count.get(one.partition, 0) + 1
    return count


@pytest.mark.more
def test_sizes_and_rights_are_looked_at_once_the_topics_are_there(
    cluster_a: KafkaCluster, east: Authorized, tmp_path: Path
) -> None:
    large, closed = (f"{word}-{uuid.uuid4().hex[:8]}" for word in ("large", "closed"))
    for name in (large, closed):
        create_topic(cluster_a, name, config={"max.message.bytes": "3000000"})
        create_topic(east.kafka, name)
        produce(cluster_a, name, [Sent(b"x")] * 10)
    mirror = "User:mirror"
    own = "mm2-sparkmirror"
    east.allow(
        [
            topic_acl(large, "ALL", mirror),
            topic_acl(closed, "DESCRIBE", mirror),
            topic_acl(closed, "DESCRIBE_CONFIGS", mirror),
            topic_acl(own, "ALL", mirror, pattern="PREFIXED"),
        ]
    )
    options = write_mm1(tmp_path, cluster_a, east.kafka, f"group-{large}")
    login = properties("mirror") | {
        "bootstrap.servers": east.login_servers,
        "security.protocol": "SASL_PLAINTEXT",
    }
    (tmp_path / "producer.properties").write_text(
        "".join(f"{key}={value}\n" for key, value in login.items())
    )
    arguments = [*options, "--whitelist", f"{large},{closed}", "--abort.on.send.failure", "false"]
    with started(tmp_path / "run", arguments, "kafka-mirror-maker") as process:
        wait_until(lambda: len(about(told(process), "to look at")) == 1, "the quick check")
        lines = told(process)
        (sizes,) = about(lines, "max.message.bytes is 1048588 on the target and 3000000")
        assert f"topic {closed}, topic {large}" in sizes  # one line for both
        assert "Set max.message.bytes=3000000 on the target topic" in sizes
        (rights,) = about(lines, "the principal lacks Write on 1 of 2 topics")
        assert f"Write on Topic {closed}" in rights
        assert "mirror-secret" not in process.text()
        wait_until(lambda: len(consume_all(east.kafka, large)) == 10, "the other topic's records")


@pytest.mark.more
@pytest.mark.parametrize(
    "command", ["sparkmirror", pytest.param("kafka-mirror-maker", marks=pytest.mark.long)]
)
def test_a_start_that_fails_has_its_error_alone(
    west: West, cluster_b: KafkaCluster, tmp_path: Path, command: str
) -> None:
    if command == "sparkmirror":
        servers = {"A.bootstrap.servers": refused()}
        file = write_mm2(tmp_path / "mm2.properties", west.kafka, cluster_b, "t", servers)
        arguments = ["run", str(file)]
    else:
        options = write_mm1(tmp_path, cluster_b, west.kafka, "any")
        file = tmp_path / "producer.properties"
        file.write_text(f"bootstrap.servers={refused()}\n")
        arguments = [*options, "--whitelist", "t"]
    with started(tmp_path / "run", arguments, command) as process:
        assert process.wait() == START_FAILED[command]
        assert process.text().count("connection refused") == 1
        assert PREFIX not in process.text()


def looked(settings: MirrorSettings, **how: Any) -> list[str]:
    """All that a look finds, with its last line."""
    lines: list[str] = []
    began = time.monotonic()
    QuickCheck(settings, lines.append, lambda: True, **how).run()
    assert time.monotonic() - began < 2 * LIMIT_S * others_per_core() + LIMIT_S
    return lines


@pytest.fixture
def nothing_but(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str, tmp_path: Path
) -> Callable[..., list[str]]:
    """What a look at two healthy clusters finds, with a resolver or a clock that is not ours."""

    def look(servers: str = "", **how: Any) -> list[str]:
        create_topic(cluster_a, topic_name)
        changes = {"A.bootstrap.servers": servers or cluster_a.bootstrap_servers}
        file = write_mm2(tmp_path / "f", cluster_a, cluster_b, topic_name, changes)
        return looked(load_mm2(file), **how)

    return look


def test_a_clock_that_is_off_is_told_of_both_clusters(
    nothing_but: Callable[..., list[str]],
) -> None:
    lines = nothing_but(now_s=lambda: time.time() + 3_600)
    for alias in ("A", "B"):
        (line,) = about(lines, f"cluster {alias}: its clock is 3", "behind ours", "NTP")
        assert line.startswith(PREFIX)
    assert len(lines) == 3


def test_a_bootstrap_name_that_is_unknown_is_told_where_another_answers(
    nothing_but: Callable[..., list[str]], cluster_a: KafkaCluster
) -> None:
    lines = nothing_but(f"{NAME}:9092,{cluster_a.bootstrap_servers}")
    (line,) = about(lines, f"{NAME}:9092", "does not resolve")
    assert f"{cluster_a.bootstrap_servers} responds" in line
    assert len(lines) == 2


@pytest.mark.more
def test_replicas_that_are_gone_are_told_in_one_line(
    west: West, cluster_a: KafkaCluster, tmp_path: Path
) -> None:
    names = sorted(f"three-{uuid.uuid4().hex[:8]}" for _ in range(3))
    for name in names:
        create_topic(cluster_a, name)
        create_topic(west.kafka, f"A.{name}", replication=3)
    single = f"single-{uuid.uuid4().hex[:8]}"
    create_topic(cluster_a, single)
    create_topic(west.kafka, f"A.{single}", replicas=[[1]])
    west.kafka.terminate(3)
    try:
        file = write_mm2(tmp_path / "f", cluster_a, west.kafka, ",".join([*names, single]))
        lines = looked(load_mm2(file))
    finally:
        west.kafka.restart(3)
    (line,) = about(lines, "the topic has 3 replicas, 2 brokers respond")
    assert all(f"topic A.{name}" in line for name in names)
    assert not about(lines, single)  # one replica is no trouble while it is there
