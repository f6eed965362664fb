"""The drop-in commands: the Java tools' arguments, texts and exit codes.

What starts Spark is tested with real clusters elsewhere; here each command runs up to the point
where it would hand over to ``run_mirror``, which is replaced to see what it is given.
"""

import io
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import sparkmirror.cli.run.run
from sparkmirror.cli import connect_mirror_maker, kafka_mirror_maker, kafka_run_class
from sparkmirror.cli.run.loop import DRAINING
from sparkmirror.cli.run.parts import RunOptions
from sparkmirror.control.mm1.rebalance_listener import RebalanceListener
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.observe.display.line_view import LineDisplay
from sparkmirror.settings import MirrorSettings
from tests.unit.config_files import BASE, LINE, pipe, write


class Handed:
    """Stands in for ``run_mirror``: keeps what it is given and ends with ``code``."""

    def __init__(self) -> None:
        self.settings: MirrorSettings | None = None
        self.options: RunOptions | None = None
        self.code = 0

    def __call__(self, settings: MirrorSettings, options: RunOptions) -> int:
        self.settings, self.options = settings, options
        return self.code


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Handed:
    stand_in = Handed()
    monkeypatch.setattr(sparkmirror.cli.run.run, "run_mirror", stand_in)
    return stand_in


@pytest.fixture
def mm1(tmp_path: Path) -> list[str]:
    consumer = write(tmp_path, "bootstrap.servers=a:1\ngroup.id=g\n", "consumer.properties")
    producer = write(tmp_path, "bootstrap.servers=b:1\n", "producer.properties")
    return ["--consumer.config", str(consumer), "--producer.config", str(producer)]


