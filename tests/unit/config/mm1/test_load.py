"""MirrorMaker 1's two files and its include list."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.config.mm1.load import load_mm1, load_mm1_consumer, normalise_include
from sparkmirror.control.topics.config_sync import config_to_create_with
from sparkmirror.data.coordination.slot_plan import decode_flow, encode_flow
from sparkmirror.errors import ConfigError
from sparkmirror.internal_topics.commands import control_topic
from sparkmirror.internal_topics.gaps import gaps_topic
from sparkmirror.internal_topics.runs import runs_topic
from sparkmirror.model import MirrorMode
from sparkmirror.names.java_regex import compile_regex
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.records.codecs import LEVELS
from sparkmirror.settings import FetchSettings, MirrorSettings, ProduceSettings
from sparkmirror.wire.cluster.views import ConfigEntry
from tests.unit.config_files import write
from tests.vectors import load as vectors

INCLUDES = vectors("mm1_include")
CONSUMER = "bootstrap.servers=a:1\ngroup.id=mirror\n"
PRODUCER = "bootstrap.servers=b:1\n"
PACKAGE = "org.apache.kafka.common.config.provider."
FILE = f"config.providers=file\nconfig.providers.file.class={PACKAGE}FileConfigProvider\n"
ENV = f"config.providers=env\nconfig.providers.env.class={PACKAGE}EnvVarConfigProvider\n"
LOGIN = (
    "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
    "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="u" password="${file:%s:pw}";\n'
)


def _load(directory: Path, consumer: str, producer: str, **options: Any) -> MirrorSettings:
    return load_mm1(
        write(directory, consumer, "consumer.properties"),
        write(directory, producer, "producer.properties"),
        **({"include": "t.*"} | options),
    )


@pytest.mark.parametrize("case", INCLUDES, ids=lambda case: repr(case["raw"]))
def test_include_lists_are_normalised_as_in_java(tmp_path: Path, case: dict[str, Any]) -> None:
    regex = normalise_include(case["raw"])
    assert regex == case["regex"]
    pattern = compile_regex(regex)
    topics = FlowTopics(_load(tmp_path, CONSUMER, PRODUCER, include=case["raw"]).flows[0])
    every = {name for other in INCLUDES for name in other["matches"]}
    assert {name for name in every if pattern.fullmatch(name)} == set(case["matches"])
    assert {name for name in every if topics.accepts(name)} == set(case["allowed_excludeInternal"])


@pytest.mark.parametrize(
    ("raw", "regex"),
    [('"a","b"', 'a"|"b'), ("a{1,2}", "a{1|2}"), ("a,,b", "a||b"), ("", ""), ("\"'x", "x")],
)
def test_odd_include_lists(raw: str, regex: str) -> None:
    assert normalise_include(raw) == regex


@pytest.mark.parametrize("include", ["(", "a{1,2}", "*"])
def test_a_bad_include_list_is_named(tmp_path: Path, include: str) -> None:
    with pytest.raises(ConfigError, match="is an invalid regex") as caught:
        _load(tmp_path, CONSUMER, PRODUCER, include=include)
    assert caught.value.where == "--include"


def test_the_least_files(tmp_path: Path) -> None:
    settings = _load(tmp_path, CONSUMER, PRODUCER)
    assert settings.mode is MirrorMode.MM1
    assert settings.clusters == ("source", "target")
    assert settings.warnings == ()
    (flow,) = settings.flows
    assert flow.name == "source->target"
    assert flow.mode is MirrorMode.MM1
    assert flow.group_id == "mirror"
    assert flow.source.bootstrap_servers == ("a:1",)
    assert flow.target.bootstrap_servers == ("b:1",)
    assert flow.source_admin.bootstrap_servers == ("a:1",)
    assert flow.target_admin.bootstrap_servers == ("b:1",)
    assert flow.source.client_id == "mirror"
    assert flow.policy.kind == "identity"
    assert flow.topics.include == ("t.*",)
    assert flow.topics.refresh_interval_s == 300
    assert flow.fetch == FetchSettings(auto_offset_reset="latest")
    assert flow.produce == ProduceSettings()
    assert (flow.tasks_max, flow.position_interval_ms) == (1, 1_000)


def test_options_and_keys(tmp_path: Path) -> None:
    (flow,) = _load(
        tmp_path,
        CONSUMER + "auto.offset.reset=earliest\nmetadata.max.age.ms=5000\nclient.id=mine\n"
        "request.timeout.ms=7\nisolation.level=read_uncommitted\n",
        PRODUCER + "client.id=p\nacks=1\nrequest.timeout.ms=8\n",
        num_streams=4,
        offset_commit_interval_ms=250,
    ).flows
    assert flow.tasks_max == 4
    assert flow.position_interval_ms == 250
    assert flow.fetch.auto_offset_reset == "earliest"
    assert flow.fetch.isolation_level == "read_uncommitted"
    assert flow.topics.refresh_interval_s == 5
    assert flow.source.client_id == "mirror"  # MirrorMaker 1 overrides the user's
    assert flow.target.client_id == "p"
    assert (flow.source.request_timeout_ms, flow.source_admin.request_timeout_ms) == (7, 7)
    assert (flow.target.request_timeout_ms, flow.target_admin.request_timeout_ms) == (8, 8)
    assert flow.produce.acks == 1


def test_numbers_may_have_any_number_of_zeros_before_them(tmp_path: Path) -> None:
    zeros = "0" * 5_000
    consumer = f"fetch.max.bytes={zeros}9000000\nmirror.consumer.numthreads={zeros}3\n"
    settings = _load(tmp_path, CONSUMER + consumer, f"{PRODUCER}delivery.timeout.ms={zeros}7\n")
    (flow,) = settings.flows
    assert (flow.tasks_max, flow.produce.delivery_timeout_ms) == (3, 7)
    told = " ".join(settings.warnings)
    assert "is limited to" in told
    assert "delivery.timeout.ms is overridden to" in told


def test_the_consumer_file_may_say_what_to_do_about_lost_data(tmp_path: Path) -> None:
    own = "sparkmirror.on.source.loss=record-and-continue\n"
    own += "sparkmirror.on.source.loss.fail.topics=p.*,q\n"
    (flow,) = _load(tmp_path, CONSUMER + own, PRODUCER).flows
    assert flow.faults.source_loss == "record-and-continue"
    assert flow.faults.source_loss_fail == ("p.*", "q")
    with pytest.raises(ConfigError, match=r"did you mean sparkmirror\.on\.source\.loss\?"):
        _load(tmp_path, CONSUMER + "sparkmirror.on.source.los=fail\n", PRODUCER)
    with pytest.raises(ConfigError, match="is unknown"):
        _load(tmp_path, CONSUMER, PRODUCER + own)


def test_internal_topics(tmp_path: Path) -> None:
    topics = FlowTopics(_load(tmp_path, CONSUMER, PRODUCER, include=".*").flows[0])
    assert not topics.accepts("__consumer_offsets")
    assert not topics.accepts("__transaction_state")
    assert topics.accepts("__mine")
    given = CONSUMER + "exclude.internal.topics=false\n"
    topics = FlowTopics(_load(tmp_path, given, PRODUCER, include=".*").flows[0])
    assert topics.accepts("__consumer_offsets")


@pytest.mark.parametrize("internal", ["true", "false"])
@pytest.mark.parametrize("lists", [{"include": ".*"}, {"include": None, "exclude": "x"}])
def test_what_mirrors_keep_for_themselves_stays_where_it_is(
    tmp_path: Path, internal: str, lists: dict[str, str | None]
) -> None:
    given = CONSUMER + f"exclude.internal.topics={internal}\n"
    (flow,) = _load(tmp_path, given, PRODUCER, **lists).flows
    topics = FlowTopics(flow)
    mm2 = replace(flow, mode=MirrorMode.MM2)
    for one in (flow, mm2):
        for own in (control_topic(one), gaps_topic(one), runs_topic(one)):
            assert not topics.accepts(own), own
    # Java's mirrors keep theirs as before.
    assert topics.accepts("mm2-offsets.A.internal")
    assert topics.accepts("orders")


def test_settings_that_are_true_of_one_cluster_only_are_not_copied(tmp_path: Path) -> None:
    (flow,) = _load(tmp_path, CONSUMER, PRODUCER).flows
    names = ("retention.ms", "leader.replication.throttled.replicas", "message.timestamp.type")
    configs = {name: ConfigEntry("1", "DYNAMIC_TOPIC_CONFIG") for name in names}
    assert config_to_create_with(configs, flow) == ({"retention.ms": "1"}, ())


@pytest.mark.parametrize(
    ("consumer", "producer", "where", "what"),
    [
        ("bootstrap.servers=a:1\n", PRODUCER, "consumer.properties", "group.id is missing"),
        ("bootstrap.servers=a:1\ngroup.id=\n", PRODUCER, "consumer.properties:2", "group.id is"),
        ("group.id=g\n", PRODUCER, "consumer.properties", "bootstrap.servers is missing"),
        (CONSUMER, "acks=all\n", "producer.properties", "bootstrap.servers is missing"),
        (CONSUMER + "x", PRODUCER, "consumer.properties:3", "x is unknown (and has no"),
        (
            "group.id=g\nzookeeper.connect=z:1",
            PRODUCER,
            "consumer.properties:2",
            "names a ZooKeeper",
        ),
        (CONSUMER + "auto.offset.reset=small", PRODUCER, "consumer.properties:3", "not one of"),
        (CONSUMER + "fetch.size=many", PRODUCER, "consumer.properties:3", "not a whole number"),
        (CONSUMER, PRODUCER + "event.handler=X", "producer.properties:2", "Java class"),
        (CONSUMER, PRODUCER + "compression.codec=9", "producer.properties:2", "was never valid"),
        (CONSUMER + "auto.ofset.reset=x", PRODUCER, "consumer.properties:3", "auto.offset.reset?"),
        (CONSUMER + "acks=all", PRODUCER, "consumer.properties:3", "acks is unknown"),
        (CONSUMER + "check.crcs=1", PRODUCER, "consumer.properties:3", "neither true nor false"),
        (
            CONSUMER + "security.protocol=SASL_SSL",
            PRODUCER,
            "consumer.properties:3",
            "Cluster 'source'",
        ),
        (
            CONSUMER,
            PRODUCER + "security.protocol=SASL_SSL",
            "producer.properties:2",
            "Cluster 'target'",
        ),
        (CONSUMER, PRODUCER + "transactional.id=x", "producer.properties:2", "exactly-once"),
        (CONSUMER, PRODUCER + "acks=0", "producer.properties:2", "acks=0 cannot be used"),
        (CONSUMER, PRODUCER + "compression.type=brotli", "producer.properties:2", "not one of"),
        (CONSUMER, "bootstrap.servers=b", "producer.properties:1", "not host:port"),
    ],
)
def test_wrong_files(tmp_path: Path, consumer: str, producer: str, where: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, consumer, producer)
    assert str(caught.value).startswith(f"{tmp_path}/{where}")
    assert what in caught.value.what
    assert caught.value.do


def test_options_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too small") as caught:
        _load(tmp_path, CONSUMER, PRODUCER, num_streams=0)
    assert caught.value.where == "--num.streams"


@pytest.mark.parametrize("value", [0, -1])
def test_a_commit_interval_of_nothing_is_the_shortest(tmp_path: Path, value: int) -> None:
    """Java has no limit for it: more than nothing has always passed."""
    (flow,) = _load(tmp_path, CONSUMER, PRODUCER, offset_commit_interval_ms=value).flows
    assert flow.position_interval_ms == 100


def test_never_in_64_bits_is_a_time_that_a_thread_can_wait(tmp_path: Path) -> None:
    never = f"metadata.max.age.ms={2**63 - 1}\nretry.backoff.ms={2**63 - 1}\n"
    (flow,) = _load(tmp_path, CONSUMER + never, PRODUCER + never).flows
    assert 86_400 < flow.topics.refresh_interval_s <= threading.TIMEOUT_MAX
    assert flow.source.retry_backoff_ms < 2**31  # which a poll can wait


def test_missing_files_are_named(tmp_path: Path) -> None:
    consumer = write(tmp_path, CONSUMER, "consumer.properties")
    with pytest.raises(ConfigError, match="no such file"):
        load_mm1(consumer, tmp_path / "none", include="t")
    with pytest.raises(ConfigError, match="no such file"):
        load_mm1(tmp_path / "none", consumer, include="t")


def test_remarks(tmp_path: Path) -> None:
    warnings = _load(
        tmp_path,
        CONSUMER + "enable.auto.commit=false\nmax.poll.records=9\n",
        PRODUCER + "acks=1\ndelivery.timeout.ms=5\nenable.idempotence=false\nmax.block.ms=1\n",
        include='"a","b"',
    ).warnings
    assert warnings[0].startswith("--include: quotes inside the list are part of the names")
    assert "enable.auto.commit (line 3): positions are committed after" in warnings[1]
    assert "max.poll.records (line 4)" in warnings[1]
    for number, told in enumerate(
        ("acks is overridden to 1", "enable.idempotence is", "delivery.timeout.ms is"), 2
    ):
        assert told in warnings[number]
        assert "data loss or message reordering is possible" in warnings[number]
    assert "max.block.ms (line 5)" in warnings[5]
    assert len(warnings) == 6


@pytest.mark.parametrize(("size", "lines"), [(4 << 20, 0), ((4 << 20) + 1, 1)])
def test_a_larger_answer_than_is_used_is_named(tmp_path: Path, size: int, lines: int) -> None:
    warnings = _load(tmp_path, f"{CONSUMER}fetch.max.bytes={size}\n", PRODUCER).warnings
    assert len(warnings) == lines
    assert all(f"fetch.max.bytes={size} is limited to {4 << 20}" in line for line in warnings)
    assert all("consumer.properties:3" in line for line in warnings)


def test_an_empty_include_list_mirrors_nothing_and_says_so(tmp_path: Path) -> None:
    settings = _load(tmp_path, CONSUMER, PRODUCER, include=" ")
    assert settings.flows[0].topics.include == ()
    assert settings.warnings == ("--include: the list is empty, so no topic is mirrored.",)


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    settings = _load(tmp_path, CONSUMER + "ssl.key.password=hunter2\n", PRODUCER)
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.warnings)


def test_levels_of_compression(tmp_path: Path) -> None:
    levels = "compression.gzip.level=9\ncompression.zstd.level=-7\ncompression.lz4.level=12\n"
    settings = _load(tmp_path, CONSUMER, PRODUCER + levels)
    (flow,) = settings.flows
    assert flow.records.levels == (0, 9, 0, 12, -7)
    assert settings.warnings == ()
    assert decode_flow(encode_flow(flow)).records == flow.records
    (plain,) = _load(tmp_path, CONSUMER, PRODUCER).flows
    assert plain.records.levels == LEVELS


def test_a_key_of_the_last_clients_that_mirrormaker_1_had(tmp_path: Path) -> None:
    line = "auto.include.jmx.reporter=true\n"
    warnings = _load(tmp_path, CONSUMER + line, PRODUCER + line).warnings
    assert sum("auto.include.jmx.reporter" in one for one in warnings) == 2


def test_config_providers_of_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client resolves them itself, since KIP-421."""
    monkeypatch.setenv("MM_ID", "hunter3")
    secrets = write(tmp_path, "pw=hunter2\n", "secrets")
    login = LOGIN % secrets
    settings = _load(tmp_path, CONSUMER + FILE + login, PRODUCER + ENV + "client.id=${env:MM_ID}\n")
    (flow,) = settings.flows
    assert settings.warnings == ()
    assert 'password="hunter2"' in flow.source.properties["sasl.jaas.config"]
    assert 'password="hunter2"' in flow.source_admin.properties["sasl.jaas.config"]
    assert flow.target.client_id == "hunter3"
    shown = load_mm1_consumer(write(tmp_path, CONSUMER + FILE + login, "c"))
    assert shown.warnings == ()
    assert 'password="hunter2"' in shown.flows[0].source.properties["sasl.jaas.config"]


