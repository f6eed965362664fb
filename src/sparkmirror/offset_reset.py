"""Where a partition without a position begins: the values of ``auto.offset.reset``."""

from __future__ import annotations

import re

__all__ = ["EARLIEST", "LATEST", "duration_ms", "reset_time_ms"]

EARLIEST, LATEST = -2, -1
"""What Kafka's ListOffsets takes for the beginning and the end of a log."""

_BY_DURATION = "by_duration:"
# The syntax of Java's Duration.parse, without signs: a day has 24 hours.
_ISO_8601 = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{0,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)
_MS_END = 2**63
_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def duration_ms(reset: str) -> int | None:
    """The duration of ``by_duration:P…`` (ISO 8601) in ms, which fit in 64 bits.

    None for any other value.
    """
    if not reset.lower().startswith(_BY_DURATION):
        return None
    match = _ISO_8601.fullmatch(reset[len(_BY_DURATION) :])
    if match is None:
        return None
    total_ms = sum(float(match[unit] or 0) * ms for unit, ms in _MS.items())
    return int(total_ms) if total_ms < _MS_END else None


def reset_time_ms(reset: str, now_ms: int) -> int:
    """The timestamp for ListOffsets: `EARLIEST`, `LATEST`, or ``now_ms`` minus the duration."""
    ago_ms = duration_ms(reset)
    if ago_ms is not None:
        return max(0, now_ms - ago_ms)
    return LATEST if reset == "latest" else EARLIEST
