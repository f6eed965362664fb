"""Whether what arrived is what must arrive: the first and the last records of each partition."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from benchmarks.transforms.records import OUTPUTS, Headers

__all__ = ["Ends", "Seen", "difference", "read_ends"]

SAMPLE = 300
_READ_MAX_S = 30.0


@dataclass(frozen=True)
class Seen:
    """A record, without its offset."""

    value: bytes
    headers: Headers
    key: bytes | None
    timestamp_ms: int


@dataclass(frozen=True)
class Ends:
    """The ``first`` and the ``last`` records of a partition."""

    first: Sequence[Seen]
    last: Sequence[Seen]


def read_ends(bootstrap: str, topic: str, partitions: int, sample: int = SAMPLE) -> dict[int, Ends]:
    """The first and the last ``sample`` records of each partition, by its number."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench-check", "enable.auto.commit": False}
    )
    try:
        found = {}
        for number in range(partitions):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
            first = _read(consumer, topic, number, low, min(high, low + sample))
            last = _read(consumer, topic, number, max(low, high - sample), high)
            found[number] = Ends(first, last)
    finally:
        consumer.close()
    return found


def _read(consumer: Consumer, topic: str, number: int, begin: int, end: int) -> list[Seen]:
    """The records from offset ``begin`` up to ``end``. Raises RuntimeError if they do not come."""
    found: list[Seen] = []
    if begin == end:
        return found
    consumer.assign([TopicPartition(topic, number, begin)])
    deadline = time.monotonic() + _READ_MAX_S
    while True:
        for message in consumer.consume(1_000, 0.2):
            if message.error():
                raise RuntimeError(f"{topic}-{number}: {message.error()}")
            if message.offset() < end:
                headers = tuple(message.headers() or ())
                found.append(Seen(message.value(), headers, message.key(), message.timestamp()[1]))
            if message.offset() >= end - 1:
                return found
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic}-{number} cannot be read from {begin} to {end}")


def difference(output: str, source: Mapping[int, Ends], target: Mapping[int, Ends]) -> str:
    """What is wrong with ``target``, in words; empty: nothing.

    All tools keep partitions and order, so that the ends of a partition are known. JSON that was
    changed is compared as such: tools may write it with other blanks.
    """
    for number, ends in source.items():
        for place in ("first", "last"):
            wanted = _wanted(output, getattr(ends, place))
            got = getattr(target[number], place)
            count = len(wanted)
            # The source's sample may become fewer records.
            got = got[:count] if place == "first" else got[max(0, len(got) - count) :]
            if len(got) != count:
                return f"partition {number}: {len(got)} {place} records instead of {count}"
            for index, (one, other) in enumerate(zip(wanted, got, strict=True)):
                if not _equal(output, one, other):
                    return (
                        f"partition {number}, record {index} of its {place} ones: "
                        f"{other} instead of {one}"
                    )
    return ""


def _wanted(output: str, records: Sequence[Seen]) -> list[Seen]:
    made = ((one, OUTPUTS[output](one.value, one.headers)) for one in records)
    return [
        Seen(value, one.headers, one.key, one.timestamp_ms)
        for one, value in made
        if value is not None
    ]


def _equal(output: str, wanted: Seen, got: Seen) -> bool:
    if output != "mask":
        return wanted == got
    rest = [(one.headers, one.key, one.timestamp_ms) for one in (wanted, got)]
    return rest[0] == rest[1] and json.loads(wanted.value) == json.loads(got.value)
