"""Topics that records are routed to are created by the mirror, and no more than it may create."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import (
    Sent,
    admin,
    consume_all,
    create_topic,
    delete_topic,
    produce,
    topic_config,
    topic_names,
)
from tests.patience import others_per_core

EXACTLY_ONCE = ("--exactly-once",)
TENANT = "get_json_object(CAST(value AS STRING), '$.tenant')"


@pytest.fixture
def name() -> str:
    """Of the source, too: the mirror remembers what it has created for a flow."""
    return f"create-{uuid.uuid4().hex[:8]}"


def _sent(*tenants: str) -> list[Sent]:
    return [
        Sent(json.dumps({"n": n, "tenant": tenant}).encode(), b"k%d" % n, partition=n % 3)
        for n, tenant in enumerate(tenants)
    ]


def _file(
    directory: Path, a: KafkaCluster, b: KafkaCluster, name: str, select: str, **more: str
) -> Path:
    extra = {
        "transforms": "route",
        "transform.route.topics": f"{name}[.]orders",
        "transform.route.select": select,
    }
    keys = {f"{name}->B.sparkmirror.{key}": value for key, value in (extra | more).items()}
    path = directory / "mm2.properties"
    return write_mm2(path, a, b, f"{name}.*", keys, source=name)


def _run(directory: Path, *arguments: str) -> MirrorProcess:
    return MirrorProcess(directory, ["run", *arguments, "--work-dir", str(directory / "work")])


def _once(directory: Path, *arguments: str) -> str:
    mirror = _run(directory, *arguments, "--once")
    assert mirror.wait() == 0, mirror.text()
    return mirror.text()


def _asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--format", "json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def _partitions(cluster: KafkaCluster, topic: str) -> int:
    return len(admin(cluster).list_topics(topic, 10).topics[topic].partitions)


@pytest.mark.more
@pytest.mark.parametrize("mode", [(), pytest.param(EXACTLY_ONCE, marks=pytest.mark.long)])
def test_a_new_tenant_has_its_topic_in_a_moment(
    mode: tuple[str, ...],
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
) -> None:
    orders, tenant = f"{name}.orders", f"t.{name}"
    create_topic(cluster_a, orders, 3, config={"retention.ms": "123456789"})
    select = f"concat('{tenant}.', {TENANT}) AS topic"
    path = _file(tmp_path, cluster_a, cluster_b, name, select)
    produce(cluster_a, orders, _sent("eu", "us", "eu", "us"))
    mirror = _run(tmp_path, str(path), *mode)
    try:
        wait_until(lambda: _count(cluster_b, f"{tenant}.us") == 2, "the first tenants")
        took = []
        for new in ("x", "y", "z"):
            began = time.monotonic()
            produce(cluster_a, orders, _sent(new, "eu", new))
            wait_until(lambda new=new: _count(cluster_b, f"{tenant}.{new}") == 2, new)  # type: ignore[misc]
            took.append(time.monotonic() - began)
        # A topic that somebody deletes is created again.
        delete_topic(cluster_b, f"{tenant}.x")
        assert mirror.drain()[0] == 0, mirror.text()
    finally:
        mirror.kill()
    print("seconds until a new tenant's records were there:", took)
    assert min(took) < 3 * others_per_core()
    assert _count(cluster_b, f"{tenant}.eu") == 5
    assert _partitions(cluster_b, f"{tenant}.y") == 3
    assert topic_config(cluster_b, f"{tenant}.y")["retention.ms"] == "123456789"
    assert f"B: created topic {tenant}.y with 3 partitions" in mirror.text()
    produce(cluster_a, orders, _sent("x"))
    _once(tmp_path, str(path), *mode)
    assert _count(cluster_b, f"{tenant}.x") == 1


def _count(cluster: KafkaCluster, topic: str) -> int:
    return len(consume_all(cluster, topic)) if topic in topic_names(cluster) else 0


@pytest.mark.more
@pytest.mark.parametrize("mode", [EXACTLY_ONCE, pytest.param((), marks=pytest.mark.long)])
def test_one_topic_too_many_is_a_dead_letter(
    mode: tuple[str, ...],
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The limit is that of all runs; a name for all records is created at the start."""
    orders, tenant = f"{name}.orders", f"t.{name}"
    create_topic(cluster_a, orders, 3)
    more = {"on.bad.record": "dead-letter", "routing.create.topics.max": "2"}
    path = _file(
        tmp_path, cluster_a, cluster_b, name, f"concat('{tenant}.', {TENANT}) AS topic", **more
    )
    told = _asked(capsys, "plan", str(path))["flows"][0]["pass_through"]["transformed"][0]
    assert told["reason"] == "routes records and creates up to 2 topics for them (select)"
    produce(cluster_a, orders, _sent("eu", "us"))
    _once(tmp_path, str(path), *mode)
    produce(cluster_a, orders, _sent("eu", "hostile1", "hostile2", "us"))
    _once(tmp_path, str(path), *mode)
    assert [_count(cluster_b, f"{tenant}.{one}") for one in ("eu", "us")] == [2, 2]
    assert not [one for one in topic_names(cluster_b) if f"{tenant}.hostile" in one]
    letters = consume_all(cluster_b, f"{name}.{orders}.dead-letter")
    assert {json.loads(one.value or b"")["tenant"] for one in letters} == {"hostile1", "hostile2"}
    reason = dict(letters[0].headers)["sparkmirror.error.reason"]
    assert b"sparkmirror.routing.create.topics.max=2 allows no more topics" in (reason or b"")

    path = _file(tmp_path, cluster_a, cluster_b, name, f"'{tenant}.all' AS topic", **more)
    changes = _asked(capsys, "plan", str(path))["flows"][0]["changes"]
    assert [one["partitions"] for one in changes if one["subject"] == f"{tenant}.all"] == [3]
    produce(cluster_a, orders, _sent("x", "y"))
    said = _once(tmp_path, str(path), *mode)
    assert f"B: created topic {tenant}.all with 3 partitions" in said
    assert _count(cluster_b, f"{tenant}.all") == 2


