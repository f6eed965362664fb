"""What the record batch core costs, without sockets: MB/s, batches/s, records/s, best of several.

Run: ``python benchmarks/micro_batch.py [--seconds 1.0]``. One thread; sizes are those of a Fetch
response for one partition (1 MiB unless the case says otherwise).
"""

from __future__ import annotations

import argparse
import random
import struct
import time
import zlib
from collections.abc import Callable

from sparkmirror.records.codecs import LZ4, NAMES, NONE, compress
from sparkmirror.records.header import split, stamp
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.records.selection import SelectRules, select

RESPONSE_BYTES = 1 << 20
START_MS = 1_700_000_000_000
RULES = SelectRules()
_random = random.Random(7)


def value(size: int) -> bytes:
    return bytes(_random.choices(b"abcdefghijklmnopqrstuvwxyz {}:,0123456789", k=size))


def response(records_per_batch: int, value_bytes: int, *, codec: int = 0, hole: bool = False,
             spread: int = 0, limit: int = RESPONSE_BYTES) -> tuple[bytes, int]:  # fmt: skip
    """Batches up to ``limit`` bytes, and how many; value sizes vary by ``spread``."""
    batches: list[bytes] = []
    size = offset = 0
    while size < limit:
        places = [offset + step for step in range(records_per_batch + hole)]
        offset += len(places)
        if hole:
            places.pop(records_per_batch // 2)
        records = [
            Record(
                place,
                START_MS + place // 7,
                None,
                value(value_bytes + _random.randint(-spread, spread)),
            )
            for place in places
        ]
        batch = encode_batch(records, codec=codec, producer_id=7, producer_epoch=0)
        batches.append(batch)
        size += len(batch)
    return b"".join(batches), len(batches)


def legacy(codec: int, inner: int) -> tuple[bytes, int]:
    """Magic 1 messages, wrapped by ``inner`` when a codec is given."""
    parts: list[bytes] = []
    size = offset = 0
    while size < RESPONSE_BYTES // 4:
        if codec == 0:
            message = legacy_message(offset, 0, value(100))
            offset += 1
        else:
            body = b"".join(legacy_message(place, 0, value(100)) for place in range(inner))
            offset += inner
            message = legacy_message(offset - 1, codec, compress(codec, body))
        parts.append(message)
        size += len(message)
    return b"".join(parts), len(parts)


def legacy_message(offset: int, codec: int, content: bytes) -> bytes:
    body = struct.pack(">bbqii", 1, codec, START_MS, -1, len(content)) + content
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def best_seconds(work: Callable[[], object], seconds: float) -> float:
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def report(
    name: str, data: bytes, batches: int, work: Callable[[], object], seconds: float
) -> None:
    records = sum(count for _, count in select(memoryview(data), 0, (), RULES).runs)
    taken = best_seconds(work, seconds)
    print(
        f"{name:<44}{len(data) / 1e6 / taken:>10,.0f} MB/s{batches / taken:>14,.0f} batches/s"
        f"{records / taken:>14,.0f} records/s{taken * 1e6:>10,.0f} us"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each case")
    seconds: float = parser.parse_args().seconds

    def run_select(name: str, data: bytes, batches: int) -> None:
        # A Fetch response lies in a bytearray that recv_into fills.
        buffer = memoryview(bytearray(data))
        report(name, data, batches, lambda: select(buffer, 0, (), RULES), seconds)

    big, count = response(145, 100)
    run_select("select, 16 KiB batches", big, count)
    buffer = memoryview(bytearray(big))
    report("split and stamp, 16 KiB batches", big, count, lambda: [
        stamp(buffer[start:end], producer_id=1, producer_epoch=0, base_sequence=0,
              transactional=False)
        for start, end in split(buffer)
    ], seconds)  # fmt: skip
    run_select("select, one record a batch, 100 B", *response(1, 100))
    run_select("select, one record a batch, 60..140 B", *response(1, 100, spread=40))
    run_select("select, one record a batch, 1 KiB", *response(1, 1024))
    run_select("select, 5 records a batch, 60..140 B", *response(5, 100, spread=40))
    for codec in range(1, 5):
        run_select(f"select, one record a batch, {NAMES[codec]}", *response(1, 100, codec=codec))
    run_select("select, 5 records a batch, lz4", *response(5, 100, codec=LZ4))
    for codec in (NONE, LZ4):
        run_select(f"select, holes, 16 KiB, {NAMES[codec]}", *response(145, 100, codec=codec,
                                                                     hole=True))  # fmt: skip
    run_select("select, holes, 3 records a batch", *response(3, 100, hole=True))
    run_select("select, magic 1 messages", *legacy(NONE, 1))
    run_select("select, magic 1 lz4 wrappers of 100", *legacy(LZ4, 100))
    for few in (2, 10, 20, 40):
        run_select(f"select, {few} batches of one record, 100 B",
                   *response(1, 100, limit=few * 168 - 50))  # fmt: skip


if __name__ == "__main__":
    main()
