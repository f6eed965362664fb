"""Whatever brokers do while batches are joined because the link is long: all is there, in order.

`test_producer_properties` has the modes in which time plays no part. Here responses take time, so
`auto` decides: many batches wait, responses are slow, and the producer waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sparkmirror.wire.produce.transactions import Transactions
from tests.property.test_producer_properties import (
    NODES,
    PARTITIONS,
    A,
    Open,
    Run,
    Step,
)

TRIP_S = 0.05
IN_FLIGHT_MAX = 5

_nodes = st.integers(0, NODES - 1)
_tps = st.sampled_from(PARTITIONS)
# Bursts that fill the queue, and rounds in which brokers take what they got, in any order.
steps = st.one_of(
    st.tuples(st.just("burst"), _tps, st.integers(6, 12)),
    st.tuples(st.just("rounds"), st.integers(1, 6)),
    st.tuples(st.just("pump")),
    st.tuples(st.just("take"), _nodes),
    st.tuples(st.just("replicate"), _tps),
    st.tuples(st.just("move"), _tps, _nodes, st.integers(0, 4)),
    st.tuples(st.just("cut"), _nodes),
    st.tuples(st.just("refresh")),
)

FILL: list[Step] = [("burst", A, 12), ("burst", A, 12), ("burst", A, 12), ("rounds", 5)]
"""More waits than may be in flight, for some round trips: the next batches are joined."""


class FarRun(Run):
    """A `Run` over a link on which each wait for responses takes a round trip."""

    def __init__(self, transactions: Transactions | None = None) -> None:
        super().__init__(transactions, joining="auto")
        poller: Any = self.producer._responses
        wait = poller.wait

        def waiting(timeout_s: float) -> Any:
            self.now += TRIP_S
            return wait(timeout_s)

        poller.wait = waiting

    def step(self, step: Step) -> None:
        name, *arguments = cast(tuple[Any, ...], step)
        if name == "burst":
            tp, count = arguments
            for number in range(count):
                self.append(tp, 1 + number % 3)
        elif name == "rounds":
            for _ in range(arguments[0]):
                self.round()
        else:
            super().step(step)

    def round(self) -> None:
        """Each broker takes one request, and all of that is replicated."""
        self.pump()
        for node in range(NODES):
            self.target.take(node)
        for tp in PARTITIONS:
            self.target.replicate(tp)

    def pump(self) -> None:
        super().pump()
        self.now -= 0.25  # of the 0.3 s between two rounds: this link is busy

    def check(self) -> None:
        for tp in PARTITIONS:
            assert self.target.partitions[tp].values == self.appended[tp]
            assert self.acknowledged[tp] == len(self.appended[tp])
        assert self.producer.backlog.bytes_waiting == 0
        assert not self.producer.backlog.halts


def _run(script: Sequence[Step], *, exact: bool) -> int:
    """Returns how many batches were joined."""
    run = FarRun(cast(Transactions, Open()) if exact else None)
    try:
        for step in script:
            run.step(step)
        run.settle()
        run.check()
        return run.producer.joining.counts.batches
    finally:
        run.target.close()


@pytest.mark.parametrize("exact", [pytest.param(False, marks=pytest.mark.more), True])
@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=40))
def test_what_is_joined_by_need_arrives_once_and_in_order(exact: bool, script: list[Step]) -> None:
    event("joined" if _run([*FILL, *script], exact=exact) else "not joined")


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "trouble",
    [
        [],
        [("cut", 0)],
        [("move", A, 1, 0), ("pump",), ("refresh",)],
        [("take", 0), ("move", A, 2, 1), ("cut", 0)],
    ],
    ids=["nothing", "a lost connection", "another leader", "both"],
)
def test_need_arises_and_trouble_meets_joined_batches(exact: bool, trouble: list[Step]) -> None:
    """The scripts above do bring about what they are about."""
    assert _run([*FILL, *FILL, ("pump",), *trouble], exact=exact) > IN_FLIGHT_MAX
