"""Standard streams whose readers may not read: a thread writes, and whoever has a line goes on.

A terminal after Ctrl+S, a pager and a full pipe take nothing for as long as they like. Signals,
drains and health checks must not wait for them.
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import select
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

__all__ = ["QueuedStream", "is_full", "queued_streams"]

_log = logging.getLogger(__name__)

FULL_BYTES = 64 * 1024
"""With more than this waiting, progress is not shown."""

WAITING_BYTES_MAX = 1024 * 1024
# Pipes take this much at once or not at all.
_PIECE_BYTES = 4_096
# How long the end of a run waits for readers: that take nothing, and at all.
QUIET_S = 1.0
END_S_MAX = 5.0
_LOOK_S = 0.01


class _Writer:
    """Writes what waits for the file ``number``, in order. If too much waits, the oldest is lost.

    The log says how much, once the reader is no longer far behind.
    """

    def __init__(self, number: int) -> None:
        self.waiting_bytes = 0
        self._number = number
        self._changed = threading.Condition()
        self._texts: deque[tuple[QueuedStream, bytes]] = deque()
        self._lost_bytes = 0
        self._ended = False
        threading.Thread(target=self._serve, name="sparkmirror-output", daemon=True).start()

    def add(self, stream: QueuedStream, data: bytes) -> None:
        """Keep ``data`` for the thread."""
        with self._changed:
            if not data or self._ended:
                return
            while self._texts and self.waiting_bytes + len(data) > WAITING_BYTES_MAX:
                lost = len(self._texts.popleft()[1])
                self.waiting_bytes -= lost
                self._lost_bytes += lost
            self._texts.append((stream, data))
            self.waiting_bytes += len(data)
            self._changed.notify_all()

    def end(self) -> None:
        """Take no more; the thread still writes what waits."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def left(self) -> tuple[int, ...]:
        """What is not read yet, as far as that is known. It changes whenever some is taken."""
        # Of a pipe and of a terminal: one piece that is being written may take them long.
        held = (_count(self._number, request) for request in (termios.FIONREAD, termios.TIOCOUTQ))
        return self.waiting_bytes, *held

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._texts:
                    if self._ended:
                        return
                    self._changed.wait()
                stream, data = self._texts.popleft()
                lost = 0 if self.waiting_bytes > FULL_BYTES else self._lost_bytes
                self._lost_bytes -= lost
            if lost:  # without the lock, because the log may write here, too
                _log.warning("%d bytes of output are lost: nobody read them for too long", lost)
            left = memoryview(data)
            try:
                while left:
                    written = _written(stream.fileno(), left[:_PIECE_BYTES])
                    left = left[written:]
                    self._take(written)
                stream.error = None
            except OSError as error:  # the reader is gone, or the disk is full
                stream.error = error
                self._take(len(left))

    def _take(self, count: int) -> None:
        with self._changed:
            self.waiting_bytes -= count


class QueuedStream(io.TextIOBase):
    """Text for ``stream``, a stream with a file number; ``writer`` writes it.

    A write raises the error of an earlier one if none has succeeded since. Its text is kept all the
    same: the file may have space again. Everything else that a stream has is that of ``stream``.
    """

    def __init__(self, stream: TextIO, writer: _Writer | None = None) -> None:
        self.error: OSError | None = None
        stream.flush()
        self._stream = stream
        # Not through ``stream``: whoever ends the process could not flush it while a write hangs.
        self._number = stream.fileno()
        self.writer = writer or _Writer(self._number)

    @property
    def full(self) -> bool:
        """Whether the reader is so far behind that progress should not be written."""
        return self.writer.waiting_bytes > FULL_BYTES

    def write(self, text: str) -> int:
        """Keep ``text`` for the thread. Raises the ``OSError`` of an earlier write."""
        if not text:  # consoles write it to any stream, also while they capture
            return 0
        encoding, errors = self._stream.encoding or "utf-8", self._stream.errors or "replace"
        error, self.error = self.error, None
        self.writer.add(self, text.encode(encoding, errors))
        if error is not None:
            raise error
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """What only some streams have, such as ``buffer`` and ``reconfigure``: users' code may."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._stream, name)

    def flush(self) -> None:
        """Do nothing: the thread writes everything at once."""

    def end(self) -> None:
        """Wait until all is written, for as long as the reader takes some of it; then no more."""
        _end({self.writer})

    def fileno(self) -> int:
        """The file number of the stream."""
        return self._number

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's encoding."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What the stream does with characters that its encoding lacks."""
        return self._stream.errors


def _written(number: int, data: memoryview) -> int:
    try:
        return os.write(number, data)
    except BlockingIOError:  # whoever gave us the stream made it so
        waiting = select.poll()
        waiting.register(number, select.POLLOUT)
        waiting.poll()
        return 0


def _count(number: int, request: int) -> int:
    """The number of bytes that the kernel says; 0 if it has none for such a file."""
    try:
        return int.from_bytes(fcntl.ioctl(number, request, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def _end(writers: Collection[_Writer]) -> None:
    """Wait until all is written, for as long as readers take some of it; then no more."""
    for writer in writers:
        writer.end()
    began_s = taken_s = time.monotonic()
    before: list[tuple[int, ...]] = []
    while any(writer.waiting_bytes for writer in writers):
        now_s, left = time.monotonic(), [writer.left() for writer in writers]
        if left != before:
            before, taken_s = left, now_s
        if now_s >= min(taken_s + QUIET_S, began_s + END_S_MAX):
            return
        time.sleep(_LOOK_S)


def is_full(stream: object) -> bool:
    """Whether ``stream`` is a `QueuedStream` whose reader is far behind."""
    return isinstance(stream, QueuedStream) and stream.full


@contextmanager
def queued_streams() -> Iterator[None]:
    """Make stdout and stderr such streams while the block runs; after it, all is written.

    That wait has a bound, and Ctrl+C ends it. What a caller put in place of the process's own
    streams stays.
    """
    former = sys.stdout, sys.stderr
    out = _queued(sys.stdout)
    same = isinstance(out, QueuedStream) and _same_file(out, sys.stderr)
    err = _queued(sys.stderr, out.writer if same and isinstance(out, QueuedStream) else None)
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        sys.stdout, sys.stderr = former
        with suppress(KeyboardInterrupt):  # how the block ended stays
            _end({stream.writer for stream in (out, err) if isinstance(stream, QueuedStream)})


def _queued(stream: TextIO, writer: _Writer | None = None) -> TextIO:
    try:
        return cast(TextIO, QueuedStream(stream, writer))
    except (OSError, ValueError):  # without a number, closed, or broken
        return stream


def _same_file(one: TextIO, other: TextIO) -> bool:
    """Whether both write to one terminal, pipe or file: then their lines have one order."""
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError):
        return False
