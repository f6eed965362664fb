"""What a MirrorMaker 2 file becomes: flows, typed settings and remarks."""

import pickle
from pathlib import Path

import pytest

from sparkmirror.cli.shared.secrets import hide_secrets
from sparkmirror.errors import ConfigError
from sparkmirror.model import MirrorMode
from sparkmirror.offset_reset import EARLIEST, LATEST, duration_ms, reset_time_ms
from sparkmirror.settings import FaultSettings, FetchSettings, PolicySettings, ProduceSettings
from tests.certificates import PASSWORD, Authority
from tests.tutorials import TWO_WAYS_OVER_TLS
from tests.unit.config_files import BASE, LINE, QUIET, load, load_flow, refused


def test_the_least_file(tmp_path: Path) -> None:
    settings = load(tmp_path, BASE)
    assert settings.clusters == ("A", "B")
    assert settings.mode is MirrorMode.MM2
    (flow,) = settings.flows
    assert flow.name == "A->B"
    assert flow.enabled
    assert flow.source.bootstrap_servers == ("a:9092",)
    assert flow.target.bootstrap_servers == ("b:9092",)
    assert flow.fetch == FetchSettings()
    assert flow.produce == ProduceSettings()
    assert flow.policy == PolicySettings(aliases=("A", "B"))
    assert flow.offset_storage_topic == "mm2-offsets.A.internal"
    assert flow.position_interval_ms == 1_000
    assert flow.source.client_id == "A->B|MirrorSourceConnector|replication-consumer"
    assert flow.source_admin.client_id == "A->B|MirrorSourceConnector|replication-source-admin"
    assert flow.target_admin.client_id == "A->B|MirrorSourceConnector|replication-target-admin"
    assert flow.target.client_id == "connector-producer-MirrorSourceConnector"
    assert flow.source.properties == {}
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_several_clusters_and_directions(tmp_path: Path) -> None:
    text = (
        "clusters = A, B, us.east\n"
        "A.bootstrap.servers = a:1,a2:1\nB.bootstrap.servers = b:1\n"
        "us.east.bootstrap.servers = [::1]:9092, PLAINTEXT://c:2\n"
        "A->B.enabled = true\nB->A.enabled = true\nA->us.east.enabled = TRUE\n"
        "A->us.east.topics = x\ntopics = y, z\n"
    )
    settings = load(tmp_path, text)
    assert [flow.name for flow in settings.flows] == ["A->B", "A->us.east", "B->A"]
    assert settings.flows[1].topics.include == ("x",)
    assert settings.flows[2].topics.include == ("y", "z")
    assert settings.flows[1].target.bootstrap_servers == ("[::1]:9092", "c:2")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_far_link_has_settings_of_its_own(tmp_path: Path, codec: str) -> None:
    extra = f"sparkmirror.link.joining=always\nA->B.sparkmirror.link.compression={codec}\n"
    produce = load_flow(tmp_path, BASE + extra).produce
    assert (produce.link_joining, produce.link_compression) == ("always", codec)


def test_what_is_read_again_over_a_far_link_has_a_bound(tmp_path: Path) -> None:
    assert load_flow(tmp_path, BASE).fetch.reread_bytes == 500_000
    extra = "A->B.sparkmirror.link.reread.bytes=0\n"
    assert load_flow(tmp_path, BASE + extra).fetch.reread_bytes == 0


def test_clusters_option_keeps_flows_to_these_targets(tmp_path: Path) -> None:
    text = BASE + "B->A.enabled=true\n"
    assert [flow.name for flow in load(tmp_path, text, ["A"]).flows] == ["B->A"]
    assert [flow.name for flow in load(tmp_path, text, ["A", "unheard-of"]).flows] == ["B->A"]
    assert len(load(tmp_path, text, ["A", "B"]).flows) == 2


def test_enabled_at_the_top_level_holds_for_every_pair(tmp_path: Path) -> None:
    text = BASE.replace("A->B.enabled=true", "enabled=true\nB->A.enabled=false")
    assert [flow.name for flow in load(tmp_path, text).flows] == ["A->B"]


