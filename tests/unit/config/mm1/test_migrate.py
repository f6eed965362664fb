"""MirrorMaker 1's files as one MirrorMaker 2 file, which means the same when it is loaded."""

import stat
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sparkmirror.cli.main import main
from sparkmirror.config.files.properties import load_properties
from sparkmirror.config.mm1.load import load_mm1, normalise_include, read_file
from sparkmirror.config.mm1.migrate import Migrated, migrate
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.config.table.settings import Scope
from sparkmirror.errors import ConfigError
from sparkmirror.names.java_regex import compile_regex
from sparkmirror.settings import ClusterClient, FlowSettings
from tests.unit.config.mm1.test_legacy import (
    CONSUMER_011,
    CONSUMER_07,
    CONSUMER_08,
    PRODUCER_07,
    PRODUCER_08,
    PRODUCER_09,
    fake_brokers,
)
from tests.unit.config_files import pipe, write

SECRET = "hun\\\\ter 2 \\u00e9"
SASL = (
    "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
    "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="u" password="{SECRET}";\n'
)


def both(
    directory: Path, consumers: list[str], producer: str, **options: object
) -> tuple[tuple[FlowSettings, ...], tuple[FlowSettings, ...], Migrated]:
    """The flows before, the flows after, and the file between."""
    paths = [write(directory, text, f"consumer-{n}") for n, text in enumerate(consumers)]
    producer_path = write(directory, producer, "producer")
    before = load_mm1(
        paths,
        producer_path,
        find_brokers=fake_brokers,
        **({"include": r"a\.b.*,c"} | options),  # type: ignore[arg-type]
    )
    read = [read_file(load_properties(path), Scope.CONSUMER, fake_brokers) for path in paths]
    translated, shared = read_file(load_properties(producer_path), Scope.PRODUCER, fake_brokers)
    made = migrate(
        before,
        [consumer for consumer, _ in read],
        translated,
        [mode.over(shared) for _, mode in read],
    )
    return before.flows, load_mm2(write(directory, made.text)).flows, made


def client(one: ClusterClient) -> ClusterClient:
    of_mm1 = ("group.id", "exclude.internal.topics")
    kept = {key: value for key, value in one.properties.items() if key not in of_mm1}
    return replace(one, client_id="", properties=kept)


def assert_same(before: FlowSettings, after: FlowSettings) -> None:
    """All that reaches brokers is the same, but for clients' names."""
    for role in ("source", "target", "source_admin", "target_admin"):
        assert client(getattr(before, role)) == client(getattr(after, role)), role
    assert before.fetch == after.fetch
    assert before.produce == after.produce
    assert before.faults == after.faults
    assert before.tasks_max == after.tasks_max
    assert before.ring == after.ring
    assert before.policy.kind == after.policy.kind
    for field in (
        "include", "replication_factor", "refresh_interval_s", "refresh_enabled",
        "use_defaults_from", "config_properties_exclude",
    ):  # fmt: skip
        assert getattr(before.topics, field) == getattr(after.topics, field)
    assert set(before.topics.exclude) <= set(after.topics.exclude)


PAIRS = [
    (CONSUMER_07, PRODUCER_07),
    (CONSUMER_08, PRODUCER_08),
    (CONSUMER_011, PRODUCER_09),
    (CONSUMER_011 + SASL, PRODUCER_09 + SASL),
    (CONSUMER_011 + "request.timeout.ms=1234\nmetadata.max.age.ms=7000\n", PRODUCER_08),
]


@pytest.mark.parametrize("pair", PAIRS)
def test_the_new_file_means_the_same(tmp_path: Path, pair: tuple[str, str]) -> None:
    (before,), (after,), made = both(tmp_path, [pair[0]], pair[1], num_streams=3)
    assert_same(before, after)
    assert all(line.isascii() for line in made.text.splitlines())
    assert all(len(line) <= 100 for line in made.text.splitlines() if line.startswith("#"))


