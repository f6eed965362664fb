"""How both ends of a transform divide a chunk: they must count the same records alike."""

from __future__ import annotations

from collections.abc import Iterator

from sparkmirror.records.key_columns import Scan, scans

__all__ = ["portions"]

_PORTION_BYTES_MAX = 16 << 20


def portions(batches: memoryview) -> Iterator[Scan]:
    """The records of a chunk, in portions whose memory is bounded. Raises `BatchError`."""
    return scans(batches, cost_bytes_max=_PORTION_BYTES_MAX)
