"""How much one transaction may hold, so that a slow target can take it in time."""

from __future__ import annotations

__all__ = ["TransactionSize"]

_SHARE_OF_TIMEOUT = 0.25
# Three seconds at 100 KB/s, with a timeout of a minute. The eighth transaction may hold 32 MiB.
_FIRST_TRANSACTION_BYTES = 256 * 1024
_LOWEST_TRANSACTION_BYTES = 16 * 1024


class TransactionSize:
    """How many bytes a transaction may hold (`bytes`), from how long earlier ones took.

    The cluster aborts a transaction that is open for longer than ``transaction.timeout.ms``. If
    each held all that a fast source delivers, a slow target would abort each of them, and nothing
    would ever be committed. So transactions begin small, at most double, and hold what the target
    takes in a quarter of that timeout.
    """

    def __init__(self, highest: int, timeout_ms: int) -> None:
        self._highest = highest
        self._share_s = timeout_ms / 1000 * _SHARE_OF_TIMEOUT
        self.bytes = min(_FIRST_TRANSACTION_BYTES, highest)

    def committed(self, size: int, took_s: float) -> None:
        """Note that a transaction of ``size`` bytes was open for ``took_s`` seconds."""
        if not size:
            return
        affordable = int(size * self._share_s / max(took_s, 0.001))
        if took_s > self._share_s:
            self.bytes = max(_LOWEST_TRANSACTION_BYTES, min(self.bytes, affordable))
        elif size >= self.bytes // 2:  # a smaller one does not show what larger ones need
            self.bytes = min(max(self.bytes, affordable), 2 * self.bytes, self._highest)
