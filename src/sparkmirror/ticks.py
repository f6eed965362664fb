"""A clock for durations that also counts while this machine is suspended."""

from __future__ import annotations

import time

__all__ = ["ticks_s"]

_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def ticks_s() -> float:
    """Seconds since some moment in the past. Nobody can set this clock.

    Unlike `time.monotonic` it continues through a suspend (Linux), so a process can see afterwards
    how long it was suspended. It does not count while a hypervisor stops the whole machine.
    """
    if _BOOT_CLOCK is None:
        return time.monotonic()
    return time.clock_gettime(_BOOT_CLOCK)