def test_a_placeholder_that_no_provider_resolves_stays_and_is_told(tmp_path: Path) -> None:
    """As in Java, where the broker then refuses the login."""
    settings = _load(tmp_path, CONSUMER + LOGIN % "/x", PRODUCER)
    assert "${file:/x:pw}" in settings.flows[0].source.properties["sasl.jaas.config"]
    assert settings.warnings == (
        f"{tmp_path}/consumer.properties:5: sasl.jaas.config contains a placeholder that no "
        "provider in config.providers resolves; it is used literally.",
    )


def test_a_part_of_a_password_is_not_taken_for_a_providers_name(tmp_path: Path) -> None:
    login = (LOGIN % "/x").replace("${file:/x:pw}", "ab${hunter2:x}")
    lines = f"client.rack=${{hunter3 !:x}}\ngroup.instance.id=${{file:x}}\n{login}"
    told = " ".join(_load(tmp_path, CONSUMER + lines, PRODUCER).warnings)
    assert "hunter" not in told
    assert "a placeholder of 'file', which config.providers does not name" in told


def test_a_provider_without_a_class_is_skipped_as_in_java(tmp_path: Path) -> None:
    lines = "config.providers=file\nconfig.providers.file.param.allowed.paths=/\n"
    settings = _load(tmp_path, CONSUMER + lines + LOGIN % "/x", PRODUCER)
    assert "${file:/x:pw}" in settings.flows[0].source.properties["sasl.jaas.config"]
    assert settings.warnings == (
        f"{tmp_path}/consumer.properties:3: config.providers names 'file', but "
        "config.providers.file.class is missing, so its placeholders are used literally.",
    )


