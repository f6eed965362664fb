"""How much one transaction may hold, so that a slow target can take it in time; when it may end."""

from __future__ import annotations

__all__ = ["EarlyCommits", "TransactionSize"]

_SHARE_OF_TIMEOUT = 0.25
# Three seconds at 100 KB/s, with a timeout of a minute. The eighth transaction may hold 32 MiB.
_FIRST_TRANSACTION_BYTES = 256 * 1024
_LOWEST_TRANSACTION_BYTES = 16 * 1024
# If a small transaction takes longer than others by this much, the target is slow.
_SLOW_S = 1.0
# Of bytes that come faster than this, each transaction lasts for the whole interval.
_EARLY_BYTES_S = 32 * 1024 * 1024
# Each partition of a transaction gets a marker: at most 2,000 of them per second and slot.
_MARKER_S = 0.0005
# One slow commit among quick ones says little.
_NEWEST_PART = 1 / 8


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


class EarlyCommits:
    """When a transaction may end although its interval has not: nothing more is at hand.

    While a transaction is committed, a slot collects what arrives for the next one, so a tail has
    the latency of a commit. But each commit costs the target four requests, and a marker per
    partition. So the commits of a slot take at most ``percent`` of its time (0: none is early), as
    measured, which also decides on long links. Many partitions in a transaction make the pauses
    longer, and so do many bytes: a backlog needs large transactions, not early ones.

    Times are monotonic seconds.
    """

    def __init__(self, percent: int) -> None:
        self._share = percent / 100
        self._cost_s = 0.0
        self._free_at = float("-inf")

    def due_at(self, began_at: float, size: int) -> float:
        """From when on a transaction of ``size`` bytes may end that was begun at ``began_at``."""
        if not self._share:
            return float("inf")
        return max(self._free_at, began_at + size / _EARLY_BYTES_S)

    def committed(self, began_at: float, ended_at: float, partitions: int) -> None:
        """Note that a commit took from ``began_at`` to ``ended_at``, with that many markers."""
        if not self._share:
            return
        took_s = ended_at - began_at
        part = _NEWEST_PART if self._cost_s else 1.0
        self._cost_s += (took_s - self._cost_s) * part
        self._free_at = began_at + max(self._cost_s / self._share, partitions * _MARKER_S)
