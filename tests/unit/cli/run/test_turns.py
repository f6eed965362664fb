"""Flows that a run hands over to other processes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

from sparkmirror.cli.run.turns import Turns


class _Run:
    """A flow that was told to drain; ``ends``: what becomes of each try to end its query."""

    def __init__(self, *ends: bool | Exception) -> None:
        self.ends = list(ends)
        self.handed: list[str] = []
        self.leaving = frozenset({"A->B"})
        control = SimpleNamespace(leaving=self.leaving, hand_over=self.handed.append)
        flow = SimpleNamespace(end=self._end)
        self.turns = Turns(
            cast(Any, flow), cast(Any, control), frozenset({"A->B"}), lambda _turns: None
        )

    def _end(self, name: str, *, grace_s: float) -> bool:
        assert (name, grace_s) == ("A->B", 30.0)
        found = self.ends.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def test_a_flow_whose_query_could_not_be_ended_is_handed_over_later() -> None:
    """Its query may have failed and be starting again, or not be there yet."""
    run = _Run(False, KeyError("A->B"), True)
    deadline = time.monotonic() + 10
    while not run.handed:
        assert time.monotonic() < deadline
        run.turns.hand_over()
        time.sleep(0.01)
    for _ in range(5):
        run.turns.hand_over()
    assert (run.ends, run.handed) == ([], ["A->B"])
