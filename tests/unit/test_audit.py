"""`make audit` finds what it looks for: it is no use when it is silent about everything."""

from __future__ import annotations

from packaging.version import Version

from tests import audit

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


def test_asserts_that_guard_something_say_what() -> None:
    source = (
        "assert x is not None\nassert not isinstance(x, int)\nassert x, 'why'\n"
        "assert x\nassert x == 1 and y is None\n"
    )
    assert [line.split(":")[1] for line in audit.loose_asserts(source, "f.py")] == ["4", "5"]


def test_the_rules_hold_on_the_product() -> None:
    assert audit.security_rules() == []
