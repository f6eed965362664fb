"""Handles standard streams that are closed, lost their other end, or lack characters."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import IO

__all__ = ["discard", "flush_or_discard", "open_closed", "replace_unencodable"]

_STANDARD = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def discard(stream: IO[str]) -> None:
    """Redirect the broken ``stream`` to /dev/null: buffered data and later writes are lost.

    Otherwise Python's flush at the end of the process would fail and set its exit code to 120. A
    stream without a file number is not changed.
    """
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # replaced by the caller's object, or closed
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, number)
    finally:
        os.close(null)


def flush_or_discard(streams: Iterable[IO[str] | None]) -> None:
    """Flush each stream and discard broken ones; ``None`` was closed from the start."""
    for stream in streams:
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            discard(stream)
        except ValueError:  # closed; nothing remains to be written
            continue


def open_closed() -> None:
    """Open the standard streams that were closed from the start (``>&-``) as /dev/null.

    Python has ``None`` for them. Call it first: otherwise the next file or socket gets the free
    number, and whatever libraries and child processes print goes there.
    """
    for name, mode in _STANDARD:
        if getattr(sys, name) is None:
            # This takes the lowest free number, which is the stream's own.
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, mode, encoding="utf-8", closefd=False))


def replace_unencodable(streams: Iterable[IO[str] | None]) -> None:
    """Have each stream write ``?`` for a character that its encoding lacks.

    Otherwise a terminal or a log without Unicode would end the mirror. Streams that a caller put in
    place of the process's may lack the setting; they are not changed.
    """
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
