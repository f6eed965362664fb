"""MirrorMaker 2's own unit tests of its configuration, on our loader.

Each test has the name of the one in Apache Kafka, in our spelling: see docs/compatibility.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkmirror.config.files.origin import Origin
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.mm2.scoping import cluster_pairs, connector_config, worker_config
from sparkmirror.names.replication_policy import FlowTopics, TopicFilter
from tests.unit.config_files import BASE, LINE, QUIET, load, load_flow, refused

PACKAGE = "org.apache.kafka.common.config.provider."
ENV = f"config.providers=env\nconfig.providers.env.class={PACKAGE}EnvVarConfigProvider\n"


def _raw(lines: str) -> dict[str, Entry]:
    pairs = [line.split("=", 1) for line in lines.splitlines() if line]
    return {key: Entry(key, value, Origin.in_file("f:1")) for key, value in pairs}


def _connector(lines: str) -> dict[str, str]:
    conf = connector_config(_raw(BASE + lines), "A", "B")
    return {key: entry.value for key, entry in conf.items()}


# --- MirrorMakerConfigTest ------------------------------------------------------------------


def test_cluster_config_properties() -> None:
    conf = _connector("security.protocol=SSL\nreplication.factor=4\n")
    assert conf["source.cluster.bootstrap.servers"] == "a:9092"
    assert conf["target.cluster.bootstrap.servers"] == "b:9092"
    assert conf["source.cluster.security.protocol"] == "SSL"
    assert conf["replication.factor"] == "4"


def test_replication_config_properties() -> None:
    assert _connector("A->B.tasks.max=123\n")["tasks.max"] == "123"


def test_client_config_properties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's key goes before its cluster's, that before the top level's."""
    monkeypatch.setenv("PROTOCOL", "ssl")
    settings = load(
        tmp_path,
        BASE + ENV + "security.protocol=${env:PROTOCOL}\nA.security.protocol=PLAINTEXT\n"
        "B.producer.security.protocol=plaintext\nreplication.policy.separator=__\n",
    )
    (flow,) = settings.flows
    assert flow.source.security_protocol == "PLAINTEXT"
    assert flow.source_admin.security_protocol == "PLAINTEXT"
    assert flow.target.security_protocol == "PLAINTEXT"
    assert flow.target_admin.security_protocol == "SSL"
    assert flow.policy.separator == "__"


def test_includes_connector_config_properties() -> None:
    lines = {
        "tasks.max": "100", "topics": "topic-1", "groups": "group-2", "groups.exclude": "group-3",
        "topics.exclude": "topic-4", "config.properties.exclude": "property-3",
        "metric.reporters": "FakeMetricsReporter", "topic.filter.class": "FakeTopicFilter",
    }  # fmt: skip
    conf = _connector("".join(f"{k}={v}\n" for k, v in lines.items()) + "xxx=yyy\n")
    assert {key: conf.get(key) for key in lines} == lines
    assert "xxx" not in conf


def test_includes_topic_filter_properties(tmp_path: Path) -> None:
    flow = load_flow(tmp_path, "A->B.topics=topic1, topic2\nA->B.topics.exclude=topic3\n")
    assert flow.topics.include == ("topic1", "topic2")
    assert flow.topics.exclude == ("topic3",)


def test_worker_configs() -> None:
    raw = _raw(
        "A.bootstrap.servers=a:1\nB.bootstrap.servers=b:1\nB.client.id=client-one\n"
        "offset.storage.replication.factor=123\nB.security.protocol=SSL\n"
        "B.producer.ssl.key.password=one\nreplication.policy.separator=__\n"
    )
    conf = {key: entry.value for key, entry in worker_config(raw, "A", "B").items()}
    assert conf["client.id"] == "client-one"
    assert conf["offset.storage.replication.factor"] == "123"
    assert {conf[f"{each}security.protocol"] for each in ("producer.", "consumer.", "admin.")} == {
        "SSL"
    }
    assert conf["producer.ssl.key.password"] == "one"
    assert conf["replication.policy.separator"] == "__"


