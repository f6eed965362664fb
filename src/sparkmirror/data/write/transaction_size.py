"""How much one transaction may hold on the way to a target that may be slow."""

from __future__ import annotations

__all__ = ["TransactionSize"]

_SHARE_OF_TIMEOUT = 0.25
# Three seconds at 100 KB/s, with a time limit of a minute; eight transactions later it is 32 MiB.
_FIRST_TRANSACTION_BYTES = 256 * 1024
_LOWEST_TRANSACTION_BYTES = 16 * 1024


class TransactionSize:
    """How many bytes a transaction may hold, from how long the last ones took.

    The cluster aborts a transaction that is open for longer than ``transaction.timeout.ms``: with
    all that a fast source brings, each one would be, on a slow way to the target, and nothing
    would ever be committed. So transactions begin small, grow by doubling, and hold what goes in
    a quarter of that time (`bytes`).
    """

    def __init__(self, highest: int, timeout_ms: int) -> None:
        self._highest = highest
        self._share_s = timeout_ms / 1000 * _SHARE_OF_TIMEOUT
        self.bytes = min(_FIRST_TRANSACTION_BYTES, highest)

    def committed(self, size: int, took_s: float) -> None:
        """A transaction of ``size`` bytes was open for ``took_s`` seconds."""
        if not size:
            return
        affordable = int(size * self._share_s / max(took_s, 0.001))
        if took_s > self._share_s:
            self.bytes = max(_LOWEST_TRANSACTION_BYTES, min(self.bytes, affordable))
        elif size >= self.bytes // 2:  # a smaller one says nothing about larger ones
            self.bytes = min(max(self.bytes, affordable), 2 * self.bytes, self._highest)
