"""How a member of a group joins it, with a coordinator that this test plays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.settings import ClusterClient, GroupSettings
from sparkmirror.wire.group import session as sessions
from sparkmirror.wire.group.session import GroupSession

_MEMBER_ID_REQUIRED, _UNKNOWN_MEMBER, _REBALANCING = 79, 25, 27


def _pauses(codes: list[int], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of a member that gets these responses to its attempts to join, in seconds."""
    left, pauses = list(codes), list[float]()
    client = ClusterClient("A", ("localhost:1",), "test", retry_backoff_ms=250)
    session = GroupSession(
        client,
        "g",
        GroupSettings(),
        counts=lambda topics: dict.fromkeys(topics, 1),
        stopping=lambda: not left,
    )

    def exchange(_message: Any, _versions: Any, _patience_s: float) -> Any:
        return SimpleNamespace(error_code=left.pop(0), member_id="m")

    monkeypatch.setattr(session, "_exchange", exchange)
    monkeypatch.setattr(sessions.time, "sleep", pauses.append)
    assert session.join(["t"]) is None
    return pauses


def test_the_first_attempt_after_an_id_or_a_newer_generation_is_made_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _pauses([_MEMBER_ID_REQUIRED], monkeypatch) == []
    assert _pauses([_REBALANCING], monkeypatch) == []


def test_a_coordinator_that_rejects_the_member_again_and_again_is_asked_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _pauses([_UNKNOWN_MEMBER] * 4, monkeypatch) == [0.25] * 3
