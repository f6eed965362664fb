"""One figure for how long tests wait, measured once per session."""

from __future__ import annotations

import pytest

from tests import patience


@pytest.mark.parametrize(
    ("jvm_start_s", "patience_s"), [(2.0, 300.0), (12.0, 360.0), (90.0, 420.0)]
)
def test_the_first_start_of_a_session_counts(
    jvm_start_s: float, patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_patience_s", None)
    assert patience.patience() == 300.0
    patience.measured(jvm_start_s)
    assert patience.patience() == patience_s
    patience.measured(13.0)
    assert patience.patience() == patience_s
