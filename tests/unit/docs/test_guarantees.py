"""Pages of the documentation name a test for each promise: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("page", "least"), [("guarantees", 40), ("checks", 19)])
def test_the_tests_that_it_names_exist(page: str, least: int) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:tests/[\w/]+/)?(test_\w+)(?:\.py)?`", text))
    files = list((ROOT / "tests").rglob("test_*.py"))
    known = {path.stem for path in files}
    for path in files:
        known |= set(re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8")))
    assert len(named) > least
    assert named - known == set()


@pytest.mark.parametrize("page", ["guarantees", "checks", "capacity"])
def test_the_files_that_it_names_exist(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for file in re.findall(r"`(tests/[^`]*)`", text):
        assert (ROOT / file).is_file(), file


def test_every_promise_in_a_table_of_tests_has_one() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    tables = re.findall(r"\| promise \| test \|\n\|---\|---\|\n((?:\|.*\n)+)", text)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(tables) == text.count("| promise | test |")
    assert len(rows) > 40
    for row in rows:
        assert re.search(r"`(?:tests/[\w/]+/)?test_\w+(?:\.py)?`|`make \w+`", row), row
