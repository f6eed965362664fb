"""Whole runs on the newest release of Kafka: records, transactions, ACLs, Java's tools, the demo.

Java's mirror and client are of the release before: the public repository does not give out its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster, start_all
from sparkmirror.testing.jvm import KAFKA_VERSIONS
from tests.kafka.clusters.authorized import Authorized, authorized_pair
from tests.kafka.control.test_topic_sync import (
    alias,
    test_acls_follow_the_source_and_are_never_removed,
)
from tests.kafka.harness.mirror_process import MirrorProcess, write_mm2
from tests.kafka.harness.support import (
    Sent,
    consume_all,
    create_topic,
    produce,
    produce_transaction,
    wait_until_equal,
)
from tests.kafka.java_peers.test_java_reads_ours import (
    ALIASES,
    test_groups_fail_over_and_back_with_javas_client,
)
from tests.kafka.java_peers.test_takeover import test_java_then_sparkmirror_then_java
from tests.kafka.security.test_acls import (
    test_owners_of_a_group_take_describe_on_every_topic_that_it_reads,
)

__all__ = [
    "alias",
    "test_acls_follow_the_source_and_are_never_removed",
    "test_groups_fail_over_and_back_with_javas_client",
    "test_java_then_sparkmirror_then_java",
    "test_owners_of_a_group_take_describe_on_every_topic_that_it_reads",
]

pytestmark = pytest.mark.matrix

_NEWEST = KAFKA_VERSIONS[-1]


@pytest.fixture(scope="module")
def authorized() -> Iterator[tuple[Authorized, Authorized]]:
    with authorized_pair(version=_NEWEST) as clusters:
        yield clusters


@pytest.fixture
def ends(authorized: tuple[Authorized, Authorized]) -> tuple[KafkaCluster, KafkaCluster]:
    return authorized[0].kafka, authorized[1].kafka


@pytest.fixture
def clusters() -> Iterator[dict[str, KafkaCluster]]:
    """Those of `test_java_reads_ours`."""
    found = {name: KafkaCluster(name, version=_NEWEST, heap="300m") for name in ALIASES}
    start_all(*found.values())
    try:
        yield found
    finally:
        for cluster in found.values():
            cluster.stop()


@pytest.fixture
def pair(clusters: dict[str, KafkaCluster]) -> tuple[KafkaCluster, KafkaCluster]:
    """Those of `test_takeover`."""
    source, target, _ = clusters.values()
    return source, target


@pytest.mark.parametrize("extra", [[], ["--exactly-once"]], ids=["at-least-once", "exactly-once"])
def test_a_mirror_goes_on_where_it_ended(
    ends: tuple[KafkaCluster, KafkaCluster], tmp_path: Path, extra: list[str]
) -> None:
    """Committed records arrive, aborted ones do not, none twice."""
    a, b = ends
    topic, name = f"t-{uuid.uuid4().hex[:8]}", f"S{uuid.uuid4().hex[:8]}"
    create_topic(a, topic, 3)
    path = write_mm2(tmp_path / "mm2.properties", a, b, topic, source=name)
    for number in range(2):
        produce(a, topic, [Sent(b"%d" % n, partition=n % 3) for n in range(300)])
        for commit in (True, False):
            produce_transaction(a, topic, [Sent(b"t", partition=1)] * 5, commit=commit)
        run = MirrorProcess(tmp_path, ["run", str(path), "--once", *extra])
        assert run.wait() == 0, run.text()
        wait_until_equal(a, topic, b, f"{name}.{topic}")
        assert len(consume_all(b, f"{name}.{topic}")) == 305 * (number + 1)


def test_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--records", "2000", "--seconds", "2", "--no-live"]
    assert main(["demo", "--kafka-version", _NEWEST, *small]) == 0
    shown = capsys.readouterr().out
    assert f"Kafka {_NEWEST}: " in shown
    assert "are equal" in shown


def test_the_demo_runs_on_releases_that_it_was_tried_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["demo", "--kafka-version", "1.0.0"]) == 2
    assert "4.3.0 or 4.4.0" in capsys.readouterr().err
