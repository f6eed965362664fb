"""The load of ``make faults --transform``, and whether its reader sees what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults import harness
from tests.faults.transforms.groups import TAIL
from tests.faults.transforms.orders import OrderCounter, keeps, made, rank, written

FIRST_MS = 1_700_000_000_000


class _Message:
    def __init__(self, number: int, **changes: Any) -> None:
        order = made(number, FIRST_MS)
        assert order is not None
        self._order = order._replace(
            headers=(*order.headers, ("chance", changes.pop("chance", b"0.25")))
        )._replace(**changes)

    def key(self) -> bytes:
        return self._order.key

    def value(self) -> bytes | None:
        return self._order.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return list(self._order.headers)

    def timestamp(self) -> tuple[int, int]:
        return 1, self._order.timestamp_ms

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def error(self) -> None:
        return None


def _counted(monkeypatch: pytest.MonkeyPatch, *messages: _Message) -> OrderCounter:
    class Consumer:
        def __init__(self, _: Any) -> None:
            self._messages = list(messages)

        def assign(self, _: Any) -> None:
            pass

        def consume(self, _count: int, timeout: float) -> list[_Message]:
            found, self._messages = self._messages, []
            return found

        def close(self) -> None:
            pass

    class Cluster:
        bootstrap_servers = "127.0.0.1:1"

    monkeypatch.setattr(harness, "Consumer", Consumer)
    counter = OrderCounter(Cluster(), "A.numbers", 1, FIRST_MS)  # type: ignore[arg-type]
    for message in messages:
        counter._count(message)
    return counter


def test_a_record_in_ten_is_a_tombstone_and_three_in_ten_are_left_out() -> None:
    numbers = range(3_000)
    assert [keeps(one) for one in numbers] == [made(one, 0) is not None for one in numbers]
    assert [rank(one) for one in numbers] == [
        sum(keeps(before) for before in range(one)) for one in numbers
    ]
    assert rank(3_000) == 2_100
    assert sum(written(one, 0).value is None for one in numbers) == 300


def test_groups_are_looked_at_where_runs_are_published() -> None:
    left_out = sum(not keeps(one) for one in range(TAIL))
    assert 20 < left_out < 64 - 2


def test_what_must_become_of_an_order() -> None:
    order = made(7, FIRST_MS)
    assert order is not None
    assert order.value == b'{"n": 7, "region": "US", "card": "***", "sum": 1.50}'
    assert order.headers == (("customer", b"t0"), ("kept", None))
    assert (order.key, order.timestamp_ms) == (b"7", FIRST_MS + 7)
    assert made(6, FIRST_MS) is None


def test_what_is_as_it_must_be_counts_by_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [_Message(one, chance=b"9.5E-4") for one in range(60) if keeps(one)]
    counter = _counted(monkeypatch, *some)
    assert (counter.received, counter.expected) == (len(some), [len(some)])
    assert (counter.lost, counter.duplicated, counter.differing) == (0, 0, 0)
    assert counter.first_wrong == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"value": written(2, FIRST_MS).value},
        {"value": None},
        {"timestamp_ms": FIRST_MS},
        {"headers": (("tenant", b"t2"), ("kept", None), ("chance", b"0.5"))},
        {"headers": (("customer", b"t2"), ("kept", None))},
        {"chance": b"***"},
        {"chance": b""},
    ],
)
def test_a_record_that_differs_is_told(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = _counted(monkeypatch, _Message(1), _Message(2, **changes), _Message(4))
    assert (counter.lost, counter.duplicated, counter.differing) == (0, 0, 1)
    assert "instead of" in counter.first_wrong


def test_a_record_that_is_lost_or_comes_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = _counted(monkeypatch, *map(_Message, (1, 4, 4, 5)))
    assert (counter.lost, counter.duplicated, counter.differing) == (1, 1, 0)
