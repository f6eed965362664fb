"""Scoping and precedence: the configurations that Java's MirrorMaker 2 derives from a file."""

from collections.abc import Mapping
from typing import Any

import pytest

from sparkmirror.config.files.origin import Origin
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.mm2.scoping import (
    admin_config,
    cluster_pairs,
    connector_config,
    consumer_config,
    data_producer_config,
    producer_config,
    worker_config,
)
from tests.vectors import load

VECTOR = load("mm_config")
GENERATED = load("scoping")["cases"]


def _raw(text: Mapping[str, str]) -> dict[str, Entry]:
    return {
        key: Entry(key, value, Origin.in_file(f"f:{line}"))
        for line, (key, value) in enumerate(text.items(), 1)
    }


def _texts(conf: Mapping[str, Entry]) -> dict[str, str]:
    return {key: entry.value for key, entry in conf.items()}


RAW = _raw(VECTOR["input"])


def test_pairs() -> None:
    pairs = [f"{source}->{target}" for source, target in cluster_pairs(RAW, ("A", "B", "C"))]
    assert pairs == VECTOR["clusterPairs"]


def test_worker() -> None:
    assert _texts(worker_config(RAW, "A", "B")) == VECTOR["workerConfig A->B"]


@pytest.mark.parametrize(
    ("name", "source", "target", "connector"),
    [
        ("connectorBaseConfig A->B MirrorSourceConnector", "A", "B", "MirrorSourceConnector"),
        (
            "connectorBaseConfig B->A MirrorHeartbeatConnector (flow not enabled)",
            "B",
            "A",
            "MirrorHeartbeatConnector",
        ),
    ],
)
def test_connector(name: str, source: str, target: str, connector: str) -> None:
    assert _texts(connector_config(RAW, source, target, connector)) == VECTOR[name]


def test_clients_of_the_connector() -> None:
    conf = connector_config(RAW, "A", "B")
    for name, derived in (
        (
            "source consumer config (role replication-consumer)",
            consumer_config(conf, "source", "replication-consumer"),
        ),
        ("source admin config", admin_config(conf, "source", "replication-source-admin")),
        ("target admin config", admin_config(conf, "target", "replication-target-admin")),
        (
            "offset syncs producer config",
            producer_config(conf, "source", "offset-syncs-source-producer"),
        ),
        ("target producer config", producer_config(conf, "target", "x")),
    ):
        assert _texts(derived) == VECTOR[name], name


def test_the_data_producer_is_the_workers_with_the_overrides() -> None:
    producer = data_producer_config(worker_config(RAW, "A", "B"), connector_config(RAW, "A", "B"))
    assert _texts(producer) == {
        "bootstrap.servers": "b:2",
        "client.id": "connector-producer-MirrorSourceConnector",
        "compression.type": "lz4",
        "linger.ms": "7",
        "security.protocol": "SSL",
        "ssl.truststore.password": "secret",
    }


@pytest.mark.parametrize("case", GENERATED, ids=range(len(GENERATED)))
def test_generated_files(case: dict[str, Any]) -> None:
    raw, expected = _raw(case["input"]), case["expected"]
    aliases = [alias.strip() for alias in case["input"]["clusters"].split(",")]
    pairs = {f"{source}->{target}" for source, target in cluster_pairs(raw, aliases)}
    assert pairs == set(expected["pairs"])
    for flow in ("A,B", "B,A"):
        source, target = flow.split(",")
        conf = connector_config(raw, source, target)
        assert _texts(worker_config(raw, source, target)) == expected[f"w {flow}"]
        assert _texts(conf) == expected[f"c {flow}"]
        assert _texts(consumer_config(conf, "source", "r")) == expected[f"sc {flow}"]
        assert _texts(admin_config(conf, "source", "r")) == expected[f"sa {flow}"]
        assert _texts(admin_config(conf, "target", "r")) == expected[f"ta {flow}"]
        assert _texts(producer_config(conf, "source", "r")) == expected[f"sp {flow}"]
        assert (conf["enabled"].value == "true") == expected[f"enabled {flow}"]


@pytest.mark.parametrize(
    ("settings", "pairs"),
    [
        ({}, 6),
        ({"emit.heartbeats.enabled": "false"}, 0),
        (
            {"a->b.emit.heartbeats.enabled": "false", "a->c.emit.heartbeats.enabled": "false"},
            4,
        ),
        ({"emit.heartbeats.enabled": "false", "a->b.enabled": "true"}, 1),
        (
            {
                "emit.heartbeats.enabled": "false",
                "a->b.enabled": "true",
                "c->a.emit.heartbeats.enabled": "true",
            },
            2,
        ),
    ],
)
def test_pairs_by_heartbeats_and_enabled_flows(settings: dict[str, str], pairs: int) -> None:
    assert len(list(cluster_pairs(_raw(settings), ("a", "b", "c")))) == pairs


def test_a_value_keeps_the_line_it_came_from() -> None:
    conf = connector_config(RAW, "A", "B")
    entry = consumer_config(conf, "source", "r")["isolation.level"]
    assert entry.key == "A.consumer.isolation.level"
    assert entry.where == RAW["A.consumer.isolation.level"].where
