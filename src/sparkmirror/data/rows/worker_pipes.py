"""The pipes between a Python worker and Spark's JVM, so that nothing waits in a buffer.

PySpark writes a worker's rows into a buffered file that it flushes when the task is over: the end
of each message would stay behind until the next one. And it waits for rows without looking at
anything else. `data.workers.daemon` shows every worker's files to this module:
`data.read.slot_reader` flushes after each row, and `data.write.slot_sink` takes in acknowledgements
until the next row is there. A worker that another daemon started (a cluster whose workers cannot
import ours) has no such files: there rows are pushed out by more rows.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Any, BinaryIO

__all__ = ["abandoned", "flush", "input_fd", "watched"]

_OUTPUT_BUFFER_BYTES = 64 * 1024

_files: tuple[BinaryIO, BinaryIO] | None = None
_input: select.poll | None = None  # of the first of them, made once: it is asked all the time


def watched(worker_main: Callable[..., Any]) -> Callable[..., Any]:
    """PySpark's ``worker.main(infile, outfile)``, with both files known to this module."""

    def main(infile: BinaryIO, outfile: BinaryIO) -> Any:
        global _files, _input  # noqa: PLW0603  (a worker process runs one main at a time)
        # ``spark.buffer.size`` is small for the JVM's sake, and that no whole row hides in the
        # buffer of ``infile``. A row that is written piece by piece should leave as a whole.
        outfile.flush()
        with os.fdopen(os.dup(outfile.fileno()), "wb", _OUTPUT_BUFFER_BYTES) as wide:
            _files, _input = (infile, wide), select.poll()
            _input.register(infile, 0)  # hang-ups are always told
            try:
                return worker_main(infile, wide)
            finally:
                _files = _input = None

    return main


def flush() -> bool:
    """Send what the worker has written so far; False where that cannot be done."""
    if _files is None:
        return False
    _files[1].flush()
    return True


def abandoned() -> bool:
    """Whether Spark has hung up: it gave up this attempt of the task, or its JVM is gone.

    What still waits to be read was read by nobody else, but will be: by the next attempt.
    """
    if _input is None:
        return False
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in _input.poll(0))


def input_fd() -> int:
    """The descriptor on which the worker's next rows arrive, -1 when it is not known.

    No whole row is in the buffer behind it: rows are larger than ``spark.buffer.size``.
    """
    return -1 if _files is None else _files[0].fileno()
