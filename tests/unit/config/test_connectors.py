"""Connectors of Kafka Connect, and Strimzi's KafkaMirrorMaker2, as one MirrorMaker 2 file."""

from __future__ import annotations

import copy
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.cli.main import main
from sparkmirror.config.clients.sasl import OAuthLogin, sasl_settings
from sparkmirror.config.clients.tls import tls_settings
from sparkmirror.config.files.properties import load_properties
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings
from sparkmirror.wire.security.oauth import TokenSource
from tests.certificates import Authority
from tests.unit.config_files import write

SECRET = "planted-secret-99"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="u" password="{SECRET}";'
)
CLUSTERS = {
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a1:9092,a2:9092",
    "target.cluster.bootstrap.servers": "b1:9092",
}
_CLASS = "org.apache.kafka.connect.mirror.Mirror{}Connector"
_CONVERTER = "org.apache.kafka.connect.converters.ByteArrayConverter"
SOURCE: dict[str, Any] = {
    "name": "mm2-source",
    "config": {
        "connector.class": _CLASS.format("Source"),
        "name": "mm2-source",
        **CLUSTERS,
        "key.converter": _CONVERTER,
        "value.converter": _CONVERTER,
        "topics": "orders.*,customers",
        "topics.exclude": ".*-tmp",
        "tasks.max": 4,
        "replication.factor": "3",
        "offset-syncs.topic.replication.factor": "1",
        "sync.topic.acls.enabled": False,
        "source.consumer.fetch.max.bytes": "1000000",
    },
}
CHECKPOINT: dict[str, Any] = {
    "name": "mm2-checkpoint",
    "config": {
        "connector.class": _CLASS.format("Checkpoint"),
        **CLUSTERS,
        "groups": "billing.*",
        "sync.group.offsets.enabled": "true",
        "checkpoints.topic.replication.factor": "1",
        "tasks.max": "1",
    },
}
HEARTBEAT: dict[str, Any] = {
    "name": "mm2-heartbeat",
    "config": {
        "connector.class": "MirrorHeartbeatConnector",
        **CLUSTERS,
        "emit.heartbeats.interval.seconds": "5",
    },
}


def changed(connector: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
    """Keys with ``__`` for a dot; None takes a key away."""
    made = copy.deepcopy(dict(connector))
    for key, value in keys.items():
        name = key.replace("__", ".")
        made["config"].pop(name, None)
        if value is not None:
            made["config"][name] = value
    return made


def options(directory: Path, *documents: Any) -> list[str]:
    given = ["migrate-config"]
    for number, document in enumerate(documents):
        text = document if isinstance(document, str) else json.dumps(document, indent=1)
        given += ["--connect", str(write(directory, text, f"{number}.json"))]
    return given


def made(directory: Path, arguments: list[str]) -> MirrorSettings:
    path = directory / "made.properties"
    assert main([*arguments, "--output", str(path), "--force"]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return load_mm2(path)


def flow(settings: MirrorSettings) -> FlowSettings:
    (one,) = settings.flows
    return one


def test_three_connectors_are_one_flow(tmp_path: Path) -> None:
    settings = made(tmp_path, options(tmp_path, SOURCE, CHECKPOINT, HEARTBEAT))
    one = flow(settings)
    assert one.name == "A->B"
    assert one.source.bootstrap_servers == ("a1:9092", "a2:9092")
    assert one.target.bootstrap_servers == ("b1:9092",)
    assert one.topics.include == ("orders.*", "customers")
    assert one.topics.exclude == (".*-tmp",)
    assert (one.tasks_max, one.topics.replication_factor) == (4, 3)
    assert one.fetch.fetch_max_bytes == 1_000_000
    assert one.checkpoints.include == ("billing.*",)
    assert one.checkpoints.enabled
    assert one.checkpoints.sync_enabled
    assert not one.topics.sync_acls_enabled
    (heartbeats,) = settings.heartbeats
    assert (heartbeats.name, heartbeats.interval_s) == ("A->B", 5)
    assert one.offset_storage_topic == "connect-offsets"
    assert settings.warnings == ()


def test_what_has_no_connector_is_not_done(tmp_path: Path) -> None:
    """Connect makes checkpoints and heartbeats only where their connectors run."""
    settings = made(tmp_path, [*options(tmp_path, SOURCE), "--offset-topic", "my-offsets"])
    assert not flow(settings).checkpoints.enabled
    assert settings.heartbeats == ()
    assert flow(settings).offset_storage_topic == "my-offsets"


@pytest.mark.parametrize("form", ["config", "list", "expanded"])
def test_every_form_of_the_rest_interface(form: str, tmp_path: Path) -> None:
    wanted = made(tmp_path, options(tmp_path, SOURCE, CHECKPOINT))
    documents: list[Any] = {
        "config": [SOURCE["config"], CHECKPOINT["config"]],
        "list": [[SOURCE, CHECKPOINT]],
        "expanded": [{one["name"]: {"info": one, "status": {}} for one in (SOURCE, CHECKPOINT)}],
    }[form]
    assert made(tmp_path, options(tmp_path, *documents)) == wanted


def test_other_connectors_are_passed_over_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jdbc = {"name": "jdbc", "config": {"connector.class": "io.example.Jdbc", "password": SECRET}}
    both = flow(made(tmp_path, options(tmp_path, [jdbc, SOURCE])))
    assert both == flow(made(tmp_path, options(tmp_path, [SOURCE])))
    told = " ".join(capsys.readouterr().err.split())
    assert "io.example.Jdbc is not a MirrorMaker 2 connector" in told
    assert SECRET not in told


def test_several_source_connectors_of_one_flow(tmp_path: Path) -> None:
    other = changed(SOURCE, topics="logs", name="other") | {"name": "other"}
    one = flow(made(tmp_path, options(tmp_path, SOURCE, other)))
    assert one.topics.include == ("orders.*", "customers", "logs")
    assert one.tasks_max == 8


@pytest.mark.parametrize("tasks", ["+1", f"{'0' * 5_000}1"])
def test_tasks_are_counted_as_java_reads_them(tmp_path: Path, tasks: str) -> None:
    other = changed(SOURCE, topics="logs", tasks__max=tasks)
    assert flow(made(tmp_path, options(tmp_path, SOURCE, other))).tasks_max == 5


def test_a_source_connector_without_topics_has_all(tmp_path: Path) -> None:
    one, other = changed(SOURCE, topics=None), changed(SOURCE, topics="logs")
    both = flow(made(tmp_path, options(tmp_path, one, other)))
    assert both.topics.include == (".*", "logs")
    one, other = changed(SOURCE, tasks__max=None), changed(SOURCE, topics="logs")
    assert flow(made(tmp_path, options(tmp_path, one, other))).tasks_max == 5


def test_a_key_of_one_source_connector_is_not_given_to_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = changed(SOURCE, topics="logs", topics__exclude=None)
    assert main(options(tmp_path, SOURCE, other)) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "topics.exclude differs from the default, which the other connector has" in told


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"groups": "billing.*"}, {}),
        ({"emit__heartbeats__enabled": "false"}, {}),
        ({"topics__exclude": None, "topics__blacklist": ".*-tmp"}, {}),
        ({"sync__topic__configs__enabled": "TRUE"}, {}),
    ],
)
def test_what_no_source_connector_reads_and_other_spellings_are_no_difference(
    one: dict[str, str | None], other: dict[str, str | None], tmp_path: Path
) -> None:
    both = options(tmp_path, changed(SOURCE, **one), changed(SOURCE, topics="logs", **other))
    assert flow(made(tmp_path, both)).topics.exclude == (".*-tmp",)


