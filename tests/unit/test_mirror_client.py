"""MirrorClient: what names and checkpoints say, and which settings count."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import sparkmirror
from sparkmirror.client import MirrorClient, OffsetAndMetadata, latest_checkpoints
from sparkmirror.config.mirror_client import mirror_client_settings
from sparkmirror.errors import ConfigError
from sparkmirror.internal_topics.mm2_records import Checkpoint, encode_checkpoint
from sparkmirror.internal_topics.remote_names import (
    REMOTE_NAMES_TOPIC,
    RemoteName,
    encode_remote_name,
)
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import make_policy
from sparkmirror.settings import PolicySettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import TopicView

SERVERS = {"bootstrap.servers": "b:9092"}


class Named(Cluster):
    """A cluster that has topics of these names; nothing is asked over the network."""

    def __init__(self, names: Iterable[str]) -> None:
        self._named = tuple(names)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicView]:
        return {name: TopicView(name, "", 1, 1, internal=name == "__consumer_offsets")
                for name in self._named if names is None or name in names}  # fmt: skip


def client(
    names: Iterable[str], policy: PolicySettings | None = None, alias: str | None = None
) -> MirrorClient:
    return MirrorClient.of(Named(names), make_policy(policy or PolicySettings(), alias))


HEARTBEATS = ["heartbeats", "A.heartbeats", "B.A.heartbeats", "C.B.A.heartbeats", "A.D.heartbeats"]


def test_hops_and_upstream_clusters_come_from_heartbeats() -> None:
    asked = client([*HEARTBEATS, "E.t", "heartbeats.x", "x-heartbeats"])
    assert asked.heartbeat_topics() == set(HEARTBEATS)
    assert asked.upstream_clusters() == {"A", "B", "C", "D"}
    hops = {alias: asked.replication_hops(alias) for alias in "ABCDE"}
    assert hops == {"A": 1, "B": 1, "C": 1, "D": 2, "E": -1}


def test_a_cluster_that_repeats_in_a_name_ends_the_chain() -> None:
    asked = client(["A.B.A.C.heartbeats"])
    assert asked.upstream_clusters() == {"A", "B"}
    assert asked.replication_hops("C") == -1


def test_the_local_heartbeats_name_no_cluster() -> None:
    asked = client(["heartbeats", "t"])
    assert asked.heartbeat_topics() == {"heartbeats"}
    assert asked.upstream_clusters() == set()
    assert asked.replication_hops("A") == -1


def test_remote_topics() -> None:
    names = ["t", "A.t", "B.A.t", "A.heartbeats", "A.checkpoints.internal", "__consumer_offsets",
             "mm2-offset-syncs.B.internal", "my.topic", ".x"]  # fmt: skip
    asked = client(names)
    assert asked.remote_topics() == {"A.t", "B.A.t", "A.heartbeats", "my.topic"}
    assert asked.remote_topics("A") == {"A.t", "A.heartbeats"}
    assert asked.remote_topics("C") == set()
    assert asked.checkpoint_topics() == {"A.checkpoints.internal"}


def test_a_separator_of_ones_own() -> None:
    names = ["A_t", "A.t", "A_heartbeats", "A_checkpoints_internal", "A.checkpoints.internal"]
    asked = client(names, PolicySettings(separator="_"))
    assert asked.remote_topics() == {"A_t", "A_heartbeats"}
    assert asked.checkpoint_topics() == {"A_checkpoints_internal"}
    assert asked.replication_hops("A") == 1
    old = client(names, PolicySettings(separator="_", internal_separator_enabled=False))
    assert old.checkpoint_topics() == {"A.checkpoints.internal"}


def test_the_identity_policy() -> None:
    names = ["t", "A.heartbeats", "heartbeats", "A.checkpoints.internal", "__x"]
    asked = client(names, PolicySettings(kind="identity"), "A")
    assert asked.remote_topics() == {"t", "A.heartbeats"}
    assert asked.remote_topics("A") == {"t", "A.heartbeats"}
    assert asked.upstream_clusters() == {"A"}
    nameless = client(names, PolicySettings(kind="identity"))
    assert nameless.remote_topics() == {"A.heartbeats"}


def test_topics_that_a_map_has_named() -> None:
    rows = [
        RemoteName("tenant.t", "A", "A", "eu.t"),
        RemoteName("A.u", "A", "A", "u"),
        RemoteName("C.x", "A", "A", "x"),  # by its name it would be of C
        RemoteName("gone", "A", "A", "y"),
        RemoteName("old", "A", "A", "z", past=True),
    ]

    class Mapped(Named):
        def read_compacted(self, topic: str, **_: object) -> Iterator[tuple[int, bytes, bytes]]:
            assert topic == REMOTE_NAMES_TOPIC
            yield from [(0, *encode_remote_name(row)) for row in rows]

    names = ["tenant.t", "A.u", "C.x", "C.w", "own", "old", REMOTE_NAMES_TOPIC]
    asked = MirrorClient.of(Mapped(names), make_policy(PolicySettings(), None))
    assert asked.remote_topics() == {"tenant.t", "A.u", "C.x", "C.w", "old"}
    assert asked.remote_topics("A") == {"tenant.t", "A.u", "C.x", "old"}
    assert asked.remote_topics("C") == {"C.w"}
    assert asked.topic_origin("tenant.t") == ("A", "eu.t")
    assert asked.topic_origin("C.x") == ("A", "x")
    assert asked.topic_origin("C.w") == ("C", "w")
    assert asked.topic_origin("own") is None


def test_where_a_topic_comes_from_without_a_map() -> None:
    asked = client(["A.t", "t"])
    assert asked.topic_origin("A.t") == ("A", "t")
    assert asked.topic_origin("t") is None
    assert asked.topic_origin("mm2-offsets.A.internal") is None


def test_the_last_checkpoint_counts_and_what_is_none_is_passed_over() -> None:
    tp = TopicPartition("A.t", 0)
    first, last = Checkpoint("g", tp, 5, 4), Checkpoint("g", tp, 9, 8, "meta")
    other = Checkpoint("h", tp, 1, 1)
    key, value = encode_checkpoint(last)
    records = [
        (0, *encode_checkpoint(first)),
        (0, key, value),
        (0, *encode_checkpoint(other)),
        (0, key, None),
        (0, None, value),
        (0, key, value[:-1]),
        (0, key, b"\0\1" + value[2:]),  # a version that does not exist
    ]
    assert latest_checkpoints(records) == {("g", tp): last, ("h", tp): other}


def test_null_arguments_are_errors() -> None:
    asked = client([])
    with pytest.raises(TypeError, match="group"):
        asked.remote_consumer_offsets(None, "A")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="regex"):
        asked.remote_consumer_offsets_matching(None, "A")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="remote_alias"):
        asked.remote_consumer_offsets("g", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="invalid regex"):
        asked.remote_consumer_offsets_matching("(", "A")


def test_which_settings_reach_the_clients() -> None:
    settings = mirror_client_settings(
        {
            **SERVERS,
            "consumer.bootstrap.servers": "c:9092",
            "consumer.client.id": "mine",
            "group.id": "a-consumers-own-key",
            "admin.security.protocol": "SSL",
            "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
            "replication.policy.separator": "-",
            "source.cluster.alias": "A",
        },
        request_timeout_ms=5,
    )
    assert settings.admin.bootstrap_servers == ("b:9092",)
    assert settings.admin.security_protocol == "SSL"
    assert settings.consumer.bootstrap_servers == ("c:9092",)
    assert settings.consumer.security_protocol == "PLAINTEXT"
    assert settings.consumer.client_id == settings.admin.client_id == "sparkmirror-client"
    assert settings.consumer.request_timeout_ms == 5
    assert settings.policy == PolicySettings(kind="identity", separator="-")
    assert settings.source_alias == "A"


def test_security_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "hunter2")
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=b:9092\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "config.providers=env\n"
        "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="${env:WORD}";\n'
    )
    settings = mirror_client_settings(file)
    assert 'password="hunter2"' in settings.admin.properties["sasl.jaas.config"]
    assert "hunter2" not in repr(settings)
    MirrorClient(str(file)).close()


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({}, "bootstrap.servers is missing"),
        ({"bootstrap.servers": ""}, "bootstrap.servers is empty"),
        ({"bootstrap.servers": "b"}, "not host:port"),
        ({**SERVERS, "replication.policy.class": "com.example.Mine"}, "not a policy"),
        ({**SERVERS, "replication.policy.internal.topic.separator.enabled": "x"}, "neither true"),
        ({**SERVERS, "security.protocol": "abc"}, "abc"),
        ({**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.jaas"),
    ],
)
def test_wrong_settings(properties: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        MirrorClient(properties)


def test_the_package_offers_it_without_being_slower_to_import() -> None:
    assert sparkmirror.MirrorClient is MirrorClient
    assert sparkmirror.OffsetAndMetadata is OffsetAndMetadata
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sparkmirror.nothing  # noqa: B018
    code = "import sys, sparkmirror; sys.exit('kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
