"""Bad files at the command line: one paragraph (what, where, what to do), exit code, no trace."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

# Commands import it late, when a test may have no right any more to read it.
import sparkmirror.cli.run.run
import sparkmirror.config.mm1.load
import sparkmirror.config.mm2.load  # noqa: F401
from sparkmirror.cli import connect_mirror_maker, kafka_mirror_maker
from sparkmirror.cli.main import main
from tests.unit.config_files import BASE, LINE, without_root, write


def paragraph(capfd: pytest.CaptureFixture[str]) -> str:
    """The one line that was said; nothing else was."""
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1, shown.err
    return shown.err.removeprefix("error: ").rstrip()


FILES = {
    "missing": "There is no such file.",
    "directory": "is a directory",
    "locked": "ermission",
    "through": "cannot be read: Not a directory",
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(("command", "code"), [("run", 2), ("mm2", 255), ("mm1", 1)])
def test_a_file_that_cannot_be_read(
    kind: str, command: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "some.properties"
        if kind == "directory":
            path.mkdir()
        elif kind != "missing":
            path.write_text(BASE)
        if kind == "through":
            path = path / "mm2.properties"
        with _locked(path) if kind == "locked" else nullcontext():
            assert COMMANDS[command](path) == code
    told = paragraph(capfd)
    assert told.startswith(f"{path}: ")
    assert FILES[kind] in told


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.chmod(0)
    path.parent.chmod(0o755)
    with without_root():
        yield


def _mm1(path: Path) -> int:
    arguments = ["--consumer.config", str(path), "--producer.config", str(path)]
    return kafka_mirror_maker.main([*arguments, "--include", "t"])


COMMANDS: dict[str, Callable[[Path], int]] = {
    "run": lambda path: main(["run", str(path)]),
    "mm2": lambda path: connect_mirror_maker.main([str(path)]),
    "mm1": _mm1,
}


# line -> (what, what to do)
LINES = {
    "nonsense": ("nonsense", "="),
    "A->X.enabled=true": ("A->X.enabled names the cluster 'X', which is not in", "Add"),
    "A->A.enabled=true": ("a flow cannot lead from a cluster to itself", "two"),
    "topics=a(": ("'a(' is an invalid regex: a '(' is not closed", "Java regular"),
    "A->B.topics.exclude=[a-": ("is an invalid regex", "Java regular"),
    "B.bootstrap.servers=b": ("'b', which is not host:port", "host"),
    "security.protocol=abc": ("security.protocol=abc is not one of", "PLAINTEXT"),
    "tasks.max=four": ("tasks.max=four is not a whole number", "digits"),
    "topcs=x": ("topcs is unknown (did you mean topics?)", ""),
}


@pytest.mark.parametrize("line", LINES)
def test_a_wrong_line(line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    what, do = LINES[line]
    path = write(tmp_path, BASE + line + "\n")
    assert main(["run", str(path)]) == 2
    told = paragraph(capfd)
    assert told.startswith(f"{path}:{LINE}: ")
    assert what in told
    assert do in told[told.index(what) + len(what) :]


def test_debug_shows_where_it_was_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, BASE + "topics=a(\n")
    assert main(["run", str(path), "--debug"]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith(f"error: {path}:{LINE}: ")


def test_a_flow_that_no_cluster_is_left_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(write(tmp_path, BASE)), "--clusters", "A"]) == 2
    told = paragraph(capfd)
    assert "No source->target replication flows." in told
    assert "--clusters A keeps only flows to these targets" in told
