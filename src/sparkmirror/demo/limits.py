"""How long the demo waits, and how many of Kafka's programs it runs at once."""

from __future__ import annotations

import os

import psutil

__all__ = ["PATIENCE_S", "programs_at_once"]

PATIENCE_S = 300.0
"""For whatever takes seconds on an idle machine: at a first start JVMs load their classes from jars
while Spark does the same, and memory may be short."""
_PROGRAM_BYTES = 256 << 20
_PROGRAMS_PER_CORE = 2


def programs_at_once() -> int:
    """How many of Kafka's tools, a JVM each, may run beside brokers and mirror: by cores and by the
    memory that is free now; at least one for each cluster.
    """
    by_cores = _PROGRAMS_PER_CORE * (os.cpu_count() or 1)
    by_memory: int = psutil.virtual_memory().available // _PROGRAM_BYTES
    return max(2, min(by_cores, by_memory))
