"""``sparkmirror config``: effective values, where they come from, and what is never shown."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.cli.main import main
from sparkmirror.config.docs import settings_page
from sparkmirror.config.explain import Effective, Place, explain
from sparkmirror.config.explain_mm1 import explain_mm1
from sparkmirror.config.files.origin import Origin
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.mm2.load import client_configs, own_settings
from sparkmirror.config.mm2.precedence import Part, scope_of, spellings
from sparkmirror.config.mm2.precedence import given as entries_for
from sparkmirror.config.mm2.scoping import connector_config, worker_config
from sparkmirror.config.table.settings import CLIENT_SET, HIDDEN, names
from tests.unit.config_files import BASE, LINE, QUIET, pipe, write

_ENV = (
    "config.providers=env\n"
    "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
)


def effective(tmp_path: Path, extra: str) -> dict[tuple[str, str], Effective]:
    (flow,) = explain(write(tmp_path, BASE + QUIET + extra)).flows
    return {(one.part.value, one.key): one for one in flow.settings}


_CASES = [
    (part, key)
    for part in Part
    for key in sorted(names(part.scope))
    if not (key in CLIENT_SET and part in (Part.FLOW, Part.WORKER))
    and key not in ("clusters", "source.cluster.alias", "target.cluster.alias", "client.id")
    # Java's prefix test without a dot takes these for keys of a client.
    and key not in ("enable.auto.commit",)
    # Where syncs are written decides about clients, so what stands there is read at once.
    and key != "offset-syncs.topic.location"
]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_first_spelling_is_the_one_that_scoping_lets_win(data: st.DataObject) -> None:
    part, key = data.draw(st.sampled_from(_CASES))
    side = data.draw(st.sampled_from(["source", "target"]))
    every = spellings(part, key, "A", "B", side)
    present = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    raw = {
        name: Entry(name, name, Origin.in_file(f"f:{line}")) for line, name in enumerate(present, 1)
    }
    location = "A->B.offset-syncs.topic.location"
    raw[location] = Entry(location, side, Origin.in_file("f:99"))
    clients = client_configs(raw, "A", "B")
    conf = {
        Part.FLOW: connector_config(raw, "A", "B"),
        Part.CONSUMER: clients["consumer"],
        Part.PRODUCER: clients["producer"],
        Part.SOURCE_ADMIN: clients["source admin"],
        Part.TARGET_ADMIN: clients["target admin"],
        Part.SYNCS: clients["offset syncs"],
        Part.CHECKPOINTS: clients["checkpoints"],
        Part.WORKER: worker_config(raw, "A", "B"),
        Part.OWN: own_settings(raw, "A->B"),
    }[part]
    first, *others = entries_for(raw, part, key, "A", "B", side)
    assert conf[key].value == first.key
    assert {first.key, *(entry.key for entry in others)} == set(present)


@pytest.mark.parametrize(
    ("spelling", "key", "told"),
    [
        ("topics", "topics", "top level"),
        ("A->B.topics", "topics", "flow A->B"),
        ("A.consumer.check.crcs", "check.crcs", "consumer of cluster A"),
        ("A.ssl.key.password", "ssl.key.password", "cluster A"),
        ("A->B.source.consumer.check.crcs", "check.crcs", "source.consumer of flow A->B"),
        ("A->B.producer.override.acks", "acks", "producer.override of flow A->B"),
    ],
)
def test_scopes_in_words(spelling: str, key: str, told: str) -> None:
    assert scope_of(spelling, key) == told


def test_the_line_that_counts_and_those_it_beats(tmp_path: Path) -> None:
    first = LINE + QUIET.count("\n")
    rows = effective(tmp_path, "topics=x\nA->B.topics=y\nB.offset.flush.interval.ms=500\n")
    topics = rows["flow", "topics"]
    assert (topics.value, topics.origin) == ("y", "file")
    assert topics.place is not None
    assert topics.place.where == f"{tmp_path}/mm2.properties:{first + 1}"
    assert [place.where.rpartition(":")[2] for place in topics.overrides] == [str(first)]
    assert rows["flow", "tasks.max"] == Effective(Part.FLOW, "tasks.max", "1", "default")
    interval = rows["sparkmirror", "sparkmirror.position.interval.ms"]
    assert (interval.value, interval.origin) == ("500", "derived")
    assert "offset.flush.interval.ms" in interval.remark
    assert rows["worker", "offset.storage.topic"].value == "mm2-offsets.A.internal"


def test_what_other_settings_rule_out_is_told(tmp_path: Path) -> None:
    idempotence = effective(tmp_path, "B.producer.acks=1\n")[
        "target producer", "enable.idempotence"
    ]
    assert idempotence.value == "false"
    assert "acks" in idempotence.remark


def test_the_clients_of_offset_syncs_and_checkpoints_are_there_while_they_are_used(
    tmp_path: Path,
) -> None:
    extra = "offset-syncs.topic.location=target\nB.producer.acks=1\nB.consumer.check.crcs=false\n"
    (flow,) = explain(write(tmp_path, BASE + extra)).flows
    rows = {(one.part, one.key): one for one in flow.settings}
    assert rows[Part.SYNCS, "acks"].value == "1"
    assert rows[Part.SYNCS, "bootstrap.servers"].value == "b:9092"
    assert rows[Part.CHECKPOINTS, "check.crcs"].value == "false"
    assert {one.part for one in flow.settings} == set(Part)
    without = effective(tmp_path, "")
    assert Part.SYNCS.value not in {part for part, _ in without}


def test_ignored_keys_stand_there_with_the_reason(tmp_path: Path) -> None:
    rows = effective(tmp_path, "listeners=http://x:1\nadmin.timeout.ms=4\nssl.protocol=TLSv1.2\n")
    assert "each request has its own limit" in rows["flow", "admin.timeout.ms"].ignored
    assert "security.protocol=PLAINTEXT" in rows["source consumer", "ssl.protocol"].ignored
    # What nobody set and nothing reads is left out.
    assert ("flow", "errors.tolerance") not in rows
    assert ("source consumer", "sasl.mechanism") not in rows
    assert ("source consumer", "group.id") not in rows


def test_no_secret_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET_SERVERS", "hidden.example.com:9092")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "topics").write_text("hunter3.*")
    (tmp_path / "file").write_text("word=hunter4\n")
    provider = "org.apache.kafka.common.config.provider."
    path = write(
        tmp_path,
        "clusters=A,B\nA.bootstrap.servers=${env:SECRET_SERVERS}\nB.bootstrap.servers=b:1\n"
        "A->B.enabled=true\nconfig.providers=env,dir,file\n"
        f"config.providers.env.class={provider}EnvVarConfigProvider\n"
        f"config.providers.dir.class={provider}DirectoryConfigProvider\n"
        f"config.providers.file.class={provider}FileConfigProvider\n"
        f"topics=${{dir:{tmp_path}/dir:topics}}\n"
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="u" password="${{file:{tmp_path}/file:word}}";\n'
        "B.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="hunter2";\n',
    )
    for arguments in ([], ["--format", "json"]):
        assert main(["config", str(path), *arguments]) == 0
        shown = capsys.readouterr().out
        assert "resolved from ${env:SECRET_SERVERS}" in shown
        assert f"resolved from ${{dir:{tmp_path}/dir:topics}}" in shown
        assert f"${{file:{tmp_path}/file:word}}" in shown
        for secret in ("hidden.example", "hunter2", "hunter3", "hunter4"):
            assert secret not in shown


@pytest.mark.parametrize("arguments", [[], ["--format", "json"]], ids=["table", "json"])
def test_beside_a_placeholder_no_text_of_the_file_is_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    monkeypatch.setenv("MIRROR_USER", "someone")
    path = write(
        tmp_path,
        f"{BASE}{QUIET}{_ENV}A.security.protocol=SASL_PLAINTEXT\nA.sasl.mechanism=PLAIN\n"
        "A.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="${env:MIRROR_USER}" password="${undeclared:hunter1}hunter2-plain";\n',
    )
    # Masking would hide what the remark quotes.
    monkeypatch.setattr("sparkmirror.cli.shared.secrets.register_secret", str)
    assert main(["config", str(path), *arguments]) == 0
    shown = capsys.readouterr().out
    assert "resolved from ${env:MIRROR_USER}" in shown
    for secret in ("someone", "hunter1", "hunter2"):
        assert secret not in shown


def test_a_key_of_an_older_release_may_have_a_placeholder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFT_OUT", "hunter3.*")
    exclude = effective(tmp_path, f"{_ENV}topics.blacklist=${{env:LEFT_OUT}}\n")[
        "flow", "topics.exclude"
    ]
    assert exclude.value == HIDDEN
    assert exclude.remark == "resolved from ${env:LEFT_OUT}"


def test_a_file_that_can_be_read_only_once_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a command in Bash: ``sparkmirror config <(sops -d mirror.properties)``."""
    monkeypatch.setenv("LEFT_OUT", "hunter3.*")
    with pipe(f"{BASE}{QUIET}{_ENV}topics.exclude=${{env:LEFT_OUT}}\n") as path:
        (flow,) = explain(Path(path)).flows
    (exclude,) = (one for one in flow.settings if one.key == "topics.exclude")
    assert (exclude.value, exclude.remark) == (HIDDEN, "resolved from ${env:LEFT_OUT}")


