"""docs/guarantees.md names a test for each promise: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_that_it_names_exist() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:tests/\w+/)?(test_\w+)(?:\.py)?`", text))
    files = list((ROOT / "tests").rglob("test_*.py"))
    known = {path.stem for path in files}
    for path in files:
        known |= set(re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8")))
    assert len(named) > 40
    assert named - known == set()
