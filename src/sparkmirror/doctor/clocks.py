"""Checks the clock of a cluster against ours."""

from __future__ import annotations

import time
from collections.abc import Callable

from sparkmirror.doctor.finding import Finding, Level, at_work, ok
from sparkmirror.errors import MirrorError
from sparkmirror.wire.admin.inspector import Inspector

_NOTED_S = 10.0
_WRONG_S = 300.0


def check_clock(cluster: Inspector, now_s: Callable[[], float] = time.time) -> list[Finding]:
    """Compare the clock of the KRaft leader with ``now_s``, ours. Does not raise `MirrorError`."""
    tried = "compare the clock of the KRaft leader with ours"
    subject = f"cluster {cluster.alias}"
    try:
        difference_ms, error_ms = cluster.clock_ms(now_s)
    except MirrorError as error:
        return [at_work("clock", subject, tried, error)]
    apart_s = max(0.0, (abs(difference_ms) - error_ms) / 1000)
    side = "ahead of" if difference_ms > 0 else "behind"
    found = f"its clock is {abs(difference_ms) / 1000:.1f} s {side} ours"
    if apart_s < _NOTED_S:
        return [ok("clock", subject, tried, found)]
    level = Level.FAIL if apart_s > _WRONG_S else Level.WARN
    do = (
        "Set the clocks of both machines by NTP: lag is measured with them, and certificates, "
        "Kerberos and limits of record timestamps depend on them."
    )
    return [Finding("clock", level, subject, tried, found, do)]
