"""The settings table knows the keys of Kafka 4.3 and of clients of 4.4, with types and defaults."""

from pathlib import Path

import pytest

from sparkmirror.config.files.origin import TABLE
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.values import ValueReader, check, split_list
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.config.table.setting import java_int
from sparkmirror.config.table.settings import (
    CLIENT_SET,
    SETTINGS,
    ClientProperties,
    Scope,
    Setting,
    Status,
    Type,
    find,
    is_secret,
    names,
    redact,
    redact_all,
)
from sparkmirror.errors import ConfigError
from sparkmirror.settings import FetchSettings, FlowSettings, ProduceSettings, TopicSettings
from tests.rows import named
from tests.unit.config_files import write
from tests.vectors import load, table

_SECTIONS = {
    "MirrorMakerConfig": Scope.DRIVER,
    "Base": Scope.CONNECTOR,
    "Source": Scope.CONNECTOR,
    "SourceTask": Scope.CONNECTOR,
    "Checkpoint": Scope.CONNECTOR,
    "CheckpointTask": Scope.CONNECTOR,
    "Heartbeat": Scope.CONNECTOR,
    "MirrorClient": Scope.CONNECTOR,
    "MirrorClient.CLIENT": Scope.CONNECTOR,
    "TopicFilter": Scope.CONNECTOR,
    "GroupFilter": Scope.CONNECTOR,
    "ConfigPropFilter": Scope.CONNECTOR,
    "Consumer": Scope.CONSUMER,
    "Producer": Scope.PRODUCER,
    "Admin": Scope.ADMIN,
    "WorkerDistributed": Scope.WORKER,
    "SourceConnector": Scope.CONNECTOR,
}
_KEYS = [
    (section, row)
    for name in ("config_keys_4.3.0", "client_keys_4.3.0", "client_keys_new_in_4.4.0")
    for section, rows in table(name).items()
    for row in rows
]
# Keys of logins that clients of 4.4 have and 4.3's MirrorMaker does not hand on yet.
_LATER = {
    row[0] for row in table("client_keys_new_in_4.4.0")["Admin"] if row[0].startswith("sasl.")
}
# MirrorMaker sets these for its data clients, whatever the client's own default.
_MIRRORMAKER_DEFAULTS = {
    "enable.auto.commit",
    "enable.idempotence",
    "delivery.timeout.ms",
    "max.block.ms",
    "max.in.flight.requests.per.connection",
    "key.converter",
    "value.converter",
    "header.converter",
}
# Rows that several scopes share although Java's defaults differ; none of them has an effect.
_SHARED = {
    "connections.max.idle.ms",
    "enable.metrics.push",
    "receive.buffer.bytes",
    "send.buffer.bytes",
    "partition.assignment.strategy",
    "bootstrap.servers",
    "client.id",
    "share.acquire.mode",
}


@pytest.mark.parametrize("section", _SECTIONS)
def test_every_key_is_known_with_its_type_and_default(section: str) -> None:
    for row in (row for one, row in _KEYS if one == section):
        with named(row):
            _is_known(section, *row[:3])


def _is_known(section: str, name: str, kind: str, default: str) -> None:
    setting = find(name, _SECTIONS[section])
    assert setting is not None, f"{section} {name} is missing"
    assert setting.type.value.upper() == kind
    if name in _MIRRORMAKER_DEFAULTS | _SHARED:
        return
    ours = setting.default if setting.java_default is None else setting.java_default
    assert _plain(ours, setting) == _plain(_java(default), setting)


def _java(default: str) -> str | None:
    return None if default in ("null", "<required>") else default.removeprefix("class ")


def _plain(default: str | None, setting: Setting) -> object:
    if default is None:
        return None
    if setting.type is Type.LIST:
        return [part.rpartition(".class.")[2] for part in split_list(default.strip("[]"))]
    if setting.type is Type.CLASS:
        return default.rpartition(".")[2]
    return default


def test_all_sections_were_compared() -> None:
    assert {section for section, _ in _KEYS} == set(_SECTIONS)
    assert len(_KEYS) > 700


def test_rows_are_complete_and_their_defaults_valid() -> None:
    for setting in SETTINGS:
        with named(setting):
            assert setting.doc.endswith(".")
            assert setting.scopes
            if setting.status is not Status.SUPPORTED:
                assert setting.reason, "an ignored or refused key needs a reason"
            if setting.default and not (setting.type is Type.CLASS and not setting.choices):
                check(Entry(setting.name, setting.default, TABLE), setting)


def test_a_scope_has_each_key_once() -> None:
    seen = [(scope, row.name) for row in SETTINGS for scope in row.scopes]
    assert len(seen) == len(set(seen))


def test_defaults_are_those_of_the_model() -> None:
    fetch, produce, topics = FetchSettings(), ProduceSettings(), TopicSettings()
    for scope, key, value in (
        (Scope.CONSUMER, "fetch.max.bytes", fetch.fetch_max_bytes),
        (Scope.CONSUMER, "max.partition.fetch.bytes", fetch.partition_fetch_bytes_max),
        (Scope.CONSUMER, "isolation.level", fetch.isolation_level),
        (Scope.PRODUCER, "max.request.size", produce.request_bytes_max),
        (Scope.PRODUCER, "delivery.timeout.ms", produce.delivery_timeout_ms),
        (Scope.CONNECTOR, "topics.exclude", ",".join(topics.exclude)),
        (Scope.CONNECTOR, "replication.factor", topics.replication_factor),
        (Scope.SPARKMIRROR, "sparkmirror.join.bytes", produce.join_bytes),
        (Scope.SPARKMIRROR, "sparkmirror.epoch.seconds", _model_default("epoch_s")),
        (
            Scope.SPARKMIRROR,
            "sparkmirror.position.interval.ms",
            _model_default("position_interval_ms"),
        ),
        (Scope.WORKER, "offset.storage.partitions", _model_default("offset_storage_partitions")),
    ):
        row = find(key, scope)
        assert row is not None
        assert row.default == str(value), key


