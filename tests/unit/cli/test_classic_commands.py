"""Command lines and files of MirrorMaker's classic documents, spelled as there."""

from __future__ import annotations

from pathlib import Path

import pytest

import sparkmirror.cli.run.run
import sparkmirror.cli.verbs.lag as lag_verb
from sparkmirror.cli import kafka_mirror_maker, kafka_run_class
from sparkmirror.cli.main import main
from sparkmirror.cli.run.parts import RunOptions
from sparkmirror.cli.verbs.lag_queries import GroupOptions
from sparkmirror.model import MirrorMode
from sparkmirror.settings import FlowSettings, MirrorSettings
from tests.unit.config_files import BASE, write

CONSUMER = "bootstrap.servers=a:1\ngroup.id=g\n"
PRODUCER = "bootstrap.servers=b:1\n"


class Started:
    """Stands in for ``run_mirror``: what it was given, and the exit code that it ends with."""

    def __init__(self) -> None:
        self.settings = MirrorSettings((), ())
        self.options: RunOptions | None = None
        self.code = 0

    def __call__(self, settings: MirrorSettings, options: RunOptions) -> int:
        self.settings, self.options = settings, options
        return self.code

    @property
    def flow(self) -> FlowSettings:
        (flow,) = self.settings.flows
        return flow


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    stand_in = Started()
    monkeypatch.setattr(sparkmirror.cli.run.run, "run_mirror", stand_in)
    return stand_in


def _files(directory: Path, consumer: str = "", producer: str = "") -> list[str]:
    return [
        "--consumer.config",
        str(write(directory, CONSUMER + consumer, "consumer.properties")),
        "--producer.config",
        str(write(directory, PRODUCER + producer, "producer.properties")),
    ]


# --- spellings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "aborts"),
    [
        (["--white-list", "t"], True),
        (["--abortOnSendFail", "false", "--whitelist", "t"], False),
        (["--abort.on.send.fail", "--whitelist", "t"], True),
        (["--whitelist=t", "--abort.on.send.failure", "false"], False),
    ],
)
def test_old_spellings_of_options(
    options: list[str], aborts: bool, tmp_path: Path, started: Started
) -> None:
    assert kafka_mirror_maker.main([*_files(tmp_path), *options]) == 0
    assert started.flow.topics.include == ("t",)
    assert started.flow.records.drop_failed is not aborts


def test_keys_as_guides_have_them(tmp_path: Path, started: Started) -> None:
    files = _files(tmp_path, "auto.commit.enabled=false\n", "compression.codec=0\n")
    assert kafka_mirror_maker.main([*files, "--whitelist", "t"]) == 0
    assert started.flow.records.codec == 0
    told = "\n".join(started.settings.warnings)
    assert "auto.commit.enabled has no effect" in told
    assert "compression.codec is now compression.type=none" in told


# --- classes ------------------------------------------------------------------------------------


def test_the_class_of_mirrormaker_1(tmp_path: Path, started: Started) -> None:
    arguments = ["kafka.tools.MirrorMaker", *_files(tmp_path), "--num.streams", "2"]
    assert kafka_run_class.main([*arguments, "--whitelist=.*"]) == 0
    assert started.flow.tasks_max == 2
    assert kafka_run_class.main(["-name", "mirror", "-loggc", *arguments]) == 1