def test_what_is_made_from_a_providers_value_is_hidden_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_ID", "hunter4")
    monkeypatch.setenv("FLUSH", "517")
    rows = effective(
        tmp_path,
        f"{_ENV}A.consumer.client.id=${{env:MY_ID}}\nA->B.name=${{env:MY_ID}}\n"
        "B.offset.flush.interval.ms=${env:FLUSH}\n",
    )
    given_id = rows["source consumer", "client.id"]
    assert (given_id.value, given_id.remark) == (HIDDEN, "resolved from ${env:MY_ID}")
    for one in rows.values():
        assert "hunter4" not in f"{one.value} {one.remark}"
        assert "517" not in f"{one.value} {one.remark}"
    assert rows["source admin", "client.id"].value == HIDDEN
    assert rows["sparkmirror", "sparkmirror.position.interval.ms"].value == HIDDEN


def test_a_jaas_file_of_the_environment_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(
        "KafkaClient { org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="hunter2"; };'
    )
    monkeypatch.setenv("KAFKA_OPTS", f"-Djava.security.auth.login.config={jaas}")
    rows = effective(tmp_path, "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    login = rows["target producer", "sasl.jaas.config"]
    assert (login.value, login.origin) == ("[hidden]", "derived")
    assert "KAFKA_OPTS" in login.remark


def test_what_a_run_refuses_is_refused_with_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, BASE + _ENV + "topics=${env:THERE_IS_NONE}\n")
    codes, texts = [], []
    for verb in ("config", "run"):
        codes.append(main([verb, str(path)]))
        texts.append(capsys.readouterr().err)
    assert codes == [2, 2]
    assert texts[0] == texts[1]
    assert "${env:THERE_IS_NONE} cannot be resolved" in texts[0]


