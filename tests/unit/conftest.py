"""What no test may leave to the next one."""

from __future__ import annotations

import pytest

from sparkmirror.observe import logs


@pytest.fixture(autouse=True)
def no_secrets_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets that are registered stay masked for the life of a process, also a test's "x"."""
    monkeypatch.setattr(logs, "_secrets", set())
    monkeypatch.setattr(logs, "_secret_pattern", None)
