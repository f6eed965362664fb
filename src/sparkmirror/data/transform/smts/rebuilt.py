"""New batches for the records that a chain of single message transforms keeps.

A batch of which all records stay as they are passes as it is, apart from its base offset, which no
checksum covers. The records of all others are written again, without reading their fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sparkmirror.data.transform.smts.chain import Chain, Outcome, taken
from sparkmirror.data.transform.smts.header_list import Flags
from sparkmirror.records.header import LOG_APPEND_TIME_BIT, split
from sparkmirror.records.header_columns import Int64s, gather_heads
from sparkmirror.records.key_columns import Scan
from sparkmirror.records.partitioner import write_partitioned

__all__ = ["Rebuilt", "rebuild"]

# Smaller batches next to ones that are written again are joined with them.
_RAW_BYTES_MIN = 4096
_BASE_OFFSET_BYTES = 8


@dataclass(slots=True)
class Rebuilt:
    """The new batches of a portion of a chunk.

    ``next_offset``: at the source, after the portion. ``offsets``: those of the kept records at the
    source; the batches number them from 0 on. ``timestamp_ms``: their largest timestamp, -1 for
    none. ``records``: how many the portion had before. ``raw``: how many batches passed as they
    are.
    """

    next_offset: int
    data: bytes
    offsets: Int64s
    timestamp_ms: int
    records: int
    raw: int


@dataclass(slots=True)
class _Batches:
    """The source's batches that hold records: where each is, its records, whether it may pass."""

    first: Int64s
    end: Int64s
    counts: Int64s
    fit: Flags

    def of(self, first: int, count: int) -> _Batches:
        """Those of the ``count`` records after the ``first`` ones; portions have whole batches."""
        after = np.cumsum(self.counts)
        part = slice(
            int(np.searchsorted(after, first, "right")),
            int(np.searchsorted(after, first + count, "left")) + 1,
        )
        return _Batches(self.first[part], self.end[part], self.counts[part], self.fit[part])


def rebuild(
    chain: Chain, portions: Iterator[Scan], buffer: memoryview, next_offset: int, batch_bytes: int
) -> Iterator[Rebuilt]:
    """What ``chain`` makes of a chunk, portion by portion.

    ``portions``: the records of the chunk's batches, which are ``buffer``, with their source
    offsets. ``next_offset``: at the source, after all of them. ``batch_bytes``: about the most of a
    batch that is written again. Raises `BatchError`.
    """
    batches: _Batches | None = None
    done = 0
    for found in portions:
        batches = batches or _batches(buffer)
        outcome = chain.outcome(found)
        count = len(found.columns.offset)
        end = next_offset if found.last else int(found.columns.offset[-1]) + 1
        yield _rebuilt(outcome, batches.of(done, count), buffer, batch_bytes, end)
        done += count


def _batches(buffer: memoryview) -> _Batches:
    cuts = np.array(split(buffer), np.int64).reshape(-1, 2)
    heads = gather_heads(buffer, np.ascontiguousarray(cuts[:, 0]))
    counts = heads["count"].astype(np.int64)
    bits = heads["attributes"].astype(np.int64)
    # Brokers want offsets without gaps, and producers may not send the broker's time.
    fit = heads["last_offset_delta"].astype(np.int64) == counts - 1
    fit &= (bits & LOG_APPEND_TIME_BIT) == 0
    full = counts > 0
    return _Batches(cuts[full, 0], cuts[full, 1], counts[full], fit[full])


def _rebuilt(
    outcome: Outcome, batches: _Batches, buffer: memoryview, batch_bytes: int, end: int
) -> Rebuilt:
    found, kept = outcome.found, outcome.kept
    count = len(kept)
    rows = np.flatnonzero(kept)
    offsets = found.columns.offset.take(rows)
    if not len(offsets):
        return Rebuilt(end, b"", offsets, -1, count, 0)
    begins = np.cumsum(batches.counts) - batches.counts
    same = kept if outcome.touched is None else kept & ~outcome.touched
    raw = batches.fit & np.logical_and.reduceat(same, begins)
    if not raw.all():
        raw &= batches.end - batches.first >= _RAW_BYTES_MIN
    pieces: dict[int, list[bytes | memoryview]] = {}
    timestamp_ms = int(found.columns.timestamp.take(rows).max())
    held = np.add.reduceat(kept, begins, dtype=np.int64)
    places = np.cumsum(held) - held  # numbers of the batches' first kept records
    for batch in np.flatnonzero(raw).tolist():
        base = int(places[batch]).to_bytes(_BASE_OFFSET_BYTES)
        first = int(batches.first[batch]) + _BASE_OFFSET_BYTES
        pieces[batch] = [base, buffer[first : int(batches.end[batch])]]
    if not raw.all():
        _write(outcome, raw, held, batch_bytes, pieces)
    data = b"".join(piece for batch in sorted(pieces) for piece in pieces[batch])
    return Rebuilt(end, data, offsets, timestamp_ms, count, int(raw.sum()))


def _write(
    outcome: Outcome,
    raw: Flags,
    held: Int64s,
    batch_bytes: int,
    pieces: dict[int, list[bytes | memoryview]],
) -> None:
    """Write the records of the batches that are not ``raw``; adds them to ``pieces``.

    ``held``: how many records of each batch are kept. Neighbours are joined: their batches are at
    the number of the first of them.
    """
    new = outcome.written()
    columns = replace(new.columns, offset=np.arange(len(new.columns.offset)))
    numbered = replace(new, columns=columns)
    # The number of the first batch since the last raw one.
    numbers = np.arange(len(raw))
    begins = ~raw & np.concatenate(([True], raw[:-1]))
    group = np.maximum.accumulate(np.where(begins, numbers, 0))
    places = np.repeat(group, held)
    if raw.any():
        wanted = np.repeat(~raw, held)
        numbered, places = taken(numbered, wanted), places[wanted]
    if not len(places):
        return
    written = write_partitioned(numbered, places, codec=new.codec, batch_bytes=batch_bytes)
    for data, batch in zip(written.batches, written.partitions, strict=True):
        pieces.setdefault(batch, []).append(data)