def test_source_client(tmp_path: Path) -> None:
    flow = load_flow(
        tmp_path,
        "A.consumer.fetch.max.wait.ms=100\nA.consumer.fetch.min.bytes=7\n"
        "A.consumer.fetch.max.bytes=1000\nA.consumer.max.partition.fetch.bytes=500\n"
        "A.consumer.isolation.level=read_uncommitted\nA.consumer.auto.offset.reset=latest\n"
        "A.consumer.check.crcs=false\nA.consumer.client.rack=r1\n"
        "A.consumer.receive.buffer.bytes=65536\nA.consumer.request.timeout.ms=1\n"
        "A.consumer.reconnect.backoff.ms=2\nA.consumer.reconnect.backoff.max.ms=3\n"
        "A.consumer.retry.backoff.ms=4\nA.consumer.retry.backoff.max.ms=5\n"
        "A.consumer.metadata.max.age.ms=6\nA.consumer.socket.connection.setup.timeout.ms=7\n"
        "A.consumer.socket.connection.setup.timeout.max.ms=8\nA.consumer.client.id=me\n",
    )
    assert flow.fetch == FetchSettings(
        fetch_max_wait_ms=100,
        fetch_min_bytes=7,
        fetch_max_bytes=1000,
        partition_fetch_bytes_max=500,
        isolation_level="read_uncommitted",
        auto_offset_reset="latest",
        check_crcs=False,
        client_rack="r1",
        receive_buffer_bytes=65536,
    )
    source = flow.source
    assert (source.request_timeout_ms, source.reconnect_backoff_ms) == (1, 2)
    assert (source.reconnect_backoff_ms_max, source.retry_backoff_ms) == (3, 4)
    assert (source.retry_backoff_ms_max, source.metadata_age_ms_max) == (5, 6)
    assert (source.connect_timeout_ms, source.connect_timeout_ms_max) == (7, 8)
    assert source.client_id == "me|A->B|MirrorSourceConnector|replication-consumer"


def test_what_to_do_about_lost_data(tmp_path: Path) -> None:
    flow = load_flow(
        tmp_path,
        "sparkmirror.on.source.loss=fail\nA->B.sparkmirror.on.source.loss=record-and-continue\n"
        "sparkmirror.on.source.loss.fail.topics=pay.*,x\n"
        "A->B.sparkmirror.on.source.loss.record-and-continue.topics=logs\n",
    )
    assert flow.faults == FaultSettings("record-and-continue", ("pay.*", "x"), ("logs",))


def test_target_client(tmp_path: Path) -> None:
    flow = load_flow(
        tmp_path,
        "B.producer.acks=1\nB.producer.max.in.flight.requests.per.connection=3\n"
        "B.producer.delivery.timeout.ms=60000\nB.producer.max.request.size=2000\n"
        "B.producer.send.buffer.bytes=4096\nB.producer.client.id=p\n"
        "A->B.producer.override.request.timeout.ms=9\nB.admin.request.timeout.ms=10\n",
    )
    assert flow.produce == ProduceSettings(
        acks=1,
        enable_idempotence=False,
        in_flight_requests_max=3,
        delivery_timeout_ms=60000,
        request_bytes_max=2000,
        send_buffer_bytes=4096,
    )
    assert flow.target.client_id == "p"
    assert flow.target.request_timeout_ms == 9
    assert flow.target_admin.request_timeout_ms == 10
    assert flow.source_admin.request_timeout_ms == 30_000


@pytest.mark.parametrize(
    ("extra", "idempotent"),
    [
        ("", True),
        ("B.producer.acks=all\n", True),
        ("B.producer.acks=-1\n", True),
        ("B.producer.acks=1\n", False),
        ("B.producer.enable.idempotence=false\n", False),
        ("B.producer.max.in.flight.requests.per.connection=6\n", False),
    ],
)
def test_idempotence_gives_way_unless_asked_for(
    tmp_path: Path, extra: str, idempotent: bool
) -> None:
    assert load_flow(tmp_path, extra).produce.enable_idempotence is idempotent


def test_topics_and_policy(tmp_path: Path) -> None:
    flow = load_flow(
        tmp_path,
        "topics.exclude=\nreplication.factor=-1\nrefresh.topics.enabled=false\n"
        "refresh.topics.interval.seconds=5\nheartbeats.replication.enabled=false\n"
        "A->B.use.defaults.from=source\nconfig.properties.exclude=a.*, b\ntasks.max=4\n"
        "replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
        "replication.policy.separator=_\n"
        "replication.policy.internal.topic.separator.enabled=false\n",
    )
    assert flow.topics.exclude == ()
    assert flow.topics.config_properties_exclude == ("a.*", "b")
    assert flow.topics.use_defaults_from == "source"
    assert flow.topics.replication_factor == -1
    assert (flow.topics.refresh_enabled, flow.topics.refresh_interval_s) == (False, 5)
    assert not flow.topics.heartbeats_replication_enabled
    assert flow.tasks_max == 4
    assert flow.policy == PolicySettings("identity", "_", False, ("A", "B"))


def test_no_topics(tmp_path: Path) -> None:
    assert load_flow(tmp_path, "topics=\n").topics.include == ()


