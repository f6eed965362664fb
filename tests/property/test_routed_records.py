"""Sinks of routed records that are killed at random, against a model that knows where each belongs.

The brokers are simulated and answer at once. Leaders change, and markers are missing.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from sparkmirror.model import TopicPartition
from sparkmirror.settings import FlowSettings
from tests.unit.data.write.test_exactly_once import (
    BILLS,
    ORDERS,
    REMOTE,
    Brokers,
    Source,
    _flow,
    simulated,
)
from tests.unit.data.write.test_routed_records import Routing, _packed, _routes

SOURCES = (ORDERS, BILLS)
PLACES = (
    *(TopicPartition("eu", number) for number in range(2)),
    *(TopicPartition("us", number) for number in range(3)),
    *REMOTE.values(),
)
_RECORDS = 120
Log = list[tuple[bytes, TopicPartition]]


class Killed(Exception):
    pass


def _life(
    rng: random.Random, brokers: Brokers, logs: dict[TopicPartition, Log], *, dies: bool
) -> Iterator[Any]:
    """The rows of one attempt from the committed positions on; it may end at any of them."""
    yield from Source(brokers).rows
    at = {one: brokers.positions.get(REMOTE[one], 0) for one in SOURCES}
    while any(at[one] < len(logs[one]) for one in SOURCES):
        one = rng.choice([each for each in SOURCES if at[each] < len(logs[each])])
        sent = logs[one][at[one] : at[one] + rng.randrange(1, 12)]
        quiet = at[one] + len(sent) > _RECORDS
        if quiet:
            brokers.unmarked = set()
        yield _packed(one, at[one], *sent)
        at[one] += len(sent)
        if dies and rng.random() < 0.1:
            raise Killed
        if rng.random() < 0.1:
            brokers.leader_epochs[rng.choice(PLACES)] += 1
        if not dies and not quiet and rng.random() < 0.1:
            # What a task leaves open, no other one may end: then it stops instead.
            brokers.unmarked = {rng.choice(PLACES)}


def _mirrored(
    rng: random.Random, brokers: Brokers, flow: FlowSettings, logs: dict[TopicPartition, Log]
) -> int:
    """Run attempts until one ends by itself; returns how many were killed."""
    lives = rng.randrange(1, 6)
    killed = 0
    for number in range(lives):
        sink = Routing(flow)
        if not flow.exactly_once:
            _keep_positions(sink, brokers)
        last = number == lives - 1
        try:
            sink.run(_life(rng, brokers, logs, dies=not last))
        except Killed:
            killed += 1
        assert not [lane.halt for lane in sink._task.lanes.values() if lane.halt]
    return killed


def _keep_positions(sink: Routing, brokers: Brokers) -> None:
    def keep(_group: str, offsets: dict[TopicPartition, tuple[int, str]], *_: object) -> None:
        brokers.positions |= {tp: offset for tp, (offset, _) in offsets.items()}

    sink._delivery._commits.coordinators.commit = keep  # type: ignore[attr-defined]
    # Positions are committed within the attempt, too.
    sink._delivery._last_commit = float("-inf")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(10, 40))]
)
@pytest.mark.parametrize("exact", [True, False], ids=["exactly-once", "at-least-once"])
def test_each_record_arrives_where_it_belongs_and_in_order(seed: int, *, exact: bool) -> None:
    rng = random.Random(seed)
    logs: dict[TopicPartition, Log] = {
        one: [
            (b"%s-%d" % (one.topic.encode(), n), place)
            # The last records go everywhere: what is open there is closed first.
            for n, place in enumerate((*rng.choices(PLACES, k=_RECORDS), *PLACES))
        ]
        for one in SOURCES
    }
    options: dict[str, Any] = {"exactly_once": exact, "position_interval_ms": 1}
    if exact:
        options |= {"transaction_interval_ms": rng.choice([0, 5, 3_600_000])}
    flow = _flow(**options, **_routes("orders", "bills"))
    with simulated() as brokers:
        _mirrored(rng, brokers, flow, logs)
        arrived = {tp: [one.value for one in brokers.committed[tp]] for tp in PLACES}
        positions = dict(brokers.positions)
    for one in SOURCES:
        wanted = defaultdict(list)
        for value, place in logs[one]:
            wanted[place].append(value)
        for tp in PLACES:
            mine = [value for value in arrived[tp] if (value or b"").startswith(_name(one))]
            if exact:
                assert mine == wanted[tp]
            else:
                assert list(dict.fromkeys(mine)) == wanted[tp]
        assert positions[REMOTE[one]] == len(logs[one])


def _name(source: TopicPartition) -> bytes:
    return source.topic.encode() + b"-"
