"""How long checkpoints take, per consumer group and partition; and how far a group is behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sparkmirror.model import Spread
from sparkmirror.observe.figures.samples import Samples, steady_ms

__all__ = ["CheckpointKey", "CheckpointTimes", "GroupRow"]


class CheckpointKey(NamedTuple):
    """A consumer group and one of its partitions, under its name on the target."""

    group: str
    topic: str
    partition: int


class CheckpointTimes:
    """Latencies of acknowledged checkpoints; thread-safe.

    Each group and partition has samples of its own. (MirrorMaker 2 4.3 adds a group's latency to
    those of all groups that it met before.)
    """

    def __init__(self, *, ticks_ms: Callable[[], int] = steady_ms) -> None:
        self._ticks_ms = ticks_ms
        self._lock = threading.Lock()
        self._samples: dict[CheckpointKey, Samples] = {}

    def record(self, key: CheckpointKey, latency_ms: float) -> None:
        """A checkpoint was acknowledged ``latency_ms`` after its group was listed."""
        with self._lock:
            samples = self._samples.setdefault(key, Samples())
            samples.add(self._ticks_ms(), latency_ms, latency_ms)

    def spreads(self) -> dict[CheckpointKey, Spread]:
        """What was seen, for each group and partition that had a checkpoint, in order."""
        with self._lock:
            now_ms = self._ticks_ms()
            found = {key: samples.spread(now_ms) for key, samples in self._samples.items()}
        return {key: spread for key, spread in sorted(found.items()) if spread is not None}


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group and source partition, as of the last look.

    ``records``: source end offset minus committed offset, never less than 0. ``seconds``: age of
    the first record that the group has not read, 0 when it has read all, None when that record
    has no timestamp or was not looked at yet.
    """

    group: str
    topic: str
    partition: int
    records: int
    seconds: float | None