@pytest.mark.parametrize(
    ("extra", "interval_ms"),
    [
        ("B.offset.flush.interval.ms=500\n", 500),
        ("B.offset.flush.interval.ms=10000\n", 1000),
        ("B.offset.flush.interval.ms=1\n", 100),
        ("sparkmirror.position.interval.ms=5000\n", 5000),
        ("sparkmirror.position.interval.ms=5000\nB.offset.flush.interval.ms=700\n", 700),
        (
            "sparkmirror.position.interval.ms=5000\nA->B.sparkmirror.position.interval.ms=250\n",
            250,
        ),
    ],
)
def test_position_interval(tmp_path: Path, extra: str, interval_ms: int) -> None:
    assert load_flow(tmp_path, extra).position_interval_ms == interval_ms


def test_own_keys_and_storage(tmp_path: Path) -> None:
    flow = load_flow(
        tmp_path,
        "sparkmirror.epoch.seconds=10\nsparkmirror.join.bytes=0\nB.offset.storage.topic=mine\n"
        "offset.storage.partitions=3\nB.offset.storage.replication.factor=1\n",
    )
    assert (flow.epoch_s, flow.produce.join_bytes) == (10, 0)
    assert flow.offset_storage_topic == "mine"
    assert flow.offset_storage_partitions == 3
    assert flow.offset_storage_replication_factor == 1


def test_bootstrap_servers_at_the_top_level_fill_what_is_missing(tmp_path: Path) -> None:
    text = "clusters=A,B\nbootstrap.servers=x:1\nB.bootstrap.servers=b:1\nA->B.enabled=true\n"
    (flow,) = load(tmp_path, text).flows
    assert flow.source.bootstrap_servers == ("x:1",)
    assert flow.target.bootstrap_servers == ("b:1",)


def test_a_plaintext_file_with_security_keys_holds_no_secret(tmp_path: Path) -> None:
    settings = load(
        tmp_path, BASE + QUIET + "ssl.key.password=hunter2\nsecurity.protocol=plaintext\n"
    )
    assert "hunter2" not in repr(settings)
    assert "no effect with security.protocol=PLAINTEXT" in settings.warnings[0]


def test_a_quiet_file_has_no_remarks(tmp_path: Path) -> None:
    assert load(tmp_path, BASE + QUIET).warnings == ()


def test_what_java_does_by_default_is_done_without_a_remark(tmp_path: Path) -> None:
    assert load(tmp_path, BASE).warnings == ()


def test_topic_syncs_are_read(tmp_path: Path) -> None:
    topics = load_flow(tmp_path, "").topics
    assert (topics.sync_configs_enabled, topics.sync_configs_interval_s) == (True, 600)
    assert (topics.sync_acls_enabled, topics.sync_acls_interval_s) == (True, 600)
    assert topics.sync_configs_keep == ()
    lines = (
        "A->B.sync.topic.configs.enabled=false\nsync.topic.configs.interval.seconds=7\n"
        "sync.topic.acls.enabled=False\nA->B.sync.topic.acls.interval.seconds=8\n"
        "sync.topic.configs.keep=x\nA->B.sync.topic.configs.keep=retention\\..*, segment.ms\n"
    )
    topics = load_flow(tmp_path, lines).topics
    assert (topics.sync_configs_enabled, topics.sync_configs_interval_s) == (False, 7)
    assert (topics.sync_acls_enabled, topics.sync_acls_interval_s) == (False, 8)
    assert topics.sync_configs_keep == ("retention..*", "segment.ms")


def test_kept_configs_must_be_regexes(tmp_path: Path) -> None:
    assert (
        "sync.topic.configs.keep" in refused(tmp_path, BASE + "sync.topic.configs.keep=(\n").where
    )


@pytest.mark.parametrize("name", ["com.example.Filter", "org.example.DefaultConfigPropertyFilter"])
def test_a_custom_config_filter_is_refused_by_name(tmp_path: Path, name: str) -> None:
    error = refused(tmp_path, BASE + f"config.property.filter.class={name}\n")
    assert name in error.what


def test_the_default_config_filter_may_be_named(tmp_path: Path) -> None:
    package = "org.apache.kafka.connect.mirror."
    line = f"config.property.filter.class={package}DefaultConfigPropertyFilter\n"
    assert load(tmp_path, BASE + line).flows


def test_ignored_keys_are_one_remark_by_reason(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        BASE + QUIET + "B.producer.compression.type=lz4\nB.producer.compression.lz4.level=3\n"
        "listeners=http://:1\nA->B.source.producer.acks=1\nB.group.id=g\n",
    )
    (remark,) = settings.warnings
    line = LINE + QUIET.count("\n")
    assert (
        f"B.producer.compression.type (line {line}), B.producer.compression.lz4.level "
        f"(line {line + 1}): raw batches keep the source's compression" in remark
    )
    assert "listeners" in remark
    assert "A->B.source.producer.acks" in remark
    assert f"B.group.id (line {line + 4}): no Kafka Connect runs here" in remark


