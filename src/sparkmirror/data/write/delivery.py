"""How a sink delivers: the interface of the two kinds, `AtLeastOnce` and `ExactlyOnce`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from sparkmirror.data.rows.notes import SlotHello
from sparkmirror.data.rows.rows import Chunk
from sparkmirror.data.write.partition_state import Lane, Pending
from sparkmirror.records.header import Passing
from sparkmirror.settings import Member

__all__ = ["RENEW_S", "ComeRound", "Delivery"]

RENEW_S = 300.0
"""How often a sink commits all positions again and writes them in MirrorMaker 2's format."""

ComeRound = Callable[[], None]
"""A round of the sink (`SlotSink._housekeep`); a delivery calls it while it waits."""


class Delivery(Protocol):
    """Appends batches, settles them and commits positions for one sink. One owner thread."""

    def begin(self, hello: SlotHello) -> None:
        """Called when the lanes are known and nothing is written yet."""

    def begun(self) -> None:
        """Called when all notes of the first row are processed."""

    def add(self, lanes: list[Lane]) -> None:
        """Called when further lanes are known, and nothing of them is written yet."""

    def leave(self, lane: Lane) -> None:
        """Called when no more chunks of ``lane`` come; what is in flight is still written."""

    def join(self, member: Member) -> None:
        """Commit as ``member`` of the consumer group from now on."""

    def prepare(self, chunks: list[Chunk]) -> None:
        """Called before the chunks of a row are written."""

    def portions(self, chunks: list[Chunk], records: memoryview) -> Iterable[Chunk]:
        """The chunks of a row, divided as they are written, in order."""

    def write(self, pending: Pending, part: memoryview) -> list[Passing]:
        """Queue the batches of one chunk; returns them."""

    def leave_out(self, pending: Pending) -> None:
        """Write gap records for ``pending.failed``, after the batches of the chunk."""

    def advance(self, lane: Lane) -> None:
        """Called after each chunk: one without batches may let the position of ``lane`` move."""

    def pump(self, come_round: ComeRound) -> None:
        """Send, process acknowledgements, and wait until there is room for the next row."""

    def linger(self, come_round: ComeRound) -> None:
        """Send and process acknowledgements until the next row arrives."""

    def tick(self, now: float) -> None:
        """Commit what is due; now and then all positions. Release lanes that other slots get.

        ``now``: monotonic seconds.
        """

    def finish(self, come_round: ComeRound) -> None:
        """Wait until all is acknowledged and committed; save positions as MirrorMaker 2 does."""

    def drain(self) -> None:
        """Wait until the last report is acknowledged."""

    def close(self) -> None:
        """Called when the task has ended, with or without an error."""
