"""Translates the error with which Spark ended a query."""

from __future__ import annotations

import re
from pathlib import Path

from sparkmirror.errors import MirrorError

__all__ = ["ended_for_repair", "failure", "own_words"]

# The next attempt repairs these. Spark counts them as failures of the task all the same.
_MENDED = frozenset({"TargetLost", "TooSlow", "TransactionError"})


def failure(error: BaseException, flow: str, spark_log: Path) -> MirrorError:
    """A query's failure as a `MirrorError`: the innermost Python error if there is one."""
    ours = own_words(error)
    if ours:
        return MirrorError(ours, where=f"flow {flow}")
    # Spark's plans follow, which do not help.
    told = str(error).partition("=== Streaming Query")[0]
    lines = [line.strip() for line in told.splitlines()]
    # Places in Java's code do not say why either.
    lines = [line for line in lines if line and not line.startswith(("at ", "... "))]
    python = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Lost)\b.*", line)]
    what = (python or lines or [type(error).__name__])[-1]
    return MirrorError(
        f"the query failed: {what}",
        where=f"flow {flow}",
        do=f"Spark's log is in {spark_log}.",
    )


def own_words(error: BaseException) -> str:
    """The text of the innermost sparkmirror error in Spark's message; empty if there is none."""
    return _innermost(error)[1]


def ended_for_repair(error: BaseException) -> bool:
    """Whether a query ended only because its tasks ended for a repair too often."""
    return _innermost(error)[0] in _MENDED


def _innermost(error: BaseException) -> tuple[str, str]:
    """Class and text of the innermost sparkmirror error; both empty if there is none."""
    ours = re.findall(r"sparkmirror\.errors\.(\w+): (.+)", str(error))
    return (ours[-1][0], ours[-1][1].strip()) if ours else ("", "")