def test_what_is_left_out_stands_there_with_its_reason(tmp_path: Path) -> None:
    _, _, made = both(tmp_path, [CONSUMER_08], PRODUCER_08)
    text = " ".join(made.text.replace("\n#", "").split())
    for told in (
        "auto.commit.enable has no effect: positions are committed after",
        "Left out: partition.assignment.strategy",
        "Left out: client.id",
        "queue.buffering.max.ms has no effect",
        "group mirror on the source",
        "--take-positions",
    ):
        assert told in text


def test_the_default_that_differs_is_written(tmp_path: Path) -> None:
    text = "bootstrap.servers=a:1\ngroup.id=g\n"
    (before,), (after,), _ = both(tmp_path, [text], "bootstrap.servers=b:1\n")
    assert before.fetch.auto_offset_reset == after.fetch.auto_offset_reset == "latest"


def test_several_sources_and_a_blacklist(tmp_path: Path) -> None:
    consumers = [f"bootstrap.servers={name}:1\ngroup.id=g\n" for name in "xyz"]
    before, after, _ = both(
        tmp_path, consumers, "bootstrap.servers=b:1\n", include=None, exclude="secret.*"
    )
    assert [flow.name for flow in after] == [f"source-{n}->target" for n in (1, 2, 3)]
    for one, other in zip(before, after, strict=True):
        assert_same(one, other)
        assert "secret.*" in other.topics.exclude


NUMBERS = {
    "fetch.max.wait.ms": st.integers(0, 9_999),
    "fetch.min.bytes": st.integers(0, 9_999),
    "max.partition.fetch.bytes": st.integers(1, 2**31 - 1),
    "request.timeout.ms": st.integers(0, 2**31 - 1),
    "retry.backoff.ms": st.integers(0, 9_999),
    "metadata.max.age.ms": st.integers(0, 10**6),
    "fetch.wait.max.ms": st.integers(0, 9_999),
    "isolation.level": st.sampled_from(["read_committed", "read_uncommitted"]),
    "auto.offset.reset": st.sampled_from(["smallest", "largest", "none", "earliest"]),
    "max.poll.records": st.integers(1, 9_999),
    "client.rack": st.text("abc\\ :=#!é\t", max_size=4).map(
        lambda text: text.replace("\\", "\\\\").replace("\t", "\\t").replace("é", "\\u00e9")
    ),
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    chosen=st.fixed_dictionaries({}, optional=NUMBERS),
    include=st.text("abc.*|,[]\\w", max_size=6),
    streams=st.integers(1, 50),
)
def test_any_settings_survive(
    tmp_path: Path, chosen: dict[str, object], include: str, streams: int
) -> None:
    text = "".join(f"{key}={value}\n" for key, value in chosen.items())
    try:
        compile_regex(normalise_include(include), where="")
    except ConfigError:
        assume(False)
    (before,), (after,), _ = both(
        tmp_path,
        ["bootstrap.servers=a:1\ngroup.id=g\n" + text],
        "bootstrap.servers=b:1\n",
        include=include,
        num_streams=streams,
    )
    assert_same(before, after)


def test_what_to_do_about_lost_data_is_carried_over(tmp_path: Path) -> None:
    own = "sparkmirror.on.source.loss=record-and-continue\n"
    own += "sparkmirror.on.source.loss.fail.topics=p.*,q\n"
    (before,), (after,), _ = both(
        tmp_path, ["bootstrap.servers=a:1\ngroup.id=g\n" + own], "bootstrap.servers=b:1\n"
    )
    assert before.faults.source_loss_fail == ("p.*", "q")
    assert_same(before, after)


def test_a_throttle_is_carried_over(tmp_path: Path) -> None:
    own = "sparkmirror.throttle=50MB/s\nsparkmirror.throttle.between=22:00-06:00\n"
    own += "sparkmirror.throttle.topics=a.* => 1MB/s; b => 2MB/s 08:00-18:00\n"
    (before,), (after,), _ = both(
        tmp_path, ["bootstrap.servers=a:1\ngroup.id=g\n" + own], "bootstrap.servers=b:1\n"
    )
    assert len(before.throttles) == 3
    assert_same(before, after)
    assert before.throttles == after.throttles