@pytest.mark.parametrize("key", ["metrics.context.x", "metrics.jmx.include"])
def test_keys_of_metrics_that_contain_names_are_ignored(tmp_path: Path, key: str) -> None:
    told = _load(tmp_path, f"{CONSUMER}{key}=a,,\n", f"{PRODUCER}{key}=a\n").warnings
    assert [f"ignored: {key} (line " in one for one in told] == [True, True]
    assert all("there are no JMX metrics" in one for one in told)


@pytest.mark.parametrize(
    ("consumer", "producer", "where", "what"),
    [
        ("", "config.providers=x\nconfig.providers.x.class=com.acme.Vault\n",
         "producer.properties:3", "custom Java classes cannot be loaded"),
        (FILE + "client.rack=${file:/none:x}\n", "", "consumer.properties:5",
         "client.rack: the placeholder ${file:/none:x} cannot be resolved: There is no"),
        ("config.providerss=x\n", "", "consumer.properties:3", "config.providerss is unknown"),
    ],
)  # fmt: skip
def test_providers_that_cannot_work(
    tmp_path: Path, consumer: str, producer: str, where: str, what: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, CONSUMER + consumer, PRODUCER + producer)
    assert str(caught.value).startswith(f"{tmp_path}/{where}")
    assert what in caught.value.what


