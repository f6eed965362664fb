"""`make audit` finds what it looks for: it is no use when it is silent about everything."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

from tests import audit
from tests.complete.parts import PARTS

PROJECT = """
[build-system]
requires = ["hatchling==1.33.0"]
[project]
dependencies = ["cryptography>=44", "pandas>=2.2,<3"]
[project.optional-dependencies]
aws = ["botocore>=1.35"]
[dependency-groups]
dev = ["pytest>=9.0.3"]
"""


def test_a_floor_below_a_known_fault_is_found() -> None:
    lowest = dict(audit.floors(PROJECT))
    assert lowest["pandas"] == Version("2.2")
    assert lowest.keys() == {"hatchling", "cryptography", "pandas", "botocore", "pytest"}
    (line,) = audit.faulty(audit.floors(PROJECT), "pyproject.toml")
    assert line.startswith("pyproject.toml: cryptography 44 has a known fault")
    assert "use 48.0.1 or newer" in line


def test_the_project_itself_has_none() -> None:
    text = (audit.ROOT / "pyproject.toml").read_text("utf-8")
    assert audit.faulty(audit.floors(text), "pyproject.toml") == []
    for lock in audit.LOCKS:
        assert list(audit.locked(lock))
        assert audit.faulty(audit.locked(lock), lock) == []


def test_no_rule_is_left_out_for_the_product() -> None:
    """Nor assert: `python -O` takes it out. What has to hold is a `Defect`."""
    ruff = tomllib.loads((audit.ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["ruff"]["lint"]
    assert "S" in ruff["select"]
    assert not [rule for rule in ruff["ignore"] if re.match(r"S\d", rule)]
    assert all(place.startswith(("tests/", "benchmarks/")) for place in ruff["per-file-ignores"])


def test_the_rules_hold_on_the_product() -> None:
    assert audit.security_rules() == []


def test_all_tests_have_it_as_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    """With the figures that it really prints."""
    (part,) = (part for part in PARTS if part.name == "audit")
    assert part.command == ("{make}", "audit")
    assert audit.main(["--offline"]) == 0
    said = capsys.readouterr().out
    figures = part.figures(Path(), said)
    assert int(figures["versions"]) > 50
    assert (figures["to mend"], figures["unknown to the registry"]) == ("0", "all")
    told = said.replace("nothing to mend", "3 to mend")
    for line, unknown in (
        ("the registry's database of faults does not tell of 77 packages; for these", "77"),
        ("the registry's database of faults: asked about all packages", "0"),
    ):
        asked = told.replace("the registry's database of faults: not asked", line)
        found = part.figures(Path(), asked)
        assert (found["to mend"], found["unknown to the registry"]) == ("3", unknown)
    with pytest.raises(ValueError, match="the end is missing"):
        part.figures(Path(), said.replace("audit:", ""))
