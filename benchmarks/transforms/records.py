"""Writes numbered records, of which it is known what every transform must make of them.

usage: python -m benchmarks.transforms.records BOOTSTRAP TOPIC PARTITIONS RECORDS FIRST
           RECORD_BYTES [PROPERTY=VALUE ...]

Up to `SMALL_BYTES` they are text with headers, above JSON events with a region and a card number.
Record n is in partition n mod PARTITIONS; one of three has the region EU or the header ``test``.
The properties are librdkafka's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence

from confluent_kafka import Producer

from benchmarks.load import events

__all__ = [
    "LEFT_OUT_OF",
    "OUTPUTS",
    "SMALL_BYTES",
    "Headers",
    "Maker",
    "arriving",
    "event_maker",
    "text_maker",
]

Headers = tuple[tuple[str, bytes], ...]
Maker = Callable[[int], tuple[bytes, Headers]]

SMALL_BYTES = 200
LEFT_OUT_OF = 3
MASK = "***"
_CHUNK = 5_000
_POOL = 4_000
_FIRST_NUMBER = 100_000_000
_TENANT = ("tenant", b"blue")
_TEST = ("test", b"1")
_HEADERS_BYTES = sum(len(name) + len(value) for name, value in (_TENANT, _TEST))


def event_maker(record_bytes: int) -> Maker:
    """JSON events of about ``record_bytes``: number, region, card number, and what `load` makes."""
    head = b'{"n": %d, "region": "%s", "card": "4%015d", '
    rest_bytes = record_bytes - len(head % (_FIRST_NUMBER, b"EU", 0)) + 1
    rests = [one[1:].encode() for one in events(_POOL, rest_bytes)]

    def make(n: int) -> tuple[bytes, Headers]:
        region = b"US" if n % LEFT_OUT_OF else b"EU"
        front = head % (_FIRST_NUMBER + n, region, n * 7_919)
        return front + rests[n % _POOL], ()

    return make


def text_maker(record_bytes: int) -> Maker:
    """Letters of ``record_bytes``, headers included: a tenant, and ``test`` in one of three."""
    letters = b"V" * (record_bytes - _HEADERS_BYTES - len(str(_FIRST_NUMBER)))

    def make(n: int) -> tuple[bytes, Headers]:
        headers = (_TENANT,) if n % LEFT_OUT_OF else (_TENANT, _TEST)
        return b"%d" % (_FIRST_NUMBER + n) + letters, headers

    return make


# -- what must come of them ------------------------------------------------------------------------


def _same(value: bytes, headers: Headers) -> bytes | None:
    return value


def _where(value: bytes, headers: Headers) -> bytes | None:
    return None if json.loads(value)["region"] == "EU" else value


def _mask(value: bytes, headers: Headers) -> bytes | None:
    card = json.loads(value)["card"]
    return value.replace(card.encode(), MASK.encode())


def _without_test(value: bytes, headers: Headers) -> bytes | None:
    return None if any(name == _TEST[0] for name, _ in headers) else value


OUTPUTS: dict[str, Callable[[bytes, Headers], bytes | None]] = {
    "same": _same,
    "where": _where,
    "mask": _mask,
    "filter": _without_test,
}
"""The value that must arrive for a record; None: none may arrive."""


def arriving(output: str, records: int) -> int:
    """How many of the first ``records`` records arrive."""
    if output in ("where", "filter"):
        return records - -(-records // LEFT_OUT_OF)
    return records


def write(
    bootstrap: str,
    topic: str,
    partitions: int,
    records: int,
    first: int,
    record_bytes: int,
    properties: Sequence[str],
) -> None:
    """``records`` records, numbered from ``first``; ends when all are acknowledged."""
    settings = dict(one.split("=", 1) for one in properties)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 1 << 20,
            **settings,
        }
    )
    make = (text_maker if record_bytes <= SMALL_BYTES else event_maker)(record_bytes)
    for start in range(first, first + records, _CHUNK):
        for number in range(start, min(start + _CHUNK, first + records)):
            value, headers = make(number)
            while True:
                try:
                    producer.produce(
                        topic, value, partition=number % partitions, headers=list(headers)
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    if left := producer.flush(300):
        raise SystemExit(f"{left} records of {topic} were not acknowledged")


if __name__ == "__main__":
    servers, name, spread, count, begin, size = sys.argv[1:7]
    write(servers, name, int(spread), int(count), int(begin), int(size), sys.argv[7:])
