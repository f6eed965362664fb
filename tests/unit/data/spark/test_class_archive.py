"""The class archive of Spark's JVM, on the real Java with classes of its own."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkmirror.data.spark import class_archive
from sparkmirror.data.spark.class_archive import ClassArchive
from sparkmirror.data.spark.session import Spark
from sparkmirror.errors import MachineError
from sparkmirror.java import JavaHome, find_java
from sparkmirror.settings import MirrorSettings

_SOURCE = """public class Hello {
  interface Word { String say(); }
  public static void main(String[] arguments) {
    Word word = () -> "hello";
    System.out.println(word.say());
  }
}
"""


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class path with one class, which Java compiles from its source; skipped without javac."""
    java, directory = find_java(), tmp_path_factory.mktemp("jar")
    if not (java.path / "bin" / "javac").is_file():
        pytest.skip("this Java has no compiler")
    (directory / "Hello.java").write_text(_SOURCE)
    for command in (["javac", "Hello.java"], ["jar", "cf", "hello.jar", "."]):
        program = java.path / "bin" / command[0]
        subprocess.run([program, *command[1:]], cwd=directory, check=True, timeout=120)
    return directory / "hello.jar"


@pytest.fixture(scope="module")
def class_list(tmp_path_factory: pytest.TempPathFactory, jar: Path) -> Path:
    """What a run without an archive has recorded."""
    directory = tmp_path_factory.mktemp("list")
    archive = ClassArchive(find_java(), directory / "hello.jsa")
    assert archive.options() == []
    assert _run(archive, jar, *archive.recording(directory / "classes.list")) == "hello\n"
    return directory / "classes.list"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, jar: Path, class_list: Path) -> ClassArchive:
    """The archive of `jar`, for tests that change neither."""
    return _made(tmp_path_factory.mktemp("made"), jar, class_list)