def test_what_is_joined_for_a_link_is_carried_over(tmp_path: Path) -> None:
    own = "sparkmirror.join.bytes=0\nsparkmirror.link.joining=off\n"
    own += "sparkmirror.link.compression=zstd\nsparkmirror.link.reread.bytes=0\n"
    own += "sparkmirror.ring.enabled=true\n"
    (before,), (after,), _ = both(
        tmp_path, ["bootstrap.servers=a:1\ngroup.id=g\n" + own], "bootstrap.servers=b:1\n"
    )
    produce = before.produce
    assert (produce.join_bytes, produce.link_joining, produce.link_compression) == (
        0,
        "off",
        "zstd",
    )
    assert before.fetch.reread_bytes == 0
    assert before.ring
    assert_same(before, after)


# Keys of MirrorMaker 2, of which MirrorMaker 1's command uses only those about topics.
LEGACY = """\
topics=x.*
topics.exclude=x\\\\.y
tasks.max=3
replication.factor=2
refresh.topics.enabled=false
use.defaults.from=source
config.properties.blacklist=foo
sync.topic.acls.enabled=true
sync.group.offsets.enabled=true
groups=g.*
offset-syncs.topic.location=target
offset.lag.max=7
errors.tolerance=all
"""


def test_keys_of_mirrormaker_2_are_carried_over(tmp_path: Path) -> None:
    (before,), (after,), made = both(
        tmp_path,
        ["bootstrap.servers=a:1\ngroup.id=g\n" + LEGACY],
        "bootstrap.servers=b:1\nemit.heartbeats.enabled=false\n",
        include=None,
    )
    assert_same(before, after)
    assert (after.topics.include, after.tasks_max) == (("x.*",), 3)
    assert not after.topics.refresh_enabled
    assert after.topics.sync_acls_enabled
    assert not after.topics.sync_configs_enabled  # MirrorMaker 1 has none
    # Group offsets need checkpoints, and these need offset syncs.
    assert (after.checkpoints.sync_enabled, after.checkpoints.enabled) == (True, True)
    assert after.checkpoints.include == ("g.*",)
    syncs = after.offset_syncs
    assert (syncs.enabled, syncs.location, syncs.lag_max) == (True, "target", 7)
    assert "# Left out: errors.tolerance (line 15): records are copied" in made.text
    assert "source->target.emit.heartbeats.enabled = false" in made.text.replace("\\", "")


@pytest.mark.parametrize("more", ["", "emit.offset-syncs.enabled=false\n"])
def test_a_place_of_offset_syncs_without_these_is_left_out(tmp_path: Path, more: str) -> None:
    """MirrorMaker 2 refuses one without the other; MirrorMaker 1's command has no use for both."""
    consumer = "bootstrap.servers=a:1\ngroup.id=g\noffset-syncs.topic.location=target\n" + more
    _, (after,), made = both(tmp_path, [consumer], "bootstrap.servers=b:1\n")
    assert not after.offset_syncs.enabled
    assert "Left out: offset-syncs.topic.location (line 3)" in made.text


def test_keys_of_mirrormaker_2_of_one_source_are_not_those_of_others(tmp_path: Path) -> None:
    one, two = (f"bootstrap.servers={name}:1\ngroup.id=g\n" for name in "xy")
    consumers = [one + "sync.topic.acls.enabled=true\n", two]
    producer = "bootstrap.servers=b:1\nreplication.factor=1\nsync.topic.configs.enabled=true\n"
    _, after, _ = both(tmp_path, consumers, producer)
    assert [flow.topics.sync_acls_enabled for flow in after] == [True, False]
    assert [flow.topics.sync_configs_enabled for flow in after] == [True, True]


