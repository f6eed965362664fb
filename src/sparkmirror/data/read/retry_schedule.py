"""Decides when a partition that the sink gave up is retried, within the same epoch.

The sink says which attempt it gave up, and at which position (`data.write.progress.HaltMessages`).
That is final, because the sink drops everything else of that attempt. The source then waits, goes
back to that position, and tells the sink the number of the new attempt before its first row. What
is said about earlier attempts is ignored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sparkmirror.model import TopicPartition
from sparkmirror.progress import PartitionProgress

__all__ = ["Retries"]

_FIRST_S, _LAST_S = 2.0, 60.0
# After this long without a new failure, the partition has recovered; the next pause is short again.
_CALM_S = 300.0


@dataclass(slots=True)
class _Stopped:
    attempt: int = 0
    position: int = -1
    due: float | None = None
    pause_s: float = _FIRST_S
    tried_at: float = 0.0


class Retries:
    """The attempts of one slot's partitions. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stopped: dict[TopicPartition, _Stopped] = {}

    def stop(self, tp: TopicPartition, progress: PartitionProgress) -> bool:
        """Whether the sink's report ends the current attempt.

        The next attempt is due after a pause, or never if a retry does not help.
        """
        state = self._stopped.setdefault(tp, _Stopped())
        halt = progress.halt
        if halt is None or halt.attempt != state.attempt or state.due is not None:
            return False
        now = self._clock()
        if now - state.tried_at > _CALM_S:
            state.pause_s = _FIRST_S
        state.position = progress.position
        state.due = now + state.pause_s if halt.retriable else math.inf
        state.pause_s = min(_LAST_S, 2 * state.pause_s)
        return True

    def take_due(self) -> list[tuple[TopicPartition, int, int]]:
        """(partition, attempt, position) of those to retry now; their attempts begin with this."""
        now = self._clock()
        begun = []
        for tp, state in self._stopped.items():
            if state.due is not None and state.due <= now:
                state.attempt += 1
                state.due, state.tried_at = None, now
                begun.append((tp, state.attempt, state.position))
        return begun

    def leave(self, tp: TopicPartition) -> None:
        """End the attempt of a partition that the slot leaves: what is said about it is late."""
        state = self._stopped.setdefault(tp, _Stopped())
        state.attempt += 1
        state.due, state.pause_s = None, _FIRST_S

    def again(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The attempts of those that the slot has left before, and begins again."""
        return {tp: self._stopped[tp].attempt for tp in partitions if tp in self._stopped}
