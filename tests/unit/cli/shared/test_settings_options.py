"""Which files the verbs take: one MirrorMaker 2 file, or both of MirrorMaker 1's."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.cli.run import run as run_module
from sparkmirror.cli.run.parts import RunOptions
from sparkmirror.cli.shared.settings_options import Files, TopicFiles, load_settings
from sparkmirror.errors import ConfigError
from sparkmirror.model import MirrorMode, Partitioner
from sparkmirror.settings import MirrorSettings
from tests.unit.config_files import BASE, pipe, write

CONSUMER = "bootstrap.servers=127.0.0.1:1\ngroup.id=g\n"
PRODUCER = "bootstrap.servers=127.0.0.1:2\n"
BOTH = "a MirrorMaker 2 file is needed, or both of MirrorMaker 1's"

_VERBS = (
    ["run"], ["plan"], ["topics"], ["clusters"], ["gaps"], ["verify"], ["doctor"],
    ["acls", "needed"],
)  # fmt: skip


def mm1(directory: Path) -> list[str]:
    consumer, producer = write(directory, CONSUMER, "c"), write(directory, PRODUCER, "p")
    return ["--consumer.config", str(consumer), "--producer.config", str(producer)]


@pytest.mark.parametrize("verb", _VERBS, ids=" ".join)
def test_one_kind_of_files_is_needed(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(tmp_path, BASE))
    for arguments, told in (
        ([], f"FILE: {BOTH}"),
        (["--consumer.config", "c"], f"--producer.config: {BOTH}"),
        (["--producer.config", "p"], f"--consumer.config: {BOTH}"),
        ([file, "--consumer.config", "c"], "--consumer.config: this option is for"),
        ([file, "--producer.config", "p"], "--producer.config: this option is for"),
        (["x" * 300, "--producer.config", "p"], "The file cannot be read: File name too long."),
    ):
        assert main([*verb, *arguments]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert "Traceback" not in error


@pytest.mark.parametrize(
    "verb",
    [["run"], ["plan"], ["topics"], ["verify"], ["doctor"], ["acls", "needed"]],
    ids=" ".join,
)  # fmt: skip
def test_who_looks_at_topics_needs_their_list(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb, *mm1(tmp_path)]) == 2
    assert "include list must be specified" in capsys.readouterr().err


def test_options_of_one_kind_are_refused_with_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = mm1(tmp_path)
    file = str(write(tmp_path, BASE))
    for arguments, told in (
        (["run", *files, "--include", "t", "--exactly-once"], "--exactly-once: this option needs"),
        (["plan", *files, "--include", "t", "--clusters", "B"], "--clusters: this option needs"),
        (["run", file, "--keep.partitions"], "--keep.partitions: this option is for"),
        (["run", file, "--num.streams", "2"], "--num.streams: this option is for"),
        (["plan", file, "--blacklist", "t"], "--blacklist: this option is for"),
        (["plan", file, "--whitelist", "t"], "--whitelist: this option is for"),
        (["groups", *files], "MirrorMaker 1 does not mirror consumer groups"),
        (["plan", str(tmp_path / "c")], "for MirrorMaker 1's files use --consumer.config"),
    ):
        assert main(arguments) == 2
        assert told in capsys.readouterr().err


def test_a_run_of_mirrormaker_1s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[MirrorSettings, RunOptions]] = []

    def run(settings: MirrorSettings, options: RunOptions) -> int:
        ran.append((settings, options))
        return 0

    monkeypatch.setattr(run_module, "run_mirror", run)
    arguments = [*mm1(tmp_path), "--blacklist", "no.*", "--num.streams", "3", "--once"]
    assert main(["run", *arguments, "--keep.partitions"]) == 0
    ((settings, options),) = ran
    (flow,) = settings.flows
    assert (flow.mode, flow.tasks_max, options.once) == (MirrorMode.MM1, 3, True)
    assert flow.topics.exclude[-1] == "no.*"
    assert flow.records.partitioner is Partitioner.NUMBER


@pytest.mark.parametrize("include", ["--include", "--whitelist"])
def test_include_counts_before_whitelist(
    include: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran: list[MirrorSettings] = []
    monkeypatch.setattr(run_module, "run_mirror", lambda settings, _: ran.append(settings) or 0)
    assert main(["run", *mm1(tmp_path), include, "a"]) == 0
    assert capsys.readouterr().err == ""
    both = ["--include", "a", "--whitelist", "b"]
    for lists in (both, both[2:] + both[:2]):
        assert main(["run", *mm1(tmp_path), *lists]) == 0
        assert "--whitelist is ignored" in capsys.readouterr().err
    assert [settings.flows[0].topics.include for settings in ran] == [("a",)] * 3
    assert main(["migrate-config", *mm1(tmp_path), *both]) == 0
    assert "source->target.topics = a\n" in capsys.readouterr().out


def test_a_list_is_needed_only_where_topics_are_looked_at(tmp_path: Path) -> None:
    consumer, producer = write(tmp_path, CONSUMER, "c"), write(tmp_path, PRODUCER, "p")
    (flow,) = load_settings(Files(None, [consumer], producer), listed=False).flows
    assert flow.topics.include == (".*",)
    given = TopicFiles(None, [consumer], producer, blacklist="x")
    (flow,) = load_settings(given, listed=False).flows
    assert flow.topics.exclude[-1] == "x"
    with pytest.raises(ConfigError, match="include list"):
        load_settings(Files(None, [consumer], producer))


# Whatever the verb: its words, and whether it looks at topics.
_ALL = (
    (["config"], False), (["status"], False), (["pause"], False), (["resume"], False),
    (["drain"], False), (["gaps"], False), (["clusters"], False), (["plan"], True),
    (["topics"], True), (["verify"], True), (["doctor"], True),
)  # fmt: skip


@pytest.mark.parametrize(("verb", "topics"), _ALL, ids=[verb[0] for verb, _ in _ALL])
def test_every_verb_has_the_same_grammar(
    verb: list[str], topics: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both files by options, or the consumer file as the argument; a flow by --flow."""
    _, consumer, _, producer = files = mm1(tmp_path)
    more = ["--include", "t"] if topics else []
    told = set()
    for given in (files, [consumer, "--producer.config", producer]):
        flow = [] if verb == ["clusters"] else ["--flow", "source->target"]
        # The files are fine; what is wrong is that no cluster listens there.
        assert main([*verb, *given, *more, *flow]) == (0 if verb == ["config"] else _away(verb))
        told.add(capsys.readouterr().err)
        if flow:
            assert main([*verb, *given, *more, "--flow", "x->y"]) == 2
            assert "Choose from: source->target" in capsys.readouterr().err
    assert len(told) == 1, told


