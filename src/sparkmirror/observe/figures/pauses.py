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
        # By epoch and slot: run, attempt, and when it ended; 0: it goes on.
        self._ended: dict[int, dict[int, tuple[str, int, int]]] = {}
        self._older = PauseTotals()

    def note(self, progress: SlotProgress) -> None:
        """Add one slot's report. A task that is started again begins a slot only once."""
        epoch = progress.epoch
        if epoch <= max(self._began_ms, default=epoch) - _EPOCHS_KEPT or not progress.began_ms:
            return
        began = self._began_ms.setdefault(epoch, {})
        began[progress.slot] = min(progress.began_ms, began.get(progress.slot, progress.began_ms))
        self._note_end(progress)
        while len(self._began_ms) > _EPOCHS_KEPT:
            oldest = min(self._began_ms)
            if (pause_s := self._pause_s(oldest)) is not None:
                older = self._older
                self._older = PauseTotals(pause_s, older.count + 1, older.sum_s + pause_s)
            del self._began_ms[oldest]
            # The end of this epoch began the pause of the next one, which is still open.
            self._ended.pop(oldest - 1, None)

    def _note_end(self, progress: SlotProgress) -> None:
        """A slot whose task ended, and was started again in the epoch, goes on."""
        ended = self._ended.setdefault(progress.epoch, {})
        newest = progress.run_id, progress.attempt, progress.ended_ms
        known = ended.get(progress.slot, newest)
        # A late report of an earlier attempt, or one of this attempt before its last one.
        if known[0] != progress.run_id or known[1:] <= newest[1:]:
            ended[progress.slot] = newest

    def _pause_s(self, epoch: int) -> float | None:
        """The pause before ``epoch``; None if the epoch before it did not end in order."""
        ends = [ms for _, _, ms in self._ended.get(epoch - 1, {}).values() if ms]
        if not ends:
            return None
        return max(0, max(self._began_ms[epoch].values()) - min(ends)) / 1_000

    def totals(self) -> PauseTotals:
        """The pauses so far."""
        total = self._older
        for epoch in sorted(self._began_ms):
            if (pause_s := self._pause_s(epoch)) is not None:
                total = PauseTotals(pause_s, total.count + 1, total.sum_s + pause_s)
        return total
