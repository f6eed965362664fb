"""The ``sparkmirror`` command: options, help, versions, errors and exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from sparkmirror.cli import main as main_module
from sparkmirror.cli.main import main
from sparkmirror.cli.run import run as run_module
from sparkmirror.cli.run import workdir
from sparkmirror.cli.run.parts import RunOptions
from sparkmirror.cli.run.workdir import new_run_id, open_work_dir
from sparkmirror.cli.shared.errors import as_mirror_error, error_text, show_error
from sparkmirror.errors import ConfigError, MachineError, MirrorError, Unreachable
from sparkmirror.settings import MirrorSettings

GOOD = """\
clusters = A, B
A.bootstrap.servers = 127.0.0.1:1
B.bootstrap.servers = 127.0.0.1:2
A->B.enabled = true
"""


def sparkmirror(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparkmirror.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "100"},
        check=False,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mm2.properties"
    path.write_text(GOOD, encoding="utf-8")
    return path


class Recorder:
    """Stands where the run would begin, and keeps what it is called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
        self.settings: MirrorSettings | None = None
        self.options = RunOptions()
        self.code = code
        monkeypatch.setattr(run_module, "run_mirror", self)

    def __call__(self, settings: MirrorSettings, options: RunOptions) -> int:
        self.settings, self.options = settings, options
        return self.code


def test_defaults_reach_the_run(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    recorder = Recorder(monkeypatch)
    assert main(["run", str(file)]) == 0
    assert recorder.options == RunOptions()
    assert recorder.settings is not None
    assert [flow.name for flow in recorder.settings.flows] == ["A->B"]


def test_every_option_reaches_the_run(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    recorder = Recorder(monkeypatch, code=7)
    given = [
        *("run", str(file), "--once", "--clusters", "B", "--clusters", "A,B", "--debug"),
        *("--master", "local[3]", "--log-format", "json", "--log-file", "/tmp/x.log"),
        *("--interval", "1.5", "--conf", "spark.a=1", "--conf", "spark.b=x=y", "--conf"),
        *("spark.a=2", "--work-dir", "/tmp/w"),
    ]
    assert main(given) == 7
    assert recorder.options == RunOptions(
        master="local[3]",
        once=True,
        debug=True,
        log_format="json",
        log_file=Path("/tmp/x.log"),
        interval_s=1.5,
        spark_conf={"spark.a": "2", "spark.b": "x=y"},
        work_dir=Path("/tmp/w"),
    )


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--conf", "nonsense"], 2, "error: --conf: 'nonsense' is not a key=value pair. Write it"),
        (["--conf", "=x"], 2, "error: --conf: '=x' is not a key=value pair."),
        (["--clusters", "A,,B"], 2, "error: --clusters: An alias in the list is empty. Give"),
        (["--interval", "0"], 2, "Invalid value for '--interval'"),
        (["--log-format", "xml"], 2, "'xml' is not one of"),
        (["--nope"], 2, "No such option: --nope"),
    ],
)
def test_wrong_usage_ends_with_2(
    file: Path, arguments: list[str], code: int, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(file), *arguments]) == code
    shown = capfd.readouterr()
    assert text in re.sub(r"\x1b\[[0-9;]*m", "", shown.err)
    assert shown.out == ""


def test_a_missing_file_is_one_paragraph() -> None:
    done = sparkmirror("run", "/nowhere/mm2.properties")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "/nowhere/mm2.properties" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_debug_adds_the_stack_trace() -> None:
    done = sparkmirror("run", "/nowhere/mm2.properties", "--debug")
    assert done.returncode == 2
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")


def test_errors_are_json_when_lines_are() -> None:
    done = sparkmirror("run", "/nowhere/mm2.properties", "--log-format", "json")
    assert done.returncode == 2
    document = json.loads(done.stderr)
    assert (document["type"], document["code"]) == ("error", "CONFIG")
    assert document["what"]
    assert document["do"]


def test_unreachable_clusters_end_the_start_with_3(file: Path, tmp_path: Path) -> None:
    done = sparkmirror("run", str(file), "--work-dir", str(tmp_path / "w"))
    assert done.returncode == 3
    assert "error: " in done.stderr
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


_LOGS = (["main", "run", "FILE", "--log-file", "/nowhere/log"], 3)
_VERSION = (["main", "version"], 0)
_OTHERS = (
    (["main", "run", "/nowhere/mm2.properties"], 2),
    (["main", "lag", "FILE"], 3),
    (["connect_mirror_maker", "/nowhere/mm2.properties"], 255),
    (["kafka_mirror_maker", "--help"], 1),
    (["kafka_run_class", "kafka.tools.GetOffsetShell"], 1),
)