def test_an_old_name_of_one_source_connector_is_not_given_to_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = changed(SOURCE, topics__exclude=None, topics__blacklist=".*-tmp")
    assert main(options(tmp_path, one, changed(SOURCE, topics__exclude=None))) == 2
    assert "topics.blacklist differs from the default" in " ".join(capsys.readouterr().err.split())


def test_an_enabled_heartbeat_connector_mirrors_nothing(tmp_path: Path) -> None:
    """It does not read the key: the flow in its direction only has heartbeats."""
    back = changed(
        HEARTBEAT,
        enabled="true",
        source__cluster__alias="B",
        target__cluster__alias="A",
        source__cluster__bootstrap__servers="b1:9092",
        target__cluster__bootstrap__servers="a1:9092,a2:9092",
    )
    for disabled in (back, changed(back, enabled="false")):
        settings = made(tmp_path, options(tmp_path, SOURCE, disabled))
        assert flow(settings).name == "A->B"
        assert [beat.name for beat in settings.heartbeats] == ["B->A"]


@pytest.mark.parametrize("first", ["source", "heartbeat"])
def test_a_heartbeat_connector_needs_no_address_of_its_source(first: str, tmp_path: Path) -> None:
    """It only writes to its target, so Connect runs it without."""
    beat = changed(HEARTBEAT, source__cluster__bootstrap__servers=None)
    documents = [SOURCE, beat] if first == "source" else [beat, SOURCE]
    settings = made(tmp_path, options(tmp_path, *documents))
    assert flow(settings).source.bootstrap_servers == ("a1:9092", "a2:9092")
    assert [one.name for one in settings.heartbeats] == ["A->B"]
    elsewhere = changed(beat, source__cluster__alias="C")
    settings = made(tmp_path, options(tmp_path, elsewhere, SOURCE))
    assert flow(settings).name == "A->B"
    assert [one.name for one in settings.heartbeats] == ["C->B"]


def test_a_disabled_checkpoint_connector_makes_no_checkpoints(tmp_path: Path) -> None:
    one = flow(made(tmp_path, options(tmp_path, SOURCE, changed(CHECKPOINT, enabled="false"))))
    assert (one.checkpoints.enabled, one.checkpoints.sync_enabled) == (False, False)


def test_a_disabled_source_connector_is_no_flow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(tmp_path, changed(SOURCE, enabled=False))) == 2
    assert "it mirrors nothing" in " ".join(capsys.readouterr().err.split())
    assert flow(made(tmp_path, options(tmp_path, changed(SOURCE, enabled="TRUE")))).enabled


def test_keys_that_never_were_any_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Old pages name them; Java does not read them."""
    one = flow(
        made(tmp_path, options(tmp_path, SOURCE, changed(CHECKPOINT, emit__checkpoints="false")))
    )
    assert one.checkpoints.enabled
    assert "its key is emit.checkpoints.enabled" in " ".join(capsys.readouterr().err.split())


def test_what_has_no_counterpart_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its line, in the file and on the terminal."""
    odd = changed(SOURCE, topicz__exclude="x", errors__tolerance="all", groups="g",
                  source__cluster__fetch__max__bytes="1")  # fmt: skip
    arguments = options(tmp_path, odd)
    lines = (tmp_path / "0.json").read_text().splitlines()
    assert main(arguments) == 0
    told = capsys.readouterr()
    text = " ".join(told.out.replace("\n#", "").split())
    for key, words in (
        ("topicz.exclude", "not a key of MirrorMaker 2 (did you mean topics.exclude?)"),
        ("errors.tolerance", "records are copied as raw batches"),
        ("groups", "a MirrorSourceConnector does not read it"),
        ("source.cluster.fetch.max.bytes", "Java's connector does not read it either"),
    ):
        line = next(n for n, one in enumerate(lines, 1) if f'"{key}"' in one)
        assert f"Left out: 0.json:{line}: {key}: {words}" in text
        assert f"0.json:{line}: {key}: {words}" in told.err