def _pairs(lines: str) -> set[str]:
    return {f"{s}->{t}" for s, t in cluster_pairs(_raw(lines), ("a", "b", "c"))}


def test_cluster_pairs_with_default_settings() -> None:
    assert _pairs("") == {"a->b", "a->c", "b->a", "b->c", "c->a", "c->b"}


def test_empty_cluster_pairs_with_globally_disabled_heartbeats() -> None:
    assert _pairs("emit.heartbeats.enabled=false") == set()


def test_cluster_pairs_with_two_disabled_heartbeats() -> None:
    off = "a->b.emit.heartbeats.enabled=false\na->c.emit.heartbeats.enabled=false"
    assert _pairs(off) == {"b->a", "b->c", "c->a", "c->b"}


def test_cluster_pairs_with_globally_disabled_heartbeats() -> None:
    some = "emit.heartbeats.enabled=false\na->b.enabled=true\nc->b.emit.heartbeats.enabled=true"
    assert _pairs(some) == {"a->b", "c->b"}


def test_cluster_pairs_with_globally_disabled_heartbeats_central_local() -> None:
    central = "emit.heartbeats.enabled=false\na->c.enabled=true\nb->c.enabled=true"
    assert _pairs(central) == {"a->c", "b->c"}


@pytest.mark.parametrize("key", ["", "A.", "A.admin.", "B.producer.", "A.consumer."])
def test_invalid_security_protocol(tmp_path: Path, key: str) -> None:
    assert "security.protocol=abc" in refused(tmp_path, BASE + f"{key}security.protocol=abc\n").what


def test_case_insensitive_security_protocol(tmp_path: Path) -> None:
    flow = load_flow(tmp_path, "security.protocol=ssl\n")
    assert flow.source.security_protocol == flow.target_admin.security_protocol == "SSL"


def test_all_config_names(tmp_path: Path) -> None:
    lines = "topics=t\ngroups=g\nemit.heartbeats.enabled=false\n"
    settings = load(tmp_path, BASE + lines)
    assert settings.flows[0].topics.include == ("t",)
    assert settings.flows[0].checkpoints.include == ("g",)
    assert settings.heartbeats == ()


# --- MirrorConnectorConfigTest --------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["A.consumer.", "A->B.source.consumer.", "A->B.consumer."])
def test_source_consumer_config(tmp_path: Path, prefix: str) -> None:
    flow = load_flow(tmp_path, f"{prefix}fetch.max.wait.ms=123\n")
    assert flow.fetch.fetch_max_wait_ms == 123
    assert flow.fetch.auto_offset_reset == "earliest"
    flow = load_flow(tmp_path, f"{prefix}auto.offset.reset=latest\n")
    assert flow.fetch.auto_offset_reset == "latest"


@pytest.mark.parametrize("prefix", ["A->B.producer.", "A->B.source.producer.", "A.producer."])
def test_source_producer_config(tmp_path: Path, prefix: str) -> None:
    """The connector's producer at the source is that of the offset syncs."""
    flow = load_flow(tmp_path, f"{prefix}acks=1\n")
    assert flow.offset_syncs.produce.acks == 1
    assert flow.produce.acks == -1


@pytest.mark.parametrize("prefix", ["A.admin.", "A->B.source.admin."])
def test_source_admin_config(tmp_path: Path, prefix: str) -> None:
    flow = load_flow(tmp_path, f"{prefix}request.timeout.ms=9\n")
    assert flow.source_admin.request_timeout_ms == 9
    assert flow.target_admin.request_timeout_ms == 30_000


@pytest.mark.parametrize("prefix", ["B.admin.", "A->B.target.admin."])
def test_target_admin_config(tmp_path: Path, prefix: str) -> None:
    flow = load_flow(tmp_path, f"{prefix}request.timeout.ms=9\n")
    assert flow.target_admin.request_timeout_ms == 9
    assert flow.source_admin.request_timeout_ms == 30_000