def test_a_negative_interval_means_never(tmp_path: Path) -> None:
    consumer = "bootstrap.servers=a:1\ngroup.id=g\nrefresh.topics.interval.seconds=-1\n"
    (before,), (after,), _ = both(tmp_path, [consumer], "bootstrap.servers=b:1\n")
    assert not before.topics.refresh_enabled
    assert_same(before, after)


def test_every_field_of_a_flow_is_looked_at() -> None:
    """A new field of `FlowSettings` must be carried over or be listed here as not concerned."""
    looked_at = {"source", "target", "source_admin", "target_admin", "fetch", "produce",
                 "tasks_max", "policy", "topics", "faults", "throttles", "ring"}  # fmt: skip
    of_mode = {"mode", "enabled", "group", "group_id", "records", "position_interval_ms",
               "epoch_s", "zookeeper",
               "offset_storage_topic", "offset_storage_partitions",
               "offset_storage_replication_factor", "offset_syncs", "checkpoints",
               "exactly_once", "signed", "control_secret", "session_ms", "transaction_interval_ms",
               "transaction_bytes", "transaction_commit_percent", "transaction_timeout_ms",
               "beside", "transforms", "hash_salt", "registry", "returns",
               "routed_topics_max"}  # fmt: skip
    assert {field.name for field in fields(FlowSettings)} == looked_at | of_mode


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    consumer = write(tmp_path, "bootstrap.servers=a:1\ngroup.id=g\n", "c")
    producer = write(tmp_path, "bootstrap.servers=b:1\n", "p")
    return ["migrate-config", "--consumer.config", str(consumer), "--producer.config",
            str(producer), "--whitelist", "t.*"]  # fmt: skip


def test_the_command_prints_a_file_that_loads(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--source", "eu", "--target", "us", "--num.streams", "4"]) == 0
    (flow,) = load_mm2(write(tmp_path, capsys.readouterr().out)).flows
    assert (flow.name, flow.tasks_max, flow.topics.include) == ("eu->us", 4, ("t.*",))


def test_the_command_converts_keys_of_mirrormaker_2(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, f"bootstrap.servers=a:1\ngroup.id=g\n{LEGACY}", "c")
    write(tmp_path, "bootstrap.servers=b:1\nreplication.factor=1\noffset.lag.max=8\n", "p")
    assert main(arguments) == 0
    (flow,) = load_mm2(write(tmp_path, capsys.readouterr().out)).flows
    assert flow.topics.config_properties_exclude == ("foo",)
    assert flow.topics.replication_factor == 2  # the consumer file counts before the producer's
    assert flow.offset_syncs.lag_max == 7


def test_the_command_writes_secrets_to_a_private_file_only(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "bootstrap.servers=b:1\n" + SASL, "p")
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert "sasl.jaas.config" in captured.err
    assert "hun" not in captured.out + captured.err
    path = tmp_path / "made.properties"
    assert main([*arguments, "--output", str(path)]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    jaas = load_mm2(path).flows[0].target.properties["sasl.jaas.config"]
    assert 'password="hun\\ter 2 é"' in jaas
    assert main([*arguments, "--output", str(path)]) == 2
    assert "The file exists" in capsys.readouterr().err
    assert main([*arguments, "--output", str(path), "--force"]) == 0
    assert [each.name for each in tmp_path.iterdir() if "made" in each.name] == [path.name]


def test_the_command_takes_files_that_can_be_read_only_once(tmp_path: Path) -> None:
    """As from a command in Bash: ``--consumer.config <(sops -d consumer.properties)``."""
    consumer = f"bootstrap.servers=a:1\ngroup.id=g\nfetch.max.bytes=99999\n{SASL}{LEGACY}"
    producer = f"bootstrap.servers=b:1\nacks=1\ncompression.type=gzip\n{SASL}"
    made = []
    with pipe(consumer) as one, pipe(producer) as other:
        # The new file names the old ones, so all have the same names.
        for directory in (Path(one).parent, tmp_path):
            files = [directory / Path(each).name for each in (one, other)]
            if directory == tmp_path:
                for path, text in zip(files, (consumer, producer), strict=True):
                    write(tmp_path, text, path.name)
            arguments = ["--consumer.config", str(files[0]), "--producer.config", str(files[1])]
            path = tmp_path / f"made-{len(made)}"
            assert main(["migrate-config", *arguments, "--output", str(path)]) == 0
            made.append(path.read_text())
    assert made[0] == made[1]
    assert made[0].count("sasl.jaas.config") == 2


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        (["--source", "a b"], "is not an alias"),
        (["--source", "target"], "two clusters have the same name"),
        (["--source", "x", "--source", "y"], "2 names are given for 1"),
        (["--blacklist", "x"], "Exactly one of whitelist or blacklist"),
        (["--output", "/none/there/x"], "cannot be written"),
        (["--offset-topic", "t"], "--offset-topic: this option cannot be combined with"),
        (["--secrets", "d"], "--secrets: this option cannot be combined with"),
        (["--target", ""], "is not an alias"),
    ],
)
def test_wrong_usage(
    arguments: list[str], extra: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, *extra]) in (1, 2)
    assert told in capsys.readouterr().err