def _model_default(field: str) -> object:
    return FlowSettings.__dataclass_fields__[field].default


def test_the_client_set_is_javas_and_one_key_of_librdkafka() -> None:
    client = {row[0] for row in table("config_keys_4.3.0")["MirrorClient.CLIENT"]}
    assert client | {"ssl.crl.location", "ssl.security.level"} | _LATER == CLIENT_SET


def test_security_defaults_are_those_java_hands_to_clients() -> None:
    """The vector is what MirrorMakerConfig.clientConfig gives for cluster A, values as text."""
    vector = load("mm_config")
    given = {"bootstrap.servers": "[a:1]", "security.protocol": "PLAINTEXT"}
    given["ssl.truststore.password"] = "[hidden]"  # the input sets it
    for role, scope in (("consumerConfig", Scope.CONSUMER), ("adminConfig", Scope.ADMIN)):
        expected = vector[f"clientConfig(A).{role}"]
        ours = dict(given)
        ours_alone = {"ssl.security.level"}
        for name in CLIENT_SET - given.keys() - ours_alone - _LATER:
            row = find(name, scope)
            assert row is not None
            if row.default is not None:
                ours[name] = _as_java_text(row)
        assert {key: value.rpartition(".")[2] if value.startswith("class ") else value
                for key, value in expected.items()} == ours  # fmt: skip


def _as_java_text(row: Setting) -> str:
    assert row.default is not None
    if row.type is Type.LIST:
        return f"[{', '.join(split_list(row.default))}]"
    return row.default


@pytest.mark.parametrize(
    "key",
    [
        "ssl.key.password",
        "A.ssl.truststore.password",
        "A->B.source.consumer.sasl.jaas.config",
        "B.producer.ssl.keystore.key",
        "sasl.oauthbearer.client.credentials.client.secret",
        "config.providers.vault.param.token",
        "my.Secret.thing",
    ],
)
def test_secrets_are_hidden(key: str) -> None:
    assert is_secret(key)
    assert redact(key, "hunter2") == "[hidden]"
    assert "hunter2" not in repr(ClientProperties({key: "hunter2"}))


@pytest.mark.parametrize("key", ["A.bootstrap.servers", "topics", "ssl.keystore.location"])
def test_the_rest_is_shown(key: str) -> None:
    assert redact_all({key: "x"}) == {key: "x"}


def test_mirrormaker_1_spellings_are_noted() -> None:
    topics, streams = find("topics", Scope.CONNECTOR), find("tasks.max", Scope.CONNECTOR)
    assert topics is not None
    assert streams is not None
    assert topics.mm1 == ("--include", "--whitelist")
    assert streams.mm1 == ("--num.streams",)


def test_own_keys_have_their_own_prefix_or_stand_among_their_siblings() -> None:
    own = names(Scope.SPARKMIRROR)
    assert {name for name in own if not name.startswith("sparkmirror.")} == {
        "sync.topic.configs.keep"
    }
    assert not own & names(*(set(Scope) - {Scope.SPARKMIRROR})), "no key of Java's"


def test_a_time_of_64_bits_is_read_as_one_that_can_be_waited() -> None:
    rows = [row for row in SETTINGS if row.type is Type.LONG and row.status is Status.SUPPORTED]
    assert "offset.lag.max" in [row.name for row in rows]
    for row in rows:
        with named(row.name):
            entry = Entry(row.name, str(2**63 - 1), TABLE)
            read = ValueReader({row.name: entry}, *row.scopes).integer(row.name)
            # A poll waits for 31 bits of milliseconds at most. This one counts records.
            assert read == 2**63 - 1 if row.name == "offset.lag.max" else read < 2**31


@pytest.mark.parametrize(("text", "number"), [("{}1", 1), ("-{}7", -7), ("+{}", 0), ("{}", 0)])
@pytest.mark.parametrize("zeros", [1, 5_000])
def test_leading_zeros_are_no_digits_too_many(text: str, number: int, zeros: int) -> None:
    """Java reads any number of them; Python's ``int`` refuses more than 4300 digits."""
    assert java_int(text.format("0" * zeros)) == number


def test_no_acknowledgement_is_refused_as_the_page_says(tmp_path: Path) -> None:
    row = find("acks", Scope.PRODUCER)
    assert row is not None
    assert "`0` is refused" in row.doc
    page = (Path(__file__).parents[4] / "docs/settings.md").read_text(encoding="utf-8").splitlines()
    (line,) = (one for one in page if one.startswith("| `acks` |"))
    assert row.doc in line
    file = "clusters=A,B\nA.bootstrap.servers=a:1\nB.bootstrap.servers=b:1\nA->B.enabled=true\n"
    with pytest.raises(ConfigError, match="acks=0"):
        load_mm2(write(tmp_path, f"{file}B.producer.acks=0\n"))
