"""How long tests wait for what must come: one figure for all, by the speed of this machine.

A wait that succeeds ends at once, so patience costs time only where a test fails anyway. What a
page promises in seconds is asserted as such, with the promise's own number, and not with this one.
"""

from __future__ import annotations

import os

__all__ = ["measured", "others_per_core", "patience"]

_PATIENCE_S_MIN = 300.0
_PATIENCE_S_MAX = 420.0
# A mirror's first record comes after some ten times as long as Spark's JVM alone takes to start.
_PER_JVM_START = 30.0

_patience_s: float | None = None


def measured(jvm_start_s: float) -> None:
    """Spark's JVM took so long to start. The first one of a session counts, later ones do not."""
    global _patience_s  # noqa: PLW0603  (one figure per process is what this is for)
    if _patience_s is None:
        _patience_s = min(max(_PATIENCE_S_MIN, _PER_JVM_START * jvm_start_s), _PATIENCE_S_MAX)


def others_per_core() -> float:
    """How many processes each core is shared by, one at least: a promise in seconds is of one."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def patience() -> float:
    """Seconds in which a mirror, Spark included, has started and done a test's small work."""
    return _PATIENCE_S_MIN if _patience_s is None else _patience_s