def test_metrics_reporters(tmp_path: Path) -> None:
    """There are no Java classes here that could report; who asks for some is told, key by key.

    Metrics have one address instead, whatever reporters are named.
    """
    listen = "sparkmirror.metrics.listen=127.0.0.1:9400\n"
    plain = load(tmp_path, BASE + QUIET + listen)
    assert plain.warnings == ()
    two = "org.apache.kafka.common.metrics.JmxReporter,org.example.Reporter"
    text = f"metric.reporters={two}\nB.producer.metric.reporters={two}\n"
    named = load(tmp_path, BASE + QUIET + listen + text)
    (told,) = named.warnings
    line = LINE + QUIET.count("\n") + 1
    keys = f"metric.reporters (line {line}), B.producer.metric.reporters (line {line + 1})"
    assert f"ignored: {keys}: there are no JMX metrics; see sparkmirror.metrics.listen" in told
    assert named.metrics == plain.metrics
    assert plain.metrics.listen == "127.0.0.1:9400"


# --- MirrorSourceConfigTest, MirrorCheckpointConfigTest -------------------------------------


def test_topic_matching(tmp_path: Path) -> None:
    topics = FlowTopics(load_flow(tmp_path, "topics=topic1\n"))
    assert topics.accepts("topic1")
    assert not topics.accepts("topic2")


def test_config_property_matching(tmp_path: Path) -> None:
    exclude = load_flow(tmp_path, "config.properties.exclude=prop2\n").topics
    kept = TopicFilter((".*",), exclude.config_properties_exclude)
    assert kept.accepts("prop1")
    assert not kept.accepts("prop2")


def test_no_topics(tmp_path: Path) -> None:
    topics = FlowTopics(load_flow(tmp_path, "topics=\n"))
    assert not any(topics.accepts(name) for name in ("topic1", "topic2", ""))


def test_all_topics(tmp_path: Path) -> None:
    topics = FlowTopics(load_flow(tmp_path, "topics=.*\n"))
    assert all(topics.accepts(name) for name in ("topic1", "topic2"))


def test_list_of_topics(tmp_path: Path) -> None:
    topics = FlowTopics(load_flow(tmp_path, "topics=topic1, topic2\n"))
    assert [topics.accepts(f"topic{n}") for n in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(("location", "server"), [("source", "a:9092"), ("target", "b:9092")])
def test_client_of_the_offset_syncs_topic(tmp_path: Path, location: str, server: str) -> None:
    """``testOffsetSyncsTopic``, and where its producer and admin client go."""
    flow = load_flow(tmp_path, f"offset-syncs.topic.location={location}\n")
    assert flow.offset_syncs.location == location
    assert flow.offset_syncs.client is not None
    assert flow.offset_syncs.client.bootstrap_servers == (server,)
    error = refused(tmp_path, BASE + "offset-syncs.topic.location=something\n")
    assert "offset-syncs.topic.location" in error.what


def test_group_matching(tmp_path: Path) -> None:
    flow = load_flow(tmp_path, "groups=group1\n")
    groups = TopicFilter(flow.checkpoints.include, flow.checkpoints.exclude)
    assert groups.accepts("group1")
    assert not groups.accepts("group2")


def test_validate_if_connector_enabled(tmp_path: Path) -> None:
    """What Java only logs in a dedicated mirror is a remark: checkpoints without offset syncs."""
    told = load(tmp_path, BASE + "emit.offset-syncs.enabled=false\n").warnings
    assert any("emit.checkpoints.enabled=true has no effect" in line for line in told)


def test_skip_validation_if_connector_disabled(tmp_path: Path) -> None:
    off = "emit.checkpoints.enabled=false\nemit.offset-syncs.enabled=false\n"
    assert load(tmp_path, BASE + off).warnings == ()