@pytest.mark.parametrize("place", ["", "B."])
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("offset.storage.segment.bytes", "the mirror creates this topic with configs of its own"),
        ("offset.storage.retention.ms", "the mirror creates this topic with configs of its own"),
        ("config.storage.min.insync.replicas", "no Kafka Connect runs here"),
        ("config.storage.partitions", "no Kafka Connect runs here"),
        ("status.storage.cleanup.policy", "no Kafka Connect runs here"),
        ("key.converter.schemas.enable", "records are copied as raw batches and never decoded"),
        ("value.converter.a.b", "records are copied as raw batches and never decoded"),
        ("header.converter.x", "records are copied as raw batches and never decoded"),
    ],
)
def test_further_keys_of_workers_are_ignored(
    place: str, key: str, reason: str, tmp_path: Path
) -> None:
    """Java's workers pass them on to their topics (KIP-605) and converters."""
    settings = load(tmp_path, BASE + QUIET + f"{place}{key}=1\n")
    (remark,) = settings.warnings
    line = LINE + QUIET.count("\n")
    assert f"{place}{key} (line {line}): {reason}" in remark


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        *(
            (f"{place}{listeners}.https.ssl.keystore.password", "there is no REST server")
            for place in ("", "B.")
            for listeners in ("listeners", "admin.listeners")
        ),
        ("A->B.listeners.https.ssl.client.auth", "there is no REST server"),
        *(
            (f"{place}metrics.context.kafka.cluster.id", "there are no JMX metrics")
            for place in (
                "", "B.", "A->B.", "A.consumer.", "B.admin.", "A->B.source.consumer.",
                "A->B.producer.override.", "consumer.",
            )
        ),
    ],
)  # fmt: skip
def test_keys_of_connects_rest_server_and_metrics_are_ignored(
    key: str, reason: str, tmp_path: Path
) -> None:
    """They contain names of the user's: a listener, or what a reporter of metrics is told."""
    (remark,) = load(tmp_path, f"{BASE}{QUIET}{key}=1\n").warnings
    assert f"{key} (line {LINE + QUIET.count(chr(10))}): {reason}" in remark


@pytest.mark.parametrize("key", ["offset.storage.partition", "config.storage.replicaton.factor"])
@pytest.mark.parametrize("place", ["", "B."])
def test_a_misspelt_key_of_workers_is_no_config_of_their_topics(
    place: str, key: str, tmp_path: Path
) -> None:
    error = refused(tmp_path, BASE + f"{place}{key}=1\n")
    assert f"{place}{key} is unknown" in error.what


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("producer.linger.ms", "B.producer.linger.ms"),
        ("consumer.fetch.min.bytes", "A.consumer.fetch.min.bytes"),
        ("admin.request.timeout.ms", "A.admin.request.timeout.ms"),
        ("source.consumer.fetch.min.bytes", "A.consumer.fetch.min.bytes"),
        ("target.admin.request.timeout.ms", "B.admin.request.timeout.ms"),
        ("producer.override.acks", "A->B.producer.override.acks"),
        ("fetch.min.bytes", "A.consumer.fetch.min.bytes"),
        ("acks", "B.producer.acks"),
        ("use.defaults.from", "A->B.use.defaults.from"),
        ("offset.flush.interval.ms", "B.offset.flush.interval.ms"),
        ("exactly.once.source.support", "B.exactly.once.source.support"),
        ("exactly.once.support", "A->B.exactly.once.support"),
        ("A.topics", "topics or A->B.topics"),
        ("A.fetch.min.bytes", "A.consumer.fetch.min.bytes"),
        ("B.linger.ms", "B.producer.linger.ms"),
        ("A.use.defaults.from", "A->B.use.defaults.from"),
        ("A.clusters", "clusters"),
        ("A->B.bootstrap.servers", "A.bootstrap.servers and B.bootstrap.servers"),
        ("A->B.offset.flush.interval.ms", "B.offset.flush.interval.ms"),
        ("A->B.fetch.min.bytes", "A->B.source.consumer.fetch.min.bytes"),
        ("A->B.clusters", "clusters"),
    ],
)
def test_a_key_that_java_drops_is_told_with_the_spelling_that_works(
    tmp_path: Path, key: str, instead: str
) -> None:
    (remark,) = load(tmp_path, f"{BASE}{key}=1\n{QUIET}").warnings
    assert remark == (
        f"{tmp_path}/mm2.properties:{LINE}: {key} has no effect here, as in MirrorMaker; "
        f"write {instead}."
    )


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("A.interceptor.classes", "Java classes cannot be loaded"),
        ("A.source.cluster.alias", "it is set by the mirror itself"),
        ("task.index", "it is set by the mirror itself"),
        ("B.name", "no Kafka Connect runs here"),
        ("A->B.producer.batch.size", "raw batches keep the source's batches"),
        ("A->B.rest.advertised.port", "there is no REST server"),
        ("A->B.source.cluster.ssl.provider", "OpenSSL does this here"),
        ("admin.retries", "retries are limited by time, not by count"),
        ("target.admin.retries", "retries are limited by time, not by count"),
        ("topic.creation.default.partitions", "remote topics get the source's partitions"),
        ("A->B.listeners", "there is no REST server"),
    ],
)
def test_no_spelling_is_recommended_that_has_no_effect_either(
    tmp_path: Path, key: str, reason: str
) -> None:
    (remark,) = load(tmp_path, f"{BASE}{key}=1\n{QUIET}").warnings
    assert f"{key} (line {LINE}): " in remark
    assert reason in remark
    assert "write" not in remark


