"""Which process of which machine wrote a claim, so that its end shows at once on that machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def own_host() -> str:
    """Name the process that calls for people: ``host:process id``."""
    return f"{socket.gethostname()}:{os.getpid()}"


def own_place() -> str:
    """Name this process among all processes; empty where the system does not tell.

    The boot tells machines (and their restarts) apart, the namespace containers, the start time
    processes that were given the same number one after the other.
    """
    machine = _machine()
    started = _started(os.getpid())
    return f"{machine}/{os.getpid()}/{started}" if machine and started else ""


def is_gone(place: str) -> bool:
    """Whether the process at ``place`` ran here and has ended; False where nobody can tell."""
    machine, _, process = place.rpartition("/")
    machine, _, number = machine.rpartition("/")
    if not machine or machine != _machine() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False  # it is somebody else's
    return _started(int(number)) not in ("", process)


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(number: int) -> str:
    """When a process started, in ticks since the boot; ``ended`` when it only waits to be reaped.

    Empty where that cannot be read.
    """
    try:
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return "ended" if fields[0] in "ZX" else fields[19]
