"""Writes records with keys, which Kafka's own ProducerPerformance cannot.

usage: keyed.py BOOTSTRAP TOPIC RECORDS FIRST KEYS RECORD_BYTES [PROPERTY=VALUE ...]

Record n has key n mod KEYS; key and value together have RECORD_BYTES. The properties are
librdkafka's. librdkafka chooses partitions as Java's producer does (murmur2).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from confluent_kafka import Producer

CHUNK = 10_000
_KEY_BYTES = 12
"""``k`` and eleven digits."""


def write(
    bootstrap: str,
    topic: str,
    records: int,
    first: int,
    keys: int,
    record_bytes: int,
    properties: Sequence[str],
) -> None:
    """``records`` records, numbered from ``first``; ends when all are acknowledged."""
    settings = dict(one.split("=", 1) for one in properties)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2",
            "queue.buffering.max.messages": 1_000_000,
            **settings,
        }
    )
    value = b"V" * (record_bytes - _KEY_BYTES)
    for start in range(first, first + records, CHUNK):
        for number in range(start, min(start + CHUNK, first + records)):
            key = b"k%011d" % (number % keys)
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    left = producer.flush(300)
    if left:
        raise SystemExit(f"{left} records of {topic} were not acknowledged")


if __name__ == "__main__":
    servers, name, count, begin, spread, size = sys.argv[1:7]
    write(servers, name, int(count), int(begin), int(spread), int(size), sys.argv[7:])