@pytest.mark.more
def test_timestamp_router_has_a_topic_per_day(
    name: str, cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """The other topic, and heartbeats, stay as they are."""
    orders, plain = f"{name}.orders", f"{name}.plain"
    days = {
        "2023-11-14": 1_700_000_000_000,
        "2023-11-15": 1_700_006_400_000,
        "2024-02-29": 1_709_251_199_999,
    }
    for topic in (orders, plain):
        create_topic(cluster_a, topic, 2)
        sent = [
            Sent(day.encode(), b"k", (), days[day], n % 2) for n, day in enumerate(sorted(days) * 4)
        ]
        produce(cluster_a, topic, sent)
    path = write_mm2(
        tmp_path / "mm2.properties", cluster_a, cluster_b, f"{orders},{plain}",
        {
            f"{name}->B.transforms": "day",
            f"{name}->B.transforms.day.type": "TimestampRouter",
            f"{name}->B.transforms.day.topic.format": "${topic}.${timestamp}",
            f"{name}->B.transforms.day.timestamp.format": "yyyy-MM-dd",
            f"{name}->B.transforms.day.predicate": "orders",
            f"{name}->B.predicates": "orders",
            f"{name}->B.predicates.orders.type": "TopicNameMatches",
            f"{name}->B.predicates.orders.pattern": f"{name}[.]{orders}",
        },
        source=name,
    )  # fmt: skip
    _once(tmp_path, str(path))
    for day in days:
        got = consume_all(cluster_b, f"{name}.{orders}.{day}")
        assert [one.value for one in got] == [day.encode()] * 4
        assert _partitions(cluster_b, f"{name}.{orders}.{day}") == 2
    assert consume_all(cluster_b, f"{name}.{orders}") == []
    assert len(consume_all(cluster_b, f"{name}.{plain}")) == 12
    found = {one for one in topic_names(cluster_b) if one.startswith(f"{name}.{name}")}
    assert found == {f"{name}.{plain}", f"{name}.{orders}"} | {
        f"{name}.{orders}.{day}" for day in days
    }