BROKEN = [
    (['{"name": "x",\n}'], 2, "this is not JSON"),
    (['{"name": "x"}'], 1, "connector.class is missing"),
    (["[]"], 0, "contains no MirrorMaker 2 connector"),
    (["7"], 1, "is not a table"),
    ([changed(SOURCE, connector__class="io.debezium.Mysql")], "connector.class", "is not a"),
    ([changed(SOURCE, source__cluster__alias=None)], "config", "source.cluster.alias is missing"),
    ([changed(SOURCE, source__cluster__bootstrap__servers=None)], "config", "bootstrap.servers"),
    ([changed(SOURCE, tasks__max="four")], "tasks.max", "is not a whole number"),
    ([json.dumps(SOURCE, indent=1).replace(": 4,", f": {'9' * 5_000},")],
     "tasks.max", "does not fit in 32 bits"),
    ([changed(SOURCE, topics="orders[")], "topics", "regex"),
    ([changed(SOURCE, topics=["a", "b"])], "topics", "is not a text"),
    ([changed(SOURCE, transforms="mask")], "transforms", "mask.type is missing"),
    ([changed(SOURCE, transforms="m", transforms__m__type="MaskField$Value")],
     "transforms.m.type", "MaskField$Value cannot be used"),
    ([changed(SOURCE, key__converter="org.example.Avro")], "key.converter", "cannot be used"),
    ([changed(SOURCE, tasks__max="0")], "tasks.max", "out of range"),
    ([changed(SOURCE, source__cluster__security__protocol="SSH")],
     "source.cluster.security.protocol", "security.protocol"),
    ([CHECKPOINT], "config", "no MirrorSourceConnector"),
    ([HEARTBEAT], "config", "no MirrorSourceConnector is given, so the new file would mirror"),
    ([SOURCE, changed(HEARTBEAT, target__cluster__alias="C",
                      target__cluster__bootstrap__servers=None)],
     "config", "target.cluster.bootstrap.servers of connector mm2-heartbeat is missing"),
    ([changed(HEARTBEAT, source__cluster__bootstrap__servers=None),
      changed(SOURCE, source__cluster__bootstrap__servers=None)],
     "config", "source.cluster.bootstrap.servers of connector mm2-source is missing"),
    ([SOURCE, CHECKPOINT, CHECKPOINT], "config", "two MirrorCheckpointConnectors"),
    ([SOURCE, changed(CHECKPOINT, source__cluster__bootstrap__servers="z:1")],
     "source.cluster.bootstrap.servers", "differs from source.cluster.bootstrap.servers"),
    ([SOURCE, changed(SOURCE, topics__exclude="y")], "topics.exclude", "differs"),
]  # fmt: skip