def test_the_class_of_mirrormaker_2(tmp_path: Path, started: Started) -> None:
    path = str(write(tmp_path, BASE))
    assert kafka_run_class.main(["org.apache.kafka.connect.mirror.MirrorMaker", path]) == 0
    assert started.flow.name == "A->B"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What ``sparkmirror lag`` was to look at, and in which format it was to show it."""
    seen: list[object] = []

    def group_readers(_file: object, wanted: GroupOptions, *_: object) -> list[object]:
        seen.append(wanted)
        return []

    monkeypatch.setattr(lag_verb, "group_readers", group_readers)
    monkeypatch.setattr(lag_verb, "_show", lambda _views, output, **_: seen.append(output))
    return seen


def test_the_classes_that_show_lag(looks: list[object]) -> None:
    checker = ["kafka.tools.ConsumerOffsetChecker", "--group", "g"]
    more = ["--zookeeper", "z:1/k", "--topic", "a,b", "--broker-info"]
    times = ["--socket.timeout.ms", "6000", "--retry.backoff.ms", "3000"]
    assert kafka_run_class.main([*checker, *more, *times]) == 0
    wanted = GroupOptions("g", "z:1/k", None, None, ("a", "b"), 6_000, 3_000)
    assert looks == [wanted, lag_verb.Format.CLASSIC]
    looks.clear()
    command = ["kafka.admin.ConsumerGroupCommand", "--new-consumer", "--describe", "--group", "g"]
    assert kafka_run_class.main([*command, "--bootstrap-server", "b:1", "--timeout", "70"]) == 0
    assert looks == [GroupOptions("g", None, "b:1", None, (), 70), lag_verb.Format.GROUPS]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "No class is named."),
        (["kafka.tools.DumpLogSegments", "x"], "this command has no replacement of class"),
        (["-daemon", "kafka.tools.MirrorMaker"], "stays in the foreground"),
        (["-x", "kafka.tools.MirrorMaker"], "-x is not an option of this command"),
        (["kafka.tools.ConsumerOffsetChecker"], 'Missing required argument "[group]"'),
        (["kafka.admin.ConsumerGroupCommand", "--list"], "only supports --describe --group G"),
        (
            ["kafka.admin.ConsumerGroupCommand", "--describe", "--group", "g", "--delete"],
            "Unrecognized arguments: --delete",
        ),
    ],
)
def test_classes_that_cannot_be_run(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kafka_run_class.main(arguments) == 1
    assert told in capsys.readouterr().err


def test_lag_asks_the_classic_zookeeper(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nothing says where the group is; its times reach the client."""
    asked: list[str] = []

    def find(connect: str, _protocol: str) -> tuple[str, ...]:
        asked.append(connect)
        return ("a:1",)

    monkeypatch.setattr("sparkmirror.cli.shared.settings_options.look_up_brokers", find)
    found: list[FlowSettings] = []
    monkeypatch.setattr(
        "sparkmirror.control.positions.lag.check_group",
        lambda _source, flow, _topics: found.append(flow),
    )
    monkeypatch.setattr(lag_verb, "_show", lambda *_, **__: None)
    monkeypatch.setattr(
        "sparkmirror.cli.shared.connections._loaded", lambda _client: lambda *_, **__: None
    )
    monkeypatch.setattr(
        "sparkmirror.cli.verbs.lag.query_each", lambda ones, ask: ([ask(*ones)][:0], [])
    )
    times = ["--socket.timeout.ms", "6000", "--retry.backoff.ms", "3000"]
    assert main(["lag", "--group", "g", *times]) == 0
    assert asked == ["localhost:2181"]
    assert "using ZooKeeper at localhost:2181" in capsys.readouterr().err
    (flow,) = found
    assert flow.zookeeper == "localhost:2181"
    assert (flow.source.request_timeout_ms, flow.source.retry_backoff_ms) == (6_000, 3_000)


# --- legacy mode --------------------------------------------------------------------------------


def test_keys_of_mirrormaker_2_in_mirrormaker_1s_files(tmp_path: Path, started: Started) -> None:
    consumer = "topics=orders.*, payments\ntopics.blacklist=orders\\\\.x\ntasks.max=3\n"
    consumer += "replication.factor=2\nemit.heartbeats.enabled=true\n"
    producer = "refresh.topics.interval.seconds=7\nreplication.factor=1\n"
    producer += (
        "replication.policy.class=IdentityReplicationPolicy\nemit.checkpoints.enabled=false\n"
    )
    files = _files(tmp_path, consumer, producer)
    legacy = [{"--consumer.config": "--consumer", "--producer.config": "--producer"}.get(a, a)
              for a in files]  # fmt: skip
    assert kafka_mirror_maker.main(legacy) == 0
    flow = started.flow
    assert flow.mode is MirrorMode.MM1
    assert flow.topics.include == ("orders.*|payments",)
    assert "orders\\.x" in flow.topics.exclude
    assert (flow.tasks_max, flow.topics.replication_factor) == (3, 2)
    assert flow.topics.refresh_interval_s == 7
    told = "\n".join(started.settings.warnings)
    assert "emit.heartbeats.enabled (line 7): not supported with MirrorMaker 1's files" in told
    assert "emit.checkpoints.enabled (line 5): always so with MirrorMaker 1's files" in told
    # Options count before the files.
    assert kafka_mirror_maker.main([*files, "--include", "t", "--num.streams", "4"]) == 0
    assert (started.flow.topics.include, started.flow.tasks_max) == (("t",), 4)


def test_a_legacy_start_without_a_list(
    tmp_path: Path, started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kafka_mirror_maker.main(_files(tmp_path, "", "replication.factor=1\n")) == 0
    assert started.flow.topics.include == (".*",)
    assert kafka_mirror_maker.main(_files(tmp_path)) == 1
    assert "include list must be specified" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("replication.policy.class=DefaultReplicationPolicy", "renames topics, which"),
        ("replication.factor=two", "is not a whole number"),
        ("transforms=x", "transforms cannot be used with MirrorMaker 1's files"),
        ("emit.heartbeat.enabled=true", "emit.heartbeat.enabled is unknown"),
    ],
)
def test_what_legacy_mode_cannot(
    line: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kafka_mirror_maker.main([*_files(tmp_path, f"{line}\n"), "--include", "t"]) == 1
    err = capsys.readouterr().err
    assert told in err
    assert "consumer.properties" in err


def test_a_mirrormaker_2_file_for_mirrormaker_1s_command(
    tmp_path: Path, started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path, BASE))
    assert kafka_mirror_maker.main([path, "--once"]) == 0
    assert started.flow.name == "A->B"
    assert started.options is not None
    assert started.options.once
    started.code = 1
    assert kafka_mirror_maker.main([path]) == 255
    for more in (["--include", "t"], _files(tmp_path), ["--num.streams", "2"]):
        assert kafka_mirror_maker.main([path, *more]) == 1
        assert f"{more[0]}: this option is for MirrorMaker 1's files" in capsys.readouterr().err
