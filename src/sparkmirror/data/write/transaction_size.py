"""How much one transaction may hold on the way to a target that may be slow."""

from __future__ import annotations

__all__ = ["TransactionSize"]

_SHARE_OF_TIMEOUT = 0.25
# Three seconds at 100 KB/s, with a time limit of a minute; eight transactions later it is 32 MiB.
_FIRST_TRANSACTION_BYTES = 256 * 1024
_LOWEST_TRANSACTION_BYTES = 16 * 1024
# So much longer than others a small transaction takes only where the target is slow.
_SLOW_S = 1.0


class TransactionSize:
    """How many bytes a transaction may hold, from how long the last ones took.

    The cluster aborts a transaction that is open for longer than ``transaction.timeout.ms``: with
    all that a fast source brings, each one would be, on a slow way to the target, and nothing
    would ever be committed. So transactions begin small, grow by doubling, and hold what goes in
    a quarter of that time (`bytes`).

    ``interval_ms``: how long a transaction waits for records. ``failed``: how many attempts of the
    task have failed before. Any of them may have ended with a transaction that took too long, so
    each begins with half as much as the one before.
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
        """A transaction of ``size`` bytes was open for ``took_s`` seconds."""
        if not size:
            return
        self._least_s = min(self._least_s, took_s)
        if size >= self.bytes // 2:
            affordable = int(size * self._share_s / max(took_s, 0.001))
            self.bytes = self._allowed(min(affordable, 2 * self.bytes))
            return
        # A smaller one waits for records and for round trips: that says nothing about larger ones.
        sent_s = took_s - max(self._interval_s, self._least_s)
        if sent_s > self._slow_s:
            affordable = int(size * self._share_s / sent_s)
            self.bytes = min(self.bytes, self._allowed(affordable))
