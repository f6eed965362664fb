"""How both ends of a transform divide a chunk: they must count the same records alike."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sparkmirror.data.rows.rows import Chunk
from sparkmirror.records.header_columns import Int64s
from sparkmirror.records.key_columns import Scan, scans

__all__ = ["keep_freed_memory", "portions"]

_PORTION_BYTES_MAX = 16 << 20
# glibc's numbers of two settings, and the largest threshold that it takes.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_THRESHOLD_BYTES = 32 << 20
_KEPT_BYTES = 64 << 20


def keep_freed_memory() -> None:
    """Let this process keep up to 64 MiB that it frees, for the next portion.

    glibc gives large blocks back to the system at once, and then the system clears new pages for
    each portion: that took half of the time of reading and writing records.
    """
    with contextlib.suppress(AttributeError):  # other C libraries
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def portions(chunk: Chunk, batches: memoryview) -> Iterator[Scan]:
    """The records of ``chunk``, with their source offsets, in portions of bounded memory.

    ``batches``: its bytes. Raises `BatchError`.
    """
    known, done = _known_offsets(chunk), 0
    unknown = chunk.record_count - len(known)
    for found in scans(batches, cost_bytes_max=_PORTION_BYTES_MAX):
        # Batches that were joined or re-encoded on the way number their records without gaps, so
        # their own offsets hold only as far as `Chunk.runs` does not say otherwise.
        offsets = found.columns.offset.copy()
        low, end = max(unknown, done), done + len(offsets)
        part = known[low - unknown : max(0, end - unknown)]
        offsets[low - done : low - done + len(part)] = part
        done = end
        yield replace(found, columns=replace(found.columns, offset=offsets))


def _known_offsets(chunk: Chunk) -> Int64s:
    """The source offsets of the last records of ``chunk``, as far as its runs tell."""
    if len(chunk.source_runs) == 1:  # as nearly always: a topic that nothing compacts
        ((first, count),) = chunk.source_runs
        return np.arange(first, first + count, dtype=np.int64)
    runs = np.array(chunk.source_runs, np.int64).reshape(-1, 2)
    firsts, counts = runs[:, 0], runs[:, 1]
    begins = np.cumsum(counts) - counts
    offsets: Int64s = np.repeat(firsts - begins, counts) + np.arange(int(counts.sum()))
    return offsets
