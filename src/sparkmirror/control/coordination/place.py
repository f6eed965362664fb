"""Identity of the process that wrote a claim: on the same machine its end is found at once."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def own_host() -> str:
    """Name of this process for people: ``host:process id``."""
    return f"{socket.gethostname()}:{os.getpid()}"


def own_place() -> str:
    """Unique name of this process: ``boot id/PID namespace/process id/start time``.

    The boot id identifies a machine and its restart, the namespace a container, and the start time
    a process whose id was used before. Empty if the system does not provide them.
    """
    machine = _machine()
    started = _started(os.getpid())
    return f"{machine}/{os.getpid()}/{started}" if machine and started else ""


def is_gone(place: str) -> bool:
    """Whether the process at ``place`` ran on this machine and has ended; False if unknown."""
    machine, _, process = place.rpartition("/")
    machine, _, number = machine.rpartition("/")
    if not machine or machine != _machine() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False  # it exists and belongs to another user
    return _started(int(number)) not in ("", process)


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(number: int) -> str:
    """Start time of a process, in ticks since boot; ``ended`` for a zombie; empty if unknown."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the command name may contain anything
    return "ended" if fields[0] in "ZX" else fields[19]
