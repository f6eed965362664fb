"""What this machine lacks skips a test; where all must be there, it fails one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lacking import ALL_IS_THERE, lacks

ROOT = Path(__file__).parents[3]


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
