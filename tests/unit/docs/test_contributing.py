"""What a newcomer is told to do can be done: paths, commands, templates, and how a release ends."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "sparkmirror"
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_ten_questions_have_an_answer_that_names_a_place() -> None:
    rows = re.findall(r"^\| (.+\?) \| (.+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 10
    for question, answer in rows:
        places = re.findall(r"`([a-z0-9_/]+(?:\.py|/))[:\w.]*`", answer)
        assert places, question
        assert all((SOURCE / place).exists() for place in places), question


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", PAGE)) | set(re.findall(r"^make (\w+)", PAGE, re.M))
    assert len(named) > 8
    assert named <= targets


def test_what_starts_mirrors_makes_the_class_archive_first() -> None:
    text = (ROOT / "Makefile").read_text()
    needs = dict(re.findall(r"^([a-z-]+): (.+)$", text, re.MULTILINE))
    assert needs["prepare"] == "$(STAMP)"
    assert re.search(r"^prepare:.*\n\t-@\$\(BIN\)/sparkmirror prepare\n", text, re.MULTILINE)
    for target in ("install", "demo", "test", "bench", "bench-wan", "faults"):
        assert needs[target] == "prepare", target


# Stands for Python and for the one in the environment that it makes, which has pip if that file is
# there.
_PYTHON = """#!/bin/sh
case "$*" in
  "-m venv"*)
    echo "$*" >> told
    rm -rf .venv && mkdir -p .venv/bin && cp "$0" .venv/bin/python && touch .venv/bin/pip
    printf '#!/bin/sh\\necho uv >> told\\n' > .venv/bin/uv && chmod +x .venv/bin/uv ;;
  *pip*) test -e "$(dirname "$0")/pip" ;;
esac
"""
_MADE = ["-m venv --clear .venv", "uv", "uv", "uv"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the rule of the environment needs, and no environment."""
    for path in (ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("*.lock")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "python").write_text(_PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def _installed(checkout: Path) -> list[str]:
    """What `make` runs there for the environment."""
    (checkout / "told").write_text("")
    command = ["make", "-s", "-C", checkout, ".venv/.installed", f"PYTHON={checkout / 'python'}"]
    # Not what an outer make was told.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert (checkout / ".venv" / ".installed").exists()
    return (checkout / "told").read_text().splitlines()


def test_an_environment_is_made_once_and_kept(checkout: Path) -> None:
    assert _installed(checkout) == _MADE
    assert _installed(checkout) == []
    (checkout / ".venv" / "bin" / "of mine").touch()
    os.utime(checkout / ".venv" / ".installed", (0, 0))  # a lock file is newer
    assert _installed(checkout) == ["uv", "uv", "uv"]
    assert (checkout / ".venv" / "bin" / "of mine").exists()


def test_an_environment_that_venv_could_not_complete_is_made_again(checkout: Path) -> None:
    """Without python3-venv, Debian's Python leaves one without pip."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(checkout / "python")
    assert _installed(checkout) == _MADE


@pytest.mark.parametrize("kind", ["gone", "another"])
def test_an_environment_whose_python_the_system_has_replaced_is_made_again(
    checkout: Path, kind: str
) -> None:
    assert _installed(checkout) == _MADE
    python = checkout / ".venv" / "bin" / "python"
    if kind == "gone":
        python.unlink()
        python.symlink_to(checkout / "python3.11")
    else:  # it does not see the packages of the one before
        (checkout / ".venv" / "bin" / "pip").unlink()
    assert _installed(checkout) == _MADE


def test_an_environment_needs_a_package_of_debian_s_that_is_named() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "docs/quickstart.md"):
        assert "python3-venv" in (ROOT / page).read_text(), page


def test_every_folder_of_tests_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[a-z/_]+)`", PAGE)
    assert named
    assert all((ROOT / path).is_dir() for path in named)


def test_the_table_of_tests_with_brokers_names_every_folder_and_no_other() -> None:
    table = PAGE.split("| folder | what is tried |\n|---|---|\n", 1)[1].split("\n\n", 1)[0]
    named = re.findall(r"^\| `([a-z0-9_]+)` \| ", table, re.MULTILINE)
    there = {path.parent.name for path in (ROOT / "tests" / "kafka").glob("*/__init__.py")}
    assert len(named) == len(table.splitlines())
    assert set(named) == there


def test_the_workflow_runs_what_any_machine_runs() -> None:
    found = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = found["jobs"]["run"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert found["permissions"] == {"contents": "read"}


def test_hooks_are_the_linters_of_make_lint() -> None:
    found = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    entries = {hook["entry"].split(" --force")[0] for hook in found["repos"][0]["hooks"]}
    recipe = re.search(r"^lint:.*\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    wanted = recipe[1].replace("$(BIN)", ".venv/bin").splitlines()
    assert entries == {line.strip().removesuffix(" .") for line in wanted}


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")))
def test_templates_are_forms(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert found == {"blank_issues_enabled": True}
        return
    assert set(found) == {"name", "description", "labels", "body"}
    ids = [field["id"] for field in found["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0


def _release(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script in a repository of its own with one commit, a change, and no key of anyone."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / "home").mkdir(mode=0o700)
    script = tmp_path / ".ci" / "release"
    script.write_bytes((ROOT / ".ci" / "release").read_bytes())
    script.chmod(0o755)
    return subprocess.run(
        [script, ROOT / ".venv" / "bin" if (ROOT / ".venv").exists() else "/usr/bin"],
        env={"PATH": os.environ["PATH"], "GNUPGHOME": str(tmp_path / "home"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_release_wants_a_key(tmp_path: Path) -> None:
    done = _release(tmp_path)
    assert done.returncode == 1
    assert "KEY=" in done.stderr


def test_a_release_wants_a_key_that_is_there(tmp_path: Path) -> None:
    done = _release(tmp_path, KEY="nobody@example.com")
    assert done.returncode == 1
    assert "no secret key nobody@example.com" in done.stderr


def test_a_release_is_of_what_is_committed(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    done = _release(tmp_path, UNSIGNED="1")
    assert done.returncode == 1
    assert "the tree has changes" in done.stderr
