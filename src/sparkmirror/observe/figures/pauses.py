"""How long a flow's partitions pause between two epochs, from the reports of its slots."""

from __future__ import annotations

from dataclasses import dataclass

from sparkmirror.progress import SlotProgress

# Reports of an epoch's slots may arrive after those of the next one.
_EPOCHS_KEPT = 3


@dataclass(frozen=True, slots=True)
class PauseTotals:
    """``last_s``: the newest pause, None without any; ``count`` and ``sum_s``: of the whole run."""

    last_s: float | None = None
    count: int = 0
    sum_s: float = 0.0


class Pauses:
    """The pauses of one flow. A pause belongs to the epoch that ends it."""

    def __init__(self) -> None:
        self._began_ms: dict[int, dict[int, int]] = {}  # by epoch and slot
        self._ended_ms: dict[int, int] = {}
        self._older = PauseTotals()

    def note(self, progress: SlotProgress) -> None:
        """Add one slot's report. A task that is started again begins a slot only once."""
        epoch = progress.epoch
        if epoch <= max(self._began_ms, default=epoch) - _EPOCHS_KEPT or not progress.began_ms:
            return
        began = self._began_ms.setdefault(epoch, {})
        began[progress.slot] = min(progress.began_ms, began.get(progress.slot, progress.began_ms))
        if progress.ended_ms:
            known = self._ended_ms.get(epoch, progress.ended_ms)
            self._ended_ms[epoch] = min(progress.ended_ms, known)
        while len(self._began_ms) > _EPOCHS_KEPT:
            oldest = min(self._began_ms)
            if (pause_s := self._pause_s(oldest)) is not None:
                older = self._older
                self._older = PauseTotals(pause_s, older.count + 1, older.sum_s + pause_s)
            del self._began_ms[oldest]
            # The end of this epoch began the pause of the next one, which is still open.
            self._ended_ms.pop(oldest - 1, None)

    def _pause_s(self, epoch: int) -> float | None:
        """The pause before ``epoch``; None if the epoch before it did not end in order."""
        ended_ms = self._ended_ms.get(epoch - 1)
        if ended_ms is None:
            return None
        return max(0, max(self._began_ms[epoch].values()) - ended_ms) / 1_000

    def totals(self) -> PauseTotals:
        """The pauses so far."""
        total = self._older
        for epoch in sorted(self._began_ms):
            if (pause_s := self._pause_s(epoch)) is not None:
                total = PauseTotals(pause_s, total.count + 1, total.sum_s + pause_s)
        return total