def test_the_spelling_that_works_is_recommended(tmp_path: Path) -> None:
    """That of the producer: neither the worker's nor the consumer's has an effect."""
    for key, instead in (
        ("send.buffer.bytes", "B.producer.send.buffer.bytes"),
        ("A->B.send.buffer.bytes", "A->B.producer.override.send.buffer.bytes"),
    ):
        (remark,) = load(tmp_path, f"{BASE}{key}=1\n{QUIET}").warnings
        assert f"write {instead}." in remark


def test_a_key_that_java_heeds_in_part_is_told_as_such(tmp_path: Path) -> None:
    extra = "A->B.producer.acks=1\nA->B.source.cluster.security.protocol=plaintext\n"
    settings = load(tmp_path, BASE + extra)
    syncs, cluster = settings.warnings
    assert "applies only to the producer of offset syncs" in syncs
    assert "write A->B.producer.override.acks." in syncs
    assert "does not apply to all clients of the cluster" in cluster
    assert "write A.security.protocol." in cluster
    assert settings.flows[0].offset_syncs.produce.acks == 1
    assert settings.flows[0].produce.acks == -1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("A.producer.acks=1", "cluster 'A' is the target of no enabled flow"),
        ("B.consumer.fetch.min.bytes=1", "cluster 'B' is the source of no enabled flow"),
        ("A.exactly.once.source.support=enabled", "cluster 'A' is the target of no enabled flow"),
        ("A.consumer.group.id=g", "positions are kept in the group __mirror.A->B on the target"),
    ],
)
def test_a_key_for_a_role_that_its_cluster_does_not_have_is_ignored_by_name(
    tmp_path: Path, line: str, reason: str
) -> None:
    (remark,) = load(tmp_path, f"{BASE}{line}\n{QUIET}").warnings
    assert f"{line.partition('=')[0]} (line {LINE}): {reason}" in remark


def test_repeated_elements_are_removed_and_told(tmp_path: Path) -> None:
    settings = load(tmp_path, BASE + "topics=a,b,a\n" + QUIET)
    assert settings.flows[0].topics.include == ("a", "b")
    assert settings.warnings == (
        f"{tmp_path}/mm2.properties:{LINE}: topics names more than once: a.",
    )


@pytest.mark.parametrize(("size", "told"), [(4_194_304, False), (4_194_305, True)])
def test_answers_that_are_larger_than_what_is_used_are_told(
    tmp_path: Path, size: int, told: bool
) -> None:
    settings = load(tmp_path, BASE + f"A.consumer.fetch.max.bytes={size}\n" + QUIET)
    line = (
        f"{tmp_path}/mm2.properties:{LINE}: A.consumer.fetch.max.bytes={size} is limited to "
        "4194304: larger responses bring no benefit."
    )
    assert settings.warnings == ((line,) if told else ())


def test_remarks_come_in_file_order(tmp_path: Path) -> None:
    text = BASE + (
        "use.defaults.from=x\nemit.checkpoints.enabled=false\nsync.group.offsets.enabled=true\n"
        "topics=a,a\nacks=1\nlisteners=http://x:1\n"
    )
    lines = [warning.partition(":")[2][:3] for warning in load(tmp_path, text).warnings]
    assert [line for line in lines if line[0].isdigit()] == ["5: ", "6: ", "8: ", "9: "]
    assert len(lines) == 5
    assert lines[-1] == " ig"


def test_a_file_without_a_word_emits_all_that_mirrormaker_does(tmp_path: Path) -> None:
    settings = load(tmp_path, BASE)
    (flow,) = settings.flows
    syncs, checkpoints = flow.offset_syncs, flow.checkpoints
    assert (syncs.enabled, syncs.location, syncs.lag_max, syncs.replication_factor) == (
        True, "source", 100, 3,
    )  # fmt: skip
    assert syncs.client is not None
    assert syncs.client.bootstrap_servers == ("a:9092",)
    assert syncs.client.client_id == "A->B|MirrorSourceConnector|offset-syncs-source-producer"
    assert (checkpoints.enabled, checkpoints.interval_s, checkpoints.sync_enabled) == (
        True, 60, False,
    )  # fmt: skip
    assert checkpoints.include == (".*",)
    assert checkpoints.exclude == ("console-consumer-.*", "connect-.*", "__.*")
    # The pair without a flow has heartbeats too: they are what A->B mirrors.
    assert [(beat.name, beat.target.bootstrap_servers) for beat in settings.heartbeats] == [
        ("A->B", ("b:9092",)),
        ("B->A", ("a:9092",)),
    ]
    assert [beat.name for beat in load(tmp_path, BASE, ["B"]).heartbeats] == ["A->B"]


