"""What a partition costs the slot that has it, and when it is far behind. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BASE_BYTES_S", "Load"]

BASE_BYTES_S = 2_000.0
"""The cost of a partition without records, as bytes per second.

A slot with 2,500 partitions spends some 33 ms of a second on requests and reports for them, and
would otherwise mirror 150 MB in that second (docs/scaling.md).
"""
_CATCH_UP_S = 3_600.0
# A backlog counts as far behind from the first pair on, and until the second one.
_FAR_S, _NEAR_S = 3_600.0, 600.0
_FAR_BYTES, _NEAR_BYTES = 256 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """One source partition.

    ``bytes_s``: what is written to it, a moving average. ``backlog_bytes``: what the target does
    not have. ``leader``: node id of the leader, -1 if unknown.
    """

    bytes_s: float = 0.0
    backlog_bytes: float = 0.0
    leader: int = -1

    @property
    def weight(self) -> float:
        """Bytes per second that its slot needs to keep up and to read the backlog in an hour."""
        return BASE_BYTES_S + self.bytes_s + self.backlog_bytes / _CATCH_UP_S

    @property
    def behind_s(self) -> float:
        """How long it took to write the backlog, at the present rate."""
        return self.backlog_bytes / max(1.0, self.bytes_s)

    def is_far_behind(self, *, before: bool) -> bool:
        """Whether it is to be read apart from what is current; ``before``: it was, until now.

        It is from an hour and 256 MiB on, until 10 minutes or 64 MiB. A smaller backlog is read in
        a few seconds.
        """
        seconds, size = (_NEAR_S, _NEAR_BYTES) if before else (_FAR_S, _FAR_BYTES)
        return self.behind_s >= seconds and self.backlog_bytes >= size
