"""Output streams whose other end may go away: a terminal that closes, a reader that ends."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO

__all__ = ["discard", "flush_or_discard"]


def discard(stream: IO[str]) -> None:
    """Point the broken ``stream`` at nothing: what it still holds and all later writes vanish.

    Otherwise Python's own flush at the end of the process fails and turns its exit code into 120.
    A stream without a file number stays as it is.
    """
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # replaced by an object of the caller's, or closed
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, number)
    finally:
        os.close(null)


def flush_or_discard(streams: Iterable[IO[str] | None]) -> None:
    """Flush each stream and discard those that are broken; ``None`` was closed from the start."""
    for stream in streams:
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            discard(stream)
        except ValueError:  # closed: nothing is left to write
            continue