def _away(verb: list[str]) -> int:
    return 1 if verb == ["doctor"] else 3


@pytest.mark.parametrize("verb", ["pause", "resume", "drain"])
def test_a_flow_may_follow_the_options_of_both_files(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = mm1(tmp_path)
    assert main([verb, *files, "source->target"]) == 3
    assert "127.0.0.1:2: connection refused" in capsys.readouterr().err
    assert main([verb, *files, "a->b"]) == 2
    assert "Choose from: source->target" in capsys.readouterr().err


def test_verbs_about_one_flow_take_it_either_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = BASE.replace("a:9092", "127.0.0.1:1").replace("b:9092", "127.0.0.1:2")
    file = str(write(tmp_path, text))
    for verb, more in (
        (["acls", "lock"], ["--principal", "User:m"]),
        (["offsets", "translate"], ["--group", "g"]),
    ):
        for flow in (["A->B"], ["--flow", "A->B"]):
            assert main([*verb, file, *flow, *more]) in (1, 3)
            assert "127.0.0.1:2: connection refused" in capsys.readouterr().err
        for flow, told in (([], "no flow is named"), (["A->B", "--flow", "B->A"], "two flows")):
            assert main([*verb, file, *flow, *more]) == 2
            assert told in capsys.readouterr().err


def test_lag_takes_the_consumer_file_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer = mm1(tmp_path)[1]
    for given in ([consumer], ["--consumer.config", consumer]):
        assert main(["lag", *given]) == 3
        assert "127.0.0.1:1: connection refused" in capsys.readouterr().err
    assert main(["lag", consumer, "--consumer.config", consumer]) == 2
    assert "two files" in capsys.readouterr().err


@pytest.mark.parametrize(("verb", "topics"), _ALL, ids=[verb[0] for verb, _ in _ALL])
def test_every_verb_takes_files_that_can_be_read_only_once(
    verb: list[str], topics: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """As from a command in Bash: ``--consumer.config <(sops -d consumer.properties)``."""
    more = ["--include", "t"] if topics else []
    for options in (["--consumer.config"], []):
        with pipe(CONSUMER) as consumer, pipe(PRODUCER) as producer:
            given = [*options, consumer, "--producer.config", producer]
            assert main([*verb, *given, *more]) == (0 if verb == ["config"] else _away(verb))
        assert "missing" not in capsys.readouterr().err


def test_lag_takes_files_that_can_be_read_only_once(capsys: pytest.CaptureFixture[str]) -> None:
    mm2 = BASE.replace("a:9092", "127.0.0.1:1").replace("b:9092", "127.0.0.1:1")
    for text, option, group in (
        (mm2, [], []),
        (CONSUMER, [], []),
        (CONSUMER, [], ["--group", "other"]),
        (CONSUMER + "retries=3\n", ["--command-config"], ["--group", "other"]),
    ):
        with pipe(text) as file:
            assert main(["lag", *option, file, *group]) == 3
        assert "127.0.0.1:1: connection refused" in capsys.readouterr().err
