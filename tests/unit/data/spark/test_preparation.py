"""``sparkmirror prepare``: once, whoever asks; Spark and Java are stood in for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.data.spark import preparation
from sparkmirror.data.spark.class_archive import ClassArchive
from sparkmirror.data.spark.preparation import prepare
from sparkmirror.errors import MachineError


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a virtual environment's archives."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "venv" / "share" / "sparkmirror" / "classes"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The archives that were made, in order; each takes a moment."""
    paths: list[Path] = []

    def make(archive: ClassArchive, directory: Path, say: Callable[[str], None]) -> None:
        assert directory.is_dir()
        paths.append(archive.path)
        say("making it")
        time.sleep(0.2)
        archive.path.write_bytes(b"classes")

    monkeypatch.setattr(preparation, "_make", make)
    return paths


def test_it_is_made_once(environment: Path, made: list[Path]) -> None:
    said: list[str] = []
    archive = prepare(said.append)
    assert archive.path.parent == environment
    assert archive.path.read_bytes() == b"classes"
    assert prepare(said.append) == archive
    assert made == [archive.path]
    assert said == ["making it"]


def test_several_at_a_time_make_one(environment: Path, made: list[Path]) -> None:
    found: list[ClassArchive] = []
    threads = [
        threading.Thread(target=lambda: found.append(prepare(lambda _: None))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    assert len(set(made)) == len(made) == 1
    assert all(archive.made for archive in found)


def test_a_failure_leaves_the_next_one_free(
    environment: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MachineError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(preparation, "_make", fail)
        with pytest.raises(MachineError, match="no memory"):
            prepare(lambda _: None)
    assert prepare(lambda _: None).made


def test_a_user_without_a_place_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassArchive, "find", lambda _: None)
    with pytest.raises(MachineError, match=r"no place for Spark's class archive.*XDG_CACHE_HOME"):
        prepare(lambda _: None)


def test_a_spark_home_without_a_spark_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with the place of the archive, then."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(MachineError, match="the directory jars is missing") as caught:
        prepare(lambda _: None)
    assert caught.value.where == f"SPARK_HOME={tmp_path}"
    assert "Unset SPARK_HOME" in caught.value.do


def test_a_spark_home_of_another_release_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(MachineError, match=r"Spark 3\.5\.1 is there") as caught:
        prepare(lambda _: None)
    assert caught.value.where == f"SPARK_HOME={tmp_path}"


def test_the_command_says_where_it_is(
    environment: Path, made: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare"]) == 0
    assert capsys.readouterr().out == (
        f"making it\nSpark's class archive is there: {made[0]} (0 MB)\n"
    )
    assert main(["prepare"]) == 0
    assert capsys.readouterr().out.startswith("Spark's class archive is there: ")


def test_the_command_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ClassArchive, "find", lambda _: None)
    assert main(["prepare"]) == 1
    assert "error: There is no place for Spark's class archive" in capsys.readouterr().err
