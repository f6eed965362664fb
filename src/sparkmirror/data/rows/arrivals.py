"""How a sink takes the rows of its task: from Spark and from the ring, in one order.

Rows of a source worker without a ring have no numbers, and all come from Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pyarrow as pa

from sparkmirror.data.rows import worker_pipes
from sparkmirror.data.rows.ring import RingReader, SharedRing, map_ring
from sparkmirror.data.rows.rows import Row, decode_row, read_numbered
from sparkmirror.errors import Defect

__all__ = ["Arrivals"]

log = logging.getLogger(__name__)


class Arrivals:
    """The rows of one task.

    ``check_spark`` raises if Spark has given up the task. It is called before a row of the ring is
    taken, because nothing else would show it: Spark's own rows end then.
    """

    def __init__(self, check_spark: Callable[[], None]) -> None:
        self._check_spark = check_spark
        self._ring: RingReader | None = None
        self._rings = False  # whether the source worker still may put something into it
        self._next = 0

    def begin(self, note: SharedRing | None) -> None:
        """Use the source worker's ring, if there is one."""
        if note is None:
            return
        if worker_pipes.input_fd() < 0:
            log.warning(
                "the ring cannot be waited for in Spark's own worker: Spark carries all rows"
            )
            return
        self._ring = map_ring(note)
        if self._ring is None:
            return
        try:
            worker_pipes.watch_also(self._ring.bell)
        except OSError as error:
            log.warning("the ring cannot be waited for (%s): Spark carries all rows", error)
            self.close()
            return
        self._ring.listen()
        self._rings = True
        log.info("small rows come through a ring beside Spark")

    def messages(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch | None]:
        """Spark's messages; None: rows may be in the ring (`rows`)."""
        while True:
            while self._rings and not worker_pipes.row_waits():
                worker_pipes.wait()
                if not worker_pipes.row_waits():
                    self._silence()  # before rows are taken: what comes meanwhile rings again
                    yield None
            batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def rows(self, batch: pa.RecordBatch | None) -> Iterator[Row]:
        """The rows of one of the `messages`, with those of the ring before and after each.

        The caller processes each row before it takes the next one.
        """
        for index in range(0 if batch is None else batch.num_rows):
            number, last, row = read_numbered(batch, index)
            if number is not None:
                yield from self._from_ring()
                if number != self._next:
                    raise Defect(f"row {number} of a slot came after row {self._next - 1}")
                self._next += 1
            yield row
            if last:
                # The end of Spark's rows may be in a buffer, where nothing shows it.
                self._wait_for_spark_alone()
        yield from self._from_ring()

    def _from_ring(self) -> Iterator[Row]:
        """The rows of the ring that are next."""
        while self._ring is not None and (entry := self._ring.take(self._next)) is not None:
            self._check_spark()
            self._next += 1
            yield decode_row(*entry).row

    def _silence(self) -> None:
        if self._ring is not None and not self._ring.silence():
            # The source worker has ended. What comes after rows that Spark still has is there.
            self._wait_for_spark_alone()

    def _wait_for_spark_alone(self) -> None:
        self._rings = False
        worker_pipes.watch_also(-1)

    def close(self) -> None:
        """Release the ring."""
        if self._ring is not None:
            self._wait_for_spark_alone()
            self._ring.close()
            self._ring = None
