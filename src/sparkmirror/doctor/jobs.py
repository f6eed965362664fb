"""Runs checks in parallel until a deadline; later ones are abandoned."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping

from sparkmirror.errors import MirrorError


def at_once(jobs: Mapping[str, Callable[[], object]], deadline: float) -> dict[str, object]:
    """Results, or `MirrorError`, of the jobs that end before ``deadline`` (monotonic, s), by name.

    Any other exception of a job is raised.
    """
    done: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()

    def run(name: str, job: Callable[[], object]) -> None:
        try:
            done.put((name, job()))
        except Exception as error:  # raised again in the caller's thread
            done.put((name, error))

    for name, job in jobs.items():
        threading.Thread(target=run, args=(name, job), name=name, daemon=True).start()
    results: dict[str, object] = {}
    with contextlib.suppress(queue.Empty):
        while len(results) < len(jobs):
            name, result = done.get(timeout=max(0.0, deadline - time.monotonic()))
            if isinstance(result, Exception) and not isinstance(result, MirrorError):
                raise result
            results[name] = result
    return results
