"""The processes that a run has started: found before and after, so that none is left behind."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import psutil

KILL_WAIT_S = 1.0


def child_processes() -> frozenset[tuple[int, float]]:
    """All descendants of this process, as (process id, start time): ids are used again."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            found.add((child.pid, child.create_time()))
        except psutil.NoSuchProcess:
            continue  # it ended while we looked
    return frozenset(found)


def end_processes(spare: AbstractSet[tuple[int, float]]) -> int:
    """Kill all descendants but those in ``spare``, which were here before; returns how many.

    Waits up to one second for them to be gone.
    """
    # The whole list first: when a parent dies, its children are no descendants of ours any more.
    doomed = []
    for child in psutil.Process().children(recursive=True):
        try:
            if (child.pid, child.create_time()) not in spare:
                doomed.append(child)
        except psutil.NoSuchProcess:
            continue
    for child in doomed:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(doomed, timeout=KILL_WAIT_S)
    return len(doomed)
