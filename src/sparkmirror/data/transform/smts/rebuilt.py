"""New batches for the records that a chain of single message transforms keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sparkmirror.data.transform.smts.chain import Chain
from sparkmirror.records.header_columns import Int64s
from sparkmirror.records.kept import kept_batches
from sparkmirror.records.key_columns import Scan

__all__ = ["Rebuilt", "rebuild"]


@dataclass(slots=True)
class Rebuilt:
    """The new batches of a portion of a chunk.

    ``next_offset``: at the source, after the portion. ``offsets``: those of the kept records at the
    source; the batches number them from 0 on. ``timestamp_ms``: their largest timestamp, -1 for
    none. ``records``: how many the portion had before.
    """

    next_offset: int
    data: bytes
    offsets: Int64s
    timestamp_ms: int
    records: int


def rebuild(
    chain: Chain, portions: Iterator[Scan], next_offset: int, batch_bytes: int
) -> Iterator[Rebuilt]:
    """What ``chain`` makes of a chunk, portion by portion.

    ``portions``: the records of the chunk's batches, with their source offsets. ``next_offset``: at
    the source, after all of them. ``batch_bytes``: about the most of a batch that is written again.
    Raises `BatchError`.
    """
    for found in portions:
        outcome, columns = chain.outcome(found), found.columns
        pieces = kept_batches(
            found,
            outcome.kept,
            batch_bytes=batch_bytes,
            touched=outcome.touched,
            written=outcome.written,
        )
        rows = np.flatnonzero(outcome.kept)
        yield Rebuilt(
            next_offset if found.last else int(columns.offset[-1]) + 1,
            b"".join(pieces),
            columns.offset.take(rows),
            int(columns.timestamp.take(rows).max()) if len(rows) else -1,
            len(columns.offset),
        )
