"""How a sink delivers: what it asks of the two kinds, `AtLeastOnce` and `ExactlyOnce`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from sparkmirror.data.rows.notes import SlotHello
from sparkmirror.data.rows.rows import Chunk
from sparkmirror.data.write.partition_state import Lane, Pending
from sparkmirror.model import Member
from sparkmirror.records.header import Passing

__all__ = ["ComeRound", "Delivery"]

ComeRound = Callable[[], None]
"""What a sink does at each round (`SlotSink._housekeep`), also while its delivery waits."""


class Delivery(Protocol):
    """Appends, settles and commits for one sink. One owner thread."""

    def begin(self, hello: SlotHello) -> None:
        """The lanes are known; nothing is written yet."""

    def begun(self) -> None:
        """All that the first row says is taken in."""

    def join(self, member: Member) -> None:
        """Commit as ``member`` of the consumer group from now on."""

    def prepare(self, chunks: list[Chunk]) -> None:
        """Do what is to be done before the chunks of a row are written."""

    def portions(self, chunks: list[Chunk], records: memoryview) -> Iterable[Chunk]:
        """The chunks of a row as they are written, one after the other."""

    def write(self, pending: Pending, part: memoryview) -> list[Passing]:
        """Queue the batches of one chunk; what they are."""

    def advance(self, lane: Lane) -> None:
        """A chunk without batches may let the position of ``lane`` move."""

    def pump(self, come_round: ComeRound) -> None:
        """Send, take in acknowledgements, and wait until there is room for the next row."""

    def linger(self, come_round: ComeRound) -> None:
        """Send and take in acknowledgements until the next row is there."""

    def tick(self, now: float) -> None:
        """Commit what is due. ``now``: monotonic seconds."""

    def finish(self, come_round: ComeRound) -> None:
        """Have everything acknowledged, committed, and saved for a MirrorMaker 2 to find."""

    def drain(self) -> None:
        """Have the last report acknowledged."""

    def close(self) -> None:
        """The task has ended, one way or the other."""