def test_flows_are_chosen_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, BASE + QUIET + "B->A.enabled=true\nA->B.topics=x\n")
    assert main(["config", str(path), "--format", "json", "--flow", "A->B", "--given"]) == 0
    document = json.loads(capsys.readouterr().out)
    (flow,) = document["flows"]
    assert flow["flow"] == "A->B"
    assert all(row["origin"] == "file" for row in flow["settings"])
    assert [row["value"] for row in flow["settings"] if row["key"] == "topics"] == ["x"]
    assert document["warnings"] == []
    assert main(["config", str(path), "--flow", "A->C"]) == 2
    assert "It enables A->B, B->A." in capsys.readouterr().err


def test_the_warnings_of_a_run_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, BASE + QUIET + "listeners=http://x:1\n")
    assert main(["config", str(path)]) == 0
    shown = capsys.readouterr().out
    assert f"warning: {path}: ignored: listeners" in shown
    assert f"{path}: 1 flow(s), 1 warning(s)" in shown


def test_the_page_of_all_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["config", "--docs"]) == 0
    assert capsys.readouterr().out == settings_page()
    assert main(["config", str(tmp_path), "--docs"]) == 2
    assert main(["config"]) == 2


OLD_CONSUMER = """\
zookeeper.connect=zk:2181/kafka
group.id=mirror
fetch.message.max.bytes=2097152
auto.commit.enable=true
sparkmirror.on.source.loss=record-and-continue
ssl.truststore.location=/nowhere
"""
OLD_PRODUCER = """\
metadata.broker.list=b:9092
request.required.acks=1
sasl.jaas.config=x
batch.size=99
"""


