"""A test that fails has failed: nothing runs it again, skips it, or asks twice what must hold once.

What this machine lacks skips a test; where all must be there, it fails one.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.lacking import ALL_IS_THERE, lacks

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
# The plugins that do it, and their options and marks.
AGAIN = re.compile(r"rerun|flaky|pytest[-_]retry|--lf\b|--last-failed")
# What a file has that catches a failed check: to parse them all takes seconds.
CAUGHT = re.compile(r"AssertionError|\bexcept\s*:")


def swallowed(tree: ast.AST) -> list[int]:
    """Lines of the loops that go on after a check has failed: an AssertionError is caught there."""
    return [
        handler.lineno
        for loop in ast.walk(tree)
        if isinstance(loop, ast.For | ast.While)
        for one in ast.walk(loop)
        if isinstance(one, ast.Try)
        for handler in one.handlers
        if "AssertionError" in (ast.unparse(handler.type) if handler.type else "AssertionError")
        and not any(_ends(inner) for inner in ast.walk(handler))
    ]


def _ends(node: ast.AST) -> bool:
    """Whether it ends the test: an error, or pytest's skip and fail."""
    return isinstance(node, ast.Raise) or (
        isinstance(node, ast.Call) and ast.unparse(node.func) in ("pytest.skip", "pytest.fail")
    )


def test_no_plugin_runs_a_test_again() -> None:
    for name in ("pyproject.toml", "requirements.lock", "Makefile", ".ci/run", ".ci/release"):
        assert AGAIN.findall((ROOT / name).read_text(encoding="utf-8")) == [], name


@pytest.mark.parametrize("folder", ["unit", "property", "kafka", "faults"])
def test_no_test_is_marked_to_be_run_again_and_no_loop_tries_a_failing_check_again(
    folder: str,
) -> None:
    files = [path for path in (TESTS / folder).rglob("*.py") if path != Path(__file__)]
    assert files
    for path in (*files, TESTS / "conftest.py"):
        text = path.read_text(encoding="utf-8")
        if not AGAIN.search(text) and not CAUGHT.search(text):
            continue
        tree = ast.parse(text)
        marks = [
            one.attr
            for one in ast.walk(tree)
            if isinstance(one, ast.Attribute) and AGAIN.search(one.attr)
        ]
        assert (marks, swallowed(tree)) == ([], []), path


TRIED_AGAIN = """
for _ in range(3):
    try:
        check()
        break
    except AssertionError:
        pass
while True:
    try:
        check()
    except (OSError, AssertionError) as error:
        said = str(error)
while True:
    try:
        check()
    except:
        continue
"""
TRIED_ONCE = """
for one in everything:
    try:
        check(one)
    except AssertionError:
        show(one)
        raise
for one in tools:
    try:
        check(one)
    except AssertionError:
        pytest.skip("it is not installed")
while not ready():
    assert time.monotonic() < deadline
try:
    check()
except AssertionError:
    pass
"""


def test_a_loop_around_a_failing_check_is_seen() -> None:
    assert len(CAUGHT.findall(TRIED_AGAIN)) == 3
    assert swallowed(ast.parse(TRIED_AGAIN)) == [6, 11, 16]
    assert swallowed(ast.parse(TRIED_ONCE)) == []


def test_a_test_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALL_IS_THERE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no such tool"):
        lacks("no such tool")


def test_where_all_is_there_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL_IS_THERE, "1")
    with pytest.raises(pytest.fail.Exception, match="no such tool"):
        lacks("no such tool")


def test_that_is_so_in_ci() -> None:
    assert f"export {ALL_IS_THERE}=1\n" in (ROOT / ".ci" / "run").read_text("utf-8")
