"""How far a consumer group of the source is behind, in figures."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GroupRow"]


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