def _err(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


# connect-mirror-maker


def test_mm2_runs_the_file(tmp_path: Path, handed: Handed) -> None:
    path = write(tmp_path, BASE + "B->A.enabled=true\n")
    assert connect_mirror_maker.main([str(path), "--clusters", "A", "X"]) == 0
    assert handed.settings is not None
    assert [flow.name for flow in handed.settings.flows] == ["B->A"]
    assert handed.options == RunOptions(
        sigterm_exit_code=143, start_failure_exit_code=3, option_prefix="sparkmirror."
    )


def test_mm2_runs_a_file_that_can_be_read_only_once(handed: Handed) -> None:
    with pipe(BASE) as path:
        assert connect_mirror_maker.main([path]) == 0
    assert handed.settings is not None


def test_mm2_spark_master(tmp_path: Path, handed: Handed) -> None:
    path = write(tmp_path, BASE)
    assert connect_mirror_maker.main(["--sparkmirror.master", "local[2]", str(path)]) == 0
    assert handed.options is not None
    assert handed.options.master == "local[2]"


@pytest.mark.parametrize("code", [0, 1, 2, 3, 130, 143])
def test_mm2_ends_with_the_code_of_the_run(tmp_path: Path, handed: Handed, code: int) -> None:
    handed.code = code
    assert connect_mirror_maker.main([str(write(tmp_path, BASE))]) == code


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_mm2_help(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert connect_mirror_maker.main([option]) == 255
    out = capsys.readouterr().out
    assert out.startswith("usage: connect-mirror-maker [-h]")
    assert "MirrorMaker 2.0 driver" in out
    assert "-daemon" not in out


def test_mm2_without_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert connect_mirror_maker.main([]) == 1
    assert _err(capsys).startswith("USAGE: connect-mirror-maker")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["/none/mm2.properties"], "error: /none/mm2.properties: There is no such file."),
        (["--clusters", "A"], "The argument mm2.properties is missing"),
        (["a", "--nonsense"], "Unrecognized arguments: --nonsense"),
        (["a", "--clusters"], "expected at least one argument"),
        (["-daemon", "a"], "-daemon is an option of Kafka's shell scripts"),
    ],
)
def test_mm2_wrong_arguments(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert connect_mirror_maker.main(arguments) == 255
    assert told in _err(capsys)


def test_mm2_daemon_says_what_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    connect_mirror_maker.main(["-daemon", "mm2.properties"])
    told = _err(capsys)
    assert "systemd" in told
    assert "KillMode=mixed" in told
    assert "nohup connect-mirror-maker" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BASE + "tasks.max=x\n", f"mm2.properties:{LINE}: tasks.max=x is not a whole number"),
        (
            BASE.replace("true", "false") + "emit.heartbeats.enabled=false\n",
            "No source->target replication flows.",
        ),
    ],
)
def test_mm2_wrong_configuration(
    tmp_path: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert connect_mirror_maker.main([str(write(tmp_path, text))]) == 2
    assert told in _err(capsys)


@pytest.mark.parametrize(
    ("enabled", "clusters", "beats"),
    [
        ("true", ["--clusters", "A"], ["B->A"]),
        ("false", [], ["A->B", "B->A"]),
        ("false", ["--clusters", "B"], ["A->B"]),
    ],
)
def test_mm2_without_a_flow_runs_heartbeats(
    tmp_path: Path, handed: Handed, enabled: str, clusters: list[str], beats: list[str]
) -> None:
    path = write(tmp_path, BASE.replace("true", enabled))
    assert connect_mirror_maker.main([str(path), *clusters]) == 0
    assert handed.settings is not None
    assert handed.settings.flows == ()
    assert [one.name for one in handed.settings.heartbeats] == beats


# kafka-mirror-maker


def test_mm1_runs_the_files(mm1: list[str], handed: Handed) -> None:
    code = kafka_mirror_maker.main(
        [*mm1, "--include", "a,b", "--num.streams", "3", "--offset.commit.interval.ms", "500",
         "--abort.on.send.failure", "TRUE", "--sparkmirror.master", "local[2]",
         "--sparkmirror.metrics", "127.0.0.1:9404"]
    )  # fmt: skip
    assert code == 0
    assert handed.settings is not None
    assert handed.settings.mode is MirrorMode.MM1
    (flow,) = handed.settings.flows
    assert flow.topics.include == ("a|b",)
    assert (flow.tasks_max, flow.position_interval_ms) == (3, 500)
    assert handed.options is not None
    assert handed.options.master == "local[2]"
    assert handed.options.metrics == "127.0.0.1:9404"
    assert handed.options.sigterm_exit_code == 143
    assert not handed.options.once


def test_mm1_once(mm1: list[str], handed: Handed) -> None:
    assert kafka_mirror_maker.main([*mm1, "--include", "a", "--once"]) == 0
    assert handed.options is not None
    assert handed.options.once


@pytest.mark.parametrize(
    ("run", "java"), [(0, 0), (1, 255), (2, 1), (3, 1), (130, 130), (143, 143)]
)
def test_mm1_exit_codes_are_the_java_tools(
    mm1: list[str], handed: Handed, run: int, java: int
) -> None:
    handed.code = run
    assert kafka_mirror_maker.main([*mm1, "--whitelist=a"]) == java


def test_mm1_whitelist_gives_way_to_include(
    mm1: list[str], handed: Handed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kafka_mirror_maker.main([*mm1, "--whitelist", "w", "--include", "i"]) == 0
    assert handed.settings is not None
    assert handed.settings.flows[0].topics.include == ("i",)
    assert "--whitelist is ignored" in _err(capsys)


def test_mm1_options_of_old_versions(
    mm1: list[str], tmp_path: Path, handed: Handed, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write(tmp_path, "bootstrap.servers=c:1\ngroup.id=g\n", "other.properties")
    code = kafka_mirror_maker.main(
        [*mm1, "--consumer.config", str(other), "--blacklist", "secret.*", "--num.producers", "2",
         "--queue.size", "500", "--new.producer", "--abort.on.send.fail", "true",
         "--num.streams", "2"]
    )  # fmt: skip
    assert code == 0
    assert handed.settings is not None
    first, second = handed.settings.flows
    assert (first.name, second.name) == ("source-1->target", "source-2->target")
    assert second.source.bootstrap_servers == ("c:1",)
    assert (first.tasks_max, second.tasks_max) == (2, 2)
    assert first.topics.include == (".*",)
    assert "secret.*" in first.topics.exclude
    told = _err(capsys)
    for option in ("num.producers", "queue.size", "new.producer"):
        assert f"--{option} has no effect" in told


def test_mm1_new_consumer_is_accepted_and_told(
    mm1: list[str], handed: Handed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kafka_mirror_maker.main([*mm1, "--include", "i", "--new.consumer"]) == 0
    assert handed.settings is not None
    assert "--new.consumer has no effect" in _err(capsys)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_mm1_help_is_on_stderr(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert kafka_mirror_maker.main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "This tool helps to continuously copy data between two Kafka clusters." in captured.err


def test_mm1_help_has_every_option_of_the_java_tool(capsys: pytest.CaptureFixture[str]) -> None:
    kafka_mirror_maker.main(["--help"])
    told = _err(capsys)
    for option in (
        "abort.on.send.failure", "consumer.config", "consumer.rebalance.listener", "help",
        "include", "message.handler", "message.handler.args", "new.consumer", "num.streams",
        "offset.commit.interval.ms", "producer.config", "rebalance.listener.args", "version",
        "whitelist", "blacklist", "new.producer", "num.producers", "queue.size",
        "abort.on.send.fail",
    ):  # fmt: skip
        assert re.search(rf"--{re.escape(option)}[ \],\n]", told)


@pytest.mark.parametrize(
    ("drop", "missing"), [(slice(0, 2), "consumer.config"), (slice(2, 4), "producer.config")]
)
def test_mm1_missing_file_option(
    mm1: list[str], drop: slice, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del mm1[drop]
    assert kafka_mirror_maker.main([*mm1, "--include", "a"]) == 1
    told = _err(capsys)
    assert told.startswith(f'Missing required argument "[{missing}]"')
    assert "--num.streams" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "include list must be specified."),
        (["--include", "("], "--include: '(' is an invalid regex"),
        (["--include", "a", "--num.streams", "x"], "--num.streams: 'x' is not a whole number"),
        (["--include", "a", "--num.streams", "1_0"], "'1_0' is not a whole number"),
        (["--include", "a", "--num.streams", " 1"], "' 1' is not a whole number"),
        (["--include", "a", "--num.streams", "2147483648"], "'2147483648' does not fit in 32 bits"),
        (
            ["--include", "a", "--offset.commit.interval.ms", "\u0661"],
            "--offset.commit.interval.ms: '\u0661' is not a whole number",
        ),
        (["--include", "a", "--queue.size", "9" * 5_000], "does not fit in 32 bits"),
        (["--include", "a", "--num.streams", "0"], "--num.streams: 0 is too small."),
        (["--include", "a", "--nonsense"], "Unrecognized arguments: --nonsense"),
        (["--include", "a", "--message.handler", "X"], "'X' is not module:function"),
        (
            ["--include", "a", "--message.handler", "no_such_module:f"],
            "--message.handler: no_such_module:f cannot be imported",
        ),
        (
            ["--include", "a", "--message.handler", "math:pi"],
            "math:pi is neither a function nor a class",
        ),
        (
            [
                "--include",
                "a",
                "--consumer.rebalance.listener",
                "decimal:Context",
                "--rebalance.listener.args",
                "x",
            ],
            "decimal:Context cannot be instantiated",
        ),
        (["--include", "a", "--abort.on.send.failure", "x"], "'x' is neither true nor false"),
        (["--include", "a", "--exactly-once"], "no transaction spans two clusters"),
        (["--include", "a", "--consumer.config", "/none"], "/none: There is no such file."),
    ],
)
def test_mm1_wrong_options(
    mm1: list[str], arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kafka_mirror_maker.main([*mm1, *arguments]) == 1
    assert told in _err(capsys)


class Listener:
    """A rebalance listener that may be there only once, as one with a port may."""

    made = 0

    def __init__(self, text: str) -> None:
        assert text == "x"
        Listener.made += 1

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Nothing to do."""


def test_mm1_a_listener_is_made_once(mm1: list[str], handed: Handed) -> None:
    name = ["--consumer.rebalance.listener", f"{__name__}:Listener"]
    arguments = [*mm1, "--include", "a", *name, "--rebalance.listener.args", "x"]
    assert kafka_mirror_maker.main(arguments) == 0
    assert handed.settings is not None
    listener = RebalanceListener(handed.settings.flows[0].group)
    listener.assigned([TopicPartition("a", 0)])
    assert Listener.made == 1


# all of them

Main = Callable[[Sequence[str]], int]


@pytest.fixture
def commands(tmp_path: Path, mm1: list[str]) -> list[tuple[Main, list[str]]]:
    """Each command with arguments that start a mirror."""
    files, mm2 = [*mm1, "--include", "a"], [str(write(tmp_path, BASE))]
    return [
        (kafka_mirror_maker.main, files),
        (kafka_mirror_maker.main, mm2),
        (connect_mirror_maker.main, mm2),
        (kafka_run_class.main, ["kafka.tools.MirrorMaker", *files]),
    ]


def test_a_drain_is_shown_on_a_stream_without_unicode(
    commands: list[tuple[Main, list[str]]], handed: Handed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for main, arguments in commands:
        shown = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="latin-1"))
        assert main(arguments) == 0
        assert handed.settings is not None
        LineDisplay(sys.stdout).phase(DRAINING)
        assert b"all records that were read ? (Ctrl+C again" in shown.getvalue()


def test_ctrl_c_while_the_files_are_read_ends_with_130(
    commands: list[tuple[Main, list[str]]], handed: Handed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> MirrorSettings:
        raise KeyboardInterrupt

    monkeypatch.setattr("sparkmirror.config.mm1.load.load_mm1", interrupted)
    monkeypatch.setattr("sparkmirror.config.mm2.load.load_mm2", interrupted)
    for main, arguments in commands:
        assert main(arguments) == 130
    assert handed.settings is None


def test_a_defect_is_one_paragraph_without_a_stack_trace(
    commands: list[tuple[Main, list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A stack trace shows lines of code, and with them values of the file."""

    def fail(*_: object, **__: object) -> MirrorSettings:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("sparkmirror.config.mm1.load.load_mm1", fail)
    monkeypatch.setattr("sparkmirror.config.mm2.load.load_mm2", fail)
    codes = {connect_mirror_maker.main: 2, kafka_mirror_maker.main: 1}
    for main, arguments in commands:
        code = main(arguments)
        assert code == codes.get(main, code)
        assert code in (1, 2)
        told = _err(capsys)
        assert "Unexpected ZeroDivisionError: division by zero." in told
        assert "Traceback" not in told


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("master", "'nonsense' is not a Spark master"),
        ("metrics", "'nonsense' is not an address to listen on"),
    ],
)
def test_an_error_names_the_option_that_the_command_has(
    commands: list[tuple[Main, list[str]]],
    tmp_path: Path,
    option: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for main, arguments in commands:
        if option == "metrics" and main is connect_mirror_maker.main:
            continue  # it has no such option
        assert main([*arguments, f"--sparkmirror.{option}", "nonsense"]) in (1, 2)
        err = _err(capsys)
        assert f"error: --sparkmirror.{option}: " in err
        assert told in err


def test_an_error_about_the_work_directory_says_what_to_set(
    commands: list[tuple[Main, list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(file))
    monkeypatch.setenv("HOME", str(file))
    monkeypatch.setattr(tempfile, "tempdir", str(file))
    for main, arguments in commands:
        assert main(arguments) in (1, 3)
        err = _err(capsys)
        assert "The work directory" in err
        assert "Set XDG_STATE_HOME to a directory that this user may write." in err
        assert "--work-dir" not in err


# both, as processes


@pytest.mark.parametrize(
    "module", [pytest.param("connect_mirror_maker", marks=pytest.mark.more), "kafka_mirror_maker"]
)
def test_version_is_on_stdout(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"sparkmirror.cli.{module}", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.strip() == sparkmirror.cli.run.run.tool_version()


@pytest.mark.parametrize(
    ("module", "code"),
    [
        pytest.param("connect_mirror_maker", 255, marks=pytest.mark.more),
        ("kafka_mirror_maker", 1),
    ],
)
def test_a_wrong_option_ends_the_process_without_a_stack_trace(module: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"sparkmirror.cli.{module}", "--nonsense"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stderr


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as held:  # nobody else is given the port meanwhile
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest.mark.parametrize("module", ["connect_mirror_maker", "kafka_mirror_maker"])
def test_a_cluster_that_refuses_ends_a_real_start(
    tmp_path: Path, closed_port: int, module: str
) -> None:
    server = f"127.0.0.1:{closed_port}"
    if module == "connect_mirror_maker":
        text = BASE.replace("a:9092", server).replace("b:9092", server)
        arguments, code = [str(write(tmp_path, text))], 3
    else:
        consumer = write(tmp_path, f"bootstrap.servers={server}\ngroup.id=g\n", "c.properties")
        producer = write(tmp_path, f"bootstrap.servers={server}\n", "p.properties")
        arguments = ["--consumer.config", str(consumer), "--producer.config", str(producer)]
        arguments, code = [*arguments, "--include", "t"], 1
    done = subprocess.run(
        [sys.executable, "-m", f"sparkmirror.cli.{module}", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
    )
    assert done.returncode == code, done.stderr
    assert f"{server}: connection refused" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--include", ("a", "b")),
        ("--whitelist", ("a", "b")),
        ("--blacklist", ("a", "b")),
        ("--num.streams", ("4", "1")),
        ("--offset.commit.interval.ms", ("60000", "1000")),
        ("--abort.on.send.failure", ("true", "false")),
        ("--producer.config", ("a", "b")),
    ],
)
def test_mm1_an_option_is_given_once(
    mm1: list[str],
    option: str,
    values: tuple[str, str],
    handed: Handed,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Java refuses it; one of the values would be lost without a word."""
    first, second = values
    assert kafka_mirror_maker.main([*mm1, option, first, f"{option}={second}"]) == 1
    assert handed.settings is None
    assert "is given more than once" in _err(capsys)
