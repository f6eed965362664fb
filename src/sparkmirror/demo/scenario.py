"""The demo's topics of every kind and their records, all from one seed.

Pure: it contacts no broker. ``traffic`` produces the records.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sparkmirror.wire.cluster.views import NewTopic

__all__ = [
    "NULL_MARKER",
    "TOPICS",
    "DemoTopic",
    "Payment",
    "console_lines",
    "metric_lines",
    "new_topics",
    "payments",
]

NULL_MARKER = "NULL"
"""The text that the console producer sends as a null value."""


@dataclass(frozen=True, slots=True)
class DemoTopic:
    """One topic, and how its records are produced.

    ``tool``: ``perf`` is Kafka's ProducerPerformance, ``console`` its console producer (keys,
    headers, tombstones), ``transactions`` a transactional producer that commits and aborts.
    ``share``: its share of ``--records``, for ``perf`` only. ``shows``: its special feature, for
    the table of results.
    """

    name: str
    partitions: int
    compression: str
    tool: Literal["perf", "console", "transactions"]
    shows: str
    configs: Mapping[str, str] = field(default_factory=dict)
    share: float = 0.0
    record_bytes: int = 0


TOPICS = (
    DemoTopic("clicks", 6, "none", "perf", "volume", share=0.5, record_bytes=100),
    DemoTopic(
        "metrics",
        4,
        "lz4",
        "perf",
        "retention.ms",
        configs={"retention.ms": "259200000"},
        share=0.4,
    ),
    DemoTopic(
        "gateway",
        2,
        "snappy",
        "perf",
        "LogAppendTime",
        configs={"message.timestamp.type": "LogAppendTime"},
        share=0.1,
        record_bytes=300,
    ),
    DemoTopic("orders", 3, "zstd", "console", "keys, headers"),
    DemoTopic(
        "customers",
        2,
        "gzip",
        "console",
        "tombstones",
        configs={"cleanup.policy": "compact"},
    ),
    DemoTopic(
        "invoices",
        1,
        "gzip",
        "console",
        "large records",
        configs={"max.message.bytes": "4194304"},
    ),
    DemoTopic("payments", 3, "none", "transactions", "transactions"),
)


def new_topics() -> list[NewTopic]:
    """The topics to create."""
    return [NewTopic(one.name, one.partitions, 1, one.configs) for one in TOPICS]


def metric_lines(seed: int, count: int) -> Iterator[str]:
    """Text payloads that compress like real ones."""
    chance = random.Random(f"metrics {seed}")  # noqa: S311 - test data, no secret
    names = ("cpu_seconds_total", "http_requests_total", "heap_bytes", "queue_depth")
    for _ in range(count):
        host = f"web-{chance.randrange(40):02}.example"
        value = chance.randrange(1_000_000)
        path = f"/api/v1/items/{chance.randrange(500)}"
        labels = f'host="{host}",zone="eu-{chance.randrange(3)}",path="{path}"'
        yield f"{chance.choice(names)}{{{labels}}} {value}"


def console_lines(topic: str, seed: int, count: int, first: int = 0) -> Iterator[str]:
    """Lines for the console producer: ``headers TAB key TAB value``.

    ``first``: the number of the first record, so that a second call continues the first one.
    """
    chance = random.Random(f"{topic} {seed} {first}")  # noqa: S311 - test data, no secret
    make = {"orders": _order, "customers": _customer, "invoices": _invoice}[topic]
    for number in range(first, first + count):
        yield make(chance, number)


def _order(chance: random.Random, number: int) -> str:
    headers = f"trace-id:{chance.getrandbits(64):016x},source:{chance.choice(['web', 'app'])}"
    value = f'{{"order":{number},"item":{chance.randrange(9_000)},"count":{chance.randint(1, 9)}}}'
    return f"{headers}\torder-{number}\t{value}"


def _customer(chance: random.Random, number: int) -> str:
    key = f"customer-{chance.randrange(500)}"
    # Every fifth record deletes its key: a tombstone is a key without a value.
    gone = number % 5 == 4
    value = NULL_MARKER if gone else f'{{"version":{number},"city":"city {chance.randrange(90)}"}}'
    return f"revision:{number}\t{key}\t{value}"


def _invoice(chance: random.Random, number: int) -> str:
    text = "".join(chance.choices("0123456789abcdef", k=chance.randint(20_000, 200_000)))
    return f"type:pdf\tinvoice-{number}\t{text}"


@dataclass(frozen=True, slots=True)
class Payment:
    """One transaction's records ``(partition, key, value)``, and whether it is committed."""

    records: tuple[tuple[int, bytes, bytes], ...]
    committed: bool


def payments(seed: int, count: int, partitions: int) -> Iterator[Payment]:
    """``count`` transactions over all partitions; about every third one is aborted."""
    chance = random.Random(f"payments {seed}")  # noqa: S311 - test data, no secret
    for number in range(count):
        records = tuple(
            (
                chance.randrange(partitions),
                f"account-{chance.randrange(200)}".encode(),
                f'{{"payment":{number},"line":{line},"cents":{chance.randrange(90_000)}}}'.encode(),
            )
            for line in range(chance.randint(1, 8))
        )
        yield Payment(records, committed=chance.random() > 0.33)
