"""What `make install` installs, and what builds it, has a hash; the installers insist on it."""

from __future__ import annotations

import re
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


def test_no_lock_file_names_a_registry() -> None:
    for lock in LOCKS:
        assert "://" not in (ROOT / lock).read_text("utf-8")
