"""Processor time of the Python ends of a transform, without brokers and without Spark.

usage: python -m benchmarks.transforms.ends [--calls N]

The source end unpacks records for Spark, the sink end packs its results. Prints microseconds of
processor time per record of the source, and which functions take most. Compare runs on one machine:
a large part is new memory, so ``MALLOC_MMAP_THRESHOLD_`` and ``MALLOC_TRIM_THRESHOLD_`` change it.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from benchmarks.transforms.records import LEFT_OUT_OF, Maker, event_maker, text_maker
from sparkmirror.data.rows.rows import FLUSH, Chunk, build_row, read_row
from sparkmirror.data.transform.columns import arrow_schema
from sparkmirror.data.transform.pack import Packer
from sparkmirror.data.transform.unpack import Unpacker
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ClusterClient, FlowSettings
from sparkmirror.transform_settings import TransformSettings

_CLIENT = ClusterClient("A", ("localhost:1",), "bench")
_FLOW = FlowSettings(*(_CLIENT,) * 4, transforms=(TransformSettings("clean", ("orders",), "true"),))
_BATCHES, _SPARK_ROWS, _SHOWN = 4, 256, 5
CASES: tuple[tuple[str, Maker, int, int, str, bool], ...] = (
    ("where, 1 KiB, lz4", event_maker(1024), 950, 3, "value", False),
    ("mask, 1 KiB, lz4", event_maker(1024), 950, 3, "value", True),
    ("filter by a header, 100 B", text_maker(100), 8_000, 0, "headers", False),
)
"""(title, records, records per batch, codec, column that Spark reads, whether it is replaced)."""


def _row(make: Maker, per_batch: int, codec: int) -> tuple[pa.RecordBatch, int]:
    """A row as the source sends it, and the number of its records."""
    count, data = _BATCHES * per_batch, b""
    for first in range(0, count, per_batch):
        records = []
        for n in range(first, first + per_batch):
            value, headers = make(n)
            pairs = tuple((name.encode(), content) for name, content in headers)
            records.append(Record(n, n, None, value, pairs))
        data += encode_batch(records, codec=codec)
    chunk = Chunk("orders", 0, "A.orders", 0, count, count, count, 0, len(data))
    return build_row([chunk], memoryview(b""), [[data]], None), count


def _results(table: pa.Table, *, replaced: bool) -> list[pa.RecordBatch]:
    """What Spark makes of the records: one of three is left out, or all values are replaced."""
    fields = [("kept", pa.bool_()), *([("value", pa.binary())] if replaced else [])]
    made: list[Any] = []
    for n, row in enumerate(table.to_pylist()):
        if row["__transform"] is None:
            made.append(None)
        elif replaced:
            made.append({"record": {"kept": True, "value": row["value"]}})
        else:
            made.append({"record": {"kept": True} if n % LEFT_OUT_OF else None})
    kind = pa.struct([("record", pa.struct(fields))])
    head = {name: table[name] for name in ("__head", "__records", "__at")}
    whole = pa.table({**head, "t0": pa.array(made, kind)})
    return list(whole.combine_chunks().to_batches(_SPARK_ROWS))


def _pack(batches: list[pa.RecordBatch]) -> None:
    packer = Packer(_FLOW)
    for batch in batches:
        for part in packer.parts(batch):
            if isinstance(part, int):
                chunks, records, _, _ = read_row(batch, part)
                packer.hold(chunks, records)
    packer.finish()


def _best_us(work: Callable[[], object], records: int, calls: int) -> float:
    best = float("inf")
    for _ in range(calls):
        before = time.process_time()
        work()
        best = min(best, time.process_time() - before)
    return best / records * 1e6


def _most(work: Callable[[], object], records: int) -> str:
    profile = cProfile.Profile()
    profile.runcall(work)
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    most = sorted(stats.items(), key=lambda one: -one[1][2])[:_SHOWN]
    return "; ".join(f"{key[2]} {one[2] / records * 1e6:.2f}" for key, one in most)


def main() -> int:
    """Measure all cases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transforms.ends")
    parser.add_argument("--calls", type=int, default=10, help="of each end; the fastest counts")
    options = parser.parse_args()
    for title, make, per_batch, codec, column, replaced in CASES:
        row, records = _row(make, per_batch, codec)
        uses = [frozenset({column})]
        unpacker = Unpacker(_FLOW, uses, None)

        def unpack(row: pa.RecordBatch = row, unpacker: Unpacker = unpacker) -> list[Any]:
            return list(unpacker.rows(iter([row, FLUSH])))

        table = pa.Table.from_batches(unpack(), arrow_schema(uses)).combine_chunks()
        results = _results(table, replaced=replaced)

        def pack(results: list[pa.RecordBatch] = results) -> None:
            _pack(results)

        print(f"{title}:", flush=True)
        for name, work in (("source end", unpack), ("sink end", pack)):
            us = _best_us(work, records, options.calls)
            print(f"  {name:11} {us:5.2f} us per record; {_most(work, records)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
