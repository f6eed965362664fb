"""How much one transaction may hold, so that a slow target can take it in time."""

from __future__ import annotations

__all__ = ["TransactionSize"]

_SHARE_OF_TIMEOUT = 0.25
# Three seconds at 100 KB/s, with a timeout of a minute. The eighth transaction may hold 32 MiB.
_FIRST_TRANSACTION_BYTES = 256 * 1024
_LOWEST_TRANSACTION_BYTES = 16 * 1024
# If a small transaction takes longer than others by this much, the target is slow.
_SLOW_S = 1.0


class TransactionSize:
    """How many bytes a transaction may hold (`bytes`), from how long earlier ones took.

    The cluster aborts a transaction that is open for longer than ``transaction.timeout.ms``. If
    each held all that a fast source delivers, a slow target would abort each of them, and nothing
    would ever be committed. So transactions begin small, at most double, and hold what the target
    takes in a quarter of that timeout.

    ``interval_ms``: how long a transaction waits for records. ``failed``: how many attempts of the
    task have failed before. Any of them may have ended with a transaction that was open for too
    long, so each attempt begins with half as many bytes as the one before.
    """

    def __init__(
        self, highest: int, timeout_ms: int, *, interval_ms: int = 0, failed: int = 0
    ) -> None:
        self._highest = highest
        self._share_s = timeout_ms / 1000 * _SHARE_OF_TIMEOUT
        self._interval_s = interval_ms / 1000
        self._slow_s = min(_SLOW_S, self._share_s / 4)
        self._least_s = float("inf")
        self.bytes = self._allowed(_FIRST_TRANSACTION_BYTES >> min(failed, 32))

    def _allowed(self, size: int) -> int:
        return min(self._highest, max(_LOWEST_TRANSACTION_BYTES, size))

    def committed(self, size: int, took_s: float) -> None:
        """Note that a transaction of ``size`` bytes was open for ``took_s`` seconds."""
        if not size:
            return
        self._least_s = min(self._least_s, took_s)
        if size >= self.bytes // 2:
            affordable = int(size * self._share_s / max(took_s, 0.001))
            self.bytes = self._allowed(min(affordable, 2 * self.bytes))
            return
        # A smaller one waits for records and round trips: that says little about larger ones.
        sent_s = took_s - max(self._interval_s, self._least_s)
        if sent_s > self._slow_s:
            affordable = int(size * self._share_s / sent_s)
            self.bytes = min(self.bytes, self._allowed(affordable))