def _run(archive: ClassArchive, jar: Path, *options: str) -> str:
    command = [archive.java.java, *options, "-cp", jar, "Hello"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    return done.stdout


def _made(directory: Path, jar: Path, class_list: Path) -> ClassArchive:
    archive = ClassArchive(find_java(), directory / "share" / "classes" / "hello.jsa")
    archive.make(class_list, str(jar))
    return archive


def _maps(archive: ClassArchive, jar: Path) -> bool:
    said = _run(archive, jar, *archive.options(), "-Xlog:class+load:stdout")
    assert "hello\n" in said
    return "Hello source: shared objects file" in said


def test_what_one_run_loads_the_next_one_maps(made: ClassArchive, jar: Path) -> None:
    assert [path.name for path in made.path.parent.iterdir()] == ["hello.jsa"]
    assert made.path.stat().st_mode & 0o777 == 0o644
    assert _maps(made, jar)


def test_it_is_mapped_where_it_was_written_for(made: ClassArchive, jar: Path) -> None:
    said = _run(made, jar, *made.options(), "-Xlog:cds=info:stdout")
    assert "hello.jsa" in said
    assert "alternative address" not in said


def test_what_a_killed_process_left_goes_with_the_next_one(
    tmp_path: Path, jar: Path, class_list: Path
) -> None:
    left = tmp_path / "share" / "classes" / ".hello-abc"
    left.mkdir(parents=True)
    (left / "hello.jsa").touch()
    other = left.with_name(".another-abc")
    other.mkdir()
    archive = _made(tmp_path, jar, class_list)
    assert sorted(archive.path.parent.iterdir()) == [other, archive.path]


def test_java_too_looks_at_whole_seconds_only(tmp_path: Path, jar: Path, class_list: Path) -> None:
    own = tmp_path / jar.name
    shutil.copyfile(jar, own)
    os.utime(own, ns=(0, 1_700_000_000_123_456_789))
    archive = _made(tmp_path, own, class_list)
    os.utime(own, ns=(0, 1_700_000_000_000_000_000))
    assert _maps(archive, own)
    os.utime(own, ns=(0, 1_700_000_001_000_000_000))
    assert not _maps(archive, own)


def test_an_archive_that_does_not_fit_is_passed_over(tmp_path: Path, jar: Path) -> None:
    archive = ClassArchive(find_java(), tmp_path / "hello.jsa")
    archive.path.write_bytes(b"no archive at all" * 1_000)
    assert _run(archive, jar, *archive.options()) == "hello\n"


def test_a_java_that_cannot_write_one_is_named_with_its_reason(tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    archive = ClassArchive(JavaHome(home, "17", "JAVA_HOME"), tmp_path / "cache" / "hello.jsa")
    with pytest.raises(MachineError, match=r"Java 17 does not write .*exit code 1: no such opt"):
        archive.make(tmp_path / "classes.list", "")
    assert list(archive.path.parent.iterdir()) == []
    assert not archive.made


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "share").write_text("a file")
    archive = ClassArchive(find_java(), tmp_path / "share" / "hello.jsa")
    with pytest.raises(MachineError, match=r"share: The class archive cannot be written"):
        archive.make(tmp_path / "classes.list", "")


# -- where it is -----------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The directories of archives in a virtual environment, and of this user; Spark has one jar."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "a.jar").write_text("a")
    classes = tmp_path / "cache" / "sparkmirror" / "classes"
    return tmp_path / "venv" / "share" / "sparkmirror" / "classes", classes


def _found() -> ClassArchive:
    found = ClassArchive.find(find_java())
    assert found is not None
    return found


def test_it_goes_into_the_environment_and_else_to_the_user(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, own = places
    assert _found().path.parent == shared
    assert not shared.exists()  # a look leaves nothing
    monkeypatch.setattr(class_archive, "_writable", lambda directory: directory == own)
    assert _found().path.parent == own
    # Whoever may not write there uses what is there: an installation that is read-only.
    shared.mkdir(parents=True)
    (shared / _found().path.name).touch()
    assert _found().path.parent == shared
    assert _found().made


def test_what_the_user_made_is_used_where_the_environment_has_none(
    places: tuple[Path, Path],
) -> None:
    own = places[1]
    own.mkdir(parents=True, mode=0o700)
    (own / _found().path.name).touch()
    assert _found().path.parent == own


def test_outside_of_an_environment_it_is_the_user_s(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert _found().path.parent == places[1]


def test_there_may_be_no_place(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "_writable", lambda _: False)
    assert ClassArchive.find(find_java()) is None


def test_the_key_follows_java_and_jars(places: tuple[Path, Path], tmp_path: Path) -> None:
    names = [_found().path.name]
    jar = tmp_path / "jars" / "a.jar"
    (tmp_path / "jars" / "b.jar").write_text("another jar")
    names.append(_found().path.name)
    jar.write_text("another text")
    names.append(_found().path.name)
    at = int(jar.stat().st_mtime)
    os.utime(jar, (at, at - 5))
    names.append(_found().path.name)
    newer = ClassArchive.find(JavaHome(find_java().path, "99", "PATH"))
    assert newer is not None
    names.append(newer.path.name)
    assert len(set(names)) == len(names)


def test_the_key_does_not_follow_what_a_container_image_loses(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    jar = tmp_path / "jars" / "a.jar"
    os.utime(jar, ns=(0, 1_700_000_000_123_456_789))
    before = _found()
    os.utime(jar, ns=(0, 1_700_000_000_000_000_000))
    assert _found() == before


def test_without_jars_there_is_none(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "nowhere"))
    assert ClassArchive.find(find_java()) is None


# -- what a start says -----------------------------------------------------------------------------


def _start_options(tmp_path: Path) -> list[str]:
    settings = MirrorSettings(flows=(), clusters=())
    spark = Spark(settings, master="local", spark_conf={}, work_dir=tmp_path, key="")
    return spark._archive_options(find_java())


def test_a_start_with_an_archive_says_so(
    places: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = _found()
    archive.path.parent.mkdir(parents=True)
    archive.path.touch()
    with caplog.at_level(logging.INFO):
        assert f"-XX:SharedArchiveFile={archive.path}" in _start_options(tmp_path)
    assert f"takes its classes from the archive {archive.path}" in caplog.text


def test_a_start_without_one_says_what_makes_it(
    places: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert _start_options(tmp_path) == []
    assert "no class archive, so this start takes some seconds longer" in caplog.text
    assert "`sparkmirror prepare` makes one" in caplog.text
