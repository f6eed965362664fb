"""docs/compatibility.md names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:unit|property|kafka)/[\w/]+\.py)::(\w+)`", PAGE)))


NAME = re.compile(r"(?:unit|property|kafka)/[\w/]+\.py::test_\w+")


def _tests(file: str) -> set[str]:
    """The tests of a file that a plain run of it does not leave out."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and not any("mark.skip" in ast.unparse(one) for one in node.decorator_list)
    }


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_on_the_page_is_there(file: str) -> None:
    assert {name for one, name in NAMED if one == file} <= _tests(file)


def test_what_looks_like_a_test_is_one() -> None:
    """Nothing escapes the other tests by being written in another way, outside of quotes or so."""
    quoted = re.findall(r"`([^`]*)`", PAGE)
    files = [one for one in quoted if one.endswith(".py")]
    assert {one for one in quoted if "test_" in one and not NAME.fullmatch(one)} == set(files)
    for file in files:
        assert (ROOT / "tests" / file.removeprefix("tests/")).is_file(), file
    covered = PAGE.partition("## Not covered")[0]
    for row in (line for line in covered.splitlines() if line.startswith("| ")):
        here = row.rstrip(" |").rpartition(" | ")[2]
        assert "test_" not in re.sub(r"`[^`]*`", "", here), row
    assert {name for _, name in NAMED} == set(re.findall(r"::(\w+)", PAGE))


def test_no_upstream_test_has_two_rows() -> None:
    """Else one of them would be believed, and nobody says which."""
    covered = PAGE.partition("## Not covered")[0]
    named = [line.split(" | ")[0] for line in covered.splitlines() if line.startswith("| ")]
    named = [one for one in named if one not in ("| Java", "| what")]
    assert sorted(set(named)) == sorted(named)


def test_every_row_names_a_test_or_a_reason() -> None:
    covered, _, reasons = PAGE.partition("## Not covered")
    rows = [line for line in covered.splitlines() if line.startswith("| ")]
    assert len(rows) > 100
    for row in rows:
        assert "::test_" in row or row in ("| Java | here |", "| what | here |"), row
    for row in (line for line in reasons.splitlines() if line.startswith("| ")):
        assert re.fullmatch(r"\| [^|]+ \| [^|]{3,} \|", row), row


@pytest.mark.parametrize("file", sorted((ROOT / "tests" / "unit").rglob("test_upstream_*.py")))
def test_every_test_with_an_upstream_name_is_on_the_page(file: Path) -> None:
    short = str(file.relative_to(ROOT / "tests"))
    named = {name for one, name in NAMED if one == short}
    assert {name for name in _tests(short) if name.startswith("test_")} == named