def test_offset_syncs_on_the_target_go_through_its_producer(tmp_path: Path) -> None:
    text = (
        BASE
        + QUIET.replace("emit.offset-syncs.enabled=false\n", "")
        + (
            "A->B.offset-syncs.topic.location=target\nA->B.target.producer.request.timeout.ms=7000\n"
            "A->B.source.producer.acks=1\noffset.lag.max=0\n"
        )
    )
    settings = load(tmp_path, text)
    syncs = settings.flows[0].offset_syncs
    assert syncs.client is not None
    assert syncs.client.bootstrap_servers == ("b:9092",)
    assert (syncs.client.request_timeout_ms, syncs.lag_max) == (7_000, 0)
    (remark,) = settings.warnings
    assert "A->B.source.producer.acks" in remark
    assert "no offset syncs are written to that cluster" in remark


def test_negative_intervals_mean_never(tmp_path: Path) -> None:
    text = BASE + (
        "sync.group.offsets.enabled=true\nsync.group.offsets.interval.seconds=-1\n"
        "refresh.groups.interval.seconds=-1\nB->A.emit.heartbeats.interval.seconds=-1\n"
    )
    settings = load(tmp_path, text)
    checkpoints = settings.flows[0].checkpoints
    assert (checkpoints.enabled, checkpoints.sync_enabled) == (True, False)
    assert not checkpoints.refresh_enabled
    assert [beat.name for beat in settings.heartbeats] == ["A->B"]
    off = load(tmp_path, BASE + "emit.checkpoints.interval.seconds=-5\n").flows[0]
    assert not off.checkpoints.enabled


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("emit.offset-syncs.enabled=false\n", "emit.checkpoints.enabled=true has no effect"),
        (
            "A->B.emit.checkpoints.enabled=false\nsync.group.offsets.enabled=true\n",
            "sync.group.offsets.enabled=true has no effect",
        ),
    ],
)
def test_what_cannot_work_without_another_is_told(tmp_path: Path, lines: str, told: str) -> None:
    settings = load(tmp_path, BASE + lines)
    assert any(told in warning and f":{LINE}: " in warning for warning in settings.warnings)
    assert not settings.flows[0].checkpoints.sync_enabled


def test_settings_of_syncs_that_are_off_are_refused_as_in_java(tmp_path: Path) -> None:
    text = BASE + "emit.offset-syncs.enabled=false\noffset-syncs.topic.location=target\n"
    with pytest.raises(ConfigError, match="location cannot be combined with") as caught:
        load(tmp_path, text)
    assert caught.value.where.endswith(f":{LINE + 1}")


def test_a_cluster_that_only_heartbeats_need_may_lack_its_address(tmp_path: Path) -> None:
    settings = load(tmp_path, BASE.replace("clusters=A,B", "clusters=A,B,C"))
    assert {beat.name for beat in settings.heartbeats} == {"A->B", "B->A", "C->A", "C->B"}
    told = [warning for warning in settings.warnings if "no heartbeats for A->C" in warning]
    assert len(told) == 1
    assert "C.bootstrap.servers is missing" in told[0]


def test_the_documented_file_with_its_slip(tmp_path: Path) -> None:
    store = Authority("A").truststore(tmp_path / "truststore.p12")
    text = TWO_WAYS_OVER_TLS.format(
        servers_1="kafka-1:443", servers_2="kafka-2:443", truststore=store, password=PASSWORD
    )
    settings = load(tmp_path, text)
    there, back = settings.flows
    assert (there.name, back.name) == ("cluster-1->cluster-2", "cluster-2->cluster-1")
    assert there.topics.include == back.topics.include == (".*",)
    assert there.policy == back.policy
    assert there.policy.aliases == ("cluster-1", "cluster-2")
    slip, *aliases = settings.warnings
    assert ":13: cluster-2->cluster-1B->C.topics names no flow and is ignored" in slip
    assert "write cluster-2->cluster-1.topics." in slip
    assert len(aliases) == 2
    assert all("finds loops" in line for line in aliases)


# --- what Java's MirrorMaker takes as well ------------------------------------------------------


def test_a_negative_interval_means_never(tmp_path: Path) -> None:
    jobs = ("refresh.topics", "sync.topic.configs", "sync.topic.acls")
    topics = load_flow(tmp_path, "".join(f"{job}.interval.seconds=-1\n" for job in jobs)).topics
    assert not topics.refresh_enabled
    assert not topics.sync_configs_enabled
    assert not topics.sync_acls_enabled


