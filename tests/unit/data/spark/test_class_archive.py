"""The class archive of Spark's JVM, on the real Java with classes of its own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from sparkmirror.data.spark import class_archive
from sparkmirror.data.spark.class_archive import ClassArchive, Recorder
from sparkmirror.java import JavaHome, find_java

_SOURCE = """public class Hello {
  interface Word { String say(); }
  public static void main(String[] arguments) {
    Word word = () -> "hello";
    System.out.println(word.say());
  }
}
"""


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    """A class path with one class, which Java compiles from its source; skipped without javac."""
    java = find_java()
    if not (java.path / "bin" / "javac").is_file():
        pytest.skip("this Java has no compiler")
    (tmp_path / "Hello.java").write_text(_SOURCE)
    for command in (["javac", "Hello.java"], ["jar", "cf", "hello.jar", "."]):
        program = java.path / "bin" / command[0]
        subprocess.run([program, *command[1:]], cwd=tmp_path, check=True, timeout=120)
    return tmp_path / "hello.jar"


def idle() -> bool:
    """A machine that has nothing else to do."""
    return False


def _archive(tmp_path: Path) -> ClassArchive:
    return ClassArchive(find_java(), tmp_path / "cache" / "hello.jsa")


def _run(archive: ClassArchive, class_list: Path, jar: Path, *more: str) -> str:
    command = [archive.java.java, *archive.options(class_list), *more, "-cp", jar, "Hello"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    return done.stdout


def _wait_until_made(archive: ClassArchive) -> None:
    deadline = time.monotonic() + 120
    while not archive.path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_one_run_loads_the_next_one_maps(tmp_path: Path, jar: Path) -> None:
    archive, class_list = _archive(tmp_path), tmp_path / "classes.list"
    assert _run(archive, class_list, jar) == "hello\n"
    recorder = Recorder(archive, class_list, lambda: str(jar), after_s=0.0, busy=idle)
    _wait_until_made(archive)
    recorder.close()
    assert [path.name for path in archive.path.parent.iterdir()] == ["hello.jsa"]
    assert not class_list.exists()
    loaded = _run(archive, class_list, jar, "-Xlog:class+load:stdout")
    assert "Hello source: shared objects file" in loaded
    assert not class_list.exists()


def test_an_archive_that_does_not_fit_is_passed_over(tmp_path: Path, jar: Path) -> None:
    archive = _archive(tmp_path)
    archive.path.parent.mkdir()
    archive.path.write_bytes(b"no archive at all" * 1_000)
    assert _run(archive, tmp_path / "classes.list", jar) == "hello\n"


def test_a_java_that_cannot_write_one_is_asked_once(tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    archive = ClassArchive(JavaHome(home, "17", "JAVA_HOME"), tmp_path / "cache" / "hello.jsa")
    class_list = tmp_path / "classes.list"
    class_list.write_text("java/lang/Object\n")
    recorder = Recorder(archive, class_list, lambda: "", after_s=0.0, busy=idle)
    _wait_until_made(archive)
    recorder.close()
    assert archive.path.stat().st_size == 0
    assert archive.options(class_list) == []


def test_a_run_that_ends_sooner_makes_none(tmp_path: Path) -> None:
    archive, class_list = _archive(tmp_path), tmp_path / "classes.list"
    class_list.write_text("java/lang/Object\n")
    recorder = Recorder(archive, class_list, lambda: "", after_s=600.0, busy=idle)
    recorder.close()
    assert not archive.path.parent.exists()
    assert not class_list.exists()


def test_a_busy_machine_makes_it_later(
    tmp_path: Path, jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "_BUSY_POLL_S", 0.01)
    archive, class_list = _archive(tmp_path), tmp_path / "classes.list"
    assert _run(archive, class_list, jar) == "hello\n"
    looks = iter([True, True, False])
    asked: list[bool] = []

    def busy() -> bool:
        assert not archive.path.exists()
        asked.append(next(looks))
        return asked[-1]

    recorder = Recorder(archive, class_list, lambda: str(jar), after_s=0.0, busy=busy)
    _wait_until_made(archive)
    recorder.close()
    assert asked == [True, True, False]
    assert archive.path.is_file()


def test_only_one_run_at_a_time_makes_it(tmp_path: Path) -> None:
    archive, class_list = _archive(tmp_path), tmp_path / "classes.list"
    archive.path.parent.mkdir()
    archive.path.with_suffix(".part").touch()
    class_list.write_text("java/lang/Object\n")
    asked: list[str] = []
    recorder = Recorder(
        archive, class_list, lambda: asked.append("class path") or "", after_s=0.0, busy=idle
    )
    recorder._thread.join(60)
    recorder.close()
    assert asked == []
    assert archive.path.with_suffix(".part").exists()


def test_the_key_follows_java_and_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    java = find_java()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "a.jar").write_text("a")
    names = set()
    for change in ("", "b.jar", "a.jar"):
        if change:
            (tmp_path / "jars" / change).write_text("another text")
        found = ClassArchive.find(java)
        assert found is not None
        names.add(found.path.name)
    assert len(names) == 3
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "nowhere"))
    assert ClassArchive.find(java) is None