def _id(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else value if isinstance(value, str) else ""


@pytest.mark.parametrize(
    ("command", "code", "closed"),
    [
        *((*each, ">&-") for each in (_LOGS, _VERSION, *_OTHERS)),
        *((*each, "<&- 2>&-") for each in (_LOGS, _VERSION)),
        *(pytest.param(*each, "<&- 2>&-", marks=pytest.mark.more) for each in _OTHERS),
    ],
    ids=_id,
)
def test_closed_streams_change_no_exit_code(
    file: Path, command: list[str], code: int, closed: str
) -> None:
    module, *arguments = command
    words = [sys.executable, "-m", f"sparkmirror.cli.{module}"]
    words += [str(file) if one == "FILE" else one for one in arguments]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Unexpected" not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


_NULLS = """
import os, sys
null = os.stat(os.devnull).st_rdev
if any(os.fstat(number).st_rdev != null for number in range(3)):
    sys.exit(7)
"""


def test_no_file_gets_the_number_of_a_closed_stream() -> None:
    """Not in this process, and not in its children."""
    script = (
        "import subprocess, sys\n"
        "from sparkmirror.cli.main import main\n"
        f"main(['version'])\n{_NULLS}\n"
        f"sys.exit(subprocess.call([sys.executable, '-c', {_NULLS!r}]))\n"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words], timeout=60, check=False
    )
    assert done.returncode == 0


def test_version_names_what_it_runs_on() -> None:
    done = sparkmirror("version")
    assert done.returncode == 0
    assert re.search(r"^sparkmirror \d+\.\d+\.\d+$", done.stdout, re.MULTILINE)
    assert "PySpark 4.3.0" in done.stdout


def test_help_names_every_command_and_option() -> None:
    top = sparkmirror("--help")
    assert top.returncode == 0
    assert all(f" {name} " in top.stdout for name in ("run", "demo", "version"))
    run = sparkmirror("run", "-h")
    assert run.returncode == 0
    options = [
        "once",
        "clusters",
        "master",
        "conf",
        "work-dir",
        "log-format",
        "log-file",
        "interval",
        "debug",
    ]
    assert all(f"--{name}" in run.stdout for name in options)
    assert "Exit codes: 0 ended as requested" in run.stdout


def test_no_command_shows_the_help() -> None:
    done = sparkmirror()
    assert done.returncode == 2
    assert "Usage: sparkmirror" in done.stdout + done.stderr


def test_the_option_and_the_command_show_the_version() -> None:
    shown = [sparkmirror(one) for one in ("--version", "version")]
    assert [one.returncode for one in shown] == [0, 0]
    assert shown[0].stdout == shown[1].stdout
    assert shown[0].stdout.startswith("sparkmirror ")


def _registered() -> dict[str, Any]:
    main_module._add_verbs([])
    commands: dict[str, Any] = main_module._command().commands
    return commands


def test_each_verb_has_a_group_and_an_example_that_it_takes() -> None:
    """The options of an example are those of its verb, and its files and flows are arguments."""
    for name, verb in _registered().items():
        if name == "version":
            continue
        assert verb.rich_help_panel in (
            "Start", "Check before a run", "Inspect", "Control", "Verify", "Migrate",
        ), name  # fmt: skip
        lead, *words = shlex.split(verb.epilog)
        assert (lead, *words[:2]) == ("Example:", "sparkmirror", name)
        rest = words[2:]
        command = verb
        if hasattr(verb, "commands"):
            command, rest = verb.commands[rest[0]], rest[1:]
        known = {option for one in command.params for option in one.opts}
        assert {word for word in rest if word.startswith("--")} <= known, name
        command.make_context(name, list(rest))  # the parser takes it whole


def test_a_flag_names_no_value() -> None:
    def options(command: Any) -> Iterator[Any]:
        yield from command.params
        for each in getattr(command, "commands", {}).values():
            yield from options(each)

    flags = [
        one
        for verb in _registered().values()
        for one in options(verb)
        if getattr(one, "is_flag", False)
    ]
    assert len(flags) > 10
    assert all(one.metavar == "" for one in flags)
    shown = sparkmirror("lag", "--help").stdout
    assert "--watch" in shown
    assert "bool" not in shown


def test_shells_complete_verbs_and_options() -> None:
    def completed(words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "sparkmirror.cli.main"],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env=os.environ
            | {
                "_SPARKMIRROR_COMPLETE": "complete_bash",
                "COMP_WORDS": f"sparkmirror {words}",
                "COMP_CWORD": str(len(words.split())),
            },
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert completed("mig") == ["migrate-config"]
    assert completed("verify --sam") == ["--sample"]


def test_every_verb_is_registered_once() -> None:
    main_module._add_verbs([])
    main_module._add_verbs([])
    names = [
        command.name or command.callback.__name__ for command in main_module.app.registered_commands
    ]
    names += [group.name for group in main_module.app.registered_groups]
    assert sorted(names) == sorted(["run", "prepare", "version", *main_module._VERBS])
    assert typer.main.get_command(main_module.app) is not None


def test_a_defect_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(run_module, "run_mirror", fail)
    assert main(["run", str(file)]) == 1
    shown = capfd.readouterr().err
    assert "Unexpected ZeroDivisionError: division by zero." in shown
    assert "--debug" in shown
    assert "Traceback" not in shown


