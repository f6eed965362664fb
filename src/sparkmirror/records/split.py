"""Takes batches apart: into all their records, into two halves, into good and bad records."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sparkmirror.errors import CorruptBatch
from sparkmirror.records.codecs import DECOMPRESSED_BYTES_MAX
from sparkmirror.records.header import codec, split
from sparkmirror.records.records import Record, decode_records, encode_batch

__all__ = ["cut_batch", "decode_batches", "separate"]


def decode_batches(
    batches: memoryview, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """All records of a run of whole magic 2 batches, in order. Raises `BatchError`."""
    for start, end in split(batches):
        yield from decode_records(batches[start:end], decompressed_bytes_max)


def cut_batch(batch: memoryview) -> tuple[bytes, bytes]:
    """The two halves, by record count, of a batch with at least two records.

    Each half is a batch with the codec of the whole. Raises `BatchError`.
    """
    records = list(decode_records(batch))
    if len(records) < 2:
        raise CorruptBatch(f"A batch of {len(records)} records cannot be cut.")
    middle = len(records) // 2
    return (
        encode_batch(records[:middle], codec=codec(batch)),
        encode_batch(records[middle:], codec=codec(batch)),
    )


def separate(batch: memoryview, bad: Collection[int]) -> tuple[list[bytes], list[Record]]:
    """The good records of a batch as batches without holes, and the records at the indexes ``bad``.

    Both are in order. The new batches have the codec of the whole, and the records keep their
    offsets. Raises `BatchError`.
    """
    runs: list[list[Record]] = [[]]
    left_out: list[Record] = []
    for index, record in enumerate(decode_records(batch)):
        if index in bad:
            left_out.append(record)
            runs.append([])
        else:
            runs[-1].append(record)
    kept = [encode_batch(run, codec=codec(batch)) for run in runs if run]
    return kept, left_out