def test_names_of_older_releases(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        BASE + "topics.blacklist=x\nA->B.groups.blacklist=y\nconfig.properties.exclude=z\n"
        "config.properties.blacklist=w\nuse.incremental.alter.configs=required\n"
        "A->B.add.source.alias.to.metrics=true\n",
    )
    (flow,) = settings.flows
    assert flow.topics.exclude == ("x",)
    assert flow.checkpoints.exclude == ("y",)
    assert flow.topics.config_properties_exclude == ("z",)
    told = "\n".join(settings.warnings)
    for remark in (
        f":{LINE}: topics.blacklist is now called topics.exclude.",
        "A->B.groups.blacklist is now called A->B.groups.exclude.",
        "config.properties.blacklist is ignored because config.properties.exclude is also set.",
        "use.incremental.alter.configs has no effect: topic configs are always changed one by one.",
        "A->B.add.source.alias.to.metrics has no effect: metrics always name the source.",
    ):
        assert remark in told


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        *(
            (f"{place}auto.include.jmx.reporter", "false", "there are no JMX metrics")
            for place in (
                "", "A.", "us.east.", "A.consumer.", "us.east.producer.", "consumer.",
                "A->B.", "A->B.source.admin.", "A->us.east.producer.override.",
            )
        ),
        ("internal.key.converter", "org.apache.kafka.connect.json.JsonConverter", "no Kafka Con"),
        ("B.internal.value.converter.schemas.enable", "false", "no Kafka Connect runs here"),
        ("rest.port", "8083", "there is no REST server"),
        ("B.rest.host.name", "localhost", "there is no REST server"),
        ("B.use.incremental.alter.configs", "never", "topic configs are always changed one by"),
    ],
)  # fmt: skip
def test_keys_that_java_no_longer_reads_are_dropped(
    tmp_path: Path, key: str, value: str, told: str
) -> None:
    text = BASE.replace("A,B", "A,B,us.east") + f"us.east.bootstrap.servers=c:1\n{QUIET}"
    (remark,) = load(tmp_path, f"{text}{key}={value}\n").warnings
    assert f"{key} has no effect: {told}" in remark


