"""The pipes between a Python worker and Spark's JVM, used so that nothing waits in a buffer.

PySpark writes a worker's rows into a buffered file that it flushes only when the task has ended. So
the end of each message would stay in the buffer until the next message. And while PySpark waits for
rows, it does nothing else. `data.workers.daemon` gives every worker's files to this module:
`data.read.slot_reader` flushes after each row, and `data.write.slot_sink` processes
acknowledgements until the next row arrives. A worker that another daemon started (on a cluster
whose workers cannot import ours) has no such files: there, more rows push the earlier ones out.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Any, BinaryIO

__all__ = ["abandoned", "flush", "input_fd", "row_waits", "wait", "watch_also", "watched"]

_OUTPUT_BUFFER_BYTES = 64 * 1024

_files: tuple[BinaryIO, BinaryIO] | None = None
# Of the first file, for its end and for rows; created once, because they are polled often.
_input: select.poll | None = None
_rows: select.poll | None = None
_either: select.epoll | None = None  # rows, and what `watch_also` was given


def watched(worker_main: Callable[..., Any]) -> Callable[..., Any]:
    """PySpark's ``worker.main(infile, outfile)``; this module gets to know both files."""

    def main(infile: BinaryIO, outfile: BinaryIO) -> Any:
        global _files, _input, _rows  # noqa: PLW0603  (a worker process runs one main at a time)
        # ``spark.buffer.size`` is small because of the JVM, and so that no whole row stays in the
        # buffer of ``infile``. A row that is written in pieces should leave as a whole.
        outfile.flush()
        with os.fdopen(os.dup(outfile.fileno()), "wb", _OUTPUT_BUFFER_BYTES) as wide:
            _files, _input, _rows = (infile, wide), select.poll(), select.poll()
            _input.register(infile, 0)  # hang-ups are always reported
            _rows.register(infile, select.POLLIN)
            try:
                return worker_main(infile, wide)
            finally:
                watch_also(-1)
                _files = _input = _rows = None

    return main


def flush() -> bool:
    """Send what the worker has written so far; False if the output is unknown."""
    if _files is None:
        return False
    _files[1].flush()
    return True


def abandoned() -> bool:
    """Whether Spark has hung up: it gave up this attempt of the task, or its JVM is gone.

    The next attempt will read again what is still unread here.
    """
    if _input is None:
        return False
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in _input.poll(0))


def input_fd() -> int:
    """A descriptor that is readable when the worker's next rows arrive, -1 if there is none.

    Also when what `watch_also` was given is readable. No whole row is in the buffer behind it:
    rows are larger than ``spark.buffer.size``.
    """
    if _either is not None:
        return _either.fileno()
    return -1 if _files is None else _files[0].fileno()


def watch_also(descriptor: int) -> None:
    """Let `input_fd` report ``descriptor``, too; -1: no other one. Needs an input."""
    global _either  # noqa: PLW0603
    if _either is not None:
        _either.close()
        _either = None
    if descriptor >= 0 and _files is not None:
        _either = select.epoll()
        for number in (_files[0].fileno(), descriptor):
            _either.register(number, select.EPOLLIN)


def row_waits() -> bool:
    """Whether a row of Spark has begun to arrive, or its rows have ended."""
    return _rows is None or bool(_rows.poll(0))


def wait() -> None:
    """Wait until `input_fd` is readable."""
    if _either is not None:
        _either.poll()