_CLASS = "org.apache.kafka.common.config.provider."


def test_config_providers_are_carried_over(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The new file refers to what they return, also where two files call other ones the same."""
    monkeypatch.setenv("GROUP", "hunter-group")
    monkeypatch.setenv("TOPICS", "hunter1,hunter2")
    monkeypatch.setenv("SIZE", "777777")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    write(secrets, "pw=hunter3\nplace=hunter4:1\n", "file")
    (secrets / "pw").write_text("hunter5")
    mine = (
        f"config.providers=env,my\nconfig.providers.env.class={_CLASS}EnvVarConfigProvider\n"
        f"config.providers.my.class={_CLASS}FileConfigProvider\n"
        f"config.providers.my.param.allowed.paths={secrets}\n"
    )
    other = (
        f"config.providers=env,my\nconfig.providers.env.class={_CLASS}EnvVarConfigProvider\n"
        f"config.providers.my.class={_CLASS}DirectoryConfigProvider\n"
    )
    login = (
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="${my:%s:%s}";\n'
    )
    write(
        tmp_path,
        f"{mine}bootstrap.servers=${{my:{secrets}/file:place}}\ngroup.id=${{env:GROUP}}\n"
        f"fetch.size=${{env:SIZE}}\ntopics=${{env:TOPICS}}\n{login % (secrets / 'file', 'pw')}",
        "c",
    )
    write(tmp_path, f"{other}bootstrap.servers=b:1\n{login % (secrets, 'pw')}", "p")
    arguments = arguments[:5]  # without --whitelist
    path = tmp_path / "made.properties"
    assert main([*arguments, "--output", str(path)]) == 0
    text = path.read_text() + capsys.readouterr().err
    assert "hunter" not in text
    assert "777777" not in text.replace("max.partition.fetch.bytes = 777777", "")
    (flow,) = load_mm2(path).flows
    assert flow.source.bootstrap_servers == ("hunter4:1",)
    assert flow.topics.include == ("hunter1", "hunter2")
    assert flow.fetch.partition_fetch_bytes_max == 777_777
    assert 'password="hunter3"' in flow.source.properties["sasl.jaas.config"]
    assert 'password="hunter5"' in flow.target.properties["sasl.jaas.config"]


def test_a_password_of_a_provider_alone_is_no_secret_of_the_new_file(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    lines = f"config.providers=env\nconfig.providers.env.class={_CLASS}EnvVarConfigProvider\n"
    write(tmp_path, f"{lines}bootstrap.servers=b:1\nssl.key.password=${{env:PASSWORD}}\n", "p")
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "target.ssl.key.password = ${env:PASSWORD}" in out
    assert "hunter2" not in out


def test_values_that_were_converted_are_secrets_if_a_provider_gave_them(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What means the same in the new file stays a placeholder."""
    values = {
        "PLACE": "hunter2:1 , hunter3:1", "IDS": "7:hunter4:9092", "RESET": "largest",
        "SIZE": "777777", "N": "777", "AGE": "777000",
    }  # fmt: skip
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    lines = f"config.providers=env\nconfig.providers.env.class={_CLASS}EnvVarConfigProvider\n"
    consumer = (
        f"{lines}group.id=g\nmetadata.broker.list=${{env:PLACE}}\ntasks.max=${{env:N}}\n"
        "replication.factor=${env:N}\n"
    )
    write(tmp_path, consumer, "c")
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "hunter" not in out
    assert "source.bootstrap.servers = ${env:PLACE}" in out
    for key in ("tasks.max", "replication.factor"):
        assert f"source->target.{key} = ${{env:N}}" in out
    assert main([*arguments, "--num.streams", "5"]) == 0
    assert "tasks.max = 5" in capsys.readouterr().out
    write(tmp_path, f"{consumer}metadata.max.age.ms=${{env:AGE}}\n", "c")
    write(tmp_path, f"{lines}broker.list=${{env:IDS}}\n", "p")
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert "source->target.refresh.topics.interval.seconds, " not in told.out
    for key in ("target.bootstrap.servers", "source->target.refresh.topics.interval.seconds"):
        assert key in told.err
    assert not any(value in told.out + told.err for value in ("hunter", "777"))
    lines += "group.id=g\nbootstrap.servers=a:1\nautooffset.reset=${env:RESET}\n"
    write(tmp_path, lines, "c")
    write(tmp_path, "bootstrap.servers=b:1\n", "p")
    path = tmp_path / "made.properties"
    assert main([*arguments, "--output", str(path)]) == 0
    assert "begins at [hidden]:" in " ".join(path.read_text().replace("\n#", "").split())


def test_text_that_looks_like_a_placeholder_stays_text(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file declares the provider of that name, the other one does not."""
    monkeypatch.setenv("PASSWORD", "hunter2")
    lines = f"config.providers=env\nconfig.providers.env.class={_CLASS}EnvVarConfigProvider\n"
    key = "ssl.key.password=${env:PASSWORD}\nsecurity.protocol=SSL\n"
    write(tmp_path, f"{lines}bootstrap.servers=a:1\ngroup.id=g\n{key}", "c")
    write(tmp_path, f"bootstrap.servers=b:1\n{key}", "p")
    path = tmp_path / "made.properties"
    assert main([*arguments, "--output", str(path)]) == 0
    (flow,) = load_mm2(path).flows
    assert flow.source.properties["ssl.key.password"] == "hunter2"
    assert flow.target.properties["ssl.key.password"] == "${env:PASSWORD}"


def test_a_provider_without_a_class_is_not_carried_over(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "config.providers=env\nbootstrap.servers=a:1\ngroup.id=${env:G}\nmetrics.jmx.x=1\n"
    write(tmp_path, text, "c")
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "config.providers =" not in out
    assert "Left out: metrics.jmx.x (line 4)" in out


def test_topics_of_an_option_are_no_secret(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TOPICS", "hunter2,'hunter3'")
    lines = f"config.providers=env\nconfig.providers.env.class={_CLASS}EnvVarConfigProvider\n"
    lines += "bootstrap.servers=a:1\ngroup.id=g\n"
    for key in ("topics", "mirror.topics.whitelist", "mirror.topics.blacklist"):
        write(tmp_path, f"{lines}{key}=${{env:TOPICS}}\n", "c")
        assert main(arguments) == 0
        assert "hunter" not in capsys.readouterr().out
    lines += "topics.exclude=a\nmirror.topics.blacklist=${env:TOPICS}\n"
    write(tmp_path, lines, "c")
    assert main(arguments[:5]) == 2
    assert "contains secrets (source->target.topics.exclude)" in capsys.readouterr().err