@pytest.mark.parametrize("key", ["client.dns.lookup", "A.consumer.client.dns.lookup"])
def test_a_default_of_2_x_is_accepted(tmp_path: Path, key: str) -> None:
    """Where it would be a client's, the key is ignored, so no other spelling is recommended."""
    (remark,) = load(tmp_path, f"{BASE}{QUIET}{key}=default\n").warnings
    line = f"{BASE}{QUIET}".count("\n") + 1
    told = f"{tmp_path}/mm2.properties: ignored: {key} (line {line}): all addresses of a host are"
    assert remark.startswith(told)
    assert "write" not in remark


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("A->B.source.cluster.sasl.login.class", "com.x.MyLogin", "cannot be used"),
        ("A->B.producer.sasl.login.class", "com.x.MyLogin", "cannot be used"),
        ("A->B.producer.interceptor.classes", "com.x.Mine", "cannot be used"),
        ("A->B.producer.retries", "abc", "retries=abc"),
        ("A->B.producer.compression.type", "foo", "compression.type=foo"),
        ("A->B.producer.retries", "3", ""),
        ("A->B.producer.compression.type", "gzip", ""),
    ],
)
def test_a_key_for_some_clients_is_checked_also_where_it_is_ignored_for_the_others(
    tmp_path: Path, key: str, value: str, error: str
) -> None:
    text = f"{BASE}{QUIET}{key}={value}\n"
    if not error:
        (remark,) = load(tmp_path, text).warnings
        assert f"ignored: {key} (line " in remark
        return
    with pytest.raises(ConfigError, match=error):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ("A->C.rest.port=1\n", "names the cluster 'C', which is not in clusters"),
        ("C->B.topics.blacklist=x\n", "names the cluster 'C', which is not in clusters"),
        (
            "A->B.transforms=r\n"
            "A->B.transforms.r.type=org.apache.kafka.connect.transforms.RegexRouter\n"
            "A->B.transforms.r.regex=x\nA->B.transforms.r.replacement=y\n"
            "A->B.transforms.r.rest.port=1\n",
            "A->B.transforms.r.rest.port",
        ),
        ("A->B.sparkmirror.rest.port=1\n", "A->B.sparkmirror.rest.port is unknown"),
    ],
)
def test_dropped_keys_are_no_way_around_other_errors(
    tmp_path: Path, lines: str, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        load(tmp_path, f"{BASE}{QUIET}{lines}")


@pytest.mark.parametrize(
    "key",
    [
        f"{place}{name}"
        for name in ("metrics.context.x", "metrics.jmx.include")
        for place in ("", "A.", "B.consumer.", "A->B.", "A->B.producer.override.")
    ],
)
def test_keys_of_metrics_that_contain_names_are_ignored(tmp_path: Path, key: str) -> None:
    (remark,) = load(tmp_path, f"{BASE}{QUIET}{key}=a\n").warnings
    assert f"ignored: {key} (line " in remark
    assert "there are no JMX metrics" in remark


def test_aliases_with_blanks(tmp_path: Path) -> None:
    text = BASE.replace("B", "my\\ B")
    settings = load(tmp_path, text.replace("clusters=A,my\\ B", "clusters=A,my B"))
    assert [flow.name for flow in settings.flows] == ["A->my B"]
    assert any("the alias 'my B' contains a blank" in line for line in settings.warnings)


def test_aliases_that_no_topic_can_be_named_after(tmp_path: Path) -> None:
    """Java accepts them, and fails when it creates the first topic."""
    settings = load(tmp_path, BASE.replace("A", "dc/1"))
    assert [flow.name for flow in settings.flows] == ["dc/1->B"]
    told = (
        "the alias 'dc/1' contains '/', which is not allowed in topic names: topics named after it "
        "cannot be created."
    )
    assert [line for line in settings.warnings if "alias" in line] == [
        f"{tmp_path}/mm2.properties:1: {told}"
    ]


@pytest.mark.parametrize("value", ["by_duration:P1D", "by_duration:pt12h", "BY_DURATION:PT1.5S"])
def test_a_start_by_duration(tmp_path: Path, value: str) -> None:
    fetch = load_flow(tmp_path, f"A.consumer.auto.offset.reset={value}\n").fetch
    assert fetch.auto_offset_reset == value.lower()


def test_times_of_offset_resets() -> None:
    assert duration_ms("by_duration:P1DT2H3M4.5S") == 93_784_500
    assert duration_ms("by_duration:P106751991167D") == 106_751_991_167 * 86_400_000
    assert reset_time_ms("by_duration:PT1S", 5_000) == 4_000
    assert reset_time_ms("by_duration:P100D", 5_000) == 0
    assert [reset_time_ms(name, 5_000) for name in ("earliest", "latest")] == [EARLIEST, LATEST]


def test_skipping_bad_records_has_another_name_here(tmp_path: Path) -> None:
    (warning,) = load(tmp_path, BASE + "A->B.errors.tolerance=all\n").warnings
    assert "sparkmirror.on.bad.record=skip or dead-letter" in warning


def test_clusters_may_be_called_source_and_target(tmp_path: Path) -> None:
    text = (
        "clusters=source,target\nsource.bootstrap.servers=a:1\ntarget.bootstrap.servers=b:1\n"
        "source->target.enabled=true\nsource.consumer.client.rack=r\n"
        "target.admin.request.timeout.ms=7\n" + QUIET
    )
    settings = load(tmp_path, text)
    assert settings.flows[0].fetch.client_rack == "r"
    assert settings.warnings == ()
    error = refused(tmp_path, text + "target.producer.transactional.id=x\n")
    assert "transactional.id cannot be used" in error.what


def test_secrets_of_all_clients_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those that write offset syncs and heartbeats, and of other users."""
    hidden: list[str] = []
    monkeypatch.setattr("sparkmirror.cli.shared.secrets.register_secret", hidden.append)
    login = 'x.PlainLoginModule required username="u" password="hunter2" user_v="hunter3";'
    text = "A.producer.security.protocol=SASL_PLAINTEXT\nA.producer.sasl.mechanism=PLAIN\n"
    hide_secrets(load(tmp_path, f"{BASE}{text}A.producer.sasl.jaas.config={login}\n"))
    assert {"hunter2", "hunter3"} <= set(hidden)


_OAUTH = "org.apache.kafka.common.security.oauthbearer."
_TOKENS = f"""\
A.security.protocol=SASL_SSL
A.sasl.mechanism=OAUTHBEARER
A.sasl.login.callback.handler.class={_OAUTH}OAuthBearerLoginCallbackHandler
A.sasl.oauthbearer.jwt.retriever.class={_OAUTH}DefaultJwtRetriever
A.sasl.oauthbearer.token.endpoint.url=https://h/t
A.sasl.oauthbearer.client.credentials.client.id=i
A.sasl.oauthbearer.client.credentials.client.secret=s
A.sasl.oauthbearer.header.urlencode=true
A.sasl.jaas.config={_OAUTH}OAuthBearerLoginModule required;
"""


def test_blanks_at_the_end_of_a_login_do_not_count(tmp_path: Path) -> None:
    """Java trims each value when it parses it."""
    source = load_flow(tmp_path, _TOKENS).source
    assert load_flow(tmp_path, _TOKENS.replace("\n", " \n")).source == source
    assert source.properties["sasl.oauthbearer.header.urlencode"] == "true"
