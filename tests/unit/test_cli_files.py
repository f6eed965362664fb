"""Which files the verbs take: one MirrorMaker 2 file, or both of MirrorMaker 1's."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkmirror.cli import run as run_module
from sparkmirror.cli.files import Files, TopicFiles, load_settings
from sparkmirror.cli.main import main
from sparkmirror.cli.parts import RunOptions
from sparkmirror.errors import ConfigError
from sparkmirror.model import MirrorMode, MirrorSettings, Partitioner
from tests.unit.config_files import BASE, write

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
        ([file, "--consumer.config", "c"], "--consumer.config: a MirrorMaker 2 file says every"),
        ([file, "--producer.config", "p"], "--producer.config: a MirrorMaker 2 file says every"),
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
        (["run", *files, "--include", "t", "--exactly-once"], "--exactly-once: this option goes"),
        (["plan", *files, "--include", "t", "--clusters", "B"], "--clusters: this option goes"),
        (["run", file, "--keep.partitions"], "--keep.partitions: a MirrorMaker 2 file says"),
        (["run", file, "--num.streams", "2"], "--num.streams: a MirrorMaker 2 file says"),
        (["plan", file, "--blacklist", "t"], "--blacklist: a MirrorMaker 2 file says"),
        (["groups", *files], "MirrorMaker 1 carries no consumer groups over"),
        (["plan", str(tmp_path / "c")], "MirrorMaker 1's files go with --consumer.config"),
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


def test_a_list_is_needed_only_where_topics_are_looked_at(tmp_path: Path) -> None:
    consumer, producer = write(tmp_path, CONSUMER, "c"), write(tmp_path, PRODUCER, "p")
    (flow,) = load_settings(Files(None, [consumer], producer), listed=False).flows
    assert flow.topics.include == (".*",)
    given = TopicFiles(None, [consumer], producer, blacklist="x")
    (flow,) = load_settings(given, listed=False).flows
    assert flow.topics.exclude[-1] == "x"
    with pytest.raises(ConfigError, match="include list"):
        load_settings(Files(None, [consumer], producer))
