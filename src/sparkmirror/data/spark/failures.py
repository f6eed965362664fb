"""Says why Spark ended a query, or does not respond."""

from __future__ import annotations

import re
from pathlib import Path

from sparkmirror.errors import MirrorError

__all__ = ["ended_for_repair", "failure", "own_words", "silent"]

# The next attempt repairs these. Spark counts them as failures of the task all the same.
_MENDED = frozenset({"TargetLost", "TooSlow", "TransactionError"})
_LOST_TASK = re.compile(r"Lost task .*?\(TID \d+\) \(.*?\): (.+)")
_CAUSED_BY = "Caused by: "
# Its lines are indented, up to the error: not every class is named Error or Exception.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")


def failure(error: BaseException, flow: str, spark_log: Path) -> MirrorError:
    """A query's failure as a `MirrorError`: the innermost Python error if there is one."""
    ours = own_words(error)
    if ours:
        return MirrorError(ours, where=f"flow {flow}")
    # Spark's plans follow, which do not help.
    told = str(error).partition("=== Streaming Query")[0]
    python = re.findall(_TRACEBACK, told)
    lines = [line.strip() for line in told.splitlines()]
    # Places in Java's code do not say why either.
    lines = [line for line in lines if line and not line.startswith(("at ", "... "))]
    python += [line for line in lines if re.match(r"[\w.]*(Error|Exception|Lost)\b.*", line)]
    what = python[-1] if python else _of_the_jvm(lines) or type(error).__name__
    return MirrorError(
        f"the query failed: {what}",
        where=f"flow {flow}",
        do=f"Spark's log is in {spark_log}.",
    )


def silent(how: str) -> MirrorError:
    """The failure of a run whose JVM has ended or hangs."""
    return MirrorError(
        f"Spark no longer responds ({how}).",
        do="See spark.log in the work directory for the reason, and check this machine's"
        " memory. The next run continues from the committed positions.",
    )


def _of_the_jvm(lines: list[str]) -> str:
    """What a failed task's JVM says, with the innermost cause; else the last line."""
    for number, line in enumerate(lines):
        if found := _LOST_TASK.search(line):
            causes = [each for each in lines[number:] if each.startswith(_CAUSED_BY)]
            cause = f" (caused by {causes[-1].removeprefix(_CAUSED_BY)})" if causes else ""
            return found[1] + cause
    return lines[-1] if lines else ""


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
