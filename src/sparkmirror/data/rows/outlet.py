"""How a source worker hands rows to its sink: small ones through the ring, others through Spark.

With a ring, all rows of a task are numbered in the order in which they were made, and the sink
takes them in that order, whichever way they came (`data.rows.arrivals`). Twice a second one goes
through Spark anyway: its number says how many rows there were before it, and a source worker that
Spark has given up notices it there.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sparkmirror.data.rows.notes import SlotNotes
from sparkmirror.data.rows.ring import RingWriter, SharedRing
from sparkmirror.data.rows.rows import FLUSH, Chunk, EncodedRow, as_message, encode_row
from sparkmirror.data.rows.shared_frames import Frames

__all__ = ["Outlet"]

_NOTHING = memoryview(b"")


class Outlet:
    """Makes the rows of one task. ``ring``: None if Spark carries all of them."""

    def __init__(self, frames: Frames, ring: RingWriter | None) -> None:
        self._frames, self._ring = frames, ring
        self._made = 0
        self._accounted = 0

    def note(self) -> SharedRing | None:
        """What the sink needs to find the ring; None if there is none."""
        return None if self._ring is None else self._ring.note()

    def first(self, notes: SlotNotes) -> pa.RecordBatch:
        """The first row of the task, for Spark; it travels alone."""
        return self._for_spark(self._encoded([], _NOTHING, [], notes)).slice(0, 1)

    def pass_on(
        self,
        chunks: Sequence[Chunk],
        frame: memoryview,
        pieces: Sequence[Sequence[memoryview | bytes]],
        notes: SlotNotes | None,
    ) -> pa.RecordBatch | None:
        """Make a row and hand it to the sink; returned if Spark must carry it.

        Arguments: as for `encode_row`.
        """
        row = self._encoded(chunks, frame, pieces, notes)
        # What fills a frame is the work that Spark divides and bounds.
        if self._ring is None or row.shared:
            return self._for_spark(row)
        if self._ring.put(self._made - 1, row.head, memoryview(row.records).cast("B")):
            return None
        return self._for_spark(row)

    def account(self, notes: SlotNotes | None = None) -> pa.RecordBatch:
        """A row for Spark without records; if nothing is to be said, a flush row."""
        if notes is None and self._accounted == self._made:
            return FLUSH
        return self._for_spark(self._encoded([], _NOTHING, [], notes))

    def last(self) -> list[pa.RecordBatch]:
        """What is still to go through Spark when all rows are made.

        With a ring it is a row: at the end of Spark's rows, the sink must not wait for the ring.
        """
        if self._ring is None:
            return []
        return [self._for_spark(self._encoded([], _NOTHING, [], None, last=True))]

    def close(self) -> None:
        """Release the ring; the sink has its own descriptors."""
        if self._ring is not None:
            self._ring.close()

    def _encoded(
        self,
        chunks: Sequence[Chunk],
        frame: memoryview,
        pieces: Sequence[Sequence[memoryview | bytes]],
        notes: SlotNotes | None,
        *,
        last: bool = False,
    ) -> EncodedRow:
        number = None if self._ring is None else self._made
        self._made += 1
        return encode_row(chunks, frame, pieces, notes, self._frames, number, last)

    def _for_spark(self, row: EncodedRow) -> pa.RecordBatch:
        self._accounted = self._made
        return as_message(row)
