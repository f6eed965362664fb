"""A clock for lengths of time that also counts while this machine sleeps."""

from __future__ import annotations

import time

__all__ = ["ticks_s"]

_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def ticks_s() -> float:
    """Seconds since some moment in the past; nobody sets this clock.

    Unlike `time.monotonic` it goes on through a suspend (Linux), so that whoever was suspended
    sees afterwards for how long. It cannot see that a hypervisor stopped the whole machine.
    """
    if _BOOT_CLOCK is None:
        return time.monotonic()
    return time.clock_gettime(_BOOT_CLOCK)
