"""Latencies of checkpoints, and lag of consumer groups, per group and partition."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from sparkmirror.observe.figures.samples import Samples, steady_ms
from sparkmirror.progress import Spread

__all__ = ["CheckpointKey", "CheckpointTimes", "GroupRow"]


class CheckpointKey(NamedTuple):
    """A consumer group and one of its partitions, under its name on the target."""

    group: str
    topic: str
    partition: int


class CheckpointTimes:
    """Latencies of acknowledged checkpoints; thread-safe.

    Each group and partition has its own samples. (MirrorMaker 2 4.3 adds a group's latency to those
    of all groups before it.)
    """

    def __init__(self, *, ticks_ms: Callable[[], int] = steady_ms) -> None:
        self._ticks_ms = ticks_ms
        self._lock = threading.Lock()
        self._samples: dict[CheckpointKey, Samples] = {}

    def record(self, key: CheckpointKey, latency_ms: float) -> None:
        """Record that a checkpoint was acknowledged ``latency_ms`` after its group was listed."""
        with self._lock:
            samples = self._samples.setdefault(key, Samples())
            samples.add(self._ticks_ms(), latency_ms, latency_ms)

    def keep(self, groups: Collection[str]) -> None:
        """Forget all groups but ``groups``: a group that was deleted has no more checkpoints."""
        with self._lock:
            self._samples = {key: one for key, one in self._samples.items() if key.group in groups}

    def spreads(self) -> dict[CheckpointKey, Spread]:
        """The latencies of each group and partition that had a checkpoint, in sorted order."""
        with self._lock:
            now_ms = self._ticks_ms()
            found = {key: samples.spread(now_ms) for key, samples in self._samples.items()}
        return {key: spread for key, spread in sorted(found.items()) if spread is not None}


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group and source partition, at the last round of checkpoints.

    ``records``: source end offset minus committed offset, at least 0. ``seconds``: age of the first
    record that the group has not read; 0 if it has read all; None if that record has no timestamp
    or was not read yet.
    """

    group: str
    topic: str
    partition: int
    records: int
    seconds: float | None