def test_mirrormaker_1s_files(tmp_path: Path) -> None:
    consumer, producer = write(tmp_path, OLD_CONSUMER, "c"), write(tmp_path, OLD_PRODUCER, "p")
    asked: list[str] = []

    def find(connect: str, _protocol: str) -> tuple[str, ...]:
        asked.append(connect)
        return ("a:9092",)

    setup = explain_mm1([consumer], producer, find_brokers=find)
    assert asked == ["zk:2181/kafka"]
    (flow,) = setup.flows
    rows = {(row.part.value.split()[-1], row.key): row for row in flow.settings}
    servers = rows["consumer", "bootstrap.servers"]
    assert (servers.value, servers.place) == (
        "a:9092", Place(f"{consumer}:1", "zookeeper.connect", "consumer file"),
    )  # fmt: skip
    size = rows["consumer", "max.partition.fetch.bytes"]
    assert size.place is not None
    assert (size.value, size.place.spelling) == ("2097152", "fetch.message.max.bytes")
    assert rows["consumer", "auto.offset.reset"].value == "latest"
    assert rows["consumer", "auto.offset.reset"].origin == "derived"
    assert rows["sparkmirror", "sparkmirror.on.source.loss"].origin == "file"
    assert rows["consumer", "ssl.truststore.location"].ignored
    assert rows["consumer", "client.id"].value == "mirror"
    assert rows["producer", "acks"].value == "1"
    assert rows["producer", "enable.idempotence"].value == "false"
    assert rows["producer", "sasl.jaas.config"].value == HIDDEN
    assert rows["producer", "batch.size"].origin == "file"
    assert ("consumer", "auto.commit.enable") not in rows
    assert any("auto.commit.enable has no effect" in line for line in setup.settings.warnings)