@pytest.mark.parametrize(
    ("consumer", "producer"),
    [
        ("fetch.min.bytes={}\n", ""),
        ("topics=({}\n", ""),
        ("whitelist=({}\n", ""),
        ('whitelist="{}",b\n', ""),
        ("whitelist={}-*\n", ""),
        ("autooffset.reset={}\n", ""),
        ("replication.policy.class={}\n", ""),
        ("fetch.size={}\n", ""),
        ("", "acks={}\n"),
        ("", "request.required.acks={}\n"),
        ("", "compression.codec={}\n"),
        ("", "producer.type={}\n"),
        ("", "delivery.timeout.ms={}\n"),
        ("", "partitioner.class={}\n"),
        ("security.protocol={}\n", ""),
    ],
)
def test_values_of_providers_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consumer: str, producer: str
) -> None:
    for secret in ("hunter2", "77", "1"):
        monkeypatch.setenv("SECRET", secret)
        files = [
            text + ENV + more.format("${env:SECRET}")
            for text, more in ((CONSUMER, consumer), (PRODUCER, producer))
        ]
        try:
            told = " ".join(_load(tmp_path, *files, include=None).warnings)
        except ConfigError as error:
            told = str(error)
        if secret != "1":
            assert secret not in told.replace(str(tmp_path), "")


