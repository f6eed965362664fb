"""What `make install` installs, and what builds it, has a hash; the installers insist on it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = (
    *("requirements.lock", "requirements-build.lock"),
    *("requirements-uv.lock", "requirements-kerberos.lock", "requirements-run.lock"),
)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}$")


def requirements(lock: str) -> dict[str, list[str]]:
    """Lines with hashes by ``name==version``."""
    joined = (ROOT / lock).read_text("utf-8").replace("\\\n", "\n")
    found: dict[str, list[str]] = {}
    last = ""
    for line in joined.splitlines():
        if line.startswith(" ") and last:
            found[last].append(line.strip())
        else:
            last = line.split(" ;")[0].strip()
            found[last] = []
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_everything_is_one_version_with_hashes(lock: str) -> None:
    found = requirements(lock)
    assert found
    for requirement, hashes in found.items():
        assert re.fullmatch(r"[a-z0-9-]+==(\d+!)?[\w.]+", requirement)
        assert hashes, requirement
        assert all(HASH.fullmatch(one) for one in hashes), requirement


def test_what_runs_is_what_is_tested() -> None:
    """A container gets the versions and hashes of the tests, without the developers' tools."""
    tested, run = requirements("requirements.lock"), requirements("requirements-run.lock")
    assert {one: tested.get(one) for one in run} == run
    assert not any(one.startswith(("pytest==", "ruff==", "mypy==")) for one in run)


def test_builds_are_pinned() -> None:
    locked = dict(one.split("==") for one in requirements("requirements-build.lock"))
    assert {"setuptools", "cython"} <= locked.keys()
    assert f'"hatchling=={locked["hatchling"]}"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_installers_insist_on_hashes() -> None:
    text = "".join((ROOT / name).read_text("utf-8") for name in ("Makefile", "tests/install-kdc"))
    lines = text.replace("\\\n", " ").splitlines()
    installs = [line for line in lines if re.search(r"pip install ", line)]
    assert len(installs) == 4
    for line in installs:
        pinned = "--require-hashes" in line or "--no-deps" in line
        built = "-r requirements-uv.lock" in line or "--build-constraints" in line
        assert pinned, line
        assert built, line


def _lock(directory: Path, pyproject: str) -> tuple[int, str, dict[str, str]]:
    """Exit code and stderr of ``make lock`` with a uv that writes nothing, and what that read."""
    (directory / ".venv" / "bin").mkdir(parents=True)
    uv = directory / ".venv" / "bin" / "uv"
    uv.write_text(
        '#!/bin/sh\nfor last; do test "$before" = --output-file && out=$last; before=$last; done\n'
        'test "$last" != - || cat > "$out"\n'
    )
    uv.chmod(0o755)
    shutil.copy(ROOT / "Makefile", directory)
    (directory / "pyproject.toml").write_text(pyproject)
    done = subprocess.run(
        ["make", "--silent", "lock"], cwd=directory, capture_output=True, text=True, check=False
    )
    found = {one.stem: one.read_text() for one in directory.glob("requirements-*.lock")}
    return done.returncode, done.stderr, found


def test_what_builds_it_is_what_its_project_file_names(tmp_path: Path) -> None:
    code, _, found = _lock(tmp_path, (ROOT / "pyproject.toml").read_text("utf-8"))
    assert code == 0
    build = found["requirements-build"].split()
    assert build[0].startswith("hatchling==")
    assert build[1:] == ["setuptools", "cython==3.3.0"]
    assert found["requirements-kerberos"].startswith("gssapi>=")
    assert found["requirements-uv"].startswith("uv==")


@pytest.mark.parametrize(("key", "lock"), [("requires", "build"), ("kerberos", "kerberos")])
def test_no_lock_file_is_made_of_nothing(tmp_path: Path, key: str, lock: str) -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    code, said, found = _lock(tmp_path, re.sub(rf"(?m)^{key} = .*$", "", text))
    assert code != 0
    assert f'pyproject.toml has no line {key} = ["..."]' in said
    assert f"requirements-{lock}" not in found


def test_no_lock_file_names_a_registry() -> None:
    for lock in LOCKS:
        assert "://" not in (ROOT / lock).read_text("utf-8")
