"""Finds the processes that a run has started, and kills those that remain at its end."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import psutil

KILL_WAIT_S = 1.0


def child_processes() -> frozenset[tuple[int, float]]:
    """All descendants of this process as (process id, start time), because ids are reused."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            found.add((child.pid, child.create_time()))
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
    return frozenset(found)


def end_processes(spare: AbstractSet[tuple[int, float]]) -> int:
    """Kill all descendants except those in ``spare``; returns how many.

    Waits up to one second until they have ended.
    """
    # List all of them first: when a parent dies, its children are no longer our descendants.
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