@pytest.mark.parametrize(("documents", "place", "words"), BROKEN)
def test_errors_name_the_file_the_line_and_the_key(
    documents: list[Any],
    place: str | int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = options(tmp_path, *documents)
    assert main(arguments) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert words in told
    file = tmp_path / f"{len(documents) - 1}.json"
    if isinstance(place, str):
        lines = file.read_text().splitlines()
        place = next(n for n, one in enumerate(lines, 1) if f'"{place}"' in one)
    assert (f"{file}:{place}: " if place else file.name) in told
    assert "mm2.properties" not in told  # a file that nobody has


PACKAGE = "org.apache.kafka.connect.mirror."


@pytest.mark.parametrize(
    ("source", "checkpoint", "same"),
    [
        ("IdentityReplicationPolicy", f"{PACKAGE}IdentityReplicationPolicy", True),
        (None, f"{PACKAGE}DefaultReplicationPolicy", True),
        ("IdentityReplicationPolicy", "DefaultReplicationPolicy", False),
        (None, "IdentityReplicationPolicy", False),
    ],
)
def test_policies_of_one_flow_are_one(
    source: str | None,
    checkpoint: str,
    same: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A checkpoint connector alone does not rename topics."""
    key = "replication__policy__class"
    given = changed(SOURCE, **{key: source}), changed(CHECKPOINT, **{key: checkpoint})
    assert main(options(tmp_path, *given)) == (0 if same else 2)
    told = " ".join(capsys.readouterr().err.split())
    assert ("replication.policy.class differs" in told) is not same


def test_the_flow_is_what_its_source_connector_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the others say of topics and tasks concerns their own work in Connect."""
    checkpoint = changed(CHECKPOINT, topics="x", replication__factor="2")
    wanted = flow(made(tmp_path, options(tmp_path, SOURCE, CHECKPOINT)))
    capsys.readouterr()
    assert flow(made(tmp_path, options(tmp_path, SOURCE, checkpoint))) == wanted
    told = " ".join(capsys.readouterr().err.split())
    for key in ("topics", "replication.factor", "tasks.max"):
        assert f"{key}: the flow uses the value of its MirrorSourceConnector" in told


def test_tasks_that_cannot_be_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = changed(SOURCE, tasks__max="${env:TASKS}")
    assert main(options(tmp_path, one, SOURCE)) == 2
    assert "tasks.max differs" in " ".join(capsys.readouterr().err.split())


def test_secrets_go_into_a_private_file_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    login = {"source__cluster__security__protocol": "SASL_SSL",
             "source__cluster__sasl__mechanism": "PLAIN",
             "source__cluster__sasl__jaas__config": JAAS}  # fmt: skip
    arguments = options(tmp_path, changed(SOURCE, **login))
    assert main(arguments) == 2
    assert "A.sasl.jaas.config" in capsys.readouterr().err
    one = flow(made(tmp_path, arguments))
    assert SECRET in one.source.properties["sasl.jaas.config"]
    twice = changed(CHECKPOINT, **(login | {"source__cluster__sasl__jaas__config": f"{JAAS} "}))
    other = changed(CHECKPOINT, source__cluster__sasl__jaas__config=JAAS.replace("99", "98"))
    made(tmp_path, options(tmp_path, changed(SOURCE, **login), twice))
    assert main(options(tmp_path, changed(SOURCE, **login), other)) == 2
    broken = json.dumps(changed(SOURCE, **login), indent=1).replace(f"{SECRET}", f'{SECRET}" ')
    assert main(options(tmp_path, broken)) == 2
    wrong = changed(SOURCE, **(login | {"source__cluster__ssl__key__password": [SECRET]}))
    assert main(options(tmp_path, wrong)) == 2
    told = capsys.readouterr()
    assert "planted" not in told.out + told.err


def test_placeholders_stay_and_need_no_file_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    password = "${file:/none/here.properties:password}"
    given = changed(SOURCE, target__cluster__ssl__truststore__password=password,
                    target__cluster__ssl__truststore__location="${vault:a:b}")  # fmt: skip
    assert main(options(tmp_path, given)) == 0
    told = capsys.readouterr()
    assert f"B.ssl.truststore.password = {password}" in told.out
    assert "config.providers = file\nconfig.providers.file.class = org.apache" in told.out
    assert "the class of the config provider vault is unknown" in " ".join(told.err.split())


def login(user: str) -> str:
    return JAAS.replace('"u"', f'"{user}"')


USERS = {
    "source__cluster__security__protocol": "SASL_SSL",
    "source__cluster__sasl__mechanism": "PLAIN",
    "source__cluster__sasl__jaas__config": login("source"),
    "target__cluster__security__protocol": "SASL_SSL",
    "target__cluster__sasl__mechanism": "PLAIN",
    "target__cluster__sasl__jaas__config": login("target"),
}


def user(client: ClusterClient) -> str:
    return client.properties["sasl.jaas.config"].partition('username="')[2].partition('"')[0]


def test_logins_of_one_kind_of_client_stay(tmp_path: Path) -> None:
    """In Java they override those of the clusters, and count for both sides."""
    keys = {f"{role}__sasl__jaas__config": login(role) for role in ("consumer", "admin")}
    offset_syncs = {"producer__sasl__jaas__config": login("producer")}
    given = changed(SOURCE, **USERS, **keys, **offset_syncs)
    checkpoint = changed(CHECKPOINT, **USERS, **keys)
    settings = made(tmp_path, options(tmp_path, given, checkpoint, changed(HEARTBEAT, **USERS)))
    one = flow(settings)
    assert (user(one.source), user(one.target)) == ("consumer", "target")
    assert (user(one.source_admin), user(one.target_admin)) == ("admin", "admin")
    assert user(one.checkpoints.client or one.target) == "consumer"
    assert user(one.offset_syncs.client or one.target) == "producer"


def test_a_login_of_one_side_comes_before_one_of_both(tmp_path: Path) -> None:
    keys = {
        "consumer__sasl__jaas__config": login("consumer"),
        "source__consumer__sasl__jaas__config": login("reader"),
        "admin__sasl__jaas__config": login("admin"),
        "target__admin__sasl__jaas__config": login("creator"),
    }
    one = flow(made(tmp_path, options(tmp_path, changed(SOURCE, **USERS, **keys))))
    assert user(one.source) == "reader"
    assert (user(one.source_admin), user(one.target_admin)) == ("admin", "creator")


def test_each_connector_has_its_own_logins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the checkpoint connector consumes from the target."""
    given = changed(SOURCE, **USERS, consumer__sasl__jaas__config=login("reader"))
    plain = changed(CHECKPOINT, **USERS, tasks__max=None)
    loading = changed(plain, target__consumer__sasl__jaas__config=login("loader"))
    for checkpoint, expected in ((plain, "target"), (loading, "loader")):
        one = flow(made(tmp_path, options(tmp_path, given, checkpoint)))
        assert user(one.source) == "reader"
        assert user(one.checkpoints.client or one.target) == expected
        assert "left out" not in capsys.readouterr().err
    other = changed(CHECKPOINT, **USERS, admin__sasl__jaas__config=login("other"))
    assert user(flow(made(tmp_path, options(tmp_path, given, other))).source_admin) == "source"
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("admin.sasl.jaas.config: the flow uses the value of its MirrorSource") == 1


LOGIN = {
    "source__cluster__security__protocol": "SASL_SSL",
    "source__cluster__sasl__mechanism": "PLAIN",
    "source__cluster__sasl__jaas__config": JAAS,
}


@pytest.mark.parametrize(
    "keys",
    [
        {"source__cluster__bootstrap__servers": "${file:/opt/c.properties:a}"},
        {"source__cluster__bootstrap__servers": "a1:9092,${env:MORE}"},
        {"topics": "${env:TOPICS}"},
        {"topics": "orders.*,${directory:/opt:topics}"},
        {"topics__exclude": "${vault:a:topics}"},
        {"tasks__max": "${env:TASKS}"},
        {"replication__factor": "${env:FACTOR}"},
        {"sync__topic__acls__enabled": "${env:ACLS}"},
        {"offset-syncs__topic__location": "${env:SIDE}"},
        {"replication__policy__class": "${env:POLICY}"},
        {"replication__policy__separator": "${env:SEPARATOR}"},
        {"source__consumer__fetch__max__bytes": "${env:BYTES}"},
        {"source__consumer__auto__offset__reset": "${env:RESET}"},
        {"producer__override__acks": "${env:ACKS}"},
        {"transforms": "${env:NAMES}"},
        {"transforms": "one", "transforms__one__type": "${env:TYPE}"},
        LOGIN | {"source__cluster__security__protocol": "${env:PROTOCOL}"},
        LOGIN | {"source__cluster__sasl__mechanism": "${env:MECHANISM}"},
        LOGIN | {"source__cluster__sasl__jaas__config": "${file:/opt/c.properties:jaas}"},
        LOGIN | {"source__cluster__sasl__jaas__config": JAAS.replace(f'"{SECRET}"', "${env:P}")},
        LOGIN | {"source__cluster__ssl__truststore__location": "${env:STORE}"},
        LOGIN | {
            "source__cluster__ssl__truststore__location": "/store",
            "source__cluster__ssl__truststore__type": "${env:TYPE}",
        },
        {
            "source__cluster__security__protocol": "SASL_SSL",
            "source__cluster__sasl__mechanism": "OAUTHBEARER",
            "source__cluster__sasl__oauthbearer__token__endpoint__url": "${env:URL}",
            "source__cluster__sasl__jaas__config": "org.apache.kafka.common.security.oauthbearer."
            'OAuthBearerLoginModule required clientId="a" clientSecret="${env:SECRET}";',
        },
    ],
)  # fmt: skip
def test_any_value_may_have_placeholders(keys: dict[str, str], tmp_path: Path) -> None:
    """What they stand for is checked where the mirror runs."""
    given = changed(SOURCE, **keys)
    path = tmp_path / "made.properties"
    assert main([*options(tmp_path, given), "--output", str(path)]) == 0
    written = load_properties(path)
    for key, value in keys.items():
        name = f"A->B.{key}".replace("__", ".").replace("A->B.source.cluster.", "A.")
        assert written[name].value == value


def test_placeholders_of_one_setting_do_not_hide_the_faults_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = changed(SOURCE, topics="${env:T}", transforms="x", transforms__x__type="${env:X}",
                    source__cluster__ssl__keystore__password="${env:P}",
                    source__cluster__security__protocol="SSL")  # fmt: skip
    assert main(options(tmp_path, given)) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "source.cluster.ssl.keystore.password: Cluster 'A'" in told


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ({}, {"topics": "${env:TOPICS}"}),
        ({}, {"topics__exclude": "${env:TOPICS}"}),
        ({}, {"transforms": "one", "transforms__one__type": "${env:TYPE}"}),
        ({}, {"replication__policy__class": "${env:POLICY}"}),
        (
            {"replication__policy__class": None, "replication__policy__separator": "_"},
            {"replication__policy__class": None, "replication__policy__separator": "${env:S}"},
        ),
    ],
)
def test_what_may_be_no_loop_is_none(
    there: dict[str, str | None], back: dict[str, str | None], tmp_path: Path
) -> None:
    """Which topics and names the placeholders stand for is not known."""
    identity = changed(SOURCE, replication__policy__class="IdentityReplicationPolicy")
    there = changed(identity, **there)
    back = changed(
        changed(identity, **back),
        source__cluster__alias="B",
        target__cluster__alias="A",
        source__cluster__bootstrap__servers="b1:9092",
        target__cluster__bootstrap__servers="a1:9092,a2:9092",
    )
    assert main([*options(tmp_path, there, back), "--output", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("side", ["source", "target"])
def test_an_alias_is_no_placeholder(
    side: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a part of the new file's keys, where nothing is resolved."""
    key = f"{side}__cluster__alias"
    assert main(options(tmp_path, changed(SOURCE, **{key: "${env:ALIAS}"}))) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"0.json:18: {side}.cluster.alias contains a placeholder" in told
    assert "Write the alias itself" in told


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--strimzi", "x.yaml"], "cannot be combined with --connect"),
        (["--take-positions"], "cannot be combined with --connect"),
        (["--num.streams", "2"], "cannot be combined with --connect"),
        (["--target", "foo"], "--target: this option cannot be combined with --connect"),
        (["--secrets", "d"], "--secrets: this option cannot be combined with --connect"),
    ],
)
def test_options_of_one_kind_of_file(
    more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options(tmp_path, SOURCE), *more]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("more", [["--offset-topic", "t"], ["--target", "foo"]])
