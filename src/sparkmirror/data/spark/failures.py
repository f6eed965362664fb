"""Why Spark has ended a query, in our words."""

from __future__ import annotations

import re
from pathlib import Path

from sparkmirror.errors import MirrorError

__all__ = ["failure", "mends_itself", "own_words"]

# What the next attempt mends. Spark counts it as a failure of the task all the same.
_MENDED = frozenset({"TargetLost", "TooSlow", "TransactionError"})


def failure(error: BaseException, flow: str, spark_log: Path) -> MirrorError:
    """A query's failure in our words: the innermost Python error if there is one."""
    ours = own_words(error)
    if ours:
        return MirrorError(ours, where=f"flow {flow}")
    # What follows are Spark's plans.
    told = str(error).partition("=== Streaming Query")[0]
    lines = [line.strip() for line in told.splitlines()]
    # Nor do the places in Java's code say why.
    lines = [line for line in lines if line and not line.startswith(("at ", "... "))]
    python = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Lost)\b.*", line)]
    what = (python or lines or [type(error).__name__])[-1]
    return MirrorError(
        f"the query failed: {what}",
        where=f"flow {flow}",
        do=f"Spark's own words are in {spark_log}.",
    )


def own_words(error: BaseException) -> str:
    """What the innermost error of ours in Spark's words says; empty without any."""
    return _innermost(error)[1]


def mends_itself(error: BaseException) -> bool:
    """Whether a query ended only because something that is mended each time came too often."""
    return _innermost(error)[0] in _MENDED


def _innermost(error: BaseException) -> tuple[str, str]:
    """Class and words of the innermost error of ours; empty without any."""
    ours = re.findall(r"sparkmirror\.errors\.(\w+): (.+)", str(error))
    return (ours[-1][0], ours[-1][1].strip()) if ours else ("", "")