def test_ctrl_c_before_the_run_ends_with_130(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "run_mirror", interrupted)
    assert main(["run", str(file)]) == 130


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_errors_are_red_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    error = Unreachable("No broker answers.", where="cluster [A]", do="Start one.")
    screen, plain = Screen(), io.StringIO()
    show_error(error, stream=screen)
    show_error(error, stream=plain)
    assert "\x1b[" in screen.getvalue()
    assert "31m" in screen.getvalue()
    assert "cluster [A]: No broker answers. Start one." in re.sub(
        r"\x1b\[[0-9;]*m", "", screen.getvalue()
    )
    assert plain.getvalue() == "error: cluster [A]: No broker answers. Start one.\n"


def test_an_unwritable_stderr_does_not_hide_the_exit_code() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    assert show_error(ConfigError("x"), stream=Closed()).exit_code == 2


def test_unexpected_errors_keep_place_and_cause() -> None:
    try:
        raise KeyError("gone")
    except KeyError as error:
        shown = as_mirror_error(error)
    assert type(shown) is MirrorError
    assert re.search(r"test_main\.py:\d+", shown.where)
    assert isinstance(shown.__cause__, KeyError)
    assert "Unexpected KeyError: 'gone'." in error_text(shown)


def test_secrets_of_the_settings_are_masked_in_errors(tmp_path: Path) -> None:
    """The masking itself is tested with the logs; here, that every client's secrets reach it."""
    program = """
import sys
from sparkmirror.cli.shared.errors import error_text
from sparkmirror.cli.shared.secrets import hide_secrets
from sparkmirror.errors import MirrorError
from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings
jaas = 'x.PlainLoginModule required username="u" password="s3cret-in-jaas";'
def client(alias, **properties):
    return ClusterClient(alias, ("h:1",), alias, properties=properties)
flow = FlowSettings(
    client("A", **{"ssl.key.password": "s3cret-key"}), client("B", **{"sasl.jaas.config": jaas}),
    client("A"), client("B", **{"client.id": "visible"}))
hide_secrets(MirrorSettings((flow,), ("A", "B")))
print(error_text(MirrorError("s3cret-key s3cret-in-jaas visible")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "*** *** visible"


def test_work_dir_below_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run_id = new_run_id()
    path = open_work_dir(None, run_id)
    assert path == tmp_path / "sparkmirror" / "runs" / run_id
    assert path.stat().st_mode & 0o777 == 0o700


def test_old_runs_are_removed_but_never_those_of_living_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs = tmp_path / "sparkmirror" / "runs"
    dead = 2**22 + 1  # above the largest process id of Linux
    token = new_run_id().split("-")[2]
    for i in range(15):
        (runs / f"20200101-0000{i:02d}-{token}-{dead}").mkdir(parents=True)
    living = runs / f"20190101-000000-{token}-{os.getpid()}"
    living.mkdir()
    (runs / "notes").mkdir()
    path = open_work_dir(None, new_run_id())
    left = {p.name for p in runs.iterdir()}
    assert {path.name, living.name, "notes"} <= left
    assert sum(name.endswith(str(dead)) for name in left) <= workdir.RUNS_KEPT
    assert f"20200101-000000-{token}-{dead}" not in left
    assert f"20200101-000014-{token}-{dead}" in left


def test_runs_of_other_hosts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home on a network: nobody here can tell whether those processes live."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(workdir.os, "getpid", lambda: 2**22 + 1)
    theirs = set()
    with monkeypatch.context() as there:
        there.setattr(workdir.socket, "gethostname", lambda: "another-host")
        for second in range(15):
            there.setattr(workdir.time, "strftime", lambda _, s=second: f"20200101-0000{s:02d}")
            theirs.add(new_run_id())
    for name in theirs:
        (tmp_path / "sparkmirror" / "runs" / name).mkdir(parents=True)
    path = open_work_dir(None, new_run_id())
    assert {one.name for one in path.parent.iterdir()} == {*theirs, path.name}


def test_runs_that_start_together_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two containers, both may be process 1."""
    monkeypatch.setattr(workdir.time, "strftime", lambda _: "20260131-120000")
    monkeypatch.setattr(workdir.os, "getpid", lambda: 1)
    assert new_run_id() != new_run_id()


def test_a_state_directory_that_cannot_be_written_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocked").write_text("a file where a directory is wanted")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "blocked"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = open_work_dir(None, "run-1")
    assert path == tmp_path / "home" / ".local" / "state" / "sparkmirror" / "runs" / "run-1"


def test_a_given_work_dir_is_used_or_refused(tmp_path: Path) -> None:
    assert open_work_dir(tmp_path / "a" / "b", "ignored") == tmp_path / "a" / "b"
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be created or written") as caught:
        open_work_dir(tmp_path / "file", "ignored")
    assert caught.value.where == "--work-dir"