def test_options_that_strimzi_does_not_need(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate-config", "--strimzi", "x.yaml", *more]) == 2
    told = f"{more[0]}: this option cannot be combined with --strimzi"
    assert told in " ".join(capsys.readouterr().err.split())


def test_nothing_to_migrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consumer = write(tmp_path, "bootstrap.servers=a:1\ngroup.id=g\n", "c")
    for given in ([], ["--consumer.config", str(consumer), "--include", "x"]):
        assert main(["migrate-config", *given]) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "--producer.config" in told
        assert "--connect FILE.json" in told


# --- Strimzi ------------------------------------------------------------------------------------

WEST = """\
alias: west
bootstrapServers: west-kafka-bootstrap:9093
tls:
  trustedCertificates:
    - secretName: west-ca
      certificate: ca.crt
    - secretName: more-ca
      certificate: ca.crt
authentication:
  type: scram-sha-512
  username: mirror
  passwordSecret:
    secretName: mirror-user
    password: password
config:
  consumer.fetch.max.bytes: 1000000
"""
EAST = """\
alias: east
bootstrapServers: east-kafka-bootstrap:9093
tls:
  trustedCertificates:
    - {secretName: west-ca, certificate: ca.crt}
authentication:
  type: tls
  certificateAndKey:
    secretName: east-user
    certificate: user.crt
    key: user.key
"""
MIRROR = """\
sourceConnector:
  tasksMax: 5
  autoRestart: {enabled: true}
  config:
    replication.factor: -1
    sync.topic.acls.enabled: "false"
checkpointConnector:
  config:
    sync.group.offsets.enabled: true
topicsPattern: "orders.*"
topicsExcludePattern: ".*-tmp"
groupsPattern: "billing.*"
"""


def indented(text: str, by: str, first: str) -> str:
    return (by + text.rstrip().replace("\n", "\n" + by)).replace(by, first, 1) + "\n"


def strimzi(west: str = WEST, east: str = EAST, mirror: str = MIRROR) -> str:
    """The resource as v1beta2 has it."""
    return (
        "apiVersion: kafka.strimzi.io/v1beta2\nkind: KafkaMirrorMaker2\nmetadata: {name: m}\n"
        "spec:\n  replicas: 1\n  connectCluster: east\n  clusters:\n"
        + indented(west, "      ", "    - ")
        + indented(east + "config:\n  config.storage.replication.factor: -1\n", "      ", "    - ")
        + "  mirrors:\n    - sourceCluster: west\n      targetCluster: east\n"
        + indented(mirror, "      ", "      ")
    )


def strimzi_v1(west: str = WEST, east: str = EAST, mirror: str = MIRROR) -> str:
    """The same as v1 has it: the target once, each source in its mirror."""
    return (
        "apiVersion: kafka.strimzi.io/v1\nkind: KafkaMirrorMaker2\nmetadata: {name: m}\n"
        "spec:\n  replicas: 1\n  target:\n"
        + indented(east, "    ", "    ")
        + "    groupId: m\n    offsetStorageTopic: my-offsets\n"
        + "  mirrors:\n    - source:\n"
        + indented(west, "        ", "        ")
        + indented(mirror, "      ", "      ")
    )


def mounted(directory: Path) -> Path:
    """The Secrets as Kubernetes mounts them."""
    authority = Authority()
    user = authority.certify("mirror")
    files = {
        "west-ca/ca.crt": authority.pem(),
        "more-ca/ca.crt": Authority("Another").pem(),
        "mirror-user/password": SECRET,
        "east-user/user.crt": user.chain_pem(),
        "east-user/user.key": user.key_pem(),
    }
    for name, text in files.items():
        path = directory / "secrets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory / "secrets"


MERGES = """\
kind: KafkaMirrorMaker2
common:
  patterns: &patterns {topicsPattern: "orders.*", groupsPattern: "billing.*"}
  tasks: &tasks {tasksMax: 5}
spec:
  clusters:
    - {alias: west, bootstrapServers: "west:9092", tls: }
    - {alias: east, bootstrapServers: "east:9092"}
  mirrors:
    - <<: *patterns
      sourceCluster: west
      targetCluster: east
      sourceConnector:
        <<: [*tasks]
      checkpointConnector: {}
      heartbeatConnector:
"""


def test_what_a_resource_of_strimzi_merges_or_leaves_empty(tmp_path: Path) -> None:
    """YAML's merge keys count, and a field without a value is one that is missing."""
    path = write(tmp_path, MERGES, "mirror.yaml")
    settings = made(tmp_path, ["migrate-config", "--strimzi", str(path)])
    one = flow(settings)
    assert one.source.security_protocol == "PLAINTEXT"
    assert (one.topics.include, one.tasks_max) == (("orders.*",), 5)
    assert one.checkpoints.include == ("billing.*",)
    assert settings.heartbeats == ()
    path.write_text(MERGES.replace("tls: }", "tls: {}}"))
    one = flow(made(tmp_path, ["migrate-config", "--strimzi", str(path)]))
    assert one.source.security_protocol == "SSL"


@pytest.mark.parametrize("resource", [strimzi, strimzi_v1], ids=["v1beta2", "v1"])
def test_a_resource_of_strimzi(
    resource: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, resource(), "mirror.yaml")
    secrets = mounted(tmp_path)
    one = flow(made(tmp_path, ["migrate-config", "--strimzi", str(path),
                               "--secrets", str(secrets)]))  # fmt: skip
    assert one.name == "west->east"
    assert (one.tasks_max, one.topics.replication_factor) == (5, -1)
    assert one.topics.include == ("orders.*",)
    assert one.topics.exclude == (".*-tmp",)
    assert one.checkpoints.include == ("billing.*",)
    assert one.checkpoints.sync_enabled
    assert one.source.security_protocol == "SASL_SSL"
    assert f'password="{SECRET}"' in one.source.properties["sasl.jaas.config"]
    assert one.source.properties["ssl.truststore.certificates"].count("BEGIN CERTIFICATE") == 2
    assert one.target.security_protocol == "SSL"
    assert "BEGIN PRIVATE KEY" in one.target.properties["ssl.keystore.key"]
    v1 = resource is strimzi_v1
    assert one.offset_storage_topic == ("my-offsets" if v1 else "mirrormaker2-cluster-offsets")
    told = " ".join(capsys.readouterr().err.split())
    assert "spec.replicas: it is for Strimzi's pods" in told
    assert "sourceConnector.autoRestart: a partition that fails is retried" in told
    assert ("config.storage.replication.factor" in told) is not v1
    assert SECRET not in (tmp_path / "made.properties").read_text()


def test_secrets_of_strimzi_need_not_be_here_to_see_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, strimzi(), "mirror.yaml")
    assert main(["migrate-config", "--strimzi", str(path)]) == 0
    text = capsys.readouterr().out
    assert 'password="${mounted:/etc/sparkmirror/secrets/mirror-user:password}"' in text