def test_a_group_twice_is_told_without_the_providers_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    monkeypatch.setenv("PLACE", "hunter3:1")
    text = f"{ENV}bootstrap.servers=${{env:PLACE}}\ngroup.id=${{env:SECRET}}\n"
    paths = [write(tmp_path, text, name) for name in ("one", "other")]
    with pytest.raises(ConfigError, match="each record would be mirrored twice") as caught:
        load_mm1(paths, write(tmp_path, PRODUCER, "p"), include="t")
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    ("consumer", "producer"),
    [
        ("name=mirror\n", ""),
        ("", "errors.tolerance=all\n"),
        ("", "enabled=true\n"),
        ("sync.topic.acls.enabled=true\nemit.heartbeats.enabled=false\n", ""),
    ],
)
def test_a_key_without_effect_is_no_list_of_topics(
    tmp_path: Path, consumer: str, producer: str
) -> None:
    with pytest.raises(ConfigError, match="include list must be specified"):
        _load(tmp_path, CONSUMER + consumer, PRODUCER + producer, include=None)


def test_all_topics_without_a_list_are_told(tmp_path: Path) -> None:
    told = (
        "replication.factor is a key of MirrorMaker 2, and no list of topics is given, so all "
        "topics are mirrored, as MirrorMaker 2 does. Write topics=.* to say so, or name them."
    )
    line = "replication.factor=2\n"
    for consumer, producer, place in (
        (line, "", "consumer.properties:3"), ("", line, "producer.properties:2"),
    ):  # fmt: skip
        settings = _load(tmp_path, CONSUMER + consumer, PRODUCER + producer, include=None)
        assert settings.flows[0].topics.include == (".*",)
        assert settings.warnings == (f"{tmp_path}/{place}: {told}",)
    assert _load(tmp_path, f"{CONSUMER}{line}topics=.*\n", PRODUCER, include=None).warnings == ()
    assert _load(tmp_path, CONSUMER + line, PRODUCER).warnings == ()


def test_the_default_of_a_key_of_2_x_is_accepted(tmp_path: Path) -> None:
    line = "client.dns.lookup=default\n"
    warnings = _load(tmp_path, CONSUMER + line, PRODUCER + line).warnings
    assert sum("client.dns.lookup" in one for one in warnings) == 2


def test_a_file_for_the_command_of_groups_may_have_keys_of_admin_clients(tmp_path: Path) -> None:
    """Kafka's own kafka-consumer-groups gives ``--command-config`` to an admin client."""
    path = write(tmp_path, f"{CONSUMER}retries=3\nbootstrap.controllers=x:1\n")
    (flow,) = load_mm1_consumer(path, for_admin=True).flows
    assert flow.source.bootstrap_servers == ("a:1",)
    with pytest.raises(ConfigError, match="retries is unknown"):
        load_mm1_consumer(path)
    with pytest.raises(ConfigError, match="acks is unknown"):
        load_mm1_consumer(write(tmp_path, f"{CONSUMER}acks=all\n"), for_admin=True)
