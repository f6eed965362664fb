"""Orders that a transform filters and changes, and a reader who knows what must become of each.

What must become of an order is computed here in Python, and shares nothing with the SQL. ``rand()``
gives another result whenever the SQL runs again: such a result is in a header that is not compared.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import Producer

from sparkmirror.testing.clusters import KafkaCluster
from tests.faults.harness import Counter
from tests.faults.numbered import Numbered
from tests.kafka.harness.support import Headers

__all__ = ["Order", "OrderCounter", "Orders", "keeps", "made", "rank", "transform_settings"]

_WHERE = "value IS NULL OR get_json_object(CAST(value AS STRING), '$.region') <> 'EU'"
_SELECT = (
    "mask_json(value, '$.card') AS value, "
    "concat(transform(headers, h -> named_struct("
    "'key', CASE h.key WHEN 'tenant' THEN 'customer' ELSE h.key END, 'value', h.value)), "
    "array(named_struct('key', 'chance', 'value', CAST(CAST(rand() AS STRING) AS BINARY)))) "
    "AS headers"
)
_CHANCE = re.compile(rb"\d\.\d+(E-\d+)?")
_PERIOD = 30


class Order(NamedTuple):
    """A record; its number is its key, and its offset at the source."""

    key: bytes
    value: bytes | None
    headers: Headers
    timestamp_ms: int


def transform_settings(topic: str, flow: str = "A->B") -> Mapping[str, str]:
    """The lines of a file that transform ``topic``."""
    one = f"{flow}.sparkmirror.transform.orders"
    return {
        f"{flow}.sparkmirror.transforms": "orders",
        f"{one}.topics": topic,
        f"{one}.where": _WHERE,
        f"{one}.select": _SELECT,
    }


def written(number: int, first_ms: int) -> Order:
    """Order ``number`` at the source. ``first_ms``: the time of order 0."""
    region = "EU" if number % 3 == 0 else "US"
    text = f'{{"n": {number}, "region": "{region}", "card": "4111-{number:06d}", "sum": 1.50}}'
    value = None if _is_tombstone(number) else text.encode()
    headers = (("tenant", b"t%d" % (number % 7)), ("kept", None))
    return Order(b"%d" % number, value, headers, first_ms + number)


def made(number: int, first_ms: int) -> Order | None:
    """What the target must have of order ``number``; None if it is left out."""
    before = written(number, first_ms)
    if before.value is not None and b'"EU"' in before.value:
        return None
    card = b'"4111-%06d"' % number
    value = None if before.value is None else before.value.replace(card, b'"***"')
    headers = (("customer", before.headers[0][1]), *before.headers[1:])
    return before._replace(value=value, headers=headers)


def keeps(number: int) -> bool:
    """Whether the target has order ``number``."""
    return _is_tombstone(number) or number % 3 != 0


def rank(number: int) -> int:
    """How many of the orders before ``number`` the target has."""
    periods, rest = divmod(number, _PERIOD)
    return periods * _RANKS[_PERIOD] + _RANKS[rest]


def _is_tombstone(number: int) -> bool:
    return number % 10 == 9


_RANKS = [sum(keeps(one) for one in range(number)) for number in range(_PERIOD + 1)]


class Orders(Numbered):
    """Writes orders; ``first_ms`` as in `written`."""

    def __init__(self, cluster: KafkaCluster, topic: str, partitions: int, *, per_s: float) -> None:
        super().__init__(cluster, topic, partitions, per_s=per_s)
        # Brokers delete what is a week old, and nobody reads the future.
        self.first_ms = int(time.time() * 1000) - 24 * 3_600_000

    @property
    def due(self) -> int:
        """How many of the records so far the target must have."""
        return sum(map(rank, self.sent))

    def append(self, count: int) -> list[int]:
        """After `finish`, write ``count`` more to each partition; where these begin."""
        begins = list(self.sent)
        for partition in range(len(begins)):
            for _ in range(count):
                self._write_to(partition)
        self._producer.flush(120)
        assert not self.failures, self.failures
        return begins

    def _produce(self, producer: Producer, partition: int, _padding: bytes) -> None:
        order = written(self._next[partition], self.first_ms)
        producer.produce(
            self._topic,
            value=order.value,
            key=order.key,
            headers=list(order.headers),
            timestamp=order.timestamp_ms,
            partition=partition,
            on_delivery=self._delivered,
        )
        self._next[partition] += 1


class OrderCounter(Counter):
    """Counts orders at the target by their `rank`, and compares each with the model.

    ``differing``: how many are not what they must be.
    """

    def __init__(self, cluster: KafkaCluster, topic: str, partitions: int, first_ms: int) -> None:
        super().__init__(cluster, topic, partitions)
        self.differing = 0
        self._first_ms = first_ms

    def _number(self, message: Any) -> int:
        number = int(message.key())
        headers = list(message.headers() or ())
        chance = headers.pop() if headers else ("", b"")
        found = Order(message.key(), message.value(), tuple(headers), message.timestamp()[1])
        wanted = made(number, self._first_ms)
        known = chance[0] == "chance" and _CHANCE.fullmatch(chance[1] or b"")
        if found != wanted or not known:
            self.differing += 1
            self.first_wrong = self.first_wrong or f"{found}, {chance} instead of {wanted}"
        return rank(number)