def test_placeholders_that_stand_in_the_resource(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "  config.providers: env\n  consumer.client.rack: ${env:RACK}\n"
    path = write(tmp_path, strimzi(west=WEST + more), "mirror.yaml")
    assert main(["migrate-config", "--strimzi", str(path)]) == 0
    told = capsys.readouterr()
    assert "west.consumer.client.rack = ${env:RACK}" in told.out
    assert "config.providers.env.class = org.apache.kafka.common.config.provider.EnvVar" in told.out
    assert "config.providers: providers in use are declared" in " ".join(told.err.split())


def test_keys_of_older_connectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They have their new names, or are named."""
    old = changed(SOURCE, topics__exclude=None, topics__blacklist="secret.*",
                  use__incremental__alter__configs="requested",
                  producer__override__auto__include__jmx__reporter="false")  # fmt: skip
    assert flow(made(tmp_path, options(tmp_path, old))).topics.exclude == ("secret.*",)
    told = " ".join(capsys.readouterr().err.split())
    for key in ("use.incremental.alter.configs", "producer.override.auto.include.jmx.reporter"):
        assert f"{key}: it has no replacement" in told


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kind: KafkaMirrorMaker2", "kind: KafkaConnect", "no KafkaMirrorMaker2"),
        ("alias: west", "alia: west", "alias is missing"),
        ("sourceCluster: west", "sourceCluster: north", "is north, which is not an alias"),
        ("type: scram-sha-512", "type: ldap", "authentication.type is ldap"),
        ("    password: password", "    passwort: p", "passwordSecret.password is missing"),
        ("certificate: ca.crt\n", 'pattern: "*.crt"\n', "trustedCertificates[0].pattern selects"),
        ("tasksMax: 5", "tasksMax: five", "sourceConnector.tasksMax=five is not a whole number"),
        ("tasksMax: 5", "tasksMax: [5]", "tasksMax is not a text"),
        ("fetch.max.bytes: 1000000", "fetch.max.bytes: many", "fetch.max.bytes"),
        ("topicsPattern: \"orders.*\"", "topicsPattern: \"orders[\"", "topicsPattern"),
        ("spec:", "spec: {}\nother:", "spec.clusters is missing"),
        ("  mirrors:", "  mirrorz:", "spec.mirrors is missing"),
        ("alias: east", "alias: west", "another cluster also has"),
        ("consumer.fetch.max.bytes: 1000000", "ssl.keystore.password: x",
         "spec.clusters[0].config.ssl.keystore.password: Cluster 'west'"),
    ],
)  # fmt: skip
def test_strimzis_errors_name_the_line_and_the_field(
    old: str, new: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = strimzi()
    assert old in text
    path = write(tmp_path, text.replace(old, new, 1), "mirror.yaml")
    output = tmp_path / "made.properties"
    assert main(["migrate-config", "--strimzi", str(path), "--output", str(output)]) == 2
    assert not output.exists()
    told = " ".join(capsys.readouterr().err.split())
    assert words in told
    assert f"{path}" in told
    assert "mm2.properties" not in told


OAUTH = """\
alias: west
bootstrapServers: west-kafka-bootstrap:9093
tls: {trustedCertificates: [{secretName: west-ca, certificate: ca.crt}]}
authentication:
  type: oauth
  tokenEndpointUri: https://idp.example/token
  clientId: mirror
  clientSecret: {secretName: mirror-user, key: password}
  scope: kafka all
  tlsTrustedCertificates: [{secretName: more-ca, certificate: ca.crt}]
  disableTlsHostnameVerification: true
  connectTimeoutSeconds: 7
  readTimeoutSeconds: 8
  httpRetries: 3
  httpRetryPauseMs: 250
  maxTokenExpirySeconds: 600
  saslExtensions: {logicalCluster: 'lkc "1"'}
"""


def oauth_of(directory: Path, west: str) -> OAuthLogin:
    """What the clients of the source log in with, from the file that is made."""
    path = write(directory, strimzi(west=west), "mirror.yaml")
    secrets = mounted(directory)
    one = flow(made(directory, ["migrate-config", "--strimzi", str(path),
                                "--secrets", str(secrets)]))  # fmt: skip
    assert one.source.security_protocol == "SASL_SSL"
    assert one.source_admin.properties["sasl.jaas.config"]
    settings = sasl_settings(
        {**one.source.properties, "security.protocol": one.source.security_protocol}, where="west"
    )
    assert settings.mechanism == "OAUTHBEARER"
    assert settings.oauth is not None
    return settings.oauth


def test_an_oauth_login_of_strimzi(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    login = oauth_of(tmp_path, OAUTH)
    assert (login.url, login.client_id, login.client_secret, login.scope) == (
        "https://idp.example/token", "mirror", SECRET, "kafka all",
    )  # fmt: skip
    assert (login.connect_timeout_s, login.read_timeout_s, login.retry_backoff_s) == (7, 8, 0.25)
    assert login.extensions == {"logicalCluster": 'lkc "1"'}
    assert tls_settings(login.tls, where="idp").truststore is not None
    assert login.tls["ssl.truststore.location"] == str(tmp_path / "secrets/more-ca/ca.crt")
    assert login.tls["ssl.endpoint.identification.algorithm"] == ""
    told = " ".join(capsys.readouterr().err.split())
    lines = (tmp_path / "mirror.yaml").read_text().splitlines()
    for field, words in (
        ("httpRetries", "failed requests for a token are retried"),
        ("maxTokenExpirySeconds", "sasl.login.refresh.* determine"),
    ):
        line = next(n for n, one in enumerate(lines, 1) if field in one)
        place = f"mirror.yaml:{line}: spec.clusters[0].authentication.{field}: {words}"
        assert place in told
    assert SECRET not in (tmp_path / "made.properties").read_text() + told


def test_an_oauth_login_of_strimzi_has_the_hosts_name_checked(tmp_path: Path) -> None:
    """Unless the resource says otherwise; the machine's own authorities are trusted."""
    for more in ("", "  disableTlsHostnameVerification: false\n"):
        login = oauth_of(tmp_path, OAUTH[: OAUTH.index("  tlsTrusted")] + more)
        assert login.tls == {}
        assert login.extensions == {}


@pytest.mark.parametrize("field", ["accessToken", "accessTokenLocation"])
def test_a_ready_token_of_strimzi(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "secrets" / "mirror-user" / "password"
    given = {
        "accessToken": "{secretName: mirror-user, key: password}",
        "accessTokenLocation": str(token),
    }[field]
    login = oauth_of(tmp_path, OAUTH + f"  {field}: {given}\n")
    assert TokenSource(login, "west").token() == SECRET
    told = " ".join(capsys.readouterr().err.split())
    assert "authentication.clientSecret: a finished token is used" in told
    assert "authentication.tokenEndpointUri: a finished token is used" in told


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  clientSecret:", "  clientSecrat:", "authentication.clientSecret is missing"),
        ("  clientId: mirror", "  other: x", "authentication.clientId is missing"),
        ("  tokenEndpointUri: https", "  tokenEndpointUri: file", "is not an http(s) address"),
        ("key: password", "kay: password", "clientSecret.key is missing"),
        ("connectTimeoutSeconds: 7", "connectTimeoutSeconds: soon", "is not a whole number"),
        ("connectTimeoutSeconds: 7", f"connectTimeoutSeconds: {'9' * 5_000}", "is too large"),
        ("[{secretName: more-ca, certificate: ca.crt}]",
         "[{secretName: more-ca, certificate: ca.crt}, {secretName: west-ca, certificate: x}]",
         "tlsTrustedCertificates names several certificates"),
        ("{secretName: more-ca, certificate: ca.crt}", "{secretName: more-ca, pattern: '*.crt'}",
         "tlsTrustedCertificates[0].pattern selects"),
        ("  scope: kafka all", "  audience: kafka", "authentication.audience is sent to"),
        ("  scope: kafka all", "  refreshToken: {secretName: a, key: b}", "is a refresh token"),
        ("  scope: kafka all", "  passwordSecret: {secretName: a, password: b}", "user's password"),
        ("  scope: kafka all", "  clientAssertion: {secretName: a, key: b}", "JwtBearerJwt"),
        ("  scope: kafka all", "  clientAssertionLocation: /a/b", "JwtBearerJwt"),
        ("  scope: kafka all", "  accessTokenLocation: a/b", "is not an absolute path"),
        ("  scope: kafka all",
         "  accessTokenLocation: /a/b\n  accessToken: {secretName: a, key: b}",
         "is set together with accessToken"),
    ],
)  # fmt: skip
def test_what_an_oauth_login_of_strimzi_cannot_say_here(
    old: str, new: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in OAUTH
    path = write(tmp_path, strimzi(west=OAUTH.replace(old, new, 1)), "mirror.yaml")
    assert main(["migrate-config", "--strimzi", str(path)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert words in told
    assert f"{path}:" in told


def test_secrets_that_stand_in_the_resource_are_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = strimzi(west=WEST + f"  ssl.keystore.password: {SECRET}\n")
    path = write(tmp_path, text, "mirror.yaml")
    assert main(["migrate-config", "--strimzi", str(path)]) == 2
    told = capsys.readouterr()
    assert "west.ssl.keystore.password" in told.err
    assert "planted" not in told.out + told.err


def test_single_message_transforms_are_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"transforms": "drop", "transforms__drop__type": f"{PACKAGE[:-7]}transforms.DropHeaders"}
    keys["transforms__drop__headers"] = "a, b"
    checkpoint = changed(CHECKPOINT, transforms="all", transforms__all__type="Filter")
    arguments = options(tmp_path, changed(SOURCE, **keys), checkpoint)
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert ".transforms.drop.headers = a, b" in told.out
    assert "Filter" not in told.out
    both = told.out + told.err
    assert "checkpoints and heartbeats do not pass single message transforms here" in both
    other = changed(SOURCE)
    other["name"] = "other"
    assert main(options(tmp_path, changed(SOURCE, **keys), other)) == 2
    assert "have different single message transforms" in " ".join(capsys.readouterr().err.split())