def test_keys_of_mirrormaker_2_in_mirrormaker_1s_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (
        write(tmp_path, f"bootstrap.servers={name}:1\ngroup.id=g\n{more}", name)
        for name, more in (
            ("x", "topics=x.*\nreplication.factor=2\nsync.topic.acls.enabled=true\n"),
            ("y", "topics.blacklist=y\nrefresh.topics.interval.seconds=7\n"),
        )
    )
    text = "bootstrap.servers=b:1\nreplication.factor=1\nemit.heartbeats.enabled=false\n"
    producer = write(tmp_path, text, "p")
    setup = explain_mm1([one, other], producer, find_brokers=lambda *_: ())
    first, second = (
        [row for row in flow.settings if row.part is Part.FLOW] for flow in setup.flows
    )
    assert [row.key for row in first] == [
        "emit.heartbeats.enabled", "replication.factor", "sync.topic.acls.enabled", "topics",
    ]  # fmt: skip
    beats, factor, acls, topics = first
    assert (factor.value, factor.place, factor.overrides) == (
        "2",
        Place(f"{one}:4", "replication.factor", "consumer file"),
        (Place(f"{producer}:2", "replication.factor", "producer file"),),
    )
    assert (topics.value, topics.place, topics.ignored) == (
        "x.*", Place(f"{one}:3", "topics", "consumer file"), "",
    )  # fmt: skip
    assert "not supported with MirrorMaker 1's files" in acls.ignored
    assert beats.ignored == "always so with MirrorMaker 1's files"
    assert [(row.key, row.value, row.place) for row in second[1:]] == [
        ("refresh.topics.interval.seconds", "7",
         Place(f"{other}:4", "refresh.topics.interval.seconds", "consumer file")),
        ("replication.factor", "1", Place(f"{producer}:2", "replication.factor", "producer file")),
        ("topics.exclude", "y", Place(f"{other}:3", "topics.blacklist", "consumer file")),
    ]  # fmt: skip
    assert main(["config", str(one), "--producer.config", str(producer), "--given"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    overridden = "overrides line 2 replication.factor (producer file)"
    assert (
        f"flow replication.factor 2 line 4 replication.factor (consumer file); {overridden}" in told
    )


def test_the_verb_with_mirrormaker_1s_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "bootstrap.servers=a:1\ngroupid=g\nautooffset.reset=largest\n"
    consumer = write(tmp_path, text, "c")
    producer = write(tmp_path, "bootstrap.servers=b:1\n", "p")
    files = ["--consumer.config", str(consumer), "--producer.config", str(producer)]
    assert main(["config", *files, "--given"]) == 0
    told = capsys.readouterr().out
    assert "line 2 groupid (consumer file)" in told
    assert "line 3 autooffset.reset (consumer file)" in told
    assert main(["config", *files, "--flow", "A->B"]) == 2
    assert "'A->B' is not an enabled flow" in capsys.readouterr().err
    for arguments in ([], files[:2], [str(consumer), *files], ["--docs", *files]):
        assert main(["config", *arguments]) == 2


def test_mirrormaker_1s_files_with_config_providers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_ID", "hunter4")
    monkeypatch.setenv("PLACE", "hunter5:9092")
    lines = f"{_ENV}bootstrap.servers=${{env:PLACE}}\n"
    consumer = write(tmp_path, f"{lines}group.id=${{env:MY_ID}}\nfetch.size=${{env:SIZE}}\n", "c")
    monkeypatch.setenv("SIZE", "517")
    producer = write(tmp_path, lines, "p")
    (flow,) = explain_mm1([consumer], producer, find_brokers=lambda *_: ()).flows
    rows = {(row.part.value.split()[-1], row.key): row for row in flow.settings}
    assert (rows["consumer", "group.id"].value, rows["consumer", "group.id"].remark) == (
        HIDDEN, "resolved from ${env:MY_ID}",
    )  # fmt: skip
    size = rows["consumer", "max.partition.fetch.bytes"]
    assert (size.value, size.remark) == (HIDDEN, "resolved from ${env:SIZE}")
    declared = rows["producer", "config.providers"]
    assert (declared.value, declared.ignored) == ("env", "")
    for one in rows.values():
        assert "hunter" not in f"{one.value} {one.remark}"
    assert rows["producer", "client.id"].value == HIDDEN


def test_a_file_that_a_provider_names_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORE", "/vault/hunter2.pem")
    store = "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=${env:STORE}\n"
    mm2 = write(tmp_path, BASE + _ENV + "".join(f"A.{one}\n" for one in store.splitlines()))
    assert main(["config", str(mm2)]) == 2
    told = capsys.readouterr().err
    line = LINE + _ENV.count("\n") + 2
    assert f"{mm2}:{line}: Cluster 'A': the truststore [hidden] cannot be used" in told
    assert "hunter2" not in told
    consumer = write(tmp_path, f"bootstrap.servers=a:1\ngroup.id=g\n{_ENV}{store}", "c")
    producer = write(tmp_path, "bootstrap.servers=b:1\n", "p")
    assert main(["config", str(consumer), "--producer.config", str(producer)]) == 2
    told = capsys.readouterr().err
    assert (
        f"{consumer}:{2 + _ENV.count(chr(10)) + 3}: Cluster 'source': the truststore [hid" in told
    )
    assert "hunter2" not in told


def test_a_file_that_cannot_be_used_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "B.security.protocol=SSL\nB.ssl.truststore.type=PEM\nB.ssl.truststore.location=/none\n"
    path = write(tmp_path, BASE + "A.ssl.truststore.location=/none\n" + lines)
    assert main(["config", str(path)]) == 2
    told = capsys.readouterr().err
    assert f"{path}:{LINE + 3}: Cluster 'B': the truststore /none cannot be used" in told
    monkeypatch.setenv("TOKEN", "/vault/hunter2")
    lines = "sparkmirror.metrics.listen=127.0.0.1:0\nsparkmirror.metrics.token.file=${env:TOKEN}\n"
    path = write(tmp_path, BASE + _ENV + lines)
    assert main(["config", str(path)]) == 2
    told = capsys.readouterr().err
    assert "the token file [hidden] cannot be read" in told
    assert "hunter2" not in told


def test_a_file_that_both_of_mirrormaker_1s_files_name_is_told_at_the_clients_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/none\n"
    consumer = write(tmp_path, f"bootstrap.servers=a:1\ngroup.id=g\n{store}", "c")
    other = write(tmp_path, f"\nbootstrap.servers=c:1\ngroup.id=h\n{store}", "d")
    producer = write(tmp_path, f"bootstrap.servers=b:1\n{store}", "p")
    plain = write(tmp_path, "bootstrap.servers=a:1\ngroup.id=g\n", "plain")
    for files, place in (
        ([consumer], f"{consumer}:5: Cluster 'source'"),
        ([plain], f"{producer}:4: Cluster 'target'"),
        ([other, consumer], f"{other}:6: Cluster 'source-1'"),
    ):
        named = [text for path in files for text in ("--consumer.config", str(path))]
        assert main(["config", *named, "--producer.config", str(producer)]) == 2
        assert f"{place}: the truststore /none cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "value", "told"),
    [
        ("A.security.protocol=SSL\nA.ssl.enabled.protocols={}\n", "TLSv1.2,hunter2",
         "ssl.enabled.protocols names [hidden], which is not a TLS version"),
        ("A->B.transforms={}\n", "hunter2",
         "A->B.transforms.[hidden].type is missing: A->B.transforms names [hidden]"),
        ("A->B.replication.policy.class=IdentityReplicationPolicy\n"
         "A->B.sparkmirror.topics.map={}\n", "a=>hunter2",
         "two topics of A may get the same name. If both exist"),
    ],
)  # fmt: skip
def test_elements_of_a_list_that_a_provider_returns_are_not_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    value: str,
    told: str,
) -> None:
    monkeypatch.setenv("SECRET", value)
    path = write(tmp_path, BASE + _ENV + line.format("${env:SECRET}"))
    main(["config", str(path)])
    out, err = capsys.readouterr()
    assert told in out + err
    assert "hunter2" not in (out + err).lower()
