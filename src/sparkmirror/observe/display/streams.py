"""Handles standard streams that are closed, lost their other end, or lack characters."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import IO

__all__ = ["discard", "flush_or_discard", "prepare_streams"]

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


def prepare_streams() -> None:
    """Make the standard streams of a process take all that it writes. Call it first.

    Those that were closed from the start (``>&-``), for which Python has ``None``, become
    /dev/null: otherwise the next file or socket gets the free number, and whatever libraries and
    child processes print goes there. stdout and stderr write ``?`` for a character that their
    encoding lacks: otherwise a terminal or a log without Unicode would end the mirror.
    """
    for name, mode in _STANDARD:
        if getattr(sys, name) is None:
            # This takes the lowest free number, which is the stream's own.
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        # What a caller put in place of the process's stream may lack the setting.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
